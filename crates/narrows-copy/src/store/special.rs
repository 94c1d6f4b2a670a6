//! Storing links, fifos and devices. Each is created under a temporary name and renamed, so that an
//! existing entry is replaced atomically.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use narrows::entry::{Answer, Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Mode, Stat};

use super::announced::is_there;
use super::answers::Answers;
use super::habits::letter;
use super::{Target, partial};
use crate::hello::Unmade;
use crate::{meta, shown};

impl Target {
    /// Stores a symbolic link, fifo or device, which may be a hard link to an earlier one.
    pub(super) fn special(&mut self, id: u64, mut entry: Entry, answers: &mut Answers) -> io::Result<()> {
        let first = meta::take_link(&mut entry);
        if let Some(first) = first.filter(|first| *first != id && !self.options.dry_run) {
            // If the first name is missing, it is created separately.
            if self.link(first, &entry.path, answers).is_ok() {
                return Ok(());
            }
        }
        if self.is_in_way(&entry.path)? {
            if self.options.dry_run {
                self.note_in_way(id, &entry.path);
                self.made_special(&entry, answers);
                return Ok(());
            }
            return self.special_waits(id, entry);
        }
        if self.make_special(&entry)? {
            self.made_special(&entry, answers);
        }
        if first == Some(id) && !self.options.dry_run && self.room.take_link(&entry.path) {
            let (folder, name) = self.tree.parent(&entry.path)?;
            let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.linked.insert(id, (entry.path, (stat.st_dev, stat.st_ino)));
        }
        Ok(())
    }

    /// Stores a fifo, device or socket, or passes it over: what has its name here stays.
    pub(super) fn device(&mut self, id: u64, entry: Entry, answers: &mut Answers) -> io::Result<()> {
        let what = match self.options.unmade {
            _ if self.options.devices => return self.special(id, entry, answers),
            Unmade::Failed => "it is a fifo, device or socket; --devices copies it",
            Unmade::Refused => "it is a fifo, device or socket, and this server makes none, whatever --devices says",
            Unmade::Skipped => {
                if let (Some(on_skipped), Some(text)) = (&self.observers.on_skipped, meta::skipped(&entry)) {
                    on_skipped(&text);
                    // The sender keeps it, even if it removes what is stored.
                    answers.put(&Answer::Failed { id, text });
                }
                return Ok(());
            }
        };
        Err(io::Error::other(what))
    }

    /// The error of a device that must not be replaced.
    pub(super) fn device_in_way(&self) -> io::Error {
        io::Error::other(match self.options.unmade {
            Unmade::Refused => "a device of that name is in the way, and this server replaces none",
            Unmade::Failed | Unmade::Skipped => "a device of that name is in the way; --devices replaces it",
        })
    }

    /// Reports an entry that was created, or would be.
    pub(super) fn made_special(&mut self, entry: &Entry, answers: &mut Answers) {
        let words = words(entry);
        self.made('c', letter(entry), words.clone(), words, answers);
    }

