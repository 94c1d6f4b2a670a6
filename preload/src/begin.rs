//! Connections that begin: what `connect` and `accept` do after the real call.

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

/// The name of a swapped descriptor.
pub(crate) fn ours(fd: c_int) -> Option<Name> {
    setup::get()?;
    let (address, len) = sys::own_address(fd).ok()?;
    if c_int::from(address.family) != libc::AF_UNIX || len != 2 + NAME_LEN {
        return None;
    }
    Name::decode(address.rest.get(..NAME_LEN)?)
}

/// Of the TCP socket that a descriptor stands for.
pub(crate) fn family(name: &Name) -> c_int {
    u16::from_ne_bytes([name.local[0], name.local[1]]).into()
}

/// An internet address as it goes over the wire.
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

/// The protocol of a socket in place of the one that the program asks for. Of MPTCP a program is told too little to prove a
/// connection, and bytes that several paths carry are not framed; so it gets TCP, which is what MPTCP falls back to where
/// the other end does not have it.
pub(crate) fn protocol(family: c_int, protocol: c_int) -> c_int {
    let asks = protocol == libc::IPPROTO_MPTCP && (family == libc::AF_INET || family == libc::AF_INET6);
    if asks && setup::get().is_some_and(|s| !s.keeps_mptcp) { libc::IPPROTO_TCP } else { protocol }
}

/// A socket was made, in that generation or a later one.
pub(crate) fn made(fd: c_int, family: c_int, kind: c_int, protocol: c_int, since: Generation) {
    let internet = family == libc::AF_INET || family == libc::AF_INET6;
    // SOCK_TYPE_MASK
    if internet && kind & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        marks::put(fd, since);
    } else {
        marks::forget(fd);
    }
}

/// Control data of so many bytes carries as many descriptors as the kernel lets one message have.
const CONTROL_MAX: usize = 4096;

/// A message with this control data leaves the process: what it gives to another hand stays plain.
pub(crate) fn shared_by(control: usize, len: usize) {
    let mut bytes = [0; CONTROL_MAX];
    let Some(all) = bytes.get_mut(..len) else { return marks::next_generation() };
    if sys::read_user(control, all) != Ok(len) {
        return;
    }
    // A length, a level, a kind, then what the kind says; the next one is aligned.
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

/// The connection is made (0) or being made.
pub(crate) fn connected(fd: c_int, peer: &Address, connecting: bool) {
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
    // Only the kernel knows what 0.0.0.0 became; but a connection under way has no peer for it yet.
    let peer =
        if connecting { raw_address(peer) } else { sys::peer_address(fd).ok().and_then(|(a, _)| raw_address(&a)) };
    let Some((peer, (host, port))) = peer.and_then(|p| Some((p, host_and_port(&p)?))) else {
        return registrations::forget(fd);
    };
    begin(fd, peer, here(host), port, |local| Connection {
        local,
        peer,
        connecting,
        accepted: false,
        by_gateway: false,
        mark,
    });
}

/// Where to connect in place of `peer`: the gateway on its host, if there is one for it. `None`: there, as always.
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

/// What the program's `connect` answers.
pub(crate) enum ByGateway {
    Done(Result<(), c_int>),
    /// The gateway was reached in vain, and the socket is as before: connect it to the server.
    Plain,
}

/// The gateway is reached, or being reached; its supervisor asks it for the server.
pub(crate) fn reached_gateway(fd: c_int, peer: &Address) -> ByGateway {
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0);
    let swapped = || -> Result<Name, c_int> {
        let Taken::Ours(mark) = marks::take(fd) else { return Err(libc::EBADF) };
        let peer = raw_address(peer).ok_or(libc::EAFNOSUPPORT)?;
        let local = sys::own_address(fd).ok().and_then(|(a, _)| raw_address(&a)).ok_or(libc::EAFNOSUPPORT)?;
        let connection = Connection { local, peer, connecting: true, accepted: false, by_gateway: true, mark };
        swap::swap(fd, &connection)?;
        ours(fd).ok_or(libc::EBADF)
    };
    let Ok(name) = swapped() else {
        // What the program would say next is not for the gateway.
        let _ = sys::disconnect(fd);
        return ByGateway::Plain;
    };
    ByGateway::Done(if nonblocking { Err(libc::EINPROGRESS) } else { wait_for(fd, &name) })
}

