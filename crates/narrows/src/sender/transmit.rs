//! The output side of a sender: frames in order, the link's progress, and the handling of a dry
//! link.

use std::collections::VecDeque;

use super::window::SlotState;
use super::{Job, JobKind, Phase, Sender, TRACE_MAX_BYTES, copies};
use crate::block::Block;
use crate::codec::Method;
use crate::frame::{
    self, ControlKind, EndTotals, Frame, HeaderBytes, SUMS_LOG, Sums, chain_digest, control_frame, delivered_frame,
    keep_frame, reset_frame,
};
use crate::monitor::{Ask, LinkSample};
use crate::policy::{Outcome, Rescue};
use crate::trace;

/// Shortest interval between two looks at the link for frames that have left.
const LOOK_MIN_NS: u64 = 50_000;
/// Longest interval while bytes wait in the link: the estimate of its rate, and so of when they
/// will have left, may be far off after a pause.
pub(super) const LOOK_MAX_NS: u64 = 5_000_000;
/// Most unreported frames remembered, so that a receiver that never reports cannot make the list
/// grow: 4,096 frames are 512 MiB of 128 KiB blocks.
const UNREPORTED_MAX: usize = 4096;

/// Frames made and not yet handed to the driver, with the totals of the stream.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) frames: VecDeque<Frame>,
    /// Wire bytes handed to the driver.
    pub(super) wire_total: u64,
    digest: u64,
    /// Index and sums, if the stream has them.
    pub(super) index: Option<(Vec<u8>, Sums)>,
    preface: HeaderBytes,
    /// Raw offsets of the reset frames to come.
    pub(super) resets: VecDeque<u64>,
}

impl Output {
    pub(super) fn new(preface: Frame, index: bool) -> Self {
        let index = index.then(|| (Vec::new(), Sums::new(SUMS_LOG)));
        let copy = preface.header;
        let frames = VecDeque::from([preface]);
        Self { frames, wire_total: 0, digest: 0, index, preface: copy, resets: VecDeque::new() }
    }

    /// Bytes of memory that index and sums take.
    pub(super) fn index_memory(&self) -> usize {
        self.index.as_ref().map_or(0, |(pairs, sums)| pairs.len() + sums.memory())
    }

    /// Adds a control frame between two blocks.
    fn push_control(&mut self, frame: Frame) {
        self.put_pair(0, frame.wire_len());
        self.frames.push_back(frame);
    }

    fn put_pair(&mut self, raw_len: usize, wire_len: usize) {
        if let Some((pairs, _)) = &mut self.index {
            frame::put_varint(pairs, raw_len as u64);
            frame::put_varint(pairs, wire_len as u64);
        }
    }
}

impl Sender {
    // --- frames out ---

