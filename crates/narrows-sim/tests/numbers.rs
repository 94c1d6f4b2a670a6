//! Numbers in plain bytes in virtual time: `balance` with methods for numbers is near the oracle that has
//! them too, and with other data no decision moves.

use narrows::block::Block;
use narrows::codec::{Contexts, DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::judge;
use narrows_sim::measure::measurable;
use narrows_sim::rng::Rng;
use narrows_sim::table::{CLASSES, Cost, Table};
use narrows_sim::world::{Conditions, Run, run};

const MBIT: f64 = 125_000.0;
const LEN: usize = 2 << 20;

/// Sizes are those of the codecs, times the nominal ones, so every machine has the same table.
fn table(name: &str, mut bytes: Vec<u8>) -> Table {
    bytes.truncate(LEN);
    let methods = measurable(DEFAULT_METHODS);
    let mut table = Table::new(name, Block::from_vec(bytes), methods.clone());
    let mut contexts = Contexts::default();
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        for i in 0..LEN / class_len {
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
    Cost { encode_ns: method.nominal_encode_ns(raw.len()) as f64, decode_ns, wire_len: wire_len as f64 }
}

/// Floats of a slow walk with noise in their last bits.
fn floats() -> Vec<u8> {
    let mut rng = Rng(7);
    let mut value = 250.0f32;
    let mut next = || {
        value += rng.unit() as f32 * 0.2 - 0.1;
        value
    };
    (0..LEN / 4).flat_map(|_| next().to_le_bytes()).collect()
}

fn words() -> Vec<u8> {
    let mut rng = Rng(8);
    let mut words = Vec::new();
    while words.len() < LEN {
        let most = 1 + rng.below(3000);
        let word = rng.below(most);
        words.extend_from_slice(format!("{:x}{} ", word * 7919 % 60_000, ["a", "en", "ing", ""][word % 4]).as_bytes());
    }
    words
}

fn conditions(mbit: f64, cores: usize) -> Conditions {
    Conditions {
        len: 8 << 20,
        cores,
        decoders: 4,
        link: Speed::constant(mbit * MBIT),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(1.0),
        block_max: 512 << 10,
        decision_ns: 2000.0,
        seed: 1,
        trace: false,
        expected_link: None,
    }
}

fn send(table: &Table, methods: &[Method], mbit: f64, cores: usize) -> Run {
    let setup = PolicySetup { methods, ..PolicySetup::new(cores, Prior::shipped()) };
    run(table, &conditions(mbit, cores), PolicySpec::balance().build(&setup))
}

#[test]
fn numbers_arrive_sooner_and_near_the_oracle_and_other_data_as_before() {
    let plain: Vec<Method> = DEFAULT_METHODS.iter().copied().filter(|m| !m.is_for_numbers()).collect();
    let (floats, words) = (table("floats", floats()), table("words", words()));
    for (mbit, least_gain) in [(10.0, 1.05), (100.0, 1.05), (1000.0, 0.99)] {
        for cores in [1, 2, 4] {
            let (with, without) = (send(&floats, DEFAULT_METHODS, mbit, cores), send(&floats, &plain, mbit, cores));
            let gain = without.seconds / with.seconds;
            let possible = judge::possible(&floats, &conditions(mbit, cores), 3, 8);
            let near = possible.oracle / with.seconds;
            println!("{mbit} Mbit/s, {cores} cores: {gain:.3} times as fast, {near:.3} of the oracle");
            assert!(gain > least_gain && near > 0.85, "{mbit} Mbit/s, {cores} cores: {gain:.3}, {near:.3}");
            let (with, without) = (send(&words, DEFAULT_METHODS, mbit, cores), send(&words, &plain, mbit, cores));
            let counts = |run: &Run| (run.jobs, run.summary.wire_bytes, run.sent.len());
            assert_eq!(counts(&with), counts(&without), "{mbit} Mbit/s, {cores} cores: no decision moves");
        }
    }
}
