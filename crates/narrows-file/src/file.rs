//! A file that is read at any byte.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Mutex, MutexGuard, PoisonError};

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::frame::{BASELINE_BLOCK_MAX, feature};
use narrows::{Error, ErrorKind, Result};

use crate::cache::Cache;
use crate::cursor::{Cursor, Limits};
use crate::footer::{SUMS_OF_BLOCK, TAIL_LEN, Tail, is_about_content, read_member, read_totals};
use crate::index::{ENTRIES_MAX, Entry, IndexOrigin, Member, too_many_blocks};
use crate::read_at::ReadAt;
use crate::scan::scan;

/// Default of [`OpenOptions::cache_max`]: a run of 4 MiB for each of two threads, and what they read
/// last.
const CACHE_MAX: usize = 16 << 20;
/// Most places in runs that are kept, each with up to `history` bytes: one for each of some threads.
const CURSORS_MAX: usize = 4;
/// Frames are read together up to so many bytes, and single ones that are longer.
const READ_MAX: u64 = 4 << 20;
/// Most streams in a file: each costs a read to find. Whoever appends more should rewrite it.
const MEMBERS_MAX: usize = 1 << 16;

/// How a file is opened.
#[derive(Debug, Clone)]
#[must_use]
pub struct OpenOptions {
    cache_max: usize,
    limits: Limits,
    scan: bool,
    broken: bool,
    blocks_max: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let limits = Limits { block_max: BASELINE_BLOCK_MAX, reach_max: 128 << 20 };
        Self { cache_max: CACHE_MAX, limits, scan: true, broken: false, blocks_max: ENTRIES_MAX }
    }
}

impl OpenOptions {
    /// Bytes of decoded blocks that are kept. Default: 16 MiB.
    pub fn cache_max(self, bytes: usize) -> Self {
        Self { cache_max: bytes, ..self }
    }

    /// Longest block that is accepted. Default: 2 MiB.
    pub fn block_max(self, len: usize) -> Self {
        Self { limits: Limits { block_max: len, ..self.limits }, ..self }
    }

    /// Most raw bytes that are kept for copies of what came before. Default: 128 MiB.
    pub fn reach_max(self, len: usize) -> Self {
        Self { limits: Limits { reach_max: len, ..self.limits }, ..self }
    }

    /// Whether the headers of all frames are read where there is no valid index: one read for each
    /// block. Default: true.
    pub fn scan(self, scan: bool) -> Self {
        Self { scan, ..self }
    }

    /// Whether a file that breaks off is opened too, with what is there of it. Default: false.
    pub fn broken(self, broken: bool) -> Self {
        Self { broken, ..self }
    }

    /// Most blocks of the file: each takes 16 bytes of memory. Default: 64 Mi.
    pub fn blocks_max(self, blocks: usize) -> Self {
        Self { blocks_max: blocks, ..self }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// The source fails, or is no file of streams.
    pub fn open<R: ReadAt>(self, source: R) -> Result<File<R>> {
        let (len, tail) = source.read_tail(TAIL_LEN)?;
        let tail = Tail::new(len, tail);
        if len == 0 {
            return Err(Error::truncated("the file is empty"));
        }
        let members = match read_members(&source, &tail, len, &self) {
            Err(e) if is_about_content(&e) && self.scan => scan_members(&source, &tail, len, &self, &e)?,
            result => result?,
        };
        let last = members.last().expect("a file has a stream");
        let raw_len = last.raw_begin + last.totals.raw_total;
        Ok(File {
            cache: Mutex::new(Cache::new(self.cache_max)),
            cursors: Mutex::default(),
            contexts: Mutex::default(),
            pool: BufferPool::default(),
            limits: self.limits,
            source,
            members,
            raw_len,
            wire_len: len,
            position: 0,
        })
    }
}

/// All streams by their footers, from the last one on.
fn read_members(source: &impl ReadAt, tail: &Tail, len: u64, options: &OpenOptions) -> Result<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    let (mut blocks, mut sums) = (0, 0usize);
    let mut end = len;
    while end > 0 {
        let totals = read_totals(source, tail, end)?;
        let begin = end - narrows::frame::END_FRAME_LEN as u64 - totals.wire_total;
        if members.len() >= MEMBERS_MAX {
            return Err(Error::limit(format!("the file has more than {MEMBERS_MAX} streams; write it anew as one")));
        }
        if totals.index_offset > 0 {
            let member = read_member(source, tail, end, totals, options.blocks_max)?;
            if !member.preface.check {
                // Nothing but the headers before it says where a frame belongs.
                members.push(scanned(source, tail, begin, end, options, IndexOrigin::Stored)?);
            } else {
                members.push(member);
            }
        } else {
            members.push(scanned(source, tail, begin, end, options, IndexOrigin::Scanned)?);
        }
        blocks += members.last().map_or(0, Member::blocks);
        sums += members.last().map_or(0, |member| member.sums.1.len());
        if blocks > options.blocks_max || sums / SUMS_OF_BLOCK > options.blocks_max {
            return Err(too_many_blocks(options.blocks_max));
        }
        end = begin;
    }
    members.reverse();
    place(members)
}

