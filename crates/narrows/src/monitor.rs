//! The view that a policy gets, and the estimators behind it.
//!
//! Estimators are fed numbers; they sample nothing themselves. Times are nanoseconds of the flow's
//! clock, which the driver owns. No codec implementation, frame, socket, thread or clock is
//! imported here (`tests/layers.rs` holds this).

use crate::codec::Method;

pub mod cost;
pub mod cpu;
pub mod data;
pub mod expectation;
pub mod link;
pub mod quota;
pub mod slope;

pub use link::LinkSample;

/// Everything that a policy may use to choose the next block.
#[derive(Debug)]
pub struct View<'a> {
    /// The flow's clock.
    pub now_ns: u64,
    /// Time with bytes pending since the flow began; idle time is excluded because it earns nothing
    /// (D13).
    pub busy_ns: u64,
    /// Sequence number of the block to be chosen.
    pub seq: u64,
    /// Raw bytes before this block in the flow.
    pub raw_offset: u64,
    /// The raw bytes that can be cut now; never empty when a choice is asked, at most
    /// `limits.block_max` long.
    pub upcoming: &'a [u8],
    /// Raw bytes gathered and not yet cut, including `upcoming`; may exceed it.
    pub gathered: usize,
    /// Raw bytes until the end of the flow, once the end is in view or if its length was announced.
    pub left: Option<u64>,
    /// State of the link.
    pub link: LinkView,
    /// State of this host's CPUs.
    pub cpu: CpuView,
    /// State of the receiver, as reported.
    pub receiver: ReceiverView,
    /// Blocks that were chosen and have not left the host completely, oldest first.
    pub queue: &'a [Pending],
    /// Limits of the flow.
    pub limits: Limits,
    /// Why the policy is asked.
    pub ask: Ask,
}

/// The occasion of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ask {
    /// A worker is free, or soon will be.
    Next,
    /// The link is dry, nothing is dispatched and all workers are busy: the I/O thread itself takes
    /// the next piece, which should be short and fast (docs/policy.md, "Bypass").
    Bypass,
}

/// State of the link, as estimated by [`link::LinkMonitor`].
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkView {
    /// Estimated rate of the link in wire bytes per second; an assumption until `known`.
    pub rate_bytes_per_s: f64,
    /// Whether the rate was measured.
    pub known: bool,
    /// Wire bytes that left the host since the flow began.
    pub left_host_bytes: u64,
    /// Wire bytes in the kernel that have not left the host.
    pub unsent_bytes: u64,
    /// Time in which the link was dry while raw bytes were pending.
    pub dry_ns: u64,
    /// The link is a copy within this host, as fast as memory: link, encoder and decoder share the
    /// same cores.
    pub in_memory: bool,
    /// The link may be far faster than blocks are made: so many raw bytes would show it; 0: no trial
    /// is on.
    pub trial_bytes: u64,
    /// The connection is still opening: it takes more with every round trip, except while it stands
    /// dry.
    pub opening: bool,
    /// Shortest round trip so far; `None` if the transport does not report it or the peer is this
    /// host.
    pub rtt_ns: Option<u64>,
    /// Nothing was handed to the link, or nothing acknowledged yet: its speed is unknown.
    pub unanswered: bool,
    /// The rate is that of an earlier flow to the same peer, and not known in this one yet.
    pub expected: bool,
}

/// State of this host's CPUs.
#[derive(Debug, Clone, Copy)]
pub struct CpuView {
    /// Cores that encode.
    pub cores: usize,
    /// Jobs being encoded or waiting for a worker.
    pub busy: usize,
}

/// State of the receiver, from its reports.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverView {
    /// Whether the receiver sends reports; without them one core of this host's speed is assumed
    /// (D14).
    pub reports: bool,
    /// Threads that decode.
    pub cores: usize,
    /// Wire bytes that the receiver had received and not yet decoded at its last report.
    pub backlog_bytes: u64,
}

/// Limits of a flow: the smaller of both ends' limits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest block in raw bytes.
    pub block_max: usize,
    /// Bytes of history that a linked frame may refer to; 0 forbids linking.
    pub history: usize,
    /// One bit per codec number that the receiver can decode.
    pub codecs: u64,
    /// Messages: bytes of history that a linked message can refer to at this time.
    pub behind: usize,
    /// Messages: digest of the dictionary that messages which are not linked are encoded with, if
    /// any.
    pub dictionary: Option<u64>,
}

impl Limits {
    /// Whether the receiver can decode the method.
    pub fn allows(&self, method: Method) -> bool {
        method.codec.0 < 64 && self.codecs >> method.codec.0 & 1 == 1
    }
}

/// A block that was chosen and has not left the host.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    /// Sequence number of the block.
    pub seq: u64,
    /// Raw bytes.
    pub raw_len: usize,
    /// The method chosen for it.
    pub method: Method,
    /// When it was chosen.
    pub chosen_ns: u64,
    /// How far it is.
    pub state: PendingState,
}

/// Progress of a pending block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingState {
    /// Being encoded, or waiting for a worker.
    Encoding,
    /// Encoded.
    Ready {
        /// Bytes of its frame that have not left the host.
        unsent_len: usize,
    },
}
