//! Tests of every policy of the engine and of narrows-classic: it transfers any bytes over any link, is deterministic, and
//! its trace replays to the same choices.

mod world;

use narrows::codec::Method;
use narrows::frame::HISTORY_DEFAULT;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup, PolicySpec};
use narrows::sender::{JobKind, SenderConfig};
use narrows_classic::{Planned, Schedule, policies};
use world::{Conditions, MS, SECOND, World, random, text};

/// Every example, with its file loaded if it needs one.
fn examples() -> Vec<PolicySpec> {
    let planned = |raw_len, method, linked| Planned { linked, ..Planned::alone(raw_len, method) };
    let schedule = Schedule::new(vec![
        planned(5_000, Method::STORE, false),
        planned(70_000, Method::zstd(1), true),
        planned(200_000, Method::lz4_accel(4), false),
    ]);
    let specs = policies().iter().flat_map(|p| p.examples).map(|s| policies().parse(s).unwrap());
    let load = |spec: PolicySpec| match spec.name() {
        "replay" => spec.load(schedule.to_string().as_bytes()).unwrap(),
        _ => spec,
    };
    specs.map(load).collect()
}

fn build(spec: &PolicySpec, cores: usize) -> Box<dyn Policy> {
    spec.build(&PolicySetup::new(cores, Prior::shipped()))
}

fn config(spec: &PolicySpec, cores: usize) -> SenderConfig {
    let history = if spec.links() { HISTORY_DEFAULT } else { 0 };
    SenderConfig { cores, duplex: true, history, block_max: spec.block_max(), trace: true, ..SenderConfig::default() }
}

fn data() -> Vec<u8> {
    [text(1_500_000, 1), random(300_000, 2), vec![0; 300_000], text(900_000, 5)].concat()
}

#[test]
fn every_policy_delivers_every_byte_at_any_rate() {
    let data = data();
    for spec in examples() {
        for (mbit, cores) in [(5.0, 1), (100.0, 3), (20_000.0, 2)] {
            let mut w = World::new(build(&spec, cores), config(&spec, cores), Conditions::steady(mbit));
            w.send_all(&data);
            assert!(w.received == data, "{spec} at {mbit} Mbit/s");
        }
    }
}

#[test]
fn every_policy_lets_small_writes_through_at_once() {
    for spec in examples() {
        let mut w = World::new(build(&spec, 2), config(&spec, 2), Conditions::steady(100.0));
        for second in 1..20 {
            w.run_until(second * SECOND);
            w.write(&text(100, second));
            w.run_until(w.now_ns + MS);
            assert_eq!(w.received.len(), 100 * second as usize, "{spec}");
        }
        w.finish();
    }
}

#[test]
fn every_policy_survives_links_and_cores_that_change() {
    let data = data();
    for spec in examples() {
        let rate = |t: u64| if (t / (30 * MS)).is_multiple_of(2) { 60e6 } else { 2e6 };
        let slow = |t: u64| if (t / (70 * MS)).is_multiple_of(2) { 1.0 } else { 5.0 };
        let conditions = Conditions {
            rate_bytes_per_s: Box::new(rate),
            cpu_slowdown: Box::new(slow),
            receiver_slowdown: 3.0,
            receiver_buffer: 1 << 20,
            ..Conditions::steady(1.0)
        };
        let mut w = World::new(build(&spec, 2), config(&spec, 2), conditions);
        w.send_all(&data);
        assert!(w.received == data, "{spec}");
    }
}

/// Lengths and methods of the blocks as they were cut.
fn choices(w: &World) -> Vec<(Method, usize)> {
    w.chosen.iter().filter(|c| c.kind == JobKind::Encode).map(|c| (c.method, c.raw_len)).collect()
}

#[test]
fn a_recorded_trace_replays_to_the_same_choices_on_any_link() {
    let data = data();
    for spec in examples() {
        let mut first = World::new(build(&spec, 2), config(&spec, 2), Conditions::steady(60.0));
        first.send_all(&data);
        let replay = policies().parse("replay:trace").unwrap();
        let read = replay.load(first.trace.as_bytes()).unwrap();
        let schedule = Schedule::parse(&first.trace).unwrap();
        let planned: Vec<_> = schedule.blocks().iter().map(|b| (b.method, b.raw_len)).collect();
        assert_eq!(planned, choices(&first), "{spec}");
        // The schedule printed as a file is the same.
        let printed = replay.load(schedule.to_string().as_bytes()).unwrap();
        for (replay, mbit, cores) in [(&read, 60.0, 2), (&printed, 3.0, 1), (&printed, 5000.0, 4)] {
            let mut again = World::new(build(replay, cores), config(replay, cores), Conditions::steady(mbit));
            again.send_all(&data);
            assert!(again.received == data, "{spec}");
            assert_eq!(choices(&again), choices(&first), "{spec} at {mbit} Mbit/s");
        }
    }
}

#[test]
fn a_schedule_keeps_its_cuts_when_bytes_come_slowly_and_goes_on_after_its_end() {
    let blocks = [(1_000, Method::STORE), (30_000, Method::zstd(3)), (200, Method::zstd(1))];
    let schedule = Schedule::new(blocks.map(|(raw_len, method)| Planned::alone(raw_len, method)).into());
    let spec = policies().parse("replay:schedule").unwrap();
    let spec = spec.load(schedule.to_string().as_bytes()).unwrap();
    let mut w = World::new(build(&spec, 1), config(&spec, 1), Conditions::steady(1000.0));
    for i in 0..8 {
        w.write(&text(10_000, i));
        w.run_until(w.now_ns + 100 * MS);
    }
    w.finish();
    let (a, b, c) = (Method::STORE, Method::zstd(3), Method::zstd(1));
    let expected = [
        (a, 1_000),
        (b, 9_000),
        (b, 10_000),
        (b, 10_000),
        (b, 1_000),
        (c, 200),
        (c, 8_800),
        (c, 10_000),
        (c, 10_000),
        (c, 10_000),
        (c, 10_000),
    ];
    assert_eq!(choices(&w), expected);
}
