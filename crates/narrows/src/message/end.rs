//! One end of a message link with both its flows. Acknowledgements of one flow travel with the
//! frames of the other.

use super::{
    Adoption, Contexts, DICTIONARY_MIN, Delivery, Event, Heard, Lost, MessageConfig, MessageReceiver, MessageSender,
    Sampler, Sent, Training,
};
use crate::error::Result;
use crate::monitor::cost::Prior;
use crate::policy::{Policy, PolicySetup, PolicySpec};

/// The content at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Came<'a> {
    /// The beginning of a frame: more bytes are needed. Carriers with borders never have this.
    Incomplete,
    /// A decoded message.
    Message(&'a [u8]),
    /// A message that cannot be decoded was dropped; on an ordered carrier
    /// [`MessageEnd::next_unit`] requests it again.
    Undecodable(Lost),
    /// The peer lost messages that this end sent and cannot send again.
    Gap,
    /// A control frame that was handled.
    Nothing,
}

/// The result of reading one frame.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<'a> {
    /// Bytes consumed from the front of the input.
    pub consumed: usize,
    /// Their content.
    pub came: Came<'a>,
}

/// Totals of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Number of messages.
    pub messages: u64,
    /// Raw bytes.
    pub raw_len: u64,
    /// Wire bytes: message and control frames.
    pub wire_len: u64,
}

impl Traffic {
    /// Raw bytes / wire bytes; 1 if nothing was sent.
    pub fn ratio(&self) -> f64 {
        if self.wire_len == 0 { 1.0 } else { self.raw_len as f64 / self.wire_len as f64 }
    }
}

/// Both flows of one end of a message link.
///
/// After every [`MessageEnd::receive`], and before a [`MessageEnd::send`], call
/// [`MessageEnd::next_unit`] and send what it appends until it returns false.
pub struct MessageEnd {
    sender: MessageSender,
    receiver: MessageReceiver,
    sampler: Option<Sampler>,
    delivery: Delivery,
    borders: bool,
    /// This end's limits are below those that peers assume, so each new peer must be told.
    is_special: bool,
    /// A preface is due that tells the peer the limits.
    introduces: bool,
    sent: Traffic,
    received: Traffic,
}

