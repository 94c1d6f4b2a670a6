//! Writing packs.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fastcdc::v2020::FastCDC;
use narrows::entry::{DATA_LEN_MAX, EndState, Entry, EntryKind, REPEAT_LEN_MAX, RecordWriter};
use narrows::policy::PolicySpec;
use narrows::sender::Summary;
use narrows::{Error, ErrorKind, Result};
use narrows_copy::filter::Filter;
use narrows_copy::holes::{has_hole, next_data};
use narrows_copy::reread::{DataSum, Holes};
use narrows_copy::scan::{Found, Root, socket_words, walk};
use narrows_file::effort::Effort;
use narrows_file::{Hint, Mode, WriteOptions, Writer};
use narrows_host::file_state::FileState;
use narrows_host::words::{e_text, shown, shown_name};
use rustix::fs::{FileType, Stat};

use crate::builder::Builder;
use crate::item::{Content, EXTENTS_MAX, Extent, Item, LIST_MAX, List, put_extents};
use crate::order::{self, suffix};
use crate::repeats::{CHUNK_LENS, Index, Known, Place, READ, REPEAT_MIN, has, hash, read_at};

mod small;

use small::{Group, SMALL_MAX};

/// Entries that are announced together; their contents follow, similar ones near each other. A reader
/// keeps so many in mind.
const BATCH: usize = 64 << 10;
/// Length of a read, and of a data record at most. Long records are few extents.
const READ_LEN: usize = 1 << 20;
const _: () = assert!(READ_LEN <= DATA_LEN_MAX);
/// Raw bytes of a block: what is decoded for one member. 2 MiB are 12 % smaller than 256 KiB on a tree of
/// sources, and are decoded in some 5 ms.
const BLOCK_LEN: usize = 2 << 20;
const BLOCK_LEN_FAST: usize = 1 << 20;
/// Raw bytes of a block of the directory, which is read here and there.
const DIRECTORY_BLOCK: usize = 128 << 10;
/// Enough for blocks of 2 MiB under the heaviest methods on two cores.
const MEMORY_MAX: usize = 160 << 20;
/// Most entries of a pack; the directory is in memory until it is written.
const ENTRIES_MAX: usize = 100_000_000;

/// What is packed.
pub struct Input {
    /// The sources.
    pub roots: Vec<Root>,
    /// Errors of sources that could not be opened.
    pub unopened: Vec<String>,
    /// What is left out.
    pub filter: Filter,
}

/// How a pack is written.
#[derive(Debug, Clone)]
#[must_use]
pub struct PackOptions {
    hint: Hint,
    policy: Option<PolicySpec>,
    threads: Option<usize>,
    repeats: bool,
    by_path: bool,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self { hint: Hint::default(), policy: None, threads: None, repeats: true, by_path: false }
    }
}

impl PackOptions {
    /// What a byte is worth. Default: balanced.
    pub fn mode(self, mode: Mode) -> Self {
        Self { hint: Hint { mode: Some(mode), ..self.hint }, ..self }
    }

    /// What the user says about the bytes, instead of what was said so far.
    pub fn hint(self, hint: Hint) -> Self {
        Self { hint, ..self }
    }

    /// The policy, instead of that of the mode.
    pub fn policy(self, policy: Option<PolicySpec>) -> Self {
        Self { policy, ..self }
    }

    /// Threads that encode. Default: as a file's.
    pub fn threads(self, threads: Option<usize>) -> Self {
        Self { threads, ..self }
    }

    /// Whether content that repeats is stored once. Default: true.
    pub fn repeats(self, repeats: bool) -> Self {
        Self { repeats, ..self }
    }

    /// Whether contents stand in the order of their paths instead of by suffix. Default: false.
    pub fn by_path(self, by_path: bool) -> Self {
        Self { by_path, ..self }
    }

    /// How the stream of the entries and that of the directory are written.
    pub fn streams(&self) -> [WriteOptions; 2] {
        [self.content(), self.directory()]
    }

