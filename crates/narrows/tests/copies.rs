//! Copies (format.md section 3.9). At the receiver: what is true is delivered, and nothing else. At
//! the sender: what repeats is sent once, if the receiver takes copies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

mod world;

use narrows::block::{Block, BufferPool};
use narrows::codec::{CodecId, Contexts, Method};
use narrows::frame::{
    BlockHeader, COPY_MIN, Copy, EndTotals, PREFACE_LEN, Preface, Role, chain_digest, feature, put_plan,
};
use narrows::receiver::{Depth, ObservedKind, Receiver, ReceiverConfig};
use narrows::repeats::{Finder, Part};
use narrows::sender::{LinkSample, Sender, SenderConfig, Summary};
use narrows::stored::Stored;
use narrows::stream::{ReceiveOptions, SendOptions, receive, send};
use narrows::transport::Link;
use narrows::{Error, ErrorKind};
use narrows_classic::policies;
use world::{random, text};

const REACH: usize = 64 << 10;
const BLOCK_MAX: usize = 256 << 10;

/// A stream that is written frame by frame.
struct Stream {
    wire: Vec<u8>,
    raw: Vec<u8>,
    digest: u64,
}

impl Stream {
    fn new() -> Self {
        let preface = Preface {
            role: Role::Sender,
            critical: feature::COPIES,
            optional: 0,
            check: true,
            block_max: BLOCK_MAX,
            history: 0,
            reach: REACH,
            codecs: 0xff,
        };
        Self { wire: preface.encode().to_vec(), raw: Vec::new(), digest: 0 }
    }

    fn data(&mut self, raw: &[u8]) {
        self.frame(BlockHeader::data(CodecId::STORE, false, raw.len(), raw.len()), raw, raw);
    }

    /// A copy frame with these literals, stored or as zstd. `raw` is what its reader should get.
    fn copy(&mut self, copies: &[Copy], literals: &[u8], zstd: bool, raw: &[u8]) {
        let mut body = Vec::new();
        put_plan(&mut body, copies.iter().copied());
        let codec = if zstd {
            let mut room = vec![0; literals.len()];
            let encoder = &mut Contexts::default();
            let len = encoder.encoder(Method::zstd(1).info()).encode(1, &[], literals, &mut room).unwrap();
            body.extend_from_slice(&room[..len]);
            CodecId::ZSTD
        } else {
            body.extend_from_slice(literals);
            CodecId::STORE
        };
        self.frame(BlockHeader::copy(codec, false, raw.len(), body.len()), &body, raw);
    }

    fn frame(&mut self, header: BlockHeader, body: &[u8], raw: &[u8]) {
        let check = header.check_of(raw, body, self.raw.len() as u64);
        self.wire.extend_from_slice(&header.encode(Some(check)));
        self.wire.extend_from_slice(body);
        self.raw.extend_from_slice(raw);
        self.digest = chain_digest(self.digest, check);
    }

    fn end(mut self) -> Self {
        let totals = EndTotals {
            raw_total: self.raw.len() as u64,
            wire_total: self.wire.len() as u64,
            index_offset: 0,
            digest: self.digest,
        };
        let frame = totals.frame();
        self.wire.extend([&frame.header[..], &frame.body].concat());
        self
    }
}

/// The bytes that `copies` and `literals` make after `before`.
fn made(before: &[u8], copies: &[Copy], mut literals: &[u8]) -> Vec<u8> {
    let mut flow = before.to_vec();
    for copy in copies {
        let (gap, rest) = literals.split_at(copy.gap);
        literals = rest;
        flow.extend_from_slice(gap);
        let begin = flow.len() - copy.distance as usize;
        flow.extend_from_within(begin..begin + copy.length);
    }
    flow.extend_from_slice(literals);
    flow.split_off(before.len())
}

fn config() -> ReceiverConfig {
    ReceiverConfig { reach_max: REACH, cores: 3, ..ReceiverConfig::default() }
}

/// What a sink has stored.
#[derive(Default)]
struct Shelf(Mutex<Vec<u8>>);

