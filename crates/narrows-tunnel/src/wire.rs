//! The bytes of a carrier on its socket, encrypted by TLS or not, and what is known of the link.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use narrows::block::{Block, BlockMut, BufferPool};
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

/// The link is measured after one write of full length, after so many bytes at this interval, and at
/// the longer one in any case: a measurement takes three system calls, which a short message should
/// not pay for.
const MEASURE_BYTES: u64 = 8 << 10;
const MEASURE_SOON_NS: u64 = 1_000_000;
const MEASURE_NS: u64 = 5_000_000;
/// A measurement counts as fresh for this time, a quarter of what the kernel is to hold.
const FRESH_NS: u64 = 1_000_000;

/// A carrier's socket.
pub(super) struct Wire {
    pub(super) socket: OwnedFd,
    tls: Option<Box<Connection>>,
    /// Received records, how many of their bytes there are, and how many TLS has taken. An idle
    /// carrier has no buffer.
    received: Option<BlockMut>,
    filled: usize,
    taken: usize,
    /// Bytes for the socket.
    records: Vec<u8>,
    sent: usize,
    /// Bytes put into `records` so far.
    given: u64,
    read_len: usize,
    ended: bool,
    readable: bool,
    pub(super) writable: bool,
    /// The socket has reported its end, for which no other event comes.
    hung_up: bool,
    /// The sent direction has ended.
    parted: bool,
    /// Measures the link, if it is TCP.
    meter: Option<Meter>,
    monitor: LinkMonitor,
    /// Bytes that the socket took since the last measurement, and when that was.
    unmeasured: u64,
    measured_ns: u64,
    /// The last measurement.
    latest: Option<Measured>,
}

/// A measurement of the link.
#[derive(Clone, Copy)]
struct Measured {
    at_ns: u64,
    sample: LinkSample,
    /// Bytes that the socket had taken then.
    in_kernel: u64,
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
            received: None,
            filled: 0,
            taken: 0,
            records: Vec::new(),
            sent: 0,
            given: 0,
            read_len: READ_MIN,
            ended: false,
            readable: true,
            writable: true,
            hung_up: false,
            parted: false,
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

