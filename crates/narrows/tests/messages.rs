//! Message flows between two correct ends: messages arrive unchanged, however encoded, over every
//! kind of carrier.

mod message_world;

use std::sync::Arc;

use message_world::{DATAGRAMS, End, Random, STREAM, TOPIC, Turns, UNITS, config, dictionary, ends, fixed, settle};
use narrows::ErrorKind;
use narrows::message::{
    Contexts, Delivery, Event, HISTORY_MAX, MESSAGE_MAX, MessageConfig, MessageReceiver, MessageSender, Training,
};
use narrows::policy::{Policy, PolicySetup, PolicySpec};

const SECOND: u64 = 1_000_000_000;

fn messages_policy() -> Box<dyn Policy> {
    PolicySpec::messages().build(&PolicySetup::new(1, narrows::monitor::cost::Prior::shipped()))
}

#[test]
fn messages_of_all_lengths_come_out_as_they_went_in_over_every_carrier() {
    for carrier in [STREAM, UNITS, DATAGRAMS, TOPIC] {
        for history in [0, 1024, 4096, HISTORY_MAX] {
            for check_all in [false, true] {
                let config = MessageConfig { history, check_all, ..config(carrier) };
                let (mut a, mut b) = ends(&config, || Box::new(Turns::default()));
                let mut random = Random(history as u64);
                let mut sent = Vec::new();
                for i in 0..400 {
                    let message = match i % 20 {
                        0 => Vec::new(),
                        1 => vec![i as u8],
                        2 => random.bytes(300),
                        3 => vec![7; MESSAGE_MAX],
                        4 => {
                            let len = random.draw(MESSAGE_MAX);
                            random.bytes(len)
                        }
                        _ => random.message(),
                    };
                    let unit = a.unit(&message);
                    b.receive(&unit).unwrap();
                    sent.push(message);
                    let unit = b.unit(b"yes");
                    a.receive(&unit).unwrap();
                }
                assert!(b.got == sent, "{carrier:?} {history} {check_all}");
                assert_eq!((a.got.len(), a.undecodable, b.undecodable), (400, 0, 0));
            }
        }
    }
}

#[test]
fn a_stream_may_be_cut_anywhere() {
    let (mut a, mut b) = ends(&config(STREAM), || Box::new(Turns::default()));
    let mut random = Random(5);
    let messages: Vec<_> = (0..60).map(|_| random.message()).collect();
    let wire = messages.iter().flat_map(|m| a.unit(m)).collect::<Vec<_>>();
    for cut in [1, 2, 3, 7, 100] {
        let mut receiver = MessageReceiver::new(MessageConfig { epoch: 2, ..config(STREAM) }).unwrap();
        let (mut held, mut got) = (Vec::new(), Vec::new());
        for piece in wire.chunks(cut) {
            held.extend_from_slice(piece);
            loop {
                let step = receiver.receive(&held, &mut b.contexts).unwrap();
                let consumed = step.consumed;
                match step.event {
                    Event::Incomplete => break,
                    Event::Message(message) => got.push(message.to_vec()),
                    event => assert!(matches!(event, Event::Nothing | Event::Control(_))),
                }
                held.drain(..consumed);
            }
        }
        assert!(got == messages && held.is_empty());
    }
}

