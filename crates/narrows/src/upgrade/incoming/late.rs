//! The rest of a marker or an opening whose beginning was given to the program. Should it arrive
//! after all, frames follow, which no program may see.

use super::super::marker::{DIRECT_MAGIC, MAGIC, Marker};
use crate::error::{Error, Result};

/// A marker that is no longer waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LateMarker {
    marker: Marker,
    /// Bytes of it that have arrived.
    matched: usize,
}

impl LateMarker {
    /// `matched` bytes of the marker were given out.
    pub(super) fn new(marker: Marker, matched: usize) -> Self {
        Self { marker, matched }
    }

    /// Looks at the next bytes.
    ///
    /// # Errors
    /// They complete the magic.
    pub(super) fn look(&mut self, input: &[u8]) -> Result<()> {
        let mut rest = input;
        while let [byte, after @ ..] = rest {
            if self.matched > 0 && *byte == self.marker[self.matched] {
                self.matched += 1;
                if self.matched == MAGIC.len() {
                    return Err(Error::corrupt("a marker arrived after its claim was abandoned"));
                }
                rest = after;
                continue;
            }
            let Some(at) = rest.iter().position(|b| *b == self.marker[0]) else {
                self.matched = 0;
                break;
            };
            self.matched = 1;
            rest = &rest[at + 1..];
        }
        Ok(())
    }
}

/// The opening of a direct connection that is no longer waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateOpening {
    /// Bytes of it that have arrived.
    seen: usize,
}

impl LateOpening {
    /// `seen` bytes of the opening were given out.
    pub(super) fn new(seen: usize) -> Self {
        Self { seen }
    }

    /// Looks at the next bytes; `None` if they are no continuation.
    ///
    /// # Errors
    /// They complete the magic.
    pub(super) fn look(self, input: &[u8]) -> Result<Option<Self>> {
        let rest = &DIRECT_MAGIC[self.seen..];
        let n = rest.len().min(input.len());
        if input[..n] != rest[..n] {
            return Ok(None);
        }
        if n == rest.len() {
            return Err(Error::corrupt("the opening of a direct connection arrived in pieces"));
        }
        Ok(Some(Self { seen: self.seen + n }))
    }
}
