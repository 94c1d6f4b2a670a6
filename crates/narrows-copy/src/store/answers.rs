//! Answers on their way to the sender.

use narrows::entry::{ANSWERS_LEN_MAX, Answer, CHUNKS_MAX, TEXT_LEN_MAX, Wanted};
use narrows::stream::Notes;

/// An answer that does not fit any more is sent in the next note.
const ANSWER_MAX: usize = TEXT_LEN_MAX + 32 + 2 * (CHUNKS_MAX + 1);
const _: () = assert!(ANSWER_MAX < ANSWERS_LEN_MAX);
/// Removed entries without names that one answer is given for: often enough to show that it goes on.
const UNNAMED_MAX: u64 = 1024;
/// What may wait for the link while entries are removed: enough to keep it busy, little to hold.
const WAITING_MAX: u64 = 4 * ANSWERS_LEN_MAX as u64;

/// Answers on their way into one note.
pub(super) struct Answers {
    notes: Notes,
    bytes: Vec<u8>,
    run: Option<(u64, Wanted)>,
    /// Entries that were removed and not told.
    unnamed: u64,
}

impl Answers {
    pub(super) fn new(notes: Notes) -> Self {
        Self { notes, bytes: Vec::new(), run: None, unnamed: 0 }
    }

    pub(super) fn file(&mut self, wanted: Wanted) {
        match &mut self.run {
            Some((count, same)) if *same == wanted => *count += 1,
            _ => {
                self.end_run();
                self.run = Some((1, wanted));
            }
        }
    }

    /// One more entry was removed; `name` is empty if nobody wants to hear it.
    pub(super) fn removed(&mut self, name: String) {
        if name.is_empty() {
            self.unnamed += 1;
            if self.unnamed == UNNAMED_MAX {
                self.send();
            }
        } else {
            self.put(&Answer::Removed { count: 1, text: name });
        }
    }

    /// Waits until the link has taken most of it; `false` if nobody hears it any more.
    pub(super) fn settle(&self) -> bool {
        self.notes.settle(WAITING_MAX)
    }

    pub(super) fn settle_all(&mut self) -> bool {
        self.send();
        self.notes.settle(0)
    }

    pub(super) fn put(&mut self, answer: &Answer) {
        self.end_run();
        if self.bytes.len() + ANSWER_MAX > ANSWERS_LEN_MAX {
            self.send();
        }
        answer.put(&mut self.bytes);
    }

    fn end_run(&mut self) {
        if let Some((count, wanted)) = self.run.take() {
            self.put(&Answer::Files { count, wanted });
        }
    }

    pub(super) fn send(&mut self) {
        self.end_run();
        if self.unnamed > 0 {
            let count = std::mem::take(&mut self.unnamed);
            self.put(&Answer::Removed { count, text: String::new() });
        }
        if !self.bytes.is_empty() {
            self.notes.send(&self.bytes);
            self.bytes.clear();
        }
    }
}
