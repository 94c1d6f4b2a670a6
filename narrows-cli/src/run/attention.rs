//! How a pump waits for what comes next: asleep, or awake and looking.
//!
//! Waking a thread takes 5 us on bare metal and 20 to 50 us on a virtual machine whose core went idle: as long as a quick
//! server takes to answer. So a pump that has learned when the next event will be sleeps until shortly before, and then
//! looks again and again, as hybrid polling of fast disks does (Linux `io_poll_delay`) and `haltpoll` does for a core. It
//! never looks where gaps are long or uneven, where nobody waits for an answer because all goes one way, while workers have
//! jobs, or where something else wants the core.

/// Beyond such a gap a wake-up is a small part of it, and looking would be a large part of a core's time.
const GAP_MAX_NS: f64 = 1_000_000.0;
/// Looking at a time: more than the wake-up that it saves would be a bad bargain for the machine.
const LOOK_MAX_NS: f64 = 150_000.0;
/// A nap shorter than this is not worth its two wake-ups: looking is.
const NAP_MIN_NS: f64 = 50_000.0;
/// What a nap may be late by, where the clock's tick and the wake-up from it are quick.
const NAP_LATE_NS: f64 = 20_000.0;
/// As for TCP's timer (RFC 6298): the mean follows an eighth, the deviation a quarter of what is new.
const MEAN_GAIN: f64 = 0.125;
const DEVIATION_GAIN: f64 = 0.25;
/// A gap is taken to be at most so much longer than the mean.
const SURPRISE_DEVIATIONS: f64 = 3.0;
const SURPRISE_NS: f64 = 30_000.0;
/// Deviations around the mean in which the next event is looked for.
const DEVIATIONS: f64 = 2.0;
/// A look takes a microsecond; one that took so long was interrupted: the core is wanted.
const INTERRUPTED_NS: u64 = 50_000;
/// Then nothing is looked for until so much later: far more than a scheduler's slice.
const REST_NS: u64 = 10_000_000;
/// A round that moved more is bulk, and what feeds it needs the cores.
const SMALL_MAX: u64 = 16 << 10;

/// Of the rounds so many must have passed on something in the other direction than the one before, lately. In a dialogue all do; with
/// eight of them on one pump half; in bulk one in hundreds.
const TURNS_MIN: f64 = 0.2;
const TURNS_GAIN: f64 = 1.0 / 16.0;

/// What the latest round passed on, and so what comes next: another message, an answer, or either.
const KINDS: usize = 4;
const BOTH: usize = 3;

pub(crate) struct Attention {
    gaps: [Gap; KINDS],
    /// Of the latest round, and when it ended; none if what it did foretells nothing.
    kind: Option<usize>,
    since_ns: u64,
    /// What the round before passed on, and how often that changes.
    direction: usize,
    turns: f64,
    rests_until_ns: u64,
}

/// How long it takes until something happens.
#[derive(Clone, Copy)]
struct Gap {
    mean_ns: f64,
    deviation_ns: f64,
}

/// First asleep for `nap_ns`, then awake until `look_until_ns`, then asleep for as long as it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) nap_ns: u64,
    pub(crate) look_until_ns: u64,
}

impl Attention {
    pub(crate) fn new() -> Self {
        // As if nothing had ever been quick.
        let unknown = Gap { mean_ns: 2.0 * GAP_MAX_NS, deviation_ns: 0.0 };
        Self { gaps: [unknown; KINDS], kind: None, since_ns: 0, direction: 0, turns: 0.0, rests_until_ns: 0 }
    }

    /// A round is over that passed on so many bytes to the network and to the program.
    pub(crate) fn round(&mut self, began_ns: u64, ended_ns: u64, up: u64, down: u64) {
        if up + down == 0 {
            // A bell, a timer, an acknowledgement: what was waited for still is.
            return;
        }
        if let Some(kind) = self.kind {
            self.gaps[kind].learn(began_ns.saturating_sub(self.since_ns) as f64);
        }
        self.since_ns = ended_ns;
        let direction = usize::from(up > 0) + 2 * usize::from(down > 0);
        let turned = direction == BOTH || direction != std::mem::replace(&mut self.direction, direction);
        self.turns += TURNS_GAIN * (f64::from(u8::from(turned)) - self.turns);
        self.kind = (up + down <= SMALL_MAX).then_some(direction);
    }

    /// How to wait now, if not just asleep.
    pub(crate) fn plan(&self, now_ns: u64) -> Option<Plan> {
        let gap = &self.gaps[self.kind?];
        if now_ns < self.rests_until_ns || gap.mean_ns > GAP_MAX_NS || self.turns < TURNS_MIN {
            return None;
        }
        let early_ns = DEVIATIONS * gap.deviation_ns;
        let until_ns = gap.mean_ns + early_ns;
        let look_from_ns = gap.mean_ns - early_ns - NAP_LATE_NS;
        let nap_ns = if look_from_ns >= NAP_MIN_NS { look_from_ns } else { 0.0 };
        if until_ns - nap_ns > LOOK_MAX_NS {
            return None;
        }
        let gone_ns = now_ns.saturating_sub(self.since_ns);
        let plan =
            Plan { nap_ns: (nap_ns as u64).saturating_sub(gone_ns), look_until_ns: self.since_ns + until_ns as u64 };
        (plan.look_until_ns > now_ns).then_some(plan)
    }

