//! The names in a folder.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Bytes of entries that are read at a time, as the C library reads them. A few file systems of FUSE, such as
/// lowntfs-3g, go on after all the entries that they gave: those that did not fit are never seen.
const READ_LEN: usize = 32 << 10;

/// Calls `each` with every name in a folder, but . and .., until it breaks.
///
/// # Errors
/// The folder cannot be read; then names are missing.
pub(crate) fn each_name(folder: impl AsFd, mut each: impl FnMut(&OsStr) -> ControlFlow<()>) -> io::Result<()> {
    // Reopened, so that it is read from its beginning.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(folder, ".", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(READ_LEN);
    let mut entries = RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The folder was removed meanwhile.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." && each(name).is_break() {
            break;
        }
    }
    Ok(())
}
