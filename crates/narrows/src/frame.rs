//! The wire format: frames and their headers, and in submodules the preface and control frames.
//! Mirrors `docs/format.md`, section by section.
//!
//! Parsing never allocates and never trusts its input: every length is compared with the limits
//! before it is used. Incomplete input is `None`, not an error.

use std::ops::Deref;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::block::Block;
use crate::codec::CodecId;
use crate::error::{Error, Result};

mod control;
mod copies;
mod preface;
mod scan;
mod sums;

pub use control::{
    ATTEMPT_FRAME_LEN, Attempt, CLOSE_TEXT_MAX, CONTROL_BODY_MAX, ControlHeader, ControlKind, END_FRAME_LEN, EndTotals,
    Feedback, KEEP_FRAME_LEN, RESET_FRAME_LEN, close_frame, control_frame, delivered_frame, keep_frame, parse_close,
    parse_delivered, parse_keep, reset_frame,
};
pub use copies::{COPY_MIN, Copy, Plan, PlanLengths, REACH_MAX_HARD, check_plan, put_plan};
pub use preface::{
    BASELINE_BLOCK_MAX, BASELINE_CODECS, BASELINE_HISTORY, BLOCK_MAX_HARD, HISTORY_DEFAULT, HISTORY_MAX_HARD, MAGIC,
    NAMED_CODECS, PREFACE_LEN, Preface, Role, VERSION, codecs_of_this_build, feature,
};
pub use scan::{Scan, Scanned};
pub use sums::{SUMS_LOG, Sums, parse_sums};

pub use crate::varint::{put_varint, varint};

/// Longest raw length of a message frame.
pub const MESSAGE_MAX: usize = 65_535;
/// Longest header of a data frame: kind, codec, two 4-byte lengths, check; rounded up.
const HEADER_MAX: usize = 20;

const FLAG_MESSAGE: u8 = 0x80;
const FLAG_MESSAGE_LINKED: u8 = 0x40;
const FLAG_OPTIONAL: u8 = 0x40;
const FLAG_TRANSFORM: u8 = 0x20;
const FLAG_LINKED: u8 = 0x10;

/// A frame for the link: header and body, written with one vectored write.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The encoded header.
    pub header: HeaderBytes,
    /// The body; empty for a preface.
    pub body: Block,
}

impl Frame {
    /// Length of the frame on the wire in bytes.
    pub fn wire_len(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

/// The bytes of a header, or of a whole preface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderBytes {
    bytes: [u8; PREFACE_LEN],
    len: u8,
}

impl HeaderBytes {
    fn new() -> Self {
        Self { bytes: [0; PREFACE_LEN], len: 0 }
    }

    /// The encoded preface.
    pub fn preface(preface: &Preface) -> Self {
        Self { bytes: preface.encode(), len: PREFACE_LEN as u8 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    fn push_varint(&mut self, mut value: u64) {
        loop {
            let byte = value as u8 & 0x7f;
            value >>= 7;
            if value == 0 {
                return self.push(&[byte]);
            }
            self.push(&[byte | 0x80]);
        }
    }
}

impl Deref for HeaderBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for HeaderBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

/// Header of a data frame (format.md section 3.1), message frame (section 3.2) or copy frame (section
/// 3.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Codec of the body.
    pub codec: CodecId,
    /// Whether the body was encoded with the history as dictionary.
    pub linked: bool,
    /// Whether the body begins with a plan: a copy frame.
    pub copies: bool,
    /// Raw bytes of the block; `None` for a message, whose raw length is what the body decodes to.
    pub raw_len: Option<usize>,
    /// Length of the body in bytes.
    pub wire_len: usize,
    /// The check on the wire, if the stream has checks.
    pub check: Option<u64>,
    /// The header bytes before the check; with the raw offset they seed the check.
    head: [u8; 12],
    head_len: u8,
}

impl BlockHeader {
    /// The header of a data frame; the check is filled in by [`BlockHeader::encode`].
    pub fn data(codec: CodecId, linked: bool, raw_len: usize, wire_len: usize) -> Self {
        Self::of_kind(KIND_DATA, codec, linked, raw_len, wire_len)
    }

    /// The header of a copy frame. `wire_len` counts the plan, `codec` is that of the literals.
    pub fn copy(codec: CodecId, linked: bool, raw_len: usize, wire_len: usize) -> Self {
        Self { copies: true, ..Self::of_kind(KIND_COPY, codec, linked, raw_len, wire_len) }
    }

