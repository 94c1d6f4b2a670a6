//! Streams over descriptors.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::{c_char, c_int, c_void};

use super::{count, handle, narrows_totals, no_handle, number};
use crate::handles::Held;
use crate::memory::{self, Plain, Room};
use crate::options::StreamOptions;
use crate::reader::Reader;
use crate::status::{Failure, Status, enter, narrows_status};
use crate::writer::Writer;

/// Flag: the stream uses only one direction of the socket. The other direction is free for another
/// stream or anything else, and nothing is confirmed. Both ends must set it, or neither.
pub const NARROWS_ONE_WAY: u32 = 1;
/// Flag: closing the object closes the descriptor. If opening fails, it stays open. Of two streams
/// on one descriptor only one may set it.
pub const NARROWS_CLOSE_FD: u32 = 2;
/// Flag: no checksums on the blocks, for data that has its own.
pub const NARROWS_NO_CHECK: u32 = 4;
/// Flag: append an index, so that a file can be read from any offset (narrows_file_open).
pub const NARROWS_INDEX: u32 = 8;

/// Options of a stream. Set struct_size to sizeof(narrows_stream_options); all other members may be
/// 0 for the defaults. NULL in place of the structure means all defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_stream_options {
    /// sizeof(narrows_stream_options).
    pub struct_size: usize,
    /// Policy that chooses the compression methods; NULL is "balance". For writers and encoders
    /// only.
    pub policy: *const c_char,
    /// Flags: NARROWS_ONE_WAY and so on.
    pub flags: u32,
    /// Number of threads that encode or decode; 0 chooses by the number of cores. Encoders and
    /// decoders start no threads.
    pub threads: u32,
    /// The stream fails when the link accepts or delivers nothing for this many milliseconds, or
    /// its end is not confirmed within them. 0 is no limit: narrows_write, narrows_read and
    /// narrows_writer_close then wait as long as the peer is silent and its connection exists.
    pub stall_timeout_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Number of bytes that will be written, if known: it helps the policy. 0 is unknown.
    pub raw_len: u64,
}

// SAFETY: integers and a pointer.
unsafe impl Plain for narrows_stream_options {}

/// Copies the options.
///
/// # Safety
/// As for [`memory::options`]; `policy` must be null or a NUL-terminated string.
pub(super) unsafe fn stream_options(from: *const narrows_stream_options) -> crate::status::Result<StreamOptions> {
    // SAFETY: as the caller of this function answers for.
    let Some(given) = (unsafe { memory::options(from, "options")? }) else { return Ok(StreamOptions::default()) };
    if given.reserved != 0 {
        return Err(Failure::misuse("options.reserved is not 0"));
    }
    // SAFETY: the same.
    let policy = unsafe { memory::text(given.policy, "options.policy")? };
    Ok(StreamOptions {
        policy: policy.map(str::to_owned),
        flags: given.flags,
        threads: given.threads,
        stall_timeout_ms: given.stall_timeout_ms,
        raw_len: given.raw_len,
    })
}

/// Writes a stream to a descriptor. A handle, not a pointer to memory.
pub struct narrows_writer {
    _opaque: [u8; 0],
}

/// Reads a stream from a descriptor. A handle, not a pointer to memory.
pub struct narrows_reader {
    _opaque: [u8; 0],
}

/// Begins a stream over a socket, pipe or file that is open for writing; returns NULL on failure.
/// Until the stream is closed, nothing else may write to what the descriptor refers to, nor read
/// from it if it is a socket, unless NARROWS_ONE_WAY is set. The caller may close the descriptor,
/// since the writer duplicates it. A child of fork cannot use the writer.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_writer_open(fd: c_int, options: *const narrows_stream_options) -> *mut narrows_writer {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { stream_options(options)? };
            Writer::table().open(|| Writer::open(fd, &options)).map(handle)
        },
        no_handle,
    )
}

/// Writes all `len` bytes and returns `len`, or a negative narrows_status. Waits while the link is
/// busy, without limit unless stall_timeout_ms is set. An idle link sends the bytes at once: there
/// is nothing to flush.
///
/// # Safety
/// `data` must be NULL or have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_write(writer: *mut narrows_writer, data: *const c_void, len: usize) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let bytes = unsafe { memory::bytes(data, len, "data")? };
            Writer::table().with(number(writer), |w| w.write(bytes))?;
            Ok(len as isize)
        },
        count,
    )
}