#[test]
fn the_longest_message_passes_and_one_above_is_refused_and_the_flow_goes_on() {
    let limited = MessageConfig { message_max: 1000, ..config(STREAM) };
    let (mut a, mut b) = ends(&limited, || fixed("lz4:link"));
    let (mut c, _) = ends(&config(STREAM), || fixed("lz4:link"));
    for end in [&mut a, &mut c] {
        for len in [1000, 1, 0] {
            let unit = end.unit(&vec![5; len]);
            b.receive(&unit).unwrap();
            assert_eq!(b.got.pop().unwrap().len(), len);
        }
        // An end learns the other's limits from its preface.
        let unit = b.unit(b"");
        end.receive(&unit).unwrap();
        let mut out = Vec::new();
        let error = end.sender.encode(&[5; 1001], 0, &mut end.contexts, &mut out).unwrap_err();
        assert_eq!((error.kind, out.len()), (ErrorKind::Limit, 0));
        let unit = end.unit(b"after it");
        b.receive(&unit).unwrap();
        assert_eq!(b.got.pop().unwrap(), b"after it");
        // The second message uses a new connection for `b`.
        b = End::new(MessageConfig { epoch: 2, ..limited.clone() }, fixed("lz4:link"));
    }
    // A too long message sent before that is dropped and reported, however little too long it is.
    for (method, len) in [("lz4:link", 1001), ("lz4:link", 5000), ("zstd:level=1", 1001), ("zstd:level=1", 5000)] {
        let (mut a, _) = ends(&config(STREAM), || fixed(method));
        let (_, mut b) = ends(&limited, || fixed(method));
        let unit = a.unit(&vec![5; len]);
        b.receive(&unit).unwrap();
        assert_eq!((b.got.len(), b.receiver.undecodable()), (0, 1), "{method} {len}");
    }
    let (mut a, mut b) = ends(&config(STREAM), || fixed("store"));
    assert_eq!(
        a.sender.encode(&vec![0; MESSAGE_MAX + 1], 0, &mut b.contexts, &mut Vec::new()).unwrap_err().kind,
        ErrorKind::Limit
    );
}

#[test]
fn a_message_that_no_method_shortens_costs_its_header() {
    for (carrier, header_len) in [(UNITS, 1), (STREAM, 3)] {
        for method in ["store", "lz4", "lz4:link", "zstd:level=1"] {
            let (mut a, mut b) = ends(&config(carrier), || fixed(method));
            let mut random = Random(1);
            for _ in 0..20 {
                let message = random.bytes(500);
                let (sent, unit) = a.sent(&message);
                assert_eq!(sent.wire_len, 500 + header_len, "{method}");
                b.receive(&unit).unwrap();
                assert_eq!(b.got.pop().unwrap(), message);
            }
        }
    }
}

#[test]
fn history_shortens_what_was_said_before_and_needs_six_bytes_to_be_safe() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("lz4:link"));
    let mut random = Random(3);
    let message = random.message();
    let lens: Vec<_> = (0..5)
        .map(|_| {
            let (sent, unit) = a.sent(&message);
            b.receive(&unit).unwrap();
            sent.wire_len
        })
        .collect();
    assert!(lens[1] < 25 && lens[4] < 25, "{lens:?}");
    assert!(b.got.iter().all(|m| *m == message));
}

#[test]
fn dictionaries_are_used_when_the_peer_has_them_and_not_before() {
    for carrier in [STREAM, UNITS, DATAGRAMS] {
        for method in ["lz4", "zstd:level=1", "zstd"] {
            let (mut a, mut b) = ends(&config(carrier), || fixed(method));
            let mut random = Random(11);
            let samples: Vec<_> = (0..400).map(|_| random.message()).collect();
            let adoption = Training::of(&samples, 100_000).run().expect("such messages have much in common");
            let (sent, unit) = a.sent(&random.message());
            assert_eq!(sent.slot, 0);
            b.receive(&unit).unwrap();
            assert!(a.sender.offer(Arc::clone(&adoption.dictionary), false));
            let (sent, unit) = a.sent(&random.message());
            assert_eq!(sent.slot, 0, "not confirmed");
            b.receive(&unit).unwrap();
            settle(&mut a, &mut b);
            let (mut raw, mut wire, mut with) = (0, 0, 0);
            for _ in 0..200 {
                let message = random.message();
                let (sent, unit) = a.sent(&message);
                (raw, wire) = (raw + sent.raw_len, wire + sent.wire_len);
                with += usize::from(sent.slot == 1);
                b.receive(&unit).unwrap();
                assert_eq!(b.got.last(), Some(&message));
            }
            assert!(with > 190 && wire * 17 < raw * 10, "{carrier:?} {method}: {raw} to {wire}, {with} with it");
        }
    }
}

