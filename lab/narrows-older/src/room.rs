//! Bounded output of an encoder.

/// Appends bytes while there is room; a call without enough room returns `None`.
pub(crate) struct Room<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Room<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn put(&mut self, byte: u8) -> Option<()> {
        *self.out.get_mut(self.len)? = byte;
        self.len += 1;
        Some(())
    }

    pub(crate) fn put_all(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.len..self.len + bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// Sets bits of the second-last byte.
    pub(crate) fn or_before_last(&mut self, bits: u8) -> Option<()> {
        *self.out.get_mut(self.len.checked_sub(2)?)? |= bits;
        Some(())
    }
}
