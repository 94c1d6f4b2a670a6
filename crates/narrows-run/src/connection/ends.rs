//! Connection ends: maps every end and failure on one side to what the other side sees.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, Shutdown, connect_unspec, shutdown, sockopt};

use super::{Connection, Next, ProgramEnd};
use crate::socket::read;
use crate::sys;

/// Polling interval for a socket that cannot be closed yet: no event tells that the peer has
/// confirmed everything.
pub(super) const LOOK_EVERY_NS: u64 = 10_000_000;
/// Longest wait for a peer's marker. It comes a round trip after ours, and only the supervisor
/// waits for it.
const MARKER_MAX_NS: u64 = 2_000_000_000;
/// When a program closes with bytes unread, blocks that are with workers may still be sent for this
/// long: far more than they need, and nobody waits for it.
const ABORT_MAX_NS: u64 = 1_000_000_000;
/// A peer that confirms nothing for this long is given up, as the kernel does for sockets that a
/// program has closed.
const UNCONFIRMED_MAX_NS: u64 = 120_000_000_000;

/// The kernel puts a long write into a unix socket in parts of at least this many bytes. A write
/// that waits for room has at least one part in the queue.
const WRITE_PART: u64 = 16 << 10;
/// Time after which a write that was made to fail has returned, unless the machine is badly
/// overloaded.
const WRITE_RETURNS_NS: u64 = 50_000_000;
/// The program's unsent bytes are dropped in pieces of this size.
const DROPPED: usize = 4 << 10;

/// The connection broke, and the program's end has no room for what came before: a program that
/// reads nothing for this long is told of the error without those bytes. It may wait for nothing
/// but the error, which the kernel reports only when our end closes. Programs that read slowly take
/// something more often than that.
const UNREAD_MAX_NS: u64 = 2_000_000_000;
/// Polling interval for what it reads: no event tells that before a good part of it is gone.
const UNREAD_EVERY_NS: u64 = UNREAD_MAX_NS / 10;
/// Send buffer of the supervisor's end once the peer has finished or is gone: about what TCP holds for
/// a program that reads nothing. The kernel allows less (`net.core.wmem_max`), and takes what it
/// allows. Data that shrank cost its sender little, and must not cost this host much.
const LAST_BUFFER: usize = 8 << 20;
const LAST_BUFFER_SHRUNK: usize = 1 << 20;

/// How far a connection is on the way to its end.
pub(super) enum Ending {
    /// It is not.
    Open,
    /// The program needs nothing more, but the socket cannot be closed yet.
    Leaving(Leaving),
    Broken(Broken),
}

/// State of a connection whose program is gone.
pub(super) struct Leaving {
    since_ns: u64,
    unconfirmed: usize,
    changed_ns: u64,
}

/// State of a connection that ends with an error.
pub(super) struct Broken {
    cause: Cause,
    /// The program's writes fail with EPIPE: the time by which the last pending write has returned.
    writes_end_ns: Option<u64>,
    /// What the kernel holds for the program, and the time since when that has not changed.
    unread: Option<(usize, u64)>,
}

impl Broken {
    fn by(cause: Cause) -> Self {
        Self { cause, writes_end_ns: None, unread: None }
    }

    /// Whether the program has read nothing for long. `unread`: what the kernel holds for it.
    fn is_left_unread(&mut self, now_ns: u64, unread: usize) -> bool {
        match self.unread {
            Some((before, since_ns)) if before == unread => now_ns - since_ns >= UNREAD_MAX_NS,
            _ => {
                self.unread = Some((unread, now_ns));
                false
            }
        }
    }
}

enum Cause {
    /// The TCP connection broke; bytes already in its receive queue still go to the program.
    Network(Errno),
    /// The peer sent invalid data and gets a reset; the text says what was wrong.
    Refused(String),
}

impl Ending {
    /// The error of a broken connection.
    pub(super) fn error(&self) -> Option<Errno> {
        match self {
            Self::Broken(Broken { cause: Cause::Network(error), .. }) => Some(*error),
            Self::Broken(Broken { cause: Cause::Refused(_), .. }) => Some(Errno::CONNRESET),
            Self::Open | Self::Leaving(_) => None,
        }
    }

    /// Why the peer gets a reset, if its data was invalid.
    pub(super) fn refused(&self) -> Option<&str> {
        match self {
            Self::Broken(Broken { cause: Cause::Refused(why), .. }) => Some(why),
            _ => None,
        }
    }

    /// The connection broke. The first error counts.
    pub(super) fn break_by(&mut self, error: Errno) {
        if self.error().is_none() {
            *self = Self::Broken(Broken::by(Cause::Network(error)));
        }
    }

    /// The peer's data is invalid. This overrides an error of the network: it is not an orderly end.
    fn refuse(&mut self, why: String) {
        match self {
            Self::Broken(Broken { cause: Cause::Refused(_), .. }) => {}
            Self::Broken(broken) => broken.cause = Cause::Refused(why),
            Self::Open | Self::Leaving(_) => *self = Self::Broken(Broken::by(Cause::Refused(why))),
        }
    }

