//! Options: what a unix socket does not know is asked of the TCP socket, which the supervisor has.

use core::ffi::c_int;

use crate::begin::{error_of, ours};
use crate::control;
use crate::kinds::{DENIED_SOCKET, forces_plain};
use crate::wire::{Kind, Name, VALUE_MAX};

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
