//! Unpack 12: pairs of 12-bit numbers in three bytes become words (WFDB's format 212, for one).

/// The words, and the bytes that make no pair.
pub(crate) fn apply(bytes: &[u8]) -> (Vec<u16>, &[u8]) {
    let triples = bytes.chunks_exact(3);
    let rest = triples.remainder();
    let mut words = Vec::with_capacity(bytes.len() / 3 * 2);
    for t in triples {
        let [a, b, c] = [t[0], t[1], t[2]].map(u16::from);
        words.extend([a | (b & 15) << 8, c | b >> 4 << 8]);
    }
    (words, rest)
}

/// The bytes; `None` if a word has more than 12 bits.
pub(crate) fn invert(words: &[u16], rest: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(words.len() / 2 * 3 + rest.len());
    let mut all = 0;
    for pair in words.chunks_exact(2) {
        let (a, c) = (pair[0], pair[1]);
        all |= a | c;
        bytes.extend([a as u8, (a >> 8 | c >> 8 << 4) as u8, c as u8]);
    }
    bytes.extend(rest);
    (all < 4096).then_some(bytes)
}
