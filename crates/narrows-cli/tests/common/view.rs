//! Packs that are mounted by the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{PATIENCE, code, finish, stderr};

/// Mounts `pack` on `folder`; `None` where the system has no FUSE or forbids it.
#[track_caller]
pub(crate) fn mount(narrows: &mut Command, pack: &Path, folder: &Path) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() {
        narrows_test::skip("there is no /dev/fuse");
        return None;
    }
    if !["umount", "diff"].into_iter().all(narrows_test::has) {
        return None;
    }
    if !rustix::process::geteuid().is_root() && !narrows_test::has("fusermount3") {
        return None;
    }
    fs::create_dir_all(folder).unwrap();
    let child = narrows.args(["mount", "-f"]).arg(pack).arg(folder).spawn().unwrap();
    let mut mounted = Mounted { child: Some(child), folder: folder.to_path_buf() };
    let begun = Instant::now();
    while !is_mounted(folder) {
        let ended = mounted.child.as_mut().unwrap().try_wait().unwrap().is_some();
        if ended {
            let said = stderr(&mounted.child.take().unwrap().wait_with_output().unwrap());
            // Containers may have the device and not let anybody use it.
            assert!(said.contains("not permitted") || said.contains("denied"), "{said}");
            narrows_test::skip(said.trim());
            return None;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(mounted)
}

pub(crate) fn is_mounted(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap();
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", folder.display()))
}

pub(crate) struct Mounted {
    pub(crate) child: Option<Child>,
    pub(crate) folder: PathBuf,
}

impl Mounted {
    /// Ends it as a user does, and waits until it has ended.
    pub(crate) fn unmount(mut self) {
        assert!(Command::new("umount").arg(&self.folder).status().unwrap().success());
        let output = finish(self.child.take().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(!is_mounted(&self.folder));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
