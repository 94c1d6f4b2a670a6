//! Temporary files beside their targets.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

const PREFIX: &[u8] = b".narrows-";
const SUFFIX: &[u8] = b".partial";
/// Letters of the target's hash.
const HASH_LEN: usize = 24;
/// Other copies to the same name that run at this moment.
pub(super) const TRIES: u32 = 8;

/// The mode of a temporary file: nobody else may look in before it has its own.
pub(super) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A temporary file; removed unless it is renamed or kept.
pub(super) struct Partial {
    folder: Arc<OwnedFd>,
    name: OsString,
    pub(super) file: OwnedFd,
    kept: bool,
}

impl Partial {
    pub(super) fn create(folder: Arc<OwnedFd>, target: &OsStr, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for attempt in 0..TRIES {
            let name = name(target, attempt);
            let create = || rustix::fs::openat(&folder, &name, flags, mode);
            let created = match create() {
                Err(Errno::EXIST) if remove_stale(&*folder, &name) => create(),
                result => result,
            };
            match created {
                Ok(file) => {
                    // Tells other copies that it is in use. Where files cannot be locked, two copies to one name may meet.
                    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
                    // Another copy may have taken it for left behind before it was locked.
                    if is_named(&folder, &name, &file) {
                        return Ok(Self { folder, name, file, kept: false });
                    }
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::other("other copies are writing this file"))
    }

    /// Gives the file its own name.
    pub(super) fn rename(&mut self, target: &OsStr) -> io::Result<()> {
        if !is_named(&self.folder, &self.name, &self.file) {
            return Err(io::Error::other("another copy took its temporary file"));
        }
        rename(&self.folder, &self.name, target)?;
        self.kept = true;
        self.remove_earlier(target);
        Ok(())
    }

    /// Removes what an earlier copy left, or one beside this one that has ended since.
    pub(super) fn remove_earlier(&self, target: &OsStr) {
        if !is_first(&self.name) {
            remove_stale(&*self.folder, &name(target, 0));
        }
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Leaves it to the next run, unless that finds more in what an earlier copy left: one of `bases`, which this copy holds.
    pub(super) fn keep<'a>(&mut self, target: &OsStr, mut bases: impl Iterator<Item = &'a OwnedFd>) {
        let first = name(target, 0);
        let len = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |s| s.st_size);
        self.kept = is_first(&self.name)
            || bases.any(|base| is_named(&self.folder, &first, base) && len(base) < len(&self.file))
                && rename(&self.folder, &self.name, &first).is_ok();
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept && is_named(&self.folder, &self.name, &self.file) {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

pub(crate) fn is_partial(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

pub(super) fn rename(folder: &OwnedFd, from: &OsStr, to: &OsStr) -> io::Result<()> {
    match rustix::fs::renameat(folder, from, folder, to) {
        Err(Errno::ISDIR) => Err(io::Error::other("a folder of that name is in the way")),
        result => Ok(result?),
    }
}

/// The same for the same name in every run, so that the next run finds what a killed one left; short, whatever the name is.
pub(super) fn name(target: &OsStr, attempt: u32) -> OsString {
    let hash = blake3::hash(target.as_bytes()).to_hex();
    let mut name = PREFIX.to_vec();
    name.extend_from_slice(&hash.as_bytes()[..HASH_LEN]);
    if attempt > 0 {
        name.extend_from_slice(format!("-{attempt}").as_bytes());
    }
    name.extend_from_slice(SUFFIX);
    OsString::from_vec(name)
}

/// Whether the next copy to the same name looks for what is left in this one; the others are of copies beside another.
pub(super) fn is_first(name: &OsStr) -> bool {
    name.len() == PREFIX.len() + HASH_LEN + SUFFIX.len()
}

/// Removes a temporary file that no running copy holds; whether it is gone.
pub(super) fn remove_stale(folder: impl AsFd, name: &OsStr) -> bool {
    open_stale(&folder, name).is_some_and(|_held| rustix::fs::unlinkat(&folder, name, AtFlags::empty()).is_ok())
}

/// Holds what an earlier copy of this target left. It keeps its name until there is more, so that a copy that is cut off
/// again loses nothing.
pub(super) fn hold_stale(folder: &OwnedFd, target: &OsStr) -> Option<OwnedFd> {
    open_stale(folder, &name(target, 0))
}

/// Whether the open file still has this name.
fn is_named(folder: impl AsFd, name: &OsStr, file: &OwnedFd) -> bool {
    let there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let own = rustix::fs::fstat(file);
    matches!((there, own), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

fn open_stale(folder: impl AsFd, name: &OsStr) -> Option<OwnedFd> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat(&folder, name, flags | access, Mode::empty());
    // Over NFS only who may write may lock.
    let file = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_named(&folder, name, &file).then_some(file)
}
