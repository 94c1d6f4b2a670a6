//! Decoding jobs, which leave the receiver and return.

use super::copies::{Snapshot, Unjoined};
use crate::block::{Block, BufferPool};
use crate::codec::{Codec, CodecId, Contexts};
use crate::error::{Error, Result};
use crate::frame::{BlockHeader, MESSAGE_MAX, check_plan, lacks_codec};

/// A decoding job for a worker, or for the calling thread if `estimate_ns` is short.
#[derive(Debug)]
pub struct DecodeJob {
    /// Sequence number of the block.
    pub seq: u64,
    /// Predicted (nominal) time of one core.
    pub estimate_ns: u64,
    pub(super) header: BlockHeader,
    /// That of the header.
    pub(super) codec: Option<&'static dyn Codec>,
    pub(super) body: Block,
    pub(super) history: Block,
    pub(super) raw_offset: u64,
    /// How far back copies may refer.
    pub(super) reach: usize,
    /// The rest of a copy frame whose literals are decoded.
    pub(super) join: Option<Join>,
}

/// A copy frame whose copies are read back.
#[derive(Debug)]
pub(super) struct Join {
    pub(super) unjoined: Unjoined,
    pub(super) snapshot: Snapshot,
}

/// A finished decoding job.
#[derive(Debug)]
pub struct DecodeDone {
    /// Sequence number of the block.
    pub seq: u64,
    /// CPU time of decoding, to be set by the caller.
    pub cpu_ns: u64,
    /// Time of decoding by the clock, to be set by the caller; 0: not known.
    pub wall_ns: u64,
    /// The raw bytes, of a copy frame its literals.
    pub result: Result<Block>,
    /// Body of a copy frame, and its hash.
    pub(super) copies: Option<(Block, u64)>,
    /// Whether it was counted before: the literals came first.
    pub(super) joined: bool,
}

impl DecodeJob {
    /// Whether there is nothing to decode, only a check to verify.
    pub fn is_stored(&self) -> bool {
        self.header.codec == CodecId::STORE && self.join.is_none()
    }

    /// Most raw bytes that the block may decode to.
    pub fn raw_len_max(&self) -> usize {
        self.header.raw_len.unwrap_or(MESSAGE_MAX)
    }

    /// Decodes the body and verifies the check. Copies, and the check of a frame that has any, wait
    /// for the blocks before.
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> DecodeDone {
        if let Some(Join { unjoined, snapshot }) = &self.join {
            let result = unjoined.read_back(&self.header, snapshot, self.raw_offset, pool);
            return DecodeDone { seq: self.seq, cpu_ns: 0, wall_ns: 0, result, copies: None, joined: true };
        }
        let copies = self.header.copies.then(|| (self.body.clone(), self.header.body_hash(&self.body)));
        let result = if self.header.copies { self.literals(contexts, pool) } else { self.decode(contexts, pool) };
        DecodeDone { seq: self.seq, cpu_ns: 0, wall_ns: 0, result, copies, joined: false }
    }

    fn decode(&self, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        let raw = self.expand(&self.body, self.header.raw_len, contexts, pool)?;
        match self.header.check {
            Some(check) if check != self.header.check_of(&raw, &self.body, self.raw_offset) => {
                Err(Error::corrupt("a block does not match its check"))
            }
            _ => Ok(raw),
        }
    }

    fn literals(&self, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        let lengths = check_plan(&self.body, self.raw_len_max(), self.reach)?;
        let encoded = self.body.slice(lengths.plan..self.body.len());
        match lengths.literals {
            0 if encoded.is_empty() => Ok(encoded),
            0 => Err(Error::corrupt("a copy frame has bytes behind its plan and no literals")),
            len => self.expand(&encoded, Some(len), contexts, pool),
        }
    }

    /// Decodes `body`, to exactly `len` bytes if there are so many.
    fn expand(&self, body: &Block, len: Option<usize>, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        let Some(codec) = self.codec else { return Err(lacks_codec(self.header.codec.0)) };
        let does_not_decode = || Error::corrupt(format!("a block of codec {} does not decode", codec.name()));
        if self.header.codec == CodecId::STORE {
            let whole = len.is_none_or(|len| len == body.len());
            return if whole { Ok(body.clone()) } else { Err(does_not_decode()) };
        }
        let room = len.unwrap_or(MESSAGE_MAX);
        let mut out = pool.get(room);
        let decoded = contexts.decoder(codec).decode(&self.history, body, &mut out.bytes_mut()[..room]);
        let raw = out.freeze(decoded.unwrap_or(0));
        pool.recycle(&raw);
        let exact = len.is_none_or(|len| len == raw.len()) && !raw.is_empty();
        match decoded {
            Ok(_) if exact => Ok(raw),
            _ => Err(does_not_decode()),
        }
    }
}
