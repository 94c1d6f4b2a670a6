//! Topics in virtual time: writers that announce, readers that join at any time, a lossy carrier,
//! and forgers.

mod message_world;

use std::sync::Arc;

use message_world::{Random, dictionary, fixed};
use narrows::message::{
    Adoption, Carrier, Contexts, Delivery, Dictionary, MessageConfig, MessageSender, Missed, TopicReader, TopicWriter,
    Training,
};
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup, PolicySpec};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn messages_policy() -> Box<dyn Policy> {
    PolicySpec::messages().build(&PolicySetup::new(1, Prior::shipped()))
}

fn config(epoch: u64) -> MessageConfig {
    MessageConfig { epoch, ..MessageConfig::default() }
}

fn writer(epoch: u64) -> TopicWriter {
    TopicWriter::new(config(epoch), messages_policy()).unwrap()
}

/// Message number `i`: all are of one kind, about 150 bytes long, and different.
fn message(i: u64) -> Vec<u8> {
    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        "{{\"topic\": \"plant/hall-{}/press-{}\", \"pressure\": {}.{:03}, \"unit\": \"bar\", \"sequence\": {i}, \"trace\": \"{key:016x}\", \
         \"quality\": \"good\"}}",
        i % 3,
        i % 17,
        key % 40,
        (key >> 20) % 1000
    )
    .into_bytes()
}

/// A dictionary trained on such messages.
fn trained() -> Arc<Dictionary> {
    Training::of(&(0..400).map(message).collect::<Vec<_>>(), 1 << 40).run().unwrap().dictionary
}

struct Reader {
    reader: TopicReader,
    contexts: Contexts,
    got: Vec<Vec<u8>>,
}

impl Reader {
    fn new() -> Self {
        Self::of(MessageConfig::default())
    }

    fn of(config: MessageConfig) -> Self {
        Self { reader: TopicReader::new(config).unwrap(), contexts: Contexts::default(), got: Vec::new() }
    }

    fn receive(&mut self, unit: &[u8], now_ns: u64) -> bool {
        let Self { reader, contexts, got } = self;
        reader.receive(unit, now_ns, contexts, |m| got.push(m.to_vec())).is_ok()
    }

    fn on_time(&mut self, now_ns: u64) {
        let Self { reader, contexts, got } = self;
        reader.on_time(now_ns, contexts, |m| got.push(m.to_vec()));
    }
}

/// One writer, which sends a message every 10 ms.
struct Topic {
    writer: TopicWriter,
    contexts: Contexts,
    now_ns: u64,
    next: u64,
    /// Numbers of units that announce dictionaries, and of messages sent with a dictionary.
    announcements: usize,
    with_dictionary: usize,
}

impl Topic {
    fn new(writer: TopicWriter) -> Self {
        Self { writer, contexts: Contexts::default(), now_ns: 0, next: 0, announcements: 0, with_dictionary: 0 }
    }

    /// The units of the next message, and whether each is an announcement.
    fn step(&mut self) -> Vec<(Vec<u8>, bool)> {
        if let Some(training) = self.writer.training(self.now_ns) {
            self.writer.trained(training.run());
        }
        self.step_untrained()
    }

    fn step_untrained(&mut self) -> Vec<(Vec<u8>, bool)> {
        self.now_ns += 10 * MS;
        let (mut units, mut unit) = (Vec::new(), Vec::new());
        if self.writer.announcement(self.now_ns, &mut unit) {
            self.announcements += usize::from(unit.len() > 1000);
            units.push((std::mem::take(&mut unit), true));
        }
        let sent = self.writer.send(&message(self.next), self.now_ns, &mut self.contexts, &mut unit).unwrap();
        self.with_dictionary += usize::from(sent.slot > 0);
        self.next += 1;
        units.push((unit, false));
        units
    }

