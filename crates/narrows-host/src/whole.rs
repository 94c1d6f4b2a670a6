//! Files that appear whole or not at all, and leave nothing behind when the program is killed.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::words::without_temporary_name;

/// What a new file gets; the system takes the umask off.
const MODE: u32 = 0o666;
/// Somebody who writes the same file at the same time can take the second name away, hardly so often.
const TRIES: usize = 100;
/// So much of a name goes into the second one, which must not be longer than the 255 bytes of file systems.
const NAME_MAX: usize = 200;

/// Writes a file that appears whole or not at all; what is no plain file, such as a device, is written as it is. The file
/// behind a link is replaced, not the link, and keeps who may read it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let (path, permissions) = match path.metadata() {
        Ok(data) if !data.is_file() => return fs::write(path, bytes).with_context(cannot),
        Ok(data) => (path.canonicalize().with_context(cannot)?, Some(data.permissions())),
        Err(_) => (path.to_owned(), None),
    };
    let folder = folder_of(&path);
    if write_nameless(folder, &path, bytes, permissions.as_ref()).is_ok() {
        return Ok(());
    }
    // Not every file system has nameless files; and why it failed, if it is not that, shows again.
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

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// By a file that has no name before it is whole.
fn write_nameless(folder: &Path, path: &Path, bytes: &[u8], permissions: Option<&Permissions>) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(MODE))?);
    if let Some(permissions) = permissions {
        file.set_permissions(permissions.clone())?;
    }
    file.write_all(bytes)?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| rustix::fs::linkat(CWD, nameless.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        Err(Errno::EXIST) => {}
        done => return Ok(done?),
    }
    // Only a file with a name can take another's place. Killed in between it leaves one, whole, which the next one to write
    // this file removes.
    let second = second_name(path);
    for _ in 0..TRIES {
        match link(&second) {
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

/// The same every time: what a killed program left is found again.
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
        // As if a run had been killed between its two names.
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
