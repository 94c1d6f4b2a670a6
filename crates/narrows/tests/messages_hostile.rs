//! Message flows over carriers that damage, lose, repeat and reorder, and with peers that lie: no
//! byte is delivered that was not sent, nothing panics, and memory is bounded.

mod message_world;

use std::sync::Arc;

use message_world::{DATAGRAMS, End, Random, STREAM, TOPIC, Turns, UNITS, config, dictionary, ends, fixed, settle};
use narrows::ErrorKind;
use narrows::message::{Contexts, Control, Event, Heard, Lacks, Lost, MessageConfig, MessageReceiver, Training};

/// (units, messages) of a flow with all features: history, dictionaries, pins, resets.
fn flow(carrier: narrows::message::Carrier, count: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut a, mut b) = ends(&config(carrier), || Box::new(Turns::default()));
    let mut random = Random(31);
    let d = dictionary(random.message().repeat(3));
    let (mut units, mut messages) = (Vec::new(), Vec::new());
    for i in 0..count {
        if i == 3 {
            a.sender.offer(Arc::clone(&d), false);
        }
        if i == 20 {
            a.sender.pin(600);
        }
        if i == 30 {
            a.sender.on_time(a.now_ns + 60_000_000_000);
        }
        let message = random.message();
        let unit = a.unit(&message);
        b.receive(&unit).unwrap();
        let back = b.unit(b"");
        a.receive(&back).unwrap();
        units.push(unit);
        messages.push(message);
    }
    assert_eq!(b.got, messages);
    (units, messages)
}

/// Feeds units to a receiver until it returns an error.
fn hear(carrier: narrows::message::Carrier, units: impl IntoIterator<Item = Vec<u8>>) -> (End, Option<ErrorKind>) {
    let mut b = End::new(MessageConfig { epoch: 2, ..config(carrier) }, fixed("store"));
    for unit in units {
        if let Err(e) = b.receive_all(&unit) {
            return (b, Some(e.kind));
        }
    }
    (b, None)
}

/// Whether all messages of `got` are in `sent`, in the same order.
fn is_part(got: &[Vec<u8>], sent: &[Vec<u8>]) -> bool {
    let mut rest = sent.iter();
    got.iter().all(|m| rest.any(|s| s == m))
}

#[test]
fn every_truncation_of_a_stream_delivers_a_beginning_and_no_error() {
    let (units, messages) = flow(STREAM, 45);
    let wire = units.concat();
    for cut in 0..wire.len() {
        let mut receiver = MessageReceiver::new(MessageConfig { epoch: 2, ..config(STREAM) }).unwrap();
        let (mut contexts, mut rest, mut got) = (Contexts::default(), &wire[..cut], Vec::new());
        // Cut only at every third place, as each run creates contexts, which is slow.
        if cut % 3 != 0 {
            continue;
        }
        loop {
            let step = receiver.receive(rest, &mut contexts).unwrap();
            match step.event {
                Event::Incomplete => break,
                Event::Message(m) => got.push(m.to_vec()),
                Event::Undecodable(reason) => panic!("{reason:?} at {cut}"),
                _ => {}
            }
            rest = &rest[step.consumed..];
        }
        assert!(messages.starts_with(&got));
    }
}

#[test]
fn a_unit_that_was_cut_is_an_error_or_dropped_and_never_another_message() {
    for carrier in [UNITS, DATAGRAMS] {
        let (units, messages) = flow(carrier, 45);
        for (i, unit) in units.iter().enumerate().skip(1).step_by(4) {
            for cut in 0..unit.len() {
                let cut_unit = unit[..cut].to_vec();
                let heard = units[..i].iter().cloned().chain([cut_unit]);
                let (b, error) = hear(carrier, heard);
                assert!(error.is_none_or(|e| e == ErrorKind::Truncated || e == ErrorKind::Corrupt), "{error:?}");
                // A cut message without check is a valid shorter one; a carrier that keeps borders
                // does not cut.
                let whole = b.got.len() == i || b.got.len() == i + 1 && messages[i].starts_with(&b.got[i]);
                assert!(whole && b.got[..i] == messages[..i], "unit {i} cut at {cut}");
            }
        }
    }
}

