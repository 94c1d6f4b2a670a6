//! Computes figures from samples: every value of every cell, comparisons paired by round, worst
//! cells, and the published points.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use serde_json::{Value, json};

use super::cells::Cell;
use super::plan::{Form, Plan, Published, Take};
use super::samples::{Sample, Values};
use crate::stats::Summary;

/// The figures of one plan.
pub(crate) struct Figures {
    pub(crate) cells: Vec<(Cell, BTreeMap<String, Summary>)>,
    /// The newest values of each cell with series or texts.
    pub(crate) runs: Vec<(Cell, Values)>,
    pub(crate) failed: Vec<(Cell, u32, String)>,
    pub(crate) missing: usize,
    pub(crate) samples: usize,
}

/// A published point compared with our value.
pub(crate) struct Point<'a> {
    pub(crate) published: &'a Published,
    pub(crate) ours: Option<f64>,
    pub(crate) agrees: Option<bool>,
}

impl Point<'_> {
    pub(crate) fn verdict(&self) -> &'static str {
        match self.agrees {
            Some(true) => "agrees",
            Some(false) => "differs",
            None => "not measured",
        }
    }

    pub(crate) fn says(&self) -> String {
        let p = self.published;
        let part = |word: &str, value: Option<f64>| value.map(|v| format!("{word}{}", short(v)));
        let parts = [part("", p.says), part("at least ", p.at_least), part("at most ", p.at_most)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Figures {
    pub(crate) fn of(plan: &Plan, cells: &[Cell], samples: &[Sample]) -> Self {
        // Of each cell and round only the newest outcome counts.
        let mut numbers: HashMap<(&Cell, u32), &BTreeMap<String, f64>> = HashMap::new();
        let mut newest: HashMap<&Cell, &Values> = HashMap::new();
        let mut failed = BTreeMap::new();
        for sample in samples {
            match &sample.outcome {
                Ok(values) => {
                    numbers.insert((&sample.cell, sample.round), &values.numbers);
                    failed.remove(&(&sample.cell, sample.round));
                    newest.insert(&sample.cell, values);
                }
                Err(error) => {
                    failed.insert((&sample.cell, sample.round), error);
                }
            }
        }
        let value =
            |cell: &Cell, round: u32, name: &str| numbers.get(&(cell, round)).and_then(|n| n.get(name)).copied();
        let rounds = || 0..plan.rounds.max(samples.iter().map(|s| s.round + 1).max().unwrap_or(0));
        let mut figures = Vec::with_capacity(cells.len());
        for cell in cells {
            let names: BTreeSet<&String> =
                rounds().filter_map(|r| numbers.get(&(cell, r))).flat_map(|n| n.keys()).collect();
            let mut values = BTreeMap::new();
            for name in names {
                let all: Vec<f64> = rounds().filter_map(|r| value(cell, r, name)).collect();
                values.extend(Summary::of(&all).map(|s| (name.clone(), s)));
            }
            for compare in &plan.compare {
                let base = cell.with(&compare.axis, &compare.to());
                let paired = rounds().filter_map(|r| {
                    let (this, other) = (value(cell, r, &compare.value)?, value(&base, r, &compare.value)?);
                    Some(match compare.form {
                        Form::OtherOverThis => other / this,
                        Form::ThisOverOther => this / other,
                        Form::Change => this / other - 1.0,
                    })
                });
                values.extend(Summary::of(&paired.collect::<Vec<_>>()).map(|s| (compare.name.clone(), s)));
            }
            figures.push((cell.clone(), values));
        }
        let runs = cells.iter().filter_map(|c| Some((c.clone(), (*newest.get(c)?).clone()))).collect();
        let wanted = cells.len() * plan.rounds as usize;
        Self {
            missing: wanted.saturating_sub(numbers.keys().filter(|k| k.1 < plan.rounds).count() + failed.len()),
            samples: numbers.len(),
            failed: failed.into_iter().map(|((c, r), e)| (c.clone(), r, e.clone())).collect(),
            cells: figures,
            runs,
        }
    }

    /// Combines the medians of a value in these cells into one number.
    pub(crate) fn take(&self, value: &str, only: &BTreeMap<String, Vec<String>>, take: Take) -> Option<f64> {
        let of = self.cells.iter().filter(|(c, _)| c.lies_in(only));
        take.of(&of.filter_map(|(_, v)| v.get(value)).map(|s| s.median).collect::<Vec<_>>())
    }

    pub(crate) fn points<'a>(&self, plan: &'a Plan) -> Vec<Point<'a>> {
        let point = |published: &'a Published| {
            let ours = self.take(&published.value, &published.at(), published.take);
            let within = |says: f64| published.within.unwrap_or(published.tolerance * says.abs());
            let near = |x: f64, says: f64| (x - says).abs() <= within(says);
            let holds = |x: f64| {
                published.says.is_none_or(|s| near(x, s))
                    && published.at_least.is_none_or(|s| x >= s)
                    && published.at_most.is_none_or(|s| x <= s)
            };
            Point { published, ours, agrees: ours.map(holds) }
        };
        plan.published.iter().map(point).collect()
    }

    /// The cells in which a value is least, or greatest, by name.
    pub(crate) fn worst(&self, plan: &Plan, which: &super::plan::Worst) -> Vec<(String, Summary)> {
        let only = which.only();
        let of = self.cells.iter().filter(|(c, _)| c.lies_in(&only));
        let mut all: Vec<_> = of.filter_map(|(c, v)| Some((c.name(plan), *v.get(&which.value)?))).collect();
        let way = if which.greatest { -1.0 } else { 1.0 };
        all.sort_by(|a, b| (way * a.1.median).total_cmp(&(way * b.1.median)));
        all.truncate(which.count);
        all
    }

    pub(crate) fn json(&self, plan: &Plan, about: &Value) -> String {
        let cell = |(cell, values): &(Cell, BTreeMap<String, Summary>)| {
            let axes: serde_json::Map<_, _> = cell.0.iter().map(|(a, v)| (a.clone(), v.clone().into())).collect();
            let values: serde_json::Map<_, _> = values.iter().map(|(k, s)| (k.clone(), s.json())).collect();
            json!({ "cell": axes, "values": values })
        };
        let points: Vec<_> = self
            .points(plan)
            .iter()
            .map(|p| {
                let f = p.published;
                json!({ "what": f.what, "value": f.value, "says": f.says, "at_least": f.at_least, "at_most": f.at_most,
                    "tolerance": f.tolerance, "within": f.within, "ours": p.ours, "verdict": p.verdict(), "why": f.why })
            })
            .collect();
        let worst: Vec<_> = plan
            .worst
            .iter()
            .map(|w| {
                let cells: Vec<_> =
                    self.worst(plan, w).iter().map(|(n, s)| json!({ "cell": n, "median": s.median })).collect();
                json!({ "value": w.value, "greatest": w.greatest, "cells": cells })
            })
            .collect();
        let failed: Vec<_> =
            self.failed.iter().map(|(c, r, e)| json!({ "cell": c.name(plan), "round": r, "error": e })).collect();
        let all = json!({
            "about": about, "title": plan.title, "seed": plan.publication, "figure": plan.figure,
            "samples": self.samples, "missing": self.missing, "failed": failed, "published": points, "worst": worst,
            "cells": self.cells.iter().map(cell).collect::<Vec<_>>(),
        });
        all.to_string() + "\n"
    }

    pub(crate) fn markdown(&self, plan: &Plan, about: &Value) -> String {
        let mut text = format!("# {}\n\n{}. {}\n\n", plan.title, plan.figure, plan.shows);
        let said = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
        let _ = writeln!(
            text,
            "{} samples; {} ({} cores, Linux {}), commit {}, {}: `{}`\n",
            self.samples,
            said("machine"),
            said("cores"),
            said("kernel"),
            said("commit"),
            said("date"),
            said("command")
        );
        if self.missing > 0 {
            let _ = writeln!(text, "**{} runs are missing: the experiment was interrupted.**\n", self.missing);
        }
        for note in &plan.notes {
            let _ = writeln!(text, "- {note}");
        }
        let points = self.points(plan);
        if !points.is_empty() {
            text.push_str("\n| published | says | ours | | why |\n| --- | --- | --- | --- | --- |\n");
            for p in &points {
                let ours = p.ours.map_or("-".into(), short);
                let _ =
                    writeln!(text, "| {} | {} | {ours} | {} | {} |", p.published.what, p.says(), p.verdict(), p.why());
            }
        }
        for worst in &plan.worst {
            let which = if worst.greatest { "Greatest" } else { "Least" };
            let _ = writeln!(text, "\n{which} `{}`:\n", worst.value);
            for (name, s) in self.worst(plan, worst) {
                let _ = writeln!(text, "- {} ({} to {}): {name}", short(s.median), short(s.min), short(s.max));
            }
        }
        for table in &plan.table {
            let filled = table.fill(plan, self);
            let _ = writeln!(text, "\n{}\n\n| {} |", table.caption, filled.head.join(" | "));
            let _ = writeln!(text, "|{}", " --- |".repeat(filled.head.len()));
            for row in &filled.rows {
                let _ = writeln!(text, "| {} |", row.join(" | "));
            }
            if !filled.counts.is_empty() {
                let _ = writeln!(text, "\nCells: {}.", filled.counts);
            }
        }
        let (axes, values, rows) = self.table(plan);
        let _ = writeln!(text, "\n| {} |", [axes, values].concat().join(" | "));
        let columns = rows.first().map_or(0, Vec::len);
        let _ = writeln!(text, "|{}", " --- |".repeat(columns));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        for (cell, round, error) in &self.failed {
            let _ = writeln!(text, "\nFailed: {}, round {round}: {error}", cell.name(plan));
        }
        text
    }

    /// Axes with more than one value, the names of the values, and a row for each cell.
    pub(crate) fn table(&self, plan: &Plan) -> (Vec<String>, Vec<String>, Vec<Vec<String>>) {
        let kind = plan.kind.kind();
        let axes: Vec<_> = kind.axes().iter().map(|a| a.name.to_owned()).filter(|a| plan.axis(a).len() > 1).collect();
        let names: BTreeSet<String> = self.cells.iter().flat_map(|c| c.1.keys().cloned()).collect();
        let figure = |s: &Summary| match s.n {
            1 => short(s.median),
            _ => format!("{} [{}, {}]", short(s.median), short(s.low), short(s.high)),
        };
        let row = |(cell, values): &(Cell, BTreeMap<String, Summary>)| {
            let begin = axes.iter().map(|a| cell.get(a).to_owned());
            begin.chain(names.iter().map(|n| values.get(n).map_or("-".into(), figure))).collect()
        };
        (axes.clone(), names.iter().cloned().collect(), self.cells.iter().map(row).collect())
    }
}

