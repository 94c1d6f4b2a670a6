//! `narrows tunnel` as a service: its file, what changes while it runs, how it ends, and what the
//! service manager and probes are told.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::tunnels::{End, connect, echo, exchange, tunnel, wait_for};
use crate::common::*;
use narrows_test::authority::Authority;

/// A file of settings in a folder.
struct Config(PathBuf);

impl Config {
    fn new(home: &Path, name: &str, text: &str) -> Self {
        let config = Self(home.join(name));
        config.write(text);
        config
    }

    fn write(&self, text: &str) {
        // As an editor does, so that no half of it is read.
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    fn start(&self, home: &Path) -> End {
        End::start(tunnel(home).arg("--config").arg(&self.0))
    }
}

fn server_text(allowed: u16) -> String {
    format!("listen = \"127.0.0.1:0\"\nallow = [\"127.0.0.1:{allowed}\"]\ntoken_out = \"token\"\nkey_file = \"key\"\n")
}

fn client_text(address: &str, local: &[String]) -> String {
    format!("to = \"narrows://{address}\"\nlocal = {local:?}\ntoken_file = \"token\"\n")
}

/// A page of an end's health endpoint: its status and its text.
fn page(at: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim().to_owned())
}

/// Whether a connection through the tunnel is carried; else it is reset.
fn carries(listening: &str) -> bool {
    let mut socket = connect(listening);
    let exchanged = socket.write_all(b"hello").and_then(|()| socket.read_exact(&mut [0; 5]));
    match exchanged {
        Ok(()) => true,
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}");
            false
        }
    }
}

#[test]
fn both_ends_are_started_by_files() {
    let home = home();
    let home = home.path();
    let port = echo();
    let server = Config::new(home, "server.toml", &server_text(port)).start(home);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let local = [format!("0:127.0.0.1:{port}"), format!("{}:127.0.0.1:{port}", home.join("socket").display())];
    let client = Config::new(home, "client.toml", &client_text(&address, &local));
    let end = client.start(home);
    let listening = end.said("listening");
    assert_eq!(end.said("up"), "true");
    exchange(&mut connect(&listening), &text(500_000));
    assert!(std::os::unix::net::UnixStream::connect(home.join("socket")).is_ok());
    drop(end);
    // An option replaces its key.
    let other = format!("0:127.0.0.1:{}", echo());
    let end = End::start(tunnel(home).arg("--config").arg(&client.0).args(["-L", &other]));
    let listening = end.said("listening");
    assert_eq!(end.said("up"), "true");
    assert!(!carries(&listening), "it is not allowed there");
    // What does not go together is refused, wherever it is said.
    let output = finish(tunnel(home).arg("--config").arg(&client.0).args(["--listen", "127.0.0.1:0"]).spawn().unwrap());
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("client.toml:1: give the other end, or --listen"), "{}", stderr(&output));
}

#[test]
fn a_file_is_checked_with_a_line_for_each_fault() {
    let home = home();
    let home = home.path();
    let check = |text: &str| {
        let config = Config::new(home, "checked.toml", text);
        let output = finish(tunnel(home).arg("check-config").arg(&config.0).spawn().unwrap());
        let name = format!("narrows: {}", config.0.display());
        let lines: Vec<String> = stderr(&output).lines().map(|line| line.replacen(&name, "FILE", 1)).collect();
        (code(&output), lines)
    };
    assert_eq!(check(&server_text(5432)), (0, vec!["FILE: no fault".to_owned()]));
    assert!(!home.join("key").exists(), "nothing is made");
    let (status, lines) = check("listn = \"127.0.0.1:0\"\n\nallow = [\"x\"]\n");
    assert_eq!(status, 2);
    assert_eq!(lines[0], "FILE:1: 'listn' is not known; did you mean listen?");
    assert!(lines[1].starts_with("FILE:3: allow: 'x' is not HOST:PORT") && lines.len() == 2, "{lines:?}");
    // Files that it names are looked at too.
    let (status, lines) =
        check("listen = \"127.0.0.1:0\"\ncert = \"none.pem\"\nkey = \"none.key\"\nca = \"none.pem\"\n");
    assert_eq!(status, 2);
    assert!(lines.len() == 1 && lines[0].starts_with("FILE:2: ") && lines[0].contains("none.pem"), "{lines:?}");
    let (status, lines) = check(&client_text("127.0.0.1:1", &["0:localhost:1".into()]));
    assert_eq!(status, 2);
    assert!(lines.len() == 1 && lines[0].starts_with("FILE:3: ") && lines[0].contains("token"), "{lines:?}");
    let missing = finish(tunnel(home).args(["check-config", "no such file"]).spawn().unwrap());
    assert_eq!(code(&missing), 2);
    assert!(stderr(&missing).contains("no such file: No such file"), "{}", stderr(&missing));
    // A start says the same.
    let config = Config::new(home, "wrong.toml", "listn = 1\ncarriers = 9\n");
    let output = finish(tunnel(home).arg("--config").arg(&config.0).spawn().unwrap());
    assert_eq!((code(&output), stderr(&output).lines().count()), (2, 2), "{}", stderr(&output));
}

