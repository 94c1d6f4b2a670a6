//! The pair of unix sockets placed between a program and a TCP socket, made as in the library
//! (`crates/narrows-preload/src/swap.rs`).

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};

use libc::c_int;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, send, socketpair, sockopt};
use rustix::pipe::PipeFlags;

use super::sys;
use crate::sys::{get_option, set_option};
use crate::wire::{Kind, Name, RawAddress, Request};

/// The kernel doubles this value; the reason for it is in the library.
const SEND_BUFFER: usize = 147_456;
/// Upper bound of calls needed to fill the buffer, a page at a time at worst.
const FILL_CALLS_MAX: usize = 256;
#[repr(align(4096))]
struct Page([u8; 4096]);
static ZEROS: Page = Page([0; 4096]);
/// SO_LINGER: on, zero time. If the supervisor dies, the peer must see a reset and not an end of
/// stream.
pub(super) const RESET: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

pub(super) struct Pair {
    /// The program's end, which replaces its socket.
    pub(super) program: OwnedFd,
    pub(super) supervisor: OwnedFd,
    /// For the pump.
    pub(super) request: Request,
}

/// A connection that is established or being made.
pub(super) struct Connection {
    pub(super) peer: RawAddress,
    /// The TCP connection is being made.
    pub(super) connecting: bool,
    /// The program's `connect` was not answered with success: a further one will be.
    pub(super) unanswered: bool,
    pub(super) accepted: bool,
}

