//! Cells of the grid: a pool, a length, a link, cores, and a scenario of changes during the
//! transfer.

use std::str::FromStr;

use narrows::oracle::Speed;
use narrows_sim::judge;
use narrows_sim::rng::Rng;
use narrows_sim::table::Table;
use narrows_sim::world::Conditions;

/// Decoding cores, unless the scenario says otherwise.
const DECODERS: usize = 4;
/// Steps of a changing speed: enough for a transfer that takes many times longer than expected.
const STEPS: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Flat,
    Up10,
    Down10,
    Square,
    Jitter,
    Cpu3,
    Slowrx,
    Slowrx3,
}

/// Scenarios with their names on the command line.
pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("flat", Scenario::Flat),
    ("up10", Scenario::Up10),
    ("down10", Scenario::Down10),
    ("square", Scenario::Square),
    ("jitter", Scenario::Jitter),
    ("cpu3", Scenario::Cpu3),
    ("slowrx", Scenario::Slowrx),
    ("slowrx3", Scenario::Slowrx3),
];

impl FromStr for Scenario {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = || SCENARIOS.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
        SCENARIOS.iter().find(|n| n.0 == s).map(|n| n.1).ok_or_else(|| format!("expected one of {}", known()))
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = SCENARIOS.iter().find(|n| n.1 == *self).map_or("", |n| n.0);
        f.write_str(name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// Index of the table.
    pub(crate) table: usize,
    pub(crate) rate_mbit: f64,
    pub(crate) cores: usize,
    pub(crate) len: usize,
    pub(crate) scenario: Scenario,
}

impl Cell {
    fn rate(&self) -> f64 {
        self.rate_mbit * 125_000.0
    }

    /// The conditions of this cell in virtual time. Changes happen at fixed shares of the time that
    /// the average link would need.
    pub(crate) fn conditions(&self, table: &Table, decision_ns: f64, block_max: usize) -> Conditions {
        let rate = self.rate();
        let one = Speed::constant(1.0);
        let mut conditions = Conditions {
            len: self.len,
            cores: self.cores,
            decoders: DECODERS,
            link: Speed::constant(rate),
            cpu: one.clone(),
            receiver: one,
            block_max,
            decision_ns,
            seed: 1,
            trace: false,
            expected_link: None,
        };
        let half = 10f64.sqrt();
        let (low, high) = (rate / half, rate * half);
        let whole_s = || judge::relaxed(table, self.len, &conditions.machine(), 2);
        match self.scenario {
            Scenario::Flat => {}
            Scenario::Up10 => conditions.link = Speed::steps(&[(0.0, low), (0.8 * whole_s(), high)]),
            Scenario::Down10 => conditions.link = Speed::steps(&[(0.0, high), (0.15 * whole_s(), low)]),
            Scenario::Square => conditions.link = alternate(0.25 * whole_s(), high, low),
            Scenario::Cpu3 => conditions.cpu = alternate(0.3 * whole_s(), 1.0, 0.33),
            Scenario::Jitter => conditions.link = jitter((whole_s() / 200.0).max(0.002), rate),
            Scenario::Slowrx => (conditions.receiver, conditions.decoders) = (Speed::constant(0.1), 1),
            Scenario::Slowrx3 => (conditions.receiver, conditions.decoders) = (Speed::constant(0.3), 1),
        }
        conditions
    }
}

fn alternate(period_s: f64, first: f64, second: f64) -> Speed {
    let steps: Vec<_> =
        (0..STEPS).map(|i| (i as f64 * period_s, if i.is_multiple_of(2) { first } else { second })).collect();
    Speed::steps(&steps)
}

/// Log-normal noise of sigma 0.3 around the rate.
fn jitter(period_s: f64, rate: f64) -> Speed {
    let mut rng = Rng(99);
    let steps: Vec<_> =
        (0..4 * STEPS).map(|i| (i as f64 * period_s, rate * (0.3 * rng.normal() - 0.045).exp())).collect();
    Speed::steps(&steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_read_as_they_print() {
        for (name, scenario) in SCENARIOS {
            assert_eq!(name.parse(), Ok(*scenario));
            assert_eq!(scenario.to_string(), *name);
        }
        assert!("sideways".parse::<Scenario>().is_err());
    }
}
