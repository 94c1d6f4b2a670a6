//! The best schedule found for the whole of a table: T*.

use narrows::codec::Method;
use narrows::monitor::data::is_constant;
use narrows::oracle::{self, Cost, Machine};
use narrows_classic::Planned;

use crate::judge::{Cut, cuts};
use crate::overhead::{of_block, of_constant};
use crate::table::{CLASSES, Table};

/// Blocks with their methods, and their cost.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// Time until the last byte is delivered.
    pub seconds: f64,
    /// Bytes on the wire.
    pub wire_len: f64,
    /// CPU seconds of encoding, over all cores.
    pub encode_s: f64,
    /// CPU seconds of decoding, over all cores.
    pub decode_s: f64,
    /// Every block.
    pub blocks: Vec<Planned>,
    /// Seconds of encoding of every block.
    pub encode_each_s: Vec<f64>,
}

impl Schedule {
    /// The quickest of the schedules that a beam search of this width finds for several ways to
    /// cut, and of each method alone.
    pub fn best(table: &Table, machine: &Machine, width: usize) -> Self {
        let found = cuts(CLASSES.len() - 1).into_iter().flat_map(|cut| {
            let blocks = Blocks::of(table, &cut);
            let rows: Vec<_> = blocks.costs.iter().map(Vec::as_slice).collect();
            let by_beam = oracle::beam(&rows, machine, width).choices;
            let alone = (0..=table.columns()).map(|m| vec![m as u8; rows.len()]);
            let quickest = alone.chain([by_beam]).map(|choices| (oracle::play(&rows, &choices, machine), choices));
            let quickest = quickest.min_by(|a, b| a.0.total_cmp(&b.0));
            quickest.map(|(seconds, choices)| blocks.schedule(table, seconds, &choices))
        });
        let none =
            Self { seconds: 0.0, wire_len: 0.0, encode_s: 0.0, decode_s: 0.0, blocks: vec![], encode_each_s: vec![] };
        found.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap_or(none)
    }
}

/// A whole table, cut in one way.
struct Blocks {
    lens: Vec<usize>,
    /// By block: costs of `store`, of every method of the table, and of `constant` where possible.
    costs: Vec<Vec<Cost>>,
}

impl Blocks {
    fn of(table: &Table, cut: &Cut) -> Self {
        let (mut lens, mut costs) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < table.len() {
            let class = cut(at);
            let index = at / CLASSES[class];
            let block = table.block(class, index);
            let mut row = of_block(block.len(), &table.blocks(class)[index], table.methods.len());
            row.extend(is_constant(block).then(|| of_constant(block.len())));
            costs.push(row);
            lens.push(block.len());
            at += block.len();
        }
        Self { lens, costs }
    }

    fn schedule(&self, table: &Table, seconds: f64, choices: &[u8]) -> Schedule {
        let chosen = || self.costs.iter().zip(choices).map(|(costs, choice)| &costs[usize::from(*choice)]);
        let planned = |(raw_len, choice): (&usize, &u8)| {
            let (method, history_len) = match usize::from(*choice) {
                0 => (Method::STORE, 0),
                m if m <= table.columns() => table.column(m - 1),
                _ => (Method::CONSTANT, 0),
            };
            Planned { linked: history_len > 0, history_len, ..Planned::alone(*raw_len, method) }
        };
        Schedule {
            seconds,
            wire_len: chosen().map(|c| c.wire_len).sum(),
            encode_s: chosen().map(|c| c.encode_s).sum(),
            decode_s: chosen().map(|c| c.decode_s).sum(),
            blocks: self.lens.iter().zip(choices).map(planned).collect(),
            encode_each_s: chosen().map(|c| c.encode_s).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{drawn_conditions, drawn_table};
    use crate::rng::Rng;

    #[test]
    fn a_schedule_is_of_the_whole_data_and_no_worse_than_one_method() {
        let mut rng = Rng(3);
        for _ in 0..20 {
            let table = drawn_table(&mut rng);
            let machine = drawn_conditions(&mut rng, table.len()).machine();
            let best = Schedule::best(&table, &machine, 8);
            assert_eq!(best.blocks.iter().map(|b| b.raw_len).sum::<usize>(), table.len());
            assert!(best.encode_each_s.len() == best.blocks.len());
            let raw = Blocks::of(&table, &cuts(3)[0]);
            let rows: Vec<_> = raw.costs.iter().map(Vec::as_slice).collect();
            assert!(best.seconds <= oracle::play(&rows, &vec![0; rows.len()], &machine));
        }
    }
}
