//! The watchdog: answers the kernel's questions once the supervisor is dead, with "continue the
//! call". Only a call on a socket that is already swapped, which the kernel cannot do on a unix
//! socket or would do differently, gets ECONNRESET.
//!
//! It is a process of its own, forked from the supervisor before that has threads. It holds the
//! listener, without which every call that the kernel asks about would fail, and wakes only when
//! the supervisor is gone.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_long;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::swap::swapped;
use super::target::Target;
use super::{socket, sys};
use crate::budget::WAITS_MAX;
use crate::sys as process;

/// Behind the calls that wait: the call being answered and the latest call.
const NOW: usize = WAITS_MAX;
const LAST: usize = WAITS_MAX + 1;
/// About the call being answered: its thread, its socket, its number and what was done to the
/// socket.
const THREAD: usize = WAITS_MAX + 2;
const SOCKET: usize = WAITS_MAX + 3;
const CALL: usize = WAITS_MAX + 4;
const UNBLOCKED: usize = WAITS_MAX + 5;
const ELSEWHERE: usize = WAITS_MAX + 6;
/// For each place, whether the call there waits on a swapped socket.
const SWAPPED: usize = WAITS_MAX + 7;
const NUMBERS: usize = SWAPPED + WAITS_MAX;
/// Questions that the supervisor may have received before it died without writing them down; it
/// receives one at a time.
const UNWRITTEN: u64 = 4;

/// Questions that the supervisor has received but not answered, in memory shared with the watchdog:
/// the kernel delivers each question once.
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

    /// The call is being answered now.
    pub(super) fn begins(&self, id: u64, thread: u32, socket: i32, number: c_long) {
        self.set(THREAD, thread.into());
        self.set(SOCKET, socket as u64);
        self.set(CALL, number as u64);
        self.set(ELSEWHERE, 0);
        self.set(NOW, id);
        self.set(LAST, self.get(LAST).max(id));
    }

    /// The call waits in `place`; `on_swapped`: its socket is swapped.
    pub(super) fn waits(&self, place: usize, id: u64, on_swapped: bool) {
        let place = place.min(WAITS_MAX - 1);
        self.set(SWAPPED + place, on_swapped.into());
        self.set(place, id);
    }

    /// The call in `place` no longer waits.
    pub(super) fn waits_no_more(&self, place: usize) {
        self.set(place.min(WAITS_MAX - 1), 0);
    }

    /// The call being answered was answered, or waits.
    pub(super) fn ends(&self) {
        self.set(NOW, 0);
    }

    /// The blocking socket of the call was made non-blocking (true), or blocks again (false).
    pub(super) fn unblocked(&self, is: bool) {
        self.set(UNBLOCKED, is.into());
    }

    /// The socket of the call is connected to another address than the program's (true), or no
    /// longer is (false).
    pub(super) fn elsewhere(&self, is: bool) {
        self.set(ELSEWHERE, is.into());
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let last = self.get(LAST);
        let known = self.ids[..LAST].iter().map(|id| id.load(Ordering::Acquire)).filter(|id| *id != 0);
        // The kernel numbers questions in sequence. Answers that no call waits for are refused.
        known.chain((1..=UNWRITTEN).map(move |n| last.wrapping_add(n)))
    }

    /// Questions of calls that wait on swapped sockets.
    fn on_swapped(&self) -> impl Iterator<Item = u64> {
        let places = (0..WAITS_MAX).filter(|place| self.get(SWAPPED + place) != 0);
        places.map(|place| self.get(place)).filter(|id| *id != 0)
    }

    /// The answer for the call during which the supervisor died: its id and errno; `None` if the
    /// kernel can do the call itself. Makes its socket block again.
    fn half_done(&self) -> Option<(u64, i32)> {
        let id = Some(self.get(NOW)).filter(|id| *id != 0)?;
        let target = Target::open(self.get(THREAD) as u32).ok()?;
        let held = target.descriptor(self.get(SOCKET) as i32).ok()?;
        if self.get(UNBLOCKED) != 0 {
            let _ = rustix::io::ioctl_fionbio(&held, false);
        }
        let blocks = socket::blocks(&held).ok()?;
        // A swapped socket will report a reset.
        let (number, name) = (self.get(CALL) as c_long, swapped(&held));
        let is_swapped = name.is_some();
        if self.get(ELSEWHERE) != 0 && !is_swapped {
            let _ = rustix::net::connect_unspec(&held);
            return None;
        }
        let connected = is_swapped || socket::is_established(&held);
        let begun = connected || socket::is_connecting(&held);
        match number == libc::SYS_connect {
            // The socket was swapped before it was connected.
            true if blocks && name.is_some_and(|name| name.was_connecting) => Some((id, libc::ECONNRESET)),
            true if blocks && connected => Some((id, 0)),
            true if !blocks && begun => Some((id, libc::EINPROGRESS)),
            _ => (is_swapped && is_foreign(number)).then_some((id, libc::ECONNRESET)),
        }
    }
}

