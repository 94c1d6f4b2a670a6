//! Dictionaries from the first sample to their use, in virtual time, on flows without history:
//! because the carrier loses frames, or by configuration. Also the cost of a dictionary of other
//! data.

mod message_world;

use std::sync::Arc;

use message_world::{DATAGRAMS, Random, STREAM, UNITS};
use narrows::codec::DictionaryContexts;
use narrows::message::{
    Came, Carrier, Contexts, Delivery, Dictionary, MessageConfig, MessageEnd, MessageSender, Training,
};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Two ends of a link with the policy for messages, and counters of the first end.
struct Link {
    ends: [MessageEnd; 2],
    contexts: Contexts,
    now_ns: u64,
    carrier: Carrier,
    random: Random,
    /// Percentage of units that a lossy carrier loses.
    loss: usize,
    with_dictionary: usize,
    wire_len: usize,
    raw_len: usize,
    got: usize,
}

impl Link {
    fn new(carrier: Carrier, history: usize, known: Option<&Arc<Dictionary>>) -> Self {
        let end = |epoch| {
            let known = known.cloned().into_iter().collect();
            let config = MessageConfig { carrier, history, epoch, known, ..MessageConfig::default() };
            let setup = PolicySetup::new(1, Prior::shipped());
            MessageEnd::new(config, PolicySpec::messages().build(&setup)).unwrap()
        };
        let mut link = Self {
            ends: [end(1), end(2)],
            contexts: Contexts::default(),
            now_ns: 0,
            carrier,
            random: Random(77),
            loss: 0,
            with_dictionary: 0,
            wire_len: 0,
            raw_len: 0,
            got: 0,
        };
        if let Some(known) = known {
            assert!(link.ends[0].sender_mut().offer(Arc::clone(known), true));
        }
        link
    }

    fn arrives(&mut self) -> bool {
        self.carrier.delivery == Delivery::Ordered || self.random.draw(100) >= self.loss
    }

    /// Delivers a unit to an end, unless it is lost, and checks that the message is the one sent.
    fn deliver(&mut self, at: usize, unit: &[u8], message: &[u8]) {
        if !self.arrives() {
            return;
        }
        let mut rest = unit;
        while !rest.is_empty() {
            let received = self.ends[at].receive(rest, &mut self.contexts).unwrap();
            if let Came::Message(came) = received.came {
                assert!(came == message);
                self.got += at;
            }
            rest = &rest[received.consumed..];
        }
    }

    /// Sends a message over a link of 10 Mbit/s, and a short answer back, which also carries
    /// control frames about dictionaries.
    fn ping(&mut self, message: &[u8]) {
        let mut unit = Vec::new();
        let sent = self.ends[0].send(message, self.now_ns, &mut self.contexts, &mut unit).unwrap();
        self.ends[0].took_to_encode(3000);
        self.with_dictionary += usize::from(sent.slot > 0);
        (self.raw_len, self.wire_len) = (self.raw_len + message.len(), self.wire_len + unit.len());
        self.deliver(1, &unit, message);
        let span_ns = 30_000 + 800 * unit.len() as u64;
        self.now_ns += 20 * MS;
        let mut back = Vec::new();
        self.ends[1].send(b"ok", self.now_ns, &mut self.contexts, &mut back).unwrap();
        self.deliver(0, &back, b"ok");
        self.ends[0].answered(sent.seq, unit.len(), span_ns);
    }

    /// Trains as the driver does, but in this thread.
    fn train(&mut self) -> bool {
        let training = self.ends[0].training(self.now_ns);
        training.is_some_and(|t| self.ends[0].trained(t.run()))
    }
}

fn json(i: u64) -> Vec<u8> {
    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let name = |n: u64| ["alarm", "basket", "cellar", "domain", "engine", "filter", "garden"][(n % 7) as usize];
    format!(
        "{{\"time\":{},\"service\":\"{}\",\"span\":\"{key:016x}\",\"took_ms\":{},\"status\":{},\"path\":\"/v2/{}/{}\",\"peer\":\"10.0.{}.{}\"}}",
        1_700_000_000 + i * 13,
        name(key),
        key % 900,
        [200, 201, 404][(key >> 8) as usize % 3],
        name(key >> 16),
        key >> 50,
        (key >> 24) & 255,
        (key >> 32) & 255
    )
    .into_bytes()
}

