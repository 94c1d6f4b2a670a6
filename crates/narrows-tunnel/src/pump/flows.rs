//! Flows: their beginning, their course between sockets and sessions, and their end.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use narrows::block::Block;
use narrows_host::shares::{Share, Shares};

use super::conn::{Conn, Next, Rest, Stage};
use super::watched::Tracing;
use super::{Kind, Pump};
use crate::engine::{self, Key};
use crate::limits::Limits;
use crate::outgoing::Context;
use crate::rate::Rates;
use crate::reason::Reason;
use crate::session::FlowId;
use crate::target::Target;
use crate::{socket, socks};

/// What all flows have together.
pub(super) struct Flows {
    /// Their number, and parts of hosts in it.
    pub(super) open: usize,
    hosts: Shares,
    pub(super) rates: Rates,
    /// Connections that have not said where to, the oldest one first.
    pub(super) undecided: VecDeque<(Key, IpAddr)>,
    /// Number of the latest connection, for who watches.
    pub(super) numbered: u64,
    pub(super) traces: Vec<Tracing>,
}

impl Flows {
    pub(super) fn new(most: usize, limits: &Limits) -> Self {
        let (hosts, rates) = (Shares::new(most), Rates::new(limits.flows_per_s, limits.flows_per_s));
        Self { open: 0, hosts, rates, undecided: VecDeque::new(), numbered: 0, traces: Vec::new() }
    }

    /// The part of a host in one more flow, if there may be one. A dialer has one peer, with which it shares
    /// nothing.
    fn place_for(&mut self, host: Option<IpAddr>, most: usize) -> Option<Option<Share>> {
        let mut share = host.map(|host| self.hosts.of(host));
        let is_granted = share.as_mut().is_none_or(|share| share.grow(1));
        (is_granted && self.open < most).then_some(share)
    }
}

/// What was read of a connection before it was carried.
pub(super) enum Early {
    Nothing,
    Bytes(Vec<u8>),
    /// After the request of a SOCKS client, which waits for an answer.
    Socks(Vec<u8>),
}

impl Pump {
    /// Whether the rate of its host allows one more connection of a session, be it to be refused.
    pub(super) fn is_within_rate(&mut self, session: usize) -> bool {
        let host = self.sessions.host(session);
        let Some(host) = host.filter(|_| self.settings.limits.flows_per_s > 0) else { return true };
        let allowed = self.flows.rates.allow(host, self.now_ns);
        self.counters.flows_over_rate.add(u64::from(!allowed));
        allowed
    }

    /// Takes a place for one more connection of a session.
    pub(super) fn place_for(&mut self, session: usize) -> Option<Option<Share>> {
        let host = self.sessions.get(session)?.host;
        let share = self.flows.place_for(host, self.settings.flows_max);
        if share.is_none() {
            self.counters.flows_over_limit.add(1);
        }
        share
    }

    /// Carries a connection that was accepted here, and has been read from as `early` says.
    pub(super) fn carry(&mut self, session: usize, socket: OwnedFd, target: &Target, early: Early) {
        if !self.is_within_rate(session) {
            return socket::abort(socket);
        }
        let share = self.place_for(session);
        let about = self.flows.about(&target.client, target.to_string(), self.now_ns);
        let place = self.sessions.get_mut(session).filter(|_| share.is_some());
        let Some((flow, share)) = place.and_then(|place| place.session.open(target)).zip(share) else {
            return socket::abort(socket);
        };
        self.counters.flows_opened.add(1);
        socket::break_on_close(&socket);
        let mut conn = Conn::new(session, flow, Stage::Open(socket), share, about);
        match early {
            Early::Nothing => drop(self.begin(conn)),
            Early::Socks(bytes) => {
                conn.socks = Some(bytes);
                self.begin(conn);
            }
            Early::Bytes(bytes) => {
                let key = self.begin(conn);
                self.push_early(key, bytes);
            }
        }
    }

    pub(super) fn begin(&mut self, conn: Conn) -> Key {
        let (session, flow) = (conn.session, conn.flow);
        let key = self.hub.add(Kind::Conn(Box::new(conn)));
        if let Some(place) = self.sessions.get_mut(session) {
            place.flows.insert(flow, key);
        }
        self.flows.open += 1;
        self.counters.flows_now.set(self.flows.open as u64);
        self.hub.queue(key);
        self.sessions.touch(session);
        key
    }

    // --- course ---

