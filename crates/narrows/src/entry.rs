//! The entry stream: files and folders as the raw bytes of one flow, and the receiver's answers
//! (`docs/format.md`, section 8). No I/O: the program reads and writes the files.
//!
//! A sender announces entries in an order in which every folder precedes its contents. The receiver
//! answers which files it wants; the sender goes on announcing meanwhile, so no file costs a round
//! trip of its own.

use crate::error::{Error, Result};
use crate::frame::{put_varint, varint};

mod answer;
mod columns;
mod group;
mod parser;

pub use answer::{ANSWERS_LEN_MAX, Answer, Wanted};
pub use columns::{EntryColumns, EntryRows};
pub use group::{GROUP_FILES_MAX, GROUP_LEN_MAX, Group};
pub use parser::RecordParser;

/// Longest path in bytes: the kernel's PATH_MAX without its zero.
pub const PATH_LEN_MAX: usize = 4095;
/// Longest name of one file in bytes: NAME_MAX of every supported file system.
pub const NAME_LEN_MAX: usize = 255;
/// Longest record other than data, in bytes. Linux lists at most 64 KiB of attribute names and 64
/// KiB for each value; if the attributes of a file do not fit here, the user is told that they were
/// left out.
pub const RECORD_LEN_MAX: usize = 256 << 10;
/// Longest run of data in one record, in bytes. Data is passed on as it arrives, so it costs no
/// memory.
pub const DATA_LEN_MAX: usize = 1 << 20;
/// Longest text of a failure in bytes.
pub const TEXT_LEN_MAX: usize = 4096;
/// Length of a BLAKE3 hash in bytes.
pub const DIGEST_LEN: usize = 32;

pub(crate) const ENTRY: u8 = 1;
pub(crate) const BEGIN: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const HOLE: u8 = 4;
pub(crate) const END: u8 = 5;
pub(crate) const FAILED: u8 = 6;
pub(crate) const FINISH: u8 = 7;
pub(crate) const CHUNKS: u8 = 8;
const PIECES: u8 = 9;
const REPEAT: u8 = 10;
const TOTAL: u8 = 11;
const ASK: u8 = 12;
const HAVE: u8 = 13;
const ENTRIES: u8 = 14;
/// Kind of the record of a group.
pub const GROUP: u8 = 15;
const REFUSED: u8 = 16;

/// Bytes after which entries that are gathered become a record: some thousand of them.
const ENTRIES_LEN: usize = 64 << 10;

/// A file, folder, link or device without its content (format.md section 8.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the root of the copy, components separated by `/`; empty for the root itself.
    pub path: Vec<u8>,
    /// Kind, with the fields that depend on it.
    pub kind: EntryKind,
    /// The twelve permission bits.
    pub mode: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Time of the last change in seconds since 1970.
    pub mtime_s: i64,
    /// Its nanoseconds, 0 to 999,999,999.
    pub mtime_ns: u32,
    /// Extended attributes as (name, value), access control lists among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Length in bytes.
        len: u64,
        /// Whether a later entry may be a hard link to it.
        linked: bool,
    },
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink {
        /// The path that it points to.
        target: Vec<u8>,
    },
    /// Another name of an earlier file.
    HardLink {
        /// Number of that file's entry.
        of: u64,
    },
    /// A named pipe.
    Fifo,
    /// A character device.
    CharDevice {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
    },
    /// A file whose length is unknown until its content has arrived. Its metadata are those of a
    /// new file where it is stored, so the other fields of its entry are ignored. With an empty
    /// path it gets the target's name.
    Stream,
}

impl Entry {
    /// Appends its fields (format.md section 8.2). `before` is the path of the entry before it.
    ///
    /// # Errors
    /// `Corrupt` or `Limit` if the path is not allowed.
    pub fn put(&self, before: &[u8], out: &mut Vec<u8>) -> Result<()> {
        check_path(&self.path)?;
        let shared = before.iter().zip(&self.path).take_while(|(a, b)| a == b).count();
        put_varint(out, shared as u64);
        put_bytes(out, &self.path[shared..]);
        out.push(kind_number(&self.kind));
        put_kind_fields(out, &self.kind);
        for v in [u64::from(self.mode), u64::from(self.uid), u64::from(self.gid), zigzag(self.mtime_s)] {
            put_varint(out, v);
        }
        put_varint(out, u64::from(self.mtime_ns));
        put_xattrs(&self.xattrs, out);
        Ok(())
    }

