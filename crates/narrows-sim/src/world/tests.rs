//! Tests of whole runs.

use super::*;
use crate::overhead::HEADER_LEN;
use crate::table::HISTORY;
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

/// The example, with random bytes, and each method also linked: 0.8 of the bytes for 1.3 of the time.
fn linked_table() -> Table {
    let separate = example();
    let mut table = Table::new("linked", separate.bytes.clone(), separate.methods.clone());
    // Zeros would be sent as `constant`.
    let mut rng = Rng(3);
    table.bytes = Block::from_vec((0..separate.len()).map(|_| rng.next_u64() as u8).collect());
    table.linked = separate.methods.iter().map(|m| (*m, HISTORY)).collect();
    for class in 0..CLASSES.len() {
        for row in separate.blocks(class) {
            let linked = |c: &Cost| Cost { encode_ns: 1.3 * c.encode_ns, wire_len: 0.8 * c.wire_len, ..*c };
            table.push(class, row.iter().copied().chain(row.iter().map(linked)).collect());
        }
    }
    table
}

/// Eight decoders have blocks side by side, but linked ones only one after the other: 1 ns a byte.
#[test]
fn balance_does_not_link_where_serial_decoding_would_bound() {
    let conditions = Conditions { cores: 8, decoders: 8, len: 64 << 20, ..conditions(10_000.0) };
    let run = run(&linked_table(), &conditions, policy("balance"));
    let serial_s = 1e-9 * conditions.len as f64;
    assert!(run.seconds < 0.6 * serial_s, "{} against {serial_s}", run.seconds);
}

/// Linked blocks are chosen where they bring bytes across sooner, and not where they would only
/// cost the sender its time.
#[test]
fn balance_links_where_the_link_is_what_bounds() {
    let (separate, table) = (example(), linked_table());
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
    let conditions = Conditions { receiver: Speed::constant(0.01), decoders: 1, len: 24 << 20, ..conditions(10_000.0) };
    let run = run(&example(), &conditions, policy("fixed:lz4"));
    // 1 ns a byte, a hundred times slower.
    let decode_s = 100e-9 * (24 << 20) as f64;
    assert!((run.seconds / decode_s - 1.0).abs() < 0.02, "{} against {decode_s}", run.seconds);
    assert!(run.summary.decode_cpu_ns > 1_000_000_000);
}

/// Random bytes: zeros would be sent as `constant`.
fn noisy() -> Table {
    let mut table = example();
    let mut rng = Rng(3);
    table.bytes = Block::from_vec((0..table.len()).map(|_| rng.next_u64() as u8).collect());
    table
}

fn cold_s(mbit: f64, host: &Host, spec: &str) -> f64 {
    run_cold(&noisy(), &conditions(mbit), host, policy(spec)).seconds
}

const NO_START: Host = Host { start_ns: 0.0, ..Host::COLD };

#[test]
fn a_cold_transfer_takes_its_start_its_bytes_and_its_cores() {
    let wire_s = f64::from(1 << 20) / 12.5e6;
    let plain_s = cold_s(100.0, &NO_START, "fixed:store");
    // The burst is through before the shaper counts.
    let burst_s = Host::COLD.burst_bytes / 12.5e6;
    assert!((plain_s - (wire_s - burst_s)).abs() < 0.05 * wire_s, "{plain_s} against {wire_s} less {burst_s}");
    let started_s = cold_s(100.0, &Host::COLD, "fixed:store");
    assert!((started_s - plain_s - Host::COLD.start_ns * 1e-9).abs() < 1e-9);
    let fast_s = cold_s(100_000.0, &NO_START, "fixed:store");
    let receive_s = Host::COLD.receive_ns_per_byte * 1e-9 * f64::from(1 << 20);
    assert!((receive_s..3.0 * receive_s).contains(&fast_s), "{fast_s}: the receiver's thread is what bounds");
}

/// The work of both ends and of the link shares the cores, so nothing is as fast as with cores of its own.
#[test]
fn nothing_is_faster_cold_than_warm_where_the_cores_are_what_bounds() {
    for spec in ["fixed:store", "fixed:lz4", "fixed:zstd:level=3", "balance"] {
        let warm_s = run(&noisy(), &conditions(10_000.0), policy(spec)).seconds;
        let cold_s = cold_s(10_000.0, &NO_START, spec);
        assert!(cold_s > 1.2 * warm_s, "{spec}: {cold_s} against {warm_s}");
    }
}

#[test]
fn the_same_cold_run_gives_the_same_result_and_all_bytes() {
    for mbit in [10.0, 1000.0, 25_000.0] {
        let once = run_cold(&noisy(), &conditions(mbit), &Host::COLD, policy("balance"));
        let again = run_cold(&noisy(), &conditions(mbit), &Host::COLD, policy("balance"));
        assert_eq!((once.seconds, once.jobs), (again.seconds, again.jobs));
        assert_eq!(once.summary.raw_bytes, 1 << 20);
    }
}

/// What costs nothing and a queue of nothing leave the classical world, up to how the source is read.
#[test]
fn a_host_that_costs_nothing_is_no_slower_than_the_classical_world() {
    let free = Host {
        start_ns: 0.0,
        thread_start_ns: 0.0,
        hand_over_ns: 0.0,
        cold_share: 0.0,
        call_ns: 0.0,
        read_ns_per_byte: 0.0,
        send_ns_per_byte: 0.0,
        receive_ns_per_byte: 0.0,
        store_ns_per_byte: 0.0,
        ack_delay_ns: 0.0,
        burst_bytes: 0.0,
        queue_bytes: 0.0,
        ..Host::COLD
    };
    let classical_s = run(&noisy(), &conditions(100.0), policy("fixed:lz4")).seconds;
    let free_s = cold_s(100.0, &free, "fixed:lz4");
    assert!((free_s / classical_s - 1.0).abs() < 0.02, "{free_s} against {classical_s}");
}
