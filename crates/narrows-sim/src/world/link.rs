//! Model of the kernel's buffer and the link behind it: an in-order fluid whose rate changes in
//! steps.

use std::collections::VecDeque;

use narrows::codec::Method;
use narrows::oracle::Speed;

use super::bucket::Bucket;
use super::host::Host;

/// Limit of the kernel's unsent bytes: 2 ms of link, but at least room for two full writes.
const KERNEL_S: f64 = 0.002;
const KERNEL_MIN: f64 = 16_384.0;

/// A data frame between the sender and the receiver.
pub(super) struct InFlight {
    /// Offset of its end on the wire.
    pub(super) wire_end: u64,
    pub(super) wire_len: u64,
    pub(super) raw_len: usize,
    pub(super) method: Method,
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
    /// Of a link that is shaped behind a host.
    shaper: Option<Shaper>,
}

/// What a host has between its socket and the cable, and what it hears of the other end.
struct Shaper {
    bucket: Bucket,
    queue_bytes: f64,
    ack_delay_ns: f64,
    /// (Time, bytes that had left) of the latest moments, for acknowledgements, which come later.
    left: VecDeque<(u64, f64)>,
}

impl Link {
    pub(super) fn new(speed: Speed, host: Option<&Host>) -> Self {
        let shaper = host.map(|h| Shaper {
            bucket: Bucket::new(h.line_bytes_per_s, h.burst_bytes, speed.at(0.0)),
            queue_bytes: h.queue_bytes,
            ack_delay_ns: h.ack_delay_ns,
            left: VecDeque::from([(0, 0.0)]),
        });
        Self {
            speed,
            in_hand: 0,
            wanted: true,
            accepted: 0,
            departed: 0.0,
            busy_ns: 0.0,
            frames: VecDeque::new(),
            shaper,
        }
    }

    /// Bytes that the socket has not sent.
    fn waiting(&self) -> f64 {
        let queue = self.shaper.as_ref().map_or(0.0, |s| s.queue_bytes);
        self.accepted as f64 - self.departed - queue
    }

    pub(super) fn unsent(&self) -> u64 {
        self.waiting().max(0.0).ceil() as u64
    }

    /// Bytes that are not acknowledged, and the round trip; `None` if the link tells its busy time.
    pub(super) fn acknowledged(&self, now_ns: u64) -> Option<(u64, u64)> {
        let s = self.shaper.as_ref()?;
        let at_ns = now_ns as f64 - s.ack_delay_ns;
        let after = s.left.iter().position(|l| l.0 as f64 > at_ns);
        let acked = match after {
            None => s.left.back().map_or(0.0, |l| l.1),
            Some(0) => 0.0,
            Some(i) => {
                let (a, b) = (s.left[i - 1], s.left[i]);
                a.1 + (b.1 - a.1) * (at_ns - a.0 as f64) / (b.0 - a.0) as f64
            }
        };
        let queued = (self.accepted as f64 - self.departed).min(s.queue_bytes) - s.bucket.tokens();
        let rtt_ns = s.ack_delay_ns + queued.max(0.0) / self.speed.at(now_ns as f64 * 1e-9) * 1e9;
        Some(((self.accepted as f64 - acked).max(0.0).ceil() as u64, rtt_ns as u64))
    }

    /// Rate that its bytes would have if the cores allowed it; 0 if there are none.
    pub(super) fn wants(&mut self, now_ns: u64) -> f64 {
        let rate = self.speed.at(now_ns as f64 * 1e-9);
        let Some(s) = &mut self.shaper else { return 0.0 };
        s.bucket.set_rate(rate);
        if self.accepted as f64 > self.departed { s.bucket.wants() } else { 0.0 }
    }

    /// Sets the rate that the cores allow.
    pub(super) fn limit(&mut self, bytes_per_s: f64) {
        self.shaper.iter_mut().for_each(|s| s.bucket.cap = bytes_per_s);
    }

    /// Time at which `bytes` more have left.
    fn finish_ns(&self, from_ns: u64, bytes: f64) -> u64 {
        let at_ns = match &self.shaper {
            None => self.speed.finish(from_ns as f64 * 1e-9, bytes) * 1e9,
            Some(s) => from_ns as f64 + s.bucket.finish_s(bytes).min(s.bucket.until_empty_s()) * 1e9,
        };
        at_ns.ceil() as u64
    }

    fn kernel_max(&self, now_ns: u64) -> f64 {
        (self.speed.at(now_ns as f64 * 1e-9) * KERNEL_S).max(KERNEL_MIN)
    }

    pub(super) fn accept(&mut self, now_ns: u64) -> u64 {
        let (max, unsent) = (self.kernel_max(now_ns), self.waiting());
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
        let frame =
            self.frames.front().filter(|f| f.wire_end <= self.accepted).map(|f| f.wire_end as f64 - self.departed);
        let room = (self.in_hand > 0).then(|| (self.waiting() - 0.5 * self.kernel_max(now_ns)).max(0.0));
        let Some(bytes) = frame.into_iter().chain(room).reduce(f64::min) else { return u64::MAX };
        self.finish_ns(now_ns, bytes)
    }

    /// Advances the link, and returns the frames that have arrived completely.
    pub(super) fn flow(&mut self, from_ns: u64, to_ns: u64) -> Vec<InFlight> {
        let unsent = self.accepted as f64 - self.departed;
        if let Some(s) = &mut self.shaper {
            let (passed, busy_s) = s.bucket.pass((to_ns - from_ns) as f64 * 1e-9, unsent.max(0.0));
            self.departed += passed;
            self.busy_ns += busy_s * 1e9;
            s.left.push_back((to_ns, self.departed));
            while s.left.get(1).is_some_and(|l| (l.0 as f64) < to_ns as f64 - s.ack_delay_ns) {
                s.left.pop_front();
            }
            return self.arrived();
        }
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
        self.arrived()
    }

    fn arrived(&mut self) -> Vec<InFlight> {
        // Times are whole nanoseconds and sums are rounded, so a thousandth of a byte is tolerated.
        let arrived = self.frames.iter().take_while(|f| f.wire_end as f64 <= self.departed + 1e-3).count();
        self.frames.drain(..arrived).collect()
    }
}
