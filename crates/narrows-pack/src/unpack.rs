//! Unpacking: the entry stream goes to the storing end of a copy.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::entry::{EndState, Entry, EntryKind, RecordWriter};
use narrows::frame::varint;
use narrows::stream::ReceiveOptions;
use narrows::{Error, ErrorKind, Result};
use narrows_copy::store::EntryStore;
use narrows_file::ReadAt;
use narrows_file::decode::{Decoded, decode};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use crate::item::{Content, Item};
use crate::member::{Lists, MemberReader, Piece};
use crate::order;
use crate::pack::Pack;
use crate::select::Selector;
use crate::trailer::{TRAILER_LEN, Trailer};

/// Kind of the record after which the directory begins.
const FINISH: u8 = 7;
/// Records with which a pack begins: an entry, a failure, its end, entries by columns.
const FIRST: [u8; 4] = [1, 6, FINISH, 14];
/// Longest header of a record: kind and length.
const HEADER_MAX: usize = 5;
/// Longest body of a finish record: one number.
const FINISH_LEN_MAX: u64 = 10;
/// Entries whose contents follow together; a store keeps so many in mind.
const BATCH: usize = 64 << 10;
/// Weight of their files after which contents follow earlier: long paths.
const BATCH_WEIGHT: usize = 64 << 20;
/// Raw bytes that are decoded by several threads at once: some blocks for each.
pub const AHEAD: usize = 16 << 20;
/// Length of a data record.
const READ_LEN: usize = 256 << 10;

/// Most files that are named of those that could not be compared: 1 MiB of text.
const NAMED_MAX: usize = 1 << 13;

/// What unpacking left.
#[derive(Debug, Default)]
pub struct Left {
    /// Paths that were asked for and are not there.
    pub missing: Vec<String>,
    /// Files of which the content is damaged. They are not unpacked, and were told of.
    pub damaged: u64,
    /// Files that are unpacked as they are in the pack, where what their content is compared with is damaged;
    /// 8,192 at most.
    pub unproven: Vec<Vec<u8>>,
    /// Files that repeat others which were not there any more, and that could not be read again.
    pub unrepeated: Vec<Vec<u8>>,
    /// Why the pack ends early or is damaged, if so.
    pub broken: Option<Error>,
    /// The entry stream is damaged, and another store is to go on by the directory.
    pub goes_on: bool,
    /// What follows the entries is not their directory alone. They are unpacked.
    pub followed: Option<Error>,
    /// Bytes that were decoded.
    pub decoded: Decoded,
}

impl Left {
    fn note(&mut self, sent: Sent, path: &[u8]) {
        match sent {
            Sent::Damaged => self.damaged += 1,
            Sent::Unproven if self.unproven.len() < NAMED_MAX => self.unproven.push(path.to_vec()),
            Sent::Unproven | Sent::Whole => {}
        }
    }
}

/// Unpacks everything by the entry stream, from the first byte to the last, so that a pipe does too.
/// `pack` is the same pack, opened by its directory, if that can be: it has the content of repeated files
/// that are not there any more. The store is complete afterwards; of a pack that breaks off or is damaged
/// it has what came whole before that. If such a pack has its directory, another store is to go on with
/// [`unpack_some`] ([`Left::goes_on`]), so that this one does not do what comes last, such as hard links.
///
/// # Errors
/// The source fails, is no pack, or the store was interrupted.
pub fn unpack_all<S, R>(
    source: S,
    pack: Option<&Pack<R>>,
    store: &EntryStore,
    options: impl FnMut() -> ReceiveOptions,
) -> Result<Left>
where
    S: Read + Send + 'static,
    R: ReadAt,
{
    let inline = Inline {
        store: store.clone(),
        begun: false,
        header: Vec::new(),
        body: 0,
        finish: None,
        wrong: None,
        passed: 0,
        content_end: 0,
        last: Vec::new(),
    };
    let inline = Arc::new(Mutex::new(inline));
    let decoded = decode(source, Shared(Arc::clone(&inline)), options);
    let (finish, wrong, followed) = {
        let mut inline = inline.lock().unwrap_or_else(PoisonError::into_inner);
        (inline.finish.take(), inline.wrong.take(), inline.followed())
    };
    // The flow only knows that its sink failed.
    let (decoded, broken) = match decoded.map_err(|e| wrong.unwrap_or(e)) {
        Ok(decoded) => (decoded, None),
        Err(e) if matches!(e.kind, ErrorKind::Corrupt | ErrorKind::Truncated) => (Decoded::default(), Some(e)),
        Err(e) => {
            store.abandon();
            return Err(e);
        }
    };
    let mut left = Left { decoded, broken, ..Left::default() };
    let Some(finish) = finish.filter(|f| f.whole) else {
        left.goes_on = pack.is_some();
        if left.goes_on {
            store.leave();
        } else {
            store.finish_early()?;
        }
        left.broken.get_or_insert_with(|| Error::truncated("the pack breaks off"));
        return Ok(left);
    };
    if left.broken.is_none() {
        left.followed = followed;
    }
    let mut lists = pack.map(Lists::new);
    for (id, path) in store.wanted_again() {
        let found = pack.map(|pack| pack.find(&path).map(|found| (pack, found))).transpose()?;
        let Some((pack, Some(item))) = found else {
            left.unrepeated.push(path);
            continue;
        };
        lists.as_mut().map_or(Ok(()), |lists| lists.count(&item))?;
        let records = RecordWriter::default();
        let sent = send_content(pack, id, &item, &records, &mut store.clone(), &mut vec![0; READ_LEN])?;
        left.note(sent, &path);
    }
    let mut sink = store.clone();
    match sink.write_all(&finish.record) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            store.finish_early()?;
            left.broken.get_or_insert_with(|| Error::corrupt(e.to_string()));
        }
        result => {
            result?;
            store.finish()?;
        }
    }
    Ok(left)
}

