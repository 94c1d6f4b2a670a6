//! Control frames read ahead of a program that does not read its data.

use narrows::Result;
use narrows::frame::{Scanned, feature};

use super::{Frames, Incoming};
use crate::behind::Told;

impl Incoming {
    /// Whether frames may be read that the receiver has no room for.
    pub fn may_read_ahead(&self) -> bool {
        let has_place = |f: &Frames| !f.failed && !f.gated && f.behind.has_room();
        self.frames.as_ref().is_some_and(|f| self.discards || has_place(f))
    }

    /// Plain bytes that wait for the program.
    pub fn plain_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What the peer says of the direction to it.
    pub fn told(&self) -> Told {
        self.frames.as_ref().map_or_else(Told::default, |f| f.told)
    }

    /// Raw bytes of frames that the program has, if the peer wants to know.
    pub fn delivered(&self) -> Option<u64> {
        let frames = self.frames.as_ref().filter(|f| f.told.tells == Some(true))?;
        // Whatever else comes is discarded: it waits for nobody.
        Some(if self.discards { u64::MAX } else { self.bytes - frames.plain_len - frames.raw.len() as u64 })
    }
}

impl Frames {
    /// Whether received frames wait for room in the receiver.
    pub(super) fn has_undecoded(&self) -> bool {
        self.decoding.has_unparsed() || self.behind.len() > 0
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        self.decoding.resume()?;
        while self.decoding.room() > 0
            && !self.decoding.has_unparsed()
            && let Some(wire) = self.behind.pop()
        {
            self.decoding.receive(wire)?;
        }
        Ok(())
    }

    /// Notes what the peer says in frames that have come, before those in front of them are decoded.
    pub(super) fn listen(&mut self, wire: &[u8]) {
        let Self { scan, told, .. } = self;
        scan.take(wire, |found| match found {
            Scanned::Preface(preface) => told.tells = Some(preface.optional & feature::DELIVERED != 0),
            Scanned::Delivered(raw_bytes) => told.delivered = told.delivered.max(raw_bytes),
            Scanned::End => told.has_ended = true,
        });
    }
}
