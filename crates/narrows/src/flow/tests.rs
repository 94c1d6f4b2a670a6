//! The same scenarios for every way of driving: all jobs here, one at a time, or with workers whose
//! results come late and in the wrong order.

use narrows_test::{noise, text};

use super::*;
use crate::ErrorKind;
use crate::block::Block;
use crate::monitor::View;
use crate::policy::{Choice, Policy, Rescue};
use crate::receiver::ReceiverConfig;
use crate::sender::{LinkSample, SenderConfig};

/// Workers whose results come back last first, when they are asked for.
#[derive(Default)]
struct Late<J> {
    contexts: Contexts,
    buffers: BufferPool,
    waiting: Vec<J>,
    /// Whether they take jobs.
    takes: bool,
    /// Of each job that ran here, whether it was brief.
    here: Vec<bool>,
}

impl<J> Late<J>
where
    J: Work,
    for<'a> Here<'a>: Executor<J>,
{
    fn new(takes: bool) -> Self {
        let (contexts, buffers) = (Contexts::default(), BufferPool::default());
        Self { contexts, buffers, waiting: Vec::new(), takes, here: Vec::new() }
    }

    /// The result of the job that came last.
    fn done(&mut self) -> Option<J::Done> {
        let job = self.waiting.pop()?;
        Some(Here { contexts: &mut self.contexts, buffers: &self.buffers }.run(job, false))
    }
}

impl<J> Executor<J> for Late<J>
where
    J: Work,
    for<'a> Here<'a>: Executor<J>,
{
    fn run(&mut self, job: J, brief: bool) -> J::Done {
        self.here.push(brief);
        Here { contexts: &mut self.contexts, buffers: &self.buffers }.run(job, brief)
    }

    fn submit(&mut self, job: J) -> std::result::Result<(), J> {
        if !self.takes {
            return Err(job);
        }
        self.waiting.push(job);
        Ok(())
    }
}

/// How a driver drives.
#[derive(Debug, Clone, Copy)]
struct Manner {
    encode: Budget,
    decode: Budget,
    workers: bool,
}

const MANNERS: [Manner; 6] = [
    Manner { encode: Budget::ALL, decode: Budget::ALL, workers: false },
    Manner { encode: Budget::ONE, decode: Budget::ONE, workers: false },
    Manner { encode: Budget::BULK, decode: Budget::BULK, workers: false },
    Manner { encode: Budget::BULK, decode: Budget::BULK, workers: true },
    Manner { encode: Budget::LONE, decode: Budget::FEW, workers: true },
    Manner { encode: Budget::SHORT, decode: Budget::SHORT, workers: true },
];

fn encoding(policy: &str, cores: usize) -> Encoding {
    let spec: PolicySpec = policy.parse().unwrap();
    let config = SenderConfig { cores, block_max: 64 << 10, history: 64 << 10, ..SenderConfig::default() };
    let policy = spec.build(&PolicySetup::new(cores, Prior::shipped()));
    Encoding::new(Sender::new(config, policy, BufferPool::default()))
}

fn decoding(cores: usize) -> Decoding {
    let config = ReceiverConfig { cores, memory_max: 1 << 20, ..ReceiverConfig::default() };
    Decoding::new(Receiver::new(config, BufferPool::default()))
}

/// A link that takes everything at once.
fn transmit(encoding: &mut Encoding, wire: &mut Vec<u8>, now_ns: u64) -> bool {
    let before = wire.len();
    while let Some(frame) = encoding.poll_transmit() {
        wire.extend_from_slice(&frame.header);
        wire.extend_from_slice(&frame.body);
    }
    let accepted = (wire.len() - before) as u64;
    encoding.on_link(LinkSample { begin_ns: now_ns, end_ns: now_ns, accepted, ..LinkSample::default() });
    accepted > 0
}

fn encoded(raw: &[u8], policy: &str, cores: usize, manner: Manner) -> Vec<u8> {
    let (mut encoding, mut on, mut wire) = (encoding(policy, cores), Late::new(manner.workers), Vec::new());
    let (mut rest, mut now_ns) = (raw, 0);
    loop {
        now_ns += 1_000_000;
        let taken = encoding.write(&rest[..rest.len().min(40_000)], now_ns);
        rest = &rest[taken..];
        if rest.is_empty() {
            encoding.close(now_ns);
        }
        encoding.work(|| now_ns, manner.encode, &mut on);
        assert!(encoding.jobs() <= cores && encoding.jobs() == on.waiting.len());
        if let Some(done) = on.done() {
            encoding.finish(done, now_ns);
        }
        transmit(&mut encoding, &mut wire, now_ns);
        if encoding.is_drained() {
            assert_eq!((encoding.jobs(), encoding.pending(), encoding.gathered()), (0, 0, 0));
            return wire;
        }
    }
}

