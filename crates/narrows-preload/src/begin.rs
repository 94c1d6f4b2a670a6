//! Beginning of connections: what `connect` and `accept` do after the real call.

use core::ffi::c_int;
use core::net::IpAddr;

use crate::control;
use crate::marks::{self, Generation, Taken};
use crate::registrations;
use crate::rings;
use crate::setup;
use crate::swap::{self, Connection};
use crate::sys::{self, Address};
use crate::wire::{
    AF_INET, AF_INET6, BY_CONNECT, BY_ERROR, BY_NAME, Kind, NAME_LEN, Name, RawAddress, Reason, State, host_and_port,
};

/// The name of a swapped descriptor; `None` for any other.
pub(crate) fn ours(fd: c_int) -> Option<Name> {
    setup::get()?;
    let (address, len) = sys::own_address(fd).ok()?;
    if c_int::from(address.family) != libc::AF_UNIX || len != 2 + NAME_LEN {
        return None;
    }
    Name::decode(address.rest.get(..NAME_LEN)?)
}

/// The address family of the TCP socket that a descriptor stands for.
pub(crate) fn family(name: &Name) -> c_int {
    u16::from_ne_bytes([name.local[0], name.local[1]]).into()
}

/// An internet address in the form used in `wire`.
pub(crate) fn raw_address(address: &Address) -> Option<RawAddress> {
    let mut raw = [0; 28];
    let len = match address.family {
        AF_INET => 16,
        AF_INET6 => 28,
        _ => return None,
    };
    raw[..2].copy_from_slice(&address.family.to_ne_bytes());
    raw[2..len].copy_from_slice(address.rest.get(..len - 2)?);
    Some(raw)
}

/// The protocol to use for a socket. For MPTCP the kernel tells too little to prove a connection,
/// and bytes carried by several paths are not framed; so a program that asks for MPTCP gets TCP, to
/// which MPTCP itself falls back where the other end does not support it.
pub(crate) fn protocol(family: c_int, protocol: c_int) -> c_int {
    let asks = protocol == libc::IPPROTO_MPTCP && (family == libc::AF_INET || family == libc::AF_INET6);
    if asks && setup::get().is_some_and(|s| !s.keeps_mptcp) { libc::IPPROTO_TCP } else { protocol }
}

/// A socket was created, in generation `since` or later.
pub(crate) fn made(fd: c_int, family: c_int, kind: c_int, protocol: c_int, since: Generation) {
    let internet = family == libc::AF_INET || family == libc::AF_INET6;
    // SOCK_TYPE_MASK
    if internet && kind & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        marks::put(fd, since);
    } else {
        marks::forget(fd);
    }
}

/// Enough control data for as many descriptors as the kernel allows in one message.
const CONTROL_MAX: usize = 4096;

