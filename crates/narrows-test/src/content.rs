//! Content for tests, the same in every run.

/// Bytes that nothing makes shorter.
pub fn noise(len: usize) -> Vec<u8> {
    noise_of(0, len)
}

/// The same; those of another seed have nothing in common with them.
pub fn noise_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    // SplitMix64, from places of its cycle that are far from one another.
    let mut state = mixed(seed);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bytes.extend(mixed(state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Text that shrinks to a third or less: lines as of a log, whose numbers tell one place from another.
pub fn text(len: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(len + 64);
    let mut i = 0u64;
    while text.len() < len {
        i = i.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.extend(format!("{} GET /item/{} 200\n", i >> 40, i >> 55).bytes());
    }
    text.truncate(len);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_content_begins_longer_one_and_seeds_differ() {
        assert!(noise(1001).starts_with(&noise(77)) && text(1001).starts_with(&text(77)));
        assert_eq!((noise(1001).len(), text(1001).len()), (1001, 1001));
        let [a, b] = [1, 2].map(|seed| noise_of(seed, 4 << 10));
        let words = |all: &[u8]| all.chunks(8).map(<[u8]>::to_vec).collect::<std::collections::BTreeSet<_>>();
        assert!(words(&a).is_disjoint(&words(&b)) && words(&a).len() == 512);
    }

    #[test]
    fn all_values_are_as_frequent_in_noise() {
        let mut counts = [0u32; 256];
        noise(1 << 20).iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        // 4096 each; seven standard deviations.
        assert!(counts.iter().all(|n| n.abs_diff(4096) < 450), "{counts:?}");
    }
}
