//! Split: words into planes of bytes.

use crate::words::{Word, Words, each};

/// Words of a block: the planes of so many stay in the first-level cache while they are written.
const BLOCK: usize = 1024;

pub(crate) fn apply(words: &Words) -> Vec<u8> {
    each!(words, v => planes(v))
}

fn planes<W: Word>(v: &[W]) -> Vec<u8> {
    let n = v.len();
    let mut out = vec![0; n * W::BYTES];
    for start in (0..n).step_by(BLOCK) {
        let block = &v[start..n.min(start + BLOCK)];
        for (i, plane) in out.chunks_exact_mut(n).enumerate() {
            let plane = &mut plane[start..start + block.len()];
            plane.iter_mut().zip(block).for_each(|(b, w)| *b = w.byte(i));
        }
    }
    out
}

/// `planes` has a multiple of `width` bytes.
pub(crate) fn invert(planes: &[u8], width: usize) -> Words {
    match width {
        2 => Words::W2(words(planes)),
        4 => Words::W4(words(planes)),
        8 => Words::W8(words(planes)),
        _ => Words::W1(planes.to_vec()),
    }
}

fn words<W: Word>(planes: &[u8]) -> Vec<W> {
    let n = planes.len() / W::BYTES;
    let mut out = vec![W::default(); n];
    for start in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - start);
        let block = &mut out[start..start + len];
        for (i, plane) in planes.chunks_exact(n).enumerate() {
            let plane = &plane[start..start + len];
            block.iter_mut().zip(plane).for_each(|(w, b)| *w = w.with_byte(i, *b));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_of_any_length_come_back() {
        for n in [0, 1, 2, 1023, 1024, 1025, 5000] {
            let v: Vec<u32> = (0..n).map(|i: u32| i.wrapping_mul(0x9e37_79b9)).collect();
            let words = Words::W4(v);
            assert_eq!(invert(&apply(&words), 4), words, "{n}");
        }
        assert_eq!(apply(&Words::W2(vec![0x0201, 0x0403])), [1, 3, 2, 4]);
    }
}
