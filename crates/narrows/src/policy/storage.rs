//! `storage`: for bytes that are kept. No link is waited for, so its rate says nothing; what counts
//! is how much is left of them, and that encoding them holds nothing up.
//!
//! One method, zstd at its usual level, in blocks so long that little of what `zstd` itself finds
//! is cut in two: on files of 5 to 9 MB 2 MiB leave 1.2 % more at most, 1 MiB 3.5 %, 512 KiB 5 %.
//! Blocks are not linked: 64 KiB of history in front of so much bring nothing, and without them
//! they decode side by side and an index leads into their midst. Prices of storage and of cores do
//! not enter yet.

use super::{Choice, NoSettings, Policy, Registered};
use crate::codec::Method;
use crate::monitor::View;

/// The policy: zstd in long, unlinked blocks.
pub struct Storage {
    block_len: usize,
}

impl Storage {
    /// Maximum length of a block, in raw bytes; every receiver accepts it.
    pub const BLOCK_MAX: usize = 2 << 20;
    const BLOCK_MIN: usize = 512 << 10;
    const METHOD: Method = Method::zstd(3);

    /// A policy for one flow, with a block length that suits this number of encoding cores.
    pub fn new(cores: usize) -> Self {
        // All cores together hold as much as two do, so that a flow's memory suffices for all to be
        // busy.
        let block_len = 2 * Self::BLOCK_MAX / cores.max(2).next_power_of_two();
        Self { block_len: block_len.max(Self::BLOCK_MIN) }
    }

    pub(super) fn methods() -> Vec<Method> {
        vec![Method::STORE, Self::METHOD]
    }
}

impl Policy for Storage {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let block_len = self.block_len.min(view.limits.block_max);
        let method = if view.limits.allows(Self::METHOD) { Self::METHOD } else { Method::STORE };
        let encode_ns = method.nominal_encode_ns(block_len.min(view.upcoming.len()));
        Choice { encode_ns, ..Choice::new(method, block_len) }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(self.block_len)
    }
}

/// What may be lost of a stream that is written slowly, if its writer dies; and a whole block comes
/// meanwhile from whoever writes 2 MiB/s.
const GATHER_NS: u64 = 1_000_000_000;

const SETTINGS: NoSettings = NoSettings {
    name: "storage",
    block_max: Storage::BLOCK_MAX,
    gather_ns: GATHER_NS,
    methods: Storage::methods,
    build: |setup| Box::new(Storage::new(setup.cores)),
};

pub(super) const ENTRY: Registered = Registered {
    name: "storage",
    usage: "storage",
    about: "for files: zstd in long blocks, whatever the speed of the disk",
    examples: &["storage"],
    parse: |rest| SETTINGS.parse(rest),
};
