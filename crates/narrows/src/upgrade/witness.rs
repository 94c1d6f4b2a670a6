//! The server's end of all side channels of a host. It compares claims with the connections that
//! the host's programs accepted (format.md section 11.5). A claim may arrive before or after its
//! connection is accepted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::net::{IpAddr, Ipv6Addr};

use super::marker::{Key, Nonce, derive};
use super::message::{Claim, GREETING, Hello, Message, Parser, Purpose, Reason, VERSION};
use super::proof::{Tuple, verify};
use super::{Event, FlowId, Word};

/// The driver's number for a connection to the service port.
pub type ChannelId = u64;

/// Limits of a [`Witness`] (format.md section 11.8).
#[derive(Debug, Clone, Copy)]
pub struct WitnessLimits {
    /// Most channels. One beyond it replaces the channel that has no claim and has claimed nothing
    /// for longest.
    pub channels_max: usize,
    /// Most channels of one host. One is enough for a host, but each supervisor may have its own.
    /// [`host_of`] says what counts as one host.
    pub channels_per_host_max: usize,
    /// Most claims of one channel that wait for their connection.
    pub waiting_max: usize,
    /// Most waiting claims of all channels of one host: the size of a backlog on usual systems.
    pub waiting_per_host_max: usize,
    /// Most waiting claims of all channels: a few MB.
    pub waiting_in_all_max: usize,
    /// Longest wait for the greeting of a channel.
    pub greeting_max_ns: u64,
    /// Longest wait of a claim for its connection: busy programs accept late.
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

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send these bytes on the channel.
    Send(ChannelId, Vec<u8>),
    /// Close the channel once its pending bytes are sent. The driver does not report its end with
    /// [`Witness::lost`].
    Hangup(ChannelId),
    /// A gateway client asks for a port of this host and waits. The driver owns the connection from
    /// here on.
    Gateway {
        /// The connection to the service port.
        channel: ChannelId,
        /// TCP port of the server.
        port: u16,
    },
    /// Pass the event to [`Flow::hear`](super::Flow::hear).
    Flow(FlowId, Event),
}

#[derive(Debug)]
struct Channel {
    /// Position among all channels ever opened. Late messages on a channel that its client gave up
    /// count less than messages on a newer one.
    serial: u64,
    address: IpAddr,
    host: IpAddr,
    /// When it was opened, or last claimed.
    used_ns: u64,
    parser: Parser,
    /// Deadline of the greeting, and of the request of a gateway client. `None`: it is a side
    /// channel.
    until_ns: Option<u64>,
    /// Its greeting was that of a gateway client.
    dials: bool,
    claims: BTreeMap<u64, Standing>,
    waiting: usize,
}

