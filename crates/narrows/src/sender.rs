//! The sending half of a flow: raw bytes in, frames out. No I/O, no thread, no clock.
//!
//! ```text
//! push -> [gathered] -- poll_job: choose, cut --> Job ~~ worker ~~> finish -> [queue, in order] -- poll_transmit -->
//! ```
//!
//! A block's raw bytes stay in the queue until its frame has been handed to the link, so that a
//! late block can be taken over (`on_link_dry`). `memory_max` bounds all sizes; the caller asks
//! `room` before it pushes.

use crate::block::{Block, BufferPool};
use crate::codec::Method;
use crate::frame::{self, Frame, HeaderBytes, Preface, Role};
use crate::history::History;
use crate::monitor::link::LinkMonitor;
use crate::monitor::{Ask, Limits, Pending};
use crate::policy::{Choice, Outcome, Policy};
use crate::trace;

mod config;
mod copies;
mod input;
mod job;
mod reverse;
mod summary;
mod transmit;
mod view;
mod window;

pub use crate::monitor::LinkSample;
pub use config::{MEMORY_MAX_DEFAULT, SenderConfig};
pub use copies::{Copied, Searched};
pub use job::{Done, Job, JobKind, worthwhile_len};
pub use summary::{MixRow, Summary};
pub use transmit::index_frames;

use copies::Reach;
use input::Input;
use reverse::Peer;
use transmit::Output;
use window::{Slot, SlotState, Window};

/// Limits of the raw bytes gathered: eight blocks, so that a reader and four workers never wait for
/// each other at the largest block of `balance` (512 KiB; half of the eight are with the workers),
/// and two reads.
const GATHER_MIN: usize = 256 << 10;
const GATHER_MAX: usize = 2 << 20;
/// Small writes wait for more data while the link still has this much to do: waking a thread and
/// encoding 1 KiB takes less time, so the link does not run dry meanwhile.
const GATHER_MARGIN_NS: u64 = 300_000;
/// Room for fewer raw bytes than this is not worth a read.
const READ_MIN: usize = 64 << 10;
/// How long the first bytes of a block that a policy awaits wait for the others: a disk gives 2 MiB in that
/// time, and on the slow links where a policy awaits any, it is a few packets.
const AWAITED_NS: u64 = 20_000_000;
/// Only blocks below this length are worth holding back: it covers a line of text that an
/// application writes at once.
const HOLD_MAX: usize = 16 << 10;
/// Length of the first buffer that raw bytes are read into, and half of the shortest later one.
const SEGMENT_FIRST: usize = 64 << 10;
/// Length of the last buffer, which finds the end.
const SEGMENT_MIN: usize = 4 << 10;
/// Most bytes of trace kept for the driver. It takes them after every call; more means that nobody
/// reads them.
const TRACE_MAX_BYTES: usize = 1 << 20;

/// State machine of the sending half of a flow.
///
/// The driver may call its methods in any order, with times that never decrease. It has to answer
/// each call in this way:
///
/// | after | call | until |
/// | --- | --- | --- |
/// | every call that changes the sender | `poll_job` | it returns `None`; each [`Job`] goes to a worker, its result to `finish` |
/// | `push`, `finish`, `close` | `poll_transmit` | it returns `None`; each frame goes to the link whole |
/// | a write to the link, or a look at it | `on_link` | |
/// | the time of `next_wakeup` | a look, then `on_link_dry` | the job that it returns is run at once, by the caller |
///
/// `close` ends the input: no `push` or `write` may follow.
pub struct Sender {
    config: SenderConfig,
    policy: Box<dyn Policy>,
    pool: BufferPool,
    limits: Limits,
    phase: Phase,

    input: Input,
    history: History,
    /// Raw offset from which on both ends keep a long history, and its length, until the receiver is
    /// told.
    keep: Option<(u64, usize)>,
    /// Raw offset of the last reset.
    run_offset: u64,
    /// Raw bytes cut into blocks so far.
    raw_offset: u64,
    window: Window,
    workers: Workers,
    output: Output,
    reach: Reach,
    link: LinkMonitor,
    peer: Peer,

    times: Times,
    summary: Summary,
    trace: String,
    scratch: Vec<Pending>,
}

/// The life of a flow, as its sender sees it. Phases follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// More raw bytes may come.
    Open,
    /// The input has ended; blocks are still under way.
    Closed,
    /// The end frame has been made.
    Ended,
    /// The receiver has confirmed that it stored everything.
    Confirmed,
}

