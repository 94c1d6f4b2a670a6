//! Looking for repeats in what a source gives, while it is worth the time.

use std::sync::Arc;

use super::thread_cpu_ns;
use crate::block::Block;
use crate::repeats::{Finder, Judge, Part};
use crate::sender::{Searched, Sender};
use crate::stored::Stored;
use crate::sys;

/// Shortest flow in which repeats are looked for, if its length is known: the search takes 1 ms for
/// each MiB, and memory for the first time.
const FLOW_MIN: u64 = 4 << 20;

/// The search of one flow.
pub(super) struct Search {
    /// `None` if nobody looks, or the receiver takes no copies.
    finder: Option<Finder>,
    /// Raw bytes of the flow before the finder is made, when the receiver asks for copies.
    before: Option<u64>,
    /// `None`: always.
    judge: Option<Judge>,
    parts: Vec<Part>,
    searched: Searched,
    /// What a raw byte that is not copied takes of the link, and its rate.
    wire_share: f64,
    rate_bytes_per_s: f64,
    /// How long the link was busy, and dry.
    busy_ns: u64,
    dry_ns: u64,
}

impl Search {
    /// For repeats up to `reach` bytes back. `always`: whatever time it takes, else as far as it
    /// saves the link more.
    /// `stored`: where the flow can be read back, else it is kept.
    pub(super) fn new(
        reach: usize,
        always: bool,
        raw_len: Option<u64>,
        cores: usize,
        stored: Option<Arc<dyn Stored>>,
    ) -> Self {
        let looks = reach > 0 && raw_len.is_none_or(|len| len >= FLOW_MIN);
        let finder = || match stored {
            Some(stored) => Finder::read_back(stored, reach),
            None => Finder::new(reach),
        };
        Self {
            finder: looks.then(finder),
            before: None,
            judge: (!always).then(|| Judge::new(cores)),
            parts: Vec::new(),
            searched: Searched::default(),
            wire_share: 1.0,
            rate_bytes_per_s: f64::INFINITY,
            busy_ns: 0,
            dry_ns: 0,
        }
    }

    /// Whether there is anything to do.
    pub(super) fn looks(&self) -> bool {
        self.finder.is_some() || self.before.is_some()
    }

    /// Leaves the search until a receiver says how far back it takes copies.
    pub(super) fn if_asked(self) -> Self {
        Self { before: self.finder.is_some().then_some(0), finder: None, ..self }
    }

    /// Cuts a piece of the flow into what came before and what did not.
    pub(super) fn look(&mut self, raw: Block, now_ns: u64) {
        let Some(finder) = &mut self.finder else {
            self.before.iter_mut().for_each(|before| *before += raw.len() as u64);
            return self.parts.push(Part::Literals(raw));
        };
        if self.judge.as_mut().is_some_and(|judge| !judge.allows(now_ns, self.busy_ns, self.dry_ns)) {
            finder.skip(raw.len() as u64);
            return self.parts.push(Part::Literals(raw));
        }
        let (begun_ns, begun_cpu_ns) = (sys::monotonic_ns(), thread_cpu_ns());
        finder.push(&raw, &mut self.parts);
        let spent_ns = thread_cpu_ns().saturating_sub(begun_cpu_ns);
        self.searched.raw_bytes += raw.len() as u64;
        self.searched.cpu_ns += spent_ns;
        self.searched.wall_ns += sys::monotonic_ns() - begun_ns;
        if let Some(judge) = &mut self.judge {
            judge.learn(spent_ns, repeated(&self.parts), self.wire_share, self.rate_bytes_per_s);
        }
    }

    /// Hands the parts to the sender.
    pub(super) fn hand_over(&mut self, sender: &mut Sender, now_ns: u64) {
        if self.finder.is_some() {
            let searched = std::mem::take(&mut self.searched);
            let waited_ns = sender.searched(searched, now_ns).saturating_sub(searched.cpu_ns);
            self.judge.iter_mut().for_each(|judge| judge.waited(waited_ns));
        }
        for part in self.parts.drain(..) {
            match part {
                Part::Literals(raw) => sender.push(raw, now_ns),
                Part::Repeat { distance, raw } => sender.push_copy(distance, raw, now_ns),
            }
        }
        if let (Some(before), Some(reach)) = (self.before, sender.reach()) {
            self.before = None;
            self.finder = (reach > 0).then(|| Finder::new(reach));
            self.finder.iter_mut().for_each(|finder| finder.skip(before));
        }
        if self.finder.is_none() {
            return;
        }
        if sender.reach() == Some(0) {
            self.finder = None;
        }
        let summary = sender.summary();
        let literals = summary.raw_bytes - summary.copied_bytes;
        if literals > 0 {
            self.wire_share = summary.wire_bytes as f64 / literals as f64;
        }
        self.rate_bytes_per_s = summary.rate_bytes_per_s;
        (self.busy_ns, self.dry_ns) = (summary.link_busy_ns, summary.link_dry_ns);
    }
}

fn repeated(parts: &[Part]) -> u64 {
    let lengths = parts.iter().map(|part| match part {
        Part::Literals(_) => 0,
        Part::Repeat { raw, .. } => raw.len() as u64,
    });
    lengths.sum()
}
