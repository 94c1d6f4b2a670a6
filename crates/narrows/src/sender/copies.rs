//! Copies on their way through a sender: raw bytes that came before in the flow, between literals.

use std::collections::VecDeque;

use super::input::Input;
use super::{Job, Phase, Sender, SenderConfig};
use crate::block::Block;
use crate::codec::Method;
use crate::frame::{BASELINE_BLOCK_MAX, COPY_MIN, Copy, REACH_MAX_HARD, put_plan};

/// Copies that stand before all literals leave as a frame of their own from this length on: its
/// header and plan are a thousandth of a percent, and nobody waits for the literals after them.
pub(super) const ALONE_MIN: usize = 1 << 20;

/// Shortest limit of blocks with which copies are sent: those that wait must fit.
const COPY_BLOCK_MIN: usize = 4 << 10;
/// What copies may be.
#[derive(Debug)]
pub(super) struct Reach {
    /// As this side states it; 0: no copies.
    pub(super) own: usize,
    /// How far back they refer; `None` until a duplex receiver has said it.
    pub(super) len: Option<usize>,
    /// Longest block with copies, in raw bytes.
    pub(super) raw_max: usize,
}

impl Reach {
    pub(super) fn new(config: &SenderConfig) -> Self {
        let own = power_of_two(config.reach.min(REACH_MAX_HARD));
        let raw_max = if own > 0 { config.block_max.max(BASELINE_BLOCK_MAX) } else { config.block_max };
        Self { own, len: if own > 0 && config.duplex { None } else { Some(own) }, raw_max }
    }
}

/// The largest power of two that is not above `len`.
fn power_of_two(len: usize) -> usize {
    len.checked_ilog2().map_or(0, |log| 1 << log)
}

/// Copied bytes of a block, and their place in it.
#[derive(Debug, Clone)]
pub struct Copied {
    /// Literals of the block between the copy before and this one.
    gap: usize,
    distance: u64,
    raw: Block,
}

/// A search for repeats.
#[derive(Debug, Clone, Copy, Default)]
pub struct Searched {
    /// Raw bytes that were looked at.
    pub raw_bytes: u64,
    /// CPU time that it took.
    pub cpu_ns: u64,
    /// Time that it took.
    pub wall_ns: u64,
}

/// Copies that wait to be cut.
#[derive(Default)]
pub(super) struct Waiting {
    /// Literals of the flow before each, how far back it refers, and its bytes.
    copies: VecDeque<(u64, u64, Block)>,
    /// Bytes of all of them.
    pub(super) len: usize,
}

impl Waiting {
    pub(super) fn push(&mut self, literals_before: u64, distance: u64, raw: Block) {
        self.len += raw.len();
        self.copies.push_back((literals_before, distance, raw));
    }

    /// Bytes of the copies that stand before literal number `literals`.
    pub(super) fn leading(&self, literals: u64) -> usize {
        self.copies.iter().take_while(|(before, ..)| *before == literals).map(|(.., raw)| raw.len()).sum()
    }

    /// Takes the copies between literals `from` and `from + len`, so that with the literals they
    /// have at most `raw_max` bytes. Returns them, and how many literals they leave room for.
    pub(super) fn take(&mut self, from: u64, len: usize, raw_max: usize) -> (Vec<Copied>, usize) {
        let (mut taken, mut before, mut copied) = (Vec::new(), 0, 0);
        while let Some((place, distance, raw)) = self.copies.front_mut() {
            let at = (*place - from) as usize;
            let room = raw_max.saturating_sub(at + copied);
            if at > len || room == 0 {
                break;
            }
            let whole = raw.len() <= room;
            // Neither part may be shorter than a copy may be.
            let part = if whole { raw.len() } else { room.min(raw.len().saturating_sub(COPY_MIN)) };
            if part >= COPY_MIN {
                taken.push(Copied { gap: at - before, distance: *distance, raw: raw.split_to(part) });
                self.len -= part;
                (before, copied) = (at, copied + part);
            }
            if !whole {
                return (taken, at);
            }
            self.copies.pop_front();
        }
        (taken, len.min(raw_max - copied))
    }
}

impl Input {
    /// Raw bytes that wait, literals and copies.
    pub(super) fn raw_len(&self) -> usize {
        self.len + self.copies.len
    }

