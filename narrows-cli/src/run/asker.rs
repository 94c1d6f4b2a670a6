//! Who speaks to the supervisor, and what it may ask for.

use std::fs;
use std::os::fd::OwnedFd;

use libc::c_int;
use rustix::process::{Pid, geteuid};

use super::sys;

/// Harmless to others, and set by servers of root that serve each connection as its user.
const OF_ANYBODY: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// Options of SOL_SOCKET that the kernel sets for everybody. Others may need a capability, or hold addresses of memory.
const FREE_SOCKET: [c_int; 12] = [
    libc::SO_REUSEADDR,
    libc::SO_DONTROUTE,
    libc::SO_BROADCAST,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_REUSEPORT,
    libc::SO_OOBINLINE,
    libc::SO_RCVLOWAT,
    libc::SO_MAX_PACING_RATE,
    libc::SO_INCOMING_CPU,
];
/// The same of TCP, which has one each for everything up to TCP_USER_TIMEOUT but for two,
const FREE_TCP_MAX: c_int = libc::TCP_USER_TIMEOUT;
// The last is TCP_TX_DELAY.
const FREE_TCP: [c_int; 4] = [libc::TCP_NOTSENT_LOWAT, libc::TCP_SAVE_SYN, libc::TCP_INQ, 37];
/// of IPv4,
const FREE_IP: [c_int; 14] = [
    libc::IP_TOS,
    libc::IP_TTL,
    libc::IP_OPTIONS,
    libc::IP_RECVOPTS,
    libc::IP_RETOPTS,
    libc::IP_PKTINFO,
    libc::IP_MTU_DISCOVER,
    libc::IP_RECVERR,
    libc::IP_RECVTTL,
    libc::IP_RECVTOS,
    libc::IP_FREEBIND,
    libc::IP_MINTTL,
    libc::IP_BIND_ADDRESS_NO_PORT,
    // IP_LOCAL_PORT_RANGE
    51,
];
/// and of IPv6.
const FREE_IPV6: [c_int; 12] = [
    libc::IPV6_UNICAST_HOPS,
    libc::IPV6_MTU_DISCOVER,
    libc::IPV6_MTU,
    libc::IPV6_RECVERR,
    libc::IPV6_V6ONLY,
    libc::IPV6_TCLASS,
    libc::IPV6_RECVTCLASS,
    libc::IPV6_RECVHOPLIMIT,
    libc::IPV6_RECVPKTINFO,
    libc::IPV6_AUTOFLOWLABEL,
    libc::IPV6_DONTFRAG,
    libc::IPV6_FREEBIND,
];
/// What the kernel asks CAP_NET_ADMIN for, or CAP_NET_RAW; who has one of root's has the other.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;

/// A process at the other end of a line, as the kernel knows it since it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asker {
    /// `None`: it is in a namespace that is not seen from here.
    pub(crate) pid: Option<Pid>,
    pub(crate) uid: u32,
}

