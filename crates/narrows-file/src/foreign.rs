//! Other formats, known by their magic numbers and decoded from the beginning.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// Bytes that suffice to know a format.
pub const MAGIC_LEN: usize = 6;
/// Memory of the xz decoder. `xz -9` needs 65 MiB; what needs more than this was made to.
const XZ_MEMORY_MAX: u64 = 1 << 30;
/// Window of the zstd decoder as a power of two, as `zstd -d` allows; `zstd --long` makes 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Streams of Narrows.
    Narrows,
    /// zstd frames (RFC 8878).
    Zstd,
    /// gzip members (RFC 1952).
    Gzip,
    /// xz streams.
    Xz,
    /// bzip2 streams.
    Bzip2,
    /// LZ4 frames.
    Lz4,
}

impl Format {
    /// The format that a file begins as; `None` if it is none of these.
    pub fn of(begin: &[u8]) -> Option<Self> {
        Some(match begin {
            [0x4e, 0x52, 0x57, 0x1a, ..] => Self::Narrows,
            // The second one is a skippable frame, which LZ4 has too; zstd comes first everywhere.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Lz4,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Narrows => "narrows",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
            Self::Lz4 => "lz4",
        }
    }

    /// What the names of its files end in.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Narrows => ".nrw",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
            Self::Xz => ".xz",
            Self::Bzip2 => ".bz2",
            Self::Lz4 => ".lz4",
        }
    }

    /// All of them.
    pub const ALL: [Self; 6] = [Self::Narrows, Self::Zstd, Self::Gzip, Self::Xz, Self::Bzip2, Self::Lz4];
}

/// Reads the first bytes of `source`, fewer than [`MAGIC_LEN`] only if it has no more.
///
/// # Errors
/// The source fails.
pub fn peek(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut begin = Vec::with_capacity(MAGIC_LEN);
    source.take(MAGIC_LEN as u64).read_to_end(&mut begin)?;
    Ok(begin)
}

/// A decoder of another format than Narrows' own. `begin` was read of `source` before. Bytes that
/// follow one another in the same format are read as one; others are an error.
///
/// # Errors
/// The decoder cannot be made; [`Format::Narrows`] is not decoded here.
pub fn decoder<R: Read + Send + 'static>(
    format: Format,
    begin: Vec<u8>,
    source: R,
) -> io::Result<Box<dyn Read + Send>> {
    let source: Source<R> = BufReader::with_capacity(128 << 10, Cursor::new(begin).chain(source));
    Ok(match format {
        Format::Narrows => return Err(io::Error::other("a stream of Narrows is for its receiver")),
        Format::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
        Format::Gzip => Box::new(MultiGzDecoder::new(source)),
        Format::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(source, stream))
        }
        Format::Bzip2 => Box::new(MultiBzDecoder::new(source)),
        Format::Lz4 => Box::new(Lz4Frames { decoder: Some(lz4::Decoder::new(source)?) }),
    })
}

type Source<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// LZ4 frames one after another.
struct Lz4Frames<R: BufRead> {
    decoder: Option<lz4::Decoder<R>>,
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(decoder) = &mut self.decoder else { return Ok(0) };
            let n = decoder.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            let Some(decoder) = self.decoder.take() else { return Ok(0) };
            let (mut source, ended) = decoder.finish();
            // The decoder reports a cut as `Interrupted`, which would mean to try again.
            ended.map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"))?;
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.decoder = Some(lz4::Decoder::new(source)?);
        }
    }
}
