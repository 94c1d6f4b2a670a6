//! `--adapt` in virtual time: the disk is the link, and nobody decodes. Never slower than plain writing,
//! and as small as that allows.

mod tables;

use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::table::Table;
use narrows_sim::world::{Conditions, Run, run};
use tables::tables;

const LEN: usize = 64 << 20;
const CORES: usize = 2;

fn write(table: &Table, mb_s: f64, policy: &PolicySpec) -> Run {
    let conditions = Conditions {
        len: LEN,
        cores: CORES,
        // Whoever reads it does so later.
        decoders: 64,
        link: Speed::constant(mb_s * 1e6),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(10.0),
        block_max: 512 << 10,
        decision_ns: 2000.0,
        seed: 1,
        trace: false,
        expected_link: None,
    };
    let setup = PolicySetup { methods: DEFAULT_METHODS, ..PolicySetup::new(CORES, Prior::shipped()) };
    run(table, &conditions, policy.build(&setup))
}

#[test]
fn a_disk_gets_what_it_can_take_in_time() {
    let mut logs = [0.0, 0.0];
    let mut cells = 0.0;
    for table in tables() {
        for mb_s in [10.0, 50.0, 200.0, 500.0, 2000.0] {
            let adapts = write(table, mb_s, &PolicySpec::balance());
            let plain = write(table, mb_s, &PolicySpec::store());
            let fixed = |level| write(table, mb_s, &PolicySpec::fixed(Method::zstd(level), false));
            let (one, three) = (fixed(1), fixed(3));
            let against = plain.seconds / adapts.seconds;
            println!(
                "{} {mb_s} MB/s: plain {:.3} s, zstd 1 {:.3} s, zstd 3 {:.3} s, adapts {:.3} s, {} KiB of {} KiB",
                table.pool,
                plain.seconds,
                one.seconds,
                three.seconds,
                adapts.seconds,
                adapts.summary.wire_bytes >> 10,
                one.summary.wire_bytes >> 10,
            );
            assert!(against >= 0.98, "{} {mb_s} MB/s: {against:.3} of plain", table.pool);
            logs[0] += (plain.seconds / adapts.seconds).ln();
            logs[1] += (plain.seconds / one.seconds.min(three.seconds)).ln();
            cells += 1.0;
            if mb_s <= 10.0 && table.pool != "noise" {
                let least = one.summary.wire_bytes.min(three.summary.wire_bytes);
                assert!(adapts.summary.wire_bytes <= least, "{}: a slow disk leaves time", table.pool);
            }
        }
    }
    let [adapts, best] = logs.map(|log: f64| (log / cells).exp());
    println!("mean over plain: adapts {adapts:.3}, the better of zstd 1 and 3 {best:.3}");
    assert!(adapts >= best);
}
