//! A folder that paths cannot leave: every access is relative to the descriptor of its root and
//! follows no symbolic link, so that a link planted before or during the copy leads nowhere.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use narrows_host::means::share_of_descriptors;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Number of folders that are kept open; files come folder by folder, so few are needed.
const OPEN_MAX: usize = 16;
/// The same as a divisor of the descriptors of this process, for a low limit: a copy has half a dozen trees.
const OPEN_SHARE: usize = 32;

/// A folder as the root of all accesses.
pub struct Tree {
    root: Arc<OwnedFd>,
    /// The folders used last, the most recent one at the end.
    open: Vec<(Vec<u8>, Arc<OwnedFd>)>,
    no_openat2: bool,
    /// A name at the top and the name that it stands for, if the user named a link.
    alias: Option<(Vec<u8>, Vec<u8>)>,
    /// Where listed paths are. What is below one of them is below its place.
    aliases: Arc<BTreeMap<Vec<u8>, Alias>>,
    /// Symbolic links below the root are followed, wherever they lead.
    follows: bool,
}

/// Where a listed path is in the tree.
#[derive(Debug, Clone)]
pub(crate) struct Alias {
    /// The path below the root; empty: the root itself.
    pub(crate) real: Vec<u8>,
    /// Links on the way there are followed, because its user wrote a path through them.
    pub(crate) through: bool,
    /// It is a link to a folder, and stands for that.
    pub(crate) last: bool,
}

