//! Limits of each reader: the largest value that it accepts and the first one that it refuses, in
//! streams with correct checks. Damaged streams are tested by `frame`, `fuzz` and the scenarios.

mod world;

use narrows::ErrorKind;
use narrows::block::{Block, BufferPool};
use narrows::codec::{CODECS, CodecId, Contexts, Method};
use narrows::entry::{CHUNKS_MAX, Entry, EntryKind, PIECE_LEN, REGION_LEN_MAX, RecordParser, RecordWriter, Region};
use narrows::frame::{
    BlockHeader, CONTROL_BODY_MAX, ControlHeader, ControlKind, EndTotals, Frame, HISTORY_MAX_HARD, Header, PREFACE_LEN,
    Preface, ReadLimits, Role, chain_digest, control_frame, parse_header,
};
use narrows::monitor::View;
use narrows::policy::{Choice, Policy, Rescue};
use narrows::receiver::{DecodeJob, Receiver, ReceiverConfig};
use narrows::sender::{Sender, SenderConfig};
use narrows::transport::bond::segments::{AHEAD_MAX, GREETING, PIECES_MAX, Part, Stream};
use world::{random, text};

fn preface() -> Preface {
    Preface {
        role: Role::Sender,
        critical: 0,
        optional: 0,
        check: true,
        block_max: 1 << 20,
        history: 64 << 10,
        reach: 0,
        codecs: 0xff,
    }
}

const LIMITS: ReadLimits =
    ReadLimits { block_max: 1 << 20, history: 64 << 10, reach: 0, codecs: 0xff, check: true, messages: true };

/// (check, wire bytes) of a stored block at `raw_offset` of the flow.
fn stored(raw: &[u8], raw_offset: u64) -> (u64, Vec<u8>) {
    let header = BlockHeader::data(CodecId::STORE, false, raw.len(), raw.len());
    let check = header.check_of(raw, raw, raw_offset);
    (check, [&header.encode(Some(check))[..], raw].concat())
}

fn bytes(frame: &Frame) -> Vec<u8> {
    [&frame.header[..], &frame.body].concat()
}

/// A stream of these stored blocks, and its totals.
fn stream(blocks: &[&[u8]]) -> (Vec<u8>, EndTotals) {
    let (mut wire, mut totals) = (preface().encode().to_vec(), EndTotals::default());
    for raw in blocks {
        let (check, frame) = stored(raw, totals.raw_total);
        totals.digest = chain_digest(totals.digest, check);
        totals.raw_total += raw.len() as u64;
        wire.extend(frame);
    }
    totals.wire_total = wire.len() as u64;
    (wire, totals)
}

fn receiver(config: ReceiverConfig) -> Receiver {
    Receiver::new(config, BufferPool::default())
}

/// Passes all bytes to a receiver, and reads. Returns the raw bytes and whether the stream is
/// complete.
fn read(wire: &[u8]) -> narrows::Result<(Vec<u8>, bool)> {
    let (mut receiver, mut contexts, pool) =
        (receiver(ReceiverConfig::default()), Contexts::default(), BufferPool::default());
    receiver.receive(Block::from_vec(wire.to_vec()))?;
    let mut raw = Vec::new();
    loop {
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool))?;
        }
        let Some(block) = receiver.read() else { break };
        raw.extend_from_slice(&block);
    }
    receiver.close()?;
    Ok((raw, receiver.is_finished()))
}

