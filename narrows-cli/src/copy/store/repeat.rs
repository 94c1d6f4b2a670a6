//! What of earlier files of this copy later ones repeat.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::content::OpenFile;
use super::{Target, WholeFile};
use crate::copy::earlier::{Earlier, REPEAT_MIN};

#[derive(Default)]
pub(super) struct Repeatable {
    /// Where they are, and which inodes.
    files: Earlier<(u64, u64)>,
    /// The one that was read last.
    opened: Option<(u64, OwnedFd)>,
}

impl Repeatable {
    /// A file came whole; it need not have its name yet.
    pub(super) fn came(&mut self, open: &OpenFile) {
        if open.at >= REPEAT_MIN as u64
            && let Ok(s) = rustix::fs::fstat(&open.partial.file)
        {
            self.files.push(open.id, open.entry.path.clone(), (s.st_dev, s.st_ino));
        }
    }
}

impl Target {
    /// The file in hand goes on with what is there.
    pub(super) fn repeat(&mut self, id: u64, offset: u64, len: u64) {
        let Some(mut open) = self.open.take() else { return };
        if open.id == id {
            open.repeat(None, offset, len);
        } else if let Some(WholeFile { partial, .. }) = self.batch.iter().find(|whole| whole.id == id) {
            open.repeat(Some(&partial.file), offset, len);
        } else {
            match self.stored(id) {
                Ok(file) => open.repeat(Some(file), offset, len),
                Err(e) => open.repeat_failed(e),
            }
        }
        self.open = Some(open);
    }

    /// A file that has its name.
    fn stored(&mut self, id: u64) -> io::Result<&OwnedFd> {
        let Repeatable { files, opened } = &mut self.repeatable;
        if opened.as_ref().is_none_or(|(opened, _)| *opened != id) {
            *opened = None;
            let (path, inode) = files.get(id).ok_or_else(|| io::Error::other("it is not known any more"))?;
            let file = self.tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
            // Another program may have put another file there, or what only its owner may read.
            let stat = rustix::fs::fstat(&file)?;
            if (stat.st_dev, stat.st_ino) != *inode {
                return Err(io::Error::other("another file has its place"));
            }
            *opened = Some((id, file));
        }
        opened.as_ref().map(|(_, file)| file).ok_or_else(|| io::Error::other("it is not open; this is a bug"))
    }
}
