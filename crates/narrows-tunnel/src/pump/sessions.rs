//! Sessions: what they say, and their beginning and end.

use std::collections::HashMap;
use std::net::IpAddr;

use narrows_host::shares::{Share, Shares};

use super::targets::UNHEARD_NS;
use super::{Kind, Pump};
use crate::by_flow::ByFlow;
use crate::engine::Key;
use crate::hello::Hello;
use crate::limits::{CARRIERS_MAX, SESSIONS_MAX};
use crate::reason::Reason;
use crate::session::{Event, FlowId, Role, Session};
use crate::settings::{Trust, Uplink};

/// Time in which a remote shell must have logged in: people look for their password or second factor,
/// for which servers usually give 2 minutes.
const LOGIN_NS: u64 = 300_000_000_000;
/// Time for a peer to close a carrier that was parted from: closing it before would take back what
/// the peer has not read.
const PARTING_NS: u64 = 5_000_000_000;

pub(super) struct SessionPlace {
    pub(super) session: Session,
    pub(super) role: Role,
    pub(super) hello: Hello,
    pub(super) carriers: [Option<Key>; CARRIERS_MAX],
    pub(super) flows: ByFlow<Key>,
    /// Listeners of the dialer, by their numbers.
    pub(super) listeners: HashMap<u64, Key>,
    /// Host of the dialer, if this is the acceptor.
    pub(super) host: Option<IpAddr>,
    /// When it became known that its other end would be refused today: it opens nothing more.
    pub(super) distrusted_ns: Option<u64>,
    /// Until then flows that the other end has opened before it heard of that may still come.
    parts_ns: Option<u64>,
    _share: Option<Share>,
}

impl SessionPlace {
    /// When [`Pump::sessions_on_time`] is due for it.
    fn next_wakeup_ns(&self) -> Option<u64> {
        self.session.next_wakeup_ns().into_iter().chain(self.parts_ns).min()
    }
}

/// Sessions by their numbers at this end.
pub(super) struct Sessions {
    places: Vec<Option<SessionPlace>>,
    /// Those whose events and carriers are to be looked at.
    pub(super) touched: Vec<usize>,
    /// Those that take carriers of a dialer.
    pub(super) of_dialers: HashMap<[u8; 16], usize>,
    /// Parts of hosts in their number.
    pub(super) hosts: Shares,
    /// Who judges the other ends since the last change of it; before, their handshakes did.
    pub(super) trust: Trust,
}

impl Sessions {
    pub(super) fn new() -> Self {
        let (of_dialers, hosts) = (HashMap::new(), Shares::new(SESSIONS_MAX));
        Self { places: Vec::new(), touched: Vec::new(), of_dialers, hosts, trust: Trust::default() }
    }

    fn add(&mut self, place: SessionPlace) -> usize {
        let at = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[at] = Some(place);
        at
    }

    pub(super) fn get(&self, at: usize) -> Option<&SessionPlace> {
        self.places[at].as_ref()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut SessionPlace> {
        self.places[at].as_mut()
    }

    /// Host of the dialer of a session.
    pub(super) fn host(&self, at: usize) -> Option<IpAddr> {
        self.get(at)?.host
    }

    /// The connection of a flow.
    pub(super) fn conn(&self, at: usize, flow: FlowId) -> Option<Key> {
        self.get(at)?.flows.get(&flow).copied()
    }

    fn take(&mut self, at: usize) -> Option<SessionPlace> {
        let place = self.places[at].take()?;
        self.forget_dialer(place.hello.dialer, at);
        Some(place)
    }

    /// The next carrier of a dialer is not for this session.
    fn forget_dialer(&mut self, dialer: [u8; 16], at: usize) {
        if self.of_dialers.get(&dialer) == Some(&at) {
            self.of_dialers.remove(&dialer);
        }
    }

    /// Numbers of sessions are less.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    pub(super) fn touch(&mut self, at: usize) {
        if self.touched.last() != Some(&at) {
            self.touched.push(at);
        }
    }

    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        self.places.iter().flatten().filter_map(SessionPlace::next_wakeup_ns).min()
    }
}

impl Pump {
    /// Begins a session without carriers.
    pub(super) fn begin_session(
        &mut self,
        role: Role,
        hello: Hello,
        host: Option<IpAddr>,
        share: Option<Share>,
    ) -> usize {
        let mut timing = self.settings.timing;
        if role == Role::Dialer && matches!(self.settings.uplink, Some(Uplink::Shell { .. })) {
            timing.hello_within_ns = timing.hello_within_ns.max(LOGIN_NS);
        }
        let session = Session::new(role, hello, timing).with_credit(&self.work.credit);
        let place = SessionPlace {
            session,
            role,
            hello,
            carriers: [None; CARRIERS_MAX],
            flows: ByFlow::default(),
            listeners: HashMap::new(),
            host,
            distrusted_ns: None,
            parts_ns: None,
            _share: share,
        };
        self.counters.sessions_now.add(1);
        self.sessions.add(place)
    }

