//! The probe: whether plain bytes look like numbers of some width. A yes invites to a trial and decides
//! nothing.
//!
//! Bytes at the same place of every number are more alike than all bytes are. One pass counts the bytes
//! of 24 places; the counts of every width that divides 24 are sums of these. The place at which a
//! window begins only turns the planes, so it does not matter where in a stream the bytes are taken.

/// What the bytes look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// Bytes of an element: 2, 3, 4, 6, 8, 12 or 24.
    pub width: u8,
    /// Bytes of a record of three such elements, where its fields differ; else `width`.
    pub record: u8,
    /// Log2 of how much likelier two bytes of one plane are equal than two bytes of all.
    pub score: f32,
    /// Offset, below `width`, of the byte with most repeats: sign and exponent, the last one of a
    /// little-endian element, the first one of a big-endian one.
    pub steady: u8,
    /// Nearly all bytes are text: tables with columns of fixed width.
    pub is_text: bool,
}

/// Widths, all of which divide [`PERIOD`].
const WIDTHS: [usize; 7] = [2, 3, 4, 6, 8, 12, 24];
const PERIOD: usize = 24;

/// Bytes of a window; more do not find more.
const WINDOW: usize = 2016;
const WINDOWS: usize = 4;

/// Fewer windows tell too little: a file of 4 KB has few values at each place.
const WINDOWS_MIN: usize = 2;

/// Score from which it is a yes: nearly all blocks that gain more than 10 % have it, 9 % of the others.
const SCORE_MIN: f32 = 0.1;
/// The same for bytes of which nearly all are text: tables in text score up to 0.18 and gain nothing,
/// those of a fixed width score more.
const SCORE_MIN_TEXT: f32 = 0.2;
const TEXT_SHARE: f32 = 0.9;

/// The shortest width counts of those that score within so much of the best: planes of multiples are
/// never worse.
const LONGER: f32 = 0.06;

/// A width that is three times another one is that of three numbers, and no number, if the third of it
/// tells at least this share of the score. Records of three floats of unlike sizes have .53 to .69 (4
/// bytes), .72 to .85 (8); records of fields of several widths, and of odd bytes, .37 to .46.
const NUMBER_SHARE: f32 = 0.5;

/// How often each byte occurs in a plane. A sample has no more than 65,535 bytes.
type Counts = [u16; 256];

/// Looks at four windows. `None` if no width makes bytes more alike, or there are too few bytes.
pub fn probe(bytes: &[u8]) -> Option<Probe> {
    let scores = Scores::of(bytes)?;
    scores.best()
}

/// The score of every width and where its steadiest byte is, and whether the bytes are text.
struct Scores {
    each: [(f32, u8); WIDTHS.len()],
    is_text: bool,
}

impl Scores {
    fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < WINDOWS_MIN * WINDOW {
            return None;
        }
        let windows = WINDOWS.min(bytes.len() / WINDOW);
        let mut p24 = [[0u16; 256]; PERIOD];
        for i in 0..windows {
            // Windows begin at multiples of the period, so that planes keep their phase.
            let start = (bytes.len() - WINDOW) * i / windows.saturating_sub(1).max(1) / PERIOD * PERIOD;
            for row in bytes[start..start + WINDOW].as_chunks::<PERIOD>().0 {
                row.iter().zip(&mut p24).for_each(|(&b, plane)| plane[usize::from(b)] += 1);
            }
        }
        let p12: [Counts; 12] = folded(&p24);
        let p8: [Counts; 8] = folded(&p24);
        let p6: [Counts; 6] = folded(&p12);
        let p4: [Counts; 4] = folded(&p8);
        let p3: [Counts; 3] = folded(&p6);
        let p2: [Counts; 2] = folded(&p4);
        let [p1]: [Counts; 1] = folded(&p2);
        let all = chance(&p1);
        let each = [
            score(&p2, all),
            score(&p3, all),
            score(&p4, all),
            score(&p6, all),
            score(&p8, all),
            score(&p12, all),
            score(&p24, all),
        ];
        let sum = |counts: &[u16]| counts.iter().map(|&c| u32::from(c)).sum::<u32>() as f32;
        let text = sum(&p1[32..127]) + sum(&p1[9..11]) + sum(&p1[13..14]);
        Some(Self { each, is_text: text > TEXT_SHARE * sum(&p1) })
    }

    fn best(&self) -> Option<Probe> {
        let best = self.each.iter().fold(f32::NEG_INFINITY, |best, s| best.max(s.0));
        if best < if self.is_text { SCORE_MIN_TEXT } else { SCORE_MIN } {
            return None;
        }
        let (&(score, steady), record) = self.each.iter().zip(WIDTHS).find(|(s, _)| s.0 >= best - LONGER)?;
        let third = self.each.iter().zip(WIDTHS).find(|(s, width)| 3 * width == record && s.0 >= NUMBER_SHARE * score);
        let (width, steady) = third.map_or((record, steady), |(s, width)| (width, s.1));
        Some(Probe { width: width as u8, record: record as u8, score, steady, is_text: self.is_text })
    }
}

/// The counts of planes of width `TO`, from those of a multiple of it.
fn folded<const TO: usize>(planes: &[Counts]) -> [Counts; TO] {
    let mut sums = [[0; 256]; TO];
    for (i, plane) in planes.iter().enumerate() {
        sums[i % TO].iter_mut().zip(plane).for_each(|(s, c)| *s += c);
    }
    sums
}

