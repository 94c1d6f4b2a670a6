//! The sending half of a flow: raw bytes in, frames out. No I/O, no thread, no clock.
//!
//! ```text
//! push -> [gathered] -- poll_job: choose, cut --> Job ~~ worker ~~> finish -> [queue, in order] -- poll_transmit -->
//! ```
//!
//! A block's raw bytes stay in the queue until its frame has been handed to the link, so that a late block can be taken
//! over (`on_link_dry`). All sizes are bounded by `memory_max`; the caller asks `room` before it pushes.

use std::collections::VecDeque;

use crate::block::{Block, BufferPool};
use crate::codec::{CodecId, Method};
use crate::error::Result;
use crate::frame::{
    self, ControlKind, EndTotals, Feedback, Frame, HeaderBytes, Preface, Role, chain_digest, control_frame,
};
use crate::monitor::link::LinkMonitor;
use crate::monitor::{Ask, CpuView, Limits, Pending, PendingState, ReceiverView, View};
use crate::policy::{Choice, Outcome, Policy, Rescue};
use crate::trace;

mod job;
mod reverse;
mod summary;

pub use crate::monitor::LinkSample;
pub use job::{Done, Job, JobKind, worthwhile_len};
pub use summary::{MixRow, Summary};

use reverse::{Event, Reverse};

/// What the sender is told when it starts.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    /// Longest block, in raw bytes. Above the baseline of 2 MiB only for receivers known to take it.
    pub block_max: usize,
    /// Bytes of history for linked frames; 0 forbids linking.
    pub history: usize,
    /// Put a 64-bit check on every block.
    pub check: bool,
    /// Workers that encode.
    pub cores: usize,
    /// Raw and encoded bytes of this flow in flight at most, encoder contexts included (D15).
    pub memory_max: usize,
    /// A receiver's preface and feedback will come back on this link.
    pub duplex: bool,
    /// Raw length of the whole flow, when it is known beforehand.
    pub raw_len: Option<u64>,
    /// Append an index, so that the stream serves as a seekable file.
    pub index: bool,
    /// Keep a line for every decision; the driver takes them with `take_trace`.
    pub trace: bool,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            block_max: frame::BASELINE_BLOCK_MAX,
            history: frame::BASELINE_HISTORY,
            check: true,
            cores: 1,
            memory_max: MEMORY_MAX_DEFAULT,
            duplex: false,
            raw_len: None,
            index: false,
            trace: false,
        }
    }
}

/// A bulk flow stays under 64 MiB of the process; code, stacks and codec tables need the rest.
pub const MEMORY_MAX_DEFAULT: usize = 20 << 20;

/// Raw bytes gathered at most: eight blocks, so that a reader and four workers never wait for each other at the largest
/// block of `balance` (512 KiB; half of the eight are with the workers), and two reads.
const GATHER_MIN: usize = 256 << 10;
const GATHER_MAX: usize = 2 << 20;
/// The first buffer that raw bytes are read into, and half of the shortest one later.
const SEGMENT_FIRST: usize = 64 << 10;
/// A choice is first asked for so many bytes; later for what the policy wanted last.
const WANTED_FIRST: usize = 128 << 10;
/// Small writes wait for company while the link still has this much to do: waking a thread and encoding 1 KiB takes
/// less, so the link does not run dry over it.
const GATHER_MARGIN_NS: u64 = 300_000;
/// The link is not looked at more often to see whether frames have left.
const LOOK_MIN_NS: u64 = 50_000;
/// Under this a line of text is one write of an application; only such small blocks are worth holding back.
const HOLD_MAX: usize = 16 << 10;
/// Lines of the trace kept for the driver; it takes them after every call, so more means that nobody does.
const TRACE_MAX_BYTES: usize = 1 << 20;

pub struct Sender {
    config: SenderConfig,
    policy: Box<dyn Policy>,
    pool: BufferPool,
    limits: Limits,

