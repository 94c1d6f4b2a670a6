//! The reading half of a bond.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::segments::{Part, Stream};
use super::{READ, Shared, wait};
use crate::transport::ReadHalf;

/// Most bytes read from a carrier at a time.
const READ_LEN: usize = 128 << 10;

pub(in crate::transport) struct Incoming {
    shared: Arc<Shared>,
    parts: Vec<InPart>,
    stream: Stream,
}

pub(super) struct InPart {
    half: ReadHalf,
    part: Part,
    first: bool,
    heard: Arc<AtomicBool>,
}

impl InPart {
    pub(super) fn new(half: ReadHalf, first: bool, heard: Arc<AtomicBool>) -> Self {
        Self { half, part: Part::default(), first, heard }
    }

    fn fill(&mut self, wait: Duration) -> io::Result<Option<usize>> {
        let half = &mut self.half;
        self.part.fill(READ_LEN, |space| {
            let read = half.read(space, wait);
            (read.as_ref().ok().copied().flatten().unwrap_or(0), read)
        })
    }

    fn is_open(&self, stream: &Stream) -> bool {
        !self.part.is_ended() && !self.part.is_blocked(stream)
    }
}

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, parts: Vec::new(), stream: Stream::default() }
    }

    fn adopt(&mut self) {
        if self.shared.any[READ].swap(false, Ordering::Acquire) {
            self.parts.append(&mut self.shared.lock().read);
        }
    }

    /// Reads the next bytes of the stream. Waits at most `timeout`; `None` if nothing arrived. 0 is
    /// the end.
    pub(in crate::transport) fn read(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        if let Some(n) = self.stream.take_ahead(buf).map_err(invalid)? {
            return Ok(Some(n));
        }
        let mut waited = false;
        loop {
            // A new carrier that the peer already uses may bring the next bytes.
            self.adopt();
            let alone = self.parts.len() == 1;
            let mut any = false;
            for index in 0..self.parts.len() {
                let part = &mut self.parts[index];
                if !part.is_open(&self.stream) {
                    continue;
                }
                if part.part.wants_more() {
                    match part.fill(if alone { timeout } else { Duration::ZERO }) {
                        Ok(None) => continue,
                        Ok(Some(1..)) => any = true,
                        // It carried no segment, so nothing is lost.
                        Ok(Some(0)) | Err(_) if !part.first && !part.part.has_carried() => {
                            part.part.end();
                            continue;
                        }
                        // Segments in flight on it are lost.
                        ended => return ended,
                    }
                }
                let taken = part.part.take(&mut self.stream, buf).map_err(invalid)?;
                if part.part.is_heard() && !part.heard.swap(true, Ordering::Relaxed) {
                    self.shared.heard.fetch_add(1, Ordering::Relaxed);
                }
                if taken.is_some() {
                    return Ok(taken);
                }
            }
            if let Some(n) = self.stream.take_ahead(buf).map_err(invalid)? {
                return Ok(Some(n));
            }
            if self.parts.iter().all(|p| p.part.is_ended()) {
                return Ok(Some(0));
            }
            if any {
                continue;
            }
            // The next bytes are at the front of some carrier, or still in flight.
            if !self.parts.iter().any(|p| p.is_open(&self.stream)) {
                return Err(invalid(crate::Error::corrupt("the carriers leave out a part of the stream")));
            }
            if waited || alone {
                return Ok(None);
            }
            waited = true;
            let open = self.parts.iter().filter(|p| p.is_open(&self.stream));
            if !wait(open.filter_map(|p| p.half.fd()), true, timeout)? {
                return Ok(None);
            }
        }
    }
}

impl Incoming {
    /// Reads and discards all input until every carrier is closed or the deadline has passed.
    pub(in crate::transport) fn discard(&mut self, deadline: Instant, buf: &mut [u8]) {
        self.adopt();
        self.parts.iter_mut().for_each(|part| part.half.discard(deadline, buf));
    }
}

fn invalid(e: crate::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e.to_string())
}
