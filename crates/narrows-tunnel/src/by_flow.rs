//! Maps by the numbers of flows, which are looked up several times for each frame.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map by the number of a flow.
pub(super) type ByFlow<T> = HashMap<u64, T, Seeded>;

/// Hashes by one multiplication. Peers choose the numbers, so the seed is random for each map.
#[derive(Clone, Copy)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn write_u64(&mut self, number: u64) {
        // The golden ratio, as in Fibonacci hashing; both halves of the product count.
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_and_far_apart_spread_over_the_buckets() {
        // Maps take the low bits for the bucket and the high ones to tell entries apart.
        for step in [2u64, 256, 4096, 1 << 20, 1 << 32] {
            let seeded = Seeded::default();
            let hashes: Vec<u64> = (1..=4096u64).map(|i| seeded.hash_one(i.wrapping_mul(step))).collect();
            for shift in [0, 57] {
                let mut buckets = [0; 128];
                hashes.iter().for_each(|hash| buckets[(hash >> shift) as usize % 128] += 1);
                let most = buckets.iter().max().copied().unwrap();
                assert!(most < 4 * 4096 / 128, "{step} {shift}: {most}");
            }
        }
    }
}
