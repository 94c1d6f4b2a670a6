//! The sending half of a flow: raw bytes in, frames out. No I/O, no thread, no clock.

use crate::block::{Block, BufferPool};
use crate::codec::{Contexts, Method};
use crate::error::Result;
use crate::policy::Policy;

/// What the sender is told when it starts.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    /// Longest block, in raw bytes (D12: at most 2 MiB before the receiver's preface allows more).
    pub block_max: usize,
    /// Bytes of history for linked frames; 0 forbids linking.
    pub history: usize,
    /// Put a 64-bit check on every block (on by default).
    pub check: bool,
    /// Workers that encode.
    pub cores: usize,
    /// Raw and encoded bytes of this flow in flight at most, encoder contexts included (D15).
    pub memory_max: usize,
    /// A receiver's preface and feedback will come back on this link.
    pub duplex: bool,
    /// Raw length of the whole flow, when it is known beforehand.
    pub raw_len: Option<u64>,
    /// Append an index, so that the stream serves as a seekable file.
    pub index: bool,
}

/// Work for a worker (or for the calling thread when `estimate_ns` is short).
#[derive(Debug)]
pub struct Job {
    pub seq: u64,
    pub kind: JobKind,
    pub method: Method,
    pub raw: Block,
    /// Raw bytes before the block, empty unless the frame is linked.
    pub history: Block,
    /// Predicted time of one core.
    pub estimate_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    Encode,
    /// Takes a late block over: run it at once on the I/O thread.
    Rescue,
    /// Only to learn.
    Probe,
}

/// A finished job.
#[derive(Debug)]
pub struct Done {
    pub seq: u64,
    pub kind: JobKind,
}

impl Job {
    /// Encodes the block, builds its header and check. `wall_ns` and `cpu_ns` of the result are for the caller to fill.
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> Done {
        let _ = (contexts, pool);
        todo!()
    }
}

/// What the driver saw at one write to the link.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkSample {
    /// When the write began and when it returned, on the flow's clock.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Bytes in the kernel that had not left the host, before and after the write.
    pub unsent_before: u64,
    pub unsent_after: u64,
    /// Bytes that the write took.
    pub accepted: u64,
}

/// A frame on its way to the link: header and body for one vectored write.
#[derive(Debug, Clone)]
pub struct Frame {
    pub header: Block, // will be a small array
    pub body: Block,
}

pub struct Sender {}

impl Sender {
    pub fn new(config: SenderConfig, policy: Box<dyn Policy>, pool: BufferPool) -> Self {
        let _ = (config, policy, pool);
        todo!()
    }

    /// Raw bytes that may be pushed now; 0 means: wait until frames have left.
    pub fn room(&self) -> usize {
        todo!()
    }

    /// Takes raw bytes over without copying. At most `room()` bytes more than it has.
    pub fn push(&mut self, raw: Block, now_ns: u64) {
        let _ = (raw, now_ns);
    }

    /// Copies raw bytes in and returns how many were taken.
    pub fn write(&mut self, raw: &[u8], now_ns: u64) -> usize {
        let _ = (raw, now_ns);
        todo!()
    }

    /// No more raw bytes will come.
    pub fn close(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// The next job, if the window has room and there is something to do. Call it again until `None`, after every
    /// `push`, `close`, `finish` and `on_link`.
    pub fn poll_job(&mut self, now_ns: u64) -> Option<Job> {
        let _ = now_ns;
        todo!()
    }

    pub fn finish(&mut self, done: Done, now_ns: u64) {
        let _ = (done, now_ns);
    }

    /// The next frame in order, if it is ready. The driver owns it now, writes it whole, and reports with `on_link`.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        todo!()
    }

    /// Reports a write (or, with `accepted` 0, just a look at the link).
    pub fn on_link(&mut self, sample: LinkSample) {
        let _ = sample;
    }

    /// When to call `on_link_dry`, if nothing else happens before: the moment at which the link runs dry while the
    /// head of the queue is still being encoded, or the end of a wait that the policy asked for.
    pub fn next_wakeup(&self) -> Option<u64> {
        todo!()
    }

    /// The link has run dry. Returns a job for the I/O thread itself: rescue or bypass. (A takeover with `store` needs
    /// no encoding, it is in `poll_transmit` after the job is run inline.)
    pub fn on_link_dry(&mut self, now_ns: u64) -> Option<Job> {
        let _ = now_ns;
        todo!()
    }

    /// Bytes that came back from the receiver: its preface, feedback, close.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<()> {
        let _ = (bytes, now_ns);
        todo!()
    }

    /// Everything including the end frame was handed out by `poll_transmit`.
    pub fn is_drained(&self) -> bool {
        todo!()
    }

    /// The receiver said that it has everything (duplex only).
    pub fn is_confirmed(&self) -> bool {
        todo!()
    }

    pub fn summary(&self) -> &Summary {
        todo!()
    }
}

/// Totals of a flow, for progress and the final line. Readable at any time.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub raw_bytes: u64,
    pub wire_bytes: u64,
    pub frames: u64,
    /// (method as sent, linked, frames, raw bytes, wire bytes), in order of first use.
    pub mix: Vec<MixRow>,
    /// CPU time of encoding, all workers, and time in which at least one job was being encoded.
    pub encode_cpu_ns: u64,
    /// Time in which the link was busy with our bytes.
    pub link_busy_ns: u64,
    /// Time in which the link was dry although raw bytes were pending: bound by CPU.
    pub link_dry_ns: u64,
    /// Time in which nothing was pending: bound by the source.
    pub idle_ns: u64,
    /// From feedback.
    pub decode_cpu_ns: u64,
    pub receiver_blocked_ns: u64,
    pub rescued_blocks: u64,
    pub probed_blocks: u64,
    /// Most bytes of memory that the flow held at once (raw, encoded, contexts by estimate).
    pub memory_peak: u64,
    pub rate_bytes_per_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MixRow {
    pub method: Method,
    pub linked: bool,
    pub frames: u64,
    pub raw_bytes: u64,
    pub wire_bytes: u64,
}
