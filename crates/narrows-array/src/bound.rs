//! Bounds: what a caller allows values to change by, and what is kept exactly.

use narrows::{Error, Result};

use crate::numbers::{Float, half_bits, to_f64, with_floats};
use crate::step::Stage;
use crate::view::{ArrayView, Dtype};
use crate::words::{Kind, Words};

/// What may change, as hints. All that are stated hold at once. Nothing stated means lossless, and so
/// does a 0. For integers, a relative bound counts as the absolute one of the value nearest to 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bound {
    /// abs(x - y) <= abs.
    pub abs: Option<f64>,
    /// abs(x - y) <= range_rel times the range of the values: [`Bound::range`], or that of the chunk.
    pub range_rel: Option<f64>,
    /// abs(x - y) <= max(rel abs(x), floor).
    pub rel: Option<f64>,
    /// The least error that `rel` allows.
    pub floor: Option<f64>,
    /// So many significant decimal digits: abs(x - y) <= 0.5 10^(1-d) abs(x).
    pub digits: Option<u32>,
    /// So many significant bits after the leading one: abs(x - y) <= 2^-(b+1) abs(x).
    pub bits: Option<u32>,
    /// Range of the array that the chunk is of, without fill values. A chunk alone knows its own only,
    /// which is no wider.
    pub range: Option<f64>,
    /// Values that stay bit-exact: fill values.
    pub fills: Vec<f64>,
    /// Ranges of values, both ends included, that stay bit-exact.
    pub exact: Vec<(f64, f64)>,
    /// Chunks may be decoded, changed in part and encoded again, any number of times: what was rounded
    /// once comes back as it is, so that errors do not add up. Costs some of the ratio. HDF5 and Zarr
    /// write parts of chunks that way.
    pub rewritable: bool,
}

impl Bound {
    /// An absolute bound.
    pub fn abs(abs: f64) -> Self {
        Self { abs: Some(abs), ..Self::default() }
    }

    /// Whether nothing may change.
    pub fn is_lossless(&self) -> bool {
        let stated = [self.abs, self.range_rel, self.rel];
        let none = stated.iter().all(Option::is_none) && self.digits.is_none() && self.bits.is_none();
        none || [self.abs, self.range_rel].contains(&Some(0.0)) || self.rel == Some(0.0) && self.floor.is_none()
    }

    /// # Errors
    /// A number is negative or not finite, or a floor stands without `rel`.
    pub fn check(&self) -> Result<()> {
        let numbers = [self.abs, self.range_rel, self.rel, self.floor, self.range];
        if numbers.iter().flatten().any(|v| !v.is_finite() || *v < 0.0) {
            return Err(Error::misuse("a bound is a finite number, 0 or more; 0 means exact"));
        }
        if self.floor.is_some() && self.rel.is_none() {
            return Err(Error::misuse("floor= is the least error that rel= allows; state rel= too, or abs="));
        }
        if self.digits == Some(0) || self.bits.is_some_and(|b| b > 1074) || self.digits.is_some_and(|d| d > 324) {
            return Err(Error::misuse("significant digits are 1 to 324, significant bits 0 to 1074"));
        }
        Ok(())
    }

    pub(crate) fn keep(&self, words: &Words, kind: Kind) -> Keep {
        Keep::new(&self.fills, &self.exact, words, kind)
    }

    /// As [`Bound::resolve`]. Truth values and records are no numbers that could be off.
    pub(crate) fn for_array(&self, view: &ArrayView<'_>, loaded: &(Words, Stage)) -> Option<Tolerance> {
        let numbers = !matches!(view.dtype, Dtype::Bool | Dtype::Record(_));
        numbers.then(|| self.resolve(&loaded.0, loaded.1.kind))?
    }

