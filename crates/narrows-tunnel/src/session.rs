//! A session: the flows between two programs and the carriers that they share. No I/O, no clock:
//! it takes the bytes that carriers bring, and gives those that they are to take.
//!
//! ```text
//! open, send, finish, reset -> [flows, each with credit] -- transmit --> bytes of a carrier
//!           poll_event <- [flows, each with a window] <-- receive -- bytes of a carrier
//! ```

use std::collections::VecDeque;

use narrows::block::Block;

use super::by_flow::ByFlow;
use super::frame::{FLOW_MAX, HEADER_LEN, Kind, Parser, put, put_header};
use super::hello::{Hello, Place};
use super::limits::{CARRIERS_MAX, CONTROL_MAX, FLOWS_MAX, QUEUE_MAX};
use super::reason::Reason;
use super::target::{Endpoint, Target};

mod answers;
mod carrier;
mod credit;
mod flow;
mod reader;
mod receive;

use answers::Answers;
use carrier::Carrier;
pub use carrier::Timing;
pub use credit::Credit;
use flow::{Flow, Stage};
use reader::TOLD_LEN;

/// Number of a flow.
pub type FlowId = u64;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one that opens carriers.
    Dialer,
    Acceptor,
}

/// What a session has to say.
#[derive(Debug)]
pub enum Event {
    /// The peer's hello has come on this carrier.
    Up { carrier: u8 },
    /// The peer opened a flow.
    Incoming { flow: FlowId, target: Target },
    /// The target of an own flow was reached.
    Opened { flow: FlowId },
    /// It was not; the flow is over.
    Refused { flow: FlowId, reason: Reason, text: String },
    /// Bytes of a flow; to be confirmed by [`Session::took`].
    Data { flow: FlowId, coded: bool, bytes: Block },
    /// There may be room for more bytes of the flow.
    Room { flow: FlowId },
    /// Nothing follows in this direction.
    Finished { flow: FlowId },
    /// The flow is over in both directions.
    Reset { flow: FlowId, reason: Reason },
    /// The peer opens no more flows, and wants none.
    Goaway { reason: Reason, text: String },
    /// The dialer wants a listener.
    Listen { number: u64, bind: Endpoint },
    /// The acceptor listens at this address, or does not.
    Listening { number: u64, result: std::result::Result<String, (Reason, String)> },
}

/// Bytes of a flow that were given to a carrier; none: only its end was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub flow: FlowId,
    pub len: usize,
}

/// State machine of a session.
pub struct Session {
    role: Role,
    hello: Hello,
    /// What the acceptor calls its side of the session, once a dialer has heard it.
    instance: Option<u64>,
    timing: Timing,
    carriers: [Option<Carrier>; CARRIERS_MAX],
    flows: ByFlow<Flow>,
    next_flow: FlowId,
    events: VecDeque<Event>,
    credit: Credit,
    /// Directions that carry much.
    bulk: usize,
    leaving: bool,
    /// Listeners that the peer asked for.
    listeners: usize,
    /// Those that this end asked for.
    answers: Answers,
    /// Frames that ask for a connection or a listener and may still be taken now.
    asks_left: usize,
}

impl Session {
    /// A session without carriers. The carrier number of `hello` does not matter.
    pub fn new(role: Role, hello: Hello, timing: Timing) -> Self {
        Self {
            role,
            hello,
            instance: None,
            timing,
            carriers: Default::default(),
            flows: ByFlow::default(),
            next_flow: if role == Role::Dialer { 2 } else { 1 },
            events: VecDeque::new(),
            credit: Credit::default(),
            bulk: 0,
            leaving: false,
            listeners: 0,
            answers: Answers::default(),
            asks_left: usize::MAX,
        }
    }

    /// The same, whose flows share their credit with those of other sessions.
    #[must_use]
    pub fn with_credit(self, credit: &Credit) -> Self {
        Self { credit: credit.clone(), ..self }
    }

    // --- carriers ---

