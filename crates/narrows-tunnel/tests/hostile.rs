//! Clients that proved themselves and mean harm: to the log, to other clients, or to what they may.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use common::raw::{Raw, opens};
use common::{Ends, Far, PATIENCE, acceptor, dialer, forward, keys, target, text, wait_for, wait_until};
use narrows_trust::proof;
use narrows_tunnel::Tunnel;
use narrows_tunnel::frame::Kind;
use narrows_tunnel::limits::{LINES_PER_S, LISTENERS_MAX, Limits};
use narrows_tunnel::reason::Reason;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{Change, Report, Settings, Trust};
use narrows_tunnel::target::{Endpoint, Target, To};

fn allowing(limits: Limits) -> Settings {
    Settings { allow: Rules::any(), allow_listen: Rules::any(), limits, ..Settings::default() }
}

fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port }
}

/// Waits until the tunnel's thread has gone round twice.
fn goes_round(tunnel: &Tunnel) {
    for _ in 0..2 {
        let before = tunnel.counters.beats.get();
        tunnel.beat();
        wait_until("it goes round", || tunnel.counters.beats.get() > before);
    }
}

/// The text of the next report that has one.
fn said(tunnel: &Tunnel, part: &str) -> String {
    wait_for(tunnel, |report| match report {
        Report::Flow { text } | Report::Peer { text } if text.contains(part) => Some(text),
        _ => None,
    })
}

#[test]
fn names_that_a_client_chooses_do_not_steer_the_log() {
    const EVIL: &str = "evil\u{1b}[2J\n{\"level\":\"x\"}\u{202e}\u{9b}\r";
    let is_harmless = |text: &str| text.chars().all(|c| c.is_ascii() && !c.is_control());
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", allowing(Limits::default()));
    let mut raw = Raw::new(&keys, &address, 1);
    for client in ["", EVIL] {
        let to = Target { to: To::Endpoint(tcp(&format!("{EVIL}.invalid"), 80)), client: client.into() };
        let number = if client.is_empty() { 2 } else { 4 };
        raw.ask(Kind::Open, number, &to.to_bytes());
        let text = said(&server, "evil");
        assert!(is_harmless(&text), "{text:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = Endpoint::Unix(dir.path().join(EVIL.replace('/', "")));
    raw.ask(Kind::Listen, 1, &path.to_bytes());
    let text = said(&server, "listening on");
    assert!(is_harmless(&text) && text.contains("evil"), "{text:?}");
    // What is refused names the target and the client.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let to = Target { to: To::Endpoint(tcp("127.0.0.1", closed)), client: "192.0.2.7:1234".into() };
    raw.ask(Kind::Open, 6, &to.to_bytes());
    let text = said(&server, "refused");
    assert!(text.contains(&target(closed)) && text.contains("192.0.2.7:1234"), "{text}");
}

/// What a server chooses reaches the log of its client in the same way.
#[test]
fn refusals_name_the_connection_at_the_client_too() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ends = Ends::new(&[("0", &target(closed))]);
    let mut client = ends.connect(0);
    let own = client.local_addr().unwrap().to_string();
    let text = said(&ends.dialer, "refused");
    assert!(text.contains(&target(closed)) && text.contains(&own), "{text}");
    assert!(client.read(&mut [0]).is_err());
}

/// Counts what of a flood is handled while another client makes one round trip: as many as the allowance
/// lets pass in a few turns, and not all that came at once.
#[test]
fn a_flood_of_connections_lets_others_speak_between() {
    const AT_ONCE: u64 = 6000;
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let local = vec![forward("0", &target(Far::echo().port))];
    let client = dialer(&keys, &address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    wait_for(&client, |report| (report == Report::Up).then_some(()));
    let mut open = TcpStream::connect(listening).unwrap();
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut raw = Raw::new(&keys, &address, 1);
    let done = AtomicBool::new(false);
    let mut handled = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let to = tcp("127.0.0.1", closed).into();
            for batch in 0..5 {
                let first = batch * AT_ONCE;
                raw.send(&opens((first + 1..=first + AT_ONCE).map(|i| 2 * i), &to));
                (0..AT_ONCE).for_each(|_| assert!(raw.until(&[Kind::Refused]).is_some()));
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let before = server.counters.flows_refused.get();
            open.write_all(b"x").unwrap();
            open.read_exact(&mut [0]).unwrap();
            let between = server.counters.flows_refused.get() - before;
            handled.extend((between > 0).then_some(between));
        }
    });
    assert_eq!(server.counters.flows_refused.get(), 5 * AT_ONCE, "all are answered");
    handled.sort_unstable();
    let median = handled[handled.len() / 2];
    assert!(median < AT_ONCE / 6, "{median} of {handled:?}");
}

