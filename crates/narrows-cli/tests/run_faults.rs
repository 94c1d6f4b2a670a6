//! `narrows run` where something is missing or obstructed: programs work, their connections handed
//! over or plain.
//!
//! Tests that need root, or a compiler that is not installed, are skipped (`narrows_test`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{assert_one_line_error, code, finish, home, narrows, stderr};
use narrows_test::{has, lacks, skip};

/// A connection within the program; prints "fine".
const TALK: &str = "import socket
l = socket.create_server(('127.0.0.1', 0))
for _ in range(3):
    c = socket.create_connection(l.getsockname())
    s, _ = l.accept()
    c.sendall(b'hello')
    assert s.recv(10) == b'hello' and c.getpeername() == s.getsockname()
    s.close()
    assert c.recv(1) == b''
print('fine')";

const NARROWS: &str = env!("CARGO_BIN_EXE_narrows");

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a script for `sh`, in which $narrows is the program under test.
fn sh(script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("narrows", NARROWS).env("talk", TALK).stdin(Stdio::null());
    finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[track_caller]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("only root can prepare this");
    }
    root
}

fn assert_fine(output: &Output) {
    assert_eq!((out(output).trim(), code(output)), ("fine", 0), "{}", stderr(output));
}

fn executable(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let (path, source) = (folder.join(name), folder.join("bytes"));
    fs::write(&source, bytes).unwrap();
    // Copied by another process: a child that another test forks meanwhile would hold the file open
    // for writing, and it could not be executed.
    assert!(Command::new("cp").args([&source, &path]).status().unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn what_cannot_be_started_is_told_as_by_a_shell() {
    let home = home();
    let sleeping = executable(home.path(), "not-executable", b"#!/bin/sh\nexit 0\n", 0o644);
    let lost = executable(home.path(), "lost", b"#!/there/is/no/such/interpreter\n", 0o755);
    for engine in ["auto", "preload", "seccomp"] {
        let start = |program: &Path| {
            let mut run = narrows(home.path());
            run.args(["run", "--no-agent", "--engine", engine, "--"]).arg(program);
            finish(run.spawn().unwrap())
        };
        assert_one_line_error(&start(Path::new("there-is-no-such-program")), 127);
        assert_one_line_error(&start(&sleeping), 126);
        assert_one_line_error(&start(&lost), 127);
    }
}

#[test]
fn few_descriptors_are_enough() {
    if has("python3") {
        for engine in ["preload", "seccomp"] {
            let run = format!(
                "ulimit -n 64; exec \"$narrows\" run --no-agent --loopback --engine={engine} -- python3 -c \"$talk\""
            );
            assert_fine(&sh(&run));
        }
    }
}

/// Each waiting call takes descriptors of the supervisor, which it also needs for connections.
#[test]
fn many_calls_that_wait_leave_room_for_connections() {
    const WAITS: &str = "import socket, threading
l = socket.create_server(('127.0.0.1', 0))
def serve():
    s, _ = l.accept()
    s.sendall(s.recv(1))
    s.close()
threads = [threading.Thread(target=serve) for _ in range(40)]
for t in threads: t.start()
for t in threads:
    c = socket.create_connection(l.getsockname())
    c.sendall(b'x')
    assert c.recv(1) == b'x'
    c.close()
for t in threads: t.join()
print('fine')";
    if !has("python3") {
        return;
    }
    let run = "ulimit -n 64; exec \"$narrows\" run --no-agent -v --loopback --engine=seccomp -- python3 -c \"$waits\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", run]).env("narrows", NARROWS).env("waits", WAITS).stdin(Stdio::null());
    let output = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_fine(&output);
    assert!(stderr(&output).contains("narrows: from 127.0.0.1"), "{}", stderr(&output));
}

/// Unix sockets are forbidden to the supervisor, so it cannot listen, or to the program, so the
/// library cannot connect.
#[test]
fn unix_sockets_may_be_forbidden() {
    if !has("python3") {
        return;
    }
    let home = home();
    let confine = home.path().join("confine");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/confine.c");
    let compiled = Command::new("cc").arg("-o").args([&confine, &source]).status();
    if !compiled.is_ok_and(|s| s.success()) {
        return lacks("cc that compiles confine.c");
    }
    let confine = confine.to_str().unwrap();
    for engine in ["preload", "seccomp"] {
        let run = format!("\"$narrows\" run --no-agent -v --loopback --engine={engine} --");
        let around = sh(&format!("exec {confine} {run} python3 -c \"$talk\""));
        assert_fine(&around);
        assert!(stderr(&around).contains("stay plain: unix sockets"), "{}", stderr(&around));
        assert_fine(&sh(&format!("exec {run} {confine} python3 -c \"$talk\"")));
    }
}

#[test]
fn there_may_be_no_proc() {
    if has("python3") && has("unshare") && is_root() {
        for engine in ["preload", "seccomp"] {
            let run = format!("exec \"$narrows\" run --no-agent --loopback --engine={engine} -- python3 -c \"$talk\"");
            let output = sh(&format!("exec unshare -m sh -c 'mount -t tmpfs none /proc && {run}'"));
            assert_fine(&output);
        }
    }
}

