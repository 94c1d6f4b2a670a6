//! The receiving half of a flow: wire bytes in, raw bytes out in order. No I/O, no thread, no
//! clock. It never imports policy or monitor: how a choice was made is not on the wire.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::block::{Block, BufferPool};
use crate::codec::{CodecId, Codecs};
use crate::error::{Error, Result};
use crate::frame::{self, BlockHeader, ControlHeader, ControlKind, EndTotals, Preface, ReadLimits, Role, chain_digest};
use crate::history::History;
use crate::past::Past;
use crate::stored::Stored;

mod copies;
mod job;
mod observer;
mod parser;
mod reverse;

use job::Join;
pub use job::{DecodeDone, DecodeJob};
pub use observer::{Depth, Observed, ObservedKind};
pub use parser::PartialBody;

use copies::{Earlier, Unjoined};
use observer::Observer;
use parser::{Item, Parser};
use reverse::Reports;

/// Settings of a [`Receiver`].
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// The codecs of this end.
    pub registry: Codecs,
    /// Longest block that this side accepts, in bytes. A sender that declares more is refused at
    /// its preface, or told on a duplex link.
    pub block_max: usize,
    /// Most history that this side keeps, in bytes; applied like `block_max`.
    pub history_max: usize,
    /// Most raw bytes that this side keeps for copies, beside `memory_max`; applied like
    /// `block_max`, and rounded down to a power of two. Only the flow of a sender that announces
    /// copies takes them, and no more than it has bytes. 0: no copies, unless raw bytes can be read
    /// back ([`Receiver::read_back`]).
    pub reach_max: usize,
    /// Most wire and raw bytes held at a time; [`Receiver::room`] is 0 beyond it.
    pub memory_max: usize,
    /// Number of decoding threads, also for the reports.
    pub cores: usize,
    /// Whether recompressed images are decoded, which takes up to 64 MiB beside `memory_max` in each
    /// decoding thread. Only what is stored has them.
    pub images: bool,
    /// Whether to send a preface and feedback in the reverse direction.
    pub duplex: bool,
    /// Whether the stream is over at its end frame on one-way links too. Otherwise the driver reads
    /// on to the end of the link, since nothing may follow; a link that another process keeps open
    /// has no end.
    pub ends_at_frame: bool,
    /// Whether bytes after the end frame are kept for [`Receiver::take_rest`], as those of another
    /// stream. Otherwise they are an error.
    pub keeps_rest: bool,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            registry: Codecs::default(),
            block_max: frame::BASELINE_BLOCK_MAX,
            history_max: frame::HISTORY_DEFAULT,
            reach_max: 0,
            memory_max: MEMORY_MAX_DEFAULT,
            cores: 1,
            images: false,
            duplex: false,
            ends_at_frame: false,
            keeps_rest: false,
        }
    }
}

/// A reach as a preface can state it.
fn reach_of(len: usize) -> usize {
    len.min(frame::REACH_MAX_HARD).checked_ilog2().map_or(0, |log| 1 << log)
}

/// Default of [`ReceiverConfig::memory_max`]: eight blocks of 2 MiB with their bodies, or a reach
/// of 24 blocks of 512 KiB.
pub const MEMORY_MAX_DEFAULT: usize = 32 << 20;

/// Most frames held at a time, however small.
const FRAMES_MAX: usize = 1024;

/// A body is read into directly if this much of it is missing; to copy less takes less time than the
/// system call.
const DIRECT_MIN: usize = 16 << 10;

/// Fixed cost of a job: buffers and the check.
const JOB_NS: u64 = 1_000;

/// State machine of the receiving half of a flow.
pub struct Receiver {
    config: ReceiverConfig,
    pool: BufferPool,
    parser: Parser,
    /// Received bytes that found no room.
    unparsed: VecDeque<Block>,
    preface: Option<Preface>,
    queue: Queue,
    next_seq: u64,
    /// Raw offset after the last slot of the ready front.
    raw_offset: u64,
    digest: u64,
    decoding: Decoding,
    history: History,
    /// It began inside the stream, with all the history that the stream may have.
    is_within: bool,
    copies: Copies,
    /// How far back copies may refer.
    reach: usize,
    end: End,
    failed: bool,
    /// An error that was not reported yet.
    deferred: Option<Error>,
    reports: Reports,
    summary: RecvSummary,
    observer: Option<Observer>,
}

