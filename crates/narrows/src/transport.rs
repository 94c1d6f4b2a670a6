//! Links that carry the wire bytes: TCP, TLS over TCP, unix sockets, pipes and files.
//!
//! A write takes what fits and returns how much, so that the driver can look at the link while it
//! is full and stop at any time. The blocking mode of descriptors is never changed, since other
//! processes may share them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::sys;

pub mod bond;
mod disk;
mod far;
mod limit;
mod meter;
mod noise;
pub(crate) mod outbox;
mod plain;
mod read;
mod scavenger;
#[cfg(feature = "tls")]
pub mod tls;
mod write;

use far::Near;
pub use meter::Meter;
pub use noise::Heard;
pub use noise::NOISE_MAX;
pub use outbox::Outbox;
pub use plain::Plain;
pub(crate) use read::ReadHalf;
use read::Reader;
pub(crate) use write::WriteHalf;
use write::Writer;

/// One side of a connection. A duplex link has both halves.
pub struct Link {
    pub(crate) write: Option<WriteHalf>,
    pub(crate) read: Option<ReadHalf>,
}

impl Link {
    /// A connected TCP socket, both directions. It sends small pieces at once from now on (`TCP_NODELAY`), which is
    /// left so; what a flow leaves of the socket: [`send`](crate::stream::send).
    ///
    /// # Errors
    /// If a system call on the socket fails.
    pub fn tcp(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let read = ReadHalf::new(Reader::Tcp(socket.try_clone()?));
        let same_host = is_same_host(&socket);
        let mut write = WriteHalf::new(Writer::Tcp(socket), true);
        write.same_host = same_host;
        Ok(Self { write: Some(write), read: Some(read) })
    }

    /// A session after its handshake ([`tls::handshake`]), both directions.
    ///
    /// # Errors
    /// If the socket cannot be duplicated.
    #[cfg(feature = "tls")]
    pub fn tls(session: tls::Session) -> io::Result<Self> {
        let (read, write) = session.split()?;
        let same_host = is_same_host(write.socket());
        let mut write = WriteHalf::new(Writer::Tls(write), true);
        write.same_host = same_host;
        Ok(Self { write: Some(write), read: Some(ReadHalf::new(Reader::Tls(read))) })
    }

    /// A connected unix socket, both directions.
    ///
    /// # Errors
    /// If the socket cannot be duplicated.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        let read = ReadHalf::new(Reader::Unix(socket.try_clone()?));
        Ok(Self { write: Some(WriteHalf::new(Writer::Unix(socket), true)), read: Some(read) })
    }

    /// The writing end of a pipe, a terminal or a file, one direction.
    pub fn file_writer(file: File) -> Self {
        let nowait = sys::pipe_unread(file.as_fd()).is_some() && is_pipe(&file);
        Self { write: Some(WriteHalf::new(Writer::File(file), nowait)), read: None }
    }

    /// Looks for the connection that the programs which read this pipe write to: `| ssh`, `| nc`. Where it is
    /// found the link counts as that connection. On Linux `/proc` and sock_diag(7) tell; nothing is held open.
    #[must_use]
    #[doc(hidden)]
    pub fn seen_through(mut self) -> Self {
        self.write.iter_mut().for_each(|half| half.see_through(Near::Siblings));
        self
    }

    /// The same for the pipes of a program that this process started.
    #[must_use]
    #[doc(hidden)]
    pub fn carried_by(mut self, child: u32) -> Self {
        self.write.iter_mut().for_each(|half| half.see_through(Near::Child(child)));
        self
    }

    /// A regular file on a disk, one direction. As [`Link::file_writer`], but it takes bytes as fast as the
    /// disk stores them, not as fast as memory takes them: for a policy that adapts to links.
    ///
    /// # Errors
    /// No thread can be started, or the file has no positions.
    #[doc(hidden)]
    pub fn disk(file: File) -> io::Result<Self> {
        Ok(Self { write: Some(WriteHalf::new(Writer::Disk(disk::Disk::new(file)?), true)), read: None })
    }

    /// The reading end of a pipe or a file, one direction.
    pub fn file_reader(file: File) -> Self {
        Self { write: None, read: Some(ReadHalf::new(Reader::File(file))) }
    }

    /// The pipes of another program, both directions.
    #[doc(hidden)]
    pub fn pipes(write: File, read: File) -> Self {
        let mut write = Self::file_writer(write).write;
        write.iter_mut().for_each(|half| half.relayed = true);
        // A large pipe lets the other program go on writing; with the usual 64 KiB it stops at
        // every turn.
        sys::set_pipe_size(read.as_fd(), INCOMING_LEN);
        Self { write, read: Self::file_reader(read).read }
    }

    /// Skips all input before `magic`, such as the output of a login shell. `on_noise` hears it, and
    /// whether `magic` arrived. More than [`NOISE_MAX`] bytes of noise are an error.
    #[must_use]
    #[doc(hidden)]
    pub fn skip_noise(mut self, magic: &'static [u8], on_noise: impl FnMut(Heard<'_>) + Send + 'static) -> Self {
        if let Some(read) = &mut self.read {
            read.skip_noise(magic, Box::new(on_noise));
        }
        self
    }

    /// Any writer, one direction.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self { write: Some(WriteHalf::new(Writer::Other(Box::new(writer)), false)), read: None }
    }

    /// Any reader, one direction.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self { write: None, read: Some(ReadHalf::new(Reader::Other(Box::new(reader)))) }
    }

    /// Writes at most `rate` bytes per second.
    #[must_use]
    pub fn limited(mut self, rate: u64) -> Self {
        if let Some(write) = &mut self.write {
            write.set_limit(rate);
        }
        self
    }

    /// Writes as much as the path takes beside all other traffic, and no more: delays and losses of a single
    /// TCP connection, or of a bond of one, tell how much that is. Of other links nothing is known, and they are slow.
    #[must_use]
    pub fn yielding(mut self) -> Self {
        if let Some(write) = &mut self.write {
            write.yields();
        }
        self
    }

    /// Splits the link into two one-way links, the writing one first. Each carries its own stream,
    /// without feedback.
    #[must_use]
    pub fn split(self) -> (Self, Self) {
        (Self { write: self.write, read: None }, Self { write: None, read: self.read })
    }

    /// Whether the link has both directions.
    pub fn is_duplex(&self) -> bool {
        self.write.is_some() && self.read.is_some()
    }
}

/// Sets a socket's receive buffer to about `bytes` bytes. On a listening socket it applies to
/// accepted connections, whose window then never gets larger.
///
/// # Errors
/// If the system call fails.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    sys::set_receive_buffer(socket.as_fd(), bytes.min(i32::MAX as usize) as i32)
}

/// Size of the pipe from a relaying program: the most that is allowed without privileges.
const INCOMING_LEN: u32 = 1 << 20;

fn is_same_host(socket: &TcpStream) -> bool {
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(own), Ok(peer)) => peer.ip().is_loopback() || peer.ip() == own.ip(),
        _ => false,
    }
}

fn is_pipe(file: &File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().is_ok_and(|m| m.file_type().is_fifo())
}
