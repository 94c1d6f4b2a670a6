//! How long to wait before another attempt.

/// The first wait; the peer may only have been restarted.
const FIRST_NS: u64 = 200_000_000;
/// The longest wait: who repairs a network does not want to wait longer.
const MOST_NS: u64 = 30_000_000_000;

/// Waits that double, each shortened at random by up to half, so that many clients of a server that
/// comes back do not all come at once.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure. `random` is any number.
    pub fn next_ns(&mut self, random: u64) -> u64 {
        let longest = FIRST_NS.saturating_mul(1 << self.failures.min(20)).min(MOST_NS);
        self.failures += 1;
        longest - random % (longest / 2 + 1)
    }

    /// It succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_differ() {
        let mut backoff = Backoff::default();
        let longest: Vec<u64> = (0..100).map(|_| backoff.next_ns(0)).collect();
        assert_eq!(longest[..3], [FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS]);
        assert_eq!(longest[99], MOST_NS);
        assert!((MOST_NS / 2..MOST_NS).contains(&backoff.next_ns(u64::MAX / 3)));
        backoff.reset();
        assert_eq!(backoff.next_ns(0), FIRST_NS);
        assert!(Backoff::default().next_ns(FIRST_NS / 2) == FIRST_NS / 2);
    }
}
