//! Complete files, which are flushed to the disk together and get their names then.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use narrows::entry::{Entry, EntryKind};
use rustix::io::Errno;

use super::folder::Folders;
use super::names::Names;
use super::partial::Partial;
use super::session::Session;
use crate::hello::Fsync;
use crate::tree::split;
use crate::{e_text, shown};

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

/// The complete files that have no names yet.
pub(super) struct Batch {
    files: Vec<WholeFile>,
    /// Their length in bytes.
    bytes: u64,
    begun: Instant,
    /// Number of descriptors for the batches of all copies in this process.
    share: usize,
}

impl Batch {
    /// An empty batch.
    pub(super) fn new() -> Self {
        Self { files: Vec::new(), bytes: 0, begun: Instant::now(), share: share() }
    }

    /// Adds a file.
    pub(super) fn push(&mut self, file: WholeFile) {
        if self.files.is_empty() {
            self.begun = Instant::now();
        }
        self.bytes += file.len;
        self.files.push(file);
    }

    /// The file with this number.
    pub(super) fn find(&self, id: u64) -> Option<&WholeFile> {
        self.files.iter().find(|file| file.id == id)
    }

    /// Whether it has no files.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Length of its files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it has many files, is long or is old.
    pub(super) fn is_due(&self) -> bool {
        self.is_full() || self.bytes >= BATCH_BYTES || self.begun.elapsed() >= BATCH_TIME
    }

    fn is_full(&self) -> bool {
        let most = match Held::total() {
            n if n < self.share => BATCH_FILES_MAX,
            _ => BATCH_FILES.min(self.share),
        };
        self.files.len() >= most
    }

    fn take(&mut self) -> Vec<WholeFile> {
        self.bytes = 0;
        std::mem::take(&mut self.files)
    }
}

fn share() -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    allowed.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)) / BATCH_SHARE
}

/// A complete file that has no name yet.
pub(super) struct WholeFile {
    _held: Held,
    pub(super) id: u64,
    pub(super) partial: Partial,
    pub(super) path: Vec<u8>,
    len: u64,
    /// Hard links to it may follow.
    linked: bool,
}

impl WholeFile {
    /// A file of `len` bytes that was received completely.
    pub(super) fn new(id: u64, entry: Entry, partial: Partial, len: u64) -> Self {
        let linked = matches!(entry.kind, EntryKind::File { linked: true, .. });
        Self { _held: Held::new(), id, partial, path: entry.path, len, linked }
    }
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

impl Names {
    /// Flushes the files of the batch to the disk and gives them their names.
    pub(super) fn store_batch(&mut self, session: &mut Session) {
        let files = self.batch.take();
        let together = session.options.fsync == Fsync::Batch && files.len() > SYNC_EACH_MAX;
        let mut synced: Vec<(u64, Result<(), Errno>)> = Vec::new();
        for file in files {
            let result = match session.options.fsync {
                Fsync::None => Ok(()),
                _ if together => sync_file_system(&file.partial.file, &mut synced),
                _ => rustix::fs::fdatasync(&file.partial.file),
            };
            match result {
                Ok(()) if self.in_way.contains(&file.id) => self.file_waits(file, session),
                Ok(()) => self.name_file(file, session),
                Err(e) => session.cannot_store(&file, &e.into()),
            }
        }
    }

    /// Gives a flushed file its name.
    pub(super) fn name_file(&mut self, mut file: WholeFile, session: &mut Session) {
        let kept = self.set_aside(&file.path, false, session);
        let name = OsStr::from_bytes(split(&file.path).1);
        match kept.and_then(|()| file.partial.rename(name, !session.keeps_existing)) {
            Ok(()) => {
                session.has_named = true;
                session.report.stored.files += 1;
                session.report.stored.bytes += file.len;
                if !session.itemizes() {
                    (session.report.observers.on_file)(&shown(&file.path));
                }
                if let (true, Ok(s)) = (file.linked, rustix::fs::fstat(&file.partial.file)) {
                    self.linked.insert(file.id, (file.path, (s.st_dev, s.st_ino)));
                }
            }
            Err(e) => session.cannot_store(&file, &e),
        }
    }
}

impl Session {
    /// Reports that a file cannot be stored.
    pub(super) fn cannot_store(&mut self, file: &WholeFile, e: &io::Error) {
        let text = format!("cannot store {}: {}", shown(&file.path), e_text(e));
        self.report.not_stored(file.id, text);
    }
}

impl Folders {
    /// Flushes the names of stored entries to the disk, on every file system with folders of the
    /// copy.
    pub(super) fn sync_names(&mut self, session: &mut Session) {
        if session.options.fsync == Fsync::None || !std::mem::take(&mut session.has_named) {
            return;
        }
        let mut synced = Vec::new();
        let mut folders = std::iter::once(session.tree.root()).chain(&self.mounted);
        if let Err(e) = folders.try_for_each(|folder| sync_file_system(folder, &mut synced)) {
            session.report.failed(0, format!("cannot flush the names to the disk: {}", e_text(&e.into())));
        }
    }
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
