use std::collections::HashMap;

use narrows::ErrorKind;
use narrows::ahead::FIRST;
use narrows_test::noise;
use proptest::prelude::*;

use super::*;
use crate::frame::{BODY_MAX, GREETING};
use crate::limits::{BULK_BYTES, CREDIT_FIRST, LISTENERS_MAX};
use crate::target::To;

const DIALER: [u8; 16] = [7; 16];
const SECOND: u64 = 1_000_000_000;

/// Two sessions, and carriers between them that keep bytes until they are told to pass some.
struct Pair {
    ends: [Session; 2],
    /// Bytes under way, by the end that sent them and by carrier.
    wires: [[Vec<u8>; CARRIERS_MAX]; 2],
    now_ns: u64,
    /// Everything that came out, by end.
    seen: [Vec<String>; 2],
    got: [HashMap<FlowId, Vec<u8>>; 2],
    /// Ends that take what they receive at once.
    takes: [bool; 2],
}

fn hello() -> Hello {
    Hello { carrier: 0, attempt: 0, dialer: DIALER, session: 1, instance: 0 }
}

fn target() -> Target {
    Endpoint::Tcp { host: "db".into(), port: 5432 }.into()
}

impl Pair {
    fn new(carriers: u8) -> Self {
        let end = |role| Session::new(role, hello(), Timing::default());
        let mut pair = Self {
            ends: [end(Role::Dialer), end(Role::Acceptor)],
            wires: Default::default(),
            now_ns: 0,
            seen: Default::default(),
            got: Default::default(),
            takes: [true; 2],
        };
        (0..carriers).for_each(|n| pair.connect(n));
        pair
    }

    fn connect(&mut self, number: u8) {
        let [dialer, acceptor] = &mut self.ends;
        dialer.add_carrier(number, Parser::new(0), self.now_ns);
        let (mut out, mut parser) = (Vec::new(), Parser::new(0));
        dialer.transmit(number, 1, &mut out, &mut Vec::new(), self.now_ns);
        parser.push(Block::from_vec(out));
        let hello = Hello::expect(&mut parser).unwrap().unwrap();
        assert_eq!(hello, Hello { carrier: number, attempt: hello.attempt, ..self::hello() });
        acceptor.add_carrier(hello.place(), parser, self.now_ns);
        acceptor.resume(number, self.now_ns).unwrap();
        self.run();
    }

    /// Lets an end write up to `len` bytes to a carrier.
    fn write(&mut self, end: usize, number: u8, len: usize) {
        let wire = &mut self.wires[end][usize::from(number)];
        let before = wire.len();
        self.ends[end].transmit(number, before + len, wire, &mut Vec::new(), self.now_ns);
    }

    /// Passes up to `len` bytes that `from` has written.
    fn pass(&mut self, from: usize, number: u8, len: usize) {
        let wire = &mut self.wires[from][usize::from(number)];
        let bytes: Vec<u8> = wire.drain(..len.min(wire.len())).collect();
        let to = 1 - from;
        self.ends[to].receive(number, Block::from_vec(bytes), self.now_ns).unwrap();
        self.hear(to);
    }

    fn hear(&mut self, end: usize) {
        while let Some(event) = self.ends[end].poll_event() {
            let text = match event {
                Event::Data { flow, bytes, .. } => {
                    self.got[end].entry(flow).or_default().extend_from_slice(&bytes);
                    if self.takes[end] {
                        self.ends[end].took(flow, bytes.len(), self.now_ns);
                    }
                    continue;
                }
                Event::Room { .. } => continue,
                Event::Incoming { flow, .. } => format!("incoming {flow}"),
                Event::Opened { flow } => format!("opened {flow}"),
                Event::Refused { flow, reason, text } => format!("refused {flow} {reason:?} {text}"),
                Event::Finished { flow } => format!("finished {flow}"),
                Event::Reset { flow, reason } => format!("reset {flow} {reason:?}"),
                Event::Up { carrier } => format!("up {carrier}"),
                Event::Goaway { reason, .. } => format!("goaway {reason:?}"),
                Event::Listen { number, bind } => format!("listen {number} {bind}"),
                Event::Listening { number, result } => format!("listening {number} {result:?}"),
            };
            self.seen[end].push(text);
        }
    }