#[test]
fn no_flip_of_a_checked_flow_delivers_a_wrong_byte() {
    for carrier in [STREAM, UNITS, DATAGRAMS, TOPIC] {
        let checked = MessageConfig { check_all: true, ..config(carrier) };
        let (mut a, _) = ends(&checked, || Box::new(Turns::default()));
        let mut random = Random(77);
        let messages: Vec<_> = (0..12).map(|_| random.message()).collect();
        let units: Vec<_> = messages.iter().map(|m| a.unit(m)).collect();
        for i in 0..units.len() {
            for bit in (0..units[i].len() * 8).step_by(5) {
                let mut bad = units.clone();
                bad[i][bit / 8] ^= 1 << (bit % 8);
                let mut b = End::new(MessageConfig { epoch: 2, ..checked.clone() }, fixed("store"));
                for unit in &bad[..=i] {
                    if b.receive_all(unit).is_err() {
                        break;
                    }
                }
                assert!(is_part(&b.got, &messages), "{carrier:?}: unit {i}, bit {bit}");
            }
        }
    }
}

#[test]
fn linked_messages_are_never_wrong_whatever_was_changed_before_them() {
    let (mut a, _) = ends(&config(UNITS), || fixed("lz4:link"));
    let mut random = Random(78);
    let messages: Vec<_> = (0..20).map(|_| random.message()).collect();
    let units: Vec<_> = messages.iter().map(|m| a.unit(m)).collect();
    for i in 1..units.len() {
        for bit in (0..units[i].len() * 8).step_by(11) {
            let mut bad = units.clone();
            bad[i][bit / 8] ^= 1 << (bit % 8);
            let (b, _) = hear(UNITS, bad);
            // The changed unit itself may have become a message without a check; no linked message
            // after it passes. Or the bit has no meaning, and all messages are right.
            let wrong = b.got.iter().filter(|m| !messages.contains(m)).count();
            assert!(b.got == messages || wrong <= 1 && b.got.len() <= i + 1, "unit {i}, bit {bit}");
        }
    }
}

/// Faults that an ordered carrier must not have, but a peer may detect: loss, repetition and
/// exchange of units.
#[test]
fn a_history_out_of_step_is_detected_and_mended_and_no_message_is_wrong() {
    for trouble in ["lose", "repeat", "exchange"] {
        let (mut a, mut b) = ends(&config(UNITS), || fixed("lz4:link"));
        let mut random = Random(5);
        let mut sent = Vec::new();
        let mut held: Option<Vec<u8>> = None;
        for i in 0..200 {
            let message = random.message();
            let unit = a.unit(&message);
            sent.push(message);
            match (trouble, i % 40) {
                ("lose", 25) => {}
                ("repeat", 25) => {
                    b.receive(&unit).unwrap();
                    b.receive(&unit).unwrap();
                }
                ("exchange", 25) => held = Some(unit),
                _ => {
                    b.receive(&unit).unwrap();
                    if let Some(before) = held.take() {
                        b.receive(&before).unwrap();
                    }
                }
            }
            settle(&mut a, &mut b);
        }
        let wrong = b.got.iter().filter(|m| !sent.contains(m)).count();
        assert_eq!(wrong, 0, "{trouble}");
        assert!(b.undecodable > 0, "{trouble} was not noticed");
        // All messages arrive once and in order, except those that the carrier lost or left for the
        // next message.
        assert!(is_part(&b.got, &sent), "{trouble}: twice or out of order");
        assert!(b.got.len() >= 195, "{trouble}: {} came, {} gaps", b.got.len(), a.gaps);
        assert_eq!(b.got.last(), sent.last());
    }
}

#[test]
fn messages_under_way_when_the_history_is_lost_are_sent_again() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("lz4:link"));
    let mut random = Random(15);
    let messages: Vec<_> = (0..30).map(|_| random.message()).collect();
    let mut units: Vec<_> = messages[..20].iter().map(|m| a.unit(m)).collect();
    // Damaged in transit; six more units are in transit before an end notices.
    let last = units[13].len() - 1;
    units[13][last] ^= 1;
    for unit in &units {
        b.receive(unit).unwrap();
    }
    assert_eq!((b.got.len(), b.undecodable), (13, 7));
    let mut answer = Vec::new();
    assert!(b.receiver.answer(&mut answer));
    a.receive(&answer).unwrap();
    // Repeating the answer changes nothing.
    a.receive(&answer).unwrap();
    // A new message may not overtake them.
    let error = a.sender.encode(b"new", 0, &mut a.contexts, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misuse);
    settle(&mut a, &mut b);
    for message in &messages[20..] {
        let unit = a.unit(message);
        b.receive(&unit).unwrap();
    }
    assert_eq!(b.got, messages);
    assert_eq!((a.again, a.gaps), (7, 0));
}

