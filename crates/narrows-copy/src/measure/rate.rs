//! The steady rate of a link, from when bytes arrived.

/// Shares of the time that are left out at the beginning: a window that opens, and a bucket of tokens
/// that a shaped link lets through at once. The least of them counts after which the rate is the same in
/// both halves of the rest.
const BEGINNINGS: [f64; 4] = [0.25, 0.4, 0.55, 0.7];
/// Difference of the two halves up to which the rate counts as steady.
const STEADY: f64 = 0.08;
/// Pieces of the rest, whose spread is that of the rate.
const PIECES: usize = 6;
/// Fewest arrivals in the rest that say something about the spread.
const ARRIVALS_MIN: usize = 8;
/// Spread of the rate where little is known of it.
const VAGUE: f64 = 0.25;
/// Arrivals that are kept of one direction, one every 10 ms.
const KEPT_MAX: usize = 16 << 10;

/// When how many bytes had arrived: seconds since the first of them, and bytes, both growing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series(Vec<(f64, f64)>);

/// The rate of one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Bytes per second once the link is at its pace.
    pub bytes_per_s: f64,
    /// Standard error of that, as a share of it.
    pub spread: f64,
    /// Whether the pace was the same in both halves of what counts.
    pub steady: bool,
    /// By how much all bytes came later than at that pace from the beginning on, in seconds; negative if
    /// the beginning was faster.
    pub lag_s: f64,
}

impl Series {
    /// Adds an arrival. What does not grow is left out.
    pub fn push(&mut self, seconds: f64, bytes: f64) {
        let (before_s, before) = self.0.last().copied().unwrap_or((0.0, 0.0));
        if seconds.is_finite() && seconds >= before_s && bytes >= before && self.0.len() < KEPT_MAX {
            self.0.push((seconds, bytes));
        }
    }

    /// The arrivals.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Bytes of all arrivals.
    pub fn bytes(&self) -> f64 {
        self.0.last().map_or(0.0, |last| last.1)
    }

    /// Bytes that had arrived at a time, between arrivals in proportion.
    fn at(&self, seconds: f64) -> f64 {
        let after = self.0.partition_point(|p| p.0 < seconds);
        let Some(&(s1, b1)) = self.0.get(after) else { return self.bytes() };
        let (s0, b0) = after.checked_sub(1).map_or((0.0, 0.0), |before| self.0[before]);
        if s1 > s0 { b0 + (b1 - b0) * (seconds - s0) / (s1 - s0) } else { b1 }
    }

    /// When so many bytes had arrived; `None` if that was never.
    pub fn when(&self, bytes: f64) -> Option<f64> {
        let after = self.0.partition_point(|p| p.1 < bytes);
        let &(s1, b1) = self.0.get(after)?;
        let (s0, b0) = after.checked_sub(1).map_or((0.0, 0.0), |before| self.0[before]);
        Some(if b1 > b0 { s0 + (s1 - s0) * (bytes - b0) / (b1 - b0) } else { s1 })
    }

    /// The rate; `None` if too little arrived to tell.
    pub fn rate(&self) -> Option<Rate> {
        let &(end, bytes) = self.0.last()?;
        let first = self.0.first()?;
        if end <= 0.0 || bytes <= first.1 {
            return None;
        }
        let between = |from: f64, to: f64| (self.at(to) - self.at(from)) / (to - from).max(1e-9);
        let of = |share: f64| {
            let from = end * share;
            let middle = (from + end) / 2.0;
            (from, between(from, middle), between(middle, end))
        };
        let is_steady = |(_, one, other): (f64, f64, f64)| (one - other).abs() <= STEADY * one.max(other);
        let steady = BEGINNINGS.into_iter().map(of).find(|halves| is_steady(*halves));
        let (from, ..) = steady.unwrap_or_else(|| of(BEGINNINGS[BEGINNINGS.len() - 1]));
        let rate = between(from, end);
        if rate <= 0.0 {
            return None;
        }
        let arrivals = self.0.len() - self.0.partition_point(|p| p.0 < from);
        let spread = if arrivals < ARRIVALS_MIN {
            VAGUE
        } else {
            let piece = |i: usize| {
                let width = (end - from) / PIECES as f64;
                between(from + width * i as f64, from + width * (i + 1) as f64) / rate - 1.0
            };
            let squares: f64 = (0..PIECES).map(|i| piece(i).powi(2)).sum();
            (squares / (PIECES * (PIECES - 1)) as f64).sqrt()
        };
        let spread = if steady.is_some() { spread } else { spread.max(VAGUE / 2.0) };
        // A delivery in one piece is known when it is over: half of one is not known.
        Some(Rate { bytes_per_s: rate, spread, steady: steady.is_some(), lag_s: end - bytes / rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(arrivals: impl Iterator<Item = f64>) -> Series {
        let mut series = Series::default();
        for (i, bytes) in arrivals.enumerate() {
            series.push(i as f64 * 0.01, bytes);
        }
        series
    }

    #[test]
    fn a_bucket_of_tokens_and_a_window_that_opens_do_not_count() {
        let steady = series((0..200).map(|i| 1000.0 * f64::from(i))).rate().unwrap();
        assert!((steady.bytes_per_s - 1e5).abs() < 1.0 && steady.steady && steady.spread < 1e-6, "{steady:?}");
        // A bucket of half of all bytes, at once.
        let bucket = series((0..200).map(|i| 2e5 + 1000.0 * f64::from(i))).rate().unwrap();
        assert!((bucket.bytes_per_s - 1e5).abs() < 1.0 && bucket.lag_s < -1.9, "{bucket:?}");
        // One that is empty only after 45 % of the time: ten times as fast until then.
        let at = |i: i32| if i < 90 { 1e4 * f64::from(i) } else { 9e5 + 1000.0 * f64::from(i - 90) };
        let late = series((0..200).map(at)).rate().unwrap();
        assert!((late.bytes_per_s - 1e5).abs() < 1.0 && late.steady, "{late:?}");
        // Half a second until the window is open.
        let slow = |i: i32| if i < 50 { 20.0 * f64::from(i) } else { 1000.0 * f64::from(i - 49) };
        let window = series((0..200).map(slow)).rate().unwrap();
        // The first bytes after it opened belong to both.
        assert!((window.bytes_per_s / 1e5 - 1.0).abs() < 0.005 && (0.4..0.6).contains(&window.lag_s), "{window:?}");
    }

    #[test]
    fn what_changes_or_is_little_is_said_to() {
        let falls = series((0..200).map(|i| 1e6 * (1.0 - (-f64::from(i) / 100.0).exp()))).rate().unwrap();
        assert!(!falls.steady && falls.spread > 0.1, "{falls:?}");
        let mut little = Series::default();
        little.push(0.0, 1000.0);
        assert_eq!(little.rate(), None);
        little.push(1.0, 2000.0);
        let rate = little.rate().unwrap();
        assert!((rate.bytes_per_s - 1000.0).abs() < 1.0 && rate.spread >= 0.2, "{rate:?}");
        // Lies and nonsense are left out.
        little.push(0.5, 3000.0);
        little.push(2.0, 1.0);
        little.push(f64::NAN, 9e9);
        assert_eq!(little.points().len(), 2);
    }

    #[test]
    fn the_curve_tells_when_bytes_had_come() {
        let all = series((0..10).map(|i| 100.0 * f64::from(i)));
        assert!((all.when(450.0).unwrap() - 0.045).abs() < 1e-9);
        assert_eq!((all.when(901.0), all.bytes()), (None, 900.0));
    }
}
