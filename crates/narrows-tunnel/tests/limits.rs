//! Each limit of a tunnel: it holds, it is counted, and who stays within it is served.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use common::raw::from;
use common::{Ends, Far, PATIENCE, acceptor, dialer, forward, keys, noise, target, wait_for, wait_until};
use narrows_trust::proof;
use narrows_tunnel::Tunnel;
use narrows_tunnel::limits::{Limits, UNDECIDED_MAX};
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{PROTOCOL, Report, Settings};

fn limited(limits: Limits) -> Settings {
    Settings { limits, ..Settings::default() }
}

/// Connections on which nothing is said.
fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    narrows_host::means::allow_descriptors();
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Whether another client comes in and is served.
fn serves(keys: &narrows_trust::keys::Keys, address: &str) {
    let local = vec![forward("0", &target(Far::echo().port))];
    let client = dialer(keys, address, Settings { local, keeps_trying: true, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    assert!(speak(&mut TcpStream::connect(listening).unwrap()));
}

/// Whether an echo comes back; else there was a reset.
fn speak(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    match socket.write_all(b"hello").and_then(|()| socket.read_exact(&mut [0; 5])) {
        Ok(()) => true,
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}");
            false
        }
    }
}

#[test]
fn handshakes_under_way_are_limited_and_the_oldest_make_room() {
    let keys = keys();
    let limits = Limits { strangers: 8, greetings_per_s: 10_000, ..Limits::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", limited(limits));
    let _silent = silent(&address, 40);
    wait_until("32 are turned away", || server.counters.strangers_over_limit.get() == 32);
    assert_eq!(server.counters.strangers_now.get(), 8);
    serves(&keys, &address);
    assert_eq!(server.counters.strangers_over_rate.get(), 0);
}

#[test]
fn a_host_begins_so_many_handshakes_in_a_second() {
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", limited(Limits { greetings_per_s: 5, ..Limits::default() }));
    let silent = silent(&address, 200);
    // All of them come within some milliseconds, on a slow machine within some seconds.
    wait_until("most are turned away", || server.counters.strangers_over_rate.get() > 20);
    drop(silent);
    serves(&keys, &address);
}

/// Many hosts that connect and say nothing, each within its rate, take nothing from those that do.
#[test]
fn who_says_nothing_uses_up_no_handshakes() {
    const HOSTS: u32 = 100;
    let keys = keys();
    let limits = Limits { strangers: 64, ..Limits::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", limited(limits));
    let to: SocketAddr = address.parse().unwrap();
    // Far more than all hosts together may begin at once.
    let count = 40 * HOSTS;
    for i in 0..count {
        drop(from(i % HOSTS, &to));
    }
    wait_until("all were met", || {
        let counters = &server.counters;
        let away = counters.strangers_over_limit.get() + counters.strangers_over_rate.get();
        away + counters.strangers_broken.get() >= u64::from(count)
    });
    assert_eq!(server.counters.strangers_over_rate.get(), 0);
    serves(&keys, &address);
}

#[test]
fn half_a_handshake_is_given_up() {
    let keys = keys();
    let timing = Timing { hello_within_ns: 200_000_000, ..Timing::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings { timing, ..Settings::default() });
    let mut half = silent(&address, 3);
    // The beginning of a record of TLS, and a byte now and then, as a slow attacker sends them.
    half[1].write_all(&[22, 3, 1, 2, 0, 1, 0]).unwrap();
    for _ in 0..10 {
        let _ = half[2].write_all(&[22]);
        std::thread::sleep(Duration::from_millis(40));
    }
    wait_until("they are given up", || server.counters.strangers_now.get() == 0);
    assert_eq!(server.counters.strangers_late.get() + server.counters.strangers_broken.get(), 3);
    assert!(server.counters.strangers_late.get() >= 2);
    for socket in &mut half {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        // Closed; an alert may come before.
        let _ = socket.read_to_end(&mut rest);
    }
}

#[test]
fn garbage_in_front_of_a_handshake_is_refused() {
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &noise(4096)] {
        let before = server.counters.strangers_broken.get();
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.write_all(garbage).unwrap();
        wait_until("it is refused", || server.counters.strangers_broken.get() == before + 1);
    }
    serves(&keys, &address);
}

/// The record of an alert that TLS ignores would let the handshake after it pass uncounted.
#[test]
fn who_begins_with_an_alert_gets_no_handshake() {
    const USER_CANCELED: [u8; 7] = [21, 3, 3, 0, 2, 1, 90];
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let config = proof::client_config(&keys.token().unwrap(), PROTOCOL).unwrap();
    let mut client = rustls::ClientConnection::new(config, proof::NAME.try_into().unwrap()).unwrap();
    let mut hello = USER_CANCELED.to_vec();
    client.write_tls(&mut hello).unwrap();
    for (bytes, answer) in [(&hello[..], None), (&hello[USER_CANCELED.len()..], Some(22))] {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(bytes).unwrap();
        let mut first = [0];
        // A handshake, or the end or reset of a connection that is closed.
        let is_answered = matches!(socket.read(&mut first), Ok(1));
        assert_eq!(is_answered.then_some(first[0]), answer);
        assert!(server.counters.strangers_broken.get() >= 1);
    }
}

#[test]
fn connections_beyond_the_places_are_reset() {
    let far = Far::echo();
    let local = vec![forward("0", &target(far.port))];
    let ends = Ends::with(Settings { local, ..Settings::default() }, Settings { flows_max: 8, ..Settings::default() });
    let server = ends.acceptor.as_ref().unwrap();
    let mut open: Vec<TcpStream> = Vec::new();
    let mut refused = 0;
    for _ in 0..12 {
        let mut socket = ends.connect(0);
        if speak(&mut socket) { open.push(socket) } else { refused += 1 }
    }
    // One host alone gets half of the places.
    assert_eq!((open.len(), refused), (4, 8));
    assert_eq!(server.counters.flows_over_limit.get(), 8);
    open.pop();
    wait_until("its place is free", || server.counters.flows_now.get() == 3);
    assert!(speak(&mut ends.connect(0)));
}

#[test]
fn a_host_opens_so_many_connections_in_a_second() {
    let far = Far::echo();
    let local = vec![forward("0", &target(far.port))];
    let limits = Limits { flows_per_s: 2, ..Limits::default() };
    let ends = Ends::with(Settings { local, ..Settings::default() }, limited(limits));
    let server = ends.acceptor.as_ref().unwrap();
    let mut sockets: Vec<TcpStream> = (0..50).map(|_| ends.connect(0)).collect();
    let carried = sockets.iter_mut().filter_map(|socket| speak(socket).then_some(())).count();
    assert!((1..25).contains(&carried), "{carried}");
    assert_eq!(server.counters.flows_over_rate.get(), 50 - carried as u64);
    wait_until("a second later one more is carried", || speak(&mut ends.connect(0)));
}

#[test]
fn memory_is_limited_and_everybody_goes_on_with_a_little() {
    let echo = Far::echo();
    // Takes connections and reads nothing.
    let deaf = Far::new(|socket| {
        std::thread::sleep(PATIENCE);
        drop(socket);
    });
    let local = vec![forward("0", &target(deaf.port)), forward("0", &target(echo.port))];
    let memory = 512 << 10;
    let ends = Ends::with(Settings { local, ..Settings::default() }, limited(Limits { memory, ..Limits::default() }));
    let server = ends.acceptor.as_ref().unwrap();
    let stuck: Vec<TcpStream> = (0..24).map(|_| ends.connect(0)).collect();
    let (bytes, mut held) = (noise(256 << 10), 0);
    wait_until("the memory is full", || {
        for mut socket in &stuck {
            socket.set_nonblocking(true).unwrap();
            let _ = socket.write(&bytes);
        }
        // For a moment it may also be full of what the servers' sockets then take.
        held = server.counters.bytes_held.get();
        server.counters.memory_full.get() > 0 && held >= memory as u64
    });
    assert!(held < 24 * (512 << 10), "{held} bytes");
    assert!(speak(&mut ends.connect(1)));
    for socket in stuck {
        // Closed without it, what is queued would still wait for its reader.
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    }
    wait_until("it is free again", || server.counters.bytes_held.get() < memory as u64 / 2);
}

/// The oldest of the host that has most of them make room for who says it.
#[test]
fn silent_clients_of_a_proxy_keep_nobody_out() {
    let dynamic = vec![narrows_tunnel::forward::listener("0").unwrap()];
    let limits = Limits { undecided: 8, ..Limits::default() };
    let settings = Settings { dynamic, limits, ..Settings::default() };
    let ends = Ends::with(settings, Settings::default());
    let to: SocketAddr = ends.listening[0].parse().unwrap();
    let _silent: Vec<TcpStream> = (0..50).map(|_| from(1, &to).unwrap()).collect();
    wait_until("some make room", || ends.dialer.counters.undecided_over_limit.get() == 42);
    let ask = |host| {
        let mut socket = from(host, &to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&[5, 1, 0]).unwrap();
        let mut answer = [0; 2];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [5, 0]);
        socket
    };
    let mut first = ask(2);
    let _others: Vec<TcpStream> = (0..20).map(|_| ask(1)).collect();
    // The one of the other host is not the one that goes.
    let port = Far::echo().port.to_be_bytes();
    first.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    let mut answer = [0; 10];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1], 0);
    assert!(speak(&mut first));
    assert_eq!(ends.dialer.counters.undecided_now.get(), 7);
}