/// Frames that were received, in the order of the stream.
#[derive(Default)]
struct Queue {
    slots: VecDeque<Slot>,
    /// Number of decoded slots at the front.
    ready: usize,
    /// Wire and raw bytes of all.
    held: usize,
}

/// What workers do.
#[derive(Default)]
struct Decoding {
    jobs: usize,
    /// Time that decoding took by the clock.
    wall_ns: u64,
    /// The first block that could not be decoded.
    damaged_seq: Option<u64>,
}

/// Whether the end frame has come, and its totals are right.
#[derive(Default)]
struct End {
    parsed: bool,
    verified: bool,
}

/// What copies refer to: the raw bytes before those that come next.
#[derive(Default)]
struct Copies {
    /// In memory, unless they are read back.
    past: Past,
    earlier: Option<Earlier>,
}

/// Totals of a received flow.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RecvSummary {
    /// Raw bytes delivered.
    pub raw_bytes: u64,
    /// Wire bytes received.
    pub wire_bytes: u64,
    /// Raw bytes that were copied from earlier ones.
    pub copied_bytes: u64,
    /// Data, copy and message frames decoded.
    pub frames: u64,
    /// CPU time of decoding, all threads.
    pub decode_cpu_ns: u64,
    /// Time in which the reader of the raw bytes accepted none; set by the driver at the end.
    pub sink_ns: u64,
    /// Time in which the raw bytes were stored at the end; set by the driver.
    pub commit_ns: u64,
    /// Frames and bytes by codec, in order of first use.
    pub mix: Vec<RecvMixRow>,
}

impl RecvSummary {
    /// Adds what another receiver did.
    pub fn merge(&mut self, other: &Self) {
        self.raw_bytes += other.raw_bytes;
        self.wire_bytes += other.wire_bytes;
        self.copied_bytes += other.copied_bytes;
        self.frames += other.frames;
        self.decode_cpu_ns += other.decode_cpu_ns;
        self.sink_ns += other.sink_ns;
        self.commit_ns += other.commit_ns;
        for row in &other.mix {
            match self.mix.iter_mut().find(|known| known.codec == row.codec) {
                Some(known) => {
                    known.frames += row.frames;
                    known.raw_bytes += row.raw_bytes;
                    known.wire_bytes += row.wire_bytes;
                }
                None => self.mix.push(row.clone()),
            }
        }
    }
}

/// Totals of one codec.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvMixRow {
    /// The codec.
    pub codec: CodecId,
    /// Number of frames.
    pub frames: u64,
    /// Raw bytes without those that were copied.
    pub raw_bytes: u64,
    /// Wire bytes, headers included.
    pub wire_bytes: u64,
}

struct Slot {
    seq: u64,
    wire_offset: u64,
    wire_len: usize,
    /// Bytes that it contributes to `Queue::held`.
    held: usize,
    state: SlotState,
}

enum SlotState {
    Waiting(BlockHeader, Block),
    Decoding(BlockHeader),
    /// A copy frame that waits for its turn.
    Unjoined(BlockHeader, Unjoined),
    Ready(BlockHeader, Block),
    Control(ControlHeader, Block),
    /// A control frame that was handled.
    Spent,
}

impl Receiver {
    /// A receiver of a new flow.
    pub fn new(config: ReceiverConfig, pool: BufferPool) -> Self {
        Self {
            parser: Parser::new(pool.clone()),
            unparsed: VecDeque::new(),
            deferred: None,
            pool,
            config,
            preface: None,
            queue: Queue::default(),
            next_seq: 0,
            raw_offset: 0,
            digest: 0,
            decoding: Decoding::default(),
            history: History::default(),
            is_within: false,
            copies: Copies::default(),
            reach: 0,
            end: End::default(),
            failed: false,
            reports: Reports::default(),
            summary: RecvSummary::default(),
            observer: None,
        }
    }

    /// Lets copies refer up to `reach_max` bytes back, which are read from `stored` instead of being
    /// kept in memory: the place where the driver stores what [`Receiver::read`] returns, from its
    /// first byte on. The driver tells by [`Receiver::stored`] what is there. The place may be
    /// changed by others, and only a check tells; so a stream without checks is kept in memory.
    /// To be called before the first bytes are received.
    pub fn read_back(&mut self, stored: Arc<dyn Stored>, reach_max: usize) {
        self.copies.earlier = Some(Earlier::new(stored, reach_of(reach_max)));
    }

