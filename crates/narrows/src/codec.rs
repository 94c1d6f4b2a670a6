//! Codecs behind one object-safe trait, and the registry of all of them.
//!
//! A codec turns one block into fewer bytes and back. It knows nothing of frames, links or
//! policies. Its contexts are owned by a worker and reused for every block. Each codec has one file
//! under `codec/`, all of the same shape. The tests of `tests/codecs.rs` and the fuzz targets run
//! for every codec in [`CODECS`]. Those of one flow are a value, [`Codecs`], which may have codecs of
//! other crates.

use std::any::{Any, TypeId};
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

mod codecs;
mod dictionary;
mod liblz4;
mod trial;

/// Declares the file of each codec and lists their entries.
macro_rules! codecs {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// Every codec of this build, which [`Codecs`] has by default.
        pub const CODECS: &[&dyn Codec] = &[$($name::ENTRY),*];
    };
}

// One line for each codec, in the order of the help texts.
codecs! {
    store,
    constant,
    lz4,
    zstd,
    zlib,
    bzip2,
    xz,
    snappy,
    split,
    lepton,
    base64,
}

pub use self::codecs::Codecs;
pub use self::dictionary::{
    DICTIONARY_MAX, DICTIONARY_MIN, DICTIONARY_TRAINED_MIN, Dictionary, DictionaryContexts, train,
};
pub use self::liblz4::LinkedTable;
pub use self::trial::Trial;

/// Number of a codec on the wire, 0 to 63 (docs/format.md, section 5). Numbers are never reused: a
/// retired codec keeps its own. If only the codec's own file needs the number, its constant is
/// there and not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodecId(pub u8);

impl CodecId {
    /// Raw bytes, not encoded.
    pub const STORE: Self = Self(0);
    /// A block of one repeated byte.
    pub const CONSTANT: Self = Self(1);
    /// LZ4 block format.
    pub const LZ4: Self = Self(2);
    /// Zstandard.
    pub const ZSTD: Self = Self(3);
    /// Deflate without zlib's header and checksum.
    pub const ZLIB: Self = Self(4);
    /// bzip2.
    pub const BZIP2: Self = Self(5);
    /// Raw LZMA2, without the .xz container.
    pub const XZ: Self = Self(6);
    /// Snappy, raw format.
    pub const SNAPPY: Self = Self(7);
    /// JPEG images, recompressed without loss.
    pub const LEPTON: Self = Self(11);
    /// Base64 in lines, stored decoded, then zstd.
    pub const BASE64: Self = Self(12);
    /// Numbers of one width, their bytes sorted by place, then zstd.
    pub const SPLIT: Self = Self(32);

    /// The codec with this number, if this library has it.
    pub fn codec(self) -> Option<&'static dyn Codec> {
        Codecs::shipped().get(self)
    }
}

/// The default methods of `balance`, lightest first (D18). By measurement, each of them is the best
/// one at some link rate between 1 Mbit/s and 25 Gbit/s.
pub const DEFAULT_METHODS: &[Method] = &[
    Method::STORE,
    Method::CONSTANT,
    Method::lz4_accel(64),
    Method::lz4_accel(16),
    Method::lz4_accel(1),
    Method::zstd(1),
    Method::zstd(3),
    Method::zstd(6),
    Method::zstd(9),
    Method::zstd(15),
    Method::new(CodecId::BZIP2, 9),
    Method::new(CodecId::XZ, 6),
    Method::split(1),
    Method::split(3),
    Method::split(9),
];

/// The effort of a codec, on the codec's own scale: see [`Codec::levels`].
pub type Level = i32;

/// One codec: its name, its capabilities, and constructors of its contexts. Two codecs of the same type
/// and number share contexts.
pub trait Codec: Any + Sync + fmt::Debug {
    /// The codec's number on the wire, 0 to 63.
    fn id(&self) -> CodecId;

    /// The name in specification strings: `zstd`.
    fn name(&self) -> &'static str;

