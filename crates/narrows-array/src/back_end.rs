//! Back ends: words or bytes to fewer bytes, by the engine's codecs or pco.

use std::fmt;
use std::hint::black_box;
use std::sync::Once;

use narrows::codec::{CodecId, Contexts};
use narrows::{Error, Result};
use pco::wrapped::{FileCompressor, FileDecompressor};
use pco::{ChunkConfig, DeltaSpec, ModeSpec, PagingSpec};

use crate::step::Stage;
use crate::words::{Kind, Reader, Word, Words, put_varint};

/// What ends a pipeline. Levels are the encoder's affair and not in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackEnd {
    /// The bytes as they are.
    Store,
    /// LZ4.
    Lz4,
    /// zstd at a level.
    Zstd(i32),
    /// LZMA2 at a level.
    Xz(i32),
    /// pco at a level.
    Pco(u8),
    /// A pipeline for each column.
    Columns,
}

impl BackEnd {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Store => 0,
            Self::Lz4 => 1,
            Self::Zstd(_) => 2,
            Self::Xz(_) => 3,
            Self::Pco(_) => 4,
            Self::Columns => 15,
        }
    }

    pub(crate) fn from_number(number: u8) -> Result<Self> {
        Ok(match number {
            0 => Self::Store,
            1 => Self::Lz4,
            2 => Self::Zstd(3),
            3 => Self::Xz(6),
            4 => Self::Pco(8),
            15 => Self::Columns,
            _ => {
                return Err(Error::unsupported(format!(
                    "back end {number} is unknown: the chunk is damaged, or of a newer version of Narrows"
                )));
            }
        })
    }

    fn codec(self) -> Option<(CodecId, i32)> {
        match self {
            Self::Lz4 => Some((CodecId::LZ4, -1)),
            Self::Zstd(level) => Some((CodecId::ZSTD, level)),
            Self::Xz(level) => Some((CodecId::XZ, level)),
            _ => None,
        }
    }
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str("store"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd {level}"),
            Self::Xz(level) => write!(f, "xz {level}"),
            Self::Pco(level) => write!(f, "pco {level}"),
            Self::Columns => f.write_str("columns"),
        }
    }
}

/// Words of a section of pco: a chunk of its format has at most 2^24, and its buffers are several times
/// as long as the words.
const SECTION: usize = 1 << 20;

/// Header of the pco format that chunks contain: version 4.1.
const PCO_HEADER: [u8; 2] = [4, 1];

/// Largest look-back window that pco's encoder uses, as a power of two.
const WINDOW_LOG_MAX: u32 = 15;

/// The C library of most systems gives memory back with every longer vector that ends, and gets it again
/// page by page, which took a third of the time of encoding. It learns from a vector of this length that
/// such ones come and go, and from then on keeps as much as was in use: 32 MiB is its limit for that.
const KEPT: usize = (32 << 20) - (64 << 10);

fn keep_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut vector = Vec::<u8>::new();
        // Where there is no such room, nothing changes.
        let _ = vector.try_reserve_exact(KEPT);
        drop(black_box(vector));
    });
}

/// Contexts of one thread.
pub(crate) struct Coders {
    contexts: Contexts,
    scratch: Vec<u8>,
    /// Bytes of the last encoding that do not grow with the number of words.
    pub(crate) fixed_len: usize,
}

impl Default for Coders {
    fn default() -> Self {
        keep_memory();
        Self { contexts: Contexts::default(), scratch: Vec::new(), fixed_len: 0 }
    }
}

impl Coders {
    /// Appends the encoding; `None` if it is not shorter than the raw bytes, or does not apply.
    pub(crate) fn encode(
        &mut self,
        back_end: BackEnd,
        differences: bool,
        words: Words,
        kind: Kind,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        self.fixed_len = 0;
        match back_end {
            BackEnd::Store => out.extend(words.into_bytes(Default::default())),
            BackEnd::Pco(level) => self.fixed_len = pco_encode(words, kind, level, differences, out)?,
            _ => {
                let (id, level) = back_end.codec()?;
                let raw = words.into_bytes(Default::default());
                let codec = id.codec()?;
                self.scratch.resize(raw.len().max(64), 0);
                let len = self.contexts.encoder(codec).encode(level, &[], &raw, &mut self.scratch)?;
                out.extend(&self.scratch[..len]);
            }
        }
        Some(())
    }

