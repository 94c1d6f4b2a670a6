//! Ends that prove themselves by certificates.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use common::authority::files;
use common::raw::Raw;
use common::{Far, PATIENCE, forward, target, wait_for, wait_until};
use narrows_test::authority::Authority;
use narrows_trust::certificates::Files;
use narrows_trust::proof;
use narrows_tunnel::Tunnel;
use narrows_tunnel::frame::Kind;
use narrows_tunnel::reason::Reason;
use narrows_tunnel::settings::{PROTOCOL, Report, Settings, Trust, Uplink};
use narrows_tunnel::target::{Endpoint, Target, To};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};

fn acceptor(files: &Files) -> (Tunnel, String) {
    let listen = vec![("127.0.0.1:0".parse().unwrap(), files.server(PROTOCOL).unwrap())];
    let tunnel = Tunnel::start(Settings { listen, flows_max: 1000, ..Settings::default() }).unwrap();
    let address = wait_for(&tunnel, |report| match report {
        Report::Serving { address } => Some(address),
        _ => None,
    });
    (tunnel, address)
}

fn dialer(files: &Files, address: &str, to: u16) -> Tunnel {
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let (config, name) = (files.client(PROTOCOL).unwrap(), "127.0.0.1".try_into().unwrap());
    let uplink = Some(Uplink::Tls { host: "127.0.0.1".into(), port, config, name });
    let local = vec![forward("0", &target(to))];
    Tunnel::start(Settings { uplink, local, carriers: 1, flows_max: 1000, ..Settings::default() }).unwrap()
}

/// What an acceptor says of a client that it refuses.
fn said_of_client(server: &Tunnel) -> String {
    wait_for(server, |report| match report {
        Report::Peer { text } => Some(text),
        _ => None,
    })
}

/// Whether the tunnel comes up, or the reason why not.
fn comes_up(tunnel: &Tunnel) -> Result<(), String> {
    loop {
        match tunnel.reports.recv_timeout(PATIENCE).unwrap() {
            Report::Up => return Ok(()),
            Report::Over { error } => return Err(error.unwrap_or_default()),
            _ => {}
        }
    }
}

#[test]
fn only_certificates_of_the_authority_with_the_right_names_are_taken() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ca, other) = (Authority::new(dir, "ca"), Authority::new(dir, "other"));
    ca.sign("server", "IP:127.0.0.1,DNS:db.example", 30);
    ca.sign("elsewhere", "DNS:elsewhere.example", 30);
    ca.sign("alice", "DNS:alice,URI:spiffe://site/alice", 30);
    ca.sign("bob", "DNS:bob", 30);
    ca.sign_between("late", "DNS:alice", ["20200101000000Z", "20210101000000Z"]);
    other.sign("stranger", "DNS:alice", 30);
    let far = Far::echo();
    let try_both = |server: Files, client: Files| {
        let (_server, address) = acceptor(&server);
        comes_up(&dialer(&client, &address, far.port))
    };
    let server = |names: &[&str]| files(dir, "server", "ca", names);
    assert_eq!(try_both(server(&[]), files(dir, "alice", "ca", &[])), Ok(()));
    assert_eq!(try_both(server(&["ALICE"]), files(dir, "alice", "ca", &[])), Ok(()));
    assert_eq!(try_both(server(&["spiffe://site/alice"]), files(dir, "alice", "ca", &["db.example"])), Ok(()));
    let refused = [
        ("another name than allowed", server(&["alice"]), files(dir, "bob", "ca", &[])),
        ("expired", server(&[]), files(dir, "late", "ca", &[])),
        ("of another authority", server(&[]), files(dir, "stranger", "ca", &[])),
        ("a server of another authority", server(&[]), files(dir, "alice", "other", &[])),
        ("a server for another host", files(dir, "elsewhere", "ca", &[]), files(dir, "alice", "ca", &[])),
        ("a server with another name", server(&[]), files(dir, "alice", "ca", &["mail.example"])),
    ];
    for (what, server, client) in refused {
        let error = try_both(server, client).expect_err(what);
        assert!(error.contains("certificate"), "{what}: {error}");
    }
}

