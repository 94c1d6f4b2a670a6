//! Lower bounds that no schedule can beat, whatever its cuts: every piece of the data at the cost
//! of the best measured block that contains it.

use narrows::monitor::data::constant_prefix;
use narrows::oracle::{self, Cost, Machine};

use crate::overhead::with_share;
use crate::table::{CLASSES, STORE_NS_PER_BYTE, Table};

const PIECE: usize = CLASSES[0];
const LONGEST: usize = CLASSES[CLASSES.len() - 1];
/// Wire lengths are rounded to whole bytes: a block may be half a byte shorter than its table says.
const ROUNDED: f64 = 0.5;
/// Shortest run of one byte that gains as a separate `constant` block, which is nine bytes with its
/// header.
const RUN_MIN: usize = 9;

/// The least time, bytes and CPU that a flow needs, however it is cut into blocks.
///
/// For any prices, a cut costs at least the sum over its pieces of the cheapest measured block
/// around each, because the table computes a cut's cost from parts of those blocks. So the linear
/// program over pieces bounds every run over the table.
pub struct Limits {
    /// By piece: how often it is sent, its raw bytes, and its possible costs without dominated ones.
    pieces: Vec<(usize, f64, Vec<Cost>)>,
}

impl Limits {
    /// The limits for the table's bytes, sent once.
    pub fn new(table: &Table) -> Self {
        Self::of(table, table.len(), LONGEST)
    }

    /// The limits for a flow of `len` bytes of the repeated table in blocks up to `block_max`. A
    /// piece that the end of the flow cuts off costs nothing.
    pub fn of(table: &Table, len: usize, block_max: usize) -> Self {
        if table.is_empty() {
            return Self { pieces: Vec::new() };
        }
        // The longest possible block, in which a byte has the smallest share of the cost per block.
        let longest = block_max.max(LONGEST).min(len.max(1));
        let runs = runs(&table.bytes, longest, len > table.len());
        let (times, rest) = (len / table.len(), len % table.len());
        let sent = |i: usize| times + usize::from(i * PIECE + table.block(0, i).len() <= rest);
        let pieces = (0..runs.len()).filter(|i| sent(*i) > 0);
        let raw_len = |i: usize| table.block(0, i).len() as f64;
        Self { pieces: pieces.map(|i| (sent(i), raw_len(i), front(&costs(table, i, longest, runs[i])))).collect() }
    }

    /// The limits with other costs, computed from the raw bytes of a piece and each of its costs. None
    /// of them may fall where one that it is computed from rises.
    pub fn with_costs(&self, cost: impl Fn(f64, Cost) -> Cost) -> Self {
        let other = |n: f64, costs: &[Cost]| costs.iter().map(|c| cost(n, *c)).collect();
        Self { pieces: self.pieces.iter().map(|(times, n, costs)| (*times, *n, other(*n, costs))).collect() }
    }

    /// Lower bound of the seconds until the last byte is delivered.
    pub fn seconds(&self, machine: &Machine) -> f64 {
        let weighted: Vec<_> = self.pieces.iter().map(|(times, _, costs)| (*times, costs.as_slice())).collect();
        oracle::bound(&weighted, machine)
    }

    /// Lower bound of the bytes on the wire.
    pub fn wire_len(&self) -> f64 {
        self.least(|c| c.wire_len)
    }

    /// Lower bound of the CPU seconds of encoding.
    pub fn encode_s(&self) -> f64 {
        self.least(|c| c.encode_s)
    }

    fn least(&self, of: fn(&Cost) -> f64) -> f64 {
        let least = |costs: &[Cost]| costs.iter().map(of).fold(f64::INFINITY, f64::min);
        self.pieces.iter().map(|(times, _, costs)| *times as f64 * least(costs)).sum()
    }
}

/// The part of a piece that may be sent as `constant`.
#[derive(Clone, Copy, Default)]
struct Runs {
    /// Bytes of the piece that lie in runs of one byte.
    len: usize,
    /// Length of the longest of these runs, limited to one block; the shorter ones count as if they
    /// were as long.
    longest: usize,
}

/// The runs of each piece. If the table repeats, a run at its end may continue at its beginning.
fn runs(bytes: &[u8], block_max: usize, repeats: bool) -> Vec<Runs> {
    let mut pieces = vec![Runs::default(); bytes.len().div_ceil(PIECE)];
    let mut begin = 0;
    while begin < bytes.len() {
        let end = begin + constant_prefix(&bytes[begin..]);
        let goes_on = repeats && (begin == 0 || end == bytes.len());
        if goes_on || end - begin >= RUN_MIN {
            let reach = if goes_on { block_max } else { block_max.min(end - begin) };
            for (i, piece) in pieces.iter_mut().enumerate().take(end.div_ceil(PIECE)).skip(begin / PIECE) {
                piece.len += end.min((i + 1) * PIECE) - begin.max(i * PIECE);
                piece.longest = piece.longest.max(reach);
            }
        }
        begin = end;
    }
    pieces
}

