//! Storing links, fifos and devices. Each is created under a temporary name and renamed, so that an
//! existing entry is replaced atomically.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use narrows::entry::{Answer, Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Mode, Stat};

use super::announced::is_there;
use super::habits::letter;
use super::names::Names;
use super::partial;
use super::session::Session;
use crate::hello::Unmade;
use crate::{e_text, meta, shown};

impl Names {
    /// Stores a symbolic link, fifo or device, which may be a hard link to an earlier one.
    pub(super) fn special(&mut self, id: u64, mut entry: Entry, session: &mut Session) -> io::Result<()> {
        let first = meta::take_link(&mut entry);
        if let Some(first) = first.filter(|first| *first != id && !session.options.dry_run) {
            // If the first name is missing, it is created separately.
            if self.link(first, &entry.path, session).is_ok() {
                return Ok(());
            }
        }
        if session.is_in_way(&entry.path)? {
            if session.options.dry_run {
                self.note_in_way(id, &entry.path);
                session.made_special(&entry);
                return Ok(());
            }
            return self.special_waits(id, entry, session);
        }
        if self.make_special(&entry, session)? {
            session.made_special(&entry);
        }
        if first == Some(id) && !session.options.dry_run && session.room.take_link(&entry.path) {
            let (folder, name) = session.tree.parent(&entry.path)?;
            let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.linked.insert(id, (entry.path, (stat.st_dev, stat.st_ino)));
        }
        Ok(())
    }

    /// Stores a fifo, device or socket, or passes it over: what has its name here stays.
    pub(super) fn device(&mut self, id: u64, entry: Entry, session: &mut Session) -> io::Result<()> {
        let what = match session.options.unmade {
            _ if session.options.devices => return self.special(id, entry, session),
            Unmade::Failed => "it is a fifo, device or socket; --devices copies it",
            Unmade::Refused => "it is a fifo, device or socket, and this server makes none, whatever --devices says",
            Unmade::Skipped => {
                if let (Some(on_skipped), Some(text)) = (&session.report.observers.on_skipped, meta::skipped(&entry)) {
                    on_skipped(&text);
                    // The sender keeps it, even if it removes what is stored.
                    session.report.answers.put(&Answer::Failed { id, text });
                }
                return Ok(());
            }
        };
        Err(io::Error::other(what))
    }

    /// Creates the entry under a temporary name and renames it, so that an existing one is replaced
    /// atomically; false if the same one existed.
    pub(super) fn make_special(&mut self, entry: &Entry, session: &mut Session) -> io::Result<bool> {
        let (folder, name) = match session.tree.parent(&entry.path) {
            Err(e) if session.would_be_made(&e) => return Ok(true),
            found => found?,
        };
        if let EntryKind::Symlink { target } = &entry.kind
            && rustix::fs::readlinkat(&folder, &name, Vec::new()).is_ok_and(|there| there.to_bytes() == target)
        {
            if !session.options.dry_run {
                meta::apply_by_name(&folder, &name, entry, session.ownership, &mut session.losses);
            }
            return Ok(false);
        }
        let there = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
        if session.keeps_existing && there.is_ok() {
            return Err(is_there());
        }
        // A program that has opened a fifo or listens on a socket goes on with the one it knows.
        if session.options.devices
            && there.is_ok_and(|is| is_node(&is, entry))
            && meta::has_xattrs(&folder, &name, entry)
        {
            if !session.options.dry_run {
                meta::apply_by_name(&folder, &name, entry, session.ownership, &mut session.losses);
            }
            return Ok(false);
        }
        let there = there.map(|s| FileType::from_raw_mode(s.st_mode));
        if matches!(there, Ok(FileType::CharacterDevice | FileType::BlockDevice)) && !session.options.devices {
            return Err(session.device_in_way());
        }
        if session.options.dry_run {
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
        meta::apply_by_name(&folder, &partial, entry, session.ownership, &mut session.losses);
        let kept = self.set_aside(&entry.path, false, session);
        let renamed = kept.and_then(|()| partial::rename(&folder, &partial, &name, !session.keeps_existing));
        session.has_named = true;
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&folder, &partial, AtFlags::empty());
        }
        renamed.map(|()| true)
    }

    /// Reports in a dry run whether a hard link would be created.
    pub(super) fn would_link(&mut self, id: u64, of: u64, path: &[u8], session: &mut Session) -> io::Result<()> {
        if session.is_in_way(path)? {
            self.note_in_way(id, path);
        }
        let known = self.linked.get(&of).map(|(_, inode)| *inode);
        let there = match session.tree.parent(path) {
            Err(e) if session.would_be_made(&e) => None,
            found => {
                let (folder, name) = found?;
                rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()
            }
        };
        if known.is_none() || there.map(|s| (s.st_dev, s.st_ino)) != known {
            session.made('h', 'f', shown(path), shown(path));
        }
        Ok(())
    }

    /// Creates the hard links to files, which have their names now.
    pub(super) fn link_all(&mut self, session: &mut Session) {
        for (id, of, path) in std::mem::take(&mut self.links) {
            let waits = session.removal.is_some() && self.linked_waits(of);
            if waits || session.is_in_way(&path).unwrap_or(false) {
                self.link_waits(id, of, path);
                continue;
            }
            if let Err(e) = self.link(of, &path, session) {
                session.report.failed(id, format!("cannot link {}: {}", shown(&path), e_text(&e)));
            }
        }
    }

    /// Creates a hard link to a file that this copy stored or found unchanged.
    pub(super) fn link(&mut self, of: u64, path: &[u8], session: &mut Session) -> io::Result<()> {
        let first = self.linked.get(&of).cloned();
        let (first, inode) = first.ok_or_else(|| io::Error::other("the file that it belongs to was not stored"))?;
        let (from, from_name) = session.tree.parent(&first)?;
        let (to, name) = session.tree.parent(path)?;
        let there = rustix::fs::statat(&from, &from_name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (there.st_dev, there.st_ino) != inode {
            return Err(io::Error::other("the file that it belongs to was replaced"));
        }
        if rustix::fs::statat(&to, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|s| (s.st_dev, s.st_ino) == inode) {
            return Ok(());
        }
        if session.keeps_existing && rustix::fs::statat(&to, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(is_there());
        }
        let is_same = |_: &OsStr, there: &Stat| (there.st_dev, there.st_ino) == inode;
        let partial = partial::make(&to, &name, is_same, |partial| {
            rustix::fs::linkat(&from, &from_name, &to, partial, AtFlags::empty())
        })?;
        let kept = self.set_aside(path, false, session);
        let renamed = kept.and_then(|()| partial::rename_link(&to, &partial, &name, !session.keeps_existing));
        session.has_named = true;
        match renamed {
            Ok(true) => session.made('h', 'f', format!("{} => {}", shown(path), shown(&first)), shown(path)),
            Ok(false) => {}
            Err(_) => {
                let _ = rustix::fs::unlinkat(&to, &partial, AtFlags::empty());
            }
        }
        renamed.map(drop)
    }
}

impl Session {
    /// The error of a device that must not be replaced.
    pub(super) fn device_in_way(&self) -> io::Error {
        io::Error::other(match self.options.unmade {
            Unmade::Refused => "a device of that name is in the way, and this server replaces none",
            Unmade::Failed | Unmade::Skipped => "a device of that name is in the way; --devices replaces it",
        })
    }

    /// Reports an entry that was created, or would be.
    pub(super) fn made_special(&mut self, entry: &Entry) {
        let words = words(entry);
        self.made('c', letter(entry), words.clone(), words);
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
