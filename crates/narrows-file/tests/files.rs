//! Files are written, and read at any byte.

mod common;

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use common::{Random, alone, linked, read_all, sample, stored};
use narrows_file::decode::decode;
use narrows_file::{File, IndexOrigin, Mode, OpenOptions, WriteOptions, Writer};

#[test]
fn every_mode_reads_back_and_old_readers_decode_the_stream() {
    let raw = sample(3_000_000, 1);
    for mode in Mode::ALL {
        let file = stored(&raw, WriteOptions::default().mode(mode));
        // On a loaded machine the fastest mode may find no method that is fast enough.
        assert!(mode == Mode::Fast || file.len() < raw.len() / 2, "{mode:?}: {} bytes", file.len());
        assert_eq!(read_all(&File::open(&file[..]).unwrap()).unwrap(), raw);
        let link = narrows::transport::Link::reader(std::io::Cursor::new(file));
        let decoded = Arc::new(std::sync::Mutex::new(Vec::new()));
        narrows::stream::receive(Sink(Arc::clone(&decoded)), link, Default::default()).unwrap();
        assert!(*decoded.lock().unwrap() == raw);
    }
}

/// A server opens what others stored: what it keeps of a file has a limit.
#[test]
fn the_memory_of_an_index_is_limited() {
    let raw = sample(1_000_000, 2);
    let file = stored(&raw, WriteOptions::default().block_max(100_000));
    let blocks: usize = File::open(&file[..]).unwrap().members().iter().map(|m| m.blocks()).sum();
    let open = |file: &[u8], most| OpenOptions::default().blocks_max(most).open(file.to_vec()).map(drop);
    open(&file, blocks).unwrap();
    for (file, most) in [(&file, blocks - 1), (&[&file[..], &file].concat(), 2 * blocks - 1)] {
        assert_eq!(open(file, most).unwrap_err().kind, narrows::ErrorKind::Limit);
    }
    // More sums than content: what follows is not even read.
    let mut maker = narrows_file::alone::Maker::new(1 << 20);
    let mut forged = maker.preface().to_vec();
    for _ in 0..2 {
        forged.extend_from_slice(&maker.block(narrows::codec::CodecId::STORE, b"raw", b"raw"));
        forged.extend_from_slice(b"raw");
    }
    forged.extend_from_slice(&maker.finish(Some(vec![0; 100_000])));
    let error = OpenOptions::default().scan(false).open(forged).map(drop).unwrap_err();
    assert!(error.to_string().contains("more sums"), "{error}");
}

