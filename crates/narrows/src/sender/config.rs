//! What a sender is told when it starts.

use crate::frame;

/// What the sender is told when it starts.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    /// Longest block, in raw bytes. Above the baseline of 2 MiB only for receivers known to take
    /// it.
    pub block_max: usize,
    /// Bytes of history for linked frames; 0 forbids linking.
    pub history: usize,
    /// Put a 64-bit check on every block.
    pub check: bool,
    /// Workers that encode.
    pub cores: usize,
    /// Raw and encoded bytes of this flow in flight at most, encoder contexts included (D15).
    pub memory_max: usize,
    /// A receiver's preface and feedback will come back on this link.
    pub duplex: bool,
    /// The link is behind another program, which takes more than it has sent: rate and backlog come
    /// from feedback.
    pub relayed: bool,
    /// The receiver's application will say something
    /// ([`Sender::take_note`](super::Sender::take_note)).
    pub notes: bool,
    /// How long raw bytes may wait until there is a whole block of them; 0: they go at once.
    pub gather_ns: u64,
    /// Raw length of the whole flow, when it is known beforehand.
    pub raw_len: Option<u64>,
    /// Append an index, so that the stream serves as a seekable file.
    pub index: bool,
    /// Keep a line for every decision; the driver takes them with `take_trace`.
    pub trace: bool,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            block_max: frame::BASELINE_BLOCK_MAX,
            history: frame::BASELINE_HISTORY,
            check: true,
            cores: 1,
            memory_max: MEMORY_MAX_DEFAULT,
            duplex: false,
            relayed: false,
            notes: false,
            gather_ns: 0,
            raw_len: None,
            index: false,
            trace: false,
        }
    }
}

/// A bulk flow stays under 64 MiB of the process; code, stacks and codec tables need the rest.
pub const MEMORY_MAX_DEFAULT: usize = 20 << 20;
