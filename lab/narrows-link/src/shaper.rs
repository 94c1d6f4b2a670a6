//! One direction of a link, without I/O or clock: a queue, a server with a rate or a trace, losses,
//! a delay line. Time is an argument, in nanoseconds, and never runs backwards.
//!
//! A packet's departure depends only on its arrival and the timetable, never on when the caller
//! polls: a caller that polls late gets packets late, but the next ones are on time again.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::loss::{Loss, Losses};
use crate::rng::Rng;
use crate::trace::{OPPORTUNITY_BYTES, Trace};

/// Memory limit for the queue and delay line of a direction together, whatever rate and delay are:
/// with full packets a second at 2 Gbit/s.
const MEMORY_MAX: usize = 256 << 20;
/// Picoseconds per nanosecond. Service times are kept in picoseconds: one packet at 1 Gbit/s takes
/// 12,000 ns, and thousands of rounding errors must not add up.
const PS: u128 = 1000;

/// Properties of a direction during one stretch of a timetable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) rate_bits_per_s: Option<u64>,
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) burst_bytes: u64,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) reorder: bool,
    pub(crate) loss: Loss,
    pub(crate) queue_bytes: u64,
}

/// Shapes with their start times, the first one at 0; they restart after `period_ns`.
#[derive(Clone, Debug)]
pub(crate) struct Timetable {
    changes: Vec<(u64, Shape)>,
    period_ns: Option<u64>,
}

impl Timetable {
    /// Requires that `changes` begin at 0 and rise, and that the period is longer than the last
    /// one.
    pub(crate) fn new(changes: Vec<(u64, Shape)>, period_ns: Option<u64>) -> Self {
        debug_assert!(changes.first().is_some_and(|c| c.0 == 0) && changes.is_sorted_by(|a, b| a.0 < b.0));
        Self { changes, period_ns }
    }

    /// Time of change number `index`, counted over all repetitions.
    fn time(&self, index: u64) -> Option<u64> {
        let n = self.changes.len() as u64;
        let cycle = index / n;
        let start = if cycle == 0 { 0 } else { cycle.checked_mul(self.period_ns?)? };
        Some(start + self.changes[(index % n) as usize].0)
    }

    fn shape(&self, index: u64) -> &Shape {
        &self.changes[(index % self.changes.len() as u64) as usize].1
    }
}

/// Packet counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets delivered.
    pub packets: u64,
    /// Bytes delivered, IP headers included.
    pub bytes: u64,
    /// Packets dropped because the queue was full.
    pub queue_dropped: u64,
    /// Packets lost by the link's loss model.
    pub lost: u64,
    /// Packets dropped because the device at the other end was full. Any such drop voids a
    /// measurement.
    pub device_dropped: u64,
}

struct Waiting<T> {
    item: T,
    len: u64,
    arrived_ps: u128,
}

struct Travelling<T> {
    item: T,
    len: u64,
    due_ns: u64,
}

pub(crate) struct Shaper<T> {
    timetable: Timetable,
    /// Time at which the timetable began.
    origin_ns: u64,
    /// Number of the timetable's next change.
    next_change: u64,
    shape: Shape,
    queue: VecDeque<Waiting<T>>,
    queued_bytes: u64,
    /// Time at which the service of the first packet of the queue ends.
    head_ps: Option<u128>,
    /// Time until which the rate is used up.
    served_ps: u128,
    /// The trace's next unused opportunity, the bytes left of the last used one, and until when
    /// those can be used.
    opportunity: u64,
    left_bytes: u64,
    left_ns: u64,
    line: VecDeque<Travelling<T>>,
    /// Most packets that queue and line may hold together.
    held_max: usize,
    losses: Losses,
    rng: Rng,
    /// Items of lost packets, for callers that reuse their memory.
    lost: Vec<T>,
    counters: Counters,
}

