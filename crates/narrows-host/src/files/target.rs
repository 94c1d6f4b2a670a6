//! Outputs, which have their names only when they are complete.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows::stored::Stored;
use rustix::event::PollFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::sparse::Sparse;
use super::{Name, ending, folder_of, is_dash, stdout, stdout_is_given, waits_for_nobody};
use crate::follow;
use crate::signals::{interruptible, ready};
use crate::whole::{Successor, remove_left_over};

/// Size of a pipe that is written, the most that is allowed without privileges.
const PIPE_LEN: usize = 1 << 20;

/// An output of raw or wire bytes. A regular file gets its name only when it is complete.
pub struct Target {
    kind: Kind,
    name: Name,
}

enum Kind {
    Stdout,
    /// A device or a named pipe: written in place.
    Special(File),
    Whole {
        new: Successor,
        path: PathBuf,
        /// Another file that has this name at the end is replaced.
        replaces: bool,
        /// Bytes of it where holes are left out, with those of a hole at its end; else 0.
        end: Arc<AtomicU64>,
    },
}

impl Target {
    /// Opens a file, or stdin for no path and `-`.
    ///
    /// # Errors
    /// It cannot be written, or is a folder.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|p| !is_dash(p)) else {
            stdout()?;
            let name = Name { is_stdout: true, ..Name::new("cannot write stdout".into()) };
            return Ok(Self { kind: Kind::Stdout, name });
        };
        let cannot = format!("cannot write {}", path.display());
        let kind = Self::open_kind(path, &cannot)?;
        let is_stdout = matches!(kind, Kind::Stdout);
        Ok(Self { kind, name: Name { is_stdout, ..Name::new(cannot) } })
    }

    /// Opens an output whose name was made from that of an input. Others may be able to write in that folder,
    /// so no link is followed and nothing is written in place. `shown`: the path in messages.
    ///
    /// # Errors
    /// It cannot be written, or is a folder or anything else but a file.
    pub fn beside(path: &Path, shown: &Path) -> Result<Self> {
        let cannot = format!("cannot write {}", shown.display());
        let permissions = match path.symlink_metadata() {
            Ok(data) if data.is_file() => Some(data.permissions()),
            Ok(data) if data.is_symlink() => None,
            Ok(data) if data.is_dir() => return Err(anyhow!("{cannot}: it is a folder")),
            Ok(_) => return Err(anyhow!("{cannot}: it is not a regular file; use -o to write into it")),
            Err(_) => None,
        };
        let kind = Self::whole(path.to_owned(), permissions, &cannot)?;
        Ok(Self { kind, name: Name::new(cannot) })
    }

    fn open_kind(path: &Path, cannot: &str) -> Result<Kind> {
        // The file behind a link is replaced, not the link, and its permissions are kept.
        let place = follow::to_end(path).with_context(|| cannot.to_owned())?;
        if place.is_open {
            // By the same open file, what others write before and after stays.
            let is_stdout = place.there.as_ref().is_some_and(follow::is_stdout) && stdout_is_given().is_ok();
            let again = || follow::open_again(path).with_context(|| cannot.to_owned());
            return if is_stdout { Ok(Kind::Stdout) } else { Ok(Kind::Special(again()?)) };
        }
        let permissions = match place.there {
            Some(data) if data.is_dir() => return Err(anyhow!("{cannot}: it is a folder")),
            Some(data) if !data.is_file() => {
                let owned = path.to_owned();
                let opened = interruptible(move || follow::open_special(&owned))?;
                return Ok(Kind::Special(opened.with_context(|| cannot.to_owned())?));
            }
            there => there.map(|data| data.permissions()),
        };
        Self::whole(place.path, permissions, cannot)
    }

    fn whole(path: PathBuf, permissions: Option<std::fs::Permissions>, cannot: &str) -> Result<Kind> {
        // Of a program that was killed in the moment in which it replaced this file.
        remove_left_over(&path);
        let new = Successor::as_new(&path).with_context(|| cannot.to_owned())?;
        ending::remember(new.temporary().map(Path::to_owned));
        if let Some(permissions) = permissions {
            new.file().set_permissions(permissions).with_context(|| cannot.to_owned())?;
        }
        Ok(Kind::Whole { new, path, replaces: true, end: Arc::default() })
    }

    /// Sets whether another file that has the name at the end is replaced. Default: true.
    pub fn replacing(mut self, replace: bool) -> Self {
        if let Kind::Whole { replaces, .. } = &mut self.kind {
            *replaces = replace;
        }
        self
    }

    /// A target that is already open and is written in place; `cannot` is the prefix of its errors.
    pub fn written(file: File, cannot: String) -> Self {
        Self { kind: Kind::Special(file), name: Name::new(cannot) }
    }

    /// Whether the target is stdout.
    pub fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    pub fn name(&self) -> Name {
        self.name.clone()
    }

    /// Another descriptor of the file that is written.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn file(&self) -> Result<File> {
        match &self.kind {
            Kind::Stdout => stdout(),
            Kind::Special(file) => Ok(file.try_clone()?),
            Kind::Whole { new, .. } => Ok(new.file().try_clone()?),
        }
    }

    /// Whether writing waits for no other program.
    pub fn is_regular(&self) -> bool {
        self.file().is_ok_and(|file| waits_for_nobody(&file))
    }

    /// A writer for raw bytes that remembers whether writing failed. A signal ends its waiting.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn sink(&self) -> Result<Sink> {
        let file = self.file()?;
        let is_pipe = file.metadata().is_ok_and(|data| data.file_type().is_fifo());
        if is_pipe {
            // A short pipe costs many calls; where it cannot be longer, it stays as it is.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_LEN);
        }
        Ok(Sink { file, name: self.name(), is_pipe })
    }

    /// As [`Target::sink`], with holes for runs of zeros in a new file. The position of a pipe or of a
    /// file that stdout appends to is not ours.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn sparse_sink(&self) -> Result<Box<dyn Write + Send>> {
        Ok(match &self.kind {
            Kind::Whole { end, .. } => {
                Box::new(Sparse { file: self.file()?, name: self.name(), at: 0, end: Arc::clone(end) })
            }
            Kind::Stdout | Kind::Special(_) => Box::new(self.sink()?),
        })
    }

    /// Gives the file its length if it ends with a hole; before its times are set, which that changes.
    ///
    /// # Errors
    /// The file cannot have that length.
    pub fn complete(&self) -> io::Result<()> {
        let Kind::Whole { new, end, .. } = &self.kind else { return Ok(()) };
        let end = end.load(Ordering::Acquire);
        let file = new.file();
        let completed = file.metadata().and_then(|data| if data.len() < end { file.set_len(end) } else { Ok(()) });
        self.name.note(completed)
    }

    /// The place that is written, if it can be read back: a new file, from its first byte on.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn stored(&self) -> Result<Option<Arc<dyn Stored>>> {
        Ok(match &self.kind {
            Kind::Whole { new, end, .. } => {
                let (file, name, end) = (new.file().try_clone()?, self.name(), Arc::clone(end));
                Some(Arc::new(Written { file, name, end }))
            }
            Kind::Stdout | Kind::Special(_) => None,
        })
    }

    /// Gives the file its name after everything was written. With `fsync`, file and name are on the disk
    /// afterwards.
    ///
    /// # Errors
    /// The file cannot get its name, or not be flushed; what had the name has it still.
    pub fn commit(self, fsync: bool) -> io::Result<()> {
        self.complete()?;
        let Kind::Whole { new, path, replaces, .. } = self.kind else { return Ok(()) };
        let synced = if fsync { new.file().sync_all() } else { Ok(()) };
        let named = synced.and_then(|()| name_it(new, &path, replaces));
        self.name.note(named.and_then(|()| if fsync { sync_folder(folder_of(&path)) } else { Ok(()) }))
    }
}

