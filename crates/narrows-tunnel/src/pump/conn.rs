//! A connection of this host that a flow carries: accepted here, or made to a target.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use narrows::block::Block;
use narrows_host::shares::Share;

use super::watched::About;
use super::{Kind, Pump};
use crate::counters::Counters;
use crate::engine::{self, Engine, Key};
use crate::incoming::Incoming;
use crate::outgoing::{Context, Outgoing};
use crate::reason::Reason;
use crate::session::{FlowId, Session};
use crate::target::Target;
use crate::{socket, socks};

/// Bytes that a connection may move in each direction before others get their turn.
const TURN: usize = 256 << 10;
/// Reads begin at this length and grow while they are filled.
const READ_MIN: usize = 16 << 10;
const READ_MAX: usize = 256 << 10;
/// A read that leaves most of a buffer empty is copied out of it.
const SPARSE: usize = 8;
/// Time in which bytes that came before a connection broke may still go on their way.
const BROKEN_NS: u64 = 5_000_000_000;
/// A broken connection ends sooner if nothing of it moves for this long: whoever should take the bytes
/// has stopped reading, and learns of the end only by it.
const STUCK_NS: u64 = 1_000_000_000;
/// Interval at which a local connection is asked whether it has all bytes before a reset.
const SETTLING_NS: u64 = 5_000_000;

pub(super) struct Conn {
    pub(super) session: usize,
    pub(super) flow: FlowId,
    pub(super) stage: Stage,
    pub(super) about: Box<About>,
    pub(super) up: Outgoing,
    pub(super) down: Incoming,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The socket has reported an error, which is read behind the last bytes.
    pub(super) broken: bool,
    /// It takes no bytes any more.
    deaf: bool,
    /// The other side of a unix socket reads no more, and may still write: what comes for it is thrown
    /// away.
    unread: bool,
    /// It has reported its end, which is read behind the last bytes, or urgent ones: no event comes
    /// for them then.
    pub(super) hung_up: bool,
    read_len: usize,
    /// The local connection sends no more.
    local_ended: bool,
    /// The session was told so.
    finished: bool,
    /// The flow is over; only the local connection gets the rest.
    rest: Option<Rest>,
    /// When a broken connection ends in any case.
    until_ns: Option<u64>,
    stuck: Stuck,
    /// The local connection was told that the peer sends no more.
    shut: bool,
    /// A SOCKS client waits for the answer to its request; it has sent these bytes already.
    socks: Option<Vec<u8>>,
    /// Amounts that the counters know.
    counted: [u64; 4],
    /// The part of its host in the limit of flows.
    _share: Option<Share>,
}

pub(super) enum Stage {
    Finding {
        host: String,
        port: u16,
    },
    /// A unix socket has a full queue; it is tried again after `wait_ns`.
    Knocking {
        path: PathBuf,
        wait_ns: u64,
        until_ns: u64,
    },
    Connecting {
        socket: OwnedFd,
        rest: VecDeque<SocketAddr>,
        until_ns: u64,
    },
    Open(OwnedFd),
    /// Both directions of the local connection have ended; the session has not sent everything.
    Closed,
}

/// How a local connection ends that outlives its flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Behind what waits for it, by the end that the peer has sent.
    Ends,
    /// By a reset.
    Breaks,
}

/// How far a broken connection has come, and since when it is no further.
#[derive(Default)]
struct Stuck(Option<(u64, u64)>);

impl Stuck {
    /// Whether nothing has moved for long. `come`: how far the connection has come.
    fn look(&mut self, come: u64, now_ns: u64) -> bool {
        match self.0 {
            Some((before, since_ns)) if before == come => now_ns.saturating_sub(since_ns) >= STUCK_NS,
            _ => {
                self.0 = Some((come, now_ns));
                false
            }
        }
    }

    /// When it is long.
    fn until_ns(&self) -> Option<u64> {
        self.0.map(|(_, since_ns)| since_ns + STUCK_NS)
    }
}

/// What was read of a connection before it was carried.
pub(super) enum Early {
    Nothing,
    Bytes(Vec<u8>),
    /// Behind the request of a SOCKS client, which waits for an answer.
    Socks(Vec<u8>),
}

