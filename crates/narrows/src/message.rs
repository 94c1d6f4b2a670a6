//! Messages: small units of application data, each sent at once, compressed with what the flow
//! carried before.
//!
//! ```text
//!   message ──> choose ─> encode ─> [control frames] header body ──> carrier
//!                            ^ history, dictionaries
//!   message <── check <── decode <──────────────────────────────── carrier
//! ```
//!
//! [`MessageSender`] and [`MessageReceiver`] are the two ends of a flow (`docs/format.md`, section
//! 12), and [`MessageEnd`] is one end of both flows of a link. They do no I/O, start no thread and
//! read no clock. A flow keeps its history and a few hundred bytes, and no codec state: the codecs'
//! contexts are in [`Contexts`], one per thread, which all flows of that thread share.
//!
//! # Example
//!
//! ```
//! use narrows::message::{Contexts, Event, MessageConfig, MessageReceiver, MessageSender};
//! use narrows::monitor::cost::Prior;
//! use narrows::policy::{PolicySetup, PolicySpec};
//!
//! # fn main() -> narrows::Result<()> {
//! let policy = PolicySpec::messages().build(&PolicySetup::new(1, Prior::shipped()));
//! let config = MessageConfig { epoch: 7, ..MessageConfig::default() };
//! let mut sender = MessageSender::new(config.clone(), policy)?;
//! let mut receiver = MessageReceiver::new(MessageConfig { epoch: 8, ..config })?;
//! let mut contexts = Contexts::default();
//!
//! let mut wire = Vec::new();
//! for i in 0..10 {
//!     wire.clear();
//!     let message = format!("{{\"sensor\": \"north-east corner\", \"celsius\": 21.{i}}}");
//!     sender.encode(message.as_bytes(), i, &mut contexts, &mut wire)?;
//!     // Over the carrier; at the other end:
//!     let mut rest = &wire[..];
//!     let mut came = None;
//!     while !rest.is_empty() {
//!         let step = receiver.receive(rest, &mut contexts)?;
//!         if let Event::Message(message) = step.event {
//!             came = Some(message.to_vec());
//!         }
//!         rest = &rest[step.consumed..];
//!     }
//!     assert_eq!(came.as_deref(), Some(message.as_bytes()));
//! }
//! assert!(wire.len() < 30, "what was said before costs little");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use crate::error::{Error, Result};

mod comparison;
mod contexts;
mod control;
mod end;
mod header;
mod history;
mod receiver;
mod sample;
mod sender;
mod slots;
mod topic;

pub use self::contexts::Contexts;
pub use self::control::{CONTROL_BODY_MAX, Control, Decoded, Lacks, Lost};
pub use self::end::{Came, MessageEnd, Received, Traffic};
pub use self::receiver::{Event, MessageReceiver, Step};
pub use self::sample::{Adoption, Sampler, Training};
pub use self::sender::{Heard, MessageSender, Sent};
pub use self::topic::{Missed, TopicReader, TopicWriter};
pub use crate::codec::{DICTIONARY_MAX, DICTIONARY_MIN, DICTIONARY_TRAINED_MIN, Dictionary};

/// Longest message of the format.
pub const MESSAGE_MAX: usize = 65_535;
/// Largest W of the format, in bytes.
pub const HISTORY_MAX: usize = 64 << 10;
/// Smallest W of the format, in bytes; 0 stands for no history.
pub const HISTORY_MIN: usize = 1 << 10;
/// The W that every peer accepts until it says otherwise.
const HISTORY_BASELINE: usize = 16 << 10;
/// Most dictionaries that a flow holds at a time.
pub const SLOTS: usize = 3;
/// Messages between two digest frames, by which the reader verifies its history.
const DIGEST_EVERY: u64 = 256;

/// Properties of a carrier. Both ends must be given the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carrier {
    /// Order and completeness of delivery.
    pub delivery: Delivery,
    /// It delivers units as they were sent, so frames need no length.
    pub borders: bool,
}