    /// The next `len` bytes that [`Receiver::read`] returned are stored.
    pub fn stored(&mut self, len: usize) {
        self.copies.earlier.iter_mut().for_each(|earlier| earlier.forget(len));
    }

    /// A receiver of a part of a stream: from a place at which the history is empty, a reset frame or
    /// the first frame. The stream's `preface` was read from its beginning; what comes first is the
    /// frame at `wire_offset`, with `raw_offset` raw bytes before it. Such a part has no end frame.
    ///
    /// # Errors
    /// `Limit` or `Unsupported` if this side cannot take what the preface states.
    pub fn within(
        config: ReceiverConfig,
        pool: BufferPool,
        preface: &Preface,
        raw_offset: u64,
        wire_offset: u64,
    ) -> Result<Self> {
        let mut receiver = Self::new(config, pool);
        receiver.on_preface(*preface)?;
        // A longer history than the sender looked back to changes nothing, and the keep frame that
        // asked for it may lie before this part.
        receiver.history.grow_to(preface.history.min(receiver.config.history_max));
        receiver.is_within = true;
        receiver.copies.past.skip(raw_offset);
        receiver.raw_offset = raw_offset;
        receiver.parser.set_wire_offset(wire_offset);
        Ok(receiver)
    }

    /// Keeps a record of every frame for [`Receiver::poll_observed`]. To be called before the first
    /// bytes are received.
    pub fn observe(&mut self, depth: Depth) {
        self.observer = Some(Observer::new(depth));
    }

    /// The next frame that an observed receiver has seen, in the order of the stream. The frame at
    /// which a stream fails is not among them: the error says its place. While 1,024 frames wait to
    /// be taken, the receiver has no room.
    pub fn poll_observed(&mut self) -> Option<Observed> {
        self.observer.as_mut().and_then(Observer::take)
    }

    /// The preface of the sender, once it was parsed; also one that this side refuses.
    pub fn preface(&self) -> Option<&Preface> {
        self.preface.as_ref()
    }

    /// Wire bytes that can be received at this time. 0: decode or read first.
    pub fn room(&self) -> usize {
        let observed = self.observer.as_ref().is_some_and(Observer::is_full);
        let full = self.queue.slots.len() >= FRAMES_MAX || observed;
        if full { 0 } else { self.config.memory_max.saturating_sub(self.queue.held) }
    }

    /// Wire and raw bytes held.
    pub fn held(&self) -> usize {
        self.queue.held
    }

    /// Changes the limit of bytes held. With any limit above 0 one block passes.
    pub fn set_memory_max(&mut self, memory_max: usize) {
        self.config.memory_max = memory_max;
    }