#[test]
fn a_stream_is_the_same_whatever_pieces_it_comes_in() {
    let blocks = [text(5000, 1), random(300, 2), vec![7]];
    let (wire, totals) = stream(&[&blocks[0], &blocks[1], &blocks[2]]);
    let wire = [wire, bytes(&control_frame(ControlKind::Unknown(0x4f), b"later", totals.raw_total))].concat();
    let totals = EndTotals { wire_total: wire.len() as u64, ..totals };
    let wire = [wire, bytes(&totals.frame())].concat();
    for piece in [1, 2, 7, 31, 32, 33, 1000, wire.len()] {
        let (mut receiver, mut contexts, pool) =
            (receiver(ReceiverConfig::default()), Contexts::default(), BufferPool::default());
        let mut raw = Vec::new();
        for piece in wire.chunks(piece) {
            assert!(!receiver.has_end() && !receiver.is_finished());
            receiver.receive(Block::from_vec(piece.to_vec())).unwrap();
            while let Some(job) = receiver.poll_job() {
                receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            }
            raw.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
        }
        receiver.close().unwrap();
        assert!(raw == blocks.concat(), "pieces of {piece}");
        assert!(receiver.is_finished() && receiver.has_end() && receiver.held() == 0);
        let summary = receiver.summary();
        let counts = (summary.raw_bytes, summary.wire_bytes, summary.frames);
        assert_eq!(counts, (totals.raw_total, wire.len() as u64, 3));
        // Bytes of block headers and bodies, without preface and control frames.
        let of_blocks: u64 = blocks.iter().map(|b| stored(b, 0).1.len() as u64).sum();
        let row = &summary.mix[0];
        assert_eq!((summary.mix.len(), row.codec, row.frames), (1, CodecId::STORE, 3));
        assert_eq!((row.raw_bytes, row.wire_bytes), (totals.raw_total, of_blocks));
    }
}

#[test]
fn a_stream_that_stops_early_is_truncated() {
    let (wire, totals) = stream(&[b"one", b"two"]);
    let wire = [wire, bytes(&totals.frame())].concat();
    for len in 0..wire.len() {
        let mut receiver = receiver(ReceiverConfig::default());
        receiver.receive(Block::from_vec(wire[..len].to_vec())).unwrap();
        let error = receiver.close().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Truncated, "cut at {len}");
        assert_eq!(error.to_string().contains("the stream is empty"), len == 0, "cut at {len}: {error}");
        assert_eq!(receiver.close().unwrap_err().kind, ErrorKind::Misuse, "the first error is final");
    }
}

// --- the end of a stream ---

#[test]
fn every_total_of_the_end_frame_is_compared() {
    let (wire, totals) = stream(&[b"first", b"second"]);
    let ended = |totals: &EndTotals| read(&[&wire[..], &bytes(&totals.frame())].concat());
    assert_eq!(ended(&totals).unwrap(), (b"firstsecond".to_vec(), true));
    // The frame's check is correct each time, as it is computed for these totals.
    let wrong_totals = EndTotals { wire_total: totals.wire_total + 1, ..totals };
    let wrong_digest = EndTotals { digest: totals.digest ^ 1, ..totals };
    for wrong in [wrong_totals, wrong_digest] {
        let error = ended(&wrong).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.to_string().contains("totals of the end frame"), "{error}");
    }
    let wrong_raw = EndTotals { raw_total: totals.raw_total + 1, ..totals };
    assert_eq!(ended(&wrong_raw).unwrap_err().kind, ErrorKind::Corrupt);
    // The digest depends on the order, which the sums of lengths do not.
    let (other, other_totals) = stream(&[b"second", b"first"]);
    assert_eq!(other.len(), wire.len());
    assert_ne!(other_totals.digest, totals.digest);
}

#[test]
fn nothing_may_follow_the_end() {
    let (wire, totals) = stream(&[b"all"]);
    let whole = [&wire[..], &bytes(&totals.frame())].concat();
    // After the end a further byte, the beginning of a stream, or another end is refused.
    let (again, end) = (preface().encode().to_vec(), bytes(&totals.frame()));
    assert_eq!(read(&whole).unwrap(), (b"all".to_vec(), true));
    for more in [&[0][..], &again, &end] {
        let error = read(&[&whole[..], more].concat()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.to_string().contains("after the end"), "{error}");
        let mut receiver = receiver(ReceiverConfig::default());
        receiver.receive(Block::from_vec(whole.clone())).unwrap();
        let error = receiver.receive(Block::from_vec(more.to_vec())).unwrap_err();
        assert!(error.to_string().contains("after the end"), "in a piece of its own: {error}");
    }
}