    /// The next frame in order, if it is ready. The driver then owns it, writes it completely, and
    /// reports with `on_link`.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        if self.output.frames.is_empty() {
            self.hand_over_next_block();
        }
        if self.output.frames.is_empty() && self.end_is_due() {
            self.end();
        }
        let frame = self.output.frames.pop_front()?;
        self.output.wire_total += frame.wire_len() as u64;
        self.summary.wire_bytes = self.output.wire_total;
        Some(frame)
    }

    /// Whether `poll_transmit` would return a frame.
    pub fn has_frame(&self) -> bool {
        let ready = self.window.head().is_some_and(|s| matches!(s.state, SlotState::Ready(_)));
        !self.output.frames.is_empty() || ready || self.end_is_due()
    }

    /// Tells the peer how many raw bytes of the other direction of the connection were delivered so far,
    /// in a frame after those that are ready. Nothing once the end frame was made.
    pub fn delivered(&mut self, raw_bytes: u64) {
        if self.phase < Phase::Ended {
            self.output.push_control(delivered_frame(raw_bytes));
        }
    }

    fn end_is_due(&self) -> bool {
        self.phase == Phase::Closed && self.input.raw_len() == 0 && self.window.is_handed()
    }

    fn hand_over_next_block(&mut self) {
        let Some(slot) = self.window.slots.get_mut(self.window.handed) else { return };
        if !matches!(slot.state, SlotState::Ready(_)) {
            return;
        }
        let SlotState::Ready(done) = std::mem::replace(&mut slot.state, SlotState::Encoding) else { return };
        if let Some(at) = self.output.resets.front().copied().filter(|at| slot.raw_offset >= *at) {
            self.output.resets.pop_front();
            self.output.push_control(reset_frame(at));
        }
        if let Some((at, len)) = self.keep.filter(|(at, _)| slot.raw_offset >= *at) {
            self.keep = None;
            self.output.push_control(keep_frame(len, at));
        }
        let wire_len = done.frame.wire_len();
        // From here on no rescue is possible: the raw bytes can be dropped.
        let (raw, copied_parts) = (std::mem::take(&mut slot.raw), std::mem::take(&mut slot.copies));
        let (raw_len, copied) = (raw.len(), copies::len(&copied_parts));
        let ahead_len: usize = self.output.frames.iter().map(Frame::wire_len).sum();
        let wire_end = self.output.wire_total + (ahead_len + wire_len) as u64;
        slot.state = SlotState::Handed { wire_end, wire_len, raw_len, copied, sent_as: done.sent_as };
        slot.history = Block::default();
        if let Some(check) = done.check {
            self.output.digest = chain_digest(self.output.digest, check);
        }
        self.output.put_pair(raw_len + copied, wire_len);
        if let Some((_, sums)) = &mut self.output.index {
            copies::parts(&raw, &copied_parts).into_iter().for_each(|part| sums.push(part));
        }
        if self.config.duplex {
            self.peer.unreported.push_back((slot.seq, raw_len as u64));
            if self.peer.unreported.len() > UNREPORTED_MAX {
                self.peer.unreported.pop_front();
            }
        }
        self.window.handed += 1;
        self.window.wait_until_ns = 0;
        self.summary.count_frame(done.sent_as, done.linked, raw_len, copied, wire_len);
        self.output.frames.push_back(done.frame);
    }

    fn end(&mut self) {
        let mut index_frames = match self.output.index.take() {
            Some((pairs, sums)) if !pairs.is_empty() => {
                index_frames(&self.output.preface, &pairs, &sums.finish(), self.raw_offset)
            }
            _ => Vec::new(),
        };
        let index_offset = if index_frames.is_empty() { 0 } else { self.output.wire_total };
        index_frames.extend(self.config.attempt.map(|attempt| attempt.frame(self.raw_offset)));
        let index_len: usize = index_frames.iter().map(Frame::wire_len).sum();
        let wire_total = self.output.wire_total + index_len as u64;
        self.output.frames.extend(index_frames);
        let totals = EndTotals { raw_total: self.raw_offset, wire_total, index_offset, digest: self.output.digest };
        self.output.frames.push_back(totals.frame());
        self.phase = Phase::Ended;
    }

    /// Whether all frames including the end frame were handed out.
    pub fn is_drained(&self) -> bool {
        self.phase >= Phase::Ended && self.output.frames.is_empty()
    }

    // --- link ---

    /// Counts bytes that the driver writes between frames and that are none of the stream's. They
    /// use the link as frames do: the driver reports them with `on_link` too, after this call.
    pub fn pass(&mut self, len: usize) {
        self.output.wire_total += len as u64;
    }

    /// Reports a write, or with `accepted` 0 a look at the link.
    pub fn on_link(&mut self, sample: LinkSample) {
        self.tick(sample.end_ns);
        if sample.accepted > 0 && sample.unsent_before == 0 && self.link.accepted_bytes() > 0 {
            // The link was dry from the time the last bytes left until this write began.
            let dry_from_ns = self.link.dry_at_ns();
            self.times.dry_ns += sample.begin_ns.saturating_sub(dry_from_ns.max(self.times.pending_since_ns));
        }
        self.link.observe(&sample);
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::link(&mut self.trace, &sample, self.link.rate_bytes_per_s(), self.link.is_known());
        }
        self.release();
    }

    /// Removes frames that have left from the window.
    pub(super) fn release(&mut self) {
        let left = self.link.left_host_bytes();
        while let Some(slot) = self.window.slots.front() {
            let SlotState::Handed { wire_end, wire_len, raw_len, copied, sent_as } = slot.state else { break };
            if wire_end > left {
                break;
            }
            let sent = Outcome::Sent { seq: slot.seq, method: sent_as, raw_len, wire_len, now_ns: self.times.now_ns };
            self.window.slots.pop_front();
            self.window.handed -= 1;
            if self.peer.cores.is_none() {
                let raw_bytes = self.summary.crossed_raw_bytes + (raw_len + copied) as u64;
                self.summary.crossed(raw_bytes, wire_end);
            }
            if raw_len > 0 {
                self.policy.learn(&sent);
            }
        }
        self.summary.accepted_bytes = self.link.accepted_bytes();
        self.summary.link_busy_ns = self.link.busy_ns();
        self.summary.link_dry_ns = self.times.dry_ns;
        self.summary.rate_bytes_per_s = self.link.rate_bytes_per_s();
        self.summary.link = self.link.measured();
    }

    /// Bytes that had left the host at the last look.
    pub fn left_host_bytes(&self) -> u64 {
        self.link.left_host_bytes()
    }

    /// Takes the transport's total of the time in which the receiver's window stopped the link,
    /// since the flow began.
    pub fn on_receiver_limited(&mut self, total_ns: u64) {
        self.summary.receiver_limited_ns = self.summary.receiver_limited_ns.max(total_ns);
    }

    /// Whether the driver should look at the link before more blocks are chosen: its rate is not
    /// known, and the last look was not just now. Of a relayed link the far end tells.
    pub fn wants_look(&self, now_ns: u64) -> bool {
        let sent = self.link.accepted_bytes() > 0;
        sent && !self.link.is_known() && !self.link.is_relayed() && now_ns >= self.link.last_look_ns() + LOOK_MIN_NS
    }

    /// When to look at the link again, and call `on_link_dry` and then `poll_job`, unless another
    /// event comes first.
    pub fn next_wakeup(&self) -> Option<u64> {
        if let Some(hold) = self.input.hold_until_ns {
            return Some(hold);
        }
        let dry_at_ns = self.dry_due_ns();
        // If all frames in the window were handed over, only a look shows that they left and made
        // room, and encoding the next block takes time: so look halfway, and again halfway of the
        // rest.
        let waits_for_room = self.input.raw_len() > 0 && self.window.is_handed() && self.window.handed > 0;
        let waits = waits_for_room || dry_at_ns.is_some_and(|_| self.link.unsent_bytes() > 0);
        // Counted from the last look, so that other events do not postpone it.
        let last_ns = self.link.last_look_ns();
        let half_ns = self.link.dry_at_ns().saturating_sub(last_ns) / 2;
        let look_at_ns = last_ns + half_ns.clamp(LOOK_MIN_NS, LOOK_MAX_NS);
        if waits { Some(dry_at_ns.map_or(look_at_ns, |t| t.min(look_at_ns))) } else { dry_at_ns }
    }

    /// When the link will run dry although there is something to send.
    fn dry_due_ns(&self) -> Option<u64> {
        // While the driver holds frames, the link does not count as dry.
        if !self.output.frames.is_empty() || self.output.wire_total > self.link.accepted_bytes() {
            return None;
        }
        match self.window.head() {
            Some(slot) if matches!(slot.state, SlotState::Encoding) && !slot.rescuing => {
                Some(self.link.dry_at_ns().max(self.window.wait_until_ns)).filter(|t| *t < u64::MAX)
            }
            None if self.input.raw_len() > 0 => Some(self.link.dry_at_ns().max(self.window.wait_until_ns)),
            _ => None,
        }
    }

    /// The link has run dry. Returns a job for the I/O thread itself: it takes over the late head
    /// of the queue, or the next piece if all workers are busy with blocks that were taken over.
    pub fn on_link_dry(&mut self, now_ns: u64) -> Option<Job> {
        self.tick(now_ns);
        if self.dry_due_ns().is_none_or(|t| t > now_ns) || self.input.hold_until_ns.is_some() {
            return None;
        }
        if !self.window.is_handed() {
            return self.rescue_head();
        }
        if self.input.copies_are_due() { self.cut_copies() } else { self.cut(Ask::Bypass) }
    }

    fn rescue_head(&mut self) -> Option<Job> {
        let raw = self.window.slots[self.window.handed].raw.clone();
        // Copies alone are there as soon as anybody makes their frame.
        let mut decision = Rescue::TakeOver(Method::STORE);
        if !raw.is_empty() {
            let mut queue = std::mem::take(&mut self.scratch);
            self.pending_into(&mut queue);
            decision = self.policy.rescue(&self.view(&raw, &queue, Ask::Next));
            self.scratch = queue;
        }
        let slot = &mut self.window.slots[self.window.handed];
        if self.config.trace && self.trace.len() < TRACE_MAX_BYTES {
            trace::rescue(&mut self.trace, &self.config.registry, self.times.now_ns, slot.seq, &decision);
        }
        let method = match decision {
            Rescue::WaitUntil(t) => {
                // A wait that is already over would make the driver spin.
                self.window.wait_until_ns = t.max(self.times.now_ns + 1000);
                return None;
            }
            Rescue::TakeOver(method) if self.limits.allows(method) => method,
            Rescue::TakeOver(_) => Method::STORE,
        };
        slot.rescuing = true;
        Some(Job {
            seq: slot.seq,
            kind: JobKind::Rescue,
            method,
            raw: slot.raw.clone(),
            copies: slot.copies.clone(),
            raw_offset: slot.raw_offset,
            history: slot.history.clone(),
            linked: slot.linked && self.config.registry.can_link(method),
            check: self.config.check,
            estimate_ns: self.config.registry.encode_ns(method, slot.raw.len()),
            codec: self.config.registry.of(method),
        })
    }
}

/// The frames of an index, with a copy of the preface and the sums; `raw_total` is their raw offset.
pub fn index_frames(preface: &[u8], pairs: &[u8], sums: &[u64], raw_total: u64) -> Vec<Frame> {
    let mut frames = vec![control_frame(ControlKind::PrefaceCopy, preface, raw_total)];
    let mut at = 0;
    while at < pairs.len() {
        let end = index_cut(pairs, at);
        frames.push(control_frame(ControlKind::Index, &pairs[at..end], raw_total));
        at = end;
    }
    frames.extend(Sums::frames(SUMS_LOG, sums, raw_total));
    frames
}

/// The end of the index frame that begins at `at`: at most a full body, and between two pairs.
fn index_cut(index: &[u8], at: usize) -> usize {
    if index.len() - at <= frame::CONTROL_BODY_MAX {
        return index.len();
    }
    let (mut end, mut cursor) = (at, at);
    while cursor - at <= frame::CONTROL_BODY_MAX {
        end = cursor;
        // A pair is two varints; their last bytes have the top bit clear.
        for _ in 0..2 {
            cursor += index[cursor..].iter().take_while(|b| **b & 0x80 != 0).count() + 1;
        }
    }
    end
}
