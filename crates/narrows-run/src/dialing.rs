//! The client's request to a gateway (format.md section 11.7): asks for a port, and the gateway's
//! answer becomes the result of the program's `connect`. If no gateway takes the connection, it is
//! made to the server itself.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use narrows::upgrade::gateway::{GatewayClient, NO_PLACE};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, connect_unspec, recv, send, sockopt};

use super::wire::{RawAddress, host_and_port};

/// Time limit for the answer. A gateway tries for ten seconds, twice.
const ANSWER_MAX_NS: u64 = 30_000_000_000;
/// The highest errno of Linux.
const ERRNO_MAX: u16 = 133;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With frame bytes that came after the answer.
    Connected(Vec<u8>),
    /// The error that the gateway got from the server.
    Failed(Errno),
    /// No gateway takes the connection.
    NoGateway,
}

pub(crate) struct Dialing {
    request: Vec<u8>,
    sent: usize,
    client: GatewayClient,
    until_ns: u64,
}

impl Dialing {
    pub(crate) fn new(port: u16, now_ns: u64) -> Self {
        let (request, client) = (GatewayClient::request(port), GatewayClient::default());
        Self { request, sent: 0, client, until_ns: now_ns + ANSWER_MAX_NS }
    }

    /// Sends the request and reads the answer as far as possible. `None`: no answer yet.
    pub(crate) fn advance(&mut self, network: &OwnedFd, now_ns: u64) -> Option<Answer> {
        match self.try_advance(network) {
            Ok(None) if now_ns < self.until_ns => None,
            Ok(Some(answer)) => Some(answer),
            // The gateway says nothing, or has ended the connection.
            Ok(None) | Err(_) => Some(Answer::NoGateway),
        }
    }

    /// The time by which an answer is required.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.until_ns
    }

    fn try_advance(&mut self, network: &OwnedFd) -> Result<Option<Answer>, Errno> {
        while self.sent < self.request.len() {
            match send(network, &self.request[self.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            let n = match recv(network, &mut buffer[..], RecvFlags::DONTWAIT) {
                // No gateway, or an older version that has no place.
                Ok((0, _)) => return Ok(Some(Answer::NoGateway)),
                Ok((n, _)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            };
            return Ok(Some(match self.client.receive(&buffer[..n]) {
                Ok(None) => continue,
                Ok(Some(0)) => Answer::Connected(self.client.rest().to_vec()),
                Ok(Some(NO_PLACE)) | Err(_) => Answer::NoGateway,
                Ok(Some(errno)) if errno <= ERRNO_MAX => Answer::Failed(Errno::from_raw_os_error(errno.into())),
                Ok(Some(_)) => Answer::Failed(Errno::CONNREFUSED),
            }));
        }
    }
}

/// Whether the server itself may be tried after this error: its host is up.
pub(crate) fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::CONNREFUSED | Errno::CONNRESET)
}

/// Connects the socket to the server itself, from its current local address.
pub(crate) fn connect_past(network: &OwnedFd, server: &RawAddress) -> Result<(), Errno> {
    connect_unspec(network)?;
    // Clears the error of the old connection, which would count as an error of the new one.
    let _ = sockopt::socket_error(network);
    let (host, port) = host_and_port(server).ok_or(Errno::AFNOSUPPORT)?;
    let address = match host {
        // The scope id is the last field of a sockaddr_in6.
        IpAddr::V6(host) => {
            let scope = server.last_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
            SocketAddrV6::new(host, port, 0, scope).into()
        }
        host @ IpAddr::V4(_) => SocketAddr::new(host, port),
    };
    match connect(network, &address) {
        Err(Errno::INPROGRESS) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use narrows::upgrade::gateway;

    use super::*;

    /// The client's result for a gateway that answers like this.
    fn dial(answer: impl FnOnce(&mut TcpStream)) -> Answer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut gateway, _) = listener.accept().unwrap();
        let client = OwnedFd::from(client);
        let mut dialing = Dialing::new(5432, 0);
        assert!(dialing.advance(&client, 0).is_none());
        answer(&mut gateway);
        gateway.shutdown(std::net::Shutdown::Write).unwrap();
        for _ in 0..10_000 {
            if let Some(result) = dialing.advance(&client, 0) {
                return result;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no answer")
    }

    fn answer(gateway: &mut TcpStream, errno: u16) {
        let mut request = [0; 100];
        let n = gateway.read(&mut request).unwrap();
        assert_eq!(request[..n], GatewayClient::request(5432));
        gateway.write_all(&gateway::answer(errno)).unwrap();
    }

    #[test]
    fn the_answer_of_a_gateway_is_that_of_connect() {
        let connected = dial(|gateway| {
            answer(gateway, 0);
            gateway.write_all(b"frames").unwrap();
        });
        assert!(matches!(connected, Answer::Connected(rest) if b"frames".starts_with(&rest)));
        assert_eq!(dial(|gateway| answer(gateway, 113)), Answer::Failed(Errno::HOSTUNREACH));
        assert_eq!(dial(|gateway| answer(gateway, 4000)), Answer::Failed(Errno::CONNREFUSED));
        // Not a gateway; a gateway without a place that closes silently; and one that says so.
        assert_eq!(dial(|gateway| gateway.write_all(b"HTTP/1.1 400").unwrap()), Answer::NoGateway);
        assert_eq!(dial(|_| {}), Answer::NoGateway);
        assert_eq!(dial(|gateway| answer(gateway, NO_PLACE)), Answer::NoGateway);
    }

    #[test]
    fn a_gateway_that_says_nothing_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut dialing = Dialing::new(80, 5);
        assert_eq!(dialing.advance(&client, dialing.deadline_ns() - 1), None);
        assert_eq!(dialing.advance(&client, dialing.deadline_ns()), Some(Answer::NoGateway));
    }
}
