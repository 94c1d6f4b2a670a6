//! Copy frames: a worker decodes their literals, and they are put together in the order of the flow,
//! when everything that they refer to is there.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::block::{Block, BufferPool};
use crate::error::{Error, Result};
use crate::frame::{BlockHeader, Plan};
use crate::past::Past;
use crate::stored::{Stored, read_exact};

/// A decoded copy frame whose copies are still missing.
#[derive(Debug)]
pub(super) struct Unjoined {
    /// The body, which begins with a plan whose lengths were compared.
    pub(super) body: Block,
    pub(super) body_hash: u64,
    pub(super) literals: Block,
}

impl Unjoined {
    /// The raw bytes of the block, which begin at `raw_offset`, where the past ends.
    pub(super) fn join(&self, header: &BlockHeader, past: &Past, raw_offset: u64, pool: &BufferPool) -> Result<Block> {
        let known = |at, out: &mut [u8]| if past.copy(at, out) { Ok(()) } else { Err(not_sent()) };
        self.put_together(header, &known, raw_offset, pool)?
            .ok_or_else(|| Error::corrupt("a block of copies does not match its check"))
    }

    /// As [`Self::join`], of a past that is stored.
    pub(super) fn read_back(
        &self,
        header: &BlockHeader,
        snapshot: &Snapshot,
        raw_offset: u64,
        pool: &BufferPool,
    ) -> Result<Block> {
        self.put_together(header, &|at, out| snapshot.copy(at, out), raw_offset, pool)?.ok_or_else(|| {
            Error::corrupt(
                "a block of copies does not match its check: the stream is damaged, or the output was changed by \
                 another program while it was written",
            )
        })
    }

    /// `None` if the check of the block tells that it is wrong.
    fn put_together(
        &self,
        header: &BlockHeader,
        earlier: &dyn Fn(u64, &mut [u8]) -> Result<()>,
        raw_offset: u64,
        pool: &BufferPool,
    ) -> Result<Option<Block>> {
        let raw_len = header.raw_len.unwrap_or(0);
        let mut buffer = pool.get(raw_len);
        self.fill(&mut buffer.bytes_mut()[..raw_len], earlier, raw_offset)?;
        let raw = buffer.freeze(raw_len);
        pool.recycle(&raw);
        let right = header
            .check
            .is_none_or(|check| check == header.check_of_parts([&*raw].into_iter(), self.body_hash, raw_offset));
        Ok(right.then_some(raw))
    }

    fn fill(&self, out: &mut [u8], earlier: &dyn Fn(u64, &mut [u8]) -> Result<()>, raw_offset: u64) -> Result<()> {
        let mut plan = Plan::new(&self.body)?;
        let (mut at, mut literals) = (0, &self.literals[..]);
        while let Some(copy) = plan.next()? {
            let (gap, rest) = literals.split_at(copy.gap);
            out[at..at + copy.gap].copy_from_slice(gap);
            (at, literals) = (at + copy.gap, rest);
            // The first bytes may come from before the block, the others from its own beginning.
            let distance = copy.distance as usize;
            let outside = distance.saturating_sub(at).min(copy.length);
            let begin = (raw_offset + at as u64).checked_sub(copy.distance).ok_or_else(not_sent)?;
            earlier(begin, &mut out[at..at + outside])?;
            let inside = at + outside - distance.min(at + outside);
            out.copy_within(inside..inside + copy.length - outside, at + outside);
            at += copy.length;
        }
        out[at..].copy_from_slice(literals);
        Ok(())
    }
}

fn not_sent() -> Error {
    Error::corrupt("a copy refers to what was not sent")
}

/// A past that is read back from where it is stored. Only what may not be there yet is in memory,
/// which the receiver holds anyway until it is.
pub(super) struct Earlier {
    stored: Arc<dyn Stored>,
    /// How far back copies may refer.
    pub(super) reach: usize,
    recent: VecDeque<Block>,
    /// Raw offset after the last byte.
    end: u64,
    /// Bytes of the first recent block that are stored.
    ahead: usize,
}

impl Earlier {
    pub(super) fn new(stored: Arc<dyn Stored>, reach: usize) -> Self {
        Self { stored, reach, recent: VecDeque::new(), end: 0, ahead: 0 }
    }

    /// Adds the next bytes of the flow.
    pub(super) fn push(&mut self, raw: Block) {
        self.end += raw.len() as u64;
        self.recent.push_back(raw);
    }

    /// The first `len` bytes that are in memory are stored.
    pub(super) fn forget(&mut self, len: usize) {
        self.ahead += len;
        while let Some(first) = self.recent.front()
            && first.len() <= self.ahead
        {
            self.ahead -= first.len();
            self.recent.pop_front();
        }
    }

    /// What is known at this time.
    pub(super) fn snapshot(&self) -> Snapshot {
        let recent: Vec<Block> = self.recent.iter().cloned().collect();
        let len: usize = recent.iter().map(|block| block.len()).sum();
        Snapshot { stored: Arc::clone(&self.stored), recent, begin: self.end - len as u64 }
    }
}

/// All bytes of the flow before a block.
pub(super) struct Snapshot {
    stored: Arc<dyn Stored>,
    recent: Vec<Block>,
    /// Raw offset of the first recent block; what is before it is stored.
    begin: u64,
}

impl Snapshot {
    fn copy(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let stored = usize::try_from(self.begin.saturating_sub(at)).unwrap_or(usize::MAX).min(out.len());
        let (first, mut rest) = out.split_at_mut(stored);
        read_exact(&*self.stored, first, at)?;
        let mut skip = usize::try_from((at + stored as u64).saturating_sub(self.begin)).unwrap_or(usize::MAX);
        for block in &self.recent {
            let from = skip.min(block.len());
            skip -= from;
            let n = rest.len().min(block.len() - from);
            rest[..n].copy_from_slice(&block[from..from + n]);
            rest = &mut rest[n..];
        }
        if rest.is_empty() { Ok(()) } else { Err(not_sent()) }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("begin", &self.begin)
            .field("recent", &self.recent.len())
            .finish_non_exhaustive()
    }
}
