//! Temporary files in the folders of their targets, or in their home: nameless, or with names that
//! the next copy finds again.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::announced::is_there;
use super::home::{self, Home};
use crate::partial_name::{
    HASH_LEN, PREFIX, SUFFIX, hash, is_marked, is_partial, looks_partial, mark, open_file, unmark,
};

/// Maximum number of concurrent copies to the same name that are provided for.
pub(super) const TRIES: u32 = 8;

/// Bytes of two files that are compared at a time: a few calls for a MiB.
const COMPARED: usize = 256 << 10;

/// Mode of a temporary file, which is private until it gets its own mode.
pub(crate) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A temporary file; removed unless it is renamed or kept.
pub(crate) struct Partial {
    /// The folder that it is in.
    folder: Arc<OwnedFd>,
    /// The folder of its target.
    to: Arc<OwnedFd>,
    home: Home,
    /// It is in its home, under the name of its target.
    is_home: bool,
    /// `None` if it has no name yet and vanishes with its descriptor.
    name: Option<OsString>,
    pub(crate) file: OwnedFd,
    kept: bool,
}

impl Partial {
    /// Creates a temporary file for `target` beside it and locks it.
    pub(crate) fn create(folder: Arc<OwnedFd>, target: &OsStr, mode: Mode) -> io::Result<Self> {
        Self::create_in(&Home::Beside, folder, target, mode)
    }

    /// The same in a home; `to` is the folder of the target.
    pub(super) fn create_in(home: &Home, to: Arc<OwnedFd>, target: &OsStr, mode: Mode) -> io::Result<Self> {
        for _ in 0..TRIES {
            let (folder, is_home) = match home.make(&to)? {
                Some(folder) => (folder, true),
                None => (Arc::clone(&to), false),
            };
            match Self::create_at(home, (folder, is_home), Arc::clone(&to), target, mode) {
                // Another copy has removed the home, which was empty.
                Err(e) if is_home && e.kind() == io::ErrorKind::NotFound => {}
                created => return created,
            }
        }
        Err(io::Error::other("other copies are writing this file"))
    }