    /// Moves everything until nothing moves.
    fn run(&mut self) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                for number in 0..CARRIERS_MAX as u8 {
                    self.write(end, number, 64 << 10);
                    moved |= !self.wires[end][usize::from(number)].is_empty();
                    self.pass(end, number, usize::MAX);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn take_seen(&mut self, end: usize) -> Vec<String> {
        std::mem::take(&mut self.seen[end])
    }

    /// A flow that both ends know.
    fn flow(&mut self) -> FlowId {
        let flow = self.ends[0].open(&target()).unwrap();
        self.run();
        self.ends[1].opened(flow);
        self.run();
        self.take_seen(0);
        self.take_seen(1);
        flow
    }

    /// Sends as much as there is room for.
    fn send(&mut self, end: usize, flow: FlowId, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.ends[end].room(flow));
        self.ends[end].send(flow, Block::from_vec(bytes[..len].to_vec()), false);
        len
    }

    /// Sends all of it.
    fn send_all(&mut self, end: usize, flow: FlowId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.send(end, flow, bytes);
            assert!(len > 0, "it stalls");
            bytes = &bytes[len..];
            self.run();
        }
    }
}

#[test]
fn a_flow_lives_from_open_to_finish_and_leaves_nothing() {
    let mut pair = Pair::new(1);
    let flow = pair.ends[0].open(&target()).unwrap();
    pair.send(0, flow, b"before it is known whether it opens");
    pair.run();
    assert_eq!(pair.take_seen(1), ["up 0", "incoming 2"]);
    pair.ends[1].opened(flow);
    pair.send(1, flow, b"answer");
    pair.ends[1].finish(flow);
    pair.run();
    assert_eq!(pair.take_seen(0), ["up 0", "opened 2", "finished 2"]);
    assert_eq!(pair.got[1][&flow], b"before it is known whether it opens");
    assert_eq!(pair.got[0][&flow], b"answer");
    pair.send(0, flow, b", the other half is open");
    pair.ends[0].finish(flow);
    assert_eq!(pair.ends[0].room(flow), 0, "behind its end");
    pair.run();
    assert_eq!(pair.take_seen(1), ["finished 2"]);
    assert!(pair.got[1][&flow].ends_with(b"other half is open"));
    assert_eq!([pair.ends[0].flows(), pair.ends[1].flows()], [0, 0]);
}

#[test]
fn refusals_and_resets_pass_as_they_are() {
    let mut pair = Pair::new(2);
    let flow = pair.ends[0].open(&target()).unwrap();
    pair.send(0, flow, b"in vain");
    pair.run();
    pair.ends[1].refuse(flow, Reason::Unreachable, "no route");
    pair.run();
    assert_eq!(pair.take_seen(0).last().unwrap(), "refused 2 Unreachable no route");
    for end in [0, 1] {
        let flow = pair.flow();
        pair.ends[end].reset(flow, Reason::Reset);
        // What the other end sent meanwhile is passed over.
        pair.send(1 - end, flow, b"late");
        pair.run();
        assert_eq!(pair.take_seen(1 - end), [format!("reset {flow} Reset")]);
    }
    assert_eq!([pair.ends[0].flows(), pair.ends[1].flows()], [0, 0]);
}

#[test]
fn a_flow_that_nobody_reads_holds_up_no_other() {
    let mut pair = Pair::new(1);
    let (slow, fast) = (pair.flow(), pair.flow());
    pair.takes[1] = false;
    let mut sent = 0;
    for _ in 0..10 {
        sent += pair.send(0, slow, &noise(100_000));
        pair.run();
    }
    assert_eq!(pair.got[1][&slow].len(), CREDIT_FIRST as usize, "no more than was allowed");
    assert_eq!(sent, CREDIT_FIRST as usize + pair.ends[0].queued(slow));
    pair.takes[1] = true;
    pair.send_all(0, fast, &noise(1 << 20));
    assert_eq!(pair.got[1][&fast], noise(1 << 20));
    assert_eq!(pair.got[1][&slow].len(), CREDIT_FIRST as usize);
    // It is read after all.
    while pair.ends[0].queued(slow) > 0 {
        let len = pair.got[1][&slow].len();
        pair.ends[1].took(slow, len.min(CREDIT_FIRST as usize), pair.now_ns);
        pair.run();
    }
    assert_eq!(pair.got[1][&slow].len(), sent);
}

/// Takes the frames out of `wire` that a peer of an earlier version would not send.
fn without_delivered(wire: &mut Vec<u8>) {
    let mut at = 0;
    while at < wire.len() {
        let len = HEADER_LEN + usize::from(u16::from_le_bytes([wire[at + 7], wire[at + 8]]));
        if wire[at] == 64 {
            wire.drain(at..at + len);
        } else {
            at += len;
        }
    }
}

