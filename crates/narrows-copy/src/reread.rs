//! Reading a file once more, to compare it with what was read of it.

use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::DIGEST_LEN;
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use crate::hash;
use crate::holes::next_data;

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// The content of a file as it was read: the BLAKE3 hash of its data, and where its holes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSum {
    digest: [u8; DIGEST_LEN],
    holes: u64,
    /// Holes were looked for.
    sparse: bool,
}

impl DataSum {
    /// Of data with this digest. `holes`: those that were left out, if they were looked for.
    pub fn new(digest: [u8; DIGEST_LEN], holes: Option<&Holes>) -> Self {
        Self { digest, holes: holes.map_or(0, Holes::sum), sparse: holes.is_some() }
    }

    /// Whether a file of `len` bytes has that content. `goes_on` ends the reading with false.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_of(&self, file: &OwnedFd, len: u64, goes_on: impl Fn() -> bool) -> io::Result<bool> {
        let (mut digest, mut holes, mut at) = (blake3::Hasher::new(), Holes::default(), 0);
        let add = |bytes: &[u8]| hash::update(&mut digest, bytes);
        if !self.sparse {
            return Ok(each(file, 0, len, goes_on, add)? && digest.finalize().as_bytes() == &self.digest);
        }
        let mut add = add;
        while at < len {
            let (begin, end) = next_data(file, at, len)?;
            if begin > at {
                holes.add(at, begin - at);
            }
            if !each(file, begin, end, &goes_on, &mut add)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(digest.finalize().as_bytes() == &self.digest && holes.sum() == self.holes)
    }
}

/// Where the holes of a file are.
#[derive(Default)]
pub struct Holes(Xxh3);

impl Holes {
    /// Adds the next one.
    pub fn add(&mut self, at: u64, len: u64) {
        self.0.update(&at.to_le_bytes());
        self.0.update(&len.to_le_bytes());
    }

    fn sum(&self) -> u64 {
        self.0.digest()
    }
}

/// Hands on the bytes of a file from `at` to `end`; returns whether it had them all, and `goes_on` was
/// never false.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn each(
    file: &OwnedFd,
    mut at: u64,
    end: u64,
    goes_on: impl Fn() -> bool,
    mut each: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let mut buffer = vec![0; STEP.min(usize::try_from(end.saturating_sub(at)).unwrap_or(STEP))];
    while at < end {
        let want = (end - at).min(STEP as u64) as usize;
        match rustix::io::pread(file, &mut buffer[..want], at) {
            Ok(0) => return Ok(false),
            Ok(_) if !goes_on() => return Ok(false),
            Ok(n) => {
                each(&buffer[..n]);
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn content_and_holes_are_compared() {
        let file = tempfile::tempfile().unwrap();
        let len = 5 << 20;
        file.set_len(len).unwrap();
        file.write_all_at(&[7; 100_000], 2 << 20).unwrap();
        let file = OwnedFd::from(file);
        let (mut holes, mut digest, mut at) = (Holes::default(), blake3::Hasher::new(), 0);
        while at < len {
            let (begin, end) = next_data(&file, at, len).unwrap();
            if begin > at {
                holes.add(at, begin - at);
            }
            each(&file, begin, end, || true, |bytes| _ = digest.update(bytes)).unwrap();
            at = end;
        }
        let sparse = DataSum::new(digest.finalize().into(), Some(&holes));
        let mut whole = vec![0; len as usize];
        whole[2 << 20..][..100_000].fill(7);
        let dense = DataSum::new(blake3::hash(&whole).into(), None);
        for (sum, stopped) in [(sparse, false), (dense, false), (sparse, true), (dense, true)] {
            assert_eq!(sum.is_of(&file, len, || !stopped).unwrap(), !stopped);
            assert!(!sum.is_of(&file, len + 1, || true).unwrap());
        }
        let file = File::from(file);
        file.write_all_at(&[8], 2 << 20).unwrap();
        let file = OwnedFd::from(file);
        assert!(!sparse.is_of(&file, len, || true).unwrap() && !dense.is_of(&file, len, || true).unwrap());
        File::from(file.try_clone().unwrap()).write_all_at(&[7], 2 << 20).unwrap();
        assert!(sparse.is_of(&file, len, || true).unwrap());
        // The same data, elsewhere.
        let moved = tempfile::tempfile().unwrap();
        moved.set_len(len).unwrap();
        moved.write_all_at(&[7; 100_000], 3 << 20).unwrap();
        assert!(!sparse.is_of(&moved.into(), len, || true).unwrap());
    }
}
