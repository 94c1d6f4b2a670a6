//! The engine in virtual time with simple policies: bytes, order, memory, rescue, idle flows. Tests
//! check counts, never seconds.

mod world;

use std::sync::{Arc, Mutex};

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::codec::{CodecId, DEFAULT_METHODS, Method};
use narrows::monitor::View;
use narrows::monitor::cost::Prior;
use narrows::policy::{Choice, Policy, PolicySetup, PolicySpec, Rescue};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{JobKind, LinkSample, Sender, SenderConfig};
use narrows::stream::encode;
use world::{Conditions, MS, Rng, SECOND, World, random, text};

/// A policy that chooses by a closure. If `rescue` is set, it rescues at once with `store`.
struct Scripted<F> {
    choose: F,
    rescue: bool,
}

impl<F: FnMut(&View<'_>) -> Choice + Send> Policy for Scripted<F> {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        (self.choose)(view)
    }

    fn rescue(&mut self, _: &View<'_>) -> Rescue {
        if self.rescue { Rescue::TakeOver(Method::STORE) } else { Rescue::WaitUntil(u64::MAX) }
    }
}

fn fixed(method: Method, block_len: usize, linked: bool) -> Box<dyn Policy> {
    let choose = move |_: &View<'_>| Choice { linked, ..Choice::new(method, block_len) };
    Box::new(Scripted { choose, rescue: false })
}

fn config(cores: usize) -> SenderConfig {
    SenderConfig { cores, duplex: true, ..SenderConfig::default() }
}

#[test]
fn every_default_method_delivers_the_same_bytes_linked_or_not() {
    let data = [text(200_000, 1), random(50_000, 2), vec![7; 70_000], text(1, 3)].concat();
    for &method in DEFAULT_METHODS {
        for linked in [false, true] {
            let mut w = World::new(fixed(method, 30_000, linked), config(3), Conditions::steady(100.0));
            w.send_all(&data);
            assert!(w.received == data, "{method} linked={linked}");
        }
    }
}

#[test]
fn linking_saves_bytes() {
    let data = text(400_000, 5);
    let wire = |linked| {
        let mut w = World::new(fixed(Method::zstd(3), 8192, linked), config(2), Conditions::steady(100.0));
        w.send_all(&data);
        w.sender.summary().wire_bytes
    };
    assert!(wire(true) * 10 < wire(false) * 9);
}

#[test]
fn where_nobody_waits_whole_blocks_are_gathered() {
    let policy = PolicySpec::storage().build(&PolicySetup::new(2, Prior::shipped()));
    let config = SenderConfig { gather_ns: SECOND, duplex: false, ..config(2) };
    let pool = BufferPool::default();
    let mut sender = Sender::new(config, policy, pool.clone());
    let mut raw = text(5 << 20, 1).into_iter();
    let mut write = |sender: &mut Sender, len: usize, now_ns| {
        let bytes: Vec<u8> = raw.by_ref().take(len).collect();
        assert_eq!(sender.write(&bytes, now_ns), len);
    };
    let cut = |sender: &mut Sender, now_ns| {
        let job = sender.poll_job(now_ns)?;
        let (len, method) = (job.raw.len(), job.method);
        sender.finish(encode(job, &mut Contexts::default(), &pool), now_ns);
        assert_eq!(method, Method::zstd(3));
        Some(len)
    };
    // Bytes are gathered until a second has passed since the first of them.
    write(&mut sender, 100, MS);
    write(&mut sender, 200, 2 * MS);
    assert_eq!((cut(&mut sender, 3 * MS), sender.next_wakeup()), (None, Some(SECOND + MS)));
    assert_eq!(cut(&mut sender, SECOND + MS), Some(300));
    // Or until a flush.
    write(&mut sender, 50, 2 * SECOND);
    assert_eq!(cut(&mut sender, 2 * SECOND), None);
    sender.flush();
    assert_eq!((cut(&mut sender, 2 * SECOND), cut(&mut sender, 2 * SECOND)), (Some(50), None));
    // Or until the block is complete, or the flow ends.
    for _ in 0..20 {
        write(&mut sender, 150_000, 3 * SECOND);
    }
    assert_eq!((cut(&mut sender, 3 * SECOND), cut(&mut sender, 3 * SECOND)), (Some(2 << 20), None));
    sender.close(3 * SECOND);
    assert_eq!(cut(&mut sender, 3 * SECOND), Some(3_000_000 - (2 << 20)));
}

