//! Version, errors, policies, dictionaries.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::{c_char, c_void};

use crate::memory::{self, Plain, Room};
use crate::status::{Failure, Status, enter, last_status, last_text, narrows_status};
use crate::{messages, options};

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn narrows_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A word for a status, such as "corrupt"; "unknown" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_status_name(status: i32) -> *const c_char {
    let known = Status::ALL.iter().find(|s| **s as i32 == status);
    known.map_or(c"unknown".as_ptr(), |s| s.name().as_ptr())
}

/// The status of the calling thread's last call that failed. Calls that succeed do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_last_status() -> narrows_status {
    last_status()
}

/// What was wrong then, in words for a person, of one line. Good until the thread's next call that fails, and never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_last_error() -> *const c_char {
    last_text()
}

/// Whether a policy can be used: "balance", "fixed:zstd:level=3", "messages:latency_us=20". The words of a failure name what is
/// wrong, and the policies that there are.
///
/// # Safety
/// `policy` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_policy_check(policy: *const c_char) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for the string.
            let text = unsafe { memory::text(policy, "policy")? };
            let text = text.ok_or_else(|| Failure::misuse("policy is a null pointer"))?;
            options::policy(text).map(|_| Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Bytes of somebody else.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_bytes {
    pub data: *const c_void,
    pub len: usize,
}

// SAFETY: a pointer and an integer.
unsafe impl Plain for narrows_bytes {}

/// What went over a link so far.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_totals {
    /// Bytes of the application.
    pub raw_bytes: u64,
    /// Bytes of the link.
    pub wire_bytes: u64,
}

// SAFETY: integers.
unsafe impl Plain for narrows_totals {}

/// Trains a dictionary for messages with `count` samples, which lie one behind the other at `samples` and have the lengths
/// `lens`. It has at most `room` bytes; some 100 samples for each KiB make a good one, and 8 KiB are enough for most kinds of
/// messages. Its length is stored at `len`.
///
/// # Safety
/// `lens` has `count` lengths, `samples` as many bytes as all of them, and `dictionary` room for `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_dictionary_train(
    samples: *const c_void,
    lens: *const usize,
    count: usize,
    dictionary: *mut c_void,
    room: usize,
    len: *mut usize,
) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for `count` lengths.
            let lens = unsafe { memory::array(lens, count, "lens")? };
            let total = lens.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
            let total = total.ok_or_else(|| Failure::misuse("lens are longer than any memory"))?;
            // SAFETY: the caller answers for the bytes of all samples, and for the room.
            let (samples, mut to) =
                unsafe { (memory::bytes(samples, total, "samples")?, Room::new(dictionary, room, "dictionary")?) };
            if len.is_null() {
                return Err(Failure::misuse("len is a null pointer"));
            }
            let made = messages::train(samples, lens, room)?;
            to.put(&made);
            // SAFETY: not null, and the caller answers for the rest.
            unsafe { memory::store(len, made.len(), "len")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}