#[test]
fn each_end_hears_what_the_reader_of_the_other_one_has() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    for end in [0, 1] {
        assert_eq!(pair.ends[end].raw_room(flow), FIRST);
        pair.ends[end].took_raw(flow, FIRST, pair.now_ns);
        assert_eq!(pair.ends[end].raw_room(flow), 0);
        pair.now_ns += SECOND;
        pair.ends[1 - end].delivered(flow, 1000, pair.now_ns);
        assert!(!pair.ends[1 - end].has_output(0), "not worth a frame");
        pair.ends[1 - end].delivered(flow, 100_000, pair.now_ns);
        pair.ends[1 - end].delivered(flow, 200_000, pair.now_ns);
        pair.run();
        assert_eq!(pair.ends[end].raw_room(flow), 100_000, "the second one was not due");
        let due_ns = pair.ends[1 - end].report_ns(flow, 200_000).unwrap();
        pair.ends[1 - end].delivered(flow, 200_000, due_ns);
        pair.run();
        assert_eq!(pair.ends[end].raw_room(flow), 200_000);
    }
}

#[test]
fn a_peer_of_an_earlier_version_is_not_waited_for() {
    for old in [0, 1] {
        let mut pair = Pair::new(1);
        let flow = pair.ends[0].open(&target()).unwrap();
        assert_eq!(pair.ends[0].raw_room(flow), FIRST, "it may yet tell");
        pair.write(0, 0, 64 << 10);
        if old == 0 {
            without_delivered(&mut pair.wires[0][0]);
        }
        pair.run();
        pair.ends[1].opened(flow);
        pair.write(1, 0, 64 << 10);
        if old == 1 {
            without_delivered(&mut pair.wires[1][0]);
        }
        pair.run();
        let new = 1 - old;
        assert!(pair.ends[new].raw_room(flow) > 1 << 40);
        assert_eq!(pair.ends[new].report_ns(flow, 1 << 30), None);
    }
}

#[test]
fn calm_flows_do_not_wait_for_bulk() {
    let mut pair = Pair::new(1);
    let (bulk, calm) = (pair.flow(), pair.flow());
    pair.send_all(0, bulk, &noise(2 * BULK_BYTES as usize));
    pair.send(0, bulk, &noise(200_000));
    pair.write(0, 0, 20_000);
    pair.send(0, calm, b"now");
    pair.write(0, 0, 1);
    pair.run();
    let mut out = Vec::new();
    pair.send(0, bulk, &noise(200_000));
    pair.send(0, calm, b"now");
    pair.ends[0].transmit(0, 1, &mut out, &mut Vec::new(), pair.now_ns);
    assert!(out.ends_with(b"now"), "the calm flow is first although it came last");
}

#[test]
fn bulk_gets_a_carrier_of_its_own_and_arrives_in_order() {
    let mut pair = Pair::new(2);
    let calm = pair.flow();
    let flow = pair.flow();
    for end in 0..2 {
        let data = noise(3 * BULK_BYTES as usize);
        pair.send_all(end, flow, &data);
        assert_eq!(pair.ends[end].carrier_of(flow), Some(1));
        assert_eq!(pair.got[1 - end][&flow], data);
    }
    assert_eq!(pair.ends[0].carrier_of(calm), Some(0));
    assert_eq!(pair.ends[0].carriers_wanted(), 3, "both directions are bulk");
    let next = pair.flow();
    assert_eq!(pair.ends[0].carrier_of(next), Some(0), "calm flows begin where no bulk is");
    pair.ends[0].finish(flow);
    pair.ends[1].finish(flow);
    pair.run();
    assert_eq!(pair.ends.each_ref().map(Session::carriers_wanted), [1, 1]);
}

#[test]
fn bulk_moves_when_a_carrier_comes_later() {
    let mut pair = Pair::new(1);
    let flow = pair.flow();
    let data = noise(2 * BULK_BYTES as usize);
    pair.send_all(0, flow, &data);
    assert_eq!((pair.ends[0].carrier_of(flow), pair.ends[0].carriers_wanted()), (Some(0), 2));
    pair.connect(1);
    assert_eq!(pair.ends[0].carrier_of(flow), Some(1));
    pair.send_all(0, flow, &data);
    assert!(pair.got[1][&flow] == [data.clone(), data].concat());
}

