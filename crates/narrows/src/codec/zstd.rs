//! zstd: one frame per block, without magic number, content size, dictionary number and checksum,
//! since our own frame header has all of these.

use zstd_safe::zstd_sys::{ZSTD_estimateCCtxSize_usingCParams, ZSTD_getCParams};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

const LEVELS: &[Level] =
    &[-7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22];

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[
    (-7, 1.98, 0.69),
    (-5, 2.10, 0.72),
    (-3, 2.27, 0.77),
    (-1, 2.51, 0.80),
    (1, 2.61, 0.88),
    (3, 3.22, 0.90),
    (4, 3.85, 0.97),
    (6, 11.6, 0.91),
    (9, 18.5, 0.86),
    (12, 63.4, 0.82),
    (15, 138.0, 0.92),
    (19, 560.0, 0.96),
];

#[derive(Debug)]
pub(super) struct Zstd;

impl Codec for Zstd {
    fn id(&self) -> CodecId {
        CodecId::ZSTD
    }

    fn name(&self) -> &'static str {
        "zstd"
    }

    fn levels(&self) -> &'static [Level] {
        LEVELS
    }

    fn default_level(&self) -> Level {
        3
    }

    fn can_link(&self) -> bool {
        true
    }

    /// The library's own estimate, for a block without history, with 64 KiB and with all of it: it
    /// picks other tables for each, and a context keeps the largest.
    #[allow(unsafe_code, reason = "calls into libzstd")]
    fn encoder_memory(&self, level: Level, raw_len: usize, history_len: usize) -> usize {
        [0, 64 << 10, history_len]
            .map(|history_len| {
                // SAFETY: two functions of plain numbers, without state; a length of 0 would mean
                // "unknown".
                unsafe {
                    let mut parameters = ZSTD_getCParams(level, raw_len.max(1) as u64, history_len);
                    if let Some(log) = hash_log(level, raw_len, history_len) {
                        parameters.hashLog = log;
                    }
                    ZSTD_estimateCCtxSize_usingCParams(parameters)
                }
            })
            .into_iter()
            .fold(0, usize::max)
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        interpolate(SPEEDS, level)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(ZstdEncoder { context: encoder_context(), level: None, hash_log: None })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(ZstdDecoder(decoder_context()))
    }
}

fn encoder_context() -> CCtx<'static> {
    let mut context = CCtx::create();
    for parameter in
        [CParameter::Format(FrameFormat::Magicless), CParameter::ContentSizeFlag(false), CParameter::DictIdFlag(false)]
    {
        context.set_parameter(parameter).expect("zstd knows these parameters");
    }
    context
}

/// Maximum size of a context that is kept. Level 9 with the longest history needs 7 MiB. Only levels
/// from 13 on with long blocks need more; they take so long that making a new context does not
/// matter, while every worker would hold it forever.
const KEPT_MAX: usize = 8 << 20;

/// Levels whose hash table would have more entries than [`HASH_LOG_MAX`] says with a long history.
const LARGE_TABLES: std::ops::RangeInclusive<Level> = 9..=12;
/// Entries of the hash table behind a history, as a power of two. With the library's own 2^21 and
/// 2^22, level 9 with 2 MiB of history takes a third more time, for cache misses, and 13 MiB instead
/// of 7, for 0.1 % fewer bytes.
const HASH_LOG_MAX: u32 = 20;
/// Raw bytes and history together for which the library takes no such tables.
const SMALL_TABLES_MAX: usize = 256 << 10;

/// The size of the hash table, if it is not the library's own.
fn hash_log(level: Level, raw_len: usize, history_len: usize) -> Option<u32> {
    let large = history_len > 0 && raw_len + history_len > SMALL_TABLES_MAX;
    (large && LARGE_TABLES.contains(&level)).then_some(HASH_LOG_MAX)
}

struct ZstdEncoder {
    context: CCtx<'static>,
    /// Current level of the context.
    level: Option<Level>,
    /// Current size of its hash table, if it is not the library's own.
    hash_log: Option<u32>,
}

impl Encoder for ZstdEncoder {
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        if raw.is_empty() {
            return None;
        }
        if self.level != Some(level) {
            let nearest = if level == 0 { 1 } else { level.clamp(LEVELS[0], LEVELS[LEVELS.len() - 1]) };
            self.context.set_parameter(CParameter::CompressionLevel(nearest)).ok()?;
            self.level = Some(level);
        }
        let hash_log = hash_log(level, raw.len(), history.len());
        if self.hash_log != hash_log {
            // 0 is the library's own choice.
            self.context.set_parameter(CParameter::HashLog(hash_log.unwrap_or(0))).ok()?;
            self.hash_log = hash_log;
        }
        // The library learns the length of block and history from these calls and chooses a window
        // and tables no larger than they need.
        let wire_len = if history.is_empty() {
            self.context.compress2(out, raw)
        } else {
            compress_with_prefix(&mut self.context, history, out, raw)
        };
        let wire_len = wire_len.ok();
        if self.context.sizeof() > KEPT_MAX {
            *self = Self { context: encoder_context(), level: None, hash_log: None };
        }
        wire_len
    }
}