    fn content(&self) -> WriteOptions {
        let mode = self.hint.mode.unwrap_or_default();
        let block = if mode == Mode::Fast { BLOCK_LEN_FAST } else { BLOCK_LEN };
        let of_mode = || match mode {
            // One method each: a block has files of many kinds, of which the costs of a sample say little, and
            // the choice must not depend on how busy the machine is.
            Mode::Fast if self.is_mode_alone() => "fixed:zstd:level=1".to_owned(),
            Mode::Balanced if self.is_mode_alone() => format!("storage:block={block}"),
            // The same, and images.
            Mode::Fast if self.is_images_alone() => {
                format!("storage:mode=fast,encode_rate=1,block={block},images=true,methods=zstd:level=1")
            }
            Mode::Balanced if self.is_images_alone() => format!("storage:block={block},images=true"),
            _ => {
                let hint = Hint { never: None, mode: Some(mode), ..self.hint.clone() };
                format!("storage:block={block},{hint}")
            }
        };
        let policy = match &self.policy {
            Some(policy) => policy.clone(),
            None if self.hint.is_never() => PolicySpec::store(),
            None => of_mode().parse().expect("a policy of this build"),
        };
        let options = WriteOptions::default().mode(mode).policy(policy).block_max(block).memory_max(MEMORY_MAX);
        let options = options.whole_blocks(true);
        self.threads.into_iter().fold(options, WriteOptions::threads)
    }

    fn directory(&self) -> WriteOptions {
        let policy = self.policy.clone().unwrap_or_else(|| {
            let text = format!("storage:block={DIRECTORY_BLOCK}");
            text.parse().expect("a policy of this build")
        });
        let options = WriteOptions::default().policy(policy).block_max(DIRECTORY_BLOCK).whole_blocks(true).threads(1);
        // The last bytes of the pack say what both streams were encoded with.
        let effort = Effort::of(self.hint.mode.unwrap_or_default());
        if self.policy.is_none() && self.is_mode_alone() { options.attempt(effort, 1) } else { options }
    }

    fn is_mode_alone(&self) -> bool {
        Hint { mode: None, never: self.hint.never.filter(|never| *never), ..self.hint.clone() }.is_empty()
    }

    fn is_images_alone(&self) -> bool {
        let rest = Hint { images: None, ..self.hint.clone() };
        self.hint.wants_images() && Self { hint: rest, ..self.clone() }.is_mode_alone()
    }
}

/// Progress, for a bar, and the way to stop.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files that were found.
    pub files: AtomicU64,
    /// Their length in bytes.
    pub bytes: AtomicU64,
    /// Whether these are all.
    pub scanned: AtomicBool,
    /// Files that were read.
    pub files_done: AtomicU64,
    /// Bytes of content that were read, holes included.
    pub bytes_done: AtomicU64,
    /// Set to stop.
    pub stop: AtomicBool,
}

/// What was packed.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    /// Entries of all kinds.
    pub entries: u64,
    /// Files with content.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Bytes of content that came before.
    pub repeated: u64,
    /// Bytes of holes.
    pub holes: u64,
    /// Failures, each of which was told.
    pub failed: u64,
    /// Files that changed while they were read, and are packed nevertheless.
    pub changed: u64,
    /// Length of the pack.
    pub wire_bytes: u64,
    /// Totals of the engine, of the content.
    pub flow: Option<Summary>,
}

/// Packs `input` into `sink`, which is returned.
///
/// # Errors
/// The sink fails, or it was stopped. Sources that cannot be read are failures, which are told one by one.
pub fn pack<W>(
    input: Input,
    sink: W,
    options: &PackOptions,
    progress: &Arc<Progress>,
    on_failure: &dyn Fn(&str),
    on_file: &dyn Fn(&str),
) -> Result<(W, Packed)>
where
    W: Write + Send + 'static,
{
    let roots = input.roots.iter().map(Root::try_clone).collect::<std::io::Result<Vec<_>>>()?;
    let mut packer = Packer {
        out: Out { writer: Writer::new(sink, options.content())?, at: 0 },
        records: RecordWriter::default(),
        roots,
        items: Vec::new(),
        links: HashMap::new(),
        moved: HashMap::new(),
        index: Index::default(),
        group: Group::default(),
        options,
        progress,
        on_failure,
        on_file,
        packed: Packed::default(),
        buffer: Vec::new(),
    };
    let unopened = input.unopened.into_iter();
    unopened.into_iter().try_for_each(|text| packer.failed(&text))?;
    let mut batch: Vec<(usize, Entry)> = Vec::new();
    let mut result = Ok(());
    walk(&input.roots, &input.filter, |found| {
        let took = packer.take(found, &mut batch);
        let went_on = took.is_ok();
        result = took;
        went_on
    });
    result?;
    progress.scanned.store(true, Ordering::Relaxed);
    packer.batch(&mut batch)?;
    packer.finish()
}

