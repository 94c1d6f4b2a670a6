//! Interpolation: each value is predicted from already decoded ones at both sides, first far apart, then
//! closer, and the difference is quantised. Because the prediction comes from decoded values, smooth
//! fields give zeros at loose bounds; quantising first and predicting integers would give noise.

use std::ops::Range;

use super::{Collector, Quantised, ROUNDER, cell, integer, limit};
use crate::bound::{Tolerance, is_negative_zero};
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
    let mut collector = Collector::new(tolerance, tolerance.plain::<T>(v), v.len());
    let q = if T::Bits::BYTES == 8 {
        Words::W8(differences::<T, u64>(v, axes, flags, step, &narrow, &mut collector))
    } else {
        Words::W4(differences::<T, u32>(v, axes, flags, step, &narrow, &mut collector))
    };
    let parameters = [step, f64::from(flags)].into_iter().chain(narrow).collect();
    Some(collector.finish(words, q, parameters, None))
}

fn differences<T: Float, W: Word>(
    v: &[T::Bits],
    axes: [usize; 3],
    flags: u8,
    step: f64,
    narrow: &[f64],
    collector: &mut Collector<'_>,
) -> Vec<W> {
    let limit = limit::<T>();
    let plain = collector.plain;
    let mut differences = Vec::with_capacity(v.len());
    let mut grid = vec![0.0; v.len()];
    let (mut raw, mut q, mut decoded) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
    visit(axes, flags, step, narrow, &mut grid, |first, by, values, step, inverse| {
        let places = (first..).step_by(by);
        let mut all = true;
        for (x, place) in raw.iter_mut().zip(places.clone()).take(values.len()) {
            *x = T::value(v[place]);
            all &= v[place] != T::NEGATIVE_ZERO;
        }
        for (((q, y), &x), &predicted) in q.iter_mut().zip(&mut decoded).zip(&raw).zip(&*values) {
            *q = ((x - predicted) * inverse + ROUNDER) - ROUNDER;
            *y = predicted + *q * step;
            all &= (q.abs() < limit) & plain.takes(x, T::value(T::bits(*y)));
        }
        if !all {
            for ((((q, y), &x), &predicted), place) in
                q.iter_mut().zip(&mut decoded).zip(&raw).zip(&*values).zip(places)
            {
                let stored = T::value(T::bits(*y));
                let fits = q.abs() < limit;
                if fits && plain.takes(x, stored) && !is_negative_zero(x) {
                    continue;
                }
                if !collector.keeps(place, x) {
                    if fits && collector.takes(x, stored) {
                        continue;
                    }
                    collector.except(place, x);
                }
                (*q, *y) = (0.0, predicted);
            }
        }
        differences.extend(q[..values.len()].iter().map(|&q| integer::<W>(q)));
        values.copy_from_slice(&decoded[..values.len()]);
    });
    differences
}

pub(crate) fn invert<T: Float>(q: &Words, parameters: &[f64], axes: &[usize]) -> Option<Words> {
    let (&[step, flags], narrow) = parameters.split_first_chunk::<2>()?;
    let flags = (0..4u8).find(|&f| f64::from(f) == flags)?;
    let mut grid = vec![0.0; q.len()];
    let axes = three(axes);
    match q {
        Words::W8(q) => {
            let mut q = q.iter();
            visit(axes, flags, step, narrow, &mut grid, |_, _, values, step, _| {
                values.iter_mut().zip(&mut q).for_each(|(v, &q)| *v += q as i64 as f64 * step);
            });
        }
        Words::W4(q) => {
            let mut q = q.iter();
            visit(axes, flags, step, narrow, &mut grid, |_, _, values, step, _| {
                values.iter_mut().zip(&mut q).for_each(|(v, &q)| *v += f64::from(q as i32) * step);
            });
        }
        _ => return None,
    }
    Some(T::Bits::wrap(grid.into_iter().map(T::bits).collect()))
}