#[test]
fn clients_that_do_not_say_where_to_are_limited() {
    let dynamic = vec![narrows_tunnel::forward::listener("0").unwrap()];
    let ends = Ends::with(Settings { dynamic, ..Settings::default() }, Settings::default());
    let _silent = silent(&ends.listening[0], UNDECIDED_MAX + 100);
    wait_until("some are turned away", || ends.dialer.counters.undecided_over_limit.get() == 100);
    assert_eq!(ends.dialer.counters.undecided_now.get(), UNDECIDED_MAX as u64);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "13,000 descriptors, more than many hosts allow, and half a minute; `make test-full` runs this"]
fn ten_thousand_half_open_connections_keep_nobody_out() {
    const COUNT: usize = 10_000;
    if narrows_host::means::descriptors() < COUNT + 3000 {
        return narrows_test::skip("13,000 descriptors are too many here");
    }
    let far = Far::echo();
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let to: SocketAddr = address.parse().unwrap();
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let mut open = TcpStream::connect(&listening).unwrap();
    assert!(speak(&mut open));
    let before = resident_kib();
    // Of 200 hosts, each within its rate; half of them begin a handshake.
    let mut half = Vec::new();
    for i in 0..COUNT {
        let Some(mut socket) = from(i as u32 % 200, &to) else { continue };
        if i % 2 == 0 {
            let _ = socket.write_all(&[22, 3, 1, 2, 0, 1, 0]);
        }
        half.push(socket);
        if i % 1000 == 0 {
            assert!(speak(&mut open), "what is open goes on");
        }
    }
    wait_until("all were met", || {
        let counters = &server.counters;
        let away = counters.strangers_over_limit.get() + counters.strangers_over_rate.get();
        let gone = counters.strangers_late.get() + counters.strangers_broken.get();
        away + gone + counters.strangers_now.get() >= half.len() as u64
    });
    assert!(server.counters.strangers_now.get() <= 1024);
    assert!(speak(&mut open));
    assert!(speak(&mut TcpStream::connect(&listening).unwrap()), "new connections need no handshake");
    serves(&keys, &address);
    eprintln!(
        "{} half open: {} over the limit, {} over the rate, {} late; {} KiB more",
        half.len(),
        server.counters.strangers_over_limit.get(),
        server.counters.strangers_over_rate.get(),
        server.counters.strangers_late.get(),
        resident_kib().saturating_sub(before)
    );
}

