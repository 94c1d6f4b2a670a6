//! Hashing of file content, with several threads if available.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use narrows::entry::DIGEST_LEN;
use rustix::io::Errno;

/// Length in bytes from which several threads hash faster than one.
const PARALLEL_LEN: usize = 512 << 10;

/// Adds bytes to a hash.
pub(super) fn update(hash: &mut blake3::Hasher, bytes: &[u8]) {
    if bytes.len() >= PARALLEL_LEN && has_threads() {
        hash.update_rayon(bytes);
    } else {
        hash.update(bytes);
    }
}

/// Length of the reads of [`of_file`], in bytes.
const READ_LEN: usize = 1 << 20;

/// The digest of the content of a file. What is read is added to `read`, for those who watch.
pub(super) fn of_file(file: OwnedFd, read: &AtomicU64) -> io::Result<[u8; DIGEST_LEN]> {
    let (mut hash, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; READ_LEN], 0);
    loop {
        match rustix::io::pread(&file, &mut buffer[..], at) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(n) => {
                update(&mut hash, &buffer[..n]);
                at += n as u64;
                read.fetch_add(n as u64, Ordering::Relaxed);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether the threads of the pool can be started; if they cannot, its first use would panic.
fn has_threads() -> bool {
    static STARTED: OnceLock<bool> = OnceLock::new();
    *STARTED.get_or_init(|| rayon_core::ThreadPoolBuilder::new().build_global().is_ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_the_same_however_it_is_made() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let mut hash = blake3::Hasher::new();
        for part in [&bytes[..5], &bytes[5..1_500_000], &bytes[1_500_000..]] {
            super::update(&mut hash, part);
        }
        assert_eq!(hash.finalize(), blake3::hash(&bytes));
    }
}
