//! Encoding and decoding of streams in memory, without I/O.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::c_void;

use super::streams::{narrows_stream_options, stream_options};
use super::{count, handle, narrows_totals, no_handle, number};
use crate::coder::{Decoder, Encoder, Mode};
use crate::handles::Held;
use crate::memory::{self, Plain, Room};
use crate::status::{Failure, Result, Status, enter, narrows_status};

/// Input of narrows_encode or narrows_decode. The call reads from `data + pos` and advances `pos`
/// by what it consumed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_input {
    /// The bytes to read.
    pub data: *const c_void,
    /// Length of `data` in bytes.
    pub size: usize,
    /// Number of bytes consumed so far.
    pub pos: usize,
}

/// Output of narrows_encode or narrows_decode. The call writes from `data + pos` and advances `pos`
/// by what it wrote.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_output {
    /// The buffer to write to.
    pub data: *mut c_void,
    /// Length of `data` in bytes.
    pub size: usize,
    /// Number of bytes written so far.
    pub pos: usize,
}

// SAFETY: integers and pointers.
unsafe impl Plain for narrows_input {}
// SAFETY: integers and pointers.
unsafe impl Plain for narrows_output {}

/// How far a call of narrows_encode goes once it has consumed its input.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum narrows_mode {
    /// Buffer input until a block is worth encoding.
    NARROWS_CONTINUE = 0,
    /// Emit everything consumed so far.
    NARROWS_FLUSH = 1,
    /// Emit everything and end the stream.
    NARROWS_END = 2,
}

/// Encodes bytes into a stream on the calling thread. A handle, not a pointer to memory.
pub struct narrows_encoder {
    _opaque: [u8; 0],
}

/// Decodes a stream into bytes on the calling thread. A handle, not a pointer to memory.
pub struct narrows_decoder {
    _opaque: [u8; 0],
}

/// The unread part of `input` and the free part of `output`.
///
/// # Safety
/// Both are null or point to structures whose `data` has `size` bytes.
unsafe fn buffers<'a>(input: *mut narrows_input, output: *mut narrows_output) -> Result<(&'a [u8], Room)> {
    // SAFETY: the caller answers for both, and neither reference outlives its line.
    let (from, to) = unsafe { (*memory::place(input, "input")?, *memory::place(output, "output")?) };
    if from.pos > from.size || to.pos > to.size {
        return Err(Failure::misuse("a position is beyond the end of its buffer"));
    }
    // SAFETY: the caller answers for `size` bytes each.
    let (bytes, room) = unsafe {
        let bytes = memory::bytes(from.data, from.size, "input.data")?;
        let mut room = Room::new(to.data, to.size, "output.data")?;
        room.skip(to.pos);
        (&bytes[from.pos..], room)
    };
    if room.overlaps(bytes) {
        return Err(Failure::misuse("input and output overlap"));
    }
    Ok((bytes, room))
}

/// Advances both positions.
///
/// # Safety
/// Both were accepted by [`buffers`], and nobody else uses them.
unsafe fn advance(input: *mut narrows_input, taken: usize, output: *mut narrows_output, filled: usize) -> Result<()> {
    // SAFETY: as the caller answers for; the references live one after the other.
    unsafe {
        memory::place(input, "input")?.pos += taken;
        memory::place(output, "output")?.pos += filled;
    }
    Ok(())
}

/// Creates an encoder; returns NULL on failure. Its stream has no back channel, so nothing is
/// confirmed. Of `options` only policy, raw_len and the flags NARROWS_NO_CHECK and NARROWS_INDEX
/// apply. The policy assumes that the link carried the output of a call in the time until the next
/// call, unless narrows_encoder_link_took says otherwise. For bytes that are only stored, name a
/// method: "fixed:zstd".
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_encoder_new(options: *const narrows_stream_options) -> *mut narrows_encoder {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { stream_options(options)? };
            Encoder::table().open(|| Encoder::new(&options)).map(handle)
        },
        no_handle,
    )
}

/// Consumes what it can of `input`, writes to `output`, and advances their positions. `mode` is a
/// narrows_mode. Returns 0 when everything that `mode` asks for is done; a number above 0 if output
/// is pending, at least that many bytes: pass on what was written and call again with the same
/// mode; or a negative narrows_status.
///
/// # Safety
/// `input` and `output` must be NULL or point to structures whose `data` has `size` bytes. Their
/// buffers must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_encode(
    encoder: *mut narrows_encoder,
    input: *mut narrows_input,
    output: *mut narrows_output,
    mode: i32,
) -> isize {
    enter(
        || {
            let mode = match mode {
                m if m == narrows_mode::NARROWS_CONTINUE as i32 => Mode::Continue,
                m if m == narrows_mode::NARROWS_FLUSH as i32 => Mode::Flush,
                m if m == narrows_mode::NARROWS_END as i32 => Mode::End,
                m => return Err(Failure::misuse(format!("{m} is not a narrows_mode"))),
            };
            // SAFETY: the caller answers for both.
            let (bytes, mut room) = unsafe { buffers(input, output)? };
            let before = room.len();
            let (taken, waiting) = Encoder::table().with(number(encoder), |e| e.encode(bytes, &mut room, mode))?;
            // SAFETY: accepted just now.
            unsafe { advance(input, taken, output, before - room.len())? };
            Ok(waiting as isize)
        },
        count,
    )
}

