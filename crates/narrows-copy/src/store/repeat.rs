//! References of files to content of earlier files of this copy.

use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::{Answer, Entry, EntryKind, REPEATED_MAX, Record};
use narrows::{Error, Result};
use rustix::fs::{OFlags, Stat};

use super::batch::WholeFile;
use super::content::{Content, OpenFile};
use super::names::Names;
use super::session::Session;
use crate::earlier::{Earlier, Opened, REPEAT_MIN};

/// Bytes of references after which they are confirmed, so that a waiting sender can continue soon
/// with most of its window.
const TOLD_LEN: u64 = 16 << 20;

/// The files to which later files may refer.
#[derive(Default)]
pub(super) struct Repeatable {
    /// Their paths, and their states when they were complete.
    files: Earlier<State>,
    opened: Opened,
    /// Bytes of references that are not confirmed yet.
    untold: u64,
    /// Bytes of references in this piece of the stream.
    in_write: u64,
    /// Nobody waits for answers about references.
    unasked: bool,
    /// Numbers of the files that are wanted again.
    again: Vec<u64>,
}

/// Device and inode, length and time.
type State = (u64, u64, i64, i64, u64);

#[allow(clippy::unnecessary_cast, reason = "the types of these fields differ between systems")]
fn state(s: &Stat) -> State {
    (s.st_dev as u64, s.st_ino as u64, s.st_size as i64, s.st_mtime as i64, s.st_mtime_nsec as u64)
}

/// Files of a pack that are remembered. Their paths and states take some 200 MB; whatever is repeated of
/// older ones is read from the pack itself.
const PACKED_FILES_MAX: usize = 1 << 20;
/// Most bytes of their paths.
const PACKED_PATHS_MAX: usize = 128 << 20;

impl Repeatable {
    /// For a pack, which was written before anybody could be asked.
    pub(super) fn of_pack() -> Self {
        Self { files: Earlier::within(PACKED_FILES_MAX, PACKED_PATHS_MAX), unasked: true, ..Self::default() }
    }

    /// Numbers of the files that are wanted again, in the order in which they came.
    pub(super) fn again(&self) -> &[u64] {
        &self.again
    }

    /// Remembers a file that is complete and did not change while it was read, even if it has no
    /// name yet. Senders remember the same files.
    pub(super) fn came(&mut self, open: &OpenFile) {
        let EntryKind::File { len, .. } = open.entry.kind else { return };
        if len >= REPEAT_MIN as u64
            && open.entry.mode & 0o400 != 0
            && let Ok(s) = rustix::fs::fstat(&open.partial.file)
        {
            self.files.push(open.id, open.entry.path.clone(), state(&s));
        }
    }

    /// Begins a piece of the stream.
    pub(super) fn begin_write(&mut self) {
        self.in_write = 0;
    }

    /// Checks that a pack may have a record: the length of all its files is known (format.md section 17.1).
    pub(super) fn allows(&self, record: &Record<'_>) -> Result<()> {
        if self.unasked && matches!(record, Record::Entry(Entry { kind: EntryKind::Stream, .. })) {
            return Err(Error::corrupt("a pack has a file of unknown length"));
        }
        Ok(())
    }

    /// Checks the references in one piece of the stream. Answers are sent between two pieces, so
    /// one piece cannot have more references than may be unconfirmed.
    pub(super) fn check(&self) -> Result<()> {
        if self.in_write > REPEATED_MAX && !self.unasked {
            Err(Error::limit("too many bytes of references without an answer"))
        } else {
            Ok(())
        }
    }
}

impl Content {
    /// Adds referenced content to the current file, or requests the file again if that content is
    /// gone.
    pub(super) fn repeat(&mut self, id: u64, offset: u64, len: u64, session: &mut Session, names: &Names) {
        self.repeatable.in_write += len;
        self.repeatable.untold += len;
        if self.repeatable.untold >= TOLD_LEN {
            session.report.answers.put(&Answer::Repeated { len: std::mem::take(&mut self.repeatable.untold) });
        }
        let Some(mut open) = self.open.take() else { return };
        let repeated = if open.id == id || !matches!(open.entry.kind, EntryKind::File { .. }) {
            open.repeat(None, offset, len)
        } else if let Some(WholeFile { partial, .. }) = names.batch.find(id) {
            open.repeat(Some(&partial.file), offset, len)
        } else {
            open.repeats_others = true;
            self.stored(id, session).and_then(|file| open.repeat(Some(file), offset, len))
        };
        match repeated {
            Ok(()) => {
                session.report.stored.bytes_repeated += len;
                self.open = Some(open);
            }
            Err(_) => {
                // The content so far is kept, as after an interrupted copy.
                open.keep_partial();
                self.want_again(open, Some(id), session);
            }
        }
    }

    /// Requests the current file again, because file `of` is gone; its further content is ignored.
    pub(super) fn want_again(&mut self, open: OpenFile, of: Option<u64>, session: &mut Session) {
        session.report.answers.put(&Answer::Again { id: open.id, of: of.unwrap_or(open.id) });
        if self.repeatable.unasked {
            self.repeatable.again.push(open.id);
        }
        // There was room for it before; the room is given back when the file arrives.
        let _ = session.room.take_pending(&open.entry);
        self.pending.insert(open.id, open.entry);
    }

    /// Opens a file that has its final name, if it is unchanged.
    fn stored(&mut self, id: u64, session: &mut Session) -> io::Result<&OwnedFd> {
        let Repeatable { files, opened, .. } = &mut self.repeatable;
        let (path, known) = files.get(id).ok_or_else(|| io::Error::other("it is no longer known"))?;
        let file = opened.get(id, || session.tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK))?;
        // Another program may have changed it, or replaced it with a file that not everybody may
        // read.
        if state(&rustix::fs::fstat(file)?) != *known {
            return Err(io::Error::other("it was changed or replaced"));
        }
        Ok(file)
    }
}
