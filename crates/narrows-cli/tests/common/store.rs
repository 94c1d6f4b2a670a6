//! A real S3-compatible server on loopback (moto), and a proxy before it that counts requests and
//! makes faults.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::{free_port, narrows};

/// The server is installed at its first start, which may take as long as its download.
const START_WITHIN: Duration = Duration::from_secs(240);
/// No request of a test waits longer.
const WITHIN: Duration = Duration::from_secs(60);

struct Server {
    port: u16,
    /// It ends with this process, which holds its stdin.
    _child: Child,
}

fn server() -> Option<u16> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(start).as_ref().map(|server| server.port)
}

fn start() -> Option<Server> {
    if !narrows_test::has("python3") || !narrows_test::has("flock") {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(".ci/store-server");
    let port = free_port();
    let mut command = Command::new(script);
    let mut child = command
        .arg(port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if child.try_wait().unwrap().is_some() || begun.elapsed() > START_WITHIN {
            let _ = child.kill();
            narrows_test::lacks("S3-compatible server (moto): .ci/store-server cannot start it");
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(Server { port, _child: child })
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Pass,
    /// The server is not asked.
    Status(u16, &'static str),
    /// The server gets and the client sends so many bytes of it.
    CutRequest(usize),
    /// The client gets so many bytes of the answer.
    CutAnswer(usize),
    /// The server does it and the client hears nothing.
    LoseAnswer,
    Delay(u64),
}

/// A request as the proxy saw it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body_len: usize,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

type Faults = dyn Fn(usize, &Request) -> Fault + Send + Sync;

/// A bucket of its own, behind a proxy of its own.
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) endpoint: String,
    server: u16,
    seen: Arc<Mutex<Vec<Request>>>,
    faults: Arc<Mutex<Arc<Faults>>>,
    home: tempfile::TempDir,
}

impl Bucket {
    /// `None` where no server can be had, which is recorded.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = server()?;
        let name = format!("bucket-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let faults: Arc<Faults> = Arc::new(|_, _| Fault::Pass);
        let (seen, faults) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::new(Mutex::new(faults)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (to_seen, of_faults) = (Arc::clone(&seen), Arc::clone(&faults));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (seen, faults) = (Arc::clone(&to_seen), Arc::clone(&of_faults));
                std::thread::spawn(move || serve(&client, server, &seen, &faults));
            }
        });
        let bucket = Self { name, endpoint, server, seen, faults, home: tempfile::tempdir().unwrap() };
        assert_eq!(bucket.ask("PUT", "", b"").0, 200);
        Some(bucket)
    }

    /// The URL of a key.
    pub(crate) fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }

    /// The program with credentials for the server, behind the proxy.
    pub(crate) fn narrows(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        command
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_ENDPOINT_URL", &self.endpoint);
        command
    }

    /// The program without credentials and endpoint.
    pub(crate) fn bare(&self, args: &[&str]) -> Command {
        let mut command = narrows(self.home.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path()).env("AWS_EC2_METADATA_DISABLED", "true").args(args);
        command
    }

    /// Sets what becomes of the requests from here on, and forgets those before.
    pub(crate) fn faults(&self, faults: impl Fn(usize, &Request) -> Fault + Send + Sync + 'static) {
        *self.faults.lock().unwrap() = Arc::new(faults);
        self.seen.lock().unwrap().clear();
    }

    /// The requests since the last call of this or of `faults`.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// Asks the server itself; `target` is a key or a query.
    pub(crate) fn ask(&self, method: &str, target: &str, body: &[u8]) -> (u16, Vec<u8>) {
        self.ask_with(method, target, &[], body)
    }

    pub(crate) fn ask_with(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
        self.other().ask_with(method, target, headers, body)
    }

    /// Another program that uses the bucket.
    pub(crate) fn other(&self) -> Other {
        Other { name: self.name.clone(), server: self.server }
    }

    /// Stores an object as another program would.
    pub(crate) fn put(&self, key: &str, body: &[u8]) {
        self.other().put(key, body);
    }

    /// The stored bytes of an object.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (status, body) = self.ask("GET", key, b"");
        (status == 200).then_some(body)
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        let (_, body) = self.ask("GET", "?list-type=2", b"");
        between(&String::from_utf8(body).unwrap(), "<Key>", "</Key>")
    }

    /// Keys of uploads that were begun and neither completed nor aborted.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let (_, body) = self.ask("GET", "?uploads", b"");
        between(&String::from_utf8(body).unwrap(), "<Key>", "</Key>")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.home.path().to_owned()
    }
}

