//! Fixed overhead of a block besides its codec, and the resulting costs that the bound and the
//! schedules use.

use narrows::oracle::Cost;

use crate::table::{self, STORE_NS_PER_BYTE};

/// The sender's work per block whatever the method: queueing, waking, header, system call.
pub const ENCODE_FIXED_NS: f64 = 1500.0;
/// The receiver's work per block whatever the method.
pub const DECODE_FIXED_NS: f64 = 1000.0;
/// Bytes of a frame's header; simulated frames carry no check.
pub const HEADER_LEN: f64 = 8.0;

/// A codec's cost plus `share` of the overhead of one block.
pub(crate) fn with_share(encode_ns: f64, wire_len: f64, decode_ns: f64, share: f64) -> Cost {
    Cost {
        encode_s: (encode_ns + share * ENCODE_FIXED_NS) * 1e-9,
        wire_len: wire_len + share * HEADER_LEN,
        decode_s: (decode_ns + share * DECODE_FIXED_NS) * 1e-9,
        linked: false,
    }
}

/// Costs of a block of `len` bytes: by `store`, then by every column of its row of the table, of
/// which those from `linked_from` on are linked.
pub(crate) fn of_block(len: usize, measured: &[table::Cost], linked_from: usize) -> Vec<Cost> {
    let n = len as f64;
    let store_ns = n * STORE_NS_PER_BYTE;
    let cost = |(i, c): (usize, &table::Cost)| {
        // A block that did not shrink is sent raw.
        let decode_ns = if c.wire_len < n { c.decode_ns } else { store_ns };
        Cost { linked: i >= linked_from && c.wire_len < n, ..with_share(c.encode_ns, c.wire_len, decode_ns, 1.0) }
    };
    std::iter::once(with_share(store_ns, n, store_ns, 1.0)).chain(measured.iter().enumerate().map(cost)).collect()
}

/// Cost of `len` times the same byte, sent as one byte.
pub(crate) fn of_constant(len: usize) -> Cost {
    let store_ns = len as f64 * STORE_NS_PER_BYTE;
    with_share(store_ns, 1.0, store_ns, 1.0)
}
