//! Slow-down of this host against a free core, from wall time against CPU time of finished jobs.

/// Estimator of the slow-down. A job that took three times its CPU time was pre-empted for two
/// thirds of the time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slowdown {
    log: f32,
}

/// Largest log slow-down. e^3 is twenty: beyond that the core is practically gone, and one block
/// must not ruin the estimate for ever.
const LOG_MAX: f32 = 3.0;

impl Slowdown {
    /// Takes the times of a finished job.
    pub fn observe(&mut self, wall_ns: u64, cpu_ns: u64) {
        if wall_ns == 0 || cpu_ns == 0 {
            return;
        }
        let log = (wall_ns as f32 / cpu_ns as f32).ln().clamp(0.0, LOG_MAX);
        // A change is accepted after two jobs, not after one that lost its core for a moment; noise
        // is averaged.
        let gain = if (log - self.log).abs() > 0.4 { 0.4 } else { 0.3 };
        self.log += gain * (log - self.log);
    }

    /// A job runs longer than predicted: it need not finish to be evidence.
    pub fn observe_late(&mut self, elapsed_ns: u64, predicted_ns: u64) {
        if elapsed_ns as f32 > 1.6 * predicted_ns as f32 && predicted_ns > 0 {
            let log = (elapsed_ns as f32 / predicted_ns as f32).ln();
            self.log = (self.log + 0.5 * log).min(LOG_MAX);
        }
    }

    /// Natural logarithm of the factor.
    pub fn log(&self) -> f32 {
        self.log
    }

    /// Factor by which this host is slower than on a free core, at least 1.
    pub fn factor(&self) -> f32 {
        self.log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_taken_away_is_noticed_and_forgotten() {
        let mut s = Slowdown::default();
        s.observe(3000, 1000);
        assert!(s.factor() < 1.7, "one job is not enough");
        for _ in 0..7 {
            s.observe(3000, 1000);
        }
        assert!(s.factor() > 2.5);
        for _ in 0..12 {
            s.observe(1000, 1000);
        }
        assert!(s.factor() < 1.2);
        s.observe(0, 0);
        s.observe_late(10_000, 0);
        assert!(s.factor().is_finite());
    }
}
