//! The storing end: a sink that receives the entry stream, answers which files it wants, and gives
//! every file its name only when it is complete, verified and, if requested, flushed to the disk.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use narrows::ErrorKind;
use narrows::entry::{Answer, Record, RecordParser};
use narrows::stream::Notes;

use super::error::{Blame, Error, Result};
use super::filter::Filter;
use super::hello::StoreOptions;
use super::meta::{Losses, Ownership};
use super::shown;
use super::tree::Tree;
use narrows_host::shares::Share;
use narrows_host::signals;

mod announced;
mod answers;
mod batch;
mod clock;
mod content;
mod folder;
mod framed;
mod habits;
mod home;
mod in_way;
mod names;
mod observers;
pub(crate) mod partial;
mod permitted;
pub(super) mod plan;
mod removal;
mod repeat;
mod room;
mod session;
mod special;
mod stored;
mod stream;

use announced::Announce;
use answers::Answers;
use content::Content;
use folder::Folders;
use home::Home;
use names::Names;
pub use observers::Observers;
use permitted::Asked;
pub use permitted::Permitted;
use removal::Removal;
use repeat::Repeatable;
use room::Room;
pub use room::shared as shared_memory;
use session::{Report, Session};
pub use stored::Stored;

/// The sink for the engine. A clone of it is kept by the caller of [`EntryStore::finish`].
#[derive(Clone)]
pub struct EntryStore {
    store: Arc<Mutex<Store>>,
    /// Bytes that were read to compare files by their contents. Meanwhile the store is locked.
    compared: Arc<AtomicU64>,
}

struct Store {
    parser: RecordParser,
    target: Target,
}

/// A copy at this end, and what each part of it knows.
struct Target {
    session: Session,
    announce: Announce,
    content: Content,
    names: Names,
    folders: Folders,
}

impl EntryStore {
    /// Stores below `tree`; `rename` is the name of a single file.
    pub fn new(
        tree: Tree,
        rename: Option<Vec<u8>>,
        permitted: Permitted,
        options: StoreOptions,
        notes: Notes,
        observers: Observers,
    ) -> Result<Self> {
        let compared = Arc::new(AtomicU64::new(0));
        let session = Session {
            tree,
            ownership: Ownership::new(options.owner),
            losses: Losses::default(),
            keeps_existing: false,
            is_of_pack: false,
            removal: options.delete.as_ref().map(|asked| Removal::new(asked, &options)).transpose()?,
            beside: Vec::new(),
            compared: Arc::clone(&compared),
            home: Home::new(options.habits.partial_dir.as_ref()),
            room: Room::alone(),
            has_named: false,
            options,
            report: Report { answers: Answers::new(notes), observers, stored: Stored::default(), told: 0 },
        };
        let announce = Announce::new(permitted, rename);
        let (content, names, folders) = (Content::default(), Names::new(), Folders::default());
        let target = Target { session, announce, content, names, folders };
        let store = Arc::new(Mutex::new(Store { parser: RecordParser::default(), target }));
        Ok(Self { store, compared })
    }

    /// Lets the first entry decide about `target`, where no folder exists: a single file is stored
    /// under its name, anything else in a new folder of that name. The tree is the parent folder of
    /// `target`.
    pub fn undecided(self, target: PathBuf) -> Self {
        self.lock().target.announce.undecided = Some(target);
        self
    }

    /// Stores what a pack has. Nobody hears the answers: files whose repeats are not there any more are in
    /// [`EntryStore::wanted_again`]. `replaces`: entries that are there are replaced.
    pub fn of_pack(self, replaces: bool) -> Self {
        let mut store = self.lock();
        store.target.content.repeatable = Repeatable::of_pack();
        store.target.session.keeps_existing = !replaces;
        store.target.session.is_of_pack = true;
        store.parser = RecordParser::of_pack();
        drop(store);
        self
    }

    /// The sender was asked for what these patterns do not leave out. `follow`: and to follow symbolic links.
    pub fn asked(self, filter: Filter, follow: bool) -> Self {
        let mut store = self.lock();
        store.target.announce.asked = Some(Asked::new(filter, follow, store.target.session.options.dry_run));
        drop(store);
        self
    }

