//! Sockets that never block: connecting, listening, reading, writing, and ends as the other side is
//! to see them.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows::transport::Meter;
use narrows_host::bound::Bound;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recv,
    send, sendmsg, shutdown, socket_with, sockopt,
};

/// Pieces of one write; the system's own limit is 1024.
pub(super) const SLICES_MAX: usize = 64;
/// Connections that may wait to be accepted; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// A silent peer of a TCP socket is asked after this time, then at this interval, so often; one with
/// data in flight must confirm within `UNCONFIRMED`.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const KEEP_EVERY: Duration = Duration::from_secs(15);
const KEEP_COUNT: u32 = 4;

/// Begins to connect. The socket becomes writable when it is done; [`error`] then tells how.
pub(super) fn connect(to: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match rustix::net::connect(&socket, to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    tune(&socket);
    Ok(socket)
}

/// Connects to a unix socket, which needs no time. `WouldBlock`: as many connections as may wait do.
pub(super) fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends small pieces at once, keeps urgent bytes in their place, and notices peers that are gone.
fn tune(socket: impl AsFd) {
    let socket = socket.as_fd();
    // None of these matters enough to fail for.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    // Urgent bytes are bytes like others: elsewhere they would be lost.
    let _ = sockopt::set_socket_oobinline(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEP_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEP_EVERY);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEP_COUNT);
}

/// Also limits the time in which sent bytes must be confirmed.
pub(super) fn limit_silence(socket: &OwnedFd, silence: Duration) {
    let _ = sockopt::set_tcp_user_timeout(socket, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX));
}

/// The error of a socket, if it has one.
pub(super) fn error(socket: &OwnedFd) -> Option<Errno> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => None,
        Ok(Err(e)) | Err(e) => Some(e),
    }
}

/// Reads what is there. `None`: nothing now; 0: the end.
pub(super) fn read(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            result => return result.map(|(n, _)| Some(n)),
        }
    }
}

/// The next byte, which stays to be read. `None`: nothing now. At an end it is an error.
pub(super) fn peek(socket: &OwnedFd) -> Result<Option<u8>, Errno> {
    let mut first = [0];
    loop {
        match recv(socket, &mut first[..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Ok((0, _)) => return Err(Errno::PIPE),
            result => return result.map(|_| Some(first[0])),
        }
    }
}

/// Writes what the socket takes. `None`: nothing now.
pub(super) fn write(socket: &OwnedFd, bytes: &[u8]) -> Result<Option<usize>, Errno> {
    loop {
        match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            result => return result.map(Some),
        }
    }
}

/// Writes what the socket takes of several pieces, at most 64 of them. `None`: nothing now.
pub(super) fn write_all_of<'a>(
    socket: &OwnedFd,
    mut pieces: impl Iterator<Item = IoSlice<'a>>,
) -> Result<Option<usize>, Errno> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut filled = 0;
    slices.iter_mut().zip(&mut pieces).for_each(|(slice, piece)| {
        *slice = piece;
        filled += 1;
    });
    if filled == 1 {
        return write(socket, &slices[0]);
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &slices[..filled], &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            result => return result.map(Some),
        }
    }
}

/// Whether a failed write says only that the other side of a unix socket reads no more: it has neither
/// failed nor closed, and may still write. TCP tells nobody of that.
pub(super) fn reads_no_more(socket: &OwnedFd, failed: Errno) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if failed != Errno::PIPE || sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
        return false;
    }
    let mut looked = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut looked, Some(&Timespec::default())) == Ok(0)
}

/// Whether the other side has all bytes that were written, as far as the system knows.
pub(super) fn is_settled(socket: &OwnedFd) -> bool {
    unconfirmed(socket) == 0
}

/// Bytes written that the other side does not have yet, as far as the system knows.
pub(super) fn unconfirmed(socket: &OwnedFd) -> u64 {
    Meter::new(true).look(socket, 0).unacked.unwrap_or(0)
}

/// Whether a connection that was begun is there.
pub(super) fn is_connected(socket: &OwnedFd) -> bool {
    rustix::net::getpeername(socket).is_ok()
}

/// Ends the direction that is written.
pub(super) fn finish(socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Write);
}

/// From here on the other side sees a reset when the socket is closed, even if this program is
/// killed: an end would say that it has everything. A unix socket has no reset: there the other side
/// sees an end, or a reset if it has sent something that nobody read.
pub(super) fn break_on_close(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Closes so that the other side sees a reset, as for [`break_on_close`].
pub(super) fn abort(socket: OwnedFd) {
    break_on_close(&socket);
    drop(socket);
}

/// Closes so that the other side gets everything that was written, and the end after it.
pub(super) fn close(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, None);
    drop(socket);
}

/// The address of the other end of a TCP socket.
pub(super) fn peer(socket: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()
}

/// Whether both ends of a TCP socket are this host.
pub(super) fn is_same_host(socket: &OwnedFd) -> bool {
    let own = rustix::net::getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
    match (own, peer(socket)) {
        (Some(own), Some(peer)) => peer.ip().is_loopback() || peer.ip() == own.ip(),
        _ => false,
    }
}

/// A socket that listens.
pub(super) enum Listener {
    Tcp(TcpListener),
    /// The file is that with this device and number.
    Unix {
        listener: UnixListener,
        path: PathBuf,
        file: Option<(u64, u64)>,
    },
}

