//! skeleton
pub mod block;
pub mod calibration;
pub mod codec;
pub mod error;
pub mod frame;
pub mod monitor;
pub mod oracle;
pub mod policy;
pub mod pool;
pub mod receiver;
pub mod sender;
pub mod stream;
mod sys;
pub mod trace;
pub mod transport;
pub use error::{Error, ErrorKind, Result};
