//! The cells of a plan, and the order in which they run.

use std::collections::BTreeMap;

use super::plan::Plan;

/// One value of every axis, in the order of the kind's axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cell(pub(crate) Vec<(String, String)>);

impl Cell {
    pub(crate) fn get(&self, axis: &str) -> &str {
        self.0.iter().find(|a| a.0 == axis).map_or("", |a| &a.1)
    }

    /// The value of an axis as a number. It is valid, because the axes were checked when the plan
    /// was read.
    pub(crate) fn number(&self, axis: &str) -> f64 {
        self.get(axis).parse().unwrap_or(f64::NAN)
    }

    pub(crate) fn with(&self, axis: &str, value: &str) -> Self {
        let changed =
            |(name, old): &(String, String)| (name.clone(), if name == axis { value.to_owned() } else { old.clone() });
        Self(self.0.iter().map(changed).collect())
    }

    pub(crate) fn lies_in(&self, only: &BTreeMap<String, Vec<String>>) -> bool {
        only.iter().all(|(axis, values)| values.iter().any(|v| v == self.get(axis)))
    }

    /// The cell's name, without the axes that have only one value.
    pub(crate) fn name(&self, plan: &Plan) -> String {
        let said = self.0.iter().filter(|(axis, _)| plan.axis(axis).len() > 1);
        let words: Vec<_> = said.map(|(axis, value)| format!("{axis} {value}")).collect();
        if words.is_empty() { "the only cell".into() } else { words.join(", ") }
    }
}

/// All cells: the product of the axes, with the last axis varying fastest.
pub(crate) fn cells(plan: &Plan) -> Vec<Cell> {
    let mut cells = vec![Cell(Vec::new())];
    for axis in plan.kind.kind().axes() {
        let values = plan.axis(axis.name);
        let longer = |cell: &Cell, value: &String| {
            let mut cell = cell.clone();
            cell.0.push((axis.name.to_owned(), value.clone()));
            cell
        };
        cells = cells.iter().flat_map(|c| values.iter().map(move |v| longer(c, v))).collect();
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::tests::SMALL;
    use crate::stats::shuffled;

    #[test]
    fn cells_are_the_product_and_their_order_is_the_same_every_time() {
        let plan = Plan::parse("p", SMALL, false).unwrap();
        let cells = cells(&plan);
        assert_eq!(cells.len(), 4);
        assert_eq!(cells[1].name(&plan), "method lz4fast, cores 24");
        let once = shuffled(4, 3, 1);
        assert_eq!(once, shuffled(4, 3, 1));
        assert_ne!(once, shuffled(4, 3, 2));
        for round in 0..3 {
            let mut of: Vec<_> = once[round * 4..][..4].iter().map(|o| o.1).collect();
            of.sort_unstable();
            assert!(of == [0, 1, 2, 3] && once[round * 4..][..4].iter().all(|o| o.0 == round as u32));
        }
    }
}
