//! Message links.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::{c_char, c_void};

use narrows::message::{Carrier, Delivery, MessageConfig};

use super::{code, handle, narrows_bytes, narrows_totals, no_handle, number};
use crate::handles::Held;
use crate::memory::{self, Plain};
use crate::messages::{Front, Messages, dictionary};
use crate::status::{Failure, Result, Status, enter, narrows_status};

/// Flag: the carrier preserves the borders of units (ZeroMQ, datagrams, a queue), so frames need no
/// length.
pub const NARROWS_MESSAGES_BORDERS: u32 = 1;
/// Flag: the carrier may lose, repeat or reorder units. Needs NARROWS_MESSAGES_BORDERS.
pub const NARROWS_MESSAGES_UNORDERED: u32 = 2;
/// Flag: nothing comes back from the peer, so lost messages cannot be requested again.
pub const NARROWS_MESSAGES_ONE_WAY: u32 = 4;
/// Flag: put a checksum on every frame, for carriers that may damage data.
pub const NARROWS_MESSAGES_CHECK_ALL: u32 = 8;
/// Flag: keep no history of sent messages; each is encoded on its own.
pub const NARROWS_MESSAGES_NO_HISTORY: u32 = 16;
/// Flag: train dictionaries from sent messages on a background thread, and use those that pay.
pub const NARROWS_MESSAGES_LEARN: u32 = 32;

const FLAGS: u32 = 63;

/// Flag of narrows_message_send: the message is stored as it is and kept out of the history, so
/// that no compressed length reveals anything about it. It cannot be sent again if lost. Use it for
/// secrets where others can choose what is sent beside them.
pub const NARROWS_MESSAGE_PRIVATE: u32 = 1;

/// Options of one end of a message link. Set struct_size to sizeof(narrows_message_options); all
/// other members may be 0 for the defaults. Both ends must set the same flags, except
/// NARROWS_MESSAGES_LEARN and NARROWS_MESSAGES_NO_HISTORY.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_message_options {
    /// sizeof(narrows_message_options).
    pub struct_size: usize,
    /// Policy that chooses the compression methods; NULL is "messages".
    pub policy: *const c_char,
    /// Flags: NARROWS_MESSAGES_BORDERS and so on.
    pub flags: u32,
    /// Maximum length of a message in bytes, sent or received; 0 is 65,535, the largest possible.
    pub message_max: u32,
    /// Bytes of history that the sender asks for and the receiver keeps, 1 KiB to 64 KiB; 0 is 16
    /// KiB. The published figures use 64 KiB, which makes most messages a few per cent smaller.
    pub history: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Dictionary that the history begins with. The peer needs it among its `known` or as its own
    /// seed. Length 0 is none.
    pub seed: narrows_bytes,
    /// Dictionaries that this end already has, so that they need not be sent to it.
    pub known: *const narrows_bytes,
    /// Number of elements of `known`.
    pub known_count: usize,
}

// SAFETY: integers, pointers, and structures of such.
unsafe impl Plain for narrows_message_options {}

/// One end of a message link, for both directions. A handle, not a pointer to memory.
pub struct narrows_messages {
    _opaque: [u8; 0],
}

/// Result of sending a message.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_sent {
    /// Number of the message, for narrows_message_answered.
    pub seq: u64,
    /// Length of its frame in bytes.
    pub wire_len: usize,
    /// Length in bytes of the control frames in front of it.
    pub control_len: usize,
}

// SAFETY: integers.
unsafe impl Plain for narrows_sent {}

/// Kind of the frame at the front of the input.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum narrows_front {
    /// A frame without a message for the application; it has been processed.
    NARROWS_FRONT_NOTHING = 0,
    /// A message.
    NARROWS_FRONT_MESSAGE = 1,
    /// The beginning of a frame: call again with more bytes after it.
    NARROWS_FRONT_INCOMPLETE = 2,
    /// A message that cannot be decoded. On an ordered carrier narrows_message_next requests it
    /// again.
    NARROWS_FRONT_UNDECODABLE = 3,
    /// The peer missed messages from this end that can no longer be sent again.
    NARROWS_FRONT_GAP = 4,
}