    /// The bound in force for a chunk, or `None` if it is lossless.
    pub(crate) fn resolve(&self, words: &Words, kind: Kind) -> Option<Tolerance> {
        if self.is_lossless() {
            return None;
        }
        let grid = match (self.rewritable, self.range_rel) {
            (false, _) => Grid::Best,
            (true, None) => Grid::Fixed,
            (true, Some(_)) => Grid::Nested,
        };
        let mut tolerance = Tolerance { abs: None, rel: None, floor: None, grid, keep: self.keep(words, kind) };
        let tighter = |a: Option<f64>, b: f64| Some(a.map_or(b, |a| a.min(b)));
        if let Some(abs) = self.abs {
            tolerance.abs = tighter(tolerance.abs, abs);
        }
        if let Some(range_rel) = self.range_rel {
            let range = self.range.or_else(|| range(words, kind, &tolerance.keep))?;
            // One step down, since the product was rounded.
            tolerance.abs = tighter(tolerance.abs, (range_rel * range).next_down());
        }
        // A floor is part of `rel` only: digits and bits have none, and all must hold.
        let digits = self.digits.map(|d| (0.5 * 10f64.powi(1 - d as i32)).next_down());
        let bits = self.bits.map(|b| 2f64.powi(-(b as i32) - 1));
        tolerance.rel = [self.rel, digits, bits].into_iter().flatten().reduce(f64::min);
        if digits.is_none() && bits.is_none() {
            tolerance.floor = self.floor.filter(|&f| f > 0.0);
        }
        // Then `abs` is the tighter one everywhere.
        if tolerance.floor.zip(tolerance.abs).is_some_and(|(floor, abs)| floor >= abs) {
            (tolerance.rel, tolerance.floor) = (None, None);
        }
        if grid == Grid::Nested && tolerance.rel.is_some() {
            // No grid serves a share of values and a range that may grow.
            return None;
        }
        if kind != Kind::Float {
            tolerance = tolerance.for_integers(words, kind)?;
        } else if grid != Grid::Best {
            // What follows depends on the values, which other writes may change.
        } else if let (Some(abs), Some(_)) = (tolerance.abs, tolerance.rel) {
            // So it is, too, where no value is small: a share of values needs logarithms, or more exceptions.
            let values = to_f64(words, kind).filter(|v| v.is_finite() && !tolerance.keep.has(*v));
            if values.map(f64::abs).reduce(f64::min).is_some_and(|least| tolerance.at(least) >= abs) {
                (tolerance.rel, tolerance.floor) = (None, None);
            }
        }
        let useful = |v: Option<f64>| v.is_none_or(|v| v > 0.0 && v.is_finite());
        if tolerance.rel == Some(0.0) && tolerance.floor.is_some() {
            let floor = tolerance.floor.take()?;
            tolerance.abs = tighter(tolerance.abs, floor);
            tolerance.rel = None;
        }
        (useful(tolerance.abs) && useful(tolerance.rel)).then_some(tolerance)
    }
}

/// Values that stay exact.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Keep {
    /// Fill values, as values of the element's type.
    fills: Vec<f64>,
    exact: Vec<(f64, f64)>,
}

impl Keep {
    fn new(fills: &[f64], exact: &[(f64, f64)], words: &Words, kind: Kind) -> Self {
        let cast = |&v: &f64| match (kind, words) {
            (Kind::Float, Words::W2(_)) => half::f16::from_bits(half_bits(v)).to_f64(),
            (Kind::Float, Words::W4(_)) => f64::from(v as f32),
            _ => v,
        };
        Self { fills: fills.iter().map(cast).collect(), exact: exact.to_vec() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fills.is_empty() && self.exact.is_empty()
    }

    #[inline]
    pub(crate) fn has(&self, v: f64) -> bool {
        self.fills.contains(&v) || self.exact.iter().any(|&(low, high)| low <= v && v <= high)
    }
}

/// The bound in force: abs(x - y) <= min(abs, max(rel abs(x), floor)).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tolerance {
    pub abs: Option<f64>,
    pub rel: Option<f64>,
    pub floor: Option<f64>,
    pub grid: Grid,
    pub keep: Keep,
}

