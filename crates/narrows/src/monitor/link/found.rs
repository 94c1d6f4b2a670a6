//! A link that begins to tell what was acknowledged, or ceases to: the connection behind a pipe was
//! found, or is seen no more.

use super::{Absorbed, LinkMonitor, LinkSample};

impl LinkMonitor {
    /// What a pipe seemed to be says nothing of the connection behind it, so the link is unknown again.
    pub(super) fn notice_found(&mut self, s: &LinkSample) {
        if s.busy_ns.is_some() || self.accepted == 0 {
            return;
        }
        let Some(unacked) = s.unacked else {
            // What is acknowledged before it is found again is no evidence.
            self.acked = None;
            return;
        };
        if self.acked.is_some() {
            return;
        }
        let now_ns = s.begin_ns.max(self.last_ns);
        let acked = (self.accepted + s.accepted).saturating_sub(unacked);
        *self = Self {
            rate_bytes_per_s: self.expected.rate_bytes_per_s(),
            accepted: self.accepted,
            unsent: s.unsent_before,
            last_ns: now_ns,
            dry_since_ns: now_ns,
            acked: Some(acked),
            absorbed: Absorbed { bytes: 0.0, since_ns: now_ns },
            busy: self.busy,
            rtt_ns: self.rtt_ns,
            expected: self.expected,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Writes of 64 KiB at every half millisecond, into a pipe that is emptied at once. From `from_ms` on
    /// the connection behind it is seen, which carries 10 MB/s.
    fn run(m: &mut LinkMonitor, from_ms: u64, until_ms: u64) {
        for half in m.last_look_ns() / (MS / 2) + 1..2 * until_ms {
            let at_ns = half * MS / 2;
            let acked = 5_000 * half;
            let is_seen = at_ns >= from_ms * MS;
            let accepted = if m.accepted_bytes() < acked + 400_000 { 65_536 } else { 0 };
            let unacked = (m.accepted_bytes() + accepted).saturating_sub(acked);
            let unsent = if is_seen { unacked.saturating_sub(50_000) } else { 0 };
            m.observe(&LinkSample {
                begin_ns: at_ns,
                end_ns: at_ns + 20_000,
                unsent_before: unsent.saturating_sub(accepted),
                unsent_after: unsent,
                accepted,
                unacked: is_seen.then_some(unacked),
                rtt_ns: is_seen.then_some(MS),
                ..LinkSample::default()
            });
        }
    }

    #[test]
    fn a_pipe_as_fast_as_memory_becomes_the_connection_behind_it() {
        let mut m = LinkMonitor::default();
        run(&mut m, 10, 10);
        assert!(m.is_known() && m.rate_bytes_per_s() > 1e9);
        run(&mut m, 10, 11);
        assert!(m.rate_bytes_per_s() < 126e6, "{}: what was acknowledged before is no burst", m.rate_bytes_per_s());
        run(&mut m, 10, 100);
        assert!(m.is_known() && !m.in_memory());
        assert!((0.8..1.25).contains(&(m.rate_bytes_per_s() / 10e6)), "{}", m.rate_bytes_per_s());
    }

    #[test]
    fn a_connection_that_is_seen_again_starts_again() {
        let mut m = LinkMonitor::default();
        run(&mut m, 0, 100);
        let rate = m.rate_bytes_per_s();
        run(&mut m, 110, 110);
        assert!(m.rate_bytes_per_s() >= 0.9 * rate, "{}", m.rate_bytes_per_s());
        run(&mut m, 110, 200);
        assert!((0.8..1.25).contains(&(m.rate_bytes_per_s() / 10e6)), "{}", m.rate_bytes_per_s());
    }
}
