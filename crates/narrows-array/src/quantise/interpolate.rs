//! Interpolation: each value is predicted from already decoded ones at both sides, first far apart, then
//! closer, and the difference is quantised. Because the prediction comes from decoded values, smooth
//! fields give zeros at loose bounds; quantising first and predicting integers would give noise.

use super::{Collector, Quantised, ROUNDER, cell, limit};
use crate::bound::Tolerance;
use crate::numbers::Float;
use crate::step::{Stage, squeeze};
use crate::words::{Word, Words};

/// Flag: values between two neighbours instead of four.
const LINEAR: u8 = 1;
/// Flag: the last axis first.
const REVERSED: u8 = 2;

/// Cells of farther levels are narrower, since more depends on them: by this factor for each level,
const NARROWING: f64 = 1.35;
/// and by this one at most.
const NARROWEST: f64 = 3.0;

fn three(axes: &[usize]) -> [usize; 3] {
    let squeezed = squeeze(axes, 3);
    let mut three = [1; 3];
    three[3 - squeezed.len()..].copy_from_slice(&squeezed);
    three
}

/// Number of levels: distances 1, 2, 4, up to less than the longest axis.
pub(crate) fn levels(axes: &[usize]) -> usize {
    let longest = three(axes).into_iter().max().unwrap_or(1);
    (usize::BITS - (longest - 1).leading_zeros()) as usize
}

pub(crate) fn apply<T: Float>(words: &Words, v: &[T::Bits], stage: &Stage, tolerance: &Tolerance) -> Option<Quantised> {
    let step = cell::<T>(v, tolerance)?;
    let axes = three(&stage.axes);
    let flags = choose_flags::<T>(v, axes);
    let narrow: Vec<f64> =
        (0..levels(&stage.axes)).map(|level| 1.0 / NARROWING.powi(level as i32).min(NARROWEST)).collect();
    let limit = limit::<T>();
    let mut collector = Collector::new(tolerance);
    let mut differences: Vec<f64> = Vec::with_capacity(v.len());
    let mut grid = vec![0.0; v.len()];
    visit(axes, flags, step, &narrow, &mut grid, |place, predicted, step, inverse| {
        let x = T::value(v[place]);
        let q = ((x - predicted) * inverse + ROUNDER) - ROUNDER;
        let y = predicted + q * step;
        if q.abs() < limit && collector.takes(x, T::value(T::bits(y))) {
            differences.push(q);
            y
        } else {
            collector.except(place, x);
            differences.push(0.0);
            predicted
        }
    });
    let q = if T::Bits::BYTES == 8 {
        Words::W8(differences.into_iter().map(|q| q as i64 as u64).collect())
    } else {
        Words::W4(differences.into_iter().map(|q| q as i32 as u32).collect())
    };
    let parameters = [step, f64::from(flags)].into_iter().chain(narrow).collect();
    Some(collector.finish(words, q, parameters, None))
}

pub(crate) fn invert<T: Float>(q: &Words, parameters: &[f64], axes: &[usize]) -> Option<Words> {
    let (&[step, flags], narrow) = parameters.split_first_chunk::<2>()?;
    let flags = (0..4u8).find(|&f| f64::from(f) == flags)?;
    let mut grid = vec![0.0; q.len()];
    let axes = three(axes);
    match q {
        Words::W8(q) => {
            let mut q = q.iter();
            visit(axes, flags, step, narrow, &mut grid, |_, predicted, step, _| {
                predicted + q.next().map_or(0.0, |&q| q as i64 as f64) * step
            });
        }
        Words::W4(q) => {
            let mut q = q.iter();
            visit(axes, flags, step, narrow, &mut grid, |_, predicted, step, _| {
                predicted + q.next().map_or(0.0, |&q| f64::from(q as i32)) * step
            });
        }
        _ => return None,
    }
    Some(T::Bits::wrap(grid.into_iter().map(T::bits).collect()))
}