/// Programs for another kind of processor do not get the library: the loader would complain.
#[test]
fn programs_of_32_bits_stay_plain() {
    if !cfg!(target_arch = "x86_64") {
        return skip("the program of 32 bits is for x86");
    }
    let home = home();
    let program = executable(home.path(), "short", &thirty_two(), 0o755);
    if !Command::new(&program).output().is_ok_and(|o| o.stdout == b"fine\n") {
        return skip("this kernel runs no programs of 32 bits");
    }
    for engine in ["auto", "preload", "seccomp"] {
        let mut run = narrows(home.path());
        let output =
            finish(run.args(["run", "--no-agent", "-v", "--engine", engine, "--"]).arg(&program).spawn().unwrap());
        assert_fine(&output);
        assert!(stderr(&output).contains("stay plain: it is for another kind of processor"), "{}", stderr(&output));
    }
    // Started by a program under narrows it works too.
    for engine in ["preload", "seccomp"] {
        let mut run = narrows(home.path());
        let output = run
            .args(["run", "--no-agent", "--engine", engine, "--", "sh", "-c", "\"$0\""])
            .arg(&program)
            .spawn()
            .unwrap();
        assert_fine(&finish(output));
    }
}

/// An ELF file of one segment that writes "fine" and exits: write(1, text, 5), exit(0).
fn thirty_two() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    let code: &[u8] = &[
        0xb8, 4, 0, 0, 0, 0xbb, 1, 0, 0, 0, 0xb9, 0x76, 0x80, 0x04, 0x08, 0xba, 5, 0, 0, 0, 0xcd, 0x80, 0xb8, 1, 0, 0,
        0, 0x31, 0xdb, 0xcd, 0x80, 0x90, 0x90, 0x90,
    ];
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let len = 84 + code.len() as u32 + 5;
    let halves = |values: &[u16]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let words = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    file.extend(halves(&[2, 3]));
    file.extend(words(&[1, BASE + 84, 52, 0, 0]));
    file.extend(halves(&[52, 32, 1, 0, 0, 0]));
    file.extend(words(&[1, 0, BASE, BASE, len, len, 5, 0x1000]));
    file.extend_from_slice(code);
    file.extend_from_slice(b"fine\n");
    file
}

#[test]
fn who_gets_more_rights_stays_plain() {
    if !is_root() {
        return;
    }
    let home = home();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = executable(home.path(), "id", &fs::read("/usr/bin/id").unwrap(), 0o755);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    for engine in ["auto", "preload", "seccomp"] {
        let mut run = narrows(home.path());
        let output = finish(
            run.args(["run", "--no-agent", "-v", "--engine", engine, "--"]).arg(&program).arg("-u").spawn().unwrap(),
        );
        assert_eq!(out(&output).trim(), "65534", "{engine}: {}", stderr(&output));
        assert!(stderr(&output).contains("stay plain: it is setuid"), "{}", stderr(&output));
    }
}

/// The loader of another C library ends a program whose preloaded library depends on glibc.
#[test]
fn the_library_needs_no_other_but_libc() {
    if !has("readelf") {
        return;
    }
    let output = sh("readelf -d \"$(\"$narrows\" run --no-agent -- sh -c 'echo ${LD_PRELOAD##*:}')\"");
    let said = out(&output);
    let needed: Vec<_> = said.lines().filter(|l| l.contains("(NEEDED)")).collect();
    assert!(needed.len() == 1 && needed[0].contains("[libc.so.6]"), "{said}{}", stderr(&output));
}

/// Named on the command line, or started by a program with the library: then the library goes into
/// this one too.
#[test]
fn other_c_libraries_work() {
    let home = home();
    let program = home.path().join("still");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/still.c");
    if !Command::new("musl-gcc").arg("-o").args([&program, &source]).status().is_ok_and(|s| s.success()) {
        return lacks("musl-gcc");
    }
    for part in ["polling", "forking", "threads", "shared", "refused"] {
        for words in [&[][..], &["sh", "-c", "\"$0\" \"$1\"; exit $?"]] {
            let mut run = narrows(home.path());
            run.args(["run", "--no-agent", "--service-port", "1", "-v", "--loopback", "--"]);
            let output = finish(run.args(words).arg(&program).arg(part).spawn().unwrap());
            assert_fine(&output);
            // The other engine's hand-overs are covered by its own tests.
            let handed = stderr(&output).contains("narrows: from 127.0.0.");
            assert!(handed || words.is_empty(), "{part}: {}", stderr(&output));
        }
    }
}

/// Cancelling a thread unwinds through the library, which has no unwinding code and needs none.
#[test]
fn threads_that_wait_can_be_cancelled() {
    let home = home();
    let program = home.path().join("cancelled");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/cancelled.c");
    for compiler in ["cc", "musl-gcc"] {
        let compiled = Command::new(compiler).args(["-pthread", "-o"]).args([&program, &source]).status();
        if !compiled.is_ok_and(|s| s.success()) {
            lacks(format!("{compiler} that compiles cancelled.c"));
            continue;
        }
        for flags in [&["--loopback"][..], &["--loopback", "--except", "127.0.0.1"]] {
            let mut run = narrows(home.path());
            run.args(["run", "--no-agent", "--service-port", "1", "--engine=preload"]).args(flags);
            assert_fine(&finish(run.arg("--").arg(&program).spawn().unwrap()));
        }
    }
}

/// Two writers would corrupt a stream of frames.
#[test]
fn a_socket_that_a_started_program_has_too_stays_plain() {
    if !has("python3") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/spawned.py");
    let mut run = narrows(Path::new("/nonexistent"));
    run.args(["run", "--no-agent", "--service-port", "1", "-v", "--loopback", "--", "python3", script]);
    let output = finish(run.spawn().unwrap());
    assert_fine(&output);
    let count = |what: &str| stderr(&output).matches(what).count();
    assert_eq!((count("plain (socket shared"), count("narrows: to ")), (6, 6), "{}", stderr(&output));
}
