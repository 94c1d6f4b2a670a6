//! Account of seconds that decides when to search for repeats.

/// Share of the time of the cores that encode which the search may take whatever it finds. On data
/// without repeats a flow that is bound by its CPU loses this much.
const SHARE: f64 = 0.02;
/// Share of the time of one core which it may take while the link is busy, less the time in which the
/// link is dry: cores that wait for the link cost little. At first it is more, since what comes later
/// can only repeat what was seen.
const BUSY_SHARE: f64 = 0.05;
const BUSY_SHARE_FIRST: f64 = 0.25;
/// How much the search may have taken without gain while it has the first share, in ns: some 40 MiB.
const FIRST_NS: f64 = 60e6;
/// With which the account begins, and from which on a search that rested goes on, in ns: some 8 MiB
/// are then looked at in one go, since to find a repeat its beginning must have been seen.
const BEGIN_NS: f64 = 8e6;
/// Most on the account, in ns: as much is lost after the last repeat of a flow.
const MOST_NS: f64 = 200e6;

/// An account of the seconds that a search for repeats takes, and those of the link that it saves.
#[derive(Debug)]
pub struct Judge {
    cores: f64,
    account_ns: f64,
    /// What the search took beyond what it saved.
    lost_ns: f64,
    last_ns: u64,
    /// Until when the link was busy, and dry, in all.
    last_busy_ns: u64,
    last_dry_ns: u64,
    resting: bool,
}

impl Judge {
    /// For a flow that `cores` cores encode.
    pub fn new(cores: usize) -> Self {
        Self {
            cores: cores.max(1) as f64,
            account_ns: BEGIN_NS,
            lost_ns: 0.0,
            last_ns: 0,
            last_busy_ns: 0,
            last_dry_ns: 0,
            resting: false,
        }
    }

    /// Whether to search the next piece. `now_ns`: the flow's clock; `busy_ns` and `dry_ns`: how
    /// long the link was busy with the flow's bytes since it began, and how long it had none
    /// although some were there.
    pub fn allows(&mut self, now_ns: u64, busy_ns: u64, dry_ns: u64) -> bool {
        let passed = |last: &mut u64, now: u64| {
            let passed = now.saturating_sub(*last);
            *last = now.max(*last);
            passed as f64
        };
        let all_ns = passed(&mut self.last_ns, now_ns);
        let busy_ns = passed(&mut self.last_busy_ns, busy_ns);
        let dry_ns = passed(&mut self.last_dry_ns, dry_ns);
        let share = if self.lost_ns < FIRST_NS { BUSY_SHARE_FIRST } else { BUSY_SHARE };
        self.add(all_ns * SHARE * self.cores + (busy_ns * share - dry_ns).max(0.0));
        self.resting = self.account_ns < if self.resting { BEGIN_NS } else { 0.0 };
        !self.resting
    }

    /// The search took `spent_ns` of CPU time and found `repeated` raw bytes, which would have taken
    /// `wire_share` times as many bytes of a link of `rate_bytes_per_s`.
    pub fn learn(&mut self, spent_ns: u64, repeated: u64, wire_share: f64, rate_bytes_per_s: f64) {
        let saved_ns = repeated as f64 * wire_share.clamp(0.0, 1.0) / rate_bytes_per_s.max(1.0) * 1e9;
        self.lost_ns = (self.lost_ns + spent_ns as f64 - saved_ns).max(0.0);
        self.add(saved_ns - spent_ns as f64);
    }

    /// The search kept the flow waiting for `ns` beyond its CPU time: cores that others use make it
    /// take longer.
    pub fn waited(&mut self, ns: u64) {
        self.lost_ns += ns as f64;
        self.add(-(ns as f64));
    }

    fn add(&mut self, ns: f64) {
        self.account_ns = (self.account_ns + ns).min(MOST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU time spent in `seconds` of a flow whose pieces take 100 us each to look at and to come.
    fn spent(seconds: u64, repeated: u64, rate: f64) -> u64 {
        let mut judge = Judge::new(2);
        (0..seconds * 10_000)
            .map(|i| {
                let on = judge.allows(i * 100_000, 0, 0);
                if on {
                    judge.learn(100_000, repeated, 0.5, rate);
                }
                u64::from(on) * 100_000
            })
            .sum()
    }

    #[test]
    fn without_repeats_it_takes_its_share_and_with_them_all_it_needs() {
        let none = spent(10, 0, 1e6);
        assert!((200_000_000..=420_000_000).contains(&none), "{none}");
        assert_eq!(spent(10, 100_000, 100e6), 10_000_000_000);
        // On a link of 10 GB/s the same repeats save less than they cost.
        let fast = spent(10, 100_000, 10e9);
        assert!(fast < 460_000_000, "{fast}");
    }

    #[test]
    fn it_searches_in_long_spans() {
        let mut judge = Judge::new(1);
        let on: Vec<bool> = (0..100_000)
            .map(|i| {
                let on = judge.allows(i * 100_000, 0, 0);
                judge.learn(if on { 100_000 } else { 0 }, 0, 1.0, 1e6);
                on
            })
            .collect();
        let changes = on.windows(2).filter(|w| w[0] != w[1]).count();
        assert!(on.iter().any(|on| *on) && (2..=60).contains(&changes), "{changes}");
    }

    #[test]
    fn after_the_last_repeat_it_soon_rests() {
        let mut judge = Judge::new(1);
        for i in 0..100_000u64 {
            assert!(judge.allows(i * 1000, 0, 0));
            judge.learn(1000, 1 << 20, 1.0, 1e6);
        }
        let more = (0..)
            .take_while(|_| {
                judge.learn(1_000_000, 0, 1.0, 1e6);
                judge.allows(100_000_000, 0, 0)
            })
            .count();
        assert!(more <= 201, "{more} ms");
    }

    #[test]
    fn where_others_use_the_cores_it_takes_its_share_of_the_time_not_of_their_cpu() {
        let mut judge = Judge::new(2);
        let on = (0..10_000u64).filter(|i| {
            // Each search takes 10 ms for 1 ms of CPU time, and nothing else goes on.
            let on = judge.allows(i * 10_000_000, 0, 0);
            if on {
                judge.learn(1_000_000, 0, 1.0, 1e6);
                judge.waited(9_000_000);
            }
            on
        });
        let on = on.count();
        assert!((300..=450).contains(&on), "{on} of 10,000");
    }

    #[test]
    fn while_the_link_is_busy_it_takes_more_and_nothing_more_when_it_is_dry() {
        let spent = |dry_percent: u64| {
            let mut judge = Judge::new(1);
            let on = (0..100_000u64).filter(|i| {
                let on = judge.allows(i * 100_000, i * (100_000 - 1000 * dry_percent), i * 1000 * dry_percent);
                judge.learn(if on { 100_000 } else { 0 }, 0, 1.0, 1e6);
                on
            });
            on.count()
        };
        // 7 % of the time, and the first 0.06 s sooner than that.
        assert!((7000..8200).contains(&spent(0)), "{}", spent(0));
        assert!((1900..2300).contains(&spent(30)), "{}", spent(30));
    }
}