    /// Reads the fields of an entry from the front of `bytes`. `path` is that of the entry before it, and
    /// becomes its own. A hard link may refer to any number.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` if the fields violate the format.
    pub fn take(bytes: &mut &[u8], path: &mut Vec<u8>) -> Result<Self> {
        let mut f = Fields(bytes);
        let entry = parser::entry(&mut f, path, u64::MAX)?;
        *bytes = f.0;
        Ok(entry)
    }
}

impl EntryKind {
    /// Whether content follows if the receiver wants the entry.
    pub fn has_content(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Stream)
    }
}

/// A chunk of a file, or a hole. Both ends cut by content, so that equal content is cut equally. The
/// digest of the file reveals a wrong match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Length in bytes; 0 of a hole.
    pub len: u32,
    /// XXH3 of its bytes, seed 0; of a hole its length.
    pub hash: u64,
}

impl Chunk {
    /// A hole of `len` bytes, at least 1.
    pub fn hole(len: u64) -> Self {
        Self { len: 0, hash: len }
    }

    /// Whether it is a hole.
    pub fn is_hole(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the file that it covers.
    pub fn covers(&self) -> u64 {
        if self.is_hole() { self.hash } else { self.len.into() }
    }
}

/// Longest chunk in bytes.
pub const CHUNK_LEN_MAX: u32 = 64 << 10;
/// Most chunks of one record: at the mean of 4 KiB they are 16 MiB of the file, and the answer fits
/// into one note.
pub const CHUNKS_MAX: usize = 4096;

/// A range of a file of which the receiver may have parts, although it lacks the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Region {
    /// Number of its pieces.
    pub fn pieces(&self) -> usize {
        self.len.div_ceil(PIECE_LEN) as usize
    }
}

/// Longest region in bytes: a longer one is probably new rather than changed.
pub const REGION_LEN_MAX: u32 = 256 << 10;
/// Length in bytes of the pieces in which regions are compared; the last may be shorter.
pub const PIECE_LEN: u32 = 256;
/// Hash of a piece: the first bytes of XXH3 (little endian, seed 0). Each is compared with two
/// places only, so 48 bits suffice.
pub type PieceHash = [u8; 6];

/// A frame that the storing end has of an entry (format.md section 18): enough to compare it with raw
/// bytes without decoding it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFrame {
    /// Codec of the body.
    pub codec: u8,
    /// Raw bytes of the file before it.
    pub raw_offset: u64,
    /// Raw bytes in it.
    pub raw_len: u32,
    /// Length of its body.
    pub wire_len: u32,
    /// Its check.
    pub check: u64,
    /// XXH3 of its body, 0 for a stored one.
    pub body_hash: u64,
}

/// Most frames in one answer: 12 KiB, as an answer about chunks has at most.
pub const FRAMES_MAX: usize = 256;
/// Most sums in one answer, for the same reason.
pub const SUMS_MAX: usize = 1024;

/// Longest run of one repeat record in bytes: the receiver copies it in one go and does nothing
/// else meanwhile.
pub const REPEAT_LEN_MAX: u32 = 1 << 20;
/// Most repeated bytes that the receiver has not acknowledged. They cost the sender nothing, so
/// without a limit a receiver could fall behind by hours; this is a second of work for a slow disk.
pub const REPEATED_MAX: u64 = 256 << 20;

/// Outcome of reading a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndState {
    /// The file could not be read to its announced length and must not be stored.
    Partial,
    /// The file was read to its announced length.
    Whole,
    /// The file was read to its announced length, and changed meanwhile.
    Changed,
}