/// What comes out, and how it ends.
fn decoded(wire: &[u8], cores: usize, manner: Manner) -> (Vec<u8>, Result<()>) {
    let (mut decoding, mut on, mut raw) = (decoding(cores), Late::new(manner.workers), Vec::new());
    let mut pieces = wire.chunks(10_000);
    let memory = Memory::new(1 << 20);
    let mut share = memory.share();
    loop {
        decoding.count(&mut share, 0, 1 << 20);
        assert_eq!(memory.held(), decoding.held());
        let piece = if decoding.has_unparsed() { None } else { pieces.next() };
        let step = match piece {
            Some(piece) => decoding.receive(Block::from_vec(piece.to_vec())),
            None => decoding.resume(),
        };
        let mut any = false;
        let step = step.and_then(|()| decoding.work(manner.decode, &mut on)).map(|worked| any = worked);
        assert!(decoding.jobs() <= cores && decoding.jobs() == on.waiting.len());
        let step = step.and_then(|()| on.done().map_or(Ok(()), |done| decoding.finish(done)));
        let before = raw.len();
        while let Some(block) = decoding.read() {
            raw.extend_from_slice(&block);
        }
        if let Err(e) = step {
            return (raw, Err(e));
        }
        let moved = any || raw.len() > before || decoding.jobs() > 0 || decoding.has_unparsed();
        if !moved && pieces.len() == 0 {
            return (raw, decoding.close());
        }
    }
}

#[test]
fn every_driver_carries_the_same_bytes_in_order() {
    let raws = [Vec::new(), b"a".to_vec(), text(3000), text(300_000), noise(100_000), vec![0; 1 << 20]];
    let mut turns = MANNERS.iter().cycle();
    for policy in ["balance", "fixed:store", "fixed:lz4:link", "fixed:zstd:level=3", "fixed:zlib"] {
        for (raw, cores) in raws.iter().flat_map(|raw| [(raw, 1), (raw, 3)]) {
            // Each with another one.
            turns.next();
            for manner in MANNERS {
                let (wire, other) = (encoded(raw, policy, cores, manner), *turns.next().unwrap());
                let (got, end) = decoded(&wire, cores, other);
                assert!(end.is_ok() && got == *raw, "{policy}, {} bytes, {manner:?}, {other:?}", raw.len());
            }
        }
    }
}

#[test]
fn what_a_fixed_policy_sends_does_not_depend_on_where_it_is_encoded() {
    let raw = text(300_000);
    let wires = MANNERS.map(|manner| encoded(&raw, "fixed:zstd:level=1", 1, manner));
    assert!(wires.iter().all(|wire| *wire == wires[0]));
}

