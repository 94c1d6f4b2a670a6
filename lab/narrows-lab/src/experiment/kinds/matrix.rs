//! The kind `matrix`: programs with one or both ends under `narrows run`, compared with native
//! runs: their output, exit statuses and transferred data must be the same.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::cases::Case;
use crate::cases::stage::{Played, Stage, Under, mixed};
use crate::race::net::{End, LOOPBACK, Net};
use crate::units::parse_len;

pub(crate) struct Matrix;

const AXES: &[Axis] = &[
    Axis { name: "case", default: "curl/small", check: case },
    Axis { name: "under", default: "both", check: under },
    Axis { name: "run_flags", default: "-", check: checks::flags },
];
const SETTINGS: &[Setting] = &[
    Setting { name: "link", default: "none", check: link },
    // Length of the file that the cases `big` transfer.
    Setting { name: "bytes", default: "50M", check: checks::len },
    Setting { name: "timeout_s", default: "60", check: checks::positive },
];
/// Raised with every change of the meaning of a cell.
const RECIPE: u32 = 1;

fn case(text: &str) -> Result<(), String> {
    Case::parse(text).map(|_| ())
}

fn under(text: &str) -> Result<(), String> {
    Under::parse(text).map(|_| ())
}

fn link(text: &str) -> Result<(), String> {
    Net::check(text)
}

impl Kind for Matrix {
    fn name(&self) -> &'static str {
        "matrix"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!(" matrix {RECIPE}")
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        let big = mixed(parse_len(&plan.setting("bytes")).map_err(anyhow::Error::msg)?, 1);
        let link = plan.setting("link");
        let first = Stage::new(&link, &big, surroundings.stop.clone())?;
        let stop = surroundings.stop.clone();
        let (stages, native) = (Mutex::new(vec![first]), Mutex::default());
        Ok(Box::new(MatrixLab { plan, link, big, stop, stages, alone: Mutex::default(), native }))
    }

    fn beside(&self) -> bool {
        true
    }

    fn estimate_s(&self, _plan: &Plan, _cell: &Cell) -> f64 {
        // Mostly for starting and ending servers.
        1.5
    }
}

struct MatrixLab<'a> {
    plan: &'a Plan,
    link: String,
    big: Vec<u8>,
    stop: Arc<AtomicBool>,
    /// Idle stages. Each has its own hosts.
    stages: Mutex<Vec<Stage>>,
    /// Held while a case runs on this host's loopback, where all cases would share one agent.
    alone: Mutex<()>,
    /// By case and round.
    native: Mutex<HashMap<(String, u32), Native>>,
}

/// Result of the native run, once it has run.
type Native = Arc<Mutex<Option<Played>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lab for MatrixLab<'_> {
    fn run(&self, cell: &Cell, round: u32) -> Result<Values> {
        let case = Case::parse(cell.get("case")).map_err(anyhow::Error::msg)?;
        let missing = case.missing();
        if !missing.is_empty() {
            let mut values = Values::default();
            values.words.insert("result".into(), format!("not installed: {}", missing.join(", ")));
            return Ok(values);
        }
        let _alone = (self.link == LOOPBACK).then(|| lock(&self.alone));
        let waiting = lock(&self.stages).pop();
        let stage = waiting.map_or_else(|| Stage::new(&self.link, &self.big, self.stop.clone()), Ok)?;
        let values = self.play(&stage, &case, cell, round);
        lock(&self.stages).push(stage);
        values
    }
}

impl MatrixLab<'_> {
    fn play(&self, stage: &Stage, case: &Case, cell: &Cell, round: u32) -> Result<Values> {
        let limit = Duration::from_secs_f64(self.plan.setting("timeout_s").parse()?);
        let native: Native = Arc::clone(lock(&self.native).entry((case.name(), round)).or_default());
        let native = {
            let mut native = lock(&native);
            if native.is_none() {
                *native = Some(stage.play(case, Under::Neither, "", limit).context("natively")?);
            }
            native.clone().context("the native run")?
        };
        let under = Under::parse(cell.get("under")).map_err(anyhow::Error::msg)?;
        let flags = Some(cell.get("run_flags")).filter(|f| *f != "-").unwrap_or_default();
        let played = stage.play(case, under, flags, limit)?;
        ensure!(played.transcript == native.transcript, "{}", difference(&native.transcript, &played.transcript));
        let ends = [End::Sender, End::Receiver].map(|end| under.has(end));
        let plain = ends.iter().zip(played.handed).all(|(under, handed)| !under || handed == 0);
        let mut values = Values::of(&[
            ("native_s", native.seconds),
            ("slower", played.seconds / native.seconds),
            ("seconds", played.seconds),
            ("client_connections", played.handed[0] as f64),
            ("server_connections", played.handed[1] as f64),
            ("framed_connections", played.framed[0].max(played.framed[1]) as f64),
        ]);
        // A refused or unreachable connection cannot be handed over; the supervisor may or may not
        // report it.
        let result = match played.framed {
            _ if plain => "right, plain",
            [0, 0] => "right",
            _ => "right, compressed",
        };
        values.words.insert("result".into(), result.into());
        Ok(values)
    }
}

/// Describes the first line that differs.
fn difference(native: &str, played: &str) -> String {
    let (mut one, mut other) = (native.lines(), played.lines());
    for number in 1.. {
        match (one.next(), other.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                let short = |line: Option<&str>| line.map_or("nothing".into(), |l| format!("'{l:.120}'"));
                return format!("line {number} is {}, natively {}", short(b), short(a));
            }
        }
    }
    "the output differs".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that no plan names would never be run.
    #[test]
    fn the_plan_of_the_matrix_has_every_case() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/run-matrix.toml");
        let plan = Plan::read(&path, false).unwrap();
        let all: Vec<String> = Case::all().map(|c| c.name()).filter(|n| !n.starts_with("links-")).collect();
        assert_eq!(plan.axis("case"), all);
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), "line 2 is 'c', natively 'b'");
        assert_eq!(difference("a\nb\n", "a\n"), "line 2 is nothing, natively 'b'");
        assert_eq!(difference("a\n", "a"), "the output differs");
    }
}
