//! One connection: moves bytes both ways between the program's unix socket and the TCP socket,
//! plain or in frames.
//!
//! `program` is the supervisor's end of the socket pair whose other end the program has; `network`
//! is the TCP socket. One byte that was already passed on, the *poison*, always stays unread in
//! `program`: when that end closes for any reason, the kernel tells the program ECONNRESET. Only an
//! orderly end takes the poison out first and gives the program an end of stream. So the program
//! never mistakes a dead supervisor for a peer that has finished.
//!
//! `negotiation` tells where plain bytes end and frames begin; `up` and `down` carry both.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt;

use super::dialing::Dialing;
use super::held::Held;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::shared::PumpContext;
use super::stall::Stall;
use super::sys;
use super::wire::{RawAddress, Request};

mod connecting;
mod downward;
mod ends;
mod stalled;
mod switching;
mod upward;
mod urgent;

use connecting::Phase;
use ends::Ending;
use switching::{Negotiation, negotiate};
use urgent::{UrgentDown, UrgentUp};

/// Bytes that one connection may move before others get their turn.
const TURN: u64 = 1 << 20;
/// Minimum that one step counts towards `TURN`, to cover its system calls: a peer could send an
/// endless run of frames without content.
const STEP: u64 = 4 << 10;

/// Next action of the pump for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing until something happens.
    Wait,
    /// Its turn is over, but it has more to do.
    Again,
    /// The connection is over; the error is the one that the program is told.
    Over(Option<Errno>),
}

pub(crate) struct Connection {
    pub id: u64,
    /// Number by which workers refer to it: programs choose ids, and an id may repeat.
    pub serial: u64,
    /// The TCP socket, and the answers about it that need no pump.
    pub held: Arc<Held>,
    pub network: Arc<OwnedFd>,
    pub program: OwnedFd,
    origin: Origin,
    phase: Phase,
    negotiation: Negotiation,
    up: Outgoing,
    down: Incoming,
    program_end: ProgramEnd,
    /// The TCP socket reported that the peer finished or that the connection broke.
    network_ended: bool,
    /// The program's end has as much room as the kernel allows, for the last bytes.
    has_last_room: bool,
    urgent_up: Option<UrgentUp>,
    urgent_down: UrgentDown,
    ending: Ending,
    /// The program's bytes wait for the peer's reader.
    stall: Option<Stall>,
}

/// What is known of a connection from its beginning on.
struct Origin {
    peer: RawAddress,
    accepted: bool,
    same_host: bool,
    begun_ns: u64,
}

/// What the program has done with its end. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProgramEnd {
    Open,
    /// It has shut down writing or closed its end (RDHUP).
    Finished,
    /// It has closed its end or shut it down both ways.
    Gone,
    /// It has closed with bytes unread.
    Aborted,
}

impl Connection {
    pub(crate) fn new(request: &Request, held: Arc<Held>, program: OwnedFd, context: &mut PumpContext) -> Self {
        let network = Arc::clone(&held.network);
        // Without O_ASYNC: the program's own end sends it signals; this socket would send one when
        // that end is closed.
        let _ = rustix::fs::fcntl_setfl(&network, rustix::fs::OFlags::NONBLOCK);
        let _ = rustix::io::ioctl_fionbio(&program, true);
        // A low-water mark would hold back the last bytes of a message; the program's own end keeps
        // the mark.
        let _ = sys::set_option(&network, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32.to_ne_bytes());
        // So an urgent byte is read at its position, whatever the program wants; its own end has
        // its setting.
        let _ = sockopt::set_socket_oobinline(&network, true);
        let (negotiation, same_host) = negotiate(request, &network, context);
        let (peer, accepted, begun_ns) = (request.peer, request.accepted, context.now_ns());
        let mut connection = Self {
            id: request.id,
            serial: context.next_serial(),
            held,
            network,
            program,
            origin: Origin { peer, accepted, same_host, begun_ns },
            phase: Phase::of(request, context),
            negotiation,
            up: Outgoing::new(),
            down: Incoming::new(),
            program_end: ProgramEnd::Open,
            network_ended: false,
            has_last_room: false,
            urgent_up: None,
            urgent_down: UrgentDown::Nothing,
            ending: Ending::Open,
            stall: None,
        };
        connection.after_flow(context);
        connection
    }

    /// True if the connection was established, not only attempted.
    pub(crate) fn came_up(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }

    fn program_is_gone(&self) -> bool {
        self.program_end >= ProgramEnd::Gone
    }

    /// Bytes of the program passed on so far, up and down.
    pub(crate) fn passed(&self) -> (u64, u64) {
        (self.up.bytes, self.down.bytes)
    }

    /// Whether the pump is to watch `program` for room to write.
    pub(crate) fn wants_room(&self) -> bool {
        self.down.is_blocked() || matches!(self.urgent_down, UrgentDown::Held(_))
    }

    /// Bytes of the program that the peer's kernel has not confirmed.
    pub(crate) fn out_queue(&self) -> usize {
        let unread = if self.came_up() { ioctl_fionread(&self.program).unwrap_or(0).saturating_sub(1) } else { 0 };
        // Before the program's first byte the queue can only hold our marker.
        let passed = if self.up.bytes > 0 { self.up.held() + sys::unconfirmed(&self.network) } else { 0 };
        unread as usize + passed
    }

