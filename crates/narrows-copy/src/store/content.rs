//! Receiving the content of files, one after the other.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use narrows::entry::{Answer, DIGEST_LEN, EndState, Entry, EntryKind};
use narrows_host::means::share_of_descriptors;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::batch::WholeFile;
use super::framed::{Framed, Here, RESUMED_MIN, stored_len};
use super::habits::beside_files;
use super::names::Names;
use super::partial::{PRIVATE, Partial};
use super::plan::DeltaPlan;
use super::repeat::Repeatable;
use super::session::Session;
use super::stream;
use crate::delta::{DELTA_MIN, Piece, read_at};
use crate::frames::{Decoder, Form};
use crate::hello::Fsync;
use crate::tree::split;
use crate::{e_text, hash, meta, shown};

/// Length of the pieces in which content of an earlier version is copied, in bytes.
const COPY_LEN: usize = 1 << 20;
/// Length of the pieces in which written data is sent to the disk while more arrives, in bytes.
/// This keeps the disk busy and leaves little for the end.
const WRITEBACK_LEN: u64 = 8 << 20;
/// Maximum number of files whose chunks arrived before their content; each has two descriptors and
/// an index. Our senders announce 16.
const DELTAS_MAX: usize = 64;
/// The same as a divisor of the descriptors of this process, for a low limit.
const DELTAS_SHARE: usize = 16;

/// How much older than announced a file is stored that changed while it was read, in seconds: more than any
/// file system rounds times. Older, so that `--update` does not keep it.
const CHANGED_BEFORE_S: i64 = 3;

/// Shortest block of zeros that becomes a hole, in bytes: shorter ones save no block of a file system.
const HOLE_MIN: usize = 64 << 10;

/// A file whose content is being received.
pub(super) struct OpenFile {
    pub(super) id: u64,
    pub(super) entry: Entry,
    pub(super) partial: Partial,
    pub(super) plan: Option<DeltaPlan>,
    /// Some of its content was a reference to another file.
    pub(super) repeats_others: bool,
    /// The content is complete but differs from what the sender read.
    pub(super) is_other: bool,
    /// Its content comes as frames.
    pub(super) framed: Option<Framed>,
    /// What is here of it, if its content comes as frames.
    pub(super) here: Option<Here>,
    /// Some of its raw bytes were here.
    pub(super) has_copied: bool,
    /// Its first bytes, of frames that are stored as they came, until there are more or it ends.
    pub(super) held: Vec<u8>,
    hash: blake3::Hasher,
    pub(super) at: u64,
    /// End of the written data, which is less than `at` after a hole.
    written: u64,
    /// Offset up to which data was sent to the disk; `None` if that is left to the system.
    synced: Option<u64>,
    /// The first failure; further content of the file is ignored.
    failed: Option<io::Error>,
}

impl OpenFile {
    /// Begins a file; `sync` if it will be flushed to the disk.
    pub(super) fn new(id: u64, entry: Entry, partial: Partial, plan: Option<DeltaPlan>, sync: bool) -> Self {
        let (hash, synced) = (blake3::Hasher::new(), sync.then_some(0));
        Self {
            id,
            entry,
            partial,
            plan,
            repeats_others: false,
            is_other: false,
            framed: None,
            here: None,
            has_copied: false,
            held: Vec::new(),
            hash,
            at: 0,
            written: 0,
            synced,
            failed: None,
        }
    }

