//! What every block takes beside its codec, and with that the costs that bound and schedules reckon with.

use narrows::oracle::Cost;

use crate::table::{self, STORE_NS_PER_BYTE};

/// Work per block whatever the method: queueing, waking, header, system call.
pub const ENCODE_FIXED_NS: f64 = 1500.0;
pub const DECODE_FIXED_NS: f64 = 1000.0;
/// Bytes of a frame's header; simulated frames carry no check.
pub const HEADER_LEN: f64 = 8.0;

/// What a codec takes, with so much of the overhead of one block.
pub(crate) fn with_share(encode_ns: f64, wire_len: f64, decode_ns: f64, share: f64) -> Cost {
    Cost {
        encode_s: (encode_ns + share * ENCODE_FIXED_NS) * 1e-9,
        wire_len: wire_len + share * HEADER_LEN,
        decode_s: (decode_ns + share * DECODE_FIXED_NS) * 1e-9,
    }
}

/// A block of `len` bytes by `store`, then by every method of its row of the table.
pub(crate) fn of_block(len: usize, measured: &[table::Cost]) -> Vec<Cost> {
    let n = len as f64;
    let store_ns = n * STORE_NS_PER_BYTE;
    let cost = |c: &table::Cost| {
        // What did not shrink was sent raw.
        let decode_ns = if c.wire_len < n { c.decode_ns } else { store_ns };
        with_share(c.encode_ns, c.wire_len, decode_ns, 1.0)
    };
    std::iter::once(with_share(store_ns, n, store_ns, 1.0)).chain(measured.iter().map(cost)).collect()
}

/// A block of `len` times the same byte, sent as that byte.
pub(crate) fn of_constant(len: usize) -> Cost {
    let store_ns = len as f64 * STORE_NS_PER_BYTE;
    with_share(store_ns, 1.0, store_ns, 1.0)
}
