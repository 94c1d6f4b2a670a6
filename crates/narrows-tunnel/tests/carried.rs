//! Connections through a tunnel between two ends in this process, over loopback.

mod common;

use std::io::{Cursor, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use common::raw::Raw;
use common::{Ends, Far, PATIENCE, acceptor, forward, keys, noise, target, text, wait_until};
use narrows::block::Block;
use narrows::stream::{SendOptions, send};
use narrows::transport::Link;
use narrows_tunnel::forward::listener;
use narrows_tunnel::frame::{self, GREETING, Kind, Parser};
use narrows_tunnel::hello::Hello;
use narrows_tunnel::proxy;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::settings::Settings;
use narrows_tunnel::target::{Endpoint, Target, To};

/// Writes all of it, by a thread, while the answer is read.
fn exchange(client: &mut (impl Read + Write), writer: impl Write + Send + 'static, sent: &[u8]) -> Vec<u8> {
    let (mut writer, copy) = (writer, sent.to_vec());
    let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut got = vec![0; sent.len()];
    client.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    got
}

#[test]
fn an_echo_comes_back_and_ends_pass() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    for len in [1, 100, 5_000, 300_000, 5_000_000] {
        for sent in [text(len), noise(len)] {
            let writer = client.try_clone().unwrap();
            assert!(exchange(&mut client, writer, &sent) == sent, "{len}");
        }
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0, "the echo ends when its input does");
    wait_until("a connection is left", || ends.dialer.counters.flows_now.get() == 0);
    wait_until("a connection is left", || ends.acceptor.as_ref().unwrap().counters.flows_now.get() == 0);
    let counters = &ends.dialer.counters;
    assert!(counters.wire_bytes_out.get() < counters.raw_bytes_out.get(), "text shrinks: {:?}", counters.all());
}

