//! The client's end of the side channel to one host. It dials the host when there is something to
//! claim, remembers for a while that nobody answered there, and repeats the claims that were in
//! doubt when the channel was lost (format.md section 11.5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::marker::{Key, Nonce, derive};
use super::message::{Claim, GREETING, Hello, Message, Parser, Purpose, Reason, VERSION};
use super::proof::Tuple;
use super::{Event, FlowId, WhyPlain, Word};

/// Limits of a [`Claimant`] (format.md sections 11.5 and 11.8).
#[derive(Debug, Clone, Copy)]
pub struct ClaimantLimits {
    /// Most unsettled claims.
    pub claims_max: usize,
    /// Longest wait for the connection, and again for the greeting. Only claims wait for them.
    pub dial_max_ns: u64,
    /// Longest wait for the answer to a claim. Longer than [`super::WitnessLimits::accept_max_ns`],
    /// after which a living peer says no: a peer that stays silent is gone.
    pub answer_max_ns: u64,
    /// First pause before a host without Narrows is dialled again; it doubles with each failure.
    /// Short, because a server that starts together with its client is there a moment later. Ten
    /// failures in a row show that it never will be.
    pub retry_first_ns: u64,
    /// Longest such pause.
    pub retry_max_ns: u64,
    /// For this long after a lasting side channel was lost, its host is dialled again at short
    /// intervals: its agent may have changed, and the next one is up within a quarter of a second.
    pub come_back_ns: u64,
    /// Interval of these attempts.
    pub pause_ns: u64,
    /// A side channel that lived shorter than this counts as none; otherwise a peer that fails at
    /// every claim would be dialled endlessly.
    pub lasting_ns: u64,
    /// Delay before a claim that was also sent on an earlier side channel is repeated after a
    /// refusal that may be revoked: a new agent learns of listeners and connections within a second
    /// or two.
    pub again_ns: u64,
    /// A claim that was given up is sent at most this often. Every peer that gets it answers, so
    /// this limits peers that accept side channels and drop them, and connections that no peer
    /// knows any more.
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

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect to the service port, then say [`Claimant::connected`] or [`Claimant::lost`].
    Dial,
    /// Send these bytes on the side channel.
    Send(Vec<u8>),
    /// The connection, or the attempt at one, is of no use any more: close it once its pending
    /// bytes are sent. The driver does not report its end with [`Claimant::lost`].
    Hangup,
    /// Pass the event to [`Flow::hear`](super::Flow::hear).
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
    /// A lasting side channel was lost and dialling failed; the next attempt is at `until_ns`.
    Pausing {
        until_ns: u64,
    },
    /// Nobody answered; no attempt before this time.
    Absent {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Entry {
    flow: FlowId,
    claim: Claim,
    /// Deadline of the answer. `None`: it has arrived, or was given up.
    until_ns: Option<u64>,
    key: Option<Nonce>,
    /// How often it was sent. It may have reached the other end, which then looks for a marker.
    said: u32,
    /// It was sent on an earlier side channel, so the answer on this one may not be the first.
    said_earlier: bool,
    /// When it is repeated on this side channel.
    again_ns: Option<u64>,
    /// Its flow withdrew it while no side channel was up.
    withdrawn: bool,
}

impl Entry {
    /// Whether the claim was given up without an answer. Only the flow knows that: the claim is not
    /// withdrawn, since the answer may be under way. It is repeated on the next side channel, where
    /// it is either answered after all, or refused and withdrawn.
    fn is_in_doubt(&self) -> bool {
        self.until_ns.is_none() && self.key.is_none()
    }
}

/// State machine of the client's end for one host; see the module's description.
#[derive(Debug)]
pub struct Claimant {
    limits: ClaimantLimits,
    secret: [u8; 32],
    channel: Channel,
    parser: Parser,
    entries: BTreeMap<u64, Entry>,
    by_flow: BTreeMap<FlowId, u64>,
    next_id: u64,
    /// Failed attempts in a row.
    failures: u32,
    /// End of the time in which a lost lasting side channel may come back.
    come_back_until_ns: u64,
    /// Flows for which the host was last dialled, without those whose own connection did not come
    /// up.
    asked: BTreeSet<FlowId>,
    outputs: VecDeque<Output>,
}

impl Claimant {
    /// A claimant without a side channel. `secret` must be random and used for nothing else.
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

    /// The next action; call it until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Claims a connection. `clock_ms` is the connection's TCP timestamp clock when the SYN left.
    /// The answer is [`Event::Ready`] or [`Event::Plain`], possibly at once.
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
            // Right after the greeting, without waiting: a peer that does not understand it closes
            // the connection.
            Channel::Greeting { .. } | Channel::Up { .. } => self.send(&Message::Claim(claim.clone())),
        }
        // Flows above the limit can be left out: one is enough.
        if !matches!(self.channel, Channel::Up { .. }) && self.asked.len() < self.limits.claims_max {
            self.asked.insert(flow);
        }
        let said = u32::from(self.is_there());
        let entry =
            Entry { flow, claim, until_ns, key: None, said, said_earlier: false, again_ns: None, withdrawn: false };
        self.entries.insert(id, entry);
        self.by_flow.insert(flow, id);
    }

