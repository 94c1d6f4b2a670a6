//! xz: raw LZMA2, a stream of one filter without the container of .xz files, since our frames carry
//! length and check.

use liblzma::stream::{Action, Filters, LzmaOptions, Status, Stream};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[(0, 39.4, 9.3), (3, 52.0, 8.7), (6, 260.0, 8.9), (9, 265.0, 8.9)];

const LEVEL_MAX: Level = 9;

/// The smallest dictionary that the library accepts.
const DICTIONARY_MIN: usize = 4096;

#[derive(Debug)]
pub(super) struct Xz;

impl Codec for Xz {
    fn id(&self) -> CodecId {
        CodecId::XZ
    }

    fn name(&self) -> &'static str {
        "xz"
    }

    fn levels(&self) -> &'static [Level] {
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    }

    fn default_level(&self) -> Level {
        6
    }

    /// As the library computes it: dictionary and match chains by the dictionary's length, the hash
    /// table by the next power of two, and a fixed part for lookahead, prices and output.
    fn encoder_memory(&self, level: Level, raw_len: usize, _history_len: usize) -> usize {
        let dictionary = dictionary_len(level, raw_len);
        let hash = 4 * dictionary.next_power_of_two().max(64 << 10);
        let chains = if level < 4 { 4 } else { 8 };
        (2 << 20) + dictionary + dictionary / 2 + chains * dictionary + hash
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

/// Length of the dictionary for a block: the block's own, rounded up to pages, or the preset's if
/// that is less.
fn dictionary_len(level: Level, raw_len: usize) -> usize {
    let preset_len = match level {
        ..=0 => 256 << 10,
        1 => 1 << 20,
        2 => 2 << 20,
        3 | 4 => 4 << 20,
        5 | 6 => 8 << 20,
        7 => 16 << 20,
        8 => 32 << 20,
        _ => 64 << 20,
    };
    raw_len.next_multiple_of(DICTIONARY_MIN).clamp(DICTIONARY_MIN, preset_len)
}

fn filters(level: Level, raw_len: usize) -> Option<Filters> {
    let level = level.clamp(0, LEVEL_MAX);
    let mut options = LzmaOptions::new_preset(level as u32).ok()?;
    options.dict_size(dictionary_len(level, raw_len) as u32);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    Some(filters)
}

/// Holds no state: the library's wrapper cannot reuse it.
struct Context;

impl Encoder for Context {
    fn encode(&mut self, level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut stream = Stream::new_raw_encoder(&filters(level, raw.len())?).ok()?;
        let status = stream.process(raw, out, Action::Finish).ok()?;
        (status == Status::StreamEnd).then(|| stream.total_out() as usize)
    }
}

impl Decoder for Context {
    /// The stream states no dictionary length. We set it from the length of `out`, which bounds the
    /// decoder's memory.
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let filters = filters(LEVEL_MAX, out.len()).ok_or(DecodeError)?;
        let mut stream = Stream::new_raw_decoder(&filters).map_err(|_| DecodeError)?;
        loop {
            let (read, written) = (stream.total_in() as usize, stream.total_out() as usize);
            match stream.process(&wire[read..], &mut out[written..], Action::Finish).map_err(|_| DecodeError)? {
                Status::StreamEnd if stream.total_in() == wire.len() as u64 => return Ok(stream.total_out() as usize),
                // With `out` just full, a further call reads the end mark.
                Status::Ok if (stream.total_in() as usize, stream.total_out() as usize) != (read, written) => {}
                _ => return Err(DecodeError),
            }
        }
    }
}

pub(super) const ENTRY: &dyn Codec = &Xz;