/// A policy of whole blocks that notes how many bytes it sees.
struct Looking(Arc<Mutex<Vec<usize>>>);

impl Policy for Looking {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        self.0.lock().unwrap().push(view.upcoming.len());
        Choice::new(Method::STORE, 1 << 20)
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(1 << 20)
    }
}

#[test]
fn a_policy_of_whole_blocks_sees_the_whole_of_each() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let config = SenderConfig { gather_ns: u64::MAX, duplex: false, ..config(1) };
    let pool = BufferPool::default();
    let mut sender = Sender::new(config, Box::new(Looking(seen.clone())), pool.clone());
    let (mut wire, mut pushed) = (0, 0);
    for i in 1..200 {
        if sender.is_full() {
            break;
        }
        sender.push(Block::from_vec(text(100_000, i)), i * SECOND);
        pushed += 100_000;
        while let Some(job) = sender.poll_job(i * SECOND) {
            sender.finish(encode(job, &mut Contexts::default(), &pool), i * SECOND);
        }
        // The link takes all at once, as memory does.
        while let Some(frame) = sender.poll_transmit() {
            wire += frame.wire_len() as u64;
            let now_ns = i * SECOND;
            sender.on_link(LinkSample {
                begin_ns: now_ns,
                end_ns: now_ns + 1000,
                accepted: wire,
                ..Default::default()
            });
        }
    }
    sender.close(200 * SECOND);
    while let Some(job) = sender.poll_job(200 * SECOND) {
        sender.finish(encode(job, &mut Contexts::default(), &pool), 200 * SECOND);
    }
    let seen = seen.lock().unwrap();
    let (last, whole) = seen.split_last().unwrap();
    assert!(whole.len() > 10 && whole.iter().all(|len| *len >= 1 << 20), "{seen:?}");
    assert_eq!(*last, pushed % (1 << 20));
    assert!(sender.is_in_memory(), "else it tries less than it says");
}

#[test]
fn copies_that_leave_no_room_for_a_whole_block_do_not_wait_for_one() {
    let policy = PolicySpec::storage().build(&PolicySetup::new(2, Prior::shipped()));
    let config = SenderConfig { gather_ns: SECOND, duplex: false, block_max: 128 << 10, reach: 1 << 20, ..config(2) };
    let mut sender = Sender::new(config, policy, BufferPool::default());
    let raw = Block::from_vec(text(10_000, 1));
    sender.push(raw.clone(), MS);
    let mut copies = 0;
    while !sender.is_full() {
        sender.push_copy(10_000, raw.clone(), MS);
        copies += 1;
    }
    assert!(copies > 10 && sender.room() > 0, "{copies} copies, room for {}", sender.room());
    assert!(sender.poll_job(MS).is_some(), "nothing more can come before this block leaves");
}

#[test]
fn flushed_bytes_do_not_wait_for_a_link_whose_reader_sleeps() {
    let mut sender = Sender::new(config(2), fixed(Method::STORE, 1000, false), BufferPool::default());
    // The preface stays in the socket of the receiver, which reads nothing.
    let preface_len = sender.poll_transmit().map_or(0, |frame| frame.wire_len() as u64);
    let taken = LinkSample { accepted: preface_len, unsent_after: preface_len, ..LinkSample::default() };
    sender.on_link(taken);
    for i in 1..100 {
        let (begin_ns, end_ns) = (i * 10 * MS, i * 10 * MS);
        sender.on_link(LinkSample { begin_ns, end_ns, unsent_before: preface_len, accepted: 0, ..taken });
    }
    assert_eq!(sender.write(b"request", SECOND), 7);
    assert!(sender.poll_job(SECOND).is_none(), "a link that stands still is busy");
    sender.flush();
    assert_eq!(sender.poll_job(SECOND).map(|job| job.raw.len()), Some(7));
}

