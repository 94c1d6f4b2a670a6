//! Listeners: of forwards and SOCKS at this end, of dialers at an acceptor, and for carriers.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use narrows::upgrade::host_of;
use narrows_host::bound::Bound;
use narrows_host::shares::{ALONE, Share};

use super::flows::Early;
use super::held::Request;
use super::strangers::oldest_of_most;
use super::{Hub, Kind, Pump};
use crate::engine::Key;
use crate::proxy;
use crate::reason::Reason;
use crate::rules::Rules;
use crate::settings::Report;
use crate::socket::{self, Accepted, Listener};
use crate::socks::{self, Conversation, Next};
use crate::target::{Endpoint, Target, To};

/// Connections accepted at a time.
const ACCEPTS: usize = 256;
/// Pause while no descriptor is free, until some connection ends.
const BREATH_NS: u64 = 100_000_000;
/// Time in which a SOCKS client must say where to.
const UNDECIDED_NS: u64 = 10_000_000_000;

pub(super) struct ListenerPlace {
    pub(super) listener: Listener,
    pub(super) purpose: Purpose,
    _share: Option<Share>,
}

pub(super) enum Purpose {
    /// Dialers; the number of the address in the settings.
    Carriers(usize),
    Forward(Endpoint),
    Socks,
    /// For the dialer of a session.
    Remote {
        session: usize,
        request: Box<Request>,
    },
    /// The session is over, and another one of its dialer may come for it.
    Held {
        request: Box<Request>,
        until_ns: u64,
    },
}

/// A connection that has not said where to, or whose it is.
pub(super) struct Undecided {
    pub(super) socket: OwnedFd,
    client: String,
    awaits: Awaits,
}

enum Awaits {
    Socks(Conversation),
    /// A PROXY header, of which this has come.
    Proxy {
        to: Endpoint,
        seen: Vec<u8>,
    },
}

/// What an undecided connection is.
enum Decided {
    NotYet,
    Over,
    To(Target, Early),
}

impl Hub {
    /// Takes no new connections any more.
    pub(super) fn close_listeners(&mut self) {
        self.listeners().into_iter().for_each(|key| drop(self.take(key)));
    }

    /// Listeners of this end look again: there is a session, or there will be none soon.
    pub(super) fn wake_listeners(&mut self) {
        self.listeners().into_iter().for_each(|key| self.queue(key));
    }

    fn listeners(&self) -> Vec<Key> {
        self.iter().filter(|(_, kind)| matches!(kind, Kind::Listener(_))).map(|(key, _)| key).collect()
    }
}

impl Pump {
    /// Opens what the settings say.
    pub(super) fn open(&mut self) -> std::io::Result<()> {
        use std::io::Error;
        let named = |address: &str, e: Error| {
            Error::new(e.kind(), format!("cannot listen on {address}: {}", narrows_host::words::e_text(&e)))
        };
        let addresses: Vec<_> = self.settings.listen.iter().map(|(address, _)| *address).collect();
        let mut bound = Vec::new();
        for address in addresses {
            bound.push((address, Bound::to(address).map_err(|e| named(&address.to_string(), e))?));
        }
        self.settings.before_listening.take().map_or(Ok(()), |before| before())?;
        for (i, (address, bound)) in bound.into_iter().enumerate() {
            let listener = Listener::bound(bound).map_err(|e| named(&address.to_string(), e))?;
            self.reports.tell(Report::Serving { address: listener.address() });
            self.add_listener(listener, Purpose::Carriers(i), None);
        }
        let local = self.settings.local.iter().map(|f| (f.from.clone(), Some(f.to.clone())));
        let dynamic = self.settings.dynamic.iter().map(|from| (from.clone(), None));
        for (from, to) in local.chain(dynamic).collect::<Vec<_>>() {
            let listener = open_listener(&from).map_err(|e| named(&from.to_string(), e))?;
            let shown = to.as_ref().map_or_else(|| "SOCKS".to_owned(), ToString::to_string);
            self.reports.tell(Report::Listening { from: listener.address(), to: shown });
            self.add_listener(listener, to.map_or(Purpose::Socks, Purpose::Forward), None);
        }
        self.open_stdio();
        self.open_uplink()
    }