#[test]
fn a_lost_carrier_takes_its_own_flows_only() {
    let mut pair = Pair::new(2);
    let bulk = pair.flow();
    let calm = pair.flow();
    pair.send_all(0, bulk, &noise(2 * BULK_BYTES as usize));
    assert_eq!(pair.ends[0].carrier_of(bulk), Some(1));
    pair.ends[0].remove_carrier(1);
    pair.run();
    assert_eq!(pair.take_seen(0), [format!("reset {bulk} Lost")]);
    assert_eq!(pair.take_seen(1), [format!("reset {bulk} Lost")], "told on the carrier that is left");
    pair.ends[1].remove_carrier(1);
    pair.send_all(0, calm, b"on");
    assert_eq!(pair.got[1][&calm], b"on");
    pair.connect(1);
    pair.ends[0].remove_carrier(0);
    pair.ends[1].remove_carrier(0);
    pair.run();
    assert_eq!(pair.take_seen(0), ["up 1".into(), format!("reset {calm} Lost")]);
    assert!(pair.ends[0].open(&target()).is_some(), "on the carrier that is left");
    pair.ends[0].remove_carrier(1);
    assert!(pair.ends[0].open(&target()).is_none() && !pair.ends[0].has_carriers());
}

/// An end that has nothing more to say closes one carrier after the other, and what is behind on one
/// must not be lost with another.
#[test]
fn a_direction_that_has_ended_needs_its_carrier_no_more() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    let data = noise(2 * BULK_BYTES as usize);
    pair.send_all(1, flow, &data);
    assert_eq!(pair.ends.each_ref().map(|end| end.carrier_of(flow)), [Some(0), Some(1)]);
    pair.ends[0].finish(flow);
    pair.run();
    pair.ends[0].remove_carrier(0);
    pair.ends[1].remove_carrier(0);
    pair.send_all(1, flow, b"the rest");
    pair.ends[1].finish(flow);
    pair.run();
    assert!(pair.got[0][&flow] == [data, b"the rest".to_vec()].concat());
    assert!((0..2).all(|end| pair.take_seen(end).iter().all(|seen| !seen.contains("reset"))));
    assert_eq!(pair.ends.each_ref().map(Session::flows), [0, 0]);
    // If its end has not come, the other end says so on the carrier that is left.
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    pair.send_all(1, flow, &noise(2 * BULK_BYTES as usize));
    pair.ends[0].finish(flow);
    pair.ends[0].remove_carrier(0);
    pair.ends[1].remove_carrier(0);
    pair.run();
    assert!((0..2).all(|end| pair.take_seen(end).contains(&format!("reset {flow} Lost"))));
}

#[test]
fn dead_peers_are_noticed_and_quiet_ones_are_not() {
    let mut pair = Pair::new(1);
    pair.run();
    for _ in 0..100 {
        pair.now_ns += SECOND;
        for end in 0..2 {
            assert!(pair.ends[end].on_time(pair.now_ns).is_empty());
        }
        pair.run();
    }
    assert!(pair.ends[0].next_wakeup_ns().unwrap() > pair.now_ns);
    // Nothing arrives any more.
    let since_ns = pair.now_ns;
    loop {
        pair.now_ns = pair.ends[0].next_wakeup_ns().unwrap();
        let dead = pair.ends[0].on_time(pair.now_ns);
        if !dead.is_empty() {
            assert_eq!(dead, [0]);
            break;
        }
    }
    let silence_ns = pair.now_ns - since_ns;
    assert!((44 * SECOND..=45 * SECOND).contains(&silence_ns), "{silence_ns}");
}

#[test]
fn a_hello_that_never_comes_is_a_lost_carrier() {
    let mut dialer = Session::new(Role::Dialer, hello(), Timing::default());
    dialer.add_carrier(0, Parser::new(0), 0);
    assert_eq!(dialer.next_wakeup_ns(), Some(10 * SECOND));
    assert!(dialer.on_time(10 * SECOND - 1).is_empty());
    assert_eq!(dialer.on_time(10 * SECOND), [0]);
    assert!(dialer.open(&target()).is_none(), "nobody answered yet");
}