#[test]
fn what_follows_the_end_can_be_kept() {
    let (wire, totals) = stream(&[b"all"]);
    let whole = [&wire[..], &bytes(&totals.frame())].concat();
    let both = [&whole[..], b"and more"].concat();
    for cut in 1..both.len() {
        let mut receiver = receiver(ReceiverConfig { keeps_rest: true, ..ReceiverConfig::default() });
        let (mut contexts, pool, mut raw) = (Contexts::default(), BufferPool::default(), Vec::new());
        for piece in [&both[..cut], &both[cut..]] {
            receiver.receive(Block::from_vec(piece.to_vec())).unwrap();
            assert!(receiver.has_end() || receiver.take_rest().next().is_none(), "before the end nothing is behind it");
            while let Some(job) = receiver.poll_job() {
                receiver.finish(job.run(&mut contexts, &pool)).unwrap();
            }
            while let Some(block) = receiver.read() {
                raw.extend_from_slice(&block);
            }
        }
        receiver.close().unwrap();
        let rest: Vec<u8> = receiver.take_rest().flat_map(|block| block.to_vec()).collect();
        assert_eq!((&raw[..], &rest[..], receiver.is_finished()), (&b"all"[..], &b"and more"[..], true), "{cut}");
        assert_eq!(receiver.summary().wire_bytes, whole.len() as u64);
    }
}

// --- what a receiver holds ---

#[test]
fn frames_are_taken_up_to_their_number_however_small_they_are() {
    const FRAMES: usize = 1024;
    let blocks = vec![&b"x"[..]; 3 * FRAMES];
    let (wire, totals) = stream(&blocks);
    let wire = [wire, bytes(&totals.frame())].concat();
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    let mut receiver = receiver(ReceiverConfig { cores: usize::MAX, ..ReceiverConfig::default() });
    receiver.receive(Block::from_vec(wire)).unwrap();
    assert!(receiver.has_unparsed() && receiver.room() == 0);
    let mut jobs: Vec<_> = std::iter::from_fn(|| receiver.poll_job()).collect();
    assert_eq!(jobs.len(), FRAMES, "these are held, the others wait as they came");
    let mut raw = 0;
    loop {
        for job in jobs {
            receiver.finish(job.run(&mut contexts, &pool)).unwrap();
        }
        raw += std::iter::from_fn(|| receiver.read()).map(|b| b.len()).sum::<usize>();
        jobs = std::iter::from_fn(|| receiver.poll_job()).collect();
        if jobs.is_empty() {
            break;
        }
        assert!(jobs.len() <= FRAMES);
    }
    raw += std::iter::from_fn(|| receiver.read()).map(|b| b.len()).sum::<usize>();
    receiver.close().unwrap();
    assert!(receiver.is_finished());
    assert_eq!(raw, blocks.len());
}

#[test]
fn a_receiver_says_what_it_holds_and_takes_one_block_however_little_it_may_hold() {
    let (wire, totals) = stream(&[b"first", b"second"]);
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    let mut receiver = receiver(ReceiverConfig::default());
    receiver.set_memory_max(1);
    assert_eq!((receiver.room(), receiver.held()), (1, 0));
    receiver.receive(Block::from_vec([wire, bytes(&totals.frame())].concat())).unwrap();
    for raw in [&b"first"[..], b"second"] {
        // Counted twice: the encoded bytes and the raw bytes to come.
        assert_eq!((receiver.room(), receiver.held()), (0, 2 * raw.len()));
        assert!(!receiver.has_end() && !receiver.has_raw());
        let job = receiver.poll_job().unwrap();
        assert!(receiver.poll_job().is_none());
        receiver.finish(job.run(&mut contexts, &pool)).unwrap();
        assert!(receiver.has_raw());
        assert_eq!(receiver.read().unwrap()[..], *raw);
        assert!(!receiver.has_raw());
        receiver.resume().unwrap();
    }
    receiver.close().unwrap();
    assert!(receiver.read().is_none() && receiver.is_finished());
}

