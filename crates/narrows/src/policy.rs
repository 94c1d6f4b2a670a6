//! Policies: the rules that choose a method for each block.
//!
//! A policy observes and decides. It cannot fail, does no I/O and reads no clock; nothing about how
//! it chose is on the wire. The caller loads and saves the files that it needs (a prior, a table, a
//! recorded sequence).

use std::fmt;

use crate::codec::{CodecId, Codecs, Method};
use crate::error::Result;
use crate::monitor::View;
use crate::monitor::expectation::Kind;

mod images;
mod policies;
mod spec;

/// Declares the file of each policy and lists their entries.
macro_rules! policies {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// The policies of this library, which [`Policies`] has by default. The tests of
        /// `tests/policies_unit.rs` and `tests/policies_shared.rs` run for each.
        pub const POLICIES: &[&Registered] = &[$(&$name::ENTRY),*];
    };
}

// One line for each policy, in the order of the help texts.
policies! {
    balance,
    fixed,
    messages,
    storage,
}

pub use balance::Balance;
pub use fixed::Fixed;
pub use messages::{Messages, MessagesSpec};
pub use policies::Policies;
pub use spec::{NoSettings, PolicySettings, PolicySetup, PolicySpec, Registered};
pub use storage::Storage;

/// A policy's decision about the next block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The method to encode the block with.
    pub method: Method,
    /// Raw bytes to take; the sender takes fewer if fewer have gathered.
    pub block_len: usize,
    /// Encode with the flow's history as dictionary.
    pub linked: bool,
    /// Most bytes of history that a linked block refers to; the sender takes fewer if there are
    /// fewer, or if the encoder would need too much memory.
    pub history_len: usize,
    /// Maximum number of workers that encode at once; `None`: all of them.
    pub threads_max: Option<u8>,
    /// Predicted time of one core to encode the block; the driver encodes short ones in place (D2).
    pub encode_ns: u64,
}

impl Choice {
    /// An unlinked block on any number of workers, with the nominal encode time of the method. With a codec of
    /// another crate set `encode_ns` too ([`Codecs::encode_ns`]): it is taken for `store`.
    pub fn new(method: Method, block_len: usize) -> Self {
        Self {
            method,
            block_len,
            linked: false,
            history_len: usize::MAX,
            threads_max: None,
            encode_ns: method.nominal_encode_ns(block_len),
        }
    }
}

/// A policy's decision about a late block: the link is dry and the block is still being encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescue {
    /// Wait for the worker until this time at most, in nanoseconds of the engine's clock, then ask
    /// again.
    WaitUntil(u64),
    /// Send the block with this method at once (encoded by the I/O thread; `store` needs no
    /// encoding).
    TakeOver(Method),
}

/// An observed result of a choice, from which a policy learns.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// A worker finished a block.
    Encoded {
        /// Sequence number of the block.
        seq: u64,
        /// The method that was chosen.
        method: Method,
        /// Raw bytes.
        raw_len: usize,
        /// Encoded bytes, or `raw_len` if the block did not shrink.
        wire_len: usize,
        /// Elapsed time of the encoding.
        wall_ns: u64,
        /// CPU time of the encoding.
        cpu_ns: u64,
        /// The block was sent by a rescue before, so this result was not sent and only serves
        /// learning.
        taken_over: bool,
    },
    /// The sender took over a late block and sent it with `method`.
    Rescued {
        /// Sequence number of the block.
        seq: u64,
        /// The method that the block was sent with.
        method: Method,
        /// Raw bytes.
        raw_len: usize,
        /// Encoded bytes.
        wire_len: usize,
    },
    /// The link has taken the last byte of the block's frame.
    Sent {
        /// Sequence number of the block.
        seq: u64,
        /// The method that the block was sent with.
        method: Method,
        /// Raw bytes.
        raw_len: usize,
        /// Bytes on the wire.
        wire_len: usize,
        /// Time of the engine's clock.
        now_ns: u64,
    },
    /// Result of a shadow probe ([`Policy::probe`]): another method, tried on an idle core. Nothing
    /// of it is sent.
    Probed {
        /// The method that was tried.
        method: Method,
        /// Raw bytes.
        raw_len: usize,
        /// Encoded bytes.
        wire_len: usize,
        /// Elapsed time of the encoding.
        wall_ns: u64,
        /// CPU time of the encoding.
        cpu_ns: u64,
    },
    /// The receiver reported that it has decoded the blocks `first_seq..=last_seq`.
    Received {
        /// The first block of the report.
        first_seq: u64,
        /// The last block of the report.
        last_seq: u64,
        /// Raw bytes of these blocks.
        raw_len: u64,
        /// CPU time of decoding them, summed over all threads.
        decode_ns: u64,
        /// Factor by which decoding takes longer than its CPU time, since other programs have the
        /// receiver's cores; at least 1.
        load: f32,
        /// Threads of the receiver that decode.
        cores: usize,
        /// Wire bytes that the receiver has received and not yet decoded.
        backlog_bytes: u64,
    },
    /// In a message flow: an answer came, which the peer sent because it had received the message.
    Answered {
        /// Sequence number of the message.
        seq: u64,
        /// Bytes that crossed the link one after the other in `span_ns`, including those of the
        /// answer if their number varies too.
        wire_len: usize,
        /// Time from the end of the write of the message to its answer.
        span_ns: u64,
    },
    /// In a message flow: the reader at this end has decoded messages of one codec.
    Decoded {
        /// The codec of the messages.
        codec: CodecId,
        /// Number of messages.
        messages: u64,
        /// Raw bytes of all of them.
        raw_len: u64,
        /// Time spent on decoding all of them.
        ns: u64,
    },
}

