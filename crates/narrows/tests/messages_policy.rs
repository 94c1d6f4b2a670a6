//! The policy for messages in virtual time: a ping-pong over links of every rate, whose sender
//! learns only from the times of its messages. Costs and lengths are those of real encoders on
//! generated messages, times are computed.

mod message_world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use message_world::{Random, STREAM, UNITS, config, dictionary, ends, fixed, settle};
use narrows::codec::{CodecId, Method};
use narrows::message::{MessageConfig, MessageSender, Training};
use narrows::monitor::View;
use narrows::monitor::cost::Prior;
use narrows::policy::{Choice, Outcome, Policy, PolicySetup, PolicySpec};

const MS: u64 = 1_000_000;

fn policy(spec: &str) -> Box<dyn Policy> {
    spec.parse::<PolicySpec>().unwrap().build(&PolicySetup::new(1, Prior::shipped()))
}

/// Model of one direction's time in microseconds: hosts, codecs at both ends, link.
struct Wire {
    us_per_byte: f64,
    base_us: f64,
    /// Maximum of the noise.
    noise_us: f64,
    /// Factor by which the cores are slower than usual.
    slow: f64,
    /// Mean of the noise of a host with other work: most times have little of it, some have much.
    busy_us: f64,
}

impl Wire {
    fn mbit(mbit: f64) -> Self {
        Self { us_per_byte: 8.0 / mbit, base_us: 12.0, noise_us: 2.0, slow: 1.0, busy_us: 0.0 }
    }

    fn codec_us(&self, method: Method, linked: bool, slot: bool, raw_len: usize) -> (f64, f64) {
        let n = raw_len as f64;
        let (encode, decode) = match (method.codec.0, linked, slot) {
            (0, ..) => (0.0, 0.0),
            (2, true, _) => (0.7 + 0.0010 * n, 0.3 + 0.0005 * n),
            (2, ..) => (0.6 + 0.0017 * n, 0.2 + 0.0003 * n),
            (_, _, true) => (3.0 + 0.004 * n, 1.0 + 0.002 * n),
            _ => (6.0 + 0.006 * n, 2.0 + 0.002 * n),
        };
        (encode * self.slow, decode * self.slow)
    }
}

struct Run {
    us: f64,
    methods: Vec<(Method, bool)>,
    trace: String,
}

impl Run {
    fn share(&self, from: usize, is: impl Fn(Method, bool) -> bool) -> f64 {
        let late = &self.methods[from..];
        late.iter().filter(|(m, l)| is(*m, *l)).count() as f64 / late.len() as f64
    }
}

/// Records whether the last choice was to encode both ways.
struct Watched {
    policy: Box<dyn Policy>,
    both: Arc<AtomicBool>,
}

impl Policy for Watched {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let choice = self.policy.choose(view);
        let both = choice.linked && choice.method.codec == CodecId::ZSTD && view.limits.dictionary.is_some();
        self.both.store(both, Ordering::Relaxed);
        choice
    }

    fn learn(&mut self, outcome: &Outcome) {
        self.policy.learn(outcome);
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        self.policy.explain()
    }
}

/// A ping-pong of `messages` over `wire`, each answered by one byte; `wire` may change with the message's number.
fn ping_pong(policy: Box<dyn Policy>, messages: &[Vec<u8>], wire: impl Fn(usize) -> Wire, spoken: bool) -> Run {
    ping_pong_of(config(STREAM), policy, messages, wire, spoken)
}

fn ping_pong_of(
    config: MessageConfig,
    policy: Box<dyn Policy>,
    messages: &[Vec<u8>],
    wire: impl Fn(usize) -> Wire,
    spoken: bool,
) -> Run {
    let (mut a, mut b) = ends(&config, || fixed("store"));
    let both = Arc::new(AtomicBool::new(false));
    let policy = Box::new(Watched { policy, both: Arc::clone(&both) });
    a.sender = MessageSender::new(MessageConfig { epoch: 1, ..config }, policy).unwrap();
    a.sender.record();
    let (mut random, mut total, mut methods) = (Random(99), 0.0, Vec::new());
    for (i, message) in messages.iter().enumerate() {
        let wire = wire(i);
        a.now_ns = (total * 1e3) as u64;
        let (sent, unit) = a.sent(message);
        let (mut encode, decode) = wire.codec_us(sent.method, sent.linked, sent.slot > 0, message.len());
        if both.load(Ordering::Relaxed) {
            let ways = [(Method::lz4_accel(1), true), (Method::zstd(1), false)];
            encode = ways.iter().map(|(m, linked)| wire.codec_us(*m, *linked, true, message.len()).0).sum();
        }
        a.sender.took((encode * 1e3) as u64);
        b.receive(&unit).unwrap();
        b.receiver.took((decode * 1e3) as u64);
        let noise = wire.noise_us * random.draw(1000) as f64 / 1000.0
            - wire.busy_us
                * (random.draw(1000) as f64 / 1000.0 + 1e-4).ln()
                * if random.draw(50) == 0 { 20.0 } else { 1.0 };
        let span = 2.0 * wire.base_us + noise + decode + (unit.len() as f64 + 91.0) * wire.us_per_byte;
        if spoken {
            a.sender.answered(sent.seq, sent.wire_len, (span * 1e3) as u64);
        }
        let back = b.unit(b"!");
        a.receive(&back).unwrap();
        total += encode + span;
        methods.push((sent.method, sent.linked));
    }
    assert_eq!(b.got.len(), messages.len());
    Run { us: total, methods, trace: a.sender.take_trace() }
}