impl Tree {
    /// Opens a root. It may be reached through symbolic links, since its path is given by the user.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match rustix::fs::open(root, flags | OFlags::RDONLY, Mode::empty()) {
            // Files can perhaps still be created in it.
            Err(Errno::ACCESS) => rustix::fs::open(root, flags | OFlags::PATH, Mode::empty()),
            opened => opened,
        }?;
        Ok(Self {
            root: Arc::new(root),
            open: Vec::new(),
            no_openat2: false,
            alias: None,
            aliases: Arc::default(),
            follows: false,
        })
    }

    /// An empty folder, which is already removed.
    pub fn empty() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let tree = Self::open(folder.path())?;
        folder.close()?;
        Ok(tree)
    }

    /// The same folder for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        let root = Arc::clone(&self.root);
        let (alias, aliases) = (self.alias.clone(), Arc::clone(&self.aliases));
        Ok(Self { root, open: Vec::new(), no_openat2: self.no_openat2, alias, aliases, follows: self.follows })
    }

    /// A folder below this one as a separate root.
    pub fn at(&mut self, path: &[u8]) -> io::Result<Self> {
        if path.is_empty() {
            return self.try_clone();
        }
        let root = self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let (no_openat2, follows) = (self.no_openat2, self.follows);
        Ok(Self { root: Arc::new(root), open: Vec::new(), no_openat2, alias: None, aliases: Arc::default(), follows })
    }

    /// Opens the folder `path` for reading. If this user owns it and may not read or write it, its
    /// mode is extended; a copy that covers it sets its mode at the end.
    pub fn open_own(&mut self, path: &[u8], stat: &Stat) -> io::Result<OwnedFd> {
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        if stat.st_mode & 0o700 != 0o700 && is_own {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let folder = if path.is_empty() { self.root.try_clone()? } else { self.open_below(path, flags)? };
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700);
            // By descriptor, since the path may lead elsewhere meanwhile.
            match rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode) {
                Err(Errno::NOENT) => rustix::fs::chmodat(&folder, ".", mode, AtFlags::empty())?,
                result => result?,
            }
            if path.is_empty() {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                self.root = Arc::new(rustix::fs::openat(&folder, ".", flags, Mode::empty())?);
            }
        }
        if path.is_empty() {
            return self.root.try_clone();
        }
        self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The same folder, below which symbolic links are followed. Only for a source whose user may read
    /// whatever they lead to.
    #[must_use]
    pub fn following(self) -> Self {
        Self { follows: true, ..self }
    }

    /// Whether symbolic links below the root are followed.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Makes `name` at the top stand for `real`.
    pub fn alias(&mut self, name: &[u8], real: &[u8]) {
        self.alias = Some((name.to_vec(), real.to_vec()));
    }

    /// Sets where listed paths are.
    pub(crate) fn set_aliases(&mut self, aliases: BTreeMap<Vec<u8>, Alias>) {
        self.aliases = Arc::new(aliases);
        self.open.clear();
    }

    /// The nearest path at or above this one that is elsewhere, and what of the path is below it.
    fn alias_of<'p>(&self, path: &'p [u8]) -> Option<(Alias, &'p [u8])> {
        if self.aliases.is_empty() {
            return None;
        }
        let mut top = path;
        loop {
            if let Some(alias) = self.aliases.get(top) {
                let rest = &path[top.len()..];
                return Some((alias.clone(), rest.strip_prefix(b"/").unwrap_or(rest)));
            }
            if top.is_empty() {
                return None;
            }
            top = split(top).0;
        }
    }

    /// Opens what an alias stands for.
    fn open_alias(&mut self, alias: &Alias, flags: OFlags) -> io::Result<OwnedFd> {
        let (folder, name) = split(&alias.real);
        let to_folder = OFlags::PATH | OFlags::DIRECTORY;
        let parent = match folder {
            b"" => Arc::clone(&self.root),
            folder if alias.through || self.follows => {
                Arc::new(rustix::fs::openat(&self.root, folder, to_folder | OFlags::CLOEXEC, Mode::empty())?)
            }
            folder => Arc::new(self.open_from(&Arc::clone(&self.root), folder, to_folder)?),
        };
        let nofollow = if alias.last || self.follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let name = if name.is_empty() { b"." } else { name };
        Ok(rustix::fs::openat(&parent, name, flags | nofollow | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn real<'p>(&'p self, path: &'p [u8]) -> &'p [u8] {
        self.alias.as_ref().filter(|(name, _)| name == path).map_or(path, |(_, real)| real)
    }

    /// The root folder, for others to keep open.
    pub(crate) fn root_shared(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// The root folder.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens the folder `path` for access to what is in it.
    pub fn folder(&mut self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        if path.is_empty() && self.alias_of(path).is_none() {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(at) = self.open.iter().position(|(p, _)| p == path) {
            let found = self.open.remove(at);
            let folder = Arc::clone(&found.1);
            self.open.push(found);
            return Ok(folder);
        }
        let folder = Arc::new(self.open_below(path, OFlags::PATH | OFlags::DIRECTORY)?);
        if self.open.len() >= share_of_descriptors(OPEN_MAX, OPEN_SHARE) {
            self.open.remove(0);
        }
        self.open.push((path.to_vec(), Arc::clone(&folder)));
        Ok(folder)
    }

    /// The parent folder of `path`, and its name there.
    ///
    /// # Errors
    /// `path` is the root, which has no name, or the folder cannot be opened.
    pub fn parent(&mut self, path: &[u8]) -> io::Result<(Arc<OwnedFd>, OsString)> {
        if let Some((alias, b"")) = self.alias_of(path) {
            if alias.last || alias.real.is_empty() {
                return Ok((self.folder(path)?, ".".into()));
            }
            let (folder, name) = split(&alias.real);
            let above = Alias { real: folder.to_vec(), last: alias.through, ..alias };
            let folder = self.open_alias(&above, OFlags::PATH | OFlags::DIRECTORY)?;
            return Ok((Arc::new(folder), OsStr::from_bytes(name).to_owned()));
        }
        let (folder, name) = split(self.real(path));
        if name.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root of the copy cannot be replaced"));
        }
        let (folder, name) = (folder.to_vec(), OsStr::from_bytes(name).to_owned());
        Ok((self.folder(&folder)?, name))
    }

    /// Opens `path` without following any symbolic link, unless the tree follows them.
    pub fn open_below(&mut self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        match self.alias_of(path) {
            Some((alias, b"")) => return self.open_alias(&alias, flags),
            Some((alias, rest)) => {
                let folder = Arc::new(self.open_alias(&alias, OFlags::PATH | OFlags::DIRECTORY)?);
                return self.open_from(&folder, rest, flags);
            }
            None => {}
        }
        let path = self.real(path).to_vec();
        self.open_from(&Arc::clone(&self.root), &path, flags)
    }

    /// Opens `path` below a folder of the tree.
    fn open_from(&mut self, from: &Arc<OwnedFd>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        if self.follows {
            return Ok(rustix::fs::openat(from, path, flags | OFlags::CLOEXEC, Mode::empty())?);
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !self.no_openat2 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(from, path, flags, Mode::empty(), resolve) {
                // Kernels before 5.6, and sandboxes that do not know this call.
                Err(Errno::NOSYS | Errno::PERM) => self.no_openat2 = true,
                result => return Ok(result?),
            }
        }
        // Opening component by component, none of which is `..`, is equally safe but slower.
        let (folder, name) = split(path);
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = Arc::clone(from);
        for part in folder.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            at = Arc::new(rustix::fs::openat(at.as_fd(), part, step, Mode::empty())?);
        }
        Ok(rustix::fs::openat(at.as_fd(), name, flags, Mode::empty())?)
    }
}

/// Opens the folder `path` below `from` for reading, without following symbolic links.
///
/// # Errors
/// [`Errno::XDEV`] if it is on another file system.
pub(crate) fn open_on_same_device(from: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let device = rustix::fs::fstat(from)?.st_dev;
    let same = |fd: OwnedFd| if rustix::fs::fstat(&fd)?.st_dev == device { Ok(fd) } else { Err(Errno::XDEV) };
    match rustix::fs::openat2(from, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {}
        // Subvolumes are other devices although they are not mounted.
        result => return same(result?),
    }
    let mut at = rustix::io::fcntl_dupfd_cloexec(from, 0)?;
    for part in path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        at = same(rustix::fs::openat(&at, part, flags, Mode::empty())?)?;
    }
    Ok(at)
}

/// Splits a path into folder and name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// What was opened, `None` if it does not exist.
pub(super) fn found<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "x").unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("a", root.join("inner")).unwrap();
        for no_openat2 in [false, true] {
            let mut tree = Tree { no_openat2, ..Tree::open(&root).unwrap() };
            assert!(tree.open_below(b"a/b/file", OFlags::RDONLY).is_ok());
            assert!(tree.folder(b"a/b").is_ok());
            for bad in [&b"out"[..], b"out/x", b"inner", b"inner/b"] {
                assert!(tree.folder(bad).is_err(), "{bad:?}");
                assert!(tree.open_below(bad, OFlags::RDONLY).is_err(), "{bad:?}");
            }
        }
    }
}
