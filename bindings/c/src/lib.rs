//! The C face of Narrows: `libnarrows` and `narrows.h`.
//!
//! ```text
//!   abi/       what C sees: names, layouts, pointers                         unsafe
//!   memory     pointers of the caller as slices     sys  descriptors         unsafe
//!   handles    numbers instead of addresses: who is closed, foreign or busy
//!   writer, reader, coder, messages, topics    the objects behind the handles
//! ```
//!
//! Everything below `abi` is safe code over the engine's public API. A call never unwinds into C: a panic is caught, told as
//! [`narrows_status::NARROWS_ERROR_INTERNAL`], and its object takes no more calls but the one that frees it.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles are numbers of 64 bits");

pub mod abi;
mod channel;
mod coder;
mod handles;
mod memory;
mod messages;
mod options;
mod reader;
mod status;
mod sys;
mod topics;
mod writer;

pub use status::narrows_status;