/// What comes next for a connection.
enum Next {
    Wait,
    /// Its turn is over, but it has more to do.
    Again,
    /// Both directions have ended.
    Over,
    /// It ends by a reset, and the peer is to be told.
    Broken(Reason),
}

impl Conn {
    /// The same, which gives the local connection these bytes first.
    pub(super) fn behind(self, bytes: Vec<u8>) -> Self {
        Self { down: Incoming::behind(bytes), ..self }
    }

    pub(super) fn new(session: usize, flow: FlowId, stage: Stage, share: Option<Share>, about: Box<About>) -> Self {
        Self {
            session,
            flow,
            stage,
            about,
            up: Outgoing::default(),
            down: Incoming::default(),
            readable: true,
            writable: true,
            broken: false,
            deaf: false,
            unread: false,
            hung_up: false,
            read_len: READ_MIN,
            local_ended: false,
            finished: false,
            rest: None,
            until_ns: None,
            stuck: Stuck::default(),
            shut: false,
            socks: None,
            counted: [0; 4],
            _share: share,
        }
    }

    fn advance(&mut self, engine: &mut Engine, session: &mut Session, key: Key, now_ns: u64) -> Next {
        let socket = match &self.stage {
            Stage::Open(socket) if self.socks.is_none() => socket,
            Stage::Closed if session.has_left(self.flow) => return Next::Over,
            _ => return Next::Wait,
        };
        let was_late = self.until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        if self.broken && self.local_ended && !self.deaf {
            // Nothing is read any more that would tell.
            self.broken = socket::error(socket).is_some();
            self.deaf = self.broken;
        }
        let mut moved = 0;
        let mut context = Context { engine, session, flow: self.flow, key, now_ns };
        while self.readable && !self.local_ended && moved < TURN {
            let room = self.up.room(context.session, self.flow, context.engine);
            if room == 0 {
                break;
            }
            let len = room.min(self.read_len).min(READ_MAX);
            let mut buffer = context.engine.buffers.get(len);
            let read = socket::read(socket, &mut buffer.bytes_mut()[..len]);
            let read_len = read.as_ref().ok().copied().flatten().unwrap_or(0);
            let block = if read_len > 0 && read_len < buffer.capacity() / SPARSE {
                let short = Block::from_vec(buffer.bytes_mut()[..read_len].to_vec());
                context.engine.buffers.recycle(&buffer.freeze(0));
                short
            } else {
                let block = buffer.freeze(read_len);
                context.engine.buffers.recycle(&block);
                block
            };
            match read {
                Ok(None) => (self.readable, self.broken) = (false, false),
                Ok(Some(0)) => self.local_ended = true,
                Ok(Some(n)) => {
                    moved += n;
                    // A short read has emptied the socket: what comes later is an event.
                    self.readable = n == len || self.hung_up;
                    self.read_len = if n == len { (2 * len).min(self.up.read_len()).max(READ_MIN) } else { READ_MIN };
                    self.up.push(block, &mut context);
                }
                // It comes behind all bytes that arrived, and takes none.
                Err(_) => (self.local_ended, self.deaf) = (true, true),
            }
        }
        let again = moved >= TURN && self.readable;
        let delivered = self.deliver(engine, Some(&mut *session), key, now_ns);
        // A connection that takes nothing any more is over: an end would say that it has everything.
        let breaks = self.deaf || self.broken;
        self.until_ns = breaks.then(|| self.until_ns.unwrap_or(now_ns + BROKEN_NS));
        if !breaks {
            self.stuck = Stuck::default();
        }
        let left = session.queued(self.flow) as u64;
        let is_stuck = breaks && self.stuck.look((self.up.bytes + self.up.wire).wrapping_sub(left), now_ns);
        let mut context = Context { engine, session, flow: self.flow, key, now_ns };
        if self.local_ended && !self.finished && self.up.finish(&mut context) {
            self.finished = true;
            if !self.deaf {
                session.finish(self.flow);
            }
        }
        if self.deaf && self.finished {
            session.break_off(self.flow, Reason::Reset);
        }
        match delivered {
            _ if was_late || is_stuck => Next::Broken(Reason::Reset),
            _ if self.deaf && self.finished && session.has_left(self.flow) => Next::Broken(Reason::Reset),
            Err(reason) => Next::Broken(reason),
            Ok(more) if more || again => Next::Again,
            Ok(_) if self.finished && self.shut && !self.deaf => {
                if let Stage::Open(socket) = std::mem::replace(&mut self.stage, Stage::Closed) {
                    socket::close(socket);
                }
                if session.has_left(self.flow) { Next::Over } else { Next::Wait }
            }
            // The end has been sent; whoever still writes hears that nobody reads it.
            Ok(_) if self.unread && self.finished && session.has_left(self.flow) => Next::Broken(Reason::Reset),
            Ok(_) => Next::Wait,
        }
    }

