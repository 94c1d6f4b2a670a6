//! Adaptive waiting of a pump: asleep in epoll, or awake and polling.
//!
//! Waking a thread takes 5 us on bare metal and 20 to 50 us on a virtual machine whose core went
//! idle: as long as a quick server takes to answer. So a pump that has learned when to expect the
//! next event sleeps until shortly before, and then polls in a loop, as hybrid polling of fast
//! disks (Linux `io_poll_delay`) and `haltpoll` for cores do. It never polls where gaps are long or
//! uneven, where all traffic goes one way so that nobody waits for an answer, while workers have
//! jobs, or where something else wants the core. Only one pump of a supervisor polls at a time, and
//! none on a single core.

use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use narrows::stream;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest mean gap that is polled for. Beyond it a wake-up is a small part of the gap, and polling
/// would take a large part of a core's time.
const GAP_MAX_NS: f64 = 1_000_000.0;
/// Longest polling at a time. More would cost the machine more than the saved wake-up is worth.
const LOOK_MAX_NS: f64 = 200_000.0;
/// A nap shorter than this is not worth its two wake-ups, so the pump polls instead.
const NAP_MIN_NS: f64 = 50_000.0;
/// How late a nap may end: timers that wake an idle core of a virtual machine are this late.
const NAP_LATE_NS: f64 = 60_000.0;
/// As for TCP's timer (RFC 6298): the mean takes an eighth and the deviation a quarter of each new
/// sample.
const MEAN_GAIN: f64 = 0.125;
const DEVIATION_GAIN: f64 = 0.25;
/// A gap is counted as at most this much longer than the mean.
const SURPRISE_DEVIATIONS: f64 = 3.0;
const SURPRISE_NS: f64 = 30_000.0;
/// Deviations around the mean within which the pump polls for the next event.
const DEVIATIONS: f64 = 2.0;
/// A look takes a microsecond. One that took this long was interrupted: something else wants the
/// core.
const INTERRUPTED_NS: u64 = 50_000;
/// Pause in polling after an interruption: far more than a scheduler's time slice.
const REST_NS: u64 = 10_000_000;
/// A round that moved more bytes is bulk, and the programs and workers that feed it need the cores.
const SMALL_MAX: u64 = 16 << 10;

/// Minimum share of recent rounds in which a connection passed on something in the other direction
/// than before. Dialogues reach it in most rounds; bulk turns in one of hundreds.
const TURNS_MIN: f64 = 0.2;
const TURNS_GAIN: f64 = 1.0 / 16.0;

/// Shorter waits are timed to the microsecond.
const FINE_MAX: Duration = Duration::from_millis(2);

/// Whether a pump is polling. A supervisor may spend at most one core on it.
static LOOKING: AtomicBool = AtomicBool::new(false);
/// Available cores, limited by the control group.
static CORES: LazyLock<usize> = LazyLock::new(stream::cores);

/// Kinds of rounds: those that passed bytes up, down, both ways or neither. The kind predicts what
/// comes next: another message, an answer, or either.
const KINDS: usize = 4;

pub(crate) struct Attention {
    gaps: [Gap; KINDS],
    /// The kind of the latest round, and when it ended; `None` if it predicts nothing.
    kind: Option<usize>,
    since_ns: u64,
    /// Share of rounds in which a connection changed direction.
    turns: f64,
    rests_until_ns: u64,
}

/// Bytes passed on to networks and to programs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Moved {
    up: u64,
    down: u64,
    /// A connection's bytes went the other way than its previous ones, or both ways.
    turned: bool,
}

/// What one connection had passed on at the last look, and its latest direction.
#[derive(Debug, Default)]
pub(crate) struct Course {
    up: u64,
    down: u64,
    upward: bool,
}

