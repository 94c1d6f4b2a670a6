//! Anchors: positions that the bytes before them choose, so that equal content has them at equal
//! places.

/// Bytes before a position that choose it: the hash has 64 bits and each byte moves it by one.
const WIDTH: usize = 64;
/// Bytes between two anchors at least. It bounds the anchors of content that was made to have many.
const APART: usize = 32;
/// Positions hashed by each lane in turn; they run side by side, since one alone waits for itself.
const LANE: usize = 4096;

/// Finds the anchors of a flow that comes in pieces.
pub(super) struct Anchors {
    /// An anchor is where these bits of the hash are zero.
    mask: u64,
    /// The last bytes of the piece before.
    tail: Vec<u8>,
    last_hash: u64,
    /// Positions after an anchor in the latest piece, with the hash of what is before them.
    pub(super) found: Vec<(usize, u64)>,
}

impl Anchors {
    /// One position in `2^spacing_bits`, at least 2, is an anchor.
    pub(super) fn new(spacing_bits: u32) -> Self {
        let mut anchors = Self { mask: 0, tail: Vec::new(), last_hash: 0, found: Vec::new() };
        anchors.widen(spacing_bits);
        anchors
    }

    /// From here on one position in `2^spacing_bits` is an anchor. Those of a wider spacing are among
    /// those of a narrower one.
    pub(super) fn widen(&mut self, spacing_bits: u32) {
        // The highest bits depend on all bytes of the width.
        self.mask = ((1 << spacing_bits) - 1) << (64 - spacing_bits);
    }

    /// The next piece does not follow the one before.
    pub(super) fn restart(&mut self) {
        self.tail.clear();
    }

    /// Fills `found` with the anchors of the next piece.
    pub(super) fn scan(&mut self, raw: &[u8]) {
        self.found.clear();
        let mut hash = 0u64;
        for &byte in &self.tail {
            hash = roll(hash, byte);
        }
        // Until a whole width came, the hash depends on where the flow began.
        let begin = (WIDTH - self.tail.len()).min(raw.len());
        for &byte in &raw[..begin] {
            hash = roll(hash, byte);
        }
        let mut at = begin;
        while raw.len() - at >= 2 * LANE {
            hash = self.two_lanes(raw, at, hash);
            at += 2 * LANE;
        }
        for (i, &byte) in raw[at..].iter().enumerate() {
            hash = roll(hash, byte);
            if hash & self.mask == 0 {
                self.add(at + i + 1, hash);
            }
        }
        let keep = (self.tail.len() + raw.len()).min(WIDTH);
        if raw.len() >= keep {
            self.tail.clear();
        } else {
            self.tail.drain(..self.tail.len() + raw.len() - keep);
        }
        self.tail.extend_from_slice(&raw[raw.len().saturating_sub(WIDTH)..]);
    }

    /// Scans two lanes from `at` on, the first of which begins with `hash`. Returns the hash after
    /// the second.
    fn two_lanes(&mut self, raw: &[u8], at: usize, hash: u64) -> u64 {
        let (first, second) = (&raw[at..at + LANE], &raw[at + LANE..at + 2 * LANE]);
        let mut a = hash;
        let mut b = raw[at + LANE - WIDTH..at + LANE].iter().fold(0, |hash, &byte| roll(hash, byte));
        // Anchors of the second lane wait until all of the first are there.
        let mut later = [(0, 0); LANE / APART];
        let mut waiting = 0;
        let mask = self.mask;
        for (i, (&x, &y)) in first.iter().zip(second).enumerate() {
            a = roll(a, x);
            b = roll(b, y);
            if a & mask == 0 {
                self.add(at + i + 1, a);
            }
            if b & mask == 0 {
                let end = at + LANE + i + 1;
                if waiting == 0 || end >= later[waiting - 1].0 + APART {
                    later[waiting] = (end, b);
                    waiting += 1;
                }
            }
        }
        later[..waiting].iter().for_each(|&(end, hash)| self.add(end, hash));
        b
    }

    fn add(&mut self, end: usize, hash: u64) {
        let near = self.found.last().is_some_and(|&(last, _)| end < last + APART);
        // Of a run of equal bytes, or of a short period, the first anchor is enough.
        if near || hash == self.last_hash {
            return;
        }
        self.last_hash = hash;
        self.found.push((end, hash));
    }
}

fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// A random number for each byte: splitmix64 of its value.
static GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = x ^ x >> 31;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use narrows_test::noise_of;

    use super::*;

    fn all(raw: &[u8], step: usize) -> Vec<(usize, u64)> {
        let mut anchors = Anchors::new(7);
        let mut found = Vec::new();
        for (i, piece) in raw.chunks(step).enumerate() {
            anchors.scan(piece);
            found.extend(anchors.found.iter().map(|&(end, hash)| (i * step + end, hash)));
        }
        found
    }

    #[test]
    fn anchors_depend_on_content_alone() {
        let raw = noise_of(1, 100_000);
        let whole = all(&raw, raw.len());
        assert!((600..900).contains(&whole.len()), "{}", whole.len());
        for step in [1, 63, 64, 65, 5000, 8192 + 64, 30_000] {
            // A border may let two anchors stand nearer to each other.
            let found = all(&raw, step);
            let same = found.iter().filter(|f| whole.contains(f)).count();
            assert!(same * 100 >= whole.len() * 98, "pieces of {step}: {same} of {}", whole.len());
        }
        let shifted = all(&raw[12_345..], 7000);
        let same = shifted.iter().filter(|&&(end, hash)| whole.contains(&(end + 12_345, hash))).count();
        assert!(same * 100 >= shifted.len() * 98, "{same} of {}", shifted.len());
    }

    #[test]
    fn runs_and_short_periods_have_few_anchors() {
        for period in [1, 2, 3, 7, 30] {
            let raw: Vec<u8> = noise_of(3, period).into_iter().cycle().take(1 << 20).collect();
            assert!(all(&raw, 1 << 16).len() <= 1 << 15, "period {period}");
        }
        for byte in 0..=255 {
            assert!(all(&vec![byte; 100_000], 1 << 16).len() <= 2, "byte {byte}");
        }
    }

    #[test]
    fn no_content_has_more_than_one_anchor_in_32_bytes() {
        let mut anchors = Anchors::new(1);
        anchors.scan(&noise_of(5, 1 << 20));
        assert!(anchors.found.len() <= (1 << 20) / APART);
        assert!(anchors.found.windows(2).all(|w| w[1].0 >= w[0].0 + APART));
    }
}
