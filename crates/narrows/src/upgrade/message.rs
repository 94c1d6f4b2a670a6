//! The messages of a service connection: side channels and gateways (format.md section 11.2).

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::marker::{NONCE_LEN, Nonce};
use super::proof::Tuple;
use crate::error::{Error, Result};

/// The first bytes of either direction of a service connection. They are not text, and every
/// conversion of line ends damages them.
pub const GREETING: [u8; 8] = *b"\x93NRUP\r\n\x1a";
/// The highest version of the negotiation that this implementation speaks.
pub const VERSION: u8 = 1;
/// Length of a message header in bytes: kind and body length.
pub const HEADER_LEN: usize = 3;
/// Longest body in bytes. The longest body of this version has 64 bytes; the rest is room for
/// fields of later versions.
pub const BODY_MAX: usize = 256;
/// A reader that does not know a kind with this bit may skip it.
const OPTIONAL: u8 = 0x80;

/// A message of a service connection (format.md section 11.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first message of either direction.
    Hello(Hello),
    /// Claims a connection; to the server.
    Claim(Claim),
    /// The claimed connection is armed; to the client.
    Ready {
        /// The claim.
        id: u64,
        /// The server's half of the [`Key`](super::Key).
        key: Nonce,
    },
    /// The claim is refused; to the client.
    No {
        /// The claim.
        id: u64,
        /// Why it is refused.
        reason: Reason,
    },
    /// The client will send no marker; to the server.
    Withdraw {
        /// The claim.
        id: u64,
    },
    /// Asks whether the peer's marker is at an offset of what the peer sent.
    Query {
        /// The claim.
        id: u64,
        /// Plain bytes of the peer's direction before the place in question.
        offset: u64,
    },
    /// Answers a query, or announces the place of the marker.
    Answer {
        /// The claim.
        id: u64,
        /// Plain bytes of the sender's direction before the place in question.
        offset: u64,
        /// Whether the sender's marker is at `offset`.
        marked: bool,
    },
    /// Asks a gateway to connect to a port of its host.
    Dial {
        /// TCP port of the server.
        port: u16,
    },
    /// The gateway's answer to a `Dial`.
    Dialed {
        /// 0 if connected, an error number of Linux, or [`NO_PLACE`](super::gateway::NO_PLACE).
        errno: u16,
    },
}

/// The first message of either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The highest version that its sender speaks; the lower one of both ends applies.
    pub version: u8,
    /// The purpose of the connection.
    pub purpose: Purpose,
}

/// The purpose of a connection to the service port, as its client states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Negotiates connections between two hosts (format.md section 11.5).
    SideChannel,
    /// Asks for one connection through a gateway (format.md section 11.7).
    Gateway,
}

/// A client's supervisor states that it holds the client's end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Identifies the claim on this side channel; never used twice on one.
    pub id: u64,
    /// The connection as the client sees it.
    pub tuple: Tuple,
    /// The client's TCP timestamp clock when the SYN left.
    pub clock_ms: u32,
    /// The client's half of the [`Key`](super::Key); it also identifies the claim across side
    /// channels.
    pub nonce: Nonce,
}

/// Why a claim is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No program under Narrows listens on that port.
    NotHere,
    /// Addresses or clock do not agree with the connection.
    Proof,
    /// The side channel comes from another address than the connection.
    Address,
    /// No such connection was accepted in time.
    NotAccepted,
    /// Too many claims are waiting.
    Busy,
    /// The connection already has another claim.
    Taken,
    /// The connection is ending.
    Ended,
    /// A reason of a later version, by its byte.
    Other(u8),
}

impl Reason {
    fn byte(self) -> u8 {
        match self {
            Self::NotHere => 1,
            Self::Proof => 2,
            Self::Address => 3,
            Self::NotAccepted => 4,
            Self::Busy => 5,
            Self::Taken => 6,
            Self::Ended => 7,
            Self::Other(byte) => byte,
        }
    }

    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::NotHere,
            2 => Self::Proof,
            3 => Self::Address,
            4 => Self::NotAccepted,
            5 => Self::Busy,
            6 => Self::Taken,
            7 => Self::Ended,
            byte => Self::Other(byte),
        }
    }
}

