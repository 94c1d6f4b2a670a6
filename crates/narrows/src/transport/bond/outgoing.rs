//! The writing half of a bond: each segment goes to a carrier that accepts it.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::segments::{GREETING, HEADER_LEN, SEGMENT_MAX};
use super::{Shared, WRITE, wait};
use crate::transport::WriteHalf;
use crate::transport::scavenger::Path;

/// Longest wait to tell the carriers the end. One that accepts nothing more is not told; its peer
/// sees it close.
const LAST_WORD: Duration = Duration::from_millis(500);

pub(in crate::transport) struct Outgoing {
    shared: Arc<Shared>,
    parts: Vec<OutPart>,
    /// Stream offset of the next segment.
    offset: u64,
    /// Index of the carrier that is tried first.
    turn: usize,
}

pub(super) struct OutPart {
    half: WriteHalf,
    /// The segment being written.
    buffer: Vec<u8>,
    sent: usize,
    first: bool,
    heard: Arc<AtomicBool>,
}

impl OutPart {
    /// A new carrier. Except for the first one, it is not used before `heard`.
    pub(super) fn new(half: WriteHalf, first: bool, heard: Arc<AtomicBool>) -> Self {
        Self { half, buffer: GREETING.to_vec(), sent: 0, first, heard }
    }

    fn is_usable(&self) -> bool {
        self.first || self.heard.load(Ordering::Relaxed)
    }

    fn held(&self) -> u64 {
        (self.buffer.len() - self.sent) as u64 + self.half.held()
    }

    /// Passes pending bytes to the system. Returns whether none are left.
    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.buffer.len() {
            match self.half.write_some(&[IoSlice::new(&self.buffer[self.sent..])]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if is_pause(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        match self.half.flush_some() {
            Err(e) if !is_pause(&e) => Err(e),
            _ => Ok(self.half.held() == 0),
        }
    }
}

fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Outgoing {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, parts: Vec::new(), offset: 0, turn: 0 }
    }

    fn adopt(&mut self) {
        if self.shared.any[WRITE].swap(false, Ordering::Acquire) {
            self.parts.append(&mut self.shared.lock().write);
        }
        // Carriers not in use yet: send them the greeting; they may be lost without harm.
        self.parts.retain_mut(|part| part.is_usable() || part.flush().is_ok());
    }

    /// Takes as much as the carriers accept; `WouldBlock` if none does.
    pub(in crate::transport) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.adopt();
        let mut rest = Slices { bufs, skip: 0 };
        let mut taken = 0;
        for step in 0..self.parts.len() {
            let index = (self.turn + step) % self.parts.len();
            let part = &mut self.parts[index];
            while part.is_usable() && part.flush()? {
                part.buffer.clear();
                part.sent = 0;
                part.buffer.extend_from_slice(&self.offset.to_le_bytes());
                part.buffer.extend_from_slice(&[0; 4]);
                rest.take(SEGMENT_MAX, &mut part.buffer);
                let len = part.buffer.len() - HEADER_LEN;
                if len == 0 {
                    part.buffer.clear();
                    // The next write begins with the carrier after this one, which had less.
                    self.turn = (index + 1) % self.parts.len();
                    return Ok(taken);
                }
                part.buffer[8..HEADER_LEN].copy_from_slice(&(len as u32).to_le_bytes());
                self.offset += len as u64;
                taken += len;
            }
        }
        if taken == 0 && !bufs.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    pub(in crate::transport) fn flush_some(&mut self) -> io::Result<()> {
        self.adopt();
        let mut all = true;
        for part in self.parts.iter_mut().filter(|p| p.is_usable()) {
            all &= part.flush()?;
        }
        if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    pub(in crate::transport) fn held(&self) -> u64 {
        self.parts.iter().filter(|p| p.is_usable()).map(OutPart::held).sum()
    }

    pub(in crate::transport) fn look(&mut self) {
        self.parts.iter_mut().for_each(|part| part.half.look());
    }

    pub(in crate::transport) fn unsent(&self) -> u64 {
        self.parts.iter().map(|p| (p.buffer.len() - p.sent) as u64 + p.half.unsent()).sum()
    }

    pub(in crate::transport) fn unacked(&self) -> Option<u64> {
        self.parts.iter().map(|p| Some((p.buffer.len() - p.sent) as u64 + p.half.unacked()?)).sum()
    }

    /// Known only while there is a single carrier.
    pub(in crate::transport) fn delivery_bytes_per_s(&self) -> Option<u64> {
        if let [part] = &self.parts[..] { part.half.delivery_bytes_per_s() } else { None }
    }

    /// Of a single carrier only: it has opened before others are added.
    pub(in crate::transport) fn rtt_ns(&self) -> Option<u64> {
        if let [part] = &self.parts[..] { part.half.rtt_ns() } else { None }
    }

    /// Of a single carrier only: several would be several flows beside one of others.
    pub(in crate::transport) fn path(&self) -> Option<Path> {
        if let [part] = &self.parts[..] { part.half.path() } else { None }
    }

    pub(in crate::transport) fn receiver_limited_ns(&self) -> u64 {
        self.parts.iter().map(|p| p.half.receiver_limited_ns()).max().unwrap_or(0)
    }

    pub(in crate::transport) fn set_backlog(&self, bytes: u32) {
        let each = bytes / self.parts.len().max(1) as u32;
        self.parts.iter().for_each(|p| p.half.set_backlog(each));
    }

    /// Waits until one of the full carriers may accept bytes.
    pub(in crate::transport) fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        let full = self.parts.iter().filter(|p| p.is_usable() && p.held() > 0).filter_map(|p| p.half.fd());
        wait(full, false, timeout).map(drop)
    }

    /// Sends the end to every carrier.
    pub(in crate::transport) fn finish(&mut self) -> io::Result<()> {
        for part in self.parts.iter_mut().filter(|p| p.is_usable()) {
            part.buffer.extend_from_slice(&self.offset.to_le_bytes());
            part.buffer.extend_from_slice(&[0; 4]);
        }
        let deadline = Instant::now() + LAST_WORD;
        while self.flush_some().is_err_and(|e| is_pause(&e)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.wait_writable(left)?;
        }
        self.parts.iter_mut().try_for_each(|p| p.half.finish().or_else(|e| if p.is_usable() { Err(e) } else { Ok(()) }))
    }
}

/// Several slices, consumed from the front.
struct Slices<'a, 'b> {
    bufs: &'a [IoSlice<'b>],
    skip: usize,
}

impl Slices<'_, '_> {
    fn take(&mut self, mut most: usize, into: &mut Vec<u8>) {
        while most > 0
            && let Some((first, rest)) = self.bufs.split_first()
        {
            let left = &first[self.skip..];
            let n = left.len().min(most);
            into.extend_from_slice(&left[..n]);
            most -= n;
            if n == left.len() {
                (self.bufs, self.skip) = (rest, 0);
            } else {
                self.skip += n;
            }
        }
    }
}
