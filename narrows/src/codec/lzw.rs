//! LZW, for comparisons with older systems: codes of 9 to 12 bits, low bits first, as GIF has them.

use weezl::{BitOrder, LzwStatus};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

const SYMBOL_BITS: u8 = 8;
/// A code of twelve bits for every byte, the clear and end codes, and what the library keeps free.
const EXPANSION: usize = 2;
const EXTRA: usize = 64;

#[derive(Debug)]
pub struct Lzw;

impl Codec for Lzw {
    fn id(&self) -> CodecId {
        CodecId::LZW
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
    fn encoder_memory(&self, _level: Level, raw_len: usize) -> usize {
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
    /// With less room than its worst case the library goes on for ever without progress.
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

impl Decoder for LzwDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        self.0.reset();
        let (mut consumed, mut end) = (0, 0);
        // The end code may stand behind a full output: then there must be nothing before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand from the description in docs/format.md: codes of nine bits, low bits first. 256 clears, then `a` and
    /// 258 (`aa`, which this code defines), then 257 ends: 256 + 97 << 9 + 258 << 18 + 257 << 27.
    #[test]
    fn a_stream_is_as_described() {
        let mut out = [0; 64];
        let len = Lzw.encoder().encode(1, &[], b"aaa", &mut out).unwrap();
        let bits = 256u64 + (97 << 9) + (258 << 18) + (257 << 27);
        assert_eq!(&out[..len], &bits.to_le_bytes()[..5]);
    }
}
