//! Which bytes of a flow have left this host, on a carrier that other flows use too.

use std::collections::VecDeque;

/// How far a carrier is, in bytes since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes given to it.
    pub(super) given: u64,
    /// Bytes that left the host.
    pub(super) left: u64,
    /// Bytes that the far end has acknowledged.
    pub(super) acked: Option<u64>,
}

/// The places of a flow's bytes in its carrier.
#[derive(Default)]
pub(super) struct Marks {
    /// Pairs of a place of the carrier, and how many bytes of the flow lie before it.
    list: VecDeque<(u64, u64)>,
    given: u64,
    left: u64,
    acked: u64,
}

/// Most marks kept; the oldest count as left beyond that. At 64 KiB a mark they reach over 64 MiB.
const MARKS_MAX: usize = 1024;

impl Marks {
    /// The flow goes on on another carrier: what is under way on the old one counts as gone.
    pub(super) fn restart(&mut self) {
        self.list.clear();
        (self.left, self.acked) = (self.given, self.given);
    }

    /// `len` bytes were given to the carrier, which has now been given so much in total.
    pub(super) fn add(&mut self, len: usize, given: u64) {
        self.given += len as u64;
        self.list.push_back((given, self.given));
        if self.list.len() > MARKS_MAX {
            let (_, bytes) = self.list.pop_front().unwrap_or_default();
            (self.left, self.acked) = (self.left.max(bytes), self.acked.max(bytes));
        }
    }

    /// Updates by the progress of the carrier. Returns the flow's bytes that have not left, and those
    /// that are not acknowledged.
    pub(super) fn look(&mut self, progress: &Progress) -> (u64, u64) {
        let acked = progress.acked.unwrap_or(progress.left).min(progress.left);
        while let Some((_, bytes)) = self.list.front().copied().filter(|(place, _)| *place <= acked) {
            self.acked = bytes;
            self.list.pop_front();
        }
        let left = self.list.iter().take_while(|(place, _)| *place <= progress.left).last();
        self.left = left.map_or(self.acked, |(_, bytes)| *bytes).max(self.left).max(self.acked);
        (self.given - self.left, self.given - self.acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_counts_its_own_bytes_only() {
        let mut marks = Marks::default();
        // 100 bytes of this flow, 900 of others, 100 of this one.
        marks.add(100, 110);
        marks.add(100, 1120);
        let look = |marks: &mut Marks, left, acked| marks.look(&Progress { given: 1120, left, acked });
        assert_eq!(look(&mut marks, 0, Some(0)), (200, 200));
        assert_eq!(look(&mut marks, 500, Some(0)), (100, 200));
        assert_eq!(look(&mut marks, 500, Some(200)), (100, 100));
        assert_eq!(look(&mut marks, 1119, Some(1119)), (100, 100));
        assert_eq!(look(&mut marks, 1120, Some(1120)), (0, 0));
        assert!(marks.list.is_empty());
    }

    #[test]
    fn a_carrier_without_acknowledgements_tells_what_left() {
        let mut marks = Marks::default();
        marks.add(10, 20);
        assert_eq!(marks.look(&Progress { given: 20, left: 19, acked: None }), (10, 10));
        assert_eq!(marks.look(&Progress { given: 20, left: 20, acked: None }), (0, 0));
    }

    #[test]
    fn many_marks_take_bounded_memory_and_a_new_carrier_starts_anew() {
        let mut marks = Marks::default();
        (1..=5000).for_each(|i| marks.add(1, i));
        assert_eq!(marks.list.len(), MARKS_MAX);
        assert_eq!(marks.look(&Progress::default()).0, MARKS_MAX as u64);
        marks.restart();
        marks.add(7, 3);
        assert_eq!(marks.look(&Progress { given: 3, left: 0, acked: Some(0) }), (7, 7));
    }
}
