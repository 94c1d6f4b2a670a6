//! Kinds of experiments: each kind defines its axes and settings, and how to run one cell.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::cells::Cell;
use super::plan::Plan;
use super::samples::Values;
use crate::pools;

mod checks;
mod codec;
mod link;
mod matrix;
mod messages;
mod model;
mod run;
mod scale;
mod sets;
mod trace;
mod virtual_time;

pub(crate) use checks::Check;

/// An axis of a kind, with the single value that it has in plans that do not name it.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) check: Check,
}

/// A setting: one value for the whole plan.
pub(crate) type Setting = Axis;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KindName {
    Virtual,
    Codec,
    Link,
    Trace,
    Model,
    Sets,
    Matrix,
    Run,
    Messages,
    Scale,
}

impl KindName {
    pub(crate) fn kind(self) -> &'static dyn Kind {
        match self {
            Self::Virtual => &virtual_time::Virtual,
            Self::Codec => &codec::Codec,
            Self::Link => &link::Link,
            Self::Trace => &trace::Trace,
            Self::Model => &model::Model,
            Self::Sets => &sets::Sets,
            Self::Matrix => &matrix::Matrix,
            Self::Run => &run::Run,
            Self::Messages => &messages::Messages,
            Self::Scale => &scale::Scale,
        }
    }
}

impl std::fmt::Display for KindName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind().name())
    }
}

pub(crate) trait Kind: Sync {
    fn name(&self) -> &'static str;

    fn axes(&self) -> &'static [Axis];

    fn settings(&self) -> &'static [Setting];

    /// Identifies everything besides axes and settings that values depend on, such as the sampling
    /// of data and the model of the world. Samples of another recipe are not reused.
    fn recipe(&self) -> String {
        pools::recipe()
    }

    /// Prepares the state that all cells share.
    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>>;

    /// Approximate seconds that one run of a cell takes on one core.
    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64;

    /// Whether cells may run concurrently: only if they read no clock.
    fn beside(&self) -> bool {
        false
    }
}

pub(crate) trait Lab: Sync {
    fn run(&self, cell: &Cell, round: u32) -> Result<Values>;
}

/// Environment of a run that plans do not define: folders, and the flag to stop.
pub(crate) struct Surroundings {
    pub(crate) corpus: Option<PathBuf>,
    /// Cost tables, measured once for all plans with the same methods and lengths.
    pub(crate) tables: PathBuf,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Surroundings {
    pub(crate) fn corpus(&self) -> Result<&PathBuf> {
        self.corpus.as_ref().context("this plan needs --corpus DIR: a folder with one folder for each kind of data")
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
