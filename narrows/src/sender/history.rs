//! The latest raw blocks of a flow, for linked frames.

use std::collections::VecDeque;

use crate::block::{Block, BufferPool};

/// As many bytes as linked frames may refer back to, or a little more; nothing where linking is not allowed.
#[derive(Default)]
pub(super) struct History {
    recent: VecDeque<Block>,
    len: usize,
}

impl History {
    /// Adds the next block of the flow; `len_max` bytes are remembered.
    pub(super) fn push(&mut self, raw: &Block, len_max: usize) {
        if len_max == 0 {
            return;
        }
        self.recent.push_back(raw.clone());
        self.len += raw.len();
        while let Some(oldest) = self.recent.front() {
            if self.len - oldest.len() < len_max {
                break;
            }
            self.len -= oldest.len();
            self.recent.pop_front();
        }
    }

    /// Whether the last `len` bytes of the flow lie directly before `raw` in its buffer, where other bytes may lie too.
    fn is_in_buffer_of(&self, raw: &Block, len: usize) -> bool {
        let (mut begin, mut found) = (raw.as_ptr(), 0);
        for block in self.recent.iter().rev() {
            if block.as_ptr_range().end != begin {
                break;
            }
            (begin, found) = (block.as_ptr(), found + block.len());
        }
        found >= len && raw.before(len).len() == len
    }

    /// The last `len` raw bytes before `raw`, the next block of the flow; fewer if fewer are remembered.
    pub(super) fn before(&self, raw: &Block, len: usize, pool: &BufferPool) -> Block {
        if self.is_in_buffer_of(raw, len) {
            return raw.before(len);
        }
        let len = len.min(self.len);
        let mut buffer = pool.get(len);
        let mut at = len;
        for block in self.recent.iter().rev() {
            let take = block.len().min(at);
            buffer.bytes_mut()[at - take..at].copy_from_slice(&block[block.len() - take..]);
            at -= take;
            if at == 0 {
                break;
            }
        }
        let history = buffer.freeze(len);
        pool.recycle(&history);
        history
    }
}
