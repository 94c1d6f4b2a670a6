//! Model of the kernel's buffer and the link behind it: an in-order fluid whose rate changes in
//! steps.

use std::collections::VecDeque;

use narrows::oracle::Speed;

/// Limit of the kernel's unsent bytes: 2 ms of link, but at least room for two full writes.
const KERNEL_S: f64 = 0.002;
const KERNEL_MIN: f64 = 16_384.0;

/// A data frame between the sender and the receiver.
pub(super) struct InFlight {
    /// Offset of its end on the wire.
    pub(super) wire_end: u64,
    pub(super) wire_len: u64,
    pub(super) raw_len: usize,
    pub(super) linked: bool,
    pub(super) decode_ns: f64,
}

/// The kernel's buffer and the link behind it.
pub(super) struct Link {
    speed: Speed,
    /// Bytes of the driver's current frame that the kernel has not accepted yet.
    pub(super) in_hand: u64,
    /// Whether the kernel accepts bytes. Once full, it waits until half of its bytes have left.
    pub(super) wanted: bool,
    pub(super) accepted: u64,
    departed: f64,
    pub(super) busy_ns: f64,
    pub(super) frames: VecDeque<InFlight>,
}

impl Link {
    pub(super) fn new(speed: Speed) -> Self {
        Self { speed, in_hand: 0, wanted: true, accepted: 0, departed: 0.0, busy_ns: 0.0, frames: VecDeque::new() }
    }

    pub(super) fn unsent(&self) -> u64 {
        (self.accepted as f64 - self.departed).max(0.0).ceil() as u64
    }

    fn kernel_max(&self, now_ns: u64) -> f64 {
        (self.speed.at(now_ns as f64 * 1e-9) * KERNEL_S).max(KERNEL_MIN)
    }

    pub(super) fn accept(&mut self, now_ns: u64) -> u64 {
        let (max, unsent) = (self.kernel_max(now_ns), self.accepted as f64 - self.departed);
        if !self.wanted && unsent > 0.5 * max {
            return 0;
        }
        let take = ((max - unsent).max(0.0) as u64).min(self.in_hand);
        self.wanted = take == self.in_hand;
        self.accepted += take;
        self.in_hand -= take;
        take
    }

    /// Time at which the next frame has arrived or the kernel accepts bytes again.
    pub(super) fn next_ns(&self, now_ns: u64) -> u64 {
        let unsent = self.accepted as f64 - self.departed;
        let frame =
            self.frames.front().filter(|f| f.wire_end <= self.accepted).map(|f| f.wire_end as f64 - self.departed);
        let room = (self.in_hand > 0).then(|| (unsent - 0.5 * self.kernel_max(now_ns)).max(0.0));
        let Some(bytes) = frame.into_iter().chain(room).reduce(f64::min) else { return u64::MAX };
        (self.speed.finish(now_ns as f64 * 1e-9, bytes) * 1e9).ceil() as u64
    }

    /// Advances the link, and returns the frames that have arrived completely.
    pub(super) fn flow(&mut self, from_ns: u64, to_ns: u64) -> Vec<InFlight> {
        let unsent = self.accepted as f64 - self.departed;
        if unsent <= 0.0 {
            return Vec::new();
        }
        let (from_s, to_s) = (from_ns as f64 * 1e-9, to_ns as f64 * 1e-9);
        let most = self.speed.work_until(to_s) - self.speed.work_until(from_s);
        if most < unsent {
            self.busy_ns += (to_ns - from_ns) as f64;
            self.departed += most;
        } else {
            let dry_ns = self.speed.finish(from_s, unsent) * 1e9;
            self.busy_ns += (dry_ns - from_ns as f64).clamp(0.0, (to_ns - from_ns) as f64);
            self.departed = self.accepted as f64;
        }
        // Times are whole nanoseconds and sums are rounded, so a thousandth of a byte is tolerated.
        let arrived = self.frames.iter().take_while(|f| f.wire_end as f64 <= self.departed + 1e-3).count();
        self.frames.drain(..arrived).collect()
    }
}
