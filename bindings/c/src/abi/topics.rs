//! Topics: any number of writers and readers, without a back channel.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::c_void;

use super::messages::{config, give, narrows_message_options};
use super::{code, handle, narrows_bytes, no_handle, number};
use crate::handles::Held;
use crate::memory::{self, Plain};
use crate::status::{Failure, Status, enter, narrows_status};
use crate::topics::{Reader, Writer};

/// Writes messages to any number of readers, which may join at any time and send nothing back. A
/// handle, not a pointer to memory.
pub struct narrows_topic_writer {
    _opaque: [u8; 0],
}

/// Reads what any number of writers publish to a topic. A handle, not a pointer to memory.
pub struct narrows_topic_reader {
    _opaque: [u8; 0],
}

/// Number of messages and units that a reader of a topic dropped.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_missed {
    /// Messages whose dictionary was not announced in time.
    pub unannounced: u64,
    /// Units that are invalid or whose message cannot be decoded.
    pub damaged: u64,
}

// SAFETY: integers.
unsafe impl Plain for narrows_missed {}

/// Creates a writer; returns NULL on failure. Of the options only policy, message_max and
/// NARROWS_MESSAGES_LEARN apply.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes, whose pointers are NULL or
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_writer_new(
    options: *const narrows_message_options,
) -> *mut narrows_topic_writer {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let (config, policy, learns) = unsafe { config(options)? };
            Writer::table().open(|| Writer::new(config, policy.as_deref(), learns)).map(handle)
        },
        no_handle,
    )
}

/// Encodes a message. `unit` is set to the bytes to publish for it. The writer owns them; they are
/// valid until the next call with it. Publish the unit of narrows_topic_announcement first.
///
/// # Safety
/// `message` must have `len` bytes; `unit` must be NULL or point to a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_send(
    writer: *mut narrows_topic_writer,
    message: *const c_void,
    len: usize,
    unit: *mut narrows_bytes,
) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let message = unsafe { memory::bytes(message, len, "message")? };
            if unit.is_null() {
                return Err(Failure::misuse("unit is a null pointer"));
            }
            Writer::table().with(number(writer), |w| {
                // SAFETY: the caller answers for the place.
                unsafe { give(unit, w.send(message)?)? };
                Ok(Status::NARROWS_OK)
            })
        },
        |s| s,
    )
}

/// Sets `unit` to the announcement that readers need, if one is due. Returns 1 if there is one, 0
/// if there is none, or a negative narrows_status. Call it before every narrows_topic_send, and
/// every second while nothing is sent. The writer owns the bytes; they are valid until the next
/// call with it.
///
/// # Safety
/// `unit` must be NULL or point to a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_announcement(
    writer: *mut narrows_topic_writer,
    unit: *mut narrows_bytes,
) -> i32 {
    enter(
        || {
            if unit.is_null() {
                return Err(Failure::misuse("unit is a null pointer"));
            }
            Writer::table().with(number(writer), |w| {
                let bytes = w.announcement();
                // SAFETY: the caller answers for the place.
                unsafe { give(unit, bytes.unwrap_or_default())? };
                Ok(i32::from(bytes.is_some()))
            })
        },
        code,
    )
}

/// States that a reader joined, or may have joined: the next announcement is due sooner.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_reader_came(writer: *mut narrows_topic_writer) -> narrows_status {
    let call = |w: &mut Writer| {
        w.reader_came();
        Ok(Status::NARROWS_OK)
    };
    enter(|| Writer::table().with(number(writer), call), |s| s)
}

/// Uses a dictionary of the caller once it has been announced. Every reader sees its content.
/// Returns 1, 0 if it is not accepted, or a negative narrows_status.
///
/// # Safety
/// `dictionary` must have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_offer(
    writer: *mut narrows_topic_writer,
    dictionary: *const c_void,
    len: usize,
) -> i32 {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let content = unsafe { memory::bytes(dictionary, len, "dictionary")? };
            Writer::table().with(number(writer), |w| w.offer(content)).map(i32::from)
        },
        code,
    )
}

/// Frees the writer at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_writer_free(writer: *mut narrows_topic_writer) -> narrows_status {
    let drop_it = |w: Writer| {
        drop(w);
        Ok(())
    };
    enter(|| Writer::table().close(number(writer), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}

/// Creates a reader; returns NULL on failure. Of the options only message_max and known apply.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes, whose pointers are NULL or
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_reader_new(
    options: *const narrows_message_options,
) -> *mut narrows_topic_reader {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let (config, ..) = unsafe { config(options)? };
            Reader::table().open(|| Reader::new(config)).map(handle)
        },
        no_handle,
    )
}

/// Reads a unit; narrows_topic_next then returns the messages that it completes. A unit that fails
/// is dropped, and the next one can be read. If a unit is found to be bad only after it released
/// waiting messages, the call succeeds, and narrows_topic_missed counts the unit.
///
/// # Safety
/// `unit` must have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_receive(
    reader: *mut narrows_topic_reader,
    unit: *const c_void,
    len: usize,
) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let unit = unsafe { memory::bytes(unit, len, "unit")? };
            Reader::table().with(number(reader), |r| r.receive(unit)).map(|()| Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Sets `message` to the next message: there are none, one or several after every
/// narrows_topic_receive, in the order of their arrival. Returns 1 if there is one, 0 if there is
/// none, or a negative narrows_status. The reader owns the message; it is valid until the next call
/// with it.
///
/// # Safety
/// `message` must be NULL or point to a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_next(reader: *mut narrows_topic_reader, message: *mut narrows_bytes) -> i32 {
    enter(
        || {
            if message.is_null() {
                return Err(Failure::misuse("message is a null pointer"));
            }
            Reader::table().with(number(reader), |r| {
                let bytes = r.next()?;
                // SAFETY: the caller answers for the place.
                unsafe { give(message, bytes.unwrap_or_default())? };
                Ok(i32::from(bytes.is_some()))
            })
        },
        code,
    )
}

/// Stores what was dropped so far: the application should be told.
///
/// # Safety
/// `missed` must be NULL or point to a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_topic_missed(
    reader: *mut narrows_topic_reader,
    missed: *mut narrows_missed,
) -> narrows_status {
    enter(
        || {
            let all = Reader::table().with(number(reader), |r| Ok(r.missed()))?;
            let all = narrows_missed { unannounced: all.unannounced, damaged: all.damaged };
            // SAFETY: the caller answers for the place.
            unsafe { memory::store(missed, all, "missed")? };
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Frees the reader at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_reader_free(reader: *mut narrows_topic_reader) -> narrows_status {
    let drop_it = |r: Reader| {
        drop(r);
        Ok(())
    };
    enter(|| Reader::table().close(number(reader), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