/// Ends the stream and waits until the reader has confirmed that it has everything; on a pipe, on a
/// file, or with NARROWS_ONE_WAY, until everything was handed to the system. Without
/// stall_timeout_ms it waits as long as the reader is silent; narrows_writer_cancel from another
/// thread ends the wait. A socket is shut down for writing. The writer is gone whatever is
/// returned, except with NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_writer_close(writer: *mut narrows_writer) -> narrows_status {
    let close = || Writer::table().close(number(writer), |object| object.close(&mut None));
    enter(|| close().map(|()| Status::NARROWS_OK), |s| s)
}

/// As narrows_writer_close, and stores the totals of the whole stream, even if it failed. Nothing
/// is stored if the writer is not gone (NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE) or was closed
/// before.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_writer_finish(
    writer: *mut narrows_writer,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            memory::fits(totals, "totals")?;
            let mut last = None;
            let closed = Writer::table().close(number(writer), |object| object.close(&mut last));
            if let Some((raw_bytes, wire_bytes)) = last {
                // SAFETY: the caller answers for the place.
                unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            }
            closed.map(|()| Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Makes the stream fail soon, so that calls of other threads with it return. Only this function
/// and narrows_reader_cancel may be called while another thread is in a call with the same object.
/// The writer must still be closed.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_writer_cancel(writer: *mut narrows_writer) -> narrows_status {
    enter(|| Writer::table().stop(number(writer)).map(|()| Status::NARROWS_OK), |s| s)
}

/// Stores the bytes sent so far. Some of what was written may not have reached the link yet;
/// narrows_writer_finish stores the final totals.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_writer_totals(
    writer: *mut narrows_writer,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            let (raw_bytes, wire_bytes) = Writer::table().with(number(writer), |w| Ok(w.totals()))?;
            // SAFETY: the caller answers for the place.
            unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Begins to read a stream from a socket, pipe or file; returns NULL on failure. As with
/// narrows_writer_open, nothing else may use the descriptor until the stream is over. The stream
/// ends with its last frame, even if others keep the pipe or socket open; in a file nothing may
/// follow it.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_reader_open(fd: c_int, options: *const narrows_stream_options) -> *mut narrows_reader {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { stream_options(options)? };
            Reader::table().open(|| Reader::open(fd, &options)).map(handle)
        },
        no_handle,
    )
}

/// Waits for bytes, without limit unless stall_timeout_ms is set, and returns how many it stored,
/// at most `len`. Returns 0 at the end of a stream that was received completely, or a negative
/// narrows_status after the bytes decoded before the error have been returned. `len` must not be 0.
///
/// # Safety
/// `data` must be NULL or have room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_read(reader: *mut narrows_reader, data: *mut c_void, len: usize) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for the room.
            let mut room = unsafe { Room::new(data, len, "data")? };
            if len == 0 {
                return Err(Failure::misuse("there is no room to read into: len must not be 0"));
            }
            Reader::table().with(number(reader), |r| r.read(&mut room)).map(|n| n as isize)
        },
        count,
    )
}

/// If narrows_read has returned 0, tells the writer that everything is stored: first do whatever
/// keeps the data from being lost. Else tells it that this reader gave up, and returns
/// NARROWS_ERROR_TRUNCATED. A socket is also shut down for writing, unless NARROWS_ONE_WAY is set.
/// The reader is gone whatever is returned, except with NARROWS_ERROR_BUSY and
/// NARROWS_ERROR_MISUSE.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_reader_close(reader: *mut narrows_reader) -> narrows_status {
    let close = || Reader::table().close(number(reader), |object| object.close(&mut None));
    enter(|| close().map(|()| Status::NARROWS_OK), |s| s)
}

/// As narrows_reader_close, and stores the totals of the whole stream, even if it failed. Nothing
/// is stored if the reader is not gone (NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE) or was closed
/// before.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_reader_finish(
    reader: *mut narrows_reader,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            memory::fits(totals, "totals")?;
            let mut last = None;
            let closed = Reader::table().close(number(reader), |object| object.close(&mut last));
            if let Some((raw_bytes, wire_bytes)) = last {
                // SAFETY: the caller answers for the place.
                unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            }
            closed.map(|()| Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Makes the stream fail soon, as narrows_writer_cancel does. After the end was read, it makes
/// narrows_reader_close tell the writer that this reader failed.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_reader_cancel(reader: *mut narrows_reader) -> narrows_status {
    enter(|| Reader::table().stop(number(reader)).map(|()| Status::NARROWS_OK), |s| s)
}

/// Stores the bytes received so far.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_reader_totals(
    reader: *mut narrows_reader,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            let (raw_bytes, wire_bytes) = Reader::table().with(number(reader), |r| Ok(r.totals()))?;
            // SAFETY: the caller answers for the place.
            unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}