impl Course {
    /// What has moved since the last look; `up` and `down` count all bytes so far.
    pub(crate) fn look(&mut self, up: u64, down: u64) -> Moved {
        let (new_up, new_down) = (up - self.up, down - self.down);
        (self.up, self.down) = (up, down);
        let turned = match (new_up > 0, new_down > 0) {
            (false, false) => false,
            (true, true) => true,
            (now_upward, _) => std::mem::replace(&mut self.upward, now_upward) != now_upward,
        };
        Moved { up: new_up, down: new_down, turned }
    }
}

impl Moved {
    pub(crate) fn add(&mut self, other: Self) {
        *self = Self { up: self.up + other.up, down: self.down + other.down, turned: self.turned | other.turned };
    }
}

/// Statistics of the time until the next event.
#[derive(Clone, Copy)]
struct Gap {
    mean_ns: f64,
    deviation_ns: f64,
}

/// When to poll: first asleep for `nap_ns`, then awake until `look_until_ns`, then asleep for as long
/// as it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PollWindow {
    nap_ns: u64,
    look_until_ns: u64,
}

impl Attention {
    pub(crate) fn new() -> Self {
        Self {
            gaps: [Gap { mean_ns: f64::INFINITY, deviation_ns: 0.0 }; KINDS],
            kind: None,
            since_ns: 0,
            turns: 0.0,
            rests_until_ns: 0,
        }
    }

    /// A round is over.
    pub(crate) fn round(&mut self, began_ns: u64, ended_ns: u64, moved: Moved) {
        if moved.up + moved.down == 0 {
            // A bell, a timer or an acknowledgement: the expected event is still to come.
            return;
        }
        if let Some(kind) = self.kind {
            self.gaps[kind].learn(began_ns.saturating_sub(self.since_ns) as f64);
        }
        self.since_ns = ended_ns;
        self.turns += TURNS_GAIN * (f64::from(u8::from(moved.turned)) - self.turns);
        let small = moved.up + moved.down <= SMALL_MAX;
        self.kind = small.then_some(usize::from(moved.up > 0) + 2 * usize::from(moved.down > 0));
    }

    /// Waits for events, for at most `wait`.
    pub(crate) fn wait(
        &mut self,
        watch: &OwnedFd,
        events: &mut Vec<Event>,
        wait: Option<Duration>,
        clock: impl Fn() -> u64,
        may_look: bool,
    ) {
        let mut now_ns = clock();
        let end_ns = wait.map(|w| now_ns.saturating_add(w.as_nanos() as u64));
        let window = self
            .poll_window(now_ns)
            .filter(|window| may_look && end_ns.is_none_or(|end_ns| window.look_until_ns < end_ns));
        if let Some(window) = window
            && *CORES > 1
        {
            if window.nap_ns > 0 {
                asleep(watch, window.nap_ns);
                now_ns = clock();
            }
            if !LOOKING.swap(true, Ordering::Relaxed) {
                self.look(watch, events, now_ns, window.look_until_ns, &clock);
                LOOKING.store(false, Ordering::Relaxed);
            }
            if !events.is_empty() {
                return;
            }
            now_ns = clock();
        }
        match end_ns.map(|end_ns| Duration::from_nanos(end_ns.saturating_sub(now_ns))) {
            Some(left) if left < FINE_MAX => {
                // Before Linux 5.11 epoll only takes whole milliseconds.
                if !left.is_zero() {
                    asleep(watch, left.as_nanos() as u64);
                }
                take(watch, events, Some(&NOW));
            }
            Some(left) => {
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
                take(watch, events, Some(&left));
            }
            None => take(watch, events, None),
        }
    }

    fn look(
        &mut self,
        watch: &OwnedFd,
        events: &mut Vec<Event>,
        mut now_ns: u64,
        until_ns: u64,
        clock: impl Fn() -> u64,
    ) {
        while now_ns < until_ns {
            take(watch, events, Some(&NOW));
            if !events.is_empty() {
                return;
            }
            // Other threads that want this core run first.
            std::thread::yield_now();
            let looked_ns = clock();
            if !self.looked(std::mem::replace(&mut now_ns, looked_ns), looked_ns) {
                return;
            }
        }
    }

