//! Ends that prove themselves by certificates.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use common::{Far, PATIENCE, forward, target, wait_for, wait_until};
use narrows_tunnel::Tunnel;
use narrows_tunnel::certificates::Files;
use narrows_tunnel::settings::{Report, Settings, Uplink};

/// An authority in a folder.
struct Authority<'a> {
    dir: &'a Path,
    name: &'a str,
}

fn openssl(dir: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(dir).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

impl<'a> Authority<'a> {
    fn new(dir: &'a Path, name: &'a str) -> Self {
        openssl(dir, &format!("req -x509 {KEY} -keyout {name}.key -out {name}.pem -days 30 -subj /CN={name}"));
        Self { dir, name }
    }

    /// A certificate with these alternative names, for so many days.
    fn sign(&self, file: &str, names: &str, days: i32) {
        let ca = self.name;
        openssl(self.dir, &format!("req {KEY} -keyout {file}.key -out {file}.csr -subj /CN=anything"));
        std::fs::write(self.dir.join("extensions"), format!("subjectAltName={names}\n")).unwrap();
        openssl(
            self.dir,
            &format!(
                "x509 -req -in {file}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days {days} -extfile extensions \
                 -out {file}.pem"
            ),
        );
    }
}

fn files(dir: &Path, own: &str, ca: &str, names: &[&str]) -> Files {
    Files {
        cert: dir.join(format!("{own}.pem")),
        key: dir.join(format!("{own}.key")),
        ca: dir.join(format!("{ca}.pem")),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
    }
}

fn acceptor(files: &Files) -> (Tunnel, String) {
    let listen = vec![("127.0.0.1:0".parse().unwrap(), files.server().unwrap())];
    let tunnel = Tunnel::start(Settings { listen, flows_max: 1000, ..Settings::default() }).unwrap();
    let address = wait_for(&tunnel, |report| match report {
        Report::Serving { address } => Some(address),
        _ => None,
    });
    (tunnel, address)
}

fn dialer(files: &Files, address: &str, to: u16) -> Tunnel {
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let (config, name) = (files.client().unwrap(), "127.0.0.1".try_into().unwrap());
    let uplink = Some(Uplink::Tls { host: "127.0.0.1".into(), port, config, name });
    let local = vec![forward("0", &target(to))];
    Tunnel::start(Settings { uplink, local, carriers: 1, flows_max: 1000, ..Settings::default() }).unwrap()
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
    ca.sign("late", "DNS:alice", -1);
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
    server.reload(Some(files(dir, "server-new", "new", &[]).server().unwrap()), None);
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
        for error in [files.server().err().unwrap(), files.client().err().unwrap()] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.join("one.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(good.client().err().unwrap().to_string().contains("chmod 600"));
    std::fs::rename(dir.join("two.pem"), dir.join("one.pem")).unwrap();
    assert_ne!(stamp, good.stamp());
}
