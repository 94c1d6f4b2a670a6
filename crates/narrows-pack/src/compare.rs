//! Compares a directory with the entry stream before it: entries, where their contents are and where these
//! end. Content itself is not hashed, but for files that repeat others.

use narrows::entry::{DIGEST_LEN, EndState, Entry, EntryKind, GROUP, Group, Record, RecordParser};
use narrows::frame::varint;
use narrows::{Error, Result};
use narrows_file::ReadAt;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::check::Batch;
use crate::item::{Content, Item};
use crate::member::{Extents, Lists};
use crate::pack::Pack;
use crate::unpack::AHEAD;

/// Most entries that are compared, 8 bytes of memory each.
const ENTRIES_MAX: u64 = 16 << 20;
/// Longest header of a record: kind and length.
const HEADER_MAX: usize = 5;
/// Bits of a mark: the entry is in the pack; its content repeats others.
const IS_THERE: u64 = 1;
const REPEATS: u64 = 2;

/// Compares the directory of a pack with its entry stream, which is decoded by `threads` threads; the cache of
/// the pack must hold twice [`AHEAD`]. Calls `on_other` with the items that are not those of the stream. False
/// if there are too many entries to compare.
///
/// # Errors
/// The source fails; the entry stream or the directory is damaged; or the directory leaves files out.
pub fn compare_directory<R: ReadAt>(
    pack: &Pack<R>,
    threads: usize,
    mut on_other: impl FnMut(&Item, &str),
) -> Result<bool> {
    if pack.trailer().entries > ENTRIES_MAX {
        return Ok(false);
    }
    let stream = Stream::read(pack, threads)?;
    let mut lists = Lists::new(pack);
    let mut batch = Batch::default();
    let mut files = 0;
    let mut told = |item: &Item, error: Error| match error.source {
        Some(_) => Err(error),
        None => {
            on_other(item, &error.to_string());
            Ok(())
        }
    };
    for item in pack.walk(b"") {
        let item = item?;
        let seen = usize::try_from(item.id).ok().and_then(|id| stream.marks.get(id)).copied().unwrap_or(0);
        let extents = match &item.content {
            Content::File { .. } => Some(lists.of(&item)?),
            _ => None,
        };
        files += u64::from(extents.is_some());
        if seen & IS_THERE == 0 || mark_of(&item, extents.as_ref(), seen)? != seen || !leads_to_its_file(pack, &item)? {
            told(&item, Error::corrupt("the directory says something else of it than the entry itself"))?;
            continue;
        }
        // Which bytes it repeats is in the stream by numbers of files; its digest says it as well.
        if let Some(extents) = extents.filter(|_| seen & REPEATS != 0) {
            batch.push(extents.raw_begin(), item);
        }
        if batch.is_full() {
            batch.compare(pack, threads, &mut told)?;
        }
    }
    batch.compare(pack, threads, &mut told)?;
    match stream.files.checked_sub(files) {
        Some(0) => Ok(true),
        _ => Err(Error::corrupt(format!("it has {files} files, and the entries have {}", stream.files))),
    }
}

/// Whether a hard link leads to the file that the stream says. Others do.
fn leads_to_its_file<R: ReadAt>(pack: &Pack<R>, item: &Item) -> Result<bool> {
    let (Content::Of(path), EntryKind::HardLink { of }) = (&item.content, &item.entry.kind) else {
        return Ok(true);
    };
    Ok(pack.find(path)?.is_some_and(|file| file.id == *of && matches!(file.content, Content::File { .. })))
}

/// The mark of an item as the directory has it, with the bits of `seen`.
fn mark_of(item: &Item, extents: Option<&Extents>, seen: u64) -> Result<u64> {
    let fields = fields_of(&item.entry)?;
    let (Some(extents), Content::File { end_at, .. }) = (extents, &item.content) else {
        return Ok(fields | seen & (IS_THERE | REPEATS));
    };
    let mut layout = Layout::default();
    if seen & REPEATS == 0 {
        extents.iter().for_each(|(raw, len)| layout.add(raw, len));
    }
    Ok(of_file(fields, *end_at, layout.finish(), seen & REPEATS != 0))
}

/// A hash of the fields of an entry, without the bits.
fn fields_of(entry: &Entry) -> Result<u64> {
    let mut out = Vec::new();
    entry.put(b"", &mut out)?;
    Ok(xxh3_64(&out) & !(IS_THERE | REPEATS))
}

fn of_file(fields: u64, end_at: u64, layout: u64, repeats: bool) -> u64 {
    let words = [fields, end_at, if repeats { 0 } else { layout }].map(u64::to_le_bytes);
    xxh3_64(words.as_flattened()) & !(IS_THERE | REPEATS) | IS_THERE | if repeats { REPEATS } else { 0 }
}

/// Where the bytes of a file are: a hash of its extents, however they are cut.
#[derive(Default)]
struct Layout {
    hash: Xxh3,
    last: Option<(Option<u64>, u64)>,
}

