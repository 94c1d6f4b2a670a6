//! `narrows ping`: every method over TCP and Unix sockets, its output, and faulty clients, servers
//! and files; `narrows measure`, and hosts that it cannot measure. No test checks durations.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Output};

use serde_json::Value;

use crate::common::*;

/// A server, killed at the end of the test.
struct Server {
    child: Child,
    place: String,
}

impl Server {
    fn start(home: &Path, place: &str, flags: &[&str]) -> Self {
        let mut child = narrows(home).args(["ping", "--serve", place]).args(flags).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, place }
    }

    fn port(home: &Path) -> Self {
        Self::start(home, "127.0.0.1:0", &[])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ping(home: &Path, place: &str, flags: &[&str]) -> Output {
    finish(narrows(home).args(["ping", place, "--rounds", "1"]).args(flags).spawn().unwrap())
}

fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file_of(folder: &Path, name: &str, messages: &[Vec<u8>]) -> PathBuf {
    let path = folder.join(name);
    let one = |m: &Vec<u8>| [&(m.len() as u32).to_le_bytes()[..], m].concat();
    fs::write(&path, messages.iter().flat_map(one).collect::<Vec<u8>>()).unwrap();
    path
}

/// Each method returns every message, at both ends, over both kinds of sockets. Methods with
/// history send fewer bytes than those without.
#[test]
fn every_method_brings_all_messages_back() {
    let home = home();
    let dictionary = home.path().join("dict");
    fs::write(&dictionary, text(8000)).unwrap();
    let socket = format!("unix:{}", home.path().join("socket").display());
    for place in ["127.0.0.1:0", &socket] {
        let server = Server::start(home.path(), place, &[]);
        let flags = ["--methods", "all", "--dict", dictionary.to_str().unwrap(), "--count", "40", "--json"];
        let seen = json(&ping(home.path(), &server.place, &[&flags[..], &["--sizes", "700,1,0"]].concat()));
        let rows = |set: usize| seen["sets"][set]["rows"].as_array().unwrap();
        assert_eq!(seen["sets"].as_array().unwrap().len(), 3);
        for set in 0..3 {
            assert_eq!(rows(set).len(), 16);
            assert_eq!(seen["sets"][set]["messages"], 40);
            assert!(rows(set).iter().all(|r| r["p50_us"].as_f64().unwrap() > 0.0), "{seen}");
        }
        let ratio = |method: &str| {
            let row = rows(0).iter().find(|r| r["method"] == method).unwrap();
            assert_eq!(row["raw_bytes"], 2 * 40 * 700);
            // The server encodes the same messages as the client.
            let (both, back) = (row["wire_bytes"].as_u64().unwrap(), row["wire_bytes_back"].as_u64().unwrap());
            assert!(method == "messages" || both.abs_diff(2 * back) < 100, "{method} {both} {back}");
            row["ratio"].as_f64().unwrap()
        };
        assert!((ratio("plain") - 700.0 / 702.0).abs() < 1e-9, "its length and nothing else");
        assert!(ratio("store") <= 700.0 / 702.0 && ratio("store") > 0.98);
        for alone in ["lz4", "zstd:level=1", "zstd", "xz:level=3", "bzip2:level=1", "zlib", "snappy"] {
            assert!(ratio(alone) > 1.1, "{alone} {}", ratio(alone));
        }
        assert!(ratio("lz4:link") > 1.3 * ratio("lz4") && ratio("lz4:link,seeded") > 1.3 * ratio("lz4"));
        assert!(rows(1).iter().chain(rows(2)).all(|r| r["ratio"].as_f64().unwrap() <= 1.0), "nothing to gain");
    }
}

#[test]
fn a_dictionary_of_the_messages_own_kind_is_used_from_the_first_one() {
    let home = home();
    let one = |i: u64| {
        let (user, tag) = (i * 7919 % 1000, i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        format!(
            "INVITE sip:{user}@example.net SIP/2.0\r\nVia: SIP/2.0/TCP proxy.example.net;branch={tag:x}\r\nFrom: <sip:{user}@example.org>;tag={tag:x}"
        )
    };
    let messages: Vec<_> = (0..200).map(|i| one(i).into_bytes()).collect();
    let (dictionary, file) = (home.path().join("dict"), file_of(home.path(), "m.msgs", &messages[100..140]));
    fs::write(&dictionary, messages[..40].concat()).unwrap();
    let server = Server::port(home.path());
    // The older spelling of two methods is read, too.
    let methods = "lz4,lz4:dict,zstd-1,zstd:level=1,dict,lz4:linked,seeded,messages";
    let flags = ["--methods", methods, "--json", "--count", "3"];
    let files = ["--messages", file.to_str().unwrap(), "--dict", dictionary.to_str().unwrap()];
    let seen = json(&ping(home.path(), &server.place, &[&flags[..], &files].concat()));
    assert!(seen["dictionary_bytes"].as_u64().unwrap() > 3000);
    let ratio = |method: &str| {
        let rows = seen["sets"][0]["rows"].as_array().unwrap();
        rows.iter().find(|r| r["method"] == method).unwrap()["ratio"].as_f64().unwrap()
    };
    for (with, without) in [("lz4:dict", "lz4"), ("zstd:level=1,dict", "zstd:level=1"), ("lz4:link,seeded", "lz4")] {
        assert!(ratio(with) > 1.15 * ratio(without), "{with} {} {}", ratio(with), ratio(without));
    }
}

#[test]
fn what_is_printed_says_what_was_measured_and_over_which_link() {
    let home = home();
    let server = Server::port(home.path());
    let flags = ["--count", "3", "--sizes", "500,600", "--methods", "lz4,messages"];
    let plain = ping(home.path(), &server.place, &flags);
    let table = String::from_utf8(plain.stdout.clone()).unwrap();
    assert_eq!(code(&plain), 0, "{}", stderr(&plain));
    for word in ["3 messages of 500 bytes, 1 round; link as it is", "of 600 bytes", "ratio", "p99 us", "/ plain"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert_eq!(table.lines().filter(|l| l.starts_with("plain") || l.starts_with("lz4")).count(), 4);
    let emulated = ["--link-rate", "100mbit", "--hops", "1", "--poll"];
    let table = ping(home.path(), &server.place, &[&flags[..], &emulated].concat());
    assert!(String::from_utf8(table.stdout).unwrap().contains("link emulated: 100 Mbit/s, 1 hop"));
    let seen = json(&ping(home.path(), &server.place, &[&flags[..], &emulated, &["--json"]].concat()));
    assert_eq!((&seen["link"]["emulated"], &seen["link"]["bits_per_s"]), (&true.into(), &100_000_000.into()));
    for key in ["round_trip_us", "goodput_bytes_per_s", "throughput_bytes_per_s", "quotient", "p50_us", "p90_us"] {
        assert!(seen["sets"][1]["rows"][2][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(seen["sets"][0]["rows"][0]["quotient"], 1.0);
    // 590 bytes at 100 Mbit/s through one switch, in both directions: no machine is faster than the
    // link.
    assert!(seen["sets"][0]["rows"][0]["p50_us"].as_f64().unwrap() >= 2.0 * 592.0 * 0.16);
}

#[test]
fn once_it_ends_with_its_first_client_and_leaves_no_socket() {
    let home = home();
    let path = home.path().join("socket");
    for _ in 0..2 {
        let mut server = Server::start(home.path(), &format!("unix:{}", path.display()), &["--once"]);
        assert_eq!(code(&ping(home.path(), &server.place, &["--count", "2", "--sizes", "50"])), 0);
        assert!(server.child.wait().unwrap().success() && !path.exists());
        // The socket of a killed server is no obstacle.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
    }
    fs::remove_file(&path).unwrap();
    let server = Server::start(home.path(), &format!("unix:{}", path.display()), &[]);
    signal(&server.child, "-INT");
    let mut server = server;
    assert!(!server.child.wait().unwrap().success() && !path.exists(), "Ctrl-C, too");
}

/// A server answers invalid hellos with one line or not at all, and keeps serving.
#[test]
fn a_server_refuses_hellos_that_are_none() {
    let home = home();
    let server = Server::port(home.path());
    let hello = |change: &dyn Fn(&mut Vec<u8>), tail: &[u8]| {
        let mut bytes = vec![0; 41];
        bytes[..5].copy_from_slice(b"nrwp\x01");
        change(&mut bytes);
        bytes.extend_from_slice(tail);
        let mut socket = TcpStream::connect(&server.place).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let named = |name: &str, policy: &str| {
        let lens = [name.len() as u8, policy.len() as u8];
        hello(&|b| b[5..7].copy_from_slice(&lens), format!("{name}{policy}").as_bytes())
    };
    assert!(named("nothing", "messages").contains("no method is called 'nothing'"));
    assert!(named("lz4:dict", "messages").contains("needs a dictionary"));
    assert!(named("messages", "replay:/etc/passwd").contains("not for messages"));
    assert!(named("messages", "datacomp:table=x").contains("not for messages"));
    assert!(named("messages", "").contains("policy"));
    let with = |change: fn(&mut Vec<u8>), dictionary: &[u8]| {
        let change = |b: &mut Vec<u8>| {
            b[5..7].copy_from_slice(&[3, 8]);
            change(b);
        };
        hello(&change, &[b"lz4messages", dictionary].concat())
    };
    assert!(with(|b| b[0] = b'G', b"").contains("not narrows ping"));
    assert!(with(|b| b[4] = 9, b"").contains("version 1"));
    assert!(with(|b| b[5] = 255, b"").contains("too long"));
    assert!(with(|b| b[8] = 1, b"").contains("history"));
    assert!(with(|b| b[12] = 1, b"").contains("out of range"));
    assert!(with(|b| b[28..32].fill(0xff), b"").contains("dictionary has"));
    assert!(with(|b| b[28] = 100, &[b'm'; 99]).contains("went away"), "less than it announces");
    assert!(with(|b| b[28] = 100, &[b'm'; 100]).contains("digest"));
    // Truncated hellos, and bytes of other programs.
    for bytes in [&b""[..], b"n", b"nrwp\x01", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut socket = TcpStream::connect(&server.place).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    assert_eq!(code(&ping(home.path(), &server.place, &["--count", "2", "--sizes", "50"])), 0, "it goes on");
}

/// Everyone may connect: a log has an end. At most 20 lines in a second, and one that counts the others.
#[test]
fn strangers_do_not_fill_the_log() {
    const STRANGERS: usize = 300;
    let home = home();
    let mut server = Server::port(home.path());
    let begun = std::time::Instant::now();
    for _ in 0..STRANGERS {
        let mut socket = TcpStream::connect(&server.place).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    server.child.kill().unwrap();
    let mut said = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // However long it took.
    let most = 21 * (begun.elapsed().as_secs() as usize + 2);
    let lines = said.lines().count();
    assert!(lines > 0 && lines <= most, "{lines} lines, at most {most}:\n{said}");
}

/// Whatever follows a valid hello, the server neither fails nor answers with a message that was not
/// sent.
#[test]
fn a_server_ends_connections_that_carry_no_messages() {
    let home = home();
    let server = Server::port(home.path());
    for method in ["lz4:linked", "messages", "zlib", "bzip2", "xz", "snappy", "zstd-3"] {
        for noise in [random(3000), vec![0xff; 3000], vec![1, 0, 1, 9], vec![16, 0, 7, 0]] {
            let mut socket = TcpStream::connect(&server.place).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = vec![0; 41];
            bytes[..5].copy_from_slice(b"nrwp\x01");
            (bytes[5], bytes[6], bytes[9]) = (method.len() as u8, 8, 64);
            bytes.extend_from_slice(format!("{method}messages").as_bytes());
            socket.write_all(&bytes).unwrap();
            let mut answer = [0; 8];
            socket.read_exact(&mut answer).unwrap();
            assert_eq!(answer, *b"nrwp\x01\0\0\0", "{method}");
            let _ = socket.write_all(&noise);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    }
    assert_eq!(code(&ping(home.path(), &server.place, &["--count", "2", "--sizes", "50"])), 0, "it goes on");
}

#[test]
fn a_client_tells_of_a_server_that_fails() {
    let home = home();
    // No server.
    let free = format!("127.0.0.1:{}", free_port());
    let nobody = ping(home.path(), &free, &[]);
    assert_one_line_error(&nobody, 1);
    assert!(stderr(&nobody).contains("cannot connect"));
    // Another program, and servers with invalid answers.
    for answer in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"nrwp\x01\x01\x05\0no...", b"nrwp\x01\x01\xff\xff", b"nr", b""]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let child = narrows(home.path()).args(["ping", &place]).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(answer).unwrap();
        drop(socket);
        assert_one_line_error(&finish(child), 1);
    }
}

#[test]
fn a_client_whose_server_is_killed_ends_with_a_line() {
    let home = home();
    let mut server = Server::port(home.path());
    let flags = ["ping", &server.place, "--count", "100000", "--sizes", "300", "--rounds", "30", "--trace"];
    let trace = home.path().join("trace");
    let client = narrows(home.path()).args(flags).arg(&trace).spawn().unwrap();
    // The trace is created before the first message; the server is killed some time after that.
    while !trace.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    server.child.kill().unwrap();
    let output = finish(client);
    assert_one_line_error(&output, 1);
    assert!(
        stderr(&output).contains("cannot ping") || stderr(&output).contains("cannot connect"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn files_and_flags_that_are_wrong_are_named() {
    let home = home();
    let good = file_of(home.path(), "good.msgs", &[b"abc".to_vec(), Vec::new(), b"d".to_vec()]);
    let cut = home.path().join("cut.msgs");
    fs::write(&cut, &fs::read(&good).unwrap()[..9]).unwrap();
    let long = file_of(home.path(), "long.msgs", &[vec![0; 65_536]]);
    let longest = file_of(home.path(), "longest.msgs", &[vec![7; 65_535]]);
    let small = home.path().join("small.dict");
    fs::write(&small, b"too small").unwrap();
    let server = Server::port(home.path());
    let said = |flags: &[&str], status: i32| {
        let output = ping(home.path(), &server.place, &[flags, &["-q"]].concat());
        assert_one_line_error(&output, status);
        stderr(&output)
    };
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    assert!(said(&["--messages", &path(&cut)], 3).contains("message 2"));
    assert!(said(&["--messages", &path(&long)], 3).contains("65536"));
    let lines = home.path().join("some.json");
    fs::write(&lines, "{\"a\": 1}\n{\"a\": 2}\n").unwrap();
    assert!(said(&["--messages", &path(&lines)], 3).contains("--lines"));
    assert!(said(&["--messages", "/nowhere"], 1).contains("/nowhere"));
    assert!(said(&["--messages", &path(&good), "--sizes", "9"], 1).contains("less than 9 bytes"));
    assert!(said(&["--dict", &path(&small)], 1).contains("64"));
    assert!(said(&["--methods", "lz4:dict"], 2).contains("--dict"));
    assert!(said(&["--methods", "nothing"], 2).contains("nothing"));
    assert!(said(&["--policy", "balance"], 2).contains("not for messages"));
    assert!(said(&["--count", "1000000", "--sizes", "1,2,3,4,5"], 2).contains("round trips"));
    for flags in [&["--sizes", "65536"][..], &["--link-rate", "1kbit"], &["--history", "100"], &["--hops", "1"]] {
        assert_eq!(code(&ping(home.path(), &server.place, flags)), 2, "{flags:?}");
    }
    let seen = json(&ping(home.path(), &server.place, &["--messages", &path(&good), "--methods", "all", "--json"]));
    assert_eq!((&seen["sets"][0]["messages"], &seen["sets"][0]["size"]), (&3.into(), &Value::Null));
    let flags = ["--messages", &path(&longest), "--methods", "all", "--json"];
    assert_eq!(json(&ping(home.path(), &server.place, &flags))["sets"][0]["mean_bytes"], 65_535.0);
}
/// `narrows measure`, another way to ask what a link gives, behind a remote shell or a server.
mod measure {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::common::copies::shell;

    const PROGRAM: &str = env!("CARGO_BIN_EXE_narrows");

    fn command(home: &Path, args: &[&str]) -> Command {
        let mut command = narrows(home);
        command.arg("measure").args(["--time", "1", "-e"]).arg(shell(home)).args(args);
        command
    }

    fn run(home: &Path, args: &[&str]) -> Output {
        finish(command(home, args).spawn().unwrap())
    }

    /// A remote shell in which this script is the program there.
    fn with_script(home: &Path, script: &str, args: &[&str]) -> Output {
        let path = home.join("script");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        run(home, &[&["--remote-narrows", path.to_str().unwrap(), "--timeout", "1"], args].concat())
    }

    fn tree(home: &Path) -> PathBuf {
        let folder = home.join("tree");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("text"), text(200_000)).unwrap();
        fs::write(folder.join("sub/random"), random(50_000)).unwrap();
        fs::write(folder.join("empty"), "").unwrap();
        folder
    }

    #[test]
    fn a_folder_is_predicted_over_the_carrier_of_copies() {
        let home = home();
        let (folder, page) = (tree(home.path()), home.path().join("page.html"));
        let [folder, page] = [&folder, &page].map(|path| path.to_str().unwrap());
        let remote = ["--remote-narrows", PROGRAM, "--json", "--page", page, "me@host", folder];
        let seen = json(&run(home.path(), &remote));
        for way in ["there", "back"] {
            let way = &seen["link"][way];
            assert!(way["bytes_per_s"].as_f64().unwrap() > 1e5 && way["segments"].is_null(), "{way}");
            assert!(way["moved_bytes"].as_u64().unwrap() > 0);
        }
        assert!(seen["link"]["round_trip_s"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(seen["hosts"]["same"], true);
        assert_eq!(seen["hosts"]["here"]["cores"], seen["hosts"]["there"]["cores"]);
        assert_eq!(seen["hosts"]["there"]["speeds"].as_array().unwrap().len(), 4);
        let told = &seen["folder"];
        assert_eq!(
            (&told["files"], &told["bytes"], &told["read_bytes"]),
            (&2.into(), &250_000.into(), &250_000.into())
        );
        let prediction = &seen["prediction"];
        let [low, value, high] = ["low", "value", "high"].map(|end| prediction["seconds"][end].as_f64().unwrap());
        assert!(0.0 < low && low < value && value < high, "{prediction}");
        let names: Vec<&str> =
            prediction["copies"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
        // Where the time is over, the others are left out.
        assert_eq!(names[..2], ["narrows", "plain"], "{names:?}");
        let page = fs::read_to_string(page).unwrap();
        assert!(page.matches("<svg").count() == 2 && page.contains("me@host") && page.ends_with("</html>\n"));
    }

    #[test]
    fn a_server_is_measured_by_its_token_and_touched_nowhere() {
        let home = home();
        let folder = tree(home.path());
        let (served, token) = (home.path().join("served"), home.path().join("token"));
        fs::create_dir(&served).unwrap();
        let mut serve = narrows(home.path());
        serve.env("XDG_STATE_HOME", home.path()).args(["serve", "--read-only", "--listen", "127.0.0.1:0", "--dir"]);
        let child = serve.arg(&served).arg("--token-out").arg(&token).spawn().unwrap();
        let mut server = Server { child, place: String::new() };
        let mut line = String::new();
        BufReader::new(server.child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let place = format!("narrows://{}", line.trim().rsplit(' ').next().unwrap());
        let token = token.to_str().unwrap();
        let output = run(home.path(), &["-q", "--token-file", token, &place, folder.to_str().unwrap()]);
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
        for words in
            ["link", "back", "Mbit/s", "sent again", "round trip", "share its cores", "2 files", "narrows  ", "plain"]
        {
            assert!(table.contains(words), "{words}: {table}");
        }
        assert!(entries(&served).is_empty());
        // Without a folder there is no prediction.
        let alone = json(&run(home.path(), &["--json", "--token-file", token, &place]));
        assert!(alone["prediction"].is_null() && alone["folder"].is_null());
        let missing = run(home.path(), &[&place]);
        assert!(stderr(&missing).contains("--token-file") && code(&missing) == 1, "{}", stderr(&missing));
        let insecure = run(home.path(), &["--insecure", "--timeout", "2", &place]);
        assert!(stderr(&insecure).contains("wants a token") && code(&insecure) == 1, "{}", stderr(&insecure));
    }

    #[test]
    fn a_folder_without_data_is_told_and_one_that_is_missing_refused() {
        let home = home();
        fs::create_dir(home.path().join("nothing")).unwrap();
        let nothing = home.path().join("nothing");
        let remote = ["--remote-narrows", PROGRAM];
        let output = run(home.path(), &[&remote[..], &["-q", "host", nothing.to_str().unwrap()]].concat());
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(code(&output) == 0 && table.contains("no data, so nothing is predicted"), "{table}{}", stderr(&output));
        for (status, words, args) in [
            (1, "cannot read /no/such", &["host", "/no/such"][..]),
            (1, "neither a file nor a folder", &["host", "/dev/null"]),
            (2, "is no host", &["./folder"]),
            (2, "is not an address", &["http://host"]),
            (2, "", &["--time", "0", "host"]),
            (1, "cannot reach narrows", &["--insecure", "narrows://127.0.0.1:1"]),
        ] {
            let output = run(home.path(), args);
            assert_eq!(code(&output), status, "{args:?}: {}", stderr(&output));
            assert!(
                stderr(&output).contains(words) || words.starts_with("cannot reach"),
                "{args:?}: {}",
                stderr(&output)
            );
            assert!(output.stdout.is_empty());
        }
    }

    #[test]
    fn hosts_without_narrows_with_an_older_one_or_a_silent_one_are_told_apart() {
        let home = home();
        for (script, words) in [
            ("exit 127", "there is no narrows on host; install it there, or give its path with --remote-narrows"),
            ("echo 'narrows: the client speaks version 6 and this program 5' >&2; exit 1", "an older narrows, or none"),
            // Nothing of it holds what this test reads.
            ("exec sleep 20 2>/dev/null", "said nothing for 1 s"),
            ("exit 255", "cannot reach host"),
            // Its magic number, then a refusal that would clear the terminal.
            (r"printf '\223NRMT\r\n\032\012\004\000\000\000\033[2J'; sleep 1", "the other end refuses: \\u{1b}[2J"),
            // Its magic number, and a frame that is longer than any.
            (r"printf '\223NRMT\r\n\032\001\377\377\377\177'; sleep 1", "a frame that is too long"),
            (r"printf '\223NRMT\r\n\032'", "has gone away"),
        ] {
            let output = with_script(home.path(), script, &["host"]);
            let said = stderr(&output);
            assert_eq!(code(&output), 1, "{script}: {said}");
            assert!(said.contains(words) && !said.contains('\x1b'), "{script}: {said}");
        }
    }

    #[test]
    fn a_signal_ends_both_ends() {
        let home = home();
        let (pid, script) = (home.path().join("pid"), home.path().join("far"));
        fs::write(&script, format!("#!/bin/sh\necho $$ >'{}'\nexec '{PROGRAM}' \"$@\"\n", pid.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let args = ["--time", "60", "--remote-narrows", script.to_str().unwrap(), "host"];
        let mut command = narrows(home.path());
        let mut child = command.arg("measure").arg("-e").arg(shell(home.path())).args(args).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("measuring") {}
        drop(lines);
        signal(&child, "-TERM");
        let output = finish(child);
        assert_eq!(code(&output), -1, "{}", stderr(&output));
        let far = format!("/proc/{}/stat", fs::read_to_string(&pid).unwrap().trim());
        // Nobody may have waited for it.
        let goes_on = || fs::read_to_string(&far).is_ok_and(|stat| !stat.contains(") Z "));
        let begun = Instant::now();
        while goes_on() {
            assert!(begun.elapsed() < PATIENCE, "the far end goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