    fn run(&mut self, steps: usize, mut see: impl FnMut(&[u8], bool, u64)) {
        for _ in 0..steps {
            for (unit, is_announcement) in self.step() {
                see(&unit, is_announcement, self.now_ns);
            }
        }
    }
}

fn sent(from: u64, to: u64) -> Vec<Vec<u8>> {
    (from..to).map(message).collect()
}

#[test]
fn a_topic_trains_announces_and_uses_a_dictionary_from_the_second_time_on() {
    let mut topic = Topic::new(writer(1));
    topic.writer.sample();
    let mut reader = Reader::new();
    let mut used_before_second = 0;
    for _ in 0..6000 {
        for (unit, _) in topic.step() {
            assert!(reader.receive(&unit, topic.now_ns));
        }
        if topic.announcements < 2 {
            used_before_second = topic.with_dictionary;
        }
    }
    assert_eq!(used_before_second, 0);
    assert!((4..=8).contains(&topic.announcements), "{} in a minute", topic.announcements);
    assert!(topic.with_dictionary > 4000, "{}", topic.with_dictionary);
    assert!(reader.got == sent(0, 6000));
    assert_eq!((reader.reader.missed(), reader.reader.waiting()), (Missed::default(), 0));
    assert_eq!(reader.reader.received(), topic.writer.sent());
    assert!(topic.writer.sent().ratio() > 1.7, "announcements counted: {}", topic.writer.sent().ratio());
}

/// A topic whose dictionary is announced and in use.
fn settled(epoch: u64) -> Topic {
    let mut topic = Topic::new(writer(epoch));
    assert!(topic.writer.offer(trained()));
    topic.run(2500, |_, _, _| {});
    assert!(topic.with_dictionary > 300 && topic.writer.sender().dictionary().is_some());
    topic
}

#[test]
fn a_late_reader_waits_for_the_next_announcement_and_misses_nothing() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    let (from, mut waited) = (topic.next, 0);
    topic.run(1200, |unit, _, now_ns| {
        assert!(reader.receive(unit, now_ns));
        waited = waited.max(reader.reader.waiting());
    });
    assert!(waited > 100, "{waited}: it came in the middle");
    assert!(reader.got == sent(from, topic.next), "all, and in order");
    assert_eq!((reader.reader.missed(), reader.reader.waiting()), (Missed::default(), 0));
}

#[test]
fn a_reader_of_which_the_writer_hears_waits_a_second_at_most_and_many_share_it() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    let (from, before, start_ns) = (topic.next, topic.announcements, topic.now_ns);
    let mut caught_up_ns = None;
    for _ in 0..300 {
        // A reader joins every 10 ms for three seconds.
        topic.writer.reader_came();
        for (unit, _) in topic.step() {
            reader.receive(&unit, topic.now_ns);
        }
        if reader.reader.waiting() == 0 {
            caught_up_ns = caught_up_ns.or(Some(topic.now_ns));
        }
    }
    assert!(caught_up_ns.unwrap() - start_ns <= SECOND + 10 * MS);
    assert!(reader.got == sent(from, topic.next));
    assert!(topic.announcements - before <= 4, "{}", topic.announcements - before);
}

#[test]
fn announcements_that_are_lost_delay_and_drop_nothing_until_it_is_too_long() {
    let mut topic = settled(1);
    for lost in 0..4 {
        let mut reader = Reader::new();
        let (from, mut seen) = (topic.next, 0);
        topic.run(1000 * (lost + 1) + 100, |unit, is_announcement, now_ns| {
            seen += usize::from(is_announcement);
            if !is_announcement || seen > lost {
                reader.receive(unit, now_ns);
            }
        });
        let missed = reader.reader.missed();
        assert_eq!(reader.got.len() as u64 + missed.unannounced, topic.next - from, "every one is accounted for");
        assert_eq!((missed.damaged, reader.reader.waiting()), (0, 0));
        let mut all = sent(from, topic.next).into_iter();
        assert!(reader.got.iter().all(|m| all.any(|s| s == *m)), "in order");
        // Readers have room for ten seconds of messages; after three lost announcements they stop
        // waiting.
        assert_eq!(missed.unannounced == 0, lost == 0, "{lost}: {missed:?}");
    }
}

