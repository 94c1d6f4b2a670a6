//! Words of the receiving application to the sending one, beside the reports.

use std::sync::{Arc, OnceLock};

type Say = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Made before the flow and given to it and to the sink, which then speaks through it.
#[derive(Clone, Default)]
pub struct Notes(Arc<OnceLock<Say>>);

impl Notes {
    /// Sends words on their way at once, without waiting: what the link does not take follows with the next report. The
    /// flow fails when a sender leaves 64 MiB of them unread. Without a running flow, or on a link of one direction, nobody hears.
    ///
    /// # Panics
    /// If there are more than [`CONTROL_BODY_MAX`](crate::frame::CONTROL_BODY_MAX) bytes.
    pub fn send(&self, words: &[u8]) {
        if let Some(say) = self.0.get() {
            say(words);
        }
    }

    pub(super) fn attach(&self, say: Say) {
        let _ = self.0.set(say);
    }
}