/// Where rounded values may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Where the values of the chunk compress best.
    Best,
    /// On points that the hints alone say: a value that was rounded before lies on one, and stays there.
    Fixed,
    /// On multiples of a power of two up to half the cell that the bound allows. The range of the chunk, and
    /// the bound with it, may grow from write to write: points are then points of the finer grids
    /// before, whose errors sum up to less than the latest bound (1/2 + 1/4 + ... of it).
    Nested,
}

impl Tolerance {
    /// The error that x allows.
    #[inline]
    pub(crate) fn at(&self, x: f64) -> f64 {
        let mut tolerance = self.abs.unwrap_or(f64::INFINITY);
        if let Some(rel) = self.rel {
            // One step down, since the product was rounded; at 0 it stays 0.
            let product = rel * x.abs();
            let product = if product > 0.0 { product.next_down() } else { 0.0 };
            tolerance = tolerance.min(product.max(self.floor.unwrap_or(0.0)));
        }
        tolerance
    }

    /// Whether y may stand for x, where both are finite. Rounding the difference must not hide a miss:
    /// below the tolerance it cannot, at it the difference must be exact.
    #[inline]
    pub(crate) fn allows(&self, x: f64, y: f64) -> bool {
        let tolerance = self.at(x);
        let error = (x - y).abs();
        error < tolerance || x == y || error == tolerance && is_exact(x, y)
    }

    /// The short way for these values.
    pub(crate) fn plain<T: Float>(&self, v: &[T::Bits]) -> Plain {
        let Some(abs) = self.abs.filter(|_| self.rel.is_none()) else { return Plain::NONE };
        // Fills mostly come in long runs.
        let mut values = v.iter().step_by(SPARSE).chain(v).map(|&w| T::value(w));
        let Some(usual) = values.find(|x| x.is_finite() && !self.keep.has(*x)) else { return Plain::NONE };
        let mut plain = Plain { low: f64::NEG_INFINITY, high: f64::INFINITY, abs };
        let fills = self.keep.fills.iter().map(|&f| (f, f));
        for (low, high) in fills.chain(self.keep.exact.iter().copied()) {
            if high < usual {
                plain.low = plain.low.max(high);
            } else if low > usual {
                plain.high = plain.high.min(low);
            }
        }
        plain
    }

    /// One absolute bound that is as tight as all of it: what integers are quantised by.
    fn for_integers(mut self, words: &Words, kind: Kind) -> Option<Self> {
        if self.rel.is_some() {
            let least = match self.grid {
                Grid::Best => to_f64(words, kind).filter(|v| !self.keep.has(*v)).map(f64::abs).reduce(f64::min)?,
                _ => 0.0,
            };
            self.abs = Some(self.at(least));
            (self.rel, self.floor) = (None, None);
        }
        self.abs.is_some_and(|abs| abs >= 1.0).then_some(self)
    }
}

/// One of so many values is looked at first to find one that is not kept.
const SPARSE: usize = 61;

/// A few comparisons that suffice for most values of a chunk under an absolute bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    /// Between these no value is kept.
    low: f64,
    high: f64,
    abs: f64,
}

impl Plain {
    /// Tells nothing of any value.
    pub(crate) const NONE: Self = Self { low: 0.0, high: 0.0, abs: 0.0 };

    /// Whether x is finite and surely not kept.
    #[inline]
    pub(crate) fn has(&self, x: f64) -> bool {
        (self.low < x) & (x < self.high)
    }

    /// Whether y may surely stand for x, unless x is the negative zero. What is not sure may do so all the
    /// same. Without branches, so that several values are compared at once; that zero is told by its word,
    /// since the compiler makes branches of the question for a float.
    #[inline]
    pub(crate) fn takes(&self, x: f64, y: f64) -> bool {
        self.has(x) & ((x - y).abs() < self.abs)
    }
}

/// Whether x - y is a binary64 number (TwoSum has no error term).
fn is_exact(x: f64, y: f64) -> bool {
    let d = x - y;
    let back = d - x;
    (x - (d - back)) + (-y - back) == 0.0
}

