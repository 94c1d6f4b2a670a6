//! Answers for the sender, gathered into notes.

use narrows::entry::{ANSWERS_LEN_MAX, Answer, CHUNKS_MAX, TEXT_LEN_MAX, Wanted};
use narrows::stream::Notes;

/// Maximum length of an answer in bytes; one that may not fit goes into the next note.
const ANSWER_MAX: usize = TEXT_LEN_MAX + 32 + 2 * (CHUNKS_MAX + 1);
const _: () = assert!(ANSWER_MAX < ANSWERS_LEN_MAX);
/// Number of removed entries without names that are reported in one answer: often enough to show
/// progress.
const UNNAMED_MAX: u64 = 1024;
/// Maximum length of answers that wait for the link while entries are removed, in bytes: enough to
/// keep the link busy, in little memory.
const WAITING_MAX: u64 = 4 * ANSWERS_LEN_MAX as u64;

/// The answers for the next note.
pub(super) struct Answers {
    notes: Notes,
    bytes: Vec<u8>,
    run: Option<(u64, Wanted)>,
    /// Entries that were removed and not reported yet.
    unnamed: u64,
}

impl Answers {
    pub(super) fn new(notes: Notes) -> Self {
        Self { notes, bytes: Vec::new(), run: None, unnamed: 0 }
    }

    /// Adds the answer for one file; equal consecutive answers are merged.
    pub(super) fn file(&mut self, wanted: Wanted) {
        match &mut self.run {
            Some((count, same)) if *same == wanted => *count += 1,
            _ => {
                self.end_run();
                self.run = Some((1, wanted));
            }
        }
    }

    /// Reports a removed entry; `name` is empty if the sender wants no names.
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

    /// Waits until the link has taken most of the answers; false if the sender is gone.
    pub(super) fn settle(&self) -> bool {
        self.notes.settle(WAITING_MAX)
    }

    /// Sends all answers and waits until the link has taken them; false if the sender is gone.
    pub(super) fn settle_all(&mut self) -> bool {
        self.send();
        self.notes.settle(0)
    }

    /// Adds an answer.
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

    /// Sends the gathered answers.
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