/// The prefix that counts as one host: an IPv4 address, or the first 64 bits of an IPv6 address,
/// since a host chooses the rest itself.
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// State of a claim.
#[derive(Debug)]
enum Standing {
    Waiting { claim: Claim, until_ns: u64 },
    Accepted(FlowId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    /// The claim is good; the flow must arm before the client is told.
    Arming,
    Ready,
    /// The claim was good, but the flow declined; the client has not withdrawn it.
    Declined,
    /// Plain permanently: a forger gets one guess.
    Refused,
}

#[derive(Debug)]
struct Accepted {
    tuple: Tuple,
    syn_clock_ms: Option<u32>,
    proof: Proof,
    /// Nonce of the claim that was good.
    nonce: Nonce,
    key: Nonce,
    /// Channel and number of the claim, while that channel lasts.
    link: Option<(ChannelId, u64)>,
}

/// State machine of the server's end; see the module's description.
#[derive(Debug)]
pub struct Witness {
    limits: WitnessLimits,
    secret: [u8; 32],
    keys: u64,
    channels: BTreeMap<ChannelId, Channel>,
    /// Number of channels opened so far.
    opened: u64,
    /// Waiting claims, by the addresses they claim.
    waiting: BTreeMap<Tuple, (ChannelId, u64)>,
    /// Number of waiting claims of each host.
    waiting_of_host: BTreeMap<IpAddr, usize>,
    /// Deadlines of the greeting of a channel (`None`) or of the connection of a claim.
    deadlines: BTreeSet<(u64, ChannelId, Option<u64>)>,
    flows: BTreeMap<FlowId, Accepted>,
    by_tuple: BTreeMap<Tuple, FlowId>,
    /// Ports on which programs under Narrows listen, and how many sockets do.
    ports: BTreeMap<u16, usize>,
    outputs: VecDeque<Output>,
}

impl Witness {
    /// A witness without channels. `secret` must be random and used for nothing else.
    pub fn new(limits: WitnessLimits, secret: [u8; 32]) -> Self {
        Self {
            limits,
            secret,
            keys: 0,
            channels: BTreeMap::new(),
            opened: 0,
            waiting: BTreeMap::new(),
            waiting_of_host: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            flows: BTreeMap::new(),
            by_tuple: BTreeMap::new(),
            ports: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The next action; call it until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A program under Narrows listens on `port` with one more socket.
    pub fn listening(&mut self, port: u16) {
        *self.ports.entry(port).or_default() += 1;
    }

    /// A program stopped listening on `port` with one socket. Connections in the backlog of that
    /// socket are gone.
    pub fn listening_ended(&mut self, port: u16) {
        if let Some(sockets) = self.ports.get_mut(&port) {
            *sockets -= 1;
            if *sockets == 0 {
                self.ports.remove(&port);
            }
        }
    }

    /// A program accepted a connection. `tuple` has the addresses as seen here, `syn_clock_ms` the
    /// clock in the client's SYN if there was one. Once a claim is proved, the flow gets
    /// [`Event::Claimed`].
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
        // The kernel gave the addresses out again, so the older flow is ending.
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

    /// Takes a word of a flow.
    pub fn say(&mut self, flow: FlowId, word: Word) {
        let Some(accepted) = self.flows.get_mut(&flow) else { return };
        if matches!(word, Word::Armed { tag } if tag != Key::new(&accepted.nonce, &accepted.key).tag()) {
            // It answers an earlier agent, and looks for a marker that no client of this one will
            // send.
            return;
        }
        match word {
            Word::Armed { .. } if matches!(accepted.proof, Proof::Arming | Proof::Ready) => {
                accepted.proof = Proof::Ready
            }
            Word::Decline if matches!(accepted.proof, Proof::Arming | Proof::Ready) => accepted.proof = Proof::Declined,
            _ => {}
        }
        let (key, ready) = (accepted.key, accepted.proof == Proof::Ready);
        let Some((channel, id)) = accepted.link else { return };
        match word {
            Word::Armed { .. } if ready => self.send(channel, &Message::Ready { id, key }),
            Word::Query { offset } => self.send(channel, &Message::Query { id, offset }),
            Word::Answer { offset, marked } => self.send(channel, &Message::Answer { id, offset, marked }),
            // The claim stays: a client that was never ready then withdraws it, so a flow that is
            // armed because of an earlier answer learns that no marker comes.
            Word::Decline => self.send(channel, &Message::No { id, reason: Reason::Ended }),
            Word::Armed { .. } | Word::Withdraw | Word::Settled => {}
        }
    }

    /// A peer connected to the service port.
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
            let idle = self.channels.iter().filter(|(_, c)| idle(c));
            // Channels that have not stated their purpose go first: a side channel may be used
            // again.
            let idle = idle.min_by_key(|(_, c)| (c.until_ns.is_none(), c.used_ns)).map(|(id, _)| *id);
            // Refuse the newcomer: all channels have claims. Idle channels cannot shut others out.
            let Some(idle) = idle else { return self.outputs.push_back(Output::Hangup(channel)) };
            self.hang_up(idle);
        }
        let until_ns = now_ns.saturating_add(self.limits.greeting_max_ns);
        self.deadlines.insert((until_ns, channel, None));
        self.opened += 1;
        let new = Channel {
            serial: self.opened,
            address,
            host,
            used_ns: now_ns,
            parser: Parser::default(),
            until_ns: Some(until_ns),
            dials: false,
            claims: BTreeMap::new(),
            waiting: 0,
        };
        self.channels.insert(channel, new);
    }