    /// Takes wire bytes. An incomplete frame is not an error; bytes after the end frame are. The
    /// first error is final.
    ///
    /// A few bytes may contain frames of many raw megabytes: frames that find no room stay unparsed
    /// until [`Receiver::resume`].
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported`; `Misuse` after an earlier error.
    pub fn receive(&mut self, wire: Block) -> Result<()> {
        self.check_alive()?;
        self.summary.wire_bytes += wire.len() as u64;
        self.unparsed.push_back(wire);
        self.resume()
    }

    /// Whether received frames wait for room.
    pub fn has_unparsed(&self) -> bool {
        !self.unparsed.is_empty()
    }

    /// Their length in bytes.
    pub fn unparsed_len(&self) -> usize {
        self.unparsed.iter().map(|wire| wire.len()).sum()
    }

    /// Parses received frames that found no room before.
    ///
    /// # Errors
    /// As for [`Receiver::receive`].
    pub fn resume(&mut self) -> Result<()> {
        self.check_alive()?;
        while let Some(mut wire) = self.unparsed.pop_front() {
            let taken = self.take_items(&mut wire);
            self.fail_on_error(taken)?;
            if !wire.is_empty() {
                self.unparsed.push_front(wire);
                break;
            }
        }
        Ok(())
    }

    /// The body of the frame that has arrived in part, if much of it is missing: the driver may read
    /// the next bytes of the link into [`PartialBody::rest`]. They are received when it is put back,
    /// which it must be before any other bytes are.
    pub fn take_body(&mut self) -> Option<PartialBody> {
        if self.failed || self.has_unparsed() { None } else { self.parser.take_body(DIRECT_MIN) }
    }

    /// Takes a body back, into which `read` bytes of the link were read.
    ///
    /// # Errors
    /// As for [`Receiver::receive`].
    pub fn put_body(&mut self, body: PartialBody, read: usize) -> Result<()> {
        self.parser.put_body(body, read);
        self.check_alive()?;
        self.summary.wire_bytes += read as u64;
        let taken = self.take_items(&mut Block::default());
        self.fail_on_error(taken)
    }

    fn take_items(&mut self, wire: &mut Block) -> Result<()> {
        loop {
            // A body that is complete has its memory already.
            if self.room() == 0 && !wire.is_empty() {
                return Ok(());
            }
            if self.end.parsed && !wire.is_empty() {
                if self.config.keeps_rest {
                    return Ok(());
                }
                return Err(Error::corrupt("there are bytes after the end of the stream")
                    .at(self.parser.wire_offset(), self.next_seq));
            }
            let (at, seq) = (self.parser.wire_offset(), self.next_seq);
            let item = self.parser.next(wire).map_err(|e| e.at(at, seq))?;
            match item {
                None => return Ok(()),
                Some(Item::Preface(preface)) => self.on_preface(preface).map_err(|e| e.at(at, seq))?,
                Some(Item::Block(header, _)) if self.observer.as_ref().is_some_and(Observer::is_shallow) => {
                    self.next_seq += 1;
                    self.pass(&header, header.raw_len.unwrap_or(0), at);
                }
                Some(Item::Block(header, body)) => {
                    let wire_len = header.header_len() + body.len();
                    let raw_len = header.raw_len.unwrap_or(frame::MESSAGE_MAX);
                    // Literals are put together with copies in a second buffer.
                    let held = body.len() + if header.copies { 2 * raw_len } else { raw_len };
                    self.push_slot(at, wire_len, held, SlotState::Waiting(header, body));
                    self.next_seq += 1;
                }
                Some(Item::Control(header, body)) => {
                    self.end.parsed |= header.kind == ControlKind::End;
                    self.push_slot(at, 0, body.len(), SlotState::Control(header, body));
                    self.advance()?;
                }
            }
        }
    }

    fn push_slot(&mut self, wire_offset: u64, wire_len: usize, held: usize, state: SlotState) {
        self.queue.held += held;
        self.queue.slots.push_back(Slot { seq: self.next_seq, wire_offset, wire_len, held, state });
    }

    /// How far back this side lets copies refer.
    fn most_reach(&self) -> usize {
        self.copies.earlier.as_ref().map_or_else(|| reach_of(self.config.reach_max), |earlier| earlier.reach)
    }

    /// What this side decodes, as the bits of a preface.
    fn codecs(&self) -> u64 {
        let without = if self.config.images { 0 } else { 1 << CodecId::LEPTON.0 };
        self.config.registry.bits() & !without
    }

    fn on_preface(&mut self, preface: Preface) -> Result<()> {
        self.preface = Some(preface);
        if preface.role != Role::Sender {
            return Err(Error::corrupt("the other side is a receiver too"));
        }
        // On a duplex link the sender reads our limits and respects them; its preface demands
        // nothing.
        let duplex = self.config.duplex && preface.optional & frame::feature::DUPLEX != 0;
        if !duplex && (preface.block_max > self.config.block_max || preface.history > self.config.history_max) {
            return Err(Error::limit(format!(
                "the stream needs blocks of {} bytes and {} bytes of history; this side allows {} and {}: raise the limits",
                preface.block_max, preface.history, self.config.block_max, self.config.history_max
            )));
        }
        let copies = preface.critical & frame::feature::COPIES != 0;
        // On a duplex link the sender goes as far as it was told, before this side knew of the checks.
        let needed = if copies { preface.reach } else { preface.reach.min(self.most_reach()) };
        if !preface.check {
            self.copies.earlier = None;
        }
        let most = self.most_reach();
        if (copies || duplex) && needed > most {
            return Err(Error::limit(format!(
                "the stream refers {} MiB back, this side keeps {}: allow it with --long={}",
                needed >> 20,
                most >> 20,
                needed.ilog2()
            )));
        }
        self.reach = if copies || duplex { needed } else { 0 };
        self.copies.earlier = self.copies.earlier.take().filter(|_| self.reach > 0);
        self.copies.past = Past::new(if self.copies.earlier.is_some() { 0 } else { self.reach });
        let history = preface.history.min(self.config.history_max);
        self.history = History::new(history.min(frame::BASELINE_HISTORY));
        self.parser.set_limits(ReadLimits {
            block_max: preface.block_max.min(self.config.block_max),
            history,
            reach: self.reach,
            codecs: preface.codecs & self.codecs(),
            check: preface.check,
            messages: preface.critical & frame::feature::MESSAGES != 0,
        });
        Ok(())
    }

    /// Whether a frame has arrived in part, or waits for room.
    pub fn is_within_item(&self) -> bool {
        !self.parser.is_between_items() || self.has_unparsed()
    }

    /// Whether the end frame was parsed, so that nothing more is expected.
    pub fn has_end(&self) -> bool {
        self.end.parsed && (self.config.keeps_rest || !self.has_unparsed())
    }

    /// Takes the received bytes after the end frame, once it was parsed. They count as not received.
    pub fn take_rest(&mut self) -> impl Iterator<Item = Block> + use<> {
        let rest = if self.has_end() { std::mem::take(&mut self.unparsed) } else { VecDeque::new() };
        self.summary.wire_bytes -= rest.iter().map(|wire| wire.len() as u64).sum::<u64>();
        rest.into_iter()
    }

    /// Whether the stream is over; if false after [`Receiver::has_end`], it ends with the link.
    pub fn is_over(&self) -> bool {
        (self.config.duplex || self.config.ends_at_frame) && self.has_end()
    }

    /// The link has ended: `Truncated` unless the end frame was seen.
    ///
    /// # Errors
    /// `Truncated`, or `Misuse` if frames are unparsed or the stream has failed already.
    pub fn close(&mut self) -> Result<()> {
        self.check_alive()?;
        if self.has_unparsed() && !self.has_end() {
            return Err(Error::misuse("received frames wait for room: decode, read and resume first"));
        }
        if self.end.parsed && self.parser.is_between_items() {
            return Ok(());
        }
        let message = if self.preface.is_none() && self.parser.is_between_items() {
            "the stream is empty"
        } else {
            "the stream ends before its end frame"
        };
        let error = Error::truncated(message).at(self.parser.wire_offset(), self.next_seq);
        self.fail_on_error(Err(error))
    }

    /// The next block to decode. Linked blocks wait for all blocks before them, others may be
    /// decoded in parallel.
    pub fn poll_job(&mut self) -> Option<DecodeJob> {
        // A failure here is final; the next call that returns a result reports it.
        if self.has_unparsed()
            && !self.failed
            && let Err(e) = self.resume()
        {
            self.deferred = Some(e);
        }
        if let Some(job) = self.poll_join() {
            return Some(job);
        }
        if self.decoding.jobs >= self.config.cores.max(1) {
            return None;
        }
        // Raw offsets after a message that is not decoded yet are unknown, so its successors wait
        // for it.
        let mut raw_offset = self.raw_offset;
        let end = self.decoding.damaged_seq.unwrap_or(u64::MAX);
        for i in self.queue.ready..self.queue.slots.len() {
            if self.queue.slots[i].seq >= end {
                return None;
            }
            let header = match &self.queue.slots[i].state {
                SlotState::Waiting(header, _) => *header,
                SlotState::Decoding(header) => {
                    raw_offset += header.raw_len? as u64;
                    continue;
                }
                SlotState::Ready(_, raw) => {
                    raw_offset += raw.len() as u64;
                    continue;
                }
                SlotState::Unjoined(header, _) => {
                    raw_offset += header.raw_len? as u64;
                    continue;
                }
                SlotState::Control(..) | SlotState::Spent => continue,
            };
            if header.linked && i > self.queue.ready {
                raw_offset += header.raw_len? as u64;
                continue;
            }
            let history = if header.linked { self.history.share() } else { Block::default() };
            let slot = &mut self.queue.slots[i];
            let state = std::mem::replace(&mut slot.state, SlotState::Decoding(header));
            let SlotState::Waiting(_, body) = state else { return None };
            self.decoding.jobs += 1;
            let len = header.raw_len.unwrap_or(frame::MESSAGE_MAX);
            let codec = self.config.registry.get(header.codec);
            let ns_per_byte = codec.map_or(0.0, |c| c.nominal_ns_per_byte(c.default_level()).1);
            let estimate_ns = JOB_NS + (ns_per_byte * len as f32) as u64;
            let (seq, reach) = (slot.seq, self.reach);
            return Some(DecodeJob { seq, estimate_ns, header, codec, body, history, raw_offset, reach, join: None });
        }
        None
    }

    /// The front block, if its copies are to be read back: not here, since that may take long.
    fn poll_join(&mut self) -> Option<DecodeJob> {
        let earlier = self.copies.earlier.as_ref()?;
        let slot = self.queue.slots.get_mut(self.queue.ready)?;
        let SlotState::Unjoined(header, _) = slot.state else { return None };
        let SlotState::Unjoined(_, unjoined) = std::mem::replace(&mut slot.state, SlotState::Decoding(header)) else {
            return None;
        };
        self.decoding.jobs += 1;
        let (body, history) = (Block::default(), Block::default());
        let estimate_ns = JOB_NS + header.raw_len.unwrap_or(0) as u64;
        let join = Some(Join { unjoined, snapshot: earlier.snapshot() });
        let (raw_offset, reach) = (self.raw_offset, self.reach);
        Some(DecodeJob { seq: slot.seq, estimate_ns, header, codec: None, body, history, raw_offset, reach, join })
    }

    /// Takes a decoded block. An error is final for everything after it; the blocks before it can
    /// still be decoded and read.
    ///
    /// # Errors
    /// The error of decoding or of a later control frame; `Misuse` if the job is unknown.
    pub fn finish(&mut self, done: DecodeDone) -> Result<()> {
        self.decoding.jobs -= 1;
        self.summary.decode_cpu_ns += done.cpu_ns;
        self.decoding.wall_ns += done.wall_ns.max(done.cpu_ns);
        let found =
            self.queue.slots.iter_mut().find(|s| s.seq == done.seq && matches!(s.state, SlotState::Decoding(_)));
        let Some(slot) = found else { return Err(Error::misuse("a job was finished twice")) };
        let (wire_offset, seq) = (slot.wire_offset, slot.seq);
        let raw = match done.result {
            Ok(raw) => raw,
            Err(e) => return self.damaged(seq, e.at(wire_offset, seq)),
        };
        if let SlotState::Decoding(header) = slot.state {
            if !done.joined {
                self.summary.count(&header, raw.len(), slot.wire_len);
            }
            slot.state = match done.copies {
                Some((body, body_hash)) => SlotState::Unjoined(header, Unjoined { body, body_hash, literals: raw }),
                None => SlotState::Ready(header, raw),
            };
        }
        let advanced = self.advance();
        self.fail_on_error(advanced)?;
        self.deferred.take().map_or(Ok(()), Err)
    }

    fn damaged(&mut self, seq: u64, error: Error) -> Result<()> {
        self.decoding.damaged_seq = Some(self.decoding.damaged_seq.map_or(seq, |damaged| damaged.min(seq)));
        self.fail_on_error(Err(error))
    }

    /// Whether decoding jobs are outstanding.
    pub fn is_decoding(&self) -> bool {
        self.decoding.jobs > 0
    }

    /// Moves the ready front: copy frames are put together, blocks enter history and reach, and
    /// control frames are handled, all in order.
    fn advance(&mut self) -> Result<()> {
        while let Some(slot) = self.queue.slots.get_mut(self.queue.ready) {
            let (at, seq) = (slot.wire_offset, slot.seq);
            match std::mem::replace(&mut slot.state, SlotState::Spent) {
                SlotState::Ready(header, raw) => {
                    slot.state = SlotState::Ready(header, raw.clone());
                    self.pass(&header, raw.len(), at);
                    self.history.push_block(&raw);
                    match &mut self.copies.earlier {
                        Some(earlier) => earlier.push(raw),
                        None => self.copies.past.push(&raw),
                    }
                }
                SlotState::Unjoined(header, unjoined) if self.copies.earlier.is_none() => {
                    match unjoined.join(&header, &self.copies.past, self.raw_offset, &self.pool) {
                        Ok(raw) => slot.state = SlotState::Ready(header, raw),
                        Err(e) => return self.damaged(seq, e.at(at, seq)),
                    }
                    continue;
                }
                SlotState::Control(header, body) => {
                    self.control(&header, &body, at).map_err(|e| e.at(at, seq))?;
                }
                state => {
                    slot.state = state;
                    return Ok(());
                }
            }
            self.queue.ready += 1;
        }
        Ok(())
    }

    /// Takes a block of `raw_len` bytes into the totals of the flow.
    fn pass(&mut self, header: &BlockHeader, raw_len: usize, wire_offset: u64) {
        if let Some(check) = header.check {
            self.digest = chain_digest(self.digest, check);
        }
        self.raw_offset += raw_len as u64;
        if let Some(observer) = &mut self.observer {
            observer.block(header, raw_len, wire_offset);
        }
    }

    fn control(&mut self, header: &ControlHeader, body: &[u8], wire_offset: u64) -> Result<()> {
        header.verify(body, self.raw_offset)?;
        match header.kind {
            ControlKind::Reset => {
                self.history.clear();
            }
            ControlKind::Keep => {
                let len = frame::parse_keep(body)?;
                let most = self.preface.as_ref().map_or(0, |p| p.history).min(self.config.history_max);
                // Doubled at least, since each growth copies what is kept.
                let too_short = !self.is_within && len < most.min(2 * self.history.len_max());
                if len > most || too_short {
                    return Err(Error::corrupt(format!("a history of {len} bytes; {most} were agreed on")));
                }
                self.history.grow_to(len);
            }
            ControlKind::End => {
                let totals = EndTotals::parse(body)?;
                if (totals.raw_total, totals.wire_total, totals.digest) != (self.raw_offset, wire_offset, self.digest) {
                    return Err(Error::corrupt("the totals of the end frame do not match the stream"));
                }
                self.end.verified = true;
            }
            ControlKind::Index
            | ControlKind::Sums
            | ControlKind::PrefaceCopy
            | ControlKind::Attempt
            | ControlKind::Unknown(_) => {}
            // Whoever wants it has scanned for it.
            ControlKind::Delivered => {
                frame::parse_delivered(body)?;
            }
            ControlKind::Feedback | ControlKind::Close | ControlKind::Note => {
                return Err(Error::corrupt("a frame that only a receiver sends"));
            }
        }
        if let Some(observer) = &mut self.observer {
            observer.control(header, wire_offset);
        }
        Ok(())
    }

    /// Whether [`Receiver::read`] would return bytes.
    pub fn has_raw(&self) -> bool {
        self.queue.slots.iter().take(self.queue.ready).any(|s| matches!(s.state, SlotState::Ready(..)))
    }

    /// The next raw bytes in order.
    pub fn read(&mut self) -> Option<Block> {
        while self.queue.ready > 0 {
            let slot = self.queue.slots.pop_front()?;
            self.queue.ready -= 1;
            self.queue.held -= slot.held;
            if let SlotState::Ready(_, raw) = slot.state {
                self.summary.raw_bytes += raw.len() as u64;
                return Some(raw);
            }
        }
        None
    }

    /// Whether the end frame was seen, its totals agree, and all raw bytes were read.
    pub fn is_finished(&self) -> bool {
        self.end.verified && self.queue.slots.is_empty() && !self.failed
    }

    /// Totals so far.
    pub fn summary(&self) -> &RecvSummary {
        &self.summary
    }

    fn check_alive(&mut self) -> Result<()> {
        if let Some(e) = self.deferred.take() {
            return Err(e);
        }
        if self.failed { Err(Error::misuse("the stream has failed already")) } else { Ok(()) }
    }

    fn fail_on_error(&mut self, result: Result<()>) -> Result<()> {
        self.failed |= result.is_err();
        result
    }
}

impl RecvSummary {
    /// Counts a frame, of whose raw bytes `decoded` were in its body.
    fn count(&mut self, header: &BlockHeader, decoded: usize, wire_len: usize) {
        self.frames += 1;
        if header.copies {
            self.copied_bytes += (header.raw_len.unwrap_or(decoded) - decoded) as u64;
        }
        let codec = header.codec;
        let i = self.mix.iter().position(|r| r.codec == codec).unwrap_or_else(|| {
            self.mix.push(RecvMixRow { codec, frames: 0, raw_bytes: 0, wire_bytes: 0 });
            self.mix.len() - 1
        });
        let row = &mut self.mix[i];
        row.frames += 1;
        row.raw_bytes += decoded as u64;
        row.wire_bytes += wire_len as u64;
    }
}