/// A message with this control data leaves the process: sockets that it passes to another process
/// stay plain.
pub(crate) fn shared_by(control: usize, len: usize) {
    let mut bytes = [0; CONTROL_MAX];
    let Some(all) = bytes.get_mut(..len) else { return marks::next_generation() };
    if sys::read_user(control, all) != Ok(len) {
        return;
    }
    // A `cmsghdr`: length, level, type, then the data; the next one is aligned.
    let mut rest = &all[..];
    while let Some((head, _)) = rest.split_at_checked(16) {
        let number = |at: usize| head[at..at + 4].try_into().map_or(0, c_int::from_ne_bytes);
        let whole = head[..8].try_into().map_or(0, usize::from_ne_bytes);
        let Some(data) = rest.get(16..whole) else { return };
        if (number(8), number(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let fds = data.chunks_exact(4).filter_map(|fd| Some(c_int::from_ne_bytes(*fd.first_chunk()?)));
            fds.for_each(marks::forget_socket);
        }
        rest = rest.get(whole.next_multiple_of(8)..).unwrap_or_default();
    }
}

/// Handles a connection that is established or, with `unanswered`, being made as far as the program
/// knows. Within a host the kernel makes it at once, whatever it answers.
pub(crate) fn connected(fd: c_int, peer: &Address, unanswered: bool) {
    let mark = match marks::take(fd) {
        Taken::Ours(mark) => mark,
        Taken::Shared => {
            registrations::forget(fd);
            if let Some(peer) = raw_address(peer) {
                control::plain(Reason::Shared, |r| r.peer = peer);
            }
            return;
        }
        Taken::Unknown => return registrations::forget(fd),
    };
    if rings::hold(fd) {
        registrations::forget(fd);
        if let Some(peer) = raw_address(peer) {
            control::plain(Reason::Elsewhere, |r| r.peer = peer);
        }
        return;
    }
    // Only the kernel knows what 0.0.0.0 was resolved to, but a connection under way has no peer
    // name yet.
    let known = sys::peer_address(fd).ok().and_then(|(a, _)| raw_address(&a));
    let connecting = unanswered && known.is_none();
    let peer = if connecting { raw_address(peer) } else { known };
    let Some((peer, (host, port))) = peer.and_then(|p| Some((p, host_and_port(&p)?))) else {
        return registrations::forget(fd);
    };
    begin(fd, peer, here(host), port, |local| Connection {
        local,
        peer,
        connecting,
        unanswered,
        accepted: false,
        by_gateway: false,
        mark,
    });
}

/// The address of the gateway on `peer`'s host, to connect to instead. `None`: connect to `peer`
/// itself.
pub(crate) fn gateway_for(fd: c_int, peer: &Address) -> Option<Address> {
    let setup = setup::get().filter(|s| s.gateway_port != 0 && marks::is_ours(fd) && !rings::hold(fd))?;
    let (host, port) = host_and_port(&raw_address(peer)?)?;
    if !setup.is_by_gateway(host, port) || setup.scope.excludes(here(host), port).is_some() {
        return None;
    }
    let mut gateway = *peer;
    gateway.rest.get_mut(..2)?.copy_from_slice(&setup.gateway_port.to_be_bytes());
    Some(gateway)
}

/// Result of connecting to a gateway.
pub(crate) enum ByGateway {
    Done(Result<(), c_int>),
    /// The connection could not be handed over, and the socket is disconnected again: connect it to
    /// the server.
    Plain,
}

/// Hands over a connection to a gateway that is established or being made; the supervisor asks the
/// gateway for the server.
pub(crate) fn reached_gateway(fd: c_int, peer: &Address) -> ByGateway {
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0);
    let swapped = || -> Result<Name, c_int> {
        let Taken::Ours(mark) = marks::take(fd) else { return Err(libc::EBADF) };
        let peer = raw_address(peer).ok_or(libc::EAFNOSUPPORT)?;
        let local = sys::own_address(fd).ok().and_then(|(a, _)| raw_address(&a)).ok_or(libc::EAFNOSUPPORT)?;
        let connection =
            Connection { local, peer, connecting: true, unanswered: true, accepted: false, by_gateway: true, mark };
        swap::swap(fd, &connection)?;
        ours(fd).ok_or(libc::EBADF)
    };
    let Ok(name) = swapped() else {
        // The program's next bytes must not reach the gateway.
        let _ = sys::disconnect(fd);
        return ByGateway::Plain;
    };
    ByGateway::Done(if nonblocking { Err(libc::EINPROGRESS) } else { wait_for(fd, &name) })
}

/// Time limit as of the kernel's own attempts to connect, in polls of one second.
const CONNECT_TRIES: usize = 127;
const CONNECT_MS: i64 = CONNECT_TRIES as i64 * 1000;

