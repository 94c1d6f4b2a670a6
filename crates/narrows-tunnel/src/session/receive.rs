//! What a session does with the frames of its peer.

use narrows::block::Block;
use narrows::{Error, Result};

use super::flow::Flow;
use super::{Event, FlowId, Role, Session, is_of_dialer};
use crate::frame::{Frame, Kind, Next};
use crate::hello::Hello;
use crate::limits::{CARRIERS_MAX, FLOWS_MAX, LISTENERS_MAX};
use crate::reason::Reason;
use crate::target::{Endpoint, Target, To};

impl Session {
    /// Takes bytes of a carrier.
    ///
    /// # Errors
    /// The carrier is to be closed and removed.
    pub fn receive(&mut self, number: u8, bytes: Block, now_ns: u64) -> Result<()> {
        let Some(carrier) = self.carrier(number) else { return Ok(()) };
        carrier.heard(now_ns);
        carrier.parser.push(bytes);
        self.resume(number, now_ns)
    }

    /// Goes through frames that a carrier has brought; to be called once after it was added too, and for
    /// one that is held.
    ///
    /// # Errors
    /// As for [`Session::receive`].
    pub fn resume(&mut self, number: u8, now_ns: u64) -> Result<()> {
        loop {
            let asks_left = self.asks_left;
            let Some(carrier) = self.carrier(number) else { return Ok(()) };
            if !carrier.greeted {
                let Some(hello) = Hello::expect(&mut carrier.parser)? else { return Ok(()) };
                carrier.greet(now_ns);
                let attempt = carrier.attempt;
                if hello != (Hello { carrier: number, attempt, instance: hello.instance, ..self.hello }) {
                    return Err(Error::corrupt("the peer answers for another carrier"));
                }
                if self.instance.is_some_and(|instance| instance != hello.instance) {
                    // If it was started again, the other carriers are gone, and this shows it.
                    self.carriers.iter_mut().flatten().for_each(|carrier| carrier.probe(now_ns));
                    return Err(Error::corrupt("another server answers, or it was started again"));
                }
                self.instance = Some(hello.instance);
                self.up(number);
                continue;
            }
            let asks = |kind| matches!(kind, Kind::Open | Kind::Listen);
            let next = carrier.parser.next_if(|kind| asks_left > 0 || !asks(kind))?;
            carrier.held = matches!(next, Next::Held);
            let Next::Frame(frame) = next else { return Ok(()) };
            self.asks_left -= usize::from(asks(frame.kind));
            self.take(number, frame, now_ns)?;
        }
    }

    fn take(&mut self, number: u8, frame: Frame, now_ns: u64) -> Result<()> {
        let Frame { kind, flow, .. } = frame;
        match kind {
            Kind::Hello => return Err(Error::corrupt("a second hello")),
            Kind::Open => return self.take_open(number, flow, &frame.body),
            Kind::Ping => {
                if frame.body.len() != 8 {
                    return Err(wrong_body());
                }
                self.control(number, Kind::Pong, 0, &frame.body);
            }
            Kind::Pong => {
                if let Some(carrier) = self.carrier(number) {
                    carrier.on_pong(&frame.body, now_ns);
                }
            }
            Kind::Goaway => {
                let (reason, text) = Reason::parse(&frame.body).ok_or_else(wrong_body)?;
                // It comes on every carrier.
                if !std::mem::replace(&mut self.leaving, true) {
                    self.events.push_back(Event::Goaway { reason, text });
                }
            }
            Kind::Listen => {
                if self.role != Role::Acceptor || self.listeners >= LISTENERS_MAX {
                    return Err(Error::corrupt("a listener that is not allowed"));
                }
                self.listeners += 1;
                let bind = Endpoint::parse(&frame.body, true)?;
                self.events.push_back(Event::Listen { number: flow, bind });
            }
            Kind::Listening => {
                if self.role != Role::Dialer {
                    return Err(Error::corrupt("an answer that only an acceptor gives"));
                }
                let (_, text) = Reason::parse(&frame.body).ok_or_else(wrong_body)?;
                if !self.answers.take(flow, frame.body[0] == 0) {
                    return Err(Error::corrupt("an answer that nobody asked for"));
                }
                let result = if frame.body[0] == 0 { Ok(text) } else { Err((Reason::of(frame.body[0]), text)) };
                self.events.push_back(Event::Listening { number: flow, result });
            }
            _ => return self.take_of_flow(number, frame, now_ns),
        }
        Ok(())
    }

