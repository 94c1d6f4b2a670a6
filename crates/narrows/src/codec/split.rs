//! Split: numbers of one width, their bytes sorted by place, then zstd.
//!
//! The encoder finds the width by itself and tries on a slice of the block what is shorter: the bytes
//! as they are, sorted into planes, or the differences of neighbours within each plane. So a block of
//! no numbers costs the time of a probe and two bytes.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, zstd};
use crate::probe::probe;

/// Levels of zstd after the split.
const LEVELS: &[Level] = &[1, 3, 6, 9, 15, 19];

/// Bytes of the header: width and steps.
const HEADER_LEN: usize = 2;
/// Widths that a body may have; 1 is no split.
const WIDTHS: &[u8] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// The only step besides the split: each byte of a plane is the difference to the one before.
const DELTA: u8 = 1;

/// Elements whose planes are written together: they stay in the first-level cache.
const GROUP: usize = 1024;

/// Slices of a block: numbers at its beginning may be others than those at its end.
const SLICES: usize = 2;
/// Trials of each slice: plain, by the width found with differences and without, by another one; by that
/// one in both ways where it is the number in a record.
const TRIALS: usize = 4;
/// Length of a slice at quick levels, at those that take a few times as long, and at slow ones. On
/// blocks of 64 KiB of the corpora, 8 KiB leave 0.34 % more than the best steps of each block do, 4 KiB
/// 0.45 %, 16 KiB 0.31 %.
const SLICE_LENS: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];
const SLICE_MAX: usize = SLICE_LENS[2];
/// The highest level of a trial: what is shortest by it is so at higher levels too, mostly, but not
/// at lower ones (with level 1 instead the result is 0.2 % longer).
const TRIAL_LEVEL_MAX: Level = 3;
/// The first levels of the second and of the third length of a slice.
const SECOND_FROM: Level = 3;
const THIRD_FROM: Level = 6;
/// A split slice must have this share of the plain one, at most: it takes longer to decode.
const WORTHWHILE: f32 = 0.99;

/// Time of probe and split, in ns per byte: (encode, decode).
const STEP_NS: (f32, f32) = (0.6, 0.6);
/// Block length of the nominal times.
const NOMINAL_LEN: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Split;

impl Codec for Split {
    fn id(&self) -> CodecId {
        CodecId::SPLIT
    }

    fn name(&self) -> &'static str {
        "split"
    }

    fn levels(&self) -> &'static [Level] {
        LEVELS
    }

    fn default_level(&self) -> Level {
        3
    }

    /// The planes, and zstd for the block and for a slice.
    fn encoder_memory(&self, level: Level, raw_len: usize, _history_len: usize) -> usize {
        let slice = SLICE_MAX.min(raw_len);
        raw_len
            + slice
            + zstd::ENTRY.encoder_memory(level, raw_len, 0)
            + zstd::ENTRY.encoder_memory(TRIAL_LEVEL_MAX, slice, 0)
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        let (encode, decode) = zstd::ENTRY.nominal_ns_per_byte(level);
        let tried = TRIALS * SLICES * slice_len(level, NOMINAL_LEN);
        let trial = zstd::ENTRY.nominal_ns_per_byte(level.min(TRIAL_LEVEL_MAX)).0 * tried as f32 / NOMINAL_LEN as f32;
        (encode + trial + STEP_NS.0, decode + STEP_NS.1)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(SplitEncoder {
            zstd: zstd::ENTRY.encoder(),
            trial: zstd::ENTRY.encoder(),
            planes: Vec::new(),
            slice: Vec::new(),
        })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(SplitDecoder { zstd: zstd::ENTRY.decoder(), planes: Vec::new() })
    }
}

/// How the bytes of a block are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steps {
    width: u8,
    delta: bool,
}

impl Steps {
    const PLAIN: Self = Self { width: 1, delta: false };

    fn header(self) -> [u8; HEADER_LEN] {
        [self.width, if self.delta { DELTA } else { 0 }]
    }