    input: VecDeque<Block>,
    gathered: usize,
    wanted: usize,
    raw_offset: u64,
    closed: bool,
    /// The latest raw blocks, `limits.history` bytes or a little more, if linking is allowed.
    recent: VecDeque<Block>,
    recent_len: usize,

    queue: VecDeque<Slot>,
    next_seq: u64,
    /// Jobs with the workers: encoding blocks, late ones that were taken over, probes.
    encoding: usize,
    probing: bool,
    threads_max: usize,
    /// Slots whose frame was handed to the link.
    handed: usize,
    outbox: VecDeque<Frame>,
    wire_total: u64,
    digest: u64,
    index: Vec<u8>,
    end_sent: bool,

    link: LinkMonitor,
    wait_until_ns: u64,
    hold_until_ns: Option<u64>,
    dry_ns: u64,
    busy_ns: u64,
    /// The last time at which nothing was pending.
    pending_since_ns: u64,
    now_ns: u64,

    reverse: Reverse,
    confirmed: bool,
    feedback: Feedback,
    receiver_cores: Option<usize>,
    /// (frame number, raw bytes) sent and not yet reported as decoded; bounded by `UNREPORTED_MAX`.
    unreported: VecDeque<(u64, u64)>,

    summary: Summary,
    trace: String,
    scratch: Vec<Pending>,
}

/// A receiver that never reports must not let a list grow: 4,096 frames are 512 MiB of 128 KiB blocks.
const UNREPORTED_MAX: usize = 4096;

/// A block between choice and link.
struct Slot {
    seq: u64,
    raw: Block,
    raw_offset: u64,
    method: Method,
    linked: bool,
    history: Block,
    chosen_ns: u64,
    rescuing: bool,
    state: SlotState,
}

enum SlotState {
    Encoding,
    Ready(Box<Done>),
    /// With the link; the frame ends at this offset of the wire.
    Handed {
        wire_end: u64,
        wire_len: usize,
        raw_len: usize,
        sent_as: Method,
    },
}

impl Slot {
    /// Wire bytes still to hand over, as far as they are known.
    fn wire_len_estimate(&self) -> usize {
        match &self.state {
            SlotState::Ready(done) => done.frame.wire_len(),
            SlotState::Encoding | SlotState::Handed { .. } => 0,
        }
    }
}

impl Sender {
    pub fn new(config: SenderConfig, policy: Box<dyn Policy>, pool: BufferPool) -> Self {
        let limits =
            Limits { block_max: config.block_max, history: config.history, codecs: frame::codecs_of_this_build() };
        let mut optional = 0;
        if config.index {
            optional |= frame::feature::INDEX;
        }
        if config.duplex {
            optional |= frame::feature::DUPLEX;
        }
        let preface = Preface {
            role: Role::Sender,
            critical: 0,
            optional,
            check: config.check,
            block_max: config.block_max,
            history: config.history,
            codecs: limits.codecs,
        };
        let preface = Frame { header: HeaderBytes::preface(&preface), body: Block::default() };
        Self {
            limits,
            policy,
            pool,
            input: VecDeque::new(),
            gathered: 0,
            wanted: WANTED_FIRST.min(config.block_max),
            raw_offset: 0,
            closed: false,
            recent: VecDeque::new(),
            recent_len: 0,
            queue: VecDeque::new(),
            next_seq: 0,
            encoding: 0,
            probing: false,
            threads_max: config.cores.max(1),
            handed: 0,
            outbox: VecDeque::from([preface]),
            wire_total: 0,
            digest: 0,
            index: Vec::new(),
            end_sent: false,
            link: LinkMonitor::default(),
            wait_until_ns: 0,
            hold_until_ns: None,
            dry_ns: 0,
            busy_ns: 0,
            pending_since_ns: 0,
            now_ns: 0,
            reverse: Reverse::default(),
            confirmed: false,
            feedback: Feedback::default(),
            receiver_cores: None,
            unreported: VecDeque::new(),
            summary: Summary::default(),
            trace: String::new(),
            scratch: Vec::new(),
            config,
        }
    }

    // --- raw bytes in ---

