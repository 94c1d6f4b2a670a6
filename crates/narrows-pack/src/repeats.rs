//! Content that came before: chunks cut where the content says, looked up by hash, compared byte for
//! byte with the file that had them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

/// Shortest, mean and longest chunk in bytes: those of `narrows cp`.
pub(crate) const CHUNK_LENS: (usize, usize, usize) = (2 << 10, 8 << 10, 32 << 10);
/// Shortest content worth a record of its own.
pub(crate) const REPEAT_MIN: usize = 1 << 10;
/// Chunks in one generation: 16 GiB of content in some 130 MB. Two are kept, so that the oldest content is
/// forgotten first.
const CHUNKS_MAX: usize = 2 << 20;
/// Files that are kept open, so that content that alternates between a few does not open them again.
const OPENED_MAX: usize = 8;

/// Where a chunk is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Number of the entry that has it.
    pub(crate) id: u64,
    /// Offset in that file.
    pub(crate) offset: u64,
    /// Raw offset of its bytes.
    pub(crate) raw: u64,
}

/// A file whose content may be referred to, as it was when it was read.
pub(crate) struct Known<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) root: usize,
    pub(crate) len: u64,
    pub(crate) mtime: (i64, u32),
}

/// The chunks that came.
#[derive(Default)]
pub(crate) struct Index {
    young: HashMap<u128, Place>,
    old: HashMap<u128, Place>,
    opened: Vec<(u64, OwnedFd)>,
}

impl Index {
    /// The place of these bytes, if they came before. `open` opens the file of an entry; `None` if its
    /// content must not be referred to.
    pub(crate) fn find(&self, hash: u128) -> Option<Place> {
        self.young.get(&hash).or_else(|| self.old.get(&hash)).copied()
    }

    pub(crate) fn put(&mut self, hash: u128, place: Place) {
        if self.young.len() >= CHUNKS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, place);
    }

    /// Whether the file still has these bytes there, and did not change since it was read.
    pub(crate) fn has(
        &mut self,
        place: Place,
        bytes: &[u8],
        known: &Known<'_>,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> bool {
        let at = match self.opened.iter().position(|(id, _)| *id == place.id) {
            Some(at) => at,
            None => {
                let Ok(file) = open() else { return false };
                if self.opened.len() == OPENED_MAX {
                    self.opened.remove(0);
                }
                self.opened.push((place.id, file));
                self.opened.len() - 1
            }
        };
        let file = self.opened.remove(at);
        let same = rustix::fs::fstat(&file.1)
            .is_ok_and(|s| s.st_size as u64 == known.len && (s.st_mtime, s.st_mtime_nsec as u32) == known.mtime)
            && has(&file.1, bytes, place.offset);
        self.opened.push(file);
        same
    }
}

/// The hash by which chunks are looked up; `None` of content that is not worth it: a run of one byte
/// compresses to almost nothing.
pub(crate) fn hash(bytes: &[u8]) -> Option<u128> {
    (bytes.len() >= REPEAT_MIN && bytes[1..] != bytes[..bytes.len() - 1]).then(|| xxh3_128(bytes))
}

/// Whether an open file has these bytes there.
pub(crate) fn has(file: &OwnedFd, bytes: &[u8], offset: u64) -> bool {
    let mut there = [0; CHUNK_LENS.2];
    let there = &mut there[..bytes.len()];
    read_at(file, there, offset).is_ok_and(|n| n == bytes.len()) && *there == *bytes
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_at(file: &OwnedFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(filled)
}

/// Flags that open a file of a source; a fifo in its place must not block.
pub(crate) const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);
