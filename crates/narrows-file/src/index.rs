//! The index of one stream in memory: where each frame is, and where runs begin.

use narrows::frame::{self, Attempt, BLOCK_MAX_HARD, EndTotals, PREFACE_LEN, Preface, RESET_FRAME_LEN, feature};
use narrows::{Error, Result};

/// Longest header of a block (format.md section 3.1), which a frame has beside its body.
const HEADER_MAX: u64 = 19;
/// Longest control frame: kind, length, check, body.
const CONTROL_MAX: u64 = 12 + frame::CONTROL_BODY_MAX as u64;
/// Most blocks of a stream and of a file: 128 TiB of blocks of 2 MiB, and 1 GiB of memory.
pub(crate) const ENTRIES_MAX: usize = 64 << 20;
/// Most bytes of control frames before a block, which are read with it: writers put a few short ones
/// there, 256 of the longest fit.
const CONTROLS_MAX: u64 = 16 << 20;
/// Blocks of which one knows where its run begins: others look at so many before them.
const STRIDE: usize = 256;
/// Marks the end of a frame at which a run begins.
const RUN: u64 = 1 << 63;

/// Where an index came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexOrigin {
    /// The file has it.
    Stored,
    /// The file has none; it was made from the headers of all frames.
    Scanned,
    /// The file has one that is damaged; it was made from the headers of all frames.
    Rebuilt,
}

/// One stream of a file.
#[derive(Debug, Clone)]
pub struct Member {
    /// Where it begins in the file.
    pub wire_begin: u64,
    /// Raw bytes of the file before it.
    pub raw_begin: u64,
    /// Its preface.
    pub preface: Preface,
    /// Its totals; without its end, what was found.
    pub totals: EndTotals,
    /// Where the index came from.
    pub origin: IndexOrigin,
    /// Binary logarithm of the stretch of the sums, and the sums; empty without.
    pub sums: (u8, Vec<u64>),
    /// Why it ends without its end frame, if it does.
    pub broken: Option<String>,
    /// Beside the index, or anywhere if there is none, are frames that this build does not know.
    pub(crate) unknown: bool,
    /// The effort that it says it was encoded with.
    pub(crate) attempt: Option<Attempt>,
    pub(crate) frames: Frames,
}

/// A block of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Raw bytes of the stream before it.
    pub raw_begin: u64,
    /// Raw bytes of the stream before and in it.
    pub raw_end: u64,
    /// Offset in the stream of its frame, or of the control frames before it.
    pub wire_begin: u64,
    /// Offset in the stream of what follows.
    pub wire_end: u64,
    /// Whether it is decoded without the blocks before it.
    pub begins_run: bool,
}

impl Member {
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.frames.ends.len()
    }

    /// Block number `i`, if there are so many.
    pub fn entry(&self, i: usize) -> Option<Entry> {
        self.frames.entry(i)
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.frames.ends.iter().filter(|(_, wire)| wire & RUN != 0).count()
    }

    /// Offset in the file after its end frame.
    pub fn wire_end(&self) -> u64 {
        self.wire_begin + self.totals.wire_total + frame::END_FRAME_LEN as u64
    }
}

/// The blocks of a stream in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    /// Ends of each block: raw, and on the wire with [`RUN`].
    ends: Vec<(u64, u64)>,
    /// The first block of the run of every block whose number is a multiple of [`STRIDE`].
    runs: Vec<usize>,
}

impl Frames {
    pub(crate) fn entry(&self, i: usize) -> Option<Entry> {
        let &(raw_end, wire_end) = self.ends.get(i)?;
        let (raw_begin, wire_begin) = match i.checked_sub(1) {
            Some(before) => self.ends[before],
            None => (0, PREFACE_LEN as u64),
        };
        Some(Entry {
            raw_begin,
            raw_end,
            wire_begin: wire_begin & !RUN,
            wire_end: wire_end & !RUN,
            begins_run: wire_end & RUN != 0,
        })
    }

    /// The number of the block that has the raw byte at `offset`.
    pub(crate) fn find(&self, offset: u64) -> usize {
        self.ends.partition_point(|(raw_end, _)| *raw_end <= offset)
    }

    /// The first block of the run of block `i`.
    pub(crate) fn run_of(&self, i: usize) -> usize {
        // A run may have all blocks of a file.
        let known = i / STRIDE;
        let near = (known * STRIDE..=i).rev().find(|i| self.ends[*i].1 & RUN != 0);
        near.unwrap_or_else(|| self.runs.get(known).copied().unwrap_or(0))
    }

