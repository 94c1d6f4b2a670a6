//! Tests of one pump; the test plays the program and the peer of its connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;
use std::time::Instant;

use narrows::ahead::FIRST;
use narrows::block::BufferPool;
use narrows::codec::{Contexts, Method};
use narrows::frame::{ControlKind, EndTotals, PREFACE_LEN, Scan, Scanned, control_frame, delivered_frame};
use narrows::policy::Fixed;
use narrows::sender::{LinkSample, Sender as FrameSender, SenderConfig};
use narrows::stream;
use narrows::upgrade::marker::{DIRECT_MAGIC, MARKER_LEN, Side};
use narrows::upgrade::{Event, Key};
use narrows_test::PATIENCE;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, sockopt};

use super::*;
use crate::account::Totals;
use crate::compressor::Compressor;
use crate::held::Holdings;
use crate::negotiator::Desk;
use crate::negotiator::Negotiator;
use crate::scope::Direct;
use crate::talk::Talk;

/// Time after which something is taken not to happen.
const SOON: Duration = Duration::from_millis(500);

struct World {
    shared: Arc<Shared>,
    pump: Inlet,
    /// Kept, but never started: nobody negotiates.
    _desk: Desk,
}

/// The two ends that the supervisor connects.
struct Ends {
    program: UnixStream,
    peer: TcpStream,
}

impl World {
    fn new() -> Self {
        Self::with("fixed:store")
    }

    /// With this policy.
    fn with(policy: &str) -> Self {
        let (negotiator, desk) = Negotiator::open().unwrap();
        let shared = Arc::new(Shared {
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            kept_max: 16,
            idle: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            talk: Talk { verbose: false },
            negotiator,
            compressor: Arc::new(Compressor::new(Some(policy.parse().unwrap()), None)),
            direct: Direct::new(&[], true).unwrap(),
            held: Holdings::default(),
            totals: Totals::default(),
            begun: Instant::now(),
        });
        let pump = start(Arc::clone(&shared)).unwrap();
        Self { shared, pump, _desk: desk }
    }

    /// A connection that the program accepted.
    fn accepted(&self, id: u64) -> Ends {
        self.hand_over(&Request { accepted: true, ..new(id) })
    }

    /// Hands a connection over as the library does.
    fn hand_over(&self, request: &Request) -> Ends {
        self.hand_over_bounded(request, None).0
    }

    /// The same with fixed receive buffers of the network and optionally a send buffer size; also
    /// returns the TCP socket.
    fn hand_over_bounded(&self, request: &Request, send_buffer: Option<usize>) -> (Ends, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&listener, 256 << 10).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let network = listener.accept().unwrap().0;
        sockopt::set_socket_recv_buffer_size(&peer, 256 << 10).unwrap();
        if let Some(len) = send_buffer {
            sockopt::set_socket_send_buffer_size(&network, len).unwrap();
        }
        let kept = network.try_clone().unwrap();
        sockopt::set_socket_linger(&network, Some(Duration::ZERO)).unwrap();
        let (mut program, supervisors) = UnixStream::pair().unwrap();
        // The kernel's minimum: some kilobytes exceed what the program's end holds.
        sockopt::set_socket_send_buffer_size(&supervisors, 1).unwrap();
        program.write_all(&[0]).unwrap();
        for timeout in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
            timeout(&peer, Some(PATIENCE)).unwrap();
        }
        for timeout in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            timeout(&program, Some(PATIENCE)).unwrap();
        }
        // As the supervisor does.
        if let Some(held) = self.shared.held.add(request, 0, network.into()) {
            self.shared.live.fetch_add(1, Ordering::AcqRel);
            self.pump.send(Order::Take { request: Box::new(*request), held, program: supervisors.into() });
        }
        (Ends { program, peer }, kept)
    }

    fn live(&self) -> usize {
        self.shared.live.load(Ordering::Acquire)
    }
}

impl Ends {
    /// Checks that bytes pass both ways.
    fn assert_passes(&mut self) {
        let mut got = [0; 5];
        self.peer.write_all(b"there").unwrap();
        self.program.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there");
        self.program.write_all(b"back.").unwrap();
        self.peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"back.");
    }
}

fn new(id: u64) -> Request {
    Request { number: 1, ..Request::new([0; 16], Kind::New, id) }
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "{what} is waited for in vain");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads everything until the end, and the error there; `None` is an orderly end.
fn rest(from: &mut impl Read) -> (Vec<u8>, Option<ErrorKind>) {
    let mut all = Vec::new();
    let end = from.read_to_end(&mut all);
    (all, end.err().map(|e| e.kind()))
}

