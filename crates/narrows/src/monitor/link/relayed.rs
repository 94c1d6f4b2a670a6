//! A link behind another program, such as ssh. That program accepts megabytes without sending them,
//! so this host's kernel queue shows neither rate nor backlog; the far end's reports of received
//! bytes do.

use std::collections::VecDeque;

/// Most bytes in flight before a rate is known; doubled when a report shows that all of them
/// crossed at once, as in the slow start of TCP (RFC 5681, section 3.1).
const FIRST_BYTES: u64 = 128 << 10;
const FIRST_BYTES_MAX: u64 = 64 << 20;
/// A link that carried this much at once without a queue counts as fast until it pushes back.
const FAST_BYTES: u64 = 1 << 20;
/// Evidence over a shorter time reflects the travel of reports more than the link.
const EVIDENCE_MIN_NS: u64 = 1_000_000;
/// Most writes whose arrival is awaited, to measure the round trip.
const MARKS_MAX: usize = 128;

#[derive(Debug, Clone)]
pub(super) struct Relayed {
    /// Bytes that the far end had received at its last report, and when the report came.
    received: u64,
    reported_ns: Option<u64>,
    /// Start of the next span of evidence.
    since: Option<Since>,
    /// Marks: (bytes accepted so far, time).
    marks: VecDeque<(u64, u64)>,
    /// Shortest time from a write to the report that covers it.
    round_trip_ns: Option<u64>,
    allowance: u64,
    /// At every look since the report this host's kernel held bytes: the relaying program takes no
    /// more.
    pushed_back: bool,
    /// Bytes that this host's kernel held at the last look.
    pub(super) kernel_unsent: u64,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    ns: u64,
    received: u64,
    accepted: u64,
}

/// Evidence of the rate from a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Evidence {
    pub(super) bytes: f64,
    pub(super) ns: f64,
    /// The link had something to carry all the time; otherwise the rate is a lower bound.
    pub(super) busy: bool,
}

impl Default for Relayed {
    fn default() -> Self {
        Self {
            received: 0,
            reported_ns: None,
            since: None,
            marks: VecDeque::new(),
            round_trip_ns: None,
            allowance: FIRST_BYTES,
            pushed_back: false,
            kernel_unsent: 0,
        }
    }
}

impl Relayed {
    /// Takes the bytes that this host's kernel held at a look or after a write.
    pub(super) fn on_look(&mut self, unsent: u64) {
        self.pushed_back &= unsent > 0;
        self.kernel_unsent = unsent;
    }

    /// In total `accepted` bytes were handed over.
    pub(super) fn on_write(&mut self, accepted: u64, now_ns: u64) {
        if self.marks.len() == MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.marks.push_back((accepted, now_ns));
    }

    /// The far end has received `received` of the `accepted` bytes.
    pub(super) fn on_report(&mut self, received: u64, accepted: u64, now_ns: u64) -> Option<Evidence> {
        let received = received.clamp(self.received, accepted.max(self.received));
        while let Some(&(_, written_ns)) = self.marks.front().filter(|mark| mark.0 <= received) {
            self.marks.pop_front();
            let round_trip_ns = now_ns.saturating_sub(written_ns).max(1);
            self.round_trip_ns = Some(self.round_trip_ns.map_or(round_trip_ns, |ns| ns.min(round_trip_ns)));
        }
        (self.received, self.reported_ns) = (received, Some(now_ns));
        let Some(since) = self.since else {
            self.since = Some(Since { ns: now_ns, received, accepted });
            return None;
        };
        let ns = now_ns.saturating_sub(since.ns);
        // Reports that arrive together count as one.
        if ns < EVIDENCE_MIN_NS {
            return None;
        }
        let bytes = (received - since.received) as f64;
        // Bytes constantly in flight are no sign of a queue.
        let on_its_way = bytes / ns as f64 * self.round_trip_ns.unwrap_or(0) as f64;
        let queued = since.accepted.saturating_sub(since.received) as f64 > bytes + on_its_way;
        let busy = queued || self.pushed_back;
        if !busy && bytes > 0.0 {
            self.allowance = (2 * self.allowance).min(FIRST_BYTES_MAX);
        }
        self.since = Some(Since { ns: now_ns, received, accepted });
        self.pushed_back = true;
        (bytes > 0.0).then_some(Evidence { bytes, ns: ns as f64, busy })
    }

    /// Whether so much crossed at once that the link is certainly fast.
    pub(super) fn is_proven_fast(&self) -> bool {
        self.allowance >= FAST_BYTES
    }

