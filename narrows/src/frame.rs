//! The wire format: preface and frame headers. Mirrors `docs/format.md`, section by section.
//!
//! Parsing never allocates and never trusts: every length is compared with the limits before anybody acts on it.
//! Incomplete input is `None`, not an error.

use std::ops::Deref;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::block::Block;
use crate::codec::{CODECS, CodecId};
use crate::error::{Error, Result};

pub const MAGIC: [u8; 4] = *b"NRW\x1a";
pub const VERSION: u8 = 1;
pub const PREFACE_LEN: usize = 32;

/// Limits that no preface may exceed (format.md section 6).
pub const BLOCK_MAX_HARD: usize = 64 << 20;
pub const HISTORY_MAX_HARD: usize = 64 << 20;

/// What every reader of version 1 takes before it has said anything (D12).
pub const BASELINE_BLOCK_MAX: usize = 2 << 20;
pub const BASELINE_HISTORY: usize = 64 << 10;
pub const BASELINE_CODECS: u64 = 0xff;

/// Longest body of a control frame.
pub const CONTROL_BODY_MAX: usize = 65_536;
/// Longest text in a close frame.
pub const CLOSE_TEXT_MAX: usize = 512;
/// Longest raw length of a message frame.
pub const MESSAGE_MAX: usize = 65_535;
/// The end frame is always this long: kind, length, check, four totals.
pub const END_FRAME_LEN: usize = 1 + 1 + 8 + END_BODY_LEN;
const END_BODY_LEN: usize = 32;

/// kind, codec, two 4-byte lengths, check; rounded up.
const HEADER_MAX: usize = 20;

pub mod feature {
    /// Critical: message frames may occur.
    pub const MESSAGES: u16 = 1;
    /// Optional: an index stands before the end frame.
    pub const INDEX: u16 = 1;
    /// Optional: the sender listens to the reverse direction.
    pub const DUPLEX: u16 = 2;
}

const KNOWN_CRITICAL: u16 = feature::MESSAGES;

const FLAG_MESSAGE: u8 = 0x80;
const FLAG_MESSAGE_LINKED: u8 = 0x40;
const FLAG_OPTIONAL: u8 = 0x40;
const FLAG_TRANSFORM: u8 = 0x20;
const FLAG_LINKED: u8 = 0x10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Sender,
    Receiver,
}

/// The first bytes of a direction (format.md section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    pub role: Role,
    pub critical: u16,
    pub optional: u16,
    pub check: bool,
    pub block_max: usize,
    pub history: usize,
    pub codecs: u64,
}