impl Stored for Shelf {
    fn read_raw(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        let bytes = self.0.lock().unwrap();
        let rest = bytes.get(at as usize..).unwrap_or_default();
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// Reads a stream in pieces of `cut` bytes: what is delivered, and how it ends. The same if copies
/// are read back.
fn read(wire: &[u8], cut: usize, config: ReceiverConfig) -> (Vec<u8>, Result<(), Error>) {
    let (raw, end) = read_from(wire, cut, config.clone(), None);
    // The sink is at most so many blocks behind.
    for behind in [0, 1, 3] {
        let (stored, stored_end) = read_from(wire, cut, config.clone(), Some(behind));
        assert!(stored == raw, "{} of {} bytes, {behind} behind", stored.len(), raw.len());
        let kinds = [&end, &stored_end].map(|end| end.as_ref().map_err(|e| (e.kind, e.wire_offset)));
        assert_eq!(kinds[0], kinds[1]);
    }
    (raw, end)
}

fn read_from(wire: &[u8], cut: usize, config: ReceiverConfig, behind: Option<usize>) -> (Vec<u8>, Result<(), Error>) {
    let pool = BufferPool::default();
    let reach_max = config.reach_max;
    let (mut receiver, mut contexts) = (Receiver::new(config, pool.clone()), Contexts::default());
    let (shelf, mut unstored) = (Arc::new(Shelf::default()), VecDeque::new());
    if behind.is_some() {
        receiver.read_back(Arc::clone(&shelf) as Arc<dyn Stored>, reach_max);
    }
    let mut raw = Vec::new();
    let mut pass = |receiver: &mut Receiver, mut taken: Result<(), Error>| {
        loop {
            // Jobs that were handed out together end in another order.
            let mut jobs: Vec<_> = std::iter::from_fn(|| receiver.poll_job()).collect();
            let idle = jobs.is_empty();
            while let Some(job) = jobs.pop() {
                taken = taken.and(receiver.finish(job.run(&mut contexts, &pool)));
            }
            while let Some(block) = receiver.read() {
                raw.extend_from_slice(&block);
                unstored.push_back(block);
                if behind.is_some_and(|behind| unstored.len() > behind) {
                    let block = unstored.pop_front().unwrap();
                    shelf.0.lock().unwrap().extend_from_slice(&block);
                    receiver.stored(block.len());
                }
            }
            if idle || taken.is_err() {
                return taken;
            }
        }
    };
    for piece in wire.chunks(cut) {
        let taken = receiver.receive(Block::from_vec(piece.to_vec()));
        if let Err(e) = pass(&mut receiver, taken) {
            // What comes before the damage is still good.
            while let Some(job) = receiver.poll_job() {
                let _ = receiver.finish(job.run(&mut contexts, &pool));
            }
            raw.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
            return (raw, Err(e));
        }
    }
    let closed = receiver.close();
    assert!(closed.is_err() || receiver.is_finished() && receiver.held() == 0);
    (raw, closed)
}

/// Copies of all kinds: from far back, from the block itself, across both, at the limits.
fn all_kinds() -> Stream {
    let mut stream = Stream::new();
    let copy = |gap, length, distance| Copy { gap, length, distance };
    let (first, literals) = (random(100_000, 1), text(5000, 2));
    stream.data(&first);
    for (copies, literals, zstd) in [
        // Nothing but a copy, from the far end of the reach.
        (vec![copy(0, 50_000, REACH as u64)], &b""[..], false),
        (vec![copy(100, 5000, 60_000), copy(0, 32, 32), copy(4000, 7000, 7000)], &literals, true),
        (vec![copy(50, 3000, 3010), copy(0, 1000, 3010)], &literals[..50], false),
        (vec![copy(0, 40, 50_000)], &literals[..7], false),
    ] {
        let raw = made(&stream.raw, &copies, literals);
        stream.copy(&copies, literals, zstd, &raw);
    }
    stream.data(b"the last");
    stream.end()
}

#[test]
fn copies_arrive_whatever_pieces_they_come_in() {
    let stream = all_kinds();
    for cut in [1, 13, 1000, stream.wire.len()] {
        for cores in [1, 8] {
            let (raw, end) = read(&stream.wire, cut, ReceiverConfig { cores, ..config() });
            end.unwrap();
            assert!(raw == stream.raw, "pieces of {cut}, {cores} cores");
        }
    }
    // With room for one frame at a time, and a larger reach than the stream needs.
    let little = ReceiverConfig { memory_max: 1, reach_max: 3 << 20, ..config() };
    let (raw, end) = read(&stream.wire, 500, little);
    assert!(raw == stream.raw && end.is_ok());
}

fn stored() -> Stream {
    let mut stream = Stream::new();
    stream.data(&random(6000, 1));
    for (copy, literals) in [
        (Copy { gap: 0, length: 4000, distance: 6000 }, vec![]),
        (Copy { gap: 1500, length: 3000, distance: 9000 }, text(2000, 2)),
    ] {
        let raw = made(&stream.raw, &[copy], &literals);
        stream.copy(&[copy], &literals, !literals.is_empty(), &raw);
    }
    stream.data(&text(2000, 3));
    stream.end()
}

#[test]
fn a_stored_stream_with_copies_decodes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/v1-copies.nrw");
    if std::env::var_os("UPDATE_STREAMS").is_some() && !std::path::Path::new(path).exists() {
        std::fs::write(path, stored().wire).unwrap();
    }
    let (raw, end) = read(&std::fs::read(path).unwrap(), 777, config());
    end.unwrap();
    assert!(raw == stored().raw);
}

#[test]
fn an_observer_sees_copy_frames_with_and_without_decoding() {
    let stream = all_kinds();
    let pool = BufferPool::default();
    for depth in [Depth::Blocks, Depth::Headers] {
        let mut receiver = Receiver::new(config(), pool.clone());
        receiver.observe(depth);
        receiver.receive(Block::from_vec(stream.wire.clone())).unwrap();
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut Contexts::default(), &pool)).unwrap();
        }
        let (mut at, mut raw, mut copies) = (PREFACE_LEN as u64, 0, 0);
        while let Some(seen) = receiver.poll_observed() {
            assert_eq!(seen.wire_offset, at);
            at += seen.wire_len as u64;
            if let ObservedKind::Block { raw_len, copies: has, .. } = seen.kind {
                (raw, copies) = (raw + raw_len, copies + usize::from(has));
            }
        }
        assert_eq!((at, raw, copies), (stream.wire.len() as u64, stream.raw.len(), 4), "{depth:?}");
    }
}

