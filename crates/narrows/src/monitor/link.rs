//! Estimates the rate of the link from the bytes that left the host during the time in which the
//! link was busy.
//!
//! An idle or application-limited span is no evidence of the rate. Evidence is:
//! - an exact busy time, where the transport knows it (virtual links do);
//! - a span that begins and ends with unsent bytes in the kernel: the link pushed back and worked
//!   all the time;
//! - before the link has ever pushed back, the speed at which it takes writes: an upper bound that
//!   a fast link nearly reaches and that a slow one corrects within its first buffers;
//! - behind another program, what the far end reports as received while there was more to receive;
//! - after that, a long span in which it took everything: a lower bound, less what buffers behind
//!   the host may hold.
//!
//! Update rule and constants: `docs/policy.md`, "Update of the rate".

use super::LinkView;
use super::expectation::PeerLink;

mod busy;
mod drain;
mod expected;
mod found;
mod opening;
mod relayed;
mod trial;

use busy::Busy;
use drain::Drain;
use expected::Expected;
use opening::Opening;
use relayed::Relayed;
use trial::Trial;

/// An observation at a write to the link, or between writes (`accepted` 0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkSample {
    /// When the write began, on the flow's clock.
    pub begin_ns: u64,
    /// When the write returned, on the flow's clock.
    pub end_ns: u64,
    /// Bytes in the kernel that had not left the host, before the write. The monitor adds those in a
    /// queue behind the host.
    pub unsent_before: u64,
    /// The same after the write.
    pub unsent_after: u64,
    /// Bytes that the write accepted.
    pub accepted: u64,
    /// Total time in which the link was busy up to `end_ns`, if the transport knows it exactly.
    pub busy_ns: Option<u64>,
    /// Bytes accepted so far that the far end has not acknowledged at `end_ns`, if it acknowledges.
    pub unacked: Option<u64>,
    /// The system's own latest sample of the delivery rate, for connections within this host.
    pub delivery_bytes_per_s: Option<u64>,
    /// The round trip, for connections whose window opens with it.
    pub rtt_ns: Option<u64>,
}

/// Estimator of the rate and backlog of a link.
#[derive(Debug, Clone)]
pub struct LinkMonitor {
    rate_bytes_per_s: f64,
    known: bool,
    in_memory: bool,
    accepted: u64,
    unsent: u64,
    last_ns: u64,
    /// When the last bytes left, while nothing is unsent.
    dry_since_ns: u64,
    evidence: Evidence,
    /// Decayed sums of bytes and nanoseconds of writes, until the link first pushes back.
    copied: (f64, f64),
    /// Observations since the link first pushed back.
    seen: Busy,
    /// Whether a rate was measured while the link pushed back.
    pushed_back: bool,
    /// Bytes acknowledged, for links that report it.
    acked: Option<u64>,
    absorbed: Absorbed,
    busy: BusyTime,
    /// Set if another program is between this host and the link.
    relayed: Option<Relayed>,
    opening: Opening,
    trial: Trial,
    /// Of a link without acknowledgements.
    drain: Drain,
    /// The shortest round trip.
    rtt_ns: Option<u64>,
    /// What is assumed of the link before it is known.
    expected: Expected,
}

/// Evidence gathered since the last update of the rate.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    bytes: f64,
    ns: f64,
}

/// Time in which the link was busy, and what a transport that knows it exactly told last.
#[derive(Debug, Clone, Copy, Default)]
struct BusyTime {
    ns: u64,
    told_ns: u64,
}

/// Bytes accepted since the link last pushed back, and when that was.
#[derive(Debug, Clone, Copy, Default)]
struct Absorbed {
    bytes: f64,
    since_ns: u64,
}

