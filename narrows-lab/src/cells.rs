//! One cell of the grid: a pool, a length, a link, cores, and what changes on the way; and what is possible in it.

use std::str::FromStr;

use narrows::codec::Method;
use narrows::oracle::{self, Machine, Speed};

use crate::table::{CLASSES, STORE_NS_PER_BYTE, Table};
use crate::units::Rng;
use crate::world::{DECODE_FIXED_NS, ENCODE_FIXED_NS, HEADER_LEN, Plan};

/// Decoding cores, unless the scenario says otherwise.
const DECODERS: usize = 4;
/// Longer flows are judged by the bound: a beam over thousands of blocks takes long and ends near the bound anyway.
const BEAM_MAX_LEN: usize = 8 << 20;
/// Steps of a speed that changes; enough for a transfer that takes many times as long as it should.
const STEPS: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Flat,
    Up10,
    Down10,
    Square,
    Jitter,
    Cpu3,
    Slowrx,
    Slowrx3,
}

/// Names as on the command line, and what they mean.
pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("flat", Scenario::Flat),
    ("up10", Scenario::Up10),
    ("down10", Scenario::Down10),
    ("square", Scenario::Square),
    ("jitter", Scenario::Jitter),
    ("cpu3", Scenario::Cpu3),
    ("slowrx", Scenario::Slowrx),
    ("slowrx3", Scenario::Slowrx3),
];

impl FromStr for Scenario {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = || SCENARIOS.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
        SCENARIOS.iter().find(|n| n.0 == s).map(|n| n.1).ok_or_else(|| format!("there are {}", known()))
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = SCENARIOS.iter().find(|n| n.1 == *self).map_or("", |n| n.0);
        f.write_str(name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// Index of the table.
    pub(crate) table: usize,
    pub(crate) rate_mbit: f64,
    pub(crate) cores: usize,
    pub(crate) len: usize,
    pub(crate) scenario: Scenario,
}

/// What can be reached in a cell, seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Possible {
    pub(crate) bound: f64,
    /// Of the beam search; the bound where it was not run.
    pub(crate) oracle: f64,
    pub(crate) has_oracle: bool,
}

impl Cell {
    fn rate(&self) -> f64 {
        self.rate_mbit * 125_000.0
    }

    /// The world of this cell. Changes happen at fixed shares of the time that the average link would need.
    pub(crate) fn plan(&self, table: &Table, decision_ns: f64, block_max: usize) -> Plan {
        let rate = self.rate();
        let one = Speed::constant(1.0);
        let mut plan = Plan {
            len: self.len,
            cores: self.cores,
            decoders: DECODERS,
            link: Speed::constant(rate),
            cpu: one.clone(),
            receiver: one,
            block_max,
            decision_ns,
            seed: 1,
            trace: false,
        };
        let half = 10f64.sqrt();
        let (low, high) = (rate / half, rate * half);
        let whole_s = || bound(table, self.len, &machine(&plan), 2);
        match self.scenario {
            Scenario::Flat => {}
            Scenario::Up10 => plan.link = Speed::steps(&[(0.0, low), (0.8 * whole_s(), high)]),
            Scenario::Down10 => plan.link = Speed::steps(&[(0.0, high), (0.15 * whole_s(), low)]),
            Scenario::Square => plan.link = alternate(0.25 * whole_s(), high, low),
            Scenario::Cpu3 => plan.cpu = alternate(0.3 * whole_s(), 1.0, 0.33),
            Scenario::Jitter => plan.link = jitter((whole_s() / 200.0).max(0.002), rate),
            Scenario::Slowrx => (plan.receiver, plan.decoders) = (Speed::constant(0.1), 1),
            Scenario::Slowrx3 => (plan.receiver, plan.decoders) = (Speed::constant(0.3), 1),
        }
        plan
    }

    /// Bound and oracle over the methods of the table and blocks up to `CLASSES[class_max]`.
    pub(crate) fn possible(&self, table: &Table, plan: &Plan, class_max: usize, beam_width: usize) -> Possible {
        let machine = machine(plan);
        let bound = (1..=class_max).map(|c| bound(table, self.len, &machine, c)).fold(f64::INFINITY, f64::min);
        let has_oracle = beam_width > 0 && self.len <= BEAM_MAX_LEN;
        if !has_oracle {
            return Possible { bound, oracle: bound, has_oracle };
        }
        let schedule = |plan: Cut| oracle_seconds(table, self.len, &machine, &plan, beam_width);
        let oracle = plans(class_max).into_iter().map(schedule).fold(f64::INFINITY, f64::min);
        Possible { bound, oracle, has_oracle }
    }
}