/// Log2 of the mean chance of planes against that of all bytes, and the plane with the highest one.
fn score(planes: &[Counts], all: f64) -> (f32, u8) {
    let (mut sum, mut best, mut steady) = (0.0, 0.0, 0);
    for (i, plane) in planes.iter().enumerate() {
        let chance = chance(plane);
        sum += chance;
        if chance >= best {
            (best, steady) = (chance, i as u8);
        }
    }
    ((sum / planes.len() as f64 / all).log2() as f32, steady)
}

/// Chance that two different bytes are equal; unbiased.
fn chance(counts: &Counts) -> f64 {
    // Neither sum exceeds the square of the sample's length, which fits.
    let (mut n, mut squares) = (0u32, 0u32);
    for &count in counts {
        let count = u32::from(count);
        n += count;
        squares += count * count;
    }
    // Half a pair keeps planes without repeats comparable.
    (f64::from(squares - n) + 0.5) / (f64::from(n) * f64::from(n.saturating_sub(1))).max(1.0)
}
/// Longest record that is looked for.
const RECORD_MAX: usize = 256;

/// Bytes looked at for records.
const RECORD_SAMPLE: usize = 32 << 10;

/// Share of equal bytes that a record's length must have over the median of all distances.
const RECORD_EXCESS: f64 = 0.04;

/// Length of records, from the distance at which bytes repeat most. Multiples repeat as well; the shortest
/// distance within a tenth of the best counts.
pub fn record_width(bytes: &[u8]) -> Option<usize> {
    let sample = &bytes[..bytes.len().min(RECORD_SAMPLE)];
    if sample.len() < 4 * RECORD_MAX {
        return None;
    }
    let share = |distance: usize| {
        let (a, b) = (&sample[..sample.len() - distance], &sample[distance..]);
        a.iter().zip(b).map(|(a, b)| usize::from(a == b)).sum::<usize>() as f64 / a.len() as f64
    };
    let shares: Vec<f64> = (1..=RECORD_MAX).map(share).collect();
    let mut sorted = shares.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[RECORD_MAX / 2];
    let best = sorted[RECORD_MAX - 1];
    if best - median < RECORD_EXCESS {
        return None;
    }
    shares.iter().position(|&s| s - median >= 0.8 * (best - median)).map(|i| i + 1).filter(|&width| width > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(count: usize) -> impl Iterator<Item = f32> {
        (0..count).map(|i| 280.0 + (i as f32 / 50.0).sin() * 20.0 + (i * 7919 % 1000) as f32 / 500.0)
    }

    #[test]
    fn widths_of_numbers_are_found_at_every_phase_and_order() {
        let f32s: Vec<u8> = floats(20_000).flat_map(f32::to_le_bytes).collect();
        let big: Vec<u8> = floats(20_000).flat_map(f32::to_be_bytes).collect();
        let f64s: Vec<u8> = floats(10_000).flat_map(|v| (f64::from(v) * 1.000_123_4).to_le_bytes()).collect();
        let i16s: Vec<u8> = floats(40_000).flat_map(|v| ((v * 50.0) as i16).to_le_bytes()).collect();
        for phase in 0..8 {
            let width = |bytes: &[u8]| probe(&bytes[phase..]).map(|p| p.width);
            assert_eq!(width(&f32s), Some(4), "{phase}");
            assert_eq!(width(&big), Some(4), "{phase}");
            assert_eq!(width(&f64s), Some(8), "{phase}");
            assert_eq!(width(&i16s), Some(2), "{phase}");
        }
        assert_eq!(probe(&f32s).unwrap().steady, 3);
        assert_eq!(probe(&big).unwrap().steady, 0);
    }

    #[test]
    fn records_of_three_floats_are_floats_and_others_are_records() {
        let fields = |v: f32| [v, 100.0 * v - 27_000.0, 1e-3 / v];
        let three: Vec<u8> = floats(20_000).flat_map(fields).flat_map(f32::to_le_bytes).collect();
        let wide: Vec<u8> =
            floats(10_000).flat_map(fields).flat_map(|v| (f64::from(v) * 1.000_123_4).to_le_bytes()).collect();
        let mixed: Vec<u8> = floats(20_000)
            .zip(1_600_000_000u64..)
            .flat_map(|(v, i)| [&(i << 20).to_le_bytes()[..], &v.to_le_bytes()].concat())
            .collect();
        let found = |bytes: &[u8]| probe(bytes).map(|p| (p.width, p.record));
        for phase in [0, 1, 5, 11] {
            assert_eq!(found(&three[phase..]), Some((4, 12)), "{phase}");
            assert_eq!(found(&wide[phase..]).map(|f| f.0), Some(8), "{phase}");
            assert_eq!(found(&mixed[phase..]), Some((12, 12)), "{phase}");
        }
    }

    #[test]
    fn text_and_noise_are_no_numbers() {
        let words = ["the ", "narrow ", "place ", "of ", "a ", "link ", "decides, ", "and ", "seldom ", "how.\n"];
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let text: String = (0..20_000).map(|_| words[usize::from(random()) % 10]).collect();
        assert_eq!(probe(text.as_bytes()), None);
        let noise: Vec<u8> = (0..65_536).map(|_| random()).collect();
        assert_eq!(probe(&noise), None);
        assert_eq!(probe(&[0; 100]), None);
        assert_eq!(probe(&[0; 10_000]), None);
    }

    #[test]
    fn the_length_of_records_is_found() {
        let mut bytes = Vec::new();
        for (i, v) in floats(3000).enumerate() {
            bytes.extend((i as u32).to_le_bytes());
            bytes.extend(v.to_le_bytes());
            bytes.extend((v * v).to_le_bytes());
            bytes.extend([7, 0, (i % 3) as u8, 1, 2, 3, 4, 5]);
        }
        assert_eq!(record_width(&bytes), Some(20));
    }
}
