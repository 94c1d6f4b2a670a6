//! Control frames of message flows (format.md sections 12.4 and 12.5).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Carrier, Delivery, MESSAGE_MAX, MessageConfig, SLOTS};
use crate::codec::{DICTIONARY_MAX, DICTIONARY_MIN, Dictionary};
use crate::error::{Error, Result};
use crate::frame::{put_varint, varint};

/// Longest body of a control frame: an offer.
pub const CONTROL_BODY_MAX: usize = 65_600;
const LEN_BYTES_MAX: usize = 3;
const CHECK_LEN: usize = 4;
const FLAG_CONTROL: u8 = 0xc0;
const FLAG_OPTIONAL: u8 = 0x20;

const MAGIC: [u8; 4] = [0x4e, 0x52, 0x4d, 0x1a];
const VERSION: u8 = 1;
const PREFACE_LEN: usize = 32;
const CARRIER_BORDERS: u8 = 4;
const CARRIER_CHECK_ALL: u8 = 8;
const METHODS: u8 = 0b111;

const RESET_GAP: u8 = 1;
const OFFER_CONTENT: u8 = 1;
const OFFER_ANNOUNCED: u8 = 2;

/// A control frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Begins a flow and states the limits of its sender. Forward.
    Preface(Preface),
    /// Both ends begin their history again. Forward.
    Reset {
        /// Counts the resets of the flow.
        generation: u64,
        /// Messages of the flow before the reset.
        number: u64,
        /// W: bytes of history from here on.
        window: usize,
        /// Whether messages may be lost.
        gap: bool,
        /// Digest of the seed; 0 if none.
        seed_digest: u64,
    },
    /// Lets the reader verify its history. Forward.
    Digest {
        /// Messages of the flow so far.
        number: u64,
        /// The chain after them.
        chain: u64,
    },
    /// Makes the last bytes of the history a dictionary. Forward.
    Pin {
        /// Slot of the dictionary, 1 to 3.
        slot: u8,
        /// Length of the dictionary in bytes.
        len: usize,
        /// Digest of the dictionary.
        digest: u64,
    },
    /// Offers or announces a dictionary. Forward.
    Offer {
        /// Slot of the dictionary, 1 to 3.
        slot: u8,
        /// Whether the offer is an announcement, which is not answered.
        announced: bool,
        /// Length of the dictionary in bytes.
        len: usize,
        /// Digest of the dictionary.
        digest: u64,
        /// The dictionary; `None` asks whether the reader has it.
        content: Option<Vec<u8>>,
    },
    /// Reports decoded messages. Reverse.
    Acknowledgement {
        /// Messages of the flow that were decoded.
        number: u64,
        /// The chain after them.
        chain: u64,
        /// Decoding effort since the last report, indexed by [`Coding`](super::Coding).
        decoded: [Decoded; 3],
    },
    /// The reader lost the history. Reverse.
    Lost {
        /// Generation of the reader's last reset.
        generation: u64,
        /// Messages that the reader has decoded.
        number: u64,
        /// The reader's chain after them.
        chain: u64,
        /// Why it was lost.
        reason: Lost,
    },
    /// The reader has a dictionary. Reverse.
    Has {
        /// Slot of the dictionary, 1 to 3.
        slot: u8,
        /// Digest of the dictionary.
        digest: u64,
    },
    /// The reader lacks or refuses a dictionary. Reverse.
    Lacks {
        /// Slot of the dictionary, 1 to 3.
        slot: u8,
        /// Digest of the dictionary; 0 if the reader does not know it.
        digest: u64,
        /// What the reader wants.
        reason: Lacks,
    },
}

/// Decoding effort of the reader for messages of one coding since its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decoded {
    /// Number of messages.
    pub messages: u64,
    /// Raw bytes.
    pub raw_len: u64,
    /// Decoding time in ns.
    pub ns: u64,
}

/// Why a reader lost the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It does not know the flow.
    New = 1,
    /// A frame did not decode or check.
    Mismatch = 2,
    /// It lacks the seed.
    Seed = 3,
    /// It lacks a dictionary.
    Slot = 4,
    /// The history is longer than it can keep.
    Window = 5,
}

