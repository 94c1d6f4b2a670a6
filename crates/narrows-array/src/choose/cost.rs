//! Nominal speeds of steps and back ends on one ordinary core, as the engine's codecs have them: prices
//! must not depend on how busy the machine is.

use narrows::codec::Method;

use crate::back_end::BackEnd;
use crate::pipeline::{self, Pipeline};
use crate::step::{Stage, Step};

/// Nanoseconds for each byte of what the step takes.
pub(super) fn step_ns(step: &Step, width: usize) -> f64 {
    let word = match step {
        Step::Split | Step::Mask => 1.0,
        Step::Columns(_) | Step::Unpack12 => 1.5,
        Step::Lorenzo { axes, .. } => 0.4 + 0.4 * f64::from(axes.count_ones()),
        Step::Rank => 6.0,
        Step::Linear | Step::Bits => 3.0,
        Step::LogLinear => 14.0,
        Step::Interpolate => 8.0,
    };
    word / width as f64
}

/// Nanoseconds for each byte of what the back end takes.
pub(super) fn back_end_ns(back_end: BackEnd, width: usize, differences: bool) -> f64 {
    match back_end {
        BackEnd::Store | BackEnd::Columns => 0.1,
        // pco's levels differ by the number of bins it considers.
        // It spends time for each word, whatever its width, and more where it looks for differences itself.
        BackEnd::Pco(level) => {
            let bins = if level > 8 { 300.0 } else { 18.0 + 1.2 * f64::from(level) };
            (bins + if differences { 0.0 } else { 12.0 }) / width as f64
        }
        BackEnd::Lz4 => Method::lz4_accel(1).info().nominal_ns_per_byte(-1).0.into(),
        BackEnd::Zstd(level) => Method::zstd(level).info().nominal_ns_per_byte(level).0.into(),
        BackEnd::Xz(level) => {
            Method::new(narrows::codec::CodecId::XZ, level).info().nominal_ns_per_byte(level).0.into()
        }
    }
}

/// Nanoseconds for each byte of a chunk. Columns are taken as what their first one is.
pub(super) fn pipeline_ns(pipeline: &Pipeline, stage: &Stage) -> f64 {
    let steps: f64 = pipeline.steps.iter().map(|s| step_ns(s, stage.width.max(2))).sum();
    let ranked = pipeline.steps.contains(&Step::Rank) && stage.width > 2;
    let width = if ranked { 2 } else { stage.width };
    let share = width as f64 / stage.width as f64;
    let differences = pipeline::has_differences(&pipeline.steps);
    let inner = pipeline.columns.first().map_or(0.0, |first| pipeline_ns(first, stage));
    steps + share * back_end_ns(pipeline.back_end, width, differences) + inner
}
