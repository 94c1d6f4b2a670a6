//! Several connections that carry one stream: a single one may be held down by a window or a cipher that more of them are
//! not.
//!
//! Each direction of each carrier begins with [`GREETING`]; behind it come segments, pieces of the stream that say where they
//! belong (`docs/format.md`, section 9). A segment goes to the carrier that takes it; the reader puts them in order.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Link, ReadHalf, WriteHalf};
use crate::sys::{self, Interest};

/// What every direction of every carrier begins with: not text, and damaged by every conversion of line ends.
pub const GREETING: [u8; 8] = *b"\x93NRCB\r\n\x1a";
/// Carriers of one link: four fill what the window of one leaves empty on most links, eight on all but the longest.
pub const CARRIERS_MAX: usize = 8;
/// Longest segment. Small, so that carriers of different speed keep step; large against its header.
const SEGMENT_MAX: usize = 64 << 10;
/// Offset (8 bytes), length (4 bytes).
const HEADER_LEN: usize = 12;
/// How far one carrier may be ahead of the others: 8 MiB is what 1 Gbit/s has under way in 64 ms.
const AHEAD_MAX: u64 = 8 << 20;
/// Pieces that wait for their turn, however short: their lists cost more than they hold.
const PIECES_MAX: usize = 4096;
/// Taken from a carrier at a time.
const READ_LEN: usize = 128 << 10;
/// A carrier that takes no more is not told the end; its peer sees it close.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Adds carriers to a link while it is in use.
#[derive(Clone)]
pub struct Bond(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// There are halves that wait.
    any: [AtomicBool; 2],
    /// Carriers that were added, and those of which the peer has been heard.
    added: AtomicUsize,
    heard: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    write: Vec<OutPart>,
    read: Vec<InPart>,
}

const WRITE: usize = 0;
const READ: usize = 1;

impl Link {
    /// Makes a duplex link the first carrier of a bond. The peer does the same.
    pub fn bonded(self) -> crate::Result<(Self, Bond)> {
        let bond = Bond(Arc::new(Shared {
            waiting: Mutex::default(),
            any: [const { AtomicBool::new(false) }; 2],
            added: AtomicUsize::new(0),
            heard: AtomicUsize::new(0),
        }));
        let relayed = self.write.as_ref().is_some_and(|half| half.relayed);
        bond.add(self)?;
        let outgoing = Outgoing { shared: Arc::clone(&bond.0), parts: Vec::new(), offset: 0, turn: 0 };
        let incoming = Incoming { shared: Arc::clone(&bond.0), parts: Vec::new(), offset: 0, ahead: BTreeMap::new() };
        let mut write = WriteHalf::bond(outgoing);
        write.relayed = relayed;
        Ok((Self { write: Some(write), read: Some(ReadHalf::bond(incoming)) }, bond))
    }
}

impl Bond {
    /// # Errors
    /// If there are [`CARRIERS_MAX`] already, or the link has one direction only.
    pub fn add(&self, link: Link) -> crate::Result<()> {
        let Link { write: Some(write), read: Some(read) } = link else {
            return Err(crate::Error::misuse("a carrier needs both directions"));
        };
        let mut waiting = self.0.lock();
        if self.0.added.load(Ordering::Relaxed) == CARRIERS_MAX {
            return Err(crate::Error::limit("there are as many carriers as there may be"));
        }
        self.0.added.fetch_add(1, Ordering::Relaxed);
        // Nothing is entrusted to a carrier before its peer was heard, but to the first, or a round trip would be lost.
        let heard = Arc::new(AtomicBool::new(false));
        let first = self.0.added.load(Ordering::Relaxed) == 1;
        waiting.write.push(OutPart {
            half: write,
            buffer: GREETING.to_vec(),
            sent: 0,
            first,
            heard: Arc::clone(&heard),
        });
        waiting.read.push(InPart::new(read, first, heard));
        self.0.any.iter().for_each(|any| any.store(true, Ordering::Release));
        Ok(())
    }

