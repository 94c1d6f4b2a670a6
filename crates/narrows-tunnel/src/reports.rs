//! Reports on their way to the owner. Those for which there is no room are lost, but counted and told of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::counters::Counters;
use super::settings::Report;

/// Reports that wait for an owner who does not listen: seconds of a busy tunnel.
const WAITING_MAX: usize = 4096;
/// With those of the ends of connections that were carried. Who floods the others hides none of these.
const WITH_ENDS_MAX: usize = 2 * WAITING_MAX;

/// What a tunnel has to tell, in order; the last is [`Report::Over`].
pub struct Reports {
    inner: Receiver<Report>,
    waiting: Arc<AtomicUsize>,
}

impl Reports {
    /// The next one, which is waited for so long.
    ///
    /// # Errors
    /// As for [`Receiver::recv_timeout`].
    pub fn recv_timeout(&self, limit: Duration) -> Result<Report, RecvTimeoutError> {
        let report = self.inner.recv_timeout(limit)?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(report)
    }
}

/// Its other end.
pub(super) struct Teller {
    inner: Sender<Report>,
    waiting: Arc<AtomicUsize>,
    counters: Arc<Counters>,
    /// Those that were lost and not told of yet.
    lost: u64,
}

pub(super) fn pair(counters: Arc<Counters>) -> (Teller, Reports) {
    let (to, from) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Teller { inner: to, waiting: Arc::clone(&waiting), counters, lost: 0 }, Reports { inner: from, waiting })
}

impl Teller {
    /// Tells something if there is room.
    pub(super) fn tell(&mut self, report: Report) {
        self.tell_within(WAITING_MAX, report);
    }

    /// Tells of the end of a connection that was carried.
    pub(super) fn tell_end(&mut self, report: Report) {
        self.tell_within(WITH_ENDS_MAX, report);
    }

    /// Tells something in any case.
    pub(super) fn tell_last(&self, report: Report) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The owner may have gone.
        let _ = self.inner.send(report);
    }

    fn tell_within(&mut self, most: usize, report: Report) {
        self.tell_lost();
        if self.waiting.load(Ordering::Relaxed) < most {
            return self.tell_last(report);
        }
        self.lost += 1;
        self.counters.reports_lost.add(1);
    }

    /// Tells how many were lost, once there is room for many more: else there would be a line for each.
    pub(super) fn tell_lost(&mut self) {
        if self.lost > 0 && self.waiting.load(Ordering::Relaxed) <= WAITING_MAX / 2 {
            let count = std::mem::take(&mut self.lost);
            self.tell_last(Report::Missed { count });
        }
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_floods_hides_no_end_of_a_connection_and_what_is_lost_is_told() {
        let counters = Arc::new(Counters::default());
        let (mut teller, reports) = pair(Arc::clone(&counters));
        let flood = WAITING_MAX + 100;
        (0..flood).for_each(|i| teller.tell(Report::Flow { text: i.to_string() }));
        teller.tell_end(Report::Up);
        assert_eq!(counters.reports_lost.get(), 100);
        let next = || reports.recv_timeout(Duration::ZERO).unwrap();
        (0..WAITING_MAX).for_each(|i| assert_eq!(next(), Report::Flow { text: i.to_string() }));
        assert_eq!(next(), Report::Up);
        assert!(teller.has_lost());
        teller.tell_lost();
        teller.tell_last(Report::Over { error: None });
        assert_eq!([next(), next()], [Report::Missed { count: 100 }, Report::Over { error: None }]);
        assert!(!teller.has_lost());
    }
}
