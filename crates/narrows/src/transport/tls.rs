//! TLS 1.3 (RFC 8446) over TCP. The caller makes the `Connection`, and so chooses keys and accepted
//! peers.
//!
//! Both halves share the session behind a lock that is held for one record or write; waiting for
//! the socket happens outside the lock.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::{AlertDescription, Connection};

use crate::sys::{self, Interest};

/// Most bytes read from the socket at a time, so that many records cost one call.
const READ_LEN: usize = 128 << 10;
/// Most plaintext that one write takes: as much as the driver passes at a time.
const WRITE_LEN: usize = 256 << 10;
/// Most bytes read at a time during the handshake; one with raw keys takes less in total.
const HANDSHAKE_LEN: usize = 16 << 10;
/// Most bytes, and longest time, for which input of a peer that failed the handshake is read while
/// our alert is in flight.
const FAREWELL_BYTES: usize = 1 << 20;
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection after its handshake.
pub struct Session {
    socket: TcpStream,
    connection: Connection,
    received: Received,
}

/// Received records, and how many of their bytes were passed to TLS.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    taken: usize,
}

impl Received {
    fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Passes the next part to TLS.
    fn feed(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.taken += connection.read_tls(&mut &self.bytes[self.taken..])?;
        connection.process_new_packets().map(drop).map_err(protocol_error)
    }

    /// Reads what the socket has; 0 at its end.
    fn fill(&mut self, socket: &TcpStream, len: usize) -> io::Result<usize> {
        self.taken = 0;
        self.bytes.resize(len, 0);
        let result = sys::recv_nowait(socket.as_fd(), &mut self.bytes);
        self.bytes.truncate(*result.as_ref().unwrap_or(&0));
        result
    }
}

/// Performs the handshake, which may take until `deadline`.
///
/// # Errors
/// `TimedOut` after the deadline, `PermissionDenied` if one end does not accept the key of the
/// other, otherwise the error of the system or the protocol. The peer is told by an alert.
pub fn handshake(mut connection: Connection, socket: TcpStream, deadline: Instant) -> io::Result<Session> {
    socket.set_nodelay(true)?;
    connection.set_buffer_limit(Some(WRITE_LEN));
    let mut received = Received::default();
    loop {
        flush(&mut connection, &socket, deadline)?;
        if !connection.is_handshaking() {
            return Ok(Session { socket, connection, received });
        }
        if received.is_empty() {
            await_socket(&socket, true, deadline)?;
            match received.fill(&socket, HANDSHAKE_LEN) {
                Ok(0) => {
                    let text = "the connection ended during its handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                result => result?,
            };
        }
        if let Err(e) = received.feed(&mut connection) {
            farewell(&mut connection, &socket);
            return Err(e);
        }
    }
}

impl Session {
    /// Sends a first message, before the session becomes a link.
    ///
    /// # Errors
    /// If the connection fails, or `TimedOut` after the deadline.
    pub fn send(&mut self, message: &[u8], deadline: Instant) -> io::Result<()> {
        // TLS takes at most the size of its buffer at a time.
        for part in message.chunks(WRITE_LEN / 2) {
            self.connection.writer().write_all(part)?;
            flush(&mut self.connection, &self.socket, deadline)?;
        }
        Ok(())
    }

    /// A reader for a first message. It consumes only the bytes that are asked for; the link gets
    /// the rest.
    pub fn reader(&mut self, deadline: Instant) -> impl Read {
        FirstMessage { session: self, deadline }
    }

    pub(super) fn split(self) -> io::Result<(Incoming, Outgoing)> {
        let socket = self.socket.try_clone()?;
        let shared = Arc::new(Shared(Mutex::new(self.connection)));
        let incoming = Incoming { shared: Arc::clone(&shared), socket, received: self.received, ended: false };
        Ok((incoming, Outgoing { shared, socket: self.socket, records: Vec::new(), sent: 0 }))
    }
}

struct FirstMessage<'a> {
    session: &'a mut Session,
    deadline: Instant,
}