#[test]
fn a_slow_topic_may_lose_two_announcements_and_no_message() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    let (mut seen, mut got) = (0, Vec::new());
    topic.run(3000, |unit, is_announcement, now_ns| {
        seen += usize::from(is_announcement);
        // This reader gets one message of four.
        let number = now_ns / (10 * MS);
        if if is_announcement { seen > 2 } else { number.is_multiple_of(4) } {
            reader.receive(unit, now_ns);
            got.extend((!is_announcement).then(|| message(number - 1)));
        }
    });
    assert!(reader.got == got && got.len() == 750);
    assert_eq!(reader.reader.missed(), Missed::default());
}

#[test]
fn a_change_of_dictionaries_is_seamless_for_who_heard_it() {
    let mut topic = settled(1);
    let (mut reader, mut late) = (Reader::new(), Reader::new());
    let from = topic.next;
    let mut slots = Vec::new();
    for round in 0..6u8 {
        let other = (0..300).flat_map(|i| message(i * 1000 + u64::from(round))).collect::<Vec<_>>();
        assert!(topic.writer.offer(dictionary(other[..8000 + usize::from(round)].to_vec())));
        topic.run(2200, |unit, _, now_ns| {
            assert!(reader.receive(unit, now_ns));
            if round == 3 {
                assert!(late.receive(unit, now_ns));
            }
        });
        slots.push(topic.writer.sender().dictionary().unwrap().content().len());
    }
    assert_eq!(slots, [8000, 8001, 8002, 8003, 8004, 8005], "each came into use");
    assert!(reader.got == sent(from, topic.next));
    assert!(late.got == sent(from + 3 * 2200, from + 4 * 2200));
    for reader in [reader, late] {
        assert_eq!((reader.reader.missed(), reader.reader.waiting()), (Missed::default(), 0));
    }
}

#[test]
fn a_dictionary_that_does_not_pay_for_its_announcements_is_put_away() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    // From a hundred messages a second to one.
    let (from, mut wire_len) = (topic.next, 0);
    for _ in 0..300 {
        topic.now_ns += 990 * MS;
        for (unit, _) in topic.step() {
            wire_len += unit.len();
            reader.receive(&unit, topic.now_ns);
        }
    }
    assert!(topic.writer.sender().dictionary().is_none());
    let raw_len: usize = sent(from, topic.next).iter().map(Vec::len).sum();
    assert!(wire_len < raw_len + 30_000, "{wire_len} for {raw_len}: some announcements, then none");
    // And back to a hundred messages a second.
    topic.run(4000, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    assert!(topic.writer.sender().dictionary().is_some());
    assert!(reader.got == sent(from, topic.next));
}

#[test]
fn two_writers_on_one_topic_do_not_disturb_each_other() {
    // Each has its own dictionary, in the same slot.
    let mut topics = [settled(1), Topic::new(writer(2))];
    let other = (0..300).flat_map(|i| message(i * 77)).collect::<Vec<_>>();
    assert!(topics[1].writer.offer(dictionary(other[..6000].to_vec())));
    topics[1].run(2500, |_, _, _| {});
    assert!(topics[1].with_dictionary > 300);
    let mut reader = Reader::new();
    let mut expected = Vec::new();
    topics.iter_mut().for_each(|t| t.writer.reader_came());
    for i in 0..3000 {
        let topic = &mut topics[i % 2];
        expected.push(message(topic.next));
        for (unit, _) in topic.step() {
            assert!(reader.receive(&unit, topic.now_ns));
        }
    }
    assert!(reader.got == expected);
    assert_eq!((reader.reader.missed(), reader.reader.waiting()), (Missed::default(), 0));
}