fn wait_for(fd: c_int, name: &Name) -> Result<(), c_int> {
    for _ in 0..CONNECT_TRIES {
        let events = sys::poll(fd, libc::POLLOUT, 1000);
        if events & (libc::POLLERR | libc::POLLHUP) != 0 {
            return Err(error_of(name).unwrap_or(libc::ECONNABORTED));
        }
        if events != 0 {
            // Records that a `connect` was answered, so that further ones fail with EISCONN.
            let _ = control::ask(Kind::State, name.id, |r| r.number = BY_CONNECT);
            return Ok(());
        }
    }
    Err(libc::ETIMEDOUT)
}

/// Replaces "any address" by the loopback address: to the kernel it means this host.
fn here(host: IpAddr) -> IpAddr {
    if host.is_unspecified() { IpAddr::V4(core::net::Ipv4Addr::LOCALHOST) } else { host }
}

/// Registers a socket that listens, because its clients will claim their connections. The kernel
/// keeps each client's SYN, the proof of a claim, only if told to.
pub(crate) fn listens(fd: c_int) {
    marks::forget(fd);
    // An MPTCP listener keeps no SYN, but clients are told why the connection stays plain.
    let protocol = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol != Ok(libc::IPPROTO_TCP) && protocol != Ok(libc::IPPROTO_MPTCP) {
        return;
    }
    let Some(local) = sys::own_address(fd).ok().and_then(|(a, _)| raw_address(&a)) else { return };
    let Some((host, _)) = host_and_port(&local) else { return };
    // No other host reaches a loopback listener, and connections within the host are plain.
    if host.is_loopback() && setup::get().is_none_or(|s| !s.scope.loopback) {
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32.to_ne_bytes());
    control::post(Kind::Listen, |r| r.local = local);
}

/// Handles an accepted connection. `listener` may have begun to listen before this program had it;
/// then it is registered here, so that its next connections can be proved.
pub(crate) fn accepted(listener: c_int, fd: c_int) {
    marks::forget(fd);
    if sys::get_int(listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN) == Ok(0) {
        listens(listener);
    }
    let Ok((peer, _)) = sys::peer_address(fd) else { return };
    let Some((peer, (host, _))) = raw_address(&peer).and_then(|p| Some((p, host_and_port(&p)?))) else { return };
    let tcp = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    let Some((_, port)) = sys::own_address(fd).ok().and_then(|(a, _)| host_and_port(&raw_address(&a)?)) else { return };
    if tcp {
        begin(fd, peer, host, port, |local| Connection {
            local,
            peer,
            connecting: false,
            unanswered: false,
            accepted: true,
            by_gateway: false,
            mark: 0,
        });
    }
}

fn begin(fd: c_int, peer: RawAddress, host: IpAddr, port: u16, connection: impl FnOnce(RawAddress) -> Connection) {
    let Some(setup) = setup::get() else { return };
    let local = sys::own_address(fd).ok().and_then(|(a, _)| raw_address(&a));
    let here = local.as_ref().and_then(host_and_port).map_or(host, |(here, _)| here);
    if let Some(reason) = setup.scope.excludes_between(here, host, port) {
        registrations::forget(fd);
        return control::plain(reason, |r| r.peer = peer);
    }
    if local.is_none_or(|local| swap::swap(fd, &connection(local)).is_err()) {
        registrations::forget(fd);
        control::plain(Reason::Failed, |r| r.peer = peer);
    }
}

/// Result of a further `connect` on a swapped descriptor.
pub(crate) enum Again {
    Answer(Result<(), c_int>),
    /// The TCP socket is back under its number: connect it.
    Retry,
}

pub(crate) fn connect_again(fd: c_int, name: &Name) -> Again {
    if !name.was_connecting {
        return Again::Answer(Err(libc::EISCONN));
    }
    let blocks = sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK as usize == 0);
    let answer = ask_again(fd, name);
    if !blocks || !matches!(answer, Again::Answer(Err(libc::EALREADY))) {
        return answer;
    }
    // An attempt that was interrupted, or that SO_SNDTIMEO cut short, is waited for.
    let time_ms = send_timeout_ms(fd).unwrap_or(CONNECT_MS);
    match sys::poll_interruptibly(fd, libc::POLLOUT, time_ms.min(CONNECT_MS)) {
        Err(number) => Again::Answer(Err(number)),
        Ok(0) if time_ms >= CONNECT_MS => Again::Answer(Err(libc::ETIMEDOUT)),
        Ok(0) => answer,
        Ok(_) => ask_again(fd, name),
    }
}

