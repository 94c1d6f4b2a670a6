//! Names of what a mirror would remove, for the question before it does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narrows_copy::hello::NameSet;

/// Names that are shown before the question; the rest is counted, since nobody reads more.
const SHOWN_MAX: usize = 20;

/// The entries that would be removed, found in any thread.
#[derive(Clone, Default)]
pub(super) struct Removals(Arc<Mutex<Removed>>);

/// The first names of entries that would be removed, how many there are, and all names as a set.
#[derive(Clone, Default)]
pub(super) struct Removed {
    pub(super) first: Vec<String>,
    pub(super) count: u64,
    pub(super) all: NameSet,
}

impl Removals {
    /// Keeps a name.
    pub(super) fn collect(&self, name: &str) {
        let mut found = self.lock();
        found.count += 1;
        // With more than it takes, nobody is asked.
        found.all.add(name);
        if found.first.len() < SHOWN_MAX {
            found.first.push(name.to_owned());
        }
    }

    /// All that was found.
    pub(super) fn found(&self) -> Removed {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Removed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