/// Assumed before anything is known: 1 Gbit/s, between a LAN and a fast WAN; a wrong constant costs
/// little (docs/design.md).
const RATE_ASSUMED: f64 = 125e6;
/// Fewer bytes are no sample: two full packets.
const EVIDENCE_MIN_BYTES: f64 = 3000.0;
/// Time or bytes of a sample that gets full weight.
const FULL_WEIGHT_NS: f64 = 20e6;
const FULL_WEIGHT_BYTES: f64 = 65_536.0;
/// Time or bytes needed for a first estimate: bytes leave a real host in bursts, as
/// acknowledgements come.
const KNOWN_NS: f64 = 3e6;
const KNOWN_BYTES: f64 = 262_144.0;
/// Averaging time: four bursts, and at least 40 ms, since acknowledgements behind a queue of 20 ms
/// come about that often. At most two seconds, which cover four round trips to the other side of
/// the world.
const MEMORY_PERIODS: f64 = 4.0;
const MEMORY_MIN_NS: f64 = 40e6;
const MEMORY_MAX_NS: f64 = 2e9;
/// Silence counts only after this time, so that delayed acknowledgements and windows that open in
/// steps can pass.
const SILENCE_NS: f64 = 60e6;
/// The rate assumed before the first measurement weighs as much as a span of this length.
const ASSUMED_NS: f64 = 50e3;
/// Bytes that a shaper and an initial congestion window may let through at once.
const PROVEN_BYTES: u64 = 128 << 10;
/// Bytes over which the speed of writes is averaged: several bursts of a shaper.
const COPY_MEMORY_BYTES: f64 = 524_288.0;
/// Unshaped deliveries within a host have 4 to 26 GB/s, bursts of a shaper at 1 Gbit/s up to 1
/// GB/s. A link that delivers less than `NOT_IN_MEMORY_BELOW` for some milliseconds is shaped after
/// all, or its receiver is slow.
const IN_MEMORY_ABOVE: u64 = 2_500_000_000;
const NOT_IN_MEMORY_BELOW: f64 = 250e6;
const NOT_IN_MEMORY_NS: f64 = 5e6;
/// More unacknowledged bytes than this are in a queue behind the host. In memory a receiver
/// acknowledges every second packet of 64 KiB.
const TRUSTED_BYTES: u64 = 192 << 10;
/// In bytes/s: a link that was found to be faster carries a write of 256 KiB within a millisecond.
const FAST: f64 = 250e6;
/// Fewer bytes behind the host are packets on their way, whose acknowledgement was delayed.
const BEHIND_MIN_BYTES: f64 = 6000.0;
/// A round trip that is longer than the least one by less shows no queue: where all cores are busy, packets and
/// their acknowledgements wait as long for a core. A link of 1 Gbit/s carries 12 KB meanwhile.
const QUEUE_MIN_NS: u64 = 100_000;
/// Most that socket buffers, congestion windows and queues behind the host may hold, in bytes or in
/// time.
const ABSORB_BYTES: f64 = 524_288.0;
const ABSORB_S: f64 = 0.05;
/// Acknowledged bytes are held nowhere, but they may be the burst at the end of a silence.
const ABSORB_ACKED_S: f64 = 0.01;
/// A link that takes 0.8 of the estimate without pushing back is probably faster; the next estimate
/// is higher by this factor.
const ABSORB_SHARE: f64 = 0.8;
const ABSORB_GROWTH: f64 = 1.5;
/// The same factor for a report of the far end; lower, because reports are frequent.
const REPORT_GROWTH: f64 = 1.25;
/// After this time without a write the buffers behind the host are empty again.
const ABSORB_FORGET_NS: u64 = 50_000_000;
/// Rates beyond these are measurement errors: 1 kbit/s and 800 Gbit/s.
const RATE_MIN: f64 = 125.0;
const RATE_MAX: f64 = 100e9;

impl Default for LinkMonitor {
    fn default() -> Self {
        Self {
            rate_bytes_per_s: RATE_ASSUMED,
            known: false,
            in_memory: false,
            accepted: 0,
            unsent: 0,
            last_ns: 0,
            dry_since_ns: 0,
            evidence: Evidence::default(),
            copied: (0.0, 0.0),
            seen: Busy::default(),
            pushed_back: false,
            acked: None,
            absorbed: Absorbed::default(),
            busy: BusyTime::default(),
            relayed: None,
            opening: Opening::default(),
            trial: Trial::default(),
            drain: Drain::default(),
            rtt_ns: None,
            expected: Expected::default(),
        }
    }
}

