//! A flow of a session: what may be sent and received in each direction.

use std::collections::VecDeque;

use narrows::ahead::{self, Reports};
use narrows::block::Block;
use narrows::{Error, Result};

use super::FlowId;
use super::credit::{Credit, Window};
use crate::frame::{BODY_MAX, Frame, Kind};
use crate::limits::{BULK_BYTES, BULK_NS, CREDIT_FIRST, CREDIT_MAX, PIECES_MAX};
use crate::reason::Reason;

/// Both directions of a flow.
pub(super) struct Flow {
    pub(super) out: Out,
    pub(super) inn: In,
    /// Both ends know that it is open.
    pub(super) opened: bool,
    /// The peer tells what it has delivered.
    pub(super) peer_tells: bool,
}

impl Flow {
    pub(super) fn new(carrier: u8, opened: bool, credit: &Credit) -> Self {
        Self { out: Out::new(carrier), inn: In::new(carrier, credit), opened, peer_tells: false }
    }

    /// Whether something of it is still to come by a carrier or to be sent there. Of what was sent to its
    /// finish the other end knows whether it has come: it resets the flow if not.
    pub(super) fn uses(&self, carrier: u8) -> bool {
        self.out.carrier == carrier && self.out.stage != Stage::Ended
            || self.inn.carrier == carrier && !self.inn.ended
            || self.inn.ahead.as_ref().is_some_and(|ahead| ahead.carrier == carrier)
    }

    /// Whether both directions have ended.
    pub(super) fn is_over(&self) -> bool {
        self.out.stage == Stage::Ended && self.inn.ended
    }
}

/// Tells flows that carry much from those that carry little.
#[derive(Default)]
pub(super) struct Pace {
    since_ns: u64,
    recent: u64,
    pub(super) is_bulk: bool,
}

impl Pace {
    /// Counts bytes; true if it has just become bulk, false if calm; `None` if nothing changed.
    pub(super) fn count(&mut self, len: usize, now_ns: u64) -> Option<bool> {
        let before = self.is_bulk;
        if now_ns.saturating_sub(self.since_ns) > BULK_NS {
            self.is_bulk &= self.recent >= BULK_BYTES / 4;
            (self.since_ns, self.recent) = (now_ns, 0);
        }
        self.recent += len as u64;
        self.is_bulk |= self.recent >= BULK_BYTES;
        (self.is_bulk != before).then_some(self.is_bulk)
    }
}

/// How far a direction that is sent has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// A finish frame follows what is queued.
    Ending,
    /// A reset frame with this reason does.
    Breaking(Reason),
    /// The finish frame was sent.
    Ended,
}

/// The direction that is sent.
pub(super) struct Out {
    pub(super) carrier: u8,
    pub(super) moved: bool,
    pub(super) stage: Stage,
    queue: VecDeque<Piece>,
    queued: usize,
    credit: u32,
    /// Raw bytes before the peer's reader.
    pub(super) ahead: ahead::Ahead,
    /// It is in the list of its carrier.
    pub(super) listed: bool,
    pub(super) pace: Pace,
}

/// Bytes to be sent, all coded or all raw.
struct Piece {
    coded: bool,
    bytes: Block,
}

