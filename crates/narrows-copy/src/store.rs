//! The storing end: a sink that receives the entry stream, answers which files it wants, and gives
//! every file its name only when it is complete, verified and, if requested, flushed to the disk.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use narrows::ErrorKind;
use narrows::entry::{Answer, Entry, Record, RecordParser};
use narrows::stream::Notes;
use rustix::fs::OFlags;

use super::error::{Blame, Error, Result};
use super::filter::Filter;
use super::frames::Decoder;
use super::hello::StoreOptions;
use super::meta::{self, Losses, Ownership};
use super::spelling::Spellings;
use super::tree::Tree;
use super::{e_text, shown};
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
mod observers;
pub(crate) mod partial;
mod permitted;
mod plan;
mod removal;
mod repeat;
mod room;
mod special;
mod stored;
mod stream;

use answers::Answers;
use batch::Batch;
use clock::Clocks;
use content::OpenFile;
use framed::Here;
use habits::Beside;
use home::Home;
use in_way::Waiting;
pub use observers::Observers;
use permitted::Asked;
pub use permitted::Permitted;
pub(super) use plan::DeltaPlan;
use removal::Removal;
use repeat::Repeatable;
use room::Room;
pub use room::shared as shared_memory;
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
    answers: Answers,
}

struct Target {
    tree: Tree,
    permitted: Permitted,
    /// What the sender was asked for, if this end asked.
    asked: Option<Asked>,
    /// The paths of all entries. Except folders, none of them may come twice.
    names: Spellings,
    /// How many of them are no folders.
    announced: u64,
    /// Set if entries that the sources do not have are removed.
    removal: Option<Removal>,
    /// Numbers of the files in whose place there is a folder.
    in_way: HashSet<u64>,
    /// Entries that arrived and wait for such a folder to be removed.
    waiting: Vec<Waiting>,
    /// Earlier copies, whose files become hard links.
    beside: Vec<Beside>,
    /// Hashes of the paths of backups that this copy has made, which it is not to remove.
    backups: HashSet<u64>,
    /// Where files live until they are whole.
    home: Home,
    /// The name for a single file instead of its own.
    rename: Option<Vec<u8>>,
    /// The target while it is open whether it becomes a file or a folder: the first entry decides.
    undecided: Option<PathBuf>,
    options: StoreOptions,
    ownership: Ownership,
    losses: Losses,
    entries: u64,
    /// Wanted files that have not arrived yet, by number.
    pending: HashMap<u64, Entry>,
    /// Numbers of the files whose content the sender gave up.
    given_up: HashSet<u64>,
    /// Number of failures that the sender reported.
    told: u64,
    /// Plans of files whose chunks arrived before their content, by number.
    plans: HashMap<u64, DeltaPlan>,
    /// What is here of files whose senders asked, by number.
    here: HashMap<u64, Here>,
    /// The decoder of one file after another.
    decoder: Option<Box<Decoder>>,
    open: Option<OpenFile>,
    batch: Batch,
    /// Whether a nameless file can be given a name later; `None` until it was tried.
    named_later: Option<bool>,
    /// Files to which later files may refer.
    repeatable: Repeatable,
    /// Stored files to which hard links may follow, by number: path, and device and inode.
    linked: HashMap<u64, (Vec<u8>, (u64, u64))>,
    /// Hard links, which are created when every file has its name: own number, number of the file,
    /// path.
    links: Vec<(u64, u64, Vec<u8>)>,
    /// Folders whose times and modes are set after everything was written into them.
    folders: Vec<(u64, Entry)>,
    /// Memory limit for everything that is kept.
    room: Room,
    clocks: Clocks,
    /// Bytes that were read to compare files by their contents.
    compared: Arc<AtomicU64>,
    /// Something got a name, or lost it, which is not on the disk yet.
    has_named: bool,
    /// One folder of each other file system below the root.
    mounted: Vec<OwnedFd>,
    stored: Stored,
    /// Entries that are there already, and are not the same, are not replaced.
    keeps_existing: bool,
    /// They come from a pack, which anybody may have made.
    is_of_pack: bool,
    observers: Observers,
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
        let target = Target {
            tree,
            permitted,
            asked: None,
            names: Spellings::default(),
            announced: 0,
            removal: options.delete.as_ref().map(|asked| Removal::new(asked, &options)).transpose()?,
            beside: Vec::new(),
            backups: HashSet::new(),
            home: Home::new(options.habits.partial_dir.as_ref()),
            in_way: HashSet::new(),
            waiting: Vec::new(),
            rename,
            undecided: None,
            ownership: Ownership::new(options.owner),
            options,
            losses: Losses::default(),
            entries: 0,
            pending: HashMap::new(),
            given_up: HashSet::new(),
            told: 0,
            plans: HashMap::new(),
            here: HashMap::new(),
            decoder: None,
            open: None,
            batch: Batch::new(),
            named_later: None,
            repeatable: Repeatable::default(),
            linked: HashMap::new(),
            links: Vec::new(),
            folders: Vec::new(),
            room: Room::alone(),
            clocks: Clocks::default(),
            compared: Arc::clone(&compared),
            has_named: false,
            mounted: Vec::new(),
            stored: Stored::default(),
            keeps_existing: false,
            is_of_pack: false,
            observers,
        };
        let answers = Answers::new(notes);
        let store = Arc::new(Mutex::new(Store { parser: RecordParser::default(), target, answers }));
        Ok(Self { store, compared })
    }

    /// Lets the first entry decide about `target`, where no folder exists: a single file is stored
    /// under its name, anything else in a new folder of that name. The tree is the parent folder of
    /// `target`.
    pub fn undecided(self, target: PathBuf) -> Self {
        self.lock().target.undecided = Some(target);
        self
    }

    /// Stores what a pack has. Nobody hears the answers: files whose repeats are not there any more are in
    /// [`EntryStore::wanted_again`]. `replaces`: entries that are there are replaced.
    pub fn of_pack(self, replaces: bool) -> Self {
        let mut store = self.lock();
        store.target.repeatable = Repeatable::of_pack();
        store.target.keeps_existing = !replaces;
        store.target.is_of_pack = true;
        store.parser = RecordParser::of_pack();
        drop(store);
        self
    }

    /// The sender was asked for what these patterns do not leave out. `follow`: and to follow symbolic links.
    pub fn asked(self, filter: Filter, follow: bool) -> Self {
        let mut store = self.lock();
        store.target.asked = Some(Asked::new(filter, follow, store.target.options.dry_run));
        drop(store);
        self
    }

    /// Whether the content of this entry is to come.
    pub fn wants(&self, id: u64) -> bool {
        self.lock().target.pending.contains_key(&id)
    }

    /// Numbers and paths of the files that are wanted once more, without repeats of others.
    pub fn wanted_again(&self) -> Vec<(u64, Vec<u8>)> {
        let store = self.lock();
        let Target { repeatable, pending, .. } = &store.target;
        repeatable.again().iter().filter_map(|id| Some((*id, pending.get(id)?.path.clone()))).collect()
    }

    /// Folders on this host, by device and inode, that the copy must never remove.
    pub fn protect(&self, folders: Vec<(u64, u64)>) {
        self.lock().target.removal.iter_mut().for_each(|removal| removal.protected.extend(&folders));
    }

    /// Files that are the same in one of these earlier copies become hard links to them.
    pub fn beside(self, earlier: Vec<Tree>) -> Self {
        self.lock().target.beside = habits::beside(earlier);
        self
    }

    /// Files live in this folder until they are whole, wherever their targets are.
    ///
    /// # Errors
    /// Others can change what is in it.
    pub fn partials(self, folder: Option<Tree>) -> Result<Self> {
        if let Some(folder) = folder {
            self.lock().target.home = Home::apart(Arc::clone(folder.root_shared())).blame(Error::Local)?;
        }
        Ok(self)
    }

    /// Uses a share of memory that other copies use too.
    pub fn sharing(self, memory: Share) -> Self {
        self.lock().target.room = Room::of(memory);
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
        let finished = store.target.finish(&mut store.answers);
        if let Some(text) = store.target.losses.words() {
            store.answers.put(&Answer::Lost { text });
        }
        store.answers.send();
        finished
    }

    /// Ends the copy early: stores complete files, and keeps the incomplete file for the next run.
    pub fn abandon(&self) {
        let store = &mut *self.lock();
        store.target.store_batch(&mut store.answers);
        if let Some(mut open) = store.target.open.take() {
            open.keep_partial();
        }
    }

    /// Ends it for another store to go on: complete files get their names, and the incomplete one is given up.
    pub fn leave(&self) {
        let store = &mut *self.lock();
        store.target.store_batch(&mut store.answers);
        store.target.open = None;
    }

    /// Ends a copy that breaks off: a file that is open is given up, and everything else is completed as
    /// by [`EntryStore::finish`].
    ///
    /// # Errors
    /// Those of [`EntryStore::finish`], except for the missing end.
    pub fn finish_early(&self) -> io::Result<()> {
        let store = &mut *self.lock();
        store.target.open = None;
        store.target.removal = None;
        store.target.finish(&mut store.answers)
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
        let Store { parser, target, answers } = &mut *self.lock();
        target.repeatable.begin_write();
        parser
            .push(bytes, |record| {
                // A block of a pack may be a hundred thousand entries.
                if target.is_of_pack && signals::received().is_some() {
                    return Err(narrows::Error::new(ErrorKind::Io, "interrupted"));
                }
                target.repeatable.allows(&record)?;
                target.was_asked_for(&record)?;
                target.take(record, answers);
                target.repeatable.check()
            })
            .map_err(|e| match e.kind {
                ErrorKind::Io => io::Error::other(e.to_string()),
                _ => io::Error::new(io::ErrorKind::InvalidData, e.to_string()),
            })?;
        Ok(bytes.len())
    }

    /// All received data was processed: sends the answers at once.
    fn flush(&mut self) -> io::Result<()> {
        self.lock().answers.send();
        Ok(())
    }
}

