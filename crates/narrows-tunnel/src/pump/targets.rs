//! The targets of incoming flows: looked up, judged by the rules, and connected to.

use std::collections::VecDeque;
use std::net::SocketAddr;

use narrows_host::shares::ALONE;
use narrows_host::words::e_text;
use rustix::io::Errno;

use super::conn::{Conn, Local, Stage};
use super::watched::named;
use super::{Kind, Pump};
use crate::engine::Key;
use crate::lookup::{Answer, Found};
use crate::reason::Reason;
use crate::session::{FlowId, is_of_dialer};
use crate::target::{Endpoint, Target, To};
use crate::{proxy, socket};

/// Time after which a unix socket with a full queue is tried again; it doubles up to the other one.
const KNOCK_NS: u64 = 5_000_000;
const KNOCK_MOST_NS: u64 = 320_000_000;
/// Time in which a target must answer at one address, and in all.
const ADDRESS_NS: u64 = 10_000_000_000;
const CONNECT_NS: u64 = 30_000_000_000;

/// Connections that a peer has opened before it heard that it is not trusted any more come within this
/// time; what it asks for later is refused.
pub(super) const UNHEARD_NS: u64 = 2_000_000_000;

impl Pump {
    /// The peer opened a flow: its target is connected to.
    pub(super) fn incoming(&mut self, session: usize, flow: FlowId, target: &Target) {
        if let Some(place) = self.sessions.get_mut(session).filter(|place| place.flows.contains_key(&flow)) {
            // Its number was used before, and what is left of that flow is still here.
            return place.session.reset(flow, Reason::Other);
        }
        if !self.is_within_rate(session) {
            // Whoever asks too often has no line of a log for each.
            self.counters.flows_refused.add(1);
            self.counters.flows_refused_here.add(1);
            if let Some(place) = self.sessions.get_mut(session) {
                place.session.refuse(flow, Reason::Busy, "too many connections in a second");
            }
            return self.sessions.touch(session);
        }
        let refuse = |pump: &mut Self, reason, text: &str| {
            pump.counters.flows_refused.add(1);
            pump.counters.flows_refused_here.add(1);
            let name = named(&target.to_string(), &target.client);
            pump.report_flow(session, format!("{name}: {text}"));
            if let Some(place) = pump.sessions.get_mut(session) {
                place.session.refuse(flow, reason, text);
            }
            pump.sessions.touch(session);
        };
        if self.end.draining_until_ns.is_some() {
            return refuse(self, Reason::Leaving, "the other end stops");
        }
        let distrusted_ns = self.sessions.get(session).and_then(|s| s.distrusted_ns);
        if distrusted_ns.is_some_and(|since_ns| self.now_ns >= since_ns + UNHEARD_NS) {
            return refuse(self, Reason::Forbidden, "this end is not trusted any more");
        }
        let endpoint = match &target.to {
            To::Endpoint(endpoint) if self.settings.allow.may_allow(endpoint) => endpoint.clone(),
            To::Endpoint(_) => return refuse(self, Reason::Forbidden, "not allowed (--allow)"),
            To::Listener(number) => match self.remote_target(*number) {
                Some(endpoint) => endpoint,
                None => return refuse(self, Reason::Forbidden, "no such listener"),
            },
        };
        let Some(share) = self.place_for(session) else { return refuse(self, Reason::Busy, "too many connections") };
        let about = self.flows.about(&target.client, endpoint.to_string(), self.now_ns);
        let preamble = if self.settings.send_proxy {
            let server = match &endpoint {
                Endpoint::Tcp { host, port } => host.parse().ok().map(|ip| SocketAddr::new(ip, *port)),
                Endpoint::Unix(_) => None,
            };
            proxy::header(target.client.parse().ok(), server)
        } else {
            Vec::new()
        };
        match endpoint {
            Endpoint::Unix(path) => {
                let until_ns = self.now_ns + CONNECT_NS;
                let stage = Stage::Knocking { path, wait_ns: KNOCK_NS, until_ns };
                let key = self.begin(Conn::new(session, flow, stage, share, about).behind(preamble));
                self.knock(key);
            }
            Endpoint::Tcp { host, port } => {
                let conn = Conn::new(session, flow, Stage::Finding { host: host.clone(), port }, share, about);
                let key = self.begin(conn.behind(preamble));
                let asker = self.sessions.host(session).unwrap_or(ALONE);
                match self.lookups.ask(&host, asker, key, self.now_ns) {
                    Answer::Now(found) => self.found(key, found),
                    Answer::Later => {}
                    Answer::Busy => {
                        self.counters.lookups_over_limit.add(1);
                        self.refuse_conn(key, Reason::Busy, "too many names are looked up");
                    }
                }
            }
        }
    }

