//! Short pages for scrapers and probes: an HTTP/1.1 server that knows GET and HEAD and nothing else.
//!
//! A request is one read of a few kilobytes within a deadline, an answer closes the connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients at a time: some servers of Prometheus and their pairs. The oldest makes room for a further
/// one, so that silent clients do not keep others out.
const CLIENTS_MAX: usize = 16;
/// Threads at a time: those of clients that made room have not all ended yet.
const THREADS_MAX: usize = 2 * CLIENTS_MAX;
/// Time for a request. It is sent in one piece.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time for an answer: tens of kilobytes.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Length of a request. Prometheus sends some 300 bytes; servers commonly take 8 KiB.
const REQUEST_MAX: usize = 8 << 10;
/// Headers of a request, as many as servers commonly take.
const HEADERS_MAX: usize = 64;
/// Bytes read after an answer, so that the client's own do not destroy it.
const REST_MAX: usize = 64 << 10;
/// Time for them.
const REST_TIME: Duration = Duration::from_secs(1);
/// Pause without descriptors or threads.
const BREATH: Duration = Duration::from_millis(100);

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Status of HTTP with its reason, such as `200 OK`.
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: String,
}

pub const OK: &str = "200 OK";
pub const UNAVAILABLE: &str = "503 Service Unavailable";

impl Page {
    /// A short text.
    pub fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Finds the page of a request; `None` is one that does not exist.
type Pages = dyn Fn(&Request) -> Option<Page> + Send + Sync;

/// Serves pages on threads of its own for as long as the process lives.
///
/// # Errors
/// If the system gives no thread.
pub fn serve(listener: TcpListener, pages: impl Fn(&Request) -> Option<Page> + Send + Sync + 'static) -> Result<()> {
    let server = Arc::new(Server { pages: Box::new(pages), clients: Mutex::default() });
    std::thread::Builder::new().name("narrows-pages".into()).spawn(move || server.run(&listener))?;
    Ok(())
}

struct Server {
    pages: Box<Pages>,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    next: u64,
    threads: usize,
    /// Oldest first.
    open: VecDeque<(u64, TcpStream)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    fn run(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((socket, _)) => self.take(socket),
                Err(_) => std::thread::sleep(BREATH),
            }
        }
    }

    fn take(self: &Arc<Self>, socket: TcpStream) {
        let Ok(held) = socket.try_clone() else { return };
        let id = {
            let mut clients = lock(&self.clients);
            if clients.open.len() >= CLIENTS_MAX
                && let Some((_, oldest)) = clients.open.pop_front()
            {
                let _ = oldest.shutdown(Shutdown::Both);
            }
            if clients.threads >= THREADS_MAX {
                return;
            }
            clients.next += 1;
            clients.threads += 1;
            let id = clients.next;
            clients.open.push_back((id, held));
            id
        };
        let place = Place { server: Arc::clone(self), id };
        let work = move || {
            let _ = place.server.converse(&socket);
        };
        if std::thread::Builder::new().name("narrows-page".into()).spawn(work).is_err() {
            std::thread::sleep(BREATH);
        }
    }

    fn converse(&self, socket: &TcpStream) -> Result<()> {
        let mut head = Vec::new();
        let request = read_request(socket, &mut head)?;
        let answer = match request {
            Ok(request) => self.answer(&request),
            Err(status) => to_bytes(&plain(status), true),
        };
        write_within(socket, &answer, ANSWER_TIME)?;
        socket.shutdown(Shutdown::Write)?;
        read_rest(socket);
        Ok(())
    }

    fn answer(&self, request: &Request) -> Vec<u8> {
        let page = match request.method.as_str() {
            "GET" | "HEAD" => (self.pages)(request).unwrap_or_else(|| plain("404 Not Found")),
            _ => plain(NOT_ALLOWED),
        };
        to_bytes(&page, request.method != "HEAD")
    }
}

/// A client's place, until its thread ends.
struct Place {
    server: Arc<Server>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = lock(&self.server.clients);
        clients.threads -= 1;
        clients.open.retain(|(id, _)| *id != self.id);
    }
}

const NOT_ALLOWED: &str = "405 Method Not Allowed";

/// A page that says its status.
fn plain(status: &'static str) -> Page {
    Page::text(status, format!("{status}\n"))
}

fn to_bytes(page: &Page, with_body: bool) -> Vec<u8> {
    let Page { status, content_type, body } = page;
    let allow = if *status == NOT_ALLOWED { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if with_body {
        bytes += body;
    }
    bytes.into_bytes()
}

/// What matters of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    method: String,
    /// Without its query.
    pub path: String,
    pub accept: Option<String>,
}

/// Reads a request, or returns the status that it deserves.
fn read_request(mut socket: &TcpStream, head: &mut Vec<u8>) -> Result<std::result::Result<Request, &'static str>> {
    let begun = Instant::now();
    let mut part = [0; 2048];
    loop {
        let Some(left) = REQUEST_TIME.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(Err("408 Request Timeout"));
        };
        socket.set_read_timeout(Some(left))?;
        let n = match socket.read(&mut part) {
            Ok(0) if head.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(Err("400 Bad Request")),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        head.extend_from_slice(&part[..n]);
        if let Some(found) = parse(head) {
            return Ok(found);
        }
    }
}

