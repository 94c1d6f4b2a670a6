//! Limits encoding to a share of one core, measured over a short and a long window: bursts pass,
//! lasting load does not.

/// The short window. It may use four times the share, so that a burst of messages is encoded.
const SHORT_NS: u64 = 20_000_000;
const BURST: f64 = 4.0;
/// The long window: people watch load over seconds.
const LONG_NS: u64 = 10_000_000_000;

/// Budget of CPU time.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    share: f64,
    short: Window,
    long: Window,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    start_ns: u64,
    spent_ns: u64,
}

impl Window {
    fn turn(&mut self, now_ns: u64, len_ns: u64) {
        let start_ns = now_ns - now_ns % len_ns;
        if start_ns != self.start_ns {
            *self = Self { start_ns, spent_ns: 0 };
        }
    }
}

impl Quota {
    /// A budget of `share` of one core, 0 to 1.
    pub fn new(share: f64) -> Self {
        Self { share: share.clamp(0.0, 1.0), short: Window::default(), long: Window::default() }
    }

    /// Whether `cost_ns` more may be spent at `now_ns`.
    pub fn allows(&mut self, now_ns: u64, cost_ns: u64) -> bool {
        self.short.turn(now_ns, SHORT_NS);
        self.long.turn(now_ns, LONG_NS);
        let within = |window: Window, share: f64, len_ns: u64| {
            window.spent_ns.saturating_add(cost_ns) as f64 <= share * len_ns as f64
        };
        within(self.short, (BURST * self.share).min(1.0), SHORT_NS) && within(self.long, self.share, LONG_NS)
    }

    /// Records `cost_ns` as spent.
    pub fn spend(&mut self, cost_ns: u64) {
        self.short.spent_ns = self.short.spent_ns.saturating_add(cost_ns);
        self.long.spent_ns = self.long.spent_ns.saturating_add(cost_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests 10 us every 20 us: half a core.
    fn spent_share(share: f64, ns: u64) -> f64 {
        let (mut quota, mut spent) = (Quota::new(share), 0u64);
        for now in (0..ns).step_by(20_000) {
            if quota.allows(now, 10_000) {
                quota.spend(10_000);
                spent += 10_000;
            }
        }
        spent as f64 / ns as f64
    }

    #[test]
    fn lasting_load_keeps_to_the_share_and_bursts_pass() {
        assert!((spent_share(0.05, 100_000_000_000) - 0.05).abs() < 0.002);
        assert!((spent_share(0.05, 1_000_000_000) - 0.2).abs() < 0.01, "four times as much for a second");
        assert!((spent_share(1.0, 1_000_000_000) - 0.5).abs() < 0.01);
        assert_eq!(spent_share(0.0, 1_000_000_000), 0.0);
    }
}