impl LinkMonitor {
    /// A monitor of a link behind another program, whose far end reports the bytes it has received.
    pub fn relayed() -> Self {
        Self { relayed: Some(Relayed::default()), ..Self::default() }
    }

    /// Starts from the rate of an earlier flow to the same peer. Without effect after the first byte.
    pub fn expect(&mut self, link: &PeerLink) {
        if self.accepted == 0 && !self.known {
            self.expected = Expected::new(link);
            self.set_rate(self.expected.rate_bytes_per_s());
        }
    }

    /// What an earlier flow measured does not hold: back to the usual assumption.
    fn stop_expecting(&mut self) {
        if !self.known && self.expected.is_of_a_peer() {
            self.expected = Expected::default();
            self.set_rate(RATE_ASSUMED);
        }
    }

    /// The link as it was measured, for later flows; `None` if its rate is not known, or is that of a
    /// connection that is still opening.
    pub fn measured(&self) -> Option<PeerLink> {
        let settled = self.known && self.opening.is_open();
        // The last moments of a flow may be its strangest.
        let rate_bytes_per_s = self.seen.mean_bytes_per_s().unwrap_or(self.rate_bytes_per_s);
        settled.then_some(PeerLink { rate_bytes_per_s, rtt_ns: self.rtt_ns })
    }

    /// The far end reports `received` bytes in total.
    pub fn on_report(&mut self, received: u64, now_ns: u64) {
        let Some(relayed) = &mut self.relayed else { return };
        let now_ns = now_ns.max(self.last_ns);
        let evidence = relayed.on_report(received, self.accepted, now_ns);
        let unsent = relayed.kernel_unsent;
        self.known |= relayed.is_proven_fast();
        match evidence {
            Some(e) if e.busy => self.add_evidence(e.bytes, e.ns),
            Some(e) if self.known => {
                // All of it crossed at once: the link is at least this fast, and probably faster.
                let rate = e.bytes / e.ns * 1e9;
                if rate > ABSORB_SHARE * self.rate_bytes_per_s {
                    self.set_rate(self.rate_bytes_per_s.max(rate * REPORT_GROWTH));
                }
            }
            Some(e) if e.bytes / e.ns * 1e9 > 2.0 * self.rate_bytes_per_s => self.stop_expecting(),
            _ => {}
        }
        self.observe_relayed((now_ns, unsent), (now_ns, unsent), 0);
    }

    /// Observes a write on a relayed link. `before` and `after`: time, and bytes in this host's
    /// kernel.
    fn observe_relayed(&mut self, before: (u64, u64), after: (u64, u64), accepted: u64) {
        let ((begin_ns, unsent_before), (end_ns, unsent_after)) = (before, after);
        if self.unsent > 0 {
            let rate = self.known.then_some(self.rate_bytes_per_s);
            let waiting = self.relayed.as_ref().map_or(0, |r| r.waiting(self.accepted, rate, begin_ns));
            // If it ran dry since the last look, assume that it did when predicted.
            let full = waiting > 0 || unsent_before > 0;
            let until_ns = if full { begin_ns } else { self.dry_at_ns().clamp(self.last_ns, begin_ns) };
            self.busy.ns += until_ns - self.last_ns;
        }
        self.accepted += accepted;
        self.last_ns = end_ns;
        let rate = self.known.then_some(self.rate_bytes_per_s);
        if let Some(relayed) = &mut self.relayed {
            if accepted > 0 {
                relayed.on_write(self.accepted, end_ns);
            }
            relayed.on_look(unsent_after);
            self.unsent = relayed.waiting(self.accepted, rate, end_ns).max(unsent_after).min(self.accepted);
        }
    }

