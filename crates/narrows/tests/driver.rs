//! The blocking driver over real sockets, pipes and files: correct bytes, faults, and no hangs.

mod world;

use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use narrows::codec::DEFAULT_METHODS;
use narrows::error::{Error, ErrorKind};
use narrows::frame::CONTROL_BODY_MAX;
use narrows::receiver::RecvSummary;
use narrows::sender::Summary;
use narrows::stream::{Control, Notes, ReceiveOptions, SendOptions, receive, receive_then, send};
use narrows::transport::Link;
use narrows_test::PATIENCE;
use world::{random, text};

/// Stall timeout of flows whose peer stalls.
const STALL: Duration = Duration::from_millis(1500);

/// Runs `what` with a timeout, so that a hang is a failed test and not a test run that never ends.
fn watched<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (out, result) = mpsc::channel();
    std::thread::spawn(move || out.send(what()));
    result.recv_timeout(2 * PATIENCE).expect("it hangs")
}

fn send_options(policy: &str) -> SendOptions {
    SendOptions::new(policy.parse().unwrap())
        .block_max(512 << 10)
        .history(64 << 10)
        .gather_ns(0)
        .threads(2)
        .stall_timeout(Some(PATIENCE))
}

fn receive_options() -> ReceiveOptions {
    ReceiveOptions::default().threads(2).stall_timeout(Some(PATIENCE))
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, b: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(b);
        Ok(b.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_example_of_the_readme_runs() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (socket, there) = std::os::unix::net::UnixStream::pair()?;
    let other_end = std::thread::spawn(move || -> narrows::Result<Vec<u8>> {
        let (socket, mut output) = (there, Vec::new());
        let socket = std::io::BufReader::new(socket);
        let mut decoder = narrows::Decoder::new(socket, narrows::ReceiveOptions::default());
        std::io::copy(&mut decoder, &mut output)?;
        Ok(output)
    });
    let mut file = &[7; 1 << 20][..];
    let mut encoder = narrows::Encoder::new(&socket, narrows::SendOptions::default());
    std::io::copy(&mut file, &mut encoder)?;
    let (_, summary) = encoder.finish()?;
    assert!(summary.ratio() > 1.0);
    assert_eq!(other_end.join().expect("no panic")?, [7; 1 << 20]);
    narrows_test::assert_compiled("README.md".as_ref(), include_str!("driver.rs"));
    Ok(())
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

type Sent = Result<Summary, Error>;
type Received = Result<RecvSummary, Error>;

/// Sends `source` into one end and receives at the other.
fn across(source: impl Read + Send + 'static, policy: &str, near: Link, far: Link) -> (Sent, Received, Vec<u8>) {
    let options = send_options(policy);
    watched(move || {
        let sender = std::thread::spawn(move || send(source, near, options).map(|r| r.0));
        let sink = Sink::default();
        let received = receive(sink.clone(), far, receive_options());
        let bytes = sink.0.lock().unwrap().clone();
        (sender.join().unwrap(), received, bytes)
    })
}

fn over_tcp(source: impl Read + Send + 'static, policy: &str) -> (Sent, Received, Vec<u8>) {
    let (near, far) = tcp_pair();
    across(source, policy, Link::tcp(near).unwrap(), Link::tcp(far).unwrap())
}

#[test]
fn every_size_arrives_over_every_link() {
    for len in [0, 1, 100, 1 << 20, 9 << 20] {
        let data = [text(len / 2, 1), random(len - len / 2, 2)].concat();
        let source = Cursor::new(data.clone());
        let (sent, received, bytes) = over_tcp(source.clone(), "balance");
        assert_eq!(sent.unwrap().raw_bytes, received.unwrap().raw_bytes);
        assert!(bytes == data, "tcp {len}");

        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (sent, received, bytes) =
            across(source.clone(), "balance", Link::unix(near).unwrap(), Link::unix(far).unwrap());
        assert!(sent.is_ok() && received.is_ok() && bytes == data, "unix {len}");

        let (far, near) = io::pipe().unwrap();
        let file = |fd: std::os::fd::OwnedFd| std::fs::File::from(fd);
        let (near, far) = (Link::file_writer(file(near.into())), Link::file_reader(file(far.into())));
        let (sent, received, bytes) = across(source, "balance", near, far);
        assert!(sent.is_ok() && received.is_ok() && bytes == data, "pipe {len}");
    }
}

#[test]
fn what_waits_for_a_long_flow_is_done_once_and_not_in_a_short_one() {
    for (delay, lasts, times) in
        [(Duration::from_secs(3600), 0, 0), (Duration::ZERO, 0, 1), (Duration::from_millis(50), 200, 1)]
    {
        let (done, seen) = mpsc::channel();
        let options = send_options("balance").later(delay, move || done.send(()).unwrap());
        let source = Slow { pieces: 2, pause: Duration::from_millis(lasts) };
        let (near, far) = tcp_pair();
        watched(move || {
            let sender = std::thread::spawn(move || send(source, Link::tcp(near).unwrap(), options).map(|r| r.0));
            receive(Sink::default(), Link::tcp(far).unwrap(), receive_options()).unwrap();
            sender.join().unwrap().unwrap();
        });
        assert_eq!(seen.iter().count(), times, "{delay:?}");
    }
}

/// A source that pauses before each of its pieces.
struct Slow {
    pieces: usize,
    pause: Duration,
}

impl Read for Slow {
    fn read(&mut self, b: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(self.pause);
        let n = if self.pieces > 0 { b.len().min(100) } else { 0 };
        self.pieces = self.pieces.saturating_sub(1);
        b[..n].fill(7);
        Ok(n)
    }
}

#[test]
fn every_default_method_arrives() {
    let data = [text(700_000, 1), random(300_000, 2), vec![0; 300_000]].concat();
    for method in DEFAULT_METHODS {
        let (sent, received, bytes) = over_tcp(Cursor::new(data.clone()), &format!("fixed:{method}"));
        assert!(sent.is_ok() && received.is_ok() && bytes == data, "{method}: {sent:?} {received:?}");
    }
}

#[test]
fn small_writes_with_silence_between_arrive() {
    struct Trickle(u32);
    impl Read for Trickle {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Ok(0);
            }
            self.0 -= 1;
            std::thread::sleep(Duration::from_millis(u64::from(self.0 % 3)));
            buf[..100].fill(self.0 as u8);
            Ok(100)
        }
    }
    let (sent, received, bytes) = over_tcp(Trickle(200), "balance");
    assert!(received.is_ok());
    assert_eq!((bytes.len(), sent.unwrap().raw_bytes), (20_000, 20_000));
}

