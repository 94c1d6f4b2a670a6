//! Copies through `narrows serve --listen`: content, authentication, and that clients that idle or
//! send garbage cannot lock others out.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::*;

struct Server {
    child: Child,
    address: String,
    token: PathBuf,
    log: Arc<Mutex<String>>,
}

/// Time that a connection has for its handshake and request (docs/threat-model.md).
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Server {
    fn start(home: &Path, dir: &Path, flags: &[&str]) -> Self {
        let mut command = narrows(home);
        command.env("XDG_STATE_HOME", home).args(["serve", "-v", "--listen", "127.0.0.1:0", "--dir"]);
        let mut child = command.arg(dir).args(flags).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.rsplit(' ').next().unwrap().to_owned();
        let log = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&log);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|l| *heard.lock().unwrap() += &(l + "\n")));
        let token = home.join("token");
        if !flags.contains(&"--insecure") {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            save_token(&token, &line);
        }
        Self { child, address, token, log }
    }

    fn place(&self, path: &str) -> String {
        format!("narrows://{}/{path}", self.address)
    }

    fn cp(&self, home: &Path, args: &[&str]) -> Output {
        finish(self.command(home, args).spawn().unwrap())
    }

    fn command(&self, home: &Path, args: &[&str]) -> Command {
        let mut command = narrows(home);
        command.args(["cp", "--token-file"]).arg(&self.token).args(args);
        command
    }

    /// Waits until the server has printed `words`.
    fn says(&self, words: &str) {
        let begun = Instant::now();
        while !self.log.lock().unwrap().contains(words) {
            assert!(begun.elapsed() < PATIENCE, "it never said '{words}': {}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn save_token(path: &Path, text: &str) {
    let _ = fs::remove_file(path);
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Forwards connections to `to`. `each` handles one connection; it gets the client's and the
/// server's socket.
fn relay(to: &str, each: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = to.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let each = each.clone();
            std::thread::spawn(move || each(client, server));
        }
    });
    address
}

/// Copies bytes until the end, at most `most`, in pieces of at most `piece` bytes.
fn pump(mut from: &TcpStream, mut to: &TcpStream, most: usize, piece: usize, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; piece];
    let mut left = most;
    while left > 0 {
        let want = left.min(piece);
        match from.read(&mut buffer[..want]) {
            Ok(n @ 1..) => {
                seen(&buffer[..n]);
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
                left -= n;
            }
            _ => break,
        }
    }
    let _ = to.shutdown(if left > 0 { Shutdown::Write } else { Shutdown::Both });
}