    fn add_listener(&mut self, listener: Listener, purpose: Purpose, share: Option<Share>) -> Key {
        self.hub.add(Kind::Listener(ListenerPlace { listener, purpose, _share: share }))
    }

    /// Accepts what waits.
    pub(super) fn listener_ready(&mut self, key: Key) {
        for _ in 0..ACCEPTS {
            let (may_accept, now_ns) = (self.may_accept(), self.now_ns);
            let Some(Kind::Listener(place)) = self.hub.kind(key) else { return };
            match place.purpose {
                Purpose::Forward(_) | Purpose::Socks if !may_accept => return,
                Purpose::Held { until_ns, .. } if until_ns <= now_ns => return drop(self.hub.take(key)),
                Purpose::Held { .. } => return,
                _ => {}
            }
            match place.listener.accept() {
                Ok(Some(accepted)) => self.accepted(key, accepted),
                Ok(None) => return,
                // No descriptor, or no memory.
                Err(_) => {
                    self.counters.accepts_failed.add(1);
                    let at_ns = self.now_ns + BREATH_NS;
                    return self.hub.set_timer(key, Some(at_ns));
                }
            }
        }
        self.hub.queue(key);
    }

    fn accepted(&mut self, key: Key, accepted: Accepted) {
        let Some(Kind::Listener(place)) = self.hub.kind(key) else { return };
        let Accepted { socket, peer } = accepted;
        let client = peer.map_or_else(String::new, |peer| peer.to_string());
        match &place.purpose {
            Purpose::Carriers(i) => {
                let i = *i;
                if let Some(peer) = peer {
                    self.meet(i, socket, peer.ip());
                }
            }
            Purpose::Held { .. } => socket::abort(socket),
            Purpose::Remote { session, request } => {
                let (session, to) = (*session, To::Listener(request.number));
                self.carry(session, socket, &Target { to, client }, Early::Nothing);
            }
            Purpose::Forward(to) => {
                let to = to.clone();
                let from = peer.map(|peer| peer.ip().to_canonical());
                let host = host_of(from.unwrap_or(ALONE));
                if from.is_some_and(|from| self.settings.proxy_from.iter().any(|ip| ip.to_canonical() == from)) {
                    return self.ask(socket, client, host, Awaits::Proxy { to, seen: Vec::new() });
                }
                match self.uplink_session() {
                    Some(session) => {
                        let target = Target { to: To::Endpoint(to), client };
                        self.carry(session, socket, &target, Early::Nothing);
                    }
                    None => socket::abort(socket),
                }
            }
            Purpose::Socks => {
                let host = host_of(peer.map_or(ALONE, |peer| peer.ip()));
                self.ask(socket, client, host, Awaits::Socks(Conversation::default()));
            }
        }
    }

    /// Waits for what a connection says first.
    fn ask(&mut self, socket: OwnedFd, client: String, host: IpAddr, awaits: Awaits) {
        while self.flows.undecided.len() >= self.settings.limits.undecided.min(self.settings.flows_max / 8).max(1) {
            let Some(oldest) = oldest_of_most(&self.flows.undecided) else { break };
            self.counters.undecided_over_limit.add(1);
            if let Some(undecided) = self.take_undecided(oldest) {
                socket::abort(undecided.socket);
            }
        }
        let key = self.hub.add(Kind::Undecided(Box::new(Undecided { socket, client, awaits })));
        self.flows.undecided.push_back((key, host));
        self.counters.undecided_now.set(self.flows.undecided.len() as u64);
        let at_ns = self.now_ns + UNDECIDED_NS;
        self.hub.set_timer(key, Some(at_ns));
        self.undecided_ready(key);
    }

