//! The bytes of a carrier on its socket, encrypted by TLS or not, and what is known of the link.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use narrows::block::{Block, BufferPool};
use narrows::monitor::LinkSample;
use narrows::monitor::link::LinkMonitor;
use narrows::transport::Meter;
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use super::marks::Progress;
use super::outgoing::Look;
use super::{refusal, socket};

/// Length of a read; reads grow up to the longest while they are filled.
const READ_MIN: usize = 16 << 10;
const READ_MAX: usize = 128 << 10;

/// The link is measured after so many bytes or so much time: a measurement takes three system calls,
/// which a short message should not pay for.
const MEASURE_BYTES: u64 = 8 << 10;
const MEASURE_NS: u64 = 5_000_000;

/// A carrier's socket.
pub(super) struct Wire {
    pub(super) socket: OwnedFd,
    tls: Option<Box<Connection>>,
    /// Received records, how many of their bytes there are, and how many TLS has taken.
    received: Vec<u8>,
    filled: usize,
    taken: usize,
    /// Bytes for the socket.
    records: Vec<u8>,
    sent: usize,
    /// Bytes put into `records` so far.
    given: u64,
    read_len: usize,
    ended: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Measures the link, if it is TCP.
    meter: Option<Meter>,
    monitor: LinkMonitor,
    /// Bytes that the socket took since the last measurement, and when that was.
    unmeasured: u64,
    measured_ns: u64,
    /// The last measurement, if nothing was written since.
    latest: Option<LinkSample>,
}

impl Wire {
    /// A carrier over TCP.
    pub(super) fn tls(socket: OwnedFd, mut connection: Connection) -> Self {
        // What is given to TLS is limited by what is transmitted at a time.
        connection.set_buffer_limit(None);
        let meter = Some(Meter::new(socket::is_same_host(&socket)));
        Self { tls: Some(Box::new(connection)), meter, ..Self::plain(socket) }
    }

    /// A carrier over a unix socket, which somebody else protects.
    pub(super) fn plain(socket: OwnedFd) -> Self {
        Self {
            socket,
            tls: None,
            received: Vec::new(),
            filled: 0,
            taken: 0,
            records: Vec::new(),
            sent: 0,
            given: 0,
            read_len: READ_MIN,
            ended: false,
            readable: true,
            writable: true,
            meter: None,
            monitor: LinkMonitor::default(),
            unmeasured: 0,
            measured_ns: 0,
            latest: None,
        }
    }

