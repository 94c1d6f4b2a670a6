//! Messages: dictionaries, one direction ([`MessageEncoder`], [`MessageDecoder`]), both directions
//! of one end ([`MessageEnd`]), topics ([`TopicWriter`], [`TopicReader`]).
//!
//! A call takes about a microsecond, so it keeps the interpreter's lock: releasing and reacquiring
//! it costs as much if no other thread runs, and 5 ms if another thread computes. Since the lock is
//! held, all flows share one set of contexts.

use std::mem;
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Instant;

use narrows::message::Contexts;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

mod dictionary;
mod end;
mod one_way;
mod settings;
mod stats;
mod topic;

pub(crate) use self::dictionary::{Adoption, Dictionary, Training, train};
pub(crate) use self::end::MessageEnd;
pub(crate) use self::one_way::{MessageDecoder, MessageEncoder};
pub(crate) use self::stats::Stats;
pub(crate) use self::topic::{TopicReader, TopicWriter};

/// Calls `f` with the codec contexts of the process. Making an object can trigger garbage
/// collection, whose Python code may call this again: that call gets temporary contexts.
fn with_contexts<R>(f: impl FnOnce(&mut Contexts) -> R) -> R {
    static CONTEXTS: OnceLock<Mutex<Contexts>> = OnceLock::new();
    match CONTEXTS.get_or_init(Mutex::default).try_lock() {
        Ok(mut contexts) => f(&mut contexts),
        // A panic may have left them inconsistent.
        Err(TryLockError::Poisoned(e)) => {
            let mut contexts = e.into_inner();
            *contexts = Contexts::default();
            f(&mut contexts)
        }
        Err(TryLockError::WouldBlock) => f(&mut Contexts::default()),
    }
}

/// Nanoseconds since the module was first used: the clock of all flows.
fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Unread input of a carrier without borders, and an error that was found after messages.
#[derive(Default)]
struct Input {
    left: Vec<u8>,
    error: Option<narrows::Error>,
}

/// Result of reading one frame; the numbers are the bytes consumed.
enum Step {
    Incomplete,
    Message(Py<PyBytes>, usize),
    Other(usize),
}

impl Input {
    /// Reads all complete frames. Messages before an error are returned first; the next call
    /// returns the error.
    fn read(
        &mut self,
        bytes: &[u8],
        mut step: impl FnMut(&[u8]) -> narrows::Result<Step>,
    ) -> narrows::Result<Vec<Py<PyBytes>>> {
        if let Some(error) = self.error.take() {
            // Errors are final: the start of the next frame is unknown.
            self.error = Some(narrows::Error::misuse("the flow has failed; start a new one on a new connection"));
            return Err(error);
        }
        let mut messages = Vec::new();
        let mut joined = mem::take(&mut self.left);
        let in_place = joined.is_empty();
        if !in_place {
            joined.extend_from_slice(bytes);
        }
        let mut rest = if in_place { bytes } else { &joined[..] };
        while !rest.is_empty() {
            match step(rest) {
                Ok(Step::Incomplete) => break,
                Ok(Step::Other(consumed)) => rest = &rest[consumed..],
                Ok(Step::Message(message, consumed)) => {
                    messages.push(message);
                    rest = &rest[consumed..];
                }
                Err(error) => {
                    self.error = Some(error);
                    if messages.is_empty() {
                        return self.read(&[], step);
                    }
                    return Ok(messages);
                }
            }
        }
        if in_place {
            self.left.extend_from_slice(rest);
        } else {
            let read = joined.len() - rest.len();
            joined.drain(..read);
            self.left = joined;
        }
        Ok(messages)
    }
}