    /// Adds a carrier; one in the same place is lost. `parser` is new for a dialer, and has given the
    /// hello to an acceptor, which says the place.
    pub fn add_carrier(&mut self, place: impl Into<Place>, parser: Parser, now_ns: u64) {
        let Place { number, attempt } = place.into();
        self.remove_carrier(number);
        self.hello.attempt = attempt.unwrap_or_else(|| self.hello.attempt.wrapping_add(1));
        let greeted = self.role == Role::Acceptor;
        let hello = Hello { carrier: number, ..self.hello };
        let mut carrier = Carrier::new(parser, hello.greet(), greeted, now_ns);
        carrier.attempt = hello.attempt;
        self.carriers[usize::from(number)] = Some(carrier);
        if greeted {
            self.up(number);
        }
    }

    /// A carrier is gone: the flows that use it are over.
    pub fn remove_carrier(&mut self, number: u8) {
        if self.carriers[usize::from(number)].take().is_none() {
            return;
        }
        let lost: Vec<FlowId> = self.flows.iter().filter(|(_, f)| f.uses(number)).map(|(id, _)| *id).collect();
        for flow in lost {
            self.reset(flow, Reason::Lost);
            self.events.push_back(Event::Reset { flow, reason: Reason::Lost });
        }
        // Those that had sent everything on it stay, and count for no carrier.
        let ended = self.flows.iter_mut().filter(|(_, f)| f.out.carrier == number && f.out.pace.is_bulk);
        self.bulk -= ended.map(|(_, f)| f.out.pace.is_bulk = false).count();
    }

    /// Whether the carrier is there and its peer has answered.
    pub fn is_up(&self, number: u8) -> bool {
        self.carriers.get(usize::from(number)).is_some_and(|c| c.as_ref().is_some_and(|c| c.greeted))
    }

    /// Whether there is any carrier.
    pub fn has_carriers(&self) -> bool {
        self.carriers.iter().any(Option::is_some)
    }

    /// The number of carriers that this session would use: one for calm flows, and one for each bulk
    /// flow.
    pub fn carriers_wanted(&self) -> usize {
        (1 + self.bulk).min(CARRIERS_MAX)
    }

    fn up(&mut self, number: u8) {
        self.events.push_back(Event::Up { carrier: number });
        // Bulk flows that have waited for a carrier of their own.
        let bulk: Vec<FlowId> = self.flows.iter().filter(|(_, f)| f.out.pace.is_bulk).map(|(id, _)| *id).collect();
        bulk.into_iter().for_each(|flow| self.move_away(flow));
    }

    fn carrier(&mut self, number: u8) -> Option<&mut Carrier> {
        self.carriers.get_mut(usize::from(number))?.as_mut()
    }

    fn control(&mut self, number: u8, kind: Kind, flow: FlowId, body: &[u8]) {
        if let Some(carrier) = self.carrier(number) {
            put(&mut carrier.control, kind, flow, body);
        }
    }

    // --- flows ---

    /// Opens a flow. `None` if no carrier is up, the session is at its limit, or one end leaves.
    pub fn open(&mut self, target: &Target) -> Option<FlowId> {
        if self.leaving || self.flows.len() >= FLOWS_MAX || self.next_flow > FLOW_MAX {
            return None;
        }
        let up = (0..CARRIERS_MAX as u8).filter(|n| self.is_up(*n));
        let carrier = up.min_by_key(|n| self.carriers[usize::from(*n)].as_ref().map(|c| c.bulk_flows))?;
        let flow = self.next_flow;
        self.next_flow += 2;
        let body = target.to_bytes();
        self.control(carrier, Kind::Open, flow, &body);
        if let Some(carrier) = self.carrier(carrier) {
            carrier.asked += HEADER_LEN + body.len() + HEADER_LEN + TOLD_LEN;
        }
        self.flows.insert(flow, Flow::new(carrier, false, &self.credit));
        self.tell_of_readers(flow);
        Some(flow)
    }

    /// The target of an incoming flow was reached.
    pub fn opened(&mut self, flow: FlowId) {
        if let Some(f) = self.flows.get_mut(&flow) {
            f.opened = true;
            let carrier = f.out.carrier;
            self.tell_of_readers(flow);
            self.control(carrier, Kind::Opened, flow, b"");
        }
    }

