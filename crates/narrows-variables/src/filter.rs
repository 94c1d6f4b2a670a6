//! Filters that other software applies to chunks: their names, and the common ones undone.

mod blosc;
pub(crate) mod shuffle;

use std::io::Read;

use narrows::codec::{CodecId, Contexts};
use narrows::{Error, Result};
use narrows_array::{Coder, Info, Pipeline};
use serde_json::Value;

use crate::limits::room;

/// Our number in HDF5, from the private range until one is registered.
pub const HDF5_ID: u16 = 32768;

/// Names by which Zarr stores may call our codec, of version 2 and 3.
const ZARR_NAMES: [&str; 3] = ["narrows", "narrows.array", "org.narrows.array"];

/// Registered numbers of HDF5, for their names.
const NAMES: [(u16, &str); 23] = [
    (4, "szip"),
    (5, "nbit"),
    (6, "scaleoffset"),
    (305, "lzo"),
    (307, "bzip2"),
    (32000, "lzf"),
    (32001, "blosc"),
    (32002, "mafisc"),
    (32004, "lz4"),
    (32008, "bitshuffle"),
    (32013, "zfp"),
    (32014, "fpzip"),
    (32015, "zstd"),
    (32017, "sz"),
    (32018, "fcidecomp"),
    (32019, "jpeg"),
    (32022, "granular bitround"),
    (32023, "granular bitround"),
    (32024, "sz3"),
    (32026, "blosc2"),
    (32027, "bitround"),
    (32028, "sperr"),
    (32030, "bitgroom"),
];

/// One filter of a chunk, or codec in the words of Zarr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// With its level, if it has one.
    pub name: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Narrows,
    /// zlib, or gzip.
    Deflate,
    Zstd,
    /// Four bytes of length, then a block.
    Lz4,
    Blosc,
    /// Bytes of an element.
    Shuffle(usize),
    Fletcher32,
    Crc32c,
    Unknown,
}

/// What decoding a chunk gave.
pub struct Decoded {
    /// Elements in the order in which the chunk has them.
    pub bytes: Vec<u8>,
    /// What Narrows says of it, if Narrows was among its filters.
    pub narrows: Option<(Info, Pipeline)>,
}

/// Contexts of the decoders. One for each thread.
#[derive(Default)]
pub struct Decoders {
    coder: Coder,
    contexts: Contexts,
}

impl Filter {
    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }

    fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }

    pub(crate) fn narrows() -> Self {
        Self::new("narrows", Kind::Narrows)
    }

    /// Whether it is Narrows.
    pub fn is_narrows(&self) -> bool {
        self.kind == Kind::Narrows
    }

    /// Whether it can be undone here.
    pub fn is_known(&self) -> bool {
        self.kind != Kind::Unknown
    }

    pub(crate) fn of_hdf5(id: u16, name: &str, values: &[u32], element_bytes: usize) -> Self {
        let level = |name: &str| values.first().map_or(name.into(), |level| format!("{name} {level}"));
        match id {
            1 => Self::new(level("deflate"), Kind::Deflate),
            2 => Self::new("shuffle", Kind::Shuffle(values.first().map_or(element_bytes, |n| *n as usize))),
            3 => Self::new("fletcher32", Kind::Fletcher32),
            32001 => Self::new("blosc", Kind::Blosc),
            32015 => Self::new(level("zstd"), Kind::Zstd),
            HDF5_ID => Self::narrows(),
            _ => match NAMES.iter().find(|n| n.0 == id) {
                Some(known) => Self::new(known.1, Kind::Unknown),
                None if name.is_empty() => Self::new(format!("filter {id}"), Kind::Unknown),
                None => Self::new(format!("{name} (filter {id})"), Kind::Unknown),
            },
        }
    }

    /// A codec of Zarr by its name and its configuration.
    pub(crate) fn of_zarr(name: &str, configuration: &Value, element_bytes: usize) -> Self {
        let short = name.strip_prefix("numcodecs.").unwrap_or(name);
        let number = |key: &str| configuration.get(key).and_then(Value::as_i64);
        let level = |kind| Self::new(number("level").map_or(short.into(), |level| format!("{short} {level}")), kind);
        match short {
            _ if ZARR_NAMES.contains(&short) => Self::narrows(),
            "zlib" | "gzip" => level(Kind::Deflate),
            "zstd" => level(Kind::Zstd),
            "lz4" => Self::new("lz4", Kind::Lz4),
            "blosc" => {
                let inner = configuration.get("cname").and_then(Value::as_str).unwrap_or("?");
                Self::new(format!("blosc {inner}"), Kind::Blosc)
            }
            "shuffle" => {
                let width = number("elementsize").and_then(|n| usize::try_from(n).ok());
                Self::new("shuffle", Kind::Shuffle(width.unwrap_or(element_bytes)))
            }
            "crc32c" => Self::new("crc32c", Kind::Crc32c),
            "fletcher32" => Self::new("fletcher32", Kind::Fletcher32),
            _ => Self::new(short, Kind::Unknown),
        }
    }
}

