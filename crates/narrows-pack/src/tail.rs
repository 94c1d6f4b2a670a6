//! A source whose end was read once: footer, index, trailer and often the root page are in it.

use std::io;

use narrows_file::ReadAt;

/// Bytes of the end that are read at once, and kept.
const TAIL_LEN: usize = 64 << 10;

/// `R` with its last bytes in memory.
pub(crate) struct TailSource<R> {
    source: R,
    len: u64,
    tail: Vec<u8>,
}

impl<R: ReadAt> TailSource<R> {
    pub(crate) fn new(source: R) -> io::Result<Self> {
        let (len, tail) = source.read_tail(TAIL_LEN)?;
        Ok(Self { source, len, tail })
    }

    /// The source itself.
    pub(crate) fn inner(&self) -> &R {
        &self.source
    }
}

impl<R: ReadAt> ReadAt for TailSource<R> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let begin = self.len - self.tail.len() as u64;
        match offset.checked_sub(begin).and_then(|at| self.tail.get(usize::try_from(at).ok()?..)) {
            Some(rest) if rest.len() >= buf.len() => {
                buf.copy_from_slice(&rest[..buf.len()]);
                Ok(buf.len())
            }
            _ => self.source.read_at(buf, offset),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_tail(&self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        match self.tail.len().checked_sub(most) {
            Some(at) => Ok((self.len, self.tail[at..].to_vec())),
            None if self.tail.len() as u64 == self.len => Ok((self.len, self.tail.clone())),
            None => self.source.read_tail(most),
        }
    }

    fn will_read(&self, offset: u64, len: u64) -> io::Result<()> {
        self.source.will_read(offset, len)
    }
}
