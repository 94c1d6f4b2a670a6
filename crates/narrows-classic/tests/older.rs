//! Policies of older systems, compared with traces worked out by hand from their publications.

#[path = "../../narrows/tests/world/mod.rs"]
mod world;

use narrows::codec::{CodecId, Method};
use narrows::monitor::cost::Prior;
use narrows::monitor::{Pending, PendingState};
use narrows::policy::{Outcome, Policy, PolicySetup};
use narrows::sender::SenderConfig;
use narrows_classic::policies;
use world::scene::Scene;
use world::{MS, text};

fn build(spec: &str, cores: usize) -> Box<dyn Policy> {
    policies().parse(spec).unwrap().build(&PolicySetup::new(cores, Prior::shipped()))
}

/// The beginning of a flow with 2 MiB of pending data.
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

/// Blocks of 512 KiB that shrink to half (262,144 bytes), one core, a look every 200 ms. One block
/// is done between looks, except before the seventh. `flushed` and `dry` refer to the time since
/// the previous look.
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
    // (block done, bytes flushed, dry, input waits, level after the look).
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
    // There is no look less than a sixth of a second after the last one.
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
            // The link accepts nothing, so the levels become slower and slower.
            let choice = scene.ask(&mut *policy, 1);
            seen.push(choice.method.level);
            policy.learn(&encoded(scene.seq - 1, choice.method, 512 << 10, 256 << 10, MS));
        }
        seen.dedup();
        assert_eq!(seen, levels, "{spec}");
    }
    // The link is always dry and accepts everything, so the levels become faster and faster, past
    // 0.
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

/// A queue of encoded blocks with these wire lengths, all still on the host.
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

/// Figure 3 worked out by hand: packets in the FIFO at the end of a step, the resulting level, and
/// as comments the rule that applies and the difference D to the previous step.
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
        // A packet has 8,192 bytes plus our header.
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

/// Text with one place in the policy's table: at most 33 byte values are frequent.
fn plain_text() -> Vec<u8> {
    b"the same few letters and a line\n".iter().copied().cycle().take(1 << 20).collect()
}

#[test]
fn datacomp_tries_every_method_twice_and_then_takes_the_best() {
    let mut policy = build("datacomp", 1);
    let mut scene = Scene::new(plain_text(), 6.0);
    let mut chosen = Vec::new();
    let mut step = |chosen: &mut Vec<(Method, usize)>| {
        let choice = scene.ask(&mut *policy, 1);
        let (seq, raw_len) = (scene.seq - 1, choice.block_len);
        scene.raw_offset += raw_len as u64;
        // zlib 6 with 128 KiB shrinks to a twentieth, all others to a fifth; at 750,000 bytes/s the
        // link is the bottleneck for all.
        let best = choice.method == Method::new(CodecId::ZLIB, 6) && raw_len == 128 << 10;
        let wire_len = if choice.method == Method::STORE { raw_len } else { raw_len / if best { 20 } else { 5 } };
        policy.learn(&encoded(seq, choice.method, raw_len, wire_len, 1000));
        chosen.push((choice.method, raw_len));
    };
    // Null plus three families (four where LZO is registered) of three strengths, in five sizes.
    let families = if CodecId(8).codec().is_some() { 4 } else { 3 };
    for _ in 0..2 * 5 * (1 + 3 * families) {
        step(&mut chosen);
    }
    for variant in &chosen {
        assert_eq!(chosen.iter().filter(|c| *c == variant).count(), 2, "{variant:?}");
    }
    assert_eq!(chosen[..2], [(Method::STORE, 32 << 10); 2]);
    let mut later = Vec::new();
    for _ in 0..100 {
        step(&mut later);
    }
    // A boost of 10 % does not bring back methods that are four times worse.
    assert!(later.iter().all(|c| *c == (Method::new(CodecId::ZLIB, 6), 128 << 10)), "{later:?}");
}

