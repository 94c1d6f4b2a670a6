//! Choices of policies for hand-made views, one at a time, without an engine.

mod world;

use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::monitor::{Ask, CpuView, Limits, LinkView, Pending, PendingState, ReceiverView};
use narrows::policy::{Choice, Outcome, Policy, PolicySetup, PolicySpec, Rescue};
use narrows_classic::policies;
use narrows_test::{noise, text};
use proptest::prelude::*;
use world::{MS, scene::Scene};

fn balance() -> Box<dyn Policy> {
    PolicySpec::balance().build(&PolicySetup::new(2, Prior::shipped()))
}

fn effort(choice: &Choice) -> u64 {
    choice.method.nominal_encode_ns(1000)
}

#[test]
fn random_data_is_stored_at_any_rate() {
    for mbit in [1.0, 30.0, 1000.0, 25_000.0] {
        let (mut policy, mut scene) = (balance(), Scene::new(noise(1 << 20), mbit));
        let mut tries = 0;
        for _ in 0..30 {
            let Choice { method, block_len: raw_len, encode_ns, .. } = scene.ask(&mut *policy, 1);
            tries += usize::from(method != Method::STORE);
            let (seq, wire_len, taken_over) = (scene.seq - 1, raw_len, false);
            let (wall_ns, cpu_ns) = (encode_ns, encode_ns);
            policy.learn(&Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over });
        }
        assert!(tries <= 12, "{tries} of 30 at {mbit} Mbit/s");
        assert_eq!(scene.ask(&mut *policy, 1).method, Method::STORE, "{mbit}");
    }
}

#[test]
fn the_slower_the_link_the_stronger_the_method() {
    let at = |mbit: f64| effort(&Scene::new(text(1 << 20), mbit).ask(&mut *balance(), 30));
    assert!(at(2.0) > at(100.0) && at(100.0) > at(3000.0), "{} {} {}", at(2.0), at(100.0), at(3000.0));
    assert!(at(2.0) >= Method::zstd(9).nominal_encode_ns(1000));
    assert!(at(20_000.0) <= Method::lz4_accel(1).nominal_encode_ns(1000));
}

/// What a shaper lets through at once looks like a fast link.
#[test]
fn the_first_bytes_of_an_unknown_link_are_worth_more_effort() {
    let effort_after = |left_host_bytes| {
        let mut scene = Scene::new(text(1 << 20), 1000.0);
        let rtt_ns = Some(100_000);
        scene.link = LinkView { known: false, rtt_ns, left_host_bytes, ..scene.link };
        (0..8).map(|_| effort(&scene.ask(&mut *balance(), 30))).sum::<u64>()
    };
    let (first, later) = (effort_after(16 << 10), effort_after(256 << 10));
    assert!(first > later, "{first} {later}");
}

#[test]
fn a_link_that_may_be_far_faster_is_tried_with_short_raw_blocks() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 300.0);
    scene.link.known = false;
    let before = scene.ask(&mut *policy, 12);
    scene.link.trial_bytes = 64 << 10;
    let tried = scene.ask(&mut *policy, 2);
    let enough = scene.ask(&mut *policy, 1);
    assert!(enough.method != Method::STORE, "a trial goes on for longer than it is wanted: {enough}");
    scene.link.trial_bytes = 0;
    let after = scene.ask(&mut *policy, 1);
    assert!(before.method != Method::STORE && after.method != Method::STORE, "{before} then {after}");
    assert_eq!((tried.method, tried.block_len), (Method::STORE, 32 << 10));
}

#[test]
fn a_jump_of_the_rate_moves_the_price_at_once() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 30.0);
    let before = scene.ask(&mut *policy, 40);
    scene.link.rate_bytes_per_s *= 10.0;
    let after = scene.ask(&mut *policy, 8);
    assert!(effort(&after) < effort(&before), "{before} then {after}");
}