#[test]
fn every_driver_refuses_the_same_damage() {
    let raw = text(400_000);
    let wire = encoded(&raw, "fixed:zstd:level=1", 2, MANNERS[0]);
    for at in (0..wire.len()).step_by(wire.len() / 40) {
        let mut bad = wire.clone();
        bad[at] ^= 0x10;
        let ends = MANNERS.map(|manner| {
            let (got, end) = decoded(&bad, 2, manner);
            assert!(raw.starts_with(&got), "damaged bytes at {at}");
            end.is_err()
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{at}: {ends:?}");
        let cut = MANNERS.map(|manner| decoded(&wire[..at], 2, manner).1.map_err(|e| e.kind));
        assert!(cut.iter().all(|end| *end == Err(ErrorKind::Truncated)), "{at}: {cut:?}");
    }
}

/// One piece of `len` bytes, after a longer one whose job is out, if `beside`.
fn ran_here(policy: &str, len: usize, budget: Budget, beside: bool) -> Vec<bool> {
    let (mut encoding, mut on) = (encoding(policy, 4), Late::new(true));
    if beside {
        encoding.push(Block::from_vec(text(64 << 10)), 0);
        encoding.work(|| 0, Budget::BULK, &mut on);
        assert_eq!(encoding.jobs(), 1);
    }
    encoding.push(Block::from_vec(text(len)), 0);
    encoding.flush();
    encoding.work(|| 0, budget, &mut on);
    on.here
}

#[test]
fn short_jobs_run_here_within_the_budget_and_stored_ones_always() {
    let (brief, timed, none) = (vec![true], vec![false], Vec::new());
    let slow = "fixed:xz:level=6";
    for beside in [false, true] {
        assert_eq!(ran_here("fixed:lz4", 1000, Budget::BULK, beside), brief, "a message");
        assert_eq!(ran_here(slow, 1000, Budget::BULK, beside), none, "a slow one");
        assert_eq!(ran_here("fixed:lz4", 64 << 10, Budget::LONE, beside), none, "a long block");
        assert_eq!(ran_here("fixed:lz4", 9000, Budget::SHORT, beside), timed);
        assert_eq!(ran_here(slow, 64 << 10, Budget::ALL, beside), timed);
    }
    assert_eq!(ran_here("fixed:lz4", 9000, Budget::LONE, false), timed);
    assert_eq!(ran_here("fixed:lz4", 9000, Budget::LONE, true), none, "a worker has the block before");
    assert_eq!(ran_here("fixed:store", 64 << 10, Budget::BULK, false), timed);
    assert_eq!(ran_here("fixed:store", 1000, Budget::BULK, false), brief);
    assert_eq!(ran_here("fixed:lz4", 9000, Budget { all_ns: 1, ..Budget::SHORT }, false), none);
}

/// Chooses a slow method, and takes over what is late.
struct Hasty;

impl Policy for Hasty {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        Choice::new(Method::zstd(19), view.limits.block_max)
    }

    fn rescue(&mut self, _: &View<'_>) -> Rescue {
        Rescue::TakeOver(Method::lz4_accel(1))
    }
}

#[test]
fn a_late_block_is_taken_over() {
    let (mut encoding, mut on, mut wire) = (encoding("fixed:lz4", 1), Late::new(true), Vec::new());
    encoding.set_policy(Box::new(Hasty));
    let raw = text(64 << 10);
    encoding.push(Block::from_vec(raw.clone()), 0);
    encoding.close(0);
    encoding.work(|| 0, Budget::BULK, &mut on);
    assert_eq!(encoding.jobs(), 1);
    let mut now_ns = 0;
    for _ in 0..100 {
        transmit(&mut encoding, &mut wire, now_ns);
        if !on.here.is_empty() {
            break;
        }
        now_ns = encoding.next_wakeup().unwrap_or(now_ns).max(now_ns + 1000);
        encoding.rescue(|| now_ns, Budget::ALL, &mut on);
        encoding.work(|| now_ns, Budget::ALL, &mut on);
    }
    assert!(encoding.is_drained() && encoding.summary().rescued_blocks == 1 && encoding.jobs() == 1);
    // The worker comes too late.
    encoding.finish(on.done().unwrap(), now_ns);
    assert_eq!(encoding.jobs(), 0);
    assert!(decoded(&wire, 1, MANNERS[0]).0 == raw);
}

#[test]
fn what_does_not_shrink_is_stored_from_then_on() {
    let (mut encoding, mut on, mut wire) = (encoding("fixed:zstd:level=1", 1), Late::new(false), Vec::new());
    let raw = text(100_000);
    encoding.push(Block::from_vec(raw.clone()), 0);
    encoding.work(|| 0, Budget::ALL, &mut on);
    transmit(&mut encoding, &mut wire, 0);
    let before = wire.len();
    assert!(before < raw.len() / 2);
    encoding.give_up();
    encoding.push(Block::from_vec(raw.clone()), 1);
    encoding.close(1);
    encoding.work(|| 1, Budget::ALL, &mut on);
    transmit(&mut encoding, &mut wire, 1);
    assert!(wire.len() > before + raw.len());
    assert!(decoded(&wire, 1, MANNERS[0]).0 == [&raw[..], &raw].concat());
}

#[test]
fn all_share_one_memory_and_nobody_is_left_without_any() {
    const TOTAL: usize = 512 << 20;
    let memory = Memory::new(TOTAL);
    let (mut one, mut other) = (memory.share(), memory.share());
    assert_eq!(memory.max_for(0), TOTAL);
    one.count(TOTAL);
    assert_eq!(other.memory_max(), MEMORY_MIN);
    one.count(TOTAL / 2);
    other.count(1);
    assert_eq!(other.memory_max(), TOTAL / 2);
    memory.set_total(TOTAL / 4);
    assert_eq!((other.memory_max(), memory.left()), (MEMORY_MIN, 0), "a lower limit counts at once");
    drop((one, other));
    assert_eq!(memory.held(), 0);
}