    /// Adds received content.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        if self.framed.is_some() {
            if self.failed.is_none() {
                self.failed = self.write_framed(bytes).err();
            }
            return;
        }
        while !bytes.is_empty() && self.failed.is_none() {
            let len = match self.next_need() {
                Ok(need) => need.min(bytes.len() as u64) as usize,
                Err(e) => return self.failed = Some(e),
            };
            let (now, rest) = bytes.split_at(len);
            self.plan.iter_mut().for_each(|plan| plan.came(len as u64));
            if let Err(e) = self.append(now) {
                self.failed = Some(e);
            }
            bytes = rest;
        }
    }

    /// Adds raw bytes that are here, of content that comes as frames.
    pub(super) fn take_here_framed(&mut self, len: u64) {
        if self.failed.is_none() {
            self.failed = self.have(len).err();
        }
    }

    /// Adds a hole.
    pub(super) fn hole(&mut self, mut len: u64) {
        if self.framed.is_some() {
            self.failed.get_or_insert_with(|| io::Error::other("frames have no holes"));
            return;
        }
        // Holes of a planned file come only where the plan has no room for them.
        while len > 0 && self.failed.is_none() {
            match self.next_need() {
                Ok(need) => {
                    let now = need.min(len);
                    self.plan.iter_mut().for_each(|plan| plan.came(now));
                    self.at = self.at.saturating_add(now);
                    len -= now;
                }
                Err(e) => self.failed = Some(e),
            }
        }
    }

    /// Adds content of another file, or of this one if `from` is `None`.
    ///
    /// # Errors
    /// The other file does not have that content.
    pub(super) fn repeat(&mut self, from: Option<&OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
        if self.framed.is_some() {
            self.failed.get_or_insert_with(|| io::Error::other("frames repeat nothing"));
            return Ok(());
        }
        let is_file = matches!(self.entry.kind, EntryKind::File { .. });
        self.repeats_others |= from.is_some() && is_file;
        if self.failed.is_none() {
            match self.repeated(from, offset, len) {
                Ok(bytes) => self.failed = self.append(&bytes).err(),
                Err(e) if from.is_some() && is_file => return Err(e),
                Err(e) => self.failed = Some(e),
            }
        }
        Ok(())
    }

    fn repeated(&self, from: Option<&OwnedFd>, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let whole = if let EntryKind::File { len, .. } = self.entry.kind { len } else { 0 };
        if self.plan.is_some() || self.at.saturating_add(len) > whole {
            return Err(io::Error::other("more data arrived than was requested"));
        }
        if from.is_none() && offset.saturating_add(len) > self.at {
            return Err(io::Error::other("it refers to content that has not arrived"));
        }
        let mut bytes = vec![0; len as usize];
        let read = read_at(from.unwrap_or(&self.partial.file), &mut bytes, offset)?;
        if read < bytes.len() {
            return Err(io::Error::other("it refers to content beyond the end of the file"));
        }
        Ok(bytes)
    }

    /// Completes the file: adds the rest from earlier versions, and verifies it against the hash of
    /// the sender.
    pub(super) fn complete(&mut self, digest: &[u8; DIGEST_LEN]) -> io::Result<()> {
        if self.failed.is_none() {
            self.failed = self.take_here().and_then(|()| self.write_held()).err();
        }
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let len = match self.entry.kind {
            EntryKind::File { len, .. } if self.framed.is_none() => len,
            _ => self.at,
        };
        if self.framed.is_some() {
            self.complete_framed()?;
        } else if self.at != len {
            return Err(io::Error::other("its length differs from the announced one"));
        } else if self.hash.finalize().as_bytes() != digest {
            self.is_other = true;
            return Err(io::Error::other("its content is not what was read; copy it again"));
        }
        if self.entry.kind == EntryKind::Stream {
            stream::stamp(&mut self.entry);
        }
        if self.written < len {
            // The file ends in a hole.
            rustix::fs::ftruncate(&self.partial.file, len)?;
        }
        Ok(())
    }

    /// Keeps the incomplete file for the next run if it is long enough and can be compared then.
    pub(super) fn keep_partial(&mut self) {
        let resumable = matches!(self.entry.kind, EntryKind::File { .. });
        let as_it_came = matches!(self.framed, Some(Framed::AsItCame(_)));
        let least = if as_it_came { RESUMED_MIN } else { DELTA_MIN };
        if resumable && self.failed.is_none() && self.at >= least && !self.is_stored() {
            let name = OsStr::from_bytes(split(&self.entry.path).1);
            let here = self.here.iter().flat_map(Here::files);
            self.partial.keep(name, self.plan.iter().flat_map(DeltaPlan::files).chain(here));
        }
    }

    /// Whether another copy stored the file meanwhile.
    fn is_stored(&self) -> bool {
        let name = split(&self.entry.path).1;
        let there = rustix::fs::statat(self.partial.to(), name, AtFlags::SYMLINK_NOFOLLOW);
        let len = if let EntryKind::File { len, .. } = self.entry.kind { len } else { 0 };
        there.is_ok_and(|s| {
            let same_len = match self.framed {
                Some(Framed::AsItCame(_)) => stored_len(self.partial.to(), OsStr::from_bytes(name)) == Some(len),
                _ => s.st_size as u64 == len,
            };
            same_len && meta::same_time(&s, &self.entry)
        })
    }

    /// How many received bytes belong at this position, after adding the present content before it.
    fn next_need(&mut self) -> io::Result<u64> {
        self.take_here()?;
        match &self.plan {
            None => Ok(u64::MAX),
            Some(plan) => plan.needed().ok_or_else(|| io::Error::other("more data arrived than was requested")),
        }
    }

    fn take_here(&mut self) -> io::Result<()> {
        let Some(mut plan) = self.plan.take() else { return Ok(()) };
        let mut result = Ok(());
        let mut buffer = Vec::new();
        while result.is_ok()
            && let Some(piece) = plan.take_here()
        {
            match piece {
                Piece::Have { file, offset, len } => result = self.copy(plan.file(file), offset, len, &mut buffer),
                Piece::Hole { len } | Piece::Need { len } => self.at = self.at.saturating_add(len),
            }
        }
        self.plan = Some(plan);
        result
    }

    fn copy(&mut self, from: &OwnedFd, mut offset: u64, mut len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        while len > 0 {
            let want = len.min(COPY_LEN as u64) as usize;
            // The buffer only grows, since most copied ranges between two changes are short.
            buffer.resize(buffer.len().max(want), 0);
            match rustix::io::pread(from, &mut buffer[..want], offset) {
                Ok(0) => return Err(io::Error::other("the earlier version changed meanwhile; copy it again")),
                Ok(n) => {
                    self.append(&buffer[..n])?;
                    offset += n as u64;
                    len -= n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        hash::update(&mut self.hash, bytes);
        self.append_plain(bytes)
    }

    /// Adds raw bytes, a whole block of zeros as a hole.
    pub(super) fn append_or_skip(&mut self, raw: &[u8]) -> io::Result<()> {
        if raw.len() >= HOLE_MIN && raw[..16] == [0; 16] && raw.iter().all(|b| *b == 0) {
            self.at += raw.len() as u64;
            return Ok(());
        }
        self.append_plain(raw)
    }

    /// Adds bytes that are compared by other means.
    pub(super) fn append_plain(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::pwrite(&self.partial.file, rest, self.at) {
                Ok(n) => {
                    self.at += n as u64;
                    self.written = self.at;
                    rest = &rest[n..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(synced) = self.synced.filter(|s| self.at.saturating_sub(*s) >= WRITEBACK_LEN) {
            narrows::stream::start_writeback(&self.partial.file, synced, self.at - synced);
            self.synced = Some(self.at);
        }
        Ok(())
    }
}

/// Files whose content is to come or comes.
#[derive(Default)]
pub(super) struct Content {
    /// Wanted files that have not arrived yet, by number.
    pub(super) pending: HashMap<u64, Entry>,
    /// Numbers of the files whose content the sender gave up.
    pub(super) given_up: HashSet<u64>,
    /// Plans of files whose chunks arrived before their content, by number.
    plans: HashMap<u64, DeltaPlan>,
    /// What is here of files whose senders asked, by number.
    pub(super) here: HashMap<u64, Here>,
    /// The decoder of one file after another.
    pub(super) decoder: Option<Box<Decoder>>,
    pub(super) open: Option<OpenFile>,
    /// Whether a nameless file can be given a name later; `None` until it was tried.
    named_later: Option<bool>,
    /// Files to which later files may refer.
    pub(super) repeatable: Repeatable,
}

impl Content {
    /// The plan for a file, and the length of the file.
    pub(super) fn plan(&mut self, id: u64, session: &mut Session) -> Option<(&mut DeltaPlan, u64)> {
        let is_open = self.open.as_ref().is_some_and(|open| open.id == id);
        let entry = if is_open { &self.open.as_ref()?.entry } else { self.pending.get(&id)? };
        let EntryKind::File { len, .. } = entry.kind else { return None };
        if is_open {
            return Some((self.open.as_mut()?.plan.as_mut()?, len));
        }
        let count = self.plans.len();
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.plans.entry(id) {
            if count >= share_of_descriptors(DELTAS_MAX, DELTAS_SHARE) {
                return None;
            }
            let files = earlier_files(session, &entry.path)?;
            let memory = session.room.reserve(DeltaPlan::len_max(&files))?;
            vacant.insert(DeltaPlan::new(files).taking(memory));
        }
        Some((self.plans.get_mut(&id)?, len))
    }

    /// What is there of a file that was announced: the remains of an earlier copy, and an earlier version.
    pub(super) fn earlier_files(&mut self, id: u64, session: &mut Session) -> Option<Vec<OwnedFd>> {
        earlier_files(session, &self.pending.get(&id)?.path)
    }

    /// Begins the content of a file.
    pub(super) fn begin(&mut self, id: u64, session: &mut Session, names: &mut Names) {
        // Content of a file that was not requested is ignored.
        let Some(mut entry) = self.pending.remove(&id) else { return };
        self.given_up.remove(&id);
        session.room.give_back_pending(&entry);
        let (plan, here) = (self.plans.remove(&id), self.here.remove(&id));
        let mut created = self.create(&mut entry, session);
        if created.as_ref().is_err_and(too_many_open) && !names.batch.is_empty() {
            names.store_batch(session);
            created = self.create(&mut entry, session);
        }
        match created {
            Ok(partial) => {
                let mut open = OpenFile::new(id, entry, partial, plan, session.options.fsync != Fsync::None);
                (open.framed, open.here) = (self.framed(session), here);
                self.open = Some(open);
            }
            Err(e) => session.report.not_stored(id, format!("cannot store {}: {}", shown(&entry.path), e_text(&e))),
        }
    }

    fn create(&mut self, entry: &mut Entry, session: &mut Session) -> io::Result<Partial> {
        let (folder, name) = session.tree.parent(&entry.path)?;
        match entry.kind {
            EntryKind::Stream => stream::create(folder, &name, entry),
            // Shorter files are not resumed, so the next copy need not find them by name.
            EntryKind::File { len, .. } if len < DELTA_MIN && self.named_later != Some(false) => {
                match Partial::nameless(&session.home, &folder) {
                    Some(partial) if *self.named_later.get_or_insert_with(|| partial.can_be_named()) => Ok(partial),
                    _ => Partial::create_in(&session.home, folder, &name, PRIVATE),
                }
            }
            _ => Partial::create_in(&session.home, folder, &name, PRIVATE),
        }
    }

    /// Ends the content of the current file, which is stored with its batch.
    pub(super) fn end(&mut self, state: EndState, digest: &[u8; DIGEST_LEN], session: &mut Session, names: &mut Names) {
        let Some(mut open) = self.open.take() else { return };
        if state == EndState::Partial {
            // The sender reports the reason.
            self.given_up.insert(open.id);
            return session.removal.iter_mut().for_each(|r| r.incomplete = true);
        }
        let in_full = open.plan.is_none();
        let completed = open.complete(digest);
        if let Some(Framed::Decoded(decoder)) = open.framed.take() {
            self.decoder = Some(decoder);
        }
        // The remains of an earlier copy are not needed any more, and must not disturb the next
        // one.
        (open.plan, open.here) = (None, None);
        // The content that it refers to may have changed.
        if open.is_other && open.repeats_others {
            return self.want_again(open, None, session);
        }
        if let Err(e) = completed {
            open.partial.remove_earlier(OsStr::from_bytes(split(&open.entry.path).1));
            let text = format!("cannot store {}: {}", shown(&open.entry.path), e_text(&e));
            return session.report.not_stored(open.id, text);
        }
        if state == EndState::Changed {
            session.report.stored.changed += 1;
            (session.report.observers.on_failure)(&format!(
                "the source of {} changed while it was read",
                shown(&open.entry.path)
            ));
            if !session.is_of_pack {
                // The source may have the announced length and time again: the next copy must not take this
                // for the same.
                open.entry.mtime_s = open.entry.mtime_s.saturating_sub(CHANGED_BEFORE_S);
            }
        }
        meta::apply(open.partial.file.as_fd(), &open.entry, session.ownership, &mut session.losses);
        if in_full && state == EndState::Whole && session.options.form == Form::Raw {
            self.repeatable.came(&open);
        }
        if open.repeats_others {
            session.report.answers.put(&Answer::Whole { id: open.id });
        }
        names.batch.push(WholeFile::new(open.id, open.entry, open.partial, open.at));
        if names.batch.is_due() || session.options.fsync != Fsync::Batch {
            names.store_batch(session);
        }
    }
}

fn earlier_files(session: &mut Session, path: &[u8]) -> Option<Vec<OwnedFd>> {
    let (folder, name) = session.tree.parent(path).ok()?;
    let mut files = session.home.held(&folder, &name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let old = rustix::fs::openat(&folder, &name, flags, Mode::empty()).ok();
    files.extend(
        old.filter(|f| rustix::fs::fstat(f).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile)),
    );
    if files.is_empty() {
        files.extend(beside_files(&mut session.beside, path).take(1));
    }
    Some(files)
}

fn too_many_open(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|e| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&e))
}
