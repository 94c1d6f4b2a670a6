//! The rate of a writer that yields to all other traffic on its path (`--bwlimit auto`).
//!
//! The round trip grows when packets queue somewhere on the way. As LEDBAT (RFC 6817) does, a scavenger
//! keeps that queue short: it has as many bytes on the way as the link delivers within its shortest round
//! trip and a small target. Alone it fills the link so, with a queue as long as the target. Beside a flow
//! that fills the queue, its own share of the delivery falls with every round, down to a floor.
//!
//! Time is an argument, so that all of this runs in virtual time.

/// Queueing delay that is aimed at, in seconds. RFC 6817 allows 100 ms; calls and games notice less. On radio
/// links, and where machines are busy, half of this comes and goes without any queue.
const TARGET_S: f64 = 0.040;
/// Segments whose time on the link is added to that: a few always go together, and on a slow link one takes 10
/// ms and more. At most so much is added that the sum is what RFC 6817 allows.
const SEGMENTS_TOGETHER: f64 = 3.0;
const TOGETHER_MAX_S: f64 = 0.060;
/// Least target, where a queue is too short for [`TARGET_S`] and loses packets first.
const TARGET_MIN_S: f64 = 0.002;
/// Window in segments at the beginning, as TCP's.
const SEGMENTS_FIRST: f64 = 10.0;
/// Fewest segments on the way, as in RFC 6817: with less nothing would tell that the link is free again.
const SEGMENTS_MIN: f64 = 2.0;
/// Segments that are written at once at least, with room for what TLS adds to two. The other end acknowledges
/// two at once; that of a lone one may wait 40 ms, which would look like a queue.
const SEGMENTS_WRITTEN: f64 = 1.9;
/// Most bytes on the way: the largest window of TCP.
const WINDOW_MAX: f64 = (1 << 30) as f64;
/// Lowest rate in bytes/s. The other end gives up on a copy that stands still, and a queue of seconds must
/// not make this one look so.
const RATE_MIN: f64 = 4096.0;
/// Segments that have to be acknowledged within a round: the system's round trip is a mean over as many.
const SEGMENTS_ROUND: f64 = 8.0;
/// Shortest round; on faster links rounds would only cost time.
const ROUND_MIN_NS: u64 = 10_000_000;
/// Longest round, in round trips, if hardly anything is sent.
const ROUND_MAX_RTTS: u64 = 4;
/// Share of the allowed rate from which on it is the limit, and more may be tried: threads wake late.
const USED: f64 = 0.6;
/// Part by which the window may be more than fits: the round trip is a mean that comes late, and what was
/// delivered is less than could be.
const OVER: f64 = 1.07;
/// Growth of the window in a round that is tried in any case while there is no queue.
const SLOWLY: f64 = 1.03;
/// Growth of the delivery below which the link is full, while the window doubles.
const FULL: f64 = 1.3;
/// Rounds with a nearly empty queue after which the window doubles again: the others have ended.
const CLEAR_ROUNDS: u32 = 2;
/// Time after a loss in which it does not, since the loss came from too much.
const CAREFUL_NS: u64 = 10_000_000_000;
/// Interval at which the floor is kept for a round, so that the own queue is no part of the shortest round
/// trip. The system forgets that after 5 minutes.
const LOOK_EVERY_NS: u64 = 60_000_000_000;

/// What the system knows of the path of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Path {
    /// Smoothed round trip.
    pub(super) rtt_ns: u64,
    /// Shortest one within minutes.
    pub(super) rtt_min_ns: u64,
    /// Length of a segment.
    pub(super) segment_bytes: u32,
    /// Segments that were sent again so far.
    pub(super) sent_again: u32,
    /// Bytes that were acknowledged so far.
    pub(super) acked: u64,
}

/// The controller.
#[derive(Debug)]
pub(super) struct Scavenger {
    /// Bytes that may be on the way.
    window: f64,
    rtt_s: f64,
    target_s: f64,
    round: Option<Round>,
    phase: Phase,
    /// Bytes delivered per second in the last round, and in the best one.
    delivered: f64,
    best: f64,
    /// Rounds with a nearly empty queue.
    clear: u32,
    careful_until_ns: u64,
    look_at_ns: u64,
}

/// The beginning of a round.
#[derive(Debug, Clone, Copy)]
struct Round {
    begin_ns: u64,
    written: u64,
    path: Path,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The window doubles with every round; the delivery has hardly grown for so many.
    Doubles { flat: u32 },
    /// It follows the delivery.
    Follows,
    /// The floor is kept for a round; the window before it.
    Looks { window: f64 },
}

impl Scavenger {
    /// A controller for a connection of which nothing is known.
    pub(super) fn new() -> Self {
        Self {
            window: SEGMENTS_FIRST * 1448.0,
            rtt_s: 0.1,
            target_s: TARGET_S,
            round: None,
            phase: Phase::Doubles { flat: 0 },
            delivered: 0.0,
            best: 0.0,
            clear: 0,
            careful_until_ns: 0,
            look_at_ns: 0,
        }
    }

    /// Bytes per second that may be written now.
    pub(super) fn rate(&self) -> f64 {
        (self.window / self.rtt_s).max(RATE_MIN)
    }

    /// Fewest bytes that are to be written at once.
    pub(super) fn least(&self) -> f64 {
        self.round.map_or(0.0, |round| SEGMENTS_WRITTEN * f64::from(round.path.segment_bytes))
    }

