//! Limits that several readers share.

use std::num::NonZero;

/// Memory for chunks that several threads decode, each with its stored and its decoded bytes. One thread
/// may need more for the longest chunks.
const DECODED_MAX: usize = 1 << 30;

/// Bytes that a filter may give above those of a chunk: a check sum, a header, what did not shrink.
const BESIDE: usize = 4096;

/// Room for a chunk between two filters.
pub(crate) fn room(raw_len: usize) -> usize {
    raw_len + raw_len / 8 + BESIDE
}

/// As many threads as may decode chunks of so many bytes at once.
pub(crate) fn threads(raw_len: Option<usize>, threads: NonZero<usize>) -> NonZero<usize> {
    let most = DECODED_MAX / raw_len.unwrap_or(0).saturating_mul(2).max(1);
    NonZero::new(most).map_or(NonZero::<usize>::MIN, |most| most.min(threads))
}