fn messages(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random(1);
    (0..count)
        .map(|_| {
            let mut message = random.message();
            while message.len() < 450 {
                message.extend(random.message());
            }
            message
        })
        .collect()
}

#[test]
fn with_a_dictionary_the_rule_is_close_to_the_best_fixed_method_too() {
    // Messages that alternately repeat recent ones and are typical, with various lengths.
    let mut random = Random(5);
    let seed = Training::of(&(0..400).map(|_| random.message()).collect::<Vec<_>>(), 1 << 40).run().unwrap().dictionary;
    let mut said: Vec<Vec<u8>> = Vec::new();
    for i in 0..2000 {
        let message = random.message();
        let earlier = said.len().checked_sub(1 + random.draw(9)).map(|at| said[at].clone());
        said.push(if i % 3 == 0 { earlier.unwrap_or(message) } else { message });
    }
    for messages in [&said[..], &said[..100]] {
        for mbit in [1.0, 10.0, 40.0, 100.0, 400.0, 1000.0, 10_000.0] {
            let wire = |_| Wire::mbit(mbit);
            let config = || MessageConfig { seed: Some(Arc::clone(&seed)), ..config(STREAM) };
            let run = |policy| ping_pong_of(config(), policy, messages, wire, true).us;
            let ours = run(policy("messages"));
            let all = ["store", "lz4:link", "lz4", "zstd:level=1", "zstd:level=1,link"].map(|m| run(fixed(m)));
            let best = all.iter().copied().fold(f64::MAX, f64::min);
            // At first nothing is known about the link; on a fast link the trials take relatively
            // long.
            let least = if messages.len() > 100 {
                0.97
            } else if mbit <= 1000.0 {
                0.94
            } else {
                0.9
            };
            assert!(ours * least <= best, "{} at {mbit} Mbit/s {ours:.0} us, {all:.0?}", messages.len());
            let gains = mbit < 20.0 && messages.len() > 100;
            assert!(!gains || ours < 0.97 * all[1].min(all[3]), "at {mbit} Mbit/s {ours:.0} us, {all:.0?}");
        }
    }
}

#[test]
fn the_rule_is_close_to_the_best_fixed_method_at_every_rate() {
    let messages = messages(2000);
    for mbit in [1.0, 10.0, 40.0, 100.0, 400.0, 1000.0, 10_000.0] {
        let wire = |_| Wire::mbit(mbit);
        let ours = ping_pong(policy("messages"), &messages, wire, true);
        let fixed = ["store", "lz4:link", "lz4", "zstd:level=1"].map(|m| ping_pong(fixed(m), &messages, wire, true).us);
        let best = fixed.iter().copied().fold(f64::MAX, f64::min);
        assert!(ours.us * 0.97 <= best, "at {mbit} Mbit/s {:.0} us, {fixed:.0?}", ours.us);
    }
}

#[test]
fn what_disturbs_more_than_a_message_takes_hides_the_rate_but_costs_little() {
    let messages = messages(2000);
    for (mbit, noise_us) in [(5.0, 1000.0), (20.0, 500.0), (100.0, 300.0)] {
        let wire = |_| Wire { noise_us, ..Wire::mbit(mbit) };
        let ours = ping_pong(policy("messages"), &messages, wire, true);
        let fixed = ["store", "lz4:link", "lz4", "zstd:level=1"].map(|m| ping_pong(fixed(m), &messages, wire, true).us);
        let best = fixed.iter().copied().fold(f64::MAX, f64::min);
        println!("{mbit} {noise_us} {:.4} {:.3}", best / ours.us, ours.share(200, |m, _| m == Method::STORE));
        assert!(ours.us * 0.95 <= best, "{mbit} Mbit/s and {noise_us} us: {:.0} us, {fixed:.0?}", ours.us);
    }
}

