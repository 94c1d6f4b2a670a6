//! Two engines, a clock, a link and workers in virtual time: no threads, no sleeping, the same
//! result in every run.
//!
//! Codecs are real (bytes really arrive); their cost is a model: nominal nanoseconds per byte times
//! a slow-down set by the test.
#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod scene;

use std::collections::VecDeque;

use narrows::block::{Block, BufferPool};
use narrows::codec::{Contexts, Method};
use narrows::policy::Policy;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{Done, Job, JobKind, LinkSample, Sender, SenderConfig};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Conditions of the simulated world, as functions of the time in ns.
pub(crate) struct Conditions {
    pub(crate) rate_bytes_per_s: Box<dyn Fn(u64) -> f64>,
    /// Factor on the time of encoding.
    pub(crate) cpu_slowdown: Box<dyn Fn(u64) -> f64>,
    /// Factor on the time of decoding.
    pub(crate) receiver_slowdown: f64,
    /// Bytes that the kernel accepts before it blocks.
    pub(crate) kernel_buffer: u64,
    /// Raw and wire bytes that the receiver holds before the link stops.
    pub(crate) receiver_buffer: u64,
}

impl Conditions {
    pub(crate) fn steady(mbit_per_s: f64) -> Self {
        let rate = mbit_per_s * 125_000.0;
        Self {
            rate_bytes_per_s: Box::new(move |_| rate),
            cpu_slowdown: Box::new(|_| 1.0),
            receiver_slowdown: 1.0,
            kernel_buffer: (rate * 0.002).max(16_384.0) as u64,
            receiver_buffer: 8 << 20,
        }
    }
}

/// A choice for one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) at_ns: u64,
    pub(crate) method: Method,
    pub(crate) raw_len: usize,
    pub(crate) kind: JobKind,
}

// More than 20 fields: both ends, the link between them, and what tests look at.
pub(crate) struct World {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) now_ns: u64,
    pub(crate) received: Vec<u8>,
    /// (time, raw bytes received so far) at every delivery.
    pub(crate) arrivals: Vec<(u64, usize)>,
    pub(crate) chosen: Vec<Chosen>,
    conditions: Conditions,
    contexts: Contexts,
    pool: BufferPool,
    workers: Vec<(u64, Done)>,
    in_kernel: VecDeque<u8>,
    handing: VecDeque<u8>,
    drained_fraction: f64,
    link_busy_ns: u64,
    decode_free_ns: u64,
    decode_cpu_ns: u64,
    held_by_receiver: VecDeque<(u64, Block)>,
    reports_in_flight: VecDeque<(u64, Vec<u8>)>,
    /// Time at which the first byte of raw data left the sender's host.
    pub(crate) first_byte_ns: Option<u64>,
    /// The sender's trace, if enabled.
    pub(crate) trace: String,
    steps: u64,
}

/// More steps than any test needs, so that an endless loop fails instead of hanging.
const STEPS_MAX: u64 = 20_000_000;

impl World {
    pub(crate) fn new(policy: Box<dyn Policy>, config: SenderConfig, conditions: Conditions) -> Self {
        let pool = BufferPool::default();
        let duplex = config.duplex;
        let cores = config.cores;
        Self {
            sender: Sender::new(config, policy, pool.clone()),
            receiver: Receiver::new(
                ReceiverConfig { duplex, cores, images: true, ..ReceiverConfig::default() },
                pool.clone(),
            ),
            now_ns: 0,
            received: Vec::new(),
            arrivals: Vec::new(),
            chosen: Vec::new(),
            conditions,
            contexts: Contexts::default(),
            pool,
            workers: Vec::new(),
            in_kernel: VecDeque::new(),
            handing: VecDeque::new(),
            drained_fraction: 0.0,
            link_busy_ns: 0,
            decode_free_ns: 0,
            decode_cpu_ns: 0,
            held_by_receiver: VecDeque::new(),
            reports_in_flight: VecDeque::new(),
            first_byte_ns: None,
            trace: String::new(),
            steps: 0,
        }
    }

