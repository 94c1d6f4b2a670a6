//! Quantisers: numbers to integers, such that each comes back within its bound, and exceptions where it
//! would not.

use narrows::{Error, Result};

use crate::back_end::Coders;
use crate::bound::{Bound, Grid, LANES, Plain, Tolerance, is_negative_zero};
use crate::numbers::{Float, to_i128, with_floats};
use crate::places::{self, Runs};
use crate::step::{Stage, Step, mask};
use crate::view::ArrayView;
use crate::words::{Kind, Reader, Word, Words, each};

mod exp2;
mod interpolate;

pub(crate) use self::exp2::ROUNDER;
use self::exp2::exp2;

/// Integers of q that a 4-byte word takes.
const LIMIT_4: f64 = 2_147_483_000.0;
/// And an 8-byte one: as many as binary64 has without gaps, less what [`ROUNDER`] needs.
const LIMIT_8: f64 = 2_251_799_813_685_000.0;

/// Largest |q| for words of the type.
pub(crate) fn limit<T: Float>() -> f64 {
    if T::Bits::BYTES == 8 { LIMIT_8 } else { LIMIT_4 }
}

/// Result of a quantiser.
pub(crate) struct Quantised {
    pub words: Words,
    side: Side,
    /// Exceptions that are finite, and nothing that the caller wanted kept.
    pub missed: usize,
}

/// What inverting needs beside q.
pub(crate) struct Side {
    pub parameters: Vec<f64>,
    exceptions: Runs,
    values: Words,
}

impl Quantised {
    pub(crate) fn write_side(&self, coders: &mut Coders, out: &mut Vec<u8>) {
        self.side.parameters.iter().for_each(|p| out.extend(p.to_le_bytes()));
        places::write(&self.side.exceptions, coders, out);
        if !self.side.exceptions.is_empty() {
            coders.write_block(&self.side.values.clone().into_bytes(Default::default()), out);
        }
    }
}

impl Side {
    pub(crate) fn read(step: &Step, stage: &Stage, reader: &mut Reader<'_>, coders: &mut Coders) -> Result<Self> {
        let mut parameters = Vec::new();
        let mut count = match step {
            Step::LogLinear => 8,
            Step::Interpolate => 2,
            _ => 1,
        };
        if *step == Step::Interpolate {
            count += interpolate::levels(&stage.axes);
        }
        for _ in 0..count {
            parameters.push(reader.f64()?);
        }
        let exceptions = places::read(reader, stage.len(), coders)?;
        let len = places::count(&exceptions) * stage.width;
        let values = if len > 0 { coders.read_block(reader, len)? } else { Vec::new() };
        let values = Words::read(&values, stage.width, Default::default());
        Ok(Self { parameters, exceptions, values })
    }
}

