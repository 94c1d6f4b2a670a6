//! Results of the grid: every cell as CSV or JSON, and a summary for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use narrows_sim::judge::Possible;
use narrows_sim::world::Run;
use serde_json::{Value, json};

use crate::cells::Cell;
use crate::units::print_len;

/// Thresholds below which cells are counted: share of the oracle, and share of plain (`FLOOR`).
const NEAR: f64 = 0.85;
const FLOOR: f64 = 0.98;

/// One policy in one cell.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pool: String,
    rate_mbit: f64,
    cores: usize,
    len: usize,
    scenario: String,
    policy: String,
    seconds: f64,
    possible: Possible,
    plain_s: f64,
    wire: u64,
    cpu_s: f64,
    dry_s: f64,
    rescued: u64,
    probed: u64,
    blocks: u64,
    mix: String,
}

impl Row {
    pub(crate) fn new(cell: &Cell, pool: &str, policy: String, run: &Run, possible: Possible, plain_s: f64) -> Self {
        let summary = &run.summary;
        let mut shares: Vec<_> = summary.mix.iter().map(|r| (r.raw_bytes, r.method)).collect();
        shares.sort_by_key(|s| std::cmp::Reverse(s.0));
        let share = |(bytes, method): &(u64, _)| format!("{method} {:.2}", *bytes as f64 / cell.len as f64);
        Self {
            pool: pool.to_owned(),
            rate_mbit: cell.rate_mbit,
            cores: cell.cores,
            len: cell.len,
            scenario: cell.scenario.to_string(),
            policy,
            seconds: run.seconds,
            possible,
            plain_s,
            wire: summary.wire_bytes,
            cpu_s: run.cpu_s,
            dry_s: summary.link_dry_ns as f64 * 1e-9,
            rescued: summary.rescued_blocks,
            probed: summary.probed_blocks,
            blocks: summary.frames,
            mix: shares.iter().map(share).collect::<Vec<_>>().join(" "),
        }
    }

    fn ratio(&self) -> f64 {
        self.possible.oracle / self.seconds
    }

    fn vs_plain(&self) -> f64 {
        self.plain_s / self.seconds
    }

    fn cell(&self) -> String {
        let Self { pool, rate_mbit, cores, len, scenario, .. } = self;
        format!("{pool} {rate_mbit} Mbit/s, {cores} cores, {}, {scenario}", print_len(*len))
    }
}

/// Description of a result: machine, commit, command.
pub(crate) struct About(Vec<(&'static str, String)>);

impl About {
    pub(crate) fn new() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let git = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
        let commit = git.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        // Strip directories: they describe the machine, not the experiment.
        let word = |arg: String| match arg.rsplit_once('/') {
            Some((_, last)) if arg.starts_with('/') => last.to_owned(),
            _ => arg,
        };
        Self(vec![
            ("machine", model.map_or("unknown", |m| m.1.trim()).to_owned()),
            ("cores", std::thread::available_parallelism().map_or(0, usize::from).to_string()),
            // Only the version; the rest is added by distributions.
            ("kernel", kernel.trim().split('-').next().unwrap_or_default().to_owned()),
            ("commit", commit.unwrap_or_default().trim().to_owned()),
            ("command", std::env::args().map(word).collect::<Vec<_>>().join(" ")),
            ("plan", "virtual time: the real sender, measured costs, fluid link; one run a cell, seed 1".to_owned()),
        ])
    }

    /// The fields for results in real time, without `plan`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let fields = self.0.iter().filter(|f| f.0 != "plan").map(|f| (f.0.to_owned(), f.1.clone().into()));
        serde_json::Value::Object(fields.collect())
    }
}

const COLUMNS: &str = "pool,rate_mbit,cores,len,scenario,policy,seconds,bound,relaxed,oracle,plain,ratio,vs_plain,wire,cpu,dry,\
                       rescued,probed,blocks,mix";