struct Out<W> {
    writer: Writer<W>,
    /// Raw bytes so far.
    at: u64,
}

impl<W: Write + Send + 'static> Out<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// An entry that was announced.
struct Built {
    item: Item,
    root: usize,
    /// Its content came whole, and may be referred to.
    whole: bool,
    /// It is not in the pack after all.
    absent: bool,
}

struct Packer<'a, W> {
    out: Out<W>,
    records: RecordWriter,
    roots: Vec<Root>,
    /// All entries by their numbers.
    items: Vec<Built>,
    /// Hard links of the batch in hand, by the numbers of their files.
    links: HashMap<u64, Vec<usize>>,
    /// Files whose content another name has, and the numbers of these names.
    moved: HashMap<u64, u64>,
    index: Index,
    /// Small files that were read, and are written together.
    group: Group,
    options: &'a PackOptions,
    progress: &'a Arc<Progress>,
    on_failure: &'a dyn Fn(&str),
    on_file: &'a dyn Fn(&str),
    packed: Packed,
    buffer: Vec<u8>,
}

impl<W: Write + Send + 'static> Packer<'_, W> {
    fn take(&mut self, found: Found, batch: &mut Vec<(usize, Entry)>) -> Result<()> {
        self.check_stop()?;
        match found {
            Found::Failed(text) => self.failed(&text)?,
            // As tar does: whoever listens makes a new one.
            Found::Socket(path) => (self.on_failure)(&socket_words(&path)),
            Found::Stream(_) => {}
            Found::Entry { root, entry, .. } => {
                if let EntryKind::File { len, .. } = entry.kind {
                    self.progress.files.fetch_add(1, Ordering::Relaxed);
                    self.progress.bytes.fetch_add(len, Ordering::Relaxed);
                }
                batch.push((root, entry));
                if batch.len() == BATCH {
                    self.batch(batch)?;
                }
            }
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<()> {
        if self.progress.stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Io, "it was stopped"));
        }
        Ok(())
    }

    /// Tells of a failure here, and whoever unpacks.
    fn failed(&mut self, text: &str) -> Result<()> {
        self.packed.failed += 1;
        (self.on_failure)(text);
        let mut record = Vec::new();
        self.records.failed(text, &mut record);
        self.out.put(&record)
    }

    /// Announces the entries, and then writes their contents, similar ones near each other.
    fn batch(&mut self, batch: &mut Vec<(usize, Entry)>) -> Result<()> {
        let begin = self.items.len();
        if begin + batch.len() > ENTRIES_MAX {
            return Err(Error::limit(format!("a pack has at most {ENTRIES_MAX} entries; pack its folders one by one")));
        }
        let mut record = Vec::new();
        // Hard links to files of this batch.
        self.links.clear();
        for (root, mut entry) in batch.drain(..) {
            record.clear();
            if let EntryKind::HardLink { of } = entry.kind {
                entry.kind = self.link(root, &entry, of);
            }
            if let Err(e) = self.announce(&entry, &mut record) {
                self.failed(&format!("{}: {e}", shown(&entry.path)))?;
                entry.xattrs.clear();
                self.announce(&entry, &mut record)?;
            }
            self.out.put(&record)?;
            let id = self.items.len() as u64;
            let content = match &entry.kind {
                EntryKind::HardLink { of } => {
                    if *of >= begin as u64 {
                        self.links.entry(*of).or_default().push(id as usize);
                    }
                    let first = usize::try_from(*of).ok().and_then(|of| self.items.get(of));
                    Content::Of(first.map(|first| first.item.entry.path.clone()).unwrap_or_default())
                }
                _ => Content::None,
            };
            let lost = matches!(entry.kind, EntryKind::HardLink { of } if self.is_absent(of));
            let name = shown(&entry.path);
            self.items.push(Built { item: Item { entry, id, content }, root, whole: false, absent: lost });
            if lost {
                self.failed(&format!("cannot read {name}: it has vanished"))?;
            }
        }
        record.clear();
        self.records.gathered(&mut record);
        self.out.put(&record)?;
        let is_file = |built: &Built| matches!(built.item.entry.kind, EntryKind::File { .. });
        let mut files: Vec<usize> = (begin..self.items.len()).filter(|i| is_file(&self.items[*i])).collect();
        if !self.options.by_path {
            // Stable, so equal suffixes stay in the order of their paths.
            files.sort_by(|a, b| suffix(&self.items[*a].item.entry.path).cmp(suffix(&self.items[*b].item.entry.path)));
        }
        files.into_iter().try_for_each(|i| self.file(i))?;
        self.end_group()
    }

    fn announce(&mut self, entry: &Entry, record: &mut Vec<u8>) -> Result<u64> {
        // The first one alone, by which programs that do not know the others know a pack.
        if self.items.is_empty() { self.records.entry(entry, record) } else { self.records.gather(entry, record) }
    }

    /// What a hard link to entry `of` is: of a file that is not in the pack after all, the file itself.
    fn link(&mut self, root: usize, entry: &Entry, of: u64) -> EntryKind {
        let first = self.moved.get(&of).copied().unwrap_or(of);
        if self.is_absent(first)
            && let Ok((_, stat)) = self.open(root, &entry.path)
        {
            self.moved.insert(of, self.items.len() as u64);
            return EntryKind::File { len: stat.st_size as u64, linked: true };
        }
        EntryKind::HardLink { of: first }
    }

    fn is_absent(&self, id: u64) -> bool {
        usize::try_from(id).ok().and_then(|id| self.items.get(id)).is_some_and(|built| built.absent)
    }

    fn file(&mut self, i: usize) -> Result<()> {
        self.check_stop()?;
        let Built { item, root, .. } = &self.items[i];
        let (path, root) = (item.entry.path.clone(), *root);
        let EntryKind::File { len, .. } = item.entry.kind else { return Ok(()) };
        let opened = self.open(root, &path).or_else(|e| self.open_link(i).ok_or(e));
        let looked =
            opened.and_then(|(fd, stat)| Ok((FileState::from(&stat).settled(|| FileState::of(&fd))?, fd, stat)));
        let (state, fd, stat) = match looked {
            Ok(looked) => looked,
            Err(e) => {
                let what = match e.kind() {
                    std::io::ErrorKind::NotFound => "it has vanished".to_owned(),
                    _ => e_text(&e),
                };
                return self.left_out(i, &format!("cannot read {}: {what}", shown(&path)));
            }
        };
        if len <= SMALL_MAX as u64 && self.small(i, &fd, &stat)? {
            return Ok(());
        }
        let mut record = Vec::new();
        self.records.begin(i as u64, &mut record);
        self.out.put(&record)?;
        let sparse = (stat.st_blocks as u64).saturating_mul(512) < len && has_hole(&fd, len);
        let mut file = Reading {
            id: i as u64,
            fd,
            len,
            state,
            extents: Vec::new(),
            hash: blake3::Hasher::new(),
            holes: sparse.then(Holes::default),
            run: None,
        };
        let read = self.content(&mut file)?;
        self.end(i, &file, read)
    }

    /// Opens a file that has lost its name by another one.
    fn open_link(&mut self, i: usize) -> Option<(OwnedFd, Stat)> {
        let links = self.links.get(&(i as u64))?.clone();
        links.into_iter().find_map(|link| {
            let Built { item, root, .. } = &self.items[link];
            let (path, root) = (item.entry.path.clone(), *root);
            self.open(root, &path).ok()
        })
    }

    /// A file, and its other names, are not in the pack.
    fn left_out(&mut self, i: usize, text: &str) -> Result<()> {
        self.items[i].absent = true;
        self.failed(text)?;
        let path = shown(&self.items[i].item.entry.path);
        for link in self.links.get(&(i as u64)).cloned().unwrap_or_default() {
            self.items[link].absent = true;
            let name = shown(&self.items[link].item.entry.path);
            self.failed(&format!("{name} is a hard link to {path}, which could not be read; it is not in the pack"))?;
        }
        Ok(())
    }

    fn open(&mut self, root: usize, path: &[u8]) -> std::io::Result<(OwnedFd, Stat)> {
        let fd = self.roots[root].tree.open_below(path, READ)?;
        let stat = rustix::fs::fstat(&fd)?;
        // Reading must not block on a fifo that has replaced the file.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(std::io::Error::other("it is not a file any more"));
        }
        Ok((fd, stat))
    }

    /// Writes the content of a file; returns whether it was as long as announced.
    fn content(&mut self, file: &mut Reading) -> Result<std::io::Result<bool>> {
        let mut at = 0;
        while at < file.len {
            let mut end = file.len;
            if file.holes.is_some() {
                match next_data(&file.fd, at, file.len) {
                    Ok((begin, data_end)) => {
                        if begin > at {
                            self.end_run(file)?;
                            file.holes.iter_mut().for_each(|holes| holes.add(at, begin - at));
                            let mut record = Vec::new();
                            self.records.hole(begin - at, &mut record);
                            self.out.put(&record)?;
                            file.extents.push(Extent { raw: None, len: begin - at });
                            self.packed.holes += begin - at;
                            self.progress.bytes_done.fetch_add(begin - at, Ordering::Relaxed);
                            at = begin;
                        }
                        end = data_end;
                    }
                    Err(e) => return Ok(Err(e)),
                }
            }
            match self.span(file, at, end)? {
                Ok(true) => at = end,
                short => return Ok(short),
            }
        }
        Ok(Ok(true))
    }

    fn span(&mut self, file: &mut Reading, mut at: u64, end: u64) -> Result<std::io::Result<bool>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = loop {
            if at >= end {
                break Ok(true);
            }
            self.check_stop()?;
            let want = (end - at).min(READ_LEN as u64) as usize;
            buffer.resize(buffer.len().max(want), 0);
            let read = match read_at(&file.fd, &mut buffer[..want], at) {
                Ok(0) => break Ok(false),
                Ok(n) => n,
                Err(e) => break Err(e),
            };
            let is_last = at + read as u64 == end;
            let n = self.pieces(file, at, &buffer[..read], is_last)?;
            file.hash.update(&buffer[..n]);
            at += n as u64;
            self.progress.bytes_done.fetch_add(n as u64, Ordering::Relaxed);
        };
        self.end_run(file)?;
        self.buffer = buffer;
        Ok(result)
    }

    /// Writes the chunks of `bytes`, which begin at offset `at` of the file, except a last one that may be
    /// longer; returns the number of bytes written.
    fn pieces(&mut self, file: &mut Reading, at: u64, bytes: &[u8], is_last: bool) -> Result<usize> {
        if !self.options.repeats || bytes.len() < REPEAT_MIN || file.extents.len() >= EXTENTS_MAX / 2 {
            self.end_run(file)?;
            self.data(file, bytes)?;
            return Ok(bytes.len());
        }
        let (mut new_from, mut done) = (0, 0);
        // Chunks whose raw offset is known when their record is written.
        let mut fresh: Vec<(u128, usize)> = Vec::new();
        for chunk in FastCDC::new(bytes, CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2) {
            let (begin, end) = (chunk.offset, chunk.offset + chunk.length);
            if end == bytes.len() && !is_last && begin > 0 {
                break;
            }
            let content = &bytes[begin..end];
            let key = hash(content);
            let found =
                key.and_then(|key| self.index.find(key)).filter(|place| self.is_same(file, *place, at, content));
            if let Some(place) = found {
                self.fresh(file, at, &bytes[new_from..begin], new_from, &mut fresh)?;
                new_from = end;
                self.repeat(file, place, content.len() as u64)?;
            } else {
                if file.run.is_some() {
                    self.end_run(file)?;
                }
                if let Some(key) = key {
                    fresh.push((key, begin));
                }
            }
            done = end;
        }
        self.fresh(file, at, &bytes[new_from..done], new_from, &mut fresh)?;
        Ok(done)
    }

    /// Writes new bytes, which begin at `from` in the buffer, and remembers their chunks.
    fn fresh(
        &mut self,
        file: &mut Reading,
        at: u64,
        bytes: &[u8],
        from: usize,
        chunks: &mut Vec<(u128, usize)>,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.end_run(file)?;
        let raw = self.data(file, bytes)?;
        for (key, begin) in chunks.drain(..) {
            let place = Place { id: file.id, offset: at + begin as u64, raw: raw + (begin - from) as u64 };
            self.index.put(key, place);
        }
        Ok(())
    }

    /// Whether the bytes are those at the place.
    fn is_same(&mut self, file: &Reading, place: Place, at: u64, bytes: &[u8]) -> bool {
        if place.id == file.id {
            return place.offset + bytes.len() as u64 <= at && has(&file.fd, bytes, place.offset);
        }
        self.other_has(place, bytes)
    }

    /// Whether another file has the bytes at the place.
    fn other_has(&mut self, place: Place, bytes: &[u8]) -> bool {
        let Some(Built { item, root, whole: true, .. }) = self.items.get(place.id as usize) else { return false };
        let EntryKind::File { len, .. } = item.entry.kind else { return false };
        let known =
            Known { path: &item.entry.path, root: *root, len, mtime: (item.entry.mtime_s, item.entry.mtime_ns) };
        let tree = &mut self.roots[known.root].tree;
        self.index.has(place, bytes, &known, || tree.open_below(known.path, READ))
    }

    /// Adds to the run of repeated content, which is written when it ends.
    fn repeat(&mut self, file: &mut Reading, place: Place, len: u64) -> Result<()> {
        self.packed.repeated += len;
        if let Some((first, so_far)) = &mut file.run
            && first.id == place.id
            && first.offset + *so_far == place.offset
            && first.raw + *so_far == place.raw
            && *so_far + len <= u64::from(REPEAT_LEN_MAX)
        {
            *so_far += len;
            return Ok(());
        }
        self.end_run(file)?;
        file.run = Some((place, len));
        Ok(())
    }

    fn end_run(&mut self, file: &mut Reading) -> Result<()> {
        let Some((place, len)) = file.run.take() else { return Ok(()) };
        let mut record = Vec::new();
        self.records.repeat(place.id, place.offset, len as u32, &mut record);
        self.out.put(&record)?;
        file.add(place.raw, len);
        Ok(())
    }

    /// Writes a data record; returns the raw offset of its bytes.
    fn data(&mut self, file: &mut Reading, bytes: &[u8]) -> Result<u64> {
        let mut record = Vec::with_capacity(bytes.len() + 5);
        self.records.data(bytes, &mut record);
        let raw = self.out.at + (record.len() - bytes.len()) as u64;
        self.out.put(&record)?;
        file.add(raw, bytes.len() as u64);
        Ok(raw)
    }

    /// Ends the content of a file, completely read or not.
    fn end(&mut self, i: usize, file: &Reading, read: std::io::Result<bool>) -> Result<()> {
        let entry = &self.items[i].item.entry;
        let (path, mtime) = (entry.path.clone(), (entry.mtime_s, entry.mtime_ns));
        let digest = file.hash.finalize().into();
        let still = matches!(read, Ok(true)) && {
            let sum = DataSum::new(digest, file.holes.as_ref());
            let goes_on = || !self.progress.stop.load(Ordering::Relaxed);
            let now = file.state.still(&file.fd, || sum.is_of(&file.fd, file.len, goes_on)).ok().flatten();
            now.is_some_and(|now| (now.len, now.mtime) == (file.len, mtime))
        };
        // Files such as those of /proc have length 0, and their content is generated when they are read.
        let hides = file.len == 0 && rustix::io::pread(&file.fd, &mut [0], 0).is_ok_and(|n| n > 0);
        let list = list_of(&file.extents, self.out.at);
        let too_many = list.is_none();
        let state = match read {
            Ok(true) if hides || too_many => EndState::Partial,
            Ok(true) if still => EndState::Whole,
            Ok(true) => EndState::Changed,
            _ => EndState::Partial,
        };
        let end_at = self.out.at;
        let list = list.filter(|_| state != EndState::Partial);
        let mut record = Vec::new();
        self.records.end(state, &digest, &mut record);
        self.out.put(&record)?;
        if let Some(list) = list {
            self.items[i].item.content = Content::File { end_at, list: List::Here(list) };
            self.items[i].whole = state == EndState::Whole;
            self.packed.files += 1;
            self.packed.bytes += file.len;
            self.progress.files_done.fetch_add(1, Ordering::Relaxed);
            (self.on_file)(&shown_name(&path));
        }
        let name = shown(&path);
        match read {
            Err(e) => self.left_out(i, &format!("cannot read {name}: {}", e_text(&e))),
            Ok(false) => self.left_out(i, &format!("{name} shrank while it was read; it is not in the pack")),
            Ok(true) if hides => {
                self.left_out(i, &format!("{name} has content although its length is 0; it was left out"))
            }
            Ok(true) if too_many => {
                self.left_out(i, &format!("{name} has too many pieces for a pack; it was left out"))
            }
            Ok(true) if !still => {
                self.packed.changed += 1;
                (self.on_failure)(&format!("{name} changed while it was read"));
                Ok(())
            }
            Ok(true) => Ok(()),
        }
    }

    /// Ends the entry stream, and writes the directory after it.
    fn finish(mut self) -> Result<(W, Packed)> {
        let mut record = Vec::new();
        self.records.finish(&mut record);
        self.out.put(&record)?;
        let content_end = self.out.at;
        let (sink, flow) = self.out.writer.finish()?;
        let entries = self.items.len() as u64;
        self.packed.entries = entries;
        let absent: Vec<bool> = self.items.iter().map(|built| built.absent).collect();
        let mut items: Vec<Item> = Vec::with_capacity(self.items.len());
        for built in self.items {
            let linked = match built.item.entry.kind {
                EntryKind::HardLink { of } => absent.get(of as usize).copied().unwrap_or(true),
                _ => false,
            };
            if !built.absent && !linked {
                items.push(built.item);
            }
        }
        items.sort_by(|a, b| order::cmp(&a.entry.path, &b.entry.path));
        // Sources that have a folder of the same name were merged.
        items.dedup_by(|b, a| a.entry.path == b.entry.path);
        let writer = Writer::new(sink, self.options.directory())?;
        let mut builder = Builder::new(writer, content_end);
        items.into_iter().try_for_each(|item| builder.push(item))?;
        let (sink, directory) = builder.finish(entries, self.packed.bytes)?.finish()?;
        self.packed.wire_bytes = flow.wire_bytes + directory.wire_bytes;
        self.packed.flow = Some(flow);
        Ok((sink, self.packed))
    }
}

