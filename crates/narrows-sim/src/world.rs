//! The engine's real sender in virtual time, with measured costs instead of codecs.
//!
//! ```text
//! pool's bytes -> Sender -> K cores (table) -> Sender -> kernel buffer -> link -> D decoders (table) -> reports
//! ```
//!
//! The clock jumps from event to event. Blocks that the I/O thread encodes itself (a rescue, a
//! bypass) share the K cores with the workers: K cores never do more work than the bound assumes.

use std::collections::{HashMap, VecDeque};

use narrows::block::BufferPool;
use narrows::codec::Method;
use narrows::flow::{Encoding, INLINE_NS};
use narrows::frame::{Preface, Role};
use narrows::monitor::expectation::{Kind, PeerLink};
use narrows::oracle::{Machine, Speed};
use narrows::policy::Policy;
use narrows::sender::{Job, JobKind, LinkSample, Sender, SenderConfig, Summary};

use narrows_classic::Planned;

use crate::overhead::ENCODE_FIXED_NS;
use crate::rng::Rng;
use crate::table::{STORE_NS_PER_BYTE, Table};

mod bucket;
mod cold;
mod cores;
mod hardware;
mod host;
mod link;
mod receiver;

pub use hardware::Hardware;
pub use host::Host;

use cold::Cold;
use cores::{Cores, Task};
use hardware::Threads;
use link::{InFlight, Link};
use receiver::Receiver;

/// Relative half-normal noise that lengthens encoding times.
const NOISE: f64 = 0.05;
/// Delay of a report to the sender: short, because the simulated link has no propagation delay.
const REPORT_DELAY_NS: u64 = 5_000;
/// As in the engine's driver: the thread that writes also runs short jobs, as long as it has not read more
/// bytes than that.
const SHORT_BYTES: usize = 128 << 10;
/// More events than any cell needs: an engine that loops without progress fails instead of hanging.
const STEPS_MAX: u64 = 50_000_000;

/// Everything about one run but the policy.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Raw bytes to send.
    pub len: usize,
    /// Cores that encode, each at the speed `cpu`.
    pub cores: usize,
    /// Cores that decode, each at the speed `receiver`.
    pub decoders: usize,
    /// Bytes of wire per second.
    pub link: Speed,
    /// Speed of the encoding cores; 1 is the machine of the table.
    pub cpu: Speed,
    /// Speed of the decoding cores; 1 is the machine of the table.
    pub receiver: Speed,
    /// Longest block in bytes.
    pub block_max: usize,
    /// CPU time of the decision for one block, charged to the worker.
    pub decision_ns: f64,
    /// Seed of the noise on encoding times.
    pub seed: u64,
    /// Whether decisions are recorded.
    pub trace: bool,
    /// The link as an earlier flow to the same peer measured it.
    pub expected_link: Option<PeerLink>,
}

