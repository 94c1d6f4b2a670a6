//! Recompressing a file with slower methods: the raw bytes, their offsets and their sums stay.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narrows::block::{Block, BufferPool};
use narrows::frame::{ATTEMPT_FRAME_LEN, Attempt, SUMS_LOG, Sums, feature};
use narrows::hint::{Hint, Mode};
use narrows::stream::{self, BlockSource, SendOptions};
use narrows::transport::Link;
use narrows::{Error, Result};

use crate::check::{check, headers_fault, prefaces_are_whole};
use crate::effort::{Effort, attempt_of, end_of};
use crate::file::{File, OpenOptions};
use crate::index::{IndexOrigin, Member};
use crate::read_at::ReadAt;
use crate::writer::{Shared, WriteOptions};

/// Decoded ahead of the encoder, by all threads: a run of 16 MiB for each of two.
const AHEAD: usize = 32 << 20;
/// Enough for blocks of 2 MiB under zstd 19 on two cores.
const MEMORY_MAX: usize = 160 << 20;

/// Called before each block with the raw bytes so far: to wait, or to stop by an error.
pub type Pace = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// How a file is recompressed.
#[derive(Clone)]
#[must_use]
pub struct RepackOptions {
    hint: Hint,
    mode: Mode,
    threads: usize,
    reach_max: usize,
    pace: Pace,
    parts: Option<Parts>,
}

/// The two streams of a file whose end is read here and there.
#[derive(Debug, Clone)]
struct Parts {
    /// Raw offset where the second begins.
    second: u64,
    options: [WriteOptions; 2],
}

impl RepackOptions {
    /// With the methods of `mode`.
    pub fn new(mode: Mode) -> Self {
        let threads = stream::encoders();
        Self { hint: Hint::default(), mode, threads, reach_max: 128 << 20, pace: Arc::new(|_| Ok(())), parts: None }
    }

    /// Two streams instead of one, of which the second begins at this raw offset, each with its own
    /// options: of a pack, whose directory has short blocks.
    pub fn parts(self, second: u64, options: [WriteOptions; 2]) -> Self {
        Self { parts: Some(Parts { second, options }), ..self }
    }

    /// What the user says about the bytes, with the mode.
    pub fn whole_hint(&self) -> Hint {
        Hint { mode: Some(self.mode), ..self.hint.clone() }
    }

    /// What the user says about the bytes beside the mode.
    pub fn hint(self, hint: Hint) -> Self {
        Self { hint, ..self }
    }

    /// Threads that encode and decode. Default: [`stream::encoders`].
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Most raw bytes that are kept for copies of what came before. Default: 128 MiB.
    pub fn reach_max(self, len: usize) -> Self {
        Self { reach_max: len, ..self }
    }

    /// Called before each block is read or verified.
    pub fn pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// The effort that the new file records.
    pub fn effort(&self) -> Effort {
        Effort::of(self.mode)
    }
}

/// What a file was encoded to.
#[derive(Debug, Clone)]
pub struct Repacked {
    /// Raw bytes.
    pub raw_bytes: u64,
    /// Bytes of the old file.
    pub old_bytes: u64,
    /// Bytes of the new file.
    pub new_bytes: u64,
    /// Of the old file's raw bytes, as each stream of the new one must have them.
    sums: Vec<Vec<u64>>,
}

impl Repacked {
    /// Whether the new file is worth keeping.
    pub fn shrank(&self) -> bool {
        self.new_bytes < self.old_bytes
    }
}

/// A file that may be recompressed, or why it is left as it is.
pub enum Candidate<R> {
    /// It is whole as far as its index tells.
    File(Box<File<R>>),
    /// It has nothing that would tell whether it is whole.
    Unchecked,
    /// A newer version wrote something beside the index that this one cannot carry over.
    Newer,
}

