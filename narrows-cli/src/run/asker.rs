//! Who speaks to the supervisor, and what it may ask for.

use std::fs;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libc::c_int;
use rustix::process::{Pid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::sys;

/// Harmless to others, and set by servers of root that serve each connection as its user.
const OF_ANYBODY: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
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

    /// Whether an option of a connection of that user is its affair. What the kernel lets it set is another question.
    pub(crate) fn may_set(&self, owner: u32, level: c_int, option: c_int) -> bool {
        self.owns(owner) || OF_ANYBODY.contains(&(level, option))
    }

    /// Makes a call on a connection's socket with the rights that this process has, where the supervisor of root could do
    /// anything: without capabilities first, and with them if the kernel wants some and the process has them too.
    pub(crate) fn with_its_rights<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        // Then the kernel refuses by itself.
        if !geteuid().is_root() {
            return call();
        }
        let refused = |number| number == Some(libc::EPERM) || number == Some(libc::EACCES);
        // To look takes longer than to try. But where a service may not change its rights, to try may kill it.
        if self.uid == 0 && is_filtered() && self.is_privileged() {
            return call();
        }
        match without_capabilities(&mut call) {
            Err(e) if refused(e.raw_os_error()) && self.is_privileged() => call(),
            answer => answer,
        }
    }

    /// As privileged as this supervisor. A process of another user, or of root in a user namespace of its own, is not; and
    /// one that runs with the capabilities of a file may have been another one when it connected.
    fn is_privileged(&self) -> bool {
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

/// This process is under a filter of system calls.
fn is_filtered() -> bool {
    static FILTERED: OnceLock<bool> = OnceLock::new();
    *FILTERED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
    })
}

/// They belong to the thread, and it has them again however the call ends.
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
            // And who asked before has taken nothing from this thread.
            assert_eq!(set(&nobody, libc::SO_MARK, 1), Err(Some(libc::EPERM)));
            assert_eq!(set(&own, libc::SO_PRIORITY, 7), Ok(()));
        }
    }
}
