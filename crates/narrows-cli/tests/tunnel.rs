//! `narrows tunnel`: the commands of its documentation, wrong usage, and ends that die.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::copies::shell;
use crate::common::sshd::Sshd;
use crate::common::tunnels::{End, connect, echo, exchange, tunnel, wait_for};
use crate::common::*;
use narrows_test::authority::Authority;

#[test]
fn a_database_on_another_host_is_two_commands() {
    let home = home();
    let home = home.path();
    let (port, token) = (echo(), home.join("tunnel.token"));
    let mut server = tunnel(home);
    server.args(["--listen", "127.0.0.1:0", "--allow", &format!("localhost:{port}"), "--token-out"]).arg(&token);
    let server = End::start(&mut server);
    let address = server.said("serving");
    wait_for(|| token.exists());
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(home.join("narrows/tunnel.key").exists(), "not the key of serve");
    let mut client = tunnel(home);
    client.args(["-L", &format!("0:localhost:{port}"), &format!("narrows://{address}"), "--token-file"]).arg(&token);
    let mut client = End::start(&mut client);
    let listening = client.said("listening");
    assert_eq!(client.said("up"), "true");
    let mut socket = connect(&listening);
    exchange(&mut socket, b"select 1");
    exchange(&mut socket, &text(2_000_000));
    exchange(&mut socket, &random(2_000_000));
    // It ends by the signal, as its caller expects, and never silently for who is connected.
    client.signal("-TERM");
    let status = client.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(connect_fails(&listening));
}

fn connect_fails(address: &str) -> bool {
    TcpStream::connect(address).is_err()
}

#[test]
fn wrong_usage_is_said_in_one_line() {
    let home = home();
    let home = home.path();
    let refused = |args: &[&str], words: &str| {
        let output = finish(tunnel(home).args(args).spawn().unwrap());
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    };
    refused(&[], "--listen");
    refused(&["narrows://host"], "-L, -R or -D");
    refused(&["-L", "5432", "narrows://host"], "PORT:HOST:PORT");
    refused(&["-D", "x", "narrows://host"], "[BIND:]PORT");
    refused(&["-L", "1:a:1", "narrows://host"], "--token-file");
    refused(&["-L", "1:a:1", "narrows://"], "narrows://HOST:PORT");
    refused(&["-L", "1:a:1", "-e", "ssh", "narrows://host"], "-e");
    refused(&["-L", "1:a:1", "--", "-oProxyCommand=x"], "narrows://");
    for other in ["http://db:7702", "db:7702", "[::1]:7702"] {
        refused(&["-L", "1:a:1", other], "write narrows://HOST:PORT");
    }
    refused(&["--listen", "7702"], "not ADDR:PORT, such as 0.0.0.0:7702");
    refused(&["--listen", "127.0.0.1:0", "--allow", "x"], "HOST:PORT");
    refused(&["--listen", "127.0.0.1:0", "-L", "1:a:1"], "cannot be used with");
    refused(&["--listen", "127.0.0.1:0", "--cert", "x"], "--key");
    refused(&["--listen", "127.0.0.1:0", "--policy", "storage"], "--policy");
}