impl Message {
    /// Appends the encoded message.
    pub fn write(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend([0; HEADER_LEN]);
        let kind = match self {
            Self::Hello(hello) => {
                out.push(hello.version);
                out.push(match hello.purpose {
                    Purpose::SideChannel => 0,
                    Purpose::Gateway => 1,
                });
                // Features: none so far.
                out.extend([0; 2]);
                1
            }
            Self::Claim(claim) => {
                out.extend(claim.id.to_le_bytes());
                write_address(claim.tuple.client(), out);
                write_address(claim.tuple.server(), out);
                out.extend(claim.clock_ms.to_le_bytes());
                out.extend(claim.nonce);
                2
            }
            Self::Ready { id, key } => {
                out.extend(id.to_le_bytes());
                out.extend(key);
                3
            }
            Self::No { id, reason } => {
                out.extend(id.to_le_bytes());
                out.push(reason.byte());
                4
            }
            Self::Withdraw { id } => {
                out.extend(id.to_le_bytes());
                5
            }
            Self::Query { id, offset } => {
                out.extend(id.to_le_bytes());
                out.extend(offset.to_le_bytes());
                6
            }
            Self::Answer { id, offset, marked } => {
                out.extend(id.to_le_bytes());
                out.extend(offset.to_le_bytes());
                out.push(u8::from(*marked));
                7
            }
            Self::Dial { port } => {
                out.extend(port.to_le_bytes());
                8
            }
            Self::Dialed { errno } => {
                out.extend(errno.to_le_bytes());
                9
            }
        };
        let len = (out.len() - at - HEADER_LEN) as u16;
        out[at] = kind;
        out[at + 1..at + HEADER_LEN].copy_from_slice(&len.to_le_bytes());
    }

    /// Decodes a message. `None` for an unknown kind that may be skipped.
    fn read(kind: u8, body: &[u8]) -> Result<Option<Self>> {
        let mut fields = Fields(body);
        let message = match kind {
            1 => {
                let version = fields.u8()?;
                if version == 0 {
                    return Err(Error::unsupported("the other end offers version 0 of the negotiation"));
                }
                let purpose = match fields.u8()? {
                    0 => Purpose::SideChannel,
                    1 => Purpose::Gateway,
                    _ => return Err(Error::unsupported("this kind of service connection needs a newer program")),
                };
                Self::Hello(Hello { version, purpose })
            }
            2 => Self::Claim(Claim {
                id: fields.u64()?,
                tuple: Tuple::new(fields.address()?, fields.address()?),
                clock_ms: u32::from_le_bytes(fields.take()?),
                nonce: fields.take::<NONCE_LEN>()?,
            }),
            3 => Self::Ready { id: fields.u64()?, key: fields.take::<NONCE_LEN>()? },
            4 => Self::No { id: fields.u64()?, reason: Reason::from_byte(fields.u8()?) },
            5 => Self::Withdraw { id: fields.u64()? },
            6 => Self::Query { id: fields.u64()?, offset: fields.u64()? },
            7 => Self::Answer { id: fields.u64()?, offset: fields.u64()?, marked: fields.bool()? },
            8 => Self::Dial { port: u16::from_le_bytes(fields.take()?) },
            9 => Self::Dialed { errno: u16::from_le_bytes(fields.take()?) },
            kind if kind & OPTIONAL != 0 => return Ok(None),
            kind => return Err(Error::unsupported(format!("messages of kind {kind} need a newer program"))),
        };
        Ok(Some(message))
    }
}

/// Writes an address always as IPv6, so that every claim has the same length.
fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend(ip.octets());
    out.extend(address.port().to_le_bytes());
}

/// The fields of a body, in order. Bytes after the fields that this version knows are ignored.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) =
            self.0.split_first_chunk().ok_or_else(|| Error::corrupt("a message of the side channel is too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8> {
        self.take().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::corrupt("a message of the side channel is malformed")),
        }
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<SocketAddr> {
        let ip = IpAddr::from(Ipv6Addr::from(self.take::<16>()?));
        Ok(SocketAddr::new(ip.to_canonical(), u16::from_le_bytes(self.take()?)))
    }
}

/// Parser for one direction of a service connection. It buffers at most one incomplete message
/// beyond the input of the last [`push`](Self::push).
#[derive(Debug, Default)]
pub struct Parser {
    bytes: Vec<u8>,
    taken: usize,
    greeted: bool,
    heard: bool,
}