/// What a start would fail for later, or never say.
#[test]
fn a_check_looks_at_addresses_and_certificates() {
    let home = home();
    let home = home.path();
    let check = |text: &str, words: &str| {
        let config = Config::new(home, "checked.toml", text);
        let output = finish(tunnel(home).arg("check-config").arg(&config.0).spawn().unwrap());
        let said = stderr(&output);
        assert!(code(&output) == 2 && said.lines().count() == 1 && said.contains(words), "{text}: {said}");
    };
    let listen = "listen = \"127.0.0.1:7702\"\n";
    check(&format!("{listen}health = \"127.0.0.1:9711\"\nmetrics = \"9711\"\n"), "checked.toml:3: metrics and health");
    check(&format!("{listen}health = \"0.0.0.0:7702\"\n"), "checked.toml:2: health and listen have the same address");
    check(&format!("{listen}metrics = \"256.1.1.1:80\"\n"), "checked.toml:2: cannot listen on 256.1.1.1:80");
    let many: String = (0..20_000).map(|n| format!("unknown{n} = 1\n")).collect();
    let config = Config::new(home, "many.toml", &many);
    let output = finish(tunnel(home).arg("check-config").arg(&config.0).spawn().unwrap());
    assert!(stderr(&output).ends_with("narrows: and 19950 more faults\n"), "{}", stderr(&output));
    // Nothing waits for a pipe that nobody writes to.
    let pipe = home.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = finish(tunnel(home).arg("check-config").arg(&pipe).spawn().unwrap());
    assert!(code(&output) == 2 && stderr(&output).contains("it is no regular file"), "{}", stderr(&output));
    let files = |cert: &str, ca: &str| format!("{listen}cert = \"{cert}.pem\"\nkey = \"{cert}.key\"\nca = \"{ca}\"\n");
    check(&files("none", "pipe"), "it is no regular file");
    if narrows_test::has("openssl") {
        let (ca, other) = (Authority::new(home, "ca"), Authority::new(home, "other"));
        ca.sign("good", "IP:127.0.0.1", 2);
        ca.sign_between("old", "IP:127.0.0.1", ["20200101000000Z", "20210101000000Z"]);
        other.sign_between("early", "IP:127.0.0.1", ["20980101000000Z", "20990101000000Z"]);
        check(&files("old", "ca.pem"), "old.pem: the certificate has expired");
        check(&files("early", "ca.pem"), "early.pem: the certificate is not valid yet");
        let config = Config::new(home, "checked.toml", &files("good", "other.pem"));
        assert_eq!(code(&finish(tunnel(home).arg("check-config").arg(&config.0).spawn().unwrap())), 0);
    }
}