/// A rule that chooses a method for each block of one flow.
pub trait Policy: Send {
    /// The method for the next block. Called only when there is at least one byte to send.
    fn choose(&mut self, view: &View<'_>) -> Choice;

    /// Called when the link is dry and the first block of the queue is still being encoded.
    /// Default: wait for it.
    fn rescue(&mut self, view: &View<'_>) -> Rescue {
        let _ = view;
        Rescue::WaitUntil(u64::MAX)
    }

    /// Called when the job window is full and a worker is idle: a method to try on the coming
    /// bytes, only to learn ([`Outcome::Probed`]). Default: none.
    fn probe(&mut self, view: &View<'_>) -> Option<Choice> {
        let _ = view;
        None
    }

    /// Called with every observed result. Default: ignored.
    fn learn(&mut self, outcome: &Outcome) {
        let _ = outcome;
    }

    /// Window: maximum number of blocks that are chosen but have not left the host.
    fn window(&self, cores: usize) -> usize {
        let _ = cores;
        WINDOW_MAX
    }

    /// The longest block it asks for, if every block must have the chosen length whenever that much
    /// has gathered; it then sees the whole of a block of the length that it chose last. `None`: a
    /// block ends where the contiguous bytes end, which saves a copy.
    fn whole_blocks(&self) -> Option<usize> {
        None
    }

    /// Raw bytes that it must see at each choice, if so many have gathered, however short its last block
    /// was. Others see the contiguous bytes.
    fn sight(&self) -> usize {
        0
    }

    /// The raw offset of a block that it wants to see whole, up to the longest one: the sender waits a moment
    /// for the rest of it. Default: none.
    fn awaits(&self) -> Option<u64> {
        None
    }

    /// State for the next flow, in the format of [`PolicySpec::load`]; the caller stores it.
    /// `None`: nothing to keep.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// For the calibration: each method with the natural logarithm of its encode time relative to
    /// the expectation.
    fn learned(&self) -> Vec<(Method, f32)> {
        Vec::new()
    }

    /// For later flows to the same peer: the kinds of data that it knows ([`PolicySetup::kinds`]).
    fn kinds(&self) -> Vec<Kind> {
        Vec::new()
    }

    /// Reasons of the last choice, for the trace: names and numbers.
    fn explain(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Maximum number of blocks in flight; policies may allow more where there are more than 16 workers.
/// With 128 KiB blocks these are 3 MiB, which keeps 8 workers busy through one slow block in four.
pub const WINDOW_MAX: usize = 24;

/// [`Codecs::parse_linked`] among the codecs of this library.
///
/// # Errors
/// The method or its settings are unknown, or its frames cannot be linked.
pub fn parse_method(s: &str) -> Result<(Method, bool)> {
    Codecs::shipped().parse_linked(s)
}

/// Prints a method so that [`parse_method`] reads it back.
pub fn print_method(method: Method, linked: bool) -> String {
    Codecs::shipped().print_linked(method, linked)
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_method(self.method, self.linked))
    }
}

/// The example of `CONTRIBUTING.md`, which is not in the list.
#[cfg(test)]
mod by_length;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_how_to_add_a_policy_is_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../CONTRIBUTING.md");
        let blocks = narrows_test::rust_blocks(page.as_ref());
        assert_eq!(blocks, [include_str!("policy/by_length.rs")]);
        let entry = &by_length::ENTRY;
        let setup = PolicySetup::new(1, crate::monitor::cost::Prior::shipped());
        let policy = (entry.parse)("", setup.codecs).unwrap().build(&setup);
        assert_eq!((entry.name, policy.whole_blocks()), ("by_length", Some(2 << 20)));
        assert!((entry.parse)("x", setup.codecs).is_err());
    }
}
