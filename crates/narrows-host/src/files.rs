//! Input and output files, and which of them caused an error.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow};

mod ending;
mod same;
mod source;
mod sparse;
mod standard;
mod target;
mod witness;

pub use crate::whole::{folder_of, write_whole};
pub use ending::EndsSoon;
pub use same::{identity, refuse_same};
pub use source::{Source, Waiting};
pub use target::{Sink, Target};
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
///
/// # Errors
/// The program was started without one.
pub fn stdin() -> Result<File> {
    let given = standard::given(libc::STDIN_FILENO);
    Ok(File::from(given.and_then(|()| io::stdin().as_fd().try_clone_to_owned()).context("cannot read stdin")?))
}

/// Fails if the program was started without a stdout.
///
/// # Errors
/// It was.
pub fn stdout_is_given() -> Result<()> {
    standard::given(libc::STDOUT_FILENO).context("cannot write stdout")
}

/// Opens a file that is read at any byte, which a pipe, a device or a folder is not.
///
/// # Errors
/// It is another thing, or cannot be opened.
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
///
/// # Errors
/// The program was started without one.
pub fn stdout() -> Result<File> {
    let given = standard::given(libc::STDOUT_FILENO);
    Ok(File::from(given.and_then(|()| io::stdout().as_fd().try_clone_to_owned()).context("cannot write stdout")?))
}

/// Creates or truncates a file.
///
/// # Errors
/// It cannot be written; the error names it.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
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

/// The system's error at the bottom of one of the engine, whose own words are about links.
pub fn innermost(error: io::Error) -> io::Error {
    match error.downcast::<narrows::Error>() {
        Ok(narrows::Error { source: Some(cause), .. }) => innermost(cause),
        Ok(own) => io::Error::other(own),
        Err(cause) => cause,
    }
}