/// Opens a file for [`repack`].
///
/// # Errors
/// The source fails; `Corrupt` or `Truncated` if the file is damaged, as far as that is seen without
/// decoding.
pub fn open<R: ReadAt>(source: R, options: &RepackOptions) -> Result<Candidate<R>> {
    let file = OpenOptions::default().cache_max(2 * AHEAD).reach_max(options.reach_max).open(source)?;
    if file.members().iter().any(|m| m.origin == IndexOrigin::Rebuilt) {
        return Err(Error::corrupt("the index or the end is damaged; `narrows check --repair-index` makes it anew"));
    }
    if !prefaces_are_whole(&file)? {
        return Err(Error::corrupt("a preface is damaged; `narrows check --repair-index` makes it anew"));
    }
    if file.members().iter().any(|m| m.unknown) {
        return Ok(Candidate::Newer);
    }
    if file.members().iter().any(|m| !m.preface.check && m.blocks() > 0) {
        return Ok(Candidate::Unchecked);
    }
    Ok(Candidate::File(Box::new(file)))
}

/// Encodes all raw bytes of `file` into `sink`, as one stream, or as [two](RepackOptions::parts). Where the
/// old file has copies of what came before, the new one has too; else it can be read at any run. The new
/// file must be [verified](verify) before it takes the place of the old one.
///
/// # Errors
/// The source, the sink or the pace fails; `Corrupt` if a block or a sum of the old file is damaged.
pub fn repack<R, W>(file: File<R>, sink: W, options: &RepackOptions) -> Result<(W, Repacked)>
where
    R: ReadAt + 'static,
    W: Write + Send + 'static,
{
    // Blocks that took each other's place, or are of another file, are seen by the digest alone, and the
    // new file would have a digest that agrees.
    for member in file.members().iter().filter(|m| m.origin == IndexOrigin::Stored) {
        if let Some(why) = headers_fault(&file, member)? {
            return Err(Error::corrupt(why));
        }
    }
    let (raw_bytes, old_bytes) = (file.raw_len(), file.wire_len());
    let streams = streams(&file, options)?;
    let raw =
        Raw { file, at: 0, ahead: 0, member: None, options: options.clone(), sums: Sums::new(SUMS_LOG), error: None };
    let raw = Arc::new(Mutex::new(raw));
    let sink = Arc::new(Mutex::new(Some(sink)));
    let mut repacked = Repacked { raw_bytes, old_bytes, new_bytes: 0, sums: Vec::new() };
    let mut encoded = 0;
    for (end, send) in streams {
        let source = Part { raw: Arc::clone(&raw), end };
        let sent = stream::send_blocks(source, Link::writer(Shared(Arc::clone(&sink))), send);
        let mut raw = lock(&raw);
        if let Some(error) = raw.error.take() {
            return Err(error);
        }
        let (summary, _) = sent?;
        encoded += summary.raw_bytes;
        repacked.new_bytes += summary.wire_bytes;
        repacked.sums.push(std::mem::replace(&mut raw.sums, Sums::new(SUMS_LOG)).finish());
    }
    let sink = lock(&sink).take();
    let sink = sink.ok_or_else(|| Error::misuse("the sink is gone; this is a bug"))?;
    if encoded != raw_bytes {
        return Err(Error::misuse("not all bytes were encoded; this is a bug"));
    }
    Ok((sink, repacked))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where each stream of the new file ends, and how it is written.
fn streams<R: ReadAt>(file: &File<R>, options: &RepackOptions) -> Result<Vec<(u64, SendOptions)>> {
    let attempt = options.effort().attempt();
    let raw_len = file.raw_len();
    let send = |of: WriteOptions, len: u64| of.threads(options.threads).raw_len(len).send_options();
    let Some(Parts { second, options: [first, rest] }) = options.parts.clone() else {
        let first = WriteOptions::default().hint(options.whole_hint());
        // An effort with a floor is still what repack would do again.
        let send = with_copies(file, send(first, raw_len), options).attempt(Some(attempt)).memory_max(MEMORY_MAX);
        return Ok(vec![(raw_len, send)]);
    };
    if second == 0 || second >= raw_len {
        return Err(Error::misuse("a stream of the new file would be empty"));
    }
    let first = with_copies(file, send(first, second), options).attempt(None).memory_max(MEMORY_MAX);
    // The last bytes of the file are those of the second one.
    let rest = send(rest, raw_len - second).attempt(Some(Attempt { before: 1, ..attempt }));
    Ok(vec![(second, first), (raw_len, rest)])
}

fn with_copies<R: ReadAt>(file: &File<R>, send: SendOptions, options: &RepackOptions) -> SendOptions {
    let copies = file.members().iter().filter(|m| m.preface.critical & feature::COPIES != 0);
    match copies.map(|m| m.preface.reach).max() {
        Some(reach) => send.reach(reach.min(options.reach_max)).search_always(true),
        None => send,
    }
}

/// Compares a new file with what it was made of: every block is decoded, and every sum is compared.
///
/// # Errors
/// The source or the pace fails; `Corrupt` if anything differs.
pub fn verify<R: ReadAt>(new: R, repacked: &Repacked, options: &RepackOptions) -> Result<()> {
    let differs = |what: &str| Error::corrupt(format!("the new file has other {what} than the old one"));
    if end_of(&new)?.and_then(|end| end.effort) != Some(options.effort()) {
        return Err(differs("records"));
    }
    let file = OpenOptions::default().cache_max(2 * AHEAD).reach_max(options.reach_max).open(new)?;
    let has_index = file.members().iter().all(|m| m.origin == IndexOrigin::Stored);
    if file.raw_len() != repacked.raw_bytes || file.wire_len() != repacked.new_bytes {
        return Err(differs("lengths"));
    }
    if !has_index && repacked.raw_bytes > 0 || !prefaces_are_whole(&file)? {
        return Err(differs("ends"));
    }
    if file.members().len() != repacked.sums.len() {
        return Err(differs("streams"));
    }
    let (mut at, mut ahead) = (0, 0);
    for (member, expected) in file.members().iter().zip(&repacked.sums) {
        let mut sums = Sums::new(SUMS_LOG);
        let end = member.raw_begin + member.frames.raw_total();
        while at < end
            && let Some(block) = next_block(&file, at, &mut ahead, options)?
        {
            at += block.len() as u64;
            sums.push(&block);
        }
        if sums.finish() != *expected || has_index && member.sums.1 != *expected {
            return Err(differs("bytes"));
        }
    }
    Ok(())
}

/// The bytes from `at` to the end of their block; all threads decode what follows.
fn next_block<R: ReadAt>(file: &File<R>, at: u64, ahead: &mut u64, options: &RepackOptions) -> Result<Option<Block>> {
    (options.pace)(at)?;
    if at >= *ahead && at < file.raw_len() {
        file.read_ahead(at, AHEAD, options.threads)?;
        *ahead = at + AHEAD as u64;
    }
    file.block_at(at)
}

/// The raw bytes of a file as the source of a flow. Its own sums are compared on the way.
struct Raw<R> {
    file: File<R>,
    at: u64,
    ahead: u64,
    /// The stream that is read, and the sums of its bytes so far.
    member: Option<(usize, Sums)>,
    options: RepackOptions,
    /// Of the stream that is written.
    sums: Sums,
    /// A flow only tells that its source failed.
    error: Option<Error>,
}

impl<R: ReadAt> Raw<R> {
    /// The next bytes before `end`; none there.
    fn read(&mut self, len: usize, end: u64) -> Result<Block> {
        if self.at >= self.file.raw_len() {
            self.compare()?;
        }
        let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(Block::default());
        }
        let Some(mut block) = next_block(&self.file, self.at, &mut self.ahead, &self.options)? else {
            return Ok(Block::default());
        };
        let n = block.len().min(len.max(1)).min(left);
        let block = block.split_to(n);
        let of = self.file.members().partition_point(|m| m.raw_begin + m.frames.raw_total() <= self.at);
        if self.member.as_ref().is_none_or(|(before, _)| *before != of) {
            self.compare()?;
            self.member = self.file.members().get(of).map(|m| (of, Sums::new(sums_log(m.sums.0))));
        }
        if let Some((_, sums)) = &mut self.member {
            sums.push(&block);
        }
        self.sums.push(&block);
        self.at += n as u64;
        Ok(block)
    }

    /// Compares the sums of the stream that was read.
    fn compare(&mut self) -> Result<()> {
        let Some((of, sums)) = self.member.take() else { return Ok(()) };
        let stored = &self.file.members()[of].sums.1;
        if stored.is_empty() || sums.finish() == *stored {
            return Ok(());
        }
        Err(Error::corrupt("the raw bytes are not those that the sums beside the index were made of"))
    }
}

