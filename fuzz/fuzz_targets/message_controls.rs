//! Control frames of message flows with arbitrary bodies, at both ends. Their checksums are
//! computed, since random ones would never match.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use narrows::codec::Method;
use narrows::message::{Carrier, Contexts, Control, Delivery, Event, MessageConfig, MessageReceiver, MessageSender};
use narrows::policy::Fixed;
use xxhash_rust::xxh3::xxh3_64_with_seed;

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

fuzz_target!(|data: &[u8]| {
    let [mode, data @ ..] = data else { return };
    let delivery = [Delivery::Ordered, Delivery::Ordered, Delivery::Unordered, Delivery::Fanout][usize::from(mode & 3)];
    let carrier = Carrier { delivery, borders: mode & 3 != 0 };
    let duplex = mode & 4 == 0;
    let config = MessageConfig { carrier, duplex, history: 2048, epoch: 1, ..MessageConfig::default() };
    CONTEXTS.with_borrow_mut(|contexts| talk(&config, data, contexts));
});

/// A control frame (format.md section 12.4).
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xc0 | kind & 0x3f];
    let mut len = body.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    let check = xxh3_64_with_seed(body, xxh3_64_with_seed(&out, 0)) as u32;
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(body);
    out
}

fn talk(config: &MessageConfig, mut data: &[u8], contexts: &mut Contexts) {
    let linked = config.carrier.delivery == Delivery::Ordered;
    let policy = || Box::new(Fixed::new(Method::lz4_accel(1), linked));
    let Ok(mut sender) = MessageSender::new(config.clone(), policy()) else { return };
    let Ok(mut other) = MessageSender::new(MessageConfig { epoch: 2, ..config.clone() }, policy()) else { return };
    let Ok(mut receiver) = MessageReceiver::new(config.clone()) else { return };
    let mut wire = Vec::new();
    while let [kind, len, rest @ ..] = data {
        let (body, behind) = rest.split_at(usize::from(*len).min(rest.len()));
        data = behind;
        wire.clear();
        // Sometimes insert a valid message of the peer, so that there is a flow to disturb.
        if kind & 0xc0 == 0 {
            let _ = other.encode(body, 0, contexts, &mut wire);
        }
        wire.extend(framed(*kind, body));
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let Ok(step) = receiver.receive(rest, contexts) else { break };
            let consumed = step.consumed;
            match step.event {
                Event::Incomplete => break,
                Event::Control(control) => {
                    again(&control, contexts, config);
                    let _ = sender.hear(&control);
                }
                _ => {}
            }
            rest = &rest[consumed..];
        }
        let mut out = Vec::new();
        let _ = sender.encode(b"what is said to whoever speaks so", 0, contexts, &mut out);
        while sender.send_again(0, contexts, &mut out).is_some() {}
        receiver.answer(&mut out);
        assert!(out.len() < 16 << 10, "a peer's word of some bytes brought {} of ours", out.len());
    }
}

/// A parsed control serializes to bytes that parse to the same control.
fn again(control: &Control, contexts: &mut Contexts, config: &MessageConfig) {
    let mut wire = Vec::new();
    control.put(&mut wire);
    let Ok(mut receiver) = MessageReceiver::new(config.clone()) else { return };
    if let Ok(step) = receiver.receive(&wire, contexts) {
        assert_eq!(step.event, Event::Control(control.clone()));
    }
}
