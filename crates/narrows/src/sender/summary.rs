//! Totals of a flow, for progress and the final line.

use crate::codec::Method;

/// Readable at any time; all counters only grow, but for `rate_bytes_per_s`.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub raw_bytes: u64,
    /// Wire bytes handed to the link, preface and end frame included.
    pub wire_bytes: u64,
    /// Those of them that the link took: all, when nothing is on its way into it.
    pub accepted_bytes: u64,
    pub frames: u64,
    /// What was sent how, in order of first use.
    pub mix: Vec<MixRow>,
    /// CPU time of encoding, all threads.
    pub encode_cpu_ns: u64,
    /// Time in which the link was busy with our bytes.
    pub link_busy_ns: u64,
    /// Time in which the link was dry although raw bytes were pending: bound by CPU.
    pub link_dry_ns: u64,
    /// Time in which nothing was pending: bound by the source.
    pub idle_ns: u64,
    /// Time in which everything had left and the receiver had not confirmed it: it was storing the rest.
    pub confirm_ns: u64,
    /// From the receiver's reports.
    pub decode_cpu_ns: u64,
    pub decode_threads: u64,
    pub receiver_blocked_ns: u64,
    /// Time in which the link carried nothing since the receiver's window was closed (TCP tells).
    pub receiver_limited_ns: u64,
    pub rescued_blocks: u64,
    pub probed_blocks: u64,
    /// Most bytes that the flow held at once: raw, encoded, encoder contexts by estimate.
    pub memory_peak: u64,
    /// Estimated rate of the link, in wire bytes.
    pub rate_bytes_per_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MixRow {
    /// As it was sent: a block that did not shrink counts as `store`.
    pub method: Method,
    pub linked: bool,
    pub frames: u64,
    pub raw_bytes: u64,
    pub wire_bytes: u64,
}

impl Summary {
    pub fn ratio(&self) -> f64 {
        self.raw_bytes as f64 / self.wire_bytes.max(1) as f64
    }

    pub(super) fn count_frame(&mut self, method: Method, linked: bool, raw_len: usize, wire_len: usize) {
        self.frames += 1;
        self.raw_bytes += raw_len as u64;
        let i = self.mix.iter().position(|r| r.method == method && r.linked == linked).unwrap_or_else(|| {
            self.mix.push(MixRow { method, linked, frames: 0, raw_bytes: 0, wire_bytes: 0 });
            self.mix.len() - 1
        });
        let row = &mut self.mix[i];
        row.frames += 1;
        row.raw_bytes += raw_len as u64;
        row.wire_bytes += wire_len as u64;
    }
}
