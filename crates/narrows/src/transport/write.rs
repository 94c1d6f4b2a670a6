//! The writing half of a link.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::disk::Disk;
use super::far::{Far, Near, Seen};
use super::limit::Limit;
use super::scavenger::Path;
#[cfg(feature = "tls")]
use super::tls;
use super::{Meter, bond, meter};
use crate::sys::{self, Interest};

/// Default size of a pipe.
const PIPE_LEN: u32 = 64 << 10;

pub(crate) struct WriteHalf {
    kind: Writer,
    /// Whether writes can be non-blocking.
    nowait: bool,
    /// The peer of a TCP connection is this host.
    pub(super) same_host: bool,
    /// Another program relays what is written, and may buffer any amount.
    pub(crate) relayed: bool,
    limit: Option<Limit>,
    /// Bytes that writes took, and the connection behind the programs that read them from a pipe.
    accepted: u64,
    far: Option<Box<Far>>,
}

pub(super) enum Writer {
    Bond(bond::Outgoing),
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(tls::Outgoing),
    Unix(UnixStream),
    File(File),
    Disk(Disk),
    Other(Box<dyn Write + Send>),
}

impl WriteHalf {
    pub(super) fn new(kind: Writer, nowait: bool) -> Self {
        Self { kind, nowait, same_host: false, relayed: false, limit: None, accepted: 0, far: None }
    }

    pub(super) fn set_limit(&mut self, rate: u64) {
        self.limit = Some(Limit::new(rate));
    }

    /// Yields to all other traffic on the path.
    pub(super) fn yields(&mut self) {
        self.limit = Some(Limit::yielding());
    }

    /// Looks for the connection behind the programs that read the pipe. Without effect on links that are no pipes.
    pub(super) fn see_through(&mut self, near: Near) {
        if let Writer::File(file) = &self.kind
            && self.nowait
        {
            self.far = Far::new(file, near).map(Box::new);
        }
    }

    /// Looks at the connections behind pipes. Between two looks it counts as unchanged.
    pub(crate) fn look(&mut self) {
        match (&mut self.kind, &mut self.far) {
            (Writer::Bond(b), _) => b.look(),
            (Writer::File(file), Some(far)) => far.look(self.accepted, || sys::pipe_unread(file.as_fd())),
            _ => {}
        }
    }

    fn far(&self) -> Option<Seen> {
        self.far.as_ref()?.seen()
    }

    pub(super) fn bond(bond: bond::Outgoing) -> Self {
        Self::new(Writer::Bond(bond), true)
    }

