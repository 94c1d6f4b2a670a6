//! A link of a given rate inside the process: a relay between two loopback connections whose rate
//! is limited by a token bucket.
//!
//! Its receive buffer is small, so that the sender is slowed by the link and not hidden from it by
//! a buffer. It needs no privileges.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use narrows::transport;

/// Smallest and largest piece forwarded at once, in bytes; in between it is [`PIECE_SECONDS`] of
/// the link.
const PIECE_MIN: usize = 1500;
const PIECE_MAX: usize = 64 << 10;
const PIECE_SECONDS: f64 = 0.002;
/// Depth of the bucket. A deeper one would pass bursts that a real link of this rate does not
/// carry.
const BUCKET_SECONDS: f64 = 0.004;

/// A relay for one connection; it ends with the connection.
pub(crate) struct Shaper {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<io::Result<u64>>,
}

impl Shaper {
    /// Listens on loopback and relays one connection to `to`, `rate_bytes_per_s` forward and unshaped back.
    pub(crate) fn start(to: SocketAddr, rate_bytes_per_s: f64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let piece = ((rate_bytes_per_s * PIECE_SECONDS) as usize).clamp(PIECE_MIN, PIECE_MAX);
        // Set before a connection is accepted, because that fixes its announced window. The kernel
        // doubles the value.
        transport::set_receive_buffer(&listener, 4 * piece)?;
        let address = listener.local_addr()?;
        let thread = std::thread::spawn(move || relay(&listener, to, rate_bytes_per_s, piece));
        Ok(Self { address, thread })
    }

    /// Waits for the connection to end; returns the number of bytes forwarded.
    pub(crate) fn join(self) -> io::Result<u64> {
        self.thread.join().map_err(|_| io::Error::other("the shaper failed"))?
    }
}

fn relay(listener: &TcpListener, to: SocketAddr, rate: f64, piece: usize) -> io::Result<u64> {
    let (mut from, _) = listener.accept()?;
    let mut onward = TcpStream::connect(to)?;
    onward.set_nodelay(true)?;
    from.set_nodelay(true)?;
    let (mut back_from, mut back_to) = (onward.try_clone()?, from.try_clone()?);
    let back = std::thread::spawn(move || {
        let _ = io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(std::net::Shutdown::Write);
    });
    let mut bucket = Bucket::new(rate);
    let mut buf = vec![0; piece];
    let mut forwarded = 0;
    loop {
        let n = match from.read(&mut buf) {
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        std::thread::sleep(bucket.take(n, Instant::now()));
        if onward.write_all(&buf[..n]).is_err() {
            break;
        }
        forwarded += n as u64;
    }
    let _ = onward.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
    Ok(forwarded)
}

/// Token bucket: computes how long to wait before a number of bytes may be sent.
struct Bucket {
    rate: f64,
    /// When the link will have carried everything passed so far.
    free_at: Option<Instant>,
}

impl Bucket {
    fn new(rate: f64) -> Self {
        Self { rate, free_at: None }
    }

    fn take(&mut self, bytes: usize, now: Instant) -> Duration {
        let carry = Duration::from_secs_f64(bytes as f64 / self.rate);
        // Unused capacity is lost, except for a few milliseconds that compensate for sleeps that
        // were too long.
        let earliest = now.checked_sub(Duration::from_secs_f64(BUCKET_SECONDS)).unwrap_or(now);
        let begin = self.free_at.unwrap_or(now).max(earliest);
        self.free_at = Some(begin + carry);
        (begin + carry).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_lets_through_what_the_rate_carries() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(1_000_000.0);
        let mut now = begin;
        for _ in 0..1000 {
            now += bucket.take(1000, now);
        }
        let seconds = (now - begin).as_secs_f64();
        assert!((seconds - 1.0).abs() < 0.01, "{seconds}");
        // Idle time is not saved up beyond a few milliseconds.
        now += Duration::from_secs(5);
        let mut wait = Duration::ZERO;
        for _ in 0..20 {
            wait = bucket.take(1000, now);
        }
        assert!(wait.as_secs_f64() > 0.015, "{wait:?}");
    }

    #[test]
    fn every_byte_is_forwarded_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shaper = Shaper::start(listener.local_addr().unwrap(), 50e6).unwrap();
        let mut near = TcpStream::connect(shaper.address).unwrap();
        let far = std::thread::spawn(move || {
            let (mut far, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).unwrap();
            far.write_all(b"thanks").unwrap();
            bytes.len()
        });
        near.write_all(&vec![7; 500_000]).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).unwrap();
        assert_eq!((far.join().unwrap(), &answer[..]), (500_000, &b"thanks"[..]));
        assert_eq!(shaper.join().unwrap(), 500_000);
    }
}
