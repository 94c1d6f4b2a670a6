//! The storing end: a sink that receives the entry stream, answers which files it wants, and gives
//! every file its name only when it is complete, verified and, if requested, flushed to the disk.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows::entry::{Answer, DIGEST_LEN, EndState, Entry, EntryKind, Record, RecordParser, Wanted};
use narrows::stream::Notes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::delta::DELTA_MIN;
use super::error::Result;
use super::hello::{Fsync, StoreOptions};
use super::meta::{self, Losses, Ownership};
use super::tree::{Tree, split};
use super::{e_text, shown};
use narrows_host::shares::Share;

/// Number of files that are flushed to the disk together. Each keeps a descriptor open until then,
/// by which it is locked. With the folders that contain them, 128 stay below the usual limit of
/// 1,024 descriptors.
const BATCH_FILES: usize = 128;
/// The same if more descriptors are allowed: flushing the whole file system once for every 1,024
/// files costs a first copy almost nothing.
const BATCH_FILES_MAX: usize = 1024;
/// Divisor of the descriptor limit: a batch uses this share of it, because the same process may
/// read the sources. Beyond `BATCH_FILES`, the share is for the batches of all copies in the
/// process.
const BATCH_SHARE: usize = 8;
/// Maximum age of a batch, whose files are lost if the copy is killed.
const BATCH_TIME: Duration = Duration::from_secs(2);
/// Maximum length of a batch in bytes: what a slow disk writes in a few seconds.
const BATCH_BYTES: u64 = 256 << 20;
/// Number of files above which one flush of the whole file system costs less than one for each
/// file.
const SYNC_EACH_MAX: usize = 8;
/// Maximum number of files whose chunks arrived before their content; each has two descriptors and
/// an index. Our senders announce 16.
const DELTAS_MAX: usize = 64;
/// Maximum number of wanted files that have not arrived; our senders have a few thousand.
const PENDING_MAX: usize = 256 << 10;
/// Maximum number of entries in a copy.
const ENTRIES_MAX: u64 = 100_000_000;

mod answers;
mod clock;
mod content;
mod folder;
mod in_way;
mod partial;
mod permitted;
mod plan;
mod removal;
mod repeat;
mod room;
mod special;
mod stream;

use answers::Answers;
use clock::Clocks;
use content::OpenFile;
use in_way::{Waiting, in_way};
use partial::{PRIVATE, Partial};
pub use permitted::Permitted;
pub(super) use plan::Plan;
use removal::Removal;
use repeat::Repeatable;
use room::Room;
pub use room::shared as shared_memory;

/// Progress and result of the copy at the storing end.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// Files stored.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Files that were unchanged.
    pub files_same: u64,
    /// Their length in bytes.
    pub bytes_same: u64,
    /// Totals of files and bytes of the copy, once the sender has announced them.
    pub total: Option<(u64, u64)>,
    /// Bytes of content that arrived or were present, including those of incomplete files.
    pub bytes_done: u64,
    pub failed: u64,
    /// Entries announced, except folders.
    pub announced: u64,
    /// Files that were wanted but did not arrive, without an error from the sender.
    pub unsaid: u64,
    /// Files that changed while they were read, and were stored nevertheless.
    pub changed: u64,
    /// Attributes that could not be preserved, as text.
    pub losses: Option<String>,
    /// Entries that were removed because the sources do not have them.
    pub removed: u64,
    /// Why none was removed.
    pub not_removed: Option<String>,
}

type OnWords = Box<dyn Fn(&str) + Send>;

/// Callbacks for events at the storing end.
pub struct Listeners {
    /// Called with every failure.
    pub on_failure: OnWords,
    /// Called with the name of every file that is stored.
    pub on_file: OnWords,
    /// Called with every removed entry; without it, the sender is told instead.
    pub on_removed: Option<OnWords>,
}

impl Listeners {
    /// Callbacks that do nothing.
    pub fn none() -> Self {
        Self { on_failure: Box::new(|_| ()), on_file: Box::new(|_| ()), on_removed: None }
    }
}

/// The sink for the engine. A clone of it is kept by the caller of [`EntryStore::finish`].
#[derive(Clone)]
pub struct EntryStore(Arc<Mutex<Store>>);

struct Store {
    parser: RecordParser,
    target: Target,
    answers: Answers,
}

