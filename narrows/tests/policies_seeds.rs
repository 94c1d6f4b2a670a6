//! The policies of older systems against traces worked by hand from their texts.

mod world;

use narrows::codec::Method;
use narrows::monitor::cost::Prior;
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
