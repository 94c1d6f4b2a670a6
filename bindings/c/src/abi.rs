//! What C sees. The names, layouts and comments of these modules are `include/narrows.h`.

// In the order of the header.
mod general;

mod streams;

mod coder;

mod messages;

mod topics;

pub use coder::*;
pub use general::*;
pub use messages::*;
pub use streams::*;
pub use topics::*;

use crate::status::Status;

/// A handle travels as a pointer, for its type; it is a number, and no memory is behind it.
fn handle<T>(number: u64) -> *mut T {
    std::ptr::without_provenance_mut(number as usize)
}

fn number<T>(handle: *mut T) -> u64 {
    handle.addr() as u64
}

fn no_handle<T>(_: Status) -> *mut T {
    std::ptr::null_mut()
}

/// What functions return that give a count or a failure.
fn count(status: Status) -> isize {
    status as isize
}

fn code(status: Status) -> i32 {
    status as i32
}