/// A record of the stream (format.md section 8.1). Entries are numbered from 0 in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// An entry.
    Entry(Entry),
    /// The content of an entry follows, up to its `End`.
    Begin {
        /// Number of the entry.
        id: u64,
    },
    /// Content of the entry.
    Data(&'a [u8]),
    /// This many zero bytes, which take no space on the disk.
    Hole(u64),
    /// The content of the entry ends.
    End {
        /// How the reading of the file ended.
        state: EndState,
        /// BLAKE3 of the data, without holes.
        digest: [u8; DIGEST_LEN],
    },
    /// The next bytes repeat those of the current file, or of one sent before. If the receiver does
    /// not have them any more, it asks for the file again.
    Repeat {
        /// Number of the entry that has the bytes.
        id: u64,
        /// Offset in that file in bytes.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// The next chunks of an entry of which the receiver has an earlier state; it answers which
    /// ones it needs. Only their content then stands between `Begin` and `End`.
    Chunks {
        /// Number of the entry.
        id: u64,
        /// The chunks, in order.
        chunks: Vec<Chunk>,
    },
    /// Pieces of regions whose chunks the receiver needs: parts beside chunks that it has may be
    /// there too. The receiver answers as for chunks.
    Pieces {
        /// Number of the entry.
        id: u64,
        /// The regions, in ascending order.
        regions: Vec<Region>,
        /// The hashes of the pieces of all regions, in order.
        hashes: Vec<PieceHash>,
    },
    /// Something could not be read; the copy goes on without it.
    Failed {
        /// The reason, for a person.
        text: String,
    },
    /// The sender does not copy at all; only if the receiver asked for numbers of reasons.
    Refused {
        /// Number of the reason (format.md section 8.1).
        code: u64,
        /// The reason, for a person.
        text: String,
    },
    /// Totals of everything to be copied; only if the receiver asked for them.
    Total {
        /// Number of files.
        files: u64,
        /// Their length in bytes.
        bytes: u64,
    },
    /// What does the receiver have of an entry whose content goes as frames? It answers with
    /// [`Answer::Frames`] or [`Answer::Sums`].
    Ask {
        /// Number of the entry.
        id: u64,
        /// Number of the first frame or sum that is asked for.
        from: u64,
    },
    /// The next so many raw bytes are those that the receiver has at the same place, as it answered.
    Have {
        /// Number of raw bytes.
        len: u64,
    },
    /// The end of the stream.
    Finish {
        /// Number of entries.
        entries: u64,
    },
}

/// Writes records. Each path is written as the length of the prefix shared with the path before it,
/// and the rest.
#[derive(Debug, Default)]
pub struct RecordWriter {
    path: Vec<u8>,
    body: Vec<u8>,
    entries: u64,
    gathered: EntryColumns,
}

impl RecordWriter {
    /// Appends an entry to `out` and returns its number.
    ///
    /// # Errors
    /// `Corrupt` or `Limit` if the path or the attributes are not allowed.
    pub fn entry(&mut self, entry: &Entry, out: &mut Vec<u8>) -> Result<u64> {
        self.body.clear();
        entry.put(&self.path, &mut self.body)?;
        if self.body.len() > RECORD_LEN_MAX {
            return Err(too_many_xattrs());
        }
        put_record(out, ENTRY, &self.body);
        self.path.clone_from(&entry.path);
        self.entries += 1;
        Ok(self.entries - 1)
    }

    /// Appends an entry of a pack to those that are gathered, and these to `out` if they are enough for a record;
    /// returns its number. [`RecordWriter::gathered`] appends the rest.
    ///
    /// # Errors
    /// As [`RecordWriter::entry`].
    pub fn gather(&mut self, entry: &Entry, out: &mut Vec<u8>) -> Result<u64> {
        let xattrs: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        if self.gathered.len() + columns::WITHOUT_XATTRS_MAX + xattrs > RECORD_LEN_MAX {
            self.gathered(out);
        }
        if self.gathered.is_empty() {
            self.gathered = EntryColumns::after(&self.path);
        }
        self.gathered.put(entry)?;
        self.path.clone_from(&entry.path);
        self.entries += 1;
        if self.gathered.len() >= ENTRIES_LEN {
            self.gathered(out);
        }
        Ok(self.entries - 1)
    }

    /// Appends the record of the entries that are gathered, if there are any: before content of one of them, and
    /// before the end.
    pub fn gathered(&mut self, out: &mut Vec<u8>) {
        if !self.gathered.is_empty() {
            self.body.clear();
            std::mem::take(&mut self.gathered).finish(&mut self.body);
            put_record(out, ENTRIES, &self.body);
        }
    }

    /// Appends the contents of small files of a pack, whose numbers and lengths are `files`, as one record;
    /// returns where in `out` the contents begin.
    ///
    /// # Panics
    /// If there are more than [`GROUP_FILES_MAX`] files or [`GROUP_LEN_MAX`] bytes, or the lengths are others.
    pub fn group(&mut self, files: &[(u64, usize)], contents: &[u8], out: &mut Vec<u8>) -> usize {
        self.body.clear();
        let begin = group::put(files, contents, &mut self.body);
        put_record(out, GROUP, &self.body);
        out.len() - self.body.len() + begin
    }

    /// Appends a `Begin`: the content of entry `id` follows.
    pub fn begin(&self, id: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(10);
        put_varint(&mut body, id);
        put_record(out, BEGIN, &body);
    }

    /// Appends a `Data`: content of the current entry.
    ///
    /// # Panics
    /// If there are more than [`DATA_LEN_MAX`] bytes.
    pub fn data(&self, bytes: &[u8], out: &mut Vec<u8>) {
        assert!(bytes.len() <= DATA_LEN_MAX);
        put_record(out, DATA, bytes);
    }

    /// Appends the beginning of a `Data` of `len` bytes, which the caller appends.
    ///
    /// # Panics
    /// If there are more than [`DATA_LEN_MAX`] bytes.
    pub fn data_of(&self, len: usize, out: &mut Vec<u8>) {
        assert!(len <= DATA_LEN_MAX);
        out.push(DATA);
        put_varint(out, len as u64);
    }

    /// Appends a `Hole` of `len` bytes.
    pub fn hole(&self, len: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(10);
        put_varint(&mut body, len);
        put_record(out, HOLE, &body);
    }

    /// Appends a `Repeat`.
    ///
    /// # Panics
    /// If the run is empty or longer than [`REPEAT_LEN_MAX`].
    pub fn repeat(&self, id: u64, offset: u64, len: u32, out: &mut Vec<u8>) {
        assert!((1..=REPEAT_LEN_MAX).contains(&len));
        let mut body = Vec::with_capacity(25);
        for v in [id, offset, len.into()] {
            put_varint(&mut body, v);
        }
        put_record(out, REPEAT, &body);
    }

    /// Appends an `End`.
    pub fn end(&self, state: EndState, digest: &[u8; DIGEST_LEN], out: &mut Vec<u8>) {
        let mut body = vec![match state {
            EndState::Partial => 0,
            EndState::Whole => 1,
            EndState::Changed => 2,
        }];
        body.extend_from_slice(digest);
        put_record(out, END, &body);
    }

    /// Appends a `Chunks`.
    ///
    /// # Panics
    /// If there are more than [`CHUNKS_MAX`] chunks, or one covers nothing or is longer than
    /// [`CHUNK_LEN_MAX`].
    pub fn chunks(&self, id: u64, chunks: &[Chunk], out: &mut Vec<u8>) {
        assert!(chunks.len() <= CHUNKS_MAX);
        let mut body = Vec::with_capacity(10 + 11 * chunks.len());
        put_varint(&mut body, id);
        for chunk in chunks {
            assert!(chunk.len <= CHUNK_LEN_MAX && chunk.covers() > 0);
            put_varint(&mut body, chunk.len.into());
            body.extend_from_slice(&chunk.hash.to_le_bytes());
        }
        put_record(out, CHUNKS, &body);
    }

    /// Appends a `Pieces`.
    ///
    /// # Panics
    /// If there are more than [`CHUNKS_MAX`] pieces, a region is empty or longer than
    /// [`REGION_LEN_MAX`], or the number of hashes differs from the number of pieces.
    pub fn pieces(&self, id: u64, regions: &[Region], hashes: &[PieceHash], out: &mut Vec<u8>) {
        assert!(hashes.len() <= CHUNKS_MAX && hashes.len() == regions.iter().map(Region::pieces).sum());
        let mut body = Vec::with_capacity(20 + 13 * regions.len() + 6 * hashes.len());
        put_varint(&mut body, id);
        put_varint(&mut body, regions.len() as u64);
        for region in regions {
            assert!((1..=REGION_LEN_MAX).contains(&region.len));
            put_varint(&mut body, region.offset);
            put_varint(&mut body, region.len.into());
        }
        hashes.iter().for_each(|hash| body.extend_from_slice(hash));
        put_record(out, PIECES, &body);
    }

    /// Appends a `Failed`; the text is truncated to [`TEXT_LEN_MAX`] bytes.
    pub fn failed(&self, text: &str, out: &mut Vec<u8>) {
        put_record(out, FAILED, cut_text(text));
    }

    /// Appends a `Refused`; the text is truncated to [`TEXT_LEN_MAX`] bytes.
    pub fn refused(&self, code: u64, text: &str, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        put_varint(&mut body, code);
        put_bytes(&mut body, cut_text(text));
        put_record(out, REFUSED, &body);
    }

    /// Appends a `Total`.
    pub fn total(&self, files: u64, bytes: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(20);
        put_varint(&mut body, files);
        put_varint(&mut body, bytes);
        put_record(out, TOTAL, &body);
    }

    /// Appends an `Ask`.
    pub fn ask(&self, id: u64, from: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(20);
        put_varint(&mut body, id);
        put_varint(&mut body, from);
        put_record(out, ASK, &body);
    }

    /// Appends a `Have`.
    pub fn have(&self, len: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(10);
        put_varint(&mut body, len);
        put_record(out, HAVE, &body);
    }

    /// Appends a `Finish` with the number of entries written.
    pub fn finish(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(10);
        put_varint(&mut body, self.entries);
        put_record(out, FINISH, &body);
    }
}

/// A text truncated to [`TEXT_LEN_MAX`] bytes, between characters.
fn cut_text(text: &str) -> &[u8] {
    let end = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|end| text.is_char_boundary(*end));
    &text.as_bytes()[..end.unwrap_or(0)]
}