impl Point<'_> {
    /// The reason of a difference; empty if the values agree.
    pub(crate) fn why(&self) -> &str {
        if self.agrees == Some(true) { "" } else { &self.published.why }
    }
}

/// A number with four digits, or in whole thousands.
pub(crate) fn short(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if !x.is_finite() => "-".into(),
        0.0 => "0".into(),
        s if s >= 1000.0 => format!("{x:.0}"),
        s if s >= 100.0 => format!("{x:.1}"),
        s if s >= 10.0 => format!("{x:.2}"),
        s if s >= 0.1 => format!("{x:.3}"),
        s if s >= 0.001 => format!("{x:.5}"),
        _ => format!("{x:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;

    #[test]
    fn comparisons_are_paired_and_points_are_judged() {
        let more = r#"
            [[compare]]
            name = "of_one"
            value = "seconds"
            axis = "cores"
            to = 1
            form = "other-over-this"
            [[published]]
            what = "twice as fast"
            value = "of_one"
            at = { cores = 24 }
            says = 2
            tolerance = 0.1
            [[published]]
            what = "as fast, or half as fast"
            value = "of_one"
            at = { cores = 24 }
            says = 0
            within = 2
            [[published]]
            what = "ten times"
            value = "of_one"
            at = { cores = 24 }
            at_least = 10
            why = "a reason"
            [[worst]]
            value = "seconds"
            greatest = true
            count = 1
        "#;
        let plan = Plan::parse("p", &format!("{SMALL}{more}"), false).unwrap();
        let cells = cells(&plan);
        let mut samples = Vec::new();
        // The machine is three times slower in the second round, which paired comparisons cancel.
        for (round, slow) in [(0, 1.0), (1, 3.0)] {
            for cell in &cells {
                let seconds = if cell.get("cores") == "24" { slow } else { 2.0 * slow };
                let outcome = Ok(Values::of(&[("seconds", seconds)]));
                samples.push(Sample { cell: cell.clone(), round, outcome });
            }
        }
        let figures = Figures::of(&plan, &cells, &samples);
        let of = figures.cells[1].1["of_one"];
        assert_eq!((of.n, of.min, of.max), (2, 2.0, 2.0));
        let points = figures.points(&plan);
        assert_eq!(points.iter().map(Point::verdict).collect::<Vec<_>>(), ["agrees", "agrees", "differs"]);
        assert_eq!((points[0].why(), points[2].why()), ("", "a reason"));
        assert_eq!(figures.worst(&plan, &plan.worst[0])[0].1.median, 4.0);
        let text = figures.markdown(&plan, &json!({}));
        assert!(text.contains("| ten times | at least 10.00 | 2.000 | differs | a reason |"), "{text}");
        samples[0].outcome = Err("it rained".into());
        let figures = Figures::of(&plan, &cells, &samples[..7]);
        assert_eq!((figures.failed.len(), figures.missing, figures.samples), (1, 1, 6));
    }
}
