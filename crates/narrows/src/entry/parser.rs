//! Parses records from bytes that arrive in pieces of any length.

use super::{
    ASK, BEGIN, CHUNK_LEN_MAX, CHUNKS, CHUNKS_MAX, Chunk, DATA, DATA_LEN_MAX, END, ENTRIES, ENTRY, EndState, Entry,
    EntryKind, EntryRows, FAILED, Fields, GROUP, Group, HAVE, HOLE, NAME_LEN_MAX, PATH_LEN_MAX, PIECES, RECORD_LEN_MAX,
    REFUSED, REGION_LEN_MAX, REPEAT, REPEAT_LEN_MAX, Record, Region, TEXT_LEN_MAX, TOTAL, check_path, unzigzag,
};
use crate::error::{Error, Result};
use crate::frame::varint;

/// Longest header: kind and body length.
const HEADER_MAX: usize = 1 + 4;
/// Most attributes of an entry: more than fit into a record.
const XATTRS_MAX: u64 = RECORD_LEN_MAX as u64 / 2;

/// Parser of the entry stream. It buffers an incomplete record, but never data.
#[derive(Debug, Default)]
pub struct RecordParser {
    buffer: Vec<u8>,
    /// Bytes of the current data record that are still to come.
    data_left: usize,
    path: Vec<u8>,
    entries: u64,
    in_file: bool,
    finished: bool,
    /// Records that only packs have are allowed.
    is_of_pack: bool,
}

impl RecordParser {
    /// Of the entry stream of a pack: entries by columns and groups come as the records that they stand for.
    pub fn of_pack() -> Self {
        Self { is_of_pack: true, ..Self::default() }
    }