    fn create_at(
        home: &Home,
        (folder, is_home): (Arc<OwnedFd>, bool),
        to: Arc<OwnedFd>,
        target: &OsStr,
        mode: Mode,
    ) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // All predictable names may be taken, by other copies or by somebody who wants copies to
        // fail.
        for attempt in (0..TRIES).chain(random_attempt()) {
            let name = name_in(is_home, target, attempt);
            let create = || rustix::fs::openat(&folder, &name, flags, mode);
            let created = match create() {
                Err(Errno::EXIST) if remove_stale(&*folder, &name) => create(),
                result => result,
            };
            match created {
                Ok(file) => {
                    mark(&file);
                    // The lock tells other copies that it is in use. Without locks, two copies to
                    // one name may collide.
                    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
                    // Another copy may have removed it as stale before it was locked.
                    if is_named(&folder, &name, &file) {
                        if is_home && !home::takes_group(&file, &to)? {
                            rustix::fs::unlinkat(&folder, &name, AtFlags::empty())?;
                            home.tidy(&to);
                            return Self::create_at(home, (Arc::clone(&to), false), to, target, mode);
                        }
                        return Ok(Self {
                            folder,
                            to,
                            home: home.clone(),
                            is_home,
                            name: Some(name),
                            file,
                            kept: false,
                        });
                    }
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::other("other copies are writing this file"))
    }

    /// Creates a file that has no name until it is complete, for files that the next copy does not
    /// resume. `None` if that is not possible or fails; [`Partial::create`] then reports the
    /// reason.
    pub(super) fn nameless(home: &Home, folder: &Arc<OwnedFd>) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, ".", flags, PRIVATE).ok()?;
        let (home, is_home, name) = (home.clone(), false, None);
        Some(Self { folder: Arc::clone(folder), to: Arc::clone(folder), home, is_home, name, file, kept: false })
    }

    /// Whether nameless files in this folder can be given a name later.
    pub(super) fn can_be_named(&self) -> bool {
        let own = rustix::fs::fstat(&self.file);
        let there = rustix::fs::stat(self.by_descriptor());
        matches!((own, there), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    fn by_descriptor(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Gives the file its final name. `replaces`: also if another file has it.
    pub(crate) fn rename(&mut self, target: &OsStr, replaces: bool) -> io::Result<()> {
        match self.name.is_none().then(|| self.link(target)) {
            Some(Err(Errno::EXIST)) if !replaces => {
                return if self.is_same_as(target) { Ok(()) } else { Err(is_there()) };
            }
            Some(Err(Errno::EXIST)) => self.link_beside(target)?,
            Some(linked) => {
                linked?;
                self.kept = true;
            }
            None => {}
        }
        if !self.kept {
            if !is_named(&self.folder, self.name(), &self.file) {
                return Err(io::Error::other("another copy removed its temporary file"));
            }
            match rename_to(&self.folder, self.name(), &self.to, target, replaces) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && self.is_same_as(target) => {
                    rustix::fs::unlinkat(&self.folder, self.name(), AtFlags::empty())?;
                    self.home.tidy(&self.to);
                    return Ok(());
                }
                renamed => renamed?,
            }
            self.kept = true;
            unmark(&self.file);
        }
        self.remove_earlier(target);
        Ok(())
    }

    /// Whether the file that has this name meanwhile has the same content, as one that another program unpacked
    /// from the same pack has.
    fn is_same_as(&self, target: &OsStr) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(there) = rustix::fs::openat(&self.to, target, flags, Mode::empty()) else { return false };
        let len = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).ok().filter(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG).map(|s| s.st_size)
        };
        if len(&there).is_none() || len(&there) != len(&self.file) {
            return false;
        }
        let (mut ours, mut theirs) = (vec![0; COMPARED], vec![0; COMPARED]);
        let mut at = 0;
        loop {
            match (pread_all(&self.file, &mut ours, at), pread_all(&there, &mut theirs, at)) {
                (Ok(a), Ok(b)) if a == b && ours[..a] == theirs[..b] => match a {
                    0 => return true,
                    n => at += n as u64,
                },
                _ => return false,
            }
        }
    }

    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::linkat(CWD, self.by_descriptor(), &self.to, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Gives a nameless file a temporary name, since only a file with a name can replace another. A
    /// copy that is killed in between leaves the complete file to the next one.
    fn link_beside(&mut self, target: &OsStr) -> io::Result<()> {
        let _ = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        mark(&self.file);
        for attempt in (0..TRIES).chain(random_attempt()) {
            let name = name(target, attempt);
            let linked = match self.link(&name) {
                Err(Errno::EXIST) if remove_stale(&*self.folder, &name) => self.link(&name),
                linked => linked,
            };
            match linked {
                Ok(()) => {
                    self.name = Some(name);
                    return Ok(());
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::other("other copies are writing this file"))
    }

    /// Removes the remains of an earlier copy, or of a concurrent one that has ended since.
    pub(super) fn remove_earlier(&self, target: &OsStr) {
        // Its own name is that of the remains, which there are not.
        if !(matches!(self.home, Home::Beside) && self.name.as_deref().is_some_and(is_first)) {
            self.home.forget(&self.to, target, true);
        }
    }

    /// The current name; empty if it has none.
    pub(super) fn name(&self) -> &OsStr {
        self.name.as_deref().unwrap_or_default()
    }

    /// The folder of the target.
    pub(super) fn to(&self) -> &OwnedFd {
        &self.to
    }

    /// Keeps the file for the next run, unless the remains of an earlier copy, one of `bases`, are
    /// longer.
    pub(super) fn keep<'a>(&mut self, target: &OsStr, bases: impl Iterator<Item = &'a OwnedFd>) {
        let Some(own) = &self.name else { return };
        let bases: Vec<_> = bases.collect();
        if !self.is_home
            && let Home::Apart(folder) = &self.home
            && self.copy_to(folder, target, &bases).is_ok()
        {
            return;
        }
        let first = name_in(self.is_home, target, 0);
        let len = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |s| s.st_size);
        let is_longer = bases
            .iter()
            .any(|base| is_remain(&first, base) && is_named(&self.folder, &first, base) && len(base) < len(&self.file));
        self.kept = *own == first || rename(&self.folder, own, &first, is_longer).is_ok();
    }

    /// Keeps it in a folder of another file system.
    fn copy_to(&self, folder: &Arc<OwnedFd>, target: &OsStr, bases: &[&OwnedFd]) -> io::Result<()> {
        let there = (Arc::clone(folder), true);
        let mut copy = Self::create_at(&self.home, there, Arc::clone(folder), target, PRIVATE)?;
        let (mut buffer, mut at) = (vec![0; COMPARED], 0);
        loop {
            let n = pread_all(&self.file, &mut buffer, at)?;
            if n == 0 {
                break;
            }
            let mut rest = &buffer[..n];
            while !rest.is_empty() {
                let n = rustix::io::pwrite(&copy.file, rest, at)?;
                at += n as u64;
                rest = &rest[n..];
            }
        }
        copy.keep(target, bases.iter().copied());
        if copy.kept { Ok(()) } else { Err(io::Error::other("another copy has kept it")) }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let Some(name) = self.name.as_ref().filter(|_| !self.kept) else { return };
        if is_named(&self.folder, name, &self.file) {
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            self.home.tidy(&self.to);
        }
    }
}