impl Asker {
    /// `None`: another user, who is refused whatever he knows. As root, programs may have become anybody.
    pub(crate) fn of(line: &OwnedFd) -> Option<Self> {
        let mut credentials = [0; 12];
        let len = sys::get_option(line, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
        let (pid, rest) = credentials.split_first_chunk::<4>()?;
        let uid = u32::from_ne_bytes(*rest.first_chunk()?);
        let own = geteuid();
        let pid = Pid::from_raw(i32::from_ne_bytes(*pid));
        (len == 12 && (own.is_root() || uid == own.as_raw())).then_some(Self { pid, uid })
    }

    /// The supervisor, for a program whose descriptor it has.
    pub(crate) fn own() -> Self {
        Self { pid: Some(rustix::process::getpid()), uid: geteuid().as_raw() }
    }

    /// A process whose descriptor the supervisor has, so that the connection is its own; what else it may is looked up.
    pub(crate) fn holder(pid: Option<Pid>) -> Self {
        Self { pid, uid: 0 }
    }

    /// Whether it may do with a connection of that user what changes it. The names of all connections are public.
    pub(crate) fn owns(&self, owner: u32) -> bool {
        self.uid == owner || self.uid == 0
    }

    /// Whether it may set an option of a connection of that user. The supervisor of root could set any.
    pub(crate) fn may_set(&self, owner: u32, level: c_int, option: c_int, value: &[u8]) -> bool {
        (self.owns(owner) || OF_ANYBODY.contains(&(level, option)))
            && (is_free(level, option, value) || self.is_privileged())
    }

    /// Whether it may ask for an option: tables of packet filters are for who may change them.
    pub(crate) fn may_get(&self, level: c_int, option: c_int) -> bool {
        // SO_ORIGINAL_DST is between them.
        let filters = level == libc::IPPROTO_IP && option >= 64 && option != 80
            || level == libc::IPPROTO_IPV6 && matches!(option, 64 | 65);
        !filters || self.is_privileged()
    }

    /// As privileged as this supervisor. A process of another user, or of root in a user namespace of its own, is not; and
    /// one that runs with the capabilities of a file may have been another one when it connected.
    fn is_privileged(&self) -> bool {
        // Then the kernel refuses by itself.
        if !geteuid().is_root() {
            return true;
        }
        let Some(pid) = self.pid.filter(|_| self.uid == 0) else { return false };
        let space = |of: String| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let theirs = pid.as_raw_pid().to_string();
        let same = space(theirs.clone()).is_some_and(|s| Some(s) == space("self".into()));
        let status = fs::read_to_string(format!("/proc/{theirs}/status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        let capabilities = u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or(0);
        let root = field("Uid:").split_whitespace().nth(1) == Some("0");
        same && root && capabilities & (NET_ADMIN | NET_RAW) == NET_ADMIN | NET_RAW
    }
}

/// Needs no capability.
fn is_free(level: c_int, option: c_int, value: &[u8]) -> bool {
    match level {
        libc::SOL_SOCKET if option == libc::SO_PRIORITY => {
            value.first_chunk().is_some_and(|v| (0..=6).contains(&i32::from_ne_bytes(*v)))
        }
        libc::SOL_SOCKET => FREE_SOCKET.contains(&option),
        libc::IPPROTO_TCP if option == libc::TCP_CONGESTION => is_allowed_congestion_control(value),
        libc::IPPROTO_TCP => option <= FREE_TCP_MAX && option != libc::TCP_MD5SIG || FREE_TCP.contains(&option),
        libc::IPPROTO_IP => FREE_IP.contains(&option),
        libc::IPPROTO_IPV6 => FREE_IPV6.contains(&option),
        _ => false,
    }
}

/// What the administrator allows everybody.
fn is_allowed_congestion_control(name: &[u8]) -> bool {
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    allowed.split_whitespace().any(|a| a.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_capability_is_for_who_has_it() {
        let nobody = Asker { uid: 65534, ..Asker::own() };
        let one = 1i32.to_ne_bytes();
        assert!(nobody.may_set(65534, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &one));
        assert!(nobody.may_set(65534, libc::SOL_SOCKET, libc::SO_PRIORITY, &6i32.to_ne_bytes()));
        assert!(!nobody.may_set(0, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &one), "another user's");
        assert!(nobody.may_set(0, libc::IPPROTO_TCP, libc::TCP_NODELAY, &one));
        if !geteuid().is_root() {
            return;
        }
        for (level, option) in [
            (libc::SOL_SOCKET, libc::SO_MARK),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
            (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
            (libc::IPPROTO_TCP, libc::TCP_REPAIR),
            (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
        ] {
            assert!(!nobody.may_set(65534, level, option, &one), "{level} {option}");
        }
        assert!(!nobody.may_set(65534, libc::SOL_SOCKET, libc::SO_PRIORITY, &7i32.to_ne_bytes()));
        assert!(!nobody.may_get(libc::IPPROTO_IP, 64) && nobody.may_get(libc::IPPROTO_IP, 80));
    }
}
