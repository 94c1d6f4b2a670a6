//! A folder into which files are put by their names, which are not trusted: for sources that have no
//! entry stream, such as object stores. Nothing is stored outside it, links in it are not followed,
//! and a file has its name only when it is whole.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use narrows::entry::check_path;
use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::io::Errno;

use crate::meta;
use crate::spelling::folds_at;
use crate::store::partial::{PRIVATE, Partial};
use crate::tree::{Tree, split};

/// A folder as the root of all names.
pub struct Landing(Tree);

/// The attributes that a file is to have; what is missing is as of a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Seconds and nanoseconds of the modification time.
    pub mtime: Option<(i64, u32)>,
    /// Numbers of owner and group.
    pub owner: (Option<u32>, Option<u32>),
}

/// What is in a place already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct There {
    /// It is a regular file.
    pub is_file: bool,
    /// Length in bytes.
    pub len: u64,
    /// Seconds and nanoseconds of the modification time.
    pub mtime: (i64, u32),
}

/// A file that has no name yet; it is removed when it is dropped.
pub struct Arriving {
    partial: Partial,
    name: OsString,
    is_private: bool,
}

impl Landing {
    /// Opens a folder, which may be reached through links, since the user names it.
    ///
    /// # Errors
    /// It is none, or cannot be opened.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Tree::open(folder).map(Self)
    }

    /// The same folder for another thread.
    ///
    /// # Errors
    /// None today.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Whether `path` is a name that a file may get here.
    ///
    /// # Errors
    /// It leads out of the folder, or is too long.
    pub fn check(path: &[u8]) -> io::Result<()> {
        let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        match check_path(path) {
            Err(e) => bad(e.to_string()),
            Ok(()) if path.is_empty() => bad("it has no name".to_owned()),
            Ok(()) => Ok(()),
        }
    }

    /// Whether the folder `path` takes different spellings for one name; of the one above it where it is
    /// missing. `writes`: a file may be created in it for a moment.
    pub fn folds(&mut self, path: &[u8], writes: bool) -> bool {
        folds_at(&mut self.0, path, writes)
    }

    /// What is at `path`; `None` if there is nothing.
    ///
    /// # Errors
    /// It cannot be examined, or a link is in the way.
    pub fn there(&mut self, path: &[u8]) -> io::Result<Option<There>> {
        Self::check(path)?;
        let stat = self
            .0
            .parent(path)
            .and_then(|(folder, name)| Ok(rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?));
        match stat {
            Ok(stat) => Ok(Some(there(&stat))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Begins the file `path`, and makes the folders above it. Without a `mode` it will have that of a
    /// new file.
    ///
    /// # Errors
    /// The name is bad, something is in the way, or the file cannot be created.
    pub fn begin(&mut self, path: &[u8], mode: Option<u32>) -> io::Result<Arriving> {
        Self::check(path)?;
        let (folder, name) = split(path);
        let folder = self.folder(folder)?;
        let name = OsStr::from_bytes(name).to_owned();
        if let Ok(stat) = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        {
            return Err(io::Error::other("a folder of that name is in the way"));
        }
        let is_private = mode.is_some();
        let created = if is_private { PRIVATE } else { Mode::from_raw_mode(0o666) };
        Ok(Arriving { partial: Partial::create(folder, &name, created)?, name, is_private })
    }

    /// Removes the file `path`.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&mut self, path: &[u8]) -> io::Result<()> {
        Self::check(path)?;
        let (folder, name) = self.0.parent(path)?;
        Ok(rustix::fs::unlinkat(&folder, &name, AtFlags::empty())?)
    }

    /// Flushes everything below it to the disk, names too.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::syncfs(self.0.root()) {
            // The folder may be writable and not readable.
            Err(Errno::BADF) => {
                rustix::fs::sync();
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Opens the folder `path`, and makes what is missing of it.
    fn folder(&mut self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        match self.0.folder(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map_err(in_way),
        }
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let (parent, name) = self.0.parent(&path[..end]).map_err(in_way)?;
            match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(in_way(e.into())),
            }
        }
        self.0.folder(path).map_err(in_way)
    }
}

