//! Two ends of a message link whose units are damaged, lost and repeated in transit; each frame has
//! a check. An end delivers only messages that the other one sent, in order and once. Without a
//! reported gap, it skips none.
#![no_main]

use std::cell::RefCell;
use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use narrows::message::{Came, Carrier, Contexts, Delivery, MessageConfig, MessageEnd};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

/// Limit on units in transit.
const WAITING_MAX: usize = 8;

struct Side {
    end: MessageEnd,
    sent: Vec<Vec<u8>>,
    /// Position in the other side's messages after the last one delivered here.
    came: usize,
    gap: bool,
    inbox: VecDeque<Vec<u8>>,
}

fuzz_target!(|data: &[u8]| {
    let [mode, data @ ..] = data else { return };
    let specs = ["messages", "fixed:lz4:link", "fixed:store", "fixed:zstd:level=1"];
    let spec: PolicySpec = specs[usize::from(mode & 3)].parse().expect("a policy");
    let side = |epoch| {
        let carrier = Carrier { delivery: Delivery::Ordered, borders: true };
        let history = if epoch == 2 && mode & 4 != 0 { 1024 } else { 4096 };
        let config =
            MessageConfig { carrier, history, message_max: 4096, epoch, check_all: true, ..MessageConfig::default() };
        let end = MessageEnd::new(config, spec.build(&PolicySetup::new(1, Prior::shipped()))).expect("sound");
        Side { end, sent: Vec::new(), came: 0, gap: false, inbox: VecDeque::new() }
    };
    CONTEXTS.with_borrow_mut(|contexts| talk([side(1), side(2)], data, contexts));
});

fn talk(mut sides: [Side; 2], mut data: &[u8], contexts: &mut Contexts) {
    let mut now_ns = 0;
    while let [what, len, rest @ ..] = data {
        let (words, behind) = rest.split_at(usize::from(*len).min(rest.len()));
        data = behind;
        let at = usize::from(what & 1);
        let far = 1 - at;
        now_ns += 1 << (what >> 5);
        let mut unit = Vec::new();
        match what >> 1 & 7 {
            0..=2 => {
                let message = words.repeat(usize::from(what >> 5) + 1);
                units(&mut sides, at, now_ns, contexts);
                sides[at].end.send(&message, now_ns, contexts, &mut unit).expect("nothing waits before it");
                sides[at].sent.push(message);
                put(&mut sides[far], unit);
            }
            3 => drop(sides[at].inbox.pop_front()),
            4 => {
                if let Some(unit) = sides[at].inbox.front_mut() {
                    unit.iter_mut().zip(words).for_each(|(byte, change)| *byte ^= change);
                }
            }
            5 => {
                if let Some(unit) = sides[at].inbox.front().cloned() {
                    put(&mut sides[at], unit);
                }
            }
            _ => deliver(&mut sides, at, now_ns, contexts),
        }
    }
    // Without further disturbance both ends become quiet.
    for turn in 0..40 {
        let quiet = sides.iter().all(|s| s.inbox.is_empty());
        if quiet {
            return;
        }
        assert!(turn < 39, "they talk for ever");
        for at in [0, 1] {
            while !sides[at].inbox.is_empty() {
                deliver(&mut sides, at, now_ns, contexts);
            }
        }
    }
}

fn put(side: &mut Side, unit: Vec<u8>) {
    if side.inbox.len() < WAITING_MAX {
        side.inbox.push_back(unit);
    }
}

/// Sends all pending units of side `at` other than messages.
fn units(sides: &mut [Side; 2], at: usize, now_ns: u64, contexts: &mut Contexts) {
    for turn in 0.. {
        let mut unit = Vec::new();
        if !sides[at].end.next_unit(now_ns, contexts, &mut unit) {
            return;
        }
        assert!(turn < 20, "it never has said all");
        put(&mut sides[1 - at], unit);
    }
}

fn deliver(sides: &mut [Side; 2], at: usize, now_ns: u64, contexts: &mut Contexts) {
    let Some(unit) = sides[at].inbox.pop_front() else { return };
    let mut rest = &unit[..];
    while !rest.is_empty() {
        let [a, b] = sides;
        let (near, far) = if at == 0 { (a, b) } else { (b, a) };
        let Ok(received) = near.end.receive(rest, contexts) else { break };
        match received.came {
            Came::Message(message) if near.gap => {
                let later = far.sent[near.came..].iter().position(|sent| sent == message);
                near.came += later.expect("sent, and not before what came") + 1;
            }
            Came::Message(message) => {
                assert_eq!(far.sent.get(near.came).map(Vec::as_slice), Some(message));
                near.came += 1;
            }
            Came::Gap => far.gap = true,
            _ => {}
        }
        rest = &rest[received.consumed..];
    }
    units(sides, at, now_ns, contexts);
}
