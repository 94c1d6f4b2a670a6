//! Files of Narrows streams: written with an index, read at any byte by several threads at once,
//! scrubbed and repaired; and files of other formats, read by their magic numbers.
//!
//! ```
//! use std::io::Write;
//! use narrows_file::{File, WriteOptions, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut writer = Writer::new(Vec::new(), WriteOptions::default())?;
//! writer.write_all(&vec![7; 3 << 20])?;
//! let (stored, _summary) = writer.finish()?;
//!
//! let file = File::open(stored)?;
//! let mut buf = [0; 5];
//! assert_eq!(file.read_at(&mut buf, (3 << 20) - 3)?, 3);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod ahead;
pub mod alone;
mod cache;
pub mod check;
mod cursor;
pub mod decode;
pub mod effort;
mod file;
mod footer;
pub mod foreign;
mod index;
mod read_at;
pub mod repack;
pub mod repair;
mod scan;
mod split;
mod writer;
pub mod zstd_seekable;

pub use file::{File, OpenOptions};
pub use index::{Entry, IndexOrigin, Member};
pub use read_at::ReadAt;
pub use split::Split;
pub use writer::{WriteOptions, Writer};

pub use narrows::hint::{Hint, Mode};
pub use narrows::{Error, ErrorKind, Result};
