//! LZO1X: decoded by `lzokay`, encoded by a fast greedy encoder of our own in the manner of LZO1X-1,
//! which the libraries under free licences lack. The stream is described in docs/format.md, 5.1.

use lzokay::decompress::decompress;
use narrows::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

use crate::room::Room;

/// Levels 1, 2 and 3 have hash tables of 2^11, 2^14 and 2^15 entries, as LZO1X-1(11), LZO1X-1 and
/// LZO1X-1(15).
const HASH_BITS: [u32; 3] = [11, 14, 15];
/// Length in bytes of the strings that are hashed to find matches.
const MATCH_MIN: usize = 4;
/// Maximum distances of the three match forms that this encoder writes.
const NEAR: usize = 2048;
const MIDDLE: usize = 16_384;
const FAR: usize = 49_151;
/// The longest match that fits the form of two bytes.
const SHORT_MATCH: usize = 8;
/// After 2^5 bytes without a match only every second position is tried, after twice as many every
/// third.
const SKIP_SHIFT: usize = 5;

#[derive(Debug)]
struct Lzo;

impl Codec for Lzo {
    fn id(&self) -> CodecId {
        crate::LZO
    }

    fn name(&self) -> &'static str {
        "lzo"
    }

    fn levels(&self) -> &'static [Level] {
        &[1, 2, 3]
    }

    fn default_level(&self) -> Level {
        2
    }

    fn encoder_memory(&self, _level: Level, _raw_len: usize, _history_len: usize) -> usize {
        4 << HASH_BITS[2]
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        (2.4 + 0.1 * level.clamp(1, 3) as f32, 2.0)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(LzoEncoder { table: vec![0; 1 << HASH_BITS[2]] })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(LzoDecoder)
    }
}

struct LzoEncoder {
    /// By hash of four bytes: their latest position plus one; 0: none.
    table: Vec<u32>,
}

impl Encoder for LzoEncoder {
    fn encode(&mut self, level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let bits = HASH_BITS[level.clamp(1, 3) as usize - 1];
        u32::try_from(raw.len()).ok()?;
        let table = &mut self.table[..1 << bits];
        table.fill(0);
        let mut room = Room::new(out);
        let (mut at, mut literals_from) = (0, 0);
        while at + MATCH_MIN <= raw.len() {
            let word = word_at(raw, at);
            let entry = &mut table[(word.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize];
            let seen = std::mem::replace(entry, at as u32 + 1) as usize;
            // Position 0 of the table stands for "never".
            let candidate = seen.wrapping_sub(1);
            if seen == 0 || at - candidate > FAR || word_at(raw, candidate) != word {
                at += 1 + ((at - literals_from) >> SKIP_SHIFT);
                continue;
            }
            let len = MATCH_MIN + common_len(&raw[candidate + MATCH_MIN..], &raw[at + MATCH_MIN..]);
            put_literals(&mut room, &raw[literals_from..at])?;
            put_match(&mut room, at - candidate, len)?;
            at += len;
            literals_from = at;
        }
        put_literals(&mut room, &raw[literals_from..])?;
        // End mark: a far match of distance 16,384.
        room.put(0x11)?;
        room.put(0)?;
        room.put(0)?;
        Some(room.len())
    }
}

fn word_at(raw: &[u8], at: usize) -> u32 {
    raw[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    let (a, b) = (&a[words..], &b[words..]);
    words + a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn put_literals(room: &mut Room<'_>, literals: &[u8]) -> Option<()> {
    match literals.len() {
        0 => {}
        // Only the first instruction of a stream may be this one.
        len @ 1..=238 if room.len() == 0 => room.put(17 + len as u8)?,
        // Up to three literals are counted in the second-last byte of the match before them.
        len @ 1..=3 => room.or_before_last(len as u8)?,
        len @ 4..=18 => room.put(len as u8 - 3)?,
        len => {
            room.put(0)?;
            put_rest(room, len - 18)?;
        }
    }
    room.put_all(literals)
}

fn put_match(room: &mut Room<'_>, distance: usize, len: usize) -> Option<()> {
    if len <= SHORT_MATCH && distance <= NEAR {
        let d = distance - 1;
        room.put((((len - 1) << 5) | ((d & 7) << 2)) as u8)?;
        return room.put((d >> 3) as u8);
    }
    let (form, len_max, d) = match distance {
        ..=MIDDLE => (32, 33, distance - 1),
        _ => (16 | (((distance - MIDDLE) >> 11) & 8), 9, (distance - MIDDLE) & 0x3fff),
    };
    if len <= len_max {
        room.put((form | (len - 2)) as u8)?;
    } else {
        room.put(form as u8)?;
        put_rest(room, len - len_max)?;
    }
    room.put((d << 2) as u8)?;
    room.put((d >> 6) as u8)
}

/// Writes the part of a length beyond its field: a zero byte for each 255, then the nonzero rest.
fn put_rest(room: &mut Room<'_>, mut rest: usize) -> Option<()> {
    while rest > 255 {
        room.put(0)?;
        rest -= 255;
    }
    room.put(rest as u8)
}

struct LzoDecoder;

impl Decoder for LzoDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        decompress(wire, out).map_err(|_| DecodeError)
    }
}

pub(crate) const ENTRY: &dyn Codec = &Lzo;

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(raw: &[u8]) -> Vec<u8> {
        let mut out = vec![0; raw.len() + raw.len() / 16 + 64];
        let len = LzoEncoder { table: vec![0; 1 << HASH_BITS[2]] }.encode(2, &[], raw, &mut out).unwrap();
        out.truncate(len);
        out
    }

    /// Worked by hand from the description in docs/format.md.
    #[test]
    fn streams_are_as_described() {
        // Seven literals, then the end.
        assert_eq!(encode(b"narrows"), [&[17 + 7][..], b"narrows", &[0x11, 0, 0]].concat());
        // Four literals; eight bytes from distance 4: (8 - 1) << 5 | (4 - 1) << 2, two literals
        // counted in it; the end.
        assert_eq!(encode(b"abcdabcdabcdxy"), [&[21][..], b"abcd", &[0xec | 2, 0], b"xy", &[0x11, 0, 0]].concat());
        // One literal; 299 from distance 1: the long form, 299 - 33 = 266 = a zero and 11.
        assert_eq!(encode(&[7; 300]), [18, 7, 32, 0, 11, 0, 0, 0x11, 0, 0]);
    }

    /// Every form of literals and matches, decoded by a library that knows nothing of this encoder.
    #[test]
    fn every_length_and_distance_decodes() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let lens = [4, 5, 8, 9, 10, 33, 34, 264, 265, 288, 289, 600];
        for distance in [600, 2047, 2048, 2049, 16_383, 16_384, 16_385, 32_768, 32_769, 49_150, 49_151, 49_152] {
            for (len, tail) in lens.into_iter().zip([0usize, 1, 2, 3, 4, 17, 18, 19, 238, 239, 273, 274]) {
                let mut raw: Vec<u8> = (0..distance).map(|_| noise()).collect();
                raw.extend_from_within(..len.min(distance));
                raw.extend((0..tail).map(|_| noise()));
                let wire = encode(&raw);
                let mut back = vec![0; raw.len()];
                assert_eq!(LzoDecoder.decode(&[], &wire, &mut back), Ok(raw.len()), "{distance} {len} {tail}");
                assert!(back == raw, "{distance} {len} {tail}");
            }
        }
    }
}