#[test]
fn copies_of_what_was_not_sent_are_refused_and_nothing_behind_them_is_delivered() {
    let first = random(30_000, 1);
    let copy = |gap, length, distance| vec![Copy { gap, length, distance }];
    // The check is right for some raw bytes each time: only the plan is at fault.
    for (name, copies, literals) in [
        ("before the flow", copy(0, 100, 30_001), 0),
        ("before the flow, by a gap", copy(5, 100, 30_006), 5),
        ("beyond the reach", copy(0, 100, REACH as u64 + 1), 0),
        ("itself", copy(0, 100, 99), 0),
        ("the future", copy(0, 100, 0), 0),
        ("too short", copy(0, COPY_MIN - 1, 20_000), 0),
        ("longer than the block", copy(0, 1000, 20_000), 0),
    ] {
        let mut stream = Stream::new();
        stream.data(&first);
        let raw = vec![7; if name == "longer than the block" { 999 } else { copies[0].length + literals }];
        stream.copy(&copies, &vec![7; literals], false, &raw);
        stream.data(b"behind");
        let wire_offset = stream.wire.len() as u64;
        let stream = stream.end();
        for cut in [100, stream.wire.len()] {
            let (raw, end) = read(&stream.wire, cut, config());
            let error = end.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{name}: {error}");
            assert!(error.wire_offset.is_some_and(|at| at < wire_offset), "{name}: {error}");
            assert!(raw == first, "{name}: {} bytes", raw.len());
        }
    }
}