/// What a reader that lacks a dictionary wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// The content.
    Content = 1,
    /// No such dictionary.
    Refused = 2,
}

/// Preface of a message flow: the flow that it begins, and the limits of its sender as a reader of
/// the other flow (format.md section 12.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    /// Carrier of the flow.
    pub carrier: Carrier,
    /// Whether every frame has a check.
    pub check_all: bool,
    /// Bit n: this end decodes method n.
    pub methods: u8,
    /// Number of dictionaries that this end keeps, 0 to 3.
    pub slots: usize,
    /// Longest message that this end accepts, in bytes.
    pub message_max: usize,
    /// Largest W that this end keeps, in bytes.
    pub history: usize,
    /// Longest dictionary that this end accepts, in bytes.
    pub dictionary_max: usize,
    /// Identifies connection and direction.
    pub epoch: u64,
}

impl Preface {
    pub(super) fn of(config: &MessageConfig) -> Self {
        Self {
            carrier: config.carrier,
            check_all: config.check_all,
            methods: METHODS,
            slots: config.slots,
            message_max: config.message_max,
            history: config.history_of_carrier(),
            dictionary_max: config.dictionary_max,
            epoch: config.epoch,
        }
    }

    fn put(&self, b: &mut Vec<u8>) {
        let delivery = match self.carrier.delivery {
            Delivery::Ordered => 0,
            Delivery::Unordered => 1,
            Delivery::Fanout => 2,
        };
        let borders = if self.carrier.borders { CARRIER_BORDERS } else { 0 };
        let check_all = if self.check_all { CARRIER_CHECK_ALL } else { 0 };
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&[VERSION, delivery | borders | check_all, 0, 0, self.methods, self.slots as u8]);
        b.extend_from_slice(&(self.message_max as u16).to_le_bytes());
        b.extend_from_slice(&(self.history as u32).to_le_bytes());
        b.extend_from_slice(&(self.dictionary_max as u32).to_le_bytes());
        b.extend_from_slice(&[0; 4]);
        b.extend_from_slice(&self.epoch.to_le_bytes());
    }

    fn take(f: &mut Fields<'_>) -> Result<Self> {
        if f.array::<4>()? != MAGIC {
            return Err(Error::corrupt("this is not a message flow"));
        }
        let [version, carrier, critical_low, critical_high, methods, slots] = f.array()?;
        if version != VERSION || critical_low | critical_high != 0 {
            return Err(Error::unsupported(format!("message flows of version {version} are not supported")));
        }
        let delivery = match carrier & 3 {
            0 => Delivery::Ordered,
            1 => Delivery::Unordered,
            2 => Delivery::Fanout,
            _ => return Err(Error::unsupported("the kind of the peer's carrier is not supported")),
        };
        let message_max = usize::from(u16::from_le_bytes(f.array()?));
        let history = u32::from_le_bytes(f.array()?) as usize;
        let dictionary_max = u32::from_le_bytes(f.array()?) as usize;
        let reserved = u32::from_le_bytes(f.array()?);
        let epoch = f.u64()?;
        let sound = methods & 1 == 1 && message_max > 0 && reserved == 0 && carrier < 16 && usize::from(slots) <= SLOTS;
        if !sound || history > super::HISTORY_MAX || dictionary_max > DICTIONARY_MAX {
            return Err(Error::corrupt("the preface of a message flow contradicts itself"));
        }
        Ok(Self {
            carrier: Carrier { delivery, borders: carrier & CARRIER_BORDERS != 0 },
            check_all: carrier & CARRIER_CHECK_ALL != 0,
            methods,
            slots: usize::from(slots),
            message_max,
            history,
            dictionary_max,
            epoch,
        })
    }
}

impl Control {
    /// Whether the frame concerns the flow in the other direction.
    pub(super) fn is_reverse(&self) -> bool {
        matches!(self, Self::Acknowledgement { .. } | Self::Lost { .. } | Self::Has { .. } | Self::Lacks { .. })
    }

