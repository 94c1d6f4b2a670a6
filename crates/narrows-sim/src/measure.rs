//! Measures the cost of every method on every block of given bytes on this machine.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use narrows::block::Block;
use narrows::codec::{Codecs, Contexts, Method};
use narrows::stream::thread_cpu_ns;

use narrows::monitor::cost::histories;

use crate::table::{CLASSES, Cost, Table};

/// Runs of one method on one block; the quickest counts.
const RUNS: usize = 3;
/// Time after which no further run of a block is begun.
const RUN_BUDGET_NS: u64 = 2_500_000;
const LONGEST: usize = CLASSES[CLASSES.len() - 1];

/// The methods without `store` and `constant`, whose costs are known.
pub fn measurable(methods: &[Method]) -> Vec<Method> {
    methods.iter().copied().filter(|m| *m != Method::STORE && *m != Method::CONSTANT).collect()
}

/// Those of the methods that are worth measuring linked too: all that can be, but the slowest, which
/// take two to four times as long linked and gain least.
/// Each with the histories that `balance` weighs for the longest blocks, from short to long.
pub fn linkable(methods: &[Method]) -> Vec<(Method, usize)> {
    const LEVEL_MAX: i32 = 11;
    let methods = methods.iter().copied().filter(|m| m.info().can_link() && m.level <= LEVEL_MAX);
    let mut linked: Vec<_> = methods.flat_map(|m| histories(m, LONGEST).into_iter().map(move |len| (m, len))).collect();
    linked.sort_by_key(|(_, len)| *len);
    linked
}

/// The bytes before `begin` to which a block of a class is linked in a column of so much history:
/// short blocks refer to no more than is weighed for them.
pub fn history_of(bytes: &[u8], begin: usize, class_len: usize, column: (Method, usize)) -> &[u8] {
    let (method, len) = column;
    let most = histories(method, class_len).last().copied().unwrap_or(0);
    &bytes[begin.saturating_sub(len.min(most))..begin]
}

/// Measures encoding and decoding. Contexts are reused, as in the engine.
pub struct Bench<C> {
    codecs: Codecs,
    contexts: Contexts,
    wire: Vec<u8>,
    back: Vec<u8>,
    clock: C,
}

impl<C: FnMut() -> u64> Bench<C> {
    /// A bench with a clock that returns nanoseconds.
    pub fn new(clock: C) -> Self {
        Self::of(&Codecs::default(), clock)
    }

    /// As [`Bench::new`], for methods of these codecs.
    pub fn of(codecs: &Codecs, clock: C) -> Self {
        let (wire, back) = (vec![0; LONGEST], vec![0; LONGEST]);
        Self { codecs: codecs.clone(), contexts: Contexts::default(), wire, back, clock }
    }

    /// The encoded length of a block without history, which must not be longer than the longest class.
    pub fn wire_len(&mut self, method: Method, block: &[u8]) -> usize {
        let encoder = self.contexts.encoder(self.codecs.of(method));
        let room = &mut self.wire[..block.len().saturating_sub(1)];
        encoder.encode(method.level, &[], block, room).unwrap_or(block.len())
    }

    /// The quickest of up to three runs on a block, which must not be longer than the longest
    /// class, linked to `history` if that is not empty. A block that did not shrink costs its own length and no decoding.
    ///
    /// # Panics
    /// If a decoded block differs from the original.
    pub fn cost(&mut self, method: Method, history: &[u8], block: &[u8]) -> Cost {
        let encoder = self.contexts.encoder(self.codecs.of(method));
        let room = &mut self.wire[..block.len().saturating_sub(1)];
        let (encode_ns, wire_len) = quickest(&mut self.clock, || encoder.encode(method.level, history, block, room));
        let Some(wire_len) = wire_len else {
            return Cost { encode_ns, decode_ns: 0.0, wire_len: block.len() as f64 };
        };
        let decoder = self.contexts.decoder(self.codecs.of(method));
        let (wire, back) = (&self.wire[..wire_len], &mut self.back[..block.len()]);
        let (decode_ns, decoded) = quickest(&mut self.clock, || decoder.decode(history, wire, back));
        assert_eq!(decoded, Ok(block.len()), "{method}");
        assert!(back == block, "{method} does not give back what it was given");
        Cost { encode_ns, decode_ns, wire_len: wire_len as f64 }
    }
}

