//! Packet loss: independent, or in bursts by the Gilbert-Elliott model.

use crate::rng::Rng;

/// A two-state loss model. A link is good or bad. Before each packet the state may change; the
/// packet is lost with the probability of the state. Independent loss is the case without a bad
/// state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Probability of a change from good to bad, and back.
    pub(crate) enter: f64,
    pub(crate) leave: f64,
    pub(crate) in_good: f64,
    pub(crate) in_bad: f64,
}

impl Loss {
    /// No loss.
    pub const NONE: Self = Self::independent(0.0);

    /// Each packet is lost with probability `share` (0 to 1), independently of the others.
    pub const fn independent(share: f64) -> Self {
        Self { enter: 0.0, leave: 1.0, in_good: share, in_bad: share }
    }

    /// Bursts of `mean_len` packets on average, all of them lost, such that `share` of all packets is. `None` if the
    /// gaps between bursts would have to be shorter than one packet.
    pub fn bursts(share: f64, mean_len: f64) -> Option<Self> {
        let leave = 1.0 / mean_len;
        let enter = share * leave / (1.0 - share);
        (mean_len >= 1.0 && share < 1.0 && enter <= 1.0).then_some(Self { enter, leave, in_good: 0.0, in_bad: 1.0 })
    }

    /// The four probabilities of the model. All are within 0 to 1.
    pub const fn gilbert_elliott(enter: f64, leave: f64, in_bad: f64, in_good: f64) -> Self {
        Self { enter, leave, in_good, in_bad }
    }

    /// The share of packets that is lost in the long run.
    pub fn share(&self) -> f64 {
        let changes = self.enter + self.leave;
        let bad = if changes > 0.0 { self.enter / changes } else { 0.0 };
        self.in_good * (1.0 - bad) + self.in_bad * bad
    }
}

/// Loss state of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    rng: Rng,
    bad: bool,
}

impl Losses {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { rng: Rng(seed), bad: false }
    }

    /// Whether the next packet is lost.
    pub(crate) fn next(&mut self, loss: &Loss) -> bool {
        if loss.enter > 0.0 || self.bad {
            let change = if self.bad { loss.leave } else { loss.enter };
            self.bad ^= self.rng.unit() < change;
        }
        let share = if self.bad { loss.in_bad } else { loss.in_good };
        share > 0.0 && self.rng.unit() < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 200_000;

    fn draw(loss: Loss) -> Vec<bool> {
        let mut losses = Losses::new(7);
        (0..PACKETS).map(|_| losses.next(&loss)).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64
    }

    /// The mean length of a run of losses.
    fn mean_run(lost: &[bool]) -> f64 {
        let runs = lost.chunk_by(|a, b| a == b).filter(|run| run[0]);
        let lens: Vec<_> = runs.map(<[bool]>::len).collect();
        lens.iter().sum::<usize>() as f64 / lens.len() as f64
    }

    #[test]
    fn independent_losses_have_their_share_and_no_memory() {
        for p in [0.001, 0.01, 0.3] {
            let lost = draw(Loss::independent(p));
            // Four standard deviations of a binomial. The seed is fixed, so the test is not flaky.
            let tolerance = 4.0 * (p * (1.0 - p) / PACKETS as f64).sqrt();
            assert!((share(&lost) - p).abs() < tolerance, "{p}: {}", share(&lost));
            assert!((mean_run(&lost) - 1.0 / (1.0 - p)).abs() < 0.05, "{p}: {}", mean_run(&lost));
        }
        assert!(draw(Loss::NONE).iter().all(|lost| !lost));
        assert!(draw(Loss::independent(1.0)).iter().all(|lost| *lost));
    }

    #[test]
    fn bursts_have_their_share_and_their_mean_length() {
        for (p, len) in [(0.01, 4.0), (0.05, 10.0), (0.2, 2.0)] {
            let lost = draw(Loss::bursts(p, len).unwrap());
            assert!((share(&lost) / p - 1.0).abs() < 0.1, "{p} {len}: {}", share(&lost));
            assert!((mean_run(&lost) / len - 1.0).abs() < 0.1, "{p} {len}: {}", mean_run(&lost));
        }
    }

    #[test]
    fn the_whole_model_has_the_share_that_it_says() {
        let loss = Loss::gilbert_elliott(0.02, 0.2, 0.5, 0.001);
        assert!((share(&draw(loss)) / loss.share() - 1.0).abs() < 0.1);
    }

    #[test]
    fn bursts_that_cannot_be_are_refused() {
        assert_eq!(Loss::bursts(0.9, 1.0), None);
        assert_eq!(Loss::bursts(1.0, 5.0), None);
        assert_eq!(Loss::bursts(0.1, 0.5), None);
    }

    #[test]
    fn a_bad_state_ends_when_the_model_is_taken_away() {
        let mut losses = Losses::new(1);
        assert!((0..50).all(|_| losses.next(&Loss::gilbert_elliott(1.0, 0.0, 1.0, 0.0))));
        assert!((0..50).all(|_| !losses.next(&Loss::NONE)));
    }
}
