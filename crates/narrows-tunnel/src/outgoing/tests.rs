//! Both directions of a flow together, without sockets: `Outgoing` at one end, `Incoming` at the other.

use std::sync::mpsc::Receiver;

use narrows::ahead::FIRST;
use narrows::flow::Here;
use narrows_test::text;

use super::*;
use crate::engine::{Result, test_engine};
use crate::frame::Parser;
use crate::hello::Hello;
use crate::incoming::Incoming;
use crate::session::{Event, Role, Timing};
use crate::target::{Endpoint, Target};

/// A flow from one end to the other, with its own engine at each.
struct Way {
    out: Outgoing,
    inn: Incoming,
    sessions: [Session; 2],
    engines: [Engine; 2],
    results: [Receiver<(Key, Result)>; 2],
    flow: FlowId,
    now_ns: u64,
    got: Vec<u8>,
    /// Bytes that came coded and raw.
    came: [usize; 2],
    given: u64,
}

impl Way {
    fn new() -> Self {
        let hello = Hello { carrier: 0, attempt: 0, dialer: [1; 16], session: 1, instance: 0 };
        let end = |role| Session::new(role, hello, Timing::default());
        let mut sessions = [end(Role::Dialer), end(Role::Acceptor)];
        sessions[0].add_carrier(0, Parser::new(0), 0);
        let (mut out, mut parser) = (Vec::new(), Parser::new(0));
        sessions[0].transmit(0, 1, &mut out, &mut Vec::new(), 0);
        parser.push(Block::from_vec(out));
        let heard = Hello::expect(&mut parser).unwrap().unwrap();
        sessions[1].add_carrier(heard.place(), parser, 0);
        let ((one, one_results), (other, other_results)) = (test_engine(), test_engine());
        let mut way = Self {
            out: Outgoing::default(),
            inn: Incoming::default(),
            sessions,
            engines: [one, other],
            results: [one_results, other_results],
            flow: 0,
            now_ns: 0,
            got: Vec::new(),
            came: [0; 2],
            given: 0,
        };
        way.pass(1);
        let target = Target::from(Endpoint::Tcp { host: "a".into(), port: 1 });
        way.flow = way.sessions[0].open(&target).unwrap();
        way.pass(0);
        way.sessions[1].opened(way.flow);
        way.pass(1);
        way
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Outgoing, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            engine: &mut self.engines[0],
            session: &mut self.sessions[0],
            flow: self.flow,
            key: 7,
            now_ns: self.now_ns,
        };
        act(&mut self.out, &mut context)
    }

    /// Carries what `from` has, and looks at what came.
    fn pass(&mut self, from: usize) -> usize {
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        self.sessions[from].transmit(0, 64 << 10, &mut bytes, &mut sent, self.now_ns);
        let len = bytes.len();
        if from == 0 {
            self.given += len as u64;
            let progress = Progress { given: self.given, left: self.given, acked: Some(self.given) };
            let look = Look { progress, begin_ns: self.now_ns, ..Look::default() };
            self.now_ns += 1000 * (1 + len as u64 / 100);
            let taken: usize = sent.iter().map(|s| s.len).sum();
            self.with(|out, context| out.on_carrier(taken, 0, &look, context));
        }
        self.sessions[1 - from].receive(0, Block::from_vec(bytes), self.now_ns).unwrap();
        while let Some(event) = self.sessions[1 - from].poll_event() {
            match event {
                Event::Data { coded, bytes, .. } => {
                    self.came[usize::from(!coded)] += bytes.len();
                    self.inn.push(coded, bytes);
                }
                Event::Finished { .. } => self.inn.end(),
                Event::Reset { .. } => panic!("reset"),
                _ => {}
            }
        }
        len
    }

    fn run(&mut self) {
        loop {
            let mut moved = self.pass(0) + self.pass(1);
            while let Ok((_, result)) = self.results[0].try_recv() {
                let Result::Encoded(done) = result else { panic!("a worker failed") };
                self.with(|out, context| out.encoded(*done, context));
                moved += 1;
            }
            while let Ok((key, result)) = self.results[1].try_recv() {
                let Result::Decoded(done) = result else { panic!("a worker failed") };
                self.inn.decoded(*done, key, &mut self.engines[1]).unwrap();
                moved += 1;
            }
            let mut took = 0;
            while read(&mut self.inn, &mut self.got, &mut took, &mut self.engines[1]).unwrap() {}
            self.inn.count(&self.engines[1]);
            self.sessions[1].took(self.flow, took, self.now_ns);
            self.sessions[1].delivered(self.flow, self.inn.delivered(), self.now_ns);
            let busy = self.out.stream.as_ref().is_some_and(|s| s.encoding.jobs() > 0) || self.inn.is_working();
            if moved == 0 && took == 0 && !busy {
                return;
            }
        }
    }

    /// What all flows of an engine hold.
    fn held(&self, end: usize) -> usize {
        self.engines[end].compression.memory.held()
    }

    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.out.room(&self.sessions[0], self.flow, &self.engines[0]).min(bytes.len());
            if room == 0 {
                // Time passes, as it would while a carrier works.
                self.now_ns += 1_000_000;
                self.tick();
                self.run();
                continue;
            }
            let (now, rest) = bytes.split_at(room);
            let block = Block::from_vec(now.to_vec());
            self.with(|out, context| out.push(block, context));
            bytes = rest;
        }
        self.run();
    }

    fn tick(&mut self) {
        let progress = Progress { given: self.given, left: self.given, acked: Some(self.given) };
        let look = Look { progress, begin_ns: self.now_ns, ..Look::default() };
        self.with(|out, context| out.on_time(0, &look, context));
    }

    fn rest(&mut self) {
        self.now_ns += REST_AFTER_NS + 1;
        self.tick();
        self.run();
    }
}