#[test]
fn a_busy_host_hides_neither_a_fast_link_nor_that_there_is_none() {
    let messages = messages(3000);
    for us_per_byte in [0.0003, 0.0008, 0.008, 0.016, 0.08] {
        let wire = |_| Wire { us_per_byte, base_us: 10.0, noise_us: 1.0, busy_us: 6.0, ..Wire::mbit(1.0) };
        let ours = ping_pong(policy("messages"), &messages, wire, true);
        let fixed = ["store", "lz4:link", "lz4", "zstd:level=1"].map(|m| ping_pong(fixed(m), &messages, wire, true).us);
        let best = fixed.iter().copied().fold(f64::MAX, f64::min);
        println!("{us_per_byte} {:.4} {:.3}", best / ours.us, ours.share(200, |m, _| m == Method::STORE));
        assert!(ours.us * 0.97 <= best, "{us_per_byte} us per byte: {:.0} us, {fixed:.0?}", ours.us);
    }
}

#[test]
fn a_link_without_a_slope_gets_messages_as_they_are() {
    let wire = |_| Wire { us_per_byte: 0.0005, ..Wire::mbit(1.0) };
    let run = ping_pong(policy("messages"), &messages(2000), wire, true);
    let stored = run.share(500, |m, _| m == Method::STORE);
    assert!(stored > 0.95, "{stored}");
    assert!(stored < 1.0, "others are tried now and then");
}

#[test]
fn a_slow_link_gets_linked_messages_and_few_probes() {
    let run = ping_pong(policy("messages"), &messages(2000), |_| Wire::mbit(10.0), true);
    assert!(run.share(500, |m, linked| linked || m == Method::zstd(1)) > 0.98);
}

#[test]
fn a_link_that_changes_is_followed() {
    let messages = messages(3000);
    let wire = |i| Wire::mbit(if i < 1000 { 10_000.0 } else { 10.0 });
    let run = ping_pong(policy("messages"), &messages, wire, true);
    assert!(run.share(1300, |_, linked| linked) > 0.9, "became slow");
    let wire = |i| if i < 1000 { Wire::mbit(10.0) } else { Wire { us_per_byte: 0.0003, ..Wire::mbit(1.0) } };
    let run = ping_pong(policy("messages"), &messages, wire, true);
    assert!(run.share(2200, |m, _| m == Method::STORE) > 0.85, "became fast");
}

#[test]
fn costs_are_learned_in_the_place() {
    // Cores ten times slower than the prior expects: methods that pay at 100 Mbit/s do not at 400.
    let messages = messages(2000);
    let wire = |_| Wire { slow: 10.0, ..Wire::mbit(400.0) };
    let run = ping_pong(policy("messages"), &messages, wire, true);
    let store = ping_pong(fixed("store"), &messages, wire, true);
    assert!(run.us < 1.05 * store.us, "{:.0} {:.0}", run.us, store.us);
}

#[test]
fn without_answers_bytes_are_worth_something() {
    let run = ping_pong(policy("messages"), &messages(500), |_| Wire::mbit(100.0), false);
    assert!(run.share(50, |_, linked| linked) > 0.9);
}

/// Kinds of messages follow one another, all of one length. A dictionary that is tried on an easier
/// kind looks better than history did on the kind before, but must not stay in use.
#[test]
fn what_was_best_of_other_messages_is_tried_on_these() {
    let mut random = Random(5);
    let templates: Vec<Vec<u8>> = (0..8).map(|_| random.bytes(540)).collect();
    let seed = dictionary(templates.concat());
    let messages: Vec<Vec<u8>> = (0..4000)
        .map(|i| {
            let kind = i / 500 % 8;
            let mut message = templates[kind].clone();
            // Some kinds have more new content, which also affects the message after it.
            for k in 0..4 + 20 * (7 - kind) / 2 {
                message[k * 7] = (i / 4 + k) as u8;
            }
            message
        })
        .collect();
    let run = ping_pong_of(
        MessageConfig { seed: Some(seed.clone()), known: vec![seed], ..config(STREAM) },
        policy("messages"),
        &messages,
        |_| Wire::mbit(100.0),
        true,
    );
    let alone = run.share(100, |_, linked| !linked);
    assert!(alone < 0.1, "{alone}");
}

