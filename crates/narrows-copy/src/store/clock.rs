//! Target file systems with coarser times than the source, such as FAT (2 s) and old ext4 (1 s),
//! where files of an earlier copy have rounded times.

use std::os::fd::OwnedFd;

use narrows::entry::Entry;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::partial;
use crate::meta;

/// Finest rounding of times, in nanoseconds: file systems that round to less than a second round to
/// multiples of this.
const FINEST_NS: u32 = 100;
/// Attempt number of the temporary file used here, which no file of a copy uses.
const ATTEMPT: u32 = partial::TRIES + 1;

/// For each examined file system, a nameless file on which times are set.
#[derive(Default)]
pub(super) struct Clocks(Vec<(u64, Option<OwnedFd>)>);

impl Clocks {
    /// Whether the time of a file in `folder` is the time of the entry as its file system rounds
    /// it. A dry run creates no file to test this.
    pub(super) fn is_rounded(&mut self, folder: &OwnedFd, stat: &Stat, entry: &Entry, dry_run: bool) -> bool {
        if !may_be_rounded((stat.st_mtime, stat.st_mtime_nsec as u32), (entry.mtime_s, entry.mtime_ns)) {
            return false;
        }
        if dry_run {
            return stat.st_mtime_nsec == 0;
        }
        let at = self.0.iter().position(|(device, _)| *device == stat.st_dev).unwrap_or_else(|| {
            self.0.push((stat.st_dev, nameless(folder)));
            self.0.len() - 1
        });
        self.0[at].1.as_ref().is_some_and(|file| {
            let now = rustix::fs::fstat(file).ok();
            let set =
                rustix::fs::futimens(file, &meta::times(entry, now.as_ref())).and_then(|()| rustix::fs::fstat(file));
            set.is_ok_and(|s| (s.st_mtime, s.st_mtime_nsec) == (stat.st_mtime, stat.st_mtime_nsec))
        })
    }
}

/// Whether a test is worth it, which it is for almost no file that differs from its source.
fn may_be_rounded(there: (i64, u32), wanted: (i64, u32)) -> bool {
    there.1.is_multiple_of(FINEST_NS) && there < wanted && wanted.0.abs_diff(there.0) < meta::COARSEST_S
}

/// A temporary file on the file system of the folder that vanishes when it is closed.
fn nameless(folder: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(folder, ".", flags | OFlags::TMPFILE, mode).ok().or_else(|| {
        let name = partial::name(std::ffi::OsStr::new("."), ATTEMPT);
        let create =
            || rustix::fs::openat(folder, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode);
        let file = create().ok()?;
        let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
        Some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_a_little_before_and_without_fine_digits_may_be_rounded() {
        let wanted = (1001, 123_456_789);
        for there in [(1001, 0), (1000, 0), (1001, 120_000_000), (1001, 123_456_700)] {
            assert!(may_be_rounded(there, wanted), "{there:?}");
        }
        for there in [(999, 0), (1001, 123_456_788), (1002, 0), wanted, (1001, 200_000_000)] {
            assert!(!may_be_rounded(there, wanted), "{there:?}");
        }
    }
}
