//! Other formats, known by their magic numbers and decoded from the beginning.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::marker::PhantomData;

use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use narrows::Error;
use zstd::stream::raw::{DParameter, InBuffer, Operation, OutBuffer};

use crate::read_at::ReadAt;

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
            // The second one is a skippable frame, which LZ4 has too: what follows it tells, see `format_at`.
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

/// Bytes of the head of a skippable frame of zstd and LZ4: magic number and length.
const SKIPPABLE_LEN: usize = 8;
/// Skippable frames that are passed over in search of the name of a format. Writers put one or two first.
const SKIPPABLE_MAX: usize = 64;

fn is_skippable(begin: &[u8]) -> bool {
    matches!(begin, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The length of what a skippable frame has after its head.
fn skippable_len(head: &[u8; SKIPPABLE_LEN]) -> u64 {
    u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]))
}

/// The format of a file that is read at any byte, also of LZ4 frames after skippable ones.
///
/// # Errors
/// The source fails.
pub fn format_at(source: &impl ReadAt) -> io::Result<Option<Format>> {
    let mut at = 0u64;
    for _ in 0..SKIPPABLE_MAX {
        let mut head = [0; SKIPPABLE_LEN];
        let n = source.read_at(&mut head, at)?;
        if at > 0 && Format::of(&head[..n]) != Some(Format::Lz4) && !is_skippable(&head[..n]) {
            break;
        }
        if n < SKIPPABLE_LEN || !is_skippable(&head) {
            return Ok(Format::of(&head[..n]));
        }
        at += SKIPPABLE_LEN as u64 + skippable_len(&head);
    }
    Ok(Some(Format::Zstd))
}

/// What decodes another format.
pub trait Decoder: Read + Send {
    /// The format, which is known of skippable frames when they were read.
    fn format(&self) -> Format;

    /// Goes on to the check that covers what was read, that of the frame or member. Nothing is read afterwards.
    ///
    /// # Errors
    /// The source fails, or its bytes are damaged.
    fn end(&mut self) -> io::Result<()>;
}

/// A decoder of another format than Narrows' own. `begin` was read of `source` before. Bytes that
/// follow one another in the same format are read as one, and zeros between and after them are padding;
/// others are an error.
///
/// # Errors
/// The decoder cannot be made; [`Format::Narrows`] is not decoded here.
pub fn decoder<R: Read + Send + 'static>(format: Format, begin: Vec<u8>, source: R) -> io::Result<Box<dyn Decoder>> {
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
) -> io::Result<Box<dyn Decoder>> {
    let is_skippable = is_skippable(&begin);
    let window = (format == Format::Zstd).then(|| window_of(&begin)).flatten();
    let source: Source<R> = BufReader::with_capacity(128 << 10, Cursor::new(begin).chain(source));
    Ok(match format {
        Format::Narrows => return Err(io::Error::other("a stream of Narrows is for its receiver")),
        Format::Zstd if is_skippable => Box::new(Skippable { source: Some(source), decoder: None, window_log }),
        Format::Zstd => Box::new(ZstdFrames::new(source, window, window_log)?),
        Format::Gzip => Box::new(Members::<GzDecoder<_>, _>::new(source)?),
        Format::Xz => {
            // Its padding is of whole words, as `xz -d` takes it.
            let stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(source, stream))
        }
        Format::Bzip2 => Box::new(Members::<BzDecoder<_>, _>::new(source)?),
        Format::Lz4 => Box::new(Members::<Lz4Frame<_>, _>::new(source)?),
    })
}

type Source<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// The window of the zstd frame that begins so; `None` for one that states its length instead.
fn window_of(begin: &[u8]) -> Option<u64> {
    let &[0x28, 0xb5, 0x2f, 0xfd, descriptor, window, ..] = begin else { return None };
    let base = 1 << (10 + (window >> 3));
    (descriptor & 0x20 == 0).then(|| base + base / 8 * u64::from(window & 7))
}

/// Whether a file of this format, or what may be within one, begins with this byte.
fn begins_with(format: Format, byte: u8) -> bool {
    match format {
        Format::Narrows => byte == 0x4e,
        Format::Zstd => byte == 0x28 || (0x50..=0x5f).contains(&byte),
        Format::Gzip => byte == 0x1f,
        Format::Xz => byte == 0xfd,
        Format::Bzip2 => byte == b'B',
        Format::Lz4 => byte == 0x04 || (0x50..=0x5f).contains(&byte),
    }
}

