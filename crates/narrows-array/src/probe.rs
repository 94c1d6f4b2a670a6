//! The probe: whether plain bytes look like numbers of some width. A yes invites to a trial and decides
//! nothing.

/// What the bytes look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// Bytes of an element: 2, 3, 4, 6, 8, 12 or 24.
    pub width: u8,
    /// Log2 of how much likelier two bytes of one plane are equal than two bytes of all.
    pub score: f32,
    /// Offset, below `width`, of the byte with most repeats: sign and exponent, the last one of a
    /// little-endian element, the first one of a big-endian one.
    pub steady: u8,
}

/// Widths, all of which divide [`PERIOD`].
const WIDTHS: [usize; 7] = [2, 3, 4, 6, 8, 12, 24];
const PERIOD: usize = 24;

/// Bytes of a window; more do not find more.
const WINDOW: usize = 2016;
const WINDOWS: usize = 4;

/// Score from which it is a yes: 90 % of the blocks that gain more than 10 % have it, 9 % of the others.
const SCORE_MIN: f32 = 0.1;

/// What a longer width must score more than a shorter one of which it is a multiple: planes of multiples
/// are never worse.
const LONGER: f32 = 0.06;

/// Looks at four windows. `None` if no width makes bytes more alike, or there are too few bytes.
pub fn probe(bytes: &[u8]) -> Option<Probe> {
    if bytes.len() < WINDOW {
        return None;
    }
    let windows = WINDOWS.min(bytes.len() / WINDOW);
    let mut counts = vec![[0u32; 256]; PERIOD];
    for i in 0..windows {
        // Windows begin at multiples of the period, so that planes keep their phase.
        let start = (bytes.len() - WINDOW) * i / windows.max(2).saturating_sub(1).max(1) / PERIOD * PERIOD;
        let start = start.min((bytes.len() - WINDOW) / PERIOD * PERIOD);
        for row in bytes[start..start + WINDOW].chunks_exact(PERIOD) {
            row.iter().enumerate().for_each(|(plane, &b)| counts[plane][usize::from(b)] += 1);
        }
    }
    let all = chance(&joined(&counts, 1, 0));
    let mut best: Option<Probe> = None;
    for width in WIDTHS {
        let planes: Vec<f64> = (0..width).map(|plane| chance(&joined(&counts, width, plane))).collect();
        let mean = planes.iter().sum::<f64>() / width as f64;
        let score = (mean / all).log2() as f32;
        let steady = (0..width).max_by(|&a, &b| planes[a].total_cmp(&planes[b])).unwrap_or(0) as u8;
        if score >= SCORE_MIN && best.is_none_or(|b| score > b.score + LONGER) {
            best = Some(Probe { width: width as u8, score, steady });
        }
    }
    best
}

/// Counts of the bytes of one plane of a width.
fn joined(counts: &[[u32; 256]], width: usize, plane: usize) -> [u32; 256] {
    let mut sum = [0; 256];
    for plane in counts.iter().skip(plane).step_by(width) {
        sum.iter_mut().zip(plane).for_each(|(s, c)| *s += c);
    }
    sum
}

/// Chance that two different bytes are equal; unbiased.
fn chance(counts: &[u32; 256]) -> f64 {
    let n: u64 = counts.iter().map(|&c| u64::from(c)).sum();
    let pairs: u64 = counts.iter().map(|&c| u64::from(c) * u64::from(c.saturating_sub(1))).sum();
    // Half a pair keeps planes without repeats comparable.
    (pairs as f64 + 0.5) / (n * n.saturating_sub(1)).max(1) as f64
}

/// Longest record that is looked for.
const RECORD_MAX: usize = 256;

/// Bytes looked at for records.
const RECORD_SAMPLE: usize = 32 << 10;

/// Share of equal bytes that a record's length must have over the median of all distances.
const RECORD_EXCESS: f64 = 0.04;

/// Length of records, from the distance at which bytes repeat most. Multiples repeat as well; the shortest
/// distance within a tenth of the best counts.
pub(crate) fn record_width(bytes: &[u8]) -> Option<usize> {
    let sample = &bytes[..bytes.len().min(RECORD_SAMPLE)];
    if sample.len() < 4 * RECORD_MAX {
        return None;
    }
    let share = |distance: usize| {
        let (a, b) = (&sample[..sample.len() - distance], &sample[distance..]);
        a.iter().zip(b).map(|(a, b)| usize::from(a == b)).sum::<usize>() as f64 / a.len() as f64
    };
    let shares: Vec<f64> = (1..=RECORD_MAX).map(share).collect();
    let mut sorted = shares.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[RECORD_MAX / 2];
    let best = sorted[RECORD_MAX - 1];
    if best - median < RECORD_EXCESS {
        return None;
    }
    shares.iter().position(|&s| s - median >= 0.8 * (best - median)).map(|i| i + 1).filter(|&width| width > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(count: usize) -> impl Iterator<Item = f32> {
        (0..count).map(|i| 280.0 + (i as f32 / 50.0).sin() * 20.0 + (i * 7919 % 1000) as f32 / 500.0)
    }

    #[test]
    fn widths_of_numbers_are_found_at_every_phase_and_order() {
        let f32s: Vec<u8> = floats(20_000).flat_map(f32::to_le_bytes).collect();
        let big: Vec<u8> = floats(20_000).flat_map(f32::to_be_bytes).collect();
        let f64s: Vec<u8> = floats(10_000).flat_map(|v| (f64::from(v) * 1.000_123_4).to_le_bytes()).collect();
        let i16s: Vec<u8> = floats(40_000).flat_map(|v| ((v * 50.0) as i16).to_le_bytes()).collect();
        for phase in 0..8 {
            let width = |bytes: &[u8]| probe(&bytes[phase..]).map(|p| p.width);
            assert_eq!(width(&f32s), Some(4), "{phase}");
            assert_eq!(width(&big), Some(4), "{phase}");
            assert_eq!(width(&f64s), Some(8), "{phase}");
            assert_eq!(width(&i16s), Some(2), "{phase}");
        }
        assert_eq!(probe(&f32s).unwrap().steady, 3);
        assert_eq!(probe(&big).unwrap().steady, 0);
    }

    #[test]
    fn text_and_noise_are_no_numbers() {
        let words = ["the ", "narrow ", "place ", "of ", "a ", "link ", "decides, ", "and ", "seldom ", "how.\n"];
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let text: String = (0..20_000).map(|_| words[usize::from(random()) % 10]).collect();
        assert_eq!(probe(text.as_bytes()), None);
        let noise: Vec<u8> = (0..65_536).map(|_| random()).collect();
        assert_eq!(probe(&noise), None);
        assert_eq!(probe(&[0; 100]), None);
        assert_eq!(probe(&[0; 10_000]), None);
    }

    #[test]
    fn the_length_of_records_is_found() {
        let mut bytes = Vec::new();
        for (i, v) in floats(3000).enumerate() {
            bytes.extend((i as u32).to_le_bytes());
            bytes.extend(v.to_le_bytes());
            bytes.extend((v * v).to_le_bytes());
            bytes.extend([7, 0, (i % 3) as u8, 1, 2, 3, 4, 5]);
        }
        assert_eq!(record_width(&bytes), Some(20));
    }
}
