//! Other formats, known by their magic numbers and decoded from the beginning.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use bzip2::read::MultiBzDecoder;
use flate2::bufread::GzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use narrows::Error;

/// Bytes that suffice to know a format.
pub const MAGIC_LEN: usize = 6;
/// Memory of the xz decoder. `xz -9` needs 65 MiB; what needs more than this was made to.
const XZ_MEMORY_MAX: u64 = 1 << 30;
/// Window of the zstd decoder as a power of two, as `zstd -d` allows; `zstd --long` makes 128 MiB.
pub const ZSTD_WINDOW_LOG: u32 = 27;
/// Longest that readers offer, with `--long=30`.
const ZSTD_WINDOW_LOG_MAX: u32 = 30;
/// The code of zstd for a window beyond the limit: its error has only this text.
const TOO_MUCH_MEMORY: &str = "Frame requires too much memory for decoding";

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
    decoder_within(format, begin, source, ZSTD_WINDOW_LOG)
}

/// As [`decoder`], where zstd frames may need 2^`window_log` bytes of memory.
///
/// # Errors
/// Those of [`decoder`].
pub fn decoder_within<R: Read + Send + 'static>(
    format: Format,
    begin: Vec<u8>,
    source: R,
    window_log: u32,
) -> io::Result<Box<dyn Read + Send>> {
    let window = (format == Format::Zstd).then(|| window_of(&begin)).flatten();
    let source: Source<R> = BufReader::with_capacity(128 << 10, Cursor::new(begin).chain(source));
    Ok(match format {
        Format::Narrows => return Err(io::Error::other("a stream of Narrows is for its receiver")),
        Format::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            decoder.window_log_max(window_log)?;
            Box::new(ZstdFrames { decoder, window, window_log })
        }
        Format::Gzip => Box::new(GzipMembers { decoder: Some(GzDecoder::new(source)) }),
        Format::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(source, stream))
        }
        Format::Bzip2 => Box::new(MultiBzDecoder::new(source)),
        Format::Lz4 => Box::new(Lz4Frames { decoder: Some(lz4::Decoder::new(source)?) }),
    })
}

type Source<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// The window of the zstd frame that begins so; `None` for one that states its length instead.
fn window_of(begin: &[u8]) -> Option<u64> {
    let &[0x28, 0xb5, 0x2f, 0xfd, descriptor, window, ..] = begin else { return None };
    let base = 1 << (10 + (window >> 3));
    (descriptor & 0x20 == 0).then(|| base + base / 8 * u64::from(window & 7))
}

/// zstd frames one after another, with an error that tells how much memory one wants.
struct ZstdFrames<R> {
    decoder: R,
    /// That of the first frame, if it is stated.
    window: Option<u64>,
    window_log: u32,
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buf).map_err(|e| {
            if !e.to_string().contains(TOO_MUCH_MEMORY) {
                return e;
            }
            let window = self.window.filter(|window| *window > 1 << self.window_log);
            let needed = window.map(|window| window.next_power_of_two().ilog2());
            let asks = window.map_or_else(String::new, |window| format!(" of {} MiB", window >> 20));
            let advice = match needed {
                Some(log) if log > ZSTD_WINDOW_LOG_MAX => format!("zstd -d --long={log} decodes it"),
                Some(log) => format!("allow it with --long={log}"),
                None if self.window_log < ZSTD_WINDOW_LOG_MAX => "allow more with --long=30".into(),
                None => "zstd -d --long=31 decodes it".into(),
            };
            let limit = (1u64 << self.window_log) >> 20;
            let text =
                format!("the zstd data has a window{asks}, and {limit} MiB of memory are allowed for it; {advice}");
            io::Error::other(Error::limit(text))
        })
    }
}

/// gzip members one after another, and behind the last one zeros, which tapes have.
struct GzipMembers<R: BufRead> {
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
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
            // An interrupted read is tried again, for which the decoder has to be there.
            let is_last = decoder.get_mut().fill_buf()?.first().is_none_or(|byte| *byte == 0);
            let Some(decoder) = self.decoder.take() else { return Ok(0) };
            let source = decoder.into_inner();
            if is_last {
                return skip_zeros(source).map(|()| 0);
            }
            self.decoder = Some(GzDecoder::new(source));
        }
    }
}

/// Reads to the end; anything but zeros is an error.
fn skip_zeros(mut source: impl BufRead) -> io::Result<()> {
    loop {
        let bytes = match source.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let n = bytes.len();
        if n == 0 {
            return Ok(());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there are other bytes behind its end"));
        }
        source.consume(n);
    }
}

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
