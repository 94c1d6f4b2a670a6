//! Totals of a flow, for progress and the final line.

use crate::codec::Method;
use crate::monitor::expectation::PeerLink;

/// Totals of a sent flow, readable at any time. All counters only grow; `rate_bytes_per_s` and `link`
/// are estimates.
// More than 20 fields, since it is a list: each total has readers of its own, who know it by its name.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Raw bytes whose frames were handed to the link.
    pub raw_bytes: u64,
    /// Those of them that were copied from earlier ones.
    pub copied_bytes: u64,
    /// Raw bytes in which earlier ones were searched.
    pub searched_bytes: u64,
    /// Wire bytes handed to the link, preface and end frame included.
    pub wire_bytes: u64,
    /// Wire bytes that the link has accepted; equal to `wire_bytes` when none is pending.
    pub accepted_bytes: u64,
    /// Raw bytes that crossed the link: the receiver has delivered them, as far as it has reported. Of
    /// one that does not report, those whose frames have left this host.
    pub crossed_raw_bytes: u64,
    /// Wire bytes of the frames in which they crossed.
    pub crossed_wire_bytes: u64,
    /// Data and copy frames.
    pub frames: u64,
    /// Frames and bytes by method, in order of first use.
    pub mix: Vec<MixRow>,
    /// CPU time of encoding and of looking for repeats, all threads.
    pub encode_cpu_ns: u64,
    /// Time in which the link was busy with this flow's bytes.
    pub link_busy_ns: u64,
    /// Time in which the link was dry although raw bytes were pending: bound by CPU.
    pub link_dry_ns: u64,
    /// Time in which nothing was pending: bound by the source, or by the search for repeats.
    pub idle_ns: u64,
    /// The part of it in which the next bytes were searched for repeats: bound by CPU.
    pub search_idle_ns: u64,
    /// Time in which everything had left and the receiver had not confirmed it, because it was
    /// storing the rest.
    pub confirm_ns: u64,
    /// CPU time of decoding, from the receiver's reports.
    pub decode_cpu_ns: u64,
    /// Decoding threads of the receiver, from its reports.
    pub decode_threads: u64,
    /// Time in which the reader of the raw bytes accepted none, from the receiver's reports.
    pub receiver_blocked_ns: u64,
    /// Time in which the link carried nothing because the receiver's window was closed, as reported
    /// by TCP.
    pub receiver_limited_ns: u64,
    /// Late blocks that were taken over.
    pub rescued_blocks: u64,
    /// Blocks encoded as shadow probes.
    pub probed_blocks: u64,
    /// Most bytes that the flow held at once: raw, encoded, and an estimate of encoder contexts.
    pub memory_peak: u64,
    /// Estimated rate of the link in wire bytes per second.
    pub rate_bytes_per_s: f64,
    /// The link as it was measured; `None` until its rate is known.
    pub link: Option<PeerLink>,
}

/// Totals of one method.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MixRow {
    /// The method as sent: a block that did not shrink counts as `store`.
    pub method: Method,
    /// Whether the frames were linked.
    pub linked: bool,
    /// Number of frames.
    pub frames: u64,
    /// Raw bytes, without those that were copied.
    pub raw_bytes: u64,
    /// Wire bytes, headers included.
    pub wire_bytes: u64,
}

impl Summary {
    /// Raw bytes / wire bytes.
    pub fn ratio(&self) -> f64 {
        self.raw_bytes as f64 / self.wire_bytes.max(1) as f64
    }

    /// Counts what crossed in all. A peer may report anything: nothing is taken back, and no more
    /// crossed than was sent.
    pub(super) fn crossed(&mut self, raw_bytes: u64, wire_bytes: u64) {
        self.crossed_raw_bytes = raw_bytes.min(self.raw_bytes).max(self.crossed_raw_bytes);
        self.crossed_wire_bytes = wire_bytes.min(self.wire_bytes).max(self.crossed_wire_bytes);
    }

    /// Counts a frame of `raw_len` literals and `copied` raw bytes.
    #[doc(hidden)]
    pub fn count_frame(&mut self, method: Method, linked: bool, raw_len: usize, copied: usize, wire_len: usize) {
        self.frames += 1;
        self.raw_bytes += (raw_len + copied) as u64;
        self.copied_bytes += copied as u64;
        if raw_len == 0 {
            return;
        }
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
