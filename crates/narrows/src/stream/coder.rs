//! A flow in one direction on the calling thread: raw bytes in, wire bytes out, and back. No I/O here:
//! [`Encoder`] and [`Decoder`] are the adapters for `Write` and `BufRead`, `AsyncEncoder` and
//! `AsyncDecoder` those for tokio.
//!
//! ```text
//! take ─> Encode ─ work ─> output ─> (the link) ─> sent
//! give <─ Decode <─ work ─ feed <─ (the link)
//! ```

use std::io::IoSlice;

use crate::block::{Block, BufferPool};
use crate::codec::Contexts;
use crate::error::{Error, Result};
use crate::flow::{Budget, Decoding, Encoding};
use crate::frame::Frame;
use crate::receiver::{Receiver, ReceiverConfig, RecvSummary};
use crate::sender::{LinkSample, Summary};
use crate::stream::{Alone, ReceiveOptions, SendOptions};

#[cfg(feature = "tokio")]
mod asynchronous;
mod decoder;
mod encoder;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncDecoder, AsyncEncoder};
pub use decoder::Decoder;
pub use encoder::Encoder;

/// Wire bytes that a decoder takes at a time: frames within one piece are not copied again.
const PIECE_LEN: usize = 256 << 10;

/// How far an encoder goes before it waits for more raw bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// There is room for raw bytes.
    Room,
    /// All raw bytes have been sent.
    Flushed,
    /// The stream is complete.
    Ended,
}

/// A sender and the frame that the link is taking.
struct Encode {
    encoding: Encoding,
    contexts: Contexts,
    buffers: BufferPool,
    frame: Option<Frame>,
    /// Bytes of the frame that the link took.
    given: usize,
    is_closed: bool,
}

impl Encode {
    fn new(options: SendOptions) -> Self {
        let buffers = BufferPool::default();
        let encoding = options.threads(1).encoding(&buffers);
        Self { encoding, contexts: Contexts::default(), buffers, frame: None, given: 0, is_closed: false }
    }

    /// Copies raw bytes. Returns how many there was room for.
    fn take(&mut self, raw: &[u8], now_ns: u64) -> Result<usize> {
        if self.is_closed {
            return Err(Error::misuse("the stream was ended"));
        }
        Ok(self.encoding.write(raw, now_ns))
    }

    /// The wire bytes that are next, header and body; `None` if there are none without
    /// [`Encode::work`].
    fn output(&mut self) -> Option<[IoSlice<'_>; 2]> {
        if self.frame.is_none() {
            self.frame = self.encoding.poll_transmit();
            self.given = 0;
        }
        let frame = self.frame.as_ref()?;
        let in_header = self.given.min(frame.header.len());
        let in_body = self.given - in_header;
        Some([IoSlice::new(&frame.header[in_header..]), IoSlice::new(&frame.body[in_body..])])
    }

    /// The link took `len` bytes of the output between these times.
    fn sent(&mut self, len: usize, begin_ns: u64, end_ns: u64) {
        self.given += len;
        if self.frame.as_ref().is_some_and(|frame| frame.wire_len() <= self.given) {
            self.frame = None;
        }
        self.encoding.on_link(LinkSample { begin_ns, end_ns, accepted: len as u64, ..LinkSample::default() });
    }

    /// Encodes the next block, if one is due. Returns whether there is output then, or may be after another
    /// call.
    fn work(&mut self, clock: impl Fn() -> u64, until: Until) -> Result<bool> {
        match until {
            Until::Room if self.encoding.room() > 0 => return Ok(false),
            Until::Room => {}
            Until::Flushed => self.encoding.flush(),
            Until::Ended if !std::mem::replace(&mut self.is_closed, true) => self.encoding.close(clock()),
            Until::Ended => {}
        }
        let mut alone = Alone { contexts: &mut self.contexts, buffers: &self.buffers };
        if self.encoding.work(&clock, Budget::ONE, &mut alone) || self.encoding.has_frame() {
            return Ok(true);
        }
        let is_done = match until {
            Until::Room => self.encoding.room() > 0,
            Until::Flushed => self.encoding.gathered() == 0,
            Until::Ended => self.encoding.is_drained(),
        };
        if is_done { Ok(false) } else { Err(Error::misuse("the encoder made no progress; this is a bug")) }
    }

    fn summary(&self) -> &Summary {
        self.encoding.summary()
    }
}

/// A receiver and the raw bytes that were not given yet.
struct Decode {
    decoding: Decoding,
    contexts: Contexts,
    buffers: BufferPool,
    raw: Block,
}

impl Decode {
    fn new(options: ReceiveOptions) -> Self {
        let buffers = BufferPool::default();
        let config = ReceiverConfig { cores: 1, ends_at_frame: true, keeps_rest: true, ..options.into_engine() };
        let decoding = Decoding::new(Receiver::new(config, buffers.clone()));
        Self { decoding, contexts: Contexts::default(), buffers, raw: Block::default() }
    }

    /// Raw bytes that are next, which [`Decode::given`] takes; empty if the next wire bytes are needed, or
    /// the stream is over. All wire bytes that were fed are parsed then.
    fn raw(&mut self) -> Result<&[u8]> {
        while self.raw.is_empty() {
            if let Some(raw) = self.decoding.read() {
                self.raw = raw;
                continue;
            }
            let mut alone = Alone { contexts: &mut self.contexts, buffers: &self.buffers };
            if self.decoding.work(Budget::ONE, &mut alone)? {
                continue;
            }
            if !self.decoding.has_unparsed() || self.decoding.has_end() {
                break;
            }
            let before = self.decoding.unparsed_len();
            self.decoding.resume()?;
            if self.decoding.unparsed_len() == before {
                return Err(Error::limit("a frame needs more memory than `memory_max` allows"));
            }
        }
        Ok(&self.raw)
    }

    /// `len` of the raw bytes were taken.
    fn given(&mut self, len: usize) {
        let _ = self.raw.split_to(len);
    }

    /// Copies wire bytes and returns how many; none to copy means that the link has ended. [`Decode::rest`]
    /// tells how many of them lie after the end of the stream.
    fn feed(&mut self, wire: &[u8]) -> Result<usize> {
        if wire.is_empty() {
            self.decoding.close()?;
            return Err(Error::truncated("the stream ends before its end frame"));
        }
        let len = wire.len().min(PIECE_LEN).min(self.decoding.room().max(1));
        self.decoding.receive(Block::from_vec(wire[..len].to_vec()))?;
        Ok(len)
    }

    /// Bytes of those fed that lie after the end of the stream.
    fn rest(&mut self) -> usize {
        self.decoding.take_rest().map(|wire| wire.len()).sum()
    }

    fn is_over(&self) -> bool {
        self.raw.is_empty() && self.decoding.is_finished()
    }

    fn summary(&self) -> &RecvSummary {
        self.decoding.summary()
    }
}

#[cfg(test)]
mod tests;
