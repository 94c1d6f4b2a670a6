//! Atomic writing of files: a file appears complete or not at all, and nothing is left behind if
//! the program is killed.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::follow;
pub use crate::follow::folder_of;
use crate::words::without_temporary_name;

/// Mode of a new file; the system applies the umask.
const MODE: u32 = 0o666;
/// Mode of a new file that is nobody else's business.
const PRIVATE: u32 = 0o600;
/// Attempts to rename. A process that writes the same file at the same time can remove the second
/// name, but hardly this often.
const TRIES: usize = 100;
/// Bytes of the name that go into the second name, which file systems limit to 255 bytes.
const NAME_MAX: usize = 200;

/// Writes a file that appears complete or not at all. Anything but a regular file, such as a
/// device, is written in place. The file behind a link is replaced, not the link, and its
/// permissions are kept; a link that a shell would not follow is an error.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes, None)
}

/// Opens a regular file to read it. Opening or reading anything else, such as a pipe, may wait for ever.
///
/// # Errors
/// If it cannot be opened, or is none.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let data = file.metadata()?;
    if data.is_file() { Ok((file, data)) } else { Err(io::Error::other("it is no regular file")) }
}

/// As [`write_whole`]; a new file can be read by its owner only.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes, Some(PRIVATE))
}

fn write(path: &Path, bytes: &[u8], mode: Option<u32>) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let place = follow::to_end(path).with_context(cannot)?;
    if place.is_open {
        return follow::open_again(path).and_then(|mut file| file.write_all(bytes)).with_context(cannot);
    }
    let permissions = match place.there {
        Some(data) if !data.is_file() => {
            return follow::open_special(path).and_then(|mut file| file.write_all(bytes)).with_context(cannot);
        }
        // Who may read what is secret is not for somebody else to say.
        Some(data) if mode.is_none() || data.uid() == rustix::process::geteuid().as_raw() => Some(data.permissions()),
        _ => mode.map(Permissions::from_mode),
    };
    let path = place.path;
    let folder = folder_of(&path);
    if write_nameless(folder, &path, bytes, permissions.as_ref()).is_ok() {
        return Ok(());
    }
    // Not every file system supports nameless files. If it failed for another reason, this attempt
    // fails too and reports it.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(folder)
        .map_err(without_temporary_name)
        .with_context(cannot)?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions).with_context(cannot)?;
    }
    file.write_all(bytes).with_context(cannot)?;
    file.persist(&path).map_err(|e| e.error).with_context(cannot)?;
    Ok(())
}

/// Writes a nameless file (O_TMPFILE) and links it to `path` when it is complete.
fn write_nameless(folder: &Path, path: &Path, bytes: &[u8], permissions: Option<&Permissions>) -> io::Result<()> {
    let mut file = nameless(folder, MODE)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions.clone())?;
    }
    file.write_all(bytes)?;
    match link(&file, path) {
        Err(Errno::EXIST) => replace(&file, path),
        done => Ok(done?),
    }
}

/// A file without a name (O_TMPFILE), of which nothing is left if the program is killed.
fn nameless(folder: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(mode))?))
}

/// Whether a nameless file can be given a name, for which /proc must be there.
fn can_be_named(file: &File) -> bool {
    let own = rustix::fs::fstat(file);
    let there = rustix::fs::stat(by_descriptor(file));
    matches!((own, there), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

fn by_descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn link(file: &File, to: &Path) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, by_descriptor(file), CWD, to, AtFlags::SYMLINK_FOLLOW)
}

/// Puts a nameless file in the place of another one.
fn replace(file: &File, path: &Path) -> io::Result<()> {
    // Only a file that has a name can replace another. If the program is killed in between, the
    // second name stays, with the complete content, and the next write of this file removes it.
    let second = second_name(path);
    for _ in 0..TRIES {
        match link(file, &second) {
            Err(Errno::EXIST) => drop(fs::remove_file(&second)),
            Err(e) => return Err(e.into()),
            Ok(()) => match fs::rename(&second, path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            },
        }
    }
    Err(Errno::BUSY.into())
}

/// A file that will take a name, and the place of what has it, in the same folder. If the program is killed
/// before, that is as it was, and nothing is left of this one.
pub struct Successor {
    file: File,
    /// Where the file system has no nameless files: removed when it is dropped, but not if the program is
    /// killed.
    named: Option<tempfile::TempPath>,
}