#[test]
fn a_dictionary_that_both_have_is_not_sent_and_may_seed_the_history() {
    let mut random = Random(8);
    let content: Vec<u8> = (0..40).flat_map(|_| random.message()).collect();
    let shared = dictionary(content[..8000].to_vec());
    let with = MessageConfig { known: vec![Arc::clone(&shared)], seed: Some(Arc::clone(&shared)), ..config(UNITS) };
    let (mut a, mut b) = ends(&with, || fixed("lz4:link"));
    let message = random.message();
    let (seeded, unit) = a.sent(&message);
    b.receive(&unit).unwrap();
    assert_eq!(b.got.last(), Some(&message));
    let (mut c, _) = ends(&config(UNITS), || fixed("lz4:link"));
    let (unseeded, _) = c.sent(&message);
    assert!(seeded.wire_len * 3 < unseeded.wire_len * 2, "{} {}", seeded.wire_len, unseeded.wire_len);
    // It is also used for standalone messages once the peer has confirmed it.
    settle(&mut a, &mut b);
    assert_eq!(a.sender.dictionary().map(|d| d.digest()), Some(shared.digest()));
    let (sent, _) = a.sent(&random.message());
    assert_eq!(sent.control_len, 0);
    // Without history it is requested by its digest.
    let with = MessageConfig { known: vec![Arc::clone(&shared)], ..config(UNITS) };
    let (mut a, mut b) = ends(&with, || fixed("lz4"));
    let unit = a.unit(&random.message());
    b.receive(&unit).unwrap();
    assert!(a.sender.offer(shared, true));
    let mut out = Vec::new();
    assert!(a.sender.control(&mut out));
    assert!(out.len() < 30, "{}", out.len());
    b.receive(&out).unwrap();
    settle(&mut a, &mut b);
    assert!(a.sender.dictionary().is_some());
}

#[test]
fn a_peer_without_the_seed_gets_the_first_message_all_the_same() {
    let mut random = Random(8);
    let shared = dictionary(random.message().repeat(9));
    let with = MessageConfig { seed: Some(shared), epoch: 1, ..config(UNITS) };
    let mut a = End::new(with, fixed("lz4:link"));
    let mut b = End::new(MessageConfig { epoch: 2, ..config(UNITS) }, fixed("lz4:link"));
    let first = random.message();
    let unit = a.unit(&first);
    b.receive(&unit).unwrap();
    assert_eq!((b.got.len(), b.undecodable), (0, 1));
    settle(&mut a, &mut b);
    assert_eq!(b.got, [first]);
    assert!(a.sender.dictionary().is_none(), "nor is it sent");
    let next = random.message();
    let unit = a.unit(&next);
    b.receive(&unit).unwrap();
    assert_eq!(b.got.last(), Some(&next));
    assert_eq!(a.again, 1);
}

#[test]
fn a_piece_of_history_serves_as_dictionary_without_being_sent() {
    let (mut a, mut b) = ends(&config(UNITS), || Box::new(Turns::default()));
    let mut random = Random(4);
    assert!(!a.sender.pin(4096), "there is no history yet");
    for _ in 0..30 {
        let unit = a.unit(&random.message());
        b.receive(&unit).unwrap();
    }
    assert!(a.sender.pin(4096));
    let mut with = 0;
    for _ in 0..50 {
        let message = random.message();
        let (sent, unit) = a.sent(&message);
        assert!(sent.control_len < 30);
        with += usize::from(sent.slot > 0);
        b.receive(&unit).unwrap();
        assert_eq!(b.got.last(), Some(&message));
    }
    assert!(with > 15, "{with}");
}

