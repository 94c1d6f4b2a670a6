//! Comparing a variable with its original, element by element.

use std::collections::HashMap;
use std::num::NonZero;

use narrows::{Error, ErrorKind, Result};
use narrows_array::{Dtype, Kept};

use crate::cut::each_place;
use crate::number::{values, wide};
use crate::reader::{Reader, chunks_of};
use crate::store::Store;
use crate::variable::{Chunk, Variable, product, words};
use crate::{limits, parallel};

/// Elements that are compared at once.
const PIECE: u64 = 1 << 20;
/// Chunks of a variable that either side stores: it takes microseconds to compare one.
const PIECES_MAX: u64 = 1 << 26;

/// How two variables differ.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    /// Numbers compared; complex elements are two, and each byte of text is one.
    pub count: u64,
    /// Numbers whose values differ.
    pub different: u64,
    /// The largest difference of finite numbers.
    pub worst_abs: f64,
    /// The largest difference as a share of the original, where that is not 0.
    pub worst_rel: f64,
    /// Sum of the squares of all differences.
    squares: f64,
    /// Numbers that count for `squares` and the range: finite, and no fill values.
    finite: u64,
    low: Option<f64>,
    high: Option<f64>,
    /// Numbers that are further off than their chunk states, or not exact although it states no bound;
    /// `None` if Narrows wrote none of them, and nobody stated anything.
    pub broken: Option<u64>,
    /// Those of them that mark what is missing in the original, by its attributes, and changed.
    pub missing_changed: u64,
    /// First element of the first piece with one of those.
    pub broken_at: Option<Vec<u64>>,
    /// What could not be compared, and why.
    pub failed: Vec<String>,
    /// Whether that is because it is damaged.
    pub is_damaged: bool,
}

impl Errors {
    /// Root of the mean square of all differences.
    pub fn rmse(&self) -> f64 {
        if self.finite == 0 { 0.0 } else { (self.squares / self.finite as f64).sqrt() }
    }

    /// Range of the original's numbers, fill values left out.
    pub fn range(&self) -> f64 {
        self.high.unwrap_or(0.0) - self.low.unwrap_or(0.0)
    }

    /// Peak signal to noise in dB: 20 log10(range / rmse); infinite if nothing differs.
    pub fn psnr_db(&self) -> f64 {
        let rmse = self.rmse();
        if rmse == 0.0 { f64::INFINITY } else { 20.0 * (self.range() / rmse).log10() }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.different += other.different;
        self.worst_abs = self.worst_abs.max(other.worst_abs);
        self.worst_rel = self.worst_rel.max(other.worst_rel);
        self.squares += other.squares;
        self.finite += other.finite;
        self.low = self.low.into_iter().chain(other.low).reduce(f64::min);
        self.high = self.high.into_iter().chain(other.high).reduce(f64::max);
        if let Some(broken) = other.broken {
            *self.broken.get_or_insert(0) += broken;
        }
        self.missing_changed += other.missing_changed;
        self.broken_at = self.broken_at.take().into_iter().chain(other.broken_at).min();
        self.failed.extend(other.failed);
        self.is_damaged |= other.is_damaged;
    }

    /// Counts elements that neither side stores, which are the same fill value.
    fn unwritten(&mut self, variable: &Variable, elements: u64, fills: &[f64]) {
        let one = if variable.fill.is_empty() { vec![0; variable.element.bytes] } else { variable.fill.clone() };
        let numbers = values(variable, &one);
        if elements == 0 {
            return;
        }
        for x in numbers {
            self.count = self.count.saturating_add(elements);
            if x.is_finite() && !fills.contains(&x) {
                self.finite = self.finite.saturating_add(elements);
                self.low = Some(self.low.map_or(x, |low| low.min(x)));
                self.high = Some(self.high.map_or(x, |high| high.max(x)));
            }
        }
        if variable.is_narrows() {
            self.broken.get_or_insert(0);
        }
    }

    fn add(&mut self, x: f64, y: f64, error: f64, fills: &[f64]) {
        self.count += 1;
        // Neither the sign of 0 nor the payload of NaN is a value.
        let is_same = x.is_nan() && y.is_nan() || x == y && (error == 0.0 || error.is_nan());
        if !is_same {
            self.different += 1;
            if error.is_nan() || error.is_infinite() {
                self.worst_abs = f64::INFINITY;
                self.worst_rel = f64::INFINITY;
                return;
            }
            self.worst_abs = self.worst_abs.max(error);
            if x != 0.0 {
                self.worst_rel = self.worst_rel.max(error / x.abs());
            }
            self.squares += error * error;
        }
        if x.is_finite() && !fills.contains(&x) {
            self.finite += 1;
            self.low = Some(self.low.map_or(x, |low| low.min(x)));
            self.high = Some(self.high.map_or(x, |high| high.max(x)));
        }
    }
}

