//! Random tables and conditions for tests.

use narrows::block::Block;
use narrows::codec::{CodecId, Method};
use narrows::oracle::Speed;

use crate::rng::Rng;
use crate::table::{CLASSES, Cost, Table};
use crate::world::Conditions;

/// A table of up to 3 MB of data that changes in kind, with constant stretches, runs of zeros
/// anywhere and a short last block. Mostly, longer blocks compress better, and so do slower
/// methods.
pub(crate) fn drawn_table(rng: &mut Rng) -> Table {
    let len = 1 + rng.below(3 << 20);
    let grain = 16 << 10;
    let kinds: Vec<(f64, f64)> = (0..len.div_ceil(grain)).map(|_| (0.1 + rng.unit(), 0.3 + rng.unit())).collect();
    let byte = |at: usize| if kinds[at / grain].0 < 0.2 { 0 } else { rng.next_u64() as u8 };
    let mut bytes: Vec<u8> = (0..len).map(byte).collect();
    for _ in 0..rng.below(20) {
        let at = rng.below(len);
        let run = rng.below(40_000).min(len - at);
        bytes[at..at + run].fill(0);
    }
    let methods = vec![Method::lz4_accel(1), Method::zstd(3), Method::new(CodecId::XZ, 6)];
    let mut table = Table::new("drawn", Block::from_vec(bytes), methods);
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        for i in 0..len.div_ceil(class_len) {
            let n = table.block(class, i).len() as f64;
            let within = &kinds[i * class_len / grain..((i + 1) * class_len).div_ceil(grain).min(kinds.len())];
            let mean = |of: fn(&(f64, f64)) -> f64| within.iter().map(of).sum::<f64>() / within.len() as f64;
            let (dense, hard) = (mean(|k| k.0), mean(|k| k.1));
            let shorter = 1.0 - 0.02 * class as f64;
            let cost = |ns: f64, share: f64, rng: &mut Rng| {
                let wire_len = (n * dense * share * shorter * (0.99 + 0.02 * rng.unit())).ceil().min(n);
                let decode_ns = if wire_len < n { n * (0.3 + 0.1 * ns.sqrt()) } else { 0.0 };
                Cost { encode_ns: n * ns * hard * (0.98 + 0.04 * rng.unit()), decode_ns, wire_len }
            };
            let row = vec![cost(2.0, 0.6, rng), cost(6.0, 0.45, rng), cost(150.0, 0.35, rng)];
            table.push(class, row);
        }
    }
    table
}

/// Conditions with a link of 1 Mbit/s to 25 Gbit/s, one to eight cores, and a receiver that may be
/// slow.
pub(crate) fn drawn_conditions(rng: &mut Rng, len: usize) -> Conditions {
    let speed = |rng: &mut Rng| Speed::constant(if rng.below(4) == 0 { 0.05 + 0.3 * rng.unit() } else { 1.0 });
    Conditions {
        len,
        cores: 1 + rng.below(8),
        decoders: 1 + rng.below(4),
        link: Speed::constant(125_000.0 * 10f64.powf(4.4 * rng.unit())),
        cpu: speed(rng),
        receiver: speed(rng),
        block_max: CLASSES[CLASSES.len() - 1 - rng.below(2)],
        decision_ns: 0.0,
        seed: rng.next_u64(),
        trace: false,
        expected_link: None,
    }
}