/// Range of the finite values that are not kept.
pub(crate) fn range(words: &Words, kind: Kind, keep: &Keep) -> Option<f64> {
    let (low, high) = to_f64(words, kind)
        .filter(|v| v.is_finite() && !keep.has(*v))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    (low <= high).then_some(high - low).filter(|r| r.is_finite())
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Worst {
    pub abs: f64,
    pub rel: f64,
}

/// Compares every element with what the decoder gives. `None` if one breaks the bound.
pub(crate) fn verify(raw: &Words, decoded: &Words, kind: Kind, tolerance: &Tolerance) -> Option<Worst> {
    if raw.len() != decoded.len() {
        return None;
    }
    if kind != Kind::Float {
        return verify_integers(raw, decoded, kind, tolerance);
    }
    with_floats!(raw, T => compare::<T>(T::bits_of(raw)?, T::bits_of(decoded)?, tolerance))
}

/// Values that are compared at once; one after the other where one of them is not plain.
pub(crate) const LANES: usize = 8;

fn compare<T: Float>(raw: &[T::Bits], decoded: &[T::Bits], tolerance: &Tolerance) -> Option<Worst> {
    let plain = tolerance.plain::<T>(raw);
    let mut worst = Worst::default();
    let mut most = [0f64; LANES];
    let ((raw, raw_rest), (decoded, decoded_rest)) = (raw.as_chunks::<LANES>(), decoded.as_chunks::<LANES>());
    for (a, b) in raw.iter().zip(decoded) {
        let (x, y) = (a.map(T::value), b.map(T::value));
        // A zero whose sign was lost differs in its bits alone.
        let plain = |i| plain.takes(x[i], y[i]) & (a[i] != T::NEGATIVE_ZERO) & (b[i] != T::NEGATIVE_ZERO);
        let good = (0..LANES).fold(true, |all, i| all & ((a[i] == b[i]) | plain(i)));
        if good {
            most = std::array::from_fn(|i| {
                let error = if a[i] == b[i] { 0.0 } else { (x[i] - y[i]).abs() };
                if error > most[i] { error } else { most[i] }
            });
        } else {
            compare_each::<T>(a, b, tolerance, &mut worst)?;
        }
    }
    compare_each::<T>(raw_rest, decoded_rest, tolerance, &mut worst)?;
    // Where plain values were changed, no share of a value was asked for.
    let most = most.into_iter().fold(0.0, f64::max);
    worst.abs = worst.abs.max(if most > 0.0 { most.next_up() } else { 0.0 });
    Some(worst)
}

fn compare_each<T: Float>(
    raw: &[T::Bits],
    decoded: &[T::Bits],
    tolerance: &Tolerance,
    worst: &mut Worst,
) -> Option<()> {
    for (&a, &b) in raw.iter().zip(decoded).filter(|(a, b)| a != b) {
        let (x, y) = (T::value(a), T::value(b));
        // A zero whose sign was lost, or anything but a finite number, differs in its bits alone.
        if !x.is_finite() || !y.is_finite() || x == y || tolerance.keep.has(x) || is_negative_zero(x) {
            return None;
        }
        if !tolerance.allows(x, y) {
            return None;
        }
        let error = (x - y).abs();
        worst.abs = worst.abs.max(error.next_up());
        worst.rel = worst.rel.max((error / x.abs()).next_up());
    }
    Some(())
}

#[inline]
pub(crate) fn is_negative_zero(x: f64) -> bool {
    x == 0.0 && x.is_sign_negative()
}

fn verify_integers(raw: &Words, decoded: &Words, kind: Kind, tolerance: &Tolerance) -> Option<Worst> {
    let abs = tolerance.abs?;
    let mut worst = 0u128;
    for (x, y) in crate::numbers::to_i128(raw, kind).zip(crate::numbers::to_i128(decoded, kind)) {
        if x == y {
            continue;
        }
        let error = x.abs_diff(y);
        if error > abs as u128 || tolerance.keep.has(x as f64) {
            return None;
        }
        worst = worst.max(error);
    }
    let abs = worst as f64;
    Some(Worst { abs: if worst == 0 { 0.0 } else { abs.next_up() }, rel: 0.0 })
}
