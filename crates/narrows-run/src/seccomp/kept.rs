//! State kept between calls: sockets that must stay plain, and accepted connections that nobody
//! took.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::socket::cookie;
use crate::wire::Reason;

/// Marks kept. Beyond this the oldest is forgotten, such as those of sockets that never connected.
const MARKS_MAX: usize = 4096;
/// How long a connection is kept whose process had no descriptor left, or was killed, just when it was accepted. A process that accepts again does it soon.
const UNTAKEN_FOR: Duration = Duration::from_secs(10);
/// Sockets that must stay plain, by the kernel's socket cookie, which is never reused.
#[derive(Default)]
pub(super) struct Marks {
    reasons: HashMap<u64, Reason>,
    order: VecDeque<u64>,
    /// A process has restricted itself (Landlock, own descriptor table), and calls made by the
    /// supervisor would not be restricted.
    pub(super) restricted: bool,
    /// A process of the run has unix sockets, over which descriptors can be passed.
    pub(super) may_pass: bool,
}

impl Marks {
    pub(super) fn put(&mut self, socket: &OwnedFd, reason: Reason) {
        let Ok(cookie) = cookie(socket) else { return };
        if self.reasons.insert(cookie, reason).is_none() {
            self.order.push_back(cookie);
        }
        if self.order.len() > MARKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.reasons.remove(&oldest);
        }
    }

    pub(super) fn of(&self, socket: &OwnedFd) -> Option<Reason> {
        if self.reasons.is_empty() { None } else { self.reasons.get(&cookie(socket).ok()?).copied() }
    }
}

/// A connection that was accepted but that its process could not take: for the next `accept` on the
/// same listener.
struct Left {
    /// The cookie of the listening socket.
    listener: u64,
    socket: Option<OwnedFd>,
    address: Vec<u8>,
    since: Instant,
}

impl Drop for Left {
    fn drop(&mut self) {
        // Nobody took it, so the peer gets a reset.
        if let Some(socket) = self.socket.take() {
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }
}

pub(super) struct Untaken {
    left: VecDeque<Left>,
    max: usize,
}

impl Untaken {
    pub(super) fn new(max: usize) -> Self {
        Self { left: VecDeque::new(), max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn put(&mut self, listener: &OwnedFd, socket: OwnedFd, address: Vec<u8>) {
        let Ok(listener) = cookie(listener) else { return };
        self.left.push_back(Left { listener, socket: Some(socket), address, since: Instant::now() });
        if self.left.len() > self.max {
            self.left.pop_front();
        }
    }

    pub(super) fn take(&mut self, listener: &OwnedFd) -> Option<(OwnedFd, Vec<u8>)> {
        if self.left.is_empty() {
            return None;
        }
        let cookie = cookie(listener).ok()?;
        let at = self.left.iter().position(|left| left.listener == cookie)?;
        let mut left = self.left.remove(at)?;
        Some((left.socket.take()?, std::mem::take(&mut left.address)))
    }

    pub(super) fn forget_old(&mut self) {
        self.left.retain(|left| left.since.elapsed() < UNTAKEN_FOR);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::budget::UNTAKEN_MAX;

    #[test]
    fn what_nobody_took_is_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut clients: Vec<_> = (0..2).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut untaken = Untaken::new(UNTAKEN_MAX);
        let socket = OwnedFd::from(listener.try_clone().unwrap());
        for _ in 0..2 {
            untaken.put(&socket, listener.accept().unwrap().0.into(), vec![7]);
        }
        let other = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(untaken.take(&other).is_none());
        let (taken, address) = untaken.take(&socket).unwrap();
        assert_eq!(address, [7]);
        drop(taken);
        assert_eq!(clients[0].read(&mut [0]).unwrap(), 0);
        drop(untaken);
        assert_eq!(clients[1].read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_oldest_mark_is_forgotten() {
        let (a, b) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (a, b) = (OwnedFd::from(a), OwnedFd::from(b));
        let mut marks = Marks::default();
        assert_eq!(marks.of(&a), None);
        marks.put(&a, Reason::Elsewhere);
        marks.put(&a, Reason::Elsewhere);
        assert_eq!((marks.of(&a), marks.of(&b)), (Some(Reason::Elsewhere), None));
        // As if that many others had been marked after it.
        marks.order.extend(1..MARKS_MAX as u64);
        marks.put(&b, Reason::Shared);
        assert_eq!((marks.of(&a), marks.of(&b)), (None, Some(Reason::Shared)));
    }
}
