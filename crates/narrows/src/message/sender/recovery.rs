//! What a sender does when its reader lost the history (format.md section 12.6).

use super::{Heard, MessageSender};
use crate::error::{Error, Result};
use crate::message::control::Lost;
use crate::message::history::Chain;

/// What the reader loses as often as this, one time after the other, it would lose for ever.
const SAME_MAX: u8 = 3;

/// A message that can be sent again while it lies in the history.
pub(super) struct Tail {
    pub(super) len: usize,
    /// The chain before it: what a reader tells that has all before and not this.
    pub(super) before: Chain,
    /// It is not in the history.
    pub(super) private: bool,
}

impl MessageSender {
    pub(super) fn hear_lost(&mut self, generation: u64, number: u64, chain: Chain, reason: Lost) -> Result<Heard> {
        if !self.is_ordered() || generation > self.generation || number > self.number {
            return Err(Error::corrupt("the peer lost what was not sent"));
        }
        let is_new = reason == Lost::New && (generation, number, chain) == (0, 0, Chain(0));
        // A reset that is due answers it as well.
        if !is_new && generation < self.generation || self.reset_due == Some(true) {
            return Ok(Heard::Nothing);
        }
        self.settle();
        self.preface_due |= is_new;
        self.seeded &= reason != Lost::Seed;
        self.due.clear();
        self.slots.offer_again(is_new || reason == Lost::Slot, number);
        let times = if self.lost.0 == number { self.lost.1.saturating_add(1) } else { 1 };
        self.lost = (number, times);
        let hopeless = is_new && self.number > 0 || times > SAME_MAX;
        let messages = if hopeless { None } else { self.tail_from(number, chain) };
        let Some(messages) = messages else {
            self.drop_history();
            self.reset_due = Some(true);
            return Ok(Heard::Gap);
        };
        let bytes: u64 = messages.iter().map(|m| m.len() as u64).sum();
        // As if they had not been sent: the same word, should it come twice, then finds nothing more to do.
        (self.number, self.raw_offset, self.chain) = (number, self.raw_offset - bytes, chain);
        self.drop_history();
        for message in messages.into_iter().rev() {
            self.again.push_front(message);
        }
        Ok(if self.again.is_empty() { Heard::Nothing } else { Heard::SendAgain(self.again.len()) })
    }

    /// The messages from `number` on, if they are all remembered and what was sent before them is what `chain` says.
    fn tail_from(&self, number: u64, chain: Chain) -> Option<Vec<Vec<u8>>> {
        let back = usize::try_from(self.number - number).ok()?;
        let before = if back == 0 { self.chain } else { self.tail.get(self.tail.len().checked_sub(back)?)?.before };
        let tail = self.tail.iter().skip(self.tail.len() - back);
        // Of one that is too long the limit may have come too late.
        if tail.clone().any(|t| t.private || t.len > self.peer.message_max) {
            return None;
        }
        let bytes: usize = tail.clone().map(|t| t.len).sum();
        let history = self.history.bytes();
        // After a reset of its own a sender does not have them any more.
        let mut rest = history.get(history.len().checked_sub(bytes)?..).filter(|_| before == chain)?;
        let mut messages = Vec::with_capacity(back);
        for entry in tail {
            let (message, behind) = rest.split_at(entry.len);
            messages.push(message.to_vec());
            rest = behind;
        }
        Some(messages)
    }
}
