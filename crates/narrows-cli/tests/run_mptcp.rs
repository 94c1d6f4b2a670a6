//! Programs that ask for MPTCP, as Go programs do when they listen. 127.0.0.1 has the clients,
//! 127.0.0.2 the servers and the service port.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, asks_kernel, code, finish, home, narrows, stderr};
use narrows_test::has;

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).to_str().unwrap().to_string()
}

/// A free port as in `run_agent.rs`, from another range.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let port = 30_000
            + (std::process::id() as u16).wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 2_000;
        if TcpListener::bind(("127.0.0.2", port)).is_ok() {
            return port;
        }
    }
}

fn run(address: &str, service: u16, flags: &[&str], args: &[&str]) -> Child {
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["run", "-v", "--loopback", "--policy", "balance", "--supervisor=parent"]);
    command.args(["--service-address", address, "--service-port", &service.to_string()]);
    command.args(flags).arg("--").args(args).spawn().unwrap()
}

/// The port, which is the first line that the server prints.
fn port_of(server: &mut Child) -> String {
    let mut stdout = server.stdout.take().unwrap();
    let (mut line, mut byte) = (Vec::new(), [0]);
    while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    server.stdout = Some(stdout);
    String::from_utf8(line).unwrap()
}

fn wait_for_service(service: u16) {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.2", service)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody opens the service port");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a server and a client of it; returns both outputs.
fn talk(server_flags: &[&str], server: &[&str], client_flags: &[&str], client: &[&str]) -> [Output; 2] {
    let service = free_port();
    let mut server = run("127.0.0.2", service, server_flags, &[server, &["127.0.0.2", "1"]].concat());
    let port = port_of(&mut server);
    wait_for_service(service);
    let rounds = if client.contains(&"dial") { &["60"][..] } else { &["1", "60"] };
    let flags = [&["--no-agent"], client_flags].concat();
    let client = finish(run("127.0.0.1", service, &flags, &[client, &["127.0.0.2", &port], rounds].concat()));
    assert!(
        code(&client) == 0 && String::from_utf8_lossy(&client.stdout).ends_with("right\n"),
        "{client:?} {}",
        stderr(&client)
    );
    [finish(server), client]
}

fn assert_each(ends: &[Output; 2], word: &str) {
    for (end, about) in ends.iter().zip([" from 127.0.0.", " to 127.0.0.2:"]) {
        let said = stderr(end);
        let outcomes: Vec<_> = said.lines().filter(|l| l.starts_with("narrows:") && l.contains(about)).collect();
        assert!(!outcomes.is_empty() && outcomes.iter().all(|l| l.contains(word)), "{word}: {said}");
    }
}

/// `today.go` as a module of Go 1.24, when listeners became MPTCP.
fn today() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<String>> = OnceLock::new();
    let compile = || {
        if !asks_kernel() {
            return None;
        }
        let (folder, target) = (home(), PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
        fs::write(folder.path().join("go.mod"), "module today\n\ngo 1.24\n").unwrap();
        fs::copy(script("today.go"), folder.path().join("today.go")).unwrap();
        let mut go = Command::new("go");
        // Without network access and without the user's settings.
        go.args(["build", "-o"]).arg(target.join("today")).current_dir(folder.path());
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local").env("GOWORK", "off");
        go.env("GOCACHE", target.join("go-cache")).env_remove("GODEBUG");
        match go.output() {
            Ok(output) if output.status.success() => Some(target.join("today").to_str().unwrap().to_string()),
            Ok(output) => {
                narrows_test::skip(format!("go does not compile today.go: {}", stderr(&output)));
                None
            }
            Err(_) => {
                narrows_test::lacks("go");
                None
            }
        }
    };
    PROGRAM.get_or_init(compile).as_deref()
}

/// The kernel keeps no SYN for connections of an MPTCP listener, without which nothing can be
/// proved.
#[test]
fn go_programs_of_today_are_compressed() {
    let Some(today) = today() else { return };
    let ends = talk(&[], &[today, "listen"], &[], &[today, "dial"]);
    assert_each(&ends, ": compressed;");
    if has("python3") {
        let ends = talk(&[], &[today, "listen"], &[], &["python3", &script("asks.py")]);
        assert_each(&ends, ": compressed;");
        let ends = talk(&[], &["python3", &script("answers.py")], &[], &[today, "dial"]);
        assert_each(&ends, ": compressed;");
    }
}

/// With the library they silently get TCP.
#[test]
fn scripts_with_mptcp_are_compressed() {
    if !has("python3") {
        return;
    }
    let (paths, answers, asks) = (script("paths.py"), script("answers.py"), script("asks.py"));
    let ends = talk(&[], &["python3", &paths, &answers], &[], &["python3", &paths, &asks]);
    assert_each(&ends, ": compressed;");
    for end in &ends {
        assert!(stderr(end).contains("protocol 6\n"), "{}", stderr(end));
    }
}

/// With `--keep-mptcp` programs keep MPTCP, and are told why their clients stay plain.
#[test]
fn mptcp_can_be_kept() {
    let probe = "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)";
    if !has("python3") || !Command::new("python3").args(["-c", probe]).output().unwrap().status.success() {
        narrows_test::skip("this kernel has no MPTCP");
        return;
    }
    let (paths, answers, asks) = (script("paths.py"), script("answers.py"), script("asks.py"));
    for engine in ["--engine=preload", "--engine=seccomp"] {
        if engine == "--engine=seccomp" && !asks_kernel() {
            continue;
        }
        let flags = ["--keep-mptcp", engine];
        let ends = talk(&flags, &["python3", &paths, &answers], &[], &["python3", &asks]);
        assert!(stderr(&ends[0]).contains("protocol 262\n"), "{}", stderr(&ends[0]));
        assert_each(&ends, ": plain");
        assert!(stderr(&ends[1]).contains("a listener of MPTCP"), "{}", stderr(&ends[1]));
    }
}
