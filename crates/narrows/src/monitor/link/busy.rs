//! The average rate of a busy link over its bursts.

use super::{EVIDENCE_MIN_BYTES, KNOWN_BYTES, KNOWN_NS, MEMORY_MAX_NS, MEMORY_MIN_NS, MEMORY_PERIODS, SILENCE_NS};

/// Bytes and times of a link that pushed back; older ones count less and less.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Busy {
    bytes: f64,
    ns: f64,
    /// Undecayed totals, for the first estimate.
    total_bytes: f64,
    pub(super) total_ns: f64,
    /// Time since bytes last left, and the recent maximum of that time.
    pub(super) silence_ns: f64,
    period_ns: f64,
}

impl Busy {
    /// An assumed rate, as if observed for `ns`.
    pub(super) fn assumed(rate_bytes_per_s: f64, ns: f64) -> Self {
        Self { bytes: rate_bytes_per_s * ns / 1e9, ns, ..Self::default() }
    }

    /// Time in which nothing left counts as soon as something leaves, or if it is long.
    pub(super) fn add(&mut self, bytes: f64, ns: f64) {
        self.silence_ns += ns;
        if bytes == 0.0 && self.silence_ns < SILENCE_NS && self.is_enough() {
            return;
        }
        let ns = std::mem::take(&mut self.silence_ns);
        if bytes > 0.0 {
            self.period_ns = ns.max(0.9 * self.period_ns);
        }
        let memory_ns = (MEMORY_PERIODS * self.period_ns).clamp(MEMORY_MIN_NS, MEMORY_MAX_NS);
        // A pause may be the receiver's: it removes at most half of the memory at a time, however
        // late the look.
        let kept = (-ns / memory_ns).exp().max(if bytes == 0.0 { 0.5 } else { 0.0 });
        self.bytes = self.bytes * kept + bytes;
        self.ns = self.ns * kept + ns;
        self.total_bytes += bytes;
        self.total_ns += ns;
    }

    pub(super) fn is_enough(&self) -> bool {
        self.total_bytes >= KNOWN_BYTES || self.total_bytes >= EVIDENCE_MIN_BYTES && self.total_ns >= KNOWN_NS
    }

    pub(super) fn rate_bytes_per_s(&self) -> f64 {
        self.bytes / self.ns * 1e9
    }

    /// The mean of all that was seen; `None` if that was not enough.
    pub(super) fn mean_bytes_per_s(&self) -> Option<f64> {
        self.is_enough().then(|| self.total_bytes / self.total_ns.max(1.0) * 1e9)
    }
}
