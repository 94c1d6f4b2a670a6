//! Names of the sockets at which processes answer.
//!
//! They are abstract: such a name is gone with its process, however that ends, and needs no folder.
//! Everybody can take a name, so whoever connects asks the kernel whose it is, and whoever accepts asks
//! who has connected.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{geteuid, getpid};
use rustix::rand::{GetRandomFlags, getrandom};

use super::sys::peer_of;

/// Where a process tells its status.
pub(crate) const STATUS: &str = "narrows-status:";
/// Where it traces a flow.
pub(crate) const TRACE: &str = "narrows-trace:";

/// Names that a process tries before it goes without: nobody guesses the second one.
const ATTEMPTS: usize = 4;
/// Digits of what tells two names of a process apart.
const SUFFIX_LEN: usize = 16;

/// The name of a process, `PREFIX USER:PID`, or `PREFIX USER:PID:SUFFIX` if another one had that: a
/// process in another container, or of a user who wants to hide this one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) user: u32,
    pub(crate) pid: i32,
    /// Hexadecimal digits, or nothing.
    suffix: String,
}

impl Name {
    pub(crate) fn new(user: u32, pid: i32) -> Self {
        Self { user, pid, suffix: String::new() }
    }

    /// What follows the prefix. Only the way in which a process writes its name is one: others would be
    /// further names of the same process, which it does not have.
    fn parse(text: &str) -> Option<Self> {
        let (user, rest) = text.split_once(':')?;
        let (pid, suffix) = rest.split_once(':').unwrap_or((rest, ""));
        let name = Self { user: user.parse().ok()?, pid: pid.parse().ok()?, suffix: suffix.to_owned() };
        let is_suffix = |text: &str| text.len() == SUFFIX_LEN && text.bytes().all(|b| b.is_ascii_hexdigit());
        ((suffix.is_empty() || is_suffix(suffix)) && name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, pid, suffix } = self;
        let colon = if suffix.is_empty() { "" } else { ":" };
        write!(f, "{user}:{pid}{colon}{suffix}")
    }
}

/// Listens at a name of this process.
pub(crate) fn listen(prefix: &str) -> Result<UnixListener> {
    listen_as(prefix, Name::new(geteuid().as_raw(), getpid().as_raw_pid()))
}

fn listen_as(prefix: &str, mut name: Name) -> Result<UnixListener> {
    for _ in 0..ATTEMPTS {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{prefix}{name}"))?) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
        let mut random = [0; SUFFIX_LEN / 2];
        if getrandom(&mut random, GetRandomFlags::empty())? != random.len() {
            return Err(Error::other("the system gives no random bytes"));
        }
        name.suffix = random.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Whether who has connected may be told: the same user and root.
pub(crate) fn may_ask(socket: &UnixStream) -> bool {
    peer_of(socket).is_some_and(|peer| peer.user == 0 || peer.user == geteuid().as_raw())
}

/// Names with this prefix. Who holds them is known only once they are reached.
pub(crate) fn taken(prefix: &str) -> Result<Vec<Name>> {
    // Names of other programs may contain any bytes.
    let table = String::from_utf8_lossy(&std::fs::read("/proc/self/net/unix")?).into_owned();
    let names = table.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    Ok(names.filter_map(|name| Name::parse(name.strip_prefix(prefix)?)).collect())
}

/// Connects to that name if its user holds it. Does not block: the holder may never accept a
/// connection, and is known only once connected.
pub(crate) fn reach(prefix: &str, name: &Name) -> Result<UnixStream> {
    reach_at(&format!("{prefix}{name}"), |peer| peer.user == name.user)
}

/// As [`reach`], and only if that very process holds it.
pub(crate) fn reach_process(prefix: &str, name: &Name) -> Result<UnixStream> {
    reach_at(&format!("{prefix}{name}"), |peer| peer.user == name.user && peer.pid == name.pid)
}

fn reach_at(name: &str, is_right: impl Fn(&super::sys::Peer) -> bool) -> Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if !peer_of(&socket).is_some_and(|peer| is_right(&peer)) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn nobody_is_waited_for_who_has_a_name_and_takes_no_connection() {
        let name = format!("narrows-test-of-status:{}", getpid().as_raw_pid());
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let own = geteuid().as_raw();
        assert_eq!(reach_at(&name, |peer| peer.user != own).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let reach = || reach_at(&name, |peer| peer.user == own && peer.pid == getpid().as_raw_pid());
        // These fill the listener's backlog, so that a blocking connect would wait for ever.
        let reached: Vec<_> = std::iter::from_fn(|| reach().ok()).take(100).collect();
        assert!(reached.len() < 100);
        assert_eq!(reach().unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_name_is_written_in_one_way_only() {
        for name in ["0:1", "1000:65534", "4294967295:7", "0:1:0123456789abcdef"] {
            assert_eq!(Name::parse(name).unwrap().to_string(), name);
        }
        for other in [
            "+065534:1",
            "000..65534:1",
            "065534:1",
            "1:+1",
            "1:01",
            "1: 1",
            "1",
            "1:",
            ":1",
            "1:1:",
            "1:1:0",
            "1:1:x",
            "4294967296:1",
            "1:1:0123456789abcdeg",
            "1:1:0123456789abcdef:",
            "1:1:0123456789abcdef0",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }

    /// Whoever takes the name of a process first neither hides it nor answers for it.
    #[test]
    fn a_process_whose_name_is_taken_has_another() {
        let prefix = "narrows-test-of-names:";
        // A process that is not this one.
        let name = Name::new(geteuid().as_raw(), -7);
        let first = listen_as(prefix, name.clone()).unwrap();
        let second = listen_as(prefix, name.clone()).unwrap();
        let mut found = taken(prefix).unwrap();
        found.sort();
        assert!(found.len() == 2 && found[0] == name && found[1].pid == -7 && !found[1].suffix.is_empty(), "{found:?}");
        assert!(found.iter().all(|name| reach(prefix, name).is_ok()));
        assert_eq!(reach_process(prefix, &name).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let own = Name::new(geteuid().as_raw(), getpid().as_raw_pid());
        let third = listen_as(prefix, own.clone()).unwrap();
        assert!(reach_process(prefix, &own).is_ok());
        assert_eq!(
            reach(prefix, &Name { user: own.user + 1, ..own }).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        drop((first, second, third));
    }
}
