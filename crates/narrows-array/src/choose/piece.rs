//! Pieces of chunks, which stand for the whole in trials.

use super::Base;
use crate::step::{Stage, lorenzo, squeeze};
use crate::words::{Word, Words, each};

/// Share of a chunk that is tried: 1 of so many.
const PIECE_SHARE: usize = 8;

/// Least words of a piece: fewer tell nothing of repeats and distributions.
const PIECE_MIN: usize = 4096;

/// A block from the middle, shorter along the longest axes: neighbours along all axes stay neighbours.
pub(super) fn cut_piece(words: &Words, stage: &Stage) -> (Words, Stage) {
    let axes = squeeze(&stage.axes, 4);
    let mut cut = axes.clone();
    let target = (stage.len() / PIECE_SHARE).max(PIECE_MIN);
    while cut.iter().product::<usize>() > target {
        let Some(longest) = cut.iter_mut().max_by_key(|d| **d).filter(|d| **d > 1) else { break };
        *longest = longest.div_ceil(2);
    }
    // The last axis is contiguous.
    let piece = each!(words, v => Word::wrap(block(v, &axes, &cut)));
    (piece, Stage { axes: cut, ..stage.clone() })
}

fn block<W: Word>(v: &[W], axes: &[usize], cut: &[usize]) -> Vec<W> {
    let (Some((&length, outer)), Some((&kept, outer_cut))) = (axes.split_first(), cut.split_first()) else {
        return v.to_vec();
    };
    let start = (length - kept) / 2;
    if outer.is_empty() {
        return v[start..start + kept].to_vec();
    }
    let stride = v.len() / length;
    (start..start + kept).flat_map(|i| block(&v[i * stride..(i + 1) * stride], outer, outer_cut)).collect()
}

/// The sets of axes whose differences have the fewest bits on the piece, best first; at least one.
pub(super) fn best_axes(base: &Base, count: usize) -> Vec<u8> {
    let rank = squeeze(&base.piece_stage.axes, 4).len();
    let whole_rank = squeeze(&base.stage.axes, 4).len();
    // A piece may be so thin that it lacks an axis.
    let rank = rank.min(whole_rank);
    let mut scored: Vec<(u64, u8)> = (1..1u8 << rank)
        .map(|axes| {
            let mut words = base.piece.clone();
            lorenzo::apply(&mut words, base.piece_stage.kind, &base.piece_stage.axes, axes, true);
            let bits = each!(&words, v => v.iter().map(|w| u64::from(64 - w.wide().leading_zeros())).sum::<u64>());
            (bits, axes)
        })
        .collect();
    scored.sort_unstable();
    scored.truncate(count);
    if scored.is_empty() {
        scored.push((0, 1));
    }
    scored.into_iter().map(|(_, axes)| axes).collect()
}