/// Renames within a folder.
pub(super) fn rename(folder: &OwnedFd, from: &OsStr, to: &OsStr, replaces: bool) -> io::Result<()> {
    rename_to(folder, from, folder, to, replaces)
}

fn rename_to(folder: &OwnedFd, from: &OsStr, new: &OwnedFd, to: &OsStr, replaces: bool) -> io::Result<()> {
    let there = || rustix::fs::statat(new, to, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if !replaces {
        match rustix::fs::renameat_with(folder, from, new, to, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => return Err(is_there()),
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if there() => return Err(is_there()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            result => return Ok(result?),
        }
    }
    match rustix::fs::renameat(folder, from, new, to) {
        Err(Errno::ISDIR) => Err(io::Error::other("a folder of that name is in the way")),
        result => Ok(result?),
    }
}

/// Gives a new link to a file its name; false if that was a name of the same file, and renaming did
/// nothing. Where the numbers of files say nothing, as in file systems of FUSE, nothing else shows it.
pub(super) fn rename_link(folder: &OwnedFd, partial: &OsStr, to: &OsStr, replaces: bool) -> io::Result<bool> {
    rename(folder, partial, to, replaces)?;
    Ok(rustix::fs::unlinkat(folder, partial, AtFlags::empty()).is_err())
}

/// Reads until the buffer is full or the file ends.
fn pread_all(file: &OwnedFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match rustix::io::pread(file, &mut buffer[n..], at + n as u64)? {
            0 => break,
            more => n += more,
        }
    }
    Ok(n)
}

/// An unpredictable attempt number.
fn random_attempt() -> Option<u32> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(u32::from_ne_bytes(random).max(TRIES + 1))
}

/// Creates a link, fifo or device under a temporary name, which it returns. It can have no mark, so what an
/// earlier copy left under that name is removed only if it is the same: `is_same` gets its `stat`.
pub(super) fn make(
    folder: &OwnedFd,
    target: &OsStr,
    is_same: impl Fn(&OsStr, &Stat) -> bool,
    make: impl Fn(&OsStr) -> rustix::io::Result<()>,
) -> io::Result<OsString> {
    let first = name(target, TRIES);
    if rustix::fs::statat(folder, &first, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|there| is_same(&first, &there)) {
        let _ = rustix::fs::unlinkat(folder, &first, AtFlags::empty());
    }
    match (make(&first), random_attempt()) {
        (Err(Errno::EXIST), Some(attempt)) => {
            let random = name(target, attempt);
            make(&random)?;
            Ok(random)
        }
        (made, _) => Ok(made.map(|()| first)?),
    }
}

/// The name of a temporary file: in its home, the first one has that of its target.
fn name_in(is_home: bool, target: &OsStr, attempt: u32) -> OsString {
    if is_home && attempt == 0 { target.to_owned() } else { name(target, attempt) }
}

/// The name of a temporary file beside its target.
pub(super) fn name(target: &OsStr, attempt: u32) -> OsString {
    let mut name = PREFIX.to_vec();
    name.extend_from_slice(hash(target.as_bytes()).as_bytes());
    if attempt > 0 {
        name.extend_from_slice(format!("-{attempt}").as_bytes());
    }
    name.extend_from_slice(SUFFIX);
    OsString::from_vec(name)
}

/// Whether this is the name of the first attempt, where the next copy to the same target looks for
/// remains. Other names are of concurrent copies.
pub(super) fn is_first(name: &OsStr) -> bool {
    name.len() == PREFIX.len() + HASH_LEN + SUFFIX.len()
}

