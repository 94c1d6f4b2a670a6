//! Cost of linked messages: ratio and microseconds to encode and decode one of 700 to 1000 bytes,
//! in a hot flow and with 2,000 flows in turn, and the memory of 5,000 flows.
//!
//! `cargo run --release -p narrows --example message_cost -- [--corpus DIR]`; DIR has
//! `telecom/msgs/*.msgs`, files of messages, each prefixed with its length (4 bytes, little
//! endian). Without it the messages are generated. Each figure is the tenth percentile of its
//! rounds, so that a busy machine has little influence.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use narrows::codec::{DictionaryContexts, Method};
use narrows::message::{
    Contexts, Dictionary, Event, MessageConfig, MessageEnd, MessageReceiver, MessageSender, Training,
};
use narrows::monitor::cost::Prior;
use narrows::policy::{Fixed, Policy, PolicySetup, PolicySpec};

const ROUNDS: usize = 40;
const FLOWS: usize = 2000;
const FLOWS_IN_MEMORY: usize = 5000;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (corpus, memory_of) = match arguments[..] {
        [] => (None, None),
        ["--corpus", folder] => (Some(folder), None),
        ["--memory", window] => (None, Some(window)),
        ["--memory", window, "--corpus", folder] => (Some(folder), Some(window)),
        _ => panic!("usage: message_cost [--memory W] [--corpus DIR]"),
    };
    let folder = corpus.map(|folder| PathBuf::from(folder).join("telecom/msgs"));
    let messages = folder.as_ref().map_or_else(made_up, |folder| read(&folder.join("natural-450-1450.msgs")));
    if let Some(window) = memory_of {
        return memory(&messages, window.parse().expect("a number of bytes"));
    }
    let middle: Vec<_> = messages.iter().filter(|m| (700..=1000).contains(&m.len())).cloned().collect();
    let bytes: usize = middle.iter().map(Vec::len).sum();
    println!("{} messages of 700 to 1000 bytes, {} on average", middle.len(), bytes / middle.len());
    println!("{:<34} {:>7} {:>10} {:>10} {:>10}", "", "ratio", "encode us", "decode us", "both us");
    for window in [4 << 10, 16 << 10] {
        hot("", &middle, window);
    }
    for window in [4 << 10, 16 << 10, 64 << 10] {
        hot("all lengths, ", &messages, window);
    }
    chosen(&middle);
    for window in [4 << 10, 16 << 10] {
        many(&middle, window);
    }
    println!("{:<34} {:>10} {:>10} {:>10} {:>10}", "ratio of messages", "first", "first 10", "first 100", "tenth");
    match &folder {
        None => starts("made up", &messages),
        Some(folder) => ["sip", "sbi-http", "diameter", "ngap", "s1ap"]
            .iter()
            .for_each(|name| starts(name, &read(&folder.join(format!("{name}.msgs"))))),
    }
    // In separate processes: memory freed before would be reused and not counted.
    for window in ["4096", "16384"] {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        let status = again.args(["--memory", window]).args(&arguments).status();
        assert!(status.is_ok_and(|s| s.success()));
    }
}

fn linked() -> Box<dyn Policy> {
    Box::new(Fixed::new(Method::lz4_accel(1), true))
}

fn messages_policy() -> Box<dyn Policy> {
    PolicySpec::messages().build(&PolicySetup::new(1, Prior::shipped()))
}

fn pair(window: usize, policy: Box<dyn Policy>) -> (MessageSender, MessageReceiver) {
    let config = MessageConfig { history: window, epoch: 1, ..MessageConfig::default() };
    let mut sender = MessageSender::new(config.clone(), policy).expect("a sound configuration");
    introduce(&mut sender, &config);
    let receiver = MessageReceiver::new(MessageConfig { epoch: 2, ..config }).expect("a sound configuration");
    (sender, receiver)
}

