//! Decoded blocks, the latest used ones, bounded in bytes.

use std::collections::{BTreeMap, HashMap};

use narrows::block::Block;

/// Stream and block.
pub(crate) type Key = (usize, usize);

#[derive(Default)]
pub(crate) struct Cache {
    blocks: HashMap<Key, (u64, Block)>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, Key>,
    clock: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<Block> {
        let (time, block) = self.blocks.get_mut(&key)?;
        self.order.remove(time);
        self.clock += 1;
        *time = self.clock;
        self.order.insert(self.clock, key);
        Some(block.clone())
    }

    pub(crate) fn put(&mut self, key: Key, block: &Block) {
        // A block keeps its whole buffer, which may be up to twice its length.
        if block.buffer_len() > self.bytes_max || self.blocks.contains_key(&key) {
            return;
        }
        self.clock += 1;
        self.bytes += block.buffer_len();
        self.order.insert(self.clock, key);
        self.blocks.insert(key, (self.clock, block.clone()));
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some((_, block)) = self.blocks.remove(&oldest) {
                self.bytes -= block.buffer_len();
            }
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_the_latest_used_blocks_and_no_more_than_its_bytes() {
        let mut cache = Cache::new(10);
        let block = |len| Block::from_vec(vec![0; len]);
        cache.put((0, 0), &block(4));
        cache.put((0, 1), &block(4));
        assert!(cache.get((0, 0)).is_some());
        cache.put((0, 2), &block(4));
        assert!(cache.get((0, 0)).is_some() && cache.get((0, 2)).is_some());
        assert!(cache.get((0, 1)).is_none());
        cache.put((0, 3), &block(11));
        assert!(cache.get((0, 3)).is_none());
        assert_eq!(cache.bytes(), 8);
    }
}