/// Collects q and exceptions while a quantiser runs.
pub(crate) struct Collector<'a> {
    tolerance: &'a Tolerance,
    keeps: bool,
    /// What spares most values the whole comparison.
    pub plain: Plain,
    /// A bit for each element: quantisers visit them in any order.
    exceptions: Vec<u64>,
    pub missed: usize,
    /// Bits of the first misses, to find whether they are one fill value that nobody declared.
    most: Option<(u64, usize)>,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(tolerance: &'a Tolerance, plain: Plain, len: usize) -> Self {
        let exceptions = vec![0; len.div_ceil(64)];
        Self { tolerance, keeps: !tolerance.keep.is_empty(), plain, exceptions, missed: 0, most: None }
    }

    /// Whether y may stand for x.
    #[inline]
    pub(crate) fn takes(&self, x: f64, y: f64) -> bool {
        x.is_finite()
            && y.is_finite()
            && self.tolerance.allows(x, y)
            && !(x == 0.0 && is_negative_zero(x))
            && !(self.keeps && self.tolerance.keep.has(x))
    }

    /// Whether the caller wants x as it is. Then it is an exception.
    #[inline]
    pub(crate) fn keeps(&mut self, place: usize, x: f64) -> bool {
        let kept = !self.plain.has(x) && self.keeps && self.tolerance.keep.has(x);
        if kept {
            self.exceptions[place / 64] |= 1 << (place % 64);
        }
        kept
    }

    #[cold]
    pub(crate) fn except(&mut self, place: usize, x: f64) {
        self.exceptions[place / 64] |= 1 << (place % 64);
        if x.is_finite() && !is_negative_zero(x) && !(self.keeps && self.tolerance.keep.has(x)) {
            // The majority vote of Boyer and Moore; what is not that value counts as missed.
            self.missed += 1;
            match &mut self.most {
                Some((bits, _)) if *bits == x.to_bits() => self.missed -= 1,
                Some((_, votes)) if *votes > 0 => *votes -= 1,
                most => *most = Some((x.to_bits(), 8)),
            }
        }
    }

    /// Joins everything. Exceptions that are in order get their neighbours' q.
    pub(crate) fn finish(
        self,
        raw: &Words,
        mut q: Words,
        parameters: Vec<f64>,
        fill_axes: Option<&[usize]>,
    ) -> Quantised {
        let exceptions = places::runs_of_bits(&self.exceptions);
        if let Some(axes) = fill_axes {
            each!(&mut q, q => mask::fill(q, &exceptions, axes));
        }
        let values = each!(raw, v => {
            let of = |&(start, length): &(usize, usize)| v[start..start + length].iter().copied();
            Word::wrap(exceptions.iter().flat_map(of).collect())
        });
        Quantised { words: q, side: Side { parameters, exceptions, values }, missed: self.missed }
    }
}

/// `None` if the step cannot serve the bound.
pub(crate) fn apply(step: &Step, words: &Words, stage: &Stage, tolerance: &Tolerance) -> Option<Quantised> {
    if tolerance.grid != Grid::Best && *step != fixed_step(tolerance) {
        return None;
    }
    if stage.kind != Kind::Float {
        return (*step == Step::Linear).then(|| integers(words, stage, tolerance))?;
    }
    with_floats!(words, T => {
        let v = T::bits_of(words)?;
        match step {
            Step::Linear => run::<T, _>(words, v, stage, &Linear::new::<T>(v, tolerance)?, tolerance),
            Step::LogLinear => run::<T, _>(words, v, stage, &LogLinear::new::<T>(v, tolerance)?, tolerance),
            Step::Bits => bits::<T>(words, v, stage, tolerance),
            _ => interpolate::apply::<T>(words, v, stage, tolerance),
        }
    })
}

/// The one quantiser for a bound whose grid is fixed: the points of two differ. Bits would be faster than
/// cells of the logarithm, for 20 to 40 % more bytes.
fn fixed_step(tolerance: &Tolerance) -> Step {
    if tolerance.rel.is_none() { Step::Linear } else { Step::LogLinear }
}

/// The words again.
pub(crate) fn invert(step: &Step, side: &Side, q: &Words, stage: &Stage) -> Result<Words> {
    let corrupt = || Error::corrupt("a quantiser does not fit its words");
    let mut words = (|| {
        if stage.kind != Kind::Float {
            return invert_integers(side.parameters[0], q, stage);
        }
        Some(match stage.width {
            2 => invert_floats::<half::f16>(step, side, q, stage)?,
            4 => invert_floats::<f32>(step, side, q, stage)?,
            _ => invert_floats::<f64>(step, side, q, stage)?,
        })
    })()
    .ok_or_else(corrupt)?;
    fn put<W: Word>(v: &mut [W], side: &Side) -> Option<()> {
        let mut values = W::get(&side.values)?;
        for &(start, length) in &side.exceptions {
            let (now, rest) = values.split_at_checked(length)?;
            v[start..start + length].copy_from_slice(now);
            values = rest;
        }
        Some(())
    }
    each!(&mut words, v => put(v, side)).ok_or_else(corrupt)?;
    Ok(words)
}

fn invert_floats<T: Float>(step: &Step, side: &Side, q: &Words, stage: &Stage) -> Option<Words> {
    let p = &side.parameters;
    Some(match step {
        Step::Linear => inverse::<T, _>(q, &Linear { step: p[0], inverse: 0.0 }),
        Step::LogLinear => inverse::<T, _>(q, &LogLinear::read(p)?),
        Step::Bits => invert_bits::<T>(q, p[0])?,
        _ => interpolate::invert::<T>(q, p, &stage.axes)?,
    })
}

