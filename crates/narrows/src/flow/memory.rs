//! Memory that many flows share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each direction may hold, whatever the others do: one read of bulk, so that all make progress.
pub const MEMORY_MIN: usize = 64 << 10;

/// The memory of all flows of a process.
#[derive(Debug)]
pub struct Memory {
    held: AtomicUsize,
    total: AtomicUsize,
}

impl Memory {
    /// Memory of `total` bytes.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), total: AtomicUsize::new(total) })
    }

    /// A share for one direction of a flow.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { of_all: Arc::clone(self), held: 0 }
    }

    /// Bytes that all hold.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that they may still hold.
    pub fn left(&self) -> usize {
        self.total.load(Ordering::Relaxed).saturating_sub(self.held())
    }

    /// Limits what all hold from here on.
    pub fn set_total(&self, total: usize) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// The most that a direction may hold that holds so much: what is left, and in any case a little.
    pub fn max_for(&self, held: usize) -> usize {
        (held + self.left()).max(MEMORY_MIN)
    }
}

/// What one direction of a flow holds of the memory of all.
#[derive(Debug)]
pub struct Share {
    of_all: Arc<Memory>,
    held: usize,
}

impl Share {
    /// Records how much it holds now.
    pub fn count(&mut self, held: usize) {
        let before = std::mem::replace(&mut self.held, held);
        if held != before {
            // The difference wraps if it became less, which is intended.
            self.of_all.held.fetch_add(held.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Bytes that it holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The most that it may hold now.
    pub fn memory_max(&self) -> usize {
        self.of_all.max_for(self.held)
    }

    /// The memory that it is a share of.
    pub fn of_all(&self) -> &Memory {
        &self.of_all
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.count(0);
    }
}
