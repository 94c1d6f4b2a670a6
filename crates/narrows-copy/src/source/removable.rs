//! Sources that may be removed once the other end has confirmed that everything is stored
//! (`--remove-source-files`).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::{Content, File};
use crate::scan::Root;
use crate::tree::Tree;
use crate::{e_text, shown};

/// Entries that may be removed, by number.
#[derive(Default)]
pub(super) struct Removable {
    entries: HashMap<u64, Entry>,
    /// Numbers of the entries that the other end did not store.
    failed: HashSet<u64>,
}

struct Entry {
    root: usize,
    path: Vec<u8>,
    /// Time of a file when it was read; it is removed only if it still has it.
    mtime: Option<(i64, u32)>,
    /// The entry that has the content of a hard link.
    of: Option<u64>,
}

impl Removable {
    /// A file that was sent whole, or is there already.
    pub(super) fn add(&mut self, file: &File) {
        let Content::Below(root) = file.content else { return };
        let path = file.place().into_owned();
        self.entries.insert(file.id, Entry { root, path, mtime: Some(file.mtime), of: None });
    }

    /// A link, fifo or device; `of` is the entry that a hard link belongs to.
    pub(super) fn add_other(&mut self, id: u64, root: usize, path: Vec<u8>, of: Option<u64>) {
        self.entries.insert(id, Entry { root, path, mtime: None, of });
    }

    /// The other end did not store it.
    pub(super) fn failed(&mut self, id: u64) {
        self.failed.insert(id);
    }

    /// It is sent once more.
    pub(super) fn again(&mut self, id: u64) {
        self.entries.remove(&id);
    }

    /// Removes them; returns how many.
    pub(super) fn remove(
        self,
        roots: &mut [Root],
        mut target: Option<(Tree, Option<Vec<u8>>)>,
        on_failure: &dyn Fn(&str),
    ) -> u64 {
        let mut removed = 0;
        let is_stored = |id: &u64| !self.failed.contains(id);
        for (id, Entry { root, path, mtime, of }) in &self.entries {
            let is_whole = of.is_none_or(|of| is_stored(&of) && self.entries.contains_key(&of));
            if !is_stored(id) || !is_whole {
                continue;
            }
            let taken = roots[*root].tree.parent(path).and_then(|(folder, name)| {
                let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if mtime.is_some_and(|mtime| mtime != (stat.st_mtime, stat.st_mtime_nsec as u32)) {
                    return Err(std::io::Error::other("it changed since it was read"));
                }
                if target.as_mut().is_some_and(|target| is_target(target, path, &folder, &name)) {
                    return Err(std::io::Error::other("it is the target itself"));
                }
                Ok(rustix::fs::unlinkat(&folder, &name, AtFlags::empty())?)
            });
            match taken {
                Ok(()) => removed += 1,
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => {}
                Err(e) => on_failure(&format!("cannot remove the source {}: {}", shown(path), e_text(&e))),
            }
        }
        removed
    }
}

/// Whether the name in a source folder is the one that `path` has in the target.
fn is_target(target: &mut (Tree, Option<Vec<u8>>), path: &[u8], folder: &OwnedFd, name: &OsStr) -> bool {
    let (tree, rename) = target;
    let place = |folder: &OwnedFd| rustix::fs::fstat(folder).map(|s| (s.st_dev, s.st_ino));
    let there = tree.parent(rename.as_deref().unwrap_or(path));
    there.is_ok_and(|(there, its)| its == name && place(&there).is_ok_and(|there| place(folder) == Ok(there)))
}
