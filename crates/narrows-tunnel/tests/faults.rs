//! What happens when an end of a tunnel is wrong, hostile, or gone.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Ends, Far, PATIENCE, Relay, acceptor, dialer, forward, keys, target, text, wait_for, wait_until};
use narrows_tunnel::Tunnel;
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{Report, Settings, Uplink};

fn over(tunnel: &Tunnel) -> String {
    let begun = Instant::now();
    loop {
        match tunnel.reports.recv_timeout(PATIENCE) {
            Ok(Report::Over { error }) => return error.unwrap_or_default(),
            Ok(_) => assert!(begun.elapsed() < PATIENCE),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn another_token_is_refused_by_both_ends() {
    let (one, other) = (keys(), keys());
    let (server, address) = acceptor(&one, "127.0.0.1:0", Settings::default());
    let client = dialer(&other, &address, Settings { local: vec![forward("0", "localhost:1")], ..Settings::default() });
    let error = over(&client);
    assert!(error.contains("does not accept") && error.contains(&address), "{error}");
    wait_until("the acceptor has said no", || {
        server.counters.strangers_refused.get() + server.counters.strangers_broken.get() == 1
    });
    assert_eq!(server.counters.carriers_up.get(), 0);
}

#[test]
fn who_is_not_there_is_said_at_once_or_tried_again() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let keys = keys();
    let error = over(&dialer(&keys, &address, Settings::default()));
    assert!(error.contains("refused"), "{error}");
    let far = Far::echo();
    let patient = Settings { keeps_trying: true, local: vec![forward("0", &target(far.port))], ..Settings::default() };
    let client = dialer(&keys, &address, patient);
    wait_for(&client, |report| matches!(report, Report::Lost { .. }).then_some(()));
    let _server = acceptor(&keys, &address, Settings::default());
    wait_for(&client, |report| (report == Report::Up).then_some(()));
}

#[test]
fn what_is_no_tunnel_is_said_to_be_none() {
    let far = Far::new(|mut socket| {
        let _ = socket.write_all(b"220 mail.example ESMTP\r\n");
        let _ = socket.read(&mut [0; 1000]);
    });
    let error = over(&dialer(&keys(), &format!("127.0.0.1:{}", far.port), Settings::default()));
    assert!(!error.is_empty());
}

#[test]
fn garbage_and_silence_keep_nobody_out() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    let garbage: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 5000], b"\x16\x03\x01\xff\xff\x01", b""];
    let mut strangers = Vec::new();
    for bytes in garbage.iter().cycle().take(40) {
        let mut socket = TcpStream::connect(&ends.address).unwrap();
        let _ = socket.write_all(bytes);
        strangers.push(socket);
    }
    let mut client = ends.connect(0);
    client.write_all(b"still here").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    let counters = &ends.acceptor.as_ref().unwrap().counters;
    wait_until("broken strangers", || counters.strangers_broken.get() >= 20);
}

#[test]
fn a_lost_acceptor_resets_what_was_open_and_is_found_again() {
    let far = Far::echo();
    let keys = keys();
    // A relay stands for the network: cutting it loses the carriers.
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let relay = Relay::new(&address);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &relay.address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    for round in 0..3 {
        let mut open = TcpStream::connect(&listening).unwrap();
        open.set_read_timeout(Some(PATIENCE)).unwrap();
        open.write_all(b"hello").unwrap();
        open.read_exact(&mut [0; 5]).unwrap();
        relay.cut();
        let error = open.read(&mut [0]).unwrap_err().kind();
        assert_eq!(error, ErrorKind::ConnectionReset, "never a silent end");
        // The listener is still there; what comes now waits for the tunnel.
        let mut next = TcpStream::connect(&listening).unwrap();
        next.set_read_timeout(Some(PATIENCE)).unwrap();
        next.write_all(&text(10_000)).unwrap();
        let mut answer = vec![0; 10_000];
        next.read_exact(&mut answer).unwrap();
        assert!(answer == text(10_000), "{round}");
    }
    assert!(server.counters.sessions_now.get() <= 1, "earlier sessions have ended");
}