/// A map between numbers and integers.
trait Quantiser {
    /// The integer for x, as a float; may be anything if x has none.
    fn q(&self, x: f64) -> f64;
    fn y(&self, q: f64) -> f64;
    fn parameters(&self) -> Vec<f64>;
}

fn run<T: Float, Q: Quantiser>(
    words: &Words,
    v: &[T::Bits],
    stage: &Stage,
    quantiser: &Q,
    tolerance: &Tolerance,
) -> Option<Quantised> {
    fn q<T: Float, Q: Quantiser, W: Word>(
        v: &[T::Bits],
        quantiser: &Q,
        tolerance: &Tolerance,
        collector: &mut Collector<'_>,
    ) -> Vec<W> {
        let limit = limit::<T>();
        let fixed = tolerance.grid != Grid::Best;
        let near = |q: f64| T::value(T::bits(quantiser.y(q)));
        let mut words = vec![W::default(); v.len()];
        for (start, (v, words)) in (0..).step_by(BLOCK).zip(v.chunks(BLOCK).zip(words.chunks_mut(BLOCK))) {
            let mut all = true;
            for (&bits, word) in v.iter().zip(&mut *words) {
                let x = T::value(bits);
                let q = quantiser.q(x);
                let y = near(q);
                all &= (q.abs() < limit) & collector.plain.takes(x, y) & (bits != T::NEGATIVE_ZERO);
                *word = integer(q);
            }
            if fixed {
                for &bits in v {
                    let y = near(quantiser.q(T::value(bits)));
                    all &= near(quantiser.q(y)) == y;
                }
            }
            if all {
                continue;
            }
            for (place, (&bits, word)) in (start..).zip(v.iter().zip(words)) {
                let x = T::value(bits);
                if collector.keeps(place, x) {
                    *word = W::default();
                    continue;
                }
                let q = quantiser.q(x);
                let y = near(q);
                let takes = collector.plain.takes(x, y) && bits != T::NEGATIVE_ZERO || collector.takes(x, y);
                if !(takes && q.abs() < limit && (!fixed || near(quantiser.q(y)) == y)) {
                    collector.except(place, x);
                    *word = W::default();
                }
            }
        }
        words
    }
    let mut collector = Collector::new(tolerance, tolerance.plain::<T>(v), v.len());
    let q = if T::Bits::BYTES == 8 {
        Words::W8(q::<T, Q, u64>(v, quantiser, tolerance, &mut collector))
    } else {
        Words::W4(q::<T, Q, u32>(v, quantiser, tolerance, &mut collector))
    };
    Some(collector.finish(words, q, quantiser.parameters(), Some(&stage.axes)))
}

/// Values that are quantised at once; one after the other where one of them is an exception.
const BLOCK: usize = 32;

/// The word of an integer below 2^51. The sum has it in its low bits, which is faster than a conversion
/// that must hold for every float.
#[inline]
pub(crate) fn integer<W: Word>(q: f64) -> W {
    W::low((q + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()))
}

fn inverse<T: Float, Q: Quantiser>(q: &Words, quantiser: &Q) -> Words {
    let y = |q: f64| T::bits(quantiser.y(q));
    T::Bits::wrap(match q {
        Words::W8(q) => q.iter().map(|&q| y(q as i64 as f64)).collect(),
        Words::W4(q) => q.iter().map(|&q| y(f64::from(q as i32))).collect(),
        _ => Vec::new(),
    })
}

/// Largest magnitude of the finite values that are not kept.
fn largest<T: Float>(v: &[T::Bits], tolerance: &Tolerance) -> f64 {
    let plain = tolerance.plain::<T>(v);
    let keeps = !tolerance.keep.is_empty();
    let magnitude = |w: T::Bits| {
        let x = T::value(w);
        if x.is_finite() && !(keeps && tolerance.keep.has(x)) { x.abs() } else { 0.0 }
    };
    let (blocks, rest) = v.as_chunks::<LANES>();
    let mut most = [0f64; LANES];
    for block in blocks {
        let x = block.map(T::value);
        let now =
            if x.iter().fold(true, |all, x| all & plain.has(*x)) { x.map(f64::abs) } else { block.map(magnitude) };
        most = std::array::from_fn(|i| if now[i] > most[i] { now[i] } else { most[i] });
    }
    most.into_iter().chain(rest.iter().map(|&w| magnitude(w))).fold(0.0, f64::max)
}

