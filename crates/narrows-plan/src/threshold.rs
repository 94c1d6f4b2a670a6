//! Rates below which compression pays on a link, and its speed-up, in three models.
//!
//! With p the link's rate, c and d the speeds of one core, n and n' cores at the two ends, and
//! r = 1 / ratio, one byte of raw data takes
//!
//! ```text
//! sequential   r/p + 1/(n c) + 1/(n' d)           Kuhn, Kunkel and Ludwig 2016, equation 2
//! pipelined    r/p + 1/min(n c, n' d)             the same text: the two ends at the same time
//! overlapped   max(r/p, 1/(n c), 1/(n' d))        all three at the same time, as Narrows works
//! ```
//!
//! instead of 1/p. Equation 3 of the text solves the first two for the p below which that is less.
//! In the third it is less whenever p < min(n c, n' d), for every ratio above 1.

use crate::interval::Interval;
use crate::method::Method;

/// How encoding, transfer and decoding are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// One after the other.
    Sequential,
    /// Encoding and decoding at the same time, but not during the transfer.
    Pipelined,
    /// All at the same time.
    Overlapped,
}

impl Model {
    /// All models, from the slowest.
    pub const ALL: [Self; 3] = [Self::Sequential, Self::Pipelined, Self::Overlapped];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Pipelined => "pipelined",
            Self::Overlapped => "overlapped",
        }
    }
}

/// Cores that encode at one end and decode at the other. An end that does nothing, as a server that
/// stores what it gets, has infinitely many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cores {
    /// Cores that encode.
    pub encode: f64,
    /// Cores that decode.
    pub decode: f64,
}

impl Cores {
    /// As many at both ends.
    pub fn both(cores: f64) -> Self {
        Self { encode: cores, decode: cores }
    }
}

/// Rate of a link in MB/s below which the method pays; 0 if it never does.
pub fn threshold(model: Model, method: &Method, cores: Cores) -> Interval {
    let (encode, decode) = speeds(method, cores);
    match model {
        Model::Sequential => gain(method) / (encode.inverse() + decode.inverse()),
        Model::Pipelined => encode.min(decode) * gain(method),
        Model::Overlapped => {
            let all = encode.min(decode);
            let pays = |ratio: f64, rate: f64| if ratio > 1.0 { rate } else { 0.0 };
            let ratio = method.ratio;
            Interval {
                low: pays(ratio.low, all.low),
                value: pays(ratio.value, all.value),
                high: pays(ratio.high, all.high),
            }
        }
    }
}

/// Rate of a link in MB/s up to which the overlapped model reaches the whole ratio.
pub fn full_rate(method: &Method, cores: Cores) -> Interval {
    let (encode, decode) = speeds(method, cores);
    encode.min(decode) / method.ratio
}

/// How many times as fast raw data crosses a link of `rate` MB/s.
pub fn multiplier(model: Model, method: &Method, rate: f64, cores: Cores) -> Interval {
    let (encode, decode) = speeds(method, cores);
    let own = |speed: Interval| speed.inverse() * rate;
    let left = method.left();
    match model {
        Model::Sequential => (left + own(encode) + own(decode)).inverse(),
        Model::Pipelined => (left + own(encode.min(decode))).inverse(),
        Model::Overlapped => left.inverse().min(encode / rate).min(decode / rate),
    }
}

/// 1 - 1/ratio: the part of the transfer that is saved.
fn gain(method: &Method) -> Interval {
    (Interval::exact(1.0) - method.left()).at_least(0.0)
}

fn speeds(method: &Method, cores: Cores) -> (Interval, Interval) {
    (method.encode_mb_per_s * cores.encode, method.decode_mb_per_s * cores.decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_threshold_it_pays_and_above_it_does_not() {
        let method = Method::exact("lz4fast", 2945.0, 6460.0, 1.825);
        for model in Model::ALL {
            for n in [1.0, 24.0] {
                let cores = Cores::both(n);
                let at = threshold(model, &method, cores).value;
                assert!(multiplier(model, &method, at * 0.99, cores).value > 1.0, "{model:?} {n}");
                assert!(multiplier(model, &method, at * 1.01, cores).value < 1.0, "{model:?} {n}");
            }
        }
        let full = full_rate(&method, Cores::both(1.0)).value;
        assert!((multiplier(Model::Overlapped, &method, full * 0.999, Cores::both(1.0)).value - 1.825).abs() < 1e-9);
    }

    #[test]
    fn what_does_not_shrink_never_pays() {
        let method = Method { ratio: Interval::new(0.9, 1.0, 1.1), ..Method::exact("x", 100.0, 100.0, 1.0) };
        for model in Model::ALL {
            let at = threshold(model, &method, Cores::both(1.0));
            assert_eq!((at.low, at.value), (0.0, 0.0), "{model:?}");
            assert!(at.high > 0.0, "{model:?}");
        }
        assert_eq!(multiplier(Model::Sequential, &Method::none(), 5.0, Cores::both(1.0)).value, 1.0);
    }

    #[test]
    fn an_end_without_work_costs_nothing() {
        let method = Method::exact("x", 100.0, 1.0, 2.0);
        let cores = Cores { encode: 1.0, decode: f64::INFINITY };
        assert!((multiplier(Model::Sequential, &method, 100.0, cores).value - 1.0 / 1.5).abs() < 1e-12);
    }
}
