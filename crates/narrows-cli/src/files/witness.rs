//! Detection of sources that change while they are read.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

/// A file that is read, as it was when it was opened.
pub(crate) struct Witness {
    /// `None` of pipes, devices, and what the caller did not open.
    file: Option<(File, Stamp)>,
    /// The message of a source that fails, such as `cannot read in.bin`.
    cannot: String,
}

/// What writing changes. A program may set the time of the last write back, but not that of the last change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    len: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(data: &Metadata) -> Self {
        Self {
            place: (data.dev(), data.ino()),
            len: data.len(),
            written: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

impl Witness {
    pub(super) fn new(file: Option<File>, cannot: String) -> Result<Self> {
        let stamped =
            file.map(|file| file.metadata().map(|data| (file, data))).transpose().with_context(|| cannot.clone())?;
        let file = stamped.filter(|(_, data)| data.is_file()).map(|(file, data)| (file, Stamp::of(&data)));
        Ok(Self { file, cannot })
    }

    /// Fails if the file was written since.
    pub(crate) fn is_unchanged(&self) -> Result<()> {
        match &self.file {
            // Files such as those of /proc have length 0, and are made anew at each look.
            Some((file, before)) if before.len > 0 => {
                let now = Stamp::of(&file.metadata().with_context(|| self.cannot.clone())?);
                if now == *before { Ok(()) } else { Err(anyhow!("{}: it changed while it was read", self.cannot)) }
            }
            _ => Ok(()),
        }
    }

    /// Whether the file that has this name now is the one that was read, as it was then.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let now = path.metadata().ok().map(|data| Stamp::of(&data));
        self.file.as_ref().is_none_or(|(_, before)| now == Some(*before))
    }
}