#[test]
fn every_damaged_bit_of_a_copy_frame_is_found() {
    let mut stream = Stream::new();
    let first = random(4000, 1);
    stream.data(&first);
    let begin = stream.wire.len();
    let copies = [Copy { gap: 3, length: 500, distance: 3000 }, Copy { gap: 1, length: 40, distance: 3000 }];
    let raw = made(&first, &copies, b"literal");
    stream.copy(&copies, b"literal", false, &raw);
    let end = stream.wire.len();
    stream.data(b"behind");
    let stream = stream.end();
    for bit in begin * 8..end * 8 {
        let mut damaged = stream.wire.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (raw, end) = read(&damaged, damaged.len(), config());
        assert!(end.is_err() && raw == first, "bit {bit}: {} bytes", raw.len());
    }
}

#[test]
fn bytes_that_hide_in_a_copy_frame_are_refused() {
    let mut stream = Stream::new();
    stream.data(&random(4000, 1));
    let mut body = Vec::new();
    put_plan(&mut body, [Copy { gap: 0, length: 100, distance: 4000 }].into_iter());
    body.push(0);
    let raw = stream.raw[..100].to_vec();
    stream.frame(BlockHeader::copy(CodecId::STORE, false, 100, body.len()), &body, &raw);
    assert_eq!(read(&stream.wire, 5000, config()).1.unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_reach_beyond_the_own_is_refused_or_told() {
    let stream = all_kinds();
    let with = |reach_max, duplex| ReceiverConfig { reach_max, duplex, ..config() };
    // One-way, or where the sender insists.
    for (reach_max, duplex) in [(0, false), (REACH - 1, false), (REACH / 2, true)] {
        let error = read(&stream.wire, 1000, with(reach_max, duplex)).1.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Limit);
        assert!(error.to_string().contains("--long=16"), "{error}");
    }
    // A sender that asks first, on a duplex link.
    let asks = |reach_max| {
        let mut receiver = Receiver::new(with(reach_max, true), BufferPool::default());
        let preface = Preface::parse(&stream.wire).unwrap().unwrap();
        let preface = Preface { critical: 0, optional: feature::DUPLEX, ..preface };
        receiver.receive(Block::from_vec(preface.encode().to_vec())).unwrap();
        let told = receiver.poll_feedback(0, 0).unwrap();
        let first = receiver.receive(Block::from_vec(stream.wire[PREFACE_LEN..].to_vec()));
        let mut taken = first;
        while let Some(job) = receiver.poll_job() {
            taken = taken.and(receiver.finish(job.run(&mut Contexts::default(), &BufferPool::default())));
        }
        (Preface::parse(&told).unwrap().unwrap().reach, taken.map_err(|e| e.kind))
    };
    assert_eq!(asks(REACH), (REACH, Ok(())));
    assert_eq!(asks(5 * REACH), (4 * REACH, Ok(())), "it is told as a power of two");
    // It must not use what it was not offered.
    assert_eq!(asks(REACH / 2), (REACH / 2, Err(ErrorKind::Corrupt)));
    assert_eq!(asks(0), (0, Err(ErrorKind::Corrupt)));
    // Without the critical bit and without a way to ask there are no copies.
    let preface = Preface { critical: 0, ..Preface::parse(&stream.wire).unwrap().unwrap() };
    let wire = [&preface.encode(), &stream.wire[PREFACE_LEN..]].concat();
    assert_eq!(read(&wire, 1000, config()).1.unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_few_bytes_that_stand_for_many_are_held_back() {
    // Thirty bytes a frame, 256 KiB each.
    let mut stream = Stream::new();
    stream.data(&random(BLOCK_MAX, 1));
    for _ in 0..300 {
        let copies: Vec<_> = (0..4).map(|_| Copy { gap: 0, length: REACH, distance: REACH as u64 }).collect();
        let raw = made(&stream.raw[stream.raw.len() - BLOCK_MAX..], &copies, b"");
        stream.copy(&copies, b"", false, &raw);
    }
    let stream = stream.end();
    let memory_max = 2 << 20;
    let pool = BufferPool::default();
    let mut receiver = Receiver::new(ReceiverConfig { memory_max, ..config() }, pool.clone());
    receiver.receive(Block::from_vec(stream.wire)).unwrap();
    let mut len = 0;
    loop {
        assert!(receiver.held() <= memory_max + 2 * BLOCK_MAX + 100, "{}", receiver.held());
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut Contexts::default(), &pool)).unwrap();
        }
        match receiver.read() {
            Some(raw) => len += raw.len(),
            None => break,
        }
    }
    receiver.close().unwrap();
    assert!(receiver.is_finished());
    let summary = receiver.summary();
    assert_eq!((len, summary.copied_bytes), (stream.raw.len(), 300 * BLOCK_MAX as u64));
}

