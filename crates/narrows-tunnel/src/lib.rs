//! `narrows tunnel`: connections of one network that continue in another.
//!
//! ```text
//! local socket -- Conn: Outgoing, Incoming --- Session --- Wire -- carrier's socket
//! ```
//!
//! `frame`, `hello`, `session`, `outgoing`, `incoming`, `socks`, `rules` and `forward` have no I/O and
//! read no clock. `pump` is the one thread that moves bytes between them and sockets.

mod asks;
pub mod backoff;
mod by_flow;
pub mod counters;
pub mod engine;
pub mod forward;
pub mod frame;
pub mod hello;
mod incoming;
pub mod limits;
mod lines;
mod lookup;
mod marks;
mod outgoing;
mod principal;
pub mod proxy;
mod pump;
pub mod rate;
pub mod reason;
mod refusal;
pub mod reports;
pub mod rules;
pub mod service;
pub mod session;
pub mod settings;
mod socket;
pub mod socks;
mod standing;
pub mod target;
mod tunnel;
mod unreached;
mod watcher;
mod wire;

pub use tunnel::Tunnel;
pub use watcher::Watcher;
