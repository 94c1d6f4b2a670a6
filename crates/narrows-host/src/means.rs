//! Resources of this process: the memory and descriptors that a server can divide among its
//! clients.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Assumed memory in bytes if the system reports none.
const MEMORY_UNKNOWN: u64 = 1 << 30;

/// Memory limit of this process in bytes: the memory of the host, or less by `ulimit -v` or a
/// cgroup.
pub fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(mem_total);
    let address_space = getrlimit(Resource::As).current;
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok();
    let cgroup = cgroup.and_then(|text| memory_max(Path::new("/sys/fs/cgroup"), &text));
    let limits = [machine.or(Some(MEMORY_UNKNOWN)), address_space, cgroup];
    limits.into_iter().flatten().min().unwrap_or(MEMORY_UNKNOWN)
}

/// Descriptor limit of this process, after raising it as far as possible.
pub fn descriptors() -> usize {
    allow_descriptors();
    getrlimit(Resource::Nofile).current.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}

/// Raises the soft limit on descriptors to the hard limit. A copy keeps a descriptor of each
/// complete file that is not yet flushed to the disk, and a server runs many copies. The usual soft
/// limit is low only for the sake of programs that use select(2).
pub fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// How many descriptors of a kind may be kept open: `most`, or one of so many that this process may have, but one at
/// least. For what is opened again when it is needed.
pub fn share_of_descriptors(most: usize, divisor: usize) -> usize {
    let allowed = getrlimit(Resource::Nofile).current.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    (allowed / divisor).clamp(1, most)
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit of the cgroup of the process (version 2) and of the cgroups that contain it.
fn memory_max(root: &Path, own: &str) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = root.join(path);
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|f| fs::read_to_string(f.join("memory.max")).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        assert_eq!(mem_total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_total("MemTotal: lots\n"), None);
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let own = "1:name=systemd:/x\n0::/a/b\n";
        assert_eq!(memory_max(root.path(), own), None);
        fs::write(root.path().join("a/b/memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1000000\n").unwrap();
        assert_eq!(memory_max(root.path(), own), Some(1_000_000));
        fs::write(root.path().join("a/b/memory.max"), "500000\n").unwrap();
        assert_eq!(memory_max(root.path(), own), Some(500_000));
        assert!(memory() > 0);
    }
}