#[test]
fn a_source_that_fails_fails_both_ends() {
    struct Broken(u32);
    impl Read for Broken {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 5 { Err(io::Error::other("bad sector")) } else { Ok(buf.len()) }
        }
    }
    let (sent, received, _) = over_tcp(Broken(0), "balance");
    assert!(sent.unwrap_err().to_string().contains("bad sector"));
    assert_eq!(received.unwrap_err().kind, ErrorKind::Truncated);
}

#[test]
fn totals_are_told_after_a_failure_too() {
    /// Fails once some earlier bytes have arrived.
    struct Broken(Arc<Control>);
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            let begun = Instant::now();
            while self.0.receive_summary().raw_bytes == 0 && begun.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(io::Error::other("bad sector"))
        }
    }
    let (near, far) = tcp_pair();
    let (sent, received, stored) = watched(move || {
        let control = Arc::<Control>::default();
        let source = Cursor::new(text(300_000, 1)).chain(Broken(Arc::clone(&control)));
        let sender = std::thread::spawn(move || {
            let control = Arc::default();
            send(source, Link::tcp(near).unwrap(), send_options("fixed:lz4").control(&control)).map(drop).unwrap_err();
            control.send_summary()
        });
        let sink = Sink::default();
        receive(sink.clone(), Link::tcp(far).unwrap(), receive_options().control(&control)).unwrap_err();
        (sender.join().unwrap(), control.receive_summary(), sink.0.lock().unwrap().len() as u64)
    });
    assert!(received.raw_bytes > 0 && received.raw_bytes >= stored, "{received:?} {stored}");
    assert!(received.wire_bytes > 0 && sent.accepted_bytes > 0, "{sent:?} {received:?}");
    assert!(sent.raw_bytes >= received.raw_bytes, "{sent:?} {received:?}");
}