#[test]
fn half_a_connection_may_end_long_before_the_other() {
    // The server reads to the end before it answers.
    let far = Far::new(|mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all.len().to_le_bytes()).unwrap();
        socket.write_all(&text(200_000)).unwrap();
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    for len in [0, 10, 100_000] {
        let mut client = ends.connect(0);
        client.write_all(&text(len)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all[..8], len.to_le_bytes());
        assert!(all[8..] == text(200_000));
    }
    // The server ends first.
    let far = Far::new(|socket| {
        socket.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        (&socket).read_to_end(&mut all).unwrap();
        assert!(all == text(100_000));
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    client.write_all(&text(100_000)).unwrap();
    drop(client);
    wait_until("a connection is left", || ends.dialer.counters.flows_now.get() == 0);
    assert_eq!(ends.dialer.counters.flows_reset.get(), 0);
}

/// Closes with a reset.
fn reset(socket: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
}

#[test]
fn a_reset_passes_in_both_directions() {
    let far = Far::new(|mut socket| {
        socket.read_exact(&mut [0; 3]).unwrap();
        reset(socket);
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    client.write_all(b"end").unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (told, heard) = std::sync::mpsc::channel();
    let far = Far::new(move |mut socket| {
        socket.write_all(b"go").unwrap();
        let _ = told.send(socket.read(&mut [0]).map_err(|e| e.kind()));
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    client.read_exact(&mut [0; 2]).unwrap();
    reset(client);
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_target_that_refuses_is_a_reset_and_one_that_is_not_allowed_too() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let far = Far::echo();
    let rule = Rules::parse(&[format!("localhost:{}", far.port), format!("*:{closed}")]).unwrap();
    let acceptor = Settings { allow: rule, ..Settings::default() };
    let local = [target(closed), target(far.port), format!("localhost:{}", far.port), "/no/such/socket".into()];
    let local = local.iter().map(|to| forward("0", to)).collect();
    let ends = Ends::with(Settings { local, ..Settings::default() }, acceptor);
    for i in [0, 1, 3] {
        let mut client = ends.connect(i);
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{i}");
    }
    let mut client = ends.connect(2);
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn by_default_only_loopback_is_reached() {
    let far = Far::echo();
    // Loopback, by another of its addresses; and an address that is never used.
    let ends = Ends::new(&[("0", &format!("127.9.9.9:{}", far.port)), ("0", "192.0.2.1:80")]);
    let failed = ends.connect(0).read(&mut [0]).unwrap_err().kind();
    assert_eq!(failed, ErrorKind::ConnectionReset, "nobody listens there, but it is tried");
    assert_eq!(ends.connect(1).read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    wait_until("refusals", || ends.acceptor.as_ref().unwrap().counters.flows_refused.get() == 2);
}

#[test]
fn reverse_forwards_listen_at_the_other_end() {
    let far = Far::echo();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reverse");
    let remote = vec![forward("0", &target(far.port)), forward(path.to_str().unwrap(), &target(far.port))];
    let acceptor = Settings { allow_listen: Rules::any(), ..Settings::default() };
    let ends = Ends::with(Settings { remote, ..Settings::default() }, acceptor);
    let mut client = ends.connect(0);
    let writer = client.try_clone().unwrap();
    assert!(exchange(&mut client, writer, &text(1_000_000)) == text(1_000_000));
    let mut client = UnixStream::connect(&path).unwrap();
    let writer = client.try_clone().unwrap();
    assert!(exchange(&mut client, writer, &text(10_000)) == text(10_000));
}

#[test]
fn reverse_forwards_are_loopback_only_unless_allowed() {
    let far = Far::echo();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reverse");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    let _keep = TcpListener::bind(format!("127.0.0.1:{taken}"));
    let to = target(far.port);
    let remote = vec![forward("*:0", &to), forward(path.to_str().unwrap(), &to), forward("0", &to)];
    let ends = Ends::with(Settings { remote, ..Settings::default() }, Settings::default());
    assert!(ends.listening[0].contains("--allow-listen"), "{}", ends.listening[0]);
    assert!(ends.listening[1].contains("--allow-listen") && !path.exists());
    assert!(ends.connect(2).peer_addr().unwrap().ip().is_loopback());
}

#[test]
fn unix_sockets_stand_at_either_end() {
    let dir = tempfile::tempdir().unwrap();
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let server = UnixListener::bind(&far).unwrap();
    std::thread::spawn(move || {
        for mut socket in server.incoming().map_while(Result::ok) {
            let mut all = Vec::new();
            let _ = socket.read_to_end(&mut all);
            let _ = socket.write_all(&all);
        }
    });
    let allow = Rules::parse(&[far.to_str().unwrap().to_owned()]).unwrap();
    let local = vec![forward(near.to_str().unwrap(), far.to_str().unwrap()), forward("0", far.to_str().unwrap())];
    let acceptor = Settings { allow, ..Settings::default() };
    let ends = Ends::with(Settings { local, ..Settings::default() }, acceptor);
    let mut client = UnixStream::connect(&near).unwrap();
    client.write_all(&text(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(all == text(100_000));
    let mut client = ends.connect(1);
    client.write_all(b"by tcp").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"by tcp");
}

#[test]
fn socks_clients_are_told_what_became_of_their_request() {
    let far = Far::echo();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ends =
        Ends::with(Settings { dynamic: vec![listener("0").unwrap()], ..Settings::default() }, Settings::default());
    let ask = |host: &[u8], port: u16| {
        let mut client = ends.connect(0);
        client.write_all(&[5, 1, 0]).unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [5, 0]);
        let request = [&[5, 1, 0, 3, host.len() as u8][..], host, &port.to_be_bytes()].concat();
        client.write_all(&request).unwrap();
        let mut answer = [0; 10];
        client.read_exact(&mut answer).unwrap();
        (answer[1], client)
    };
    let (answer, mut client) = ask(b"localhost", far.port);
    assert_eq!(answer, 0);
    let writer = client.try_clone().unwrap();
    assert!(exchange(&mut client, writer, &text(100_000)) == text(100_000));
    assert_eq!(ask(b"127.0.0.1", closed).0, 5, "refused");
    assert_eq!(ask(b"192.0.2.1", 80).0, 2, "not allowed");
    assert_eq!(ask(b"no.such.host.invalid", 80).0, 4, "unreachable");
    // Everything at once, without waiting for answers.
    let mut client = ends.connect(0);
    let hasty = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &far.port.to_be_bytes(), b"early"].concat();
    client.write_all(&hasty).unwrap();
    let mut answer = [0; 2 + 10 + 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!((answer[3], &answer[12..]), (0, &b"early"[..]));
}

/// A clean end would tell the target that it has the whole upload.
#[test]
fn a_socks_client_that_aborts_before_its_answer_has_not_ended() {
    let (tell, told) = std::sync::mpsc::channel();
    let far = Far::new(move |mut socket| {
        let _ = tell.send(socket.read_to_end(&mut Vec::new()).is_ok());
    });
    let ends =
        Ends::with(Settings { dynamic: vec![listener("0").unwrap()], ..Settings::default() }, Settings::default());
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &far.port.to_be_bytes(), &[b'x'; 1000]].concat();
    for _ in 0..20 {
        let mut client = ends.connect(0);
        client.write_all(&[5, 1, 0]).unwrap();
        client.read_exact(&mut [0; 2]).unwrap();
        client.write_all(&request).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    }
    let mut outcomes = vec![told.recv_timeout(PATIENCE).unwrap()];
    wait_until("a connection is left", || ends.dialer.counters.flows_now.get() == 0);
    outcomes.extend(std::iter::from_fn(|| told.recv_timeout(Duration::from_millis(300)).ok()));
    assert!(!outcomes.contains(&true), "{outcomes:?}");
}

#[test]
fn urgent_bytes_are_bytes() {
    use rustix::net::{SendFlags, send};
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    for _ in 0..20 {
        send(&client, b"before", SendFlags::empty()).unwrap();
        send(&client, b"!", SendFlags::OOB).unwrap();
        send(&client, b"behind", SendFlags::empty()).unwrap();
        let mut got = [0; 13];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"before!behind");
    }
}

#[test]
fn a_slow_reader_holds_up_nobody() {
    let far = Far::new(|mut socket| {
        let mut how = [0];
        socket.read_exact(&mut how).unwrap();
        if how == *b"s" {
            // A firehose that nobody drinks from.
            let _ = socket.write_all(&noise(64 << 20));
        } else {
            common::echo(socket);
        }
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut slow = ends.connect(0);
    slow.write_all(b"s").unwrap();
    slow.read_exact(&mut [0; 1000]).unwrap();
    let mut fast = ends.connect(0);
    fast.write_all(b"f").unwrap();
    for _ in 0..4 {
        let writer = fast.try_clone().unwrap();
        assert!(exchange(&mut fast, writer, &text(2_000_000)) == text(2_000_000));
    }
    // The slow one still has all its bytes.
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(rest == noise(64 << 20)[1000..]);
}

#[test]
fn a_thousand_connections_at_a_time() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    narrows_host::means::allow_descriptors();
    let mut clients: Vec<TcpStream> = (0..1000).map(|_| ends.connect(0)).collect();
    for round in 0..3u32 {
        for (i, client) in clients.iter_mut().enumerate() {
            client.write_all(format!("{round} of {i:04}").as_bytes()).unwrap();
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 9];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, *format!("{round} of {i:04}").as_bytes());
        }
    }
    assert_eq!(ends.dialer.counters.flows_now.get(), 1000);
    assert!(ends.dialer.counters.carriers_now.get() <= 4);
    drop(clients);
    wait_until("a connection is left", || ends.dialer.counters.flows_now.get() == 0);
    wait_until("a connection is left", || ends.acceptor.as_ref().unwrap().counters.flows_now.get() == 0);
    assert_eq!(ends.dialer.counters.bytes_held.get(), 0);
}

#[test]
fn a_burst_to_a_name_is_carried() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &format!("localhost:{}", far.port))]);
    let mut clients: Vec<TcpStream> = (0..300).map(|_| ends.connect(0)).collect();
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
    }
    for client in &mut clients {
        client.read_exact(&mut [0; 5]).unwrap();
    }
    assert_eq!(ends.dialer.counters.flows_refused.get(), 0);
}

