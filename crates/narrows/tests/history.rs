//! Histories of different lengths: any suffix of what the receiver keeps decodes, limits of both ends
//! are obeyed, and memory stays bounded. Tests check counts, never seconds.

mod world;

use narrows::ErrorKind;
use narrows::block::{Block, BufferPool};
use narrows::codec::{CODECS, Contexts, DEFAULT_METHODS, Method};
use narrows::frame::{BASELINE_HISTORY, ControlKind, Frame, HISTORY_DEFAULT, control_frame, keep_frame};
use narrows::monitor::View;
use narrows::monitor::cost::Prior;
use narrows::policy::{Choice, Policy, PolicySetup, PolicySpec, Rescue};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{JobKind, LinkSample, Sender, SenderConfig};
use narrows_classic::{Schedule, policies};
use world::{Conditions, Rng, World, random, text};

/// Takes the next choice from a function; late blocks are taken over with the method that it names.
struct Scripted<F>(F, Method);

impl<F: FnMut(&View<'_>) -> Choice + Send> Policy for Scripted<F> {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        (self.0)(view)
    }

    fn rescue(&mut self, _: &View<'_>) -> Rescue {
        Rescue::TakeOver(self.1)
    }
}

fn linked(method: Method, block_len: usize, history_len: usize) -> Box<dyn Policy> {
    let choose = move |_: &View<'_>| Choice { linked: true, history_len, ..Choice::new(method, block_len) };
    Box::new(Scripted(choose, Method::STORE))
}

/// Noise that comes again at these distances, so that only a history that reaches so far shrinks it.
fn repeats(distance: usize, times: usize) -> Vec<u8> {
    random(distance, 7).repeat(times)
}

/// Sends `data` through an engine at each end. The receiver's preface is heard when `hears_after`
/// blocks were cut. Returns the longest history of a block before and after that, and the wire.
fn transfer(
    policy: Box<dyn Policy>,
    sender: SenderConfig,
    receiver: ReceiverConfig,
    data: &[u8],
    hears_after: usize,
) -> (usize, usize, Vec<u8>) {
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    let mut receiver = Receiver::new(ReceiverConfig { duplex: sender.duplex, ..receiver }, pool.clone());
    let duplex = sender.duplex;
    let mut sender = Sender::new(sender, policy, pool.clone());
    let (mut before, mut after, mut cut) = (0, 0, 0);
    let (mut received, mut wire) = (Vec::new(), Vec::new());
    let mut at = 0;
    loop {
        if duplex
            && cut == hears_after
            && let Some(reverse) = receiver.poll_feedback(0, 0)
        {
            sender.receive(&reverse, 0).unwrap();
        }
        let len = sender.room().min(data.len() - at).min(100_000);
        if len > 0 {
            sender.push(Block::from_vec(data[at..at + len].to_vec()), 0);
            at += len;
        } else if at == data.len() {
            sender.close(0);
        }
        while let Some(job) = sender.poll_job(0) {
            let longest = if cut < hears_after { &mut before } else { &mut after };
            *longest = job.history.len().max(*longest);
            assert_eq!(job.history[..], data[job.raw_offset as usize - job.history.len()..][..job.history.len()]);
            sender.finish(job.run(&mut contexts, &pool), 0);
            cut += 1;
        }
        while let Some(frame) = sender.poll_transmit() {
            let bytes = [&frame.header[..], &frame.body].concat();
            sender.on_link(LinkSample { accepted: bytes.len() as u64, ..LinkSample::default() });
            wire.extend(&bytes);
            receiver.receive(Block::from_vec(bytes)).unwrap();
            while let Some(job) = receiver.poll_job() {
                receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            }
            received.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
        }
        sender.on_link(LinkSample::default());
        if sender.is_drained() {
            break;
        }
    }
    assert!(received == data);
    (before, after, wire)
}

#[test]
fn a_history_reaches_as_far_as_its_length_says() {
    let data = repeats(500_000, 2);
    let wire = |history_len| {
        let policy = linked(Method::zstd(9), 250_000, history_len);
        transfer(policy, SenderConfig::default(), ReceiverConfig::default(), &data, 0).2.len()
    };
    assert!(wire(500_000) < 550_000, "the second half was not found");
    assert!(wire(240_000) > 990_000, "or the length of the history changes nothing");
}

