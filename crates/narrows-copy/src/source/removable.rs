//! Sources that may be removed once the other end has confirmed that everything is stored
//! (`--remove-source-files`).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::{self, EntryKind};
use narrows_host::file_state::{Change, FileState};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::seen::Seen;
use super::{Content, File};
use crate::scan::Root;
use crate::spelling::{are_one, fold_hash};
use crate::tree::Tree;
use crate::{e_text, meta, shown};

/// Entries that may be removed, by number.
#[derive(Default)]
pub(super) struct Removable {
    entries: HashMap<u64, Entry>,
    /// Numbers of the entries that the other end did not store.
    failed: HashSet<u64>,
    /// Hashes of their paths, the same for all spellings. If the target takes two names for one, both stay:
    /// the next copy would replace the content of the one that is gone by that of the other.
    alike: HashSet<u64>,
}

struct Entry {
    root: usize,
    path: Vec<u8>,
    /// It is removed only if it still is what it was.
    was: Was,
}

/// What an entry was when it was read.
enum Was {
    /// A file of that announced length.
    File { seen: Seen, len: u64 },
    /// A further name of a file, whose number this is.
    Name { of: u64 },
    /// A link, fifo, device or socket, written at that time.
    Other { kind: FileType, mtime: (i64, u32) },
}

/// What files became by the removal of some of their names, by device and inode: that changes the time of
/// the last change.
type Own = HashMap<(u64, u64), FileState>;

impl Removable {
    /// A file that was sent whole, or is there already.
    pub(super) fn add(&mut self, file: &File, seen: Seen) {
        let Content::Below(root) = file.content else { return };
        let was = Was::File { seen, len: file.len };
        self.entries.insert(file.id, Entry { root, path: file.place().into_owned(), was });
    }

    /// A link, fifo, device or socket.
    pub(super) fn add_other(&mut self, id: u64, root: usize, entry: entry::Entry) {
        let mtime = (entry.mtime_s, entry.mtime_ns);
        let other = |kind| Was::Other { kind, mtime };
        let was = match entry.kind {
            _ if meta::is_socket(&entry) => other(FileType::Socket),
            // Of a file; other kinds have no further names here.
            EntryKind::HardLink { of } => Was::Name { of },
            EntryKind::Symlink { .. } => other(FileType::Symlink),
            EntryKind::CharDevice { .. } => other(FileType::CharacterDevice),
            EntryKind::BlockDevice { .. } => other(FileType::BlockDevice),
            EntryKind::Fifo => other(FileType::Fifo),
            EntryKind::File { .. } | EntryKind::Folder | EntryKind::Stream => return,
        };
        self.entries.insert(id, Entry { root, path: entry.path, was });
    }

    /// The other end did not store it.
    pub(super) fn failed(&mut self, id: u64) {
        self.failed.insert(id);
        self.alike.extend(self.entries.get(&id).map(|entry| fold_hash(&entry.path)));
    }

    /// The other end refused it, or has a newer one.
    pub(super) fn refused(&mut self, file: &File) {
        self.failed.insert(file.id);
        self.alike.insert(fold_hash(&file.place()));
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
        let mut own = Own::default();
        for (id, Entry { root, path, was }) in &self.entries {
            let was = match was {
                Was::Name { of } if !is_stored(of) => continue,
                Was::Name { of } => match self.entries.get(of) {
                    Some(file) => &file.was,
                    None => continue,
                },
                was => was,
            };
            if !is_stored(id) {
                continue;
            }
            if self.alike.contains(&fold_hash(path)) {
                on_failure(&format!(
                    "the source {} stays, since another one of this name, in whatever spelling, is not stored",
                    shown(path)
                ));
                continue;
            }
            let tree = &mut roots[*root].tree;
            match take(tree, path, was, &mut target, &mut own) {
                Ok(()) => removed += 1,
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => {}
                Err(e) => on_failure(&format!("cannot remove the source {}: {}", shown(path), e_text(&e))),
            }
        }
        removed
    }
}

/// Removes a name of what still is as it was.
fn take(
    tree: &mut Tree,
    path: &[u8],
    was: &Was,
    target: &mut Option<(Tree, Option<Vec<u8>>)>,
    own: &mut Own,
) -> io::Result<()> {
    let (folder, name) = tree.parent(path)?;
    let look = || rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
    let stat = look()?;
    let kind_now = FileType::from_raw_mode(stat.st_mode);
    let changed = || Err(io::Error::other("it changed since it was read"));
    // A file with further names.
    let mut file = None;
    match was {
        Was::Other { kind, mtime } if *kind == kind_now && *mtime == FileState::from(&stat).mtime => {}
        Was::File { seen, len } if kind_now == FileType::RegularFile => {
            let now = FileState::from(&stat);
            let state = own.get(&now.place).copied().unwrap_or(seen.state);
            let change = state.change(&now);
            if change == Change::Content {
                return changed();
            }
            let open = |flags| {
                let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&folder, &name, flags, Mode::empty())
            };
            if change == Change::Status {
                let seen = Seen { state, sum: seen.sum };
                let state = seen.still_of_len(*len, &open(OFlags::RDONLY)?, || true)?;
                // Nearest to the moment at which it is removed.
                if state.is_none_or(|state| look().map_or(true, |stat| state != FileState::from(&stat))) {
                    return changed();
                }
            }
            if stat.st_nlink > 1 {
                file = open(OFlags::PATH).ok();
            }
        }
        _ => return changed(),
    }
    if target.as_mut().is_some_and(|target| is_target(target, path, &folder, &name, &stat)) {
        return Err(io::Error::other("it is the target itself"));
    }
    rustix::fs::unlinkat(&folder, &name, AtFlags::empty())?;
    if let Some(file) = file {
        let now = FileState::of(&file)?;
        own.insert(now.place, now);
    }
    Ok(())
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
