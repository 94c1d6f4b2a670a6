//! Programs under `narrows run` on two hosts, which are addresses of this one: 127.0.0.1 has the
//! clients, 127.0.0.2 the servers and the service port. Supervisors find each other; programs not
//! under Narrows notice nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, asks_kernel, code, finish, free_port, narrows, stderr, text};
use narrows::upgrade::gateway::GatewayClient;
use narrows_test::{has, skip};
use rustix::process::{Pid, Signal, kill_process_group};

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).to_str().unwrap().to_string()
}

/// A program that ends with the test.
struct Program(Option<Child>);

impl Program {
    fn finish(mut self) -> Output {
        finish(self.0.take().unwrap())
    }

    /// The next line of its output.
    fn line(&mut self) -> String {
        let child = self.0.as_mut().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        child.stdout = Some(stdout);
        String::from_utf8(line).unwrap()
    }

    fn kill(&mut self) {
        self.0.as_mut().unwrap().kill().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Kills the group, because the program outlives its supervisor.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `narrows run` of a Python script on the host with that address. The supervisor is the parent, so
/// that the test can wait for it and kill it.
fn run(address: &str, service: u16, flags: &[&str], args: &[&str]) -> Program {
    let mut command = narrows(Path::new("/nonexistent"));
    command.args([
        "run",
        "-v",
        "--loopback",
        "--policy",
        "balance",
        "--supervisor=parent",
        "--service-address",
        address,
    ]);
    command.args(["--service-port", &service.to_string()]).args(flags).args(["--", "python3"]).args(args);
    command.process_group(0);
    Program(Some(command.spawn().unwrap()))
}

fn plain(args: &[&str]) -> Program {
    let mut command = Command::new("python3");
    Program(Some(
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    ))
}

/// A server under `narrows run`, and its port.
fn server(service: u16, flags: &[&str], connections: usize, more: &[&str]) -> (Program, String) {
    let (answers, connections) = (script("answers.py"), connections.to_string());
    let args = [&[&*answers, "127.0.0.2", &connections], more].concat();
    let mut server = run("127.0.0.2", service, flags, &args);
    let port = server.line();
    (server, port)
}

fn client_args(port: &str, connections: usize, rounds: usize, more: &[&str]) -> Vec<String> {
    let fixed = [script("asks.py"), "127.0.0.2".into(), port.into(), connections.to_string(), rounds.to_string()];
    fixed.into_iter().chain(more.iter().map(|m| (*m).to_string())).collect()
}

/// A client under `narrows run`.
fn client(service: u16, port: &str, connections: usize, rounds: usize, more: &[&str]) -> Program {
    let args = client_args(port, connections, rounds, more);
    run("127.0.0.1", service, &["--no-agent"], &args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn plain_client(port: &str, rounds: usize, more: &[&str]) -> Program {
    plain(&client_args(port, 1, rounds, more).iter().map(String::as_str).collect::<Vec<_>>())
}

fn assert_right(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(code(output) == 0 && said.ends_with("right\n"), "{said}{}", stderr(output));
}

/// The supervisors' notes about their connections from or to the other host.
fn outcomes(output: &Output) -> Vec<String> {
    let about = |l: &&str| l.contains(" from 127.0.0.") || l.contains(" to 127.0.0.2:");
    stderr(output).lines().filter(about).map(str::to_string).collect()
}

fn assert_all(output: &Output, word: &str) {
    let outcomes = outcomes(output);
    assert!(!outcomes.is_empty() && outcomes.iter().all(|l| l.contains(word)), "{word}: {}", stderr(output));
}

fn wait_for_service(service: u16) {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.2", service)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody opens the service port");
        thread::sleep(Duration::from_millis(10));
    }
}

// --- both ends under narrows ---

#[test]
fn programs_of_two_hosts_find_one_another() {
    if !has("python3") {
        return;
    }
    for more in [&[][..], &["greets"]] {
        let service = free_port();
        let (server, port) = server(service, &[], 3, more);
        wait_for_service(service);
        // A cold side channel and a warm one; then a new supervisor.
        let first = client(service, &port, 2, 100, more).finish();
        let second = client(service, &port, 1, 100, more).finish();
        let server = server.finish();
        for output in [&first, &second] {
            assert_right(output);
            assert_all(output, ": compressed;");
        }
        assert_all(&server, ": compressed;");
        assert_eq!((outcomes(&first).len(), outcomes(&server).len()), (2, 3));
    }
}

#[test]
fn the_agent_serves_many_supervisors_and_may_die() {
    if !has("python3") {
        return;
    }
    let service = free_port();
    let mut command = narrows(Path::new("/nonexistent"));
    let mut agent =
        Program(Some(command.args(["agent", "--listen", &format!("127.0.0.2:{service}")]).spawn().unwrap()));
    wait_for_service(service);
    let servers: Vec<_> = (0..2).map(|_| server(service, &["--no-agent"], 2, &[])).collect();
    let mut clients: Vec<_> = servers.iter().map(|(_, port)| client(service, port, 1, 300, &[])).collect();
    // In the middle of both transfers.
    for client in &mut clients {
        assert_eq!(client.line(), "begun");
    }
    thread::sleep(Duration::from_millis(300));
    agent.kill();
    for client in clients {
        let output = client.finish();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said == "right\n", "{said}{}", stderr(&output));
        assert_all(&output, ": compressed;");
    }
    // No agent answers any more; the programs must still work.
    for (_, port) in &servers {
        let output = client(service, port, 1, 3, &[]).finish();
        assert_right(&output);
        assert_all(&output, "plain (no narrows at the other end)");
    }
    for (server, _) in servers {
        assert_eq!(outcomes(&server.finish()).len(), 2);
    }
}

#[test]
fn another_supervisor_takes_over_from_one_that_ends() {
    if !has("python3") {
        return;
    }
    let service = free_port();
    let (first, first_port) = server(service, &[], 1, &[]);
    wait_for_service(service);
    let (second, second_port) = server(service, &[], 1000, &[]);
    // The first server ends after its only connection, and with it the agent in its supervisor.
    assert_right(&client(service, &first_port, 1, 1, &[]).finish());
    first.finish();
    let begun = Instant::now();
    loop {
        let output = client(service, &second_port, 1, 100, &[]).finish();
        assert_right(&output);
        if outcomes(&output).iter().all(|l| l.contains(": compressed;")) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", stderr(&output));
    }
    drop(second);
}

// --- one end under narrows ---

#[test]
fn a_plain_program_sees_nothing_of_it() {
    if !has("python3") {
        return;
    }
    // Plain clients, which speak first or wait.
    for more in [&[][..], &["greets"]] {
        let service = free_port();
        let (server, port) = server(service, &[], 1, more);
        assert_right(&plain_client(&port, 20, more).finish());
        assert_all(&server.finish(), "plain (");
    }
    // A server without a service port, and one whose host's agent knows nothing of it.
    let service = free_port();
    for agent in [false, true] {
        let mut command = narrows(Path::new("/nonexistent"));
        let listen = format!("127.0.0.2:{service}");
        let _agent = agent.then(|| Program(Some(command.args(["agent", "--listen", &listen]).spawn().unwrap())));
        if agent {
            wait_for_service(service);
        }
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let client = client(service, &port, 1, 20, &[]);
        let (socket, _) = listener.accept().unwrap();
        let (mut lines, mut all) = (BufReader::new(&socket), Vec::new());
        while lines.read_until(b'\n', &mut all).unwrap() > 0 {
            let last = all[..all.len() - 1].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            (&socket).write_all(&all[last..].to_ascii_uppercase()).unwrap();
        }
        drop(lines);
        drop(socket);
        let output = client.finish();
        assert_right(&output);
        let why = if agent { "plain (the other program does not run under narrows)" } else { "plain (no narrows" };
        assert_all(&output, why);
        // Byte for byte what the program wrote: the lines that `asks.py` makes.
        let wanted: Vec<u8> = (0u8..20)
            .flat_map(|i| {
                let words = format!("{i} words that come again and again ").repeat(60);
                [words.as_bytes(), b"\xf9NR\xf9NRMK\r\x1a", &[i % 7 + 240, b'\n']].concat()
            })
            .collect();
        assert!(all == wanted, "{} bytes instead of {}", all.len(), wanted.len());
    }
}

#[test]
fn who_claims_what_is_not_his_gets_nothing_and_breaks_nothing() {
    if !has("python3") {
        return;
    }
    let service = free_port();
    let (server, port) = server(service, &[], 3, &[]);
    wait_for_service(service);
    let output = plain(&[&script("forger.py"), &port, &service.to_string()]).finish();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{}", stderr(&output));
    let output = server.finish();
    assert_eq!(outcomes(&output).len(), 3, "{}", stderr(&output));
    assert_all(&output, "plain (");
}

const SQUATTER: &str = "import os, socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setuid(65534)
s.bind('\\0narrows-agent:0:127.0.0.2:' + sys.argv[1])
s.listen()
print('there', flush=True)
while True:
    line = s.accept()[0]
    try: print('heard', line.recv(100), flush=True)
    except OSError as e: print('heard', b'', flush=True)";

/// Any user can take an abstract name: another user who holds an agent's name is told nothing.
#[test]
fn an_agent_of_another_user_is_refused() {
    if !has("python3") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let service = free_port();
    let mut squatter = plain(&["-c", SQUATTER, &service.to_string()]);
    assert_eq!(squatter.line(), "there");
    let (server, port) = server(service, &[], 1, &[]);
    assert_eq!(squatter.line(), "heard b''");
    let output = client(service, &port, 1, 5, &[]).finish();
    assert_right(&output);
    assert_all(&output, "plain (no narrows");
    assert_all(&server.finish(), "plain (");
}

/// A plain server on a host where another user took the service port: where the kernel can tell who
/// that is, no connection gets a frame because of him.
#[test]
fn another_user_of_this_host_is_not_believed_about_its_connections() {
    if !has("python3") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let service = free_port();
    let mut liar = plain(&[&script("false_agent.py"), "127.0.0.2", &service.to_string(), "12345"]);
    assert_eq!(liar.line(), "listening");
    let mut server = plain(&[&script("answers.py"), "127.0.0.2", "3"]);
    let port = server.line();
    let output = client(service, &port, 3, 20, &[]).finish();
    assert_right(&output);
    assert_all(&output, ": plain (another user of this host has the service port)");
    server.kill();
}

/// A supervisor's name is free when it has ended, and every user could read the name before.
#[test]
fn another_user_who_listens_at_the_name_of_a_supervisor_gets_nothing() {
    if !has("python3") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let output = plain(&[&script("outlived.py"), env!("CARGO_BIN_EXE_narrows")]).finish();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "another user: nothing\nthe same user: requests\n", "{}", stderr(&output));
}

