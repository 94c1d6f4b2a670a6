//! Two programs, a connection, a supervisor at either end and a side channel, in virtual time.
//! Every byte that reaches a program is compared with what the other one wrote, and its delivery
//! time with the earliest possible one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

mod setup;
mod side;

use narrows::upgrade::claimant::{Claimant, ClaimantLimits};
use narrows::upgrade::flow::{Flow, FlowLimits};
use narrows::upgrade::marker::MARKER_LEN;
use narrows::upgrade::witness::{ChannelId, Witness, WitnessLimits};
use narrows::upgrade::{Event, Tuple, Word};
pub(crate) use setup::{Act, End, Outcome, Seen, Setup, Slow, Who};

pub(crate) const MS: u64 = 1_000_000;
/// Number of the only connection, at both ends.
const FLOW: u64 = 7;
const PORT: u16 = 5432;

enum Ev {
    Act(Who, Act),
    Segment(Who, Vec<u8>),
    Fin(Who),
    Reset(Who),
    Accept,
    Claim,
    Connected(ChannelId),
    Refused(ChannelId),
    Side(Who, ChannelId, Vec<u8>),
    SideLost(Who, ChannelId),
    Forge(bool, i32),
    /// On the line between the server's supervisor and its agent.
    Say(Word),
    Hear(Event),
    Restart,
    /// The agent is told about listeners and connections that existed before it.
    Register,
}

/// One program, with everything between it and the wire.
struct Host {
    flow: Option<Flow>,
    alive: bool,
    sent: Vec<u8>,
    got: usize,
    end: End,
    ended: bool,
    /// Arrival times of the plain bytes that the program has not received.
    arrivals: VecDeque<u64>,
    frames: Vec<u8>,
    frames_end: bool,
    wire_free_ns: u64,
    side_free_ns: BTreeMap<ChannelId, u64>,
    seen: Seen,
}

impl Host {
    fn new(flow: Option<Flow>) -> Self {
        Self {
            flow,
            alive: true,
            sent: vec![],
            got: 0,
            end: End::Open,
            ended: false,
            arrivals: VecDeque::new(),
            frames: vec![],
            frames_end: false,
            wire_free_ns: 0,
            side_free_ns: BTreeMap::new(),
            seen: Seen { end: End::Open, switched_at: None, held_max_ns: 0, why_plain: None },
        }
    }
}

pub(crate) struct World {
    setup: Setup,
    now: u64,
    serial: u64,
    events: BTreeMap<Reverse<(u64, u64)>, Ev>,
    random: u64,
    hosts: [Host; 2],
    accepted: bool,
    /// Events that came before the server accepted.
    early: Vec<Ev>,
    claimant: Claimant,
    witness: Witness,
    channel: ChannelId,
    /// Time until which the side channel is broken; messages in transit are lost.
    broken_until: u64,
    broken: Option<ChannelId>,
    dials: usize,
    /// The dialled side channels in order, each with its time.
    dialled: Vec<(ChannelId, u64)>,
    /// Whether the agent was told about listeners and connections.
    registered: bool,
}

pub(crate) fn run(setup: &Setup) -> Outcome {
    World::new(setup.clone()).run()
}

