//! zlib's Deflate, raw: without zlib's header and checksum, since our frames carry their own check.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[(1, 6.0, 2.0), (6, 14.5, 1.8), (9, 60.0, 1.8)];

#[derive(Debug)]
pub(super) struct Zlib;

impl Codec for Zlib {
    fn id(&self) -> CodecId {
        CodecId::ZLIB
    }

    fn name(&self) -> &'static str {
        "zlib"
    }

    fn levels(&self) -> &'static [Level] {
        &[1, 2, 3, 4, 5, 6, 7, 8, 9]
    }

    fn default_level(&self) -> Level {
        6
    }

    /// Window, hash chains and heads and the pending output, all for the largest window.
    fn encoder_memory(&self, _level: Level, _raw_len: usize, _history_len: usize) -> usize {
        (64 << 10) + (64 << 10) + (128 << 10) + (64 << 10) + (16 << 10)
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        interpolate(SPEEDS, level)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        let level = self.default_level();
        Box::new(ZlibEncoder { inner: Compress::new(compression(level), false), level })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(ZlibDecoder(Decompress::new(false)))
    }
}

struct ZlibEncoder {
    inner: Compress,
    level: Level,
}

fn compression(level: Level) -> Compression {
    Compression::new(level.clamp(1, 9) as u32)
}

impl Encoder for ZlibEncoder {
    fn encode(&mut self, level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        self.inner.reset();
        if self.level != level {
            self.inner.set_level(compression(level)).ok()?;
            self.level = level;
        }
        let status = self.inner.compress(raw, out, FlushCompress::Finish).ok()?;
        if status != Status::StreamEnd {
            // A reset does not clear all state of an abandoned stream, over which zlib-rs 0.6
            // panics later.
            self.inner = Compress::new(compression(level), false);
            return None;
        }
        Some(self.inner.total_out() as usize)
    }
}

struct ZlibDecoder(Decompress);

impl Decoder for ZlibDecoder {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        self.0.reset(false);
        let status = self.0.decompress(wire, out, FlushDecompress::Finish).map_err(|_| DecodeError)?;
        let is_whole = status == Status::StreamEnd && self.0.total_in() == wire.len() as u64;
        if is_whole { Ok(self.0.total_out() as usize) } else { Err(DecodeError) }
    }
}

pub(super) const ENTRY: &dyn Codec = &Zlib;
