//! The end of a stream in a file: footer, index, sums, copy of the preface (format.md section 14.2).

use narrows::frame::{
    self, Attempt, ControlKind, END_FRAME_LEN, EndTotals, Header, MAGIC, PREFACE_LEN, Preface, ReadLimits, Role,
    parse_sums,
};
use narrows::{Error, ErrorKind, Result};

use crate::index::{Builder, IndexOrigin, Member, too_many_blocks};
use crate::read_at::ReadAt;

/// Read at the end of a file: footer and index of some 9,000 blocks.
pub(crate) const TAIL_LEN: usize = 64 << 10;
/// Read at a time of an index that is longer.
const INDEX_STEP: u64 = 1 << 20;

/// Most sums for each of the blocks that a file may have: stretches of 1 MiB of blocks of 2 MiB.
pub(crate) const SUMS_OF_BLOCK: usize = 2;

/// Nothing but control frames may stand here.
pub(crate) const CONTROL_ONLY: ReadLimits =
    ReadLimits { block_max: 0, history: 0, reach: 0, codecs: 0, check: true, messages: false };

/// The end of a file that was read at once.
pub(crate) struct Tail {
    bytes: Vec<u8>,
    begin: u64,
}

impl Tail {
    pub(crate) fn new(len: u64, bytes: Vec<u8>) -> Self {
        Self { begin: len - bytes.len() as u64, bytes }
    }

    /// Fills `buf`, from these bytes if they have it.
    pub(crate) fn read(&self, source: &impl ReadAt, buf: &mut [u8], offset: u64) -> Result<()> {
        let known = offset
            .checked_sub(self.begin)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.bytes.get(at..at + buf.len()));
        match known {
            Some(known) => buf.copy_from_slice(known),
            None => source.read_exact_at(buf, offset).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::truncated("the file is shorter than a stream"),
                _ => e.into(),
            })?,
        }
        Ok(())
    }
}

/// The totals in the footer that ends at `end`.
pub(crate) fn read_totals(source: &impl ReadAt, tail: &Tail, end: u64) -> Result<EndTotals> {
    let none = || Error::truncated("the file does not end with the end frame of a stream");
    let at = end.checked_sub((PREFACE_LEN + END_FRAME_LEN) as u64).ok_or_else(none)? + PREFACE_LEN as u64;
    let mut bytes = [0; END_FRAME_LEN];
    tail.read(source, &mut bytes, at)?;
    let header = match frame::parse_header(&bytes, &CONTROL_ONLY) {
        Ok(Some(Header::Control(h))) if h.kind == ControlKind::End && h.header_len + h.body_len == bytes.len() => h,
        _ => return Err(none()),
    };
    let body = &bytes[header.header_len..];
    let totals = EndTotals::parse(body)?;
    header.verify(body, totals.raw_total).map_err(|_| none())?;
    let impossible = totals.wire_total > at
        || totals.wire_total < PREFACE_LEN as u64
        || totals.raw_total > i64::MAX as u64
        || totals.index_offset > totals.wire_total;
    if impossible {
        return Err(Error::corrupt("the end frame of the file states impossible totals"));
    }
    Ok(totals)
}

/// The preface that stands at `at`.
pub(crate) fn read_preface(source: &impl ReadAt, tail: &Tail, at: u64) -> Result<Preface> {
    let mut bytes = [0; PREFACE_LEN];
    let n = source.len()?.saturating_sub(at).min(PREFACE_LEN as u64) as usize;
    tail.read(source, &mut bytes[..n], at)?;
    // Short bytes are a stream that was cut off only if streams begin so.
    if n < MAGIC.len() && MAGIC.starts_with(&bytes[..n]) {
        return Err(Error::truncated("the file is shorter than a stream"));
    }
    parse_preface(&bytes[..n])
}

pub(crate) fn parse_preface(bytes: &[u8]) -> Result<Preface> {
    if bytes.get(..4) != Some(&MAGIC[..]) {
        return Err(Error::corrupt("this is not the beginning of a stream"));
    }
    let Some(preface) = Preface::parse(bytes)? else {
        return Err(Error::truncated("the stream ends within its preface"));
    };
    if preface.role != Role::Sender {
        return Err(Error::corrupt("this is the reverse direction of a stream, which has no content"));
    }
    Ok(preface)
}

/// What an index says, before anything is compared with it.
struct Claims {
    preface: Option<Preface>,
    builder: Option<Builder>,
    sums: (u8, Vec<u64>),
    unknown: bool,
    attempt: Option<Attempt>,
    blocks_max: usize,
}

