//! Snappy, raw format: about as fast as LZ4 to encode, slower to decode; kept for comparison and
//! for unusual data.

use snap::raw;

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

#[derive(Debug)]
pub(super) struct Snappy;

impl Codec for Snappy {
    fn id(&self) -> CodecId {
        CodecId::SNAPPY
    }

    fn name(&self) -> &'static str {
        "snappy"
    }

    fn levels(&self) -> &'static [Level] {
        &[0]
    }

    fn default_level(&self) -> Level {
        0
    }

    /// The hash tables (a small and a large one) and the scratch buffer.
    fn encoder_memory(&self, _level: Level, raw_len: usize, _history_len: usize) -> usize {
        (2 << 10) + (32 << 10) + raw::max_compress_len(raw_len)
    }

    fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
        (1.75, 0.67)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(SnappyEncoder { inner: raw::Encoder::new(), scratch: Vec::new() })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(SnappyDecoder(raw::Decoder::new()))
    }
}

struct SnappyEncoder {
    inner: raw::Encoder,
    /// The encoder requires room for its worst case, which `out` does not have.
    scratch: Vec<u8>,
}

impl Encoder for SnappyEncoder {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let worst_len = raw::max_compress_len(raw.len());
        if self.scratch.len() < worst_len {
            self.scratch.resize(worst_len, 0);
        }
        let wire_len = self.inner.compress(raw, &mut self.scratch).ok()?;
        out.get_mut(..wire_len)?.copy_from_slice(&self.scratch[..wire_len]);
        Some(wire_len)
    }
}

struct SnappyDecoder(raw::Decoder);

impl Decoder for SnappyDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        self.0.decompress(wire, out).map_err(|_| DecodeError)
    }
}

pub(super) const ENTRY: &dyn Codec = &Snappy;