    fn of_kind(kind: u8, codec: CodecId, linked: bool, raw_len: usize, wire_len: usize) -> Self {
        let mut h = HeaderBytes::new();
        h.push(&[kind | if linked { FLAG_LINKED } else { 0 }, codec.0]);
        h.push_varint(raw_len as u64);
        h.push_varint(wire_len as u64);
        Self { codec, linked, raw_len: Some(raw_len), wire_len, check: None, ..Self::with_head(&h) }
    }

    /// The header of a message frame.
    ///
    /// # Panics
    /// In debug builds, if the codec is above 63 or the body longer than [`MESSAGE_MAX`].
    pub fn message(codec: CodecId, linked: bool, wire_len: usize) -> Self {
        debug_assert!(wire_len <= MESSAGE_MAX && codec.0 < 64);
        let mut h = HeaderBytes::new();
        h.push(&[FLAG_MESSAGE | if linked { FLAG_MESSAGE_LINKED } else { 0 } | codec.0]);
        h.push(&(wire_len as u16).to_le_bytes());
        Self { codec, linked, raw_len: None, wire_len, check: None, ..Self::with_head(&h) }
    }

    fn with_head(h: &[u8]) -> Self {
        let mut head = [0; 12];
        head[..h.len()].copy_from_slice(h);
        Self {
            codec: CodecId::STORE,
            linked: false,
            copies: false,
            raw_len: None,
            wire_len: 0,
            check: None,
            head,
            head_len: h.len() as u8,
        }
    }

    /// The check over this header, the body, and the raw bytes of the block at `raw_offset`.
    pub fn check_of(&self, raw: &[u8], body: &[u8], raw_offset: u64) -> u64 {
        self.check_of_parts([raw].into_iter(), self.body_hash(body), raw_offset)
    }

    /// The same over raw bytes in parts, with the [hash of the body](Self::body_hash).
    pub fn check_of_parts<'a>(
        &self,
        mut raw: impl ExactSizeIterator<Item = &'a [u8]>,
        body_hash: u64,
        raw_offset: u64,
    ) -> u64 {
        let seed = check_seed(&self.head[..usize::from(self.head_len)], raw_offset) ^ body_hash;
        if raw.len() == 1 {
            return xxh3_64_with_seed(raw.next().unwrap_or_default(), seed);
        }
        let mut hash = Xxh3::with_seed(seed);
        raw.for_each(|part| hash.update(part));
        hash.digest()
    }

    /// A hash that gives the check once it has taken all raw bytes, for a reader that does not hold a
    /// whole block; `body_hash` as in [`BlockHeader::check_of_parts`].
    pub fn check_hasher(&self, body_hash: u64, raw_offset: u64) -> Xxh3 {
        Xxh3::with_seed(check_seed(&self.head[..usize::from(self.head_len)], raw_offset) ^ body_hash)
    }

    /// What the body adds to the check.
    pub fn body_hash(&self, body: &[u8]) -> u64 {
        // Some bits of a body may mean nothing to its codec; a stored body is the raw bytes, unless
        // there is a plan.
        if self.codec == CodecId::STORE && !self.copies { 0 } else { xxh3_64(body) }
    }

    /// The encoded header, with `check` if the stream has checks.
    pub fn encode(&self, check: Option<u64>) -> HeaderBytes {
        let mut h = HeaderBytes::new();
        h.push(&self.head[..usize::from(self.head_len)]);
        if let Some(check) = check {
            h.push(&check.to_le_bytes());
        }
        h
    }

    /// Length of the header on the wire.
    pub fn header_len(&self) -> usize {
        usize::from(self.head_len) + if self.check.is_some() { 8 } else { 0 }
    }
}

const KIND_DATA: u8 = 1;
const KIND_COPY: u8 = 7;

/// A header of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Of a data, copy or message frame.
    Block(BlockHeader),
    /// Of a control frame.
    Control(ControlHeader),
}

/// Limits of a reader, from the preface that it read and its own limits.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Longest block in raw bytes.
    pub block_max: usize,
    /// Most history that a linked frame may refer to, in bytes; 0: no linked frames.
    pub history: usize,
    /// How far back copies may refer, in bytes; 0: no copy frames.
    pub reach: usize,
    /// Bit n: codec n is allowed.
    pub codecs: u64,
    /// Whether blocks have checks.
    pub check: bool,
    /// Whether message frames may occur.
    pub messages: bool,
}

