//! Knowledge from earlier flows to the same peer: rate and round trip of the link, and ratios of
//! methods on each kind of data.
//!
//! Plain numbers. Whoever keeps them between flows reads and writes them; the engine takes any value
//! and leaves out what makes no sense. An expectation stands in for ignorance only: the first
//! evidence of a flow replaces it (docs/policy.md, "Warm start").

use super::data::Features;
use crate::codec::Method;

/// Most kinds of data of an expectation: as many as one flow tells apart.
pub const KINDS_MAX: usize = 16;
/// Most methods of a kind. One observed method tells most about the others, and a flow mostly uses
/// two or three for one kind.
pub const RATIOS_MAX: usize = 4;

/// What earlier flows to a peer found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expectation {
    /// The link; `None` if no rate was measured.
    pub link: Option<PeerLink>,
    /// Kinds of data, the latest first; those beyond [`KINDS_MAX`] are ignored.
    pub kinds: Vec<Kind>,
}

/// A link as a flow measured it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerLink {
    /// Wire bytes per second.
    pub rate_bytes_per_s: f64,
    /// Shortest round trip; `None` if the transport did not tell it.
    pub rtt_ns: Option<u64>,
}

/// A kind of data, and how far methods shrank it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Mean features of its blocks.
    pub features: Features,
    /// Days since a flow last had data of this kind.
    pub age_days: u32,
    /// The methods that were used most; those beyond [`RATIOS_MAX`] are ignored.
    pub ratios: Vec<KindRatio>,
}

/// How far one method shrank one kind of data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindRatio {
    /// The method.
    pub method: Method,
    /// Natural logarithm of raw / wire bytes, for blocks of 128 KiB.
    pub log_ratio: f32,
    /// Blocks that this was learned from, at least 1.
    pub blocks: u8,
}
