//! Power spectral density along rows, by Welch's method: windows of Hann that overlap by half.

use std::f64::consts::TAU;

/// Longest segment: more frequencies than a picture shows.
const SEGMENT_MAX: usize = 1024;
/// Shortest segment that has a spectrum to speak of.
const SEGMENT_MIN: usize = 8;

/// Power for each frequency in cycles per element, above 0 up to .5: the mean over all segments of rows
/// without gaps. Empty if there is none.
pub fn spectrum(values: &[f64], columns: usize) -> Vec<(f64, f64)> {
    let len = if columns < SEGMENT_MIN { 0 } else { 1 << columns.min(SEGMENT_MAX).ilog2() };
    if len == 0 {
        return Vec::new();
    }
    let window: Vec<f64> = (0..len).map(|i| 0.5 - 0.5 * (TAU * i as f64 / len as f64).cos()).collect();
    let scale: f64 = window.iter().map(|w| w * w).sum();
    let mut sums = vec![0.0; len / 2];
    let mut segments = 0u32;
    for row in values.chunks_exact(columns) {
        for segment in (0..=columns - len).step_by(len / 2).map(|from| &row[from..from + len]) {
            if segment.iter().any(|v| v.is_nan()) {
                continue;
            }
            let mean = segment.iter().sum::<f64>() / len as f64;
            let mut re: Vec<f64> = segment.iter().zip(&window).map(|(v, w)| (v - mean) * w).collect();
            let mut im = vec![0.0; len];
            transform(&mut re, &mut im);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += re[i + 1] * re[i + 1] + im[i + 1] * im[i + 1];
            }
            segments += 1;
        }
    }
    if segments == 0 {
        return Vec::new();
    }
    // One-sided: negative frequencies count for positive ones, but for the last.
    let sides = |i: usize| if i + 1 == len / 2 { 1.0 } else { 2.0 };
    let density =
        |(i, sum): (usize, f64)| ((i + 1) as f64 / len as f64, sides(i) * sum / (scale * f64::from(segments)));
    sums.into_iter().enumerate().map(density).collect()
}

/// The discrete Fourier transform in place, of a power of two of numbers.
fn transform(re: &mut [f64], im: &mut [f64]) {
    let n = re.len();
    let shift = usize::BITS - n.trailing_zeros();
    for i in 1..n {
        let j = i.reverse_bits() >> shift;
        if i < j {
            re.swap(i, j);
            im.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for k in 0..half {
            let (sin, cos) = (-TAU * k as f64 / (2 * half) as f64).sin_cos();
            for a in (k..n).step_by(2 * half) {
                let b = a + half;
                let (r, i) = (re[b] * cos - im[b] * sin, re[b] * sin + im[b] * cos);
                (re[b], im[b]) = (re[a] - r, im[a] - i);
                (re[a], im[a]) = (re[a] + r, im[a] + i);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_is_where_the_wave_is_and_its_sum_is_the_variance() {
        let row: Vec<f64> = (0..256).map(|i| 3.0 + (TAU * f64::from(i) / 16.0).sin()).collect();
        let found = spectrum(&row, 256);
        let peak = found.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert_eq!(peak.0, 1.0 / 16.0);
        let power: f64 = found.iter().map(|p| p.1 / 256.0).sum();
        assert!((power - 0.5).abs() < 0.01, "{power}");
    }

    #[test]
    fn gaps_and_short_rows_have_no_spectrum() {
        assert_eq!(spectrum(&[1.0; 7], 7), []);
        assert_eq!(spectrum(&[f64::NAN; 64], 64), []);
        assert!(spectrum(&[1.0; 64], 64).iter().all(|p| p.1 < 1e-20));
    }

    #[test]
    fn the_transform_is_that_of_the_definition() {
        let (mut re, mut im) = (vec![1.0, -2.0, 0.5, 4.0, 0.0, 7.0, -1.0, 2.0], vec![0.0; 8]);
        let source = re.clone();
        transform(&mut re, &mut im);
        for k in 0..8 {
            let angle = |i: usize| -TAU * (i * k) as f64 / 8.0;
            let sum: f64 = source.iter().enumerate().map(|(i, v)| v * angle(i).cos()).sum();
            let sines: f64 = source.iter().enumerate().map(|(i, v)| v * angle(i).sin()).sum();
            assert!((sum - re[k]).abs() < 1e-12 && (sines - im[k]).abs() < 1e-12, "{k}");
        }
    }
}
