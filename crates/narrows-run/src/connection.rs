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

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread, readv};
use rustix::net::{RecvFlags, SendFlags, Shutdown, send, shutdown, sockopt};

use super::dialing::{self, Answer, Dialing};
use super::held::Held;
use super::incoming::{Incoming, Read};
use super::outgoing::Outgoing;
use super::shared::PumpContext;
use super::socket::{peek, read};
use super::sys;
use super::wire::{RawAddress, Request};

mod ends;
mod switching;

use ends::Ending;
use switching::{Negotiation, asked_gateway, negotiate};

/// Bytes peeked at a time. Most messages fit; anything longer counts as bulk.
const PEEK: usize = 4096;
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
    urgent_up: Option<UrgentUp>,
    urgent_down: UrgentDown,
    ending: Ending,
}

/// What is known of a connection from its beginning on.
struct Origin {
    peer: RawAddress,
    accepted: bool,
    same_host: bool,
    begun_ns: u64,
}

enum Phase {
    /// The TCP connection, or the gateway's to the server, is being made.
    Connecting(Connecting),
    Established,
}

struct Connecting {
    /// Bytes that fill the program's end meanwhile.
    fill: usize,
    /// The request to the gateway, while its answer is pending.
    dialing: Option<Dialing>,
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

/// An urgent byte from the program.
#[derive(Clone, Copy)]
struct UrgentUp {
    byte: u8,
    /// The number of bytes that must go up before it.
    at: u64,
}

/// An urgent byte from the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrgentDown {
    Nothing,
    /// It has not been read yet.
    Coming,
    /// It found no room in the program's end.
    Held(u8),
}

impl Connection {
    pub(crate) fn new(request: &Request, held: Arc<Held>, program: OwnedFd, context: &mut PumpContext) -> Self {
        let network = Arc::clone(&held.network);
        let fill = usize::try_from(request.number).unwrap_or(1);
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
        let phase = if fill > 1 {
            Phase::Connecting(Connecting { fill, dialing: asked_gateway(request, context) })
        } else {
            Phase::Established
        };
        let (peer, accepted, begun_ns) = (request.peer, request.accepted, context.now_ns());
        let mut connection = Self {
            id: request.id,
            serial: context.next_serial(),
            held,
            network,
            program,
            origin: Origin { peer, accepted, same_host, begun_ns },
            phase,
            negotiation,
            up: Outgoing::new(),
            down: Incoming::new(),
            program_end: ProgramEnd::Open,
            network_ended: false,
            urgent_up: None,
            urgent_down: UrgentDown::Nothing,
            ending: Ending::Open,
        };
        connection.after_flow(context);
        connection
    }

    /// True if the connection was established, not only attempted.
    pub(crate) fn came_up(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }

