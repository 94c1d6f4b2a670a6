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
    /// A claim that was said on an earlier side channel too is said again so long after a no that may be taken back: an
    /// agent that follows another hears of listeners and connections within a second or two.
    pub again_ns: u64,
    /// A claim that was given up is said so often at most. Whoever hears it answers, so that this is for peers that take
    /// side channels and drop them, and for connections that nobody knows of any more.
    pub said_max: u32,
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
            again_ns: 2 * SECOND,
            said_max: 8,
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
    /// When the answer must be there; `None`: it is there, or was given up.
    until_ns: Option<u64>,
    key: Option<Nonce>,
    /// How often it was said. It may have come to the other end, which looks for a marker then.
    said: u32,
    /// It was said on an earlier side channel, so that the answer on this one may not be the first.
    said_earlier: bool,
    /// When it is said again on this side channel.
    again_ns: Option<u64>,
    /// Its flow withdrew it while nobody could be told.
    withdrawn: bool,
}

impl Entry {
    /// The flow is told that nobody answered, which nobody else knows: the claim is not withdrawn, since the answer may be
    /// under way. It is said again when somebody is there: to be answered after all, or refused and withdrawn.
    fn is_in_doubt(&self) -> bool {
        self.until_ns.is_none() && self.key.is_none()
    }
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
        let said = u32::from(self.is_there());
        let entry =
            Entry { flow, claim, until_ns, key: None, said, said_earlier: false, again_ns: None, withdrawn: false };
        self.entries.insert(id, entry);
        self.by_flow.insert(flow, id);
    }

    /// What a flow says.
    pub fn say(&mut self, flow: FlowId, word: Word) {
        let Some(&id) = self.by_flow.get(&flow) else { return };
        match word {
            Word::Query { offset } => self.send(&Message::Query { id, offset }),
            Word::Answer { offset, marked } => self.send(&Message::Answer { id, offset, marked }),
            Word::Withdraw if self.is_there() => self.withdraw(id),
            Word::Withdraw => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    (entry.key, entry.withdrawn) = (None, true);
                }
            }
            Word::Settled => {
                self.forget(id);
            }
            Word::Armed { .. } | Word::Decline => {}
        }
    }

    /// The connection is over.
    pub fn ended(&mut self, flow: FlowId) {
        let Some(&id) = self.by_flow.get(&flow) else { return };
        if self.entries.get(&id).is_some_and(|e| e.key.is_none()) {
            self.withdraw(id);
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

    /// Claims that are not settled and not given up.
    pub fn claims(&self) -> usize {
        self.entries.values().filter(|e| !e.is_in_doubt()).count()
    }

    /// A server that hears this looks for no marker any more. So the claim is forgotten whenever it is said, and a READY that
    /// is under way meets nothing.
    fn withdraw(&mut self, id: u64) {
        self.send(&Message::Withdraw { id });
        self.forget(id);
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

    /// A side channel is there on which something can be said.
    fn is_there(&self) -> bool {
        matches!(self.channel, Channel::Greeting { .. } | Channel::Up { .. })
    }

    /// To a side channel that is there; else it is lost, and what matters is said again.
    fn send(&mut self, message: &Message) {
        if self.is_there() {
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
        self.forget_hopeless();
        for (id, entry) in &mut self.entries {
            Message::Claim(entry.claim.clone()).write(&mut bytes);
            entry.said_earlier = entry.said > 0;
            entry.said = entry.said.saturating_add(1);
            entry.again_ns = None;
            if entry.withdrawn {
                Message::Withdraw { id: *id }.write(&mut bytes);
            }
        }
        self.entries.retain(|_, e| !e.withdrawn);
        self.by_flow.retain(|_, id| self.entries.contains_key(id));
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
        let ids: Vec<u64> = self.entries.keys().copied().collect();
        for id in ids {
            self.give_up(id, WhyPlain::NoService);
        }
        // Nobody comes any more, so that nobody is asked for those in doubt either.
        if wait_ns == self.limits.retry_max_ns {
            self.entries.clear();
            self.by_flow.clear();
        }
    }

    /// Nobody answers. Those that are ready have their markers under way; their flows go on without a side channel.
    fn give_up(&mut self, id: u64, why: WhyPlain) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.until_ns.take().is_some() {
            self.outputs.push_back(Output::Flow(entry.flow, Event::Plain(why)));
        }
        if entry.said == 0 || entry.said >= self.limits.said_max || entry.key.is_some() {
            self.forget(id);
        }
    }

    /// Whether a claim stays in doubt to which somebody says no: the no may be taken back, and the claim was said on an
    /// earlier side channel too, so that its connection may be armed since an agent before this one.
    fn keep(&mut self, id: u64, reason: Reason, now_ns: u64) -> bool {
        let may_change = matches!(reason, Reason::NotHere | Reason::NotAccepted | Reason::Busy | Reason::Taken);
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        if !may_change || !entry.said_earlier || entry.key.is_some() || entry.said >= self.limits.said_max {
            return false;
        }
        entry.again_ns = Some(now_ns.saturating_add(self.limits.again_ns));
        self.give_up(id, WhyPlain::NoService);
        true
    }

    /// Nobody settles a claim that was said so often.
    fn forget_hopeless(&mut self) {
        let said_max = self.limits.said_max;
        self.entries.retain(|_, e| !e.is_in_doubt() || e.said < said_max);
        self.by_flow.retain(|_, id| self.entries.contains_key(id));
    }

    fn say_again(&mut self, now_ns: u64) {
        let due = |e: &Entry| e.again_ns.is_some_and(|at| now_ns >= at);
        let ids: Vec<u64> = self.entries.iter().filter(|(_, e)| due(e)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.again_ns = None;
            entry.said = entry.said.saturating_add(1);
            let claim = Message::Claim(entry.claim.clone());
            self.send(&claim);
        }
    }

    /// Takes what came on the side channel.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        if !self.is_there() {
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
                // Else it is withdrawn.
                let Some(entry) = self.entries.get_mut(&id) else { return true };
                (entry.until_ns, entry.again_ns) = (None, None);
                let event = match entry.key {
                    None => Event::Ready(Key::new(&entry.claim.nonce, &key)),
                    Some(known) if known == key => Event::Restored,
                    Some(_) => return false,
                };
                entry.key = Some(key);
                self.outputs.push_back(Output::Flow(entry.flow, event));
            }
            Message::No { id, reason } => {
                if self.keep(id, reason, now_ns) {
                    return true;
                }
                // To a claim that was ready before: the peer has forgotten it, nothing more can be asked.
                if let Some(Entry { flow, key: None, .. }) = self.forget(id) {
                    // The flow may be armed since an agent before this one: it must hear that no marker comes.
                    if reason == Reason::Ended {
                        self.withdraw(id);
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
            Channel::Absent { until_ns } if !self.entries.is_empty() => Some(until_ns),
            _ => None,
        };
        let again = self.entries.values().filter_map(|e| e.again_ns.filter(|_| self.is_there()));
        self.entries.values().filter_map(|e| e.until_ns).chain(again).chain(channel).min()
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
            Channel::Absent { until_ns } if now_ns >= until_ns && !self.entries.is_empty() => self.dial(now_ns),
            _ => {}
        }
        let late = |e: &Entry| e.until_ns.is_some_and(|at| now_ns >= at);
        let ids: Vec<u64> = self.entries.iter().filter(|(_, e)| late(e)).map(|(id, _)| *id).collect();
        let up = matches!(self.channel, Channel::Up { .. });
        for id in &ids {
            self.give_up(*id, WhyPlain::TimedOut);
        }
        // A greeting has a time of its own.
        if up && !ids.is_empty() {
            self.hang_up(now_ns);
        } else if self.is_there() {
            self.say_again(now_ns);
        }
    }
}

#[cfg(test)]
mod tests;
