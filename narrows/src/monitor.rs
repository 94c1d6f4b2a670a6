//! What a policy may see, and the estimators behind it.
//!
//! Estimators are fed numbers; they sample nothing themselves. Times are nanoseconds of the flow's clock, which the
//! driver owns. No codec implementation, frame, socket, thread or clock is imported here (`tests/layers.rs` holds this).

use crate::codec::Method;

pub mod cost;
pub mod cpu;
pub mod data;
pub mod link;
pub mod quota;
pub mod slope;

pub use link::LinkSample;

/// Everything a policy may look at when it chooses the next block.
#[derive(Debug)]
pub struct View<'a> {
    /// The flow's clock.
    pub now_ns: u64,
    /// Time with bytes pending since the flow began: idle time earns nothing (D13).
    pub busy_ns: u64,
    /// Number that the chosen block will have.
    pub seq: u64,
    /// Raw bytes before this block in the flow.
    pub raw_offset: u64,
    /// The raw bytes that can be cut now; never empty when a choice is asked, at most `limits.block_max` long.
    pub upcoming: &'a [u8],
    /// Raw bytes gathered and not yet cut, `upcoming` included; it may be more than `upcoming`.
    pub gathered: usize,
    /// Raw bytes until the end of the flow, when the end is in view or the length was told.
    pub left: Option<u64>,
    pub link: LinkView,
    pub cpu: CpuView,
    pub receiver: ReceiverView,
    /// Blocks that were chosen and have not left the host whole, oldest first.
    pub queue: &'a [Pending],
    pub limits: Limits,
    /// Why the policy is asked.
    pub ask: Ask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A worker is free or soon will be.
    Next,
    /// The link is dry, nothing is dispatched and all workers are busy: the I/O thread itself takes the next
    /// piece, which should be short and fast (docs/policy.md, "Bypass").
    Bypass,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct LinkView {
    /// Estimated rate of the link in bytes of wire per second; an assumption until `known`.
    pub rate_bytes_per_s: f64,
    /// Whether anything was measured yet.
    pub known: bool,
    /// Wire bytes that left the host since the flow began.
    pub left_host_bytes: u64,
    /// Wire bytes that lie in the kernel and have not left the host.
    pub unsent_bytes: u64,
    /// Time the link stood dry while raw bytes were pending.
    pub dry_ns: u64,
    /// The link is a copy within this host, as fast as memory: it, encoder and decoder share the same cores.
    pub in_memory: bool,
    /// The link still takes more with every round trip; where it stands dry it does not.
    pub opening: bool,
    /// The shortest round trip so far, on connections to another host that tell.
    pub rtt_ns: Option<u64>,
    /// Nothing was given to the link yet, or nothing of it acknowledged: it may be of any speed.
    pub unanswered: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct CpuView {
    /// Cores that encode.
    pub cores: usize,
    /// Jobs that are being encoded or wait for a worker.
    pub busy: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct ReceiverView {
    /// Whether reports come at all; without them one core of this host's speed is assumed (D14).
    pub reports: bool,
    /// Threads that decode.
    pub cores: usize,
    /// Wire bytes that the receiver has taken and not yet decoded, from its last report.
    pub backlog_bytes: u64,
}

/// What this flow may use, the smaller of both ends' limits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub block_max: usize,
    /// Bytes of history that a linked frame may refer to; 0 forbids linking.
    pub history: usize,
    /// One bit per codec number that the receiver can decode.
    pub codecs: u64,
    /// Of messages: bytes that a linked one can refer to now.
    pub behind: usize,
    /// Of messages: the digest of the dictionary that those which are not linked are encoded with, if there is one.
    pub dictionary: Option<u64>,
}

impl Limits {
    pub fn allows(&self, method: Method) -> bool {
        method.codec.0 < 64 && self.codecs >> method.codec.0 & 1 == 1
    }
}

/// A block between choice and link.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    pub seq: u64,
    pub raw_len: usize,
    pub method: Method,
    pub chosen_ns: u64,
    pub state: PendingState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingState {
    Encoding,
    /// Encoded; these bytes of its frame have not left the host.
    Ready {
        unsent_len: usize,
    },
}
