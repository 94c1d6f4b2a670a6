//! `storage`: for bytes that are stored. There is no link to wait for, so its rate does not matter;
//! what counts is the encoded length, and that encoding does not delay the writer.
//!
//! It uses one method, zstd at its default level, in blocks so long that few matches are lost at
//! their borders: compared to `zstd` itself on files of 5 to 9 MB, blocks of 2 MiB are at most 1.2
//! % larger, of 1 MiB 3.5 %, of 512 KiB 5 %. Blocks are not linked: 64 KiB of history gain nothing
//! for such lengths, and unlinked blocks can be decoded in parallel and found by an index. Prices
//! of storage and of cores are not considered yet.

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
        // The blocks of all cores together hold as much as those of two, so that the memory of a
        // flow keeps all cores busy.
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

/// Bounds what is lost of a slowly written stream if its writer dies. At 2 MiB/s a whole block
/// gathers in this time.
const GATHER_NS: u64 = 1_000_000_000;

const SETTINGS: NoSettings = NoSettings {
    name: "storage",
    block_max: Storage::BLOCK_MAX,
    gather_ns: GATHER_NS,
    links: false,
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