    /// The levels that cost tables and tests cover, lightest first. Default: 0 alone.
    fn levels(&self) -> &'static [Level] {
        &[0]
    }

    /// Whether the level exists. [`Encoder::encode`] uses the nearest one for any other number.
    fn has_level(&self, level: Level) -> bool {
        self.levels().contains(&level)
    }

    /// The level of a specification that names none. Default: the lightest one.
    fn default_level(&self) -> Level {
        self.levels().first().copied().unwrap_or(0)
    }

    /// Parses one `key=value` of a specification into a level (`level=3`; LZ4 also knows `accel=16`
    /// and `hc=9`).
    fn parse_level(&self, key: &str, value: &str) -> Option<Level> {
        let level = value.parse().ok()?;
        (key == "level" && self.has_level(level)).then_some(level)
    }

    /// Prints a level as the `key=value` that [`Codec::parse_level`] reads back.
    fn print_level(&self, level: Level) -> String {
        format!("level={level}")
    }

    /// The possible settings of a specification, for help texts: `level=1 to 9`. Empty if there are
    /// none.
    fn settings(&self) -> String {
        match (self.levels().first(), self.levels().last()) {
            (Some(first), Some(last)) if first < last => format!("level={first} to {last}"),
            _ => String::new(),
        }
    }

    /// Whether frames can be linked: encoded with earlier raw bytes as dictionary.
    fn can_link(&self) -> bool {
        false
    }

    /// Upper estimate of an encoder's memory in bytes, at this level and for blocks of `raw_len`
    /// bytes that refer to `history_len` bytes before them. Default: twice these bytes.
    fn encoder_memory(&self, level: Level, raw_len: usize, history_len: usize) -> usize {
        let _ = level;
        2 * (raw_len + history_len)
    }

    /// Nominal times on one core of an ordinary server, used until there are measurements:
    /// nanoseconds per raw byte to (encode, decode). Default: 100 and 200 MB/s.
    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        let _ = level;
        (10.0, 5.0)
    }

    /// Makes an encoder.
    fn encoder(&self) -> Box<dyn Encoder>;

    /// Makes a decoder.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// An encoding context, owned by one worker and reused for every block.
pub trait Encoder: Send {
    /// Encodes `raw` into `out` and returns the encoded length, or `None` if the result does not
    /// fit. `out` is shorter than `raw`, so data that does not shrink gives `None` (and is then
    /// sent as `store`). `history` holds the raw bytes before the block in the flow; it is empty if
    /// the frame is not linked. It may lie anywhere in memory, best directly before `raw`; any part
    /// of it that overlaps `raw` is not used.
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize>;
}

/// A decoding context, owned by one worker and reused for every block.
pub trait Decoder: Send {
    /// Decodes `wire` into `out` and returns the number of bytes written. `wire` is untrusted:
    /// malformed bytes cause an error, never a panic, a write beyond `out`, or more memory than
    /// `out` and `history` imply. `out` has the block's raw length, by which a decoder may limit
    /// itself.
    ///
    /// # Errors
    /// `wire` is malformed, decodes to more than `out` holds, or has bytes after the end of the
    /// encoding.
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> std::result::Result<usize, DecodeError>;
}

/// Decoding failed: the bytes do not encode a block that fits the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError;

/// A codec at a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method {
    /// The codec.
    pub codec: CodecId,
    /// Its level.
    pub level: Level,
}

impl Method {
    /// No compression.
    pub const STORE: Self = Self { codec: CodecId::STORE, level: 0 };
    /// One repeated byte; any other block does not shrink.
    pub const CONSTANT: Self = Self { codec: CodecId::CONSTANT, level: 0 };

    /// A JPEG image, recompressed; any other block does not shrink.
    pub const LEPTON: Self = Self { codec: CodecId::LEPTON, level: 0 };

    /// A method of any codec.
    pub const fn new(codec: CodecId, level: Level) -> Self {
        Self { codec, level }
    }

    /// The fast encoder of LZ4; a higher `accel` is faster and shrinks less.
    pub const fn lz4_accel(accel: i32) -> Self {
        Self::new(CodecId::LZ4, accel.wrapping_neg())
    }

    /// Zstandard at this level.
    pub const fn zstd(level: Level) -> Self {
        Self::new(CodecId::ZSTD, level)
    }

    /// Numbers split by their width, then zstd at this level.
    pub const fn split(level: Level) -> Self {
        Self::new(CodecId::SPLIT, level)
    }

    /// Base64 decoded, then zstd at this level.
    pub const fn base64(level: Level) -> Self {
        Self::new(CodecId::BASE64, level)
    }

