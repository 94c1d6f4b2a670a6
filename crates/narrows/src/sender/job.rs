//! Encoding jobs, which leave the sender and return.

use super::copies::{self, Copied};
use crate::block::{Block, BufferPool};
use crate::codec::{Codec, Contexts, Method};
use crate::frame::{BlockHeader, Frame};

/// An encoding job for a worker, or for the calling thread if `estimate_ns` is short.
#[derive(Debug)]
pub struct Job {
    /// Sequence number of the block.
    pub seq: u64,
    /// Purpose of the job.
    pub kind: JobKind,
    /// The method to encode with.
    pub method: Method,
    /// The raw bytes of the block, without those that are copied.
    pub raw: Block,
    /// Bytes between them that are copied from earlier ones; mostly none.
    pub copies: Vec<Copied>,
    /// Raw bytes of the flow before the block.
    pub raw_offset: u64,
    /// Raw bytes before the block; empty unless the frame is linked.
    pub history: Block,
    /// Whether the frame is linked.
    pub linked: bool,
    /// Whether the frame gets a check.
    pub check: bool,
    /// Predicted time of one core.
    pub estimate_ns: u64,
    /// That of the method.
    pub codec: &'static dyn Codec,
}

/// Purpose of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Encodes a block for the first time.
    Encode,
    /// Takes over a late block: run it at once on the I/O thread.
    Rescue,
    /// Shadow probe: only measures the cost of a method.
    Probe,
}

/// A finished job.
#[derive(Debug)]
pub struct Done {
    /// Sequence number of the block.
    pub seq: u64,
    /// Purpose of the job.
    pub kind: JobKind,
    /// The requested method.
    pub method: Method,
    /// Raw bytes of the block, without those that are copied.
    pub raw_len: usize,
    /// Length of the body without the plan of copies; `raw_len` if the block did not shrink.
    pub wire_len: usize,
    /// Elapsed time, set by whoever ran the job.
    pub wall_ns: u64,
    /// CPU time of the thread, set by whoever ran the job.
    pub cpu_ns: u64,
    pub(super) sent_as: Method,
    pub(super) linked: bool,
    pub(super) check: Option<u64>,
    pub(super) frame: Frame,
}

/// Longest body for which a block counts as shrunk; otherwise it is sent as `store` (D10). Saving
/// less than 1/128 is not worth decoding: a slow method takes longer to decode than those bytes
/// take on most links.
pub fn worthwhile_len(raw_len: usize) -> usize {
    raw_len.saturating_sub(1 + raw_len / 128)
}

impl Job {
    /// Encodes the block and builds its frame. The caller sets `wall_ns` and `cpu_ns` of the
    /// result.
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> Done {
        let plan = copies::plan(&self.copies);
        let encoded = if self.method == Method::STORE { None } else { self.encode(&plan, contexts, pool) };
        let stored = if encoded.is_some() || plan.is_empty() { None } else { Some(self.store(&plan, pool)) };
        self.done(encoded, stored, plan.len())
    }

    /// Answers a job from a table instead of running it: a body of `wire_len` zero bytes, no check.
    pub fn simulated(mut self, wire_len: usize, wall_ns: u64, cpu_ns: u64) -> Done {
        self.check = false;
        let encoded =
            (wire_len <= worthwhile_len(self.raw.len())).then(|| Block::zeros(self.raw.len()).slice(0..wire_len));
        Done { wall_ns, cpu_ns, ..self.done(encoded, None, 0) }
    }

    fn encode(&self, plan: &[u8], contexts: &mut Contexts, pool: &BufferPool) -> Option<Block> {
        let mut out = pool.get(plan.len() + self.raw.len());
        out.bytes_mut()[..plan.len()].copy_from_slice(plan);
        let room = &mut out.bytes_mut()[plan.len()..][..worthwhile_len(self.raw.len())];
        let encoder = contexts.encoder(self.codec);
        let wire_len = encoder.encode(self.method.level, &self.history, &self.raw, room);
        let block = out.freeze(wire_len.map_or(0, |len| plan.len() + len));
        pool.recycle(&block);
        wire_len.map(|_| block)
    }

    /// The body of a block with a plan and literals as they are.
    fn store(&self, plan: &[u8], pool: &BufferPool) -> Block {
        let len = plan.len() + self.raw.len();
        let mut out = pool.get(len);
        let (head, rest) = out.bytes_mut()[..len].split_at_mut(plan.len());
        head.copy_from_slice(plan);
        rest.copy_from_slice(&self.raw);
        let block = out.freeze(len);
        pool.recycle(&block);
        block
    }

    fn done(self, encoded: Option<Block>, stored: Option<Block>, plan_len: usize) -> Done {
        let raw_len = self.raw.len();
        let (sent_as, linked, body) = match encoded {
            Some(body) => (self.method, self.linked, body),
            None => (Method::STORE, false, stored.unwrap_or_else(|| self.raw.clone())),
        };
        let (header, parts) = if self.copies.is_empty() {
            (BlockHeader::data(sent_as.codec, linked, raw_len, body.len()), vec![&self.raw[..]])
        } else {
            let whole = raw_len + copies::len(&self.copies);
            let header = BlockHeader::copy(sent_as.codec, linked, whole, body.len());
            (header, copies::parts(&self.raw, &self.copies))
        };
        let check = (self.check && self.kind != JobKind::Probe)
            .then(|| header.check_of_parts(parts.into_iter(), header.body_hash(&body), self.raw_offset));
        Done {
            seq: self.seq,
            kind: self.kind,
            method: self.method,
            raw_len,
            wire_len: body.len() - plan_len,
            wall_ns: 0,
            cpu_ns: 0,
            sent_as,
            linked,
            check,
            frame: Frame { header: header.encode(check), body },
        }
    }
}
