//! Link traces: the times at which a link could deliver a packet, in mahimahi's text format.

use std::sync::{Arc, OnceLock};

use crate::rng::Rng;

/// Bytes that one opportunity delivers: a full Ethernet packet. Bytes that a packet leaves unused
/// go to the packets queued behind it, or are wasted if there are none.
pub(crate) const OPPORTUNITY_BYTES: u64 = 1500;
/// Limit on opportunities: enough for an hour at 30 Mbit/s, not for a day at 1 Gbit/s.
const OPPORTUNITIES_MAX: usize = 10_000_000;

/// A link trace. As text it has one line for each opportunity: milliseconds since the start, never
/// falling. The last one is also the length of the trace, which repeats for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    times_ms: Vec<u32>,
}

impl Trace {
    /// Parses a trace; skips lines that are empty or begin with `#`.
    ///
    /// # Errors
    /// A message that names the line, if times fall or are not whole ms, if there are too many, or
    /// if the trace has no length.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut times_ms: Vec<u32> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let time = line.parse().map_err(|_| format!("line {}: '{line:.20}' is not a time in whole ms", i + 1))?;
            if times_ms.last().is_some_and(|last| *last > time) {
                return Err(format!("line {}: {time} ms comes after a later time", i + 1));
            }
            if times_ms.len() == OPPORTUNITIES_MAX {
                return Err(format!("more than {OPPORTUNITIES_MAX} opportunities"));
            }
            times_ms.push(time);
        }
        match times_ms.last() {
            None => Err("no opportunity in it".into()),
            Some(0) => Err("it ends at 0 ms, so it has no length".into()),
            Some(_) => Ok(Self { times_ms }),
        }
    }

    /// A synthetic cellular link, not a recording. Packets are a Poisson process whose rate wanders
    /// around `mean_per_s` (a mean-reverting walk of its logarithm, steps of 20 ms, half-life of
    /// about 2 s, standard deviation of about 0.5) and has outages (once in 15 s, for 0.4 s on
    /// average).
    pub fn synthetic_cellular(mean_per_s: f64, seed: u64) -> Self {
        const LENGTH_MS: u32 = 60_000;
        const STEP_MS: u32 = 20;
        const PULL: f64 = 0.007;
        const STEP_DEVIATION: f64 = 0.06;
        let mut rng = Rng(seed);
        let mut times_ms = Vec::new();
        let (mut log, mut silent_ms) = (0.0f64, 0.0f64);
        for ms in 0..LENGTH_MS {
            if ms % STEP_MS == 0 {
                log += STEP_DEVIATION * rng.normal() - PULL * log;
                if silent_ms <= 0.0 && rng.unit() < f64::from(STEP_MS) / 15_000.0 {
                    silent_ms = -400.0 * (1.0 - rng.unit()).ln();
                }
            }
            silent_ms -= 1.0;
            if silent_ms > 0.0 {
                continue;
            }
            // Poisson by Knuth's product; the mean is a few packets per ms at most.
            let stop = (-mean_per_s / 1000.0 * log.exp()).exp();
            let mut product = rng.unit();
            while product > stop {
                times_ms.push(ms);
                product *= rng.unit();
            }
        }
        // The trace has the same length whatever the last packets were.
        times_ms.push(LENGTH_MS);
        Self { times_ms }
    }

    /// Downlink trace of the profile `lte-trace`: about 12 Mbit/s.
    pub fn lte_down() -> Arc<Self> {
        static TRACE: OnceLock<Arc<Trace>> = OnceLock::new();
        TRACE.get_or_init(|| Arc::new(Self::synthetic_cellular(1000.0, 12))).clone()
    }

    /// Uplink trace of the profile `lte-trace`: about 5 Mbit/s.
    pub fn lte_up() -> Arc<Self> {
        static TRACE: OnceLock<Arc<Trace>> = OnceLock::new();
        TRACE.get_or_init(|| Arc::new(Self::synthetic_cellular(420.0, 5))).clone()
    }

    /// Mean rate in bits per second.
    pub fn mean_bits_per_s(&self) -> f64 {
        self.times_ms.len() as f64 * OPPORTUNITY_BYTES as f64 * 8.0 / (self.period_ns() as f64 / 1e9)
    }

    /// The trace in the format that [`Self::parse`] reads.
    pub fn to_text(&self) -> String {
        self.times_ms.iter().map(|t| format!("{t}\n")).collect()
    }

    /// Length of the trace in nanoseconds.
    pub fn period_ns(&self) -> u64 {
        self.times_ms.last().map_or(1, |t| u64::from(*t) * 1_000_000)
    }

    /// Time of opportunity `index`, counted over all repetitions.
    pub(crate) fn time_ns(&self, index: u64) -> u64 {
        let n = self.times_ms.len() as u64;
        index / n * self.period_ns() + u64::from(self.times_ms[(index % n) as usize]) * 1_000_000
    }

    /// The first opportunity at `ns` or later.
    pub(crate) fn first_at(&self, ns: u64) -> u64 {
        let (n, period) = (self.times_ms.len() as u64, self.period_ns());
        // The last opportunity of one repetition may be the start of the next one.
        let cycle = (ns / period).saturating_sub(u64::from(ns.is_multiple_of(period)));
        let within = ns - cycle * period;
        cycle * n + self.times_ms.partition_point(|t| u64::from(*t) * 1_000_000 < within) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opportunities_are_found_in_every_repetition() {
        let trace = Trace::parse("# a comment\n0\n3\n3\n10\n").unwrap();
        assert_eq!(trace.period_ns(), 10_000_000);
        let times: Vec<_> = (0..9).map(|i| trace.time_ns(i) / 1_000_000).collect();
        assert_eq!(times, [0, 3, 3, 10, 10, 13, 13, 20, 20]);
        for ns in (0..40_000_000).step_by(500_000) {
            let first = trace.first_at(ns);
            assert!(trace.time_ns(first) >= ns, "{ns}");
            assert!(first == 0 || trace.time_ns(first - 1) < ns, "{ns}");
        }
    }

    #[test]
    fn traces_that_are_none_say_why() {
        for (text, why) in [
            ("", "no opportunity"),
            ("# nothing\n", "no opportunity"),
            ("0\n0\n", "no length"),
            ("5\n4\n", "line 2: 4 ms comes after"),
            ("1\nx\n", "line 2: 'x' is not a time"),
            ("-1\n", "line 1: '-1' is not a time"),
            ("1.5\n", "is not a time"),
            ("4294967296\n", "is not a time"),
        ] {
            let error = Trace::parse(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_synthetic_link_is_the_same_everywhere_and_looks_cellular() {
        let trace = Trace::lte_down();
        assert_eq!(*trace, Trace::synthetic_cellular(1000.0, 12));
        assert_eq!(Trace::parse(&trace.to_text()).unwrap(), *trace);
        let mbit = trace.mean_bits_per_s() / 1e6;
        assert!((8.0..18.0).contains(&mbit), "{mbit}");
        // Seconds differ by more than those of a constant link with Poisson arrivals.
        let mut seconds = [0u32; 60];
        for i in 0..trace.times_ms.len() as u64 - 1 {
            seconds[(trace.time_ns(i) / 1_000_000_000) as usize] += 1;
        }
        let (least, most) = (seconds.iter().min().unwrap(), seconds.iter().max().unwrap());
        assert!(*most > least * 2, "{least} {most}");
        assert!(Trace::lte_up().mean_bits_per_s() < trace.mean_bits_per_s());
    }
}