    /// Takes an observation.
    pub fn observe(&mut self, s: &LinkSample) {
        if let Some(rtt_ns) = s.rtt_ns.filter(|ns| *ns > 0) {
            self.rtt_ns = Some(self.rtt_ns.map_or(rtt_ns, |least_ns| least_ns.min(rtt_ns)));
            if self.expected.is_of_another_path(self.rtt_ns.unwrap_or(rtt_ns)) {
                self.stop_expecting();
            }
        }
        self.notice_found(s);
        let s = &self.with_queue_behind(s);
        let begin_ns = s.begin_ns.max(self.last_ns);
        let end_ns = s.end_ns.max(begin_ns);
        if s.accepted > 0 {
            self.dry_since_ns = end_ns;
        } else if self.unsent > 0 {
            self.dry_since_ns = self.dry_at_ns().min(begin_ns);
        }
        if self.relayed.is_some() {
            if let Some(relayed) = &mut self.relayed {
                relayed.on_look(s.unsent_before);
            }
            return self.observe_relayed((begin_ns, s.unsent_before), (end_ns, s.unsent_after), s.accepted);
        }
        if let Some(busy_ns) = s.busy_ns {
            let left = (self.unsent + s.accepted).saturating_sub(s.unsent_after);
            let busy = busy_ns.saturating_sub(self.busy.told_ns);
            self.busy.told_ns = busy_ns;
            self.busy.ns += busy;
            self.add_evidence(left as f64, busy as f64);
        } else {
            if s.unacked.is_none() {
                let last = (self.last_ns, self.unsent);
                self.in_memory = self.drain.observe(last, self.accepted, self.rate_bytes_per_s, s);
            }
            if s.unacked.is_some() || self.drain.has_begun(end_ns) {
                self.observe_unless_exact(begin_ns, end_ns, s);
            }
            if !self.pushed_back && self.acked() > self.expected.excused_bytes() {
                self.stop_expecting();
            }
        }
        self.accepted += s.accepted;
        self.unsent = s.unsent_after;
        self.last_ns = end_ns;
    }

    /// Observes a link that knows no exact busy time.
    fn observe_unless_exact(&mut self, begin_ns: u64, end_ns: u64, s: &LinkSample) {
        let crossed = s.unacked.map(|unacked| self.acknowledge(s.accepted, unacked));
        let counted = self.observe_gap((begin_ns, end_ns), s.unsent_before, crossed);
        self.observe_write(begin_ns, end_ns, s, crossed.map(|c| if counted { 0.0 } else { c }));
        self.observe_delivery(s);
        // The least round trip: the present one may be long because a queue is full, and then the
        // path is too.
        if let Some(least_ns) = self.rtt_ns {
            let dry = self.unsent == 0 && s.unsent_before == 0;
            self.opening.observe(end_ns, self.acked(), least_ns, dry);
        }
        // On a fast link what this write handed over cannot be acknowledged yet.
        let is_fast = self.known && self.rate_bytes_per_s > FAST;
        let just_written = if is_fast { s.accepted } else { 0 };
        if !self.pushed_back && s.unacked.is_some_and(|unacked| unacked.saturating_sub(just_written) > TRUSTED_BYTES) {
            self.distrust();
        }
        self.observe_trial(end_ns, s);
    }

    /// A link that carries raw blocks in no time counts as one that never pushed back: what it did
    /// before were pauses, of a window that opened or a receiver that waited for a core.
    fn observe_trial(&mut self, now_ns: u64, s: &LinkSample) {
        let (Some(unacked), Some(rtt_ns)) = (s.unacked, self.rtt_ns) else { return };
        let (known, rate_bytes_per_s) = (self.known, self.rate_bytes_per_s);
        let state = trial::State { now_ns, acked: self.acked(), unacked, known, rate_bytes_per_s, rtt_ns };
        if let Some(rate) = self.trial.observe(&state) {
            (self.pushed_back, self.known) = (false, true);
            self.set_rate(rate);
            self.seen = Busy::default();
        }
    }

