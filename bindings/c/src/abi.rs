//! The C ABI. `include/narrows.h` is generated from the names, layouts and comments of these modules.

// In the order of the header.
mod general;

mod streams;

mod file;

mod coder;

mod once;

mod messages;

mod topics;

pub use coder::*;
pub use file::*;
pub use general::*;
pub use messages::*;
pub use once::*;
pub use streams::*;
pub use topics::*;

use crate::status::Status;

/// A handle as a C pointer, which gives it a type. It is a number; no memory is behind it.
fn handle<T>(number: u64) -> *mut T {
    std::ptr::without_provenance_mut(number as usize)
}

fn number<T>(handle: *mut T) -> u64 {
    handle.addr() as u64
}

fn no_handle<T>(_: Status) -> *mut T {
    std::ptr::null_mut()
}

/// The return value of a failed function that returns a count.
fn count(status: Status) -> isize {
    status as isize
}

fn code(status: Status) -> i32 {
    status as i32
}