/// Delivery guarantees of a carrier (format.md section 12.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Everything once and in order, to one reader: a TCP connection, a ZeroMQ pair.
    Ordered,
    /// To one reader, which may miss frames, or get them twice or out of order: datagrams.
    Unordered,
    /// To any number of readers that join at any time and answer nothing: a topic.
    Fanout,
}

/// Settings of one end of a message link.
#[derive(Debug, Clone)]
pub struct MessageConfig {
    /// The carrier of the link.
    pub carrier: Carrier,
    /// Whether there is also a flow in the other direction between the same two ends: then lost
    /// messages can be requested again.
    pub duplex: bool,
    /// Longest message sent or received, in bytes.
    pub message_max: usize,
    /// History of a flow in bytes: what the sender wants, and what the receiver keeps at most.
    pub history: usize,
    /// Longest dictionary that the receiver accepts from its peer, in bytes.
    pub dictionary_max: usize,
    /// Number of dictionaries that the receiver keeps, at most [`SLOTS`].
    pub slots: usize,
    /// Distinguishes this end's flow from those of earlier connections and of the other direction:
    /// draw a new one for each connection.
    pub epoch: u64,
    /// Whether every frame has a check, for carriers that may damage data.
    pub check_all: bool,
    /// The initial content of the sender's history; the receiver needs it among `known`.
    pub seed: Option<Arc<Dictionary>>,
    /// Dictionaries that this end has from elsewhere, so their content need not be sent.
    pub known: Vec<Arc<Dictionary>>,
}

impl Default for MessageConfig {
    fn default() -> Self {
        Self {
            carrier: Carrier { delivery: Delivery::Ordered, borders: false },
            duplex: true,
            message_max: MESSAGE_MAX,
            history: HISTORY_BASELINE,
            dictionary_max: DICTIONARY_MAX,
            slots: SLOTS,
            epoch: 0,
            check_all: false,
            seed: None,
            known: Vec::new(),
        }
    }
}

impl MessageConfig {
    fn validate(&self) -> Result<()> {
        if self.message_max > MESSAGE_MAX || self.message_max == 0 {
            return Err(Error::misuse(format!(
                "the longest message must have 1 to {MESSAGE_MAX} bytes, not {}",
                self.message_max
            )));
        }
        if self.history != 0 && !(HISTORY_MIN..=HISTORY_MAX).contains(&self.history) {
            return Err(Error::misuse(format!("a history has {HISTORY_MIN} to {HISTORY_MAX} bytes, or 0")));
        }
        if self.dictionary_max > DICTIONARY_MAX || self.slots > SLOTS {
            return Err(Error::misuse(format!("at most {SLOTS} dictionaries of {DICTIONARY_MAX} bytes")));
        }
        if self.carrier.delivery != Delivery::Ordered && !self.carrier.borders {
            return Err(Error::misuse("a carrier that is not ordered must keep borders"));
        }
        Ok(())
    }

    /// Whether this end meets the limits that its peer assumes before it has heard anything.
    fn is_baseline(&self) -> bool {
        self.message_max == MESSAGE_MAX
            && self.history >= HISTORY_BASELINE
            && self.dictionary_max == DICTIONARY_MAX
            && self.slots == SLOTS
    }

    /// Whether this end accepts a dictionary of `len` bytes in `slot`.
    fn takes_dictionary(&self, slot: u8, len: usize) -> bool {
        len <= self.dictionary_max && usize::from(slot) <= self.slots
    }

    /// The configured history, or 0 on carriers that are not ordered.
    fn history_of_carrier(&self) -> usize {
        if self.carrier.delivery == Delivery::Ordered { self.history } else { 0 }
    }
}

/// The encoding of a message on the wire (format.md section 12.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// The message itself.
    Store,
    /// An LZ4 block.
    Lz4,
    /// A zstd block.
    Zstd,
}

impl Coding {
    const ALL: [Self; 3] = [Self::Store, Self::Lz4, Self::Zstd];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_and_their_contexts_may_change_threads() {
        fn check<T: Send>() {}
        check::<MessageSender>();
        check::<MessageReceiver>();
        check::<Contexts>();
        check::<Training>();
        check::<Arc<Dictionary>>();
    }
}
