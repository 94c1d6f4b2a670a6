//! JPEG images in the bytes to come: each becomes a block of its own, which is recompressed. Blocks end
//! where one begins. What is stored is recompressed always; on a link [`Weighed`] says what it takes.

use super::Choice;
use crate::codec::Method;
use crate::jpeg::{self, Found};
use crate::monitor::View;
use crate::monitor::cost::Costs;

/// What was seen of the bytes to come.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Raw offset of the next byte to look at.
    seen: u64,
    /// The first image after the bytes cut so far: its raw offset, and its length if it ends in sight.
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
        // Copies in a flow move what is after them.
        jpeg::begins(view.upcoming).then(|| Choice::new(Method::LEPTON, len))
    }

    /// Where an image begins whose end is not in sight.
    fn awaited(&self) -> Option<u64> {
        self.next.filter(|(_, len)| len.is_none()).map(|(at, _)| at)
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
        let end = begin.saturating_add(view.upcoming.len() as u64);
        self.seen = match self.next {
            // It is as long as what can be seen: too long.
            Some((at, None)) if at == begin => at + 2,
            Some((at, _)) => at,
            // Its first bytes may be the last ones.
            None => end.saturating_sub(2).max(self.seen),
        };
    }
}

/// Wire bytes for a raw byte of an image before one was seen (decision 28), and how far one image moves what
/// is expected of the next.
const SHARE: f32 = 0.77;
const GAIN: f32 = 0.2;
/// An image counts as late as this many times its expected time, at least: they differ by their detail; and
/// at most, on the busiest of hosts.
const LATE: f32 = 1.2;
const LATE_MAX: f32 = 12.0;
/// Bytes between two images that may belong to the first: records of a copy, heads of an archive.
const BETWEEN_MAX: usize = 1024;

/// Images on a link, and what recompressing them takes.
pub(super) struct Weighed {
    images: Images,
    /// Wire bytes for a raw byte.
    share: f32,
    /// Seconds of a core for a raw byte: encoding, decoding.
    encode_s: f32,
    decode_s: f32,
    /// An image takes this many times its expected time, at most.
    late: f32,
}

impl Default for Weighed {
    fn default() -> Self {
        let (encode_ns, decode_ns) = Method::LEPTON.info().nominal_ns_per_byte(Method::LEPTON.level);
        let (encode_s, decode_s) = (encode_ns * 1e-9, decode_ns * 1e-9);
        Self { images: Images::default(), share: SHARE, encode_s, decode_s, late: LATE }
    }
}

impl Weighed {
    /// The block, if an image begins with it, and what it costs on free cores. The few bytes between two
    /// images belong to the first: a block of their own would take a place in the window.
    pub(super) fn next(&mut self, view: &View<'_>) -> Option<(Choice, Costs)> {
        let mut choice = self.images.choice(view)?;
        let behind = &view.upcoming[choice.block_len..view.upcoming.len().min(view.limits.block_max)];
        if let Some(between) = jpeg::first(&behind[..behind.len().min(BETWEEN_MAX)]) {
            choice.block_len += between;
            // The next block begins with an image, so it must be seen whole.
            self.images.next = Some((view.raw_offset.saturating_add(choice.block_len as u64), None));
        }
        let len = choice.block_len as f32;
        let costs = Costs { encode_s: len * self.encode_s, wire_len: len * self.share, decode_s: len * self.decode_s };
        Some((choice, costs))
    }

    /// The length of a block that is no image.
    pub(super) fn before(&self, view: &View<'_>, block_len: usize) -> usize {
        self.images.before(view, block_len)
    }

    /// Where an image begins whose end is not in sight.
    pub(super) fn awaited(&self) -> Option<u64> {
        self.images.awaited()
    }

    /// Nothing is recompressed for now.
    pub(super) fn forget(&mut self) {
        self.images.next = None;
    }

    /// How many times its expected time an image may take.
    pub(super) fn late(&self) -> f32 {
        self.late
    }

    /// Takes the result of an image, which took so many times as long as was expected of it.
    pub(super) fn learn(&mut self, raw_len: usize, wire_len: usize, cpu_ns: u64, times: f32) {
        // One that came too late left the link idle, and its bytes went as they are in the end: so a busy host
        // is believed at once, and a free one only in time.
        let times = (LATE * times).clamp(LATE, LATE_MAX);
        self.late = if times > self.late { times } else { self.late + GAIN * (times - self.late) };
        let len = raw_len.max(1) as f32;
        self.share += GAIN * ((wire_len as f32 / len).min(1.0) - self.share);
        if cpu_ns > 0 {
            self.encode_s += GAIN * (cpu_ns as f32 * 1e-9 / len - self.encode_s);
        }
    }
}