/// An agent of root accepts all users' supervisors, and trusts none of them about others'
/// connections.
#[test]
fn nobody_can_register_what_is_not_his() {
    if !has("python3") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let service = free_port();
    let mut command = narrows(Path::new("/nonexistent"));
    let _agent = Program(Some(command.args(["agent", "--listen", &format!("127.0.0.2:{service}")]).spawn().unwrap()));
    wait_for_service(service);
    let output = plain(&[&script("borrower.py"), &service.to_string()]).finish();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{}", stderr(&output));
}

// --- other commands ---

#[test]
fn status_lists_what_runs() {
    if !has("python3") {
        return;
    }
    let service = free_port();
    let (server, port) = server(service, &[], 1, &[]);
    wait_for_service(service);
    let mut client = client(service, &port, 1, 300, &[]);
    assert_eq!(client.line(), "begun");
    let ask = |flags: &[&str]| {
        let output = narrows(Path::new("/nonexistent")).arg("status").args(flags).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let peer = format!("127.0.0.2:{port}");
    // A process that does not answer in time is left out, as all others of a busy host may be.
    let ours = (0..50).find_map(|_| {
        let all: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
        let mut connections =
            all["supervisors"].as_array().unwrap().iter().flat_map(|s| s["connections"].as_array().unwrap().clone());
        let ours = connections.find(|c| c["peer"] == *peer);
        if ours.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        ours
    });
    let ours = ours.expect("it is never listed");
    assert!(ours["out"]["raw_bytes"].as_u64().unwrap() > 0 && ours["back"]["wire_bytes"].as_u64().unwrap() > 0);
    assert!((0..50).any(|_| ask(&[]).contains(&format!("to {peer}"))));
    drop((client, server));
}

const SHARED: &str = "import os, socket, time
l = socket.create_server(('127.0.0.2', 0))
s = socket.socket()
if os.fork() == 0:
    s.connect(l.getsockname())
    os._exit(0)
os.wait()
print('connected', flush=True)
time.sleep(60)";

/// Reasons why connections were never handed over are counted, even without `-v`.
#[test]
fn status_counts_reasons() {
    if !has("python3") {
        return;
    }
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["run", "--loopback", "--no-agent", "--supervisor=parent", "--", "python3", "-c", SHARED]);
    let mut program = Program(Some(command.spawn().unwrap()));
    assert_eq!(program.line(), "connected");
    let pid = program.0.as_ref().unwrap().id();
    let begun = Instant::now();
    loop {
        let output = narrows(Path::new("/nonexistent")).args(["status", "--json"]).output().unwrap();
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let ours = all["supervisors"].as_array().unwrap().iter().find(|s| s["pid"] == pid);
        let outcomes = ours.and_then(|s| s["outcomes"].as_array());
        let counted =
            |o: &serde_json::Value| o["outcome"].as_str().is_some_and(|o| o.starts_with("plain (socket shared"));
        if outcomes.is_some_and(|all| all.iter().any(|o| counted(o) && o["connections"] == 1)) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{all:#}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_gateway_reaches_servers_that_are_plain() {
    let service = free_port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let allowed = listener.local_addr().unwrap().port();
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["agent", "--gateway", "--allow", &allowed.to_string(), "--listen", &format!("127.0.0.2:{service}")]);
    let _agent = Program(Some(command.spawn().unwrap()));
    wait_for_service(service);
    let ask = |port: u16| ask_gateway(TcpStream::connect(("127.0.0.2", service)).unwrap(), port);
    // A port that is not allowed is answered as if nobody listened.
    assert_eq!(ask(allowed ^ 1).0, 111);
    let (errno, socket) = ask(allowed);
    assert_eq!(errno, 0);
    let (mut plain, _) = listener.accept().unwrap();
    let data = text(3 << 20);
    let echo = thread::spawn(move || {
        let mut all = Vec::new();
        plain.read_to_end(&mut all).unwrap();
        plain.write_all(&all).unwrap();
        all
    });
    let got = talk(socket, data.clone());
    assert!(echo.join().unwrap() == data);
    assert!(got.unwrap() == data);
    // A client that does not send frames is reset, and so is the server.
    let (_, mut socket) = ask(allowed);
    let (mut plain, _) = listener.accept().unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(plain.read(&mut [0; 10]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    // A server that aborts is a reset for its client, not an end of stream.
    let (_, socket) = ask(allowed);
    let (plain, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&plain, Some(Duration::ZERO)).unwrap();
    drop(plain);
    assert!(talk(socket, data).is_err());
}

/// Requests a port; returns the gateway's answer and the connection.
fn ask_gateway(mut socket: TcpStream, port: u16) -> (u16, TcpStream) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&GatewayClient::request(port)).unwrap();
    let (mut client, mut byte) = (GatewayClient::default(), [0]);
    loop {
        socket.read_exact(&mut byte).unwrap();
        if let Some(errno) = client.receive(&byte).unwrap() {
            return (errno, socket);
        }
    }
}

/// A connection from that address of this host.
fn connect_from(address: [u8; 4], to: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from((address, 0))).unwrap();
    connect(&socket, &std::net::SocketAddr::from(([127, 0, 0, 2], to))).unwrap();
    socket.into()
}

