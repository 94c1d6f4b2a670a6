//! A connection that is still opening: TCP doubles the bytes in flight with every round trip until
//! the path is full (RFC 5681, section 3.1). A rate measured meanwhile shows the state of the
//! window, not the speed of the link.

/// Connections with shorter round trips open during a single measurement of the rate, so they need
/// no correction.
const ROUND_MIN_NS: u64 = 2_000_000;
/// A path is full when three rounds in a row brought no increase by a quarter, as in BBR
/// (draft-ietf-ccwg-bbr, section 5.3.1.2).
const GROWTH: f64 = 1.25;
const FULL_ROUNDS: u8 = 3;
/// After this many doublings the initial window exceeds any link: a sender that never fills it is
/// not slowed by it either.
const ROUNDS_MAX: u8 = 24;
/// The measured rate is a round trip old, and blocks chosen at this time leave one round trip
/// later: by then it has doubled twice.
const AHEAD: f64 = 4.0;

#[derive(Debug, Clone, Default)]
pub(super) struct Opening {
    begin_ns: u64,
    begin_acked: u64,
    /// Most bytes that were acknowledged in one round.
    most: u64,
    /// Whether the link stood dry in this round: then it proves nothing.
    dry: bool,
    full_rounds: u8,
    rounds: u8,
    growing: bool,
    over: bool,
}

impl Opening {
    /// Takes the total of acknowledged bytes of a connection with this round trip.
    pub(super) fn observe(&mut self, now_ns: u64, acked: u64, rtt_ns: u64, dry: bool) {
        if self.over {
            return;
        }
        self.dry |= dry;
        self.growing = rtt_ns >= ROUND_MIN_NS;
        if self.rounds == 0 {
            (self.rounds, self.begin_ns, self.begin_acked) = (1, now_ns, acked);
        }
        if now_ns.saturating_sub(self.begin_ns) < rtt_ns.max(ROUND_MIN_NS) {
            return;
        }
        let came = acked - self.begin_acked;
        if came as f64 >= GROWTH * self.most as f64 && came > 0 {
            (self.most, self.full_rounds) = (came, 0);
        } else if !self.dry && came > 0 {
            self.full_rounds += 1;
        }
        (self.begin_ns, self.begin_acked, self.dry) = (now_ns, acked, false);
        self.rounds += 1;
        self.over = self.full_rounds >= FULL_ROUNDS || self.rounds > ROUNDS_MAX;
    }

    pub(super) fn is_open(&self) -> bool {
        self.over || !self.growing
    }

    /// Expected rate / measured rate.
    pub(super) fn factor(&self) -> f64 {
        if self.is_open() { 1.0 } else { AHEAD }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LinkMonitor, LinkSample};
    use super::*;

    const RTT: u64 = 40_000_000;

    /// A window that doubles from 14 KB up to the capacity of the path. Returns the number of
    /// rounds until the connection counts as open.
    fn rounds_until_open(path: u64, rtt_ns: u64, dry: bool) -> u64 {
        let (mut opening, mut acked, mut window) = (Opening::default(), 0, 14_480u64);
        opening.observe(0, 0, rtt_ns, dry);
        for round in 1..100 {
            if opening.is_open() {
                return round - 1;
            }
            for step in 1..=10 {
                acked += window / 10;
                opening.observe((10 * (round - 1) + step) * rtt_ns / 10, acked, rtt_ns, dry);
            }
            window = (2 * window).min(path);
        }
        100
    }

    #[test]
    fn a_connection_is_open_three_rounds_after_it_stopped_growing() {
        assert_eq!(rounds_until_open(5_000, RTT, false), 4, "slower than its first window");
        assert_eq!(rounds_until_open(14_480 << 5, RTT, false), 9);
        assert_eq!(rounds_until_open(14_480 << 5, ROUND_MIN_NS - 1, false), 0, "it is followed as it is");
        assert_eq!(rounds_until_open(14_480, RTT, true), u64::from(ROUNDS_MAX), "the sender had too little");
    }

    #[test]
    fn of_a_link_that_opens_more_is_expected_than_was_measured_until_it_is_open() {
        let mut m = LinkMonitor::default();
        let (mut at_ns, mut window) = (0, 14_480u64);
        let mut opened_after = None;
        for round in 0..14 {
            // There is always more than the window lets through: half of it leaves at once, the
            // rest waits.
            for i in 0..20u64 {
                let accepted = window / 20;
                let unacked = Some(window + (1 << 17));
                let look = LinkSample {
                    begin_ns: at_ns + i * RTT / 20,
                    end_ns: at_ns + i * RTT / 20,
                    unsent_before: 1 << 17,
                    unsent_after: 1 << 17,
                    accepted,
                    unacked,
                    rtt_ns: Some(RTT),
                    ..LinkSample::default()
                };
                m.observe(&look);
            }
            at_ns += RTT;
            let view = m.view(0);
            if !view.opening && opened_after.is_none() {
                opened_after = Some(round);
            }
            let ahead = view.rate_bytes_per_s / m.rate_bytes_per_s;
            assert_eq!(ahead, if view.opening { AHEAD } else { 1.0 });
            window = (2 * window).min(14_480 << 5);
        }
        assert!((6..12).contains(&opened_after.unwrap()), "{opened_after:?}");
    }
}
