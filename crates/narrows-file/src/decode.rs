//! Decoding from the beginning to the end, whatever the format is.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::receiver::RecvSummary;
use narrows::stream::{ReceiveOptions, receive};
use narrows::transport::Link;
use narrows::{Error, Result};

use crate::foreign::{self, Decoder, Format, ZSTD_WINDOW_LOG};
use crate::split::Split;

/// What was decoded.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// Raw bytes.
    pub raw_bytes: u64,
    /// Bytes read; 0 for other formats than Narrows' own.
    pub wire_bytes: u64,
    /// Streams of Narrows.
    pub streams: u64,
    /// Totals of the last of them.
    pub last: Option<RecvSummary>,
}

/// Decodes all of `source` into `sink`: streams of Narrows, or files of another format, each kind
/// also several one after another. `options` makes those of each stream.
///
/// # Errors
/// The source or the sink fails, or the bytes are in no known format or damaged.
pub fn decode<R, W>(source: R, sink: W, options: impl FnMut() -> ReceiveOptions) -> Result<Decoded>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    decode_within(source, sink, ZSTD_WINDOW_LOG, options)
}

/// As [`decode`], where zstd frames may need 2^`window_log` bytes of memory.
///
/// # Errors
/// Those of [`decode`].
pub fn decode_within<R, W>(
    mut source: R,
    sink: W,
    window_log: u32,
    options: impl FnMut() -> ReceiveOptions,
) -> Result<Decoded>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let begin = foreign::peek(&mut source)?;
    match Format::of(&begin) {
        Some(Format::Narrows) => streams(begin, source, sink, options),
        Some(format) => other(foreign::decoder_within(format, begin, source, window_log)?, sink),
        None if begin.is_empty() => Err(Error::truncated("the input is empty")),
        None => Err(Error::corrupt("the input is in no format that narrows knows")),
    }
}

fn other(mut decoder: Box<dyn Decoder>, mut sink: impl Write) -> Result<Decoded> {
    let mut buf = vec![0; 128 << 10];
    let mut raw_bytes = 0;
    loop {
        let n = match decoder.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(damaged(decoder.format(), e)),
        };
        sink.write_all(&buf[..n])?;
        raw_bytes += n as u64;
    }
    sink.flush()?;
    Ok(Decoded { raw_bytes, ..Decoded::default() })
}

/// The error of another format's decoder: whether the source failed or its bytes are wrong cannot be
/// told from its kind alone.
pub fn damaged(format: Format, error: io::Error) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(own) => return own,
        Err(error) => error,
    };
    if error.raw_os_error().is_some() {
        return error.into();
    }
    let text = format!("the {} data does not decode: {error}", format.name());
    if error.kind() == io::ErrorKind::UnexpectedEof { Error::truncated(text) } else { Error::corrupt(text) }
}

fn streams<R, W>(begin: Vec<u8>, source: R, sink: W, mut options: impl FnMut() -> ReceiveOptions) -> Result<Decoded>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let split = Arc::new(Mutex::new(Split::new(begin, source)));
    let sink = Arc::new(Mutex::new(sink));
    let mut decoded = Decoded::default();
    loop {
        let link = Link::reader(Shared(Arc::clone(&split)));
        let summary = receive(Shared(Arc::clone(&sink)), link, options().images(true))?;
        decoded.raw_bytes += summary.raw_bytes;
        decoded.wire_bytes += summary.wire_bytes;
        decoded.streams += 1;
        decoded.last = Some(summary);
        let more = split.lock().unwrap_or_else(PoisonError::into_inner).next_stream()?;
        if !more {
            return Ok(decoded);
        }
    }
}

/// A reader or writer that is used by one stream after another.
struct Shared<T>(Arc<Mutex<T>>);

impl<R: Read> Read for Shared<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(buf)
    }
}

impl<W: Write> Write for Shared<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}