    /// Takes a look at the path; `written`: bytes that were written so far.
    pub(super) fn look(&mut self, now_ns: u64, path: Path, written: u64) {
        self.rtt_s = seconds(path.rtt_ns).max(1e-6);
        let now = Round { begin_ns: now_ns, written, path };
        let Some(begun) = self.round else {
            self.window = SEGMENTS_FIRST * f64::from(path.segment_bytes);
            self.look_at_ns = now_ns + LOOK_EVERY_NS;
            self.round = Some(now);
            return;
        };
        let span_ns = now_ns.saturating_sub(begun.begin_ns);
        let round_ns = path.rtt_ns.max(ROUND_MIN_NS);
        let segment = f64::from(path.segment_bytes);
        let acked = path.acked.saturating_sub(begun.path.acked) as f64;
        let is_over = acked >= SEGMENTS_ROUND * segment || span_ns >= round_ns.saturating_mul(ROUND_MAX_RTTS);
        if span_ns < round_ns || !is_over {
            return;
        }
        self.round = Some(now);
        let delivered = acked / seconds(span_ns);
        self.best = self.best.max(delivered).max(1.0);
        let together_s = (SEGMENTS_TOGETHER * segment / self.best).min(TOGETHER_MAX_S);
        let wrote = written.saturating_sub(begun.written) as f64 / seconds(span_ns);
        let seen = Seen {
            now_ns,
            floor: SEGMENTS_MIN * segment,
            target_s: self.target_s + together_s,
            delivered,
            before: std::mem::replace(&mut self.delivered, delivered),
            base_s: seconds(path.rtt_min_ns),
            queue_s: seconds(path.rtt_ns.saturating_sub(path.rtt_min_ns)),
            lost: path.sent_again != begun.path.sent_again,
            is_used: wrote >= USED * self.rate(),
        };
        self.end_round(&seen);
        self.window = self.window.min(WINDOW_MAX);
    }

    fn end_round(&mut self, seen: &Seen) {
        if let Phase::Looks { window } = self.phase {
            (self.window, self.phase, self.delivered) = (window, Phase::Follows, 0.0);
            self.look_at_ns = seen.now_ns + LOOK_EVERY_NS;
        } else if seen.now_ns >= self.look_at_ns {
            self.phase = Phase::Looks { window: self.window };
            self.window = seen.floor;
            // A queue that was too short for it may be another one now.
            self.target_s = TARGET_S.min(1.5 * self.target_s);
        } else if seen.lost {
            self.lose(seen);
        } else if let Phase::Doubles { flat } = self.phase {
            self.double(seen, flat);
        } else {
            self.follow(seen);
        }
    }

    fn lose(&mut self, seen: &Seen) {
        if seen.queue_s < seen.target_s {
            // The queue was full before it was as long as that.
            self.target_s = TARGET_MIN_S.max(seen.queue_s / 2.0);
        }
        let drained = 0.7 * seen.delivered * seen.base_s;
        self.window = drained.min(self.window).max(self.window / 2.0).max(seen.floor);
        self.phase = Phase::Follows;
        self.clear = 0;
        self.careful_until_ns = seen.now_ns + CAREFUL_NS;
    }

    fn double(&mut self, seen: &Seen, flat: u32) {
        if !seen.is_used {
            // Nothing is known of what more would do.
            return;
        }
        let flat = if seen.delivered < FULL * seen.before { flat + 1 } else { 0 };
        self.phase = Phase::Doubles { flat };
        if seen.queue_s > seen.target_s / 2.0 || flat >= 2 {
            self.phase = Phase::Follows;
            let fits = seen.delivered * (seen.base_s + seen.target_s / 2.0);
            self.window = fits.min(self.window).max(seen.floor);
        } else {
            self.window *= 2.0;
        }
    }

    fn follow(&mut self, seen: &Seen) {
        let fits = seen.delivered * (seen.base_s + seen.target_s);
        if seen.queue_s > seen.target_s {
            self.window = fits.min(self.window).max(self.window / 2.0).max(seen.floor);
        } else if seen.is_used {
            // A source that is late now and then delivers less than fits, so without a queue nothing is given up.
            let grown = self.window * (seen.base_s + seen.target_s) / (seen.base_s + seen.queue_s);
            let most = (OVER * fits).min(2.0 * self.window).max(SLOWLY * self.window);
            // Up to the window that every connection begins with, doubling does no harm.
            let small = (2.0 * self.window).min(SEGMENTS_FIRST / SEGMENTS_MIN * seen.floor);
            self.window = grown.min(most).max(small).max(self.window);
        }
        let is_clear = seen.is_used && seen.queue_s < seen.target_s / 4.0;
        self.clear = if is_clear { self.clear + 1 } else { 0 };
        if self.clear >= CLEAR_ROUNDS && seen.now_ns >= self.careful_until_ns {
            self.phase = Phase::Doubles { flat: 0 };
            self.clear = 0;
        }
    }
}

/// What a round has shown.
struct Seen {
    now_ns: u64,
    /// Fewest bytes on the way.
    floor: f64,
    /// Queueing delay that is aimed at.
    target_s: f64,
    /// Bytes delivered per second, and in the round before.
    delivered: f64,
    before: f64,
    /// The shortest round trip, and what the present one has more.
    base_s: f64,
    queue_s: f64,
    /// Packets were lost.
    lost: bool,
    /// What was allowed was written.
    is_used: bool,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests;