    /// Gives a connection its turn.
    pub(super) fn advance(&mut self, key: Key) {
        match self.hub.kind(key) {
            Some(Kind::Conn(conn)) => match conn.stage {
                Stage::Connecting { .. } => return self.connecting(key, false),
                Stage::Finding { .. } | Stage::Knocking { .. } => return,
                Stage::Open(_) | Stage::Closed => {}
            },
            Some(Kind::Carrier(_)) => return self.carrier_ready(key),
            Some(Kind::Listener(_)) => return self.listener_ready(key),
            _ => return,
        }
        let now_ns = self.now_ns;
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let (next, due_ns) = if let Some(rest) = conn.rest {
            (conn.advance_rest(rest, &mut self.work.engine, key, now_ns), conn.next_wakeup_ns(None, now_ns))
        } else {
            let Some(place) = self.sessions.get_mut(conn.session) else { return };
            let next = conn.advance(&mut self.work.engine, &mut place.session, key, now_ns);
            (next, conn.next_wakeup_ns(Some(&place.session), now_ns))
        };
        conn.count(&self.counters);
        let session = conn.session;
        self.sessions.touch(session);
        match next {
            Next::Wait => self.hub.set_timer(key, due_ns),
            Next::Again => {
                self.hub.set_timer(key, due_ns);
                self.hub.queue(key);
            }
            Next::Over => self.end(key, None),
            Next::Broken(reason) => self.end(key, Some(reason)),
        }
    }

    /// Ends a connection of this host, with a reset if there is a reason.
    fn end(&mut self, key: Key, reason: Option<Reason>) {
        let Some(Kind::Conn(mut conn)) = self.hub.take(key) else { return };
        self.count_off(key, &mut conn, reason);
        let Some(reason) = reason else { return };
        if reason == Reason::Damaged {
            self.counters.flows_damaged.add(1);
            let name = conn.about.name();
            self.report_flow(conn.session, format!("{name}: the data was damaged on its way"));
        }
        if conn.rest.is_none() {
            self.counters.flows_reset.add(1);
            if let Some(place) = self.sessions.get_mut(conn.session) {
                place.session.reset(conn.flow, reason);
            }
        }
        conn.abort();
    }

    /// A connection is over; for a reason, if it did not end by itself.
    pub(super) fn count_off(&mut self, key: Key, conn: &mut Conn, reason: Option<Reason>) {
        self.flows.open -= 1;
        conn.count(&self.counters);
        self.counters.flows_now.set(self.flows.open as u64);
        self.tell_end(conn, reason);
        self.forget_flow(key, conn.session, conn.flow);
    }

    /// The session has nothing to do with a connection any more.
    fn forget_flow(&mut self, key: Key, session: usize, flow: FlowId) {
        if let Some(place) = self.sessions.get_mut(session)
            && place.flows.get(&flow) == Some(&key)
        {
            place.flows.remove(&flow);
        }
        self.sessions.touch(session);
    }

    /// The flow of a connection is over, but not what waits for its local connection.
    fn outlive(&mut self, key: Key, rest: Rest) {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let (session, flow) = (conn.session, conn.flow);
        conn.outlive(rest, self.now_ns);
        self.forget_flow(key, session, flow);
        self.hub.queue(key);
    }

    /// The session of a connection is over.
    pub(super) fn outlive_session(&mut self, key: Key) {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        if conn.has_rest() {
            return self.outlive(key, Rest::Ends);
        }
        let Some(Kind::Conn(mut conn)) = self.hub.take(key) else { return };
        self.count_off(key, &mut conn, Some(Reason::Lost));
        conn.abort();
    }

    /// A connection whose flow has a session, and what its way out needs.
    fn at_work(&mut self, key: Key) -> Option<(&mut Conn, Context<'_>)> {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return None };
        let session = &mut self.sessions.get_mut(conn.session)?.session;
        let (engine, flow, now_ns) = (&mut self.work.engine, conn.flow, self.now_ns);
        Some((conn, Context { engine, session, flow, key, now_ns }))
    }

    /// The connection of a flow.
    pub(super) fn conn_of(&mut self, session: usize, flow: FlowId) -> Option<(Key, &mut Conn)> {
        let key = self.sessions.conn(session, flow)?;
        match self.hub.kind(key) {
            Some(Kind::Conn(conn)) => Some((key, conn)),
            _ => None,
        }
    }