// --- the sender ---

/// Releases of something: text with noise, changed every few thousand bytes.
fn releases(count: usize) -> Vec<u8> {
    let first: Vec<u8> = (0..40).flat_map(|i| [text(7000, i), random(3000, i)].concat()).collect();
    let mut flow = first.clone();
    for i in 1..count {
        let changed = first.chunks(4567).enumerate().flat_map(|(j, piece)| {
            let new = if (i + j) % 3 == 0 { text(40 * j, (i * j) as u64) } else { Vec::new() };
            [piece.to_vec(), new].concat()
        });
        flow.extend(changed.collect::<Vec<_>>());
    }
    flow
}

/// Sends `flow` with all repeats that a finder finds, in pieces, over a link that is busy or dry by
/// turns; every job may be late.
fn transfer(flow: &[u8], policy: &str, config: SenderConfig, receiver: ReceiverConfig) -> (Vec<u8>, Summary) {
    const REACH_OF_FINDER: usize = 8 << 20;
    let pool = BufferPool::default();
    let policy = policies().parse(policy).unwrap();
    let (_, policy) = SendOptions::new(policy).threads(config.cores).into_engine();
    let duplex = config.duplex;
    let mut sender = Sender::new(config, policy, pool.clone());
    let mut receiver = Receiver::new(receiver, pool.clone());
    let (mut contexts, mut out, mut now_ns) = (Contexts::default(), Vec::new(), 0);
    let (mut finder, mut parts, mut pieces) = (Finder::new(REACH_OF_FINDER), Vec::new(), flow.chunks(150_000));
    let (mut late, mut turn, mut closed) = (Vec::new(), 0usize, false);
    if duplex {
        sender.receive(&receiver.poll_feedback(0, 0).unwrap(), 0).unwrap();
    }
    while !receiver.is_finished() {
        turn += 1;
        assert!(turn < 100_000, "no end");
        now_ns += 1_000_000;
        if !closed && sender.room() > 0 {
            match pieces.next() {
                Some(piece) => finder.push(&Block::from_vec(piece.to_vec()), &mut parts),
                None => sender.close(now_ns),
            }
            closed = parts.is_empty();
            for part in parts.drain(..) {
                match part {
                    Part::Literals(raw) => sender.push(raw, now_ns),
                    Part::Repeat { distance, raw } => sender.push_copy(distance, raw, now_ns),
                }
            }
        }
        late.extend(std::iter::from_fn(|| sender.poll_job(now_ns)));
        late.extend(sender.on_link_dry(now_ns));
        if turn % 3 == 0 {
            while let Some(job) = late.pop() {
                sender.finish(job.run(&mut contexts, &pool), now_ns);
            }
        }
        while let Some(frame) = sender.poll_transmit() {
            let accepted = frame.wire_len() as u64;
            let sample = LinkSample { begin_ns: now_ns, end_ns: now_ns, accepted, ..LinkSample::default() };
            sender.on_link(sample);
            receiver.receive(Block::from_vec([&frame.header[..], &frame.body].concat())).unwrap();
            while let Some(job) = receiver.poll_job() {
                receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            }
            out.extend(std::iter::from_fn(|| receiver.read()).flat_map(|raw| raw.to_vec()));
        }
        sender.on_link(LinkSample { begin_ns: now_ns, end_ns: now_ns, ..LinkSample::default() });
    }
    let summary = sender.summary().clone();
    assert_eq!(receiver.summary().copied_bytes, summary.copied_bytes);
    assert_eq!((summary.raw_bytes, receiver.summary().raw_bytes), (flow.len() as u64, flow.len() as u64));
    (out, summary)
}

