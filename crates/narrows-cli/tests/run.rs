//! End-to-end tests of `narrows run`: programs behave as without it, whichever end is handed over,
//! and lose nothing.
//!
//! A test whose program is not installed is skipped (`narrows_test`).

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{assert_one_line_error, code, finish, finish_reading, free_port, home, narrows, random, stderr};
use narrows_test::has;

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).to_str().unwrap().to_string()
}

/// `narrows run FLAGS -- COMMAND`.
fn run(flags: &[&str], command: &[&str]) -> Command {
    let mut narrows = narrows(Path::new("/nonexistent"));
    // Without negotiation: connections are passed through plain.
    narrows.args(["run", "--no-agent", "--service-port", "1"]).args(flags).arg("--").args(command);
    narrows
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first line that `child` prints.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    child.stdout = Some(stdout.into_inner());
    line.trim().to_string()
}

// --- the program's environment is unchanged ---

#[test]
fn status_pid_and_signals_are_the_programs() {
    for place in ["detached", "parent"] {
        let place = format!("--supervisor={place}");
        assert_eq!(code(&run(&[&place], &["sh", "-c", "exit 3"]).output().unwrap()), 3);
        assert_eq!(run(&[&place], &["sh", "-c", "kill -9 $$"]).status().unwrap().signal(), Some(9));
        assert_one_line_error(&run(&[&place], &["there-is-no-such-program"]).output().unwrap(), 127);
        assert_one_line_error(&run(&[&place], &["/dev/null"]).output().unwrap(), 126);
    }
    let child = run(&[], &["sh", "-c", "echo $$"]).spawn().unwrap();
    let pid = child.id().to_string();
    assert_eq!(out(&child.wait_with_output().unwrap()).trim(), pid);
    // As parent, signals are passed on.
    let mut child =
        run(&["--supervisor=parent"], &["sh", "-c", "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done"]);
    let mut child = child.spawn().unwrap();
    first_line(&mut child);
    crate::common::signal(&child, "-TERM");
    assert_eq!(code(&finish(child)), 7);
}

/// systemd ignores SIGPIPE for its services, `nohup` SIGHUP: the program must inherit both.
#[test]
fn ignored_signals_stay_ignored_and_others_do_not() {
    let look = |before: &str, place: &str| {
        let place = format!("--supervisor={place}");
        let narrows = run(&[&place], &["grep", "SigIgn", "/proc/self/status"]);
        let shell = with_all_signals(&format!("{before} exec \"$@\""), &narrows).output();
        let line = out(&shell.unwrap());
        u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap() & (1 << 12 | 1)
    };
    for place in ["detached", "parent"] {
        assert_eq!(look("trap '' PIPE HUP;", place), 1 << 12 | 1, "{place}");
        assert_eq!(look("trap '' PIPE;", place), 1 << 12, "{place}");
        assert_eq!(look("", place), 0, "{place}");
    }
}

