//! Comparison of a dictionary with none: some messages are encoded without it too, and a dictionary
//! that does not pay is put aside for a while. Data change, and a dictionary of other data is worse
//! than none.

/// The first messages are encoded both ways, then every sixteenth: that costs 6 % of the encoder's
/// time, and a dictionary that has gone bad is noticed within 50 messages.
const FIRST: u32 = 8;
const EVERY: u32 = 16;
const GAIN: f32 = 0.5;
/// Ratio of the lengths with and without the dictionary above which it does not pay for its slot.
const PAYS: f32 = 0.98;
/// Messages until it is tried again; doubled each time up to the maximum.
const AWAY_FIRST: u32 = 64;
const AWAY_MAX: u32 = 4096;

/// Statistics of the dictionary in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    seen: u32,
    /// Moving average of the length with the dictionary / the length without it.
    share: f32,
    /// Messages until it is tried again; 0 while it is used.
    away: u32,
    next_away: u32,
}

/// How to encode the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    With,
    Without,
    /// Encode both ways, send the shorter, and report both lengths.
    Both,
}

impl Default for Comparison {
    fn default() -> Self {
        Self { seen: 0, share: 1.0, away: 0, next_away: AWAY_FIRST }
    }
}

impl Comparison {
    pub(super) fn next(&mut self) -> Use {
        if self.away > 0 {
            self.away -= 1;
            return Use::Without;
        }
        self.seen += 1;
        if self.seen <= FIRST || self.seen.is_multiple_of(EVERY) { Use::Both } else { Use::With }
    }

    pub(super) fn compared(&mut self, with: usize, without: usize) {
        let share = with as f32 / without.max(1) as f32;
        self.share = if self.seen <= 1 { share } else { self.share + GAIN * (share - self.share) };
        if self.share > PAYS && (self.seen == FIRST || self.seen.is_multiple_of(EVERY)) {
            (self.away, self.next_away) = (self.next_away, (self.next_away * 2).min(AWAY_MAX));
            self.seen = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes sent for `n` messages that have 100 bytes without the dictionary and `with(i)` with
    /// it.
    fn sent(comparison: &mut Comparison, n: usize, with: impl Fn(usize) -> usize) -> usize {
        let mut total = 0;
        for i in 0..n {
            total += match comparison.next() {
                Use::With => with(i),
                Use::Without => 100,
                Use::Both => {
                    comparison.compared(with(i), 100);
                    with(i).min(100)
                }
            };
        }
        total
    }

    #[test]
    fn a_wrong_or_stale_dictionary_costs_less_than_two_per_cent() {
        assert!(sent(&mut Comparison::default(), 1000, |_| 117) <= 102_000);
        assert!(sent(&mut Comparison::default(), 1000, |i| if i < 200 { 50 } else { 120 }) <= 91_000);
    }

    #[test]
    fn a_good_one_is_used_and_one_that_becomes_good_too() {
        assert!(sent(&mut Comparison::default(), 1000, |_| 40) <= 40_500);
        let mut comparison = Comparison::default();
        sent(&mut comparison, 300, |_| 130);
        assert!(sent(&mut comparison, 2000, |_| 40) < 120_000);
    }
}