#[test]
fn listeners_are_asked_for_and_their_flows_come_from_the_acceptor() {
    let mut pair = Pair::new(1);
    [3, 4].iter().for_each(|n| pair.ends[0].listen(*n, &Endpoint::Tcp { host: String::new(), port: 8080 }));
    pair.run();
    assert_eq!(pair.take_seen(1), ["up 0", "listen 3 localhost:8080", "listen 4 localhost:8080"]);
    pair.ends[1].listening(3, Ok("127.0.0.1:8080"));
    pair.ends[1].listening(4, Err((Reason::Forbidden, "no")));
    pair.run();
    assert_eq!(pair.take_seen(0)[1..], ["listening 3 Ok(\"127.0.0.1:8080\")", "listening 4 Err((Forbidden, \"no\"))"]);
    let flow = pair.ends[1].open(&Target { to: To::Listener(3), client: "::1".into() }).unwrap();
    assert_eq!(flow, 1);
    pair.send(1, flow, b"hi");
    pair.run();
    assert_eq!(pair.take_seen(0), ["incoming 1"]);
    assert_eq!(pair.got[0][&1], b"hi");
}

/// Each would be a line of the dialer's log.
#[test]
fn answers_that_nobody_asked_for_end_their_carrier() {
    let no = Reason::Busy.to_bytes("no");
    let yes = [&[0], &no[1..]].concat();
    let judged = |bodies: &[&[u8]]| {
        let mut pair = Pair::new(1);
        pair.ends[0].listen(3, &Endpoint::Tcp { host: String::new(), port: 0 });
        let mut bytes = Vec::new();
        bodies.iter().for_each(|body| put(&mut bytes, Kind::Listening, 3, body));
        pair.ends[0].receive(0, Block::from_vec(bytes), 0).map_err(|e| e.kind)
    };
    assert_eq!(judged(&[&yes, &no]), Ok(()), "it was there, and is withdrawn");
    for more in [&[&yes[..], &yes][..], &[&no, &no], &[&no, &yes], &[&yes, &no, &yes], &[&yes, &no, &no]] {
        assert_eq!(judged(more), Err(ErrorKind::Corrupt), "{more:?}");
    }
    let mut pair = Pair::new(1);
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Listening, 0, &yes);
    assert_eq!(pair.ends[0].receive(0, Block::from_vec(bytes), 0).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
}

#[test]
fn who_leaves_opens_nothing_and_finishes_what_is_open() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    pair.ends[1].leave(Reason::Leaving, "stopping");
    pair.run();
    assert_eq!(pair.take_seen(0), ["goaway Leaving"], "once, although on both carriers");
    assert!(pair.ends[0].open(&target()).is_none());
    pair.send_all(0, flow, b"the rest");
    assert_eq!(pair.got[1][&flow], b"the rest");
}

/// What an acceptor with an open flow 2 says to these frames.
fn judged(frames: &[(Kind, u64, &[u8])]) -> std::result::Result<usize, ErrorKind> {
    let mut pair = Pair::new(2);
    assert_eq!(pair.flow(), 2);
    let mut bytes = Vec::new();
    frames.iter().for_each(|(kind, flow, body)| put(&mut bytes, *kind, *flow, body));
    match pair.ends[1].receive(0, Block::from_vec(bytes), 0) {
        Ok(()) => Ok(std::iter::from_fn(|| pair.ends[1].poll_event()).count()),
        Err(e) => Err(e.kind),
    }
}

#[test]
fn hostile_frames_end_their_carrier() {
    let db = target().to_bytes();
    let of_listener = Target { to: To::Listener(1), client: String::new() }.to_bytes();
    let much = vec![0; BODY_MAX];
    let bad: &[&[(Kind, u64, &[u8])]] = &[
        &[(Kind::Hello, 0, &[0; 32])],
        &[(Kind::Open, 2, &db)],
        &[(Kind::Open, 0, &db)],
        &[(Kind::Open, 3, &db)],
        &[(Kind::Open, 8, &db), (Kind::Open, 6, &db)],
        &[(Kind::Open, 4, &of_listener)],
        &[(Kind::Open, 4, b"")],
        &[(Kind::Opened, 2, b"")],
        &[(Kind::Refused, 2, b"\x01")],
        &[(Kind::Raw, 2, b"")],
        &[
            (Kind::Raw, 2, &much),
            (Kind::Coded, 2, &much),
            (Kind::Raw, 2, &much),
            (Kind::Raw, 2, &much),
            (Kind::Raw, 2, &much),
        ],
        &[(Kind::Credit, 2, b"\xff\xff\xff")],
        &[(Kind::Credit, 2, b"\xff\xff\xff\xff")],
        &[(Kind::Finish, 2, b"x")],
        &[(Kind::Finish, 2, b""), (Kind::Raw, 2, b"x")],
        &[(Kind::Finish, 2, b""), (Kind::Finish, 2, b"")],
        &[(Kind::Reset, 2, b"")],
        &[(Kind::Move, 2, b"\x01")],
        &[(Kind::Move, 2, b"\x00\x01\x00")],
        &[(Kind::Move, 2, b"\x04\x01\x00")],
        &[(Kind::Move, 2, b"\x01\x02\x00"), (Kind::Raw, 2, b"x")],
        &[(Kind::Ping, 0, b"")],
        &[(Kind::Goaway, 0, b"")],
        &[(Kind::Listen, 0, b"")],
        &[(Kind::Listening, 0, b"\x00")],
    ];
    for frames in bad {
        assert_eq!(judged(frames), Err(ErrorKind::Corrupt), "{frames:?}");
    }
    let bind = Endpoint::Tcp { host: "*".into(), port: 1 }.to_bytes();
    let listens: Vec<(Kind, u64, &[u8])> = (0..=LISTENERS_MAX as u64).map(|n| (Kind::Listen, n, &bind[..])).collect();
    assert_eq!(judged(&listens), Err(ErrorKind::Corrupt));
}