fn opening() -> Vec<u8> {
    [&DIRECT_MAGIC[..], &[7; 16]].concat()
}

/// A frame stream with the content `raw`, without its end.
fn frames(raw: &[u8]) -> Vec<u8> {
    let pool = BufferPool::default();
    let mut sender = FrameSender::new(
        SenderConfig { history: 64 << 10, ..SenderConfig::default() },
        Box::new(Fixed::new(Method::STORE, false)),
        pool.clone(),
    );
    let (mut wire, mut at, mut last) = (Vec::new(), 0, 0);
    while !sender.is_drained() {
        at += sender.write(&raw[at..], 0);
        if at == raw.len() {
            sender.close(0);
        }
        while let Some(job) = sender.poll_job(0) {
            sender.finish(stream::encode(job, &mut Contexts::default(), &pool), 0);
        }
        while let Some(frame) = sender.poll_transmit() {
            last = wire.len();
            wire.extend_from_slice(&frame.header);
            wire.extend_from_slice(&frame.body);
        }
        sender.on_link(LinkSample { accepted: wire.len() as u64, ..Default::default() });
    }
    wire.truncate(last);
    wire
}

/// The beginning of a frame stream of a peer that tells what it delivers.
fn telling() -> Vec<u8> {
    let config = SenderConfig { tells_delivered: true, history: 64 << 10, ..SenderConfig::default() };
    let mut sender = FrameSender::new(config, Box::new(Fixed::new(Method::STORE, false)), BufferPool::default());
    sender.poll_transmit().unwrap().header.to_vec()
}

fn delivered(raw_bytes: usize) -> Vec<u8> {
    let frame = delivered_frame(raw_bytes as u64);
    [&frame.header[..], &frame.body].concat()
}

/// Writes until nothing more is taken for a while; returns the number of bytes taken.
fn taken_from(writer: &mut impl Write) -> usize {
    let (piece, mut taken) = (vec![7; 64 << 10], 0);
    while let Ok(n) = writer.write(&piece) {
        taken += n;
    }
    taken
}

/// Backpressure: a write that returns tells the program that its bytes are on their
/// way, so no more may wait than TCP would let wait, and the program's own limits apply. Without
/// this limit frames held 20 MiB.
#[test]
fn a_program_is_read_no_further_than_tcp_would_take_it() {
    let world = World::new();
    for (id, (buffer, most)) in [(None, 6 << 20), (Some(64 << 10), 1 << 20)].into_iter().enumerate() {
        let (mut ends, network) = world.hand_over_bounded(&Request { accepted: true, ..new(id as u64) }, buffer);
        ends.peer.write_all(&[opening(), frames(b"hello")].concat()).unwrap();
        let mut hello = [0; 5];
        ends.program.read_exact(&mut hello).unwrap();
        ends.program.write_all(b"hello").unwrap();
        // From here there are frames both ways. The peer reads nothing.
        ends.program.set_write_timeout(Some(SOON)).unwrap();
        let taken = taken_from(&mut ends.program);
        let by_tcp = sockopt::socket_send_buffer_size(&network).unwrap();
        assert!(taken < most, "{taken} bytes, where TCP holds {by_tcp}");
    }
}

/// Bytes that the sockets between a program and the pump hold.
const BETWEEN: usize = 512 << 10;

/// Zeros take next to nothing on the network, so that its buffers stop nobody: only what the peer says
/// does.
#[test]
fn a_program_is_read_no_further_than_the_peers_program_reads() {
    let world = World::with("fixed:zstd:level=1");
    let mut ends = world.accepted(1);
    ends.peer.write_all(&[opening(), telling()].concat()).unwrap();
    ends.program.set_write_timeout(Some(SOON)).unwrap();
    let mut taken = taken_from(&mut ends.program);
    assert!(taken <= FIRST + BETWEEN, "{taken} bytes before the peer's program has read any");
    let mut said = telling().len();
    for _ in 0..3 {
        let read = taken;
        said += delivered(read).len();
        ends.peer.write_all(&delivered(read)).unwrap();
        // However long it takes until that was heard.
        ends.program.set_write_timeout(Some(PATIENCE)).unwrap();
        taken += ends.program.write(&[0]).unwrap();
        ends.program.set_write_timeout(Some(SOON)).unwrap();
        taken += taken_from(&mut ends.program);
        assert!(taken <= read + read.max(FIRST) + BETWEEN, "{taken} bytes where {read} were read");
    }
    // Its stream ends: it says nothing more, and nobody waits for it.
    let end = EndTotals { wire_total: said as u64, ..EndTotals::default() }.frame();
    ends.peer.write_all(&[&end.header[..], &end.body].concat()).unwrap();
    ends.program.set_write_timeout(Some(PATIENCE)).unwrap();
    ends.program.write_all(&vec![0; 4 * FIRST]).unwrap();
}

