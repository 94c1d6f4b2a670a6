//! The server's end of all side channels of a host: compares claims with the connections that its programs accepted
//! (format.md section 11.5). A claim may come before its connection was accepted, or after.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::net::{IpAddr, Ipv6Addr};

use super::marker::{Key, Nonce, derive};
use super::message::{Claim, GREETING, Hello, Message, Parser, Purpose, Reason, VERSION};
use super::proof::{Tuple, verify};
use super::{Event, FlowId, Word};

/// The driver's own number of a connection to the service port.
pub type ChannelId = u64;

#[derive(Debug, Clone, Copy)]
pub struct WitnessLimits {
    /// When there are so many, that one makes room for another that claimed nothing for longest and has no claim.
    pub channels_max: usize,
    /// From one host: one is enough for a host, but each supervisor may have its own. A host has an IPv4 address, or the
    /// 64 bits that begin an IPv6 address: the rest is its own choice.
    pub channels_per_host_max: usize,
    /// Claims of one channel that wait for their connection.
    pub waiting_max: usize,
    /// Of all channels from one host: what a backlog holds on usual systems.
    pub waiting_per_host_max: usize,
    /// Of all channels: a few MB.
    pub waiting_in_all_max: usize,
    /// For the greeting of a channel.
    pub greeting_max_ns: u64,
    /// How long a claim waits for its connection: programs accept late when they are busy.
    pub accept_max_ns: u64,
}

impl Default for WitnessLimits {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            channels_max: 1024,
            channels_per_host_max: 64,
            waiting_max: 1024,
            waiting_per_host_max: 4096,
            waiting_in_all_max: 16_384,
            greeting_max_ns: 10 * SECOND,
            accept_max_ns: 10 * SECOND,
        }
    }
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Send(ChannelId, Vec<u8>),
    /// Close it when what was to be sent is sent. Its end is not told.
    Hangup(ChannelId),
    /// The connection is for a [`super::gateway::Gateway`], which has these bytes to take first.
    Gateway(ChannelId, Vec<u8>),
    Flow(FlowId, Event),
}

#[derive(Debug)]
struct Channel {
    address: IpAddr,
    host: IpAddr,
    /// When it came, or claimed last.
    used_ns: u64,
    parser: Parser,
    /// When the greeting must be there; `None`: it is.
    until_ns: Option<u64>,
    claims: BTreeMap<u64, Standing>,
    waiting: usize,
}

