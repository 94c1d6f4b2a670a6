//! Carriers: bytes between their sockets and their sessions.

use std::collections::VecDeque;
use std::process::Child;
use std::time::{Duration, Instant};

use narrows::block::BufferPool;
use narrows_host::shares::{Share, Shares};

use super::sessions::{SessionPlace, Sessions};
use super::{Hub, Kind, Pump};
use crate::asks::Asks;
use crate::engine::Key;
use crate::frame::Parser;
use crate::hello::Place;
use crate::limits::CARRIERS_MAX;
use crate::outgoing::Look;
use crate::session::{FlowId, Sent, Session};
use crate::settings::Report;
use crate::socket;
use crate::wire::Wire;

/// Bytes that a carrier may move in each direction before others get their turn.
const TURN: usize = 1 << 20;

pub(super) struct CarrierPlace {
    pub(super) session: usize,
    pub(super) number: u8,
    pub(super) wire: Wire,
    /// The remote shell, which ends with its carrier.
    pub(super) child: Option<Child>,
    /// It is in `held`: its peer has asked for more than one may at a time.
    pub(super) is_held: bool,
    _share: Option<Share>,
}

/// Time for a remote shell to end by itself, so that it can restore its terminal.
const CHILD_ENDS: Duration = Duration::from_secs(2);

impl CarrierPlace {
    /// Gives its session what it has, or a part if that is much. Returns how much that was, and why it is
    /// lost if it is.
    fn read(&mut self, session: &mut Session, buffers: &BufferPool, now_ns: u64) -> (usize, Option<String>) {
        let number = self.number;
        let has_parted = self.wire.has_parted();
        if session.is_held(number)
            && let Err(e) = session.resume(number, now_ns)
        {
            return (0, Some(e.to_string()));
        }
        let mut moved = 0;
        while moved < TURN && (has_parted || session.wants_input(number) && !session.is_held(number)) {
            match self.wire.read(buffers) {
                Ok(None) => break,
                Ok(Some(bytes)) if bytes.is_empty() => {
                    return (moved, Some("the other end closed the connection".to_owned()));
                }
                // Only the end is still waited for.
                Ok(Some(bytes)) if has_parted => moved += bytes.len(),
                Ok(Some(bytes)) => {
                    moved += bytes.len();
                    if let Err(e) = session.receive(number, bytes, now_ns) {
                        return (moved, Some(e.to_string()));
                    }
                }
                Err(e) => return (moved, Some(narrows_host::words::e_text(&e))),
            }
        }
        (moved, None)
    }
}

impl Drop for CarrierPlace {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            end_child(child);
        }
    }
}

/// Asks a program to end, and makes it if it does not; nobody waits for it.
fn end_child(mut child: Child) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
    let end = move || {
        let begun = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if begun.elapsed() >= CHILD_ENDS {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // Without a thread the program has been asked, and the system waits for it when this one ends.
    let _ = std::thread::Builder::new().name("narrows-shell".into()).stack_size(64 << 10).spawn(end);
}

/// What all carriers have together.
pub(super) struct Carriers {
    /// What hosts may still ask for before the sockets are looked at again.
    asks: Asks,
    /// Those that brought more.
    held: VecDeque<Key>,
    /// Parts of hosts in the number of carriers and listeners.
    pub(super) attached: Shares,
    /// What a carrier is to be given now, and the flows that it is of.
    output: Vec<u8>,
    sent: Vec<Sent>,
}

impl Carriers {
    pub(super) fn new(attached_max: usize) -> Self {
        let attached = Shares::new(attached_max);
        Self { asks: Asks::default(), held: VecDeque::new(), attached, output: Vec::new(), sent: Vec::new() }
    }

    /// The sockets are looked at again.
    pub(super) fn begin_turn(&mut self) {
        self.asks.begin(self.are_held());
    }

    /// Whether some have brought more than their hosts may ask for.
    pub(super) fn are_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Lets a session take what its host may still ask for.
    fn asking<T>(&mut self, place: &mut SessionPlace, take: impl FnOnce(&mut Session) -> T) -> T {
        let left = self.asks.left(place.host);
        place.session.set_asks_left(left);
        let taken = take(&mut place.session);
        self.asks.take(place.host, left - place.session.asks_left());
        taken
    }

    /// Gives carriers that were held their turn, those first whose host had none for longest, and each time
    /// beginning with another one: a host has one allowance for all that it has.
    pub(super) fn release(&mut self, hub: &mut Hub, sessions: &Sessions) {
        let mut held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            held.rotate_left(1);
        }
        let mut waiting = Vec::with_capacity(held.len());
        for key in held {
            if let Some(Kind::Carrier(carrier)) = hub.kind(key) {
                carrier.is_held = false;
                waiting.push((sessions.host(carrier.session), key));
            }
        }
        self.asks.serve(waiting).into_iter().for_each(|key| hub.queue(key));
    }
}

