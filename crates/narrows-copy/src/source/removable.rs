//! Sources that may be removed once the other end has confirmed that everything is stored
//! (`--remove-source-files`).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use narrows::entry::{self, EntryKind};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::{Content, File};
use crate::scan::Root;
use crate::spelling::are_one;
use crate::tree::Tree;
use crate::{e_text, meta, shown};

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
    /// What it was when it was read; it is removed only if it still is.
    kind: FileType,
    mtime: (i64, u32),
    /// Length of a file.
    len: Option<u64>,
    /// The entry that has the content of a hard link.
    of: Option<u64>,
}

impl Removable {
    /// A file that was sent whole, or is there already.
    pub(super) fn add(&mut self, file: &File) {
        let Content::Below(root) = file.content else { return };
        let path = file.place().into_owned();
        let (kind, mtime, len) = (FileType::RegularFile, file.mtime, (!file.stored).then_some(file.len));
        self.entries.insert(file.id, Entry { root, path, kind, mtime, len, of: None });
    }

    /// A link, fifo, device or socket.
    pub(super) fn add_other(&mut self, id: u64, root: usize, entry: entry::Entry) {
        let (kind, of) = match entry.kind {
            _ if meta::is_socket(&entry) => (FileType::Socket, None),
            // Of a file; other kinds have no further names here.
            EntryKind::HardLink { of } => (FileType::RegularFile, Some(of)),
            EntryKind::Symlink { .. } => (FileType::Symlink, None),
            EntryKind::CharDevice { .. } => (FileType::CharacterDevice, None),
            EntryKind::BlockDevice { .. } => (FileType::BlockDevice, None),
            EntryKind::Fifo => (FileType::Fifo, None),
            EntryKind::File { .. } | EntryKind::Folder | EntryKind::Stream => return,
        };
        let mtime = (entry.mtime_s, entry.mtime_ns);
        self.entries.insert(id, Entry { root, path: entry.path, kind, mtime, len: None, of });
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
        // Entry 0 is the top, and what failed with it belongs to all: names that are not durable yet.
        if self.failed.contains(&0) && !self.entries.is_empty() {
            on_failure("no source was removed, since the other end could not finish its work");
            return 0;
        }
        let is_stored = |id: &u64| !self.failed.contains(id);
        for (id, Entry { root, path, kind, mtime, len, of }) in &self.entries {
            let is_whole = of.is_none_or(|of| is_stored(&of) && self.entries.contains_key(&of));
            if !is_stored(id) || !is_whole {
                continue;
            }
            let taken = roots[*root].tree.parent(path).and_then(|(folder, name)| {
                let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_same = FileType::from_raw_mode(stat.st_mode) == *kind
                    && *mtime == (stat.st_mtime, stat.st_mtime_nsec as u32)
                    && len.is_none_or(|len| len == stat.st_size as u64);
                if !is_same {
                    return Err(std::io::Error::other("it changed since it was read"));
                }
                if target.as_mut().is_some_and(|target| is_target(target, path, &folder, &name, &stat)) {
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
fn is_target(target: &mut (Tree, Option<Vec<u8>>), path: &[u8], folder: &OwnedFd, name: &OsStr, stat: &Stat) -> bool {
    let (tree, rename) = target;
    let place = |folder: &OwnedFd| rustix::fs::fstat(folder).map(|s| (s.st_dev, s.st_ino));
    let there = tree.parent(rename.as_deref().unwrap_or(path));
    there.is_ok_and(|(there, its)| {
        let is_same_folder = place(&there).is_ok_and(|there| place(folder) == Ok(there));
        let is_same_name = is_same_folder && are_one(&there, &its, name);
        // By another name: the file system ignores case, or one folder is mounted twice.
        let own = rustix::fs::statat(&there, &its, AtFlags::SYMLINK_NOFOLLOW);
        let is_same_file = own.is_ok_and(|own| (own.st_dev, own.st_ino) == (stat.st_dev, stat.st_ino));
        is_same_name || is_same_file && stat.st_nlink == 1
    })
}