impl Preface {
    pub fn encode(&self) -> [u8; PREFACE_LEN] {
        let mut b = [0; PREFACE_LEN];
        b[0..4].copy_from_slice(&MAGIC);
        b[4] = VERSION;
        b[5] = match self.role {
            Role::Sender => 0,
            Role::Receiver => 1,
        };
        b[6..8].copy_from_slice(&self.critical.to_le_bytes());
        b[8..10].copy_from_slice(&self.optional.to_le_bytes());
        b[10] = u8::from(self.check);
        b[12..16].copy_from_slice(&(self.block_max as u32).to_le_bytes());
        b[16..20].copy_from_slice(&(self.history as u32).to_le_bytes());
        b[20..28].copy_from_slice(&self.codecs.to_le_bytes());
        let crc = crc32fast::hash(&b[..28]);
        b[28..32].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a preface from the first bytes of a stream. A wrong magic number is told as early as possible.
    pub fn parse(b: &[u8]) -> Result<Option<Self>> {
        let seen = b.len().min(MAGIC.len());
        if b[..seen] != MAGIC[..seen] {
            return Err(Error::corrupt("this is not a Narrows stream"));
        }
        if b.len() > 4 && b[4] != VERSION {
            return Err(Error::unsupported(format!(
                "the stream has format version {}, this program reads version {VERSION}; use a newer one",
                b[4]
            )));
        }
        let Some(b) = b.get(..PREFACE_LEN) else { return Ok(None) };
        if crc32fast::hash(&b[..28]) != u32_at(b, 28) {
            return Err(Error::corrupt("the preface is damaged"));
        }
        let critical = u16::from_le_bytes([b[6], b[7]]);
        if critical & !KNOWN_CRITICAL != 0 || b[11] != 0 || b[10] > 1 || b[5] > 1 {
            return Err(Error::unsupported("the stream needs a feature that this program does not have"));
        }
        let (block_max, history) = (u32_at(b, 12) as usize, u32_at(b, 16) as usize);
        if block_max == 0 || block_max > BLOCK_MAX_HARD || history > HISTORY_MAX_HARD {
            return Err(Error::limit(format!(
                "the preface asks for blocks of {block_max} bytes and {history} bytes of history; the most is {BLOCK_MAX_HARD}"
            )));
        }
        Ok(Some(Self {
            role: if b[5] == 0 { Role::Sender } else { Role::Receiver },
            critical,
            optional: u16::from_le_bytes([b[8], b[9]]),
            check: b[10] == 1,
            block_max,
            history,
            codecs: u64_at(b, 20),
        }))
    }
}

/// Codecs of this build, as a preface states them.
pub fn codecs_of_this_build() -> u64 {
    CODECS.iter().fold(0, |bits, c| bits | 1 << c.id().0)
}

/// A frame for the link: header and body, written with one vectored write.
#[derive(Debug, Clone)]
pub struct Frame {
    pub header: HeaderBytes,
    pub body: Block,
}

impl Frame {
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

/// What stands in the header of a data or message frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    pub codec: CodecId,
    pub linked: bool,
    /// `None` for a message: its raw length is what the body decodes to.
    pub raw_len: Option<usize>,
    pub wire_len: usize,
    /// The check as it stands on the wire, if the stream has checks.
    pub check: Option<u64>,
    /// Hash of the header bytes before the check; with the raw offset it seeds the check.
    head: [u8; 12],
    head_len: u8,
}

impl BlockHeader {
    /// The header of a data frame; the check is filled in by [`BlockHeader::encode`].
    pub fn data(codec: CodecId, linked: bool, raw_len: usize, wire_len: usize) -> Self {
        let mut h = HeaderBytes::new();
        h.push(&[KIND_DATA | if linked { FLAG_LINKED } else { 0 }, codec.0]);
        h.push_varint(raw_len as u64);
        h.push_varint(wire_len as u64);
        Self { codec, linked, raw_len: Some(raw_len), wire_len, check: None, ..Self::with_head(&h) }
    }

    /// The header of a message frame.
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
            raw_len: None,
            wire_len: 0,
            check: None,
            head,
            head_len: h.len() as u8,
        }
    }

    /// The check over this header, the body, and the raw bytes of the block at `raw_offset`.
    pub fn check_of(&self, raw: &[u8], body: &[u8], raw_offset: u64) -> u64 {
        // Some bits of a body may mean nothing to its codec; a stored body is the raw bytes.
        let body_hash = if self.codec == CodecId::STORE { 0 } else { xxh3_64(body) };
        xxh3_64_with_seed(raw, check_seed(&self.head[..usize::from(self.head_len)], raw_offset) ^ body_hash)
    }

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

/// Header of a control frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    pub kind: ControlKind,
    pub body_len: usize,
    pub header_len: usize,
    check: u64,
    head: [u8; 4],
    head_len: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    Reset,
    End,
    Feedback,
    Close,
    Index,
    /// A kind of a later version that may be skipped.
    Unknown(u8),
}

impl ControlKind {
    fn byte(self) -> u8 {
        match self {
            Self::Reset => 2,
            Self::End => 3,
            Self::Feedback => 4 | FLAG_OPTIONAL,
            Self::Close => 5,
            Self::Index => 6 | FLAG_OPTIONAL,
            Self::Unknown(byte) => byte,
        }
    }
}

const KIND_DATA: u8 = 1;

impl ControlHeader {
    /// Whether the body is what was sent.
    pub fn verify(&self, body: &[u8], raw_offset: u64) -> Result<()> {
        let seed = check_seed(&self.head[..usize::from(self.head_len)], raw_offset);
        if xxh3_64_with_seed(body, seed) == self.check {
            return Ok(());
        }
        Err(Error::corrupt("a control frame does not match its check"))
    }
}

