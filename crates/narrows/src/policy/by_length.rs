//! `by_length`: zstd 5 above 1 MiB, LZ4 below.

use super::{Choice, NoSettings, Policy, Registered};
use crate::codec::Method;
use crate::monitor::View;

const LONG: usize = 1 << 20;
/// The longest blocks that every receiver takes.
const BLOCK_MAX: usize = 2 << 20;

struct ByLength;

impl Policy for ByLength {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let block_len = view.limits.block_max;
        // All bytes that can be cut now; `upcoming` is only what lies in one piece of them.
        let len = view.gathered.min(block_len);
        let method = if len > LONG { Method::zstd(5) } else { Method::lz4_accel(1) };
        // The receiver may lack a codec; `store` is always there.
        let method = if view.limits.allows(method) { method } else { Method::STORE };
        Choice { encode_ns: method.nominal_encode_ns(len), ..Choice::new(method, block_len) }
    }

    /// Without this a block ends with the piece that its bytes arrived in, 256 KiB at most.
    fn whole_blocks(&self) -> Option<usize> {
        Some(BLOCK_MAX)
    }
}

const SETTINGS: NoSettings = NoSettings {
    name: "by_length",
    block_max: BLOCK_MAX,
    gather_ns: 0,
    links: false,
    methods: || vec![Method::STORE, Method::zstd(5), Method::lz4_accel(1)],
    build: |_| Box::new(ByLength),
};

pub(super) const ENTRY: Registered = Registered {
    name: "by_length",
    usage: "by_length",
    about: "zstd 5 for blocks above 1 MiB, LZ4 for shorter ones",
    examples: &["by_length"],
    parse: |rest, _| SETTINGS.parse(rest),
};
