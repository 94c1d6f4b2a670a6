//! What is no file and no folder: links, fifos, devices. Each is made under a temporary name and renamed, so that what was
//! there is replaced at once.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use narrows::entry::{Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Mode};

use super::{Target, partial};
use crate::copy::meta;

impl Target {
    /// A link, fifo or device: made under another name and renamed, so that what was there is replaced at once.
    pub(super) fn make_special(&mut self, entry: &Entry, wanted: bool) -> io::Result<()> {
        if !wanted {
            return Err(io::Error::other("it is a fifo or device; --devices copies them"));
        }
        if self.options.dry_run {
            return Ok(());
        }
        let (folder, name) = self.tree.parent(&entry.path)?;
        if let EntryKind::Symlink { target } = &entry.kind
            && rustix::fs::readlinkat(&folder, &name, Vec::new()).is_ok_and(|there| there.to_bytes() == target)
        {
            meta::apply_by_name(&folder, &name, entry, self.ownership, &mut self.losses);
            return Ok(());
        }
        let there = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
        let there = there.map(|s| FileType::from_raw_mode(s.st_mode));
        if matches!(there, Ok(FileType::CharacterDevice | FileType::BlockDevice)) && !self.options.devices {
            return Err(io::Error::other("a device of that name is in the way; --devices replaces it"));
        }
        let partial = partial::name(&name, partial::TRIES);
        let _ = rustix::fs::unlinkat(&folder, &partial, AtFlags::empty());
        let mode = Mode::RUSR | Mode::WUSR;
        match &entry.kind {
            EntryKind::Symlink { target } => rustix::fs::symlinkat(OsStr::from_bytes(target), &folder, &partial)?,
            EntryKind::Fifo => rustix::fs::mknodat(&folder, &partial, FileType::Fifo, mode, 0)?,
            EntryKind::CharDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                rustix::fs::mknodat(&folder, &partial, FileType::CharacterDevice, mode, device)?;
            }
            EntryKind::BlockDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                rustix::fs::mknodat(&folder, &partial, FileType::BlockDevice, mode, device)?;
            }
            EntryKind::File { .. } | EntryKind::Stream | EntryKind::Folder | EntryKind::HardLink { .. } => {
                return Ok(());
            }
        }
        meta::apply_by_name(&folder, &partial, entry, self.ownership, &mut self.losses);
        let renamed = partial::rename(&folder, &partial, &name);
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&folder, &partial, AtFlags::empty());
        }
        renamed
    }

    /// Another name for a file that this copy stored, or found the same.
    pub(super) fn link(&mut self, of: u64, path: &[u8]) -> io::Result<()> {
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
        let partial = partial::name(&name, partial::TRIES);
        let _ = rustix::fs::unlinkat(&to, &partial, AtFlags::empty());
        rustix::fs::linkat(&from, &from_name, &to, &partial, AtFlags::empty())?;
        let renamed = partial::rename(&to, &partial, &name);
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&to, &partial, AtFlags::empty());
        }
        renamed
    }
}
