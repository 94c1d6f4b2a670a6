//! What answers when the supervisor is dead: "go on as if you had not asked". Only where the socket is swapped already a
//! call that the kernel cannot do on it, or would do otherwise, is told of the reset.
//!
//! A process of its own, forked from the supervisor before that has threads. It holds the listener, without which every
//! call that the kernel asks about would fail, and wakes only when the supervisor is gone.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_long;
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
/// Of the call that is being answered: its thread, its socket, its number and what was done to the socket.
const THREAD: usize = WAITS_MAX + 2;
const SOCKET: usize = WAITS_MAX + 3;
const CALL: usize = WAITS_MAX + 4;
const UNBLOCKED: usize = WAITS_MAX + 5;
const ELSEWHERE: usize = WAITS_MAX + 6;
/// For each place whether what waits there does so on a swapped socket.
const SWAPPED: usize = WAITS_MAX + 7;
const NUMBERS: usize = SWAPPED + WAITS_MAX;
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
    pub(super) fn begins(&self, id: u64, thread: u32, socket: i32, number: c_long) {
        self.set(THREAD, thread.into());
        self.set(SOCKET, socket as u64);
        self.set(CALL, number as u64);
        self.set(ELSEWHERE, 0);
        self.set(NOW, id);
        self.set(LAST, self.get(LAST).max(id));
    }

    /// It waits, in that place; `on_swapped` is of its socket.
    pub(super) fn waits(&self, place: usize, id: u64, on_swapped: bool) {
        let place = place.min(WAITS_MAX - 1);
        self.set(SWAPPED + place, on_swapped.into());
        self.set(place, id);
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

    /// The socket of the call is connected to another address than the program said, or is not any more.
    pub(super) fn elsewhere(&self, is: bool) {
        self.set(ELSEWHERE, is.into());
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let last = self.get(LAST);
        let known = self.ids[..LAST].iter().map(|id| id.load(Ordering::Acquire)).filter(|id| *id != 0);
        // The kernel counts. What nobody waits for is refused.
        known.chain((1..=UNWRITTEN).map(move |n| last.wrapping_add(n)))
    }

    /// Those that wait on swapped sockets.
    fn on_swapped(&self) -> impl Iterator<Item = u64> {
        let places = (0..WAITS_MAX).filter(|place| self.get(SWAPPED + place) != 0);
        places.map(|place| self.get(place)).filter(|id| *id != 0)
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
        let (number, name) = (self.get(CALL) as c_long, swapped(&held));
        let is_swapped = name.is_some();
        if self.get(ELSEWHERE) != 0 && !is_swapped {
            let _ = rustix::net::connect_unspec(&held);
            return None;
        }
        let connected = is_swapped || socket::is_established(&held);
        let begun = connected || socket::is_connecting(&held);
        match number == libc::SYS_connect {
            // Swapped before it was complete.
            true if blocks && name.is_some_and(|name| name.was_connecting) => Some((id, libc::ECONNRESET)),
            true if blocks && connected => Some((id, 0)),
            true if !blocks && begun => Some((id, libc::EINPROGRESS)),
            _ => (is_swapped && is_foreign(number)).then_some((id, libc::ECONNRESET)),
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

/// Calls that are asked about and that the kernel would refuse on a unix socket, or take for others: a second `connect`, and
/// what is received into no buffer or from a queue of errors.
fn is_foreign(number: c_long) -> bool {
    [libc::SYS_connect, libc::SYS_recvfrom, libc::SYS_recvmsg].contains(&number)
}

/// Whether this call is one of those, on a swapped socket.
fn is_refused(question: &libc::seccomp_notif) -> bool {
    let number: c_long = question.data.nr.into();
    let held = || Target::open(question.pid)?.descriptor(question.data.args[0] as i32);
    is_foreign(number) && held().is_ok_and(|held| swapped(&held).is_some())
}

/// Answers everything that was and will be asked, until nobody is under the filter any more.
pub(super) fn let_go_on(listener: &OwnedFd, open: &Open) {
    let go_on = |id| drop(sys::respond(listener.as_fd(), id, 0, 0, true));
    let reset = |id| drop(sys::respond(listener.as_fd(), id, 0, libc::ECONNRESET, false));
    if let Some((id, error)) = open.half_done() {
        let _ = sys::respond(listener.as_fd(), id, 0, error, false);
    }
    open.on_swapped().for_each(reset);
    // What is answered has no second answer.
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
        // What waited is taken up again.
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