/// Reads one header from the front of `b`; `None` when more bytes are needed.
///
/// # Errors
/// `Corrupt`, `Limit` or `Unsupported` if the header violates the format or the limits.
pub fn parse_header(b: &[u8], limits: &ReadLimits) -> Result<Option<Header>> {
    let Some(&first) = b.first() else { return Ok(None) };
    if first & FLAG_MESSAGE != 0 {
        return Ok(parse_message(b, limits)?.map(Header::Block));
    }
    match first & 0x0f {
        KIND_DATA | KIND_COPY => Ok(parse_data(b, limits)?.map(Header::Block)),
        0 => Err(Error::corrupt("this is not the beginning of a frame")),
        _ => Ok(control::parse(b)?.map(Header::Control)),
    }
}

fn parse_data(b: &[u8], limits: &ReadLimits) -> Result<Option<BlockHeader>> {
    let linked = b[0] & FLAG_LINKED != 0;
    if b[0] & FLAG_TRANSFORM != 0 {
        return Err(Error::unsupported("the frame uses a transform that this program does not have"));
    }
    if b[0] & FLAG_OPTIONAL != 0 {
        return Err(Error::corrupt("a data frame cannot be optional"));
    }
    let copies = b[0] & 0x0f == KIND_COPY;
    if copies && limits.reach == 0 {
        return Err(Error::corrupt("a copy frame in a stream that declares none"));
    }
    let Some(&codec) = b.get(1) else { return Ok(None) };
    let Some((raw_len, n)) = varint(&b[2..], 4)? else { return Ok(None) };
    let Some((wire_len, m)) = varint(&b[2 + n..], 4)? else { return Ok(None) };
    let (raw_len, wire_len, head_len) = (raw_len as usize, wire_len as usize, 2 + n + m);
    if raw_len > limits.block_max {
        return Err(Error::limit(format!("a block of {raw_len} bytes exceeds the limit of {}", limits.block_max)));
    }
    let shrunk = if codec == CodecId::STORE.0 && !copies { wire_len == raw_len } else { wire_len < raw_len };
    if raw_len == 0 || !shrunk {
        return Err(Error::corrupt("the lengths of a frame contradict each other"));
    }
    let header =
        BlockHeader { linked, copies, raw_len: Some(raw_len), wire_len, ..BlockHeader::with_head(&b[..head_len]) };
    finish_block(header, codec, &b[head_len..], limits)
}

fn parse_message(b: &[u8], limits: &ReadLimits) -> Result<Option<BlockHeader>> {
    if !limits.messages {
        return Err(Error::corrupt("a message frame in a stream that declares none"));
    }
    let Some(head) = b.get(..3) else { return Ok(None) };
    let wire_len = usize::from(u16::from_le_bytes([head[1], head[2]]));
    if wire_len == 0 || wire_len > limits.block_max {
        return Err(Error::corrupt("a message of an impossible length"));
    }
    let linked = head[0] & FLAG_MESSAGE_LINKED != 0;
    let header = BlockHeader { linked, wire_len, ..BlockHeader::with_head(head) };
    finish_block(header, head[0] & 0x3f, &b[3..], limits)
}

/// A frame uses a codec that its stream does not declare or its reader does not have.
pub(crate) fn lacks_codec(codec: u8) -> Error {
    let of_laboratory = match codec {
        8 => "LZO",
        9 => "LZF",
        10 => "LZW",
        _ => {
            return Error::unsupported(format!(
                "the frame uses codec {codec}, which the stream does not declare or this program does not have"
            ));
        }
    };
    Error::unsupported(format!(
        "the frame uses codec {codec}, {of_laboratory}, which only the laboratory of Narrows (lab/narrows-older) decodes"
    ))
}

fn finish_block(mut header: BlockHeader, codec: u8, rest: &[u8], limits: &ReadLimits) -> Result<Option<BlockHeader>> {
    if codec >= 64 || limits.codecs >> codec & 1 == 0 {
        return Err(lacks_codec(codec));
    }
    header.codec = CodecId(codec);
    if header.linked && limits.history == 0 {
        return Err(Error::corrupt("a linked frame in a stream without history"));
    }
    if limits.check {
        let Some(check) = rest.get(..8) else { return Ok(None) };
        header.check = Some(u64_at(check, 0));
    }
    Ok(Some(header))
}

