//! The client's end of the side channel to one host: dials it when there is something to claim, remembers for a while
//! that nobody is there, and claims again what was in doubt when it was lost (format.md section 11.5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::marker::{Key, Nonce, derive};
use super::message::{Claim, GREETING, Hello, Message, Parser, Purpose, Reason, VERSION};
use super::proof::Tuple;
use super::{Event, FlowId, WhyPlain, Word};

#[derive(Debug, Clone, Copy)]
pub struct ClaimantLimits {
    /// Claims that are not settled.
    pub claims_max: usize,
    /// For connection and greeting. Nothing waits for them but claims.
    pub dial_max_ns: u64,
    /// For an answer to a claim. Longer than a [`super::WitnessLimits::accept_max_ns`], after which a living peer says no:
    /// who says nothing is gone.
    pub answer_max_ns: u64,
    /// A host without Narrows is left alone for so long, twice as long each time up to the second value. Short at first:
    /// a server that starts beside its client is there a moment later. Ten failures in a row show that it never is.
    pub retry_first_ns: u64,
    pub retry_max_ns: u64,
    /// A lasting side channel was lost: its host is dialled again for so long, with such pauses. Its agent may have
    /// changed, and the next one is there within a quarter of a second.
    pub come_back_ns: u64,
    pub pause_ns: u64,
    /// A side channel that was lost earlier than this counts as none, or a peer that fails at every claim would be dialled
    /// without end.
    pub lasting_ns: u64,
}

