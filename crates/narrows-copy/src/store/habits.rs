//! Habits of `rsync` with files that are there already: comparing contents, keeping newer ones, hard links
//! to an earlier copy, and backups of replaced files.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use narrows::entry::{DIGEST_LEN, Entry, EntryKind, check_path};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::names::Names;
use super::partial;
use super::session::Session;
use crate::delta::DELTA_MIN;
use crate::tree::{Tree, split};
use crate::{hash, meta};

/// A folder of `--link-dest`.
pub(super) struct Beside(pub(super) Tree);

impl Session {
    /// Whether the file that is there is newer than the entry, and stays therefore.
    pub(super) fn keeps_newer(&self, stat: &Stat, entry: &Entry) -> bool {
        let there = (stat.st_mtime, stat.st_mtime_nsec as u32);
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        self.options.habits.update && is_file && there > (entry.mtime_s, entry.mtime_ns)
    }

    /// Whether the file that is there has the content with this digest. `len` is the same.
    pub(super) fn has_content(&mut self, path: &[u8], digest: Option<&[u8; DIGEST_LEN]>) -> bool {
        let Some(digest) = digest else { return false };
        let opened = self.tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK);
        opened.and_then(|file| hash::of_file(file, &self.compared)).is_ok_and(|own| own == *digest)
    }

    /// Makes the entry a hard link to the same file of an earlier copy, if one of `--link-dest` has it.
    pub(super) fn link_to_earlier(
        &mut self,
        entry: &Entry,
        digest: Option<&[u8; DIGEST_LEN]>,
        to: &(Arc<OwnedFd>, std::ffi::OsString),
    ) -> Option<Stat> {
        let EntryKind::File { len, .. } = entry.kind else { return None };
        let (dry_run, ownership, checksum) = (self.options.dry_run, self.ownership, self.options.habits.checksum);
        let compared = &self.compared;
        let made = self.beside.iter_mut().find_map(|Beside(tree)| {
            let (folder, name) = tree.parent(&entry.path).ok()?;
            let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_same = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_size as u64 == len
                && meta::is_applied(&stat, entry, ownership)
                && meta::has_xattrs(&folder, &name, entry);
            let mut content = || {
                let opened = tree.open_below(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK);
                opened.and_then(|file| hash::of_file(file, compared)).is_ok_and(|own| Some(&own) == digest)
            };
            if !is_same || checksum && !content() {
                return None;
            }
            // On another file system, or without the right to link it, the file is copied.
            (dry_run || rustix::fs::linkat(&folder, &name, &to.0, &to.1, AtFlags::empty()).is_ok()).then_some(stat)
        });
        self.has_named |= made.is_some();
        made
    }

    /// Whether an earlier copy has a version of the file that is worth comparing.
    pub(super) fn has_earlier_beside(&mut self, path: &[u8]) -> bool {
        let file = beside_files(&mut self.beside, path).next();
        file.is_some_and(|file| rustix::fs::fstat(&file).is_ok_and(|s| s.st_size as u64 >= DELTA_MIN))
    }

    /// Creates the missing folders above `path`.
    fn make_parents_of(&mut self, path: &[u8]) -> io::Result<()> {
        let folder = split(path).0;
        let ends = folder.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([folder.len()]).filter(|end| *end > 0) {
            let (parent, name) = self.tree.parent(&folder[..end])?;
            match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The flags of an entry that differs from what is there; `content` is the first one.
    pub(super) fn flags(&self, stat: &Stat, entry: &Entry, folder: &OwnedFd, name: &OsStr, content: bool) -> String {
        let len = if let EntryKind::File { len, .. } = entry.kind { Some(len) } else { None };
        let flag = |is: bool, c: char| if is { c } else { '.' };
        let (owner, group) = meta::owners_differ(stat, entry, self.ownership);
        [
            flag(content, 'c'),
            flag(len.is_some_and(|len| len != stat.st_size as u64), 's'),
            flag(!meta::same_time(stat, entry), 't'),
            flag(stat.st_mode & 0o7777 != entry.mode, 'p'),
            flag(owner, 'o'),
            flag(group, 'g'),
            '.',
            '.',
            flag(!meta::has_xattrs(folder, name, entry), 'x'),
        ]
        .iter()
        .collect()
    }

    /// Whether each change is reported.
    pub(super) fn itemizes(&self) -> bool {
        self.options.habits.itemize
    }

    /// Reports a change, if that was asked for.
    pub(super) fn tell_item(&mut self, item: &str, name: &str) {
        if self.itemizes() {
            self.say_made(format!("{item} {name}"));
        }
    }
}

impl Names {
    /// Keeps what is at `path`, if anything, as a backup. `moves`: it is removed from `path`, which is to
    /// be free then. Otherwise it gets a second name, so that `path` is never missing.
    pub(super) fn set_aside(&mut self, path: &[u8], moves: bool, session: &mut Session) -> io::Result<()> {
        let Some(backup) = &session.options.habits.backup else { return Ok(()) };
        let own = backup.path_of(path);
        let (folder, name) = session.tree.parent(path)?;
        let there = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let cannot = |e: io::Error| io::Error::other(format!("cannot keep its backup: {}", crate::e_text(&e)));
        if self.is_stored(&own, session) {
            // The backup would replace what this copy stores, or has found to be stored.
            let text = format!("the source has {} too; use another --suffix or --backup-dir", crate::shown(&own));
            return Err(cannot(io::Error::other(text)));
        }
        check_path(&own).map_err(|e| cannot(io::Error::other(e.to_string())))?;
        session.make_parents_of(&own).map_err(cannot)?;
        let (to, to_name) = session.tree.parent(&own).map_err(cannot)?;
        let before = rustix::fs::statat(&to, &to_name, AtFlags::SYMLINK_NOFOLLOW);
        if before.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
            return Err(cannot(io::Error::other("a folder has the name of the backup")));
        }
        let is_kept = before.is_ok_and(|s| (s.st_dev, s.st_ino) == (there.st_dev, there.st_ino));
        session.has_named = true;
        if session.removal.is_some() {
            // What this copy keeps is not to be removed by it.
            if !session.room.take_hash() {
                return Err(cannot(io::Error::other("there are too many")));
            }
            self.backups.insert(xxh3_64(&own));
        }
        if !moves && !is_kept {
            let is_same = |_: &OsStr, left: &Stat| (left.st_dev, left.st_ino) == (there.st_dev, there.st_ino);
            let linked = partial::make(&to, &to_name, is_same, |partial| {
                rustix::fs::linkat(&folder, &name, &to, partial, AtFlags::empty())
            });
            if let Ok(partial) = linked {
                let renamed = partial::rename_link(&to, &partial, &to_name, true);
                if renamed.is_err() {
                    let _ = rustix::fs::unlinkat(&to, &partial, AtFlags::empty());
                }
                return renamed.map(drop).map_err(cannot);
            }
        }
        match (moves, is_kept) {
            (false, true) => Ok(()),
            // Renaming one name of a file to another name of it does nothing.
            (true, true) => rustix::fs::unlinkat(&folder, &name, AtFlags::empty()).map_err(|e| cannot(e.into())),
            (_, false) => rustix::fs::renameat(&folder, &name, &to, &to_name).map_err(|e| cannot(e.into())),
        }
    }
}

