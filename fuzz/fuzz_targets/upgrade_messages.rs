//! Arbitrary bytes on a side channel, at either end and at a gateway, and on a connection that is
//! being switched: the code returns an error or continues, and stays within its memory limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::upgrade::claimant::{self, Claimant, ClaimantLimits};
use narrows::upgrade::gateway::GatewayClient;
use narrows::upgrade::marker::{CERTAIN_LEN, Key, MARKER_LEN, Side};
use narrows::upgrade::message::{BODY_MAX, GREETING, HEADER_LEN, Hello, Message, Parser, Purpose};
use narrows::upgrade::witness::{self, Witness, WitnessLimits};
use narrows::upgrade::{Event, Flow, FlowLimits, Tuple};

fuzz_target!(|data: &[u8]| {
    let [mode, cut, data @ ..] = data else { return };
    let cut = 1 + usize::from(*cut);
    match mode % 5 {
        0 => parse(data, cut),
        1 => witness(data, cut),
        2 => claimant(data, cut),
        3 => gateway(data, cut),
        _ => connection(data, cut),
    }
});

/// A prefix with a valid greeting, which is rare among arbitrary bytes.
fn greeted(purpose: Purpose) -> Vec<u8> {
    let mut wire = GREETING.to_vec();
    Message::Hello(Hello { version: 1, purpose }).write(&mut wire);
    wire
}

fn parse(data: &[u8], cut: usize) {
    let wire = [&greeted(Purpose::SideChannel), data].concat();
    let (mut parser, mut messages, mut whole) = (Parser::default(), Vec::new(), true);
    for piece in wire.chunks(cut) {
        parser.push(piece);
        loop {
            match parser.poll() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        whole = parser.rest().is_empty();
        assert!(parser.rest().len() < HEADER_LEN + BODY_MAX);
    }
    // In one piece the result is the same, and parsed messages serialize again.
    let (mut parser, mut again) = (Parser::default(), GREETING.to_vec());
    parser.push(&wire);
    for message in &messages {
        assert_eq!(parser.poll().ok().flatten().as_ref(), Some(message));
        message.write(&mut again);
    }
    assert!(!whole || parser.poll().is_ok_and(|m| m.is_none()));
    let mut parser = Parser::default();
    parser.push(&again);
    for message in &messages {
        assert_eq!(parser.poll().ok().flatten().as_ref(), Some(message));
    }
}

fn tuple() -> Option<Tuple> {
    Some(Tuple::new("[::1]:1".parse().ok()?, "[::1]:2".parse().ok()?))
}

fn witness(data: &[u8], cut: usize) {
    let limits = WitnessLimits { waiting_max: 4, ..WitnessLimits::default() };
    let mut witness = Witness::new(limits, [1; 32]);
    witness.listening(2);
    let Some(tuple) = tuple() else { return };
    witness.accepted(9, tuple, Some(0));
    let mut flow = Flow::server(FlowLimits::default(), false);
    witness.opened(1, tuple.client().ip(), 0);
    witness.receive(1, &greeted(Purpose::SideChannel), 0);
    for (i, piece) in data.chunks(cut).enumerate() {
        witness.receive(1, piece, i as u64);
        while let Some(output) = witness.poll() {
            let witness::Output::Flow(9, event) = output else { continue };
            let _ = flow.hear(event);
            while let Some(word) = flow.poll_word() {
                witness.say(9, word);
            }
        }
    }
    witness.on_time(u64::MAX);
    assert!(witness.next_wakeup_ns().is_none());
}

fn claimant(data: &[u8], cut: usize) {
    let mut claimant = Claimant::new(ClaimantLimits::default(), [1; 32]);
    let Some(tuple) = tuple() else { return };
    let mut flow = Flow::client(FlowLimits::default());
    claimant.claim(9, tuple, 0, 0);
    claimant.connected(0);
    claimant.receive(&greeted(Purpose::SideChannel), 0);
    for (i, piece) in data.chunks(cut).enumerate() {
        claimant.receive(piece, i as u64);
        while let Some(output) = claimant.poll() {
            let claimant::Output::Flow(9, event) = output else { continue };
            let _ = flow.hear(event);
            flow.take_marker();
            while let Some(word) = flow.poll_word() {
                claimant.say(9, word);
            }
        }
    }
}

fn gateway(data: &[u8], cut: usize) {
    let mut client = GatewayClient::default();
    for piece in data.chunks(cut) {
        if client.receive(piece).is_err() {
            return;
        }
    }
}

/// Each byte selects the next relevant event: parts of the marker, other bytes, answers, an end.
fn connection(data: &[u8], cut: usize) {
    let key = Key::new(&[1; 16], &[2; 16]);
    let marker = key.marker(Side::Server);
    let mut flow = Flow::client(FlowLimits::default());
    if flow.hear(Event::Ready(key)).is_err() {
        return;
    }
    let (mut wire, mut given, mut now) = (Vec::new(), Vec::new(), 0);
    for pair in data.chunks(cut) {
        let at = wire.len();
        for byte in pair {
            match byte {
                0..=63 => wire.extend_from_slice(&marker[..usize::from(*byte) % (MARKER_LEN + 1)]),
                64..=127 => wire.extend_from_slice(&marker[usize::from(*byte) % MARKER_LEN..]),
                byte => wire.push(*byte),
            }
        }
        now += 1;
        let Ok(step) = flow.receive(&wire[at..], now) else { return };
        given.extend_from_slice(&step.released);
        given.extend_from_slice(&wire[at..at + step.plain]);
        assert!(wire.starts_with(&given) && flow.held() < MARKER_LEN);
        if step.frames.is_some() {
            assert_eq!(wire[given.len()..given.len() + MARKER_LEN], marker);
            return;
        }
        assert_eq!(given.len() + flow.held(), wire.len());
        if pair[0] & 3 == 0 && flow.held() < CERTAIN_LEN {
            let offset = given.len() as u64;
            let Ok(released) = flow.hear(Event::Answer { offset, marked: false }) else { return };
            given.extend_from_slice(&released);
            assert!(wire.starts_with(&given) && flow.held() == 0);
        }
    }
    if let Ok(released) = flow.receive_end() {
        given.extend_from_slice(&released);
        assert_eq!(given, wire);
    }
}