/// What is counted as one host.
fn host_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// What became of a claim.
#[derive(Debug)]
enum Standing {
    Waiting { claim: Claim, until_ns: u64 },
    Accepted(FlowId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    /// The claim is good; the flow is to arm before its peer hears of it.
    Arming,
    Ready,
    /// Plain for ever: one guess is all that a forger has.
    Refused,
}

#[derive(Debug)]
struct Accepted {
    tuple: Tuple,
    syn_clock_ms: Option<u32>,
    proof: Proof,
    /// Of the claim that was good.
    nonce: Nonce,
    key: Nonce,
    /// Channel and number of the claim, while that channel lasts.
    link: Option<(ChannelId, u64)>,
}

#[derive(Debug)]
pub struct Witness {
    limits: WitnessLimits,
    secret: [u8; 32],
    keys: u64,
    channels: BTreeMap<ChannelId, Channel>,
    /// Claims that wait, by what they claim.
    waiting: BTreeMap<Tuple, (ChannelId, u64)>,
    /// How many of them came from each host.
    waiting_of_host: BTreeMap<IpAddr, usize>,
    /// When the greeting of a channel (`None`) or the connection of a claim must be there.
    deadlines: BTreeSet<(u64, ChannelId, Option<u64>)>,
    flows: BTreeMap<FlowId, Accepted>,
    by_tuple: BTreeMap<Tuple, FlowId>,
    /// Ports on which programs under Narrows listen, and how many sockets do.
    ports: BTreeMap<u16, usize>,
    outputs: VecDeque<Output>,
}

impl Witness {
    /// `secret`: random, and used for nothing else.
    pub fn new(limits: WitnessLimits, secret: [u8; 32]) -> Self {
        Self {
            limits,
            secret,
            keys: 0,
            channels: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_of_host: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            flows: BTreeMap::new(),
            by_tuple: BTreeMap::new(),
            ports: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// What is to be done, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A program under Narrows listens on that port with one more socket.
    pub fn listening(&mut self, port: u16) {
        *self.ports.entry(port).or_default() += 1;
    }

    /// With one socket less. Connections that wait to be accepted are gone with it.
    pub fn listening_ended(&mut self, port: u16) {
        if let Some(sockets) = self.ports.get_mut(&port) {
            *sockets -= 1;
            if *sockets == 0 {
                self.ports.remove(&port);
            }
        }
    }

    /// A program accepted a connection: its addresses as seen here, and the clock in the client's SYN if there was one.
    /// If the proof comes, now or later, the flow hears [`Event::Claimed`].
    pub fn accepted(&mut self, flow: FlowId, tuple: Tuple, syn_clock_ms: Option<u32>) {
        let accepted = Accepted {
            tuple,
            syn_clock_ms,
            proof: Proof::None,
            nonce: Nonce::default(),
            key: Nonce::default(),
            link: None,
        };
        self.flows.insert(flow, accepted);
        // The addresses are free again, or the kernel would not have given them out: the older flow is ending.
        self.by_tuple.insert(tuple, flow);
        if let Some((channel, id)) = self.waiting.get(&tuple).copied()
            && let Some(claim) = self.unwait(channel, id)
        {
            self.judge(flow, channel, claim);
        }
    }

    /// The connection is over.
    pub fn ended(&mut self, flow: FlowId) {
        let Some(accepted) = self.flows.remove(&flow) else { return };
        if self.by_tuple.get(&accepted.tuple) == Some(&flow) {
            self.by_tuple.remove(&accepted.tuple);
        }
        if let Some((channel, id)) = accepted.link {
            if accepted.proof == Proof::Arming {
                self.send(channel, &Message::No { id, reason: Reason::Ended });
            }
            self.drop_claim(channel, id);
        }
    }

    /// What a flow says.
    pub fn say(&mut self, flow: FlowId, word: Word) {
        let Some(accepted) = self.flows.get_mut(&flow) else { return };
        match word {
            Word::Armed if matches!(accepted.proof, Proof::Arming | Proof::Ready) => accepted.proof = Proof::Ready,
            Word::Decline => accepted.proof = Proof::Refused,
            _ => {}
        }
        let key = accepted.key;
        let Some((channel, id)) = accepted.link else { return };
        match word {
            Word::Armed => self.send(channel, &Message::Ready { id, key }),
            Word::Query { offset } => self.send(channel, &Message::Query { id, offset }),
            Word::Answer { offset, marked } => self.send(channel, &Message::Answer { id, offset, marked }),
            // The claim stays: a client that never was ready withdraws it then, and a flow that is armed for an earlier
            // answer to it hears that no marker comes.
            Word::Decline => self.send(channel, &Message::No { id, reason: Reason::Ended }),
            Word::Withdraw | Word::Settled => {}
        }
    }

    /// Somebody connected to the service port.
    pub fn opened(&mut self, channel: ChannelId, address: IpAddr, now_ns: u64) {
        let address = address.to_canonical();
        let host = host_of(address);
        let of_host = self.channels.values().filter(|c| c.host == host).count();
        let full = if of_host >= self.limits.channels_per_host_max {
            Some(Some(host))
        } else {
            (self.channels.len() >= self.limits.channels_max).then_some(None)
        };
        if let Some(among) = full {
            let idle = |c: &Channel| c.claims.is_empty() && among.is_none_or(|host| c.host == host);
            let idle = self.channels.iter().filter(|(_, c)| idle(c)).min_by_key(|(_, c)| c.used_ns).map(|(id, _)| *id);
            // Nobody can shut others out with channels that do nothing.
            let Some(idle) = idle else { return self.outputs.push_back(Output::Hangup(channel)) };
            self.hang_up(idle);
        }
        let until_ns = now_ns.saturating_add(self.limits.greeting_max_ns);
        self.deadlines.insert((until_ns, channel, None));
        let new = Channel {
            address,
            host,
            used_ns: now_ns,
            parser: Parser::default(),
            until_ns: Some(until_ns),
            claims: BTreeMap::new(),
            waiting: 0,
        };
        self.channels.insert(channel, new);
    }

    /// The connection to the service port is over. What was ready stays so: its client may come back for it.
    pub fn lost(&mut self, channel: ChannelId) {
        let Some(from) = self.channels.get(&channel) else { return };
        let waiting = from.claims.iter().filter(|(_, s)| matches!(s, Standing::Waiting { .. }));
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.unwait(channel, id);
        }
        self.greeted(channel);
        let Some(gone) = self.channels.remove(&channel) else { return };
        for standing in gone.claims.into_values() {
            if let Standing::Accepted(flow) = standing
                && let Some(accepted) = self.flows.get_mut(&flow)
            {
                accepted.link = None;
            }
        }
    }

    /// Its greeting is not waited for any more.
    fn greeted(&mut self, channel: ChannelId) {
        if let Some(until_ns) = self.channels.get_mut(&channel).and_then(|c| c.until_ns.take()) {
            self.deadlines.remove(&(until_ns, channel, None));
        }
    }

    fn hang_up(&mut self, channel: ChannelId) {
        self.outputs.push_back(Output::Hangup(channel));
        self.lost(channel);
    }

    fn send(&mut self, channel: ChannelId, message: &Message) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        self.outputs.push_back(Output::Send(channel, bytes));
    }