    /// The connection to the service port is over. Ready flows stay ready: their client may return.
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

    /// Stops waiting for the channel's greeting.
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

    /// Takes bytes received on a channel. The driver must not read from a channel while bytes to be
    /// sent there are pending; otherwise a peer that asks and never reads would fill the memory.
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

    /// Handles a message. Returns whether it was allowed at this point.
    fn on_message(&mut self, channel: ChannelId, message: Message, now_ns: u64) -> bool {
        let Some(from) = self.channels.get_mut(&channel) else { return true };
        if from.dials != matches!(message, Message::Dial { .. }) {
            return false;
        }
        match message {
            Message::Hello(Hello { purpose: Purpose::SideChannel, .. }) => {
                self.greeted(channel);
                let mut bytes = GREETING.to_vec();
                Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut bytes);
                self.outputs.push_back(Output::Send(channel, bytes));
            }
            // Its request is due by the same deadline.
            Message::Hello(Hello { purpose: Purpose::Gateway, .. }) => from.dials = true,
            Message::Dial { port } => {
                // A client that does not wait for the answer does not follow the protocol.
                if !from.parser.rest().is_empty() {
                    return false;
                }
                self.greeted(channel);
                self.channels.remove(&channel);
                self.outputs.push_back(Output::Gateway { channel, port });
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
            Message::Ready { .. } | Message::No { .. } | Message::Dialed { .. } => return false,
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
                Some((other, id)) if self.is_newer(other, channel) && self.is_same_waiting(other, id, &claim) => {
                    return true;
                }
                // The addresses were reused, or the client reconnected: only the newest claim can
                // be true.
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

    /// Whether channel `one` was opened after channel `other`.
    fn is_newer(&self, one: ChannelId, other: ChannelId) -> bool {
        let serial = |channel| self.channels.get(&channel).map_or(0, |c| c.serial);
        serial(one) > serial(other)
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

    /// Removes a waiting claim.
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

    /// Verifies a claim for the connection that has its addresses.
    fn judge(&mut self, flow: FlowId, channel: ChannelId, claim: Claim) {
        let known = self.flows.get(&flow).filter(|f| f.nonce == claim.nonce);
        if known.and_then(|f| f.link).is_some_and(|(linked, _)| self.is_newer(linked, channel)) {
            // The claim was delayed on a channel that its client gave up; it has since arrived on a
            // newer one.
            return;
        }
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
            Proof::Arming | Proof::Ready | Proof::Declined if accepted.nonce == claim.nonce => {
                // Its client returned on another channel, or repeats the claim.
                let older = accepted.link.replace((channel, id)).filter(|link| *link != (channel, id));
                let (proof, key) = (accepted.proof, accepted.key);
                from.claims.insert(id, Standing::Accepted(flow));
                if let Some((channel, id)) = older {
                    self.drop_claim(channel, id);
                }
                match proof {
                    Proof::Ready => {
                        self.send(channel, &Message::Ready { id, key });
                        self.outputs.push_back(Output::Flow(flow, Event::Restored));
                    }
                    Proof::Declined => self.send(channel, &Message::No { id, reason: Reason::Ended }),
                    Proof::None | Proof::Arming | Proof::Refused => {}
                }
                return;
            }
            Proof::Arming | Proof::Ready => Reason::Taken,
            Proof::Declined | Proof::Refused => Reason::Proof,
        };
        self.send(channel, &Message::No { id, reason: refused });
    }

    /// When [`Witness::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _, _)| *at)
    }

    /// Handles all deadlines up to `now_ns`.
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
mod tests;