/// The stretch of a stream's sums; any where it has none.
fn sums_log(log: u8) -> u8 {
    if log == 0 { SUMS_LOG } else { log }
}

/// A stretch of a file as the source of a flow.
struct Part<R> {
    raw: Arc<Mutex<Raw<R>>>,
    /// Raw offset of its end.
    end: u64,
}

impl<R: ReadAt> BlockSource for Part<R> {
    fn next(&mut self, len: usize, _buffers: &BufferPool) -> io::Result<Block> {
        let mut raw = lock(&self.raw);
        raw.read(len, self.end).map_err(|error| {
            let text = error.to_string();
            raw.error.get_or_insert(error);
            io::Error::other(text)
        })
    }
}

/// Decodes a copy that [`copy_with_effort`] made, and compares it with the digest of all checks of the old
/// file: what was copied was read once more, and nothing else tells whether it came as it is.
///
/// # Errors
/// A source fails; `Corrupt` if anything differs.
pub fn verify_copy<R: ReadAt, N: ReadAt>(old: &File<R>, new: N, options: &RepackOptions) -> Result<()> {
    let new = OpenOptions::default().reach_max(options.reach_max).open(new)?;
    let totals = |m: &Member| (m.totals.raw_total, m.totals.digest);
    let is_same = old.members().iter().map(totals).eq(new.members().iter().map(totals));
    if is_same && check(&new, options.threads, false)?.is_good() {
        return Ok(());
    }
    Err(Error::corrupt("it came otherwise when it was read again; nothing was replaced"))
}