struct Target {
    tree: Tree,
    permitted: Permitted,
    /// Hashes of the paths of all entries except folders, none of which may come twice.
    seen: HashSet<u64>,
    /// Set if entries that the sources do not have are removed.
    removal: Option<Removal>,
    /// Numbers of the files in whose place there is a folder.
    in_way: HashSet<u64>,
    /// Entries that arrived and wait for such a folder to be removed.
    waiting: Vec<Waiting>,
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
    plans: HashMap<u64, Plan>,
    open: Option<OpenFile>,
    batch: Vec<WholeFile>,
    batch_bytes: u64,
    batch_begun: Instant,
    batch_share: usize,
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
    /// One folder of each other file system below the root.
    mounted: Vec<OwnedFd>,
    stored: Stored,
    listeners: Listeners,
}

/// Counts a descriptor of a batch in [`HELD`].
struct Held;

/// Number of descriptors in the batches of all copies in this process.
static HELD: AtomicUsize = AtomicUsize::new(0);

impl Held {
    fn new() -> Self {
        HELD.fetch_add(1, Ordering::Relaxed);
        Self
    }

    fn total() -> usize {
        HELD.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A complete file that has no name yet.
struct WholeFile {
    _held: Held,
    id: u64,
    partial: Partial,
    path: Vec<u8>,
    len: u64,
    /// Hard links to it may follow.
    linked: bool,
}

impl EntryStore {
    /// Stores below `tree`; `rename` is the name of a single file.
    pub fn new(
        tree: Tree,
        rename: Option<Vec<u8>>,
        permitted: Permitted,
        options: StoreOptions,
        notes: Notes,
        listeners: Listeners,
    ) -> Result<Self> {
        let target = Target {
            tree,
            permitted,
            seen: HashSet::new(),
            removal: options.delete.as_ref().map(Removal::new).transpose()?,
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
            open: None,
            batch: Vec::new(),
            batch_bytes: 0,
            batch_begun: Instant::now(),
            batch_share: batch_share(),
            named_later: None,
            repeatable: Repeatable::default(),
            linked: HashMap::new(),
            links: Vec::new(),
            folders: Vec::new(),
            room: Room::alone(),
            clocks: Clocks::default(),
            mounted: Vec::new(),
            stored: Stored::default(),
            listeners,
        };
        let answers = Answers::new(notes);
        Ok(Self(Arc::new(Mutex::new(Store { parser: RecordParser::default(), target, answers }))))
    }

    /// Lets the first entry decide about `target`, where no folder exists: a single file is stored
    /// under its name, anything else in a new folder of that name. The tree is the parent folder of
    /// `target`.
    pub fn undecided(self, target: PathBuf) -> Self {
        self.lock().target.undecided = Some(target);
        self
    }

    /// Folders on this host, by device and inode, that the copy must never remove.
    pub fn protect(&self, folders: Vec<(u64, u64)>) {
        self.lock().target.removal.iter_mut().for_each(|removal| removal.protected.extend(&folders));
    }

    /// Uses a share of memory that other copies use too.
    pub fn sharing(self, memory: Share) -> Self {
        self.lock().target.room = Room::of(memory);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The current progress.
    pub fn stored(&self) -> Stored {
        let store = self.lock();
        let target = &store.target;
        let in_hand = target.open.as_ref().map_or(0, |open| open.at);
        let waiting: u64 = target.batch.iter().map(|file| file.len).sum();
        let bytes_done = target.stored.bytes + waiting + in_hand;
        Stored { losses: target.losses.words(), bytes_done, ..target.stored.clone() }
    }
}

impl Write for EntryStore {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Store { parser, target, answers } = &mut *self.lock();
        target.repeatable.begin_write();
        parser
            .push(bytes, |record| {
                target.take(record, answers);
                target.repeatable.check()
            })
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        Ok(bytes.len())
    }

    /// All received data was processed: sends the answers at once.
    fn flush(&mut self) -> io::Result<()> {
        self.lock().answers.send();
        Ok(())
    }
}

impl Target {
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
                (self.listeners.on_failure)(&shown(text.as_bytes()));
            }
            Record::Total { files, bytes } => self.stored.total = Some((files, bytes)),
            Record::Finish { .. } => {}
        }
    }

    fn failed(&mut self, id: u64, text: String, answers: &mut Answers) {
        self.stored.failed += 1;
        (self.listeners.on_failure)(&text);
        answers.put(&Answer::Failed { id, text });
    }

    fn not_stored(&mut self, id: u64, text: String, answers: &mut Answers) {
        self.stored.failed += 1;
        (self.listeners.on_failure)(&text);
        answers.put(&Answer::NotStored { id, text });
    }

    // --- entries ---

    fn announced(&mut self, id: u64, mut entry: Entry, answers: &mut Answers) {
        let is_file = entry.kind.has_content();
        let allowed = self.permitted.allows(&entry);
        if let Some(target) = self.undecided.take_if(|_| allowed)
            && let Err(e) = self.decide(&target, &entry)
        {
            if is_file {
                answers.file(Wanted::Refused);
            }
            let text = format!("cannot store in {}: {}", shown(target.as_os_str().as_bytes()), e_text(&e));
            self.undecided = Some(target);
            return self.failed(id, text, answers);
        }
        if let Some(name) = &self.rename {
            entry.path.clone_from(name);
        }
        if !self.options.set_id {
            meta::take_privileges(&mut entry, &mut self.losses);
        }
        let wrong = if !allowed {
            Some("it was not requested")
        } else if entry.kind == EntryKind::Stream && entry.path.is_empty() {
            Some("the target is a folder; name the file in it, as in FOLDER/NAME")
        } else if self.removal.is_some() && self.permitted.is_one() && is_top(&entry) {
            Some("--delete is for folders")
        } else if entry.kind != EntryKind::Folder && !self.seen.insert(xxh3_64(&entry.path)) {
            Some("another source has an entry of that name")
        } else if self.entries > ENTRIES_MAX || !self.room.take(&entry) {
            Some("there are too many entries")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            if is_file {
                answers.file(Wanted::Refused);
            }
            let name = if entry.path.is_empty() { "it".into() } else { shown(&entry.path) };
            return self.failed(id, format!("cannot store {name}: {wrong}"), answers);
        }
        let path = entry.path.clone();
        let result = match &entry.kind {
            EntryKind::File { .. } | EntryKind::Stream => return self.announced_file(id, entry, answers),
            EntryKind::Folder => self.make_folder(id, entry, answers),
            EntryKind::HardLink { of } if self.options.dry_run => {
                let of = *of;
                self.would_link(id, of, &path, answers)
            }
            EntryKind::HardLink { of } => {
                self.links.push((id, *of, path.clone()));
                Ok(())
            }
            EntryKind::Symlink { .. } => self.special(id, entry, true, answers),
            EntryKind::Fifo | EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => {
                self.special(id, entry, self.options.devices, answers)
            }
        };
        if let Err(e) = result {
            self.failed(id, format!("cannot store {}: {}", shown(&path), e_text(&e)), answers);
        }
    }

    /// Decides whether the target becomes a file or a folder.
    fn decide(&mut self, target: &Path, first: &Entry) -> io::Result<()> {
        if is_top(first) {
            self.rename = target.file_name().map(|name| name.as_bytes().to_vec());
            return Ok(());
        }
        if target.exists() {
            return Err(io::Error::other("it is a file, not a folder"));
        }
        self.tree = if self.options.dry_run {
            Tree::empty()?
        } else {
            fs::create_dir(target)?;
            Tree::open(target)?
        };
        Ok(())
    }

    fn announced_file(&mut self, id: u64, entry: Entry, answers: &mut Answers) {
        let full = self.pending.len() >= PENDING_MAX;
        let wanted = match self.compare(id, &entry) {
            // A dry run: its folder would be created first.
            Err(e) if self.would_be_made(&e) => Wanted::Whole,
            Err(e) => {
                answers.file(Wanted::Refused);
                return self.failed(id, format!("cannot store {}: {}", shown(&entry.path), e_text(&e)), answers);
            }
            Ok(Wanted::No) => {
                self.stored.files_same += 1;
                self.stored.bytes_same += if let EntryKind::File { len, .. } = entry.kind { len } else { 0 };
                Wanted::No
            }
            Ok(_) if full || !self.room.take_pending(&entry) => {
                answers.file(Wanted::Refused);
                return self.failed(id, "too many announced files were not sent".into(), answers);
            }
            Ok(wanted) => wanted,
        };
        answers.file(wanted);
        if wanted != Wanted::No && self.options.dry_run {
            self.room.give_back_pending(&entry);
            self.stored.files += 1;
            (self.listeners.on_file)(&shown(&entry.path));
        } else if wanted != Wanted::No {
            self.pending.insert(id, entry);
        }
    }

    /// Compares a file with what exists at the target: the same file by length and time (then its
    /// metadata is updated), an earlier version, or the remains of an interrupted copy.
    fn compare(&mut self, id: u64, entry: &Entry) -> io::Result<Wanted> {
        let (folder, name) = self.tree.parent(&entry.path)?;
        let (len, linked) = match entry.kind {
            EntryKind::File { len, linked } => (Some(len), linked),
            _ => (None, false),
        };
        let large = |len: i64| len as u64 >= DELTA_MIN;
        let stat = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e.into()),
        };
        let mut earlier = false;
        match stat.as_ref().map(|s| FileType::from_raw_mode(s.st_mode)).zip(stat) {
            Some((FileType::Directory, _)) if self.makes_way(&entry.path) => {
                if self.options.dry_run {
                    self.note_in_way(id, &entry.path);
                } else {
                    self.in_way.insert(id);
                }
            }
            Some((FileType::Directory, _)) => return Err(in_way()),
            Some((FileType::CharacterDevice | FileType::BlockDevice, _)) if !self.options.devices => {
                return Err(io::Error::other("a device of that name is in the way; --devices replaces it"));
            }
            Some((FileType::RegularFile, stat)) => {
                let same_len = Some(stat.st_size as u64) == len;
                let dry_run = self.options.dry_run;
                let rounded;
                let entry = if same_len && self.clocks.is_rounded(&folder, &stat, entry, dry_run) {
                    // The existing file has the time of the entry as far as its file system can
                    // store it.
                    let (mtime_s, mtime_ns) = (stat.st_mtime, stat.st_mtime_nsec as u32);
                    rounded = Entry { mtime_s, mtime_ns, ..entry.clone() };
                    &rounded
                } else {
                    entry
                };
                if same_len && meta::same_time(&stat, entry) {
                    self.bring_up_to_date(entry, &stat, &folder, &name);
                    if large(stat.st_size) && !self.options.dry_run {
                        // Another copy has stored the file since this partial file was left.
                        partial::remove_stale(&folder, &partial::name(&name, 0));
                    }
                    if linked {
                        self.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                    }
                    return Ok(Wanted::No);
                }
                earlier = large(stat.st_size);
            }
            _ => {}
        }
        let in_chunks = len.is_some_and(|len| len >= DELTA_MIN);
        if in_chunks && !earlier {
            let partial = rustix::fs::statat(&folder, partial::name(&name, 0), AtFlags::SYMLINK_NOFOLLOW);
            earlier = partial.is_ok_and(|s| large(s.st_size));
        }
        Ok(match len {
            Some(_) if earlier && in_chunks => Wanted::Chunks,
            Some(_) => Wanted::Repeats,
            None => Wanted::Whole,
        })
    }

    fn bring_up_to_date(&mut self, entry: &Entry, stat: &Stat, folder: &OwnedFd, name: &OsStr) {
        if !self.options.dry_run
            && (!meta::is_applied(stat, entry, self.ownership) || meta::xattrs(folder, name) != entry.xattrs)
        {
            match self.tree.open_below(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK) {
                Ok(file) => meta::apply(file.as_fd(), entry, self.ownership, &mut self.losses),
                Err(_) => self.losses.count("mode or owner"),
            }
        }
    }

    /// Reports a folder or link that was created, or would be.
    fn made(&mut self, text: String, answers: &mut Answers) {
        // Only a receiving client has this listener; a server reports to the sender if that asked
        // for names.
        if self.listeners.on_removed.is_some() {
            (self.listeners.on_file)(&text);
        } else if self.options.names {
            answers.put(&Answer::Made { text });
        }
    }

    // --- content ---

    /// The plan for a file, and the length of the file.
    fn plan(&mut self, id: u64) -> Option<(&mut Plan, u64)> {
        let is_open = self.open.as_ref().is_some_and(|open| open.id == id);
        let entry = if is_open { &self.open.as_ref()?.entry } else { self.pending.get(&id)? };
        let EntryKind::File { len, .. } = entry.kind else { return None };
        if is_open {
            return Some((self.open.as_mut()?.plan.as_mut()?, len));
        }
        let count = self.plans.len();
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.plans.entry(id) {
            if count >= DELTAS_MAX {
                return None;
            }
            let (folder, name) = self.tree.parent(&entry.path).ok()?;
            let mut files: Vec<OwnedFd> = partial::hold_stale(&folder, &name).into_iter().collect();
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let old = rustix::fs::openat(&folder, &name, flags, Mode::empty()).ok();
            files.extend(old.filter(|f| {
                rustix::fs::fstat(f).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile)
            }));
            let memory = self.room.reserve(Plan::len_max(&files))?;
            vacant.insert(Plan::new(files).taking(memory));
        }
        Some((self.plans.get_mut(&id)?, len))
    }

    fn begin(&mut self, id: u64, answers: &mut Answers) {
        // Content of a file that was not requested is ignored.
        let Some(mut entry) = self.pending.remove(&id) else { return };
        self.given_up.remove(&id);
        self.room.give_back_pending(&entry);
        let plan = self.plans.remove(&id);
        let mut created = self.create(&mut entry);
        if created.as_ref().is_err_and(too_many_open) && !self.batch.is_empty() {
            self.store_batch(answers);
            created = self.create(&mut entry);
        }
        match created {
            Ok(partial) => self.open = Some(OpenFile::new(id, entry, partial, plan, self.options.fsync != Fsync::None)),
            Err(e) => self.not_stored(id, format!("cannot store {}: {}", shown(&entry.path), e_text(&e)), answers),
        }
    }

    fn create(&mut self, entry: &mut Entry) -> io::Result<Partial> {
        let (folder, name) = self.tree.parent(&entry.path)?;
        match entry.kind {
            EntryKind::Stream => stream::create(folder, &name, entry),
            // Shorter files are not resumed, so the next copy need not find them by name.
            EntryKind::File { len, .. } if len < DELTA_MIN && self.named_later != Some(false) => {
                match Partial::nameless(&folder) {
                    Some(partial) if *self.named_later.get_or_insert_with(|| partial.can_be_named()) => Ok(partial),
                    _ => Partial::create(folder, &name, PRIVATE),
                }
            }
            _ => Partial::create(folder, &name, PRIVATE),
        }
    }

    fn end(&mut self, state: EndState, digest: &[u8; DIGEST_LEN], answers: &mut Answers) {
        let Some(mut open) = self.open.take() else { return };
        if state == EndState::Partial {
            // The sender reports the reason.
            self.given_up.insert(open.id);
            return self.removal.iter_mut().for_each(|r| r.incomplete = true);
        }
        let in_full = open.plan.is_none();
        let completed = open.complete(digest);
        // The remains of an earlier copy are not needed any more, and must not disturb the next
        // one.
        open.plan = None;
        // The content that it refers to may have changed.
        if open.is_other && open.repeats_others {
            return self.want_again(open, None, answers);
        }
        if let Err(e) = completed {
            open.partial.remove_earlier(OsStr::from_bytes(split(&open.entry.path).1));
            let text = format!("cannot store {}: {}", shown(&open.entry.path), e_text(&e));
            return self.not_stored(open.id, text, answers);
        }
        if state == EndState::Changed {
            self.stored.changed += 1;
            (self.listeners.on_failure)(&format!(
                "the source of {} changed while it was read",
                shown(&open.entry.path)
            ));
        }
        meta::apply(open.partial.file.as_fd(), &open.entry, self.ownership, &mut self.losses);
        if in_full && state == EndState::Whole {
            self.repeatable.came(&open);
        }
        if open.repeats_others {
            answers.put(&Answer::Whole { id: open.id });
        }
        let path = std::mem::take(&mut open.entry.path);
        let linked = matches!(open.entry.kind, EntryKind::File { linked: true, .. });
        if self.batch.is_empty() {
            self.batch_begun = Instant::now();
        }
        self.batch_bytes += open.at;
        self.batch.push(WholeFile {
            _held: Held::new(),
            id: open.id,
            partial: open.partial,
            path,
            len: open.at,
            linked,
        });
        let many = self.is_batch_full() || self.batch_bytes >= BATCH_BYTES || self.batch_begun.elapsed() >= BATCH_TIME;
        if many || self.options.fsync != Fsync::Batch {
            self.store_batch(answers);
        }
    }

    fn is_batch_full(&self) -> bool {
        let most = match Held::total() {
            n if n < self.batch_share => BATCH_FILES_MAX,
            _ => BATCH_FILES.min(self.batch_share),
        };
        self.batch.len() >= most
    }

    /// Flushes the files of the batch to the disk and gives them their names.
    fn store_batch(&mut self, answers: &mut Answers) {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let together = self.options.fsync == Fsync::Batch && batch.len() > SYNC_EACH_MAX;
        let mut synced: Vec<(u64, Result<(), Errno>)> = Vec::new();
        for file in batch {
            let result = match self.options.fsync {
                Fsync::None => Ok(()),
                _ if together => sync_file_system(&file.partial.file, &mut synced),
                _ => rustix::fs::fdatasync(&file.partial.file),
            };
            match result {
                Ok(()) if self.in_way.contains(&file.id) => self.file_waits(file, answers),
                Ok(()) => self.name_file(file, answers),
                Err(e) => self.cannot_store(&file, &e.into(), answers),
            }
        }
    }

    fn name_file(&mut self, mut file: WholeFile, answers: &mut Answers) {
        match file.partial.rename(OsStr::from_bytes(split(&file.path).1)) {
            Ok(()) => {
                self.stored.files += 1;
                self.stored.bytes += file.len;
                (self.listeners.on_file)(&shown(&file.path));
                if let (true, Ok(s)) = (file.linked, rustix::fs::fstat(&file.partial.file)) {
                    self.linked.insert(file.id, (file.path, (s.st_dev, s.st_ino)));
                }
            }
            Err(e) => self.cannot_store(&file, &e, answers),
        }
    }

    fn cannot_store(&mut self, file: &WholeFile, e: &io::Error, answers: &mut Answers) {
        let text = format!("cannot store {}: {}", shown(&file.path), e_text(e));
        self.not_stored(file.id, text, answers);
    }

    // --- the end ---

    fn finish(&mut self, answers: &mut Answers) -> io::Result<()> {
        let missing = self.pending.len() + self.given_up.len();
        self.stored.announced = self.seen.len() as u64;
        self.stored.unsaid = (missing as u64).saturating_sub(self.told);
        if self.options.dry_run {
            return self.remove_others(answers);
        }
        self.store_batch(answers);
        for (id, of, path) in std::mem::take(&mut self.links) {
            let waits = self.removal.is_some() && self.linked_waits(of);
            if waits || self.removal.is_some() && self.is_in_way(&path).unwrap_or(false) {
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

    /// Flushes the names of stored entries to the disk, on every file system with folders of the
    /// copy.
    fn sync_names(&mut self, answers: &mut Answers) {
        if self.options.fsync == Fsync::None || self.stored.files == 0 {
            return;
        }
        let mut synced = Vec::new();
        let mut folders = std::iter::once(self.tree.root()).chain(&self.mounted);
        if let Err(e) = folders.try_for_each(|folder| sync_file_system(folder, &mut synced)) {
            self.failed(0, format!("cannot flush the names to the disk: {}", e_text(&e.into())), answers);
        }
    }
}

fn batch_share() -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    allowed.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)) / BATCH_SHARE
}

fn too_many_open(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|e| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&e))
}

/// Whether the entry is a source itself and not a folder.
fn is_top(entry: &Entry) -> bool {
    entry.kind != EntryKind::Folder && !entry.path.contains(&b'/')
}

/// Flushes the file system of `file` unless it is in `synced`, the results so far by device.
fn sync_file_system(file: &OwnedFd, synced: &mut Vec<(u64, Result<(), Errno>)>) -> Result<(), Errno> {
    let device = rustix::fs::fstat(file)?.st_dev;
    if let Some((_, result)) = synced.iter().find(|(d, _)| *d == device) {
        return *result;
    }
    let result = match rustix::fs::syncfs(file) {
        // The root folder may be writable but not readable.
        Err(Errno::BADF) => {
            rustix::fs::sync();
            Ok(())
        }
        result => result,
    };
    synced.push((device, result));
    result
}