/// A program that asks the server itself.
pub(crate) struct Other {
    name: String,
    server: u16,
}

impl Other {
    pub(crate) fn put(&self, key: &str, body: &[u8]) {
        assert_eq!(self.ask_with("PUT", key, &[], body).0, 200, "{key}");
    }

    fn ask_with(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
        let slash = if target.is_empty() || target.starts_with('?') { "" } else { "/" };
        let mut head = format!(
            "{method} /{}{slash}{target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\nAuthorization: AWS test:test\r\n",
            self.name,
            body.len()
        );
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let answer = exchange(self.server, format!("{head}\r\n").as_bytes(), body);
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
        (status, answer[end..].to_vec())
    }
}

fn between(text: &str, begin: &str, end: &str) -> Vec<String> {
    text.split(begin).skip(1).filter_map(|rest| rest.split_once(end)).map(|(found, _)| found.to_owned()).collect()
}

fn exchange(port: u16, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(WITHIN)).unwrap();
    socket.write_all(head).unwrap();
    socket.write_all(body).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    answer
}

/// One connection of a client: each request goes to the server over a connection of its own.
fn serve(client: &TcpStream, server: u16, seen: &Mutex<Vec<Request>>, faults: &Mutex<Arc<Faults>>) {
    client.set_read_timeout(Some(WITHIN)).unwrap();
    let mut reader = BufReader::new(client);
    loop {
        let (mut head, mut headers) = (Vec::new(), Vec::new());
        let mut first = String::new();
        if !matches!(reader.read_line(&mut first), Ok(1..)) {
            return;
        }
        head.extend_from_slice(first.as_bytes());
        loop {
            let mut line = String::new();
            if !matches!(reader.read_line(&mut line), Ok(1..)) {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.trim().split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if !name.eq_ignore_ascii_case("connection") {
                head.extend_from_slice(line.as_bytes());
            }
        }
        head.extend_from_slice(b"Connection: close\r\n\r\n");
        let mut words = first.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let mut request = Request { method, target, headers, body_len: 0 };
        request.body_len = request.header("content-length").map_or(0, |len| len.parse().unwrap());
        let fault = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            let faults = Arc::clone(&faults.lock().unwrap());
            faults(seen.len() - 1, &request)
        };
        let mut body =
            vec![0; if let Fault::CutRequest(n) = fault { n.min(request.body_len) } else { request.body_len }];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let mut client = client;
        match fault {
            Fault::Status(status, text) => {
                let answer = format!("HTTP/1.1 {status} Fault\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                if client.write_all(answer.as_bytes()).is_err() {
                    return;
                }
                continue;
            }
            Fault::CutRequest(_) => {
                let mut upstream = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let _ = upstream.write_all(&head).and_then(|()| upstream.write_all(&body));
            }
            Fault::LoseAnswer => drop(exchange(server, &head, &body)),
            Fault::CutAnswer(n) => {
                let answer = exchange(server, &head, &body);
                let _ = client.write_all(&answer[..n.min(answer.len())]);
            }
            Fault::Pass | Fault::Delay(_) => {
                if let Fault::Delay(ms) = fault {
                    std::thread::sleep(Duration::from_millis(ms));
                }
                let _ = client.write_all(&exchange(server, &head, &body));
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        return;
    }
}