#[test]
fn an_empty_flow_is_a_preface_and_an_end() {
    let mut w = World::new(fixed(Method::STORE, 1000, false), config(1), Conditions::steady(10.0));
    w.finish();
    assert_eq!((w.received.len(), w.sender.summary().frames), (0, 0));
    assert_eq!(w.sender.summary().wire_bytes, 32 + 42);
}

#[test]
fn random_methods_lengths_and_writes_arrive_in_order() {
    for seed in 1..=30 {
        let mut rng = Rng(seed);
        let data = [text(300_000, seed), random(60_000, seed)].concat();
        let choose = move |_: &View<'_>| {
            let method = DEFAULT_METHODS[rng.next() as usize % DEFAULT_METHODS.len()];
            Choice { linked: rng.next().is_multiple_of(2), ..Choice::new(method, 1 + rng.next() as usize % 60_000) }
        };
        let policy = Box::new(Scripted { choose, rescue: seed % 2 == 0 });
        let mut w = World::new(
            policy,
            SenderConfig { index: true, ..config(1 + seed as usize % 4) },
            Conditions::steady(300.0),
        );
        let mut rng = Rng(seed * 7);
        let mut at = 0;
        while at < data.len() {
            let len = (1 + rng.next() as usize % 9000).min(data.len() - at).min(w.sender.room());
            if len > 0 {
                w.write(&data[at..at + len]);
                at += len;
            }
            w.run_until(w.now_ns + rng.next() % MS);
        }
        w.finish();
        assert!(w.received == data, "seed {seed}");
    }
}

#[test]
fn a_lone_small_write_leaves_in_the_same_instant() {
    let mut w = World::new(fixed(Method::STORE, 128 << 10, false), config(2), Conditions::steady(1000.0));
    w.run_until(SECOND);
    w.write(&[5; 100]);
    assert_eq!(w.sender.summary().frames, 1, "the frame was handed to the link before the clock moved");
}

#[test]
fn small_writes_gather_while_the_link_is_busy() {
    let mut w = World::new(fixed(Method::STORE, 128 << 10, false), config(2), Conditions::steady(1.0));
    for _ in 0..2000 {
        w.write(&[b'x'; 100]);
        w.run_until(w.now_ns + MS / 2);
    }
    w.finish();
    let frames = w.sender.summary().frames;
    assert!(frames < 300, "{frames} frames for 2000 writes on a busy link");
    assert_eq!(w.received.len(), 200_000);
}

#[test]
fn an_hour_of_silence_is_not_busy_time() {
    let mut w = World::new(fixed(Method::STORE, 128 << 10, false), config(2), Conditions::steady(100.0));
    w.write(&text(100_000, 1));
    w.run_until(3600 * SECOND);
    w.write(&text(100_000, 2));
    let idle_ns = w.sender.summary().idle_ns;
    assert!(idle_ns > 3590 * SECOND, "{idle_ns}");
    w.finish();
    assert_eq!(w.received.len(), 200_000);
}

#[test]
fn time_until_the_receiver_has_stored_all_is_not_the_source_s() {
    let mut w = World::new(fixed(Method::STORE, 128 << 10, false), config(2), Conditions::steady(100.0));
    w.send_all(&text(100_000, 1));
    let idle_ns = w.sender.summary().idle_ns;
    let stored = w.receiver.close_message(None);
    w.sender.receive(&stored, w.now_ns + 60 * SECOND).unwrap();
    let summary = w.sender.summary();
    assert!(summary.confirm_ns > 59 * SECOND && summary.idle_ns == idle_ns, "{summary:?}");
}

