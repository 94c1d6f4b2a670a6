//! LZW: codes of 9 to 12 bits, low bits first, as in GIF.

use narrows::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};
use weezl::{BitOrder, LzwStatus};

const SYMBOL_BITS: u8 = 8;
/// Worst case: a code of twelve bits for every byte, the clear and end codes, and the library's own
/// margin.
const EXPANSION: usize = 2;
const EXTRA: usize = 64;

#[derive(Debug)]
struct Lzw;

impl Codec for Lzw {
    fn id(&self) -> CodecId {
        crate::LZW
    }

    fn name(&self) -> &'static str {
        "lzw"
    }

    fn levels(&self) -> &'static [Level] {
        &[1]
    }

    fn default_level(&self) -> Level {
        1
    }

    /// The tree of 4,096 codes (some have a node of 256 children) and the scratch buffer.
    fn encoder_memory(&self, _level: Level, raw_len: usize, _history_len: usize) -> usize {
        (512 << 10) + EXPANSION * raw_len + EXTRA
    }

    fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
        (18.0, 5.0)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        let inner = weezl::encode::Encoder::new(BitOrder::Lsb, SYMBOL_BITS);
        Box::new(LzwEncoder { inner, scratch: Vec::new() })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(LzwDecoder(weezl::decode::Decoder::new(BitOrder::Lsb, SYMBOL_BITS)))
    }
}

struct LzwEncoder {
    inner: weezl::encode::Encoder,
    /// With less room than for its worst case the library loops forever without progress.
    scratch: Vec<u8>,
}

impl Encoder for LzwEncoder {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let worst_len = EXPANSION * raw.len() + EXTRA;
        if self.scratch.len() < worst_len {
            self.scratch.resize(worst_len, 0);
        }
        self.inner.reset();
        self.inner.finish();
        let (mut consumed, mut wire_len) = (0, 0);
        loop {
            let step = self.inner.encode_bytes(&raw[consumed..], &mut self.scratch[wire_len..]);
            (consumed, wire_len) = (consumed + step.consumed_in, wire_len + step.consumed_out);
            match step.status.ok()? {
                LzwStatus::Done => break,
                LzwStatus::Ok if step.consumed_in + step.consumed_out > 0 => {}
                _ => return None,
            }
        }
        out.get_mut(..wire_len)?.copy_from_slice(&self.scratch[..wire_len]);
        Some(wire_len)
    }
}

struct LzwDecoder(weezl::decode::Decoder);

const CLEAR: usize = 256;
const END: usize = 257;
const WIDTH_MIN: u32 = 9;
const WIDTH_MAX: u32 = 12;
/// Number of codes from a clear code until the dictionary is full; the first one defines no entry.
const FULL: usize = (1 << WIDTH_MAX) - (END + 1) + 1;

/// Whether the codes clear, define and end where they must (docs/format.md, section 5.1).
///
/// The library itself checks less, depending on its buffer of eight bytes: it accepts some bytes
/// after the end code, and any number of clear codes, each of which costs it 256 writes.
fn is_in_order(wire: &[u8]) -> bool {
    let (mut bit, end_bit) = (0, 8 * wire.len());
    // A code, and the bits after it in the four bytes that it begins in.
    let mut next = |width: u32| {
        let bytes = wire.get(bit / 8..)?;
        let mut word = [0; 4];
        match bytes.first_chunk() {
            Some(four) => word = *four,
            None => word[..bytes.len()].copy_from_slice(bytes),
        }
        let word = u32::from_le_bytes(word) >> (bit % 8);
        bit += width as usize;
        Some((word as usize & ((1 << width) - 1), word >> width, end_bit.checked_sub(bit)?))
    };
    if next(WIDTH_MIN).is_none_or(|(code, ..)| code != CLEAR) {
        return false;
    }
    // Codes since the last clear code.
    let mut codes = 0;
    while let Some((code, behind, bits_left)) = next(width(codes)) {
        match code {
            END => return codes > 0 && bits_left < 8 && behind == 0,
            CLEAR if codes == FULL => codes = 0,
            CLEAR => return false,
            _ if codes == FULL => return false,
            _ => codes += 1,
        }
    }
    false
}

/// Width in bits of the code after this many others: enough for the entry that it defines.
fn width(codes: usize) -> u32 {
    (END + codes).ilog2().clamp(WIDTH_MIN - 1, WIDTH_MAX - 1) + 1
}