    /// As [`Conn::advance`], for one whose flow is over.
    fn advance_rest(&mut self, rest: Rest, engine: &mut Engine, key: Key, now_ns: u64) -> Next {
        let delivered = self.deliver(engine, None, key, now_ns);
        let Stage::Open(socket) = &self.stage else { return Next::Over };
        let left = self.down.ready_len() as u64 + socket::unconfirmed(socket);
        let is_stuck = rest == Rest::Breaks && self.stuck.look(self.down.bytes.wrapping_sub(left), now_ns);
        let is_late = is_stuck || self.until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        match delivered {
            Err(reason) => Next::Broken(reason),
            Ok(_) if is_late || self.deaf || self.broken => Next::Broken(Reason::Reset),
            Ok(true) => Next::Again,
            // A reset takes back what the kernel still has.
            Ok(false) if rest == Rest::Breaks && self.down.is_exhausted() && socket::is_settled(socket) => {
                Next::Broken(Reason::Reset)
            }
            Ok(false) if rest == Rest::Ends && self.shut => {
                if let Stage::Open(socket) = std::mem::replace(&mut self.stage, Stage::Closed) {
                    socket::close(socket);
                }
                Next::Over
            }
            Ok(false) => Next::Wait,
        }
    }

    /// Gives the local connection what came for it. True if there is more than its turn allows.
    fn deliver(
        &mut self,
        engine: &mut Engine,
        session: Option<&mut Session>,
        key: Key,
        now_ns: u64,
    ) -> Result<bool, Reason> {
        let Stage::Open(socket) = &self.stage else { return Ok(false) };
        let (mut took, mut moved) = (0, 0);
        let mut result = Ok(false);
        while self.writable && !self.deaf {
            if moved >= TURN {
                result = Ok(true);
                break;
            }
            if self.down.fill(&mut took, key, engine).is_err() {
                result = Err(Reason::Damaged);
                break;
            }
            if !self.down.has_ready() {
                break;
            }
            let wrote = if self.unread {
                Ok(Some(self.down.ready_len()))
            } else {
                socket::write_all_of(socket, self.down.slices())
            };
            match wrote {
                Ok(Some(n)) => {
                    moved += n;
                    self.down.consume(n, &mut took);
                }
                Ok(None) => self.writable = false,
                Err(e) if socket::reads_no_more(socket, e) => self.unread = true,
                // What it has sent before is still read, for which no other event comes.
                Err(_) => {
                    (self.deaf, self.readable) = (true, true);
                    result = Ok(true);
                }
            }
        }
        if self.deaf {
            self.down.discard(engine);
        }
        self.down.set_stalled(!self.writable);
        self.down.count(engine);
        if let Some(session) = session {
            if took > 0 {
                session.took(self.flow, took, now_ns);
            }
            session.delivered(self.flow, self.down.delivered(), now_ns);
        }
        if result == Ok(false) && !self.shut && !self.deaf && self.down.is_over() {
            socket::finish(socket);
            self.shut = true;
        }
        result
    }