#[test]
fn everything_of_a_tree_arrives_both_ways() {
    let home = home();
    let (source, served, back) = (home.path().join("source"), home.path().join("served"), home.path().join("back"));
    make_tree(&source);
    fs::create_dir(&served).unwrap();
    let before = snapshot(&source);
    let server = Server::start(home.path(), &served, &[]);
    let output = server.cp(home.path(), &["-r", text_of(&source), &server.place("")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&served.join("source")), before);
    let output = server.cp(home.path(), &["-r", &server.place("source/"), text_of(&back)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&back), before);
    // A token in the environment works too, and a single file gets a new name.
    let token = fs::read_to_string(&server.token).unwrap();
    let mut command = narrows(home.path());
    command.env("NARROWS_TOKEN", token).arg("cp").arg(source.join("a/text")).arg(server.place("source/new name"));
    let output = finish(command.spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(fs::read(served.join("source/new name")).unwrap() == text(300_000));
    for root in [source, served.join("source"), back] {
        unlock(&root);
    }
}

/// A client must not make devices where the server runs, and is told so, not to ask for what it has asked for.
#[test]
fn a_server_makes_no_fifos_whatever_is_asked_for() {
    let home = home();
    let (source, served) = (home.path().join("source"), home.path().join("served"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&served).unwrap();
    fs::write(served.join("old"), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, source.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
    let server = Server::start(home.path(), &served, &[]);
    let from = format!("{}/", text_of(&source));
    let output = server.cp(home.path(), &["-r", "--delete", "-D", &from, &server.place("")]);
    let said = stderr(&output);
    assert!(code(&output) != 0 && said.contains("this server makes none, whatever --devices says"), "{said}");
    assert!(!said.contains("--devices copies") && served.join("old").exists(), "{said}");
    let output = server.cp(home.path(), &["-r", "--delete", &from, &server.place("")]);
    let said = stderr(&output);
    assert!(code(&output) == 0 && said.contains("skipped fifo: it is a fifo; servers make none"), "{said}");
    assert!(!served.join("old").exists() && !served.join("fifo").exists(), "{said}");
}

#[test]
fn a_server_gives_nothing_beside_its_folder_and_takes_nothing_if_told_so() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(home.path().join("secret"), "x").unwrap();
    fs::write(served.join("file"), "y").unwrap();
    symlink("../secret", served.join("link")).unwrap();
    symlink("..", served.join("up")).unwrap();
    let server = Server::start(home.path(), &served, &["--read-only"]);
    let target = home.path().join("target");
    for bad in ["../secret", "link", "up/secret", "no"] {
        let output = server.cp(home.path(), &[&server.place(bad), text_of(&target)]);
        assert_eq!(code(&output), 2, "{bad}: {}", stderr(&output));
        assert!(!target.exists());
    }
    let output = server.cp(home.path(), &[text_of(&home.path().join("secret")), &server.place("new")]);
    assert_ne!(code(&output), 0);
    assert!(stderr(&output).contains("stores nothing"), "{}", stderr(&output));
    assert!(!served.join("new").exists());
    assert_eq!(code(&server.cp(home.path(), &[&server.place("file"), text_of(&target)])), 0);
}

#[test]
fn who_has_no_token_or_another_one_gets_nowhere() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), "y").unwrap();
    let server = Server::start(home.path(), &served, &[]);
    let token = fs::read_to_string(&server.token).unwrap();
    let token = token.trim();
    let target = home.path().join("target");
    // Changes a letter in the secret, then one in the fingerprint.
    for (at, said) in [(20, "does not accept the token"), (70, "is not the server that the token belongs to")] {
        let other = if &token[at..=at] == "A" { "B" } else { "A" };
        save_token(&server.token, &format!("{}{other}{}", &token[..at], &token[at + 1..]));
        for args in [[&server.place("file"), text_of(&target)], [text_of(&server.token), &server.place("new")]] {
            let output = server.cp(home.path(), &args);
            assert_ne!(code(&output), 0);
            assert!(stderr(&output).contains(said), "{}", stderr(&output));
        }
    }
    save_token(&server.token, "rubbish");
    assert!(stderr(&server.cp(home.path(), &[&server.place("file"), "x"])).contains("not a token"));
    let mut command = narrows(home.path());
    let output = finish(command.env_remove("NARROWS_TOKEN").args(["cp", &server.place("file"), "x"]).spawn().unwrap());
    assert!(stderr(&output).contains("--token-file"), "{}", stderr(&output));
    let mut command = narrows(home.path());
    let output = finish(command.args(["cp", "--insecure", &server.place("file"), "x"]).spawn().unwrap());
    assert_ne!(code(&output), 0);
    let large = home.path().join("large");
    fs::write(&large, random(30_000_000)).unwrap();
    for args in [
        [&server.place("file"), text_of(&target)],
        [text_of(&server.token), &server.place("new")],
        [text_of(&large), &server.place("new")],
    ] {
        let output = finish(narrows(home.path()).args(["cp", "--insecure"]).args(args).spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("leave out --insecure and give --token-file"), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
    let open = Server::start(home.path(), &served, &["--insecure"]);
    save_token(&open.token, token);
    for args in [[&open.place("file"), text_of(&target)], [text_of(&server.token), &open.place("new")]] {
        let output = open.cp(home.path(), &args);
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("is not encrypted"), "{}", stderr(&output));
    }
    assert!(!target.exists() && !served.join("new").exists());
    // A token file that others can read is refused.
    save_token(&server.token, token);
    fs::set_permissions(&server.token, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(stderr(&server.cp(home.path(), &[&server.place("file"), "x"])).contains("chmod 600"));
    server.says("the client has another token");
}

#[test]
fn what_was_sent_once_is_worth_nothing_again_and_shows_nothing() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let secret = home.path().join("a name that nobody knows");
    let words = "words that nobody knows; ".repeat(40);
    fs::write(&secret, &words).unwrap();
    let server = Server::start(home.path(), &served, &[]);
    let heard = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let hearing = Arc::clone(&heard);
    let between = relay(&server.address, move |client, to| {
        let (a, b) = (client.try_clone().unwrap(), to.try_clone().unwrap());
        let other = Arc::clone(&hearing);
        let back = std::thread::spawn(move || {
            pump(&b, &a, usize::MAX, 4096, |bytes| other.lock().unwrap().1.extend_from_slice(bytes));
        });
        pump(&client, &to, usize::MAX, 4096, |bytes| hearing.lock().unwrap().0.extend_from_slice(bytes));
        back.join().unwrap();
    });
    let output = server.cp(home.path(), &[text_of(&secret), &format!("narrows://{between}/new")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    fs::remove_file(served.join("new")).unwrap();
    let heard = heard.lock().unwrap().clone();
    for bytes in [&heard.0, &heard.1] {
        for clear in [&words.as_bytes()[..10], b"a name that", b"new", b"NRSV"] {
            assert!(bytes.len() > 500 && !bytes.windows(clear.len()).any(|w| w == clear), "{clear:?} in clear");
        }
    }
    let mut again = TcpStream::connect(&server.address).unwrap();
    again.write_all(&heard.0).unwrap();
    again.shutdown(Shutdown::Write).unwrap();
    let _ = again.read_to_end(&mut Vec::new());
    server.says("it is not a narrows client");
    assert!(fs::read_dir(&served).unwrap().next().is_none());
}

#[test]
fn strangers_who_wait_dribble_or_talk_plainly_keep_nobody_out() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), "y").unwrap();
    let server = Server::start(home.path(), &served, &[]);
    let mut plain = TcpStream::connect(&server.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    // A client without TLS is disconnected and gets nothing but an alert.
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.len() < 16, "{answer:?}");
    let mut idle = Vec::new();
    for _ in 0..1000 {
        // The test's own descriptor limit may be lower.
        match TcpStream::connect(&server.address) {
            Ok(socket) => idle.push(socket),
            Err(_) => break,
        }
    }
    assert!(idle.len() > 200, "only {} connections", idle.len());
    for socket in &mut idle {
        let _ = socket.write_all(&[0x16, 3, 1]);
    }
    let youngest = (idle.last().unwrap().try_clone().unwrap(), Instant::now());
    let target = home.path().join("target");
    let output = server.cp(home.path(), &[&server.place("file"), text_of(&target)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // A server that waits for the idle ones would serve the copy after the last of them has had its time.
    youngest.0.set_nonblocking(true).unwrap();
    let is_open = matches!((&youngest.0).read(&mut [0; 16]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    assert!(is_open || youngest.1.elapsed() > HANDSHAKE, "it waits for the idle ones");
    youngest.0.set_nonblocking(false).unwrap();
    // The oldest connections have been closed.
    let mut oldest = idle.swap_remove(0);
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!matches!(oldest.read(&mut [0; 16]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock));
    // A client that sends a byte now and then is disconnected after the same time as a silent one.
    drop(idle);
    let mut slow = TcpStream::connect(&server.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let begun = Instant::now();
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for byte in hello.into_iter().chain(std::iter::repeat(7)) {
        let gone = slow.write_all(&[byte]).is_err()
            || !matches!(slow.read(&mut [0; 16]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        if gone {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody ends it");
    }
}

#[test]
fn a_copy_through_a_connection_that_dribbles_or_breaks_ends_well_or_goes_on() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let source = home.path().join("source");
    fs::write(&source, random(3_000_000)).unwrap();
    let server = Server::start(home.path(), &served, &[]);
    // TLS records arrive in pieces of 3 bytes.
    let dribble = relay(&server.address, |client, to| {
        let (a, b) = (client.try_clone().unwrap(), to.try_clone().unwrap());
        let back = std::thread::spawn(move || pump(&b, &a, usize::MAX, 3, |_| ()));
        pump(&client, &to, usize::MAX, 1013, |_| ());
        back.join().unwrap();
    });
    let output = server.cp(home.path(), &[text_of(&source), &format!("narrows://{dribble}/one")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(fs::read(served.join("one")).unwrap() == fs::read(&source).unwrap());
    // The connection breaks after a number of bytes, in one direction or the other, until
    // everything has arrived.
    for most in [0, 1, 100, 700, 2_000, 100_000, 2_000_000] {
        for broken in [false, true] {
            let cut = relay(&server.address, move |client, to| {
                let (a, b) = (client.try_clone().unwrap(), to.try_clone().unwrap());
                let (up, down) = if broken { (usize::MAX, most) } else { (most, usize::MAX) };
                let back = std::thread::spawn(move || pump(&b, &a, down, 4096, |_| ()));
                pump(&client, &to, up, 4096, |_| ());
                back.join().unwrap();
            });
            let output = server.cp(home.path(), &[text_of(&source), &format!("narrows://{cut}/two")]);
            let whole = served.join("two").exists();
            assert!(code(&output) != 0 || whole, "{most} {broken}: {}", stderr(&output));
            if whole {
                assert!(fs::read(served.join("two")).unwrap() == fs::read(&source).unwrap());
                fs::remove_file(served.join("two")).unwrap();
            }
        }
    }
    let output = server.cp(home.path(), &[text_of(&source), &server.place("two")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let begun = Instant::now();
    while !partials(&served).is_empty() {
        // Servers of broken connections may still be shutting down.
        assert!(begun.elapsed() < PATIENCE, "{:?}", partials(&served));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_copy_that_one_connection_holds_back_gets_more_of_them() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let source = home.path().join("source");
    fs::write(&source, random(24_000_000)).unwrap();
    let server = Server::start(home.path(), &served, &[]);
    let copy = |carriers: &str| {
        let made = Arc::new(AtomicUsize::new(0));
        let making = Arc::clone(&made);
        // Each connection passes some 10 MB/s.
        let slow = relay(&server.address, move |client, to| {
            making.fetch_add(1, Ordering::Relaxed);
            let (a, b) = (client.try_clone().unwrap(), to.try_clone().unwrap());
            let back = std::thread::spawn(move || pump(&b, &a, usize::MAX, 4096, |_| ()));
            pump(&client, &to, usize::MAX, 65_536, |_| std::thread::sleep(Duration::from_millis(6)));
            back.join().unwrap();
        });
        let place = format!("narrows://{slow}/{carriers}");
        let output = server.cp(home.path(), &["--carriers", carriers, text_of(&source), &place]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(fs::read(served.join(carriers)).unwrap() == fs::read(&source).unwrap());
        fs::remove_file(served.join(carriers)).unwrap();
        made.load(Ordering::Relaxed)
    };
    assert_eq!(copy("1"), 1);
    // On a loaded machine a login may take too long for a second connection to pay: at least one of
    // several copies must have one.
    let made = (0..8).map(|_| copy("4")).inspect(|made| assert!(*made <= 4, "{made}")).find(|made| *made > 1);
    assert!(made.is_some(), "no copy had more than one connection");
}

#[test]
fn without_token_only_this_host_is_served() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), "y").unwrap();
    let server = Server::start(home.path(), &served, &["--insecure"]);
    let target = home.path().join("target");
    let mut command = narrows(home.path());
    let output = finish(command.args(["cp", "--insecure", &server.place("file")]).arg(&target).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fs::read(&target).unwrap(), b"y");
    let mut command = narrows(home.path());
    command.args(["serve", "--insecure", "--listen", "0.0.0.0:0", "--dir"]).arg(&served);
    let output = finish(command.stdout(Stdio::piped()).spawn().unwrap());
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("this host only"), "{}", stderr(&output));
    let mut command = narrows(home.path());
    let output = finish(command.args(["cp", "--insecure", "narrows://192.0.2.1/x", "y"]).spawn().unwrap());
    assert!(stderr(&output).contains("only to this host"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_stopped_leaves_what_came_for_the_next_run() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let source = home.path().join("source");
    fs::write(&source, random(40_000_000)).unwrap();
    let mut server = Server::start(home.path(), &served, &[]);
    let slow = relay(&server.address, |client, to| {
        let (a, b) = (client.try_clone().unwrap(), to.try_clone().unwrap());
        let back = std::thread::spawn(move || pump(&b, &a, usize::MAX, 4096, |_| ()));
        pump(&client, &to, usize::MAX, 65_536, |_| std::thread::sleep(Duration::from_millis(2)));
        back.join().unwrap();
    });
    let copy = server.command(home.path(), &[text_of(&source), &format!("narrows://{slow}/")]).spawn().unwrap();
    let begun = Instant::now();
    while !fs::read_dir(&served).unwrap().any(|e| e.unwrap().metadata().is_ok_and(|m| m.len() > 4_000_000)) {
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status();
    ended(&mut server.child);
    assert_ne!(code(&finish(copy)), 0);
    assert_eq!(partials(&served).len(), 1);
    let server = Server::start(home.path(), &served, &[]);
    let output = server.cp(home.path(), &["--json", text_of(&source), &server.place("")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let wire = json(&output)["wire_bytes"].as_u64().unwrap();
    assert!(wire < 37_000_000, "{wire} bytes were sent though a part was there");
    assert!(fs::read(served.join("source")).unwrap() == fs::read(&source).unwrap());
    assert!(partials(&served).is_empty());
}

/// The first message of a client that will send a folder.
fn hello(session: usize) -> Vec<u8> {
    let words = serde_json::json!({
        "version": 1, "task": "put", "target": ".", "single": false, "fsync": "none", "devices": false,
        "dry_run": false, "session": format!("{session:032x}"),
    });
    let words = words.to_string();
    [&b"\x93NRSV\r\n\x1a"[..], &(words.len() as u32).to_le_bytes(), words.as_bytes()].concat()
}

/// One host takes all the slots it can get and sends nothing; another client, even of the same
/// host, soon gets one of them.
#[test]
fn copies_that_say_nothing_leave_their_places_to_others() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let server = Server::start(home.path(), &served, &["--insecure"]);
    let silent = (0..200).map(|i| {
        let mut socket = TcpStream::connect(&server.address).unwrap();
        socket.write_all(&hello(i)).unwrap();
        socket
    });
    let _silent: Vec<_> = silent.collect();
    let file = home.path().join("file");
    fs::write(&file, "x").unwrap();
    let begun = Instant::now();
    loop {
        let mut command = narrows(home.path());
        let output = finish(command.args(["cp", "--insecure"]).arg(&file).arg(server.place("")).spawn().unwrap());
        if code(&output) == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody leaves: {}", stderr(&output));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read(served.join("file")).unwrap(), b"x");
}

/// Set-id programs are copied as such to another host only if both ends ask for it.
/// A server whose stderr is a full pipe serves, and what it has to say comes when it is read.
#[test]
fn a_reader_that_does_not_read_the_log_stops_no_copy() {
    // What a pipe of Linux holds.
    const PIPE: usize = 64 << 10;
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("dir")).unwrap();
    fs::write(h.join("dir/file"), "text").unwrap();
    let (mut log, mut full) = std::io::pipe().unwrap();
    full.write_all(&[b'\n'; PIPE]).unwrap();
    let (address, token) = (format!("127.0.0.1:{}", free_port()), h.join("token"));
    let mut command = narrows(h);
    command.env("XDG_STATE_HOME", h).args(["serve", "-v", "--listen", &address, "--dir"]).arg(h.join("dir"));
    let child = command.arg("--token-out").arg(&token).stderr(full).spawn().unwrap();
    // The pipe ends with the server.
    drop(command);
    let server = Server { child, address, token, log: Arc::default() };
    let begun = Instant::now();
    while !server.token.exists() {
        assert!(begun.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(code(&server.cp(h, &[&server.place("file"), text_of(&h.join("got"))])), 0);
    assert_eq!(fs::read(h.join("got")).unwrap(), b"text");
    log.read_exact(&mut [0; PIPE]).unwrap();
    let mut said = String::new();
    BufReader::new(log).read_line(&mut said).unwrap();
    assert!(said.contains("serving"), "{said}");
}

#[test]
fn set_id_bits_are_kept_only_where_both_ends_ask_for_them() {
    let home = home();
    let [source, served] = ["source", "served"].map(|name| home.path().join(name));
    [&source, &served].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let program = source.join("program");
    fs::write(&program, "#!/bin/true").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    let unasked = "not kept: set-id bits (without --set-id) of 1";
    for (server_flags, flags, kept) in [
        (&[][..], &[][..], false),
        (&[], &["--set-id"], false),
        (&["--set-id"], &[], false),
        (&["--set-id"], &["--set-id"], true),
    ] {
        let server = Server::start(home.path(), &served, server_flags);
        let args =
            |from: &str, to: &str| flags.iter().copied().chain([from, to]).map(str::to_owned).collect::<Vec<_>>();
        let put = args(text_of(&program), &server.place("program"));
        let output = server.cp(home.path(), &put.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(mode(&served.join("program")), if kept { 0o6755 } else { 0o755 });
        assert_eq!(stderr(&output).contains(unasked), !kept, "{}", stderr(&output));
        // In the other direction only the storing end has to ask for it.
        fs::set_permissions(served.join("program"), fs::Permissions::from_mode(0o6755)).unwrap();
        let got = home.path().join("got");
        let get = args(&server.place("program"), text_of(&got));
        let output = server.cp(home.path(), &get.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(mode(&got), if flags.is_empty() { 0o755 } else { 0o6755 }, "{}", stderr(&output));
        assert_eq!(stderr(&output).contains(unasked), flags.is_empty(), "{}", stderr(&output));
        fs::remove_file(&got).unwrap();
        fs::remove_file(served.join("program")).unwrap();
    }
    let copied = home.path().join("copied");
    let output = finish(narrows(home.path()).arg("cp").args([&program, &copied]).spawn().unwrap());
    assert_eq!((code(&output), mode(&copied)), (0, 0o6755), "within a host they are the user's own");
}

#[test]
fn a_token_goes_where_only_its_owner_reads_it() {
    let home = home();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), "y").unwrap();
    let token = home.path().join("token");
    let serve = |more: &[&str]| {
        let mut command = narrows(home.path());
        command.env("XDG_STATE_HOME", home.path()).args(["serve", "--listen", "127.0.0.1:0", "--dir"]).arg(&served);
        command.args(more);
        command
    };
    fs::write(&token, "an old one that all may read").unwrap();
    let mut server = serve(&["--token-out", text_of(&token)]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let place = format!("narrows://{}/file", line.trim().rsplit(' ').next().unwrap());
    assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut command = narrows(home.path());
    let output = finish(command.args(["cp", "--token-file", text_of(&token), &place, "-"]).spawn().unwrap());
    assert_eq!((code(&output), &output.stdout[..]), (0, &b"y"[..]), "{}", stderr(&output));
    server.kill().unwrap();
    assert!(server.wait_with_output().unwrap().stdout.is_empty(), "it is printed too");
    // A file made by a shell with `>` is readable for all; the server warns about it.
    let printed = fs::File::create(home.path().join("printed")).unwrap();
    fs::set_permissions(home.path().join("printed"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut server = serve(&[]).stdout(printed).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.by_ref().take(2).any(|line| line.contains("--token-out FILE")));
    server.kill().unwrap();
    server.wait().unwrap();
    let output = finish(serve(&["--token-out", text_of(&served)]).spawn().unwrap());
    assert!(code(&output) == 1 && stderr(&output).contains("the token file"), "{}", stderr(&output));
}