pub(crate) fn csv(about: &About, rows: &[Row]) -> String {
    let mut text = String::new();
    for (key, value) in &about.0 {
        let _ = writeln!(text, "# {key}: {value}");
    }
    text.push_str(COLUMNS);
    text.push('\n');
    for r in rows {
        let oracle = if r.possible.has_oracle { format!("{:.6}", r.possible.oracle) } else { String::new() };
        let _ = writeln!(
            text,
            "{},{},{},{},{},\"{}\",{:.6},{:.6},{:.6},{oracle},{:.6},{:.4},{:.4},{},{:.6},{:.6},{},{},{},\"{}\"",
            r.pool,
            r.rate_mbit,
            r.cores,
            r.len,
            r.scenario,
            r.policy,
            r.seconds,
            r.possible.bound,
            r.possible.relaxed,
            r.plain_s,
            r.ratio(),
            r.vs_plain(),
            r.wire,
            r.cpu_s,
            r.dry_s,
            r.rescued,
            r.probed,
            r.blocks,
            r.mix,
        );
    }
    text
}

pub(crate) fn json(about: &About, rows: &[Row]) -> String {
    let cells: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "pool": r.pool, "rate_mbit": r.rate_mbit, "cores": r.cores, "len": r.len, "scenario": r.scenario,
                "policy": r.policy, "seconds": r.seconds, "bound": r.possible.bound, "relaxed": r.possible.relaxed,
                "oracle": r.possible.has_oracle.then_some(r.possible.oracle), "plain": r.plain_s,
                "ratio": r.ratio(), "vs_plain": r.vs_plain(), "wire": r.wire, "cpu": r.cpu_s, "dry": r.dry_s,
                "rescued": r.rescued, "probed": r.probed, "blocks": r.blocks, "mix": r.mix,
            })
        })
        .collect();
    json!({ "about": about_json(about), "cells": cells }).to_string()
}

fn about_json(about: &About) -> Value {
    about.0.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect::<serde_json::Map<_, _>>().into()
}

/// Rows of one policy, best ratio last.
struct Group<'a> {
    policy: &'a str,
    sorted: Vec<&'a Row>,
}

impl Group<'_> {
    fn mean(&self) -> f64 {
        self.sorted.iter().map(|r| r.ratio()).sum::<f64>() / self.sorted.len() as f64
    }

    fn percentile_5(&self) -> f64 {
        self.sorted[self.sorted.len() / 20].ratio()
    }

    fn under(&self, what: impl Fn(&Row) -> f64, limit: f64) -> usize {
        self.sorted.iter().filter(|r| what(r) < limit).count()
    }

    fn worst_to_plain(&self) -> f64 {
        self.sorted.iter().map(|r| r.vs_plain()).fold(f64::INFINITY, f64::min)
    }
}

fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|g| g.policy == row.policy) {
            Some(group) => group.sorted.push(row),
            None => groups.push(Group { policy: &row.policy, sorted: vec![row] }),
        }
    }
    for group in &mut groups {
        group.sorted.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    }
    groups
}

pub(crate) fn summary(rows: &[Row], worst: usize) -> String {
    let mut text = String::new();
    let groups = groups(rows);
    let Some(first) = groups.first() else { return "no cells\n".into() };
    let judge = if rows.iter().all(|r| r.possible.has_oracle) { "oracle" } else { "oracle or relaxed" };
    let to_bound: f64 = first.sorted.iter().map(|r| r.possible.bound / r.possible.oracle).sum::<f64>();
    let _ = writeln!(
        text,
        "{} cells; ratio = {judge} / time; the oracle lies at {:.3} of the bound\n\n{:24} {:>6} {:>6} {:>6} {:>6} {:>11} {:>7}  worst cell",
        first.sorted.len(),
        to_bound / first.sorted.len() as f64,
        "policy",
        "mean",
        "p5",
        "worst",
        "<0.85",
        "worst/plain",
        "<0.98",
    );
    for g in &groups {
        let _ = writeln!(
            text,
            "{:24} {:6.3} {:6.3} {:6.3} {:6} {:11.3} {:7}  {}",
            g.policy,
            g.mean(),
            g.percentile_5(),
            g.sorted[0].ratio(),
            g.under(Row::ratio, NEAR),
            g.worst_to_plain(),
            g.under(Row::vs_plain, FLOOR),
            g.sorted[0].cell(),
        );
    }
    by_rate(&mut text, rows, &groups);
    for g in groups.iter().filter(|g| g.policy != "plain" && g.policy != "best-fixed") {
        let _ = writeln!(text, "\nworst cells of {}:", g.policy);
        for r in g.sorted.iter().take(worst) {
            let _ = writeln!(
                text,
                "  {:.3} (plain {:.3}) {}: {}; dry {:.0} %, {} rescued",
                r.ratio(),
                r.vs_plain(),
                r.cell(),
                r.mix,
                100.0 * r.dry_s / r.seconds,
                r.rescued,
            );
        }
        let mut broken: Vec<_> = g.sorted.iter().filter(|r| r.vs_plain() < FLOOR).collect();
        broken.sort_by(|a, b| a.vs_plain().total_cmp(&b.vs_plain()));
        for r in broken.iter().take(worst) {
            let loss_us = 1e6 * (r.seconds - r.plain_s);
            let _ = writeln!(text, "  floor {:.3} by {loss_us:.0} us: {}: {}", r.vs_plain(), r.cell(), r.mix);
        }
    }
    text
}