impl Parser {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that form no complete message yet, or that were not asked for.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The next message, if it has arrived completely. The first one is a [`Message::Hello`], and
    /// no other is.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` if the peer does not follow the protocol; the parser is
    /// unusable then.
    pub fn poll(&mut self) -> Result<Option<Message>> {
        if !self.greeted {
            let n = self.rest().len().min(GREETING.len());
            if self.rest()[..n] != GREETING[..n] {
                return Err(Error::corrupt("the peer does not speak the Narrows negotiation"));
            }
            if n < GREETING.len() {
                return Ok(None);
            }
            self.taken += n;
            self.greeted = true;
        }
        loop {
            let Some([kind, len @ ..]) = self.rest().first_chunk::<HEADER_LEN>() else { return Ok(None) };
            let (kind, len) = (*kind, usize::from(u16::from_le_bytes(*len)));
            if len > BODY_MAX {
                return Err(Error::limit(format!(
                    "a message of {len} bytes on the side channel exceeds the limit of {BODY_MAX}"
                )));
            }
            let Some(body) = self.rest().get(HEADER_LEN..HEADER_LEN + len) else { return Ok(None) };
            let message = Message::read(kind, body)?;
            self.taken += HEADER_LEN + len;
            if message.is_none() && self.heard {
                continue;
            }
            if matches!(message, Some(Message::Hello(_))) == self.heard {
                return Err(Error::corrupt("a service connection begins with one greeting"));
            }
            self.heard = true;
            return Ok(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let address = |text: &str| text.parse().unwrap();
        let tuple = |c, s| Tuple::new(address(c), address(s));
        vec![
            Message::Hello(Hello { version: 1, purpose: Purpose::SideChannel }),
            Message::Claim(Claim {
                id: 3,
                tuple: tuple("10.1.2.3:50000", "10.9.8.7:5432"),
                clock_ms: 0xdead_beef,
                nonce: [9; 16],
            }),
            Message::Claim(Claim {
                id: u64::MAX,
                tuple: tuple("[2001:db8::1]:1", "[2001:db8::2]:65535"),
                clock_ms: 0,
                nonce: [0; 16],
            }),
            Message::Ready { id: 3, key: [8; 16] },
            Message::No { id: 4, reason: Reason::Proof },
            Message::No { id: 4, reason: Reason::Other(200) },
            Message::Withdraw { id: 3 },
            Message::Query { id: 3, offset: 1 << 40 },
            Message::Answer { id: 3, offset: 1 << 40, marked: true },
            Message::Dial { port: 6379 },
            Message::Dialed { errno: 111 },
        ]
    }

    fn wire(messages: &[Message]) -> Vec<u8> {
        let mut wire = GREETING.to_vec();
        messages.iter().for_each(|m| m.write(&mut wire));
        wire
    }

    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut() {
        let wire = wire(&all());
        for cut in 1..wire.len() {
            let (mut parser, mut got) = (Parser::default(), Vec::new());
            for piece in wire.chunks(cut) {
                parser.push(piece);
                while let Some(message) = parser.poll().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, all(), "pieces of {cut}");
            assert!(parser.rest().is_empty());
        }
    }

    #[test]
    fn a_claim_takes_67_bytes_at_these_places() {
        let mut out = Vec::new();
        all()[1].write(&mut out);
        assert_eq!(out.len(), 67);
        assert_eq!(out[..3], [2, 64, 0]);
        assert_eq!(out[3..11], 3u64.to_le_bytes());
        assert_eq!(out[21..27], [0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(out[27..29], 50000u16.to_le_bytes());
        assert_eq!(out[47..51], 0xdead_beefu32.to_le_bytes());
    }

    #[test]
    fn what_makes_no_sense_is_refused_at_once_and_what_is_newer_passed_over() {
        let first = |bytes: &[u8]| {
            let mut parser = Parser::default();
            parser.push(bytes);
            parser.poll()
        };
        let hello = wire(&all()[..1]);
        assert!(first(b"SSH-2.0-x").is_err());
        assert!(first(b"\x93NRX").is_err(), "a wrong byte counts before the rest has come");
        assert!(first(b"\x93NR").unwrap().is_none());
        assert!(first(&wire(&all()[6..7])).is_err(), "no greeting");
        assert!(first(&[&GREETING[..], &[1, 1, 1]].concat()).is_err(), "too long");
        assert!(first(&[&GREETING[..], &[1, 1, 0, 1]].concat()).is_err(), "too short");
        assert!(first(&[&GREETING[..], &[1, 4, 0, 0, 0, 0, 0]].concat()).is_err(), "version 0");
        for (bytes, good) in [(&[0x90, 2, 0, 1, 1][..], true), (&[0x10, 0, 0], false), (&[0, 0, 0], false)] {
            let mut parser = Parser::default();
            parser.push(&[&hello[..], bytes].concat());
            assert!(parser.poll().unwrap().is_some());
            assert_eq!(parser.poll().is_ok(), good, "{bytes:?}");
        }
        let mut parser = Parser::default();
        parser.push(&[&hello[..], &hello[8..]].concat());
        assert!(parser.poll().unwrap().is_some() && parser.poll().is_err(), "greeted twice");
        // Fields added by a later version.
        let mut longer = hello;
        longer[9] += 2;
        longer.extend([1, 2]);
        assert!(first(&longer).unwrap().is_some());
    }
}
