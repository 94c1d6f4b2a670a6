//! Work that leaves the sender and comes back: a block to encode, and what became of it.

use crate::block::{Block, BufferPool};
use crate::codec::{Contexts, Method};
use crate::frame::{BlockHeader, Frame};

/// Work for a worker (or for the calling thread when `estimate_ns` is short).
#[derive(Debug)]
pub struct Job {
    pub seq: u64,
    pub kind: JobKind,
    pub method: Method,
    pub raw: Block,
    pub raw_offset: u64,
    /// Raw bytes before the block; empty unless the frame is linked.
    pub history: Block,
    pub linked: bool,
    /// Put a check on the frame.
    pub check: bool,
    /// Predicted time of one core.
    pub estimate_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    Encode,
    /// Takes a late block over: run it at once on the I/O thread.
    Rescue,
    /// Only to learn.
    Probe,
}

/// A finished job.
#[derive(Debug)]
pub struct Done {
    pub seq: u64,
    pub kind: JobKind,
    /// The method that was asked for.
    pub method: Method,
    pub raw_len: usize,
    /// Length of the body; `raw_len` if the block did not shrink.
    pub wire_len: usize,
    /// Time of the clock, and of the thread's CPU clock: filled in by whoever ran the job.
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub(super) sent_as: Method,
    pub(super) linked: bool,
    pub(super) check: Option<u64>,
    pub(super) frame: Frame,
}

/// Longest body for which a block counts as shrunk; a longer one goes as `store` (D10). Less than 1/128 saved is not worth
/// decoding: a slow method takes longer to decode than the bytes take on most links.
pub fn worthwhile_len(raw_len: usize) -> usize {
    raw_len.saturating_sub(1 + raw_len / 128)
}

impl Job {
    /// Encodes the block and builds its frame. `wall_ns` and `cpu_ns` of the result are for the caller to fill.
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> Done {
        let encoded = if self.method == Method::STORE { None } else { self.encode(contexts, pool) };
        self.done(encoded)
    }

    /// A job that was not run but answered from a table: a body of `wire_len` zero bytes, no check.
    pub fn simulated(mut self, wire_len: usize, wall_ns: u64, cpu_ns: u64) -> Done {
        self.check = false;
        let encoded = (wire_len <= worthwhile_len(self.raw.len())).then(|| Block::zeros(wire_len));
        Done { wall_ns, cpu_ns, ..self.done(encoded) }
    }

    fn encode(&self, contexts: &mut Contexts, pool: &BufferPool) -> Option<Block> {
        let mut out = pool.get(self.raw.len());
        let room = &mut out.bytes_mut()[..worthwhile_len(self.raw.len())];
        let encoder = contexts.encoder(self.method.info());
        let wire_len = encoder.encode(self.method.level, &self.history, &self.raw, room);
        let block = out.freeze(wire_len.unwrap_or(0));
        pool.recycle(&block);
        wire_len.map(|_| block)
    }

    fn done(self, encoded: Option<Block>) -> Done {
        let raw_len = self.raw.len();
        let (sent_as, linked, body) = match encoded {
            Some(body) => (self.method, self.linked, body),
            None => (Method::STORE, false, self.raw.clone()),
        };
        let header = BlockHeader::data(sent_as.codec, linked, raw_len, body.len());
        let check =
            (self.check && self.kind != JobKind::Probe).then(|| header.check_of(&self.raw, &body, self.raw_offset));
        Done {
            seq: self.seq,
            kind: self.kind,
            method: self.method,
            raw_len,
            wire_len: body.len(),
            wall_ns: 0,
            cpu_ns: 0,
            sent_as,
            linked,
            check,
            frame: Frame { header: header.encode(check), body },
        }
    }
}