/// Takes what is ready. False: there was nothing.
fn read(inn: &mut Incoming, got: &mut Vec<u8>, took: &mut usize, engine: &mut Engine) -> narrows::Result<bool> {
    inn.fill(took, 7, engine)?;
    let before = got.len();
    inn.slices().for_each(|slice| got.extend_from_slice(&slice));
    let len = got.len() - before;
    inn.consume(len, took);
    Ok(len > 0)
}

#[test]
fn short_exchanges_stay_raw_and_long_ones_shrink() {
    let mut way = Way::new();
    way.send(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!((&way.got[..], way.came), (&b"GET / HTTP/1.1\r\n\r\n"[..], [0, 18]));
    let long = text(1 << 20);
    way.send(&long);
    assert!(way.got[18..] == long);
    assert_eq!(way.came[1], 18, "the first long piece is coded");
    assert!(way.came[0] < long.len(), "{:?}", way.came);
}

/// Zeros cross the carrier a thousand times shorter, so that credit stops nobody.
#[test]
fn a_local_connection_is_read_no_further_than_the_other_one_reads() {
    let mut way = Way::new();
    let mut pushed = 0;
    for _ in 0..300 {
        let room = way.out.room(&way.sessions[0], way.flow, &way.engines[0]);
        if room > 0 {
            way.with(|out, context| out.push(Block::from_vec(vec![0; room]), context));
            pushed += room;
        }
        while way.out.stream.as_ref().is_some_and(|s| s.encoding.jobs() > 0) {
            let (_, Result::Encoded(done)) = way.results[0].recv().unwrap() else { panic!("a worker failed") };
            way.with(|out, context| out.encoded(*done, context));
        }
        way.pass(0);
        way.now_ns += 1_000_000;
        way.tick();
    }
    assert!((FIRST / 2..=FIRST).contains(&pushed), "{pushed} bytes that nobody has read");
    way.run();
    assert_eq!(way.got.len(), pushed);
    assert!(way.out.room(&way.sessions[0], way.flow, &way.engines[0]) > 0);
    way.send(&vec![0; 4 * FIRST]);
    assert_eq!(way.got.len(), pushed + 4 * FIRST);
}

#[test]
fn an_idle_flow_holds_nothing_and_goes_on() {
    let mut way = Way::new();
    let long = text(300_000);
    let mut all = Vec::new();
    for _ in 0..3 {
        way.send(&long);
        all.extend_from_slice(&long);
        assert!(way.out.stream.is_some());
        way.rest();
        assert!(way.out.stream.is_none() && way.inn.is_idle());
        assert_eq!([way.held(0), way.held(1)], [0, 0]);
        way.send(b"ping");
        all.extend_from_slice(b"ping");
        assert!(way.out.stream.is_none(), "little things stay raw");
    }
    assert!(way.got == all);
}

#[test]
fn encrypted_bytes_go_raw_and_are_not_copied_into_streams() {
    let mut way = Way::new();
    let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    hello.extend(text(100_000));
    way.send(&hello);
    assert!(way.got == hello);
    assert_eq!(way.came, [0, hello.len()]);
}

#[test]
fn a_late_hello_stops_compression_only() {
    let mut way = Way::new();
    let greeting = text(2000);
    way.send(&greeting);
    let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    hello.extend(text(100_000));
    way.send(&hello);
    assert!(way.got == [greeting, hello.clone()].concat());
    assert!(way.came[0] > hello.len(), "stored: {:?}", way.came);
}

#[test]
fn the_end_comes_behind_all_bytes() {
    for len in [0, 1, 1000, 100_000] {
        let mut way = Way::new();
        let bytes = text(len);
        way.send(&bytes);
        while !way.with(|out, context| out.finish(context)) {
            way.run();
        }
        way.sessions[0].finish(way.flow);
        way.run();
        assert!(way.got == bytes && way.inn.is_over(), "{len}");
        assert_eq!(way.inn.bytes, len as u64);
    }
}

/// What an incoming direction says to these pieces; the end follows.
fn judge(pieces: &[(bool, &[u8])]) -> std::result::Result<Vec<u8>, narrows::ErrorKind> {
    let (mut engine, results) = test_engine();
    let (mut inn, mut got) = (Incoming::default(), Vec::new());
    pieces.iter().for_each(|(coded, bytes)| inn.push(*coded, Block::from_vec(bytes.to_vec())));
    inn.end();
    loop {
        while read(&mut inn, &mut got, &mut 0, &mut engine).map_err(|e| e.kind)? {}
        if inn.is_over() {
            return Ok(got);
        }
        let (_, Result::Decoded(done)) = results.recv().unwrap() else { panic!("a worker failed") };
        inn.decoded(*done, 1, &mut engine).map_err(|e| e.kind)?;
    }
}

/// A whole stream of `raw`.
fn stream_of(raw: &[u8]) -> Vec<u8> {
    let (mut engine, _results) = test_engine();
    let Engine { compression, contexts, buffers, .. } = &mut engine;
    let mut encoding = compression.send_options(false).encoding(buffers);
    encoding.push(Block::from_vec(raw.to_vec()), 0);
    encoding.close(0);
    let mut bytes = Vec::new();
    loop {
        encoding.work(|| 0, Budget::ALL, &mut Here { contexts, buffers });
        let before = bytes.len();
        while let Some(frame) = encoding.poll_transmit() {
            bytes.extend_from_slice(&frame.header);
            bytes.extend_from_slice(&frame.body);
        }
        let accepted = (bytes.len() - before) as u64;
        encoding.on_link(LinkSample { accepted, unacked: Some(0), ..LinkSample::default() });
        if encoding.is_drained() {
            return bytes;
        }
    }
}

#[test]
fn damaged_bytes_reset_a_flow_and_are_never_delivered() {
    use narrows::ErrorKind::{Corrupt, Truncated};
    let raw = text(50_000);
    let stream = stream_of(&raw);
    assert!(judge(&[(true, &stream)]).unwrap() == raw);
    assert_eq!(judge(&[(false, b"a"), (true, &stream), (false, b"b")]).unwrap().len(), raw.len() + 2);
    for len in (1..stream.len()).step_by(97) {
        assert!(judge(&[(true, &stream[..len])]) == Err(Truncated), "{len}");
    }
    assert!(judge(&[(true, &stream[..100]), (false, b"raw"), (true, &stream[100..])]) == Err(Corrupt));
    assert!(judge(&[(true, &stream), (true, &stream)]) == Err(Corrupt), "two streams without a part between");
    for at in (0..stream.len()).step_by(61) {
        let mut bad = stream.clone();
        bad[at] ^= 0x10;
        match judge(&[(true, &bad)]) {
            Err(_) => {}
            // A bit of the preface that changes nothing here.
            Ok(got) => assert!(got == raw, "{at}"),
        }
    }
}

#[test]
fn tiny_pieces_take_no_more_memory_than_their_bytes() {
    let mut inn = Incoming::default();
    let buffer = Block::from_vec(vec![5; 64 << 10]);
    for i in 0..buffer.len() {
        inn.push(i % 8192 < 4096, buffer.slice(i..i + 1));
    }
    let held = inn.held();
    assert!((64 << 10..68 << 10).contains(&held), "{held}");
    let mut took = 0;
    let (mut engine, _results) = test_engine();
    // The first piece is coded, and no stream.
    assert!(inn.fill(&mut took, 1, &mut engine).is_err());
}

#[test]
fn pieces_that_alternate_without_end_are_damage() {
    let (mut engine, _results) = test_engine();
    let mut inn = Incoming::default();
    let byte = Block::from_vec(vec![5]);
    // As a writer with long pauses does for an hour, while nobody reads.
    inn.set_stalled(true);
    (0..1000).for_each(|i| inn.push(i % 2 == 1, byte.clone()));
    assert!(inn.fill(&mut 0, 1, &mut engine).is_ok() && inn.has_ready());
    (0..64 << 10).for_each(|i| inn.push(i % 2 == 0, byte.clone()));
    assert!(inn.held() < 128 << 10, "{}", inn.held());
    inn.consume(1, &mut 0);
    assert!(inn.fill(&mut 0, 1, &mut engine).is_err());
}

#[test]
fn long_pieces_are_not_copied_until_the_local_connection_is_full() {
    let (mut engine, _results) = test_engine();
    let mut inn = Incoming::default();
    let buffer = Block::from_vec((0..128u32 << 10).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect());
    let part = |i: usize| buffer.slice(i * (8 << 10)..(i + 1) * (8 << 10));
    let lies_in = |slice: &[u8], i: usize| slice.as_ptr() == part(i).as_ptr();
    (0..8).for_each(|i| inn.push(false, part(i)));
    let mut took = 0;
    inn.fill(&mut took, 1, &mut engine).unwrap();
    assert!(inn.slices().enumerate().all(|(i, slice)| lies_in(&slice, i)) && inn.slices().count() == 8);
    assert_eq!(took, 0, "room is made when they are written");
    inn.consume(10_000, &mut took);
    assert_eq!(took, 10_000);
    // Now they wait for a reader, and their buffer must not.
    inn.set_stalled(true);
    (8..16).for_each(|i| inn.push(false, part(i)));
    assert!(!inn.slices().any(|slice| (0..16).any(|i| lies_in(&slice, i))));
    assert_eq!(inn.held(), (128 << 10) - 10_000);
    inn.set_stalled(false);
    let mut got = Vec::new();
    while read(&mut inn, &mut got, &mut took, &mut engine).unwrap() {}
    assert!(got == buffer[10_000..] && took == buffer.len() && inn.is_idle());
}
