//! The memory of a chooser: winners of an array and what came close to them.

use super::Mode;
use super::cost;
use super::piece::cut_piece;
use crate::back_end::Coders;
use crate::bound::Tolerance;
use crate::pipeline::{self, Making, Pipeline};
use crate::step::{Stage, Step};
use crate::view::{ArrayView, Dtype};
use crate::words::Words;

/// Chunks after which the winner is compared again, on a piece and with what came close to it.
pub(super) const RETRY: u32 = 16;

/// Such comparisons until everything is tried again, which costs about five encodings, and of records as
/// many as twenty; twice as many after each trial with the same winner, up to the second number.
const CHECKS: (u32, u32) = (8, 32);

/// Chunks between two trials at least, for arrays whose ratio jumps; twice as many after each trial with
/// the same winner.
const RETRY_MIN: u32 = 2;

/// Winners that are remembered: levels or variables of an array may take turns.
const WINNERS: usize = 3;

/// Most others that are compared with the winner: it is one of the closest two that replaces it.
const NEAR_MAX: usize = 2;

/// By how much another one must be better on a piece to make a new trial.
const BETTER: f64 = 0.01;

/// What a chooser learned of an array.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub(super) array: Option<Array>,
    pub(super) trials: u64,
}

impl Memory {
    /// The winner of the last trial.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.array.as_ref().map(|array| &array.winners[0])
    }

    /// Number of trials so far.
    pub fn trials(&self) -> u64 {
        self.trials
    }
}

#[derive(Debug, Clone)]
pub(super) struct Array {
    dtype: Dtype,
    rank: usize,
    /// Winners of trials, the one in use first.
    pub(super) winners: Vec<Pipeline>,
    /// Lowest and highest ratio since the last trial.
    pub(super) ratios: (f64, f64),
    pub(super) age: u32,
    pub(super) patience: u32,
    /// What came close to the winner.
    near: Vec<Pipeline>,
    /// Comparisons with them since the last trial, and how many there are until the next one.
    checks: (u32, u32),
}

impl Array {
    /// Whether the chunk may be of this array.
    pub(super) fn is_of(&self, view: &ArrayView<'_>) -> bool {
        self.dtype == view.dtype && self.rank == view.shape.len()
    }

    /// What is remembered after a trial that `pipeline` won and in which `near` came close.
    pub(super) fn after_trial(
        before: Option<Self>,
        view: &ArrayView<'_>,
        pipeline: Pipeline,
        ratio: f64,
        near: Vec<Pipeline>,
    ) -> Self {
        let mut ratios = (ratio, ratio);
        let (mut winners, mut patience, mut checks) = (Vec::new(), RETRY_MIN, CHECKS.0);
        if let Some(before) = before {
            if before.winners.contains(&pipeline) {
                patience = (2 * before.patience).min(RETRY);
                // Chunks that take turns make their trials once, not each time that they differ.
                ratios = (ratio.min(before.ratios.0), ratio.max(before.ratios.1));
            }
            if before.winners[0] == pipeline && before.checks.0 >= before.checks.1 {
                checks = (2 * before.checks.1).min(CHECKS.1);
            }
            winners = before.winners;
        }
        winners.retain(|w| *w != pipeline);
        winners.insert(0, pipeline);
        winners.truncate(WINNERS);
        let (dtype, rank) = (view.dtype, view.shape.len());
        Self { dtype, rank, winners, ratios, age: 0, patience, near, checks: (0, checks) }
    }

    /// Whether the winner is still the best of those that were close, on a piece.
    pub(super) fn stands(
        &mut self,
        loaded: &(Words, Stage),
        tolerance: Option<&Tolerance>,
        mode: Mode,
        coders: &mut Coders,
    ) -> bool {
        let winner = &self.winners[0];
        self.checks.0 += 1;
        // A piece of records may begin within one.
        let whole = |p: &Pipeline| !p.columns.is_empty() || p.steps.contains(&Step::Unpack12);
        if self.checks.0 >= self.checks.1 || whole(winner) {
            return self.checks.0 < self.checks.1;
        }
        let (words, stage) = cut_piece(&loaded.0, &loaded.1);
        let mut score = |pipeline: &Pipeline| {
            let mut out = Vec::new();
            let mut making = Making { coders, tolerance, missed: 0 };
            pipeline::encode(pipeline, words.clone(), stage.clone(), &mut making, &mut out)?;
            Some((out.len() as f64).ln() + mode.price(tolerance.is_some()) * cost::pipeline_ns(pipeline, &stage))
        };
        let Some(own) = score(winner) else { return false };
        let others = self.near.iter().filter(|p| *p != winner && !whole(p)).take(NEAR_MAX);
        !others.filter_map(score).any(|other| other < own - BETTER)
    }
}
