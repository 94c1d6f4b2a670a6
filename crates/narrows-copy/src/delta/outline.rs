//! Delta transfer at the sender: the chunks of one file, and which of them the receiver needs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::{CHUNKS_MAX, Chunk, PIECE_LEN, PieceHash, REGION_LEN_MAX, Region};

use super::cutter::{Cutter, read_at};
use super::{each, piece_hash};
use crate::hash;
use crate::reread::{DataSum, Holes};

/// Maximum number of chunks in a record, 8 MiB of the file. The pieces of the missing chunks then
/// fit into one record too.
const RECORD_CHUNKS: usize = 1024;
const _: () = assert!(RECORD_CHUNKS <= CHUNKS_MAX);

/// The delta transfer of one file at the sender.
pub(crate) struct Outline {
    cutter: Cutter,
    hash: blake3::Hasher,
    /// The holes, if they are left out.
    holes: Option<Holes>,
    /// End of what was cut.
    cut_end: u64,
    /// Chunks that were cut but not yet announced.
    cut: VecDeque<Chunk>,
    /// Records that were announced but whose content was not sent, and the number of the first one.
    records: VecDeque<Sent>,
    first: u64,
    /// Numbers of the records to which the next answers belong, for their chunks or their pieces.
    asked: VecDeque<u64>,
    /// Offset of the content of the next record.
    end: u64,
    /// Offset of the content of the front record.
    settled: u64,
    whole: bool,
    /// An answer arrived that belongs to no record.
    broken: bool,
}

/// A record of chunks.
struct Sent {
    begin: u64,
    chunks: Vec<Chunk>,
    state: State,
}

/// A part of the file that has to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) hole: bool,
}

enum State {
    /// The chunks were announced.
    Asked,
    /// The needed parts, not yet compared in pieces.
    Answered(Vec<Needed>),
    /// The hashes of pieces were sent.
    Compared(Vec<Needed>),
    /// What is to be sent.
    Settled(Vec<Span>),
}

#[derive(Clone, Copy)]
struct Needed {
    offset: u64,
    len: u64,
    hole: bool,
    /// It can be compared in pieces: adjacent data is present, and it is short enough.
    region: bool,
}

impl Needed {
    fn as_region(&self) -> Option<Region> {
        self.region.then_some(Region { offset: self.offset, len: self.len as u32 })
    }

    fn span(&self) -> Span {
        Span { offset: self.offset, len: self.len, hole: self.hole }
    }

    /// Whether data at that offset continues it.
    fn goes_on_at(&self, at: u64) -> bool {
        !self.hole && self.offset + self.len == at
    }
}

impl Outline {
    /// Begins a file of `len` bytes. If it is `sparse`, its holes are chunks of their own, and are left out
    /// of the digest.
    pub(crate) fn new(len: u64, sparse: bool) -> Self {
        Self {
            cutter: Cutter::new(len, sparse),
            hash: blake3::Hasher::new(),
            holes: sparse.then(Holes::default),
            cut_end: 0,
            cut: VecDeque::new(),
            records: VecDeque::new(),
            first: 0,
            asked: VecDeque::new(),
            end: 0,
            settled: 0,
            whole: false,
            broken: false,
        }
    }

    /// Number of records whose content was not sent.
    pub(crate) fn ahead(&self) -> usize {
        self.records.len()
    }

    /// Whether it is known what the front record needs, or that the answers are invalid.
    pub(crate) fn is_answered(&self) -> bool {
        self.broken || self.records.front().is_some_and(|r| matches!(r.state, State::Settled(_)))
    }

