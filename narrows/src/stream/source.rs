//! Where the raw bytes of a sending flow come from.

use std::io::{self, Read};

use crate::block::{Block, BufferPool};

/// Gives raw bytes in buffers that the flow shares, where a reader would have to copy them.
pub trait BlockSource: Send {
    /// The next bytes, as soon as there are some: about `len` of them at most, in a buffer of the pool or another one. None are
    /// the end. Called by one thread, which may wait here.
    fn next(&mut self, len: usize, buffers: &BufferPool) -> io::Result<Block>;
}

/// Anything that can be read.
pub(super) struct Reading<R>(pub(super) R);

impl<R: Read + Send> BlockSource for Reading<R> {
    fn next(&mut self, len: usize, buffers: &BufferPool) -> io::Result<Block> {
        let mut buffer = buffers.get(len);
        let n = loop {
            match self.0.read(&mut buffer.bytes_mut()[..len]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        let block = buffer.freeze(n);
        buffers.recycle(&block);
        Ok(block)
    }
}