    /// Whether the frame is allowed on this kind of carrier.
    pub(super) fn suits(&self, delivery: Delivery) -> bool {
        match self {
            Self::Reset { .. } | Self::Digest { .. } | Self::Pin { .. } | Self::Lost { .. } => {
                delivery == Delivery::Ordered
            }
            Self::Acknowledgement { .. } | Self::Has { .. } | Self::Lacks { .. } => delivery != Delivery::Fanout,
            Self::Preface(_) | Self::Offer { .. } => true,
        }
    }

    /// Appends the encoded frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut b = Vec::new();
        let kind = match self {
            Self::Preface(preface) => {
                preface.put(&mut b);
                1
            }
            Self::Reset { generation, number, window, gap, seed_digest } => {
                put_varints(&mut b, &[*generation, *number, *window as u64]);
                b.push(if *gap { RESET_GAP } else { 0 });
                b.extend_from_slice(&seed_digest.to_le_bytes());
                2
            }
            Self::Digest { number, chain } => {
                put_varint(&mut b, *number);
                b.extend_from_slice(&chain.to_le_bytes());
                3
            }
            Self::Pin { slot, len, digest } => {
                b.push(*slot);
                put_varint(&mut b, *len as u64);
                b.extend_from_slice(&digest.to_le_bytes());
                4
            }
            Self::Offer { slot, announced, len, digest, content } => {
                let with_content = if content.is_some() { OFFER_CONTENT } else { 0 };
                b.extend_from_slice(&[*slot, with_content | if *announced { OFFER_ANNOUNCED } else { 0 }]);
                put_varint(&mut b, *len as u64);
                b.extend_from_slice(&digest.to_le_bytes());
                b.extend_from_slice(content.as_deref().unwrap_or_default());
                5
            }
            Self::Acknowledgement { number, chain, decoded } => {
                put_varint(&mut b, *number);
                b.extend_from_slice(&chain.to_le_bytes());
                decoded.iter().for_each(|d| put_varints(&mut b, &[d.messages, d.raw_len, d.ns]));
                16
            }
            Self::Lost { generation, number, chain, reason } => {
                put_varints(&mut b, &[*generation, *number]);
                b.extend_from_slice(&chain.to_le_bytes());
                b.push(*reason as u8);
                17
            }
            Self::Has { slot, digest } => {
                b.push(*slot);
                b.extend_from_slice(&digest.to_le_bytes());
                18
            }
            Self::Lacks { slot, digest, reason } => {
                b.push(*slot);
                b.extend_from_slice(&digest.to_le_bytes());
                b.push(*reason as u8);
                19
            }
        };
        debug_assert!(b.len() <= CONTROL_BODY_MAX);
        let at = out.len();
        out.push(FLAG_CONTROL | kind);
        put_varint(out, b.len() as u64);
        let check = check_of(&out[at..], &b);
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(&b);
    }

    /// Reads a frame from the front of `b`, and its length. The frame is `None` for a kind that may
    /// be skipped. `Ok(None)` when more bytes are needed.
    pub(super) fn parse(b: &[u8]) -> Result<Option<(Option<Self>, usize)>> {
        let Some(&first) = b.first() else { return Ok(None) };
        let Some((body_len, len_len)) = varint(&b[1..], LEN_BYTES_MAX)? else { return Ok(None) };
        let body_len = body_len as usize;
        if body_len > CONTROL_BODY_MAX {
            return Err(Error::limit(format!(
                "a control frame of {body_len} bytes exceeds the limit of {CONTROL_BODY_MAX}"
            )));
        }
        let (head_len, header_len) = (1 + len_len, 1 + len_len + CHECK_LEN);
        let Some(frame) = b.get(..header_len + body_len) else { return Ok(None) };
        let (head, body) = (&frame[..head_len], &frame[header_len..]);
        if check_of(head, body).to_le_bytes() != frame[head_len..header_len] {
            return Err(Error::corrupt("a control frame is damaged"));
        }
        Ok(Some((Self::parse_body(first, body)?, frame.len())))
    }

    fn parse_body(first: u8, body: &[u8]) -> Result<Option<Self>> {
        let mut f = Fields(body);
        let control = match first & 0x1f {
            1 => Self::Preface(Preface::take(&mut f)?),
            2 => Self::Reset {
                generation: f.varint()?,
                number: f.varint()?,
                window: f.window()?,
                gap: f.flags(RESET_GAP)? & RESET_GAP != 0,
                seed_digest: f.u64()?,
            },
            3 => Self::Digest { number: f.varint()?, chain: f.u64()? },
            4 => Self::Pin { slot: f.slot()?, len: f.dictionary_len()?, digest: f.u64()? },
            5 => f.offer()?,
            16 => {
                let (number, chain) = (f.varint()?, f.u64()?);
                let mut decoded = [Decoded::default(); 3];
                for d in &mut decoded {
                    *d = Decoded { messages: f.varint()?, raw_len: f.varint()?, ns: f.varint()? };
                }
                Self::Acknowledgement { number, chain, decoded }
            }
            17 => Self::Lost { generation: f.varint()?, number: f.varint()?, chain: f.u64()?, reason: f.lost()? },
            18 => Self::Has { slot: f.slot()?, digest: f.u64()? },
            19 => Self::Lacks { slot: f.slot()?, digest: f.u64()?, reason: f.lacks()? },
            _ if first & FLAG_OPTIONAL != 0 => return Ok(None),
            kind => return Err(Error::unsupported(format!("control frames of kind {kind} are not supported"))),
        };
        if !f.0.is_empty() || first & FLAG_OPTIONAL != 0 {
            return Err(malformed());
        }
        Ok(Some(control))
    }
}