/// As long as the kernel tries to connect by itself.
const CONNECT_TRIES: usize = 127;
const CONNECT_MS: i64 = CONNECT_TRIES as i64 * 1000;

fn wait_for(fd: c_int, name: &Name) -> Result<(), c_int> {
    for _ in 0..CONNECT_TRIES {
        let events = sys::poll(fd, libc::POLLOUT, 1000);
        if events & (libc::POLLERR | libc::POLLHUP) != 0 {
            return Err(error_of(name).unwrap_or(libc::ECONNABORTED));
        }
        if events != 0 {
            // Further calls of connect are told that it is done.
            let _ = control::ask(Kind::State, name.id, |r| r.number = BY_CONNECT);
            return Ok(());
        }
    }
    Err(libc::ETIMEDOUT)
}

/// The kernel takes "any address" for this host.
fn here(host: IpAddr) -> IpAddr {
    if host.is_unspecified() { IpAddr::V4(core::net::Ipv4Addr::LOCALHOST) } else { host }
}

/// A socket listens: its connections will be claimed by who made them. The kernel keeps each client's SYN, which is the
/// proof of a claim, only if it is told to.
pub(crate) fn listens(fd: c_int) {
    marks::forget(fd);
    // One of MPTCP keeps no SYN; but who connects to it is told why it stays plain.
    let protocol = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol != Ok(libc::IPPROTO_TCP) && protocol != Ok(libc::IPPROTO_MPTCP) {
        return;
    }
    let Some(local) = sys::own_address(fd).ok().and_then(|(a, _)| raw_address(&a)) else { return };
    let Some((host, _)) = host_and_port(&local) else { return };
    // Nobody else reaches it, and what comes from within the host is plain.
    if host.is_loopback() && setup::get().is_none_or(|s| !s.scope.loopback) {
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32.to_ne_bytes());
    control::post(Kind::Listen, |r| r.local = local);
}

/// `listener` may listen since before this program had it; then the next connections can be proved.
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

/// What a further `connect` on a swapped descriptor is to do.
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
    // An attempt that was interrupted, or for which SO_SNDTIMEO was too short, is waited for.
    let time_ms = send_timeout_ms(fd).unwrap_or(CONNECT_MS);
    match sys::poll_interruptibly(fd, libc::POLLOUT, time_ms.min(CONNECT_MS)) {
        Err(number) => Again::Answer(Err(number)),
        Ok(0) if time_ms >= CONNECT_MS => Again::Answer(Err(libc::ETIMEDOUT)),
        Ok(0) => answer,
        Ok(_) => ask_again(fd, name),
    }
}

/// `None`: calls wait for ever.
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

/// A TCP socket that may connect again: after an attempt that failed the one of before, with all its options; in place of
/// a connection that the program dissolves a new one.
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

/// What connecting failed with, where the kernel only knows that the other end of a unix socket is gone. 0: it was told already.
pub(crate) fn error_of(name: &Name) -> Option<c_int> {
    let (reply, _) = control::ask(Kind::State, name.id, |r| r.number = BY_ERROR)?;
    let state = State::of(reply.value().first().copied().unwrap_or(0));
    (reply.status != 0 || matches!(state, State::Failed)).then_some(reply.status)
}

/// Whether a swapped descriptor has a peer, for `getpeername`.
pub(crate) fn has_peer(fd: c_int, name: &Name) -> bool {
    let events = sys::poll(fd, libc::POLLOUT, 0);
    let over = events & (libc::POLLHUP | libc::POLLERR) != 0;
    // Writable means connected: what fills it was taken out. Otherwise it may be full of data.
    if !over && (!name.was_connecting || events & libc::POLLOUT != 0) {
        return true;
    }
    let state = control::ask(Kind::State, name.id, |r| r.number = BY_NAME).map(|(reply, _)| reply);
    let state = state.map_or(State::Gone, |r| State::of(r.value().first().copied().unwrap_or(0)));
    matches!(state, State::JustConnected | State::Connected)
}
