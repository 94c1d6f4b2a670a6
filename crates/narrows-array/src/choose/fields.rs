//! Fields of records: columns for complex numbers, for records of known and unknown length, and for
//! packed 12-bit numbers.

use super::{Trial, cost};
use crate::back_end::BackEnd;
use crate::pipeline::{self, Making, Pipeline, Rows};
use crate::step::{COLUMNS_MAX, Stage, Step};
use crate::words::Words;
use narrows::probe::{self, record_width};

/// Offers columns where the words may be records.
pub(super) fn try_fields(words: &Words, stage: &Stage, trial: &mut Trial<'_>) {
    if trial.limits.ns_max < cost::back_end_ns(BackEnd::Zstd(1), 1, false) {
        return;
    }
    let last = stage.axes.last().copied().unwrap_or(1);
    if stage.width > 1 {
        // Complex numbers, or the few variables of a table.
        if (2..=16).contains(&last) && stage.axes.len() > 1 {
            columns(Vec::new(), vec![stage.width as u16; last], words, stage, trial);
        }
        return;
    }
    let Words::W1(bytes) = words else { return };
    let mut rows = Vec::new();
    if stage.axes.len() > 1 && (2..=u16::MAX.into()).contains(&last) {
        rows.push(last);
    } else if stage.axes.len() <= 1 {
        rows.extend(record_width(bytes));
        rows.extend(probe::probe(bytes).map(|found| 2 * usize::from(found.record)));
        if probe::probe(bytes).is_some_and(|found| found.record % 3 == 0) {
            unpacked(words, stage, trial);
        }
    }
    rows.sort_unstable();
    rows.dedup();
    for row in rows.into_iter().filter(|row| stage.len().is_multiple_of(*row)) {
        let fits = |field: &usize| row % field == 0 && (2..=COLUMNS_MAX).contains(&(row / field));
        let widths = |field: usize| vec![field as u16; row / field];
        let fields: Vec<usize> = [8, 4, 2].into_iter().filter(fits).collect();
        let sketches: Vec<usize> = fields.iter().map(|&field| sketch(&widths(field), words, stage, trial)).collect();
        let best = sketches.iter().copied().min().unwrap_or(0);
        for (field, len) in fields.into_iter().zip(sketches) {
            if len <= best + best / CLOSE {
                columns(Vec::new(), widths(field), words, stage, trial);
            }
        }
    }
}

/// Two numbers of 12 bits in three bytes: as one series, and as two.
fn unpacked(words: &Words, stage: &Stage, trial: &mut Trial<'_>) {
    let Some(base) = trial.behind(Step::Unpack12, words, stage) else { return };
    trial.offer(&base, &[], BackEnd::Pco(8));
    let mut making = Making { coders: trial.coders, tolerance: None, missed: 0 };
    let applied = pipeline::apply(&Step::Unpack12, words.clone(), stage.clone(), &mut making, &mut Vec::new());
    if let Some((words, stage)) = applied {
        columns(vec![Step::Unpack12], vec![2, 2], &words, &stage, trial);
    }
}

/// Widths of fields whose sketches are longer than the best by 1 of so many are not tried.
const CLOSE: usize = 10;

/// Bytes of rows that are looked at to compare widths of fields.
const SKETCH: usize = 64 << 10;

/// Length of the columns by a fast codec, split or not: enough to tell which borders fields have.
fn sketch(widths: &[u16], words: &Words, stage: &Stage, trial: &mut Trial<'_>) -> usize {
    let Words::W1(bytes) = words else { return usize::MAX };
    let row: usize = widths.iter().map(|&w| usize::from(w)).sum();
    let rows = (stage.len().min(SKETCH) / row).max(1);
    let stage = Stage { axes: vec![rows * row], ..stage.clone() };
    let Some((stages, row)) = stage.columns(widths) else { return usize::MAX };
    let rows = Rows::new(Words::W1(bytes[..rows * row].to_vec()), row, widths);
    let mut sum = 0;
    let mut offset = 0;
    for (column, &width) in stages.iter().zip(widths) {
        let words = rows.column(offset, width.into(), column);
        let mut len = |steps: &[Step]| {
            let mut out = Vec::new();
            let mut making = Making { coders: trial.coders, tolerance: None, missed: 0 };
            let sketch = Pipeline::new(steps, BackEnd::Zstd(1));
            let made = pipeline::encode(&sketch, words.clone(), column.clone(), &mut making, &mut out);
            made.map_or(column.bytes(), |()| out.len())
        };
        sum += len(&[]).min(len(&[Step::Split]));
        offset += usize::from(width);
    }
    sum
}

/// Chooses for each column on its own and offers the whole.
fn columns(steps: Vec<Step>, widths: Vec<u16>, words: &Words, stage: &Stage, trial: &mut Trial<'_>) {
    let Some((stages, row)) = stage.columns(&widths) else { return };
    let rows = Rows::new(words.clone(), row, &widths);
    let mut estimate = 0.0;
    let mut chosen = Vec::with_capacity(stages.len());
    let mut offset = 0;
    for (column, &width) in stages.iter().zip(&widths) {
        let words = rows.column(offset, width.into(), column);
        let mut inner = Trial::new(column.bytes(), &trial.limits, trial.coders, None);
        inner.lossless(&words, column);
        let Some((score, pipeline)) = inner.sorted().into_iter().next() else { return };
        estimate += score.exp();
        chosen.push(pipeline);
        offset += usize::from(width);
    }
    let ns: f64 = steps.iter().map(|s| cost::step_ns(s, 1)).sum::<f64>() + cost::step_ns(&Step::Columns(Vec::new()), 2);
    let score = estimate.max(1.0).ln() + trial.limits.mode.price(false) * ns;
    trial.tried.push((score, Pipeline::with_columns(steps, widths, chosen)));
}
