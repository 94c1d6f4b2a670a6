//! What of earlier files of this copy later ones repeat.

use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::{Answer, EntryKind, REPEATED_MAX};
use narrows::{Error, Result};
use rustix::fs::{OFlags, Stat};

use super::answers::Answers;
use super::content::OpenFile;
use super::{Target, WholeFile};
use crate::earlier::{Earlier, Opened, REPEAT_MIN};

/// What was taken is told so often at least: a sender that has to wait gets most of its room back at once.
const TOLD_LEN: u64 = 16 << 20;

#[derive(Default)]
pub(super) struct Repeatable {
    /// Where they are, and what they were like when they had come.
    files: Earlier<State>,
    opened: Opened,
    /// Bytes that were taken and not told, and those of this piece of the stream.
    untold: u64,
    in_write: u64,
}

/// Device and inode, length and time.
type State = (u64, u64, i64, i64, u64);

#[allow(clippy::unnecessary_cast, reason = "the types of these fields differ between systems")]
fn state(s: &Stat) -> State {
    (s.st_dev as u64, s.st_ino as u64, s.st_size as i64, s.st_mtime as i64, s.st_mtime_nsec as u64)
}

impl Repeatable {
    /// A file came whole, and did not change while it was read; it need not have its name yet. Senders remember the same.
    pub(super) fn came(&mut self, open: &OpenFile) {
        let EntryKind::File { len, .. } = open.entry.kind else { return };
        if len >= REPEAT_MIN as u64
            && open.entry.mode & 0o400 != 0
            && let Ok(s) = rustix::fs::fstat(&open.partial.file)
        {
            self.files.push(open.id, open.entry.path.clone(), state(&s));
        }
    }

    pub(super) fn begin_write(&mut self) {
        self.in_write = 0;
    }

    /// Answers leave between two pieces of the stream, so one piece cannot have more than may be unanswered.
    pub(super) fn check(&self) -> Result<()> {
        if self.in_write > REPEATED_MAX { Err(Error::limit("too much is repeated at once")) } else { Ok(()) }
    }
}

impl Target {
    /// The file in hand goes on with what is there.
    pub(super) fn repeat(&mut self, id: u64, offset: u64, len: u64, answers: &mut Answers) {
        self.repeatable.in_write += len;
        self.repeatable.untold += len;
        if self.repeatable.untold >= TOLD_LEN {
            answers.put(&Answer::Repeated { len: std::mem::take(&mut self.repeatable.untold) });
        }
        let Some(mut open) = self.open.take() else { return };
        let repeated = if open.id == id || !matches!(open.entry.kind, EntryKind::File { .. }) {
            open.repeat(None, offset, len)
        } else if let Some(WholeFile { partial, .. }) = self.batch.iter().find(|whole| whole.id == id) {
            open.repeat(Some(&partial.file), offset, len)
        } else {
            open.repeats_others = true;
            self.stored(id).and_then(|file| open.repeat(Some(file), offset, len))
        };
        match repeated {
            Ok(()) => self.open = Some(open),
            Err(_) => {
                // What has come is worth as much as of a copy that is cut off.
                open.keep_partial();
                self.want_again(open, Some(id), answers);
            }
        }
    }

    /// The file in hand has to come again; what comes of it until then is passed over.
    pub(super) fn want_again(&mut self, open: OpenFile, of: Option<u64>, answers: &mut Answers) {
        answers.put(&Answer::Again { id: open.id, of: of.unwrap_or(open.id) });
        // It had room before; what it takes now is given back when it has come.
        let _ = self.room.take_pending(&open.entry);
        self.pending.insert(open.id, open.entry);
    }

    /// A file that has its name.
    fn stored(&mut self, id: u64) -> io::Result<&OwnedFd> {
        let Repeatable { files, opened, .. } = &mut self.repeatable;
        let (path, known) = files.get(id).ok_or_else(|| io::Error::other("it is not known any more"))?;
        let file = opened.get(id, || self.tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK))?;
        // Another program may have changed it, or put another file there that not everybody may read.
        if state(&rustix::fs::fstat(file)?) != *known {
            return Err(io::Error::other("another file has its place"));
        }
        Ok(file)
    }
}