#[test]
fn large_blocks_only_where_the_link_is_slow_and_the_backlog_covers_them() {
    let slow = Scene::new(text(1 << 20), 6.0).ask(&mut *balance(), 40);
    let fast = Scene::new(text(1 << 20), 10_000.0).ask(&mut *balance(), 40);
    assert!(slow.block_len >= 128 << 10 && fast.block_len <= 128 << 10, "{slow:?} {fast:?}");
    let mut young = Scene::new(text(1 << 20), 6.0);
    (young.busy_ns, young.queue) = (10_000, Vec::new());
    assert!(young.ask(&mut *balance(), 2).block_len <= 8 << 10);
}

#[test]
fn constant_data_is_one_frame_as_long_as_it_may_be() {
    let mut scene = Scene::new(vec![b'z'; 1 << 20], 100.0);
    let choice = scene.ask(&mut *balance(), 1);
    assert_eq!((choice.method, choice.block_len), (Method::CONSTANT, 512 << 10));
    scene.limits.codecs = 1;
    assert_ne!(scene.ask(&mut *balance(), 1).method, Method::CONSTANT);
}

#[test]
fn a_rescue_waits_no_longer_than_the_ledger_affords() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 100.0);
    let chosen = scene.ask(&mut *policy, 30);
    let late = Pending {
        seq: scene.seq - 1,
        raw_len: chosen.block_len,
        method: chosen.method,
        chosen_ns: scene.now_ns,
        state: PendingState::Encoding,
    };
    scene.queue = vec![late];
    let Rescue::WaitUntil(until_ns) = policy.rescue(&scene.view()) else { panic!("the ledger affords a wait") };
    assert!(until_ns > scene.now_ns && until_ns < scene.now_ns + 50 * MS);
    scene.now_ns = until_ns;
    assert!(matches!(policy.rescue(&scene.view()), Rescue::TakeOver(_)), "it waits once");

    // The same, but the link has already been dry for half of the time.
    let mut policy = balance();
    scene.now_ns = 1000 * MS;
    scene.ask(&mut *policy, 30);
    scene.queue[0].seq = scene.seq - 1;
    scene.link.dry_ns = 500 * MS;
    assert!(matches!(policy.rescue(&scene.view()), Rescue::TakeOver(_)));
}

#[test]
fn a_receiver_that_cannot_decode_fast_enough_gets_what_it_can() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 1000.0);
    scene.receiver.cores = 1;
    let before = scene.ask(&mut *policy, 30);
    for _ in 0..40 {
        let choice = scene.ask(&mut *policy, 1);
        let (raw_len, seq) = (choice.block_len as u64, scene.seq - 1);
        let decode_ns = (150.0 * choice.method.info().nominal_ns_per_byte(choice.method.level).1) as u64 * raw_len;
        let report = Outcome::Received {
            first_seq: seq,
            last_seq: seq,
            raw_len,
            decode_ns,
            load: 1.0,
            cores: 1,
            backlog_bytes: 1 << 20,
        };
        policy.learn(&report);
    }
    let after = scene.ask(&mut *policy, 1);
    assert_ne!(before.method, Method::STORE);
    assert_eq!(after.method, Method::STORE, "all decoders are slower than the raw link");
}

#[test]
fn fixed_falls_back_to_store_where_the_receiver_lacks_the_codec() {
    let spec: PolicySpec = "fixed:zstd:level=9".parse().unwrap();
    let mut policy = spec.build(&PolicySetup::new(1, Prior::shipped()));
    let mut scene = Scene::new(text(1 << 20), 100.0);
    let choice = scene.ask(&mut *policy, 1);
    assert_eq!((choice.method, choice.block_len), (Method::zstd(9), 512 << 10));
    scene.limits.codecs = 1;
    assert_eq!(scene.ask(&mut *policy, 1).method, Method::STORE);
}