#[test]
fn certificates_and_authorities_change_while_connections_are_open() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (old, new) = (Authority::new(dir, "old"), Authority::new(dir, "new"));
    old.sign("server-old", "IP:127.0.0.1", 30);
    new.sign("server-new", "IP:127.0.0.1", 30);
    old.sign("client-old", "DNS:alice", 30);
    new.sign("client-new", "DNS:alice", 30);
    let far = Far::echo();
    let (server, address) = acceptor(&files(dir, "server-old", "old", &[]));
    let first = dialer(&files(dir, "client-old", "old", &[]), &address, far.port);
    let listening = wait_for(&first, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    comes_up(&first).unwrap();
    let mut open: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&listening).unwrap()).collect();
    let speak = |open: &mut Vec<TcpStream>| {
        for socket in open {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.write_all(b"hello").unwrap();
            socket.read_exact(&mut [0; 5]).unwrap();
        }
    };
    speak(&mut open);
    server.reload(Some(files(dir, "server-new", "new", &[]).server(PROTOCOL).unwrap()), None);
    speak(&mut open);
    // Who has not been told of the new authority is refused, and who has comes in.
    wait_until("the new authority", || {
        comes_up(&dialer(&files(dir, "client-old", "old", &[]), &address, far.port)).is_err()
    });
    assert_eq!(comes_up(&dialer(&files(dir, "client-new", "new", &[]), &address, far.port)), Ok(()));
    speak(&mut open);
    assert_eq!(first.counters.flows_reset.get() + server.counters.flows_reset.get(), 0);
}

#[test]
fn files_that_are_wrong_are_named() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("one", "DNS:one", 30);
    ca.sign("two", "DNS:two", 30);
    std::fs::write(dir.join("empty.pem"), "").unwrap();
    let good = files(dir, "one", "ca", &[]);
    let stamp = good.stamp();
    assert_eq!(stamp, good.stamp());
    let wrong = [
        (Files { cert: dir.join("none"), ..good.clone() }, "none: No such file"),
        (Files { ca: dir.join("empty.pem"), ..good.clone() }, "there is no certificate in it"),
        (Files { key: dir.join("empty.pem"), ..good.clone() }, "empty.pem"),
        (Files { key: dir.join("two.key"), ..good.clone() }, "are no certificate and its key"),
    ];
    for (files, words) in wrong {
        for error in [files.server(PROTOCOL).err().unwrap(), files.client(PROTOCOL).err().unwrap()] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.join("one.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(good.client(PROTOCOL).err().unwrap().to_string().contains("chmod 600"));
    std::fs::rename(dir.join("two.pem"), dir.join("one.pem")).unwrap();
    assert_ne!(stamp, good.stamp());
}

#[test]
fn both_ends_say_in_a_line_why_a_certificate_is_refused() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ca, other) = (Authority::new(dir, "ca"), Authority::new(dir, "other"));
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign_between("server-late", "IP:127.0.0.1", ["20200101000000Z", "20210101000000Z"]);
    ca.sign_between("server-early", "IP:127.0.0.1", ["20990101000000Z", "20991231000000Z"]);
    ca.sign("alice", "DNS:alice", 30);
    ca.sign_between("late", "DNS:alice", ["20200101000000Z", "20210101000000Z"]);
    ca.sign_between("early", "DNS:alice", ["20990101000000Z", "20991231000000Z"]);
    ca.sign("bob", "DNS:bob", 30);
    other.sign("stranger", "DNS:alice", 30);
    let far = Far::echo();
    // The server refuses the client: what the client says, and what the server says.
    for (client, at_client, at_server) in [
        ("late", "has expired, or is not valid yet", "certificate has expired"),
        ("early", "has expired, or is not valid yet", "is not valid yet; compare the clocks"),
        ("bob", "another name than the other end allows", "none of the names of --allow-name"),
        ("stranger", "authority that the other end does not know", "none of the authorities in --ca"),
    ] {
        let (server, address) = acceptor(&files(dir, "server", "ca", &["alice"]));
        let error = comes_up(&dialer(&files(dir, client, "ca", &[]), &address, far.port)).unwrap_err();
        assert!(error.contains(at_client) && error.lines().count() == 1, "{client}: {error}");
        let said = said_of_client(&server);
        assert!(said.contains(at_server), "{client}: {said}");
        assert_eq!(server.counters.strangers_refused.get(), 1);
    }
    // The client refuses the server.
    for (server, at_client, at_server) in [
        ("server-late", "the other end's certificate has expired", "has expired, or is not valid yet"),
        ("server-early", "is not valid yet; compare the clocks", "has expired, or is not valid yet"),
        ("alice", "is for alice, not for 127.0.0.1", "another name"),
    ] {
        let (acceptor, address) = acceptor(&files(dir, server, "ca", &[]));
        let error = comes_up(&dialer(&files(dir, "alice", "ca", &[]), &address, far.port)).unwrap_err();
        let error = error.replace("DnsName(\"alice\")", "alice");
        assert!(error.contains(at_client) && error.lines().count() == 1, "{server}: {error}");
        let said = said_of_client(&acceptor);
        assert!(said.contains(at_server), "{server}: {said}");
    }
    // One end has a token.
    let (server, address) = acceptor(&files(dir, "server", "ca", &[]));
    let by_token = common::dialer(&common::keys(), &address, Settings::default());
    let error = comes_up(&by_token).unwrap_err();
    assert!(error.contains("token") && error.contains("certificate"), "{error}");
    assert!(said_of_client(&server).contains("one end has a token, the other one a certificate"));
}

