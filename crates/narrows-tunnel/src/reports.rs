//! Reports on their way to the owner. Those for which there is no room are lost, but counted and told of.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use narrows_host::words::shown;

use super::counters::Counters;
use super::lines::{Lines, Subject};
use super::reason::Reason;
use super::settings::Report;
use super::unreached::Unreached;

/// Reports that wait for an owner who does not listen: seconds of a busy tunnel.
const WAITING_MAX: usize = 4096;
/// With those of the ends of connections that were carried. Who floods the others hides none of these.
const WITH_ENDS_MAX: usize = 2 * WAITING_MAX;
/// Interval at which is looked whether there is room again to tell what was lost.
const LOST_NS: u64 = 100_000_000;

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
    /// About what was refused.
    lines: Lines,
    unreached: Unreached,
}

pub(super) fn pair(counters: Arc<Counters>) -> (Teller, Reports) {
    let (to, from) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let (lines, unreached) = (Lines::default(), Unreached::default());
    let teller = Teller { inner: to, waiting: Arc::clone(&waiting), counters, lost: 0, lines, unreached };
    (teller, Reports { inner: from, waiting })
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

    /// Tells something that a host can have refused without end.
    pub(super) fn tell_refusal(&mut self, host: Option<IpAddr>, about: Subject, text: String, now_ns: u64) {
        if self.may_tell(host, about, now_ns) {
            self.tell(about.report(text));
        }
    }

    /// Whether a line about what was refused is told. Those of a dialer are about its own connections.
    pub(super) fn may_tell(&mut self, host: Option<IpAddr>, about: Subject, now_ns: u64) -> bool {
        host.is_none() || self.lines.may_tell(host, about, now_ns)
    }

    /// Tells a person at a dialer that a target was not reached.
    pub(super) fn tell_unreached(&mut self, to: String, reason: Reason, text: &str, now_ns: u64) {
        if self.unreached.may_tell(&to, now_ns) {
            self.tell(Report::Unreached { to, reason, text: text.to_owned() });
        }
    }

    /// Tells something in any case.
    pub(super) fn tell_last(&self, report: Report) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The owner may have gone.
        let _ = self.inner.send(escaped(report));
    }

    fn tell_within(&mut self, most: usize, report: Report) {
        self.tell_lost();
        if self.waiting.load(Ordering::Relaxed) < most {
            return self.tell_last(report);
        }
        self.lost += 1;
        self.counters.reports_lost.add(1);
    }

    /// Tells how much was not told.
    pub(super) fn tell_left_out(&mut self, now_ns: u64) {
        while let Some((host, about, count)) = self.lines.left_out(now_ns) {
            self.counters.lines_left_out.add(count);
            let host = host.map_or_else(String::new, |host| format!("{host}: "));
            self.tell(about.report(format!("{host}{count} more of the last second were refused")));
        }
        self.tell_lost();
    }

    /// Tells how many were lost, once there is room for many more: else there would be a line for each.
    fn tell_lost(&mut self) {
        if self.lost > 0 && self.waiting.load(Ordering::Relaxed) <= WAITING_MAX / 2 {
            let count = std::mem::take(&mut self.lost);
            self.tell_last(Report::Missed { count });
        }
    }

    /// When [`Teller::tell_left_out`] has something to do.
    pub(super) fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let lost_ns = (self.lost > 0).then_some(now_ns + LOST_NS);
        lost_ns.into_iter().chain(self.lines.next_wakeup_ns()).min()
    }
}

/// The same report, whose texts steer no terminal and have one line each: what a peer has chosen may be
/// a part of any of them.
fn escaped(report: Report) -> Report {
    let text = |text: String| shown(text.as_bytes());
    match report {
        Report::Serving { address } => Report::Serving { address: text(address) },
        Report::Listening { from, to } => Report::Listening { from: text(from), to: text(to) },
        Report::RemoteListening { from, to } => Report::RemoteListening { from: text(from), to: text(to) },
        Report::RemoteRefused { from, why } => Report::RemoteRefused { from: text(from), why: text(why) },
        Report::Lost { why } => Report::Lost { why: text(why) },
        Report::Flow { text: said } => Report::Flow { text: text(said) },
        Report::Unreached { to, reason, text: said } => Report::Unreached { to: text(to), reason, text: text(said) },
        Report::Missed { count } => Report::Missed { count },
        Report::Peer { text: said } => Report::Peer { text: text(said) },
        Report::Refused { text: said } => Report::Refused { text: text(said) },
        Report::Over { error } => Report::Over { error: error.map(text) },
        // Its texts were escaped when the connection began.
        report @ (Report::Up | Report::Ended(_)) => report,
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
        assert_eq!(teller.next_wakeup_ns(7), Some(7 + LOST_NS));
        teller.tell_lost();
        teller.tell_last(Report::Over { error: None });
        assert_eq!([next(), next()], [Report::Missed { count: 100 }, Report::Over { error: None }]);
        assert_eq!(teller.next_wakeup_ns(7), None);
    }
}