/// The receiver decodes with all that it keeps, whatever part of it the sender took.
#[test]
fn blocks_of_every_codec_with_every_history_arrive() {
    let data = [text(900_000, 1), repeats(300_000, 3), vec![7; 200_000], text(700_000, 1), text(900_000, 2)].concat();
    for codec in CODECS.iter().filter(|c| c.can_link()) {
        for level in [codec.levels()[0], codec.default_level(), 9] {
            for duplex in [false, true] {
                let mut rng = Rng(1 + u64::from(codec.id().0) + u64::from(level.unsigned_abs()));
                let choose = move |_: &View<'_>| {
                    let history_len =
                        [0, 1, 7, 100, 65_536, 65_537, 300_000, 1 << 20, usize::MAX][rng.next() as usize % 9];
                    let other = DEFAULT_METHODS[rng.next() as usize % DEFAULT_METHODS.len()];
                    let method = if rng.next().is_multiple_of(5) { other } else { Method::new(codec.id(), level) };
                    let len = 1 + rng.next() as usize % if rng.next().is_multiple_of(4) { 1000 } else { 200_000 };
                    Choice { linked: history_len > 0, history_len, ..Choice::new(method, len) }
                };
                let config = SenderConfig { duplex, cores: 3, ..SenderConfig::default() };
                let policy = Box::new(Scripted(choose, Method::STORE));
                let (_, longest, _) = transfer(policy, config, ReceiverConfig::default(), &data, 0);
                assert!(longest > 1 << 20, "{codec:?} {longest}");
            }
        }
    }
}

#[test]
fn a_sender_obeys_a_receiver_that_keeps_less() {
    let data = repeats(400_000, 4);
    let method = Method::zstd(3);
    for (own, theirs, expected) in [
        (HISTORY_DEFAULT, 100_000, 100_000),
        (HISTORY_DEFAULT, BASELINE_HISTORY, BASELINE_HISTORY),
        (200_000, HISTORY_DEFAULT, 200_000),
        (HISTORY_DEFAULT, 64 << 20, 1_500_000),
        (HISTORY_DEFAULT, 0, 0),
    ] {
        let sender = SenderConfig { duplex: true, history: own, ..SenderConfig::default() };
        let receiver = || ReceiverConfig { history_max: theirs, ..ReceiverConfig::default() };
        let (_, longest, _) = transfer(linked(method, 50_000, usize::MAX), sender.clone(), receiver(), &data, 0);
        assert!(longest <= theirs.min(own) && longest >= expected, "{theirs}: {longest}");
        if theirs >= BASELINE_HISTORY {
            // Before it knows, it takes what every receiver keeps.
            let (before, after, _) = transfer(linked(method, 50_000, usize::MAX), sender, receiver(), &data, 6);
            assert!((1..=BASELINE_HISTORY).contains(&before), "{before}");
            // A long history begins with the short one.
            assert!(after <= theirs.min(own) && after >= expected.min(1_300_000), "{theirs}: {after}");
        }
    }
}

#[test]
fn a_stream_that_needs_more_than_a_reader_keeps_is_refused_at_its_preface() {
    let data = text(100_000, 1);
    let stream = |history| {
        let sender = SenderConfig { history, ..SenderConfig::default() };
        let receiver = ReceiverConfig { history_max: history, ..ReceiverConfig::default() };
        transfer(linked(Method::zstd(3), 50_000, usize::MAX), sender, receiver, &data, 0).2
    };
    let read = |wire: Vec<u8>, history_max: Option<usize>| {
        let config = ReceiverConfig::default();
        let config = ReceiverConfig { history_max: history_max.unwrap_or(config.history_max), ..config };
        Receiver::new(config, BufferPool::default()).receive(Block::from_vec(wire)).err().map(|e| e.kind)
    };
    assert_eq!(read(stream(HISTORY_DEFAULT), None), None, "what a sender states without being told otherwise");
    assert_eq!(read(stream(HISTORY_DEFAULT + 1), None), Some(ErrorKind::Limit));
    assert_eq!(read(stream(HISTORY_DEFAULT), Some(BASELINE_HISTORY)), Some(ErrorKind::Limit));
}

#[test]
fn a_history_grows_within_what_was_agreed_on_and_never_shrinks() {
    let mut sender = Sender::new(SenderConfig::default(), linked(Method::STORE, 1, 0), BufferPool::default());
    let preface = sender.poll_transmit().map(|frame| frame.header.to_vec()).unwrap();
    let read = |frames: &[Frame]| {
        let wire: Vec<u8> = frames.iter().flat_map(|f| [&f.header[..], &f.body].concat()).collect();
        let mut receiver = Receiver::new(ReceiverConfig::default(), BufferPool::default());
        receiver.receive(Block::from_vec([&preface[..], &wire].concat())).err().map(|e| e.kind)
    };
    let keep = |len| keep_frame(len, 0);
    assert_eq!(read(&[keep(2 * BASELINE_HISTORY), keep(300_000), keep(HISTORY_DEFAULT), keep(HISTORY_DEFAULT)]), None);
    for wrong in [
        vec![keep(HISTORY_DEFAULT + 1)],
        vec![keep(u32::MAX as usize)],
        vec![keep(0)],
        vec![keep(BASELINE_HISTORY)],
        vec![keep(200_000), keep(199_999)],
        vec![keep(200_000), keep(399_999)],
        vec![control_frame(ControlKind::Keep, &[], 0)],
        vec![control_frame(ControlKind::Keep, &[0, 0, 16, 0, 0], 0)],
        vec![keep_frame(200_000, 1)],
    ] {
        assert_eq!(read(&wrong), Some(ErrorKind::Corrupt));
    }
}