    /// The steps of a header; `None` if it is not one that an encoder may write.
    fn parse([width, steps]: [u8; HEADER_LEN]) -> Option<Self> {
        let known = WIDTHS.contains(&width) && (steps == 0 || steps == DELTA && width > 1);
        known.then_some(Self { width, delta: steps == DELTA })
    }

    /// Sorts `raw` into `planes`, which is as long.
    fn apply(self, raw: &[u8], planes: &mut [u8]) {
        match self.width {
            2 => split::<2>(raw, planes),
            3 => split::<3>(raw, planes),
            4 => split::<4>(raw, planes),
            6 => split::<6>(raw, planes),
            8 => split::<8>(raw, planes),
            12 => split::<12>(raw, planes),
            16 => split::<16>(raw, planes),
            24 => split::<24>(raw, planes),
            32 => split::<32>(raw, planes),
            _ => planes.copy_from_slice(raw),
        }
        if self.delta {
            self.each_plane(planes, |plane| {
                let mut before = 0u8;
                plane.iter_mut().for_each(|b| (before, *b) = (*b, b.wrapping_sub(before)));
            });
        }
    }

    /// The reverse of [`Self::apply`]; changes `planes`.
    fn undo(self, planes: &mut [u8], raw: &mut [u8]) {
        if self.delta {
            self.each_plane(planes, |plane| {
                let mut sum = 0u8;
                for b in plane {
                    sum = sum.wrapping_add(*b);
                    *b = sum;
                }
            });
        }
        match self.width {
            2 => join::<2>(planes, raw),
            3 => join::<3>(planes, raw),
            4 => join::<4>(planes, raw),
            6 => join::<6>(planes, raw),
            8 => join::<8>(planes, raw),
            12 => join::<12>(planes, raw),
            16 => join::<16>(planes, raw),
            24 => join::<24>(planes, raw),
            32 => join::<32>(planes, raw),
            _ => raw.copy_from_slice(planes),
        }
    }

    fn each_plane(self, planes: &mut [u8], change: impl Fn(&mut [u8])) {
        let plane_len = planes.len() / usize::from(self.width);
        if plane_len > 0 {
            planes.chunks_exact_mut(plane_len).take(usize::from(self.width)).for_each(change);
        }
    }
}

/// The first bytes of all elements, then the second ones, and so on; what is left after the last whole
/// element stands at the end.
fn split<const W: usize>(raw: &[u8], planes: &mut [u8]) {
    let (elements, rest) = raw.as_chunks::<W>();
    let (planes, end) = planes.split_at_mut(elements.len() * W);
    end.copy_from_slice(rest);
    if elements.is_empty() {
        return;
    }
    for (i, group) in elements.chunks(GROUP).enumerate() {
        for (place, plane) in planes.chunks_exact_mut(elements.len()).enumerate() {
            let plane = &mut plane[i * GROUP..i * GROUP + group.len()];
            plane.iter_mut().zip(group).for_each(|(b, element)| *b = element[place]);
        }
    }
}

fn join<const W: usize>(planes: &[u8], raw: &mut [u8]) {
    let (elements, rest) = raw.as_chunks_mut::<W>();
    let (planes, end) = planes.split_at(elements.len() * W);
    rest.copy_from_slice(end);
    if elements.is_empty() {
        return;
    }
    let plane_len = elements.len();
    for (i, group) in elements.chunks_mut(GROUP).enumerate() {
        for (place, plane) in planes.chunks_exact(plane_len).enumerate() {
            let plane = &plane[i * GROUP..i * GROUP + group.len()];
            group.iter_mut().zip(plane).for_each(|(element, b)| element[place] = *b);
        }
    }
}

/// Length of each slice of a block.
fn slice_len(level: Level, raw_len: usize) -> usize {
    let len = SLICE_LENS[usize::from(level >= SECOND_FROM) + usize::from(level >= THIRD_FROM)];
    len.min(raw_len / SLICES)
}

