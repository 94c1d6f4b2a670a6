//! `narrows tunnel`: connections of one network that continue in another.

pub mod engine;
pub mod frame;
pub mod hello;
mod incoming;
pub mod limits;
mod marks;
mod outgoing;
pub mod reason;
pub mod session;
pub mod target;
