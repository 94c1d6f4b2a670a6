//! The assumed rate of a link before there is evidence: a constant, or the rate that an earlier flow
//! to the same peer measured.

use super::{ASSUMED_NS, RATE_ASSUMED, RATE_MIN};
use crate::monitor::expectation::PeerLink;

/// Beyond this factor between round trips the path is another one: a peer that was in the next room
/// and is now behind a tunnel. Shorter ones than `RTT_ALIKE_NS` are those of one local network.
const RTT_FACTOR: f64 = 4.0;
const RTT_ALIKE_NS: u64 = 3_000_000;
/// In bytes/s: a slower link is expected to be this fast, 8 Mbit/s. What is made in the first
/// milliseconds is little on a slow link, and one that became a hundred times faster would wait for
/// it.
const RATE_EXPECTED_MIN: f64 = 1e6;
/// In bytes/s: a faster link, from 64 Mbit/s on, shows its rate while the first blocks are made. To
/// expect it gains next to nothing, and one that became ten times faster is as fast as this host.
const RATE_EXPECTED_MAX: f64 = 8e6;
/// A link that carried this much without pushing back is not the slow one that was expected. It is
/// beyond an initial congestion window (10 segments), at which slow links push back.
const EXCUSED_BYTES: u64 = 20 << 10;
/// In bytes/s: of links below 24 Mbit/s the burst of a shaper is excused too. Without it their rate is
/// seen only behind the burst; and a link that became ten times faster takes 8 KiB in half a
/// millisecond, which still suffices for the methods that are chosen for slow ones.
const BURST_EXCUSED_BELOW: f64 = 3e6;
const BURST_BYTES: u64 = 76 << 10;

/// The rate from which a link starts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Expected {
    link: Option<PeerLink>,
}

impl Expected {
    /// An expectation without a sensible rate is none.
    pub(super) fn new(link: &PeerLink) -> Self {
        Self { link: (RATE_MIN..RATE_EXPECTED_MAX).contains(&link.rate_bytes_per_s).then_some(*link) }
    }

    /// Whether an earlier flow measured the link.
    pub(super) fn is_of_a_peer(&self) -> bool {
        self.link.is_some()
    }

    /// A remembered rate above the usual assumption changes nothing: a link that became slower would
    /// then get more blocks made for a fast one than without a memory.
    pub(super) fn rate_bytes_per_s(&self) -> f64 {
        self.link.map_or(RATE_ASSUMED, |link| link.rate_bytes_per_s.max(RATE_EXPECTED_MIN))
    }

    /// Whether a round trip shows that the path is not the remembered one.
    pub(super) fn is_of_another_path(&self, rtt_ns: u64) -> bool {
        let then_ns = self.link.and_then(|link| link.rtt_ns).unwrap_or(rtt_ns);
        let (less, more) = (rtt_ns.min(then_ns), rtt_ns.max(then_ns));
        more > RTT_ALIKE_NS && more as f64 > RTT_FACTOR * less as f64
    }

    /// Bytes that a link may carry at once and still be the remembered one.
    pub(super) fn excused_bytes(&self) -> u64 {
        EXCUSED_BYTES + if self.rate_bytes_per_s() < BURST_EXCUSED_BELOW { BURST_BYTES } else { 0 }
    }