/// Whether a chunk's bound allows an error at x; without a bound only none.
fn allows(kept: Option<&Kept>, x: f64, y: f64, error: f64) -> bool {
    if x.is_nan() || y.is_nan() {
        return x.is_nan() && y.is_nan();
    }
    if !x.is_finite() {
        return x == y;
    }
    let Some(kept) = kept else { return error == 0.0 };
    let relative = kept.rel.map_or(f64::INFINITY, |rel| (rel * x.abs()).max(kept.floor.unwrap_or(0.0)));
    error <= kept.abs.unwrap_or(f64::INFINITY).min(relative)
}

/// One variable and the file that it is in.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The file.
    pub store: &'a Store,
    /// One of its variables.
    pub variable: &'a Variable,
}

/// Compares a variable with its original, of the same shape and of any type of numbers.
///
/// # Errors
/// They cannot be compared: shapes differ, or elements are neither numbers nor text of one length. Chunks
/// that cannot be read are in the result.
pub fn compare(checked: Side<'_>, original: Side<'_>, threads: NonZero<usize>) -> Result<Errors> {
    let (a, b) = (checked.variable, original.variable);
    if a.shape != b.shape {
        return Err(Error::misuse(format!("the shapes differ: {:?} here, {:?} in the original", a.shape, b.shape)));
    }
    let numbers = |v: &Variable| values(v, &vec![0; v.element.bytes]).len();
    let text = (a.element.is_text(), b.element.is_text());
    let is_like = text.0 == text.1 && (!text.0 || a.element.order == b.element.order);
    if numbers(a) == 0 || numbers(a) != numbers(b) || !is_like {
        let (a, b) = (&a.element.name, &b.element.name);
        return Err(Error::misuse(format!("{a} with {b}: only numbers, and text of one length, are compared")));
    }
    if let Some(what) = [a, b].iter().find_map(|v| v.unseen.first()) {
        return Err(Error::unsupported(format!("a part of it is not read: {what}")));
    }
    let (ours, theirs) = (chunks_of(checked.store, a)?, chunks_of(original.store, b)?);
    for (variable, chunks) in [(a, &ours), (b, &theirs)] {
        if let Some(filter) = variable.filters.iter().find(|f| !f.is_known() && !chunks.is_empty()) {
            return Err(Error::unsupported(format!("this program cannot undo {}", filter.name)));
        }
    }
    // Text is as many numbers as it has bytes.
    let most = if text.0 { (PIECE / a.element.bytes as u64).max(1) } else { PIECE };
    let chunk = a.chunk.clone().unwrap_or_else(|| piece(&a.shape, most));
    let counts: Vec<u64> = a.shape.iter().zip(&chunk).map(|(n, c)| n.div_ceil(*c)).collect();
    let stored = if same_fill(a, b) { stored(&counts, &chunk, [(a, &ours), (b, &theirs)]) } else { None };
    let count = stored.as_ref().map_or_else(|| product(&counts), |list| list.len() as u64);
    if count > PIECES_MAX {
        return Err(Error::limit(format!("{count} chunks are to be compared, more than {PIECES_MAX}")));
    }
    let mut fills = values(a, &a.fill);
    fills.extend(values(b, &b.fill));
    // A fill of 0 is what files have whose writer states none.
    fills.retain(|f| *f != 0.0);
    let missing = missing(a, b);
    fills.extend(&missing);
    let state = || {
        let readers = (Reader::new(checked.store, a, &ours), Reader::new(original.store, b, &theirs));
        (Errors::default(), readers)
    };
    let longest = a.chunk_raw_len().max(b.chunk.as_ref().and_then(|_| b.chunk_raw_len()));
    let threads = limits::threads(longest, threads);
    let parts = parallel::run(count as usize, threads, state, |(errors, readers), i| {
        let origin = origin(stored.as_ref().map_or(i as u64, |list| list[i]), &counts, &chunk);
        let size: Vec<u64> = a.shape.iter().zip(&origin).zip(&chunk).map(|((n, o), c)| (*c).min(n - o)).collect();
        let mut result = Ok(());
        // A chunk may be long, and its numbers take up to 16 times its bytes.
        let part = piece(&size, most);
        let parts: Vec<u64> = size.iter().zip(&part).map(|(n, p)| n.div_ceil(*p)).collect();
        each_place(&parts, |place| {
            if result.is_ok() {
                let from: Vec<u64> = place.iter().zip(&part).map(|(i, p)| i * p).collect();
                let len: Vec<u64> = from.iter().zip(&size).zip(&part).map(|((f, n), p)| (*p).min(n - f)).collect();
                let from: Vec<u64> = from.iter().zip(&origin).map(|(f, o)| f + o).collect();
                result = compare_piece(readers, (a, b), &origin, (&from, &len), (&fills, &missing), errors);
            }
        });
        if let Err(error) = result {
            errors.is_damaged |= !matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Limit);
            if errors.failed.len() < crate::check::LISTED_MAX {
                errors.failed.push(format!("chunk at {origin:?}: {}", words(&error)));
            }
        }
    });
    let mut all = Errors::default();
    parts.into_iter().for_each(|part| all.merge(part.0));
    if let Some(list) = &stored {
        let elements = |i: u64| {
            let origin = origin(i, &counts, &chunk);
            product(&a.inner(&origin).iter().zip(&chunk).map(|(n, c)| *n.min(c)).collect::<Vec<_>>())
        };
        let seen = list.iter().map(|i| elements(*i)).fold(0, u64::saturating_add);
        all.unwritten(a, product(&a.shape).saturating_sub(seen), &fills);
    }
    Ok(all)
}

