//! Fields of binary headers, read from the front.

use narrows::{Error, Result};

/// Bytes that are still to be read, little-endian as all headers of HDF5 and zip.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) =
            self.0.split_at_checked(len).ok_or_else(|| Error::truncated("a header ends before its fields do"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<()> {
        self.take(len).map(drop)
    }

    /// An unsigned number of `len` bytes, 8 at most.
    pub(crate) fn uint(&mut self, len: usize) -> Result<u64> {
        if len > 8 {
            return Err(Error::unsupported(format!("numbers of {len} bytes in a header")));
        }
        Ok(self.take(len)?.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(self.uint(2)? as u16)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(self.uint(4)? as u32)
    }

    /// Compares the next bytes with a signature.
    pub(crate) fn expect(&mut self, signature: &[u8]) -> Result<()> {
        if self.take(signature.len())? != signature {
            let name = String::from_utf8_lossy(signature);
            return Err(Error::corrupt(format!("the file's structure is damaged: {name} is not where it should be")));
        }
        Ok(())
    }

    /// Text up to a zero byte.
    pub(crate) fn text(&mut self) -> Result<&'a [u8]> {
        let len = self.0.iter().position(|b| *b == 0).ok_or_else(|| Error::truncated("a name has no end"))?;
        let text = self.take(len)?;
        self.skip(1)?;
        Ok(text)
    }
}
