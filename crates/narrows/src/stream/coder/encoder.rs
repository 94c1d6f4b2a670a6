//! [`Encoder`]: a `Write` over another one.

use std::io::{self, Write};
use std::time::Instant;

use super::{Encode, Until};
use crate::error::{Error, ErrorKind, Result};
use crate::sender::Summary;
use crate::stream::SendOptions;

/// Compresses what is written to it, and writes the stream to `W`: a socket, a pipe, a file.
///
/// Everything runs on the calling thread. How long `W` takes is what the policy knows of the link; the
/// functions [`send`](crate::send) and [`receive`](crate::receive) also ask the system, use all cores and hear
/// the receiver. Blocks are whole: what shall arrive at once is followed by [`Write::flush`].
///
/// The options for threads, traces, notes, time limits, copies ([`SendOptions::reach`]) and
/// [`Control`](crate::Control) are those of `send`, and mean nothing here. `W` may be `&TcpStream`: the
/// caller goes on using the socket after [`Encoder::finish`].
///
/// ```
/// use std::io::{Read, Write};
/// use narrows::{Decoder, Encoder, ReceiveOptions, SendOptions};
///
/// let mut encoder = Encoder::new(Vec::new(), SendOptions::storage());
/// encoder.write_all(&[7; 100_000])?;
/// let (mut stream, summary) = encoder.finish()?;
/// assert!(stream.len() < 1000 && summary.raw_bytes == 100_000);
///
/// stream.extend(b"and more");
/// let mut raw = Vec::new();
/// let mut decoder = Decoder::new(&stream[..], ReceiveOptions::default());
/// decoder.read_to_end(&mut raw)?;
/// assert_eq!(raw, [7; 100_000]);
/// assert_eq!(decoder.into_inner(), b"and more");
/// # Ok::<(), narrows::Error>(())
/// ```
///
/// After an error of `W` the call can be repeated: what was written is known. An encoder that is dropped leaves a stream without its end, which no reader takes for whole.
pub struct Encoder<W: Write> {
    encode: Encode,
    inner: W,
    begun: Instant,
}

impl<W: Write> Encoder<W> {
    /// An encoder of a new stream. Nothing is written yet.
    pub fn new(inner: W, options: SendOptions) -> Self {
        Self { encode: Encode::new(options), inner, begun: Instant::now() }
    }

    /// Totals so far.
    pub fn summary(&self) -> &Summary {
        self.encode.summary()
    }

    /// The writer, which has not all bytes yet.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// Writes all that is left and the end of the stream. Returns the writer, flushed, and the totals.
    ///
    /// # Errors
    /// Those of the writer, of kind `Io`.
    pub fn finish(mut self) -> Result<(W, Summary)> {
        self.try_finish()?;
        Ok((self.inner, self.encode.summary().clone()))
    }

    /// As [`Encoder::finish`], but keeps the writer: for one that may refuse bytes for now (`WouldBlock`), after
    /// which the call is repeated. Nothing can be written any more.
    ///
    /// # Errors
    /// As for [`Encoder::finish`].
    pub fn try_finish(&mut self) -> Result<()> {
        self.drive(Until::Ended)?;
        Ok(self.inner.flush()?)
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Encodes and writes as far as `until`.
    fn drive(&mut self, until: Until) -> Result<()> {
        let begun = self.begun;
        loop {
            loop {
                let begin_ns = self.now_ns();
                let Some(output) = self.encode.output() else { break };
                let written = match self.inner.write_vectored(&output) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    Ok(written) => written,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => {
                        return Err(Error { source: Some(e), ..Error::new(ErrorKind::Io, "cannot write the stream") });
                    }
                };
                let end_ns = self.now_ns();
                self.encode.sent(written, begin_ns, end_ns);
            }
            if !self.encode.work(|| begun.elapsed().as_nanos() as u64, until)? {
                return Ok(());
            }
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, raw: &[u8]) -> io::Result<usize> {
        if raw.is_empty() {
            return Ok(0);
        }
        loop {
            let taken = self.encode.take(raw, self.now_ns())?;
            if taken > 0 {
                return Ok(taken);
            }
            self.drive(Until::Room)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drive(Until::Flushed)?;
        self.inner.flush()
    }
}
