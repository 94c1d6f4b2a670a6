//! Which options of a socket belong to the TCP connection, and which to the descriptor.
//!
//! The supervisor's crate includes this file too.

use core::ffi::c_int;

/// Options of SOL_SOCKET that belong to the connection. The rest belongs to the descriptor: timeouts, low-water mark.
pub(crate) const FORWARDED: [c_int; 20] = [
    libc::SO_REUSEADDR,
    libc::SO_DONTROUTE,
    libc::SO_BROADCAST,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUFFORCE,
    libc::SO_KEEPALIVE,
    libc::SO_PRIORITY,
    libc::SO_LINGER,
    libc::SO_REUSEPORT,
    libc::SO_BINDTODEVICE,
    libc::SO_MARK,
    libc::SO_BUSY_POLL,
    libc::SO_MAX_PACING_RATE,
    libc::SO_INCOMING_CPU,
    libc::SO_MEMINFO,
    libc::SO_INCOMING_NAPI_ID,
    libc::SO_COOKIE,
    libc::SO_TXTIME,
];

/// They would change what the bytes on the TCP socket are, or tell of packets that are not the program's.
const DENIED_TCP: [c_int; 10] = [
    libc::TCP_MD5SIG,
    libc::TCP_REPAIR,
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_CONNECT,
    libc::TCP_ULP,
    libc::TCP_ZEROCOPY_RECEIVE,
    // TCP_MD5SIG_EXT and TCP_AO_*, which libc does not all name.
    32,
    38,
    39,
    40,
];
pub(crate) const DENIED_SOCKET: [c_int; 3] = [libc::SO_ZEROCOPY, libc::SO_TIMESTAMPING, libc::SO_ATTACH_REUSEPORT_EBPF];

/// The connection cannot be handed over once such an option is set.
pub(crate) fn forces_plain(level: c_int, option: c_int) -> bool {
    level == libc::IPPROTO_TCP && DENIED_TCP.contains(&option)
        || level == libc::SOL_SOCKET && DENIED_SOCKET.contains(&option)
}

/// Of the TCP socket, whatever a unix socket would say.
pub(crate) fn is_forwarded(level: c_int, option: c_int) -> bool {
    level == libc::SOL_SOCKET && (FORWARDED.contains(&option) || DENIED_SOCKET.contains(&option))
}

pub(crate) fn is_internet(level: c_int) -> bool {
    level == libc::IPPROTO_TCP || level == libc::IPPROTO_IP || level == libc::IPPROTO_IPV6
}
