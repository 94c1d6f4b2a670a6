//! A message flow with tampered frames, on every kind of carrier. The receiver returns an error,
//! drops or continues. It delivers a linked message only if that was sent, and its answers cause
//! neither a panic nor an endless loop in the sender.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use narrows::codec::Method;
use narrows::message::{Carrier, Contexts, Delivery, Event, MessageConfig, MessageReceiver, MessageSender};
use narrows::policy::Fixed;

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

const DELIVERIES: [Delivery; 4] = [Delivery::Ordered, Delivery::Ordered, Delivery::Unordered, Delivery::Fanout];

fuzz_target!(|data: &[u8]| {
    let [mode, data @ ..] = data else { return };
    let delivery = DELIVERIES[usize::from(mode & 3)];
    let carrier = Carrier { delivery, borders: mode & 3 != 0 };
    let method =
        [Method::STORE, Method::lz4_accel(1), Method::lz4_accel(1), Method::zstd(1)][usize::from(mode >> 2 & 3)];
    let linked = mode >> 2 & 3 == 1;
    let config = MessageConfig { carrier, history: 1024, message_max: 4096, epoch: 1, ..MessageConfig::default() };
    CONTEXTS.with_borrow_mut(|contexts| flow(&config, method, linked, data, contexts));
});

/// Runs a flow. The input's bytes define each message and what happens to its unit.
fn flow(config: &MessageConfig, method: Method, linked: bool, mut data: &[u8], contexts: &mut Contexts) {
    let Ok(mut sender) = MessageSender::new(config.clone(), Box::new(Fixed::new(method, linked))) else { return };
    let Ok(mut receiver) = MessageReceiver::new(MessageConfig { epoch: 2, ..config.clone() }) else { return };
    let (mut sent, mut said) = (Vec::<Vec<u8>>::new(), Vec::new());
    let mut touched = false;
    while let [what, len, rest @ ..] = data {
        let len = usize::from(*len).min(rest.len());
        let (words, behind) = rest.split_at(len);
        data = behind;
        let mut unit = Vec::new();
        let message = if what & 1 == 0 { words.to_vec() } else { words.repeat(usize::from(what >> 4) + 1) };
        let encoded = if *what == 0x0d {
            sender.encode_private(&message, 0, contexts, &mut unit)
        } else {
            sender.encode(&message, 0, contexts, &mut unit)
        };
        match encoded {
            Ok(_) => sent.push(message),
            Err(_) => {
                // Messages must be sent again first: one per turn, as each is a unit.
                sender.send_again(0, contexts, &mut unit);
            }
        }
        let mut times = 1;
        match what >> 1 & 7 {
            0 => continue,
            1 => {
                touched = true;
                for (byte, change) in unit.iter_mut().zip(words) {
                    *byte ^= change;
                }
            }
            2 => {
                touched = true;
                unit.truncate(len);
            }
            3 => times = 2,
            4 => {
                touched = true;
                unit = words.to_vec();
            }
            5 => {
                sender.pin(64 + len);
            }
            _ => {}
        }
        for _ in 0..times {
            hear(&mut receiver, &mut sender, &unit, contexts, |m| {
                assert!(m.len() <= config.message_max && (touched || sent.iter().any(|s| s == m)));
            });
        }
        // Pass the receiver's answers to the sender, as its peer would.
        said.clear();
        receiver.answer(&mut said);
        let mut rest = &said[..];
        let Ok(mut ear) = MessageReceiver::new(MessageConfig { epoch: 1, ..config.clone() }) else { return };
        while !rest.is_empty() {
            let step = ear.receive(rest, contexts).expect("its own words");
            if let Event::Control(control) = step.event {
                let _ = sender.hear(&control);
            }
            rest = &rest[step.consumed..];
        }
        assert!(said.len() < 1024);
    }
}

fn hear(
    receiver: &mut MessageReceiver,
    sender: &mut MessageSender,
    unit: &[u8],
    contexts: &mut Contexts,
    mut got: impl FnMut(&[u8]),
) {
    let mut rest = unit;
    while !rest.is_empty() {
        let Ok(step) = receiver.receive(rest, contexts) else { return };
        assert!(step.consumed <= rest.len());
        match step.event {
            Event::Incomplete => return,
            Event::Message(message) => got(message),
            Event::Control(control) => _ = sender.hear(&control),
            _ => {}
        }
        rest = &rest[step.consumed..];
    }
}
