//! The engine's real sender in virtual time, with measured costs instead of codecs.
//!
//! ```text
//! pool's bytes -> Sender -> K cores (table) -> Sender -> kernel buffer -> link -> D decoders (table) -> reports
//! ```
//!
//! The clock jumps from event to event. Blocks that the I/O thread encodes itself (a rescue, a
//! bypass) share the K cores with the workers: K cores never do more work than the bound assumes.

use std::collections::VecDeque;

use narrows::block::BufferPool;
use narrows::codec::Method;
use narrows::frame::{Preface, Role, codecs_of_this_build};
use narrows::monitor::expectation::{Kind, PeerLink};
use narrows::oracle::{Machine, Speed};
use narrows::policy::{Planned, Policy};
use narrows::sender::{Job, JobKind, LinkSample, Sender, SenderConfig, Summary};

use crate::overhead::ENCODE_FIXED_NS;
use crate::rng::Rng;
use crate::table::{HISTORY, STORE_NS_PER_BYTE, Table};

mod cores;
mod link;
mod receiver;

use cores::Cores;
use link::{InFlight, Link};
use receiver::Receiver;

/// Relative half-normal noise that lengthens encoding times.
const NOISE: f64 = 0.05;
/// Delay of a report to the sender: short, because the simulated link has no propagation delay.
const REPORT_DELAY_NS: u64 = 5_000;
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
    let mut world = World::new(table, conditions, policy);
    while !world.is_over() {
        world.settle();
        world.advance();
    }
    let summary = world.sender.summary().clone();
    let policy = world.sender.into_policy();
    Run {
        seconds: world.receiver.delivered_s,
        cpu_s: world.cpu_ns * 1e-9,
        summary,
        trace: world.trace,
        jobs: world.job_count,
        sent: world.sent,
        encode_ns: world.encode_ns,
        decode_s: world.decode_ns * 1e-9,
        saved: policy.save(),
        kinds: policy.kinds(),
    }
}

struct World<'a> {
    table: &'a Table,
    conditions: &'a Conditions,
    sender: Sender,
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
    cpu_ns: f64,
    job_count: u64,
    sent: Vec<Planned>,
    encode_ns: Vec<(Method, f64)>,
    decode_ns: f64,
    steps: u64,
    trace: String,
}