impl Pump {
    /// Adds a carrier to a session. `parser` has given the hello to an acceptor.
    pub(super) fn add_carrier(
        &mut self,
        session: usize,
        at: impl Into<Place>,
        wire: Wire,
        child: Option<Child>,
        parser: Parser,
        share: Option<Share>,
    ) {
        let now_ns = self.now_ns;
        let at = at.into();
        let number = at.number;
        if let Some(old) = self.sessions.get(session).and_then(|s| s.carriers[usize::from(number)]) {
            self.lose_carrier(old, "replaced");
        }
        // Its silence ends it by the session's own clock, which TCP's is not to precede by much.
        let silence = std::time::Duration::from_nanos(self.settings.timing.dead_after_ns);
        socket::limit_silence(&wire.socket, silence);
        let carrier = CarrierPlace { session, number, wire, child, is_held: false, _share: share };
        let key = self.hub.add(Kind::Carrier(Box::new(carrier)));
        let Some(place) = self.sessions.get_mut(session) else { return };
        place.carriers[usize::from(number)] = Some(key);
        place.session.add_carrier(at, parser, now_ns);
        let resumed = self.carriers.asking(place, |session| session.resume(number, now_ns));
        self.counters.carriers_now.add(1);
        match resumed {
            Ok(()) => self.hub.queue(key),
            Err(e) => self.lose_carrier(key, &e.to_string()),
        }
        self.sessions.touch(session);
    }

    /// Reads what a carrier has.
    pub(super) fn carrier_ready(&mut self, key: Key) {
        let now_ns = self.now_ns;
        let Some(Kind::Carrier(carrier)) = self.hub.kind(key) else { return };
        let (at, number) = (carrier.session, carrier.number);
        let Some(place) = self.sessions.get_mut(at) else { return };
        if carrier.is_held {
            return;
        }
        let buffers = &self.work.engine.buffers;
        let (moved, lost) = self.carriers.asking(place, |session| carrier.read(session, buffers, now_ns));
        carrier.is_held = place.session.is_held(number) && !carrier.wire.has_parted() && lost.is_none();
        let is_held = carrier.is_held;
        self.sessions.touch(at);
        if is_held {
            return self.carriers.held.push_back(key);
        }
        if let Some(why) = lost {
            // What came before the end counts.
            self.hear_session(at);
            return self.lose_carrier(key, &why);
        }
        if moved >= TURN {
            self.hub.queue(key);
        }
    }

    /// A carrier is gone.
    pub(super) fn lose_carrier(&mut self, key: Key, why: &str) {
        if !matches!(self.hub.kind(key), Some(Kind::Carrier(_))) {
            return;
        }
        let Some(Kind::Carrier(mut carrier)) = self.hub.take(key) else { return };
        let (at, number) = (carrier.session, carrier.number);
        carrier.wire.farewell(self.now_ns);
        drop(carrier);
        self.counters.carriers_now.sub(1);
        self.counters.carriers_lost.add(1);
        let flows = self.sessions.get(at).map_or(0, |place| place.flows.len());
        if flows > 0 {
            let host = self.sessions.host(at);
            let host = host.map_or_else(|| "the other end".to_owned(), |host| host.to_string());
            let text = format!("{host}: carrier {number} of a session with {flows} connections is gone: {why}");
            self.reports.tell(Report::Peer { text });
        }
        if let Some(place) = self.sessions.get_mut(at) {
            place.carriers[usize::from(number)] = None;
            place.session.remove_carrier(number);
        }
        self.sessions.touch(at);
        self.uplink_lost(at, number, why);
    }

