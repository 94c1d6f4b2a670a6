//! What carries the wire bytes: TCP, unix sockets, pipes and files.
//!
//! Writes take what fits and say so, so that the driver can look at the link while it is full and stop at any time.
//! No descriptor's blocking mode is changed: others may share it.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sys::{self, Interest};

/// One side of a connection. A duplex link has both halves.
pub struct Link {
    pub(crate) write: Option<WriteHalf>,
    pub(crate) read: Option<ReadHalf>,
}

impl Link {
    /// A connected TCP socket, both directions.
    pub fn tcp(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let read = ReadHalf::new(Reader::Tcp(socket.try_clone()?));
        let same_host = match (socket.local_addr(), socket.peer_addr()) {
            (Ok(own), Ok(peer)) => peer.ip().is_loopback() || peer.ip() == own.ip(),
            _ => false,
        };
        let write = WriteHalf { same_host, ..WriteHalf::new(Writer::Tcp(socket), true) };
        Ok(Self { write: Some(write), read: Some(read) })
    }

    /// A connected unix socket, both directions.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        let read = ReadHalf::new(Reader::Unix(socket.try_clone()?));
        Ok(Self { write: Some(WriteHalf::new(Writer::Unix(socket), true)), read: Some(read) })
    }

    /// The writing end of a pipe, a terminal or a file, one direction.
    pub fn file_writer(file: File) -> Self {
        let nowait = sys::pipe_unread(file.as_fd()).is_some() && is_pipe(&file);
        Self { write: Some(WriteHalf::new(Writer::File(file), nowait)), read: None }
    }

    /// The reading end of a pipe or a file, one direction.
    pub fn file_reader(file: File) -> Self {
        Self { write: None, read: Some(ReadHalf::new(Reader::File(file))) }
    }

    /// The pipes of another program, both directions.
    pub fn pipes(write: File, read: File) -> Self {
        let write = Self::file_writer(write).write.map(|half| WriteHalf { relayed: true, ..half });
        Self { write, read: Self::file_reader(read).read }
    }

    /// Passes over what comes before `magic`, such as what a login shell prints, and hands it to `on_noise`. More than
    /// [`NOISE_MAX`] bytes of it are an error.
    #[must_use]
    pub fn skip_noise(mut self, magic: &'static [u8], on_noise: impl FnMut(&[u8]) + Send + 'static) -> Self {
        if let Some(read) = &mut self.read {
            read.noise = Some(Noise { magic, seen: Vec::new(), on_noise: Box::new(on_noise) });
        }
        self
    }

    /// Anything that can be written, one direction.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self { write: Some(WriteHalf::new(Writer::Other(Box::new(writer)), false)), read: None }
    }

    /// Anything that can be read, one direction.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self { write: None, read: Some(ReadHalf::new(Reader::Other(Box::new(reader)))) }
    }

    /// Whether bytes can come back.
    pub fn is_duplex(&self) -> bool {
        self.write.is_some() && self.read.is_some()
    }
}

/// Gives a socket a receive buffer of about so many bytes. On a listening socket it holds for its connections, whose
/// window is then never larger.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    sys::set_receive_buffer(socket.as_fd(), bytes.min(i32::MAX as usize) as i32)
}

/// Longest that a login shell may go on before the program that it starts speaks.
pub const NOISE_MAX: usize = 64 << 10;

/// Segments of jumbo frames have 9,000 bytes; those of the loopback device 32 KiB and more, unless somebody made it behave
/// like a network.
const NETWORK_SEGMENT_MAX: u32 = 9000;

fn is_pipe(file: &File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().is_ok_and(|m| m.file_type().is_fifo())
}

pub(crate) struct WriteHalf {
    kind: Writer,
    /// Transfers that do not wait work here; otherwise a write blocks.
    nowait: bool,
    /// The peer of a TCP connection is this host.
    same_host: bool,
    /// Another program passes on what is written, and holds what it likes.
    pub(crate) relayed: bool,
}

enum Writer {
    Tcp(TcpStream),
    Unix(UnixStream),
    File(File),
    Other(Box<dyn Write + Send>),
}

impl WriteHalf {
    fn new(kind: Writer, nowait: bool) -> Self {
        Self { kind, nowait, same_host: false, relayed: false }
    }