    /// zstd at the same level, if the method is that with a step of its own.
    pub fn without_step(self) -> Option<Self> {
        matches!(self.codec, CodecId::SPLIT | CodecId::BASE64).then_some(Self::zstd(self.level))
    }

    /// Whether it is for bytes that look like numbers ([`probe`](crate::probe)) and gains nothing on
    /// others.
    pub fn is_for_numbers(self) -> bool {
        self.codec == CodecId::SPLIT
    }

    /// The codec's entry among those of this library; that of `store`, as which a sender sends the block, if
    /// it is not there. [`Codecs::of`] looks it up in other registries.
    pub fn info(self) -> &'static dyn Codec {
        Codecs::shipped().of(self)
    }

    /// Parses a list of methods of this library: [`Codecs::parse_list`].
    ///
    /// # Errors
    /// The list is empty, or a method or setting is unknown.
    pub fn parse_list(s: &str) -> Result<Vec<Self>> {
        Codecs::shipped().parse_list(s)
    }

    /// Prints a list that [`Method::parse_list`] reads back.
    pub fn print_list(methods: &[Self]) -> String {
        Codecs::shipped().print_list(methods)
    }

    /// [`Codecs::decode_rate`] among the codecs of this library.
    pub fn nominal_decode_rate(self) -> f32 {
        Codecs::shipped().decode_rate(self)
    }

    /// [`Codecs::encode_ns`] among the codecs of this library.
    pub fn nominal_encode_ns(self, raw_len: usize) -> u64 {
        Codecs::shipped().encode_ns(self, raw_len)
    }
}

/// Prints what [`Method::from_str`] reads; a codec that this library lacks by its number, which it does not read.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Codecs::shipped().print(*self))
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.codec.0, self.level)
    }
}

impl FromStr for Method {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Codecs::shipped().parse(s)
    }
}

/// The encoders and decoders of one worker, each made at its first use. Flows with other codecs may share
/// them.
#[derive(Default)]
pub struct Contexts {
    encoders: Vec<(Key, Box<dyn Encoder>)>,
    decoders: Vec<(Key, Box<dyn Decoder>)>,
}

/// A codec, whichever registry it is from: another one may have the same number.
type Key = (CodecId, TypeId);

fn key(codec: &dyn Codec) -> Key {
    let any: &dyn Any = codec;
    (codec.id(), any.type_id())
}

impl Contexts {
    /// The encoder of a codec.
    pub fn encoder(&mut self, codec: &dyn Codec) -> &mut dyn Encoder {
        let key = key(codec);
        let i = self.encoders.iter().position(|(of, _)| *of == key).unwrap_or_else(|| {
            self.encoders.push((key, codec.encoder()));
            self.encoders.len() - 1
        });
        &mut *self.encoders[i].1
    }

    /// The decoder of a codec.
    pub fn decoder(&mut self, codec: &dyn Codec) -> &mut dyn Decoder {
        let key = key(codec);
        let i = self.decoders.iter().position(|(of, _)| *of == key).unwrap_or_else(|| {
            self.decoders.push((key, codec.decoder()));
            self.decoders.len() - 1
        });
        &mut *self.decoders[i].1
    }
}

