//! Connections of a dialer to its acceptor that are being made.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use narrows_host::shares::ALONE;

use super::{Kind, Pump};
use crate::engine::Key;
use crate::lookup::{Answer, Found};
use crate::socket;

/// Time in which one address must answer, and all of them together.
const ADDRESS_NS: u64 = 5_000_000_000;
const ALL_NS: u64 = 15_000_000_000;

pub(super) struct Dialing {
    pub(super) number: u8,
    port: u16,
    pub(super) socket: Option<OwnedFd>,
    rest: VecDeque<SocketAddr>,
    until_ns: u64,
}

impl Pump {
    /// Begins to connect carrier `number` to a host, at this of its addresses if one is given.
    pub(super) fn dial_host(&mut self, number: u8, host: &str, port: u16, address: Option<SocketAddr>) {
        let until_ns = self.now_ns + ALL_NS;
        let dialing = Dialing { number, port, socket: None, rest: VecDeque::new(), until_ns };
        let key = self.hub.add(Kind::Dialing(Box::new(dialing)));
        self.hub.set_timer(key, Some(until_ns));
        if let Some(address) = address {
            return self.dialing_found(key, Ok(vec![address]));
        }
        match self.lookups.ask(host, ALONE, key, self.now_ns) {
            Answer::Now(found) => self.dialing_found(key, found),
            Answer::Later => {}
            Answer::Busy => self.dialing_found(key, Err("too many names are looked up".into())),
        }
    }

    /// The name of the acceptor was looked up.
    pub(super) fn dialing_found(&mut self, key: Key, found: Found) {
        let Some(Kind::Dialing(dialing)) = self.hub.kind(key) else { return };
        match found {
            Ok(addresses) => {
                dialing.rest = addresses.into();
                let port = dialing.port;
                dialing.rest.iter_mut().for_each(|address| address.set_port(port));
                self.dial_next(key, None);
            }
            Err(why) => self.dial_failed(key, &why),
        }
    }

    fn dial_next(&mut self, key: Key, mut failed: Option<std::io::Error>) {
        loop {
            let now_ns = self.now_ns;
            let Some(Kind::Dialing(dialing)) = self.hub.kind(key) else { return };
            dialing.socket = None;
            let late = now_ns >= dialing.until_ns;
            let Some(address) = dialing.rest.pop_front().filter(|_| !late) else {
                let e = failed.unwrap_or_else(|| std::io::Error::other("the name has no address"));
                return self.dial_failed(key, &narrows_host::words::e_text(&e));
            };
            match socket::connect(&address) {
                Ok(socket) => {
                    dialing.socket = Some(socket);
                    self.hub.watch(key);
                    let at_ns = now_ns + ADDRESS_NS;
                    return self.hub.set_timer(key, Some(at_ns));
                }
                Err(e) => failed = Some(e),
            }
        }
    }

    pub(super) fn dialing_ready(&mut self, key: Key) {
        let Some(Kind::Dialing(dialing)) = self.hub.kind(key) else { return };
        let Some(socket) = &dialing.socket else { return };
        if let Some(e) = socket::error(socket) {
            return self.dial_next(key, Some(e.into()));
        }
        // An event before the connection is there is no connection.
        if rustix::net::getpeername(socket).is_err() {
            return;
        }
        let Some(Kind::Dialing(dialing)) = self.hub.take(key) else { return };
        let Dialing { number, socket: Some(socket), .. } = *dialing else { return };
        self.dialed(number, socket);
    }

    pub(super) fn dialing_on_time(&mut self, key: Key) {
        self.dial_next(key, Some(std::io::ErrorKind::TimedOut.into()));
    }

    fn dial_failed(&mut self, key: Key, why: &str) {
        let Some(Kind::Dialing(dialing)) = self.hub.take(key) else { return };
        self.dial_lost(dialing.number, why);
    }
}
