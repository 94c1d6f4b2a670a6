//! What the peers of all sessions may send without being read: the windows of flows, and what they are
//! together.

use std::cell::Cell;
use std::rc::Rc;

use crate::limits::{CREDIT_FIRST, CREDIT_MAX, CREDIT_TOTAL};

/// All flows get at most this share of the credit that is left, so that the first of them do not keep
/// it from those that come later, and many fast ones have an equal part.
const PART: usize = 8;

/// The credit of a process, of which each flow has [`CREDIT_FIRST`] in any case.
#[derive(Clone)]
pub struct Credit(Rc<Shared>);

struct Shared {
    /// What the windows of all flows have above [`CREDIT_FIRST`].
    given: Cell<usize>,
    /// Most of it.
    total: Cell<usize>,
}

impl Default for Credit {
    fn default() -> Self {
        Self(Rc::new(Shared { given: Cell::new(0), total: Cell::new(CREDIT_TOTAL) }))
    }
}

impl Credit {
    /// Limits what is given from here on to what memory is left for.
    pub fn set_left(&self, left: usize) {
        self.0.total.set(left.min(CREDIT_TOTAL));
    }

    /// A window for a new flow.
    pub(super) fn window(&self) -> Window {
        Window { of: self.clone(), size: CREDIT_FIRST }
    }

    /// What all windows have above the first ones.
    pub fn given(&self) -> usize {
        self.0.given.get()
    }
}

/// Bytes that the peer of one direction may have sent without their being taken.
pub(super) struct Window {
    of: Credit,
    size: u32,
}

impl Window {
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The most that it should be now.
    pub(super) fn max(&self) -> u32 {
        let own = (self.size - CREDIT_FIRST) as usize;
        let left = self.of.0.total.get().saturating_sub(self.of.given() - own) / PART;
        u32::try_from(left).unwrap_or(u32::MAX).clamp(CREDIT_FIRST, CREDIT_MAX)
    }

    pub(super) fn set(&mut self, size: u32) {
        let before = self.size - CREDIT_FIRST;
        self.of.0.given.set(self.of.given() - before as usize + (size - CREDIT_FIRST) as usize);
        self.size = size;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.set(CREDIT_FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_flows_grow_their_windows_are_bounded_together_and_equal() {
        for flows in [1usize, 8, 200, 3000] {
            let credit = Credit::default();
            let mut windows: Vec<Window> = (0..flows).map(|_| credit.window()).collect();
            for _ in 0..100 {
                for window in &mut windows {
                    // As a flow does that is limited: doubled, or shrunk to what it may be.
                    let size = (2 * window.size()).min(window.max());
                    window.set(size);
                }
                assert!(credit.given() <= CREDIT_TOTAL);
            }
            let sizes = windows.iter().map(Window::size);
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            assert!(most <= 2 * least, "{flows}: {least} to {most}");
            assert!(flows > 8 || least == CREDIT_MAX, "few get all that they can use");
            drop(windows);
            assert_eq!(credit.given(), 0);
        }
        let credit = Credit::default();
        let mut window = credit.window();
        window.set(CREDIT_MAX);
        credit.set_left(0);
        assert_eq!(window.max(), CREDIT_FIRST, "no memory");
    }
}
