//! A histogram of durations, which any thread may fill and read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::metric::Buckets;

/// Upper bounds in seconds. Three to a decade tell a fast target from a slow one, from a round trip
/// within a host to a connection that is open for an hour.
const BOUNDS_S: [f64; 21] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0, 1800.0, 3600.0,
];

/// Durations by length.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = BOUNDS_S.partition_point(|bound| *bound < seconds);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// All of them at this moment.
    pub fn buckets(&self) -> Buckets {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Buckets { bounds: BOUNDS_S.to_vec(), counts, sum: self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        [0, 100_000, 100_001, 7_200_000_000_000].into_iter().for_each(|ns| histogram.observe(Duration::from_nanos(ns)));
        let buckets = histogram.buckets();
        assert_eq!((buckets.counts[0], buckets.counts[1], buckets.counts[BOUNDS_S.len()]), (2, 1, 1));
        assert!((buckets.sum - 7_200.000_200_001).abs() < 1e-9);
        assert!(buckets.bounds.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(buckets.bounds.len() + 1, buckets.counts.len());
    }
}
