//! Control frames: reset, end, feedback, close, index (format.md sections 3.3 to 3.14).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{FLAG_OPTIONAL, Frame, HeaderBytes, check_seed, put_varint, u64_at, varint};
use crate::block::Block;
use crate::error::{Error, Result};

/// Longest body of a control frame in bytes.
pub const CONTROL_BODY_MAX: usize = 65_536;
/// Longest text in a close frame in bytes.
pub const CLOSE_TEXT_MAX: usize = 512;
/// Length of every reset frame in bytes: kind, length, check.
pub const RESET_FRAME_LEN: usize = 1 + 1 + 8;
/// Length of every keep frame in bytes.
pub const KEEP_FRAME_LEN: usize = 1 + 1 + 8 + 4;
/// Length of every end frame in bytes: kind, length, check, four totals.
pub const END_FRAME_LEN: usize = 1 + 1 + 8 + END_BODY_LEN;
const END_BODY_LEN: usize = 32;
/// Length of every attempt frame in bytes.
pub const ATTEMPT_FRAME_LEN: usize = 1 + 1 + 8 + ATTEMPT_BODY_LEN;
const ATTEMPT_BODY_LEN: usize = 4;
/// Longest body of a delivered frame: one number.
pub(crate) const DELIVERED_BODY_MAX: usize = 10;

/// Header of a control frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    /// Kind of the frame.
    pub kind: ControlKind,
    /// Length of the body in bytes.
    pub body_len: usize,
    /// Length of the header in bytes, check included.
    pub header_len: usize,
    check: u64,
    head: [u8; 4],
    head_len: u8,
}

/// Kind of a control frame (format.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    /// Both ends drop the history.
    Reset,
    /// The end of a stream, with its totals.
    End,
    /// A report, from receiver to sender.
    Feedback,
    /// The end of the reverse direction, with the receiver's result.
    Close,
    /// A part of the index.
    Index,
    /// A note of the application, from receiver to sender.
    Note,
    /// Both ends keep a longer history from here on.
    Keep,
    /// Hashes of the raw bytes, beside the index.
    Sums,
    /// The preface once more, beside the index.
    PrefaceCopy,
    /// The effort that a file was encoded with, before its end frame.
    Attempt,
    /// How much of the other direction of the connection has reached its reader.
    Delivered,
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
            Self::Note => 8,
            Self::Keep => 9,
            Self::Sums => 10 | FLAG_OPTIONAL,
            Self::PrefaceCopy => 11 | FLAG_OPTIONAL,
            Self::Attempt => 12 | FLAG_OPTIONAL,
            Self::Delivered => 13 | FLAG_OPTIONAL,
            Self::Unknown(byte) => byte,
        }
    }
}

impl ControlHeader {
    /// Verifies the check. `raw_offset`: raw bytes of the flow before the frame; 0 on the reverse
    /// direction.
    ///
    /// # Errors
    /// `Corrupt` if the check does not match.
    pub fn verify(&self, body: &[u8], raw_offset: u64) -> Result<()> {
        // It is read before what stands before it is decoded.
        let raw_offset = if self.kind == ControlKind::Delivered { 0 } else { raw_offset };
        let seed = check_seed(&self.head[..usize::from(self.head_len)], raw_offset);
        if xxh3_64_with_seed(body, seed) == self.check {
            return Ok(());
        }
        Err(Error::corrupt("a control frame does not match its check"))
    }
}

/// Encodes a control frame.
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

