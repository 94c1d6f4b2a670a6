//! One connection: bytes both ways between the program's unix socket and the TCP socket.
//!
//! `program` is the supervisor's end of the pair whose other end the program has; `network` is the TCP socket. One byte
//! that was already passed on, the *poison*, always stays unread in `program`: when that end closes, however it comes
//! about, the kernel tells the program ECONNRESET. Only an end in order takes the poison out first, and gives it an end
//! of stream. So a supervisor that dies is never taken for a peer that has finished.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread, readv};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use super::sys;
use super::through::Through;
use super::wire::{RawAddress, Request, State};

/// Most reads of a waiting program's messages get everything at once; more than that is bulk.
const PEEK: usize = 4096;
/// Bytes that one connection may move before others have their turn.
const TURN: usize = 1 << 20;

/// One direction.
struct Flow {
    through: Through,
    /// What the sink did not take yet. No more is read before it is gone, so it is never longer than the scratch.
    waiting: Vec<u8>,
    written: usize,
    /// The source may have something.
    readable: bool,
    /// The source has ended and everything of it was read.
    ended: bool,
    /// The sink was told so.
    shut: bool,
    /// The sink takes nothing any more; what comes is thrown away.
    discards: bool,
    bytes: u64,
}

impl Flow {
    const fn new() -> Self {
        Self {
            through: Through::Unchanged,
            waiting: Vec::new(),
            written: 0,
            readable: true,
            ended: false,
            shut: false,
            discards: false,
            bytes: 0,
        }
    }

    fn held(&self) -> usize {
        self.waiting.len() - self.written
    }

    /// Writes what waits. True: nothing waits any more.
    fn flush(&mut self, sink: &OwnedFd) -> Result<bool, Errno> {
        while self.held() > 0 && !self.discards {
            match write(sink, &self.waiting[self.written..]) {
                Ok(n) => self.written += n,
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        // Memory is given back: most connections are idle most of the time.
        self.waiting = Vec::new();
        self.written = 0;
        Ok(true)
    }

    /// Passes `input` on; what the sink does not take waits.
    fn pass(&mut self, input: &[u8], sink: &OwnedFd) -> Result<(), Errno> {
        self.bytes += input.len() as u64;
        if self.discards {
            return Ok(());
        }
        let output = self.through.pass(input);
        let taken = match write(sink, output) {
            Ok(n) => n,
            Err(Errno::AGAIN) => 0,
            Err(e) => return Err(e),
        };
        self.waiting.extend_from_slice(&output[taken..]);
        Ok(())
    }
}

/// SO_LINGER: on, seconds.
pub(crate) fn linger_of(value: &[u8; 8]) -> Option<Duration> {
    let [a, b, c, d, seconds @ ..] = *value;
    let seconds = u64::try_from(i32::from_ne_bytes(seconds)).unwrap_or(0);
    (i32::from_ne_bytes([a, b, c, d]) != 0).then(|| Duration::from_secs(seconds))
}

fn write(sink: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(sink, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn read(source: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match recv(source, &mut *buffer, flags | RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result.map(|(n, _)| n),
        }
    }
}

/// What the pump does with a connection next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing until something happens.
    Wait,
    /// It had its turn and has more to do.
    Again,
    /// It is over, with the error that the program is told.
    Over(Option<Errno>),
}

pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) network: OwnedFd,
    pub(crate) program: OwnedFd,
    pub(crate) peer: RawAddress,
    pub(crate) accepted: bool,
    /// SO_LINGER, as the program has set it. The socket itself resets, in case the supervisor dies, until it is closed in
    /// order.
    pub(crate) linger: Option<Duration>,
    /// Bytes that fill the program's end while the connection is being made.
    fill: usize,
    connecting: bool,
    /// The program was told that the connection is made, for `connect`.
    told: bool,
    up: Flow,
    down: Flow,
    /// The program has shut or closed its end: RDHUP.
    program_ended: bool,
    /// It holds the other end no more, or has shut it both ways.
    program_gone: bool,
    /// It closed with bytes unread.
    aborted: bool,
    /// The TCP connection broke; what is in its queue still goes to the program.
    broken: Option<Errno>,
    /// The pump is to look at `program` for room.
    pub(crate) wants_room: bool,
    /// The TCP socket has said that the peer finished or that it broke.
    network_ended: bool,
    /// A byte that goes out urgently when so many went up.
    urgent: Option<(u64, u8)>,
    /// The peer has sent one, which is yet to be found in what came.
    urgent_coming: bool,
    /// It was found, and the program's end had no room for it.
    urgent_held: Option<u8>,
}