impl Decoder for LzwDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        if !is_in_order(wire) {
            return Err(DecodeError);
        }
        self.0.reset();
        let (mut consumed, mut end) = (0, 0);
        // The end code may follow a full output; then there must be nothing before it.
        let mut beyond = [0];
        loop {
            let is_full = end == out.len();
            let room = if is_full { &mut beyond[..] } else { &mut out[end..] };
            let step = self.0.decode_bytes(&wire[consumed..], room);
            if is_full && step.consumed_out > 0 {
                return Err(DecodeError);
            }
            (consumed, end) = (consumed + step.consumed_in, end + step.consumed_out);
            match step.status.map_err(|_| DecodeError)? {
                LzwStatus::Done if consumed == wire.len() => return Ok(end),
                LzwStatus::Ok if step.consumed_in + step.consumed_out > 0 => {}
                _ => return Err(DecodeError),
            }
        }
    }
}

pub(crate) const ENTRY: &dyn Codec = &Lzw;

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand from the description in docs/format.md: codes of nine bits, low bits first.
    /// 256 clears, then `a` and 258 (`aa`, which this code defines), then 257 ends: 256 + 97 << 9 +
    /// 258 << 18 + 257 << 27.
    #[test]
    fn a_stream_is_as_described() {
        let mut out = [0; 64];
        let len = Lzw.encoder().encode(1, &[], b"aaa", &mut out).unwrap();
        let bits = 256u64 + (97 << 9) + (258 << 18) + (257 << 27);
        assert_eq!(&out[..len], &bits.to_le_bytes()[..5]);
    }

    /// Codes in their widths, low bits first.
    fn wire(codes: &[usize]) -> Vec<u8> {
        let (mut wire, mut bits, mut count, mut since) = (Vec::new(), 0u64, 0, 0);
        for &code in codes {
            bits |= (code as u64) << count;
            count += width(since);
            since = if code == CLEAR { 0 } else { since + 1 };
            while count >= 8 {
                wire.push(bits as u8);
                (bits, count) = (bits >> 8, count - 8);
            }
        }
        if count > 0 {
            wire.push(bits as u8);
        }
        wire
    }

    fn decode(wire: &[u8], raw_len: usize) -> Result<Vec<u8>, DecodeError> {
        let mut out = vec![0; raw_len];
        let len = Lzw.decoder().decode(&[], wire, &mut out)?;
        out.truncate(len);
        Ok(out)
    }

    #[test]
    fn codes_are_where_they_must_be() {
        assert_eq!(decode(&wire(&[CLEAR, 97, 258, END]), 3).unwrap(), b"aaa");
        // Cases in which the library's verdict depends on the position of the bytes in its buffer,
        // at every position.
        for len in 0..40 {
            let text = vec![98; len];
            let with = |more: &[usize]| wire(&[&[CLEAR], &text[..], more].concat());
            assert!(decode(&with(&[97, END]), 100).is_ok());
            assert!(decode(&with(&[CLEAR, 97, END]), 100).is_err(), "a clearing of what is not full");
            assert!(decode(&with(&[CLEAR, CLEAR, 97, END]), 100).is_err());
            assert!(decode(&with(&[97]), 100).is_err(), "no end");
            for more in 1..10 {
                let behind = [with(&[97, END]), vec![0; more]].concat();
                assert!(decode(&behind, 100).is_err(), "{more} bytes behind the end");
            }
        }
        assert!(decode(&wire(&[97, END]), 1).is_err(), "no clearing first");
        assert!(decode(&wire(&[CLEAR, END]), 1).is_err(), "nothing");
        assert!(decode(&[], 1).is_err());
        let mut padded = wire(&[CLEAR, 97, END]);
        *padded.last_mut().unwrap() |= 0x80;
        assert!(decode(&padded, 1).is_err(), "the rest of the last byte is 0");
        // 256 writes for nine bits: a megabyte of clearings would take as long as decoding 60.
        assert!(decode(&wire(&[CLEAR; 1 << 16]), 100).is_err());
    }

    #[test]
    fn a_full_dictionary_is_cleared_and_nothing_else() {
        let full = [&[CLEAR], &vec![97; FULL][..]].concat();
        assert!(decode(&wire(&[&full[..], &[END]].concat()), 9000).is_ok());
        assert!(decode(&wire(&[&full[..], &[CLEAR, 97, END]].concat()), 9000).is_ok());
        assert!(decode(&wire(&[&full[..], &[97, END]].concat()), 9000).is_err());
        assert!(decode(&wire(&[&full[..], &[CLEAR, END]].concat()), 9000).is_err());
        // The encoder's output around the points where codes become wider and where the dictionary
        // is full. The input is noise, of which almost every byte is a code of its own.
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let raw: Vec<u8> = (0..9000).map(|_| draw()).collect();
        let mut out = vec![0; 20_000];
        for len in (200..300).chain(700..800).chain(3700..4000).chain([9000]) {
            let wire_len = Lzw.encoder().encode(1, &[], &raw[..len], &mut out).unwrap();
            assert_eq!(decode(&out[..wire_len], len).unwrap(), &raw[..len], "{len}");
        }
    }
}