#[test]
fn forged_offers_change_no_message() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    topic.run(1100, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    let from = topic.next - reader.got.len() as u64;
    // Forged as the writer itself, and as an unknown writer: another dictionary for the same slots.
    let mut random = Random(9);
    for epoch in [1, 1, 1, 77] {
        let mut forger = MessageSender::new(
            MessageConfig {
                carrier: Carrier { delivery: Delivery::Fanout, borders: true },
                duplex: false,
                ..config(epoch)
            },
            fixed("store"),
        )
        .unwrap();
        for len in [500, 900, 1300] {
            forger.offer(dictionary(random.bytes(len)), false);
            let mut unit = Vec::new();
            forger.announce(&mut unit).unwrap();
            assert!(reader.receive(&unit, topic.now_ns));
            // A unit damaged in transit, and controls that no reader of a topic should get.
            let at = unit.len() / 2;
            unit[at] ^= 1;
            assert!(!reader.receive(&unit, topic.now_ns));
            topic.run(20, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
        }
    }
    topic.run(1100, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    assert!(reader.got == sent(from, topic.next), "late, and none wrong");
    assert_eq!(reader.reader.missed(), Missed { unannounced: 0, damaged: 12 });
    // Writers that send only once take no room from an active one.
    for epoch in 100..400 {
        let mut unit = Vec::new();
        assert!(writer(epoch).announcement(topic.now_ns, &mut unit));
        assert!(reader.receive(&unit, topic.now_ns));
        topic.run(1, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    }
    assert!(reader.got == sent(from, topic.next) && reader.reader.waiting() == 0);
}

#[test]
fn floods_of_units_that_cannot_be_decoded_take_bounded_room_and_time() {
    let mut topic = settled(1);
    let mut reader = Reader::new();
    let mut flood = Vec::new();
    // Only messages with a dictionary: bits 3 and 4 name a slot.
    topic.run(900, |unit, _, _| flood.extend((unit[0] & 0xc0 < 0xc0 && unit[0] & 0x18 > 0).then(|| unit.to_vec())));
    let start_ns = topic.now_ns;
    for i in 0..20_000 {
        assert!(reader.receive(&flood[i % flood.len()], start_ns));
        assert!(reader.reader.waiting() <= 1024);
    }
    assert_eq!(reader.reader.missed().unannounced, 20_000 - 1024);
    // Long units are bounded by their bytes. The first byte says: zstd, slot 1, checked.
    let long = [&flood[0][..1], &vec![0x55; 60_000]].concat();
    (0..100).for_each(|_| assert!(reader.receive(&long, start_ns)));
    assert!(reader.reader.waiting() <= (1 << 20) / 60_000, "{}", reader.reader.waiting());
    assert!(!reader.receive(&vec![flood[0][0]; 70_000], start_ns), "longer than any message");
    // Messages whose dictionary is not announced are given up in time, and those after them
    // delivered.
    let mut unit = Vec::new();
    let mut plain = TopicWriter::new(config(5), fixed("store")).unwrap();
    plain.announcement(0, &mut unit);
    unit.clear();
    plain.send(b"as it is", 0, &mut Contexts::default(), &mut unit).unwrap();
    assert!(reader.receive(&unit, start_ns) && reader.got.is_empty(), "in order");
    let wakeup_ns = reader.reader.next_wakeup_ns().unwrap();
    assert_eq!(wakeup_ns, start_ns + 25 * SECOND);
    reader.on_time(wakeup_ns - 1);
    assert!(reader.got.is_empty());
    reader.on_time(wakeup_ns);
    assert!(reader.got == [b"as it is"] && reader.reader.waiting() == 0 && reader.reader.next_wakeup_ns().is_none());
    // After that, nothing waits until the next announcement.
    assert!(reader.receive(&flood[1], wakeup_ns) && reader.reader.waiting() == 0);
    topic.run(1100, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    assert!(reader.got.last() == Some(&message(topic.next - 1)));
}

#[test]
fn damage_is_told_and_never_another_message() {
    // Without check_all, stored messages have no check.
    let config = MessageConfig { check_all: true, ..config(1) };
    let mut topic = Topic::new(TopicWriter::new(config.clone(), messages_policy()).unwrap());
    assert!(topic.writer.offer(trained()));
    let mut reader = Reader::of(config);
    topic.run(2500, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    assert!(topic.with_dictionary > 300);
    let mut random = Random(4);
    let (mut harmless, from) = (0, reader.got.len());
    topic.run(400, |unit, is_announcement, now_ns| {
        let mut damaged = unit.to_vec();
        let at = random.draw(damaged.len());
        damaged[at] ^= 1 << random.draw(8);
        harmless += usize::from(!is_announcement && reader.receive(&damaged, now_ns));
        reader.receive(unit, now_ns);
    });
    // A damaged unit that seems to need a missing dictionary waits, and is given up.
    let later = topic.now_ns + 30 * SECOND;
    reader.on_time(later);
    let all = sent(0, topic.next);
    let wrong = reader.got[from..].iter().filter(|m| !all.contains(m)).count();
    assert_eq!(wrong, 0, "{harmless} were taken");
    assert!(reader.reader.missed().damaged + reader.reader.missed().unannounced > 0);
}

#[test]
fn a_topic_without_messages_is_silent() {
    let mut topic = settled(1);
    let mut wakeups = 0;
    while let Some(at) = topic.writer.next_wakeup_ns() {
        let mut unit = Vec::new();
        assert!(!topic.writer.announcement(at - 1, &mut unit) && unit.is_empty());
        assert!(topic.writer.announcement(at, &mut unit) && !unit.is_empty());
        wakeups += 1;
        assert!(wakeups < 10, "for ever");
    }
    assert_eq!(wakeups, 2);
    topic.writer.reader_came();
    assert!(topic.writer.next_wakeup_ns().is_some(), "but for new readers");
    assert_eq!(writer(3).next_wakeup_ns(), None);
}

#[test]
fn messages_of_all_lengths_pass_and_longer_ones_are_refused() {
    let (mut topic, mut reader) = (writer(1), Reader::new());
    let mut contexts = Contexts::default();
    for len in [0, 1, 65_535] {
        let mut unit = Vec::new();
        topic.send(&vec![7; len], 0, &mut contexts, &mut unit).unwrap();
        assert!(reader.receive(&unit, 0));
        assert_eq!(reader.got.pop().unwrap(), vec![7; len]);
    }
    assert!(topic.send(&vec![7; 65_536], 0, &mut contexts, &mut Vec::new()).is_err());
    assert!(reader.receive(b"", 0) && !reader.receive(b"\0", 0) && !reader.receive(b"\xff\xff\xff\xff", 0));
    assert_eq!(reader.reader.missed(), Missed { unannounced: 0, damaged: 2 });
    assert!(TopicReader::new(MessageConfig { message_max: 0, ..MessageConfig::default() }).is_err());
}

/// A topic with a writer that stores messages and has no dictionary.
fn plain(epoch: u64) -> Topic {
    Topic::new(TopicWriter::new(config(epoch), fixed("store")).unwrap())
}

#[test]
fn a_dictionary_beyond_the_readers_limits_delays_nobody() {
    assert!(trained().content().len() > 8 << 10);
    for limits in [
        MessageConfig { dictionary_max: 8 << 10, ..MessageConfig::default() },
        MessageConfig { slots: 0, ..MessageConfig::default() },
    ] {
        let (mut topic, mut other, mut reader) = (settled(1), plain(2), Reader::of(limits));
        other.now_ns = topic.now_ns;
        let (from, other_from, mut refused, mut heard_at) = (topic.next, other.next, 0, None);
        let mut late = Vec::new();
        for step in 0..6000 {
            for (unit, is_announcement) in topic.step() {
                assert!(reader.receive(&unit, topic.now_ns));
                refused += u64::from(!is_announcement && unit[0] & 0x18 > 0);
                heard_at = heard_at.or(is_announcement.then_some(step));
            }
            other.run(1, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
            late.extend((reader.reader.waiting() > 0).then_some(step));
        }
        // The reader joined in the middle: until the first announcement it may wait.
        assert!(late.last().is_none_or(|last| *last < heard_at.unwrap()), "{:?}, heard at {heard_at:?}", late.last());
        assert_eq!(reader.reader.missed(), Missed { unannounced: refused, damaged: 0 });
        assert!(refused > 5000);
        assert_eq!(reader.got.len() as u64, topic.next - from - refused + other.next - other_from);
    }
}

#[test]
fn what_nobody_announces_is_waited_for_once() {
    let (mut unheard, mut topic, mut reader) = (settled(1), settled(2), Reader::new());
    topic.run(1100, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
    // Its dictionary is different, but in the same slot.
    let other = (0..300).flat_map(|i| message(i * 77)).collect::<Vec<_>>();
    assert!(unheard.writer.offer(dictionary(other[..6000].to_vec())));
    unheard.run(2500, |_, _, _| {});
    let mut waited = 0;
    for _ in 0..20_000 {
        for (unit, is_announcement) in topic.step() {
            assert!(reader.receive(&unit, topic.now_ns));
            waited += usize::from(!is_announcement && reader.reader.waiting() > 0);
        }
        unheard.run(1, |unit, is_announcement, _| {
            if !is_announcement {
                reader.receive(unit, topic.now_ns);
            }
        });
    }
    assert!((2000..=2500).contains(&waited), "{waited} of 20,000: 25 s and no more");
    // A new announcement may be of the missing dictionary.
    unheard.writer.reader_came();
    unheard.run(1000, |unit, _, _| assert!(reader.receive(unit, topic.now_ns)));
    assert!(reader.got.last() == Some(&message(unheard.next - 1)));
}

#[test]
fn messages_beyond_the_readers_limit_are_told_at_once() {
    let (mut topic, mut other) = (settled(1), plain(2));
    let mut reader = Reader::of(MessageConfig { message_max: 100, ..MessageConfig::default() });
    topic.writer.reader_came();
    let (mut told, mut slots) = (0, 0);
    for i in 0..2000 {
        for (unit, is_announcement) in topic.step() {
            let is_read = reader.receive(&unit, topic.now_ns);
            let (has_slot, waits) = (unit[0] & 0x18 > 0, reader.reader.waiting() > 0);
            assert!(is_read == is_announcement || waits && has_slot && slots == 0);
            told += u64::from(!is_read);
            slots += u64::from(!is_read && has_slot);
        }
        let mut unit = Vec::new();
        other.writer.send(format!("short {i}").as_bytes(), 0, &mut other.contexts, &mut unit).unwrap();
        assert!(reader.receive(&unit, topic.now_ns));
    }
    assert!(slots > 1000, "{slots} of {told}");
    assert!(reader.got == (0..2000).map(|i| format!("short {i}").into_bytes()).collect::<Vec<_>>());
    assert_eq!((reader.reader.missed().unannounced, reader.reader.waiting()), (0, 0));
    assert!(reader.reader.missed().damaged >= told);
}

#[test]
fn thirty_two_writers_with_dictionaries_delay_nobody_and_plain_ones_take_no_place() {
    let all: Vec<u8> = (0..400).flat_map(message).collect();
    let fanout = Carrier { delivery: Delivery::Fanout, borders: true };
    let mut contexts = Contexts::default();
    let mut reader = Reader::new();
    let mut writers: Vec<_> = (0..32)
        .map(|i| {
            let config = MessageConfig { carrier: fanout, duplex: false, ..config(i) };
            let mut writer = MessageSender::new(config, fixed("zstd:level=1")).unwrap();
            let from = i as usize * 1000;
            assert!(writer.offer(dictionary(all[from..from + 2000].to_vec()), false));
            writer
        })
        .collect();
    let mut expected = Vec::new();
    for round in 0..5 {
        for writer in &mut writers {
            let mut unit = Vec::new();
            writer.announce(&mut unit).unwrap();
            assert!(reader.receive(&unit, round));
        }
        for epoch in 100..150 {
            plain(epoch).run(1, |unit, _, _| {
                reader.receive(unit, round);
            });
            expected.push(message(0));
        }
        for i in 0..64 {
            let mut unit = Vec::new();
            let message = message(500 + round * 100 + i);
            let sent = writers[i as usize % 32].encode(&message, round, &mut contexts, &mut unit).unwrap();
            assert_eq!(sent.slot > 0, round > 0);
            assert!(reader.receive(&unit, round));
            expected.push(message);
        }
        assert_eq!(reader.reader.waiting(), 0, "round {round}");
    }
    assert!(reader.got == expected);
}

/// At five messages a second a short dictionary pays, and a longer one does not.
#[test]
fn a_longer_dictionary_that_does_not_pay_leaves_the_older_one_in_use() {
    let mut topic = Topic::new(writer(1));
    let mut reader = Reader::new();
    let mut run = |topic: &mut Topic, steps: usize, ms: u64| {
        for _ in 0..steps {
            topic.now_ns += (ms - 10) * MS;
            topic.run(1, |unit, _, now_ns| assert!(reader.receive(unit, now_ns)));
        }
        assert_eq!((reader.reader.missed(), reader.reader.waiting()), (Missed::default(), 0));
        topic.writer.sender().dictionary().map_or(0, |d| d.content().len())
    };
    let short = (0..10).flat_map(message).collect::<Vec<_>>();
    assert!(topic.writer.offer(dictionary(short[..1200].to_vec())));
    assert_eq!(run(&mut topic, 300, 200), 1200);
    let longer = trained();
    assert!(topic.writer.offer(Arc::clone(&longer)));
    assert_eq!(run(&mut topic, 300, 200), 1200);
    // The longer one comes into use when it pays, and goes out of use when it does not.
    assert_eq!(run(&mut topic, 4000, 10), longer.content().len());
    assert_eq!(run(&mut topic, 300, 200), 1200);
    // Further dictionaries that do not pay do not replace it sooner.
    for _ in 0..8 {
        let (from, len) = (topic.next as usize % 1000, 12_000);
        let other = (0..300).flat_map(|i| message(i * 77)).collect::<Vec<_>>();
        assert!(topic.writer.offer(dictionary(other[from..from + len].to_vec())));
        assert_eq!(run(&mut topic, 101, 200), 1200);
    }
}

/// The savings of the older dictionary are measured again when a newer one is judged, so that it
/// does not stay for its former savings.
#[test]
fn an_older_dictionary_that_went_stale_goes_even_if_the_newer_does_not_pay() {
    let mut topic = Topic::new(writer(1));
    topic.writer.sample();
    let short = (0..10).flat_map(message).collect::<Vec<_>>();
    assert!(topic.writer.offer(dictionary(short[..1200].to_vec())));
    let training = loop {
        topic.now_ns += 190 * MS;
        topic.step_untrained();
        if let Some(training) = topic.writer.training(topic.now_ns) {
            break training;
        }
    };
    for _ in 0..300 {
        topic.now_ns += 190 * MS;
        topic.step_untrained();
    }
    assert!(topic.writer.sender().dictionary().is_some());
    let adoption = training.train().unwrap();
    let (alone_len, after_len) = (adoption.raw_len * 3 / 4, adoption.raw_len / 2);
    let adoption = Adoption { dictionary: trained(), alone_len, before_len: alone_len, after_len, ..adoption };
    assert!(topic.writer.trained(Some(adoption)));
    for _ in 0..100 {
        topic.now_ns += 190 * MS;
        topic.step_untrained();
    }
    assert!(topic.writer.sender().dictionary().is_none());
}
