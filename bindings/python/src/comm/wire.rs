//! The bytes that frame messages of a comm (docs/dask.md, "On the wire").
//!
//! ```text
//! connection = preface message*        preface = "narrows" version codecs:u64
//! message    = 'M' 0 0 0 count:u32 raw_len:u64 (frame_len:u64){count} segment*
//! segment    = raw_len:u56 kind:u8 (plain: raw bytes | flow: frames of a stream)
//! ```

use narrows::codec::CodecId;
use narrows::frame::codecs_of_this_build;
use narrows::{Error, Result};

/// Read as a length, as `tcp://` would, it is far more than any memory.
const MAGIC: [u8; 8] = *b"narrows\x01";
pub(super) const PREFACE_LEN: usize = 16;
pub(super) const HEAD_LEN: usize = 16;
pub(super) const SEGMENT_LEN: usize = 8;
const MARK: u32 = b'M' as u32;
/// Most frames of a message. A shuffle of a thousand partitions has some ten thousand; so many frames
/// take a table of 2 MiB and some 50 MB of Python objects.
pub(super) const FRAMES_MAX: usize = 1 << 18;

/// How the bytes of a segment are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As they are.
    Plain = 1,
    /// As frames of the flow.
    Flow = 2,
}

/// The codecs that a comm decodes, as the bits of a preface: those of other links too. An image of a peer could
/// take seconds and 64 MiB, and results are none.
pub(super) fn codecs() -> u64 {
    codecs_of_this_build() & !(1 << CodecId::LEPTON.0)
}

pub(super) fn preface() -> [u8; PREFACE_LEN] {
    let mut bytes = [0; PREFACE_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&codecs().to_le_bytes());
    bytes
}

/// The codecs that the peer can decode. Refuses another protocol by its first wrong byte.
pub(super) fn parse_preface(b: &[u8]) -> Result<Option<u64>> {
    let seen = b.len().min(MAGIC.len());
    if b[..seen.min(7)] != MAGIC[..seen.min(7)] {
        return Err(Error::corrupt(
            "the peer does not speak narrows://: both ends need this scheme in their address, and the package narrows",
        ));
    }
    if b.len() > 7 && b[7] != MAGIC[7] {
        let (theirs, ours) = (b[7], MAGIC[7]);
        return Err(Error::unsupported(format!(
            "the peer speaks version {theirs} of narrows://, this end version {ours}: install the same version of narrows"
        )));
    }
    Ok(b.get(8..PREFACE_LEN).map(u64_of))
}

/// The head of a message and its table.
pub(super) fn head(frame_lens: &[usize]) -> Vec<u8> {
    let raw_len: u64 = frame_lens.iter().map(|len| *len as u64).sum();
    let mut bytes = Vec::with_capacity(HEAD_LEN + 8 * frame_lens.len() + SEGMENT_LEN);
    bytes.extend_from_slice(&MARK.to_le_bytes());
    bytes.extend_from_slice(&(frame_lens.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&raw_len.to_le_bytes());
    frame_lens.iter().for_each(|len| bytes.extend_from_slice(&(*len as u64).to_le_bytes()));
    bytes
}

/// Number of frames and raw bytes of a message.
pub(super) fn parse_head(b: &[u8], raw_max: u64) -> Result<Option<(usize, u64)>> {
    let Some(b) = b.get(..HEAD_LEN) else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let (mark, count, raw_len) = (word(0), word(4) as usize, u64_of(&b[8..16]));
    if mark != MARK {
        return Err(Error::corrupt("this is not the beginning of a message"));
    }
    if count > FRAMES_MAX {
        return Err(Error::limit(format!("a message of {count} frames exceeds the limit of {FRAMES_MAX}")));
    }
    if raw_len > raw_max {
        return Err(Error::limit(format!("a message of {raw_len} bytes exceeds this process's limit of {raw_max}")));
    }
    Ok(Some((count, raw_len)))
}

/// The lengths of the frames, which must add up.
pub(super) fn parse_table(b: &[u8], raw_len: u64) -> Result<Vec<usize>> {
    let lens = b.chunks_exact(8).map(u64_of);
    let mut sum = 0u64;
    for len in lens.clone() {
        sum = sum.checked_add(len).filter(|sum| *sum <= raw_len).ok_or_else(contradiction)?;
    }
    if sum == raw_len { Ok(lens.map(|len| len as usize).collect()) } else { Err(contradiction()) }
}

fn contradiction() -> Error {
    Error::corrupt("the lengths of a message contradict each other")
}

pub(super) fn segment(kind: Kind, raw_len: u64) -> [u8; SEGMENT_LEN] {
    (raw_len | (kind as u64) << 56).to_le_bytes()
}

/// Kind and raw length of a segment of a message that has `left` more bytes.
pub(super) fn parse_segment(b: &[u8], left: u64) -> Result<Option<(Kind, u64)>> {
    let Some(b) = b.get(..SEGMENT_LEN) else { return Ok(None) };
    let word = u64_of(b);
    let len = word & (u64::MAX >> 8);
    let kind = match word >> 56 {
        1 => Kind::Plain,
        2 => Kind::Flow,
        _ => return Err(Error::corrupt("a segment of an unknown kind")),
    };
    if len == 0 || len > left { Err(contradiction()) } else { Ok(Some((kind, len))) }
}

fn u64_of(b: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&b[..8]);
    u64::from_le_bytes(bytes)
}
