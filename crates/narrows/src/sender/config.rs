//! Configuration of a sender.

use crate::codec::Codecs;
use crate::frame;
use crate::monitor::expectation::PeerLink;

/// Configuration of a sender, fixed at its start.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    /// Maximum length of a block, in raw bytes. Set more than the baseline of 2 MiB only for
    /// receivers that are known to accept it.
    pub block_max: usize,
    /// Bytes of history for linked frames; 0 forbids linking. Set more than the default of 2 MiB only
    /// for receivers that are known to keep so much. On a duplex link the baseline of 64 KiB holds
    /// until the receiver has stated its limit, then the smaller of both.
    pub history: usize,
    /// The codecs of this end.
    pub registry: Codecs,
    /// Those that may be used, bit n for codec n; others than those of `registry` do not count. `store` is
    /// always used.
    pub codecs: u64,
    /// How far back copies may refer, in raw bytes, a power of two; 0: none are sent. On a duplex
    /// link the receiver decides too.
    pub reach: usize,
    /// Put a 64-bit check on every block.
    pub check: bool,
    /// Number of workers that encode.
    pub cores: usize,
    /// Maximum memory of the flow in bytes: raw and encoded data in flight and encoder contexts
    /// (D15).
    pub memory_max: usize,
    /// A receiver's preface and feedback will come back on this link.
    pub duplex: bool,
    /// Another program is before the link and buffers bytes that it has not sent: rate and backlog
    /// are taken from feedback.
    pub relayed: bool,
    /// The receiver's application will send notes
    /// ([`Sender::take_note`](super::Sender::take_note)).
    pub notes: bool,
    /// The driver tells in this stream how much of the other direction of the connection was delivered
    /// ([`Sender::delivered`](super::Sender::delivered)), to a peer that does the same.
    pub tells_delivered: bool,
    /// How long raw bytes may wait until a whole block has gathered, in ns; 0: they are sent at
    /// once.
    pub gather_ns: u64,
    /// Raw length of the whole flow, when it is known beforehand.
    pub raw_len: Option<u64>,
    /// The link as an earlier flow to the same peer measured it, assumed until this one has evidence.
    pub expected_link: Option<PeerLink>,
    /// Append an index, so that the stream serves as a seekable file.
    pub index: bool,
    /// Raw bytes after which the history is dropped, by a reset frame before the next block, so that a
    /// reader of the file can begin there; 0: never. Only flows that may link have such frames.
    pub run_len: u64,
    /// The effort that a file says it was encoded with, in a frame before its end.
    pub attempt: Option<frame::Attempt>,
    /// Every block but the last has the length that is chosen for it, whatever the policy says of that. With
    /// an endless `gather_ns` the blocks then depend on the bytes alone.
    pub whole_blocks: bool,
    /// Pieces are never joined: no block has bytes of two pushes.
    pub separate: bool,
    /// Record a trace line for every decision; the driver fetches them with `take_trace`.
    pub trace: bool,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            block_max: frame::BASELINE_BLOCK_MAX,
            history: frame::HISTORY_DEFAULT,
            registry: Codecs::default(),
            codecs: u64::MAX,
            reach: 0,
            check: true,
            cores: 1,
            memory_max: MEMORY_MAX_DEFAULT,
            duplex: false,
            relayed: false,
            notes: false,
            tells_delivered: false,
            gather_ns: 0,
            raw_len: None,
            expected_link: None,
            index: false,
            run_len: 0,
            attempt: None,
            whole_blocks: false,
            separate: false,
            trace: false,
        }
    }
}

/// Default of [`SenderConfig::memory_max`]: with it, the process of a bulk flow stays under 64 MiB;
/// code, stacks and codec tables need the rest.
pub const MEMORY_MAX_DEFAULT: usize = 20 << 20;
