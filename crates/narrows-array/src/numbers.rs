//! Words as numbers.

use half::f16;

use crate::words::{Kind, Word, Words};

/// The binary16 nearest to a value, ties to even. The library of the type rounds twice on machines with
/// instructions for it, and cuts off before it rounds on others: chunks would not decode to the same bytes.
pub(crate) fn half_bits(value: f64) -> u16 {
    /// From half of the last unit above the largest number on, values become infinite.
    const INFINITE: f64 = 65520.0;
    /// Least normal number, 2^-14, and the units of those below it, 2^-24.
    const NORMAL: f64 = 0.000_061_035_156_25;
    const UNITS: f64 = 16_777_216.0;
    let sign = (value.to_bits() >> 48) as u16 & 0x8000;
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    sign | if value.is_nan() {
        0x7e00
    } else if magnitude >= INFINITE {
        0x7c00
    } else if magnitude < NORMAL {
        (magnitude * UNITS).round_ties_even() as u16
    } else {
        // 42 bits of the significand fall away; the exponent's bias becomes 15.
        (((bits + (1 << 41) - 1 + (bits >> 42 & 1)) >> 42) - ((1023 - 15) << 10)) as u16
    }
}

/// A float type, by its bits.
pub(crate) trait Float: Copy {
    type Bits: Word;
    /// The least number with all digits.
    const LEAST_NORMAL: f64;
    const NEGATIVE_ZERO: Self::Bits;

    fn value(bits: Self::Bits) -> f64;
    /// Rounds, ties to even.
    fn bits(value: f64) -> Self::Bits;
    /// Half the distance between neighbours at the largest of values up to `max`.
    fn half_ulp(max: f64) -> f64;

    fn bits_of(words: &Words) -> Option<&[Self::Bits]> {
        Self::Bits::get(words)
    }
}

impl Float for f16 {
    type Bits = u16;
    const LEAST_NORMAL: f64 = Self::MIN_POSITIVE.to_f64_const();
    const NEGATIVE_ZERO: u16 = 1 << 15;

    #[inline]
    fn value(bits: u16) -> f64 {
        Self::from_bits(bits).to_f64()
    }
    #[inline]
    fn bits(value: f64) -> u16 {
        half_bits(value)
    }
    fn half_ulp(max: f64) -> f64 {
        max * 2f64.powi(-11)
    }
}

impl Float for f32 {
    type Bits = u32;
    const LEAST_NORMAL: f64 = Self::MIN_POSITIVE as f64;
    const NEGATIVE_ZERO: u32 = 1 << 31;

    #[inline]
    fn value(bits: u32) -> f64 {
        f64::from(Self::from_bits(bits))
    }
    #[inline]
    fn bits(value: f64) -> u32 {
        (value as Self).to_bits()
    }
    fn half_ulp(max: f64) -> f64 {
        max * 2f64.powi(-24)
    }
}

impl Float for f64 {
    type Bits = u64;
    const LEAST_NORMAL: Self = Self::MIN_POSITIVE;
    const NEGATIVE_ZERO: u64 = 1 << 63;

    #[inline]
    fn value(bits: u64) -> f64 {
        Self::from_bits(bits)
    }
    #[inline]
    fn bits(value: f64) -> u64 {
        value.to_bits()
    }
    fn half_ulp(max: f64) -> f64 {
        max * 2f64.powi(-53)
    }
}

/// Runs an expression with the float type of some words.
macro_rules! with_floats {
    ($words:expr, $type:ident => $body:expr) => {
        match $words {
            $crate::words::Words::W2(_) => {
                type $type = half::f16;
                $body
            }
            $crate::words::Words::W4(_) => {
                type $type = f32;
                $body
            }
            $crate::words::Words::W8(_) => {
                type $type = f64;
                $body
            }
            $crate::words::Words::W1(_) => return None,
        }
    };
}
pub(crate) use with_floats;

fn wide_signed<W: Word>(w: W) -> i64 {
    (w.wide() << (64 - W::BITS)) as i64 >> (64 - W::BITS)
}

/// The values; integers of 8 bytes are rounded.
pub(crate) fn to_f64(words: &Words, kind: Kind) -> Box<dyn Iterator<Item = f64> + '_> {
    fn integers<W: Word>(v: &[W], kind: Kind) -> Box<dyn Iterator<Item = f64> + '_> {
        match kind {
            Kind::Signed => Box::new(v.iter().map(|&w| wide_signed(w) as f64)),
            _ => Box::new(v.iter().map(|&w| w.wide() as f64)),
        }
    }
    match (words, kind) {
        (Words::W2(v), Kind::Float) => Box::new(v.iter().map(|&w| f16::value(w))),
        (Words::W4(v), Kind::Float) => Box::new(v.iter().map(|&w| f32::value(w))),
        (Words::W8(v), Kind::Float) => Box::new(v.iter().map(|&w| f64::value(w))),
        _ => crate::words::each!(words, v => integers(v, kind)),
    }
}

/// The values of integers.
pub(crate) fn to_i128(words: &Words, kind: Kind) -> Box<dyn Iterator<Item = i128> + '_> {
    fn integers<W: Word>(v: &[W], kind: Kind) -> Box<dyn Iterator<Item = i128> + '_> {
        match kind {
            Kind::Signed => Box::new(v.iter().map(|&w| wide_signed(w).into())),
            _ => Box::new(v.iter().map(|&w| w.wide().into())),
        }
    }
    crate::words::each!(words, v => integers(v, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once_from_every_side() {
        for bits in 0..0x7c00u16 {
            let (low, high) = (f16::value(bits), f16::value(bits + 1));
            let high = if high.is_finite() { high } else { 65536.0 };
            let middle = (low + high) / 2.0;
            assert_eq!(half_bits(low), bits);
            assert_eq!(half_bits(-middle.next_down()), bits | 0x8000);
            assert_eq!(half_bits(middle), bits + (bits & 1));
            assert_eq!(half_bits(middle.next_up()), bits + 1);
        }
        assert_eq!([1e300, f64::INFINITY, 1e-300, -0.0].map(half_bits), [0x7c00, 0x7c00, 0, 0x8000]);
    }
}