    /// Takes a word of a flow.
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

    /// The connection failed before it was established: its host refused it, or could not be
    /// reached. That the service port could not be reached either then says nothing about the host.
    pub fn never_connected(&mut self, flow: FlowId) {
        self.ended(flow);
        let asked = self.asked.remove(&flow);
        if asked && self.asked.is_empty() && matches!(self.channel, Channel::Absent { .. }) {
            self.failures = self.failures.saturating_sub(1);
            self.channel = Channel::None;
        }
    }

    /// Number of claims that are neither settled nor given up.
    pub fn claims(&self) -> usize {
        self.entries.values().filter(|e| !e.is_in_doubt()).count()
    }

    /// Withdraws a claim. The server then stops looking for the marker, so the claim is always
    /// forgotten with it, and a READY that is under way finds no claim.
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

    /// Whether a side channel is up on which messages can be sent.
    fn is_there(&self) -> bool {
        matches!(self.channel, Channel::Greeting { .. } | Channel::Up { .. })
    }

    /// Sends on the side channel if there is one. Otherwise the message is dropped; the next side
    /// channel repeats what matters.
    fn send(&mut self, message: &Message) {
        if self.is_there() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            self.outputs.push_back(Output::Send(bytes));
        }
    }

    /// The service port accepted the connection.
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

    /// The connection was lost, or could not be established.
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
            // All connections that it was dialled for failed as well.
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
        // The peer will not come back, so claims in doubt are dropped too.
        if wait_ns == self.limits.retry_max_ns {
            self.entries.clear();
            self.by_flow.clear();
        }
    }

    /// Gives up waiting for an answer. Claims that are ready have their markers under way; their
    /// flows go on without a side channel.
    fn give_up(&mut self, id: u64, why: WhyPlain) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.until_ns.take().is_some() {
            self.outputs.push_back(Output::Flow(entry.flow, Event::Plain(why)));
        }
        if entry.said == 0 || entry.said >= self.limits.said_max || entry.key.is_some() {
            self.forget(id);
        }
    }

    /// Whether a refused claim stays in doubt: the refusal may be revoked, and the claim was also
    /// sent on an earlier side channel, so an earlier agent may have armed its connection.
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

    /// Drops the claims that were sent too often to be settled ever.
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

    /// Takes bytes received on the side channel.
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

    /// Handles a message. Returns whether it was allowed at this point.
    fn on_message(&mut self, message: Message, now_ns: u64) -> bool {
        match message {
            Message::Hello(_) => {
                self.channel = Channel::Up { since_ns: now_ns };
                self.failures = 0;
                self.asked.clear();
            }
            Message::Ready { id, key } => {
                // Unknown ids belong to withdrawn claims.
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
                // If the claim was ready before, the peer has forgotten it, and nothing more can be
                // asked.
                if let Some(Entry { flow, key: None, .. }) = self.forget(id) {
                    // An earlier agent may have armed the flow: it must learn that no marker comes.
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

    /// Handles all deadlines up to `now_ns`.
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
        // A greeting has its own deadline.
        if up && !ids.is_empty() {
            self.hang_up(now_ns);
        } else if self.is_there() {
            self.say_again(now_ns);
        }
    }
}

#[cfg(test)]
mod tests;