/// How much narrower the cells of a fixed grid are than the bound allows, as their values are rounded once
/// more: at 1/64, f32 up to 2^18 times the bound have no exceptions, for .02 bits a value.
const FIXED_NARROWING: f64 = 63.0 / 64.0;

/// Width of cells for an absolute bound: the value is rounded once more afterwards, so the cell is narrower
/// by that, unless that would leave little.
pub(crate) fn cell<T: Float>(v: &[T::Bits], tolerance: &Tolerance) -> Option<f64> {
    if tolerance.rel.is_some() {
        return None;
    }
    let abs = tolerance.abs?;
    let step = match tolerance.grid {
        Grid::Best => {
            let half_ulp = T::half_ulp(largest::<T>(v, tolerance));
            2.0 * if half_ulp < abs / 4.0 { abs - half_ulp } else { abs }
        }
        Grid::Fixed => 2.0 * abs * FIXED_NARROWING,
        Grid::Nested => power_of_two(abs),
    };
    (step.is_normal() && (1.0 / step).is_normal()).then_some(step)
}

/// The largest power of two up to a normal number.
fn power_of_two(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & f64::INFINITY.to_bits())
}

struct Linear {
    step: f64,
    inverse: f64,
}

impl Linear {
    fn new<T: Float>(v: &[T::Bits], tolerance: &Tolerance) -> Option<Self> {
        let step = cell::<T>(v, tolerance)?;
        Some(Self { step, inverse: 1.0 / step })
    }
}

impl Quantiser for Linear {
    #[inline]
    fn q(&self, x: f64) -> f64 {
        (x * self.inverse + ROUNDER) - ROUNDER
    }
    #[inline]
    fn y(&self, q: f64) -> f64 {
        q * self.step
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.step]
    }
}

/// Where the cells of a logarithm begin if nothing says where, for types that have no greater least number:
/// the quotient of a value up to 2^512 by it is finite. Subnormal numbers have fewer digits.
const LEAST_LOG: f64 = f64::from_bits((1023 - 510) << 52);

/// Cells of one width below `t`, of one width of the logarithm up to `u`, of one width beyond.
struct LogLinear {
    low: f64,
    g1: f64,
    t: f64,
    log: f64,
    c: f64,
    g2: f64,
    u: f64,
    high: f64,
}

impl LogLinear {
    fn new<T: Float>(v: &[T::Bits], tolerance: &Tolerance) -> Option<Self> {
        let half_ulp = T::half_ulp(1.0);
        let rel = tolerance.rel?;
        let rel = if half_ulp < rel / 4.0 { rel - half_ulp } else { rel };
        if rel >= 0.5 {
            // Cells of the logarithm become wider than the values; half of it serves as well.
            return Self::new::<T>(v, &Tolerance { rel: Some(0.25), ..tolerance.clone() });
        }
        let log = ((1.0 + rel) / (1.0 - rel)).log2();
        let (low, g1, t) = match tolerance.floor {
            Some(floor) => (2.0 * floor, 0.5 / rel, floor / rel),
            None if tolerance.grid != Grid::Best => (0.0, 0.5, LEAST_LOG.max(2.0 * T::LEAST_NORMAL)),
            None => {
                let positive = v.iter().map(|&w| T::value(w).abs()).filter(|x| *x > 0.0 && x.is_finite());
                (0.0, 0.5, positive.reduce(f64::min)? * exp2(-log / 2.0))
            }
        };
        let (u, g2, high) = match tolerance.abs {
            Some(abs) if abs / rel > t => (abs / rel, g1 + (abs / rel / t).log2() / log, 2.0 * abs),
            Some(_) => return None,
            None => (0.0, f64::INFINITY, 0.0),
        };
        (t.is_normal() && log.is_normal()).then_some(Self { low, g1, t, log, c: (1.0 - rel * rel).sqrt(), g2, u, high })
    }