impl Out {
    fn new(carrier: u8) -> Self {
        Self {
            carrier,
            moved: false,
            stage: Stage::Open,
            queue: VecDeque::new(),
            queued: 0,
            credit: CREDIT_FIRST,
            ahead: ahead::Ahead::default(),
            listed: false,
            pace: Pace::default(),
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn push(&mut self, bytes: Block, coded: bool) {
        self.queued += bytes.len();
        self.queue.push_back(Piece { coded, bytes });
    }

    /// Whether a frame could be sent now.
    pub(super) fn can_send(&self) -> bool {
        if self.queued > 0 { self.credit > 0 } else { matches!(self.stage, Stage::Ending | Stage::Breaking(_)) }
    }

    pub(super) fn add_credit(&mut self, more: u32) -> Result<()> {
        match self.credit.checked_add(more).filter(|credit| *credit <= CREDIT_MAX) {
            Some(credit) => {
                self.credit = credit;
                Ok(())
            }
            None => Err(Error::corrupt("the peer gives more credit than is allowed")),
        }
    }

    /// Length and kind of the next data frame.
    pub(super) fn next_frame(&self) -> Option<(Kind, usize)> {
        let first = self.queue.front().filter(|_| self.credit > 0)?;
        let mut len = 0;
        for piece in self.queue.iter().take_while(|p| p.coded == first.coded) {
            len += piece.bytes.len();
            if len >= BODY_MAX {
                break;
            }
        }
        let kind = if first.coded { Kind::Coded } else { Kind::Raw };
        Some((kind, len.min(BODY_MAX).min(self.credit as usize)))
    }

    /// Appends the body of the next data frame, `len` bytes long.
    pub(super) fn take(&mut self, mut len: usize, out: &mut Vec<u8>) {
        self.credit -= len as u32;
        self.queued -= len;
        while len > 0 {
            let Some(front) = self.queue.front_mut() else { return };
            let part = front.bytes.len().min(len);
            out.extend_from_slice(&front.bytes[..part]);
            len -= part;
            drop(front.bytes.split_to(part));
            if front.bytes.is_empty() {
                self.queue.pop_front();
            }
        }
        if self.queue.is_empty() {
            // Most flows are idle most of the time.
            self.queue = VecDeque::new();
        }
    }
}

/// The direction that is received.
pub(super) struct In {
    pub(super) carrier: u8,
    moved: bool,
    /// Frames of the next carrier that came before the move.
    pub(super) ahead: Option<Box<Ahead>>,
    /// Bytes that the peer may still send.
    open: u32,
    /// What `open` is after all bytes were taken.
    window: Window,
    /// Bytes that were taken since the last credit.
    taken: u32,
    credited_ns: u64,
    /// What the peer was told of raw bytes delivered.
    pub(super) reports: Reports,
    /// The peer has finished.
    pub(super) ended: bool,
    pub(super) pace: Pace,
}

pub(super) struct Ahead {
    pub(super) carrier: u8,
    /// Bytes by kind. Short frames are joined, so that they cost no more than their bytes.
    frames: Vec<(Kind, Vec<u8>)>,
    /// Short ones that could not be joined.
    short: usize,
}

impl Ahead {
    fn push(&mut self, frame: &Frame) -> Result<()> {
        match self.frames.last_mut() {
            Some((Kind::Finish, _)) => return Err(Error::corrupt("a flow has frames behind its end")),
            Some((kind, joined)) if *kind == frame.kind && joined.len() + frame.body.len() <= BODY_MAX => {
                joined.extend_from_slice(&frame.body);
            }
            _ => {
                self.short += usize::from(frame.body.len() < BODY_MAX / 4);
                if self.short > PIECES_MAX {
                    return Err(Error::corrupt("raw and coded frames alternate in tiny pieces"));
                }
                self.frames.push((frame.kind, frame.body.to_vec()));
            }
        }
        Ok(())
    }
}

impl In {
    fn new(carrier: u8, credit: &Credit) -> Self {
        Self {
            carrier,
            moved: false,
            ahead: None,
            open: CREDIT_FIRST,
            window: credit.window(),
            taken: 0,
            credited_ns: 0,
            reports: Reports::default(),
            ended: false,
            pace: Pace::default(),
        }
    }

    /// Takes an ordered frame (data or finish). `None`: it waits for the move of its flow.
    pub(super) fn arrive(&mut self, carrier: u8, frame: Frame) -> Result<Option<Frame>> {
        let len = u32::try_from(frame.body.len()).unwrap_or(u32::MAX);
        let open = self.open.checked_sub(len);
        self.open = open.ok_or_else(|| Error::corrupt("the peer sends more than it has credit for"))?;
        if carrier == self.carrier {
            return self.in_order(frame).map(Some);
        }
        if self.moved {
            return Err(Error::corrupt("a flow continues on a carrier that it has left"));
        }
        let ahead = self.ahead.get_or_insert_with(|| Box::new(Ahead { carrier, frames: Vec::new(), short: 0 }));
        if ahead.carrier != carrier {
            return Err(Error::corrupt("a flow moves to two carriers"));
        }
        ahead.push(&frame).map(|()| None)
    }

    fn in_order(&mut self, frame: Frame) -> Result<Frame> {
        if self.ended {
            return Err(Error::corrupt("a flow has frames behind its end"));
        }
        self.ended = frame.kind == Kind::Finish;
        Ok(frame)
    }

    /// The flow continues on another carrier: returns the frames that waited for this.
    pub(super) fn move_to(&mut self, flow: FlowId, carrier: u8) -> Result<Vec<Frame>> {
        let waiting = self.ahead.take();
        if self.moved || self.ended || carrier == self.carrier || waiting.as_ref().is_some_and(|w| w.carrier != carrier)
        {
            return Err(Error::corrupt("a move that is not allowed"));
        }
        (self.carrier, self.moved) = (carrier, true);
        let frames = waiting.map_or_else(Vec::new, |w| w.frames).into_iter();
        frames.map(|(kind, body)| self.in_order(Frame { kind, flow, body: Block::from_vec(body) })).collect()
    }

    /// Counts bytes that were taken. Returns the credit to be given now, 0: none yet. Where half a
    /// window is taken within two round trips, or 20 ms, the window limits the flow, and grows. One
    /// that is larger than it may be shrinks by what is taken.
    pub(super) fn took(&mut self, len: usize, rtt_ns: u64, now_ns: u64) -> u32 {
        const GROW_WITHIN_NS: u64 = 20_000_000;
        self.taken = self.taken.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        let window = self.window.size();
        if self.ended || self.taken < window / 2 {
            return 0;
        }
        let grows = now_ns.saturating_sub(self.credited_ns) < (2 * rtt_ns).max(GROW_WITHIN_NS);
        self.credited_ns = now_ns;
        let taken = std::mem::take(&mut self.taken);
        let max = self.window.max();
        let credit = if window > max {
            taken.saturating_sub(window - max)
        } else if grows {
            taken + window.min(max - window)
        } else {
            taken
        };
        self.window.set(window + credit - taken);
        self.open += credit;
        credit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Frame {
        Frame { kind: Kind::Raw, flow: 2, body: Block::from_vec(vec![1; len]) }
    }

    fn finish() -> Frame {
        Frame { kind: Kind::Finish, flow: 2, body: Block::default() }
    }

    #[test]
    fn nobody_sends_more_than_was_allowed() {
        let mut inn = In::new(0, &Credit::default());
        for _ in 0..4 {
            assert!(inn.arrive(0, data(BODY_MAX)).is_ok());
        }
        let left = CREDIT_FIRST as usize - 4 * BODY_MAX;
        assert!(inn.arrive(0, data(left + 1)).is_err());

        let mut out = Out::new(0);
        out.push(Block::from_vec(vec![0; 2 * CREDIT_FIRST as usize]), false);
        let mut sent = 0;
        while let Some((_, len)) = out.next_frame() {
            out.take(len, &mut Vec::new());
            sent += len;
        }
        assert_eq!(sent, CREDIT_FIRST as usize);
        assert!(!out.can_send());
        assert!(out.add_credit(CREDIT_MAX + 1).is_err());
        out.add_credit(CREDIT_MAX).unwrap();
        assert!(out.add_credit(1).is_err());
    }

    #[test]
    fn pieces_of_one_kind_share_a_frame() {
        let mut out = Out::new(0);
        [(10, true), (20, true), (7, false), (8, false), (5, true)]
            .into_iter()
            .for_each(|(len, coded)| out.push(Block::from_vec(vec![0; len]), coded));
        let mut frames = Vec::new();
        while let Some((kind, len)) = out.next_frame() {
            out.take(len, &mut Vec::new());
            frames.push((kind, len));
        }
        assert_eq!(frames, [(Kind::Coded, 30), (Kind::Raw, 15), (Kind::Coded, 5)]);
    }

    #[test]
    fn a_window_grows_only_while_it_limits() {
        let all = Credit::default();
        let mut inn = In::new(0, &all);
        let half = CREDIT_FIRST / 2;
        assert_eq!(inn.took(half as usize - 1, 0, 1), 0);
        assert_eq!(inn.took(1, 0, 1), half + CREDIT_FIRST, "the first half came at once");
        assert_eq!(inn.window.size(), 2 * CREDIT_FIRST);
        let later = 1_000_000_000;
        let take_half = |inn: &mut In, rtt_ns, now_ns| inn.took(inn.window.size() as usize / 2, rtt_ns, now_ns);
        assert_eq!(take_half(&mut inn, 0, later), CREDIT_FIRST, "slow");
        assert_eq!(inn.window.size(), 2 * CREDIT_FIRST);
        let rtt_ns = later / 2;
        assert_eq!(take_half(&mut inn, rtt_ns, 2 * later - 1), 3 * CREDIT_FIRST);
        for i in 0..20 {
            take_half(&mut inn, 0, 2 * later + i);
        }
        assert_eq!(inn.window.size(), CREDIT_MAX);
        // Without memory it shrinks as fast as it is read, and what is open is never more than it.
        all.set_left(0);
        while inn.window.size() > CREDIT_FIRST {
            let before = inn.window.size();
            inn.open = before - before / 2;
            assert_eq!(take_half(&mut inn, 0, 3 * later), 0);
            assert!(inn.window.size() < before && inn.open <= inn.window.size());
        }
        assert_eq!(take_half(&mut inn, 0, 3 * later), half);
    }

    #[test]
    fn frames_ahead_of_a_move_wait_for_it() {
        let mut inn = In::new(0, &Credit::default());
        assert!(inn.arrive(0, data(1)).unwrap().is_some());
        assert!(inn.arrive(2, data(2)).unwrap().is_none());
        assert!(inn.arrive(2, finish()).unwrap().is_none());
        assert!(inn.arrive(0, data(3)).unwrap().is_some());
        let waited: Vec<_> = inn.move_to(2, 2).unwrap().iter().map(|f| f.body.len()).collect();
        assert_eq!(waited, [2, 0]);
        assert!(inn.ended);
    }

    #[test]
    fn tiny_frames_ahead_of_a_move_are_joined() {
        let mut inn = In::new(0, &Credit::default());
        (0..BODY_MAX + 1).for_each(|_| assert!(inn.arrive(1, data(1)).unwrap().is_none()));
        assert_eq!(inn.ahead.as_ref().unwrap().frames.len(), 2);
        let lens: Vec<_> = inn.move_to(2, 1).unwrap().iter().map(|f| f.body.len()).collect();
        assert_eq!(lens, [BODY_MAX, 1]);
    }

    #[test]
    fn frames_that_alternate_without_end_are_corrupt() {
        let mut inn = In::new(0, &Credit::default());
        let frame = |i: usize| Frame { kind: [Kind::Raw, Kind::Coded][i % 2], ..data(1) };
        let taken = (0..CREDIT_FIRST as usize).take_while(|i| inn.arrive(1, frame(*i)).is_ok()).count();
        assert_eq!(taken, PIECES_MAX);
    }

    #[test]
    fn moves_that_make_no_sense_are_refused() {
        let mut inn = In::new(0, &Credit::default());
        assert!(inn.move_to(2, 0).is_err(), "to where it is");
        inn.arrive(2, data(1)).unwrap();
        assert!(inn.arrive(3, data(1)).is_err(), "to two carriers");
        assert!(inn.move_to(2, 3).is_err(), "to another than where it continued");
        let mut inn = In::new(0, &Credit::default());
        inn.move_to(2, 1).unwrap();
        assert!(inn.arrive(0, data(1)).is_err(), "back");
        assert!(inn.move_to(2, 2).is_err(), "twice");
        assert!(inn.arrive(1, finish()).unwrap().is_some());
        assert!(inn.arrive(1, data(1)).is_err(), "behind the end");
        let mut inn = In::new(0, &Credit::default());
        inn.arrive(1, finish()).unwrap();
        assert!(inn.arrive(1, finish()).is_err(), "a flood of empty frames");
    }

    #[test]
    fn bulk_is_what_carries_a_megabyte_a_second() {
        let mut pace = Pace::default();
        let second = BULK_NS;
        for i in 0..100 {
            assert_eq!(pace.count(BULK_BYTES as usize / 2, i * (second + 1)), None);
        }
        let now = 100 * (second + 1);
        assert_eq!(pace.count(BULK_BYTES as usize, now), Some(true));
        assert_eq!(pace.count(1, now + second + 1), None, "it was bulk in the last second");
        assert_eq!(pace.count(1, now + 2 * second + 2), Some(false));
    }
}