#[test]
fn a_reader_that_forgot_everything_is_told_all_again() {
    let (mut a, mut b) = ends(&config(UNITS), || Box::new(Turns::default()));
    let mut random = Random(16);
    a.sender.offer(dictionary(random.message().repeat(3)), false);
    for _ in 0..30 {
        let unit = a.unit(&random.message());
        b.receive(&unit).unwrap();
        settle(&mut a, &mut b);
    }
    let mut b = End::new(MessageConfig { epoch: 3, ..config(UNITS) }, fixed("store"));
    let lost = a.unit(&random.message());
    b.receive(&lost).unwrap();
    settle(&mut a, &mut b);
    assert_eq!((b.got.len(), b.undecodable, a.gaps), (0, 1, 1), "the caller knows that one may be lost");
    for _ in 0..30 {
        let message = random.message();
        let unit = a.unit(&message);
        b.receive(&unit).unwrap();
        settle(&mut a, &mut b);
        assert_eq!(b.got.last(), Some(&message));
    }
}

#[test]
fn a_dictionary_that_the_reader_lacks_is_asked_for_and_no_message_is_lost() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("zstd:level=1"));
    let mut random = Random(18);
    let d = dictionary(random.message().repeat(4));
    let first = a.unit(&random.message());
    b.receive(&first).unwrap();
    assert!(a.sender.offer(Arc::clone(&d), false));
    let (sent, unit) = a.sent(&random.message());
    // The offer is lost, but a forged control confirms it.
    b.receive(&unit[sent.control_len..]).unwrap();
    a.sender.hear(&Control::Has { slot: 1, digest: d.digest() }).unwrap();
    let message = random.message();
    let (sent, unit) = a.sent(&message);
    assert_eq!(sent.slot, 1);
    b.receive(&unit).unwrap();
    assert_eq!((b.got.len(), b.undecodable), (2, 1));
    settle(&mut a, &mut b);
    assert_eq!((b.got.len(), b.got.last(), a.gaps), (3, Some(&message), 0));
    let next = random.message();
    let (sent, unit) = a.sent(&next);
    b.receive(&unit).unwrap();
    assert_eq!((sent.slot, b.got.last()), (1, Some(&next)), "now it has it");
}

#[test]
fn where_nobody_can_be_asked_a_history_out_of_step_ends_the_flow() {
    let one_way = MessageConfig { duplex: false, epoch: 1, ..config(UNITS) };
    let mut a = End::new(one_way.clone(), fixed("lz4:link"));
    let mut b = MessageReceiver::new(one_way).unwrap();
    let mut random = Random(17);
    let units: Vec<_> = (0..4).map(|_| a.unit(&random.message())).collect();
    let mut contexts = Contexts::default();
    let mut errors = Vec::new();
    for unit in [&units[0], &units[2], &units[3]] {
        let mut rest = &unit[..];
        while !rest.is_empty() {
            match b.receive(rest, &mut contexts) {
                Ok(step) => rest = &rest[step.consumed..],
                Err(e) => {
                    errors.push(e.kind);
                    break;
                }
            }
        }
    }
    assert_eq!(errors, [ErrorKind::Corrupt, ErrorKind::Corrupt]);
}

