//! Who is at the other end of a unix socket.
#![allow(unsafe_code, reason = "a question to the system that no safe wrapper asks")]

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// Who created, or listens at, the other end of a unix socket.
pub(crate) struct Peer {
    pub(crate) user: u32,
    /// 0 if it is in another pid namespace.
    pub(crate) pid: i32,
}

pub(crate) fn peer_of(socket: &impl AsFd) -> Option<Peer> {
    let mut credentials = [0u8; size_of::<libc::ucred>()];
    let mut len = credentials.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // Not by rustix: its type has no room for the process number 0, which a peer in another pid
    // namespace has.
    // SAFETY: the kernel writes at most `len` bytes, the length of `credentials`.
    let asked = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, credentials.as_mut_ptr().cast(), &raw mut len)
    };
    let user = credentials.get(offset_of!(libc::ucred, uid)..)?.first_chunk()?;
    let pid = credentials.get(offset_of!(libc::ucred, pid)..)?.first_chunk()?;
    let peer = Peer { user: u32::from_ne_bytes(*user), pid: i32::from_ne_bytes(*pid) };
    (asked == 0 && len as usize == credentials.len()).then_some(peer)
}
