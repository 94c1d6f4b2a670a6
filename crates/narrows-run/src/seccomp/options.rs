//! Calls that query or change connections and that a unix socket answers differently from TCP.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::calls::{errno, length};
use super::notify::{Answer, Call, Notifier, Waiting, What};
use super::socket::{MPTCP, blocks, int_option, is_fresh, is_stream, limit};
use super::swap::swapped;
use crate::asker::Asker;
use crate::kinds::forces_plain;
use crate::sys::{INTERFACE_ADDRESSES, Interface, interface_address, send_signal};
use crate::wire::{BY_ERROR, BY_NAME, Kind, Name, Reason, Reply, State, VALUE_MAX};

/// Maximum bytes that one call discards: more than a socket holds, unless it is being refilled
/// meanwhile.
const DISCARDED_MAX: usize = 1 << 20;
/// Maximum bytes sent along with an urgent byte in one call; the rest is for the next call.
const SENT_MAX: usize = 65_536;
/// Maximum bytes that a peek waits for. The kernel's buffer of a unix socket is larger, but not by
/// much.
pub(super) const LOOKED_MAX: usize = 128 << 10;
/// The kernel's limit.
const PARTS_MAX: usize = 1024;

/// Bytes that a call can read without reaching what follows them. The kernel reports a reset once,
/// and a call that finds no bytes consumes it: a call that discards more than there is would leave
/// an end of stream to the next call.
pub(super) fn readable(socket: &OwnedFd) -> usize {
    let mut look = [PollFd::new(socket, PollFlags::PRI)];
    let _ = poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    // An urgent byte is counted, but can only be read as urgent.
    let urgent = look[0].revents().contains(PollFlags::PRI);
    let unread = rustix::io::ioctl_fionread(socket).unwrap_or(0) as usize;
    unread.saturating_sub(usize::from(urgent))
}

/// Whether no more bytes will come.
fn ended(socket: &OwnedFd) -> bool {
    let mut look = [PollFd::new(socket, PollFlags::RDHUP)];
    let _ = poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !look[0].revents().is_empty()
}

fn done(result: Result<()>) -> Answer {
    result.map_or_else(|e| Answer::Fail(errno(&e)), |()| Answer::Value(0))
}

/// The process that makes the call.
fn holder(call: &Call) -> Asker {
    Asker::holder(rustix::process::Pid::from_raw(call.target.tid() as i32))
}

impl Notifier {
    pub(super) fn answer_other(&mut self, call: &Call) -> Result<Answer> {
        let number = if call.number == libc::SYS_epoll_ctl { call.int(2) } else { call.int(0) };
        // A restricted process stays plain. The same after `unshare`: descriptors of a thread with
        // its own table cannot be looked up.
        if [libc::SYS_landlock_restrict_self, libc::SYS_unshare].contains(&call.number) {
            self.marks.restricted = true;
            return Ok(Answer::GoOn);
        }
        if call.number == libc::SYS_socket || call.number == libc::SYS_socketpair {
            self.marks.may_pass = true;
            return Ok(Answer::GoOn);
        }
        let socket = call.target.descriptor(number)?;
        let name = swapped(&socket);
        Ok(match (call.number, name) {
            (libc::SYS_getsockname, Some(name)) => self.tell_name(call, &name.local),
            (libc::SYS_getpeername, Some(name)) if self.has_peer(&socket, &name) => self.tell_name(call, &name.peer),
            (libc::SYS_getpeername, Some(_)) => Answer::Fail(libc::ENOTCONN),
            (libc::SYS_getsockopt, Some(name)) => self.get_option(call, &socket, &name)?,
            (libc::SYS_setsockopt, Some(name)) => self.set_option(call, &name)?,
            (libc::SYS_ioctl, Some(name)) if INTERFACE_ADDRESSES.contains(&(call.args[1] as u32)) => {
                self.interface_address(call, &name)?
            }
            (libc::SYS_ioctl, Some(name)) => self.out_queue(call, &name),
            (libc::SYS_sendto, Some(name)) if call.int(3) & libc::MSG_OOB != 0 => {
                self.send_urgent(call, &socket, &name)?
            }
            (libc::SYS_sendto, Some(_)) => {
                let until = limit(&socket, libc::SO_SNDTIMEO);
                self.send_on(call, socket, 0, until)
            }
            // Rare, and refused as by a kernel without urgent bytes on unix sockets.
            (libc::SYS_sendmsg | libc::SYS_sendmmsg, Some(_)) => Answer::Fail(libc::EOPNOTSUPP),
            (libc::SYS_recvmsg | libc::SYS_recvfrom, Some(_)) => self.receive(call, socket)?,
            (number, None) => {
                self.remember(number, call, &socket);
                Answer::GoOn
            }
            _ => Answer::GoOn,
        })
    }