    /// When it is to be advanced although nothing happens to it.
    fn next_wakeup_ns(&self, session: Option<&Session>, now_ns: u64) -> Option<u64> {
        let up_ns = session.and_then(|session| self.up.next_wakeup_ns(session.queued(self.flow) > 0));
        let settles = self.rest == Some(Rest::Breaks) && self.down.is_exhausted();
        let settling_ns = settles.then_some(now_ns + SETTLING_NS);
        let stuck_ns = self.until_ns.and(self.stuck.until_ns());
        let report_ns = session.and_then(|session| session.report_ns(self.flow, self.down.delivered()));
        [up_ns, settling_ns, report_ns, self.until_ns, stuck_ns].into_iter().flatten().min()
    }
}

impl Pump {
    /// Whether the rate of its host allows one more connection of a session, be it to be refused.
    pub(super) fn is_within_rate(&mut self, session: usize) -> bool {
        let host = self.sessions.host(session);
        let Some(host) = host.filter(|_| self.settings.limits.flows_per_s > 0) else { return true };
        let allowed = self.flow_rates.allow(host, self.now_ns);
        self.counters.flows_over_rate.add(u64::from(!allowed));
        allowed
    }

    /// Takes a place for one more connection of a session.
    pub(super) fn place_for(&mut self, session: usize) -> Option<Option<Share>> {
        let host = self.sessions.get(session)?.host;
        let share = host.map(|host| {
            let mut share = self.hosts.of(host);
            share.grow(1).then_some(share)
        });
        // A dialer has one peer, with which it shares nothing.
        let share = match share {
            None => Some(None),
            Some(share) => share.map(Some),
        };
        let share = share.filter(|_| self.flows < self.settings.flows_max);
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
        let about = self.about(&target.client, target.to_string());
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
        self.flows += 1;
        self.counters.flows_now.set(self.flows as u64);
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
        let Self { hub, sessions, engine, now_ns, counters, .. } = self;
        let Some(Kind::Conn(conn)) = hub.kind(key) else { return };
        let (next, due_ns) = if let Some(rest) = conn.rest {
            (conn.advance_rest(rest, engine, key, *now_ns), conn.next_wakeup_ns(None, *now_ns))
        } else {
            let Some(place) = sessions.get_mut(conn.session) else { return };
            let next = conn.advance(engine, &mut place.session, key, *now_ns);
            (next, conn.next_wakeup_ns(Some(&place.session), *now_ns))
        };
        conn.count(counters);
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
        self.flows -= 1;
        conn.count(&self.counters);
        self.counters.flows_now.set(self.flows as u64);
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
        let now_ns = self.now_ns;
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let (session, flow) = (conn.session, conn.flow);
        conn.up.abandon();
        conn.rest = Some(rest);
        conn.stuck = Stuck::default();
        conn.until_ns = (rest == Rest::Breaks).then_some(now_ns + BROKEN_NS);
        self.forget_flow(key, session, flow);
        self.hub.queue(key);
    }

    /// The session of a connection is over.
    pub(super) fn outlive_session(&mut self, key: Key) {
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        // Both ends have finished, but a slow client has not everything yet.
        if matches!(conn.stage, Stage::Open(_)) && conn.finished && conn.down.has_ended() && !conn.deaf {
            return self.outlive(key, Rest::Ends);
        }
        let Some(Kind::Conn(mut conn)) = self.hub.take(key) else { return };
        self.count_off(key, &mut conn, Some(Reason::Lost));
        conn.abort();
    }

    /// The connection of a flow.
    pub(super) fn conn_of(&mut self, session: usize, flow: FlowId) -> Option<(Key, &mut Conn)> {
        let key = *self.sessions.get(session)?.flows.get(&flow)?;
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
        let now_ns = self.now_ns;
        let counters = std::sync::Arc::clone(&self.counters);
        let Some((key, conn)) = self.conn_of(session, flow) else { return };
        conn.about.reached(&counters, now_ns);
        self.hub.queue(key);
        let Some(Kind::Conn(conn)) = self.hub.kind(key) else { return };
        let Some(early) = conn.socks.take() else { return };
        // Its buffer is empty, so that the answer fits. An error that this call took is told by no other
        // one: without it the end of a client that is gone would look like that of its bytes.
        if let Stage::Open(socket) = &conn.stage {
            let answer = socks::answer(Ok(()));
            conn.deaf |= !matches!(socket::write(socket, &answer), Ok(Some(len)) if len == answer.len());
        }
        self.push_early(key, early);
    }