#[test]
fn a_peer_that_tells_nothing_stops_nobody() {
    let world = World::with("fixed:zstd:level=1");
    let mut ends = world.accepted(1);
    ends.peer.write_all(&[opening(), frames(&[])].concat()).unwrap();
    ends.program.write_all(&vec![0; 8 * FIRST]).unwrap();
}

/// What the peer says stands after bytes that the program does not read before it has written all of
/// its own.
#[test]
fn the_peer_is_heard_though_the_program_reads_nothing() {
    let world = World::with("fixed:zstd:level=1");
    let mut ends = world.accepted(1);
    ends.peer.write_all(&[opening(), telling()].concat()).unwrap();
    ends.program.set_write_timeout(Some(SOON)).unwrap();
    let taken = taken_from(&mut ends.program);
    // Far more than all sockets and the receiver hold.
    let raw: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let wire = frames(&raw);
    ends.peer.write_all(&wire[PREFACE_LEN..]).unwrap();
    ends.peer.write_all(&delivered(taken)).unwrap();
    ends.program.set_write_timeout(Some(PATIENCE)).unwrap();
    ends.program.write_all(&vec![0; FIRST / 2]).unwrap();
    let mut got = vec![0; raw.len()];
    ends.program.read_exact(&mut got).unwrap();
    assert!(got == raw);
}

/// The same for plain bytes in front of its marker.
#[test]
fn the_peer_is_heard_behind_plain_bytes_that_the_program_does_not_read() {
    let world = World::with("fixed:zstd:level=1");
    let mut ends = world.hand_over(&new(1));
    let key = Key::new(&[1; 16], &[2; 16]);
    world.pump.send(Order::Hear { id: 1, event: Event::Ready(key.clone()) });
    ends.peer.read_exact(&mut [0; MARKER_LEN]).unwrap();
    ends.program.set_write_timeout(Some(SOON)).unwrap();
    let taken = taken_from(&mut ends.program);
    assert!(taken <= FIRST + BETWEEN, "{taken} bytes before the peer has said anything");
    let plain: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    ends.peer.write_all(&plain).unwrap();
    ends.peer.write_all(&[&key.marker(Side::Server)[..], &telling(), &delivered(taken)].concat()).unwrap();
    ends.program.set_write_timeout(Some(PATIENCE)).unwrap();
    ends.program.write_all(&vec![0; FIRST / 2]).unwrap();
    let mut got = vec![0; plain.len()];
    ends.program.read_exact(&mut got).unwrap();
    assert!(got == plain);
}

#[test]
fn a_peer_that_wants_to_know_is_told_what_the_program_has_read() {
    let world = World::new();
    let raw = vec![7; 3 << 20];
    for wants in [true, false] {
        let mut ends = world.accepted(u64::from(wants));
        let mut wire = [opening(), frames(&raw)].concat();
        if wants {
            wire.splice(opening().len()..opening().len() + PREFACE_LEN, telling());
        }
        let mut peer = ends.peer.try_clone().unwrap();
        let writer = thread::spawn(move || peer.write_all(&wire).unwrap());
        let (mut scan, mut told, mut at) = (Scan::default(), 0, 0);
        let mut listen = |peer: &mut TcpStream, told: &mut u64| {
            let mut buffer = [0; 4096];
            let Ok(n) = peer.read(&mut buffer) else { return false };
            let marker = MARKER_LEN.saturating_sub(at).min(n);
            at += n;
            scan.take(&buffer[marker..n], |found| {
                if let Scanned::Delivered(total) = found {
                    assert!(total > *told);
                    *told = total;
                }
            });
            n > 0
        };
        let mut read = 0;
        while read < raw.len() {
            read += ends.program.read(&mut vec![0; 64 << 10]).unwrap();
        }
        writer.join().unwrap();
        if wants {
            while told < (raw.len() - (64 << 10)) as u64 {
                assert!(listen(&mut ends.peer, &mut told), "{told} of {}", raw.len());
            }
        } else {
            ends.program.write_all(b"bye").unwrap();
            drop(ends.program);
            while listen(&mut ends.peer, &mut told) {}
        }
        assert!(told <= raw.len() as u64 && (told > 0) == wants, "{told}");
    }
}

