//! A limit on the rate of a link, as `--bwlimit` sets it: a fixed one, or one that yields to others.

use std::cell::Cell;
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
    carried: Cell<Carried>,
    /// Bytes wait for it.
    holds_back: bool,
    yields: Option<Yielding>,
}

/// A limit looks like a link of its rate to what measures links: else a sender would take the link for as
/// fast as it is for others, and compress for that.
#[derive(Debug, Clone, Copy)]
struct Carried {
    /// When the rest was last computed.
    at: Instant,
    /// Bytes that were written and that a link of this rate would still hold.
    held: f64,
    /// Whether the true link held some.
    unsent: bool,
    busy_ns: f64,
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
        Self::of(rate.max(1) as f64, Instant::now(), None)
    }

    /// A limit that yields to all other traffic, as far as looks at the path show it.
    pub(super) fn yielding() -> Self {
        let (scavenger, begun) = (Scavenger::new(), Instant::now());
        let rate = scavenger.rate();
        Self::of(rate, begun, Some(Yielding { scavenger, begun, looked: None, written: 0 }))
    }

    fn of(rate: f64, now: Instant, yields: Option<Yielding>) -> Self {
        let carried = Cell::new(Carried { at: now, held: 0.0, unsent: false, busy_ns: 0.0 });
        Self { rate, allowed: LEAST, counted: now, carried, holds_back: false, yields }
    }

    /// Bytes that a link of this rate would hold, where the true one holds `unsent`, and the total time in
    /// which it would have been busy. While bytes wait for it, it is not dry: what waits next is late
    /// because of it, and not because of whoever makes it.
    pub(super) fn progress(&self, unsent: u64) -> (u64, u64) {
        let carried = self.carry(Instant::now(), 0, unsent > 0);
        (unsent.max(carried.held as u64).max(self.holds_back.into()), carried.busy_ns as u64)
    }

    fn carry(&self, now: Instant, written: usize, unsent: bool) -> Carried {
        let mut c = self.carried.get();
        let passed_s = now.duration_since(c.at).as_secs_f64();
        let left = c.held.min(self.rate * passed_s);
        c.busy_ns += 1e9 * if c.unsent { passed_s } else { left / self.rate };
        c.held += written as f64 - left;
        (c.at, c.unsent) = (now, unsent);
        self.carried.set(c);
        c
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

    /// Counts `bytes` of the `offered` ones, which were written.
    pub(super) fn wrote(&mut self, bytes: usize, offered: usize) {
        self.holds_back = bytes < offered;
        self.allowed -= bytes as f64;
        let unsent = self.carried.get().unsent;
        self.carry(Instant::now(), bytes, unsent);
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
        limit.wrote(first, first);
        assert!(limit.pause() > Duration::from_millis(500), "a second of the rate was written");
        assert_eq!(limit.allowed(), 0);
        let mut fast = Limit::new(u64::MAX);
        assert!(fast.allowed() >= LEAST as usize && fast.pause() == Duration::ZERO);
    }

    /// So a sender compresses for the rate that it may use.
    #[test]
    fn it_looks_like_a_link_of_its_rate() {
        let limit = Limit::new(1_000_000);
        let begun = limit.carried.get().at;
        let after = |ms: u64| begun + Duration::from_millis(ms);
        limit.carry(begun, 50_000, false);
        let c = limit.carry(after(20), 0, false);
        assert_eq!((c.held.round(), c.busy_ns.round()), (30_000.0, 20e6));
        // Idle once that has left.
        let c = limit.carry(after(100), 10_000, false);
        assert_eq!((c.held.round(), c.busy_ns.round()), (10_000.0, 50e6));
        // A true link that is slower is busy as long as it holds bytes.
        limit.carry(after(100), 0, true);
        let c = limit.carry(after(300), 0, false);
        assert_eq!((c.held.round(), c.busy_ns.round()), (0.0, 250e6));
    }

    /// So the time is that of the link, and not of the CPU.
    #[test]
    fn it_is_not_dry_while_bytes_wait_for_it() {
        let mut limit = Limit::new(1_000_000_000_000);
        let unsent = |limit: &Limit| limit.progress(0).0;
        assert_eq!(unsent(&limit), 0);
        limit.wrote(1, 2);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(unsent(&limit), 1);
        limit.wrote(0, 1);
        assert_eq!(unsent(&limit), 1);
        limit.wrote(1, 1);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(unsent(&limit), 0);
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
