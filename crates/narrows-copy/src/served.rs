//! The served folder, outside of which clients can reach nothing: symbolic links are never
//! followed, wherever they lead.

use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::error::{Blame, Error, Result, cannot_partials, cannot_store};
use super::hello::{PartialDir, StoreOptions};
use super::scan::{self, Root};
use super::store::shared_memory;
use super::tree::{Tree, found, split};
use narrows_host::shares::{Share, Shares};

/// A served folder.
pub struct Served {
    tree: Tree,
    read_only: bool,
    /// Clients may store files with set-id bits and capabilities.
    set_id: bool,
    /// Files are stored and sent as frames only.
    as_it_comes: bool,
    /// Memory for the state of all copies into it.
    memory: Shares,
}

impl Served {
    /// Opens the folder.
    pub fn open(dir: &Path, read_only: bool) -> io::Result<Self> {
        Ok(Self { tree: Tree::open(dir)?, read_only, set_id: false, as_it_comes: false, memory: shared_memory() })
    }

    /// Sets whether clients may store files with set-id bits and capabilities.
    pub fn with_set_id(self, set_id: bool) -> Self {
        Self { set_id, ..self }
    }

    /// Sets whether files are stored and sent as frames only.
    pub fn as_it_comes(self, as_it_comes: bool) -> Self {
        Self { as_it_comes, ..self }
    }

    /// Whether files are stored and sent as frames only.
    pub fn is_as_it_comes(&self) -> bool {
        self.as_it_comes
    }

    /// Whether clients may store files with set-id bits and capabilities.
    pub fn keeps_set_id(&self) -> bool {
        self.set_id
    }

    /// The memory share for a copy of the client with this address.
    pub fn memory_of(&self, client: IpAddr) -> Share {
        self.memory.of(client)
    }

    /// Opens a target, as [`super::serve::open_target`].
    pub fn target(
        &self,
        target: &Path,
        single: bool,
        dry_run: bool,
        makes_parents: bool,
    ) -> Result<(Tree, Option<Vec<u8>>)> {
        if self.read_only {
            return Err(Error::Local("this server stores nothing; it was started with --read-only".into()));
        }
        let cannot = cannot_store(target);
        let path = inside(target).map_err(|e| e.context(&cannot))?;
        let mut tree = self.tree.try_clone().blame(Error::Local)?;
        let wants_folder = !single || target.as_os_str().as_bytes().ends_with(b"/");
        if makes_parents && !dry_run {
            let above = split(&path).0;
            self.make_folders(&mut tree, above).map_err(told).blame_for(Error::Local, &cannot)?;
        } else if makes_parents && tree.at(split(&path).0).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            let name = (!wants_folder).then(|| split(&path).1.to_vec());
            return Ok((Tree::empty().blame(Error::Local)?, name));
        }
        match tree.at(&path) {
            Ok(folder) => Ok((folder, None)),
            Err(e) if wants_folder && e.kind() == io::ErrorKind::NotFound => {
                if dry_run {
                    return Ok((Tree::empty().blame(Error::Local)?, None));
                }
                let (parent, name) = tree.parent(&path).blame_for(Error::Local, &cannot)?;
                // The mode of any new folder, to which the system applies the umask.
                let made = rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777));
                made.map_err(io::Error::from).blame_for(Error::Local, &cannot)?;
                Ok((tree.at(&path).blame_for(Error::Local, &cannot)?, None))
            }
            Err(e) if wants_folder => Err(told(e)).blame_for(Error::Local, &cannot),
            Err(_) => {
                let (folder, name) = split(&path);
                let folder = tree.at(folder).map_err(told).blame_for(Error::Local, &cannot)?;
                let there = rustix::fs::statat(folder.root(), name, AtFlags::SYMLINK_NOFOLLOW);
                if there.is_ok_and(|s| is_special(FileType::from_raw_mode(s.st_mode))) {
                    let why = "it is a device, fifo or socket, which clients of a served folder cannot use";
                    return Err(Error::of_target(target, why));
                }
                Ok((folder, Some(name.to_vec())))
            }
        }
    }

    /// Creates the missing folders of a path.
    fn make_folders(&self, tree: &mut Tree, path: &[u8]) -> io::Result<()> {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]).filter(|end| *end > 0) {
            let (parent, name) = tree.parent(&path[..end])?;
            match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Opens a folder of `--link-dest`. It is relative to the target, and stays inside as that does.
    pub fn beside(&self, target: &Path, dir: &Path) -> Result<Option<Tree>> {
        let cannot = format!("cannot open {} (--link-dest)", crate::shown(dir.as_os_str().as_bytes()));
        let mut parts: Vec<Component<'_>> = Vec::new();
        let whole = target.join(dir);
        for part in whole.components() {
            match part {
                Component::ParentDir if parts.pop().is_none() => {
                    return Err(Error::Protocol("the path leads out of the served folder".into()).context(&cannot));
                }
                Component::Normal(_) => parts.push(part),
                _ => {}
            }
        }
        let path: std::path::PathBuf = parts.iter().collect();
        let path = inside(&path).map_err(|e| e.context(&cannot))?;
        let mut tree = self.tree.try_clone().blame(Error::Local)?;
        found(tree.at(&path)).map_err(told).blame_for(Error::Local, &cannot)
    }

    /// Opens the folder of `--partial-dir`, as [`super::serve::open_partials`].
    pub fn partials(&self, store: &StoreOptions) -> Result<Option<Tree>> {
        let Some(PartialDir::At(dir)) = &store.habits.partial_dir else { return Ok(None) };
        let cannot = cannot_partials(dir);
        let path = inside(dir).map_err(|e| e.context(&cannot))?;
        if path.is_empty() {
            return Err(Error::Usage("the served folder itself is none for --partial-dir".into()));
        }
        let mut tree = self.tree.try_clone().blame(Error::Local)?;
        if !store.dry_run {
            let (parent, name) = tree.parent(&path).map_err(told).blame_for(Error::Local, &cannot)?;
            match rustix::fs::mkdirat(&parent, &name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(io::Error::from(e)).blame_for(Error::Local, &cannot),
            }
        }
        found(tree.at(&path)).map_err(told).blame_for(Error::Local, &cannot)
    }

    /// Whether clients can change nothing.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Opens a source, as [`Root::open`].
    pub fn root(&self, path: &Path, recursive: bool) -> io::Result<Root> {
        let inner = inside(path).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        let mut tree = self.tree.try_clone()?;
        if scan::top(path).is_none() {
            let tree = tree.at(&inner).map_err(told)?;
            return if recursive { Ok(Root::new(tree, Vec::new())) } else { Err(scan::needs_recursive()) };
        }
        let (folder, name) = split(&inner);
        let tree = tree.at(folder).map_err(told)?;
        let stat = rustix::fs::statat(tree.root(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if !recursive => Err(scan::needs_recursive()),
            FileType::Symlink if !recursive => Err(told(Errno::LOOP.into())),
            _ => Ok(Root::new(tree, name.to_vec())),
        }
    }
}

fn is_special(kind: FileType) -> bool {
    !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

/// The path relative to the served folder, which a leading slash denotes.
fn inside(path: &Path) -> Result<Vec<u8>> {
    let mut inner = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                if !inner.is_empty() {
                    inner.push(b'/');
                }
                inner.extend_from_slice(name.as_bytes());
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Error::Protocol("the path leads out of the served folder".into()));
            }
        }
    }
    narrows::entry::check_path(&inner)?;
    Ok(inner)
}