/// Flushes the names in a folder to the disk, where that can be done.
fn sync_folder(folder: &Path) -> io::Result<()> {
    // A folder in which one may write need not be readable.
    let Ok(folder) = File::open(folder) else { return Ok(()) };
    match folder.sync_all() {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

/// Gives a complete file its name.
fn name_it(new: Successor, path: &Path, replaces: bool) -> io::Result<()> {
    if replaces {
        return new.put(path);
    }
    new.put_new(path).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => io::Error::new(e.kind(), "it already exists; use -f to overwrite it"),
        _ => e,
    })
}

/// A writer of a target.
pub struct Sink {
    file: File,
    name: Name,
    /// Its reader may leave it full for ever.
    is_pipe: bool,
}

impl Sink {
    /// Writes what fits into a pipe once something does.
    fn write_pipe(&self, bytes: &[u8]) -> io::Result<usize> {
        /// What fits into a pipe that takes anything.
        const LEAST: usize = 4096;
        /// A reader that reads makes room for much in this time; who is woken for each 4 KiB takes three
        /// times as long.
        const PAUSE: Duration = Duration::from_micros(100);
        const PAUSES: u32 = 50;
        let wait = || ready(&self.file, PollFlags::OUT, None).map_err(|e| io::Error::other(e.to_string()));
        for pauses in 0.. {
            let all = [IoSlice::new(bytes)];
            // At its own position, without changing the mode of a pipe that other programs share.
            match rustix::io::pwritev2(&self.file, &all, u64::MAX, ReadWriteFlags::NOWAIT) {
                Err(Errno::AGAIN) if pauses < PAUSES => std::thread::sleep(PAUSE),
                Err(Errno::AGAIN) => drop(wait()?),
                // Before Linux 6.5.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {
                    wait()?;
                    return (&self.file).write(&bytes[..bytes.len().min(LEAST)]);
                }
                result => return Ok(result?),
            }
        }
        Ok(0)
    }
}

/// An output file that is read back while it is written.
struct Written {
    file: File,
    name: Name,
    end: Arc<AtomicU64>,
}

impl Stored for Written {
    fn read_raw(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        // Before the file is read: it may grow meanwhile.
        let end = self.end.load(Ordering::Acquire);
        let result = match FileExt::read_at(&self.file, out, at) {
            Ok(0) if at < end => {
                let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(out.len());
                out[..n].fill(0);
                Ok(n)
            }
            Ok(0) if !out.is_empty() => Err(io::Error::other("another program made it shorter while it was written")),
            result => result,
        };
        self.name.note(result)
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = if self.is_pipe { self.write_pipe(bytes) } else { self.file.write(bytes) };
        self.name.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
