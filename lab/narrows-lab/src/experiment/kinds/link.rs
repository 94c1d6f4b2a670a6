//! The kind `link`: real programs over a real or emulated link, as `narrows-lab race` runs them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::checks::{self, Hogs};
use super::{Axis, Kind, Lab, Setting, Surroundings};
use crate::pools;
use crate::race::net::Net;
use crate::race::scratch;
use crate::race::tools::Tool;
use crate::race::track::{Load, Track};
use crate::units::parse_len;

pub(crate) struct Link;

const AXES: &[Axis] = &[
    Axis { name: "pool", default: "text", check: checks::name_or_file },
    Axis { name: "link", default: "none", check: link },
    // Override the link's values for both directions; numbers, for sweeps.
    Axis { name: "rate_mbit", default: "-", check: checks::positive_or_not },
    Axis { name: "delay_ms", default: "-", check: checks::not_negative_or_not },
    Axis { name: "loss_percent", default: "-", check: checks::not_negative_or_not },
    Axis { name: "load", default: "0", check: checks::hogs },
    Axis { name: "tool", default: "narrows", check: tool },
];
const SETTINGS: &[Setting] = &[
    Setting { name: "bytes", default: "8M", check: checks::len },
    // Limits the bytes to those that plain transfers in this time.
    Setting { name: "plain_s", default: "4", check: checks::positive },
    Setting { name: "timeout_s", default: "120", check: checks::positive },
    Setting { name: "way", default: "up", check: way },
];
/// Minimum length of a transfer: a shorter one measures only the start of programs.
const LEAST_BYTES: usize = 64 << 10;

fn link(text: &str) -> Result<(), String> {
    Net::check(text)
}

/// The cell's link as a profile of the emulator.
pub(super) fn link_of(cell: &Cell) -> String {
    let keys = [("rate_mbit", "rate", "mbit"), ("delay_ms", "delay", "ms"), ("loss_percent", "loss", "%")];
    let said =
        keys.iter().filter(|k| cell.get(k.0) != "-").map(|(axis, key, unit)| format!("{key}={}{unit}", cell.get(axis)));
    let said: Vec<String> = said.collect();
    match (cell.get("link"), said.is_empty()) {
        (link, true) => link.to_owned(),
        ("none", false) => said.join(","),
        (link, false) => format!("{link},{}", said.join(",")),
    }
}

fn tool(text: &str) -> Result<(), String> {
    Tool::parse(text).map(|_| ())
}

fn way(text: &str) -> Result<(), String> {
    if matches!(text, "up" | "down") { Ok(()) } else { Err("must be up or down".into()) }
}

impl Kind for Link {
    fn name(&self) -> &'static str {
        "link"
    }

    /// `longer 2`: data that is longer than its pool does not repeat.
    fn recipe(&self) -> String {
        format!("{} longer 2", pools::recipe())
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        surroundings.corpus()?;
        let folder = scratch::folder()?;
        let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        Ok(Box::new(LinkLab { cores, plan, surroundings, folder, tracks: Mutex::default(), loads: Mutex::default() }))
    }

    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        let link = link_of(cell);
        let rate = Net::bytes_per_s(&link, plan.setting("way") == "down").unwrap_or(1e9);
        // The constant is for starting a program or an ssh login; the factor, as most tools send
        // less than plain.
        0.3 + 0.6 * bytes(plan, &link) as f64 / rate
    }
}

/// Number of bytes to send over a link.
fn bytes(plan: &Plan, link: &str) -> usize {
    let bytes = parse_len(&plan.setting("bytes")).unwrap_or(0);
    let seconds: f64 = plan.setting("plain_s").parse().unwrap_or(1.0);
    match Net::bytes_per_s(link, plan.setting("way") == "down") {
        Some(rate) => bytes.min(((rate * seconds) as usize).max(LEAST_BYTES)),
        None => bytes,
    }
}

struct LinkLab<'a> {
    plan: &'a Plan,
    surroundings: &'a Surroundings,
    folder: TempDir,
    cores: f64,
    /// By link. Each stays up as long as the plan runs.
    tracks: Mutex<HashMap<String, Track>>,
    /// By pool and link.
    loads: Mutex<HashMap<(String, String), Load>>,
}

impl Lab for LinkLab<'_> {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        let (pool, link) = (cell.get("pool"), link_of(cell));
        let tool = Tool::parse(cell.get("tool")).map_err(anyhow::Error::msg)?;
        let mut tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        if !tracks.contains_key(&link) {
            let down = self.plan.setting("way") == "down";
            tracks.insert(link.clone(), Track::new(&link, down, self.surroundings.stop.clone())?);
        }
        let track = tracks.get_mut(&link).context("the track")?;
        track.prepare(&tool)?;
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pool.to_owned(), link.clone());
        if !loads.contains_key(&key) {
            let bytes = pools::named_bytes(self.surroundings.corpus()?, pool, bytes(self.plan, &link))?;
            let name = format!("load-{}", loads.len());
            loads.insert(key.clone(), Load::new(self.folder.path(), &name, &bytes)?);
        }
        let load = loads.get(&key).context("the load")?;
        let limit = Duration::from_secs_f64(self.plan.setting("timeout_s").parse()?);
        let lap = {
            let _hogs = Hogs::start(cell.number("load") as u32);
            track.lap(&tool, load, limit)?
        };
        let raw = load.len as f64;
        let mut values =
            vec![("seconds", lap.seconds), ("goodput_mbit_per_s", raw * 8e-6 / lap.seconds), ("bytes", raw)];
        // Percent of all cores of the machine, as in the text of 2023.
        let percent = |cpu_s: f64| 100.0 * cpu_s / lap.seconds / self.cores;
        values.extend(lap.sender_cpu_s.map(|s| ("sender_cpu_percent", percent(s))));
        values.extend(lap.receiver_cpu_s.map(|s| ("receiver_cpu_percent", percent(s))));
        values.extend(lap.wire_bytes.map(|wire| ("wire_bytes", wire as f64)));
        Ok(Values::of(&values))
    }
}
