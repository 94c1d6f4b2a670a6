//! The window of a sender: blocks between choice and link.

use std::collections::VecDeque;

use super::Done;
use super::copies::Copied;
use crate::block::Block;
use crate::codec::Method;

/// Blocks that were chosen and have not left the host, in the flow's order.
#[derive(Default)]
pub(super) struct Window {
    pub(super) slots: VecDeque<Slot>,
    /// Number of slots, from the front, whose frame was handed to the link.
    pub(super) handed: usize,
    pub(super) next_seq: u64,
    /// A late block is not taken over before this time.
    pub(super) wait_until_ns: u64,
}

impl Window {
    /// Whether every frame was handed to the link.
    pub(super) fn is_handed(&self) -> bool {
        self.handed == self.slots.len()
    }

    /// The first block whose frame was not handed to the link.
    pub(super) fn head(&self) -> Option<&Slot> {
        self.slots.get(self.handed)
    }

    /// The block of this number, if its frame was not handed to the link.
    pub(super) fn find_mut(&mut self, seq: u64) -> Option<&mut Slot> {
        let front = self.slots.front().map_or(self.next_seq, |s| s.seq);
        let slot = seq.checked_sub(front).and_then(|i| self.slots.get_mut(i as usize));
        slot.filter(|s| matches!(s.state, SlotState::Encoding))
    }

    pub(super) fn push(&mut self, slot: Slot) {
        self.slots.push_back(slot);
        self.next_seq += 1;
        self.wait_until_ns = 0;
    }

    /// Wire bytes encoded and not handed to the link.
    pub(super) fn unsent_len(&self) -> usize {
        self.slots.iter().skip(self.handed).map(|s| s.wire_len_estimate()).sum()
    }
}

/// A block between choice and link.
pub(super) struct Slot {
    pub(super) seq: u64,
    /// Literals.
    pub(super) raw: Block,
    pub(super) copies: Vec<Copied>,
    pub(super) raw_offset: u64,
    pub(super) method: Method,
    pub(super) linked: bool,
    pub(super) history: Block,
    pub(super) chosen_ns: u64,
    pub(super) rescuing: bool,
    pub(super) state: SlotState,
}

pub(super) enum SlotState {
    Encoding,
    Ready(Box<Done>),
    /// Handed to the link; the frame ends at wire offset `wire_end`.
    Handed {
        wire_end: u64,
        wire_len: usize,
        raw_len: usize,
        copied: usize,
        sent_as: Method,
    },
}

impl Slot {
    /// Wire bytes still to hand over, as far as known.
    pub(super) fn wire_len_estimate(&self) -> usize {
        match &self.state {
            SlotState::Ready(done) => done.frame.wire_len(),
            SlotState::Encoding | SlotState::Handed { .. } => 0,
        }
    }
}
