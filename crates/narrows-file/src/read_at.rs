//! Positioned reads of the bytes of a file, from a file, memory or an object store.

use std::io;
use std::sync::Arc;

/// Positioned reads from several threads at once.
pub trait ReadAt: Send + Sync {
    /// Reads bytes at `offset`, fewer than asked for if it likes; 0 only at the end.
    ///
    /// # Errors
    /// The source fails.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length in bytes.
    ///
    /// # Errors
    /// The source fails.
    fn len(&self) -> io::Result<u64>;

    /// The last bytes, at most `most`, and the whole length: one request where that is possible.
    ///
    /// # Errors
    /// The source fails.
    fn read_tail(&self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        let len = self.len()?;
        let n = usize::try_from(len).unwrap_or(usize::MAX).min(most);
        let mut tail = vec![0; n];
        self.read_exact_at(&mut tail, len - n as u64)?;
        Ok((len, tail))
    }

    /// Says that other threads read these bytes next, for a source that they cannot read themselves.
    /// Whether it gets them now is up to it.
    ///
    /// # Errors
    /// Whoever reads is to stop. What is wrong with the bytes is left to the reads that follow.
    fn will_read(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether it is empty.
    ///
    /// # Errors
    /// The source fails.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// The source fails, or `UnexpectedEof`.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl ReadAt for std::fs::File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        use std::io::Seek;
        let data = self.metadata()?;
        // A block device has no length of its own.
        if data.is_file() { Ok(data.len()) } else { (&*self).seek(io::SeekFrom::End(0)) }
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        ReadAt::read_at(self.as_slice(), buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        ReadAt::len(self.as_slice())
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<T: ReadAt + ?Sized> ReadAt for $pointer {
            fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
                (**self).read_at(buf, offset)
            }

            fn len(&self) -> io::Result<u64> {
                (**self).len()
            }

            fn read_tail(&self, most: usize) -> io::Result<(u64, Vec<u8>)> {
                (**self).read_tail(most)
            }

            fn will_read(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).will_read(offset, len)
            }
        }
    )*};
}

forward!(&T, Box<T>, Arc<T>);
