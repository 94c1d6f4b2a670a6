//! Compression shared by all connections of a supervisor: one policy from the command line, one
//! pool of workers that encode and one of workers that decode.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use narrows::calibration::Calibration;
use narrows::flow::Share;
use narrows::policy::PolicySpec;
use narrows::stream::Compression;

/// At this total nothing more is decoded. It is above what all directions may hold because each may
/// exceed its share by one block of any length.
const MEMORY_MAX: usize = 1 << 30;

/// Whether all directions together hold so much that nothing more is decoded.
pub fn is_exhausted(share: &Share) -> bool {
    share.of_all().held() >= MEMORY_MAX
}

pub struct Compressor {
    compression: Compression,
    /// Data that does not leave this host is stored uncompressed.
    pub stores_within_host: bool,
    /// Jobs with the workers.
    jobs: Arc<AtomicUsize>,
}

/// Counts a job with the workers until it is dropped.
pub struct AtWork(Arc<AtomicUsize>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compressor {
    /// Without a policy it is `balance` between hosts and `store` within this host: no codec is as
    /// fast as its memory, and a slow reader there looks like a slow link.
    pub fn new(spec: Option<PolicySpec>, calibration: Option<Calibration>) -> Self {
        let stores_within_host = spec.is_none();
        let compression = Compression::new(spec.unwrap_or_default(), calibration);
        Self { compression, stores_within_host, jobs: Arc::default() }
    }

    /// Counts a job that goes to the workers.
    pub fn at_work(&self) -> AtWork {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        AtWork(Arc::clone(&self.jobs))
    }

    /// Whether the workers have jobs.
    pub fn is_at_work(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 0
    }
}

impl Deref for Compressor {
    type Target = Compression;

    fn deref(&self) -> &Compression {
        &self.compression
    }
}