    /// Remembers sockets that stay plain from this call on, and listeners.
    fn remember(&mut self, number: libc::c_long, call: &Call, socket: &OwnedFd) {
        match number {
            libc::SYS_epoll_ctl | libc::SYS_dup | libc::SYS_dup3 | libc::SYS_fcntl if is_fresh(socket) => {
                self.marks.put(socket, Reason::Elsewhere);
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 if is_fresh(socket) => self.marks.put(socket, Reason::Elsewhere),
            libc::SYS_setsockopt
                if forces_plain(call.int(1), call.int(2)) && is_stream(socket, &[libc::IPPROTO_TCP]) =>
            {
                self.marks.put(socket, Reason::Failed);
            }
            libc::SYS_listen if is_stream(socket, &[libc::IPPROTO_TCP, MPTCP]) => self.listens(socket),
            _ => {}
        }
    }

    // --- names ---

    fn tell_name(&self, call: &Call, raw: &[u8; 28]) -> Answer {
        done(self.tell(call, &raw[..length(raw)], call.args[1], call.args[2]))
    }

    fn has_peer(&self, socket: &OwnedFd, name: &Name) -> bool {
        let mut look = [PollFd::new(socket, PollFlags::OUT)];
        let _ = poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let events = look[0].revents();
        let over = events.intersects(PollFlags::HUP | PollFlags::ERR);
        // Writable means connected: the fill bytes were taken out. If it is not writable it may
        // also be full of data.
        if !over && (!name.was_connecting || events.contains(PollFlags::OUT)) {
            return true;
        }
        let reply = self.ask(Kind::State, name.id, |r| r.number = BY_NAME);
        let state = reply.map_or(State::Gone, |(r, _)| State::of(r.value().first().copied().unwrap_or(0)));
        matches!(state, State::JustConnected | State::Connected)
    }

    // --- options ---

    fn get_option(&self, call: &Call, socket: &OwnedFd, name: &Name) -> Result<Answer> {
        let (level, option) = (call.int(1), call.int(2));
        let room = match call.target.read(call.args[4]).map(i32::from_ne_bytes) {
            Ok(room) => room,
            Err(e) => return Ok(Answer::Fail(errno(&e))),
        };
        let Ok(room) = usize::try_from(room) else { return Ok(Answer::Fail(libc::EINVAL)) };
        let own = |value: i32| Reply::new(0).with(&value.to_ne_bytes());
        let reply = match option {
            _ if level != libc::SOL_SOCKET => self.ask_option(call, name, room),
            libc::SO_ERROR => own(self.error_of(int_option(socket, option)?, name)),
            libc::SO_DOMAIN => own(u16::from_ne_bytes([name.local[0], name.local[1]]).into()),
            libc::SO_PROTOCOL => own(libc::IPPROTO_TCP),
            _ => self.ask_option(call, name, room),
        };
        if reply.status != 0 {
            return Ok(Answer::Fail(reply.status));
        }
        let value = &reply.value()[..reply.value().len().min(room)];
        if !self.is_valid(call) {
            return Ok(Answer::GoOn);
        }
        let written = call.target.write(call.args[3], value);
        Ok(done(written.and_then(|()| call.target.write(call.args[4], &(value.len() as i32).to_ne_bytes()))))
    }

    fn ask_option(&self, call: &Call, name: &Name, room: usize) -> Reply {
        let asked = room.min(VALUE_MAX);
        let mut value = [0; VALUE_MAX];
        // Some options read the buffer, for example for how much of a structure is wanted.
        let _ = call.target.read_into(call.args[3], &mut value[..asked]);
        let reply = self.ask_for(holder(call), Kind::GetOption, name.id, |r| {
            (r.level, r.option, r.value_len, r.value) = (call.int(1), call.int(2), asked as u16, value);
        });
        reply.map_or(Reply::new(libc::ENOBUFS), |(reply, _)| reply)
    }

    /// The error with which connecting failed; the kernel only knows that the other end of a unix
    /// socket is gone.
    fn error_of(&self, own: i32, name: &Name) -> i32 {
        if own != libc::ECONNRESET {
            return own;
        }
        let reply = self.ask(Kind::State, name.id, |r| r.number = BY_ERROR);
        let Some((reply, _)) = reply else { return own };
        // With status 0 in state `Failed` the error was already reported.
        let failed = matches!(State::of(reply.value().first().copied().unwrap_or(0)), State::Failed);
        if reply.status != 0 || failed { reply.status } else { own }
    }

    fn set_option(&self, call: &Call, name: &Name) -> Result<Answer> {
        let (level, option, len) = (call.int(1), call.int(2), call.args[4] as u32 as usize);
        let mut value = [0; VALUE_MAX];
        let Some(given) = value.get_mut(..len) else { return Ok(Answer::Fail(libc::ENOPROTOOPT)) };
        if let Err(e) = call.target.read_into(call.args[3], given) {
            return Ok(Answer::Fail(errno(&e)));
        }
        if !self.is_valid(call) {
            return Ok(Answer::GoOn);
        }
        let reply = self.ask_for(holder(call), Kind::SetOption, name.id, |r| {
            (r.level, r.option, r.value_len, r.value) = (level, option, len as u16, value);
        });
        Ok(match reply.map_or(libc::ENOBUFS, |(reply, _)| reply.status) {
            0 => Answer::Value(0),
            error => Answer::Fail(error),
        })
    }

    /// Asks the supervisor's TCP socket, which is in the program's network namespace; anybody may
    /// ask this.
    fn interface_address(&self, call: &Call, name: &Name) -> Result<Answer> {
        let Some(held) = self.intake.shared.held.get(name.id) else { return Ok(Answer::GoOn) };
        let mut interface = [0; size_of::<Interface>()];
        if let Err(e) = call.target.read_into(call.args[2], &mut interface) {
            return Ok(Answer::Fail(errno(&e)));
        }
        let told = interface_address(&*held.network, call.args[1] as u32, &mut interface);
        if !self.is_valid(call) {
            return Ok(Answer::GoOn);
        }
        Ok(done(told.and_then(|()| call.target.write(call.args[2], &interface))))
    }

    /// Answers with the bytes that the peer's kernel has not confirmed.
    fn out_queue(&self, call: &Call, name: &Name) -> Answer {
        let Some((reply, _)) = self.ask(Kind::OutQueue, name.id, |_| ()) else { return Answer::GoOn };
        if !self.is_valid(call) {
            return Answer::GoOn;
        }
        done(call.target.write(call.args[2], reply.value()))
    }

    // --- data ---

    fn receive(&mut self, call: &Call, socket: OwnedFd) -> Result<Answer> {
        let flags = call.int(if call.number == libc::SYS_recvmsg { 2 } else { 3 });
        let until = limit(&socket, libc::SO_RCVTIMEO);
        if flags & libc::MSG_ERRQUEUE != 0 {
            // The error queue is always empty.
            return Ok(Answer::Fail(libc::EAGAIN));
        }
        let all = libc::MSG_PEEK | libc::MSG_WAITALL;
        if flags & all != all || call.number == libc::SYS_recvfrom && call.args[1] == 0 {
            return Ok(self.discard(call, socket, until));
        }
        // On a unix socket the kernel peeks at what is there without waiting, which is right for a
        // call that must not wait.
        if !self.killable || flags & libc::MSG_DONTWAIT != 0 || !blocks(&socket)? {
            return Ok(Answer::GoOn);
        }
        let wanted = if call.number == libc::SYS_recvmsg { self.room_of(call)? } else { call.args[2] as usize };
        Ok(self.look_at(socket, wanted, until))
    }

    /// The total length of a message's parts.
    fn room_of(&self, call: &Call) -> Result<usize> {
        let message: [u8; 56] = call.target.read(call.args[1])?;
        let number = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap_or_default());
        let mut parts = vec![0; (number(24) as usize).min(PARTS_MAX) * 16];
        call.target.read_into(number(16), &mut parts)?;
        let len = |part: &[u8]| part[8..].try_into().map_or(0, usize::from_ne_bytes);
        Ok(parts.chunks_exact(16).fold(0, |all: usize, part| all.saturating_add(len(part))))
    }