/// Whoever has thousands of connections refused, whose lines nobody reads in time, hides none that was carried.
#[test]
fn a_flood_of_refusals_hides_no_connection_from_the_log() {
    const FLOOD: u64 = 6000;
    let keys = keys();
    let far = Far::echo();
    let allow = Rules::parse(&[target(far.port)]).unwrap();
    let settings = Settings { allow, tells_ends: true, ..Settings::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", settings);
    let mut raw = Raw::new(&keys, &address, 1);
    raw.send(&opens((1..=FLOOD).map(|i| 2 * i), &tcp("10.0.0.1", 80).into()));
    (0..FLOOD).for_each(|_| assert!(raw.until(&[Kind::Refused]).is_some()));
    let flow = 2 * FLOOD + 2;
    let to = Target { client: "exfil".into(), ..tcp("127.0.0.1", far.port).into() };
    raw.send(&opens([flow].into_iter(), &to));
    assert!(raw.until(&[Kind::Opened]).is_some());
    raw.ask(Kind::Raw, flow, b"secret");
    raw.ask(Kind::Finish, flow, b"");
    let lines = std::cell::Cell::new(0);
    let ended = wait_for(&server, |report| match report {
        Report::Ended(ended) => Some(ended),
        Report::Flow { .. } => {
            lines.set(lines.get() + 1);
            None
        }
        _ => None,
    });
    assert_eq!((&*ended.from, ended.out[0] + ended.back[0]), ("exfil", 12));
    assert!((LINES_PER_S..FLOOD / 2).contains(&lines.get()), "{} lines", lines.get());
    assert_eq!(server.counters.reports_lost.get(), 0);
}

#[test]
fn the_rate_of_a_host_counts_what_is_refused_too() {
    let keys = keys();
    let limits = Limits { flows_per_s: 5, ..Limits::default() };
    // Loopback only.
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings { limits, ..Settings::default() });
    let mut raw = Raw::new(&keys, &address, 1);
    raw.send(&opens((1..=1000).map(|i| 2 * i), &tcp("10.0.0.1", 80).into()));
    (0..1000).for_each(|_| assert!(raw.until(&[Kind::Refused]).is_some()));
    let over = server.counters.flows_over_rate.get();
    assert!(over > 500 && server.counters.flows_refused.get() == 1000, "{over}");
}

#[test]
fn carriers_and_listeners_of_a_host_leave_room_for_others() {
    let keys = keys();
    let limits = Limits { attached: 32, ..Limits::default() };
    let (server, address) = acceptor(&keys, "127.0.0.1:0", allowing(limits));
    let listen = |raw: &mut Raw, number| {
        raw.ask(Kind::Listen, number, &tcp("", 0).to_bytes());
        raw.until(&[Kind::Listening]).unwrap().body[0]
    };
    let mut greedy: Vec<Raw> = (0..3).map(|_| Raw::new(&keys, &address, 1)).collect();
    let answers: Vec<u8> = (0..20).map(|i| listen(&mut greedy[i % 3], i as u64)).collect();
    // Half of 32 for a host: its three carriers, and 13 listeners.
    assert_eq!(answers.iter().filter(|answer| **answer == 0).count(), 13);
    assert_eq!(answers[13..], [Reason::Busy.number(); 7]);
    let mut late = Raw::silent(&keys, &address, 1);
    late.greet();
    let goodbye = late.until(&[Kind::Goaway]).unwrap();
    assert_eq!(goodbye.body[0], Reason::Busy.number());
    assert_eq!(server.counters.attached_over_limit.get(), 8);
    let mut other = Raw::new(&keys, &address, 2);
    assert_eq!(listen(&mut other, 0), 0);
    // Its places are free when it has gone, and its listeners are not kept any more.
    drop(greedy);
    wait_until("they are gone", || server.counters.sessions_now.get() == 1);
    wait_until("their listeners too", || listen(&mut Raw::new(&keys, &address, 1), 0) == 0);
    assert_eq!(LISTENERS_MAX, 64, "a session may have this many where there are descriptors");
}

