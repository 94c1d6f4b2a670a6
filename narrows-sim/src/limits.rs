//! What no schedule can beat, whatever its cuts: every piece of the data at the price of the best measured block that it
//! lies in.

use narrows::oracle::{self, Cost, Machine};

use crate::table::{CLASSES, STORE_NS_PER_BYTE, Table};
use crate::world::{DECODE_FIXED_NS, ENCODE_FIXED_NS, HEADER_LEN};

const PIECE: usize = CLASSES[0];
/// No block is longer, so that no byte has a smaller share of what every block costs.
const LONGEST: usize = CLASSES[CLASSES.len() - 1];
/// Lengths on the wire are whole bytes: a block may have half a byte less than its table says.
const ROUNDED: f64 = 0.5;

/// The least of each kind that the blocks of a table need, cut in any way into blocks up to the longest class.
///
/// A cut costs at least the sum over its pieces of the cheapest measured block around each, for any prices: a cut of the
/// table is put together from parts of those blocks. So the linear program over pieces bounds every run over the table.
pub struct Limits {
    /// By piece: what it may cost, without what is beaten in everything.
    pieces: Vec<Vec<Cost>>,
}

impl Limits {
    pub fn new(table: &Table) -> Self {
        let count = table.len().div_ceil(PIECE);
        Self { pieces: (0..count).map(|i| front(&costs(table, i))).collect() }
    }

    /// Seconds until the last byte is delivered, at least.
    pub fn seconds(&self, machine: &Machine) -> f64 {
        let weighted: Vec<_> = self.pieces.iter().map(|p| (1, p.as_slice())).collect();
        oracle::bound(&weighted, machine)
    }

    /// Bytes on the wire, at least.
    pub fn wire_len(&self) -> f64 {
        self.least(|c| c.wire_len)
    }

    /// Seconds of encoding, at least.
    pub fn encode_s(&self) -> f64 {
        self.least(|c| c.encode_s)
    }

    fn least(&self, of: fn(&Cost) -> f64) -> f64 {
        self.pieces.iter().map(|p| p.iter().map(of).fold(f64::INFINITY, f64::min)).sum()
    }
}

/// Every cost that a piece can have as a part of a measured block.
fn costs(table: &Table, index: usize) -> Vec<Cost> {
    let piece = table.block(0, index);
    let n = piece.len() as f64;
    let share = n / LONGEST.min(table.len()) as f64;
    let cost = |encode_ns: f64, wire_len: f64, decode_ns: f64| Cost {
        encode_s: (encode_ns + share * ENCODE_FIXED_NS) * 1e-9,
        wire_len: wire_len + share * (HEADER_LEN - ROUNDED),
        decode_s: (decode_ns + share * DECODE_FIXED_NS) * 1e-9,
    };
    let store_ns = n * STORE_NS_PER_BYTE;
    let mut all = vec![cost(store_ns, n, store_ns)];
    if is_constant(piece) {
        all.push(cost(store_ns, share, store_ns));
    }
    for class in 0..CLASSES.len() {
        let parts = (0..table.methods.len()).map(|m| table.part(class, index, m));
        all.extend(parts.map(|c| cost(c.encode_ns, c.wire_len, c.decode_ns)));
    }
    all
}

/// Whether one byte is repeated.
pub(crate) fn is_constant(block: &[u8]) -> bool {
    block.first().is_some_and(|first| block.iter().all(|b| b == first))
}

/// What nothing else is at least as good as in everything: for no prices is another one the cheapest.
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
    use crate::examples::{drawn_plan, drawn_table};
    use crate::rng::Rng;
    use crate::schedule::Schedule;
    use crate::world;
    use narrows::codec::Method;
    use narrows::monitor::cost::Prior;
    use narrows::policy::{PolicySetup, PolicySpec};

    #[test]
    fn a_front_keeps_what_some_prices_choose() {
        let cost = |encode_s, wire_len, decode_s| Cost { encode_s, wire_len, decode_s };
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
            let plan = drawn_plan(&mut rng, table.len());
            let limits = Limits::new(&table);
            // The clock counts whole nanoseconds.
            let bound_s = limits.seconds(&plan.machine()) * (1.0 - 1e-9) - 1e-9;
            let best = Schedule::best(&table, &plan.machine(), 16);
            assert!(best.seconds >= bound_s, "seed {seed}: {} against {bound_s}, {plan:?}", best.seconds);
            assert!(best.wire_len >= limits.wire_len() - 1e-6 && best.encode_s >= limits.encode_s() - 1e-12);
            tightest = tightest.min(best.seconds / bound_s);
            let methods: Vec<_> = [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.clone()).collect();
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(plan.cores, Prior::shipped()) };
            let fixed = methods.iter().filter(|m| **m != Method::CONSTANT);
            let specs = fixed.map(|m| PolicySpec::Fixed { method: *m, linked: false }).chain([PolicySpec::Balance]);
            for spec in specs {
                let run = world::run(&table, &plan, spec.build(&setup));
                assert!(run.seconds >= bound_s, "seed {seed}, {spec}: {} against {bound_s}, {plan:?}", run.seconds);
                assert!(
                    run.summary.wire_bytes as f64 >= limits.wire_len()
                        && run.work_s() >= limits.encode_s() * (1.0 - 1e-9)
                );
                tightest = tightest.min(run.seconds / bound_s);
            }
        }
        assert!(tightest < 1.05, "a bound that nothing comes near says nothing: {tightest}");
    }

    #[test]
    fn the_same_seed_gives_the_same_result_bit_for_bit() {
        let once = || {
            let mut rng = Rng(11);
            let table = drawn_table(&mut rng);
            let plan = drawn_plan(&mut rng, table.len());
            let methods: Vec<_> = [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.clone()).collect();
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(plan.cores, Prior::shipped()) };
            let run = world::run(&table, &plan, PolicySpec::Balance.build(&setup));
            let best = Schedule::best(&table, &plan.machine(), 16);
            let bound_s = Limits::new(&table).seconds(&plan.machine());
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
