//! Medians, and BCa bootstrap intervals of the mean. The same samples give the same interval on
//! every machine.

use serde_json::{Value, json};

use narrows_sim::rng::Rng;

/// Resamples for one interval. With this number the ends of a 95 % interval vary by a few per cent
/// of its width.
const RESAMPLES: usize = 2000;
const LEVEL: f64 = 0.95;
/// With fewer samples an interval says no more than the least and the greatest value.
const LEAST_FOR_INTERVAL: usize = 3;

/// Statistics of one value in one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) n: usize,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    /// Lower end of the 95 % BCa interval of the mean; with fewer than three samples `low` and
    /// `high` are the least and the greatest.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Summary {
    /// Statistics of the finite samples; `None` if there are none.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let samples: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
        if samples.is_empty() {
            return None;
        }
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) =
            if samples.len() < LEAST_FOR_INTERVAL { (min, max) } else { bca(&samples, mean, LEVEL, RESAMPLES, 1) };
        Some(Self { n: samples.len(), median: median(&samples), min, max, mean: mean(&samples), low, high })
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "n": self.n, "median": self.median, "min": self.min, "max": self.max, "mean": self.mean,
                "low": self.low, "high": self.high })
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The middle value, or the mean of the two in the middle; NaN if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The bias-corrected and accelerated bootstrap interval (Efron 1987) of a statistic.
pub(crate) fn bca(
    samples: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    level: f64,
    resamples: usize,
    seed: u64,
) -> (f64, f64) {
    let seen = statistic(samples);
    let mut rng = Rng(seed);
    let mut drawn = vec![0.0; samples.len()];
    let mut replicates: Vec<f64> = (0..resamples)
        .map(|_| {
            drawn.iter_mut().for_each(|d| *d = samples[rng.below(samples.len())]);
            statistic(&drawn)
        })
        .collect();
    replicates.sort_by(f64::total_cmp);
    // Ties count half, as otherwise discrete samples would look biased.
    let below = replicates.iter().filter(|r| **r < seen).count() as f64;
    let equal = replicates.iter().filter(|r| **r == seen).count() as f64;
    let share = ((below + equal / 2.0) / resamples as f64).clamp(0.5 / resamples as f64, 1.0 - 0.5 / resamples as f64);
    let bias = normal_quantile(share);
    let acceleration = acceleration(samples, &statistic);
    let end = |p: f64| {
        let z = bias + normal_quantile(p);
        let p = normal_cdf(bias + z / (1.0 - acceleration * z));
        quantile(&replicates, p)
    };
    (end((1.0 - level) / 2.0), end((1.0 + level) / 2.0))
}

/// Acceleration by the jackknife: how fast the standard error changes with the value.
fn acceleration(samples: &[f64], statistic: &impl Fn(&[f64]) -> f64) -> f64 {
    let left_out: Vec<f64> = (0..samples.len())
        .map(|i| {
            let rest: Vec<f64> = samples.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| *s).collect();
            statistic(&rest)
        })
        .collect();
    let middle = mean(&left_out);
    let cubes: f64 = left_out.iter().map(|x| (middle - x).powi(3)).sum();
    let squares: f64 = left_out.iter().map(|x| (middle - x).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { cubes / (6.0 * squares.powf(1.5)) }
}

/// Quantile of sorted values, interpolated linearly.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let at = p.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (i, part) = (at.floor() as usize, at.fract());
    sorted[i] + part * (sorted[(i + 1).min(sorted.len() - 1)] - sorted[i])
}

/// Normal distribution by Abramowitz and Stegun 7.1.26; the error is less than 1e-7.
fn normal_cdf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let poly =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * poly;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

/// Inverse of the normal distribution by bisection, which is fast enough for a handful of calls.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Rounds outermost, each in an order of its own: what disturbs the machine for a while disturbs no cell alone.
pub(crate) fn shuffled(cells: usize, rounds: u32, seed: u64) -> Vec<(u32, usize)> {
    let mut order = Vec::with_capacity(cells * rounds as usize);
    for round in 0..rounds {
        let mut rng = Rng(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round)));
        let mut indexes: Vec<usize> = (0..cells).collect();
        for i in (1..cells).rev() {
            indexes.swap(i, rng.below(i + 1));
        }
        order.extend(indexes.into_iter().map(|i| (round, i)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 14: the spatial test data.
    const SPATIAL: [f64; 26] = [
        48.0, 36.0, 20.0, 29.0, 42.0, 42.0, 20.0, 42.0, 22.0, 41.0, 45.0, 14.0, 6.0, 0.0, 33.0, 28.0, 34.0, 4.0, 32.0,
        24.0, 47.0, 41.0, 24.0, 26.0, 30.0, 41.0,
    ];

    fn variance(values: &[f64]) -> f64 {
        let middle = mean(values);
        values.iter().map(|v| (v - middle).powi(2)).sum::<f64>() / values.len() as f64
    }

    #[test]
    fn a_published_interval_comes_out() {
        assert!((variance(&SPATIAL) - 171.5).abs() < 0.1);
        assert!((acceleration(&SPATIAL, &variance) - 0.061).abs() < 0.001);
        // The book prints 115.8 and 259.6, from 2000 resamples.
        let (low, high) = bca(&SPATIAL, variance, 0.9, 20_000, 7);
        assert!((low - 115.8).abs() < 4.0 && (high - 259.6).abs() < 6.0, "{low} {high}");
    }

    #[test]
    fn the_normal_distribution_has_its_known_values() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.05, -1.644_854), (0.999, 3.090_232)] {
            assert!((normal_quantile(p) - z).abs() < 1e-4, "{p}");
            assert!((normal_cdf(z) - p).abs() < 1e-6, "{p}");
        }
    }

    #[test]
    fn a_summary_is_of_what_it_is_given() {
        let s = Summary::of(&[3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((s.n, s.median, s.min, s.max, s.mean), (4, 2.5, 1.0, 10.0, 4.0));
        assert!(s.min <= s.low && s.low < s.mean && s.mean < s.high && s.high <= s.max, "{s:?}");
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0, 10.0]), Some(s), "seeded");
        let same = Summary::of(&[5.0; 7]).unwrap();
        assert_eq!((same.low, same.high), (5.0, 5.0));
        assert!(Summary::of(&[]).is_none() && Summary::of(&[f64::NAN]).is_none());
    }
}
