//! Bound of the raw bytes of a direction that the program at the other end has not read.
//!
//! TCP stops a writer by what two sockets hold. Where bytes shrink on the way, the same sockets hold a
//! thousand times as much, and what a write or a progress bar says is far from what was read. So the
//! other end tells how many raw bytes it has delivered, and a sender has no more under way than the
//! reader takes in a short time. No I/O and no clock.

/// Bytes that may be ahead of a reader whose pace is unknown: with the default limits of Linux two
/// sockets hold as much after a few round trips.
pub const FIRST: usize = 1 << 20;
/// Least that may be ahead: what two sockets hold in the beginning, and four blocks of 64 KiB, so that
/// one can be encoded, one sent, one decoded and one read.
pub const LEAST: usize = 256 << 10;
/// Most that may be ahead for the time that a reader needs: what the sockets of both ends hold at most
/// by the default limits of Linux (4 MiB and 6 MiB), and half as much again.
const MOST_READ: usize = 16 << 20;
/// Most that may be ahead: with what is on its way, 2 Gbit/s over 200 ms.
pub const MOST: usize = 64 << 20;
/// Time that bytes may be ahead, beside the round trips that it takes to hear of them: people take
/// answers under 0.1 s for immediate.
const TIME_NS: f64 = 70e6;
/// Round trips: with one, a pace that only the window limits would never be seen to grow.
const LOOPS: f64 = 2.0;
/// What both ends may add to the round trip of the link: what is measured beyond that is the wait of bytes for a slow
/// reader, which a window for it would keep up. Blocks are a quarter of the window, so that each is encoded and decoded
/// in this time.
const ENDS_NS: u64 = 30_000_000;
/// Shortest time over which the reader's pace is measured. Reports come 2 ms apart, and a program
/// that reads shares its core with others.
const SAMPLE_NS: u64 = 40_000_000;
/// A writer that waits for room writes again within this time; one that does not had a pause.
const PAUSE_NS: u64 = 10_000_000;
/// A reader whose pace falls is followed by half of the difference for each sample.
const FALL: f64 = 0.5;

/// Reports of a reader come after so many bytes, but not closer together than `REPORT_NS`: an eighth of
/// [`LEAST`], so that the writer never waits for one that is not due.
const REPORT_BYTES: u64 = (LEAST / 8) as u64;
const REPORT_NS: u64 = 2_000_000;

/// What the other end says of what it has delivered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It is not known yet whether it says anything.
    #[default]
    Unknown,
    Tells,
    /// It says nothing, or nothing more.
    Silent,
}

/// The limit of one direction, at its sender.
#[derive(Debug, Default)]
pub struct Ahead {
    peer: Peer,
    /// Raw bytes taken from the writer, and delivered to the reader.
    sent: u64,
    delivered: u64,
    /// Since when the reader has had everything.
    empty_ns: u64,
    /// Raw offset and time of a byte of which a report is awaited.
    mark: Option<(u64, u64)>,
    /// Shortest time from taking bytes to hearing that they were delivered.
    loop_ns: Option<u64>,
    /// Shortest round trip of the link, if it is known.
    link_ns: Option<u64>,
    /// Time and delivered bytes at which the sample began.
    since: Option<(u64, u64)>,
    /// Most of the window was in use since then.
    was_full: bool,
    bytes_per_s: Option<f64>,
}

impl Ahead {
    /// Whether the other end tells what it has delivered. Before that is known, [`FIRST`] bytes may be
    /// ahead.
    pub fn set_peer_tells(&mut self, tells: bool) {
        self.peer = if tells { Peer::Tells } else { Peer::Silent };
    }

    /// Notes a round trip of the link, 0 if the system has measured none yet. For links that no other flow shares:
    /// the wait of bytes for others counts as a part of the way.
    pub fn saw_round_trip(&mut self, ns: u64) {
        if ns == 0 {
            return;
        }
        self.link_ns = Some(self.link_ns.map_or(ns, |least_ns| least_ns.min(ns)));
    }

    /// Bytes that may be ahead of the reader.
    pub fn window(&self) -> usize {
        match (self.peer, self.bytes_per_s) {
            (Peer::Silent, _) => usize::MAX,
            (_, None) => FIRST,
            (_, Some(rate)) => {
                let in_time = |ns: f64| (rate * ns / 1e9) as usize;
                let longest_ns = self.link_ns.map_or(u64::MAX, |ns| ns.saturating_add(ENDS_NS));
                let on_its_way = in_time(LOOPS * self.loop_ns.unwrap_or(0).min(longest_ns) as f64);
                // Who has read little gets no more than that, however fast it was: that may have been
                // buffers in front of a program that reads nothing.
                let read = usize::try_from(self.delivered).unwrap_or(usize::MAX);
                on_its_way.saturating_add(in_time(TIME_NS).min(MOST_READ)).clamp(LEAST, read.clamp(FIRST, MOST))
            }
        }
    }