/// A shell that runs `script` with the words of `command` as its arguments and ignores no signal,
/// however this test was started (`nohup`, a background job).
fn with_all_signals(script: &str, command: &Command) -> Command {
    let mut shell = Command::new("env");
    shell.args(["--default-signal", "sh", "-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// As parent: signals without a meaning for `narrows` itself are passed on, and orphaned processes
/// leave no zombies.
#[test]
fn a_parent_passes_signals_on_and_buries_orphans() {
    if !has("python3") {
        return;
    }
    let narrows = run(&["--supervisor=parent"], &["python3", &script("parented.py")]);
    let mut child = with_all_signals("exec \"$@\"", &narrows).spawn().unwrap();
    assert_eq!(first_line(&mut child), "buried");
    for number in [1, 3, 10, 14, 18, 20, 23, 28, 35, 64] {
        crate::common::signal(&child, &format!("-{number}"));
        assert_eq!(first_line(&mut child), number.to_string());
    }
    crate::common::signal(&child, "-TERM");
    assert_eq!(finish(child).status.signal(), Some(15));
}

#[test]
fn wrong_usage_is_told() {
    assert_one_line_error(&run(&["--only", "10.0.0.0/99"], &["true"]).output().unwrap(), 2);
    let mut lost = run(&[], &["true"]);
    assert_one_line_error(&lost.env("NARROWS_PRELOAD", "/nonexistent/library").output().unwrap(), 125);
    assert_eq!(code(&run(&[], &[]).output().unwrap()), 2);
}

#[test]
fn what_was_preloaded_stays_and_comes_first() {
    let mut shell = run(&[], &["sh", "-c", "echo $LD_PRELOAD"]);
    let output = shell.env("LD_PRELOAD", "libc.so.6").output().unwrap();
    assert!(out(&output).starts_with("libc.so.6:"), "{}", out(&output));
}

/// Works when descriptors are exhausted and the program has changed its root, user or environment.
#[test]
fn nothing_that_is_missing_breaks_a_program() {
    if !has("python3") {
        return;
    }
    let home = home();
    let few = script("few.py");
    let folder = home.path().to_str().unwrap();
    let output = run(&["--loopback"], &["python3", &few, folder]).output().unwrap();
    assert_eq!(out(&output).trim(), "fine", "{}", stderr(&output));
    let bare = format!("PATH={} exec python3 {few} {folder}", std::env::var("PATH").unwrap());
    let output = run(&["--loopback"], &["env", "-i", "sh", "-c", &bare]).output().unwrap();
    assert_eq!(out(&output).trim(), "fine", "{}", stderr(&output));
}

/// Like `run`, with this descriptor limit for the supervisor too.
fn limited(limit: usize, flags: &[&str], command: &[&str]) -> Command {
    let narrows = run(flags, command);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {limit} && exec \"$@\""), "sh"]).arg(narrows.get_program());
    limited.args(narrows.get_args());
    for (name, value) in narrows.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

/// Each kind of descriptor use of the supervisor has its share, and a connection that finds none is
/// plain.
#[test]
fn few_descriptors_of_the_supervisor_lose_nothing() {
    if !has("python3") {
        return;
    }
    let home = home();
    let folder = home.path().to_str().unwrap();
    let cases = [(64, "few.py", folder), (1024, "few.py", folder), (64, "burst.py", "25"), (1024, "burst.py", "300")];
    for (limit, name, argument) in cases.into_iter().chain([(64, "refused.py", "5"), (1024, "refused.py", "100")]) {
        let flags = ["--loopback", "--supervisor=parent", "-v"];
        // More than a pipe holds.
        let file = home.path().join("said");
        let mut program = limited(limit, &flags, &["python3", &script(name), argument]);
        let output = finish(program.stderr(fs::File::create(&file).unwrap()).spawn().unwrap());
        let said = fs::read_to_string(file).unwrap();
        assert_eq!(out(&output).trim(), "fine", "{limit} {name}: {said}");
        // Otherwise everything was plain. `few.py` makes so few connections that they may come
        // before a busy machine has started the supervisor.
        assert!(said.contains("passed") || name == "few.py", "{limit} {name}: {said}");
    }
}

/// Pitfall 10: any process of the run can send invalid requests.
#[test]
fn rubbish_for_the_supervisor_is_refused() {
    if has("python3") {
        let flags = ["--loopback", "--supervisor=parent"];
        let output = finish(run(&flags, &["python3", &script("hostile.py")]).spawn().unwrap());
        assert_eq!(out(&output).trim(), "fine", "{}", stderr(&output));
    }
}

/// With 1024 descriptors the supervisor holds at most twenty silent lines, half of them from
/// another user.
#[test]
fn lines_that_say_nothing_are_few_and_end() {
    if !has("python3") {
        return;
    }
    let others = rustix::process::geteuid().is_root().then_some(["15", "other"]);
    let silent = script("silent.py");
    for arguments in [&["60"][..]].into_iter().chain(others.as_ref().map(|o| &o[..])) {
        let program = [&["python3", silent.as_str()], arguments].concat();
        let output = finish(limited(1024, &["--loopback", "--supervisor=parent"], &program).spawn().unwrap());
        assert_eq!(out(&output).trim(), "fine", "{arguments:?}: {}", stderr(&output));
    }
}

/// The state of a socket is forgotten at its `connect`, and with the socket. Otherwise a later
/// socket would get registrations meant for it, and after some hundred sockets nothing would be
/// handed over.
#[test]
fn registrations_with_epoll_are_forgotten() {
    if has("python3") {
        let flags = ["--loopback", "--except", "127.0.0.2"];
        let output = finish(run(&flags, &["python3", &script("registered.py")]).spawn().unwrap());
        assert_eq!(out(&output).trim(), "fine", "{}", stderr(&output));
    }
}

/// A root supervisor must not do for a program what the program may not do itself.
#[test]
fn programs_that_gave_up_root_get_no_privileges() {
    if has("python3") {
        let output = finish(run(&["--loopback", "-v"], &["python3", &script("privileges.py")]).spawn().unwrap());
        assert_eq!(out(&output).trim(), "fine", "{}", stderr(&output));
        assert!(stderr(&output).contains("passed"), "{}", stderr(&output));
    }
}

// --- what a program can see ---

/// Output lines of the script, native without flags. Corresponding lines begin alike, and are equal
/// if programs notice nothing.
fn semantics(flags: &[&str]) -> Vec<String> {
    let output = if flags.is_empty() {
        Command::new("python3").arg(script("semantics.py")).output().unwrap()
    } else {
        let mut flags = flags.to_vec();
        flags.push("-v");
        let output = finish(run(&flags, &["python3", &script("semantics.py")]).spawn().unwrap());
        let said = stderr(&output);
        // Otherwise plain would be compared with plain. IPv6 has only one loopback address.
        let ends: HashSet<_> = said
            .lines()
            .filter(|l| l.contains("passed") && !l.contains("[::1]"))
            .filter_map(|l| l.split(' ').nth(1))
            .collect();
        let wanted = match flags[..] {
            [_, "--except", "127.0.0.1", ..] => HashSet::from(["from"]),
            [_, "--except", "127.0.0.2", ..] => HashSet::from(["to"]),
            _ => HashSet::from(["from", "to"]),
        };
        assert_eq!(ends, wanted, "{said}");
        output
    };
    out(&output).lines().map(str::to_string).collect()
}

#[test]
fn programs_see_what_they_see_without_it() {
    if !has("python3") {
        return;
    }
    // Each takes long because it waits for what must not happen, so two run side by side.
    let two = |first: &[&str], second: &[&str]| {
        std::thread::scope(|scope| {
            let first = scope.spawn(|| semantics(first));
            let second = semantics(second);
            (first.join().unwrap(), second)
        })
    };
    let (native, all) = two(&[], &["--loopback"]);
    let (to, from) = two(&["--loopback", "--except", "127.0.0.1"], &["--loopback", "--except", "127.0.0.2"]);
    assert!(native.len() > 70, "{native:?}");
    for (ends, swapped) in [("both ends", all), ("the accepting end", to), ("the connecting end", from)] {
        let differ: Vec<_> = native.iter().zip(&swapped).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty() && native.len() == swapped.len(), "{ends}: {differ:#?}");
    }
}