/// Unpacks the entries that are asked for, and the folders above them, by the directory. Content that the
/// store has is not read. Damaged files are left out, and a directory that is damaged ends it early; what it
/// said before is unpacked. `threads` decode what lies together; the cache of the pack must hold twice
/// [`AHEAD`].
///
/// # Errors
/// The source fails, or the store was interrupted.
pub fn unpack_some<R: ReadAt>(pack: &Pack<R>, selector: &Selector, store: &EntryStore, threads: usize) -> Result<Left> {
    let mut sending = Sending {
        pack,
        lists: Lists::new(pack),
        threads,
        sink: store.clone(),
        records: RecordWriter::default(),
        before: None,
        firsts: HashMap::new(),
        files: Vec::new(),
        announced: 0,
        weight: 0,
        buffer: vec![0; READ_LEN],
        left: Left::default(),
    };
    let mut result = Ok(());
    let missing = selector.each(pack, |item| {
        result = sending.add(item);
        result.is_ok()
    });
    match result.and(missing) {
        Ok(missing) => sending.left.missing = missing,
        Err(e) if e.source.is_none() && e.kind == ErrorKind::Corrupt => sending.left.broken = Some(e),
        Err(e) => return Err(e),
    }
    sending.send_files()?;
    let mut record = Vec::new();
    sending.records.finish(&mut record);
    sending.sink.write_all(&record)?;
    store.finish()?;
    Ok(sending.left)
}

/// Makes an entry stream of some entries of a pack, which come in the order of their paths.
struct Sending<'a, R> {
    pack: &'a Pack<R>,
    lists: Lists<'a, R>,
    threads: usize,
    sink: EntryStore,
    records: RecordWriter,
    /// The path that came before.
    before: Option<Vec<u8>>,
    /// Numbers of files to which hard links may follow, by the hashes of their paths: a million long paths
    /// would be much memory.
    firsts: HashMap<u128, u64>,
    /// Files whose contents are to be sent: where these begin, number, entry without attributes.
    files: Vec<(u64, u64, Item)>,
    /// Entries since contents were sent, and the weight of `files`.
    announced: usize,
    weight: usize,
    buffer: Vec<u8>,
    left: Left,
}