#[test]
fn revoked_certificates_are_refused_by_either_end() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ca, other) = (Authority::new(dir, "ca"), Authority::new(dir, "other"));
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign("alice", "DNS:alice", 30);
    ca.sign("bob", "DNS:bob", 30);
    ca.list("none.crl", &[], 30);
    ca.list("bob.crl", &["bob"], 30);
    ca.list("server.crl", &["server"], 30);
    ca.list("old.crl", &[], -1);
    other.list("other.crl", &[], 30);
    let far = Far::echo();
    let with =
        |own: &str, list: &str, names: &[&str]| Files { crl: Some(dir.join(list)), ..files(dir, own, "ca", names) };
    let try_both = |server: Files, client: Files| {
        let (_server, address) = acceptor(&server);
        comes_up(&dialer(&client, &address, far.port))
    };
    assert_eq!(try_both(with("server", "none.crl", &[]), with("alice", "none.crl", &[])), Ok(()));
    assert_eq!(try_both(with("server", "bob.crl", &["alice"]), files(dir, "alice", "ca", &[])), Ok(()));
    for (what, server, client, words) in [
        ("a client", with("server", "bob.crl", &[]), files(dir, "bob", "ca", &[]), "its certificate is revoked"),
        ("a server", files(dir, "server", "ca", &[]), with("alice", "server.crl", &[]), "certificate is revoked"),
        // A name that would be right for another host does not hide it.
        ("with names", files(dir, "server", "ca", &[]), with("alice", "server.crl", &["db"]), "certificate is revoked"),
        (
            "an old list",
            files(dir, "server", "ca", &[]),
            with("alice", "old.crl", &[]),
            "the list in --crl has expired",
        ),
        ("another's list", files(dir, "server", "ca", &[]), with("alice", "other.crl", &[]), "has no list in --crl"),
    ] {
        let error = try_both(server, client).expect_err(what);
        assert!(error.contains(words), "{what}: {error}");
    }
    std::fs::write(dir.join("wrong.crl"), "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").unwrap();
    for (list, words) in
        [("wrong.crl", "it is no revocation list"), ("ca.pem", "no revocation list in it"), ("x", "No such")]
    {
        let error = with("server", list, &[]).server(PROTOCOL).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// One end goes from a token to certificates, or back, before the other one does.
#[test]
fn ends_that_prove_themselves_differently_say_so() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign("alice", "DNS:alice", 30);
    let files = files(dir, "server", "ca", &[]);
    let keys = common::keys();
    let by_token = proof::client_verifier(&keys).unwrap();
    let (first, address) = acceptor(&files);
    let with_certificate =
        dialer(&Files { cert: dir.join("alice.pem"), key: dir.join("alice.key"), ..files.clone() }, &address, 9);
    let (second, address) = common::acceptor(&keys, "127.0.0.1:0", Settings::default());
    let with_token = common::dialer(&keys, &address, Settings::default());
    let by_certificates = files.dialers().unwrap();
    for (server, client, dialers) in [(first, with_certificate, by_token), (second, with_token, by_certificates)] {
        comes_up(&client).unwrap();
        server.judge(Trust { dialers: Some(dialers), acceptor: None });
        let said = wait_for(&server, |report| match report {
            Report::Peer { text } if text.contains("not trusted") => Some(text),
            _ => None,
        });
        let why = wait_for(&client, |report| match report {
            Report::Lost { why } | Report::Over { error: Some(why) } => Some(why),
            _ => None,
        });
        for said in [said, why] {
            assert!(said.contains("one end has a token, the other one a certificate"), "{said}");
        }
    }
}

