//! Measures a TCP connection that is written to, for the link monitor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::Outbox;
use crate::monitor::LinkSample;
use crate::sys;

/// Largest segment of a network device: jumbo frames have 9,000 bytes. The loopback device has 32
/// KiB and more, unless it was configured to behave like a network.
const NETWORK_SEGMENT_MAX: u32 = 9000;

/// Measurements of one connection. The owner of the socket passes it to each call.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    /// The peer is this host.
    same_host: bool,
    backlog: u32,
    /// The last look found nothing unsent. Only [`Meter::write`] adds to that, so the kernel need
    /// not be asked again.
    drained: bool,
}

impl Meter {
    /// A meter for a new connection. `same_host`: the peer is this host.
    pub fn new(same_host: bool) -> Self {
        Self { same_host, backlog: 0, drained: false }
    }

    /// Writes without waiting as much as fits of the first `len` pending bytes. `accepted` of the
    /// sample counts bytes of frames; 0: the socket is full. From here on nothing else may write to
    /// the socket.
    ///
    /// # Errors
    /// If the system call fails for another reason than a full socket or a signal.
    pub fn write(
        &mut self,
        socket: impl AsFd,
        outbox: &mut Outbox,
        len: usize,
        clock: impl Fn() -> u64,
    ) -> io::Result<LinkSample> {
        let socket = socket.as_fd();
        let unsent_before = if self.drained { 0 } else { unsent(socket) };
        let begin_ns = clock();
        let accepted = match sys::send_nowait(socket, &outbox.slices(len)) {
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => return Err(e),
        };
        let end_ns = clock();
        let accepted = outbox.consume(accepted);
        Ok(LinkSample { begin_ns, unsent_before, accepted: accepted as u64, ..self.look(socket, end_ns) })
    }

    /// Observes the connection between writes.
    pub fn look(&mut self, socket: impl AsFd, now_ns: u64) -> LinkSample {
        let socket = socket.as_fd();
        let info = sys::tcp_info(socket);
        let unsent = info.as_ref().map_or_else(|| unsent(socket), |info| u64::from(info.notsent_bytes));
        self.drained = info.is_some() && unsent == 0;
        let (delivery_bytes_per_s, rtt_ns) = self.speed_of(info);
        LinkSample {
            begin_ns: now_ns,
            end_ns: now_ns,
            unsent_before: unsent,
            unsent_after: unsent,
            accepted: 0,
            busy_ns: None,
            unacked: unacked(socket),
            delivery_bytes_per_s,
            rtt_ns,
        }
    }

    /// Within this host, the system's latest sample of the delivery rate. Across a network device,
    /// also one of this host that was configured like a network, the round trip in ns.
    pub(super) fn speed(&self, socket: BorrowedFd<'_>) -> (Option<u64>, Option<u64>) {
        self.speed_of(sys::tcp_info(socket))
    }

    fn speed_of(&self, info: Option<sys::TcpInfo>) -> (Option<u64>, Option<u64>) {
        match info {
            None => (None, None),
            Some(info) if self.same_host && info.segment_bytes > NETWORK_SEGMENT_MAX => {
                (Some(info.delivery_rate_bytes_per_s), None)
            }
            Some(info) => (None, Some(1000 * u64::from(info.rtt_us))),
        }
    }

    /// Sets how much the kernel may hold, as suits a link of this rate.
    pub fn set_rate(&mut self, socket: impl AsFd, rate_bytes_per_s: f64) {
        if let Some(bytes) = Outbox::backlog(rate_bytes_per_s, self.backlog) {
            self.backlog = bytes;
            // Without the option the kernel holds more bytes, about which no new decision is
            // possible; nothing breaks.
            let _ = sys::set_notsent_lowat(socket.as_fd(), bytes);
        }
    }

    /// Lets the kernel hold as much as it likes, for bytes about which nothing is to be decided: a
    /// thread that wakes late does not leave the link idle. [`Self::set_rate`] ends it.
    pub fn hold_all(&mut self, socket: impl AsFd) {
        if self.backlog != u32::MAX {
            self.backlog = u32::MAX;
            let _ = sys::set_notsent_lowat(socket.as_fd(), u32::MAX);
        }
    }
}

/// Bytes in the kernel that have not left the host.
pub(super) fn unsent(socket: BorrowedFd<'_>) -> u64 {
    sys::socket_unsent(socket).unwrap_or(0)
}

/// Bytes that the far end has not acknowledged.
pub(super) fn unacked(socket: BorrowedFd<'_>) -> Option<u64> {
    sys::socket_outstanding(socket)
}