    /// Bytes of a flow have come, or its end.
    pub(super) fn arrived(&mut self, session: usize, flow: FlowId, bytes: Option<(bool, Block)>) {
        let Some((key, conn)) = self.conn_of(session, flow) else { return };
        match bytes {
            Some((coded, bytes)) => conn.down.push(coded, bytes),
            None => conn.down.end(),
        }
        self.hub.queue(key);
    }

    /// There may be room for more bytes of a flow.
    pub(super) fn has_room(&mut self, session: usize, flow: FlowId) {
        if let Some((key, _)) = self.conn_of(session, flow) {
            self.hub.queue(key);
        }
    }

    /// The peer has reached the target of a flow.
    pub(super) fn reached(&mut self, session: usize, flow: FlowId) {
        let Some(key) = self.sessions.conn(session, flow) else { return };
        self.hub.queue(key);
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        conn.about.reached(&self.counters, self.now_ns);
        let Some(early) = conn.socks.take() else { return };
        // Its buffer is empty, so that the answer fits. An error that this call took is told by no other
        // one: without it the end of a client that is gone would look like that of its bytes.
        if let Stage::Open(socket) = &conn.stage {
            let answer = socks::answer(Ok(()));
            conn.local.deaf |= !matches!(socket::write(socket, &answer), Ok(Some(len)) if len == answer.len());
        }
        self.push_early(key, early);
    }

    /// Passes on what was read before a connection was carried.
    fn push_early(&mut self, key: Key, early: Vec<u8>) {
        let Some((conn, mut context)) = self.at_work(key) else { return };
        if !early.is_empty() {
            conn.up.push(Block::from_vec(early), &mut context);
        }
        self.hub.queue(key);
    }

    /// The flow is over; the session knows it already.
    pub(super) fn gone(&mut self, session: usize, flow: FlowId, reason: Reason, text: &str) {
        let Some((key, conn)) = self.conn_of(session, flow) else { return };
        let said = (!text.is_empty()).then(|| format!("{}: {reason}: {text}", conn.about.name()));
        let outlives = matches!(conn.stage, Stage::Open(_)) && conn.socks.is_none();
        if let Some(text) = said {
            self.report_flow(session, text);
        }
        if outlives {
            // What came before the reset is delivered before it.
            return self.outlive(key, Rest::Breaks);
        }
        let Some(Kind::Conn(mut conn)) = self.hub.take(key) else { return };
        self.count_off(key, &mut conn, Some(reason));
        if conn.socks.is_some()
            && let Stage::Open(socket) = std::mem::replace(&mut conn.stage, Stage::Closed)
        {
            let _ = socket::write(&socket, &socks::answer(Err(reason)));
            return socket::close(socket);
        }
        conn.abort();
    }

    /// A worker has done a job of a connection.
    pub(super) fn worker_done(&mut self, key: Key, result: engine::Result) {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let session = conn.session;
        let failed = match result {
            engine::Result::Encoded(done) => {
                let has_flow = conn.rest.is_none();
                if let Some((conn, mut context)) = self.at_work(key).filter(|_| has_flow) {
                    conn.up.encoded(*done, &mut context);
                }
                None
            }
            engine::Result::Decoded(done) => {
                conn.down.decoded(*done, key, &mut self.work.engine).err().map(|_| Reason::Damaged)
            }
            engine::Result::Failed => Some(Reason::Other),
        };
        self.sessions.touch(session);
        match failed {
            None => self.hub.queue(key),
            Some(reason) => self.end(key, Some(reason)),
        }
    }

    /// A carrier has taken bytes of a flow.
    pub(super) fn carried(
        &mut self,
        session: usize,
        flow: FlowId,
        len: usize,
        carrier: u8,
        look: &crate::outgoing::Look,
    ) {
        let Some(key) = self.sessions.conn(session, flow) else { return };
        let Some((conn, mut context)) = self.at_work(key) else { return };
        conn.up.on_carrier(len, carrier, look, &mut context);
        // There may be room to read more, or an end to be told.
        self.hub.queue(key);
    }

    pub(super) fn conn_on_time(&mut self, key: Key) {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        match &conn.stage {
            Stage::Connecting { .. } => return self.connecting(key, true),
            Stage::Knocking { .. } => return self.knock(key),
            _ => {}
        }
        // Its time may be over.
        self.hub.queue(key);
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        if conn.rest.is_some() || !conn.has_stream() {
            return;
        }
        let (session, flow) = (conn.session, conn.flow);
        let Some((carrier, look)) = self.look(session, flow) else { return };
        let Some((conn, mut context)) = self.at_work(key) else { return };
        conn.up.on_time(carrier, &look, &mut context);
    }
}