#[test]
fn every_reader_of_a_topic_decodes_what_came_after_an_announcement() {
    let one_way = MessageConfig { duplex: false, ..config(TOPIC) };
    let mut random = Random(2);
    let samples: Vec<_> = (0..400).map(|_| random.message()).collect();
    let adoption = Training::of(&samples, 100_000).run().unwrap();
    let mut publisher = End::new(MessageConfig { epoch: 1, ..one_way.clone() }, fixed("zstd:level=1"));
    let mut early = MessageReceiver::new(one_way.clone()).unwrap();
    assert!(publisher.sender.offer(adoption.dictionary, false));
    let mut announcement = Vec::new();
    let mut contexts = Contexts::default();
    let read = |receiver: &mut MessageReceiver, unit: &[u8], contexts: &mut Contexts| {
        let (mut rest, mut got, mut lost) = (unit, None, 0);
        while !rest.is_empty() {
            let step = receiver.receive(rest, contexts).unwrap();
            match step.event {
                Event::Message(m) => got = Some(m.to_vec()),
                Event::Undecodable(_) => lost += 1,
                _ => {}
            }
            rest = &rest[step.consumed..];
        }
        (got, lost)
    };
    let mut with = 0;
    for round in 0..3 {
        announcement.clear();
        publisher.sender.announce(&mut announcement).unwrap();
        read(&mut early, &announcement, &mut contexts);
        for _ in 0..20 {
            let message = random.message();
            let (sent, unit) = publisher.sent(&message);
            assert!(sent.slot == 0 || round > 0, "from the second announcement on");
            with += usize::from(sent.slot > 0);
            assert_eq!(read(&mut early, &unit, &mut contexts), (Some(message), 0));
        }
    }
    assert!(with > 35, "{with} of 40");
    // A late reader decodes messages without dictionary, drops the rest, and decodes all after the
    // next announcement.
    let mut late = MessageReceiver::new(one_way).unwrap();
    let (_, unit) = publisher.sent(&random.message());
    assert_eq!(read(&mut late, &unit, &mut contexts), (None, 1));
    read(&mut late, &announcement, &mut contexts);
    let message = random.message();
    let (_, unit) = publisher.sent(&message);
    assert_eq!(read(&mut late, &unit, &mut contexts), (Some(message), 0));
    assert!(!late.answer(&mut Vec::new()), "readers of a topic answer nothing");
}

#[test]
fn an_idle_flow_gives_its_history_back_and_goes_on() {
    let (mut a, mut b) = ends(&config(STREAM), || fixed("lz4:link"));
    let mut random = Random(9);
    for _ in 0..10 {
        let unit = a.unit(&random.message());
        b.receive(&unit).unwrap();
    }
    let wakeup = a.sender.next_wakeup_ns().unwrap();
    assert!(wakeup > a.now_ns + 29 * SECOND);
    a.sender.on_time(wakeup);
    assert_eq!(a.sender.next_wakeup_ns(), None);
    settle(&mut a, &mut b);
    a.now_ns = wakeup;
    let last = random.message();
    let unit = a.unit(&last);
    b.receive(&unit).unwrap();
    assert_eq!((b.got.len(), b.undecodable), (11, 0));
}

#[test]
fn an_idle_flow_with_a_seed_or_a_pin_that_was_not_said_wakes_once() {
    let mut random = Random(9);
    let seed = dictionary(random.message().repeat(9));
    let with = MessageConfig { known: vec![Arc::clone(&seed)], seed: Some(seed), ..config(UNITS) };
    let (mut a, mut b) = ends(&with, || Box::new(Turns::default()));
    for _ in 0..10 {
        let unit = a.unit(&random.message());
        b.receive(&unit).unwrap();
    }
    assert!(a.sender.pin(500));
    a.sender.on_time(a.sender.next_wakeup_ns().unwrap());
    settle(&mut a, &mut b);
    assert_eq!(a.sender.next_wakeup_ns(), None, "though the history begins with the seed again");
    for _ in 0..10 {
        let message = random.message();
        let unit = a.unit(&message);
        b.receive(&unit).unwrap();
        assert_eq!(b.got.last(), Some(&message));
    }
    assert_eq!((b.undecodable, a.gaps), (0, 0));
}

