//! Entries of a directory, where their contents are, and how numbers are written there (format.md section 17.2).

use narrows::entry::Entry;
use narrows::frame::{put_varint, varint};
use narrows::{Error, Result};

use crate::trailer::Trailer;

/// Length of an end record: kind, length, state, digest.
pub(crate) const END_LEN: u64 = 35;
/// Longest list of extents that stands in a page, in bytes. A longer one would make a page of many
/// entries slow to read for the sake of one.
pub(crate) const LIST_INLINE_MAX: usize = 512;
/// Longest list of extents in bytes, which a reader holds in memory: a file of 4 TiB without repeats.
pub(crate) const LIST_MAX: usize = 32 << 20;
/// Most extents of a file, 24 bytes of memory each.
pub(crate) const EXTENTS_MAX: usize = 4 << 20;

/// Weight of an entry, or of a page below, without its path and attributes: what it takes in memory.
pub(crate) const ENTRY_WEIGHT: usize = 256;
/// Weight of an attribute: what it takes in memory without its bytes.
const XATTR_WEIGHT: usize = 64;

/// An entry as the directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The entry. The number of a hard link's file is that of the entry stream.
    pub entry: Entry,
    /// Its number in the entry stream.
    pub id: u64,
    /// Where its content is.
    pub content: Content,
}

impl Item {
    /// What it takes in memory, as pages are limited by: bytes that stand in the page itself are left out.
    pub(crate) fn weight(&self) -> usize {
        ENTRY_WEIGHT + self.entry.path.len() + XATTR_WEIGHT * self.entry.xattrs.len()
    }
}

/// Where the content of an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// It has none.
    None,
    /// A file.
    File {
        /// Raw offset of its end record, which has the digest.
        end_at: u64,
        /// Its extents.
        list: List,
    },
    /// That of another file, whose path this is.
    Of(Vec<u8>),
}

/// The list of a file's extents, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// It stands in the page.
    Here(Vec<u8>),
    /// It stands elsewhere in the directory.
    There {
        /// Raw offset.
        at: u64,
        /// Length in bytes.
        len: usize,
    },
}

/// A piece of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Raw offset of its bytes; `None` is a hole.
    pub(crate) raw: Option<u64>,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// Encodes extents. Offsets are differences from where the bytes would be if they stood right before
/// the end record, one extent right after the other.
pub(crate) fn put_extents(extents: &[Extent], end_at: u64, out: &mut Vec<u8>) {
    let len: u64 = extents.iter().filter(|e| e.raw.is_some()).map(|e| e.len).sum();
    let mut expected = end_at.wrapping_sub(len);
    for extent in extents {
        put_varint(out, extent.len << 1 | u64::from(extent.raw.is_none()));
        if let Some(raw) = extent.raw {
            put_varint(out, zigzag(raw, expected));
            expected = raw.wrapping_add(extent.len);
        }
    }
}

/// Decodes the extents of a file of `len` bytes, all of which are within `content_end` raw bytes.
pub(crate) fn parse_extents(mut bytes: &[u8], end_at: u64, len: u64, content_end: u64) -> Result<Vec<Extent>> {
    let bad = || Error::corrupt("the extents of a file are not those of its length");
    let mut found = Vec::new();
    let (mut all, mut data) = (0u64, 0u64);
    while !bytes.is_empty() {
        let word = number(&mut bytes)?;
        let extent_len = word >> 1;
        if extent_len == 0 || found.len() == EXTENTS_MAX {
            return Err(bad());
        }
        all = all.checked_add(extent_len).filter(|all| *all <= len).ok_or_else(bad)?;
        let difference = if word & 1 == 0 { Some(number(&mut bytes)?) } else { None };
        data = data.wrapping_add(if difference.is_some() { extent_len } else { 0 });
        found.push((difference, extent_len));
    }
    if all != len {
        return Err(bad());
    }
    let mut expected = end_at.wrapping_sub(data);
    let place = |(difference, len): (Option<u64>, u64)| {
        let raw = difference.map(|d| unzigzag(d, expected));
        if let Some(raw) = raw {
            raw.checked_add(len).filter(|end| *end <= content_end).ok_or_else(bad)?;
            expected = raw + len;
        }
        Ok(Extent { raw, len })
    };
    found.into_iter().map(place).collect()
}

/// Where a file ends, which is in the entry stream.
pub(crate) fn end_within(end_at: u64, trailer: &Trailer) -> Result<u64> {
    let is_in = end_at.checked_add(END_LEN).is_some_and(|end| end <= trailer.content_end);
    if is_in { Ok(end_at) } else { Err(outside()) }
}

pub(crate) fn list_len(len: u64) -> Result<usize> {
    usize::try_from(len).ok().filter(|len| *len <= LIST_MAX).ok_or_else(too_long)
}

/// A list at this place of the directory. The page that leads to it begins at raw offset `page`.
pub(crate) fn list_there(place: u64, len: usize, page: u64, trailer: &Trailer) -> Result<List> {
    let at = trailer.content_end.checked_add(place).ok_or_else(outside)?;
    // Lists stand before the pages that lead to them.
    at.checked_add(len as u64).filter(|end| *end <= page).ok_or_else(outside)?;
    Ok(List::There { at, len })
}

pub(crate) fn outside() -> Error {
    Error::corrupt("the directory leads to a place outside of the pack")
}

fn too_long() -> Error {
    Error::limit("a file of the pack has too many extents")
}

pub(crate) fn number(rest: &mut &[u8]) -> Result<u64> {
    let found = varint(rest, 10)?;
    let (value, len) = found.ok_or_else(|| Error::corrupt("a page of the directory breaks off"))?;
    *rest = &rest[len..];
    Ok(value)
}

pub(crate) fn bytes<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let found = rest.split_at_checked(len);
    let (bytes, behind) = found.ok_or_else(|| Error::corrupt("a page of the directory breaks off"))?;
    *rest = behind;
    Ok(bytes)
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The difference of two offsets as an unsigned number, small ones first.
pub(crate) fn zigzag(to: u64, from: u64) -> u64 {
    let v = to.wrapping_sub(from) as i64;
    (v << 1 ^ v >> 63) as u64
}

pub(crate) fn unzigzag(v: u64, from: u64) -> u64 {
    from.wrapping_add((v >> 1) ^ (v & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_come_back_and_others_than_the_length_are_refused() {
        let extents = [
            Extent { raw: Some(0), len: 3 },
            Extent { raw: None, len: 1 << 40 },
            Extent { raw: Some(900), len: 100 },
            Extent { raw: Some(0), len: 3 },
        ];
        let len = (1 << 40) + 106;
        let mut list = Vec::new();
        put_extents(&extents, 960, &mut list);
        assert_eq!(parse_extents(&list, 960, len, 1000).unwrap(), extents);
        assert!(parse_extents(&list, 960, len, 999).is_err() && parse_extents(&list, 960, len + 1, 1000).is_err());
        assert!(
            parse_extents(&list, 960, len - 1, 1000).is_err() && parse_extents(&list[1..], 960, len, 1000).is_err()
        );
        assert!(parse_extents(&[0, 0], 0, 0, 1000).is_err());
    }
}