/// Adds one block's check to the digest of the flow.
pub fn chain_digest(digest: u64, check: u64) -> u64 {
    xxh3_64_with_seed(&check.to_le_bytes(), digest)
}

fn check_seed(head: &[u8], raw_offset: u64) -> u64 {
    let mut b = [0; HEADER_MAX];
    b[..head.len()].copy_from_slice(head);
    b[head.len()..head.len() + 8].copy_from_slice(&raw_offset.to_le_bytes());
    xxh3_64(&b[..head.len() + 8])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const LIMITS: ReadLimits =
        ReadLimits { block_max: 1 << 20, history: 1 << 16, reach: 1 << 20, codecs: 0xff, check: true, messages: true };

    #[test]
    fn headers_read_back_and_every_prefix_is_incomplete() {
        for header in [
            BlockHeader::data(CodecId::ZSTD, true, 1 << 20, 4711),
            BlockHeader::data(CodecId::STORE, false, 1, 1),
            BlockHeader::copy(CodecId::ZSTD, true, 1 << 20, 99),
            BlockHeader::copy(CodecId::STORE, false, 100, 99),
            BlockHeader::message(CodecId::LZ4, true, 300),
        ] {
            let check = header.check_of(b"raw", b"r", 77);
            let bytes = header.encode(Some(check));
            let Some(Header::Block(read)) = parse_header(&bytes, &LIMITS).unwrap() else { panic!() };
            assert_eq!(read, BlockHeader { check: Some(check), ..header });
            assert_eq!(read.header_len(), bytes.len());
            assert_ne!(read.check_of(b"raw", b"r", 78), check, "the place in the flow is part of the check");
            let body_counts = header.codec != CodecId::STORE || header.copies;
            assert_eq!(read.check_of(b"raw", b"s", 77) != check, body_counts, "so is an encoded body");
            for n in 0..bytes.len() {
                assert_eq!(parse_header(&bytes[..n], &LIMITS).unwrap(), None);
            }
        }
    }

    #[test]
    fn headers_that_lie_are_refused_before_anything_is_allocated() {
        let kind = |h: BlockHeader| parse_header(&h.encode(Some(0)), &LIMITS).unwrap_err().kind;
        assert_eq!(kind(BlockHeader::data(CodecId::ZSTD, false, (1 << 20) + 1, 5)), ErrorKind::Limit);
        assert_eq!(kind(BlockHeader::data(CodecId::ZSTD, false, 5, 5)), ErrorKind::Corrupt);
        assert_eq!(kind(BlockHeader::data(CodecId::STORE, false, 5, 4)), ErrorKind::Corrupt);
        assert_eq!(kind(BlockHeader::data(CodecId::STORE, false, 0, 0)), ErrorKind::Corrupt);
        assert_eq!(kind(BlockHeader::data(CodecId(9), false, 5, 4)), ErrorKind::Unsupported);
        assert_eq!(kind(BlockHeader::data(CodecId(64), false, 5, 4)), ErrorKind::Unsupported);
        assert_eq!(kind(BlockHeader::copy(CodecId::STORE, false, 5, 5)), ErrorKind::Corrupt);
        assert_eq!(kind(BlockHeader::copy(CodecId::ZSTD, false, (1 << 20) + 1, 5)), ErrorKind::Limit);
        let no_reach = ReadLimits { reach: 0, ..LIMITS };
        let copy = BlockHeader::copy(CodecId::STORE, false, 6, 5).encode(Some(0));
        assert!(parse_header(&copy, &LIMITS).is_ok());
        assert_eq!(parse_header(&copy[..1], &no_reach).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(parse_header(&[0; 20], &LIMITS).unwrap_err().kind, ErrorKind::Corrupt);
        let no_history = ReadLimits { history: 0, messages: false, ..LIMITS };
        for h in [BlockHeader::data(CodecId::ZSTD, true, 5, 4), BlockHeader::message(CodecId::ZSTD, false, 4)] {
            assert_eq!(parse_header(&h.encode(Some(0)), &no_history).unwrap_err().kind, ErrorKind::Corrupt);
        }
    }
}