    /// Raw bytes that may be pushed now; 0 means: wait until frames have left.
    pub fn room(&self) -> usize {
        let gather = (8 * self.wanted).clamp(GATHER_MIN, GATHER_MAX).max(2 * self.wanted);
        let gather = gather.min(self.config.memory_max / 2).max(1);
        if self.closed { 0 } else { gather.saturating_sub(self.gathered) }
    }

    /// A good length for the buffers that are pushed: the first bytes do not wait for many others, later whole blocks fit
    /// without being put together, and what is touched stays small, so that buffers are used again while they are in
    /// a core's cache.
    pub fn segment_len(&self) -> usize {
        if self.raw_offset == 0 { SEGMENT_FIRST } else { 2 * self.wanted.next_power_of_two().max(SEGMENT_FIRST) }
    }

    /// Takes raw bytes over without copying. They may exceed `room()` once; ask again before the next.
    pub fn push(&mut self, raw: Block, now_ns: u64) {
        debug_assert!(!self.closed, "push after close");
        self.tick(now_ns);
        if raw.is_empty() {
            return;
        }
        self.gathered += raw.len();
        self.input.push_back(raw);
    }

    /// Copies raw bytes in, as many as there is room for, and returns how many were taken.
    pub fn write(&mut self, raw: &[u8], now_ns: u64) -> usize {
        let len = raw.len().min(self.room());
        if len > 0 {
            let mut buffer = self.pool.get(len);
            buffer.bytes_mut()[..len].copy_from_slice(&raw[..len]);
            let block = buffer.freeze(len);
            self.pool.recycle(&block);
            self.push(block, now_ns);
        }
        len
    }

    /// No more raw bytes will come.
    pub fn close(&mut self, now_ns: u64) {
        self.tick(now_ns);
        self.closed = true;
    }

    // --- jobs ---

    /// The next job, if the window has room and there is something to do. Call it again until `None`, after every
    /// other call that changes the sender.
    pub fn poll_job(&mut self, now_ns: u64) -> Option<Job> {
        self.tick(now_ns);
        self.hold_until_ns = None;
        if self.gathered == 0 {
            return None;
        }
        if self.encoding >= self.threads_max.min(self.config.cores.max(1)) {
            return None;
        }
        let full = self.queue.len() >= self.policy.window(self.config.cores).max(1);
        if full || !self.memory_allows() {
            return self.poll_probe();
        }
        if self.hold_for_company() {
            return None;
        }
        self.cut(Ask::Next)
    }