fn put_record(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(kind);
    put_bytes(out, body);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn kind_number(kind: &EntryKind) -> u8 {
    match kind {
        EntryKind::File { linked, .. } => u8::from(*linked),
        EntryKind::Folder => 2,
        EntryKind::Symlink { .. } => 3,
        EntryKind::HardLink { .. } => 4,
        EntryKind::Fifo => 5,
        EntryKind::CharDevice { .. } => 6,
        EntryKind::BlockDevice { .. } => 7,
        EntryKind::Stream => 8,
    }
}

fn put_kind_fields(out: &mut Vec<u8>, kind: &EntryKind) {
    match kind {
        EntryKind::File { len, .. } => put_varint(out, *len),
        EntryKind::Symlink { target } => put_bytes(out, target),
        EntryKind::HardLink { of } => put_varint(out, *of),
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => {
            put_varint(out, u64::from(*major));
            put_varint(out, u64::from(*minor));
        }
        EntryKind::Folder | EntryKind::Fifo | EntryKind::Stream => {}
    }
}

fn put_xattrs(xattrs: &[(Vec<u8>, Vec<u8>)], out: &mut Vec<u8>) {
    put_varint(out, xattrs.len() as u64);
    for (name, value) in xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

fn too_many_xattrs() -> Error {
    Error::limit("its extended attributes are too long to send")
}

fn zigzag(v: i64) -> u64 {
    (v << 1 ^ v >> 63) as u64
}

fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// Checks that a path stays inside the root, whatever it is joined to: relative, no empty
/// component, no `.` and `..`, no zero byte, and no longer than the kernel accepts.
///
/// # Errors
/// `Corrupt`, or `Limit` if it is too long.
pub fn check_path(path: &[u8]) -> Result<()> {
    let bad = |what: &str| Err(Error::corrupt(format!("the path '{}' {what}", path.escape_ascii())));
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > PATH_LEN_MAX {
        return Err(Error::limit("a path is longer than 4095 bytes"));
    }
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" => return bad("has an empty name in it"),
            b"." | b".." => return bad("leads out of the folder"),
            _ if name.len() > NAME_LEN_MAX => return bad("has a name of more than 255 bytes"),
            _ if name.contains(&0) => return bad("has a zero byte in it"),
            _ => {}
        }
    }
    Ok(())
}