#[test]
fn reports_come_after_the_first_block_and_then_in_their_time() {
    const MS: u64 = 1_000_000;
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    let mut receiver = receiver(ReceiverConfig { duplex: true, ..ReceiverConfig::default() });
    let mut take = |receiver: &mut Receiver, wire: Vec<u8>| {
        receiver.receive(Block::from_vec(wire)).unwrap();
        let job = receiver.poll_job().unwrap();
        receiver.finish(job.run(&mut contexts, &pool)).unwrap();
        receiver.read().unwrap();
    };
    assert_eq!(Preface::parse(&receiver.poll_feedback(0, 0).unwrap()).unwrap().unwrap().role, Role::Receiver);
    assert_eq!((receiver.poll_feedback(MS, 0), receiver.next_report_ns()), (None, None));
    take(&mut receiver, stream(&[b"one"]).0);
    assert!(receiver.next_report_ns().is_some_and(|due| due <= MS));
    assert!(receiver.poll_feedback(MS, 0).is_some());
    assert_eq!(receiver.next_report_ns(), None, "nothing is new");
    take(&mut receiver, stored(b"two", 3).1);
    assert_eq!(receiver.next_report_ns(), Some(3 * MS), "2 ms at least");
    assert_eq!(receiver.poll_feedback(3 * MS - 1, 0), None);
    assert!(receiver.poll_feedback(41 * MS, 0).is_some());
    take(&mut receiver, stored(b"three", 6).1);
    assert_eq!(receiver.next_report_ns(), Some(46 * MS), "an eighth of the flow's time");
    assert!(receiver.poll_feedback(9000 * MS, 0).is_some());
    take(&mut receiver, stored(b"four", 11).1);
    assert_eq!(receiver.next_report_ns(), Some(9500 * MS), "half a second at most");
}

/// A policy that always chooses linked zstd.
struct Linked;

impl Policy for Linked {
    fn choose(&mut self, _: &View<'_>) -> Choice {
        Choice { linked: true, ..Choice::new(Method::zstd(3), 4000) }
    }

    fn rescue(&mut self, _: &View<'_>) -> Rescue {
        Rescue::WaitUntil(u64::MAX)
    }
}

#[test]
fn a_linked_block_waits_for_all_before_it_and_no_other_does() {
    let (mut contexts, pool) = (Contexts::default(), BufferPool::default());
    let mut sender = Sender::new(SenderConfig::default(), Box::new(Linked), pool.clone());
    let data = text(12_000, 3);
    data.chunks(4000).for_each(|block| sender.push(Block::from_vec(block.to_vec()), 0));
    sender.close(0);
    while let Some(job) = sender.poll_job(0) {
        sender.finish(job.run(&mut contexts, &pool), 0);
    }
    let mut receiver = receiver(ReceiverConfig { cores: 4, ..ReceiverConfig::default() });
    while let Some(frame) = sender.poll_transmit() {
        receiver.receive(Block::from_vec([&frame.header[..], &frame.body].concat())).unwrap();
    }
    let mut raw = Vec::new();
    for i in 0..3 {
        let job = receiver.poll_job().expect("the next block can be decoded");
        assert!(job.seq == i && !job.is_stored());
        assert!(receiver.poll_job().is_none(), "block {} needs block {i}, which is not decoded", i + 1);
        receiver.finish(job.run(&mut contexts, &pool)).unwrap();
        raw.extend(std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()));
    }
    assert!(raw == data);
    receiver.close().unwrap();

    // Blocks that are not linked are decoded concurrently, and may finish in any order.
    let (wire, totals) = stream(&[b"one", b"two", b"three"]);
    let mut receiver = self::receiver(ReceiverConfig { cores: 2, ..ReceiverConfig::default() });
    receiver.receive(Block::from_vec([wire, bytes(&totals.frame())].concat())).unwrap();
    let jobs = [receiver.poll_job().unwrap(), receiver.poll_job().unwrap()];
    assert!(jobs.iter().all(DecodeJob::is_stored));
    assert!(receiver.poll_job().is_none(), "there are two cores");
    for job in jobs.into_iter().rev() {
        receiver.finish(job.run(&mut contexts, &pool)).unwrap();
    }
    let job = receiver.poll_job().unwrap();
    receiver.finish(job.run(&mut contexts, &pool)).unwrap();
    let raw: Vec<_> = std::iter::from_fn(|| receiver.read()).flat_map(|b| b.to_vec()).collect();
    assert_eq!(raw, b"onetwothree");
}

