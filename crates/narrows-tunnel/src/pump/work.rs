//! The share of compression in a process: its engine, and the memory of all flows.

use std::time::Duration;

use crate::counters::Counters;
use crate::engine::{self, Engine};
use crate::session::Credit;

/// Unused buffers go back to the system after this time.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// Memory of streams that ended goes back to the system at most this often, since it takes some
/// milliseconds.
const TIDY_EVERY_NS: u64 = 10_000_000_000;

pub(super) struct Work {
    pub(super) engine: Engine,
    pub(super) credit: Credit,
    /// Flows hold all the memory that they may.
    is_full: bool,
    /// Buffers were used since they were last trimmed.
    untidy: bool,
    /// When memory was last returned to the system.
    tidied_ns: u64,
}

impl Work {
    pub(super) fn new(settings: engine::Settings, tell: engine::Tell, memory: usize) -> Self {
        let engine = Engine::new(settings, tell);
        engine.compression.memory.set_total(memory);
        Self { engine, credit: Credit::default(), is_full: false, untidy: false, tidied_ns: 0 }
    }

    /// When it has something to do: in one second for buffers that are not used until then.
    pub(super) fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let tidy = self.engine.has_garbage().then_some(self.tidied_ns + TIDY_EVERY_NS);
        let trim = self.untidy.then_some(now_ns + TIDY_AFTER.as_nanos() as u64);
        [tidy, trim].into_iter().flatten().min()
    }

    /// Something happened, or nothing did for this time.
    pub(super) fn waited(&mut self, happened: bool, wait: Option<Duration>) {
        if !happened && wait.is_some_and(|wait| wait >= TIDY_AFTER) {
            self.engine.buffers.trim();
            self.untidy = false;
        }
        self.untidy |= happened;
    }

    /// Returns memory to the system if there is much of it.
    pub(super) fn tidy(&mut self, now_ns: u64) {
        if self.engine.has_garbage() && now_ns >= self.tidied_ns + TIDY_EVERY_NS {
            self.engine.tidy();
            self.tidied_ns = now_ns;
        }
    }

    /// Counts what flows hold, and limits by it what peers may send.
    pub(super) fn count(&mut self, counters: &Counters) {
        counters.bytes_held.set(self.engine.compression.memory.held() as u64);
        let left = self.engine.compression.memory.left();
        if left == 0 && !self.is_full {
            counters.memory_full.add(1);
        }
        self.is_full = left == 0;
        self.credit.set_left(left);
    }
}