#[test]
fn loopback_stays_plain_unless_asked() {
    if !has("python3") {
        return;
    }
    let few = "import socket; l=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(l.getsockname()); l.accept()";
    let output = finish(run(&["-v"], &["python3", "-c", few]).spawn().unwrap());
    assert!(stderr(&output).contains("plain (loopback)") && !stderr(&output).contains("passed"), "{}", stderr(&output));
    let output = finish(run(&["-v", "--loopback", "--only", "*:1"], &["python3", "-c", few]).spawn().unwrap());
    assert!(stderr(&output).contains("plain (out of scope)"), "{}", stderr(&output));
    let output = finish(run(&["--loopback"], &["python3", "-c", few]).spawn().unwrap());
    assert_eq!(stderr(&output), "");
}

/// Issue 15, 18: connections within the host stay plain, whichever of its addresses they use,
/// unless the user asks for more: no codec is as fast as memory.
#[test]
fn connections_of_a_host_with_itself_stay_plain_unless_asked() {
    if !has("python3") || !has("unshare") || !has("ip") {
        return;
    }
    let few = "import socket
l = socket.create_server(('10.9.9.1', 0))
c = socket.create_connection(l.getsockname()); s = l.accept()[0]
n = socket.socket(); n.setblocking(False); n.connect_ex(l.getsockname()); t = l.accept()[0]
c.sendall(b'x'); assert s.recv(1) == b'x'; t.sendall(b'y'); n.setblocking(True); assert n.recv(1) == b'y'";
    let host = |flags: &[&str]| {
        let run = run(flags, &["python3", "-c", few]);
        let mut command = Command::new("unshare");
        command.args([
            "-rn",
            "sh",
            "-c",
            "ip link set lo up && ip address add 10.9.9.1/32 dev lo && exec \"$@\"",
            "sh",
        ]);
        let environment = run.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let output = command.arg(run.get_program()).args(run.get_args()).envs(environment).output().unwrap();
        if stderr(&output).contains("unshare") {
            narrows_test::skip(format!("no namespaces here: {}", stderr(&output).trim()));
            return None;
        }
        assert_eq!(code(&output), 0, "{flags:?}: {}", stderr(&output));
        Some(stderr(&output))
    };
    for engine in ["--engine=preload", "--engine=seccomp"] {
        let Some(said) = host(&["-v", engine]) else { return };
        assert!(said.contains("plain (both ends are this host)") && !said.contains("passed"), "{engine}: {said}");
        for flags in [&["--policy=fixed:store"][..], &["--loopback"], &["--accept-direct"], &["--peer=10.9.9.2"]] {
            let said = host(&[&["-v", engine], flags].concat()).unwrap_or_default();
            assert!(said.contains("passed") && !said.contains("this host"), "{engine} {flags:?}: {said}");
        }
    }
}

