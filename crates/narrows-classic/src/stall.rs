//! `stall`: the rule of `zstd --adapt`. Moves the zstd level up or down by which part stalls,
//! whatever the data.
//!
//! Six times a second it checks whether compression or the link waited for the other. It changes
//! the level by one, and only after another block has finished. A *job* of zstd corresponds to a
//! block here. `docs/experiments/seed-policies.md` lists the decisions that zstd's sources leave
//! open.

use std::fmt;
use std::sync::Arc;

use narrows::codec::{Level, Method};
use narrows::monitor::View;
use narrows::policy::{Choice, Outcome, Policy, PolicySettings, PolicySetup, Registered};
use narrows::{Error, Result};

/// Interval between checks.
const REFRESH_NS: u64 = 1_000_000_000 / 6;

/// The policy: the control loop of `zstd --adapt`.
pub struct Stall {
    min: Level,
    max: Level,
    level: Level,
    cores: u64,
    blocks_begun: u64,
    blocks_done: u64,
    /// Raw bytes encoded so far, and their wire bytes.
    consumed: u64,
    produced: u64,
    looked_ns: u64,
    at_look: Progress,
    /// Blocks done and progress at the last correction.
    corrected_at_block: u64,
    at_correction: Progress,
    /// How often input was offered since the last correction, and how often there was no room for
    /// it.
    presented: u64,
    blocked: u64,
    change: Change,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    ingested: u64,
    consumed: u64,
    produced: u64,
    flushed: u64,
    dry_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// The link is the bottleneck: a higher level.
    Slower,
    Faster,
}

impl Stall {
    /// Lowest level of our zstd; that of the program is -50.
    pub const LEVEL_MIN: Level = -7;
    /// Highest level of our zstd; that of the program is 22.
    pub const LEVEL_MAX: Level = 19;
    /// Block length in raw bytes: the shortest job of zstd's own multithreading.
    pub const BLOCK_LEN: usize = 512 << 10;
    /// Initial level of `zstd --adapt`.
    const LEVEL_FIRST: Level = 3;

    /// A policy for one flow that stays within the levels `min..=max`; a `max` below `min` counts as `min`.
    pub fn new(min: Level, max: Level, cores: usize) -> Self {
        let max = max.max(min);
        Self {
            min,
            max,
            level: Self::LEVEL_FIRST.clamp(min, max),
            cores: cores.max(1) as u64,
            blocks_begun: 0,
            blocks_done: 0,
            consumed: 0,
            produced: 0,
            looked_ns: 0,
            at_look: Progress::default(),
            corrected_at_block: 0,
            at_correction: Progress::default(),
            presented: 0,
            blocked: 0,
            change: Change::None,
        }
    }

    fn methods(min: Level, max: Level) -> Vec<Method> {
        std::iter::once(Method::STORE).chain((min..=max).filter(|l| *l != 0).map(Method::zstd)).collect()
    }

    fn progress(&self, view: &View<'_>) -> Progress {
        Progress {
            ingested: view.raw_offset.saturating_add(view.gathered as u64),
            consumed: self.consumed,
            produced: self.produced,
            flushed: view.link.left_host_bytes.saturating_add(view.link.unsent_bytes),
            dry_ns: view.link.dry_ns,
        }
    }

    /// Checks for stalls. `spare` is the number of gathered raw bytes that remain after the next
    /// cut.
    fn look(&mut self, view: &View<'_>, spare: usize) {
        self.presented += 1;
        self.blocked += u64::from(spare >= Self::BLOCK_LEN.min(view.limits.block_max));
        if view.now_ns.saturating_sub(self.looked_ns) < REFRESH_NS {
            return;
        }
        self.looked_ns = view.now_ns;
        let now = self.progress(view);
        if self.blocks_begun > 1 {
            let since = now.since(&self.at_look);
            let idle = since.consumed == 0 && view.cpu.busy == 0;
            let ahead = since.produced > since.flushed.saturating_mul(9) / 8 && since.dry_ns == 0;
            if idle || ahead {
                self.change = Change::Slower;
            }
            self.at_look = now;
        }
        if self.blocks_done > self.corrected_at_block {
            self.correct(&now);
        }
    }

