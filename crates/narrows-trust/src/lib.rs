//! How two ends of Narrows prove themselves to each other: by keys and tokens, or by certificates.

pub mod certificates;
pub mod ends;
mod error;
pub mod keys;
pub mod proof;
mod secret;
pub mod tls;

pub use error::{Error, Fault, Result};