    /// Writes what fits; `WouldBlock` when nothing does (then [`WriteHalf::wait_writable`]).
    pub(crate) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.kind {
            Writer::Tcp(s) => sys::send_nowait(s.as_fd(), bufs),
            Writer::Unix(s) => sys::send_nowait(s.as_fd(), bufs),
            Writer::File(f) if self.nowait => match sys::pipe_write_nowait(f.as_fd(), bufs) {
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    self.nowait = false;
                    f.write_vectored(bufs)
                }
                result => result,
            },
            Writer::File(f) => f.write_vectored(bufs),
            Writer::Other(w) => {
                let n = w.write_vectored(bufs)?;
                w.flush()?;
                Ok(n)
            }
        }
    }

    /// Waits until a write may take something, at most so long.
    pub(crate) fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        let Some(fd) = self.fd() else { return Ok(()) };
        let write = Interest { fd, read: false, write: true };
        sys::poll([write, Interest { write: false, ..write }], Some(timeout)).map(drop)
    }

    /// Bytes that the kernel holds and that have not left the host.
    pub(crate) fn unsent(&self) -> u64 {
        match &self.kind {
            Writer::Tcp(s) => sys::socket_unsent(s.as_fd()).unwrap_or(0),
            Writer::Unix(s) => sys::socket_outstanding(s.as_fd()).unwrap_or(0),
            Writer::File(f) if self.nowait => sys::pipe_unread(f.as_fd()).unwrap_or(0),
            Writer::File(_) | Writer::Other(_) => 0,
        }
    }

    /// Bytes that the far end has not acknowledged, where it does (TCP).
    pub(crate) fn unacked(&self) -> Option<u64> {
        match &self.kind {
            Writer::Tcp(s) => sys::socket_outstanding(s.as_fd()),
            _ => None,
        }
    }

    /// The system's latest sample of the delivery rate, for TCP connections within this host that pass no network device:
    /// on others the rate is estimated over a longer time.
    pub(crate) fn delivery_bytes_per_s(&self) -> Option<u64> {
        match &self.kind {
            Writer::Tcp(s) if self.same_host => {
                let info = sys::tcp_info(s.as_fd())?;
                (info.segment_bytes > NETWORK_SEGMENT_MAX).then_some(info.delivery_rate_bytes_per_s)
            }
            _ => None,
        }
    }

    /// Time since the connection began in which the receiver's window stopped it (TCP only).
    pub(crate) fn receiver_limited_ns(&self) -> u64 {
        match &self.kind {
            Writer::Tcp(s) => sys::tcp_info(s.as_fd()).map_or(0, |i| 1000 * i.rwnd_limited_us),
            _ => 0,
        }
    }

    /// How many unsent bytes the kernel may hold before it says that it is full (TCP only).
    pub(crate) fn set_backlog(&self, bytes: u32) {
        if let Writer::Tcp(s) = &self.kind {
            // Without the option more lies in the kernel, where it cannot be decided again; nothing breaks.
            let _ = sys::set_notsent_lowat(s.as_fd(), bytes);
        }
    }

    /// Says that nothing more will be written.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Writer::Tcp(s) => s.shutdown(Shutdown::Write),
            Writer::Unix(s) => s.shutdown(Shutdown::Write),
            Writer::File(f) => {
                let flushed = f.flush();
                // The reader of a pipe sees the end when the last descriptor goes.
                self.kind = Writer::Other(Box::new(io::sink()));
                flushed
            }
            Writer::Other(w) => w.flush(),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Writer::Tcp(s) => Some(s.as_fd()),
            Writer::Unix(s) => Some(s.as_fd()),
            Writer::File(f) => Some(f.as_fd()),
            Writer::Other(_) => None,
        }
    }
}

pub(crate) struct ReadHalf {
    kind: Reader,
    noise: Option<Noise>,
    /// Bytes that came behind noise and have not been read.
    stash: Vec<u8>,
}

type OnNoise = Box<dyn FnMut(&[u8]) + Send>;

struct Noise {
    magic: &'static [u8],
    seen: Vec<u8>,
    on_noise: OnNoise,
}