fn scanned(
    source: &impl ReadAt,
    tail: &Tail,
    begin: u64,
    end: u64,
    options: &OpenOptions,
    origin: IndexOrigin,
) -> Result<Member> {
    if !options.scan {
        return Err(Error::unsupported("the file has no index; `narrows check --repair-index` makes one"));
    }
    let member = scan(source, tail, begin, end, options.blocks_max)?;
    match member.broken {
        Some(why) => Err(Error::corrupt(why)),
        None if member.wire_end() != end => Err(Error::corrupt("there are bytes behind the end frame of a stream")),
        None => Ok(Member { origin, ..member }),
    }
}

/// All streams by their headers, from the first one on. `why` says what is wrong with their ends.
fn scan_members(
    source: &impl ReadAt,
    tail: &Tail,
    len: u64,
    options: &OpenOptions,
    why: &Error,
) -> Result<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    let mut blocks = 0;
    let mut begin = 0;
    while begin < len {
        let mut member = match scan(source, tail, begin, len, options.blocks_max) {
            Ok(member) => member,
            Err(e) if is_about_content(&e) && options.broken && !members.is_empty() => {
                let last = members.last_mut().expect("not empty");
                last.broken = Some("there are bytes behind the end frame of a stream".to_owned());
                break;
            }
            Err(e) => return Err(e),
        };
        if members.len() >= MEMBERS_MAX {
            return Err(Error::limit(format!("the file has more than {MEMBERS_MAX} streams; write it anew as one")));
        }
        member.origin = IndexOrigin::Rebuilt;
        blocks += member.blocks();
        if blocks > options.blocks_max {
            return Err(too_many_blocks(options.blocks_max));
        }
        if let Some(broken) = &member.broken {
            if !options.broken {
                let kind = if why.kind == ErrorKind::Truncated { ErrorKind::Truncated } else { ErrorKind::Corrupt };
                return Err(Error::new(kind, format!("{broken}; `narrows cat --skip-damaged` reads what is whole")));
            }
            members.push(member);
            break;
        }
        begin = member.wire_end();
        members.push(member);
    }
    place(members)
}

/// Sets where each stream begins.
fn place(mut members: Vec<Member>) -> Result<Vec<Member>> {
    let mut raw_begin = 0u64;
    for member in &mut members {
        member.raw_begin = raw_begin;
        raw_begin = raw_begin
            .checked_add(member.frames.raw_total())
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or_else(|| Error::limit("the streams of the file have more than 2^63 bytes together"))?;
    }
    Ok(members)
}

/// A file of one or more streams, read at any byte. [`File::read_at`] and the other methods with
/// `&self` may be called from several threads at once.
pub struct File<R> {
    source: R,
    members: Vec<Member>,
    raw_len: u64,
    wire_len: u64,
    limits: Limits,
    cache: Mutex<Cache>,
    /// Places in runs whose blocks depend on one another, the latest used last.
    cursors: Mutex<Vec<Cursor>>,
    contexts: Mutex<Vec<Contexts>>,
    pool: BufferPool,
    position: u64,
}

impl<R: ReadAt> File<R> {
    /// Opens a file with the default options.
    ///
    /// # Errors
    /// The source fails, or is no file of streams.
    pub fn open(source: R) -> Result<Self> {
        OpenOptions::default().open(source)
    }

    /// Raw length in bytes. Of a file that breaks off, what was found.
    pub fn raw_len(&self) -> u64 {
        self.raw_len
    }

    /// Length of the file in bytes.
    pub fn wire_len(&self) -> u64 {
        self.wire_len
    }

    /// Its streams in order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where its bytes come from.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// Why it ends early, if it was opened although it does.
    pub fn broken(&self) -> Option<&str> {
        self.members.last().and_then(|m| m.broken.as_deref())
    }

