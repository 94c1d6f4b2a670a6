//! A limit on the rate of a link, as `--bwlimit` sets it: a fixed one, or one that yields to others.

use std::time::{Duration, Instant};

use super::scavenger::{Path, Scavenger};

/// Time whose bytes may go at once after a pause: short, so that other traffic sees no bursts, and longer
/// than a system needs to wake a thread.
const BURST: Duration = Duration::from_millis(50);
/// Fewest bytes that are waited for, so that a slow link is not written byte by byte.
const LEAST: f64 = 1024.0;
/// The same in time, so that a fast one takes no call for every KiB.
const LEAST_S: f64 = 0.001;
/// Interval of looks at the path: a few in each round.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What may be written by now.
pub(super) struct Limit {
    rate: f64,
    /// Bytes that may be written; it grows with time, up to those of [`BURST`].
    allowed: f64,
    counted: Instant,
    yields: Option<Yielding>,
}

/// What makes a limit yield.
struct Yielding {
    scavenger: Scavenger,
    begun: Instant,
    looked: Option<Instant>,
    written: u64,
}

impl Limit {
    /// A limit of `rate` bytes per second.
    pub(super) fn new(rate: u64) -> Self {
        Self { rate: rate.max(1) as f64, allowed: LEAST, counted: Instant::now(), yields: None }
    }

    /// A limit that yields to all other traffic, as far as looks at the path show it.
    pub(super) fn yielding() -> Self {
        let (scavenger, begun) = (Scavenger::new(), Instant::now());
        let rate = scavenger.rate();
        let yields = Some(Yielding { scavenger, begun, looked: None, written: 0 });
        Self { rate, allowed: LEAST, counted: begun, yields }
    }

    /// Whether it is time for a look at the path.
    pub(super) fn wants_look(&self) -> bool {
        self.yields.as_ref().is_some_and(|y| y.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY))
    }

    /// Takes a look at the path.
    pub(super) fn look(&mut self, path: Path) {
        let Some(yields) = &mut self.yields else { return };
        let now = Instant::now();
        yields.looked = Some(now);
        yields.scavenger.look(now.duration_since(yields.begun).as_nanos() as u64, path, yields.written);
        // What time has allowed so far counts at the rate that it had.
        self.count(now);
        self.rate = self.yields.as_ref().map_or(self.rate, |y| y.scavenger.rate());
    }

    fn most(&self) -> f64 {
        (self.rate * BURST.as_secs_f64()).max(self.least())
    }

    fn least(&self) -> f64 {
        let least = (self.rate * LEAST_S).clamp(LEAST, 64.0 * LEAST);
        self.yields.as_ref().map_or(least, |yields| least.max(yields.scavenger.least()))
    }

    fn count(&mut self, now: Instant) {
        self.allowed += self.rate * now.duration_since(self.counted).as_secs_f64();
        self.allowed = self.allowed.min(self.most());
        self.counted = now;
    }

    /// How many bytes may be written now; 0 while they are few.
    pub(super) fn allowed(&mut self) -> usize {
        self.count(Instant::now());
        if self.allowed < self.least() { 0 } else { self.allowed as usize }
    }

    /// Counts written bytes.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.allowed -= bytes as f64;
        if let Some(yields) = &mut self.yields {
            yields.written += bytes as u64;
        }
    }

    /// How long nothing may be written.
    pub(super) fn pause(&self) -> Duration {
        let lacks = (self.least() - self.allowed).max(0.0) / self.rate;
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

    #[test]
    fn one_that_yields_has_the_rate_of_what_it_saw() {
        let mut limit = Limit::yielding();
        assert!(limit.wants_look() && !Limit::new(1000).wants_look());
        let path = Path { rtt_ns: 100_000_000, rtt_min_ns: 100_000_000, segment_bytes: 1000, sent_again: 0, acked: 0 };
        limit.look(path);
        // Ten segments in a round trip.
        assert!(!limit.wants_look() && (99_000.0..101_000.0).contains(&limit.rate), "{}", limit.rate);
        assert!(limit.allowed() <= 10_000);
    }
}