/// Every cost that a piece can have as a part of larger blocks.
fn costs(table: &Table, index: usize, longest: usize, runs: Runs) -> Vec<Cost> {
    let n = table.block(0, index).len() as f64;
    let share = n / longest as f64;
    let cost = |encode_ns: f64, wire_len: f64, decode_ns: f64| {
        with_share(encode_ns, wire_len - share * ROUNDED, decode_ns, share)
    };
    let store_ns = n * STORE_NS_PER_BYTE;
    let mut all = vec![cost(store_ns, n, store_ns)];
    for class in 0..CLASSES.len() {
        let parts = (0..table.columns()).map(|m| table.part(class, index, m));
        all.extend(parts.map(|c| cost(c.encode_ns, c.wire_len, c.decode_ns)));
    }
    if runs.len > 0 {
        // The runs as `constant`, and the bytes between them by each method. All runs or none:
        // prices for which one run pays are the same for all.
        let (others, blocks) = (1.0 - runs.len as f64 / n, runs.len as f64 / runs.longest as f64);
        let runs_ns = runs.len as f64 * STORE_NS_PER_BYTE;
        let constant = with_share(runs_ns, blocks * (1.0 - ROUNDED), runs_ns, blocks);
        let with_runs = |c: &Cost| Cost {
            encode_s: others * c.encode_s + constant.encode_s,
            wire_len: others * c.wire_len + constant.wire_len,
            decode_s: others * c.decode_s + constant.decode_s,
            linked: false,
        };
        let more: Vec<_> = all.iter().map(with_runs).collect();
        all.extend(more);
    }
    all
}

