//! Codecs and policies of other crates.
//!
//! A codec implements [`Codec`], [`BlockEncoder`] and [`BlockDecoder`], and is one of the [`Codecs`] in the options
//! of both ends. A policy implements [`Policy`] and is given to [`SendOptions::with_policy`], or is
//! [`Registered`] under a name in [`Policies`].
//!
//! [`SendOptions::with_policy`]: crate::SendOptions::with_policy

pub use crate::codec::{
    Codec, CodecId, Codecs, DecodeError, Decoder as BlockDecoder, Encoder as BlockEncoder, Level, Method,
};
pub use crate::monitor::{Ask, CpuView, Limits, LinkView, Pending, PendingState, ReceiverView, View};
pub use crate::policy::{
    Choice, NoSettings, Outcome, Policies, Policy, PolicySettings, PolicySetup, PolicySpec, Registered, Rescue,
};
