//! Figures from round trips, by the equations of the paper (Lossless Message Compression,
//! Malardalen 2013): B = Dc / t (3), Be = D / t (4), Q = tUC / tA (5), BeA = Q B (6).

use std::collections::BTreeMap;

/// All round trips of one method over one set of messages.
#[derive(Debug, Default)]
pub struct Trips {
    /// Round-trip times in nanoseconds, by round and message.
    pub ns: Vec<Vec<u64>>,
    /// Raw bytes in both directions.
    pub raw_bytes: u64,
    /// Wire bytes in both directions.
    pub wire_bytes: u64,
    /// Wire bytes of the replies.
    pub back_bytes: u64,
    /// Number of messages by encoding.
    pub mix: BTreeMap<String, u64>,
}

/// The printed figures of one method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// Mean over the messages of the median of each message over the rounds, on which a disturbed
    /// round has little influence.
    pub round_trip_us: f64,
    pub ratio: f64,
    /// Raw bytes of one direction divided by the time of one direction, half a round trip.
    pub goodput_bytes_per_s: f64,
    pub throughput_bytes_per_s: f64,
}

impl Trips {
    /// Computes the figures.
    pub fn figures(&self) -> Figures {
        let mut all: Vec<u64> = self.ns.concat();
        all.sort_unstable();
        let messages = self.ns.iter().map(Vec::len).min().unwrap_or(0);
        let medians = (0..messages).map(|i| {
            let mut of: Vec<u64> = self.ns.iter().map(|round| round[i]).collect();
            of.sort_unstable();
            (of[(of.len() - 1) / 2] + of[of.len() / 2]) as f64 / 2.0
        });
        let round_trip_us = medians.sum::<f64>() / messages.max(1) as f64 * 1e-3;
        let directions = 2.0 * all.len().max(1) as f64;
        let one_way_s = (round_trip_us / 2.0 * 1e-6).max(1e-12);
        let (raw, wire) = (self.raw_bytes as f64, self.wire_bytes as f64);
        Figures {
            p50_us: percentile(&all, 0.5),
            p90_us: percentile(&all, 0.9),
            p99_us: percentile(&all, 0.99),
            round_trip_us,
            ratio: raw / wire.max(1.0),
            goodput_bytes_per_s: raw / directions / one_way_s,
            throughput_bytes_per_s: wire / directions / one_way_s,
        }
    }
}

/// The percentile of sorted times in nanoseconds (nearest rank), in microseconds.
fn percentile(sorted: &[u64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).map_or(0.0, |ns| *ns as f64 * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_equations_of_the_text() {
        // 100 messages of 1000 bytes that take 400 bytes on the wire, 80 us to and fro.
        let rounds = vec![vec![80_000; 100]; 3];
        let trips = Trips { ns: rounds, raw_bytes: 2 * 3 * 100_000, wire_bytes: 2 * 3 * 40_000, ..Trips::default() };
        let f = trips.figures();
        assert_eq!((f.p50_us, f.p99_us, f.round_trip_us, f.ratio), (80.0, 80.0, 80.0, 2.5));
        assert!((f.goodput_bytes_per_s - 25e6).abs() < 1.0 && (f.throughput_bytes_per_s - 10e6).abs() < 1.0);
    }

    #[test]
    fn a_disturbed_round_changes_percentiles_and_not_the_goodput() {
        let mut rounds = vec![vec![10_000; 10]; 3];
        rounds[1][4] = 5_000_000;
        let f = Trips { ns: rounds, ..Trips::default() }.figures();
        assert_eq!((f.p50_us, f.p90_us, f.p99_us, f.round_trip_us), (10.0, 10.0, 5000.0, 10.0));
        let nothing = Trips::default().figures();
        assert!(nothing.round_trip_us == 0.0 && nothing.ratio == 0.0 && nothing.goodput_bytes_per_s == 0.0);
    }
}
