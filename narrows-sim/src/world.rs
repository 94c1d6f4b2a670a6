//! The engine's real sender in virtual time, with measured costs instead of codecs.
//!
//! ```text
//! pool's bytes -> Sender -> K workers (table) -> Sender -> kernel buffer -> link -> D decoders (table) -> reports
//! ```
//!
//! The clock jumps from event to event. The link is a fluid in order, whose rate changes in steps; the receiver is a
//! model: it decodes whole frames on the decoder that is free first and delivers in order.

use std::collections::VecDeque;

use narrows::block::BufferPool;
use narrows::codec::Method;
use narrows::frame::{Feedback, Preface, Role, codecs_of_this_build};
use narrows::oracle::{Machine, Speed};
use narrows::policy::Policy;
use narrows::sender::{Done, Job, JobKind, LinkSample, Sender, SenderConfig, Summary};

use crate::rng::Rng;
use crate::table::{STORE_NS_PER_BYTE, Table};

/// Work per block whatever the method: queueing, waking, header, system call.
pub const ENCODE_FIXED_NS: f64 = 1500.0;
pub const DECODE_FIXED_NS: f64 = 1000.0;
/// Bytes of a frame's header; simulated frames carry no check.
pub const HEADER_LEN: f64 = 8.0;
/// The part of the fixed work that the worker's CPU clock sees.
const SEEN_FIXED_NS: f64 = 1000.0;
/// Encoding times vary upwards by so much (half-normal).
const NOISE: f64 = 0.05;
/// A report takes so long to come back: the world has no distance.
const REPORT_DELAY_NS: u64 = 5_000;
/// As the receiver of the engine reports: every 1/8 of the time so far, within these.
const REPORT_EVERY_MIN_NS: u64 = 2_000_000;
const REPORT_EVERY_MAX_NS: u64 = 500_000_000;
/// Raw bytes that the receiver holds before it stops reading.
const RECEIVER_HOLDS: usize = 8 << 20;
/// The kernel's unsent bytes are kept to 2 ms of link, and to what two full writes need at least.
const KERNEL_S: f64 = 0.002;
const KERNEL_MIN: f64 = 16_384.0;
/// More events than any cell needs: an engine that spins is a failure, not a hang.
const STEPS_MAX: u64 = 50_000_000;

/// Everything about one run but the policy.
#[derive(Debug, Clone)]
pub struct Plan {
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
    pub receiver: Speed,
    /// Longest block.
    pub block_max: usize,
    /// What the decision for one block costs the worker.
    pub decision_ns: f64,
    /// Of the noise on encoding times.
    pub seed: u64,
    /// Whether decisions are written down.
    pub trace: bool,
}

impl Plan {
    /// What the bound and the schedules know of it.
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

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// When the last raw byte was delivered.
    pub seconds: f64,
    /// Of encoding, all cores.
    pub cpu_s: f64,
    pub summary: Summary,
    pub trace: String,
    /// Encodings that were begun, those of probes and of blocks that were taken over later among them.
    pub jobs: u64,
    /// Raw length and method of every block, as sent.
    pub sent: Vec<(usize, Method)>,
    /// Nanoseconds of encoding by method, in the order in which they were first used.
    pub encode_ns: Vec<(Method, f64)>,
    /// CPU seconds that decoding took at speed 1.
    pub decode_s: f64,
    /// What the policy wants to have kept.
    pub saved: Option<Vec<u8>>,
}

impl Run {
    /// Seconds of all cores for encoding, with what every block costs beside its codec.
    pub fn work_s(&self) -> f64 {
        self.cpu_s + self.jobs as f64 * ENCODE_FIXED_NS * 1e-9
    }
}

/// Sends `plan.len` bytes of the table's pool, repeated, by a policy.
pub fn run(table: &Table, plan: &Plan, policy: Box<dyn Policy>) -> Run {
    let mut world = World::new(table, plan, policy);
    while !world.is_over() {
        world.settle();
        world.advance();
    }
    Run {
        seconds: world.receiver.delivered_s,
        cpu_s: world.cpu_ns * 1e-9,
        summary: world.sender.summary().clone(),
        trace: world.trace,
        jobs: world.job_count,
        sent: world.sent,
        encode_ns: world.encode_ns,
        decode_s: world.decode_ns * 1e-9,
        saved: world.sender.into_policy().save(),
    }
}

