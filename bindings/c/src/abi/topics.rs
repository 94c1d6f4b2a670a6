//! Topics.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::c_void;

use super::messages::{config, give, narrows_message_options};
use super::{code, handle, narrows_bytes, no_handle, number};
use crate::handles::Held;
use crate::memory::{self, Plain};
use crate::status::{Failure, Status, enter, narrows_status};
use crate::topics::{Reader, Writer};

/// Writes messages to any number of readers, which come when they like and answer nothing. Not a pointer to memory.
pub struct narrows_topic_writer {
    _opaque: [u8; 0],
}

/// Reads what any number of writers wrote to a topic. Not a pointer to memory.
pub struct narrows_topic_reader {
    _opaque: [u8; 0],
}

/// What a reader of a topic had to leave out.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_missed {
    /// Messages whose dictionary was not announced in time.
    pub unannounced: u64,
    /// Units that are none, or whose message does not decode.
    pub damaged: u64,
}

// SAFETY: integers.
unsafe impl Plain for narrows_missed {}

/// A new writer; NULL is a failure. Of the options policy, message_max and NARROWS_MESSAGES_LEARN apply.
///
/// # Safety
/// `options` is null or a structure as its struct_size says, and what it points to is there.
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

/// Encodes a message: `unit` is what has to be published for it. The bytes belong to the writer and are good until the next call
/// with it. Publish what narrows_topic_announcement gives before.
///
/// # Safety
/// `message` has `len` bytes; `unit` is null or a place for the structure.
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

/// The unit that tells readers what they need, if one is due. Returns 1 if there is one, 0 if there is none, or a negative
/// narrows_status. Call it before every narrows_topic_send, and every second while nothing is sent.
///
/// # Safety
/// `unit` is null or a place for the structure.
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

/// Says that a reader came, or may have come: the next announcement is due sooner.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_reader_came(writer: *mut narrows_topic_writer) -> narrows_status {
    let call = |w: &mut Writer| {
        w.reader_came();
        Ok(Status::NARROWS_OK)
    };
    enter(|| Writer::table().with(number(writer), call), |s| s)
}

/// Uses a dictionary from elsewhere, once it was announced. Every reader sees it. Returns 1, 0 if it is not taken, or a negative
/// narrows_status.
///
/// # Safety
/// `dictionary` has `len` bytes.
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

/// Frees it, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_writer_free(writer: *mut narrows_topic_writer) -> narrows_status {
    let drop_it = |w: Writer| {
        drop(w);
        Ok(())
    };
    enter(|| Writer::table().close(number(writer), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}

/// A new reader; NULL is a failure. Of the options message_max and known apply.
///
/// # Safety
/// `options` is null or a structure as its struct_size says, and what it points to is there.
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

/// Takes a unit in; narrows_topic_next gives the messages that are complete then. A unit that is a failure is dropped, and the
/// next one can be taken. One that set messages free before it turned out bad is none: narrows_topic_missed counts it.
///
/// # Safety
/// `unit` has `len` bytes.
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

/// The next message: none, one or several after every narrows_topic_receive, in the order in which they came. Returns 1 if there is
/// one, 0 if there is none, or a negative narrows_status. It belongs to the reader and is good until the next call with it.
///
/// # Safety
/// `message` is null or a place for the structure.
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

/// What was left out so far: the application should hear of it.
///
/// # Safety
/// `missed` is null or a place for the structure.
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

/// Frees it, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_topic_reader_free(reader: *mut narrows_topic_reader) -> narrows_status {
    let drop_it = |r: Reader| {
        drop(r);
        Ok(())
    };
    enter(|| Reader::table().close(number(reader), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