#[test]
fn a_fast_link_that_becomes_slow_is_noticed_by_messages_of_one_length() {
    let mut random = Random(3);
    let template = random.bytes(600);
    let messages: Vec<Vec<u8>> = (0..6000u32)
        .map(|i| {
            let mut message = template.clone();
            message[..4].copy_from_slice(&i.to_le_bytes());
            message
        })
        .collect();
    // Cold caches: linking costs more than the budget of a probe on a link that seems free.
    let wire = |i| Wire { slow: 6.0, ..if i < 2000 { Wire::mbit(20_000.0) } else { Wire::mbit(5.0) } };
    let run = ping_pong(policy("messages"), &messages, wire, true);
    assert!(run.share(4000, |_, linked| linked) > 0.9);
}

#[test]
fn a_busy_minute_does_not_forbid_a_method_for_ever() {
    let messages = messages(12_000);
    let wire = |i| Wire { slow: if (1000..2000).contains(&i) { 30.0 } else { 1.0 }, ..Wire::mbit(10.0) };
    let run = ping_pong(policy("messages:latency_us=10"), &messages, wire, true);
    assert!(run.share(10_000, |_, linked| linked) > 0.9);
}

#[test]
fn latency_and_cpu_are_kept_to() {
    let messages = messages(1500);
    let slow = |_| Wire { slow: 30.0, ..Wire::mbit(1.0) };
    let free = ping_pong(policy("messages"), &messages, slow, true);
    assert!(free.share(100, |m, _| m != Method::STORE) > 0.9, "on so slow a link everything pays");
    let bound = ping_pong(policy("messages:latency_us=10"), &messages, slow, true);
    assert!(bound.share(100, |m, _| m == Method::STORE) > 0.9);
    // A fast link without pauses between messages: one per cent of a core is 10 ms per second.
    let wire = |_| Wire { slow: 10.0, ..Wire::mbit(200.0) };
    let run = ping_pong(policy("messages:cpu_percent=1"), &messages, wire, true);
    let encoding: f64 =
        run.methods.iter().zip(&messages).map(|((m, l), raw)| wire(0).codec_us(*m, *l, false, raw.len()).0).sum();
    // The short window allows four per cent.
    assert!(encoding < 0.045 * run.us + 1000.0, "{encoding:.0} of {:.0} us", run.us);
    assert!(run.share(0, |m, _| m != Method::STORE) > 0.005);
}

#[test]
fn the_same_messages_get_the_same_choices_and_a_trace_replays_to_them() {
    let messages = messages(600);
    let wire = |_| Wire::mbit(100.0);
    let one = ping_pong(policy("messages"), &messages, wire, true);
    let two = ping_pong(policy("messages"), &messages, wire, true);
    assert!(one.trace == two.trace && one.methods == two.methods);
    let spec = narrows_classic::policies().parse("replay:trace").unwrap();
    let spec = spec.load(one.trace.as_bytes()).unwrap();
    let replay = spec.build(&PolicySetup::new(1, Prior::shipped()));
    let again = ping_pong(replay, &messages, wire, true);
    assert!(again.methods == one.methods);
    assert!(one.methods.iter().any(|m| m.1) && one.methods.iter().any(|m| m.0 == Method::STORE));
}

#[test]
fn absurd_answers_and_times_leave_valid_choices() {
    let mut policy = policy("messages:latency_us=20,cpu_percent=5");
    let (mut a, mut b) = ends(&config(UNITS), || fixed("store"));
    for outcome in [
        Outcome::Answered { seq: u64::MAX, wire_len: 0, span_ns: u64::MAX },
        Outcome::Answered { seq: 0, wire_len: usize::MAX, span_ns: 0 },
        Outcome::Decoded { codec: Method::zstd(1).codec, messages: 1, raw_len: u64::MAX, ns: u64::MAX },
        Outcome::Decoded { codec: Method::STORE.codec, messages: u64::MAX, raw_len: 0, ns: 0 },
        Outcome::Encoded {
            seq: 3,
            method: Method::zstd(1),
            raw_len: 1,
            wire_len: usize::MAX,
            wall_ns: u64::MAX,
            cpu_ns: 0,
            taken_over: true,
        },
    ] {
        (0..50).for_each(|_| policy.learn(&outcome));
    }
    a.sender = MessageSender::new(MessageConfig { epoch: 1, ..config(UNITS) }, policy).unwrap();
    for i in 0..200u64 {
        a.now_ns = i * 100 * MS;
        let unit = a.unit(b"something to say, something to say");
        b.receive(&unit).unwrap();
        settle(&mut a, &mut b);
    }
    assert_eq!(b.got.len(), 200);
}