impl World {
    fn new(setup: Setup) -> Self {
        let limits = FlowLimits::default();
        let client = match (setup.client, setup.direct) {
            (false, _) => None,
            (true, false) => Some(Flow::client(limits)),
            (true, true) => Some(Flow::direct(limits, &[setup.seed as u8; 16])),
        };
        let server = setup.server.then(|| Flow::server(limits, setup.direct));
        let mut world = Self {
            now: 0,
            serial: 0,
            events: BTreeMap::new(),
            random: setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            hosts: [Host::new(client), Host::new(server)],
            accepted: false,
            early: vec![],
            claimant: Claimant::new(ClaimantLimits::default(), [setup.seed as u8; 32]),
            witness: Witness::new(WitnessLimits::default(), [!setup.seed as u8; 32]),
            channel: 0,
            broken_until: 0,
            broken: None,
            dials: 0,
            dialled: vec![],
            registered: true,
            setup,
        };
        if world.setup.server {
            world.witness.listening(PORT);
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below.max(1)
    }

    fn at(&mut self, when: u64, event: Ev) {
        self.serial += 1;
        self.events.insert(Reverse((when, self.serial)), event);
    }

    fn host(&mut self, who: Who) -> &mut Host {
        &mut self.hosts[who as usize]
    }

    fn tuple(&self, who: Who) -> Tuple {
        let client = if self.setup.nat && who == Who::Server { "10.0.0.1:61000" } else { "10.0.0.1:40000" };
        Tuple::new(client.parse().unwrap(), format!("10.0.0.2:{PORT}").parse().unwrap())
    }

    fn run(mut self) -> Outcome {
        // If the side channel exists before the connection, it has existed for a while when that
        // begins.
        let begin = if self.setup.warm && self.setup.client && !self.setup.direct { 5000 * MS } else { 0 };
        if begin > 0 {
            let tuple = Tuple::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap());
            self.claimant.claim(FLOW + 1, tuple, 0, 0);
            self.side_work();
        }
        let (data, accept) = (self.setup.data_ns, self.setup.accept_ns);
        self.at(begin, Ev::Claim);
        self.at(begin + data + accept, Ev::Accept);
        for (when, who, act) in self.setup.acts.clone() {
            // A program cannot write before it has the connection.
            let ready = if who == Who::Client { 2 * data } else { data + accept };
            self.at(begin + when.max(ready), Ev::Act(who, act));
        }
        for (when, same_host, off) in self.setup.forged.clone() {
            self.at(begin + when, Ev::Forge(same_host, off));
        }
        if let Some((when, ..)) = self.setup.restart {
            self.at(begin + when, Ev::Restart);
        }
        let mut steps = 0;
        loop {
            let next = self.events.last_key_value().map(|(Reverse((at, _)), _)| *at);
            let wakeups = [Who::Client, Who::Server].map(|who| {
                let host = &self.hosts[who as usize];
                let open = host.alive && host.end == End::Open;
                let flow = host.flow.as_ref().filter(|_| open).and_then(Flow::next_wakeup_ns);
                let channel = match who {
                    Who::Client => self.claimant.next_wakeup_ns(),
                    Who::Server => self.witness.next_wakeup_ns(),
                };
                flow.into_iter().chain(channel.filter(|_| host.alive)).min()
            });
            let wake = wakeups.into_iter().flatten().min();
            let Some(when) = next.into_iter().chain(wake).min() else { break };
            assert!(when >= self.now, "time runs backwards");
            self.now = when;
            steps += 1;
            assert!(steps < 20_000, "it does not come to an end: {:?}", self.setup);
            if let Some((who, _)) = self.setup.kill.filter(|(_, step)| *step == steps) {
                self.kill(who);
            }
            if let Some((_, heals)) = self.setup.break_at.filter(|(step, _)| *step == steps) {
                self.break_side(heals);
            }
            if wake.is_some_and(|at| next.is_none_or(|n| at < n)) {
                self.wake();
            } else if let Some((_, event)) = self.events.pop_last() {
                self.happen(event);
            }
            self.side_work();
        }
        let [client, server] = self.hosts;
        for (host, peer, who) in [(&client, &server, Who::Client), (&server, &client, Who::Server)] {
            assert!(host.end != End::Open, "{who:?} waits for ever: {:?}", self.setup);
            assert!(host.end != End::Eof || peer.ended && host.got == peer.sent.len(), "{who:?}: {:?}", self.setup);
        }
        let seen = |host: Host| {
            let why_plain = host.flow.and_then(|f| f.why_plain());
            Seen { end: host.end, why_plain, ..host.seen }
        };
        Outcome { client: seen(client), server: seen(server), steps, dials: self.dials }
    }

    fn wake(&mut self) {
        if self.hosts[0].alive {
            self.claimant.on_time(self.now);
        }
        if self.hosts[1].alive {
            self.witness.on_time(self.now);
        }
        for who in [Who::Client, Who::Server] {
            let now = self.now;
            let host = self.host(who);
            if !host.alive || host.end != End::Open {
                continue;
            }
            let Some(flow) = &mut host.flow else { continue };
            match flow.on_time(now) {
                Ok(released) => self.give(who, &released),
                Err(_) => self.fail(who),
            }
        }
    }

