//! Options: what a unix socket does not know is asked of the TCP socket, which the supervisor has.

use core::ffi::c_int;

use crate::begin::{error_of, ours};
use crate::control;
use crate::wire::{Kind, Name, VALUE_MAX};

/// Options of SOL_SOCKET that belong to the connection. The rest belongs to the descriptor: timeouts, low-water mark.
const FORWARDED: [c_int; 20] = [
    libc::SO_REUSEADDR,
    libc::SO_DONTROUTE,
    libc::SO_BROADCAST,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUFFORCE,
    libc::SO_KEEPALIVE,
    libc::SO_PRIORITY,
    libc::SO_LINGER,
    libc::SO_REUSEPORT,
    libc::SO_BINDTODEVICE,
    libc::SO_MARK,
    libc::SO_BUSY_POLL,
    libc::SO_MAX_PACING_RATE,
    libc::SO_INCOMING_CPU,
    libc::SO_MEMINFO,
    libc::SO_INCOMING_NAPI_ID,
    libc::SO_COOKIE,
    libc::SO_TXTIME,
];

/// They would change what the bytes on the TCP socket are, or tell of packets that are not the program's.
const DENIED_TCP: [c_int; 10] = [
    libc::TCP_MD5SIG,
    libc::TCP_REPAIR,
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_CONNECT,
    libc::TCP_ULP,
    libc::TCP_ZEROCOPY_RECEIVE,
    // TCP_MD5SIG_EXT and TCP_AO_*, which libc does not all name.
    32,
    38,
    39,
    40,
];
const DENIED_SOCKET: [c_int; 3] = [libc::SO_ZEROCOPY, libc::SO_TIMESTAMPING, libc::SO_ATTACH_REUSEPORT_EBPF];

/// The connection cannot be handed over once such an option is set.
pub(crate) fn forces_plain(level: c_int, option: c_int) -> bool {
    level == libc::IPPROTO_TCP && DENIED_TCP.contains(&option)
        || level == libc::SOL_SOCKET && DENIED_SOCKET.contains(&option)
}

/// Of the TCP socket, whatever a unix socket would say.
pub(crate) fn is_forwarded(level: c_int, option: c_int) -> bool {
    level == libc::SOL_SOCKET && (FORWARDED.contains(&option) || DENIED_SOCKET.contains(&option))
}

pub(crate) fn is_internet(level: c_int) -> bool {
    level == libc::IPPROTO_TCP || level == libc::IPPROTO_IP || level == libc::IPPROTO_IPV6
}

/// Asks the TCP socket; how many bytes of `value` it filled.
pub(crate) fn get(name: &Name, level: c_int, option: c_int, value: &mut [u8]) -> Result<usize, c_int> {
    if level == libc::SOL_SOCKET && DENIED_SOCKET.contains(&option) {
        return Err(libc::ENOPROTOOPT);
    }
    let asked = value.len().min(VALUE_MAX);
    let answer = control::ask(Kind::GetOption, name.id, |r| {
        (r.level, r.option, r.value_len) = (level, option, asked as u16);
        // Some options read what is there, such as how much of a structure is wanted.
        r.value[..asked].copy_from_slice(&value[..asked]);
    });
    let Some((reply, _)) = answer else { return Err(libc::EOPNOTSUPP) };
    if reply.status != 0 {
        return Err(reply.status);
    }
    let len = reply.value().len().min(asked);
    value[..len].copy_from_slice(&reply.value()[..len]);
    Ok(len)
}

pub(crate) fn set(name: &Name, level: c_int, option: c_int, value: &[u8]) -> Result<(), c_int> {
    if forces_plain(level, option) || value.len() > VALUE_MAX {
        return Err(libc::ENOPROTOOPT);
    }
    let answer = control::ask(Kind::SetOption, name.id, |r| {
        (r.level, r.option, r.value_len) = (level, option, value.len() as u16);
        r.value[..value.len()].copy_from_slice(value);
    });
    match answer {
        Some((reply, _)) if reply.status != 0 => Err(reply.status),
        // A supervisor that does not answer: most programs take a refused option for a failed connection.
        _ => Ok(()),
    }
}

/// What a unix socket says of itself, as the TCP socket would. `None`: let it stand.
pub(crate) fn translated(fd: c_int, option: c_int, value: c_int) -> Option<c_int> {
    match option {
        libc::SO_ERROR if value == libc::ECONNRESET => ours(fd).and_then(|name| error_of(&name)),
        libc::SO_DOMAIN if value == libc::AF_UNIX => {
            ours(fd).map(|name| u16::from_ne_bytes([name.local[0], name.local[1]]).into())
        }
        libc::SO_PROTOCOL if value == 0 => ours(fd).map(|_| libc::IPPROTO_TCP),
        _ => None,
    }
}

/// Bytes that the peer's kernel has not confirmed. `None`: not a swapped descriptor.
pub(crate) fn out_queue(fd: c_int) -> Option<c_int> {
    let name = ours(fd)?;
    let (reply, _) = control::ask(Kind::OutQueue, name.id, |_| ())?;
    Some(c_int::from_ne_bytes(*reply.value().first_chunk()?))
}

/// Sends one byte urgently, behind all that was written.
pub(crate) fn urgent(name: &Name, byte: u8) -> Result<(), c_int> {
    let answer = control::ask(Kind::Urgent, name.id, |r| (r.value_len, r.value[0]) = (1, byte));
    match answer {
        Some((reply, _)) if reply.status == 0 => Ok(()),
        Some((reply, _)) => Err(reply.status),
        None => Err(libc::EAGAIN),
    }
}
