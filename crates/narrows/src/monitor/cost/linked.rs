//! Gain and cost of a linked block, which refers to the latest bytes before it.
//!
//! The gain is predicted as a share of the log ratio that the best method reaches on the block
//! alone, by class of length and family of methods, times a scale that every kind of data learns:
//! logs gain twice the usual share, measured values half of it.

use super::METHODS_MAX;
use crate::codec::{CodecId, Codecs, Method};

/// Lengths for which the gains below hold; between them the gain is interpolated over the logarithm
/// of the length.
const LENS: [f32; 4] = [8192.0, 32_768.0, 131_072.0, 524_288.0];

/// Histories that are weighed, in bytes, as far as there are so many: each costs about four times as
/// much as the one before and gains about half as much again.
const HISTORIES: [usize; 4] = [SHORT, 256 << 10, 1 << 20, 2 << 20];
const SHORT: usize = 64 << 10;
/// A history has at most this many times the length of the block: to enter more takes longer than a
/// long block does, which gains more.
const LENGTHS_MAX: usize = 16;

/// Mean gain in log ratio with 64 KiB of history, as a share of the best log ratio without, on the
/// 14 kinds of data of the corpora. Fast LZ4 gains most: it fills its table from the history more
/// densely than from the block.
const GAINS: [[f32; 4]; 4] = [
    [0.22, 0.10, 0.035, 0.010],   // LZ4 with acceleration
    [0.14, 0.065, 0.012, 0.004],  // LZ4
    [0.13, 0.075, 0.035, 0.011],  // zstd
    [0.15, 0.092, 0.038, 0.0125], // zstd from level 5 on
];

/// History for which they were measured. A quarter of it gives about 0.7 times the gain.
const HISTORY_LEN: f32 = SHORT as f32;
const HISTORY_POWER: f32 = 0.25;
/// The same power for longer histories, by class of length: long blocks have found what is near (zstd
/// 3 to 9; `examples/history_cost.rs` on the tuning half of the corpora).
const LONG_POWERS: [f32; 4] = [0.11, 0.19, 0.26, 0.34];

/// Entering a byte of history into the tables takes this share of the time to encode a byte of the
/// block (medians on the same data; the slowest levels of zstd build trees).
const ENTER_SHARE: f32 = 0.55;
const ENTER_SHARE_FAST: f32 = 0.2;
const ENTER_SHARE_LAZY: f32 = 0.42;
const ENTER_SHARE_SLOW: f32 = 1.4;
/// The last levels of zstd that look at one place for each string, which enter no more than 256 KiB
/// and gain nothing by more than 64; and at two, which enter 1 MiB.
const FAST_MAX: i32 = 2;
const TWO_PLACES_MAX: i32 = 4;
/// The level of zstd from which on it builds trees. Behind a long history they take 48 MiB.
const SLOW_FROM: i32 = 12;
/// Seconds to copy a byte: of the history for the encoder, of the block into the decoder's.
const COPY_S: f32 = 1.0 / 12e9;

/// The scale before anything was seen, and the variance of a kind's scale.
const SCALE: f32 = 1.0;
const SCALE_VARIANCE: f32 = 0.64;
/// Variance added with each block that was linked, so that older blocks count less.
const SCALE_DRIFT: f32 = 0.004;
const SCALE_MAX: f32 = 4.0;

/// The histories that are weighed for a block of `len` bytes by this method, from short to long.
pub fn histories(method: Method, len: usize) -> Vec<usize> {
    let links = Links::new(Codecs::shipped(), &[method]);
    let each = Reach::each(len, usize::MAX).filter(|reach| links.takes(0, reach));
    each.map(|reach| reach.history_len).collect()
}

/// What one method gains and costs if it is linked; `None` for a method that cannot be.
#[derive(Debug, Clone, Copy)]
struct Row {
    gains: &'static [f32; 4],
    enter_share: f32,
    /// The longest history that it is linked to.
    longest: usize,
}

/// Gains and costs of the methods of a model.
#[derive(Debug, Clone)]
pub(super) struct Links([Option<Row>; METHODS_MAX]);

