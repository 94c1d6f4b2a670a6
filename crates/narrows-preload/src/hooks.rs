//! Hooks: the symbols that take precedence over libc's.
//!
//! Those that may block are `C-unwind`: cancelling a thread unwinds through them, and they own
//! nothing. They cannot panic; code that could is behind the border of an `extern "C"` function,
//! which aborts. Such a function must not be inlined into its caller: that would need unwinding
//! code of ours, and there is none (`freestanding.rs`).
#![allow(unsafe_code, reason = "deals with pointers of the program; every block says why it is sound")]
#![allow(unreachable_pub, reason = "programs reach these by name")]
#![allow(clippy::missing_safety_doc, reason = "as the functions of libc of the same names")]

use core::ffi::c_int;

use crate::begin::ours;
use crate::setup;
use crate::start;
use crate::sys::set_errno;
use crate::wire::Name;

mod connections;
mod data;
mod descriptors;
mod names;
mod options;

// SAFETY: the loader calls the functions in this section, with arguments that `start` ignores.
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code, reason = "tests are no program under narrows run"))]
static START: extern "C" fn() = start::start;

fn fail(number: c_int) -> c_int {
    set_errno(number);
    -1
}

fn active() -> bool {
    setup::get().is_some()
}

fn named(fd: c_int) -> Option<Name> {
    if active() { ours(fd) } else { None }
}

#[inline(never)]
extern "C" fn is_ours(fd: c_int) -> bool {
    ours(fd).is_some()
}
