//! End-to-end tests of the second engine of `narrows run`: programs into which no library can be
//! loaded.
//!
//! Tests that need a compiler that is not installed are skipped (`narrows_test`).

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{asks_kernel, code, finish, home, narrows, stderr};
use narrows_test::{has, lacks, skip};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name)
}

/// `narrows run FLAGS -- COMMAND` without negotiation: nobody listens at port 1.
fn run(flags: &[&str], command: &[&str]) -> Command {
    let mut narrows = narrows(Path::new("/nonexistent"));
    narrows.args(["run", "--no-agent", "--service-port", "1"]).args(flags).arg("--").args(command);
    narrows
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The path of a compiled program.
fn built(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn compiled(compiler: &mut Command, name: &str) -> Result<String, String> {
    let reason = match compiler.output() {
        Ok(output) if output.status.success() => return Ok(built(name).to_str().unwrap().to_string()),
        Ok(output) => stderr(&output),
        Err(e) => e.to_string(),
    };
    Err(format!("{} that compiles {name}: {reason}", compiler.get_program().display()))
}

/// The statically linked program of `still.c`.
fn still() -> Option<&'static str> {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    if !asks_kernel() {
        return None;
    }
    let compile = || {
        let mut cc = Command::new("cc");
        cc.args(["-static", "-O1", "-o"]).arg(built("still")).arg(script("still.c"));
        compiled(&mut cc, "still")
    };
    PROGRAM.get_or_init(compile).as_deref().inspect_err(|reason| lacks(reason)).ok()
}

/// Connections that `-v` reported: swapped to and from this host, and plain.
fn told(output: &Output) -> [usize; 3] {
    let said = stderr(output);
    let count = |how: &str| said.lines().filter(|l| l.starts_with(how)).count();
    ["narrows: to ", "narrows: from ", "narrows: with "].map(count)
}

#[test]
fn static_programs_see_what_they_see_without_it() {
    let Some(still) = still() else { return };
    // The connections that each part makes, and how many stay plain (`None`: depends on the
    // kernel).
    let parts = [
        ("forking", 4, Some(0)),
        ("polling", 1, Some(0)),
        ("refused", 1, Some(0)),
        ("options", 1, Some(0)),
        ("signals", 1, Some(0)),
        ("threads", 0, None),
        ("shared", 0, Some(2)),
        ("slow", 1, Some(0)),
        ("elsewhere", 0, Some(3)),
        ("killed", 0, Some(0)),
        ("full", 1, Some(0)),
        ("restricted", 0, None),
    ];
    // Since Linux 6.2 the kernel tells how many descriptors a process has.
    let counts = fs::metadata("/proc/self/fd").is_ok_and(|fds| fds.size() > 0);
    if !counts {
        skip("this kernel does not count descriptors: without the part 'full'");
    }
    for (part, swapped, plain) in parts.into_iter().filter(|(part, ..)| counts || *part != "full") {
        assert_eq!(out(&Command::new(still).arg(part).output().unwrap()), "fine\n", "{part} without narrows");
        for flags in [&["-v", "--loopback"][..], &["-v", "--loopback", "--supervisor=parent"]] {
            let output = finish(run(flags, &[still, part]).spawn().unwrap());
            assert_eq!((out(&output).as_str(), code(&output)), ("fine\n", 0), "{part}: {}", stderr(&output));
            let [to, from, left] = told(&output);
            assert!(
                to >= swapped && plain.is_none_or(|n| left == n),
                "{part}: {to} to, {left} plain of {swapped}, {plain:?}: {}",
                stderr(&output)
            );
            assert!(from >= swapped, "{part}: {from} from, {swapped}: {}", stderr(&output));
        }
        // Either end alone.
        for address in ["127.0.0.1", "127.0.0.2"] {
            let output = finish(run(&["--loopback", "--except", address], &[still, part]).spawn().unwrap());
            assert_eq!(out(&output), "fine\n", "{part} without {address}: {}", stderr(&output));
            assert_eq!(stderr(&output), "");
        }
    }
}