/// Parses the bytes of a request so far; `None` if there must be more.
pub fn parse(head: &[u8]) -> Option<std::result::Result<Request, &'static str>> {
    const TOO_LONG: &str = "431 Request Header Fields Too Large";
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&head[..head.len().min(REQUEST_MAX)]) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < REQUEST_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Some(Err(TOO_LONG)),
        Err(httparse::Error::Version) => return Some(Err("505 HTTP Version Not Supported")),
        Err(_) => return Some(Err("400 Bad Request")),
    }
    let accept = request.headers.iter().find(|h| h.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map(|h| String::from_utf8_lossy(h.value).into_owned());
    let path = request.path.unwrap_or_default();
    // Also the form that proxies are sent (RFC 9112, section 3.2.2).
    let path = match path.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => path,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
    Some(Ok(Request { method: request.method.unwrap_or_default().to_owned(), path, accept }))
}

/// Writes all bytes, or fails after `limit`, however slowly its peer reads.
fn write_within(mut socket: &TcpStream, mut bytes: &[u8], limit: Duration) -> Result<()> {
    let begun = Instant::now();
    while !bytes.is_empty() {
        let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        socket.set_write_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        match socket.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

/// Reads what a client still sends: to close before that would reset the connection, and the client
/// would lose its answer.
fn read_rest(mut socket: &TcpStream) {
    let begun = Instant::now();
    let mut part = [0; 4096];
    let mut len = 0;
    while len < REST_MAX {
        let Some(left) = REST_TIME.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else { return };
        match socket.set_read_timeout(Some(left)).and_then(|()| socket.read(&mut part)) {
            Ok(n @ 1..) => len += n,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pages = |request: &Request| match request.path.as_str() {
            "/" => Some(Page::text(OK, "good\n")),
            "/readyz" => Some(Page::text(UNAVAILABLE, "not yet\n")),
            "/long" => Some(Page::text(OK, "x".repeat(8 << 20))),
            _ => None,
        };
        serve(listener, pages).unwrap();
        address
    }

    fn exchange(address: std::net::SocketAddr, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.write_all(request).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn get_and_head_are_answered() {
        let address = server();
        let answer = exchange(address, b"GET /?full=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\ngood\n"), "{answer}");
        assert!(answer.contains("Content-Length: 5\r\n") && answer.contains("Connection: close\r\n"), "{answer}");
        let head = exchange(address, b"HEAD / HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let not_yet = exchange(address, b"GET /readyz HTTP/1.1\r\n\r\n");
        assert!(not_yet.starts_with("HTTP/1.1 503 ") && not_yet.ends_with("not yet\n"), "{not_yet}");
        assert!(exchange(address, b"GET http://x/ HTTP/1.1\r\n\r\n").ends_with("good\n"));
        let long = exchange(address, b"GET /long HTTP/1.1\r\n\r\n");
        assert_eq!(long.split_once("\r\n\r\n").unwrap().1.len(), 8 << 20, "more than a socket takes at a time");
    }

    #[test]
    fn other_requests_are_refused() {
        let address = server();
        for (request, status) in [
            (&b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"[..], "405"),
            (b"GET /other HTTP/1.1\r\n\r\n", "404"),
            (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
            (b"GET / HTTP/3.0\r\n\r\n", "505"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
            (b"GET /\0 HTTP/1.1\r\n\r\n", "400"),
        ] {
            let answer = exchange(address, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{}: {answer}", request.escape_ascii());
        }
        let long = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; REQUEST_MAX]].concat();
        assert!(exchange(address, &long).starts_with("HTTP/1.1 431 "));
        let many = [b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(HEADERS_MAX + 1), b"\r\n".to_vec()].concat();
        assert!(exchange(address, &many).starts_with("HTTP/1.1 431 "));
    }

    /// A hundred clients that say nothing, and some that send a byte: the next one is answered at once.
    #[test]
    fn silent_clients_keep_nobody_out() {
        let address = server();
        let silent: Vec<_> = (0..100)
            .map(|i| {
                let mut socket = TcpStream::connect(address).unwrap();
                if i % 2 == 0 {
                    let _ = socket.write_all(b"G");
                }
                socket
            })
            .collect();
        // Those that were turned away for want of a thread may take a moment to go.
        let answered = (0..50).any(|_| {
            let mut socket = TcpStream::connect(address).unwrap();
            let _ = socket.set_read_timeout(Some(Duration::from_secs(3)));
            let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let mut answer = String::new();
            let got = socket.read_to_string(&mut answer);
            std::thread::sleep(Duration::from_millis(20));
            got.is_ok() && answer.starts_with("HTTP/1.1 200")
        });
        assert!(answered);
        drop(silent);
    }

    #[test]
    fn a_request_in_pieces_is_one() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
        assert!((0..request.len()).all(|len| parse(&request[..len]).is_none()));
        let found = parse(request).unwrap().unwrap();
        assert_eq!((found.path.as_str(), found.accept.as_deref()), ("/metrics", Some("*/*")));
    }
}