    fn happen(&mut self, event: Ev) {
        match event {
            Ev::Act(who, act) => self.act(who, act),
            Ev::Claim => {
                let (tuple, clock) = (self.tuple(Who::Client), self.clock(self.setup.clock_off_ms));
                if self.setup.client && !self.setup.direct && self.hosts[0].alive {
                    self.claimant.claim(FLOW, tuple, clock, self.now);
                }
                self.flow_work(Who::Client);
            }
            Ev::Accept => {
                self.accepted = true;
                if self.setup.server && self.hosts[1].alive && self.registered {
                    let (tuple, clock) = (self.tuple(Who::Server), self.clock(0));
                    self.witness.accepted(FLOW, tuple, self.setup.syn_clock.then_some(clock));
                }
                for event in std::mem::take(&mut self.early) {
                    self.happen(event);
                }
            }
            Ev::Segment(Who::Server, _) | Ev::Fin(Who::Server) | Ev::Reset(Who::Server) if !self.accepted => {
                self.early.push(event);
            }
            Ev::Segment(who, bytes) => self.segment(who, &bytes),
            Ev::Fin(who) => self.fin(who),
            Ev::Reset(who) => self.finish(who, End::Error),
            Ev::Connected(channel) => {
                if channel == self.channel && self.hosts[0].alive {
                    self.claimant.connected(self.now);
                }
            }
            Ev::Refused(channel) => {
                if channel == self.channel && self.hosts[0].alive {
                    self.claimant.lost(self.now);
                }
            }
            Ev::Side(Who::Client, channel, bytes) => {
                if channel == self.channel && self.hosts[0].alive {
                    self.claimant.receive(&bytes, self.now);
                }
            }
            Ev::Side(Who::Server, channel, bytes) => {
                if self.hosts[1].alive {
                    self.witness.receive(channel, &bytes, self.now);
                }
            }
            Ev::SideLost(Who::Client, channel) => {
                if channel == self.channel && self.hosts[0].alive {
                    self.claimant.lost(self.now);
                }
            }
            Ev::SideLost(Who::Server, channel) => {
                if self.hosts[1].alive {
                    self.witness.lost(channel);
                }
            }
            Ev::Forge(same_host, off) => self.forge(same_host, off),
            Ev::Say(word) => {
                if self.hosts[1].alive {
                    self.witness.say(FLOW, word);
                }
            }
            Ev::Hear(event) => self.hear(Who::Server, event),
            Ev::Restart => self.restart(),
            Ev::Register => self.register(),
        }
    }

    fn clock(&self, off_ms: i32) -> u32 {
        0xffff_ff00u32.wrapping_add_signed(off_ms)
    }

    // ---- the connection ----

    fn act(&mut self, who: Who, act: Act) {
        let host = self.host(who);
        if host.end == End::Error || host.ended {
            return;
        }
        match act {
            Act::Write(bytes) => {
                host.sent.extend_from_slice(&bytes);
                match &mut host.flow {
                    Some(flow) if flow.sends_frames() => {
                        let frames: Vec<u8> = bytes
                            .chunks(200)
                            .flat_map(|c| [c.len() as u8].into_iter().chain(c.iter().map(|b| !b)).collect::<Vec<_>>())
                            .collect();
                        self.transmit(who, &frames);
                    }
                    Some(flow) => {
                        flow.sending_plain(bytes.len());
                        self.transmit(who, &bytes);
                    }
                    None => self.transmit(who, &bytes),
                }
            }
            Act::End => {
                host.ended = true;
                let frames = host.flow.as_ref().is_some_and(Flow::sends_frames);
                if frames {
                    self.transmit(who, &[0]);
                } else if let Some(flow) = &mut host.flow {
                    flow.sending_end();
                    self.flow_work(who);
                }
                let at = self.host(who).wire_free_ns.max(self.now + self.setup.data_ns);
                self.at(at, Ev::Fin(who.other()));
                self.over();
            }
        }
    }