/// Reads the header of a control frame from the front of `b`; `None` when more bytes are needed.
pub(super) fn parse(b: &[u8]) -> Result<Option<ControlHeader>> {
    let kind = match b[0] {
        2 => ControlKind::Reset,
        3 => ControlKind::End,
        x if x & !FLAG_OPTIONAL == 4 => ControlKind::Feedback,
        5 => ControlKind::Close,
        x if x & !FLAG_OPTIONAL == 6 => ControlKind::Index,
        8 => ControlKind::Note,
        9 => ControlKind::Keep,
        x if x & !FLAG_OPTIONAL == 10 => ControlKind::Sums,
        x if x & !FLAG_OPTIONAL == 11 => ControlKind::PrefaceCopy,
        x if x & !FLAG_OPTIONAL == 12 => ControlKind::Attempt,
        x if x & !FLAG_OPTIONAL == 13 => ControlKind::Delivered,
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

/// Encodes the frame from which on both ends keep `history_len` bytes.
pub fn keep_frame(history_len: usize, raw_offset: u64) -> Frame {
    control_frame(ControlKind::Keep, &(history_len as u32).to_le_bytes(), raw_offset)
}

/// Encodes the frame at which both ends drop the history.
pub fn reset_frame(raw_offset: u64) -> Frame {
    control_frame(ControlKind::Reset, &[], raw_offset)
}

/// The bytes of history that a keep frame asks for.
///
/// # Errors
/// `Corrupt` if the body has another length.
pub fn parse_keep(body: &[u8]) -> Result<usize> {
    let len = body.try_into().map_err(|_| Error::corrupt("a keep frame has 4 bytes"))?;
    Ok(u32::from_le_bytes(len) as usize)
}

/// The effort that a file was encoded with, as its attempt frame has it (format.md section 3.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The mode by its number: 1 fast, 2 balanced, 3 archive.
    pub mode: u8,
    /// Version of the methods of the modes.
    pub version: u16,
    /// Streams right before this one in the file that it speaks for too.
    pub before: u8,
}

impl Attempt {
    /// Encodes the frame; `raw_total` is the raw length of the stream.
    pub fn frame(self, raw_total: u64) -> Frame {
        let [low, high] = self.version.to_le_bytes();
        control_frame(ControlKind::Attempt, &[self.mode, low, high, self.before], raw_total)
    }

    /// Parses the body.
    ///
    /// # Errors
    /// `Corrupt` if it has another length.
    pub fn parse(body: &[u8]) -> Result<Self> {
        match *body {
            [mode, low, high, before] => Ok(Self { mode, version: u16::from_le_bytes([low, high]), before }),
            _ => Err(Error::corrupt("an attempt frame has 4 bytes")),
        }
    }
}

/// Encodes the frame that says how many raw bytes of the other direction were delivered.
pub fn delivered_frame(raw_bytes: u64) -> Frame {
    let mut body = Vec::with_capacity(DELIVERED_BODY_MAX);
    put_varint(&mut body, raw_bytes);
    control_frame(ControlKind::Delivered, &body, 0)
}

/// The raw bytes that a delivered frame names.
///
/// # Errors
/// `Corrupt` if the body is malformed.
pub fn parse_delivered(body: &[u8]) -> Result<u64> {
    match varint(body, DELIVERED_BODY_MAX)? {
        Some((raw_bytes, len)) if len == body.len() => Ok(raw_bytes),
        _ => Err(Error::corrupt("a delivered frame has one number")),
    }
}

/// The totals of the end frame (format.md section 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndTotals {
    /// Raw bytes of the flow.
    pub raw_total: u64,
    /// Wire offset of the end frame.
    pub wire_total: u64,
    /// Wire offset of the first index frame; 0: no index.
    pub index_offset: u64,
    /// Chain over the checks of all blocks; see [`chain_digest`](super::chain_digest).
    pub digest: u64,
}

impl EndTotals {
    /// Encodes the end frame.
    pub fn frame(&self) -> Frame {
        let mut body = [0; END_BODY_LEN];
        for (i, v) in [self.raw_total, self.wire_total, self.index_offset, self.digest].into_iter().enumerate() {
            body[8 * i..8 * i + 8].copy_from_slice(&v.to_le_bytes());
        }
        control_frame(ControlKind::End, &body, self.raw_total)
    }

    /// Decodes the body of an end frame.
    ///
    /// # Errors
    /// `Corrupt` if its length is wrong.
    pub fn parse(body: &[u8]) -> Result<Self> {
        if body.len() != END_BODY_LEN {
            return Err(Error::corrupt("the end frame has a wrong length"));
        }
        let at = |i: usize| u64_at(body, 8 * i);
        Ok(Self { raw_total: at(0), wire_total: at(1), index_offset: at(2), digest: at(3) })
    }
}