    /// The target of an incoming flow was not reached.
    pub fn refuse(&mut self, flow: FlowId, reason: Reason, text: &str) {
        if let Some(f) = self.remove(flow) {
            self.control(f.out.carrier, Kind::Refused, flow, &reason.to_bytes(text));
        }
    }

    /// Ends a flow in both directions at once.
    pub fn reset(&mut self, flow: FlowId, reason: Reason) {
        if let Some(f) = self.remove(flow) {
            let carrier = if self.is_up(f.out.carrier) { f.out.carrier } else { f.inn.carrier };
            self.control(carrier, Kind::Reset, flow, &[reason.number()]);
        }
    }

    /// Ends a flow in both directions by a reset that follows what is queued: bytes that came before
    /// a connection broke are still to be had.
    pub fn break_off(&mut self, flow: FlowId, reason: Reason) {
        let Some(f) = self.flows.get_mut(&flow) else { return };
        if f.out.stage == Stage::Ended {
            return self.reset(flow, reason);
        }
        f.out.stage = Stage::Breaking(reason);
        self.list(flow);
    }

    /// Whether carriers have been given everything of the sent direction, its end too.
    pub fn has_left(&self, flow: FlowId) -> bool {
        self.flows.get(&flow).is_none_or(|f| f.out.stage == Stage::Ended)
    }

    fn remove(&mut self, flow: FlowId) -> Option<Flow> {
        let f = self.flows.remove(&flow)?;
        self.bulk -= usize::from(f.out.pace.is_bulk) + usize::from(f.inn.pace.is_bulk);
        if f.out.pace.is_bulk
            && let Some(carrier) = self.carrier(f.out.carrier)
        {
            carrier.bulk_flows -= 1;
        }
        Some(f)
    }

    /// Number of open flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes that may be sent on a flow now; 0 if it is unknown.
    pub fn room(&self, flow: FlowId) -> usize {
        self.flows
            .get(&flow)
            .filter(|f| f.out.stage == Stage::Open)
            .map_or(0, |f| QUEUE_MAX.saturating_sub(f.out.queued()))
    }

    /// Bytes of a flow that no carrier has taken yet.
    pub fn queued(&self, flow: FlowId) -> usize {
        self.flows.get(&flow).map_or(0, |f| f.out.queued())
    }

    /// Carrier on which the flow is sent.
    pub fn carrier_of(&self, flow: FlowId) -> Option<u8> {
        self.flows.get(&flow).map(|f| f.out.carrier)
    }

    /// Queues bytes of a flow.
    pub fn send(&mut self, flow: FlowId, bytes: Block, coded: bool) {
        let Some(f) = self.flows.get_mut(&flow).filter(|f| f.out.stage == Stage::Open && !bytes.is_empty()) else {
            return;
        };
        f.out.push(bytes, coded);
        self.list(flow);
    }

    /// Ends the sent direction after what is queued.
    pub fn finish(&mut self, flow: FlowId) {
        if let Some(f) = self.flows.get_mut(&flow).filter(|f| f.out.stage == Stage::Open) {
            f.out.stage = Stage::Ending;
            self.list(flow);
        }
    }

    /// Puts a flow into the list of its carrier, if it has something to send.
    fn list(&mut self, flow: FlowId) {
        let Some(f) = self.flows.get_mut(&flow).filter(|f| !f.out.listed && f.out.can_send()) else { return };
        if let Some(Some(carrier)) = self.carriers.get_mut(usize::from(f.out.carrier)) {
            f.out.listed = true;
            carrier.list(flow, f.out.pace.is_bulk);
        }
    }

    /// Received bytes were taken from a flow: the peer may send as many more.
    pub fn took(&mut self, flow: FlowId, len: usize, now_ns: u64) {
        let Some(f) = self.flows.get_mut(&flow) else { return };
        let carrier = f.inn.carrier;
        let rtt_ns = self.carriers[usize::from(carrier)].as_ref().map_or(0, |c| c.rtt_ns);
        let credit = f.inn.took(len, rtt_ns, now_ns);
        if credit > 0 {
            self.control(carrier, Kind::Credit, flow, &credit.to_le_bytes());
        }
    }