#[test]
fn late_and_superfluous_frames_are_passed_over() {
    let good: &[&[(Kind, u64, &[u8])]] = &[
        &[(Kind::Raw, 100, b"late")],
        &[(Kind::Move, 100, b"")],
        &[(Kind::Reset, 100, b"\x07")],
        &[(Kind::Pong, 0, b"never asked for")],
        &[(Kind::Ping, 0, b"12345678")],
    ];
    for frames in good {
        assert_eq!(judged(frames), Ok(0), "{frames:?}");
    }
}

#[test]
fn a_move_to_a_carrier_that_is_gone_loses_the_flow() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Move, flow, b"\x03\x01\x00");
    pair.ends[1].receive(0, Block::from_vec(bytes), 0).unwrap();
    pair.hear(1);
    assert_eq!(pair.take_seen(1), [format!("reset {flow} Lost")]);
    pair.run();
    assert_eq!(pair.take_seen(0), [format!("reset {flow} Lost")]);
}

#[test]
fn a_move_to_a_carrier_that_was_replaced_loses_the_flow() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    let mover = &mut pair.ends[1];
    mover.flows.get_mut(&flow).unwrap().out.pace.is_bulk = true;
    mover.carriers[0].as_mut().unwrap().bulk_flows += 1;
    mover.bulk += 1;
    mover.move_away(flow);
    assert_eq!(mover.carrier_of(flow), Some(1));
    // The move is still under way when the dialer has lost the carrier and made it again.
    pair.ends[0].remove_carrier(1);
    pair.connect(1);
    assert_eq!(pair.ends.each_ref().map(Session::flows), [0, 0]);
    assert!((0..2).all(|end| pair.take_seen(end).contains(&format!("reset {flow} Lost"))));
}

/// The sender has finished, so that it would never hear that its last bytes were lost.
#[test]
fn bytes_that_were_lost_with_the_carrier_before_end_no_flow() {
    let mut pair = Pair::new(2);
    let flow = pair.flow();
    let mover = &mut pair.ends[1];
    mover.flows.get_mut(&flow).unwrap().out.pace.is_bulk = true;
    mover.carriers[0].as_mut().unwrap().bulk_flows += 1;
    mover.bulk += 1;
    mover.move_away(flow);
    mover.send(flow, Block::from_vec(vec![1; 1000]), false);
    mover.finish(flow);
    pair.write(1, 1, 64 << 10);
    assert!(pair.wires[1][1].len() > 1000 && pair.ends[1].has_left(flow));
    pair.wires[1][1].clear();
    (0..2).for_each(|end| pair.ends[end].remove_carrier(1));
    assert_eq!(pair.ends.each_ref().map(Session::flows), [1, 1]);
    // The move comes after the new carrier.
    pair.connect(1);
    assert_eq!(pair.ends.each_ref().map(Session::flows), [0, 0]);
    assert!((0..2).all(|end| pair.take_seen(end).contains(&format!("reset {flow} Lost"))));
}

