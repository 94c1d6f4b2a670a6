//! The swap: a unix socket replaces a TCP socket, which goes to the supervisor.
//!
//! Any failure before the last step leaves the TCP socket in place and the connection plain.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use crate::control;
use crate::marks;
use crate::registrations;
use crate::sys;
use crate::wire::{BY_GATEWAY, Name, RawAddress};

/// The kernel doubles this value. One unread byte may pin all pages that one splice put into a
/// buffer, 70,400 bytes with overhead, and a unix socket is writable only while four times the used
/// memory fits. A larger buffer would only hold more bytes that wait behind a slow link.
const SEND_BUFFER: c_int = 147_456;
/// Upper bound of calls needed to fill the buffer; each writes 64 KiB, or one page if the pipe is
/// that small.
const FILL_CALLS_MAX: usize = 256;
/// dup3 may collide with an open of the same number in another thread.
const DUP_TRIES: usize = 100;

/// SO_LINGER: on, zero time. The kernel then resets on close: if the supervisor dies, the peer must
/// not see an end of stream. The supervisor removes it before an orderly close.
pub(crate) const RESET: [u8; 8] =
    if cfg!(target_endian = "little") { [1, 0, 0, 0, 0, 0, 0, 0] } else { [0, 0, 0, 1, 0, 0, 0, 0] };

/// A page of the library's file or the kernel's zero page: it exists once, however often it is
/// referenced.
#[repr(align(4096))]
struct Page([u8; 4096]);
static ZEROS: Page = Page([0; 4096]);

/// Temporary descriptors of swaps under way. A fork in another thread copies them; the child closes
/// its copies, or the end of the connection would not be seen before it exits.
static TEMPORARIES: [AtomicI32; 32] = [const { AtomicI32::new(-1) }; 32];

struct Temporary {
    fd: c_int,
    place: Option<&'static AtomicI32>,
}

impl Temporary {
    fn new(fd: c_int) -> Self {
        let free = |p: &&AtomicI32| p.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Self { fd, place: TEMPORARIES.iter().find(free) }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Remove before closing: the number must not be in the list once it can be reused.
        if let Some(place) = self.place {
            place.store(-1, Ordering::Relaxed);
        }
        sys::close(self.fd);
    }
}

/// Closes the copies in the child of a fork.
pub(crate) fn close_temporaries() {
    for place in &TEMPORARIES {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            sys::close(fd);
        }
    }
}

/// A connection that is established or being made.
pub(crate) struct Connection {
    pub(crate) local: RawAddress,
    pub(crate) peer: RawAddress,
    /// The TCP connection is being made.
    pub(crate) connecting: bool,
    /// The program's `connect` was not answered with success: a further one will be.
    pub(crate) unanswered: bool,
    pub(crate) accepted: bool,
    /// The TCP socket leads to a gateway, and `peer` is the server behind it.
    pub(crate) by_gateway: bool,
    /// The mark that finds all numbers of the socket; 0 if it has only one.
    pub(crate) mark: u64,
}

/// Puts a unix socket under the number `fd`, and hands what was there to the supervisor.
pub(crate) fn swap(fd: c_int, connection: &Connection) -> Result<(), c_int> {
    // A signal handler that forks or jumps away in between would leave half a swap.
    let signals = sys::block_signals();
    let answer = hand_over(fd, connection);
    sys::unblock_signals(signals);
    answer
}

fn hand_over(fd: c_int, connection: &Connection) -> Result<(), c_int> {
    let id = sys::random()?;
    let [program, supervisor] = sys::pair()?;
    let (program, supervisor) = (Temporary::new(program), Temporary::new(supervisor));
    sys::set_option(program.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER.to_ne_bytes())?;
    if sys::get_int(program.fd, libc::SOL_SOCKET, libc::SO_SNDBUF)? < 2 * SEND_BUFFER {
        return Err(libc::ENOBUFS);
    }
    let name =
        Name { id, was_connecting: connection.unanswered, local: connection.local, peer: connection.peer }.encode();
    sys::bind_unix(program.fd, &name)?;
    let filled = if connection.connecting { fill(program.fd)? } else { poison(program.fd)? };
    copy_manners(fd, program.fd)?;
    let mut linger = [0; 8];
    sys::get_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET)?;
    let given = control::hand_over(id, [fd, supervisor.fd], |request| {
        request.linger = linger;
        request.number = filled;
        request.accepted = connection.accepted;
        request.option = if connection.by_gateway { BY_GATEWAY } else { 0 };
        request.local = connection.local;
        request.peer = connection.peer;
    });
    if given.is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)?;
    }
    given?;
    put(program.fd, fd)?;
    while let Some(other) = marks::take_duplicate(connection.mark) {
        put(program.fd, other)?;
    }
    Ok(())
}

