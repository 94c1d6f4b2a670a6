//! The seccomp filter, in classic BPF: selects the system calls that the supervisor is asked about.
//!
//! A filter sees numbers only, so it asks about every descriptor; ordinary calls on data are never
//! asked about. Calls of another architecture (32-bit programs) are let through: their connections
//! stay plain.

use libc::{c_long, sock_filter};

use super::socket::MPTCP;
use crate::kinds::OF_DESCRIPTOR;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// SIOCOUTQNSD, not defined by libc.
pub(super) const OUTQ_NOT_SENT: u32 = 0x894b;

/// Condition under which the supervisor is asked about a call.
enum Ask {
    Always,
    /// The argument has one of these values.
    Equals(u8, &'static [u32]),
    /// The argument has one of these bits.
    Bits(u8, u32),
    /// The flags in this argument have MSG_ERRQUEUE, or MSG_PEEK with MSG_WAITALL.
    Received(u8),
    /// MSG_OOB, or an address, which a unix socket refuses and TCP ignores.
    SentTo,
    /// As `Received`, or MSG_TRUNC without a buffer, which discards bytes.
    ReceivedInto,
    /// An option that is not the descriptor's own, or one of these, which a unix socket answers
    /// differently.
    Option(&'static [i32]),
}

const NAMED_ONLY_IN_GET: [i32; 3] = [libc::SO_ERROR, libc::SO_DOMAIN, libc::SO_PROTOCOL];

const CALLS: &[(c_long, Ask)] = &[
    (libc::SYS_connect, Ask::Always),
    (libc::SYS_accept, Ask::Always),
    (libc::SYS_accept4, Ask::Always),
    (libc::SYS_listen, Ask::Always),
    (libc::SYS_getsockname, Ask::Always),
    (libc::SYS_getpeername, Ask::Always),
    (libc::SYS_getsockopt, Ask::Option(&NAMED_ONLY_IN_GET)),
    (libc::SYS_setsockopt, Ask::Option(&[])),
    (libc::SYS_ioctl, Ask::Equals(1, &[libc::TIOCOUTQ as u32, OUTQ_NOT_SENT, 0x8915, 0x8917, 0x8919, 0x891b])),
    // Calls after which a socket must not be swapped: a second number, or an epoll registration.
    (libc::SYS_epoll_ctl, Ask::Equals(1, &[libc::EPOLL_CTL_ADD as u32])),
    (libc::SYS_dup, Ask::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, Ask::Always),
    (libc::SYS_dup3, Ask::Always),
    (libc::SYS_fcntl, Ask::Equals(1, &[libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32])),
    (libc::SYS_landlock_restrict_self, Ask::Always),
    (libc::SYS_unshare, Ask::Bits(0, libc::CLONE_FILES as u32)),
    // Flags that a unix socket handles differently from TCP.
    (libc::SYS_sendto, Ask::SentTo),
    (libc::SYS_sendmsg, Ask::Bits(2, libc::MSG_OOB as u32)),
    (libc::SYS_sendmmsg, Ask::Bits(3, libc::MSG_OOB as u32)),
    (libc::SYS_recvfrom, Ask::ReceivedInto),
    (libc::SYS_recvmsg, Ask::Received(2)),
    // Sockets are passed to other processes over unix sockets, made by these calls or by `socket`
    // alone.
    (libc::SYS_socketpair, Ask::Equals(0, &[libc::AF_UNIX as u32])),
];

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets in `seccomp_data`.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
/// Offset of the low half of an argument; both architectures are little-endian.
const fn at_argument(n: u8) -> u32 {
    16 + 8 * n as u32
}

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Continues with the next step if the value matches, otherwise skips the next `skip` steps.
fn unless(code: u16, k: u32, skip: usize) -> sock_filter {
    sock_filter { code, jt: 0, jf: u8::try_from(skip).unwrap_or(u8::MAX), k }
}

const ALLOW: sock_filter = step(RETURN, libc::SECCOMP_RET_ALLOW);
const NOTIFY: sock_filter = step(RETURN, libc::SECCOMP_RET_USER_NOTIF);

/// Steps that notify if the loaded value is one of `values`, and otherwise continue.
fn any_of(values: impl Iterator<Item = u32>) -> Vec<sock_filter> {
    values.flat_map(|value| [unless(JUMP_EQUAL, value, 1), NOTIFY]).collect()
}

fn steps(ask: &Ask) -> Vec<sock_filter> {
    match ask {
        Ask::Always => vec![NOTIFY],
        Ask::Equals(argument, values) => {
            let mut steps = vec![step(LOAD, at_argument(*argument))];
            steps.extend(any_of(values.iter().copied()));
            steps.push(ALLOW);
            steps
        }
        Ask::Bits(argument, bits) => {
            vec![step(LOAD, at_argument(*argument)), unless(JUMP_BITS, *bits, 1), NOTIFY, ALLOW]
        }
        Ask::SentTo => {
            let address = [at_argument(4), at_argument(4) + 4];
            let mut steps = self::steps(&Ask::Bits(3, libc::MSG_OOB as u32));
            steps.pop();
            steps.extend([step(LOAD, address[0]), unless(JUMP_EQUAL, 0, 3)]);
            steps.extend([step(LOAD, address[1]), unless(JUMP_EQUAL, 0, 1), ALLOW, NOTIFY]);
            steps
        }
        Ask::Received(argument) => {
            let mut steps = vec![
                step(LOAD, at_argument(*argument)),
                unless(JUMP_BITS, libc::MSG_ERRQUEUE as u32, 1),
                NOTIFY,
                unless(JUMP_BITS, libc::MSG_PEEK as u32, 2),
                unless(JUMP_BITS, libc::MSG_WAITALL as u32, 1),
                NOTIFY,
            ];
            steps.push(ALLOW);
            steps
        }
        Ask::ReceivedInto => {
            let empty = [at_argument(1), at_argument(1) + 4];
            let mut steps = self::steps(&Ask::Received(3));
            steps.pop();
            steps.push(unless(JUMP_BITS, libc::MSG_TRUNC as u32, 5));
            steps.extend([step(LOAD, empty[0]), unless(JUMP_EQUAL, 0, 3)]);
            steps.extend([step(LOAD, empty[1]), unless(JUMP_EQUAL, 0, 1), NOTIFY, ALLOW]);
            steps
        }
        Ask::Option(more) => {
            let own = OF_DESCRIPTOR.iter().filter(|o| !more.contains(o));
            let mut of_sockets = vec![step(LOAD, at_argument(2))];
            of_sockets.extend(own.flat_map(|option| [unless(JUMP_EQUAL, *option as u32, 1), ALLOW]));
            let mut steps = vec![step(LOAD, at_argument(1))];
            steps.push(unless(JUMP_EQUAL, libc::SOL_SOCKET as u32, of_sockets.len()));
            steps.extend(of_sockets);
            steps.push(NOTIFY);
            steps
        }
    }
}

/// Rules for `socket`. MPTCP is refused as by a kernel built without it, which every program that
/// asks for it can handle. The kernel keeps no SYN for MPTCP listeners, so nothing could be proved
/// about accepted connections, and it tells no clock for MPTCP sockets that connect.
fn made(keeps_mptcp: bool) -> Vec<sock_filter> {
    let (inet, inet6) = (libc::AF_INET as u32, libc::AF_INET6 as u32);
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    let mut all = Vec::new();
    if !keeps_mptcp {
        all.extend([step(LOAD, at_argument(2)), unless(JUMP_EQUAL, MPTCP as u32, 5), step(LOAD, at_argument(0))]);
        all.extend([unless(JUMP_EQUAL, inet, 1), step(RETURN, refused)]);
        all.extend([unless(JUMP_EQUAL, inet6, 1), step(RETURN, refused)]);
    }
    all.extend(steps(&Ask::Equals(0, &[libc::AF_UNIX as u32])));
    all.insert(0, unless(JUMP_EQUAL, libc::SYS_socket as u32, all.len()));
    all
}

pub(super) fn program(keeps_mptcp: bool) -> Vec<sock_filter> {
    let same = sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: ARCHITECTURE };
    let mut all = vec![step(LOAD, AT_ARCHITECTURE), same, ALLOW, step(LOAD, AT_NUMBER)];
    for (number, ask) in CALLS {
        let steps = steps(ask);
        all.push(unless(JUMP_EQUAL, *number as u32, steps.len()));
        all.extend(steps);
    }
    all.extend(made(keeps_mptcp));
    // io_uring is refused because its calls pass no filter; libraries that use it work without it
    // where it is forbidden.
    let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    all.extend([unless(JUMP_EQUAL, libc::SYS_io_uring_setup as u32, 1), step(RETURN, refused), ALLOW]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn verdict(number: c_long, args: [u32; 6]) -> u32 {
        run(ARCHITECTURE, number as u32, args)
    }

    fn run(architecture: u32, number: u32, args: [u32; 6]) -> u32 {
        run_with(false, architecture, number, args)
    }

    fn run_with(keeps_mptcp: bool, architecture: u32, number: u32, args: [u32; 6]) -> u32 {
        let program = program(keeps_mptcp);
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => {
                    value = match step.k {
                        AT_NUMBER => number,
                        AT_ARCHITECTURE => architecture,
                        k => args[(k as usize - 16) / 8],
                    }
                }
                RETURN => return step.k,
                code => {
                    let fits = if code == JUMP_BITS { value & step.k != 0 } else { value == step.k };
                    at += usize::from(if fits { step.jt } else { step.jf });
                }
            }
        }
    }