#[test]
fn what_crossed_is_what_the_receiver_has_delivered_and_of_a_silent_one_what_left_this_host() {
    for duplex in [true, false] {
        let data = random(400_000, 1);
        // It takes all at once.
        let conditions = Conditions { kernel_buffer: 1 << 20, ..Conditions::steady(1.0) };
        let mut w = World::new(fixed(Method::STORE, 16 << 10, false), SenderConfig { duplex, ..config(2) }, conditions);
        w.write(&data);
        let mut seen = Vec::new();
        for i in 1..30 {
            w.run_until(i * 100 * MS);
            if !duplex {
                w.look_at_link();
            }
            let summary = w.sender.summary().clone();
            assert!(summary.raw_bytes > 390_000, "all but the rest is handed to the link");
            let crossed = summary.crossed_raw_bytes;
            // What has left this host may have to be decoded yet.
            let most = w.received.len() + if duplex { 0 } else { 16 << 10 };
            assert!(crossed <= most as u64, "{duplex}: {crossed} of {most}");
            assert!(summary.crossed_wire_bytes >= crossed && summary.crossed_wire_bytes < crossed + (20 << 10));
            seen.push(crossed);
        }
        // 1 Mbit/s; reports come twice a second.
        assert!(seen.is_sorted() && (60_000..120_000).contains(&seen[9]), "{duplex}: {seen:?}");
        w.finish();
        let stored = w.receiver.close_message(None);
        if duplex {
            w.sender.receive(&stored, w.now_ns).unwrap();
            assert_eq!(w.sender.summary().crossed_raw_bytes, 400_000);
        }
    }
}

#[test]
fn a_late_block_is_taken_over_and_arrives_once() {
    let data = text(600_000, 9);
    let choose = |_: &View<'_>| Choice::new(DEFAULT_METHODS[11], 100_000);
    let mut w = World::new(Box::new(Scripted { choose, rescue: true }), config(1), Conditions::steady(1000.0));
    w.send_all(&data);
    assert!(w.received == data);
    assert!(w.sender.summary().rescued_blocks > 0);
    assert!(w.chosen.iter().any(|c| c.kind == JobKind::Rescue));
}

#[test]
fn memory_in_flight_is_bounded() {
    let data = text(30 << 20, 4);
    let memory_max = 8 << 20;
    let config = SenderConfig { memory_max, ..config(4) };
    let mut w = World::new(fixed(Method::zstd(1), 512 << 10, false), config, Conditions::steady(100.0));
    w.send_all(&data);
    let peak = w.sender.summary().memory_peak as usize;
    assert!(peak <= memory_max + (4 << 20), "{peak}");
    assert!(w.received == data);
}

#[test]
fn a_slow_reader_stops_the_link_and_nothing_is_lost() {
    let data = text(4 << 20, 4);
    let conditions = Conditions { receiver_slowdown: 50.0, receiver_buffer: 300_000, ..Conditions::steady(10_000.0) };
    let mut w = World::new(fixed(Method::zstd(1), 128 << 10, false), config(4), conditions);
    w.send_all(&data);
    assert!(w.received == data);
}

/// A policy with a window of two blocks.
struct Narrow;

impl Policy for Narrow {
    fn choose(&mut self, _: &View<'_>) -> Choice {
        Choice::new(Method::STORE, 10_000)
    }

    fn rescue(&mut self, _: &View<'_>) -> Rescue {
        Rescue::TakeOver(Method::STORE)
    }

    fn window(&self, _: usize) -> usize {
        2
    }
}

