//! Sources: suppliers of the raw bytes of a sending flow.

use std::io::{self, Read};

use crate::block::{Block, BufferPool};

/// A source that supplies raw bytes in buffers that the flow shares; those of a reader would have
/// to be copied.
pub trait BlockSource: Send {
    /// Returns the next bytes as soon as there are some: about `len` at most, in a buffer of the
    /// pool or another one. An empty block is the end. Called by a single thread, which may block.
    ///
    /// # Errors
    /// The source fails; the flow then fails too.
    fn next(&mut self, len: usize, buffers: &BufferPool) -> io::Result<Block>;
}

/// Minimum length of a read, if that much is asked for.
const READ_MIN: usize = 64 << 10;

/// A [`BlockSource`] over any reader.
pub(super) struct Reading<R> {
    source: R,
    /// Length of the last read, which bounds the next buffer: a pipe gives little at a time, and
    /// the rest of a long buffer would be wasted.
    last: usize,
}

impl<R> Reading<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, last: usize::MAX }
    }
}

impl<R: Read + Send> BlockSource for Reading<R> {
    fn next(&mut self, len: usize, buffers: &BufferPool) -> io::Result<Block> {
        let len = len.min(self.last.saturating_mul(2).max(READ_MIN));
        let mut buffer = buffers.get(len);
        let n = loop {
            match self.source.read(&mut buffer.bytes_mut()[..len]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.last = n;
        let block = buffer.freeze(n);
        buffers.recycle(&block);
        Ok(block)
    }
}
