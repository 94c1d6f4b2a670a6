//! The history: the latest raw bytes of a flow, to which linked frames refer. Both ends keep the
//! same.
//!
//! The bytes are copied into one buffer: blocks of small messages would each keep a whole buffer
//! alive, and a bulk block many times the bytes referred to.

use crate::block::{Block, BufferPool};

/// The oldest bytes are dropped when the history exceeds its limit by this share of it (a quarter),
/// so that each byte is moved only a few times.
const SLACK_SHARE: usize = 4;

#[derive(Default)]
pub(crate) struct History {
    bytes: Vec<u8>,
    len_max: usize,
}

impl History {
    /// A history of `len_max` bytes, allocated with the first push. With 0 nothing is kept.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { bytes: Vec::new(), len_max }
    }

    /// Lowers the limit to `len_max` bytes.
    pub(crate) fn shrink_to(&mut self, len_max: usize) {
        self.len_max = self.len_max.min(len_max);
        if self.len_max == 0 {
            self.bytes = Vec::new();
        }
    }

    /// Adds the next block of the flow.
    pub(crate) fn push(&mut self, raw: &[u8]) {
        if self.len_max == 0 {
            return;
        }
        let raw = &raw[raw.len().saturating_sub(self.len_max)..];
        let capacity = self.len_max + self.len_max / SLACK_SHARE;
        if self.bytes.len() + raw.len() > capacity {
            let keep = self.len_max - raw.len();
            let drop = self.bytes.len().saturating_sub(keep);
            self.bytes.copy_within(drop.., 0);
            self.bytes.truncate(self.bytes.len() - drop);
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(capacity);
        }
        self.bytes.extend_from_slice(raw);
    }

    /// The last `len_max` bytes, or all if there are fewer, in a buffer of their own.
    pub(crate) fn to_block(&self, pool: &BufferPool) -> Block {
        let latest = &self.bytes[self.bytes.len().saturating_sub(self.len_max)..];
        let mut buffer = pool.get(latest.len());
        buffer.bytes_mut()[..latest.len()].copy_from_slice(latest);
        let block = buffer.freeze(latest.len());
        pool.recycle(&block);
        block
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_latest_bytes_however_they_came() {
        let all: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 4) as u8).collect();
        let pool = BufferPool::default();
        for len_max in [1, 7, 64, 1000] {
            for step in [1, 3, 63, 64, 65, 900, 5000] {
                let mut history = History::new(len_max);
                let mut at = 0;
                for piece in all.chunks(step) {
                    history.push(piece);
                    at += piece.len();
                    assert_eq!(history.to_block(&pool)[..], all[at.saturating_sub(len_max)..at], "{len_max} {step}");
                    assert!(history.bytes.capacity() <= len_max + len_max / SLACK_SHARE);
                }
            }
        }
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        let mut history = History::new(100);
        history.push(b"abc");
        history.shrink_to(0);
        history.push(b"def");
        assert!(history.to_block(&BufferPool::default()).is_empty());
        assert_eq!(history.bytes.capacity(), 0);
    }
}
