//! Cheap features of a block: what can be known about it in a microsecond.
//!
//! 512 bytes are sampled whatever the block's length, in runs spread over it: mixed blocks are common, and one window
//! would miss them. String repetition tells what LZ4 will do, entropy what Huffman coding adds; neither tells the other.

/// Runs of 64 bytes: long enough for repeats within a line of text, short enough to be spread.
const RUN_LEN: usize = 64;
const RUNS: usize = 8;
const SAMPLE_LEN: usize = RUN_LEN * RUNS;

/// Terms of the linear forms of a prior.
pub const TERMS: usize = 20;

/// What was seen of a block; every field but `log_len` is a share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Features {
    /// Byte entropy / 8.
    pub entropy: f32,
    /// Share of 4-byte groups that were seen before in the sample.
    pub repeats: f32,
    /// Share of bytes equal to the one 1, 4, 8 before.
    pub equal_1: f32,
    pub equal_4: f32,
    pub equal_8: f32,
    pub text: f32,
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
            counter.add(&block[..block.len().min(SAMPLE_LEN)]);
        }
        counter.features(block.len())
    }

    /// The same data cut to another length.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        Self { log_len: log_len(len), ..self }
    }

    /// Distance between kinds of data, for telling contexts apart.
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

    /// The terms of the `balance` design, section 3.
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

/// Whether one byte fills the whole block. It stops at the first difference, so other data costs nothing.
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

struct Counter {
    bytes: [u16; 256],
    seen: [u16; SLOTS],
    len: u32,
    groups: u32,
    repeats: u32,
    /// Positions that have a byte 8 before in their run.
    compared: u32,
    equal_1: u32,
    equal_4: u32,
    equal_8: u32,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            seen: [0; SLOTS],
            len: 0,
            groups: 0,
            repeats: 0,
            compared: 0,
            equal_1: 0,
            equal_4: 0,
            equal_8: 0,
        }
    }
}

impl Counter {
    fn add(&mut self, run: &[u8]) {
        for &b in run {
            self.bytes[usize::from(b)] += 1;
        }
        self.len += run.len() as u32;
        for group in run.windows(4) {
            let hash = u32::from_le_bytes([group[0], group[1], group[2], group[3]]).wrapping_mul(2_654_435_761);
            let (slot, tag) = ((hash >> 22) as usize, hash as u16 | 1);
            self.repeats += u32::from(self.seen[slot] == tag);
            self.seen[slot] = tag;
        }
        self.groups += (run.len() as u32).saturating_sub(3);
        if run.len() > 8 {
            let now = &run[8..];
            let equal = |back: usize| {
                now.iter().zip(&run[8 - back..]).map(|(a, b)| u8::from(a == b)).fold(0u32, |n, e| n + u32::from(e))
            };
            self.equal_1 += equal(1);
            self.equal_4 += equal(4);
            self.equal_8 += equal(8);
            self.compared += now.len() as u32;
        }
    }

    fn features(&self, block_len: usize) -> Features {
        let len = self.len.max(1) as f32;
        let (mut sum, mut distinct, mut text) = (0.0f32, 0u32, 0u32);
        for (value, &count) in self.bytes.iter().enumerate() {
            if count > 0 {
                sum += N_LOG2_N[usize::from(count).min(SAMPLE_LEN)];
                distinct += 1;
                if IS_TEXT[value] {
                    text += u32::from(count);
                }
            }
        }
        // Miller-Madow: a small sample sees too few values and looks more regular than it is.
        let bias = distinct.saturating_sub(1) as f32 * 0.7213 / len;
        let entropy = len.log2() - sum / len + bias;
        let share = |n: u32, of: u32| n as f32 / of.max(1) as f32;
        Features {
            entropy: (entropy / 8.0).clamp(0.0, 1.0),
            repeats: share(self.repeats, self.groups),
            equal_1: share(self.equal_1, self.compared),
            equal_4: share(self.equal_4, self.compared),
            equal_8: share(self.equal_8, self.compared),
            text: text as f32 / len,
            zero: f32::from(self.bytes[0]) / len,
            log_len: log_len(block_len),
        }
    }
}

static IS_TEXT: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 32;
    while b < 127 {
        table[b] = true;
        b += 1;
    }
    table[9] = true;
    table[10] = true;
    table[13] = true;
    table
};

/// n * log2(n) for every count that a sample can hold.
static N_LOG2_N: std::sync::LazyLock<[f32; SAMPLE_LEN + 1]> =
    std::sync::LazyLock::new(|| std::array::from_fn(|n| if n == 0 { 0.0 } else { n as f32 * (n as f32).log2() }));

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
