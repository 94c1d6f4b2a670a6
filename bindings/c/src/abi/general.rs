//! Version, errors, policies, dictionaries.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::{c_char, c_void};

use crate::memory::{self, Plain, Room};
use crate::status::{Failure, Status, enter, last_status, last_text, narrows_status};
use crate::{messages, options};

/// Version of this header: a program compiled with it needs a library of the same major version (0:
/// the same minor version) that is not older.
pub const NARROWS_VERSION_MAJOR: u32 = 0;
/// See NARROWS_VERSION_MAJOR.
pub const NARROWS_VERSION_MINOR: u32 = 1;
/// See NARROWS_VERSION_MAJOR.
pub const NARROWS_VERSION_PATCH: u32 = 0;

/// The version of the library as major * 10000 + minor * 100 + patch. The header has it as
/// NARROWS_VERSION_NUMBER, so that a program can compare the two.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_version_number() -> u32 {
    NARROWS_VERSION_MAJOR * 10_000 + NARROWS_VERSION_MINOR * 100 + NARROWS_VERSION_PATCH
}

/// The version of the library, such as "0.1.0". A static string.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of a status, such as "corrupt"; "unknown" for any other number. A static string.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_status_name(status: i32) -> *const c_char {
    let known = Status::ALL.iter().find(|s| **s as i32 == status);
    known.map_or(c"unknown".as_ptr(), |s| s.name().as_ptr())
}

/// The status of the last failed call of this thread. Successful calls do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_last_status() -> narrows_status {
    last_status()
}

/// A one-line description of that failure for a person, never NULL. The string is valid until the
/// next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_last_error() -> *const c_char {
    last_text()
}

/// Checks whether a policy can be used: "balance", "fixed:zstd:level=3", "messages:latency_us=20".
/// On failure narrows_last_error() names what is wrong and lists the policies.
///
/// # Safety
/// `policy` must be NULL or a NUL-terminated string.
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

/// Bytes that somebody else owns: the caller if they are passed in, the library if a function
/// returns them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_bytes {
    /// The first byte.
    pub data: *const c_void,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a pointer and an integer.
unsafe impl Plain for narrows_bytes {}

/// Bytes of a stream or link so far.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_totals {
    /// Bytes of the application, before encoding.
    pub raw_bytes: u64,
    /// Bytes on the link, after encoding.
    pub wire_bytes: u64,
}

// SAFETY: integers.
unsafe impl Plain for narrows_totals {}

/// Trains a dictionary for messages from `count` samples. The samples are concatenated at `samples`
/// and have the lengths `lens`, in bytes. The dictionary is written to `dictionary`, at most `room`
/// bytes, and its length in bytes to `len`. About 100 samples per KiB of dictionary give a good
/// one; 8 KiB are enough for most kinds of messages. Samples that are too few or have nothing in
/// common are NARROWS_ERROR_MISUSE.
///
/// # Safety
/// `lens` must have `count` elements, `samples` the sum of them in bytes, and `dictionary` `room`
/// bytes.
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
            let total = total.ok_or_else(|| Failure::misuse("the sum of lens is too large"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_macros_are_the_version_of_the_crate() {
        let macros = format!("{NARROWS_VERSION_MAJOR}.{NARROWS_VERSION_MINOR}.{NARROWS_VERSION_PATCH}");
        assert_eq!(macros, env!("CARGO_PKG_VERSION"));
    }
}
