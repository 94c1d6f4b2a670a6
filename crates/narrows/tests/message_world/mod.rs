//! Two ends of a message link without sockets: the tests pass the units.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::sync::Arc;

use narrows::codec::Method;
use narrows::message::{
    Carrier, Contexts, Delivery, Dictionary, Event, Heard, MessageConfig, MessageReceiver, MessageSender, Sent,
};
use narrows::policy::{Choice, Fixed, Policy};
use narrows::{Error, monitor::View};

/// A byte stream: ordered, without borders.
pub const STREAM: Carrier = Carrier { delivery: Delivery::Ordered, borders: false };
/// An ordered carrier that keeps borders.
pub const UNITS: Carrier = Carrier { delivery: Delivery::Ordered, borders: true };
/// A carrier that keeps borders, and may lose and reorder.
pub const DATAGRAMS: Carrier = Carrier { delivery: Delivery::Unordered, borders: true };
/// A fan-out carrier.
pub const TOPIC: Carrier = Carrier { delivery: Delivery::Fanout, borders: true };

/// A policy with one method, such as `lz4:link`.
pub fn fixed(method: &str) -> Box<dyn Policy> {
    let (method, linked) = narrows::policy::parse_method(method).unwrap();
    Box::new(Fixed::new(method, linked))
}

/// A policy that cycles through all ways to encode, so that each meets every other.
#[derive(Default)]
pub struct Turns(usize);

impl Policy for Turns {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        self.0 += 1;
        let methods = [Method::lz4_accel(1), Method::STORE, Method::lz4_accel(1), Method::zstd(1), Method::zstd(3)];
        let linked = self.0.is_multiple_of(5) || self.0.is_multiple_of(7);
        // Linked zstd encodes both ways: with history and with a dictionary.
        let both = self.0.is_multiple_of(7).then(|| Method::zstd(1));
        let method = if linked { both.unwrap_or(Method::lz4_accel(1)) } else { methods[self.0 % 5] };
        let method = if view.limits.allows(method) { method } else { Method::STORE };
        Choice { linked, ..Choice::new(method, view.upcoming.len()) }
    }
}

/// One end of a link.
pub struct End {
    /// Sends messages to the peer.
    pub sender: MessageSender,
    /// Receives messages of the peer.
    pub receiver: MessageReceiver,
    /// Codec contexts of this end.
    pub contexts: Contexts,
    /// Messages received, in order of arrival.
    pub got: Vec<Vec<u8>>,
    /// Number of messages that could not be decoded.
    pub undecodable: usize,
    /// Number of messages sent again on request of the peer.
    pub again: usize,
    /// Number of gaps reported by the peer, where messages may be lost.
    pub gaps: usize,
    /// Virtual time.
    pub now_ns: u64,
}

impl End {
    /// An end that has sent and received nothing.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: MessageConfig, policy: Box<dyn Policy>) -> Self {
        Self {
            sender: MessageSender::new(config.clone(), policy).unwrap(),
            receiver: MessageReceiver::new(config).unwrap(),
            contexts: Contexts::default(),
            got: Vec::new(),
            undecodable: 0,
            again: 0,
            gaps: 0,
            now_ns: 0,
        }
    }

    /// The bytes by which this end sends a message: answers to the peer, then its own frames.
    pub fn unit(&mut self, message: &[u8]) -> Vec<u8> {
        self.sent(message).1
    }

    /// As [`End::unit`], with the result of the encoder.
    pub fn sent(&mut self, message: &[u8]) -> (Sent, Vec<u8>) {
        self.now_ns += 1_000_000;
        let mut out = Vec::new();
        self.receiver.answer(&mut out);
        let sent = self.sender.encode(message, self.now_ns, &mut self.contexts, &mut out).unwrap();
        (sent, out)
    }

    /// All pending units of this end other than new messages, including messages that the peer
    /// lost.
    pub fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut units = Vec::new();
        let mut out = Vec::new();
        self.receiver.answer(&mut out);
        self.sender.control(&mut out);
        if !out.is_empty() {
            units.push(std::mem::take(&mut out));
        }
        while self.sender.send_again(self.now_ns, &mut self.contexts, &mut out).is_some() {
            self.again += 1;
            units.push(std::mem::take(&mut out));
        }
        units
    }

    /// As [`End::receive`], but ignores bytes left over, as the damage may be in a length.
    pub fn receive_all(&mut self, unit: &[u8]) -> Result<(), Error> {
        let mut rest = unit;
        while !rest.is_empty() {
            let step = self.receiver.receive(rest, &mut self.contexts)?;
            match step.event {
                Event::Message(message) => self.got.push(message.to_vec()),
                Event::Undecodable(_) => self.undecodable += 1,
                Event::Incomplete => return Ok(()),
                _ => {}
            }
            rest = &rest[step.consumed..];
        }
        Ok(())
    }

    /// Receives a whole unit.
    ///
    /// # Errors
    /// The first error of receiver or sender.
    pub fn receive(&mut self, unit: &[u8]) -> Result<(), Error> {
        let mut rest = unit;
        while !rest.is_empty() {
            let step = self.receiver.receive(rest, &mut self.contexts)?;
            match step.event {
                Event::Message(message) => self.got.push(message.to_vec()),
                Event::Undecodable(_) => self.undecodable += 1,
                Event::Control(control) => {
                    self.gaps += usize::from(self.sender.hear(&control)? == Heard::Gap);
                }
                Event::Incomplete => panic!("a unit is whole"),
                Event::Nothing => {}
            }
            assert!(step.consumed > 0);
            rest = &rest[step.consumed..];
        }
        Ok(())
    }
}

/// The default configuration for a carrier.
pub fn config(carrier: Carrier) -> MessageConfig {
    MessageConfig { carrier, ..MessageConfig::default() }
}

/// Two ends with the same configuration, but different epochs.
pub fn ends(config: &MessageConfig, policy: impl Fn() -> Box<dyn Policy>) -> (End, End) {
    let end = |epoch| End::new(MessageConfig { epoch, ..config.clone() }, policy());
    (end(1), end(2))
}

/// Exchanges units until both ends have nothing to send.
pub fn settle(a: &mut End, b: &mut End) {
    for _ in 0..10 {
        let (to_b, to_a) = (a.rest(), b.rest());
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        to_b.iter().for_each(|u| b.receive(u).unwrap());
        to_a.iter().for_each(|u| a.receive(u).unwrap());
    }
    panic!("they talk for ever");
}

/// A dictionary with this content.
pub fn dictionary(content: Vec<u8>) -> Arc<Dictionary> {
    Arc::new(Dictionary::new(content).unwrap())
}

/// A generator of random test data; the field is its state.
pub struct Random(pub u64);

impl Random {
    /// A number in [0, n).
    pub fn draw(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// A text like messages between programs.
    pub fn message(&mut self) -> Vec<u8> {
        let mut text = format!("REGISTER sip:{}@example.net SIP/2.0\r\nCSeq: {}\r\n", self.draw(50), self.draw(9999));
        for _ in 0..self.draw(12) {
            let header = ["Via: SIP/2.0/TCP host", "Contact: <sip:user", "Route: <sip:proxy", "Allow: INVITE, BYE;"];
            text += &format!("{}{};tag={:x}\r\n", header[self.draw(4)], self.draw(20), self.draw(1 << 30));
        }
        text.into_bytes()
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.draw(256) as u8).collect()
    }
}