#[test]
fn bulk_gets_further_carriers_and_everything_arrives() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let mut client = ends.connect(0);
            std::thread::spawn(move || {
                let sent = if i % 2 == 0 { noise(20_000_000) } else { text(20_000_000) };
                let writer = client.try_clone().unwrap();
                assert!(exchange(&mut client, writer, &sent) == sent);
            })
        })
        .collect();
    let mut calm = ends.connect(0);
    while threads.iter().any(|t| !t.is_finished()) {
        calm.write_all(b"hello").unwrap();
        calm.read_exact(&mut [0; 5]).unwrap();
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(ends.dialer.counters.carriers_up.get() > 2, "{:?}", ends.dialer.counters.all());
}

/// A server that reads a PROXY header and says whose connection it is, then echoes.
fn told() -> Far {
    Far::new(|mut socket| {
        let mut seen = Vec::new();
        loop {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
            match proxy::parse(&seen) {
                proxy::Next::Wait => {}
                proxy::Next::Found { client, .. } => {
                    writeln!(socket, "{client:?}").unwrap();
                    return common::echo(socket);
                }
                proxy::Next::Wrong => panic!("{}", seen.escape_ascii()),
            }
        }
    })
}

fn line(socket: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn servers_are_told_the_real_client_by_proxy_headers() {
    let far = told();
    let (local, remote) = (vec![forward("0", &target(far.port))], vec![forward("0", &target(far.port))]);
    let sends = || Settings { send_proxy: true, ..Settings::default() };
    let ends = Ends::with(Settings { local, remote, ..sends() }, sends());
    for i in 0..2 {
        let mut client = ends.connect(i);
        client.write_all(b"at once").unwrap();
        let own = client.local_addr().unwrap();
        assert_eq!(line(&mut client), format!("Some({own})\n"), "{i}");
        client.read_exact(&mut [0; 7]).unwrap();
    }
    // A listed client says whose connection it brings.
    let local = vec![forward("0", &target(far.port))];
    let proxy_from = vec!["127.0.0.1".parse().unwrap()];
    let ends = Ends::with(Settings { local, proxy_from, ..Settings::default() }, sends());
    let mut client = ends.connect(0);
    client.write_all(b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 80\r\nhello").unwrap();
    assert_eq!(line(&mut client), "Some(203.0.113.9:4711)\n");
    client.read_exact(&mut [0; 5]).unwrap();
    // And nothing else.
    let mut client = ends.connect(0);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn nothing_is_forgotten_in_a_turn() {
    // More than a carrier moves in one turn, again and again, with nothing else that would wake an end.
    let far = Far::new(|mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all.len().to_le_bytes()).unwrap();
    });
    let ends = Ends::new(&[("0", &target(far.port))]);
    let sent = noise(30_000_000);
    for _ in 0..4 {
        let mut client = ends.connect(0);
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut len = [0; 8];
        client.read_exact(&mut len).unwrap();
        assert_eq!(usize::from_le_bytes(len), sent.len());
    }
}

/// Where the stored flow goes.
fn stored_target(port: u16) -> Target {
    let to = To::Endpoint(Endpoint::Tcp { host: "localhost".into(), port });
    Target { to, client: "192.0.2.7:40000".into() }
}

/// What a dialer sends on a carrier: one flow with raw and coded bytes, and what it carries.
fn carrier() -> (Vec<u8>, Vec<u8>) {
    struct Sink(Sender<Vec<u8>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (sender, coded) = channel();
    let options = SendOptions::new("fixed:zstd:level=1".parse().unwrap()).threads(1);
    send(Cursor::new(text(9_000)), Link::writer(Sink(sender)), options).unwrap();
    let coded: Vec<u8> = coded.iter().flatten().collect();
    let mut words = Hello { carrier: 0, attempt: 0, dialer: *b"a stored dialer.", session: 1, instance: 0 }.greet();
    frame::put(&mut words, Kind::Ping, 0, b"measured");
    frame::put(&mut words, Kind::Open, 2, &stored_target(5432).to_bytes());
    frame::put(&mut words, Kind::Raw, 2, &text(900));
    for body in coded.chunks(500) {
        frame::put(&mut words, Kind::Coded, 2, body);
    }
    frame::put(&mut words, Kind::Raw, 2, b"the end");
    frame::put(&mut words, Kind::Credit, 2, &65_536u32.to_le_bytes());
    frame::put(&mut words, Kind::Finish, 2, b"");
    (words, [text(900), text(9_000), b"the end".to_vec()].concat())
}

/// Dialers of released versions are understood for ever. `UPDATE_CARRIERS=1` writes what this version
/// sends if it is not there yet; files are only ever added.
#[test]
fn a_stored_carrier_of_version_1_is_carried() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/carriers/v1-dialer");
    if std::env::var_os("UPDATE_CARRIERS").is_some() && !path.exists() {
        let (words, carried) = carrier();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, words).unwrap();
        std::fs::write(path.with_extension("raw"), carried).unwrap();
    }
    let stored = std::fs::read(&path).unwrap();
    let carried = std::fs::read(path.with_extension("raw")).unwrap();
    let (sender, came) = channel();
    let far = Far::new(move |mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        sender.send(all).unwrap();
        socket.write_all(b"thanks").unwrap();
    });
    // The same frames, but for the port of the server, which this test cannot choose.
    let mut parser = Parser::new(0);
    parser.push(Block::from_vec(stored.clone()));
    let (mut same, mut words) = (GREETING.to_vec(), GREETING.to_vec());
    let mut coded = 0;
    while let Some(found) = parser.next_frame().unwrap() {
        frame::put(&mut same, found.kind, found.flow, &found.body);
        coded += usize::from(found.kind == Kind::Coded);
        if found.kind == Kind::Open {
            assert_eq!(Target::parse(&found.body).unwrap(), stored_target(5432));
            frame::put(&mut words, found.kind, found.flow, &stored_target(far.port).to_bytes());
        } else {
            frame::put(&mut words, found.kind, found.flow, &found.body);
        }
    }
    assert!(same == stored && coded > 1, "frames are written as they were");
    let keys = keys();
    let (_server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let mut dialer = Raw::silent(&keys, &address, 1);
    dialer.send(&words);
    let answers = [Kind::Hello, Kind::Pong, Kind::Opened];
    let answered: Vec<_> = answers.iter().map(|_| dialer.until(&answers).unwrap().kind).collect();
    assert!(answers.iter().all(|kind| answered.contains(kind)), "{answered:?}");
    assert!(came.recv_timeout(PATIENCE).unwrap() == carried);
    assert_eq!(&*dialer.until(&[Kind::Raw]).unwrap().body, b"thanks");
    assert!(dialer.until(&[Kind::Finish]).is_some());
}
