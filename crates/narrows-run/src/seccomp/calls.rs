//! Calls that begin connections: `connect` and `accept`, made here on the program's own socket.
//!
//! After an error before anything was done, the kernel continues as if it had not asked. Once the
//! call is made, its result is the program's, swapped or not.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketFlags, SocketType, shutdown,
};

use super::notify::{Answer, Call, Notifier, Waiting, What};
use super::socket::{CLOSED, MPTCP, SYN_SENT, blocks, cookie, int_option, is_established, is_stream, limit, tcp_state};
use super::swap::{self, Connection, internet, swapped};
use super::sys::{self, Place};
use crate::asker::Asker;
use crate::shared::Order;
use crate::sys::{get_option, set_option};
use crate::wire::{BY_CONNECT, Kind, Name, REPLY_LEN, RawAddress, Reason, Reply, Request, State, host_and_port};

/// Time limit for a pump's answer. It answers in some 20 us, or after it has moved the bytes of
/// other connections; as with the library, a program must not wait for ever for one that does not.
const PATIENCE: Duration = Duration::from_secs(1);
pub(super) fn errno(error: &Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Replaces "any address" by the loopback address: to the kernel it means this host.
fn here(host: IpAddr) -> IpAddr {
    if host.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { host }
}

impl Notifier {
    /// Runs `work` with the program's socket set to non-blocking, because it must not block this
    /// thread. The flag is changed for some microseconds, because one call cannot be made
    /// non-blocking otherwise; the watchdog is told.
    pub(super) fn without_blocking<T>(&self, socket: &OwnedFd, blocks: bool, work: impl FnOnce() -> T) -> T {
        if blocks {
            self.watchdog.open.unblocked(true);
            let _ = rustix::io::ioctl_fionbio(socket, true);
        }
        let result = work();
        if blocks {
            let _ = rustix::io::ioctl_fionbio(socket, false);
            self.watchdog.open.unblocked(false);
        }
        result
    }

    pub(super) fn answer(&mut self, call: &Call) -> Answer {
        let answer = match call.number {
            libc::SYS_connect => self.connect(call),
            libc::SYS_accept | libc::SYS_accept4 => self.accept(call),
            _ => self.answer_other(call),
        };
        answer.unwrap_or(Answer::GoOn)
    }

    /// Continues a call that waited and whose socket is ready.
    pub(super) fn again(&mut self, call: &Call, waiting: Waiting) -> Answer {
        let Waiting { socket, what, until } = waiting;
        match what {
            What::Accept => self.accept_from(call, socket, until),
            What::Discard => self.discard(call, socket, until),
            What::Look { wanted } => self.look_at(socket, wanted, until),
            What::Send { sent } => self.send_on(call, socket, sent, until),
            What::Made { name, further } => self.made(socket, name, further, until),
            What::Connect { number, peer, closes_on_exec, .. } => {
                let len = length(&peer);
                match self.without_blocking(&socket, true, || sys::connect(&socket, &peer, len)) {
                    Ok(()) => self.connected(call, number, socket, peer, closes_on_exec, false),
                    Err(e) if [libc::EALREADY, libc::EINPROGRESS].contains(&errno(&e)) => {
                        Answer::Wait(Waiting { socket, what, until })
                    }
                    Err(e) => Answer::Fail(errno(&e)),
                }
            }
        }
    }

    // --- connect ---

    fn connect(&mut self, call: &Call) -> Result<Answer> {
        let number = call.int(0);
        let socket = call.target.descriptor(number)?;
        let len = (call.args[2] as usize).min(28);
        let mut address = [0; 28];
        call.target.read_into(call.args[1], &mut address[..len])?;
        if let Some(name) = swapped(&socket) {
            let dissolves = len >= 2 && address[..2] == (libc::AF_UNSPEC as u16).to_ne_bytes();
            if dissolves {
                // As in the kernel the peer gets a reset, whoever else holds the socket.
                let _ = self.ask(Kind::SetOption, name.id, |r| {
                    (r.level, r.option, r.value_len) = (libc::SOL_SOCKET, libc::SO_LINGER, swap::RESET.len() as u16);
                    r.value[..swap::RESET.len()].copy_from_slice(&swap::RESET);
                });
                let _ = shutdown(&socket, Shutdown::Both);
                let taken = self.take_back(call, number, &socket, &name);
                return Ok(taken.map_or_else(|e| Answer::Fail(errno(&e)), |_| Answer::Value(0)));
            }
            return self.connect_again(call, number, &socket, &name, internet(&address[..len]));
        }
        let Some(peer) = internet(&address[..len]) else { return Ok(Answer::GoOn) };
        self.attempt(call, number, socket, peer, false)
    }

    /// `again`: an earlier attempt of this socket failed, and the kernel may report that first.
    fn attempt(&mut self, call: &Call, number: i32, socket: OwnedFd, peer: RawAddress, again: bool) -> Result<Answer> {
        if !is_stream(&socket, &[libc::IPPROTO_TCP]) {
            return Ok(Answer::GoOn);
        }
        let (blocks, state) = (blocks(&socket)?, tcp_state(&socket)?);
        // A blocking attempt that a signal interrupted continues.
        let under_way = state == SYN_SENT && blocks;
        if state != CLOSED && !under_way {
            return Ok(Answer::GoOn);
        }
        if let Some(reason) = self.stays_plain(call, number, &socket, &peer) {
            self.intake.shared.talk.plain(&peer, reason as i32);
            return Ok(Answer::GoOn);
        }
        let closes_on_exec = call.target.closes_on_exec(number)?;
        let what = What::Connect { number, peer, closes_on_exec, further: under_way };
        if !self.is_valid(call) {
            return Ok(Answer::GoOn);
        }
        let len = length(&peer);
        let wait = |socket| {
            let until = limit(&socket, libc::SO_SNDTIMEO);
            Answer::Wait(Waiting { socket, what, until })
        };
        if under_way {
            return Ok(wait(socket));
        }
        if let Some(answer) = self.by_gateway(call, number, &socket, &peer, closes_on_exec) {
            return Ok(answer);
        }
        let mut result = self.without_blocking(&socket, blocks, || sys::connect(&socket, &peer, len));
        if again && result.as_ref().is_err_and(|e| errno(e) == libc::ECONNABORTED) {
            result = self.without_blocking(&socket, blocks, || sys::connect(&socket, &peer, len));
        }
        Ok(match result {
            Ok(()) => self.connected(call, number, socket, peer, closes_on_exec, false),
            // Within a host the connection is complete at once.
            Err(e) if errno(&e) == libc::EINPROGRESS && blocks && is_established(&socket) => {
                self.again(call, Waiting { socket, what, until: None })
            }
            Err(e) if errno(&e) == libc::EINPROGRESS && blocks => wait(socket),
            Err(e) if errno(&e) == libc::EINPROGRESS => {
                self.connected(call, number, socket, peer, closes_on_exec, true)
            }
            Err(e) => Answer::Fail(errno(&e)),
        })
    }

    fn stays_plain(&self, call: &Call, number: i32, socket: &OwnedFd, peer: &RawAddress) -> Option<Reason> {
        let (host, port) = host_and_port(peer)?;
        if let Some(reason) = self.scope.excludes(here(host), port) {
            return Some(reason);
        }
        if let Some(reason) = self.marks.of(socket) {
            return Some(reason);
        }
        if call.target.shares(number).unwrap_or(true) {
            return Some(Reason::Shared);
        }
        if self.marks.may_pass && call.target.has_passed(number).unwrap_or(true) {
            return Some(Reason::Shared);
        }
        // AppArmor and SELinux check the connecting process, which would be this one.
        if call.target.domain() != self.domain {
            return Some(Reason::Failed);
        }
        (self.marks.restricted || !self.intake.has_room()).then_some(Reason::Failed)
    }

    /// Handles a `connect` that was made. Only the swap remains; if it fails, the connection is
    /// plain.
    fn connected(
        &mut self,
        call: &Call,
        number: i32,
        socket: OwnedFd,
        peer: RawAddress,
        closes_on_exec: bool,
        unanswered: bool,
    ) -> Answer {
        let native = if unanswered { Answer::Fail(libc::EINPROGRESS) } else { Answer::Value(0) };
        // Only the kernel knows what 0.0.0.0 was resolved to, but a connection under way has no
        // peer name yet. Within a host the kernel makes it at once, whatever it answers.
        let known = sys::name(&socket, true).ok().and_then(|name| internet(&name));
        let connecting = unanswered && known.is_none();
        let peer = known.unwrap_or(peer);
        if let Some(reason) = self.excludes(&socket, &peer, host_and_port(&peer).map(|(_, port)| port)) {
            self.intake.shared.talk.plain(&peer, reason as i32);
            return native;
        }
        let Ok(pair) = swap::pair(&socket, &Connection { peer, connecting, unanswered, accepted: false }) else {
            self.intake.shared.talk.plain(&peer, Reason::Failed as i32);
            return native;
        };
        let put = self.replace(call, number, &socket, &pair.program, closes_on_exec);
        match put {
            Ok(_) => {
                swap::resets(&socket);
                self.intake.take(pair.request, socket, pair.supervisor);
            }
            Err(_) => {
                self.intake.shared.talk.plain(&peer, Reason::Failed as i32);
            }
        }
        native
    }

    /// Puts another socket under the number of `socket`.
    pub(super) fn replace(
        &self,
        call: &Call,
        number: i32,
        socket: &OwnedFd,
        by: &OwnedFd,
        closes_on_exec: bool,
    ) -> Result<()> {
        // Another thread may have closed it meanwhile and reused the number.
        if cookie(&call.target.descriptor(number)?)? != cookie(socket)? {
            return Err(Error::from_raw_os_error(libc::EBADF));
        }
        sys::add(self.listener.as_fd(), call.id, by.as_fd(), Place::Number(number), closes_on_exec).map(drop)
    }

    /// `connect` on a swapped descriptor.
    fn connect_again(
        &mut self,
        call: &Call,
        number: i32,
        socket: &OwnedFd,
        name: &Name,
        peer: Option<RawAddress>,
    ) -> Result<Answer> {
        let already = Answer::Fail(libc::EISCONN);
        let (true, Some(peer)) = (name.was_connecting, peer) else { return Ok(already) };
        let Some((reply, _)) = self.ask(Kind::State, name.id, |r| r.number = BY_CONNECT) else { return Ok(already) };
        Ok(match State::of(reply.value().first().copied().unwrap_or(0)) {
            State::Connecting if blocks(socket)? && self.can_wait() => {
                self.made(socket.try_clone()?, *name, true, limit(socket, libc::SO_SNDTIMEO))
            }
            State::Connecting => Answer::Fail(libc::EALREADY),
            State::JustConnected => Answer::Value(0),
            State::Connected | State::Gone => already,
            State::Failed if reply.status != 0 => Answer::Fail(reply.status),
            State::Failed => match self.take_back(call, number, socket, name) {
                Ok(network) => self.attempt(call, number, network, peer, true).unwrap_or(Answer::GoOn),
                Err(e) => Answer::Fail(errno(&e)),
            },
        })
    }

    /// Puts back a TCP socket that can connect again: after a failed attempt the original one with
    /// all its options, in place of a connection that the program dissolves a new one.
    fn take_back(&mut self, call: &Call, number: i32, socket: &OwnedFd, name: &Name) -> Result<OwnedFd> {
        let returned = self.ask(Kind::TakeBack, name.id, |_| ()).and_then(|(_, fd)| fd);
        let network = match returned {
            Some(network) => network,
            None => {
                let family = AddressFamily::from_raw(u16::from_ne_bytes([name.local[0], name.local[1]]));
                rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?
            }
        };
        let manners = sys::control(socket, libc::F_GETFL, 0)? & (libc::O_NONBLOCK | libc::O_ASYNC);
        sys::control(&network, libc::F_SETFL, manners)?;
        let closes = call.target.closes_on_exec(number)?;
        self.replace(call, number, socket, &network, closes)?;
        Ok(network)
    }

    // --- accept ---

    /// Registers a socket that listens, or is about to, because its clients will claim their
    /// connections. The kernel keeps each client's SYN, the proof of a claim, only if told to.
    pub(super) fn listens(&self, socket: &OwnedFd) {
        let local = sys::name(socket, false).ok().and_then(|name| internet(&name));
        let Some((host, port)) = local.as_ref().and_then(host_and_port) else { return };
        // No other host reaches a loopback listener, and connections within the host are plain.
        if port != 0 && (self.scope.loopback || !host.is_loopback()) {
            let _ = set_option(socket, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32.to_ne_bytes());
            self.intake.shared.negotiator.listening(SocketAddr::new(host, port));
        }
    }

    fn accept(&mut self, call: &Call) -> Result<Answer> {
        let socket = call.target.descriptor(call.int(0))?;
        let listens = is_stream(&socket, &[libc::IPPROTO_TCP, MPTCP]) && int_option(&socket, libc::SO_ACCEPTCONN)? != 0;
        let usual = accept_flags(call) & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == 0;
        // A listener that was registered in an epoll before it listened does not affect its
        // connections, but options (`Failed`) are inherited by them.
        let plain = self.marks.of(&socket) == Some(Reason::Failed);
        if !listens || !usual || plain || !self.intake.has_room() {
            return Ok(Answer::GoOn);
        }
        if call.args[1] != 0 && i32::from_ne_bytes(call.target.read(call.args[2])?) < 0 {
            return Ok(Answer::GoOn);
        }
        // It may have begun to listen before this program had it.
        let mut saves = [0; 4];
        if get_option(&socket, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &mut saves).is_ok() && saves == [0; 4] {
            self.listens(&socket);
        }
        let until = limit(&socket, libc::SO_RCVTIMEO);
        Ok(self.accept_from(call, socket, until))
    }

    fn accept_from(&mut self, call: &Call, listener: OwnedFd, until: Option<Instant>) -> Answer {
        let Ok(blocks) = blocks(&listener) else { return Answer::GoOn };
        // As natively: the kernel refuses before it takes a connection from the queue, where
        // polling sees it.
        if call.target.is_full() {
            return Answer::GoOn;
        }
        let accepted = match self.untaken.take(&listener) {
            Some(earlier) => Ok(earlier),
            None => {
                if blocks && !is_ready(&listener) {
                    return Answer::Wait(Waiting { socket: listener, what: What::Accept, until });
                }
                let flags = accept_flags(call) & libc::SOCK_NONBLOCK;
                self.without_blocking(&listener, blocks, || sys::accept(&listener, flags))
            }
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(e) if errno(&e) == libc::EAGAIN && blocks => {
                return Answer::Wait(Waiting { socket: listener, what: What::Accept, until });
            }
            // The supervisor has no descriptor left; the program may have one.
            Err(e) if [libc::EMFILE, libc::ENFILE].contains(&errno(&e)) => return Answer::GoOn,
            Err(e) => return Answer::Fail(errno(&e)),
        };
        if call.args[1] != 0
            && let Err(e) = self.tell(call, &address, call.args[1], call.args[2])
        {
            // The kernel drops a connection whose address it cannot write; but here a signal may
            // have ended the call.
            if !self.is_valid(call) {
                self.untaken.put(&listener, socket, address);
            }
            return Answer::Fail(errno(&e));
        }
        match self.give(call, &socket, &address) {
            Ok((number, swapped)) => {
                if let Some((request, program)) = swapped {
                    self.intake.take(request, socket, program);
                }
                number.map_or(Answer::Given, Answer::Value)
            }
            Err(e) => {
                self.untaken.put(&listener, socket, address);
                Answer::Fail(errno(&e))
            }
        }
    }

    /// Gives the program the accepted connection, swapped or plain. On an error it has nothing.
    fn give(&self, call: &Call, socket: &OwnedFd, address: &[u8]) -> Result<Given> {
        let closes = accept_flags(call) & libc::SOCK_CLOEXEC != 0;
        // If the supervisor is killed while giving and answering in one step, the kernel answers 0.
        // With two steps the call is not yet answered then; but no signal may come in between,
        // which only `killable` guarantees.
        let place = if self.killable { Place::Free } else { Place::Answer };
        let add = |fd: &OwnedFd| {
            let number = sys::add(self.listener.as_fd(), call.id, fd.as_fd(), place, closes)?;
            Ok(self.killable.then_some(number))
        };
        let Some(connection) = self.swappable(socket, address) else { return add(socket).map(|n| (n, None)) };
        let Ok(pair) = swap::pair(socket, &connection) else {
            self.intake.shared.talk.plain(&connection.peer, Reason::Failed as i32);
            return add(socket).map(|n| (n, None));
        };
        match add(&pair.program) {
            Ok(number) => Ok((number, Some((pair.request, pair.supervisor)))),
            Err(e) => {
                pair.undo(socket);
                Err(e)
            }
        }
    }

    /// Why an established connection is out of scope, if it is. `port` is the server's.
    fn excludes(&self, socket: &OwnedFd, peer: &RawAddress, port: Option<u16>) -> Option<Reason> {
        let (host, _) = host_and_port(peer)?;
        let (local, _) = host_and_port(&internet(&sys::name(socket, false).ok()?)?)?;
        self.scope.excludes_between(local, here(host), port?)
    }

    fn swappable(&self, socket: &OwnedFd, address: &[u8]) -> Option<Connection> {
        let peer = internet(address)?;
        if !is_stream(socket, &[libc::IPPROTO_TCP]) {
            return None;
        }
        let (_, port) = host_and_port(&internet(&sys::name(socket, false).ok()?)?)?;
        if let Some(reason) = self.excludes(socket, &peer, Some(port)) {
            self.intake.shared.talk.plain(&peer, reason as i32);
            return None;
        }
        Some(Connection { peer, connecting: false, unanswered: false, accepted: true })
    }

    // --- shared ---

    /// Writes a socket address to the program's memory, as the kernel does.
    pub(super) fn tell(&self, call: &Call, name: &[u8], at: u64, len_at: u64) -> Result<()> {
        let room = i32::from_ne_bytes(call.target.read(len_at)?);
        let room = usize::try_from(room).map_err(|_| Error::from_raw_os_error(libc::EINVAL))?;
        // If the process was killed, its pid may already belong to another one.
        if !self.is_valid(call) {
            return Err(Error::from_raw_os_error(libc::EINTR));
        }
        call.target.write(at, &name[..name.len().min(room)])?;
        call.target.write(len_at, &(name.len() as i32).to_ne_bytes())
    }

    /// Asks about a connection. Returns the answer, and a descriptor that came with it.
    pub(super) fn ask(&self, kind: Kind, id: u64, fill: impl FnOnce(&mut Request)) -> Option<(Reply, Option<OwnedFd>)> {
        self.ask_for(Asker::own(), kind, id, fill)
    }

    pub(super) fn ask_for(
        &self,
        asker: Asker,
        kind: Kind,
        id: u64,
        fill: impl FnOnce(&mut Request),
    ) -> Option<(Reply, Option<OwnedFd>)> {
        let mut request = Request::new([0; 16], kind, id);
        fill(&mut request);
        if let Some(reply) = self.intake.shared.held.answer(&request, asker) {
            return Some((reply, None));
        }
        let (near, socket) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
        self.intake.pump(id).send(Order::Ask { request: Box::new(request), asker, socket });
        let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&near, PollFlags::IN)], Some(&patience)) != Ok(1) {
            return None;
        }
        let mut bytes = [0; REPLY_LEN];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let len = rustix::net::recvmsg(&near, &mut parts, &mut control, flags).ok()?.bytes;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        Some((Reply::decode(bytes.get(..len)?)?, fd))
    }
}

/// Result of giving a program its connection: the descriptor's number, if the call is still to be
/// answered with it, and what the pump gets.
type Given = (Option<i64>, Option<(Request, OwnedFd)>);

/// Whether the queue has a connection. Checked first, so that a listener with an empty queue is
/// usually left alone.
fn is_ready(listener: &OwnedFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&now)) != Ok(0)
}

fn accept_flags(call: &Call) -> c_int {
    if call.number == libc::SYS_accept4 { call.int(3) } else { 0 }
}

/// The length of an address from `internet`.
pub(super) fn length(raw: &RawAddress) -> usize {
    if c_int::from(u16::from_ne_bytes([raw[0], raw[1]])) == libc::AF_INET { 16 } else { 28 }
}
