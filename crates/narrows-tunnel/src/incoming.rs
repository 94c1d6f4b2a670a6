//! The direction of a flow from the session to a local connection: raw bytes, and streams that are
//! decoded (docs/format.md, section 21.5). No I/O, no clock.

use std::collections::VecDeque;

use narrows::block::Block;
use narrows::pool::Queue;
use narrows::receiver::{DecodeDone, DecodeJob, Receiver, RecvSummary};
use narrows::stream;
use narrows::{Error, Result};

use super::engine::{self, Engine, INLINE_NS, Key, MESSAGE_LEN, Share};
use super::limits::RECEIVED_MAX;

/// Time for decoding short blocks on this thread, while other connections wait.
const HERE_NS: u64 = 200_000;
/// Pieces that wait are put together up to this length, so that tiny ones cost no more than their
/// bytes.
const JOIN_MAX: usize = 16 << 10;

/// State of the direction.
#[derive(Default)]
pub(super) struct Incoming {
    /// Received and not looked at.
    pieces: VecDeque<Piece>,
    /// Bytes of `pieces`.
    waiting: usize,
    stream: Option<Box<Stream>>,
    /// The next bytes of the local connection.
    raw: Block,
    /// No raw bytes came since the last stream.
    unparted: bool,
    /// The peer has finished.
    ended: bool,
    share: Option<Share>,
    /// Bytes for the local connection so far.
    pub(super) bytes: u64,
    /// Bytes that came for them.
    pub(super) wire: u64,
}

enum Piece {
    /// As it came, within the buffer that it came in.
    Shared { coded: bool, bytes: Block },
    /// Copied, and perhaps joined.
    Own { coded: bool, bytes: Vec<u8> },
}

impl Piece {
    fn coded(&self) -> bool {
        match self {
            Self::Shared { coded, .. } | Self::Own { coded, .. } => *coded,
        }
    }

    fn into_bytes(self) -> Block {
        match self {
            Self::Shared { bytes, .. } => bytes,
            Self::Own { bytes, .. } => Block::from_vec(bytes),
        }
    }
}

struct Stream {
    receiver: Receiver,
    queue: Queue,
    /// Jobs with the workers.
    jobs: usize,
}

impl Incoming {
    /// A direction that begins with bytes of this end.
    pub(super) fn behind(bytes: Vec<u8>) -> Self {
        Self { raw: Block::from_vec(bytes), ..Self::default() }
    }

    /// Takes received bytes.
    pub(super) fn push(&mut self, coded: bool, bytes: Block) {
        self.wire += bytes.len() as u64;
        self.waiting += bytes.len();
        match self.pieces.back_mut() {
            None => self.pieces.push_back(Piece::Shared { coded, bytes }),
            // What waits longer must not keep the whole buffer in which it came.
            Some(Piece::Own { coded: last, bytes: joined })
                if *last == coded && joined.len() + bytes.len() <= JOIN_MAX =>
            {
                joined.extend_from_slice(&bytes);
            }
            Some(_) => self.pieces.push_back(Piece::Own { coded, bytes: bytes.to_vec() }),
        }
    }