/// Issue 15, 6: filling the end of a program that waits for a connection must not cost 0.4 MiB of
/// kernel memory each.
#[test]
fn connections_that_are_being_made_take_little_memory() {
    if !has("python3") {
        return;
    }
    for engine in ["--engine=preload", "--engine=seccomp"] {
        // Other processes change memory use too; one undisturbed try is enough.
        let tries = (0..10).map(|_| {
            let output = finish(run(&["--loopback", engine], &["python3", &script("pending.py")]).spawn().unwrap());
            out(&output).trim().parse::<i64>().unwrap_or_else(|_| panic!("{engine}: {}", stderr(&output)))
        });
        let mut seen = Vec::new();
        let few = tries.inspect(|kib| seen.push(*kib)).any(|kib| kib < 60);
        assert!(few, "{engine}: {seen:?} KiB each");
    }
}

// --- nothing is lost ---

const KILLED: &str = "import os,signal,socket,sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(open(sys.argv[2], 'rb').read())
os.kill(os.getpid(), signal.SIGKILL)";

/// A program killed right after its last write: its data arrives, and an orderly end.
#[test]
fn what_a_killed_program_wrote_arrives() {
    if !has("python3") {
        return;
    }
    let home = home();
    let data = random(5 << 20);
    let file = home.path().join("data");
    fs::write(&file, &data).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for i in 0..100 {
        let program = run(&["--loopback"], &["python3", "-c", KILLED, &port, file.to_str().unwrap()]).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        // Slow at first, so that much data is still on its way when the program is gone.
        let (mut got, mut part) = (Vec::with_capacity(data.len()), vec![0; 100_000]);
        for pause in 0.. {
            let n = socket.read(&mut part).unwrap_or_else(|e| panic!("{i}: {e} after {} bytes", got.len()));
            if n == 0 {
                break;
            }
            got.extend_from_slice(&part[..n]);
            thread::sleep(Duration::from_millis(u64::from(pause < 5)));
        }
        assert!(got == data, "{i}: {} bytes", got.len());
        assert_eq!(finish(program).status.signal(), Some(9));
    }
}

/// The supervisor holds none of the program's pipes: a reader of its output sees it end with the
/// program.
#[test]
fn output_ends_with_the_program_and_not_with_its_connections() {
    if !has("python3") {
        return;
    }
    let home = home();
    let file = home.path().join("data");
    let data = random(1 << 20);
    fs::write(&file, &data).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let program = run(&["--loopback"], &["python3", "-c", KILLED, &port, file.to_str().unwrap()]).spawn().unwrap();
    let output = finish(program);
    assert_eq!((output.status.signal(), stderr(&output).as_str()), (Some(9), ""));
    let mut got = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    assert!(got == data);
}

const ORPHANED: &str = "import os,socket,sys,time
at = ('127.0.0.1', int(sys.argv[1]))
s = socket.create_connection(at)
print('ready', flush=True)
try:
    while s.recv(100): pass
    print('end')