#[test]
fn a_full_disk_at_the_receiver_is_told_to_the_sender() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(b.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(b.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (near, far) = tcp_pair();
    let (sent, received) = watched(move || {
        let near = Link::tcp(near).unwrap();
        let source = Cursor::new(random(20 << 20, 1));
        let sender = std::thread::spawn(move || send(source, near, send_options("balance")));
        let far = Link::tcp(far).unwrap();
        let commit = || panic!("a failed stream must not be committed");
        let received = receive_then(Full(3 << 20), far, receive_options(), commit);
        (sender.join().unwrap().map(|r| r.0), received)
    });
    assert_eq!(received.unwrap_err().kind, ErrorKind::Io);
    let told = sent.unwrap_err().to_string();
    assert!(told.contains("the receiver failed") && told.contains("cannot write the output"), "{told}");
}

#[test]
fn a_commit_that_fails_is_told_to_the_sender() {
    let (near, far) = tcp_pair();
    let (sent, received) = watched(move || {
        let near = Link::tcp(near).unwrap();
        let source = Cursor::new(text(1000, 1));
        let sender = std::thread::spawn(move || send(source, near, send_options("balance")));
        let commit = || Err(io::ErrorKind::PermissionDenied.into());
        let received = receive_then(io::sink(), Link::tcp(far).unwrap(), receive_options(), commit);
        (sender.join().unwrap().map(|r| r.0), received)
    });
    assert!(received.is_err());
    assert!(sent.unwrap_err().to_string().contains("cannot store the output"));
}

#[test]
fn a_peer_that_goes_away_or_stands_still_is_an_error() {
    for reads in [0, 100_000] {
        for hangs in [false, true] {
            let (near, mut far) = tcp_pair();
            let (over, until_over) = mpsc::channel::<()>();
            let peer = std::thread::spawn(move || {
                let mut buf = vec![0; reads];
                let _ = far.read_exact(&mut buf);
                if hangs {
                    let _ = until_over.recv();
                }
            });
            let near = Link::tcp(near).unwrap();
            let source = Cursor::new(random(30 << 20, 1));
            let stall = if hangs { STALL } else { PATIENCE };
            let options = send_options("balance").stall_timeout(Some(stall));
            let sent = watched(move || send(source, near, options).map(|r| r.0));
            drop(over);
            let error = sent.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io, "{reads} {hangs}");
            assert_eq!(error.message.contains("no progress"), hangs, "{error}");
            peer.join().unwrap();
        }
    }
}

/// On a one-way link the sender reads nothing, and with a full window it writes nothing.
#[test]
fn a_peer_that_goes_away_is_noticed_on_a_link_of_one_direction() {
    let error = watched(|| {
        let (near, far) = tcp_pair();
        let gone = std::thread::spawn(move || {
            // Wait until the window is full.
            std::thread::sleep(Duration::from_millis(600));
            // Dropped with unread bytes, which resets the connection.
            drop(far);
        });
        let options = send_options("balance").stall_timeout(None);
        let (link, _) = Link::tcp(near).unwrap().split();
        let sent = send(Cursor::new(random(32 << 20, 1)), link, options);
        gone.join().unwrap();
        sent.err().unwrap()
    });
    assert_eq!(error.kind, ErrorKind::Io);
}