#[test]
fn a_copy_in_memory_goes_raw_and_few_blocks_at_a_time() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 2_000.0);
    assert_ne!(scene.ask(&mut *policy, 20).method, Method::STORE, "a real link of this rate is worth compressing for");
    scene.link.in_memory = true;
    let choice = scene.ask(&mut *policy, 1);
    assert_eq!((choice.method, choice.block_len), (Method::STORE, 128 << 10));
    assert!(policy.window(4) < 10);
    // Idle cores are not idle there: the reader needs them.
    scene.link.known = false;
    assert!(policy.probe(&scene.view()).is_none());
}

#[test]
fn few_blocks_are_made_for_a_busy_link_of_unknown_rate() {
    let mut policy = balance();
    let mut scene = Scene::new(text(1 << 20), 2000.0);
    (scene.link.known, scene.link.unsent_bytes) = (false, 10_000);
    for _ in 0..10 {
        let choice = scene.ask(&mut *policy, 1);
        assert!(choice.block_len <= 32 << 10 && policy.window(4) <= 3);
    }
    scene.link.unanswered = true;
    assert_eq!(scene.ask(&mut *policy, 1).block_len, 8 << 10);
    scene.link.unanswered = false;
    scene.link.known = true;
    scene.ask(&mut *policy, 1);
    assert!(policy.window(4) > 3);
}

#[test]
fn one_late_block_is_no_slow_cpu_but_two_are() {
    let slowdown = |late_blocks: usize| {
        let mut policy = balance();
        let mut scene = Scene::new(text(1 << 20), 100.0);
        let first = scene.seq;
        for _ in 0..3 {
            scene.ask(&mut *policy, 1);
        }
        scene.queue = (0..3)
            .map(|i| Pending {
                seq: first + i,
                raw_len: 128 << 10,
                method: Method::zstd(3),
                chosen_ns: if (i as usize) < late_blocks { 0 } else { scene.now_ns },
                state: PendingState::Encoding,
            })
            .collect();
        scene.ask(&mut *policy, 1);
        policy.explain().iter().find(|(key, _)| *key == "slowdown").expect("it is explained").1
    };
    assert!(slowdown(1) < 1.1, "{}", slowdown(1));
    assert!(slowdown(2) > 1.5, "{}", slowdown(2));
}

#[test]
fn a_policy_of_store_alone_works() {
    let setup = PolicySetup { methods: &[], ..PolicySetup::new(1, Prior::shipped()) };
    let mut policy = PolicySpec::balance().build(&setup);
    let mut scene = Scene::new(text(1 << 20), 1.0);
    assert_eq!(scene.ask(&mut *policy, 20).method, Method::STORE);
    assert_eq!(policy.probe(&scene.view()), None);
}

fn any_rate() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(1e-300),
        (0.0..12.0).prop_map(|x: f64| 10f64.powf(x)),
    ]
}

fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..10_000_000_000u64]
}

