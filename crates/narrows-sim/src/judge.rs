//! Limits for any flow over a table: the bound, the linear program and the best schedule found.

use narrows::codec::Method;
use narrows::oracle::{self, Machine};

use crate::limits::Limits;
use crate::overhead::of_block;
use crate::table::{CLASSES, Table};
use crate::world::Conditions;

/// Longer flows on a link and cores that do not change are judged by the relaxed schedule: a beam
/// search over thousands of blocks takes long and ends near it anyway. Where speeds change the relaxed
/// schedule is no measure: it compresses with the time of later cores what has to leave before.
const BEAM_MAX_LEN: usize = 8 << 20;
const BEAM_CHANGING_MAX_LEN: usize = 64 << 20;

/// Times that can be reached under some conditions, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Possible {
    /// Lower bound over all cuts.
    pub bound: f64,
    /// Time of the linear program over blocks of one length, for the best length: methods are mixed
    /// within a block, order is ignored. Cuts with several block lengths may be faster, by a tenth
    /// where long blocks shrink much better.
    pub relaxed: f64,
    /// Time of the schedule found by the beam search; `relaxed` if it was not run.
    pub oracle: f64,
    /// Whether the beam search was run.
    pub has_oracle: bool,
}

/// Computes the limits over the table's methods; `relaxed` and `oracle` use blocks up to
/// `CLASSES[class_max]`.
pub fn possible(table: &Table, conditions: &Conditions, class_max: usize, beam_width: usize) -> Possible {
    let machine = conditions.machine();
    let bound = Limits::of(table, conditions.len, conditions.block_max).seconds(&machine);
    let relaxed = (1..=class_max).map(|c| relaxed(table, conditions.len, &machine, c)).fold(f64::INFINITY, f64::min);
    let changes = !(machine.link.is_constant() && machine.cpu.is_constant());
    let long = conditions.len > BEAM_MAX_LEN;
    let len_max = if changes { BEAM_CHANGING_MAX_LEN } else { BEAM_MAX_LEN };
    let has_oracle = beam_width > 0 && conditions.len <= len_max;
    if !has_oracle {
        return Possible { bound, relaxed, oracle: relaxed, has_oracle };
    }
    let schedule = |cut: Cut| oracle_seconds(table, conditions.len, &machine, &cut, beam_width);
    // At the length of a long flow the start matters little, and short blocks less.
    let cuts = cuts(class_max).into_iter().take(if long { 1 } else { usize::MAX });
    let oracle = cuts.map(schedule).fold(f64::INFINITY, f64::min);
    Possible { bound, relaxed, oracle, has_oracle }
}

/// Every method that a fixed policy can use: `store`, and those of the table.
pub fn fixed_methods(table: &Table) -> Vec<Method> {
    std::iter::once(Method::STORE).chain(table.methods.iter().copied()).collect()
}

/// Costs of the `index`th block of a class of the repeated table.
fn costs(table: &Table, class: usize, index: usize) -> Vec<oracle::Cost> {
    let blocks = table.blocks(class);
    of_block(CLASSES[class], &blocks[index % blocks.len()], table.methods.len())
}

/// Seconds of the linear program over blocks of one class. The flow's length must be a multiple of
/// the block length.
pub fn relaxed(table: &Table, len: usize, machine: &Machine, class: usize) -> f64 {
    let count = table.blocks(class).len();
    let blocks = len / CLASSES[class];
    let rows: Vec<_> = (0..count.min(blocks)).map(|i| costs(table, class, i)).collect();
    let often = |i: usize| blocks / count + usize::from(i < blocks % count);
    let weighted: Vec<_> = rows.iter().enumerate().map(|(i, r)| (often(i), r.as_slice())).collect();
    oracle::bound(&weighted, machine)
}

/// A way to cut a flow: maps an offset to the class of the block that begins there.
pub(crate) type Cut = Box<dyn Fn(usize) -> usize>;

/// Ways to cut: blocks of one class, or classes growing from the smallest.
pub(crate) fn cuts(class_max: usize) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = vec![Box::new(|_| 2), Box::new(|_| 1)];
    // A class is used from the offset at which one block of it would end.
    cuts.push(Box::new(move |at| (1..=class_max).rev().find(|c| at >= CLASSES[*c]).unwrap_or(0)));
    if class_max > 2 {
        cuts.push(Box::new(|_| 3));
    }
    cuts
}

