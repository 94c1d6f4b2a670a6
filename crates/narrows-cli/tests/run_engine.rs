//! `narrows run` with frames on the wire: programs receive what was written, every end arrives as
//! what it was, and invalid data is a reset. Connections are direct here, so that they switch from
//! their first byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{assert_one_line_error, finish, home, narrows, random, stderr, text};
use narrows::block::BufferPool;
use narrows::codec::{Contexts, Method};
use narrows::policy::Fixed;
use narrows::sender::{Sender, SenderConfig};
use narrows::stream;
use narrows::upgrade::marker::DIRECT_MAGIC;
use narrows_test::has;

/// A policy that always compresses, and one that decides, which within a host mostly leaves the
/// bytes as they are.
const POLICIES: [&str; 2] = ["fixed:zstd:level=1", "balance"];

/// No policy given.
const DEFAULT: &str = "";

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).to_str().unwrap().to_string()
}

/// `narrows run FLAGS -- python3 framed.py WORDS`, at one end of direct connections within this host.
fn end(flag: &str, policy: &str, flags: &[&str], words: &[&str]) -> Command {
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["run", "--loopback", "--no-agent", "--service-port", "1", flag]);
    if flag == "--peer" {
        command.arg("127.0.0.1");
    }
    if policy != DEFAULT {
        command.args(["--policy", policy]);
    }
    command.args(flags).args(["--", "python3", &script("framed.py")]).args(words);
    command
}

fn server(policy: &str, flags: &[&str], words: &[&str]) -> Running {
    Running::start(end("--accept-direct", policy, flags, words))
}

fn client(policy: &str, flags: &[&str], words: &[&str]) -> Command {
    end("--peer", policy, flags, words)
}

/// A program that prints a first line when it is ready.
struct Running {
    child: Option<Child>,
    lines: BufReader<ChildStdout>,
    first: String,
}

impl Running {
    fn start(mut command: Command) -> Self {
        Self::started(&mut command)
    }

    /// Starts a program that runs until its stdin is dropped.
    fn start_with_stdin(mut command: Command) -> Self {
        Self::started(command.stdin(Stdio::piped()))
    }

    fn started(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        Self { child: Some(child), lines, first: first.trim().to_string() }
    }