/// The configuration, the policy, and whether to train dictionaries.
///
/// # Safety
/// As for [`memory::options`]; the pointers of the structure must be null or valid.
pub(super) unsafe fn config(from: *const narrows_message_options) -> Result<(MessageConfig, Option<String>, bool)> {
    // SAFETY: as the caller of this function answers for, here and below.
    let Some(given) = (unsafe { memory::options(from, "options")? }) else {
        return Ok((MessageConfig::default(), None, false));
    };
    if given.flags & !FLAGS != 0 || given.reserved != 0 {
        return Err(Failure::misuse("options has unknown flags, or reserved is not 0"));
    }
    let has = |flag| given.flags & flag != 0;
    let delivery = if has(NARROWS_MESSAGES_UNORDERED) { Delivery::Unordered } else { Delivery::Ordered };
    // SAFETY: as above.
    let (policy, seed, known) = unsafe {
        let policy = memory::text(given.policy, "options.policy")?;
        let seed = memory::bytes(given.seed.data, given.seed.len, "options.seed")?;
        let known = memory::array(given.known, given.known_count, "options.known")?;
        let known = known.iter().map(|k| memory::bytes(k.data, k.len, "options.known"));
        (policy, seed, known.map(|k| k.and_then(dictionary)).collect::<Result<Vec<_>>>()?)
    };
    let default = MessageConfig::default();
    let history = match given.history {
        _ if has(NARROWS_MESSAGES_NO_HISTORY) => 0,
        0 => default.history,
        n => n as usize,
    };
    let config = MessageConfig {
        carrier: Carrier { delivery, borders: has(NARROWS_MESSAGES_BORDERS) },
        duplex: !has(NARROWS_MESSAGES_ONE_WAY),
        message_max: if given.message_max > 0 { given.message_max as usize } else { default.message_max },
        history,
        check_all: has(NARROWS_MESSAGES_CHECK_ALL),
        seed: if seed.is_empty() { None } else { Some(dictionary(seed)?) },
        known,
        ..default
    };
    Ok((config, policy.map(str::to_owned), has(NARROWS_MESSAGES_LEARN)))
}

/// Creates one end of a message link; returns NULL on failure.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes, whose pointers are NULL or
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_messages_new(options: *const narrows_message_options) -> *mut narrows_messages {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let (config, policy, learns) = unsafe { config(options)? };
            Messages::table().open(|| Messages::new(config, policy.as_deref(), learns)).map(handle)
        },
        no_handle,
    )
}

/// Stores where `bytes` lie.
///
/// # Safety
/// `unit` is null or points to a writable structure.
pub(super) unsafe fn give(unit: *mut narrows_bytes, bytes: &[u8]) -> Result<()> {
    let bytes = narrows_bytes { data: bytes.as_ptr().cast(), len: bytes.len() };
    // SAFETY: the caller answers for the place.
    unsafe { memory::store(unit, bytes, "the place for the bytes") }
}

/// Encodes a message. `unit` is set to the bytes to send for it: send all of them, in the order of
/// the calls, and on a carrier with borders as one unit. The end owns the bytes; they are valid
/// until the next call with it. `sent` may be NULL. A message that is too long
/// (NARROWS_ERROR_LIMIT) changes nothing. On a carrier with borders, NARROWS_ERROR_MISUSE may mean
/// that the units of narrows_message_next have to be sent first.
///
/// # Safety
/// `message` must have `len` bytes; `unit` and `sent` must be NULL or point to writable structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_message_send(
    messages: *mut narrows_messages,
    message: *const c_void,
    len: usize,
    flags: u32,
    unit: *mut narrows_bytes,
    sent: *mut narrows_sent,
) -> narrows_status {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let message = unsafe { memory::bytes(message, len, "message")? };
            if flags & !NARROWS_MESSAGE_PRIVATE != 0 || unit.is_null() {
                return Err(Failure::misuse("unit is a null pointer, or flags are unknown"));
            }
            Messages::table().with(number(messages), |m| {
                let (what, bytes) = m.send(message, flags & NARROWS_MESSAGE_PRIVATE != 0)?;
                let what = narrows_sent { seq: what.seq, wire_len: what.wire_len, control_len: what.control_len };
                // SAFETY: the caller answers for both places.
                unsafe {
                    memory::store(sent, what, "sent")?;
                    give(unit, bytes)?;
                }
                Ok(Status::NARROWS_OK)
            })
        },
        |s| s,
    )
}

/// Sets `unit` to the next unit to send that carries no new message: control frames for the peer,
/// and messages that it lost. Returns 1 if there is one, 0 if there is none, or a negative
/// narrows_status. Call it until it returns 0 after every narrows_message_receive, and on a carrier
/// with borders before every narrows_message_send. It also lets an end that has long been idle free
/// its history. The end owns the bytes; they are valid until the next call with it.
///
/// # Safety
/// `unit` must be NULL or point to a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_message_next(messages: *mut narrows_messages, unit: *mut narrows_bytes) -> i32 {
    enter(
        || {
            if unit.is_null() {
                return Err(Failure::misuse("unit is a null pointer"));
            }
            Messages::table().with(number(messages), |m| {
                let bytes = m.next_unit()?;
                // SAFETY: the caller answers for the place.
                unsafe { give(unit, bytes.unwrap_or_default())? };
                Ok(i32::from(bytes.is_some()))
            })
        },
        code,
    )
}