    /// Writes what fits; `WouldBlock` if nothing does (then call [`WriteHalf::wait_writable`]).
    pub(crate) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.limit.as_ref().is_some_and(Limit::wants_look)
            && let Some(path) = self.path()
        {
            self.limit.iter_mut().for_each(|limit| limit.look(path));
        }
        if self.limit.is_some() { self.write_limited(bufs) } else { self.write_now(bufs) }
            .inspect(|n| self.accepted += *n as u64)
    }

    fn write_limited(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(limit) = &mut self.limit else { return self.write_now(bufs) };
        let mut left = limit.allowed();
        let offered = bufs.iter().map(|buf| buf.len()).sum();
        if left == 0 {
            limit.wrote(0, offered);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut now = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let len = buf.len().min(left);
            left -= len;
            if len > 0 {
                now.push(IoSlice::new(&buf[..len]));
            }
        }
        let written = self.write_now(&now)?;
        self.limit.iter_mut().for_each(|limit| limit.wrote(written, offered));
        Ok(written)
    }

    fn write_now(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.kind {
            Writer::Tcp(s) => sys::send_nowait(s.as_fd(), bufs),
            #[cfg(feature = "tls")]
            Writer::Tls(t) => t.write_some(bufs),
            Writer::Bond(b) => b.write_some(bufs),
            Writer::Unix(s) => sys::send_nowait(s.as_fd(), bufs),
            Writer::File(f) if self.nowait => match sys::pipe_write_nowait(f.as_fd(), bufs) {
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    self.nowait = false;
                    f.write_vectored(bufs)
                }
                result => result,
            },
            Writer::File(f) => f.write_vectored(bufs),
            Writer::Disk(d) => d.write_some(bufs),
            Writer::Other(w) => {
                let n = w.write_vectored(bufs)?;
                w.flush()?;
                Ok(n)
            }
        }
    }

    /// Passes on bytes that an earlier write took and that are still held; `WouldBlock` if some
    /// have to wait.
    pub(crate) fn flush_some(&mut self) -> io::Result<()> {
        match &mut self.kind {
            #[cfg(feature = "tls")]
            Writer::Tls(t) => t.flush_some(),
            Writer::Bond(b) => b.flush_some(),
            _ => Ok(()),
        }
    }

    /// Bytes that writes took and that have not reached the system; [`WriteHalf::flush_some`]
    /// passes them on.
    pub(crate) fn held(&self) -> u64 {
        match &self.kind {
            #[cfg(feature = "tls")]
            Writer::Tls(t) => t.held(),
            Writer::Bond(b) => b.held(),
            _ => 0,
        }
    }

    /// Whether the link is a pipe that is never waited for within a write.
    pub(crate) fn is_pipe(&self) -> bool {
        self.nowait && matches!(self.kind, Writer::File(_))
    }

    /// Waits until a write may take bytes, at most `timeout`.
    pub(crate) fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        let pause = self.limit.as_ref().map_or(Duration::ZERO, Limit::pause);
        if !pause.is_zero() {
            std::thread::sleep(pause.min(timeout));
            return Ok(());
        }
        if let Writer::Bond(b) = &self.kind {
            return b.wait_writable(timeout);
        }
        if let Writer::Disk(d) = &self.kind {
            d.wait_writable(timeout);
            return Ok(());
        }
        let Some(fd) = self.fd() else { return Ok(()) };
        sys::poll([Interest { fd, read: false, write: true }], Some(timeout)).map(drop)
    }

    /// Bytes in the kernel that have not left the host.
    pub(crate) fn unsent(&self) -> u64 {
        if let Some(socket) = self.tcp_socket() {
            return self.held() + meter::unsent(socket.as_fd());
        }
        match &self.kind {
            Writer::Bond(b) => b.unsent(),
            Writer::Disk(d) => d.unsent(),
            Writer::Unix(s) => sys::socket_outstanding(s.as_fd()).unwrap_or(0),
            Writer::File(f) if self.nowait => match self.far() {
                Some(seen) => self.accepted - seen.left,
                None => sys::pipe_unread(f.as_fd()).unwrap_or(0),
            },
            _ => 0,
        }
    }

    /// The same, and the total time in which the link was busy, if it knows that.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        if let Writer::Disk(d) = &self.kind {
            let (unsent, busy_ns) = d.progress();
            return (unsent, Some(busy_ns));
        }
        let unsent = self.unsent();
        let Some(limit) = &self.limit else { return (unsent, None) };
        let (held, busy_ns) = limit.progress(unsent);
        (held, Some(busy_ns))
    }

    /// Bytes that the far end has not acknowledged (TCP, and pipes behind which it is seen).
    pub(crate) fn unacked(&self) -> Option<u64> {
        if let Writer::Bond(b) = &self.kind {
            return b.unacked();
        }
        if let Some(seen) = self.far() {
            return Some(self.accepted - seen.acked);
        }
        let outstanding = meter::unacked(self.tcp_socket()?.as_fd())?;
        Some(self.held() + outstanding)
    }

    /// The system's latest sample of the delivery rate, for TCP connections within this host that
    /// pass no network device; on others the rate is estimated over a longer time.
    pub(crate) fn delivery_bytes_per_s(&self) -> Option<u64> {
        if let Writer::Bond(b) = &self.kind {
            return b.delivery_bytes_per_s();
        }
        let socket = self.tcp_socket().filter(|_| self.same_host)?;
        Meter::new(true).speed(socket.as_fd()).0
    }

    /// Round trip of a connection to another host.
    pub(crate) fn rtt_ns(&self) -> Option<u64> {
        if let Writer::Bond(b) = &self.kind {
            return b.rtt_ns();
        }
        if let Some(seen) = self.far() {
            return seen.rtt_ns;
        }
        let socket = self.tcp_socket().filter(|_| !self.same_host)?;
        Meter::new(false).speed(socket.as_fd()).1
    }

    /// Total time in which the receiver's window stopped the connection (TCP only).
    pub(crate) fn receiver_limited_ns(&self) -> u64 {
        if let Writer::Bond(b) = &self.kind {
            return b.receiver_limited_ns();
        }
        let info = self.tcp_socket().and_then(|s| sys::tcp_info(s.as_fd()));
        info.map_or(0, |i| 1000 * i.rwnd_limited_us)
    }

    /// What the system knows of the path (TCP only).
    pub(super) fn path(&self) -> Option<Path> {
        if let Writer::Bond(b) = &self.kind {
            return b.path();
        }
        let info = sys::tcp_info(self.tcp_socket()?.as_fd())?;
        Some(Path {
            rtt_ns: 1000 * u64::from(info.rtt_us),
            rtt_min_ns: 1000 * u64::from(info.rtt_min_us),
            segment_bytes: info.segment_bytes,
            sent_again: info.segments_sent_again,
            acked: info.acked_bytes,
        })
    }

    /// Segments with data that were sent, and how many of them again (TCP only).
    pub(super) fn segments(&self) -> Option<(u64, u64)> {
        let info = sys::tcp_info(self.tcp_socket()?.as_fd())?;
        Some((info.data_segments_sent.into(), info.segments_sent_again.into()))
    }

    /// Sets how many unsent bytes the kernel may hold before it reports that it is full (TCP, and
    /// pipes from their default size on).
    pub(crate) fn set_backlog(&self, bytes: u32) {
        if let Writer::Bond(b) = &self.kind {
            b.set_backlog(bytes);
        } else if let Writer::Disk(d) = &self.kind {
            d.set_window(u64::from(bytes));
        } else if let Writer::File(f) = &self.kind {
            if self.nowait {
                sys::set_pipe_size(f.as_fd(), bytes.max(PIPE_LEN));
            }
        } else if let Some(s) = self.tcp_socket() {
            // Without the option the kernel holds more bytes, about which no new decision is
            // possible; nothing breaks.
            let _ = sys::set_notsent_lowat(s.as_fd(), bytes);
        }
    }

    /// Ends the direction: nothing more will be written.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Writer::Tcp(s) => s.shutdown(Shutdown::Write),
            #[cfg(feature = "tls")]
            Writer::Tls(t) => t.finish(),
            Writer::Bond(b) => b.finish(),
            Writer::Unix(s) => s.shutdown(Shutdown::Write),
            Writer::Disk(d) => {
                let finished = d.finish();
                self.kind = Writer::Other(Box::new(io::sink()));
                finished
            }
            Writer::File(f) => {
                let flushed = f.flush();
                // The reader of a pipe sees the end when the last descriptor is closed.
                self.kind = Writer::Other(Box::new(io::sink()));
                flushed
            }
            Writer::Other(w) => w.flush(),
        }
    }

    /// The error that the link has had since its last use; a broken pipe if there is no reader any
    /// more.
    pub(crate) fn check(&self) -> io::Result<()> {
        let error = match (&self.kind, self.tcp_socket()) {
            (_, Some(s)) => s.take_error()?,
            (Writer::Unix(s), _) => s.take_error()?,
            _ => None,
        };
        if let Some(error) = error {
            return Err(error);
        }
        let Some(fd) = self.fd() else { return Ok(()) };
        // A peer that only stopped writing may still read.
        if sys::is_broken(fd)? { Err(sys::broken_pipe()) } else { Ok(()) }
    }

    fn tcp_socket(&self) -> Option<&TcpStream> {
        match &self.kind {
            Writer::Tcp(s) => Some(s),
            #[cfg(feature = "tls")]
            Writer::Tls(t) => Some(t.socket()),
            _ => None,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Writer::Tcp(s) => Some(s.as_fd()),
            #[cfg(feature = "tls")]
            Writer::Tls(t) => Some(t.socket().as_fd()),
            Writer::Unix(s) => Some(s.as_fd()),
            Writer::File(f) => Some(f.as_fd()),
            Writer::Bond(_) | Writer::Disk(_) | Writer::Other(_) => None,
        }
    }
}
