//! `narrows run`: the supervisor of an unmodified program.
//!
//! The library in `preload/` hands each TCP connection of the program over and leaves a unix socket in its place. Here
//! is what stands between the two: `supervisor` takes requests, `pump` threads move bytes, `connection` knows what every
//! end and failure on one side means on the other, `through` is where bytes will be compressed. `binary` finds out what kind of
//! program it is; one into which no library can be loaded is put under a filter (`seccomp`).

pub(crate) mod agent;
mod binary;
mod channel;
mod connection;
mod gate;
mod gateway;
#[allow(dead_code, reason = "the library uses the other half")]
mod kinds;
pub(crate) mod launch;
mod line;
mod listeners;
#[allow(dead_code, reason = "until the pumps negotiate")]
pub(crate) mod negotiator;
mod owner;
mod peers;
#[allow(dead_code, reason = "until something negotiates")]
mod proof;
mod pump;
mod registrar;
pub(crate) mod scope;
mod seccomp;
pub(crate) mod status;
mod supervisor;
mod sys;
mod talk;
mod through;
#[allow(dead_code, reason = "the library uses the other half")]
mod wire;

pub(crate) use sys::raise_descriptor_limit;