    /// The certificates, or the raw key, by which the other end proved itself.
    pub(super) fn proof(&self) -> Option<&[CertificateDer<'static>]> {
        self.tls.as_ref()?.peer_certificates()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// The next bytes. `None`: nothing now. An empty block: the end.
    pub(super) fn read(&mut self, buffers: &BufferPool) -> io::Result<Option<Block>> {
        loop {
            if self.ended {
                return Ok(Some(Block::default()));
            }
            let mut buffer = buffers.get(self.read_len);
            let len = buffer.capacity().min(self.read_len);
            let read = match &mut self.tls {
                None => match socket::read(&self.socket, &mut buffer.bytes_mut()[..len])? {
                    None => {
                        self.readable = false;
                        None
                    }
                    Some(0) => return self.end(),
                    some => some,
                },
                Some(tls) => {
                    let mut filled = 0;
                    while filled < len {
                        match tls.reader().read(&mut buffer.bytes_mut()[filled..len]) {
                            Ok(0) => {
                                self.ended = true;
                                break;
                            }
                            Ok(n) => filled += n,
                            Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                            Err(_) if self.taken == self.filled => break,
                            Err(_) => {
                                self.taken += tls.read_tls(&mut &self.received[self.taken..self.filled])?;
                                tls.process_new_packets().map_err(protocol_error)?;
                            }
                        }
                    }
                    Some(filled).filter(|n| *n > 0)
                }
            };
            let Some(read) = read else {
                buffers.recycle(&buffer.freeze(0));
                if self.tls.is_none() || !self.receive()? {
                    return Ok(None);
                }
                continue;
            };
            let grown = if read == len { (2 * len).min(READ_MAX) } else { len };
            self.read_len = if read < READ_MIN / 2 { READ_MIN } else { grown };
            if read < len / 8 {
                // A short piece does not keep a long buffer.
                let short = Block::from_vec(buffer.bytes_mut()[..read].to_vec());
                buffers.recycle(&buffer.freeze(0));
                return Ok(Some(short));
            }
            let block = buffer.freeze(read);
            buffers.recycle(&block);
            return Ok(Some(block));
        }
    }

    fn end(&mut self) -> io::Result<Option<Block>> {
        self.ended = true;
        Ok(Some(Block::default()))
    }

    /// Receives records. False: there are none now.
    fn receive(&mut self) -> io::Result<bool> {
        if !self.readable {
            return Ok(false);
        }
        (self.taken, self.filled) = (0, 0);
        if self.received.len() < self.read_len {
            self.received.resize(self.read_len, 0);
        }
        let read = socket::read(&self.socket, &mut self.received[..self.read_len])?;
        self.filled = read.unwrap_or(0);
        match read {
            None => {
                self.readable = false;
                // An idle carrier keeps no buffer.
                self.received = Vec::new();
                Ok(false)
            }
            Some(0) => {
                self.ended = true;
                Ok(true)
            }
            Some(_) => Ok(true),
        }
    }

    /// Takes bytes to be sent; to be called when [`Wire::flush`] has nothing left.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.writer().write_all(bytes)?,
            None => {
                self.records.extend_from_slice(bytes);
                self.given += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes what waits. True if nothing is left.
    pub(super) fn flush(&mut self, now_ns: u64) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                self.given += tls.write_tls(&mut self.records)? as u64;
            }
        }
        let before = self.sent;
        while self.writable && self.sent < self.records.len() {
            match socket::write(&self.socket, &self.records[self.sent..])? {
                Some(n) => self.sent += n,
                None => self.writable = false,
            }
        }
        let accepted = (self.sent - before) as u64;
        if self.sent == self.records.len() {
            self.records.clear();
            self.sent = 0;
            if self.records.capacity() > READ_MAX {
                self.records = Vec::new();
            }
        }
        if accepted > 0 {
            self.latest = None;
            self.unmeasured += accepted;
            if self.unmeasured >= MEASURE_BYTES || now_ns >= self.measured_ns + MEASURE_NS {
                self.measure(now_ns);
            }
        }
        Ok(self.records.is_empty())
    }

    fn measure(&mut self, now_ns: u64) {
        let Some(meter) = &mut self.meter else { return };
        self.measured_ns = now_ns;
        let accepted = std::mem::take(&mut self.unmeasured);
        let sample = meter.look(&self.socket, now_ns);
        self.latest = Some(sample);
        self.monitor.observe(&LinkSample { accepted, ..sample });
        meter.set_rate(&self.socket, self.monitor.rate_bytes_per_s());
    }

    /// What is known of the link now.
    pub(super) fn look(&mut self, begin_ns: u64, now_ns: u64) -> Look {
        let in_kernel = self.given - (self.records.len() - self.sent) as u64;
        let Some(meter) = &mut self.meter else {
            let progress = Progress { given: self.given, left: in_kernel, acked: None };
            return Look { progress, begin_ns, ..Look::default() };
        };
        let sample = self.latest.take().unwrap_or_else(|| meter.look(&self.socket, now_ns));
        let progress = Progress {
            given: self.given,
            left: in_kernel.saturating_sub(sample.unsent_after),
            acked: sample.unacked.map(|unacked| in_kernel.saturating_sub(unacked)),
        };
        Look { progress, begin_ns, delivery_bytes_per_s: sample.delivery_bytes_per_s, rtt_ns: sample.rtt_ns }
    }

    /// Bytes that one write should have.
    pub(super) fn write_len(&self) -> usize {
        narrows::transport::Outbox::write_len(self.monitor.rate_bytes_per_s())
    }

    /// Sends TLS's own end, or an alert that waits, and ends the sent direction.
    pub(super) fn farewell(&mut self, now_ns: u64) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        let _ = self.flush(now_ns);
        socket::finish(&self.socket);
    }
}

/// Distinguishes refused keys and certificates from protocol errors.
fn protocol_error(e: rustls::Error) -> io::Error {
    match refusal::words(&e) {
        Some(words) => io::Error::new(io::ErrorKind::PermissionDenied, words),
        None => io::Error::new(io::ErrorKind::InvalidData, e),
    }
}
