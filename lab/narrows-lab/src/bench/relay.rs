//! Emulates a slow link with a delay on the loopback device: relays connections at a rate and after
//! a delay, in both directions. TCP's own handshake is not delayed, and nothing is lost.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes relayed at a time: a few segments, so that a slow link stays smooth.
const PIECE: usize = 8 << 10;
/// Length of the queue before the link, in addition to bytes in flight: 20 ms, but at least
/// `QUEUE_MIN`, which TCP needs to start.
const QUEUE_S: f64 = 0.02;
const QUEUE_MIN: usize = 128 << 10;

pub(super) struct Relay {
    pub(super) port: u16,
    bytes: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Rate; 0 is unlimited.
    pub(super) mbit: u32,
    pub(super) rtt: Duration,
}

impl Relay {
    /// Relays connections to `port` as long as this process lives.
    pub(super) fn start(port: u16, shape: Shape) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = listener.local_addr()?.port();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&bytes);
        // One link per direction, shared by all connections.
        let ways = [(); 2].map(|()| Arc::new(Mutex::new(Instant::now())));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let (Ok(near2), Ok(far2)) = (near.try_clone(), far.try_clone()) else { continue };
                pump(near, far, shape, Arc::clone(&ways[0]), Arc::clone(&counted));
                pump(far2, near2, shape, Arc::clone(&ways[1]), Arc::clone(&counted));
            }
        });
        Ok(Self { port: own, bytes })
    }

    /// Bytes relayed since the last call, in both directions.
    pub(super) fn take_bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Pipe {
    /// Pieces with their arrival times; an empty one is the end.
    pieces: VecDeque<(Instant, Vec<u8>)>,
    len: usize,
}

fn pump(mut from: TcpStream, mut to: TcpStream, shape: Shape, free_at: Arc<Mutex<Instant>>, bytes: Arc<AtomicU64>) {
    let rate = if shape.mbit == 0 { f64::INFINITY } else { f64::from(shape.mbit) * 125_000.0 };
    let room = ((rate.min(1e10) * (QUEUE_S + shape.rtt.as_secs_f64())) as usize).max(QUEUE_MIN);
    let pipe = Arc::new((Mutex::new(Pipe::default()), Condvar::new()));
    let other = Arc::clone(&pipe);
    std::thread::spawn(move || {
        let (pipe, changed) = &*other;
        let lock = || pipe.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut state = lock();
            while state.pieces.is_empty() {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some((at, piece)) = state.pieces.pop_front() else { continue };
            drop(state);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if piece.is_empty() || to.write_all(&piece).is_err() {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            lock().len -= piece.len();
            changed.notify_all();
        }
    });
    std::thread::spawn(move || {
        let (pipe, changed) = &*pipe;
        let mut buf = vec![0; PIECE];
        loop {
            let n = from.read(&mut buf).unwrap_or(0);
            bytes.fetch_add(n as u64, Ordering::Relaxed);
            let leaves_at = {
                let mut free_at = free_at.lock().unwrap_or_else(PoisonError::into_inner);
                *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(n as f64 / rate);
                *free_at
            };
            let mut state = pipe.lock().unwrap_or_else(PoisonError::into_inner);
            while state.len >= room {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.len += n;
            state.pieces.push_back((leaves_at + shape.rtt / 2, buf[..n].to_vec()));
            changed.notify_all();
            if n == 0 {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_after_its_time() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = echo.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut socket, _) = echo.accept().unwrap();
            let mut all = Vec::new();
            socket.read_to_end(&mut all).unwrap();
            socket.write_all(&all).unwrap();
        });
        let relay = Relay::start(port, Shape { mbit: 100, rtt: Duration::from_millis(40) }).unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", relay.port)).unwrap();
        let data: Vec<u8> = (0..500_000u32).map(|i| (i * 7) as u8).collect();
        let begun = Instant::now();
        socket.write_all(&data).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        socket.read_to_end(&mut back).unwrap();
        assert!(back == data && relay.take_bytes() == 1_000_000);
        // Twice 40 ms of link time and one round trip; a busy machine takes longer.
        assert!(begun.elapsed() >= Duration::from_millis(118), "{:?}", begun.elapsed());
    }
}