/// Who connected.
pub(super) struct Accepted {
    pub(super) socket: OwnedFd,
    /// The address, if it has one.
    pub(super) peer: Option<SocketAddr>,
}

impl Listener {
    pub(super) fn tcp(at: SocketAddr) -> io::Result<Self> {
        Self::bound(Bound::to(at)?)
    }

    /// Answers at an address that it has already.
    pub(super) fn bound(bound: Bound) -> io::Result<Self> {
        let listener = bound.listen(BACKLOG)?;
        listener.set_nonblocking(true)?;
        // What it accepts is as it is.
        tune(&listener);
        Ok(Self::Tcp(listener))
    }

    /// Listens on a path. A socket that is there and that nobody listens on is replaced: it is left
    /// of a program that was killed.
    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let listener = match bind_unix(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
                std::fs::remove_file(path)?;
                bind_unix(path)
            }
            result => result,
        }?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Self::Unix { listener, path: path.to_owned(), file: file_at(path) })
    }

    /// The address, for people and for clients.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".into(), |a| a.to_string()),
            Self::Unix { path, .. } => path.to_string_lossy().into_owned(),
        }
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<Accepted>> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(s, peer)| (OwnedFd::from(s), Some(peer))),
            Self::Unix { listener, .. } => listener.accept().map(|(s, _)| (OwnedFd::from(s), None)),
        };
        match accepted {
            Ok((socket, peer)) => Ok(Some(Accepted { socket, peer })),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The client has gone again.
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
                self.accept()
            }
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another program may have put its own socket there since.
        if let Self::Unix { path, file, .. } = self
            && file.is_some()
            && file_at(path) == *file
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket at a path that only its owner may connect to, from the moment that it is there: whoever
/// may connect has what the tunnel gives (as ssh's `StreamLocalBindMask`).
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode of the socket.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Device and number of what is at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

fn is_left_over(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    // Not waiting: whoever listens there may not be accepting.
    is_socket && connect_unix(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// The addresses of a host for listening: an empty name is loopback, `*` all.
pub(super) fn bind_addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    use std::net::{Ipv4Addr, Ipv6Addr, ToSocketAddrs};
    match host {
        "" => Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]),
        // The IPv6 socket takes both where the system has IPv6.
        "*" => Ok(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]),
        host => match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![(ip, port).into()]),
            Err(_) => Ok((host, port).to_socket_addrs()?.collect()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_of_a_dead_program_is_replaced_and_one_of_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = UnixListener::bind(&path).unwrap();
        assert_eq!(Listener::unix(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        // One that does not accept is alive, and nobody waits until it does.
        rustix::net::listen(&first, 0).unwrap();
        let _waiting: Vec<_> = std::iter::from_fn(|| connect_unix(&path).ok()).take(10).collect();
        assert_eq!(connect_unix(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(Listener::unix(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let second = Listener::unix(&path).unwrap();
        connect_unix(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::unix(&path).is_err());
        assert!(path.exists());
    }

    #[test]
    fn the_socket_of_another_program_at_the_same_path_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("socket"), dir.path().join("aside"));
        let own = Listener::unix(&path).unwrap();
        // Moved, so that the system does not give its number to the next one.
        std::fs::rename(&path, aside).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(own);
        connect_unix(&path).unwrap();
    }

    #[test]
    fn a_unix_socket_that_is_only_not_read_is_told_from_a_closed_one() {
        use std::net::Shutdown;
        use std::os::unix::net::UnixStream;
        let (own, other) = UnixStream::pair().unwrap();
        let own = OwnedFd::from(own);
        other.shutdown(Shutdown::Read).unwrap();
        let failed = write(&own, b"x").unwrap_err();
        assert!(reads_no_more(&own, failed));
        drop(other);
        assert!(!reads_no_more(&own, write(&own, b"x").unwrap_err()), "closed");
        let (client, socket) = pair();
        drop(client);
        let failed = std::iter::repeat_with(|| write(&socket, b"x")).find_map(Result::err).unwrap();
        assert!(!reads_no_more(&socket, failed), "TCP");
    }

    fn pair() -> (TcpStream, OwnedFd) {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = TcpStream::connect(listener.address()).unwrap();
        let accepted = loop {
            if let Some(accepted) = listener.accept().unwrap() {
                break accepted;
            }
        };
        (client, accepted.socket)
    }

    #[test]
    fn what_breaks_on_close_is_a_reset_unless_it_is_closed_in_order() {
        let failed = |mut client: &TcpStream| client.read(&mut [0]).unwrap_err().kind();
        let (client, socket) = pair();
        abort(socket);
        assert_eq!(failed(&client), io::ErrorKind::ConnectionReset);
        let (client, socket) = pair();
        break_on_close(&socket);
        drop(socket);
        assert_eq!(failed(&client), io::ErrorKind::ConnectionReset);
        let (mut client, socket) = pair();
        break_on_close(&socket);
        write(&socket, b"all").unwrap();
        close(socket);
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"all");
    }

    #[test]
    fn accepted_sockets_are_tuned_as_their_listener() {
        let (_client, socket) = pair();
        assert!(sockopt::tcp_nodelay(&socket).unwrap() && sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), KEEP_IDLE);
    }
}