impl MessageEnd {
    /// Both flows of a new link, with the policy `messages`, which adapts to data and carrier.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn adaptive(config: MessageConfig) -> Result<Self> {
        Self::new(config, PolicySpec::messages().build(&PolicySetup::new(1, Prior::shipped())))
    }

    /// Both flows of a new link.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn new(config: MessageConfig, policy: Box<dyn Policy>) -> Result<Self> {
        Ok(Self {
            delivery: config.carrier.delivery,
            borders: config.carrier.borders,
            is_special: config.duplex && !config.is_baseline(),
            introduces: config.duplex && !config.is_baseline(),
            receiver: MessageReceiver::new(config.clone())?,
            sender: MessageSender::new(config, policy)?,
            sampler: None,
            sent: Traffic::default(),
            received: Traffic::default(),
        })
    }

    /// From here on samples sent messages, for [`MessageEnd::training`].
    pub fn sample(&mut self) {
        self.sampler.get_or_insert_default();
    }

    /// Appends the frames that send `message` to `out`, after all frames that are due before it:
    /// on a carrier with borders one unit. An error changes nothing: a message that is too long
    /// ([`ErrorKind::Limit`](crate::ErrorKind::Limit)), or, on a carrier with borders, units that
    /// have to be sent first ([`ErrorKind::Misuse`](crate::ErrorKind::Misuse)).
    pub fn send(&mut self, message: &[u8], now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> Result<Sent> {
        self.accept(message)?;
        let start = out.len();
        self.before_message(now_ns, contexts, out);
        let sent = self.sender.encode(message, now_ns, contexts, out);
        let sent = self.count(sent, start, out)?;
        if let Some(sampler) = &mut self.sampler {
            sampler.see(message, contexts);
        }
        Ok(sent)
    }

    /// Like [`MessageEnd::send`], for a private message; see [`MessageSender::encode_private`].
    ///
    /// # Errors
    /// As for [`MessageEnd::send`].
    pub fn send_private(
        &mut self,
        message: &[u8],
        now_ns: u64,
        contexts: &mut Contexts,
        out: &mut Vec<u8>,
    ) -> Result<Sent> {
        self.accept(message)?;
        let start = out.len();
        self.before_message(now_ns, contexts, out);
        let sent = self.sender.encode_private(message, now_ns, contexts, out);
        self.count(sent, start, out)
    }

    /// Checks the message before any pending control frame is consumed.
    fn accept(&self, message: &[u8]) -> Result<()> {
        if self.borders { self.sender.accept(message) } else { self.sender.accept_len(message.len()) }
    }

    fn before_message(&mut self, now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) {
        self.words(out);
        // On carriers with borders these are separate units.
        while !self.borders && self.sender.send_again(now_ns, contexts, out).is_some() {}
    }

    fn count(&mut self, sent: Result<Sent>, start: usize, out: &[u8]) -> Result<Sent> {
        // Control frames count even if no message follows.
        self.sent.wire_len += (out.len() - start) as u64;
        let sent = sent?;
        self.sent.messages += 1;
        self.sent.raw_len += sent.raw_len as u64;
        Ok(sent)
    }

    /// Appends frames that are due without a message of the application: control frames, and
    /// messages that the peer lost. On a carrier with borders one unit. Call again until it returns
    /// false.
    pub fn next_unit(&mut self, now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        self.words(out);
        self.sender.send_again(now_ns, contexts, out);
        self.sent.wire_len += (out.len() - start) as u64;
        out.len() > start
    }

    /// Appends control frames for the peer. Limits come first: messages that the peer sends again
    /// must respect them.
    fn words(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.introduces) {
            self.sender.control(out);
        }
        // Readers of a topic answer nothing.
        if self.delivery != Delivery::Fanout {
            self.receiver.answer(out);
        }
    }

    /// Reads one frame from the front of `input`: on a carrier with borders the rest of a unit,
    /// otherwise all bytes received and not consumed yet. Call again while input is left. An error
    /// leaves the end unchanged, but on a carrier without borders nothing after it can be read.
    ///
    /// # Errors
    /// `Corrupt`, `Truncated`, `Limit` or `Unsupported`.
    pub fn receive<'a>(&mut self, input: &'a [u8], contexts: &'a mut Contexts) -> Result<Received<'a>> {
        let step = self.receiver.receive(input, contexts)?;
        let consumed = step.consumed;
        let came = match step.event {
            Event::Incomplete => Came::Incomplete,
            Event::Message(message) => {
                self.received.messages += 1;
                self.received.raw_len += message.len() as u64;
                Came::Message(message)
            }
            Event::Undecodable(lost) => Came::Undecodable(lost),
            Event::Control(control) => match self.sender.hear(&control)? {
                Heard::Gap => Came::Gap,
                Heard::Nothing | Heard::SendAgain(_) => Came::Nothing,
            },
            Event::Nothing => Came::Nothing,
        };
        self.received.wire_len += consumed as u64;
        Ok(Received { consumed, came })
    }

    /// Reports the encoding time of the last message sent. Not every message need be timed.
    pub fn took_to_encode(&mut self, encode_ns: u64) {
        self.sender.took(encode_ns);
    }

    /// Reports the decoding time of the last message received; the peer is told at intervals.
    pub fn took_to_decode(&mut self, decode_ns: u64) {
        self.receiver.took(decode_ns);
    }

    /// The peer answered message `seq`; see [`MessageSender::answered`].
    pub fn answered(&mut self, seq: u64, wire_len: usize, span_ns: u64) {
        self.sender.answered(seq, wire_len, span_ns);
    }

    /// The carrier reconnected; see [`MessageSender::reconnect`]. Pending control frames about the
    /// old flow are dropped. `epoch` must be new, and differ from the peer's.
    pub fn reconnect(&mut self, epoch: u64) {
        self.receiver.reconnect(epoch);
        self.sender.reconnect(epoch);
        self.introduces = self.is_special;
    }

    /// When [`MessageEnd::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.sender.next_wakeup_ns()
    }

    /// Frees the history if the flow is idle.
    pub fn on_time(&mut self, now_ns: u64) {
        self.sender.on_time(now_ns);
    }

    /// A training that is due; run it on a separate thread and pass its result to
    /// [`MessageEnd::trained`].
    pub fn training(&mut self, now_ns: u64) -> Option<Training> {
        let len_max = self.sender.dictionary_max();
        if len_max < DICTIONARY_MIN {
            return None;
        }
        self.sampler.as_mut()?.training(now_ns).map(|t| t.at_most(len_max))
    }

    /// Offers the dictionary to the peer if it pays. Returns whether it was offered.
    pub fn trained(&mut self, adoption: Option<Adoption>) -> bool {
        let Some(sampler) = &mut self.sampler else { return false };
        let Some(dictionary) = sampler.trained(adoption) else { return false };
        let offered = self.sender.offer(dictionary, false);
        if !offered {
            sampler.forget();
        }
        offered
    }

    /// The sending end of the flow to the peer.
    #[doc(hidden)]
    pub fn sender(&self) -> &MessageSender {
        &self.sender
    }

    /// The sending end of the flow to the peer.
    #[doc(hidden)]
    pub fn sender_mut(&mut self) -> &mut MessageSender {
        &mut self.sender
    }

    /// The receiving end of the flow from the peer.
    #[doc(hidden)]
    pub fn receiver(&self) -> &MessageReceiver {
        &self.receiver
    }

    /// Totals of what was sent.
    pub fn sent(&self) -> Traffic {
        self.sent
    }

    /// Totals of what was received.
    pub fn received(&self) -> Traffic {
        self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Carrier, MESSAGE_MAX};
    use crate::monitor::cost::Prior;
    use crate::policy::{PolicySetup, PolicySpec};

    struct World {
        ends: [MessageEnd; 2],
        contexts: Contexts,
        now_ns: u64,
    }

    impl World {
        fn new(borders: bool, change: impl Fn(usize, &mut MessageConfig)) -> Self {
            let end = |i: usize| {
                let carrier = Carrier { delivery: Delivery::Ordered, borders };
                let mut config = MessageConfig { carrier, epoch: i as u64 + 1, ..MessageConfig::default() };
                change(i, &mut config);
                let setup = PolicySetup::new(1, Prior::shipped());
                MessageEnd::new(config, PolicySpec::messages().build(&setup)).unwrap()
            };
            Self { ends: [end(0), end(1)], contexts: Contexts::default(), now_ns: 0 }
        }

        fn send(&mut self, from: usize, message: &[u8]) -> Vec<u8> {
            self.now_ns += 1_000_000;
            let mut unit = Vec::new();
            self.ends[from].send(message, self.now_ns, &mut self.contexts, &mut unit).unwrap();
            unit
        }

        fn receive(&mut self, at: usize, unit: &[u8]) -> Vec<Vec<u8>> {
            let (mut rest, mut messages) = (unit, Vec::new());
            while !rest.is_empty() {
                let received = self.ends[at].receive(rest, &mut self.contexts).unwrap();
                if let Came::Message(message) = received.came {
                    messages.push(message.to_vec());
                }
                rest = &rest[received.consumed..];
            }
            messages
        }

        fn rest(&mut self, from: usize) -> Vec<Vec<u8>> {
            let mut units = vec![Vec::new()];
            while self.ends[from].next_unit(self.now_ns, &mut self.contexts, units.last_mut().unwrap()) {
                units.push(Vec::new());
                assert!(units.len() < 40, "it never has said all");
            }
            units.pop();
            units
        }
    }

    fn message(i: usize) -> Vec<u8> {
        format!("SUBSCRIBE sip:u{}@example.net SIP/2.0\r\nCSeq: {i} SUBSCRIBE\r\nExpires: 3600", i * 7919 % 100)
            .into_bytes()
    }

    /// Messages go both ways and arrive unchanged; an end with nothing to say is silent.
    #[test]
    fn both_flows_share_the_link() {
        for borders in [false, true] {
            let mut world = World::new(borders, |_, _| {});
            assert!(world.rest(0).is_empty() && world.rest(1).is_empty(), "nothing to say before the first message");
            let mut words = 0;
            for i in 0..300 {
                let unit = world.send(i % 2, &message(i));
                assert_eq!(world.receive((i + 1) % 2, &unit), [message(i)]);
                for unit in world.rest((i + 1) % 2) {
                    words += 1;
                    assert!(world.receive(i % 2, &unit).is_empty());
                }
            }
            let (sent, received) = (world.ends[0].sent(), world.ends[1].received());
            assert_eq!(sent, received);
            assert_eq!(sent.messages, 150);
            assert!(sent.ratio() > 2.0, "{}", sent.ratio());
            // Acknowledgements that were not sent with a message.
            assert!(words <= 4, "{words}");
        }
    }

    /// Messages dropped as damaged are sent again, in order, before the next one.
    #[test]
    fn what_was_damaged_comes_again() {
        for borders in [false, true] {
            let mut world = World::new(borders, |_, _| {});
            for i in 0..10 {
                let unit = world.send(0, &message(i));
                world.receive(1, &unit);
                let unit = world.send(1, &message(i + 50));
                world.receive(0, &unit);
            }
            let mut unit = world.send(0, &message(10));
            *unit.last_mut().unwrap() ^= 1;
            assert_eq!(world.receive(1, &unit), Vec::<Vec<u8>>::new());
            let answers = world.rest(1);
            assert_eq!(answers.len(), 1);
            world.receive(0, &answers[0]);
            let mut came = Vec::new();
            if borders {
                let refused = world.ends[0].send(b"", world.now_ns, &mut world.contexts, &mut Vec::new());
                assert_eq!(refused.unwrap_err().kind, crate::ErrorKind::Misuse);
                for unit in world.rest(0) {
                    came.extend(world.receive(1, &unit));
                }
            }
            let unit = world.send(0, &message(11));
            came.extend(world.receive(1, &unit));
            assert_eq!(came, [message(10), message(11)]);
        }
    }

    /// A reader with limits below those that peers assume announces them in time, even if its
    /// application sends nothing.
    #[test]
    fn small_limits_are_told_unasked() {
        let mut world = World::new(true, |i, c| {
            if i == 1 {
                (c.history, c.message_max) = (2048, 300);
            }
        });
        let unit = world.send(0, &message(0));
        assert_eq!(world.receive(1, &unit), [message(0)]);
        let words = world.rest(1);
        assert_eq!(words.len(), 1);
        world.receive(0, &words[0]);
        let refused = world.ends[0].send(&[0; 301], world.now_ns, &mut world.contexts, &mut Vec::new());
        assert_eq!(refused.unwrap_err().kind, crate::ErrorKind::Limit);
        let mut words = 0;
        for i in 1..200 {
            let unit = world.send(0, &message(i));
            assert_eq!(world.receive(1, &unit), [message(i)]);
            words += world.rest(1).len();
        }
        assert_eq!(words, 3, "acknowledgements only");
    }

    #[test]
    fn one_above_the_maximum_is_refused_and_the_flow_goes_on() {
        let mut world = World::new(false, |_, _| {});
        for len in [0, 1, MESSAGE_MAX] {
            let message = vec![b'x'; len];
            let unit = world.send(0, &message);
            assert_eq!(world.receive(1, &unit), [message]);
        }
        let mut out = Vec::new();
        let refused = world.ends[0].send(&[0; MESSAGE_MAX + 1], 0, &mut world.contexts, &mut out);
        assert_eq!(refused.unwrap_err().kind, crate::ErrorKind::Limit);
        let unit = world.send(0, &message(3));
        assert_eq!(world.receive(1, &unit), [message(3)]);
    }

    /// An encoded message that is too long for a reader whose limits came too late is lost and
    /// reported, and the flow goes on.
    #[test]
    fn what_is_too_long_for_the_reader_is_not_sent_for_ever() {
        for borders in [false, true] {
            let mut world = World::new(borders, |i, c| {
                if i == 1 {
                    c.message_max = 300;
                }
            });
            let unit = world.send(0, &[b'x'; 400]);
            assert_eq!(world.receive(1, &unit), Vec::<Vec<u8>>::new());
            let mut rounds = 0;
            loop {
                let (there, back) = (world.rest(0), world.rest(1));
                if there.is_empty() && back.is_empty() {
                    break;
                }
                there.iter().for_each(|unit| assert!(world.receive(1, unit).is_empty()));
                back.iter().for_each(|unit| assert!(world.receive(0, unit).is_empty()));
                rounds += 1;
                assert!(rounds < 6, "they talk for ever");
            }
            let unit = world.send(0, &message(1));
            assert_eq!(world.receive(1, &unit), [message(1)]);
        }
    }

    #[test]
    fn a_refused_message_takes_nothing_from_what_the_peer_has_to_hear() {
        for borders in [false, true] {
            let mut world = World::new(borders, |_, _| {});
            for i in 0..3 {
                let unit = world.send(0, &message(i));
                world.receive(1, &unit);
            }
            let mut unit = world.send(0, &message(3));
            *unit.last_mut().unwrap() ^= 1;
            world.receive(1, &unit);
            let mut out = Vec::new();
            assert!(world.ends[1].send(&[0; MESSAGE_MAX + 1], 0, &mut world.contexts, &mut out).is_err());
            assert!(out.is_empty());
            let words = world.rest(1);
            assert_eq!(words.len(), 1);
            world.receive(0, &words[0]);
            assert!(world.ends[0].send(&[0; MESSAGE_MAX + 1], 0, &mut world.contexts, &mut out).is_err());
            assert!(out.is_empty());
            let again: Vec<_> = world.rest(0).iter().flat_map(|unit| world.receive(1, unit)).collect();
            assert_eq!(again, [message(3)]);
        }
    }

    /// Messages before the first linked one do not keep the seed out of the table, although
    /// otherwise only the end of the history would be indexed.
    #[test]
    fn a_seed_serves_also_behind_a_greeting() {
        let mut draw = 1u32;
        let mut random = |_| {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (draw >> 24) as u8
        };
        let seed: Vec<u8> = (0..8000).map(&mut random).collect();
        let wanted = seed[1000..1600].to_vec();
        let seed = std::sync::Arc::new(crate::message::Dictionary::new(seed).unwrap());
        let len = |greets: bool| {
            let config = MessageConfig { seed: Some(seed.clone()), epoch: 1, ..MessageConfig::default() };
            let fixed = "fixed:lz4:link".parse::<PolicySpec>().unwrap().build(&PolicySetup::new(1, Prior::shipped()));
            let mut end = MessageEnd::new(config, fixed).unwrap();
            let mut contexts = Contexts::default();
            if greets {
                end.send(b"", 0, &mut contexts, &mut Vec::new()).unwrap();
            }
            end.send(&wanted, 1, &mut contexts, &mut Vec::new()).unwrap().wire_len
        };
        assert!(len(true) < 20 && len(false) < 20, "{} {}", len(true), len(false));
    }

    /// The first message over a new connection carries all that the peer needs to begin again.
    #[test]
    fn a_new_connection_begins_anew() {
        let mut world = World::new(true, |_, _| {});
        for i in 0..5 {
            let unit = world.send(0, &message(i));
            world.receive(1, &unit);
        }
        let lost = world.send(0, &message(5));
        assert!(!lost.is_empty());
        world.ends[0].reconnect(77);
        let unit = world.send(0, &message(6));
        assert_eq!(world.receive(1, &unit), [message(6)]);
    }

    /// The peer of every connection gets limits and dictionaries.
    #[test]
    fn the_tenth_connection_is_like_the_first() {
        let mut world = World::new(true, |i, c| {
            if i == 1 {
                (c.history, c.message_max) = (1024, 300);
            }
        });
        let content: Vec<u8> = (0..50).flat_map(message).collect();
        let dictionary = std::sync::Arc::new(crate::message::Dictionary::new(content).unwrap());
        for connection in 0..20 {
            if connection > 0 {
                world.ends[0].reconnect(100 + connection);
                world.ends[1].reconnect(200 + connection);
            }
            world.ends[0].sender_mut().offer(dictionary.clone(), false);
            for i in 0..100 {
                let unit = world.send(0, &message(i));
                assert_eq!(world.receive(1, &unit), [message(i)], "message {i} of connection {connection}");
                for unit in world.rest(1) {
                    world.receive(0, &unit);
                }
            }
            assert!(world.ends[0].sender().dictionary().is_some(), "connection {connection}");
            let refused = world.ends[0].send(&[0; 301], world.now_ns, &mut world.contexts, &mut Vec::new());
            assert_eq!(refused.unwrap_err().kind, crate::ErrorKind::Limit);
        }
    }

    #[test]
    fn an_end_is_to_be_woken_when_its_history_is_of_no_use_and_not_before() {
        let mut world = World::new(true, |_, _| ());
        let units = [b"a message", b"another b"].map(|message| world.send(0, message));
        units.iter().for_each(|unit| drop(world.receive(1, unit)));
        let at = world.ends[0].next_wakeup_ns().unwrap();
        assert!(at > world.now_ns, "{at}");
        world.ends[0].on_time(at);
        assert_eq!(world.ends[0].next_wakeup_ns(), None);
    }
}
