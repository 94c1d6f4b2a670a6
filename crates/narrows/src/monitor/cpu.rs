//! Slow-down of this host against a free core, from wall time against CPU time of jobs.

/// Estimator of the slow-down. Jobs that took three times their CPU time were pre-empted for two
/// thirds of the time.
#[derive(Debug, Clone, Copy)]
pub struct Slowdown {
    /// Decayed sums over finished jobs.
    wall_s: f32,
    cpu_s: f32,
    /// Factor that running jobs prove, at least 1.
    late: f32,
}

/// CPU time over which jobs are averaged: one of 50 us that lost its core for a slice of the
/// scheduler (3 ms) is no evidence, a few milliseconds are.
const MEMORY_S: f32 = 4e-3;
/// A free host is assumed as if it had been seen for this CPU time.
const ASSUMED_S: f32 = 1e-3;
/// A job that is late by less has met a cold cache, pages that are touched for the first time, a
/// thread that had to be woken, or one slice of the scheduler (3 ms) of another thread.
const GRACE_NS: u64 = 3_000_000;
/// Share of the prediction by which a running job may be late: costs vary by that much.
const LATE_SHARE: f32 = 1.6;
/// Largest slow-down: beyond that the core is practically gone, and one block must not ruin the
/// estimate for ever.
const FACTOR_MAX: f32 = 20.0;

impl Default for Slowdown {
    fn default() -> Self {
        Self { wall_s: ASSUMED_S, cpu_s: ASSUMED_S, late: 1.0 }
    }
}

impl Slowdown {
    /// Takes the times of a finished job.
    pub fn observe(&mut self, wall_ns: u64, cpu_ns: u64) {
        if wall_ns == 0 || cpu_ns == 0 {
            return;
        }
        let cpu_s = cpu_ns as f32 * 1e-9;
        let wall_s = (wall_ns as f32 * 1e-9).clamp(cpu_s, FACTOR_MAX * cpu_s);
        let kept = (-cpu_s / MEMORY_S).exp();
        self.wall_s = kept * self.wall_s + wall_s;
        self.cpu_s = kept * self.cpu_s + cpu_s;
        self.late = self.late.sqrt();
    }

    /// A job runs longer than the `free_ns` predicted for a free core: it need not finish to be
    /// evidence.
    pub fn observe_late(&mut self, elapsed_ns: u64, free_ns: u64) {
        let late = elapsed_ns.saturating_sub(GRACE_NS) as f32 / (LATE_SHARE * free_ns.max(1) as f32);
        self.late = self.late.max(late.min(FACTOR_MAX));
    }

    /// Natural logarithm of the factor.
    pub fn log(&self) -> f32 {
        self.factor().ln()
    }

    /// Factor by which this host is slower than on a free core, at least 1.
    pub fn factor(&self) -> f32 {
        (self.wall_s / self.cpu_s).max(self.late).clamp(1.0, FACTOR_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_core_taken_away_is_noticed_and_forgotten() {
        let mut s = Slowdown::default();
        for _ in 0..8 {
            s.observe(3 * MS, MS);
        }
        assert!(s.factor() > 2.5, "{}", s.factor());
        for _ in 0..12 {
            s.observe(MS, MS);
        }
        assert!(s.factor() < 1.2, "{}", s.factor());
        s.observe(0, 0);
        s.observe_late(10_000, 0);
        assert!(s.factor().is_finite());
    }

    /// A short job that lost its core, or that was the first of its kind, shows no busy host.
    #[test]
    fn short_jobs_and_cold_starts_are_no_evidence() {
        let mut s = Slowdown::default();
        s.observe(3 * MS, MS / 20);
        assert!(s.factor() < 2.0, "{}", s.factor());
        let mut s = Slowdown::default();
        s.observe_late(MS / 3, MS / 30);
        assert_eq!(s.factor(), 1.0);
        s.observe_late(13 * MS, MS);
        assert!((5.0..7.0).contains(&s.factor()), "{}", s.factor());
    }
}
