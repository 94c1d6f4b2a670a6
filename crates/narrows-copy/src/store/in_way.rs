//! Folders in the way of another kind of entry with the same name. With `--delete` they are removed
//! with the other entries that the sources do not have, and the new entries take their places.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use narrows::entry::Entry;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::announced::is_there;
use super::batch::WholeFile;
use super::names::Names;
use super::session::Session;
use crate::listing::each_name;
use crate::tree::split;
use crate::{e_text, shown};

/// An entry that waits for a folder to be removed.
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) path: Vec<u8>,
    what: What,
}

enum What {
    File(WholeFile),
    Special(Entry),
    HardLink {
        of: u64,
    },
    /// Nothing, in a dry run.
    Nothing,
}

/// Maximum number of waiting files, each of which keeps a descriptor. With more, the trees have
/// little in common.
const WAITING_MAX: usize = 128;

impl Session {
    /// Whether a folder at `path` may be removed to make room: it is within a copied folder, and no
    /// pattern protects it.
    pub(super) fn makes_way(&self, path: &[u8]) -> bool {
        self.removal.as_ref().is_some_and(|removal| removal.acts_in(split(path).0) && !removal.protects(path, true))
    }

    /// Whether a folder is in the way of an entry that is not a folder.
    ///
    /// # Errors
    /// The folder may not be removed.
    pub(super) fn is_in_way(&mut self, path: &[u8]) -> io::Result<bool> {
        let (folder, name) = match self.tree.parent(path) {
            Err(e) if self.would_be_made(&e) => return Ok(false),
            found => found?,
        };
        let there = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
        if !there.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
            return Ok(false);
        }
        if self.makes_way(path) {
            return Ok(true);
        }
        self.clear_empty(path, &folder, &name)?;
        Ok(false)
    }

    /// Removes an empty folder that is in the way, at once. In a dry run it stays.
    ///
    /// # Errors
    /// It is not empty, or must stay.
    pub(super) fn clear_empty(&mut self, path: &[u8], folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
        if self.keeps_existing {
            return Err(is_there());
        }
        if self.removal.as_ref().is_some_and(|removal| removal.protects(path, true)) {
            return Err(in_way());
        }
        if self.options.dry_run {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let there = rustix::fs::openat(folder, name, flags, Mode::empty())?;
            let mut is_empty = true;
            each_name(there, |_| {
                is_empty = false;
                ControlFlow::Break(())
            })?;
            return if is_empty { Ok(()) } else { Err(in_way()) };
        }
        // The system refuses one that is not empty, whatever came into it meanwhile.
        rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR).map_err(|_| in_way())?;
        self.has_named = true;
        Ok(())
    }

    /// Whether a folder is missing only because a dry run creates none.
    pub(super) fn would_be_made(&self, e: &io::Error) -> bool {
        let other = matches!(Errno::from_io_error(e), Some(Errno::NOTDIR | Errno::LOOP));
        self.options.dry_run && (e.kind() == io::ErrorKind::NotFound || other && self.removal.is_some())
    }
}

impl Names {
    /// Notes a folder in the way in a dry run.
    pub(super) fn note_in_way(&mut self, id: u64, path: &[u8]) {
        self.waiting.push(Waiting { id, path: path.to_vec(), what: What::Nothing });
    }

    /// Queues a link, fifo or device.
    pub(super) fn special_waits(&mut self, id: u64, entry: Entry, session: &mut Session) -> io::Result<()> {
        if !session.room.take_link(&entry.path) {
            return Err(in_way());
        }
        self.waiting.push(Waiting { id, path: entry.path.clone(), what: What::Special(entry) });
        Ok(())
    }

    /// Whether the first name of a hard link has to wait itself.
    pub(super) fn linked_waits(&self, of: u64) -> bool {
        self.in_way.contains(&of)
    }

    /// Queues a hard link.
    pub(super) fn link_waits(&mut self, id: u64, of: u64, path: Vec<u8>) {
        self.waiting.push(Waiting { id, path, what: What::HardLink { of } });
    }

    /// Queues a file that is complete and flushed, but has no name yet.
    pub(super) fn file_waits(&mut self, file: WholeFile, session: &mut Session) {
        if self.waiting.len() >= WAITING_MAX {
            let e = io::Error::other("too many folders are in the way; remove some of them manually");
            return session.cannot_store(&file, &e);
        }
        self.waiting.push(Waiting { id: file.id, path: file.path.clone(), what: What::File(file) });
    }

    /// Gives all waiting entries their names, after the folders were removed.
    pub(super) fn place_waiting(&mut self, session: &mut Session) {
        for Waiting { id, path, what } in std::mem::take(&mut self.waiting) {
            let result = match what {
                What::File(file) => {
                    self.name_file(file, session);
                    continue;
                }
                What::Special(entry) => self.make_special(&entry, session).map(|_| session.made_special(&entry)),
                What::HardLink { of } => self.link(of, &path, session),
                What::Nothing => continue,
            };
            if let Err(e) = result {
                session.report.failed(id, format!("cannot store {}: {}", shown(&path), e_text(&e)));
            }
        }
    }

    /// Reports all waiting entries as failed, because nothing is removed.
    pub(super) fn refuse_waiting(&mut self, session: &mut Session) {
        for Waiting { id, path, what } in std::mem::take(&mut self.waiting) {
            let text = format!("cannot store {}: {}", shown(&path), in_way());
            match what {
                What::File(_) => session.report.not_stored(id, text),
                _ => session.report.failed(id, text),
            }
        }
    }

    /// Removes an entry that is in the way of a folder, at once, just as a file is replaced by
    /// another. Returns false if it must stay.
    pub(super) fn clear_for_folder(&mut self, path: &[u8], kind: FileType, session: &mut Session) -> io::Result<bool> {
        let protected = session.removal.as_ref().is_none_or(|removal| {
            let top = !path.contains(&b'/');
            !(top || removal.acts_in(split(path).0)) || removal.protects(path, false)
        });
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if protected || is_device && !session.options.devices {
            return Ok(false);
        }
        if !session.options.dry_run {
            self.set_aside(path, true, session)?;
            session.has_named = true;
            let (folder, _) = session.tree.parent(path)?;
            let removed = rustix::fs::unlinkat(&folder, OsStr::from_bytes(split(path).1), AtFlags::empty());
            // A backup has taken it away.
            removed.or_else(|e| if e == Errno::NOENT { Ok(()) } else { Err(e) })?;
        }
        Ok(true)
    }
}

/// The error for a folder that is in the way.
pub(super) fn in_way() -> io::Error {
    io::Error::other("a folder of that name is in the way")
}

impl super::removal::Removal {
    /// Whether the folder is one of the copied folders.
    fn acts_in(&self, folder: &[u8]) -> bool {
        self.has_come(xxh3_64(folder))
    }
}
