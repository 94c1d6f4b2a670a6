//! The first bytes of a direction: version, features, limits (format.md section 2).

use super::{REACH_MAX_HARD, u32_at, u64_at};
use crate::codec::{CODECS, CodecId};
use crate::error::{Error, Result};

/// The first bytes of every stream: `NRW` and SUB.
pub const MAGIC: [u8; 4] = *b"NRW\x1a";
/// Version of the format.
pub const VERSION: u8 = 1;
/// Length of a preface in bytes.
pub const PREFACE_LEN: usize = 32;

/// Largest `block_max` that a preface may state, in bytes (format.md section 6).
pub const BLOCK_MAX_HARD: usize = 64 << 20;
/// Largest `history` that a preface may state, in bytes (format.md section 6).
pub const HISTORY_MAX_HARD: usize = 64 << 20;

/// Longest block that every reader of version 1 accepts before it states its limits, in bytes
/// (D12).
pub const BASELINE_BLOCK_MAX: usize = 2 << 20;
/// History that every reader of version 1 keeps before it states its limits, in bytes.
pub const BASELINE_HISTORY: usize = 64 << 10;
/// History that every reader of version 1 keeps by default, in bytes: the most that a sender may
/// state where it hears nothing of the reader. Beyond it level 9 of zstd, which looks back 4 MiB,
/// gains a thousandth.
pub const HISTORY_DEFAULT: usize = 2 << 20;
/// Codecs that every reader of version 1 decodes before it states its limits: bit n for codec n.
pub const BASELINE_CODECS: u64 = 0xff;
/// Codecs that a receiver must name before a sender uses them, where a receiver has a say: not every
/// reader of version 1 has them.
pub const NAMED_CODECS: u64 = 1 << CodecId::SPLIT.0 | 1 << CodecId::LEPTON.0 | 1 << CodecId::BASE64.0;

/// Feature bits of a preface (format.md section 2).
pub mod feature {
    /// Critical: message frames may occur.
    pub const MESSAGES: u16 = 1;
    /// Critical: copy frames may occur, whatever the receiver says.
    pub const COPIES: u16 = 2;
    /// Optional: an index stands before the end frame.
    pub const INDEX: u16 = 1;
    /// Optional: the sender listens to the reverse direction.
    pub const DUPLEX: u16 = 2;
    /// Optional: the end that sends this stream reads delivered frames in the other direction of the
    /// connection, and sends them if the other end reads them.
    pub const DELIVERED: u16 = 4;
}

const KNOWN_CRITICAL: u16 = feature::MESSAGES | feature::COPIES;
/// Place of the reach among the optional features: five bits, its binary logarithm.
const REACH_SHIFT: u32 = 8;
const REACH_BITS: u16 = 0x1f << REACH_SHIFT;

/// Role of the end that sends a preface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends the flow.
    Sender,
    /// Receives the flow; its preface begins the reverse direction.
    Receiver,
}

/// The preface: version, features and limits of one side (format.md section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    /// Role of the side.
    pub role: Role,
    /// Critical features: a reader refuses unknown ones.
    pub critical: u16,
    /// Optional features: a reader ignores unknown ones. Without the bits of the reach.
    pub optional: u16,
    /// Whether every block has a check.
    pub check: bool,
    /// Sender: longest block of the stream. Receiver: longest block that it accepts. In raw bytes.
    pub block_max: usize,
    /// Sender: how far back linked frames refer. Receiver: history that it keeps. In bytes; 0: no
    /// linked frames.
    pub history: usize,
    /// Sender: how far back copies refer. Receiver: raw bytes that it keeps for them. A power of
    /// two, in bytes; 0: no copies.
    pub reach: usize,
    /// Bit n: codec n may be used (sender) or can be decoded (receiver).
    pub codecs: u64,
}

impl Preface {
    /// Encodes the preface.
    pub fn encode(&self) -> [u8; PREFACE_LEN] {
        let mut b = [0; PREFACE_LEN];
        b[0..4].copy_from_slice(&MAGIC);
        b[4] = VERSION;
        b[5] = match self.role {
            Role::Sender => 0,
            Role::Receiver => 1,
        };
        b[6..8].copy_from_slice(&self.critical.to_le_bytes());
        let reach_log = self.reach.checked_ilog2().unwrap_or(0) as u16;
        let optional = self.optional & !REACH_BITS | reach_log << REACH_SHIFT;
        b[8..10].copy_from_slice(&optional.to_le_bytes());
        b[10] = u8::from(self.check);
        b[12..16].copy_from_slice(&(self.block_max as u32).to_le_bytes());
        b[16..20].copy_from_slice(&(self.history as u32).to_le_bytes());
        b[20..28].copy_from_slice(&self.codecs.to_le_bytes());
        let crc = crc32fast::hash(&b[..28]);
        b[28..32].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a preface from the first bytes of a stream; `None` when more bytes are needed. A wrong
    /// magic number is reported as early as possible.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported` or `Limit`.
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
        let optional = u16::from_le_bytes([b[8], b[9]]);
        let reach = match (optional & REACH_BITS) >> REACH_SHIFT {
            0 => 0,
            log => 1 << log,
        };
        if reach > REACH_MAX_HARD {
            return Err(Error::limit(format!(
                "the preface has a reach of {reach} bytes; the most is {REACH_MAX_HARD}"
            )));
        }
        if reach == 0 && critical & feature::COPIES != 0 {
            return Err(Error::corrupt("the preface declares copies and no reach"));
        }
        Ok(Some(Self {
            role: if b[5] == 0 { Role::Sender } else { Role::Receiver },
            critical,
            optional: optional & !REACH_BITS,
            check: b[10] == 1,
            block_max,
            history,
            reach,
            codecs: u64_at(b, 20),
        }))
    }
}

/// Codecs of this build, as the bits of a preface.
pub fn codecs_of_this_build() -> u64 {
    CODECS.iter().fold(0, |bits, c| bits | 1 << c.id().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_preface_reads_back_and_any_flipped_bit_is_refused() {
        let preface = Preface {
            role: Role::Sender,
            critical: feature::MESSAGES | feature::COPIES,
            optional: feature::DUPLEX,
            check: true,
            block_max: BASELINE_BLOCK_MAX,
            history: BASELINE_HISTORY,
            reach: 1 << 27,
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
    fn the_reach_is_a_power_of_two_up_to_1_gib() {
        let preface = |reach, critical| Preface {
            role: Role::Sender,
            critical,
            optional: 0xe0ff,
            check: true,
            block_max: 1,
            history: 0,
            reach,
            codecs: 1,
        };
        for reach in [0, 2, 1 << 20, REACH_MAX_HARD] {
            let preface = preface(reach, 0);
            assert_eq!(Preface::parse(&preface.encode()).unwrap(), Some(preface));
        }
        let kind = |preface: Preface| Preface::parse(&preface.encode()).unwrap_err().kind;
        assert_eq!(kind(preface(2 * REACH_MAX_HARD, 0)), ErrorKind::Limit);
        assert_eq!(kind(preface(0, feature::COPIES)), ErrorKind::Corrupt);
    }

    #[test]
    fn a_newer_version_is_unsupported_not_corrupt() {
        let mut bytes = [0; PREFACE_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = 2;
        assert_eq!(Preface::parse(&bytes).unwrap_err().kind, ErrorKind::Unsupported);
    }
}
