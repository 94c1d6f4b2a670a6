//! A table of costs from few measurements: an eighth of the time that the whole one takes.
//!
//! Every method is measured on the longest blocks alone, and the shorter ones are derived: they lose as
//! much as a fast method loses by shorter blocks of the same bytes. No block is linked. For predictions
//! that may be some per cent off, within seconds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use narrows::block::Block;
use narrows::codec::Method;
use narrows::sender::worthwhile_len;
use narrows::stream::thread_cpu_ns;

use crate::measure::Bench;
use crate::table::{CLASSES, Cost, Table};

const LONGEST: usize = CLASSES[CLASSES.len() - 1];
/// The method that tells what shorter blocks lose.
const GUIDE: Method = Method::zstd(1);

/// Costs of one piece: of the methods on all of it, and of the guide on the blocks of each class.
struct Piece {
    whole: Vec<Cost>,
    guide: [Vec<Cost>; CLASSES.len()],
}

/// Measures pieces of the longest block length in this order, each of them once it was begun, until
/// `over` says so; at least one. The table has the bytes of these pieces, in the order of the data.
/// `None` without bytes.
pub fn sketch(
    name: &str,
    bytes: &Block,
    methods: &[Method],
    (threads, order): (usize, &[usize]),
    over: &(dyn Fn() -> bool + Sync),
) -> Option<Table> {
    let next = AtomicUsize::new(0);
    let measured: Mutex<Vec<(usize, Piece)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, order.len().max(1)) {
            scope.spawn(|| {
                let mut bench = Bench::new(thread_cpu_ns);
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&index) = order.get(turn) else { return };
                    if turn > 0 && over() {
                        return;
                    }
                    let Some(raw) = bytes.chunks(LONGEST).nth(index) else { continue };
                    let whole = methods.iter().map(|m| bench.cost(*m, &[], raw)).collect();
                    let guide = CLASSES.map(|len| raw.chunks(len).map(|b| bench.cost(GUIDE, &[], b)).collect());
                    let piece = Piece { whole, guide };
                    measured.lock().unwrap_or_else(PoisonError::into_inner).push((index, piece));
                }
            });
        }
    });
    let mut measured = measured.into_inner().unwrap_or_else(PoisonError::into_inner);
    measured.sort_by_key(|m| m.0);
    let parts: Vec<&[u8]> = measured.iter().filter_map(|m| bytes.chunks(LONGEST).nth(m.0)).collect();
    if parts.is_empty() {
        return None;
    }
    let mut table = Table::new(name, Block::from_vec(parts.concat()), methods.to_vec());
    for (raw, (_, piece)) in parts.iter().zip(&measured) {
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            for (i, block) in raw.chunks(class_len).enumerate() {
                let row = piece.whole.iter().map(|whole| derived(*whole, piece, class, i, (block.len(), raw.len())));
                table.push(class, row.collect());
            }
        }
    }
    Some(table)
}

/// The cost of a method on the i-th block of a class, from that on the whole piece.
fn derived(whole: Cost, piece: &Piece, class: usize, i: usize, (len, piece_len): (usize, usize)) -> Cost {
    let share = len as f64 / piece_len as f64;
    let [long] = piece.guide[CLASSES.len() - 1][..] else { return whole };
    let wire_len = (whole.wire_len * piece.guide[class][i].wire_len / long.wire_len.max(1.0)).min(len as f64);
    // As in the engine: a block that hardly shrinks is sent raw.
    if whole.wire_len >= piece_len as f64 || wire_len > worthwhile_len(len) as f64 {
        return Cost { encode_ns: whole.encode_ns * share, decode_ns: 0.0, wire_len: len as f64 };
    }
    Cost { encode_ns: whole.encode_ns * share, decode_ns: whole.decode_ns * share, wire_len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{linkable, measurable, measure};
    use crate::rng::Rng;

    #[test]
    fn derived_costs_are_near_measured_ones() {
        let mut rng = Rng(1);
        let words = ["link ", "block ", "of the ", "window ", "price ", "and\n", "17 ", "rate "];
        let text: String = (0..300_000).map(|_| words[rng.below(words.len())]).collect();
        let mut bytes = text.into_bytes()[..2 * LONGEST].to_vec();
        bytes.extend((0..LONGEST).map(|_| rng.next_u64() as u8));
        bytes.extend_from_slice(&bytes[..5000].to_vec());
        let block = Block::from_vec(bytes);
        let methods = measurable(&[Method::STORE, Method::lz4_accel(1), Method::zstd(3)]);
        let whole = sketch("x", &block, &methods, (2, &[2, 0, 3, 1]), &|| false).unwrap();
        assert_eq!(whole.bytes, block, "in the order of the data");
        let full = measure("x", &block, (&methods, &linkable(&methods)), 2, &|_| (), &|| false).unwrap();
        for class in 0..CLASSES.len() {
            assert_eq!(whole.blocks(class).len(), full.blocks(class).len());
            for m in 0..methods.len() {
                let sum = |t: &Table| t.blocks(class).iter().map(|row| row[m].wire_len).sum::<f64>();
                let (derived, measured) = (sum(&whole), sum(&full));
                assert!((0.85..1.15).contains(&(derived / measured)), "class {class} {m}: {derived} {measured}");
            }
        }
        let one = sketch("x", &block, &methods, (2, &[1, 0, 2]), &|| true).unwrap();
        assert_eq!(one.len(), LONGEST, "at least one, whatever the time");
        assert!(sketch("x", &Block::from_vec(Vec::new()), &methods, (1, &[]), &|| false).is_none());
    }
}