    /// Whether all chunks were announced.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Offset up to which the needed parts are known.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Length of the announced content in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// BLAKE3 hash of the content that was cut so far.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.hash.finalize().into()
    }

    /// What was cut so far.
    pub(crate) fn sum(&self) -> DataSum {
        DataSum::new(self.digest(), self.holes.as_ref())
    }

    /// Adds the hole between what was cut and `at`, if there is one.
    fn cut_hole(&mut self, at: u64) {
        if let Some(holes) = self.holes.as_mut().filter(|_| at > self.cut_end) {
            holes.add(self.cut_end, at - self.cut_end);
            self.cut.push_back(Chunk::hole(at - self.cut_end));
            self.cut_end = at;
        }
    }

    /// The chunks of the next record; none at the end of the file.
    pub(crate) fn next(&mut self, file: &OwnedFd) -> io::Result<Vec<Chunk>> {
        if self.cut.is_empty() {
            let sections = self.cutter.next(file)?;
            let is_end = sections.is_empty();
            for section in sections {
                self.cut_hole(section.at);
                hash::update(&mut self.hash, &section.bytes);
                self.cut_end += section.bytes.len() as u64;
                self.cut.extend(section.chunks);
            }
            if is_end {
                self.cut_hole(self.cutter.offset());
            }
        }
        let chunks: Vec<_> = self.cut.drain(..self.cut.len().min(RECORD_CHUNKS)).collect();
        self.whole = chunks.is_empty();
        if !chunks.is_empty() {
            let len: u64 = chunks.iter().map(Chunk::covers).sum();
            self.asked.push_back(self.first + self.records.len() as u64);
            self.records.push_back(Sent { begin: self.end, chunks: chunks.clone(), state: State::Asked });
            self.end += len;
        }
        Ok(chunks)
    }

    /// Processes the answer for the next record that waits for one.
    pub(crate) fn answer(&mut self, runs: &[u32]) {
        let asked = self.asked.pop_front().and_then(|number| number.checked_sub(self.first));
        let record = asked.and_then(|i| self.records.get_mut(i as usize));
        let settled = record.and_then(|record| {
            record.state = match &record.state {
                State::Asked => {
                    State::Answered(needed(record.begin, &record.chunks, &each(runs, record.chunks.len())?))
                }
                State::Compared(needed) => State::Settled(without(needed, runs)?),
                State::Answered(_) | State::Settled(_) => return None,
            };
            Some(())
        });
        self.broken |= settled.is_none();
    }

    /// The regions of the next record to compare in pieces, with a hash of each piece; `None` if
    /// there is no such record.
    pub(crate) fn compare(&mut self, file: &OwnedFd) -> io::Result<Option<(Vec<Region>, Vec<PieceHash>)>> {
        for (i, record) in self.records.iter_mut().enumerate() {
            let State::Answered(needed) = &mut record.state else { continue };
            let mut room = CHUNKS_MAX;
            for part in needed.iter_mut() {
                let pieces = part.as_region().map_or(0, |r| r.pieces());
                part.region &= pieces <= room;
                room -= if part.region { pieces } else { 0 };
            }
            let regions: Vec<_> = needed.iter().filter_map(Needed::as_region).collect();
            if regions.is_empty() {
                record.state = State::Settled(needed.iter().map(Needed::span).collect());
                continue;
            }
            let mut hashes = Vec::with_capacity(CHUNKS_MAX - room);
            for region in &regions {
                let mut bytes = vec![0; region.len as usize];
                // If the file shrank, the rest is zeros; the shrinking is found when the content is
                // read.
                read_at(file, &mut bytes, region.offset)?;
                hashes.extend(bytes.chunks(PIECE_LEN as usize).map(piece_hash));
            }
            record.state = State::Compared(std::mem::take(needed));
            self.asked.push_back(self.first + i as u64);
            return Ok(Some((regions, hashes)));
        }
        Ok(None)
    }

    /// Removes the front record; returns its needed parts, or `None` if the answers are invalid.
    pub(crate) fn needed(&mut self) -> Option<Vec<Span>> {
        if self.broken {
            return None;
        }
        let record = self.records.pop_front()?;
        self.first += 1;
        self.settled = self.records.front().map_or(self.end, |r| r.begin);
        match record.state {
            State::Settled(needed) => Some(needed),
            _ => None,
        }
    }
}

/// Merges adjacent missing chunks into needed parts.
fn needed(begin: u64, chunks: &[Chunk], there: &[bool]) -> Vec<Needed> {
    let (mut all, mut at): (Vec<Needed>, _) = (Vec::new(), begin);
    for (i, (chunk, there_now)) in chunks.iter().zip(there).enumerate() {
        let (len, hole) = (chunk.covers(), chunk.is_hole());
        let last = all.last_mut().filter(|last| !hole && last.goes_on_at(at));
        match (last, there_now) {
            (Some(last), false) => last.len += len,
            (Some(last), true) => last.region = true,
            // Whether the end of the previous record is present is unknown here.
            (None, false) => {
                let region = !hole && i > 0 && !chunks[i - 1].is_hole();
                all.push(Needed { offset: at, len, hole, region });
            }
            (None, true) => {}
        }
        at += len;
    }
    all.iter_mut().for_each(|n| n.region &= n.len <= REGION_LEN_MAX.into());
    all
}

/// The parts that remain to be sent after the answer about the pieces.
fn without(needed: &[Needed], runs: &[u32]) -> Option<Vec<Span>> {
    let there = each(runs, needed.iter().filter_map(Needed::as_region).map(|r| r.pieces()).sum())?;
    let mut there = there.into_iter();
    let mut left: Vec<Span> = Vec::new();
    for part in needed {
        let Some(region) = part.as_region() else {
            left.push(part.span());
            continue;
        };
        let end = part.offset + part.len;
        let places = (part.offset..end).step_by(PIECE_LEN as usize);
        for (at, there) in places.zip(there.by_ref().take(region.pieces())) {
            let len = (end - at).min(PIECE_LEN.into());
            match left.last_mut().filter(|last| !last.hole && last.offset + last.len == at) {
                _ if there => {}
                Some(last) => last.len += len,
                None => left.push(Span { offset: at, len, hole: false }),
            }
        }
    }
    Some(left)
}
