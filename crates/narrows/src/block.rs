//! Shared immutable byte ranges and the pool their buffers come from.
//!
//! A [`Block`] is a reference-counted range of a buffer: workers, rescue and linked encoding read
//! the same bytes without copying. A buffer is written before it is shared and never after. The
//! pool keeps a handle to every buffer it made and hands one out again once all blocks over it are
//! gone, so steady flows allocate nothing.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An immutable range of a shared buffer.
#[derive(Clone, Default)]
pub struct Block {
    buf: Buffer,
    start: usize,
    end: usize,
}

/// What a block lies in.
#[derive(Clone)]
enum Buffer {
    Own(Arc<Vec<u8>>),
    /// Memory of somebody else, who keeps it as it is.
    Lent(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl Default for Buffer {
    fn default() -> Self {
        Self::Own(Arc::default())
    }
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Lent(owner) => (**owner).as_ref(),
        }
    }
}

impl Block {
    /// A block of `len` zero bytes, shared by all callers, in a buffer as long as one of a pool:
    /// simulated frames take as much memory as real ones.
    ///
    /// # Panics
    /// If `len` is more than the longest block of the baseline, 2 MiB.
    pub fn zeros(len: usize) -> Self {
        static ZEROS: [OnceLock<Block>; 22] = [const { OnceLock::new() }; 22];
        let buffer_len = pooled_len(len);
        let zeros = || Self::from_vec(vec![0; buffer_len]);
        ZEROS[buffer_len.trailing_zeros() as usize].get_or_init(zeros).slice(0..len)
    }

    /// A block over all bytes of `bytes`, without copying.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { buf: Buffer::Own(Arc::new(bytes)), start: 0, end }
    }

    /// A block over all bytes of `owner`, without copying. It must give the same bytes at every call.
    pub fn lent(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let end = (*owner).as_ref().len();
        Self { buf: Buffer::Lent(owner), start: 0, end }
    }

    /// A block over a range of a buffer that its owner may write again once the block is gone.
    pub(crate) fn of(buffer: &Arc<Vec<u8>>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= buffer.len());
        Self { buf: Buffer::Own(Arc::clone(buffer)), start: range.start, end: range.end }
    }

    /// The part `range` of this block, over the same buffer.
    ///
    /// # Panics
    /// If the range does not lie inside the block.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len());
        Self { buf: self.buf.clone(), start: self.start + range.start, end: self.start + range.end }
    }

    /// Splits off and returns the first `len` bytes.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Self {
        let head = self.slice(0..len);
        self.start += len;
        head
    }

    /// Up to `len` bytes that lie directly before this block in its buffer.
    #[must_use]
    pub fn before(&self, len: usize) -> Self {
        Self { buf: self.buf.clone(), start: self.start.saturating_sub(len), end: self.start }
    }

    /// Length of the whole buffer that this block keeps alive, in bytes.
    pub fn buffer_len(&self) -> usize {
        self.buf.bytes().len()
    }
}

/// Length of a pool's buffer for `len` bytes: few lengths, so that buffers are found again.
fn pooled_len(len: usize) -> usize {
    len.next_power_of_two().max(4096)
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf.bytes()[self.start..self.end]
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

/// A buffer with one owner, writable until it is shared with [`BlockMut::freeze`].
#[derive(Debug, Default)]
pub struct BlockMut {
    buf: Arc<Vec<u8>>,
}

impl BlockMut {
    /// The whole buffer.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.buf).expect("a buffer that is being filled has one owner")
    }

    /// Length of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Turns the first `len` bytes into an immutable block.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    #[must_use]
    pub fn freeze(self, len: usize) -> Block {
        assert!(len <= self.buf.len());
        Block { buf: Buffer::Own(self.buf), start: 0, end: len }
    }
}

/// Buffers for re-use, shared by the threads of a flow or a process.
#[derive(Clone, Default)]
pub struct BufferPool {
    shelves: Arc<Mutex<Shelves>>,
}

/// Remembered buffers.
#[derive(Default)]
struct Shelves {
    buffers: Vec<Arc<Vec<u8>>>,
    /// Length of all of them.
    bytes: usize,
}