/// Undoes filters, the last one first. `raw_max` is the most that the chunk may have; what a filter in
/// between gives may be a little longer.
///
/// # Errors
/// The chunk is damaged or too long, or a filter is none that is known here.
pub(crate) fn decode(
    filters: &[Filter],
    skipped: u32,
    stored: Vec<u8>,
    raw_max: usize,
    with: &mut Decoders,
) -> Result<Decoded> {
    let mut out = Decoded { bytes: stored, narrows: None };
    let inner_max = room(raw_max);
    for (i, filter) in filters.iter().enumerate().rev() {
        if i < 32 && skipped >> i & 1 == 1 || i >= 32 && skipped == u32::MAX {
            continue;
        }
        let bytes = &out.bytes;
        out.bytes = match filter.kind {
            Kind::Narrows => {
                let (array, info, pipeline) = with.coder.decode_all(bytes, raw_max)?;
                out.narrows = Some((info, pipeline));
                array.bytes
            }
            Kind::Deflate if bytes.starts_with(&[0x1f, 0x8b]) => {
                read(flate2::read::MultiGzDecoder::new(bytes.as_slice()), inner_max, "gzip")?
            }
            Kind::Deflate => read(flate2::read::ZlibDecoder::new(bytes.as_slice()), inner_max, "deflate")?,
            Kind::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(bytes.as_slice())?;
                read(decoder, inner_max, "zstd")?
            }
            Kind::Lz4 => with.lz4_with_length(bytes, inner_max)?,
            Kind::Blosc => blosc::decode(bytes, inner_max, &mut with.contexts)?,
            Kind::Shuffle(width) => shuffle::undo(bytes, width),
            Kind::Fletcher32 => checked(bytes, fletcher32, "fletcher32")?,
            Kind::Crc32c => checked(bytes, crc32c, "crc32c")?,
            Kind::Unknown => return Err(Error::unsupported(format!("this program cannot undo {}", filter.name))),
        };
    }
    Ok(out)
}

impl Decoders {
    fn lz4_with_length(&mut self, bytes: &[u8], max: usize) -> Result<Vec<u8>> {
        let (len, body) = bytes.split_first_chunk().ok_or_else(|| Error::truncated("an lz4 chunk without length"))?;
        let len = u32::from_le_bytes(*len) as usize;
        lz4(body, len, max, &mut self.contexts)
    }
}

/// LZ4 gives at most 255 bytes for one.
const LZ4_GAIN_MAX: usize = 255;

/// Decodes an LZ4 block of a known length.
fn lz4(body: &[u8], len: usize, max: usize, contexts: &mut Contexts) -> Result<Vec<u8>> {
    if len > max || len / LZ4_GAIN_MAX > body.len() {
        return Err(Error::corrupt("an lz4 block says a length that it cannot have"));
    }
    let mut out = vec![0; len];
    let codec = CodecId::LZ4.codec().ok_or_else(|| Error::unsupported("lz4 is not built in"))?;
    let decoded = contexts.decoder(codec).decode(&[], body, &mut out);
    decoded.ok().filter(|n| *n == len).ok_or_else(|| Error::corrupt("an lz4 block is damaged"))?;
    Ok(out)
}

/// Reads a decoder to its end, `max` bytes at most.
fn read(decoder: impl Read, max: usize, name: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let limit = max as u64 + 1;
    decoder.take(limit).read_to_end(&mut out).map_err(|e| Error::corrupt(format!("{name}: {e}")))?;
    if out.len() > max {
        return Err(Error::corrupt(format!("{name}: the chunk is longer than its shape")));
    }
    Ok(out)
}

/// Compares and removes a check sum of 4 bytes at the end.
fn checked(bytes: &[u8], sum: fn(&[u8]) -> u32, name: &str) -> Result<Vec<u8>> {
    let (body, stated) =
        bytes.split_last_chunk().ok_or_else(|| Error::truncated(format!("{name}: the chunk is too short")))?;
    if sum(body) != u32::from_le_bytes(*stated) {
        return Err(Error::corrupt(format!("{name}: the chunk's check sum differs: it is damaged")));
    }
    Ok(body.to_vec())
}

/// Fletcher's sum as HDF5 computes it, over big-endian words of 2 bytes.
fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (0u32, 0u32);
    // So many words cannot overflow 32 bits.
    for block in bytes.chunks(720) {
        for word in block.chunks(2) {
            a += u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    b << 16 | a
}

/// CRC-32C, bit by bit through a table of 16: indexes of shards are short.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let table: [u32; 16] =
        std::array::from_fn(|i| (0..4).fold(i as u32, |c, _| if c & 1 == 1 { c >> 1 ^ POLYNOMIAL } else { c >> 1 }));
    !bytes.iter().fold(!0u32, |crc, byte| {
        let crc = crc ^ u32::from(*byte);
        let crc = crc >> 4 ^ table[(crc & 15) as usize];
        crc >> 4 ^ table[(crc & 15) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_others() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(fletcher32(&[]), 0);
        assert_eq!(fletcher32(&[1, 2, 3, 4]), 0x0508_0406);
    }
}