#[derive(Clone, Default)]
struct Sink(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn decoded(file: Vec<u8>) -> narrows_file::Result<Vec<u8>> {
    let sink = Sink::default();
    decode(std::io::Cursor::new(file), sink.clone(), Default::default)?;
    let raw = sink.0.lock().unwrap().clone();
    Ok(raw)
}

#[test]
fn runs_begin_at_resets_and_are_decoded_without_what_is_before() {
    let raw = sample(400_000, 2);
    let bytes = stored(&raw, linked());
    let file = File::open(&bytes[..]).unwrap();
    let member = &file.members()[0];
    assert_eq!(member.origin, IndexOrigin::Stored);
    // A block may end early where a piece of the source does.
    assert!((40..60).contains(&member.blocks()) && (6..=8).contains(&member.runs()), "{member:?}");
    // Each read in a file opened again, so that nothing is in its cache.
    for at in (0..raw.len()).step_by(49_999) {
        let mut buf = [0; 3];
        File::open(&bytes[..]).unwrap().read_at(&mut buf, at as u64).unwrap();
        assert_eq!(buf, raw[at..at + 3]);
    }
    // What lies in another run may be damaged.
    let second = (0..).map(|i| member.entry(i).unwrap()).filter(|e| e.begins_run).nth(1).unwrap();
    let mut damaged = bytes.clone();
    damaged[40..second.wire_begin as usize].fill(0xff);
    let file = File::open(&damaged[..]).unwrap();
    let mut buf = [0; 100];
    file.read_at(&mut buf, second.raw_begin).unwrap();
    assert_eq!(buf, raw[second.raw_begin as usize..][..100]);
    assert!(file.read_at(&mut buf, 0).is_err());
}

#[test]
fn lengths_around_the_borders_of_blocks_and_runs_read_back() {
    for len in [1, 2, 9_999, 10_000, 10_001, 49_999, 50_000, 50_001, 60_000, 100_000, 100_001] {
        let raw = sample(len, len as u64);
        for options in [linked(), alone(), linked().check(false)] {
            let bytes = stored(&raw, options);
            assert_eq!(read_all(&File::open(&bytes[..]).unwrap()).unwrap(), raw, "{len} bytes");
            assert_eq!(decoded(bytes).unwrap(), raw);
        }
    }
}

#[test]
fn an_empty_file_is_a_stream_of_nothing_and_no_bytes_are_none() {
    let bytes = stored(&[], WriteOptions::default());
    let file = File::open(&bytes[..]).unwrap();
    assert_eq!((file.raw_len(), file.read_at(&mut [0; 5], 0).unwrap()), (0, 0));
    assert_eq!(decoded(bytes).unwrap(), b"");
    assert!(File::open(&[][..]).is_err());
    assert!(decoded(Vec::new()).is_err());
}

/// What is no stream is damage however short it is; the beginning of one is cut off.
#[test]
fn short_files_are_cut_off_only_where_streams_begin_so() {
    use narrows::ErrorKind::{Corrupt, Truncated};
    let whole = stored(b"content", WriteOptions::default());
    for (bytes, kind) in [
        (&b"p"[..], Corrupt),
        (b"plain text\n", Corrupt),
        (b"NRx", Corrupt),
        (&whole[..1], Truncated),
        (&whole[..3], Truncated),
        (&whole[..4], Truncated),
        (&whole[..11], Truncated),
        (&whole[..whole.len() - 1], Truncated),
    ] {
        assert_eq!(File::open(bytes).map(drop).unwrap_err().kind, kind, "{bytes:?}");
        let behind = [&whole, bytes].concat();
        assert!(File::open(&behind[..]).is_err(), "{bytes:?}");
    }
}

#[test]
fn random_reads_from_several_threads_equal_the_source() {
    let raw = sample(1_000_000, 3);
    for options in [linked(), alone(), linked().run_len(u64::MAX)] {
        let bytes = stored(&raw, options);
        let file = OpenOptions::default().cache_max(100_000).open(&bytes[..]).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (file, raw) = (&file, &raw);
                scope.spawn(move || {
                    let mut random = Random(100 + thread);
                    for _ in 0..100 {
                        let at = random.below(raw.len() as u64 + 10);
                        let mut buf = vec![0; random.below(30_000) as usize];
                        let n = file.read_at(&mut buf, at).unwrap();
                        let expected = raw.get(at as usize..).unwrap_or_default();
                        assert_eq!(buf[..n], expected[..expected.len().min(buf.len())]);
                    }
                });
            }
        });
    }
}

#[test]
fn reading_and_seeking_go_as_in_other_files() {
    let raw = sample(100_000, 4);
    let mut file = File::open(stored(&raw, linked())).unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == raw);
    assert_eq!(file.seek(SeekFrom::End(-10)).unwrap(), 99_990);
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end, raw[99_990..]);
    assert!(file.seek(SeekFrom::Current(-100_001)).is_err());
    assert_eq!(file.seek(SeekFrom::Start(1 << 40)).unwrap(), 1 << 40);
    assert_eq!(file.read(&mut [0; 9]).unwrap(), 0);
}

