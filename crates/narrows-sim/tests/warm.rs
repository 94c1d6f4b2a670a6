//! Gain by the memory of an earlier flow to the same peer, and loss by a wrong one, in virtual time.
//!
//! Single cells are chaotic: a block that is one class longer near the end moves a transfer of 1 MB by
//! several percent, whatever was remembered. So the tests compare means over kinds of data, lengths
//! and cores.

use std::sync::OnceLock;

use narrows::block::Block;
use narrows::codec::{Contexts, DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::monitor::expectation::{Kind, PeerLink};
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::measure::measurable;
use narrows_sim::rng::Rng;
use narrows_sim::table::{CLASSES, Cost, Table};
use narrows_sim::world::{Conditions, Run, run};

const MBIT: f64 = 125_000.0;
const POOL_LEN: usize = 1 << 20;
/// Lengths around the nominal one, over which a mean is taken.
const LENGTHS: usize = 4;

/// Four kinds of data. Sizes are those of the codecs, times the nominal ones, so every machine has the
/// same table.
fn tables() -> &'static [Table] {
    static TABLES: OnceLock<Vec<Table>> = OnceLock::new();
    TABLES.get_or_init(made)
}

fn made() -> Vec<Table> {
    let mut rng = Rng(7);
    let mut lines = Vec::new();
    while lines.len() < POOL_LEN {
        let (a, b, c) = (rng.below(200), rng.below(1 << 16), rng.below(9));
        lines.extend_from_slice(format!("10.0.{c}.{a} - GET /item/{b}/view?page={c} 200 {}\n", a * 37).as_bytes());
    }
    let mut records = Vec::new();
    let mut value = 0i32;
    while records.len() < POOL_LEN {
        value += rng.below(40) as i32 - 20;
        records.extend_from_slice(&value.to_le_bytes());
        records.extend_from_slice(&[0, 0, rng.below(4) as u8, 1]);
    }
    let mut words = Vec::new();
    while words.len() < POOL_LEN {
        let most = 1 + rng.below(3000);
        let word = rng.below(most);
        words.extend_from_slice(format!("{:x}{} ", word * 7919 % 60_000, ["a", "en", "ing", ""][word % 4]).as_bytes());
    }
    let noise: Vec<u8> = (0..POOL_LEN).map(|_| rng.next_u64() as u8).collect();
    let pools = [("lines", lines), ("records", records), ("words", words), ("noise", noise)];
    pools.into_iter().map(|(name, bytes)| table(name, bytes)).collect()
}

fn table(name: &str, mut bytes: Vec<u8>) -> Table {
    bytes.truncate(POOL_LEN);
    let methods = measurable(DEFAULT_METHODS);
    let mut table = Table::new(name, Block::from_vec(bytes), methods.clone());
    let mut contexts = Contexts::default();
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        for i in 0..POOL_LEN / class_len {
            let raw = table.block(class, i).to_vec();
            let row = methods.iter().map(|m| cost(&mut contexts, *m, &raw)).collect();
            table.push(class, row);
        }
    }
    table
}

fn cost(contexts: &mut Contexts, method: Method, raw: &[u8]) -> Cost {
    let mut wire = vec![0; raw.len()];
    let n = raw.len() as f64;
    let wire_len = contexts.encoder(method.info()).encode(method.level, &[], raw, &mut wire).unwrap_or(raw.len());
    let decode_ns = n * f64::from(method.info().nominal_ns_per_byte(method.level).1);
    // On noise codecs soon give up.
    let effort = if wire_len < raw.len() { 1.0 } else { 0.2 };
    Cost { encode_ns: effort * method.nominal_encode_ns(raw.len()) as f64, decode_ns, wire_len: wire_len as f64 }
}

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