    #[test]
    fn only_calls_about_connections_are_asked_about() {
        let (asks, passes) = (libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_ALLOW);
        let socket = libc::SOL_SOCKET as u32;
        for (number, args, expected) in [
            (libc::SYS_connect, [3, 0, 0, 0, 0, 0], asks),
            (libc::SYS_accept4, [0; 6], asks),
            (libc::SYS_read, [0; 6], passes),
            (libc::SYS_write, [0; 6], passes),
            (libc::SYS_close, [0; 6], passes),
            (libc::SYS_epoll_ctl, [5, libc::EPOLL_CTL_ADD as u32, 4, 0, 0, 0], asks),
            (libc::SYS_epoll_ctl, [5, libc::EPOLL_CTL_MOD as u32, 4, 0, 0, 0], passes),
            (libc::SYS_fcntl, [5, libc::F_DUPFD_CLOEXEC as u32, 4, 0, 0, 0], asks),
            (libc::SYS_fcntl, [5, libc::F_SETFL as u32, 4, 0, 0, 0], passes),
            (libc::SYS_sendto, [5, 0, 4, libc::MSG_NOSIGNAL as u32, 0, 0], passes),
            (libc::SYS_sendto, [5, 0, 4, (libc::MSG_NOSIGNAL | libc::MSG_OOB) as u32, 0, 0], asks),
            (libc::SYS_sendto, [5, 0, 4, 0, 4096, 16], asks),
            (libc::SYS_recvmsg, [5, 0, libc::MSG_ERRQUEUE as u32, 0, 0, 0], asks),
            (libc::SYS_recvfrom, [5, 1, 4, libc::MSG_ERRQUEUE as u32, 0, 0], asks),
            (libc::SYS_recvfrom, [5, 1, 4, libc::MSG_TRUNC as u32, 0, 0], passes),
            (libc::SYS_recvfrom, [5, 1, 4, (libc::MSG_PEEK | libc::MSG_WAITALL) as u32, 0, 0], asks),
            (libc::SYS_recvfrom, [5, 1, 4, libc::MSG_PEEK as u32, 0, 0], passes),
            (libc::SYS_recvfrom, [5, 1, 4, libc::MSG_WAITALL as u32, 0, 0], passes),
            (libc::SYS_recvfrom, [5, 0, 4, (libc::MSG_PEEK | libc::MSG_TRUNC) as u32, 0, 0], asks),
            (libc::SYS_recvmsg, [5, 0, (libc::MSG_PEEK | libc::MSG_WAITALL) as u32, 0, 0, 0], asks),
            (libc::SYS_recvmsg, [5, 0, libc::MSG_WAITALL as u32, 0, 0, 0], passes),
            (libc::SYS_socket, [libc::AF_UNIX as u32, 1, 0, 0, 0, 0], asks),
            (libc::SYS_socket, [libc::AF_INET as u32, 1, 0, 0, 0, 0], passes),
            (libc::SYS_socketpair, [libc::AF_UNIX as u32, 1, 0, 0, 0, 0], asks),
            (libc::SYS_recvfrom, [5, 0, 4, libc::MSG_TRUNC as u32, 0, 0], asks),
            (libc::SYS_recvfrom, [5, 0, 4, libc::MSG_DONTWAIT as u32, 0, 0], passes),
            (libc::SYS_recvmsg, [5, 0, libc::MSG_DONTWAIT as u32, 0, 0, 0], passes),
            (libc::SYS_ioctl, [5, libc::TIOCOUTQ as u32, 0, 0, 0, 0], asks),
            (libc::SYS_ioctl, [5, libc::FIONREAD as u32, 0, 0, 0, 0], passes),
            (libc::SYS_getsockopt, [5, socket, libc::SO_ERROR as u32, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [5, socket, libc::SO_ERROR as u32, 0, 0, 0], passes),
            (libc::SYS_setsockopt, [5, socket, libc::SO_LINGER as u32, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [5, socket, libc::SO_TXTIME as u32, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [5, socket, libc::SO_ZEROCOPY as u32, 0, 0, 0], asks),
            (libc::SYS_setsockopt, [5, socket, libc::SO_RCVTIMEO as u32, 0, 0, 0], passes),
            (libc::SYS_setsockopt, [5, libc::IPPROTO_TCP as u32, libc::TCP_NODELAY as u32, 0, 0, 0], asks),
            (libc::SYS_getsockopt, [5, libc::IPPROTO_IPV6 as u32, 1, 0, 0, 0], asks),
            (libc::SYS_getsockopt, [5, 270, 1, 0, 0, 0], asks),
            (libc::SYS_getsockopt, [5, socket, libc::SO_PEERCRED as u32, 0, 0, 0], asks),
            (libc::SYS_getsockopt, [5, socket, 4711, 0, 0, 0], asks),
            (libc::SYS_getsockopt, [5, socket, libc::SO_TYPE as u32, 0, 0, 0], passes),
            (libc::SYS_io_uring_setup, [0; 6], libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        ] {
            assert_eq!(verdict(number, args), expected, "call {number} with {args:?}");
        }
        // 32-bit programs, and x32 call numbers.
        assert_eq!(run(0x4000_0003, libc::SYS_connect as u32, [0; 6]), passes);
        assert_eq!(verdict(libc::SYS_connect | 0x4000_0000, [0; 6]), passes);
    }

    #[test]
    fn sockets_of_mptcp_are_refused_unless_they_are_wanted() {
        let (inet, inet6, stream) = (libc::AF_INET as u32, libc::AF_INET6 as u32, libc::SOCK_STREAM as u32);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
        for (family, protocol, expected) in [
            (inet, MPTCP, refused),
            (inet6, MPTCP, refused),
            (inet, libc::IPPROTO_TCP, libc::SECCOMP_RET_ALLOW),
            (inet6, 0, libc::SECCOMP_RET_ALLOW),
            (libc::AF_PACKET as u32, MPTCP, libc::SECCOMP_RET_ALLOW),
        ] {
            let args = [family, stream, protocol as u32, 0, 0, 0];
            assert_eq!(verdict(libc::SYS_socket, args), expected, "{args:?}");
            let wanted = run_with(true, ARCHITECTURE, libc::SYS_socket as u32, args);
            assert_eq!(wanted, libc::SECCOMP_RET_ALLOW, "{args:?}");
        }
    }

    /// A jump skips at most 255 steps, and the kernel takes at most 4096.
    #[test]
    fn it_is_short_enough() {
        assert!(CALLS.iter().all(|(_, ask)| steps(ask).len() < 255));
        assert!(program(false).len() < 4096);
    }
}