#[test]
fn every_truncation_of_a_linked_stream_delivers_only_what_is_true() {
    let data = [repeats(150_000, 2), text(100_000, 1)].concat();
    let policy = linked(Method::zstd(3), 30_000, usize::MAX);
    let (_, longest, wire) = transfer(policy, SenderConfig::default(), ReceiverConfig::default(), &data, 0);
    assert!(longest > 3 * BASELINE_HISTORY);
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    for end in (0..wire.len()).step_by(509).chain(wire.len() - 60..wire.len()) {
        let mut receiver = Receiver::new(ReceiverConfig::default(), pool.clone());
        receiver.receive(Block::from_vec(wire[..end].to_vec())).unwrap();
        let mut out = Vec::new();
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            out.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
        }
        assert_eq!(receiver.close().unwrap_err().kind, ErrorKind::Truncated, "{end}");
        assert!(data.starts_with(&out));
    }
}

#[test]
fn a_late_block_of_a_linked_run_is_taken_over_linked_or_not() {
    let data = [repeats(700_000, 2), text(1_000_000, 9)].concat();
    for method in [Method::STORE, Method::lz4_accel(1), Method::zstd(1)] {
        let choose =
            |_: &View<'_>| Choice { linked: true, ..Choice::new(DEFAULT_METHODS[DEFAULT_METHODS.len() - 3], 200_000) };
        let config = SenderConfig { cores: 2, duplex: true, ..SenderConfig::default() };
        let mut w = World::new(Box::new(Scripted(choose, method)), config, Conditions::steady(500.0));
        w.send_all(&data);
        assert!(w.received == data, "{method}");
        assert!(w.chosen.iter().any(|c| c.kind == JobKind::Rescue && c.method == method), "{method}");
    }
}

#[test]
fn every_policy_delivers_every_byte_with_the_longest_history() {
    let data = [repeats(500_000, 3), text(1_200_000, 1), random(300_000, 2), vec![0; 300_000]].concat();
    let replayed = Schedule::parse("90000 zstd linked\n50000 lz4 linked 1000\n200000 zstd:level=6 linked 1000000\n");
    let replayed = replayed.unwrap().to_string();
    for spec in policies().iter().flat_map(|p| p.examples).map(|s| policies().parse(s).unwrap()) {
        let spec = if spec.name() == "replay" { spec.load(replayed.as_bytes()).unwrap() } else { spec };
        let history = if spec.links() { HISTORY_DEFAULT } else { 0 };
        for mbit in [3.0, 200.0] {
            let block_max = spec.block_max();
            let config = SenderConfig { cores: 2, duplex: true, history, block_max, ..SenderConfig::default() };
            let policy = spec.build(&PolicySetup::new(2, Prior::shipped()));
            let mut w = World::new(policy, config, Conditions::steady(mbit));
            w.send_all(&data);
            assert!(w.received == data, "{spec} {mbit}");
        }
    }
}

#[test]
fn balance_takes_a_long_history_where_the_link_is_slow_and_the_repeats_are_far() {
    // Lines of one set in another order: found only far back.
    let lines: Vec<String> =
        (0..16_000u64).map(|i| format!("{:016x} and {:08x}\n", i * i * 7919 + i, i * 31)).collect();
    let mut rng = Rng(3);
    let mut data = Vec::new();
    while data.len() < 6 << 20 {
        data.extend_from_slice(lines[rng.next() as usize % lines.len()].as_bytes());
    }
    let wire = |history| {
        let policy = PolicySpec::balance().build(&PolicySetup::new(2, Prior::shipped()));
        let config = SenderConfig { cores: 2, duplex: true, history, ..SenderConfig::default() };
        let mut w = World::new(policy, config, Conditions::steady(20.0));
        w.send_all(&data);
        w.sender.summary().wire_bytes
    };
    let (short, long) = (wire(BASELINE_HISTORY), wire(HISTORY_DEFAULT));
    assert!(long * 100 < short * 95, "{long} against {short}");
}

#[test]
fn histories_in_flight_count_as_memory() {
    let data = text(24 << 20, 4);
    let memory_max = 12 << 20;
    let config = SenderConfig { memory_max, ..SenderConfig { cores: 4, duplex: true, ..SenderConfig::default() } };
    let mut w = World::new(linked(Method::zstd(9), 512 << 10, usize::MAX), config, Conditions::steady(100.0));
    w.send_all(&data);
    let peak = w.sender.summary().memory_peak as usize;
    // One block more than fits: its encoder, its history, and itself twice.
    assert!(peak <= memory_max + (11 << 20), "{peak}");
    assert!(w.received == data);
}