#[test]
fn datacomp_keeps_what_it_learned_and_only_reads_it_if_told_so() {
    let spec = policies().parse("datacomp:table=FILE").unwrap();
    let mut trained = spec.build(&PolicySetup::new(1, Prior::shipped()));
    let mut scene = Scene::new(plain_text(), 6.0);
    for _ in 0..200 {
        let choice = scene.ask(&mut *trained, 1);
        let (raw_len, is_best) = (choice.block_len, choice.method == Method::new(CodecId::BZIP2, 5));
        scene.raw_offset += raw_len as u64;
        trained.learn(&encoded(scene.seq - 1, choice.method, raw_len, if is_best { 500 } else { raw_len / 2 }, 1000));
    }
    let read = policies().parse("datacomp:table=FILE,mode=read").unwrap();
    let loaded = read.load(&trained.save().unwrap()).unwrap();
    let mut policy = loaded.build(&PolicySetup::new(1, Prior::shipped()));
    let mut first = None;
    for _ in 0..60 {
        let choice = scene.ask(&mut *policy, 1);
        assert_eq!(choice.method, Method::new(CodecId::BZIP2, 5));
        assert_eq!(*first.get_or_insert(choice), choice);
        // The outcome must not be learned.
        policy.learn(&encoded(scene.seq - 1, choice.method, choice.block_len, choice.block_len, 1_000_000_000));
    }
    assert!(policy.save().is_none() && !read.keeps() && spec.keeps());
    // Without a table nothing is known.
    let mut blank = read.build(&PolicySetup::new(1, Prior::shipped()));
    assert_eq!(scene.ask(&mut *blank, 1).method, Method::STORE);
}

#[test]
fn datacomp_stores_256_kib_at_once_of_what_does_not_look_compressible_and_less_than_1_kib_always() {
    let mut policy = build("datacomp", 1);
    let noise = world::random(1 << 20, 9);
    let mut scene = Scene::new(noise, 6.0);
    let first = scene.ask(&mut *policy, 1);
    assert_eq!((first.method, first.block_len), (Method::STORE, 256 << 10));
    // The next 256 KiB are not examined, whatever they are.
    let begun = scene.raw_offset - 1000;
    scene.raw_offset = begun + (100 << 10);
    scene.data = plain_text();
    let rest = scene.ask(&mut *policy, 1);
    assert_eq!((rest.method, rest.block_len), (Method::STORE, 156 << 10));
    scene.raw_offset = begun + (256 << 10);
    let next = scene.ask(&mut *policy, 1);
    assert_eq!((next.method, next.block_len), (Method::STORE, 32 << 10), "the first try of the first method");
    scene.raw_offset = begun + (600 << 10);
    scene.data.truncate(1023);
    let short = scene.ask(&mut *policy, 1);
    assert_eq!((short.method, short.block_len), (Method::STORE, 1023));
}

/// Published: between 10 and 30 most of the time, mean 18.44. The link is a WAN, the CPU one of
/// that time.
#[test]
fn adoc_holds_its_fifo_between_10_and_30_where_the_cpu_and_the_link_are_of_its_time() {
    let slow = |_: u64| 20.0;
    let conditions = world::Conditions { cpu_slowdown: Box::new(slow), ..world::Conditions::steady(6.0) };
    let config = SenderConfig { duplex: true, block_max: 204_800, trace: true, ..SenderConfig::default() };
    let mut w = world::World::new(build("adoc", 1), config, conditions);
    w.send_all(&text(12 << 20, 1));
    let mut steps = Vec::new();
    for line in w.trace.lines().filter(|l| l.contains("\"event\":\"choose\"")) {
        let number = |key: &str| -> f64 {
            let rest = line.split(key).nth(1).unwrap();
            rest.split([',', '}']).next().unwrap().parse().unwrap()
        };
        steps.push((number("\"now_ns\":"), number("\"fifo_packets\":"), number("\"level\":")));
    }
    let (mut all_ns, mut within_ns, mut packet_ns) = (0.0, 0.0, 0.0);
    for pair in steps.windows(2) {
        let (span_ns, fifo) = (pair[1].0 - pair[0].0, pair[0].1);
        all_ns += span_ns;
        packet_ns += fifo * span_ns;
        within_ns += if (10.0..=30.0).contains(&fifo) { span_ns } else { 0.0 };
    }
    let (share, mean) = (within_ns / all_ns, packet_ns / all_ns);
    assert!(share > 0.7 && (10.0..=25.0).contains(&mean), "{share} of the time, {mean} in the mean");
    let levels: Vec<_> = steps.iter().map(|s| s.2).collect();
    assert!(levels.iter().any(|l| *l >= 2.0) && levels.windows(2).any(|l| l[1] < l[0]), "it goes up and down");
}
