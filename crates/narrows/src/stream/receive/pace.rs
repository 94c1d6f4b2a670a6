//! Pace at which bytes arrive.

use std::time::Duration;

/// The speed of a link, for the decision to wait for more of it at a time. A program that writes a
/// pipe wakes its reader with every write; on few cores that costs more than the bytes.
#[derive(Default)]
pub(super) struct Pace {
    since_ns: u64,
    bytes: u64,
    fast: bool,
}

impl Pace {
    /// A pipe of 1 MiB takes 10 GB/s meanwhile.
    pub(super) const PAUSE: Duration = Duration::from_micros(100);
    /// Time over which the speed is measured.
    const SPAN_NS: u64 = 1_000_000;
    /// In bytes of a span: 400 MB/s.
    const FAST_BYTES: u64 = 400_000;

    /// Takes a read; returns whether the latest span was fast.
    pub(super) fn is_fast(&mut self, read: usize, now_ns: u64) -> bool {
        self.bytes += read as u64;
        let span_ns = now_ns.saturating_sub(self.since_ns);
        if span_ns >= Self::SPAN_NS {
            self.fast = self.bytes as f64 / span_ns as f64 > Self::FAST_BYTES as f64 / Self::SPAN_NS as f64;
            (self.since_ns, self.bytes) = (now_ns, 0);
        }
        self.fast
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause is for links that fill their pipe within it, and ends with their speed.
    #[test]
    fn only_the_speed_of_memory_is_fast() {
        for (read, fast) in [(12_500, false), (39_000, false), (41_000, true), (200_000, true)] {
            let mut pace = Pace::default();
            let all: Vec<_> = (0..50u64).map(|turn| pace.is_fast(read, turn * 100_000)).collect();
            assert!(!all[0] && all[30..].iter().all(|is| *is == fast), "{read}");
            assert!(!pace.is_fast(read, 50_000_000), "after a silence");
        }
    }
}