/// A file whose content is written.
struct Reading {
    id: u64,
    fd: OwnedFd,
    len: u64,
    /// What it was before it was read.
    state: FileState,
    extents: Vec<Extent>,
    hash: blake3::Hasher,
    /// The holes that were left out, if it has any.
    holes: Option<Holes>,
    /// Repeated content that goes on, and its length.
    run: Option<(Place, u64)>,
}

impl Reading {
    fn add(&mut self, raw: u64, len: u64) {
        if let Some(Extent { raw: Some(last), len: so_far }) = self.extents.last_mut()
            && *last + *so_far == raw
        {
            *so_far += len;
            return;
        }
        self.extents.push(Extent { raw: Some(raw), len });
    }
}

/// The list of a file's extents, which its end record at `end_at` follows; `None` if it is longer than a
/// directory may have.
fn list_of(extents: &[Extent], end_at: u64) -> Option<Vec<u8>> {
    if extents.len() > EXTENTS_MAX {
        return None;
    }
    let mut list = Vec::new();
    put_extents(extents, end_at, &mut list);
    Some(list).filter(|list| list.len() <= LIST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that is too long is told of its file, and does not fail the pack at its end.
    #[test]
    fn lists_that_no_directory_has_are_refused_at_their_file() {
        let far = |i: usize| Extent { raw: Some(if i.is_multiple_of(2) { 0 } else { 1 << 60 }), len: 1 << 13 };
        let extents: Vec<Extent> = (0..EXTENTS_MAX + 1).map(far).collect();
        assert!(list_of(&extents, 1 << 61).is_none() && list_of(&extents[..EXTENTS_MAX], 1 << 61).is_none());
        let list = list_of(&extents[..EXTENTS_MAX / 2], 1 << 61).unwrap();
        assert!(list.len() > LIST_MAX / 2);
    }
}
