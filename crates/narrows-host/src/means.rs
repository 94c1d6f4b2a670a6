//! The means of this process: how much memory and how many descriptors a server may share out among its clients.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where the system tells nothing of its memory.
const MEMORY_UNKNOWN: u64 = 1 << 30;

/// Memory that this process may have: that of the machine, or less by `ulimit -v` or a cgroup.
pub fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(mem_total);
    let address_space = getrlimit(Resource::As).current;
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok();
    let cgroup = cgroup.and_then(|text| memory_max(Path::new("/sys/fs/cgroup"), &text));
    let limits = [machine.or(Some(MEMORY_UNKNOWN)), address_space, cgroup];
    limits.into_iter().flatten().min().unwrap_or(MEMORY_UNKNOWN)
}

/// Descriptors that this process may have when its limit is raised as far as it goes.
pub fn descriptors() -> usize {
    allow_descriptors();
    getrlimit(Resource::Nofile).current.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}

/// Copies keep a descriptor of each file that is whole and not on the disk, and many copies in one process need more still;
/// the system's usual limit is for programs that wait for them by select(2).
pub fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least limit of the process's cgroup (version 2) and of those that it is in.
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
