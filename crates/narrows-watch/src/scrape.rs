//! The page of metrics for Prometheus.
//!
//! Whoever reaches its address may read it, so it says no addresses and no names of files, only numbers.

use std::io::Result;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Describe;
use super::http::{self, OK, Page};
use super::metric::Families;
use super::text::{self, Format};

/// Age of what a client is told at most. The process is not asked more often, whatever clients do.
const FRESH: Duration = Duration::from_millis(200);

const INDEX: &str = "narrows: see /metrics\n";

/// Starts to answer on a listener.
///
/// # Errors
/// If the system gives no thread.
pub fn start(listener: TcpListener, describe: Describe) -> Result<()> {
    // What clients were told last.
    let last = Mutex::new(None::<(Instant, Families)>);
    http::serve(listener, move |request| match request.path.as_str() {
        "/metrics" => {
            let format = Format::of_accept(request.accept.as_deref());
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = last.take().filter(|(at, _)| at.elapsed() < FRESH);
            let (_, families) = last.insert(fresh.unwrap_or_else(|| (Instant::now(), text::families(&describe()))));
            Some(Page { status: OK, content_type: format.content_type(), body: text::page(families, format) })
        }
        "/" => Some(Page::text(OK, INDEX)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;

    use super::*;
    use crate::process;

    #[test]
    fn a_page_has_the_form_that_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        start(listener, Arc::new(|| process::status("tunnel", "p", Duration::ZERO))).unwrap();
        let exchange = |request: &str| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            socket.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            answer
        };
        let answer = exchange("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())) && body.contains("narrows_build_info{"));
        let open = exchange("GET /metrics?x=1 HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n");
        assert!(open.contains("openmetrics") && open.ends_with("# EOF\n"));
        assert!(exchange("GET / HTTP/1.1\r\n\r\n").ends_with(INDEX));
        assert!(exchange("GET /metrics/.. HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    }
}
