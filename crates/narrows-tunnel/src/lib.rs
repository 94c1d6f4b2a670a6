//! `narrows tunnel`: connections of one network that continue in another.

pub mod frame;
pub mod hello;
pub mod limits;
pub mod reason;
pub mod session;
pub mod target;