impl<'a> World<'a> {
    fn new(table: &'a Table, conditions: &'a Conditions, policy: Box<dyn Policy>) -> Self {
        let config = SenderConfig {
            block_max: conditions.block_max,
            cores: conditions.cores,
            history: if table.linked.is_empty() { 0 } else { HISTORY },
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
            codecs: codecs_of_this_build(),
        };
        Self {
            table,
            conditions,
            sender: Sender::new(config, policy, BufferPool::default()),
            rng: Rng(conditions.seed),
            now_ns: 0,
            pushed: 0,
            closed: false,
            cores: Cores::new(conditions),
            sent_raw: 0,
            counted: Vec::new(),
            link: Link::new(conditions.link.clone()),
            receiver: Receiver::new(conditions),
            reports: VecDeque::from([(REPORT_DELAY_NS, preface.encode().to_vec())]),
            cpu_ns: 0.0,
            job_count: 0,
            sent: Vec::new(),
            encode_ns: Vec::new(),
            decode_ns: 0.0,
            steps: 0,
            trace: String::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.receiver.raw_len == self.conditions.len
    }

    /// Does everything that can be done at this moment.
    fn settle(&mut self) {
        loop {
            let mut progress = false;
            while let Some(done) = self.cores.finish(self.now_ns) {
                self.sender.finish(done, self.now_ns);
                progress = true;
            }
            while self.reports.front().is_some_and(|r| r.0 <= self.now_ns) {
                let (_, bytes) = self.reports.pop_front().expect("there is a front");
                self.sender.receive(&bytes, self.now_ns).expect("reports are well formed");
                progress = true;
            }
            self.feed();
            progress |= self.transmit();
            self.look();
            while let Some(job) = self.sender.poll_job(self.now_ns) {
                self.start(job, self.conditions.decision_ns, false);
                progress = true;
            }
            if !self.cores.io_is_busy()
                && self.sender.next_wakeup().is_some_and(|t| t <= self.now_ns)
                && let Some(job) = self.sender.on_link_dry(self.now_ns)
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
        while self.pushed < self.conditions.len && self.sender.room() > 0 {
            let at = self.pushed % self.table.len();
            let len = self.sender.room().min(self.table.len() - at).min(self.conditions.len - self.pushed);
            self.sender.push(self.table.bytes.slice(at..at + len), self.now_ns);
            self.pushed += len;
        }
        if self.pushed == self.conditions.len && !self.closed {
            self.sender.close(self.now_ns);
            self.closed = true;
        }
    }

    fn start(&mut self, job: Job, charge_ns: f64, on_io: bool) {
        let cost = self.table.cost_of(job.raw_offset, job.raw.len(), job.method, job.linked);
        let work_ns = cost.encode_ns * (1.0 + NOISE * self.rng.normal().abs());
        self.cpu_ns += work_ns;
        self.job_count += 1;
        match self.encode_ns.iter_mut().find(|e| e.0 == job.method) {
            Some(sum) => sum.1 += work_ns,
            None => self.encode_ns.push((job.method, work_ns)),
        }
        // A block that would not shrink is sent raw (D10).
        let wire_len = (cost.wire_len.round() as usize).clamp(1, job.raw.len());
        self.cores.take(self.now_ns, job.simulated(wire_len, 0, 0), charge_ns, work_ns, on_io);
    }

    /// Moves frames into the kernel's buffer while it accepts bytes.
    fn transmit(&mut self) -> bool {
        let mut progress = false;
        loop {
            if self.link.in_hand == 0 {
                let Some(frame) = self.sender.poll_transmit() else { return progress };
                self.link.in_hand = frame.wire_len() as u64;
                self.link.wanted = true;
                if let Some(block) = self.newly_sent() {
                    let Planned { raw_len, method, linked } = block;
                    let wire_end = self.link.accepted + self.link.in_hand;
                    let cost = self.table.cost_of(self.sent_raw as u64, raw_len, method, linked);
                    let decode_ns = if cost.wire_len < raw_len as f64 || method == Method::STORE {
                        cost.decode_ns
                    } else {
                        raw_len as f64 * STORE_NS_PER_BYTE
                    };
                    self.link.frames.push_back(InFlight {
                        wire_end,
                        wire_len: self.link.in_hand,
                        raw_len,
                        linked,
                        decode_ns,
                    });
                    self.sent_raw += raw_len;
                    self.decode_ns += decode_ns;
                    self.sent.push(block);
                }
            }
            let unsent_before = self.link.unsent();
            let accepted = self.link.accept(self.now_ns);
            if accepted == 0 {
                return progress;
            }
            progress = true;
            self.sample(unsent_before, accepted);
        }
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
                return Some(Planned { raw_len, method: row.method, linked: row.linked });
            }
        }
        None
    }

    /// Samples the link, as a driver does before it asks for work.
    fn look(&mut self) {
        let unsent = self.link.unsent();
        self.sample(unsent, 0);
    }

    fn sample(&mut self, unsent_before: u64, accepted: u64) {
        self.sender.on_link(LinkSample {
            begin_ns: self.now_ns,
            end_ns: self.now_ns,
            unsent_before,
            unsent_after: self.link.unsent(),
            accepted,
            busy_ns: Some(self.link.busy_ns as u64),
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        });
    }

