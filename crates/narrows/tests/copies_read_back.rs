//! Copies that are read back from where the flow is stored: whatever happens to it there, nothing
//! false is passed off as the flow.

use std::io::{Cursor, Error as IoError, Result as IoResult, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod world;

use narrows::ErrorKind;
use narrows::stored::Stored;
use narrows::stream::{ReceiveOptions, SendOptions, receive, send};
use narrows::transport::Link;
use tempfile::NamedTempFile;
use world::random;

const REACH: usize = 4 << 20;

/// A flow whose second half repeats the first, with other bytes between.
fn flow() -> Vec<u8> {
    let first = random(2_500_000, 1);
    let pieces = first.chunks(100_000).enumerate().flat_map(|(i, piece)| [piece, &random(1000, i as u64 + 9)].concat());
    [first.clone(), pieces.collect()].concat()
}

fn options(check: bool) -> SendOptions {
    let options = SendOptions::new("fixed:lz4".parse().unwrap()).threads(1).reach(REACH).search_always(true);
    options.check(check)
}

/// The flow as a stream in a file.
fn stream(check: bool) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let (sent, _) = send(Cursor::new(flow()), Link::writer(file.reopen().unwrap()), options(check)).unwrap();
    assert!(sent.copied_bytes > 2_400_000);
    file
}

/// What is read back from, and counts how often.
struct Counted<F>(F, Arc<AtomicUsize>);

impl<F: Fn(&mut [u8], u64) -> IoResult<usize> + Send + Sync> Stored for Counted<F> {
    fn read_raw(&self, out: &mut [u8], at: u64) -> IoResult<usize> {
        self.1.fetch_add(1, Ordering::Relaxed);
        (self.0)(out, at)
    }
}

/// Receives the stream into a file, of which `read_at` says what it finds there. Returns how it
/// ended, the bytes in the file, and how often it was read.
fn received(
    check: bool,
    threads: usize,
    reach_max: usize,
    read_at: impl Fn(&std::fs::File, &mut [u8], u64) -> IoResult<usize> + Send + Sync + 'static,
) -> (Result<u64, (ErrorKind, String)>, Vec<u8>, usize) {
    let (stream, out, reads) = (stream(check), NamedTempFile::new().unwrap(), Arc::new(AtomicUsize::new(0)));
    let file = out.reopen().unwrap();
    let stored = Counted(move |bytes: &mut [u8], at| read_at(&file, bytes, at), Arc::clone(&reads));
    let options = ReceiveOptions::default().threads(threads).to_file(true).reach_max(reach_max);
    let options = options.read_back(Arc::new(stored), REACH);
    let summary = receive(out.reopen().unwrap(), Link::file_reader(stream.reopen().unwrap()), options);
    let end = summary.map(|s| s.copied_bytes).map_err(|e| (e.kind, e.to_string()));
    (end, std::fs::read(out.path()).unwrap(), reads.load(Ordering::Relaxed))
}

#[test]
fn copies_are_read_back_from_the_file_that_is_written() {
    for threads in [1, 4] {
        // What is kept in memory is not enough for them.
        let (end, out, reads) = received(true, threads, 0, |file, bytes, at| file.read_at(bytes, at));
        assert!(end.unwrap() > 2_400_000 && out == flow() && reads > 0);
        // Files may give less than was asked for.
        let short = |file: &std::fs::File, bytes: &mut [u8], at| {
            let n = bytes.len().min(777);
            file.read_at(&mut bytes[..n], at)
        };
        assert!(received(true, threads, 0, short).1 == flow());
    }
}

