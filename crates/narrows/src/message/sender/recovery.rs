//! Recovery of a sender whose reader lost the history (format.md section 12.6).

use super::{Heard, MessageSender};
use crate::error::{Error, Result};
use crate::message::control::Lost;
use crate::message::history::Chain;

/// A message that the reader loses more often than this in a row would be lost every time.
const SAME_MAX: u8 = 3;

/// A message that can be sent again as long as it is in the history.
pub(super) struct Tail {
    pub(super) len: usize,
    /// The chain before it, as reported by a reader that has all earlier messages and not this one.
    pub(super) before: Chain,
    /// It is not in the history.
    pub(super) private: bool,
}

impl MessageSender {
    pub(super) fn hear_lost(&mut self, generation: u64, number: u64, chain: Chain, reason: Lost) -> Result<Heard> {
        if !self.is_ordered() || generation > self.generation || number > self.number {
            return Err(Error::corrupt("the peer reports lost messages that were never sent"));
        }
        let is_new = reason == Lost::New && (generation, number, chain) == (0, 0, Chain(0));
        // A reset that is already due answers it as well.
        if !is_new && generation < self.generation || self.due.reset == Some(true) {
            return Ok(Heard::Nothing);
        }
        self.settle();
        self.due.preface |= is_new;
        self.seeded &= reason != Lost::Seed;
        self.due.pins.clear();
        self.slots.offer_again(is_new || reason == Lost::Slot, number);
        let times = if self.recovery.lost.0 == number { self.recovery.lost.1.saturating_add(1) } else { 1 };
        self.recovery.lost = (number, times);
        let hopeless = is_new && self.number > 0 || times > SAME_MAX;
        let messages = if hopeless { None } else { self.tail_from(number, chain) };
        let Some(messages) = messages else {
            self.drop_history();
            self.due.reset = Some(true);
            return Ok(Heard::Gap);
        };
        let bytes: u64 = messages.iter().map(|m| m.len() as u64).sum();
        // Rewind as if these messages had not been sent: a duplicate of the report then changes
        // nothing.
        (self.number, self.raw_offset, self.chain) = (number, self.raw_offset - bytes, chain);
        self.drop_history();
        for message in messages.into_iter().rev() {
            self.recovery.again.push_front(message);
        }
        Ok(if self.recovery.again.is_empty() { Heard::Nothing } else { Heard::SendAgain(self.recovery.again.len()) })
    }

    /// The messages from `number` on, if all are remembered and `chain` matches the messages before
    /// them.
    fn tail_from(&self, number: u64, chain: Chain) -> Option<Vec<Vec<u8>>> {
        let back = usize::try_from(self.number - number).ok()?;
        let before = if back == 0 {
            self.chain
        } else {
            self.recovery.tail.get(self.recovery.tail.len().checked_sub(back)?)?.before
        };
        let tail = self.recovery.tail.iter().skip(self.recovery.tail.len() - back);
        // The peer's limit may have arrived after a message that exceeds it.
        if tail.clone().any(|t| t.private || t.len > self.peer.message_max) {
            return None;
        }
        let bytes: usize = tail.clone().map(|t| t.len).sum();
        let history = self.history.bytes();
        // After a reset of its own the sender does not have them.
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
