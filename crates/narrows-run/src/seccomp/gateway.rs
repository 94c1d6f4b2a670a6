//! Connections through a gateway (`--via-gateway`): the program's socket is connected to the
//! gateway instead, and its `connect` gets the gateway's answer.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::connect_unspec;

use super::calls::{errno, length};
use super::notify::{Answer, Call, Notifier, Waiting, What};
use super::socket::{blocks, limit};
use super::swap::{self, Connection};
use super::sys;
use crate::wire::{BY_CONNECT, BY_ERROR, BY_GATEWAY, Kind, Name, RawAddress, Scope, host_and_port};

/// Servers that are reached through gateways on their hosts, and the port of the gateways.
#[derive(Clone, Copy)]
pub(crate) struct Gateways {
    pub servers: Scope,
    pub port: u16,
}

impl Gateways {
    /// The gateway's address for `peer`, if it has one.
    fn address_for(&self, peer: &RawAddress) -> Option<RawAddress> {
        let (host, port) = host_and_port(peer)?;
        let mut gateway = *peer;
        gateway[2..4].copy_from_slice(&self.port.to_be_bytes());
        self.servers.excludes(host, port).is_none().then_some(gateway)
    }
}

impl Notifier {
    /// Connects `socket` to the gateway of `peer`, if it has one and one more call may wait for the
    /// answer.
    pub(super) fn by_gateway(
        &mut self,
        call: &Call,
        number: i32,
        socket: &OwnedFd,
        peer: &RawAddress,
        closes_on_exec: bool,
    ) -> Option<Answer> {
        let gateway = self.gateways.as_ref()?.address_for(peer)?;
        if !self.can_wait() {
            return None;
        }
        let until = limit(socket, libc::SO_SNDTIMEO);
        let blocks = blocks(socket).ok()?;
        self.watchdog.open.elsewhere(true);
        let connected = self.without_blocking(socket, blocks, || sys::connect(socket, &gateway, length(peer)));
        match connected.map_err(|e| errno(&e)) {
            Ok(_) | Err(libc::EINPROGRESS) => {}
            // No gateway listens, which says nothing about the server.
            Err(libc::ECONNREFUSED) => {
                self.watchdog.open.elsewhere(false);
                return None;
            }
            Err(e) => return Some(Answer::Fail(e)),
        }
        let Ok((name, program)) = self.hand_over(call, number, socket, peer, closes_on_exec) else {
            // The program's next bytes must not reach the gateway.
            let _ = connect_unspec(socket);
            self.watchdog.open.elsewhere(false);
            return None;
        };
        Some(if blocks { self.made(program, name, false, until) } else { Answer::Fail(libc::EINPROGRESS) })
    }

    /// Swaps a connection that is complete only when the gateway says so.
    fn hand_over(
        &self,
        call: &Call,
        number: i32,
        socket: &OwnedFd,
        peer: &RawAddress,
        closes_on_exec: bool,
    ) -> Result<(Name, OwnedFd)> {
        let ours = socket.try_clone()?;
        let connection = Connection { peer: *peer, connecting: true, unanswered: true, accepted: false };
        let mut pair = swap::pair(socket, &connection)?;
        pair.request.option = BY_GATEWAY;
        let name = Name { id: pair.request.id, was_connecting: true, local: pair.request.local, peer: *peer };
        self.replace(call, number, socket, &pair.program, closes_on_exec)?;
        swap::resets(socket);
        self.intake.take(pair.request, ours, pair.supervisor);
        Ok((name, pair.program))
    }

    /// The answer to a blocking `connect` on a swapped descriptor. `program` is the program's end.
    /// `further`: the attempt was started by an earlier call.
    pub(super) fn made(&self, program: OwnedFd, name: Name, further: bool, until: Option<Instant>) -> Answer {
        let mut look = [PollFd::new(&program, PollFlags::OUT)];
        let _ = poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let events = look[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            let reply = self.ask(Kind::State, name.id, |r| r.number = BY_ERROR);
            let status = reply.map_or(0, |(reply, _)| reply.status);
            return Answer::Fail(if status != 0 { status } else { libc::ECONNABORTED });
        }
        if !events.contains(PollFlags::OUT) {
            return Answer::Wait(Waiting { socket: program, what: What::Made { name, further }, until });
        }
        // Records that a `connect` was answered, so that further ones fail with EISCONN.
        let _ = self.ask(Kind::State, name.id, |r| r.number = BY_CONNECT);
        Answer::Value(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope;

    #[test]
    fn the_gateway_has_the_servers_address_and_its_own_port() {
        let servers = scope::gateways(&["10.0.0.1:80".into()]).unwrap().unwrap();
        let gateways = Gateways { servers, port: 7701 };
        let at = |last: u8, port: u16| {
            let mut raw = [0; 28];
            raw[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            raw[2..4].copy_from_slice(&port.to_be_bytes());
            raw[4..8].copy_from_slice(&[10, 0, 0, last]);
            raw
        };
        assert_eq!(gateways.address_for(&at(1, 80)), Some(at(1, 7701)));
        assert_eq!(gateways.address_for(&at(1, 81)), None);
        assert_eq!(gateways.address_for(&at(2, 80)), None);
    }
}