/// Nominal times of a level, interpolated from `anchors` (level, encode and decode ns per byte;
/// sorted by level): geometric between two anchors, the nearest anchor beyond the ends.
fn interpolate(anchors: &[(Level, f32, f32)], level: Level) -> (f32, f32) {
    let above = anchors.partition_point(|a| a.0 < level).min(anchors.len() - 1);
    let (a, b) = (anchors[above.saturating_sub(1)], anchors[above]);
    let share = if a.0 == b.0 { 0.0 } else { (level.saturating_sub(a.0) as f32 / (b.0 - a.0) as f32).clamp(0.0, 1.0) };
    (a.1 * (b.1 / a.1).powf(share), a.2 * (b.2 / a.2).powf(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_every_codec_reads_back_as_it_prints() {
        for codec in CODECS {
            for &level in codec.levels() {
                let method = Method::new(codec.id(), level);
                let printed = method.to_string();
                assert_eq!(printed.parse::<Method>().ok(), Some(method), "{printed}");
                assert_eq!(Method::parse_list(&printed).unwrap(), [method], "{printed}");
            }
        }
    }

    #[test]
    fn a_method_that_this_build_lacks_is_printed_and_never_a_panic() {
        for (number, level) in [(63, 5), (255, i32::MIN), (40, i32::MAX)] {
            let method = Method::new(CodecId(number), level);
            assert!(method.codec.codec().is_none() && method.to_string().parse::<Method>().is_err());
            assert_eq!(method.to_string(), format!("codec-{number}:level={level}"));
            assert_eq!(method.nominal_encode_ns(1000), Method::STORE.nominal_encode_ns(1000));
            assert_eq!(method.nominal_decode_rate(), Method::STORE.nominal_decode_rate());
            let choice = crate::policy::Choice::new(method, 1000);
            assert!(choice.to_string().contains("codec-"), "{choice}");
        }
        // Any level of a codec that is there.
        for codec in CODECS {
            for level in [i32::MIN, -1, 0, 1, i32::MAX] {
                let method = Method::new(codec.id(), level);
                let _ = (method.to_string(), crate::policy::Choice::new(method, usize::MAX));
            }
        }
    }

    #[test]
    fn every_list_of_methods_reads_back_as_it_prints() {
        let all: Vec<Method> =
            CODECS.iter().flat_map(|c| c.levels().iter().map(|&level| Method::new(c.id(), level))).collect();
        for list in [&all[..], DEFAULT_METHODS] {
            assert_eq!(Method::parse_list(&Method::print_list(list)).unwrap(), list);
        }
        assert_eq!(
            Method::print_list(DEFAULT_METHODS),
            "store,constant,lz4:accel=64,lz4:accel=16,lz4,zstd:level=1,zstd,zstd:level=6,zstd:level=9,zstd:level=15,\
             bzip2,xz,split:level=1,split,split:level=9"
        );
    }

    #[test]
    fn a_list_splits_at_semicolons_and_at_commas_before_a_name() {
        let list = |s| Method::parse_list(s).map_err(|e| e.message);
        let three = vec![Method::STORE, Method::lz4_accel(16), Method::zstd(3)];
        assert_eq!(list("store,lz4:accel=16,zstd:level=3"), Ok(three.clone()));
        assert_eq!(list("store;lz4:accel=16 ; zstd"), Ok(three.clone()));
        assert_eq!(list("store, lz4,accel=16, zstd:level=1,level=3,"), Ok(three));
        assert_eq!(list("lz4:hc=9"), Ok(vec![Method::new(CodecId::LZ4, 9)]));
        assert_eq!(list("lz4:level=-16"), Ok(vec![Method::lz4_accel(16)]));
        let link = list("store,lz4:link").unwrap_err();
        assert!(link.contains("fixed:lz4:link") && link.contains("write lz4"), "{link}");
        for bad in ["", ";,", "level=3", "store;level=3", "zstd:level=99", "zstd:level", "lz4:accel=0", "lz4:accel=65"]
        {
            assert!(list(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_and_names_are_unique_and_defaults_exist() {
        for (i, codec) in CODECS.iter().enumerate() {
            assert!(codec.id().0 < 64, "{}: the preface has 64 bits", codec.name());
            assert!(CODECS[..i].iter().all(|c| c.id() != codec.id() && c.name() != codec.name()));
            assert!(codec.has_level(codec.default_level()));
            assert!(codec.levels().is_sorted());
        }
    }

    #[test]
    fn nominal_speeds_lie_between_their_anchors() {
        for codec in CODECS {
            for levels in codec.levels().windows(2) {
                let (a, b) = (codec.nominal_ns_per_byte(levels[0]), codec.nominal_ns_per_byte(levels[1]));
                assert!(a.0 > 0.0 && a.1 > 0.0 && a.0 <= b.0, "{codec:?} {levels:?}: {a:?} {b:?}");
            }
        }
        let between = interpolate(&[(1, 1.0, 2.0), (3, 4.0, 8.0)], 2);
        assert!((between.0 - 2.0).abs() < 1e-5 && (between.1 - 4.0).abs() < 1e-5);
        assert_eq!(interpolate(&[(1, 1.0, 2.0), (3, 4.0, 8.0)], 0), (1.0, 2.0));
        assert_eq!(interpolate(&[(1, 1.0, 2.0), (3, 4.0, 8.0)], 9), (4.0, 8.0));
    }
}
