//! The witnessed upgrade (`docs/format.md`, section 11): two supervisors that hold the two ends of
//! a connection find each other and switch the connection to frames. The direct and the gateway way
//! share parts of it. No I/O, clock or randomness: bytes, times and secrets are arguments.
//!
//! ```text
//!  client program   supervisor                                supervisor   server program
//!        │             │ ═════════ the program's own connection ══════ │         │
//!        │        Flow │                                               │ Flow    │
//!        │    Claimant │ ───────────── side channel ────────────────── │ Witness │
//!        │             │   CLAIM{addresses, clock, nonce}  ──>         │         │
//!        │             │                      <──  READY{key} or NO    │         │
//!        │     plain bytes, undelayed │MARK│ frames  ──>               │         │
//!        │             │     <──  frames │MARK│ plain bytes, undelayed │         │
//! ```
//!
//! The driver moves events and words between the two state machines on its side, and bytes between
//! them and the network:
//!
//! ```text
//! Claimant::poll / Witness::poll  ─ Output::Flow(flow, event) ─>  Flow::hear
//! Flow::poll_word                 ─ word ─>                       Claimant::say / Witness::say
//! ```
//!
//! # For a driver
//!
//! - Keep one `Claimant` per host that the programs connect to, and one `Witness` behind this
//!   host's service port. Pass the bytes of a side channel to `receive`, and its loss to `lost`.
//!   While a side channel has unsent bytes, the driver does not read from it.
//! - On connect: read the socket's timestamp clock at once, then call `Flow::client` and
//!   `Claimant::claim`. On accept: read the saved SYN, then call `Flow::server` and
//!   `Witness::accepted`. When a connection ends, call `ended`. On listen, call
//!   `Witness::listening`.
//! - Call `Flow::sending_plain` before each write of plain bytes, in the order of the writes. Pass
//!   received bytes to `Flow::receive`, deliver what it releases, and hand the rest to a receiver.
//!   For the ends of the two directions call `sending_end` and `receive_end`.
//! - After every call of a flow: `take_marker`, whose bytes are sent after the plain bytes counted
//!   so far, and `poll_word` until it returns `None`.
//! - Timers: sleep until the earliest `next_wakeup_ns`, then call `on_time` of every machine that
//!   is due.
//! - On an error of a flow: reset the connection and report an error to the program. Keep
//!   `SO_LINGER` with time 0 on the socket until it is closed in order, so that the kernel resets
//!   the connection if this process dies; otherwise its death would look like an end of stream.

pub mod claimant;
pub mod flow;
pub mod gateway;
mod incoming;
pub mod marker;
pub mod message;
pub mod proof;
pub mod witness;

use std::fmt;

pub use claimant::{Claimant, ClaimantLimits};
pub use flow::{Flow, FlowLimits};
pub use incoming::{Released, Step};
pub use marker::Key;
pub use proof::Tuple;
pub use witness::{Witness, WitnessLimits, host_of};

use message::Reason;

/// The driver's number for a connection that it holds.
pub type FlowId = u64;

/// An event from the side channel, for [`Flow::hear`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// To a server's flow: its peer has proved that it holds the client's end. The flow answers
    /// with [`Word::Armed`] or [`Word::Decline`].
    Claimed(Key),
    /// To a client's flow: the server's end is held by a supervisor that looks for the marker.
    Ready(Key),
    /// To a client's flow: it stays plain permanently, unless a late `Ready` follows.
    Plain(WhyPlain),
    /// To a server's flow: the client will send no marker.
    Withdrawn,
    /// The peer holds bytes at this offset that may begin a marker, and asks whether they do.
    Query {
        /// Plain bytes of the asked direction before the held ones.
        offset: u64,
    },
    /// The peer's answer to a query, or its announcement of the place of its marker.
    Answer {
        /// Plain bytes of the peer's direction before the place in question.
        offset: u64,
        /// Whether the peer's marker is at `offset`.
        marked: bool,
    },
    /// The side channel was lost and has been restored.
    Restored,
}

/// A message of a flow to its peer, for [`Claimant::say`] and [`Witness::say`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// From a server's flow: it looks for the marker of the key with this tag. An agent that took
    /// over has another key for the same claim; this word does not answer for that key.
    Armed {
        /// [`Key::tag`] of the key.
        tag: u64,
    },
    /// From a server's flow: too late, or claimed before under another key.
    Decline,
    /// From a client's flow: it will send no marker.
    Withdraw,
    /// Asks whether the held bytes at this offset begin the peer's marker.
    Query {
        /// Plain bytes of the peer's direction before the held ones.
        offset: u64,
    },
    /// Answers a query, or announces the place of the marker.
    Answer {
        /// Plain bytes of this side's direction before the place in question.
        offset: u64,
        /// Whether this side's marker is at `offset`.
        marked: bool,
    },
    /// From a client's flow: no question or answer is outstanding any more.
    Settled,
}

/// Why a connection stayed plain, for diagnostics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyPlain {
    /// Nothing, or another service, listens on the peer's service port, or did so less than a
    /// minute ago.
    NoService,
    /// The peer refused the claim.
    Refused(Reason),
    /// The peer did not answer in time.
    TimedOut,
    /// Too many claims are waiting already.
    Busy,
    /// No gateway took the connection, so it was made to the server directly.
    NoGateway,
    /// The peer is this host, and the process that owns its service port belongs neither to root
    /// nor to the server's user.
    Stranger,
}

impl fmt::Display for WhyPlain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoService => "no narrows at the other end",
            Self::TimedOut => "the other end did not answer in time",
            Self::Busy => "too many connections are being negotiated",
            Self::NoGateway => "no gateway took it",
            Self::Stranger => "another user of this host has the service port",
            Self::Refused(Reason::NotHere) => "the other program does not run under narrows",
            Self::Refused(Reason::Proof) => {
                "the other end sees another connection (SYN proxy, no TCP timestamps, or a listener of MPTCP)"
            }
            Self::Refused(Reason::Address) => "the other end sees another address (NAT)",
            Self::Refused(Reason::NotAccepted) => {
                "the other program did not accept it in time, or it is not the one reached"
            }
            Self::Refused(Reason::Busy) => "the other end negotiates too many connections",
            Self::Refused(Reason::Taken) => "it was claimed before",
            Self::Refused(Reason::Ended) => "it was about to end",
            Self::Refused(Reason::Other(_)) => "the other end refused",
        })
    }
}
