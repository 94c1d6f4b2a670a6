//! The rule that chooses a method per block.
//!
//! A policy observes and decides. It cannot fail, does no I/O and reads no clock; nothing about how it chose is on the
//! wire. Files it needs (a prior, a table, a recorded sequence) are loaded and saved by the caller.

use std::fmt;

use crate::codec::{CodecId, Method};
use crate::error::{Error, Result};
use crate::monitor::View;

mod spec;

/// Declares the file of each policy and lists their entries.
macro_rules! policies {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// Every policy. One that stands here can be named wherever a policy can be, and inherits the tests of
        /// `tests/policies_unit.rs` and `tests/policies_shared.rs`.
        pub const POLICIES: &[&Registered] = &[$(&$name::ENTRY),*];
    };
}

// One line for each policy, in the order in which help texts name them.
policies! {
    balance,
    fixed,
    messages,
    storage,
    adoc,
    datacomp,
    stall,
    replay,
}

pub use adoc::Adoc;
pub use balance::Balance;
pub use datacomp::{Datacomp, EventTable, Opportunity};
pub use fixed::Fixed;
pub use messages::{Messages, MessagesSpec};
pub use replay::{Planned, Replay, Schedule};
pub use spec::{NoSettings, PolicySettings, PolicySetup, PolicySpec, Registered};
pub use stall::Stall;
pub use storage::Storage;

/// What to do with the next block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub method: Method,
    /// Raw bytes to take; the sender takes less when less has gathered.
    pub block_len: usize,
    /// Encode with the flow's history as dictionary.
    pub linked: bool,
    /// Most workers that should encode at once, if the policy wants fewer than there are.
    pub threads_max: Option<u8>,
    /// Predicted time of one core to encode the block; the driver encodes short ones in place (D2).
    pub encode_ns: u64,
}

impl Choice {
    pub fn new(method: Method, block_len: usize) -> Self {
        Self { method, block_len, linked: false, threads_max: None, encode_ns: method.nominal_encode_ns(block_len) }
    }
}

/// What to do about a block that is late while the link is dry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescue {
    /// Leave the link dry until this time at most, then ask again.
    WaitUntil(u64),
    /// Send the block with this method now (encoded by the I/O thread; `store` needs no encoding).
    TakeOver(Method),
}

/// What came of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// A worker finished a block. `wire_len` is the encoded length, or `raw_len` if it did not shrink.
    /// `taken_over` says that the block was rescued before, so this only teaches.
    Encoded { seq: u64, method: Method, raw_len: usize, wire_len: usize, wall_ns: u64, cpu_ns: u64, taken_over: bool },
    /// The sender took a late block over and sent it with `method`.
    Rescued { seq: u64, method: Method, raw_len: usize, wire_len: usize },
    /// The last byte of the block's frame went to the link.
    Sent { seq: u64, method: Method, raw_len: usize, wire_len: usize, now_ns: u64 },
    /// A shadow probe: other methods tried on an idle core. `seq` is the block that the bytes will come out in, about.
    Probed { method: Method, raw_len: usize, wire_len: usize, wall_ns: u64, cpu_ns: u64 },
    /// The receiver decoded the blocks `first_seq..=last_seq`, `decode_ns` of CPU time in all, on `cores` threads.
    Received { first_seq: u64, last_seq: u64, raw_len: u64, decode_ns: u64, cores: usize, backlog_bytes: u64 },
    /// In a message flow: something came that the peer sent because it had got the message. In `span_ns` `wire_len`
    /// bytes crossed the link one after the other, those of the answer included if their number varies too.
    Answered { seq: u64, wire_len: usize, span_ns: u64 },
    /// The reader of a message flow spent `ns` on `messages` messages of this codec, `raw_len` bytes in all.
    Decoded { codec: CodecId, messages: u64, raw_len: u64, ns: u64 },
}

pub trait Policy: Send {
    /// The method for the next block. Called with at least one byte to send.
    fn choose(&mut self, view: &View<'_>) -> Choice;

    /// The link is dry and the head of the queue is still being encoded.
    fn rescue(&mut self, view: &View<'_>) -> Rescue {
        let _ = view;
        Rescue::WaitUntil(u64::MAX)
    }

    /// The job window is full and a worker idle: a method to try on the coming bytes, only to learn.
    fn probe(&mut self, view: &View<'_>) -> Option<Choice> {
        let _ = view;
        None
    }

    fn learn(&mut self, outcome: &Outcome) {
        let _ = outcome;
    }

    /// Most blocks that may be chosen and not yet have left the host.
    fn window(&self, cores: usize) -> usize {
        let _ = cores;
        WINDOW_MAX
    }

    /// Longest block that it asks for, if blocks shall be as long as it asks whenever so much has gathered. Without it a
    /// block ends where the bytes that lie in one piece end, which saves a copy.
    fn whole_blocks(&self) -> Option<usize> {
        None
    }

    /// What shall be kept for the next flow, in the form that [`PolicySpec::load`] reads; the caller stores it.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Log of how much longer each method took than was expected of this host, for the calibration.
    fn learned(&self) -> Vec<(Method, f32)> {
        Vec::new()
    }

    /// Why the last choice was made, for the trace: `key=value` pairs, numbers only.
    fn explain(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Blocks in flight at most: with 128 KiB blocks 3 MiB, which keeps 8 workers busy through one slow block in four.
pub const WINDOW_MAX: usize = 24;

/// A method with the mark of linking: `zstd:level=3,link`, `lz4:link`.
pub fn parse_method(s: &str) -> Result<(Method, bool)> {
    let (method, linked) = match s.strip_suffix(",link").or_else(|| s.strip_suffix(":link")) {
        Some(method) => (method, true),
        None => (s, false),
    };
    let method: Method = method.parse()?;
    if linked && !method.info().can_link() {
        return Err(Error::misuse(format!("{} frames cannot be linked", method.info().name())));
    }
    Ok((method, linked))
}

/// What [`parse_method`] reads back.
pub fn print_method(method: Method, linked: bool) -> String {
    let text = method.to_string();
    match (linked, text.contains(':')) {
        (false, _) => text,
        (true, true) => format!("{text},link"),
        (true, false) => format!("{text}:link"),
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_method(self.method, self.linked))
    }
}