    /// Decodes to exactly the words of `stage`.
    pub(crate) fn decode(&mut self, back_end: BackEnd, body: &[u8], stage: &Stage) -> Result<Words> {
        match back_end {
            BackEnd::Store if body.len() == stage.bytes() => Ok(Words::read(body, stage.width, Default::default())),
            BackEnd::Pco(_) => pco_decode(body, stage),
            _ => {
                let Some((id, _)) = back_end.codec() else {
                    return Err(Error::corrupt("stored bytes of the wrong length"));
                };
                let raw = self.expand(id, body, stage.bytes())?;
                Ok(if stage.width == 1 { Words::W1(raw) } else { Words::read(&raw, stage.width, Default::default()) })
            }
        }
    }

    fn expand(&mut self, id: CodecId, body: &[u8], len: usize) -> Result<Vec<u8>> {
        let codec = id.codec().ok_or_else(|| Error::unsupported("this build lacks the chunk's codec"))?;
        let mut raw = vec![0; len];
        match self.contexts.decoder(codec).decode(&[], body, &mut raw) {
            Ok(n) if n == len => Ok(raw),
            _ => Err(Error::corrupt("a body does not decode")),
        }
    }

    /// Writes a block of side data.
    pub(crate) fn write_block(&mut self, content: &[u8], out: &mut Vec<u8>) {
        let mut wire = vec![0; content.len()];
        let codec = CodecId::ZSTD.codec().expect("zstd is always there");
        let (kind, wire) = match self.contexts.encoder(codec).encode(9, &[], content, &mut wire) {
            Some(len) if len < content.len() => (1, &wire[..len]),
            _ => (0, content),
        };
        out.push(kind);
        put_varint(out, wire.len() as u64);
        out.extend(wire);
    }

    /// Reads a block of side data that decodes to `len` bytes.
    pub(crate) fn read_block(&mut self, reader: &mut Reader<'_>, len: usize) -> Result<Vec<u8>> {
        let kind = reader.byte()?;
        let wire_len = reader.count(len, "length of a block")?;
        let wire = reader.take(wire_len)?;
        match kind {
            0 if wire.len() == len => Ok(wire.to_vec()),
            1 => self.expand(CodecId::ZSTD, wire, len),
            _ => Err(Error::corrupt("a block of an unknown kind or the wrong length")),
        }
    }
}

/// Runs pco's generic code for the number type of some words.
macro_rules! numbers {
    ($words:expr, $kind:expr, $v:ident: $type:ident => $body:expr) => {
        match ($words, $kind) {
            (Words::W1($v), _) => {
                type $type = u8;
                $body
            }
            (Words::W2($v), Kind::Signed) => {
                type $type = i16;
                $body
            }
            (Words::W2($v), _) => {
                type $type = u16;
                $body
            }
            (Words::W4($v), Kind::Signed) => {
                type $type = i32;
                $body
            }
            (Words::W4($v), Kind::Unsigned) => {
                type $type = u32;
                $body
            }
            (Words::W4($v), Kind::Float) => {
                type $type = f32;
                $body
            }
            (Words::W8($v), Kind::Signed) => {
                type $type = i64;
                $body
            }
            (Words::W8($v), Kind::Unsigned) => {
                type $type = u64;
                $body
            }
            (Words::W8($v), Kind::Float) => {
                type $type = f64;
                $body
            }
        }
    };
}

/// Words as numbers of pco.
trait Number<W>: pco::data_types::Number {
    fn of(word: W) -> Self;
    fn bits(self) -> W;
}

macro_rules! number {
    ($($type:ty, $word:ty, $n:ident => $of:expr, $bits:expr;)*) => {$(
        impl Number<$word> for $type {
            #[inline]
            fn of($n: $word) -> Self { $of }
            #[inline]
            fn bits(self) -> $word { let $n = self; $bits }
        }
    )*};
}

number! {
    u8, u8, n => n, n;
    u16, u16, n => n, n;
    i16, u16, n => n as Self, n as u16;
    u32, u32, n => n, n;
    i32, u32, n => n as Self, n as u32;
    f32, u32, n => Self::from_bits(n), n.to_bits();
    u64, u64, n => n, n;
    i64, u64, n => n as Self, n as u64;
    f64, u64, n => Self::from_bits(n), n.to_bits();
}

