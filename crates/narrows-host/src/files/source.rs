//! Inputs that are read to their end.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use narrows::stored::Stored;
use rustix::event::PollFlags;

use super::witness::Seen;
use super::{Name, Witness, is_dash, stdin, waits_for_nobody};
use crate::signals::{interruptible, ready};
use crate::words;

/// An input that is read to its end. A regular file must not change its length meanwhile.
pub struct Source {
    file: File,
    name: Name,
    expected: Option<u64>,
    read: u64,
    /// Opened here, and so read from its first byte on.
    named: bool,
    /// What was read, if somebody will ask whether it changed.
    seen: OnceLock<Seen>,
}

impl Source {
    /// Opens a file, or stdin for no path and `-`.
    ///
    /// # Errors
    /// It cannot be opened, or is a folder.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|p| !is_dash(p)) else {
            let name = Name::new("cannot read stdin".into());
            return Ok(Self { file: stdin()?, name, expected: None, read: 0, named: false, seen: OnceLock::new() });
        };
        let cannot = format!("cannot read {}", path.display());
        // Opening a named pipe waits for its writer.
        let file = if path.is_file() {
            File::open(path)
        } else {
            let owned = path.to_owned();
            interruptible(move || File::open(owned))?
        };
        let file = file.with_context(|| cannot.clone())?;
        let data = file.metadata().with_context(|| cannot.clone())?;
        if data.is_dir() {
            return Err(anyhow!("{cannot}: it is a folder; pack it with tar and pipe that in"));
        }
        // Pipes, devices and files of /proc have no length to check against.
        let expected = (data.is_file() && data.len() > 0).then_some(data.len());
        Ok(Self { file, name: Name::new(cannot), expected, read: 0, named: true, seen: OnceLock::new() })
    }

    /// Length in bytes; `None` if unknown.
    pub fn raw_len(&self) -> Option<u64> {
        self.expected
    }

    pub fn name(&self) -> Name {
        self.name.clone()
    }

    /// What is open, whatever has its name by now.
    ///
    /// # Errors
    /// The system gives none.
    pub fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().with_context(|| self.name.to_string())
    }

    /// Tells later whether the file was written since. To be asked for before it is read.
    ///
    /// # Errors
    /// What it is now cannot be found out.
    pub fn witness(&self) -> Result<Witness> {
        let file = self.named.then(|| self.file.try_clone()).transpose()?;
        Witness::new(file, self.seen.get_or_init(Seen::default).clone(), self.name.to_string())
    }

    /// The place that it is read from, if that can be read once more: a file, from its first byte on.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn stored(&self) -> Result<Option<Arc<dyn Stored>>> {
        Ok(match self.expected {
            Some(_) if self.named => Some(Arc::new(self.file.try_clone()?)),
            _ => None,
        })
    }

    /// Whether reading waits for no other program.
    pub fn is_regular(&self) -> bool {
        waits_for_nobody(&self.file)
    }

    /// A reader without the check of its length. A signal ends its waiting.
    pub fn into_reader(self) -> Waiting {
        Waiting { waits: !self.is_regular(), file: self.file, seen: self.seen.into_inner() }
    }

    /// The same file, read at any byte; `None` of stdin, a pipe or a device.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn regular(&self) -> Result<Option<File>> {
        let is_regular = self.named && self.is_regular();
        Ok(is_regular.then(|| self.file.try_clone()).transpose()?)
    }

    /// The file itself, without the check of its length.
    pub fn into_file(self) -> File {
        self.file
    }

    fn read_unchanged(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.seen.get().into_iter().for_each(|seen| seen.add(&buf[..n]));
        self.read += n as u64;
        match self.expected {
            Some(len) if self.read > len => Err(io::Error::other(format!(
                "it grew while it was read (it had {})",
                words::count(len, "byte", "bytes")
            ))),
            Some(len) if n == 0 && self.read < len && !buf.is_empty() => {
                Err(io::Error::other(format!("it shrank while it was read ({len} bytes, then {})", self.read)))
            }
            _ => Ok(n),
        }
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let result = self.read_unchanged(buf);
        self.name.note(result)
    }
}

/// An input whose reads end at a signal.
pub struct Waiting {
    file: File,
    waits: bool,
    seen: Option<Seen>,
}

impl Read for Waiting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.waits {
            ready(&self.file, PollFlags::IN, None).map_err(|e| io::Error::other(e.to_string()))?;
        }
        let n = self.file.read(buf)?;
        self.seen.iter().for_each(|seen| seen.add(&buf[..n]));
        Ok(n)
    }
}
