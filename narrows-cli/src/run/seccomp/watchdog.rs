//! What answers when the supervisor is dead: "go on as if you had not asked".
//!
//! A process of its own, forked from the supervisor before that has threads. It holds the listener, without which every
//! call that the kernel asks about would fail, and wakes only when the supervisor is gone.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::swap::swapped;
use super::target::Target;
use super::{socket, sys};
use crate::run::sys as process;

/// Calls that may wait at a time (accept, connect); further ones are not waited for and stay plain. One more is the call
/// that is being answered, one the last that came.
pub(crate) const WAITS_MAX: usize = 1024;
const NOW: usize = WAITS_MAX;
const LAST: usize = WAITS_MAX + 1;
/// Of the call that is being answered: its thread, its socket, what it is and what was done to the socket.
const THREAD: usize = WAITS_MAX + 2;
const SOCKET: usize = WAITS_MAX + 3;
const CONNECTS: usize = WAITS_MAX + 4;
const UNBLOCKED: usize = WAITS_MAX + 5;
const NUMBERS: usize = WAITS_MAX + 6;
/// Questions that the supervisor may have taken out before it died and could write them down: it takes one at a time.
const UNWRITTEN: u64 = 4;

/// Which questions the supervisor has heard and not answered, in memory that the watchdog sees too: the kernel tells each
/// of them once.
pub(super) struct Open {
    ids: &'static [AtomicU64; NUMBERS],
}

impl Open {
    fn set(&self, at: usize, value: u64) {
        self.ids[at].store(value, Ordering::Release);
    }

    fn get(&self, at: usize) -> u64 {
        self.ids[at].load(Ordering::Acquire)
    }

    /// This call is answered now.
    pub(super) fn begins(&self, id: u64, thread: u32, socket: i32, connects: bool) {
        self.set(THREAD, thread.into());
        self.set(SOCKET, socket as u64);
        self.set(CONNECTS, connects.into());
        self.set(NOW, id);
        self.set(LAST, self.get(LAST).max(id));
    }

    /// It waits, in that place.
    pub(super) fn waits(&self, place: usize, id: u64) {
        self.set(place.min(WAITS_MAX - 1), id);
    }

    /// What waited there was answered.
    pub(super) fn waits_no_more(&self, place: usize) {
        self.set(place.min(WAITS_MAX - 1), 0);
    }

    /// The call that was being answered is, or waits.
    pub(super) fn ends(&self) {
        self.set(NOW, 0);
    }

    /// The socket of the call was blocking and is not now, or is again.
    pub(super) fn unblocked(&self, is: bool) {
        self.set(UNBLOCKED, is.into());
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let last = self.get(LAST);
        let known = self.ids[..LAST].iter().map(|id| id.load(Ordering::Acquire)).filter(|id| *id != 0);
        // The kernel counts. What nobody waits for is refused.
        known.chain((1..=UNWRITTEN).map(move |n| last.wrapping_add(n)))
    }

    /// What is to be answered to the call in whose midst the supervisor died: value and errno, `None` if the kernel can
    /// do it anew. Its socket blocks again.
    fn half_done(&self) -> Option<(u64, i32)> {
        let id = Some(self.get(NOW)).filter(|id| *id != 0)?;
        let target = Target::open(self.get(THREAD) as u32).ok()?;
        let held = target.descriptor(self.get(SOCKET) as i32).ok()?;
        if self.get(UNBLOCKED) != 0 {
            let _ = rustix::io::ioctl_fionbio(&held, false);
        }
        let blocks = socket::blocks(&held).ok()?;
        // A swapped one will tell of a reset.
        let connected = swapped(&held).is_some() || socket::is_established(&held);
        let begun = connected || socket::is_connecting(&held);
        match self.get(CONNECTS) != 0 {
            true if blocks && connected => Some((id, 0)),
            true if !blocks && begun => Some((id, libc::EINPROGRESS)),
            _ => None,
        }
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
    if let Some((id, error)) = open.half_done() {
        let _ = sys::respond(listener.as_fd(), id, 0, error, false);
    }
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
        open.begins(7, 1, 3, false);
        open.waits(3, 7);
        open.ends();
        open.begins(8, 1, 3, false);
        open.ends();
        open.begins(9, 1, 3, false);
        assert_eq!(open.all().collect::<Vec<_>>(), [7, 9, 10, 11, 12, 13]);
        open.ends();
        // What waited is taken up again.
        open.begins(7, 1, 3, false);
        open.waits_no_more(3);
        assert_eq!(open.all().collect::<Vec<_>>(), [7, 10, 11, 12, 13]);
        open.ends();
        assert_eq!(open.all().collect::<Vec<_>>(), [10, 11, 12, 13]);
    }
}
