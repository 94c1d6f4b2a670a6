//! Storing folders: creating them, or reusing existing ones.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use narrows::entry::Entry;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::habits::{item, name_of};
use super::names::Names;
use super::partial;
use super::session::Session;
use crate::delta::DELTA_MIN;
use crate::listing::each_name;
use crate::meta;
use crate::partial_name::is_partial;
use crate::{e_text, shown};

/// Maximum number of file systems below the target that are flushed; on further ones, flushing
/// names is left to the system.
const MOUNTS_MAX: usize = 16;

/// Folders that were stored.
#[derive(Default)]
pub(super) struct Folders {
    /// Those whose times and modes are set after everything was written into them.
    entries: Vec<(u64, Entry)>,
    /// One folder of each other file system below the root.
    pub(super) mounted: Vec<OwnedFd>,
}

impl Folders {
    /// Stores a folder.
    pub(super) fn make_folder(
        &mut self,
        id: u64,
        mut entry: Entry,
        session: &mut Session,
        names: &mut Names,
    ) -> io::Result<()> {
        let is_mount = meta::take_mount(&mut entry);
        let there = names.folder(&entry.path, session)?;
        session.has_named |= there.is_none();
        match &there {
            None => {
                let name = shown(&entry.path) + "/";
                session.made('c', 'd', name.clone(), name);
            }
            Some(stat) if session.itemizes() => session.item_of_folder(&entry, stat),
            Some(_) => {}
        }
        if let Some(stat) = &there
            && !session.options.dry_run
        {
            self.reuse_folder(&entry.path, stat, session)?;
        }
        if let Some(removal) = &mut session.removal {
            // What is in it did not come, and is none of the copy's business.
            removal.covers(id, &entry.path, there.as_ref().filter(|_| !is_mount));
        }
        // The folder that a pack of contents is unpacked into is the user's.
        let is_left = session.keeps_existing && entry.path.is_empty() && there.is_some();
        if !session.options.dry_run && !is_left {
            self.entries.push((id, entry));
        }
        Ok(())
    }

    /// Prepares an existing folder, which may be inaccessible to its owner and contain temporary
    /// files of killed copies.
    fn reuse_folder(&mut self, path: &[u8], stat: &Stat, session: &mut Session) -> io::Result<()> {
        let folder = session.tree.open_own(path, stat)?;
        self.note_mount(&folder, stat, session);
        let mut left = Vec::new();
        let listed = each_name(&folder, |name| {
            if is_partial(name.as_bytes()) {
                left.push(name.to_owned());
            }
            ControlFlow::Continue(())
        });
        left.iter().for_each(|name| stale(&folder, name));
        listed?;
        session.home.sweep(&folder);
        Ok(())
    }

    fn note_mount(&mut self, folder: &OwnedFd, stat: &Stat, session: &Session) {
        let own = rustix::fs::fstat(session.tree.root()).map(|s| s.st_dev);
        let known = self.mounted.iter().any(|m| rustix::fs::fstat(m).is_ok_and(|s| s.st_dev == stat.st_dev));
        if own != Ok(stat.st_dev) && !known && self.mounted.len() < MOUNTS_MAX {
            self.mounted.extend(folder.try_clone());
        }
    }

    /// Sets the times and modes of all folders.
    pub(super) fn complete(&mut self, session: &mut Session) {
        // Innermost first, since the mode of a folder may deny access to what is in it.
        while let Some((id, entry)) = self.entries.pop() {
            let opened = if entry.path.is_empty() {
                session.tree.root().try_clone()
            } else {
                session.tree.open_below(&entry.path, OFlags::RDONLY | OFlags::DIRECTORY)
            };
            match opened {
                Ok(folder) => meta::apply(folder.as_fd(), &entry, session.ownership, &mut session.losses),
                Err(e) => {
                    session.report.failed(id, format!("cannot complete {}: {}", shown(&entry.path), e_text(&e)));
                }
            }
        }
    }
}

impl Names {
    /// Creates a folder; returns the `stat` of one that exists.
    fn folder(&mut self, path: &[u8], session: &mut Session) -> io::Result<Option<Stat>> {
        if path.is_empty() {
            return Ok(Some(rustix::fs::fstat(session.tree.root())?));
        }
        let (parent, name) = match session.tree.parent(path) {
            // A dry run: the parent would be created first.
            Err(e) if session.would_be_made(&e) => return Ok(None),
            result => result?,
        };
        if !session.options.dry_run {
            // Private until it gets its own mode, and writable for this program.
            match rustix::fs::mkdirat(&parent, &name, Mode::RWXU) {
                Ok(()) => return Ok(None),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let stat = match rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if session.options.dry_run => return Ok(None),
            result => result?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(Some(stat)),
            kind if self.clear_for_folder(path, kind, session)? => {
                if !session.options.dry_run {
                    rustix::fs::mkdirat(&parent, &name, Mode::RWXU)?;
                }
                Ok(None)
            }
            FileType::Symlink => {
                Err(io::Error::other("a symbolic link is in the way; remove it, or copy to where it leads"))
            }
            _ => Err(io::Error::other("a file of that name is in the way")),
        }
    }
}

impl Session {
    /// Reports what changes about a folder.
    fn item_of_folder(&mut self, entry: &Entry, stat: &Stat) {
        let (parent, name) = match self.tree.parent(&entry.path) {
            Ok(found) => found,
            Err(_) => (std::sync::Arc::clone(self.tree.root_shared()), ".".into()),
        };
        let flags = self.flags(stat, entry, &parent, &name, false);
        if flags.contains(|c| c != '.') {
            self.tell_item(&item('.', 'd', &flags), &name_of(entry));
        }
    }
}

/// Removes a temporary file of an interrupted copy. Long ones are kept until their file
/// arrives, and are used then.
fn stale(folder: &OwnedFd, name: &OsStr) {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    if !partial::is_first(name) || stat.is_ok_and(|s| (s.st_size as u64) < DELTA_MIN) {
        partial::remove_stale(folder, name);
    }
}
