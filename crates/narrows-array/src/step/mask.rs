//! Mask: the places of one value, mostly a fill value, so that no step has to jump to it and back.

use crate::places::{self, Runs};
use crate::words::{Kind, Word, Words, each};

/// Elements looked at to find the value.
const SAMPLE: usize = 512;

/// Least share of the sample that the value has: places cost bytes, and rare jumps few.
const SHARE_MIN: usize = 25;

/// The value most worth masking: the highest, the lowest or a NaN that is frequent.
pub(crate) fn candidate(words: &Words, kind: Kind) -> Option<u64> {
    each!(words, v => frequent_end(v, kind))
}

fn frequent_end<W: Word>(v: &[W], kind: Kind) -> Option<u64> {
    let mut sample: Vec<W> = v.iter().step_by((v.len() / SAMPLE).max(1)).map(|w| w.order(kind)).collect();
    sample.sort_unstable();
    let (&low, &high) = (sample.first()?, sample.last()?);
    [high, low]
        .into_iter()
        .find(|&end| {
            let count = sample.iter().filter(|&&w| w == end).count();
            count * SHARE_MIN >= sample.len() && count < sample.len()
        })
        .map(|end| match kind {
            Kind::Unsigned => end.wide(),
            Kind::Signed => end.flip_top().wide(),
            Kind::Float => end.unorder_float().wide(),
        })
}

/// Replaces the value by its neighbours and returns its places.
pub(crate) fn apply(words: &mut Words, value: u64, axes: &[usize]) -> Runs {
    each!(words, v => {
        let value = Word::low(value);
        let runs = places::runs(v.iter().enumerate().filter(|(_, w)| **w == value).map(|(i, _)| i));
        fill(v, &runs, axes);
        runs
    })
}

/// Fills places with what stands before them; at the beginning of a row, with what stands above.
pub(crate) fn fill<T: Copy>(v: &mut [T], runs: &Runs, axes: &[usize]) {
    let row = super::squeeze(axes, 4).last().copied().filter(|&row| row > 1).unwrap_or(usize::MAX);
    let first = match runs.first() {
        Some(&(0, length)) => v.get(length).copied(),
        _ => None,
    };
    for &(start, length) in runs {
        let (mut at, end) = (start, start + length);
        while at < end {
            let column = at % row;
            v[at] = match at {
                0 => first.unwrap_or(v[0]),
                _ if column == 0 => v[at - row],
                _ => v[at - 1],
            };
            let next = end.min(at.saturating_add(row - column));
            let value = v[at];
            v[at + 1..next].fill(value);
            at = next;
        }
    }
}

pub(crate) fn invert(words: &mut Words, value: u64, runs: &Runs) {
    each!(words, v => {
        for &(start, length) in runs {
            v[start..start + length].fill(Word::low(value));
        }
    });
}