/// What keeps a folder from being one.
fn in_way(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => io::Error::other("a file or link is where a folder has to be"),
        _ => error,
    }
}

fn there(stat: &Stat) -> There {
    There {
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        len: stat.st_size as u64,
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
    }
}

impl Arriving {
    /// The file to write into.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.partial.file.try_clone()?.into())
    }

    /// Gives the file its attributes and its name. Returns the attributes that could not be set.
    ///
    /// # Errors
    /// The name cannot be given; then the file is removed.
    pub fn finish(mut self, attributes: &Attributes, fsync: bool) -> io::Result<Vec<&'static str>> {
        let file = self.partial.file.as_fd();
        let mut lost = Vec::new();
        let mut note = |what, result: Result<(), Errno>| {
            if result.is_err() {
                lost.push(what);
            }
        };
        // The owner first, since that clears bits of the mode, and the times last.
        let (uid, gid) = attributes.owner;
        if let Some(uid) = uid {
            note("owner", meta::user(uid).and_then(|uid| rustix::fs::fchown(file, Some(uid), None)));
        }
        if let Some(gid) = gid {
            note("group", meta::group_of(gid).and_then(|gid| rustix::fs::fchown(file, None, Some(gid))));
        }
        if let Some(mode) = attributes.mode.filter(|_| self.is_private) {
            note("mode", rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777)));
        }
        if let Some(mtime) = attributes.mtime {
            let now = rustix::fs::fstat(file).ok();
            note("times", rustix::fs::futimens(file, &meta::stamps(mtime, now.as_ref())));
        }
        if fsync {
            rustix::fs::fsync(file)?;
        }
        self.partial.rename(&self.name, true)?;
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn put(landing: &mut Landing, path: &str) -> io::Result<()> {
        let arriving = landing.begin(path.as_bytes(), Some(0o640))?;
        arriving.file()?.write_all(path.as_bytes())?;
        let attributes = Attributes { mode: Some(0o640), mtime: Some((-5, 7)), ..Attributes::default() };
        assert!(arriving.finish(&attributes, false)?.is_empty());
        Ok(())
    }

    #[test]
    fn files_appear_whole_with_their_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let mut landing = Landing::open(dir.path()).unwrap();
        put(&mut landing, "a/b/c").unwrap();
        let data = fs::metadata(dir.path().join("a/b/c")).unwrap();
        assert_eq!((data.permissions().mode() & 0o7777, data.mtime(), data.mtime_nsec()), (0o640, -5, 7));
        assert_eq!(landing.there(b"a/b/c").unwrap(), Some(There { is_file: true, len: 5, mtime: (-5, 7) }));
        assert_eq!(landing.there(b"a/b/d").unwrap(), None);
        drop(landing.begin(b"a/half", None).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1, "a file that is given up leaves nothing");
        landing.remove(b"a/b/c").unwrap();
        assert!(!dir.path().join("a/b/c").exists());
    }

    #[test]
    fn no_name_leads_out_and_nothing_in_the_way_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("folder")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        symlink("../outside", root.join("link")).unwrap();
        symlink("../outside/file", root.join("file")).unwrap();
        fs::write(root.join("plain"), "x").unwrap();
        let mut landing = Landing::open(&root).unwrap();
        let long = "x".repeat(256);
        let deep = "x/".repeat(2100);
        for bad in ["", "/x", "../x", "a/../x", "a//x", "a/", "./x", "x\0", "link/x", "plain/x", "folder", &long, &deep]
        {
            assert!(put(&mut landing, bad).is_err(), "{bad}");
        }
        // A link in the place of a file is replaced, and what it leads to stays as it is.
        put(&mut landing, "file").unwrap();
        assert!(fs::symlink_metadata(root.join("file")).unwrap().is_file());
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