/// The flow's clock, and where its time went.
#[derive(Debug, Default)]
struct Times {
    now_ns: u64,
    busy_ns: u64,
    dry_ns: u64,
    /// `idle_ns` of the summary at the last search for repeats.
    idle_then_ns: u64,
    /// The last time at which nothing was pending.
    pending_since_ns: u64,
}

/// What the workers do for this flow.
#[derive(Debug)]
struct Workers {
    /// Jobs with the workers: blocks being encoded, late ones that were taken over, probes.
    busy: usize,
    probing: bool,
    /// Most jobs at once, as the policy chose last.
    max: usize,
}

impl Sender {
    /// A sender of a new flow.
    pub fn new(mut config: SenderConfig, policy: Box<dyn Policy>, pool: BufferPool) -> Self {
        config.block_max = config.block_max.clamp(1, frame::BLOCK_MAX_HARD);
        config.history = config.history.min(frame::HISTORY_MAX_HARD);
        config.codecs = config.codecs & config.registry.bits() | 1 << Method::STORE.codec.0;
        let limits = Limits {
            block_max: config.block_max,
            // A duplex receiver may keep less, and says so later.
            history: if config.duplex { config.history.min(frame::BASELINE_HISTORY) } else { config.history },
            // Before its preface a duplex receiver is known to have the usual ones only.
            codecs: config.codecs & if config.duplex { frame::BASELINE_CODECS } else { u64::MAX },
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
        if config.tells_delivered {
            optional |= frame::feature::DELIVERED;
        }
        let reach = Reach::new(&config);
        let preface = Preface {
            role: Role::Sender,
            critical: if reach.len.unwrap_or(0) > 0 { frame::feature::COPIES } else { 0 },
            optional,
            check: config.check,
            block_max: reach.raw_max,
            history: config.history,
            reach: reach.own,
            codecs: config.codecs,
        };
        let preface = Frame { header: HeaderBytes::preface(&preface), body: Block::default() };
        let mut link = if config.relayed { LinkMonitor::relayed() } else { LinkMonitor::default() };
        config.expected_link.iter().for_each(|expected| link.expect(expected));
        let mut input = Input::new(config.block_max, config.separate);
        if config.gather_ns > 0 {
            // Nobody waits for the first block either.
            input.wanted = whole_blocks(&*policy, &config).unwrap_or(input.wanted).min(config.block_max);
        }
        Self {
            limits,
            policy,
            pool,
            phase: Phase::Open,
            input,
            history: History::new(config.history.min(frame::BASELINE_HISTORY)),
            keep: None,
            run_offset: 0,
            raw_offset: 0,
            window: Window::default(),
            workers: Workers { busy: 0, probing: false, max: config.cores.max(1) },
            output: Output::new(preface, config.index),
            link,
            reach,
            peer: Peer::default(),
            times: Times::default(),
            summary: Summary::default(),
            trace: String::new(),
            scratch: Vec::new(),
            config,
        }
    }

    // --- raw bytes in ---

    /// Raw bytes that may be pushed; 0: wait until frames have left.
    pub fn room(&self) -> usize {
        let awaited = if self.is_awaited() { self.limits.block_max } else { 0 };
        let wanted = self.whole_blocks().unwrap_or(0).max(self.input.wanted).max(awaited);
        // A link within memory shares the caches with these bytes, and no worker waits for them.
        let blocks = if self.link.in_memory() { 1 } else { 8 };
        let gather = (blocks * wanted).clamp(GATHER_MIN, GATHER_MAX).max(2 * wanted);
        let gather = gather.min(self.config.memory_max / 2).max(1);
        if self.phase > Phase::Open { 0 } else { gather.saturating_sub(self.input.raw_len()) }
    }

    /// A good length for the buffers that are pushed. The first bytes do not wait for many others,
    /// later whole blocks fit without being joined, and the working set stays small, so that
    /// buffers are reused while they are in a core's cache.
    pub fn segment_len(&self) -> usize {
        let whole = self.input.wanted.next_power_of_two().max(SEGMENT_FIRST);
        let len = match self.raw_offset {
            0 => SEGMENT_FIRST,
            _ if self.link.in_memory() => whole,
            _ => 2 * whole,
        };
        // A buffer that the rest does not fill would be made for nothing.
        let left =
            self.config.raw_len.map_or(u64::MAX, |all| all.saturating_sub(self.raw_offset + self.input.len as u64));
        len.min(usize::try_from(left).unwrap_or(usize::MAX).max(SEGMENT_MIN))
    }

    /// Whether there is too little room for a read to be worth its while.
    pub fn is_full(&self) -> bool {
        self.room() < self.segment_len().min(READ_MIN)
    }

    /// Whether the link lies within memory, so that this flow shares its cores and caches.
    pub fn is_in_memory(&self) -> bool {
        self.link.in_memory()
    }

    /// Raw bytes that are in no block yet.
    pub fn gathered(&self) -> usize {
        self.input.raw_len()
    }

    /// Raw bytes whose frames were not handed to the driver.
    pub fn pending(&self) -> u64 {
        self.raw_offset + self.input.raw_len() as u64 - self.summary.raw_bytes
    }

    /// Number of workers.
    pub fn cores(&self) -> usize {
        self.config.cores
    }

    /// Takes raw bytes without copying. They may exceed `room()` once; ask again before the next
    /// push.
    pub fn push(&mut self, raw: Block, now_ns: u64) {
        debug_assert!(self.phase == Phase::Open, "push after close");
        self.tick(now_ns);
        if raw.is_empty() {
            return;
        }
        self.input.push(raw, self.times.now_ns);
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
        self.input.flushed_to = self.raw_offset + self.input.raw_len() as u64;
    }

    /// Ends the input: no more raw bytes follow.
    pub fn close(&mut self, now_ns: u64) {
        self.tick(now_ns);
        self.input.hold_until_ns = None;
        self.phase = self.phase.max(Phase::Closed);
    }

    // --- jobs ---

    /// The next job, if the window has room and there is something to do. Call it until it returns
    /// `None`, and after every other call that changes the sender.
    pub fn poll_job(&mut self, now_ns: u64) -> Option<Job> {
        self.tick(now_ns);
        self.input.hold_until_ns = None;
        if self.input.raw_len() == 0 {
            return None;
        }
        if self.workers.busy >= self.workers.max.min(self.config.cores.max(1)) {
            return None;
        }
        let full = self.window.slots.len() >= self.policy.window(self.config.cores).max(1);
        if full || !self.memory_allows() {
            return self.poll_probe();
        }
        if self.input.copies_are_due() {
            return self.cut_copies();
        }
        if self.hold_for_whole_block() || self.hold_for_awaited() || self.hold_for_company() {
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
            self.workers.busy -= 1;
            self.workers.probing = false;
            self.summary.probed_blocks += 1;
            self.policy.learn(&Outcome::Probed { method, raw_len, wire_len, wall_ns, cpu_ns });
            return;
        }
        if kind == JobKind::Encode {
            self.workers.busy -= 1;
        }
        let slot = self.window.find_mut(seq);
        let taken_over = slot.is_none() && kind == JobKind::Encode;
        let chosen = raw_len > 0;
        if let Some(slot) = slot {
            if kind == JobKind::Rescue && chosen {
                self.summary.rescued_blocks += 1;
                self.policy.learn(&Outcome::Rescued { seq, method, raw_len, wire_len });
            }
            // Nobody takes over what is encoded.
            slot.history = Block::default();
            slot.state = SlotState::Ready(Box::new(done));
        }
        if kind == JobKind::Encode && chosen {
            let outcome = Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over };
            if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
                trace::outcome(&mut self.trace, &self.config.registry, self.times.now_ns, &outcome);
            }
            self.policy.learn(&outcome);
        }
    }

    fn cut(&mut self, ask: Ask) -> Option<Job> {
        // A copy costs more than a block that ends with its piece, unless copies cut that short. A policy
        // of whole blocks must see what it chooses for, however it came.
        let sight = if self.is_awaited() { usize::MAX } else { self.policy.sight() };
        self.input.wanted = self.input.wanted.max(sight.min(self.limits.block_max));
        if !self.link.in_memory() || self.input.copies.len > 0 || self.whole_blocks().is_some() {
            self.input.join(&self.pool);
        }
        self.begin_run();
        let choice = self.choose(ask)?;
        let (raw, copies) = self.input.cut_block(choice.block_len.max(1), self.reach.raw_max, self.times.now_ns)?;
        if choice.linked && choice.history_len > frame::BASELINE_HISTORY {
            self.keep_long_history();
        }
        let has_history = self.history.len() > 0 && self.limits.history > 0;
        let linked = choice.linked && self.config.registry.can_link(choice.method) && has_history;
        let history = if linked { self.history_for(&choice, raw.len()) } else { Block::default() };
        self.workers.max = choice.threads_max.map_or(usize::MAX, |n| usize::from(n).max(1));
        let method = if raw.is_empty() { Method::STORE } else { choice.method };
        Some(self.job(method, raw, copies, history, linked, choice.encode_ns))
    }

    /// Drops the history if the run is long enough. Copies go on: they do not look into the history.
    fn begin_run(&mut self) {
        let len = self.raw_offset - self.run_offset;
        if self.config.run_len > 0 && self.limits.history > 0 && len >= self.config.run_len {
            self.run_offset = self.raw_offset;
            self.history.clear();
            self.output.resets.push_back(self.raw_offset);
        }
    }

    /// Keeps a long history from here on, once a policy wants it. Others would touch memory for
    /// nothing: 2 MiB more at each end are what a fast link carries in a millisecond.
    fn keep_long_history(&mut self) {
        if self.limits.history > self.history.len_max() {
            self.history.grow_to(self.limits.history);
            self.keep = Some((self.raw_offset, self.history.len_max()));
        }
    }

    /// The latest bytes that the block of a choice is linked to.
    fn history_for(&mut self, choice: &Choice, raw_len: usize) -> Block {
        let mut len = choice.history_len.min(self.limits.history);
        let Method { level, .. } = choice.method;
        let codec = self.config.registry.of(choice.method);
        let encoder = |len| codec.encoder_memory(level, raw_len, len);
        while len > frame::BASELINE_HISTORY && encoder(len) > self.config.memory_max / 2 {
            len = (len / 2).max(frame::BASELINE_HISTORY);
        }
        self.history.latest(len, &self.pool)
    }

    fn job(
        &mut self,
        method: Method,
        raw: Block,
        copies: Vec<Copied>,
        history: Block,
        linked: bool,
        estimate_ns: u64,
    ) -> Job {
        let seq = self.window.next_seq;
        let slot = Slot {
            seq,
            raw: raw.clone(),
            copies: copies.clone(),
            raw_offset: self.raw_offset,
            method,
            linked,
            history: history.clone(),
            chosen_ns: self.times.now_ns,
            rescuing: false,
            state: SlotState::Encoding,
        };
        let job = Job {
            seq,
            kind: JobKind::Encode,
            method,
            raw,
            copies,
            raw_offset: self.raw_offset,
            history,
            linked,
            check: self.config.check,
            estimate_ns,
            codec: self.config.registry.of(method),
        };
        if job.copies.is_empty() {
            self.history.push_block(&job.raw);
        } else {
            copies::parts(&job.raw, &job.copies).into_iter().for_each(|part| self.history.push(part));
        }
        self.raw_offset += (job.raw.len() + copies::len(&job.copies)) as u64;
        self.window.push(slot);
        self.workers.busy += 1;
        self.summary.memory_peak = self.summary.memory_peak.max(self.memory() as u64);
        job
    }

    fn choose(&mut self, ask: Ask) -> Option<Choice> {
        let mut queue = std::mem::take(&mut self.scratch);
        self.pending_into(&mut queue);
        let front = self.input.front()?.clone();
        let upcoming = &front[..front.len().min(self.limits.block_max)];
        let view = self.view(upcoming, &queue, ask);
        let mut choice = self.policy.choose(&view);
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::choice(&mut self.trace, &self.config.registry, &view, &choice, &self.policy.explain());
        }
        if !self.limits.allows(choice.method) {
            choice.method = Method::STORE;
        }
        self.input.wanted = choice.block_len.clamp(1, self.limits.block_max);
        self.scratch = queue;
        let mut len = upcoming.len();
        if len < self.input.wanted && self.whole_blocks().is_some() {
            self.input.join(&self.pool);
            len = self.input.front()?.len().min(self.limits.block_max);
        }
        choice.block_len = choice.block_len.min(len);
        Some(choice)
    }

    /// A shadow probe, if the window is full and a worker idle. At most one at a time.
    fn poll_probe(&mut self) -> Option<Job> {
        if self.workers.probing || self.phase > Phase::Open && self.input.len < HOLD_MAX {
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
        self.workers.probing = true;
        self.workers.busy += 1;
        Some(Job {
            seq: self.window.next_seq,
            kind: JobKind::Probe,
            method: choice.method,
            raw: front.slice(0..choice.block_len.clamp(1, upcoming.len())),
            copies: Vec::new(),
            raw_offset: self.raw_offset,
            history: Block::default(),
            linked: false,
            check: false,
            estimate_ns: choice.encode_ns,
            codec: self.config.registry.of(choice.method),
        })
    }

    /// The longest block, if each must have the length that is chosen for it.
    fn whole_blocks(&self) -> Option<usize> {
        whole_blocks(&*self.policy, &self.config).map(|len| len.min(self.limits.block_max))
    }

    /// Whether the next raw bytes may wait for no others.
    fn is_flushed(&self) -> bool {
        self.phase > Phase::Open || self.raw_offset < self.input.flushed_to
    }

    /// Waits for a whole block where it does not matter when bytes leave.
    fn hold_for_whole_block(&mut self) -> bool {
        let until_ns = self.input.since_ns.saturating_add(self.config.gather_ns);
        let whole = self.whole_blocks().unwrap_or(self.input.wanted);
        if self.is_flushed() || self.input.len >= whole || until_ns <= self.times.now_ns || self.is_full() {
            return false;
        }
        self.input.hold_until_ns = Some(until_ns);
        true
    }

    /// Whether the policy wants to see the whole of the block that begins with the next byte.
    fn is_awaited(&self) -> bool {
        self.policy.awaits() == Some(self.raw_offset)
    }

    /// Waits a moment for the rest of a block that the policy wants to see whole.
    fn hold_for_awaited(&mut self) -> bool {
        let until_ns = self.input.since_ns.saturating_add(AWAITED_NS);
        let is_here = self.input.len >= self.limits.block_max || self.is_flushed() || self.is_full();
        if !self.is_awaited() || is_here || until_ns <= self.times.now_ns {
            return false;
        }
        self.input.hold_until_ns = Some(until_ns);
        true
    }

    /// While the link has enough to do, a small write waits for more data; it costs nothing (D4).
    fn hold_for_company(&mut self) -> bool {
        if self.is_flushed() || self.input.len >= HOLD_MAX.min(self.input.wanted) || self.workers.busy > 0 {
            return false;
        }
        let in_hand = self.output.wire_total.saturating_sub(self.link.accepted_bytes());
        let drain_ns = (self.window.unsent_len() as u64 + in_hand) as f64 / self.link.rate_bytes_per_s() * 1e9;
        let dry_at_ns = self.link.dry_at_ns().max(self.times.now_ns) + drain_ns as u64;
        let hold_until_ns = dry_at_ns.saturating_sub(GATHER_MARGIN_NS);
        if hold_until_ns <= self.times.now_ns {
            return false;
        }
        self.input.hold_until_ns = Some(hold_until_ns.min(self.times.now_ns + transmit::LOOK_MAX_NS));
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
        (self.config.history, self.limits.history) = (0, 0);
        self.history.shrink_to(0);
    }

    /// Returns the policy with what it learned.
    pub fn into_policy(self) -> Box<dyn Policy> {
        self.policy
    }

    /// Records trace lines from here on, or stops to; the driver fetches them with `take_trace`.
    pub fn set_trace(&mut self, on: bool) {
        self.config.trace = on;
    }

    /// Lines of the trace since the last call.
    pub fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    /// Whether it holds bytes that the link has not accepted.
    pub fn has_work(&self) -> bool {
        self.input.raw_len() > 0 || !self.window.is_handed() || self.output.wire_total > self.link.accepted_bytes()
    }

    /// Advances the flow's clock. Nothing changes between calls, so the state before the call
    /// decides how the elapsed time is accounted.
    fn tick(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.times.now_ns);
        let own_work = self.has_work();
        let busy_until_ns = if own_work { now_ns } else { self.link.dry_at_ns().clamp(self.times.now_ns, now_ns) };
        self.times.busy_ns += busy_until_ns - self.times.now_ns;
        let rest_ns = now_ns - busy_until_ns;
        if self.is_drained() {
            self.summary.confirm_ns += rest_ns;
        } else {
            self.summary.idle_ns += rest_ns;
        }
        if !own_work {
            self.times.pending_since_ns = now_ns;
        }
        self.times.now_ns = now_ns;
    }
}

fn whole_blocks(policy: &dyn Policy, config: &SenderConfig) -> Option<usize> {
    policy.whole_blocks().or(config.whole_blocks.then_some(config.block_max))
}
