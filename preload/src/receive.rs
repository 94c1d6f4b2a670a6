//! Receiving with flags that a unix socket takes otherwise than TCP.
#![allow(unsafe_code, reason = "deals with buffers of the program; every block says why it is sound")]

use core::ffi::{c_int, c_void};

use libc::{msghdr, pollfd, size_t, ssize_t};

use crate::next;
use crate::sys::{self, set_errno};

pub(crate) const UNUSUAL: c_int = libc::MSG_TRUNC | libc::MSG_ERRQUEUE | libc::MSG_WAITALL;
/// The same of a message in parts, of which nobody throws bytes away.
pub(crate) const UNUSUAL_IN_PARTS: c_int = libc::MSG_ERRQUEUE | libc::MSG_WAITALL;

/// Bytes are thrown away in pieces of so many.
const DISCARD: usize = 4096;

/// Bytes that a call gets without a look at what is behind them. The kernel tells of a reset once, and a call that finds
/// nothing takes that along: who throws away more than there is would leave an end of stream to the next call.
fn readable(fd: c_int) -> usize {
    // An urgent byte is counted, but only read as such.
    let urgent = sys::poll(fd, libc::POLLPRI, 0) & libc::POLLPRI != 0;
    sys::unread(fd).unwrap_or(0).saturating_sub(usize::from(urgent))
}

/// TCP throws bytes away with MSG_TRUNC, into no buffer if need be; and it has no queue of errors to show.
///
/// # Safety
/// As `recv`.
pub(crate) unsafe fn unusual(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE != 0 {
        set_errno(libc::EAGAIN);
        return -1;
    }
    let mut rubbish = [0u8; DISCARD];
    let mut gone: size_t = 0;
    if bytes.is_null() && flags & libc::MSG_PEEK != 0 && len > 0 {
        // SAFETY: `rubbish` has a byte. It waits, and fails, as the program's call would.
        return match unsafe { next::recv(fd, rubbish.as_mut_ptr().cast(), 1, flags & !libc::MSG_TRUNC) } {
            n if n > 0 => sys::unread(fd).map_or(n, |queued| queued.clamp(1, len) as ssize_t),
            n => n,
        };
    }
    while bytes.is_null() && gone < len {
        let wait = if gone > 0 { libc::MSG_DONTWAIT } else { 0 };
        let most = if gone > 0 { readable(fd) } else { DISCARD };
        let part = (len - gone).min(DISCARD).min(most);
        if part == 0 {
            break;
        }
        // SAFETY: `rubbish` has `part` bytes.
        match unsafe { next::recv(fd, rubbish.as_mut_ptr().cast(), part, flags & !libc::MSG_TRUNC | wait) } {
            n if n > 0 => gone += n as size_t,
            n if gone == 0 => return n,
            _ => break,
        }
    }
    if bytes.is_null() {
        return gone as ssize_t;
    }
    let flags = flags & !libc::MSG_TRUNC;
    // SAFETY: the program's own buffer.
    unsafe {
        if flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0 {
            return all(fd, bytes, len, flags & !libc::MSG_WAITALL);
        }
        next::recv(fd, bytes, len, flags)
    }
}

/// As `unusual`, of a message. One buffer can be waited for; with more the kernel does what it does.
///
/// # Safety
/// As `recvmsg`.
pub(crate) unsafe fn unusual_in_parts(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE != 0 {
        set_errno(libc::EAGAIN);
        return -1;
    }
    // SAFETY: the program's own message. It is only looked at where the kernel would do so too: who gives a bad pointer gets EFAULT
    // from the system calls of `read_user`.
    unsafe {
        let mut copy = [0; size_of::<msghdr>()];
        if sys::read_user(message as usize, &mut copy).is_err() {
            return next::recvmsg(fd, message, flags);
        }
        let (parts, control) = ((*message).msg_iovlen, (*message).msg_controllen);
        let mut part = [0; size_of::<libc::iovec>()];
        let one = parts == 1 && control == 0;
        if !one || flags & libc::MSG_PEEK != 0 || sys::read_user((*message).msg_iov as usize, &mut part).is_err() {
            return next::recvmsg(fd, message, flags);
        }
        let part = &*(*message).msg_iov;
        let got = unusual(fd, part.iov_base, part.iov_len, flags);
        if got >= 0 {
            ((*message).msg_flags, (*message).msg_namelen) = (0, 0);
        }
        got
    }
}

/// What MSG_WAITALL waits for, without it: the kernel would take an error along when it gives out less than was asked for, and
/// leave an end of stream to the next call, where TCP keeps the error.
///
/// # Safety
/// As `recv`.
unsafe fn all(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own buffer. The first piece waits, and fails, as the program's call would.
    let first = unsafe { next::recv(fd, bytes, len, flags) };
    let waits = flags & libc::MSG_DONTWAIT == 0
        && sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|mode| mode as c_int & libc::O_NONBLOCK == 0);
    if first <= 0 || !waits {
        return first;
    }
    let mut got = first as size_t;
    let wait_ms = wait_ms(fd);
    while got < len {
        let part = readable(fd).min(len - got);
        if part == 0 {
            let mut look = pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which libc writes. A signal, the time or an end without more bytes ends the wait.
            let woken = unsafe { next::poll(&raw mut look, 1, wait_ms) };
            if woken <= 0 || readable(fd) == 0 {
                break;
            }
            continue;
        }
        // SAFETY: `got + part` is at most `len`.
        match unsafe { next::recv(fd, bytes.cast::<u8>().add(got).cast(), part, flags | libc::MSG_DONTWAIT) } {
            n if n > 0 => got += n as size_t,
            _ => break,
        }
    }
    got as ssize_t
}

/// SO_RCVTIMEO; -1 is for ever.
fn wait_ms(fd: c_int) -> c_int {
    let mut time = [0u8; size_of::<libc::timeval>()];
    if sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut time).is_err() {
        return -1;
    }
    let (seconds, micros) = time.split_at(time.len() / 2);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_ne_bytes);
    match number(seconds).saturating_mul(1000).saturating_add(number(micros) / 1000) {
        0 => -1,
        ms => ms.clamp(1, c_int::MAX.into()) as c_int,
    }
}
