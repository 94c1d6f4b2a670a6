//! Reading until a signal comes.

use std::io::{self, Read};

use narrows_file::ReadAt;
use narrows_host::signals::received;

/// A source whose reads end at a signal.
pub(crate) struct Stopping<R>(pub(crate) R);

impl<R> Stopping<R> {
    fn check(&self) -> io::Result<()> {
        // Not `Interrupted`, after which a read is tried again.
        if received().is_some() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

impl<R: Read> Read for Stopping<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.0.read(buf)
    }
}

impl<R: ReadAt> ReadAt for Stopping<R> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check()?;
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_tail(&self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        self.check()?;
        self.0.read_tail(most)
    }

    fn will_read(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check()?;
        self.0.will_read(offset, len)
    }
}
