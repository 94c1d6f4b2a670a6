//! Protocol between supervisors and the agent of a host: records over a unix socket, one per
//! message.
//!
//! A supervisor reports what its programs listen on and accept, and the words of its flows; the
//! agent answers with events for the flows. Whoever receives an invalid record closes the socket.

use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use narrows::upgrade::{Event, Key, Tuple, Word};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};

use super::sys;
use super::wire::mapped;

/// Both ends must have the same version, because they may be different builds.
const VERSION: u8 = 1;
/// Receive buffer. The longest record has 52 bytes, so longer messages are detected.
const RECORD_MAX: usize = 64;
/// Limit of unsent records: three for each of some twenty thousand connections. An end that takes
/// none of them has stopped.
const UNSENT_MAX: usize = 65_536;

/// Message from a supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToAgent {
    Hello,
    /// A program listens on that port with one more socket.
    Listening(u16),
    ListeningEnded(u16),
    Accepted {
        id: u64,
        addresses: Tuple,
        syn_clock_ms: Option<u32>,
    },
    Say {
        id: u64,
        word: Word,
    },
    Ended {
        id: u64,
    },
}

/// Message to a supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromAgent {
    Hello,
    Hear { id: u64, event: Event },
}

impl ToAgent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD_MAX);
        match self {
            Self::Hello => out.extend([1, VERSION]),
            Self::Listening(port) => put(&mut out, 2, &[&port.to_le_bytes()]),
            Self::ListeningEnded(port) => put(&mut out, 3, &[&port.to_le_bytes()]),
            Self::Accepted { id, addresses, syn_clock_ms } => {
                put(&mut out, 4, &[&id.to_le_bytes()]);
                for address in [addresses.client(), addresses.server()] {
                    out.extend(mapped(address.ip()).octets());
                    out.extend(address.port().to_le_bytes());
                }
                if let Some(clock_ms) = syn_clock_ms {
                    out.extend(clock_ms.to_le_bytes());
                }
            }
            Self::Say { id, word } => {
                let (kind, number) = match *word {
                    Word::Armed { tag } => (16, Some(tag)),
                    Word::Decline => (17, None),
                    Word::Withdraw => (18, None),
                    Word::Settled => (19, None),
                    Word::Query { offset } => (20, Some(offset)),
                    Word::Answer { offset, marked: false } => (21, Some(offset)),
                    Word::Answer { offset, marked: true } => (22, Some(offset)),
                };
                put(&mut out, kind, &[&id.to_le_bytes()]);
                out.extend(number.iter().flat_map(|n| n.to_le_bytes()));
            }
            Self::Ended { id } => put(&mut out, 5, &[&id.to_le_bytes()]),
        }
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields(record);
        let kind = fields.take::<1>()?[0];
        let message = match kind {
            1 => (fields.take()? == [VERSION]).then_some(Self::Hello)?,
            2 => Self::Listening(u16::from_le_bytes(fields.take()?)),
            3 => Self::ListeningEnded(u16::from_le_bytes(fields.take()?)),
            4 => Self::Accepted {
                id: fields.number()?,
                addresses: Tuple::new(fields.address()?, fields.address()?),
                syn_clock_ms: if fields.0.is_empty() { None } else { Some(u32::from_le_bytes(fields.take()?)) },
            },
            5 => Self::Ended { id: fields.number()? },
            16..=22 => {
                let id = fields.number()?;
                let word = match kind {
                    16 => Word::Armed { tag: fields.number()? },
                    17 => Word::Decline,
                    18 => Word::Withdraw,
                    19 => Word::Settled,
                    20 => Word::Query { offset: fields.number()? },
                    _ => Word::Answer { offset: fields.number()?, marked: kind == 22 },
                };
                Self::Say { id, word }
            }
            _ => return None,
        };
        fields.0.is_empty().then_some(message)
    }
}

impl FromAgent {
    /// `None` for events that a witness never has.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(RECORD_MAX);
        match self {
            Self::Hello => out.extend([1, VERSION]),
            Self::Hear { id, event } => {
                let id = id.to_le_bytes();
                match event {
                    Event::Claimed(key) => put(&mut out, 2, &[&id, &key.to_bytes()]),
                    Event::Withdrawn => put(&mut out, 3, &[&id]),
                    Event::Restored => put(&mut out, 4, &[&id]),
                    Event::Query { offset } => put(&mut out, 5, &[&id, &offset.to_le_bytes()]),
                    Event::Answer { offset, marked } => {
                        put(&mut out, 6 + u8::from(*marked), &[&id, &offset.to_le_bytes()]);
                    }
                    Event::Ready(_) | Event::Plain(_) => return None,
                }
            }
        }
        Some(out)
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields(record);
        let kind = fields.take::<1>()?[0];
        let message = if kind == 1 {
            (fields.take()? == [VERSION]).then_some(Self::Hello)?
        } else {
            let id = fields.number()?;
            let event = match kind {
                2 => Event::Claimed(Key::from_bytes(fields.take()?)),
                3 => Event::Withdrawn,
                4 => Event::Restored,
                5 => Event::Query { offset: fields.number()? },
                6 | 7 => Event::Answer { offset: fields.number()?, marked: kind == 7 },
                _ => return None,
            };
            Self::Hear { id, event }
        };
        fields.0.is_empty().then_some(message)
    }
}

