//! Connections through a gateway, for servers that cannot be started under Narrows (format.md section 11.7): the client's
//! supervisor connects to the service port instead, and frames follow in both directions when the server was reached.

use super::message::{GREETING, Hello, Message, Parser, Purpose, VERSION};
use crate::error::{Error, Result};

/// What a gateway answers that can take no more: the client is to connect to the server itself. No system numbers an error
/// so; to a client that does not know it, it is a refusal.
pub const NO_PLACE: u16 = u16::MAX;

/// A gateway's answer to the request that [`super::witness::Output::Gateway`] told of: 0, an error number as Linux has it,
/// or [`NO_PLACE`]. After 0 frames follow in both directions.
pub fn answer(errno: u16) -> Vec<u8> {
    let mut bytes = GREETING.to_vec();
    Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut bytes);
    Message::Dialed { errno }.write(&mut bytes);
    bytes
}

/// The client's end.
#[derive(Debug, Default)]
pub struct GatewayClient {
    parser: Parser,
}

impl GatewayClient {
    /// What to send first. Nothing may follow it before the answer.
    pub fn request(port: u16) -> Vec<u8> {
        let mut bytes = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut bytes);
        Message::Dial { port }.write(&mut bytes);
        bytes
    }

    /// Takes what came. The error number, 0 for none, when it is there: only now does the program hear how its connect
    /// went. Frames that came behind it are in [`GatewayClient::rest`].
    ///
    /// # Errors
    /// No gateway is there.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<u16>> {
        self.parser.push(bytes);
        loop {
            match self.parser.poll()? {
                None => return Ok(None),
                Some(Message::Hello(_)) => {}
                Some(Message::Dialed { errno }) => return Ok(Some(errno)),
                Some(_) => return Err(Error::corrupt("a gateway answers something else")),
            }
        }
    }

    pub fn rest(&self) -> &[u8] {
        self.parser.rest()
    }
}

#[cfg(test)]
mod tests {
    use super::super::witness::{Output, Witness, WitnessLimits};
    use super::*;

    /// A client's request at the witness, in pieces.
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