// --- the preface ---

#[test]
fn the_history_that_a_stream_needs_has_a_limit() {
    let kind = |preface: &Preface, history_max| {
        let mut receiver = receiver(ReceiverConfig { history_max, ..ReceiverConfig::default() });
        receiver.receive(Block::from_vec(preface.encode().to_vec())).err().map(|e| e.kind)
    };
    let needs = |history| Preface { history, ..preface() };
    assert_eq!(kind(&needs(1000), 1000), None);
    assert_eq!(kind(&needs(1001), 1000), Some(ErrorKind::Limit));
    assert_eq!(kind(&needs(HISTORY_MAX_HARD), HISTORY_MAX_HARD), None);
    assert_eq!(kind(&needs(HISTORY_MAX_HARD + 1), usize::MAX), Some(ErrorKind::Limit));
    let blocks = |block_max| Preface { block_max, ..preface() };
    assert_eq!(kind(&blocks(ReceiverConfig::default().block_max), 1 << 20), None);
    assert_eq!(kind(&blocks(ReceiverConfig::default().block_max + 1), 1 << 20), Some(ErrorKind::Limit));
    assert_eq!(kind(&blocks(0), 1 << 20), Some(ErrorKind::Limit));
}

#[test]
fn what_a_preface_has_beyond_this_version_is_refused() {
    let good = preface().encode();
    for (at, least) in [(5, 2), (6, 4), (7, 1), (10, 2), (11, 1)] {
        for value in [least, 0x80, 0xff] {
            let mut bytes = good;
            bytes[at] = value;
            let crc = crc32fast::hash(&bytes[..PREFACE_LEN - 4]);
            bytes[PREFACE_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
            let error = Preface::parse(&bytes).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "byte {at} is {value}: {error}");
        }
    }
    // Unknown optional features are ignored.
    let optional = Preface { optional: 0xe0ff, ..preface() };
    assert_eq!(Preface::parse(&optional.encode()).unwrap(), Some(optional));
}

#[test]
fn a_stream_has_only_what_its_preface_says() {
    let refused = |preface: Preface, frame: &[u8]| {
        let mut receiver = receiver(ReceiverConfig::default());
        let wire = [&preface.encode(), frame].concat();
        receiver.receive(Block::from_vec(wire)).err().map(|e| e.kind)
    };
    let block = stored(b"raw", 0).1;
    assert_eq!(refused(preface(), &block), None);
    // The preface declares other codecs, or one that this program does not have.
    assert_eq!(refused(Preface { codecs: 0xfe, ..preface() }, &block), Some(ErrorKind::Unsupported));
    let unknown = BlockHeader::data(CodecId(60), false, 9, 5).encode(Some(0));
    let declared = Preface { codecs: u64::MAX, ..preface() };
    assert_eq!(refused(declared, &unknown), Some(ErrorKind::Unsupported));
    // Messages are declared by one bit, and no other.
    let message = [&BlockHeader::message(CodecId::STORE, false, 3).encode(Some(0))[..], b"raw"].concat();
    assert_eq!(refused(preface(), &message), Some(ErrorKind::Corrupt));
    assert_eq!(refused(Preface { critical: 1, ..preface() }, &message), None);
    // A receiver's preface is refused: a stream comes from a sender.
    assert_eq!(refused(Preface { role: Role::Receiver, ..preface() }, &[]), Some(ErrorKind::Corrupt));
    // Blocks must not be longer than the preface says, nor than this side allows.
    let long = BlockHeader::data(CodecId::ZSTD, false, 1001, 5).encode(Some(0));
    assert_eq!(refused(Preface { block_max: 1001, ..preface() }, &long), None);
    assert_eq!(refused(Preface { block_max: 1000, ..preface() }, &long), Some(ErrorKind::Limit));
    let linked = BlockHeader::data(CodecId::ZSTD, true, 9, 5).encode(Some(0));
    assert_eq!(refused(Preface { history: 0, ..preface() }, &linked), Some(ErrorKind::Corrupt));
    assert_eq!(refused(Preface { history: 1, ..preface() }, &linked), None);
}