impl Read for FirstMessage<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Session { socket, connection, received } = &mut *self.session;
        loop {
            match connection.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            if received.is_empty() {
                await_socket(socket, true, self.deadline)?;
                match received.fill(socket, HANDSHAKE_LEN) {
                    Ok(0) => return Ok(0),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    result => result?,
                };
            }
            received.feed(connection)?;
        }
    }
}

fn flush(connection: &mut Connection, socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    let mut records = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut records)?;
    }
    let mut rest = &records[..];
    while !rest.is_empty() {
        match sys::send_nowait(socket.as_fd(), &[IoSlice::new(rest)]) {
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => await_socket(socket, false, deadline)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn await_socket(socket: &TcpStream, read: bool, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"));
    }
    sys::poll([Interest { fd: socket.as_fd(), read, write: !read }], Some(left)).map(drop)
}

/// Sends the alert and lets the peer read it: closing a socket with unread input would discard what
/// it sent.
fn farewell(connection: &mut Connection, socket: &TcpStream) {
    let deadline = Instant::now() + FAREWELL;
    if flush(connection, socket, deadline).is_err() || socket.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut rest = [0; 4096];
    let mut left = FAREWELL_BYTES;
    while left > 0 && await_socket(socket, true, deadline).is_ok() {
        match sys::recv_nowait(socket.as_fd(), &mut rest) {
            Ok(n @ 1..) => left = left.saturating_sub(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

/// Distinguishes rejected keys from protocol errors.
fn protocol_error(e: rustls::Error) -> io::Error {
    use AlertDescription as A;
    let kind = match &e {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            io::ErrorKind::PermissionDenied
        }
        rustls::Error::AlertReceived(
            A::AccessDenied | A::BadCertificate | A::CertificateUnknown | A::CertificateRequired | A::UnknownCA,
        ) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, e)
}

struct Shared(Mutex<Connection>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Incoming {
    shared: Arc<Shared>,
    socket: TcpStream,
    received: Received,
    ended: bool,
}

impl Incoming {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// `WouldBlock` if no complete record is available. A connection that ends without TLS's own
    /// end counts as ended: the stream inside has its own end.
    pub(super) fn read_nowait(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            let mut connection = self.shared.lock();
            loop {
                match connection.reader().read(&mut buf[filled..]) {
                    Ok(0) if filled < buf.len() => {
                        self.ended = true;
                        break;
                    }
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    Err(_) if self.received.is_empty() => break,
                    Err(_) => self.received.feed(&mut connection)?,
                }
            }
            drop(connection);
            if filled > 0 || self.ended {
                return Ok(filled);
            }
            self.ended = self.received.fill(&self.socket, READ_LEN)? == 0;
        }
    }
}

pub(super) struct Outgoing {
    shared: Arc<Shared>,
    socket: TcpStream,
    /// Records not yet completely in the socket.
    records: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn held(&self) -> u64 {
        (self.records.len() - self.sent) as u64
    }

    /// Takes plaintext once all earlier records are in the socket.
    pub(super) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush_some()?;
        if self.held() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.records.clear();
        self.sent = 0;
        let mut connection = self.shared.lock();
        let taken = connection.writer().write_vectored(bufs)?;
        while connection.wants_write() {
            connection.write_tls(&mut self.records)?;
        }
        drop(connection);
        match self.flush_some() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(taken),
        }
    }

    pub(super) fn flush_some(&mut self) -> io::Result<()> {
        while self.sent < self.records.len() {
            self.sent += sys::send_nowait(self.socket.as_fd(), &[IoSlice::new(&self.records[self.sent..])])?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        let mut connection = self.shared.lock();
        connection.send_close_notify();
        self.records.drain(..self.sent);
        self.sent = 0;
        while connection.wants_write() {
            connection.write_tls(&mut self.records)?;
        }
        drop(connection);
        // An end that does not fit any more is not needed.
        let _ = self.flush_some();
        self.socket.shutdown(Shutdown::Write)
    }
}