#[test]
fn datagrams_that_are_lost_repeated_and_reordered_are_right_or_dropped() {
    let (mut a, mut b) = ends(&config(DATAGRAMS), || Box::new(Turns::default()));
    let mut random = Random(23);
    let samples: Vec<_> = (0..300).map(|_| random.message()).collect();
    let first = Training::of(&samples, 1 << 20).run().unwrap().dictionary;
    let mut dictionaries = vec![first];
    dictionaries.extend((0..6).map(|_| dictionary(random.message().repeat(3))));
    let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
    let (mut sent, mut with) = (Vec::new(), 0);
    for i in 0..3000 {
        if i % 400 == 0
            && let Some(d) = dictionaries.pop()
        {
            a.sender.offer(d, false);
        }
        let message = random.message();
        let (s, unit) = a.sent(&message);
        with += usize::from(s.slot > 0);
        sent.push(message);
        to_b.push(unit);
        if i % 3 == 0 {
            to_a.push(b.unit(b"!"));
        }
        for (queue, end) in [(&mut to_b, &mut b), (&mut to_a, &mut a)] {
            while queue.len() > 6 {
                let unit = queue.swap_remove(random.draw(queue.len()));
                match random.draw(10) {
                    0 => {}
                    1 => {
                        end.receive(&unit).unwrap();
                        end.receive(&unit).unwrap();
                    }
                    _ => end.receive(&unit).unwrap(),
                }
            }
        }
    }
    assert!(with > 500, "{with} by dictionary");
    let sent: std::collections::HashSet<_> = sent.into_iter().collect();
    assert!(b.got.iter().all(|m| sent.contains(m)));
    assert!(b.got.len() > 2500 && b.undecodable < 300, "{} and {} dropped", b.got.len(), b.undecodable);
}

#[test]
fn a_peer_that_never_acknowledges_makes_nothing_grow() {
    let (mut a, mut b) = ends(&config(STREAM), || Box::new(Turns::default()));
    let mut random = Random(41);
    let mut offers = 0;
    a.sender.offer(dictionary(vec![b'x'; 20_000]), false);
    for _ in 0..5000 {
        let message = random.message();
        let (sent, unit) = a.sent(&message);
        offers += usize::from(sent.control_len > 20_000);
        assert_eq!(sent.slot, 0);
        b.receive(&unit).unwrap();
        assert_eq!(b.got.pop(), Some(message));
    }
    assert!(offers <= 8, "{offers}");
    // A receiver that is never polled for answers keeps only few of them.
    let mut words = Vec::new();
    b.receiver.answer(&mut words);
    assert!(words.len() < 1000, "{}", words.len());
}

#[test]
fn words_about_what_was_not_sent_are_corrupt() {
    let (mut a, _) = ends(&config(UNITS), || fixed("lz4:link"));
    for _ in 0..5 {
        a.unit(b"hello hello hello");
    }
    let corrupt = |a: &mut End, control: Control| a.sender.hear(&control).unwrap_err().kind == ErrorKind::Corrupt;
    let decoded = Default::default();
    assert!(corrupt(&mut a, Control::Acknowledgement { number: 6, chain: 0, decoded }));
    assert!(corrupt(&mut a, Control::Has { slot: 1, digest: 5 }));
    assert!(corrupt(&mut a, Control::Lacks { slot: 3, digest: 5, reason: Lacks::Refused }));
    assert!(corrupt(&mut a, Control::Lost { generation: 2, number: 0, chain: 0, reason: Lost::Mismatch }));
    assert!(corrupt(&mut a, Control::Lost { generation: 1, number: 6, chain: 0, reason: Lost::Mismatch }));
    // A digest that does not match cannot be answered with messages, as it is unknown which are
    // missing.
    let forged = Control::Lost { generation: 1, number: 3, chain: 99, reason: Lost::Mismatch };
    assert_eq!(a.sender.hear(&forged).unwrap(), Heard::Gap);
    assert_eq!(a.sender.hear(&Control::Digest { number: 0, chain: 0 }).unwrap_err().kind, ErrorKind::Misuse);
}

#[test]
fn forged_digests_bring_no_other_dictionary() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("lz4:link"));
    let first = a.unit(b"begin");
    b.receive(&first).unwrap();
    let content = vec![3; 200];
    let digest = narrows::message::Dictionary::digest_of(&content);
    let mut wire = Vec::new();
    Control::Offer { slot: 1, announced: false, len: 200, digest: digest ^ 1, content: Some(content) }.put(&mut wire);
    assert_eq!(b.receive(&wire).unwrap_err().kind, ErrorKind::Corrupt);
    // A pin that is not part of the history, and a digest of another history: detected and
    // repaired.
    for control in [
        Control::Pin { slot: 1, len: 64, digest: 5 },
        Control::Pin { slot: 1, len: 60_000, digest: 5 },
        Control::Digest { number: b.got.len() as u64, chain: 1 },
    ] {
        wire.clear();
        control.put(&mut wire);
        b.receive(&wire).unwrap();
        settle(&mut a, &mut b);
        let unit = a.unit(b"and so on, and so on");
        b.receive(&unit).unwrap();
        assert_eq!(b.got.last().unwrap(), b"and so on, and so on");
    }
    assert_eq!((b.got.len(), a.gaps), (4, 0));
}

