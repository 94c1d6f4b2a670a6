//! What was read of a file, so that a write meanwhile shows, and so that it can be compared when only
//! its status changed.

use std::io;
use std::os::fd::OwnedFd;

use narrows::frame::PREFACE_LEN;
use narrows_host::file_state::FileState;
use xxhash_rust::xxh3::Xxh3;

use super::File;
use super::producer::each_decoded;
use crate::reread::{DataSum, each};

/// A file as it was read, or only looked at.
pub(super) struct Seen {
    pub(super) state: FileState,
    /// `None` if it was not read, since the other end has it.
    pub(super) sum: Option<Sum>,
}

/// The content of a file as it was read.
#[derive(Clone, Copy)]
pub(super) enum Sum {
    /// Its data, holes left out.
    Data(DataSum),
    /// All bytes, those of holes too.
    Raw(u128),
    /// The frames of a stored file, up to this offset.
    Frames { end: u64, sum: u128 },
    /// What a stored file decodes to.
    Decoded(u128),
}

impl Sum {
    /// Whether the file has that content. `goes_on` ends the reading with false.
    fn is_of(&self, file: &OwnedFd, len: u64, goes_on: impl Fn() -> bool) -> io::Result<bool> {
        let mut hash = Xxh3::new();
        let add = |bytes: &[u8]| hash.update(bytes);
        let (read, sum) = match self {
            Self::Data(sum) => return sum.is_of(file, len, goes_on),
            Self::Raw(sum) => (each(file, 0, len, goes_on, add)?, *sum),
            Self::Frames { end, sum } => (each(file, PREFACE_LEN as u64, *end, goes_on, add)?, *sum),
            Self::Decoded(sum) => (each_decoded(file, len, goes_on, add)?, *sum),
        };
        Ok(read && hash.digest128() == sum)
    }
}

impl Seen {
    /// Whether an open file still is what was seen, and its state now if only its status differs; `None` if
    /// it was written, or nothing is known of its content.
    pub(super) fn still(&self, of: &File, file: &OwnedFd, goes_on: impl Fn() -> bool) -> io::Result<Option<FileState>> {
        self.still_of_len(of.len, file, goes_on)
    }

    /// As [`Seen::still`]. `len`: the announced length.
    pub(super) fn still_of_len(
        &self,
        len: u64,
        file: &OwnedFd,
        goes_on: impl Fn() -> bool,
    ) -> io::Result<Option<FileState>> {
        self.state.still(file, || self.sum.as_ref().map_or(Ok(false), |sum| sum.is_of(file, len, &goes_on)))
    }
}
