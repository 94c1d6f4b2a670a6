//! Codecs behind one object-safe trait, and the registry of all of them.
//!
//! A codec turns one block into fewer bytes and back. It knows nothing of frames, links or policies. Its contexts are
//! owned by a worker and used again for every block. One file each under `codec/`, all of the same shape; a codec
//! that stands in [`CODECS`] inherits the tests of `tests/codecs.rs` and the fuzz targets.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

mod store;

pub use store::Store;

/// Number of a codec on the wire. Never re-used: a retired codec keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodecId(pub u8);

impl CodecId {
    pub const STORE: Self = Self(0);
    pub const CONSTANT: Self = Self(1);
    pub const LZ4: Self = Self(2);
    pub const ZSTD: Self = Self(3);
    pub const ZLIB: Self = Self(4);
    pub const BZIP2: Self = Self(5);
    pub const XZ: Self = Self(6);
    pub const SNAPPY: Self = Self(7);

    /// The codec of this number, if this build has it.
    pub fn codec(self) -> Option<&'static dyn Codec> {
        CODECS.iter().copied().find(|c| c.id() == self)
    }
}

/// Every codec of this build, by number.
pub const CODECS: &[&dyn Codec] = &[&Store];

/// The effort of a codec, in its own scale: see [`Codec::levels`].
pub type Level = i32;

/// One codec: what it is called, what it can do, and how to make its contexts.
pub trait Codec: Sync + fmt::Debug {
    fn id(&self) -> CodecId;

    /// The name in specification strings: `zstd`.
    fn name(&self) -> &'static str;

    /// All levels that [`Encoder::encode`] takes, lightest first.
    fn levels(&self) -> &'static [Level];

    /// The level meant when a specification names none.
    fn default_level(&self) -> Level;

    /// Parses one `key=value` of a specification into a level (`level=3`; LZ4 also knows `accel=16` and `hc=9`).
    fn parse_level(&self, key: &str, value: &str) -> Option<Level> {
        let level = value.parse().ok()?;
        (key == "level" && self.levels().contains(&level)).then_some(level)
    }

    /// The `key=value` that [`Codec::parse_level`] reads back.
    fn print_level(&self, level: Level) -> String {
        format!("level={level}")
    }

    /// Whether frames can be linked: encoded with earlier raw bytes as dictionary.
    fn can_link(&self) -> bool {
        false
    }

    /// Bytes of memory an encoder takes at this level for blocks of `raw_len` bytes, an estimate from above.
    fn encoder_memory(&self, level: Level, raw_len: usize) -> usize;

    /// Nominal speeds on one core of an ordinary server, before anything was measured:
    /// nanoseconds per raw byte to (encode, decode).
    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32);

    fn encoder(&self) -> Box<dyn Encoder>;

    fn decoder(&self) -> Box<dyn Decoder>;
}

/// A context for encoding, owned by one worker and used for block after block.
pub trait Encoder: Send {
    /// Encodes `raw` into `out` and returns how many bytes it took, or `None` if the result does not fit.
    /// `out` is shorter than `raw`, so data that does not shrink is `None` (and is then sent as `store`).
    /// `history` are raw bytes that lie before the block in the flow; empty when the frame is not linked.
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize>;
}

/// A context for decoding, owned by one worker and used for block after block.
pub trait Decoder: Send {
    /// Decodes `wire` into `out` and returns how many bytes it wrote. Any bytes may come in: the result is an error,
    /// never a panic, never a write beyond `out`, never memory beyond what `out` and `history` imply.
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> std::result::Result<usize, DecodeError>;
}

/// The bytes are not an encoding of a block of at most the length of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError;

/// A codec at a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method {
    pub codec: CodecId,
    pub level: Level,
}

impl Method {
    pub const STORE: Self = Self { codec: CodecId::STORE, level: 0 };
    pub const CONSTANT: Self = Self { codec: CodecId::CONSTANT, level: 0 };

    pub const fn new(codec: CodecId, level: Level) -> Self {
        Self { codec, level }
    }

    pub const fn lz4_accel(accel: i32) -> Self {
        Self::new(CodecId::LZ4, -accel)
    }

    pub const fn zstd(level: Level) -> Self {
        Self::new(CodecId::ZSTD, level)
    }

    /// The codec's entry in the registry.
    ///
    /// # Panics
    /// If the method names a codec that this build lacks; parsed methods never do.
    pub fn info(self) -> &'static dyn Codec {
        self.codec.codec().expect("a method names a codec of the registry")
    }

    /// Nominal time to encode `raw_len` bytes, from [`Codec::nominal_ns_per_byte`].
    pub fn nominal_encode_ns(self, raw_len: usize) -> u64 {
        (self.info().nominal_ns_per_byte(self.level).0 * raw_len as f32) as u64
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = self.info();
        f.write_str(codec.name())?;
        if self.level != codec.default_level() {
            write!(f, ":{}", codec.print_level(self.level))?;
        }
        Ok(())
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
        let (name, rest) = s.split_once(':').unwrap_or((s, ""));
        let Some(codec) = CODECS.iter().find(|c| c.name() == name) else {
            let known: Vec<_> = CODECS.iter().map(|c| c.name()).collect();
            return Err(Error::misuse(format!("no method is called '{name}'; there are {}", known.join(", "))));
        };
        let mut method = Self::new(codec.id(), codec.default_level());
        for item in rest.split(',').filter(|i| !i.is_empty()) {
            let level = item.split_once('=').and_then(|(k, v)| codec.parse_level(k, v));
            method.level = level.ok_or_else(|| Error::misuse(format!("'{item}' is not a setting of {name}")))?;
        }
        Ok(method)
    }
}

/// The contexts of one worker, made when first needed.
#[derive(Default)]
pub struct Contexts {
    encoders: Vec<(CodecId, Box<dyn Encoder>)>,
    decoders: Vec<(CodecId, Box<dyn Decoder>)>,
}

impl Contexts {
    /// The encoder of a codec of the registry.
    pub fn encoder(&mut self, codec: &dyn Codec) -> &mut dyn Encoder {
        let i = self.encoders.iter().position(|(id, _)| *id == codec.id()).unwrap_or_else(|| {
            self.encoders.push((codec.id(), codec.encoder()));
            self.encoders.len() - 1
        });
        &mut *self.encoders[i].1
    }

    /// The decoder of a codec of the registry.
    pub fn decoder(&mut self, codec: &dyn Codec) -> &mut dyn Decoder {
        let i = self.decoders.iter().position(|(id, _)| *id == codec.id()).unwrap_or_else(|| {
            self.decoders.push((codec.id(), codec.decoder()));
            self.decoders.len() - 1
        });
        &mut *self.decoders[i].1
    }
}