    /// Takes a finished job back.
    pub fn finish(&mut self, done: Done, now_ns: u64) {
        self.tick(now_ns);
        self.summary.encode_cpu_ns += done.cpu_ns;
        let Done { seq, kind, method, raw_len, wire_len, wall_ns, cpu_ns, .. } = done;
        if kind == JobKind::Probe {
            self.encoding -= 1;
            self.probing = false;
            self.summary.probed_blocks += 1;
            self.policy.learn(&Outcome::Probed { method, raw_len, wire_len, wall_ns, cpu_ns });
            return;
        }
        if kind == JobKind::Encode {
            self.encoding -= 1;
        }
        let front = self.queue.front().map_or(self.next_seq, |s| s.seq);
        let slot = seq.checked_sub(front).and_then(|i| self.queue.get_mut(i as usize));
        let slot = slot.filter(|s| matches!(s.state, SlotState::Encoding));
        let taken_over = slot.is_none() && kind == JobKind::Encode;
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::encoded(&mut self.trace, self.now_ns, &done, taken_over);
        }
        if let Some(slot) = slot {
            if kind == JobKind::Rescue {
                self.summary.rescued_blocks += 1;
                self.policy.learn(&Outcome::Rescued { seq, method, raw_len, wire_len });
            }
            slot.state = SlotState::Ready(Box::new(done));
        }
        if kind == JobKind::Encode {
            self.policy.learn(&Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over });
        }
    }

    fn cut(&mut self, ask: Ask) -> Option<Job> {
        self.gather_front();
        let choice = self.choose(ask)?;
        let front = self.input.front_mut()?;
        let len = choice.block_len.clamp(1, front.len());
        let raw = front.split_to(len);
        if front.is_empty() {
            self.input.pop_front();
        }
        self.gathered -= len;
        let linked = choice.linked && choice.method.info().can_link() && self.raw_offset > 0 && self.limits.history > 0;
        let history = if linked { self.history_of(&raw) } else { Block::default() };
        let seq = self.next_seq;
        let slot = Slot {
            seq,
            raw: raw.clone(),
            raw_offset: self.raw_offset,
            method: choice.method,
            linked,
            history: history.clone(),
            chosen_ns: self.now_ns,
            rescuing: false,
            state: SlotState::Encoding,
        };
        let job = Job {
            seq,
            kind: JobKind::Encode,
            method: choice.method,
            raw,
            raw_offset: self.raw_offset,
            history,
            linked,
            check: self.config.check,
            estimate_ns: choice.encode_ns,
        };
        self.remember(&job.raw);
        self.queue.push_back(slot);
        self.next_seq += 1;
        self.raw_offset += len as u64;
        self.encoding += 1;
        self.wait_until_ns = 0;
        self.threads_max = choice.threads_max.map_or(usize::MAX, |n| usize::from(n).max(1));
        self.summary.memory_peak = self.summary.memory_peak.max(self.memory() as u64);
        Some(job)
    }

    fn choose(&mut self, ask: Ask) -> Option<Choice> {
        let mut queue = std::mem::take(&mut self.scratch);
        self.pending_into(&mut queue);
        let front = self.input.front()?.clone();
        let upcoming = &front[..front.len().min(self.limits.block_max)];
        let view = self.view(upcoming, &queue, ask);
        let mut choice = self.policy.choose(&view);
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::choice(&mut self.trace, &view, &choice, &self.policy.explain());
        }
        if !self.limits.allows(choice.method) {
            choice.method = Method::STORE;
        }
        self.wanted = choice.block_len.clamp(1, self.limits.block_max);
        choice.block_len = choice.block_len.min(upcoming.len());
        self.scratch = queue;
        Some(choice)
    }

    /// A shadow probe, when the window is full and a worker idle. One at a time.
    fn poll_probe(&mut self) -> Option<Job> {
        if self.probing || self.closed && self.gathered < HOLD_MAX {
            return None;
        }
        let mut queue = std::mem::take(&mut self.scratch);
        self.pending_into(&mut queue);
        let front = self.input.front()?.clone();
        let upcoming = &front[..front.len().min(self.limits.block_max)];
        let view = self.view(upcoming, &queue, Ask::Next);
        let choice = self.policy.probe(&view);
        self.scratch = queue;
        let choice = choice.filter(|c| self.limits.allows(c.method))?;
        self.probing = true;
        self.encoding += 1;
        Some(Job {
            seq: self.next_seq,
            kind: JobKind::Probe,
            method: choice.method,
            raw: front.slice(0..choice.block_len.clamp(1, upcoming.len())),
            raw_offset: self.raw_offset,
            history: Block::default(),
            linked: false,
            check: false,
            estimate_ns: choice.encode_ns,
        })
    }

    /// Puts short pieces of input together until the block that the policy wanted last can be cut whole.
    fn gather_front(&mut self) {
        let Some(front) = self.input.front() else { return };
        let want = self.wanted.min(self.gathered);
        if front.len() >= want {
            return;
        }
        let mut buffer = self.pool.get(want);
        let mut filled = 0;
        while filled < want {
            let Some(front) = self.input.front_mut() else { break };
            let piece = front.split_to(front.len().min(want - filled));
            if front.is_empty() {
                self.input.pop_front();
            }
            buffer.bytes_mut()[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        let whole = buffer.freeze(filled);
        self.pool.recycle(&whole);
        self.input.push_front(whole);
    }

    /// D4: while the link has enough to do, a small write waits for company; it costs nothing.
    fn hold_for_company(&mut self) -> bool {
        if self.closed || self.gathered >= HOLD_MAX.min(self.wanted) || self.encoding > 0 {
            return false;
        }
        let unsent: usize = self.queue.iter().skip(self.handed).map(|s| s.wire_len_estimate()).sum();
        let in_hand = self.wire_total.saturating_sub(self.link.accepted_bytes());
        let drain_ns = (unsent as u64 + in_hand) as f64 / self.link.rate_bytes_per_s() * 1e9;
        let dry_at_ns = self.link.dry_at_ns().max(self.now_ns) + drain_ns as u64;
        let hold_until_ns = dry_at_ns.saturating_sub(GATHER_MARGIN_NS);
        if hold_until_ns <= self.now_ns {
            return false;
        }
        self.hold_until_ns = Some(hold_until_ns);
        true
    }

    // --- history ---

    fn remember(&mut self, raw: &Block) {
        if self.limits.history == 0 {
            return;
        }
        self.recent.push_back(raw.clone());
        self.recent_len += raw.len();
        while let Some(oldest) = self.recent.front() {
            if self.recent_len - oldest.len() < self.limits.history {
                break;
            }
            self.recent_len -= oldest.len();
            self.recent.pop_front();
        }
    }

    /// The last `limits.history` raw bytes before `raw`, the next block of the flow.
    fn history_of(&self, raw: &Block) -> Block {
        let want = (self.limits.history as u64).min(self.raw_offset) as usize;
        let before = raw.before(want);
        if before.len() == want {
            return before;
        }
        let want = want.min(self.recent_len);
        let mut buffer = self.pool.get(want);
        let mut at = want;
        for block in self.recent.iter().rev() {
            let take = block.len().min(at);
            buffer.bytes_mut()[at - take..at].copy_from_slice(&block[block.len() - take..]);
            at -= take;
            if at == 0 {
                break;
            }
        }
        let history = buffer.freeze(want);
        self.pool.recycle(&history);
        history
    }

    // --- frames out ---

    /// The next frame in order, if it is ready. The driver owns it now, writes it whole, and reports with `on_link`.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        if self.outbox.is_empty() {
            self.hand_over_next_block();
        }
        if self.outbox.is_empty()
            && self.closed
            && !self.end_sent
            && self.gathered == 0
            && self.handed == self.queue.len()
        {
            self.end();
        }
        let frame = self.outbox.pop_front()?;
        self.wire_total += frame.wire_len() as u64;
        self.summary.wire_bytes = self.wire_total;
        Some(frame)
    }

    /// Whether `poll_transmit` would give a frame now.
    pub fn has_frame(&self) -> bool {
        let ready = self.queue.get(self.handed).is_some_and(|s| matches!(s.state, SlotState::Ready(_)));
        let end_due = self.closed && !self.end_sent && self.gathered == 0 && self.handed == self.queue.len();
        !self.outbox.is_empty() || ready || end_due
    }

    fn hand_over_next_block(&mut self) {
        let Some(slot) = self.queue.get_mut(self.handed) else { return };
        if !matches!(slot.state, SlotState::Ready(_)) {
            return;
        }
        let SlotState::Ready(done) = std::mem::replace(&mut slot.state, SlotState::Encoding) else { return };
        let wire_len = done.frame.wire_len();
        // From here on a rescue is impossible: the raw bytes may go.
        let raw_len = std::mem::take(&mut slot.raw).len();
        let wire_end = self.wire_total + wire_len as u64;
        slot.state = SlotState::Handed { wire_end, wire_len, raw_len, sent_as: done.sent_as };
        slot.history = Block::default();
        if let Some(check) = done.check {
            self.digest = chain_digest(self.digest, check);
        }
        if self.config.index {
            frame::put_varint(&mut self.index, raw_len as u64);
            frame::put_varint(&mut self.index, wire_len as u64);
        }
        if self.config.duplex {
            self.unreported.push_back((slot.seq, raw_len as u64));
            if self.unreported.len() > UNREPORTED_MAX {
                self.unreported.pop_front();
            }
        }
        self.handed += 1;
        self.wait_until_ns = 0;
        self.summary.count_frame(done.sent_as, done.linked, raw_len, wire_len);
        self.outbox.push_back(done.frame);
    }

    fn end(&mut self) {
        let index_offset = if self.index.is_empty() { 0 } else { self.wire_total };
        let mut wire_total = self.wire_total;
        let mut at = 0;
        while at < self.index.len() {
            let end = index_cut(&self.index, at);
            let frame = control_frame(ControlKind::Index, &self.index[at..end], self.raw_offset);
            wire_total += frame.wire_len() as u64;
            self.outbox.push_back(frame);
            at = end;
        }
        let totals = EndTotals { raw_total: self.raw_offset, wire_total, index_offset, digest: self.digest };
        self.outbox.push_back(totals.frame());
        self.end_sent = true;
    }

    /// Everything including the end frame was handed out.
    pub fn is_drained(&self) -> bool {
        self.end_sent && self.outbox.is_empty()
    }

    // --- link ---

    /// Reports a write (or, with `accepted` 0, just a look at the link).
    pub fn on_link(&mut self, sample: LinkSample) {
        self.tick(sample.end_ns);
        if sample.accepted > 0 && sample.unsent_before == 0 && self.link.accepted_bytes() > 0 {
            // The link was dry from when the last bytes left until this write began.
            let dry_from_ns = self.link.dry_at_ns();
            self.dry_ns += sample.begin_ns.saturating_sub(dry_from_ns.max(self.pending_since_ns));
        }
        self.link.observe(&sample);
        let left = self.link.left_host_bytes();
        while let Some(slot) = self.queue.front() {
            let SlotState::Handed { wire_end, wire_len, raw_len, sent_as } = slot.state else { break };
            if wire_end > left {
                break;
            }
            let sent = Outcome::Sent { seq: slot.seq, method: sent_as, raw_len, wire_len, now_ns: self.now_ns };
            self.queue.pop_front();
            self.handed -= 1;
            self.policy.learn(&sent);
        }
        self.summary.link_busy_ns = self.link.busy_ns();
        self.summary.link_dry_ns = self.dry_ns;
        self.summary.rate_bytes_per_s = self.link.rate_bytes_per_s();
    }

    /// What the transport says of time in which the receiver's window stopped the link, since the flow began.
    pub fn on_receiver_limited(&mut self, total_ns: u64) {
        self.summary.receiver_limited_ns = self.summary.receiver_limited_ns.max(total_ns);
    }

    /// When to look at the link again, and call `on_link_dry` and then `poll_job`, if nothing else happens before.
    pub fn next_wakeup(&self) -> Option<u64> {
        if let Some(hold) = self.hold_until_ns {
            return Some(hold);
        }
        let dry_at_ns = self.dry_due_ns();
        // Frames that have left make room in the window. When all that is in it was handed over, only a look shows it,
        // and encoding what comes next takes time: so one look halfway, and again halfway of what is left.
        let waits_for_room = self.gathered > 0 && self.handed == self.queue.len() && self.handed > 0;
        let look_at_ns = self.now_ns + (self.link.dry_at_ns().saturating_sub(self.now_ns) / 2).max(LOOK_MIN_NS);
        if waits_for_room { Some(dry_at_ns.map_or(look_at_ns, |t| t.min(look_at_ns))) } else { dry_at_ns }
    }

    /// When the link will have run dry although there is something to send.
    fn dry_due_ns(&self) -> Option<u64> {
        // While the driver holds frames, the link is not dry.
        if !self.outbox.is_empty() || self.wire_total > self.link.accepted_bytes() {
            return None;
        }
        match self.queue.get(self.handed) {
            Some(slot) if matches!(slot.state, SlotState::Encoding) && !slot.rescuing => {
                Some(self.link.dry_at_ns().max(self.wait_until_ns)).filter(|t| *t < u64::MAX)
            }
            None if self.gathered > 0 => Some(self.link.dry_at_ns().max(self.wait_until_ns)),
            _ => None,
        }
    }

    /// The link has run dry. Returns a job for the I/O thread itself: it takes over the late head of the queue, or the
    /// next piece when all workers are busy with blocks that were taken over.
    pub fn on_link_dry(&mut self, now_ns: u64) -> Option<Job> {
        self.tick(now_ns);
        if self.dry_due_ns().is_none_or(|t| t > now_ns) || self.hold_until_ns.is_some() {
            return None;
        }
        if self.handed < self.queue.len() {
            return self.rescue_head();
        }
        self.cut(Ask::Bypass)
    }

    fn rescue_head(&mut self) -> Option<Job> {
        let mut queue = std::mem::take(&mut self.scratch);
        self.pending_into(&mut queue);
        let raw = self.queue[self.handed].raw.clone();
        let view = self.view(&raw, &queue, Ask::Next);
        let decision = self.policy.rescue(&view);
        self.scratch = queue;
        let slot = &mut self.queue[self.handed];
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::rescue(&mut self.trace, self.now_ns, slot.seq, &decision);
        }
        let method = match decision {
            Rescue::WaitUntil(t) => {
                // A wait that is over already would make the driver spin.
                self.wait_until_ns = t.max(self.now_ns + 1000);
                return None;
            }
            Rescue::TakeOver(method) if self.limits.allows(method) => method,
            Rescue::TakeOver(_) => Method::STORE,
        };
        slot.rescuing = true;
        Some(Job {
            seq: slot.seq,
            kind: JobKind::Rescue,
            method,
            raw: slot.raw.clone(),
            raw_offset: slot.raw_offset,
            history: slot.history.clone(),
            linked: slot.linked && method.info().can_link(),
            check: self.config.check,
            estimate_ns: method.nominal_encode_ns(slot.raw.len()),
        })
    }

    // --- reverse direction ---

    /// Bytes that came back from the receiver: its preface, feedback, close.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<()> {
        self.tick(now_ns);
        let mut reverse = std::mem::take(&mut self.reverse);
        let parsed = reverse.receive(bytes, |event| self.on_event(event));
        self.reverse = reverse;
        parsed
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Preface(p) => {
                self.limits.block_max = self.limits.block_max.min(p.block_max);
                self.limits.history = self.limits.history.min(p.history);
                // Store is the floor that every receiver has.
                self.limits.codecs &= p.codecs | 1 << CodecId::STORE.0;
            }
            Event::Feedback(f) => self.on_feedback(f),
            Event::Stored => self.confirmed = self.end_sent,
        }
    }

    fn on_feedback(&mut self, f: Feedback) {
        let before = self.feedback;
        // Totals only grow; a report that goes back is a confused peer's, and only advice anyway.
        let decode_ns = f.decode_ns.saturating_sub(before.decode_ns);
        self.receiver_cores = Some((f.cores as usize).clamp(1, 1024));
        self.feedback = f;
        self.summary.decode_cpu_ns = f.decode_ns;
        self.summary.receiver_blocked_ns = f.blocked_ns;
        let mut decoded: Option<(u64, u64, u64)> = None;
        while let Some(&(seq, raw_len)) = self.unreported.front() {
            if seq >= f.frames_decoded {
                break;
            }
            self.unreported.pop_front();
            let (first, _, sum) = decoded.unwrap_or((seq, seq, 0));
            decoded = Some((first, seq, sum + raw_len));
        }
        if let Some((first_seq, last_seq, raw_len)) = decoded {
            let cores = self.receiver_cores.unwrap_or(1);
            self.policy.learn(&Outcome::Received {
                first_seq,
                last_seq,
                raw_len,
                decode_ns,
                cores,
                backlog_bytes: f.backlog_bytes,
            });
        }
    }

    /// The receiver said that it has everything (duplex only).
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    // --- views and accounts ---

    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The policy, with what it learned.
    pub fn into_policy(self) -> Box<dyn Policy> {
        self.policy
    }

    /// Lines of the trace since the last call.
    pub fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    /// `upcoming` and `queue` are the caller's, so that the policy can be called while the view lives.
    fn view<'a>(&self, upcoming: &'a [u8], queue: &'a [Pending], ask: Ask) -> View<'a> {
        let told =
            self.config.raw_len.and_then(|len| len.checked_sub(self.raw_offset)).filter(|l| *l >= self.gathered as u64);
        View {
            now_ns: self.now_ns,
            busy_ns: self.busy_ns,
            seq: self.next_seq,
            raw_offset: self.raw_offset,
            upcoming,
            gathered: self.gathered,
            left: if self.closed { Some(self.gathered as u64) } else { told },
            link: self.link.view(self.dry_ns),
            cpu: CpuView { cores: self.config.cores.max(1), busy: self.encoding },
            receiver: ReceiverView {
                reports: self.receiver_cores.is_some(),
                cores: self.receiver_cores.unwrap_or(1),
                backlog_bytes: self.feedback.backlog_bytes,
            },
            queue,
            limits: self.limits,
            ask,
        }
    }

    fn pending_into(&self, out: &mut Vec<Pending>) {
        let left = self.link.left_host_bytes();
        out.clear();
        out.extend(self.queue.iter().map(|slot| {
            let (raw_len, state) = match &slot.state {
                SlotState::Encoding => (slot.raw.len(), PendingState::Encoding),
                SlotState::Ready(done) => (slot.raw.len(), PendingState::Ready { unsent_len: done.frame.wire_len() }),
                SlotState::Handed { wire_end, wire_len, raw_len, .. } => {
                    let unsent_len = wire_end.saturating_sub(left).min(*wire_len as u64) as usize;
                    (*raw_len, PendingState::Ready { unsent_len })
                }
            };
            Pending { seq: slot.seq, raw_len, method: slot.method, chosen_ns: slot.chosen_ns, state }
        }));
    }

    /// Bytes that the flow holds: raw, encoded, and encoder contexts by estimate.
    fn memory(&self) -> usize {
        let slots = self.queue.iter().map(|slot| match &slot.state {
            SlotState::Encoding => {
                let encoder = slot.method.info().encoder_memory(slot.method.level, slot.raw.len());
                2 * slot.raw.len() + encoder
            }
            SlotState::Ready(done) => slot.raw.len() + done.frame.body.buffer_len(),
            SlotState::Handed { wire_len, .. } => *wire_len,
        });
        self.gathered + self.index.len() + slots.sum::<usize>()
    }

    /// Slow methods take more memory, so fewer of their blocks are in flight; one always may be.
    fn memory_allows(&self) -> bool {
        self.handed == self.queue.len() || self.memory() + 2 * self.wanted <= self.config.memory_max
    }

    /// Moves the flow's clock. Nothing changes between calls, so the state before the call tells what the time was.
    fn tick(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.now_ns);
        let own_work =
            self.gathered > 0 || self.handed < self.queue.len() || self.wire_total > self.link.accepted_bytes();
        let busy_until_ns = if own_work { now_ns } else { self.link.dry_at_ns().clamp(self.now_ns, now_ns) };
        self.busy_ns += busy_until_ns - self.now_ns;
        self.summary.idle_ns += now_ns - busy_until_ns;
        if !own_work {
            self.pending_since_ns = now_ns;
        }
        self.now_ns = now_ns;
    }
}

/// Where the index frame that begins at `at` ends: at most a full body, and between two pairs.
fn index_cut(index: &[u8], at: usize) -> usize {
    if index.len() - at <= frame::CONTROL_BODY_MAX {
        return index.len();
    }
    let (mut end, mut cursor) = (at, at);
    while cursor - at <= frame::CONTROL_BODY_MAX {
        end = cursor;
        // A pair is two varints; their last bytes have the top bit clear.
        for _ in 0..2 {
            cursor += index[cursor..].iter().take_while(|b| **b & 0x80 != 0).count() + 1;
        }
    }
    end
}