    fn push(&mut self, raw_end: u64, wire_end: u64, begins_run: bool) {
        let i = self.ends.len();
        self.ends.push((raw_end, wire_end | if begins_run { RUN } else { 0 }));
        if i.is_multiple_of(STRIDE) {
            let run = if begins_run { i } else { i.checked_sub(1).map_or(0, |before| self.run_of(before)) };
            self.runs.push(run);
        }
    }

    pub(crate) fn raw_total(&self) -> u64 {
        self.ends.last().map_or(0, |(raw, _)| *raw)
    }
}

/// The error of a file with more blocks than `most`.
pub(crate) fn too_many_blocks(most: usize) -> Error {
    Error::limit(format!("the file has more than {most} blocks; read it from its beginning"))
}

/// Makes [`Frames`] of pairs in order.
pub(crate) struct Builder {
    frames: Frames,
    /// Every block is a run.
    alone: bool,
    /// Copies go across resets: only the beginning can be decoded alone.
    copies: bool,
    block_max: u64,
    blocks_max: usize,
    raw_end: u64,
    wire_end: u64,
    /// Bytes of control frames since the last block.
    controls: u64,
    begins_run: bool,
}

impl Builder {
    /// For a stream of at most `blocks_max` blocks.
    pub(crate) fn new(preface: &Preface, blocks_max: usize) -> Self {
        let copies = preface.critical & feature::COPIES != 0;
        Self {
            frames: Frames::default(),
            alone: preface.history == 0 && !copies,
            copies,
            block_max: preface.block_max.min(BLOCK_MAX_HARD) as u64,
            blocks_max,
            raw_end: 0,
            wire_end: PREFACE_LEN as u64,
            controls: 0,
            begins_run: true,
        }
    }

    /// Adds a frame: `raw_len` is 0 for control frames.
    pub(crate) fn push(&mut self, raw_len: u64, wire_len: u64) -> Result<()> {
        let impossible = || Error::corrupt("the index has an impossible length");
        if raw_len > self.block_max {
            return Err(impossible());
        }
        let wire_max = if raw_len == 0 { CONTROL_MAX } else { raw_len + HEADER_MAX };
        if wire_len == 0 || wire_len > wire_max {
            return Err(impossible());
        }
        self.raw_end = self.raw_end.checked_add(raw_len).filter(|end| *end < RUN).ok_or_else(impossible)?;
        self.wire_end = self.wire_end.checked_add(wire_len).filter(|end| *end < RUN).ok_or_else(impossible)?;
        if raw_len == 0 {
            self.controls += wire_len;
            self.begins_run |= wire_len == RESET_FRAME_LEN as u64 && !self.copies;
            return Ok(());
        }
        if std::mem::take(&mut self.controls) > CONTROLS_MAX {
            return Err(Error::limit(format!(
                "the file has more than {CONTROLS_MAX} bytes without content in one place; read it from its beginning"
            )));
        }
        if self.frames.ends.len() >= self.blocks_max {
            return Err(too_many_blocks(self.blocks_max));
        }
        self.frames.push(self.raw_end, self.wire_end, self.begins_run || self.alone);
        self.begins_run = false;
        Ok(())
    }

    /// Offset in the stream after the last frame.
    pub(crate) fn wire_end(&self) -> u64 {
        self.wire_end
    }

    /// Number of blocks so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.frames.ends.len() as u64
    }

    pub(crate) fn finish(self) -> Frames {
        self.frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_of_a_run_is_found() {
        for every in [1, 3, STRIDE - 1, STRIDE, STRIDE + 1, 10 * STRIDE] {
            let mut frames = Frames::default();
            for i in 0..3 * STRIDE + 7 {
                frames.push(i as u64 + 1, i as u64 + 1, i % every == 0);
                assert_eq!(frames.run_of(i), i / every * every, "block {i} of runs of {every}");
            }
            assert_eq!(frames.run_of(STRIDE + 5), (STRIDE + 5) / every * every);
        }
    }

    /// The work for all blocks of a long run is not that of their number squared.
    #[test]
    fn a_run_of_many_blocks_is_searched_a_little() {
        let mut frames = Frames::default();
        (0..4 << 20).for_each(|i| frames.push(i + 1, i + 1, i == 0));
        assert!((0..4 << 20).rev().step_by(256).all(|i| frames.run_of(i) == 0));
    }
}