/// A block and the history before it, as the tables need them.
pub(super) struct Reach {
    /// The length is `share` of the way from this class to the next.
    class: usize,
    share: f32,
    /// The block's length, and that of the history.
    len: usize,
    pub(super) history_len: usize,
    /// Gain relative to a history of 64 KiB.
    factor: f32,
}

impl Reach {
    pub(super) fn new(len: usize, history_len: usize) -> Self {
        let x = (len as f32).clamp(LENS[0], LENS[3]);
        let class = LENS[1..3].iter().take_while(|l| x >= **l).count();
        let share = (x / LENS[class]).ln() / (LENS[class + 1] / LENS[class]).ln();
        let longer = history_len as f32 / HISTORY_LEN;
        let power = match longer > 1.0 {
            false => HISTORY_POWER,
            true => LONG_POWERS[class] + share * (LONG_POWERS[class + 1] - LONG_POWERS[class]),
        };
        Self { class, share, len, history_len, factor: longer.powf(power) }
    }

    /// The histories to weigh for a block, from short to long, if there are `available` bytes.
    pub(super) fn each(len: usize, available: usize) -> impl Iterator<Item = Self> {
        let most = available.min(HISTORIES[HISTORIES.len() - 1]).min(LENGTHS_MAX.saturating_mul(len).max(SHORT));
        let shorter = HISTORIES.into_iter().take_while(move |h| *h < most);
        shorter.chain([most]).map(move |history_len| Self::new(len, history_len))
    }
}

impl Links {
    pub(super) fn new(codecs: &Codecs, methods: &[Method]) -> Self {
        let mut rows = [None; METHODS_MAX];
        for (row, method) in rows.iter_mut().zip(methods) {
            *row = codecs.can_link(*method).then(|| match method.codec {
                CodecId::LZ4 if method.level < -1 => Row { gains: &GAINS[0], enter_share: 1.0, longest: SHORT },
                CodecId::LZ4 => Row { gains: &GAINS[1], enter_share: ENTER_SHARE, longest: SHORT },
                _ => {
                    let (gains, enter_share, longest) = match method.level {
                        level if level <= FAST_MAX => (&GAINS[2], ENTER_SHARE_FAST, SHORT),
                        level if level <= TWO_PLACES_MAX => (&GAINS[2], ENTER_SHARE_FAST, 1 << 20),
                        level if level < SLOW_FROM => (&GAINS[3], ENTER_SHARE_LAZY, usize::MAX),
                        _ => (&GAINS[3], ENTER_SHARE_SLOW, SHORT),
                    };
                    Row { gains, enter_share, longest }
                }
            });
        }
        Self(rows)
    }

    /// Whether the method may be linked to so much.
    pub(super) fn takes(&self, m: usize, reach: &Reach) -> bool {
        self.0[m].is_some_and(|row| reach.history_len <= row.longest)
    }

    /// Gain in log ratio for each unit of the best log ratio, before the scale of the kind of data.
    /// `None` if the method cannot be linked.
    pub(super) fn gain(&self, m: usize, reach: &Reach) -> Option<f32> {
        let gains = self.0[m]?.gains;
        let at_64k = gains[reach.class] + reach.share * (gains[reach.class + 1] - gains[reach.class]);
        Some(at_64k * reach.factor)
    }

    /// Factor by which encoding takes longer, and seconds that the encoding end and the decoding end
    /// need for the history itself.
    pub(super) fn cost(&self, m: usize, reach: &Reach) -> (f32, f32, f32) {
        let share = self.0[m].map_or(0.0, |row| row.enter_share);
        let (len, history_len) = (reach.len.max(1) as f32, reach.history_len as f32);
        (1.0 + share * history_len / len, history_len * COPY_S, len * COPY_S)
    }
}

/// How much one kind of data gains compared with the mean of all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    value: f32,
    variance: f32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { value: SCALE, variance: SCALE_VARIANCE }
    }
}

impl Scale {
    /// Of a new kind, whose nearest one is known.
    pub(super) fn inherit(near: Self) -> Self {
        Self { value: 0.5 * (SCALE + near.value), variance: 0.5 * (SCALE_VARIANCE + near.variance) }
    }