    /// How to wait now; `None`: just sleep.
    fn poll_window(&self, now_ns: u64) -> Option<PollWindow> {
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
        let window = PollWindow {
            nap_ns: (nap_ns as u64).saturating_sub(gone_ns),
            look_until_ns: self.since_ns + until_ns as u64,
        };
        (window.look_until_ns > now_ns).then_some(window)
    }

    /// Records how long a look took. False if something else needs the core; polling then pauses
    /// for a while.
    fn looked(&mut self, from_ns: u64, to_ns: u64) -> bool {
        let interrupted = to_ns.saturating_sub(from_ns) > INTERRUPTED_NS;
        if interrupted {
            self.rests_until_ns = to_ns + REST_NS;
        }
        !interrupted
    }
}

impl Gap {
    fn learn(&mut self, gap_ns: f64) {
        if self.mean_ns.is_infinite() {
            let gap_ns = gap_ns.min(2.0 * GAP_MAX_NS);
            *self = Self { mean_ns: gap_ns, deviation_ns: gap_ns / 2.0 };
            return;
        }
        // One long pause must not hide that the gaps after it are short again; several do.
        let gap_ns = gap_ns.min(self.mean_ns + SURPRISE_DEVIATIONS * self.deviation_ns + SURPRISE_NS);
        let error_ns = gap_ns - self.mean_ns;
        self.mean_ns += MEAN_GAIN * error_ns;
        self.deviation_ns += DEVIATION_GAIN * (error_ns.abs() - self.deviation_ns);
    }
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Sleeps until there are events, for at most `for_ns`.
fn asleep(watch: &OwnedFd, for_ns: u64) {
    let time = Timespec { tv_sec: (for_ns / 1_000_000_000) as i64, tv_nsec: (for_ns % 1_000_000_000) as i64 };
    let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&time));
}

