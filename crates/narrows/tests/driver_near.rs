//! Short flows between files: no thread, write or wait more than needed. Everything here is counted.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::stream::{ReceiveOptions, SendOptions, decode, receive, receive_then, send};
use narrows::transport::Link;
use narrows_test::noise;

const PATIENCE: Option<Duration> = Some(narrows_test::PATIENCE);

/// A source or sink that remembers which threads used it.
#[derive(Clone, Default)]
struct Watched {
    bytes: Arc<Mutex<Vec<u8>>>,
    users: Arc<Mutex<Vec<ThreadId>>>,
}

impl Watched {
    fn of(bytes: &[u8]) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes.to_vec())), users: Arc::default() }
    }

    fn note(&self) {
        let mut users = self.users.lock().unwrap();
        let user = std::thread::current().id();
        if !users.contains(&user) {
            users.push(user);
        }
    }
}

impl Read for Watched {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.note();
        let mut bytes = self.bytes.lock().unwrap();
        let n = buf.len().min(bytes.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        bytes.drain(..n);
        Ok(n)
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.note();
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends over TCP; returns the threads that read the source and wrote the sink, each with whether it
/// was the one that called.
fn across(data: &[u8], from_file: bool, to_file: bool) -> [(usize, bool); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let (source, sink) = (Watched::of(data), Watched::default());
    let (given, kept) = (source.clone(), sink.clone());
    let sender = std::thread::spawn(move || {
        let options =
            SendOptions::new("fixed:store".parse().unwrap()).from_file(from_file).stall_timeout(PATIENCE).threads(2);
        send(given, Link::tcp(near).unwrap(), options).unwrap();
    });
    let sender_id = sender.thread().id();
    let options = ReceiveOptions::default().to_file(to_file).stall_timeout(PATIENCE).threads(2);
    receive(kept, Link::tcp(far).unwrap(), options).unwrap();
    sender.join().unwrap();
    assert!(*sink.bytes.lock().unwrap() == data);
    let users = |of: &Watched, caller: ThreadId| {
        let users = of.users.lock().unwrap();
        (users.len(), users.contains(&caller))
    };
    [users(&source, sender_id), users(&sink, std::thread::current().id())]
}

#[test]
fn the_calling_thread_reads_and_writes_a_short_file() {
    for len in [1, 1000, 16 << 10, 100_000] {
        let [source, sink] = across(&noise(len), true, true);
        assert_eq!((source, sink), ((1, true), (1, true)), "{len}");
    }
}

/// A source that may wait for another program must not keep the calling thread from the link, nor a
/// sink from the reports.
#[test]
fn what_may_wait_for_a_program_is_left_to_other_threads() {
    let data = noise(3 << 20);
    let [source, _] = across(&data, false, false);
    assert_eq!(source, (1, false));
    // Only short reads are written by the calling thread. TCP may give any number of them; this link
    // fills each read but the last, and leaves the other thread time to begin.
    let link = Counted::default();
    send(Watched::of(&data), Link::writer(link.clone()), SendOptions::new("fixed:store".parse().unwrap())).unwrap();
    let wire = std::mem::take(&mut link.0.lock().unwrap().1);
    let sink = Watched::default();
    receive(sink.clone(), Link::reader(Unhurried(io::Cursor::new(wire))), ReceiveOptions::default().threads(2))
        .unwrap();
    assert!(*sink.bytes.lock().unwrap() == data);
    let caller = std::thread::current().id();
    assert!(sink.users.lock().unwrap().iter().any(|user| *user != caller), "the calling thread wrote it all");
}

/// A link that takes a moment for each read.
struct Unhurried<R>(R);

impl<R: Read> Read for Unhurried<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.read(buf)
    }
}

/// A long file arrives whole, whoever reads and writes it.
#[test]
fn a_long_file_arrives() {
    across(&noise(9 << 20), true, true);
}

/// A link that counts the writes.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<(usize, Vec<u8>)>>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        parts.iter().for_each(|part| state.1.extend_from_slice(part));
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The preface, the blocks and the end of a short file need one system call and one packet.
#[test]
fn a_short_file_is_one_write() {
    for len in [0, 1, 5000] {
        let (link, data) = (Counted::default(), noise(len));
        let options = SendOptions::default().from_file(true).threads(2);
        send(Watched::of(&data), Link::writer(link.clone()), options).unwrap();
        let (writes, wire) = std::mem::take(&mut *link.0.lock().unwrap());
        assert_eq!(writes, 1, "{len}");
        let sink = Watched::default();
        receive(sink.clone(), Link::reader(io::Cursor::new(wire)), ReceiveOptions::default()).unwrap();
        assert!(*sink.bytes.lock().unwrap() == data);
    }
}