/// A client whose stderr is a full pipe, and whose server goes for good: probes hear of it, and it ends
/// when it is told to.
#[test]
fn a_reader_that_does_not_read_the_log_stops_nothing() {
    let home = home();
    let home = home.path();
    let closed = free_port();
    let server = Config::new(home, "server.toml", &server_text(closed)).start(home);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let text = client_text(&address, &[format!("0:127.0.0.1:{closed}")]);
    let config = Config::new(home, "client.toml", &(text + "health = \"127.0.0.1:0\"\nlog = \"text\"\n"));
    let mut client = tunnel(home);
    client.arg("--config").arg(&config.0).arg("--json").stderr(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut said = |word: &str| {
        let line = lines.find_map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap().get(word).cloned());
        line.unwrap().as_str().unwrap_or_default().to_owned()
    };
    let probes = said("health");
    let listening = said("listening");
    said("up");
    // Each is refused, with lines in the log: more than the 64 KiB of a pipe.
    (0..1000).for_each(|_| assert!(!carries(&listening)));
    assert_eq!(page(&probes, "/readyz").0, 200);
    drop(server);
    wait_for(|| page(&probes, "/readyz").0 == 503);
    assert_eq!(page(&probes, "/healthz").0, 200);
    signal(&client, "-TERM");
    let status = wait(&mut client);
    assert_eq!(status.signal(), Some(15));
    let mut log = Vec::new();
    client.stderr.take().unwrap().read_to_end(&mut log).unwrap();
    // A pipe is full when the next line does not fit.
    assert!(log.len() > 60 << 10, "{} bytes do not fill a pipe", log.len());
}