    /// Passes on what was read before a connection was carried.
    fn push_early(&mut self, key: Key, early: Vec<u8>) {
        let now_ns = self.now_ns;
        let Self { sessions, hub, engine, .. } = self;
        let Some(Kind::Conn(conn)) = hub.kind(key) else { return };
        let Some(place) = sessions.get_mut(conn.session) else { return };
        if !early.is_empty() {
            let mut context = Context { engine, session: &mut place.session, flow: conn.flow, key, now_ns };
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
        let now_ns = self.now_ns;
        let Self { hub, sessions, engine, .. } = self;
        let Some(Kind::Conn(conn)) = hub.kind(key) else { return };
        let (session, flow) = (conn.session, conn.flow);
        let failed = match result {
            engine::Result::Encoded(done) => {
                if let Some(place) = sessions.get_mut(session).filter(|_| conn.rest.is_none()) {
                    conn.up.encoded(*done, &mut Context { engine, session: &mut place.session, flow, key, now_ns });
                }
                None
            }
            engine::Result::Decoded(done) => conn.down.decoded(*done, key, engine).err().map(|_| Reason::Damaged),
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
        let now_ns = self.now_ns;
        let Self { hub, sessions, engine, .. } = self;
        let Some(place) = sessions.get_mut(session) else { return };
        let Some(key) = place.flows.get(&flow).copied() else { return };
        let Some(Kind::Conn(conn)) = hub.kind(key) else { return };
        conn.up.on_carrier(len, carrier, look, &mut Context { engine, session: &mut place.session, flow, key, now_ns });
        // There may be room to read more, or an end to be told.
        self.hub.queue(key);
    }

    pub(super) fn conn_on_time(&mut self, key: Key) {
        let now_ns = self.now_ns;
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
        let Self { hub, sessions, engine, .. } = self;
        let Some(Kind::Conn(conn)) = hub.kind(key) else { return };
        let Some(place) = sessions.get_mut(session) else { return };
        conn.up.on_time(carrier, &look, &mut Context { engine, session: &mut place.session, flow, key, now_ns });
    }
}

impl Conn {
    /// Adds to the counters what came since the last time: bytes for a carrier are made, and those of it
    /// come, in other turns than its own too.
    pub(super) fn count(&mut self, counters: &Counters) {
        let now = self.amounts();
        let before = std::mem::replace(&mut self.counted, now);
        counters.raw_bytes_out.add(now[0] - before[0]);
        counters.wire_bytes_out.add(now[1] - before[1]);
        counters.raw_bytes_in.add(now[2] - before[2]);
        counters.wire_bytes_in.add(now[3] - before[3]);
    }

    /// Bytes so far: of the local connection and of the carrier, sent and received.
    pub(super) fn amounts(&self) -> [u64; 4] {
        [self.up.bytes, self.up.wire, self.down.bytes, self.down.wire]
    }

    /// Whether a look at the carrier is of use.
    pub(super) fn has_stream(&self) -> bool {
        self.up.has_stream()
    }

    pub(super) fn abort(self) {
        match self.stage {
            Stage::Open(socket) | Stage::Connecting { socket, .. } => socket::abort(socket),
            Stage::Finding { .. } | Stage::Knocking { .. } | Stage::Closed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thousands of idle flows are the usual state of a tunnel between two sites.
    #[test]
    fn an_idle_connection_is_small() {
        let size = size_of::<Conn>();
        assert!(size <= 640, "{size} bytes");
    }

    #[test]
    fn a_broken_connection_is_stuck_when_nothing_moves() {
        let mut stuck = Stuck::default();
        assert_eq!(stuck.until_ns(), None);
        assert!(!stuck.look(7, 5) && !stuck.look(7, STUCK_NS));
        assert_eq!(stuck.until_ns(), Some(5 + STUCK_NS));
        // It moves on, however slowly.
        assert!(!stuck.look(8, 5 + STUCK_NS) && !stuck.look(8, 4 + 2 * STUCK_NS));
        assert!(stuck.look(8, 5 + 2 * STUCK_NS));
    }
}