impl Successor {
    /// Begins the successor of `path`, which only its owner may read.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, PRIVATE)
    }

    /// Begins the successor of `path` with the mode of a new file, of which the system takes the umask away.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn as_new(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, MODE)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<Self> {
        let folder = folder_of(path);
        if let Some(file) = nameless(folder, mode).ok().filter(can_be_named) {
            return Ok(Self { file, named: None });
        }
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".narrows-").suffix(".part").permissions(Permissions::from_mode(mode));
        let (file, path) = builder.tempfile_in(folder).map_err(without_temporary_name)?.into_parts();
        Ok(Self { file, named: Some(path) })
    }

    /// The file, which is written and read.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it has meanwhile; `None` of a nameless file.
    pub fn temporary(&self) -> Option<&Path> {
        self.named.as_deref()
    }

    /// Takes the name.
    ///
    /// # Errors
    /// The file system fails; `path` is as it was.
    pub fn put(self, path: &Path) -> io::Result<()> {
        match self.named {
            Some(named) => named.persist(path).map_err(|e| e.error),
            None => match link(&self.file, path) {
                Err(Errno::EXIST) => replace(&self.file, path),
                done => Ok(done?),
            },
        }
    }

    /// Takes the name if nobody has it.
    ///
    /// # Errors
    /// `AlreadyExists`; the file system fails.
    pub fn put_new(self, path: &Path) -> io::Result<()> {
        match self.named {
            Some(named) => match named.persist_noclobber(path) {
                Ok(()) => Ok(()),
                // Not every file system can name a file only if there is none, nor has second names.
                Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists && path.symlink_metadata().is_err() => {
                    e.path.persist(path).map_err(|e| e.error)
                }
                Err(_) => Err(Errno::EXIST.into()),
            },
            None => Ok(link(&self.file, path)?),
        }
    }

    /// Takes the place of `path`, when its bytes have reached the disk.
    ///
    /// # Errors
    /// The file system fails; `path` is as it was.
    pub fn replace(self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        self.put(path)?;
        // The old name may come back after a crash of the system; the content is whole either way.
        let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Removes what a program that was killed while it replaced `path` may have left beside it.
pub fn remove_left_over(path: &Path) {
    let _ = fs::remove_file(second_name(path));
}

/// The temporary name. It is the same every time, so that a leftover of a killed program is found.
fn second_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let second = [b".", &name[..name.len().min(NAME_MAX)], b".narrows-part"].concat();
    path.with_file_name(std::ffi::OsString::from_vec(second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(folder: &Path) -> Vec<String> {
        let list = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = list.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_keeps_who_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_whole(&path, b"one").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink("a", folder.path().join("link")).unwrap();
        // As if a run had been killed between linking and renaming.
        fs::write(second_name(&path), "half").unwrap();
        write_whole(&folder.path().join("link"), b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["a", "link"]);
        let long = folder.path().join("n".repeat(255));
        write_whole(&long, b"one").unwrap();
        write_whole(&long, b"two").unwrap();
        assert_eq!(fs::read(&long).unwrap(), b"two");
    }

    #[test]
    fn a_successor_is_not_seen_before_it_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for text in ["one", "two"] {
            let before = names(folder.path());
            let new = Successor::as_new(&path).unwrap();
            new.file().write_all(text.as_bytes()).unwrap();
            if new.named.is_some() {
                return narrows_test::skip("this file system has no files without names");
            }
            assert_eq!(names(folder.path()), before);
            new.put(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        drop(Successor::as_new(&path).unwrap());
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_private_file_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for text in ["one", "two"] {
            write_private(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn two_at_once_both_succeed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "").unwrap();
        std::thread::scope(|scope| {
            for byte in 0..4u8 {
                let path = &path;
                scope.spawn(move || (0..50).for_each(|_| write_whole(path, &[byte; 9000]).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 9000 && bytes.iter().all(|b| *b == bytes[0]), "the whole of one of them");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_whole(&folder.path().join("none/a"), b"x").unwrap_err();
        assert!(error.to_string().contains("none/a"), "{error:#}");
        assert!(write_whole(Path::new("/dev/null"), b"x").is_ok());
    }
}