    fn port(&self) -> &str {
        &self.first
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.first.parse().unwrap()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Waits for its end, and returns its stderr.
    fn end(mut self) -> String {
        let child = self.child.take().unwrap();
        stderr(&finish(child))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn output(command: &mut Command) -> (String, String) {
    let output = finish(command.spawn().unwrap());
    (String::from_utf8_lossy(&output.stdout).trim().to_string(), stderr(&output))
}

fn sha256(data: &[u8]) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(data).unwrap();
    let out = child.wait_with_output().unwrap().stdout;
    String::from_utf8_lossy(&out).split(' ').next().unwrap().to_string()
}

// --- bytes ---

/// 50 MB each way at once, half of it text; each direction ends on its own.
#[test]
fn much_both_ways_arrives_as_it_was() {
    if !has("python3") {
        return;
    }
    const LEN: &str = "50000000";
    for policy in POLICIES {
        let mut server = server(policy, &["-v"], &["exchange-server", LEN]);
        let (said, account) = output(&mut client(policy, &["-v"], &["exchange-client", server.port(), LEN]));
        assert_eq!((said.as_str(), server.line().as_str()), ("right", "right"), "{policy}: {account}");
        let accounts = [account, server.end()];
        for account in &accounts {
            assert!(account.contains(": compressed; out 47.7 MiB, wire "), "{policy}: {account}");
        }
        if policy != "balance" {
            for account in accounts {
                assert_eq!(account.matches("% zstd").count(), 2, "{account}");
                let ratios: Vec<f64> = account
                    .split("ratio ")
                    .skip(1)
                    .map(|rest| rest.split([',', ';', '\n']).next().unwrap().parse().unwrap())
                    .collect();
                assert!(ratios.len() == 2 && ratios.iter().all(|r| (1.4..2.1).contains(r)), "{account}");
            }
        }
    }
}

/// Neither end waits for the other's bytes, nor for more of its own.
/// Zeros take next to nothing on the network, so that its buffers stop nobody. Both write before either
/// reads, so that what each says of its reading stands after bytes that the other does not read.
#[test]
fn a_program_that_reads_nothing_has_little_on_its_way_to_it() {
    if !has("python3") {
        return;
    }
    const LEN: &str = "67108864";
    /// What may be ahead of a reader that never read, the sockets of both programs, and what those of the
    /// network hold at most, 4 MiB and 6 MiB: a server may write plain bytes before the first frame comes.
    const HELD: usize = 12 << 20;
    for policy in POLICIES {
        let mut server = Running::start_with_stdin(end("--accept-direct", policy, &[], &["fill-server", LEN]));
        let mut client = Running::start_with_stdin(client(policy, &[], &["fill-client", server.port(), LEN]));
        for taken in [server.line(), client.first.clone()] {
            let taken: usize = taken.parse().unwrap();
            assert!((1..HELD).contains(&taken), "{policy}: {taken} bytes that nobody has read");
        }
        for end in [&mut server, &mut client] {
            drop(end.child.as_mut().unwrap().stdin.take());
        }
        assert_eq!([server.line(), client.line()], [LEN, LEN], "{policy}");
    }
}

#[test]
fn a_server_that_speaks_first_is_heard_and_lines_are_answered() {
    if !has("python3") {
        return;
    }
    for policy in POLICIES {
        let server = server(policy, &["-v"], &["greeting-server"]);
        let (said, account) = output(&mut client(policy, &["-v"], &["greeting-client", server.port()]));
        assert_eq!(said, "right", "{policy}");
        assert!(account.contains(": compressed; ") && server.end().contains(": compressed; "), "{account}");
    }
}

#[test]
fn many_connections_at_once_are_all_right() {
    if !has("python3") {
        return;
    }
    for policy in POLICIES {
        let mut command = narrows(Path::new("/nonexistent"));
        command.args(["run", "--loopback", "--no-agent", "--service-port", "1", "--peer", "127.0.0.1"]);
        command.args(["--accept-direct", "-v", "--policy", policy, "--", "python3", &script("soak.py"), "200"]);
        let child = command.spawn().unwrap();
        let output = crate::common::finish_reading(child);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "200 right", "{policy}: {}", stderr(&output));
        assert_eq!(stderr(&output).matches(": compressed; ").count(), 400, "{policy}: {}", stderr(&output));
    }
}

#[test]
fn what_is_encrypted_is_left_as_it_is() {
    if !has("python3") {
        return;
    }
    for (first, compressed) in [("160301020001000300", false), ("5353482d322e302d780d0a", false), ("47455420", true)] {
        let policy = POLICIES[0];
        let mut server = server(policy, &[], &["sink", "1", "0"]);
        let (_, account) = output(&mut client(policy, &["-v"], &["hello", server.port(), first]));
        let (len, wanted) =
            (first.len() / 2 + 40 * 50_000, if compressed { "100 % zstd:level=1" } else { "100 % store" });
        assert!(server.line().starts_with(&format!("{len} ")), "{first}");
        assert!(account.contains(wanted), "{first}: {account}");
    }
}

/// Also with a reader so slow that compressing would seem to pay.
#[test]
fn what_does_not_leave_the_host_is_stored_unless_somebody_wants_it_otherwise() {
    if !has("python3") {
        return;
    }
    for (policy, words) in [(DEFAULT, ", 100 % store; in 0 B"), (POLICIES[0], ", 100 % zstd:level=1; in 0 B")] {
        let mut server = server(policy, &["-v"], &["sink", "1", "0.02"]);
        let (_, account) = output(&mut client(policy, &["-v"], &["hello", server.port(), "47"]));
        assert!(server.line().ends_with(" end"), "{policy}: {account}");
        assert!(account.contains(words), "{policy}: {account}");
        for account in [account, server.end()] {
            assert_eq!(account.contains("; stored, since both ends are this host"), policy == DEFAULT, "{account}");
        }
    }
}

#[test]
fn urgent_bytes_are_in_their_place() {
    if !has("python3") {
        return;
    }
    let mut server = server(POLICIES[0], &[], &["urgent-server"]);
    output(&mut client(POLICIES[0], &[], &["urgent-client", server.port()]));
    assert_eq!(server.line(), "50000");
}

/// Programs see the same as without it, but for urgent bytes, which come as data.
#[test]
fn programs_see_what_they_see_without_it() {
    if !has("python3") {
        return;
    }
    const LINES: &str = "semantics.py";
    // Some lines are what a socket says when it has been quiet for a tenth of a second, which on a busy machine
    // may be before the supervisor had its turn: what differs counts if it differs every time.
    const TRIES: usize = 10;
    let lines = |output: &std::process::Output| -> BTreeMap<String, String> {
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().filter_map(|l| l.split_once(": ")).map(|(a, b)| (a.to_string(), b.to_string())).collect()
    };
    let differ = |chosen: &[String]| {
        let native = lines(&Command::new("python3").arg(script(LINES)).args(chosen).output().unwrap());
        assert!(if chosen.is_empty() { native.len() > 70 } else { native.len() == chosen.len() }, "{native:?}");
        let mut command = narrows(Path::new("/nonexistent"));
        command.args([
            "run",
            "--loopback",
            "--no-agent",
            "--service-port",
            "1",
            "--accept-direct",
            "--peer",
            "127.0.0.0/8",
        ]);
        command.args(["--policy", POLICIES[0], "--", "python3", &script(LINES)]).args(chosen);
        let framed = lines(&crate::common::finish_reading(command.spawn().unwrap()));
        let differ = native.into_iter().filter(|(name, said)| framed.get(name) != Some(said));
        differ.map(|(name, said)| (said, framed.get(&name).cloned(), name)).collect::<Vec<_>>()
    };
    let mut seen = differ(&[]);
    for _ in 1..TRIES {
        let names: Vec<_> = seen.iter().map(|(.., name)| name.clone()).collect();
        if names == ["urgent_out_of_line"] || names.is_empty() {
            break;
        }
        seen = differ(&names);
    }
    let names: Vec<_> = seen.iter().map(|(.., name)| name.as_str()).collect();
    assert_eq!(names, ["urgent_out_of_line"], "{seen:#?}");
}

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<i64>().unwrap()
}

