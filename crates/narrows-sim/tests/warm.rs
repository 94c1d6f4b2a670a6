//! Gain by the memory of an earlier flow to the same peer, and loss by a wrong one, in virtual time.
//!
//! Single cells are chaotic: a block that is one class longer near the end moves a transfer of 1 MB by
//! several percent, whatever was remembered. So the tests compare means over kinds of data, lengths
//! and cores.

mod tables;

use narrows::codec::DEFAULT_METHODS;
use narrows::monitor::cost::Prior;
use narrows::monitor::expectation::{Kind, PeerLink};
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::table::Table;
use narrows_sim::world::{Conditions, Run, run};
use tables::tables;

const MBIT: f64 = 125_000.0;
/// Lengths around the nominal one, over which a mean is taken.
const LENGTHS: usize = 4;

/// What a flow remembers of an earlier one.
#[derive(Clone, Copy, Default)]
struct Memory<'a> {
    mbit: Option<f64>,
    kinds: &'a [Kind],
}

fn send(table: &Table, len: usize, mbit: f64, cores: usize, memory: Memory<'_>) -> Run {
    let conditions = Conditions {
        len,
        cores,
        decoders: 4,
        link: Speed::constant(mbit * MBIT),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(1.0),
        block_max: 512 << 10,
        decision_ns: 2000.0,
        seed: len as u64,
        trace: false,
        expected_link: memory.mbit.map(|mbit| PeerLink { rate_bytes_per_s: mbit * MBIT, rtt_ns: None }),
    };
    let setup =
        PolicySetup { methods: DEFAULT_METHODS, kinds: memory.kinds, ..PolicySetup::new(cores, Prior::shipped()) };
    run(table, &conditions, PolicySpec::balance().build(&setup))
}

/// A transfer without a memory.
struct Cold {
    table: &'static Table,
    cores: usize,
    len: usize,
    seconds: f64,
}

/// Every kind of data on one, two and four cores, with lengths around `mb` MiB.
fn colds(mb: usize, mbit: f64) -> Vec<Cold> {
    let mut colds = Vec::new();
    for table in tables() {
        for cores in [1, 2, 4] {
            for i in 0..LENGTHS {
                let len = (mb << 20) * (14 + i) / 16;
                colds.push(Cold {
                    table,
                    cores,
                    len,
                    seconds: send(table, len, mbit, cores, Memory::default()).seconds,
                });
            }
        }
    }
    colds
}

/// Mean of ln(cold time / warm time) in percent. The memory says `wrong` times the rate; `with_kinds`:
/// it also has the kinds of data of a flow over such a link.
fn gain(colds: &[Cold], mbit: f64, wrong: f64, with_kinds: bool) -> f64 {
    let mut sum = 0.0;
    for group in colds.chunks(LENGTHS) {
        let Cold { table, cores, .. } = group[0];
        let kinds = match with_kinds {
            true => send(table, 3 << 20, mbit * wrong, cores, Memory::default()).kinds,
            false => Vec::new(),
        };
        for cold in group {
            let memory = Memory { mbit: Some(mbit * wrong), kinds: &kinds };
            sum += (cold.seconds / send(table, cold.len, mbit, cores, memory).seconds).ln();
        }
    }
    100.0 * sum / colds.len() as f64
}

#[test]
fn a_memory_gains_on_slow_links_and_costs_nothing_on_fast_ones() {
    for (mb, mbit, least) in
        [(1, 10.0, 0.5), (1, 100.0, -0.8), (1, 1000.0, -0.8), (4, 10.0, -0.3), (4, 100.0, -0.8), (4, 1000.0, -0.8)]
    {
        let colds = colds(mb, mbit);
        let (link, all) = (gain(&colds, mbit, 1.0, false), gain(&colds, mbit, 1.0, true));
        println!("{mb} MB, {mbit} Mbit/s: the link {link:.2} %, with kinds {all:.2} %");
        assert!(link > least && all > least, "{mb} MB, {mbit} Mbit/s: {link:.2} %, {all:.2} %");
    }
}

#[test]
fn a_wrong_memory_costs_no_more_than_a_percent() {
    for mb in [1, 4] {
        for mbit in [10.0, 100.0, 1000.0] {
            let colds = colds(mb, mbit);
            for wrong in [0.01, 0.1, 10.0, 100.0] {
                let (link, all) = (gain(&colds, mbit, wrong, false), gain(&colds, mbit, wrong, true));
                println!(
                    "{mb} MB, {mbit} Mbit/s, expected {}: the link {link:.2} %, with kinds {all:.2} %",
                    mbit * wrong
                );
                assert!(link > -1.0 && all > -1.0, "{mb} MB, {mbit} Mbit/s, {wrong}: {link:.2} %, {all:.2} %");
            }
        }
    }
}

#[test]
fn a_flow_measures_the_link_for_the_next_one() {
    for table in tables() {
        for mbit in [10.0, 100.0, 1000.0] {
            let link = send(table, 1 << 20, mbit, 2, Memory::default()).summary.link.expect("the rate is known");
            assert!((link.rate_bytes_per_s / (mbit * MBIT) - 1.0).abs() < 0.05, "{mbit}: {link:?}");
        }
    }
}
