//! Cheap features of a block, computed in a microsecond.
//!
//! 512 bytes are sampled from a block of any length, in runs spread over it: mixed blocks are
//! common, and one window would miss them. Repeated strings predict what LZ4 achieves, entropy what
//! Huffman coding adds; neither predicts the other.

/// Runs of 64 bytes: long enough for repeats within a line of text, short enough to be spread.
const RUN_LEN: usize = 64;
const RUNS: usize = 8;
const SAMPLE_LEN: usize = RUN_LEN * RUNS;

/// Terms of the linear forms of a prior.
pub const TERMS: usize = 20;

/// Features of a block; every field but `log_len` is a share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Features {
    /// Byte entropy / 8.
    pub entropy: f32,
    /// Share of 4-byte groups that occurred before in the sample.
    pub repeats: f32,
    /// Share of bytes equal to the byte 1 before.
    pub equal_1: f32,
    /// Share of bytes equal to the byte 4 before.
    pub equal_4: f32,
    /// Share of bytes equal to the byte 8 before.
    pub equal_8: f32,
    /// Share of printable ASCII, tab, line feed and carriage return.
    pub text: f32,
    /// Share of zero bytes.
    pub zero: f32,
    /// log2(length) / 20.
    pub log_len: f32,
}

impl Features {
    /// Features of a block of any length.
    pub fn sample(block: &[u8]) -> Self {
        let mut counter = Counter::default();
        if block.len() >= SAMPLE_LEN + RUN_LEN {
            let step = (block.len() - RUN_LEN) / (RUNS - 1);
            for run in 0..RUNS {
                counter.add(&block[run * step..run * step + RUN_LEN]);
            }
        } else {
            block[..block.len().min(SAMPLE_LEN)].chunks(RUN_LEN).for_each(|run| counter.add(run));
        }
        counter.features(block.len())
    }

    /// The same data cut to another length.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        Self { log_len: log_len(len), ..self }
    }

    /// Distance between kinds of data, to distinguish contexts.
    pub fn distance(&self, other: &Self) -> f32 {
        1.5 * (self.entropy - other.entropy).abs()
            + (self.repeats - other.repeats).abs()
            + 0.5 * (self.equal_1 - other.equal_1).abs()
            + 0.5 * (self.equal_4 - other.equal_4).abs()
            + 0.5 * (self.equal_8 - other.equal_8).abs()
            + 0.5 * (self.text - other.text).abs()
            + (self.zero - other.zero).abs()
    }

    /// Moves a share of the way towards `other`.
    pub fn approach(&mut self, other: &Self, share: f32) {
        let step = |mine: &mut f32, theirs: f32| *mine += share * (theirs - *mine);
        step(&mut self.entropy, other.entropy);
        step(&mut self.repeats, other.repeats);
        step(&mut self.equal_1, other.equal_1);
        step(&mut self.equal_4, other.equal_4);
        step(&mut self.equal_8, other.equal_8);
        step(&mut self.text, other.text);
        step(&mut self.zero, other.zero);
    }

    /// The terms of the prior's linear forms (docs/policy.md, "Terms of the prediction").
    pub fn terms(&self) -> [f32; TERMS] {
        let Self { entropy: h, repeats: r, equal_1, equal_4, equal_8, text: a, zero, log_len } = *self;
        let high = 10.0 * (h - 0.9).max(0.0);
        let low = 2.0 * (0.5 - h).max(0.0);
        let len = log_len - 0.85;
        [
            1.0,
            h,
            h * h,
            r,
            r * r,
            h * r,
            equal_1,
            equal_4,
            equal_8,
            a,
            zero,
            len,
            len * r,
            high,
            high * r,
            low,
            high * high,
            a * h,
            a * high,
            r.sqrt(),
        ]
    }
}

/// Whether one byte fills the whole block. It stops at the first difference, so other data costs
/// nothing.
pub fn is_constant(block: &[u8]) -> bool {
    let Some((&first, rest)) = block.split_first() else { return false };
    if rest.last().is_some_and(|&last| last != first) {
        return false;
    }
    let head = &rest[..rest.len().min(64)];
    head.iter().all(|&b| b == first) && block[1..] == block[..block.len() - 1]
}

/// The longest beginning of `block` that one byte fills.
pub fn constant_prefix(block: &[u8]) -> usize {
    let Some(&first) = block.first() else { return 0 };
    let word = [first; 64];
    let whole = block.chunks_exact(64).take_while(|c| **c == word).count() * 64;
    whole + block[whole..].iter().take_while(|&&b| b == first).count()
}

fn log_len(len: usize) -> f32 {
    (len.max(1) as f32).log2() / 20.0
}

/// Slots for 4-byte groups: twice the groups of a sample, so chance hits are rare.
const SLOTS: usize = 1024;

/// Counts over the runs of a sample.
struct Counter {
    /// Two tables in turn: a repeated byte need not wait for its own last count.
    bytes: [[u16; 256]; 2],
    seen: [u16; SLOTS],
    len: u32,
    text: u32,
    groups: u32,
    repeats: u32,
    /// Positions that have a byte 8 before in their run.
    compared: u32,
    /// Of those, bytes equal to the one 1, 4, 8 before.
    equal: [u32; 3],
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            bytes: [[0; 256]; 2],
            seen: [0; SLOTS],
            len: 0,
            text: 0,
            groups: 0,
            repeats: 0,
            compared: 0,
            equal: [0; 3],
        }
    }
}