/// Copies a file as it is, with the record of an effort that was tried in vain instead of the one it has.
/// Returns false for a file of more streams than such a record can speak for.
///
/// # Errors
/// The source or the sink fails.
pub fn copy_with_effort<R: ReadAt>(file: &File<R>, sink: &mut impl Write, effort: Effort) -> Result<bool> {
    let Some((last, before)) = file.members().split_last() else { return Ok(false) };
    let Ok(before) = u8::try_from(before.len()) else { return Ok(false) };
    let mut totals = last.totals;
    if let Some(at) = totals.wire_total.checked_sub(ATTEMPT_FRAME_LEN as u64) {
        let mut frame = [0; ATTEMPT_FRAME_LEN];
        file.source().read_exact_at(&mut frame, last.wire_begin + at)?;
        if attempt_of(&frame, totals.raw_total).is_some() {
            totals.wire_total = at;
        }
    }
    let end = last.wire_begin + totals.wire_total;
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < end {
        let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
        file.source().read_exact_at(&mut piece[..n], at)?;
        sink.write_all(&piece[..n])?;
        at += n as u64;
    }
    let record = Attempt { before, ..effort.attempt() }.frame(totals.raw_total);
    totals.wire_total += record.wire_len() as u64;
    for frame in [record, totals.frame()] {
        sink.write_all(&frame.header)?;
        sink.write_all(&frame.body)?;
    }
    Ok(true)
}
