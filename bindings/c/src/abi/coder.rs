//! Streams without I/O.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::c_void;

use super::streams::{narrows_stream_options, stream_options};
use super::{count, handle, narrows_totals, no_handle, number};
use crate::coder::{Decoder, Encoder, Mode};
use crate::handles::Held;
use crate::memory::{self, Plain, Room};
use crate::status::{Failure, Result, Status, enter, narrows_status};

/// Bytes to take, of which `pos` were taken.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_input {
    pub data: *const c_void,
    pub size: usize,
    pub pos: usize,
}

/// Room to fill, of which `pos` bytes were filled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_output {
    pub data: *mut c_void,
    pub size: usize,
    pub pos: usize,
}

// SAFETY: integers and pointers.
unsafe impl Plain for narrows_input {}
// SAFETY: integers and pointers.
unsafe impl Plain for narrows_output {}

/// What narrows_encode shall do besides taking its input.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum narrows_mode {
    /// Gather until blocks are worth encoding.
    NARROWS_CONTINUE = 0,
    /// Give everything that was taken so far.
    NARROWS_FLUSH = 1,
    /// Give everything, and the end of the stream.
    NARROWS_END = 2,
}

/// Makes a stream of bytes, on the thread that calls. Not a pointer to memory.
pub struct narrows_encoder {
    _opaque: [u8; 0],
}

/// Makes bytes of a stream, on the thread that calls. Not a pointer to memory.
pub struct narrows_decoder {
    _opaque: [u8; 0],
}

/// What lies between the positions and the ends of the two.
///
/// # Safety
/// Both are null or structures, whose memory is as they say.
unsafe fn buffers<'a>(input: *mut narrows_input, output: *mut narrows_output) -> Result<(&'a [u8], Room)> {
    // SAFETY: the caller answers for both, and neither reference outlives its line.
    let (from, to) = unsafe { (*memory::place(input, "input")?, *memory::place(output, "output")?) };
    if from.pos > from.size || to.pos > to.size {
        return Err(Failure::misuse("a position lies behind the end of its buffer"));
    }
    // SAFETY: the caller answers for `size` bytes each.
    let (bytes, room) = unsafe {
        let bytes = memory::bytes(from.data, from.size, "input.data")?;
        let mut room = Room::new(to.data, to.size, "output.data")?;
        room.skip(to.pos);
        (&bytes[from.pos..], room)
    };
    if room.overlaps(bytes) {
        return Err(Failure::misuse("input and output lie in the same memory"));
    }
    Ok((bytes, room))
}

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

/// A new encoder; NULL is a failure. Its stream is one without confirmation: of `options` policy, raw_len and the flags
/// NARROWS_NO_CHECK and NARROWS_INDEX apply. The policy takes the time between calls for that in which the link carried what the call
/// before gave, unless narrows_encoder_link_took says otherwise; for bytes that are only stored, name a method: "fixed:zstd".
///
/// # Safety
/// `options` is null or a structure as its struct_size says.
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

/// Takes what it can of `input` and fills `output`, and moves their positions. `mode` is a narrows_mode. Returns 0 when everything
/// that was asked for is done; a number above 0 when more waits, at least so many bytes: pass on what was given and call
/// again with the same mode; or a negative narrows_status.
///
/// # Safety
/// `input` and `output` are as they say, and not in the same memory.
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
                m => return Err(Failure::misuse(format!("{m} is no mode"))),
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

/// Says that the link took `ns` nanoseconds for what the last call gave.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_encoder_link_took(encoder: *mut narrows_encoder, ns: u64) -> narrows_status {
    let call = |e: &mut Encoder| {
        e.link_took(ns);
        Ok(Status::NARROWS_OK)
    };
    enter(|| Encoder::table().with(number(encoder), call), |s| s)
}

/// What was encoded so far.
///
/// # Safety
/// `totals` is null or a place for the structure.
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

/// Frees it, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_encoder_free(encoder: *mut narrows_encoder) -> narrows_status {
    let drop_it = |e: Encoder| {
        drop(e);
        Ok(())
    };
    enter(|| Encoder::table().close(number(encoder), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}

/// A new decoder, of streams that no back channel is needed for; NULL is a failure. `options` may be NULL, or all zeros.
///
/// # Safety
/// `options` is null or a structure as its struct_size says.
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

/// Takes what it can of `input` and fills `output`, and moves their positions. Returns 0 when the stream is complete and all of
/// it was given; 1 when it is not: if `output` is full give more room, else more input; or a negative narrows_status, when
/// `output` may have got what came whole before. The first failure is final. Bytes behind the end of the stream are a failure.
///
/// # Safety
/// `input` and `output` are as they say, and not in the same memory.
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

/// Says that no more input will come: NARROWS_ERROR_TRUNCATED if some is missing.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_decoder_end(decoder: *mut narrows_decoder) -> narrows_status {
    enter(|| Decoder::table().with(number(decoder), Decoder::end).map(|()| Status::NARROWS_OK), |s| s)
}

/// What was decoded so far.
///
/// # Safety
/// `totals` is null or a place for the structure.
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

/// Frees it, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_decoder_free(decoder: *mut narrows_decoder) -> narrows_status {
    let drop_it = |d: Decoder| {
        drop(d);
        Ok(())
    };
    enter(|| Decoder::table().close(number(decoder), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
