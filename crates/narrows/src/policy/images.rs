//! JPEG images in bytes that are stored: each becomes a block of its own, which is recompressed. Blocks end
//! where one begins.

use super::Choice;
use crate::codec::Method;
use crate::jpeg::{self, Found};
use crate::monitor::View;

/// What was seen of the bytes to come.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Raw offset of the next byte to look at.
    seen: u64,
    /// The first image behind the bytes cut so far: its raw offset, and its length if it ends in sight.
    next: Option<(u64, Option<usize>)>,
}

impl Images {
    /// The block, if an image begins with it.
    pub(super) fn choice(&mut self, view: &View<'_>) -> Option<Choice> {
        if !view.limits.allows(Method::LEPTON) {
            return None;
        }
        self.look(view);
        let (at, len) = self.next?;
        let len = len.filter(|len| at == view.raw_offset && *len <= view.limits.block_max)?;
        Some(Choice::new(Method::LEPTON, len))
    }

    /// The length of a block that is no image.
    pub(super) fn before(&self, view: &View<'_>, block_len: usize) -> usize {
        let to_next = self.next.map_or(0, |(at, _)| at.saturating_sub(view.raw_offset));
        if to_next == 0 { block_len } else { block_len.min(usize::try_from(to_next).unwrap_or(usize::MAX)) }
    }

    /// Looks for the next image in bytes that it has not seen yet, or not to the end.
    fn look(&mut self, view: &View<'_>) {
        let begin = view.raw_offset;
        match self.next {
            Some((at, Some(_))) if at >= begin => return,
            // There may be more of it to see.
            Some((at, None)) if at >= begin => self.seen = at,
            _ => self.next = None,
        }
        self.seen = self.seen.max(begin);
        let from = usize::try_from(self.seen - begin).unwrap_or(usize::MAX);
        let Some(bytes) = view.upcoming.get(from..) else { return };
        let found = jpeg::find(bytes);
        self.next = found.map(|found| match found {
            Found::Whole { at, len } => (self.seen + at as u64, Some(len)),
            Found::Begins { at } => (self.seen + at as u64, None),
        });
        let end = begin + view.upcoming.len() as u64;
        self.seen = match self.next {
            // It is as long as what can be seen: too long.
            Some((at, None)) if at == begin => at + 2,
            Some((at, _)) => at,
            // Its first bytes may be the last ones.
            None => end.saturating_sub(2).max(self.seen),
        };
    }
}