    /// Does what the events of a session ask for.
    pub(super) fn hear_session(&mut self, at: usize) {
        while let Some(event) = self.sessions.get_mut(at).and_then(|s| s.session.poll_event()) {
            match event {
                Event::Up { carrier } => self.carrier_up(at, carrier),
                Event::Incoming { flow, target } => self.incoming(at, flow, &target),
                Event::Opened { flow } => self.reached(at, flow),
                Event::Refused { flow, reason, text } => {
                    self.counters.flows_refused.add(1);
                    if let Some((_, conn)) = self.conn_of(at, flow) {
                        let to = conn.about.target().to_owned();
                        self.report_unreached(at, to, reason, &text);
                    }
                    self.gone(at, flow, reason, &text);
                }
                Event::Data { flow, coded, bytes } => self.arrived(at, flow, Some((coded, bytes))),
                Event::Room { flow } => self.has_room(at, flow),
                Event::Finished { flow } => self.arrived(at, flow, None),
                Event::Reset { flow, reason } => {
                    self.counters.flows_reset.add(1);
                    self.gone(at, flow, reason, "");
                }
                Event::Goaway { reason, text } => self.peer_leaves(at, reason, &text),
                Event::Listen { number, bind } => self.listen_for(at, number, &bind),
                Event::Listening { number, result } => self.remote_listening(at, number, result),
            }
        }
        let Some(place) = self.sessions.get(at) else { return };
        if !place.session.has_carriers() {
            self.end_session(at);
        }
    }

    /// A dialer keeps the session of an acceptor that leaves for the connections that are open, and
    /// either end one whose peer it does not trust any more.
    pub(super) fn settle_session(&mut self, at: usize) {
        let Some(place) = self.sessions.get(at).filter(|place| place.parts_ns.is_none()) else { return };
        let is_old = place.role == Role::Dialer && place.session.is_leaving() && !self.is_uplink(at);
        if is_old || place.distrusted_ns.is_some() {
            self.part_if_done(at);
        }
    }

    /// Parts from the peer of a session without flows, after all that is still to be sent to it.
    pub(super) fn part_if_done(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let Some(place) = self.sessions.get(at).filter(|s| s.flows.is_empty() && s.session.flows() == 0) else {
            return;
        };
        let carriers = place.carriers.into_iter().zip(0u8..);
        let done = carriers.filter_map(|(key, n)| key.filter(|_| !place.session.has_output(n)));
        for key in done.collect::<Vec<_>>() {
            if let Some(Kind::Carrier(carrier)) = self.hub.kind(key)
                && !carrier.wire.has_output()
                && !carrier.wire.has_parted()
            {
                carrier.wire.farewell(now_ns);
                self.hub.set_timer(key, Some(now_ns + PARTING_NS));
            }
        }
    }

    /// A session has no carrier any more: its flows were reset with them.
    fn end_session(&mut self, at: usize) {
        let Some(place) = self.sessions.take(at) else { return };
        self.counters.sessions_now.sub(1);
        // Flows that had ended in the session, while their local connections were still given the rest.
        place.flows.into_values().for_each(|key| self.outlive_session(key));
        if place.session.is_leaving() {
            for key in place.listeners.into_values() {
                self.hub.take(key);
            }
        } else {
            self.hub.hold_listeners(place.listeners.into_values(), self.now_ns);
        }
        self.uplink.iter_mut().for_each(|uplink| uplink.ended(at));
        if self.end.is_stdio {
            self.end.over.get_or_insert(None);
        }
    }

    /// Ends a session at once.
    pub(super) fn drop_session(&mut self, at: usize, reason: Reason) {
        let Some(place) = self.sessions.get_mut(at) else { return };
        place.session.leave(reason, "");
        self.flush_session(at);
        let keys: Vec<Key> = self.sessions.get(at).into_iter().flat_map(|s| s.carriers.into_iter().flatten()).collect();
        keys.into_iter().for_each(|key| self.lose_carrier(key, &reason.to_string()));
        self.hear_session(at);
    }

    fn peer_leaves(&mut self, at: usize, reason: Reason, text: &str) {
        let text = narrows_host::words::shown(text.as_bytes());
        let why = if text.is_empty() { reason.to_string() } else { text };
        if self.is_uplink(at) {
            self.leave_uplink(at, &why);
        }
        // It does not trust this end any more, and another session follows.
        if reason == Reason::Forbidden {
            self.set_apart(at);
        }
    }

    /// A session goes on for what is open; the next one of its dialer takes nothing over from it but
    /// its listeners.
    pub(super) fn set_apart(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let Some(place) = self.sessions.get_mut(at) else { return };
        place.parts_ns = Some(now_ns + UNHEARD_NS);
        let dialer = place.hello.dialer;
        let listeners = std::mem::take(&mut place.listeners);
        self.hub.hold_listeners(listeners.into_values(), self.now_ns);
        self.sessions.forget_dialer(dialer, at);
    }

    /// Sends pings that are due and drops carriers whose peer is gone.
    pub(super) fn sessions_on_time(&mut self) {
        for at in 0..self.sessions.len() {
            let now_ns = self.now_ns;
            let Some(place) = self.sessions.get_mut(at) else { continue };
            if place.next_wakeup_ns().is_none_or(|due| due > now_ns) {
                continue;
            }
            place.parts_ns = place.parts_ns.filter(|due| *due > now_ns);
            let dead = place.session.on_time(now_ns);
            let keys: Vec<Key> = dead.iter().filter_map(|n| place.carriers[usize::from(*n)]).collect();
            keys.into_iter().for_each(|key| self.lose_carrier(key, "the other end does not answer"));
            self.sessions.touch(at);
        }
    }
}