    fn correct(&mut self, now: &Progress) {
        self.corrected_at_block = self.blocks_done;
        // Until then the workers are only being filled.
        if self.blocks_done > self.cores.saturating_add(1) {
            if self.blocked == 0 {
                self.change = Change::Slower;
            } else if self.change == Change::None {
                let since = now.since(&self.at_correction);
                self.at_correction = *now;
                let waits = self.blocked > self.presented / 8;
                let flushes_all = since.flushed.saturating_mul(33) / 32 > since.produced;
                let ingests_more = since.ingested.saturating_mul(33) / 32 > since.consumed;
                if waits && flushes_all && ingests_more {
                    self.change = Change::Faster;
                }
            }
            (self.presented, self.blocked) = (0, 0);
        }
        let step = match self.change {
            Change::None => 0,
            Change::Slower => 1,
            Change::Faster => -1,
        };
        self.change = Change::None;
        self.level += step;
        if self.level == 0 {
            self.level += step;
        }
        self.level = self.level.clamp(self.min, self.max);
    }
}

impl Progress {
    fn since(&self, before: &Self) -> Self {
        Self {
            ingested: self.ingested.saturating_sub(before.ingested),
            consumed: self.consumed.saturating_sub(before.consumed),
            produced: self.produced.saturating_sub(before.produced),
            flushed: self.flushed.saturating_sub(before.flushed),
            dry_ns: self.dry_ns.saturating_sub(before.dry_ns),
        }
    }
}

impl Policy for Stall {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let block_len = Self::BLOCK_LEN.min(view.limits.block_max);
        self.look(view, view.gathered.saturating_sub(block_len));
        self.blocks_begun += 1;
        let method = Some(Method::zstd(self.level)).filter(|m| view.limits.allows(*m)).unwrap_or(Method::STORE);
        Choice::new(method, block_len)
    }

    /// Tries nothing. The call is only a chance to check while the window is full, when the link
    /// does not take the encoded blocks.
    fn probe(&mut self, view: &View<'_>) -> Option<Choice> {
        self.look(view, view.gathered);
        None
    }

    fn learn(&mut self, outcome: &Outcome) {
        if let Outcome::Encoded { raw_len, wire_len, .. } = *outcome {
            self.blocks_done += 1;
            self.consumed += raw_len as u64;
            self.produced += wire_len as u64;
        }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(Self::BLOCK_LEN)
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        vec![("level", f64::from(self.level)), ("presented", self.presented as f64), ("blocked", self.blocked as f64)]
    }
}

#[derive(Debug)]
struct Settings {
    min: Level,
    max: Level,
}

impl Settings {
    fn parse(rest: &str) -> Result<Self> {
        let (mut min, mut max) = (Stall::LEVEL_MIN, Stall::LEVEL_MAX);
        for item in rest.strip_prefix(':').unwrap_or_default().split(',').filter(|i| !i.is_empty()) {
            let level = item.split_once('=').and_then(|(key, level)| Some((key, level.parse::<Level>().ok()?)));
            match level.filter(|(_, level)| (Stall::LEVEL_MIN..=Stall::LEVEL_MAX).contains(level) && *level != 0) {
                Some(("min", level)) => min = level,
                Some(("max", level)) => max = level,
                _ => {
                    return Err(Error::misuse(format!(
                        "'{item}' is not a setting of stall; it takes min=LEVEL and max=LEVEL, {} to {} and not 0",
                        Stall::LEVEL_MIN,
                        Stall::LEVEL_MAX
                    )));
                }
            }
        }
        if min > max {
            return Err(Error::misuse(format!("stall: min={min} is above max={max}")));
        }
        Ok(Self { min, max })
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (self.min, self.max) == (Stall::LEVEL_MIN, Stall::LEVEL_MAX) {
            return f.write_str("stall");
        }
        write!(f, "stall:min={},max={}", self.min, self.max)
    }
}

impl PolicySettings for Settings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Stall::new(self.min, self.max, setup.cores))
    }

    fn block_max(&self) -> usize {
        Stall::BLOCK_LEN
    }

    fn methods(&self) -> Vec<Method> {
        Stall::methods(self.min, self.max)
    }
}

pub(crate) const ENTRY: Registered = Registered {
    name: "stall",
    usage: "stall[:min=LEVEL][,max=LEVEL]",
    about: "the rule of zstd --adapt: stalls of CPU or link change the level",
    examples: &["stall", "stall:min=1,max=9"],
    parse: |rest, _| Ok(Arc::new(Settings::parse(rest)?)),
};