    /// Whether the content of this entry is to come.
    pub fn wants(&self, id: u64) -> bool {
        self.lock().target.content.pending.contains_key(&id)
    }

    /// Numbers and paths of the files that are wanted once more, without repeats of others.
    pub fn wanted_again(&self) -> Vec<(u64, Vec<u8>)> {
        let store = self.lock();
        let Content { repeatable, pending, .. } = &store.target.content;
        repeatable.again().iter().filter_map(|id| Some((*id, pending.get(id)?.path.clone()))).collect()
    }

    /// Folders on this host, by device and inode, that the copy must never remove.
    pub fn protect(&self, folders: Vec<(u64, u64)>) {
        self.lock().target.session.removal.iter_mut().for_each(|removal| removal.protected.extend(&folders));
    }

    /// Files that are the same in one of these earlier copies become hard links to them.
    pub fn beside(self, earlier: Vec<Tree>) -> Self {
        self.lock().target.session.beside = habits::beside(earlier);
        self
    }

    /// Files live in this folder until they are whole, wherever their targets are.
    ///
    /// # Errors
    /// Others can change what is in it.
    pub fn partials(self, folder: Option<Tree>) -> Result<Self> {
        if let Some(folder) = folder {
            self.lock().target.session.home = Home::apart(Arc::clone(folder.root_shared())).blame(Error::Local)?;
        }
        Ok(self)
    }

    /// Uses a share of memory that other copies use too.
    pub fn sharing(self, memory: Share) -> Self {
        self.lock().target.session.room = Room::of(memory);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the copy after all data was received: flushes the rest to the disk, creates hard links,
    /// and sets the metadata of folders.
    ///
    /// # Errors
    /// The entry stream is incomplete, or removing entries was interrupted.
    pub fn finish(&self) -> io::Result<()> {
        let store = &mut *self.lock();
        if !store.parser.is_finished() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the copy ended early"));
        }
        let finished = store.target.finish();
        let Session { losses, report, .. } = &mut store.target.session;
        if let Some(text) = losses.words() {
            report.answers.put(&Answer::Lost { text });
        }
        report.answers.send();
        finished
    }

    /// Ends the copy early: stores complete files, and keeps the incomplete file for the next run.
    pub fn abandon(&self) {
        let Target { session, content, names, .. } = &mut self.lock().target;
        names.store_batch(session);
        if let Some(mut open) = content.open.take() {
            open.keep_partial();
        }
    }

    /// Ends it for another store to go on: complete files get their names, and the incomplete one is given up.
    pub fn leave(&self) {
        let Target { session, content, names, .. } = &mut self.lock().target;
        names.store_batch(session);
        content.open = None;
    }

    /// Ends a copy that breaks off: a file that is open is given up, and everything else is completed as
    /// by [`EntryStore::finish`].
    ///
    /// # Errors
    /// Those of [`EntryStore::finish`], except for the missing end.
    pub fn finish_early(&self) -> io::Result<()> {
        let target = &mut self.lock().target;
        target.content.open = None;
        target.session.removal = None;
        target.finish()
    }

    /// The current progress.
    pub fn stored(&self) -> Stored {
        Stored { bytes_compared: self.compared(), ..self.lock().target.progress() }
    }

    /// The current progress, unless a file is being compared or flushed just now.
    pub fn stored_now(&self) -> Option<Stored> {
        let store = match self.store.try_lock() {
            Ok(store) => store,
            Err(TryLockError::Poisoned(store)) => store.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Stored { bytes_compared: self.compared(), ..store.target.progress() })
    }

    /// Bytes that were read to compare files by their contents.
    pub fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }
}