/// Waits for the end of a process without reading what it says.
fn wait(child: &mut std::process::Child) -> std::process::ExitStatus {
    let begun = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() >= PATIENCE {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A script that reads the first lines, as `head` does, does not end the service by going.
#[test]
fn a_service_goes_on_when_nobody_reads_its_lines_any_more() {
    let home = home();
    let home = home.path();
    let port = echo();
    let address = format!("127.0.0.1:{}", free_port());
    let server_text = server_text(port).replace("127.0.0.1:0", &address);
    let config = Config::new(home, "server.toml", &server_text);
    let server = config.start(home);
    server.said("serving");
    wait_for(|| home.join("token").exists());
    let text = client_text(&address, &[format!("0:127.0.0.1:{port}")]);
    let client = Config::new(home, "client.toml", &(text + "health = \"127.0.0.1:0\"\n"));
    let mut command = tunnel(home);
    let mut child = command.arg("--config").arg(&client.0).arg("--json").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let health = lines.next().unwrap();
    let probes = serde_json::from_str::<serde_json::Value>(&health).unwrap()["health"].as_str().unwrap().to_owned();
    assert!(lines.any(|line| line.contains("\"up\"")));
    drop(lines);
    drop(server);
    wait_for(|| page(&probes, "/readyz").0 == 503);
    let server = config.start(home);
    server.said("serving");
    wait_for(|| page(&probes, "/readyz").0 == 200);
    assert!(child.try_wait().unwrap().is_none());
    signal(&child, "-TERM");
    assert_eq!(wait(&mut child).signal(), Some(15));
}

#[test]
fn a_listener_of_the_other_end_is_tried_again_until_it_is_there() {
    let home = home();
    let home = home.path();
    let port = echo();
    let server = Config::new(home, "server.toml", &server_text(port)).start(home);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let wanted = taken.local_addr().unwrap();
    let text = client_text(&address, &[]).replace("local = []", &format!("remote = \"{wanted}:127.0.0.1:{port}\""));
    let client = Config::new(home, "client.toml", &(text + "health = \"127.0.0.1:0\"\n")).start(home);
    let probes = client.said("health");
    assert_eq!(client.said("up"), "true");
    wait_for(|| page(&probes, "/readyz").1.contains("in use"));
    let (status, words) = page(&probes, "/readyz");
    assert!(status == 503 && words.contains(&format!("the other end does not listen on {wanted}")), "{words}");
    drop(taken);
    assert_eq!(client.said("remote"), wanted.to_string());
    wait_for(|| page(&probes, "/readyz").0 == 200);
    exchange(&mut connect(&wanted.to_string()), b"hello");
}

#[test]
fn a_client_goes_from_its_token_to_certificates_and_back() {
    if !narrows_test::has("openssl") {
        return;
    }
    let home = home();
    let home = home.path();
    Authority::new(home, "ca").sign("end", "IP:127.0.0.1", 2);
    let certificates = "cert = \"end.pem\"\nkey = \"end.key\"\nca = \"ca.pem\"\n";
    let port = echo();
    let address = format!("127.0.0.1:{}", free_port());
    let server_by_token = server_text(port).replace("127.0.0.1:0", &address);
    let server_by_certificate = format!("listen = {address:?}\nallow = [\"127.0.0.1:{port}\"]\n{certificates}");
    let server_config = Config::new(home, "server.toml", &server_by_token);
    let mut server = server_config.start(home);
    server.said("serving");
    wait_for(|| home.join("token").exists());
    let by_token = client_text(&address, &[format!("0:127.0.0.1:{port}")]);
    let by_certificate = by_token.replace("token_file = \"token\"\n", certificates);
    let config = Config::new(home, "client.toml", &by_token);
    let mut command = tunnel(home);
    let client = End::start_hearing(command.arg("--config").arg(&config.0));
    let listening = client.said("listening");
    assert_eq!(client.said("up"), "true");
    for (of_server, of_client) in [(&server_by_certificate, &by_certificate), (&server_by_token, &by_token)] {
        drop(server);
        assert_eq!(client.said("up"), "false");
        config.write(of_client);
        client.signal("-HUP");
        client.heard("the configuration was read again");
        server_config.write(of_server);
        server = server_config.start(home);
        assert_eq!(client.said("up"), "true");
        exchange(&mut connect(&listening), b"hello");
    }
}

#[test]
fn examples_are_without_fault_but_for_the_files_that_they_name() {
    let home = home();
    let home = home.path();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples");
    for name in ["server.toml", "client.toml"] {
        let output = finish(tunnel(home).arg("check-config").arg(folder.join(name)).spawn().unwrap());
        let said = stderr(&output);
        assert_eq!(code(&output), 2, "{said}");
        assert!(said.lines().count() == 1 && said.contains("ca.pem: No such file"), "{said}");
    }
}

#[test]
fn rules_change_while_connections_are_open() {
    let home = home();
    let home = home.path();
    let (one, two) = (echo(), echo());
    let config = Config::new(home, "server.toml", &server_text(one));
    let mut command = tunnel(home);
    command.arg("--config").arg(&config.0);
    let server = End::start_hearing(&mut command);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let local = [format!("0:127.0.0.1:{one}"), format!("0:127.0.0.1:{two}")];
    let client = Config::new(home, "client.toml", &client_text(&address, &local)).start(home);
    let listening = [client.said("listening"), client.said("listening")];
    assert_eq!(client.said("up"), "true");
    let mut open = connect(&listening[0]);
    exchange(&mut open, b"before");
    assert!(!carries(&listening[1]));
    // The other way round, and something that needs a restart.
    config.write(&server_text(two).replace("127.0.0.1:0", "127.0.0.1:1"));
    server.signal("-HUP");
    server.heard("a restart is needed for what changed in: listen");
    server.heard("the configuration was read again");
    wait_for(|| carries(&listening[1]) && !carries(&listening[0]));
    exchange(&mut open, b"after");
    // A file that is wrong changes nothing.
    config.write("nonsense\n");
    server.signal("-HUP");
    server.heard("the settings of before are used: ");
    assert!(carries(&listening[1]));
    // Another key: whoever has the old token opens nothing more, and what is open goes on.
    config.write(&server_text(two).replace("\"key\"", "\"key2\""));
    let before = fs::read(home.join("token")).unwrap();
    server.signal("-HUP");
    server.heard("the configuration was read again");
    assert_ne!(fs::read(home.join("token")).unwrap(), before);
    assert_eq!(client.said("up"), "false");
    exchange(&mut open, b"still");
    client.signal("-HUP");
    assert_eq!(client.said("up"), "true", "it has read the new token");
    exchange(&mut open, b"and now");
    assert!(carries(&listening[1]));
}

/// A token that comes by a pipe is waited for beside everything else.
#[test]
fn a_token_that_is_waited_for_delays_no_signal() {
    let home = home();
    let home = home.path();
    let port = echo();
    let server = Config::new(home, "server.toml", &server_text(port)).start(home);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let text = client_text(&address, &[format!("0:127.0.0.1:{port}")]);
    let config = Config::new(home, "client.toml", &text);
    let mut client = tunnel(home);
    let mut client = client.arg("--config").arg(&config.0).arg("--json").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"up\"")));
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(home.join("pipe")).status().unwrap().success());
    config.write(&text.replace("\"token\"", "\"pipe\""));
    signal(&client, "-HUP");
    signal(&client, "-TERM");
    assert_eq!(wait(&mut client).signal(), Some(15));
    let mut said = String::new();
    client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("settings of before"), "it has given up the token before: {said}");
}

