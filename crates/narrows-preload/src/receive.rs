//! Receiving with flags that a unix socket handles differently from TCP.
#![allow(unsafe_code, reason = "deals with buffers of the program; every block says why it is sound")]

use core::ffi::{c_int, c_void};

use libc::{iovec, msghdr, pollfd, size_t, ssize_t};

use crate::next;
use crate::sys::{self, set_errno};

pub(crate) const UNUSUAL: c_int = libc::MSG_TRUNC | libc::MSG_ERRQUEUE | libc::MSG_WAITALL;
/// The same for messages in parts, for which nobody uses MSG_TRUNC to discard bytes.
pub(crate) const UNUSUAL_IN_PARTS: c_int = libc::MSG_ERRQUEUE | libc::MSG_WAITALL;

/// Bytes are discarded in pieces of this size.
const DISCARD: usize = 4096;

/// Bytes that a call can read without reaching what follows them. The kernel reports a reset once,
/// and a call that finds no bytes consumes it: a call that discards more than there is would leave
/// an end of stream to the next call.
fn readable(fd: c_int) -> usize {
    // An urgent byte is counted, but can only be read as urgent.
    let urgent = sys::poll(fd, libc::POLLPRI, 0) & libc::POLLPRI != 0;
    sys::unread(fd).unwrap_or(0).saturating_sub(usize::from(urgent))
}

/// Receives with an unusual flag: with MSG_TRUNC and no buffer TCP discards bytes, and its error
/// queue is always empty.
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
        // SAFETY: `rubbish` has a byte. The call waits and fails as the program's would.
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
    let part = iovec { iov_base: bytes, iov_len: len };
    // SAFETY: the program's own buffer.
    unsafe { waiting(fd, &[part], flags & !libc::MSG_TRUNC) }
}

/// As `unusual`, for a message.
///
/// # Safety
/// As `recvmsg`.
pub(crate) unsafe fn unusual_in_parts(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE != 0 {
        set_errno(libc::EAGAIN);
        return -1;
    }
    // SAFETY: the program's own message. It is dereferenced only after `read_user` could read it: a
    // bad pointer gives EFAULT there, and goes to the kernel.
    unsafe {
        let mut copy = [0; size_of::<msghdr>()];
        if sys::read_user(message as usize, &mut copy).is_err() {
            return next::recvmsg(fd, message, flags);
        }
        let count: usize = (*message).msg_iovlen as _;
        let mut parts = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
        let room = core::slice::from_raw_parts_mut(parts.as_mut_ptr().cast::<u8>(), size_of_val(&parts));
        let wanted = room.get_mut(..count.saturating_mul(size_of::<iovec>()));
        if wanted.is_none_or(|wanted| sys::read_user((*message).msg_iov as usize, wanted).is_err()) {
            return next::recvmsg(fd, message, flags);
        }
        let got = if let [only] = parts[..count] {
            unusual(fd, only.iov_base, only.iov_len, flags)
        } else {
            waiting(fd, &parts[..count], flags & !libc::MSG_TRUNC)
        };
        if got >= 0 {
            ((*message).msg_flags, (*message).msg_namelen, (*message).msg_controllen) = (0, 0, 0);
        }
        got
    }
}

/// Messages with more parts are left to the kernel; programs that wait for all bytes have a few.
const PARTS_MAX: usize = 64;

/// Deadline of a call, whatever it receives meanwhile; `None`: no limit.
struct Limit(Option<u64>);

impl Limit {
    /// From SO_RCVTIMEO.
    fn of(fd: c_int) -> Self {
        let mut time = [0u8; size_of::<libc::timeval>()];
        if sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut time).is_err() || time.iter().all(|b| *b == 0)
        {
            return Self(None);
        }
        let (seconds, micros) = time.split_at(time.len() / 2);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let time_ns = number(seconds).saturating_mul(1_000_000_000).saturating_add(number(micros).saturating_mul(1000));
        Self(Some(sys::now_ns().saturating_add(time_ns)))
    }

    /// Time left for poll; -1 is for ever.
    fn left_ms(&self) -> c_int {
        let left = |until: u64| until.saturating_sub(sys::now_ns()).div_ceil(1_000_000).min(c_int::MAX as u64) as c_int;
        self.0.map_or(-1, left)
    }
}