impl Write for EntryStore {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Store { parser, target } = &mut *self.lock();
        target.content.repeatable.begin_write();
        parser
            .push(bytes, |record| {
                // A block of a pack may be a hundred thousand entries.
                if target.session.is_of_pack && signals::received().is_some() {
                    return Err(narrows::Error::new(ErrorKind::Io, "interrupted"));
                }
                target.content.repeatable.allows(&record)?;
                target.was_asked_for(&record)?;
                target.take(record);
                target.content.repeatable.check()
            })
            .map_err(|e| match e.kind {
                ErrorKind::Io => io::Error::other(e.to_string()),
                _ => io::Error::new(io::ErrorKind::InvalidData, e.to_string()),
            })?;
        Ok(bytes.len())
    }

    /// All received data was processed: sends the answers at once.
    fn flush(&mut self) -> io::Result<()> {
        self.lock().target.session.report.answers.send();
        Ok(())
    }
}

impl Target {
    fn progress(&self) -> Stored {
        let in_hand = self.content.open.as_ref().map_or(0, |open| open.at);
        let stored = &self.session.report.stored;
        let bytes_done = stored.bytes + self.names.batch.bytes() + in_hand;
        Stored { losses: self.session.losses.words(), bytes_done, ..stored.clone() }
    }

    /// Checks that a record is one of those that this end asked for.
    fn was_asked_for(&mut self, record: &Record<'_>) -> narrows::Result<()> {
        match &mut self.announce.asked {
            Some(asked) => asked.check(&self.announce.permitted, record),
            None if matches!(record, Record::Refused { .. }) => {
                Err(narrows::Error::corrupt("a sender refuses by a number, which it was not asked for"))
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, record: Record<'_>) {
        let Self { session, announce, content, names, .. } = self;
        match record {
            Record::Entry(entry) => {
                let id = announce.entries;
                announce.entries += 1;
                self.announced(id, entry);
            }
            Record::Begin { id } => content.begin(id, session, names),
            Record::Data(bytes) => {
                if let Some(open) = &mut content.open {
                    open.write(bytes);
                }
            }
            Record::Hole(len) => {
                if let Some(open) = &mut content.open {
                    open.hole(len);
                }
            }
            Record::Have { len } => {
                if let Some(open) = &mut content.open {
                    open.take_here_framed(len);
                }
            }
            Record::Ask { id, from } => content.asked(id, from, session),
            Record::Repeat { id, offset, len } => content.repeat(id, offset, len.into(), session, names),
            Record::Chunks { id, chunks } => {
                let runs = content.plan(id, session).map(|(plan, len)| plan.chunks(&chunks, len));
                // Content of a file that failed meanwhile is ignored, so it is answered as needed.
                session
                    .report
                    .answers
                    .put(&Answer::Chunks { id, runs: runs.unwrap_or_else(|| vec![0, chunks.len() as u32]) });
            }
            Record::Pieces { id, regions, hashes } => {
                let runs = content.plan(id, session).map(|(plan, _)| plan.pieces(&regions, &hashes));
                session
                    .report
                    .answers
                    .put(&Answer::Chunks { id, runs: runs.unwrap_or_else(|| vec![0, hashes.len() as u32]) });
            }
            Record::End { state, digest } => content.end(state, &digest, session, names),
            Record::Failed { text } => {
                session.report.stored.failed += 1;
                session.report.told += 1;
                // The text is from the peer and may contain anything.
                (session.report.observers.on_failure)(&shown(text.as_bytes()));
            }
            Record::Refused { code, text } => session.report.stored.refused = Some((code, shown(text.as_bytes()))),
            Record::Total { files, bytes } => session.report.stored.total = Some((files, bytes)),
            Record::Finish { .. } => {}
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        let Self { session, content, names, folders, .. } = self;
        let missing = content.pending.len() + content.given_up.len();
        session.report.stored.announced = names.announced;
        session.report.stored.unsaid = (missing as u64).saturating_sub(session.report.told);
        let is_all_here = content.pending.is_empty();
        if session.options.dry_run {
            return names.remove_others(is_all_here, session);
        }
        names.store_batch(session);
        names.link_all(session);
        if session.removal.is_some() {
            // A crash must not leave a renamed file missing under both its old and its new name.
            folders.sync_names(session);
        }
        let removed = names.remove_others(is_all_here, session);
        folders.complete(session);
        folders.sync_names(session);
        removed
    }
}