/// The context refers to `prefix` only inside this call.
#[allow(unsafe_code, reason = "zstd-safe wants a prefix that outlives the context")]
fn compress_with_prefix(
    context: &mut CCtx<'static>,
    prefix: &[u8],
    out: &mut [u8],
    raw: &[u8],
) -> Result<usize, zstd_safe::ErrorCode> {
    // SAFETY: `lent` leaves this function only inside `context`. A prefix serves one frame:
    // compress2 takes it out of the parameters when it begins, whether it succeeds or not, and is
    // the only call that reads it. The reset after it ends the session also when it failed, so that
    // the next frame starts without a dictionary.
    let lent: &'static [u8] = unsafe { std::slice::from_raw_parts(prefix.as_ptr(), prefix.len()) };
    // A block before that did not fit left its session open, in which no prefix is accepted.
    context.reset(ResetDirective::SessionOnly)?;
    context.ref_prefix(lent)?;
    let result = context.compress2(out, raw);
    context.reset(ResetDirective::SessionOnly)?;
    result
}

struct ZstdDecoder(DCtx<'static>);

fn decoder_context<'a>() -> DCtx<'a> {
    let mut context = DCtx::create();
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).expect("zstd knows this parameter");
    context
}

impl Decoder for ZstdDecoder {
    /// Decodes in one shot: `out` itself is the window, so memory does not depend on what the frame
    /// declares.
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        if !is_one_frame(wire) {
            return Err(DecodeError);
        }
        let raw_len = if history.is_empty() {
            self.0.decompress(out, wire)
        } else if history.starts_with(&DICTIONARY_MAGIC) {
            // The history happens to begin like a trained dictionary. Only this call, which copies
            // tables, can state that it is not one.
            let mut context = decoder_context();
            context.ref_prefix(history).and_then(|_| context.decompress(out, wire))
        } else {
            self.0.decompress_using_dict(out, wire, history)
        };
        raw_len.map_err(|_| DecodeError)
    }
}

const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// Whether `wire` is exactly one frame by its block headers, with the only frame header that our
/// encoder writes: a descriptor of 0 (no content size, checksum or dictionary number) and a window.
/// The library would decode several frames in a row, and any optional field.
fn is_one_frame(wire: &[u8]) -> bool {
    let Some((&[0, _window], mut rest)) = wire.split_first_chunk() else { return false };
    while let Some((&[a, b, c], body)) = rest.split_first_chunk() {
        let header = u32::from_le_bytes([a, b, c, 0]);
        let (is_last, kind, len) = (header & 1 == 1, header >> 1 & 3, (header >> 3) as usize);
        // A block of kind 1 is one byte, repeated `len` times.
        let Some(next) = body.get(if kind == 1 { 1 } else { len }..) else { return false };
        if is_last {
            return next.is_empty();
        }
        rest = next;
    }
    false
}

pub(super) const ENTRY: &dyn Codec = &Zstd;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(history: &[u8], raw: &[u8]) -> Vec<u8> {
        let mut wire = vec![0; raw.len()];
        let len = Zstd.encoder().encode(3, history, raw, &mut wire).unwrap();
        wire.truncate(len);
        wire
    }

    #[test]
    fn a_history_that_looks_like_a_dictionary_is_none() {
        let mut history = DICTIONARY_MAGIC.to_vec();
        history.extend((0..2000_u32).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()));
        let raw = [&history[..], b"and a little more"].concat();
        let wire = encoded(&history, &raw);
        assert!(wire.len() < 100, "{} bytes: the history was not used", wire.len());
        let mut out = vec![0; raw.len()];
        assert_eq!(Zstd.decoder().decode(&history, &wire, &mut out), Ok(raw.len()));
        assert_eq!(out, raw);
    }

    #[test]
    fn a_prefix_serves_one_block() {
        let raw: Vec<u8> = (0..1000_u32).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let history = raw.clone();
        let mut encoder = Zstd.encoder();
        let mut out = vec![0; raw.len() - 1];
        assert!(encoder.encode(1, &history, &raw, &mut out).unwrap() < 100);
        assert_eq!(encoder.encode(1, &history, &raw, &mut out[..10]), None);
        assert_eq!(encoder.encode(1, &[], &raw, &mut out), None);
        let linked = encoder.encode(1, &history, &raw, &mut out);
        assert!(linked.is_some_and(|len| len < 100), "{linked:?}: a block that did not fit spoils the next");
    }

    #[test]
    fn a_second_frame_is_refused() {
        let raw = [7; 5000];
        let wire = encoded(&[], &raw);
        let mut out = [0; 10_000];
        let mut decoder = Zstd.decoder();
        assert_eq!(decoder.decode(&[], &wire, &mut out), Ok(5000));
        assert_eq!(decoder.decode(&[], &[&wire[..], &wire[..]].concat(), &mut out), Err(DecodeError));
        assert_eq!(decoder.decode(&[], &[&wire[..], &[0, 0x58, 1, 0, 0]].concat(), &mut out), Err(DecodeError));
    }
}
