//! LZF: a byte-wise LZ with a window of 8 KiB. The stream is described in docs/format.md, 5.1.

use narrows::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

use crate::room::Room;

/// The default of LZF itself.
const HASH_BITS: u32 = 16;
const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 264;
const DISTANCE_MAX: usize = 8192;
const LITERALS_MAX: usize = 32;

#[derive(Debug)]
struct Lzf;

impl Codec for Lzf {
    fn id(&self) -> CodecId {
        crate::LZF
    }

    fn name(&self) -> &'static str {
        "lzf"
    }

    fn levels(&self) -> &'static [Level] {
        &[1]
    }

    fn default_level(&self) -> Level {
        1
    }

    fn encoder_memory(&self, _level: Level, _raw_len: usize, _history_len: usize) -> usize {
        4 << HASH_BITS
    }

    fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
        (4.0, 2.4)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(LzfEncoder { table: vec![0; 1 << HASH_BITS] })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(LzfDecoder)
    }
}

struct LzfEncoder {
    /// By hash of three bytes: their latest position plus one; 0: none.
    table: Vec<u32>,
}

impl Encoder for LzfEncoder {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        u32::try_from(raw.len()).ok()?;
        self.table.fill(0);
        let mut room = Room::new(out);
        let (mut at, mut literals_from) = (0, 0);
        while at + MATCH_MIN <= raw.len() {
            let seen = std::mem::replace(&mut self.table[hash(&raw[at..])], at as u32 + 1) as usize;
            let candidate = seen.wrapping_sub(1);
            if seen == 0
                || at - candidate > DISTANCE_MAX
                || raw[candidate..candidate + MATCH_MIN] != raw[at..at + MATCH_MIN]
            {
                at += 1;
                continue;
            }
            let max = MATCH_MAX.min(raw.len() - at);
            let same = |i: &usize| raw[candidate + i] == raw[at + i];
            let len = MATCH_MIN + (MATCH_MIN..max).take_while(same).count();
            put_literals(&mut room, &raw[literals_from..at])?;
            put_match(&mut room, at - candidate, len)?;
            // The last two positions of the match may begin the next one.
            for i in (at + 1).max(at + len - 2)..(at + len).min(raw.len() - MATCH_MIN + 1) {
                self.table[hash(&raw[i..])] = i as u32 + 1;
            }
            at += len;
            literals_from = at;
        }
        put_literals(&mut room, &raw[literals_from..])?;
        Some(room.len())
    }
}

fn hash(three: &[u8]) -> usize {
    let word = u32::from_le_bytes([three[0], three[1], three[2], 0]);
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

fn put_literals(room: &mut Room<'_>, literals: &[u8]) -> Option<()> {
    for run in literals.chunks(LITERALS_MAX) {
        room.put(run.len() as u8 - 1)?;
        room.put_all(run)?;
    }
    Some(())
}

fn put_match(room: &mut Room<'_>, distance: usize, len: usize) -> Option<()> {
    let (d, len) = (distance - 1, len - 2);
    room.put(((len.min(7) << 5) | (d >> 8)) as u8)?;
    if len >= 7 {
        room.put((len - 7) as u8)?;
    }
    room.put(d as u8)
}

struct LzfDecoder;

impl Decoder for LzfDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let (mut at, mut end) = (0, 0);
        let byte = |at: &mut usize| {
            let byte = wire.get(*at).copied().ok_or(DecodeError)?;
            *at += 1;
            Ok(usize::from(byte))
        };
        while at < wire.len() {
            let control = byte(&mut at)?;
            if control < LITERALS_MAX {
                let run = wire.get(at..at + control + 1).ok_or(DecodeError)?;
                out.get_mut(end..end + run.len()).ok_or(DecodeError)?.copy_from_slice(run);
                (at, end) = (at + run.len(), end + run.len());
                continue;
            }
            let mut len = (control >> 5) + 2;
            if len == 9 {
                len += byte(&mut at)?;
            }
            let distance = (((control & 31) << 8) | byte(&mut at)?) + 1;
            let from = end.checked_sub(distance).ok_or(DecodeError)?;
            if len > out.len() - end {
                return Err(DecodeError);
            }
            if distance >= len {
                out.copy_within(from..from + len, end);
            } else {
                // The copy may overlap bytes that this match has just written.
                for i in 0..len {
                    out[end + i] = out[from + i];
                }
            }
            end += len;
        }
        Ok(end)
    }
}

pub(crate) const ENTRY: &dyn Codec = &Lzf;

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand from the description in docs/format.md.
    #[test]
    fn streams_are_as_described() {
        let encode = |raw: &[u8]| {
            let mut out = vec![0; 100];
            let len = LzfEncoder { table: vec![0; 1 << HASH_BITS] }.encode(1, &[], raw, &mut out).unwrap();
            out.truncate(len);
            out
        };
        assert_eq!(encode(b"abc"), [&[2][..], b"abc"].concat());
        // Three literals, five bytes from distance 3, two literals.
        assert_eq!(encode(b"abcabcabxy"), [&[2][..], b"abc", &[3 << 5, 2, 1], b"xy"].concat());
        // One literal, then matches of 264, the longest, and of 35 from distance 1.
        assert_eq!(encode(&[7; 300]), [0, 7, 7 << 5, 255, 0, 7 << 5, 26, 0]);
    }

    #[test]
    fn matches_before_the_beginning_and_beyond_the_end_are_errors() {
        let mut out = [0; 8];
        for bad in [&[1 << 5, 0][..], &[0, 7, 1 << 5, 1], &[0, 7, 1 << 5], &[3, 1, 2, 3], &[0, 7, 7 << 5, 9, 0]] {
            assert_eq!(LzfDecoder.decode(&[], bad, &mut out), Err(DecodeError), "{bad:?}");
        }
        assert_eq!(LzfDecoder.decode(&[], &[0, 7, 5 << 5, 0], &mut out), Ok(8));
    }
}
