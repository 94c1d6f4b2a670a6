//! Bytes come back whatever the pieces, ends are exact, and nothing cut off or damaged is taken for whole.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use narrows_test::{noise, text};

use super::*;
use crate::policy::PolicySpec;

fn options(policy: &str) -> SendOptions {
    SendOptions::new(policy.parse::<PolicySpec>().unwrap()).block_max(64 << 10)
}

fn encoded(raw: &[u8], policy: &str) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), options(policy));
    encoder.write_all(raw).unwrap();
    let (wire, summary) = encoder.finish().unwrap();
    assert_eq!((summary.raw_bytes, summary.wire_bytes), (raw.len() as u64, wire.len() as u64));
    wire
}

fn decoded(wire: &[u8]) -> (Vec<u8>, io::Result<usize>) {
    let mut raw = Vec::new();
    let end = Decoder::new(wire, ReceiveOptions::default()).read_to_end(&mut raw);
    (raw, end)
}

/// A link that takes and gives a few bytes, and between them none.
struct Narrow<T> {
    inner: T,
    len: usize,
    refuses: bool,
}

impl<T: Write> Write for Narrow<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.refuses = !self.refuses;
        if self.refuses {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.inner.write(&bytes[..bytes.len().min(self.len)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Narrow<T> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.refuses = !self.refuses;
        if self.refuses {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = to.len().min(self.len);
        self.inner.read(&mut to[..len])
    }
}

/// Repeats what would block, as a program does once its descriptor is ready.
fn ready<T>(mut act: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match act() {
            Ok(value) => return value,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn what_is_written_in_any_pieces_is_read_in_any_pieces_and_what_follows_stays() {
    let raw = [text(300_000), noise(100_000), vec![0; 200_000]].concat();
    for policy in ["balance", "storage", "fixed:store", "fixed:lz4:link", "fixed:zstd:level=1"] {
        for piece in [1 << 20, 10_000, 777] {
            let link = Narrow { inner: Vec::new(), len: piece, refuses: false };
            let mut encoder = Encoder::new(link, options(policy));
            let mut rest = &raw[..];
            while !rest.is_empty() {
                let n = ready(|| encoder.write(&rest[..rest.len().min(piece)]));
                rest = &rest[n..];
            }
            ready(|| encoder.flush());
            ready(|| encoder.try_finish().map_err(io::Error::from));
            let mut stream = encoder.finish().unwrap().0.inner;
            stream.extend_from_slice(b"what follows");

            let link = Narrow { inner: &stream[..], len: piece, refuses: false };
            let mut decoder = Decoder::new(BufReader::with_capacity(5000, link), ReceiveOptions::default());
            let (mut got, mut to) = (Vec::new(), vec![0; piece]);
            loop {
                match ready(|| decoder.read(&mut to)) {
                    0 => break,
                    n => got.extend_from_slice(&to[..n]),
                }
            }
            assert!(got == raw && decoder.is_finished(), "{policy} {piece}");
            assert_eq!(ready(|| decoder.read(&mut to)), 0, "the end stays the end");
            let (mut reader, mut follows) = (decoder.into_inner(), Vec::new());
            while follows.len() < 12 {
                let n = ready(|| reader.read(&mut to));
                follows.extend_from_slice(&to[..n]);
            }
            assert_eq!(follows, b"what follows", "{policy} {piece}");
        }
    }
}

#[test]
fn an_empty_stream_has_an_end() {
    let wire = encoded(b"", "balance");
    let (raw, end) = decoded(&wire);
    assert!(raw.is_empty() && end.is_ok());
    assert_eq!(decoded(b"").1.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn what_was_flushed_can_be_read_before_the_end() {
    let mut encoder = Encoder::new(Vec::new(), options("fixed:zstd:level=1"));
    for said in [&b"first"[..], b"", &text(100_000)] {
        encoder.write_all(said).unwrap();
        encoder.flush().unwrap();
        let wire = encoder.get_ref().clone();
        let (raw, end) = decoded(&wire);
        assert!(raw.ends_with(said));
        assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof, "no end was written");
    }
}

#[test]
fn an_error_of_the_link_can_be_repeated() {
    let raw = text(500_000);
    let link = Narrow { inner: Vec::new(), len: 3000, refuses: false };
    let mut encoder = Encoder::new(link, options("fixed:lz4"));
    let mut rest = &raw[..];
    while !rest.is_empty() {
        rest = &rest[ready(|| encoder.write(rest))..];
    }
    ready(|| encoder.flush());
    let (raw_now, end) = decoded(&encoder.get_ref().inner);
    assert!(raw_now == raw && end.is_err());
}

#[test]
fn every_end_before_the_end_is_told() {
    let raw = [text(3000), noise(500)].concat();
    for policy in ["fixed:store", "fixed:zstd:level=1:link"] {
        let wire = encoded(&raw, policy);
        for len in 0..wire.len() {
            let (got, end) = decoded(&wire[..len]);
            let e = end.expect_err("cut off");
            assert_eq!(e.kind(), ErrorKind::UnexpectedEof, "{len}");
            assert!(e.get_ref().is_some_and(|e| e.is::<Error>()));
            assert!(raw.starts_with(&got));
        }
    }
}

#[test]
fn every_damage_is_told_and_nothing_false_is_given() {
    let raw = text(20_000);
    let wire = encoded(&raw, "fixed:zstd:level=1");
    for at in 0..wire.len() {
        let mut bad = wire.clone();
        bad[at] ^= 0x20;
        let (got, end) = decoded(&bad);
        assert!(raw.starts_with(&got), "{at}");
        // Of a preface some bits mean nothing to a reader of a one-way stream.
        assert!(end.is_err() || at < 64 && got == raw, "{at}");
    }
}

#[test]
fn a_small_memory_is_enough_for_a_block() {
    let raw = [text(400_000), vec![7; 400_000]].concat();
    let wire = encoded(&raw, "storage");
    let mut got = Vec::new();
    Decoder::new(&wire[..], ReceiveOptions::default().memory_max(1)).read_to_end(&mut got).unwrap();
    assert!(got == raw);
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    /// Through a pipe of 4000 bytes, whose reader goes on using it.
    #[test]
    fn what_is_written_is_read_and_what_follows_stays() {
        let raw = [text(300_000), noise(100_000), vec![0; 200_000]].concat();
        for policy in ["balance", "fixed:store", "fixed:zstd:level=1:link"] {
            let (near, far) = tokio::io::duplex(4000);
            let send = async {
                let mut encoder = AsyncEncoder::new(near, options(policy));
                encoder.write_all(&raw).await.unwrap();
                let (mut near, summary) = encoder.finish().await.unwrap();
                near.write_all(b"what follows").await.unwrap();
                assert_eq!(summary.raw_bytes, raw.len() as u64);
            };
            let receive = async {
                let mut got = Vec::new();
                let mut decoder = AsyncDecoder::new(BufReader::new(far), ReceiveOptions::default());
                decoder.read_to_end(&mut got).await.unwrap();
                assert!(got == raw && decoder.is_finished(), "{policy}");
                let mut follows = Vec::new();
                decoder.into_inner().read_to_end(&mut follows).await.unwrap();
                assert_eq!(follows, b"what follows");
            };
            run(async { tokio::join!(send, receive) });
        }
    }

    /// A call that is dropped has taken nothing, so that the same bytes are written again.
    #[test]
    fn calls_that_are_cancelled_lose_and_repeat_nothing() {
        let raw = [text(200_000), noise(3 << 20)].concat();
        let (near, mut far) = tokio::io::duplex(8000);
        run(async {
            let mut encoder = AsyncEncoder::new(near, options("fixed:lz4"));
            let (mut rest, mut wire, mut cancelled) = (&raw[..], Vec::new(), 0);
            while !rest.is_empty() {
                match tokio::time::timeout(Duration::ZERO, encoder.write(rest)).await {
                    Ok(n) => rest = &rest[n.unwrap()..],
                    Err(_) => {
                        cancelled += 1;
                        let mut some = [0; 5000];
                        let n = far.read(&mut some).await.unwrap();
                        wire.extend_from_slice(&some[..n]);
                    }
                }
            }
            assert!(cancelled > 100, "{cancelled}");
            let end = async { drop(encoder.finish().await.unwrap()) };
            let read = async { far.read_to_end(&mut wire).await.unwrap() };
            tokio::join!(end, read);

            let mut decoder = AsyncDecoder::new(&wire[..], ReceiveOptions::default());
            let mut got = Vec::new();
            decoder.read_to_end(&mut got).await.unwrap();
            assert!(got == raw);
        });
    }

    #[test]
    fn a_stream_without_its_end_is_an_error() {
        let wire = encoded(&text(100_000), "fixed:zstd:level=1");
        run(async {
            let mut got = Vec::new();
            let mut decoder = AsyncDecoder::new(&wire[..wire.len() - 1], ReceiveOptions::default());
            let e = decoder.read_to_end(&mut got).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
        });
    }

    /// Never takes a byte, and counts how often it is asked.
    struct Full(usize);

    impl AsyncWrite for Full {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            self.0 += 1;
            Poll::Pending
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_link_that_takes_nothing_holds_the_writer_back() {
        let raw = noise(1 << 20);
        run(async {
            let mut encoder = AsyncEncoder::new(Full(0), options("fixed:store"));
            let mut taken = 0;
            while let Ok(n) = tokio::time::timeout(Duration::ZERO, encoder.write(&raw)).await {
                taken += n.unwrap();
                assert!(taken < 24 << 20, "more than the memory of a flow");
            }
            assert!(taken > 0 && encoder.get_ref().0 > 0);
        });
    }
}
