//! Messages: small units of application data, each sent at once, compressed with what the flow carried before.
//!
//! ```text
//!   message ──> choose ─> encode ─> [control frames] header body ──> carrier
//!                            ^ history, dictionaries
//!   message <── check <── decode <──────────────────────────────── carrier
//! ```
//!
//! [`MessageSender`] and [`MessageReceiver`] are the two ends of a flow (`docs/format.md`, section 12), and [`MessageEnd`] is
//! one end of both flows of a link. They do no I/O, start no thread and read no clock. A flow costs its history, a few hundred bytes, and no codec state: the contexts
//! of codecs are in [`Contexts`], one for each thread, which all flows of the thread share.
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

mod contexts;
mod control;
mod end;
mod header;
mod history;
mod receiver;
mod sample;
mod sender;
mod shadow;
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
/// Largest and smallest W of the format; 0 is no history.
pub const HISTORY_MAX: usize = 64 << 10;
pub const HISTORY_MIN: usize = 1 << 10;
/// The W that every peer takes before it said otherwise.
const HISTORY_BASELINE: usize = 16 << 10;
/// Dictionaries that a flow knows at a time.
pub const SLOTS: usize = 3;
/// How often the sender says what the history should be, in messages.
const DIGEST_EVERY: u64 = 256;

/// What the carrier does with frames. Both ends must be told the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carrier {
    pub delivery: Delivery,
    /// It delivers units as they were sent, so that frames need no length.
    pub borders: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Everything once and in order, to one reader: a TCP connection, a ZeroMQ pair.
    Ordered,
    /// To one reader, which may miss frames or see them twice or in another order: datagrams.
    Unordered,
    /// To any number of readers that come when they like and answer nothing: a topic.
    Fanout,
}

/// What an end of a message link allows, and what it says of itself.
#[derive(Debug, Clone)]
pub struct MessageConfig {
    pub carrier: Carrier,
    /// Whether the other direction has a flow whose frames come to the same end: then what was lost can be asked for.
    pub duplex: bool,
    /// Longest message, sent or received.
    pub message_max: usize,
    /// History of a flow in bytes: of the sender what it wants, of the receiver what it keeps at most.
    pub history: usize,
    /// Longest dictionary that the receiver takes from its peer, and how many.
    pub dictionary_max: usize,
    pub slots: usize,
    /// Tells this end's flow from those of earlier connections and from the other direction: drawn anew each time.
    pub epoch: u64,
    /// A check on every frame, for carriers that damage what they carry.
    pub check_all: bool,
    /// The sender's history begins with this; the receiver needs it among `known`.
    pub seed: Option<Arc<Dictionary>>,
    /// Dictionaries that this end has from elsewhere, so that they need not be sent.
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
                "messages have 1 to {MESSAGE_MAX} bytes at most, not {}",
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

    /// The peer assumes no more of this end than is true, before it heard anything.
    fn is_baseline(&self) -> bool {
        self.message_max == MESSAGE_MAX
            && self.history >= HISTORY_BASELINE
            && self.dictionary_max == DICTIONARY_MAX
            && self.slots == SLOTS
    }

    /// Whether this end keeps such a dictionary.
    fn takes_dictionary(&self, slot: u8, len: usize) -> bool {
        len <= self.dictionary_max && usize::from(slot) <= self.slots
    }

    /// The history that the flow may have at all.
    fn history_of_carrier(&self) -> usize {
        if self.carrier.delivery == Delivery::Ordered { self.history } else { 0 }
    }
}

/// How a message is encoded on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    Store,
    Lz4,
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