impl<T> Shaper<T> {
    /// `buffer_bytes` is the memory that each item takes, however short its packet is.
    pub(crate) fn new(timetable: Timetable, seed: u64, buffer_bytes: usize) -> Self {
        Self {
            shape: timetable.shape(0).clone(),
            timetable,
            origin_ns: 0,
            next_change: 1,
            queue: VecDeque::new(),
            queued_bytes: 0,
            head_ps: None,
            served_ps: 0,
            opportunity: 0,
            left_bytes: 0,
            left_ns: 0,
            line: VecDeque::new(),
            held_max: MEMORY_MAX / (buffer_bytes + size_of::<Waiting<T>>().max(size_of::<Travelling<T>>())),
            losses: Losses::new(seed),
            rng: Rng(!seed),
            lost: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Adds an arriving packet. Returns the item as error if the queue is full.
    pub(crate) fn push(&mut self, now_ns: u64, len: usize, item: T) -> Result<(), T> {
        self.advance(now_ns);
        let len = len as u64;
        let queued = self.queued_bytes + len;
        if queued > self.shape.queue_bytes || self.queue.len() + self.line.len() >= self.held_max {
            self.counters.queue_dropped += 1;
            return Err(item);
        }
        self.queued_bytes = queued;
        self.queue.push_back(Waiting { item, len, arrived_ps: u128::from(now_ns) * PS });
        if self.head_ps.is_none() {
            self.serve_head();
            // Without a rate service takes no time.
            self.serve_until(u128::from(now_ns) * PS);
        }
        Ok(())
    }

    /// The next packet that has arrived at the other end by now, and its length.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(T, u64)> {
        self.advance(now_ns);
        if self.line.front()?.due_ns > now_ns {
            return None;
        }
        let packet = self.line.pop_front()?;
        self.counters.packets += 1;
        self.counters.bytes += packet.len;
        Some((packet.item, packet.len))
    }

    /// Time of the next poll by `pop`; packets may come out later than that, never earlier.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let travelling = self.line.front().map(|p| p.due_ns);
        let waiting = self.head_ps.map(|head| {
            let served = head.div_ceil(PS) as u64 + self.shape.delay_ns - self.shape.jitter_ns;
            self.change_ns().map_or(served, |change| served.min(change))
        });
        travelling.into_iter().chain(waiting).min()
    }

    /// Whether packets queue for the rate: then the exact time of the next arrival does not matter.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.len() > 1
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn count_device_drop(&mut self, len: u64) {
        self.counters.packets -= 1;
        self.counters.bytes -= len;
        self.counters.device_dropped += 1;
    }