fn put(out: &mut Vec<u8>, kind: u8, fields: &[&[u8]]) {
    out.push(kind);
    fields.iter().for_each(|field| out.extend_from_slice(field));
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = IpAddr::from(Ipv6Addr::from(self.take::<16>()?));
        Some(SocketAddr::new(ip.to_canonical(), u16::from_le_bytes(self.take()?)))
    }
}

/// One end of the socket between a supervisor and the agent.
pub(crate) struct AgentSocket {
    socket: OwnedFd,
    unsent: VecDeque<Vec<u8>>,
}

impl AgentSocket {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, unsent: VecDeque::new() }
    }

    /// Connects to whoever listens at that abstract name.
    pub(crate) fn connect(name: &str) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Self::new(socket))
    }

    /// The user at the other end.
    pub(crate) fn user(&self) -> Option<u32> {
        user_at(&self.socket)
    }

    /// Queues a record. False if the other end has stopped taking records; further ones are lost.
    pub(crate) fn say(&mut self, record: Vec<u8>) -> bool {
        if !self.is_stuck() {
            self.unsent.push_back(record);
        }
        !self.is_stuck()
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.unsent.len() >= UNSENT_MAX
    }

    /// # Errors
    /// The socket is dead.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while let Some(record) = self.unsent.front() {
            match send(&self.socket, record, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn wants_room(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next record; `None` if none is there now.
    ///
    /// # Errors
    /// The other end has closed; `InvalidData`: the other end sends invalid records.
    pub(crate) fn hear<T>(&self, decode: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let mut record = [0; RECORD_MAX];
        loop {
            match recv(&self.socket, &mut record[..], RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((len, _)) => return decode(&record[..len]).map(Some).ok_or(ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// The user who created, or listens at, the other end of a unix socket.
fn user_at(socket: &OwnedFd) -> Option<u32> {
    let mut credentials = [0; 12];
    let len = sys::get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
    (len == credentials.len())
        .then(|| u32::from_ne_bytes([credentials[4], credentials[5], credentials[6], credentials[7]]))
}

impl AsFd for AgentSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple() -> Tuple {
        Tuple::new("10.0.0.1:40000".parse().unwrap(), "[2001:db8::2]:5432".parse().unwrap())
    }

    #[test]
    fn records_come_back_and_others_are_refused() {
        let words = [
            Word::Armed { tag: 0x1122_3344_5566_7788 },
            Word::Decline,
            Word::Withdraw,
            Word::Settled,
            Word::Query { offset: 7 },
            Word::Answer { offset: 8, marked: false },
            Word::Answer { offset: u64::MAX, marked: true },
        ];
        let mut all: Vec<_> = words.into_iter().map(|word| ToAgent::Say { id: 9, word }).collect();
        all.extend([ToAgent::Hello, ToAgent::Listening(80), ToAgent::ListeningEnded(81), ToAgent::Ended { id: 3 }]);
        for syn_clock_ms in [None, Some(5)] {
            all.push(ToAgent::Accepted { id: 1, addresses: tuple(), syn_clock_ms });
        }
        for message in all {
            let record = message.encode();
            assert!(record.len() < RECORD_MAX);
            assert_eq!(ToAgent::decode(&record), Some(message.clone()));
            assert_ne!(ToAgent::decode(&record[..record.len() - 1]), Some(message.clone()));
            assert_eq!(ToAgent::decode(&[&record[..], &[0]].concat()), None);
        }
        let key = Key::new(&[1; 16], &[2; 16]);
        for event in [
            Event::Claimed(key.clone()),
            Event::Withdrawn,
            Event::Restored,
            Event::Query { offset: 1 },
            Event::Answer { offset: 2, marked: true },
            Event::Answer { offset: 2, marked: false },
        ] {
            let message = FromAgent::Hear { id: 4, event };
            let record = message.encode().unwrap();
            assert!(record.len() < RECORD_MAX);
            assert_eq!(FromAgent::decode(&record), Some(message));
            assert_eq!(FromAgent::decode(&record[..record.len() - 1]), None);
        }
        assert_eq!(FromAgent::Hear { id: 4, event: Event::Ready(key) }.encode(), None);
        assert_eq!(FromAgent::decode(&FromAgent::Hello.encode().unwrap()), Some(FromAgent::Hello));
        for bad in [&[][..], &[1, 99], &[99], &[2, 0]] {
            assert_eq!((ToAgent::decode(bad), FromAgent::decode(bad)), (None, None), "{bad:?}");
        }
    }
}