/// One host can hold many connections, but silent ones keep nobody out, not even the host itself,
/// and established ones leave places to others.
#[test]
fn a_host_that_takes_all_of_a_gateway_shuts_nobody_out() {
    let service = free_port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["agent", "--gateway", "--allow", &port.to_string(), "--listen", &format!("127.0.0.2:{service}")]);
    let _agent = Program(Some(command.spawn().unwrap()));
    wait_for_service(service);
    let request = GatewayClient::request(port);
    let mut silent: Vec<_> = (0..300).map(|_| connect_from([127, 0, 0, 3], service)).collect();
    // Greeting and hello, but no port request.
    silent.iter_mut().for_each(|socket| drop(socket.write_all(&request[..15])));
    let mut through = Vec::new();
    let refused = loop {
        let (errno, socket) = ask_gateway(connect_from([127, 0, 0, 3], service), port);
        if errno != 0 {
            break errno;
        }
        through.push(socket);
        assert!(through.len() <= 100, "one host has all places");
    };
    assert_eq!((refused, through.len()), (narrows::upgrade::gateway::NO_PLACE, 64));
    let (errno, _kept) = ask_gateway(connect_from([127, 0, 0, 4], service), port);
    assert_eq!(errno, 0, "another host");
    // Released places can be taken again.
    drop(through);
    let begun = Instant::now();
    while ask_gateway(connect_from([127, 0, 0, 3], service), port).0 != 0 {
        assert!(begun.elapsed() < PATIENCE, "places do not come back");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Where no gateway takes a connection it is made to the server itself: none is there, the listener
/// is not one, it says that it has no place, or it goes away.
#[test]
fn who_finds_no_gateway_is_connected_to_the_server_itself() {
    if !has("python3") {
        return;
    }
    let no_place = narrows::upgrade::gateway::answer(narrows::upgrade::gateway::NO_PLACE);
    let answers = [None, Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), Some(Vec::new()), Some(no_place)];
    for engine in engines() {
        for answer in answers.clone() {
            let service = free_port();
            let mut server = plain(&[&script("answers.py"), "127.0.0.2", "3"]);
            let port = server.line();
            let why = if answer.is_some() { ": plain (no gateway took it)" } else { ": plain" };
            let gateway = answer.map(|answer| {
                let listener = TcpListener::bind(("127.0.0.2", service)).unwrap();
                thread::spawn(move || {
                    for socket in listener.incoming().take(3) {
                        let mut socket = socket.unwrap();
                        let _ = socket.read(&mut [0; 100]);
                        let _ = socket.write_all(&answer);
                    }
                })
            });
            let flags = ["--no-agent", "--via-gateway", "127.0.0.2", engine];
            let args = client_args(&port, 2, 20, &[]);
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let output = run("127.0.0.1", service, &flags, &args).finish();
            assert_right(&output);
            assert_all(&output, why);
            let output = run("127.0.0.1", service, &flags, &["-c", BY_GATEWAY, &port]).finish();
            assert_right(&output);
            drop(gateway);
            server.kill();
        }
    }
}