impl Conditions {
    /// The part of the conditions that the bound and the schedules use.
    pub fn machine(&self) -> Machine {
        Machine {
            cores: self.cores,
            decoders: self.decoders,
            link: self.link.clone(),
            cpu: self.cpu.clone(),
            receiver: self.receiver.clone(),
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Time at which the last raw byte was delivered.
    pub seconds: f64,
    /// CPU seconds of encoding, over all cores.
    pub cpu_s: f64,
    /// The sender's summary.
    pub summary: Summary,
    /// One line for each decision; empty unless the conditions ask for it.
    pub trace: String,
    /// Encodings that were begun, including probes and blocks that a rescue took over later.
    pub jobs: u64,
    /// Every block, as sent.
    pub sent: Vec<Planned>,
    /// Nanoseconds of encoding by method, in order of first use.
    pub encode_ns: Vec<(Method, f64)>,
    /// CPU seconds that decoding took at speed 1.
    pub decode_s: f64,
    /// State that the policy asks to keep for later flows.
    pub saved: Option<Vec<u8>>,
    /// Kinds of data that the policy knows at the end.
    pub kinds: Vec<Kind>,
    /// Bytes that the memory of each end moved; complete only where [`Hardware`] limits it.
    pub moved: [f64; 2],
}

impl Run {
    /// CPU seconds of encoding over all cores, with the fixed overhead of every block.
    pub fn work_s(&self) -> f64 {
        self.cpu_s + self.jobs as f64 * ENCODE_FIXED_NS * 1e-9
    }
}

/// Sends `conditions.len` bytes of the table's repeated pool by a policy.
///
/// # Panics
/// If the flow makes no progress.
pub fn run(table: &Table, conditions: &Conditions, policy: Box<dyn Policy>) -> Run {
    play(World::new(table, conditions, policy, None))
}

/// As [`run`], between two hosts whose memory and threads have limits.
///
/// # Panics
/// If the flow makes no progress.
pub fn run_on(table: &Table, conditions: &Conditions, hardware: &Hardware, policy: Box<dyn Policy>) -> Run {
    play(World { threads: Some(Threads::new(*hardware)), ..World::new(table, conditions, policy, None) }.limited())
}

/// As [`run`], between two cold processes of one machine. The time is from the start of the programs
/// until both have ended.
///
/// # Panics
/// If the flow makes no progress.
pub fn run_cold(table: &Table, conditions: &Conditions, host: &Host, policy: Box<dyn Policy>) -> Run {
    let run = play(World::new(table, conditions, policy, Some(*host)));
    Run { seconds: run.seconds + host.start_ns * 1e-9, ..run }
}

fn play(mut world: World<'_>) -> Run {
    while !world.is_over() {
        world.settle();
        world.advance();
    }
    let summary = world.sender.summary().clone();
    let policy = world.sender.into_sender().into_policy();
    Run {
        seconds: world.receiver.delivered_s,
        cpu_s: world.effort.cpu_ns * 1e-9,
        summary,
        trace: world.trace,
        jobs: world.effort.job_count,
        sent: world.sent,
        encode_ns: world.effort.encode_ns,
        decode_s: world.effort.decode_ns * 1e-9,
        saved: policy.save(),
        kinds: policy.kinds(),
        moved: [world.cores.moved, world.receiver.moved()],
    }
}

/// What both ends computed.
#[derive(Default)]
struct Effort {
    cpu_ns: f64,
    job_count: u64,
    encode_ns: Vec<(Method, f64)>,
    decode_ns: f64,
}

struct World<'a> {
    table: &'a Table,
    conditions: &'a Conditions,
    sender: Encoding,
    rng: Rng,
    now_ns: u64,
    pushed: usize,
    closed: bool,
    cores: Cores,
    /// Raw bytes whose frames were handed to the link, and (frames, raw bytes) of each row of the
    /// sender's mix at that time.
    sent_raw: usize,
    counted: Vec<(u64, u64)>,
    link: Link,
    receiver: Receiver,
    reports: VecDeque<(u64, Vec<u8>)>,
    effort: Effort,
    sent: Vec<Planned>,
    /// Bytes of history of each linked block, by its raw offset.
    histories: HashMap<u64, usize>,
    steps: u64,
    trace: String,
    cold: Option<Cold>,
    threads: Option<Threads>,
}

impl<'a> World<'a> {
    fn new(table: &'a Table, conditions: &'a Conditions, policy: Box<dyn Policy>, host: Option<Host>) -> Self {
        let config = SenderConfig {
            registry: table.codecs.clone(),
            block_max: conditions.block_max,
            cores: conditions.cores,
            history: table.linked.iter().map(|(_, len)| *len).max().unwrap_or(0),
            duplex: true,
            raw_len: Some(conditions.len as u64),
            trace: conditions.trace,
            expected_link: conditions.expected_link,
            ..SenderConfig::default()
        };
        let preface = Preface {
            role: Role::Receiver,
            critical: 0,
            optional: 0,
            check: true,
            block_max: conditions.block_max,
            history: config.history,
            reach: 0,
            codecs: table.codecs.bits(),
        };
        Self {
            table,
            conditions,
            sender: Encoding::new(Sender::new(config, policy, BufferPool::default())),
            rng: Rng(conditions.seed),
            now_ns: 0,
            pushed: 0,
            closed: false,
            cores: Cores::new(conditions),
            sent_raw: 0,
            counted: Vec::new(),
            link: Link::new(conditions.link.clone(), host.as_ref()),
            receiver: Receiver::new(conditions),
            reports: VecDeque::from([(REPORT_DELAY_NS, preface.encode().to_vec())]),
            effort: Effort::default(),
            sent: Vec::new(),
            histories: HashMap::new(),
            steps: 0,
            trace: String::new(),
            cold: host.map(Cold::new),
            threads: None,
        }
    }