/// A receiver's report (format.md section 3.5). Totals since the flow began, except `cores` and
/// `backlog_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Wire bytes received.
    pub wire_received: u64,
    /// Raw bytes delivered to the reader.
    pub raw_delivered: u64,
    /// Data and message frames decoded.
    pub frames_decoded: u64,
    /// CPU time of decoding.
    pub decode_ns: u64,
    /// Number of decoding threads.
    pub cores: u64,
    /// Wire bytes received and not yet decoded.
    pub backlog_bytes: u64,
    /// Time in which the reader of the raw bytes accepted none.
    pub blocked_ns: u64,
    /// Time that decoding took by the clock, summed over all threads; 0 if the receiver does not say.
    pub decode_wall_ns: u64,
}

impl Feedback {
    /// Encodes the feedback frame.
    pub fn frame(&self) -> Frame {
        let mut body = Vec::with_capacity(80);
        for v in [
            self.wire_received,
            self.raw_delivered,
            self.frames_decoded,
            self.decode_ns,
            self.cores,
            self.backlog_bytes,
            self.blocked_ns,
            self.decode_wall_ns,
        ] {
            put_varint(&mut body, v);
        }
        control_frame(ControlKind::Feedback, &body, 0)
    }

    /// Decodes the body of a feedback frame. Bytes after the known fields are ignored.
    ///
    /// # Errors
    /// `Corrupt` if it is too short or malformed.
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
            // Not there in reports of earlier versions.
            decode_wall_ns: next().unwrap_or(0),
        })
    }
}

/// Encodes the close frame. `None`: everything is stored; otherwise why not, truncated to
/// [`CLOSE_TEXT_MAX`] bytes.
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

/// Decodes the body of a close frame. `None` if the peer stored everything, otherwise its text,
/// made safe for a terminal.
///
/// # Errors
/// `Corrupt` if the body is malformed.
pub fn parse_close(body: &[u8]) -> Result<Option<String>> {
    match body.split_first() {
        Some((0, _)) => Ok(None),
        Some((1, text)) if text.len() <= CLOSE_TEXT_MAX => {
            let text = String::from_utf8_lossy(text);
            Ok(Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
        }
        _ => Err(Error::corrupt("a close frame is malformed")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Header, ReadLimits, parse_header};
    use super::*;
    use crate::error::ErrorKind;

    const LIMITS: ReadLimits =
        ReadLimits { block_max: 1 << 20, history: 1 << 16, reach: 0, codecs: 0xff, check: true, messages: true };

    #[test]
    fn unknown_control_frames_are_skipped_only_if_optional() {
        let optional = control_frame(ControlKind::Unknown(14 | FLAG_OPTIONAL), b"later", 0);
        let Some(Header::Control(h)) = parse_header(&optional.header, &LIMITS).unwrap() else { panic!() };
        assert_eq!((h.body_len, h.header_len), (5, optional.header.len()));
        h.verify(&optional.body, 0).unwrap();
        assert!(h.verify(b"other", 0).is_err());
        let critical = control_frame(ControlKind::Unknown(14), b"later", 0);
        assert_eq!(parse_header(&critical.header, &LIMITS).unwrap_err().kind, ErrorKind::Unsupported);
    }

    #[test]
    fn totals_feedback_and_close_read_back() {
        let end = EndTotals { raw_total: 1, wire_total: u64::MAX, index_offset: 3, digest: 4 };
        assert_eq!(end.frame().wire_len(), END_FRAME_LEN);
        assert_eq!(EndTotals::parse(&end.frame().body).unwrap(), end);
        let attempt = Attempt { mode: 3, version: 0x1234, before: 1 };
        assert_eq!(attempt.frame(7).wire_len(), ATTEMPT_FRAME_LEN);
        assert_eq!(Attempt::parse(&attempt.frame(7).body).unwrap(), attempt);
        assert!(Attempt::parse(&[3, 1, 0]).is_err());
        let feedback = Feedback { wire_received: u64::MAX, decode_ns: 1 << 40, cores: 4, ..Feedback::default() };
        assert_eq!(Feedback::parse(&feedback.frame().body).unwrap(), feedback);
        let without = feedback.frame().body;
        let without = Feedback::parse(&without[..without.len() - 1]).unwrap();
        assert_eq!(without, feedback, "reports of earlier versions end here");
        assert_eq!(parse_close(&close_frame(None).body).unwrap(), None);
        let long = "disk full \u{1b}[2J ".repeat(100);
        let told = parse_close(&close_frame(Some(&long)).body).unwrap().unwrap();
        assert!(told.len() <= CLOSE_TEXT_MAX && !told.contains('\u{1b}'));
    }
}