    /// Counts bytes in a queue behind this host (a shaper's, a switch's, a modem's) as unsent: the
    /// link works on them.
    fn with_queue_behind(&self, s: &LinkSample) -> LinkSample {
        let (Some(unacked), Some(rtt_ns)) = (s.unacked, s.rtt_ns) else { return *s };
        let in_flight_before = unacked.saturating_sub(s.accepted).saturating_sub(s.unsent_before);
        let in_flight_after = unacked.saturating_sub(s.unsent_after);
        LinkSample {
            unsent_before: s.unsent_before + self.behind(in_flight_before, rtt_ns),
            unsent_after: s.unsent_after + self.behind(in_flight_after, rtt_ns),
            ..*s
        }
    }

    /// Of `in_flight` bytes, those in a queue behind this host. A round trip without a queue takes
    /// the least time seen; the rest of it is spent in the queue, which by Little's law holds that
    /// share of the bytes. Where the rate is known, the path itself holds rate times least round
    /// trip; the lower of both counts, since an assumed queue that is not there would leave the
    /// link dry.
    fn behind(&self, in_flight: u64, rtt_ns: u64) -> u64 {
        let Some(least_ns) = self.rtt_ns.filter(|least_ns| rtt_ns > least_ns + QUEUE_MIN_NS) else { return 0 };
        let waits = 1.0 - least_ns as f64 / rtt_ns.max(least_ns).max(1) as f64;
        let path = if self.known { self.rate_bytes_per_s * least_ns as f64 * 1e-9 } else { 0.0 };
        let behind = (in_flight as f64 * waits).min(in_flight as f64 - path);
        if behind < BEHIND_MIN_BYTES { 0 } else { behind as u64 }
    }

    /// Detects a link in memory: nothing else delivers this fast, once more was delivered than a
    /// shaper lets through at once.
    fn observe_delivery(&mut self, s: &LinkSample) {
        if s.unacked.is_none() {
            return;
        }
        let fast = s.delivery_bytes_per_s.is_some_and(|rate| rate > IN_MEMORY_ABOVE);
        self.in_memory |= fast && self.acked() >= PROVEN_BYTES;
        if self.in_memory && self.seen.total_ns > NOT_IN_MEMORY_NS && self.seen.rate_bytes_per_s() < NOT_IN_MEMORY_BELOW
        {
            self.in_memory = false;
        }
    }

    fn acked(&self) -> u64 {
        self.acked.unwrap_or(0)
    }

    /// Bytes that left the host may be in a queue right behind it, which fills faster than the link
    /// drains it; acknowledged bytes have crossed the link. Returns the bytes acknowledged since
    /// the last look.
    fn acknowledge(&mut self, accepted: u64, unacked: u64) -> f64 {
        let acked = (self.accepted + accepted).saturating_sub(unacked).max(self.acked());
        let crossed = acked - self.acked();
        self.acked = Some(acked);
        crossed as f64
    }

    /// Observes the time between two looks, in which the kernel drained on its own. `crossed`, if
    /// known, is the number of bytes acknowledged meanwhile. Returns whether they were used as
    /// evidence of a full link and must not be counted again.
    fn observe_gap(&mut self, (begin_ns, end_ns): (u64, u64), unsent_now: u64, crossed: Option<f64>) -> bool {
        let gap_ns = begin_ns - self.last_ns;
        if self.unsent == 0 {
            if gap_ns > ABSORB_FORGET_NS {
                self.restart_absorbing(begin_ns);
            }
            return false;
        }
        let left = self.unsent.saturating_sub(unsent_now) as f64;
        if unsent_now > 0 {
            self.busy.ns += gap_ns;
            self.push_back(crossed.unwrap_or(left), gap_ns as f64, begin_ns);
            return true;
        }
        // It ran dry somewhere in between. The burst that took the last bytes may end a silence in
        // which the link did not stand still: peers that open their window in steps, hosts that
        // send large segments, and acknowledgements that arrive together all look like this.
        let carried = crossed.map_or(left, |crossed| crossed.max(left));
        // Acknowledgements are looked at after the write, which takes milliseconds while others have the core.
        let span_ns = if crossed.is_some() { end_ns - self.last_ns } else { gap_ns };
        let busy_ns = (carried / self.rate_bytes_per_s * 1e9).min(span_ns as f64);
        self.busy.ns += busy_ns as u64;
        if self.pushed_back && (crossed.is_some() || !self.known) {
            self.add_busy(crossed.unwrap_or(left), busy_ns);
        } else {
            // The end of the burst is unknown.
            self.seen.silence_ns = 0.0;
        }
        false
    }

