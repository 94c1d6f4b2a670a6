//! What answers when the supervisor is dead: "go on as if you had not asked".
//!
//! A process of its own, forked from the supervisor before that has threads. It holds the listener, without which every
//! call that the kernel asks about would fail, and wakes only when the supervisor is gone.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::sys;
use crate::run::sys as process;

/// Calls that may wait at a time (accept, connect); further ones are not waited for and stay plain. One more is the call
/// that is being answered, one the last that came.
pub(super) const WAITS_MAX: usize = 1024;
const NOW: usize = WAITS_MAX;
const LAST: usize = WAITS_MAX + 1;
/// Questions that the supervisor may have taken out before it died and could write them down: it takes one at a time.
const UNWRITTEN: u64 = 4;

/// Which questions the supervisor has heard and not answered, in memory that the watchdog sees too: the kernel tells each
/// of them once.
pub(super) struct Open {
    ids: &'static [AtomicU64; WAITS_MAX + 2],
}

impl Open {
    pub(super) fn heard(&self, id: u64) {
        self.ids[LAST].store(id, Ordering::Relaxed);
        self.ids[NOW].store(id, Ordering::Release);
    }

    /// The one that was heard last waits, in that place.
    pub(super) fn waits(&self, place: usize, id: u64) {
        self.ids[place.min(WAITS_MAX - 1)].store(id, Ordering::Release);
    }

    pub(super) fn answered(&self, place: Option<usize>) {
        self.ids[place.unwrap_or(NOW).min(NOW)].store(0, Ordering::Release);
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let last = self.ids[LAST].load(Ordering::Acquire);
        let known = self.ids[..LAST].iter().map(|id| id.load(Ordering::Acquire)).filter(|id| *id != 0);
        // The kernel counts. What nobody waits for is refused.
        known.chain((1..=UNWRITTEN).map(move |n| last.wrapping_add(n)))
    }
}

/// The supervisor's side of it. That this is dropped, by the kernel if need be, is what wakes the watchdog.
pub(crate) struct Watchdog {
    _alive: OwnedFd,
    pub(super) open: Open,
}

impl Watchdog {
    /// To be called while there is one thread. `to` is where the listener comes.
    pub(crate) fn start(to: &OwnedFd) -> std::io::Result<Self> {
        let (watched, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let open = Open { ids: sys::shared_numbers()? };
        if process::fork()?.is_none() {
            drop(alive);
            process::close_all_but(&[to.as_raw_fd(), watched.as_raw_fd()]);
            // Who reads the program's output must not wait for this.
            if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
                let _ = rustix::stdio::dup2_stdin(&null);
                let _ = rustix::stdio::dup2_stdout(&null);
                let _ = rustix::stdio::dup2_stderr(&null);
            }
            process::ignore(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE]);
            watch(to, &watched, &open);
            process::leave();
        }
        Ok(Self { _alive: alive, open })
    }
}

fn watch(to: &OwnedFd, alive: &OwnedFd, open: &Open) {
    let Some((listener, _)) = super::listener(to) else { return };
    // It says nothing; it ends.
    while rustix::io::read(alive, &mut [0]) == Err(rustix::io::Errno::INTR) {}
    let_go_on(&listener, open);
}

/// Answers everything that was and will be asked, until nobody is under the filter any more.
pub(super) fn let_go_on(listener: &OwnedFd, open: &Open) {
    let go_on = |id| drop(sys::respond(listener.as_fd(), id, 0, 0, true));
    open.all().for_each(go_on);
    loop {
        let mut look = [PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut look, None);
        let happened = look[0].revents();
        if happened.contains(PollFlags::IN) {
            if let Ok(question) = sys::receive(listener.as_fd()) {
                go_on(question.id);
            }
        } else if !happened.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_and_not_answered_is_known() {
        let open = Open { ids: sys::shared_numbers().unwrap() };
        open.heard(7);
        open.waits(3, 7);
        open.answered(None);
        open.heard(8);
        open.answered(None);
        open.heard(9);
        assert_eq!(open.all().collect::<Vec<_>>(), [7, 9, 10, 11, 12, 13]);
        open.answered(Some(3));
        open.answered(None);
        assert_eq!(open.all().collect::<Vec<_>>(), [10, 11, 12, 13]);
    }
}