impl Target {
    fn progress(&self) -> Stored {
        let in_hand = self.open.as_ref().map_or(0, |open| open.at);
        let bytes_done = self.stored.bytes + self.batch.bytes() + in_hand;
        Stored { losses: self.losses.words(), bytes_done, ..self.stored.clone() }
    }

    /// Checks that a record is one of those that this end asked for.
    fn was_asked_for(&mut self, record: &Record<'_>) -> narrows::Result<()> {
        match &mut self.asked {
            Some(asked) => asked.check(&self.permitted, record),
            None if matches!(record, Record::Refused { .. }) => {
                Err(narrows::Error::corrupt("a sender refuses by a number, which it was not asked for"))
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, record: Record<'_>, answers: &mut Answers) {
        match record {
            Record::Entry(entry) => {
                let id = self.entries;
                self.entries += 1;
                self.announced(id, entry, answers);
            }
            Record::Begin { id } => self.begin(id, answers),
            Record::Data(bytes) => {
                if let Some(open) = &mut self.open {
                    open.write(bytes);
                }
            }
            Record::Hole(len) => {
                if let Some(open) = &mut self.open {
                    open.hole(len);
                }
            }
            Record::Have { len } => {
                if let Some(open) = &mut self.open {
                    open.take_here_framed(len);
                }
            }
            Record::Ask { id, from } => self.asked(id, from, answers),
            Record::Repeat { id, offset, len } => self.repeat(id, offset, len.into(), answers),
            Record::Chunks { id, chunks } => {
                let runs = self.plan(id).map(|(plan, len)| plan.chunks(&chunks, len));
                // Content of a file that failed meanwhile is ignored, so it is answered as needed.
                answers.put(&Answer::Chunks { id, runs: runs.unwrap_or_else(|| vec![0, chunks.len() as u32]) });
            }
            Record::Pieces { id, regions, hashes } => {
                let runs = self.plan(id).map(|(plan, _)| plan.pieces(&regions, &hashes));
                answers.put(&Answer::Chunks { id, runs: runs.unwrap_or_else(|| vec![0, hashes.len() as u32]) });
            }
            Record::End { state, digest } => self.end(state, &digest, answers),
            Record::Failed { text } => {
                self.stored.failed += 1;
                self.told += 1;
                // The text is from the peer and may contain anything.
                (self.observers.on_failure)(&shown(text.as_bytes()));
            }
            Record::Refused { code, text } => self.stored.refused = Some((code, shown(text.as_bytes()))),
            Record::Total { files, bytes } => self.stored.total = Some((files, bytes)),
            Record::Finish { .. } => {}
        }
    }

    fn failed(&mut self, id: u64, text: String, answers: &mut Answers) {
        self.stored.failed += 1;
        (self.observers.on_failure)(&text);
        answers.put(&Answer::Failed { id, text });
    }

    fn not_stored(&mut self, id: u64, text: String, answers: &mut Answers) {
        self.stored.failed += 1;
        self.stored.not_stored += 1;
        (self.observers.on_failure)(&text);
        answers.put(&Answer::NotStored { id, text });
    }

    fn finish(&mut self, answers: &mut Answers) -> io::Result<()> {
        let missing = self.pending.len() + self.given_up.len();
        self.stored.announced = self.announced;
        self.stored.unsaid = (missing as u64).saturating_sub(self.told);
        if self.options.dry_run {
            return self.remove_others(answers);
        }
        self.store_batch(answers);
        for (id, of, path) in std::mem::take(&mut self.links) {
            let waits = self.removal.is_some() && self.linked_waits(of);
            if waits || self.is_in_way(&path).unwrap_or(false) {
                self.link_waits(id, of, path);
                continue;
            }
            if let Err(e) = self.link(of, &path, answers) {
                self.failed(id, format!("cannot link {}: {}", shown(&path), e_text(&e)), answers);
            }
        }
        if self.removal.is_some() {
            // A crash must not leave a renamed file missing under both its old and its new name.
            self.sync_names(answers);
        }
        let removed = self.remove_others(answers);
        // Innermost first, since the mode of a folder may deny access to what is in it.
        while let Some((id, entry)) = self.folders.pop() {
            let opened = if entry.path.is_empty() {
                self.tree.root().try_clone()
            } else {
                self.tree.open_below(&entry.path, OFlags::RDONLY | OFlags::DIRECTORY)
            };
            match opened {
                Ok(folder) => meta::apply(folder.as_fd(), &entry, self.ownership, &mut self.losses),
                Err(e) => self.failed(id, format!("cannot complete {}: {}", shown(&entry.path), e_text(&e)), answers),
            }
        }
        self.sync_names(answers);
        removed
    }
}
