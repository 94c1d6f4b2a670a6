//! Counters of a copy of objects, shared by its threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts of files and bytes.
#[derive(Default)]
pub(crate) struct Counts {
    /// Files that were copied.
    pub(crate) files: AtomicU64,
    /// Files that were there already.
    pub(crate) same: AtomicU64,
    /// Files that could not be copied.
    pub(crate) failed: AtomicU64,
    /// Raw bytes.
    pub(crate) raw: AtomicU64,
    /// Raw bytes of all files to copy, as far as they are known.
    pub(crate) raw_total: AtomicU64,
    /// Whether they are known.
    pub(crate) has_total: AtomicBool,
    /// Stored bytes.
    pub(crate) wire: AtomicU64,
    /// What was not kept, and how often.
    losses: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counts {
    /// Adds to one of the counters.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The value of one of the counters.
    pub(crate) fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Counts what was not kept.
    pub(crate) fn lost(&self, what: &'static str) {
        *self.losses.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// What was not kept, such as `hard links of 3`; `None` if there is nothing.
    pub(crate) fn losses(&self) -> Option<String> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> = losses.iter().map(|(what, n)| format!("{what} of {n}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}