    /// A peek with MSG_WAITALL waits for all bytes, as on a TCP socket.
    pub(super) fn look_at(&self, socket: OwnedFd, wanted: usize, until: Option<Instant>) -> Answer {
        // A unix socket holds less than a TCP socket may; this much is nearly all of it.
        if readable(&socket) >= wanted.min(LOOKED_MAX) || ended(&socket) {
            return Answer::GoOn;
        }
        Answer::Wait(Waiting { socket, what: What::Look { wanted }, until })
    }

    /// Discards bytes as TCP does for MSG_TRUNC without a buffer; with MSG_PEEK returns how many it
    /// would discard.
    pub(super) fn discard(&self, call: &Call, socket: OwnedFd, until: Option<Instant>) -> Answer {
        let (len, flags) = ((call.args[2] as usize).min(DISCARDED_MAX), call.int(3));
        // If signals can interrupt it, the call might end after bytes are gone.
        if !self.killable || len == 0 || !self.is_valid(call) {
            return Answer::GoOn;
        }
        let peeks = flags & libc::MSG_PEEK != 0;
        let how = RecvFlags::DONTWAIT | if peeks { RecvFlags::PEEK } else { RecvFlags::empty() };
        let (mut rubbish, mut gone) = ([0; 4096], 0);
        while gone < len {
            let most = if gone > 0 { readable(&socket) } else { rubbish.len() };
            let part = rubbish.len().min(len - gone).min(most);
            if part == 0 {
                break;
            }
            match recv(&socket, &mut rubbish[..part], how) {
                Ok((n, _)) if n > 0 && peeks => {
                    let queued = rustix::io::ioctl_fionread(&socket).unwrap_or(0) as usize;
                    return Answer::Value(queued.clamp(n, len) as i64);
                }
                Ok((n, _)) if n > 0 => gone += n,
                Err(Errno::INTR) => {}
                _ if gone > 0 => break,
                Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT == 0 && blocks(&socket).unwrap_or(false) => {
                    return Answer::Wait(Waiting { socket, what: What::Discard, until });
                }
                Err(e) => return Answer::Fail(e.raw_os_error()),
                Ok(_) => return Answer::Value(0),
            }
        }
        Answer::Value(gone as i64)
    }