    fn observe_write(&mut self, begin_ns: u64, end_ns: u64, s: &LinkSample, crossed: Option<f64>) {
        self.absorbed.bytes += crossed.unwrap_or(0.0);
        if s.accepted == 0 {
            return;
        }
        let write_ns = (end_ns - begin_ns) as f64;
        self.busy.ns += end_ns - begin_ns;
        let left = (s.unsent_before + s.accepted).saturating_sub(s.unsent_after) as f64;
        if s.unsent_before > 0 && s.unsent_after > 0 {
            // Bytes acknowledged during the write are already counted.
            return self.push_back(if crossed.is_some() { 0.0 } else { left }, write_ns, end_ns);
        }
        if crossed.is_none() {
            self.absorbed.bytes += left;
        }
        if !self.pushed_back {
            // The cost of a system call is no evidence of the copying speed, nor is a copy that has
            // not crossed yet.
            match crossed {
                None if left >= EVIDENCE_MIN_BYTES => self.add_evidence(left, write_ns),
                Some(_) if left >= EVIDENCE_MIN_BYTES && self.acked() >= PROVEN_BYTES => self.add_copy(left, write_ns),
                _ => {}
            }
            return;
        }
        if !self.known && crossed.is_none() {
            return self.add_busy(left, write_ns);
        }
        let held_s = if crossed.is_some() { ABSORB_ACKED_S } else { ABSORB_S };
        let held = ABSORB_BYTES.max(held_s * self.rate_bytes_per_s);
        let bound = (self.absorbed.bytes - held) / (end_ns - self.absorbed.since_ns).max(1) as f64 * 1e9;
        if bound > ABSORB_SHARE * self.rate_bytes_per_s {
            self.set_rate(self.rate_bytes_per_s.max(bound) * ABSORB_GROWTH);
            self.known = true;
            self.seen = Busy::assumed(self.rate_bytes_per_s, ASSUMED_NS);
            self.restart_absorbing(end_ns);
        }
    }

    /// Adds bytes that a write carried all the way. What a shaper lets through at once after a pause
    /// goes at the speed of memory, and the next write takes as long as the link: only their sum
    /// shows its rate.
    fn add_copy(&mut self, bytes: f64, ns: f64) {
        let kept = (-bytes / COPY_MEMORY_BYTES).exp();
        self.copied = (kept * self.copied.0 + bytes, kept * self.copied.1 + ns);
        if self.copied.0 >= PROVEN_BYTES as f64 {
            self.set_rate(self.copied.0 / self.copied.1.max(1.0) * 1e9);
            self.known = true;
        }
    }

    /// The link was busy throughout and could not take more.
    fn push_back(&mut self, left: f64, ns: f64, now_ns: u64) {
        if !self.pushed_back {
            self.distrust();
        }
        self.restart_absorbing(now_ns);
        self.add_busy(left, ns);
    }

    /// Drops the estimate so far: it was the speed of a copy into a buffer.
    fn distrust(&mut self) {
        (self.pushed_back, self.known) = (true, false);
        self.set_rate(self.rate_bytes_per_s.min(self.expected.rate_bytes_per_s()));
        self.seen = Busy::assumed(self.rate_bytes_per_s, self.expected.weight_ns(self.rtt_ns));
    }

