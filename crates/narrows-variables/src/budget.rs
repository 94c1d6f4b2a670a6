//! Memory that the structure of one file may take: a short file may name far more than it has.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use narrows::{Error, Result};

/// What any file may take: the structure of most has some MiB.
const LEAST: u64 = 64 << 20;
/// What it may take for each of its bytes. A chunk takes about 100 bytes in a list, and a real one has more than 25.
const TIMES: u64 = 4;
/// The most, for 20 million chunks.
const MOST: u64 = 2 << 30;
/// What a visited place takes in a set, and in the list of those to come.
const VISIT: u64 = 64;

/// Bytes of memory that are left.
#[derive(Clone)]
pub(crate) struct Budget(Arc<AtomicU64>);

/// A part of a budget, which is given back when this is dropped.
pub(crate) struct Held {
    budget: Budget,
    len: u64,
}

impl Budget {
    /// For a file of so many bytes.
    pub(crate) fn of_file(len: u64) -> Self {
        Self(Arc::new(AtomicU64::new(len.saturating_mul(TIMES).saturating_add(LEAST).min(MOST))))
    }

    /// For a folder of files.
    pub(crate) fn of_folder() -> Self {
        Self(Arc::new(AtomicU64::new(MOST)))
    }

    /// Takes memory for what stays as long as the file is open.
    pub(crate) fn keep(&self, len: u64) -> Result<()> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len));
        taken
            .map(drop)
            .map_err(|_| Error::limit("the file's structure needs more memory than a file of its length may"))
    }

    /// Nothing yet.
    pub(crate) fn held(&self) -> Held {
        Held { budget: self.clone(), len: 0 }
    }
}

impl Held {
    /// Takes more.
    pub(crate) fn add(&mut self, len: u64) -> Result<()> {
        self.budget.keep(len)?;
        self.len += len;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.len, Ordering::Relaxed);
    }
}

/// Places of a file that were visited.
pub(crate) struct Visits {
    seen: HashSet<u64>,
    held: Held,
}

impl Visits {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self { seen: HashSet::new(), held: budget.held() }
    }

    /// Whether this is the first visit.
    pub(crate) fn is_first(&mut self, at: u64) -> Result<bool> {
        if !self.seen.insert(at) {
            return Ok(false);
        }
        self.held.add(VISIT)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_given_back_can_be_had_again() {
        let budget = Budget::of_file(0);
        for _ in 0..3 {
            let mut held = budget.held();
            held.add(LEAST).unwrap();
            assert!(held.add(1).is_err() && budget.keep(1).is_err());
        }
        budget.keep(LEAST).unwrap();
        assert!(budget.held().add(1).is_err());
        assert_eq!(Budget::of_file(u64::MAX).0.load(Ordering::Relaxed), MOST);
    }
}
