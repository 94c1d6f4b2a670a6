//! Copies without a remote shell: `narrows://host:port/path`, over TLS with authentication of both
//! ends.

pub mod listener;

use std::io::{self, Read};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use narrows::transport::{Link, tls};

use super::error::{Blame, Error, Result};
use super::hello::{self, Request};
pub use super::place::PORT;
use super::place::Place;
use narrows_trust::keys::{self, Token};
use narrows_trust::proof;

/// Application protocol of copies (ALPN, RFC 7301), so that no other service is taken for this one.
const PROTOCOL: &[u8] = b"narrows-cp/1";
/// Time limit for connection, handshake and request: ten round trips over a satellite take less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Type of a TLS alert record and the first byte of its version (RFC 8446, section 5.1).
const TLS_ALERT: [u8; 2] = [21, 3];

/// How the two ends authenticate each other.
#[derive(Debug, Clone)]
pub enum Trust {
    /// By the keys in a token.
    Token(Token),
    /// Not at all; only within this host.
    Insecure,
}

impl Trust {
    /// How the ends of a copy with `place` prove themselves: by the token of the file, or of the environment;
    /// `None` for a place that no server has.
    ///
    /// # Errors
    /// If there is no token, or it is none.
    pub fn of(place: &Place, token_file: Option<&Path>, insecure: bool) -> Result<Option<Self>> {
        if !matches!(place, Place::Direct { .. }) {
            return Ok(None);
        }
        if insecure {
            return Ok(Some(Self::Insecure));
        }
        let token = match (token_file, std::env::var(keys::VARIABLE)) {
            (Some(path), _) => Token::load(path)?,
            (None, Ok(text)) => Token::parse(&text).map_err(|e| e.context(keys::VARIABLE))?,
            (None, Err(_)) => {
                let text = "a narrows:// address needs the token that its server printed: give --token-file FILE or \
                            set NARROWS_TOKEN";
                return Err(Error::Trust(text.into()));
            }
        };
        Ok(Some(Self::Token(token)))
    }
}

/// Connects to a server and sends the request.
pub fn connect(host: &str, port: u16, trust: &Trust, request: &Request) -> Result<Link> {
    let deadline = Instant::now() + PATIENCE;
    let mut words = Vec::new();
    hello::write(request, &mut words).blame(Error::Bug)?;
    let socket = reach(host, port, trust, deadline);
    let socket = socket.blame_for(Error::Unreachable, format_args!("cannot reach {host}:{port}"))?;
    match trust {
        Trust::Insecure => {
            io::Write::write_all(&mut &socket, &words).blame(Error::Link)?;
            Link::tcp(socket).blame(Error::Link)
        }
        Trust::Token(token) => {
            let connection = proof::client(token, PROTOCOL)?;
            let session = match tls::handshake(connection.into(), socket, deadline) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    let text = format!("{host}:{port} is not the server that the token belongs to");
                    return Err(Error::Trust(text.into()));
                }
                Err(e) if is_plain(&e) => {
                    let text = format!(
                        "the server at {host}:{port} is not encrypted; a server that was started with --insecure is \
                         reached with --insecure, and without a token"
                    );
                    return Err(Error::Trust(text.into()));
                }
                session => session,
            };
            let mut session =
                session.blame_for(Error::Link, format_args!("no narrows server answers at {host}:{port}"))?;
            session.send(&words, deadline).blame(Error::Link)?;
            Link::tls(session).blame(Error::Link)
        }
    }
}

/// Whether the error means that the peer does not speak TLS.
fn is_plain(e: &io::Error) -> bool {
    let error = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

/// Whether the bytes begin like the answer of a TLS server to a client that does not speak TLS.
pub(super) fn is_tls(bytes: &[u8]) -> bool {
    bytes.starts_with(&TLS_ALERT)
}

fn reach(host: &str, port: u16, trust: &Trust, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = None;
    let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    for (i, address) in addresses.iter().enumerate() {
        if matches!(trust, Trust::Insecure) && !is_this_host(address.ip()) {
            let text = format!("without a token, cp connects only to this host, and {} is another host", address.ip());
            return Err(io::Error::other(text));
        }
        // An address that never answers must leave time for the others.
        let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - i) as u32;
        match TcpStream::connect_timeout(address, left.max(Duration::from_millis(1))) {
            Ok(socket) => {
                watch(&socket)?;
                return Ok(socket);
            }
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::other("it has no address")))
}

/// Sets keep-alive: a peer that vanished is noticed after two minutes; an idle one may stay idle
/// forever.
fn watch(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    // Also with data in flight, for which the system would wait a quarter of an hour.
    sockopt::set_tcp_user_timeout(socket, 120_000)?;
    Ok(())
}

/// Whether data to this address stays within the host.
fn is_this_host(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Reads from a socket up to a deadline, however slowly bytes arrive.
struct UntilDeadline<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let read = self.socket.read(buf);
        self.socket.set_read_timeout(None)?;
        read
    }
}