/// Of certificates that are named like the authority, a verifier tries each order of them, unless they are
/// refused before.
#[test]
fn long_chains_of_certificates_are_refused_before_they_are_tried() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (dir, forged) = (dir.path(), dir.path().join("forged"));
    std::fs::create_dir(&forged).unwrap();
    let ca = Authority::new(dir, "ca");
    ca.sign("alice", "IP:127.0.0.1", 30);
    Authority::new(&forged, "ca");
    let others: Vec<String> = (0..9).map(|i| format!("other{i}")).collect();
    for name in &others {
        Authority::new(&forged, name);
    }
    let read = |path: std::path::PathBuf| CertificateDer::from_pem_file(path).unwrap();
    let (alice, own, named_alike) =
        (read(dir.join("alice.pem")), read(dir.join("ca.pem")), read(forged.join("ca.pem")));
    let others: Vec<_> = others.iter().map(|name| read(forged.join(format!("{name}.pem")))).collect();
    let now = UnixTime::now();
    let name = "127.0.0.1".try_into().unwrap();
    for names in [&[][..], &["127.0.0.1"]] {
        let files = files(dir, "alice", "ca", names);
        let judge = |between: &[CertificateDer<'_>]| {
            let at_acceptor = files.dialers().unwrap().verify_client_cert(&alice, between, now).map(drop);
            let at_dialer = files.acceptor().unwrap().verify_server_cert(&alice, between, &name, &[], now).map(drop);
            [at_acceptor, at_dialer]
        };
        if names.is_empty() {
            // Its own authority may come with it, and others.
            assert_eq!(judge(std::slice::from_ref(&own)), [Ok(()), Ok(())]);
            assert_eq!(judge(&others[..8]), [Ok(()), Ok(())]);
        }
        for (between, part) in [
            (vec![own.clone(); 2], "two certificates of one authority"),
            (vec![own.clone(), named_alike.clone()], "two certificates of one authority"),
            (others.clone(), "too many certificates"),
        ] {
            for judged in judge(&between) {
                let why = judged.unwrap_err().to_string();
                assert!(why.contains(part), "{why}");
            }
        }
    }
    // An end that has such a file itself is told before others refuse it.
    let pem = std::fs::read_to_string(dir.join("ca.pem")).unwrap();
    let alice = std::fs::read_to_string(dir.join("alice.pem")).unwrap();
    std::fs::write(dir.join("alice.pem"), format!("{alice}{pem}{pem}")).unwrap();
    let error = files(dir, "alice", "ca", &[]).server(PROTOCOL).err().unwrap().to_string();
    assert!(error.contains("alice.pem") && error.contains("two certificates"), "{error}");
}