/// Bulk passes through each connection; then all are idle, and the memory for it must be given
/// back.
#[test]
fn idle_connections_hold_little() {
    if !has("python3") {
        return;
    }
    const COUNT: i64 = 500;
    for policy in POLICIES {
        let place = "--supervisor=parent";
        let mut server = Running::start_with_stdin(end("--accept-direct", policy, &[place], &["idle-server", "500"]));
        let server_pid = server.child.as_ref().unwrap().id();
        let before = resident(server_pid);
        let client = Running::start_with_stdin(client(policy, &[place], &["idle-client", server.port(), "500"]));
        assert_eq!((server.line().as_str(), client.first.as_str()), ("held", "held"));
        let client_pid = client.child.as_ref().unwrap().id();
        let most = |pid| (resident(pid) - before) / COUNT;
        // Memory is given back after an idle second; a busy machine may take longer.
        for _ in 0..100 {
            if most(server_pid).max(most(client_pid)) <= 64 << 10 {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        println!("{policy}: {} and {} bytes for each idle connection", most(server_pid), most(client_pid));
        assert!(most(server_pid) <= 64 << 10 && most(client_pid) <= 64 << 10);
    }
}

// --- ends ---

/// A program killed right after its last write: its data arrives, and an orderly end.
#[test]
fn what_a_killed_program_wrote_arrives() {
    if !has("python3") {
        return;
    }
    let home = home();
    let file = home.path().join("data");
    let data = [text(3 << 20), random(2 << 20)].concat();
    fs::write(&file, &data).unwrap();
    for (policy, rounds) in POLICIES.into_iter().zip([30, 10]) {
        let mut server = server(policy, &[], &["sink", &rounds.to_string(), "0.005"]);
        for i in 0..rounds {
            // Various lengths; short transfers are over before the other end has answered.
            let part = &data[..data.len() >> (2 * (i % 10))];
            fs::write(&file, part).unwrap();
            let child = client(policy, &[], &["killed", server.port(), file.to_str().unwrap()]).spawn().unwrap();
            assert_eq!(finish(child).status.signal(), Some(9));
            assert_eq!(server.line(), format!("{} {} end", part.len(), sha256(part)), "{policy} {i}");
        }
    }
}

/// A supervisor that dies during a transfer is an error at both ends, never an end of stream.
#[test]
fn a_killed_supervisor_is_a_reset_and_never_an_end() {
    if !has("python3") {
        return;
    }
    const ROUNDS: usize = 10;
    let mut server = server(POLICIES[0], &[], &["sink", &ROUNDS.to_string(), "0.001"]);
    for i in 0..ROUNDS {
        let mut supervisor = Running::start(client(POLICIES[0], &["--supervisor=parent"], &["pour", server.port()]));
        assert_eq!(supervisor.first, "ready");
        thread::sleep(Duration::from_millis(10 * i as u64));
        supervisor.child.as_mut().unwrap().kill().unwrap();
        // A writer gets either error.
        let told = supervisor.line();
        assert!(["ConnectionResetError", "BrokenPipeError"].contains(&told.as_str()), "{i}: {told}");
        let line = server.line();
        assert!(line.ends_with(" ConnectionResetError"), "{i}: {line}");
    }
}

#[test]
fn so_it_is_when_the_servers_supervisor_dies() {
    if !has("python3") {
        return;
    }
    for i in 0..5 {
        let mut supervisor = server(POLICIES[0], &["--supervisor=parent"], &["pour-server"]);
        let mut client = Running::start(client(POLICIES[0], &[], &["drain", supervisor.port()]));
        assert_eq!(client.first, "ready");
        thread::sleep(Duration::from_millis(20 * i));
        supervisor.child.as_mut().unwrap().kill().unwrap();
        assert_eq!(client.line(), "ConnectionResetError");
    }
}

/// The same over negotiated connections, where a direction switches at some byte or never: killed
/// programs lose nothing, and all of many connections are right.
#[test]
fn connections_that_are_switched_underway_lose_nothing() {
    if !has("python3") {
        return;
    }
    const ROUNDS: usize = 24;
    let home = home();
    let file = home.path().join("data");
    let data = [text(1 << 20), random(1 << 20)].concat();
    let port = crate::common::free_port().to_string();
    let negotiated = |flags: &[&str], words: &[&str]| {
        let mut command = narrows(Path::new("/nonexistent"));
        command.args(["run", "--loopback", "-v", "--policy", POLICIES[0]]).args(flags).arg("--").arg("python3");
        command.args(words).env("NARROWS_PORT", &port);
        command
    };
    let framed = script("framed.py");
    let mut server = Running::start(negotiated(&[], &[&framed, "sink", &ROUNDS.to_string(), "0.002"]));
    let mut said = String::new();
    for i in 0..ROUNDS {
        let part = &data[..data.len() >> (2 * (i % 8))];
        fs::write(&file, part).unwrap();
        let child = negotiated(&[], &[&framed, "killed", server.port(), file.to_str().unwrap()]).spawn().unwrap();
        let output = finish(child);
        assert_eq!(output.status.signal(), Some(9));
        assert_eq!(server.line(), format!("{} {} end", part.len(), sha256(part)), "{i}: {}", stderr(&output));
        said += &stderr(&output);
    }
    said += &server.end();
    // Otherwise this would be a test of plain connections.
    assert!(said.contains(": compressed"), "{said}");
    let output = crate::common::finish_reading(negotiated(&[], &[&script("soak.py"), "200"]).spawn().unwrap());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "200 right", "{}", stderr(&output));
}

// --- peers that send invalid data ---

fn opening() -> Vec<u8> {
    [&DIRECT_MAGIC[..], &[7; 16]].concat()
}

/// A complete frame stream.
fn frames(raw: &[u8]) -> Vec<u8> {
    let pool = BufferPool::default();
    let config = SenderConfig { history: 64 << 10, ..SenderConfig::default() };
    let mut sender = Sender::new(config, Box::new(Fixed::new(Method::zstd(1), false)), pool.clone());
    let (mut wire, mut at) = (Vec::new(), 0);
    loop {
        at += sender.write(&raw[at..], 0);
        if at == raw.len() {
            sender.close(0);
        }
        while let Some(job) = sender.poll_job(0) {
            sender.finish(stream::encode(job, &mut Contexts::default(), &pool), 0);
        }
        while let Some(frame) = sender.poll_transmit() {
            wire.extend_from_slice(&frame.header);
            wire.extend_from_slice(&frame.body);
        }
        sender.on_link(narrows::sender::LinkSample { accepted: wire.len() as u64, ..Default::default() });
        if sender.is_drained() {
            return wire;
        }
    }
}

/// Sends bytes as a peer, and returns how the connection ended: `None` is an end of stream.
fn say(to: SocketAddr, pieces: &[&[u8]], ends: bool) -> Option<ErrorKind> {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    for piece in pieces {
        // A reset during writing counts too.
        if let Err(e) = socket.write_all(piece) {
            return Some(e.kind());
        }
    }
    if ends {
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).err().map(|e| e.kind())
}

#[test]
fn what_makes_no_sense_is_a_reset() {
    if !has("python3") {
        return;
    }
    let raw = text(300_000);
    let (opening, whole) = (opening(), frames(&raw));
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let rubbish = random(100_000);
    let bad: Vec<(&str, Vec<&[u8]>, bool)> = vec![
        ("rubbish", vec![&opening, &rubbish], false),
        ("rubbish behind a preface", vec![&opening, &whole[..32], &rubbish], false),
        ("a flipped bit", vec![&opening, &flipped], true),
        ("bytes behind the end", vec![&opening, &whole, b"more"], true),
        ("no end", vec![&opening, &whole[..whole.len() - 42]], true),
        ("cut in the middle", vec![&opening, &whole[..whole.len() / 3]], true),
        ("nothing but an opening", vec![&opening], true),
    ];
    let mut server = server(POLICIES[0], &["-v"], &["sink", &(bad.len() + 2).to_string(), "0"]);
    for (what, pieces, ends) in &bad {
        assert_eq!(say(server.address(), pieces, *ends), Some(ErrorKind::ConnectionReset), "{what}");
        let line = server.line();
        assert!(line.ends_with(" ConnectionResetError"), "{what}: {line}");
    }
    // The same server still accepts valid frames, and plain clients.
    assert_eq!(say(server.address(), &[&opening, &whole], true), None);
    assert_eq!(server.line(), format!("{} {} end", raw.len(), sha256(&raw)));
    assert_eq!(say(server.address(), &[&raw], true), None);
    assert_eq!(server.line(), format!("{} {} end", raw.len(), sha256(&raw)));
    let account = server.end();
    assert_eq!(account.matches("; reset, since ").count(), bad.len(), "{account}");
}

#[test]
fn wrong_usage_is_told() {
    let run = |flags: &[&str]| {
        let mut command = narrows(Path::new("/nonexistent"));
        command.arg("run").args(flags).args(["--", "true"]).output().unwrap()
    };
    assert_one_line_error(&run(&["--peer", "10.0.0.0/99"]), 2);
    assert_one_line_error(&run(&["--policy", "replay:/nonexistent"]), 2);
    assert_eq!(crate::common::code(&run(&["--policy", "nonsense"])), 2);
}