    /// Takes the next bytes and passes every record in them to `on_record`, data as soon as it
    /// arrives.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` if the stream violates the format, and the errors of
    /// `on_record`.
    pub fn push(&mut self, mut bytes: &[u8], mut on_record: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            if self.data_left > 0 {
                let (data, rest) = bytes.split_at(self.data_left.min(bytes.len()));
                self.data_left -= data.len();
                bytes = rest;
                on_record(Record::Data(data))?;
                continue;
            }
            if self.finished {
                return Err(Error::corrupt("something follows the end of the entries"));
            }
            bytes = self.record(bytes, &mut on_record)?;
        }
        Ok(())
    }

    /// Whether the stream may end here.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes one record, or its header if it is data, from the buffer and the front of `bytes`;
    /// returns the rest.
    fn record<'b>(
        &mut self,
        bytes: &'b [u8],
        on_record: &mut impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<&'b [u8]> {
        // The header, byte by byte: it has at most five.
        let mut at = 0;
        let (kind, body_len, header_len) = loop {
            if let Some(header) = parse_header(&self.buffer, self.is_of_pack)? {
                break header;
            }
            let Some(byte) = bytes.get(at) else { return Ok(&[]) };
            self.buffer.push(*byte);
            at += 1;
        };
        if kind == DATA {
            if !self.in_file {
                return Err(Error::corrupt("data outside of a file"));
            }
            self.buffer.clear();
            self.data_left = body_len;
            return Ok(&bytes[at..]);
        }
        let missing = (header_len + body_len - self.buffer.len()).min(bytes.len() - at);
        self.buffer.extend_from_slice(&bytes[at..at + missing]);
        at += missing;
        if self.buffer.len() == header_len + body_len {
            let buffer = std::mem::take(&mut self.buffer);
            let body = &buffer[header_len..];
            match kind {
                ENTRIES => self.entries(body, on_record)?,
                GROUP => self.group(body, on_record)?,
                _ => {
                    let record = self.parse(kind, Fields(body))?;
                    on_record(record)?;
                }
            }
            self.buffer = buffer;
            self.buffer.clear();
        }
        Ok(&bytes[at..])
    }

    /// Entries by columns: each comes as a record of its own.
    fn entries(&mut self, mut body: &[u8], on_record: &mut impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        self.check_order(ENTRIES)?;
        let mut rows = EntryRows::take(&mut body, &self.path)?;
        Fields(body).end()?;
        while let Some(entry) = rows.next(self.entries)? {
            self.entries += 1;
            on_record(Record::Entry(entry))?;
        }
        self.path = rows.into_path();
        Ok(())
    }

    /// A group: each file comes as begin, data and end.
    fn group(&mut self, body: &[u8], on_record: &mut impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        self.check_order(GROUP)?;
        let group = Group::parse(body)?;
        for (id, at, len) in group.files() {
            on_record(Record::Begin { id: self.known_id(id)? })?;
            let content = &body[at..at + len];
            if !content.is_empty() {
                on_record(Record::Data(content))?;
            }
            on_record(Record::End { state: EndState::Whole, digest: blake3::hash(content).into() })?;
        }
        Ok(())
    }

    fn check_order(&self, kind: u8) -> Result<()> {
        // Chunks and pieces may come at any time.
        if !matches!(kind, CHUNKS | PIECES | ASK) && self.in_file != matches!(kind, HOLE | REPEAT | HAVE | END) {
            return Err(Error::corrupt("the records of a file are out of order"));
        }
        Ok(())
    }

    fn parse(&mut self, kind: u8, mut f: Fields<'_>) -> Result<Record<'static>> {
        self.check_order(kind)?;
        let record = match kind {
            ENTRY => Record::Entry(self.entry(&mut f)?),
            BEGIN => {
                self.in_file = true;
                Record::Begin { id: self.known_id(f.number()?)? }
            }
            HOLE => Record::Hole(f.number()?),
            REPEAT => self.repeat(&mut f)?,
            END => {
                self.in_file = false;
                let state = match f.byte()? {
                    0 => EndState::Partial,
                    1 => EndState::Whole,
                    2 => EndState::Changed,
                    _ => return Err(Error::corrupt("a file has an unknown end state")),
                };
                let digest = f.0.try_into().map_err(|_| Error::corrupt("a digest has a wrong length"))?;
                f.0 = &[];
                Record::End { state, digest }
            }
            CHUNKS => self.chunks(&mut f)?,
            PIECES => self.pieces(&mut f)?,
            FAILED => {
                if f.0.len() > TEXT_LEN_MAX {
                    return Err(Error::limit("a text is too long"));
                }
                let text = String::from_utf8_lossy(f.0).into_owned();
                f.0 = &[];
                Record::Failed { text }
            }
            TOTAL => Record::Total { files: f.number()?, bytes: f.number()? },
            ASK => Record::Ask { id: self.known_id(f.number()?)?, from: f.number()? },
            HAVE => Record::Have { len: f.number()? },
            REFUSED => Record::Refused { code: f.number()?, text: f.text()? },
            _ => {
                let entries = f.number()?;
                if entries != self.entries {
                    return Err(Error::corrupt("the number of entries is wrong"));
                }
                self.finished = true;
                Record::Finish { entries }
            }
        };
        f.end()?;
        Ok(record)
    }

    fn entry(&mut self, f: &mut Fields<'_>) -> Result<Entry> {
        let entry = entry(f, &mut self.path, self.entries)?;
        self.entries += 1;
        Ok(entry)
    }

    fn repeat(&self, f: &mut Fields<'_>) -> Result<Record<'static>> {
        let id = self.known_id(f.number()?)?;
        let (offset, len) = (f.number()?, f.number32()?);
        if !(1..=REPEAT_LEN_MAX).contains(&len) || offset.checked_add(len.into()).is_none() {
            return Err(Error::limit("a repeat in a file is too long, or out of range"));
        }
        Ok(Record::Repeat { id, offset, len })
    }

    fn chunks(&self, f: &mut Fields<'_>) -> Result<Record<'static>> {
        let id = self.known_id(f.number()?)?;
        let mut chunks = Vec::new();
        while !f.0.is_empty() {
            let len = f.number32()?;
            let chunk = Chunk { len, hash: f.word()? };
            if len > CHUNK_LEN_MAX || chunk.covers() == 0 || chunks.len() == CHUNKS_MAX {
                return Err(Error::limit("a record has too many chunks, or a chunk is too long or empty"));
            }
            chunks.push(chunk);
        }
        Ok(Record::Chunks { id, chunks })
    }

    fn pieces(&self, f: &mut Fields<'_>) -> Result<Record<'static>> {
        let id = self.known_id(f.number()?)?;
        let count = f.number()?;
        if count == 0 {
            return Err(Error::corrupt("a record of pieces has none"));
        }
        let (mut regions, mut pieces) = (Vec::new(), 0);
        for _ in 0..count {
            let region = Region { offset: f.number()?, len: f.number32()? };
            pieces += region.pieces();
            if !(1..=REGION_LEN_MAX).contains(&region.len)
                || region.offset.checked_add(region.len.into()).is_none()
                || pieces > CHUNKS_MAX
            {
                return Err(Error::limit("a record has too many pieces, or a region is out of range"));
            }
            regions.push(region);
        }
        let (hashes, rest) = f.0.as_chunks();
        if hashes.len() != pieces || !rest.is_empty() {
            return Err(Error::corrupt("the number of hashes in a record differs from the number of its pieces"));
        }
        let hashes = hashes.to_vec();
        f.0 = &[];
        Ok(Record::Pieces { id, regions, hashes })
    }

    fn known_id(&self, id: u64) -> Result<u64> {
        known_id(id, self.entries)
    }
}

fn known_id(id: u64, known: u64) -> Result<u64> {
    if id < known { Ok(id) } else { Err(Error::corrupt("a record refers to an entry that was never announced")) }
}

/// The fields of an entry (format.md section 8.2). `path` is that of the entry before it, and becomes its own;
/// `known` entries came before it.
pub(super) fn entry(f: &mut Fields<'_>, path: &mut Vec<u8>, known: u64) -> Result<Entry> {
    let shared = f.number()?;
    self::path(shared, f.bytes()?, path)?;
    let number = f.byte()?;
    let kind = kind(number, f, known)?;
    let [mode, uid, gid] = [f.number32()?, f.number32()?, f.number32()?];
    let mtime_s = unzigzag(f.number()?);
    let mtime_ns = f.number32()?;
    check_range(mode, mtime_ns)?;
    let xattrs = xattrs(f)?;
    Ok(Entry { path: path.clone(), kind, mode, uid, gid, mtime_s, mtime_ns, xattrs })
}

/// Makes the path of an entry of the one before it.
pub(super) fn path(shared: u64, rest: &[u8], path: &mut Vec<u8>) -> Result<()> {
    let shared = usize::try_from(shared).ok().filter(|s| *s <= path.len());
    let shared = shared.ok_or_else(|| Error::corrupt("a path shares more bytes than the path before it has"))?;
    if shared + rest.len() > PATH_LEN_MAX {
        return Err(Error::limit("a path is longer than 4095 bytes"));
    }
    path.truncate(shared);
    path.extend_from_slice(rest);
    check_path(path)
}

pub(super) fn check_range(mode: u32, mtime_ns: u32) -> Result<()> {
    if mode > 0o7777 || mtime_ns > 999_999_999 { Err(out_of_range()) } else { Ok(()) }
}

pub(super) fn out_of_range() -> Error {
    Error::corrupt("the mode or time of an entry is out of range")
}

pub(super) fn xattrs(f: &mut Fields<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let count = f.number()?;
    if count > XATTRS_MAX {
        return Err(Error::limit("an entry has too many extended attributes"));
    }
    let mut xattrs = Vec::new();
    for _ in 0..count {
        let name = f.bytes()?;
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(&0) {
            return Err(Error::corrupt("an extended attribute has a bad name"));
        }
        xattrs.push((name.to_vec(), f.bytes()?.to_vec()));
    }
    Ok(xattrs)
}

/// The kind with this number, whose fields follow.
pub(super) fn kind(number: u8, f: &mut Fields<'_>, known: u64) -> Result<EntryKind> {
    Ok(match number {
        kind @ (0 | 1) => EntryKind::File { len: f.number()?, linked: kind == 1 },
        2 => EntryKind::Folder,
        3 => {
            let target = f.bytes()?;
            if target.is_empty() || target.len() > PATH_LEN_MAX || target.contains(&0) {
                return Err(Error::corrupt("a symbolic link has a bad target"));
            }
            EntryKind::Symlink { target: target.to_vec() }
        }
        4 => EntryKind::HardLink { of: known_id(f.number()?, known)? },
        5 => EntryKind::Fifo,
        6 => EntryKind::CharDevice { major: f.number32()?, minor: f.number32()? },
        7 => EntryKind::BlockDevice { major: f.number32()?, minor: f.number32()? },
        8 => EntryKind::Stream,
        _ => return Err(Error::unsupported("an entry is of a kind that needs a newer program")),
    })
}

/// Kind, length of the body, length of the header; `None` if more bytes are needed.
fn parse_header(b: &[u8], is_of_pack: bool) -> Result<Option<(u8, usize, usize)>> {
    let Some((&kind, rest)) = b.split_first() else { return Ok(None) };
    let is_known = match kind {
        ENTRIES | GROUP => is_of_pack,
        REFUSED => !is_of_pack,
        _ => (ENTRY..=HAVE).contains(&kind),
    };
    if !is_known {
        return Err(Error::unsupported(format!("a record of kind {kind} needs a newer program")));
    }
    let Some((len, n)) = varint(rest, HEADER_MAX - 1)? else { return Ok(None) };
    let most = if kind == DATA { DATA_LEN_MAX } else { RECORD_LEN_MAX };
    if len > most as u64 {
        return Err(Error::limit(format!("a record of {len} bytes exceeds the limit of {most}")));
    }
    Ok(Some((kind, len as usize, 1 + n)))
}

#[cfg(test)]
mod tests {
    use super::super::{DIGEST_LEN, FINISH, RecordWriter};
    use super::*;

    fn entry(path: &[u8], kind: EntryKind) -> Entry {
        Entry { path: path.to_vec(), kind, mode: 0o644, uid: 1, gid: 2, mtime_s: -5, mtime_ns: 7, xattrs: vec![] }
    }

    fn entries() -> Vec<Entry> {
        vec![
            entry(b"", EntryKind::Folder),
            entry(b"a", EntryKind::Folder),
            Entry {
                xattrs: vec![(b"user.x".to_vec(), b"\0\xff".to_vec()), (b"user.y".to_vec(), vec![])],
                ..entry(b"a/file\n\xff", EntryKind::File { len: u64::MAX, linked: true })
            },
            entry(b"a/file2", EntryKind::HardLink { of: 2 }),
            entry(b"link", EntryKind::Symlink { target: b"../any/where".to_vec() }),
            entry(b"fifo", EntryKind::Fifo),
            entry(b"null", EntryKind::CharDevice { major: 1, minor: 3 }),
            entry(b"disk", EntryKind::BlockDevice { major: 8, minor: 0 }),
            entry(b"plain", EntryKind::File { len: 0, linked: false }),
            entry(b"", EntryKind::Stream),
        ]
    }

    fn stream() -> Vec<u8> {
        let mut writer = RecordWriter::default();
        let mut out = Vec::new();
        for entry in entries() {
            writer.entry(&entry, &mut out).unwrap();
        }
        let chunks = [Chunk { len: 1, hash: u64::MAX }, Chunk::hole(u64::MAX), Chunk { len: CHUNK_LEN_MAX, hash: 0 }];
        writer.chunks(2, &chunks, &mut out);
        let regions = [Region { offset: 0, len: 1 }, Region { offset: 1 << 40, len: 257 }];
        writer.pieces(2, &regions, &[[1; 6], [2; 6], [3; 6]], &mut out);
        writer.begin(2, &mut out);
        writer.chunks(2, &chunks[1..], &mut out);
        writer.ask(8, 1 << 33, &mut out);
        writer.have(1 << 45, &mut out);
        writer.data(b"0123456789", &mut out);
        writer.hole(1 << 40, &mut out);
        writer.data(&[], &mut out);
        writer.repeat(2, 1 << 50, REPEAT_LEN_MAX, &mut out);
        writer.repeat(8, 0, 1, &mut out);
        writer.end(EndState::Whole, &[9; DIGEST_LEN], &mut out);
        writer.failed("gone", &mut out);
        writer.refused(1 << 40, "not so", &mut out);
        writer.total(7, 1 << 40, &mut out);
        writer.finish(&mut out);
        out
    }

    /// Where the entries end.
    fn stream_begin() -> usize {
        let (mut writer, mut out) = (RecordWriter::default(), Vec::new());
        entries().iter().for_each(|e| drop(writer.entry(e, &mut out)));
        out.len()
    }

    /// The parsed records, with data joined.
    fn parse(stream: &[u8], piece: usize) -> Result<(Vec<String>, bool)> {
        let mut parser = RecordParser::default();
        let (mut said, mut data) = (Vec::new(), Vec::new());
        for piece in stream.chunks(piece) {
            parser.push(piece, |record| {
                if let Record::Data(bytes) = record {
                    data.extend_from_slice(bytes);
                    return Ok(());
                }
                if !data.is_empty() {
                    said.push(format!("{:?}", std::mem::take(&mut data)));
                }
                said.push(format!("{record:?}"));
                Ok(())
            })?;
        }
        Ok((said, parser.is_finished()))
    }

    #[test]
    fn records_come_back_however_the_bytes_are_cut() {
        let stream = stream();
        let (whole, finished) = parse(&stream, stream.len()).unwrap();
        assert!(finished);
        let told: Vec<_> = entries().into_iter().map(|e| format!("{:?}", Record::Entry(e))).collect();
        assert_eq!(whole[..told.len()], told);
        assert_eq!(whole.len(), told.len() + 15);
        for piece in [1, 2, 3, 7, 64] {
            assert_eq!(parse(&stream, piece).unwrap().0, whole);
        }
    }

    #[test]
    fn what_stands_for_several_records_comes_as_these_in_packs_only() {
        let file = |path: &str, len| entry(path.as_bytes(), EntryKind::File { len, linked: false });
        let files = [file("f/a", 3), file("f/b", 0), file("g", 2)];
        let (mut writer, mut stream) = (RecordWriter::default(), Vec::new());
        writer.entry(&files[0], &mut stream).unwrap();
        files[1..].iter().for_each(|f| assert!(writer.gather(f, &mut stream).is_ok()));
        writer.gathered(&mut stream);
        let at = writer.group(&[(2, 2), (0, 3), (1, 0)], b"twone", &mut stream);
        assert_eq!(&stream[at..at + 5], b"twone");
        writer.entry(&file("h", 0), &mut stream).unwrap();
        writer.finish(&mut stream);
        let parse = |mut parser: RecordParser, piece: usize| {
            let mut said = Vec::new();
            let mut pieces = stream.chunks(piece);
            let parsed = pieces.try_for_each(|piece| {
                parser.push(piece, |record| {
                    said.push(format!("{record:?}"));
                    Ok(())
                })
            });
            (said, parsed.map(|()| parser.is_finished()))
        };
        let (said, finished) = parse(RecordParser::of_pack(), stream.len());
        let mut expected: Vec<_> = files.iter().map(|f| format!("{:?}", Record::Entry(f.clone()))).collect();
        for (id, content) in [(2, &b"tw"[..]), (0, b"one"), (1, b"")] {
            let digest = blake3::hash(content).into();
            expected.push(format!("{:?}", Record::Begin { id }));
            expected.extend((!content.is_empty()).then(|| format!("{:?}", Record::Data(content))));
            expected.push(format!("{:?}", Record::End { state: EndState::Whole, digest }));
        }
        expected.push(format!("{:?}", Record::Entry(file("h", 0))));
        expected.push(format!("{:?}", Record::Finish { entries: 4 }));
        assert_eq!((said, finished.unwrap()), (expected.clone(), true));
        for piece in [1, 2, 3, 7] {
            assert_eq!(parse(RecordParser::of_pack(), piece).0, expected, "{piece}");
        }
        // Others get the first entry, and then words.
        let (said, refused) = parse(RecordParser::default(), 5);
        assert_eq!((said.len(), refused.unwrap_err().kind), (1, crate::ErrorKind::Unsupported));
        // No file has another between its begin and end; no group has a file that did not come.
        for (id, open) in [(4, false), (0, true)] {
            let (mut writer, mut bad) = (RecordWriter::default(), Vec::new());
            writer.entry(&files[0], &mut bad).unwrap();
            if open {
                writer.begin(0, &mut bad);
            }
            writer.group(&[(id, 1)], b"x", &mut bad);
            assert!(RecordParser::of_pack().push(&bad, |_| Ok(())).is_err());
        }
    }

    #[test]
    fn long_attributes_are_gathered_into_records_of_their_own() {
        let (mut writer, mut stream) = (RecordWriter::default(), Vec::new());
        let long = |i: u32, len| Entry {
            xattrs: vec![(b"user.x".to_vec(), vec![0; len])],
            ..entry(format!("{i}").as_bytes(), EntryKind::Folder)
        };
        let entries: Vec<_> = [10, 60_000, 240_000, 10, 240_000, 60_000].into_iter().zip(0..).collect();
        for (len, i) in &entries {
            writer.gather(&long(*i, *len), &mut stream).unwrap();
        }
        assert!(writer.gather(&long(9, 260_000), &mut stream).is_err());
        writer.gathered(&mut stream);
        writer.finish(&mut stream);
        let mut found = Vec::new();
        let mut parser = RecordParser::of_pack();
        let parsed = parser.push(&stream, |record| {
            if let Record::Entry(entry) = record {
                found.push(entry);
            }
            Ok(())
        });
        parsed.unwrap();
        assert!(found == entries.iter().map(|(len, i)| long(*i, *len)).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_that_stops_early_is_not_finished() {
        let stream = stream();
        for len in 0..stream.len() {
            assert!(!parse(&stream[..len], 5).unwrap().1, "cut at {len}");
        }
    }

    #[test]
    fn rubbish_is_an_error_and_holds_little() {
        let mut bad: Vec<Vec<u8>> = vec![
            vec![0],
            vec![99, 0],
            vec![DATA, 1, 0],                                                 // outside of a file
            vec![BEGIN, 1, 0],                                                // of an entry that did not come
            vec![HOLE, 1, 0],                                                 // likewise
            vec![ENTRY, 0x80, 0x80, 0x80, 0x01],                              // longer than the limit
            vec![ENTRY, 3, 5, 1, b'a'],                                       // shares more than there is
            vec![CHUNKS, 1, 0],                                               // likewise
            vec![PIECES, 2, 0, 0],                                            // likewise
            [&stream()[..stream_begin()], &[PIECES, 4, 0, 1, 0, 0]].concat(), // an empty region
            [&stream()[..stream_begin()], &[PIECES, 9, 0, 1, 0, 1, 9, 9, 9, 9, 9]].concat(), // a short hash
            [&stream()[..stream_begin()], &[PIECES, 7, 0, 1, 0, 0x80, 0x80, 0x80, 1]].concat(), // a long region
            [&stream()[..stream_begin()], &[BEGIN, 1, 8, REPEAT, 3, 8, 0, 0]].concat(), // nothing repeated
            [&stream()[..stream_begin()], &[BEGIN, 1, 8, REPEAT, 5, 8, 0, 0x81, 0x80, 0x40]].concat(), // too much
            [&stream()[..stream_begin()], &[REPEAT, 3, 8, 0, 1]].concat(),    // outside of a file
            vec![ASK, 2, 0, 0],                                               // of an entry that did not come
            vec![HAVE, 1, 0],                                                 // outside of a file
            vec![FINISH, 1, 3],                                               // a wrong total
            vec![FINISH, 2, 0, 0],                                            // too long
            [stream(), vec![FINISH, 1, 9]].concat(),                          // after the end
        ];
        let mut out = Vec::new();
        put_entry(&mut out, b"../up", 2);
        bad.push(out);
        for bytes in bad {
            assert!(parse(&bytes, 3).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_kind_of_a_later_version_is_refused_in_words() {
        let mut out = Vec::new();
        put_entry(&mut out, b"new", 9);
        let error = parse(&out, 4).unwrap_err();
        assert_eq!(error.kind, crate::ErrorKind::Unsupported);
        assert!(error.to_string().contains("needs a newer program"), "{error}");
    }

    fn put_entry(out: &mut Vec<u8>, path: &[u8], kind: u8) {
        let mut body = vec![0, path.len() as u8];
        body.extend_from_slice(path);
        body.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&[ENTRY, body.len() as u8]);
        out.extend_from_slice(&body);
    }

    #[test]
    fn no_byte_of_a_stream_can_be_changed_into_a_panic() {
        let stream = stream();
        for at in 0..stream.len() {
            for bit in 0..8 {
                let mut bytes = stream.clone();
                bytes[at] ^= 1 << bit;
                let _ = parse(&bytes, 11);
            }
        }
    }
}