#[test]
fn a_full_window_is_looked_at_before_the_link_is_dry() {
    let pool = BufferPool::default();
    let mut contexts = Contexts::default();
    let mut sender = Sender::new(SenderConfig::default(), Box::new(Narrow), pool.clone());
    let sample = |ns: u64, unsent: [u64; 2], accepted: u64| LinkSample {
        begin_ns: ns,
        end_ns: ns,
        unsent_before: unsent[0],
        unsent_after: unsent[1],
        accepted,
        busy_ns: Some(ns),
        ..LinkSample::default()
    };
    sender.write(&[1; 60_000], 0);
    let mut wire = 0;
    for ns in [1, 2] {
        let job = sender.poll_job(ns).expect("the window has room");
        sender.finish(job.run(&mut contexts, &pool), ns);
    }
    while let Some(frame) = sender.poll_transmit() {
        wire += frame.wire_len() as u64;
    }
    // The link needs 10 ms for all of it.
    sender.on_link(sample(10, [0, wire], wire));
    sender.on_link(sample(5 * MS, [wire / 3, wire / 3], 0));
    assert!(sender.poll_job(5 * MS).is_some(), "the first block has left, so there is room for a block");
    assert!(sender.poll_job(5 * MS).is_none());

    let mut full = Sender::new(SenderConfig::default(), Box::new(Narrow), pool.clone());
    full.write(&[1; 60_000], 0);
    for ns in [1, 2] {
        let job = full.poll_job(ns).expect("the window has room");
        full.finish(job.run(&mut contexts, &pool), ns);
    }
    while full.poll_transmit().is_some() {}
    full.on_link(sample(10 * MS, [0, 9 * wire / 10], wire));
    let look_ns = full.next_wakeup().expect("it waits for room");
    assert!(look_ns > 10 * MS && look_ns < 20 * MS, "{look_ns}: the link is dry after 46 ms");
    assert!(full.on_link_dry(look_ns).is_none(), "and nothing is taken over before");
}

#[test]
fn what_the_driver_writes_between_frames_counts_as_none_of_them() {
    let pool = BufferPool::default();
    let mut sender = Sender::new(config(2), fixed(Method::STORE, 1000, false), pool.clone());
    let preface_len = sender.poll_transmit().map_or(0, |frame| frame.wire_len() as u64);
    sender.on_link(LinkSample { accepted: preface_len, ..LinkSample::default() });
    sender.pass(5000);
    assert!(sender.has_work(), "they are on their way");
    sender.on_link(LinkSample { begin_ns: MS, end_ns: MS, accepted: 5000, ..LinkSample::default() });
    assert!(!sender.has_work());
    sender.write(&[1; 1000], 2 * MS);
    sender.flush();
    let job = sender.poll_job(2 * MS).expect("the bytes are flushed");
    sender.finish(job.run(&mut Contexts::default(), &pool), 2 * MS);
    let frame_len = sender.poll_transmit().map_or(0, |frame| frame.wire_len() as u64);
    assert!(sender.has_work(), "the link has not taken the frame");
    sender.on_link(LinkSample { begin_ns: 3 * MS, end_ns: 3 * MS, accepted: frame_len, ..LinkSample::default() });
    assert!(!sender.has_work());
}

#[test]
fn a_look_comes_soon_however_low_the_rate_is_believed_to_be() {
    let pool = BufferPool::default();
    let mut contexts = Contexts::default();
    let mut sender = Sender::new(SenderConfig::default(), Box::new(Narrow), pool.clone());
    sender.write(&[1; 60_000], 0);
    for ns in [1, 2] {
        let job = sender.poll_job(ns).expect("the window has room");
        sender.finish(job.run(&mut contexts, &pool), ns);
    }
    while sender.poll_transmit().is_some() {}
    let look = |ns: u64, unsent: u64, accepted: u64| LinkSample {
        begin_ns: ns,
        end_ns: ns,
        unsent_before: unsent,
        unsent_after: unsent + accepted,
        accepted,
        ..LinkSample::default()
    };
    sender.on_link(look(10, 0, 20_000));
    // The receiver does not read for a minute.
    let mut ns = MS;
    while ns < 60 * SECOND {
        sender.on_link(look(ns, 20_000, 0));
        let next_ns = sender.next_wakeup().expect("bytes wait in the link");
        assert!(next_ns <= ns + 5 * MS, "{ns}: {next_ns}");
        // Polling in between does not postpone it.
        assert!(sender.poll_job(ns + MS).is_none());
        assert!(sender.next_wakeup() <= Some(ns + 5 * MS));
        ns += 37 * MS;
    }
}

