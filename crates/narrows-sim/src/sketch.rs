//! A table of costs from few measurements: a tenth of the time that the whole one takes, or less.
//!
//! One fast method, the guide, encodes every block of every length. All methods are measured on the longest
//! blocks of some pieces only. What is missing is derived: shorter blocks lose as much as the guide loses by
//! them, and a piece that was not measured is to the guide as the measured one of the nearest ratio. No
//! block is linked. For predictions that may be some per cent off, within seconds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use narrows::block::Block;
use narrows::codec::Method;
use narrows::sender::worthwhile_len;
use narrows::stream::thread_cpu_ns;

use crate::measure::Bench;
use crate::table::{CLASSES, Cost, Table};

const LONGEST: usize = CLASSES[CLASSES.len() - 1];
/// The method that tells what was not measured.
const GUIDE: Method = Method::zstd(1);
/// Standard error of what is derived from one measured piece: none tells how much the others differ.
const ALONE: f64 = 0.15;

/// What was measured and derived.
pub struct Sketch {
    /// The costs, of the pieces that the guide encoded, in the order of the data.
    pub table: Table,
    /// How many pieces these are, and on how many of them all methods were measured.
    pub pieces: [usize; 2],
    /// CPU time of the threads over the time that passed for them: the rest went to other programs.
    pub share: f64,
    /// Standard error of the encoded length of all pieces, as a share, since some are derived.
    pub spread: f64,
}

/// One piece: encoded lengths of the guide by class, and what all methods cost on the whole of it.
struct Piece<'a> {
    raw: &'a [u8],
    guide: [Vec<f64>; CLASSES.len()],
    whole: Option<Vec<Cost>>,
}

impl Piece<'_> {
    /// What is left of the piece by the guide, as a logarithm.
    fn left(&self) -> f64 {
        (self.long() / self.raw.len() as f64).max(1e-6).ln()
    }

    fn long(&self) -> f64 {
        self.guide[CLASSES.len() - 1].iter().sum::<f64>().max(1.0)
    }
}

/// Measures until `over` says so; at least one piece of the longest block length. `None` without bytes.
pub fn sketch(
    name: &str,
    bytes: &Block,
    methods: &[Method],
    threads: usize,
    over: &(dyn Fn() -> bool + Sync),
) -> Option<Sketch> {
    let raw: Vec<&[u8]> = bytes.chunks(LONGEST).collect();
    let (guided, _) = each(&spread(raw.len()), threads, over, |bench, i| {
        let len = |block: &[u8]| bench.wire_len(GUIDE, block) as f64;
        let mut len = len;
        CLASSES.map(|class_len| raw[i].chunks(class_len).map(&mut len).collect::<Vec<f64>>())
    });
    let mut pieces: Vec<Piece<'_>> =
        guided.into_iter().map(|(i, guide)| Piece { raw: raw[i], guide, whole: None }).collect();
    // Pieces of all ratios have their turn soon.
    let mut by_ratio: Vec<usize> = (0..pieces.len()).collect();
    by_ratio.sort_by(|a, b| pieces[*a].left().total_cmp(&pieces[*b].left()));
    let order: Vec<usize> = spread(pieces.len()).into_iter().map(|i| by_ratio[i]).collect();
    let (measured, share) = each(&order, threads, over, |bench, i| {
        methods.iter().map(|m| bench.cost(*m, &[], pieces[i].raw)).collect::<Vec<Cost>>()
    });
    let count = measured.len();
    measured.into_iter().for_each(|(i, whole)| pieces[i].whole = Some(whole));
    let parts: Vec<&[u8]> = pieces.iter().map(|p| p.raw).collect();
    if parts.is_empty() {
        return None;
    }
    let mut table = Table::new(name, Block::from_vec(parts.concat()), methods.to_vec());
    for piece in &pieces {
        let whole = piece.whole.clone().or_else(|| from_nearest(piece, &pieces))?;
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            for (i, block) in piece.raw.chunks(class_len).enumerate() {
                let row = whole.iter().map(|whole| derived(*whole, piece, piece.guide[class][i], block.len()));
                table.push(class, row.collect());
            }
        }
    }
    let spread = spread_of(&pieces, count);
    Some(Sketch { table, pieces: [pieces.len(), count], share, spread })
}

/// Runs `work` for the numbers in this order on all threads, and always for the first one; further ones
/// only until `over`. The results by number, and the share of the time in which the threads had a core.
fn each<T: Send>(
    order: &[usize],
    threads: usize,
    over: &(dyn Fn() -> bool + Sync),
    work: impl Fn(&mut Bench<fn() -> u64>, usize) -> T + Sync,
) -> (Vec<(usize, T)>, f64) {
    let next = AtomicUsize::new(0);
    let spent = [AtomicU64::new(0), AtomicU64::new(0)];
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, order.len().max(1)) {
            scope.spawn(|| {
                let mut bench = Bench::new(thread_cpu_ns as fn() -> u64);
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&i) = order.get(turn) else { return };
                    if turn > 0 && over() {
                        return;
                    }
                    let (begun, cpu_begun) = (Instant::now(), thread_cpu_ns());
                    let result = work(&mut bench, i);
                    spent[0].fetch_add(thread_cpu_ns() - cpu_begun, Ordering::Relaxed);
                    spent[1].fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|d| d.0);
    let [cpu_ns, ns] = spent.map(|spent| spent.into_inner() as f64);
    (done, if cpu_ns > 0.0 && ns > 0.0 { (cpu_ns / ns).min(1.0) } else { 1.0 })
}