/// A client that is revoked, or whose authority is replaced, keeps what is open and opens nothing more.
#[test]
fn who_is_not_trusted_any_more_opens_nothing() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign("alice", "DNS:alice", 30);
    ca.sign("alice2", "DNS:alice", 30);
    ca.list("alice.crl", &["alice"], 30);
    let far = Far::echo();
    let (server, address) = acceptor(&files(dir, "server", "ca", &[]));
    let client = dialer(&files(dir, "alice", "ca", &[]), &address, far.port);
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    comes_up(&client).unwrap();
    let speak = |socket: &mut TcpStream| {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"hello").and_then(|()| socket.read_exact(&mut [0; 5]))
    };
    let mut open = TcpStream::connect(&listening).unwrap();
    speak(&mut open).unwrap();
    let stricter = Files { crl: Some(dir.join("alice.crl")), ..files(dir, "server", "ca", &[]) };
    server.reload(Some(stricter.server(PROTOCOL).unwrap()), None);
    server.judge(Trust { dialers: Some(stricter.dialers().unwrap()), acceptor: None });
    let said = wait_for(&server, |report| match report {
        Report::Peer { text } if text.contains("not trusted") => Some(text),
        _ => None,
    });
    assert!(said.contains("is revoked"), "{said}");
    assert_eq!(server.counters.sessions_distrusted.get(), 1);
    let why = wait_for(&client, |report| match report {
        Report::Lost { why } => Some(why),
        _ => None,
    });
    assert!(why.contains("this end's certificate is revoked"), "{why}");
    speak(&mut open).unwrap();
    let refused = speak(&mut TcpStream::connect(&listening).unwrap()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{refused}");
    // With another certificate it is welcome, and what is open goes on beside the new session.
    let renewed = files(dir, "alice2", "ca", &[]);
    client.reload(None, Some(renewed.client(PROTOCOL).unwrap()));
    comes_up(&client).unwrap();
    speak(&mut open).unwrap();
    speak(&mut TcpStream::connect(&listening).unwrap()).unwrap();
    assert_eq!(client.counters.flows_reset.get(), 0);
    // The old session ends with its last connection.
    drop(open);
    wait_until("the old session is over", || server.counters.sessions_now.get() == 1);
    // A client judges too.
    let other = Authority::new(dir, "other");
    other.sign("elsewhere", "DNS:x", 30);
    let mut open = TcpStream::connect(&listening).unwrap();
    speak(&mut open).unwrap();
    let changed = files(dir, "elsewhere", "other", &[]);
    client.reload(None, Some(changed.client(PROTOCOL).unwrap()));
    client.judge(Trust { dialers: None, acceptor: Some(changed.acceptor().unwrap()) });
    let why = wait_for(&client, |report| match report {
        Report::Lost { why } => Some(why),
        _ => None,
    });
    assert!(why.contains("none of the authorities in --ca"), "{why}");
    speak(&mut open).unwrap();
    // The server takes its next session for no successor of the one that it left.
    client.reload(None, Some(renewed.client(PROTOCOL).unwrap()));
    comes_up(&client).unwrap();
    speak(&mut TcpStream::connect(&listening).unwrap()).unwrap();
    speak(&mut open).unwrap();
    assert_eq!(client.counters.flows_reset.get() + server.counters.flows_reset.get(), 0);
}

/// A connection may be on its way while the acceptor judges again.
#[test]
fn what_was_opened_before_the_goodbye_was_heard_is_carried() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign("alice", "DNS:alice", 30);
    ca.list("alice.crl", &["alice"], 30);
    let far = Far::echo();
    let (server, address) = acceptor(&files(dir, "server", "ca", &[]));
    let mut alice = Raw::proved(files(dir, "alice", "ca", &[]).client(PROTOCOL).unwrap(), "127.0.0.1", &address, 1);
    alice.greet();
    alice.until(&[Kind::Hello]).unwrap();
    let stricter = Files { crl: Some(dir.join("alice.crl")), ..files(dir, "server", "ca", &[]) };
    server.judge(Trust { dialers: Some(stricter.dialers().unwrap()), acceptor: None });
    alice.until(&[Kind::Goaway]).unwrap();
    let target: Target = Endpoint::Tcp { host: "127.0.0.1".into(), port: far.port }.into();
    alice.ask(Kind::Open, 2, &target.to_bytes());
    alice.until(&[Kind::Opened]).unwrap();
    alice.ask(Kind::Raw, 2, b"hello");
    assert_eq!(&alice.until(&[Kind::Raw]).unwrap().body[..], b"hello");
    alice.ask(Kind::Finish, 2, b"");
    assert!(alice.until(&[Kind::Ping]).is_none(), "the carrier ends with the last connection");
}