fn any_scene() -> impl Strategy<Value = Scene> {
    let data = prop_oneof![
        (1usize..300_000).prop_map(text),
        (1usize..300_000).prop_map(noise),
        (1usize..300_000).prop_map(|n| vec![0; n]),
        (1usize..100).prop_map(noise),
    ];
    let state = prop_oneof![
        Just(PendingState::Encoding),
        prop_oneof![Just(0), Just(usize::MAX), 0usize..1 << 20]
            .prop_map(|unsent_len| PendingState::Ready { unsent_len })
    ];
    let pending = (any_time(), 0usize..1 << 20, any_time(), state).prop_map(|(seq, raw_len, chosen_ns, state)| {
        Pending { seq, raw_len, method: Method::zstd(3), chosen_ns, state }
    });
    let queue = prop::collection::vec(pending, 0..6);
    let link = (any_rate(), any::<(bool, bool, bool)>(), any_time(), any_time(), any_time(), any::<bool>());
    let limits = (1usize..1 << 20, any::<u64>().prop_map(|c| c | 1));
    let receiver = (any::<bool>(), prop_oneof![Just(0), Just(usize::MAX), 1usize..8], any::<u64>());
    let left = prop::option::of(any_time());
    ((any_time(), any_time()), data, left, link, receiver, queue, limits, any::<bool>()).prop_map(
        |(
            (now_ns, busy_ns),
            data,
            left,
            (rate, (known, opening, unanswered), left_host_bytes, unsent_bytes, dry_ns, in_memory),
            receiver,
            queue,
            limits,
            bypass,
        )| Scene {
            now_ns,
            busy_ns,
            seq: 0,
            raw_offset: 0,
            data,
            left,
            link: LinkView {
                rate_bytes_per_s: rate,
                known,
                left_host_bytes,
                unsent_bytes,
                dry_ns,
                in_memory,
                opening,
                trial_bytes: if opening && !known { 100_000 } else { 0 },
                rtt_ns: left.filter(|_| unanswered),
                unanswered,
                expected: !known && left.is_some(),
            },
            cpu: CpuView { cores: 2, busy: usize::from(bypass) },
            receiver: ReceiverView { reports: receiver.0, cores: receiver.1, backlog_bytes: receiver.2 },
            queue,
            limits: Limits {
                block_max: limits.0,
                history: if known { 8192 } else { 0 },
                codecs: limits.1,
                behind: 0,
                dictionary: None,
            },
            ask: if bypass { Ask::Bypass } else { Ask::Next },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// For any view, and any outcome of earlier choices, the choice is valid for the flow.
    #[test]
    fn any_view_gets_a_valid_choice(
        scenes in prop::collection::vec((any_scene(), any_time(), any_time(), 0usize..1 << 20), 1..30),
        cores in 0usize..40,
    ) {
      for spec in policies().iter().flat_map(|p| p.examples) {
        let spec = policies().parse(spec).unwrap();
        let own = spec.methods();
        let mut policy = spec.build(&PolicySetup { cores, ..PolicySetup::new(1, Prior::shipped()) });
        for (i, (scene, wall_ns, cpu_ns, wire_len)) in scenes.iter().enumerate() {
            let (mut scene, wall_ns, cpu_ns, wire_len) = (scene.clone(), *wall_ns, *cpu_ns, *wire_len);
            (scene.seq, scene.raw_offset) = (i as u64, 1000 * i as u64);
            if let Some(block) = scene.queue.first_mut() {
                block.seq = scene.seq.saturating_sub(1);
            }
            let choice = policy.choose(&scene.view());
            prop_assert!(choice.block_len >= 1 && choice.block_len <= scene.limits.block_max);
            prop_assert!(scene.limits.allows(choice.method));
            let known = if own.is_empty() { DEFAULT_METHODS } else { &own[..] };
            prop_assert!([Method::STORE, Method::CONSTANT].contains(&choice.method) || known.contains(&choice.method));
            if let Rescue::TakeOver(method) = policy.rescue(&scene.view()) {
                prop_assert!(scene.limits.allows(method));
            }
            if let Some(probe) = policy.probe(&scene.view()) {
                prop_assert!(scene.limits.allows(probe.method) && probe.block_len <= scene.data.len());
            }
            let (seq, method) = (scene.seq, choice.method);
            let raw_len = choice.block_len.min(scene.data.len());
            policy.learn(&Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over: i % 7 == 0 });
            policy.learn(&Outcome::Probed { method, raw_len, wire_len, wall_ns, cpu_ns });
            policy.learn(&Outcome::Received {
                first_seq: seq,
                last_seq: seq.saturating_add(wall_ns),
                raw_len: cpu_ns,
                decode_ns: wall_ns,
                load: 1.0,
                cores: 0,
                backlog_bytes: u64::MAX,
            });
            prop_assert!(policy.window(cores) >= 1);
            prop_assert!(policy.explain().iter().all(|(_, value)| value.is_finite()), "{:?}", policy.explain());
        }
        prop_assert!(policy.learned().iter().all(|(_, shift)| shift.is_finite()));
      }
    }
}