fn sends(reach: usize) -> SenderConfig {
    SenderConfig { reach, cores: 2, ..SenderConfig::default() }
}

fn keeps(reach_max: usize) -> ReceiverConfig {
    ReceiverConfig { reach_max, cores: 2, ..ReceiverConfig::default() }
}

#[test]
fn what_repeats_is_sent_once_under_every_policy() {
    let flow = releases(4);
    for policy in [
        "balance",
        "fixed:zstd:level=1",
        "fixed:zstd:link",
        "fixed:lz4:link",
        "fixed:store",
        "storage",
        "stall",
        "adoc",
    ] {
        let duplex = policy != "storage";
        let config = SenderConfig { index: true, duplex, ..sends(8 << 20) };
        let (out, summary) = transfer(&flow, policy, config, ReceiverConfig { duplex, ..keeps(8 << 20) });
        assert!(out == flow, "{policy}");
        let copied = summary.copied_bytes as f64 / flow.len() as f64;
        assert!(copied > 0.6, "{policy}: {copied:.2}");
        let literals: u64 = summary.mix.iter().map(|row| row.raw_bytes).sum();
        assert_eq!(literals + summary.copied_bytes, summary.raw_bytes, "{policy}");
    }
}

#[test]
fn a_receiver_gets_copies_as_far_back_as_it_keeps_and_none_if_it_keeps_nothing() {
    // The second release lies 800,000 bytes after the first.
    let flow = [releases(1), random(400_000, 99), releases(1)].concat();
    let copied = |duplex: bool, reach_max| {
        let config = SenderConfig { duplex, ..sends(1 << 20) };
        let (out, summary) = transfer(&flow, "fixed:zstd", config, ReceiverConfig { duplex, ..keeps(reach_max) });
        assert!(out == flow);
        summary.copied_bytes
    };
    assert!(copied(true, 1 << 20) > 390_000 && copied(false, 1 << 20) > 390_000);
    assert!(copied(true, 30 << 20) > 390_000);
    assert_eq!([copied(true, 1 << 19), copied(true, 0)], [0, 0]);
}

#[test]
fn long_copies_are_cut_to_what_a_receiver_takes_for_a_block() {
    let flow = [random(700_000, 1), random(700_000, 1), text(3000, 2), random(700_000, 1)].concat();
    for block_max in [4096, 5000, 100_000] {
        let receiver = ReceiverConfig { duplex: true, block_max, ..keeps(8 << 20) };
        let (out, summary) = transfer(&flow, "fixed:lz4", SenderConfig { duplex: true, ..sends(8 << 20) }, receiver);
        assert!(out == flow && summary.copied_bytes > 1_300_000, "{block_max}: {}", summary.copied_bytes);
    }
    // Blocks of a few bytes are not worth a plan.
    let receiver = ReceiverConfig { duplex: true, block_max: 4095, ..keeps(8 << 20) };
    let (out, summary) = transfer(&flow, "fixed:lz4", SenderConfig { duplex: true, ..sends(8 << 20) }, receiver);
    assert!(out == flow && summary.copied_bytes == 0);
}

/// A source that pauses after its first bytes, while the other end answers.
struct Pausing(std::io::Cursor<Vec<u8>>);

impl std::io::Read for Pausing {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        const FIRST: u64 = 100_000;
        let rest = FIRST.saturating_sub(self.0.position());
        if self.0.position() == FIRST {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        let len = if rest == 0 { out.len() } else { out.len().min(rest as usize) };
        self.0.read(&mut out[..len])
    }
}

