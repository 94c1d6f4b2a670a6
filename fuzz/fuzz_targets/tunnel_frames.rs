//! Arbitrary bytes and frames on two carriers of an acceptor, and arbitrary SOCKS clients: errors or
//! events, and what is held stays within the credit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::block::Block;
use narrows_tunnel::frame::{Kind, Parser, put};
use narrows_tunnel::hello::Hello;
use narrows_tunnel::limits::{CONTROL_MAX, CREDIT_MAX};
use narrows_tunnel::session::{Event, Role, Session, Timing};
use narrows_tunnel::socks::{Conversation, Next};

fuzz_target!(|data: &[u8]| {
    let [mode, rest @ ..] = data else { return };
    if mode & 7 == 7 {
        let mut conversation = Conversation::default();
        for piece in rest.chunks(1 + usize::from(mode >> 3)) {
            if !matches!(conversation.take(piece), Next::Wait(_)) {
                return;
            }
        }
        return;
    }
    let hello = Hello { carrier: 0, attempt: 1, dialer: [7; 16], session: 1, instance: 0 };
    let mut session = Session::new(Role::Acceptor, hello, Timing::default());
    for number in 0..2 {
        let mut parser = Parser::new(if mode & 1 == 1 { 64 } else { 0 });
        parser.push(Block::from_vec(Hello { carrier: number, ..hello }.greet()));
        let Ok(Some(_)) = Hello::expect(&mut parser) else { panic!("a hello") };
        session.add_carrier(number, parser, 0);
    }
    let mut now_ns = 0;
    for (i, piece) in rest.chunks(16).enumerate() {
        now_ns += u64::from(piece[0]) << 26;
        let number = i as u8 & 1;
        // Valid headers are rare among arbitrary bytes, so make some.
        let mut bytes = Vec::new();
        if mode & 2 == 2 {
            put(&mut bytes, Kind::Raw, u64::from(piece.get(1).copied().unwrap_or(0) & 7), piece.get(2..).unwrap_or(&[]));
            bytes[0] = 1 + piece[0] % 17;
        } else {
            bytes.extend(piece);
        }
        if session.receive(number, Block::from_vec(bytes), now_ns).is_err() {
            session.remove_carrier(number);
        }
        while let Some(event) = session.poll_event() {
            match event {
                Event::Incoming { flow, .. } if flow % 4 == 0 => session.opened(flow),
                Event::Data { flow, bytes, .. } => {
                    assert!(bytes.len() <= CREDIT_MAX as usize);
                    session.took(flow, bytes.len(), now_ns);
                    session.send(flow, bytes, flow % 4 == 0);
                }
                Event::Finished { flow } => session.finish(flow),
                Event::Listen { number, .. } => session.listening(number, Ok("somewhere")),
                _ => {}
            }
        }
        session.on_time(now_ns).into_iter().for_each(|number| session.remove_carrier(number));
        if mode & 4 == 4 {
            let (mut out, mut sent) = (Vec::new(), Vec::new());
            session.transmit(number, 4096, &mut out, &mut sent, now_ns);
        }
    }
    let mut out = Vec::new();
    for number in 0..2 {
        session.transmit(number, usize::MAX, &mut out, &mut Vec::new(), now_ns);
    }
    assert!(out.len() <= 2 * CONTROL_MAX + 4 * data.len() + 4096);
});
