//! The policies of older systems against traces worked by hand from their texts.

mod world;

use narrows::codec::{CodecId, Method};
use narrows::monitor::cost::Prior;
use narrows::monitor::{Pending, PendingState};
use narrows::policy::{Outcome, Policy, PolicySetup, PolicySpec};
use world::scene::Scene;
use world::{MS, text};

fn build(spec: &str, cores: usize) -> Box<dyn Policy> {
    spec.parse::<PolicySpec>().unwrap().build(&PolicySetup::new(cores, Prior::shipped()))
}

/// The beginning of a flow with 2 MiB at hand.
fn begin() -> Scene {
    let mut scene = Scene::new(text(2 << 20, 1), 100.0);
    (scene.now_ns, scene.seq, scene.raw_offset) = (0, 0, 0);
    scene.queue.clear();
    scene
}

const BLOCK: usize = 512 << 10;

fn encoded(seq: u64, method: Method, raw_len: usize, wire_len: usize, wall_ns: u64) -> Outcome {
    Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns: wall_ns, taken_over: false }
}

/// Blocks of 512 KiB that shrink to half (262,144 bytes), one core, a look each 200 ms; in all but the seventh span one is
/// done. `flushed` and `dry` are what happened since the look before.
///
/// | look | begun, done before | flushed | dry | input waits | what the rule says | level |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | 1 | 0, 0 | 0 | no | yes | nothing yet | 3 |
/// | 2 | 1, 1 | 100000 | no | yes | the link counts from two blocks begun on, the input from 3 = cores + 2 done on | 3 |
/// | 3 | 2, 2 | 262144 | no | yes | 524288 made > 9/8 * 362144 flushed, never dry: slower | 4 |
/// | 4 | 3, 3 | 262144 | no | yes | 262144 < 9/8 * 262144; since the beginning 33/32 * 624288 < 786432: not all was flushed | 4 |
/// | 5 | 4, 4 | 262144 | yes | yes | since look 4: input waited, 33/32 * 262144 > 262144, 33/32 * 524288 > 524288: faster | 3 |
/// | 6 | 5, 5 | 262144 | yes | no | input never waited: slower | 4 |
/// | 7 | 6, 5 | 262144 | no | yes | nothing consumed, no worker active: slower, once another block is done | 4 |
/// | 8 | 7, 6 | 262144 | yes | yes | it is done | 5 |
#[test]
fn stall_goes_by_what_waited_as_worked_by_hand() {
    let mut policy = build("stall", 1);
    let mut scene = begin();
    scene.cpu.busy = 0;
    let (more, one_block) = (text(2 << 20, 1), text(BLOCK, 1));
    // Done, flushed, dry, input waits; the level after the look.
    let looks = [
        (false, 0, 0, true, 3),
        (true, 100_000, 0, true, 3),
        (true, 262_144, 0, true, 4),
        (true, 262_144, 0, true, 4),
        (true, 262_144, 5 * MS, true, 3),
        (true, 262_144, 5 * MS, false, 4),
        (false, 262_144, 0, true, 4),
        (true, 262_144, 5 * MS, true, 5),
    ];
    for (i, (done, flushed, dry_ns, waits, level)) in looks.into_iter().enumerate() {
        if done {
            policy.learn(&encoded(scene.seq - 1, Method::zstd(3), BLOCK, BLOCK / 2, MS));
        }
        scene.now_ns += 200 * MS;
        scene.link.left_host_bytes += flushed;
        scene.link.dry_ns += dry_ns;
        scene.data = if waits { more.clone() } else { one_block.clone() };
        let choice = scene.ask(&mut *policy, 1);
        scene.raw_offset = scene.seq * BLOCK as u64;
        assert_eq!((choice.method, choice.block_len), (Method::zstd(level), BLOCK), "look {}", i + 1);
    }
    // Less than a sixth of a second later nothing is looked at.
    policy.learn(&encoded(scene.seq - 1, Method::zstd(5), BLOCK, BLOCK / 2, MS));
    scene.now_ns += 160 * MS;
    assert_eq!(scene.ask(&mut *policy, 1).method, Method::zstd(5));
}

