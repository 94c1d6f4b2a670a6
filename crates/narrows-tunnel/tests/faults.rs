//! Tunnels with an end that is wrong, hostile or gone.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Ends, Far, PATIENCE, Relay, acceptor, dialer, forward, keys, noise, target, text, wait_for, wait_until};
use narrows_trust::proof;
use narrows_tunnel::Tunnel;
use narrows_tunnel::frame::{self, GREETING, Kind};
use narrows_tunnel::hello::{self, Hello};
use narrows_tunnel::reason::Reason;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{PROTOCOL, Report, Settings, Uplink};

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
    // More than one host may begin at once. Those that are turned away may hear of it within `connect`.
    let _silent: Vec<TcpStream> = (0..300).filter_map(|_| TcpStream::connect(&address).ok()).collect();
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
        let settings = Settings { stdio, allow: Rules::any(), flows_max: 100, ..Settings::default() };
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

#[test]
fn an_end_that_stops_resets_what_it_carried_and_never_ends_it() {
    let (told, heard) = channel();
    let far = Far::new(move |mut socket| {
        let _ = told.send(socket.read_to_end(&mut Vec::new()).map_err(|e| e.kind()));
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let acceptor = ends.acceptor.as_ref().unwrap();
    let mut client = ends.connect(0);
    client.write_all(&text(100_000)).unwrap();
    wait_until("the upload arrives", || acceptor.counters.raw_bytes_in.get() > 0);
    acceptor.drain(Duration::ZERO);
    let failed = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(failed, Err(ErrorKind::ConnectionReset), "a server keeps no half of a file");
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let far = Far::new(|mut socket| {
        socket.write_all(b"half of it").unwrap();
        let _ = socket.read(&mut [0]);
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    client.read_exact(&mut [0; 10]).unwrap();
    ends.dialer.drain(Duration::ZERO);
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_drained_end_sends_all_that_it_accepted() {
    let (told, heard) = channel();
    let far = Far::new(move |mut socket| {
        socket.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        let _ = told.send(socket.read_to_end(&mut all).map(|_| all).map_err(|e| e.kind()));
    });
    let keys = keys();
    let (_server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let relay = Relay::new(&address);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &relay.address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let mut socket = TcpStream::connect(&listening).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the server's direction ends");
    // All of it fits into queues of this end.
    relay.freeze();
    let sent = noise(200_000);
    socket.write_all(&sent).unwrap();
    drop(socket);
    wait_until("it is accepted", || client.counters.raw_bytes_out.get() == sent.len() as u64);
    client.drain(PATIENCE);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(client.counters.flows_now.get(), 1, "it is not over before its bytes have left");
    relay.thaw();
    let got = heard.recv_timeout(PATIENCE).unwrap();
    assert!(got.is_ok_and(|got| got == sent), "the tail is lost");
    assert_eq!(over(&client), "");
}

#[test]
fn what_has_all_arrived_is_delivered_although_the_tunnel_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slow");
    let server = UnixListener::bind(&path).unwrap();
    let ((go, gone), (told, heard)) = (channel::<()>(), channel());
    std::thread::spawn(move || {
        let mut socket = server.accept().unwrap().0;
        socket.shutdown(Shutdown::Write).unwrap();
        let _ = gone.recv();
        let mut all = Vec::new();
        let _ = told.send(socket.read_to_end(&mut all).map(|_| all).map_err(|e| e.kind()));
    });
    let local = vec![forward("0", path.to_str().unwrap())];
    let allowing = Settings { allow: Rules::any(), ..Settings::default() };
    let ends = Ends::with(Settings { local, ..Settings::default() }, allowing);
    let acceptor = ends.acceptor.as_ref().unwrap();
    let mut client = ends.connect(0);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    // More than the socket of the server takes, and less than may be ahead of a reader of any pace (`ahead::LEAST`).
    let sent = text(250_000);
    client.write_all(&sent).unwrap();
    drop(client);
    wait_until("all has left", || ends.dialer.counters.flows_now.get() == 0);
    ends.dialer.drain(PATIENCE);
    assert_eq!(over(&ends.dialer), "");
    wait_until("the session ends", || acceptor.counters.sessions_now.get() == 0);
    assert_eq!(acceptor.counters.flows_now.get(), 1);
    go.send(()).unwrap();
    let got = heard.recv_timeout(PATIENCE).unwrap();
    assert!(got.is_ok_and(|got| got == sent), "a slow server gets all of it");
    wait_until("the connection ends", || acceptor.counters.flows_now.get() == 0);
}

#[test]
fn an_answer_before_a_reset_is_delivered_before_it() {
    // A server that answers at once and closes, as one does to a body that is too long.
    let far = Far::new(|mut socket| {
        socket.read_exact(&mut [0; 10]).unwrap();
        socket.peek(&mut [0]).unwrap();
        socket.write_all(&text(5000)).unwrap();
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    for _ in 0..20 {
        let mut client = ends.connect(0);
        let mut writer = client.try_clone().unwrap();
        // It hears of the reset, or the one who reads does.
        let writing = std::thread::spawn(move || while writer.write_all(&[7; 100_000]).is_ok() {});
        let mut answer = vec![0; 5000];
        client.read_exact(&mut answer).unwrap();
        assert!(answer == text(5000));
        assert!(matches!(client.read(&mut [0]).map_err(|e| e.kind()), Ok(0) | Err(ErrorKind::ConnectionReset)));
        writing.join().unwrap();
    }
}

#[test]
fn a_client_that_reads_no_more_still_uploads_all_of_it() {
    let (told, heard) = channel();
    let far = Far::new(move |mut socket| {
        let mut got = vec![0; 300_000];
        socket.read_exact(&mut got[..1000]).unwrap();
        // Nobody reads it, and the other side says so.
        let _ = socket.write_all(&noise(200_000));
        let _ = told.send(socket.read_exact(&mut got[1000..]).is_ok() && got == noise(300_000));
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    client.write_all(&noise(300_000)).unwrap();
    drop(client);
    assert!(heard.recv_timeout(PATIENCE).unwrap());
    wait_until("a connection is left", || ends.dialer.counters.flows_now.get() == 0);
    wait_until("a connection is left", || ends.acceptor.as_ref().unwrap().counters.flows_now.get() == 0);
}

#[test]
fn a_full_queue_of_a_unix_socket_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("busy");
    let server = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&server, 0).unwrap();
    let local = vec![forward("0", path.to_str().unwrap())];
    let allowing = Settings { allow: Rules::any(), ..Settings::default() };
    let ends = Ends::with(Settings { local, ..Settings::default() }, allowing);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| ends.connect(0)).collect();
    clients.iter_mut().for_each(|client| client.write_all(b"hi").unwrap());
    wait_until("all are tried", || ends.acceptor.as_ref().unwrap().counters.flows_now.get() == 20);
    std::thread::spawn(move || {
        for mut socket in server.incoming().map_while(Result::ok) {
            let _ = socket.read_exact(&mut [0; 2]);
            let _ = socket.write_all(b"ho");
        }
    });
    for client in &mut clients {
        client.read_exact(&mut [0; 2]).unwrap();
    }
}

fn patient(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_talker_without_a_hello_holds_up_nobody() {
    let far = Far::echo();
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let config = proof::client_config(&keys.token().unwrap(), PROTOCOL).unwrap();
    let connection = rustls::ClientConnection::new(config, proof::NAME.try_into().unwrap()).unwrap();
    let mut peer = rustls::StreamOwned::new(connection, patient(TcpStream::connect(&address).unwrap()));
    // Frames of a kind that is passed over, for as long as they are taken.
    let mut frames = Vec::new();
    (0..64).for_each(|_| frame::put(&mut frames, Kind::Ping, 0, &[0; 10_000]));
    for at in (0..frames.len()).step_by(10_000 + frame::HEADER_LEN) {
        frames[at] = 64;
    }
    let mut sent = 0;
    let mut result = peer.write_all(&GREETING);
    while result.is_ok() && sent < 300 << 20 {
        result = peer.write_all(&frames);
        sent += frames.len();
    }
    assert!(result.is_err(), "it is read for ever");
    assert_eq!(server.counters.strangers_broken.get(), 1);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &address, Settings { local, ..Settings::default() });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
}

/// The network may cut the first words of a carrier anywhere.
#[test]
fn a_hello_that_comes_byte_by_byte_is_one() {
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let config = proof::client_config(&keys.token().unwrap(), PROTOCOL).unwrap();
    let connection = rustls::ClientConnection::new(config, proof::NAME.try_into().unwrap()).unwrap();
    let socket = patient(TcpStream::connect(&address).unwrap());
    socket.set_nodelay(true).unwrap();
    let mut peer = rustls::StreamOwned::new(connection, socket);
    let hello = Hello { carrier: 0, attempt: 0, dialer: *b"a slow dialer...", session: 1, instance: 0 };
    for byte in hello.greet() {
        peer.write_all(&[byte]).unwrap();
        peer.flush().unwrap();
    }
    let mut answer = [0; GREETING.len()];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer, GREETING);
    assert_eq!(server.counters.strangers_broken.get(), 0);
}

/// Who is asked whether it is ready says so when all listeners are there, not before.
#[test]
fn a_listener_without_an_answer_is_none() {
    let keys = keys();
    let config = proof::server_config(&keys, PROTOCOL).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let connection = rustls::ServerConnection::new(config).unwrap();
        let mut peer = rustls::StreamOwned::new(connection, patient(listener.accept().unwrap().0));
        let mut parser = frame::Parser::new(0);
        let mut frame = |peer: &mut rustls::StreamOwned<_, _>| loop {
            if let Some(frame) = parser.next_frame().unwrap() {
                return frame;
            }
            let mut byte = [0];
            peer.read_exact(&mut byte).unwrap();
            parser.push(narrows::block::Block::from_vec(byte.to_vec()));
        };
        let body = frame(&mut peer).body;
        peer.write_all(&GREETING).unwrap();
        let mut words = Vec::new();
        frame::put(&mut words, Kind::Hello, 0, &body);
        peer.write_all(&words).unwrap();
        while frame(&mut peer).kind != Kind::Listen {}
        gone.recv().unwrap();
        words.clear();
        let mut answer = Reason::Other.to_bytes("127.0.0.1:8080");
        answer[0] = 0;
        frame::put(&mut words, Kind::Listening, 0, &answer);
        peer.write_all(&words).unwrap();
        peer
    });
    let remote = vec![forward("8080", "localhost:1")];
    let client = dialer(&keys, &address, Settings { remote, ..Settings::default() });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let why = client.counters.standing().can_carry().unwrap_err();
    assert!(why.contains("8080: no answer yet"), "{why}");
    go.send(()).unwrap();
    wait_until("it is there", || client.counters.standing().can_carry().is_ok());
    drop(server.join());
}

#[test]
fn an_acceptor_that_is_full_is_a_failure_and_not_tried_in_a_hurry() {
    let keys = keys();
    let config = proof::server_config(&keys, PROTOCOL).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut peer = rustls::StreamOwned::new(connection, patient(socket));
            let mut first = [0; GREETING.len() + frame::HEADER_LEN + hello::LEN];
            peer.read_exact(&mut first).unwrap();
            let mut parser = frame::Parser::new(0);
            parser.push(narrows::block::Block::from_vec(first.to_vec()));
            let mut words = Hello::expect(&mut parser).unwrap().unwrap().greet();
            frame::put(&mut words, Kind::Goaway, 0, &Reason::Busy.to_bytes(""));
            peer.write_all(&words).unwrap();
            let _ = peer.read_to_end(&mut Vec::new());
        }
    });
    let error = over(&dialer(&keys, &address, Settings::default()));
    assert!(error.contains("limit"), "{error}");
    // Connections do not wait for what does not come.
    let local = vec![forward("0", "localhost:1")];
    let client = dialer(&keys, &address, Settings { local, keeps_trying: true, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    let mut socket = TcpStream::connect(listening).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_carriers_of_a_session_are_at_one_server() {
    let keys = keys();
    let servers = [(); 2].map(|()| acceptor(&keys, "127.0.0.1:0", Settings::default()));
    let addresses = servers.each_ref().map(|(_, address)| address.clone());
    // One name for both, as a balancer or DNS gives.
    let name = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = name.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (i, near) in name.incoming().map_while(Result::ok).enumerate() {
            let far = TcpStream::connect(&addresses[i % 2]).unwrap();
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    let client = dialer(&keys, &address, Settings::default());
    wait_until("two carriers at one of them", || {
        servers.iter().any(|(server, _)| server.counters.carriers_now.get() == 2)
            && servers.iter().any(|(server, _)| server.counters.sessions_now.get() == 0)
    });
    assert_eq!(client.counters.carriers_now.get(), 2);
}

#[test]
fn a_login_may_take_longer_than_a_hello_of_tcp() {
    if !narrows_test::has("socat") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let other_end = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let stdio = Some(other_end.accept().unwrap().0.into());
        over(&Tunnel::start(Settings { stdio, flows_max: 100, ..Settings::default() }).unwrap())
    });
    let script = format!("sleep 1; exec socat - UNIX-CONNECT:{}", path.display());
    let uplink = Some(Uplink::Shell { command: ["sh".into(), "-c".into(), script.into()].into() });
    let timing = Timing { hello_within_ns: 200_000_000, ..Timing::default() };
    let client = Tunnel::start(Settings { uplink, timing, flows_max: 100, ..Settings::default() }).unwrap();
    wait_for(&client, |report| (report == Report::Up).then_some(()));
}

#[test]
fn a_remote_shell_is_asked_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let (begun, ended) = (dir.path().join("begun"), dir.path().join("ended"));
    let script = format!(
        "trap 'echo > {}; exit' TERM; echo > {}; while :; do sleep 0.05; done",
        ended.display(),
        begun.display()
    );
    let uplink = Some(Uplink::Shell { command: ["sh".into(), "-c".into(), script.into()].into() });
    let client = Tunnel::start(Settings { uplink, flows_max: 100, ..Settings::default() }).unwrap();
    wait_until("it runs", || begun.exists());
    client.stop();
    wait_until("it ends as it likes to", || ended.exists());
}