impl<R: ReadAt> Sending<'_, R> {
    fn add(&mut self, item: Item) -> Result<()> {
        self.add_folders(&item.entry.path)?;
        self.announce(&item)?;
        self.before = Some(item.entry.path);
        Ok(())
    }

    /// Announces the folders above a path that are not above the path before. Each is looked up once, and
    /// those that are no entries are passed over together, so long paths are no more work than their bytes.
    fn add_folders(&mut self, path: &[u8]) -> Result<()> {
        // Folders that end before this place are done.
        let mut from = self.before.as_ref().map_or(0, |before| {
            let shared = shared(before, path);
            shared + usize::from(before.len() == shared)
        });
        for (at, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
            if at < from {
                continue;
            }
            let Some(found) = self.pack.walk(&path[..at]).next().transpose()? else { break };
            let next = &found.entry.path;
            if order::cmp(next, path) != Ordering::Less {
                break;
            }
            from = shared(next, path) + 1;
            if *next == path[..at] && found.entry.kind == EntryKind::Folder {
                self.announce(&found)?;
            }
        }
        Ok(())
    }

    fn announce(&mut self, item: &Item) -> Result<()> {
        let mut record = Vec::new();
        let (entry, file) = entry_of(self.pack, item, &self.firsts)?;
        // Before anything of it is in the stream: it may be damaged.
        let file = file.map(|file| Ok::<_, Error>((self.lists.of(&file)?.raw_begin(), file))).transpose()?;
        let id = self.records.entry(&entry, &mut record)?;
        if let Some((raw, mut file)) = file {
            if matches!(file.entry.kind, EntryKind::File { linked: true, .. }) {
                self.firsts.insert(xxh3_128(&file.entry.path), id);
            }
            file.entry.xattrs = Vec::new();
            self.weight += file.weight();
            self.files.push((raw, id, file));
        }
        self.sink.write_all(&record)?;
        self.announced += 1;
        if self.announced >= BATCH || self.weight >= BATCH_WEIGHT { self.send_files() } else { Ok(()) }
    }

    /// Sends the contents of the files that were announced, in the order in which they are packed, so that
    /// each block is decoded once.
    fn send_files(&mut self) -> Result<()> {
        let mut files = std::mem::take(&mut self.files);
        (self.announced, self.weight) = (0, 0);
        files.retain(|(_, id, _)| self.sink.wants(*id));
        files.sort_by_key(|(raw, id, _)| (*raw, *id));
        let mut ahead = 0;
        for (i, (raw, id, file)) in files.iter().enumerate() {
            if *raw >= ahead && is_dense(&files[i..], raw.saturating_add(AHEAD as u64)) {
                ahead = raw.saturating_add(AHEAD as u64);
                self.pack.file.read_ahead(*raw, AHEAD, self.threads)?;
            }
            let sent = send_content(self.pack, *id, file, &self.records, &mut self.sink, &mut self.buffer)?;
            self.left.note(sent, &file.entry.path);
        }
        Ok(())
    }
}

/// How many bytes two paths begin with alike.
fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether these files have half of the raw bytes up to `end`.
fn is_dense(files: &[(u64, u64, Item)], end: u64) -> bool {
    let here = files.iter().take_while(|(raw, ..)| *raw < end);
    let len = |item: &Item| if let EntryKind::File { len, .. } = item.entry.kind { len } else { 0 };
    here.fold(0u64, |sum, (.., item)| sum.saturating_add(len(item))) >= AHEAD as u64 / 2
}

/// The entry to announce, and the file whose content it has. A hard link to a file that was not asked for
/// is that file.
fn entry_of<R: ReadAt>(pack: &Pack<R>, item: &Item, firsts: &HashMap<u128, u64>) -> Result<(Entry, Option<Item>)> {
    let mut entry = item.entry.clone();
    // Numbers of this stream are others.
    entry.xattrs.retain(|(name, _)| name != b"narrows.link");
    match &item.content {
        Content::None => Ok((entry, None)),
        Content::File { .. } => Ok((entry, Some(item.clone()))),
        Content::Of(first) => {
            if let Some(of) = firsts.get(&xxh3_128(first)) {
                entry.kind = EntryKind::HardLink { of: *of };
                return Ok((entry, None));
            }
            let file = pack.file_of(item)?;
            entry.kind = file.entry.kind.clone();
            Ok((entry, Some(file)))
        }
    }
}

/// What was sent of a file.
enum Sent {
    Whole,
    /// A part of it, and why it is not more.
    Damaged,
    /// All of it, but its digest could not be compared.
    Unproven,
}

/// Sends the content of a file as the records of entry `id`.
fn send_content<R: ReadAt>(
    pack: &Pack<R>,
    id: u64,
    file: &Item,
    records: &RecordWriter,
    sink: &mut EntryStore,
    buffer: &mut [u8],
) -> Result<Sent> {
    let mut record = Vec::new();
    records.begin(id, &mut record);
    sink.write_all(&record)?;
    let mut reader: MemberReader<'_, R> = pack.member(file)?.reader();
    loop {
        record.clear();
        let piece = match reader.piece(buffer) {
            // A disk with a bad place may have the others; a source that is gone has none.
            Err(e) if e.source.as_ref().is_some_and(|e| Errno::from_io_error(e) != Some(Errno::IO)) => return Err(e),
            piece => piece,
        };
        let mut sent = None;
        match &piece {
            Ok(Piece::Data(n)) => records.data(&buffer[..*n], &mut record),
            Ok(Piece::Hole(len)) => records.hole(*len, &mut record),
            Ok(Piece::End(digest)) => {
                records.end(EndState::Whole, digest, &mut record);
                sent = Some(Sent::Whole);
            }
            Ok(Piece::Unproven(digest, _)) => {
                records.end(EndState::Whole, digest, &mut record);
                sent = Some(Sent::Unproven);
            }
            // Damaged there: the others may be whole.
            Err(e) => {
                records.end(EndState::Partial, &[0; 32], &mut record);
                let name = narrows_host::words::shown(&file.entry.path);
                records.failed(&format!("cannot unpack {name}: {e}"), &mut record);
                sent = Some(Sent::Damaged);
            }
        }
        sink.write_all(&record)?;
        if let Some(sent) = sent {
            return Ok(sent);
        }
    }
}