    /// Begins to leave at that time, if it has not begun. `None` if the connection is broken.
    fn leave(&mut self, now_ns: u64, unconfirmed: usize) -> Option<&mut Leaving> {
        if matches!(self, Self::Open) {
            *self = Self::Leaving(Leaving { since_ns: now_ns, unconfirmed, changed_ns: now_ns });
        }
        match self {
            Self::Leaving(leaving) => Some(leaving),
            Self::Open | Self::Broken(_) => None,
        }
    }
}

impl Connection {
    /// Marks the sending side as broken. Bytes that already came from the network still go to the
    /// program.
    pub(super) fn break_off(&mut self, error: Errno) {
        self.ending.break_by(error);
        self.up.discard();
        self.down.readable = true;
    }

    /// Handles invalid data from the peer: resets the peer at once, and the program after it has
    /// read what came before.
    pub(super) fn refuse(&mut self, error: &narrows::Error) {
        self.ending.refuse(error.to_string());
        self.break_off(Errno::CONNRESET);
        self.down.fail();
        // Disconnects instead of closing: another process that holds the socket could delay a
        // close, and some requests are still answered from it.
        let _ = connect_unspec(&self.network);
        // The program's writes go nowhere, so they fail instead of waiting for room.
        let _ = shutdown(&self.program, Shutdown::Read);
    }

    pub(super) fn over(&mut self, now_ns: u64) -> Option<Next> {
        if let Some(error) = self.ending.error() {
            if self.program_is_gone() && self.up.is_shut() {
                return Some(Next::Over(None));
            }
            // EPIPE means that the peer had finished and then refused our bytes. The program then
            // gets EPIPE, as from TCP.
            let told = (error != Errno::PIPE).then_some(error);
            let written = self.has_no_write(now_ns, told);
            if self.program_is_gone() || self.is_delivered() && written {
                return Some(Next::Over(told));
            }
            // What came last is lost, so the end is not an orderly one, whatever the error.
            let unread = self.is_left_unread(now_ns) && written;
            return unread.then_some(Next::Over(told.or(Some(Errno::CONNRESET))));
        }
        // Bytes that the peer's socket has no room for are lost with the reset, as with TCP.
        if self.program_end == ProgramEnd::Aborted {
            let passed_on = if self.up.is_framed() { self.up.is_shut() } else { !self.up.readable };
            let stuck = self.up.is_stuck() || self.up.is_held_by_reader() && !self.up.is_encoding();
            return (passed_on || stuck || self.is_late(now_ns)).then_some(Next::Over(None));
        }
        let finished = self.up.is_shut() && (self.down.is_shut() || self.program_is_gone() && self.may_leave(now_ns));
        finished.then_some(Next::Over(None))
    }

    /// Whether the program has everything that came from the network.
    fn is_delivered(&self) -> bool {
        self.down.has_ended() && !self.down.is_pending()
    }

    /// Whether no write of the program waits for room in a broken connection. If the program's end
    /// closed during such a write, the write would consume the reset: the kernel reports an error
    /// to one call only, that call returns the number of bytes written before, and a reader would
    /// see an end of stream. So a pending write is first made to fail with EPIPE. That way it also
    /// need not wait until somebody has read.
    ///
    /// The bytes in the program's end go nowhere, and are dropped for the same reason: a program
    /// that waits for room there is to write, and learn of the error. `told`: the error for it.
    fn has_no_write(&mut self, now_ns: u64, told: Option<Errno>) -> bool {
        let Ending::Broken(broken) = &mut self.ending else { return true };
        if broken.writes_end_ns.is_none()
            && (self.down.is_blocked() || ioctl_fionread(&self.program).is_ok_and(|unread| unread >= WRITE_PART))
        {
            // Before the first write can fail, and its program ask for the error.
            self.held.broke(told);
            let _ = shutdown(&self.program, Shutdown::Read);
            drop_written(&self.program);
            broken.writes_end_ns = Some(now_ns + WRITE_RETURNS_NS);
        }
        broken.writes_end_ns.is_none_or(|at| now_ns >= at)
    }

    /// Whether the program reads nothing of what came before the connection broke.
    fn is_left_unread(&mut self, now_ns: u64) -> bool {
        let Ending::Broken(broken) = &mut self.ending else { return false };
        if !self.down.is_blocked() {
            broken.unread = None;
            return false;
        }
        broken.is_left_unread(now_ns, sys::unconfirmed(&self.program))
    }

    /// Makes more room in the program's end, once, for the last bytes of a peer that has finished
    /// or is gone. Nothing more comes, so nothing has to be held back; and the program learns of
    /// the end only when all of it is there. True if that was done now.
    pub(super) fn make_last_room(&mut self) -> bool {
        if !self.network_ended || std::mem::replace(&mut self.has_last_room, true) {
            return false;
        }
        let shrank = self.down.bytes / 2 > self.down.wire_bytes();
        let len = if shrank { LAST_BUFFER_SHRUNK } else { LAST_BUFFER };
        sockopt::set_socket_send_buffer_size(&self.program, len).is_ok()
    }

