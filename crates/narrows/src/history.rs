//! The history: the latest raw bytes of a flow, to which linked frames refer. Both ends keep the
//! same.
//!
//! The bytes lie in one buffer, since codecs need them in a row, and since blocks of small messages
//! would each keep a whole buffer alive. A long history takes blocks by reference until a linked
//! block needs them: flows on fast links link nothing, and would copy every byte for nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::block::{Block, BufferPool};

/// Up to this length every block is copied at once: it stays in a core's cache, and many flows are
/// open at a time.
const SHORT_MAX: usize = 64 << 10;
/// The oldest bytes of a short history are dropped when it exceeds its limit by this share of it (a
/// quarter), so that each byte is moved only a few times. A long one may have twice its length.
const SLACK_SHARE: usize = 4;
/// A block is referred to if it has at least this share (a quarter) of the buffer that it keeps
/// alive.
const REFERRED_SHARE: usize = 4;
/// Most blocks that are referred to.
const REFERRED_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct History {
    bytes: Arc<Vec<u8>>,
    /// Blocks after `bytes` that were not copied.
    referred: VecDeque<Block>,
    referred_len: usize,
    len_max: usize,
}

impl History {
    /// A history of `len_max` bytes, allocated as it fills. With 0 nothing is kept.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, ..Self::default() }
    }

    /// Lowers the limit to `len_max` bytes.
    pub(crate) fn shrink_to(&mut self, len_max: usize) {
        self.len_max = self.len_max.min(len_max);
        if self.len_max == 0 {
            *self = Self::default();
        }
    }

    /// Raises the limit to `len_max` bytes. Both ends go on with as much as the limit allowed so far.
    pub(crate) fn grow_to(&mut self, len_max: usize) {
        if len_max <= self.len_max {
            return;
        }
        self.copy_referred();
        let old = self.bytes.len().saturating_sub(self.len_max);
        if old > 0 {
            self.bytes = Arc::new(self.bytes[old..].to_vec());
        }
        self.len_max = len_max;
    }

    /// Bytes that linked blocks can refer to.
    pub(crate) fn len(&self) -> usize {
        (self.bytes.len() + self.referred_len).min(self.len_max)
    }

    /// The limit.
    pub(crate) fn len_max(&self) -> usize {
        self.len_max
    }

    /// Adds the next block of the flow.
    pub(crate) fn push_block(&mut self, raw: &Block) {
        if self.len_max <= SHORT_MAX || raw.len() < raw.buffer_len() / REFERRED_SHARE {
            return self.push(raw);
        }
        self.referred_len += raw.len();
        self.referred.push_back(raw.clone());
        while let Some(oldest) = self.referred.front().filter(|b| self.referred_len - b.len() >= self.len_max) {
            self.referred_len -= oldest.len();
            self.referred.pop_front();
            // What lies before a block that is too old is older still.
            self.bytes = Arc::default();
        }
        if self.referred.len() > REFERRED_MAX {
            self.copy_referred();
        }
    }

    /// Adds the next bytes of the flow.
    pub(crate) fn push(&mut self, raw: &[u8]) {
        if self.len_max > 0 {
            self.copy_referred();
            self.copy(raw);
        }
    }

    fn copy_referred(&mut self) {
        for block in std::mem::take(&mut self.referred) {
            self.copy(&block);
        }
        self.referred_len = 0;
    }

    fn copy(&mut self, raw: &[u8]) {
        let raw = &raw[raw.len().saturating_sub(self.len_max)..];
        let slack = if self.len_max > SHORT_MAX { self.len_max } else { self.len_max / SLACK_SHARE };
        let capacity = self.len_max + slack;
        let len = self.bytes.len();
        let drop = if len + raw.len() > capacity { len.saturating_sub(self.len_max - raw.len()) } else { 0 };
        if Arc::get_mut(&mut self.bytes).is_none() {
            // Somebody still reads it, which no driver of this crate causes.
            self.bytes = Arc::new(self.bytes.to_vec());
        }
        let Some(bytes) = Arc::get_mut(&mut self.bytes) else { return };
        bytes.drain(..drop);
        if bytes.len() + raw.len() > bytes.capacity() {
            // Doubled as it fills, and never beyond the capacity.
            let wanted = (2 * (bytes.len() + raw.len())).min(capacity);
            bytes.reserve_exact(wanted - bytes.len());
        }
        bytes.extend_from_slice(raw);
    }

    /// The last bytes, at most `len` and the limit, in a buffer of their own.
    pub(crate) fn latest(&mut self, len: usize, pool: &BufferPool) -> Block {
        self.copy_referred();
        let latest = &self.bytes[self.bytes.len().saturating_sub(self.len_max.min(len))..];
        let mut buffer = pool.get(latest.len());
        buffer.bytes_mut()[..latest.len()].copy_from_slice(latest);
        let block = buffer.freeze(latest.len());
        pool.recycle(&block);
        block
    }

    /// The last bytes up to the limit, without a copy. The next bytes should come when the block is
    /// gone; else everything is copied.
    pub(crate) fn share(&mut self) -> Block {
        self.copy_referred();
        Block::of(&self.bytes, self.bytes.len().saturating_sub(self.len_max)..self.bytes.len())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.len_max);
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity() + self.referred_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_latest_bytes_however_they_came() {
        let all: Vec<u8> = (0..600_000u32).map(|i| ((u64::from(i) * u64::from(i)) >> 4) as u8).collect();
        let whole = Block::from_vec(all.clone());
        let pool = BufferPool::default();
        for (len_max, steps) in [
            (1, &[1, 3, 5000][..]),
            (1000, &[1, 3, 63, 64, 65, 900, 5000]),
            (100_000, &[9_999, 33_333, 100_000, 150_000, 400_000]),
        ] {
            for &step in steps {
                // By reference, by copy, and both in turn.
                for referred in [1, 2, usize::MAX] {
                    let mut history = History::new(len_max);
                    let mut at = 0;
                    for (i, piece) in all[..step * 100.min(600_000 / step)].chunks(step).enumerate() {
                        if i % referred == 0 {
                            let part = whole.slice(at..at + piece.len());
                            let own = Block::from_vec(piece.to_vec());
                            history.push_block(if i % 2 == 0 { &own } else { &part });
                        } else {
                            history.push(piece);
                        }
                        at += piece.len();
                        let latest = &all[at.saturating_sub(len_max)..at];
                        if i % 3 == 0 {
                            assert_eq!(history.latest(usize::MAX, &pool)[..], *latest, "{len_max} {step}");
                            let short = &latest[latest.len() - latest.len() / 2..];
                            assert_eq!(history.latest(short.len(), &pool)[..], *short);
                            assert_eq!(history.share()[..], *latest, "{len_max} {step}");
                        }
                        assert!(history.memory() <= 3 * len_max + step, "{} {len_max} {step}", history.memory());
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_shared_stays_as_it_was() {
        let mut history = History::new(SHORT_MAX + 1);
        history.push(b"abc");
        let shared = history.share();
        history.push(b"def");
        assert_eq!((&shared[..], &history.share()[..]), (&b"abc"[..], &b"abcdef"[..]));
        drop(shared);
        let address = Arc::as_ptr(&history.bytes);
        history.push(b"ghi");
        assert_eq!(Arc::as_ptr(&history.bytes), address, "copied although nobody reads it");
    }

    #[test]
    fn a_small_block_does_not_keep_a_large_buffer_alive() {
        let mut history = History::new(1 << 20);
        let buffer = Block::from_vec(vec![7; 1 << 20]);
        history.push_block(&buffer.slice(0..1000));
        assert!(history.referred.is_empty());
        history.push_block(&buffer.slice(0..400_000));
        assert_eq!(history.referred.len(), 1);
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        for len_max in [100, SHORT_MAX + 1] {
            let mut history = History::new(len_max);
            history.push(b"abc");
            history.push_block(&Block::from_vec(b"abc".to_vec()));
            history.shrink_to(0);
            history.push(b"def");
            history.push_block(&Block::from_vec(b"def".to_vec()));
            assert!(history.latest(usize::MAX, &BufferPool::default()).is_empty());
            assert_eq!(history.memory(), 0);
        }
    }
}