except OSError as e:
    print(type(e).__name__)
while not os.path.exists(sys.argv[2]): time.sleep(0.001)
s = socket.create_connection(at)
s.sendall(b'plain')";

/// A supervisor that dies is an error for the program, never an end of stream; later connections work.
#[test]
fn a_killed_supervisor_is_a_reset_and_never_an_end() {
    if !has("python3") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let home = home();
    for i in 0..20 {
        let gone = home.path().join(format!("gone{i}"));
        let orphaned = ["python3", "-c", ORPHANED, &port, gone.to_str().unwrap()];
        let mut supervisor = run(&["--loopback", "--supervisor=parent"], &orphaned).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        assert_eq!(first_line(&mut supervisor), "ready");
        // With and without bytes under way.
        if i % 2 == 0 {
            socket.write_all(&random(1000)).unwrap();
        }
        supervisor.kill().unwrap();
        // The peer must not see an end of stream either.
        assert_eq!(socket.read(&mut [0; 10]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        // Its threads die one after another; until then it may still take connections.
        supervisor.wait().unwrap();
        fs::write(gone, []).unwrap();
        let (mut again, _) = listener.accept().unwrap();
        let mut got = String::new();
        again.read_to_string(&mut got).unwrap();
        assert_eq!(got, "plain");
        assert_eq!(out(&supervisor.wait_with_output().unwrap()).trim(), "ConnectionResetError");
    }
}

const WAITING_WRITER: &str = "import socket,sys,threading
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
told = {}
def write():
    try:
        while True: s.send(b'y' * 300000)
    except OSError as e:
        told['write'] = type(e).__name__
writer = threading.Thread(target=write, daemon=True)
writer.start()
if sys.argv[2] == 'first':
    writer.join(60)
    told.setdefault('write', 'nothing')
try:
    while s.recv(65536): pass
    told['read'] = 'end'
except OSError as e:
    told['read'] = type(e).__name__
writer.join(60)
print(told['write'], told['read'])";

/// A program waits for room in a long write when its peer resets. The kernel reports an error once,
/// and not to a write that is partly done: the error must not get lost that way. Nor may the write
/// wait until somebody has read what came before.
#[test]
fn a_reset_is_not_lost_in_a_write_that_waits() {
    if !has("python3") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for (order, unread) in [("first", 0), ("first", 3 << 20), ("beside", 0), ("beside", 0)] {
        let program = ["python3", "-c", WAITING_WRITER, &port, order];
        let program = run(&["--loopback"], &program).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&vec![7; unread]).unwrap();
        // From here on nothing is read, so the writer soon waits.
        socket.read_exact(&mut [0; 100_000]).unwrap();
        thread::sleep(Duration::from_millis(300));
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        drop(socket);
        let output = finish(program);
        let said = out(&output);
        let Some((write, read)) = said.trim().split_once(' ') else { panic!("{said}{}", stderr(&output)) };
        assert!(write != "nothing", "the write waits for the read");
        assert!(
            write == "ConnectionResetError" || read == "ConnectionResetError",
            "{order}, {unread}: {write}, {read}"
        );
    }
}

// --- real programs ---

#[test]
fn many_connections_of_asyncio() {
    if has("python3") {
        let output = finish(run(&["--loopback"], &["python3", &script("soak.py"), "300"]).spawn().unwrap());
        assert_eq!(out(&output).trim(), "300 right", "{}", stderr(&output));
    }
}

/// A server started by a test, which ends with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(swapped: bool, port: u16, command: &[&str], folder: &Path) -> Server {
    let mut server = if swapped { run(&["--loopback"], command) } else { Command::new(command[0]) };
    if !swapped {
        server.args(&command[1..]);
    }
    let server = server.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server(server.spawn().unwrap());
    for _ in 0..1000 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return server;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{command:?} does not listen");
}

