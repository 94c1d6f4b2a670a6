//! Links over descriptors, and waiting for several of them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use narrows::transport::Link;
use narrows::{Error, Result};

/// A link that takes over a descriptor of Python. The descriptor must be open and owned by the
/// caller, as those of `os.dup` are.
#[allow(unsafe_code, reason = "a number becomes a descriptor that is owned")]
pub(crate) fn link(descriptor: i32, kind: &str) -> Result<Link> {
    if descriptor < 0 {
        return Err(Error::misuse("a descriptor must be 0 or more"));
    }
    // SAFETY: only the module's own Python code calls this, with a result of `os.dup` that nobody
    // else uses. So the descriptor is open, and the link may close it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(match kind {
        "file" => Link::file_writer(File::from(owned)),
        "tcp" => Link::tcp(TcpStream::from(owned))?,
        "unix" => Link::unix(UnixStream::from(owned))?,
        _ => return Err(Error::misuse(format!("unknown kind of link '{kind}'"))),
    })
}

/// A file of Python, taken over as by [`link`].
#[allow(unsafe_code, reason = "a number becomes a descriptor that is owned")]
pub(crate) fn file(descriptor: i32) -> Result<File> {
    if descriptor < 0 {
        return Err(Error::misuse("a descriptor must be 0 or more"));
    }
    // SAFETY: as in `link`: the descriptor is a result of `os.dup` that nobody else uses.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// A connected socket of Python, taken over, as one that never waits.
#[allow(unsafe_code, reason = "a number becomes a descriptor that is owned")]
pub(crate) fn connection(descriptor: i32) -> Result<TcpStream> {
    if descriptor < 0 {
        return Err(Error::misuse("a descriptor must be 0 or more"));
    }
    // SAFETY: only the module's own Python code calls this, with a result of `socket.detach` that
    // nobody else uses. So the descriptor is open, and the stream may close it.
    let socket = TcpStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A flag that wakes whoever waits for its descriptor.
pub(crate) struct Event(File);

impl Event {
    #[allow(unsafe_code, reason = "a system call without a safe wrapper")]
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers. The result is a new descriptor or -1.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) })))
    }

    pub(crate) fn set(&self) {
        // It can only fail if it was set 2^64 - 2 times and never cleared.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until `socket` may take bytes, if `write`, or `event` is set, or for `timeout`.
#[allow(unsafe_code, reason = "a system call without a safe wrapper")]
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    write: bool,
    event: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> io::Result<()> {
    // The call passes over an entry without a descriptor.
    let entry = |fd: Option<BorrowedFd<'_>>, events| {
        let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
        libc::pollfd { fd, events, revents: 0 }
    };
    // An entry that waits for nothing would still report that the peer has gone, at once.
    let mut fds = [entry(event, libc::POLLIN), entry(Some(socket).filter(|_| write), libc::POLLOUT)];
    let time = libc::timespec {
        tv_sec: timeout.as_secs().min(3600) as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: the array has as many entries as the call is told and, as the time, outlives it; the
    // descriptors are borrowed for its length; no mask of signals is given.
    let answer = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const time, std::ptr::null()) };
    match answer {
        -1 => Some(io::Error::last_os_error()).filter(|e| e.kind() != io::ErrorKind::Interrupted).map_or(Ok(()), Err),
        _ => Ok(()),
    }
}