    /// The request to the gateway, while its answer is pending.
    fn dialing(&self) -> Option<&Dialing> {
        match &self.phase {
            Phase::Connecting(connecting) => connecting.dialing.as_ref(),
            Phase::Established => None,
        }
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

    /// Queues an urgent byte behind everything that the program has written so far. False if an
    /// earlier one is still under way.
    pub(crate) fn send_urgent(&mut self, byte: u8) -> bool {
        let unread = ioctl_fionread(&self.program).unwrap_or(1).saturating_sub(1);
        if !self.came_up() || self.urgent_up.is_some() {
            return false;
        }
        self.urgent_up = Some(UrgentUp { byte, at: self.up.bytes + unread });
        true
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
        // After the end of the stream reads report no error, so it is asked for here; before, a
        // read finds it in order.
        if self.down.has_ended()
            && events.intersects(EventFlags::ERR | EventFlags::HUP)
            && self.ending.error().is_none()
        {
            match sockopt::socket_error(&self.network) {
                Ok(Err(e)) => self.ending.break_by(e),
                // Both halves are closed although the program's half is not: the peer is gone.
                _ if !self.up.is_shut() && events.contains(EventFlags::HUP) => self.ending.break_by(Errno::PIPE),
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
        let broken = self.broken_wakeup_ns();
        [flow, self.up.next_wakeup_ns(now_ns), self.down.next_wakeup_ns(now_ns), leaving, dialing, broken]
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
            let moved = self.step_up(scratch, context) | self.step_down(scratch, context);
            self.up.count();
            self.down.count();
            if self.is_encrypted() {
                self.up.give_up_compressing(context);
            }
            if let Some(over) = self.over(context.now_ns()) {
                return over;
            }
            if !moved {
                return Next::Wait;
            }
            if moved_so_far(self) - begun + steps * STEP >= TURN {
                return Next::Again;
            }
        }
    }

    /// Returns `None` once the connection is established.
    fn finish_connecting(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> Option<Next> {
        if self.came_up() {
            return None;
        }
        if self.program_is_gone() {
            return Some(Next::Over(None));
        }
        match sockopt::socket_error(&self.network) {
            Ok(Ok(())) => {}
            Ok(Err(e)) if self.dialing().is_some() && dialing::is_refusal(e) => {
                if let Err(e) = self.connect_past_gateway() {
                    return Some(Next::Over(Some(e)));
                }
            }
            Ok(Err(e)) | Err(e) => return Some(Next::Over(Some(e))),
        }
        if rustix::net::getpeername(&self.network).is_err() {
            return Some(Next::Wait);
        }
        let Phase::Connecting(connecting) = &mut self.phase else { return None };
        let answer = match &mut connecting.dialing {
            None => None,
            Some(dialing) => match dialing.advance(&self.network, context.now_ns()) {
                None => return Some(Next::Wait),
                Some(Answer::Connected(frames)) => Some(frames),
                Some(Answer::Failed(e)) => return Some(Next::Over(Some(e))),
                Some(Answer::NoGateway) => {
                    let again = self.connect_past_gateway();
                    return Some(again.map_or_else(|e| Next::Over(Some(e)), |()| Next::Again));
                }
            },
        };
        // Before the program can notice that it is connected and ask for the state.
        self.held.connected();
        // The last fill byte becomes the poison.
        while connecting.fill > 1 {
            let part = (connecting.fill - 1).min(scratch.len());
            match read(&self.program, &mut scratch[..part], RecvFlags::empty()) {
                Ok(n) if n > 0 => connecting.fill -= n,
                _ => return Some(Next::Over(Some(Errno::CONNABORTED))),
            }
        }
        self.phase = Phase::Established;
        if let Some(frames) = answer {
            self.begin_framed(frames, context);
        }
        None
    }

    /// Moves bytes from the program to the network. True if something changed.
    fn step_up(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> bool {
        if self.up.is_shut() || self.ending.error().is_some() && self.up.has_ended() {
            return false;
        }
        if let Err(e) = self.up.flush(&self.network, self.serial, context) {
            self.break_off(e);
        }
        let mut moved = false;
        if self.up.readable && !self.up.has_ended() {
            match self.read_program(scratch, context) {
                Ok(more) => moved = more,
                Err(e) => {
                    self.break_off(e);
                    moved = true;
                }
            }
        }
        if let Some(UrgentUp { byte, at }) = self.urgent_up
            && self.up.bytes >= at
            && !self.pass_urgent_up(byte, context)
        {
            return moved;
        }
        if self.up.has_ended() && !self.up.is_shut() {
            match self.up.finish(&self.network, self.serial, context) {
                Ok(false) => return moved,
                Ok(true) => {}
                Err(e) => self.break_off(e),
            }
            self.negotiation.flow.sending_end();
            self.after_flow(context);
            // Nobody else should hold the socket, but if a forked child does, the peer must see the
            // end all the same. A connection that will be reset gets no end of stream.
            if !(self.resets() || self.program_is_gone() && self.resets_at_close()) {
                let _ = shutdown(&self.network, Shutdown::Write);
            }
            self.up.shut();
            moved = true;
        }
        moved
    }

    /// Reads what the program wrote and passes it on; the last byte stays unread as the poison.
    fn read_program(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> Result<bool, Errno> {
        // A short message is peeked and sent on before it is taken out: only two calls until the
        // network has it.
        let until_urgent = self.urgent_up.map_or(usize::MAX, |urgent| urgent.at.saturating_sub(self.up.bytes) as usize);
        let room = until_urgent.min(self.up.room(0)).min(usize::MAX - 1);
        if room == 0 {
            return Ok(false);
        }
        let look = PEEK.min(room + 1);
        let (seen, cut) = match peek(&self.program, &mut scratch[..look]) {
            // TCP ignores descriptors that a program sends along; on a unix socket they end a peek.
            Ok((seen, cut)) => (seen, cut && ioctl_fionread(&self.program)? > seen as u64),
            // ECONNRESET: the program closed with bytes unread. The kernel delivers the program's
            // own bytes before this error, so none are left.
            Err(Errno::AGAIN) => (0, false),
            Err(_) => {
                self.up.readable = false;
                self.up.end();
                return Ok(true);
            }
        };
        if seen < 2 && !cut {
            self.up.readable = false;
            let finished = self.program_end >= ProgramEnd::Finished;
            if finished {
                self.up.end();
            }
            return Ok(finished);
        }
        if (2..PEEK).contains(&seen) {
            let (_, fresh) = scratch[..seen].split_at(1);
            let passed = self.pass_up(fresh, context);
            let taken = read(&self.program, &mut scratch[..seen - 1], RecvFlags::empty());
            debug_assert_eq!(taken, Ok(seen - 1));
            self.up.readable = self.program_end >= ProgramEnd::Finished || seen == look || cut;
            passed?;
            return Ok(true);
        }
        let queued = ioctl_fionread(&self.program)? as usize;
        let wanted = queued.saturating_sub(1).min(room);
        let Some(segment) = self.up.segment_len() else {
            let wanted = wanted.min(scratch.len()).min(self.up.plain_len());
            let len = self.take_bulk(&mut scratch[..wanted])?;
            self.pass_up(&scratch[..len], context)?;
            return Ok(len > 0);
        };
        self.up.unsent_max = self.held.unsent_max();
        // Queued bytes count as waiting: it makes no difference to their age where they wait.
        let wanted = wanted.min(segment).min(self.up.room(queued));
        if wanted == 0 {
            return Ok(false);
        }
        let mut buffer = context.buffers.get(wanted);
        let len = self.take_bulk(&mut buffer.bytes_mut()[..wanted])?;
        let block = buffer.freeze(len);
        context.buffers.recycle(&block);
        self.up.pass_block(block, &self.network, self.serial, context)?;
        Ok(len > 0)
    }

    /// Fills `into` with the program's next bytes; a copy of the last one stays in the socket as
    /// the poison.
    fn take_bulk(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut old = [0];
        let rest = into.len() - 1;
        let taken = readv(&self.program, &mut [IoSliceMut::new(&mut old), IoSliceMut::new(&mut into[..rest])])?;
        if taken == 0 {
            return Ok(0);
        }
        let last = read(&self.program, &mut into[taken - 1..taken], RecvFlags::PEEK)?;
        Ok(taken - 1 + last)
    }

    fn pass_up(&mut self, input: &[u8], context: &mut PumpContext) -> Result<(), Errno> {
        if !self.up.is_framed() {
            self.negotiation.flow.sending_plain(input.len());
        }
        self.up.pass(input, &self.network, self.serial, context)
    }

    /// Returns false while bytes before it are still on their way.
    fn pass_urgent_up(&mut self, byte: u8, context: &mut PumpContext) -> bool {
        if self.up.is_framed() {
            // Frames cannot overtake each other: the byte goes as data at its position.
            self.urgent_up = None;
            if let Err(e) = self.up.pass(&[byte], &self.network, self.serial, context) {
                self.break_off(e);
            }
            return true;
        }
        if self.up.held() > 0 {
            return false;
        }
        match send(&self.network, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return false,
            _ => self.urgent_up = None,
        }
        self.negotiation.flow.sending_plain(1);
        self.up.count_urgent();
        true
    }

    /// Moves bytes from the network to the program. True if something changed.
    fn step_down(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> bool {
        if self.down.is_shut() {
            return false;
        }
        // The program is gone. The peer must not wait for a reader, so its bytes are discarded.
        if self.program_is_gone() {
            self.down.discard();
        }
        let flushed = self.down.flush(&self.program);
        self.down.note_pace(context);
        match flushed {
            Ok(true) => {}
            Ok(false) => return false,
            // The program shut down reading, or is gone.
            Err(_) => self.down.discard(),
        }
        if self.urgent_down != UrgentDown::Nothing && !self.down.is_framed() && !self.pass_urgent_down(context) {
            return false;
        }
        let mut moved = match self.down.resume(self.serial, context) {
            Ok(resumed) => resumed,
            Err(e) => {
                self.refuse(&e);
                true
            }
        };
        if self.down.readable && !self.down.has_ended() && self.down.has_room() {
            let read = if self.down.is_framed() {
                self.down.read(&self.network, self.serial, context)
            } else {
                self.read_plain(scratch, context)
            };
            moved |= self.after_read(read);
        }
        // EPIPE: the peer may have finished before it refused our bytes, so this may still be an
        // orderly end.
        if self.down.has_ended() && !self.down.is_pending() && matches!(self.ending.error(), None | Some(Errno::PIPE)) {
            match self.down.finish() {
                Ok(()) => {
                    let _ = shutdown(&self.program, Shutdown::Write);
                    self.down.shut();
                }
                Err(e) => self.refuse(&e),
            }
            moved = true;
        }
        moved
    }

    fn read_plain(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> narrows::Result<Read> {
        match read(&self.network, scratch, RecvFlags::empty()) {
            Ok(0) => {
                let released = self.negotiation.flow.receive_end()?;
                self.pass_down(&released);
                self.after_flow(context);
                Ok(Read::End)
            }
            Ok(n) => {
                self.came(&scratch[..n], context)?;
                Ok(if n == scratch.len() { Read::Some(n) } else { Read::Last(n) })
            }
            Err(Errno::AGAIN) => Ok(Read::Nothing),
            Err(e) => Ok(Read::Broken(e)),
        }
    }

    /// True if something changed.
    fn after_read(&mut self, read: narrows::Result<Read>) -> bool {
        match read {
            Ok(Read::Some(_)) => true,
            // After a short read the kernel sends a new event for more data; an end was already
            // reported.
            Ok(Read::Last(_)) => {
                self.down.readable = self.network_ended || self.urgent_down != UrgentDown::Nothing;
                true
            }
            Ok(Read::Nothing) => {
                (self.down.readable, self.urgent_down) = (false, UrgentDown::Nothing);
                false
            }
            Ok(Read::End) => {
                self.down.end();
                true
            }
            Ok(Read::Broken(e)) => {
                self.break_off(e);
                self.down.end();
                true
            }
            Err(e) => {
                self.refuse(&e);
                true
            }
        }
    }

    fn pass_down(&mut self, plain: &[u8]) {
        if !plain.is_empty() && self.down.pass(plain, &self.program).is_err() {
            self.down.discard();
        }
    }

    /// Passes an urgent byte on after the bytes before it; reading stops at it by itself. False if
    /// the program's end has no room.
    fn pass_urgent_down(&mut self, context: &mut PumpContext) -> bool {
        let mut byte = [0];
        if self.urgent_down == UrgentDown::Coming
            && sys::at_mark(&self.network)
            && read(&self.network, &mut byte, RecvFlags::empty()) == Ok(1)
        {
            match self.negotiation.flow.receive(&byte, context.now_ns()) {
                Ok(step) if step.released.is_empty() && step.plain == 1 => self.urgent_down = UrgentDown::Held(byte[0]),
                // It may begin a marker, or complete bytes that looked like one. Passing it on as
                // data is correct in any case.
                Ok(step) => {
                    self.pass_down(&step.released);
                    self.pass_down(&byte[..step.plain]);
                    self.urgent_down = UrgentDown::Nothing;
                }
                Err(e) => self.refuse(&e),
            }
            self.after_flow(context);
        }
        let UrgentDown::Held(byte) = self.urgent_down else { return true };
        // A kernel without urgent bytes on unix sockets fails, and the byte is dropped: within the
        // stream the program would take it for data.
        match send(&self.program, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return false,
            _ => self.urgent_down = UrgentDown::Nothing,
        }
        self.down.count_urgent();
        true
    }
}
