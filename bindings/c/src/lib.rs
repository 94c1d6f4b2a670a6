//! The C bindings of Narrows: `libnarrows` and `narrows.h`.
//!
//! ```text
//!   abi/       the C ABI: names, layouts, pointers                                    unsafe
//!   memory     pointers of the caller as slices     sys  descriptors and signals      unsafe
//!   handles    numbers instead of addresses, to detect closed, foreign and busy objects
//!   writer, reader, file, coder, messages, topics    the objects behind the handles
//!   once       whole streams in one call
//! ```
//!
//! All other modules are safe code over the engine's public API. A call never unwinds into C: a
//! panic is caught and reported as [`narrows_status::NARROWS_ERROR_INTERNAL`], and its object
//! accepts no call afterwards except the one that frees it.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles are numbers of 64 bits");

pub mod abi;
mod channel;
mod coder;
mod file;
mod handles;
mod memory;
mod messages;
mod once;
mod options;
mod reader;
mod status;
mod sys;
mod topics;
mod writer;

pub use status::narrows_status;
