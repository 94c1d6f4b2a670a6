//! Numbers as LEB128: seven bits a byte, lowest first, in the fewest bytes.

use crate::error::{Error, Result};

/// Appends `value` as LEB128 in the fewest bytes.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint of at most `len_max` bytes: its value and length. `None` if the input ends inside
/// it.
///
/// # Errors
/// `Corrupt` if it is too long or not in the fewest bytes.
pub fn varint(b: &[u8], len_max: usize) -> Result<Option<(u64, usize)>> {
    let mut value = 0u64;
    for (i, &byte) in b.iter().take(len_max).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            break;
        }
        value |= bits << (7 * i);
        if byte & 0x80 == 0 {
            if byte == 0 && i > 0 {
                break;
            }
            return Ok(Some((value, i + 1)));
        }
        if i + 1 == len_max {
            break;
        }
    }
    if b.len() < len_max && b.iter().all(|x| x & 0x80 != 0) {
        return Ok(None);
    }
    Err(Error::corrupt("a number in a header is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_encoding() {
        for v in [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1, u64::MAX] {
            let mut b = Vec::new();
            put_varint(&mut b, v);
            assert_eq!(varint(&b, 10).unwrap(), Some((v, b.len())));
            assert_eq!(varint(&b[..b.len() - 1], 10).unwrap(), None);
        }
        assert!(varint(&[0x80, 0], 4).is_err());
        assert!(varint(&[0x80; 4], 4).is_err());
        assert!(varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], 10).is_err());
    }
}
