//! Objects of S3, Google Cloud Storage and Azure as files: read at any byte, written in parts.
//! The calls block; a small runtime behind them starts with the first store that is opened.
//!
//! ```no_run
//! use narrows_object::{ObjectFile, Options, Store, Url};
//!
//! # fn main() -> std::io::Result<()> {
//! let url = Url::parse(b"s3://bucket/model.nrw").unwrap().unwrap();
//! let store = Store::open(&url, &Options::default())?;
//! let file = narrows_file::File::open(ObjectFile::new(&store, &url.key)?).map_err(std::io::Error::other)?;
//! let mut buf = [0; 4096];
//! file.read_at(&mut buf, 1 << 30).map_err(std::io::Error::other)?;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod condition;
mod cut;
mod error;
pub mod meta;
mod object;
mod odd_keys;
mod pace;
mod pages;
mod pieces;
mod profile;
mod read;
mod runtime;
mod service;
mod signer;
mod store;
mod url;
mod write;

pub use condition::{Condition, Version};
pub use object::{Head, Object};
pub use read::{ObjectFile, ObjectReader};
pub use runtime::Stop;
pub use store::{Options, Store};
pub use url::{KEY_LEN_MAX, Scheme, Url};
pub use write::{CreateOptions, Created, ObjectWriter};
