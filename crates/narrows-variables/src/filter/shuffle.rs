//! Byte shuffle, and the bit shuffle of Blosc.

/// Undoes a byte shuffle. Bytes after the last whole element stay where they are.
pub(crate) fn undo(bytes: &[u8], width: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let count = bytes.len() / width.max(1);
    if width < 2 || count < 2 {
        return out;
    }
    for (i, plane) in bytes[..count * width].chunks_exact(count).enumerate() {
        for (to, byte) in out[i..].iter_mut().step_by(width).zip(plane) {
            *to = *byte;
        }
    }
    out
}

/// Undoes a bit shuffle of elements whose number is a multiple of 8; others were left as they are.
pub(crate) fn undo_bits(bytes: &[u8], width: usize) -> Vec<u8> {
    let count = bytes.len() / width.max(1);
    if width == 0 || count == 0 || !count.is_multiple_of(8) {
        return bytes.to_vec();
    }
    let mut out = vec![0; bytes.len()];
    let (whole, rest) = bytes.split_at(count * width);
    for (i, plane) in whole.chunks_exact(count / 8).enumerate() {
        let (byte, bit) = (i / 8, i % 8);
        for (j, bits) in plane.iter().enumerate() {
            for k in 0..8 {
                out[(8 * j + k) * width + byte] |= (bits >> k & 1) << bit;
            }
        }
    }
    out[count * width..].copy_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_become_elements() {
        assert_eq!(undo(&[1, 2, 3, 11, 12, 13, 9], 2), [1, 11, 2, 12, 3, 13, 9]);
        assert_eq!(undo(&[1, 2, 3], 4), [1, 2, 3]);
        // Bit 0 of all eight bytes, then bit 1 and so on.
        assert_eq!(undo_bits(&[0xff, 0, 0, 0, 0, 0, 0, 0x80], 1), [1, 1, 1, 1, 1, 1, 1, 0x81]);
        assert_eq!(undo_bits(&[1, 2, 3], 1), [1, 2, 3]);
    }
}