    /// Limits memory and the receiver's threads, if there are limits.
    fn limited(mut self) -> Self {
        if let Some(threads) = &self.threads {
            self.cores.limit_memory(threads.hardware.memory_bytes_per_s);
            self.receiver.limit(threads.hardware);
        }
        self
    }

    fn is_over(&self) -> bool {
        self.receiver.raw_len == self.conditions.len
    }

    /// Does everything that can be done at this moment.
    fn settle(&mut self) {
        loop {
            let mut progress = false;
            while let Some(task) = self.cores.finish(self.now_ns) {
                match task {
                    Task::Encode(done) => self.sender.finish(done, self.now_ns),
                    Task::Write => self.written(),
                    Task::Read(len) | Task::Source(len) => {
                        self.threads.iter_mut().for_each(|t| t.reading -= 1);
                        self.push(len);
                    }
                    Task::Decode => self.receiver.decoded(self.now_ns),
                }
                progress = true;
            }
            while let Some(work_ns) = self.receiver.begin_decoding() {
                self.cores.take_other(self.now_ns, Task::Decode, work_ns);
            }
            while self.reports.front().is_some_and(|r| r.0 <= self.now_ns) {
                let (_, bytes) = self.reports.pop_front().expect("there is a front");
                self.sender.receive(&bytes, self.now_ns).expect("reports are well formed");
                progress = true;
            }
            self.feed();
            progress |= self.transmit();
            self.look();
            while self.may_poll()
                && let Some(job) = self.sender.next_job(self.now_ns)
            {
                let here = self.is_short() && job.estimate_ns < INLINE_NS;
                self.start(job, self.conditions.decision_ns, here);
                let until_ns = self.now_ns + self.conditions.decision_ns as u64;
                self.threads.iter_mut().for_each(|t| t.deciding_until_ns = until_ns);
                progress = true;
            }
            self.read();
            if !self.cores.io_is_busy()
                && self.sender.next_wakeup().is_some_and(|t| t <= self.now_ns)
                && let Some(job) = self.sender.late(self.now_ns)
            {
                // A rescue needs no new decision, as its block's method was chosen before; a block
                // that the I/O thread cuts itself does.
                let charge_ns = if job.kind == JobKind::Encode { self.conditions.decision_ns } else { 0.0 };
                self.start(job, charge_ns, true);
                progress = true;
            }
            if self.conditions.trace {
                let lines = self.sender.take_trace();
                self.trace.push_str(&lines);
            }
            if !progress {
                return;
            }
        }
    }

    /// Pushes as much of the repeated pool as the sender accepts.
    fn feed(&mut self) {
        if self.cold.is_some() || self.threads.is_some() {
            return;
        }
        while self.pushed < self.conditions.len && self.sender.room() > 0 {
            self.push(self.sender.room().min(self.conditions.len - self.pushed));
        }
        self.close_at_end();
    }

    /// Pushes `len` bytes of the repeated pool.
    fn push(&mut self, len: usize) {
        let end = self.pushed + len;
        while self.pushed < end {
            let at = self.pushed % self.table.len();
            let len = (end - self.pushed).min(self.table.len() - at);
            self.sender.push(self.table.bytes.slice(at..at + len), self.now_ns);
            self.pushed += len;
        }
        self.close_at_end();
    }

    fn close_at_end(&mut self) {
        if self.pushed == self.conditions.len && !self.closed {
            self.sender.close(self.now_ns);
            self.closed = true;
        }
    }

    /// Begins to read the source, as the driver does: of a short file while it has nothing to write.
    fn read(&mut self) {
        let asked = self.threads.as_ref().map_or(self.pushed, |t| t.asked);
        let room = self.sender.room().saturating_sub(asked - self.pushed);
        let enough = room >= self.sender.segment_len().min(1 << 16);
        if asked == self.conditions.len || !enough {
            return;
        }
        let len = room.min(self.sender.segment_len()).min(self.conditions.len - asked);
        if let Some(threads) = self.threads.as_mut().filter(|t| t.may_read()) {
            threads.reading += 1;
            threads.asked += len;
            let work_ns = len as f64 * threads.hardware.source_ns_per_byte;
            self.cores.take_other(self.now_ns, Task::Source(len), work_ns);
            self.cores.moves(Hardware::source_moves(len));
        }
        let Some(cold) = self.cold.as_ref().filter(|_| !self.cores.io_is_busy()) else { return };
        let work_ns = cold.host.call_ns + len as f64 * cold.host.read_ns_per_byte;
        self.cores.take_other(self.now_ns, Task::Read(len), work_ns);
    }