    fn take_open(&mut self, number: u8, flow: FlowId, body: &[u8]) -> Result<()> {
        let target = Target::parse(body)?;
        let by_dialer = is_of_dialer(flow);
        let of_listener = matches!(target.to, To::Listener(_));
        let opened = self.carriers[usize::from(number)].as_ref().and_then(|c| c.opened);
        let in_turn = flow > 0 && opened.is_none_or(|last| flow > last) && !self.flows.contains_key(&flow);
        if by_dialer == (self.role == Role::Dialer) || of_listener == by_dialer || !in_turn {
            return Err(Error::corrupt("a flow that must not be opened"));
        }
        if let Some(carrier) = self.carrier(number) {
            carrier.opened = Some(flow);
        }
        if self.flows.len() >= FLOWS_MAX {
            self.control(number, Kind::Refused, flow, &Reason::Busy.to_bytes("too many connections"));
            return Ok(());
        }
        let mut f = Flow::new(number, false, &self.credit);
        // One that tells says so right after this frame.
        f.out.ahead.set_peer_tells(false);
        self.flows.insert(flow, f);
        self.events.push_back(Event::Incoming { flow, target });
        Ok(())
    }

    fn take_of_flow(&mut self, number: u8, frame: Frame, now_ns: u64) -> Result<()> {
        let Frame { kind, flow, .. } = frame;
        let own = is_of_dialer(flow) == (self.role == Role::Dialer);
        // It may be over at this end, while the peer did not know.
        let Some(f) = self.flows.get_mut(&flow) else { return Ok(()) };
        match kind {
            Kind::Opened if own && !f.opened && frame.body.is_empty() => {
                f.opened = true;
                f.out.ahead.set_peer_tells(f.peer_tells);
                self.events.push_back(Event::Opened { flow });
            }
            Kind::Refused if own && !f.opened => {
                let (reason, text) = Reason::parse(&frame.body).ok_or_else(wrong_body)?;
                self.remove(flow);
                self.events.push_back(Event::Refused { flow, reason, text });
            }
            Kind::Credit => {
                let more = <[u8; 4]>::try_from(&frame.body[..]).map_err(|_| wrong_body())?;
                f.out.add_credit(u32::from_le_bytes(more))?;
                self.list(flow);
            }
            Kind::Delivered => {
                let total = <[u8; 8]>::try_from(&frame.body[..]).map_err(|_| wrong_body())?;
                f.on_delivered(u64::from_le_bytes(total), now_ns);
                self.events.push_back(Event::Room { flow });
            }
            Kind::Reset => {
                let [reason] = frame.body[..] else { return Err(wrong_body()) };
                self.remove(flow);
                self.events.push_back(Event::Reset { flow, reason: Reason::of(reason) });
            }
            Kind::Move => {
                let [to, low, high] = frame.body[..] else { return Err(wrong_body()) };
                if usize::from(to) >= CARRIERS_MAX || number != f.inn.carrier {
                    return Err(wrong_body());
                }
                let frames = f.inn.move_to(flow, to)?;
                frames.into_iter().for_each(|frame| self.deliver(frame, now_ns));
                // A dialer may have added it and not heard its hello yet. One that took the place of the
                // carrier that is meant does not have what was sent on that.
                let attempt = u16::from_le_bytes([low, high]);
                let is_there = self.carrier(to).is_some_and(|carrier| carrier.attempt == attempt);
                if !is_there && self.flows.contains_key(&flow) {
                    self.reset(flow, Reason::Lost);
                    self.events.push_back(Event::Reset { flow, reason: Reason::Lost });
                }
            }
            Kind::Finish if !frame.body.is_empty() => return Err(wrong_body()),
            Kind::Raw | Kind::Coded if frame.body.is_empty() => return Err(wrong_body()),
            Kind::Raw | Kind::Coded | Kind::Finish => {
                if let Some(frame) = f.inn.arrive(number, frame)? {
                    self.deliver(frame, now_ns);
                }
            }
            _ => return Err(Error::corrupt("a frame at the wrong time")),
        }
        Ok(())
    }

    fn deliver(&mut self, frame: Frame, now_ns: u64) {
        let Frame { kind, flow, body: bytes } = frame;
        if kind == Kind::Finish {
            self.events.push_back(Event::Finished { flow });
            return self.end_if_over(flow);
        }
        let changed = self.flows.get_mut(&flow).and_then(|f| f.inn.pace.count(bytes.len(), now_ns));
        self.count_bulk(changed);
        self.events.push_back(Event::Data { flow, coded: kind == Kind::Coded, bytes });
    }
}

fn wrong_body() -> Error {
    Error::corrupt("a frame whose body is not valid")
}
