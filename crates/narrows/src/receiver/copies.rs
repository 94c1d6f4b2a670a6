//! Copy frames: a worker decodes their literals, and the flow puts them together in its order, when
//! everything that they refer to is there.

use crate::block::{Block, BufferPool};
use crate::error::{Error, Result};
use crate::frame::{BlockHeader, Plan};
use crate::past::Past;

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
        let raw_len = header.raw_len.unwrap_or(0);
        let mut buffer = pool.get(raw_len);
        self.fill(&mut buffer.bytes_mut()[..raw_len], past, raw_offset)?;
        let raw = buffer.freeze(raw_len);
        pool.recycle(&raw);
        match header.check {
            Some(check) if check != header.check_of_parts([&*raw].into_iter(), self.body_hash, raw_offset) => {
                Err(Error::corrupt("a block of copies does not match its check"))
            }
            _ => Ok(raw),
        }
    }

    fn fill(&self, out: &mut [u8], past: &Past, raw_offset: u64) -> Result<()> {
        let mut plan = Plan::new(&self.body)?;
        let (mut at, mut literals) = (0, &self.literals[..]);
        while let Some(copy) = plan.next()? {
            let (gap, rest) = literals.split_at(copy.gap);
            out[at..at + copy.gap].copy_from_slice(gap);
            (at, literals) = (at + copy.gap, rest);
            // The first bytes may come from before the block, the others from its own beginning.
            let distance = copy.distance as usize;
            let outside = distance.saturating_sub(at).min(copy.length);
            let begin = (raw_offset + at as u64).checked_sub(copy.distance);
            let known = begin.is_some_and(|begin| past.copy(begin, &mut out[at..at + outside]));
            if !known {
                return Err(Error::corrupt("a copy refers to what was not sent"));
            }
            let inside = at + outside - distance.min(at + outside);
            out.copy_within(inside..inside + copy.length - outside, at + outside);
            at += copy.length;
        }
        out[at..].copy_from_slice(literals);
        Ok(())
    }
}
