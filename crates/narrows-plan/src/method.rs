//! Methods: how fast one core encodes and decodes, and how much is left on the wire.

use crate::interval::Interval;
use crate::random::Rng;

/// Name of the row without compression.
pub const NONE: &str = "none";
/// Resamples of a bootstrap: the ends of a 95 % interval vary by a few per cent of its width.
const RESAMPLES: usize = 1000;
/// Resamples of all methods together; one of them is half a per cent.
const DRAWS: usize = 200;
/// Share of the resamples on each side of the interval.
const TAIL: f64 = 0.025;
/// With fewer samples the interval is that of the least and the greatest one.
const SAMPLES_MIN: usize = 3;

/// One method on one class of data.
#[derive(Debug, Clone, PartialEq)]
pub struct Method {
    /// Name, such as `zstd:level=3`.
    pub name: String,
    /// Class of data that the figures are of; empty for all.
    pub class: String,
    /// Raw megabytes that a core encodes per second.
    pub encode_mb_per_s: Interval,
    /// Raw megabytes that a core decodes per second.
    pub decode_mb_per_s: Interval,
    /// Raw bytes / compressed bytes.
    pub ratio: Interval,
}

impl Method {
    /// A method whose figures are known exactly, for all classes.
    pub fn exact(name: &str, encode_mb_per_s: f64, decode_mb_per_s: f64, ratio: f64) -> Self {
        Self {
            name: name.into(),
            class: String::new(),
            encode_mb_per_s: encode_mb_per_s.into(),
            decode_mb_per_s: decode_mb_per_s.into(),
            ratio: ratio.into(),
        }
    }

    /// No compression: it takes no time and changes nothing.
    pub fn none() -> Self {
        Self::exact(NONE, f64::INFINITY, f64::INFINITY, 1.0)
    }

    /// Whether this is [`Method::none`].
    pub fn is_none(&self) -> bool {
        self.name == NONE
    }

    /// Compressed bytes / raw bytes: what the text calls the inverse compression ratio.
    pub fn left(&self) -> Interval {
        self.ratio.inverse()
    }
}

/// What one method took for one piece of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Piece {
    /// Raw bytes.
    pub raw_len: f64,
    /// Compressed bytes.
    pub wire_len: f64,
    /// CPU nanoseconds of encoding.
    pub encode_ns: f64,
    /// CPU nanoseconds of decoding.
    pub decode_ns: f64,
}

/// What one method took for every piece of a sample of one class, in the order of the pieces.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Name of the method.
    pub name: String,
    /// Class of the data.
    pub class: String,
    /// The pieces.
    pub pieces: Vec<Piece>,
}

/// Encoding and decoding in MB/s, and the ratio, over some pieces.
fn figures<'a>(pieces: impl Iterator<Item = &'a Piece>) -> [f64; 3] {
    let mut sum = Piece::default();
    for p in pieces {
        sum.raw_len += p.raw_len;
        sum.wire_len += p.wire_len;
        sum.encode_ns += p.encode_ns;
        sum.decode_ns += p.decode_ns;
    }
    // A thousandth of a nanosecond a byte is faster than any memory; it keeps speeds finite.
    let mb_per_s = |ns: f64| 1e3 * sum.raw_len / ns.max(1e-3 * sum.raw_len);
    [mb_per_s(sum.encode_ns), mb_per_s(sum.decode_ns), (sum.raw_len / sum.wire_len.max(1.0)).max(1.0)]
}