/// Mean ratios by length and rate.
fn by_rate(text: &mut String, rows: &[Row], groups: &[Group<'_>]) {
    let mut lens: Vec<_> = rows.iter().map(|r| r.len).collect();
    let mut rates: Vec<_> = rows.iter().map(|r| r.rate_mbit).collect();
    lens.sort_unstable();
    lens.dedup();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    for len in lens {
        let _ = write!(text, "\n{:24}", format!("{}, by Mbit/s", print_len(len)));
        for rate in &rates {
            let _ = write!(text, " {rate:>6}");
        }
        for g in groups {
            let _ = write!(text, "\n{:24}", g.policy);
            for rate in &rates {
                let of: Vec<_> = g.sorted.iter().filter(|r| r.len == len && r.rate_mbit == *rate).collect();
                let mean = of.iter().map(|r| r.ratio()).sum::<f64>() / of.len() as f64;
                let _ = write!(text, " {mean:6.3}");
            }
        }
        text.push('\n');
    }
}

pub(crate) fn summary_json(about: &About, rows: &[Row]) -> String {
    let mut policies = BTreeMap::new();
    for g in groups(rows) {
        let figures = json!({
            "cells": g.sorted.len(), "mean": g.mean(), "p5": g.percentile_5(), "worst": g.sorted[0].ratio(),
            "worst_cell": g.sorted[0].cell(), "under_0.85": g.under(Row::ratio, NEAR),
            "worst_to_plain": g.worst_to_plain(), "under_0.98_of_plain": g.under(Row::vs_plain, FLOOR),
        });
        policies.insert(g.policy.to_owned(), figures);
    }
    json!({ "about": about_json(about), "policies": policies }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, seconds: f64) -> Row {
        Row {
            pool: "text".into(),
            rate_mbit: 100.0,
            cores: 4,
            len: 1 << 20,
            scenario: "flat".into(),
            policy: policy.into(),
            seconds,
            possible: Possible { bound: 0.9, relaxed: 0.95, oracle: 1.0, has_oracle: true },
            plain_s: 1.5,
            wire: 1000,
            cpu_s: 0.1,
            dry_s: 0.0,
            rescued: 0,
            probed: 0,
            blocks: 8,
            mix: "zstd 1.00".into(),
        }
    }

    #[test]
    fn figures_count_what_they_should() {
        let rows = [row("a", 1.0), row("a", 2.0), row("b", 1.25)];
        let groups = groups(&rows);
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[0].mean(), groups[0].sorted[0].ratio()), (0.75, 0.5));
        assert_eq!((groups[0].under(Row::ratio, NEAR), groups[0].under(Row::vs_plain, FLOOR)), (1, 1));
        let text = summary(&rows, 3);
        assert!(text.contains("0.750") && text.contains("text 100 Mbit/s, 4 cores, 1M"), "{text}");
    }

    #[test]
    fn a_result_file_begins_with_what_it_is_of() {
        let text = csv(&About::new(), &[row("a", 1.0)]);
        for key in ["machine", "cores", "kernel", "commit", "command", "plan"] {
            assert!(text.contains(&format!("# {key}: ")), "{text}");
        }
        let cells: Value = serde_json::from_str(&json(&About::new(), &[row("a", 1.0)])).unwrap();
        assert_eq!(cells["cells"][0]["ratio"], 1.0);
        let columns = text.lines().find(|l| l.starts_with("pool,")).unwrap();
        assert_eq!(columns.split(',').count(), text.lines().last().unwrap().split(',').count());
    }
}
