//! Numbers, base64 and images in plain bytes: who is sent blocks with a step of their own, and which blocks
//! the policies make. Tests check counts, never seconds.

mod world;

use narrows::block::BufferPool;
use narrows::codec::{CodecId, Contexts, DEFAULT_METHODS, Method};
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

/// Mails, three quarters of which are attachments of text and noise.
fn mails(len: usize) -> Vec<u8> {
    let mail = |i: u64| {
        let attachment = [text(30_000, i), random(10_000, i)].concat();
        narrows_test::mail(&String::from_utf8_lossy(&text(15_000, i + 99)), &attachment)
    };
    let mut mails: Vec<u8> = (0..).map(mail).take(len / 60_000 + 1).flatten().collect();
    mails.truncate(len);
    mails
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

/// Methods of the blocks before and after the receiver's preface.
fn methods(spec: &str, raw: &[u8], config: SenderConfig, codecs: Option<u64>) -> (Vec<Method>, Vec<Method>) {
    let pool = BufferPool::default();
    let mut sender = Sender::new(config, policy(spec), pool.clone());
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
fn a_receiver_gets_blocks_with_a_step_only_if_it_has_the_codec() {
    let config = |duplex| SenderConfig { duplex, block_max: 64 << 10, memory_max: 1 << 30, ..SenderConfig::default() };
    let steps = |methods: &[Method]| methods.iter().filter(|m| m.without_step().is_some()).count();
    let (numbers, mails) = (numbers(4 << 20), mails(4 << 20));
    for (spec, raw) in [("fixed:split", &numbers), ("storage", &numbers), ("fixed:base64", &mails), ("storage", &mails)]
    {
        let (before, behind) = methods(spec, raw, config(true), Some(codecs_of_this_build()));
        assert_eq!(steps(&before), 0, "{spec}: the receiver has said nothing");
        assert!(steps(&behind) > 0, "{spec}: {behind:?}");
        let (before, behind) = methods(spec, raw, config(true), Some(BASELINE_CODECS));
        assert_eq!((steps(&before), steps(&behind)), (0, 0), "{spec}: the receiver lacks it");
        let (before, _) = methods(spec, raw, config(false), None);
        assert!(steps(&before) > 0, "{spec}: on a one-way link the preface of the sender counts");
        let without = SenderConfig { codecs: !NAMED_CODECS, ..config(false) };
        assert_eq!(steps(&methods(spec, raw, without, None).0), 0, "{spec}: a reader that may lack it");
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
fn balance_decodes_base64_if_it_is_named_and_nothing_else() {
    let methods = [DEFAULT_METHODS, &[Method::base64(1), Method::base64(9)]].concat();
    let data = [mails(2 << 20), text(512 << 10, 2), random(512 << 10, 3), numbers(512 << 10)];
    for mbit in [10.0, 100.0] {
        for (raw, is_mail) in data.iter().zip([true, false, false, false]) {
            let config = SenderConfig { cores: 2, duplex: true, block_max: 512 << 10, ..SenderConfig::default() };
            let setup = PolicySetup { methods: &methods, ..PolicySetup::new(2, Prior::shipped()) };
            let mut w = World::new(PolicySpec::balance().build(&setup), config, Conditions::steady(mbit));
            w.send_all(raw);
            assert!(w.received == *raw);
            let of_base64 = w.chosen.iter().filter(|c| c.method.codec == CodecId::BASE64);
            let decoded: usize = of_base64.map(|c| c.raw_len).sum();
            assert_eq!(decoded > raw.len() / 2, is_mail, "{mbit} Mbit/s: {decoded} bytes");
            assert!(is_mail || decoded == 0, "{mbit} Mbit/s: {decoded}");
        }
    }
}

/// Lengths of the images that were recompressed, of a row of images with text between them.
fn recompressed(mbit: f64, images: bool, codecs: u64, raw: &[u8]) -> Vec<usize> {
    let cores = 2;
    let setup = PolicySetup { images, ..PolicySetup::new(cores, Prior::shipped()) };
    let config = SenderConfig {
        cores,
        codecs,
        duplex: true,
        block_max: 2 << 20,
        memory_max: 100 << 20,
        ..SenderConfig::default()
    };
    let mut w = World::new(PolicySpec::balance().build(&setup), config, Conditions::steady(mbit));
    w.send_all(raw);
    assert!(w.received == raw);
    w.chosen.iter().filter(|c| c.method == Method::LEPTON).map(|c| c.raw_len).collect()
}

#[test]
fn balance_recompresses_images_where_that_pays() {
    let images: Vec<Vec<u8>> = (0..12).map(|i| narrows_test::jpeg(320, 200, i % 2 == 0, i)).collect();
    // A few bytes after an image go with it if another one follows.
    let gap = |i: usize| if i.is_multiple_of(3) { 3000 } else { 40 };
    let parts = images.iter().enumerate().map(|(i, image)| [&text(gap(i), 1)[..], image].concat());
    let raw = [text(200_000, 9), parts.flatten().collect()].concat();
    let is_image = |len: usize| images.iter().any(|image| [0, 40].contains(&len.wrapping_sub(image.len())));
    let whole = |lens: &[usize]| lens.iter().all(|len| is_image(*len));
    for mbit in [1.0, 10.0] {
        let lens = recompressed(mbit, true, u64::MAX, &raw);
        assert!(lens.len() >= 10 && whole(&lens), "{mbit} Mbit/s: {lens:?}");
    }
    // Two cores cannot make all of them in time, and then none.
    let some = recompressed(100.0, true, u64::MAX, &raw);
    assert!(!some.is_empty() && some.len() < 12 && whole(&some), "{some:?}");
    assert_eq!(recompressed(1000.0, true, u64::MAX, &raw), []);
    assert_eq!(recompressed(10.0, false, u64::MAX, &raw), [], "nobody asked for it");
    assert_eq!(recompressed(10.0, true, !NAMED_CODECS, &raw), [], "the other end does not know the codec");
    // A file of noise, with what begins like images and is none.
    let noise =
        [random(100_000, 4), images[0][..9000].to_vec(), b"\xff\xd8\xff".repeat(50), random(100_000, 5)].concat();
    assert_eq!(recompressed(10.0, true, u64::MAX, &noise), []);
}

/// Bytes that a file of `raw` takes.
fn stored_len(raw: &[u8], spec: &str, codecs: u64) -> u64 {
    let config = SenderConfig { cores: 2, codecs, ..SenderConfig::default() };
    let mut w = World::new(policy(spec), config, Conditions::steady(1000.0));
    w.send_all(raw);
    assert!(w.received == raw);
    w.sender.summary().wire_bytes
}

fn assert_smaller_by_named_codecs(raw: &[u8]) {
    for spec in ["storage", "storage:mode=balanced", "storage:mode=archive"] {
        let (with, without) = (stored_len(raw, spec, u64::MAX), stored_len(raw, spec, !NAMED_CODECS));
        assert!(with * 100 < without * 95, "{spec}: {with} {without}");
    }
}

#[test]
fn files_of_mail_shrink_by_the_codec() {
    let raw = mails(2 << 20);
    assert_smaller_by_named_codecs(&raw);
    for spec in ["storage:mode=fast", "storage:mode=balanced,methods=zstd"] {
        assert_eq!(stored_len(&raw, spec, u64::MAX), stored_len(&raw, spec, !NAMED_CODECS), "{spec}");
    }
}

#[test]
fn files_of_numbers_shrink_by_the_split() {
    let raw = numbers(4 << 20);
    assert_smaller_by_named_codecs(&raw);
}
