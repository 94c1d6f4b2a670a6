//! `constant`: encodes a block of one repeated byte as that byte.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

#[derive(Debug)]
pub(super) struct Constant;

impl Codec for Constant {
    fn id(&self) -> CodecId {
        CodecId::CONSTANT
    }

    fn name(&self) -> &'static str {
        "constant"
    }

    fn levels(&self) -> &'static [Level] {
        &[0]
    }

    fn default_level(&self) -> Level {
        0
    }

    fn encoder_memory(&self, _level: Level, _raw_len: usize, _history_len: usize) -> usize {
        0
    }

    fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
        (0.06, 0.05)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Context)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Context)
    }
}

struct Context;

impl Encoder for Context {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let (&first, rest) = raw.split_first()?;
        // All bytes are equal if each is equal to the one before it: one comparison of memory,
        // which ends at the first difference.
        let is_constant = raw[..rest.len()] == *rest;
        *out.first_mut().filter(|_| is_constant)? = first;
        Some(1)
    }
}

impl Decoder for Context {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let &[byte] = wire else { return Err(DecodeError) };
        out.fill(byte);
        Ok(out.len())
    }
}

pub(super) const ENTRY: &dyn Codec = &Constant;
