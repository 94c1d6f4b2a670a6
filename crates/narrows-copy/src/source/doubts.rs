//! Files sent as references, kept until the receiver confirms them.

use std::collections::HashMap;

use narrows::entry::REPEATED_MAX;
use narrows::{Error, Result};

use super::File;

/// Maximum number of lost files that the producer has not processed yet; further ones are detected
/// again.
const LOST_MAX: usize = 64 << 10;

/// A file that was sent but may have to be sent again, with what was counted for it.
pub(super) struct Doubted {
    pub(super) file: File,
    pub(super) done: u64,
    pub(super) here: u64,
    pub(super) repeated: u64,
    pub(super) changed: bool,
}

/// The unconfirmed files, and the state of the current file.
#[derive(Default)]
pub(super) struct Doubts {
    files: HashMap<u64, Doubted>,
    in_hand: Option<InHand>,
    /// Files whose content the receiver no longer has, so that nothing can refer to it.
    lost: Vec<u64>,
    /// Bytes that were sent as references and not confirmed yet.
    unanswered: u64,
}

/// The file that is being sent.
struct InHand {
    id: u64,
    repeats_others: bool,
    verdict: Verdict,
}

/// Answer of the receiver about the file that is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// None yet.
    Nothing,
    /// It must be sent again.
    Again,
    /// It cannot be stored, which was reported.
    Failed,
}

impl Doubts {
    /// Number of unconfirmed files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    // --- the producer ---

    /// Starts a file; returns the files that are lost.
    pub(super) fn begin(&mut self, id: u64) -> Vec<u64> {
        self.in_hand = Some(InHand { id, repeats_others: false, verdict: Verdict::Nothing });
        std::mem::take(&mut self.lost)
    }

    /// Counts `len` bytes that were sent as a reference, to another file if `of_others`.
    pub(super) fn named(&mut self, len: u64, of_others: bool) {
        self.unanswered += len;
        if let Some(in_hand) = &mut self.in_hand {
            in_hand.repeats_others |= of_others;
        }
    }

    /// Whether `len` more bytes may be sent as references before an answer is needed.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.unanswered + len <= REPEATED_MAX
    }

    /// The answer about the current file.
    pub(super) fn verdict(&self) -> Verdict {
        self.in_hand.as_ref().map_or(Verdict::Nothing, |in_hand| in_hand.verdict)
    }

    /// Ends the current file, which was sent completely; returns it if it has to be sent again.
    pub(super) fn sent(&mut self, doubted: Doubted) -> Option<Doubted> {
        let in_hand = self.in_hand.take()?;
        match in_hand.verdict {
            Verdict::Again => return Some(doubted),
            Verdict::Nothing if in_hand.repeats_others => drop(self.files.insert(in_hand.id, doubted)),
            Verdict::Nothing | Verdict::Failed => {}
        }
        None
    }

    // --- the other end ---

    /// The receiver has confirmed a file.
    pub(super) fn whole(&mut self, id: u64) {
        self.files.remove(&id);
    }

    /// A file cannot be stored; returns whether it is the current file.
    pub(super) fn failed(&mut self, id: u64) -> bool {
        self.files.remove(&id);
        self.lose(id);
        let in_hand = self.in_hand.as_mut().filter(|h| h.id == id);
        in_hand.map(|in_hand| in_hand.verdict = Verdict::Failed).is_some()
    }

    /// The receiver wants a file again, because it lost file `of`. Returns the file unless it is
    /// the current one.
    pub(super) fn again(&mut self, id: u64, of: u64) -> Result<Option<Doubted>> {
        self.lose(of);
        if let Some(in_hand) = self.in_hand.as_mut().filter(|h| h.id == id && h.repeats_others) {
            in_hand.verdict = Verdict::Again;
            return Ok(None);
        }
        let doubted = self.files.remove(&id);
        doubted
            .map(Some)
            .ok_or_else(|| Error::corrupt("the receiver requests a file again that was not sent as a reference"))
    }

    /// The receiver has processed references to `len` bytes.
    pub(super) fn taken(&mut self, len: u64) -> Result<()> {
        let left = self.unanswered.checked_sub(len);
        self.unanswered = left.ok_or_else(|| Error::corrupt("the receiver confirms more references than were sent"))?;
        Ok(())
    }

    fn lose(&mut self, id: u64) {
        if self.lost.len() < LOST_MAX {
            self.lost.push(id);
        }
    }
}