fn sip(random: &mut Random) -> Vec<u8> {
    let mut message = random.message();
    while message.len() < 300 {
        message.extend(random.message());
    }
    message
}

/// Carriers on which a flow has no history.
const WITHOUT_HISTORY: [(Carrier, usize); 4] = [(DATAGRAMS, 16 << 10), (DATAGRAMS, 0), (STREAM, 0), (UNITS, 0)];

#[test]
fn a_dictionary_is_sampled_trained_offered_confirmed_and_used() {
    for (carrier, history) in WITHOUT_HISTORY {
        for loss in [0, 20] {
            let mut link = Link::new(carrier, history, None);
            link.loss = loss;
            link.ends[0].sample();
            let mut adopted = None;
            for i in 0..3000 {
                link.ping(&json(i));
                if link.train() {
                    adopted.get_or_insert(i);
                }
                assert!(adopted.is_some() || link.with_dictionary == 0);
            }
            let adopted = adopted.expect("such messages have much in common");
            assert!(adopted < 300, "{adopted}");
            let used = link.with_dictionary as u64;
            assert!(used * 10 > (3000 - adopted) * 8, "{carrier:?}, loss {loss}: {used} after {adopted}");
            let mut plain = Link::new(carrier, history, None);
            (0..3000).for_each(|i| plain.ping(&json(i)));
            // The bytes of the offer are included.
            assert!(
                link.wire_len * 10 < plain.wire_len * 8,
                "{carrier:?}, loss {loss}: {} {}",
                link.wire_len,
                plain.wire_len
            );
            assert!(loss > 0 || link.got == 3000);
            assert!(link.got > 2000);
        }
    }
}

#[test]
fn a_dictionary_that_became_stale_is_replaced_and_the_new_one_used() {
    for (carrier, history) in WITHOUT_HISTORY {
        let mut link = Link::new(carrier, history, None);
        link.ends[0].sample();
        let (mut adoptions, mut random) = (0, Random(3));
        for i in 0..2000 {
            link.ping(&json(i));
            adoptions += usize::from(link.train());
        }
        let first = link.ends[0].sender().dictionary().map(|d| d.digest());
        assert!(first.is_some() && adoptions == 1, "{adoptions}");
        link.now_ns += 100 * SECOND;
        for _ in 0..9000 {
            link.ping(&sip(&mut random));
            adoptions += usize::from(link.train());
        }
        let second = link.ends[0].sender().dictionary().map(|d| d.digest());
        assert!(adoptions >= 2 && second != first, "{carrier:?}: {adoptions}");
        let with_before = link.with_dictionary;
        (0..500).for_each(|_| link.ping(&sip(&mut random)));
        assert!(link.with_dictionary - with_before > 400, "{}", link.with_dictionary - with_before);
    }
}

/// Bytes of a thousand messages on `link`, relative to those on a flow that never had a dictionary.
fn cost(mut link: Link, history: usize, messages: &[Vec<u8>]) -> f64 {
    let mut plain = Link::new(link.carrier, history, None);
    let before = link.wire_len;
    for message in messages {
        link.ping(message);
        plain.ping(message);
    }
    assert!(link.ends[0].sender().dictionary().is_some(), "the peer has it");
    (link.wire_len - before) as f64 / plain.wire_len as f64
}

