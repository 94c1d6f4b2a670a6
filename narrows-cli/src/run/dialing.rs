//! The client's end of a connection through a gateway, before it is one (format.md section 11.7): the gateway is asked for
//! a port, and what it answers is what became of the program's `connect`.

use std::os::fd::OwnedFd;

use narrows::upgrade::gateway::GatewayClient;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// A gateway tries for ten seconds, twice.
const ANSWER_MAX_NS: u64 = 30_000_000_000;
/// Linux has none above.
const ERRNO_MAX: u16 = 133;

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

    /// Does what can be done on a connection to the gateway. `None`: there is no answer yet. Inside are frames that came
    /// with it.
    pub(crate) fn advance(&mut self, network: &OwnedFd, now_ns: u64) -> Option<Result<Vec<u8>, Errno>> {
        let answer = self.try_advance(network).transpose();
        if answer.is_none() && now_ns >= self.until_ns {
            return Some(Err(Errno::TIMEDOUT));
        }
        answer
    }

    /// When there has to be an answer.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.until_ns
    }

    fn try_advance(&mut self, network: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
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
                // No gateway, or not for us.
                Ok((0, _)) => return Err(Errno::CONNREFUSED),
                Ok((n, _)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            };
            match self.client.receive(&buffer[..n]) {
                Ok(None) => {}
                Ok(Some(0)) => return Ok(Some(self.client.rest().to_vec())),
                Ok(Some(errno)) if errno <= ERRNO_MAX => return Err(Errno::from_raw_os_error(errno.into())),
                Ok(Some(_)) | Err(_) => return Err(Errno::CONNREFUSED),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use narrows::upgrade::gateway::{Gateway, Todo};

    use super::*;

    /// What the client's end makes of a gateway that answers so.
    fn dial(answer: impl FnOnce(&mut TcpStream)) -> Result<Vec<u8>, Errno> {
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
        // Behind the greeting and the hello, which the witness takes.
        let mut machine = Gateway::new(&request[8 + 3 + 4..n]);
        assert_eq!(machine.receive(&[], |_| true).unwrap(), Todo::Dial(5432));
        gateway.write_all(&machine.dialed(errno)).unwrap();
    }

    #[test]
    fn the_answer_of_a_gateway_is_that_of_connect() {
        let connected = dial(|gateway| {
            answer(gateway, 0);
            gateway.write_all(b"frames").unwrap();
        });
        assert_eq!(connected.map(|rest| b"frames".starts_with(&rest)), Ok(true));
        assert_eq!(dial(|gateway| answer(gateway, 113)), Err(Errno::HOSTUNREACH));
        assert_eq!(dial(|gateway| gateway.write_all(b"HTTP/1.1 400").unwrap()), Err(Errno::CONNREFUSED));
        assert_eq!(dial(|_| {}), Err(Errno::CONNREFUSED));
        assert_eq!(dial(|gateway| answer(gateway, u16::MAX)), Err(Errno::CONNREFUSED));
    }

    #[test]
    fn a_gateway_that_says_nothing_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut dialing = Dialing::new(80, 5);
        assert_eq!(dialing.advance(&client, dialing.deadline_ns() - 1), None);
        assert_eq!(dialing.advance(&client, dialing.deadline_ns()), Some(Err(Errno::TIMEDOUT)));
    }
}