    /// Sends as TCP does, which ignores the address on a connected socket; `sent` bytes were sent
    /// already.
    pub(super) fn send_on(&self, call: &Call, socket: OwnedFd, mut sent: usize, until: Option<Instant>) -> Answer {
        // If signals can interrupt it, the call might be made again after bytes were sent.
        if !self.killable {
            return Answer::GoOn;
        }
        let (len, flags) = (call.args[2] as usize, call.int(3));
        let so_far = |sent, error| if sent > 0 { Answer::Value(sent as i64) } else { error };
        let mut bytes = vec![0; (len - sent).min(SENT_MAX)];
        loop {
            let part = (len - sent).min(bytes.len());
            if let Err(e) = call.target.read_into(call.args[1] + sent as u64, &mut bytes[..part]) {
                return so_far(sent, Answer::Fail(errno(&e)));
            }
            if !self.is_valid(call) {
                return Answer::GoOn;
            }
            match send(&socket, &bytes[..part], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT == 0 && blocks(&socket).unwrap_or(false) => {
                    return Answer::Wait(Waiting { socket, what: What::Send { sent }, until });
                }
                Err(e) if sent > 0 || e != Errno::PIPE => return so_far(sent, Answer::Fail(e.raw_os_error())),
                Err(_) => return Answer::Fail(self.refused(call, &socket)),
            }
            if sent >= len {
                return Answer::Value(sent as i64);
            }
        }
    }

    /// The error of a call that cannot send, which comes with a signal if it is EPIPE.
    fn refused(&self, call: &Call, socket: &OwnedFd) -> i32 {
        let told = swapped(socket).and_then(|name| self.ask(Kind::State, name.id, |r| r.number = BY_ERROR));
        if let Some(error) = told.map(|(reply, _)| reply.status).filter(|error| *error != 0) {
            return error;
        }
        if call.int(3) & libc::MSG_NOSIGNAL == 0 {
            let _ = send_signal(&call.target.pidfd, libc::SIGPIPE);
        }
        libc::EPIPE
    }

    /// Sends with MSG_OOB: the last byte is the urgent one.
    fn send_urgent(&self, call: &Call, socket: &OwnedFd, name: &Name) -> Result<Answer> {
        let len = call.args[2] as usize;
        let mut bytes = vec![0; len.min(SENT_MAX)];
        call.target.read_into(call.args[1], &mut bytes)?;
        if !self.is_valid(call) {
            return Ok(Answer::GoOn);
        }
        let Some((last, before)) = bytes.split_last() else { return Ok(Answer::Value(0)) };
        let before = if len > SENT_MAX { &bytes[..] } else { before };
        if !before.is_empty() {
            match send(socket, before, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) if n == before.len() && len <= SENT_MAX => {}
                Ok(n) => return Ok(Answer::Value(n as i64)),
                Err(e) => return Ok(Answer::Fail(e.raw_os_error())),
            }
        }
        let reply = self.ask(Kind::Urgent, name.id, |r| (r.value_len, r.value[0]) = (1, *last));
        Ok(match reply.map_or(libc::EAGAIN, |(reply, _)| reply.status) {
            0 => Answer::Value(len as i64),
            _ if !before.is_empty() => Answer::Value(before.len() as i64),
            error => Answer::Fail(error),
        })
    }
}