#[test]
fn the_end_of_the_source_is_not_waited_for() {
    for _ in 0..20 {
        let (reader, writer) = io::pipe().unwrap();
        let hour = 3_600_000_000_000;
        let options = send_options("storage").gather_ns(hour).block_max(2 << 20);
        let near = Link::file_writer(File::from(OwnedFd::from(writer)));
        let sent = watched(move || {
            let drain = std::thread::spawn(move || io::copy(&mut { reader }, &mut io::sink()).unwrap());
            let sent = send(Cursor::new(text(900_000, 1)), near, options).map(|r| r.0);
            drain.join().unwrap();
            sent
        });
        assert_eq!(sent.unwrap().raw_bytes, 900_000);
    }
}

/// With a full window nothing is written, so no write can fail because the reader is gone.
#[test]
fn a_reader_that_goes_away_while_the_window_is_full_is_noticed() {
    type Pair = (Link, OwnedFd);
    let pipe = || -> Pair {
        let (reader, writer) = io::pipe().unwrap();
        (Link::file_writer(File::from(OwnedFd::from(writer))), reader.into())
    };
    let unix = || -> Pair {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        (Link::unix(near).unwrap().split().0, far.into())
    };
    for (name, pair) in [("pipe", &pipe as &dyn Fn() -> Pair), ("unix", &unix)] {
        let (near, far) = pair();
        let control = Arc::new(Control::default());
        let sending = Arc::clone(&control);
        // A window of blocks of 1000 bytes fits into the buffers of every link.
        let options = send_options("fixed:store").block_max(1000).stall_timeout(None).control(&sending);
        let sender = std::thread::spawn(move || send(io::repeat(7), near, options));
        let reader = std::thread::spawn(move || {
            let mut first = [0; 10];
            File::from(far.try_clone().unwrap()).read_exact(&mut first).unwrap();
            let mut sent = 0;
            // Wait until the window is full, when the sender accepts no more.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(5) {
                let now = control.send_summary().accepted_bytes;
                if now > 0 && now == sent {
                    break;
                }
                sent = now;
                std::thread::sleep(Duration::from_millis(150));
            }
        });
        let result = watched(move || {
            reader.join().unwrap();
            sender.join().unwrap()
        });
        let error = result.map(|r| r.0).unwrap_err();
        assert!(error.to_string().starts_with("the receiver closed the connection"), "{name}: {error}");
    }
}

#[test]
fn nobody_waits_for_the_last_word_of_a_peer_that_is_gone() {
    let pipe = || io::pipe().map(|(read, write)| (File::from(OwnedFd::from(read)), File::from(OwnedFd::from(write))));
    let link = || {
        let ((near_read, far_write), (far_read, near_write)) = (pipe().unwrap(), pipe().unwrap());
        (Link::pipes(near_write, near_read), (far_write, far_read))
    };
    let receiving = || {
        let (near, far) = link();
        let begun = Instant::now();
        let receiver = std::thread::spawn(move || receive(Sink::default(), near, receive_options()));
        drop(far);
        assert_eq!(receiver.join().unwrap().unwrap_err().kind, ErrorKind::Truncated);
        begun.elapsed()
    };
    let sending = || {
        let (near, far) = link();
        let (nothing, silent) = pipe().unwrap();
        let options = send_options("fixed:store");
        let sender = std::thread::spawn(|| send(nothing, near, options).map(|result| result.0));
        // Long enough for the flow to wait for its source.
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        drop(far);
        assert_eq!(sender.join().unwrap().unwrap_err().kind, ErrorKind::Io);
        drop(silent);
        begun.elapsed()
    };
    // A flow that waits would take half a second each time; a loaded machine is not that slow every
    // time.
    for once in [&receiving as &dyn Fn() -> Duration, &sending] {
        let fastest = (0..20).map(|_| once()).find(|took| *took < Duration::from_millis(450));
        assert!(fastest.is_some(), "it waits");
    }
}

