//! Other programs take the cores of either end, in virtual time: the effort goes down before that end
//! holds the flow up, and up again.

mod tables;

use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::table::Table;
use narrows_sim::world::{Conditions, Run, run};
use tables::tables;

const LEN: usize = 192 << 20;
/// Other programs leave so much of the cores.
const LEFT: f64 = 0.1;

fn send(table: &Table, mb_s: f64, policy: &PolicySpec, cpu: Speed, receiver: Speed) -> Run {
    let conditions = Conditions {
        len: LEN,
        cores: 4,
        decoders: 1,
        link: Speed::constant(mb_s * 1e6),
        cpu,
        receiver,
        block_max: 512 << 10,
        decision_ns: 2000.0,
        seed: 1,
        trace: false,
        expected_link: None,
    };
    let setup = PolicySetup { methods: DEFAULT_METHODS, ..PolicySetup::new(4, Prior::shipped()) };
    run(table, &conditions, policy.build(&setup))
}

fn free() -> Speed {
    Speed::constant(1.0)
}

fn loaded() -> Speed {
    Speed::steps(&[(0.0, 1.0), (0.05, LEFT)])
}

/// The kinds of data that compress.
fn kinds() -> impl Iterator<Item = &'static Table> {
    tables().iter().filter(|table| table.pool != "noise")
}

/// Seconds of `balance`, and of the best single method, each under the same load.
fn against_the_best(table: &Table, mb_s: f64, cpu: &Speed, receiver: &Speed) -> (Run, f64) {
    let adapts = send(table, mb_s, &PolicySpec::balance(), cpu.clone(), receiver.clone());
    let fixed = [Method::STORE, Method::lz4_accel(1), Method::zstd(1), Method::zstd(3)];
    let fixed = fixed.map(|method| send(table, mb_s, &PolicySpec::fixed(method, false), cpu.clone(), receiver.clone()));
    let best = fixed.iter().map(|run| run.seconds).fold(f64::INFINITY, f64::min);
    println!("{} {mb_s} MB/s: {:.3} s, best single method {best:.3} s", table.pool, adapts.seconds);
    (adapts, best)
}

#[test]
fn a_loaded_receiver_gets_what_it_has_time_to_decode() {
    let (mut log, mut cells) = (0.0, 0.0);
    for table in kinds() {
        for mb_s in [50.0, 100.0, 300.0] {
            let (run, best) = against_the_best(table, mb_s, &free(), &loaded());
            log += (run.seconds / best).ln();
            cells += 1.0;
        }
    }
    let mean = f64::exp(log / cells);
    println!("mean: {mean:.3} of the best single method's time");
    assert!(mean < 1.0);
}

#[test]
fn a_loaded_sender_encodes_what_it_has_time_for() {
    let (mut log, mut cells) = (0.0, 0.0);
    for table in kinds() {
        for mb_s in [50.0, 100.0, 300.0] {
            let (run, best) = against_the_best(table, mb_s, &loaded(), &free());
            log += (run.seconds / best).ln();
            cells += 1.0;
        }
    }
    let mean = f64::exp(log / cells);
    println!("mean: {mean:.3} of the best single method's time");
    assert!(mean < 1.0);
}