impl Layout {
    fn add(&mut self, raw: Option<u64>, len: u64) {
        if len == 0 {
            return;
        }
        match (&mut self.last, raw) {
            (Some((None, so_far)), None) => *so_far = so_far.wrapping_add(len),
            (Some((Some(begin), so_far)), Some(raw)) if begin.wrapping_add(*so_far) == raw => *so_far += len,
            _ => {
                self.flush();
                self.last = Some((raw, len));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((raw, len)) = self.last.take() {
            let words = [u64::from(raw.is_some()), raw.unwrap_or(0), len].map(u64::to_le_bytes);
            self.hash.update(words.as_flattened());
        }
    }

    fn finish(mut self) -> u64 {
        self.flush();
        self.hash.digest()
    }
}

/// What an entry stream has.
struct Stream {
    /// A mark for each entry, by number.
    marks: Vec<u64>,
    /// Files with content.
    files: u64,
}

impl Stream {
    fn read<R: ReadAt>(pack: &Pack<R>, threads: usize) -> Result<Self> {
        let end = pack.trailer().content_end;
        let (mut at, mut ahead) = (0, 0);
        let mut scan = Scan::default();
        while at < end && !scan.state.is_over {
            if at >= ahead {
                ahead = at.saturating_add(AHEAD as u64);
                pack.file.read_ahead(at, AHEAD, threads)?;
            }
            let Some(block) = pack.file.block_at(at)? else { break };
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(block.len());
            scan.push(&block[..n])?;
            at += n as u64;
        }
        if !scan.state.is_over || scan.at != end {
            return Err(Error::corrupt("the entries end elsewhere than the trailer of the pack says"));
        }
        Ok(Self { marks: scan.state.marks, files: scan.state.files })
    }
}

/// Goes through an entry stream, record by record, and knows where each is.
struct Scan {
    parser: RecordParser,
    /// Raw offset of the next byte.
    at: u64,
    /// Raw offset of the record.
    begin: u64,
    header: Vec<u8>,
    /// Bytes of its body that are to come.
    body: usize,
    /// The body of a group so far.
    group: Option<Vec<u8>>,
    state: State,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            parser: RecordParser::of_pack(),
            at: 0,
            begin: 0,
            header: Vec::new(),
            body: 0,
            group: None,
            state: State::default(),
        }
    }
}

#[derive(Default)]
struct State {
    marks: Vec<u64>,
    files: u64,
    open: Option<Open>,
    is_over: bool,
}

/// A file whose content comes.
struct Open {
    id: usize,
    layout: Layout,
    repeats: bool,
}

impl Scan {
    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(first) = bytes.first()
            && !self.state.is_over
        {
            if self.body > 0 {
                let (part, rest) = bytes.split_at(self.body.min(bytes.len()));
                self.pass(part)?;
                self.at += part.len() as u64;
                self.body -= part.len();
                self.group.iter_mut().for_each(|body| body.extend_from_slice(part));
                if self.body == 0
                    && let Some(body) = self.group.take()
                {
                    self.state.group(&body, self.begin, self.at - body.len() as u64)?;
                }
                bytes = rest;
                continue;
            }
            if self.header.is_empty() {
                self.begin = self.at;
            }
            self.header.push(*first);
            self.at += 1;
            bytes = &bytes[1..];
            match varint(&self.header[1..], HEADER_MAX - 1)? {
                None if self.header.len() < HEADER_MAX => {}
                None => return Err(Error::corrupt("a record has no length")),
                Some((len, _)) => {
                    let header = std::mem::take(&mut self.header);
                    self.group = (header[0] == GROUP).then(Vec::new);
                    // The parser refuses what is too long.
                    self.pass(&header)?;
                    self.body = usize::try_from(len).map_err(|_| Error::corrupt("a record is too long"))?;
                }
            }
        }
        Ok(())
    }

    /// A header, or bytes of a body, which stand at `at`.
    fn pass(&mut self, bytes: &[u8]) -> Result<()> {
        let Self { parser, state, begin, at, group, .. } = self;
        // Of a group the parser does not say where each content is.
        let is_group = group.is_some();
        parser.push(bytes, |record| if is_group { Ok(()) } else { state.take(record, *begin, *at) })
    }
}

impl State {
    /// A group whose record begins at `begin` and its body at `at`.
    fn group(&mut self, body: &[u8], begin: u64, at: u64) -> Result<()> {
        for (id, place, len) in Group::parse(body)?.files() {
            self.take(Record::Begin { id }, begin, at)?;
            self.open.iter_mut().for_each(|open| open.layout.add(Some(at + place as u64), len as u64));
            self.take(Record::End { state: EndState::Whole, digest: [0; DIGEST_LEN] }, begin, at)?;
        }
        Ok(())
    }

