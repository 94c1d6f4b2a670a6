//! The process that sends a request to the supervisor, and its rights.

use std::fs;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libc::c_int;
use rustix::process::{Pid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::sys;

/// Options that any user may set on any connection: they are harmless to others, and servers of
/// root that serve each connection as its user set them.
const OF_ANYBODY: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// Capability bits: options that need a privilege need CAP_NET_ADMIN or CAP_NET_RAW; a root process
/// that has one of them has the other.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;

/// The process at the other end of a unix socket, by the credentials that the kernel recorded when
/// it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// `None` if the process is in a pid namespace not visible from here.
    pub pid: Option<Pid>,
    pub uid: u32,
}

impl Asker {
    /// `None` for another user, who is refused even with the token. If the supervisor runs as root,
    /// its programs may have become any user.
    pub fn of(socket: &OwnedFd) -> Option<Self> {
        let mut credentials = [0; 12];
        let len = sys::get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
        let (pid, rest) = credentials.split_first_chunk::<4>()?;
        let uid = u32::from_ne_bytes(*rest.first_chunk()?);
        let own = geteuid();
        let pid = Pid::from_raw(i32::from_ne_bytes(*pid));
        (len == 12 && (own.is_root() || uid == own.as_raw())).then_some(Self { pid, uid })
    }

    /// The supervisor itself, acting for a program whose descriptor it holds.
    pub fn own() -> Self {
        Self { pid: Some(rustix::process::getpid()), uid: geteuid().as_raw() }
    }

    /// A process whose descriptor the supervisor holds, so the connection is its own. Its other
    /// rights are looked up.
    pub fn holder(pid: Option<Pid>) -> Self {
        Self { pid, uid: 0 }
    }

    /// Whether it may change a connection of user `owner`. The names of all connections are public,
    /// so a name proves nothing.
    pub fn owns(&self, owner: u32) -> bool {
        self.uid == owner || self.uid == 0
    }

    /// Whether it may ask to set this option on a connection of user `owner`. Whether the kernel
    /// then lets it is a separate check.
    pub fn may_set(&self, owner: u32, level: c_int, option: c_int) -> bool {
        self.owns(owner) || OF_ANYBODY.contains(&(level, option))
    }

    /// Makes a call on a connection's socket with the requester's rights, because a root supervisor
    /// could do anything: first without capabilities, and then with them if the kernel wants a
    /// privilege that the requester has too.
    pub fn with_its_rights<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        // Without root the kernel itself refuses what is not allowed.
        if !geteuid().is_root() {
            return call();
        }
        let refused = |number| number == Some(libc::EPERM) || number == Some(libc::EACCES);
        // Looking up rights takes longer than trying. But under a seccomp filter that forbids
        // changing rights, trying could kill the supervisor.
        if self.uid == 0 && is_filtered() && self.is_privileged() {
            return call();
        }
        match without_capabilities(&mut call) {
            Err(e) if refused(e.raw_os_error()) && self.is_privileged() => call(),
            answer => answer,
        }
    }

    /// Whether it is as privileged as this supervisor. A process of another user, or of root in its
    /// own user namespace, is not. A process that runs with file capabilities may have been a
    /// different one when it connected, so both its user at that time and its current rights are
    /// checked.
    fn is_privileged(&self) -> bool {
        let Some(pid) = self.pid.filter(|_| self.uid == 0) else { return false };
        let space = |of: String| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let theirs = pid.as_raw_pid().to_string();
        let same = space(theirs.clone()).is_some_and(|s| Some(s) == space("self".into()));
        let status = fs::read_to_string(format!("/proc/{theirs}/status")).unwrap_or_default();
        same && has_rights(&status)
    }
}

/// Whether a process is root and has the capabilities for options of sockets, by its status in /proc.
fn has_rights(status: &str) -> bool {
    let field = |name| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
    let capabilities = u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or(0);
    let root = field("Uid:").split_whitespace().nth(1) == Some("0");
    root && capabilities & (NET_ADMIN | NET_RAW) == NET_ADMIN | NET_RAW
}

/// Whether this process is under a seccomp filter.
fn is_filtered() -> bool {
    static FILTERED: OnceLock<bool> = OnceLock::new();
    *FILTERED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
    })
}

/// Drops the thread's capabilities during the call and restores them however it ends.
fn without_capabilities<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let had = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..had })?;
    let _again = Again(had);
    call()
}

struct Again(CapabilitySets);

impl Drop for Again {
    fn drop(&mut self) {
        let _ = set_capabilities(None, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_capability_is_for_who_has_it() {
        let nobody = Asker { uid: 65534, ..Asker::own() };
        assert!(nobody.may_set(65534, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT));
        assert!(!nobody.may_set(0, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), "another user's");
        assert!(nobody.may_set(0, libc::IPPROTO_TCP, libc::TCP_NODELAY));
        if !geteuid().is_root() {
            return;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let set = |asker: &Asker, option, value: i32| {
            let set =
                asker.with_its_rights(|| sys::set_option(&socket, libc::SOL_SOCKET, option, &value.to_ne_bytes()));
            set.map_err(|e| e.raw_os_error())
        };
        for (option, value) in [(libc::SO_MARK, 1), (libc::SO_RCVBUFFORCE, 1 << 20), (libc::SO_PRIORITY, 7)] {
            assert_eq!(set(&nobody, option, value), Err(Some(libc::EPERM)), "{option}");
        }
        assert_eq!(set(&nobody, libc::SO_PRIORITY, 6), Ok(()));
        let own = Asker::own();
        if own.is_privileged() {
            assert_eq!(set(&own, libc::SO_MARK, 1), Ok(()));
            // And the earlier calls have not changed the rights of this thread.
            assert_eq!(set(&nobody, libc::SO_MARK, 1), Err(Some(libc::EPERM)));
            assert_eq!(set(&own, libc::SO_PRIORITY, 7), Ok(()));
        }
    }

    #[test]
    fn rights_are_those_of_root_with_both_capabilities() {
        let status = |uid: &str, capabilities: u64| format!("Name:\tx\nUid:\t{uid}\nCapEff:\t{capabilities:016x}\n");
        let both = NET_ADMIN | NET_RAW;
        assert!(has_rights(&status("0\t0\t0\t0", both)));
        assert!(has_rights(&status("1000\t0\t0\t0", u64::MAX)), "the effective user counts");
        assert!(!has_rights(&status("0\t1000\t0\t0", both)));
        assert!(!has_rights(&status("1000\t1000\t1000\t1000", u64::MAX)));
        for missing in [NET_ADMIN, NET_RAW, both] {
            assert!(!has_rights(&status("0\t0\t0\t0", !missing)));
        }
        assert!(!has_rights(""));
    }
}
