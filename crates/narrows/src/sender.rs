//! The sending half of a flow: raw bytes in, frames out. No I/O, no thread, no clock.
//!
//! ```text
//! push -> [gathered] -- poll_job: choose, cut --> Job ~~ worker ~~> finish -> [queue, in order] -- poll_transmit -->
//! ```
//!
//! A block's raw bytes stay in the queue until its frame has been handed to the link, so that a
//! late block can be taken over (`on_link_dry`). `memory_max` bounds all sizes; the caller asks
//! `room` before it pushes.

use std::collections::VecDeque;

use crate::block::{Block, BufferPool};
use crate::codec::Method;
use crate::frame::{self, Feedback, Frame, HeaderBytes, Preface, Role};
use crate::history::History;
use crate::monitor::link::LinkMonitor;
use crate::monitor::{Ask, Limits, Pending};
use crate::policy::{Choice, Outcome, Policy};
use crate::trace;

mod config;
mod job;
mod reverse;
mod summary;
mod transmit;
mod view;

pub use crate::monitor::LinkSample;
pub use config::{MEMORY_MAX_DEFAULT, SenderConfig};
pub use job::{Done, Job, JobKind, worthwhile_len};
pub use summary::{MixRow, Summary};

use reverse::Reverse;

/// Limits of the raw bytes gathered: eight blocks, so that a reader and four workers never wait for
/// each other at the largest block of `balance` (512 KiB; half of the eight are with the workers),
/// and two reads.
const GATHER_MIN: usize = 256 << 10;
const GATHER_MAX: usize = 2 << 20;
/// Length of the first buffer that raw bytes are read into, and half of the shortest later one.
const SEGMENT_FIRST: usize = 64 << 10;
/// Bytes wanted for the first choice; later the length that the policy last wanted.
const WANTED_FIRST: usize = 128 << 10;
/// Small writes wait for more data while the link still has this much to do: waking a thread and
/// encoding 1 KiB takes less time, so the link does not run dry meanwhile.
const GATHER_MARGIN_NS: u64 = 300_000;
/// Only blocks below this length are worth holding back: it covers a line of text that an
/// application writes at once.
const HOLD_MAX: usize = 16 << 10;
/// Most bytes of trace kept for the driver. It takes them after every call; more means that nobody
/// reads them.
const TRACE_MAX_BYTES: usize = 1 << 20;

/// State machine of the sending half of a flow.
pub struct Sender {
    config: SenderConfig,
    policy: Box<dyn Policy>,
    pool: BufferPool,
    limits: Limits,

    input: VecDeque<Block>,
    gathered: usize,
    wanted: usize,
    /// When gathering of the next block began. Bytes before `flushed_to` do not wait for a whole
    /// block.
    gathering_since_ns: u64,
    flushed_to: u64,
    raw_offset: u64,
    closed: bool,
    history: History,

    queue: VecDeque<Slot>,
    next_seq: u64,
    /// Jobs with the workers: blocks being encoded, late ones that were taken over, probes.
    encoding: usize,
    probing: bool,
    threads_max: usize,
    /// Number of slots whose frame was handed to the link.
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
    /// Notes of the other end's application, until the driver takes them.
    notes: VecDeque<Vec<u8>>,
    notes_heard: u64,
    feedback: Feedback,
    receiver_cores: Option<usize>,
    /// (frame number, raw bytes) of frames sent and not yet reported as decoded; bounded by
    /// `UNREPORTED_MAX`.
    unreported: VecDeque<(u64, u64)>,

    summary: Summary,
    trace: String,
    scratch: Vec<Pending>,
}

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
    /// Handed to the link; the frame ends at wire offset `wire_end`.
    Handed {
        wire_end: u64,
        wire_len: usize,
        raw_len: usize,
        sent_as: Method,
    },
}

impl Slot {
    /// Wire bytes still to hand over, as far as known.
    fn wire_len_estimate(&self) -> usize {
        match &self.state {
            SlotState::Ready(done) => done.frame.wire_len(),
            SlotState::Encoding | SlotState::Handed { .. } => 0,
        }
    }
}