/// The Pareto front: drops costs that another one equals or beats in all respects, since no prices
/// make them the cheapest.
fn front(costs: &[Cost]) -> Vec<Cost> {
    let mut kept: Vec<Cost> = Vec::new();
    let beats = |a: &Cost, b: &Cost| a.encode_s <= b.encode_s && a.wire_len <= b.wire_len && a.decode_s <= b.decode_s;
    for cost in costs {
        if !kept.iter().any(|k| beats(k, cost)) {
            kept.retain(|k| !beats(cost, k));
            kept.push(*cost);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{drawn_conditions, drawn_table};
    use crate::rng::Rng;
    use crate::schedule::Schedule;
    use crate::world::{self, Conditions};
    use narrows::block::Block;
    use narrows::codec::Method;
    use narrows::monitor::cost::Prior;
    use narrows::oracle::Speed;
    use narrows::policy::{PolicySetup, PolicySpec};
    use narrows_classic::Planned;

    #[test]
    fn a_front_keeps_what_some_prices_choose() {
        let cost = |encode_s, wire_len, decode_s| Cost { encode_s, wire_len, decode_s, linked: false };
        let all =
            [cost(1.0, 9.0, 1.0), cost(2.0, 9.0, 1.0), cost(3.0, 5.0, 1.0), cost(3.0, 5.0, 1.0), cost(0.5, 9.0, 1.0)];
        assert_eq!(front(&all), [cost(3.0, 5.0, 1.0), cost(0.5, 9.0, 1.0)]);
    }

    /// The promise of `narrows oracle`: whatever the data, link, cores and receiver, no policy and no schedule is faster
    /// than the bound over the same methods and block lengths, none sends less, none takes less of the CPU.
    #[test]
    fn no_run_and_no_schedule_beats_the_limits() {
        let mut rng = Rng(7);
        let mut tightest = f64::INFINITY;
        for seed in 0..60 {
            let table = drawn_table(&mut rng);
            let conditions = drawn_conditions(&mut rng, table.len());
            let limits = Limits::new(&table);
            // The clock counts whole nanoseconds.
            let bound_s = limits.seconds(&conditions.machine()) * (1.0 - 1e-9) - 1e-9;
            let best = Schedule::best(&table, &conditions.machine(), 16);
            assert!(best.seconds >= bound_s, "seed {seed}: {} against {bound_s}, {conditions:?}", best.seconds);
            assert!(best.wire_len >= limits.wire_len() - 1e-6 && best.encode_s >= limits.encode_s() - 1e-12);
            tightest = tightest.min(best.seconds / bound_s);
            let methods: Vec<_> = [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.clone()).collect();
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(conditions.cores, Prior::shipped()) };
            let fixed = methods.iter().filter(|m| **m != Method::CONSTANT);
            let specs = fixed.map(|m| PolicySpec::fixed(*m, false)).chain([PolicySpec::balance()]);
            for spec in specs {
                let run = world::run(&table, &conditions, spec.build(&setup));
                assert!(
                    run.seconds >= bound_s,
                    "seed {seed}, {spec}: {} against {bound_s}, {conditions:?}",
                    run.seconds
                );
                assert!(
                    run.summary.wire_bytes as f64 >= limits.wire_len()
                        && run.work_s() >= limits.encode_s() * (1.0 - 1e-9)
                );
                tightest = tightest.min(run.seconds / bound_s);
            }
        }
        assert!(tightest < 1.05, "a bound that nothing comes near says nothing: {tightest}");
    }

    /// Where encoding is the bottleneck, jobs of the I/O thread must not add a core to those of the
    /// conditions.
    #[test]
    fn one_core_is_one_core_on_fast_links() {
        let mut rng = Rng(13);
        let (mut rescued, mut tightest) = (0, f64::INFINITY);
        for seed in 0..150 {
            let table = drawn_table(&mut rng);
            let speed = if rng.below(3) == 0 { 0.1 } else { 1.0 };
            let conditions = Conditions {
                cores: 1,
                decoders: 8,
                link: Speed::constant(1e9 * 10f64.powf(1.5 * rng.unit())),
                cpu: Speed::constant(speed),
                receiver: Speed::constant(1.0),
                ..drawn_conditions(&mut rng, table.len())
            };
            let bound_s = Limits::new(&table).seconds(&conditions.machine()) * (1.0 - 1e-9) - 1e-9;
            let methods: Vec<_> = [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.clone()).collect();
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(1, Prior::shipped()) };
            for spec in [PolicySpec::balance(), PolicySpec::store()] {
                let run = world::run(&table, &conditions, spec.build(&setup));
                assert!(
                    run.seconds >= bound_s,
                    "seed {seed}, {spec}: {} against {bound_s}, {conditions:?}",
                    run.seconds
                );
                rescued += run.summary.rescued_blocks;
                tightest = tightest.min(run.seconds / bound_s);
            }
        }
        assert!(rescued > 0 && tightest < 1.1, "nothing was tried: {rescued} rescued, {tightest}");
    }

    #[test]
    fn a_run_of_one_byte_between_two_pieces_is_in_the_bound() {
        let mut rng = Rng(17);
        let mut bytes: Vec<u8> = (0..LONGEST).map(|_| rng.next_u64() as u8).collect();
        let mut blocks = Vec::new();
        for at in (0..LONGEST).step_by(2 * PIECE) {
            bytes[at + PIECE / 2..at + 3 * PIECE / 2].fill(0);
            for (raw_len, method) in [(PIECE / 2, Method::STORE), (PIECE, Method::CONSTANT), (PIECE / 2, Method::STORE)]
            {
                blocks.push(Planned::alone(raw_len, method));
            }
        }
        let mut table = Table::new("runs", Block::from_vec(bytes), Vec::new());
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            (0..LONGEST / class_len).for_each(|_| table.push(class, Vec::new()));
        }
        let conditions = Conditions { link: Speed::constant(1e6), cores: 1, ..drawn_conditions(&mut rng, LONGEST) };
        let schedule = narrows_classic::Schedule::new(blocks).to_string();
        let replay = narrows_classic::policies().parse("replay:x").unwrap();
        let replay = replay.load(schedule.as_bytes()).unwrap();
        let setup = PolicySetup::new(1, Prior::shipped());
        let run = world::run(&table, &conditions, replay.build(&setup));
        let limits = Limits::new(&table);
        let bound_s = limits.seconds(&conditions.machine());
        assert!((1.0..1.05).contains(&(run.seconds / bound_s)), "{} against {bound_s}", run.seconds);
        assert!((1.0..1.05).contains(&(run.summary.wire_bytes as f64 / limits.wire_len())));
    }

    #[test]
    fn runs_of_one_byte_are_found_across_pieces() {
        let mut bytes: Vec<u8> = (0..3 * PIECE).map(|i| (i % 7) as u8).collect();
        bytes[PIECE - 100..PIECE + 50].fill(9);
        bytes[2 * PIECE + 10..2 * PIECE + 10 + RUN_MIN - 1].fill(9);
        let found: Vec<_> = runs(&bytes, LONGEST, false).iter().map(|r| (r.len, r.longest)).collect();
        assert_eq!(found, [(100, 150), (50, 150), (0, 0)]);
        assert_eq!(runs(&bytes, 64, false)[0].longest, 64, "no block is longer");
        let found: Vec<_> = runs(&bytes, LONGEST, true).iter().map(|r| (r.len, r.longest)).collect();
        assert_eq!(found, [(101, LONGEST), (50, 150), (1, LONGEST)], "what lies at the ends may go on at the other");
    }

    #[test]
    fn the_same_seed_gives_the_same_result_bit_for_bit() {
        let once = || {
            let mut rng = Rng(11);
            let table = drawn_table(&mut rng);
            let conditions = drawn_conditions(&mut rng, table.len());
            let methods: Vec<_> = [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.clone()).collect();
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(conditions.cores, Prior::shipped()) };
            let run = world::run(&table, &conditions, PolicySpec::balance().build(&setup));
            let best = Schedule::best(&table, &conditions.machine(), 16);
            let bound_s = Limits::new(&table).seconds(&conditions.machine());
            (
                run.seconds.to_bits(),
                run.cpu_s.to_bits(),
                run.sent,
                best.seconds.to_bits(),
                best.blocks,
                bound_s.to_bits(),
            )
        };
        assert_eq!(once(), once());
    }
}