impl Shelves {
    fn take(&mut self, i: usize) -> Arc<Vec<u8>> {
        let buffer = self.buffers.remove(i);
        self.bytes -= buffer.len();
        buffer
    }
}

/// Most bytes of buffers that the pool remembers: a full job window of 128 KiB blocks, raw and
/// encoded, rounded up. Further buffers are made when needed, and freed instead of kept.
const REMEMBERED_MAX_BYTES: usize = 8 << 20;

/// Most buffers that the pool remembers: they are searched one by one, and tiny writes make many.
const REMEMBERED_MAX: usize = 256;

impl BufferPool {
    /// A buffer of at least `len` bytes with arbitrary old contents.
    pub fn get(&self, len: usize) -> BlockMut {
        let len = pooled_len(len);
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        // A buffer in use has two handles, the pool's and the user's; one means that it is free.
        // The one that was filled last is the most likely to be in a core's cache, and the others stay
        // untouched.
        if let Some(i) = shelves.buffers.iter().rposition(|b| b.len() == len && Arc::strong_count(b) == 1) {
            return BlockMut { buf: shelves.take(i) };
        }
        drop(shelves);
        BlockMut { buf: Arc::new(vec![0; len]) }
    }

    /// Remembers the buffer under `block` for reuse once all blocks over it are dropped.
    pub fn recycle(&self, block: &Block) {
        let Buffer::Own(buf) = &block.buf else { return };
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        while shelves.bytes + buf.len() > REMEMBERED_MAX_BYTES || shelves.buffers.len() >= REMEMBERED_MAX {
            // Sizes change during a flow: an unused buffer makes room.
            let Some(unused) = shelves.buffers.iter().position(|b| Arc::strong_count(b) == 1) else { return };
            shelves.take(unused);
        }
        shelves.bytes += buf.len();
        shelves.buffers.push(Arc::clone(buf));
    }

    /// Frees all remembered buffers that are not in use.
    pub fn trim(&self) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.buffers.retain(|b| Arc::strong_count(b) > 1);
        shelves.bytes = shelves.buffers.iter().map(|b| b.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_to_the_pool_only_when_its_last_block_is_gone() {
        let pool = BufferPool::default();
        let mut b = pool.get(5000);
        b.bytes_mut()[0] = 7;
        let block = b.freeze(5000);
        pool.recycle(&block);
        let first = block.slice(0..1);
        drop(block);
        let other = pool.get(5000).freeze(1);
        assert_ne!(other.as_ptr(), first.as_ptr());
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.get(5000).bytes_mut().as_ptr(), address);
    }

    #[test]
    fn a_pool_remembers_a_bounded_number_of_bytes() {
        let pool = BufferPool::default();
        for round in 0..3 {
            let kept: Vec<Block> = (0..40).map(|_| pool.get(512 << 10).freeze(1)).collect();
            kept.iter().for_each(|block| pool.recycle(block));
            let shelves = pool.shelves.lock().unwrap();
            assert_eq!((shelves.bytes, shelves.buffers.len()), (REMEMBERED_MAX_BYTES, 16), "{round}");
        }
        pool.trim();
        assert_eq!(pool.shelves.lock().unwrap().bytes, 0);
    }

    #[test]
    fn lent_bytes_are_not_copied_and_their_owner_goes_with_the_last_block() {
        let owner: Arc<Vec<u8>> = Arc::new((0..100).collect());
        let pool = BufferPool::default();
        let block = Block::lent(owner.clone());
        pool.recycle(&block);
        let part = block.slice(10..20);
        drop(block);
        assert!(part.as_ptr() == owner[10..].as_ptr() && part[..] == owner[10..20]);
        assert!(part.before(4)[..] == owner[6..10] && Arc::strong_count(&owner) == 2);
        drop(part);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn simulated_bytes_keep_no_more_memory_than_real_ones() {
        let pool = BufferPool::default();
        for len in [1, 5000, 100_000, 2 << 20] {
            let zeros = Block::zeros(len);
            assert!(zeros.len() == len && zeros.buffer_len() == pool.get(len).freeze(len).buffer_len(), "{len}");
        }
    }
}