    /// Estimated bytes that wait somewhere before the link. `rate` in bytes per second, if known.
    pub(super) fn waiting(&self, accepted: u64, rate: Option<f64>, now_ns: u64) -> u64 {
        let outstanding = accepted.saturating_sub(self.received);
        let (Some(rate), Some(then)) = (rate, self.reported_ns) else {
            return outstanding.saturating_sub(self.allowance);
        };
        // The link went on since the report, and bytes in flight do not wait.
        let ns = now_ns.saturating_sub(then) + self.round_trip_ns.unwrap_or(0);
        outstanding.saturating_sub((rate * ns as f64 / 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use crate::monitor::expectation::PeerLink;
    use crate::monitor::link::{LinkMonitor, LinkSample};

    const MS: u64 = 1_000_000;

    /// A program that takes `buffer` bytes at once and sends them at `rate` over a link of
    /// `round_trip_ms`; the far end reports every 10 ms. Writes as the estimate allows, for `ms`.
    fn run(m: &mut LinkMonitor, rate: f64, buffer: u64, round_trip_ms: u64, from_ms: u64, ms: u64) -> u64 {
        let (mut accepted, mut sent) = (m.accepted_bytes(), m.accepted_bytes() as f64);
        let mut arriving = std::collections::VecDeque::new();
        let mut waiting_most = 0;
        for now in from_ms..from_ms + ms {
            // Like a window of blocks: 256 KiB beyond what has left.
            let room = (m.left_host_bytes() + (256 << 10)).saturating_sub(accepted);
            let write = room.min((sent as u64 + buffer).saturating_sub(accepted));
            accepted += write;
            m.observe(&LinkSample {
                begin_ns: now * MS,
                end_ns: now * MS,
                accepted: write,
                unsent_after: if write < room { 65_536 } else { 0 },
                ..LinkSample::default()
            });
            sent = (sent + rate / 1000.0).min(accepted as f64);
            arriving.push_back((now + round_trip_ms, sent as u64));
            if now % 10 == 0 {
                while arriving.front().is_some_and(|a| a.0 < now) {
                    let (_, received) = arriving.pop_front().unwrap_or_default();
                    m.on_report(received, now * MS);
                }
            }
            waiting_most = waiting_most.max(accepted - sent as u64);
        }
        waiting_most
    }

    #[test]
    fn the_rate_behind_a_program_that_takes_megabytes_at_once_is_found() {
        for rate in [0.125e6, 1.25e6, 12.5e6, 100e6] {
            for round_trip_ms in [0, 40] {
                let mut m = LinkMonitor::relayed();
                let waiting = run(&mut m, rate, 2 << 20, round_trip_ms, 0, 3000);
                let found = m.rate_bytes_per_s() / rate;
                assert!((0.7..1.5).contains(&found), "{rate} {round_trip_ms}: {found}");
                // Without reports 2 MiB would wait there all the time; on a fast link that is a few
                // milliseconds.
                assert!(rate > 50e6 || waiting < 3 << 19, "{rate} {round_trip_ms}: {waiting}");
            }
        }
    }

    #[test]
    fn it_is_found_after_a_wrong_memory_too() {
        for rate in [1.25e6, 12.5e6] {
            for wrong in [0.1, 1.0, 10.0] {
                let mut m = LinkMonitor::relayed();
                m.expect(&PeerLink { rate_bytes_per_s: rate * wrong, rtt_ns: None });
                run(&mut m, rate, 2 << 20, 40, 0, 3000);
                let found = m.rate_bytes_per_s() / rate;
                assert!((0.7..1.5).contains(&found), "{rate} {wrong}: {found}");
                assert!((0.5..2.0).contains(&(m.measured().unwrap().rate_bytes_per_s / rate)), "{rate} {wrong}");
            }
        }
    }

    #[test]
    fn a_report_of_twice_the_rate_ends_an_expectation() {
        let mut m = LinkMonitor::relayed();
        m.expect(&PeerLink { rate_bytes_per_s: 1.25e6, rtt_ns: None });
        for ms in 1..=2 {
            m.observe(&LinkSample { begin_ns: ms * MS, end_ns: ms * MS, accepted: 8000, ..LinkSample::default() });
            assert!(m.view(0).expected, "the first report only begins a span");
            m.on_report(8000 * ms, ms * MS + MS / 2);
        }
        assert!(!m.view(0).expected && !m.view(0).known, "{}", m.rate_bytes_per_s());
    }

    #[test]
    fn a_change_of_the_rate_is_followed() {
        let mut m = LinkMonitor::relayed();
        run(&mut m, 12.5e6, 2 << 20, 10, 0, 1000);
        run(&mut m, 1.25e6, 2 << 20, 10, 1000, 2000);
        assert!((0.7..1.5).contains(&(m.rate_bytes_per_s() / 1.25e6)), "{}", m.rate_bytes_per_s());
        run(&mut m, 12.5e6, 2 << 20, 10, 3000, 1000);
        assert!((0.7..1.5).contains(&(m.rate_bytes_per_s() / 12.5e6)), "{}", m.rate_bytes_per_s());
    }

    #[test]
    fn a_link_is_busy_while_bytes_wait_and_not_in_the_silence_behind_them() {
        let mut m = LinkMonitor::relayed();
        run(&mut m, 1.25e6, 2 << 20, 10, 0, 1000);
        let busy_ns = m.busy_ns();
        assert!((900 * MS..=1000 * MS).contains(&busy_ns), "{busy_ns}");
        // Everything has crossed, and the link is idle for a minute.
        m.on_report(m.accepted_bytes(), 61_000 * MS);
        m.observe(&LinkSample { begin_ns: 61_001 * MS, end_ns: 61_001 * MS, ..LinkSample::default() });
        assert!(m.busy_ns() < busy_ns + 3000 * MS, "{}", m.busy_ns());
    }

    #[test]
    fn reports_that_make_no_sense_harm_nothing() {
        let mut m = LinkMonitor::relayed();
        for (received, now_ns) in [(u64::MAX, 0), (5, 1), (0, 0), (u64::MAX, u64::MAX / 2)] {
            m.on_report(received, now_ns);
            m.observe(&LinkSample { accepted: 10, ..LinkSample::default() });
            assert!(m.rate_bytes_per_s().is_finite() && m.left_host_bytes() <= m.accepted_bytes());
        }
    }
}