/// SO_SNDTIMEO in milliseconds. `None`: calls wait for ever.
fn send_timeout_ms(fd: c_int) -> Option<i64> {
    let mut time = [0; 16];
    sys::get_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut time).ok()?;
    let half = |at: usize| Some(i64::from_ne_bytes(*time.get(at..at + 8)?.first_chunk()?));
    let (seconds, micros) = (half(0)?, half(8)?);
    (seconds | micros != 0).then(|| seconds.saturating_mul(1000).saturating_add(micros / 1000).max(1))
}

fn ask_again(fd: c_int, name: &Name) -> Again {
    let Some((reply, _)) = control::ask(Kind::State, name.id, |r| r.number = BY_CONNECT) else {
        return Again::Answer(Err(libc::EISCONN));
    };
    match State::of(reply.value().first().copied().unwrap_or(0)) {
        State::Connecting => Again::Answer(Err(libc::EALREADY)),
        State::JustConnected => Again::Answer(Ok(())),
        State::Connected | State::Gone => Again::Answer(Err(libc::EISCONN)),
        State::Failed if reply.status != 0 => Again::Answer(Err(reply.status)),
        State::Failed => match take_back(fd, name) {
            Ok(()) => Again::Retry,
            Err(number) => Again::Answer(Err(number)),
        },
    }
}

/// Puts back a TCP socket that can connect again: after a failed attempt the original one with all
/// its options, in place of a connection that the program dissolves a new one.
pub(crate) fn take_back(fd: c_int, name: &Name) -> Result<(), c_int> {
    let since = marks::generation();
    let returned = control::ask(Kind::TakeBack, name.id, |_| ()).and_then(|(_, fd)| fd);
    let socket = match returned {
        Some(socket) => socket,
        None => sys::tcp_socket(family(name))?,
    };
    let manners = sys::fcntl(fd, libc::F_GETFL, 0)? & (libc::O_NONBLOCK | libc::O_ASYNC) as usize;
    let closes = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC as usize != 0;
    let put = sys::fcntl(socket, libc::F_SETFL, manners)
        .and_then(|_| sys::dup3(socket, fd, if closes { libc::O_CLOEXEC } else { 0 }));
    sys::close(socket);
    put?;
    marks::put(fd, since);
    Ok(())
}

/// The error with which connecting failed, or that broke the connection; the kernel only knows that
/// the other end of a unix socket is gone. 0 if it was already reported.
pub(crate) fn error_of(name: &Name) -> Option<c_int> {
    let (reply, _) = control::ask(Kind::State, name.id, |r| r.number = BY_ERROR)?;
    let state = State::of(reply.value().first().copied().unwrap_or(0));
    (reply.status != 0 || matches!(state, State::Failed)).then_some(reply.status)
}

/// Whether a swapped descriptor has a peer, for `getpeername`.
pub(crate) fn has_peer(fd: c_int, name: &Name) -> bool {
    let events = sys::poll(fd, libc::POLLOUT, 0);
    let over = events & (libc::POLLHUP | libc::POLLERR) != 0;
    // Writable means connected: the fill bytes were taken out. If it is not writable it may also be
    // full of data.
    if !over && (!name.was_connecting || events & libc::POLLOUT != 0) {
        return true;
    }
    let state = control::ask(Kind::State, name.id, |r| r.number = BY_NAME).map(|(reply, _)| reply);
    let state = state.map_or(State::Gone, |r| State::of(r.value().first().copied().unwrap_or(0)));
    matches!(state, State::JustConnected | State::Connected)
}
