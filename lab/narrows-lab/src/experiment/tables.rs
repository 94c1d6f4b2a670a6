//! Tables of a plan: two axes, with the value or text of the cells in each field.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::plan::{Axes, Plan};
use super::summary::{Figures, short};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) rows: String,
    pub(crate) columns: String,
    /// Name of a number or a text of the samples.
    value: String,
    #[serde(default, rename = "where")]
    only: BTreeMap<String, Axes>,
    pub(crate) caption: String,
}

/// Shown for a cell without the value because it failed.
const FAILED: &str = "**failed**";

impl Table {
    pub(crate) fn axes(&self) -> impl Iterator<Item = &String> {
        [&self.rows, &self.columns].into_iter().chain(self.only.keys())
    }

    /// The names of the columns, the rows with their names, and the number of occurrences of each
    /// text.
    pub(crate) fn fill(&self, plan: &Plan, figures: &Figures) -> Filled {
        let columns = plan.axis(&self.columns);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut rows = Vec::new();
        for row in plan.axis(&self.rows) {
            let mut fields = vec![row.clone()];
            for column in &columns {
                let mut only: BTreeMap<String, Vec<String>> =
                    self.only.iter().map(|(axis, values)| (axis.clone(), values.list())).collect();
                only.insert(self.rows.clone(), vec![row.clone()]);
                only.insert(self.columns.clone(), vec![column.clone()]);
                let said = self.said(figures, &only);
                for word in &said {
                    // Text after a colon concerns only this cell, so it is not part of the key.
                    let kind = word.split(':').next().unwrap_or_default().replace("**", "");
                    if kind.parse::<f64>().is_err() {
                        *counts.entry(kind).or_default() += 1;
                    }
                }
                let different: BTreeSet<String> = said.into_iter().collect();
                fields.push(different.into_iter().collect::<Vec<_>>().join("; "));
            }
            rows.push(fields);
        }
        let counts: Vec<_> = counts.into_iter().map(|(word, n)| format!("{n} {word}")).collect();
        Filled { head: std::iter::once(self.rows.clone()).chain(columns).collect(), rows, counts: counts.join(", ") }
    }

    fn said(&self, figures: &Figures, only: &BTreeMap<String, Vec<String>>) -> Vec<String> {
        let mut said = Vec::new();
        for (cell, numbers) in figures.cells.iter().filter(|(cell, _)| cell.lies_in(only)) {
            let word = figures.runs.iter().find(|r| r.0 == *cell).and_then(|r| r.1.words.get(&self.value));
            if figures.failed.iter().any(|f| f.0 == *cell) {
                said.push(FAILED.to_owned());
            } else if let Some(number) = numbers.get(&self.value) {
                said.push(short(number.median));
            } else {
                said.push(word.map_or("-".to_owned(), Clone::clone));
            }
        }
        said
    }
}

pub(crate) struct Filled {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) counts: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;
    use crate::experiment::samples::{Sample, Values};

    #[test]
    fn a_field_says_what_its_cells_say() {
        let text =
            format!("{SMALL}[[table]]\nrows = \"method\"\ncolumns = \"cores\"\nvalue = \"result\"\ncaption = \"c\"\n");
        let plan = Plan::parse("p", &text, false).unwrap();
        let cells = cells(&plan);
        let word = |word: &str| {
            let mut values = Values::default();
            values.words.insert("result".into(), word.into());
            Ok(values)
        };
        let outcomes = [word("right"), word("not installed: x"), Err("it rained".into())];
        let sample = |(cell, outcome): (&_, _)| Sample { cell: Clone::clone(cell), round: 0, outcome };
        let samples: Vec<_> = cells.iter().zip(outcomes).map(sample).collect();
        let filled = plan.table[0].fill(&plan, &Figures::of(&plan, &cells, &samples));
        assert_eq!(filled.head, ["method", "1", "24"]);
        assert_eq!(filled.rows, [["lz4fast", "right", "not installed: x"], ["zstd", "**failed**", "-"]]);
        assert_eq!(filled.counts, "1 -, 1 failed, 1 not installed, 1 right");
    }
}
