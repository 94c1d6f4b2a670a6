//! Files that repeat others, until the other end says that it has them whole.

use std::collections::HashMap;

use narrows::entry::REPEATED_MAX;
use narrows::{Error, Result};

use super::File;

/// Numbers that the producer has not taken notice of: what is beyond is found out again.
const LOST_MAX: usize = 64 << 10;

/// A file that was sent and may have to be sent again, and what was counted of it.
pub(super) struct Doubted {
    pub(super) file: File,
    pub(super) done: u64,
    pub(super) here: u64,
    pub(super) changed: bool,
}

#[derive(Default)]
pub(super) struct Doubts {
    files: HashMap<u64, Doubted>,
    in_hand: Option<InHand>,
    /// Files of which the other end has not got what was sent.
    lost: Vec<u64>,
    /// Bytes that were only named, and not taken yet.
    unanswered: u64,
}

/// The file that is being sent.
struct InHand {
    id: u64,
    repeats_others: bool,
    verdict: Verdict,
}

/// What the other end says of the file in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Nothing,
    Again,
    /// It cannot be stored, as was told.
    Failed,
}

impl Doubts {
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    // --- the producer ---

    /// Takes a file in hand; gives the files that are lost.
    pub(super) fn begin(&mut self, id: u64) -> Vec<u64> {
        self.in_hand = Some(InHand { id, repeats_others: false, verdict: Verdict::Nothing });
        std::mem::take(&mut self.lost)
    }

    pub(super) fn named(&mut self, len: u64, of_others: bool) {
        self.unanswered += len;
        if let Some(in_hand) = &mut self.in_hand {
            in_hand.repeats_others |= of_others;
        }
    }

    /// Whether so much more may be named before something is answered.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.unanswered + len <= REPEATED_MAX
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.in_hand.as_ref().map_or(Verdict::Nothing, |in_hand| in_hand.verdict)
    }

    /// All of the file in hand was sent. If it has to be sent again it is given back.
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

    pub(super) fn whole(&mut self, id: u64) {
        self.files.remove(&id);
    }

    /// Whether it is the file in hand that cannot be stored.
    pub(super) fn failed(&mut self, id: u64) -> bool {
        self.files.remove(&id);
        self.lose(id);
        let in_hand = self.in_hand.as_mut().filter(|h| h.id == id);
        in_hand.map(|in_hand| in_hand.verdict = Verdict::Failed).is_some()
    }

    /// Gives the file that is to be sent again, if it is not in hand.
    pub(super) fn again(&mut self, id: u64, of: u64) -> Result<Option<Doubted>> {
        self.lose(of);
        if let Some(in_hand) = self.in_hand.as_mut().filter(|h| h.id == id && h.repeats_others) {
            in_hand.verdict = Verdict::Again;
            return Ok(None);
        }
        let doubted = self.files.remove(&id);
        doubted.map(Some).ok_or_else(|| Error::corrupt("the receiver wants a file again that repeats none"))
    }

    pub(super) fn taken(&mut self, len: u64) -> Result<()> {
        let left = self.unanswered.checked_sub(len);
        self.unanswered = left.ok_or_else(|| Error::corrupt("the receiver took more than was repeated"))?;
        Ok(())
    }

    fn lose(&mut self, id: u64) {
        if self.lost.len() < LOST_MAX {
            self.lost.push(id);
        }
    }
}
