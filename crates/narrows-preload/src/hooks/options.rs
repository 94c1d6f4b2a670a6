//! Hooks for the options of a socket, and for requests (ioctl) about it.

use core::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;

use super::{active, fail, named};
use crate::begin::{self, ours};
use crate::kinds;
use crate::marks;
use crate::next;
use crate::options;
use crate::sys::{self, errno, set_errno};
use crate::wire::{Name, VALUE_MAX};

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if kinds::is_forwarded(level, option)
        && let Some(name) = named(fd)
    {
        return option_told(fd, &name, level, option, value as usize, len as usize);
    }
    // SAFETY: the program's own arguments; if the call succeeded, the kernel has written both.
    unsafe {
        let answer = next::getsockopt(fd, level, option, value, len);
        if answer != 0 && active() && level != libc::SOL_SOCKET && errno() == libc::EOPNOTSUPP {
            return match ours(fd) {
                Some(name) => option_told(fd, &name, level, option, value as usize, len as usize),
                None => fail(libc::EOPNOTSUPP),
            };
        }
        if answer == 0 && active() && level == libc::SOL_SOCKET && *len <= 4 {
            // A shorter buffer gets the beginning.
            let (mut number, room) = ([0; 4], *len as usize);
            core::ptr::copy_nonoverlapping(value.cast(), number.as_mut_ptr(), room);
            if let Some(translated) = options::translated(fd, option, c_int::from_ne_bytes(number)) {
                core::ptr::copy_nonoverlapping(translated.to_ne_bytes().as_ptr(), value.cast(), room);
            }
        }
        answer
    }
}

#[allow(improper_ctypes_definitions, reason = "only called from here; the border is for panics")]
extern "C" fn option_told(fd: c_int, name: &Name, level: c_int, option: c_int, value: usize, len: usize) -> c_int {
    let told = || -> Result<(), c_int> {
        let (mut room, mut bytes) = ([0; 4], [0; VALUE_MAX]);
        if sys::read_user(len, &mut room)? != room.len() {
            return Err(libc::EFAULT);
        }
        let room = usize::try_from(c_int::from_ne_bytes(room)).map_err(|_| libc::EINVAL)?.min(VALUE_MAX);
        sys::read_user(value, &mut bytes[..room])?;
        let filled = options::get(fd, name, level, option, &mut bytes[..room])?;
        // SAFETY: the program's own arguments.
        unsafe {
            sys::write_user(value, &bytes[..filled])?;
            sys::write_user(len, &(filled as c_int).to_ne_bytes())
        }
    };
    told().map_or_else(fail, |()| 0)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let forward = |name| {
        let mut bytes = [0; VALUE_MAX];
        let Some(bytes) = bytes.get_mut(..len as usize) else { return fail(libc::ENOPROTOOPT) };
        if sys::read_user(value as usize, bytes) != Ok(bytes.len()) {
            return fail(libc::EFAULT);
        }
        options::set(fd, &name, level, option, bytes).map_or_else(fail, |()| 0)
    };
    if kinds::is_forwarded(level, option)
        && active()
        && let Some(name) = ours(fd)
    {
        return forward(name);
    }
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::setsockopt(fd, level, option, value, len) };
    if answer == 0 && kinds::forces_plain(level, option) {
        marks::forget_socket(fd);
    }
    if answer != 0
        && active()
        && level != libc::SOL_SOCKET
        && errno() == libc::EOPNOTSUPP
        && let Some(name) = ours(fd)
    {
        return forward(name);
    }
    answer
}

/// SIOCOUTQNSD, not defined by libc.
const OUTQ_NOT_SENT: u32 = 0x894b;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::ioctl(fd, request, argument) };
    // The kernel uses only these 32 bits, and musl's prototype has no more.
    let request = request as u32;
    if [libc::TIOCOUTQ as u32, OUTQ_NOT_SENT].contains(&request) {
        return queue_told(fd, argument, answer);
    }
    if answer != 0 && kinds::is_of_sockets(request) {
        // SAFETY: the program's own arguments.
        return unsafe { ask_stand_in(fd, request, argument, answer) };
    }
    answer
}

#[inline(never)]
extern "C" fn queue_told(fd: c_int, argument: usize, answer: c_int) -> c_int {
    let before = errno();
    if active()
        && let Some(len) = options::out_queue(fd)
    {
        // SAFETY: the program's own argument, which is for an int.
        return unsafe { sys::write_user(argument, &len.to_ne_bytes()) }.map_or_else(fail, |()| 0);
    }
    set_errno(before);
    answer
}

/// Makes the request on a TCP socket of the program's own: about the host (SIOCGIFADDR: the address
/// of an interface) any TCP socket gives the answer that a unix socket does not have.
#[inline(never)]
unsafe extern "C" fn ask_stand_in(fd: c_int, request: u32, argument: usize, answer: c_int) -> c_int {
    let before = errno();
    let told = named(fd).map(|name| {
        let socket = sys::tcp_socket(begin::family(&name))?;
        // SAFETY: the caller's promise.
        let told = unsafe { sys::ioctl(socket, request, argument) };
        sys::close(socket);
        told
    });
    match told {
        Some(Ok(answer)) => answer as c_int,
        Some(Err(number)) => fail(number),
        None => {
            set_errno(before);
            answer
        }
    }
}
