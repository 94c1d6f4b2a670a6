//! What linked messages cost and leave: microseconds to encode and decode one of 700 to 1000 bytes, in a hot flow and with
//! 2,000 flows taking turns, and the memory of 5,000 flows.
//!
//! `cargo run --release -p narrows --example message_cost -- [--corpus DIR]`; DIR has `telecom/msgs/*.msgs`, files of messages that
//! each begin with their length (4 bytes, little endian). Without it the messages are made up. Each figure is the tenth
//! percentile of its rounds, so a busy machine shows little.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use narrows::codec::Method;
use narrows::message::{Contexts, Dictionary, Event, MessageConfig, MessageReceiver, MessageSender, Training};
use narrows::monitor::cost::Prior;
use narrows::policy::{Fixed, MessagesSpec, Policy, PolicySetup, PolicySpec};

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
    println!(
        "{:<34} {:>7} {:>10} {:>10} {:>10} {:>10}",
        "ratio of", "first", "first 10", "first 100", "tenth", "zstd+dict"
    );
    match &folder {
        None => starts("made up", &messages),
        Some(folder) => ["sip", "sbi-http", "diameter", "ngap", "s1ap"]
            .iter()
            .for_each(|name| starts(name, &read(&folder.join(format!("{name}.msgs"))))),
    }
    // In processes of their own: what was freed would not be counted.
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
    PolicySpec::Messages(MessagesSpec::default()).build(&PolicySetup::new(1, Prior::shipped()))
}

fn pair(window: usize, policy: Box<dyn Policy>) -> (MessageSender, MessageReceiver) {
    let config = MessageConfig { history: window, epoch: 1, ..MessageConfig::default() };
    let mut sender = MessageSender::new(config.clone(), policy).expect("a sound configuration");
    introduce(&mut sender, &config);
    let receiver = MessageReceiver::new(MessageConfig { epoch: 2, ..config }).expect("a sound configuration");
    (sender, receiver)
}

/// Lets the sender know what the peer takes, as it does when the peer sent anything.
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

/// As one flow, but the method of each message is chosen, and learned from.
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

/// Flows whose history begins with a dictionary of every other twenty messages, over pieces of the rest.
fn starts(name: &str, messages: &[Vec<u8>]) {
    const PIECES: usize = 20;
    let part = |half| {
        messages.iter().enumerate().filter(move |(i, _)| i / 20 % 2 == half).map(|(_, m)| m.clone()).collect::<Vec<_>>()
    };
    let (old, new) = (&part(0)[..], &part(1)[..]);
    let Some(adoption) = Training::of(old, 1 << 30).run() else { return println!("{name:<34} no dictionary pays") };
    let mut contexts = Contexts::default();
    let config = |seed: Option<&Arc<Dictionary>>| MessageConfig { seed: seed.cloned(), ..MessageConfig::default() };
    for (label, seed) in [("", None), (", seeded", Some(&adoption.dictionary))] {
        let (mut raw, mut wire) = ([0usize; 4], [0usize; 4]);
        for piece in 0..PIECES {
            let mut sender = MessageSender::new(config(seed), linked()).expect("a sound configuration");
            let from = piece * new.len() / PIECES;
            for (i, message) in new[from..].iter().take(100).enumerate() {
                let mut out = Vec::new();
                let sent = sender.encode(message, 0, &mut contexts, &mut out).expect("within limits");
                let wanted = [i == 0, i < 10, true, i == 9];
                for k in (0..4).filter(|k| wanted[*k]) {
                    (raw[k], wire[k]) = (raw[k] + sent.raw_len, wire[k] + sent.wire_len);
                }
            }
        }
        let ratio = |k: usize| raw[k] as f64 / wire[k] as f64;
        let alone = adoption.raw_len as f64 / adoption.after_len as f64;
        let name = format!("{name}{label}");
        println!("{name:<34} {:>7.2} {:>10.2} {:>10.2} {:>10.2} {alone:>10.2}", ratio(0), ratio(1), ratio(2), ratio(3));
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
    // The first rounds allocate.
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

/// Exact repetitions left out: captures see packets twice, and that would flatter the history.
fn read(path: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut rest, mut seen, mut messages) = (&bytes[..], HashSet::new(), Vec::new());
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (message, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
        if seen.insert(message) {
            messages.push(message.to_vec());
        }
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