/// Who waits for a program that does not start must not have to ask with -v.
#[test]
fn a_target_that_is_not_reached_is_told_once_and_with_what_to_do() {
    let home = home();
    let home = home.path();
    let (refusing, forbidden) = (free_port(), free_port());
    let mut server = tunnel(home);
    server.args(["--listen", "127.0.0.1:0", "--allow", &format!("127.0.0.1:{refusing}"), "--token-out"]);
    let server = End::start(server.arg(home.join("token")));
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    let mut client = tunnel(home);
    for port in [refusing, forbidden] {
        client.args(["-L", &format!("0:127.0.0.1:{port}")]);
    }
    client.arg(format!("narrows://{address}")).arg("--token-file").arg(home.join("token"));
    let (out, err) = (home.join("out"), home.join("err"));
    let file = |path| fs::File::create(path).unwrap();
    let mut child = client.stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
    let said = || fs::read_to_string(&out).unwrap() + &fs::read_to_string(&err).unwrap();
    wait_for(|| said().contains("the tunnel is up"));
    let listening = said();
    let listening = listening.lines().filter_map(|line| line.strip_prefix("narrows: ")?.split_once(" -> "));
    let listening: Vec<_> = listening.map(|(from, to)| (from.to_owned(), to.to_owned())).collect();
    assert_eq!(listening.len(), 2, "{}", said());
    for _ in 0..3 {
        for (from, _) in &listening {
            assert!(!matches!(connect(from).read(&mut [0]), Ok(1..)), "nobody is there");
        }
    }
    let lines = [
        format!("narrows: cannot reach 127.0.0.1:{refusing}: Connection refused; start what should listen there"),
        format!("narrows: cannot reach 127.0.0.1:{forbidden}: not allowed (--allow); allow it at the other end"),
    ];
    wait_for(|| lines.iter().all(|line| said().contains(line)));
    let (all, told) = (said(), "(told once a minute for each target; -v tells all)");
    assert_eq!((all.matches("cannot reach").count(), all.matches(told).count()), (2, 2), "{all}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn who_is_not_reached_is_said_and_is_a_failure() {
    let home = home();
    let home = home.path();
    let server = End::start(tunnel(home).args(["--listen", "127.0.0.1:0", "--token-out"]).arg(home.join("token")));
    let address = server.said("serving");
    wait_for(|| home.join("token").exists());
    // Another server's token.
    let other = home.join("other");
    fs::create_dir(&other).unwrap();
    let stranger = End::start(tunnel(&other).args(["--listen", "127.0.0.1:0", "--token-out"]).arg(other.join("token")));
    stranger.said("serving");
    wait_for(|| other.join("token").exists());
    let failed = |address: &str, words: &str| {
        let mut command = tunnel(home);
        command.args(["-L", "0:localhost:1", &format!("narrows://{address}"), "--token-file"]);
        let output = finish(command.arg(other.join("token")).spawn().unwrap());
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    failed(&address, "token");
    failed(&format!("127.0.0.1:{}", free_port()), "refused");
    failed("no.such.host.invalid:1", "no.such.host.invalid");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = finish(tunnel(home).args(["--listen", &taken.local_addr().unwrap().to_string()]).spawn().unwrap());
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot listen on 127.0.0.1"), "{}", stderr(&output));
}

#[test]
fn a_killed_server_resets_and_comes_back() {
    let home = home();
    let home = home.path();
    let (port, token) = (echo(), home.join("token"));
    let address = format!("127.0.0.1:{}", free_port());
    let serve = || End::start(tunnel(home).args(["--listen", &address, "--token-out"]).arg(&token));
    let server = serve();
    server.said("serving");
    wait_for(|| token.exists());
    let mut client = tunnel(home);
    client.args(["-L", &format!("0:127.0.0.1:{port}"), &format!("narrows://{address}"), "--token-file"]).arg(&token);
    let client = End::start(&mut client);
    let listening = client.said("listening");
    assert_eq!(client.said("up"), "true");
    let mut socket = connect(&listening);
    exchange(&mut socket, b"before");
    drop(server);
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "never a silent end");
    assert_eq!(client.said("up"), "false");
    let _server = serve();
    assert_eq!(client.said("up"), "true");
    exchange(&mut connect(&listening), &text(100_000));
}

/// The kernel closes what a killed program has open, which must not look like the end of the data.
#[test]
fn a_killed_end_resets_the_connections_of_its_own_host() {
    for kills_server in [true, false] {
        let home = home();
        let home = home.path();
        let token = home.join("token");
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = target.local_addr().unwrap().port();
        let server = End::start(tunnel(home).args(["--listen", "127.0.0.1:0", "--token-out"]).arg(&token));
        let address = server.said("serving");
        wait_for(|| token.exists());
        let mut client = tunnel(home);
        client
            .args(["-L", &format!("0:127.0.0.1:{port}"), &format!("narrows://{address}"), "--token-file"])
            .arg(&token);
        let client = End::start(&mut client);
        let mut socket = connect(&client.said("listening"));
        let (mut accepted, _) = target.accept().unwrap();
        accepted.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        if kills_server {
            drop(server)
        } else {
            drop(client)
        }
        assert_eq!(accepted.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{kills_server}");
        assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{kills_server}");
    }
}

#[test]
fn a_remote_shell_is_enough() {
    let home = home();
    let home = home.path();
    let port = echo();
    let mut client = tunnel(home);
    client.arg("-e").arg(shell(home)).args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
    client.args(["-L", &format!("0:127.0.0.1:{port}"), "-R", &format!("0:127.0.0.1:{port}"), "host"]);
    let client = End::start(&mut client);
    let listening = client.said("listening");
    let remote = client.said("remote");
    for address in [listening, remote] {
        let mut socket = connect(&address);
        exchange(&mut socket, b"hello");
        exchange(&mut socket, &text(3_000_000));
    }
    // Nothing there that speaks.
    let mut command = tunnel(home);
    command.arg("-e").arg(shell(home)).args(["--remote-narrows", "false", "-L", "0:localhost:1", "host"]);
    let output = finish(command.spawn().unwrap());
    assert_eq!(code(&output), 1, "{}", stderr(&output));
}

#[test]
fn ssh_carries_it() {
    let home = home();
    let home = home.path();
    let Some(sshd) = Sshd::start(home) else { return };
    let port = echo();
    let mut client = tunnel(home);
    client.args(["-e", &sshd.shell(), "--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
    client.args(["-L", &format!("0:127.0.0.1:{port}"), "127.0.0.1"]);
    let client = End::start(&mut client);
    let listening = client.said("listening");
    assert_eq!(client.said("up"), "true");
    let mut socket = connect(&listening);
    exchange(&mut socket, b"hello");
    exchange(&mut socket, &text(3_000_000));
}

#[test]
fn certificates_are_read_again_while_connections_are_open() {
    if !narrows_test::has("openssl") {
        return;
    }
    let home = home();
    let home = home.path();
    // One certificate for both ends, a new one for each authority.
    let renew = || {
        Authority::new(home, "new-ca").sign("new", "IP:127.0.0.1", 2);
        for (new, name) in [("new-ca.pem", "ca.pem"), ("new.key", "end.key"), ("new.pem", "end.pem")] {
            fs::rename(home.join(new), home.join(name)).unwrap();
        }
    };
    renew();
    let with_files = |command: &mut Command| {
        for (option, file) in [("--cert", "end.pem"), ("--key", "end.key"), ("--ca", "ca.pem")] {
            command.arg(option).arg(home.join(file));
        }
    };
    let port = echo();
    let client_of = |address: &str| {
        let mut client = tunnel(home);
        client.args(["-L", &format!("0:127.0.0.1:{port}"), &format!("narrows://{address}")]);
        with_files(&mut client);
        client
    };
    let mut server = tunnel(home);
    server.args(["--listen", "127.0.0.1:0"]);
    with_files(&mut server);
    let server = End::start(&mut server);
    let address = server.said("serving");
    let old = End::start(&mut client_of(&address));
    let mut open = connect(&old.said("listening"));
    exchange(&mut open, b"before");
    renew();
    server.signal("-HUP");
    // A new client has the new files; the server may need a moment.
    let new = loop {
        let new = End::start(client_of(&address).arg("--keep-trying"));
        let listening = new.said("listening");
        if new.said("up") == "true" {
            break (new, listening);
        }
    };
    exchange(&mut connect(&new.1), &text(100_000));
    exchange(&mut open, b"after");
}
