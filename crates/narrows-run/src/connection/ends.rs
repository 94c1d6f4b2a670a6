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
/// Longest wait for a peer's marker. It comes a round trip behind ours, and only the supervisor
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
            *self = Self::Broken(Broken { cause: Cause::Network(error), writes_end_ns: None });
        }
    }

    /// The peer's data is invalid. This overrides an error of the network: it is not an orderly end.
    fn refuse(&mut self, why: String) {
        match self {
            Self::Broken(Broken { cause: Cause::Refused(_), .. }) => {}
            Self::Broken(broken) => broken.cause = Cause::Refused(why),
            Self::Open | Self::Leaving(_) => {
                *self = Self::Broken(Broken { cause: Cause::Refused(why), writes_end_ns: None });
            }
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
            let written = self.has_no_write(now_ns);
            let over = self.program_is_gone() || self.is_delivered() && written;
            return over.then_some(Next::Over(told));
        }
        // Bytes that the peer's socket has no room for are lost with the reset, as with TCP.
        if self.program_end == ProgramEnd::Aborted {
            let passed_on = if self.up.is_framed() { self.up.is_shut() } else { !self.up.readable };
            return (passed_on || self.up.is_stuck() || self.is_late(now_ns)).then_some(Next::Over(None));
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
    fn has_no_write(&mut self, now_ns: u64) -> bool {
        let Ending::Broken(broken) = &mut self.ending else { return true };
        if broken.writes_end_ns.is_none()
            && (self.down.is_blocked() || ioctl_fionread(&self.program).is_ok_and(|unread| unread >= WRITE_PART))
        {
            let _ = shutdown(&self.program, Shutdown::Read);
            broken.writes_end_ns = Some(now_ns + WRITE_RETURNS_NS);
        }
        broken.writes_end_ns.is_none_or(|at| now_ns >= at)
    }

    /// The time at which a broken connection is over if it waits for nothing else.
    pub(super) fn broken_wakeup_ns(&self) -> Option<u64> {
        let Ending::Broken(broken) = &self.ending else { return None };
        broken.writes_end_ns.filter(|_| self.is_delivered())
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
