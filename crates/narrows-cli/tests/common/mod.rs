//! Shared by the tests of the program.
#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod calls;
pub(crate) mod copies;
pub(crate) mod folding;
pub(crate) mod mount;
pub(crate) mod relay;
pub(crate) mod sshd;
pub(crate) mod store;
pub(crate) mod tunnels;
pub(crate) mod view;
pub(crate) mod world;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

pub(crate) use narrows_test::{PATIENCE, noise as random, text};

pub(crate) fn narrows(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
    // Keeps tests from reading or writing the user's calibration, and from the user's default options.
    command
        .env("XDG_CACHE_HOME", home)
        .env("NARROWS_CONFIG", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A port that nobody listens on. It is below those that Linux gives to outgoing connections
/// (32768 and above unless set otherwise): one of theirs may be in use again before it is listened
/// on. Test programs at the same time begin at other ports.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    loop {
        let at = std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + at % COUNT) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

pub(crate) fn finish(mut child: Child) -> Output {
    ended(&mut child);
    child.wait_with_output().unwrap()
}

/// Waits for the end of a program; one that hangs is killed and fails its test.
pub(crate) fn ended(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As `finish`, for programs that print more than a pipe holds.
pub(crate) fn finish_reading(mut child: Child) -> Output {
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        stdout.read_to_end(&mut all).map(|_| all)
    });
    let mut output = finish(child);
    output.stdout = reader.join().unwrap().unwrap();
    output
}

/// Whether --engine=seccomp has to work. Some containers forbid a process to inspect its own
/// children; every connection stays plain there.
#[track_caller]
pub(crate) fn asks_kernel() -> bool {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let mut child = Command::new("sleep").arg("10").spawn().unwrap();
    let looked = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|pidfd| pidfd_getfd(pidfd, 0, PidfdGetfdFlags::empty()));
    child.kill().unwrap();
    child.wait().unwrap();
    let possible = actions.contains("user_notif") && looked.is_ok();
    if !possible {
        narrows_test::skip(format!("no filters that ask, or no looking into other processes: {looked:?}"));
    }
    possible
}

/// Runs the program with `input` on stdin.
pub(crate) fn filter(home: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = narrows(home).args(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

/// Runs `command` with `input` on stdin.
pub(crate) fn store_filter(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = finish(child);
    feeder.join().unwrap();
    output
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn assert_one_line_error(output: &Output, expected_code: i32) {
    let text = stderr(output);
    assert_eq!(code(output), expected_code, "{text}");
    assert_eq!(text.lines().filter(|l| l.starts_with("narrows: ") && !l.contains("listening")).count(), 1, "{text}");
}

pub(crate) fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Starts a `recv` on a free port; returns it and its address.
pub(crate) fn listen(home: &Path, args: &[&str]) -> (Child, String) {
    let mut child = narrows(home).args(["recv", "--listen", "127.0.0.1:0"]).args(args).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_string();
    // Passes on the rest of the output, so that the pipe never fills.
    let (reader, writer) = std::io::pipe().unwrap();
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = stderr.read_to_end(&mut rest);
        let _ = { writer }.write_all(&rest);
    });
    child.stderr = Some(std::process::ChildStderr::from(std::os::fd::OwnedFd::from(reader)));
    (child, format!("tcp://{address}"))
}

pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect()
}

/// Sends a signal to a program that a test started.
pub(crate) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until the process has a file of this length or more in this folder open, according to /proc.
/// An output has no name before it is whole, where the file system can do that.
pub(crate) fn wait_until_it_writes_in(folder: &Path, len: u64, child: &Child) {
    let folder = folder.canonicalize().unwrap();
    let is_there = |fd: fs::DirEntry| {
        let is_file = fd.path().metadata().is_ok_and(|data| data.is_file() && data.len() >= len);
        is_file && fs::read_link(fd.path()).is_ok_and(|file| file.parent() == Some(&folder))
    };
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id()));
        if descriptors.is_ok_and(|all| all.flatten().any(is_there)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it writes no file in {}", folder.display());
}

/// Waits until the process catches signals, according to /proc.
pub(crate) fn wait_until_signals_are_caught(child: &Child) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim();
        if u64::from_str_radix(caught, 16).unwrap() >> (libc::SIGTERM - 1) & 1 == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not catch signals");
}