#[test]
fn a_sender_that_offers_copies_searches_only_for_a_receiver_that_asks() {
    let flow = releases(12);
    for (reach_max, asks) in [(8 << 20, true), (0, false)] {
        let options = SendOptions::new("fixed:zstd:level=1".parse().unwrap()).threads(2);
        let options = options.reach(1 << 30).search_always(true).search_if_asked(true);
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let (near, far) = (Link::unix(here).unwrap(), Link::unix(there).unwrap());
        let out = tempfile::NamedTempFile::new().unwrap();
        let sink = out.reopen().unwrap();
        let receiver = std::thread::spawn(move || receive(sink, far, ReceiveOptions::default().reach_max(reach_max)));
        let (sent, _) = send(Pausing(std::io::Cursor::new(flow.clone())), near, options).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().copied_bytes, sent.copied_bytes);
        assert!(std::fs::read(out.path()).unwrap() == flow);
        let (copied, searched) = (sent.copied_bytes as usize, sent.searched_bytes as usize);
        assert_eq!((copied > flow.len() / 2, searched > flow.len() - 500_000), (asks, asks), "{copied} {searched}");
        assert!(asks || searched == 0);
    }
}

#[test]
fn literals_between_copies_share_blocks_also_where_the_link_is_as_fast_as_memory() {
    let flow = releases(20);
    let stored = tempfile::NamedTempFile::new().unwrap();
    let options = SendOptions::new("fixed:lz4".parse().unwrap()).block_max(512 << 10);
    let options = options.reach(8 << 20).search_always(true).threads(1);
    let source = std::io::Cursor::new(flow.clone());
    let (sent, _) = send(source, Link::file_writer(stored.reopen().unwrap()), options).unwrap();
    assert!(sent.copied_bytes as usize > flow.len() / 2);
    // Literals lie between copies every few thousand bytes.
    assert!(sent.frames < flow.len() as u64 / 50_000, "{} frames of {} bytes", sent.frames, flow.len());
}

#[test]
fn the_driver_looks_for_repeats_only_if_asked_and_where_the_receiver_takes_them() {
    let flow = releases(12);
    let options = |reach| {
        let options = SendOptions::new("fixed:zstd:level=1".parse().unwrap());
        options.threads(2).reach(reach).search_always(true).raw_len(flow.len() as u64)
    };
    let source = || std::io::Cursor::new(flow.clone());
    let stored = tempfile::NamedTempFile::new().unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    let kept = |reach_max| ReceiveOptions::default().threads(2).reach_max(reach_max);
    // One way, the reader must allow it.
    let (sent, _) = send(source(), Link::writer(stored.reopen().unwrap()), options(8 << 20)).unwrap();
    assert!(sent.copied_bytes as usize > flow.len() / 2, "{}", sent.copied_bytes);
    let read = |reach_max| receive(out.reopen().unwrap(), Link::file_reader(stored.reopen().unwrap()), kept(reach_max));
    assert_eq!(read(8 << 20).unwrap().copied_bytes, sent.copied_bytes);
    assert!(std::fs::read(out.path()).unwrap() == flow);
    assert_eq!(read(4 << 20).unwrap_err().kind, ErrorKind::Limit);
    // Both ways, it is asked. Whether it answers before all is sent, the test cannot say.
    for (reach, reach_max) in [(8 << 20, 8 << 20), (0, 8 << 20), (8 << 20, 0)] {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let (near, far) = (Link::unix(here).unwrap(), Link::unix(there).unwrap());
        let sink = out.reopen().unwrap();
        let receiver = std::thread::spawn(move || receive(sink, far, kept(reach_max)));
        let (sent, _) = send(source(), near, options(reach)).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().copied_bytes, sent.copied_bytes);
        assert!(std::fs::read(out.path()).unwrap() == flow);
        assert!(sent.copied_bytes == 0 || reach.min(reach_max) > 0);
    }
}
