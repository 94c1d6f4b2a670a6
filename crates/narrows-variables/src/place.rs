//! Places of the chunks of a variable, as each format states them.

use std::sync::Arc;

/// Where the chunks of a variable are.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Nothing was written.
    Nowhere,
    /// In the header.
    Inline(Vec<u8>),
    /// In one run of bytes of the file.
    Run(u64),
    /// By an index of HDF5.
    Hdf5(Index),
    /// By keys of Zarr.
    Zarr(Chunking),
    /// By a list.
    List(Vec<Chunk>),
}

/// A stored chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its first element along each axis.
    pub origin: Vec<u64>,
    /// Bytes stored.
    pub len: u64,
    /// Filters that were left out for it, by bits in the order of the filters.
    pub skipped: u32,
    pub(crate) at: u64,
    /// One text for all chunks of a shard.
    pub(crate) key: Option<Arc<str>>,
}

impl Chunk {
    /// Memory that one of so many axes takes in a list, what its vector takes beside its numbers included.
    pub(crate) fn memory(rank: usize) -> u64 {
        (size_of::<Self>() + 8 * rank + 16) as u64
    }
}

/// Where the index of a dataset is, and its kind.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    pub(crate) at: u64,
    pub(crate) form: IndexForm,
    /// Longest that each axis may become, for indexes that count chunks.
    pub(crate) max: Vec<u64>,
    /// Chunks that reach beyond the array are stored without filters.
    pub(crate) is_edge_raw: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum IndexForm {
    Tree1,
    Single { filtered: Option<(u64, u32)> },
    Implicit,
    Fixed,
    Extensible,
    Tree2,
}

/// How the chunks of an array are found.
#[derive(Debug, Clone)]
pub(crate) struct Chunking {
    /// Before the keys of its chunks.
    pub(crate) prefix: String,
    pub(crate) form: KeyForm,
    pub(crate) separator: char,
    /// Shape of what is behind a key: a chunk or a shard.
    pub(crate) outer: Vec<u64>,
    pub(crate) shard: Option<Shard>,
}

/// How a key names a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum KeyForm {
    /// `1.2` or `1/2`.
    Two,
    /// `c/1/2` or `c.1.2`.
    Three,
}

/// Chunks within one key.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) inner: Vec<u64>,
    /// Its index ends with a check sum.
    pub(crate) has_sum: bool,
    pub(crate) at_start: bool,
}
