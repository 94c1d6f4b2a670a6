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

/// Flag: the stream uses one direction of the socket only, so that the other may carry another one, or anything else. Nothing is
/// confirmed then. Both ends must say the same.
pub const NARROWS_ONE_WAY: u32 = 1;
/// Flag: closing the object closes the descriptor. If opening fails it stays open. Of two streams on one descriptor one has it.
pub const NARROWS_CLOSE_FD: u32 = 2;
/// Flag: no check on the blocks, for data that has its own.
pub const NARROWS_NO_CHECK: u32 = 4;
/// Flag: an index at the end, so that a file can be read from anywhere.
pub const NARROWS_INDEX: u32 = 8;

/// How a stream shall be. Set struct_size to sizeof(narrows_stream_options) and the rest to what is wanted: all zeros, as NULL
/// in place of the structure, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_stream_options {
    pub struct_size: usize,
    /// Who chooses the methods; NULL is "balance". Of writers and encoders only.
    pub policy: *const c_char,
    /// NARROWS_ONE_WAY and so on.
    pub flags: u32,
    /// Threads that encode or decode; 0 is by the number of cores. Encoders and decoders have none of their own.
    pub threads: u32,
    /// A stream fails when the link takes or brings nothing for so long, or its end is not confirmed; 0 is never. Then narrows_write,
    /// narrows_read and narrows_writer_close wait for as long as the peer is silent and its connection is there.
    pub stall_timeout_ms: u32,
    pub reserved: u32,
    /// How many bytes will be written, if that is known: it helps the policy. 0 is unknown.
    pub raw_len: u64,
}

// SAFETY: integers and a pointer.
unsafe impl Plain for narrows_stream_options {}

/// Copies what C says.
///
/// # Safety
/// As of [`memory::options`], and `policy` is null or a string.
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

/// A stream that is written. Not a pointer to memory.
pub struct narrows_writer {
    _opaque: [u8; 0],
}

/// A stream that is read. Not a pointer to memory.
pub struct narrows_reader {
    _opaque: [u8; 0],
}

/// Begins a stream over a socket, pipe or file that is open for writing. The descriptor must not be written meanwhile, nor be
/// read if it is a socket, unless NARROWS_ONE_WAY is set; it may be closed, since the writer has one of its own. NULL is a
/// failure. A child of fork cannot use it.
///
/// # Safety
/// `options` is null or a structure as its struct_size says.
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

/// Writes all `len` bytes and returns `len`, or a negative narrows_status. Waits while the link has enough to do, without limit
/// unless stall_timeout_ms is set. What was written goes its way at once if the link is idle: there is nothing to flush.
///
/// # Safety
/// `data` is null or has `len` bytes.
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

/// Ends the stream and waits until the reader has confirmed that it has everything; on a pipe, a file, or with NARROWS_ONE_WAY
/// until everything was handed to the system. Without stall_timeout_ms it waits as long as the reader says nothing;
/// narrows_writer_cancel from another thread ends that. A socket is shut down for writing. The writer is gone, whatever is
/// returned, but for NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_writer_close(writer: *mut narrows_writer) -> narrows_status {
    let close = || Writer::table().close(number(writer), |object| object.close(&mut None));
    enter(|| close().map(|()| Status::NARROWS_OK), |s| s)
}

/// As narrows_writer_close, and stores the totals of the whole stream, also if it failed. They are not stored when the writer is not
/// gone, that is with NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE, nor if it was closed before.
///
/// # Safety
/// `totals` is null or a place for the structure.
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

/// Makes this stream fail soon, and calls of other threads with it return: the one function, with narrows_reader_cancel, that may be
/// called while another thread is in a call with the same object. The writer has still to be closed.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_writer_cancel(writer: *mut narrows_writer) -> narrows_status {
    enter(|| Writer::table().stop(number(writer)).map(|()| Status::NARROWS_OK), |s| s)
}

/// What was sent so far: some of what was written may not have reached the link yet. narrows_writer_finish tells the whole.
///
/// # Safety
/// `totals` is null or a place for the structure.
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

/// Begins to read a stream from a socket, pipe or file. As with narrows_writer_open the descriptor is left to the reader until the
/// stream is over. That is where the stream ends, though others keep the pipe or socket open; in a file nothing may follow it.
/// NULL is a failure.
///
/// # Safety
/// `options` is null or a structure as its struct_size says.
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

/// Waits for bytes, without limit unless stall_timeout_ms is set, and returns how many there are, at most `len`; 0 at the end of the stream, when all of it was found whole;
/// or a negative narrows_status, when what came whole before was returned. `len` must not be 0.
///
/// # Safety
/// `data` is null or has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_read(reader: *mut narrows_reader, data: *mut c_void, len: usize) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for the room.
            let mut room = unsafe { Room::new(data, len, "data")? };
            if len == 0 {
                return Err(Failure::misuse("there is no room to read into: 0 would say that the stream is over"));
            }
            Reader::table().with(number(reader), |r| r.read(&mut room)).map(|n| n as isize)
        },
        count,
    )
}

/// Tells the writer that all is stored, if narrows_read has returned 0; else that this reader gave up, which returns
/// NARROWS_ERROR_TRUNCATED. So whatever has to be done that nothing is lost is done before. A socket is shut down for writing too,
/// unless NARROWS_ONE_WAY is set. The reader is gone, whatever is returned, but for NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_reader_close(reader: *mut narrows_reader) -> narrows_status {
    let close = || Reader::table().close(number(reader), |object| object.close(&mut None));
    enter(|| close().map(|()| Status::NARROWS_OK), |s| s)
}

/// As narrows_reader_close, and stores the totals of the whole stream, also if it failed. They are not stored when the reader is not
/// gone, that is with NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE, nor if it was closed before.
///
/// # Safety
/// `totals` is null or a place for the structure.
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

/// Makes this stream fail soon, as narrows_writer_cancel. After the end was read it makes narrows_reader_close tell the writer that
/// this reader failed.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_reader_cancel(reader: *mut narrows_reader) -> narrows_status {
    enter(|| Reader::table().stop(number(reader)).map(|()| Status::NARROWS_OK), |s| s)
}

/// What was received so far.
///
/// # Safety
/// `totals` is null or a place for the structure.
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