/// Tells the sender the peer's limits, as any unit from the peer does.
fn introduce(sender: &mut MessageSender, config: &MessageConfig) {
    let mut peer =
        MessageSender::new(MessageConfig { epoch: 2, ..config.clone() }, linked()).expect("a sound configuration");
    let mut ear = MessageReceiver::new(config.clone()).expect("a sound configuration");
    let mut wire = Vec::new();
    peer.control(&mut wire);
    CONTEXTS.with_borrow_mut(|contexts| {
        let step = ear.receive(&wire, contexts).expect("a preface");
        let Event::Control(preface) = step.event else { panic!("a preface") };
        sender.hear(&preface).expect("a preface");
    });
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

fn receive(receiver: &mut MessageReceiver, wire: &[u8], contexts: &mut Contexts) -> usize {
    let (mut at, mut len) = (0, 0);
    while at < wire.len() {
        let step = receiver.receive(&wire[at..], contexts).expect("a frame");
        if let Event::Message(message) = step.event {
            len = black_box(message).len();
        }
        at += step.consumed;
    }
    len
}

fn percentile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

fn print(name: &str, raw: usize, wire: usize, encode: Vec<f64>, decode: Vec<f64>) {
    let (encode, decode) = (percentile(encode), percentile(decode));
    let ratio = raw as f64 / wire as f64;
    println!("{name:<34} {ratio:>7.2} {encode:>10.2} {decode:>10.2} {:>10.2}", encode + decode);
}

fn hot(what: &str, messages: &[Vec<u8>], window: usize) {
    let mut contexts = Contexts::default();
    let (mut encode, mut decode, mut raw, mut wire_total) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..ROUNDS {
        let (mut sender, mut receiver) = pair(window, linked());
        let mut wires: Vec<Vec<u8>> = messages.iter().map(|_| Vec::with_capacity(2048)).collect();
        let start = Instant::now();
        for (i, (message, wire)) in messages.iter().zip(&mut wires).enumerate() {
            sender.encode(message, i as u64 * 100_000, &mut contexts, wire).expect("within limits");
        }
        encode.push(start.elapsed().as_secs_f64() * 1e6 / messages.len() as f64);
        let start = Instant::now();
        for wire in &wires {
            raw += receive(&mut receiver, wire, &mut contexts);
        }
        decode.push(start.elapsed().as_secs_f64() * 1e6 / messages.len() as f64);
        wire_total += wires.iter().map(Vec::len).sum::<usize>();
    }
    print(&format!("{what}one flow, W = {window}"), raw, wire_total, encode, decode);
}

/// One flow as in [`hot`], but the policy chooses the method of each message and learns.
fn chosen(messages: &[Vec<u8>]) {
    let mut contexts = Contexts::default();
    let (mut encode, mut raw, mut wire_total) = (Vec::new(), 0, 0);
    for _ in 0..ROUNDS {
        let (mut sender, _) = pair(16 << 10, messages_policy());
        let mut wire = Vec::with_capacity(2048);
        let start = Instant::now();
        for (i, message) in messages.iter().enumerate() {
            wire.clear();
            let sent = sender.encode(message, i as u64 * 100_000, &mut contexts, &mut wire).expect("within limits");
            sender.took(1000);
            sender.answered(sent.seq, sent.wire_len, 40_000 + 80 * sent.wire_len as u64);
            (raw, wire_total) = (raw + message.len(), wire_total + wire.len());
        }
        encode.push(start.elapsed().as_secs_f64() * 1e6 / messages.len() as f64);
    }
    print("one flow, chosen at 100 Mbit/s", raw, wire_total, encode, vec![0.0]);
}

/// Ratio of the first messages of flows, in two ways: with the messages as captured (where
/// duplicates compress to almost nothing), and with each message once. The dictionary is trained on
/// every other group of twenty messages; the flows begin at twenty places of the rest. Bytes before
/// a message, such as preface and offers, are not counted.
fn starts(name: &str, captured: &[Vec<u8>]) {
    let mut seen = HashSet::new();
    let distinct: Vec<_> = captured.iter().filter(|m| seen.insert(*m)).cloned().collect();
    for (way, messages) in [("as captured", captured), ("each once", &distinct)] {
        let part = |half| messages.iter().enumerate().filter(move |(i, _)| i / 20 % 2 == half).map(|(_, m)| m.clone());
        let (old, new): (Vec<_>, Vec<_>) = (part(0).collect(), part(1).collect());
        let Some(adoption) = Training::of(&old, 1 << 30).run() else {
            return println!("{name:<34} no dictionary pays");
        };
        println!("{name}, {way}, {} bytes of dictionary", adoption.dictionary.content().len());
        let mut rows =
            ["LZ4 linked", "LZ4 linked, seeded", "zstd with dictionary", "the better of both, seeded"].map(Start::new);
        let mut chosen = [("chosen at 10 Mbit/s, seeded", 0.8), ("chosen at 100 Mbit/s, seeded", 0.08)]
            .map(|(name, us_per_byte)| (Start::new(name), us_per_byte));
        for piece in 0..PIECES {
            let flow: Vec<_> = new[piece * new.len() / PIECES..].iter().take(100).collect();
            let linked = [None, Some(&adoption.dictionary)].map(|seed| linked_lens(&flow, seed));
            let alone = dictionary_lens(&flow, &adoption.dictionary);
            for (i, message) in flow.iter().enumerate() {
                let lens = [linked[0][i], linked[1][i], alone[i], linked[1][i].min(alone[i])];
                rows.iter_mut().zip(lens).for_each(|(row, len)| row.add(i, message.len(), len));
            }
            for (row, us_per_byte) in &mut chosen {
                let lens = chosen_lens(&flow, &adoption.dictionary, *us_per_byte);
                flow.iter().zip(lens).enumerate().for_each(|(i, (m, len))| row.add(i, m.len(), len));
            }
        }
        rows.iter().chain(chosen.iter().map(|c| &c.0)).for_each(Start::print);
    }
}

const PIECES: usize = 20;

/// (raw, wire) bytes of the first message, the first ten, the first hundred, and the tenth.
struct Start {
    name: &'static str,
    bytes: [(usize, usize); 4],
}

impl Start {
    fn new(name: &'static str) -> Self {
        Self { name, bytes: [(0, 0); 4] }
    }

    fn add(&mut self, i: usize, raw_len: usize, wire_len: usize) {
        for ((raw, wire), counts) in self.bytes.iter_mut().zip([i == 0, i < 10, true, i == 9]) {
            (*raw, *wire) = (*raw + raw_len * usize::from(counts), *wire + wire_len * usize::from(counts));
        }
    }

    fn print(&self) {
        let ratios = self.bytes.map(|(raw, wire)| format!("{:>10.2}", raw as f64 / wire as f64));
        println!("  {:<32} {}", self.name, ratios.join(" "));
    }
}

fn linked_lens(flow: &[&Vec<u8>], seed: Option<&Arc<Dictionary>>) -> Vec<usize> {
    let config = MessageConfig { seed: seed.cloned(), ..MessageConfig::default() };
    let mut sender = MessageSender::new(config, linked()).expect("a sound configuration");
    let encode = |m: &&Vec<u8>| {
        CONTEXTS
            .with_borrow_mut(|contexts| sender.encode(m, 0, contexts, &mut Vec::new()).expect("within limits").wire_len)
    };
    flow.iter().map(encode).collect()
}

fn dictionary_lens(flow: &[&Vec<u8>], dictionary: &Dictionary) -> Vec<usize> {
    // Header of a frame on a carrier without borders: first byte, one byte of length, check.
    const HEADER_LEN: usize = 6;
    let mut codecs = DictionaryContexts::default();
    let encode = |m: &&Vec<u8>| {
        codecs.encode_zstd(Some(dictionary), 1, m).map_or(m.len(), <[u8]>::len).min(m.len()) + HEADER_LEN
    };
    flow.iter().map(encode).collect()
}

/// Wire lengths of a ping-pong with the policy for messages. The link's time is computed, the
/// codecs' time is measured.
fn chosen_lens(flow: &[&Vec<u8>], seed: &Arc<Dictionary>, us_per_byte: f64) -> Vec<usize> {
    let mut ends = [1, 2].map(|epoch| {
        let config = MessageConfig { seed: Some(Arc::clone(seed)), epoch, ..MessageConfig::default() };
        MessageEnd::new(config, messages_policy()).expect("a sound configuration")
    });
    let mut lens = Vec::new();
    for (i, message) in flow.iter().enumerate() {
        let (mut unit, mut back, now_ns) = (Vec::new(), Vec::new(), i as u64 * 1_000_000);
        CONTEXTS.with_borrow_mut(|contexts| {
            let start = Instant::now();
            let sent = ends[0].send(message, now_ns, contexts, &mut unit).expect("within limits");
            ends[0].took_to_encode(start.elapsed().as_nanos() as u64);
            let start = Instant::now();
            read_all(&mut ends[1], &unit, contexts);
            let decode_ns = start.elapsed().as_nanos() as u64;
            ends[1].took_to_decode(decode_ns);
            ends[1].send(b"!", now_ns, contexts, &mut back).expect("within limits");
            read_all(&mut ends[0], &back, contexts);
            let span_ns = 24_000 + decode_ns + ((unit.len() + 91) as f64 * us_per_byte * 1e3) as u64;
            ends[0].answered(sent.seq, sent.wire_len, span_ns);
            lens.push(sent.wire_len);
        });
    }
    lens
}

fn read_all(end: &mut MessageEnd, mut rest: &[u8], contexts: &mut Contexts) {
    while !rest.is_empty() {
        rest = &rest[end.receive(rest, contexts).expect("a frame").consumed..];
    }
}

fn many(messages: &[Vec<u8>], window: usize) {
    let mut contexts = Contexts::default();
    let mut flows: Vec<_> = (0..FLOWS).map(|_| pair(window, linked())).collect();
    let (mut encode, mut decode, mut raw, mut wire_total) = (Vec::new(), Vec::new(), 0, 0);
    let mut wires: Vec<Vec<u8>> = (0..FLOWS).map(|_| Vec::with_capacity(2048)).collect();
    for round in 0..ROUNDS {
        wires.iter_mut().for_each(Vec::clear);
        let start = Instant::now();
        for (i, ((sender, _), wire)) in flows.iter_mut().zip(&mut wires).enumerate() {
            let message = &messages[(i + round) % messages.len()];
            sender.encode(message, round as u64 * 100_000_000, &mut contexts, wire).expect("within limits");
        }
        encode.push(start.elapsed().as_secs_f64() * 1e6 / FLOWS as f64);
        let start = Instant::now();
        for ((_, receiver), wire) in flows.iter_mut().zip(&wires) {
            raw += receive(receiver, wire, &mut contexts);
        }
        decode.push(start.elapsed().as_secs_f64() * 1e6 / FLOWS as f64);
        wire_total += wires.iter().map(Vec::len).sum::<usize>();
    }
    // Skip the first rounds, which allocate.
    let (encode, decode) = (encode.split_off(ROUNDS / 4), decode.split_off(ROUNDS / 4));
    print(&format!("{FLOWS} flows in turn, W = {window}"), raw, wire_total, encode, decode);
}

fn memory(messages: &[Vec<u8>], window: usize) {
    let before = resident_bytes();
    let mut contexts = Contexts::default();
    let mut flows: Vec<_> = (0..FLOWS_IN_MEMORY).map(|_| pair(window, messages_policy())).collect();
    let mut wire = Vec::new();
    for (i, (sender, receiver)) in flows.iter_mut().enumerate() {
        let mut sent = 0;
        for (k, message) in messages.iter().cycle().skip(i).enumerate() {
            wire.clear();
            sender.encode(message, k as u64, &mut contexts, &mut wire).expect("within limits");
            receive(receiver, &wire, &mut contexts);
            sent += message.len();
            if sent > 2 * window {
                break;
            }
        }
    }
    let used = resident_bytes().saturating_sub(before) as f64 / 1e6;
    println!("{FLOWS_IN_MEMORY} flows, both ends of each, W = {window}: {used:.0} MB");
    drop(flows);
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|s| s.split_whitespace().nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

fn read(path: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut rest, mut messages) = (&bytes[..], Vec::new());
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (message, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
        messages.push(message.to_vec());
        rest = behind;
    }
    messages
}

fn made_up() -> Vec<Vec<u8>> {
    let mut state = 7u64;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut message = |i: u64| {
        let mut text = format!("INVITE sip:{}@example.net SIP/2.0\r\nCSeq: {i} INVITE\r\n", draw(1000));
        while text.len() < 720 + draw(250) as usize {
            let headers =
                ["Via: SIP/2.0/TCP host", "Contact: <sip:user", "Route: <sip:proxy", "Allow: INVITE, ACK, BYE;"];
            text += &format!("{}{};tag={:x}\r\n", headers[draw(4) as usize], draw(20), draw(1 << 40));
        }
        text.into_bytes()
    };
    (0..400).map(&mut message).collect()
}