#[test]
fn a_reconnection_begins_anew_and_offers_its_dictionaries_again() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("zstd:level=1"));
    let mut random = Random(6);
    let known = dictionary(random.message().repeat(4));
    a.sender.offer(known, false);
    for _ in 0..10 {
        let (unit, back) = (a.unit(&random.message()), b.unit(b"ok"));
        b.receive(&unit).unwrap();
        a.receive(&back).unwrap();
    }
    settle(&mut a, &mut b);
    assert!(a.sender.dictionary().is_some());
    a.sender.reconnect(77);
    let mut b = End::new(MessageConfig { epoch: 78, ..config(UNITS) }, fixed("lz4:link"));
    assert!(a.sender.dictionary().is_none());
    let message = random.message();
    let unit = a.unit(&message);
    b.receive(&unit).unwrap();
    assert_eq!(b.got, [message]);
    settle(&mut a, &mut b);
    assert!(a.sender.dictionary().is_some());
}

#[test]
fn a_reader_that_keeps_less_is_understood_and_a_deaf_one_is_not_waited_for() {
    let mut a = End::new(MessageConfig { epoch: 1, ..config(UNITS) }, fixed("lz4:link"));
    let mut b = End::new(MessageConfig { epoch: 2, history: 1024, ..config(UNITS) }, fixed("lz4:link"));
    let mut random = Random(21);
    let mut sent = Vec::new();
    for i in 0..100 {
        let message = random.message();
        let unit = a.unit(&message);
        b.receive(&unit).unwrap();
        sent.push(message);
        // At first the reader answers nothing, then everything.
        if i > 20 {
            settle(&mut a, &mut b);
        }
    }
    assert!(b.got.len() > 80 && sent.ends_with(&b.got[b.got.len() - 70..]), "{}", b.got.len());
}

#[test]
fn the_policy_of_messages_runs_a_flow() {
    let (mut a, mut b) = ends(&config(STREAM), messages_policy);
    let mut random = Random(13);
    let (mut raw, mut wire) = (0, 0);
    for _ in 0..500 {
        let message = random.message();
        let (sent, unit) = a.sent(&message);
        a.sender.took(2_000);
        (raw, wire) = (raw + sent.raw_len, wire + sent.wire_len);
        b.receive(&unit).unwrap();
        b.receiver.took(700);
        assert_eq!(b.got.last(), Some(&message));
        let back = b.unit(b"fine");
        a.receive(&back).unwrap();
    }
    assert!(raw > 2 * wire, "{raw} to {wire}: without any answer bytes are worth something");
}

#[test]
fn a_private_message_is_in_no_length_and_in_no_history() {
    for carrier in [STREAM, UNITS, DATAGRAMS] {
        let (mut a, mut b) = ends(&config(carrier), || fixed("lz4:link"));
        let mut random = Random(19);
        let secret = random.message();
        let unit = a.unit(b"first");
        b.receive(&unit).unwrap();
        for _ in 0..3 {
            let mut out = Vec::new();
            let sent = a.sender.encode_private(&secret, 0, &mut a.contexts, &mut out).unwrap();
            assert!(sent.wire_len >= secret.len() && !sent.linked);
            b.receive(&out).unwrap();
            assert_eq!(b.got.last(), Some(&secret));
        }
        let (guess, unit) = a.sent(&secret);
        b.receive(&unit).unwrap();
        let mut other = ends(&config(carrier), || fixed("lz4:link")).0;
        other.unit(b"first");
        let (fresh, _) = other.sent(&secret);
        assert_eq!(guess.wire_len, fresh.wire_len, "as if it had never been said");
        assert_eq!((b.got.len(), b.undecodable), (5, 0));
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for bad in [
        MessageConfig { message_max: 0, ..config(STREAM) },
        MessageConfig { message_max: MESSAGE_MAX + 1, ..config(STREAM) },
        MessageConfig { history: 100, ..config(STREAM) },
        MessageConfig { history: HISTORY_MAX + 1, ..config(STREAM) },
        MessageConfig { slots: 4, ..config(STREAM) },
        MessageConfig {
            carrier: narrows::message::Carrier { delivery: Delivery::Fanout, borders: false },
            ..config(STREAM)
        },
    ] {
        assert_eq!(MessageSender::new(bad.clone(), fixed("store")).err().map(|e| e.kind), Some(ErrorKind::Misuse));
        assert_eq!(MessageReceiver::new(bad).err().map(|e| e.kind), Some(ErrorKind::Misuse));
    }
}
