//! Connections through a gateway, for servers that cannot be started under Narrows (format.md section 11.7): the client's
//! supervisor connects to the service port instead, and frames follow in both directions when the server was reached.

use super::message::{GREETING, Hello, Message, Parser, Purpose, VERSION};
use crate::error::{Error, Result};

/// As Linux numbers it; the wire has these numbers.
const ECONNREFUSED: u16 = 111;

/// The server's end, from what came behind the client's greeting on.
#[derive(Debug)]
pub struct Gateway {
    parser: Parser,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    Dialing,
    Done,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Todo {
    /// Wait for more.
    Nothing,
    /// Connect to this port of this host, then say [`Gateway::dialed`].
    Dial(u16),
    /// Send this and close.
    Refuse(Vec<u8>),
}

impl Gateway {
    /// `rest`: what [`super::witness::Output::Gateway`] has.
    pub fn new(rest: &[u8]) -> Self {
        let mut parser = Parser::greeted();
        parser.push(rest);
        Self { parser, state: State::Asking }
    }

    /// Takes what came; call it once with nothing for what was there already. `allowed`: the ports that the operator
    /// lists. Others look as if nobody listened.
    ///
    /// # Errors
    /// What came makes no sense: close.
    pub fn receive(&mut self, bytes: &[u8], allowed: impl Fn(u16) -> bool) -> Result<Todo> {
        if self.state != State::Asking {
            return Err(Error::corrupt("a client of the gateway does not wait for its answer"));
        }
        self.parser.push(bytes);
        match self.parser.poll()? {
            None => Ok(Todo::Nothing),
            Some(Message::Dial { port }) if !self.parser.rest().is_empty() => {
                Err(Error::corrupt(format!("a client of the gateway does not wait for port {port}")))
            }
            Some(Message::Dial { port }) if allowed(port) => {
                self.state = State::Dialing;
                Ok(Todo::Dial(port))
            }
            Some(Message::Dial { .. }) => {
                self.state = State::Done;
                Ok(Todo::Refuse(answer(ECONNREFUSED)))
            }
            Some(_) => Err(Error::corrupt("a gateway is asked for something else")),
        }
    }

    /// What became of it, 0 or an error number: what to send. After 0 frames follow in both directions.
    pub fn dialed(&mut self, errno: u16) -> Vec<u8> {
        self.state = State::Done;
        answer(errno)
    }
}

fn answer(errno: u16) -> Vec<u8> {
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

    /// A client's request through the witness that hears it first, in pieces.
    fn ask(port: u16, cut: usize) -> (Gateway, Vec<Todo>) {
        let mut witness = Witness::new(WitnessLimits::default(), [1; 32]);
        witness.opened(5, "10.0.0.1".parse().unwrap(), 0);
        let mut gateway: Option<Gateway> = None;
        let mut todos = Vec::new();
        let allowed = |port| port == 5432;
        for piece in GatewayClient::request(port).chunks(cut) {
            if let Some(gateway) = &mut gateway {
                todos.push(gateway.receive(piece, allowed).unwrap());
                continue;
            }
            witness.receive(5, piece, 0);
            if let Some(Output::Gateway(5, rest)) = witness.poll() {
                let new = gateway.insert(Gateway::new(&rest));
                todos.push(new.receive(&[], allowed).unwrap());
            }
        }
        todos.retain(|t| *t != Todo::Nothing);
        (gateway.unwrap(), todos)
    }

    #[test]
    fn the_client_hears_what_became_of_the_connection_and_frames_follow() {
        for cut in 1..30 {
            for errno in [0, 111, 113] {
                let (mut gateway, todos) = ask(5432, cut);
                assert_eq!(todos, [Todo::Dial(5432)]);
                let mut client = GatewayClient::default();
                let wire = [&gateway.dialed(errno)[..], b"frames"].concat();
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
    }

    #[test]
    fn ports_that_are_not_allowed_look_closed_and_impatience_is_refused() {
        let (_, todos) = ask(22, 100);
        let [Todo::Refuse(answer)] = &todos[..] else { panic!("{todos:?}") };
        assert_eq!(GatewayClient::default().receive(answer).unwrap(), Some(ECONNREFUSED));
        let (mut gateway, _) = ask(5432, 100);
        assert!(gateway.receive(b"x", |_| true).is_err());
        assert!(GatewayClient::default().receive(b"HTTP/1.1 400").is_err());
    }
}
