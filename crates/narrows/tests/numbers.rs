//! Numbers in plain bytes: who is sent split blocks, and which blocks the policies split. Tests check
//! counts, never seconds.

mod world;

use narrows::block::BufferPool;
use narrows::codec::{CodecId, Contexts, Method};
use narrows::frame::{BASELINE_CODECS, HISTORY_DEFAULT, NAMED_CODECS, Preface, Role, codecs_of_this_build};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows::sender::{Sender, SenderConfig};
use narrows::stream::encode;
use world::{Conditions, MS, World, random, text};

/// A slow walk of floats with a little noise: their first bytes repeat, their last ones do not.
fn numbers(len: usize) -> Vec<u8> {
    let noise = random(len / 4, 1);
    let value = |(i, n): (usize, u8)| 280.0 + (i as f32 / 500.0).sin() * 20.0 + f32::from(n) / 300.0;
    noise.into_iter().enumerate().map(value).flat_map(f32::to_le_bytes).collect()
}

fn policy(spec: &str) -> Box<dyn narrows::policy::Policy> {
    spec.parse::<PolicySpec>().unwrap().build(&PolicySetup::new(2, Prior::shipped()))
}

/// The preface of a receiver with these codecs.
fn answer(codecs: u64) -> [u8; 32] {
    let history = HISTORY_DEFAULT;
    let preface = Preface {
        role: Role::Receiver,
        critical: 0,
        optional: 0,
        check: true,
        block_max: 2 << 20,
        history,
        reach: 0,
        codecs,
    };
    preface.encode()
}

/// Methods of the blocks of numbers before and behind the receiver's preface.
fn methods(spec: &str, config: SenderConfig, codecs: Option<u64>) -> (Vec<Method>, Vec<Method>) {
    let pool = BufferPool::default();
    let mut sender = Sender::new(config, policy(spec), pool.clone());
    let raw = numbers(4 << 20);
    let (mut at, mut now_ns, mut contexts) = (0, MS, Contexts::default());
    let mut blocks = |sender: &mut Sender, count: usize| {
        let mut methods = Vec::new();
        while methods.len() < count && at < raw.len() {
            at += sender.write(&raw[at..], now_ns);
            sender.flush();
            while let Some(job) = sender.poll_job(now_ns) {
                methods.push(job.method);
                sender.finish(encode(job, &mut contexts, &pool), now_ns);
            }
            while sender.poll_transmit().is_some() {}
            now_ns += MS;
        }
        methods
    };
    let before = blocks(&mut sender, 3);
    if let Some(codecs) = codecs {
        sender.receive(&answer(codecs), 5 * MS).unwrap();
    }
    (before, blocks(&mut sender, 3))
}

#[test]
fn a_receiver_gets_split_blocks_only_if_it_has_the_codec() {
    let config = |duplex| SenderConfig { duplex, block_max: 64 << 10, memory_max: 1 << 30, ..SenderConfig::default() };
    let splits = |methods: &[Method]| methods.iter().filter(|m| m.is_for_numbers()).count();
    for spec in ["fixed:split", "storage"] {
        let (before, behind) = methods(spec, config(true), Some(codecs_of_this_build()));
        assert_eq!(splits(&before), 0, "{spec}: the receiver has said nothing");
        assert!(splits(&behind) > 0, "{spec}: {behind:?}");
        let (before, behind) = methods(spec, config(true), Some(BASELINE_CODECS));
        assert_eq!((splits(&before), splits(&behind)), (0, 0), "{spec}: the receiver lacks it");
        let (before, _) = methods(spec, config(false), None);
        assert!(splits(&before) > 0, "{spec}: on a one-way link the preface of the sender counts");
        let without = SenderConfig { codecs: !NAMED_CODECS, ..config(false) };
        assert_eq!(splits(&methods(spec, without, None).0), 0, "{spec}: a reader that may lack it");
    }
}

#[test]
fn balance_splits_numbers_on_slow_links_and_nothing_else() {
    let data = [numbers(3 << 20), text(1 << 20, 2), random(1 << 20, 3)];
    for mbit in [10.0, 100.0] {
        for (raw, is_numbers) in data.iter().zip([true, false, false]) {
            let config = SenderConfig { cores: 2, duplex: true, block_max: 512 << 10, ..SenderConfig::default() };
            let mut w = World::new(policy("balance"), config, Conditions::steady(mbit));
            w.send_all(raw);
            assert!(w.received == *raw);
            let split: usize = w.chosen.iter().filter(|c| c.method.codec == CodecId::SPLIT).map(|c| c.raw_len).sum();
            assert_eq!(split > raw.len() / 2, is_numbers, "{mbit} Mbit/s: {split} bytes were split");
            assert!(is_numbers || split == 0, "{mbit} Mbit/s: {split}");
        }
    }
}

#[test]
fn files_of_numbers_shrink_by_the_split() {
    let raw = numbers(4 << 20);
    let wire = |spec: &str, codecs| {
        let config = SenderConfig { cores: 2, codecs, ..SenderConfig::default() };
        let mut w = World::new(policy(spec), config, Conditions::steady(1000.0));
        w.send_all(&raw);
        assert!(w.received == raw);
        w.sender.summary().wire_bytes
    };
    for spec in ["storage", "storage:mode=balanced", "storage:mode=archive"] {
        let (with, without) = (wire(spec, u64::MAX), wire(spec, !NAMED_CODECS));
        assert!(with * 100 < without * 95, "{spec}: {with} {without}");
    }
}
