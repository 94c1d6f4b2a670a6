//! Round trips of messages with many methods over the same link: the library behind `narrows ping`.
//!
//! ```text
//!   client                                                        server
//!   message ─> encode ─> wire ──────────────────────> decode ─> encode ─> wire
//!           <─ compare <─ decode <───────────────────────────────────┘
//! ```
//!
//! Each method has its own connection. The methods take turns, so that a disturbance of the link or
//! the host affects all of them.

pub mod client;
pub mod dictionary;
mod end;
pub mod figures;
pub mod hello;
mod kept;
pub mod messages;
pub mod method;
pub mod samples;
pub mod server;
pub mod show;
pub mod socket;
pub mod wire;
