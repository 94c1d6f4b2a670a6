//! Hooks that tell the addresses of a socket.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};

use super::{fail, named};
use crate::begin;
use crate::next;
use crate::sys;
use crate::wire::RawAddress;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        match named(fd) {
            Some(name) => tell(fd, &name.local, address, len),
            None => next::getsockname(fd, address, len),
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        match named(fd) {
            Some(name) if !begin::has_peer(fd, &name) => fail(libc::ENOTCONN),
            Some(name) => tell(fd, &name.peer, address, len),
            None => next::getpeername(fd, address, len),
        }
    }
}

/// # Safety
/// As `getsockname`.
unsafe fn tell(fd: c_int, raw: &RawAddress, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let mut room = [0; 4];
    if sys::read_user(len as usize, &mut room) != Ok(4) {
        return fail(libc::EFAULT);
    }
    // The unix socket's name is longer than the address to return, so if the kernel can write that,
    // there is room for the address.
    let answer = unsafe { next::getsockname(fd, address, len) };
    if answer != 0 {
        return answer;
    }
    let whole: socklen_t = if u16::from_ne_bytes([raw[0], raw[1]]) == crate::wire::AF_INET { 16 } else { 28 };
    let room = socklen_t::from_ne_bytes(room);
    // SAFETY: the kernel has written at least as much to both; `raw` has `whole` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(raw.as_ptr(), address.cast(), whole.min(room) as usize);
        *len = whole;
    }
    answer
}