#[test]
fn the_engine_can_be_chosen() {
    let Some(still) = still() else { return };
    let loopback = finish(run(&["-v"], &[still, "polling"]).spawn().unwrap());
    assert_eq!((out(&loopback).as_str(), told(&loopback)[0]), ("fine\n", 0), "{}", stderr(&loopback));
    // A library that is not loaded hands nothing over.
    let other = finish(run(&["-v", "--loopback", "--engine=preload"], &[still, "polling"]).spawn().unwrap());
    assert_eq!((out(&other).as_str(), told(&other)), ("fine\n", [0, 0, 0]), "{}", stderr(&other));
    // The filter also applies to processes that a program starts.
    let started = ["sh", "-c", "exec \"$0\" polling", still];
    let started = finish(run(&["-v", "--loopback", "--engine=seccomp"], &started).spawn().unwrap());
    assert_eq!((out(&started).as_str(), told(&started)), ("fine\n", [1, 1, 0]), "{}", stderr(&started));
}

/// Daemons start as root and continue as another user; and most users are not root at all.
#[test]
fn other_users_have_it_too() {
    let Some(still) = still() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("this is the other user already");
    }
    let folder = home();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let narrows = folder.path().join("narrows");
    let program = folder.path().join("still");
    // Copied by another process: a child that another test forks meanwhile would hold the file open
    // for writing, and it could not be executed.
    for (from, to) in [(env!("CARGO_BIN_EXE_narrows"), &narrows), (still, &program)] {
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
    }
    for part in ["forking", "polling", "signals"] {
        let mut command = Command::new(&narrows);
        command
            .args(["run", "--no-agent", "--service-port", "1", "-v", "--loopback", "--"])
            .arg(&program)
            .arg(part)
            .uid(65534)
            .gid(65534);
        let output =
            finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(out(&output), "fine\n", "{part}: {}", stderr(&output));
        assert!(told(&output)[0] > 0 && told(&output)[2] == 0, "{part}: {}", stderr(&output));
    }
}

/// Without a watchdog every call that the kernel asks about would fail, or never return.
#[test]
fn a_killed_supervisor_is_a_reset_and_calls_go_on() {
    let Some(still) = still() else { return };
    for _ in 0..5 {
        let mut supervisor = run(&["--loopback", "--supervisor=parent"], &[still, "orphaned"]).spawn().unwrap();
        let mut stdout = BufReader::new(supervisor.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "fine\n");
    }
}