    /// How many carriers the peer has greeted on.
    pub fn heard(&self) -> usize {
        self.0.heard.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// --- writing ---

pub(super) struct Outgoing {
    shared: Arc<Shared>,
    parts: Vec<OutPart>,
    /// Of the next segment.
    offset: u64,
    /// The carrier that is asked first.
    turn: usize,
}

struct OutPart {
    half: WriteHalf,
    /// The segment on its way.
    buffer: Vec<u8>,
    sent: usize,
    first: bool,
    heard: Arc<AtomicBool>,
}

impl OutPart {
    fn is_usable(&self) -> bool {
        self.first || self.heard.load(Ordering::Relaxed)
    }

    fn held(&self) -> u64 {
        (self.buffer.len() - self.sent) as u64 + self.half.held()
    }

    /// Whether all is in the system.
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
    fn adopt(&mut self) {
        if self.shared.any[WRITE].swap(false, Ordering::Acquire) {
            self.parts.append(&mut self.shared.lock().write);
        }
        // Those that are not in use yet: their peer shall hear us, and may be lost without harm.
        self.parts.retain_mut(|part| part.is_usable() || part.flush().is_ok());
    }

    /// Takes what the carriers take; `WouldBlock` when none does.
    pub(super) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
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
                    // The next write begins with a carrier that had less.
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

    pub(super) fn flush_some(&mut self) -> io::Result<()> {
        self.adopt();
        let mut all = true;
        for part in self.parts.iter_mut().filter(|p| p.is_usable()) {
            all &= part.flush()?;
        }
        if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    pub(super) fn held(&self) -> u64 {
        self.parts.iter().filter(|p| p.is_usable()).map(OutPart::held).sum()
    }

    pub(super) fn unsent(&self) -> u64 {
        self.parts.iter().map(|p| (p.buffer.len() - p.sent) as u64 + p.half.unsent()).sum()
    }

    pub(super) fn unacked(&self) -> Option<u64> {
        self.parts.iter().map(|p| Some((p.buffer.len() - p.sent) as u64 + p.half.unacked()?)).sum()
    }

    /// As long as there is one, it is known what it carries.
    pub(super) fn delivery_bytes_per_s(&self) -> Option<u64> {
        if let [part] = &self.parts[..] { part.half.delivery_bytes_per_s() } else { None }
    }

    pub(super) fn receiver_limited_ns(&self) -> u64 {
        self.parts.iter().map(|p| p.half.receiver_limited_ns()).max().unwrap_or(0)
    }

    pub(super) fn set_backlog(&self, bytes: u32) {
        let each = bytes / self.parts.len().max(1) as u32;
        self.parts.iter().for_each(|p| p.half.set_backlog(each));
    }

    /// Waits until one of those that are full may take something.
    pub(super) fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        let full = self.parts.iter().filter(|p| p.is_usable() && p.held() > 0).filter_map(|p| p.half.fd());
        wait(full, false, timeout).map(drop)
    }

    /// Tells every carrier that nothing more comes.
    pub(super) fn finish(&mut self) -> io::Result<()> {
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

/// Bytes of several slices, taken from the front.
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

// --- reading ---

pub(super) struct Incoming {
    shared: Arc<Shared>,
    parts: Vec<InPart>,
    /// Of the next byte to give out.
    offset: u64,
    /// What came before its turn, by offset; at most [`AHEAD_MAX`] bytes.
    ahead: BTreeMap<u64, Vec<u8>>,
}

struct InPart {
    half: ReadHalf,
    /// What came and was not taken apart yet.
    raw: Vec<u8>,
    taken: usize,
    /// What came is a part of a header at most.
    wants_more: bool,
    first: bool,
    heard: Arc<AtomicBool>,
    /// The rest of the segment that is coming: where it belongs, and how long it is.
    segment: (u64, usize),
    /// The peer said that nothing more comes.
    ended: bool,
}

/// What one carrier has to give.
enum Given {
    /// So many bytes, in order.
    Bytes(usize),
    /// Something that is not next, or nothing.
    Nothing,
}

impl InPart {
    fn new(half: ReadHalf, first: bool, heard: Arc<AtomicBool>) -> Self {
        Self { half, raw: Vec::new(), taken: 0, wants_more: true, first, heard, segment: (0, 0), ended: false }
    }

    /// Reads on behind what is there.
    fn fill(&mut self, wait: Duration) -> io::Result<Option<usize>> {
        self.raw.drain(..self.taken);
        self.taken = 0;
        let have = self.raw.len();
        self.raw.resize(READ_LEN, 0);
        let read = self.half.read(&mut self.raw[have..], wait);
        let n = read.as_ref().ok().copied().flatten().unwrap_or(0);
        self.raw.truncate(have + n);
        self.wants_more = n == 0;
        read
    }

    fn left(&self) -> &[u8] {
        &self.raw[self.taken..]
    }

    /// Its next bytes are too far ahead, or are ahead and too many pieces wait.
    fn is_blocked(&self, offset: u64, pieces: usize) -> bool {
        let ahead = self.segment.0.saturating_sub(offset);
        self.segment.1 > 0 && (ahead >= AHEAD_MAX || ahead > 0 && pieces >= PIECES_MAX)
    }

    /// Takes the next header, if it is there.
    fn next_segment(&mut self, offset: u64, shared: &Shared) -> crate::Result<bool> {
        if !self.heard.load(Ordering::Relaxed) {
            let Some(greeting) = self.left().first_chunk::<{ GREETING.len() }>() else { return Ok(false) };
            if *greeting != GREETING {
                return Err(crate::Error::corrupt("what comes is no part of this connection"));
            }
            self.taken += GREETING.len();
            self.heard.store(true, Ordering::Relaxed);
            shared.heard.fetch_add(1, Ordering::Relaxed);
        }
        let Some(header) = self.left().first_chunk::<HEADER_LEN>() else { return Ok(false) };
        let (at, len) = header.split_at(8);
        let at = u64::from_le_bytes(at.try_into().unwrap_or_default());
        let len = u32::from_le_bytes(len.try_into().unwrap_or_default()) as usize;
        if len > SEGMENT_MAX || at < offset || at.checked_add(len as u64).is_none() {
            return Err(crate::Error::corrupt("a segment of a carrier makes no sense"));
        }
        self.taken += HEADER_LEN;
        self.segment = (at, len);
        self.ended = len == 0;
        Ok(true)
    }
}

impl Incoming {
    fn adopt(&mut self) {
        if self.shared.any[READ].swap(false, Ordering::Acquire) {
            self.parts.append(&mut self.shared.lock().read);
        }
    }

    /// Reads what is next; waits at most `timeout` for it and is `None` if nothing came. 0 is the end.
    pub(super) fn read(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        self.adopt();
        if let Some(n) = self.take_ahead(buf)? {
            return Ok(Some(n));
        }
        let alone = self.parts.len() == 1;
        let mut waited = false;
        loop {
            let mut any = false;
            for index in 0..self.parts.len() {
                let part = &mut self.parts[index];
                if part.ended || part.is_blocked(self.offset, self.ahead.len()) {
                    continue;
                }
                if part.wants_more {
                    let wait = if alone { timeout } else { Duration::ZERO };
                    match part.fill(wait) {
                        Ok(None) => continue,
                        Ok(Some(1..)) => any = true,
                        // It never came to be used.
                        Ok(Some(0)) | Err(_) if !part.first && !part.heard.load(Ordering::Relaxed) => {
                            part.ended = true;
                            continue;
                        }
                        // What it had under way is lost.
                        ended => return ended,
                    }
                }
                if let Given::Bytes(n) = self.take_from(index, buf)? {
                    return Ok(Some(n));
                }
            }
            if let Some(n) = self.take_ahead(buf)? {
                return Ok(Some(n));
            }
            if self.parts.iter().all(|p| p.ended) {
                return Ok(Some(0));
            }
            if any {
                continue;
            }
            // What is next is at the front of some carrier, or still on its way.
            if self.parts.iter().all(|p| p.ended || p.is_blocked(self.offset, self.ahead.len())) {
                return Err(invalid(crate::Error::corrupt("the carriers leave a part out")));
            }
            if waited || alone {
                return Ok(None);
            }
            let open = self.parts.iter().filter(|p| !p.ended && !p.is_blocked(self.offset, self.ahead.len()));
            waited = true;
            if !wait(open.filter_map(|p| p.half.fd()), true, timeout)? {
                return Ok(None);
            }
        }
    }

    /// What came before its turn, whose turn it is now.
    fn take_ahead(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(first) = self.ahead.first_entry() else { return Ok(None) };
        if *first.key() > self.offset {
            return Ok(None);
        }
        let (at, mut bytes) = first.remove_entry();
        if at < self.offset {
            return Err(invalid(crate::Error::corrupt("segments of carriers overlap")));
        }
        let n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        self.offset += n as u64;
        if n < bytes.len() {
            bytes.drain(..n);
            self.ahead.insert(self.offset, bytes);
        }
        Ok(Some(n))
    }

    /// Takes apart what came on a carrier, up to bytes that are next.
    fn take_from(&mut self, index: usize, buf: &mut [u8]) -> io::Result<Given> {
        let part = &mut self.parts[index];
        while !part.ended && !part.is_blocked(self.offset, self.ahead.len()) {
            if part.segment.1 == 0 {
                if !part.next_segment(self.offset, &self.shared).map_err(invalid)? {
                    part.wants_more = true;
                    break;
                }
                continue;
            }
            if part.left().is_empty() {
                part.wants_more = true;
                break;
            }
            let (at, len) = part.segment;
            let next = at == self.offset;
            let n = part.left().len().min(len).min(if next { buf.len() } else { usize::MAX });
            let bytes = &part.raw[part.taken..part.taken + n];
            if next {
                buf[..n].copy_from_slice(bytes);
                self.offset += n as u64;
            } else if at < self.offset || self.ahead.insert(at, bytes.to_vec()).is_some() {
                return Err(invalid(crate::Error::corrupt("segments of carriers overlap")));
            }
            part.taken += n;
            part.segment = (at + n as u64, len - n);
            if next {
                return Ok(Given::Bytes(n));
            }
        }
        Ok(Given::Nothing)
    }
}

fn invalid(e: crate::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e.to_string())
}

/// Whether one of the descriptors is ready before the time is over.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, read: bool, timeout: Duration) -> io::Result<bool> {
    let mut interests: [Option<Interest<'_>>; CARRIERS_MAX] = [None; CARRIERS_MAX];
    interests.iter_mut().zip(fds).for_each(|(i, fd)| *i = Some(Interest { fd, read, write: !read }));
    let Some(first) = interests[0] else {
        // Nobody to wait for: a moment, so that nothing turns without end.
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        return Ok(false);
    };
    let nothing = Interest { read: false, write: false, ..first };
    Ok(sys::poll(interests.map(|i| i.unwrap_or(nothing)), Some(timeout))?.contains(&true))
}
