//! Temporary folders for data and keys of a run, and cleanup after killed runs.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "narrows-lab-";

/// Creates a folder that is removed on drop. Folders of processes that were killed are removed by
/// the next call.
pub(crate) fn folder() -> Result<TempDir> {
    let all = std::env::temp_dir();
    sweep(&all);
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(&all).context("cannot make a temporary folder")
}

/// Removes the folders of processes that have ended.
fn sweep(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split_once('-'));
        let pid = pid.and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists()) {
            // Fails for a folder of another user, which may stay.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_uses_is_removed() {
        let all = tempfile::tempdir().unwrap();
        // Pids are at most 2^22.
        for name in ["narrows-lab-4999999-x", "narrows-lab-notes", "other-4999999-x"] {
            std::fs::create_dir(all.path().join(name)).unwrap();
        }
        std::fs::create_dir(all.path().join(format!("narrows-lab-{}-x", std::process::id()))).unwrap();
        sweep(all.path());
        let left = std::fs::read_dir(all.path()).unwrap().count();
        assert!(left == 3 && !all.path().join("narrows-lab-4999999-x").exists());
    }
}