fn malformed() -> Error {
    Error::corrupt("a control frame is malformed")
}

fn check_of(head: &[u8], body: &[u8]) -> u32 {
    xxh3_64_with_seed(body, xxh3_64_with_seed(head, 0)) as u32
}

fn put_varints(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|v| put_varint(out, *v));
}

/// The unread rest of a body.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn varint(&mut self) -> Result<u64> {
        let (value, len) = varint(self.0, 10)?.ok_or_else(malformed)?;
        self.0 = &self.0[len..];
        Ok(value)
    }

    fn flags(&mut self, known: u8) -> Result<u8> {
        let flags = self.byte()?;
        if flags & !known == 0 { Ok(flags) } else { Err(malformed()) }
    }

    fn slot(&mut self) -> Result<u8> {
        let slot = self.byte()?;
        if (1..=SLOTS as u8).contains(&slot) { Ok(slot) } else { Err(malformed()) }
    }

    fn window(&mut self) -> Result<usize> {
        let window = self.varint()?;
        let sound = window == 0 || (super::HISTORY_MIN as u64..=super::HISTORY_MAX as u64).contains(&window);
        if sound {
            Ok(window as usize)
        } else {
            Err(Error::limit(format!("a history of {window} bytes is out of range")))
        }
    }

    fn dictionary_len(&mut self) -> Result<usize> {
        let len = self.varint()?;
        let sound = (DICTIONARY_MIN as u64..=DICTIONARY_MAX as u64).contains(&len);
        if sound { Ok(len as usize) } else { Err(Error::limit(format!("a dictionary of {len} bytes is out of range"))) }
    }

    fn offer(&mut self) -> Result<Control> {
        let slot = self.slot()?;
        let flags = self.flags(OFFER_CONTENT | OFFER_ANNOUNCED)?;
        let (len, digest) = (self.dictionary_len()?, self.u64()?);
        let content = (flags & OFFER_CONTENT != 0).then(|| std::mem::take(&mut self.0).to_vec());
        if content.as_ref().is_some_and(|c| c.len() != len) {
            return Err(malformed());
        }
        if content.as_ref().is_some_and(|c| Dictionary::digest_of(c) != digest) {
            return Err(Error::corrupt("the content of a dictionary does not match its digest"));
        }
        Ok(Control::Offer { slot, announced: flags & OFFER_ANNOUNCED != 0, len, digest, content })
    }

    fn lost(&mut self) -> Result<Lost> {
        [Lost::New, Lost::Mismatch, Lost::Seed, Lost::Slot, Lost::Window]
            .into_iter()
            .find({
                let reason = self.byte()?;
                move |l| *l as u8 == reason
            })
            .ok_or_else(malformed)
    }

    fn lacks(&mut self) -> Result<Lacks> {
        match self.byte()? {
            1 => Ok(Lacks::Content),
            2 => Ok(Lacks::Refused),
            _ => Err(malformed()),
        }
    }
}