#[test]
fn listeners_that_are_not_allowed_any_more_close() {
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", allowing(Limits::default()));
    let listen = |raw: &mut Raw| {
        raw.ask(Kind::Listen, 7, &tcp("", 0).to_bytes());
        let answer = raw.until(&[Kind::Listening]).unwrap();
        let (_, at) = Reason::parse(&answer.body).unwrap();
        (answer.body[0], at)
    };
    let (mut raw, mut gone) = (Raw::new(&keys, &address, 1), Raw::new(&keys, &address, 1));
    let ((_, first), (_, held)) = (listen(&mut raw), listen(&mut gone));
    let mut open = TcpStream::connect(&first).unwrap();
    let flow = raw.until(&[Kind::Open]).unwrap().flow;
    raw.ask(Kind::Opened, flow, b"");
    drop(gone);
    wait_until("a listener without a session", || server.counters.sessions_now.get() == 1);
    TcpStream::connect(&held).unwrap();
    let allow_listen = Rules::parse(&["127.0.0.1:1".to_owned()]).unwrap();
    let hello_within_ns = Timing::default().hello_within_ns;
    server.change(Change { allow: Rules::any(), allow_listen, hello_within_ns, ..Change::default() });
    goes_round(&server);
    assert!(TcpStream::connect(&held).is_err(), "it is kept for nobody");
    assert!(TcpStream::connect(&first).is_err());
    let told = raw.until(&[Kind::Listening]).unwrap();
    assert_eq!((told.flow, told.body[0]), (7, Reason::Forbidden.number()));
    assert_eq!(listen(&mut raw).0, Reason::Forbidden.number());
    // What came by it goes on.
    raw.ask(Kind::Raw, flow, b"hello");
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
}

/// Each port that the server chose leads to its own target after a loss, in whatever order they are asked
/// for; and another program with the same token gets none of them.
#[test]
fn chosen_ports_stay_with_their_targets() {
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", allowing(Limits::default()));
    let mut raw = Raw::new(&keys, &address, 1);
    let before: Vec<_> = (0..4).map(|n| raw.listen(n, &tcp("", 0))).collect();
    let hello = raw.hello;
    drop(raw);
    wait_until("the session is over", || server.counters.sessions_now.get() == 0);
    let _waiting: Vec<_> = before.iter().map(|(_, at)| TcpStream::connect(at).unwrap()).collect();
    let other = Raw::new(&keys, &address, 1).listen(0, &tcp("", 0));
    assert!(other.0 == 0 && !before.contains(&other), "{other:?} is of {before:?}");
    let mut raw = Raw::next(&keys, &address, 1, hello);
    for number in (0..4).rev() {
        assert_eq!(raw.listen(number, &tcp("", 0)), before[number as usize]);
        let open = raw.until(&[Kind::Open]).unwrap();
        let to = Target::parse(&open.body).unwrap().to;
        assert_eq!(to, To::Listener(number), "who waited there");
    }
}

/// An answer may be lost with its carrier: who asks again hears it again, as often as it likes.
#[test]
fn who_asks_again_for_its_listener_is_told_where_it_is() {
    let keys = keys();
    let (_server, address) = acceptor(&keys, "127.0.0.1:0", allowing(Limits::default()));
    let mut raw = Raw::new(&keys, &address, 1);
    let first = raw.listen(5, &tcp("", 0));
    assert_eq!(first.0, 0);
    (0..2 * LISTENERS_MAX).for_each(|_| assert_eq!(raw.listen(5, &tcp("", 0)), first));
    assert!(TcpStream::connect(&first.1).is_ok());
    // Another bind for the same number is another listener.
    let elsewhere = (0..2 * LISTENERS_MAX).map(|i| raw.listen(5, &tcp(["127.0.0.1", ""][i % 2], 0)));
    assert!(elsewhere.inspect(|(status, _)| assert_eq!(*status, 0)).all(|at| at != first));
    assert!(TcpStream::connect(&first.1).is_err());
}