/// The supervisor's side of the watchdog. Dropping it, which the kernel does if the supervisor
/// dies, wakes the watchdog.
pub(crate) struct Watchdog {
    _alive: OwnedFd,
    pub(super) open: Open,
}

impl Watchdog {
    /// Call while there is only one thread. The listener arrives on `to`.
    pub(crate) fn start(to: &OwnedFd) -> std::io::Result<Self> {
        let (watched, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let open = Open { ids: sys::shared_numbers()? };
        if process::fork()?.is_none() {
            drop(alive);
            process::close_all_but(&[to.as_raw_fd(), watched.as_raw_fd()]);
            // A reader of the program's output must not wait for this process.
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
    // Nothing is ever written; the read returns when the supervisor ends.
    while rustix::io::read(alive, &mut [0]) == Err(rustix::io::Errno::INTR) {}
    let_go_on(&listener, open);
}

/// Calls that are asked about and that the kernel would refuse or misinterpret on a unix socket: a
/// second `connect`, sending to an address, and receiving without a buffer or from the error queue.
fn is_foreign(number: c_long) -> bool {
    [libc::SYS_connect, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_recvmsg].contains(&number)
}

/// Whether this question is about such a call on a swapped socket.
fn is_refused(question: &libc::seccomp_notif) -> bool {
    let number: c_long = question.data.nr.into();
    let held = || Target::open(question.pid)?.descriptor(question.data.args[0] as i32);
    is_foreign(number) && held().is_ok_and(|held| swapped(&held).is_some())
}

/// Answers all open and future questions, until no process is under the filter.
pub(super) fn let_go_on(listener: &OwnedFd, open: &Open) {
    let go_on = |id| drop(sys::respond(listener.as_fd(), id, 0, 0, true));
    let reset = |id| drop(sys::respond(listener.as_fd(), id, 0, libc::ECONNRESET, false));
    if let Some((id, error)) = open.half_done() {
        let _ = sys::respond(listener.as_fd(), id, 0, error, false);
    }
    open.on_swapped().for_each(reset);
    // A second answer to the same question has no effect.
    open.all().for_each(go_on);
    loop {
        let mut look = [PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut look, None);
        let happened = look[0].revents();
        if happened.contains(PollFlags::IN) {
            if let Ok(question) = sys::receive(listener.as_fd()) {
                if is_refused(&question) { reset(question.id) } else { go_on(question.id) }
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
        open.begins(7, 1, 3, libc::SYS_accept);
        open.waits(3, 7, false);
        open.ends();
        open.begins(8, 1, 3, libc::SYS_accept);
        open.ends();
        open.begins(9, 1, 3, libc::SYS_accept);
        assert_eq!(open.all().collect::<Vec<_>>(), [7, 9, 10, 11, 12, 13]);
        open.ends();
        // A waiting call is continued.
        open.begins(7, 1, 3, libc::SYS_accept);
        open.waits_no_more(3);
        assert_eq!(open.all().collect::<Vec<_>>(), [7, 10, 11, 12, 13]);
        open.ends();
        assert_eq!(open.all().collect::<Vec<_>>(), [10, 11, 12, 13]);
    }

    #[test]
    fn what_waits_on_a_swapped_socket_is_known_as_such() {
        let open = Open { ids: sys::shared_numbers().unwrap() };
        open.waits(0, 5, true);
        open.waits(1, 6, false);
        open.waits(WAITS_MAX - 1, 7, true);
        assert_eq!(open.on_swapped().collect::<Vec<_>>(), [5, 7]);
        open.waits_no_more(0);
        open.waits(WAITS_MAX - 1, 8, false);
        assert_eq!(open.on_swapped().count(), 0);
    }
}
