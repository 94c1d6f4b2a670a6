//! A connection that is being made: waits for the TCP connection and for the gateway's answer.

use narrows::upgrade::{Event, WhyPlain};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};

use super::{Connection, Next};
use crate::dialing::{self, Answer, Dialing, connect_past};
use crate::shared::PumpContext;
use crate::socket::read;
use crate::wire::{BY_GATEWAY, Request, host_and_port};

/// Whether the connection is there yet.
pub(super) enum Phase {
    /// The TCP connection, or the gateway's to the server, is being made.
    Connecting(Connecting),
    Established,
}

pub(super) struct Connecting {
    /// Bytes that fill the program's end meanwhile.
    fill: usize,
    /// The request to the gateway, while its answer is pending.
    dialing: Option<Dialing>,
}

impl Phase {
    /// The phase in which the program hands the connection over.
    pub(super) fn of(request: &Request, context: &PumpContext) -> Self {
        let fill = usize::try_from(request.number).unwrap_or(1);
        if fill > 1 {
            Self::Connecting(Connecting { fill, dialing: asked_gateway(request, context) })
        } else {
            Self::Established
        }
    }
}

impl Connection {
    /// The request to the gateway, while its answer is pending.
    pub(super) fn dialing(&self) -> Option<&Dialing> {
        match &self.phase {
            Phase::Connecting(connecting) => connecting.dialing.as_ref(),
            Phase::Established => None,
        }
    }

    /// Returns `None` once the connection is established.
    pub(super) fn finish_connecting(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> Option<Next> {
        if self.came_up() {
            return None;
        }
        if self.program_is_gone() {
            return Some(Next::Over(None));
        }
        match sockopt::socket_error(&self.network) {
            Ok(Ok(())) => {}
            Ok(Err(e)) if self.dialing().is_some() && dialing::is_refusal(e) => {
                if let Err(e) = self.connect_past_gateway() {
                    return Some(Next::Over(Some(e)));
                }
            }
            Ok(Err(e)) | Err(e) => return Some(Next::Over(Some(e))),
        }
        if rustix::net::getpeername(&self.network).is_err() {
            return Some(Next::Wait);
        }
        let Phase::Connecting(connecting) = &mut self.phase else { return None };
        let answer = match &mut connecting.dialing {
            None => None,
            Some(dialing) => match dialing.advance(&self.network, context.now_ns()) {
                None => return Some(Next::Wait),
                Some(Answer::Connected(frames)) => Some(frames),
                Some(Answer::Failed(e)) => return Some(Next::Over(Some(e))),
                Some(Answer::NoGateway) => {
                    let again = self.connect_past_gateway();
                    return Some(again.map_or_else(|e| Next::Over(Some(e)), |()| Next::Again));
                }
            },
        };
        // Before the program can notice that it is connected and ask for the state.
        self.held.connected();
        // The last fill byte becomes the poison.
        while connecting.fill > 1 {
            let part = (connecting.fill - 1).min(scratch.len());
            match read(&self.program, &mut scratch[..part], RecvFlags::empty()) {
                Ok(n) if n > 0 => connecting.fill -= n,
                _ => return Some(Next::Over(Some(Errno::CONNABORTED))),
            }
        }
        self.phase = Phase::Established;
        if let Some(frames) = answer {
            self.begin_framed(frames, context);
        }
        None
    }

    /// No gateway takes the connection: it continues as a plain connection to the server itself.
    fn connect_past_gateway(&mut self) -> Result<(), Errno> {
        if let Phase::Connecting(connecting) = &mut self.phase {
            connecting.dialing = None;
        }
        // A plain event releases no bytes.
        let _ = self.negotiation.flow.hear(Event::Plain(WhyPlain::NoGateway));
        connect_past(&self.network, &self.origin.peer)
    }
}

/// The request to the gateway, if the connection leads to one.
fn asked_gateway(request: &Request, context: &PumpContext) -> Option<Dialing> {
    let (_, port) = host_and_port(&request.peer).filter(|_| request.option == BY_GATEWAY && !request.accepted)?;
    Some(Dialing::new(port, context.now_ns()))
}