    /// Takes what came on a channel. The driver reads no more from it while what it has to send there is not sent, or a
    /// peer that asks and never listens would fill the memory.
    pub fn receive(&mut self, channel: ChannelId, bytes: &[u8], now_ns: u64) {
        let Some(from) = self.channels.get_mut(&channel) else { return };
        from.parser.push(bytes);
        while let Some(from) = self.channels.get_mut(&channel) {
            match from.parser.poll() {
                Ok(None) => return,
                Ok(Some(message)) => {
                    if !self.on_message(channel, message, now_ns) {
                        return self.hang_up(channel);
                    }
                }
                Err(_) => return self.hang_up(channel),
            }
        }
    }

    /// Whether the message makes sense.
    fn on_message(&mut self, channel: ChannelId, message: Message, now_ns: u64) -> bool {
        let Some(from) = self.channels.get_mut(&channel) else { return true };
        match message {
            Message::Hello(Hello { purpose: Purpose::SideChannel, .. }) => {
                self.greeted(channel);
                let mut bytes = GREETING.to_vec();
                Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut bytes);
                self.outputs.push_back(Output::Send(channel, bytes));
            }
            Message::Hello(Hello { purpose: Purpose::Gateway, .. }) => {
                let rest = from.parser.rest().to_vec();
                self.greeted(channel);
                self.channels.remove(&channel);
                self.outputs.push_back(Output::Gateway(channel, rest));
            }
            Message::Claim(claim) => return self.on_claim(channel, claim, now_ns),
            Message::Withdraw { id } => match from.claims.get(&id) {
                Some(Standing::Waiting { .. }) => {
                    self.unwait(channel, id);
                }
                Some(Standing::Accepted(flow)) => {
                    let flow = *flow;
                    self.drop_claim(channel, id);
                    if let Some(accepted) = self.flows.get_mut(&flow) {
                        (accepted.proof, accepted.link) = (Proof::Refused, None);
                        self.outputs.push_back(Output::Flow(flow, Event::Withdrawn));
                    }
                }
                None => {}
            },
            Message::Query { id, offset } => self.pass(channel, id, Event::Query { offset }),
            Message::Answer { id, offset, marked } => self.pass(channel, id, Event::Answer { offset, marked }),
            Message::Ready { .. } | Message::No { .. } | Message::Dial { .. } | Message::Dialed { .. } => return false,
        }
        true
    }

    fn pass(&mut self, channel: ChannelId, id: u64, event: Event) {
        let standing = self.channels.get(&channel).and_then(|c| c.claims.get(&id));
        if let Some(Standing::Accepted(flow)) = standing
            && self.flows.get(flow).is_some_and(|f| f.proof == Proof::Ready)
        {
            self.outputs.push_back(Output::Flow(*flow, event));
        }
    }

