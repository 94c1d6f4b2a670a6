//! Socket options: those that a unix socket does not have are read from and set on the TCP socket,
//! which the supervisor holds.

use core::ffi::c_int;

use crate::begin::{error_of, family, ours};
use crate::control;
use crate::kinds::denied;
use crate::sys;
use crate::wire::{Kind, Name, VALUE_MAX};

/// Reads an option of the TCP socket; returns the number of bytes filled in `value`.
pub(crate) fn get(fd: c_int, name: &Name, level: c_int, option: c_int, value: &mut [u8]) -> Result<usize, c_int> {
    let asked = value.len().min(VALUE_MAX);
    let answer = control::ask(Kind::GetOption, name.id, |r| {
        (r.level, r.option, r.value_len) = (level, option, asked as u16);
        // Some options read the buffer, for example for how much of a structure is wanted.
        r.value[..asked].copy_from_slice(&value[..asked]);
    });
    let Some((reply, _)) = answer else {
        return if is_over(fd) { get_of_closed(name, level, option, value) } else { Err(libc::ENOBUFS) };
    };
    if reply.status != 0 {
        return Err(reply.status);
    }
    let len = reply.value().len().min(asked);
    value[..len].copy_from_slice(&reply.value()[..len]);
    Ok(len)
}

fn is_over(fd: c_int) -> bool {
    sys::poll(fd, 0, 0) & libc::POLLHUP != 0
}

/// Answers as any unconnected TCP socket does.
fn get_of_closed(name: &Name, level: c_int, option: c_int, value: &mut [u8]) -> Result<usize, c_int> {
    let socket = sys::tcp_socket(family(name))?;
    let len = sys::get_option(socket, level, option, value);
    sys::close(socket);
    len
}

pub(crate) fn set(fd: c_int, name: &Name, level: c_int, option: c_int, value: &[u8]) -> Result<(), c_int> {
    if let Some(number) = denied(level, option, value) {
        return Err(number);
    }
    if value.len() > VALUE_MAX {
        return Err(libc::ENOPROTOOPT);
    }
    let answer = control::ask(Kind::SetOption, name.id, |r| {
        (r.level, r.option, r.value_len) = (level, option, value.len() as u16);
        r.value[..value.len()].copy_from_slice(value);
    });
    match answer {
        Some((reply, _)) if reply.status != 0 => Err(reply.status),
        Some(_) => Ok(()),
        // The supervisor and the connection are gone, so the option makes no difference.
        None if is_over(fd) => Ok(()),
        // In another network namespace or a sandbox the supervisor cannot be reached. Servers could
        // do without the options they set there, but most exit if one is refused.
        None if !control::is_reachable() => Ok(()),
        None => Err(libc::ENOBUFS),
    }
}

/// Translates a unix socket's answer about itself to the TCP socket's. `None`: keep it.
pub(crate) fn translated(fd: c_int, option: c_int, value: c_int) -> Option<c_int> {
    match option {
        libc::SO_ERROR if value == libc::ECONNRESET => ours(fd).and_then(|name| error_of(&name)),
        libc::SO_DOMAIN if value == libc::AF_UNIX => ours(fd).map(|name| family(&name)),
        libc::SO_PROTOCOL if value == 0 => ours(fd).map(|_| libc::IPPROTO_TCP),
        _ => None,
    }
}

/// Bytes that the peer's kernel has not confirmed. `None` if it is not a swapped descriptor or
/// nobody answers.
pub(crate) fn out_queue(fd: c_int) -> Option<c_int> {
    let name = ours(fd)?;
    let (reply, _) = control::ask(Kind::OutQueue, name.id, |_| ())?;
    Some(c_int::from_ne_bytes(*reply.value().first_chunk()?))
}

/// Sends one byte urgently, after everything written so far.
pub(crate) fn urgent(name: &Name, byte: u8) -> Result<(), c_int> {
    let answer = control::ask(Kind::Urgent, name.id, |r| (r.value_len, r.value[0]) = (1, byte));
    match answer {
        Some((reply, _)) if reply.status == 0 => Ok(()),
        Some((reply, _)) => Err(reply.status),
        None => Err(libc::EAGAIN),
    }
}
