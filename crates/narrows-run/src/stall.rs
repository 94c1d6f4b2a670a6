//! A program whose bytes wait for nothing but the peer's reader.
//!
//! TCP would have a closed window then: its probes find out whether the peer is still there, and
//! TCP_USER_TIMEOUT ends a connection whose peer takes nothing for so long. But the network has taken
//! everything, so both are to be done here. No I/O and no clock.

/// Time between probes. The kernel's own come up to two minutes apart.
const PROBE_NS: u64 = 60_000_000_000;

#[derive(Debug)]
pub(crate) struct Stall {
    /// What the peer had delivered when it began.
    pub delivered: u64,
    ends_ns: Option<u64>,
    probe_ns: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Something is to be sent, which the peer's kernel confirms if it is there.
    Probe,
    /// The connection ends.
    TimedOut,
}

impl Stall {
    /// `timeout_ms`: TCP_USER_TIMEOUT of the connection; 0: none.
    pub(crate) fn new(delivered: u64, timeout_ms: u32, now_ns: u64) -> Self {
        let ends_ns = (timeout_ms > 0).then(|| now_ns + 1_000_000 * u64::from(timeout_ms));
        Self { delivered, ends_ns, probe_ns: now_ns + PROBE_NS }
    }

    pub(crate) fn next_wakeup_ns(&self) -> u64 {
        self.ends_ns.map_or(self.probe_ns, |at| at.min(self.probe_ns))
    }

    pub(crate) fn on_time(&mut self, now_ns: u64) -> Due {
        if self.ends_ns.is_some_and(|at| at <= now_ns) {
            return Due::TimedOut;
        }
        if self.probe_ns > now_ns {
            return Due::Nothing;
        }
        self.probe_ns = now_ns + PROBE_NS;
        Due::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_go_on_until_the_programs_own_limit() {
        let mut stall = Stall::new(0, 150_000, 0);
        let mut seen = Vec::new();
        loop {
            let now_ns = stall.next_wakeup_ns();
            assert_eq!(stall.on_time(now_ns - 1), Due::Nothing);
            seen.push((now_ns / 1_000_000_000, stall.on_time(now_ns)));
            if matches!(seen.last(), Some((_, Due::TimedOut))) || seen.len() > 9 {
                break;
            }
        }
        assert_eq!(seen, [(60, Due::Probe), (120, Due::Probe), (150, Due::TimedOut)]);
        let mut endless = Stall::new(0, 0, 0);
        for _ in 0..100 {
            let now_ns = endless.next_wakeup_ns();
            assert_eq!(endless.on_time(now_ns), Due::Probe);
        }
    }
}
