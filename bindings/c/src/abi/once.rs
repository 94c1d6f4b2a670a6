//! Whole streams in one call.
#![allow(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;

use super::count;
use super::streams::{narrows_stream_options, stream_options};
use crate::memory::{self, Room};
use crate::once;
use crate::status::{Failure, Result, Status, enter};

/// The bytes to read and the room to write, which must not overlap.
///
/// # Safety
/// Both are null or have their lengths in bytes.
unsafe fn buffers<'a>(to: *mut c_void, room: usize, from: *const c_void, len: usize) -> Result<(Room, &'a [u8])> {
    // SAFETY: the caller answers for both.
    let (room, bytes) = unsafe { (Room::new(to, room, "to")?, memory::bytes(from, len, "from")?) };
    if room.overlaps(bytes) {
        return Err(Failure::misuse("from and to overlap"));
    }
    Ok((room, bytes))
}

/// Most bytes that narrows_compress writes for `len` bytes, with any policy for streams; 0 if that is
/// more than memory can have.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_compress_bound(len: usize) -> usize {
    once::bound(len).unwrap_or(0)
}

/// Compresses `len` bytes into a whole stream at `to`, at most `room` bytes. Returns its length, or
/// a negative narrows_status: NARROWS_ERROR_LIMIT if there is too little room, which never happens
/// with narrows_compress_bound. The stream is the same as one of an encoder or a writer; programs
/// read it too. Of `options`, which may be NULL, policy and the flags NARROWS_NO_CHECK and
/// NARROWS_INDEX apply; without a policy the method is zstd, since there is no link to decide.
///
/// # Safety
/// `from` must have `len` bytes and `to` `room` bytes, which do not overlap. `options` must be NULL
/// or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_compress(
    to: *mut c_void,
    room: usize,
    from: *const c_void,
    len: usize,
    options: *const narrows_stream_options,
) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for all of them.
            let (options, (mut room, bytes)) = unsafe { (stream_options(options)?, buffers(to, room, from, len)?) };
            once::encode(options, bytes, &mut room).map(|n| n as isize)
        },
        count,
    )
}

/// Decodes the `len` bytes of a whole stream into `to`, at most `room` bytes. Returns the length of
/// the content, or a negative narrows_status: NARROWS_ERROR_LIMIT if there is too little room. Bytes
/// after the stream are a failure. After a failure `to` may hold a part of the content.
///
/// # Safety
/// `from` must have `len` bytes and `to` `room` bytes, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_decompress(to: *mut c_void, room: usize, from: *const c_void, len: usize) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for both.
            let (mut room, bytes) = unsafe { buffers(to, room, from, len)? };
            once::decode(bytes, &mut room).map(|n| n as isize)
        },
        count,
    )
}

/// Length of the content of the whole stream at `from`, as its last frame states it, or a negative
/// narrows_status. Nothing is decoded: check a length from a stranger before you allocate so much.
///
/// # Safety
/// `from` must have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_content_len(from: *const c_void, len: usize) -> i64 {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let len = once::content_len(unsafe { memory::bytes(from, len, "from")? })?;
            i64::try_from(len).map_err(|_| Failure::new(Status::NARROWS_ERROR_LIMIT, "the length exceeds 63 bits"))
        },
        |s| i64::from(s as i32),
    )
}
