//! Lines about strangers: everyone may connect to a server, and its log has an end.

use std::time::{Duration, Instant};

/// Lines in a second, as many as a tunnel has of one host. A person who looks for a fault sees enough of them.
const LINES_PER_S: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

/// What was told within a second, which begins with a line.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Option<Instant>,
    told: u32,
    more: u64,
}

impl Lines {
    /// Whether a line may be told. Otherwise it is counted.
    pub fn may_tell(&mut self, now: Instant) -> bool {
        self.begun.get_or_insert(now);
        let may = self.told < LINES_PER_S;
        if may {
            self.told += 1;
        } else {
            self.more += 1;
        }
        may
    }

    /// How many were not told, when the second is over: to be asked for before the next line, and now and then.
    pub fn left_out(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.begun.is_some_and(|begun| now.saturating_duration_since(begun) >= SECOND);
        is_over.then(|| std::mem::take(self).more).filter(|more| *more > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_some_lines_in_a_second_and_then_one_that_counts_the_others() {
        let mut lines = Lines::default();
        let begun = Instant::now();
        let told = |lines: &mut Lines, at| (0..500).filter(|_| lines.may_tell(begun + at)).count() as u32;
        assert_eq!(told(&mut lines, Duration::ZERO), LINES_PER_S);
        assert_eq!(lines.left_out(begun + SECOND / 2), None);
        assert_eq!(lines.left_out(begun + SECOND), Some(500 - u64::from(LINES_PER_S)));
        assert_eq!(lines.left_out(begun + 9 * SECOND), None);
        assert_eq!(told(&mut lines, 9 * SECOND), LINES_PER_S, "a second of its own");
    }
}
