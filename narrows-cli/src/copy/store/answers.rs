//! Answers on their way to the sender.

use narrows::entry::{ANSWERS_LEN_MAX, Answer, CHUNKS_MAX, TEXT_LEN_MAX, Wanted};
use narrows::stream::Notes;

/// An answer that does not fit any more is sent in the next note.
const ANSWER_MAX: usize = TEXT_LEN_MAX + 32 + 2 * (CHUNKS_MAX + 1);
const _: () = assert!(ANSWER_MAX < ANSWERS_LEN_MAX);

/// Answers on their way into one note.
pub(super) struct Answers {
    notes: Notes,
    bytes: Vec<u8>,
    run: Option<(u64, Wanted)>,
}

impl Answers {
    pub(super) fn new(notes: Notes) -> Self {
        Self { notes, bytes: Vec::new(), run: None }
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
        if !self.bytes.is_empty() {
            self.notes.send(&self.bytes);
            self.bytes.clear();
        }
    }
}