    /// Time that the assumption weighs as, when a link begins to push back. For one round trip nothing
    /// is heard, which is no evidence against a remembered rate; but in bytes it weighs no more than
    /// the usual assumption.
    pub(super) fn weight_ns(&self, rtt_ns: Option<u64>) -> f64 {
        let (Some(_), Some(rtt_ns)) = (self.link, rtt_ns) else { return ASSUMED_NS };
        (rtt_ns as f64).min(ASSUMED_NS * RATE_ASSUMED / self.rate_bytes_per_s()).max(ASSUMED_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LinkMonitor, LinkSample};
    use super::*;

    const MS: u64 = 1_000_000;

    fn expecting(rate_bytes_per_s: f64, rtt_ns: Option<u64>) -> LinkMonitor {
        let mut m = LinkMonitor::default();
        m.expect(&PeerLink { rate_bytes_per_s, rtt_ns });
        m
    }

    /// A link of `rate` that pushes back from the first write on, looked at every half millisecond;
    /// bytes are acknowledged a round trip after they left. Returns when the estimate was first within a
    /// third of the rate and stayed there until `ms`.
    fn found_after_ns(m: &mut LinkMonitor, rate: f64, rtt_ns: u64, ms: u64) -> u64 {
        let (mut accepted, mut found) = (0, None);
        for half in 1..=2 * ms {
            let at_ns = half * MS / 2;
            let acked = (rate * at_ns.saturating_sub(rtt_ns) as f64 / 1e9) as u64;
            accepted = accepted.max(acked + 120_000);
            m.observe(&LinkSample {
                begin_ns: at_ns,
                end_ns: at_ns,
                unsent_before: 50_000,
                unsent_after: 50_000,
                accepted: accepted - m.accepted_bytes(),
                unacked: Some(accepted - acked),
                rtt_ns: Some(rtt_ns),
                ..LinkSample::default()
            });
            let near = (0.67..1.5).contains(&(m.rate_bytes_per_s / rate));
            found = if near { found.or(Some(at_ns)) } else { None };
        }
        found.unwrap_or(u64::MAX)
    }

    #[test]
    fn a_right_memory_is_used_from_the_start_and_a_wrong_one_is_replaced_as_soon_as_none() {
        for rate in [1.25e6, 6e6] {
            let cold = found_after_ns(&mut LinkMonitor::default(), rate, MS / 4, 200);
            let warm = found_after_ns(&mut expecting(rate, None), rate, MS / 4, 200);
            assert!(warm <= cold && cold < 20 * MS, "{rate}: {warm} ns, cold {cold} ns");
            for wrong in [0.01, 0.1, 10.0, 100.0] {
                let wrong = found_after_ns(&mut expecting(rate * wrong, None), rate, MS / 4, 200);
                assert!(wrong <= cold + MS, "{rate}: {wrong} ns, cold {cold} ns");
            }
        }
    }

    #[test]
    fn a_round_trip_of_silence_says_no_more_against_a_memory_than_without_one() {
        let after_40_ms = |mut m: LinkMonitor| {
            for ms in 1..40 {
                let look = LinkSample {
                    begin_ns: ms * MS,
                    end_ns: ms * MS,
                    unsent_before: 50_000,
                    unsent_after: 50_000,
                    accepted: if ms == 1 { 64_000 } else { 0 },
                    unacked: Some(64_000),
                    rtt_ns: Some(40 * MS),
                    ..LinkSample::default()
                };
                m.observe(&look);
            }
            m.rate_bytes_per_s
        };
        let cold = after_40_ms(LinkMonitor::default());
        for rate in [1.25e6, 6e6] {
            let warm = after_40_ms(expecting(rate, Some(40 * MS)));
            assert!(warm > 0.75 * cold && warm < 1.01 * cold, "{rate}: {warm}, cold {cold}");
        }
    }

    /// Writes of 4 KiB every 0.1 ms that are acknowledged at once. Returns the bytes after which the link
    /// was no longer expected to be the remembered one.
    fn carried_at_once(rate: f64) -> u64 {
        let mut m = expecting(rate, None);
        for i in 0..100 {
            let begin_ns = i * MS / 10;
            m.observe(&LinkSample {
                begin_ns,
                end_ns: begin_ns + 5000,
                accepted: 4096,
                unacked: Some(0),
                ..LinkSample::default()
            });
            if !m.view(0).expected {
                assert!(m.rate_bytes_per_s >= RATE_ASSUMED);
                return m.accepted_bytes();
            }
        }
        u64::MAX
    }

    #[test]
    fn a_link_that_takes_everything_is_not_the_slow_one_that_was_expected() {
        assert_eq!(carried_at_once(6e6), 24 << 10);
        assert_eq!(carried_at_once(1.25e6), 100 << 10, "unless it may be the burst of a shaper");
    }

    #[test]
    fn another_round_trip_is_another_path() {
        let look = |rtt_ns| LinkSample { rtt_ns: Some(rtt_ns), ..LinkSample::default() };
        for (then_ns, now_ns, kept) in [(20, 30, true), (20, 6, true), (20, 4, false), (20, 100, false), (1, 2, true)]
            .map(|(a, b, k)| (a * MS, b * MS, k))
        {
            let mut m = expecting(2e6, Some(then_ns));
            m.observe(&look(now_ns));
            assert_eq!(m.view(0).expected, kept, "{then_ns} {now_ns}");
            assert_eq!(m.rate_bytes_per_s, if kept { 2e6 } else { RATE_ASSUMED });
        }
        let mut m = expecting(2e6, None);
        m.observe(&look(100 * MS));
        assert!(m.view(0).expected, "nothing was remembered of its round trip");
    }

    #[test]
    fn rates_without_sense_and_those_of_fast_links_are_no_expectation() {
        for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1.0, 1e300, RATE_EXPECTED_MAX] {
            let m = expecting(rate, Some(u64::MAX));
            assert!(!m.view(0).expected && m.rate_bytes_per_s == RATE_ASSUMED, "{rate}");
        }
        let m = expecting(RATE_MIN, Some(u64::MAX));
        assert!(m.view(0).expected && !m.view(0).known && m.measured().is_none());
        assert_eq!(m.rate_bytes_per_s, RATE_EXPECTED_MIN, "a very slow link is expected to be a little faster");
    }

    #[test]
    fn an_expectation_comes_before_the_first_byte() {
        let mut m = LinkMonitor::default();
        found_after_ns(&mut m, 12.5e6, MS, 100);
        let measured = m.measured().unwrap();
        assert!((0.8..1.25).contains(&(measured.rate_bytes_per_s / 12.5e6)), "{measured:?}");
        assert_eq!(measured.rtt_ns, Some(MS));
        m.expect(&PeerLink { rate_bytes_per_s: 1000.0, rtt_ns: None });
        assert_eq!(m.measured(), Some(measured));
    }
}