/// Returns the bytes of bins.
fn pco_encode(words: Words, kind: Kind, level: u8, differences: bool, out: &mut Vec<u8>) -> Option<usize> {
    fn encode<W: Word, N: Number<W>>(v: Vec<W>, config: &ChunkConfig, out: &mut Vec<u8>) -> Option<usize> {
        let mut bins = 0;
        for section in v.chunks(SECTION) {
            let numbers: Vec<N> = section.iter().map(|&w| N::of(w)).collect();
            let config = config.clone().with_paging_spec(PagingSpec::Exact(vec![numbers.len()]));
            let mut wire = PCO_HEADER.to_vec();
            let mut compressor = FileCompressor::default().chunk_compressor::<N>(&numbers, &config).ok()?;
            compressor.write_meta(&mut wire).ok()?;
            bins += wire.len();
            compressor.write_page(0, &mut wire).ok()?;
            put_varint(out, wire.len() as u64);
            out.extend(wire);
        }
        Some(bins)
    }
    let mut config = ChunkConfig::default().with_compression_level(level.into()).with_enable_8_bit(true);
    if differences {
        config = config.with_mode_spec(ModeSpec::Classic).with_delta_spec(DeltaSpec::NoOp);
    }
    numbers!(words, kind, v: N => encode::<_, N>(v, &config, out))
}

fn pco_decode(body: &[u8], stage: &Stage) -> Result<Words> {
    fn decode<W: Word, N: Number<W>>(body: &[u8], len: usize) -> Result<Words> {
        let corrupt = || Error::corrupt("a body of pco does not decode");
        let mut reader = Reader(body);
        let mut numbers = vec![N::of(W::default()); len];
        for section in numbers.chunks_mut(SECTION) {
            let wire_len = reader.count(reader.0.len(), "length of a section")?;
            let wire = reader.take(wire_len)?;
            if !has_modest_memory(wire, W::BITS) {
                return Err(corrupt());
            }
            let (file, rest) = FileDecompressor::new(wire).map_err(|_| corrupt())?;
            let (mut chunk, rest) = file.chunk_decompressor::<N, _>(rest).map_err(|_| corrupt())?;
            let mut page = chunk.page_decompressor(rest, section.len()).map_err(|_| corrupt())?;
            let progress = page.read(section).map_err(|_| corrupt())?;
            if !progress.finished || progress.n_processed != section.len() || !page.into_src().is_empty() {
                return Err(corrupt());
            }
        }
        if !reader.0.is_empty() {
            return Err(corrupt());
        }
        // In place: both have the same length.
        Ok(W::wrap(numbers.into_iter().map(N::bits).collect()))
    }
    let len = stage.len();
    match (stage.width, stage.kind) {
        (1, _) => decode::<u8, u8>(body, len),
        (2, Kind::Signed) => decode::<u16, i16>(body, len),
        (2, _) => decode::<u16, u16>(body, len),
        (4, Kind::Signed) => decode::<u32, i32>(body, len),
        (4, Kind::Unsigned) => decode::<u32, u32>(body, len),
        (4, Kind::Float) => decode::<u32, f32>(body, len),
        (_, Kind::Signed) => decode::<u64, i64>(body, len),
        (_, Kind::Unsigned) => decode::<u64, u64>(body, len),
        (_, Kind::Float) => decode::<u64, f64>(body, len),
    }
}

/// Refuses what allocates more than its bytes have earned, before pco reads it: dictionaries (mode 4)
/// and long look-back windows. Fields are bits, the lowest first: mode (4), its parameters, kind of
/// differences (4), and for look-back the window's logarithm less one (5).
fn has_modest_memory(wire: &[u8], bits: u32) -> bool {
    if !wire.starts_with(&PCO_HEADER) {
        return false;
    }
    let mut head = [0; 16];
    head.iter_mut().zip(&wire[2..]).for_each(|(h, b)| *h = *b);
    let head = u128::from_le_bytes(head);
    let parameters = match head & 15 {
        0 => 0,
        1 | 2 => bits,
        3 => 8,
        _ => return false,
    };
    let differences = head >> (4 + parameters);
    differences & 15 != 2 || ((differences >> 4 & 31) as u32) < WINDOW_LOG_MAX
}
