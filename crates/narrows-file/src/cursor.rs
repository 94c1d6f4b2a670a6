//! A place in a run: decodes the blocks of the run in order, and keeps what the next one needs.

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Here};
use narrows::frame::{HISTORY_MAX_HARD, feature};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::{Error, Result};

use crate::index::{Entry, Member};

/// Decodes one run.
pub(crate) struct Cursor {
    pub(crate) member: usize,
    pub(crate) run: usize,
    /// Number of the next block.
    pub(crate) next: usize,
    decoding: Decoding,
}

/// Most bytes that a reader takes: [`OpenOptions`](crate::OpenOptions).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) block_max: usize,
    pub(crate) reach_max: usize,
}

impl Cursor {
    /// At the beginning of a run, which is block `run` of the stream.
    pub(crate) fn new(
        number: usize,
        member: &Member,
        run: usize,
        entry: &Entry,
        limits: Limits,
        pool: &BufferPool,
    ) -> Result<Self> {
        let block_max = member.preface.block_max;
        let config = ReceiverConfig {
            block_max: limits.block_max,
            history_max: HISTORY_MAX_HARD.min(limits.block_max.max(narrows::frame::HISTORY_DEFAULT)),
            reach_max: limits.reach_max,
            images: true,
            // One frame at a time is in it.
            memory_max: 4 * block_max.min(limits.block_max) + (1 << 20),
            ..ReceiverConfig::default()
        };
        let receiver = Receiver::within(config, pool.clone(), &member.preface, entry.raw_begin, entry.wire_begin)?;
        Ok(Self { member: number, run, next: run, decoding: Decoding::new(receiver) })
    }

    /// Whether what follows needs what it holds.
    pub(crate) fn is_worth_keeping(member: &Member) -> bool {
        member.preface.history > 0 || member.preface.critical & feature::COPIES != 0
    }

    /// Decodes the next block, which is `entry`, from its bytes on the wire.
    pub(crate) fn decode(
        &mut self,
        entry: &Entry,
        wire: Block,
        contexts: &mut Contexts,
        pool: &BufferPool,
    ) -> Result<Block> {
        let (run, next) = (self.run as u64, self.next as u64);
        self.decode_next(entry, wire, contexts, pool).map_err(|e| {
            // The receiver counts from the beginning of the run.
            let frame = e.frame.map(|frame| frame + run);
            let wire_offset = e.wire_offset;
            e.with_place(wire_offset, frame).at(entry.wire_begin, next)
        })
    }

    fn decode_next(&mut self, entry: &Entry, wire: Block, contexts: &mut Contexts, pool: &BufferPool) -> Result<Block> {
        self.decoding.receive(wire)?;
        self.decoding.work(Budget::ALL, &mut Here { contexts, buffers: pool })?;
        let raw = self.decoding.read().ok_or_else(mismatch)?;
        let is_entry = raw.len() as u64 == entry.raw_end - entry.raw_begin;
        if !is_entry || self.decoding.read().is_some() || self.decoding.is_within_item() {
            return Err(mismatch());
        }
        self.next += 1;
        Ok(raw)
    }
}

fn mismatch() -> Error {
    Error::corrupt("the index leads to another place than the frame; `narrows check --repair-index` makes it anew")
}
