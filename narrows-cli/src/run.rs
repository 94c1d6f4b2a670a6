//! `narrows run`: the supervisor of an unmodified program.
//!
//! The library in `preload/` hands each TCP connection of the program to the supervisor and leaves
//! a unix socket in its place. This module is what sits between the two sockets: `supervisor` takes
//! requests, `pump` threads move bytes, `connection` maps every end and failure on one side to what
//! the other side sees, and `outgoing` and `incoming` are its two directions, plain or in frames.
//! `binary` finds out what kind of program it is; one that cannot load the library runs under a
//! seccomp filter (`seccomp`).

mod account;
pub(crate) mod agent;
mod allowance;
mod asker;
mod attention;
mod binary;
mod budget;
mod channel;
pub(crate) mod compressor;
mod connection;
mod dialing;
mod encrypted;
mod failures;
mod gate;
mod gateway;
mod held;
mod incoming;
#[allow(dead_code, reason = "the library uses the other half")]
mod kinds;
pub(crate) mod launch;
mod line;
mod listeners;
pub(crate) mod negotiator;
mod outgoing;
mod owner;
mod peers;
mod proof;
mod pump;
mod registrar;
pub(crate) mod scope;
mod seccomp;
mod socket;
pub(crate) mod status;
pub(crate) mod supervisor;
mod sys;
mod talk;
mod vital;
#[allow(dead_code, reason = "the library uses the other half")]
pub(crate) mod wire;

pub(crate) use sys::{is_ignored, raise_descriptor_limit};