impl Default for ClaimantLimits {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            claims_max: 4096,
            dial_max_ns: 10 * SECOND,
            answer_max_ns: 15 * SECOND,
            retry_first_ns: SECOND,
            retry_max_ns: 960 * SECOND,
            come_back_ns: 2 * SECOND,
            pause_ns: SECOND / 4,
            lasting_ns: SECOND,
        }
    }
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect to the service port, then say [`Claimant::connected`] or [`Claimant::lost`].
    Dial,
    Send(Vec<u8>),
    /// The connection, or the attempt at one, is of no use any more: close it when what was to be sent is sent. Its end
    /// is not told.
    Hangup,
    Flow(FlowId, Event),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    None,
    Dialing {
        until_ns: u64,
    },
    Greeting {
        until_ns: u64,
    },
    Up {
        since_ns: u64,
    },
    /// A lasting one was lost, and dialling failed: it is dialled again then.
    Pausing {
        until_ns: u64,
    },
    /// Nobody is there, and nobody is asked before this time.
    Absent {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Entry {
    flow: FlowId,
    claim: Claim,
    /// When the answer must be there; `None`: it is there.
    until_ns: Option<u64>,
    key: Option<Nonce>,
}

#[derive(Debug)]
pub struct Claimant {
    limits: ClaimantLimits,
    secret: [u8; 32],
    channel: Channel,
    parser: Parser,
    entries: BTreeMap<u64, Entry>,
    by_flow: BTreeMap<FlowId, u64>,
    next_id: u64,
    /// Attempts in a row at which nobody was there.
    failures: u32,
    /// Until when a lasting side channel that was lost may come back.
    come_back_until_ns: u64,
    /// Flows for which the host was dialled last, but for those whose own connection did not come up.
    asked: BTreeSet<FlowId>,
    outputs: VecDeque<Output>,
}

impl Claimant {
    /// `secret`: random, and used for nothing else.
    pub fn new(limits: ClaimantLimits, secret: [u8; 32]) -> Self {
        Self {
            limits,
            secret,
            channel: Channel::None,
            parser: Parser::default(),
            entries: BTreeMap::new(),
            by_flow: BTreeMap::new(),
            next_id: 0,
            failures: 0,
            come_back_until_ns: 0,
            asked: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// What is to be done, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Claims a connection. `clock_ms` is the connection's TCP timestamp clock as it was when the SYN left. The answer
    /// comes as [`Event::Ready`] or [`Event::Plain`], which may be there at once.
    pub fn claim(&mut self, flow: FlowId, tuple: Tuple, clock_ms: u32, now_ns: u64) {
        let absent = matches!(self.channel, Channel::Absent { until_ns } if now_ns < until_ns);
        if absent || self.entries.len() >= self.limits.claims_max || self.by_flow.contains_key(&flow) {
            let why = if absent { WhyPlain::NoService } else { WhyPlain::Busy };
            self.outputs.push_back(Output::Flow(flow, Event::Plain(why)));
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let nonce = derive(&self.secret, &[b"narrows claim", &id.to_le_bytes()]);
        let claim = Claim { id, tuple, clock_ms, nonce };
        let until_ns = Some(now_ns.saturating_add(self.limits.answer_max_ns));
        match self.channel {
            Channel::None | Channel::Absent { .. } => self.dial(now_ns),
            Channel::Dialing { .. } | Channel::Pausing { .. } => {}
            // Behind the greeting at once: whoever does not understand it goes away.
            Channel::Greeting { .. } | Channel::Up { .. } => self.send(&Message::Claim(claim.clone())),
        }
        // Those that are too many change nothing: one is enough.
        if !matches!(self.channel, Channel::Up { .. }) && self.asked.len() < self.limits.claims_max {
            self.asked.insert(flow);
        }
        self.entries.insert(id, Entry { flow, claim, until_ns, key: None });
        self.by_flow.insert(flow, id);
    }

    /// What a flow says.
    pub fn say(&mut self, flow: FlowId, word: Word) {
        let Some(&id) = self.by_flow.get(&flow) else { return };
        match word {
            Word::Query { offset } => self.send(&Message::Query { id, offset }),
            Word::Answer { offset, marked } => self.send(&Message::Answer { id, offset, marked }),
            Word::Withdraw => {
                self.send(&Message::Withdraw { id });
                self.forget(id);
            }
            Word::Settled => {
                self.forget(id);
            }
            Word::Armed | Word::Decline => {}
        }
    }

    /// The connection is over.
    pub fn ended(&mut self, flow: FlowId) {
        let Some(&id) = self.by_flow.get(&flow) else { return };
        if self.entries.get(&id).is_some_and(|e| e.until_ns.is_some()) {
            self.send(&Message::Withdraw { id });
        }
        self.forget(id);
    }

    /// The connection is over and was never there: its host refused it too, or could not be reached. That its service
    /// port could not be reached either says nothing about the host.
    pub fn never_connected(&mut self, flow: FlowId) {
        self.ended(flow);
        let asked = self.asked.remove(&flow);
        if asked && self.asked.is_empty() && matches!(self.channel, Channel::Absent { .. }) {
            self.failures = self.failures.saturating_sub(1);
            self.channel = Channel::None;
        }
    }

    /// Claims that are not settled.
    pub fn claims(&self) -> usize {
        self.entries.len()
    }

    fn forget(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.by_flow.remove(&entry.flow);
        Some(entry)
    }

    fn dial(&mut self, now_ns: u64) {
        self.asked = self.by_flow.keys().copied().collect();
        self.channel = Channel::Dialing { until_ns: now_ns.saturating_add(self.limits.dial_max_ns) };
        self.outputs.push_back(Output::Dial);
    }

    /// To a side channel that is there; else it is lost, and what matters is said again.
    fn send(&mut self, message: &Message) {
        if matches!(self.channel, Channel::Greeting { .. } | Channel::Up { .. }) {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            self.outputs.push_back(Output::Send(bytes));
        }
    }

    /// The service port took the connection.
    pub fn connected(&mut self, now_ns: u64) {
        if !matches!(self.channel, Channel::Dialing { .. }) {
            return;
        }
        self.channel = Channel::Greeting { until_ns: now_ns.saturating_add(self.limits.dial_max_ns) };
        self.parser = Parser::default();
        let mut bytes = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut bytes);
        for entry in self.entries.values() {
            Message::Claim(entry.claim.clone()).write(&mut bytes);
        }
        self.outputs.push_back(Output::Send(bytes));
    }

    /// The connection failed, or did not come about.
    pub fn lost(&mut self, now_ns: u64) {
        match self.channel {
            Channel::None | Channel::Absent { .. } => {}
            Channel::Pausing { .. } => {}
            Channel::Up { since_ns } if now_ns.saturating_sub(since_ns) >= self.limits.lasting_ns => {
                self.come_back_until_ns = now_ns.saturating_add(self.limits.come_back_ns);
                if self.entries.is_empty() {
                    self.channel = Channel::None;
                } else {
                    self.dial(now_ns);
                }
            }
            // All connections it was dialled for were in vain themselves.
            Channel::Dialing { .. } if self.asked.is_empty() => self.channel = Channel::None,
            Channel::Dialing { .. } | Channel::Greeting { .. } if now_ns < self.come_back_until_ns => {
                self.channel = Channel::Pausing { until_ns: now_ns.saturating_add(self.limits.pause_ns) };
            }
            _ => self.absent(now_ns),
        }
    }

    fn hang_up(&mut self, now_ns: u64) {
        self.outputs.push_back(Output::Hangup);
        self.lost(now_ns);
    }

    fn absent(&mut self, now_ns: u64) {
        let wait_ns =
            self.limits.retry_first_ns.saturating_mul(1 << self.failures.min(32)).min(self.limits.retry_max_ns);
        self.failures += 1;
        self.channel = Channel::Absent { until_ns: now_ns.saturating_add(wait_ns) };
        for (_, entry) in std::mem::take(&mut self.entries) {
            // Those that are ready have their markers under way; their flows go on without a side channel.
            if entry.until_ns.is_some() {
                self.outputs.push_back(Output::Flow(entry.flow, Event::Plain(WhyPlain::NoService)));
            }
        }
        self.by_flow.clear();
    }

    /// Takes what came on the side channel.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        if !matches!(self.channel, Channel::Greeting { .. } | Channel::Up { .. }) {
            return;
        }
        self.parser.push(bytes);
        loop {
            match self.parser.poll() {
                Ok(None) => return,
                Ok(Some(message)) => {
                    if !self.on_message(message, now_ns) {
                        return self.hang_up(now_ns);
                    }
                }
                Err(_) => return self.hang_up(now_ns),
            }
        }
    }

    /// Whether the message makes sense.
    fn on_message(&mut self, message: Message, now_ns: u64) -> bool {
        match message {
            Message::Hello(_) => {
                self.channel = Channel::Up { since_ns: now_ns };
                self.failures = 0;
                self.asked.clear();
            }
            Message::Ready { id, key } => {
                // One that was given up is withdrawn already.
                let Some(entry) = self.entries.get_mut(&id) else { return true };
                entry.until_ns = None;
                let event = match entry.key {
                    None => Event::Ready(Key::new(&entry.claim.nonce, &key)),
                    Some(known) if known == key => Event::Restored,
                    Some(_) => return false,
                };
                entry.key = Some(key);
                self.outputs.push_back(Output::Flow(entry.flow, event));
            }
            Message::No { id, reason } => {
                // To a claim that was ready before: the peer has forgotten it, nothing more can be asked.
                if let Some(Entry { flow, key: None, .. }) = self.forget(id) {
                    // The flow may be armed since an agent before this one: it must hear that no marker comes.
                    if reason == Reason::Ended {
                        self.send(&Message::Withdraw { id });
                    }
                    self.outputs.push_back(Output::Flow(flow, Event::Plain(WhyPlain::Refused(reason))));
                }
            }
            Message::Query { id, offset } => self.pass(id, Event::Query { offset }),
            Message::Answer { id, offset, marked } => self.pass(id, Event::Answer { offset, marked }),
            Message::Claim(_) | Message::Withdraw { .. } | Message::Dial { .. } | Message::Dialed { .. } => {
                return false;
            }
        }
        true
    }

    fn pass(&mut self, id: u64, event: Event) {
        if let Some(Entry { flow, key: Some(_), .. }) = self.entries.get(&id) {
            self.outputs.push_back(Output::Flow(*flow, event));
        }
    }

    /// When [`Claimant::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        let channel = match self.channel {
            Channel::Dialing { until_ns } | Channel::Greeting { until_ns } | Channel::Pausing { until_ns } => {
                Some(until_ns)
            }
            _ => None,
        };
        self.entries.values().filter_map(|e| e.until_ns).chain(channel).min()
    }

    pub fn on_time(&mut self, now_ns: u64) {
        match self.channel {
            Channel::Dialing { until_ns } | Channel::Greeting { until_ns } if now_ns >= until_ns => {
                self.hang_up(now_ns)
            }
            Channel::Pausing { until_ns } if now_ns >= until_ns => {
                if self.entries.is_empty() {
                    self.channel = Channel::None;
                } else {
                    self.dial(now_ns);
                }
            }
            _ => {}
        }
        let late = |e: &Entry| e.until_ns.is_some_and(|at| now_ns >= at);
        let ids: Vec<u64> = self.entries.iter().filter(|(_, e)| late(e)).map(|(id, _)| *id).collect();
        let up = matches!(self.channel, Channel::Up { .. });
        for id in &ids {
            self.send(&Message::Withdraw { id: *id });
            if let Some(entry) = self.forget(*id) {
                self.outputs.push_back(Output::Flow(entry.flow, Event::Plain(WhyPlain::TimedOut)));
            }
        }
        if up && !ids.is_empty() {
            self.hang_up(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tuple() -> Tuple {
        Tuple::new("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:5432".parse().unwrap())
    }

    fn claimant() -> Claimant {
        Claimant::new(ClaimantLimits { claims_max: 2, ..ClaimantLimits::default() }, [1; 32])
    }

    fn outputs(claimant: &mut Claimant) -> Vec<Output> {
        std::iter::from_fn(|| claimant.poll()).collect()
    }

    fn hello() -> Vec<u8> {
        let mut wire = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut wire);
        wire
    }

    fn wire(message: &Message) -> Vec<u8> {
        let mut wire = Vec::new();
        message.write(&mut wire);
        wire
    }

    fn up(now_ns: u64) -> Claimant {
        let mut claimant = claimant();
        claimant.claim(1, tuple(), 5, now_ns);
        claimant.connected(now_ns);
        claimant.receive(&hello(), now_ns);
        outputs(&mut claimant);
        claimant
    }

    #[test]
    fn a_host_without_narrows_is_left_alone_for_a_second_and_longer_each_time() {
        let mut claimant = claimant();
        let mut now = 0;
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 960, 960] {
            claimant.claim(1, tuple(), 5, now);
            assert_eq!(outputs(&mut claimant), [Output::Dial]);
            claimant.lost(now);
            claimant.ended(1);
            let plain = Output::Flow(1, Event::Plain(WhyPlain::NoService));
            assert_eq!(outputs(&mut claimant), std::slice::from_ref(&plain));
            now += wait * SECOND;
            claimant.claim(1, tuple(), 5, now - 1);
            assert_eq!(outputs(&mut claimant), [plain], "asked again before {wait} s");
        }
        // Once it was there, it begins anew.
        claimant.claim(1, tuple(), 5, now);
        claimant.connected(now);
        claimant.receive(&hello(), now);
        claimant.lost(now);
        outputs(&mut claimant);
        claimant.claim(1, tuple(), 5, now + SECOND);
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
    }

    /// A client that begins before its server, and tries until that is there.
    #[test]
    fn a_host_that_refused_the_connection_too_is_asked_again_at_once() {
        let mut claimant = claimant();
        for (flow, first) in [(1, true), (2, false), (3, true)] {
            claimant.claim(flow, tuple(), 5, 0);
            assert_eq!(outputs(&mut claimant), [Output::Dial]);
            // Which of the two fails first is chance.
            if first {
                claimant.never_connected(flow);
                claimant.lost(0);
            } else {
                claimant.lost(0);
                claimant.never_connected(flow);
            }
            outputs(&mut claimant);
        }
        // Of two, one came up: there is a host, without Narrows.
        claimant.claim(4, tuple(), 5, 0);
        claimant.claim(5, tuple(), 5, 0);
        claimant.lost(0);
        claimant.never_connected(4);
        outputs(&mut claimant);
        claimant.claim(6, tuple(), 5, SECOND - 1);
        assert_eq!(outputs(&mut claimant), [Output::Flow(6, Event::Plain(WhyPlain::NoService))]);
        claimant.claim(6, tuple(), 5, SECOND);
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
    }

    #[test]
    fn a_side_channel_that_lasted_is_waited_for_while_an_agent_follows_another() {
        let mut claimant = up(0);
        let mut now = 2 * SECOND;
        claimant.lost(now);
        while now < 4 * SECOND {
            assert_eq!(outputs(&mut claimant), [Output::Dial]);
            claimant.lost(now);
            assert_eq!(outputs(&mut claimant), []);
            now = claimant.next_wakeup_ns().unwrap();
            claimant.on_time(now);
        }
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
        claimant.lost(now);
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
        assert_eq!(claimant.next_wakeup_ns(), None);
    }

    #[test]
    fn a_service_that_says_nothing_or_something_else_is_hung_up() {
        let mut claimant = claimant();
        claimant.claim(1, tuple(), 5, 0);
        claimant.connected(SECOND);
        outputs(&mut claimant);
        assert_eq!(claimant.next_wakeup_ns(), Some(11 * SECOND));
        claimant.on_time(11 * SECOND);
        let plain = Output::Flow(1, Event::Plain(WhyPlain::NoService));
        assert_eq!(outputs(&mut claimant), [Output::Hangup, plain.clone()]);
        for wrong in [
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            [hello(), hello()[8..].to_vec()].concat(),
            [hello(), wire(&Message::Withdraw { id: 0 })].concat(),
        ] {
            let mut claimant = self::claimant();
            claimant.claim(1, tuple(), 5, 0);
            claimant.connected(0);
            outputs(&mut claimant);
            claimant.receive(&wrong, 0);
            assert_eq!(outputs(&mut claimant), [Output::Hangup, plain.clone()]);
        }
    }

    #[test]
    fn a_claim_without_an_answer_is_withdrawn_and_what_comes_later_ignored() {
        let mut claimant = up(0);
        assert_eq!(claimant.next_wakeup_ns(), Some(15 * SECOND));
        claimant.on_time(15 * SECOND);
        let out = outputs(&mut claimant);
        assert_eq!(
            out[..2],
            [Output::Send(wire(&Message::Withdraw { id: 0 })), Output::Flow(1, Event::Plain(WhyPlain::TimedOut))]
        );
        assert_eq!(out[2..], [Output::Hangup], "who says nothing is gone");
        let mut claimant = up(0);
        claimant.ended(1);
        claimant.receive(&wire(&Message::Ready { id: 0, key: [1; 16] }), 1);
        assert_eq!(outputs(&mut claimant), [Output::Send(wire(&Message::Withdraw { id: 0 }))]);
        assert_eq!(claimant.claims(), 0);
    }

    #[test]
    fn what_is_not_settled_is_claimed_again_in_the_same_words() {
        let mut claimant = claimant();
        claimant.claim(1, tuple(), 5, 0);
        claimant.connected(0);
        let Some(Output::Send(first)) = outputs(&mut claimant).pop() else { panic!("nothing is said") };
        claimant.receive(&hello(), 0);
        claimant.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 0);
        outputs(&mut claimant);
        claimant.lost(2 * SECOND);
        claimant.connected(2 * SECOND);
        assert_eq!(outputs(&mut claimant), [Output::Dial, Output::Send(first)]);
        claimant.receive(&hello(), 3 * SECOND);
        claimant.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 3 * SECOND);
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Restored)]);
        // Another key would be another connection's.
        claimant.receive(&wire(&Message::Ready { id: 0, key: [3; 16] }), 3 * SECOND);
        assert_eq!(outputs(&mut claimant)[0], Output::Hangup);
        let mut settled = up(0);
        settled.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 0);
        settled.say(1, Word::Settled);
        outputs(&mut settled);
        settled.lost(2 * SECOND);
        assert_eq!(outputs(&mut settled), []);
    }

    #[test]
    fn a_peer_that_fails_at_every_claim_is_not_dialled_without_end() {
        let mut claimant = up(0);
        claimant.lost(SECOND - 1);
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
    }

    #[test]
    fn claims_have_a_limit_and_nonces_of_their_own() {
        let mut claimant = up(0);
        let mut claims = Vec::new();
        for flow in 2..5 {
            claimant.claim(flow, tuple(), 5, 0);
            claims.extend(outputs(&mut claimant));
        }
        assert!(matches!(claims[0], Output::Send(_)));
        assert_eq!(claims[1], Output::Flow(3, Event::Plain(WhyPlain::Busy)));
        let Output::Send(second) = &claims[0] else { unreachable!() };
        let nonce = derive(&[1; 32], &[b"narrows claim", &0u64.to_le_bytes()]);
        assert!(!second.ends_with(&nonce));
        claimant.receive(&wire(&Message::No { id: 0, reason: Reason::Taken }), 0);
        claimant.claim(9, tuple(), 5, 0);
        let out = outputs(&mut claimant);
        assert_eq!(out[0], Output::Flow(1, Event::Plain(WhyPlain::Refused(Reason::Taken))));
        assert!(matches!(out[1], Output::Send(_)), "a place is free again");
    }
}
