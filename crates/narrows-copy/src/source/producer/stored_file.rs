//! A stored file at the sending end: its end, its sums, its frames one after the other.

use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::DATA_LEN_MAX;
use narrows::frame::{self, BlockHeader, Header, PREFACE_LEN, Preface, ReadLimits, SUMS_LOG, parse_sums};
use rustix::io::Errno;

use super::READ_LEN;
use crate::delta::read_at;
use crate::frames;

/// Most sums of a stored file: 1 TiB, in 8 MiB. Of a longer one nothing is compared with what the other
/// end has.
const SUMS_MAX: usize = 1 << 20;
/// Most blocks of a stored file that is decoded here, since its frames do not stand alone: 2 TiB of blocks
/// of 2 MiB, in 16 MiB. Who asks for it may have stored it.
const BLOCKS_MAX: usize = 1 << 20;
/// Longest header of a frame, rounded up.
const HEADER_LEN: usize = 20;
/// Longest control frame, header included.
const CONTROL_LEN: usize = 12 + frame::CONTROL_BODY_MAX;

/// A stored file at this end.
pub(super) struct Stored {
    pub(super) limits: ReadLimits,
    pub(super) index_offset: u64,
    pub(super) raw_len: u64,
    pub(super) sums: Option<Vec<u64>>,
}

/// A file of any streams.
pub(super) fn open_any(fd: &OwnedFd) -> io::Result<narrows_file::File<std::fs::File>> {
    let file = std::fs::File::from(fd.try_clone()?);
    narrows_file::OpenOptions::default().blocks_max(BLOCKS_MAX).open(file).map_err(|e| match e.kind {
        narrows::ErrorKind::Limit => io::Error::other(e.to_string()),
        _ => damaged(),
    })
}

pub(super) fn changed() -> io::Error {
    io::Error::other("it changed meanwhile; copy it again")
}

pub(super) fn read_block(fd: &OwnedFd, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut raw = vec![0; len];
    let n = read_at(fd, &mut raw, at)?;
    raw.truncate(n);
    Ok(raw)
}

pub(super) fn damaged() -> io::Error {
    io::Error::other("the stored file is damaged; `narrows check` says where")
}

/// The end of a stored file, and its sums; `None` if its frames do not stand alone, or a frame may not
/// fit into a record.
pub(super) fn open_stored(fd: &OwnedFd, len: u64) -> io::Result<Option<Stored>> {
    let Ok(totals) = frames::totals(fd) else { return Ok(None) };
    if totals.raw_total != len {
        return Err(changed());
    }
    let preface = read_block(fd, 0, PREFACE_LEN)?;
    let preface = Preface::parse(&preface).ok().flatten().ok_or_else(damaged)?;
    if !frames::stands_alone(&preface) || preface.block_max + HEADER_LEN > DATA_LEN_MAX {
        return Ok(None);
    }
    let index_offset = if totals.index_offset == 0 { totals.wire_total } else { totals.index_offset };
    let sums = read_sums(fd, index_offset, totals.wire_total, totals.raw_total)?;
    Ok(Some(Stored { limits: frames::limits(&preface), index_offset, raw_len: totals.raw_total, sums }))
}

/// The sums after the index, if their stretches are those that this program compares.
fn read_sums(fd: &OwnedFd, begin: u64, end: u64, raw_total: u64) -> io::Result<Option<Vec<u64>>> {
    let limits = ReadLimits { block_max: 0, history: 0, reach: 0, codecs: 0, check: true, messages: false };
    let (mut at, mut sums) = (begin, Vec::new());
    while at < end {
        let bytes = read_block(fd, at, CONTROL_LEN.min((end - at) as usize))?;
        let Ok(Some(Header::Control(header))) = frame::parse_header(&bytes, &limits) else { return Err(damaged()) };
        let whole = header.header_len + header.body_len;
        let body = bytes.get(header.header_len..whole).ok_or_else(damaged)?;
        header.verify(body, raw_total).map_err(|_| damaged())?;
        if header.kind == frame::ControlKind::Sums {
            let (log, more) = parse_sums(body).map_err(|_| damaged())?;
            if log != SUMS_LOG {
                return Ok(None);
            }
            if sums.len() + more.len() > SUMS_MAX {
                return Ok(None);
            }
            sums.extend(more);
        }
        at += whole as u64;
    }
    Ok(Some(sums).filter(|sums| sums.len() as u64 == raw_total.div_ceil(1 << SUMS_LOG)))
}

/// Reads frames one after the other, several at a time.
pub(super) struct Window<'a> {
    fd: &'a OwnedFd,
    at: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(fd: &'a OwnedFd) -> Self {
        Self { fd, at: 0, bytes: Vec::new() }
    }

    /// The header and all bytes of the frame at `at`, which ends before `end`.
    pub(super) fn frame(&mut self, at: u64, end: u64, limits: &ReadLimits) -> io::Result<(BlockHeader, &[u8])> {
        self.need(at, HEADER_LEN as u64, end)?;
        let begin = (at - self.at) as usize;
        let Ok(Some(Header::Block(header))) = frame::parse_header(&self.bytes[begin..], limits) else {
            return Err(damaged());
        };
        let len = header.header_len() + header.wire_len;
        self.need(at, len as u64, end)?;
        let begin = (at - self.at) as usize;
        Ok((header, self.bytes.get(begin..begin + len).ok_or_else(damaged)?))
    }

    fn need(&mut self, at: u64, len: u64, end: u64) -> io::Result<()> {
        let stop = at.saturating_add(len).min(end);
        if at >= self.at && stop <= self.at + self.bytes.len() as u64 {
            return Ok(());
        }
        let want = len.max(READ_LEN as u64).min(end.saturating_sub(at)) as usize;
        self.bytes.resize(want, 0);
        let mut filled = 0;
        while filled < want {
            match rustix::io::pread(self.fd, &mut self.bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.bytes.truncate(filled);
        self.at = at;
        Ok(())
    }
}