/// Whether elements that were never written are the same on both sides.
fn same_fill(a: &Variable, b: &Variable) -> bool {
    let one = |v: &Variable| if v.fill.is_empty() { vec![0; v.element.bytes] } else { v.fill.clone() };
    let (y, x) = (one(a), one(b));
    let pairs = || values(a, &y).into_iter().zip(values(b, &x));
    let is_wide = |v: &Variable| matches!(v.element.dtype, Some(Dtype::I64 | Dtype::U64));
    pairs().all(|(y, x)| x == y || x.is_nan() && y.is_nan())
        && (!is_wide(a) || !is_wide(b) || wide(a, &y) == wide(b, &x))
}

/// A variable with its chunks.
type Stored<'a> = (&'a Variable, &'a HashMap<Vec<u64>, Chunk>);

/// Numbers of the pieces of a grid in which a side stores anything; `None` if that may be all of them.
fn stored(counts: &[u64], chunk: &[u64], sides: [Stored<'_>; 2]) -> Option<Vec<u64>> {
    let all = counts.iter().try_fold(1u64, |n, count| n.checked_mul(*count))?;
    let mut boxes = Vec::new();
    for (variable, chunks) in sides {
        match &variable.chunk {
            None if chunks.is_empty() => {}
            None => return None,
            // Pieces from the first to the last that a chunk reaches into, along each axis.
            Some(shape) => boxes.extend(chunks.keys().map(|origin| {
                let ends =
                    origin.iter().zip(shape).zip(&variable.shape).map(|((o, n), all)| o.saturating_add(*n).min(*all));
                let first: Vec<u64> = origin.iter().zip(chunk).map(|(o, c)| o / c).collect();
                // Arrays that shrank may keep chunks that are beyond them.
                let len: Vec<u64> =
                    ends.zip(chunk).zip(&first).map(|((end, c), f)| end.div_ceil(*c).saturating_sub(*f)).collect();
                (first, len)
            })),
        }
    }
    let most = boxes.iter().map(|b| product(&b.1)).fold(0, u64::saturating_add);
    if most >= all || most > PIECES_MAX {
        return None;
    }
    let mut out = Vec::new();
    for (first, len) in &boxes {
        each_place(len, |place| {
            let axes = place.iter().zip(first).zip(counts);
            out.push(axes.fold(0u64, |number, ((p, f), count)| number.saturating_mul(*count).saturating_add(p + f)));
        });
    }
    out.sort_unstable();
    out.dedup();
    Some(out)
}

/// Values that mark what is missing in the original, as its own elements. Its attributes may be of another type.
fn missing(a: &Variable, original: &Variable) -> Vec<f64> {
    let named = original.missing.iter().filter(|_| a.element.is_numeric());
    named.map(|v| cast(original, *v)).filter(|v| v.is_finite()).collect()
}

/// The value that an element can have which is nearest to this.
fn cast(variable: &Variable, value: f64) -> f64 {
    match variable.element.dtype {
        Some(Dtype::F16) => half::f16::from_f64(value).to_f64(),
        Some(Dtype::F32 | Dtype::C64) => f64::from(value as f32),
        _ => value,
    }
}

fn compare_piece(
    (ours, theirs): &mut (Reader<'_>, Reader<'_>),
    (a, b): (&Variable, &Variable),
    origin: &[u64],
    (from, size): (&[u64], &[u64]),
    (fills, missing): (&[f64], &[f64]),
    errors: &mut Errors,
) -> Result<()> {
    let (y_bytes, x_bytes) = (ours.read(from, size)?, theirs.read(from, size)?);
    let info = ours.info(origin)?;
    let kept = info.as_ref().and_then(|info| info.bound.as_ref());
    let (ys, xs) = (values(a, &y_bytes), values(b, &x_bytes));
    // Integers of 8 bytes differ by less than their rounding to floats.
    let is_wide = |v: &Variable| matches!(v.element.dtype, Some(Dtype::I64 | Dtype::U64));
    let exact = (is_wide(a) && is_wide(b)).then(|| (wide(b, &x_bytes), wide(a, &y_bytes)));
    let mut broken = 0;
    for (i, (&x, &y)) in xs.iter().zip(&ys).enumerate() {
        let error = match &exact {
            Some((xs, ys)) => (xs[i] - ys[i]).unsigned_abs() as f64,
            None => (x - y).abs(),
        };
        errors.add(x, y, error, fills);
        // Where x marks what is missing, no error is small: the mask would be lost.
        let is_lost = !missing.is_empty() && x != y && missing.contains(&x) && cast(a, x) != y;
        errors.missing_changed += u64::from(is_lost && a.is_narrows());
        broken += u64::from(is_lost || !allows(kept, x, y, error));
    }
    if a.is_narrows() {
        *errors.broken.get_or_insert(0) += broken;
        if broken > 0 && errors.broken_at.is_none() {
            errors.broken_at = Some(origin.to_vec());
        }
    }
    Ok(())
}

/// First element of the chunk of a number, the last axis fastest.
fn origin(mut number: u64, counts: &[u64], chunk: &[u64]) -> Vec<u64> {
    let mut out = vec![0; counts.len()];
    for axis in (0..out.len()).rev() {
        out[axis] = number % counts[axis] * chunk[axis];
        number /= counts[axis];
    }
    out
}

/// A piece of an array without chunks, or of a long chunk: whole axes at the end.
fn piece(shape: &[u64], most: u64) -> Vec<u64> {
    let mut left = most;
    let mut out = vec![1; shape.len()];
    for (part, n) in out.iter_mut().zip(shape).rev() {
        *part = (*n).clamp(1, left.max(1));
        left /= (*part).max(1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_together_and_only_for_numbers() {
        let kept = Kept { abs: Some(1.0), rel: Some(0.1), floor: Some(0.01), ..Kept::default() };
        let allows = |x: f64, y: f64| allows(Some(&kept), x, y, (x - y).abs());
        assert!(allows(100.0, 101.0) && !allows(100.0, 101.5), "abs is the tighter one");
        assert!(allows(1.0, 1.1 - 1e-9) && !allows(1.0, 1.2), "rel is the tighter one");
        assert!(allows(0.0, 0.01) && !allows(0.0, 0.02), "the floor");
        assert!(allows(f64::NAN, f64::NAN) && !allows(f64::NAN, 1.0) && !allows(1.0, f64::NAN));
        assert!(!allows(f64::INFINITY, 1.0) && allows(f64::INFINITY, f64::INFINITY));
        assert!(super::allows(None, 2.0, 2.0, 0.0) && !super::allows(None, 2.0, 2.1, 0.1));
    }

    #[test]
    fn missing_values_are_those_of_the_elements() {
        let of = |dtype| Variable::new(String::new(), crate::Element::of(dtype, Default::default()), vec![1]);
        let mut original = of(Dtype::F32);
        original.missing = vec![1e20, -9999.0, f64::NAN];
        assert_eq!(missing(&of(Dtype::F32), &original), [f64::from(1e20f32), -9999.0]);
        assert!(missing(&of(Dtype::Record(4)), &original).is_empty());
    }

    #[test]
    fn a_long_array_is_cut_into_rows() {
        assert_eq!(piece(&[10, 1 << 19, 2], PIECE), [1, 1 << 19, 2]);
        assert_eq!(piece(&[1 << 30], PIECE), [PIECE]);
        assert!(piece(&[], PIECE).is_empty());
        assert_eq!(origin(5, &[2, 3], &[10, 7]), [10, 14]);
    }
}