/// A server that keeps connections, and needs no thread for each.
fn keeper() -> u16 {
    static KEPT: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            // A request and an answer, as every connection has before it idles.
            let _ = socket.write_all(b"hello");
            KEPT.lock().unwrap().push(socket);
        }
    });
    port
}

#[test]
#[ignore = "20,000 descriptors, more than many hosts allow; `make test-full` runs this"]
fn five_thousand_idle_connections_take_little_memory() {
    // Each has four descriptors here: of the client, both ends and the server.
    let count = 5000.min(narrows_host::means::descriptors().saturating_sub(3000) / 4);
    if count < 1000 {
        return narrows_test::skip("there are too few descriptors");
    }
    let local = vec![forward("0", &target(keeper()))];
    let acceptor = Settings { flows_max: 3 * count, ..Settings::default() };
    let ends = Ends::with(Settings { local, ..Settings::default() }, acceptor);
    let open_some = |some: usize| -> Vec<TcpStream> {
        let connect = |_| {
            let mut socket = ends.connect(0);
            socket.read_exact(&mut [0; 5]).unwrap();
            socket
        };
        (0..some).map(connect).collect()
    };
    let _warm = open_some(100);
    std::thread::sleep(Duration::from_secs(2));
    let before = resident_kib();
    let open = open_some(count);
    std::thread::sleep(Duration::from_secs(12));
    let each = (resident_kib().saturating_sub(before)) as f64 / count as f64;
    let server: &Tunnel = ends.acceptor.as_ref().unwrap();
    assert_eq!(server.counters.flows_now.get(), (count + 100) as u64);
    eprintln!("{each:.1} KiB for each of {count} idle connections, at both ends together");
    assert!(each <= 20.0, "{each} KiB");
    drop(open);
}

/// Zeros cross the link a thousand times shorter: nothing but what the reader has read may stop their
/// writer, or its progress and its timeouts mean nothing.
#[test]
fn a_client_is_read_no_further_than_the_server_reads() {
    const MOST: usize = 96 << 20;
    /// What the sockets of both programs hold at most by the default limits of Linux, 6 MiB and 4 MiB
    /// each, and no more than the server's has taken, with some room.
    const HELD: usize = 36 << 20;
    let (start, started) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let far = std::sync::Arc::new(Mutex::new((started, tell)));
    let server = Far::new(move |mut socket| {
        let (started, tell) = &*far.lock().unwrap();
        started.recv().unwrap();
        tell.send(std::io::copy(&mut socket, &mut std::io::sink()).unwrap()).unwrap();
    });
    let ends = Ends::new(&[("0", &target(server.port))]);
    let mut client = ends.connect(0);
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let (zeros, mut taken) = (vec![0; 256 << 10], 0);
    while taken < MOST
        && let Ok(n) = client.write(&zeros)
    {
        taken += n;
    }
    assert!(taken < HELD, "{taken} bytes that nobody has read");
    start.send(()).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&vec![0; MOST]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (taken + MOST) as u64);
}