/// The stream whose footer ends at `end`, by its index, which has at most `blocks_max` blocks.
pub(crate) fn read_member(
    source: &impl ReadAt,
    tail: &Tail,
    end: u64,
    totals: EndTotals,
    blocks_max: usize,
) -> Result<Member> {
    let footer = end - END_FRAME_LEN as u64;
    let wire_begin = footer - totals.wire_total;
    let index_begin = wire_begin + totals.index_offset;
    let (preface, builder, sums) = (None, None, (0, Vec::new()));
    let mut claims = Claims { preface, builder, sums, unknown: false, attempt: None, blocks_max };
    let mut window = Vec::new();
    let mut at = index_begin;
    while at < footer || !window.is_empty() {
        let n = (footer - at).min(INDEX_STEP) as usize;
        let begin = window.len();
        window.resize(begin + n, 0);
        tail.read(source, &mut window[begin..], at)?;
        at += n as u64;
        let used = claims.take_all(source, tail, wire_begin, &window, totals.raw_total)?;
        if used == 0 && at == footer {
            return Err(Error::corrupt("the index is cut off"));
        }
        window.drain(..used);
    }
    let Some(builder) = claims.builder else {
        return Err(Error::corrupt("the index is incomplete"));
    };
    if builder.wire_end() != totals.index_offset {
        return Err(Error::corrupt("the lengths in the index do not lead to it"));
    }
    let frames = builder.finish();
    if frames.raw_total() != totals.raw_total {
        return Err(Error::corrupt("the lengths in the index are not those of the end frame"));
    }
    let (log, sums) = &claims.sums;
    if !sums.is_empty() && sums.len() as u64 != totals.raw_total.div_ceil(1 << log) {
        return Err(Error::corrupt("the sums beside the index are not those of all bytes"));
    }
    let preface = match claims.preface {
        Some(preface) => preface,
        None => read_preface(source, tail, wire_begin)?,
    };
    Ok(Member {
        wire_begin,
        raw_begin: 0,
        preface,
        totals,
        origin: IndexOrigin::Stored,
        sums: claims.sums,
        broken: None,
        unknown: claims.unknown,
        attempt: claims.attempt,
        frames,
    })
}

impl Claims {
    /// Takes all whole frames off the front of `window`; returns their length.
    fn take_all(
        &mut self,
        source: &impl ReadAt,
        tail: &Tail,
        wire_begin: u64,
        window: &[u8],
        raw_total: u64,
    ) -> Result<usize> {
        let mut at = 0;
        while at < window.len() {
            let header = match frame::parse_header(&window[at..], &CONTROL_ONLY)? {
                Some(Header::Control(header)) => header,
                Some(Header::Block(_)) => return Err(Error::corrupt("there is a block within the index")),
                None => break,
            };
            let begin = at + header.header_len;
            let Some(body) = window.get(begin..begin + header.body_len) else { break };
            header.verify(body, raw_total)?;
            match header.kind {
                ControlKind::PrefaceCopy => {
                    // Without checks nothing would contradict a copy that lies.
                    self.preface = Some(parse_preface(body)?).filter(|p| p.check);
                }
                ControlKind::Index => {
                    if self.builder.is_none() {
                        let preface = match self.preface {
                            Some(preface) => preface,
                            None => read_preface(source, tail, wire_begin)?,
                        };
                        self.preface = Some(preface);
                        self.builder = Some(Builder::new(&preface, self.blocks_max));
                    }
                    self.take_pairs(body)?;
                }
                ControlKind::Sums => {
                    let (log, sums) = parse_sums(body)?;
                    if !self.sums.1.is_empty() && self.sums.0 != log {
                        return Err(Error::corrupt("the sums beside the index have different stretches"));
                    }
                    let count = self.sums.1.len() + sums.len();
                    if count as u64 > raw_total.div_ceil(1 << log) {
                        return Err(Error::corrupt("there are more sums beside the index than content"));
                    }
                    if count / SUMS_OF_BLOCK > self.blocks_max {
                        return Err(too_many_blocks(self.blocks_max));
                    }
                    self.sums.0 = log;
                    self.sums.1.extend(sums);
                }
                ControlKind::Attempt => self.attempt = Some(Attempt::parse(body)?),
                ControlKind::Unknown(_) => self.unknown = true,
                _ => return Err(Error::corrupt("there is a frame within the index that is no part of it")),
            }
            at = begin + header.body_len;
        }
        Ok(at)
    }

    fn take_pairs(&mut self, mut pairs: &[u8]) -> Result<()> {
        let cut = || Error::corrupt("a pair of the index is cut off");
        let Some(builder) = &mut self.builder else { return Ok(()) };
        while !pairs.is_empty() {
            let (raw_len, n) = frame::varint(pairs, 10)?.ok_or_else(cut)?;
            let (wire_len, m) = frame::varint(&pairs[n..], 10)?.ok_or_else(cut)?;
            pairs = &pairs[n + m..];
            builder.push(raw_len, wire_len)?;
        }
        Ok(())
    }
}

/// Whether an error says that the bytes are wrong, not that they could not be read.
pub(crate) fn is_about_content(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated)
}