#[test]
fn a_move_may_overtake_the_hello_of_its_carrier() {
    let mut pair = Pair::new(1);
    let flow = pair.flow();
    pair.ends[0].add_carrier(1, Parser::new(0), 0);
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Move, flow, b"\x01\x02\x00");
    pair.ends[0].receive(0, Block::from_vec(bytes), 0).unwrap();
    let mut bytes = Hello { carrier: 1, attempt: 2, ..hello() }.greet();
    put(&mut bytes, Kind::Raw, flow, b"moved");
    pair.ends[0].receive(1, Block::from_vec(bytes), 0).unwrap();
    pair.hear(0);
    assert_eq!(pair.take_seen(0), ["up 1"]);
    assert_eq!(pair.got[0][&flow], b"moved");
}

#[test]
fn a_peer_that_asks_and_never_reads_is_read_no_more() {
    let mut pair = Pair::new(1);
    let mut pings = Vec::new();
    (0..CONTROL_MAX / 16).for_each(|_| put(&mut pings, Kind::Ping, 0, b"12345678"));
    assert!(pair.ends[1].wants_input(0));
    pair.ends[1].receive(0, Block::from_vec(pings), 0).unwrap();
    assert!(!pair.ends[1].wants_input(0));
    pair.run();
    assert!(pair.ends[1].wants_input(0));
    // Many connections at once are no answers: both ends could wait for each other.
    let far = Endpoint::Tcp { host: "h".repeat(200), port: 1 }.into();
    for _ in 0..10_000 {
        pair.ends[0].open(&far).unwrap();
    }
    assert!(pair.ends[0].wants_input(0));
}

#[test]
fn an_answer_for_another_session_is_refused() {
    let mut dialer = Session::new(Role::Dialer, hello(), Timing::default());
    dialer.add_carrier(0, Parser::new(0), 0);
    let other = Hello { session: 2, attempt: 1, ..hello() }.greet();
    assert!(dialer.receive(0, Block::from_vec(other), 0).is_err());
    let mut dialer = Session::new(Role::Dialer, hello(), Timing::default());
    dialer.add_carrier(0, Parser::new(0), 0);
    // Of two servers behind one name, or one that was started again, one keeps the session.
    let mut dialer = Session::new(Role::Dialer, hello(), Timing::default());
    let answer = |carrier, instance| {
        let attempt = u16::from(carrier) + 1;
        Block::from_vec(Hello { carrier, attempt, instance, ..hello() }.greet())
    };
    (0..3).for_each(|carrier| dialer.add_carrier(carrier, Parser::new(0), 0));
    dialer.receive(0, answer(0, 7), 0).unwrap();
    dialer.transmit(0, 1, &mut Vec::new(), &mut Vec::new(), 0);
    let mut pong = Vec::new();
    put(&mut pong, Kind::Pong, 0, &0u64.to_le_bytes());
    dialer.receive(0, Block::from_vec(pong), 0).unwrap();
    assert!(dialer.receive(1, answer(1, 8), 0).is_err());
    assert!(dialer.has_output(0), "the carrier before is asked whether it is there");
    dialer.receive(2, answer(2, 7), 0).unwrap();
    let mut ping = GREETING.to_vec();
    put(&mut ping, Kind::Ping, 0, b"12345678");
    assert!(dialer.receive(0, Block::from_vec(ping), 0).is_err());
}

