//! Direction from the program to the network: plain bytes, then possibly a marker and frames.

use std::os::fd::OwnedFd;

use narrows::ahead::{Ahead, Reports};
use narrows::block::Block;
use narrows::flow::{Budget, Encoding, Share};
use narrows::pool::Queue;
use narrows::sender::{Done, LinkSample, Summary};
use narrows::transport::{Meter, Outbox};
use narrows_host::encrypted::FirstBytes;
use rustix::io::Errno;

use super::allowance::{Allowance, Buffer};
use super::shared::{Order, PumpContext};
use super::socket::Waiting;
use super::sys;

mod reader;

/// Shortest time between two looks at the link. The engine may ask for less, but other connections
/// come first.
const LOOK_AGAIN_MIN_NS: u64 = 20_000;
/// Bulk is read only when there is room for this many bytes, or for this fraction of what may be
/// held, so that reads are not tiny.
const ROOM_MIN: usize = 64 << 10;
const ROOM_SHARE: usize = 4;
/// Plain bulk is read in pieces that grow while the network takes them completely.
const PLAIN_LEN_MIN: usize = 16 << 10;
const PLAIN_LEN_MAX: usize = 128 << 10;
/// Interval at which the kernel is asked for the size of its send buffer, which grows once per
/// round trip.
const BUFFER_EVERY_NS: u64 = 20_000_000;
/// Blocks in what may be ahead of the peer's reader, at least: one is read, one decoded, one sent and
/// one encoded.
const WINDOW_BLOCKS: usize = 4;

#[derive(Default)]
pub struct Outgoing {
    /// Plain bytes that the network has not taken yet.
    waiting: Waiting,
    frames: Option<Box<Frames>>,
    /// The program may have written something.
    pub readable: bool,
    stage: Stage,
    /// Bytes from the program so far.
    pub bytes: u64,
    /// Bytes sent before the frames.
    plain_bytes: u64,
    plain_len: usize,
    pub first: FirstBytes,
    /// TCP_NOTSENT_LOWAT, as the program has set it.
    pub unsent_max: Option<usize>,
    /// What the peer says of this direction can come at this time. While it cannot, the peer's reader
    /// does not limit this direction: it could wait for ever.
    pub hears: bool,
}

/// How far the direction has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The program may write more.
    #[default]
    Open,
    /// The program has ended it and all its bytes were read.
    Ended,
    /// The network takes nothing more; what is left is discarded.
    Discarding,
    /// The network was told of the end.
    Shut,
}

/// State of the direction since its marker.
struct Frames {
    encoding: Encoding,
    allowance: Allowance,
    ahead: Ahead,
    /// Of the other direction.
    reports: Reports,
    /// When the next one is due.
    report_ns: Option<u64>,
    /// When the kernel was last asked for its buffer size.
    asked_ns: Option<u64>,
    /// Bytes of frames that the kernel has taken.
    taken: u64,
    outbox: Outbox,
    marker_len: u64,
    meter: Meter,
    queue: Queue,
    share: Share,
    /// Start of the engine's clock, which begins with the flow.
    begun_ns: u64,
    closed: bool,
    /// False if the data is known not to compress, or does not leave this host.
    compresses: bool,
}

impl Outgoing {
    pub fn new() -> Self {
        Self { readable: true, plain_len: PLAIN_LEN_MIN, ..Self::default() }
    }

    pub fn is_framed(&self) -> bool {
        self.frames.is_some()
    }

    /// Whether nothing more is read from the program.
    pub fn has_ended(&self) -> bool {
        self.stage != Stage::Open
    }

    pub fn is_shut(&self) -> bool {
        self.stage == Stage::Shut
    }