#[test]
fn only_a_duplex_receiver_is_lenient_with_what_a_preface_declares() {
    let needs = |optional| Preface { block_max: 8 << 20, optional, ..preface() };
    for (duplex, optional, taken) in [(true, 2, true), (true, 3, true), (true, 1, false), (false, 2, false)] {
        let mut receiver = receiver(ReceiverConfig { duplex, ..ReceiverConfig::default() });
        let wire = Block::from_vec(needs(optional).encode().to_vec());
        assert_eq!(receiver.receive(wire).is_ok(), taken, "duplex {duplex}, features {optional}");
    }
}

// --- headers of frames ---

#[test]
fn every_control_frame_is_read_as_its_kind() {
    use ControlKind::{Close, End, Feedback, Index, Keep, Note, Reset, Unknown};
    let read = |kind: ControlKind| match parse_header(&control_frame(kind, b"x", 0).header, &LIMITS).unwrap() {
        Some(Header::Control(h)) => h.kind,
        other => panic!("{kind:?}: {other:?}"),
    };
    for kind in [Reset, End, Feedback, Close, Index, Note, Keep, Unknown(0x4f)] {
        assert_eq!(read(kind), kind);
    }
    // A separate bit says whether a control frame may be skipped.
    assert_eq!((read(Unknown(4)), read(Unknown(6))), (Feedback, Index));
}

#[test]
fn the_body_of_a_control_frame_has_a_limit() {
    let longest = control_frame(ControlKind::Index, &vec![0; CONTROL_BODY_MAX], 0);
    let parsed = parse_header(&longest.header, &LIMITS).unwrap();
    let is_longest = |h: &Header| matches!(h, Header::Control(ControlHeader { body_len: CONTROL_BODY_MAX, .. }));
    assert!(parsed.is_some_and(|h| is_longest(&h)));
    // Kind 6, optional; 65,537 as a varint.
    let longer = [&[0x46, 0x81, 0x80, 0x04][..], &[0; 8]].concat();
    assert_eq!(parse_header(&longer, &LIMITS).unwrap_err().kind, ErrorKind::Limit);
}

#[test]
fn a_message_frame_has_a_body_and_stays_within_the_blocks() {
    let kind = |wire_len, block_max| {
        let header = BlockHeader::message(CodecId::STORE, false, wire_len).encode(Some(0));
        parse_header(&header, &ReadLimits { block_max, ..LIMITS }).err().map(|e| e.kind)
    };
    assert_eq!(kind(0, 1000), Some(ErrorKind::Corrupt));
    assert_eq!((kind(1, 1000), kind(1000, 1000)), (None, None));
    assert_eq!(kind(1001, 1000), Some(ErrorKind::Corrupt));
}

// --- entries ---