#[derive(Debug, Clone)]
enum Step {
    Open,
    Send { end: usize, flow: usize, len: usize },
    Finish { end: usize, flow: usize },
    Write { end: usize, number: u8, len: usize },
    Pass { end: usize, number: u8, len: usize },
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (end, flow, number) = (0..2usize, 0..4usize, 0..3u8);
    let step = prop_oneof![
        1 => Just(Step::Open),
        8 => (end.clone(), flow.clone(), 1..200_000usize).prop_map(|(end, flow, len)| Step::Send { end, flow, len }),
        1 => (end.clone(), flow).prop_map(|(end, flow)| Step::Finish { end, flow }),
        8 => (end.clone(), number.clone(), 1..300_000usize).prop_map(|(end, number, len)| Step::Write { end, number, len }),
        8 => (end, number, 1..300_000usize).prop_map(|(end, number, len)| Step::Pass { end, number, len }),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the order in which carriers move their bytes, every flow has the bytes that were
    /// sent, in order, to its end.
    #[test]
    fn every_flow_is_whole(steps in steps()) {
        let mut pair = Pair::new(3);
        let mut flows = Vec::new();
        let mut sent: [HashMap<FlowId, Vec<u8>>; 2] = Default::default();
        let mut finished: [std::collections::HashSet<FlowId>; 2] = Default::default();
        let mut opened = std::collections::HashSet::new();
        for step in steps {
            match step {
                Step::Open if flows.len() < 4 => flows.extend(pair.ends[0].open(&target())),
                Step::Send { end, flow, len } => {
                    let Some(flow) = flows.get(flow).copied() else { continue };
                    let begun = sent[end].get(&flow).map_or(0, Vec::len);
                    let bytes: Vec<u8> = (begun..begun + len).map(|i| (i ^ (i >> 8)) as u8).collect();
                    let len = pair.send(end, flow, &bytes);
                    sent[end].entry(flow).or_default().extend_from_slice(&bytes[..len]);
                }
                Step::Finish { end, flow } => {
                    let Some(flow) = flows.get(flow).copied().filter(|f| pair.ends[end].room(*f) > 0) else { continue };
                    pair.ends[end].finish(flow);
                    finished[end].insert(flow);
                }
                Step::Write { end, number, len } => pair.write(end, number, len),
                Step::Pass { end, number, len } => pair.pass(end, number, len),
                Step::Wait => pair.now_ns += SECOND / 3,
                Step::Open => {}
            }
            for flow in flows.iter().filter(|f| pair.seen[1].contains(&format!("incoming {f}"))) {
                if opened.insert(*flow) {
                    pair.ends[1].opened(*flow);
                }
            }
        }
        pair.run();
        for end in 0..2 {
            for flow in &flows {
                let all = sent[end].get(flow).cloned().unwrap_or_default();
                let got = pair.got[1 - end].get(flow).cloned().unwrap_or_default();
                prop_assert!(got == all, "{} of {} bytes of flow {flow}", got.len(), all.len());
                let ended = pair.seen[1 - end].contains(&format!("finished {flow}"));
                prop_assert_eq!(ended, finished[end].contains(flow));
            }
        }
        let open = flows.iter().filter(|f| !(finished[0].contains(f) && finished[1].contains(f))).count();
        prop_assert_eq!([pair.ends[0].flows(), pair.ends[1].flows()], [open; 2]);
    }

    /// Arbitrary frames never panic, and what they make the session hold is bounded.
    #[test]
    fn arbitrary_frames_do_no_harm(frames in prop::collection::vec((0..16u8, 0..6u64, prop::collection::vec(any::<u8>(), 0..12)), 0..40)) {
        let mut pair = Pair::new(2);
        pair.flow();
        for (kind, flow, body) in frames {
            let mut bytes = Vec::new();
            put(&mut bytes, Kind::Raw, flow, &body);
            bytes[0] = kind;
            let _ = pair.ends[1].receive(1, Block::from_vec(bytes), 0);
            pair.hear(1);
        }
        let mut out = Vec::new();
        pair.ends[1].transmit(1, usize::MAX, &mut out, &mut Vec::new(), 0);
        prop_assert!(out.len() < 64 << 10);
    }
}

/// Each costs much more than its bytes: whoever sends many at once gets them taken in parts.
#[test]
fn connections_are_taken_as_many_as_may_be_asked_for_at_a_time() {
    let mut pair = Pair::new(2);
    let calm = pair.flow();
    let flows: Vec<FlowId> = (0..5).map(|_| pair.ends[0].open(&target()).unwrap()).collect();
    pair.send(0, flows[0], b"first");
    pair.ends[1].set_asks_left(2);
    let number = (0..2).find(|n| pair.ends[0].has_output(*n)).unwrap();
    pair.write(0, number, usize::MAX >> 1);
    pair.pass(0, number, usize::MAX);
    assert_eq!(pair.take_seen(1).len(), 2);
    assert!(pair.ends[1].is_held(number) && pair.ends[1].asks_left() == 0);
    // Nothing else is held up.
    pair.ends[1].send(calm, Block::from_vec(b"answer".to_vec()), false);
    pair.write(1, 0, 1000);
    pair.pass(1, 0, 1000);
    assert_eq!(pair.got[0][&calm], b"answer");
    for (more, all) in [(2, 2), (9, 1)] {
        pair.ends[1].set_asks_left(more);
        pair.ends[1].resume(number, 0).unwrap();
        pair.hear(1);
        assert_eq!(pair.take_seen(1).len(), all);
    }
    assert!(!pair.ends[1].is_held(number) && pair.ends[1].asks_left() == 8);
    assert_eq!(pair.got[1][&flows[0]], b"first", "what came behind is there too");
}
