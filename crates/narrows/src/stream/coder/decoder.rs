//! [`Decoder`]: a `Read` over another one.

use std::io::{self, BufRead, BufReader, Read};

use super::Decode;
use crate::error::Result;
use crate::receiver::RecvSummary;
use crate::stream::ReceiveOptions;

/// Reads a stream and gives its raw bytes. At the end of the stream it is at its end too; what follows the
/// stream in `R` is not touched.
///
/// Everything runs on the calling thread. An error of damage, of a limit or of a stream without its end is an
/// [`io::Error`] with a [`narrows::Error`](crate::Error) in it ([`io::Error::get_ref`]); all raw bytes that came
/// before were checked. The options for threads, notes, time limits and [`Control`](crate::Control) are
/// those of [`receive`](crate::receive), and mean nothing here. Example: [`Encoder`](crate::Encoder).
pub struct Decoder<R: BufRead> {
    decode: Decode,
    inner: R,
    /// Bytes of the reader's buffer that were taken and are not consumed: the stream may end among them.
    fed: usize,
}

impl<R: Read> Decoder<BufReader<R>> {
    /// A decoder of the stream that begins with the next byte of `inner`, with a buffer of its own, which
    /// [`Decoder::into_inner`] returns too.
    pub fn buffered(inner: R, options: ReceiveOptions) -> Self {
        Self::new(BufReader::with_capacity(super::PIECE_LEN, inner), options)
    }
}

impl<R: BufRead> Decoder<R> {
    /// A decoder of the stream that begins with the next byte of `inner`.
    pub fn new(inner: R, options: ReceiveOptions) -> Self {
        Self { decode: Decode::new(options), inner, fed: 0 }
    }

    /// Totals so far.
    pub fn summary(&self) -> &RecvSummary {
        self.decode.summary()
    }

    /// Whether the stream was read to its end, and its totals agree.
    pub fn is_finished(&self) -> bool {
        self.decode.is_over()
    }

    /// The reader: after the end of the stream, at the byte after it.
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// Raw bytes that are next; none at the end of the stream.
    fn next(&mut self) -> Result<()> {
        loop {
            if !self.decode.raw()?.is_empty() {
                return Ok(());
            }
            // All of them are parsed.
            self.inner.consume(std::mem::take(&mut self.fed) - self.decode.rest());
            if self.decode.is_over() {
                return Ok(());
            }
            let wire = match self.inner.fill_buf() {
                Ok(wire) => wire,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            self.fed = self.decode.feed(wire)?;
        }
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        self.next()?;
        let raw = self.decode.raw()?;
        let len = raw.len().min(to.len());
        to[..len].copy_from_slice(&raw[..len]);
        self.decode.given(len);
        Ok(len)
    }
}