/// Removes a temporary file of narrows that no running copy holds; returns whether it was removed. What has
/// no mark stays.
pub(super) fn remove_stale(folder: impl AsFd, name: &OsStr) -> bool {
    hold_stale(&folder, name).is_some_and(|_held| rustix::fs::unlinkat(&folder, name, AtFlags::empty()).is_ok())
}

/// Opens and locks the remains of an earlier copy. They keep their name until there is more, so that another
/// interruption loses nothing.
pub(super) fn hold_stale(folder: impl AsFd, name: &OsStr) -> Option<OwnedFd> {
    open_stale(folder, name).filter(|held| is_remain(name, held))
}

/// Whether a file is what a copy left. In its home it has the name of its target, and whoever named that
/// folder said that all in it is; beside its target it has the mark.
fn is_remain(name: &OsStr, file: &OwnedFd) -> bool {
    let name = name.as_bytes();
    !looks_partial(name) || is_partial(name) && is_marked(file)
}

/// Whether another program has locked the file.
pub(super) fn is_held(folder: impl AsFd, name: &OsStr) -> bool {
    open_file(&folder, name, OFlags::RDONLY)
        .is_some_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Whether the open file still has this name.
fn is_named(folder: impl AsFd, name: &OsStr, file: &OwnedFd) -> bool {
    let there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let own = rustix::fs::fstat(file);
    matches!((there, own), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

fn open_stale(folder: impl AsFd, name: &OsStr) -> Option<OwnedFd> {
    // Over NFS, only a file that is open for writing can be locked exclusively.
    let file = open_file(&folder, name, OFlags::RDWR)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_named(&folder, name, &file).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partial_name::is_own;
    use rustix::fs::FileType;
    use std::fs;
    use std::path::Path;

    fn nameless(folder: &Path, content: &str) -> Option<Partial> {
        let folder = Arc::new(OwnedFd::from(fs::File::open(folder).unwrap()));
        let partial = Partial::nameless(&Home::Beside, &folder)?;
        rustix::io::write(&partial.file, content.as_bytes()).unwrap();
        partial.can_be_named().then_some(partial)
    }

    /// Two programs that unpack the same pack into one folder both succeed.
    #[test]
    fn a_name_that_a_file_of_the_same_content_took_meanwhile_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let target = OsStr::new("a");
        let long = "x".repeat(COMPARED + 5);
        let named = |content: &str| {
            let partial = Partial::create(Arc::new(fs::File::open(folder.path()).unwrap().into()), target, PRIVATE);
            let partial = partial.unwrap();
            rustix::io::write(&partial.file, content.as_bytes()).unwrap();
            Some(partial)
        };
        fs::write(folder.path().join("a"), &long).unwrap();
        for make in [&|content: &str| nameless(folder.path(), content), &named as &dyn Fn(&str) -> Option<Partial>] {
            let Some(mut same) = make(&long) else { continue };
            same.rename(target, false).unwrap();
            drop(same);
            for other in [long[1..].to_owned() + "y", long.clone() + "x", long[1..].to_owned(), String::new()] {
                let error = make(&other).unwrap().rename(target, false).unwrap_err();
                assert!(error.to_string().contains("differs"), "{error}");
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), long);
    }

    #[test]
    fn a_file_without_a_name_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let Some(dropped) = nameless(folder.path(), "half") else {
            return narrows_test::skip("this file system has no files without names");
        };
        assert!(names().is_empty());
        drop(dropped);
        // Remains of killed copies are removed.
        let stale = folder.path().join(name(OsStr::new("a"), 0));
        let leave = || mark(fs::write(&stale, "old").and_then(|()| fs::File::open(&stale)).unwrap());
        if !leave() {
            return narrows_test::skip("this file system has no attributes");
        }
        nameless(folder.path(), "one").unwrap().rename(OsStr::new("a"), true).unwrap();
        assert_eq!((names(), fs::read_to_string(folder.path().join("a")).unwrap()), (vec!["a".into()], "one".into()));
        // A file takes another's place, also where somebody else took the name in between.
        leave();
        let (mut two, mut three) = (nameless(folder.path(), "two").unwrap(), nameless(folder.path(), "three").unwrap());
        two.rename(OsStr::new("a"), true).unwrap();
        three.rename(OsStr::new("a"), true).unwrap();
        drop((two, three));
        assert_eq!((names(), fs::read_to_string(folder.path().join("a")).unwrap()), (vec!["a".into()], "three".into()));
        // Unless nothing is to be replaced, whoever took the name, and when.
        let opened = rustix::fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let opened = Arc::new(opened);
        for is_named in [false, true] {
            let mut other = match is_named {
                true => Partial::create(Arc::clone(&opened), OsStr::new("a"), PRIVATE).unwrap(),
                false => nameless(folder.path(), "four").unwrap(),
            };
            assert!(other.rename(OsStr::new("a"), false).unwrap_err().to_string().contains("there already"));
            drop(other);
            assert_eq!((names(), fs::read(folder.path().join("a")).unwrap()), (vec!["a".into()], b"three".into()));
        }
        fs::create_dir(folder.path().join("b")).unwrap();
        let error = nameless(folder.path(), "file").unwrap().rename(OsStr::new("b"), true).unwrap_err();
        assert_eq!(error.to_string(), "a folder of that name is in the way");
        assert_eq!(names(), ["a", "b"]);
    }

    /// Somebody else's files under all names that can be foretold, which a copy may not remove.
    #[test]
    fn names_that_are_taken_in_advance_stop_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::new(rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap());
        let target = OsStr::new("target");
        let _held: Vec<_> = (0..=TRIES)
            .map(|attempt| {
                let path = dir.path().join(name(target, attempt));
                // A folder is as little to be removed as a file of another user's in a folder with the sticky bit.
                std::fs::create_dir(path).unwrap();
            })
            .collect();
        let mut partial = Partial::create(Arc::clone(&folder), target, PRIVATE).unwrap();
        assert!(is_partial(partial.name().as_bytes()) && !is_first(partial.name()));
        partial.rename(target, true).unwrap();
        assert!(dir.path().join("target").is_file());
        let link = make(&folder, target, |_, _| true, |name| rustix::fs::symlinkat("x", &folder, name)).unwrap();
        assert!(is_partial(link.as_bytes()) && dir.path().join(&link).is_symlink());
        assert!(make(&folder, target, |_, _| true, |_| Err(Errno::PERM)).is_err());
    }

    /// A kill may come between the two calls that make and mark a temporary file.
    #[test]
    fn an_empty_file_that_has_no_mark_yet_is_a_remain() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::new(OwnedFd::from(fs::File::open(dir.path()).unwrap()));
        let target = OsStr::new("target");
        let unmarked = name(target, 0);
        fs::write(dir.path().join(&unmarked), "").unwrap();
        let mut next = Partial::create(Arc::clone(&folder), target, PRIVATE).unwrap();
        assert!(is_first(next.name()));
        next.rename(target, true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_of_the_user_with_such_a_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::new(OwnedFd::from(fs::File::open(dir.path()).unwrap()));
        let target = OsStr::new("target");
        let theirs = name(target, 0);
        fs::write(dir.path().join(&theirs), "precious").unwrap();
        if is_own(&*folder, &theirs) {
            return narrows_test::skip("this file system has no attributes");
        }
        assert!(!remove_stale(&*folder, &theirs) && hold_stale(&folder, &theirs).is_none());
        let mut kept = Partial::create(Arc::clone(&folder), target, PRIVATE).unwrap();
        assert!(is_own(&*folder, kept.name()) && !is_first(kept.name()));
        kept.keep(target, [].iter());
        drop(kept);
        // It has no place under that name, and so nothing of it is left.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut whole = Partial::create(Arc::clone(&folder), target, PRIVATE).unwrap();
        rustix::io::write(&whole.file, b"content").unwrap();
        whole.rename(target, true).unwrap();
        assert!(!is_marked(&whole.file), "a whole file has no mark");
        drop(whole);
        let link = name(target, TRIES);
        fs::write(dir.path().join(&link), "precious").unwrap();
        let is_same = |_: &OsStr, stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let made = make(&folder, target, is_same, |name| rustix::fs::symlinkat("x", &folder, name)).unwrap();
        assert_ne!(made, link);
        for theirs in [&theirs, &link] {
            assert_eq!(fs::read(dir.path().join(theirs)).unwrap(), b"precious");
        }
    }
}