    /// Creates the entry under a temporary name and renames it, so that an existing one is replaced
    /// atomically; false if the same one existed.
    pub(super) fn make_special(&mut self, entry: &Entry) -> io::Result<bool> {
        let (folder, name) = match self.tree.parent(&entry.path) {
            Err(e) if self.would_be_made(&e) => return Ok(true),
            found => found?,
        };
        if let EntryKind::Symlink { target } = &entry.kind
            && rustix::fs::readlinkat(&folder, &name, Vec::new()).is_ok_and(|there| there.to_bytes() == target)
        {
            if !self.options.dry_run {
                meta::apply_by_name(&folder, &name, entry, self.ownership, &mut self.losses);
            }
            return Ok(false);
        }
        let there = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
        if self.keeps_existing && there.is_ok() {
            return Err(is_there());
        }
        // A program that has opened a fifo or listens on a socket goes on with the one it knows.
        if self.options.devices && there.is_ok_and(|is| is_node(&is, entry)) && meta::has_xattrs(&folder, &name, entry)
        {
            if !self.options.dry_run {
                meta::apply_by_name(&folder, &name, entry, self.ownership, &mut self.losses);
            }
            return Ok(false);
        }
        let there = there.map(|s| FileType::from_raw_mode(s.st_mode));
        if matches!(there, Ok(FileType::CharacterDevice | FileType::BlockDevice)) && !self.options.devices {
            return Err(self.device_in_way());
        }
        if self.options.dry_run {
            return Ok(true);
        }
        let node = |partial: &OsStr, kind, device| {
            rustix::fs::mknodat(&folder, partial, kind, Mode::RUSR | Mode::WUSR, device)
        };
        let is_same = |partial: &OsStr, there: &Stat| match &entry.kind {
            EntryKind::Symlink { target } => {
                rustix::fs::readlinkat(&folder, partial, Vec::new()).is_ok_and(|there| there.to_bytes() == target)
            }
            // They have no content.
            _ => matches!(
                FileType::from_raw_mode(there.st_mode),
                FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice
            ),
        };
        let partial = partial::make(&folder, &name, is_same, |partial| match &entry.kind {
            EntryKind::Symlink { target } => rustix::fs::symlinkat(OsStr::from_bytes(target), &folder, partial),
            EntryKind::CharDevice { major, minor } => {
                node(partial, FileType::CharacterDevice, rustix::fs::makedev(*major, *minor))
            }
            EntryKind::BlockDevice { major, minor } => {
                node(partial, FileType::BlockDevice, rustix::fs::makedev(*major, *minor))
            }
            EntryKind::Fifo if meta::is_socket(entry) => node(partial, FileType::Socket, 0),
            EntryKind::Fifo
            | EntryKind::File { .. }
            | EntryKind::Stream
            | EntryKind::Folder
            | EntryKind::HardLink { .. } => node(partial, FileType::Fifo, 0),
        })?;
        meta::apply_by_name(&folder, &partial, entry, self.ownership, &mut self.losses);
        let kept = self.set_aside(&entry.path, false);
        let renamed = kept.and_then(|()| partial::rename(&folder, &partial, &name, !self.keeps_existing));
        self.has_named = true;
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&folder, &partial, AtFlags::empty());
        }
        renamed.map(|()| true)
    }

    /// Reports in a dry run whether a hard link would be created.
    pub(super) fn would_link(&mut self, id: u64, of: u64, path: &[u8], answers: &mut Answers) -> io::Result<()> {
        if self.is_in_way(path)? {
            self.note_in_way(id, path);
        }
        let known = self.linked.get(&of).map(|(_, inode)| *inode);
        let there = match self.tree.parent(path) {
            Err(e) if self.would_be_made(&e) => None,
            found => {
                let (folder, name) = found?;
                rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()
            }
        };
        if known.is_none() || there.map(|s| (s.st_dev, s.st_ino)) != known {
            self.made('h', 'f', shown(path), shown(path), answers);
        }
        Ok(())
    }

    /// Creates a hard link to a file that this copy stored or found unchanged.
    pub(super) fn link(&mut self, of: u64, path: &[u8], answers: &mut Answers) -> io::Result<()> {
        let first = self.linked.get(&of).cloned();
        let (first, inode) = first.ok_or_else(|| io::Error::other("the file that it belongs to was not stored"))?;
        let (from, from_name) = self.tree.parent(&first)?;
        let (to, name) = self.tree.parent(path)?;
        let there = rustix::fs::statat(&from, &from_name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (there.st_dev, there.st_ino) != inode {
            return Err(io::Error::other("the file that it belongs to was replaced"));
        }
        if rustix::fs::statat(&to, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|s| (s.st_dev, s.st_ino) == inode) {
            return Ok(());
        }
        if self.keeps_existing && rustix::fs::statat(&to, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(is_there());
        }
        let is_same = |_: &OsStr, there: &Stat| (there.st_dev, there.st_ino) == inode;
        let partial = partial::make(&to, &name, is_same, |partial| {
            rustix::fs::linkat(&from, &from_name, &to, partial, AtFlags::empty())
        })?;
        let kept = self.set_aside(path, false);
        let renamed = kept.and_then(|()| partial::rename_link(&to, &partial, &name, !self.keeps_existing));
        self.has_named = true;
        match renamed {
            Ok(true) => self.made('h', 'f', format!("{} => {}", shown(path), shown(&first)), shown(path), answers),
            Ok(false) => {}
            Err(_) => {
                let _ = rustix::fs::unlinkat(&to, &partial, AtFlags::empty());
            }
        }
        renamed.map(drop)
    }
}

/// Whether something is the fifo, socket or device that an entry is.
fn is_node(is: &Stat, entry: &Entry) -> bool {
    let kind = FileType::from_raw_mode(is.st_mode);
    match &entry.kind {
        EntryKind::CharDevice { major, minor } => {
            kind == FileType::CharacterDevice && is.st_rdev == rustix::fs::makedev(*major, *minor)
        }
        EntryKind::BlockDevice { major, minor } => {
            kind == FileType::BlockDevice && is.st_rdev == rustix::fs::makedev(*major, *minor)
        }
        EntryKind::Fifo if meta::is_socket(entry) => kind == FileType::Socket,
        EntryKind::Fifo => kind == FileType::Fifo,
        _ => false,
    }
}

/// The text that names the entry for the user.
pub(super) fn words(entry: &Entry) -> String {
    match &entry.kind {
        EntryKind::Symlink { target } => format!("{} -> {}", shown(&entry.path), shown(target)),
        _ => shown(&entry.path),
    }
}