    /// Tries to connect to a unix socket.
    pub(super) fn knock(&mut self, key: Key) {
        let now_ns = self.now_ns;
        let counters = std::sync::Arc::clone(&self.counters);
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let Stage::Knocking { path, wait_ns, until_ns } = &mut conn.stage else { return };
        match socket::connect_unix(path) {
            Ok(socket) => {
                conn.stage = Stage::Open(socket);
                conn.about.reached(&counters, now_ns);
                let (session, flow) = (conn.session, conn.flow);
                self.hub.watch(key);
                self.opened_here(session, flow);
                self.hub.queue(key);
            }
            // Its queue is full, which a burst does to many servers.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && now_ns < *until_ns => {
                let at_ns = now_ns + *wait_ns;
                *wait_ns = (*wait_ns * 2).min(KNOCK_MOST_NS);
                self.hub.set_timer(key, Some(at_ns));
            }
            Err(e) => self.refuse_conn(key, reason_of(&e), &e_text(&e)),
        }
    }

    fn opened_here(&mut self, session: usize, flow: FlowId) {
        self.counters.flows_opened.add(1);
        if let Some(place) = self.sessions.get_mut(session) {
            place.session.opened(flow);
        }
        self.sessions.touch(session);
    }

    /// A name was looked up.
    pub(super) fn found(&mut self, key: Key, found: Found) {
        if matches!(self.hub.kind(key), Some(Kind::Dialing(_))) {
            return self.dialing_found(key, found);
        }
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let Stage::Finding { host, port } = &conn.stage else { return };
        let (host, port, by_dialer) = (host.clone(), *port, is_of_dialer(conn.flow));
        let addresses = match found {
            Ok(addresses) => addresses,
            Err(why) => return self.refuse_conn(key, Reason::Unreachable, &why),
        };
        let mut permitted: VecDeque<SocketAddr> = addresses.into();
        permitted.iter_mut().for_each(|address| address.set_port(port));
        if by_dialer {
            // Connections of own listeners go where the dialer's user said.
            permitted.retain(|a| self.settings.allow.allow_address(&host, a.ip(), port));
            if permitted.is_empty() {
                return self.refuse_conn(key, Reason::Forbidden, "not allowed (--allow)");
            }
        }
        self.connect_next(key, permitted, self.now_ns + CONNECT_NS, None);
    }

    /// Begins to connect to the next address.
    fn connect_next(
        &mut self,
        key: Key,
        mut rest: VecDeque<SocketAddr>,
        until_ns: u64,
        mut failed: Option<std::io::Error>,
    ) {
        while let Some(address) = rest.pop_front() {
            match socket::connect(&address) {
                Ok(socket) => {
                    // On this host it is usually there already, and no event need be waited for.
                    let at_once = address.ip().is_loopback() && socket::is_connected(&socket);
                    if let Some(Kind::Conn(conn)) = self.hub.kind(key) {
                        // Of an address before, nothing counts.
                        conn.local = Local::new(false, at_once);
                        conn.stage = Stage::Connecting { socket, rest, until_ns };
                    }
                    self.hub.watch(key);
                    if at_once {
                        return self.connecting(key, false);
                    }
                    let at_ns = until_ns.min(self.now_ns + ADDRESS_NS);
                    return self.hub.set_timer(key, Some(at_ns));
                }
                Err(e) => failed = Some(worse(failed, e)),
            }
        }
        let e = failed.unwrap_or_else(|| std::io::Error::other("the name has no address"));
        self.refuse_conn(key, reason_of(&e), &e_text(&e));
    }

    /// A connection attempt has made progress, or its time is over.
    pub(super) fn connecting(&mut self, key: Key, late: bool) {
        let now_ns = self.now_ns;
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let Stage::Connecting { socket, rest, until_ns } = &mut conn.stage else { return };
        let failed = match socket::error(socket) {
            None if conn.local.writable && !late => None,
            None if late => Some(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            None => return,
            Some(e) => Some(e.into()),
        };
        if let Some(failed) = failed {
            let (rest, until_ns) = (std::mem::take(rest), *until_ns);
            if now_ns >= until_ns {
                return self.refuse_conn(key, Reason::Timeout, "no answer in time");
            }
            return self.connect_next(key, rest, until_ns, Some(failed));
        }
        let stage = std::mem::replace(&mut conn.stage, Stage::Finding { host: String::new(), port: 0 });
        let Stage::Connecting { socket, .. } = stage else { return };
        socket::break_on_close(&socket);
        conn.stage = Stage::Open(socket);
        conn.local.readable = true;
        let (session, flow) = (conn.session, conn.flow);
        let counters = std::sync::Arc::clone(&self.counters);
        if let Some(Kind::Conn(conn)) = self.hub.kind(key) {
            conn.about.reached(&counters, now_ns);
        }
        self.hub.set_timer(key, None);
        self.opened_here(session, flow);
        self.hub.queue(key);
    }

    pub(super) fn refuse_conn(&mut self, key: Key, reason: Reason, text: &str) {
        let Some(Kind::Conn(mut conn)) = self.hub.take(key) else { return };
        self.counters.flows_refused.add(1);
        self.counters.flows_refused_here.add(1);
        self.report_unreached(conn.session, conn.about.target().to_owned(), reason, text);
        self.report_flow(conn.session, format!("{}: {text}", conn.about.name()));
        if let Some(place) = self.sessions.get_mut(conn.session) {
            place.session.refuse(conn.flow, reason, text);
        }
        self.count_off(key, &mut conn, Some(reason));
    }
}

/// The failure that says more: of two addresses, one may be of a kind that this host does not have.
fn worse(before: Option<std::io::Error>, e: std::io::Error) -> std::io::Error {
    before.filter(|before| reason_of(before) == Reason::Refused).unwrap_or(e)
}

/// Why a target was not reached.
fn reason_of(e: &std::io::Error) -> Reason {
    match Errno::from_io_error(e) {
        Some(Errno::CONNREFUSED | Errno::NOENT) => Reason::Refused,
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL) => Reason::Unreachable,
        Some(Errno::TIMEDOUT) => Reason::Timeout,
        Some(Errno::ACCESS | Errno::PERM) => Reason::Forbidden,
        _ if e.kind() == std::io::ErrorKind::TimedOut => Reason::Timeout,
        _ => Reason::Other,
    }
}