fn machine(plan: &Plan) -> Machine {
    Machine {
        cores: plan.cores,
        decoders: plan.decoders,
        link: plan.link.clone(),
        cpu: plan.cpu.clone(),
        receiver: plan.receiver.clone(),
    }
}

fn alternate(period_s: f64, first: f64, second: f64) -> Speed {
    let steps: Vec<_> =
        (0..STEPS).map(|i| (i as f64 * period_s, if i.is_multiple_of(2) { first } else { second })).collect();
    Speed::steps(&steps)
}

/// Log-normal noise of sigma 0.3 around the rate.
fn jitter(period_s: f64, rate: f64) -> Speed {
    let mut rng = Rng(99);
    let steps: Vec<_> =
        (0..4 * STEPS).map(|i| (i as f64 * period_s, rate * (0.3 * rng.normal() - 0.045).exp())).collect();
    Speed::steps(&steps)
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
    let decode = |c: &crate::table::Cost| if c.wire_len < n { c.decode_ns } else { store_ns };
    std::iter::once(cost(store_ns, n, store_ns))
        .chain(measured.map(|c| cost(c.encode_ns, c.wire_len, decode(c))))
        .collect()
}

fn bound(table: &Table, len: usize, machine: &Machine, class: usize) -> f64 {
    let count = table.blocks(class).len();
    let blocks = len / CLASSES[class];
    let rows: Vec<_> = (0..count.min(blocks)).map(|i| costs(table, class, i)).collect();
    let often = |i: usize| blocks / count + usize::from(i < blocks % count);
    let weighted: Vec<_> = rows.iter().enumerate().map(|(i, r)| (often(i), r.as_slice())).collect();
    oracle::bound(&weighted, machine)
}

/// Class of the block at an offset.
type Cut = Box<dyn Fn(usize) -> usize>;

/// Ways to cut: all blocks alike, or growing from the smallest.
fn plans(class_max: usize) -> Vec<Cut> {
    let mut plans: Vec<Cut> = vec![Box::new(|_| 2), Box::new(|_| 1)];
    // A block of a class begins where the class below has filled it once.
    plans.push(Box::new(move |at| (1..=class_max).rev().find(|c| at >= CLASSES[*c]).unwrap_or(0)));
    if class_max > 2 {
        plans.push(Box::new(|_| 3));
    }
    plans
}

fn oracle_seconds(table: &Table, len: usize, machine: &Machine, plan: &Cut, width: usize) -> f64 {
    let mut rows = Vec::new();
    let mut at = 0;
    while at < len {
        let class = plan(at);
        rows.push(costs(table, class, at / CLASSES[class]));
        at += CLASSES[class];
    }
    let blocks: Vec<_> = rows.iter().map(Vec::as_slice).collect();
    oracle::beam(&blocks, machine, width).seconds
}

/// Every method that a fixed policy can stand for in a cell.
pub(crate) fn fixed_methods(table: &Table) -> Vec<Method> {
    std::iter::once(Method::STORE).chain(table.methods.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::small_table;

    #[test]
    fn scenarios_read_as_they_print() {
        for (name, scenario) in SCENARIOS {
            assert_eq!(name.parse(), Ok(*scenario));
            assert_eq!(scenario.to_string(), *name);
        }
        assert!("sideways".parse::<Scenario>().is_err());
    }

    #[test]
    fn nothing_beats_the_bound_and_the_oracle_comes_near() {
        let table = small_table();
        for (rate_mbit, cores) in [(10.0, 1), (1000.0, 4), (10_000.0, 1)] {
            let cell = Cell { table: 0, rate_mbit, cores, len: 1 << 20, scenario: Scenario::Flat };
            let plan = cell.plan(&table, 0.0, 128 << 10);
            let possible = cell.possible(&table, &plan, 2, 16);
            // The bound is of each length alone, a plan may mix them: the table's blocks differ a little by length.
            assert!(possible.bound <= 1.05 * possible.oracle && possible.oracle < 1.6 * possible.bound, "{possible:?}");
            let larger = cell.possible(&table, &plan, 3, 16);
            assert!(larger.bound <= possible.bound && larger.oracle <= possible.oracle);
        }
    }

    #[test]
    fn a_plan_cuts_the_whole_length_on_the_grid() {
        for plan in plans(3) {
            let (mut at, mut cuts) = (0, 0);
            while at < 1 << 20 {
                let len = CLASSES[plan(at)];
                assert!(at.is_multiple_of(len));
                at += len;
                cuts += 1;
            }
            assert!(at == 1 << 20 && cuts <= 32);
        }
    }
}
