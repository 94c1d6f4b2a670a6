//! The direction of a flow from the session to a local connection: raw bytes, and streams that are
//! decoded (docs/format.md, section 21.5). No I/O, no clock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use narrows::block::Block;
use narrows::flow::{Budget, Decoding, Share};
use narrows::pool::Queue;
use narrows::receiver::{DecodeDone, RecvSummary};
use narrows::stream::RECEIVED_MAX;
use narrows::{Error, Result};
use narrows_watch::account::Account;

use super::engine::{self, Engine, Key};
use super::limits::PIECES_MAX;
use super::socket::SLICES_MAX;

/// Pieces that wait are put together up to this length, so that tiny ones cost no more than their
/// bytes. Longer ones than the other length are not copied while they wait for a moment only.
const JOIN_MAX: usize = 16 << 10;
const SHARED_MIN: usize = 4 << 10;
/// What a piece takes beside its bytes.
const PIECE_COST: usize = 64;
/// Bytes that are ready for one write to the local connection.
const READY_MAX: usize = 256 << 10;

/// State of the direction.
#[derive(Default)]
pub(super) struct Incoming {
    /// Received and not looked at.
    pieces: VecDeque<Piece>,
    /// Bytes of `pieces`.
    waiting: usize,
    /// Those of them that are short.
    short: usize,
    stream: Option<Box<Stream>>,
    /// The next bytes of the local connection.
    ready: VecDeque<Ready>,
    /// Bytes of `ready`.
    ready_len: usize,
    /// What is wrong with the bytes after them.
    failed: Option<Box<Error>>,
    /// The local connection takes nothing now: what waits for it must not keep more than its own
    /// bytes.
    stalled: bool,
    /// No raw bytes came since the last stream.
    unparted: bool,
    /// The peer has finished.
    ended: bool,
    share: Option<Share>,
    /// What its streams did that are over.
    past: Option<Box<RecvSummary>>,
    /// Bytes for the local connection so far.
    pub(super) bytes: u64,
    /// Bytes that came for them. Those that wait do not count yet: a slow reader would make a ratio
    /// that no data has.
    pub(super) wire: u64,
}

/// Bytes for the local connection.
struct Ready {
    bytes: Block,
    /// They are as they came, and need their room until they are written.
    is_received: bool,
}

enum Piece {
    /// As it came, within the buffer that it came in.
    Shared { coded: bool, bytes: Block },
    /// Copied, and perhaps joined.
    Own { coded: bool, bytes: Vec<u8> },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Shared { bytes, .. } => bytes.len(),
            Self::Own { bytes, .. } => bytes.len(),
        }
    }

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

/// The same bytes, without the rest of a much longer buffer.
fn alone(bytes: &Block) -> Option<Block> {
    (bytes.buffer_len() / 2 > bytes.len()).then(|| Block::from_vec(bytes.to_vec()))
}

struct Stream {
    decoding: Decoding,
    queue: Queue,
    /// Where it tells how long decoding took, when it is over.
    account: Rc<RefCell<Account>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.account.borrow_mut().times.decode_cpu_ns += self.decoding.summary().decode_cpu_ns;
    }
}

impl Incoming {
    /// A direction that begins with bytes of this end.
    pub(super) fn behind(bytes: Vec<u8>) -> Self {
        let mut incoming = Self::default();
        if !bytes.is_empty() {
            incoming.ready_len = bytes.len();
            incoming.ready.push_back(Ready { bytes: Block::from_vec(bytes), is_received: false });
        }
        incoming
    }

