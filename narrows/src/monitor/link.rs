//! The rate of the link, from bytes that left the host over time in which the link was busy.
//!
//! An idle or application-limited span is no evidence of the rate. What counts:
//! - a span that begins and ends with unsent bytes in the kernel: the link worked all the time;
//! - an exact busy time, where the transport knows it (virtual links do);
//! - a span in which everything left: only a lower bound;
//! - bytes that were absorbed without ever being unsent (a fast link, or buffers behind it): evidence only once more
//!   was absorbed than buffers usually hold.
//!
//! Update rule and constants: the `balance` design, section 3, step 1.

use super::LinkView;

/// What the driver saw at one write to the link, or at a look between writes (`accepted` 0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkSample {
    /// When the write began and when it returned, on the flow's clock.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Bytes in the kernel that had not left the host, before and after the write.
    pub unsent_before: u64,
    pub unsent_after: u64,
    /// Bytes that the write took.
    pub accepted: u64,
    /// Total time that the link was busy up to `end_ns`, if the transport knows it exactly.
    pub busy_ns: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct LinkMonitor {
    rate_bytes_per_s: f64,
    known: bool,
    accepted: u64,
    unsent: u64,
    last_ns: u64,
    /// Evidence gathered since the last update of the rate.
    evidence_bytes: f64,
    evidence_ns: f64,
    /// Bytes absorbed in a row without the link ever pushing back.
    absorbed: f64,
    busy_ns: u64,
    exact_busy_ns: u64,
}

/// Assumed before anything is known: 2 Gbit/s, between a LAN and a fast WAN; a wrong constant costs little (section 2, 6).
const RATE_ASSUMED: f64 = 250e6;
/// Less than two full packets is no sample.
const EVIDENCE_MIN_BYTES: f64 = 3000.0;
/// A sample of full weight.
const FULL_WEIGHT_NS: f64 = 20e6;
const FULL_WEIGHT_BYTES: f64 = 65_536.0;
/// What socket buffers, congestion windows and queues take before a slow link is felt.
const ABSORB_ALLOWANCE: f64 = 131_072.0;
/// After so much silence the buffers behind the host are taken to be empty again.
const ABSORB_FORGET_NS: u64 = 50_000_000;
/// Rates beyond these are measurement errors: 1 kbit/s and 800 Gbit/s.
const RATE_MIN: f64 = 125.0;
const RATE_MAX: f64 = 100e9;

impl Default for LinkMonitor {
    fn default() -> Self {
        Self {
            rate_bytes_per_s: RATE_ASSUMED,
            known: false,
            accepted: 0,
            unsent: 0,
            last_ns: 0,
            evidence_bytes: 0.0,
            evidence_ns: 0.0,
            absorbed: 0.0,
            busy_ns: 0,
            exact_busy_ns: 0,
        }
    }
}

impl LinkMonitor {
    pub fn observe(&mut self, s: &LinkSample) {
        let begin_ns = s.begin_ns.max(self.last_ns);
        let end_ns = s.end_ns.max(begin_ns);
        if let Some(busy_ns) = s.busy_ns {
            let left = (self.unsent + s.accepted).saturating_sub(s.unsent_after);
            let busy = busy_ns.saturating_sub(self.exact_busy_ns);
            self.exact_busy_ns = busy_ns;
            self.busy_ns += busy;
            self.add_evidence(left as f64, busy as f64);
        } else {
            self.observe_gap(begin_ns - self.last_ns, s.unsent_before);
            self.observe_write(end_ns - begin_ns, s);
        }
        self.accepted += s.accepted;
        self.unsent = s.unsent_after;
        self.last_ns = end_ns;
    }

    /// Between two looks the kernel drained on its own.
    fn observe_gap(&mut self, gap_ns: u64, unsent_now: u64) {
        if self.unsent == 0 {
            if gap_ns > ABSORB_FORGET_NS {
                self.absorbed = 0.0;
            }
            return;
        }
        let left = self.unsent.saturating_sub(unsent_now) as f64;
        if unsent_now > 0 {
            self.busy_ns += gap_ns;
            self.add_evidence(left, gap_ns as f64);
        } else {
            self.add_lower_bound(left, gap_ns as f64);
        }
    }

    fn observe_write(&mut self, write_ns: u64, s: &LinkSample) {
        if s.accepted == 0 {
            return;
        }
        self.busy_ns += write_ns;
        let left = (s.unsent_before + s.accepted).saturating_sub(s.unsent_after) as f64;
        if s.unsent_before > 0 && s.unsent_after > 0 {
            self.absorbed = 0.0;
            self.add_evidence(left, write_ns as f64);
        } else if s.unsent_after == 0 {
            self.absorbed += s.accepted as f64;
            if self.absorbed > ABSORB_ALLOWANCE {
                self.add_evidence(left, write_ns as f64);
            }
        }
    }

