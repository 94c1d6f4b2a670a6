//! Where the raw bytes of a sending flow come from.

use std::io::{self, Read};

use crate::block::{Block, BufferPool};

/// Gives raw bytes in buffers that the flow shares, where a reader would have to copy them.
pub trait BlockSource: Send {
    /// The next bytes, as soon as there are some: about `len` of them at most, in a buffer of the
    /// pool or another one. None are the end. Called by one thread, which may wait here.
    fn next(&mut self, len: usize, buffers: &BufferPool) -> io::Result<Block>;
}

/// What is read at a time at least, if so much is asked for.
const READ_MIN: usize = 64 << 10;

/// Anything that can be read.
pub(super) struct Reading<R> {
    source: R,
    /// What the last read gave: a pipe gives little at a time, and the rest of a long buffer would
    /// lie idle.
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
