//! Values for tests, and decoding of floats that owes nothing to the crate.

#![allow(dead_code)]

use narrows_array::{ArrayView, ByteOrder, Dtype, Layout};

pub(crate) mod scalar;

/// Xorshift: the same values on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Bytes of `n` elements: 0 smooth, 1 any bits, 2 few distinct values, 3 one value, 4 smooth with fills.
pub(crate) fn elements(dtype: Dtype, order: ByteOrder, n: usize, kind: usize, random: &mut Random) -> Vec<u8> {
    let width = match dtype {
        Dtype::C64 => 4,
        Dtype::C128 => 8,
        Dtype::Record(_) => 1,
        other => other.bytes(),
    };
    let words = n * dtype.bytes() / width;
    let mut bytes = Vec::with_capacity(words * width);
    let mut level = 20.0;
    for i in 0..words {
        level += random.unit() - 0.5;
        let smooth = (i as f64 / 37.0).sin() * 30.0 + level;
        let value = match kind {
            0 => smooth,
            2 => (random.below(19) as f64) * 0.1,
            3 => 7.0,
            _ if i % 50 < 9 => 1e20,
            _ => smooth,
        };
        let bits = match (dtype, width) {
            _ if kind == 1 => random.next(),
            (Dtype::F32 | Dtype::C64, _) => u64::from((value as f32).to_bits()),
            (Dtype::F64 | Dtype::C128, _) => value.to_bits(),
            (Dtype::F16, _) => u64::from(half_bits(value)),
            _ => value as i64 as u64,
        };
        let little = bits.to_le_bytes();
        match order {
            ByteOrder::Little => bytes.extend(&little[..width]),
            ByteOrder::Big => bytes.extend(little[..width].iter().rev()),
        }
    }
    bytes
}

/// Some f16 near the value; exactness does not matter.
fn half_bits(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    let exponent = ((bits >> 23 & 255) as i32 - 112).clamp(0, 30) as u32;
    ((bits >> 31) << 15 | exponent << 10 | bits >> 13 & 1023) as u16
}

/// The f16 as f64, by its definition.
pub(crate) fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

/// Word i of an array of floats: bits and value.
pub(crate) fn float(dtype: Dtype, order: ByteOrder, bytes: &[u8], i: usize) -> (u64, f64) {
    let width = match dtype {
        Dtype::F16 => 2,
        Dtype::F32 | Dtype::C64 => 4,
        _ => 8,
    };
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[i * width..(i + 1) * width]);
    if order == ByteOrder::Big {
        word[..width].reverse();
    }
    let bits = u64::from_le_bytes(word);
    let value = match width {
        2 => half_value(bits as u16),
        4 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    (bits, value)
}

pub(crate) fn view<'a>(dtype: Dtype, order: ByteOrder, shape: &'a [usize], bytes: &'a [u8]) -> ArrayView<'a> {
    ArrayView { dtype, order, layout: Layout::RowMajor, shape, bytes }
}