#[test]
fn a_peer_that_stands_still_is_noticed_when_all_frames_fit_into_the_kernel() {
    let (near, far) = tcp_pair();
    narrows::transport::set_receive_buffer(&far, 4096).unwrap();
    let near = Link::tcp(near).unwrap();
    // Blocks of zeros take some 20 bytes each, so the window fills long before the kernel's send
    // buffer.
    let source = io::repeat(0);
    let options = send_options("fixed:zstd:level=1").stall_timeout(Some(STALL));
    let sent = watched(move || send(source, near, options).map(|r| r.0));
    assert!(sent.unwrap_err().message.contains("no progress"));
    drop(far);
}

#[test]
fn a_source_or_sink_that_panics_ends_the_flow() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("the source is broken, as this test wants");
        }
    }
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("the sink is broken, as this test wants");
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let sent = watched(|| send(Broken, Link::writer(io::sink()), send_options("balance")).map(|r| r.0));
    assert_eq!(sent.unwrap_err().kind, ErrorKind::Misuse);

    let (near, far) = tcp_pair();
    let far = Link::tcp(far).unwrap();
    let receiver = std::thread::spawn(|| receive(Broken, far, receive_options()));
    let near = Link::tcp(near).unwrap();
    let source = Cursor::new(text(3 << 20, 1));
    let sent = watched(move || send(source, near, send_options("balance")).map(|r| r.0));
    assert!(sent.is_err());
    // Small pieces are written in the caller's thread, which then panics itself.
    if let Ok(received) = watched(|| receiver.join()) {
        assert_eq!(received.unwrap_err().kind, ErrorKind::Misuse);
    }
}

#[test]
fn a_sender_that_goes_away_or_stands_still_is_truncated_or_stalled() {
    for (hangs, kind) in [(false, ErrorKind::Truncated), (true, ErrorKind::Io)] {
        let (mut near, far) = tcp_pair();
        let (over, until_over) = mpsc::channel::<()>();
        let peer = std::thread::spawn(move || {
            let stream = Sink::default();
            let options = send_options("balance");
            let link = Link::writer(stream.clone());
            send(Cursor::new(text(2 << 20, 1)), link, options).unwrap();
            let bytes = stream.0.lock().unwrap().clone();
            near.write_all(&bytes[..bytes.len() - 20]).unwrap();
            if hangs {
                let _ = until_over.recv();
            }
        });
        let link = Link::tcp(far).unwrap();
        let stall = if hangs { STALL } else { PATIENCE };
        let options = receive_options().stall_timeout(Some(stall));
        let received = watched(move || receive(io::sink(), link, options));
        drop(over);
        assert_eq!(received.unwrap_err().kind, kind);
        peer.join().unwrap();
    }
}

