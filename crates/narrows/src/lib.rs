//! Makes data cross a narrow place faster: for every block it chooses whether and how to compress,
//! from the data, the link, the CPUs and the receiver as they are at that moment.
//!
//! ```text
//!    write ──> cut ─> choose ─> [job: encode] ─> order ─> frame ──> link
//!                       ^ monitors: data, link, CPU, costs, receiver
//!    read  <── order <─ [job: decode] <─ parse <──────────────────── link
//! ```
//!
//! [`Sender`](sender::Sender) and [`Receiver`](receiver::Receiver) do no I/O, start no thread and
//! read no clock: time is an argument, bytes and jobs are handed in and out. [`stream`] drives them
//! over sockets, pipes and files with threads; the tests drive the same code in virtual time.
//!
//! # Example
//!
//! A megabyte through a pair of sockets, as `narrows send` and `narrows recv` do it:
//!
//! ```
//! use narrows::{stream::*, transport::Link};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = std::os::unix::net::UnixStream::pair()?;
//! let (near, far) = (Link::unix(here)?, Link::unix(there)?);
//! let receiver = std::thread::spawn(|| receive(std::io::sink(), far, ReceiveOptions::default()));
//! let source = std::io::Cursor::new(vec![7; 1 << 20]);
//! let (summary, _policy) = send(source, near, SendOptions::default())?;
//! receiver.join().expect("no panic")?;
//! assert!(summary.ratio() > 1.0);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sender`], [`receiver`] | the two ends of a flow |
//! | [`flow`] | each of them with its jobs, as drivers use them |
//! | [`policy`] | rules: `balance`, `messages`, `fixed`, or your own [`Policy`](policy::Policy) |
//! | [`monitor`] | measurements for policies: data, link, CPU, costs, receiver |
//! | [`codec`] | codecs of blocks, and their registry |
//! | [`probe`] | whether bytes look like numbers, and how wide they are |
//! | [`base64`], [`jpeg`] | whether bytes have lines of base64; where images are in them |
//! | [`frame`] | the wire format of `docs/format.md` |
//! | [`ahead`] | how far a direction may be ahead of its reader |
//! | [`message`] | the two ends of a message flow, in which the application sets the borders |
//! | [`repeats`] | raw bytes that came before in a flow, far back |
//! | [`stored`] | raw bytes that are read back from where they are stored |
//! | [`value`] | values of a store, each encoded on its own |
//! | [`hint`] | what a user says about bytes that are stored |
//! | [`entry`] | files and folders as the raw bytes of a flow |
//! | [`stream`], [`transport`], [`pool`] | the driver with threads, the links, the workers |
//! | [`upgrade`] | how two supervisors agree to switch a program's connection to frames |
//! | [`calibration`] | measured costs of methods on a host, kept between runs |
//! | [`oracle`] | the best result that any choice could have had |
//! | [`trace`] | records of every decision with its reason |
//!
//! # Limits
//!
//! No encryption and no authentication: the checks detect damage, not malice, so carry a flow over
//! ssh or TLS where others can reach it. No access to file systems: [`entry`] only defines the
//! records of files, which the program reads and writes. No lossy methods.

#![warn(missing_docs)]

pub mod ahead;
pub mod base64;
pub mod block;
pub mod calibration;
pub mod codec;
pub mod entry;
pub mod error;
pub mod flow;
pub mod frame;
pub mod hint;
mod history;
pub mod jpeg;
pub mod message;
pub mod monitor;
pub mod oracle;
mod past;
pub mod policy;
pub mod pool;
pub mod probe;
pub mod receiver;
pub mod repeats;
pub mod sender;
pub mod stored;
pub mod stream;
mod sys;
pub mod trace;
pub mod transport;
pub mod upgrade;
pub mod value;
mod varint;

pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "tokio")]
pub use stream::{AsyncDecoder, AsyncEncoder};
pub use stream::{Control, Decoder, Encoder, ReceiveOptions, SendOptions, receive, receive_then, send};
pub use transport::Link;