fn len_of(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |len, part| part.iov_len.saturating_add(len))
}

/// Receives, with MSG_WAITALL or without.
///
/// # Safety
/// As `recvmsg`, with these parts.
unsafe fn waiting(fd: c_int, parts: &[iovec], flags: c_int) -> ssize_t {
    let mut limit = Limit(None);
    let waits = flags & libc::MSG_WAITALL != 0
        && flags & libc::MSG_DONTWAIT == 0
        && sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|mode| mode as c_int & libc::O_NONBLOCK == 0);
    if waits {
        limit = Limit::of(fd);
    }
    let flags = flags & !libc::MSG_WAITALL;
    // SAFETY: the program's own buffers. The first call waits and fails as the program's would.
    unsafe {
        let first = receive(fd, parts, flags);
        if first <= 0 || !waits || first as size_t >= len_of(parts) {
            return first;
        }
        if flags & libc::MSG_PEEK != 0 {
            more_than(fd, first as size_t, len_of(parts), &limit);
            return receive(fd, parts, flags | libc::MSG_DONTWAIT).max(first);
        }
        all(fd, parts, first as size_t, flags, &limit)
    }
}

/// # Safety
/// As `recvmsg`, with these parts.
unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> ssize_t {
    // SAFETY: zeros are a valid `msghdr`; the kernel writes into the program's buffers.
    unsafe {
        if let [only] = parts {
            return next::recv(fd, only.iov_base, only.iov_len, flags);
        }
        let mut message: msghdr = core::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
        next::recvmsg(fd, &raw mut message, flags)
    }
}

/// Receives what MSG_WAITALL would, without that flag: the kernel consumes an error when it returns
/// less than was asked for, and leaves an end of stream to the next call, where TCP keeps the
/// error. `got`: bytes received already.
///
/// # Safety
/// As `recvmsg`, with these parts.
unsafe fn all(fd: c_int, parts: &[iovec], mut got: size_t, flags: c_int, limit: &Limit) -> ssize_t {
    let mut begins = 0;
    for part in parts {
        let ends = begins + part.iov_len;
        while got < ends {
            let piece = readable(fd).min(ends - got);
            if piece == 0 {
                let mut look = pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, which libc writes. A signal, the timeout or an end without
                // more bytes ends the wait.
                let woken = unsafe { next::poll(&raw mut look, 1, limit.left_ms()) };
                if woken <= 0 || readable(fd) == 0 {
                    return got as ssize_t;
                }
                continue;
            }
            // SAFETY: `got - begins + piece` is at most the length of the part.
            let more = unsafe {
                let at = part.iov_base.cast::<u8>().add(got - begins);
                next::recv(fd, at.cast(), piece, flags | libc::MSG_DONTWAIT)
            };
            if more <= 0 {
                return got as ssize_t;
            }
            got += more as size_t;
        }
        begins = ends;
    }
    got as ssize_t
}

/// A unix socket holds less than a TCP socket may. If this many bytes wait and no more come for
/// this long, it is full.
const FULL_LEN: usize = 65_536;
const FULL_AFTER_MS: c_int = 100;

/// Waits until `wanted` bytes can be peeked at, of which `seen` are there, or no more will come. A
/// socket that is only peeked at stays readable; edge-triggered epoll reports new bytes.
fn more_than(fd: c_int, mut seen: usize, wanted: usize, limit: &Limit) {
    let Ok(edge) = sys::epoll_make() else { return };
    let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
    let over = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    if sys::epoll_add(edge, fd, events, 0).is_ok() {
        while seen < wanted {
            let left_ms = limit.left_ms();
            let full = seen >= FULL_LEN && !(0..FULL_AFTER_MS).contains(&left_ms);
            match sys::epoll_wait(edge, if full { FULL_AFTER_MS } else { left_ms }) {
                Ok(events) if events != 0 && events & over == 0 => seen = readable(fd),
                _ => break,
            }
        }
    }
    sys::close(edge);
}
