//! A client that speaks the protocol frame by frame, and need not keep to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use narrows::block::Block;
use narrows_trust::keys::Keys;
use narrows_trust::proof;
use narrows_tunnel::frame::{self, Frame, Kind, Parser};
use narrows_tunnel::hello::Hello;
use narrows_tunnel::reason::Reason;
use narrows_tunnel::settings::PROTOCOL;
use narrows_tunnel::target::{Endpoint, Target};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::PATIENCE;

/// A socket from another address of this host's loopback, so that it counts as another host.
pub(crate) fn from(host: u32, to: &SocketAddr) -> Option<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let own = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + host);
    bind(&socket, &SocketAddr::new(own.into(), 0)).unwrap();
    connect(&socket, to).ok()?;
    Some(TcpStream::from(socket))
}

pub(crate) struct Raw {
    stream: rustls::StreamOwned<rustls::ClientConnection, TcpStream>,
    parser: Parser,
    pub(crate) hello: Hello,
}

impl Raw {
    /// One whose acceptor has answered its hello.
    pub(crate) fn new(keys: &Keys, address: &str, host: u32) -> Self {
        let mut raw = Self::silent(keys, address, host);
        raw.greet();
        assert_eq!(raw.until(&[Kind::Hello]).unwrap().kind, Kind::Hello);
        raw
    }

    /// The next session of a dialer.
    pub(crate) fn next(keys: &Keys, address: &str, host: u32, before: Hello) -> Self {
        let mut raw = Self::silent(keys, address, host);
        raw.hello = Hello { session: before.session + 1, ..before };
        raw.greet();
        assert_eq!(raw.until(&[Kind::Hello]).unwrap().kind, Kind::Hello);
        raw
    }

    /// One that has proved itself and said nothing.
    pub(crate) fn silent(keys: &Keys, address: &str, host: u32) -> Self {
        let config = proof::client_config(&keys.token().unwrap(), PROTOCOL).unwrap();
        Self::proved(config, proof::NAME, address, host)
    }

    /// The same with this proof, of an acceptor that has this name.
    pub(crate) fn proved(config: Arc<rustls::ClientConfig>, name: &'static str, address: &str, host: u32) -> Self {
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        let socket = from(host, &address.parse().unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let connection = rustls::ClientConnection::new(config, name.try_into().unwrap()).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        let dialer = [NUMBER.fetch_add(1, Ordering::Relaxed); 16];
        Self {
            stream,
            parser: Parser::new(0),
            hello: Hello { carrier: 0, attempt: 1, dialer, session: 1, instance: 0 },
        }
    }

    pub(crate) fn greet(&mut self) {
        let words = self.hello.greet();
        self.send(&words);
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    pub(crate) fn ask(&mut self, kind: Kind, number: u64, body: &[u8]) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind, number, body);
        self.send(&bytes);
    }

    /// Asks for a listener: the status of the answer, and its text.
    pub(crate) fn listen(&mut self, number: u64, bind: &Endpoint) -> (u8, String) {
        self.ask(Kind::Listen, number, &bind.to_bytes());
        let answer = self.until(&[Kind::Listening]).unwrap();
        assert_eq!(answer.flow, number);
        (answer.body[0], Reason::parse(&answer.body).unwrap().1)
    }

    /// The next frame of one of these kinds; `None` at the end.
    pub(crate) fn until(&mut self, kinds: &[Kind]) -> Option<Frame> {
        loop {
            while let Some(frame) = self.parser.next_frame().unwrap() {
                if kinds.contains(&frame.kind) {
                    return Some(frame);
                }
            }
            let mut buffer = vec![0; 16 << 10];
            let n = self.stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
            buffer.truncate(n);
            self.parser.push(Block::from_vec(buffer));
        }
    }
}

/// The frames that open flows with these numbers to a target.
pub(crate) fn opens(numbers: impl Iterator<Item = u64>, target: &Target) -> Vec<u8> {
    let (mut bytes, body) = (Vec::new(), target.to_bytes());
    numbers.for_each(|number| frame::put(&mut bytes, Kind::Open, number, &body));
    bytes
}
