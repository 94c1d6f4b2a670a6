//! `narrows ping`: messages to and fro, by many methods over the same link.
//!
//! ```text
//!   client                                                        server
//!   message ─> encode ─> wire ──────────────────────> decode ─> encode ─> wire
//!           <─ compare <─ decode <───────────────────────────────────┘
//! ```
//!
//! Each method has a connection of its own, and the methods take turns, so that what disturbs the link or the host disturbs all.

pub(crate) mod client;
mod end;
mod figures;
pub(crate) mod hello;
mod kept;
pub(crate) mod line;
pub(crate) mod messages;
pub(crate) mod method;
pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod wire;
