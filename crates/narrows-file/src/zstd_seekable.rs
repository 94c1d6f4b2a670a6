//! Standard zstd frames with a seek table: the zstd seekable format, version 0.1.0, which any zstd
//! reads.

use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError};

use narrows::block::Block;
use narrows::{Error, Result};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound, find_frame_compressed_size, get_frame_content_size};

use crate::cache::Cache;
use crate::read_at::ReadAt;
use narrows::hint::Mode;

const SKIPPABLE_MAGIC: u32 = 0x184d_2a5e;
const SEEKABLE_MAGIC: u32 = 0x8f92_eab1;
/// Of the skippable frame: magic and length.
const TABLE_HEADER_LEN: usize = 8;
/// At the end of the table: number of frames, flags, magic.
const TABLE_FOOTER_LEN: usize = 9;
/// Flag: each entry has a checksum.
const CHECKSUMS: u8 = 0x80;
/// Reserved bits of the flags.
const RESERVED: u8 = 0x7c;
/// Longest zstd frame without content: its header of 18 bytes, an empty block, a checksum.
const EMPTY_MAX: usize = 25;
/// Entries of a table that are read at a time: 1 MiB.
const TABLE_STEP: usize = 1 << 17;
/// Most frames of the format.
const FRAMES_MAX: u32 = 0x0800_0000;
/// Longest frame that is read at any byte; longer ones are read from the beginning of the file.
const FRAME_MAX: u32 = 64 << 20;
/// Bytes of decoded frames that are kept.
const CACHE_MAX: usize = 64 << 20;

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Raw bytes.
    pub raw_bytes: u64,
    /// Bytes of the file.
    pub wire_bytes: u64,
    /// zstd frames.
    pub frames: u64,
}

/// Level and frame length of a mode.
fn settings(mode: Mode) -> (i32, usize) {
    match mode {
        Mode::Fast => (1, 256 << 10),
        Mode::Balanced => (3, 256 << 10),
        Mode::Archive => (19, 4 << 20),
    }
}

/// Encodes all of `source`, by `threads` threads.
///
/// # Errors
/// The source or the sink fails, or the file gets more frames than the format allows.
pub fn write(mut source: impl Read, mut sink: impl Write, mode: Mode, threads: usize) -> Result<Totals> {
    let (level, frame_len) = settings(mode);
    let mut contexts: Vec<_> = (0..threads.max(1)).map(|_| context(level)).collect();
    let mut table = Vec::new();
    let mut totals = Totals::default();
    loop {
        let mut round = Vec::new();
        for _ in 0..contexts.len() {
            let mut raw = Vec::with_capacity(frame_len);
            (&mut source).take(frame_len as u64).read_to_end(&mut raw)?;
            if raw.is_empty() && totals.frames + round.len() as u64 > 0 {
                break;
            }
            round.push(raw);
        }
        let ended = round.len() < contexts.len() || round.last().is_some_and(|raw| raw.len() < frame_len);
        let encoded: Vec<_> = std::thread::scope(|scope| {
            let jobs = round.iter().zip(&mut contexts).map(|(raw, context)| scope.spawn(move || encode(context, raw)));
            let jobs: Vec<_> = jobs.collect();
            jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| Err(Error::misuse("a worker failed")))).collect()
        });
        for (raw, wire) in round.iter().zip(encoded) {
            let wire = wire?;
            sink.write_all(&wire)?;
            table.extend_from_slice(&(wire.len() as u32).to_le_bytes());
            table.extend_from_slice(&(raw.len() as u32).to_le_bytes());
            totals.frames += 1;
            totals.raw_bytes += raw.len() as u64;
            totals.wire_bytes += wire.len() as u64;
        }
        if totals.frames > u64::from(FRAMES_MAX) {
            return Err(Error::limit("a seek table of zstd has at most 134,217,728 frames; write a narrows file"));
        }
        if ended {
            break;
        }
    }
    table.extend_from_slice(&(totals.frames as u32).to_le_bytes());
    table.push(0);
    table.extend_from_slice(&SEEKABLE_MAGIC.to_le_bytes());
    sink.write_all(&SKIPPABLE_MAGIC.to_le_bytes())?;
    sink.write_all(&(table.len() as u32).to_le_bytes())?;
    sink.write_all(&table)?;
    sink.flush()?;
    totals.wire_bytes += (TABLE_HEADER_LEN + table.len()) as u64;
    Ok(totals)
}

fn context(level: i32) -> CCtx<'static> {
    let mut context = CCtx::create();
    for parameter in [CParameter::CompressionLevel(level), CParameter::ChecksumFlag(true)] {
        context.set_parameter(parameter).expect("zstd knows these parameters");
    }
    context
}

fn encode(context: &mut CCtx<'static>, raw: &[u8]) -> Result<Vec<u8>> {
    let mut wire = Vec::with_capacity(compress_bound(raw.len()));
    context.compress2(&mut wire, raw).map_err(|code| Error::misuse(zstd::zstd_safe::get_error_name(code)))?;
    Ok(wire)
}

/// A file of zstd frames with a seek table, read at any byte.
pub struct SeekableFile<R> {
    source: R,
    /// Ends of each frame: raw, and in the file.
    ends: Vec<(u64, u64)>,
    cache: Mutex<Cache>,
}

