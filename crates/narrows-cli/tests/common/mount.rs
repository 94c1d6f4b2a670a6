//! Small file systems in a mount namespace that ends with the test. Nobody else sees them, and root
//! is not needed if users may create namespaces.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) struct Mount {
    holder: Child,
    said: BufReader<ChildStdout>,
    path: PathBuf,
}

impl Mount {
    /// An empty tmpfs with these options. If it cannot be mounted, records why and returns `None`.
    #[track_caller]
    pub(crate) fn tmpfs(home: &Path, options: &str) -> Option<Self> {
        if !narrows_test::has("unshare") {
            return None;
        }
        let folder = home.join("mounted");
        let _ = fs::create_dir(&folder);
        let lines = "mount -t tmpfs -o \"$1\" none \"$2\" && echo mounted && read _ && mount -o remount,ro none \"$2\" \
                     && echo mounted && read _";
        let holder = Command::new("unshare")
            .args(["-rm", "sh", "-c", lines, "sh", options])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mounted = holder.ok().and_then(|mut holder| {
            let said = BufReader::new(holder.stdout.take()?);
            // Reached from outside through /proc of the process that holds the namespace.
            let path = PathBuf::from(format!("/proc/{}/root", holder.id())).join(folder.strip_prefix("/").ok()?);
            let mut mount = Self { holder, said, path };
            mount.is_mounted().then_some(mount)
        });
        if mounted.is_none() {
            narrows_test::skip("this user cannot mount anything here");
        }
        mounted
    }

    fn is_mounted(&mut self) -> bool {
        let mut line = String::new();
        self.said.read_line(&mut line).is_ok() && line == "mounted\n"
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Remounts the file system read-only.
    pub(crate) fn make_read_only(&mut self) {
        self.holder.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(self.is_mounted());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
