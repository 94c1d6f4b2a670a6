//! The staging folder, in which the archive is unpacked, and the moving of its entries to the
//! target.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narrows::entry::{Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use tempfile::TempDir;

use super::{Copied, Order};
use crate::error::{Blame, Error, Result, cannot_store};
use crate::filter::Filter;
use crate::meta::{self, Losses, Ownership};
use crate::scan::{self, Found, Root, walk};
use crate::spelling;
use crate::store::Permitted;
use crate::tree::Tree;
use narrows_host::words::shown;
use narrows_host::words::without_os_numbers;

const SETID: u32 = 0o6000;

/// A staging folder, removed when it is dropped.
pub(super) struct Stage {
    folder: TempDir,
    keeps_owner: bool,
    /// How owners of folders are set.
    ownership: Ownership,
    losses: Losses,
}

impl Stage {
    /// Creates the folder in the target, so that entries can be renamed, under a name that no copy
    /// takes for one of its own.
    pub(super) fn new(target: &Path, owner: bool) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".narrows-").suffix(".partial").rand_bytes(16).permissions(Permissions::from_mode(0o700));
        let cannot = cannot_store(target);
        let folder = builder.tempdir_in(target).blame_for(Error::Local, &cannot)?;
        // If even root cannot change owners, tar would fail at every file.
        let wants_owner = owner && rustix::process::geteuid().is_root();
        let keeps_owner = wants_owner && {
            let file = tempfile::tempfile_in(folder.path()).blame_for(Error::Local, &cannot)?;
            rustix::fs::fchown(&file, Some(Uid::from_raw(1)), Some(Gid::from_raw(1))).is_ok()
        };
        let asked = (!owner || wants_owner && !keeps_owner).then_some(false);
        let mut losses = Losses::default();
        if wants_owner && !keeps_owner {
            losses.count("owner");
        }
        Ok(Self { folder, keeps_owner, ownership: Ownership::new(asked), losses })
    }

    /// Path of the folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it takes different spellings for one name.
    pub(super) fn folds(&self) -> bool {
        let opened = rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        opened.is_ok_and(|folder| spelling::folds(&folder, true))
    }

    /// Whether tar can set owners in it.
    pub(super) fn keeps_owner(&self) -> bool {
        self.keeps_owner
    }

    /// Whether an entry of that name was unpacked.
    pub(super) fn holds(&self, name: &[u8]) -> bool {
        self.path().join(OsStr::from_bytes(name)).symlink_metadata().is_ok()
    }

    /// Whether a folder of that name was unpacked.
    pub(super) fn holds_folder(&self, name: &[u8]) -> bool {
        self.path().join(OsStr::from_bytes(name)).symlink_metadata().is_ok_and(|there| there.is_dir())
    }

    /// Whether nothing was unpacked.
    pub(super) fn is_empty(&self) -> bool {
        std::fs::read_dir(self.path()).is_ok_and(|mut names| names.next().is_none())
    }

    fn clear(&self) {
        if std::fs::remove_dir_all(self.path()).is_err() {
            open_up(self.path());
            let _ = std::fs::remove_dir_all(self.path());
        }
    }

    /// Moves what arrived of `sources` to its names in `tree`; a single file gets the name
    /// `rename`. Returns the attributes that could not be preserved.
    pub(super) fn settle(
        mut self,
        sources: &[&PathBuf],
        tree: Tree,
        rename: Option<Vec<u8>>,
        permitted: &Permitted,
        order: &Order<'_>,
        copied: &mut Copied,
    ) -> Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let staged = rustix::fs::open(self.path(), flags, Mode::empty());
        let staged = Arc::new(staged.map_err(io::Error::from).blame(Error::Local)?);
        let sync = |folder: &OwnedFd| {
            let synced = if order.fsync { rustix::fs::syncfs(folder) } else { Ok(()) };
            synced.map_err(io::Error::from).blame_for(Error::Local, "cannot flush it to the disk")
        };
        sync(&staged)?;
        let roots = sources.iter().map(|source| match scan::top(source) {
            Some(name) => Root::open(&self.path().join(OsStr::from_bytes(&name)), true),
            None => Root::open(&self.path().join(""), true),
        });
        let roots = roots.collect::<io::Result<Vec<_>>>().blame(Error::Local)?;
        let mut mover = Mover {
            from: Tree::open(self.path()).blame(Error::Local)?,
            to: tree,
            rename,
            devices: order.on_skipped.is_none(),
            ownership: self.ownership,
            keeps_set_id: self.keeps_owner && order.set_id,
            losses: std::mem::take(&mut self.losses),
            folders: Vec::new(),
        };
        walk(&roots, &Filter::new(&[])?, |found| {
            match found {
                Found::Stream(_) => {}
                Found::Failed(text) => order.failed(&text, copied),
                Found::Socket(path) => order.skips_socket(&path, copied),
                Found::Entry { entry, .. } if permitted.allows(&entry) && order.skips(&entry) => {}
                Found::Entry { entry, .. } => {
                    let (path, is_file) = (shown(&entry.path), matches!(entry.kind, EntryKind::File { .. }));
                    let moved = if permitted.allows(&entry) {
                        mover.entry(entry)
                    } else {
                        Err(io::Error::other("it was not requested"))
                    };
                    match moved {
                        Ok(()) if is_file => {
                            copied.files += 1;
                            (order.on_file)(&path);
                        }
                        Ok(()) => {}
                        Err(e) => order
                            .failed(&format!("cannot store {path}: {}", without_os_numbers(&e.to_string())), copied),
                    }
                }
            }
            true
        });
        // Removing it changes the time of the folder that contains it.
        self.clear();
        mover.complete_folders(order, copied);
        sync(mover.to.root())?;
        Ok(mover.losses.words())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Makes folders writable, as otherwise their contents cannot be removed.