    /// Reads what an undecided connection says.
    pub(super) fn undecided_ready(&mut self, key: Key) {
        loop {
            let Some(Kind::Undecided(undecided)) = self.hub.kind(key) else { return };
            let mut buffer = [0; socks::REQUEST_MAX];
            let decided = match socket::read(&undecided.socket, &mut buffer) {
                Ok(None) => return,
                Ok(Some(n)) if n > 0 => undecided.take(&buffer[..n]),
                _ => Decided::Over,
            };
            match decided {
                Decided::NotYet => {}
                Decided::Over => return drop(self.take_undecided(key)),
                Decided::To(target, early) => {
                    let session = self.uplink_session();
                    let Some(undecided) = self.take_undecided(key) else { return };
                    match session {
                        Some(session) => self.carry(session, undecided.socket, &target, early),
                        // An abort would take the answer back.
                        None if matches!(early, Early::Socks(_)) => {
                            let _ = socket::write(&undecided.socket, &socks::answer(Err(Reason::Other)));
                        }
                        None => socket::abort(undecided.socket),
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn undecided_on_time(&mut self, key: Key) {
        self.counters.undecided_late.add(1);
        self.take_undecided(key);
    }

    fn take_undecided(&mut self, key: Key) -> Option<Box<Undecided>> {
        self.flows.undecided.retain(|(other, _)| *other != key);
        self.counters.undecided_now.set(self.flows.undecided.len() as u64);
        match self.hub.take(key) {
            Some(Kind::Undecided(undecided)) => Some(undecided),
            _ => None,
        }
    }

    /// A dialer asks for a listener.
    pub(super) fn listen_for(&mut self, session: usize, number: u64, bind: &Endpoint) {
        if let Some(address) = self.present_listener(session, number, bind) {
            if let Some(place) = self.sessions.get_mut(session) {
                place.session.listens_already();
                place.session.listening(number, Ok(&address));
            }
            return self.sessions.touch(session);
        }
        let answer = self.open_remote(session, number, bind).map(|(key, address)| {
            self.reports.tell(Report::Peer { text: format!("listening on {address} for a client") });
            let old = self.sessions.get_mut(session).and_then(|s| s.listeners.insert(number, key));
            if let Some(old) = old {
                self.hub.take(old);
                self.sessions.get_mut(session).into_iter().for_each(|place| place.session.listens_already());
            }
            address
        });
        if let Some(place) = self.sessions.get_mut(session) {
            place.session.listening(number, answer.as_deref().map_err(|(reason, text)| (*reason, text.as_str())));
        }
        self.sessions.touch(session);
    }

    /// Where the dialer of a session has what it asks for: it did not hear the answer.
    fn present_listener(&mut self, session: usize, number: u64, bind: &Endpoint) -> Option<String> {
        let key = *self.sessions.get(session)?.listeners.get(&number)?;
        match self.hub.kind(key)? {
            Kind::Listener(place) => match &place.purpose {
                Purpose::Remote { request, .. } if request.bind == *bind => Some(place.listener.address()),
                _ => None,
            },
            _ => None,
        }
    }

    fn open_remote(&mut self, session: usize, number: u64, bind: &Endpoint) -> Result<(Key, String), (Reason, String)> {
        may_listen(&self.settings.allow_listen, bind)?;
        let request = Box::new(self.hub.request(self.sessions.get(session), number, bind));
        let held = self.hub.held_listener(&request);
        let purpose = Purpose::Remote { session, request };
        if let Some((key, address)) = held {
            if let Some(Kind::Listener(place)) = self.hub.kind(key) {
                place.purpose = purpose;
            }
            self.hub.set_timer(key, None);
            self.hub.queue(key);
            return Ok((key, address));
        }
        let host = self.sessions.host(session);
        let mut share = host.map(|host| self.carriers.attached.of(host));
        if share.as_mut().is_some_and(|share| !share.grow(1)) {
            self.counters.attached_over_limit.add(1);
            return Err((Reason::Busy, "too many listeners".into()));
        }
        match open_listener(bind) {
            Ok(listener) => {
                let address = listener.address();
                Ok((self.add_listener(listener, purpose, share), address))
            }
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err((Reason::Busy, "the address is in use".into())),
            Err(e) => Err((Reason::Other, narrows_host::words::e_text(&e))),
        }
    }

    /// Closes listeners of dialers that are not allowed any more. Connections that came by them go on.
    pub(super) fn judge_listeners(&mut self) {
        for key in self.hub.listeners() {
            let Some(Kind::Listener(place)) = self.hub.kind(key) else { continue };
            let ListenerPlace { purpose, listener, .. } = &*place;
            let (Purpose::Remote { request, .. } | Purpose::Held { request, .. }) = purpose else { continue };
            let Err((reason, why)) = may_listen(&self.settings.allow_listen, &request.bind) else { continue };
            let of_session = match purpose {
                Purpose::Remote { session, .. } => Some((*session, request.number)),
                _ => None,
            };
            let text = format!("not listening on {} for a client any more: {why}", listener.address());
            self.reports.tell(Report::Peer { text });
            self.hub.take(key);
            let Some((session, number)) = of_session else { continue };
            if let Some(place) = self.sessions.get_mut(session) {
                place.listeners.remove(&number);
                place.session.listening(number, Err((reason, &why)));
            }
            self.sessions.touch(session);
        }
    }
}

impl Undecided {
    fn take(&mut self, bytes: &[u8]) -> Decided {
        match &mut self.awaits {
            Awaits::Proxy { to, seen } => {
                seen.extend_from_slice(bytes);
                match proxy::parse(seen) {
                    proxy::Next::Wait => Decided::NotYet,
                    proxy::Next::Wrong => Decided::Over,
                    proxy::Next::Found { len, client } => {
                        let client = client.map_or_else(|| std::mem::take(&mut self.client), |c| c.to_string());
                        let target = Target { to: To::Endpoint(to.clone()), client };
                        Decided::To(target, Early::Bytes(seen.split_off(len)))
                    }
                }
            }
            Awaits::Socks(conversation) => {
                let next = conversation.take(bytes);
                let (Next::Wait(answer) | Next::Connect { answer, .. } | Next::Refuse(answer)) = &next;
                // A few bytes always fit into an empty buffer.
                if !answer.is_empty() && socket::write(&self.socket, answer).ok().flatten() != Some(answer.len()) {
                    return Decided::Over;
                }
                match next {
                    Next::Wait(_) => Decided::NotYet,
                    Next::Refuse(_) => Decided::Over,
                    Next::Connect { to, rest, .. } => {
                        let target = Target { to: To::Endpoint(to), client: std::mem::take(&mut self.client) };
                        Decided::To(target, Early::Socks(rest))
                    }
                }
            }
        }
    }
}

/// Whether a dialer may have a listener there.
fn may_listen(rules: &Rules, bind: &Endpoint) -> Result<(), (Reason, String)> {
    let forbidden = || (Reason::Forbidden, "not allowed (--allow-listen)".to_owned());
    if !rules.may_allow(bind) {
        return Err(forbidden());
    }
    if let Endpoint::Tcp { host, port } = bind {
        // A name would be looked up, for which everybody would wait.
        let is_address = host.is_empty() || host == "*" || host.parse::<std::net::IpAddr>().is_ok();
        if !is_address {
            return Err((Reason::Other, "name an address to listen on, not a host".into()));
        }
        let addresses = socket::bind_addresses(host, *port).unwrap_or_default();
        if !addresses.iter().all(|a| rules.allow_address(host, a.ip(), *port)) {
            return Err(forbidden());
        }
    }
    Ok(())
}

/// Listens at the first address that is possible.
fn open_listener(at: &Endpoint) -> std::io::Result<Listener> {
    match at {
        Endpoint::Unix(path) => Listener::unix(path),
        Endpoint::Tcp { host, port } => {
            let mut failed = std::io::Error::other("the name has no address");
            for address in socket::bind_addresses(host, *port)? {
                match Listener::tcp(address) {
                    Ok(listener) => return Ok(listener),
                    Err(e) => failed = e,
                }
            }
            Err(failed)
        }
    }
}