/// Goes over zeros, which tapes and disk images have after a file. Returns whether another member follows.
fn next_member(format: Format, source: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match source.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let Some(first) = bytes.first() else { return Ok(false) };
        // The library that decodes LZ4 reads beyond short ones.
        if format == Format::Lz4 && (0x50..=0x5f).contains(first) {
            skip_frame(Vec::new(), source)?;
            continue;
        }
        if *first != 0 {
            if begins_with(format, *first) {
                return Ok(true);
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there are other bytes behind its end"));
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        source.consume(zeros);
    }
}

/// Bytes that are decoded at a time for the check after them.
const STEP: usize = 128 << 10;

/// Skippable frames that come first, and what follows them: frames of zstd or of LZ4, or nothing.
struct Skippable<R> {
    /// `None` when they were read.
    source: Option<Source<R>>,
    decoder: Option<Box<dyn Decoder>>,
    window_log: u32,
}

impl<R: Read + Send + 'static> Skippable<R> {
    /// The decoder of what follows, which is read here up to its magic number.
    fn decoder(&mut self) -> io::Result<&mut Box<dyn Decoder>> {
        if let Some(mut source) = self.source.take() {
            self.decoder = Some(behind(&mut source).and_then(|begin| {
                let source: Box<dyn Read + Send> = Box::new(source);
                if Format::of(&begin) == Some(Format::Lz4) {
                    return decoder_within(Format::Lz4, begin, source, self.window_log);
                }
                let window = window_of(&begin);
                let source = BufReader::with_capacity(128 << 10, Cursor::new(begin).chain(source));
                let frames = ZstdFrames::new(source, window, self.window_log)?;
                // There may be none.
                Ok(Box::new(ZstdFrames { within: false, ..frames }) as Box<dyn Decoder>)
            })?);
        }
        self.decoder.as_mut().ok_or_else(|| io::Error::other("it could not be read before"))
    }
}

/// The first bytes after the skippable frames of a source.
fn behind(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut begin = peek(source)?;
    while is_skippable(&begin) {
        skip_frame(begin, source)?;
        begin = peek(source)?;
    }
    Ok(begin)
}

/// Skips a skippable frame, whose first bytes were read.
fn skip_frame(begin: Vec<u8>, source: &mut impl Read) -> io::Result<()> {
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off");
    let mut head = [0; SKIPPABLE_LEN];
    head[..begin.len()].copy_from_slice(&begin);
    let read = source.read_exact(&mut head[begin.len()..]);
    read.map_err(|e| if e.kind() == io::ErrorKind::UnexpectedEof { cut() } else { e })?;
    if !is_skippable(&head) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there are other bytes behind its end"));
    }
    let len = skippable_len(&head);
    if io::copy(&mut source.by_ref().take(len), &mut io::sink())? < len { Err(cut()) } else { Ok(()) }
}

impl<R: Read + Send + 'static> Read for Skippable<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.decoder()?.read(buf)
    }
}

impl<R: Read + Send + 'static> Decoder for Skippable<R> {
    fn format(&self) -> Format {
        self.decoder.as_ref().map_or(Format::Zstd, |decoder| decoder.format())
    }

    fn end(&mut self) -> io::Result<()> {
        self.decoder()?.end()
    }
}

impl<R: Read + Send> Decoder for XzDecoder<R> {
    fn format(&self) -> Format {
        Format::Xz
    }

    /// Whether a stream ends is not to be seen from here, so that the last one counts.
    fn end(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }
}

/// zstd frames one after another, with an error that tells how much memory one wants.
struct ZstdFrames<R> {
    source: R,
    decoder: zstd::stream::raw::Decoder<'static>,
    /// In a frame, the first one included.
    within: bool,
    is_over: bool,
    /// That of the first frame, if it is stated.
    window: Option<u64>,
    window_log: u32,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R, window: Option<u64>, window_log: u32) -> io::Result<Self> {
        let mut decoder = zstd::stream::raw::Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(window_log))?;
        Ok(Self { source, decoder, within: true, is_over: false, window, window_log })
    }

    /// The error of the decoder; where it is about memory, with what allows more.
    fn explained(&self, error: io::Error) -> io::Error {
        if !error.to_string().contains(TOO_MUCH_MEMORY) {
            return error;
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
        let text = format!("the zstd data has a window{asks}, and {limit} MiB of memory are allowed for it; {advice}");
        io::Error::other(Error::limit(text))
    }
}

