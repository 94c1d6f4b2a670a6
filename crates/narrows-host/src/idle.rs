//! Work that nobody waits for: it takes only what other programs leave of processors and disks.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Share of all processors that other programs use above which a host is loaded. Below it there are
/// idle processors, or pauses, for work of the lowest priority.
const LOADED: f64 = 0.75;
/// How long is looked at. The processors of a desktop are busy for some 100 ms at a time.
const SPAN: Duration = Duration::from_secs(1);
/// Class "idle" of the I/O priorities (`ioprio_set(2)`).
const IOPRIO_IDLE: libc::c_int = 3 << 13;
const IOPRIO_WHO_PROCESS: libc::c_int = 1;

#[allow(unsafe_code, reason = "no library has these system calls")]
/// Gives the calling thread, and all threads that it starts, the lowest priorities for processors and
/// disks. Returns what the system refused.
pub fn become_idle() -> Vec<(&'static str, io::Error)> {
    let mut refused = Vec::new();
    let mut note = |what, result: libc::c_long| {
        if result != 0 {
            refused.push((what, io::Error::last_os_error()));
        }
    };
    // SAFETY: zeros are a valid `sched_param`, which has no pointers.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: `param` outlives the call; 0 is the calling thread.
    note("SCHED_IDLE", unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) }.into());
    // SAFETY: numbers only.
    note("nice 19", unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }.into());
    // SAFETY: numbers only; 0 is the calling thread.
    note("idle I/O", unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE) });
    refused
}

/// Watches whether other programs need the processors.
#[derive(Debug, Default)]
pub struct Load {
    before: Option<(Instant, Ticks)>,
    loaded: bool,
}

impl Load {
    /// Whether other programs use most of the processors, over the last second or more. Where that
    /// cannot be told, the host is not loaded.
    pub fn is_high(&mut self) -> bool {
        let now = Instant::now();
        if self.before.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < SPAN) {
            return self.loaded;
        }
        let Some(ticks) = Ticks::now() else { return false };
        if let Some((_, before)) = self.before.replace((now, ticks)) {
            self.loaded = ticks.others_since(before) > LOADED;
        }
        self.loaded
    }
}

/// Ticks of all processors since the system was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    /// Of this process.
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let own = own(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let (all, busy) = all(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(Self { all, busy, own })
    }

    /// The share of all processors that other programs used.
    fn others_since(self, before: Self) -> f64 {
        let busy = self.busy.saturating_sub(before.busy);
        let own = self.own.saturating_sub(before.own);
        busy.saturating_sub(own) as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

/// All ticks and those of programs, from the first line of /proc/stat.
fn all(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as users.
    let ticks = line.split_whitespace().take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    let all = ticks.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    Some((all, all.saturating_sub(idle)))
}

/// The ticks of a process, from its `stat`.
fn own(stat: &str) -> Option<u64> {
    // The name in parentheses may have spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_the_system_writes_them() {
        assert_eq!(all("cpu  100 20 30 800 50 1 2 3 9 9\ncpu0 1 2\n"), Some((1006, 156)));
        assert_eq!(own("7 (a) b) R 1 2 3 4 5 6 7 8 9 10 41 1 0 0\n"), Some(42));
        for bad in ["", "cpu", "cpu 1 2 3", "cpu a b c d e", "intr 5"] {
            assert_eq!(all(bad), None, "{bad}");
        }
        assert_eq!(own("7 (a) R 1 2"), None);
        assert!(Ticks::now().is_some_and(|ticks| ticks.all > ticks.busy));
    }

    #[test]
    fn own_work_is_no_load() {
        let before = Ticks { all: 1000, busy: 500, own: 100 };
        let after = Ticks { all: 1200, busy: 690, own: 280 };
        assert!((after.others_since(before) - 0.05).abs() < 1e-9);
        assert!(before.others_since(after).abs() < 1e-9, "counters that go back");
    }

    #[test]
    fn a_thread_becomes_idle_and_this_test_goes_on() {
        std::thread::spawn(become_idle).join().unwrap();
    }
}