    /// A peer has answered on a carrier.
    pub(super) fn carrier_up(&mut self, at: usize, number: u8) {
        self.counters.carriers_up.add(1);
        self.uplink_up(at, number);
    }

    /// Writes what a session has for its carriers.
    pub(super) fn flush_session(&mut self, at: usize) {
        for number in 0..CARRIERS_MAX as u8 {
            let Some(key) = self.sessions.get(at).and_then(|s| s.carriers[usize::from(number)]) else { continue };
            if let Err(e) = self.flush_carrier(at, number, key) {
                self.lose_carrier(key, &narrows_host::words::e_text(&e));
            }
        }
    }

    fn flush_carrier(&mut self, at: usize, number: u8, key: Key) -> std::io::Result<()> {
        let mut moved = 0;
        loop {
            self.tick();
            let begin_ns = self.now_ns;
            let Self { hub, sessions, carriers: Carriers { output, sent, .. }, .. } = self;
            let Some(Kind::Carrier(carrier)) = hub.kind(key) else { return Ok(()) };
            let Some(place) = sessions.get_mut(at) else { return Ok(()) };
            let wire = &mut carrier.wire;
            if wire.has_parted() || !wire.flush(begin_ns)? || wire.is_handshaking() || !wire.writable {
                return Ok(());
            }
            if !place.session.has_output(number) {
                return Ok(());
            }
            if moved >= TURN {
                self.sessions.touch(at);
                return Ok(());
            }
            output.clear();
            sent.clear();
            let had_to_wait = !place.session.wants_input(number);
            place.session.transmit(number, wire.write_len(), output, sent, begin_ns);
            moved += output.len();
            wire.push(output)?;
            wire.flush(begin_ns)?;
            if had_to_wait {
                self.hub.queue(key);
            }
            self.tell_sent(at, number, begin_ns, key);
        }
    }

    /// Tells flows what a carrier took of them.
    fn tell_sent(&mut self, at: usize, number: u8, begin_ns: u64, key: Key) {
        let mut sent = std::mem::take(&mut self.carriers.sent);
        if !sent.is_empty() {
            self.tick();
            let has_stream = sent.iter().any(|s| self.has_stream(at, s.flow));
            let look = match self.hub.kind(key) {
                Some(Kind::Carrier(carrier)) if has_stream => {
                    carrier.wire.look(begin_ns, self.begun.elapsed().as_nanos() as u64, false)
                }
                _ => Look::default(),
            };
            sent.sort_by_key(|s| s.flow);
            for of_flow in sent.chunk_by(|a, b| a.flow == b.flow) {
                let len = of_flow.iter().map(|s| s.len).sum();
                self.carried(at, of_flow[0].flow, len, number, &look);
            }
        }
        sent.clear();
        self.carriers.sent = sent;
    }

    fn has_stream(&mut self, at: usize, flow: FlowId) -> bool {
        let key = self.sessions.conn(at, flow);
        matches!(key.and_then(|key| self.hub.kind(key)), Some(Kind::Conn(conn)) if conn.has_stream())
    }

    /// A look at the carrier of a flow.
    pub(super) fn look(&mut self, at: usize, flow: FlowId) -> Option<(u8, Look)> {
        let now_ns = self.now_ns;
        let place = self.sessions.get(at)?;
        let number = place.session.carrier_of(flow).unwrap_or(0);
        let key = place.carriers[usize::from(number)]?;
        match self.hub.kind(key) {
            Some(Kind::Carrier(carrier)) => Some((number, carrier.wire.look(now_ns, now_ns, true))),
            _ => None,
        }
    }
}