/// The same at the other end: the program reads nothing, and the peer must notice. Without the
/// limit frames held 8 MiB beyond TCP's buffer.
#[test]
fn the_network_is_read_no_further_than_the_program_reads() {
    let world = World::new();
    let (mut ends, _network) = world.hand_over_bounded(&Request { accepted: true, ..new(1) }, None);
    ends.peer.set_write_timeout(Some(SOON)).unwrap();
    sockopt::set_socket_send_buffer_size(&ends.peer, 256 << 10).unwrap();
    let raw = vec![7; 20 << 20];
    let wire = [opening(), frames(&raw)].concat();
    let mut taken = 0;
    while let Ok(n) = ends.peer.write(&wire[taken..]) {
        taken += n;
        assert!(n > 0, "all of {} bytes", wire.len());
    }
    assert!(taken < 4 << 20, "{taken} bytes");
}

/// One block passes whatever its length, and a stranger may have one in each of many connections.
#[test]
fn nothing_is_decoded_while_the_memory_of_all_is_used_up() {
    let world = World::new();
    let mut share = world.shared.compressor.memory.share();
    share.count(1 << 30);
    let mut ends = world.accepted(1);
    ends.peer.write_all(&[opening(), frames(b"hello")].concat()).unwrap();
    ends.program.set_read_timeout(Some(SOON)).unwrap();
    let mut got = [0; 5];
    assert_eq!(ends.program.read(&mut got).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(share);
    ends.program.set_read_timeout(Some(PATIENCE)).unwrap();
    ends.program.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[test]
fn who_holds_what_others_wait_for_and_reads_nothing_is_reset() {
    let world = World::new();
    let mut idle = world.accepted(1);
    let mut reads = world.accepted(2);
    // More than the program's end takes.
    let wire = [opening(), frames(&vec![b'x'; 1 << 20])].concat();
    idle.peer.write_all(&wire).unwrap();
    // It is decoded, and the program has the beginning.
    idle.program.read_exact(&mut [0; 10]).unwrap();
    let mut share = world.shared.compressor.memory.share();
    share.count(1 << 30);
    reads.peer.write_all(&[opening(), frames(b"hello")].concat()).unwrap();
    let reset = Some(ErrorKind::ConnectionReset);
    // Reading too late frees memory, but the connection is reset all the same.
    assert_eq!(rest(&mut idle.peer).1, reset);
    assert_eq!(rest(&mut idle.program).1, reset);
    drop(share);
    let mut got = [0; 5];
    reads.program.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[test]
fn others_have_their_turn_beside_frames_without_end_that_hold_nothing() {
    // More than the sockets in between hold, so the pump must have read it.
    const SEEN: u64 = 32 << 20;
    let world = World::new();
    let (mut flood, mut small) = (world.accepted(1), world.accepted(2));
    small.assert_passes();
    let sent = Arc::new(AtomicU64::new(0));
    let (counted, mut peer) = (Arc::clone(&sent), flood.peer.try_clone().unwrap());
    let flooding = thread::spawn(move || {
        peer.write_all(&[opening(), frames(&[])].concat()).unwrap();
        let nothing = control_frame(ControlKind::Reset, &[], 0).header.repeat(10_000);
        while peer.write_all(&nothing).is_ok() {
            counted.fetch_add(nothing.len() as u64, Ordering::Relaxed);
        }
    });
    let seen = || sent.load(Ordering::Relaxed);
    wait_until("the flood", || seen() > SEEN);
    (0..20).for_each(|_| small.assert_passes());
    let before = seen();
    wait_until("its continuation", || seen() > before + SEEN);
    // The frames were valid, so the pump had to process them all the time.
    flood.program.set_nonblocking(true).unwrap();
    assert_eq!(rest(&mut flood.program).1, Some(ErrorKind::WouldBlock));
    flood.peer.shutdown(Shutdown::Both).unwrap();
    flooding.join().unwrap();
}

#[test]
fn an_id_that_is_in_use_is_the_older_connections() {
    let world = World::new();
    let mut first = world.accepted(7);
    first.assert_passes();
    let mut second = world.accepted(7);
    assert_eq!(rest(&mut second.program), (Vec::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(rest(&mut second.peer), (Vec::new(), Some(ErrorKind::ConnectionReset)));
    wait_until("the end of the second", || world.live() == 1);
    first.assert_passes();
    drop(first.program);
    assert_eq!(rest(&mut first.peer), (Vec::new(), None));
    wait_until("the end of the first", || world.live() == 0);
    // The id is free again.
    world.accepted(7).assert_passes();
}

/// An orderly close is an end of stream, any other a reset; what the program wrote arrives before
/// either.
#[test]
fn a_peer_sees_how_the_program_closed() {
    const LINGER_ZERO: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];
    let world = World::new();
    let mut ids = 0..;
    for framed in [false, true] {
        for (how, reads, linger) in
            [("in order", true, [0; 8]), ("with bytes unread", false, [0; 8]), ("by SO_LINGER", true, LINGER_ZERO)]
        {
            let id = ids.next().unwrap();
            let mut ends = world.hand_over(&Request { accepted: true, linger, ..new(id) });
            let hello = if framed { [opening(), frames(b"hello")].concat() } else { b"hello".to_vec() };
            ends.peer.write_all(&hello).unwrap();
            let mut got = [0; 5];
            if reads {
                ends.program.read_exact(&mut got).unwrap();
            } else {
                let peek = || rustix::net::recv(&ends.program, &mut [0; 5], RecvFlags::PEEK | RecvFlags::DONTWAIT);
                wait_until("the greeting", || peek().is_ok_and(|(n, _)| n == 5));
            }
            ends.program.write_all(b"bye").unwrap();
            drop(ends.program);
            let (wire, end) = rest(&mut ends.peer);
            let said = if framed { wire.windows(3).any(|w| w == b"bye") } else { wire == b"bye" };
            assert!(said, "{how}, framed: {framed}: {wire:02x?}");
            let wanted = (how != "in order").then_some(ErrorKind::ConnectionReset);
            assert_eq!(end, wanted, "{how}, framed: {framed}");
            wait_until("its end", || world.live() == 0);
        }
    }
}

/// Until the peer is reset its program is held back: what is discarded must not count as delivered, or it would write
/// hundreds of megabytes for nobody. Its own data shrinks, so that no buffer of the network stops anyone.
#[test]
fn a_program_that_closes_with_bytes_unread_has_nothing_more_delivered() {
    let world = World::with("fixed:zstd:level=1");
    for has_written in [true, false] {
        let mut ends = world.accepted(u64::from(has_written));
        ends.peer.write_all(&[opening(), telling(), frames(&[7; 1000]).split_off(PREFACE_LEN)].concat()).unwrap();
        let peek = || rustix::net::recv(&ends.program, &mut [0; 1000], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        wait_until("what the peer sent", || peek().is_ok_and(|(n, _)| n == 1000));
        if has_written {
            // Held back by the peer's reader.
            ends.program.set_write_timeout(Some(SOON)).unwrap();
            taken_from(&mut ends.program);
        }
        drop(ends.program);
        let (wire, end) = rest(&mut ends.peer);
        assert_eq!(end, Some(ErrorKind::ConnectionReset));
        let mut scan = Scan::default();
        scan.take(&wire[MARKER_LEN..], |found| {
            if let Scanned::Delivered(total) = found {
                assert!(total <= 1000, "{total} bytes count as delivered");
            }
        });
        wait_until("its end", || world.live() == 0);
    }
}

/// The peer is reset at once although the program has not read what came before; the program is
/// reset after that.
#[test]
fn rubbish_behind_an_agreement_is_a_reset_for_both() {
    // The program's end holds less.
    let raw: Vec<u8> = (0..4000u32).flat_map(u32::to_le_bytes).collect();
    let world = World::new();
    for agreed in [false, true] {
        let mut ends = world.hand_over(&Request { accepted: !agreed, ..new(1) });
        let before = if agreed {
            let key = Key::new(&[1; 16], &[2; 16]);
            world.pump.send(Order::Hear { id: 1, event: Event::Ready(key.clone()) });
            let mut marker = [0; MARKER_LEN];
            ends.peer.read_exact(&mut marker).unwrap();
            assert_eq!(marker, key.marker(Side::Client));
            key.marker(Side::Server).to_vec()
        } else {
            opening()
        };
        ends.peer.write_all(&[before, frames(&raw), vec![0x55; 1000]].concat()).unwrap();
        assert_eq!(rest(&mut ends.peer).1, Some(ErrorKind::ConnectionReset), "agreed: {agreed}");
        let write = || (&ends.program).write(b"x").is_err_and(|e| e.kind() == ErrorKind::BrokenPipe);
        wait_until("an error of writing", write);
        let (got, end) = rest(&mut ends.program);
        assert!(got == raw, "{} of {} bytes came", got.len(), raw.len());
        assert_eq!(end, Some(ErrorKind::ConnectionReset), "agreed: {agreed}");
        wait_until("its end", || world.live() == 0);
    }
}

/// A dying supervisor leaves a truncated stream, and resets on what still arrives. For TCP the
/// stream is at its end then, and the reset is the refusal of later bytes (EPIPE): the program must
/// not see an orderly end.
#[test]
fn a_stream_that_was_cut_off_is_a_reset_also_if_the_peer_refused_something_behind_it() {
    // The program's end holds less.
    let raw: Vec<u8> = (0..16_000u32).flat_map(u32::to_le_bytes).collect();
    let world = World::new();
    let (mut ends, network) = world.hand_over_bounded(&Request { accepted: true, ..new(1) }, None);
    ends.peer.write_all(&[opening(), frames(&raw)].concat()).unwrap();
    let mut first = [0; 4];
    ends.program.read_exact(&mut first).unwrap();
    // Before the end, as the pump resets the peer when it sees a stream that was cut off.
    ends.program.write_all(b"hello").unwrap();
    wait_until("what the peer does not read", || {
        rustix::net::recv(&ends.peer, &mut [0; 64], RecvFlags::PEEK).is_ok_and(|(n, _)| n == 64)
    });
    ends.peer.shutdown(Shutdown::Write).unwrap();
    drop(ends.peer);
    wait_until("the refusal", || network.peer_addr().is_err());
    wait_until("an error of writing", || (&ends.program).write_all(b"hello").is_err());
    let (got, end) = rest(&mut ends.program);
    assert!(first[..] == raw[..4] && got == raw[4..], "{} of {} bytes came", 4 + got.len(), raw.len());
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
}

fn poll_events(program: &UnixStream, patience: Duration) -> PollFlags {
    // No events are asked for: the kernel reports an error and a hang-up all the same.
    let mut look = [PollFd::new(program, PollFlags::empty())];
    let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    poll(&mut look, Some(&patience)).unwrap();
    look[0].revents()
}

/// A program that waits for room to write, or for nothing but the end, must learn that its peer is
/// gone, although what came before waits for it. It keeps what the kernel has room for.
#[test]
fn a_program_that_has_stopped_reading_is_told_of_a_reset() {
    // More than the program's end holds usually, less than the kernel allows; and more than that.
    for (raw_len, framed) in [(64 << 10, false), (64 << 10, true), (4 << 20, false), (4 << 20, true)] {
        let world = World::new();
        let (mut ends, _network) = world.hand_over_bounded(&Request { accepted: true, ..new(1) }, None);
        let raw: Vec<u8> = (0..raw_len as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let wire = if framed { [opening(), frames(&raw)].concat() } else { raw.clone() };
        ends.peer.set_write_timeout(Some(SOON)).unwrap();
        let mut sent = 0;
        while sent < wire.len()
            && let Ok(n) = ends.peer.write(&wire[sent..])
        {
            sent += n;
        }
        // As much as is taken, then one more write that waits.
        ends.program.set_write_timeout(Some(SOON)).unwrap();
        taken_from(&mut ends.program);
        ends.program.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut writer = ends.program.try_clone().unwrap();
        let writing = thread::spawn(move || {
            loop {
                if let Err(e) = writer.write(&[7; 64 << 10]) {
                    return e.kind();
                }
            }
        });
        sockopt::set_socket_linger(&ends.peer, Some(Duration::ZERO)).unwrap();
        drop(ends.peer);
        let case = format!("{raw_len} bytes, framed: {framed}");
        assert_eq!(writing.join().unwrap(), ErrorKind::BrokenPipe, "{case}");
        assert_eq!(poll_events(&ends.program, PATIENCE), PollFlags::HUP | PollFlags::ERR, "{case}");
        let (got, end) = rest(&mut ends.program);
        let whole = if raw_len < 1 << 20 { raw.len() } else { 1 };
        assert!(got.len() >= whole && raw.starts_with(&got), "{case}: {} bytes came", got.len());
        assert_eq!(end, Some(ErrorKind::ConnectionReset), "{case}");
        wait_until("its end", || world.live() == 0);
    }
}