    // --- listeners, leaving ---

    /// Asks the acceptor for a listener.
    pub fn listen(&mut self, number: u64, bind: &Endpoint) {
        self.answers.owe(number);
        self.control_anywhere(Kind::Listen, number, &bind.to_bytes());
    }

    /// Answers a request for a listener.
    pub fn listening(&mut self, number: u64, result: std::result::Result<&str, (Reason, &str)>) {
        let body = match result {
            Ok(address) => {
                let mut body = Reason::Other.to_bytes(address);
                body[0] = 0;
                body
            }
            Err((reason, text)) => {
                self.listeners = self.listeners.saturating_sub(1);
                reason.to_bytes(text)
            }
        };
        self.control_anywhere(Kind::Listening, number, &body);
    }

    /// A request that was counted is one for a listener that counted before.
    pub fn listens_already(&mut self) {
        self.listeners = self.listeners.saturating_sub(1);
    }

    /// Tells the peer to open no more flows. Flows that are open continue.
    pub fn leave(&mut self, reason: Reason, text: &str) {
        self.leaving = true;
        for number in 0..CARRIERS_MAX as u8 {
            self.control(number, Kind::Goaway, 0, &reason.to_bytes(text));
        }
    }

    /// Whether one end wants no more flows.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    fn control_anywhere(&mut self, kind: Kind, flow: u64, body: &[u8]) {
        if let Some(number) = (0..CARRIERS_MAX as u8).find(|n| self.is_up(*n)) {
            self.control(number, kind, flow, body);
        }
    }

    // --- bytes ---

    /// Takes at most so many frames more that ask for a connection or a listener: each costs much more
    /// than its bytes. What comes after them on the same carrier waits, and no more should be read of it,
    /// until [`Session::resume`].
    pub fn set_asks_left(&mut self, asks: usize) {
        self.asks_left = asks;
    }

    /// How many more are taken.
    pub fn asks_left(&self) -> usize {
        self.asks_left
    }

    /// Whether frames of a carrier wait until more may be taken.
    pub fn is_held(&self, number: u8) -> bool {
        self.carriers.get(usize::from(number)).is_some_and(|c| c.as_ref().is_some_and(|c| c.held))
    }

    /// Whether more may be read from a carrier: not while answers wait that its peer does not read.
    pub fn wants_input(&self, number: u8) -> bool {
        self.carriers[usize::from(number)].as_ref().is_some_and(|c| c.control.len() - c.asked <= CONTROL_MAX)
    }

    /// Whether [`Session::transmit`] has bytes for a carrier.
    pub fn has_output(&self, number: u8) -> bool {
        self.carriers[usize::from(number)].as_ref().is_some_and(|c| !c.control.is_empty() || c.has_listed())
    }

    /// Appends bytes for a carrier to `out` until it has `len_max` bytes, or one frame more; and to
    /// `sent` what they have of flows.
    pub fn transmit(&mut self, number: u8, len_max: usize, out: &mut Vec<u8>, sent: &mut Vec<Sent>, now_ns: u64) {
        let Some(carrier) = self.carriers[usize::from(number)].as_mut() else { return };
        if !carrier.control.is_empty() {
            out.append(&mut carrier.control);
            carrier.asked = 0;
            if carrier.control.capacity() > HEADER_LEN * 64 {
                carrier.control = Vec::new();
            }
        }
        while out.len() < len_max {
            let Some(carrier) = self.carriers[usize::from(number)].as_mut() else { return };
            let Some(flow) = carrier.next_listed() else { return };
            // An entry may be old: of a flow that is over, or has moved.
            let Some(f) = self.flows.get_mut(&flow).filter(|f| f.out.carrier == number && f.out.listed) else {
                continue;
            };
            f.out.listed = false;
            let frame = f.out.next_frame();
            // Also of an end without bytes: whoever waits for it hears that it has left.
            sent.push(Sent { flow, len: frame.map_or(0, |(_, len)| len) });
            let changed = frame.and_then(|(kind, len)| {
                put_header(out, kind, flow, len);
                f.out.take(len, out);
                f.out.pace.count(len, now_ns)
            });
            let ends = (f.out.queued() == 0).then_some(f.out.stage);
            match ends {
                Some(Stage::Ending) => {
                    put(out, Kind::Finish, flow, b"");
                    f.out.stage = Stage::Ended;
                }
                Some(Stage::Breaking(reason)) => put(out, Kind::Reset, flow, &[reason.number()]),
                _ => {}
            }
            match changed {
                Some(true) => carrier.bulk_flows += 1,
                Some(false) => carrier.bulk_flows -= 1,
                None => {}
            }
            self.count_bulk(changed);
            if let Some(Stage::Breaking(_)) = ends {
                self.remove(flow);
                continue;
            }
            if changed == Some(true) {
                self.move_away(flow);
                // The move frame follows the last frame here.
                if let Some(carrier) = self.carrier(number) {
                    out.append(&mut carrier.control);
                    carrier.asked = 0;
                }
            }
            self.list(flow);
            self.end_if_over(flow);
        }
    }

    fn count_bulk(&mut self, changed: Option<bool>) {
        match changed {
            Some(true) => self.bulk += 1,
            Some(false) => self.bulk -= 1,
            None => {}
        }
    }

    /// Moves a bulk flow away from the carrier of calm flows, or one with other bulk flows.
    fn move_away(&mut self, flow: FlowId) {
        let Some(f) = self.flows.get(&flow).filter(|f| f.opened && !f.out.moved && f.out.stage != Stage::Ended) else {
            return;
        };
        let from = f.out.carrier;
        let load = |n: u8| self.carriers[usize::from(n)].as_ref().map_or(usize::MAX, |c| c.bulk_flows);
        let others = (1..CARRIERS_MAX as u8).filter(|n| *n != from && self.is_up(*n));
        let Some(to) = others.min_by_key(|n| load(*n)) else { return };
        if from != 0 && load(from) <= load(to) + 1 {
            return;
        }
        let [low, high] = self.carriers[usize::from(to)].as_ref().map_or(0, |c| c.attempt).to_le_bytes();
        self.control(from, Kind::Move, flow, &[to, low, high]);
        if let Some(carrier) = self.carrier(from) {
            carrier.bulk_flows -= 1;
        }
        if let Some(carrier) = self.carrier(to) {
            carrier.bulk_flows += 1;
        }
        if let Some(f) = self.flows.get_mut(&flow) {
            (f.out.carrier, f.out.moved, f.out.listed) = (to, true, false);
        }
        self.list(flow);
    }

    fn end_if_over(&mut self, flow: FlowId) {
        if self.flows.get(&flow).is_some_and(Flow::is_over) {
            self.remove(flow);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // --- time ---

    /// When [`Session::on_time`] is due.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.carriers.iter().flatten().map(|c| c.next_wakeup_ns(&self.timing)).min()
    }

    /// Sends pings that are due, and returns carriers whose peer is gone; they are to be closed and
    /// removed.
    pub fn on_time(&mut self, now_ns: u64) -> Vec<u8> {
        let timing = self.timing;
        let all = self.carriers.iter_mut().enumerate();
        let dead = all.filter_map(|(n, c)| c.as_mut().is_some_and(|c| !c.on_time(&timing, now_ns)).then_some(n as u8));
        dead.collect()
    }

    /// Round trip of a carrier in ns; 0 if it is not known.
    pub fn rtt_ns(&self, number: u8) -> u64 {
        self.carriers.get(usize::from(number)).and_then(|c| c.as_ref()).map_or(0, |c| c.rtt_ns)
    }
}

/// Whether the dialer opened the flow.
pub fn is_of_dialer(flow: FlowId) -> bool {
    flow.is_multiple_of(2)
}

#[cfg(test)]
mod tests;
