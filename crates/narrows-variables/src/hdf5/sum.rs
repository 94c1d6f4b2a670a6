//! Check sums of newer structures: Jenkins's lookup3 over all bytes before the sum, from 0 on.

use narrows::{Error, Result};

use super::Hdf5;
use crate::bytes::Structure;

/// Bytes of a sum.
pub(super) const LEN: usize = 4;

/// Compares the sum after the first `len` bytes of a structure with them.
pub(super) fn verify(bytes: &[u8], len: usize, at: u64) -> Result<()> {
    let (body, rest) = bytes.split_at_checked(len).ok_or_else(|| differs(bytes, at))?;
    match rest.get(..LEN) {
        Some(_) if cfg!(feature = "any-sum") => Ok(()),
        Some(stated) if lookup3(body).to_le_bytes() == stated => Ok(()),
        _ => Err(differs(bytes, at)),
    }
}

fn differs(bytes: &[u8], at: u64) -> Error {
    let name = match bytes.get(..4) {
        Some(b"\x89HDF") => "the superblock".into(),
        Some(name) if name.iter().all(u8::is_ascii_uppercase) => String::from_utf8_lossy(name).into_owned(),
        _ => "a page of an index".into(),
    };
    Error::corrupt(format!("the file's structure is damaged: the check sum of {name} at byte {at} differs"))
}

/// Reads `len` bytes of structure that have their sum after them.
pub(super) fn read(file: &Hdf5, at: u64, len: u64) -> Result<Structure> {
    let bytes = file.bytes.structure(at, len.saturating_add(LEN as u64))?;
    let len = bytes.len() - LEN;
    verify(&bytes, len, at)?;
    Ok(bytes.truncated(len))
}

/// Bob Jenkins's hash of 2006, as HDF5 has it.
pub(super) fn lookup3(bytes: &[u8]) -> u32 {
    let begin = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let [mut a, mut b, mut c] = [begin; 3];
    // The last 12 bytes, or those that are left, are mixed otherwise.
    let full = bytes.len().saturating_sub(1) / 12 * 12;
    let word = |part: &[u8], i: usize| {
        (0..4).fold(0, |word, k| word | part.get(4 * i + k).map_or(0, |&b| u32::from(b)) << (8 * k))
    };
    for part in bytes[..full].chunks_exact(12) {
        a = a.wrapping_add(word(part, 0));
        b = b.wrapping_add(word(part, 1));
        c = c.wrapping_add(word(part, 2));
        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
    }
    let rest = &bytes[full..];
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 1));
    c = c.wrapping_add(word(rest, 2));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_reference() {
        // From the driver of lookup3.c.
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }
}
