//! How two supervisors find out that they hold the two ends of one connection, and switch it to frames: the witnessed
//! upgrade of `docs/format.md` section 11, and the parts that the direct and the gateway way share with it. No I/O, no
//! clock, no randomness: bytes, times and secrets are arguments.
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
//! The driver moves events and words between the two machines of its side, and bytes between them and the world:
//!
//! ```text
//! Claimant::poll / Witness::poll  ─ Output::Flow(flow, event) ─>  Flow::hear
//! Flow::poll_word                 ─ word ─>                       Claimant::say / Witness::say
//! ```
//!
//! # For a driver
//!
//! - A `Claimant` for each host that its programs connect to, one `Witness` behind the service port of this host. Bytes of
//!   a side channel go to `receive`, its end to `lost`; the driver reads no more from it while it has bytes to send there.
//! - At a connect: read the socket's timestamp clock at once, `Flow::client`, `Claimant::claim`. At an accept: read the
//!   saved SYN, `Flow::server`, `Witness::accepted`. At the end of either: `ended`. At listen: `Witness::listening`.
//! - Of plain bytes to send: `Flow::sending_plain` before the write, in the order of the writes. Of bytes that came:
//!   `Flow::receive`, give out what it says, hand the rest to a receiver. Ends: `sending_end`, `receive_end`.
//! - After every call of a flow: `take_marker`, which goes behind what was counted, and `poll_word` until `None`.
//! - Timers: the least of all `next_wakeup_ns`; then `on_time` of those that are due.
//! - An error of a flow: reset on the wire, error at the program. The socket has `SO_LINGER` with time 0 until it is closed
//!   in order, so that the kernel does the same when this process dies; else its death looks like an end.

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

/// The driver's own number of a connection that it holds.
pub type FlowId = u64;

/// What the side channel says about a flow: for [`Flow::hear`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// To a server's flow: its peer has proved that it holds the client's end. It answers [`Word::Armed`] or
    /// [`Word::Decline`].
    Claimed(Key),
    /// To a client's flow: the server's end is held by a supervisor that looks for the marker.
    Ready(Key),
    /// To a client's flow: it stays plain for ever.
    Plain(WhyPlain),
    /// To a server's flow: the client will send no marker.
    Withdrawn,
    /// The peer holds what may begin a marker at this offset of the bytes that it got.
    Query {
        offset: u64,
    },
    Answer {
        offset: u64,
        marked: bool,
    },
    /// The side channel was lost and is there again.
    Restored,
}

/// What a flow says to its peer's: for [`Claimant::say`] and [`Witness::say`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// From a server's flow: it looks for the marker of the key that has this tag. An agent that took over has another key for
    /// the same claim, which this does not answer.
    Armed {
        tag: u64,
    },
    /// From a server's flow: too late, or claimed before under another key.
    Decline,
    /// From a client's flow: it will send no marker.
    Withdraw,
    Query {
        offset: u64,
    },
    Answer {
        offset: u64,
        marked: bool,
    },
    /// From a client's flow: nothing is left to ask or to answer.
    Settled,
}

/// Why a connection is plain, for the person who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyPlain {
    /// Nothing, or something else, listens on the peer's service port, now or less than a minute ago.
    NoService,
    /// The peer's word.
    Refused(Reason),
    /// No answer came in time.
    TimedOut,
    /// Too many claims wait already.
    Busy,
    /// No gateway took the connection, so it was made to the server itself.
    NoGateway,
    /// The peer is this host, and whoever has its service port is neither root nor the server's user.
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
