//! Detection of sources that change while they are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use xxhash_rust::xxh3::Xxh3;

use crate::file_state::FileState;

/// Bytes that are read at a time when a file is read again.
const STEP: usize = 1 << 20;

/// A file that is read, as it was when it was opened.
pub struct Witness {
    /// `None` of pipes, devices, and what the caller did not open.
    file: Option<(File, FileState)>,
    seen: Seen,
    /// The message of a source that fails, such as `cannot read in.bin`.
    cannot: String,
}

/// The bytes that were read of a source, one after the other.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<(Xxh3, u64)>>);

impl Seen {
    /// Adds the next bytes.
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut seen = self.lock();
        seen.0.update(bytes);
        seen.1 += bytes.len() as u64;
    }

    fn lock(&self) -> MutexGuard<'_, (Xxh3, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file of `len` bytes has these bytes and no others.
    fn are_of(&self, file: &File, len: u64) -> io::Result<bool> {
        let (mut hash, mut at, mut buffer) = (Xxh3::new(), 0, vec![0; STEP]);
        if self.lock().1 != len {
            return Ok(false);
        }
        loop {
            match file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(at == len && hash.digest128() == self.lock().0.digest128()),
                Ok(n) => {
                    hash.update(&buffer[..n]);
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Witness {
    /// `seen` gets what is read from now on.
    pub(super) fn new(file: Option<File>, seen: Seen, cannot: String) -> Result<Self> {
        let is_regular = |file: &File| file.metadata().is_ok_and(|data| data.is_file());
        let looked = file.filter(is_regular).map(|file| FileState::before_reading(&file).map(|state| (file, state)));
        let file = looked.transpose().with_context(|| cannot.clone())?;
        Ok(Self { file, seen, cannot })
    }

    /// Fails if the file was written since.
    pub fn is_unchanged(&self) -> Result<()> {
        self.now().map(drop)
    }

    /// What the file is now, if it still has what was read.
    fn now(&self) -> Result<Option<FileState>> {
        match &self.file {
            // Files such as those of /proc have length 0, and are made again at each look.
            Some((file, before)) if before.len > 0 => {
                let still = before.still(file, || self.seen.are_of(file, before.len));
                match still.with_context(|| self.cannot.clone())? {
                    None => Err(anyhow!("{}: it changed while it was read", self.cannot)),
                    now => Ok(now),
                }
            }
            file => Ok(file.as_ref().map(|(_, before)| *before)),
        }
    }

    /// Whether the file that has this name now is the one that was read, with what was read of it.
    pub fn is_at(&self, path: &Path) -> bool {
        let Ok(read) = self.now() else { return false };
        read.is_none_or(|read| path.metadata().is_ok_and(|data| FileState::from(&data) == read))
    }
}