    /// Adds bytes that left during busy time, possibly in bursts.
    fn add_busy(&mut self, bytes: f64, ns: f64) {
        self.seen.add(bytes, ns);
        self.known |= self.seen.is_enough();
        self.set_rate(self.seen.rate_bytes_per_s());
    }

    fn restart_absorbing(&mut self, now_ns: u64) {
        self.absorbed = Absorbed { bytes: 0.0, since_ns: now_ns };
    }

    /// Adds bytes that left smoothly during busy time.
    fn add_evidence(&mut self, bytes: f64, ns: f64) {
        self.evidence.bytes += bytes;
        self.evidence.ns += ns;
        let Evidence { bytes, ns } = self.evidence;
        if ns <= 0.0 {
            return;
        }
        if bytes >= EVIDENCE_MIN_BYTES {
            let rate = bytes / ns * 1e9;
            if self.known {
                let q = (rate / self.rate_bytes_per_s).ln();
                let weight = (ns / FULL_WEIGHT_NS).min(1.0).max((bytes / FULL_WEIGHT_BYTES).min(1.0));
                // A jump is followed in one or two steps, noise is averaged.
                let gain = if q.abs() > 0.7 { 0.8 } else { 0.35 };
                self.set_rate(self.rate_bytes_per_s * (gain * weight * q).exp());
            } else {
                self.set_rate(rate);
                self.known = true;
            }
            self.evidence = Evidence::default();
        } else {
            // A drop shows as silence: a higher rate would have brought one more sample by this
            // time.
            let patience_ns =
                if self.known { (2.5 * EVIDENCE_MIN_BYTES / self.rate_bytes_per_s * 1e9).max(1e6) } else { 0.0 };
            if ns > patience_ns {
                self.set_rate(self.rate_bytes_per_s.min((bytes + EVIDENCE_MIN_BYTES) / ns * 1e9));
            }
        }
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate_bytes_per_s = rate.clamp(RATE_MIN, RATE_MAX);
    }

    /// The view of the link for a policy. `dry_ns`: time in which the link was dry so far.
    pub fn view(&self, dry_ns: u64) -> LinkView {
        LinkView {
            rate_bytes_per_s: self.rate_bytes_per_s(),
            opening: !self.opening.is_open(),
            rtt_ns: self.rtt_ns,
            unanswered: self.accepted == 0 || self.acked == Some(0),
            known: self.known,
            left_host_bytes: self.left_host_bytes(),
            unsent_bytes: self.unsent,
            dry_ns,
            in_memory: self.in_memory,
            trial_bytes: self.trial.wanted_bytes(),
            expected: !self.known && self.expected.is_of_a_peer(),
        }
    }

    /// Whether the far end's reports are all that is seen of the link.
    pub fn is_relayed(&self) -> bool {
        self.relayed.is_some()
    }

    /// Whether the link lies within memory.
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Whether the rate was measured.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Expected rate of the link while the blocks chosen at this time leave, in bytes per second.
    pub fn rate_bytes_per_s(&self) -> f64 {
        (self.rate_bytes_per_s * self.opening.factor()).min(RATE_MAX)
    }

    /// Wire bytes that have left the host.
    pub fn left_host_bytes(&self) -> u64 {
        self.accepted.saturating_sub(self.unsent)
    }

    /// Wire bytes that the link has accepted.
    pub fn accepted_bytes(&self) -> u64 {
        self.accepted
    }

    /// Bytes that had not left the host at the last look.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent
    }

    /// Time of the last look or write.
    pub fn last_look_ns(&self) -> u64 {
        self.last_ns
    }

    /// Time in which the link was busy.
    pub fn busy_ns(&self) -> u64 {
        self.busy.ns
    }

    /// When the bytes in the kernel will have left, at the estimated rate.
    pub fn dry_at_ns(&self) -> u64 {
        if self.unsent == 0 {
            return self.dry_since_ns;
        }
        let drain_ns = self.unsent as f64 / self.rate_bytes_per_s() * 1e9;
        self.last_ns.saturating_add(drain_ns as u64)
    }
}

#[cfg(test)]
mod tests;
