//! `store`: raw bytes, not encoded.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};

#[derive(Debug)]
pub(super) struct Store;

impl Codec for Store {
    fn id(&self) -> CodecId {
        CodecId::STORE
    }

    fn name(&self) -> &'static str {
        "store"
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
        (0.07, 0.07)
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
        out.get_mut(..raw.len())?.copy_from_slice(raw);
        Some(raw.len())
    }
}

impl Decoder for Context {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        out.get_mut(..wire.len()).ok_or(DecodeError)?.copy_from_slice(wire);
        Ok(wire.len())
    }
}

pub(super) const ENTRY: &dyn Codec = &Store;