    fn read(p: &[f64]) -> Option<Self> {
        let &[low, g1, t, log, c, g2, u, high] = p else { return None };
        Some(Self { low, g1, t, log, c, g2, u, high })
    }
}

impl Quantiser for LogLinear {
    #[inline]
    fn q(&self, x: f64) -> f64 {
        let a = x.abs();
        let g = if a < self.t {
            // Without a floor only 0 is here.
            if self.low > 0.0 { a / self.low } else { 0.0 }
        } else if self.high == 0.0 || a < self.u {
            self.g1 + (a / self.t).log2() / self.log
        } else {
            self.g2 + (a - self.u) / self.high
        };
        ((g + ROUNDER) - ROUNDER).copysign(x)
    }
    #[inline]
    fn y(&self, q: f64) -> f64 {
        let a = q.abs();
        let y = if a <= self.g1 {
            a * self.low
        } else if a <= self.g2 {
            self.t * exp2((a - self.g1) * self.log) * self.c
        } else {
            self.u + (a - self.g2) * self.high
        };
        if q < 0.0 { -y } else { y }
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.low, self.g1, self.t, self.log, self.c, self.g2, self.u, self.high]
    }
}

/// Bits of the significand of a type, and of all but the sign.
fn layout<T: Float>() -> (u32, u32) {
    match T::Bits::BYTES {
        2 => (10, 15),
        4 => (23, 31),
        _ => (52, 63),
    }
}

/// Rounds to `kept` bits after the leading one, ties to even; not-a-numbers and values that would
/// become infinite stay.
pub(crate) fn round_bits<T: Float>(bits: T::Bits, kept: u32) -> T::Bits {
    let (significand, sign_at) = layout::<T>();
    let Some(drop) = significand.checked_sub(kept).filter(|&d| d > 0) else { return bits };
    if !T::value(bits).is_finite() {
        return bits;
    }
    let wide = bits.wide();
    let magnitude = wide & ((1 << sign_at) - 1);
    let rounded = (magnitude + (1 << (drop - 1)) - 1 + (magnitude >> drop & 1)) >> drop << drop;
    let result = T::Bits::low(rounded | wide >> sign_at << sign_at);
    if T::value(result).is_finite() { result } else { bits }
}

/// Rounds floats to `kept` significant bits after the leading one, half to even. The result are plain
/// floats that any lossless codec shrinks and any reader opens. Fill values and exact ranges of `bound`
/// stay, as do values that are not finite.
///
/// # Errors
/// The elements are no floats, or their length differs from their shape.
pub fn round(view: &ArrayView<'_>, kept: u32, bound: &Bound) -> Result<Vec<u8>> {
    view.check()?;
    bound.check()?;
    let (mut words, stage) = crate::chunk::load(view);
    let keep = bound.keep(&words, stage.kind);
    let done = (|| {
        if stage.kind != Kind::Float {
            return None;
        }
        with_floats!(&words, T => {
            let rounded = T::bits_of(&words)?
                .iter()
                .map(|&w| if keep.has(T::value(w)) { w } else { round_bits::<T>(w, kept) })
                .collect();
            words = Word::wrap(rounded);
        });
        Some(())
    })();
    done.ok_or_else(|| Error::misuse("only floats have significant bits"))?;
    Ok(words.into_bytes(view.order))
}