    fn on_claim(&mut self, channel: ChannelId, claim: Claim, now_ns: u64) -> bool {
        let Some(from) = self.channels.get_mut(&channel) else { return true };
        from.used_ns = now_ns;
        let id = claim.id;
        match from.claims.get(&id) {
            Some(Standing::Waiting { claim: known, .. }) => return *known == claim,
            Some(Standing::Accepted(flow)) => {
                let flow = *flow;
                let same = self.flows.get(&flow).is_some_and(|f| f.nonce == claim.nonce && f.tuple == claim.tuple);
                if same {
                    self.judge(flow, channel, claim);
                }
                return same;
            }
            None => {}
        }
        let refused = if claim.tuple.client().ip() != from.address {
            Reason::Address
        } else if let Some(&flow) = self.by_tuple.get(&claim.tuple) {
            self.judge(flow, channel, claim);
            return true;
        } else if !self.ports.contains_key(&claim.tuple.server().port()) {
            Reason::NotHere
        } else if from.waiting >= self.limits.waiting_max
            || self.waiting.len() >= self.limits.waiting_in_all_max
            || self.waiting_of_host.get(&from.host).is_some_and(|n| *n >= self.limits.waiting_per_host_max)
        {
            Reason::Busy
        } else {
            match self.waiting.get(&claim.tuple).copied() {
                // Addresses that are used again, or a client that came back: the newest claim is the one that can be true.
                Some((older, id)) if older == channel || self.is_same_waiting(older, id, &claim) => {
                    self.unwait(older, id);
                    if older == channel {
                        self.send(older, &Message::No { id, reason: Reason::NotAccepted });
                    }
                    return self.wait(channel, claim, now_ns);
                }
                Some(_) => Reason::Taken,
                None => return self.wait(channel, claim, now_ns),
            }
        };
        self.send(channel, &Message::No { id, reason: refused });
        true
    }

    fn is_same_waiting(&self, channel: ChannelId, id: u64, other: &Claim) -> bool {
        let standing = self.channels.get(&channel).and_then(|c| c.claims.get(&id));
        matches!(standing, Some(Standing::Waiting { claim, .. }) if claim.nonce == other.nonce)
    }

    fn wait(&mut self, channel: ChannelId, claim: Claim, now_ns: u64) -> bool {
        if let Some(from) = self.channels.get_mut(&channel) {
            self.waiting.insert(claim.tuple, (channel, claim.id));
            from.waiting += 1;
            *self.waiting_of_host.entry(from.host).or_default() += 1;
            let until_ns = now_ns.saturating_add(self.limits.accept_max_ns);
            self.deadlines.insert((until_ns, channel, Some(claim.id)));
            from.claims.insert(claim.id, Standing::Waiting { claim, until_ns });
        }
        true
    }

    /// Takes a claim from among those that wait.
    fn unwait(&mut self, channel: ChannelId, id: u64) -> Option<Claim> {
        let from = self.channels.get_mut(&channel)?;
        let Some(Standing::Waiting { claim, until_ns }) = from.claims.remove(&id) else { return None };
        from.waiting -= 1;
        self.deadlines.remove(&(until_ns, channel, Some(id)));
        if let Some(of_host) = self.waiting_of_host.get_mut(&from.host) {
            *of_host -= 1;
            if *of_host == 0 {
                self.waiting_of_host.remove(&from.host);
            }
        }
        self.waiting.remove(&claim.tuple);
        Some(claim)
    }

    fn drop_claim(&mut self, channel: ChannelId, id: u64) {
        if let Some(from) = self.channels.get_mut(&channel) {
            from.claims.remove(&id);
        }
    }

