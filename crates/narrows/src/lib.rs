//! Makes data cross a narrow place faster: for every block it chooses whether and how to compress,
//! from the data, the link, the CPUs and the receiver as they are at that moment.
//!
//! ```text
//!    write ──> cut ─> choose ─> [job: encode] ─> order ─> frame ──> link
//!                       ^ monitors: data, link, CPU, costs, receiver
//!    read  <── order <─ [job: decode] <─ parse <──────────────────── link
//! ```
//!
//! # Which call
//!
//! | you have | call |
//! | --- | --- |
//! | data for a socket or pipe that is left to the library, on all cores | [`send`], [`receive`] over a [`Link`] |
//! | a connection of your own, which goes on after the data | [`Encoder`], [`Decoder`]: `Write` and `Read` |
//! | the same under tokio (feature `tokio`) | `AsyncEncoder`, `AsyncDecoder` |
//! | data for a file | the same with [`SendOptions::storage`] |
//! | messages with borders of their own | [`messages`] |
//! | a codec or a policy of your own | [`extend`] |
//!
//! # Example
//!
//! A megabyte over a connection of one's own, which can be used for other things before and after:
//!
//! ```
//! use std::io::{self, BufReader};
//! use std::net::{TcpListener, TcpStream};
//! use narrows::{Decoder, Encoder, ReceiveOptions, SendOptions};
//!
//! # fn main() -> narrows::Result<()> {
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let near = TcpStream::connect(listener.local_addr()?)?;
//! let (far, _) = listener.accept()?;
//!
//! let receiver = std::thread::spawn(move || -> io::Result<u64> {
//!     let mut decoder = Decoder::new(BufReader::new(far), ReceiveOptions::default());
//!     io::copy(&mut decoder, &mut io::sink())
//! });
//! let mut encoder = Encoder::new(&near, SendOptions::default());
//! io::copy(&mut &[7; 1 << 20][..], &mut encoder)?;
//! let (_, summary) = encoder.finish()?;
//! assert!(summary.ratio() > 1.0);
//! assert_eq!(receiver.join().expect("no panic")?, 1 << 20);
//! # Ok(())
//! # }
//! ```
//!
//! The folder `examples/` has whole programs: `send_file`, `own_socket`, `own_socket_tokio`, `compress_stream`,
//! `hostile_bytes`, `messages`, `own_codec`, `own_policy`.
//!
//! # Hostile bytes
//!
//! Bytes of a peer cause an [`Error`], never a panic; lengths are compared with the limits of [`ReceiveOptions`]
//! before memory is taken. What was delivered before an error was checked. The raw length has no limit, and
//! time has none by default ([`ReceiveOptions::stall_timeout`]): limit what you read.
//!
//! # Limits
//!
//! No encryption and no authentication: the checks detect damage, not malice, so carry a flow over
//! ssh or TLS where others can reach it. No access to file systems. No lossy methods.
//!
//! # Stability
//!
//! The names on this page are the interface. Other modules are public for the crates of Narrows alone, are
//! hidden here, and change without notice.

#![warn(missing_docs)]

#[doc(hidden)]
pub mod ahead;
#[doc(hidden)]
pub mod base64;
#[doc(hidden)]
pub mod block;
#[doc(hidden)]
pub mod calibration;
#[doc(hidden)]
pub mod codec;
#[doc(hidden)]
pub mod entry;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod flow;
#[doc(hidden)]
pub mod frame;
#[doc(hidden)]
pub mod hint;
mod history;
#[doc(hidden)]
pub mod jpeg;
#[doc(hidden)]
pub mod message;
#[doc(hidden)]
pub mod monitor;
#[doc(hidden)]
pub mod oracle;
mod past;
#[doc(hidden)]
pub mod policy;
#[doc(hidden)]
pub mod pool;
#[doc(hidden)]
pub mod probe;
#[doc(hidden)]
pub mod receiver;
#[doc(hidden)]
pub mod repeats;
#[doc(hidden)]
pub mod sender;
#[doc(hidden)]
pub mod stored;
#[doc(hidden)]
pub mod stream;
mod sys;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod transport;
#[doc(hidden)]
pub mod upgrade;
#[doc(hidden)]
pub mod value;
mod varint;

pub mod extend;
pub mod messages;

pub use error::{Error, ErrorKind, Result};
pub use policy::{Policies, PolicySpec};
pub use receiver::{RecvMixRow, RecvSummary};
pub use sender::{MixRow, Summary};
#[cfg(feature = "tokio")]
pub use stream::{AsyncDecoder, AsyncEncoder};
pub use stream::{Control, Decoder, Encoder, ReceiveOptions, SendOptions, receive, receive_then, send};
pub use transport::Link;