fn bits<T: Float>(words: &Words, v: &[T::Bits], stage: &Stage, tolerance: &Tolerance) -> Option<Quantised> {
    let (significand, sign_at) = layout::<T>();
    let rel = tolerance.rel.filter(|_| tolerance.abs.is_none())?;
    // 2^-(kept + 1) <= rel.
    let kept = (0..significand).find(|&kept| 2f64.powi(-(kept as i32) - 1) <= rel)?;
    let drop = significand - kept;
    let mut collector = Collector::new(tolerance, Plain::NONE, v.len());
    let mut each = |place: usize, w: T::Bits| {
        let rounded = round_bits::<T>(w, kept).wide();
        let (x, y) = (T::value(w), T::value(T::Bits::low(rounded)));
        let magnitude = ((rounded & ((1 << sign_at) - 1)) >> drop) as i64;
        if w.wide() != rounded && !collector.takes(x, y) || rounded & ((1 << drop) - 1) != 0 {
            collector.except(place, x);
            return 0;
        }
        if rounded >> sign_at == 1 { -1 - magnitude } else { magnitude }
    };
    let q = if T::Bits::BYTES == 8 {
        Words::W8(v.iter().enumerate().map(|(i, &w)| each(i, w) as u64).collect())
    } else {
        Words::W4(v.iter().enumerate().map(|(i, &w)| each(i, w) as u32).collect())
    };
    Some(collector.finish(words, q, vec![f64::from(drop)], Some(&stage.axes)))
}

fn invert_bits<T: Float>(q: &Words, drop: f64) -> Option<Words> {
    let (significand, sign_at) = layout::<T>();
    let drop = (1..=significand).find(|&d| f64::from(d) == drop)?;
    let word = |q: i64| {
        let magnitude = (if q < 0 { -1 - q } else { q } as u64) << drop;
        (magnitude >> sign_at == 0).then(|| T::Bits::low(magnitude | u64::from(q < 0) << sign_at))
    };
    let words: Option<Vec<_>> = match q {
        Words::W8(q) => q.iter().map(|&q| word(q as i64)).collect(),
        Words::W4(q) => q.iter().map(|&q| word(i64::from(q as i32))).collect(),
        _ => None,
    };
    words.map(T::Bits::wrap)
}

/// Largest width of cells of integers: binary64 has all integers up to it.
const CELL_MAX: f64 = 9_007_199_254_740_992.0;

fn integers(words: &Words, stage: &Stage, tolerance: &Tolerance) -> Option<Quantised> {
    let abs = tolerance.abs?.floor().min((CELL_MAX - 1.0) / 2.0);
    let step = if tolerance.grid == Grid::Nested { power_of_two(abs) as i128 } else { 2 * abs as i128 + 1 };
    let half = step / 2;
    let (least, most) = limits(stage);
    let mut collector = Collector::new(tolerance, Plain::NONE, words.len());
    let q: Vec<i128> = to_i128(words, stage.kind)
        .enumerate()
        .map(|(place, x)| {
            let q = (x + half).div_euclid(step);
            let kept = collector.keeps && tolerance.keep.has(x as f64);
            if kept || !(least..=most).contains(&(q * step)) {
                collector.except(place, x as f64);
                return 0;
            }
            q
        })
        .collect();
    let q = match stage.width {
        8 => Words::W8(q.into_iter().map(|q| q as u64).collect()),
        _ => Words::W4(q.into_iter().map(|q| q as u32).collect()),
    };
    Some(collector.finish(words, q, vec![step as f64], Some(&stage.axes)))
}

/// Least and largest value of integers.
fn limits(stage: &Stage) -> (i128, i128) {
    let bits = 8 * stage.width as u32;
    match stage.kind {
        Kind::Signed => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

fn invert_integers(step: f64, q: &Words, stage: &Stage) -> Option<Words> {
    if !(1.0..=CELL_MAX).contains(&step) || step.fract() != 0.0 {
        return None;
    }
    let (least, most) = limits(stage);
    let step = step as i128;
    let y = |q: i128| {
        let y = q * step;
        (least..=most).contains(&y).then_some(y as u64)
    };
    // Words of up to 4 bytes may be unsigned, and their q too; both fit signed ones of q's width but for
    // cells of width 1, which no writer makes.
    let q = to_i128(q, Kind::Signed).map(y);
    Some(match stage.width {
        1 => Words::W1(q.map(|y| y.map(|y| y as u8)).collect::<Option<_>>()?),
        2 => Words::W2(q.map(|y| y.map(|y| y as u16)).collect::<Option<_>>()?),
        4 => Words::W4(q.map(|y| y.map(|y| y as u32)).collect::<Option<_>>()?),
        _ => Words::W8(q.collect::<Option<_>>()?),
    })
}