struct World<'a> {
    table: &'a Table,
    plan: &'a Plan,
    sender: Sender,
    rng: Rng,
    now_ns: u64,
    pushed: usize,
    closed: bool,
    /// Jobs with their end; those of the I/O thread among them.
    jobs: Vec<(u64, Done)>,
    /// Raw bytes whose frame was handed to the link, and (frames, raw bytes) of each row of the sender's mix by then.
    sent_raw: usize,
    counted: Vec<(u64, u64)>,
    link: Link,
    receiver: Receiver,
    reports: VecDeque<(u64, Vec<u8>)>,
    cpu_ns: f64,
    job_count: u64,
    sent: Vec<(usize, Method)>,
    encode_ns: Vec<(Method, f64)>,
    decode_ns: f64,
    steps: u64,
    trace: String,
}

impl<'a> World<'a> {
    fn new(table: &'a Table, plan: &'a Plan, policy: Box<dyn Policy>) -> Self {
        let config = SenderConfig {
            block_max: plan.block_max,
            cores: plan.cores,
            duplex: true,
            raw_len: Some(plan.len as u64),
            trace: plan.trace,
            ..SenderConfig::default()
        };
        let preface = Preface {
            role: Role::Receiver,
            critical: 0,
            optional: 0,
            check: true,
            block_max: plan.block_max,
            history: config.history,
            codecs: codecs_of_this_build(),
        };
        Self {
            table,
            plan,
            sender: Sender::new(config, policy, BufferPool::default()),
            rng: Rng(plan.seed),
            now_ns: 0,
            pushed: 0,
            closed: false,
            jobs: Vec::new(),
            sent_raw: 0,
            counted: Vec::new(),
            link: Link::new(plan.link.clone()),
            receiver: Receiver::new(plan),
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
        self.receiver.raw_len == self.plan.len
    }

    /// Does everything that can be done at this moment.
    fn settle(&mut self) {
        loop {
            let mut progress = false;
            while let Some(i) = self.jobs.iter().position(|j| j.0 <= self.now_ns) {
                let (_, done) = self.jobs.swap_remove(i);
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
                self.start(job, self.plan.decision_ns);
                progress = true;
            }
            if self.sender.next_wakeup().is_some_and(|t| t <= self.now_ns)
                && let Some(job) = self.sender.on_link_dry(self.now_ns)
            {
                // A rescue was decided on when the block was chosen; what the I/O thread cuts itself is a new decision.
                let charge_ns = if job.kind == JobKind::Encode { self.plan.decision_ns } else { 0.0 };
                self.start(job, charge_ns);
                progress = true;
            }
            if self.plan.trace {
                let lines = self.sender.take_trace();
                self.trace.push_str(&lines);
            }
            if !progress {
                return;
            }
        }
    }

    /// Gives the sender as much of the repeated pool as it takes.
    fn feed(&mut self) {
        while self.pushed < self.plan.len && self.sender.room() > 0 {
            let at = self.pushed % self.table.len();
            let len = self.sender.room().min(self.table.len() - at).min(self.plan.len - self.pushed);
            self.sender.push(self.table.bytes.slice(at..at + len), self.now_ns);
            self.pushed += len;
        }
        if self.pushed == self.plan.len && !self.closed {
            self.sender.close(self.now_ns);
            self.closed = true;
        }
    }

    fn start(&mut self, job: Job, charge_ns: f64) {
        let cost = self.table.cost(job.raw_offset, job.raw.len(), job.method);
        let work_ns = cost.encode_ns * (1.0 + NOISE * self.rng.normal().abs());
        let begin_s = (self.now_ns as f64 + charge_ns + ENCODE_FIXED_NS) * 1e-9;
        let end_s = self.plan.cpu.finish(begin_s, work_ns * 1e-9);
        let wall_ns = (end_s - begin_s) * 1e9 + SEEN_FIXED_NS;
        self.cpu_ns += work_ns;
        self.job_count += 1;
        match self.encode_ns.iter_mut().find(|e| e.0 == job.method) {
            Some(sum) => sum.1 += work_ns,
            None => self.encode_ns.push((job.method, work_ns)),
        }
        // What would not shrink is sent raw (D10).
        let wire_len = (cost.wire_len.round() as usize).clamp(1, job.raw.len());
        let done = job.simulated(wire_len, wall_ns as u64, (work_ns + SEEN_FIXED_NS) as u64);
        self.jobs.push(((end_s * 1e9).ceil() as u64, done));
    }

    /// Moves frames into the kernel while it takes them.
    fn transmit(&mut self) -> bool {
        let mut progress = false;
        loop {
            if self.link.in_hand == 0 {
                let Some(frame) = self.sender.poll_transmit() else { return progress };
                self.link.in_hand = frame.wire_len() as u64;
                self.link.wanted = true;
                if let Some((method, raw_len)) = self.newly_sent() {
                    let wire_end = self.link.accepted + self.link.in_hand;
                    let cost = self.table.cost(self.sent_raw as u64, raw_len, method);
                    let decode_ns = if cost.wire_len < raw_len as f64 || method == Method::STORE {
                        cost.decode_ns
                    } else {
                        raw_len as f64 * STORE_NS_PER_BYTE
                    };
                    self.link.frames.push_back(InFlight { wire_end, wire_len: self.link.in_hand, raw_len, decode_ns });
                    self.sent_raw += raw_len;
                    self.decode_ns += decode_ns;
                    self.sent.push((raw_len, method));
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

    /// The data frame that was handed over last, if it is not known yet: the summary counts frames by method.
    fn newly_sent(&mut self) -> Option<(Method, usize)> {
        let mix = &self.sender.summary().mix;
        self.counted.resize(mix.len(), (0, 0));
        for (row, counted) in mix.iter().zip(&mut self.counted) {
            if row.frames > counted.0 {
                let raw_len = (row.raw_bytes - counted.1) as usize;
                *counted = (row.frames, row.raw_bytes);
                return Some((row.method, raw_len));
            }
        }
        None
    }

    /// Looks at the link, as a driver does before it asks for work.
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
        let mut next_ns = self.jobs.iter().map(|j| j.0).min().unwrap_or(u64::MAX);
        next_ns = next_ns.min(self.reports.front().map_or(u64::MAX, |r| r.0));
        next_ns = next_ns.min(self.sender.next_wakeup().unwrap_or(u64::MAX));
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

/// A data frame between the sender and the receiver.
struct InFlight {
    /// Where it ends on the wire.
    wire_end: u64,
    wire_len: u64,
    raw_len: usize,
    decode_ns: f64,
}

/// The kernel's buffer and the link behind it.
struct Link {
    speed: Speed,
    /// Bytes of the frame in the driver's hand that the kernel has not taken.
    in_hand: u64,
    /// Whether the kernel takes bytes now. Once full, it waits until half of its bytes have left.
    wanted: bool,
    accepted: u64,
    departed: f64,
    busy_ns: f64,
    frames: VecDeque<InFlight>,
}

impl Link {
    fn new(speed: Speed) -> Self {
        Self { speed, in_hand: 0, wanted: true, accepted: 0, departed: 0.0, busy_ns: 0.0, frames: VecDeque::new() }
    }

    fn unsent(&self) -> u64 {
        (self.accepted as f64 - self.departed).max(0.0).ceil() as u64
    }

    fn kernel_max(&self, now_ns: u64) -> f64 {
        (self.speed.at(now_ns as f64 * 1e-9) * KERNEL_S).max(KERNEL_MIN)
    }

    fn accept(&mut self, now_ns: u64) -> u64 {
        let (max, unsent) = (self.kernel_max(now_ns), self.accepted as f64 - self.departed);
        if !self.wanted && unsent > 0.5 * max {
            return 0;
        }
        let take = ((max - unsent).max(0.0) as u64).min(self.in_hand);
        self.wanted = take == self.in_hand;
        self.accepted += take;
        self.in_hand -= take;
        take
    }

    /// When the next frame has arrived or the kernel takes bytes again.
    fn next_ns(&self, now_ns: u64) -> u64 {
        let unsent = self.accepted as f64 - self.departed;
        let frame =
            self.frames.front().filter(|f| f.wire_end <= self.accepted).map(|f| f.wire_end as f64 - self.departed);
        let room = (self.in_hand > 0).then(|| (unsent - 0.5 * self.kernel_max(now_ns)).max(0.0));
        let Some(bytes) = frame.into_iter().chain(room).reduce(f64::min) else { return u64::MAX };
        (self.speed.finish(now_ns as f64 * 1e-9, bytes) * 1e9).ceil() as u64
    }

    /// Lets the link run, and gives the frames that have arrived whole.
    fn flow(&mut self, from_ns: u64, to_ns: u64) -> Vec<InFlight> {
        let unsent = self.accepted as f64 - self.departed;
        if unsent <= 0.0 {
            return Vec::new();
        }
        let (from_s, to_s) = (from_ns as f64 * 1e-9, to_ns as f64 * 1e-9);
        let most = self.speed.work_until(to_s) - self.speed.work_until(from_s);
        if most < unsent {
            self.busy_ns += (to_ns - from_ns) as f64;
            self.departed += most;
        } else {
            let dry_ns = self.speed.finish(from_s, unsent) * 1e9;
            self.busy_ns += (dry_ns - from_ns as f64).clamp(0.0, (to_ns - from_ns) as f64);
            self.departed = self.accepted as f64;
        }
        // Times are whole nanoseconds and sums are rounded: a thousandth of a byte is nothing.
        let arrived = self.frames.iter().take_while(|f| f.wire_end as f64 <= self.departed + 1e-3).count();
        self.frames.drain(..arrived).collect()
    }
}

/// Decodes, delivers in order, reports.
struct Receiver {
    speed: Speed,
    free_s: Vec<f64>,
    /// Frames that arrived and are not delivered: (when, raw, wire, decode ns).
    decoding: VecDeque<(f64, usize, u64, f64)>,
    held_raw: usize,
    delivered_s: f64,
    raw_len: usize,
    feedback: Feedback,
    begun_ns: Option<u64>,
    reported_ns: u64,
    reported_frames: u64,
}

impl Receiver {
    fn new(plan: &Plan) -> Self {
        Self {
            speed: plan.receiver.clone(),
            free_s: vec![0.0; plan.decoders.max(1)],
            decoding: VecDeque::new(),
            held_raw: 0,
            delivered_s: 0.0,
            raw_len: 0,
            feedback: Feedback { cores: plan.decoders as u64, ..Feedback::default() },
            begun_ns: None,
            reported_ns: 0,
            reported_frames: 0,
        }
    }

    /// Whether it takes bytes from the link.
    fn reads(&self) -> bool {
        self.held_raw < RECEIVER_HOLDS
    }

    fn arrive(&mut self, frame: &InFlight, now_ns: u64) {
        let first = (0..self.free_s.len()).min_by(|a, b| self.free_s[*a].total_cmp(&self.free_s[*b])).unwrap_or(0);
        let begin_s = self.free_s[first].max(now_ns as f64 * 1e-9);
        let end_s = self.speed.finish(begin_s, (frame.decode_ns + DECODE_FIXED_NS) * 1e-9);
        self.free_s[first] = end_s;
        let before_s = self.decoding.back().map_or(self.delivered_s, |d| d.0);
        // On a slow machine the CPU clock runs as long as the decoding does.
        self.decoding.push_back((end_s.max(before_s), frame.raw_len, frame.wire_len, (end_s - begin_s) * 1e9));
        self.held_raw += frame.raw_len;
        self.feedback.wire_received = frame.wire_end;
    }

    fn next_ns(&self) -> u64 {
        self.decoding.front().map_or(u64::MAX, |d| (d.0 * 1e9).ceil() as u64)
    }

    /// Delivers what is decoded, and reports if it is time to.
    fn deliver(&mut self, now_ns: u64) -> Option<Feedback> {
        while self.next_ns() <= now_ns {
            let Some((end_s, raw_len, _, decode_ns)) = self.decoding.pop_front() else { break };
            self.delivered_s = end_s;
            self.raw_len += raw_len;
            self.held_raw -= raw_len;
            self.feedback.raw_delivered += raw_len as u64;
            self.feedback.frames_decoded += 1;
            self.feedback.decode_ns += decode_ns as u64;
        }
        if self.feedback.frames_decoded == self.reported_frames {
            return None;
        }
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let every_ns = ((now_ns - begun_ns) / 8).clamp(REPORT_EVERY_MIN_NS, REPORT_EVERY_MAX_NS);
        if self.reported_frames > 0 && now_ns < self.reported_ns + every_ns {
            return None;
        }
        (self.reported_ns, self.reported_frames) = (now_ns, self.feedback.frames_decoded);
        self.feedback.backlog_bytes = self.decoding.iter().map(|d| d.2).sum();
        Some(self.feedback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::example;
    use narrows::monitor::cost::Prior;
    use narrows::policy::PolicySetup;
    use narrows::policy::PolicySpec;

    fn plan(mbit: f64) -> Plan {
        let one = Speed::constant(1.0);
        Plan {
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
        }
    }

    fn policy(spec: &str) -> Box<dyn Policy> {
        let methods = [Method::STORE, Method::lz4_accel(1), Method::zstd(3)];
        let setup = PolicySetup { methods: &methods, ..PolicySetup::new(2, Prior::shipped()) };
        spec.parse::<PolicySpec>().unwrap().build(&setup)
    }

    #[test]
    fn plain_takes_as_long_as_its_bytes() {
        let run = run(&example(), &plan(100.0), policy("fixed:store"));
        let wire_s = (f64::from(1 << 20) + 32.0 + 8.0 * HEADER_LEN) / 12.5e6;
        assert!((run.seconds / wire_s - 1.0).abs() < 0.01, "{} against {wire_s}", run.seconds);
        assert_eq!(run.summary.raw_bytes, 1 << 20);
    }

    #[test]
    fn a_fixed_method_takes_its_cpu_or_its_bytes() {
        let slow = run(&example(), &plan(8.0), policy("fixed:lz4"));
        let wire_s = 0.4 * f64::from(1 << 20) / 1e6;
        assert!((slow.seconds / wire_s - 1.0).abs() < 0.03, "{} against {wire_s}", slow.seconds);
        // 4 ns a byte on two cores.
        let fast = run(&example(), &plan(100_000.0), policy("fixed:zstd:level=3"));
        let cpu_s = 2e-9 * f64::from(1 << 20);
        assert!((1.0..1.15).contains(&(fast.seconds / cpu_s)), "{} against {cpu_s}", fast.seconds);
    }

    #[test]
    fn the_same_run_gives_the_same_result() {
        for mbit in [10.0, 1000.0, 25_000.0] {
            let once = run(&example(), &plan(mbit), policy("balance"));
            let again = run(&example(), &plan(mbit), policy("balance"));
            assert_eq!(once.seconds, again.seconds);
            assert_eq!(once.summary.raw_bytes, 1 << 20);
        }
    }

    #[test]
    fn a_slow_receiver_is_what_bounds() {
        let plan = Plan { receiver: Speed::constant(0.01), decoders: 1, len: 24 << 20, ..plan(10_000.0) };
        let run = run(&example(), &plan, policy("fixed:lz4"));
        // 1 ns a byte, a hundred times slower.
        let decode_s = 100e-9 * (24 << 20) as f64;
        assert!((run.seconds / decode_s - 1.0).abs() < 0.02, "{} against {decode_s}", run.seconds);
        assert!(run.summary.decode_cpu_ns > 1_000_000_000);
    }
}
