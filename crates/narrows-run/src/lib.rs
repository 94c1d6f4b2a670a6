//! `narrows run`: the supervisor of an unmodified program.
//!
//! The preloaded library (`crates/narrows-preload`) hands each TCP connection of the program to the
//! supervisor and leaves a unix socket in its place. This crate is what sits between the two
//! sockets: `supervisor` takes requests, `pump` threads move bytes, `connection` maps every end and
//! failure on one side to what the other side sees, and `outgoing` and `incoming` are its two
//! directions, plain or in frames. `binary` finds out what kind of program it is; one that cannot
//! load the library runs under a seccomp filter (`seccomp`).

mod account;
pub mod agent;
mod agent_socket;
pub mod agent_watch;
mod allowance;
mod asker;
mod attention;
mod behind;
mod binary;
mod budget;
mod channel;
pub mod compressor;
mod connection;
mod dialing;
mod error;
mod failures;
mod gate;
mod gateway;
mod held;
mod incoming;
pub mod launch;
mod listeners;
pub mod negotiator;
mod outgoing;
mod owner;
mod peers;
mod proof;
mod pump;
mod registrar;
pub mod scope;
mod seccomp;
mod shared;
mod socket;
mod stall;
pub mod status;
pub mod supervisor;
mod sys;
mod talk;
mod vital;

pub use error::{Error, Result};
use narrows_run_wire::{kinds, wire};
pub use sys::raise_descriptor_limit;