impl<R: BufRead> ZstdFrames<R> {
    /// Decodes what is there of a frame.
    fn step(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.fill_buf()?;
        let is_end = bytes.is_empty();
        let (mut input, mut output) = (InBuffer::around(bytes), OutBuffer::around(buf));
        let left = self.decoder.run(&mut input, &mut output);
        let (read, written) = (input.pos(), output.pos());
        self.source.consume(read);
        self.within = left.map_err(|e| self.explained(e))? > 0;
        if written == 0 && is_end && self.within {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"));
        }
        Ok(written)
    }
}

impl<R: BufRead + Send> Decoder for ZstdFrames<R> {
    fn format(&self) -> Format {
        Format::Zstd
    }

    fn end(&mut self) -> io::Result<()> {
        let mut passed = vec![0; STEP];
        while self.within {
            self.step(&mut passed)?;
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || self.is_over {
            return Ok(0);
        }
        loop {
            if !self.within {
                if !next_member(Format::Zstd, &mut self.source)? {
                    self.is_over = true;
                    return Ok(0);
                }
                self.decoder.reinit()?;
                self.within = true;
            }
            let written = self.step(buf)?;
            if written > 0 {
                return Ok(written);
            }
        }
    }
}

/// A decoder of one member of a file.
trait Member<R>: Read + Sized {
    const FORMAT: Format;

    fn new(source: R) -> io::Result<Self>;

    /// The source, when the member was read to its end.
    fn into_source(self) -> io::Result<R>;
}

impl<R: BufRead> Member<R> for GzDecoder<R> {
    const FORMAT: Format = Format::Gzip;

    fn new(source: R) -> io::Result<Self> {
        Ok(Self::new(source))
    }

    fn into_source(self) -> io::Result<R> {
        Ok(self.into_inner())
    }
}

impl<R: BufRead> Member<R> for BzDecoder<R> {
    const FORMAT: Format = Format::Bzip2;

    fn new(source: R) -> io::Result<Self> {
        Ok(Self::new(source))
    }

    fn into_source(self) -> io::Result<R> {
        Ok(self.into_inner())
    }
}

/// A decoder of one LZ4 frame. It gives blocks as a whole: where the buffer is full within one, the library
/// reads beyond the end of the frame, and what follows would be lost.
struct Lz4Frame<R>(BufReader<lz4::Decoder<R>>);

/// The longest block of an LZ4 frame.
const LZ4_BLOCK_MAX: usize = 4 << 20;

impl<R: BufRead> Read for Lz4Frame<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl<R: BufRead> Member<R> for Lz4Frame<R> {
    const FORMAT: Format = Format::Lz4;

    fn new(source: R) -> io::Result<Self> {
        Ok(Self(BufReader::with_capacity(LZ4_BLOCK_MAX, lz4::Decoder::new(source)?)))
    }

    fn into_source(self) -> io::Result<R> {
        let (source, ended) = self.0.into_inner().finish();
        // A cut is reported as `Interrupted`, which would mean to try again.
        ended.map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"))?;
        Ok(source)
    }
}

/// Members one after another. `None` after the last one, and after an error.
struct Members<M, R> {
    decoder: Option<M>,
    source: PhantomData<fn() -> R>,
}

impl<R: BufRead, M: Member<R>> Members<M, R> {
    fn new(source: R) -> io::Result<Self> {
        Ok(Self { decoder: Some(M::new(source)?), source: PhantomData })
    }
}

impl<R: BufRead, M: Member<R> + Send> Decoder for Members<M, R> {
    fn format(&self) -> Format {
        M::FORMAT
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        io::copy(&mut decoder, &mut io::sink())?;
        decoder.into_source().map(drop)
    }
}

impl<R: BufRead, M: Member<R>> Read for Members<M, R> {
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
            let mut source = decoder.into_source()?;
            if !next_member(M::FORMAT, &mut source)? {
                return Ok(0);
            }
            self.decoder = Some(M::new(source)?);
        }
    }
}