impl Counter {
    /// Adds a run of at most [`RUN_LEN`] bytes, so that sums over it fit a byte and the loops run
    /// on vectors.
    #[inline(always)]
    fn add(&mut self, run: &[u8]) {
        self.len += run.len() as u32;
        let mut pairs = run.chunks_exact(2);
        for pair in &mut pairs {
            self.bytes[0][usize::from(pair[0])] += 1;
            self.bytes[1][usize::from(pair[1])] += 1;
        }
        for &last in pairs.remainder() {
            self.bytes[0][usize::from(last)] += 1;
        }
        let is_text = |b: u8| b.wrapping_sub(32) < 95 || b == 9 || b == 10 || b == 13;
        self.text += u32::from(run.iter().map(|&b| u8::from(is_text(b))).sum::<u8>());
        for group in run.windows(4) {
            let hash = u32::from_le_bytes([group[0], group[1], group[2], group[3]]).wrapping_mul(2_654_435_761);
            let (slot, tag) = (&mut self.seen[(hash >> 22) as usize % SLOTS], hash as u16 | 1);
            self.repeats += u32::from(*slot == tag);
            *slot = tag;
        }
        self.groups += (run.len() as u32).saturating_sub(3);
        if run.len() > 8 {
            let now = &run[8..];
            for (sum, back) in self.equal.iter_mut().zip([1, 4, 8]) {
                let before = &run[8 - back..];
                *sum += u32::from(now.iter().zip(before).map(|(a, b)| u8::from(a == b)).sum::<u8>());
            }
            self.compared += now.len() as u32;
        }
    }

    fn features(&self, block_len: usize) -> Features {
        let share = |n: u32, of: u32| n as f32 / of.max(1) as f32;
        let [equal_1, equal_4, equal_8] = self.equal.map(|n| share(n, self.compared));
        Features {
            entropy: self.entropy() / 8.0,
            repeats: share(self.repeats, self.groups),
            equal_1,
            equal_4,
            equal_8,
            text: share(self.text, self.len),
            zero: share(u32::from(self.bytes[0][0] + self.bytes[1][0]), self.len),
            log_len: log_len(block_len),
        }
    }

    /// Bits per byte.
    fn entropy(&self) -> f32 {
        const LANES: usize = 8;
        let (mut sum, mut distinct) = ([0.0f32; LANES], [0u32; LANES]);
        for base in (0..256).step_by(LANES) {
            for lane in 0..LANES {
                let count = u32::from(self.bytes[0][base + lane] + self.bytes[1][base + lane]);
                // No count adds nothing: 0 * log2(1).
                sum[lane] += count as f32 * fast_log2(count.max(1) as f32);
                distinct[lane] += u32::from(count > 0);
            }
        }
        let len = self.len.max(1) as f32;
        // Miller-Madow: a small sample sees too few values and looks more regular than it is.
        let bias = distinct.iter().sum::<u32>().saturating_sub(1) as f32 * 0.7213 / len;
        (len.log2() - sum.iter().sum::<f32>() / len + bias).clamp(0.0, 8.0)
    }
}

/// Binary logarithm of a normal positive number to 3 digits; unlike the library's it works on
/// vectors.
#[inline(always)]
fn fast_log2(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let mantissa = f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000);
    // ln(m) = 2 atanh((m - 1) / (m + 1)), three terms of the series.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    exponent as f32 + 2.0 * std::f32::consts::LOG2_E * s * (1.0 + square * (1.0 / 3.0 + square * 0.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_tell_kinds_apart() {
        let random: Vec<u8> = (0..65_536u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8).collect();
        let text = b"a line of text that says nothing new\n".repeat(1800);
        let (random, text, zero) = (Features::sample(&random), Features::sample(&text), Features::sample(&[0; 65_536]));
        assert!(random.entropy > 0.95 && random.repeats < 0.1, "{random:?}");
        assert!(text.entropy < 0.6 && text.repeats > 0.7 && text.text == 1.0, "{text:?}");
        assert!(zero.entropy < 0.01 && zero.repeats > 0.9 && zero.zero == 1.0, "{zero:?}");
    }

    #[test]
    fn the_fast_logarithm_is_near_the_librarys() {
        assert!((1..=SAMPLE_LEN).all(|n| (fast_log2(n as f32) - (n as f32).log2()).abs() < 1e-3));
    }

    #[test]
    fn any_length_gives_finite_terms() {
        for len in [0, 1, 3, 4, 9, 63, 64, 575, 576, 577, 100_000] {
            let block: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert!(Features::sample(&block).terms().iter().all(|t| t.is_finite()), "{len}");
        }
    }

    #[test]
    fn constant_blocks_are_seen_and_others_are_not() {
        let mut block = vec![7; 100_000];
        assert!(is_constant(&block) && is_constant(&[1]) && !is_constant(&[]));
        assert_eq!(constant_prefix(&block), 100_000);
        block[70_001] = 8;
        assert!(!is_constant(&block));
        assert_eq!(constant_prefix(&block), 70_001);
        assert_eq!(constant_prefix(&[]), 0);
    }
}
