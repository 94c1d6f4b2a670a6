//! A remote shell whose link stalls at a chosen offset until the test releases it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::{PATIENCE, finish};

/// Runs the command in its arguments locally, and holds the bytes of one end after an offset.
pub(crate) struct Relay {
    folder: PathBuf,
}

#[derive(Clone, Copy)]
pub(crate) enum Hold {
    /// Holds the client's output after this many bytes.
    Up(u64),
    /// Holds the server's output after this many bytes.
    Down(u64),
}

impl Relay {
    pub(crate) fn new(home: &Path, hold: Hold) -> Self {
        let folder = home.join("relay");
        fs::create_dir_all(&folder).unwrap();
        for name in ["held", "server", "gate"] {
            let _ = fs::remove_file(folder.join(name));
        }
        assert!(Command::new("mkfifo").arg(folder.join("gate")).status().unwrap().success());
        // `head` would buffer small pieces.
        let pass = |len: u64| format!("dd bs=64k count={len} iflag=count_bytes status=none");
        let held = |len: u64| format!("{{ {}; : > held; cat gate > /dev/null; exec cat; }}", pass(len));
        let (up, down) = match hold {
            Hold::Up(len) => (held(len), "cat".to_owned()),
            Hold::Down(len) => ("cat".to_owned(), held(len)),
        };
        let lines = [
            "#!/bin/sh".to_owned(),
            "shift".to_owned(),
            format!("cd '{}'", folder.display()),
            format!("{up} | sh -c 'echo $$ > server; exec '\"$*\" | {down}"),
        ];
        fs::write(folder.join("shell"), lines.join("\n") + "\n").unwrap();
        fs::set_permissions(folder.join("shell"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    pub(crate) fn shell(&self) -> PathBuf {
        self.folder.join("shell")
    }

    /// Runs a copy over this shell. `meanwhile` runs when the link has stalled and `ready` has
    /// returned.
    pub(crate) fn run(&self, mut copy: Command, ready: impl FnOnce(&Child), meanwhile: impl FnOnce(&Child)) -> Output {
        // A second carrier would bypass the relay.
        let mut copy = Guard(Some(copy.args(["--carriers", "1"]).spawn().unwrap()));
        if let Some(client) = &copy.0 {
            ready(client);
            meanwhile(client);
        }
        self.release();
        finish(copy.0.take().unwrap())
    }

    pub(crate) fn server(&self) -> Option<Pid> {
        Pid::from_raw(fs::read_to_string(self.folder.join("server")).ok()?.trim().parse().ok()?)
    }

    /// Waits until the link has stalled.
    pub(crate) fn await_held(&self) {
        await_that("the link to stand still", || self.folder.join("held").exists());
    }

    /// Waits until the sending end has scanned its sources: the scanning thread has ended, and all
    /// others wait.
    pub(crate) fn await_scanned(&self, client: &Child, pull: bool) {
        let mut seen = 0;
        await_that("the scan to end", || {
            let sender = if pull { self.server() } else { Some(Pid::from_child(client)) };
            let sender = sender.map_or(0, |sender| sender.as_raw_nonzero().get());
            let threads: Vec<(String, String)> = fs::read_dir(format!("/proc/{sender}/task"))
                .into_iter()
                .flatten()
                .filter_map(|task| {
                    let read = |what| fs::read_to_string(task.as_ref().ok()?.path().join(what)).ok();
                    Some((read("comm")?, read("stat")?))
                })
                .collect();
            let runs = |name: &str| threads.iter().any(|(comm, _)| comm.trim() == name);
            // A thread that has not run yet still has its parent's name, and is not asleep.
            let all_wait = threads.iter().all(|(_, stat)| stat.contains(") S "));
            let scanned = runs("narrows-files") && !runs("narrows-scan") && all_wait;
            seen = if scanned { seen + 1 } else { 0 };
            seen == 3
        });
    }

    /// Releases the link.
    fn release(&self) {
        // Opening a fifo for both directions never blocks. It wakes the reader, which sees the end
        // when it is closed.
        let _gate = OpenOptions::new().read(true).write(true).open(self.folder.join("gate"));
        // A later reader finds an empty file.
        let _ = fs::write(self.folder.join("open"), "");
        let _ = fs::rename(self.folder.join("open"), self.folder.join("gate"));
    }
}

/// Kills the program if its test fails early.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.release();
    }
}

pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
