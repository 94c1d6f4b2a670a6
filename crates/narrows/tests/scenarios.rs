//! `balance` in virtual time: its decisions under steady and changing conditions. Tests check
//! counts and decisions, never seconds.

mod world;

use narrows::codec::Method;
use narrows::monitor::cost::Prior;
use narrows::monitor::expectation::PeerLink;
use narrows::policy::{Policy, PolicySetup, PolicySpec};
use narrows::sender::SenderConfig;
use world::{Conditions, MS, SECOND, World, random, text};

fn balance(cores: usize) -> Box<dyn Policy> {
    PolicySpec::balance().build(&PolicySetup::new(cores, Prior::shipped()))
}

fn plain() -> Box<dyn Policy> {
    PolicySpec::store().build(&PolicySetup::new(1, Prior::shipped()))
}

fn config(cores: usize) -> SenderConfig {
    SenderConfig { cores, duplex: true, block_max: 512 << 10, ..SenderConfig::default() }
}

fn run(policy: Box<dyn Policy>, cores: usize, conditions: Conditions, data: &[u8]) -> World {
    let mut w = World::new(policy, config(cores), conditions);
    w.send_all(data);
    assert!(w.received == data, "every byte arrives");
    w
}

/// Virtual time of `balance` against plain under the same conditions.
fn against_plain(cores: usize, conditions: impl Fn() -> Conditions, data: &[u8]) -> f64 {
    let ours = run(balance(cores), cores, conditions(), data).now_ns;
    let theirs = run(plain(), cores, conditions(), data).now_ns;
    theirs as f64 / ours as f64
}

fn share(w: &World, is: impl Fn(Method) -> bool) -> f64 {
    let rows = w.raw_by_method();
    let all: u64 = rows.iter().map(|r| r.1).sum();
    rows.iter().filter(|r| is(r.0)).map(|r| r.1).sum::<u64>() as f64 / all as f64
}

#[test]
fn slow_links_get_strong_methods_and_fast_ones_light() {
    let data = text(6 << 20, 1);
    let strong = |m: Method| m.nominal_encode_ns(1000) > 15_000;
    let slow = run(balance(2), 2, Conditions::steady(4.0), &data);
    let fast = run(balance(2), 2, Conditions::steady(10_000.0), &data);
    assert!(share(&slow, strong) > 0.7, "{:?}", slow.raw_by_method());
    assert!(share(&fast, strong) < 0.01, "{:?}", fast.raw_by_method());
}

#[test]
fn random_data_goes_raw_and_costs_nothing() {
    let data = random(4 << 20, 3);
    for mbit in [6.0, 100.0, 1000.0, 10_000.0] {
        let w = run(balance(4), 4, Conditions::steady(mbit), &data);
        assert!(share(&w, |m| m == Method::STORE) > 0.99, "{mbit}");
        let gain = against_plain(4, || Conditions::steady(mbit), &data);
        assert!(gain >= 0.98, "{mbit} Mbit/s: {gain} of plain");
    }
}

#[test]
fn never_slower_than_plain() {
    let data = [text(1 << 20, 1), random(1 << 20, 2), vec![0; 1 << 20], text(1 << 20, 5)].concat();
    for cores in [1, 4] {
        for mbit in [1.0, 30.0, 300.0, 1000.0, 2500.0, 10_000.0] {
            let gain = against_plain(cores, || Conditions::steady(mbit), &data);
            assert!(gain >= 0.98, "{cores} cores, {mbit} Mbit/s: {gain} of plain");
        }
    }
}

#[test]
fn a_link_that_becomes_ten_times_as_fast_gets_lighter_methods_within_twenty_blocks() {
    let data = text(24 << 20, 4);
    let step = |t: u64| if t < SECOND { 2.5e6 } else { 25e6 };
    let conditions = || Conditions { rate_bytes_per_s: Box::new(step), ..Conditions::steady(20.0) };
    let w = run(balance(2), 2, conditions(), &data);
    let cost = |c: &world::Chosen| c.method.nominal_encode_ns(1000);
    let before: Vec<_> = w.chosen.iter().filter(|c| c.at_ns > 600 * MS && c.at_ns < SECOND).collect();
    let after: Vec<_> = w.chosen.iter().filter(|c| c.at_ns > SECOND).skip(20).take(20).collect();
    let mean = |v: &[&world::Chosen]| v.iter().map(|c| cost(c)).sum::<u64>() / v.len().max(1) as u64;
    assert!(mean(&after) * 2 < mean(&before), "{} then {}", mean(&before), mean(&after));
}

