//! bzip2: block sorting. Slow in both directions, and the best codec for text and logs on slow
//! links.

use ::bzip2::{Action, Compress, Compression, Decompress, Status};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[(1, 84.0, 25.0), (9, 84.5, 25.0)];

const LEVEL_MAX: Level = 9;

/// Bytes of one sorted block, per level.
const SORTED_LEN: usize = 100_000;

#[derive(Debug)]
pub(super) struct Bzip2;

impl Codec for Bzip2 {
    fn id(&self) -> CodecId {
        CodecId::BZIP2
    }

    fn name(&self) -> &'static str {
        "bzip2"
    }

    fn levels(&self) -> &'static [Level] {
        &[1, 2, 3, 4, 5, 6, 7, 8, 9]
    }

    fn default_level(&self) -> Level {
        LEVEL_MAX
    }

    /// By the format's description: a fixed part and eight bytes per byte of the sorted block.
    fn encoder_memory(&self, level: Level, raw_len: usize, _history_len: usize) -> usize {
        400_000 + 8 * SORTED_LEN * sufficient_level(raw_len).min(level.max(1)) as usize
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        interpolate(SPEEDS, level)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Context)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Context)
    }
}

/// The lowest level at which `raw_len` bytes are sorted as one block. A higher one would only cost
/// memory, at both ends.
fn sufficient_level(raw_len: usize) -> Level {
    // The first of its passes can make data longer; the margin is enough for all but contrived runs
    // of four.
    let sorted_len = raw_len + raw_len / 16;
    sorted_len.div_ceil(SORTED_LEN).clamp(1, LEVEL_MAX as usize) as Level
}

/// Holds no state: the library cannot reuse it.
struct Context;

impl Encoder for Context {
    fn encode(&mut self, level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let level = sufficient_level(raw.len()).min(level.max(1));
        let mut inner = Compress::new(Compression::new(level as u32), 0);
        let status = inner.compress(raw, out, Action::Finish).ok()?;
        (status == Status::StreamEnd).then(|| inner.total_out() as usize)
    }
}

impl Decoder for Context {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        // The level in the header decides how much memory the decoder takes, so it must be one that
        // our encoder chooses for this length.
        let level_max = b'0' + sufficient_level(out.len()) as u8;
        if !matches!(wire, [b'B', b'Z', b'h', b'1'..=b'9', ..]) || wire[3] > level_max {
            return Err(DecodeError);
        }
        let mut inner = Decompress::new(false);
        loop {
            let (read, written) = (inner.total_in() as usize, inner.total_out() as usize);
            match inner.decompress(&wire[read..], &mut out[written..]).map_err(|_| DecodeError)? {
                Status::StreamEnd if inner.total_in() == wire.len() as u64 => return Ok(inner.total_out() as usize),
                // With `out` just full, a further call reads the end of the stream.
                Status::Ok if (inner.total_in() as usize, inner.total_out() as usize) != (read, written) => {}
                _ => return Err(DecodeError),
            }
        }
    }
}

pub(super) const ENTRY: &dyn Codec = &Bzip2;