/// Without a thread that hears the receiver its reason still arrives, before and at the end.
#[test]
fn the_sender_of_a_file_hears_why_it_is_not_stored() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is full"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for (len, full) in [(1, true), (1, false), (100_000, true), (9 << 20, true), (9 << 20, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let receiver = std::thread::spawn(move || {
            let sink: Box<dyn Write + Send> = if full { Box::new(Full) } else { Box::new(io::sink()) };
            let options = ReceiveOptions::default().to_file(true).stall_timeout(PATIENCE);
            let commit = || Err(io::Error::other("the folder is gone"));
            receive_then(sink, Link::tcp(far).unwrap(), options, commit).map(drop).unwrap_err()
        });
        let options = SendOptions::default().from_file(true).stall_timeout(PATIENCE).threads(2);
        let told = send(Watched::of(&noise(len)), Link::tcp(near).unwrap(), options).map(drop).unwrap_err();
        let failed = receiver.join().unwrap().to_string();
        assert!(failed.contains(if full { "the disk is full" } else { "the folder is gone" }), "{failed}");
        assert!(told.to_string().contains(&failed), "{len}: {told}");
    }
}

/// Feeds a stream to a receiver in pieces of these lengths, the rest of long bodies into their place.
/// Returns the raw bytes, and how many of the wire bytes went directly into a body.
fn receive_in_pieces(wire: &[u8], pieces: &[usize]) -> (Vec<u8>, usize) {
    let pool = BufferPool::default();
    let mut receiver = Receiver::new(ReceiverConfig::default(), pool.clone());
    let (mut raw, mut direct, mut at) = (Vec::new(), 0, 0);
    for piece in pieces.iter().cycle() {
        if at == wire.len() {
            break;
        }
        let piece = &wire[at..wire.len().min(at + piece)];
        at += match receiver.take_body() {
            Some(mut body) => {
                let n = body.rest().len().min(piece.len());
                body.rest()[..n].copy_from_slice(&piece[..n]);
                receiver.put_body(body, n).unwrap();
                direct += n;
                n
            }
            None => {
                receiver.receive(Block::from_vec(piece.to_vec())).unwrap();
                piece.len()
            }
        };
        while let Some(job) = receiver.poll_job() {
            receiver.finish(decode(job, &mut Contexts::default(), &pool)).unwrap();
        }
        raw.extend(std::iter::from_fn(|| receiver.read()).flat_map(|block| block.to_vec()));
    }
    receiver.close().unwrap();
    assert!(receiver.is_finished() && receiver.summary().wire_bytes == wire.len() as u64);
    (raw, direct)
}

/// Only what came with the header of a long body is copied to the rest of it.
#[test]
fn long_bodies_are_received_where_they_belong() {
    let data = noise(1 << 20);
    let link = Counted::default();
    let options = SendOptions::new("fixed:store".parse().unwrap()).threads(1);
    send(Watched::of(&data), Link::writer(link.clone()), options).unwrap();
    let wire = std::mem::take(&mut link.0.lock().unwrap().1);
    for pieces in [&[1][..], &[7, 100_000], &[16 << 10], &[64 << 10, 1], &[usize::MAX]] {
        let (raw, direct) = receive_in_pieces(&wire, pieces);
        assert!(raw == data, "{pieces:?}");
        if pieces == [16 << 10] {
            assert!(direct > data.len() / 4 * 3, "{direct}");
        }
    }
}

/// A source that fails after some bytes fails the flow, on whichever thread it is read.
#[test]
fn a_file_that_fails_fails_the_flow() {
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::other("the disk is gone"));
            }
            let n = buf.len().min(self.0);
            self.0 -= n;
            Ok(n)
        }
    }
    for len in [0, 100, 200_000, 3 << 20] {
        let options = SendOptions::default().from_file(true).threads(2);
        let error = send(Failing(len), Link::writer(Counted::default()), options).map(drop).unwrap_err();
        assert!(error.to_string().contains("cannot read the source"), "{error}");
        assert!(error.source.is_some_and(|e| e.to_string().contains("the disk is gone")));
    }
}