/// A whole control frame.
///
/// # Panics
/// If the body is longer than [`CONTROL_BODY_MAX`].
pub fn control_frame(kind: ControlKind, body: &[u8], raw_offset: u64) -> Frame {
    assert!(body.len() <= CONTROL_BODY_MAX);
    let mut header = HeaderBytes::new();
    header.push(&[kind.byte()]);
    header.push_varint(body.len() as u64);
    let check = xxh3_64_with_seed(body, check_seed(&header, raw_offset));
    header.push(&check.to_le_bytes());
    Frame { header, body: Block::from_vec(body.to_vec()) }
}

/// A header of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    Block(BlockHeader),
    Control(ControlHeader),
}

/// What a reader allows, from the preface it read and its own limits.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    pub block_max: usize,
    pub history: usize,
    pub codecs: u64,
    pub check: bool,
    pub messages: bool,
}

/// Reads one header from the front of `b`; `None` when more bytes are needed.
pub fn parse_header(b: &[u8], limits: &ReadLimits) -> Result<Option<Header>> {
    let Some(&first) = b.first() else { return Ok(None) };
    if first & FLAG_MESSAGE != 0 {
        return Ok(parse_message(b, limits)?.map(Header::Block));
    }
    match first & 0x0f {
        KIND_DATA => Ok(parse_data(b, limits)?.map(Header::Block)),
        0 => Err(Error::corrupt("this is not the beginning of a frame")),
        _ => Ok(parse_control(b)?.map(Header::Control)),
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
    let Some(&codec) = b.get(1) else { return Ok(None) };
    let Some((raw_len, n)) = varint(&b[2..], 4)? else { return Ok(None) };
    let Some((wire_len, m)) = varint(&b[2 + n..], 4)? else { return Ok(None) };
    let (raw_len, wire_len, head_len) = (raw_len as usize, wire_len as usize, 2 + n + m);
    if raw_len > limits.block_max {
        return Err(Error::limit(format!("a block of {raw_len} bytes exceeds the limit of {}", limits.block_max)));
    }
    let shrunk = if codec == CodecId::STORE.0 { wire_len == raw_len } else { wire_len < raw_len };
    if raw_len == 0 || !shrunk {
        return Err(Error::corrupt("the lengths of a frame contradict each other"));
    }
    let header = BlockHeader { linked, raw_len: Some(raw_len), wire_len, ..BlockHeader::with_head(&b[..head_len]) };
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

fn finish_block(mut header: BlockHeader, codec: u8, rest: &[u8], limits: &ReadLimits) -> Result<Option<BlockHeader>> {
    if codec >= 64 || limits.codecs >> codec & 1 == 0 {
        return Err(Error::unsupported(format!(
            "the frame uses codec {codec}, which the stream does not declare or this program does not have"
        )));
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

fn parse_control(b: &[u8]) -> Result<Option<ControlHeader>> {
    let kind = match b[0] {
        2 => ControlKind::Reset,
        3 => ControlKind::End,
        x if x & !FLAG_OPTIONAL == 4 => ControlKind::Feedback,
        5 => ControlKind::Close,
        x if x & !FLAG_OPTIONAL == 6 => ControlKind::Index,
        x if x & FLAG_OPTIONAL != 0 => ControlKind::Unknown(x),
        x => return Err(Error::unsupported(format!("frames of kind {} need a newer program", x & 0x0f))),
    };
    let Some((body_len, n)) = varint(&b[1..], 3)? else { return Ok(None) };
    let body_len = body_len as usize;
    if body_len > CONTROL_BODY_MAX {
        return Err(Error::limit(format!(
            "a control frame of {body_len} bytes exceeds the limit of {CONTROL_BODY_MAX}"
        )));
    }
    let Some(check) = b.get(1 + n..9 + n) else { return Ok(None) };
    let mut head = [0; 4];
    head[..=n].copy_from_slice(&b[..=n]);
    Ok(Some(ControlHeader { kind, body_len, header_len: 9 + n, check: u64_at(check, 0), head, head_len: 1 + n as u8 }))
}

/// The totals of the end frame (format.md section 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndTotals {
    pub raw_total: u64,
    pub wire_total: u64,
    pub index_offset: u64,
    pub digest: u64,
}

impl EndTotals {
    pub fn frame(&self) -> Frame {
        let mut body = [0; END_BODY_LEN];
        for (i, v) in [self.raw_total, self.wire_total, self.index_offset, self.digest].into_iter().enumerate() {
            body[8 * i..8 * i + 8].copy_from_slice(&v.to_le_bytes());
        }
        control_frame(ControlKind::End, &body, self.raw_total)
    }

    pub fn parse(body: &[u8]) -> Result<Self> {
        if body.len() != END_BODY_LEN {
            return Err(Error::corrupt("the end frame has a wrong length"));
        }
        let at = |i: usize| u64_at(body, 8 * i);
        Ok(Self { raw_total: at(0), wire_total: at(1), index_offset: at(2), digest: at(3) })
    }
}

/// Adds one block's check to the digest of the flow.
pub fn chain_digest(digest: u64, check: u64) -> u64 {
    xxh3_64_with_seed(&check.to_le_bytes(), digest)
}

/// What a receiver reports (format.md section 3.5). Totals since the flow began, but for `cores` and `backlog_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    pub wire_received: u64,
    pub raw_delivered: u64,
    pub frames_decoded: u64,
    pub decode_ns: u64,
    pub cores: u64,
    pub backlog_bytes: u64,
    pub blocked_ns: u64,
}

impl Feedback {
    pub fn frame(&self) -> Frame {
        let mut body = Vec::with_capacity(70);
        for v in [
            self.wire_received,
            self.raw_delivered,
            self.frames_decoded,
            self.decode_ns,
            self.cores,
            self.backlog_bytes,
            self.blocked_ns,
        ] {
            put_varint(&mut body, v);
        }
        control_frame(ControlKind::Feedback, &body, 0)
    }

    pub fn parse(mut body: &[u8]) -> Result<Self> {
        let mut next = || -> Result<u64> {
            let (v, n) = varint(body, 10)?.ok_or_else(|| Error::corrupt("a feedback frame is too short"))?;
            body = &body[n..];
            Ok(v)
        };
        Ok(Self {
            wire_received: next()?,
            raw_delivered: next()?,
            frames_decoded: next()?,
            decode_ns: next()?,
            cores: next()?,
            backlog_bytes: next()?,
            blocked_ns: next()?,
        })
    }
}

/// The close frame: `None` = all is stored, else why not.
pub fn close_frame(failure: Option<&str>) -> Frame {
    let mut body = vec![u8::from(failure.is_some())];
    let mut text = failure.unwrap_or_default();
    while text.len() > CLOSE_TEXT_MAX {
        let (cut, _) = text.char_indices().next_back().unwrap_or_default();
        text = &text[..cut];
    }
    body.extend_from_slice(text.as_bytes());
    control_frame(ControlKind::Close, &body, 0)
}

/// `None` if the peer stored everything, else what it says, made safe for a terminal.
pub fn parse_close(body: &[u8]) -> Result<Option<String>> {
    match body.split_first() {
        Some((0, _)) => Ok(None),
        Some((1, text)) if text.len() <= CLOSE_TEXT_MAX => {
            let text = String::from_utf8_lossy(text);
            Ok(Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
        }
        _ => Err(Error::corrupt("a close frame that says nothing known")),
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A varint of at most `len_max` bytes: its value and length. `None` if the input ends inside it.
pub fn varint(b: &[u8], len_max: usize) -> Result<Option<(u64, usize)>> {
    let mut value = 0u64;
    for (i, &byte) in b.iter().take(len_max).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            break;
        }
        value |= bits << (7 * i);
        if byte & 0x80 == 0 {
            if byte == 0 && i > 0 {
                break;
            }
            return Ok(Some((value, i + 1)));
        }
        if i + 1 == len_max {
            break;
        }
    }
    if b.len() < len_max && b.iter().all(|x| x & 0x80 != 0) {
        return Ok(None);
    }
    Err(Error::corrupt("a number in a header is malformed"))
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
        ReadLimits { block_max: 1 << 20, history: 1 << 16, codecs: 0xff, check: true, messages: true };

    #[test]
    fn a_preface_reads_back_and_any_flipped_bit_is_refused() {
        let preface = Preface {
            role: Role::Sender,
            critical: feature::MESSAGES,
            optional: feature::DUPLEX,
            check: true,
            block_max: BASELINE_BLOCK_MAX,
            history: BASELINE_HISTORY,
            codecs: 0xff,
        };
        let bytes = preface.encode();
        assert_eq!(Preface::parse(&bytes).unwrap(), Some(preface));
        for n in 0..PREFACE_LEN {
            assert_eq!(Preface::parse(&bytes[..n]).unwrap(), None);
        }
        for bit in 0..PREFACE_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Preface::parse(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_unsupported_not_corrupt() {
        let mut bytes = [0; PREFACE_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = 2;
        assert_eq!(Preface::parse(&bytes).unwrap_err().kind, ErrorKind::Unsupported);
    }

    #[test]
    fn headers_read_back_and_every_prefix_is_incomplete() {
        for header in [
            BlockHeader::data(CodecId::ZSTD, true, 1 << 20, 4711),
            BlockHeader::data(CodecId::STORE, false, 1, 1),
            BlockHeader::message(CodecId::LZ4, true, 300),
        ] {
            let check = header.check_of(b"raw", b"r", 77);
            let bytes = header.encode(Some(check));
            let Some(Header::Block(read)) = parse_header(&bytes, &LIMITS).unwrap() else { panic!() };
            assert_eq!(read, BlockHeader { check: Some(check), ..header });
            assert_eq!(read.header_len(), bytes.len());
            assert_ne!(read.check_of(b"raw", b"r", 78), check, "the place in the flow is part of the check");
            let body_counts = header.codec != CodecId::STORE;
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
        assert_eq!(parse_header(&[0; 20], &LIMITS).unwrap_err().kind, ErrorKind::Corrupt);
        let no_history = ReadLimits { history: 0, messages: false, ..LIMITS };
        for h in [BlockHeader::data(CodecId::ZSTD, true, 5, 4), BlockHeader::message(CodecId::ZSTD, false, 4)] {
            assert_eq!(parse_header(&h.encode(Some(0)), &no_history).unwrap_err().kind, ErrorKind::Corrupt);
        }
    }

    #[test]
    fn unknown_control_frames_are_skipped_only_if_optional() {
        let optional = control_frame(ControlKind::Unknown(9 | FLAG_OPTIONAL), b"later", 0);
        let Some(Header::Control(h)) = parse_header(&optional.header, &LIMITS).unwrap() else { panic!() };
        assert_eq!((h.body_len, h.header_len), (5, optional.header.len()));
        h.verify(&optional.body, 0).unwrap();
        assert!(h.verify(b"other", 0).is_err());
        let critical = control_frame(ControlKind::Unknown(9), b"later", 0);
        assert_eq!(parse_header(&critical.header, &LIMITS).unwrap_err().kind, ErrorKind::Unsupported);
    }

    #[test]
    fn totals_feedback_and_close_read_back() {
        let end = EndTotals { raw_total: 1, wire_total: u64::MAX, index_offset: 3, digest: 4 };
        assert_eq!(end.frame().wire_len(), END_FRAME_LEN);
        assert_eq!(EndTotals::parse(&end.frame().body).unwrap(), end);
        let feedback = Feedback { wire_received: u64::MAX, decode_ns: 1 << 40, cores: 4, ..Feedback::default() };
        assert_eq!(Feedback::parse(&feedback.frame().body).unwrap(), feedback);
        assert_eq!(parse_close(&close_frame(None).body).unwrap(), None);
        let long = "disk full \u{1b}[2J ".repeat(100);
        let told = parse_close(&close_frame(Some(&long)).body).unwrap().unwrap();
        assert!(told.len() <= CLOSE_TEXT_MAX && !told.contains('\u{1b}'));
    }

    #[test]
    fn varints_have_one_encoding() {
        for v in [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1, u64::MAX] {
            let mut b = Vec::new();
            put_varint(&mut b, v);
            assert_eq!(varint(&b, 10).unwrap(), Some((v, b.len())));
            assert_eq!(varint(&b[..b.len() - 1], 10).unwrap(), None);
        }
        assert!(varint(&[0x80, 0], 4).is_err());
        assert!(varint(&[0x80; 4], 4).is_err());
        assert!(varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], 10).is_err());
    }
}
