//! Encoding a file anew with slower methods: the raw bytes, their offsets and their sums stay.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::block::{Block, BufferPool};
use narrows::frame::{ATTEMPT_FRAME_LEN, SUMS_LOG, Sums, feature};
use narrows::hint::{Hint, Mode};
use narrows::stream::{self, BlockSource, SendOptions};
use narrows::transport::Link;
use narrows::{Error, Result};

use crate::check::prefaces_are_whole;
use crate::effort::{Effort, end_of};
use crate::file::{File, OpenOptions};
use crate::index::IndexOrigin;
use crate::read_at::ReadAt;
use crate::writer::{Shared, WriteOptions};

/// Decoded ahead of the encoder, by all threads: a run of 16 MiB for each of two.
const AHEAD: usize = 32 << 20;
/// Enough for blocks of 2 MiB under zstd 19 on two cores.
const MEMORY_MAX: usize = 160 << 20;

/// Called before each block with the raw bytes so far: to wait, or to stop by an error.
pub type Pace = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// How a file is encoded anew.
#[derive(Clone)]
#[must_use]
pub struct RepackOptions {
    hint: Hint,
    mode: Mode,
    threads: usize,
    reach_max: usize,
    pace: Pace,
}

impl RepackOptions {
    /// With the methods of `mode`.
    pub fn new(mode: Mode) -> Self {
        let threads = stream::encoders();
        Self { hint: Hint::default(), mode, threads, reach_max: 128 << 20, pace: Arc::new(|_| Ok(())) }
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
    /// Of the old file's raw bytes, as the new one must have them.
    sums: Vec<u64>,
}

impl Repacked {
    /// Whether the new file is worth keeping.
    pub fn shrank(&self) -> bool {
        self.new_bytes < self.old_bytes
    }
}

/// A file that may be encoded anew, or why it is left as it is.
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

/// Encodes all raw bytes of `file` into `sink`, as one stream. Where the old file has copies of what came
/// before, the new one has too; else it can be read at any run. The new file must be
/// [verified](verify) before it takes the place of the old one.
///
/// # Errors
/// The source, the sink or the pace fails; `Corrupt` if a block or a sum of the old file is damaged.
pub fn repack<R, W>(file: File<R>, sink: W, options: &RepackOptions) -> Result<(W, Repacked)>
where
    R: ReadAt + 'static,
    W: Write + Send + 'static,
{
    let (raw_bytes, old_bytes) = (file.raw_len(), file.wire_len());
    let found = Arc::new(Mutex::new(Found { sums: Sums::new(SUMS_LOG), error: None }));
    let send = send_options(&file, options);
    let source = Raw { file, at: 0, ahead: 0, member: None, options: options.clone(), found: Arc::clone(&found) };
    let sink = Arc::new(Mutex::new(Some(sink)));
    let sent = stream::send_blocks(source, Link::writer(Shared(Arc::clone(&sink))), send);
    let mut found = std::mem::replace(
        &mut *found.lock().unwrap_or_else(PoisonError::into_inner),
        Found { sums: Sums::new(SUMS_LOG), error: None },
    );
    if let Some(error) = found.error.take() {
        return Err(error);
    }
    let (summary, _) = sent?;
    let sink = sink.lock().unwrap_or_else(PoisonError::into_inner).take();
    let sink = sink.ok_or_else(|| Error::misuse("the sink is gone; this is a bug"))?;
    let repacked = Repacked { raw_bytes, old_bytes, new_bytes: summary.wire_bytes, sums: found.sums.finish() };
    if summary.raw_bytes != raw_bytes {
        return Err(Error::misuse("not all bytes were encoded; this is a bug"));
    }
    Ok((sink, repacked))
}

fn send_options<R: ReadAt>(file: &File<R>, options: &RepackOptions) -> SendOptions {
    let hint = Hint { mode: Some(options.mode), ..options.hint.clone() };
    let send = WriteOptions::default().hint(hint).threads(options.threads).raw_len(file.raw_len()).send_options();
    let copies = file.members().iter().filter(|m| m.preface.critical & feature::COPIES != 0);
    let send = match copies.map(|m| m.preface.reach).max() {
        Some(reach) => send.reach(reach.min(options.reach_max)).search_always(true),
        None => send,
    };
    // An effort with a floor is still what repack would do again.
    send.attempt(Some(options.effort().attempt())).memory_max(MEMORY_MAX)
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
    let mut sums = Sums::new(SUMS_LOG);
    let (mut at, mut ahead) = (0, 0);
    while let Some(block) = next_block(&file, at, &mut ahead, options)? {
        at += block.len() as u64;
        sums.push(&block);
    }
    if sums.finish() != repacked.sums || file.members().iter().any(|m| has_index && m.sums.1 != repacked.sums) {
        return Err(differs("bytes"));
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

/// What became known of the old file.
struct Found {
    sums: Sums,
    error: Option<Error>,
}

/// The raw bytes of a file as the source of a flow. Its own sums are compared on the way.
struct Raw<R> {
    file: File<R>,
    at: u64,
    ahead: u64,
    /// The stream that is read, and the sums of its bytes so far.
    member: Option<(usize, Sums)>,
    options: RepackOptions,
    found: Arc<Mutex<Found>>,
}

impl<R: ReadAt> Raw<R> {
    fn read(&mut self, len: usize) -> Result<Block> {
        let Some(mut block) = next_block(&self.file, self.at, &mut self.ahead, &self.options)? else {
            self.compare()?;
            return Ok(Block::default());
        };
        let n = block.len().min(len.max(1));
        let block = block.split_to(n);
        let of = self.file.members().partition_point(|m| m.raw_begin + m.frames.raw_total() <= self.at);
        if self.member.as_ref().is_none_or(|(before, _)| *before != of) {
            self.compare()?;
            self.member = self.file.members().get(of).map(|m| (of, Sums::new(sums_log(m.sums.0))));
        }
        if let Some((_, sums)) = &mut self.member {
            sums.push(&block);
        }
        self.found.lock().unwrap_or_else(PoisonError::into_inner).sums.push(&block);
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

impl<R: ReadAt> BlockSource for Raw<R> {
    fn next(&mut self, len: usize, _buffers: &BufferPool) -> io::Result<Block> {
        self.read(len).map_err(|error| {
            let text = error.to_string();
            // The flow only tells that its source failed.
            self.found.lock().unwrap_or_else(PoisonError::into_inner).error.get_or_insert(error);
            io::Error::other(text)
        })
    }
}

/// Copies a file as it is, with the record of an effort that was tried in vain instead of the one it has;
/// for a file of one stream. Returns false for others.
///
/// # Errors
/// The source or the sink fails.
pub fn copy_with_effort<R: ReadAt>(file: &File<R>, sink: &mut impl Write, effort: Effort) -> Result<bool> {
    let [member] = file.members() else { return Ok(false) };
    let mut totals = member.totals;
    if end_of(file.source())?.is_some_and(|end| end.effort.is_some()) {
        totals.wire_total -= ATTEMPT_FRAME_LEN as u64;
    }
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < totals.wire_total {
        let n = usize::try_from(totals.wire_total - at).unwrap_or(usize::MAX).min(piece.len());
        file.source().read_exact_at(&mut piece[..n], at)?;
        sink.write_all(&piece[..n])?;
        at += n as u64;
    }
    let record = effort.attempt().frame(totals.raw_total);
    totals.wire_total += record.wire_len() as u64;
    for frame in [record, totals.frame()] {
        sink.write_all(&frame.header)?;
        sink.write_all(&frame.body)?;
    }
    Ok(true)
}