#[test]
fn frames_that_decode_to_much_more_than_they_are_wait_for_room() {
    let pool = BufferPool::default();
    let mut contexts = Contexts::default();
    let method = Method::new(CodecId::CONSTANT, 0);
    let config = SenderConfig { block_max: 1 << 20, ..SenderConfig::default() };
    let mut sender = Sender::new(config, fixed(method, 1 << 20, false), pool.clone());
    let (blocks, mut wire) = (200, Vec::new());
    let zeros = vec![0; 1 << 20];
    for ns in 0..blocks {
        assert_eq!(sender.write(&zeros, ns), zeros.len());
        let job = sender.poll_job(ns).expect("there is room");
        sender.finish(job.run(&mut contexts, &pool), ns);
        while let Some(frame) = sender.poll_transmit() {
            wire.extend_from_slice(&frame.header);
            wire.extend_from_slice(&frame.body);
        }
        let len = wire.len() as u64;
        sender.on_link(LinkSample { accepted: len, busy_ns: Some(ns + 1), ..LinkSample::default() });
    }
    sender.close(blocks);
    while let Some(frame) = sender.poll_transmit() {
        wire.extend_from_slice(&frame.header);
        wire.extend_from_slice(&frame.body);
    }
    assert!(wire.len() < 8192, "one read brings them all");

    let memory_max = 16 << 20;
    let mut receiver = Receiver::new(ReceiverConfig { memory_max, ..ReceiverConfig::default() }, pool.clone());
    receiver.receive(Block::from_vec(wire)).unwrap();
    let (mut decoded, mut read) = (0, 0);
    loop {
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            decoded += 1 << 20;
            assert!(decoded - read <= memory_max + (1 << 20));
        }
        let Some(raw) = receiver.read() else { break };
        assert!(raw.iter().all(|b| *b == 0));
        read += raw.len();
    }
    assert_eq!(read, (blocks as usize) << 20);
    receiver.close().unwrap();
    assert!(receiver.is_finished());
}

#[test]
fn history_is_the_flow_and_not_what_else_lies_in_a_buffer() {
    let pool = BufferPool::default();
    let mut contexts = Contexts::default();
    let mut sender = Sender::new(SenderConfig::default(), fixed(Method::zstd(3), 4000, true), pool.clone());
    let mut receiver = Receiver::new(ReceiverConfig::default(), pool.clone());
    let data = text(8000, 3);
    // Before the second block its buffer has bytes that do not belong to the flow, such as a
    // stripped header.
    let mut foreign = vec![7; 5000];
    foreign.extend_from_slice(&data[4000..]);
    let mut second = Block::from_vec(foreign);
    let _ = second.split_to(5000);
    sender.push(Block::from_vec(data[..4000].to_vec()), 0);
    sender.push(second, 0);
    sender.close(0);
    while let Some(job) = sender.poll_job(0) {
        sender.finish(job.run(&mut contexts, &pool), 0);
    }
    let mut received = Vec::new();
    while let Some(frame) = sender.poll_transmit() {
        receiver.receive(Block::from_vec(frame.header.to_vec())).unwrap();
        receiver.receive(frame.body).unwrap();
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool)).unwrap();
        }
        received.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
    }
    assert!(received == data);
    assert!(sender.summary().mix.iter().any(|r| r.linked), "or it protects nothing");
}
