//! How a connection ends: what every end and failure of one side means for the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, Shutdown, connect_unspec, shutdown, sockopt};

use super::{Connection, Next};
use crate::run::socket::read;
use crate::run::sys;

/// How often a socket that cannot be closed yet is looked at: nothing tells when the peer has confirmed everything.
pub(super) const LOOK_EVERY_NS: u64 = 10_000_000;
/// A peer's marker is waited for so long: it comes a round trip behind ours, and nobody waits for it but the supervisor.
const MARKER_MAX_NS: u64 = 2_000_000_000;
/// What is with workers when a program closes with bytes unread still leaves within so long: far more than they need, and
/// nobody waits for it.
const ABORT_MAX_NS: u64 = 1_000_000_000;
/// A peer that confirms nothing for so long is given up, as the kernel does with what a program has closed.
const UNCONFIRMED_MAX_NS: u64 = 120_000_000_000;

/// The kernel puts a long write into a unix socket by parts of at least so much. A write that waits has one there.
const WRITE_PART: u64 = 16 << 10;
/// A write that was told to end has returned so much later, unless the machine has far too much to do.
const WRITE_RETURNS_NS: u64 = 50_000_000;

/// A connection whose program is gone.
pub(super) struct Leaving {
    since_ns: u64,
    unconfirmed: usize,
    changed_ns: u64,
}

impl Connection {
    /// The network takes nothing any more. What came from it is still for the program.
    pub(super) fn break_off(&mut self, error: Errno) {
        self.broken.get_or_insert(error);
        (self.up.discards, self.up.readable, self.up.ended) = (true, false, true);
        self.down.readable = true;
    }

    /// What came makes no sense: a reset for the peer at once, and for the program when it has read what came before.
    pub(super) fn refuse(&mut self, error: &narrows::Error) {
        self.refused.get_or_insert_with(|| error.to_string());
        // Whatever else is known of the connection, this is no end in order.
        self.broken = Some(Errno::CONNRESET);
        self.break_off(Errno::CONNRESET);
        self.down.fail();
        // Not by closing it, which others could hold up that have the socket too, and some asks are still answered from it.
        let _ = connect_unspec(&self.network);
        // What the program writes goes nowhere: it gets an error, and does not wait for room.
        let _ = shutdown(&self.program, Shutdown::Read);
    }

    pub(super) fn over(&mut self, now_ns: u64) -> Option<Next> {
        if let Some(error) = self.broken {
            if self.program_gone && self.up.shut {
                return Some(Next::Over(None));
            }
            // A peer that had finished and then refused what we sent: the program gets EPIPE, as from TCP.
            let told = (error != Errno::PIPE).then_some(error);
            let written = self.has_no_write(now_ns);
            let over = self.program_gone || self.is_delivered() && written;
            return over.then_some(Next::Over(told));
        }
        // What the peer's socket has no room for is lost with a reset, as from TCP.
        if self.aborted {
            let passed_on = if self.up.is_framed() { self.up.shut } else { !self.up.readable };
            return (passed_on || self.up.is_stuck() || self.is_late(now_ns)).then_some(Next::Over(None));
        }
        let finished = self.up.shut && (self.down.shut || self.program_gone && self.may_leave(now_ns));
        finished.then_some(Next::Over(None))
    }

    /// All that came from the network is with the program.
    fn is_delivered(&self) -> bool {
        self.down.ended && !self.down.is_pending()
    }

    /// Whether no write of the program waits for room in a connection that is broken. One that did when its end closes would
    /// take the reset with it: the kernel gives an error to one call, and to that one it says how much was written
    /// before; who reads would see an end. So it gets EPIPE first, also for not having to wait until somebody has read.
    fn has_no_write(&mut self, now_ns: u64) -> bool {
        if self.writes_end_ns.is_none()
            && (self.down.is_blocked() || ioctl_fionread(&self.program).is_ok_and(|unread| unread >= WRITE_PART))
        {
            let _ = shutdown(&self.program, Shutdown::Read);
            self.writes_end_ns = Some(now_ns + WRITE_RETURNS_NS);
        }
        self.writes_end_ns.is_none_or(|at| now_ns >= at)
    }

    /// When a broken connection is over that waits for nothing else.
    pub(super) fn broken_wakeup_ns(&self) -> Option<u64> {
        self.writes_end_ns.filter(|_| self.is_delivered())
    }

    /// Whether workers had time enough for what the program wrote before its close resets the connection.
    fn is_late(&mut self, now_ns: u64) -> bool {
        let leaving = self.leaving.get_or_insert(Leaving { since_ns: now_ns, unconfirmed: 0, changed_ns: now_ns });
        now_ns - leaving.since_ns >= ABORT_MAX_NS
    }

    /// The program is gone and everything was handed to the network. A socket that is closed answers what still comes with
    /// a reset, which takes along what the peer has not got; and where an upgrade was agreed something comes that no program
    /// wrote. So it is closed when the peer has confirmed everything and its marker is through.
    fn may_leave(&mut self, now_ns: u64) -> bool {
        let framed = self.up.is_framed() || self.flow.expects_more();
        if !framed || self.resets_at_close() {
            return true;
        }
        let unconfirmed = sys::unconfirmed(&self.network);
        let leaving = self.leaving.get_or_insert(Leaving { since_ns: now_ns, unconfirmed, changed_ns: now_ns });
        if unconfirmed != leaving.unconfirmed {
            (leaving.unconfirmed, leaving.changed_ns) = (unconfirmed, now_ns);
        }
        if unconfirmed > 0 {
            return now_ns - leaving.changed_ns >= UNCONFIRMED_MAX_NS;
        }
        self.down.has_preface() || now_ns - leaving.since_ns >= MARKER_MAX_NS
    }

    /// The program asked for it: SO_LINGER with no time.
    pub(super) fn resets_at_close(&self) -> bool {
        self.held.linger() == Some(Duration::ZERO)
    }

    /// The peer is to get a reset, whatever the program asked for.
    pub(super) fn resets(&self) -> bool {
        self.aborted || self.refused.is_some()
    }

    /// Ends it: what the program and the peer see of the end. The TCP socket is given back if nothing was ever
    /// connected.
    pub(crate) fn close(self, error: Option<Errno>) -> Option<Arc<OwnedFd>> {
        if error.is_none() {
            // An end in order: without the poison there is an end of stream and no error.
            let mut poison = [0; 2];
            let _ = read(&self.program, &mut poison, RecvFlags::empty());
        }
        let resets = self.resets() || self.resets_at_close();
        if self.connecting {
            self.held.give_options_back();
        }
        drop(self.program);
        if self.connecting && self.dialing.is_none() {
            let _ = sockopt::set_socket_linger(&self.network, self.held.linger());
            return error.is_some().then_some(self.network);
        }
        if !resets {
            let _ = sockopt::set_socket_linger(&self.network, None);
        }
        None
    }
}