    /// Nothing follows.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the local connection has been given everything and the end may follow.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.is_idle()
    }

    /// Whether it holds nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.stream.is_none() && self.raw.is_empty()
    }

    /// What the receiver of a live stream did.
    pub(super) fn summary(&self) -> Option<&RecvSummary> {
        self.stream.as_ref().map(|stream| stream.receiver.summary())
    }

    #[cfg(test)]
    pub(super) fn is_working(&self) -> bool {
        self.stream.as_ref().is_some_and(|s| s.jobs > 0)
    }

    /// Bytes that it holds.
    pub(super) fn held(&self) -> usize {
        self.waiting + self.raw.len() + self.stream.as_ref().map_or(0, |s| s.receiver.held())
    }

    /// The next bytes for the local connection, which removes those that it takes. `None`: none now.
    /// `took` grows by the received bytes that need no room any more.
    ///
    /// # Errors
    /// The bytes are damaged; the flow is to be reset.
    pub(super) fn next(&mut self, took: &mut usize, key: Key, engine: &mut Engine) -> Result<Option<&mut Block>> {
        while self.raw.is_empty() {
            self.raw = Block::default();
            if let Some(stream) = &mut self.stream {
                if let Some(raw) = stream.receiver.read() {
                    self.bytes += raw.len() as u64;
                    self.raw = raw;
                    // What was read made room.
                    stream.work(key, engine)?;
                    continue;
                }
                if stream.receiver.is_finished() && stream.jobs == 0 {
                    self.stream = None;
                    engine.stream_ended();
                    self.unparted = true;
                    continue;
                }
                if stream.jobs > 0 || stream.receiver.room() == 0 {
                    self.count(engine);
                    return Ok(None);
                }
            }
            let Some(piece) = self.pieces.pop_front() else {
                if self.ended && self.stream.is_some() {
                    return Err(Error::truncated("a flow ends within its stream"));
                }
                self.count(engine);
                return Ok(None);
            };
            if self.pieces.is_empty() {
                self.pieces = VecDeque::new();
            }
            let coded = piece.coded();
            let bytes = piece.into_bytes();
            self.waiting -= bytes.len();
            *took += bytes.len();
            if !coded {
                if self.stream.is_some() {
                    return Err(Error::corrupt("raw bytes within a stream"));
                }
                self.bytes += bytes.len() as u64;
                self.raw = bytes;
                self.unparted = false;
                continue;
            }
            if self.unparted {
                return Err(Error::corrupt("two streams without raw bytes between them"));
            }
            let stream = self.stream.get_or_insert_with(|| {
                Box::new(Stream { receiver: engine.receiver(), queue: engine.decoding(key), jobs: 0 })
            });
            stream.receiver.receive(bytes)?;
            stream.work(key, engine)?;
        }
        Ok(Some(&mut self.raw))
    }

    /// A worker has decoded a block.
    ///
    /// # Errors
    /// As for [`Incoming::next`].
    pub(super) fn decoded(&mut self, done: DecodeDone, key: Key, engine: &mut Engine) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.jobs -= 1;
        stream.receiver.finish(done)?;
        stream.work(key, engine)
    }

    /// Records the memory that it holds, and limits what its receiver may.
    pub(super) fn count(&mut self, engine: &Engine) {
        let held = self.held();
        if held == 0 && self.stream.is_none() {
            self.share = None;
            return;
        }
        let share = self.share.get_or_insert_with(|| engine.share());
        share.count(held);
        let max = share.memory_max().min(RECEIVED_MAX);
        if let Some(stream) = &mut self.stream {
            stream.receiver.set_memory_max(max);
        }
    }
}

impl Stream {
    /// Decodes short blocks here, and lets workers do the others.
    fn work(&mut self, key: Key, engine: &mut Engine) -> Result<()> {
        let mut here_ns = 0;
        while let Some(job) = self.receiver.poll_job() {
            let short = job.estimate_ns < INLINE_NS && here_ns + job.estimate_ns < HERE_NS && self.jobs == 0;
            if job.is_stored() || short && job.raw_len_max() <= MESSAGE_LEN {
                here_ns += if job.is_stored() { 0 } else { job.estimate_ns };
                let done = job.run(&mut engine.contexts, &engine.buffers);
                self.receiver.finish(done)?;
            } else if short {
                here_ns += job.estimate_ns;
                let done = stream::decode(job, &mut engine.contexts, &engine.buffers);
                self.receiver.finish(done)?;
            } else {
                self.submit(job, key, engine);
            }
        }
        Ok(())
    }

    fn submit(&mut self, job: DecodeJob, key: Key, engine: &mut Engine) {
        self.jobs += 1;
        let buffers = engine.buffers.clone();
        engine.submit(&self.queue, key, move |contexts| {
            engine::Result::Decoded(Box::new(stream::decode(job, contexts, &buffers)))
        });
    }
}