impl<R: ReadAt> SeekableFile<R> {
    /// Opens a file by its seek table; `None` if it has none that can be used, and has to be read from
    /// its beginning. The header of each frame is read, since the table is only a claim.
    ///
    /// # Errors
    /// The source fails.
    pub fn open(source: R) -> Result<Option<Self>> {
        let (len, tail) = source.read_tail(64 << 10)?;
        let Some((entry_len, table_len)) = footer(&tail) else { return Ok(None) };
        let Some(begin) = len.checked_sub(table_len) else { return Ok(None) };
        let mut header = [0; TABLE_HEADER_LEN];
        source.read_exact_at(&mut header, begin)?;
        if header[..4] != SKIPPABLE_MAGIC.to_le_bytes()
            || header[4..] != ((table_len - TABLE_HEADER_LEN as u64) as u32).to_le_bytes()
        {
            return Ok(None);
        }
        let entries_end = len - TABLE_FOOTER_LEN as u64;
        let mut at = begin + TABLE_HEADER_LEN as u64;
        let mut step = vec![0; TABLE_STEP * entry_len];
        let mut ends = Vec::new();
        let (mut raw_end, mut wire_end) = (0, 0);
        while at < entries_end {
            let n = step.len().min((entries_end - at) as usize);
            let entries = &mut step[..n];
            source.read_exact_at(entries, at)?;
            at += n as u64;
            for entry in entries.chunks_exact(entry_len) {
                let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
                let (wire_len, raw_len) = (number(0), number(4));
                if !is_frame(&source, wire_end, begin, wire_len, raw_len)? {
                    return Ok(None);
                }
                wire_end += u64::from(wire_len);
                raw_end += u64::from(raw_len);
                ends.push((raw_end, wire_end));
            }
        }
        let cache = Mutex::new(Cache::new(CACHE_MAX));
        Ok((wire_end == begin).then_some(Self { source, ends, cache }))
    }

    /// Raw length in bytes.
    pub fn raw_len(&self) -> u64 {
        self.ends.last().map_or(0, |(raw, _)| *raw)
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.ends.len()
    }

    /// Reads raw bytes from `offset` on: as many as there are, `buf` at most. 0 is the end.
    ///
    /// # Errors
    /// The source fails, or what it has is damaged.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            if at >= self.raw_len() {
                break;
            }
            let i = self.ends.partition_point(|(raw_end, _)| *raw_end <= at);
            let (block, begin) = self.frame(i)?;
            let rest = &block[(at - begin) as usize..];
            let n = rest.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
        }
        Ok(done)
    }

    fn frame(&self, i: usize) -> Result<(Block, u64)> {
        let (raw_begin, wire_begin) = i.checked_sub(1).map_or((0, 0), |before| self.ends[before]);
        let (raw_end, wire_end) = self.ends[i];
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = cache.get((0, i)) {
            return Ok((block, raw_begin));
        }
        drop(cache);
        let mut wire = vec![0; (wire_end - wire_begin) as usize];
        self.source.read_exact_at(&mut wire, wire_begin)?;
        let len = (raw_end - raw_begin) as usize;
        let lies = || Error::corrupt(format!("frame {i} of the zstd file is not what its seek table says"));
        if find_frame_compressed_size(&wire) != Ok(wire.len()) {
            return Err(lies());
        }
        let mut raw = Vec::with_capacity(len);
        DCtx::create().decompress(&mut raw, &wire).map_err(|_| lies())?;
        if raw.len() != len {
            return Err(lies());
        }
        let block = Block::from_vec(raw);
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).put((0, i), &block);
        Ok((block, raw_begin))
    }
}

/// Whether the frame at `at`, of frames that end at `end`, may have the lengths that the table says.
/// Raw offsets rest on the lengths of all frames before, so each must agree; whether the frame ends
/// where the table says is tested when it is decoded. One without content never is, so it is now.
fn is_frame(source: &impl ReadAt, at: u64, end: u64, wire_len: u32, raw_len: u32) -> Result<bool> {
    if raw_len > FRAME_MAX || wire_len > 2 * FRAME_MAX || at + u64::from(wire_len) > end {
        return Ok(false);
    }
    let mut frame = [0; EMPTY_MAX];
    let frame = &mut frame[..EMPTY_MAX.min(wire_len as usize)];
    source.read_exact_at(frame, at)?;
    if !matches!(get_frame_content_size(frame), Ok(Some(stated)) if stated == u64::from(raw_len)) {
        return Ok(false);
    }
    Ok(raw_len > 0 || find_frame_compressed_size(frame) == Ok(wire_len as usize))
}

/// The length of an entry and of the whole table, if `tail` ends with a seek table.
fn footer(tail: &[u8]) -> Option<(usize, u64)> {
    let footer = tail.last_chunk::<TABLE_FOOTER_LEN>()?;
    let number = |at: usize| u32::from_le_bytes([footer[at], footer[at + 1], footer[at + 2], footer[at + 3]]);
    let (frames, flags) = (number(0), footer[4]);
    if number(5) != SEEKABLE_MAGIC || flags & RESERVED != 0 || frames > FRAMES_MAX {
        return None;
    }
    let entry_len = if flags & CHECKSUMS != 0 { 12 } else { 8 };
    Some((entry_len, (TABLE_HEADER_LEN + entry_len * frames as usize + TABLE_FOOTER_LEN) as u64))
}

impl<R: ReadAt> SeekableFile<R> {
    /// Passes the raw bytes from `begin` to `end` on.
    ///
    /// # Errors
    /// Those of [`SeekableFile::read_at`], or that of `sink`.
    pub fn copy(&self, begin: u64, end: u64, sink: &mut impl Write) -> Result<()> {
        let mut at = begin;
        let mut buf = vec![0; 256 << 10];
        while at < end.min(self.raw_len()) {
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
            let n = self.read_at(&mut buf[..n], at)?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            sink.write_all(&buf[..n])?;
            at += n as u64;
        }
        Ok(())
    }
}