/// Reads the fields of a record's body.
#[derive(Debug)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Result<u64> {
        match varint(self.0, 10)? {
            Some((value, len)) => {
                self.0 = &self.0[len..];
                Ok(value)
            }
            None => Err(short()),
        }
    }

    fn number32(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| Error::corrupt("a number in a record is too large"))
    }

    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn word(&mut self) -> Result<u64> {
        let (word, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.number()?;
        self.take(len)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.0.len()).ok_or_else(short)?;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String> {
        let text = self.bytes()?;
        if text.len() > TEXT_LEN_MAX {
            return Err(Error::limit("a text is too long"));
        }
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::corrupt("a record is longer than its fields")) }
    }
}

fn short() -> Error {
    Error::corrupt("a record is shorter than its fields")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_far_away_survive() {
        for v in [0, -1, 1, i64::MIN, i64::MAX, 1_763_000_000] {
            assert_eq!(unzigzag(zigzag(v)), v);
        }
    }

    #[test]
    fn only_paths_that_stay_inside_pass() {
        for good in [&b""[..], b"a", b"a/b", b"...", b"a/..b", b"-rf", b"with\nnewline", b"\xff\xfe", b".hidden"] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
        for bad in [&b"/"[..], b"/etc", b"..", b"a/..", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b"] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        assert!(check_path(&[b'a'; 256]).is_err());
        assert!(check_path(&b"ab/".repeat(2000)).is_err());
    }
}