#[test]
fn streams_behind_one_another_read_as_one() {
    let (a, b, c) = (sample(30_000, 5), sample(120_000, 6), sample(70_000, 7));
    let without_index = {
        let mut out = Vec::new();
        let sink = Sink::default();
        let options = narrows::stream::SendOptions::new("fixed:zstd:link".parse().unwrap()).block_max(9_000);
        let link = narrows::transport::Link::writer(sink.clone());
        narrows::stream::send(std::io::Cursor::new(c.clone()), link, options).unwrap();
        out.extend_from_slice(&sink.0.lock().unwrap());
        out
    };
    let bytes = [stored(&a, alone()), stored(&[], alone()), stored(&b, linked()), without_index].concat();
    let raw = [a, b, c].concat();
    let file = File::open(&bytes[..]).unwrap();
    let origins: Vec<_> = file.members().iter().map(|m| m.origin).collect();
    assert_eq!(origins, [IndexOrigin::Stored, IndexOrigin::Scanned, IndexOrigin::Stored, IndexOrigin::Scanned]);
    assert_eq!(read_all(&file).unwrap(), raw);
    let mut random = Random(9);
    for _ in 0..200 {
        let at = random.below(raw.len() as u64) as usize;
        let mut buf = [0; 50];
        let n = file.read_at(&mut buf, at as u64).unwrap();
        assert_eq!(buf[..n], raw[at..(at + 50).min(raw.len())]);
    }
    assert_eq!(decoded(bytes.clone()).unwrap(), raw);
    let error = decoded([&bytes[..], b"and more"].concat()).unwrap_err();
    assert_eq!(error.kind, narrows::ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_stream_with_copies_is_one_run_and_read_at_any_byte() {
    let part = sample(200_000, 11);
    let raw = [&part[..], &sample(300_000, 12), &part, &part].concat();
    let sink = Sink::default();
    let options = narrows::stream::SendOptions::new("fixed:zstd:link".parse().unwrap()).block_max(50_000);
    let options = options.reach(1 << 20).search_always(true).index(true).run_len(100_000);
    let link = narrows::transport::Link::writer(sink.clone());
    let (summary, _) = narrows::stream::send(std::io::Cursor::new(raw.clone()), link, options).unwrap();
    assert!(summary.copied_bytes > 300_000, "{} bytes were copied", summary.copied_bytes);
    let bytes = sink.0.lock().unwrap().clone();
    let file = OpenOptions::default().cache_max(0).open(&bytes[..]).unwrap();
    assert_eq!(file.members()[0].runs(), 1);
    let mut random = Random(13);
    for _ in 0..30 {
        let at = random.below(raw.len() as u64) as usize;
        let mut buf = vec![0; 1000];
        let n = file.read_at(&mut buf, at as u64).unwrap();
        assert_eq!(buf[..n], raw[at..(at + 1000).min(raw.len())]);
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_a_file_that_breaks_off() {
    let sink = Sink::default();
    let mut writer = Writer::new(sink.clone(), alone()).unwrap();
    writer.write_all(&sample(1_000_000, 8)).unwrap();
    drop(writer);
    let bytes = sink.0.lock().unwrap().clone();
    assert!(File::open(&bytes[..]).is_err());
    assert!(decoded(bytes).is_err());
}

#[test]
fn one_read_finds_footer_index_and_preface_copy() {
    struct Counting(Vec<u8>, std::sync::atomic::AtomicUsize);
    impl narrows_file::ReadAt for Counting {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            narrows_file::ReadAt::read_at(&self.0, buf, offset)
        }

        fn len(&self) -> std::io::Result<u64> {
            narrows_file::ReadAt::len(&self.0)
        }
    }
    let raw = sample(2_000_000, 10);
    let bytes = stored(&raw, WriteOptions::default());
    assert!(bytes.len() > 64 << 10, "the tail must not be the whole file");
    let source = Arc::new(Counting(bytes, Default::default()));
    let file = File::open(Arc::clone(&source)).unwrap();
    assert_eq!(source.1.load(std::sync::atomic::Ordering::Relaxed), 1);
    file.read_at(&mut [0; 100], 700_000).unwrap();
    assert_eq!(source.1.load(std::sync::atomic::Ordering::Relaxed), 2);
}