/// A width that is often shorter where the probe finds another one: the numbers in records of three,
/// and the short ones among pages and tables of mixed content.
fn other_width(found: u8) -> Option<u8> {
    match found {
        2 => None,
        12 => Some(4),
        24 => Some(8),
        _ => Some(2),
    }
}

struct SplitEncoder {
    zstd: Box<dyn Encoder>,
    trial: Box<dyn Encoder>,
    planes: Vec<u8>,
    slice: Vec<u8>,
}

impl SplitEncoder {
    /// The steps by which slices of the block are shortest.
    fn choose(&mut self, level: Level, raw: &[u8]) -> Steps {
        let Some(found) = probe(raw) else { return Steps::PLAIN };
        let mut best = (Steps::PLAIN, WORTHWHILE * self.tried(level, raw, Steps::PLAIN) as f32);
        let mut sorted = (Steps::PLAIN, f32::MAX);
        for delta in [false, true] {
            let steps = Steps { width: found.record, delta };
            let len = self.tried(level, raw, steps) as f32;
            if len < sorted.1 {
                sorted = (steps, len);
            }
        }
        if sorted.1 < best.1 {
            best = sorted;
        }
        if let Some(width) = other_width(found.record) {
            // Planes of records differ from one record to the next, planes of numbers from one field to the
            // next: what suits the ones says nothing of the others.
            let both = [sorted.0.delta, !sorted.0.delta];
            let is_record = usize::from(found.record) == 3 * usize::from(width);
            for &delta in &both[..if is_record { 2 } else { 1 }] {
                let steps = Steps { width, delta };
                let len = self.tried(level, raw, steps) as f32;
                if len < best.1 {
                    best = (steps, len);
                }
            }
        }
        best.0
    }

    /// Encoded length of slices of the block.
    fn tried(&mut self, level: Level, raw: &[u8], steps: Steps) -> usize {
        let slice_len = slice_len(level, raw.len());
        let (planes, out) = (&mut self.planes, &mut self.slice);
        out.resize(slice_len, 0);
        planes.resize(slice_len.max(planes.len()), 0);
        let mut sum = 0;
        for i in 0..SLICES {
            // At one and three quarters.
            let at = (raw.len() * (2 * i + 1) / (2 * SLICES)).min(raw.len() - slice_len);
            let slice = &raw[at..at + slice_len];
            steps.apply(slice, &mut planes[..slice_len]);
            sum += self.trial.encode(level.min(TRIAL_LEVEL_MAX), &[], &planes[..slice_len], out).unwrap_or(slice_len);
        }
        sum
    }
}

impl Encoder for SplitEncoder {
    fn encode(&mut self, level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let level = level.clamp(LEVELS[0], LEVELS[LEVELS.len() - 1]);
        let steps = self.choose(level, raw);
        let (header, body) = out.split_first_chunk_mut()?;
        *header = steps.header();
        let sorted = if steps.width == 1 {
            raw
        } else {
            self.planes.resize(raw.len(), 0);
            steps.apply(raw, &mut self.planes);
            &self.planes
        };
        Some(HEADER_LEN + self.zstd.encode(level, &[], sorted, body)?)
    }
}

struct SplitDecoder {
    zstd: Box<dyn Decoder>,
    planes: Vec<u8>,
}

impl Decoder for SplitDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let (header, body) = wire.split_first_chunk().ok_or(DecodeError)?;
        let steps = Steps::parse(*header).ok_or(DecodeError)?;
        if steps.width == 1 {
            return self.zstd.decode(&[], body, out);
        }
        self.planes.resize(out.len(), 0);
        let len = self.zstd.decode(&[], body, &mut self.planes)?;
        steps.undo(self.planes.get_mut(..len).ok_or(DecodeError)?, &mut out[..len]);
        Ok(len)
    }
}