    pub(crate) fn program_happened(&mut self, events: EventFlags) {
        self.up.readable = true;
        // Once we have shut it down for writing, HUP only means that the program has finished too.
        let gone = events.contains(EventFlags::HUP) && !self.down.is_shut();
        let seen = if events.contains(EventFlags::ERR) {
            ProgramEnd::Aborted
        } else if gone {
            ProgramEnd::Gone
        } else if events.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            ProgramEnd::Finished
        } else {
            ProgramEnd::Open
        };
        self.program_end = self.program_end.max(seen);
    }

    /// Notes an error of the program's end. The kernel tells only once that the program closed with bytes unread: a
    /// call that learns of it takes it from the events.
    fn note_reset(&mut self, error: Errno) {
        if error == Errno::CONNRESET {
            self.program_end = ProgramEnd::Aborted;
        }
    }

    pub(crate) fn network_happened(&mut self, events: EventFlags) {
        if events.intersects(EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.down.readable |= self.refused().is_none();
        }
        if events.contains(EventFlags::PRI) && self.urgent_down == UrgentDown::Nothing {
            self.urgent_down = UrgentDown::Coming;
        }
        self.network_ended |= events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if !self.came_up() {
            return;
        }
        if events.intersects(EventFlags::ERR | EventFlags::HUP) && self.ending.error().is_none() {
            match sockopt::socket_error(&self.network) {
                // Asked for here because a read may not come: there is none after the end of the
                // stream, nor while the program reads nothing. What came before is still read.
                Ok(Err(e)) => self.break_off(e),
                // Both halves are closed although the program's half is not: the peer is gone.
                // Before the end of the stream a read finds that in order.
                _ if self.down.has_ended() && !self.up.is_shut() && events.contains(EventFlags::HUP) => {
                    self.break_off(Errno::PIPE);
                }
                _ => {}
            }
        }
    }

    // --- workers and time ---

    pub(crate) fn encoded(&mut self, done: narrows::sender::Done, context: &mut PumpContext) {
        self.up.encoded(done, self.serial, context);
    }

    pub(crate) fn decoded(&mut self, done: narrows::receiver::DecodeDone, context: &mut PumpContext) {
        if let Err(e) = self.down.decoded(done, self.serial, context) {
            self.refuse(&e);
        }
    }

    /// A worker panicked.
    pub(crate) fn failed(&mut self) {
        self.refuse(&narrows::Error::misuse("a worker failed; this is a bug"));
    }

    /// The time at which [`Connection::on_time`] is due.
    pub(crate) fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let leaving = matches!(self.ending, Ending::Leaving(_)).then_some(now_ns + ends::LOOK_EVERY_NS);
        let flow = self.negotiation.flow.next_wakeup_ns().filter(|_| self.ending.error().is_none());
        let dialing = self.dialing().map(Dialing::deadline_ns);
        let broken = self.broken_wakeup_ns(now_ns);
        let stall = self.stall.as_ref().map(Stall::next_wakeup_ns);
        [
            self.up.report_ns(),
            stall,
            flow,
            self.up.next_wakeup_ns(now_ns),
            self.down.next_wakeup_ns(now_ns),
            leaving,
            dialing,
            broken,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(crate) fn on_time(&mut self, context: &mut PumpContext) {
        let now_ns = context.now_ns();
        if self.negotiation.flow.next_wakeup_ns().is_some_and(|at| at <= now_ns) {
            match self.negotiation.flow.on_time(now_ns) {
                Ok(released) => self.pass_down(&released),
                Err(e) => self.refuse(&e),
            }
            self.after_flow(context);
        }
        if self.up.next_wakeup_ns(0).is_some_and(|at| at <= now_ns) {
            self.up.on_time(&self.network, self.serial, context);
        }
        self.stall_on_time(context);
        if self.down.keeps_others_waiting(now_ns) {
            self.refuse(&narrows::Error::limit(
                "its program reads nothing, and the memory of all connections is used up",
            ));
            self.down.give_up(context);
        }
        self.down.count();
    }

    // --- bytes ---

    /// Moves bytes until nothing moves or the turn is over.
    pub(crate) fn advance(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> Next {
        if let Some(next) = self.finish_connecting(scratch, context) {
            return next;
        }
        // Bytes from the network count too: those that are discarded, or hold no content, also take
        // time.
        let moved_so_far = |c: &Self| c.up.bytes + c.down.bytes + c.down.wire_bytes();
        let begun = moved_so_far(self);
        let mut steps = 0;
        loop {
            steps += 1;
            self.up.hears = self.hears();
            let moved = self.step_up(scratch, context) | self.step_down(scratch, context);
            self.up.hear(self.down.told(), context);
            self.tell_delivered(context);
            self.up.count(self.down.plain_waiting());
            self.down.count();
            if self.is_encrypted() {
                self.up.give_up_compressing();
            }
            if let Some(over) = self.over(context.now_ns()) {
                return over;
            }
            if !moved {
                self.note_stall(context);
                return Next::Wait;
            }
            if moved_so_far(self) - begun + steps * STEP >= TURN {
                return Next::Again;
            }
        }
    }
}