/// Prepares a swap, all but the last step. If this fails, or the pair is not used, nothing has
/// changed for the program.
pub(super) fn pair(network: &OwnedFd, connection: &Connection) -> Result<Pair> {
    let mut id = [0; 8];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    let id = u64::from_ne_bytes(id);
    let local = internet(&sys::name(network, false)?).ok_or_else(|| Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
    let (program, supervisor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_send_buffer_size(&program, SEND_BUFFER)?;
    if sockopt::socket_send_buffer_size(&program)? < 2 * SEND_BUFFER {
        return Err(Error::from_raw_os_error(libc::ENOBUFS));
    }
    let name = Name { id, was_connecting: connection.unanswered, local, peer: connection.peer }.encode();
    bind(&program, &SocketAddrUnix::new_abstract_name(&name[1..])?)?;
    let filled = if connection.connecting { fill(&program)? } else { put(&program, 1)? };
    copy_manners(network, &program)?;
    let mut request = Request::new([0; 16], Kind::New, id);
    get_option(network, libc::SOL_SOCKET, libc::SO_LINGER, &mut request.linger)?;
    (request.accepted, request.number) = (connection.accepted, filled as i32);
    (request.local, request.peer) = (local, connection.peer);
    // Only the supervisor has an accepted socket. A connecting one is also the program's until its
    // new end is in place.
    if connection.accepted {
        resets(network);
    }
    Ok(Pair { program, supervisor, request })
}

/// Makes the socket reset on close. Call once only the supervisor has it.
pub(super) fn resets(network: &OwnedFd) {
    let _ = set_option(network, libc::SOL_SOCKET, libc::SO_LINGER, &RESET);
}

impl Pair {
    /// Restores the TCP socket's linger option if the pair was not used.
    pub(super) fn undo(self, network: &OwnedFd) {
        let _ = set_option(network, libc::SOL_SOCKET, libc::SO_LINGER, &self.request.linger);
    }
}

/// An internet address in the form used in `wire`.
pub(super) fn internet(name: &[u8]) -> Option<RawAddress> {
    let family = c_int::from(u16::from_ne_bytes(*name.first_chunk()?));
    let len = match family {
        libc::AF_INET => 16,
        libc::AF_INET6 => 28,
        _ => return None,
    };
    let mut raw = [0; 28];
    raw[..len].copy_from_slice(name.get(..len)?);
    Some(raw)
}

/// The name of a swapped descriptor; `None` for any other socket.
pub(super) fn swapped(socket: impl AsFd) -> Option<Name> {
    let name = sys::name(socket, false).ok()?;
    let (family, name) = name.split_first_chunk()?;
    (u16::from_ne_bytes(*family) == libc::AF_UNIX as u16).then(|| Name::decode(name))?
}

fn put(fd: &OwnedFd, len: usize) -> Result<usize> {
    Ok(send(fd, &ZEROS.0[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

/// Fills the program's end, so that its writes wait as for a TCP connection under way. As in the
/// library, pages are put in by reference if this process has descriptors for a pipe.
fn fill(fd: &OwnedFd) -> Result<usize> {
    // Before Linux 6.5 only this makes splicing non-blocking.
    rustix::io::ioctl_fionbio(fd, true)?;
    let mut filled = 0;
    let by_reference = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(Error::from);
    let by_reference = by_reference.and_then(|(from, into)| {
        fill_by(&mut filled, || {
            let mut len = sys::pipe_repeated(&into, &ZEROS.0)?;
            let mut moved = 0;
            while len > 0 {
                match sys::splice(&from, fd, len) {
                    Ok(n) if n > 0 => (moved, len) = (moved + n, len - n),
                    Err(e) if moved == 0 => return Err(e),
                    _ => break,
                }
            }
            Ok(moved)
        })
    });
    if by_reference.is_err() {
        fill_by(&mut filled, || put(fd, ZEROS.0.len()))?;
    }
    rustix::io::ioctl_fionbio(fd, false)?;
    Ok(filled)
}

/// Calls `put` until nothing more fits.
fn fill_by(filled: &mut usize, put: impl Fn() -> Result<usize>) -> Result<()> {
    for _ in 0..FILL_CALLS_MAX {
        match put() {
            Ok(n) => *filled += n,
            Err(e) if *filled > 0 && e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Err(Error::from_raw_os_error(libc::ENOBUFS))
}

/// Copies the properties of the descriptor, as opposed to the connection: how calls block, and who
/// gets signals.
fn copy_manners(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    let mut owner = [0; 2];
    if sys::control_owner(from, F_GETOWN_EX, &mut owner).is_ok() && owner[1] != 0 {
        sys::control_owner(to, F_SETOWN_EX, &mut owner)?;
    }
    let flags = sys::control(from, libc::F_GETFL, 0)?;
    if flags & libc::O_ASYNC != 0 {
        sys::control(to, F_SETSIG, sys::control(from, F_GETSIG, 0)?)?;
    }
    let manners = flags & (libc::O_NONBLOCK | libc::O_ASYNC);
    if manners != 0 {
        sys::control(to, libc::F_SETFL, manners)?;
    }
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut time = [0; 16];
        let len = get_option(from, libc::SOL_SOCKET, option, &mut time)?;
        if time != [0; 16] {
            set_option(to, libc::SOL_SOCKET, option, &time[..len])?;
        }
    }
    if sockopt::socket_oobinline(from)? {
        sockopt::set_socket_oobinline(to, true)?;
    }
    // As in the library: `poll` ignores the low-water mark of a unix socket.
    let mut low_water = [0; 4];
    get_option(from, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut low_water)?;
    if c_int::from_ne_bytes(low_water) > 1 {
        return Err(Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // TCP supports it since Linux 6.9.
    let mut offset = [0; 4];
    if get_option(from, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &mut offset).is_ok() && i32::from_ne_bytes(offset) >= 0 {
        set_option(to, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &offset)?;
    }
    Ok(())
}

/// The numbers are the same on every architecture.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_programs_end_says_what_it_stands_for() {
        let (client, server) = connected();
        client.set_read_timeout(Some(std::time::Duration::from_secs(7))).unwrap();
        client.set_nonblocking(true).unwrap();
        let peer = internet(&sys::name(&client, true).unwrap()).unwrap();
        let client = OwnedFd::from(client);
        let pair = pair(&client, &Connection { peer, connecting: false, unanswered: false, accepted: false }).unwrap();
        let name = swapped(&pair.program).unwrap();
        assert_eq!((name.peer, name.was_connecting), (peer, false));
        assert_eq!(internet(&sys::name(&server, false).unwrap()), Some(peer));
        assert_eq!((pair.request.number, pair.request.id), (1, name.id));
        let program = UnixStream::from(pair.program.try_clone().unwrap());
        assert_eq!(program.read_timeout().unwrap(), Some(std::time::Duration::from_secs(7)));
        assert!(sys::control(&pair.program, libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK != 0);
        // The program has the TCP socket too, so it must not reset if the supervisor dies at this
        // point.
        assert_eq!(sockopt::socket_linger(&client).unwrap(), None);
        assert!(swapped(&server).is_none());
        let server = OwnedFd::from(server);
        let accepted =
            super::pair(&server, &Connection { peer, connecting: false, unanswered: false, accepted: true }).unwrap();
        assert_eq!(sockopt::socket_linger(&server).unwrap(), Some(std::time::Duration::ZERO));
        accepted.undo(&server);
        assert_eq!(sockopt::socket_linger(&server).unwrap(), None);
    }

    #[test]
    fn who_is_connecting_cannot_be_written_to() {
        let (client, _server) = connected();
        let client = OwnedFd::from(client);
        let pair =
            pair(&client, &Connection { peer: [0; 28], connecting: true, unanswered: true, accepted: false }).unwrap();
        let mut program = UnixStream::from(pair.program);
        program.set_nonblocking(true).unwrap();
        assert_eq!(program.write(b"x").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let mut all = vec![0; pair.request.number as usize];
        let mut supervisor = UnixStream::from(pair.supervisor);
        supervisor.read_exact(&mut all).unwrap();
        assert!(program.write(b"x").is_ok());
    }
}