    /// Compares a claim with the connection whose addresses it has.
    fn judge(&mut self, flow: FlowId, channel: ChannelId, claim: Claim) {
        let (Some(accepted), Some(from)) = (self.flows.get_mut(&flow), self.channels.get_mut(&channel)) else { return };
        let id = claim.id;
        let refused = match accepted.proof {
            Proof::None => match verify(&claim, accepted.tuple, accepted.syn_clock_ms, from.address) {
                Ok(()) => {
                    let serial = self.keys.to_le_bytes();
                    self.keys += 1;
                    accepted.key = derive(&self.secret, &[b"narrows ready", &serial, &claim.nonce]);
                    (accepted.nonce, accepted.proof) = (claim.nonce, Proof::Arming);
                    accepted.link = Some((channel, id));
                    from.claims.insert(id, Standing::Accepted(flow));
                    let key = Key::new(&claim.nonce, &accepted.key);
                    self.outputs.push_back(Output::Flow(flow, Event::Claimed(key)));
                    return;
                }
                Err(reason) => {
                    accepted.proof = Proof::Refused;
                    reason
                }
            },
            Proof::Arming | Proof::Ready if accepted.nonce == claim.nonce => {
                // Its client came back by another channel, or says it twice.
                let older = accepted.link.replace((channel, id)).filter(|link| *link != (channel, id));
                let (ready, key) = (accepted.proof == Proof::Ready, accepted.key);
                from.claims.insert(id, Standing::Accepted(flow));
                if let Some((channel, id)) = older {
                    self.drop_claim(channel, id);
                }
                if ready {
                    self.send(channel, &Message::Ready { id, key });
                    self.outputs.push_back(Output::Flow(flow, Event::Restored));
                }
                return;
            }
            Proof::Arming | Proof::Ready => Reason::Taken,
            Proof::Refused => Reason::Proof,
        };
        self.send(channel, &Message::No { id, reason: refused });
    }

