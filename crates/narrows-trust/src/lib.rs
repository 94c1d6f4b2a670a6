//! Proof between two ends of Narrows: keys and tokens, or certificates.

pub mod certificates;
pub mod ends;
mod error;
pub mod keys;
pub mod proof;
mod secret;
pub mod tls;

pub use error::{Error, Fault, Result};