    /// Whether the thread that does everything of a short flow still does.
    fn is_short(&self) -> bool {
        self.cold.is_some() && self.pushed <= SHORT_BYTES
    }

    /// Whether some thread asks the sender for jobs.
    fn may_poll(&self) -> bool {
        let decides = self.threads.as_ref().is_some_and(|t| t.deciding_until_ns > self.now_ns);
        !decides && (!self.is_short() || !self.cores.io_is_busy())
    }

    fn start(&mut self, job: Job, charge_ns: f64, on_io: bool) {
        let cost = self.table.cost_of(job.raw_offset, job.raw.len(), job.method, job.history.len());
        if job.linked {
            self.histories.insert(job.raw_offset, job.history.len());
        }
        let work_ns = cost.encode_ns * (1.0 + NOISE * self.rng.normal().abs());
        let (work_ns, charge_ns) = match &mut self.cold {
            Some(cold) => cold.encoding(job.method, (work_ns, charge_ns), self.conditions.cores, on_io),
            None => (work_ns, charge_ns),
        };
        self.effort.cpu_ns += work_ns;
        self.effort.job_count += 1;
        match self.effort.encode_ns.iter_mut().find(|e| e.0 == job.method) {
            Some(sum) => sum.1 += work_ns,
            None => self.effort.encode_ns.push((job.method, work_ns)),
        }
        // A block that would not shrink is sent raw (D10).
        let wire_len = (cost.wire_len.round() as usize).clamp(1, job.raw.len());
        let moved = Hardware::codec_moves(job.method, job.raw.len(), cost.wire_len);
        self.cores.take(self.now_ns, job.simulated(wire_len, 0, 0), charge_ns, work_ns, on_io);
        self.cores.moves(moved);
    }

    /// Moves frames into the kernel's buffer while it accepts bytes.
    fn transmit(&mut self) -> bool {
        let mut progress = false;
        loop {
            // The thread that writes does one thing at a time.
            if self.cold.is_some() && self.cores.io_is_busy() || self.threads.as_ref().is_some_and(|t| !t.may_write()) {
                return progress;
            }
            if self.link.in_hand == 0 {
                let Some(frame) = self.sender.poll_transmit() else { return progress };
                self.link.in_hand = frame.wire_len() as u64;
                self.link.wanted = true;
                if let Some(block) = self.newly_sent() {
                    let Planned { raw_len, method, linked, history_len } = block;
                    let wire_end = self.link.accepted + self.link.in_hand;
                    let cost = self.table.cost_of(self.sent_raw as u64, raw_len, method, history_len);
                    let decode_ns = if cost.wire_len < raw_len as f64 || method == Method::STORE {
                        cost.decode_ns
                    } else {
                        raw_len as f64 * STORE_NS_PER_BYTE
                    };
                    self.link.frames.push_back(InFlight {
                        wire_end,
                        wire_len: self.link.in_hand,
                        raw_len,
                        method,
                        linked,
                        decode_ns,
                    });
                    self.sent_raw += raw_len;
                    self.effort.decode_ns += decode_ns;
                    self.sent.push(block);
                }
            }
            let unsent_before = self.link.unsent();
            let accepted = self.link.accept(self.now_ns);
            if accepted == 0 {
                return progress;
            }
            progress = true;
            let Some(cold) = &mut self.cold else {
                self.sample(unsent_before, accepted);
                if let Some(threads) = &mut self.threads {
                    threads.writing += 1;
                    let work_ns = accepted as f64 * threads.hardware.write_ns_per_byte;
                    self.cores.take_other(self.now_ns, Task::Write, work_ns);
                    self.cores.moves(Hardware::socket_moves(accepted as f64));
                }
                continue;
            };
            cold.writing = Some(LinkSample { begin_ns: self.now_ns, unsent_before, accepted, ..LinkSample::default() });
            let work_ns = cold.host.call_ns + accepted as f64 * cold.host.send_ns_per_byte;
            self.cores.take_other(self.now_ns, Task::Write, work_ns);
        }
    }

