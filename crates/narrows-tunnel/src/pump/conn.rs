//! A connection of this host that a flow carries: accepted here, or made to a target.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use narrows::block::Block;
use narrows_host::shares::Share;

use super::watched::About;
use crate::counters::Counters;
use crate::engine::{Engine, Key};
use crate::incoming::Incoming;
use crate::outgoing::{Context, Outgoing};
use crate::reason::Reason;
use crate::session::{FlowId, Session};
use crate::socket;

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
    pub(super) local: Local,
    /// The session was told that the local connection sends no more.
    finished: bool,
    /// The flow is over; only the local connection gets the rest.
    pub(super) rest: Option<Rest>,
    /// When a broken connection ends in any case.
    until_ns: Option<u64>,
    stuck: Stuck,
    /// A SOCKS client waits for the answer to its request; it has sent these bytes already.
    pub(super) socks: Option<Vec<u8>>,
    /// Amounts that the counters know.
    counted: [u64; 4],
    /// The part of its host in the limit of flows.
    _share: Option<Share>,
}

/// How a local connection is.
pub(super) struct Local {
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The socket has reported an error, which is read after the last bytes.
    broken: bool,
    /// It takes no bytes any more.
    pub(super) deaf: bool,
    /// The other side of a unix socket reads no more, and may still write: what comes for it is thrown
    /// away.
    unread: bool,
    /// It has reported its end, which is read after the last bytes, or urgent ones: no event comes
    /// for them then.
    hung_up: bool,
    /// It sends no more.
    ended: bool,
    /// It was told that the peer sends no more.
    shut: bool,
    read_len: usize,
}

impl Local {
    /// One of which nothing is known yet but whether bytes may come, and may be given to it.
    pub(super) fn new(readable: bool, writable: bool) -> Self {
        let [broken, deaf, unread, hung_up, ended, shut] = [false; 6];
        Self { readable, writable, broken, deaf, unread, hung_up, ended, shut, read_len: READ_MIN }
    }

    pub(super) fn happened(&mut self, readable: bool, writable: bool, hung_up: bool, broken: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
        self.broken |= broken;
    }
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
pub(super) enum Rest {
    /// After what waits for it, by the end that the peer has sent.
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

/// What comes next for a connection.
pub(super) enum Next {
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
            local: Local::new(true, true),
            finished: false,
            rest: None,
            until_ns: None,
            stuck: Stuck::default(),
            socks: None,
            counted: [0; 4],
            _share: share,
        }
    }