/// Whichever end judges first, listeners at the acceptor go on: who connects to them meanwhile waits.
#[test]
fn remote_listeners_outlive_a_change_of_trust() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("server", "IP:127.0.0.1", 30);
    ca.sign("alice", "DNS:alice", 30);
    ca.sign("alice2", "DNS:alice", 30);
    ca.list("alice.crl", &["alice"], 30);
    Authority::new(dir, "other").sign("elsewhere", "DNS:x", 30);
    let far = Far::echo();
    let (server, address) = acceptor(&files(dir, "server", "ca", &[]));
    let (config, name) = (files(dir, "alice", "ca", &[]).client(PROTOCOL).unwrap(), "127.0.0.1".try_into().unwrap());
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let uplink = Some(Uplink::Tls { host: "127.0.0.1".into(), port, config, name });
    let remote = vec![forward("0", &target(far.port))];
    let client = Tunnel::start(Settings { uplink, remote, flows_max: 1000, ..Settings::default() }).unwrap();
    let listens = || {
        wait_for(&client, |report| match report {
            Report::RemoteListening { from, .. } => Some(Ok(from)),
            Report::RemoteRefused { why, .. } => Some(Err(why)),
            _ => None,
        })
        .unwrap()
    };
    let at = listens();
    let speak = |socket: &mut TcpStream| {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"hello").and_then(|()| socket.read_exact(&mut [0; 5]))
    };
    let mut open = TcpStream::connect(&at).unwrap();
    speak(&mut open).unwrap();
    let stricter = Files { crl: Some(dir.join("alice.crl")), ..files(dir, "server", "ca", &[]) };
    server.judge(Trust { dialers: Some(stricter.dialers().unwrap()), acceptor: None });
    wait_until("the server leaves", || server.counters.sessions_distrusted.get() == 1);
    let mut waiting = TcpStream::connect(&at).expect("the port is still there");
    client.reload(None, Some(files(dir, "alice2", "ca", &[]).client(PROTOCOL).unwrap()));
    assert_eq!(listens(), at);
    speak(&mut waiting).unwrap();
    speak(&mut open).unwrap();
    client.judge(Trust { dialers: None, acceptor: Some(files(dir, "elsewhere", "other", &[]).acceptor().unwrap()) });
    assert_eq!(listens(), at, "the client leaves, and comes again");
    for socket in [&mut TcpStream::connect(&at).unwrap(), &mut waiting, &mut open] {
        speak(socket).unwrap();
    }
    assert_eq!(client.counters.flows_reset.get() + server.counters.flows_reset.get(), 0);
    // Nobody comes for them after the end of the client.
    client.stop();
    wait_until("the port is free", || TcpStream::connect(&at).is_err());
}

/// Who waits for the client of a listener is not given to another one at the same address.
#[test]
fn a_listener_waits_for_the_client_that_had_it() {
    if !narrows_test::has("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = Authority::new(dir, "ca");
    ca.sign("server", "IP:127.0.0.1", 30);
    ["alice", "mallory"].iter().for_each(|name| ca.sign(name, &format!("DNS:{name}"), 30));
    let (server, address) = acceptor(&files(dir, "server", "ca", &[]));
    let connect = |name| {
        let config = files(dir, name, "ca", &[]).client(PROTOCOL).unwrap();
        let mut raw = Raw::proved(config, "127.0.0.1", &address, 1);
        raw.greet();
        raw.until(&[Kind::Hello]).unwrap();
        raw
    };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bind = Endpoint::Tcp { host: String::new(), port };
    let mut alice = connect("alice");
    let (status, at) = alice.listen(0, &bind);
    assert_eq!(status, 0, "{at}");
    drop(alice);
    wait_until("the session is over", || server.counters.sessions_now.get() == 0);
    let _waiting = TcpStream::connect(&at).unwrap();
    assert_eq!(connect("mallory").listen(0, &bind).0, Reason::Busy.number());
    // Started again, and with another number for it.
    let mut alice = connect("alice");
    assert_eq!(alice.listen(7, &bind), (0, at));
    let open = alice.until(&[Kind::Open]).unwrap();
    assert_eq!(Target::parse(&open.body).unwrap().to, To::Listener(7));
}
