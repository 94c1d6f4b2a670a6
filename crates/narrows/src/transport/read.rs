//! The reading half of a link.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::bond;
use super::noise::{Noise, OnNoise};
#[cfg(feature = "tls")]
use super::tls;
use crate::sys::{self, Interest};

pub(crate) struct ReadHalf {
    kind: Reader,
    /// The size of this pipe was raised.
    large: bool,
    noise: Option<Noise>,
    /// Bytes after the noise that have not been read.
    stash: Vec<u8>,
}

pub(super) enum Reader {
    Bond(bond::Incoming),
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(tls::Incoming),
    Unix(UnixStream),
    File(File),
    Other(Box<dyn Read + Send>),
}

impl ReadHalf {
    pub(super) fn new(kind: Reader) -> Self {
        Self { kind, large: false, noise: None, stash: Vec::new() }
    }

    pub(super) fn bond(bond: bond::Incoming) -> Self {
        Self::new(Reader::Bond(bond))
    }

    pub(super) fn skip_noise(&mut self, magic: &'static [u8], on_noise: OnNoise) {
        self.noise = Some(Noise::new(magic, on_noise));
    }

    /// Reads available bytes. Waits at most `timeout`; `None` if nothing arrived. 0 is the end.
    pub(crate) fn read(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        if self.stash.is_empty() {
            let n = self.read_some(buf, timeout)?;
            match (self.noise.take(), n) {
                (None, n) => return Ok(n),
                (noise, None) => {
                    self.noise = noise;
                    return Ok(None);
                }
                (Some(noise), Some(0)) => {
                    noise.end();
                    return Ok(Some(0));
                }
                (Some(mut noise), Some(n)) => match noise.pass(&buf[..n])? {
                    Some(rest) => self.stash = rest,
                    None => {
                        self.noise = Some(noise);
                        return Ok(None);
                    }
                },
            }
        }
        let n = self.stash.len().min(buf.len());
        buf[..n].copy_from_slice(&self.stash[..n]);
        self.stash.drain(..n);
        Ok(Some(n))
    }

    /// Whether the link is a pipe, which other programs fill while nobody reads; from the first call
    /// on it is a large one.
    pub(crate) fn fills_alone(&mut self) -> bool {
        if let (Reader::File(file), false) = (&self.kind, self.large) {
            self.large = super::is_pipe(file);
            if self.large {
                sys::set_pipe_size(file.as_fd(), super::INCOMING_LEN);
            }
        }
        self.large
    }

    /// Reads and discards all input until its end or the deadline: closing a socket with unread
    /// input would discard what it sent.
    pub(crate) fn discard(&mut self, deadline: Instant, buf: &mut [u8]) {
        if let Reader::Bond(b) = &mut self.kind {
            return b.discard(deadline, buf);
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !matches!(self.read_some(buf, left), Ok(None | Some(1..))) {
                return;
            }
        }
    }

    fn read_some(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        if let Reader::Bond(b) = &mut self.kind {
            return b.read(buf, timeout);
        }
        match self.read_nowait(buf) {
            Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => {}
            Some(result) => return result.map(Some),
            None => {}
        }
        let Some(fd) = self.fd() else { return self.read_blocking(buf).map(Some) };
        if !sys::poll([Interest { fd, read: true, write: false }], Some(timeout))?[0] {
            return Ok(None);
        }
        match self.read_nowait(buf) {
            // Only a part of a TLS record has arrived.
            Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Some(result) => result.map(Some),
            None => self.read_blocking(buf).map(Some),
        }
    }

    /// `None` where reads always block.
    fn read_nowait(&mut self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        match &mut self.kind {
            Reader::Tcp(s) => Some(sys::recv_nowait(s.as_fd(), buf)),
            Reader::Unix(s) => Some(sys::recv_nowait(s.as_fd(), buf)),
            #[cfg(feature = "tls")]
            Reader::Tls(t) => Some(t.read_nowait(buf)),
            Reader::Bond(_) | Reader::File(_) | Reader::Other(_) => None,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Reader::Tcp(s) => Some(s.as_fd()),
            #[cfg(feature = "tls")]
            Reader::Tls(t) => Some(t.fd()),
            Reader::Unix(s) => Some(s.as_fd()),
            Reader::File(f) => Some(f.as_fd()),
            Reader::Bond(_) | Reader::Other(_) => None,
        }
    }

    fn read_blocking(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match &mut self.kind {
                Reader::Tcp(s) => s.read(buf),
                #[cfg(feature = "tls")]
                Reader::Tls(t) => t.read_nowait(buf),
                Reader::Bond(b) => return b.read(buf, Duration::MAX).map(Option::unwrap_or_default),
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