#[test]
fn a_sender_that_reads_no_answers_fails_the_flow_before_they_fill_the_memory() {
    /// Answers every write with 4 MiB, and counts the writes.
    struct Talkative(Notes, Arc<AtomicUsize>);
    impl Write for Talkative {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            self.1.fetch_add(1, Ordering::Relaxed);
            (0..64).for_each(|_| self.0.send(&[7; CONTROL_BODY_MAX]));
            Ok(b.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let wire = Sink::default();
    let link = Link::writer(wire.clone());
    send(Cursor::new(random(20 << 20, 1)), link, send_options("fixed:store")).unwrap();
    let wire = wire.0.lock().unwrap().clone();
    let (mut near, far) = tcp_pair();
    let sender = std::thread::spawn(move || {
        let _ = near.write_all(&wire);
        near
    });
    let (notes, writes) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
    let sink = Talkative(notes.clone(), Arc::clone(&writes));
    let options = receive_options().notes(&notes);
    let far = Link::tcp(far).unwrap();
    let received = watched(move || receive(sink, far, options));
    let error = received.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit, "{error}");
    assert!(error.message.contains("does not read the answers"), "{error}");
    assert!(writes.load(Ordering::Relaxed) >= 2, "4 MiB are no reason to fail");
    drop(sender.join());
}

#[test]
fn stop_ends_a_transfer_in_every_state() {
    let (near, far) = tcp_pair();
    for (link, source) in [
        (Link::tcp(near).unwrap(), Box::new(io::repeat(1)) as Box<dyn Read + Send>),
        (Link::writer(io::sink()), Box::new(io::repeat(1))),
    ] {
        let control = Arc::new(Control::default());
        let stopper = Arc::clone(&control);
        let sender =
            std::thread::spawn(move || watched(move || send(source, link, send_options("balance").control(&control))));
        std::thread::sleep(Duration::from_millis(200));
        stopper.stop();
        assert!(sender.join().unwrap().is_err());
    }
    let control = Arc::new(Control::default());
    let stopper = Arc::clone(&control);
    let receiver = std::thread::spawn(move || {
        let link = Link::tcp(far).unwrap();
        watched(move || receive(io::sink(), link, receive_options().control(&control)))
    });
    stopper.stop();
    assert!(receiver.join().unwrap().is_err());
}

#[test]
fn the_policy_comes_back_and_the_trace_has_a_line_for_every_block() {
    let trace = Sink::default();
    let options = send_options("balance").trace(Box::new(trace.clone()));
    let link = Link::writer(io::sink());
    let (summary, _policy) = send(Cursor::new(text(3 << 20, 1)), link, options).unwrap();
    let lines = String::from_utf8(trace.0.lock().unwrap().clone()).unwrap();
    let choices = lines.lines().filter(|l| l.contains("\"event\":\"choose\"")).count() as u64;
    assert_eq!(choices, summary.frames);
}

#[test]
fn what_is_said_before_the_confirmation_arrives_however_slowly_it_is_heard() {
    const NOTES: usize = 60;
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let heard = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&heard);
    let (sent, received) = watched(move || {
        let on_note = Box::new(move |note: &[u8]| {
            std::thread::sleep(2 * STALL / 50);
            *counted.lock().unwrap() += note.len();
            Ok(())
        });
        // In total longer than the timeouts for a silent receiver and for its confirmation.
        let options = send_options("balance").stall_timeout(Some(2 * STALL)).on_note(on_note);
        let source = Cursor::new(text(1000, 1));
        let sender = std::thread::spawn(move || send(source, Link::unix(near).unwrap(), options));
        let notes = Notes::default();
        let options = receive_options().notes(&notes);
        let commit = move || {
            for _ in 0..NOTES {
                notes.send(&[7; 60_000]);
                assert!(notes.settle(60_000), "somebody listens");
            }
            assert!(notes.settle(0));
            Ok(())
        };
        let received = receive_then(io::sink(), Link::unix(far).unwrap(), options, commit);
        (sender.join().unwrap().map(|r| r.0), received)
    });
    received.unwrap();
    sent.unwrap();
    assert_eq!(*heard.lock().unwrap(), NOTES * 60_000);
}

#[test]
fn who_says_much_to_somebody_who_went_away_is_told() {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let stream = Sink::default();
    let options = send_options("balance");
    send(Cursor::new(text(1000, 1)), Link::writer(stream.clone()), options).unwrap();
    let mut peer = near;
    peer.write_all(&stream.0.lock().unwrap()).unwrap();
    let told = watched(move || {
        let notes = Notes::default();
        let options = receive_options().notes(&notes);
        let (tell, told) = mpsc::channel();
        let commit = move || {
            drop(peer);
            notes.send(&[7; 60_000]);
            tell.send(notes.settle(0)).unwrap();
            Ok(())
        };
        let _ = receive_then(io::sink(), Link::unix(far).unwrap(), options, commit);
        told.recv().unwrap()
    });
    assert!(!told, "nobody hears it");
}
