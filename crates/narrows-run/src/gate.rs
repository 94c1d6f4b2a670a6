//! Limit on what a peer may say about one connection. Events beyond it are dropped, so few can
//! queue up in this process, whatever comes over a side channel.

use narrows::upgrade::{Event, Word};

/// Queries not answered yet. A peer has one at a time, and one more after the side channel was
/// lost.
const UNANSWERED_MAX: u8 = 4;
/// Answers without a query: a peer announces where its marker is, and again whenever the side
/// channel is back.
const ANNOUNCED: u8 = 4;
/// Losses of the side channel while a connection is unsettled, which for its client lasts one round
/// trip.
const RESTORED_MAX: u8 = 64;

pub(crate) struct Gate {
    unanswered: u8,
    answers: u8,
    restored: u8,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { unanswered: 0, answers: ANNOUNCED, restored: 0 }
    }

    pub(crate) fn passes(&mut self, event: &Event) -> bool {
        match event {
            Event::Query { .. } if self.unanswered >= UNANSWERED_MAX => return false,
            Event::Query { .. } => self.unanswered += 1,
            Event::Answer { .. } if self.answers == 0 => return false,
            Event::Answer { .. } => self.answers -= 1,
            Event::Restored if self.restored >= RESTORED_MAX => return false,
            Event::Restored => {
                self.restored += 1;
                self.answers = self.answers.saturating_add(ANNOUNCED);
            }
            Event::Claimed(_) | Event::Ready(_) | Event::Plain(_) | Event::Withdrawn => {}
        }
        true
    }

    pub(crate) fn said(&mut self, word: Word) {
        match word {
            Word::Query { .. } => self.answers = self.answers.saturating_add(1),
            Word::Answer { .. } => self.unanswered = self.unanswered.saturating_sub(1),
            Word::Armed { .. } | Word::Decline | Word::Withdraw | Word::Settled => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_floods_is_heard_no_more_and_one_that_answers_is() {
        let mut gate = Gate::new();
        let query = Event::Query { offset: 1 };
        let heard = (0..1000).filter(|_| gate.passes(&query)).count();
        assert_eq!(heard, usize::from(UNANSWERED_MAX));
        gate.said(Word::Answer { offset: 1, marked: false });
        assert!(gate.passes(&query) && !gate.passes(&query));
        let answer = Event::Answer { offset: 1, marked: false };
        assert_eq!((0..1000).filter(|_| gate.passes(&answer)).count(), usize::from(ANNOUNCED));
        for _ in 0..1000 {
            gate.said(Word::Query { offset: 1 });
            assert!(gate.passes(&answer) && !gate.passes(&answer));
        }
        assert_eq!((0..1000).filter(|_| gate.passes(&Event::Restored)).count(), usize::from(RESTORED_MAX));
    }
}
