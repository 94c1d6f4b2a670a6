//! [`AsyncEncoder`] and [`AsyncDecoder`]: the adapters for tokio.
//!
//! Both can be cancelled at any await: a `write` or `read` that is dropped has taken or given nothing, and a
//! `flush` or `finish` that is dropped and called again goes on where it was.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{Decode, Encode, Until};
use crate::error::{Error, ErrorKind, Result};
use crate::receiver::RecvSummary;
use crate::sender::Summary;
use crate::stream::{ReceiveOptions, SendOptions};

/// Longest block in bytes: it is encoded within one poll, in which other tasks of the thread wait. Of
/// 64 KiB the methods for links make some 100 us to 2 ms of work.
const BLOCK_MAX: usize = 64 << 10;
/// Blocks that are encoded before other tasks have their turn.
const BLOCKS_A_POLL: usize = 2;

/// [`Encoder`](crate::Encoder) for tokio: compresses what is written to it, and writes the stream to `W`.
///
/// Blocks are encoded within `poll_write`, of 64 KiB at most, and after two of them other tasks have
/// their turn. `shutdown` ends the stream and shuts `W` down; [`AsyncEncoder::finish`] ends the stream and gives
/// `W` back. A `write` that is dropped before it is ready has taken nothing.
pub struct AsyncEncoder<W> {
    encode: Encode,
    inner: W,
    begun: Instant,
    /// Since when the link has been offered what it has not taken.
    offered_ns: Option<u64>,
}

impl<W: AsyncWrite + Unpin> AsyncEncoder<W> {
    /// An encoder of a new stream. Nothing is written yet.
    pub fn new(inner: W, options: SendOptions) -> Self {
        let mut encode = Encode::new(options);
        encode.encoding.limit_blocks(BLOCK_MAX);
        Self { encode, inner, begun: Instant::now(), offered_ns: None }
    }

    /// Totals so far.
    pub fn summary(&self) -> &Summary {
        self.encode.summary()
    }

    /// The writer, which has not all bytes yet.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// Writes all that is left and the end of the stream. Returns the writer, flushed, and the totals. If it
    /// is cancelled, the writer is lost; call `flush` first where that matters.
    ///
    /// # Errors
    /// Those of the writer, of kind `Io`.
    pub async fn finish(mut self) -> Result<(W, Summary)> {
        std::future::poll_fn(|cx| self.poll_drive(cx, Until::Ended)).await?;
        std::future::poll_fn(|cx| Pin::new(&mut self.inner).poll_flush(cx)).await?;
        Ok((self.inner, self.encode.summary().clone()))
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn poll_drive(&mut self, cx: &mut Context<'_>, until: Until) -> Poll<Result<()>> {
        for _ in 0..=BLOCKS_A_POLL {
            ready!(self.poll_output(cx))?;
            let begun = self.begun;
            if !self.encode.work(|| begun.elapsed().as_nanos() as u64, until)? {
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is encoded.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            let now_ns = self.now_ns();
            let Some(output) = self.encode.output() else { return Poll::Ready(Ok(())) };
            let begin_ns = *self.offered_ns.get_or_insert(now_ns);
            let written = match ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, &output)) {
                Ok(0) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                Ok(written) => written,
                Err(e) => {
                    let error = Error { source: Some(e), ..Error::new(ErrorKind::Io, "cannot write the stream") };
                    return Poll::Ready(Err(error));
                }
            };
            self.offered_ns = None;
            let end_ns = self.now_ns();
            self.encode.sent(written, begin_ns, end_ns);
        }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for AsyncEncoder<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, raw: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            let now_ns = this.now_ns();
            let taken = this.encode.take(raw, now_ns)?;
            if taken > 0 || raw.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            ready!(this.poll_drive(cx, Until::Room))?;
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drive(cx, Until::Flushed))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drive(cx, Until::Ended))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// [`Decoder`](crate::Decoder) for tokio: reads a stream and gives its raw bytes. What follows the stream in
/// `R` is not touched. A `read` that is dropped before it is ready has given nothing.
pub struct AsyncDecoder<R> {
    decode: Decode,
    inner: R,
    /// Bytes of the reader's buffer that were taken and are not consumed.
    fed: usize,
}

impl<R: AsyncBufRead + Unpin> AsyncDecoder<R> {
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

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if !self.decode.raw()?.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let consumed = std::mem::take(&mut self.fed) - self.decode.rest();
            Pin::new(&mut self.inner).consume(consumed);
            if self.decode.is_over() {
                return Poll::Ready(Ok(()));
            }
            let wire = ready!(Pin::new(&mut self.inner).poll_fill_buf(cx))?;
            self.fed = self.decode.feed(wire)?;
        }
    }
}

impl<R: AsyncBufRead + Unpin> AsyncRead for AsyncDecoder<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_next(cx))?;
        let raw = this.decode.raw()?;
        let len = raw.len().min(to.remaining());
        to.put_slice(&raw[..len]);
        this.decode.given(len);
        Poll::Ready(Ok(()))
    }
}