/// The sink of the raw bytes: the entry stream up to its finish record goes to the store.
struct Inline {
    store: EntryStore,
    /// The first byte came.
    begun: bool,
    /// The header of a record that straddles two writes.
    header: Vec<u8>,
    /// Bytes of the current record that are to come.
    body: usize,
    finish: Option<Finish>,
    /// What is wrong with the bytes.
    wrong: Option<Error>,
    /// Raw bytes that came, and where the entry stream ended.
    passed: u64,
    content_end: u64,
    /// The last bytes after the entry stream: at the end, the trailer.
    last: Vec<u8>,
}

/// The finish record, which is held back.
#[derive(Default)]
struct Finish {
    record: Vec<u8>,
    whole: bool,
}

impl Inline {
    /// Why what came after the entries is not their directory.
    fn followed(&self) -> Option<Error> {
        let bytes: Option<[u8; TRAILER_LEN]> = self.last.as_slice().try_into().ok();
        match bytes.map(|bytes| Trailer::parse(&bytes, self.passed)) {
            // The trailer of a second pack leads to no end of a root page here.
            Some(Ok(Some(t)))
                if t.content_end == self.content_end
                    && t.root.saturating_add(t.root_len).saturating_add(TRAILER_LEN as u64) == self.passed =>
            {
                None
            }
            // A directory that is cut off between two streams looks like one that was never there.
            _ if self.passed == self.content_end => Some(Error::truncated("the directory of the pack is missing")),
            _ => Some(Error::corrupt("something else than their directory follows; a pack is a file of its own")),
        }
    }

    /// Keeps the end of what is after the entries.
    fn keep_last(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TRAILER_LEN)..];
        let old = (self.last.len() + bytes.len()).saturating_sub(TRAILER_LEN);
        self.last.drain(..old);
        self.last.extend_from_slice(bytes);
    }

    /// Takes bytes up to the end of the entry stream, and returns how many these are.
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Begin of what goes to the store, and the place that was looked at.
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            if self.body > 0 {
                let n = self.body.min(bytes.len() - at);
                if let Some(finish) = &mut self.finish {
                    finish.record.extend_from_slice(&bytes[at..at + n]);
                }
                self.body -= n;
                at += n;
                if self.body == 0 && self.finish.is_some() {
                    self.end();
                    return Ok(at);
                }
                continue;
            }
            if self.header.is_empty() && bytes[at] == FINISH {
                self.store.write_all(&bytes[from..at])?;
                self.finish = Some(Finish::default());
            }
            self.header.push(bytes[at]);
            at += 1;
            let len = match varint(&self.header[1..], HEADER_MAX - 1) {
                Ok(None) if self.header.len() < HEADER_MAX => continue,
                Ok(Some((len, _))) => len,
                // The store says what is wrong.
                _ => 0,
            };
            self.body = usize::try_from(len).unwrap_or(usize::MAX);
            if let Some(finish) = &mut self.finish {
                // It is collected.
                if !(1..=FINISH_LEN_MAX).contains(&len) {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the end of the entries is no number"));
                }
                finish.record.append(&mut self.header);
                from = bytes.len();
            }
            self.header.clear();
            if self.body == 0 && self.finish.is_some() {
                self.end();
                return Ok(at);
            }
        }
        if self.finish.is_none() {
            self.store.write_all(&bytes[from..])?;
        }
        Ok(at)
    }

    fn end(&mut self) {
        if let Some(finish) = &mut self.finish {
            finish.whole = true;
        }
    }

    fn is_over(&self) -> bool {
        self.finish.as_ref().is_some_and(|f| f.whole)
    }
}

impl Write for Inline {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.begun, true) && bytes.first().is_some_and(|kind| !FIRST.contains(kind)) {
            self.wrong = Some(Error::new(ErrorKind::Unsupported, "it is no pack; narrows -d decompresses it"));
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut rest = bytes;
        if !self.is_over() {
            let taken = self.take(bytes).inspect_err(|e| {
                if e.kind() == io::ErrorKind::InvalidData {
                    self.wrong = Some(Error::corrupt(e.to_string()));
                }
            })?;
            rest = &bytes[taken..];
            if self.is_over() {
                self.content_end = self.passed + taken as u64;
            }
        }
        self.passed += bytes.len() as u64;
        if self.is_over() {
            self.keep_last(rest);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.store.flush()
    }
}

struct Shared(Arc<Mutex<Inline>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}
