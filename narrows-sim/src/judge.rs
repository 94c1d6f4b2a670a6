//! What is possible: the bound and the best schedule found, over the measured blocks of a table.

use narrows::codec::Method;
use narrows::oracle::{self, Machine};

use crate::table::{self, CLASSES, STORE_NS_PER_BYTE, Table};
use crate::world::{DECODE_FIXED_NS, ENCODE_FIXED_NS, HEADER_LEN, Plan};

/// Longer flows are judged by the bound: a beam over thousands of blocks takes long and ends near the bound anyway.
const BEAM_MAX_LEN: usize = 8 << 20;

/// What can be reached with a plan, seconds.
#[derive(Debug, Clone, Copy)]
pub struct Possible {
    pub bound: f64,
    /// Of the beam search; the bound where it was not run.
    pub oracle: f64,
    pub has_oracle: bool,
}

/// Bound and oracle over the methods of the table and blocks up to `CLASSES[class_max]`.
pub fn possible(table: &Table, plan: &Plan, class_max: usize, beam_width: usize) -> Possible {
    let machine = plan.machine();
    let bound = (1..=class_max).map(|c| bound(table, plan.len, &machine, c)).fold(f64::INFINITY, f64::min);
    let has_oracle = beam_width > 0 && plan.len <= BEAM_MAX_LEN;
    if !has_oracle {
        return Possible { bound, oracle: bound, has_oracle };
    }
    let schedule = |cut: Cut| oracle_seconds(table, plan.len, &machine, &cut, beam_width);
    let oracle = cuts(class_max).into_iter().map(schedule).fold(f64::INFINITY, f64::min);
    Possible { bound, oracle, has_oracle }
}

/// Every method that a fixed policy can stand for: `store`, and those of the table.
pub fn fixed_methods(table: &Table) -> Vec<Method> {
    std::iter::once(Method::STORE).chain(table.methods.iter().copied()).collect()
}

/// Costs of the `index`th block of a class, `store` first, then the methods of the table.
fn costs(table: &Table, class: usize, index: usize) -> Vec<oracle::Cost> {
    let n = CLASSES[class] as f64;
    let cost = |encode_ns: f64, wire_len: f64, decode_ns: f64| oracle::Cost {
        encode_s: (encode_ns + ENCODE_FIXED_NS) * 1e-9,
        wire_len: wire_len + HEADER_LEN,
        decode_s: (decode_ns + DECODE_FIXED_NS) * 1e-9,
    };
    let store_ns = n * STORE_NS_PER_BYTE;
    let blocks = table.blocks(class);
    let measured = blocks[index % blocks.len()].iter();
    let decode = |c: &table::Cost| if c.wire_len < n { c.decode_ns } else { store_ns };
    std::iter::once(cost(store_ns, n, store_ns))
        .chain(measured.map(|c| cost(c.encode_ns, c.wire_len, decode(c))))
        .collect()
}

/// The bound over blocks of one class.
pub fn bound(table: &Table, len: usize, machine: &Machine, class: usize) -> f64 {
    let count = table.blocks(class).len();
    let blocks = len / CLASSES[class];
    let rows: Vec<_> = (0..count.min(blocks)).map(|i| costs(table, class, i)).collect();
    let often = |i: usize| blocks / count + usize::from(i < blocks % count);
    let weighted: Vec<_> = rows.iter().enumerate().map(|(i, r)| (often(i), r.as_slice())).collect();
    oracle::bound(&weighted, machine)
}

/// Class of the block at an offset.
pub(crate) type Cut = Box<dyn Fn(usize) -> usize>;

/// Ways to cut: all blocks alike, or growing from the smallest.
pub(crate) fn cuts(class_max: usize) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = vec![Box::new(|_| 2), Box::new(|_| 1)];
    // A block of a class begins where the class below has filled it once.
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
    use crate::table::example;
    use narrows::oracle::Speed;

    #[test]
    fn nothing_beats_the_bound_and_the_oracle_comes_near() {
        let table = example();
        let one = Speed::constant(1.0);
        for (rate_mbit, cores) in [(10.0, 1), (1000.0, 4), (10_000.0, 1)] {
            let plan = Plan {
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
            };
            let now = possible(&table, &plan, 2, 16);
            // The bound is of each length alone, a plan may mix them: the table's blocks differ a little by length.
            assert!(now.bound <= 1.05 * now.oracle && now.oracle < 1.6 * now.bound, "{now:?}");
            let larger = possible(&table, &plan, 3, 16);
            assert!(larger.bound <= now.bound && larger.oracle <= now.oracle);
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
