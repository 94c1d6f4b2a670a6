//! Notes: messages from the receiving application to the sending one, carried beside the reports.

use std::sync::{Arc, OnceLock};

/// The reverse direction of the flow that the notes belong to.
pub(super) trait Back: Send + Sync {
    fn say(&self, words: &[u8]);
    fn settle(&self, waiting_max: u64) -> bool;
}

/// A channel for notes. It is made before the flow and given to the flow and to the sink, which
/// then sends through it.
#[derive(Clone, Default)]
pub struct Notes(Arc<OnceLock<Box<dyn Back>>>);

impl Notes {
    /// Sends one note without waiting; bytes that the link does not take follow with the next
    /// report. The flow fails if the sender leaves 8 MiB of notes unread. Without a running flow,
    /// or on a one-way link, the note is dropped.
    ///
    /// # Panics
    /// If the note has more than [`CONTROL_BODY_MAX`](crate::frame::CONTROL_BODY_MAX) bytes.
    pub fn send(&self, words: &[u8]) {
        if let Some(back) = self.0.get() {
            back.say(words);
        }
    }

    /// Waits until at most `waiting_max` bytes of notes are left that the link has not taken, for
    /// an application that sends many notes and has no other bound. `false` if the sender does not
    /// read them any more.
    pub fn settle(&self, waiting_max: u64) -> bool {
        self.0.get().is_some_and(|back| back.settle(waiting_max))
    }

    pub(super) fn attach(&self, back: Box<dyn Back>) {
        let _ = self.0.set(back);
    }
}