/// Visits every element: the first one, then for each distance from the largest power of two down to 1
/// and for each axis those whose index along it is an odd multiple of the distance, along axes before it
/// a multiple, along axes behind it a multiple of twice the distance. `value` gets place, prediction,
/// cell and its inverse, and returns what the decoder will have there.
fn visit(
    axes: [usize; 3],
    flags: u8,
    step: f64,
    narrow: &[f64],
    grid: &mut [f64],
    mut value: impl FnMut(usize, f64, f64, f64) -> f64,
) {
    let strides = [axes[1] * axes[2], axes[2], 1];
    let order = if flags & REVERSED != 0 { [2, 1, 0] } else { [0, 1, 2] };
    let cubic = flags & LINEAR == 0;
    let far = narrow.last().copied().unwrap_or(1.0) * step;
    if let Some(first) = grid.first_mut() {
        *first = value(0, 0.0, far, 1.0 / far);
    }
    for (level, narrow) in narrow.iter().enumerate().rev() {
        let distance = 1 << level;
        let cell = step * narrow;
        let inverse = 1.0 / cell;
        // What each axis is walked by; an axis that was visited on this level has twice the density.
        let mut by = [2 * distance; 3];
        for axis in order {
            if axes[axis] > distance {
                let from = |a: usize| if a == axis { distance } else { 0 };
                let by_now = |a: usize| if a == axis { 2 * distance } else { by[a] };
                let reach = distance * strides[axis];
                for i in (from(0)..axes[0]).step_by(by_now(0)) {
                    for j in (from(1)..axes[1]).step_by(by_now(1)) {
                        let row = i * strides[0] + j * strides[1];
                        for k in (from(2)..axes[2]).step_by(by_now(2)) {
                            let place = row + k;
                            let at = [i, j, k][axis];
                            let predicted = predict(grid, place, reach, at, distance, axes[axis], cubic);
                            grid[place] = value(place, predicted, cell, inverse);
                        }
                    }
                }
            }
            by[axis] = distance;
        }
    }
}

/// The prediction along one axis, at index `at` of `length`, from neighbours at 1 and 3 distances.
#[inline(always)]
fn predict(grid: &[f64], place: usize, reach: usize, at: usize, distance: usize, length: usize, cubic: bool) -> f64 {
    let before = grid[place - reach];
    if at + distance < length {
        let behind = grid[place + reach];
        if cubic && at >= 3 * distance && at + 3 * distance < length {
            let (far_before, far_behind) = (grid[place - 3 * reach], grid[place + 3 * reach]);
            0.5625 * (before + behind) - 0.0625 * (far_before + far_behind)
        } else {
            0.5 * (before + behind)
        }
    } else if at >= 3 * distance {
        1.5 * before - 0.5 * grid[place - 3 * reach]
    } else {
        before
    }
}

/// Elements looked at for each choice of flags.
const SAMPLE: usize = 4096;

/// Compares predictions on the raw values at the finest level: which axis is smoothest and should come
/// last, where half of the elements are, and whether four neighbours predict better than two.
fn choose_flags<T: Float>(v: &[T::Bits], axes: [usize; 3]) -> u8 {
    let strides = [axes[1] * axes[2], axes[2], 1];
    let mut mean = [[f64::INFINITY; 2]; 3];
    for axis in 0..3 {
        let reach = strides[axis];
        if axes[axis] < 7 {
            continue;
        }
        let (mut sums, mut count) = ([0.0; 2], 0usize);
        let by = (v.len() / SAMPLE).max(1) | 1;
        for place in (3 * reach..v.len().saturating_sub(3 * reach)).step_by(by) {
            let at = place / reach % axes[axis];
            if at < 3 || at + 3 >= axes[axis] {
                continue;
            }
            let x = |d: isize| T::value(v[place.wrapping_add_signed(d * reach as isize)]);
            let near = x(-1) + x(1);
            let errors = [x(0) - 0.5625 * near + 0.0625 * (x(-3) + x(3)), x(0) - 0.5 * near].map(f64::abs);
            // Jumps to fill values tell nothing.
            if errors.iter().all(|e| *e < 1e15) {
                // The mean of roots bounds what single jumps weigh.
                sums[0] += errors[0].sqrt();
                sums[1] += errors[1].sqrt();
                count += 1;
            }
        }
        if count > 0 {
            mean[axis] = sums.map(|s| s / count as f64);
        }
    }
    let best = |axis: usize| mean[axis][0].min(mean[axis][1]);
    let smoothest = (0..3).min_by(|&a, &b| best(a).total_cmp(&best(b))).unwrap_or(2);
    let mut flags = 0;
    if smoothest == 0 && best(0) < best(2) || smoothest == 1 && best(0) < best(2) {
        flags |= REVERSED;
    }
    if mean[smoothest][1] < mean[smoothest][0] {
        flags |= LINEAR;
    }
    flags
}