    /// A write has returned.
    fn written(&mut self) {
        self.threads.iter_mut().for_each(|t| t.writing -= 1);
        let Some(sample) = self.cold.as_mut().and_then(|c| c.writing.take()) else { return };
        self.observe(sample);
    }

    /// The data frame that was handed over last, if it is not counted yet. Found by the summary,
    /// which counts frames by method.
    fn newly_sent(&mut self) -> Option<Planned> {
        let mix = &self.sender.summary().mix;
        self.counted.resize(mix.len(), (0, 0));
        for (row, counted) in mix.iter().zip(&mut self.counted) {
            if row.frames > counted.0 {
                let raw_len = (row.raw_bytes - counted.1) as usize;
                *counted = (row.frames, row.raw_bytes);
                let history = self.histories.get(&(self.sent_raw as u64)).copied();
                let history_len = if row.linked { history.unwrap_or(0) } else { 0 };
                return Some(Planned { raw_len, method: row.method, linked: row.linked, history_len });
            }
        }
        None
    }

    /// Samples the link, as a driver does before it asks for work.
    fn look(&mut self) {
        // A look during a write would end it.
        if self.cold.as_ref().is_some_and(|c| c.writing.is_some()) {
            return;
        }
        let unsent = self.link.unsent();
        self.sample(unsent, 0);
    }

    fn sample(&mut self, unsent_before: u64, accepted: u64) {
        self.observe(LinkSample { begin_ns: self.now_ns, unsent_before, accepted, ..LinkSample::default() });
    }

    /// Completes a sample of the link and hands it over.
    fn observe(&mut self, sample: LinkSample) {
        let acknowledged = self.link.acknowledged(self.now_ns);
        self.sender.on_link(LinkSample {
            end_ns: self.now_ns,
            unsent_after: self.link.unsent(),
            // A host does not know when its link was busy.
            busy_ns: acknowledged.is_none().then_some(self.link.busy_ns as u64),
            unacked: acknowledged.map(|a| a.0),
            rtt_ns: acknowledged.map(|a| a.1),
            ..sample
        });
    }

    /// Moves the clock to the next event.
    fn advance(&mut self) {
        if self.is_over() {
            return;
        }
        self.steps += 1;
        let receiver_reads = self.receiver.reads();
        if let Some(cold) = &self.cold {
            let wants = if receiver_reads { self.link.wants(self.now_ns) } else { 0.0 };
            let ns_per_byte = cold.host.receive_ns_per_byte;
            let share = self.cores.share_with_link(self.now_ns, wants * ns_per_byte * 1e-9);
            self.link.limit(if share < wants * ns_per_byte * 1e-9 { share / ns_per_byte * 1e9 } else { f64::INFINITY });
        }
        let mut next_ns = self.cores.next_ns();
        next_ns = next_ns.min(self.reports.front().map_or(u64::MAX, |r| r.0));
        if !self.cores.io_is_busy() {
            next_ns = next_ns.min(self.sender.next_wakeup().unwrap_or(u64::MAX));
        }
        next_ns = next_ns.min(self.receiver.next_ns());
        let deciding_ns = self.threads.as_ref().map_or(0, |t| t.deciding_until_ns);
        if deciding_ns > self.now_ns {
            next_ns = next_ns.min(deciding_ns);
        }
        if receiver_reads {
            next_ns = next_ns.min(self.link.next_ns(self.now_ns));
        }
        assert!(next_ns < u64::MAX && self.steps < STEPS_MAX, "the flow stands still at {} ns", self.now_ns);
        let next_ns = next_ns.max(self.now_ns + 1);
        if receiver_reads {
            for frame in self.link.flow(self.now_ns, next_ns) {
                match &mut self.cold {
                    None => self.receiver.arrive(&frame, next_ns),
                    Some(cold) => {
                        let work_ns = cold.decoding(&frame, self.conditions.decoders);
                        self.receiver.arrive_on_shared(&frame, work_ns);
                    }
                }
            }
        }
        self.now_ns = next_ns;
        if let Some(feedback) = self.receiver.deliver(self.now_ns) {
            let frame = feedback.frame();
            let bytes = frame.header.iter().chain(frame.body.iter()).copied().collect();
            self.reports.push_back((self.now_ns + REPORT_DELAY_NS, bytes));
        }
    }
}

#[cfg(test)]
mod tests;