#[test]
fn an_output_that_others_change_or_shorten_is_an_error_and_nothing_false_follows() {
    let changed = |file: &std::fs::File, bytes: &mut [u8], at: u64| {
        let n = file.read_at(bytes, at)?;
        // One bit, of what another program wrote over.
        if (at..at + n as u64).contains(&1_234_567) {
            bytes[(1_234_567 - at) as usize] ^= 4;
        }
        Ok(n)
    };
    let shorter = |file: &std::fs::File, bytes: &mut [u8], at: u64| {
        let n = bytes.len().min(1_234_567usize.saturating_sub(at as usize));
        file.read_at(&mut bytes[..n], at)
    };
    let broken = |_: &std::fs::File, _: &mut [u8], _| Err(IoError::other("the disk is broken"));
    type Read = Box<dyn Fn(&std::fs::File, &mut [u8], u64) -> IoResult<usize> + Send + Sync>;
    let cases: [(Read, ErrorKind, &str); 3] = [
        (Box::new(changed), ErrorKind::Corrupt, "changed by another program"),
        (Box::new(shorter), ErrorKind::Io, "shorter"),
        (Box::new(broken), ErrorKind::Io, "the disk is broken"),
    ];
    for (read, kind, words) in cases {
        let (end, out, _) = received(true, 2, 0, read);
        let (found, text) = end.unwrap_err();
        assert!(found == kind && text.contains(words), "{found:?} {text}");
        assert!(out.len() < flow().len() && flow().starts_with(&out), "{words}: {} bytes", out.len());
    }
}

#[test]
fn a_stream_without_checks_is_kept_in_memory_and_refused_where_that_is_too_little() {
    let never = |_: &std::fs::File, _: &mut [u8], _| panic!("nothing would tell that it was changed");
    let (end, out, _) = received(false, 2, REACH, never);
    assert!(end.is_ok() && out == flow());
    let (end, out, _) = received(false, 2, REACH / 2, never);
    assert_eq!((end.unwrap_err().0, out.len()), (ErrorKind::Limit, 0));
}

/// Sends the flow, compares it with `source` as it is read back, and receives it.
fn sent_of(flow: &[u8], source: Vec<u8>, check: bool) -> (u64, Result<(), ErrorKind>, Vec<u8>) {
    let read_at = move |out: &mut [u8], at: u64| {
        let rest = source.get(at as usize..).unwrap_or_default();
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    };
    let (file, mut out) = (NamedTempFile::new().unwrap(), Vec::new());
    let options = options(check).read_back(Arc::new(Counted(read_at, Arc::default())));
    let (sent, _) = send(Cursor::new(flow.to_vec()), Link::writer(file.reopen().unwrap()), options).unwrap();
    struct Sink(std::sync::mpsc::Sender<Vec<u8>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
            self.0.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> IoResult<()> {
            Ok(())
        }
    }
    let (to, from) = std::sync::mpsc::channel();
    let options = ReceiveOptions::default().reach_max(REACH);
    let end = receive(Sink(to), Link::file_reader(file.reopen().unwrap()), options);
    from.try_iter().for_each(|bytes| out.extend(bytes));
    (sent.copied_bytes, end.map(drop).map_err(|e| e.kind), out)
}

#[test]
fn a_source_that_is_read_back_needs_no_memory_for_its_repeats_and_gives_the_same() {
    let (copied, end, out) = sent_of(&flow(), flow(), true);
    assert!(copied > 2_400_000 && end.is_ok() && out == flow());
    // It was cut off meanwhile: what cannot be read is no repeat.
    let (copied, end, out) = sent_of(&flow(), flow()[..1_000_000].to_vec(), true);
    assert!((900_000..=1_000_000).contains(&copied) && end.is_ok() && out == flow(), "{copied}");
}

#[test]
fn a_source_that_changes_under_its_copies_is_noticed_by_the_receiver() {
    // A second release, in which a few bytes differ, and which is there in place of the first when
    // both are compared: all of it is a repeat then, but of what was not sent.
    let first = random(1_500_000, 1);
    let mut second = first.clone();
    second.iter_mut().step_by(100_000).for_each(|byte| *byte ^= 1);
    let flow = [&first[..], &second].concat();
    let meanwhile = second.repeat(2);
    let (copied, end, out) = sent_of(&flow, meanwhile.clone(), true);
    assert!(copied > 1_400_000 && end == Err(ErrorKind::Corrupt), "{copied} {end:?}");
    assert!(out.len() < flow.len() && flow.starts_with(&out));
    // Where no check would tell, it is not read back.
    let (copied, end, out) = sent_of(&flow, meanwhile, false);
    assert!(copied > 1_400_000 && end.is_ok() && out == flow);
}
