//! A file rewritten with its index: the frames as they are, index, sums and footer after them.

use std::io::Write;

use narrows::frame::{self, EndTotals, PREFACE_LEN, Sums, chain_digest, feature, put_varint};
use narrows::sender::index_frames;
use narrows::{Error, Result};

use crate::file::File;
use crate::read_at::ReadAt;
use crate::scan::limits;

/// Copied at a time.
const PIECE: usize = 1 << 20;

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Blocks that the index has.
    pub blocks: u64,
    /// Bytes written.
    pub wire_bytes: u64,
    /// Bytes of the old file that are no whole frames, and were left out.
    pub dropped_bytes: u64,
}

/// Writes `file` to `sink` with a new index for each stream. Sums are written if every block decodes.
///
/// # Errors
/// The source or the sink fails.
pub fn repair<R: ReadAt>(file: &File<R>, sink: &mut impl Write) -> Result<Repaired> {
    let mut repaired = Repaired::default();
    for number in 0..file.members().len() {
        repair_member(file, number, sink, &mut repaired)?;
    }
    if let Some(member) = file.members().last().filter(|m| m.broken.is_some()) {
        repaired.dropped_bytes = file.wire_len().saturating_sub(member.wire_begin + member.totals.wire_total);
    }
    Ok(repaired)
}

fn repair_member<R: ReadAt>(file: &File<R>, number: usize, sink: &mut impl Write, out: &mut Repaired) -> Result<()> {
    let member = &file.members()[number];
    let mut preface = member.preface;
    preface.optional |= feature::INDEX;
    let preface = preface.encode();
    let mut wire_offset = PREFACE_LEN as u64;
    sink.write_all(&preface)?;
    let (mut pairs, mut digest, mut raw_total) = (Vec::new(), 0, 0);
    let mut sums = Some(Sums::new(frame::SUMS_LOG));
    let mut piece = Vec::with_capacity(PIECE);
    for i in 0..member.blocks() {
        let entry = member.entry(i).ok_or_else(|| Error::misuse("there is no such block"))?;
        piece.resize((entry.wire_end - entry.wire_begin) as usize, 0);
        file.source().read_exact_at(&mut piece, member.wire_begin + entry.wire_begin)?;
        digest = put_pairs(&piece, member, &mut pairs, digest)?;
        sink.write_all(&piece)?;
        wire_offset += piece.len() as u64;
        raw_total = entry.raw_end;
        match file.block(number, i) {
            Ok(block) => sums.iter_mut().for_each(|sums| sums.push(&block)),
            Err(e) if e.source.is_some() => return Err(e),
            Err(_) => sums = None,
        }
    }
    let sums = sums.map(Sums::finish).unwrap_or_default();
    let mut frames = if pairs.is_empty() { Vec::new() } else { index_frames(&preface, &pairs, &sums, raw_total) };
    let has_index = !frames.is_empty();
    frames.extend(member.attempt.map(|attempt| attempt.frame(raw_total)));
    let index_offset = if has_index { wire_offset } else { 0 };
    let wire_total = wire_offset + frames.iter().map(|f| f.wire_len() as u64).sum::<u64>();
    frames.push(EndTotals { raw_total, wire_total, index_offset, digest }.frame());
    for frame in &frames {
        sink.write_all(&frame.header)?;
        sink.write_all(&frame.body)?;
    }
    out.blocks += member.blocks() as u64;
    out.wire_bytes += wire_total + frame::END_FRAME_LEN as u64;
    Ok(())
}

/// Adds the pairs of a block and of the control frames before it.
fn put_pairs(wire: &[u8], member: &crate::Member, pairs: &mut Vec<u8>, mut digest: u64) -> Result<u64> {
    let limits = limits(&member.preface);
    let mut at = 0;
    while at < wire.len() {
        let (raw_len, len) = match frame::parse_header(&wire[at..], &limits)? {
            Some(frame::Header::Block(h)) => {
                digest = h.check.map_or(digest, |check| chain_digest(digest, check));
                (h.raw_len.unwrap_or(0), h.header_len() + h.wire_len)
            }
            Some(frame::Header::Control(h)) => (0, h.header_len + h.body_len),
            None => return Err(Error::truncated("a header of a frame is cut off")),
        };
        put_varint(pairs, raw_len as u64);
        put_varint(pairs, len as u64);
        at += len;
    }
    Ok(digest)
}