/// Reads one frame from the front of `input`. On a carrier with borders, `input` is one unit; else
/// everything received and not yet consumed. `consumed` is set to the length of the frame in bytes:
/// continue after it while bytes remain. Returns a narrows_front or a negative narrows_status. For
/// NARROWS_FRONT_MESSAGE `message` is set to the message; the end owns it, and it is valid until
/// the next call with the end. On a carrier without borders nothing after a failure can be read.
///
/// # Safety
/// `input` must have `len` bytes; `consumed` and `message` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_message_receive(
    messages: *mut narrows_messages,
    input: *const c_void,
    len: usize,
    consumed: *mut usize,
    message: *mut narrows_bytes,
) -> i32 {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let input = unsafe { memory::bytes(input, len, "input")? };
            if consumed.is_null() || message.is_null() {
                return Err(Failure::misuse("consumed or message is a null pointer"));
            }
            Messages::table().with(number(messages), |m| {
                let (read, front, bytes) = m.receive(input)?;
                // SAFETY: the caller answers for both places.
                unsafe {
                    memory::store(consumed, read, "consumed")?;
                    give(message, bytes)?;
                }
                Ok(match front {
                    Front::Nothing => narrows_front::NARROWS_FRONT_NOTHING,
                    Front::Message => narrows_front::NARROWS_FRONT_MESSAGE,
                    Front::Incomplete => narrows_front::NARROWS_FRONT_INCOMPLETE,
                    Front::Undecodable => narrows_front::NARROWS_FRONT_UNDECODABLE,
                    Front::Gap => narrows_front::NARROWS_FRONT_GAP,
                } as i32)
            })
        },
        code,
    )
}

/// Tells the policy that the peer answered message `seq` `span_ns` nanoseconds after it was sent.
/// `wire_len` is the number of bytes that crossed the link one after the other in that time: those
/// of the message, plus those of the answer if answers vary in length. The policy learns from it
/// how long a byte takes; without it, it assumes a link of 100 Mbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_message_answered(
    messages: *mut narrows_messages,
    seq: u64,
    wire_len: usize,
    span_ns: u64,
) -> narrows_status {
    let call = |m: &mut Messages| {
        m.answered(seq, wire_len, span_ns);
        Ok(Status::NARROWS_OK)
    };
    enter(|| Messages::table().with(number(messages), call), |s| s)
}

/// States that the carrier has a new connection, so the peer knows nothing of the old one. Messages
/// in flight may be lost.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_message_reconnect(messages: *mut narrows_messages) -> narrows_status {
    let call = |m: &mut Messages| {
        m.reconnect();
        Ok(Status::NARROWS_OK)
    };
    enter(|| Messages::table().with(number(messages), call), |s| s)
}

/// Offers a dictionary to the peer. Returns 1; 0 if the peer accepts no such dictionary or cannot
/// confirm that it has it; or a negative narrows_status.
///
/// # Safety
/// `dictionary` must have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_message_offer(
    messages: *mut narrows_messages,
    dictionary: *const c_void,
    len: usize,
) -> i32 {
    enter(
        || {
            // SAFETY: the caller answers for the bytes.
            let content = unsafe { memory::bytes(dictionary, len, "dictionary")? };
            Messages::table().with(number(messages), |m| m.offer(content)).map(i32::from)
        },
        code,
    )
}

/// Stores the bytes sent and received so far. Either may be NULL.
///
/// # Safety
/// Both must be NULL or point to writable structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_message_totals(
    messages: *mut narrows_messages,
    sent: *mut narrows_totals,
    received: *mut narrows_totals,
) -> narrows_status {
    enter(
        || {
            let both = Messages::table().with(number(messages), |m| Ok(m.totals()))?;
            let [of_sent, of_received] =
                both.map(|(_, raw_bytes, wire_bytes)| narrows_totals { raw_bytes, wire_bytes });
            // SAFETY: the caller answers for both places.
            unsafe {
                memory::store(sent, of_sent, "sent")?;
                memory::store(received, of_received, "received")?;
            }
            Ok(Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Frees the end of the link at any time.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_messages_free(messages: *mut narrows_messages) -> narrows_status {
    let drop_it = |m: Messages| {
        drop(m);
        Ok(())
    };
    enter(|| Messages::table().close(number(messages), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