/// Begins a new stream with the same encoder, also before the last one has ended, whose pending
/// output is lost. Cheaper than a new encoder: buffers and the memory of the methods are kept.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_encoder_reset(
    encoder: *mut narrows_encoder,
    options: *const narrows_stream_options,
) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { stream_options(options)? };
            Encoder::table().with(number(encoder), |e| e.reset(&options))?;
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Tells the policy that the link took `ns` nanoseconds to carry the output of the last call.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_encoder_link_took(encoder: *mut narrows_encoder, ns: u64) -> narrows_status {
    let call = |e: &mut Encoder| {
        e.link_took(ns);
        Ok(Status::NARROWS_OK)
    };
    enter(|| Encoder::table().with(number(encoder), call), |s| s)
}

/// Stores the bytes encoded so far.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_encoder_totals(
    encoder: *mut narrows_encoder,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            let (raw_bytes, wire_bytes) = Encoder::table().with(number(encoder), |e| Ok(e.totals()))?;
            // SAFETY: the caller answers for the place.
            unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Frees the encoder, also before its stream has ended.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_encoder_free(encoder: *mut narrows_encoder) -> narrows_status {
    let drop_it = |e: Encoder| {
        drop(e);
        Ok(())
    };
    enter(|| Encoder::table().close(number(encoder), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}

/// Creates a decoder for streams that need no back channel; returns NULL on failure. `options` may
/// be NULL or all zeros.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_decoder_new(options: *const narrows_stream_options) -> *mut narrows_decoder {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { stream_options(options)? };
            Decoder::table().open(|| Decoder::new(&options)).map(handle)
        },
        no_handle,
    )
}

/// Consumes what it can of `input`, writes to `output`, and advances their positions. Returns 0
/// when the stream is complete and all of it was written; 1 if not: pass more room if `output` is
/// full, else more input; or a negative narrows_status, in which case `output` may hold bytes that
/// were decoded before the error. The first failure is final. Bytes after the end of the stream are
/// a failure.
///
/// # Safety
/// `input` and `output` must be NULL or point to structures whose `data` has `size` bytes. Their
/// buffers must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_decode(
    decoder: *mut narrows_decoder,
    input: *mut narrows_input,
    output: *mut narrows_output,
) -> isize {
    enter(
        || {
            // SAFETY: the caller answers for both.
            let (bytes, mut room) = unsafe { buffers(input, output)? };
            let before = room.len();
            let (taken, result) = Decoder::table().with(number(decoder), |d| Ok(d.decode(bytes, &mut room)))?;
            // SAFETY: accepted just now.
            unsafe { advance(input, taken, output, before - room.len())? };
            Ok(if result? { 0 } else { 1 })
        },
        count,
    )
}

/// Makes the decoder expect a new stream, also after a failure or before the last one has ended.
/// Cheaper than a new decoder.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_decoder_reset(decoder: *mut narrows_decoder) -> narrows_status {
    let reset = |d: &mut Decoder| {
        d.reset();
        Ok(Status::NARROWS_OK)
    };
    enter(|| Decoder::table().with(number(decoder), reset), |s| s)
}

/// States that no more input will come. Returns NARROWS_ERROR_TRUNCATED if the stream is
/// incomplete, and NARROWS_ERROR_MISUSE if narrows_decode still has output pending.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_decoder_end(decoder: *mut narrows_decoder) -> narrows_status {
    enter(|| Decoder::table().with(number(decoder), Decoder::end).map(|()| Status::NARROWS_OK), |s| s)
}

/// Stores the bytes decoded so far.
///
/// # Safety
/// `totals` must be NULL or point to a writable narrows_totals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_decoder_totals(
    decoder: *mut narrows_decoder,
    totals: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            let (raw_bytes, wire_bytes) = Decoder::table().with(number(decoder), |d| Ok(d.totals()))?;
            // SAFETY: the caller answers for the place.
            unsafe { memory::store(totals, narrows_totals { raw_bytes, wire_bytes }, "totals")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Frees the decoder, also before its stream has ended.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_decoder_free(decoder: *mut narrows_decoder) -> narrows_status {
    let drop_it = |d: Decoder| {
        drop(d);
        Ok(())
    };
    enter(|| Decoder::table().close(number(decoder), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