fn quickest<T>(clock: &mut impl FnMut() -> u64, mut run: impl FnMut() -> T) -> (f64, T) {
    let start_ns = clock();
    let mut best_ns = u64::MAX;
    let mut runs = 0;
    let mut begin_ns = start_ns;
    loop {
        let result = run();
        let end_ns = clock();
        best_ns = best_ns.min(end_ns.saturating_sub(begin_ns));
        runs += 1;
        if runs == RUNS || end_ns.saturating_sub(start_ns) >= RUN_BUDGET_NS {
            return (best_ns as f64, result);
        }
        begin_ns = end_ns;
    }
}

/// Costs of one block by method.
type ClassRow = Vec<Cost>;
/// Costs of the blocks of one class within a piece, by block, then method.
type ClassRows = Vec<ClassRow>;

/// Measures every method on every block of every class by CPU time, and those in `linked` also on
/// blocks linked to the bytes before them. `threads` threads run side by
/// side; each takes a block of the longest class and all shorter blocks within it. `tick` is
/// called with the number of bytes done. Returns `None` if `stop` became true.
pub fn measure(
    name: &str,
    bytes: &Block,
    columns: (&[Method], &[(Method, usize)]),
    threads: usize,
    tick: &(dyn Fn(usize) + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Table> {
    measure_until(name, bytes, columns, threads, tick, stop).filter(|table| table.len() == bytes.len())
}

/// As [`measure`], but if `stop` became true, of what was measured by then: whole pieces from all over the bytes,
/// which become those of the table. `None` if there are none.
pub fn measure_until(
    name: &str,
    bytes: &Block,
    (methods, linked): (&[Method], &[(Method, usize)]),
    threads: usize,
    tick: &(dyn Fn(usize) + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Table> {
    let order = spread(bytes.len().div_ceil(LONGEST));
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<[ClassRows; CLASSES.len()]>>> = Mutex::new(vec![None; order.len()]);
    let piece_of = |index: usize| index * LONGEST..((index + 1) * LONGEST).min(bytes.len());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, order.len().max(1)) {
            scope.spawn(|| {
                let mut bench = Bench::new(thread_cpu_ns);
                while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let piece = piece_of(*index);
                    let done = piece.len();
                    let Some(rows) = measure_piece(&mut bench, bytes, piece, (methods, linked), stop) else { return };
                    results.lock().unwrap_or_else(PoisonError::into_inner)[*index] = Some(rows);
                    tick(done);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let is_whole = results.iter().all(Option::is_some);
    let measured = results.into_iter().enumerate().filter_map(|(index, rows)| Some((index, rows?)));
    let measured = measured.collect::<Vec<_>>();
    let taken = match is_whole {
        true => bytes.clone(),
        false => Block::from_vec(measured.iter().flat_map(|(index, _)| bytes[piece_of(*index)].to_vec()).collect()),
    };
    if measured.is_empty() && !bytes.is_empty() {
        return None;
    }
    let mut table = Table::new(name, taken, methods.to_vec());
    table.linked = linked.to_vec();
    for (_, rows) in measured {
        for (class, rows) in rows.into_iter().enumerate() {
            rows.into_iter().for_each(|row| table.push(class, row));
        }
    }
    Some(table)
}

/// The numbers below `count` in an order of which every beginning is spread over all of them: by their reversed
/// bits.
fn spread(count: usize) -> Vec<usize> {
    let bits = count.next_power_of_two().trailing_zeros();
    let reversed = |i: usize| if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) };
    (0..count.next_power_of_two()).map(reversed).filter(|i| *i < count).collect()
}

fn measure_piece<C: FnMut() -> u64>(
    bench: &mut Bench<C>,
    bytes: &[u8],
    piece: Range<usize>,
    (methods, linked): (&[Method], &[(Method, usize)]),
    stop: &dyn Fn() -> bool,
) -> Option<[ClassRows; CLASSES.len()]> {
    let mut classes: [ClassRows; CLASSES.len()] = Default::default();
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        for (i, block) in bytes[piece.clone()].chunks(class_len).enumerate() {
            let begin = piece.start + i * class_len;
            // The last block may be the same as one of the class below, which is measured already.
            let below = class.checked_sub(1).filter(|_| block.len() <= class_len / 4);
            let known = below.and_then(|c| classes[c].get(i * 4).cloned());
            let mut measured =
                |(m, history): (&Method, &[u8])| if stop() { None } else { Some(bench.cost(*m, history, block)) };
            let alone = methods.iter().map(|m| (m, &[][..]));
            let columns = alone.chain(linked.iter().map(|c| (&c.0, history_of(bytes, begin, class_len, *c))));
            let mut row: ClassRow = Vec::new();
            let mut histories: Vec<(Method, usize)> = Vec::new();
            for (m, history) in columns {
                // Short blocks refer to the same bytes in several columns, and so do all near the beginning.
                let same = histories.iter().position(|seen| !history.is_empty() && *seen == (*m, history.len()));
                let cost = match (&known, same) {
                    (Some(known), _) => known[row.len()],
                    (None, Some(same)) => row[same],
                    (None, None) => measured((m, history))?,
                };
                row.push(cost);
                histories.push((*m, history.len()));
            }
            classes[class].push(row);
        }
    }
    Some(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_block_is_measured_in_its_place() {
        let mut rng = Rng(1);
        // Text, then noise, then a short tail of text.
        let text = b"the same words in another order, and again the words\n".repeat(12_000);
        let mut bytes = text[..LONGEST].to_vec();
        bytes.extend((0..LONGEST).map(|_| rng.next_u64() as u8));
        bytes.extend(&text[..5000]);
        let methods = [Method::lz4_accel(1), Method::zstd(1)];
        let block = Block::from_vec(bytes);
        let done = AtomicUsize::new(0);
        let tick = |n| {
            done.fetch_add(n, Ordering::Relaxed);
        };
        let table = measure("x", &block, (&methods, &linkable(&methods)), 2, &tick, &|| false).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), block.len());
        for (class, class_len) in CLASSES.iter().enumerate() {
            assert_eq!(table.blocks(class).len(), block.len().div_ceil(*class_len));
            for (i, row) in table.blocks(class).iter().enumerate() {
                let raw = table.block(class, i);
                let is_noise = (LONGEST..2 * LONGEST).contains(&(i * class_len));
                let shrunk = row.iter().all(|c| c.wire_len < raw.len() as f64 / 5.0 && c.decode_ns > 0.0);
                assert!(
                    shrunk != is_noise && row.iter().all(|c| c.encode_ns > 0.0),
                    "class {class} block {i}: {row:?}"
                );
            }
            assert_eq!(table.blocks(class).last(), table.blocks(0).last(), "the tail is the same block in every class");
        }
        assert!(Table::from_text(&table.to_text(), block.clone()).is_ok());
        assert!(measure("x", &block, (&methods, &[]), 2, &tick, &|| true).is_none());
    }

    /// What was measured when it is stopped is a table of its own, of pieces in their order.
    #[test]
    fn what_was_measured_in_time_is_a_table() {
        let mut rng = Rng(2);
        let bytes: Vec<u8> =
            (0..5 * LONGEST + 1000).map(|i| if i < LONGEST { 0 } else { rng.next_u64() as u8 }).collect();
        let block = Block::from_vec(bytes);
        let methods = [Method::lz4_accel(1)];
        let done = AtomicUsize::new(0);
        let tick = |n| {
            done.fetch_add(n, Ordering::Relaxed);
        };
        let stop = || done.load(Ordering::Relaxed) >= 2 * LONGEST;
        let part = measure_until("x", &block, (&methods, &[]), 1, &tick, &stop).unwrap();
        // Pieces 0 and 4 of six.
        assert_eq!(part.len(), 2 * LONGEST);
        assert!(part.bytes[..LONGEST] == block[..LONGEST] && part.bytes[LONGEST..] == block[4 * LONGEST..5 * LONGEST]);
        let lens: Vec<_> = part.blocks(CLASSES.len() - 1).iter().map(|row| row[0].wire_len as usize).collect();
        assert!(lens.len() == 2 && lens[0] < 10_000 && lens[1] == LONGEST, "{lens:?}");
        assert!(measure("x", &block, (&methods, &[]), 1, &tick, &stop).is_none(), "not all of it");
        for count in 0..70 {
            let mut order = spread(count);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count), "{count}");
        }
        assert_eq!(spread(6), [0, 4, 2, 1, 5, 3]);
    }

    #[test]
    fn one_byte_is_a_block_too() {
        let table = measure("x", &Block::from_vec(vec![1]), (&[Method::zstd(1)], &[]), 4, &|_| (), &|| false).unwrap();
        assert_eq!(table.blocks(3)[0][0].wire_len, 1.0);
    }
}