impl Sender {
    /// A sender of a new flow.
    pub fn new(config: SenderConfig, policy: Box<dyn Policy>, pool: BufferPool) -> Self {
        let limits = Limits {
            block_max: config.block_max,
            history: config.history,
            codecs: frame::codecs_of_this_build(),
            behind: 0,
            dictionary: None,
        };
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
            gathering_since_ns: 0,
            flushed_to: 0,
            raw_offset: 0,
            closed: false,
            history: History::new(config.history),
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
            link: if config.relayed { LinkMonitor::relayed() } else { LinkMonitor::default() },
            wait_until_ns: 0,
            hold_until_ns: None,
            dry_ns: 0,
            busy_ns: 0,
            pending_since_ns: 0,
            now_ns: 0,
            reverse: Reverse::default(),
            confirmed: false,
            notes: VecDeque::new(),
            notes_heard: 0,
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

    /// Raw bytes that may be pushed; 0: wait until frames have left.
    pub fn room(&self) -> usize {
        let wanted = self.policy.whole_blocks().map_or(0, |len| len.min(self.limits.block_max)).max(self.wanted);
        let gather = (8 * wanted).clamp(GATHER_MIN, GATHER_MAX).max(2 * wanted);
        let gather = gather.min(self.config.memory_max / 2).max(1);
        if self.closed { 0 } else { gather.saturating_sub(self.gathered) }
    }

    /// A good length for the buffers that are pushed. The first bytes do not wait for many others,
    /// later whole blocks fit without being joined, and the working set stays small, so that
    /// buffers are reused while they are in a core's cache.
    pub fn segment_len(&self) -> usize {
        if self.raw_offset == 0 { SEGMENT_FIRST } else { 2 * self.wanted.next_power_of_two().max(SEGMENT_FIRST) }
    }

    /// Takes raw bytes without copying. They may exceed `room()` once; ask again before the next
    /// push.
    pub fn push(&mut self, raw: Block, now_ns: u64) {
        debug_assert!(!self.closed, "push after close");
        self.tick(now_ns);
        if raw.is_empty() {
            return;
        }
        if self.gathered == 0 {
            self.gathering_since_ns = self.now_ns;
        }
        self.gathered += raw.len();
        self.input.push_back(raw);
    }

    /// Copies as many raw bytes as there is room for, and returns how many.
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

    /// Lets the bytes pushed so far wait for nothing more. Call [`Sender::poll_job`] afterwards.
    pub fn flush(&mut self) {
        self.flushed_to = self.raw_offset + self.gathered as u64;
    }

    /// Ends the input: no more raw bytes follow.
    pub fn close(&mut self, now_ns: u64) {
        self.tick(now_ns);
        self.hold_until_ns = None;
        self.closed = true;
    }

    // --- jobs ---

    /// The next job, if the window has room and there is something to do. Call it until it returns
    /// `None`, and after every other call that changes the sender.
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
        if self.hold_for_whole_block() || self.hold_for_company() {
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
        if let Some(slot) = slot {
            if kind == JobKind::Rescue {
                self.summary.rescued_blocks += 1;
                self.policy.learn(&Outcome::Rescued { seq, method, raw_len, wire_len });
            }
            slot.state = SlotState::Ready(Box::new(done));
        }
        if kind == JobKind::Encode {
            let outcome = Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over };
            if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
                trace::outcome(&mut self.trace, self.now_ns, &outcome);
            }
            self.policy.learn(&outcome);
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
        let history = if linked { self.history.to_block(&self.pool) } else { Block::default() };
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
        self.history.push(&job.raw);
        self.queue.push_back(slot);
        self.next_seq += 1;
        self.raw_offset += len as u64;
        self.gathering_since_ns = self.now_ns;
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
        self.scratch = queue;
        let mut len = upcoming.len();
        if len < self.wanted && self.policy.whole_blocks().is_some() {
            self.gather_front();
            len = self.input.front()?.len().min(self.limits.block_max);
        }
        choice.block_len = choice.block_len.min(len);
        Some(choice)
    }

    /// A shadow probe, if the window is full and a worker idle. At most one at a time.
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

    /// Joins short pieces of input until the block that the policy last wanted can be cut whole.
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

    /// Waits for a whole block where it does not matter when bytes leave.
    fn hold_for_whole_block(&mut self) -> bool {
        let until_ns = self.gathering_since_ns.saturating_add(self.config.gather_ns);
        let whole = self.policy.whole_blocks().map_or(self.wanted, |len| len.min(self.limits.block_max));
        let asked = self.closed || self.raw_offset < self.flushed_to;
        if asked || self.gathered >= whole || until_ns <= self.now_ns || self.room() == 0 {
            return false;
        }
        self.hold_until_ns = Some(until_ns);
        true
    }

    /// While the link has enough to do, a small write waits for more data; it costs nothing (D4).
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
        self.hold_until_ns = Some(hold_until_ns.min(self.now_ns + transmit::LOOK_MAX_NS));
        true
    }

    // --- accounts ---

    /// Totals so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Replaces the policy from the next block on. The new policy also learns of blocks under way
    /// that it did not choose.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
    }

    /// Limits blocks to `len` raw bytes from here on. A sender with little memory needs short
    /// blocks, because the receiver can use nothing of a block before it has all of it.
    pub fn limit_blocks(&mut self, len: usize) {
        self.limits.block_max = len.clamp(1, self.config.block_max);
    }

    /// Links no frames from here on, and drops the history.
    pub fn stop_linking(&mut self) {
        self.limits.history = 0;
        self.history.shrink_to(0);
    }

    /// Returns the policy with what it learned.
    pub fn into_policy(self) -> Box<dyn Policy> {
        self.policy
    }

    /// Lines of the trace since the last call.
    pub fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    /// Whether it holds bytes that the link has not accepted.
    pub fn has_work(&self) -> bool {
        self.gathered > 0 || self.handed < self.queue.len() || self.wire_total > self.link.accepted_bytes()
    }

    /// Advances the flow's clock. Nothing changes between calls, so the state before the call
    /// decides how the elapsed time is accounted.
    fn tick(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.now_ns);
        let own_work = self.has_work();
        let busy_until_ns = if own_work { now_ns } else { self.link.dry_at_ns().clamp(self.now_ns, now_ns) };
        self.busy_ns += busy_until_ns - self.now_ns;
        let rest_ns = now_ns - busy_until_ns;
        if self.is_drained() {
            self.summary.confirm_ns += rest_ns;
        } else {
            self.summary.idle_ns += rest_ns;
        }
        if !own_work {
            self.pending_since_ns = now_ns;
        }
        self.now_ns = now_ns;
    }
}