    /// The time at which a broken connection is over if it waits for nothing else, or at which to
    /// look what the program has read.
    pub(super) fn broken_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let Ending::Broken(broken) = &self.ending else { return None };
        let look_ns = || self.down.is_blocked().then_some(now_ns + UNREAD_EVERY_NS);
        if self.is_delivered() { broken.writes_end_ns } else { look_ns() }
    }

    /// Whether workers have had enough time for what the program wrote before it closed with bytes
    /// unread.
    fn is_late(&mut self, now_ns: u64) -> bool {
        self.ending.leave(now_ns, 0).is_none_or(|leaving| now_ns - leaving.since_ns >= ABORT_MAX_NS)
    }

    /// Whether the socket of a program that is gone may be closed; everything was handed to the
    /// network. A closed socket answers arriving bytes with a reset, which also destroys what the
    /// peer has not received yet. Where an upgrade was agreed, the peer does send something that no
    /// program wrote: its marker. So the socket stays open until the peer has confirmed everything
    /// and its marker has arrived.
    fn may_leave(&mut self, now_ns: u64) -> bool {
        let framed = self.up.is_framed() || self.negotiation.flow.expects_more();
        if !framed || self.resets_at_close() {
            return true;
        }
        let unconfirmed = sys::unconfirmed(&self.network);
        let Some(leaving) = self.ending.leave(now_ns, unconfirmed) else { return true };
        if unconfirmed != leaving.unconfirmed {
            (leaving.unconfirmed, leaving.changed_ns) = (unconfirmed, now_ns);
        }
        if unconfirmed > 0 {
            return now_ns - leaving.changed_ns >= UNCONFIRMED_MAX_NS;
        }
        self.down.has_preface() || now_ns - leaving.since_ns >= MARKER_MAX_NS
    }

    /// Whether the program asked for a reset: SO_LINGER with zero time.
    pub(super) fn resets_at_close(&self) -> bool {
        self.held.linger() == Some(Duration::ZERO)
    }

    /// Whether the peer gets a reset whatever the program asked for.
    pub(super) fn resets(&self) -> bool {
        self.program_end == ProgramEnd::Aborted || self.refused().is_some()
    }

    /// Closes both sockets so that program and peer see the right end. The TCP socket is given back
    /// if nothing was ever connected.
    pub(crate) fn close(self, error: Option<Errno>) -> Option<Arc<OwnedFd>> {
        if error.is_none() {
            // An orderly end: with the poison taken out, the program sees an end of stream and no
            // error.
            let mut poison = [0; 2];
            let _ = read(&self.program, &mut poison, RecvFlags::empty());
        }
        let resets = self.resets() || self.resets_at_close();
        let (connecting, dialing) = (!self.came_up(), self.dialing().is_some());
        if connecting {
            self.held.give_options_back();
        }
        drop(self.program);
        if connecting && !dialing {
            let _ = sockopt::set_socket_linger(&self.network, self.held.linger());
            return error.is_some().then_some(self.network);
        }
        if !resets {
            let _ = sockopt::set_socket_linger(&self.network, None);
        }
        None
    }
}

/// Drops what the program has written, all but the poison. Its end must be shut down for writing:
/// then nothing is added meanwhile.
fn drop_written(program: &OwnedFd) {
    let mut dropped = [0; DROPPED];
    loop {
        let written = ioctl_fionread(program).unwrap_or(0) as usize;
        let len = written.saturating_sub(1).min(dropped.len());
        if len == 0 || !read(program, &mut dropped[..len], RecvFlags::empty()).is_ok_and(|n| n > 0) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_counts_and_a_refusal_overrides_it() {
        let mut ending = Ending::Open;
        assert_eq!(ending.leave(5, 7).map(|leaving| leaving.since_ns), Some(5));
        assert_eq!(ending.leave(9, 3).map(|leaving| (leaving.since_ns, leaving.unconfirmed)), Some((5, 7)));
        assert_eq!((ending.error(), ending.refused()), (None, None));
        ending.break_by(Errno::PIPE);
        ending.break_by(Errno::TIMEDOUT);
        assert_eq!((ending.error(), ending.refused()), (Some(Errno::PIPE), None));
        assert!(ending.leave(9, 0).is_none());
        if let Ending::Broken(broken) = &mut ending {
            broken.writes_end_ns = Some(11);
        }
        ending.refuse("no frame".into());
        ending.refuse("no frame again".into());
        ending.break_by(Errno::TIMEDOUT);
        assert_eq!((ending.error(), ending.refused()), (Some(Errno::CONNRESET), Some("no frame")));
        assert!(matches!(ending, Ending::Broken(Broken { writes_end_ns: Some(11), .. })));
    }
}