impl Measured {
    /// The method: totals over all pieces, and 95 % intervals by resampling the pieces (percentile
    /// bootstrap), which hold both the spread of the data and the noise of the clock. `None`
    /// without raw bytes.
    pub fn method(&self) -> Option<Method> {
        let pieces = &self.pieces;
        if pieces.iter().all(|p| p.raw_len <= 0.0) {
            return None;
        }
        let whole = figures(pieces.iter());
        let mut drawn: Vec<[f64; 3]> = if pieces.len() < SAMPLES_MIN {
            pieces.iter().filter(|p| p.raw_len > 0.0).map(|p| figures(std::iter::once(p))).collect()
        } else {
            let mut rng = Rng(1);
            (0..RESAMPLES).map(|_| figures(resample(pieces, &mut rng))).collect()
        };
        let mut interval = |i: usize| {
            drawn.sort_by(|a, b| a[i].total_cmp(&b[i]));
            let tail = (drawn.len() as f64 * TAIL) as usize;
            Interval::new(drawn[tail][i], whole[i], drawn[drawn.len() - 1 - tail][i])
        };
        let [encode_mb_per_s, decode_mb_per_s, ratio] = [interval(0), interval(1), interval(2)];
        let (name, class) = (self.name.clone(), self.class.clone());
        Some(Method { name, class, encode_mb_per_s, decode_mb_per_s, ratio })
    }
}

fn resample<'a>(pieces: &'a [Piece], rng: &mut Rng) -> impl Iterator<Item = &'a Piece> {
    (0..pieces.len()).map(|_| &pieces[rng.below(pieces.len())])
}

/// All methods from the same resamples of the data: what is measured on the same pieces rises and
/// falls together, so which method is better is known more exactly than how good each is.
pub fn draws(measured: &[Measured]) -> Vec<Vec<Method>> {
    let draw = |seed: usize| {
        let of = |m: &Measured| {
            // The same numbers for every method of a class.
            let [encode, decode, ratio] = figures(resample(&m.pieces, &mut Rng(seed as u64)));
            Method { class: m.class.clone(), ..Method::exact(&m.name, encode, decode, ratio) }
        };
        measured.iter().filter(|m| m.pieces.iter().any(|p| p.raw_len > 0.0)).map(of).collect()
    };
    (0..DRAWS).map(draw).collect()
}

/// Methods for all data together, from those of its classes. A class that `shares` does not name
/// has no share; without shares all classes count alike. Times and lengths add up by share, so
/// speeds and ratios are harmonic means. A method that some class lacks is left out, and named in
/// the second list.
pub fn over_classes(methods: &[Method], shares: &[(String, f64)]) -> (Vec<Method>, Vec<String>) {
    let mut classes: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for m in methods {
        if !m.class.is_empty() && !classes.contains(&m.class.as_str()) {
            classes.push(&m.class);
        }
        if !names.contains(&m.name.as_str()) {
            names.push(&m.name);
        }
    }
    let share = |class: &str| match shares.iter().find(|s| s.0 == class) {
        Some((_, share)) => *share,
        None if shares.is_empty() => 1.0,
        None => 0.0,
    };
    classes.retain(|c| share(c) > 0.0);
    let (mut whole, mut left_out) = (Vec::new(), Vec::new());
    for name in names {
        let of = |class: &str| methods.iter().find(|m| m.name == name && m.class == class);
        // Figures for all classes are taken where a class has none of its own.
        let parts: Option<Vec<(f64, &Method)>> =
            classes.iter().map(|c| of(c).or_else(|| of("")).map(|m| (share(c), m))).collect();
        match parts {
            _ if classes.is_empty() => whole.extend(of("").cloned()),
            Some(parts) => whole.push(joined(name, &parts)),
            None => left_out.push(name.to_owned()),
        }
    }
    (whole, left_out)
}

