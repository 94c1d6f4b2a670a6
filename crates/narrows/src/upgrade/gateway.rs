//! Connections through a gateway, for servers that cannot be started under Narrows (format.md
//! section 11.7). The client's supervisor connects to the service port instead of the server; once
//! the gateway has reached the server, frames follow in both directions.

use super::message::{GREETING, Hello, Message, Parser, Purpose, VERSION};
use crate::error::{Error, Result};

/// Error number of a gateway that has no room for another connection: the client should connect to
/// the server itself. No system uses this number; a client that does not know it takes it for a
/// refusal.
pub const NO_PLACE: u16 = u16::MAX;

/// Encodes a gateway's answer to the request that [`super::witness::Output::Gateway`] reported: 0,
/// an error number of Linux, or [`NO_PLACE`]. After 0, frames follow in both directions.
pub fn answer(errno: u16) -> Vec<u8> {
    let mut bytes = GREETING.to_vec();
    Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut bytes);
    Message::Dialed { errno }.write(&mut bytes);
    bytes
}

/// The client's end of a gateway connection.
#[derive(Debug, Default)]
pub struct GatewayClient {
    parser: Parser,
}

impl GatewayClient {
    /// The first bytes to send. Nothing may follow them before the answer.
    pub fn request(port: u16) -> Vec<u8> {
        let mut bytes = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut bytes);
        Message::Dial { port }.write(&mut bytes);
        bytes
    }

    /// Takes received bytes. Returns the error number, 0 for none, once the answer is complete:
    /// only then may the program learn the outcome of its connect. Frames that arrived after the
    /// answer are in [`GatewayClient::rest`].
    ///
    /// # Errors
    /// The peer is not a gateway.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<u16>> {
        self.parser.push(bytes);
        loop {
            match self.parser.poll()? {
                None => return Ok(None),
                Some(Message::Hello(_)) => {}
                Some(Message::Dialed { errno }) => return Ok(Some(errno)),
                Some(_) => return Err(Error::corrupt("the gateway sent an unexpected message")),
            }
        }
    }

    /// The bytes after the answer.
    pub fn rest(&self) -> &[u8] {
        self.parser.rest()
    }
}

#[cfg(test)]
mod tests {
    use super::super::witness::{Output, Witness, WitnessLimits};
    use super::*;

    /// Passes a client's request to the witness in pieces.
    fn ask(port: u16, cut: usize) -> Vec<Output> {
        let mut witness = Witness::new(WitnessLimits::default(), [1; 32]);
        witness.opened(5, "10.0.0.1".parse().unwrap(), 0);
        let mut outputs = Vec::new();
        for piece in GatewayClient::request(port).chunks(cut) {
            witness.receive(5, piece, 0);
            outputs.extend(std::iter::from_fn(|| witness.poll()));
        }
        assert_eq!(witness.next_wakeup_ns(), None);
        outputs
    }

    #[test]
    fn the_client_hears_what_became_of_the_connection_and_frames_follow() {
        for cut in 1..30 {
            assert_eq!(ask(5432, cut), [Output::Gateway { channel: 5, port: 5432 }]);
            for errno in [0, 111, 113, NO_PLACE] {
                let mut client = GatewayClient::default();
                let wire = [&answer(errno)[..], b"frames"].concat();
                let (mut heard, mut rest) = (None, Vec::new());
                for piece in wire.chunks(cut) {
                    match heard {
                        None => {
                            heard = client.receive(piece).unwrap();
                            rest.extend(heard.map_or(&[][..], |_| client.rest()));
                        }
                        Some(_) => rest.extend(piece),
                    }
                }
                assert_eq!((heard, &rest[..]), (Some(errno), &b"frames"[..]));
            }
        }
        assert!(GatewayClient::default().receive(b"HTTP/1.1 400").is_err());
    }
}
