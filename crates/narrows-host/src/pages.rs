//! Short pages over HTTP/1.1 for probes and scrapers: GET and HEAD, one request a connection, one
//! thread for all.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Connections at a time. Probes and scrapers come one after another; at the limit the oldest, which
/// nobody cares for any more, makes room.
const CONNECTIONS_MAX: usize = 32;
/// Longest request. A browser sends 1 KiB, a probe 150 bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Time for a whole exchange, as long as probes usually wait at most.
const EXCHANGE: Duration = Duration::from_secs(10);
/// Pause after an accept that failed, since no descriptor may be free.
const BREATH: Duration = Duration::from_millis(100);

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// 200, or another status of HTTP.
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

impl Page {
    /// A line of text.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Serves pages on a thread of its own for as long as the process lives. `page` is asked for each path
/// without its query; `None` is a page that does not exist.
///
/// # Errors
/// If the address is taken or not of this host, or there is no thread.
pub fn serve(at: SocketAddr, page: impl Fn(&str) -> Option<Page> + Send + 'static) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let run = move || Server { listener, page, open: Vec::new() }.run();
    std::thread::Builder::new().name("narrows-pages".into()).spawn(run)?;
    Ok(bound)
}

struct Server<P> {
    listener: TcpListener,
    page: P,
    /// Oldest first.
    open: Vec<Connection>,
}

struct Connection {
    socket: TcpStream,
    until: Instant,
    request: Vec<u8>,
    /// The answer, once the request is known, and how much of it was sent.
    answer: Vec<u8>,
    sent: usize,
}

/// What a connection waits for.
#[derive(PartialEq, Eq)]
enum Wait {
    Input,
    Output,
    Over,
}

impl<P: Fn(&str) -> Option<Page>> Server<P> {
    fn run(mut self) {
        loop {
            self.wait();
            let now = Instant::now();
            let page = &self.page;
            self.open.retain_mut(|connection| connection.until > now && connection.advance(page) != Wait::Over);
            self.accept(now);
        }
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.open.iter().map(|c| {
            let flags = if c.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&c.socket, flags)
        }));
        let until = self.open.iter().map(|c| c.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An error is a signal, or no memory: connections are looked at in any case.
        let _ = poll(&mut fds, left.as_ref());
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                    if self.open.len() >= CONNECTIONS_MAX {
                        self.open.remove(0);
                    }
                    let mut connection =
                        Connection { socket, until: now + EXCHANGE, request: Vec::new(), answer: Vec::new(), sent: 0 };
                    if connection.advance(&self.page) != Wait::Over {
                        self.open.push(connection);
                    }
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return std::thread::sleep(BREATH),
            }
        }
    }
}

impl Connection {
    fn advance(&mut self, page: &impl Fn(&str) -> Option<Page>) -> Wait {
        match self.exchange(page) {
            Ok(wait) => wait,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if self.answer.is_empty() {
                    Wait::Input
                } else {
                    Wait::Output
                }
            }
            Err(_) => Wait::Over,
        }
    }

    fn exchange(&mut self, page: &impl Fn(&str) -> Option<Page>) -> io::Result<Wait> {
        let mut buffer = [0; 1024];
        while self.answer.is_empty() {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(Wait::Over),
                Ok(n) => self.request.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            self.answer = answer(&self.request, page);
        }
        while self.sent < self.answer.len() {
            match self.socket.write(&self.answer[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        // What the client still sends is read, so that closing does not take the answer back.
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = self.socket.read(&mut buffer);
        Ok(Wait::Over)
    }
}

/// The answer to a request; empty while the request is not complete.
pub fn answer(request: &[u8], page: &impl Fn(&str) -> Option<Page>) -> Vec<u8> {
    let head = ["\r\n\r\n", "\n\n"].iter().any(|end| request.windows(end.len()).any(|w| w == end.as_bytes()));
    if !head {
        let too_long = request.len() > REQUEST_MAX;
        return if too_long { written(&Page::text(431, "the request is too long\n"), true) } else { Vec::new() };
    }
    let line = request.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method @ ("GET" | "HEAD")), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) => {
            let path = target.split(['?', '#']).next().unwrap_or_default();
            let found = page(path).unwrap_or_else(|| Page::text(404, "there is no such page\n"));
            written(&found, method == "GET")
        }
        (Some(_), Some(_), Some("HTTP/1.0" | "HTTP/1.1"), None) => {
            written(&Page::text(405, "only GET and HEAD are answered\n"), true)
        }
        _ => written(&Page::text(400, "this is no request of HTTP/1.1\n"), true),
    }
}

fn written(page: &Page, with_body: bool) -> Vec<u8> {
    let Page { status, content_type, body } = page;
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Other",
    };
    let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), if with_body { body.as_bytes() } else { b"" }].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> SocketAddr {
        let page = |path: &str| match path {
            "/healthz" => Some(Page::text(200, "ok\n")),
            "/readyz" => Some(Page::text(503, "not yet\n")),
            "/long" => Some(Page::text(200, "x".repeat(8 << 20))),
            _ => None,
        };
        serve("127.0.0.1:0".parse().unwrap(), page).unwrap()
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_served_with_their_status() {
        let at = start();
        let good = ask(at, "GET /healthz?full HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nok\n"), "{good}");
        assert!(good.contains("Content-Length: 3\r\n") && good.contains("Connection: close\r\n"), "{good}");
        let bad = ask(at, "GET /readyz HTTP/1.0\r\n\r\n");
        assert!(bad.starts_with("HTTP/1.1 503 ") && bad.ends_with("not yet\n"), "{bad}");
        let head = ask(at, "HEAD /healthz HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 3") && head.ends_with("\r\n\r\n"), "{head}");
        let long = ask(at, "GET /long HTTP/1.1\r\n\r\n");
        assert_eq!(long.split_once("\r\n\r\n").unwrap().1.len(), 8 << 20, "more than a socket takes at a time");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let at = start();
        for (request, status) in [
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /healthz HTTP/1.1\r\n\r\n", "405"),
            ("GET /healthz\r\n\r\n", "400"),
            ("GET  /healthz HTTP/1.1\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("\u{0}\u{1}\n\n", "400"),
        ] {
            let answer = ask(at, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
        // Without an end it is cut off, with an answer.
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_MAX));
        assert!(ask(at, &long).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn requests_in_pieces_are_waited_for_and_silent_clients_keep_nobody_out() {
        let at = start();
        let _silent: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut slow = TcpStream::connect(at).unwrap();
        for piece in ["GET /hea", "lthz HTTP/1.1\r\n", "\r\n"] {
            slow.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("ok\n"), "{answer}");
        assert!(ask(at, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
    }
}