/// Puts `new` under the number `fd`, with the same close-on-exec flag.
fn put(new: c_int, fd: c_int) -> Result<(), c_int> {
    let closes = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC as usize != 0;
    let flags = if closes { libc::O_CLOEXEC } else { 0 };
    registrations::across(fd, || {
        let mut answer = sys::dup3(new, fd, flags);
        for _ in 0..DUP_TRIES {
            if answer != Err(libc::EBUSY) && answer != Err(libc::EINTR) {
                break;
            }
            answer = sys::dup3(new, fd, flags);
        }
        answer
    })
    .map(drop)
}

/// Writes the poison: one byte that the supervisor leaves unread, so that the kernel reports an
/// error and not an end of stream when its end closes for any reason.
fn poison(fd: c_int) -> Result<c_int, c_int> {
    sys::send(fd, &ZEROS.0[..1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(|n| n as c_int)
}

/// Fills the program's end, so that its writes wait as for a TCP connection under way. A program
/// may try thousands of servers that do not answer, so the fill is one page repeated many times,
/// which costs the kernel no memory where it can be added by reference.
fn fill(fd: c_int) -> Result<c_int, c_int> {
    // Before Linux 6.5 only this makes splicing non-blocking.
    sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize)?;
    let mut filled = 0;
    let by_reference = sys::pipe().and_then(|[from, into]| {
        let (from, into) = (Temporary::new(from), Temporary::new(into));
        fill_by(&mut filled, || {
            let mut len = sys::pipe_repeated(into.fd, &ZEROS.0)?;
            let mut moved = 0;
            while len > 0 {
                match sys::splice(from.fd, fd, len) {
                    Ok(n) if n > 0 => (moved, len) = (moved + n, len - n),
                    Err(number) if moved == 0 => return Err(number),
                    _ => break,
                }
            }
            Ok(moved)
        })
    });
    if by_reference.is_err() {
        // In a sandbox without pipes.
        fill_by(&mut filled, || sys::send_repeated(fd, &ZEROS.0, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))?;
    }
    sys::fcntl(fd, libc::F_SETFL, 0)?;
    Ok(filled)
}

/// Calls `put` until nothing more fits.
fn fill_by(filled: &mut c_int, put: impl Fn() -> sys::Answer) -> Result<(), c_int> {
    for _ in 0..FILL_CALLS_MAX {
        match put() {
            Ok(n) => *filled += n as c_int,
            Err(libc::EAGAIN) if *filled > 0 => return Ok(()),
            Err(number) => return Err(number),
        }
    }
    Err(libc::ENOBUFS)
}

/// Copies the properties of the descriptor, as opposed to the connection: how calls block, and who
/// gets signals.
fn copy_manners(from: c_int, to: c_int) -> Result<(), c_int> {
    let mut owner = [0; 2];
    if sys::fcntl_owner(from, F_GETOWN_EX, &mut owner).is_ok() && owner[1] != 0 {
        sys::fcntl_owner(to, F_SETOWN_EX, &mut owner)?;
    }
    let flags = sys::fcntl(from, libc::F_GETFL, 0)?;
    if flags & libc::O_ASYNC as usize != 0 {
        let signal = sys::fcntl(from, F_GETSIG, 0)?;
        sys::fcntl(to, F_SETSIG, signal)?;
    }
    let manners = flags & (libc::O_NONBLOCK | libc::O_ASYNC) as usize;
    if manners != 0 {
        sys::fcntl(to, libc::F_SETFL, manners)?;
    }
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut time = [0; 16];
        let len = sys::get_option(from, libc::SOL_SOCKET, option, &mut time)?;
        if time != [0; 16] {
            sys::set_option(to, libc::SOL_SOCKET, option, &time[..len.min(16)])?;
        }
    }
    let inline = sys::get_int(from, libc::SOL_SOCKET, libc::SO_OOBINLINE)?;
    if inline != 0 {
        sys::set_option(to, libc::SOL_SOCKET, libc::SO_OOBINLINE, &inline.to_ne_bytes())?;
    }
    // `poll` ignores the low-water mark of a unix socket: a program that has set one would be woken
    // before that much is there.
    if sys::get_int(from, libc::SOL_SOCKET, libc::SO_RCVLOWAT)? > 1 {
        return Err(libc::EOPNOTSUPP);
    }
    // TCP supports it since Linux 6.9.
    if let Ok(offset @ 0..) = sys::get_int(from, libc::SOL_SOCKET, libc::SO_PEEK_OFF) {
        sys::set_option(to, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &offset.to_ne_bytes())?;
    }
    Ok(())
}

/// The numbers are the same on every architecture.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