#[test]
fn reverse_ports_are_free_again_for_who_comes_back() {
    let far = Far::echo();
    let keys = keys();
    let (_server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let relay = Relay::new(&address);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let remote = vec![forward(&port.to_string(), &target(far.port))];
    let client = dialer(&keys, &relay.address, Settings { remote, ..Settings::default() });
    for _ in 0..3 {
        let from = wait_for(&client, |report| match report {
            Report::RemoteListening { from, .. } => Some(from),
            Report::RemoteRefused { why, .. } => panic!("{why}"),
            _ => None,
        });
        let mut socket = TcpStream::connect(from).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"hi").unwrap();
        socket.read_exact(&mut [0; 2]).unwrap();
        // The acceptor does not hear of it: the connections stay open on its side.
        relay.forget();
    }
}

#[test]
fn a_drained_tunnel_lets_connections_end_and_another_takes_over() {
    let far = Far::echo();
    let keys = keys();
    let (old, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let speak = |socket: &mut TcpStream| {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"hello").unwrap();
        socket.read_exact(&mut [0; 5]).unwrap();
    };
    let mut open = TcpStream::connect(&listening).unwrap();
    speak(&mut open);
    old.drain(PATIENCE);
    wait_for(&client, |report| matches!(report, Report::Lost { .. }).then_some(()));
    speak(&mut open);
    let (new, _) = acceptor(&keys, &address, Settings::default());
    let mut next = TcpStream::connect(&listening).unwrap();
    speak(&mut next);
    speak(&mut open);
    assert_eq!((old.counters.flows_now.get(), new.counters.flows_now.get()), (1, 1));
    drop(open);
    assert_eq!(over(&old), "");
    speak(&mut next);
    // After its time it ends in any case.
    new.drain(Duration::from_millis(100));
    assert_eq!(over(&new), "");
}

#[test]
fn a_peer_that_falls_silent_is_given_up() {
    let far = Far::echo();
    let keys = keys();
    let timing = Timing { ping_after_ns: 100_000_000, dead_after_ns: 400_000_000, ..Timing::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings { timing, ..Settings::default() });
    let relay = Relay::new(&address);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &relay.address, Settings { local, timing, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let mut open = TcpStream::connect(&listening).unwrap();
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    open.write_all(b"hello").unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
    // Quiet for longer than silence may last: pings keep it alive.
    std::thread::sleep(Duration::from_millis(900));
    open.write_all(b"hello").unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
    relay.freeze();
    assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    wait_until("the acceptor gives it up too", || server.counters.flows_now.get() == 0);
}

#[test]
fn silent_connections_keep_nobody_out() {
    let far = Far::echo();
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    narrows_host::means::allow_descriptors();
    // More than one host may begin at once.
    let _silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
    wait_until("strangers turned away", || server.counters.strangers_over_rate.get() >= 200);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &address, Settings { local, keeps_trying: true, ..Settings::default() });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
}

#[test]
fn a_program_carries_it_whatever_it_prints_first() {
    if !narrows_test::has("socat") {
        return;
    }
    let far = Far::echo();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let other_end = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let serving = std::thread::spawn(move || {
        let stdio = Some(other_end.accept().unwrap().0.into());
        let settings =
            Settings { stdio, allow: narrows_tunnel::rules::Rules::any(), flows_max: 100, ..Settings::default() };
        over(&Tunnel::start(settings).unwrap())
    });
    let script = format!("echo Welcome to this host; exec socat - UNIX-CONNECT:{}", path.display());
    let command = ["sh".into(), "-c".into(), script.into()].into();
    let local = vec![forward("0", &target(far.port))];
    let uplink = Some(Uplink::Shell { command });
    let client = Tunnel::start(Settings { uplink, local, flows_max: 100, carriers: 2, ..Settings::default() }).unwrap();
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let mut open = TcpStream::connect(&listening).unwrap();
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = text(1_000_000);
    let (mut writer, copy) = (open.try_clone().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut got = vec![0; sent.len()];
    open.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent);
    client.drain(Duration::ZERO);
    assert_eq!(over(&client), "");
    drop(client);
    assert_eq!(serving.join().unwrap(), "", "it ends with its carrier");
}

#[test]
fn a_program_that_fails_is_a_failure() {
    for script in ["exit 127", "cat /dev/zero", "echo no such program"] {
        let uplink = Some(Uplink::Shell { command: ["sh".into(), "-c".into(), script.into()].into() });
        let error = over(&Tunnel::start(Settings { uplink, flows_max: 10, ..Settings::default() }).unwrap());
        assert!(!error.is_empty(), "{script}");
    }
}