    /// All bytes of the program were read.
    pub fn end(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Ended;
        }
    }

    /// The network takes nothing more: ends the direction, and discards what is left.
    pub fn discard(&mut self) {
        self.readable = false;
        if self.stage != Stage::Shut {
            self.stage = Stage::Discarding;
        }
    }

    /// The network was told of the end.
    pub fn shut(&mut self) {
        self.stage = Stage::Shut;
    }

    fn discards(&self) -> bool {
        self.stage == Stage::Discarding
    }

    fn still_sends(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Ended)
    }

    /// Bytes that may be read from the program now, if `queued` of its bytes wait in its socket.
    pub fn room(&self, queued: usize) -> usize {
        match &self.frames {
            Some(frames) if !self.discards() => {
                let held = self.held();
                let may_hold = frames.share.memory_max().min(frames.allowance.beside(queued));
                let ahead = if self.hears { frames.ahead.room() } else { usize::MAX };
                let room = frames.encoding.room().min(may_hold.saturating_sub(held)).min(ahead);
                let crumb = ROOM_MIN.min(frames.encoding.segment_len()).min(may_hold / ROOM_SHARE);
                if room < crumb { 0 } else { room }
            }
            None if self.waiting.len() > 0 && !self.discards() => 0,
            _ => usize::MAX,
        }
    }

    /// Length for the next read of plain bulk. What TCP does not take waits here, in addition to
    /// TCP's own buffer.
    pub fn plain_len(&mut self) -> usize {
        let next = (2 * self.plain_len).min(PLAIN_LEN_MAX);
        std::mem::replace(&mut self.plain_len, next)
    }

    /// Updates the memory accounted to this direction, and to what the other one holds beside it.
    pub fn count(&mut self, beside: usize) {
        let held = self.held() + beside;
        if let Some(frames) = &mut self.frames {
            frames.share.count(held);
        }
    }

    /// Length for a read of bulk that will go into frames.
    pub fn segment_len(&self) -> Option<usize> {
        self.frames.as_ref().filter(|_| !self.discards()).map(|f| f.encoding.segment_len())
    }

    /// Bytes from the program that the network has not taken yet.
    pub fn held(&self) -> usize {
        let framed = self.frames.as_ref().map_or(0, |f| f.encoding.pending() as usize + f.outbox.len());
        self.waiting.len() + framed
    }

    /// Whether the network has no room. Call after [`Outgoing::flush`].
    pub fn is_stuck(&self) -> bool {
        self.waiting.len() > 0 || self.frames.as_ref().is_some_and(|f| !f.outbox.is_empty())
    }

    /// Whether blocks that were read from the program are not yet frames.
    pub fn is_encoding(&self) -> bool {
        self.frames.as_ref().is_some_and(|f| f.encoding.pending() > 0)
    }

    /// Switches to frames: the marker, then a frame stream.
    pub fn switch(&mut self, marker: &[u8], same_host: bool, stores: bool, serial: u64, context: &PumpContext) {
        let compressor = &context.shared.compressor;
        self.frames = Some(Box::new(Frames {
            encoding: compressor.send_options(stores).tells_delivered(true).encoding(&context.buffers),
            allowance: Allowance::default(),
            ahead: Ahead::default(),
            reports: Reports::default(),
            report_ns: None,
            asked_ns: None,
            taken: 0,
            outbox: Outbox::behind(marker),
            marker_len: marker.len() as u64,
            meter: Meter::new(same_host),
            queue: compressor.encoders(context.on_panic(serial)),
            share: compressor.memory.share(),
            begun_ns: context.now_ns(),
            closed: false,
            compresses: !stores,
        }));
    }

    fn look(&mut self, input: &[u8]) {
        self.first.look(input);
        if self.first.are_encrypted() {
            self.give_up_compressing();
        }
    }

    /// Stops compressing: the data does not shrink.
    pub fn give_up_compressing(&mut self) {
        if let Some(frames) = self.frames.as_mut().filter(|f| f.compresses) {
            frames.compresses = false;
            frames.encoding.give_up();
        }
    }

    /// Writes what waits. True if the network has taken everything so far.
    pub fn flush(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) -> Result<bool, Errno> {
        if self.discards() {
            self.waiting.clear();
            return Ok(true);
        }
        if !self.waiting.flush(network)? {
            return Ok(false);
        }
        match &mut self.frames {
            Some(frames) => {
                frames.ask_buffer(network, self.unsent_max, context);
                frames.write(network, serial, context)
            }
            None => Ok(true),
        }
    }

    /// Passes on what the program wrote; what the network does not take waits. The flow must
    /// already have counted plain bytes.
    pub fn pass(
        &mut self,
        input: &[u8],
        network: &OwnedFd,
        serial: u64,
        context: &mut PumpContext,
    ) -> Result<(), Errno> {
        self.bytes += input.len() as u64;
        self.look(input);
        if self.discards() {
            return Ok(());
        }
        let Some(frames) = &mut self.frames else {
            self.plain_bytes += input.len() as u64;
            let passed = self.waiting.pass(input, network);
            if self.waiting.len() > 0 {
                self.plain_len = PLAIN_LEN_MIN;
            }
            return passed;
        };
        let mut buffer = context.buffers.get(input.len());
        buffer.bytes_mut()[..input.len()].copy_from_slice(input);
        let block = buffer.freeze(input.len());
        context.buffers.recycle(&block);
        frames.push(block, serial, context);
        self.flush(network, serial, context).map(drop)
    }

    /// Like [`Outgoing::pass`], for bulk that is already in a buffer of its own. The direction must
    /// be in frames.
    pub fn pass_block(
        &mut self,
        block: Block,
        network: &OwnedFd,
        serial: u64,
        context: &mut PumpContext,
    ) -> Result<(), Errno> {
        self.bytes += block.len() as u64;
        self.look(&block);
        let discards = self.discards();
        if let Some(frames) = self.frames.as_mut().filter(|_| !discards) {
            frames.push(block, serial, context);
        }
        self.flush(network, serial, context).map(drop)
    }

    /// Counts an urgent byte that was sent between plain ones.
    pub fn count_urgent(&mut self) {
        self.bytes += 1;
        self.plain_bytes += 1;
    }

    /// Ends the direction after the program's end. True once the network has everything, including
    /// the end of the frames.
    pub fn finish(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) -> Result<bool, Errno> {
        let discards = self.discards();
        if let Some(frames) = self.frames.as_mut().filter(|f| !f.closed && !discards) {
            frames.closed = true;
            let now_ns = frames.now_ns(context);
            frames.encoding.close(now_ns);
            frames.work(Budget::BULK, serial, context);
        }
        let all = self.flush(network, serial, context)?;
        let drained = self.frames.as_ref().is_none_or(|f| f.encoding.is_drained() && f.outbox.is_empty());
        Ok(discards || all && drained)
    }

    /// Takes the result of a worker's job.
    pub fn encoded(&mut self, done: Done, serial: u64, context: &mut PumpContext) {
        if let Some(frames) = &mut self.frames {
            let now_ns = frames.now_ns(context);
            frames.encoding.finish(done, now_ns);
            frames.work(Budget::BULK, serial, context);
        }
    }

    /// The time at which [`Outgoing::on_time`] is due, on the pump's clock.
    pub fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let frames = self.frames.as_ref().filter(|_| self.still_sends())?;
        let at_ns = frames.encoding.next_wakeup()?.saturating_add(frames.begun_ns);
        Some(at_ns.max(now_ns + LOOK_AGAIN_MIN_NS))
    }

    pub fn on_time(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) {
        let sends = self.still_sends();
        if let Some(frames) = self.frames.as_mut().filter(|_| sends) {
            frames.look(network, serial, context);
        }
    }

    /// Bytes sent to the network, plain and framed.
    pub fn wire_bytes(&self) -> u64 {
        self.plain_bytes + self.frames.as_ref().map_or(0, |f| f.marker_len + f.encoding.summary().wire_bytes)
    }

    pub fn summary(&self) -> Option<&Summary> {
        self.frames.as_ref().map(|f| f.encoding.summary())
    }
}