#[test]
fn what_comes_back_from_a_mirror_or_in_the_wrong_direction_is_refused() {
    let (mut a, mut b) = ends(&config(UNITS), || fixed("lz4:link"));
    let own = a.unit(b"to whom it may concern");
    assert_eq!(a.receive(&own).unwrap_err().kind, ErrorKind::Corrupt);
    let mut receiver = MessageReceiver::new(MessageConfig { duplex: false, ..config(UNITS) }).unwrap();
    let mut contexts = Contexts::default();
    let mut wire = Vec::new();
    Control::Has { slot: 1, digest: 1 }.put(&mut wire);
    assert_eq!(receiver.receive(&wire, &mut contexts).unwrap_err().kind, ErrorKind::Corrupt);
    let mut topic = MessageReceiver::new(config(TOPIC)).unwrap();
    for control in [
        Control::Reset { generation: 1, number: 0, window: 4096, gap: false, seed_digest: 0 },
        Control::Lost { generation: 0, number: 0, chain: 0, reason: Lost::New },
        Control::Has { slot: 1, digest: 1 },
    ] {
        wire.clear();
        control.put(&mut wire);
        assert_eq!(topic.receive(&wire, &mut contexts).unwrap_err().kind, ErrorKind::Corrupt);
    }
    // A peer that is configured for another kind of carrier.
    let (mut c, _) = ends(&config(DATAGRAMS), || fixed("store"));
    let unit = c.unit(b"x");
    assert_eq!(b.receive(&unit).unwrap_err().kind, ErrorKind::Unsupported);
}

#[test]
fn a_wrong_or_stale_dictionary_costs_two_per_cent_at_most() {
    for method in ["lz4", "zstd:level=1", "zstd"] {
        for stale_after in [0, 300] {
            let mut random = Random(61);
            let samples: Vec<_> = (0..400).map(|_| random.message()).collect();
            let trained = Training::of(&samples, 1 << 30).run().unwrap().dictionary;
            let total = |with: bool, random: &mut Random| {
                let (mut a, mut b) = ends(&config(UNITS), || fixed(method));
                if with {
                    a.sender.offer(Arc::clone(&trained), false);
                }
                let mut wire = 0;
                for i in 0..1000 {
                    let other = format!("{{\"id\": {}, \"temperature\": {}.{}, \"unit\": \"C\", \"battery\": {}, \"site\": \"roof-{}\"}}", random.draw(100_000), random.draw(40), random.draw(10), random.draw(100), random.draw(9)).repeat(2);
                    let message = if i < stale_after { random.message() } else { other.into_bytes() };
                    let (sent, unit) = a.sent(&message);
                    // Ignore the first messages, with which the dictionary is transferred.
                    wire += if i < 5 { 0 } else { sent.wire_len };
                    b.receive(&unit).unwrap();
                    assert_eq!(b.got.pop(), Some(message));
                    if i < 5 {
                        settle(&mut a, &mut b);
                    }
                }
                assert_eq!(a.sender.dictionary().is_some(), with);
                wire
            };
            let without = total(false, &mut Random(5));
            let with = total(true, &mut Random(5));
            assert!(with as f64 <= 1.02 * without as f64, "{method}, from {stale_after}: {with} after {without}");
        }
    }
}

#[test]
fn rubbish_is_an_error_or_dropped_and_holds_nothing() {
    let mut random = Random(3);
    for carrier in [STREAM, UNITS, DATAGRAMS, TOPIC] {
        let mut contexts = Contexts::default();
        for _ in 0..2000 {
            let mut receiver = MessageReceiver::new(MessageConfig { epoch: 2, ..config(carrier) }).unwrap();
            let len = random.draw(200);
            let bytes = random.bytes(len);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match receiver.receive(rest, &mut contexts) {
                    Ok(step) if step.consumed > 0 => rest = &rest[step.consumed..],
                    _ => break,
                }
            }
        }
    }
}