const BY_GATEWAY: &str = "import asyncio, socket, sys
port = int(sys.argv[1])
try:
    socket.create_connection(('127.0.0.2', port ^ 1))
    print('connected to nothing')
except ConnectionRefusedError: pass
async def main():
    r, w = await asyncio.open_connection('127.0.0.2', port)
    assert w.get_extra_info('peername') == ('127.0.0.2', port)
    w.write(b'words\\n' * 10000)
    w.write_eof()
    assert await r.read() == b'WORDS\\n' * 10000
    w.close()
    try: await asyncio.open_connection('127.0.0.2', port ^ 1)
    except ConnectionRefusedError: print('right')
asyncio.run(main())";

/// The engines that must work here.
fn engines() -> Vec<&'static str> {
    ["--engine=preload", "--engine=seccomp"].into_iter().take(1 + usize::from(asks_kernel())).collect()
}

/// A program that waits for a gateway's answer gets an error when the supervisor is gone, and is
/// never told that it is connected.
#[test]
fn a_supervisor_that_is_killed_before_its_gateway_answers_is_an_error() {
    if !has("python3") {
        return;
    }
    const CONNECTS: &str = "import errno, socket
try:
    socket.create_connection(('127.0.0.2', 7))
    print('connected')
except OSError as e: print(errno.errorcode[e.errno])";
    for engine in engines() {
        let service = free_port();
        let gateway = TcpListener::bind(("127.0.0.2", service)).unwrap();
        let flags = ["--no-agent", "--via-gateway", "127.0.0.2", engine];
        let mut program = run("127.0.0.1", service, &flags, &["-c", CONNECTS]);
        let (mut asked, _) = gateway.accept().unwrap();
        asked.set_read_timeout(Some(PATIENCE)).unwrap();
        // The supervisor has sent the request, so the program is waiting.
        assert!(asked.read(&mut [0; 100]).unwrap() > 0);
        let mut stdout = program.0.as_mut().unwrap().stdout.take().unwrap();
        program.kill();
        let mut told = String::new();
        stdout.read_to_string(&mut told).unwrap();
        let expected = if engine == "--engine=seccomp" { "ECONNRESET\n" } else { "ECONNABORTED\n" };
        assert_eq!(told, expected, "{engine}");
    }
}