#[test]
fn a_wrong_dictionary_costs_at_most_two_per_cent_over_a_thousand_messages() {
    let mut random = Random(5);
    let of_sip =
        Training::of(&(0..400).map(|_| sip(&mut random)).collect::<Vec<_>>(), 1 << 40).run().unwrap().dictionary;
    let of_json = Training::of(&(0..400).map(json).collect::<Vec<_>>(), 1 << 40).run().unwrap().dictionary;
    let of_noise = message_world::dictionary(random.bytes(16 << 10));
    let jsons: Vec<_> = (5000..6000).map(json).collect();
    let sips: Vec<_> = (0..1000).map(|_| sip(&mut random)).collect();
    let noise: Vec<_> = (0..1000).map(|_| random.bytes(200)).collect();
    for (carrier, history) in WITHOUT_HISTORY.into_iter().chain([(STREAM, 16 << 10), (UNITS, 16 << 10)]) {
        for (name, dictionary, messages) in [
            ("sip for json", &of_sip, &jsons),
            ("json for sip", &of_json, &sips),
            ("noise for json", &of_noise, &jsons),
            ("noise for sip", &of_noise, &sips),
            ("json for noise", &of_json, &noise),
        ] {
            let cost = cost(Link::new(carrier, history, Some(dictionary)), history, messages);
            assert!(cost <= 1.02, "{carrier:?} {history} {name}: {cost}");
        }
    }
    // A dictionary of the same kind gains; otherwise the test would prove nothing.
    for (carrier, history) in WITHOUT_HISTORY {
        assert!(cost(Link::new(carrier, history, Some(&of_json)), history, &jsons) < 0.75);
        assert!(cost(Link::new(carrier, history, Some(&of_sip)), history, &sips) < 0.75);
    }
}

#[test]
fn a_stale_dictionary_costs_at_most_two_per_cent_over_a_thousand_messages() {
    for (carrier, history) in WITHOUT_HISTORY {
        for seed in 0..3 {
            let mut random = Random(seed);
            let mut link = Link::new(carrier, history, None);
            link.ends[0].sample();
            for i in 0..1500 {
                link.ping(&json(i + seed * 10_000));
                link.train();
            }
            assert!(link.with_dictionary > 500);
            // The flow changes to another kind of messages without training.
            let messages: Vec<_> = (0..1000).map(|_| sip(&mut random)).collect();
            let cost = cost(link, history, &messages);
            assert!(cost <= 1.02, "{carrier:?} {history}: {cost}");
        }
    }
}

/// Once the peer has confirmed the seed, each of the first messages is as short as the shorter of
/// two encodings: with history, and with the seed as a dictionary.
#[test]
fn a_seeded_flow_begins_with_the_better_of_history_and_dictionary() {
    let mut random = Random(8);
    let of_sip =
        Training::of(&(0..400).map(|_| sip(&mut random)).collect::<Vec<_>>(), 1 << 40).run().unwrap().dictionary;
    let seeded = |epoch| MessageConfig {
        carrier: UNITS,
        epoch,
        seed: Some(Arc::clone(&of_sip)),
        known: vec![Arc::clone(&of_sip)],
        ..MessageConfig::default()
    };
    let mut link = Link::new(UNITS, 16 << 10, None);
    let setup = PolicySetup::new(1, Prior::shipped());
    link.ends = [1, 2].map(|epoch| MessageEnd::new(seeded(epoch), PolicySpec::messages().build(&setup)).unwrap());
    let mut linked = MessageSender::new(seeded(3), message_world::fixed("lz4:link")).unwrap();
    let mut codecs = DictionaryContexts::default();
    let (mut by_history, mut by_dictionary) = (0, 0);
    for i in 0..10 {
        // Every third message repeats an earlier one.
        let message = if i % 3 == 2 { b"again: ".repeat(20) } else { sip(&mut random) };
        let mut unit = Vec::new();
        let of_history = linked.encode(&message, link.now_ns, &mut link.contexts, &mut unit).unwrap().wire_len;
        let of_dictionary = codecs.encode_zstd(Some(&of_sip), 1, &message).unwrap().len() + 5;
        unit.clear();
        let sent = link.ends[0].send(&message, link.now_ns, &mut link.contexts, &mut unit).unwrap();
        link.deliver(1, &unit, &message);
        let mut back = Vec::new();
        while link.ends[1].next_unit(link.now_ns, &mut link.contexts, &mut back) {
            link.deliver(0, &std::mem::take(&mut back), b"");
        }
        let expected = if i == 0 { of_history } else { of_history.min(of_dictionary) };
        assert_eq!(sent.wire_len, expected, "message {i}: {of_history} and {of_dictionary}");
        by_history += usize::from(sent.linked);
        by_dictionary += usize::from(sent.slot > 0);
    }
    assert_eq!(link.got, 10);
    assert!(by_history >= 3 && by_dictionary >= 4, "{by_history} and {by_dictionary}");
}
