//! The input of a sender: raw bytes that wait to be cut into blocks.

use std::collections::VecDeque;

use super::copies::Waiting;
use crate::block::{Block, BufferPool};

/// Bytes wanted for the first choice; later the length that the policy last wanted.
const WANTED_FIRST: usize = 128 << 10;

pub(super) struct Input {
    /// Pieces are never joined.
    separate: bool,
    pieces: VecDeque<Block>,
    /// Bytes of all pieces.
    pub(super) len: usize,
    /// Copies between them.
    pub(super) copies: Waiting,
    /// Bytes of pieces cut so far.
    pub(super) literals: u64,
    /// Length of block that the policy wanted last.
    pub(super) wanted: usize,
    /// When gathering of the next block began.
    pub(super) since_ns: u64,
    /// Bytes before this offset of the flow do not wait for a whole block.
    pub(super) flushed_to: u64,
    /// Until when the bytes gathered so far are held back.
    pub(super) hold_until_ns: Option<u64>,
}

impl Input {
    pub(super) fn new(block_max: usize, separate: bool) -> Self {
        let wanted = WANTED_FIRST.min(block_max);
        Self {
            separate,
            pieces: VecDeque::new(),
            len: 0,
            copies: Waiting::default(),
            literals: 0,
            wanted,
            since_ns: 0,
            flushed_to: 0,
            hold_until_ns: None,
        }
    }

    pub(super) fn push(&mut self, raw: Block, now_ns: u64) {
        if self.raw_len() == 0 {
            self.since_ns = now_ns;
        }
        self.len += raw.len();
        self.pieces.push_back(raw);
    }

    /// The next piece.
    pub(super) fn front(&self) -> Option<&Block> {
        self.pieces.front()
    }

    /// Cuts at most `len` bytes from the next piece. The next block gathers from now on.
    pub(super) fn cut(&mut self, len: usize, now_ns: u64) -> Option<Block> {
        let raw = self.split_front(len)?;
        self.len -= raw.len();
        self.literals += raw.len() as u64;
        self.since_ns = now_ns;
        Some(raw)
    }

    /// Joins short pieces until the block that the policy last wanted can be cut whole.
    pub(super) fn join(&mut self, pool: &BufferPool) {
        let want = self.wanted.min(self.len);
        if self.separate || self.front().is_none_or(|front| front.len() >= want) {
            return;
        }
        let mut buffer = pool.get(want);
        let mut filled = 0;
        while filled < want {
            let Some(piece) = self.split_front(want - filled) else { break };
            buffer.bytes_mut()[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        let whole = buffer.freeze(filled);
        pool.recycle(&whole);
        self.pieces.push_front(whole);
    }

    fn split_front(&mut self, len: usize) -> Option<Block> {
        let front = self.pieces.front_mut()?;
        let piece = front.split_to(len.min(front.len()));
        if front.is_empty() {
            self.pieces.pop_front();
        }
        Some(piece)
    }
}