fn client(swapped: bool, command: &[&str]) -> Output {
    let child = if swapped {
        run(&["--loopback"], command).spawn()
    } else {
        let mut command_ = Command::new(command[0]);
        command_.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    finish_reading(child.unwrap())
}

const NODE_SERVER: &str = "require('http').createServer((q, a) => require('fs').createReadStream('.' + q.url).pipe(a)).listen(+process.argv[1], '127.0.0.1')";
const NODE_CLIENT: &str = "require('http').get(process.argv[1], a => a.pipe(process.stdout)).on('error', e => { console.error(e.code); process.exit(9) })";

#[test]
fn files_fetched_by_http_are_the_same() {
    let home = home();
    let data = random(20 << 20);
    fs::write(home.path().join("data"), &data).unwrap();
    let port = free_port().to_string();
    let servers: [(&str, Vec<&str>); 2] = [
        ("python3", vec!["python3", "-m", "http.server", "--bind", "127.0.0.1", &port]),
        ("node", vec!["node", "-e", NODE_SERVER, &port]),
    ];
    let url = format!("http://127.0.0.1:{port}/data");
    let clients: [(&str, Vec<&str>, i32); 3] = [
        ("curl", vec!["curl", "-s", &url], 7),
        ("wget", vec!["wget", "-q", "-O", "-", &url], 4),
        ("node", vec!["node", "-e", NODE_CLIENT, &url], 9),
    ];
    for (name, server) in servers.iter().filter(|(name, _)| has(name)) {
        for (server_swapped, client_swapped) in [(true, true), (true, false), (false, true)] {
            let running = serve(server_swapped, port.parse().unwrap(), server, home.path());
            for (by, fetch, _) in clients.iter().filter(|(name, ..)| has(name)) {
                let output = client(client_swapped, fetch);
                assert_eq!(code(&output), 0, "{by} from {name}: {}", stderr(&output));
                assert!(output.stdout == data, "{by} from {name}: {} bytes", output.stdout.len());
            }
            drop(running);
        }
    }
    // Refused connections give each program's own exit status.
    for (by, fetch, status) in clients.iter().filter(|(name, ..)| has(name)) {
        assert_eq!(code(&client(true, fetch)), *status, "{by}");
    }
}

/// Half close; a descriptor that crosses exec; relays.
#[test]
fn small_tools_pass_everything() {
    let home = home();
    let data = random(3 << 20);
    let file = home.path().join("data");
    fs::write(&file, &data).unwrap();
    let file = file.to_str().unwrap();
    if has("nc") && has("python3") {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut nc = run(
            &["--loopback"],
            &["sh", "-c", &format!("nc -N 127.0.0.1 {port} <{file} || nc -q 1 127.0.0.1 {port} <{file}")],
        );
        let nc = nc.spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        assert!(got == data);
        socket.write_all(b"answer").unwrap();
        drop(socket);
        assert_eq!(out(&finish(nc)), "answer");
    }
    if has("socat") {
        for nofork in ["", ",nofork"] {
            let port = free_port();
            let listen =
                format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr{}", if nofork.is_empty() { ",fork" } else { "" });
            let mut server = run(&["--loopback"], &["socat", &listen, &format!("EXEC:cat {file}{nofork}")]);
            let _server = Server(server.spawn().unwrap());
            let mut got = Vec::new();
            for _ in 0..500 {
                let mut attempt = Vec::new();
                if TcpStream::connect(("127.0.0.1", port)).is_ok_and(|mut s| s.read_to_end(&mut attempt).is_ok()) {
                    got = attempt;
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            assert!(got == data, "socat{nofork}: {} bytes", got.len());
        }
    }
}

#[test]
fn redis_answers() {
    if !has("redis-server") || !has("redis-cli") {
        return;
    }
    let home = home();
    let port = free_port();
    let text = port.to_string();
    let server = ["redis-server", "--port", &text, "--save", "", "--bind", "127.0.0.1"];
    for swapped in [true, false] {
        let _server = serve(swapped, port, &server, home.path());
        let ask = |words: &[&str]| out(&client(true, &[&["redis-cli", "-p", &text], words].concat()));
        assert_eq!(ask(&["set", "key", &"value".repeat(10_000)]).trim(), "OK");
        assert_eq!(ask(&["get", "key"]).trim(), "value".repeat(10_000));
        assert!(ask(&["client", "list"]).contains("addr=127.0.0.1:"));
    }
}

#[test]
fn the_library_is_where_the_tests_look() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_narrows"));
    let folder = program.parent().unwrap();
    let places = [folder.join("libnarrows_preload.so"), folder.join("deps/libnarrows_preload.so")];
    assert!(places.iter().any(|p| p.is_file()), "{places:?}");
}