    /// When [`Witness::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _, _)| *at)
    }

    pub fn on_time(&mut self, now_ns: u64) {
        while let Some(&(at, channel, claim)) = self.deadlines.first().filter(|(at, _, _)| *at <= now_ns) {
            self.deadlines.remove(&(at, channel, claim));
            match claim {
                None => self.hang_up(channel),
                Some(id) => {
                    self.unwait(channel, id);
                    self.send(channel, &Message::No { id, reason: Reason::NotAccepted });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tuple(port: u16) -> Tuple {
        Tuple::new(core::net::SocketAddr::new(client(), port), "10.0.0.2:5432".parse().unwrap())
    }

    fn client() -> IpAddr {
        "10.0.0.1".parse().unwrap()
    }

    fn claim(id: u64, port: u16, clock_ms: u32) -> Claim {
        Claim { id, tuple: tuple(port), clock_ms, nonce: [id as u8; 16] }
    }

    /// With side channels 1 and 2 from the client's host.
    fn witness() -> Witness {
        let limits = WitnessLimits { waiting_max: 2, channels_per_host_max: 3, ..WitnessLimits::default() };
        let mut witness = Witness::new(limits, [1; 32]);
        witness.listening(5432);
        for channel in [1, 2] {
            witness.opened(channel, client(), 0);
            greet(&mut witness, channel);
        }
        witness
    }

    fn greet(witness: &mut Witness, channel: ChannelId) {
        let mut wire = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut wire);
        witness.receive(channel, &wire, 0);
        outputs(witness);
    }

    #[test]
    fn idle_channels_shut_nobody_out_and_addresses_of_one_host_are_counted_together() {
        let limits = WitnessLimits { channels_max: 4, channels_per_host_max: 2, ..WitnessLimits::default() };
        let mut witness = Witness::new(limits, [1; 32]);
        for (channel, address) in [(1, "2001:db8::1"), (2, "2001:db8::2:1"), (3, "2001:db8::3")] {
            witness.opened(channel, address.parse().unwrap(), channel);
        }
        assert_eq!(outputs(&mut witness), [Output::Hangup(1)]);
        for (channel, last) in [(4, 1), (5, 2), (6, 3)] {
            witness.opened(channel, IpAddr::from([10, 0, 0, last]), channel);
        }
        assert_eq!(outputs(&mut witness), [Output::Hangup(2)]);
        assert_eq!(witness.deadlines.len(), 4);
    }

    #[test]
    fn claims_that_wait_are_few_in_all_and_of_a_host() {
        for (of_host, in_all) in [(3, 9), (9, 3)] {
            let limits = WitnessLimits {
                waiting_max: 2,
                waiting_per_host_max: of_host,
                waiting_in_all_max: in_all,
                ..WitnessLimits::default()
            };
            let mut witness = Witness { limits, ..witness() };
            for id in 0..3 {
                assert_eq!(tell(&mut witness, 1 + id % 2, &Message::Claim(claim(id, 40000 + id as u16, 0))), []);
            }
            assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(3, 50000, 0))), [no(2, 3, Reason::Busy)]);
            witness.lost(1);
            assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(4, 50000, 0))), []);
            witness.lost(2);
            assert!(witness.waiting.is_empty() && witness.waiting_of_host.is_empty() && witness.deadlines.is_empty());
        }
    }

    fn outputs(witness: &mut Witness) -> Vec<Output> {
        std::iter::from_fn(|| witness.poll()).collect()
    }

    fn tell(witness: &mut Witness, channel: ChannelId, message: &Message) -> Vec<Output> {
        let mut wire = Vec::new();
        message.write(&mut wire);
        witness.receive(channel, &wire, 0);
        outputs(witness)
    }

    fn no(channel: ChannelId, id: u64, reason: Reason) -> Output {
        let mut wire = Vec::new();
        Message::No { id, reason }.write(&mut wire);
        Output::Send(channel, wire)
    }

    fn is_claimed(outputs: &[Output]) -> bool {
        matches!(outputs, [Output::Flow(7, Event::Claimed(_))])
    }

    #[test]
    fn a_forger_has_one_guess() {
        let mut witness = witness();
        witness.accepted(7, tuple(40000), Some(1000));
        let wrong = Message::Claim(claim(0, 40000, 9000));
        assert_eq!(tell(&mut witness, 2, &wrong), [no(2, 0, Reason::Proof)]);
        let right = Message::Claim(claim(1, 40000, 1000));
        assert_eq!(tell(&mut witness, 2, &right), [no(2, 1, Reason::Proof)]);
    }

    #[test]
    fn the_flow_arms_before_its_peer_hears_and_a_repeated_claim_gets_the_same_answer() {
        let mut witness = witness();
        assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000))), []);
        witness.accepted(7, tuple(40000), Some(1100));
        assert!(is_claimed(&outputs(&mut witness)));
        witness.say(7, Word::Armed);
        let Some(Output::Send(1, ready)) = witness.poll() else { panic!("no answer") };
        let again = tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)));
        assert_eq!(again, [Output::Send(1, ready.clone()), Output::Flow(7, Event::Restored)]);
        // By another channel, which is the flow's from then on.
        let moved = tell(&mut witness, 2, &Message::Claim(claim(4, 40000, 1000)));
        assert_eq!(moved, [Output::Send(2, ready), Output::Flow(7, Event::Restored)]);
        witness.lost(1);
        witness.say(7, Word::Query { offset: 3 });
        assert!(matches!(&outputs(&mut witness)[..], [Output::Send(2, _)]));
        // Another one is not the same, whatever it knows.
        let other = Claim { nonce: [9; 16], ..claim(5, 40000, 1000) };
        assert_eq!(tell(&mut witness, 2, &Message::Claim(other)), [no(2, 5, Reason::Taken)]);
        assert_eq!(tell(&mut witness, 2, &Message::Withdraw { id: 4 }), [Output::Flow(7, Event::Withdrawn)]);
    }

    #[test]
    fn a_claim_waits_for_its_connection_but_not_for_ever_and_not_without_a_listener() {
        let mut witness = witness();
        assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(0, 40000, 0))), []);
        assert_eq!(witness.next_wakeup_ns(), Some(10 * SECOND));
        witness.on_time(10 * SECOND);
        assert_eq!(outputs(&mut witness), [no(1, 0, Reason::NotAccepted)]);
        witness.accepted(7, tuple(40000), Some(0));
        assert_eq!(outputs(&mut witness), []);
        // Withdrawn, or lost with its channel.
        tell(&mut witness, 1, &Message::Claim(claim(1, 40001, 0)));
        tell(&mut witness, 1, &Message::Withdraw { id: 1 });
        tell(&mut witness, 2, &Message::Claim(claim(2, 40002, 0)));
        witness.lost(2);
        witness.accepted(8, tuple(40001), Some(0));
        witness.accepted(9, tuple(40002), Some(0));
        assert_eq!((outputs(&mut witness), witness.next_wakeup_ns()), (vec![], None));
        witness.listening_ended(5432);
        let late = tell(&mut witness, 1, &Message::Claim(claim(3, 40003, 0)));
        assert_eq!(late, [no(1, 3, Reason::NotHere)]);
    }

    /// The agent changed between the flow's being armed and its client's being told.
    #[test]
    fn a_flow_that_declines_hears_that_its_client_was_never_ready() {
        let mut witness = witness();
        witness.accepted(7, tuple(40000), Some(1000));
        assert!(is_claimed(&tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)))));
        witness.say(7, Word::Decline);
        assert_eq!(outputs(&mut witness), [no(1, 4, Reason::Ended)]);
        assert_eq!(tell(&mut witness, 1, &Message::Withdraw { id: 4 }), [Output::Flow(7, Event::Withdrawn)]);
        assert_eq!(tell(&mut witness, 1, &Message::Withdraw { id: 4 }), []);
    }

    #[test]
    fn of_two_claims_to_one_connection_the_newest_of_a_channel_counts_and_the_first_of_two_channels() {
        let mut witness = witness();
        tell(&mut witness, 1, &Message::Claim(claim(0, 40000, 5000)));
        let newer = tell(&mut witness, 1, &Message::Claim(claim(1, 40000, 100)));
        assert_eq!(newer, [no(1, 0, Reason::NotAccepted)], "addresses that are used again");
        let other = tell(&mut witness, 2, &Message::Claim(claim(2, 40000, 9000)));
        assert_eq!(other, [no(2, 2, Reason::Taken)]);
        witness.accepted(7, tuple(40000), Some(100));
        assert!(is_claimed(&outputs(&mut witness)));
        // The connection ends before it is armed.
        witness.ended(7);
        assert_eq!(outputs(&mut witness), [no(1, 1, Reason::Ended)]);
    }

    #[test]
    fn everything_has_a_limit_and_what_makes_no_sense_is_hung_up() {
        let mut witness = witness();
        for id in 0..2 {
            assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(id, 40000 + id as u16, 0))), []);
        }
        assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(2, 50000, 0))), [no(1, 2, Reason::Busy)]);
        witness.opened(3, "::ffff:10.0.0.1".parse().unwrap(), 0);
        // More channels than a host may have: those without claims make room, that first which has none for longest.
        witness.opened(4, client(), 1);
        assert_eq!(outputs(&mut witness), [Output::Hangup(2)]);
        for (channel, port) in [(3, 40002), (4, 40003)] {
            greet(&mut witness, channel);
            tell(&mut witness, channel, &Message::Claim(claim(0, port, 0)));
        }
        witness.opened(5, client(), 2);
        assert_eq!(outputs(&mut witness), [Output::Hangup(5)], "all are in use");
        tell(&mut witness, 4, &Message::Withdraw { id: 0 });
        tell(&mut witness, 3, &Message::Withdraw { id: 0 });
        witness.opened(2, client(), 3);
        assert_eq!(outputs(&mut witness), [Output::Hangup(3)]);
        greet(&mut witness, 2);
        witness.lost(4);
        witness.opened(3, client(), 0);
        // One that does not greet.
        witness.on_time(10 * SECOND);
        assert_eq!(outputs(&mut witness).last(), Some(&Output::Hangup(3)));
        let ready = Message::Ready { id: 0, key: [0; 16] };
        assert_eq!(tell(&mut witness, 1, &ready), [Output::Hangup(1)]);
        tell(&mut witness, 2, &Message::Claim(claim(0, 40000, 0)));
        let reused = tell(&mut witness, 2, &Message::Claim(claim(0, 40009, 0)));
        assert_eq!(reused, [Output::Hangup(2)], "a number that is used twice");
        assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(1, 40000, 0))), []);
    }
}