fn told(e: io::Error) -> io::Error {
    match Errno::from_io_error(&e) {
        Some(Errno::LOOP) => io::Error::other("it is a symbolic link, or behind one, which a server does not follow"),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn nothing_beside_the_folder_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("served");
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/file"), "x").unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        symlink(dir.path(), root.join("out")).unwrap();
        symlink("../secret", root.join("link")).unwrap();
        let served = Served::open(&root, false).unwrap();
        for good in ["a", "/a", "a/", "/", "", "./a/.", "a/file"] {
            assert!(served.root(Path::new(good), true).is_ok(), "{good}");
        }
        for bad in ["..", "a/../..", "/..", "out/", "out/secret", "out/served", "no", "a\0b"] {
            assert!(served.root(Path::new(bad), true).is_err(), "{bad}");
        }
        assert!(served.root(Path::new("link"), false).is_err(), "a link would stand for its file");
        assert!(served.root(Path::new("a"), false).is_err() && served.root(Path::new("a/file"), false).is_ok());
        for bad in ["../x", "out/x", "out", "out/", "no/x"] {
            assert!(served.target(Path::new(bad), false, false, false).is_err(), "{bad}");
        }
        for bad in ["../x", "out/x", "no/x", "link/x"] {
            assert!(served.target(Path::new(bad), true, false, false).is_err(), "{bad}");
        }
        let (_, name) = served.target(Path::new("/a/new"), true, false, false).unwrap();
        assert_eq!(name.as_deref(), Some(&b"new"[..]));
        assert!(served.target(Path::new("a/folder/"), true, false, false).unwrap().1.is_none());
        assert!(root.join("a/folder").is_dir());
        let reading = Served::open(&root, true).unwrap();
        assert!(reading.target(&PathBuf::from("a"), false, false, false).is_err());
    }
}