#[test]
fn a_service_tells_its_manager_and_probes_how_it_is() {
    let home = home();
    let home = home.path();
    let port = echo();
    let manager = UnixDatagram::bind(home.join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut buffer = [0; 1024];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let told_of = |word: &str| {
        let begun = std::time::Instant::now();
        loop {
            let words = told();
            if words.contains(word) {
                return words;
            }
            assert!(begun.elapsed() < PATIENCE, "{word} is never told; {words}");
        }
    };
    let health = "health = \"127.0.0.1:0\"\ndrain_timeout = 60\n";
    let config = Config::new(home, "server.toml", &(server_text(port) + health));
    let mut command = tunnel(home);
    command.env("NOTIFY_SOCKET", home.join("notify")).env("WATCHDOG_USEC", "1000000");
    let mut server = End::start(command.arg("--config").arg(&config.0));
    let probes = server.said("health");
    let address = server.said("serving");
    assert_eq!(told_of("READY=1"), "READY=1\nSTATUS=waiting for tunnels");
    assert!(home.join("token").exists(), "a service that is ready has written its token");
    told_of("WATCHDOG=1");
    assert_eq!(page(&probes, "/healthz"), (200, "ok".into()));
    assert_eq!(page(&probes, "/readyz"), (200, "waiting for tunnels".into()));
    assert_eq!(page(&probes, "/other").0, 404);
    server.signal("-HUP");
    told_of("RELOADING=1");
    told_of("READY=1");

    let client_text = client_text(&address, &[format!("0:127.0.0.1:{port}")]);
    let client = Config::new(home, "client.toml", &(client_text + "health = \"127.0.0.1:0\"\nkeep_trying = true\n"));
    let client = client.start(home);
    let of_client = client.said("health");
    let listening = client.said("listening");
    assert_eq!(client.said("up"), "true");
    assert_eq!(page(&of_client, "/readyz"), (200, "the tunnel is up".into()));
    let mut open = connect(&listening);
    exchange(&mut open, b"before");

    // It ends when the connection has, and not before.
    server.signal("-TERM");
    told_of("STOPPING=1");
    let (status, words) = page(&probes, "/readyz");
    assert!(status == 503 && words.contains("it stops"), "{status} {words}");
    assert_eq!(page(&probes, "/healthz").0, 200);
    assert_eq!(client.said("up"), "false");
    let (status, words) = page(&of_client, "/readyz");
    assert!(status == 503 && words.contains("the tunnel is lost"), "{status} {words}");
    exchange(&mut open, b"meanwhile");
    assert!(server.child.try_wait().unwrap().is_none());
    drop(open);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_second_signal_ends_a_drain() {
    let home = home();
    let home = home.path();
    let port = echo();
    let mut server = Config::new(home, "s.toml", &(server_text(port) + "drain_timeout = 3600\n")).start(home);
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let client = Config::new(home, "c.toml", &client_text(&address, &[format!("0:127.0.0.1:{port}")])).start(home);
    let mut open = connect(&client.said("listening"));
    exchange(&mut open, b"hello");
    server.signal("-TERM");
    // Its listener has gone, its connection has not.
    wait_for(|| TcpStream::connect(&address).is_err());
    exchange(&mut open, b"hello");
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_client_is_ready_when_the_tunnel_is_up() {
    let home = home();
    let home = home.path();
    let manager = UnixDatagram::bind(home.join("notify")).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut key = tunnel(home);
    let making = End::start(key.args(["--listen", "127.0.0.1:0", "--token-out"]).arg(home.join("token")));
    making.said("serving");
    wait_for(|| home.join("token").exists());
    drop(making);
    let mut command = tunnel(home);
    command.env("NOTIFY_SOCKET", home.join("notify"));
    command.args(["-L", "0:localhost:1", &format!("narrows://{address}"), "--token-file"]).arg(home.join("token"));
    // Who is not reached was never ready.
    let output = finish(command.spawn().unwrap());
    assert_eq!(code(&output), 1);
    manager.set_nonblocking(true).unwrap();
    assert_eq!(manager.recv(&mut [0; 1000]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_certificate_that_is_not_valid_is_said_at_both_ends() {
    if !narrows_test::has("openssl") {
        return;
    }
    let home = home();
    let home = home.path();
    let ca = Authority::new(home, "ca");
    ca.sign("server", "IP:127.0.0.1", 2);
    ca.sign("revoked", "DNS:alice", 2);
    ca.sign_between("expired", "DNS:alice", ["20200101000000Z", "20210101000000Z"]);
    ca.sign_between("early", "DNS:alice", ["20990101000000Z", "20991231000000Z"]);
    ca.list("ca.crl", &["revoked"], 2);
    let files = |name: &str| format!("cert = \"{name}.pem\"\nkey = \"{name}.key\"\nca = \"ca.pem\"\n");
    let server = format!("listen = \"127.0.0.1:0\"\n{}crl = \"ca.crl\"\n", files("server"));
    let server = Config::new(home, "server.toml", &server).start(home);
    let address = server.said("serving");
    for (name, at_client, at_server) in [
        ("expired", "has expired, or is not valid yet", "has expired"),
        ("early", "has expired, or is not valid yet", "is not valid yet; compare the clocks"),
        ("revoked", "its certificate is revoked", "certificate is revoked"),
    ] {
        let text = format!("to = \"narrows://{address}\"\nlocal = \"0:localhost:1\"\n{}", files(name));
        let client = Config::new(home, "client.toml", &text);
        let output = finish(tunnel(home).arg("--quiet").arg("--config").arg(&client.0).spawn().unwrap());
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains(at_client) && stderr(&output).lines().count() == 1, "{}", stderr(&output));
        let said = server.said("refused");
        assert!(said.contains(at_server), "{name}: {said}");
        // It is said once in a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
}

#[test]
fn serve_and_agent_say_when_they_are_ready() {
    let home = home();
    let home = home.path();
    let manager = UnixDatagram::bind(home.join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = home.join("token");
    let at = format!("127.0.0.1:{}", free_port());
    let mut serve = narrows(home);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--dir"]).arg(home).arg("--token-out").arg(&token).arg("--quiet");
    let mut agent = narrows(home);
    agent.args(["agent", "--quiet", "--listen", &at]);
    for (command, words) in [(&mut serve, "serving"), (&mut agent, "answering on 127.0.0.1")] {
        command.env("NOTIFY_SOCKET", home.join("notify")).env("XDG_STATE_HOME", home);
        let mut child = command.spawn().unwrap();
        let mut buffer = [0; 1024];
        let len = manager.recv(&mut buffer).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let told = String::from_utf8_lossy(&buffer[..len]).into_owned();
        assert!(told.starts_with("READY=1\n") && told.contains(words), "{told}");
    }
    assert!(token.exists(), "a service that is ready has written its token");
}

#[test]
fn a_token_has_its_file_before_the_port_answers() {
    if !narrows_test::has("strace") {
        return;
    }
    let home = home();
    let home = home.path();
    let manager = UnixDatagram::bind(home.join("notify")).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    let dir = home.to_str().unwrap();
    let serve = ["serve", "--quiet", "--listen", "127.0.0.1:0", "--dir", dir, "--token-out"];
    let tunnel = ["tunnel", "--quiet", "--listen", "127.0.0.1:0", "--token-out"];
    for line in [&serve[..], &tunnel] {
        let (trace, token) = (home.join(format!("{}.trace", line[0])), home.join(format!("{}.token", line[0])));
        // With -D the child is the program, and strace ends after it.
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-e", "trace=listen,rename,renameat,renameat2,linkat", "-o"]).arg(&trace);
        command.arg(env!("CARGO_BIN_EXE_narrows")).args(line).arg(&token);
        command.env("NOTIFY_SOCKET", home.join("notify")).env("XDG_STATE_HOME", home).env("NARROWS_CONFIG", "");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while manager.recv(&mut [0; 1024]).is_err() {
            if child.try_wait().unwrap().is_some() {
                return narrows_test::skip(format!("processes cannot be traced here: {}", stderr(&finish(child))));
            }
            assert!(begun.elapsed() < PATIENCE, "it does not become ready");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let text = || fs::read_to_string(&trace).unwrap();
        wait_for(|| text().contains("+++ killed"));
        let text = text();
        let place = |what: &dyn Fn(&str) -> bool| text.lines().position(what);
        let named = place(&|line| line.contains("rename") && line.contains(".token\""));
        let listens = place(&|line| line.contains("listen("));
        assert!(named.is_some() && listens.is_some() && named < listens, "{text}");
    }
}

/// The folder of the units, and a copy of it in which the program is the one that was built.
fn units(home: &Path) -> Option<Vec<PathBuf>> {
    if !narrows_test::has("systemd-analyze") {
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let mut units = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "service") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("ExecStart=narrows "), "{}", path.display());
            // A template is verified as one instance of it.
            let name = path.file_name().unwrap().to_str().unwrap().replace("@.", "@db.");
            let copy = home.join(name);
            let program = format!("ExecStart={} ", env!("CARGO_BIN_EXE_narrows"));
            fs::write(&copy, text.replace("ExecStart=narrows ", &program)).unwrap();
            units.push(copy);
        }
    }
    assert!(units.len() >= 3, "{units:?}");
    Some(units)
}

#[test]
fn units_are_valid_and_sandboxed() {
    let home = home();
    let home = home.path();
    let Some(units) = units(home) else { return };
    for unit in units {
        let analyze = |words: &[&str]| {
            let output = Command::new("systemd-analyze").args(words).arg(&unit).output().unwrap();
            let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
            (output.status.success(), text)
        };
        let (valid, said) = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
        assert!(valid && said.trim().is_empty(), "{}: {said}", unit.display());
        // 10 is no protection; what systemd itself calls OK is below 5, and these are far below.
        let (safe, said) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=25"]);
        assert!(safe, "{}: {said}", unit.display());
    }
}

/// What a unit says of a key, with its instance.
fn said_by(unit: &str, instance: &str, key: &str) -> Vec<String> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let text = fs::read_to_string(units.join(unit)).unwrap().replace("%i", instance);
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// Each service as its unit runs it, without systemd: a user, groups, its folder, and what is in the place of
/// `/etc/narrows`.
#[test]
fn no_service_reads_the_keys_of_another() {
    if !rustix::process::geteuid().is_root() {
        return narrows_test::skip("needs root, to become several users");
    }
    if !["setpriv", "unshare", "mount", "mkdir", "cat"].iter().all(|program| narrows_test::has(program)) {
        return;
    }
    let home = home();
    let home = home.path();
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return narrows_test::skip("namespaces are not allowed here");
    }
    let at = |path: &str| format!("{}{path}", home.display());
    let public = |path: &str| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    public(&at(""));
    const GROUP: u32 = 4444;
    let services = [("narrows-serve.service", ""), ("narrows-tunnel@.service", "a"), ("narrows-tunnel@.service", "b")];
    let (mut users, mut secrets) = (Vec::new(), Vec::new());
    for (uid, (unit, instance)) in (4001..).zip(services) {
        let is_dynamic = said_by(unit, instance, "DynamicUser") == ["yes"];
        let user = said_by(unit, instance, "User").pop();
        let name = if is_dynamic { format!("{unit}{instance}") } else { user.unwrap() };
        assert!(!users.contains(&name), "{name} runs two services");
        users.push(name);
        let state = said_by(unit, instance, "StateDirectory").pop().unwrap();
        assert_eq!(said_by(unit, instance, "StateDirectoryMode"), ["0700"]);
        let folder = at(&format!("/var/lib/{state}"));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&folder, Some(uid), Some(uid)).unwrap();
        let key = format!("{folder}/key");
        fs::write(&key, "key").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&key, Some(uid), Some(uid)).unwrap();
        secrets.push((uid, key));
        if !instance.is_empty() {
            let folder = at(&format!("/etc/narrows/tunnel/{instance}"));
            fs::create_dir_all(&folder).unwrap();
            let token = format!("{folder}/token");
            fs::write(&token, "token").unwrap();
            fs::set_permissions(&token, fs::Permissions::from_mode(0o640)).unwrap();
            chown(&token, Some(0), Some(GROUP)).unwrap();
            secrets.push((uid, token));
        }
    }
    chown(at("/etc/narrows/tunnel"), Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(at("/etc/narrows/tunnel"), fs::Permissions::from_mode(0o2750)).unwrap();
    for (uid, (unit, instance)) in (4001..).zip(services) {
        let hidden = said_by(unit, instance, "TemporaryFileSystem");
        let hidden = hidden.iter().map(|path| at(path.trim_end_matches(":ro")));
        let mut script = "set -e; mount --make-rprivate /; ".to_owned();
        for (bound, hidden) in said_by(unit, instance, "BindReadOnlyPaths").iter().map(|path| at(path)).zip(hidden) {
            let held = at("/held");
            script +=
                &format!("mkdir -p {held}; mount --bind {bound} {held}; mount -t tmpfs -o mode=755 none {hidden}; ");
            script += &format!("mkdir -p {bound}; mount --bind {held} {bound}; ");
        }
        let groups = match &said_by(unit, instance, "SupplementaryGroups")[..] {
            [] => "--clear-groups".to_owned(),
            [one] => {
                assert_eq!(one, "narrows-tunnel");
                format!("--groups={GROUP}")
            }
            more => panic!("{more:?}"),
        };
        script += &format!("exec setpriv --reuid={uid} --regid={uid} {groups} cat \"$1\"");
        for (owner, secret) in &secrets {
            let output = Command::new("unshare").args(["--mount", "sh", "-c", &script, "sh", secret]).output().unwrap();
            let reads = output.status.success();
            assert_eq!(reads, *owner == uid, "{unit} {instance} {secret}: {}", stderr(&output));
        }
    }
}

/// A unit whose folder is missing does not start, and purging the package removes what it made.
#[test]
fn folders_that_units_name_are_made_and_removed_by_the_package() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |name: &str| fs::read_to_string(packaging.join(name)).unwrap();
    let made = read("systemd/narrows.tmpfiles.conf");
    let made: Vec<_> = made.lines().filter_map(|line| line.strip_prefix("d ")?.split(' ').next()).collect();
    let mut named = Vec::new();
    for unit in ["narrows-agent", "narrows-serve", "narrows-tunnel@"] {
        let text = read(&format!("systemd/{unit}.service"));
        let words = text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.split([' ', '=']));
        named.extend(words.filter(|w| w.starts_with("/etc/") || w.starts_with("/srv/")).map(|word| {
            // That of the file, if it names one; those of tunnels their administrator makes.
            let path = Path::new(word.trim_end_matches(":ro"));
            let folder = if path.extension().is_some() { path.parent().unwrap() } else { path };
            folder.to_str().unwrap().trim_end_matches("/%i").to_owned()
        }));
    }
    assert!(named.len() >= 3, "{named:?}");
    assert!(named.iter().all(|folder| made.contains(&folder.as_str())), "{named:?}, {made:?}");
    let postrm = read("scripts/postrm");
    assert!(made.iter().all(|folder| postrm.split_whitespace().any(|word| word.trim_end_matches(';') == *folder)));
}

#[test]
fn a_container_works_in_a_bare_root() {
    if !["python3", "unshare", "chroot", "mount", "ldd"].iter().all(|program| narrows_test::has(program)) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return narrows_test::skip("another root needs root");
    }
    let preload = Path::new(env!("CARGO_BIN_EXE_narrows")).with_file_name("libnarrows_preload.so");
    let preload = if preload.exists() { preload } else { "/dev/null".into() };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/containerfile-steps");
    let mut command = Command::new(script);
    command.arg(env!("CARGO_BIN_EXE_narrows")).arg(preload);
    let output = finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(code(&output), 0, "{said}{}", stderr(&output));
    assert!(said.contains("healthz: ok") && said.contains("every step"), "{said}");
}
