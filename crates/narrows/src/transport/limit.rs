//! A limit on the rate of a link, as `--bwlimit` sets it.

use std::time::{Duration, Instant};

/// Time whose bytes may go at once after a pause: short, so that other traffic sees no bursts, and longer
/// than a system needs to wake a thread.
const BURST: Duration = Duration::from_millis(50);
/// Fewest bytes that are waited for, so that a slow link is not written byte by byte.
const LEAST: f64 = 1024.0;

/// What may be written by now.
pub(super) struct Limit {
    rate: f64,
    /// Bytes that may be written; it grows with time, up to those of [`BURST`].
    allowed: f64,
    counted: Instant,
}

impl Limit {
    /// A limit of `rate` bytes per second.
    pub(super) fn new(rate: u64) -> Self {
        Self { rate: rate.max(1) as f64, allowed: LEAST, counted: Instant::now() }
    }

    fn most(&self) -> f64 {
        (self.rate * BURST.as_secs_f64()).max(LEAST)
    }

    /// How many bytes may be written now; 0 while they are few.
    pub(super) fn allowed(&mut self) -> usize {
        let now = Instant::now();
        self.allowed += self.rate * now.duration_since(self.counted).as_secs_f64();
        self.allowed = self.allowed.min(self.most());
        self.counted = now;
        if self.allowed < LEAST { 0 } else { self.allowed as usize }
    }

    /// Counts written bytes.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.allowed -= bytes as f64;
    }

    /// How long nothing may be written.
    pub(super) fn pause(&self) -> Duration {
        let lacks = (LEAST - self.allowed).max(0.0) / self.rate;
        Duration::from_secs_f64(lacks).saturating_sub(self.counted.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_waited_for() {
        let mut limit = Limit::new(1000);
        let first = limit.allowed();
        assert_eq!(first, LEAST as usize);
        limit.wrote(first);
        assert!(limit.pause() > Duration::from_millis(500), "a second of the rate was written");
        assert_eq!(limit.allowed(), 0);
        let mut fast = Limit::new(u64::MAX);
        assert!(fast.allowed() >= LEAST as usize && fast.pause() == Duration::ZERO);
    }
}
