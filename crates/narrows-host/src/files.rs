//! Input and output files, and which of them caused an error.

use std::fs::{File, Metadata};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows::stored::Stored;
use rustix::event::PollFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::follow;
use crate::signals::{interruptible, ready};
use crate::whole::{Successor, remove_left_over};
use crate::words;

mod ending;
mod same;
mod sparse;
mod standard;
mod witness;

pub use crate::whole::{folder_of, write_whole};
pub use ending::EndsSoon;
pub use same::{identity, refuse_same};
use sparse::Sparse;
use witness::Seen;
pub use witness::Witness;

/// Error: the reader of our standard output closed it.
#[derive(Debug)]
pub struct StdoutClosed;

impl std::fmt::Display for StdoutClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader of the output went away")
    }
}

impl std::error::Error for StdoutClosed {}

/// The name of an input or output for error messages. The driver owns the file, and its errors do
/// not say which file failed.
#[derive(Clone)]
pub struct Name {
    /// The message, such as `cannot read in.bin`.
    text: Arc<str>,
    failed: Arc<AtomicBool>,
    is_stdout: bool,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Name {
    fn new(text: String) -> Self {
        Self { text: text.into(), failed: Arc::default(), is_stdout: false }
    }

    /// Whether reading or writing this file failed.
    pub fn is_to_blame(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Turns the error of a flow into the failure of this input or output.
    pub fn blame(&self, error: narrows::Error) -> anyhow::Error {
        match error.source {
            Some(e) if self.is_stdout && e.kind() == io::ErrorKind::BrokenPipe => StdoutClosed.into(),
            Some(e) => anyhow::Error::from(innermost(e)).context(self.text.to_string()),
            None => error.into(),
        }
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::Interrupted) {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Whether a path is `-`, which stands for stdin or stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns stdin as a file, without the buffer and lock of the standard library.
pub fn stdin() -> Result<File> {
    let given = standard::given(libc::STDIN_FILENO);
    Ok(File::from(given.and_then(|()| io::stdin().as_fd().try_clone_to_owned()).context("cannot read stdin")?))
}

/// Fails if the program was started without a stdout.
pub fn stdout_is_given() -> Result<()> {
    standard::given(libc::STDOUT_FILENO).context("cannot write stdout")
}

/// Opens a file that is read at any byte, which a pipe, a device or a folder is not.
pub fn open_regular(path: &Path) -> Result<File> {
    let cannot = || format!("cannot read {}", path.display());
    // Opening a named pipe would wait for its writer.
    let data = path.metadata().with_context(cannot)?;
    if !data.is_file() {
        let what = if data.is_dir() { "it is a folder" } else { "it is not a regular file" };
        return Err(anyhow!("{}: {what}", cannot()));
    }
    File::open(path).with_context(cannot)
}

/// Returns stdout as a file, without the buffer and lock of the standard library.
pub fn stdout() -> Result<File> {
    let given = standard::given(libc::STDOUT_FILENO);
    Ok(File::from(given.and_then(|()| io::stdout().as_fd().try_clone_to_owned()).context("cannot write stdout")?))
}

/// Creates or truncates a file, with an error that names it.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

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
    pub fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().with_context(|| self.name.to_string())
    }

    /// Tells later whether the file was written since. To be asked for before it is read.
    pub fn witness(&self) -> Result<Witness> {
        let file = self.named.then(|| self.file.try_clone()).transpose()?;
        Witness::new(file, self.seen.get_or_init(Seen::default).clone(), self.name.to_string())
    }

    /// The place that it is read from, if that can be read once more: a file, from its first byte on.
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
    pub fn sparse_sink(&self) -> Result<Box<dyn Write + Send>> {
        Ok(match &self.kind {
            Kind::Whole { end, .. } => {
                Box::new(Sparse { file: self.file()?, name: self.name(), at: 0, end: Arc::clone(end) })
            }
            Kind::Stdout | Kind::Special(_) => Box::new(self.sink()?),
        })
    }

    /// Gives the file its length if it ends with a hole; before its times are set, which that changes.
    pub fn complete(&self) -> io::Result<()> {
        let Kind::Whole { new, end, .. } = &self.kind else { return Ok(()) };
        let end = end.load(Ordering::Acquire);
        let file = new.file();
        let completed = file.metadata().and_then(|data| if data.len() < end { file.set_len(end) } else { Ok(()) });
        self.name.note(completed)
    }

    /// The place that is written, if it can be read back: a new file, from its first byte on.
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

/// Whether an output would replace something that is there. A device or a pipe is written in place.
pub fn is_in_the_way(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !path.metadata().is_ok_and(|data| is_device(&data))
}

/// Whether it is a device or a named pipe.
fn is_device(data: &Metadata) -> bool {
    let kind = data.file_type();
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo()
}

/// Whether a file is a regular one or /dev/null.
fn waits_for_nobody(file: &File) -> bool {
    /// Device 1:3, on every Linux.
    const NULL: u64 = 0x103;
    file.metadata().is_ok_and(|data| data.is_file() || data.file_type().is_char_device() && data.rdev() == NULL)
}

/// Whether a path is a named pipe, or a link to one, which is read once to its end.
pub fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|there| there.file_type().is_fifo())
}

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

/// The system's error at the bottom of one of the engine, whose own words are about links.
pub fn innermost(error: io::Error) -> io::Error {
    match error.downcast::<narrows::Error>() {
        Ok(narrows::Error { source: Some(cause), .. }) => innermost(cause),
        Ok(own) => io::Error::other(own),
        Err(cause) => cause,
    }
}
