//! `narrows ping`: round trips of messages with many methods over the same link.
//!
//! ```text
//!   client                                                        server
//!   message ─> encode ─> wire ──────────────────────> decode ─> encode ─> wire
//!           <─ compare <─ decode <───────────────────────────────────┘
//! ```
//!
//! Each method has its own connection. The methods take turns, so that a disturbance of the link or
//! the host affects all of them.

pub(crate) mod client;
mod end;
mod figures;
pub(crate) mod hello;
mod kept;
pub(crate) mod messages;
pub(crate) mod method;
pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod socket;
pub(crate) mod wire;
