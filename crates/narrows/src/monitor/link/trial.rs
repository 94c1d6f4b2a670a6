//! A trial of raw bytes on a connection that nothing has filled yet.
//!
//! Compressed blocks often leave a fast link idle. Then it shows only that it is no slower than
//! they are made, whether it has 1 Gbit/s or 20, and raw blocks may be many times as fast. So once
//! a shaper's burst is behind, some raw blocks are tried.

/// Raw bytes of a trial: three times what a shaper lets through at once.
const TRIAL_BYTES: u64 = 192 << 10;
/// In bytes/s: what a link must carry in a trial to count as faster than 1 Gbit/s, of which a burst
/// of 64 KiB and two thirds of a millisecond are the trial.
const FAST: f64 = 250e6;
/// In bytes/s: below, a trial would take more than some 6 ms.
const TRIED_ABOVE: f64 = 30e6;
/// Acknowledged bytes before the first trial, and the factor by which later ones are further apart:
/// a trial costs a link of 1 Gbit/s about 1 ms, and may fail on a fast one whose host is busy.
const TRIAL_AFTER_BYTES: u64 = 128 << 10;
const TRIAL_GROWTH: u64 = 16;
/// Connections with longer round trips open in steps, of which a trial would see one.
const RTT_MAX_NS: u64 = 2_000_000;
/// Acknowledgements of so many bytes may be on their way.
const ON_THEIR_WAY: u64 = 16 << 10;

#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// When the present trial began, and the bytes that were acknowledged then.
    begun: Option<(u64, u64)>,
    /// Acknowledged bytes from which on the next one may begin.
    next_at: u64,
}

impl Default for Trial {
    fn default() -> Self {
        Self { begun: None, next_at: TRIAL_AFTER_BYTES }
    }
}

/// A connection at a look or a write, and what is believed of it.
pub(super) struct State {
    pub(super) now_ns: u64,
    pub(super) acked: u64,
    pub(super) unacked: u64,
    pub(super) known: bool,
    pub(super) rate_bytes_per_s: f64,
    pub(super) rtt_ns: u64,
}

impl Trial {
    /// Raw bytes of the present trial; 0 if none is on.
    pub(super) fn wanted_bytes(&self) -> u64 {
        if self.begun.is_some() { TRIAL_BYTES } else { 0 }
    }

    /// Begins and ends trials. Returns the rate of one that shows a fast link.
    pub(super) fn observe(&mut self, s: &State) -> Option<f64> {
        let Some((begin_ns, begin_acked)) = self.begun else {
            let idle = s.unacked < ON_THEIR_WAY;
            if !s.known && idle && s.acked >= self.next_at && s.rate_bytes_per_s > TRIED_ABOVE && s.rtt_ns < RTT_MAX_NS
            {
                self.begun = Some((s.now_ns, s.acked));
                self.next_at = s.acked * TRIAL_GROWTH;
            }
            return None;
        };
        let (bytes, ns) = (s.acked - begin_acked, s.now_ns - begin_ns);
        let rate = bytes as f64 / ns.max(1) as f64 * 1e9;
        if bytes < TRIAL_BYTES && (ns as f64) < TRIAL_BYTES as f64 / FAST * 1e9 {
            return None;
        }
        self.begun = None;
        (rate > FAST).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are acknowledged at `rate` after a burst. Returns the times at which a trial is on, in
    /// looks of 50 us, and the rate that it shows.
    fn trial(rate: f64, burst: u64, bytes: u64) -> (usize, Option<f64>) {
        let (mut trial, mut on) = (Trial::default(), 0);
        let mut state =
            State { now_ns: 0, acked: 0, unacked: 0, known: false, rate_bytes_per_s: 60e6, rtt_ns: 100_000 };
        // Compressed blocks, which the link takes at once.
        while state.acked < bytes.min(TRIAL_AFTER_BYTES) {
            (state.now_ns, state.acked) = (state.now_ns + 200_000, state.acked + 8000);
            assert_eq!((trial.observe(&state), on), (None, 0));
            on += usize::from((trial.wanted_bytes() > 0) && state.acked < TRIAL_AFTER_BYTES);
        }
        let begin = (state.now_ns, state.acked);
        for _ in 0..100 {
            state.now_ns += 50_000;
            state.acked = begin.1 + burst + ((state.now_ns - begin.0) as f64 * rate * 1e-9) as u64;
            state.unacked = 50_000;
            on += usize::from(trial.wanted_bytes() > 0);
            if let Some(shown) = trial.observe(&state) {
                return (on, Some(shown));
            }
        }
        (on, None)
    }

    #[test]
    fn a_fast_link_is_found_and_a_shaper_s_burst_is_none() {
        assert!(trial(3e9, 0, u64::MAX).1.is_some_and(|rate| rate > 1e9));
        for rate in [12.5e6, 125e6] {
            let (looks, shown) = trial(rate, 64 << 10, u64::MAX);
            assert_eq!((looks, shown), (16, None), "{rate}: given up after 0.8 ms");
        }
        assert_eq!(trial(3e9, 0, 100_000), (0, None), "before anything was proven");
    }
}