/// The versions of `path` in earlier copies.
pub(super) fn beside_files<'a>(beside: &'a mut [Beside], path: &'a [u8]) -> impl Iterator<Item = OwnedFd> + use<'a> {
    beside.iter_mut().filter_map(move |Beside(tree)| {
        let file = tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        let is_file =
            rustix::fs::fstat(&file).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        is_file.then_some(file)
    })
}

/// The line of `rsync -i` about a change, without the name.
pub(super) fn item(update: char, kind: char, flags: &str) -> String {
    format!("{update}{kind}{flags}")
}

/// The flags of something that is new.
pub(super) const NEW: &str = "+++++++++";

/// Opens the folders of `--link-dest`.
pub(super) fn beside(trees: Vec<Tree>) -> Vec<Beside> {
    trees.into_iter().map(Beside).collect()
}

/// The name of an entry for the user, with a slash after a folder.
pub(super) fn name_of(entry: &Entry) -> String {
    let name = crate::shown(&entry.path);
    match entry.kind {
        EntryKind::Folder if entry.path.is_empty() => "./".into(),
        EntryKind::Folder => name + "/",
        _ => name,
    }
}

/// The letter of a kind of entry.
pub(super) fn letter(entry: &Entry) -> char {
    match entry.kind {
        EntryKind::File { .. } | EntryKind::Stream | EntryKind::HardLink { .. } => 'f',
        EntryKind::Folder => 'd',
        EntryKind::Symlink { .. } => 'L',
        EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => 'D',
        EntryKind::Fifo => 'S',
    }
}