/// Programs do not notice that they go through a gateway, with blocking and non-blocking `connect`.
#[test]
fn programs_go_through_a_gateway() {
    if !has("python3") {
        return;
    }
    let service = free_port();
    let mut server = plain(&[&script("answers.py"), "127.0.0.1", "9"]);
    let port = server.line();
    let mut command = narrows(Path::new("/nonexistent"));
    command.args(["agent", "--gateway", "--allow", &port, "--listen", &format!("127.0.0.2:{service}")]);
    let _agent = Program(Some(command.spawn().unwrap()));
    wait_for_service(service);
    let args = client_args(&port, 3, 20, &[]);
    for engine in engines() {
        let flags = ["--no-agent", "--via-gateway", "127.0.0.2", engine];
        let output = run("127.0.0.1", service, &flags, &args.iter().map(String::as_str).collect::<Vec<_>>()).finish();
        assert_right(&output);
        assert_all(&output, ": compressed;");
        assert_eq!(outcomes(&output).len(), 3, "{engine}: {}", stderr(&output));
        let output = run("127.0.0.1", service, &flags, &["-c", BY_GATEWAY, &port]).finish();
        assert_right(&output);
    }
    server.kill();
}

/// Sends and receives frames over a connection; returns the received bytes.
fn talk(socket: TcpStream, data: Vec<u8>) -> narrows::Result<Vec<u8>> {
    use narrows::policy::PolicySpec;
    use narrows::stream::{self, ReceiveOptions, SendOptions};
    use std::sync::{Arc, Mutex};

    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let (write, read) = narrows::transport::Link::tcp(socket.try_clone().unwrap()).unwrap().split();
    let sending = thread::spawn(move || {
        let options = SendOptions::new(PolicySpec::store()).threads(1).stall_timeout(Some(PATIENCE));
        let sent = stream::send(std::io::Cursor::new(data), write, options);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        sent.map(drop)
    });
    let got = Arc::new(Mutex::new(Vec::new()));
    let options = ReceiveOptions::default().threads(1).stall_timeout(Some(PATIENCE));
    let received = stream::receive(Sink(Arc::clone(&got)), read, options);
    let sent = sending.join().unwrap();
    received?;
    sent?;
    Ok(Arc::try_unwrap(got).unwrap().into_inner().unwrap())
}
