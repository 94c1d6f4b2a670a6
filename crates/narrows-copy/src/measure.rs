//! Measures the way to another host and the host itself: what `narrows measure` predicts copies from.
//!
//! ```text
//!   near                                  far, behind `narrows serve`
//!   request (`hello.rs`)  ------------->
//!                         <-------------  magic, hello: cores, whether it is the same host
//!   pings                 <------------>  pongs
//!   data, for a time      ------------->  acknowledgments: bytes, and when they came
//!   acknowledgments       ------------->
//!                         <-------------  data, for a time
//!   ask for speeds        <------------>  nanoseconds per byte of some methods
//! ```
//!
//! Whoever sends data keeps no more on the way than the link moves in a moment (`flood.rs`): a slow link
//! is free again soon after, whatever lies between. All times have limits at both ends, and nothing of
//! the far end's files is touched.

mod far;
mod flood;
mod near;
mod rate;
mod speeds;
mod talk;

use std::time::Duration;

pub use far::serve;
pub use near::{Direction, Found, Near, Peer};
pub use rate::{Rate, Series};
pub use speeds::{Speed, Speeds, measured as speeds};
pub use talk::Frame;
pub use talk::parse as parse_frame;

/// First bytes of the far end's answer; different from those of requests and streams.
pub const MAGIC: [u8; 8] = *b"\x93NRMT\r\n\x1a";
/// Version of the frames that this program speaks. The far end says its own; each end speaks the older
/// one of both.
pub const VERSION: u64 = 1;
/// Longest measurement that a far end takes part in: `--time` and what it takes to begin and to end.
pub const LIMIT: Duration = Duration::from_secs(90);

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasureTask {
    /// The whole measurement ends by then, in milliseconds.
    pub limit_ms: u64,
    /// A hash by which the far end recognizes its own host; 0 if there is none.
    pub host: u64,
}

/// A hash of this boot of this host, by which two ends on one host find each other; 0 if there is none.
/// It tells others nothing: the system's number is random.
pub fn this_host() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if boot.is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(format!("narrows measure {boot}").as_bytes()) }
}