    fn take(&mut self, record: Record<'_>, begin: u64, at: u64) -> Result<()> {
        match record {
            Record::Entry(entry) => {
                let there = if entry.kind.has_content() { 0 } else { IS_THERE };
                self.marks.push(fields_of(&entry)? | there);
                if self.marks.len() as u64 > ENTRIES_MAX {
                    return Err(Error::corrupt("there are more entries than the trailer of the pack says"));
                }
            }
            Record::Begin { id } => {
                let id = usize::try_from(id).map_err(|_| Error::corrupt("a number of an entry is too large"))?;
                self.open = Some(Open { id, layout: Layout::default(), repeats: false });
            }
            Record::Data(bytes) => {
                self.open.iter_mut().for_each(|open| open.layout.add(Some(at), bytes.len() as u64));
            }
            Record::Hole(len) => self.open.iter_mut().for_each(|open| open.layout.add(None, len)),
            Record::Repeat { .. } => self.open.iter_mut().for_each(|open| open.repeats = true),
            Record::End { state, .. } => {
                if let Some(Open { id, layout, repeats }) = self.open.take().filter(|_| state != EndState::Partial)
                    && let Some(mark) = self.marks.get_mut(id)
                {
                    // One that comes twice is none of a writer.
                    if *mark & IS_THERE != 0 {
                        return Err(Error::corrupt("the content of a file comes twice"));
                    }
                    *mark = of_file(*mark, begin, layout.finish(), repeats);
                    self.files += 1;
                }
            }
            Record::Finish { .. } => self.is_over = true,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::List;
    use crate::tests::{forged, item, leaf, packed, tree, two_files};

    /// The items that differ.
    fn others(bytes: &[u8]) -> Result<Vec<String>> {
        let pack = Pack::open(bytes)?;
        let mut names = Vec::new();
        let compared = compare_directory(&pack, 2, |item, _| {
            names.push(String::from_utf8(item.entry.path.clone()).unwrap());
        })?;
        assert!(compared);
        Ok(names)
    }

    #[test]
    fn the_directory_of_a_pack_is_that_of_its_entries() {
        let home = tempfile::tempdir().unwrap();
        tree(home.path());
        let top = home.path().join("top");
        let holes = std::fs::File::create(top.join("holes")).unwrap();
        holes.set_len(1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, b"end", (1 << 20) - 3).unwrap();
        assert_eq!(others(&packed(&top)).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_a_directory_says_wrongly_is_found() {
        let (raw, [one, two]) = two_files();
        let directory = raw.len() as u64;
        let good = [item("1", 0, one.0, one.1), item("2", 1, two.0, two.1)];
        let forge = |items: &[Item]| others(&forged(&raw, &[leaf(items, directory)], 0, |_| ()));
        assert_eq!(forge(&good).unwrap(), Vec::<String>::new());
        let changed = |change: fn(&mut Item)| {
            let mut items = good.clone();
            change(&mut items[0]);
            forge(&items).unwrap()
        };
        for (what, names) in [
            ("mode", changed(|item| item.entry.mode ^= 0o4000)),
            ("owner", changed(|item| item.entry.uid += 1)),
            ("time", changed(|item| item.entry.mtime_s += 1)),
            ("attribute", changed(|item| item.entry.xattrs.push((b"user.x".to_vec(), b"y".to_vec())))),
            ("kind", changed(|item| item.entry.kind = EntryKind::File { len: 6, linked: true })),
            ("number", changed(|item| item.id = 1)),
        ] {
            assert_eq!(names, ["1"], "{what}");
        }
        let path = [item("0", 0, one.0, one.1), good[1].clone()];
        assert_eq!(forge(&path).unwrap(), ["0"]);
        let content = [item("1", 0, two.0, one.1), good[1].clone()];
        assert_eq!(forge(&content).unwrap(), ["1"]);
        let end = [item("1", 0, one.0, two.1), good[1].clone()];
        assert_eq!(forge(&end).unwrap(), ["1"]);
        let beside = [item("1", 0, one.0 - 1, one.1), good[1].clone()];
        assert_eq!(forge(&beside).unwrap(), ["1"]);
        let error = forge(&good[..1]).unwrap_err().to_string();
        assert!(error.contains("1 files, and the entries have 2"), "{error}");
        let hole =
            Item { content: Content::File { end_at: one.1, list: List::Here(vec![6 << 1 | 1]) }, ..good[0].clone() };
        assert_eq!(forge(&[hole, good[1].clone()]).unwrap(), ["1"]);
    }

    #[test]
    fn records_are_found_however_the_bytes_are_cut() {
        let (raw, [one, two]) = two_files();
        let mut whole = Scan::default();
        whole.push(&raw).unwrap();
        assert!(whole.state.is_over && whole.at == raw.len() as u64 && whole.state.files == 2);
        for len in [1, 2, 3, 7] {
            let mut scan = Scan::default();
            raw.chunks(len).try_for_each(|bytes| scan.push(bytes)).unwrap();
            assert_eq!((&scan.state.marks, scan.at), (&whole.state.marks, whole.at), "{len}");
        }
        assert!(one.1 < two.0);
        for at in 0..raw.len() {
            let mut bad = raw.clone();
            bad[at] ^= 0x41;
            let mut scan = Scan::default();
            let _ = scan.push(&bad);
        }
    }
}
