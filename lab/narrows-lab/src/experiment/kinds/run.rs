//! The kind `run`: time that programs take over a link, plain and with both ends under `narrows
//! run`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::link::link_of;
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::cases::Case;
use crate::cases::stage::{Stage, Under};
use crate::pools;
use crate::race::net::Net;
use crate::units::parse_len;

pub(crate) struct Run;

const AXES: &[Axis] = &[
    Axis { name: "case", default: "links-file/up", check: |text| Case::parse(text).map(|_| ()) },
    Axis { name: "pool", default: "text", check: checks::name_or_file },
    Axis { name: "link", default: "none", check: Net::check },
    // Override the link's values for both directions; numbers, for sweeps.
    Axis { name: "rate_mbit", default: "-", check: checks::positive_or_not },
    Axis { name: "delay_ms", default: "-", check: checks::not_negative_or_not },
    Axis { name: "loss_percent", default: "-", check: checks::not_negative_or_not },
    Axis { name: "way", default: "run", check: way },
    Axis { name: "run_flags", default: "-", check: checks::flags },
];
const SETTINGS: &[Setting] = &[
    Setting { name: "bytes", default: "8M", check: checks::len },
    // Limits the bytes to those that plain transfers in this time.
    Setting { name: "plain_s", default: "4", check: checks::positive },
    Setting { name: "timeout_s", default: "120", check: checks::positive },
];
/// Minimum length of a transfer: a shorter one measures only the start of programs.
const LEAST_BYTES: usize = 256 << 10;
/// Raised with every change of the meaning of a cell.
const RECIPE: u32 = 1;

fn way(text: &str) -> Result<(), String> {
    if matches!(text, "plain" | "run") { Ok(()) } else { Err("must be plain or run".into()) }
}

impl Kind for Run {
    fn name(&self) -> &'static str {
        "run"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!("{} run {RECIPE}", pools::recipe())
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        surroundings.corpus()?;
        Ok(Box::new(RunLab { plan, surroundings, stages: Mutex::default() }))
    }

    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        let link = link_of(cell);
        2.0 + bytes(plan, &link) as f64 / rate(&link).unwrap_or(1e9)
    }
}

/// Rate of the slower direction, as cases send in either.
fn rate(link: &str) -> Option<f64> {
    let ways = [false, true].map(|down| Net::bytes_per_s(link, down));
    ways.into_iter().flatten().reduce(f64::min)
}

fn bytes(plan: &Plan, link: &str) -> usize {
    let bytes = parse_len(&plan.setting("bytes")).unwrap_or(0);
    let seconds: f64 = plan.setting("plain_s").parse().unwrap_or(1.0);
    rate(link).map_or(bytes, |rate| bytes.min(((rate * seconds) as usize).max(LEAST_BYTES)))
}

struct RunLab<'a> {
    plan: &'a Plan,
    surroundings: &'a Surroundings,
    /// By link and pool. A link stays up as long as the plan runs.
    stages: Mutex<HashMap<(String, String), Stage>>,
}

impl Lab for RunLab<'_> {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        let case = Case::parse(cell.get("case")).map_err(anyhow::Error::msg)?;
        let missing = case.missing();
        ensure!(missing.is_empty(), "{} is not installed", missing.join(", "));
        let (link, pool) = (link_of(cell), cell.get("pool").to_owned());
        let len = bytes(self.plan, &link);
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (link.clone(), pool.clone());
        if !stages.contains_key(&key) {
            let big = pools::named_bytes(self.surroundings.corpus()?, &pool, len)?;
            stages.insert(key.clone(), Stage::new(&link, &big, self.surroundings.stop.clone())?);
        }
        let stage = stages.get(&key).context("the stage")?;
        let limit = Duration::from_secs_f64(self.plan.setting("timeout_s").parse()?);
        let under = if cell.get("way") == "plain" { Under::Neither } else { Under::Both };
        let flags = Some(cell.get("run_flags")).filter(|f| *f != "-").unwrap_or_default();
        let spoilt = stage.net.spoilt();
        let played = stage.play(&case, under, flags, limit)?;
        ensure!(stage.net.spoilt() == spoilt, "the emulated link could not keep up; the run is void");
        ensure!(
            under == Under::Neither || played.handed.iter().all(|n| *n > 0),
            "a supervisor had no connection: {:?}",
            played.handed
        );
        let mut values = Values::of(&[("bytes", len as f64)]);
        values.numbers.extend(played.figures);
        values.numbers.entry("seconds".into()).or_insert(played.seconds);
        values.numbers.extend(played.wire_bytes.map(|wire| ("wire_bytes".into(), wire as f64)));
        Ok(values)
    }
}
