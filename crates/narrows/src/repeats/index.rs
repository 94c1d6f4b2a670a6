//! The index: where content with a given hash was last. A hash table of fixed size.

use std::hint::black_box;

/// Entries of one bucket: one cache line.
const BUCKET: usize = 8;
/// Most entries: 8 MiB.
const ENTRIES_MAX: usize = 1 << 20;
/// At most one position in 32 is an anchor, which with their least distance is one in 64 bytes. Of the
/// repeats of 128 bytes in two releases of a source tree it finds most; with half as many anchors the
/// second release takes 2 % more.
const SPACING_BITS_MIN: u32 = 5;

/// How many positions, as a power of two, there are for one anchor after `len` bytes of a flow, so
/// that the anchors of all that repeats may refer to find room.
pub(super) fn spacing_bits(len: u64, reach: usize) -> u32 {
    let covered = len.min(reach as u64);
    if covered <= (ENTRIES_MAX as u64) << (SPACING_BITS_MIN + 1) {
        return SPACING_BITS_MIN;
    }
    covered.div_ceil(ENTRIES_MAX as u64).next_power_of_two().ilog2()
}

/// Buckets that are fetched together: a cache miss takes as long as hashing a hundred bytes, but many
/// of them at once take hardly longer than one.
pub(super) const AHEAD: usize = 16;

/// An entry is the tag in its upper half and the low bits of the raw offset in its lower half.
pub(super) struct Index {
    buckets: Vec<[u64; BUCKET]>,
    shift: u32,
}

/// The entries of one bucket with one tag, latest first.
pub(super) struct Bucket {
    entries: [u64; BUCKET],
    tag: u32,
}

impl Index {
    pub(super) fn new(reach: usize) -> Self {
        let entries = (reach >> SPACING_BITS_MIN).next_power_of_two().clamp(2 * BUCKET, ENTRIES_MAX);
        let buckets = entries / BUCKET;
        Self { buckets: vec![[0; BUCKET]; buckets], shift: 64 - buckets.ilog2() }
    }

    pub(super) fn memory(&self) -> usize {
        self.buckets.len() * size_of::<[u64; BUCKET]>()
    }

    /// Brings the buckets of these hashes into the cache.
    pub(super) fn fetch(&self, hashes: impl Iterator<Item = u64>) {
        let ends = hashes.map(|hash| {
            let entries = &self.buckets[self.place(hash).0];
            // A bucket may lie in two lines.
            entries[0] ^ entries[BUCKET - 1]
        });
        black_box(ends.fold(0, |all, end| all ^ end));
    }

    pub(super) fn bucket(&self, hash: u64) -> Bucket {
        let (bucket, tag) = self.place(hash);
        Bucket { entries: self.buckets[bucket], tag }
    }

    /// Adds the content before raw offset `at`. The oldest entry of its bucket makes room.
    pub(super) fn insert(&mut self, hash: u64, at: u64) {
        let (bucket, tag) = self.place(hash);
        let entries = &mut self.buckets[bucket];
        entries.copy_within(..BUCKET - 1, 1);
        entries[0] = u64::from(tag) << 32 | u64::from(at as u32);
    }

    fn place(&self, hash: u64) -> (usize, u32) {
        let mixed = (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> self.shift) as usize, mixed as u32)
    }
}

impl Bucket {
    /// How far back from raw offset `at` the entries are, nearest first. Reaches are shorter than
    /// the 4 GiB after which offsets repeat.
    pub(super) fn distances(&self, at: u64) -> impl Iterator<Item = u64> + '_ {
        let same = self.entries.iter().filter(|&&entry| (entry >> 32) as u32 == self.tag);
        same.map(move |&entry| u64::from((at as u32).wrapping_sub(entry as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_exceeds_8_mib_and_has_room_for_the_reach() {
        for log in 16..=30 {
            let reach = 1usize << log;
            let index = Index::new(reach);
            assert!(index.memory() <= 8 << 20);
            // Two anchors have as many bytes between them as the nearest at least.
            for len in [1, reach as u64 / 2, reach as u64, 10 * reach as u64] {
                let bits = spacing_bits(len, reach);
                let each = if bits == SPACING_BITS_MIN { 64 } else { 1 << bits };
                let covered = len.min(reach as u64) as usize;
                assert!(index.buckets.len() * BUCKET >= covered / each, "2^{log}, {len}");
            }
        }
    }

    #[test]
    fn the_latest_come_first_and_the_oldest_go() {
        let mut index = Index::new(1 << 20);
        for at in 1..=10 {
            index.insert(7, (1 << 32) - 5 + at);
        }
        let at = (1 << 32) + 100;
        let found: Vec<u64> = index.bucket(7).distances(at).collect();
        assert_eq!(found, [95, 96, 97, 98, 99, 100, 101, 102]);
        assert_eq!(index.bucket(8).distances(at).count(), 0);
    }
}
