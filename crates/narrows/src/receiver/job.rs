//! Decoding jobs, which leave the receiver and return.

use crate::block::{Block, BufferPool};
use crate::codec::{CodecId, Contexts};
use crate::error::{Error, Result};
use crate::frame::{BlockHeader, MESSAGE_MAX};

/// A decoding job for a worker, or for the calling thread if `estimate_ns` is short.
#[derive(Debug)]
pub struct DecodeJob {
    /// Sequence number of the block.
    pub seq: u64,
    /// Predicted (nominal) time of one core.
    pub estimate_ns: u64,
    pub(super) header: BlockHeader,
    pub(super) body: Block,
    pub(super) history: Block,
    pub(super) raw_offset: u64,
}

/// A finished decoding job.
#[derive(Debug)]
pub struct DecodeDone {
    /// Sequence number of the block.
    pub seq: u64,
    /// CPU time of decoding, to be set by the caller.
    pub cpu_ns: u64,
    /// The raw bytes.
    pub result: Result<Block>,
}

impl DecodeJob {
    /// Whether there is nothing to decode, only a check to verify.
    pub fn is_stored(&self) -> bool {
        self.header.codec == CodecId::STORE
    }

    /// Most raw bytes that the block may decode to.
    pub fn raw_len_max(&self) -> usize {
        self.header.raw_len.unwrap_or(MESSAGE_MAX)
    }

    /// Decodes the body and verifies the check.
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> DecodeDone {
        DecodeDone { seq: self.seq, cpu_ns: 0, result: self.decode(contexts, pool) }
    }

    fn decode(&self, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        let raw = if self.header.codec == CodecId::STORE { self.body.clone() } else { self.expand(contexts, pool)? };
        match self.header.check {
            Some(check) if check != self.header.check_of(&raw, &self.body, self.raw_offset) => {
                Err(Error::corrupt("a block does not match its check"))
            }
            _ => Ok(raw),
        }
    }

    fn expand(&self, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        let Some(codec) = self.header.codec.codec() else {
            return Err(Error::unsupported(format!("this program has no codec {}", self.header.codec.0)));
        };
        let room = self.raw_len_max();
        let mut out = pool.get(room);
        let decoded = contexts.decoder(codec).decode(&self.history, &self.body, &mut out.bytes_mut()[..room]);
        let raw = out.freeze(decoded.unwrap_or(0));
        pool.recycle(&raw);
        let exact = self.header.raw_len.is_none_or(|len| len == raw.len()) && !raw.is_empty();
        match decoded {
            Ok(_) if exact => Ok(raw),
            _ => Err(Error::corrupt(format!("a block of codec {} does not decode", codec.name()))),
        }
    }
}