fn joined(name: &str, parts: &[(f64, &Method)]) -> Method {
    let all: f64 = parts.iter().map(|p| p.0).sum();
    let mean = |of: fn(&Method) -> Interval| {
        let sum = parts.iter().fold(Interval::exact(0.0), |sum, (share, m)| sum + of(m).inverse() * (share / all));
        sum.inverse()
    };
    Method {
        name: name.into(),
        class: String::new(),
        encode_mb_per_s: mean(|m| m.encode_mb_per_s),
        decode_mb_per_s: mean(|m| m.decode_mb_per_s),
        ratio: mean(|m| m.ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_totals_and_their_spread() {
        let piece = |wire_len| Piece { raw_len: 1000.0, wire_len, encode_ns: 2000.0, decode_ns: 500.0 };
        let pieces: Vec<Piece> =
            (0..40).map(|i: i32| piece(if i.rem_euclid(2) == 0 { 200.0 } else { 800.0 })).collect();
        let of = |pieces: &[Piece]| Measured { name: "zstd".into(), class: "logs".into(), pieces: pieces.to_vec() };
        let m = of(&pieces).method().unwrap();
        assert_eq!((m.encode_mb_per_s, m.decode_mb_per_s), (500.0.into(), 2000.0.into()), "no spread, no interval");
        assert_eq!(m.ratio.value, 2.0);
        assert!(m.ratio.low > 1.5 && m.ratio.low < 1.95 && m.ratio.high > 2.05 && m.ratio.high < 2.8, "{:?}", m.ratio);
        assert_eq!(of(&pieces).method(), Some(m), "seeded");
        let two = of(&pieces[..2]).method().unwrap().ratio;
        assert_eq!(two, Interval::new(1.25, 2.0, 5.0), "of two pieces the least and the greatest");
        assert_eq!(of(&[]).method(), None);
        assert_eq!(of(&[Piece::default()]).method(), None);
        let free = of(&[Piece { raw_len: 8.0, wire_len: 0.0, ..Piece::default() }]).method().unwrap();
        assert!(free.encode_mb_per_s.value.is_finite() && free.ratio.value == 8.0);
    }

    #[test]
    fn methods_of_the_same_pieces_rise_and_fall_together() {
        let piece = |i: usize, factor: f64| {
            let wire_len = factor * if i.is_multiple_of(2) { 200.0 } else { 800.0 };
            Piece { raw_len: 1000.0, wire_len, encode_ns: 2000.0, decode_ns: 500.0 }
        };
        let of = |name: &str, factor| Measured {
            name: name.into(),
            class: String::new(),
            pieces: (0..10).map(|i| piece(i, factor)).collect(),
        };
        let both = [of("a", 1.0), of("b", 0.99)];
        let intervals: Vec<Interval> = both.iter().map(|m| m.method().unwrap().ratio).collect();
        assert!(intervals[0].meets(intervals[1]));
        assert!(draws(&both).iter().all(|d| d[1].ratio.value > d[0].ratio.value), "and yet b is better always");
        assert!(draws(&[Measured { pieces: Vec::new(), ..both[0].clone() }]).iter().all(Vec::is_empty));
    }

    #[test]
    fn classes_add_up_by_their_shares() {
        let of = |class: &str, ratio| Method { class: class.into(), ..Method::exact("zstd", 100.0, 400.0, ratio) };
        let methods = [of("logs", 4.0), of("media", 1.0), Method::exact("xz", 5.0, 50.0, 3.0)];
        let lone = Method { class: "logs".into(), ..Method::exact("lz4", 1.0, 1.0, 2.0) };
        let (whole, missing) =
            over_classes(&[&methods[..], &[lone]].concat(), &[("logs".into(), 3.0), ("media".into(), 1.0)]);
        assert_eq!(missing, ["lz4"]);
        // 0.75 / 4 + 0.25 / 1 are left.
        assert!((whole[0].ratio.value - 1.0 / 0.4375).abs() < 1e-12, "{whole:?}");
        assert!((whole[1].ratio.value - 3.0).abs() < 1e-12 && whole[1].name == "xz", "it holds for every class");
        let (alone, _) = over_classes(&methods, &[("logs".into(), 1.0)]);
        assert_eq!(alone[0].ratio.value, 4.0);
        assert_eq!(over_classes(&methods[2..], &[]).0, methods[2..]);
    }
}
