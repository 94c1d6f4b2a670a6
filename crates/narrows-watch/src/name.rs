//! Names of the sockets at which processes answer.
//!
//! They are abstract: such a name is gone with its process, however that ends, and needs no folder.
//! Everybody can take a name, so whoever connects asks the kernel whose it is, and whoever accepts asks
//! who has connected.

use std::io::{ErrorKind, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{geteuid, getpid};

use super::sys::user_at;

/// Where a process tells its status.
pub(crate) const STATUS: &str = "narrows-status:";
/// Where it traces a flow.
pub(crate) const TRACE: &str = "narrows-trace:";

pub(crate) fn name(prefix: &str, user: u32, pid: i32) -> String {
    format!("{prefix}{user}:{pid}")
}

/// Listens at the name of this process.
pub(crate) fn listen(prefix: &str) -> Result<UnixListener> {
    let name = name(prefix, geteuid().as_raw(), getpid().as_raw_pid());
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Whether who has connected may be told: the same user and root.
pub(crate) fn may_ask(socket: &UnixStream) -> bool {
    user_at(socket).is_some_and(|user| user == 0 || user == geteuid().as_raw())
}

/// Users and processes that have a name with this prefix.
pub(crate) fn taken(prefix: &str) -> Result<Vec<(u32, i32)>> {
    // Names of other programs may contain any bytes.
    let table = String::from_utf8_lossy(&std::fs::read("/proc/self/net/unix")?).into_owned();
    let names = table.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let found = names.filter_map(|name| {
        let (user, pid) = name.strip_prefix(prefix)?.split_once(':')?;
        Some((user.parse().ok()?, pid.parse().ok()?))
    });
    Ok(found.collect())
}

/// Connects to that name if that user holds it. Does not block: the holder may never accept a
/// connection, and is known only once connected.
pub(crate) fn reach(user: u32, name: &str) -> Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if user_at(&socket) != Some(user) {
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
        assert_eq!(reach(own + 1, &name).unwrap_err().kind(), ErrorKind::PermissionDenied);
        // These fill the listener's backlog, so that a blocking connect would wait for ever.
        let reached: Vec<_> = std::iter::from_fn(|| reach(own, &name).ok()).take(100).collect();
        assert!(reached.len() < 100);
        assert_eq!(reach(own, &name).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
