//! The sender's view for its policy, and the memory of the flow.

use super::window::SlotState;
use super::{Phase, Sender, copies};
use crate::codec::Method;
use crate::frame;
use crate::monitor::{Ask, CpuView, Limits, Pending, PendingState, ReceiverView, View};

impl Sender {
    /// The caller owns `upcoming` and `queue`, so that it can call the policy while the view lives.
    pub(super) fn view<'a>(&self, upcoming: &'a [u8], queue: &'a [Pending], ask: Ask) -> View<'a> {
        let told = self
            .config
            .raw_len
            .and_then(|len| len.checked_sub(self.raw_offset))
            .filter(|l| *l >= self.input.len as u64);
        View {
            now_ns: self.times.now_ns,
            busy_ns: self.times.busy_ns,
            seq: self.window.next_seq,
            raw_offset: self.raw_offset,
            upcoming,
            gathered: self.input.len,
            left: if self.phase > Phase::Open { Some(self.input.len as u64) } else { told },
            link: self.link.view(self.times.dry_ns),
            cpu: CpuView { cores: self.config.cores.max(1), busy: self.workers.busy },
            receiver: ReceiverView {
                reports: self.peer.cores.is_some(),
                cores: self.peer.cores.unwrap_or(1),
                backlog_bytes: self.peer.feedback.backlog_bytes,
            },
            queue,
            limits: Limits { history: self.history_limit(), ..self.limits },
            ask,
        }
    }

    /// Bytes that the next block can be linked to; before any long history is kept, what it may have.
    fn history_limit(&self) -> usize {
        let kept_long = self.history.len_max() > frame::BASELINE_HISTORY;
        if kept_long { self.history.len().min(self.limits.history) } else { self.limits.history }
    }

    pub(super) fn pending_into(&self, out: &mut Vec<Pending>) {
        let left = self.link.left_host_bytes();
        out.clear();
        let pending = self.window.slots.iter().map(|slot| {
            let (raw_len, state) = match &slot.state {
                SlotState::Encoding => (slot.raw.len(), PendingState::Encoding),
                SlotState::Ready(done) => (slot.raw.len(), PendingState::Ready { unsent_len: done.frame.wire_len() }),
                SlotState::Handed { wire_end, wire_len, raw_len, .. } => {
                    let unsent_len = wire_end.saturating_sub(left).min(*wire_len as u64) as usize;
                    (*raw_len, PendingState::Ready { unsent_len })
                }
            };
            Pending { seq: slot.seq, raw_len, method: slot.method, chosen_ns: slot.chosen_ns, state }
        });
        // No policy chose how frames without literals are sent.
        out.extend(pending.filter(|block| block.raw_len > 0));
    }

    /// Bytes that the flow holds: raw, history, encoded, and an estimate of encoder contexts.
    pub(super) fn memory(&self) -> usize {
        let slots = self.window.slots.iter().map(|slot| {
            copies::len(&slot.copies)
                + match &slot.state {
                    SlotState::Encoding => {
                        let Method { level, .. } = slot.method;
                        let history_len = slot.history.len();
                        let encoder =
                            self.config.registry.of(slot.method).encoder_memory(level, slot.raw.len(), history_len);
                        2 * slot.raw.len() + history_len + encoder
                    }
                    // The body of a stored block is the block itself, in a buffer that its neighbours
                    // share.
                    SlotState::Ready(done) if done.sent_as == Method::STORE => slot.raw.len(),
                    SlotState::Ready(done) => slot.raw.len() + done.frame.body.buffer_len(),
                    SlotState::Handed { wire_len, .. } => *wire_len,
                }
        });
        self.input.raw_len() + self.history.memory() + self.output.index_memory() + slots.sum::<usize>()
    }

    /// Whether memory allows one more block. Slow methods take more memory, so fewer of their
    /// blocks are in flight; one always may be.
    pub(super) fn memory_allows(&self) -> bool {
        self.window.is_handed() || self.memory() + 2 * self.input.wanted <= self.config.memory_max
    }
}
