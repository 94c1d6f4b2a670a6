//! Emulated links between two hosts of one machine.
//!
//! ```text
//!   namespace "client"                                            namespace "server"
//!   CMD -- TCP -- link0 (TUN) ==> pump thread: [Shaper] ==> link0 (TUN) -- TCP -- CMD
//!                             <== pump thread: [Shaper] <==
//! ```
//!
//! [`Profile`] describes a link, [`Emulation`] runs it. The shaping (`shaper.rs`, `loss.rs`,
//! `trace.rs`) uses neither I/O nor a clock.

pub mod check;
mod emulation;
mod keeper;
mod kernel;
mod loss;
mod netlink;
mod process;
mod profile;
mod pump;
mod rng;
mod shaper;
mod sys;
mod trace;
mod units;

pub use emulation::{Backend, Emulation, LinkCounters, Side};
pub use loss::Loss;
pub use process::{end_group, leave_terminal_signals_to_children};
pub use profile::{Direction, Profile, Queue, Step, read_text};
pub use shaper::Counters;
pub use trace::Trace;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error, with a message of one line that says what to do.
#[derive(Debug)]
pub enum Error {
    /// The description of a link is wrong.
    Description(String),
    /// The system lacks something, or refuses it.
    Missing(String),
    /// A system call failed unexpectedly.
    System(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Description(text) | Self::Missing(text) | Self::System(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
