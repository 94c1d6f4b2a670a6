//! Words of the receiving application to the sending one, beside the reports.

use std::sync::{Arc, OnceLock};

/// The reverse direction of the flow that the notes belong to.
pub(super) trait Back: Send + Sync {
    fn say(&self, words: &[u8]);
    fn settle(&self, waiting_max: u64) -> bool;
}

/// Made before the flow and given to it and to the sink, which then speaks through it.
#[derive(Clone, Default)]
pub struct Notes(Arc<OnceLock<Box<dyn Back>>>);

impl Notes {
    /// Sends words on their way at once, without waiting: what the link does not take follows with
    /// the next report. The flow fails when a sender leaves 8 MiB of them unread. Without a running
    /// flow, or on a link of one direction, nobody hears.
    ///
    /// # Panics
    /// If there are more than [`CONTROL_BODY_MAX`](crate::frame::CONTROL_BODY_MAX) bytes.
    pub fn send(&self, words: &[u8]) {
        if let Some(back) = self.0.get() {
            back.say(words);
        }
    }

    /// Waits until the link has taken all that was said but `waiting_max` bytes: for an application
    /// that says much where nothing bounds it. `false` if nobody hears any more.
    pub fn settle(&self, waiting_max: u64) -> bool {
        self.0.get().is_some_and(|back| back.settle(waiting_max))
    }

    pub(super) fn attach(&self, back: Box<dyn Back>) {
        let _ = self.0.set(back);
    }
}
