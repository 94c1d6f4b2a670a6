//! Descriptors and signals.
#![allow(unsafe_code, reason = "calls into libc, and descriptors that the caller owns")]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use narrows::transport::Link;

use crate::status::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// A link over a duplicate of the caller's descriptor.
pub(crate) fn link(fd: i32, direction: Direction, one_way: bool) -> Result<Link> {
    let own = duplicate(fd)?;
    let kind = std::os::unix::fs::FileTypeExt::is_socket(&file_type(&own)?);
    if kind {
        return socket_link(own, direction, one_way);
    }
    check_open_for(&own, fd, direction)?;
    let file = File::from(own);
    Ok(match direction {
        Direction::Write => Link::file_writer(file),
        Direction::Read => Link::file_reader(file),
    })
}

/// An error if the descriptor, which the caller calls `fd`, is not open for `direction`.
fn check_open_for(own: &OwnedFd, fd: i32, direction: Direction) -> Result<()> {
    // SAFETY: reads the flags of an open descriptor; no pointer is involved.
    let flags = unsafe { libc::fcntl(own.as_raw_fd(), libc::F_GETFL) };
    let (refused, way) = match direction {
        Direction::Write => (libc::O_RDONLY, "writing"),
        Direction::Read => (libc::O_WRONLY, "reading"),
    };
    if flags & libc::O_ACCMODE == refused {
        return Err(Failure::misuse(format!("descriptor {fd} is not open for {way}")));
    }
    Ok(())
}

fn socket_link(own: OwnedFd, direction: Direction, one_way: bool) -> Result<Link> {
    if option(&own, libc::SO_TYPE)? != libc::SOCK_STREAM {
        return Err(Failure::misuse("a datagram socket cannot carry a stream"));
    }
    let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&option(&own, libc::SO_DOMAIN)?);
    let link = if is_internet {
        let socket = TcpStream::from(own);
        socket.peer_addr()?;
        Link::tcp(socket)?
    } else {
        Link::unix(UnixStream::from(own))?
    };
    if !one_way {
        return Ok(link);
    }
    let (write, read) = link.split();
    Ok(if direction == Direction::Write { write } else { read })
}

/// A regular file, for positioned reads, over a duplicate of the caller's descriptor.
pub(crate) fn file(fd: i32) -> Result<File> {
    let own = duplicate(fd)?;
    check_open_for(&own, fd, Direction::Read)?;
    regular(File::from(own), &format!("descriptor {fd} is"))
}

/// A regular file, for positioned reads.
pub(crate) fn open(path: &Path) -> Result<File> {
    // Opening a pipe would wait for a writer, and a terminal could become that of the process.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    regular(OpenOptions::new().read(true).custom_flags(flags).open(path)?, "this is")
}

fn regular(file: File, what: &str) -> Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let text = "no regular file, which alone is read at any byte: use narrows_reader_open, or copy it to a file";
    Err(Failure::misuse(format!("{what} {text}")))
}

/// Whether the descriptor refers to a regular file.
pub(crate) fn is_file(fd: i32) -> Result<bool> {
    Ok(file_type(&duplicate(fd)?)?.is_file())
}

/// Takes ownership of the caller's descriptor, which is closed on drop. There must be a [`link`]
/// over it.
pub(crate) fn take_over(fd: i32) -> OwnedFd {
    // SAFETY: it is open, since there is a link over it, and the caller gave it away by
    // NARROWS_CLOSE_FD.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn duplicate(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Failure::misuse(format!("{fd} is not a descriptor")));
    }
    // SAFETY: not -1. If it is not open, duplicating it fails, and nothing else uses it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().map_err(|e| match e.raw_os_error() {
        Some(libc::EBADF) => Failure::misuse(format!("descriptor {fd} is not open")),
        _ => e.into(),
    })
}

fn file_type(fd: &OwnedFd) -> Result<std::fs::FileType> {
    Ok(File::from(fd.try_clone()?).metadata()?.file_type())
}

fn option(fd: &OwnedFd, name: i32) -> io::Result<i32> {
    let mut value: i32 = 0;
    let mut len = size_of::<i32>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `to` has room for `len` bytes, and both outlive the call.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks all signals for the calling thread and those that it starts: they run no signal handlers
/// of the program, and a pipe without a reader is an error instead of SIGPIPE.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set that it is given, and `pthread_sigmask` only reads it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Number of forks between the process that first called [`count_forks`] and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count forks. Counted because getpid costs as much as a small write.
pub(crate) fn count_forks() -> Result<()> {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ERROR: OnceLock<i32> = OnceLock::new();
    // SAFETY: the function lives as long as the library, and unloading the library unregisters it.
    // It only adds to an atomic, which a child with one thread may do.
    match ERROR.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) }) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(*error).into()),
    }
}
