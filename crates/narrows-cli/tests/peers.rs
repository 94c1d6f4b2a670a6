//! The memory of peers: what `send` and `cp` keep of a host and start from the next time, its
//! switches, and files that are no memory.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::*;

/// A cache folder, a folder with a file of 300 KB, and the server of copies.
struct World {
    home: tempfile::TempDir,
    file: PathBuf,
}

impl World {
    fn new() -> Self {
        let home = home();
        let file = home.path().join("file");
        fs::write(&file, text(300_000)).unwrap();
        Self { home, file }
    }

    fn memory(&self) -> PathBuf {
        self.home.path().join("narrows").join("peers")
    }

    /// Sends the file to a new `recv`, with `NARROWS_NO_MEMORY` set to `switch`.
    fn send(&self, args: &[&str], switch: &str) -> Output {
        let other = home();
        let (recv, address) = listen(other.path(), &["-o", other.path().join("out").to_str().unwrap()]);
        let mut command = narrows(self.home.path());
        command.arg("send").arg(&self.file).arg(&address).args(args).env("NARROWS_NO_MEMORY", switch);
        let sent = finish(command.spawn().unwrap());
        assert_eq!(code(&finish(recv)), 0);
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        assert!(fs::read(other.path().join("out")).unwrap() == text(300_000));
        sent
    }
}

fn peers(memory: &Path) -> usize {
    fs::read_to_string(memory).unwrap_or_default().lines().filter(|line| line.starts_with("peer ")).count()
}

#[test]
fn a_transfer_is_remembered_by_host_unless_that_is_switched_off() {
    let world = World::new();
    world.send(&["--no-memory"], "");
    world.send(&[], "1");
    assert!(!world.memory().exists());
    world.send(&[], "");
    assert_eq!(peers(&world.memory()), 1);
    let kept = fs::read_to_string(world.memory()).unwrap();
    assert!(kept.contains("\nkind ") && !kept.contains("127.0.0.1"), "{kept}");
    world.send(&[], "1");
    world.send(&["--no-memory"], "0");
    assert_eq!(fs::read_to_string(world.memory()).unwrap(), kept, "neither used nor changed");
    // Another port of this host may be a tunnel to another one.
    world.send(&[], "0");
    assert_eq!(peers(&world.memory()), 2);
}

#[test]
fn a_memory_that_is_none_changes_nothing_and_is_replaced() {
    let world = World::new();
    world.send(&[], "");
    let good = fs::read(world.memory()).unwrap();
    for bad in [&good[..good.len() / 2], b"", b"rubbish\n", &[0xff; 5000], &vec![b'9'; 1 << 20]] {
        fs::write(world.memory(), bad).unwrap();
        let sent = world.send(&["--verbose"], "");
        assert!(stderr(&sent).contains("it is ignored"), "{}", stderr(&sent));
        assert_eq!(peers(&world.memory()), 1);
    }
    fs::remove_file(world.memory()).unwrap();
    fs::create_dir(world.memory()).unwrap();
    world.send(&[], "");
    assert!(world.memory().is_dir());
}

#[test]
fn a_transfer_that_failed_is_not_remembered() {
    let world = World::new();
    let sent =
        finish(narrows(world.home.path()).arg("send").arg(&world.file).arg("tcp://127.0.0.1:1").spawn().unwrap());
    assert_eq!(code(&sent), 1);
    assert!(!world.memory().exists());
}

#[test]
fn copies_are_remembered_and_pipes_and_copies_within_the_host_are_not() {
    let world = World::new();
    let h = world.home.path();
    fs::create_dir(h.join("served")).unwrap();
    let mut server = narrows(&h.join("server"));
    server.args(["serve", "--listen", "127.0.0.1:0", "--insecure", "--dir"]).arg(h.join("served"));
    let mut server = server.spawn().unwrap();
    let mut line = Vec::new();
    let mut stderr_of_server = server.stderr.take().unwrap();
    let mut byte = [0];
    while !line.ends_with(b"\n") && stderr_of_server.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    let address = line.split_whitespace().find(|word| word.contains("127.0.0.1:")).unwrap_or_default();
    let address = address.trim_start_matches("narrows://").trim_end_matches(['/', ',', ';', '.']).to_owned();
    let copy = |target: &str, args: &[&str]| {
        let mut command = narrows(h);
        command.args(["cp", "--insecure"]).args(args).arg(&world.file).arg(target);
        let copied = finish(command.spawn().unwrap());
        assert_eq!(code(&copied), 0, "{target}: {}", stderr(&copied));
    };
    copy(h.join("here").to_str().unwrap(), &[]);
    let packed = Command::new(env!("CARGO_BIN_EXE_narrows"))
        .args(["pipe", "-c"])
        .arg(&world.file)
        .env("XDG_CACHE_HOME", h)
        .stdout(Stdio::null())
        .status();
    assert!(packed.unwrap().success());
    copy(&format!("narrows://{address}/one"), &["--no-memory"]);
    assert!(!world.memory().exists());
    copy(&format!("narrows://{address}/two"), &[]);
    let remembered = peers(&world.memory());
    signal(&server, "-TERM");
    finish(server);
    assert_eq!(remembered, 1);
}