fn entry() -> Entry {
    let kind = EntryKind::File { len: 5, linked: false };
    Entry { path: b"f".to_vec(), kind, mode: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
}

/// Parses one entry, followed by what `more` writes.
fn parse(entry: &Entry, more: impl FnOnce(&RecordWriter, &mut Vec<u8>)) -> Result<usize, ErrorKind> {
    let (mut writer, mut out) = (RecordWriter::default(), Vec::new());
    writer.entry(entry, &mut out).unwrap();
    more(&writer, &mut out);
    let (mut parser, mut records) = (RecordParser::default(), 0);
    let parsed = parser.push(&out, |_| {
        records += 1;
        Ok(())
    });
    parsed.map(|()| records).map_err(|e| e.kind)
}

#[test]
fn modes_and_nanoseconds_of_entries_are_in_range() {
    let parse = |mode, mtime_ns| parse(&Entry { mode, mtime_ns, ..entry() }, |_, _| ());
    assert_eq!(parse(0o7777, 999_999_999), Ok(1));
    assert_eq!(parse(0o7777, 1_000_000_000), Err(ErrorKind::Corrupt));
    assert_eq!(parse(0o10000, 0), Err(ErrorKind::Corrupt));
}

#[test]
fn files_and_streams_have_content_and_nothing_else_has() {
    let file = EntryKind::File { len: 0, linked: false };
    assert!([file, EntryKind::Stream].iter().all(EntryKind::has_content));
    let device = EntryKind::CharDevice { major: 1, minor: 3 };
    let others = [EntryKind::Folder, EntryKind::Fifo, EntryKind::HardLink { of: 0 }, device];
    assert!(!others.iter().any(EntryKind::has_content));
}

#[test]
fn names_of_attributes_have_a_length_and_no_zero() {
    let with = |name: &[u8]| parse(&Entry { xattrs: vec![(name.to_vec(), vec![1])], ..entry() }, |_, _| ());
    assert_eq!((with(b"x"), with(&[b'x'; 255])), (Ok(1), Ok(1)));
    for bad in [&b""[..], &[b'x'; 256], b"a\0b"] {
        assert_eq!(with(bad), Err(ErrorKind::Corrupt), "{bad:?}");
    }
}

#[test]
fn paths_share_as_much_as_they_like_up_to_the_longest() {
    let folder = [[b'a'; 200], [b'b'; 200]].join(&b'/');
    let of = |path: &[u8]| Entry { path: path.to_vec(), ..entry() };
    let second = |path: &[u8]| {
        parse(&of(&folder), |_, out| {
            let mut writer = RecordWriter::default();
            writer.entry(&of(&folder), &mut Vec::new()).unwrap();
            writer.entry(&of(path), out).unwrap();
        })
    };
    assert_eq!(second(&[&folder[..], b"/", &[b'c'; 250]].concat()), Ok(2));
    // 4095 bytes: names of 200 bytes with slashes, and the rest.
    let longest: Vec<u8> = (0..4095).map(|i| if i % 201 == 200 { b'/' } else { b'd' }).collect();
    assert_eq!(second(&longest), Ok(2));
    assert_eq!(second(&[b'n'; 255]), Ok(2));
    let target = |target: Vec<u8>| parse(&Entry { kind: EntryKind::Symlink { target }, ..entry() }, |_, _| ());
    assert_eq!((target(vec![b'x'; 4095]), target(vec![b'x'; 4096])), (Ok(1), Err(ErrorKind::Corrupt)));
    assert_eq!((target(Vec::new()), target(b"a\0".to_vec())), (Err(ErrorKind::Corrupt), Err(ErrorKind::Corrupt)));
}

#[test]
fn what_is_repeated_ends_within_64_bits() {
    let repeat = |offset, len| {
        parse(&entry(), |writer, out| {
            writer.begin(0, out);
            writer.repeat(0, offset, len, out);
        })
    };
    assert_eq!(repeat(u64::MAX - 1000, 1000), Ok(3));
    assert_eq!(repeat(u64::MAX - 1000, 1001), Err(ErrorKind::Limit));
}

#[test]
fn pieces_of_one_record_have_a_limit() {
    let region = |offset, pieces: usize| Region { offset, len: pieces as u32 * PIECE_LEN };
    let most = REGION_LEN_MAX / PIECE_LEN;
    // Written by hand, as the writer itself keeps the limit.
    let parse_regions = |regions: &[Region]| {
        parse(&entry(), |_, out| {
            let mut body = vec![0, regions.len() as u8];
            for region in regions {
                narrows::frame::put_varint(&mut body, region.offset);
                narrows::frame::put_varint(&mut body, region.len.into());
            }
            body.resize(body.len() + 6 * regions.iter().map(Region::pieces).sum::<usize>(), 0);
            out.push(9);
            narrows::frame::put_varint(out, body.len() as u64);
            out.extend(body);
        })
    };
    let full: Vec<_> = (0..CHUNKS_MAX / most as usize).map(|i| region((i as u64) << 32, most as usize)).collect();
    assert_eq!(full.iter().map(Region::pieces).sum::<usize>(), CHUNKS_MAX);
    assert_eq!(parse_regions(&full), Ok(2));
    assert_eq!(parse_regions(&[full, vec![region(1 << 50, 1)]].concat()), Err(ErrorKind::Limit));
    assert_eq!(parse_regions(&[Region { offset: u64::MAX - 256, len: 256 }]), Ok(2));
    assert_eq!(parse_regions(&[Region { offset: u64::MAX - 255, len: 256 }]), Err(ErrorKind::Limit));
}

// --- carriers ---

/// A carrier after its greeting, with received segments of one byte at these offsets.
fn part(offsets: impl Iterator<Item = u64>) -> Part {
    let mut wire = GREETING.to_vec();
    for offset in offsets {
        wire.extend_from_slice(&offset.to_le_bytes());
        wire.extend_from_slice(&[1, 0, 0, 0, b'x']);
    }
    let mut part = Part::default();
    part.fill(wire.len(), |space| {
        space.copy_from_slice(&wire);
        (wire.len(), ())
    });
    part
}

#[test]
fn a_carrier_that_is_ahead_waits_behind_so_many_pieces_or_bytes() {
    let (mut stream, mut buf) = (Stream::default(), [0; 100]);
    // Every second byte, so that no two pieces merge.
    let mut fast = part((1..).step_by(2).take(PIECES_MAX + 10));
    assert_eq!(fast.take(&mut stream, &mut buf).unwrap(), None);
    assert_eq!(stream.pieces(), PIECES_MAX);
    assert!(fast.is_blocked(&stream));
    // The carrier with the next byte continues, however many pieces wait.
    let mut slow = part(std::iter::once(0));
    assert_eq!(slow.take(&mut stream, &mut buf).unwrap(), Some(1));
    assert_eq!(stream.take_ahead(&mut buf).unwrap(), Some(1));
    assert!(!fast.is_blocked(&stream), "one place is free");
    assert_eq!(fast.take(&mut stream, &mut buf).unwrap(), None);
    assert_eq!(stream.pieces(), PIECES_MAX);

    let mut stream = Stream::default();
    let mut far = part([AHEAD_MAX - 1, AHEAD_MAX].into_iter());
    assert_eq!(far.take(&mut stream, &mut buf).unwrap(), None);
    assert!(stream.pieces() == 1 && far.is_blocked(&stream), "the first byte beyond waits on its carrier");
}

// --- codecs ---

#[test]
fn a_level_beyond_the_last_one_is_the_last_one() {
    let raw = [text(20_000, 1), random(2000, 2)].concat();
    let mut contexts = Contexts::default();
    for codec in CODECS {
        let mut encode = |level| {
            let mut wire = vec![0; raw.len()];
            contexts.encoder(*codec).encode(level, &[], &raw, &mut wire).map(|len| {
                wire.truncate(len);
                wire
            })
        };
        let (Some(first), Some(last)) = (codec.levels().iter().min(), codec.levels().iter().max()) else { continue };
        for (beyond, nearest) in [(first - 1, *first), (i32::MIN, *first), (last + 1, *last), (i32::MAX, *last)] {
            assert!(!codec.has_level(beyond), "{} has {beyond}", codec.name());
            assert!(encode(beyond) == encode(nearest), "{} at {beyond} is not as at {nearest}", codec.name());
        }
    }
}