    /// Reads raw bytes from `offset` on: as many as there are, `buf` at most. 0 is the end.
    ///
    /// # Errors
    /// The source fails, or what it has is damaged.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let Some(block) = self.block_at(at)? else { break };
            let n = block.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&block[..n]);
            done += n;
        }
        Ok(done)
    }

    /// The raw bytes from `offset` to the end of their block; `None` at the end of the file.
    ///
    /// # Errors
    /// Those of [`File::read_at`].
    pub fn block_at(&self, offset: u64) -> Result<Option<Block>> {
        if offset >= self.raw_len {
            return Ok(None);
        }
        let number =
            self.members.partition_point(|m| m.raw_begin <= offset && m.raw_begin + m.frames.raw_total() <= offset);
        let member = &self.members[number];
        let within = offset - member.raw_begin;
        let i = member.frames.find(within);
        let entry = member.frames.entry(i).ok_or_else(|| Error::misuse("the index has a gap"))?;
        let block = self.block(number, i)?;
        Ok(Some(block.slice((within - entry.raw_begin) as usize..block.len())))
    }

    /// Block `i` of stream `number`.
    ///
    /// # Errors
    /// Those of [`File::read_at`]; `Misuse` if there are not so many.
    pub fn block(&self, number: usize, i: usize) -> Result<Block> {
        if let Some(block) = lock(&self.cache).get((number, i)) {
            return Ok(block);
        }
        let none = || Error::misuse("there is no such block");
        let member = self.members.get(number).ok_or_else(none)?;
        let entry = member.frames.entry(i).ok_or_else(none)?;
        let run = if entry.begins_run { i } else { member.frames.run_of(i) };
        let mut cursor = match self.take_cursor(number, run, i) {
            Some(cursor) => cursor,
            None => {
                let first = member.frames.entry(run).ok_or_else(none)?;
                Cursor::new(number, member, run, &first, self.limits, &self.pool)?
            }
        };
        let mut contexts = lock(&self.contexts).pop().unwrap_or_default();
        let result = self.advance(member, &mut cursor, i, &mut contexts);
        lock(&self.contexts).push(contexts);
        let block = result?;
        if Cursor::is_worth_keeping(member) && member.frames.entry(i + 1).is_some_and(|next| !next.begins_run) {
            let mut cursors = lock(&self.cursors);
            // One with copies may hold all of the reach.
            let most = if member.preface.critical & feature::COPIES != 0 { 1 } else { CURSORS_MAX };
            let over = (cursors.len() + 1).saturating_sub(most);
            cursors.drain(..over);
            cursors.push(cursor);
        }
        Ok(block)
    }

    /// The place in a run that is nearest before block `i`.
    fn take_cursor(&self, number: usize, run: usize, i: usize) -> Option<Cursor> {
        let mut cursors = lock(&self.cursors);
        let fits = |c: &Cursor| c.member == number && c.run == run && c.next <= i;
        let (at, _) = cursors.iter().enumerate().filter(|(_, c)| fits(c)).max_by_key(|(_, c)| c.next)?;
        Some(cursors.remove(at))
    }

    /// Decodes the blocks from the cursor to block `last`.
    fn advance(&self, member: &Member, cursor: &mut Cursor, last: usize, contexts: &mut Contexts) -> Result<Block> {
        let none = || Error::misuse("there is no such block");
        loop {
            let begin = member.frames.entry(cursor.next).ok_or_else(none)?.wire_begin;
            let mut entries: Vec<Entry> = Vec::new();
            for i in cursor.next..=last {
                let entry = member.frames.entry(i).ok_or_else(none)?;
                if !entries.is_empty() && entry.wire_end - begin > READ_MAX {
                    break;
                }
                entries.push(entry);
            }
            let end = entries.last().ok_or_else(none)?.wire_end;
            // The index bounds what control frames before a block have; they have no raw bytes.
            let len = usize::try_from(end - begin).map_err(|_| none())?;
            let mut buffer = self.pool.get(len);
            self.source.read_exact_at(&mut buffer.bytes_mut()[..len], member.wire_begin + begin)?;
            let mut wire = buffer.freeze(len);
            self.pool.recycle(&wire);
            for entry in entries {
                let i = cursor.next;
                let bytes = wire.split_to((entry.wire_end - entry.wire_begin) as usize);
                let raw = cursor.decode(&entry, bytes, contexts, &self.pool)?;
                lock(&self.cache).put((cursor.member, i), &raw);
                if i == last {
                    return Ok(raw);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of the engine as one of the standard library, with its text.
pub(crate) fn io_error(error: Error) -> io::Error {
    let kind = match (&error.kind, &error.source) {
        (_, Some(source)) => source.kind(),
        (ErrorKind::Truncated, None) => io::ErrorKind::UnexpectedEof,
        (ErrorKind::Misuse, None) => io::ErrorKind::InvalidInput,
        (ErrorKind::Unsupported, None) => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl<R: ReadAt> Read for File<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // One block at a time: the first bytes do not wait for what lies after a damaged place.
        let Some(block) = self.block_at(self.position).map_err(io_error)? else { return Ok(0) };
        let n = block.len().min(buf.len());
        buf[..n].copy_from_slice(&block[..n]);
        self.position += n as u64;
        Ok(n)
    }
}

impl<R: ReadAt> Seek for File<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.raw_len.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a position before the file"))?;
        Ok(self.position)
    }
}
