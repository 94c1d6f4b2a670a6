//! A new file in which runs of zeros are holes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Name;

/// What file systems can leave out: a block of most of them.
const BLOCK: usize = 4 << 10;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Writes to an empty file from its first byte on. A hole at the end is only in `end`.
pub(super) struct Sparse {
    pub(super) file: File,
    pub(super) name: Name,
    pub(super) at: u64,
    /// Raw bytes so far.
    pub(super) end: Arc<AtomicU64>,
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match run(self.at, bytes) {
            (true, len) => len,
            (false, len) => self.name.note(self.file.write_at(&bytes[..len], self.at))?,
        };
        self.at += n as u64;
        self.end.store(self.at, Ordering::Release);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many of `bytes`, which belong at `at`, become a hole (true), or are written (false). Only whole
/// blocks of the file are left out.
fn run(at: u64, bytes: &[u8]) -> (bool, usize) {
    let mut end = bytes.len().min(BLOCK - (at % BLOCK as u64) as usize);
    let is_hole = bytes[..end] == ZEROS;
    while end < bytes.len() {
        let next = bytes.len().min(end + BLOCK);
        if (bytes[end..next] == ZEROS) != is_hole {
            break;
        }
        end = next;
    }
    (is_hole, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_of_the_file_are_left_out() {
        let mut bytes = vec![0; 3 * BLOCK];
        assert_eq!(run(0, &bytes), (true, 3 * BLOCK));
        assert_eq!(run(BLOCK as u64, &bytes[..BLOCK + 1]), (true, BLOCK));
        // Up to the next block of the file first.
        assert_eq!(run(1, &bytes), (false, BLOCK - 1));
        assert_eq!(run(0, &bytes[..BLOCK - 1]), (false, BLOCK - 1));
        bytes[BLOCK] = 1;
        assert_eq!(run(0, &bytes), (true, BLOCK));
        assert_eq!(run(0, &bytes[BLOCK..]), (false, BLOCK));
        assert_eq!(run(0, &[]), (false, 0));
    }
}