#[test]
fn a_link_that_becomes_ten_times_slower_gets_stronger_methods() {
    let data = text(24 << 20, 4);
    let step = |t: u64| if t < SECOND / 4 { 25e6 } else { 2.5e6 };
    let conditions = || Conditions { rate_bytes_per_s: Box::new(step), ..Conditions::steady(20.0) };
    assert!(against_plain(2, conditions, &data) > 2.0);
}

#[test]
fn a_cpu_that_is_taken_away_does_not_stop_the_link() {
    let data = text(8 << 20, 4);
    let slow = |t: u64| if (t / (20 * MS)).is_multiple_of(2) { 1.0 } else { 4.0 };
    let conditions = || Conditions { cpu_slowdown: Box::new(slow), ..Conditions::steady(1000.0) };
    assert!(against_plain(1, conditions, &data) >= 1.0);
}

#[test]
fn a_slow_receiver_is_priced() {
    let data = [text(4 << 20, 4), random(1 << 20, 1)].concat();
    for slowdown in [3.0, 10.0] {
        let conditions =
            || Conditions { receiver_slowdown: slowdown, receiver_buffer: 1 << 20, ..Conditions::steady(1000.0) };
        let gain = against_plain(4, conditions, &data);
        assert!(gain >= 0.9, "{slowdown}: {gain}");
    }
}

#[test]
fn an_application_that_sends_little_is_not_taken_for_a_slow_link() {
    let mut w = World::new(balance(2), config(2), Conditions::steady(1000.0));
    for i in 0..500 {
        w.write(&text(2000, i));
        w.run_until(w.now_ns + 5 * MS);
    }
    let rate = w.sender.summary().rate_bytes_per_s;
    w.finish();
    assert!(rate > 30e6, "{rate}");
    assert_eq!(w.received.len(), 1_000_000);
}

#[test]
fn tiny_messages_between_bulk_arrive_in_order() {
    let mut w = World::new(balance(2), config(2), Conditions::steady(100.0));
    let mut sent = Vec::new();
    for i in 0..40 {
        let piece = if i % 2 == 0 { text(100_000, i) } else { text(50, i) };
        w.write(&piece);
        sent.extend(piece);
        w.run_until(w.now_ns + 9 * MS);
    }
    w.finish();
    assert!(w.received == sent);
}

#[test]
fn a_lone_small_write_leaves_at_once_and_after_an_hour_too() {
    let mut w = World::new(balance(2), config(2), Conditions::steady(1000.0));
    for hour in 0..3 {
        w.run_until(hour * 3600 * SECOND + SECOND);
        let frames = w.sender.summary().frames;
        w.write(&[b'x'; 100]);
        w.run_until(w.now_ns + 20_000);
        assert_eq!(w.sender.summary().frames, frames + 1);
    }
    w.write(&text(200 << 10, 1));
    w.finish();
}

#[test]
fn the_first_block_of_a_link_that_was_slow_is_compressed() {
    let data = text(1 << 20, 6);
    let first = |expected_mbit: Option<f64>| {
        let link = |mbit: f64| PeerLink { rate_bytes_per_s: mbit * 125_000.0, rtt_ns: None };
        let config = SenderConfig { expected_link: expected_mbit.map(link), ..config(2) };
        let mut w = World::new(balance(2), config, Conditions::steady(10.0));
        w.send_all(&data);
        assert!(w.received == data);
        let measured = w.sender.summary().link.unwrap().rate_bytes_per_s;
        assert!((measured / 1.25e6 - 1.0).abs() < 0.1, "{expected_mbit:?}: {measured}");
        w.chosen[0].method
    };
    for slow in [0.1, 2.0, 10.0] {
        assert_ne!(first(Some(slow)), Method::STORE, "{slow}");
    }
    // A fast link takes it before anything is encoded, and nonsense is no memory.
    for other in [None, Some(100.0), Some(10_000.0), Some(f64::NAN), Some(-1.0), Some(0.0), Some(f64::INFINITY)] {
        assert_eq!(first(other), Method::STORE, "{other:?}");
    }
}

#[test]
fn zeros_cost_a_few_frames() {
    let w = run(balance(1), 1, Conditions::steady(1.0), &vec![0; 8 << 20]);
    assert!(w.sender.summary().wire_bytes < 20_000, "{}", w.sender.summary().wire_bytes);
}
