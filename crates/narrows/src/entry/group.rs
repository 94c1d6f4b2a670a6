//! Contents of small files together, under one hash (format.md section 8.4).

use super::{DIGEST_LEN, Fields, RECORD_LEN_MAX, put_bytes, unzigzag, zigzag};
use crate::error::{Error, Result};
use crate::frame::put_varint;

/// Most files of a group, 24 bytes of memory each.
pub const GROUP_FILES_MAX: usize = 4096;
/// Most bytes of contents of a group: beside them numbers and lengths of the most files, 13 bytes each at most,
/// fit into a record.
pub const GROUP_LEN_MAX: usize = 192 << 10;
const _: () = assert!(GROUP_LEN_MAX + 13 * GROUP_FILES_MAX + 2 * 4 + DIGEST_LEN <= RECORD_LEN_MAX);

/// The files of a group, whose contents were compared with their hash.
#[derive(Debug)]
pub struct Group {
    /// Number, where the content begins in the body, and its length.
    files: Vec<(u64, usize, usize)>,
}

impl Group {
    /// Reads the body of a group record.
    ///
    /// # Errors
    /// `Corrupt` or `Limit` if it is none, or its hash is another.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let mut f = Fields(body);
        let (mut numbers, mut lens) = (Fields(f.bytes()?), Fields(f.bytes()?));
        let contents = f.0.len().checked_sub(DIGEST_LEN).ok_or_else(super::short)?;
        let mut at = body.len() - f.0.len();
        let end = at + contents;
        let (mut files, mut id) = (Vec::new(), 0u64);
        while !numbers.0.is_empty() {
            if files.len() == GROUP_FILES_MAX {
                return Err(Error::limit("a group has too many files"));
            }
            id = id.wrapping_add(unzigzag(numbers.number()?) as u64);
            let len = usize::try_from(lens.number()?).ok().filter(|len| *len <= end - at);
            let len = len.ok_or_else(super::short)?;
            files.push((id, at, len));
            at += len;
        }
        lens.end()?;
        if at != end {
            return Err(Error::corrupt("a group is longer than its files"));
        }
        if blake3::hash(&body[..end]).as_bytes() != &body[end..] {
            return Err(Error::corrupt("the contents of a group are not what was packed"));
        }
        Ok(Self { files })
    }

    /// Number of each file, where its content begins in the body, and its length.
    pub fn files(&self) -> impl Iterator<Item = (u64, usize, usize)> + '_ {
        self.files.iter().copied()
    }
}

/// Appends the body of a group; returns where the contents begin in it. `files` are numbers and lengths.
///
/// # Panics
/// If there are too many files, or the lengths are not that of `contents`.
pub(super) fn put(files: &[(u64, usize)], contents: &[u8], body: &mut Vec<u8>) -> usize {
    let len: usize = files.iter().map(|(_, len)| len).sum();
    assert!(files.len() <= GROUP_FILES_MAX && contents.len() <= GROUP_LEN_MAX && len == contents.len());
    let (mut numbers, mut lens, mut before) = (Vec::new(), Vec::new(), 0u64);
    for (id, len) in files {
        put_varint(&mut numbers, zigzag(id.wrapping_sub(before) as i64));
        put_varint(&mut lens, *len as u64);
        before = *id;
    }
    put_bytes(body, &numbers);
    put_bytes(body, &lens);
    let begin = body.len();
    body.extend_from_slice(contents);
    let hash = blake3::hash(body);
    body.extend_from_slice(hash.as_bytes());
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_group_can_be_changed() {
        let mut body = Vec::new();
        let begin = put(&[(7, 3), (2, 0), (u64::MAX, 4)], b"onefour", &mut body);
        let all: Vec<_> = Group::parse(&body).unwrap().files().collect();
        assert_eq!(all, [(7, begin, 3), (2, begin + 3, 0), (u64::MAX, begin + 3, 4)]);
        for at in 0..body.len() {
            assert!(Group::parse(&body[..at]).is_err());
            for bit in 0..8 {
                let mut bad = body.clone();
                bad[at] ^= 1 << bit;
                assert!(Group::parse(&bad).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_group_of_too_many_files_is_refused() {
        let mut body = Vec::new();
        for _ in 0..2 {
            put_bytes(&mut body, &vec![0; GROUP_FILES_MAX + 1]);
        }
        let hash = blake3::hash(&body);
        body.extend_from_slice(hash.as_bytes());
        assert!(Group::parse(&body).unwrap_err().to_string().contains("too many"));
    }
}