fn oracle_seconds(table: &Table, len: usize, machine: &Machine, cut: &Cut, width: usize) -> f64 {
    let mut rows = Vec::new();
    let mut at = 0;
    while at < len {
        let class = cut(at);
        rows.push(costs(table, class, at / CLASSES[class]));
        at += CLASSES[class];
    }
    let blocks: Vec<_> = rows.iter().map(Vec::as_slice).collect();
    oracle::beam(&blocks, machine, width).seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::drawn_conditions;
    use crate::rng::Rng;
    use crate::table::example;
    use crate::world;
    use narrows::block::Block;
    use narrows::monitor::cost::Prior;
    use narrows::oracle::Speed;
    use narrows::policy::{PolicySetup, PolicySpec};

    /// The example table with random bytes: zeros would be sent as `constant`, which leaves nothing
    /// to judge.
    fn noisy() -> Table {
        let mut table = example();
        let mut rng = Rng(1);
        table.bytes = Block::from_vec((0..table.len()).map(|_| rng.next_u64() as u8).collect());
        table
    }

    #[test]
    fn nothing_beats_the_bound_and_the_oracle_comes_near() {
        let table = noisy();
        let one = Speed::constant(1.0);
        for (rate_mbit, cores) in [(10.0, 1), (1000.0, 4), (10_000.0, 1)] {
            let conditions = Conditions {
                len: 1 << 20,
                cores,
                decoders: 4,
                link: Speed::constant(rate_mbit * 125_000.0),
                cpu: one.clone(),
                receiver: one.clone(),
                block_max: 128 << 10,
                decision_ns: 0.0,
                seed: 1,
                trace: false,
                expected_link: None,
            };
            let now = possible(&table, &conditions, 2, 16);
            assert!(now.bound <= now.oracle && now.bound <= now.relaxed && now.oracle < 1.6 * now.bound, "{now:?}");
            let larger = possible(&table, &conditions, 3, 16);
            assert!(larger.bound == now.bound && larger.relaxed <= now.relaxed && larger.oracle <= now.oracle);
        }
    }

    /// Flows of a part of a table, of the whole and of its repetition, under changing speeds.
    #[test]
    fn no_schedule_and_no_run_of_any_length_beats_the_bound() {
        let mut rng = Rng(21);
        let methods = [Method::STORE, Method::CONSTANT, Method::lz4_accel(1), Method::zstd(3)];
        for seed in 0..12 {
            let table = if seed % 4 == 0 { example() } else { noisy() };
            let conditions = drawn_conditions(&mut rng, table.len());
            let len = CLASSES[3] << rng.below(4);
            let half_s = 0.5 * relaxed(&table, len, &conditions.machine(), 2);
            let link = Speed::steps(&[(0.0, conditions.link.at(0.0)), (half_s, 3.0 * conditions.link.at(0.0))]);
            let conditions = Conditions { len, link, ..conditions };
            let now = possible(&table, &conditions, 3, 8);
            assert!(now.bound <= now.oracle * (1.0 + 1e-9), "seed {seed}: {now:?}");
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(conditions.cores, Prior::shipped()) };
            for spec in ["fixed:store", "fixed:lz4", "fixed:zstd", "fixed:constant", "balance"] {
                let run = world::run(&table, &conditions, spec.parse::<PolicySpec>().unwrap().build(&setup));
                let bound_s = now.bound * (1.0 - 1e-9) - 1e-9;
                assert!(
                    run.seconds >= bound_s,
                    "seed {seed}, {spec}: {} against {bound_s}, {conditions:?}",
                    run.seconds
                );
            }
        }
    }

    #[test]
    fn a_plan_cuts_the_whole_length_on_the_grid() {
        for cut in cuts(3) {
            let (mut at, mut count) = (0, 0);
            while at < 1 << 20 {
                let len = CLASSES[cut(at)];
                assert!(at.is_multiple_of(len));
                at += len;
                count += 1;
            }
            assert!(at == 1 << 20 && count <= 32);
        }
    }
}