fn open_up(folder: &Path) {
    let _ = std::fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            open_up(&entry.path());
        }
    }
}

struct Mover {
    from: Tree,
    to: Tree,
    /// The name that the only file gets instead of its own.
    rename: Option<Vec<u8>>,
    devices: bool,
    ownership: Ownership,
    /// Whether set-id bits of files are kept; their owners are preserved then.
    keeps_set_id: bool,
    losses: Losses,
    /// Folders whose times and modes are set after everything was moved into them.
    folders: Vec<Entry>,
}

impl Mover {
    fn entry(&mut self, entry: Entry) -> io::Result<()> {
        match entry.kind {
            EntryKind::Folder => self.folder(entry),
            EntryKind::File { .. } if !self.keeps_set_id && entry.mode & SETID != 0 => {
                // Without its owner, a set-id program would run as another user.
                let file = self.from.open_below(&entry.path, OFlags::PATH)?;
                chmod(&file, Mode::from_raw_mode(entry.mode & !SETID))?;
                self.losses.count("set-id bits");
                self.file(&entry.path)
            }
            _ => self.file(&entry.path),
        }
    }

    fn file(&mut self, path: &[u8]) -> io::Result<()> {
        let (from, name) = self.from.parent(path)?;
        let (to, new_name) = self.to.parent(self.rename.as_deref().unwrap_or(path))?;
        let there = rustix::fs::statat(&to, &new_name, AtFlags::SYMLINK_NOFOLLOW);
        let there = there.map(|s| FileType::from_raw_mode(s.st_mode));
        if matches!(there, Ok(FileType::CharacterDevice | FileType::BlockDevice)) && !self.devices {
            return Err(io::Error::other("a device of that name is in the way; --devices replaces it"));
        }
        match rustix::fs::renameat(&from, &name, &to, &new_name) {
            Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
                Err(io::Error::other("a folder of that name is in the way"))
            }
            Err(Errno::XDEV) => Err(io::Error::other("its folder is on another file system than the target")),
            result => Ok(result?),
        }
    }

    fn folder(&mut self, entry: Entry) -> io::Result<()> {
        // Entries can be moved out only if the folder is writable.
        let here = if entry.path.is_empty() {
            self.from.root().try_clone()?
        } else {
            self.from.open_below(&entry.path, OFlags::PATH | OFlags::DIRECTORY)?
        };
        chmod(&here, Mode::RWXU)?;
        if !entry.path.is_empty() {
            let (parent, name) = self.to.parent(&entry.path)?;
            match rustix::fs::mkdirat(&parent, &name, Mode::RWXU) {
                Err(Errno::EXIST) => {
                    let stat = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                    match FileType::from_raw_mode(stat.st_mode) {
                        FileType::Directory if stat.st_mode & 0o300 != 0o300 => {
                            let there = self.to.open_below(&entry.path, OFlags::PATH | OFlags::DIRECTORY)?;
                            // If this is not permitted, moving entries into it fails and is
                            // reported.
                            let _ = chmod(&there, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700));
                        }
                        FileType::Directory => {}
                        FileType::Symlink => {
                            return Err(io::Error::other(
                                "a symbolic link is in the way; remove it, or copy to where it leads",
                            ));
                        }
                        _ => return Err(io::Error::other("a file of that name is in the way")),
                    }
                }
                result => result?,
            }
        }
        self.folders.push(entry);
        Ok(())
    }

    /// Innermost first, since the mode of a folder may deny access to what is in it.
    fn complete_folders(&mut self, order: &Order<'_>, copied: &mut Copied) {
        while let Some(entry) = self.folders.pop() {
            let opened = if entry.path.is_empty() {
                self.to.root().try_clone()
            } else {
                self.to.open_below(&entry.path, OFlags::RDONLY | OFlags::DIRECTORY)
            };
            match opened {
                Ok(folder) => meta::apply(folder.as_fd(), &entry, self.ownership, &mut self.losses),
                Err(e) => {
                    let why = without_os_numbers(&e.to_string());
                    order.failed(&format!("cannot complete {}: {why}", shown(&entry.path)), copied);
                }
            }
        }
    }
}

/// Changes a mode by descriptor, which also works for files that may not be read.
fn chmod(file: &OwnedFd, mode: Mode) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?)
}