    /// Cuts bytes into segments and sends them. Each write begins a segment.
    fn transmit(&mut self, who: Who, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = match self.random(4) {
                _ if !self.setup.cut || self.setup.direct && self.hosts[who as usize].wire_free_ns == 0 => 1460,
                0 => 1,
                1 => 1 + self.random(12) as usize,
                2 => 1 + self.random(40) as usize,
                _ => 1460,
            };
            let (piece, more) = rest.split_at(len.min(rest.len()));
            rest = more;
            let gap = if self.setup.cut && self.random(3) == 0 { self.random(8 * self.setup.data_ns) } else { 0 };
            let at = self.now + self.setup.data_ns + self.random(self.setup.jitter_ns);
            let at = at.max(self.host(who).wire_free_ns) + gap;
            self.host(who).wire_free_ns = at;
            self.at(at, Ev::Segment(who.other(), piece.to_vec()));
        }
    }

    fn segment(&mut self, who: Who, bytes: &[u8]) {
        let now = self.now;
        let host = self.host(who);
        if host.end == End::Error {
            return;
        }
        host.arrivals.extend(bytes.iter().map(|_| now));
        let Some(flow) = &mut host.flow else { return self.give(who, bytes) };
        let had_frames = flow.receives_frames();
        let Ok(step) = flow.receive(bytes, now) else { return self.fail(who) };
        self.give(who, &step.released);
        self.give(who, &bytes[..step.plain]);
        if let Some(begin) = step.frames {
            let host = self.host(who);
            if !had_frames {
                host.seen.switched_at = Some(host.got);
                host.arrivals.drain(..MARKER_LEN);
            }
            host.frames.extend_from_slice(&bytes[begin..]);
            self.decode(who);
        }
        self.flow_work(who);
    }

    fn decode(&mut self, who: Who) {
        loop {
            let host = self.host(who);
            let Some((&len, rest)) = host.frames.split_first() else { return };
            if host.frames_end {
                return self.fail(who);
            }
            let len = usize::from(len);
            if len == 0 {
                host.frames_end = true;
                host.frames.remove(0);
                host.arrivals.pop_front();
                continue;
            }
            if rest.len() < len {
                return;
            }
            let raw: Vec<u8> = rest[..len].iter().map(|b| !b).collect();
            host.frames.drain(..=len);
            host.arrivals.pop_front();
            // Decoding waits for complete frames; only plain bytes must never wait.
            host.arrivals.iter_mut().take(len).for_each(|at| *at = u64::MAX);
            self.give(who, &raw);
        }
    }

    /// Delivers bytes to the program.
    fn give(&mut self, who: Who, bytes: &[u8]) {
        let (now, setup) = (self.now, &self.setup);
        let [a, b] = &mut self.hosts;
        let (host, peer) = if who == Who::Client { (a, b) } else { (b, a) };
        let expected = peer.sent.get(host.got..host.got + bytes.len());
        assert!(expected == Some(bytes), "{who:?} gets foreign bytes {bytes:?} at {}: {setup:?}", host.got);
        host.got += bytes.len();
        for _ in bytes {
            let held = now.saturating_sub(host.arrivals.pop_front().unwrap());
            host.seen.held_max_ns = host.seen.held_max_ns.max(held);
        }
    }

    fn fin(&mut self, who: Who) {
        let host = self.host(who);
        if host.end != End::Open {
            return;
        }
        let end = match &mut host.flow {
            Some(flow) if flow.receives_frames() => {
                if host.frames_end && host.frames.is_empty() {
                    Ok(Default::default())
                } else {
                    Err(())
                }
            }
            Some(flow) => flow.receive_end().map_err(drop),
            None => Ok(Default::default()),
        };
        match end {
            Ok(released) => {
                self.give(who, &released);
                self.host(who).end = End::Eof;
                self.over();
            }
            Err(()) => self.fail(who),
        }
    }

    /// A supervisor gives a connection up: reset on the wire, error for the program.
    fn fail(&mut self, who: Who) {
        let at = self.host(who).wire_free_ns.max(self.now + self.setup.data_ns);
        self.at(at, Ev::Reset(who.other()));
        self.finish(who, End::Error);
    }

    fn finish(&mut self, who: Who, end: End) {
        let host = self.host(who);
        if host.end == End::Open {
            host.end = end;
        }
        self.over();
    }

    /// Tells the state machines when the connection is over at their end.
    fn over(&mut self) {
        for who in [Who::Client, Who::Server] {
            let host = self.host(who);
            if host.end == End::Error || host.end == End::Eof && host.ended {
                match who {
                    Who::Client => self.claimant.ended(FLOW),
                    Who::Server => self.witness.ended(FLOW),
                }
            }
        }
    }

    fn kill(&mut self, who: Who) {
        let host = self.host(who);
        if host.flow.is_none() {
            return;
        }
        host.alive = false;
        // The reset may overtake data in transit.
        if self.random(2) == 0 {
            let gone = |e: &Ev| matches!(e, Ev::Segment(to, _) | Ev::Fin(to) if *to == who.other());
            self.events.retain(|_, e| !gone(e));
        }
        self.fail(who);
        self.host(who).flow = None;
        let (at, channel) = (self.now + self.setup.side_ns, self.channel);
        self.at(at, Ev::SideLost(who.other(), channel));
        let later = |e: &Ev| matches!(e, Ev::Act(w, _) if *w == who);
        self.events.retain(|_, e| !later(e));
        let host = self.host(who);
        if host.end == End::Eof {
            host.end = End::Error;
        }
        if who == Who::Server && !self.accepted {
            // The listening socket is gone with its program's supervisor; waiting connections are
            // reset.
            self.early.clear();
        }
    }
}
