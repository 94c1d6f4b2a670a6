//! Standard zstd frames with a seek table: the zstd seekable format, which any zstd reads.
