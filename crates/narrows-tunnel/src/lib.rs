//! `narrows tunnel`: connections of one network that continue in another.

pub mod backoff;
pub mod engine;
pub mod forward;
pub mod frame;
pub mod hello;
mod incoming;
pub mod limits;
mod marks;
mod outgoing;
pub mod rate;
pub mod reason;
pub mod rules;
pub mod session;
pub mod socks;
pub mod target;