impl Frames {
    fn now_ns(&self, context: &PumpContext) -> u64 {
        context.now_ns() - self.begun_ns
    }

    /// The clock of the flow, which also goes on while a job runs.
    fn clock(&self, context: &PumpContext) -> impl Fn() -> u64 + use<> {
        let (begun, begun_ns) = (context.shared.begun, self.begun_ns);
        move || begun.elapsed().as_nanos() as u64 - begun_ns
    }

    fn push(&mut self, block: Block, serial: u64, context: &mut PumpContext) {
        self.ahead.sent(block.len(), context.now_ns());
        let (now_ns, budget) = (self.now_ns(context), Budget::for_piece(block.len()));
        self.encoding.push(block, now_ns);
        self.work(budget, serial, context);
    }

    fn work(&mut self, budget: Budget, serial: u64, context: &mut PumpContext) {
        let clock = self.clock(context);
        let mut workers = context.workers(&self.queue, move |done| Order::Encoded { serial, done });
        self.encoding.work(clock, budget, &mut workers);
    }

    /// Writes frames until none are left or the network is full. True if none are left.
    fn write(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) -> Result<bool, Errno> {
        loop {
            let rate = self.encoding.summary().rate_bytes_per_s;
            let len = Outbox::write_len(rate);
            self.outbox.fill(&mut self.encoding, len);
            if self.outbox.is_empty() {
                return Ok(true);
            }
            self.meter.set_rate(network, rate);
            let clock = || context.now_ns() - self.begun_ns;
            let written = self.meter.write(network, &mut self.outbox, len, clock);
            let sample = written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            self.on_link(sample);
            if sample.accepted == 0 {
                return Ok(false);
            }
            self.work(Budget::BULK, serial, context);
        }
    }

    fn on_link(&mut self, sample: LinkSample) {
        self.encoding.on_link(sample);
        if let Some(ns) = sample.rtt_ns {
            self.ahead.saw_round_trip(ns);
        }
        self.taken += sample.accepted;
        let summary = self.encoding.summary();
        self.allowance.encoded(summary.raw_bytes, summary.wire_bytes);
        let unconfirmed = sample.unacked.unwrap_or(0);
        let waits = sample.unsent_after > 0 || self.encoding.has_work();
        self.allowance.sent(sample.end_ns, self.taken, unconfirmed, waits);
        if self.encoding.has_work() {
            self.allowance.saw(sample.unsent_before > 0);
        }
        self.encoding.limit_blocks(self.allowance.block_max().min(self.ahead.window() / WINDOW_BLOCKS));
    }

    /// Asks the kernel how much TCP would hold.
    fn ask_buffer(&mut self, network: &OwnedFd, unsent_max: Option<usize>, context: &PumpContext) {
        let now_ns = self.now_ns(context);
        if self.asked_ns.is_none_or(|at| now_ns >= at + BUFFER_EVERY_NS) {
            self.asked_ns = Some(now_ns);
            let (len, is_set) = sys::send_buffer(network);
            self.allowance.set_buffer(Buffer { len, is_set, unsent_max });
        }
    }

    /// Measures the link for the engine, and re-encodes a late block if the engine wants that.
    fn look(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) {
        let now_ns = self.now_ns(context);
        let sample = self.meter.look(network, now_ns);
        self.on_link(sample);
        let clock = self.clock(context);
        let mut workers = context.workers(&self.queue, move |done| Order::Encoded { serial, done });
        self.encoding.rescue(&clock, Budget::RESCUE, &mut workers);
        self.encoding.work(clock, Budget::LONE, &mut workers);
    }
}