    /// Takes received bytes.
    pub(super) fn push(&mut self, coded: bool, bytes: Block) {
        if self.short > PIECES_MAX {
            self.failed.get_or_insert_with(|| Box::new(Error::corrupt("raw and coded bytes alternate in tiny pieces")));
            return;
        }
        self.waiting += bytes.len();
        self.short += usize::from(bytes.len() < SHARED_MIN);
        match self.pieces.back_mut() {
            _ if bytes.len() >= SHARED_MIN && !self.stalled => self.pieces.push_back(Piece::Shared { coded, bytes }),
            None if !self.stalled => self.pieces.push_back(Piece::Shared { coded, bytes }),
            // What waits longer must not keep the whole buffer in which it came.
            Some(Piece::Own { coded: last, bytes: joined })
                if *last == coded && joined.len() + bytes.len() <= JOIN_MAX =>
            {
                let short = |len| usize::from(len < SHARED_MIN);
                self.short -= short(joined.len()) + short(bytes.len());
                joined.extend_from_slice(&bytes);
                self.short += short(joined.len());
            }
            _ => self.pieces.push_back(Piece::Own { coded, bytes: bytes.to_vec() }),
        }
    }

    /// Nothing follows.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the peer has finished.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the local connection has been given everything and the end may follow.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.is_idle()
    }

    /// Whether it holds nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.stream.is_none() && self.ready.is_empty()
    }

    /// Whether nothing more can be got out of it without further bytes of the peer.
    pub(super) fn is_exhausted(&self) -> bool {
        self.pieces.is_empty() && self.ready.is_empty() && self.stream.as_ref().is_none_or(|s| s.decoding.jobs() == 0)
    }

    /// What its receivers did.
    pub(super) fn summary(&self) -> Option<RecvSummary> {
        let live = self.stream.as_ref().map(|stream| stream.decoding.summary());
        match (self.past.as_deref(), live) {
            (Some(past), Some(live)) => {
                let mut all = past.clone();
                all.merge(live);
                Some(all)
            }
            (past, live) => past.or(live).cloned(),
        }
    }

    /// CPU time of decoding a live stream, of which the engine's account does not know yet.
    pub(super) fn live_decode_cpu_ns(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.decoding.summary().decode_cpu_ns)
    }

    #[cfg(test)]
    pub(super) fn is_working(&self) -> bool {
        self.stream.as_ref().is_some_and(|s| s.decoding.jobs() > 0)
    }

    /// Bytes that it holds beside its receiver.
    fn beside(&self) -> usize {
        self.short * PIECE_COST + self.waiting + self.ready_len
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.beside() + self.stream.as_ref().map_or(0, |s| s.decoding.held())
    }

    /// Prepares bytes for the local connection, enough for one write. `took` grows by the received
    /// bytes that need no room any more.
    ///
    /// # Errors
    /// The bytes after all that were ready are damaged; the flow is to be reset.
    pub(super) fn fill(&mut self, took: &mut usize, key: Key, engine: &mut Engine) -> Result<()> {
        if self.failed.is_none()
            && let Err(e) = self.gather(took, key, engine)
        {
            self.failed = Some(Box::new(e));
        }
        if !self.ready.is_empty() {
            return Ok(());
        }
        self.failed.take().map_or(Ok(()), |e| Err(*e))
    }

    fn gather(&mut self, took: &mut usize, key: Key, engine: &mut Engine) -> Result<()> {
        while self.ready.len() < SLICES_MAX && self.ready_len < READY_MAX {
            if let Some(stream) = &mut self.stream {
                if let Some(bytes) = stream.decoding.read() {
                    // What was read made room.
                    let worked = stream.work(key, engine);
                    self.add_ready(bytes, false);
                    worked?;
                    continue;
                }
                if stream.decoding.is_finished() && stream.decoding.jobs() == 0 {
                    self.past.get_or_insert_default().merge(stream.decoding.summary());
                    self.stream = None;
                    engine.stream_ended();
                    self.unparted = true;
                    continue;
                }
                if stream.decoding.jobs() > 0 || stream.decoding.room() == 0 {
                    return Ok(());
                }
            }
            let Some(piece) = self.pieces.pop_front() else {
                if self.ended && self.stream.is_some() {
                    return Err(Error::truncated("a flow ends within its stream"));
                }
                return Ok(());
            };
            if self.pieces.is_empty() {
                self.pieces = VecDeque::new();
            }
            let coded = piece.coded();
            self.short -= usize::from(piece.len() < SHARED_MIN);
            let bytes = piece.into_bytes();
            self.waiting -= bytes.len();
            self.wire += bytes.len() as u64;
            if !coded {
                if self.stream.is_some() {
                    return Err(Error::corrupt("raw bytes within a stream"));
                }
                self.unparted = false;
                self.add_ready(bytes, true);
                continue;
            }
            *took += bytes.len();
            if self.unparted {
                return Err(Error::corrupt("two streams without raw bytes between them"));
            }
            let stream = self.stream.get_or_insert_with(|| {
                let decoding = engine.compression.receive_options().ends_at_frame(true).decoding(&engine.buffers);
                let queue = engine.compression.decoders(engine.on_panic(key));
                Box::new(Stream { decoding, queue, account: engine.account() })
            });
            stream.decoding.receive(bytes)?;
            stream.work(key, engine)?;
        }
        Ok(())
    }

    fn add_ready(&mut self, bytes: Block, is_received: bool) {
        self.bytes += bytes.len() as u64;
        self.ready_len += bytes.len();
        if !bytes.is_empty() {
            self.ready.push_back(Ready { bytes, is_received });
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Bytes that are ready.
    pub(super) fn ready_len(&self) -> usize {
        self.ready_len
    }

    /// Raw bytes of the flow that the local connection has taken.
    pub(super) fn delivered(&self) -> u64 {
        self.bytes.saturating_sub(self.ready_len as u64)
    }

    /// What is ready, for one write.
    pub(super) fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.ready.iter().map(|ready| IoSlice::new(&ready.bytes))
    }

    /// The local connection has taken `len` bytes of what was ready; `took` grows as for
    /// [`Incoming::fill`].
    pub(super) fn consume(&mut self, mut len: usize, took: &mut usize) {
        self.ready_len -= len;
        while len > 0 {
            let Some(front) = self.ready.front_mut() else { return };
            let part = front.bytes.len().min(len);
            *took += if front.is_received { part } else { 0 };
            len -= part;
            drop(front.bytes.split_to(part));
            if front.bytes.is_empty() {
                self.ready.pop_front();
            }
        }
        if self.ready.is_empty() {
            // Most flows are idle most of the time.
            self.ready = VecDeque::new();
        }
    }

    /// Tells whether the local connection takes bytes now.
    pub(super) fn set_stalled(&mut self, stalled: bool) {
        if stalled && !self.stalled {
            for piece in &mut self.pieces {
                if let Piece::Shared { coded, bytes } = piece
                    && let Some(bytes) = alone(bytes)
                {
                    *piece = Piece::Shared { coded: *coded, bytes };
                }
            }
            for ready in &mut self.ready {
                if let Some(bytes) = alone(&ready.bytes) {
                    ready.bytes = bytes;
                }
            }
        }
        self.stalled = stalled;
    }

    /// Throws away what it holds and what will come: the local connection takes nothing any more.
    pub(super) fn discard(&mut self, engine: &mut Engine) {
        if self.stream.take().is_some() {
            engine.stream_ended();
        }
        (self.pieces, self.ready, self.failed) = (VecDeque::new(), VecDeque::new(), None);
        (self.waiting, self.short, self.ready_len) = (0, 0, 0);
    }

    /// A worker has decoded a block.
    ///
    /// # Errors
    /// As for [`Incoming::next`].
    pub(super) fn decoded(&mut self, done: DecodeDone, key: Key, engine: &mut Engine) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.decoding.finish(done)?;
        stream.work(key, engine)
    }

    /// Records the memory that it holds, and limits what its receiver may.
    pub(super) fn count(&mut self, engine: &Engine) {
        let beside = self.beside();
        if beside == 0 && self.stream.is_none() {
            self.share = None;
            return;
        }
        let share = self.share.get_or_insert_with(|| engine.compression.memory.share());
        match &mut self.stream {
            Some(stream) => stream.decoding.count(share, beside, RECEIVED_MAX),
            None => share.count(beside),
        }
    }
}

impl Stream {
    /// Decodes short blocks here, and lets workers do the others.
    fn work(&mut self, key: Key, engine: &mut Engine) -> Result<()> {
        let mut workers = engine.workers(&self.queue, key, engine::Result::Decoded);
        self.decoding.work(Budget::FEW, &mut workers).map(drop)
    }
}