    pub(super) fn advance(&mut self, engine: &mut Engine, session: &mut Session, key: Key, now_ns: u64) -> Next {
        let socket = match &self.stage {
            Stage::Open(socket) if self.socks.is_none() => socket,
            Stage::Closed if session.has_left(self.flow) => return Next::Over,
            _ => return Next::Wait,
        };
        let was_late = self.until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        if self.local.broken && self.local.ended && !self.local.deaf {
            // Nothing is read any more that would tell.
            self.local.broken = socket::error(socket).is_some();
            self.local.deaf = self.local.broken;
        }
        let mut moved = 0;
        let mut context = Context { engine, session, flow: self.flow, key, now_ns };
        while self.local.readable && !self.local.ended && moved < TURN {
            let room = self.up.room(context.session, self.flow, context.engine);
            if room == 0 {
                break;
            }
            let len = room.min(self.local.read_len).min(READ_MAX);
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
                Ok(None) => (self.local.readable, self.local.broken) = (false, false),
                Ok(Some(0)) => self.local.ended = true,
                Ok(Some(n)) => {
                    moved += n;
                    // A short read has emptied the socket: what comes later is an event.
                    self.local.readable = n == len || self.local.hung_up;
                    self.local.read_len =
                        if n == len { (2 * len).min(self.up.read_len()).max(READ_MIN) } else { READ_MIN };
                    self.up.push(block, &mut context);
                }
                // It comes after all bytes that arrived, and takes none.
                Err(_) => (self.local.ended, self.local.deaf) = (true, true),
            }
        }
        let again = moved >= TURN && self.local.readable;
        let delivered = self.deliver(engine, Some(&mut *session), key, now_ns);
        // A connection that takes nothing any more is over: an end would say that it has everything.
        let breaks = self.local.deaf || self.local.broken;
        self.until_ns = breaks.then(|| self.until_ns.unwrap_or(now_ns + BROKEN_NS));
        if !breaks {
            self.stuck = Stuck::default();
        }
        let left = session.queued(self.flow) as u64;
        let is_stuck = breaks && self.stuck.look((self.up.bytes + self.up.wire).wrapping_sub(left), now_ns);
        let mut context = Context { engine, session, flow: self.flow, key, now_ns };
        if self.local.ended && !self.finished && self.up.finish(&mut context) {
            self.finished = true;
            if !self.local.deaf {
                session.finish(self.flow);
            }
        }
        if self.local.deaf && self.finished {
            session.break_off(self.flow, Reason::Reset);
        }
        match delivered {
            _ if was_late || is_stuck => Next::Broken(Reason::Reset),
            _ if self.local.deaf && self.finished && session.has_left(self.flow) => Next::Broken(Reason::Reset),
            Err(reason) => Next::Broken(reason),
            Ok(more) if more || again => Next::Again,
            Ok(_) if self.finished && self.local.shut && !self.local.deaf => {
                if let Stage::Open(socket) = std::mem::replace(&mut self.stage, Stage::Closed) {
                    socket::close(socket);
                }
                if session.has_left(self.flow) { Next::Over } else { Next::Wait }
            }
            // The end has been sent; whoever still writes hears that nobody reads it.
            Ok(_) if self.local.unread && self.finished && session.has_left(self.flow) => Next::Broken(Reason::Reset),
            Ok(_) => Next::Wait,
        }
    }

    /// As [`Conn::advance`], for one whose flow is over.
    pub(super) fn advance_rest(&mut self, rest: Rest, engine: &mut Engine, key: Key, now_ns: u64) -> Next {
        let delivered = self.deliver(engine, None, key, now_ns);
        let Stage::Open(socket) = &self.stage else { return Next::Over };
        let left = self.down.ready_len() as u64 + socket::unconfirmed(socket);
        let is_stuck = rest == Rest::Breaks && self.stuck.look(self.down.bytes.wrapping_sub(left), now_ns);
        let is_late = is_stuck || self.until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        match delivered {
            Err(reason) => Next::Broken(reason),
            Ok(_) if is_late || self.local.deaf || self.local.broken => Next::Broken(Reason::Reset),
            Ok(true) => Next::Again,
            // A reset takes back what the kernel still has.
            Ok(false) if rest == Rest::Breaks && self.down.is_exhausted() && socket::is_settled(socket) => {
                Next::Broken(Reason::Reset)
            }
            Ok(false) if rest == Rest::Ends && self.local.shut => {
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
        while self.local.writable && !self.local.deaf {
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
            let wrote = if self.local.unread {
                Ok(Some(self.down.ready_len()))
            } else {
                socket::write_all_of(socket, self.down.slices())
            };
            match wrote {
                Ok(Some(n)) => {
                    moved += n;
                    self.down.consume(n, &mut took);
                }
                Ok(None) => self.local.writable = false,
                Err(e) if socket::reads_no_more(socket, e) => self.local.unread = true,
                // What it has sent before is still read, for which no other event comes.
                Err(_) => {
                    (self.local.deaf, self.local.readable) = (true, true);
                    result = Ok(true);
                }
            }
        }
        if self.local.deaf {
            self.down.discard(engine);
        }
        self.down.set_stalled(!self.local.writable);
        self.down.count(engine);
        if let Some(session) = session {
            if took > 0 {
                session.took(self.flow, took, now_ns);
            }
            session.delivered(self.flow, self.down.delivered(), now_ns);
        }
        if result == Ok(false) && !self.local.shut && !self.local.deaf && self.down.is_over() {
            socket::finish(socket);
            self.local.shut = true;
        }
        result
    }

    /// When it is to be advanced although nothing happens to it.
    pub(super) fn next_wakeup_ns(&self, session: Option<&Session>, now_ns: u64) -> Option<u64> {
        let up_ns = session.and_then(|session| self.up.next_wakeup_ns(session.queued(self.flow) > 0));
        let settles = self.rest == Some(Rest::Breaks) && self.down.is_exhausted();
        let settling_ns = settles.then_some(now_ns + SETTLING_NS);
        let stuck_ns = self.until_ns.and(self.stuck.until_ns());
        let report_ns = session.and_then(|session| session.report_ns(self.flow, self.down.delivered()));
        [up_ns, settling_ns, report_ns, self.until_ns, stuck_ns].into_iter().flatten().min()
    }

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

    /// Only what waits for the local connection goes on.
    pub(super) fn outlive(&mut self, rest: Rest, now_ns: u64) {
        self.up.abandon();
        self.rest = Some(rest);
        self.stuck = Stuck::default();
        self.until_ns = (rest == Rest::Breaks).then_some(now_ns + BROKEN_NS);
    }

    /// Both ends have finished, but a slow client has not everything yet.
    pub(super) fn has_rest(&self) -> bool {
        matches!(self.stage, Stage::Open(_)) && self.finished && self.down.has_ended() && !self.local.deaf
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