const _: () = assert!(MESSAGE_MAX <= u16::MAX as usize && PREFACE_LEN == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn all() -> Vec<Control> {
        let content = vec![5; 100];
        let digest = Dictionary::digest_of(&content);
        let decoded = [1, 2, 300].map(|n| Decoded { messages: n, raw_len: n * 700, ns: n << 33 });
        vec![
            Control::Preface(Preface::of(&MessageConfig { epoch: u64::MAX, ..MessageConfig::default() })),
            Control::Reset { generation: 3, number: 1 << 40, window: 16 << 10, gap: true, seed_digest: 7 },
            Control::Digest { number: 256, chain: u64::MAX },
            Control::Pin { slot: 3, len: 4096, digest: 9 },
            Control::Offer { slot: 1, announced: false, len: 100, digest, content: None },
            Control::Offer { slot: 2, announced: true, len: 100, digest, content: Some(content) },
            Control::Acknowledgement { number: 9, chain: 1, decoded },
            Control::Lost { generation: 0, number: 0, chain: 0, reason: Lost::New },
            Control::Has { slot: 1, digest: 2 },
            Control::Lacks { slot: 1, digest: 2, reason: Lacks::Refused },
        ]
    }

    #[test]
    fn frames_read_back_and_every_prefix_is_incomplete() {
        for control in all() {
            let mut wire = Vec::new();
            control.put(&mut wire);
            assert!(super::super::header::is_control(wire[0]));
            assert_eq!(Control::parse(&wire).unwrap(), Some((Some(control), wire.len())));
            for n in 0..wire.len() {
                assert_eq!(Control::parse(&wire[..n]).unwrap(), None);
            }
            for i in 0..wire.len() * 8 {
                let mut bad = wire.clone();
                bad[i / 8] ^= 1 << (i % 8);
                assert!(!matches!(Control::parse(&bad), Ok(Some((Some(_), _)))), "bit {i}");
            }
        }
    }

    fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![FLAG_CONTROL | kind];
        put_varint(&mut out, body.len() as u64);
        let check = check_of(&out, body);
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn bodies_that_lie_are_refused() {
        let kind = |kind, body: &[u8]| Control::parse(&framed(kind, body)).unwrap_err().kind;
        assert_eq!(kind(9, b""), ErrorKind::Unsupported);
        assert_eq!(Control::parse(&framed(9 | FLAG_OPTIONAL, b"what")).unwrap().unwrap().0, None);
        assert_eq!(kind(18, &[0; 9]), ErrorKind::Corrupt, "slot 0");
        assert_eq!(kind(18, &[4; 9]), ErrorKind::Corrupt, "slot 4");
        assert_eq!(kind(18, &[1; 10]), ErrorKind::Corrupt, "more than its fields");
        assert_eq!(kind(19, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 3]), ErrorKind::Corrupt, "an unknown reason");
        assert_eq!(kind(1, &[0; 32]), ErrorKind::Corrupt, "no preface");
        let mut offer = vec![1, 1];
        put_varint(&mut offer, 1 << 20);
        assert_eq!(kind(5, &offer), ErrorKind::Limit, "a dictionary above its limit");
        let forged = [vec![1, 1, 64], vec![9; 8], vec![1; 64]].concat();
        assert_eq!(kind(5, &forged), ErrorKind::Corrupt, "another content");
        let mut reset = Vec::new();
        put_varints(&mut reset, &[1, 0, 1 << 30]);
        assert_eq!(kind(2, &reset), ErrorKind::Limit, "a history above its limit");
        let mut long = vec![FLAG_CONTROL | 5];
        put_varint(&mut long, CONTROL_BODY_MAX as u64 + 1);
        assert_eq!(Control::parse(&long).unwrap_err().kind, ErrorKind::Limit);
    }
}