/// Killed at any moment, also during a call that it makes for the program.
#[test]
fn a_supervisor_that_is_killed_under_load_leaves_resets_only() {
    if !has("python3") {
        return;
    }
    let orphans = script("orphans.py");
    for i in 0..6 {
        let mut command = run(
            &["--loopback", "--supervisor=parent", "--engine=seccomp"],
            &["python3", orphans.to_str().unwrap(), "0.4"],
        );
        let mut supervisor = command.spawn().unwrap();
        let mut stdout = BufReader::new(supervisor.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        std::thread::sleep(Duration::from_millis(100 + 17 * i));
        let killed = supervisor.kill();
        supervisor.wait().unwrap();
        assert_eq!(line, "ready\n");
        killed.unwrap();
        let mut met = String::new();
        stdout.read_to_string(&mut met).unwrap();
        let known = ["fine", "right", "client ECONNRESET", "client EPIPE", "server ECONNRESET", "server EPIPE"];
        let met: Vec<_> = met.trim().split(',').collect();
        assert!(met.contains(&"fine") && met.contains(&"right"), "{met:?}");
        assert!(met.iter().all(|m| known.contains(m)), "{met:?}");
    }
}

/// Waits for bytes to discard while the supervisor is killed, and discards some after that.
const THROWS_AWAY: &str = "import ctypes, errno, select, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
l = socket.create_server(('127.0.0.1', 0))
waits = [socket.create_connection(l.getsockname()) for _ in range(3)]
others = [l.accept()[0] for _ in waits]
met = set()
def throw_away(s):
    n = libc.recv(s.fileno(), None, 100, 0x20)
    met.add(errno.errorcode[ctypes.get_errno()] if n < 0 else n)
threads = [threading.Thread(target=throw_away, args=(s,), daemon=True) for s in waits]
[t.start() for t in threads]
for w, s in zip(waits, others):
    w.sendall(b'x' * 10)
    select.select([s], [], [])
time.sleep(0.2)
print('ready', flush=True)
[t.join(20) for t in threads]
[throw_away(s) for s in others]
print(*met, flush=True)";

#[test]
fn who_throws_bytes_away_is_told_of_a_killed_supervisor() {
    if !asks_kernel() || !has("python3") {
        return;
    }
    let flags = ["--loopback", "--supervisor=parent", "--engine=seccomp"];
    let mut supervisor = run(&flags, &["python3", "-c", THROWS_AWAY]).spawn().unwrap();
    let mut stdout = BufReader::new(supervisor.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let killed = supervisor.kill();
    supervisor.wait().unwrap();
    assert_eq!(line, "ready\n");
    killed.unwrap();
    let mut met = String::new();
    stdout.read_to_string(&mut met).unwrap();
    assert_eq!(met, "ECONNRESET\n");
}

#[test]
fn programs_in_go_are_passed() {
    if !asks_kernel() {
        return;
    }
    let mut go = Command::new("go");
    // Without network access and without the user's settings.
    go.args(["build", "-o"]).arg(built("gopher")).arg(script("gopher.go"));
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local").env("GO111MODULE", "off");
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    let gopher = match compiled(&mut go, "gopher") {
        Ok(gopher) => gopher,
        Err(reason) => return lacks(reason),
    };
    assert_eq!(out(&Command::new(&gopher).output().unwrap()), "fine\n");
    let output = finish(run(&["-v", "--loopback"], &[&gopher]).spawn().unwrap());
    assert_eq!(out(&output), "fine\n", "{}", stderr(&output));
    let [to, from, plain] = told(&output);
    assert!(to >= 7 && from >= 7 && plain == 0, "{}", stderr(&output));
    for address in ["127.0.0.1", "127.0.0.2"] {
        let output = finish(run(&["--loopback", "--except", address], &[&gopher]).spawn().unwrap());
        assert_eq!(out(&output), "fine\n", "without {address}: {}", stderr(&output));
    }
}

/// After the swap it is a connection like any other.
#[test]
fn their_connections_carry_frames() {
    let Some(still) = still() else { return };
    let flags = ["-v", "--loopback", "--peer", "127.0.0.1", "--accept-direct", "--policy", "fixed:zstd:level=1"];
    let output = finish(run(&flags, &[still, "forking"]).spawn().unwrap());
    assert_eq!(out(&output), "fine\n", "{}", stderr(&output));
    assert_eq!(stderr(&output).matches(": compressed; ").count(), 8, "{}", stderr(&output));
}

/// Known differences for programs without the library (decision 11): the kernel would have to ask
/// about every message. A unix socket whose other end is gone refuses every write with EPIPE, and
/// the kernel would have to ask about every write. The kernel reports a reset during MSG_WAITALL only to that call, which
/// returns the bytes that came, and the next call sees an end of stream; the kernel would have to
/// ask about every such call.
const ACCEPTED: [&str; 8] = [
    "reset_while_sending",
    "message_with_an_address",
    "waited_for_all_before_a_reset",
    "waited_for_all_in_parts_before_a_reset",
    "descriptors_that_are_none_sent_over_tcp",
    "credentials_sent_over_tcp",
    "given_up_by_its_peer",
    "many_messages",
];

#[test]
fn what_scripts_see_differs_by_what_is_known() {
    if !asks_kernel() {
        return;
    }
    let semantics = script("semantics.py");
    let Ok(native) = Command::new("python3").arg(&semantics).output() else {
        return lacks("python3");
    };
    let native = out(&native);
    let accepted = |line: &&str| ACCEPTED.iter().any(|name| line.starts_with(&format!("{name}:")));
    let native: Vec<_> = native.lines().filter(|line| !accepted(line)).collect();
    assert!(native.len() > 70, "{native:?}");
    let names: Vec<_> = native.iter().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let mut run = run(&["--loopback", "--engine=seccomp", "-v"], &["python3", semantics.to_str().unwrap()]);
    let output = finish(run.args(names).spawn().unwrap());
    let [to, from, _] = told(&output);
    assert!(to > 60 && from > 60, "{to} to, {from} from: {}", stderr(&output));
    let swapped = out(&output);
    let swapped: Vec<_> = swapped.lines().collect();
    let differ: Vec<_> = native.iter().zip(&swapped).filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty() && native.len() == swapped.len(), "{differ:#?}");
}