#[test]
fn stall_skips_level_0_and_stays_in_its_range() {
    for (spec, levels) in [("stall:min=-2,max=2", vec![2]), ("stall:min=4,max=5", vec![4, 5])] {
        let mut policy = build(spec, 1);
        let mut scene = begin();
        let mut seen = Vec::new();
        for _ in 0..40 {
            scene.now_ns += 200 * MS;
            // The link takes nothing: slower and slower.
            let choice = scene.ask(&mut *policy, 1);
            seen.push(choice.method.level);
            policy.learn(&encoded(scene.seq - 1, choice.method, 512 << 10, 256 << 10, MS));
        }
        seen.dedup();
        assert_eq!(seen, levels, "{spec}");
    }
    // The link waits all the time and takes all: faster and faster, past 0.
    let mut policy = build("stall:min=-2,max=2", 1);
    let mut scene = begin();
    let mut seen = Vec::new();
    for _ in 0..40 {
        scene.now_ns += 200 * MS;
        scene.link.dry_ns += 100 * MS;
        let choice = scene.ask(&mut *policy, 1);
        seen.push(choice.method.level);
        scene.link.left_host_bytes += 256 << 10;
        scene.raw_offset = scene.seq * BLOCK as u64;
        policy.learn(&encoded(scene.seq - 1, choice.method, 512 << 10, 256 << 10, MS));
    }
    seen.dedup();
    assert_eq!(seen, [2, 1, -1, -2]);
}

/// A queue of encoded blocks, each so many bytes on the wire, all with the host.
fn ready(wire_lens: &[usize]) -> Vec<Pending> {
    let block = |(seq, len): (usize, &usize)| Pending {
        seq: seq as u64,
        raw_len: 8192,
        method: Method::STORE,
        chosen_ns: 0,
        state: PendingState::Ready { unsent_len: *len },
    };
    wire_lens.iter().enumerate().map(block).collect()
}

/// Figure 3 by hand: packets in the FIFO at the end of a step, D against the step before, the line that applies, the level.
#[test]
fn adoc_follows_its_fifo_as_worked_by_hand() {
    let mut policy = build("adoc", 4);
    let mut scene = begin();
    let steps = [
        (0, 0),  // the first step: no compression
        (1, 0),  // < 10, D = 1: as it is
        (9, 0),  // < 10, D = 8
        (10, 1), // 10..20, D = 1: + 1
        (14, 2), // D = 4: + 1
        (13, 1), // D = -1: - 1
        (13, 1), // D = 0
        (20, 3), // 20..30, D = 7: + 2
        (25, 5), // D = 5: + 2
        (24, 4), // D = -1: - 1
        (24, 4), // D = 0
        (30, 6), // from 30 on, D = 6: + 2
        (29, 5), // 20..30, D = -1: - 1
        (35, 7), // D = 6: + 2
        (34, 7), // from 30 on, D = -1: as it is
        (34, 7), // D = 0
        (50, 9), // + 2
        (51, 9), // 11 is above 9
        (19, 8), // 10..20, D = -32: - 1
        (9, 4),  // < 10, D = -10: half
        (9, 2),  // < 10, D = 0: half
        (11, 3), // D = 2: + 1
        (5, 1),  // < 10: half of 3
        (4, 0),  // half of 1
        (12, 1), // D = 8
        (11, 0), // D = -1
        (10, 0), // D = -1: -1 is below 0
    ];
    for (i, (packets, level)) in steps.into_iter().enumerate() {
        // A packet is 8,192 bytes and our header.
        scene.queue = ready(&vec![8192 + 16; packets]);
        let choice = scene.ask(&mut *policy, 1);
        let expected = match level {
            0 => (Method::STORE, 8192, Some(1)),
            level => (Method::new(CodecId::ZLIB, level), 204_800, Some(1)),
        };
        assert_eq!((choice.method, choice.block_len, choice.threads_max), expected, "step {i}");
    }
}

#[test]
fn adoc_counts_packets_that_the_kernel_has_not_taken() {
    let fifo = |wire_lens: &[usize], in_kernel| {
        let mut policy = build("adoc", 1);
        let mut scene = begin();
        scene.queue = ready(wire_lens);
        scene.queue.push(Pending { state: PendingState::Encoding, ..scene.queue[0] });
        scene.link.unsent_bytes = in_kernel;
        scene.ask(&mut *policy, 1);
        policy.explain().iter().find(|(key, _)| *key == "fifo_packets").expect("it is explained").1
    };
    assert_eq!(fifo(&[8208, 8208], 0), 2.0);
    assert_eq!(fifo(&[8208, 8208], 100), 2.0);
    assert_eq!(fifo(&[8208, 8208], 8208), 1.0);
    assert_eq!(fifo(&[8208, 8208], u64::MAX), 0.0);
    // A chunk of 204,800 bytes that became 40,000: four whole packets and a fifth.
    assert_eq!(fifo(&[40_016, 10], 0), 6.0);
    assert_eq!(fifo(&[40_016, 10], 10_000), 5.0);
    assert_eq!(fifo(&[0], 0), 0.0);
}
