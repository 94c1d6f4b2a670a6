//! Socket options: classifies them as belonging to the TCP connection or to the descriptor.
//!
//! Both the preloaded library and the supervisor use it.

use core::ffi::c_int;

/// Options of SOL_SOCKET that belong to the descriptor: how calls on it wait, and what it is. Every
/// other one is the TCP connection's, including those of later kernels: a unix socket's answers
/// about its peer (SO_PEERCRED and the like) would name a user of this host for whoever is at the
/// other end of the network.
pub const OF_DESCRIPTOR: [c_int; 13] = [
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
    // SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW (64-bit seconds), which libc defines on some
    // architectures only.
    66,
    67,
];

/// TCP options that change the meaning of the bytes on the TCP socket, or report packets that are
/// not the program's.
const DENIED_TCP: [c_int; 11] = [
    libc::TCP_MD5SIG,
    libc::TCP_REPAIR,
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_CONNECT,
    libc::TCP_ULP,
    libc::TCP_ZEROCOPY_RECEIVE,
    libc::TCP_INQ,
    // TCP_MD5SIG_EXT and TCP_AO_*, not all defined by libc.
    32,
    38,
    39,
    40,
];
/// Socket options that make calls on data report more than the data. SO_TIMESTAMP, -NS and -ING
/// have two numbers each.
const DENIED_SOCKET: [c_int; 8] = [libc::SO_ZEROCOPY, libc::SO_ATTACH_REUSEPORT_EBPF, 29, 35, 37, 63, 64, 65];

/// Whether the connection must stay plain once such an option is set.
pub fn forces_plain(level: c_int, option: c_int) -> bool {
    level == libc::IPPROTO_TCP && DENIED_TCP.contains(&option)
        || level == libc::SOL_SOCKET && DENIED_SOCKET.contains(&option)
}

/// The errno that refuses such an option after the hand-over. Switching it off is allowed, since it
/// is not set.
pub fn denied(level: c_int, option: c_int, value: &[u8]) -> Option<c_int> {
    // By then the kernel refuses these itself.
    let late = level == libc::IPPROTO_TCP && [libc::TCP_FASTOPEN, libc::TCP_FASTOPEN_CONNECT].contains(&option);
    let denied = forces_plain(level, option) && !late && value.iter().any(|byte| *byte != 0);
    // As in the kernel, which checks the length first.
    let number = if value.len() < size_of::<c_int>() { libc::EINVAL } else { libc::ENOPROTOOPT };
    denied.then_some(number)
}

/// Whether the option is always the TCP socket's, whatever a unix socket would answer.
pub fn is_forwarded(level: c_int, option: c_int) -> bool {
    level == libc::SOL_SOCKET && !OF_DESCRIPTOR.contains(&option)
}

/// Whether an `ioctl` request is about sockets and the network, but not one about the descriptor,
/// which all sockets know.
#[cfg_attr(not(test), allow(dead_code, reason = "the supervisor knows the few that its filter asks about"))]
pub fn is_of_sockets(request: u32) -> bool {
    // All but FIOSETOWN to SIOCATMARK.
    request >> 8 & 0xff == 0x89 && !(0x8901..=0x8905).contains(&request)
}
