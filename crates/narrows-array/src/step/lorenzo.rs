//! Lorenzo: differences along axes, each exact modulo the word.

use super::squeeze;
use crate::words::{Kind, Word, Words, each};

/// Length and stride of the axes that the bits name, last axis first.
fn named(axes: &[usize], bits: u8) -> Vec<(usize, usize)> {
    let mut stride = 1;
    let mut named = Vec::new();
    for (bit, &length) in squeeze(axes, 4).iter().rev().enumerate() {
        if bits >> bit & 1 == 1 {
            named.push((length, stride));
        }
        stride *= length;
    }
    named
}

pub(crate) fn apply(words: &mut Words, kind: Kind, axes: &[usize], bits: u8, zigzag: bool) {
    each!(words, v => {
        if kind == Kind::Float {
            v.iter_mut().for_each(|w| *w = w.order_float());
        }
        for (length, stride) in named(axes, bits) {
            difference(v, length, stride);
        }
        if zigzag {
            v.iter_mut().for_each(|w| *w = w.zigzag());
        }
    });
}

pub(crate) fn invert(words: &mut Words, kind: Kind, axes: &[usize], bits: u8, zigzag: bool) {
    each!(words, v => {
        if zigzag {
            v.iter_mut().for_each(|w| *w = w.unzigzag());
        }
        for (length, stride) in named(axes, bits) {
            sum(v, length, stride);
        }
        if kind == Kind::Float {
            v.iter_mut().for_each(|w| *w = w.unorder_float());
        }
    });
}

fn difference<W: Word>(v: &mut [W], length: usize, stride: usize) {
    for block in v.chunks_exact_mut(length * stride) {
        if stride == 1 {
            let mut before = W::default();
            let mut first = true;
            for w in block {
                let now = *w;
                if !first {
                    *w = now.sub(before);
                }
                (before, first) = (now, false);
            }
        } else {
            for row in (1..length).rev() {
                let (before, now) = block[(row - 1) * stride..(row + 1) * stride].split_at_mut(stride);
                now.iter_mut().zip(before).for_each(|(a, b)| *a = a.sub(*b));
            }
        }
    }
}

fn sum<W: Word>(v: &mut [W], length: usize, stride: usize) {
    for block in v.chunks_exact_mut(length * stride) {
        if stride == 1 {
            let mut total = W::default();
            for w in block {
                total = total.add(*w);
                *w = total;
            }
        } else {
            for row in 1..length {
                let (before, now) = block[(row - 1) * stride..(row + 1) * stride].split_at_mut(stride);
                now.iter_mut().zip(before).for_each(|(a, b)| *a = a.add(*b));
            }
        }
    }
}