#[test]
fn who_holds_back_its_hello_is_judged_when_it_comes() {
    let (old, new) = (keys(), keys());
    let (server, address) = acceptor(&old, "127.0.0.1:0", Settings::default());
    let mut raw = Raw::silent(&old, &address, 1);
    wait_until("it is there", || server.counters.strangers_now.get() == 1);
    let trust = |keys| Trust { dialers: Some(proof::client_verifier(keys).unwrap()), acceptor: None };
    server.judge(trust(&new));
    goes_round(&server);
    raw.greet();
    let goodbye = raw.until(&[Kind::Goaway]).unwrap();
    assert_eq!(goodbye.body[0], Reason::Forbidden.number());
    assert!(raw.until(&[Kind::Opened]).is_none(), "and the end");
    assert_eq!((server.counters.strangers_refused.get(), server.counters.sessions_now.get()), (1, 0));
    // Who is trusted comes in.
    server.judge(trust(&old));
    goes_round(&server);
    Raw::new(&old, &address, 1);
}

/// A unix socket whose other side has shut its reading side is no broken one: what it writes comes whole,
/// with the end that it has, whichever end of the tunnel it is at.
#[test]
fn a_unix_socket_that_reads_no_more_still_says_all_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("server");
    let server = UnixListener::bind(&path).unwrap();
    let ((told, deaf), (go, gone)) = (channel::<()>(), channel::<()>());
    std::thread::spawn(move || {
        let mut socket = server.accept().unwrap().0;
        socket.read_exact(&mut [0; 7]).unwrap();
        socket.shutdown(Shutdown::Read).unwrap();
        told.send(()).unwrap();
        gone.recv().unwrap();
        socket.write_all(&text(10_000)).unwrap();
    });
    let local = vec![forward("0", path.to_str().unwrap())];
    let ends = Ends::with(Settings { local, ..Settings::default() }, allowing(Limits::default()));
    let acceptor = ends.acceptor.as_ref().unwrap();
    let mut client = ends.connect(0);
    client.write_all(b"request").unwrap();
    deaf.recv_timeout(PATIENCE).unwrap();
    client.write_all(b"late").unwrap();
    wait_until("it has come", || acceptor.counters.wire_bytes_in.get() == 11);
    goes_round(acceptor);
    go.send(()).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an end, and no reset");
    assert!(answer == text(10_000));
    wait_until("it is over at both ends", || {
        acceptor.counters.flows_now.get() + ends.dialer.counters.flows_now.get() == 0
    });
}

#[test]
fn a_unix_client_that_reads_nothing_uploads_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client");
    let (told, heard) = channel();
    let far = Far::new(move |mut socket| {
        // More than fits into any window: it is thrown away.
        let welcome = socket.write_all(&text(300_000)).is_ok();
        let mut all = Vec::new();
        let _ = told.send((welcome, socket.read_to_end(&mut all).map(|_| all).map_err(|e| e.kind())));
    });
    let local = vec![forward(path.to_str().unwrap(), &target(far.port))];
    let ends = Ends::with(Settings { local, ..Settings::default() }, Settings::default());
    let mut client = UnixStream::connect(&path).unwrap();
    client.shutdown(Shutdown::Read).unwrap();
    client.write_all(b"hello").unwrap();
    wait_until("it has been thrown away", || ends.dialer.counters.raw_bytes_in.get() == 300_000);
    goes_round(&ends.dialer);
    client.write_all(&text(50_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (welcome, got) = heard.recv_timeout(PATIENCE).unwrap();
    assert!(welcome);
    assert_eq!(got.map(|got| got.len()), Ok(50_005));
}

#[test]
fn headers_are_believed_from_addresses_in_either_form() {
    let local = vec![forward("0", &target(Far::echo().port))];
    let proxy_from = vec!["::ffff:127.0.0.1".parse().unwrap()];
    let ends = Ends::with(Settings { local, proxy_from, ..Settings::default() }, Settings::default());
    let mut client = ends.connect(0);
    client.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 80\r\nhello").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}
