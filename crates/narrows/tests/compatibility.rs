//! Streams of every released format must decode for ever. `crates/narrows/tests/streams/` holds streams
//! written by version 0.1; files are only added, never changed (`UPDATE_STREAMS=1` writes missing
//! ones).

mod world;

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use narrows::ErrorKind;
use narrows::block::{Block, BufferPool};
use narrows::codec::{CODECS, CodecId, Contexts};
use narrows::frame::{ControlKind, PREFACE_LEN};
use narrows::policy::PolicySpec;
use narrows::receiver::{Depth, Observed, ObservedKind, Receiver, ReceiverConfig};
use narrows::stream::{SendOptions, send};
use narrows::transport::Link;
use world::{random, text};

fn raw() -> Vec<u8> {
    [text(9_000, 1), vec![0; 3_000], random(2_000, 2), text(3_000, 3)].concat()
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams"))
}

fn write(policy: &str) -> Vec<u8> {
    write_of(policy, raw(), 4096)
}

fn write_of(policy: &str, raw: Vec<u8>, block_max: usize) -> Vec<u8> {
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Sink {
        fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(b);
            Ok(b.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sink = Sink::default();
    let spec: PolicySpec = policy.parse().unwrap();
    let options = SendOptions::new(spec).block_max(block_max).history(64 << 10).index(true).threads(1);
    send(Cursor::new(raw), Link::writer(sink.clone()), options).unwrap();
    sink.0.lock().unwrap().clone()
}

/// Reads a whole stream, in pieces of `cut` bytes.
fn read(stream: &[u8], cut: usize) -> Result<Vec<u8>, (ErrorKind, Vec<u8>)> {
    let mut receiver =
        Receiver::new(ReceiverConfig { images: true, ..ReceiverConfig::default() }, BufferPool::default());
    let (mut contexts, pool, mut out) = (Contexts::default(), BufferPool::default(), Vec::new());
    let mut go = |out: &mut Vec<u8>| -> Result<(), narrows::Error> {
        for piece in stream.chunks(cut) {
            receiver.receive(Block::from_vec(piece.to_vec()))?;
            while let Some(job) = receiver.poll_job() {
                let done = job.run(&mut contexts, &pool);
                receiver.finish(done)?;
            }
            while let Some(raw) = receiver.read() {
                out.extend_from_slice(&raw);
            }
        }
        receiver.close()?;
        assert!(receiver.is_finished());
        Ok(())
    };
    match go(&mut out) {
        Ok(()) => Ok(out),
        Err(e) => Err((e.kind, out)),
    }
}

#[test]
fn stored_streams_decode() {
    for codec in CODECS {
        let linked = if codec.can_link() { ":link" } else { "" };
        let name = format!("v1-{}{}.nrw", codec.name(), linked.replace(':', "-"));
        let path = folder().join(&name);
        if std::env::var_os("UPDATE_STREAMS").is_some() && !path.exists() {
            std::fs::write(&path, write(&format!("fixed:{}{linked}", codec.name()))).unwrap();
        }
        let stream = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for cut in [1, 7, 1000, stream.len()] {
            assert!(read(&stream, cut).as_ref() == Ok(&raw()), "{name} in pieces of {cut}");
        }
    }
}

/// Numbers of 2, 4 and 8 bytes and records of 12, in blocks that are long enough to be split.
fn numbers() -> Vec<u8> {
    let mut raw: Vec<u8> = (0..8192u32).flat_map(|i| ((i / 3 * 7 + i * i % 11) as u16).to_be_bytes()).collect();
    raw.extend((0..4096u32).flat_map(|i| (0x4370_0000 + i * 31 + i * 7919 % 1000).to_le_bytes()));
    raw.extend((0..2048u64).flat_map(|i| (0x4071_8000_0000_0000 + i * 0x1_0001 + i * 7919 % 65_521).to_le_bytes()));
    let record = |i: u32| [i, 500 + i * 13 % 17, 0x3f80_0000 + i * 7919 % 1000];
    raw.extend((0..1366).flat_map(record).flat_map(u32::to_le_bytes));
    raw
}

#[test]
fn a_stored_stream_of_split_numbers_decodes() {
    let path = folder().join("v1-split-numbers.nrw");
    if std::env::var_os("UPDATE_STREAMS").is_some() && !path.exists() {
        std::fs::write(&path, write_of("fixed:split", numbers(), 16 << 10)).unwrap();
    }
    let stream = std::fs::read(&path).unwrap();
    assert!(stream.len() * 2 < numbers().len(), "{}: nothing was split", stream.len());
    for cut in [1, 1000, stream.len()] {
        assert!(read(&stream, cut).as_ref() == Ok(&numbers()), "in pieces of {cut}");
    }
}

/// Mails with attachments of all lengths of the last group, in lines of several widths, and what looks like
/// base64 and is none.
fn mails() -> Vec<u8> {
    let mut raw: Vec<u8> = (0..3).flat_map(|i| narrows_test::mail("some words", &text(4000 + i, 5))).collect();
    for (columns, crlf) in [(64, false), (16, true), (1020, false)] {
        raw.extend(narrows_test::base64_lines(&random(5000, 7), columns, crlf));
        raw.extend(b"=\r\nAAAA\n");
    }
    raw.extend(b"ACGTACGTACGTACGT\n".repeat(50));
    raw
}

#[test]
fn a_stored_stream_of_mails_decodes() {
    let path = folder().join("v1-base64-mails.nrw");
    if std::env::var_os("UPDATE_STREAMS").is_some() && !path.exists() {
        std::fs::write(&path, write_of("fixed:base64:link", mails(), 16 << 10)).unwrap();
    }
    let stream = std::fs::read(&path).unwrap();
    assert!(stream.len() * 3 < mails().len() * 2, "{}: nothing was decoded", stream.len());
    for cut in [1, 1000, stream.len()] {
        assert!(read(&stream, cut).as_ref() == Ok(&mails()), "in pieces of {cut}");
    }
}

/// An image in colour and a grey one.
fn images() -> [Vec<u8>; 2] {
    [true, false].map(|in_colour| narrows_test::jpeg(90, 70, in_colour, 21))
}

#[test]
fn stored_streams_of_images_decode() {
    for (image, name) in images().into_iter().zip(["v1-lepton-colour.nrw", "v1-lepton-grey.nrw"]) {
        let path = folder().join(name);
        if std::env::var_os("UPDATE_STREAMS").is_some() && !path.exists() {
            std::fs::write(&path, write_of("fixed:lepton", image.clone(), 16 << 10)).unwrap();
        }
        let stream = std::fs::read(&path).unwrap();
        assert!(stream.len() < image.len(), "{name}: {}, nothing was recompressed", stream.len());
        for cut in [1, 1000, stream.len()] {
            assert!(read(&stream, cut).as_ref() == Ok(&image), "{name} in pieces of {cut}");
        }
    }
}

/// Who reads from a link gives no memory for images, and says so before it takes any byte of one.
#[test]
fn images_are_refused_where_nobody_asked_for_them() {
    let stream = write_of("fixed:lepton", images()[0].clone(), 16 << 10);
    let mut receiver = Receiver::new(ReceiverConfig::default(), BufferPool::default());
    let error = receiver.receive(Block::from_vec(stream)).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.message.contains("codec 11"), "{error}");
}

/// With `images`, blocks end where an image begins and where it ends, whatever came before.
#[test]
fn images_in_stored_bytes_are_blocks_of_their_own() {
    let image = |seed| narrows_test::jpeg(400, 300, seed % 2 == 1, seed);
    // The first one in front of everything, two without a gap, one that is cut off at the end.
    let parts = [
        image(1),
        text(300_000, 1),
        image(2),
        image(3),
        random(70_000, 2),
        image(4),
        b"end".to_vec(),
        image(5)[..9000].to_vec(),
    ];
    let raw = parts.concat();
    for policy in ["storage", "storage:mode=balanced", "storage:mode=archive", "storage:mode=fast"] {
        let before = if policy.contains(':') { "," } else { ":" };
        let stream = write_of(&format!("{policy}{before}images=true"), raw.clone(), 2 << 20);
        let back = read(&stream, 1 << 16).map_err(|(kind, read)| (kind, read.len()));
        assert!(back.as_ref() == Ok(&raw), "{policy}: {:?}", back.map(|b| b.len()));
        let (seen, error) = observe(&stream, stream.len(), Depth::Headers, 32 << 20);
        assert!(error.is_none(), "{policy}: {error:?}");
        let mut at = 0;
        let mut recompressed = Vec::new();
        for observed in seen {
            if let ObservedKind::Block { codec, raw_len, .. } = observed.kind {
                if codec == CodecId::LEPTON {
                    recompressed.push((at, raw_len));
                }
                at += raw_len;
            }
        }
        let begins = |i: usize| parts[..i].iter().map(|part| part.len()).sum::<usize>();
        let expected = [0, 2, 3, 5].map(|i| (begins(i), parts[i].len()));
        assert_eq!(recompressed, expected, "{policy}");
    }
}

/// The frames of a stream that comes in pieces of `cut` bytes; no more than `held` bytes are held.
fn observe(stream: &[u8], cut: usize, depth: Depth, held: usize) -> (Vec<Observed>, Option<narrows::Error>) {
    let config = ReceiverConfig { memory_max: held, images: true, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(config, BufferPool::default());
    receiver.observe(depth);
    let (mut contexts, pool, mut seen) = (Contexts::default(), BufferPool::default(), Vec::new());
    for piece in stream.chunks(cut) {
        let mut taken = receiver.receive(Block::from_vec(piece.to_vec()));
        loop {
            while let Some(job) = receiver.poll_job() {
                taken = taken.and(receiver.finish(job.run(&mut contexts, &pool)));
            }
            while receiver.read().is_some() {}
            seen.extend(std::iter::from_fn(|| receiver.poll_observed()));
            if let Err(e) = taken {
                return (seen, Some(e));
            }
            if !receiver.has_unparsed() {
                break;
            }
            taken = receiver.resume();
        }
    }
    (seen, receiver.close().err())
}

#[test]
fn an_observer_sees_every_frame_of_a_stored_stream_in_its_place() {
    let blocks = |seen: &[Observed]| {
        let raw_len = |o: &Observed| match o.kind {
            ObservedKind::Block { raw_len, .. } => raw_len,
            ObservedKind::Control(_) => 0,
        };
        seen.iter().map(raw_len).sum::<usize>()
    };
    for codec in CODECS {
        let name = format!("v1-{}{}.nrw", codec.name(), if codec.can_link() { "-link" } else { "" });
        let stream = std::fs::read(folder().join(&name)).unwrap();
        let (whole, error) = observe(&stream, stream.len(), Depth::Blocks, 32 << 20);
        assert!(error.is_none(), "{name}: {error:?}");
        let end = whole.iter().fold(PREFACE_LEN as u64, |at, o| {
            assert_eq!(o.wire_offset, at, "{name}");
            at + o.wire_len as u64
        });
        assert_eq!((end, blocks(&whole)), (stream.len() as u64, raw().len()), "{name}");
        assert_eq!(whole.last().unwrap().kind, ObservedKind::Control(ControlKind::End));
        for (cut, depth, held) in
            [(1, Depth::Blocks, 1), (7, Depth::Headers, 32 << 20), (stream.len(), Depth::Headers, 1)]
        {
            let (seen, error) = observe(&stream, cut, depth, held);
            assert!(seen == whole && error.is_none(), "{name} in pieces of {cut}, {depth:?}: {error:?}");
        }
    }
}

#[test]
fn an_observer_sees_what_precedes_damage_and_a_receiver_that_nobody_asks_stops() {
    let stream = write("fixed:lz4");
    let (whole, _) = observe(&stream, stream.len(), Depth::Blocks, 1);
    let third = whole[2];
    let mut damaged = stream.clone();
    damaged[third.wire_offset as usize + third.wire_len - 1] ^= 1;
    let (seen, error) = observe(&damaged, damaged.len(), Depth::Blocks, 1);
    assert_eq!((seen.as_slice(), error.unwrap().wire_offset), (&whole[..2], Some(third.wire_offset)));
    // Nothing is decoded, and a block's body is damaged: its headers and the end are as they were.
    let (seen, error) = observe(&damaged, damaged.len(), Depth::Headers, 1);
    assert!(seen == whole && error.is_none(), "{error:?}");

    let policy = "fixed:store".parse::<PolicySpec>().unwrap();
    let many = SendOptions::new(policy).block_max(16).threads(1);
    let sink = tempfile::NamedTempFile::new().unwrap();
    send(Cursor::new(raw()), Link::writer(sink.reopen().unwrap()), many).unwrap();
    let mut receiver = Receiver::new(ReceiverConfig::default(), BufferPool::default());
    receiver.observe(Depth::Headers);
    receiver.receive(Block::from_vec(std::fs::read(sink.path()).unwrap())).unwrap();
    assert_eq!((receiver.room(), receiver.has_unparsed()), (0, true));
    assert_eq!(std::iter::from_fn(|| receiver.poll_observed()).count(), 1024);
    assert!(receiver.room() > 0);
}

#[test]
fn every_truncation_is_truncated_and_delivers_only_what_is_true() {
    let stream = write("fixed:zstd:link");
    for end in 0..stream.len() {
        let (kind, out) = read(&stream[..end], 64).unwrap_err();
        assert_eq!(kind, ErrorKind::Truncated, "{end}");
        assert!(raw().starts_with(&out));
    }
}

#[test]
fn every_flipped_bit_of_a_short_stream_is_found() {
    // LZ4 ignores some bits of its last token, so the check must cover more than the decoded bytes.
    for spec in ["balance", "fixed:lz4"] {
        let stream = write(spec);
        for bit in 0..stream.len() * 8 {
            // All bits of headers and ends, but only some of the bodies: the same checks cover
            // them.
            if bit / 8 > 120 && bit / 8 + 120 < stream.len() && bit % 61 != 0 {
                continue;
            }
            let mut damaged = stream.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (_, out) = read(&damaged, 512).expect_err("a flipped bit must not be missed");
            assert!(raw().starts_with(&out), "{spec}, bit {bit}: a wrong byte was delivered");
        }
    }
}