    /// Moves the clock to the next event.
    fn advance(&mut self) {
        if self.is_over() {
            return;
        }
        self.steps += 1;
        let receiver_reads = self.receiver.reads();
        let mut next_ns = self.cores.next_ns();
        next_ns = next_ns.min(self.reports.front().map_or(u64::MAX, |r| r.0));
        if !self.cores.io_is_busy() {
            next_ns = next_ns.min(self.sender.next_wakeup().unwrap_or(u64::MAX));
        }
        next_ns = next_ns.min(self.receiver.next_ns());
        if receiver_reads {
            next_ns = next_ns.min(self.link.next_ns(self.now_ns));
        }
        assert!(next_ns < u64::MAX && self.steps < STEPS_MAX, "the flow stands still at {} ns", self.now_ns);
        let next_ns = next_ns.max(self.now_ns + 1);
        if receiver_reads {
            for frame in self.link.flow(self.now_ns, next_ns) {
                self.receiver.arrive(&frame, next_ns);
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
mod tests {
    use super::*;
    use crate::overhead::HEADER_LEN;
    use crate::table::{CLASSES, Cost, example};
    use narrows::block::Block;
    use narrows::monitor::cost::Prior;
    use narrows::policy::PolicySetup;
    use narrows::policy::PolicySpec;

    fn conditions(mbit: f64) -> Conditions {
        let one = Speed::constant(1.0);
        Conditions {
            len: 1 << 20,
            cores: 2,
            decoders: 4,
            link: Speed::constant(mbit * 125_000.0),
            cpu: one.clone(),
            receiver: one,
            block_max: 128 << 10,
            decision_ns: 0.0,
            seed: 1,
            trace: false,
            expected_link: None,
        }
    }

    fn policy(spec: &str) -> Box<dyn Policy> {
        let methods = [Method::STORE, Method::lz4_accel(1), Method::zstd(3)];
        let setup = PolicySetup { methods: &methods, ..PolicySetup::new(2, Prior::shipped()) };
        spec.parse::<PolicySpec>().unwrap().build(&setup)
    }

    #[test]
    fn plain_takes_as_long_as_its_bytes() {
        let run = run(&example(), &conditions(100.0), policy("fixed:store"));
        let wire_s = (f64::from(1 << 20) + 32.0 + 8.0 * HEADER_LEN) / 12.5e6;
        assert!((run.seconds / wire_s - 1.0).abs() < 0.01, "{} against {wire_s}", run.seconds);
        assert_eq!(run.summary.raw_bytes, 1 << 20);
    }

    #[test]
    fn a_fixed_method_takes_its_cpu_or_its_bytes() {
        let slow = run(&example(), &conditions(8.0), policy("fixed:lz4"));
        let wire_s = 0.4 * f64::from(1 << 20) / 1e6;
        assert!((slow.seconds / wire_s - 1.0).abs() < 0.03, "{} against {wire_s}", slow.seconds);
        // 4 ns a byte on two cores.
        let fast = run(&example(), &conditions(100_000.0), policy("fixed:zstd:level=3"));
        let cpu_s = 2e-9 * f64::from(1 << 20);
        assert!((1.0..1.15).contains(&(fast.seconds / cpu_s)), "{} against {cpu_s}", fast.seconds);
    }

    /// Linked blocks are chosen where they bring bytes across sooner, and not where they would only
    /// cost the sender its time.
    #[test]
    fn balance_links_where_the_link_is_what_bounds() {
        let separate = example();
        let mut table = Table::new("linked", separate.bytes.clone(), separate.methods.clone());
        // Zeros would be sent as `constant`.
        let mut rng = Rng(3);
        table.bytes = Block::from_vec((0..separate.len()).map(|_| rng.next_u64() as u8).collect());
        table.linked = separate.methods.clone();
        for class in 0..CLASSES.len() {
            for row in separate.blocks(class) {
                let linked = |c: &Cost| Cost { encode_ns: 1.3 * c.encode_ns, wire_len: 0.8 * c.wire_len, ..*c };
                table.push(class, row.iter().copied().chain(row.iter().map(linked)).collect());
            }
        }
        let linked_share = |mbit| {
            let run = run(&table, &conditions(mbit), policy("balance"));
            let linked: usize = run.sent.iter().filter(|b| b.linked).map(|b| b.raw_len).sum();
            (linked as f64 / table.len() as f64, run.seconds)
        };
        let (share, seconds) = linked_share(20.0);
        assert!(share > 0.8, "{share}");
        let mut separate = separate;
        separate.bytes = table.bytes.clone();
        let alone = run(&separate, &conditions(20.0), policy("balance"));
        assert!(seconds < 0.9 * alone.seconds, "{seconds} against {}", alone.seconds);
        assert!(alone.sent.iter().all(|b| !b.linked));
        let (share, _) = linked_share(25_000.0);
        assert!(share < 0.2, "{share}");
    }

    #[test]
    fn the_same_run_gives_the_same_result() {
        for mbit in [10.0, 1000.0, 25_000.0] {
            let once = run(&example(), &conditions(mbit), policy("balance"));
            let again = run(&example(), &conditions(mbit), policy("balance"));
            assert_eq!(once.seconds, again.seconds);
            assert_eq!(once.summary.raw_bytes, 1 << 20);
        }
    }

    #[test]
    fn a_slow_receiver_is_what_bounds() {
        let conditions =
            Conditions { receiver: Speed::constant(0.01), decoders: 1, len: 24 << 20, ..conditions(10_000.0) };
        let run = run(&example(), &conditions, policy("fixed:lz4"));
        // 1 ns a byte, a hundred times slower.
        let decode_s = 100e-9 * (24 << 20) as f64;
        assert!((run.seconds / decode_s - 1.0).abs() < 0.02, "{} against {decode_s}", run.seconds);
        assert!(run.summary.decode_cpu_ns > 1_000_000_000);
    }
}