impl Connection {
    pub(crate) fn new(request: &Request, network: OwnedFd, program: OwnedFd) -> Self {
        let fill = usize::try_from(request.number).unwrap_or(1);
        // Without O_ASYNC: its own end sends the program signals; this one would when that is closed.
        let _ = rustix::fs::fcntl_setfl(&network, rustix::fs::OFlags::NONBLOCK);
        let _ = rustix::io::ioctl_fionbio(&program, true);
        // A low-water mark would hold back the last bytes of a message; the program's end keeps its own.
        let _ = sys::set_option(&network, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32.to_ne_bytes());
        // So an urgent byte is read in its place, whatever the program wants; its own end knows that.
        let _ = sockopt::set_socket_oobinline(&network, true);
        Self {
            id: request.id,
            network,
            linger: linger_of(&request.linger),
            program,
            peer: request.peer,
            accepted: request.accepted,
            fill,
            connecting: fill > 1,
            told: false,
            up: Flow::new(),
            down: Flow::new(),
            program_ended: false,
            program_gone: false,
            aborted: false,
            broken: None,
            wants_room: false,
            network_ended: false,
            urgent: None,
            urgent_coming: false,
            urgent_held: None,
        }
    }

    /// Bytes from and to the program.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.bytes, self.down.bytes)
    }

    /// `first`: this answers a `connect`.
    pub(crate) fn state(&mut self, first: bool) -> State {
        if self.connecting {
            State::Connecting
        } else if !self.told {
            self.told = first;
            State::JustConnected
        } else {
            State::Connected
        }
    }

    /// Bytes of the program that the peer's kernel has not confirmed.
    pub(crate) fn out_queue(&self) -> usize {
        let unread = if self.connecting { 0 } else { ioctl_fionread(&self.program).unwrap_or(0).saturating_sub(1) };
        unread as usize + self.up.held() + sys::unconfirmed(&self.network)
    }

    /// A byte goes out urgently behind everything that the program wrote until now.
    /// False: an earlier one is still under way.
    pub(crate) fn send_urgent(&mut self, byte: u8) -> bool {
        let unread = ioctl_fionread(&self.program).unwrap_or(1).saturating_sub(1);
        if self.connecting || self.urgent.is_some() {
            return false;
        }
        self.urgent = Some((self.up.bytes + unread, byte));
        true
    }

    pub(crate) fn program_happened(&mut self, events: EventFlags) {
        self.up.readable = true;
        if events.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            self.program_ended = true;
        }
        // Once we have shut it for writing, HUP only says that the program has finished too.
        if events.contains(EventFlags::HUP) && !self.down.shut {
            self.program_gone = true;
        }
        if events.contains(EventFlags::ERR) {
            (self.aborted, self.program_gone, self.program_ended) = (true, true, true);
        }
    }

    pub(crate) fn network_happened(&mut self, events: EventFlags) {
        if events.intersects(EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.down.readable = true;
        }
        self.urgent_coming |= events.contains(EventFlags::PRI);
        self.network_ended |= events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if self.connecting {
            return;
        }
        // After its end the queue tells of no error, so it is asked for; before, reading meets it in its turn.
        if self.down.ended && events.intersects(EventFlags::ERR | EventFlags::HUP) && self.broken.is_none() {
            match sockopt::socket_error(&self.network) {
                Ok(Err(e)) => self.broken = Some(e),
                // Both halves are closed although the program's is not: the peer is gone.
                _ if !self.up.shut && events.contains(EventFlags::HUP) => self.broken = Some(Errno::PIPE),
                _ => {}
            }
        }
    }

    /// Moves what can be moved.
    pub(crate) fn advance(&mut self, scratch: &mut [u8]) -> Next {
        if self.connecting
            && let Some(next) = self.finish_connecting(scratch)
        {
            return next;
        }
        let begun = self.up.bytes + self.down.bytes;
        loop {
            let moved = self.step_up(scratch) | self.step_down(scratch);
            if let Some(over) = self.over() {
                return over;
            }
            self.wants_room = self.down.held() > 0 || self.urgent_held.is_some();
            if !moved {
                return Next::Wait;
            }
            if self.up.bytes + self.down.bytes - begun >= TURN as u64 {
                return Next::Again;
            }
        }
    }

    /// `None`: it is connected.
    fn finish_connecting(&mut self, scratch: &mut [u8]) -> Option<Next> {
        if self.program_gone || self.program_ended && self.aborted {
            return Some(Next::Over(None));
        }
        match sockopt::socket_error(&self.network) {
            Ok(Ok(())) => {}
            Ok(Err(e)) | Err(e) => return Some(Next::Over(Some(e))),
        }
        if rustix::net::getpeername(&self.network).is_err() {
            return Some(Next::Wait);
        }
        // The last byte that filled it is the poison.
        while self.fill > 1 {
            let part = (self.fill - 1).min(scratch.len());
            match read(&self.program, &mut scratch[..part], RecvFlags::empty()) {
                Ok(n) if n > 0 => self.fill -= n,
                _ => return Some(Next::Over(Some(Errno::CONNABORTED))),
            }
        }
        self.connecting = false;
        None
    }

    /// From the program to the network. True if something changed.
    fn step_up(&mut self, scratch: &mut [u8]) -> bool {
        if self.up.shut || self.broken.is_some() && self.up.ended {
            return false;
        }
        match self.up.flush(&self.network) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(e) => self.break_off(e),
        }
        let mut moved = false;
        if self.up.readable && !self.up.ended {
            match self.read_program(scratch) {
                Ok(more) => moved = more,
                Err(e) => {
                    self.break_off(e);
                    moved = true;
                }
            }
        }
        if let Some((at, byte)) = self.urgent
            && self.up.bytes >= at
            && self.up.held() == 0
        {
            match send(&self.network, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return moved,
                _ => self.urgent = None,
            }
        }
        if self.up.ended && self.up.held() == 0 && !self.up.shut {
            let rest = self.up.through.end();
            match write(&self.network, rest) {
                Ok(n) if n == rest.len() => {}
                Ok(n) => {
                    self.up.waiting.extend_from_slice(&rest[n..]);
                    return true;
                }
                Err(_) => {}
            }
            // Nobody else may hold the socket; and if a forked child does, the peer must see the end all the same.
            // What goes with a reset goes without an end.
            let resets = self.aborted || self.program_gone && self.resets_at_close();
            if !resets {
                let _ = shutdown(&self.network, Shutdown::Write);
            }
            self.up.shut = true;
            moved = true;
        }
        moved
    }

    /// Reads what the program wrote and passes it on; the last byte of it stays as the poison.
    fn read_program(&mut self, scratch: &mut [u8]) -> Result<bool, Errno> {
        // A short message goes on before it is taken out: two calls until the network has it.
        let room = self.urgent.map_or(usize::MAX - 1, |(at, _)| at.saturating_sub(self.up.bytes) as usize);
        if room == 0 {
            return Ok(false);
        }
        let look = PEEK.min(room + 1);
        let seen = match read(&self.program, &mut scratch[..look], RecvFlags::PEEK) {
            Ok(n) => n,
            // ECONNRESET: the program closed with bytes unread. Its own bytes come first, so there are none.
            Err(Errno::AGAIN) => 0,
            Err(_) => {
                (self.up.readable, self.up.ended) = (false, true);
                return Ok(true);
            }
        };
        if seen < 2 {
            self.up.readable = false;
            self.up.ended = self.program_ended;
            return Ok(self.up.ended);
        }
        if seen < PEEK {
            let (_, fresh) = scratch[..seen].split_at(1);
            let passed = self.up.pass(fresh, &self.network);
            let taken = read(&self.program, &mut scratch[..seen - 1], RecvFlags::empty());
            debug_assert_eq!(taken, Ok(seen - 1));
            self.up.readable = self.program_ended || seen == look;
            passed?;
            return Ok(true);
        }
        let queued = ioctl_fionread(&self.program)? as usize;
        let wanted = queued.saturating_sub(1).min(scratch.len()).min(room);
        let mut old = [0];
        let taken =
            readv(&self.program, &mut [IoSliceMut::new(&mut old), IoSliceMut::new(&mut scratch[..wanted - 1])])?;
        if taken == 0 {
            return Ok(false);
        }
        // The byte behind what was taken is looked at and stays.
        let last = read(&self.program, &mut scratch[taken - 1..taken], RecvFlags::PEEK)?;
        self.up.pass(&scratch[..taken - 1 + last], &self.network)?;
        Ok(true)
    }

    /// From the network to the program. True if something changed.
    fn step_down(&mut self, scratch: &mut [u8]) -> bool {
        if self.down.shut {
            return false;
        }
        match self.down.flush(&self.program) {
            Ok(true) => {}
            Ok(false) => return false,
            // The program shut its end for reading, or is gone. The peer must not wait for it.
            Err(_) => self.down.discards = true,
        }
        if self.urgent_coming && !self.pass_urgent() {
            return false;
        }
        let mut moved = false;
        if self.down.readable && !self.down.ended {
            match read(&self.network, scratch, RecvFlags::empty()) {
                Ok(0) => {
                    self.down.ended = true;
                    moved = true;
                }
                Ok(n) => {
                    // The event that tells of more comes after a short read; an end was told already.
                    self.down.readable = n == scratch.len() || self.network_ended || self.urgent_coming;
                    if self.down.pass(&scratch[..n], &self.program).is_err() {
                        self.down.discards = true;
                    }
                    moved = true;
                }
                Err(Errno::AGAIN) => (self.down.readable, self.urgent_coming) = (false, false),
                Err(e) => {
                    self.break_off(e);
                    (self.down.ended, moved) = (true, true);
                }
            }
        }
        if self.down.ended && self.down.held() == 0 && self.broken.is_none() {
            let rest = self.down.through.end();
            let _ = write(&self.program, rest);
            let _ = shutdown(&self.program, Shutdown::Write);
            self.down.shut = true;
            moved = true;
        }
        moved
    }

    /// Passes an urgent byte on when what came before it was. Reading stops there by itself. False: there is no room.
    fn pass_urgent(&mut self) -> bool {
        let mut byte = [0];
        if self.urgent_held.is_none()
            && sys::at_mark(&self.network)
            && read(&self.network, &mut byte, RecvFlags::empty()) == Ok(1)
        {
            self.urgent_held = Some(byte[0]);
        }
        let Some(byte) = self.urgent_held else { return true };
        // A kernel without urgent bytes on unix sockets drops it: in the stream it would be taken for data.
        match send(&self.program, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return false,
            _ => (self.urgent_held, self.urgent_coming) = (None, false),
        }
        self.down.bytes += 1;
        true
    }

    /// The network takes nothing any more. What came from it is still for the program.
    fn break_off(&mut self, error: Errno) {
        self.broken.get_or_insert(error);
        (self.up.discards, self.up.readable, self.up.ended) = (true, false, true);
        self.down.readable = true;
    }

    fn over(&mut self) -> Option<Next> {
        if let Some(error) = self.broken {
            // A peer that had finished and then refused what we sent: the program gets EPIPE, as from TCP.
            let told = (error != Errno::PIPE).then_some(error);
            let delivered = self.down.ended && self.down.held() == 0 || self.program_gone;
            return delivered.then_some(Next::Over(told));
        }
        let finished = self.up.shut && (self.down.shut || self.program_gone);
        // What the peer's socket has no room for is lost with a reset, as from TCP.
        (finished || self.aborted && (!self.up.readable || self.up.held() > 0)).then_some(Next::Over(None))
    }

    /// The program asked for it: SO_LINGER with no time.
    fn resets_at_close(&self) -> bool {
        self.linger == Some(Duration::ZERO)
    }

    /// Ends it: what the program and the peer see of the end. The TCP socket is given back if nothing was ever
    /// connected.
    pub(crate) fn close(self, error: Option<Errno>) -> Option<OwnedFd> {
        if error.is_none() {
            // An end in order: without the poison there is an end of stream and no error.
            let mut poison = [0; 2];
            let _ = read(&self.program, &mut poison, RecvFlags::empty());
        }
        let resets = self.aborted || self.resets_at_close();
        drop(self.program);
        if self.connecting {
            let _ = sockopt::set_socket_linger(&self.network, self.linger);
            return error.is_some().then_some(self.network);
        }
        if !resets {
            let _ = sockopt::set_socket_linger(&self.network, None);
        }
        None
    }
}
