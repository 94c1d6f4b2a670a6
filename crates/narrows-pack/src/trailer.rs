//! The last raw bytes of a pack, which lead to its directory.

use narrows::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

/// Length in raw bytes.
pub(crate) const TRAILER_LEN: usize = 64;
/// Its first bytes: a name, and SUB, which stops a terminal's `type`.
const MAGIC: [u8; 8] = *b"NRWPACK\x1a";
/// That of packs with groups, and entries by columns. Those of version 1 have neither.
const VERSION: u8 = 2;
/// Most levels of pages above the leaves: with two children each, more entries than a pack may have.
pub(crate) const DEPTH_MAX: u8 = 32;
/// Longest page in bytes: one entry with the most attributes and the longest list of extents that stands
/// in a page.
pub(crate) const PAGE_MAX: u64 = 512 << 10;

/// Shortest entry in raw bytes: nine fields by columns.
const ENTRY_LEN_MIN: u64 = 9;

/// What the trailer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Levels of pages above the leaves.
    pub depth: u8,
    /// Raw bytes of the entry stream; after them the directory begins.
    pub content_end: u64,
    /// Raw offset of the root page.
    pub root: u64,
    /// Length of the root page.
    pub root_len: u64,
    /// Entries of the entry stream.
    pub entries: u64,
    /// Length of all files in bytes, as `ls` shows it.
    pub bytes: u64,
}

impl Trailer {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.depth, 0, 0, 0, 0, 0, 0]);
        for word in [self.content_end, self.root, self.root_len, self.entries, self.bytes] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let check = xxh3_64(&out[begin..]);
        out.extend_from_slice(&check.to_le_bytes());
    }

    /// Reads the trailer of a file with `raw_len` raw bytes; `None` if it is no pack.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`.
    pub fn parse(bytes: &[u8; TRAILER_LEN], raw_len: u64) -> Result<Option<Self>> {
        if bytes[..8] != MAGIC {
            return Ok(None);
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if xxh3_64(&bytes[..56]) != word(56) {
            return Err(Error::corrupt("the trailer of the pack is damaged"));
        }
        if !(1..=VERSION).contains(&bytes[8]) || bytes[10..16] != [0; 6] {
            return Err(Error::unsupported("the pack needs a newer program"));
        }
        let [content_end, root, root_len, entries, bytes_sum] = [16, 24, 32, 40, 48].map(word);
        let trailer = Self { depth: bytes[9], content_end, root, root_len, entries, bytes: bytes_sum };
        let end = raw_len.checked_sub(TRAILER_LEN as u64);
        let fits = content_end <= root
            && (1..=PAGE_MAX).contains(&root_len)
            && root.checked_add(root_len).zip(end).is_some_and(|(root_end, end)| root_end <= end)
            && entries <= content_end / ENTRY_LEN_MIN
            && trailer.depth <= DEPTH_MAX;
        if fits { Ok(Some(trailer)) } else { Err(Error::corrupt("the trailer of the pack leads nowhere")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_comes_back_and_no_byte_of_it_can_be_changed() {
        let trailer = Trailer { depth: 1, content_end: 44, root: 54, root_len: 30, entries: 4, bytes: 5 };
        let mut bytes = Vec::new();
        trailer.put(&mut bytes);
        let bytes: [u8; TRAILER_LEN] = bytes.try_into().unwrap();
        assert_eq!(Trailer::parse(&bytes, 148).unwrap(), Some(trailer));
        assert!(Trailer::parse(&bytes, 147).is_err());
        for at in 0..TRAILER_LEN {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(!matches!(Trailer::parse(&bad, 148), Ok(Some(_))), "byte {at}");
        }
        for bad in [
            Trailer { content_end: 55, ..trailer },
            Trailer { entries: 5, ..trailer },
            Trailer { entries: u64::MAX, ..trailer },
            Trailer { root: u64::MAX, ..trailer },
            Trailer { root_len: 0, ..trailer },
            Trailer { root_len: PAGE_MAX + 1, ..trailer },
            Trailer { depth: DEPTH_MAX + 1, ..trailer },
        ] {
            let mut bytes = Vec::new();
            bad.put(&mut bytes);
            assert!(Trailer::parse(&bytes.try_into().unwrap(), 1 << 40).is_err(), "{bad:?}");
        }
    }
}
