//! Hooks that move data, only where a unix socket differs.

use core::ffi::{c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::{active, fail, is_ours};
use crate::begin::{self, ours};
use crate::marks;
use crate::next;
use crate::options;
use crate::receive;
use crate::sys::{errno, set_errno};

/// Maximum of one splice or sendfile. A unix socket accepts more at a time than it can release
/// while one byte of it is unread (`swap.rs`).
const SPLICE_MAX: usize = 65_536;

/// Caps a count for what may be a swapped descriptor. Keeps errno.
#[inline(never)]
extern "C" fn capped(to: c_int, count: size_t) -> size_t {
    if count > SPLICE_MAX && active() && ours(to).is_some() { SPLICE_MAX } else { count }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own arguments; sending less is always allowed.
    unsafe { refused(to, next::sendfile(to, from, offset, capped(to, count))) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { refused(to, next::sendfile64(to, from, offset, capped(to, count))) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { refused(to, next::splice(from, from_at, to, to_at, capped(to, count), flags)) }
}

/// Flags that TCP accepts and a unix socket does not, or handles differently.
const UNUSUAL: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & UNUSUAL != 0 && is_ours(fd) {
            return refused(fd, send_unusual(fd, bytes, len, flags));
        }
        refused(fd, next::send(fd, bytes, len, flags))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        // A connected TCP socket ignores the address, and so does `send` here.
        if (flags & UNUSUAL != 0 || !to.is_null()) && is_ours(fd) {
            return refused(fd, send_unusual(fd, bytes, len, flags));
        }
        refused(fd, next::sendto(fd, bytes, len, flags, to, to_len))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if message.is_null() || !is_unusual(&*message, flags) {
            return refused(fd, next::sendmsg(fd, message, flags));
        }
        if !is_ours(fd) {
            shared_by((*message).msg_control as usize, (*message).msg_controllen as _);
            return next::sendmsg(fd, message, flags);
        }
        // TCP also ignores descriptors and credentials.
        let mut plain = *message;
        plain.msg_name = core::ptr::null_mut();
        plain.msg_control = core::ptr::null_mut();
        (plain.msg_namelen, plain.msg_controllen) = (0, 0);
        if flags & libc::MSG_OOB != 0 && plain.msg_iovlen == 1 {
            let part = *plain.msg_iov;
            return refused(fd, send_unusual(fd, part.iov_base, part.iov_len, flags));
        }
        refused(fd, next::sendmsg(fd, &raw const plain, flags & !UNUSUAL))
    }
}

fn is_unusual(message: &msghdr, flags: c_int) -> bool {
    flags & UNUSUAL != 0 || !message.msg_name.is_null() || message.msg_controllen > 0
}

/// The kernel's limit of messages per call.
const MESSAGES_MAX: c_uint = 1024;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let count = count.min(MESSAGES_MAX);
    // SAFETY: the program's own arguments: `count` messages, whose lengths may be written.
    unsafe {
        let all = || (0..count as usize).map(|n| &raw mut *messages.add(n));
        if messages.is_null() || !all().any(|m| is_unusual(&(*m).msg_hdr, flags)) {
            return refused(fd, next::sendmmsg(fd, messages, count, flags) as ssize_t) as c_int;
        }
        if !is_ours(fd) {
            all().for_each(|m| shared_by((*m).msg_hdr.msg_control as usize, (*m).msg_hdr.msg_controllen as _));
            return next::sendmmsg(fd, messages, count, flags);
        }
        let mut done = 0;
        for message in all() {
            let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            if sent < 0 {
                return if done > 0 { done } else { -1 };
            }
            (*message).msg_len = sent as c_uint;
            done += 1;
            let parts: usize = (*message).msg_hdr.msg_iovlen as _;
            if (0..parts).map(|n| (*(*message).msg_hdr.msg_iov.add(n)).iov_len).sum::<usize>() > sent as usize {
                break;
            }
        }
        done
    }
}

/// Leaves unconnected sockets plain that a message takes to another process.
#[inline(never)]
extern "C" fn shared_by(control: usize, len: usize) {
    if len > 0 && active() && marks::were_any() {
        begin::shared_by(control, len);
    }
}

/// Sets errno to the error that ended the connection; the kernel only knows that the other end of a
/// unix socket is gone. As with TCP, it is reported once.
#[inline]
fn ended(fd: c_int, answer: ssize_t) -> ssize_t {
    if answer < 0 && errno() == libc::ECONNRESET {
        reset_told(fd);
    }
    answer
}

#[inline(never)]
extern "C" fn reset_told(fd: c_int) {
    set_errno(error_of(fd).unwrap_or(libc::ECONNRESET));
}

/// The same for what sends. A unix socket whose other end is gone refuses every write with EPIPE;
/// the first one on a broken TCP connection gets its error.
#[inline]
fn refused(fd: c_int, answer: ssize_t) -> ssize_t {
    if answer < 0 && errno() == libc::EPIPE {
        break_told(fd);
    }
    ended(fd, answer)
}

#[inline(never)]
extern "C" fn break_told(fd: c_int) {
    set_errno(error_of(fd).unwrap_or(libc::EPIPE));
}

/// The error of a connection that ended, unless it was reported before.
fn error_of(fd: c_int) -> Option<c_int> {
    let name = if active() { ours(fd) } else { None };
    name.and_then(|name| begin::error_of(&name)).filter(|number| *number != 0)
}

/// # Safety
/// As `send`.
unsafe fn send_unusual(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let usual = flags & !UNUSUAL;
    // SAFETY: the caller's promise: `len` bytes are there.
    unsafe {
        if flags & libc::MSG_OOB == 0 || len == 0 {
            return next::send(fd, bytes, len, usual);
        }
        // The last byte is the urgent one.
        let sent = if len > 1 { next::send(fd, bytes, len - 1, usual) } else { 0 };
        if sent < 0 || (sent as size_t) < len - 1 {
            return sent;
        }
        urgent_sent(fd, *bytes.cast::<u8>().add(len - 1), sent)
    }
}

#[inline(never)]
extern "C" fn urgent_sent(fd: c_int, byte: u8, before: ssize_t) -> ssize_t {
    match ours(fd).map_or(Err(libc::ENOTCONN), |name| options::urgent(&name, byte)) {
        Ok(()) => before + 1,
        Err(_) if before > 0 => before,
        Err(number) => fail(number) as ssize_t,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL != 0 && is_ours(fd) {
            return ended(fd, receive::unusual(fd, bytes, len, flags));
        }
        ended(fd, next::recv(fd, bytes, len, flags))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL != 0 && is_ours(fd) {
            return ended(fd, receive::unusual(fd, bytes, len, flags));
        }
        ended(fd, next::recvfrom(fd, bytes, len, flags, from, from_len))
    }
}

/// Called by programs built with _FORTIFY_SOURCE. libc aborts programs that ask for more than they
/// have room for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { if len > room { next::__recv_chk(fd, bytes, len, room, flags) } else { recv(fd, bytes, len, flags) } }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if len > room {
            return next::__recvfrom_chk(fd, bytes, len, room, flags, from, from_len);
        }
        recvfrom(fd, bytes, len, flags, from, from_len)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL_IN_PARTS != 0 && is_ours(fd) {
            return ended(fd, receive::unusual_in_parts(fd, message, flags));
        }
        ended(fd, next::recvmsg(fd, message, flags))
    }
}