    /// Bytes that are ahead of the reader, as far as it has said.
    pub fn len(&self) -> usize {
        usize::try_from(self.sent.saturating_sub(self.delivered)).unwrap_or(usize::MAX)
    }

    /// Whether the reader has everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that may be taken from the writer now.
    pub fn room(&self) -> usize {
        self.window().saturating_sub(self.len())
    }

    /// `len` bytes were taken from the writer.
    pub fn sent(&mut self, len: usize, now_ns: u64) {
        if self.is_empty() && now_ns.saturating_sub(self.empty_ns) > PAUSE_NS {
            // What was between is a pause of the writer, not of the reader.
            (self.since, self.was_full) = (None, false);
        }
        self.mark.get_or_insert((self.sent + 1, now_ns));
        self.sent += len as u64;
        self.was_full |= self.len() > self.window() / 2;
    }

    /// The other end has delivered `total` bytes so far. Totals only grow; what a confused peer says
    /// beyond what was sent is all of that.
    pub fn delivered(&mut self, total: u64, now_ns: u64) {
        if total <= self.delivered {
            return;
        }
        self.delivered = total;
        if self.is_empty() {
            self.empty_ns = now_ns;
        }
        if let Some((_, at_ns)) = self.mark.take_if(|(offset, _)| *offset <= total) {
            let ns = now_ns.saturating_sub(at_ns);
            self.loop_ns = Some(self.loop_ns.map_or(ns, |least_ns| least_ns.min(ns)));
        }
        let Some((since_ns, before)) = self.since else {
            self.since = Some((now_ns, total));
            return;
        };
        let ns = now_ns.saturating_sub(since_ns);
        if ns < SAMPLE_NS.max(self.loop_ns.unwrap_or(0)) {
            return;
        }
        let sample = (total - before) as f64 / ns as f64 * 1e9;
        self.bytes_per_s = match self.bytes_per_s {
            Some(known) if sample < known && !self.was_full => Some(known),
            Some(known) if sample < known => Some(known - FALL * (known - sample)),
            _ => Some(sample),
        };
        self.since = Some((now_ns, total));
        self.was_full = self.len() > self.window() / 2;
    }
}

/// When a reader reports, at the other end.
#[derive(Debug, Default)]
pub struct Reports {
    told: u64,
    told_ns: u64,
}

impl Reports {
    /// When the next report is due if `delivered` bytes were delivered so far; `None`: not for so few.
    pub fn due_ns(&self, delivered: u64) -> Option<u64> {
        (delivered.saturating_sub(self.told) >= REPORT_BYTES).then_some(self.told_ns + REPORT_NS)
    }

    /// What was told last.
    pub fn last(&self) -> u64 {
        self.told
    }