    pub(super) fn value(&self) -> f32 {
        self.value
    }

    /// The scale plus `deviations` of its uncertainty.
    pub(super) fn hoped(&self, deviations: f32) -> f32 {
        self.value + deviations * self.variance.sqrt()
    }

    /// Variance that an uncertain scale adds to a log ratio whose gain at scale 1 is `unit`.
    pub(super) fn noise(&self, unit: f32) -> f32 {
        unit * unit * self.variance
    }

    /// A linked block had a log ratio that exceeds the prediction by `error`; `variance` is that of
    /// the prediction for the block alone.
    pub(super) fn observe(&mut self, unit: f32, error: f32, variance: f32) {
        let gain = self.variance * unit / (self.noise(unit) + variance).max(1e-9);
        self.value = (self.value + gain * error).clamp(0.0, SCALE_MAX);
        self.variance = (self.variance * (1.0 - gain * unit) + SCALE_DRIFT).clamp(SCALE_DRIFT, SCALE_VARIANCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_fall_with_the_length_and_grow_with_the_history() {
        let links = Links::new(
            Codecs::shipped(),
            &[Method::STORE, Method::lz4_accel(16), Method::lz4_accel(1), Method::zstd(3)],
        );
        let gain = |m, len, history_len| links.gain(m, &Reach::new(len, history_len));
        assert_eq!(gain(0, 8192, 65_536), None);
        for m in 1..4 {
            let by_len = [1, 8192, 20_000, 32_768, 100_000, 131_072, 400_000, 524_288, 2 << 20]
                .map(|len| gain(m, len, 65_536).unwrap());
            assert!(by_len.windows(2).all(|w| w[0] >= w[1]) && by_len[8] > 0.0, "{by_len:?}");
            assert!(gain(m, 32_768, 8192).unwrap() < gain(m, 32_768, 65_536).unwrap());
            assert!(gain(m, 131_072, 65_536).unwrap() < gain(m, 131_072, 1 << 20).unwrap());
        }
    }

    #[test]
    fn histories_grow_up_to_what_there_is_and_what_the_method_takes() {
        let of = |len, available| Reach::each(len, available).map(|r| r.history_len >> 10).collect::<Vec<_>>();
        assert_eq!(of(512 << 10, 64 << 20), [64, 256, 1024, 2048]);
        assert_eq!(of(8 << 10, 64 << 20), [64, 128]);
        assert_eq!(of(1, 64 << 20), [64]);
        assert_eq!(of(512 << 10, 300 << 10), [64, 256, 300]);
        assert_eq!(of(512 << 10, 3 << 10), [3]);
        let levels = [-1, 1, 3, 6, 9, 15].map(Method::zstd);
        let links = Links::new(Codecs::shipped(), &[&[Method::STORE, Method::lz4_accel(1)], &levels[..]].concat());
        let longest = |m| Reach::each(512 << 10, 64 << 20).filter(|r| links.takes(m, r)).map(|r| r.history_len).max();
        let kib = std::array::from_fn(|m| longest(m).map_or(0, |len| len >> 10));
        assert_eq!(kib, [0, 64, 64, 64, 1024, 2048, 2048, 64]);
    }

    #[test]
    fn a_scale_approaches_what_is_seen_and_stays_in_its_limits() {
        for truth in [0.0, 0.5, 3.0, 100.0, -100.0] {
            let mut scale = Scale::default();
            for _ in 0..50 {
                scale.observe(0.2, 0.2 * (truth - scale.value()), 0.001);
            }
            let expected = f32::clamp(truth, 0.0, SCALE_MAX);
            assert!((scale.value() - expected).abs() < 0.1, "{truth}: {}", scale.value());
        }
        let mut scale = Scale::default();
        for (unit, error, variance) in [(0.0, 1.0, 0.0), (1e9, 1e9, 0.0), (1.0, -1e30, 1e-30)] {
            scale.observe(unit, error, variance);
            assert!((0.0..=SCALE_MAX).contains(&scale.value()) && scale.variance.is_finite());
        }
    }
}
