//! Which options of a socket belong to the TCP connection, and which to the descriptor.
//!
//! The supervisor's crate includes this file too.

use core::ffi::c_int;

/// Options of SOL_SOCKET that belong to the descriptor: how a call on it waits, and what it is. Every other one is the TCP
/// connection's, also those that a later kernel has: what a unix socket says of its peer (SO_PEERCRED and its like) would
/// make somebody of this host of whoever is at the other end of the network.
pub(crate) const OF_DESCRIPTOR: [c_int; 13] = [
    libc::SO_TYPE,
    libc::SO_ERROR,
    libc::SO_OOBINLINE,
    libc::SO_RCVLOWAT,
    libc::SO_SNDLOWAT,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_ACCEPTCONN,
    libc::SO_PROTOCOL,
    libc::SO_DOMAIN,
    libc::SO_PEEK_OFF,
    // SO_RCVTIMEO and SO_SNDTIMEO with longer seconds, which libc names on some architectures only.
    66,
    67,
];

/// They would change what the bytes on the TCP socket are, or tell of packets that are not the program's.
const DENIED_TCP: [c_int; 11] = [
    libc::TCP_MD5SIG,
    libc::TCP_REPAIR,
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_CONNECT,
    libc::TCP_ULP,
    libc::TCP_ZEROCOPY_RECEIVE,
    libc::TCP_INQ,
    // TCP_MD5SIG_EXT and TCP_AO_*, which libc does not all name.
    32,
    38,
    39,
    40,
];
/// The same of sockets: what calls on data then say beside the data. SO_TIMESTAMP, -NS and -ING have two numbers each.
const DENIED_SOCKET: [c_int; 8] = [libc::SO_ZEROCOPY, libc::SO_ATTACH_REUSEPORT_EBPF, 29, 35, 37, 63, 64, 65];

/// The connection cannot be handed over once such an option is set.
pub(crate) fn forces_plain(level: c_int, option: c_int) -> bool {
    level == libc::IPPROTO_TCP && DENIED_TCP.contains(&option)
        || level == libc::SOL_SOCKET && DENIED_SOCKET.contains(&option)
}

/// With what such an option is refused when the connection was handed over. It can be taken back, since it is not set.
pub(crate) fn denied(level: c_int, option: c_int, value: &[u8]) -> Option<c_int> {
    // These the kernel refuses itself by then.
    let late = level == libc::IPPROTO_TCP && [libc::TCP_FASTOPEN, libc::TCP_FASTOPEN_CONNECT].contains(&option);
    let denied = forces_plain(level, option) && !late && value.iter().any(|byte| *byte != 0);
    // As the kernel, which looks at the length first.
    let number = if value.len() < size_of::<c_int>() { libc::EINVAL } else { libc::ENOPROTOOPT };
    denied.then_some(number)
}

/// Of the TCP socket, whatever a unix socket would say.
pub(crate) fn is_forwarded(level: c_int, option: c_int) -> bool {
    level == libc::SOL_SOCKET && !OF_DESCRIPTOR.contains(&option)
}

/// A request of `ioctl` that is about sockets and the network; but for those on the descriptor, which all sockets know.
#[cfg_attr(not(test), allow(dead_code, reason = "the supervisor knows the few that its filter asks about"))]
pub(crate) fn is_of_sockets(request: u32) -> bool {
    // But for FIOSETOWN to SIOCATMARK.
    request >> 8 & 0xff == 0x89 && !(0x8901..=0x8905).contains(&request)
}