fn take(watch: &OwnedFd, events: &mut Vec<Event>, wait: Option<&Timespec>) {
    let _ = epoll::wait(watch, spare_capacity(events), wait);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(bytes: u64) -> Moved {
        Moved { up: bytes, down: 0, turned: true }
    }

    fn down(bytes: u64) -> Moved {
        Moved { up: 0, down: bytes, turned: true }
    }

    /// Rounds that alternately moved `bytes` to the network and back, with these gaps between them.
    fn after(gaps_ns: impl IntoIterator<Item = u64>, bytes: u64) -> (Attention, u64) {
        let (mut attention, mut now_ns) = (Attention::new(), 1_000_000_000);
        attention.round(now_ns, now_ns, up(bytes));
        for gap_ns in gaps_ns {
            now_ns += gap_ns;
            attention.round(now_ns, now_ns, down(bytes));
            now_ns += gap_ns;
            attention.round(now_ns, now_ns, up(bytes));
        }
        (attention, now_ns)
    }

    #[test]
    fn answers_that_are_always_quick_are_looked_for_at_once() {
        let (attention, now_ns) = after([20_000; 100], 100);
        let window = attention.poll_window(now_ns).unwrap();
        assert_eq!(window.nap_ns, 0);
        assert!((20_000..=60_000).contains(&(window.look_until_ns - now_ns)), "{window:?}");
    }

    #[test]
    fn what_takes_a_known_time_is_slept_for_until_shortly_before() {
        let (attention, now_ns) = after((0..200).map(|i| 300_000 + i % 3 * 5_000), 100);
        let window = attention.poll_window(now_ns).unwrap();
        assert!((200_000..300_000).contains(&window.nap_ns), "{window:?}");
        assert!((305_000..360_000).contains(&(window.look_until_ns - now_ns)), "{window:?}");
        // Time that has already passed is not slept again.
        let later = attention.poll_window(now_ns + 100_000).unwrap();
        assert_eq!((later.nap_ns, later.look_until_ns), (window.nap_ns - 100_000, window.look_until_ns));
        assert_eq!(attention.poll_window(window.look_until_ns), None);
    }

    #[test]
    fn long_uneven_and_first_gaps_and_bulk_are_slept_through() {
        let nothing = |(attention, now_ns): (Attention, u64)| assert_eq!(attention.poll_window(now_ns), None);
        nothing(after([], 100));
        nothing(after([20_000; 1], 100));
        nothing(after([20_000_000; 100], 100));
        nothing(after((0..100).map(|i| 10_000 + i % 2 * 600_000), 100));
        nothing(after([20_000; 100], 100_000));
    }

    #[test]
    fn where_all_goes_one_way_nobody_waits_for_the_next_piece() {
        let (mut attention, mut now_ns) = after([20_000; 100], 100);
        for _ in 0..40 {
            now_ns += 20_000;
            attention.round(now_ns, now_ns, Moved { turned: false, ..up(3_000) });
        }
        assert_eq!(attention.poll_window(now_ns), None);
        // Eight dialogues on one pump change direction often enough.
        for i in 0..200 {
            now_ns += 20_000;
            let moved = if i % 4 < 2 { up(100) } else { down(100) };
            attention.round(now_ns, now_ns, Moved { turned: i % 2 == 0, ..moved });
        }
        assert!(attention.poll_window(now_ns).is_some());
    }

    #[test]
    fn one_pause_does_not_end_it() {
        let gaps = [20_000; 200].into_iter().chain([5_000_000_000]).chain([20_000; 40]);
        let (attention, now_ns) = after(gaps, 100);
        assert!(attention.poll_window(now_ns).is_some());
    }

    #[test]
    fn nothing_is_looked_for_where_the_core_is_wanted() {
        let (mut attention, now_ns) = after([20_000; 100], 100);
        assert!(attention.looked(now_ns, now_ns + 2_000));
        assert!(attention.poll_window(now_ns + 2_000).is_some());
        assert!(!attention.looked(now_ns, now_ns + 3_000_000));
        assert_eq!(attention.poll_window(now_ns + 3_000_000), None);
        attention.round(now_ns + 20_000_000, now_ns + 20_000_000, up(100));
        assert!(attention.poll_window(now_ns + 20_000_000).is_some());
    }

    #[test]
    fn rounds_that_moved_nothing_change_nothing() {
        let (mut attention, now_ns) = after([20_000; 100], 100);
        let window = attention.poll_window(now_ns);
        attention.round(now_ns + 5_000, now_ns + 6_000, up(0));
        assert_eq!(attention.poll_window(now_ns), window);
    }

    #[test]
    fn a_turn_is_one_of_the_connection_itself() {
        let (mut course, mut up, mut down) = (Course::default(), 0, 0);
        let mut turned = |more_up, more_down| {
            (up, down) = (up + more_up, down + more_down);
            course.look(up, down).turned
        };
        assert_eq!([turned(1, 0), turned(1, 0), turned(0, 0), turned(1, 0)], [true, false, false, false]);
        assert_eq!([turned(0, 1), turned(0, 1), turned(1, 1), turned(0, 1)], [true, false, true, false]);
        let mut all = Moved::default();
        all.add(Course::default().look(0, 3));
        all.add(Course { upward: true, ..Course::default() }.look(4, 0));
        assert_eq!((all.up, all.down, all.turned), (4, 3, false));
    }

    #[test]
    fn an_event_ends_every_kind_of_wait() {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let bell = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&watch, &bell, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let (mut attention, _) = after([20_000; 100], 100);
        for wait in [None, Some(Duration::ZERO), Some(Duration::from_millis(1)), Some(Duration::from_secs(600))] {
            for now_ns in [attention.since_ns, attention.since_ns + 1_000_000] {
                let mut events = Vec::with_capacity(4);
                attention.wait(&watch, &mut events, wait, || now_ns, true);
                assert_eq!(events.len(), 1, "{wait:?}");
            }
        }
    }
}