    fn add_lower_bound(&mut self, bytes: f64, ns: f64) {
        self.busy_ns += (bytes / self.rate_bytes_per_s * 1e9).min(ns) as u64;
        if bytes >= EVIDENCE_MIN_BYTES && ns > 0.0 {
            let bound = bytes / ns * 1e9;
            if bound > self.rate_bytes_per_s {
                self.add_evidence(bytes, ns);
            } else if bound > 0.5 * self.rate_bytes_per_s {
                self.known = true;
            }
        }
    }

    fn add_evidence(&mut self, bytes: f64, ns: f64) {
        self.evidence_bytes += bytes;
        self.evidence_ns += ns;
        let (bytes, ns) = (self.evidence_bytes, self.evidence_ns);
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
            (self.evidence_bytes, self.evidence_ns) = (0.0, 0.0);
        } else {
            // A drop shows by silence: the rate cannot be higher than what would have brought one more sample.
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

    pub fn view(&self, dry_ns: u64) -> LinkView {
        LinkView {
            rate_bytes_per_s: self.rate_bytes_per_s,
            known: self.known,
            left_host_bytes: self.left_host_bytes(),
            unsent_bytes: self.unsent,
            dry_ns,
        }
    }

    pub fn rate_bytes_per_s(&self) -> f64 {
        self.rate_bytes_per_s
    }

    pub fn left_host_bytes(&self) -> u64 {
        self.accepted.saturating_sub(self.unsent)
    }

    pub fn accepted_bytes(&self) -> u64 {
        self.accepted
    }

    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// When the bytes in the kernel will have left, at the estimated rate.
    pub fn dry_at_ns(&self) -> u64 {
        let drain_ns = self.unsent as f64 / self.rate_bytes_per_s * 1e9;
        self.last_ns.saturating_add(drain_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of `rate` that is kept busy, looked at every millisecond for `ms`.
    fn keep_busy(m: &mut LinkMonitor, from_ns: u64, ms: u64, rate: f64) -> u64 {
        let per_ms = (rate / 1000.0) as u64;
        for i in 0..ms {
            let at = from_ns + i * 1_000_000;
            let sample = LinkSample {
                begin_ns: at,
                end_ns: at + 1000,
                unsent_before: 100_000,
                unsent_after: 100_000 + per_ms,
                accepted: per_ms,
                busy_ns: None,
            };
            m.observe(&sample);
        }
        from_ns + ms * 1_000_000
    }

    #[test]
    fn a_busy_link_is_rated_and_a_step_is_followed() {
        let mut m = LinkMonitor::default();
        let t = keep_busy(&mut m, 0, 100, 12.5e6);
        assert!((m.rate_bytes_per_s() / 12.5e6 - 1.0).abs() < 0.05, "{}", m.rate_bytes_per_s());
        keep_busy(&mut m, t, 200, 1.25e6);
        assert!((m.rate_bytes_per_s() / 1.25e6 - 1.0).abs() < 0.1, "{}", m.rate_bytes_per_s());
    }

    #[test]
    fn idle_time_is_no_evidence() {
        let mut m = LinkMonitor::default();
        keep_busy(&mut m, 0, 100, 12.5e6);
        let before = m.rate_bytes_per_s();
        m.observe(&LinkSample { begin_ns: 200_000_000, end_ns: 200_000_000, ..LinkSample::default() });
        m.observe(&LinkSample { begin_ns: 3_600_000_000_000, end_ns: 3_600_000_000_000, ..LinkSample::default() });
        let small = LinkSample {
            begin_ns: 3_600_000_000_000,
            end_ns: 3_600_000_005_000,
            accepted: 100,
            ..LinkSample::default()
        };
        m.observe(&small);
        assert_eq!(m.rate_bytes_per_s(), before);
    }

    #[test]
    fn silence_lowers_the_rate_before_any_byte_has_left() {
        let mut m = LinkMonitor::default();
        m.observe(&LinkSample { end_ns: 1000, accepted: 8192, unsent_after: 8192, ..LinkSample::default() });
        m.observe(&LinkSample {
            begin_ns: 10_000_000,
            end_ns: 10_000_000,
            unsent_before: 8192,
            unsent_after: 8192,
            ..LinkSample::default()
        });
        assert!(m.rate_bytes_per_s() < 400_000.0);
    }

    #[test]
    fn a_link_that_absorbs_everything_is_believed_after_a_buffer_full() {
        let mut m = LinkMonitor::default();
        for i in 0..20u64 {
            m.observe(&LinkSample {
                begin_ns: i * 10_000,
                end_ns: i * 10_000 + 10_000,
                accepted: 16_384,
                ..LinkSample::default()
            });
            assert_eq!(m.view(0).known, i >= 8);
        }
        assert!(m.rate_bytes_per_s() > 1e9);
    }
}