enum Reader {
    Tcp(TcpStream),
    Unix(UnixStream),
    File(File),
    Other(Box<dyn Read + Send>),
}

impl ReadHalf {
    fn new(kind: Reader) -> Self {
        Self { kind, noise: None, stash: Vec::new() }
    }

    /// Reads what is there; waits at most `timeout` for it and is `None` if nothing came. 0 is the end.
    pub(crate) fn read(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        if self.stash.is_empty() {
            let n = self.read_some(buf, timeout)?;
            match (&mut self.noise, n) {
                (None, _) | (_, None) => return Ok(n),
                (Some(noise), Some(0)) => {
                    (noise.on_noise)(&noise.seen);
                    self.noise = None;
                    return Ok(Some(0));
                }
                (Some(noise), Some(n)) => {
                    let Some(rest) = noise.pass(&buf[..n])? else { return Ok(None) };
                    (self.stash, self.noise) = (rest, None);
                }
            }
        }
        let n = self.stash.len().min(buf.len());
        buf[..n].copy_from_slice(&self.stash[..n]);
        self.stash.drain(..n);
        Ok(Some(n))
    }

    fn read_some(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        let fd = match &self.kind {
            Reader::Tcp(s) => s.as_fd(),
            Reader::Unix(s) => s.as_fd(),
            Reader::File(f) => f.as_fd(),
            Reader::Other(_) => return self.read_blocking(buf).map(Some),
        };
        if matches!(self.kind, Reader::Tcp(_) | Reader::Unix(_)) {
            match sys::recv_nowait(fd, buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(Some),
            }
        }
        let read = Interest { fd, read: true, write: false };
        if !sys::poll([read, Interest { read: false, ..read }], Some(timeout))?[0] {
            return Ok(None);
        }
        self.read_blocking(buf).map(Some)
    }

    fn read_blocking(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match &mut self.kind {
                Reader::Tcp(s) => s.read(buf),
                Reader::Unix(s) => s.read(buf),
                Reader::File(f) => f.read(buf),
                Reader::Other(r) => r.read(buf),
            };
            match result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Noise {
    /// What begins with the magic, once it has come.
    fn pass(&mut self, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.seen.extend_from_slice(bytes);
        if let Some(at) = self.seen.windows(self.magic.len()).position(|w| w == self.magic) {
            if at > 0 {
                (self.on_noise)(&self.seen[..at]);
            }
            return Ok(Some(self.seen.split_off(at)));
        }
        if self.seen.len() > NOISE_MAX {
            (self.on_noise)(&self.seen);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what comes is not from a Narrows program"));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes through behind the noise, and the noise.
    fn pass(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let noise = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = std::sync::Arc::clone(&noise);
        struct Pieces(Vec<Vec<u8>>);
        impl Read for Pieces {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                let piece = self.0.remove(0);
                buf[..piece.len()].copy_from_slice(&piece);
                Ok(piece.len())
            }
        }
        let reader = Pieces(pieces.iter().map(|p| p.to_vec()).collect());
        let link = Link::reader(reader).skip_noise(b"MAGIC", move |n| heard.lock().unwrap().extend_from_slice(n));
        let (mut half, mut all, mut buf) = (link.read.unwrap(), Vec::new(), [0; 64]);
        loop {
            match half.read(&mut buf, Duration::ZERO).unwrap() {
                Some(0) => break,
                Some(n) => all.extend_from_slice(&buf[..n]),
                None => {}
            }
        }
        let noise = noise.lock().unwrap().clone();
        (all, noise)
    }

    #[test]
    fn noise_before_the_magic_is_passed_over_however_it_comes() {
        let hello: (Vec<u8>, Vec<u8>) = (b"MAGIC data MAGIC".to_vec(), b"Welcome!\n".to_vec());
        assert_eq!(pass(&[b"Welcome!\nMAGIC data MAGIC"]), hello);
        assert_eq!(pass(&[b"Welcome", b"!\nMA", b"GIC", b" data MAGIC"]), hello);
        assert_eq!(pass(&[b"MAGIC"]), (b"MAGIC".to_vec(), vec![]));
        assert_eq!(pass(&[b"no such command"]), (vec![], b"no such command".to_vec()));
    }
}