    /// A look took from one time to the other. False: something else needs the core, and this was the last for a while.
    pub(crate) fn looked(&mut self, from_ns: u64, to_ns: u64) -> bool {
        let interrupted = to_ns.saturating_sub(from_ns) > INTERRUPTED_NS;
        if interrupted {
            self.rests_until_ns = to_ns + REST_NS;
        }
        !interrupted
    }
}

impl Gap {
    fn learn(&mut self, gap_ns: f64) {
        // One long pause shall not hide that what follows it is quick again; several do.
        let gap_ns = gap_ns.min(self.mean_ns + SURPRISE_DEVIATIONS * self.deviation_ns + SURPRISE_NS);
        let error_ns = gap_ns - self.mean_ns;
        self.mean_ns += MEAN_GAIN * error_ns;
        self.deviation_ns += DEVIATION_GAIN * (error_ns.abs() - self.deviation_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that each moved `bytes` to the network, and back, with these gaps behind them.
    fn after(gaps_ns: impl IntoIterator<Item = u64>, bytes: u64) -> (Attention, u64) {
        let (mut attention, mut now_ns) = (Attention::new(), 1_000_000_000);
        attention.round(now_ns, now_ns, bytes, 0);
        for gap_ns in gaps_ns {
            now_ns += gap_ns;
            attention.round(now_ns, now_ns, 0, bytes);
            now_ns += gap_ns;
            attention.round(now_ns, now_ns, bytes, 0);
        }
        (attention, now_ns)
    }

    #[test]
    fn answers_that_are_always_quick_are_looked_for_at_once() {
        let (attention, now_ns) = after([20_000; 100], 100);
        let plan = attention.plan(now_ns).unwrap();
        assert_eq!(plan.nap_ns, 0);
        assert!((20_000..=60_000).contains(&(plan.look_until_ns - now_ns)), "{plan:?}");
    }

    #[test]
    fn what_takes_a_known_time_is_slept_for_until_shortly_before() {
        let (attention, now_ns) = after((0..200).map(|i| 300_000 + i % 3 * 5_000), 100);
        let plan = attention.plan(now_ns).unwrap();
        assert!((200_000..300_000).contains(&plan.nap_ns), "{plan:?}");
        assert!((305_000..360_000).contains(&(plan.look_until_ns - now_ns)), "{plan:?}");
        // What has gone by already is not slept again.
        let later = attention.plan(now_ns + 100_000).unwrap();
        assert_eq!((later.nap_ns, later.look_until_ns), (plan.nap_ns - 100_000, plan.look_until_ns));
        assert_eq!(attention.plan(plan.look_until_ns), None);
    }

    #[test]
    fn long_uneven_and_first_gaps_and_bulk_are_slept_through() {
        let nothing = |(attention, now_ns): (Attention, u64)| assert_eq!(attention.plan(now_ns), None);
        nothing(after([], 100));
        nothing(after([20_000; 2], 100));
        nothing(after([20_000_000; 100], 100));
        nothing(after((0..100).map(|i| 10_000 + i % 2 * 600_000), 100));
        nothing(after([20_000; 100], 100_000));
    }

    #[test]
    fn where_all_goes_one_way_nobody_waits_for_the_next_piece() {
        let (mut attention, mut now_ns) = after([20_000; 100], 100);
        for _ in 0..40 {
            now_ns += 20_000;
            attention.round(now_ns, now_ns, 3_000, 0);
        }
        assert_eq!(attention.plan(now_ns), None);
        // Eight dialogues on one pump take turns often enough.
        for i in 0..200 {
            now_ns += 20_000;
            let (up, down) = if i % 4 < 2 { (100, 0) } else { (0, 100) };
            attention.round(now_ns, now_ns, up, down);
        }
        assert!(attention.plan(now_ns).is_some());
    }

    #[test]
    fn one_pause_does_not_end_it() {
        let gaps = [20_000; 200].into_iter().chain([5_000_000_000]).chain([20_000; 40]);
        let (attention, now_ns) = after(gaps, 100);
        assert!(attention.plan(now_ns).is_some());
    }

    #[test]
    fn nothing_is_looked_for_where_the_core_is_wanted() {
        let (mut attention, now_ns) = after([20_000; 100], 100);
        assert!(attention.looked(now_ns, now_ns + 2_000));
        assert!(attention.plan(now_ns + 2_000).is_some());
        assert!(!attention.looked(now_ns, now_ns + 3_000_000));
        assert_eq!(attention.plan(now_ns + 3_000_000), None);
        attention.round(now_ns + 20_000_000, now_ns + 20_000_000, 100, 0);
        assert!(attention.plan(now_ns + 20_000_000).is_some());
    }

    #[test]
    fn rounds_that_moved_nothing_change_nothing() {
        let (mut attention, now_ns) = after([20_000; 100], 100);
        let plan = attention.plan(now_ns);
        attention.round(now_ns + 5_000, now_ns + 6_000, 0, 0);
        assert_eq!(attention.plan(now_ns), plan);
    }
}