    /// Adds bytes that came before, `distance` back.
    pub(super) fn push_copy(&mut self, distance: u64, raw: Block, now_ns: u64) {
        if self.raw_len() == 0 {
            self.since_ns = now_ns;
        }
        self.copies.push(self.literals + self.len as u64, distance, raw);
    }

    /// Whether a frame without literals is due.
    pub(super) fn copies_are_due(&self) -> bool {
        self.len == 0 && self.copies.len > 0 || self.copies.leading(self.literals) >= ALONE_MIN
    }

    /// Cuts a block of at most `len` literals from the next piece, with the copies between them.
    pub(super) fn cut_block(&mut self, len: usize, raw_max: usize, now_ns: u64) -> Option<(Block, Vec<Copied>)> {
        let len = len.min(self.front()?.len());
        let (copies, len) = self.copies.take(self.literals, len, raw_max);
        Some((self.cut(len, now_ns)?, copies))
    }

    /// Cuts the copies before the next literal.
    pub(super) fn cut_copies(&mut self, raw_max: usize) -> Vec<Copied> {
        self.copies.take(self.literals, 0, raw_max).0
    }
}

impl Sender {
    /// How far back copies may refer, in raw bytes; `None` as long as the receiver has not said it.
    pub fn reach(&self) -> Option<usize> {
        self.reach.len
    }

    /// Takes raw bytes that equal those `distance` bytes before them in the flow. They are sent as a
    /// copy if the receiver takes it, else as any others.
    pub fn push_copy(&mut self, distance: u64, raw: Block, now_ns: u64) {
        let sent = self.raw_offset + self.input.raw_len() as u64;
        let reach = self.reach.len.unwrap_or(0) as u64;
        let allowed = (raw.len() as u64..=sent.min(reach)).contains(&distance) && raw.len() >= COPY_MIN;
        if !allowed {
            return self.push(raw, now_ns);
        }
        debug_assert!(self.phase == Phase::Open, "push after close");
        self.tick(now_ns);
        self.input.push_copy(distance, raw, self.times.now_ns);
    }

    /// Adds what the driver searched for repeats before its next push. Returns for how many ns nothing
    /// was pending meanwhile.
    pub fn searched(&mut self, searched: Searched, now_ns: u64) -> u64 {
        self.tick(now_ns);
        let Searched { raw_bytes, cpu_ns, wall_ns } = searched;
        self.summary.searched_bytes += raw_bytes;
        self.summary.encode_cpu_ns += cpu_ns;
        // What was idle since the last search waited for this one, or for the source.
        let idle_ns = self.summary.idle_ns - std::mem::replace(&mut self.times.idle_then_ns, self.summary.idle_ns);
        let waited_ns = wall_ns.min(idle_ns);
        self.summary.search_idle_ns += waited_ns;
        waited_ns
    }

    pub(super) fn on_reach(&mut self, reach: usize, block_max: usize) {
        self.reach.raw_max = self.reach.raw_max.min(block_max);
        let known = power_of_two(self.reach.own.min(reach));
        // Copies that wait need a block that they fit in.
        let fits = self.reach.raw_max >= COPY_BLOCK_MIN;
        self.reach.len = Some(if fits { known } else { 0 });
    }

    /// Cuts a block of nothing but copies: no policy has to choose for it.
    pub(super) fn cut_copies(&mut self) -> Option<Job> {
        let copies = self.input.cut_copies(self.reach.raw_max);
        debug_assert!(!copies.is_empty());
        Some(self.job(Method::STORE, Block::default(), copies, Block::default(), false, 0))
    }
}

/// Copied bytes of a block.
pub(super) fn len(copies: &[Copied]) -> usize {
    copies.iter().map(|copy| copy.raw.len()).sum()
}

/// The raw bytes of a block in order.
pub(super) fn parts<'a>(literals: &'a [u8], copies: &'a [Copied]) -> Vec<&'a [u8]> {
    let mut parts = Vec::with_capacity(2 * copies.len() + 1);
    let mut rest = literals;
    for copy in copies {
        let (gap, behind) = rest.split_at(copy.gap);
        rest = behind;
        parts.extend([gap, &copy.raw]);
    }
    parts.push(rest);
    parts
}

/// The plan of a block; empty without copies.
pub(super) fn plan(copies: &[Copied]) -> Vec<u8> {
    let mut plan = Vec::new();
    if !copies.is_empty() {
        let copies = copies.iter().map(|c| Copy { gap: c.gap, length: c.raw.len(), distance: c.distance });
        put_plan(&mut plan, copies);
    }
    plan
}
