//! Files that are read at any byte, never beyond their end, and never more than their length allows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use narrows::{Error, Result};
use rustix::fs::OFlags;

use crate::budget::{Budget, Held};

/// How often all bytes of a file may be read as structure. Real files are read once or twice; one whose
/// pointers lead in circles would be read for ever.
const TIMES_MAX: u64 = 64;
/// What a short file may read beyond that.
const SHORT: u64 = 16 << 20;

/// What is said of a named pipe, a device or a socket.
pub(crate) const NO_FILE: &str = "it is a pipe, a device or a socket, and only files are read";

/// Bytes with positions.
trait At: Send + Sync {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()>;
}

impl At for File {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, out, at)
    }
}

impl At for Vec<u8> {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A file, or bytes in memory.
pub(crate) struct Bytes {
    at: Box<dyn At>,
    pub(crate) len: u64,
    /// Bytes of structure that may still be read.
    left: AtomicU64,
    /// Memory for structure, what is read and what is made of it.
    budget: Budget,
}

/// Bytes of structure, which count as memory of the file while they are there.
pub(crate) struct Structure {
    bytes: Vec<u8>,
    _held: Held,
}

impl Structure {
    /// Without the bytes after the first `len`.
    pub(crate) fn truncated(mut self, len: usize) -> Self {
        self.bytes.truncate(len);
        self
    }
}

impl std::ops::Deref for Structure {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bytes {
    fn new(at: Box<dyn At>, len: u64) -> Self {
        let left = AtomicU64::new(len.saturating_mul(TIMES_MAX).saturating_add(SHORT));
        Self { at, len, left, budget: Budget::of_file(len) }
    }

    /// A regular file. Others have no length, and opening a named pipe would wait for its writer.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other(NO_FILE).into());
        }
        Ok(Self::new(Box::new(file), about.len()))
    }

    pub(crate) fn of_memory(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self::new(Box::new(bytes), len)
    }

    /// Reads elements or chunks.
    pub(crate) fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let short = || Error::truncated(format!("the file has no {len} bytes at {at}: it is cut short or damaged"));
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(short());
        }
        let mut out = vec![0; usize::try_from(len).map_err(|_| short())?];
        self.at.read_exact_at(&mut out, at)?;
        Ok(out)
    }

    /// Memory for what is made of the file's structure.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Reads structure: all of it together is limited.
    pub(crate) fn structure(&self, at: u64, len: u64) -> Result<Structure> {
        let used = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len.max(64)));
        if used.is_err() {
            return Err(Error::corrupt("the file's structure leads in circles"));
        }
        let mut held = self.budget.held();
        held.add(len.min(self.len))?;
        Ok(Structure { bytes: self.read(at, len)?, _held: held })
    }

    /// Reads up to so many bytes of structure, fewer at the end of the file.
    pub(crate) fn structure_up_to(&self, at: u64, len: u64) -> Result<Structure> {
        self.structure(at, len.min(self.len.saturating_sub(at)))
    }
}