pub(super) const ENTRY: &dyn Codec = &Split;

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Steps> {
        WIDTHS
            .iter()
            .flat_map(|&width| [false, true].map(|delta| Steps { width, delta }))
            .filter(|s| s.width > 1 || !s.delta)
    }

    #[test]
    fn every_width_and_length_comes_back() {
        let raw: Vec<u8> = (0..9000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        for steps in all() {
            for len in (0..200).chain([1023, 1024, 1025, 4096, 8191, 9000]) {
                let (mut planes, mut back) = (vec![0; len], vec![0; len]);
                steps.apply(&raw[..len], &mut planes);
                steps.undo(&mut planes, &mut back);
                assert!(back == raw[..len], "{steps:?} {len}");
            }
        }
    }

    #[test]
    fn planes_stand_in_order_and_the_rest_at_the_end() {
        let mut planes = [0; 7];
        Steps { width: 3, delta: false }.apply(&[1, 2, 3, 11, 12, 13, 9], &mut planes);
        assert_eq!(planes, [1, 11, 2, 12, 3, 13, 9]);
        Steps { width: 3, delta: true }.apply(&[1, 2, 3, 11, 12, 2, 9], &mut planes);
        assert_eq!(planes, [1, 10, 2, 10, 3, 255, 9]);
    }

    /// A body with any header before zeros.
    fn body(header: [u8; 2]) -> Vec<u8> {
        let mut body = vec![0; 100];
        body[..2].copy_from_slice(&header);
        let len = zstd::ENTRY.encoder().encode(3, &[], &[0; 1000], &mut body[2..]).unwrap();
        body.truncate(2 + len);
        body
    }

    #[test]
    fn headers_that_no_encoder_writes_are_refused() {
        let mut decoder = Split.decoder();
        let mut out = [1; 1000];
        for width in 0..=255u8 {
            for steps in 0..=255u8 {
                let good = Steps::parse([width, steps]).is_some();
                assert_eq!(good, WIDTHS.contains(&width) && (steps == 0 || steps == 1 && width > 1), "{width} {steps}");
                if good || steps < 3 {
                    let decoded = decoder.decode(&[], &body([width, steps]), &mut out);
                    assert_eq!(decoded, if good { Ok(1000) } else { Err(DecodeError) }, "{width} {steps}");
                    assert!(!good || out == [0; 1000]);
                }
            }
        }
        let whole = body([4, 1]);
        for end in 0..whole.len() {
            assert_eq!(decoder.decode(&[], &whole[..end], &mut out), Err(DecodeError), "{end}");
        }
        assert_eq!(decoder.decode(&[], &whole, &mut out[..999]), Err(DecodeError), "more than a block has");
    }

    #[test]
    fn numbers_are_split_at_any_place_and_other_bytes_are_not() {
        let floats = (0..40_000).map(|i| 280.0 + (i as f32 / 50.0).sin() * 20.0 + (i * 7919 % 1000) as f32 / 500.0);
        let numbers: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
        let counters: Vec<u8> = (0..40_000u32).flat_map(|i| (i * 3 + i % 7).to_be_bytes()).collect();
        let text = b"the narrow place of a link decides, and seldom how. ".repeat(2000);
        let header = |raw: &[u8]| {
            let mut wire = vec![0; raw.len()];
            let len = Split.encoder().encode(3, &[], raw, &mut wire).unwrap();
            let mut back = vec![0; raw.len()];
            assert_eq!(Split.decoder().decode(&[], &wire[..len], &mut back), Ok(raw.len()));
            assert!(back == raw);
            let mut plain = vec![0; raw.len()];
            let plain_len = zstd::ENTRY.encoder().encode(3, &[], raw, &mut plain).unwrap();
            assert!(len <= plain_len + HEADER_LEN, "{len} {plain_len}");
            (wire[0], wire[1])
        };
        for at in 0..4 {
            assert_eq!(header(&numbers[at..]).0, 4, "{at}");
            assert_eq!(header(&counters[at..]), (4, DELTA), "{at}");
        }
        assert_eq!(header(&text), (1, 0));
    }
}