    /// Sends `data` as fast as the sender accepts it, and ends the flow.
    pub(crate) fn send_all(&mut self, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            at += self.sender.write(&data[at..], self.now_ns);
            if at < data.len() && self.sender.room() == 0 {
                self.step(u64::MAX);
            }
        }
        self.finish();
    }

    /// Writes at this moment without letting time pass.
    pub(crate) fn write(&mut self, data: &[u8]) {
        assert_eq!(self.sender.write(data, self.now_ns), data.len());
        self.settle();
    }

    /// Closes the flow and runs until everything has arrived.
    pub(crate) fn finish(&mut self) {
        self.sender.close(self.now_ns);
        while !self.receiver.is_finished() || !self.held_by_receiver.is_empty() {
            self.step(u64::MAX);
        }
        self.receiver.close().unwrap();
    }

    /// Lets time pass until `until_ns`.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        while self.now_ns < until_ns {
            self.step(until_ns);
        }
    }

    /// Does everything possible at this time, then moves the clock to the next event, at most to
    /// `until_ns`.
    fn step(&mut self, until_ns: u64) {
        self.steps += 1;
        assert!(self.steps < STEPS_MAX, "no end in sight at {} ns", self.now_ns);
        self.settle();
        let mut next = until_ns;
        for (done_ns, _) in &self.workers {
            next = next.min(*done_ns);
        }
        if let Some((decoded_ns, _)) = self.held_by_receiver.front() {
            next = next.min(*decoded_ns);
        }
        if let Some((arrives_ns, _)) = self.reports_in_flight.front() {
            next = next.min(*arrives_ns);
        }
        if let Some(wakeup_ns) = self.sender.next_wakeup() {
            next = next.min(wakeup_ns);
        }
        if !self.in_kernel.is_empty() && self.link_flows() {
            let rate = (self.conditions.rate_bytes_per_s)(self.now_ns);
            // At most one packet, so that rate changes take effect within a packet.
            let bytes = self.in_kernel.len().min(1500) as f64 - self.drained_fraction;
            next = next.min(self.now_ns + (bytes / rate * 1e9).ceil().max(1.0) as u64);
        }
        assert!(next < u64::MAX, "nothing will ever happen again at {} ns", self.now_ns);
        self.advance(next.max(self.now_ns + 1).min(until_ns));
    }

    fn settle(&mut self) {
        loop {
            let mut progress = false;
            while let Some(i) = self.workers.iter().position(|(t, _)| *t <= self.now_ns) {
                let (_, done) = self.workers.swap_remove(i);
                self.sender.finish(done, self.now_ns);
                progress = true;
            }
            while let Some(job) = self.sender.poll_job(self.now_ns) {
                self.start(job);
                progress = true;
            }
            progress |= self.write_to_link();
            if self.sender.next_wakeup().is_some_and(|t| t <= self.now_ns) {
                self.look_at_link();
                if let Some(job) = self.sender.on_link_dry(self.now_ns) {
                    self.start(job);
                    progress = true;
                }
            }
            self.trace.push_str(&self.sender.take_trace());
            if !progress {
                return;
            }
        }
    }

    fn start(&mut self, job: Job) {
        self.chosen.push(Chosen { at_ns: self.now_ns, method: job.method, raw_len: job.raw.len(), kind: job.kind });
        let slowdown = (self.conditions.cpu_slowdown)(self.now_ns);
        let cpu_ns = job.method.nominal_encode_ns(job.raw.len());
        let wall_ns = (cpu_ns as f64 * slowdown) as u64;
        let job_is_short = wall_ns < 2_000;
        let mut done = job.run(&mut self.contexts, &self.pool);
        (done.wall_ns, done.cpu_ns) = (wall_ns, cpu_ns);
        // As in the drivers, short jobs run in place; their time is neglected.
        let until_ns = if job_is_short { self.now_ns } else { self.now_ns + wall_ns };
        self.workers.push((until_ns, done));
    }

    pub(crate) fn look_at_link(&mut self) {
        let unsent = self.in_kernel.len() as u64;
        self.sender.on_link(LinkSample {
            begin_ns: self.now_ns,
            end_ns: self.now_ns,
            unsent_before: unsent,
            unsent_after: unsent,
            accepted: 0,
            busy_ns: Some(self.link_busy_ns),
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        });
    }

    fn write_to_link(&mut self) -> bool {
        if self.handing.is_empty() {
            let Some(frame) = self.sender.poll_transmit() else { return false };
            self.handing.extend(frame.header.iter().chain(frame.body.iter()));
        }
        let room = self.conditions.kernel_buffer.saturating_sub(self.in_kernel.len() as u64) as usize;
        let take = room.min(self.handing.len());
        if take == 0 {
            return false;
        }
        let unsent_before = self.in_kernel.len() as u64;
        self.in_kernel.extend(self.handing.drain(..take));
        self.sender.on_link(LinkSample {
            begin_ns: self.now_ns,
            end_ns: self.now_ns,
            unsent_before,
            unsent_after: self.in_kernel.len() as u64,
            accepted: take as u64,
            busy_ns: Some(self.link_busy_ns),
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        });
        true
    }

    fn link_flows(&self) -> bool {
        let held: usize = self.held_by_receiver.iter().map(|(_, b)| b.len()).sum();
        (held as u64) < self.conditions.receiver_buffer
    }

    fn advance(&mut self, to_ns: u64) {
        let rate = (self.conditions.rate_bytes_per_s)(self.now_ns);
        if !self.in_kernel.is_empty() && self.link_flows() {
            self.link_busy_ns += to_ns - self.now_ns;
            let bytes = self.drained_fraction + rate * (to_ns - self.now_ns) as f64 / 1e9;
            let whole = (bytes as usize).min(self.in_kernel.len());
            self.drained_fraction = if whole == self.in_kernel.len() { 0.0 } else { bytes - whole as f64 };
            let arrived: Vec<u8> = self.in_kernel.drain(..whole).collect();
            self.now_ns = to_ns;
            self.arrive(arrived);
        }
        self.now_ns = to_ns;
        while self.held_by_receiver.front().is_some_and(|(t, _)| *t <= self.now_ns) {
            let (_, raw) = self.held_by_receiver.pop_front().unwrap();
            self.received.extend_from_slice(&raw);
            self.arrivals.push((self.now_ns, self.received.len()));
        }
        while let Some(report) = self.receiver.poll_feedback(self.now_ns, 0) {
            self.reports_in_flight.push_back((self.now_ns + 5_000, report));
        }
        while self.reports_in_flight.front().is_some_and(|(t, _)| *t <= self.now_ns) {
            let (_, report) = self.reports_in_flight.pop_front().unwrap();
            self.sender.receive(&report, self.now_ns).unwrap();
        }
    }

    fn arrive(&mut self, bytes: Vec<u8>) {
        if self.first_byte_ns.is_none() && !bytes.is_empty() {
            self.first_byte_ns = Some(self.now_ns);
        }
        self.receiver.receive(Block::from_vec(bytes)).unwrap();
        while let Some(job) = self.receiver.poll_job() {
            let cpu_ns = (job.estimate_ns as f64 * self.conditions.receiver_slowdown) as u64;
            let mut done = job.run(&mut self.contexts, &self.pool);
            done.cpu_ns = cpu_ns;
            self.receiver.finish(done).unwrap();
            self.decode_free_ns = self.decode_free_ns.max(self.now_ns) + cpu_ns;
        }
        while let Some(raw) = self.receiver.read() {
            self.held_by_receiver.push_back((self.decode_free_ns, raw));
        }
    }

    /// Raw bytes sent by each method, rescues included.
    pub(crate) fn raw_by_method(&self) -> Vec<(Method, u64)> {
        self.sender.summary().mix.iter().map(|r| (r.method, r.raw_bytes)).collect()
    }
}

/// Deterministic bytes that look like text: words from a small list, drawn unevenly.
pub(crate) fn text(len: usize, seed: u64) -> Vec<u8> {
    const WORDS: &[&str] = &[
        "the",
        "link",
        "carries",
        "bytes",
        "of",
        "a",
        "flow",
        "and",
        "every",
        "block",
        "is",
        "chosen",
        "for",
        "narrow",
        "places",
        "where",
        "time",
        "counts",
        "more",
        "than",
        "level",
        "error",
        "warning",
        "200",
        "GET",
        "/index.html",
        "client=10.0.0.7",
        "user=alice",
        "elapsed_ms=",
        "42",
        "17",
        "1024",
        "retry",
        "timeout",
        "ok",
    ];
    let mut rng = Rng(seed | 1);
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        let i = (rng.next() % WORDS.len() as u64 * (rng.next() % 8 + 1) / 8) as usize;
        out.extend_from_slice(WORDS[i].as_bytes());
        out.push(if rng.next().is_multiple_of(11) { b'\n' } else { b' ' });
    }
    out.truncate(len);
    out
}

pub(crate) fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// xorshift64*: good enough to draw test data.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}