    /// A report was made.
    pub fn told(&mut self, delivered: u64, now_ns: u64) {
        (self.told, self.told_ns) = (delivered, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What a simulation has shown.
    #[derive(Debug)]
    struct Seen {
        /// Most bytes ahead of the reader.
        most: usize,
        /// The same in the last half of the time.
        later: usize,
        delivered: u64,
    }

    /// A writer without end, a way of this round trip that is never full, and a reader of this pace,
    /// `rate(ms)` in bytes a second.
    fn run(rtt_ms: u64, ms: u64, rate: impl Fn(u64) -> f64) -> Seen {
        run_from(0, Ahead::default(), rtt_ms, ms, rate)
    }

    /// The same with an end of the reader that tells nothing before `begin_ms`.
    fn run_from(begin_ms: u64, mut ahead: Ahead, rtt_ms: u64, ms: u64, rate: impl Fn(u64) -> f64) -> Seen {
        let mut reports = Reports::default();
        ahead.set_peer_tells(true);
        let (mut arriving, mut returning) = (Vec::new(), Vec::new());
        let (mut arrived, mut delivered) = (0u64, 0f64);
        let mut seen = Seen { most: 0, later: 0, delivered: 0 };
        for now in 0..ms {
            let due = |list: &mut Vec<(u64, u64)>| list.extract_if(.., |(at, _)| *at <= now).map(|(_, n)| n).collect();
            let heard: Vec<u64> = due(&mut returning);
            heard.into_iter().for_each(|total| ahead.delivered(total, now * MS));
            let room = ahead.room();
            if room > 0 {
                ahead.sent(room, now * MS);
                arriving.push((now + rtt_ms.div_ceil(2), room as u64));
            }
            let came: Vec<u64> = due(&mut arriving);
            arrived += came.iter().sum::<u64>();
            delivered = f64::min(arrived as f64, delivered + rate(now) / 1000.0);
            let total = delivered as u64;
            if now >= begin_ms && reports.due_ns(total).is_some_and(|at| at <= now * MS) {
                reports.told(total, now * MS);
                returning.push((now + rtt_ms.div_ceil(2), total));
            }
            let really = (ahead.sent - total) as usize;
            seen.most = seen.most.max(really);
            if now > ms / 2 {
                seen.later = seen.later.max(really);
            }
        }
        seen.delivered = delivered as u64;
        seen
    }

    #[test]
    fn a_reader_that_stops_has_a_bounded_number_of_bytes_before_it() {
        let never = run(10, 5_000, |_| 0.0);
        assert_eq!(never.most, FIRST);
        for (rtt_ms, rate, most) in [(1, 200e6, MOST_READ), (20, 4e9, MOST), (100, 4e9, MOST)] {
            let stops = run(rtt_ms, 20_000, |ms| if ms < 10_000 { rate } else { 0.0 });
            assert!(stops.most <= most, "{stops:?}");
        }
    }

    #[test]
    fn buffers_in_front_of_a_reader_are_no_reader() {
        let mut ahead = Ahead::default();
        ahead.set_peer_tells(true);
        ahead.sent(FIRST, 0);
        // The peer began late, so that the round trip seems long.
        for ms in 500..600 {
            ahead.delivered((ms - 499) * 2_000, ms * MS);
        }
        assert_eq!(ahead.window(), FIRST);
    }

    #[test]
    fn bytes_are_ahead_for_a_short_time_at_any_pace() {
        for rtt_ms in [1, 20, 100] {
            for rate in [100e3, 1e6, 10e6, 100e6] {
                let seen = run(rtt_ms, 20_000, |_| rate);
                let bound = LEAST as f64 + rate * (0.09 + 2.5e-3 * rtt_ms as f64);
                assert!((seen.later as f64) < bound, "{rtt_ms} ms, {rate}: {seen:?} of {bound}");
            }
        }
    }

    /// The first round trip that is measured is the wait for a reader, and no later one is without that wait.
    #[test]
    fn a_reader_whose_end_begins_late_does_not_keep_bytes_old() {
        for rtt_ms in [1, 20, 100] {
            for rate in [1e6, 2e6, 10e6] {
                let mut ahead = Ahead::default();
                ahead.saw_round_trip(rtt_ms * MS);
                let seen = run_from(400, ahead, rtt_ms, 20_000, |_| rate);
                let bound = LEAST as f64 + rate * (0.15 + 2.5e-3 * rtt_ms as f64);
                assert!((seen.later as f64) < bound, "{rtt_ms} ms, {rate}: {seen:?} of {bound}");
                assert!(seen.delivered as f64 > 0.96 * 19.6 * rate, "{rtt_ms} ms, {rate}: {seen:?}");
            }
        }
    }

    #[test]
    fn a_reader_never_waits_for_the_window() {
        for rtt_ms in [1, 20, 100] {
            for rate in [1e6, 10e6, 200e6] {
                let seen = run(rtt_ms, 20_000, |_| rate);
                // The beginning takes some round trips.
                assert!(seen.delivered as f64 > 0.96 * 20.0 * rate, "{rtt_ms} ms, {rate}: {seen:?}");
            }
        }
        // As fast as the window allows.
        let seen = run(2, 10_000, |_| 1e12);
        assert!(seen.delivered as f64 > 0.9 * 10.0 * MOST as f64 / 0.004, "{seen:?}");
    }

    #[test]
    fn a_reader_that_becomes_slow_or_fast_is_followed() {
        let slow = run(10, 20_000, |ms| if ms < 5_000 { 50e6 } else { 2e6 });
        assert!(slow.later < LEAST + 250_000, "{slow:?}");
        let fast = run(10, 20_000, |ms| if ms < 5_000 { 1e6 } else { 50e6 });
        assert!(fast.delivered as f64 > 0.97 * (5.0 * 1e6 + 15.0 * 50e6), "{fast:?}");
        let pauses = run(10, 20_000, |ms| if ms / 1_000 % 2 == 0 { 20e6 } else { 0.0 });
        assert!(pauses.delivered as f64 > 0.9 * 10.0 * 20e6, "{pauses:?}");
    }

    #[test]
    fn a_peer_that_says_nothing_limits_nothing() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.room(), FIRST);
        ahead.sent(FIRST, 0);
        assert_eq!(ahead.room(), 0);
        ahead.set_peer_tells(false);
        assert!(ahead.room() > 1 << 40);
    }

    #[test]
    fn what_a_peer_makes_up_does_no_harm() {
        let mut ahead = Ahead::default();
        ahead.set_peer_tells(true);
        ahead.sent(1000, 0);
        ahead.delivered(u64::MAX, 50 * MS);
        assert_eq!(ahead.len(), 0);
        ahead.sent(5000, 60 * MS);
        ahead.delivered(7, 100 * MS);
        ahead.delivered(u64::MAX, 200 * MS);
        assert_eq!(ahead.room(), FIRST);
    }

    #[test]
    fn short_exchanges_are_not_reported() {
        let mut reports = Reports::default();
        assert_eq!(reports.due_ns(REPORT_BYTES - 1), None);
        assert_eq!(reports.due_ns(REPORT_BYTES), Some(REPORT_NS));
        reports.told(REPORT_BYTES, 7);
        assert_eq!(reports.due_ns(2 * REPORT_BYTES - 1), None);
        assert_eq!(reports.due_ns(5 * REPORT_BYTES), Some(7 + REPORT_NS));
    }
}