/// Visits every element: the first one, then for each distance from the largest power of two down to 1
/// and for each axis those whose index along it is an odd multiple of the distance, along axes before it
/// a multiple, along axes after it a multiple of twice the distance. `value` gets up to [`BLOCK`]
/// predictions, the first place and the distance of places, cell and its inverse, and replaces predictions
/// by what the decoder will have there.
fn visit(
    axes: [usize; 3],
    flags: u8,
    step: f64,
    narrow: &[f64],
    grid: &mut [f64],
    mut value: impl FnMut(usize, usize, &mut [f64], f64, f64),
) {
    let strides = [axes[1] * axes[2], axes[2], 1];
    let order = if flags & REVERSED != 0 { [2, 1, 0] } else { [0, 1, 2] };
    let cubic = flags & LINEAR == 0;
    let far = narrow.last().copied().unwrap_or(1.0) * step;
    value(0, 1, &mut grid[..1], far, 1.0 / far);
    let mut block = [0.0; BLOCK];
    for (level, narrow) in narrow.iter().enumerate().rev() {
        let distance = 1 << level;
        let cell = step * narrow;
        let inverse = 1.0 / cell;
        // What each axis is walked by; an axis that was visited on this level has twice the density.
        let mut by = [2 * distance; 3];
        for axis in order {
            let (length, reach) = (axes[axis], distance * strides[axis]);
            if length > distance {
                let from = |a: usize| if a == axis { distance } else { 0 };
                let by_now = |a: usize| if a == axis { 2 * distance } else { by[a] };
                let known = |at: usize| Known::of(at, distance, length, cubic);
                let mut run = |places: Range<usize>, known: Known| {
                    walk(grid, &mut block, places, by_now(2), reach, known, |first, by, values| {
                        value(first, by, values, cell, inverse)
                    });
                };
                for i in (from(0)..axes[0]).step_by(by_now(0)) {
                    for j in (from(1)..axes[1]).step_by(by_now(1)) {
                        let row = i * strides[0] + j * strides[1];
                        if axis < 2 {
                            run(row..row + axes[2], known([i, j][axis]));
                            continue;
                        }
                        // All but the ends of the row have all neighbours.
                        let mut at = distance;
                        let margin = if cubic { 3 * distance } else { distance };
                        while at < length {
                            let same = if at >= margin && at + margin < length {
                                (length - margin - at).div_ceil(2 * distance)
                            } else {
                                1
                            };
                            let end = at + same * 2 * distance;
                            run(row + at..row + end.min(length), known(at));
                            at = end;
                        }
                    }
                }
            }
            by[axis] = distance;
        }
    }
}

/// Which neighbours of an element are known.
#[derive(Clone, Copy)]
enum Known {
    /// At 1 and 3 distances at both sides.
    Four,
    /// At 1 distance at both sides.
    Two,
    /// At 1 and 3 distances before.
    Before,
    /// At 1 distance before.
    One,
}

impl Known {
    /// At index `at` of `length`.
    fn of(at: usize, distance: usize, length: usize, cubic: bool) -> Self {
        let far_before = at >= 3 * distance;
        match at + distance < length {
            true if cubic && far_before && at + 3 * distance < length => Self::Four,
            true => Self::Two,
            false if far_before => Self::Before,
            false => Self::One,
        }
    }
}

/// Values that are predicted and quantised at once: none of them depends on another.
const BLOCK: usize = 32;

/// Visits places, each predicted along one axis from the same neighbours.
#[inline]
fn walk(
    grid: &mut [f64],
    block: &mut [f64; BLOCK],
    places: Range<usize>,
    by: usize,
    reach: usize,
    known: Known,
    mut value: impl FnMut(usize, usize, &mut [f64]),
) {
    let mut first = places.start;
    while first < places.end {
        let count = (places.end - first).div_ceil(by).min(BLOCK);
        let here = (first..).step_by(by);
        let values = &mut block[..count];
        let each = values.iter_mut().zip(here.clone());
        match known {
            Known::Four => each.for_each(|(v, place)| {
                let near = grid[place - reach] + grid[place + reach];
                let far = grid[place - 3 * reach] + grid[place + 3 * reach];
                *v = 0.5625 * near - 0.0625 * far;
            }),
            Known::Two => each.for_each(|(v, place)| *v = 0.5 * (grid[place - reach] + grid[place + reach])),
            Known::Before => {
                each.for_each(|(v, place)| *v = 1.5 * grid[place - reach] - 0.5 * grid[place - 3 * reach]);
            }
            Known::One => each.for_each(|(v, place)| *v = grid[place - reach]),
        }
        value(first, by, values);
        values.iter().zip(here).for_each(|(v, place)| grid[place] = *v);
        first += count * by;
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
