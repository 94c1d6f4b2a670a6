//! The kind `trace`: one run of a policy in virtual time, with its observations and choices over
//! time.

use anyhow::{Result, ensure};
use narrows::codec::Method;
use serde_json::Value;

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::virtual_time::{AXES, SETTINGS, WORLD, Worlds};
use super::{Axis, Kind, Lab, Setting, Surroundings};
use crate::pools;
use crate::registry;
use crate::units::parse_len;

pub(crate) struct Trace;

/// Limit on points of a series: a picture has no more columns.
const POINTS_MAX: usize = 600;

impl Kind for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!("{}{WORLD}", pools::recipe())
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        Ok(Box::new(TraceLab(Worlds::open(plan, surroundings)?)))
    }

    fn estimate_s(&self, _plan: &Plan, cell: &Cell) -> f64 {
        0.02 * parse_len(cell.get("len")).unwrap_or(0) as f64 / 1e6
    }

    fn beside(&self) -> bool {
        true
    }
}

struct TraceLab<'a>(Worlds<'a>);

impl Lab for TraceLab<'_> {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        let (mut values, trace) = self.0.run(cell, true)?;
        let rows = choices(&trace);
        ensure!(!rows.is_empty(), "this policy leaves no trace");
        // Time for which each choice was the latest one.
        let end_s = values.numbers["seconds"];
        let held = |i: usize| rows.get(i + 1).map_or(end_s, |r: &Row| r.second) - rows[i].second;
        let total: f64 = (0..rows.len()).map(held).sum::<f64>().max(1e-9);
        let mean = |of: &dyn Fn(&Row) -> f64| (0..rows.len()).map(|i| held(i) * of(&rows[i])).sum::<f64>() / total;
        values.numbers.insert("queue_mean".into(), mean(&|r| r.queue));
        values.numbers.insert("level_mean".into(), mean(&|r| r.level));
        let within = |r: &Row| f64::from((10.0..=30.0).contains(&r.queue));
        values.numbers.insert("queue_10_to_30_share".into(), mean(&within));
        let step = rows.len().div_ceil(POINTS_MAX).max(1);
        let column = |of: fn(&Row) -> f64| rows.iter().step_by(step).map(of).collect::<Vec<_>>();
        values.series.insert("second".into(), column(|r| r.second));
        values.series.insert("queue".into(), column(|r| r.queue));
        values.series.insert("level".into(), column(|r| r.level));
        values.series.insert("link_mbit_per_s".into(), column(|r| r.rate * 8e-6));
        Ok(values)
    }
}

struct Row {
    second: f64,
    /// The policy's own FIFO if it reports one, otherwise frames in the sender's queue.
    queue: f64,
    level: f64,
    rate: f64,
}

fn choices(trace: &str) -> Vec<Row> {
    let lines = trace.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let row = |line: Value| {
        let method = registry::method(line["method"].as_str()?).ok()?;
        let level = if method == Method::STORE { 0.0 } else { f64::from(method.level) };
        let own = line["fifo_packets"].as_f64();
        Some(Row {
            second: line["now_ns"].as_f64()? * 1e-9,
            queue: own.or_else(|| line["queue"].as_f64())?,
            level: line["level"].as_f64().unwrap_or(level),
            rate: line["rate_bytes_per_s"].as_f64().unwrap_or(0.0),
        })
    };
    lines.filter(|l| l["event"] == "choose").filter_map(row).collect()
}