    pub(crate) fn lost_items(&mut self) -> impl Iterator<Item = T> + '_ {
        self.lost.drain(..)
    }

    /// Replaces the timetable; its time 0 is now. Packets in flight are not affected.
    pub(crate) fn set_timetable(&mut self, now_ns: u64, timetable: Timetable) {
        self.advance(now_ns);
        self.origin_ns = now_ns;
        let shape = timetable.shape(0).clone();
        self.timetable = timetable;
        self.next_change = 1;
        self.change(u128::from(now_ns) * PS, shape);
    }

    fn change_ns(&self) -> Option<u64> {
        self.timetable.time(self.next_change).map(|t| t.saturating_add(self.origin_ns))
    }

    fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.change_ns().filter(|at| *at <= now_ns) {
            let at_ps = u128::from(at_ns) * PS;
            self.serve_until(at_ps);
            let shape = self.timetable.shape(self.next_change).clone();
            self.next_change += 1;
            self.change(at_ps, shape);
        }
        self.serve_until(u128::from(now_ns) * PS);
    }

    /// Changes the shape. The packet in service keeps the part that was served already.
    fn change(&mut self, at_ps: u128, shape: Shape) {
        let before = std::mem::replace(&mut self.shape, shape);
        if before.rate_bits_per_s == self.shape.rate_bits_per_s && before.trace == self.shape.trace {
            return;
        }
        self.left_bytes = 0;
        if self.shape.trace != before.trace {
            self.opportunity = 0;
        }
        let Some(head_ps) = self.head_ps.take() else {
            self.served_ps = self.served_ps.min(at_ps);
            return;
        };
        let whole = self.queue.front().map_or(0, |p| p.len);
        let left_ps = head_ps.saturating_sub(at_ps);
        // Bits * 10^12 / rate is the time, so this is the rest of the packet in units of 1/10^12
        // bit.
        let left =
            before.rate_bits_per_s.map_or(u128::from(whole) * 8 * 1_000_000_000_000, |r| left_ps * u128::from(r));
        match self.shape.rate_bits_per_s {
            Some(rate) => {
                self.served_ps = at_ps + left / u128::from(rate);
                self.head_ps = Some(self.served_ps);
            }
            None => {
                self.served_ps = at_ps;
                if let Some(head) = self.queue.front_mut() {
                    head.arrived_ps = at_ps;
                }
                self.serve_head();
            }
        }
    }

    /// Computes when the service of the first packet of the queue ends.
    fn serve_head(&mut self) {
        let Some(head) = self.queue.front() else {
            self.head_ps = None;
            return;
        };
        let (len, arrived_ps) = (head.len, head.arrived_ps);
        if let Some(trace) = &self.shape.trace {
            let from_ns = arrived_ps.max(self.served_ps).div_ceil(PS) as u64;
            let mut need = len;
            if self.left_ns >= from_ns {
                let taken = need.min(self.left_bytes);
                need -= taken;
                self.left_bytes -= taken;
            }
            if need > 0 {
                let mut at = self.opportunity.max(trace.first_at(from_ns));
                at += need.div_ceil(OPPORTUNITY_BYTES) - 1;
                self.left_bytes = need.next_multiple_of(OPPORTUNITY_BYTES) - need;
                self.left_ns = trace.time_ns(at);
                self.opportunity = at + 1;
            }
            self.head_ps = Some(u128::from(self.left_ns.max(from_ns)) * PS);
            return;
        }
        let Some(rate) = self.shape.rate_bits_per_s else {
            self.head_ps = Some(arrived_ps.max(self.served_ps));
            return;
        };
        let time = |bytes: u64| u128::from(bytes) * 8 * 1_000_000_000_000 / u128::from(rate);
        self.served_ps = self.served_ps.max(arrived_ps.saturating_sub(time(self.shape.burst_bytes))) + time(len);
        self.head_ps = Some(self.served_ps.max(arrived_ps));
    }

    fn serve_until(&mut self, until_ps: u128) {
        while let Some(head_ps) = self.head_ps.filter(|h| *h <= until_ps) {
            let Some(packet) = self.queue.pop_front() else { break };
            self.queued_bytes -= packet.len;
            if self.shape.rate_bits_per_s.is_none() {
                self.served_ps = head_ps;
            }
            if self.losses.next(&self.shape.loss) {
                self.counters.lost += 1;
                self.lost.push(packet.item);
            } else {
                self.travel(head_ps.div_ceil(PS) as u64, packet.item, packet.len);
            }
            self.serve_head();
        }
    }

    fn travel(&mut self, from_ns: u64, item: T, len: u64) {
        let jitter = (self.rng.unit() * 2.0 * self.shape.jitter_ns as f64) as u64;
        let mut due_ns = from_ns + self.shape.delay_ns - self.shape.jitter_ns + jitter;
        let mut place = self.line.len();
        if self.shape.reorder {
            place = self.line.partition_point(|p| p.due_ns <= due_ns);
        } else if let Some(last) = self.line.back() {
            due_ns = due_ns.max(last.due_ns);
        }
        self.line.insert(place, Travelling { item, len, due_ns });
    }
}

#[cfg(test)]
#[path = "shaper_tests.rs"]
mod tests;