    /// The socket has something to tell.
    pub(super) fn happened(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    /// Whether bytes wait for the socket.
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.records.len() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether the sent direction has ended.
    pub(super) fn has_parted(&self) -> bool {
        self.parted
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
                None if !self.readable => None,
                None => match socket::read(&self.socket, &mut buffer.bytes_mut()[..len])? {
                    None => {
                        self.readable = false;
                        None
                    }
                    Some(0) => return self.end(),
                    Some(n) => {
                        // A short read has emptied the socket: what comes later is an event.
                        self.readable = n == len || self.hung_up;
                        Some(n)
                    }
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
                                let received = self.received.as_mut().map(BlockMut::bytes_mut).unwrap_or_default();
                                self.taken += tls.read_tls(&mut &received[self.taken..self.filled])?;
                                tls.process_new_packets().map_err(protocol_error)?;
                            }
                        }
                    }
                    Some(filled).filter(|n| *n > 0)
                }
            };
            let Some(read) = read else {
                buffers.recycle(&buffer.freeze(0));
                if self.tls.is_none() || !self.receive(buffers)? {
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
    fn receive(&mut self, buffers: &BufferPool) -> io::Result<bool> {
        (self.taken, self.filled) = (0, 0);
        if !self.readable {
            if let Some(buffer) = self.received.take() {
                buffers.recycle(&buffer.freeze(0));
            }
            return Ok(false);
        }
        let len = self.read_len;
        if self.received.as_ref().is_some_and(|buffer| buffer.capacity() < len)
            && let Some(short) = self.received.take()
        {
            buffers.recycle(&short.freeze(0));
        }
        let buffer = self.received.get_or_insert_with(|| buffers.get(len));
        match socket::read(&self.socket, &mut buffer.bytes_mut()[..len])? {
            None => {
                self.readable = false;
                // Gives the buffer back.
                return self.receive(buffers);
            }
            Some(0) => self.ended = true,
            Some(n) => {
                self.filled = n;
                self.readable = n == len || self.hung_up;
            }
        }
        Ok(true)
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
        let before = self.in_kernel();
        while self.writable && self.sent < self.records.len() {
            match socket::write(&self.socket, &self.records[self.sent..])? {
                Some(n) => self.sent += n,
                None => self.writable = false,
            }
        }
        if self.sent == self.records.len() {
            self.records.clear();
            self.sent = 0;
            if self.records.capacity() > READ_MAX {
                self.records = Vec::new();
            }
        }
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                if self.writable && self.records.is_empty() {
                    // Records go from where TLS has made them.
                    match tls.write_tls(&mut Direct(&self.socket)) {
                        Ok(n) => self.given += n as u64,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                        Err(e) => return Err(e),
                    }
                } else {
                    self.given += tls.write_tls(&mut self.records)? as u64;
                }
            }
        }
        let accepted = self.in_kernel() - before;
        if accepted > 0 {
            self.unmeasured += accepted;
            let since_ns = now_ns.saturating_sub(self.measured_ns);
            let due = self.unmeasured >= self.write_len() as u64
                || self.unmeasured >= MEASURE_BYTES && since_ns >= MEASURE_SOON_NS
                || since_ns >= MEASURE_NS;
            if due {
                self.measure(now_ns);
            }
        }
        Ok(self.records.is_empty())
    }

    /// Bytes that the socket has taken.
    fn in_kernel(&self) -> u64 {
        self.given - (self.records.len() - self.sent) as u64
    }

    fn measure(&mut self, now_ns: u64) {
        let in_kernel = self.in_kernel();
        let Some(meter) = &mut self.meter else { return };
        self.measured_ns = now_ns;
        let accepted = std::mem::take(&mut self.unmeasured);
        let sample = meter.look(&self.socket, now_ns);
        self.latest = Some(Measured { at_ns: now_ns, sample, in_kernel });
        self.monitor.observe(&LinkSample { accepted, ..sample });
        meter.set_rate(&self.socket, self.monitor.rate_bytes_per_s());
    }

    /// What is known of the link now. `exactly`: a fresh measurement is not enough.
    pub(super) fn look(&mut self, begin_ns: u64, now_ns: u64, exactly: bool) -> Look {
        let in_kernel = self.in_kernel();
        let Some(meter) = &mut self.meter else {
            let progress = Progress { given: self.given, left: in_kernel, acked: None };
            return Look { progress, begin_ns, ..Look::default() };
        };
        let is_good = |m: &Measured| {
            // After a short message the next one waits until this one is known to have left.
            let is_short = (1..MEASURE_BYTES).contains(&in_kernel.saturating_sub(m.in_kernel));
            if exactly {
                m.in_kernel == in_kernel && m.at_ns == now_ns
            } else {
                !is_short && now_ns < m.at_ns + FRESH_NS
            }
        };
        let measured = self.latest.filter(is_good).unwrap_or_else(|| {
            let sample = meter.look(&self.socket, now_ns);
            Measured { at_ns: now_ns, sample, in_kernel }
        });
        self.latest = Some(measured);
        let Measured { sample, in_kernel, .. } = measured;
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
        if std::mem::replace(&mut self.parted, true) {
            return;
        }
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        let _ = self.flush(now_ns);
        socket::finish(&self.socket);
    }
}

/// Writes to a socket without waiting.
struct Direct<'a>(&'a OwnedFd);

impl Write for Direct<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::write_all_of(self.0, pieces.iter().copied())?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Distinguishes refused keys and certificates from protocol errors.
fn protocol_error(e: rustls::Error) -> io::Error {
    match refusal::words(&e) {
        Some(words) => io::Error::new(io::ErrorKind::PermissionDenied, words),
        None => io::Error::new(io::ErrorKind::InvalidData, e),
    }
}