/// Costs of a piece from the measured one whose ratio by the guide is the nearest.
fn from_nearest(piece: &Piece<'_>, pieces: &[Piece<'_>]) -> Option<Vec<Cost>> {
    let distance = |other: &Piece<'_>| (other.left() - piece.left()).abs();
    let near = pieces.iter().filter(|p| p.whole.is_some()).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    let raw_len = piece.raw.len() as f64;
    let (by_raw, by_guide) = (raw_len / near.raw.len() as f64, piece.long() / near.long());
    let cost = |cost: &Cost| {
        let stays = cost.wire_len >= near.raw.len() as f64;
        let wire_len = if stays { raw_len } else { (cost.wire_len * by_guide).min(raw_len) };
        Cost { encode_ns: cost.encode_ns * by_raw, decode_ns: cost.decode_ns * by_raw, wire_len }
    };
    near.whole.as_ref().map(|whole| whole.iter().map(cost).collect())
}

/// The cost of a method on a block of `len` bytes, from that on the whole piece; `guide`: the encoded
/// length of the block by the guide.
fn derived(whole: Cost, piece: &Piece<'_>, guide: f64, len: usize) -> Cost {
    let share = len as f64 / piece.raw.len() as f64;
    let wire_len = (whole.wire_len * guide / piece.long()).min(len as f64);
    // As in the engine: a block that hardly shrinks is sent raw.
    if whole.wire_len >= piece.raw.len() as f64 || wire_len > worthwhile_len(len) as f64 {
        return Cost { encode_ns: whole.encode_ns * share, decode_ns: 0.0, wire_len: len as f64 };
    }
    Cost { encode_ns: whole.encode_ns * share, decode_ns: whole.decode_ns * share, wire_len }
}

/// Standard error of the sum, from how much the method that shrinks most differs from the guide over the
/// measured pieces.
fn spread_of(pieces: &[Piece<'_>], count: usize) -> f64 {
    let missing = 1.0 - count as f64 / pieces.len() as f64;
    let measured = || pieces.iter().filter_map(|p| Some((p, p.whole.as_ref()?)));
    let methods = measured().next().map_or(0, |(_, whole)| whole.len());
    let sum = |m: usize| measured().map(|(_, whole)| whole[m].wire_len).sum::<f64>();
    let Some(best) = (0..methods).min_by(|a, b| sum(*a).total_cmp(&sum(*b))) else { return 0.0 };
    if count < 2 {
        return ALONE * missing.sqrt();
    }
    let logs: Vec<f64> = measured().map(|(p, whole)| (whole[best].wire_len.max(1.0) / p.long()).ln()).collect();
    let mean = logs.iter().sum::<f64>() / count as f64;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    (variance / count as f64 * missing).sqrt()
}

/// An order of `n` pieces in which every beginning is spread over all of them, so that the time may
/// end anywhere: positions in the order of their reversed bits (van der Corput).
pub fn spread(n: usize) -> Vec<usize> {
    let bits = n.max(2).next_power_of_two().trailing_zeros();
    (0..1usize << bits).map(|i| i.reverse_bits() >> (usize::BITS - bits)).filter(|i| *i < n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{linkable, measurable, measure};
    use crate::rng::Rng;

    #[test]
    fn every_beginning_of_the_order_is_spread() {
        assert_eq!(spread(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        for n in [0, 1, 2, 5, 33] {
            let mut all = spread(n);
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn derived_costs_are_near_measured_ones() {
        let mut rng = Rng(1);
        let words = ["link ", "block ", "of the ", "window ", "price ", "and\n", "17 ", "rate "];
        let text: String = (0..400_000).map(|_| words[rng.below(words.len())]).collect();
        let mut bytes = text.into_bytes()[..3 * LONGEST].to_vec();
        bytes.extend((0..LONGEST).map(|_| rng.next_u64() as u8));
        bytes.extend_from_within(..5000);
        let block = Block::from_vec(bytes);
        let methods = measurable(&[Method::STORE, Method::lz4_accel(1), Method::zstd(3)]);
        let whole = sketch("x", &block, &methods, 2, &|| false).unwrap();
        assert!(*whole.table.bytes == *block, "in the order of the data");
        assert_eq!((whole.pieces, whole.spread), ([5, 5], 0.0));
        assert!(whole.share > 0.0 && whole.share <= 1.0);
        let full = measure("x", &block, (&methods, &linkable(&methods)), 2, &|_| (), &|| false).unwrap();
        // After so many questions the time is over: in the middle of the second part.
        let asked = AtomicUsize::new(0);
        let some = sketch("x", &block, &methods, 1, &|| asked.fetch_add(1, Ordering::Relaxed) >= 6).unwrap();
        assert!(some.pieces[0] == 5 && (2..5).contains(&some.pieces[1]) && some.spread > 0.0, "{:?}", some.pieces);
        for (table, most) in [(&whole.table, 1.15), (&some.table, 1.3)] {
            for class in 0..CLASSES.len() {
                assert_eq!(table.blocks(class).len(), full.blocks(class).len());
                for m in 0..methods.len() {
                    let sum = |t: &Table| t.blocks(class).iter().map(|row| row[m].wire_len).sum::<f64>();
                    let ratio = sum(table) / sum(&full);
                    assert!((1.0 / most..most).contains(&ratio), "class {class} {m}: {ratio}");
                }
            }
        }
        let one = sketch("x", &block, &methods, 2, &|| true).unwrap();
        assert_eq!((one.table.len(), one.pieces), (LONGEST, [1, 1]), "at least one, whatever the time");
        assert!(sketch("x", &Block::from_vec(Vec::new()), &methods, 1, &|| false).is_none());
    }
}
