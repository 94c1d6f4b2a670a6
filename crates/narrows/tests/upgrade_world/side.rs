//! Outputs of the flows and state machines, the side channel that carries them, and a forger.

use narrows::upgrade::witness::{ChannelId, Witness, WitnessLimits};
use narrows::upgrade::{Event, Word, claimant, witness};

use super::{End, Ev, FLOW, MS, PORT, Slow, Who, World};

/// The forger's channels at the witness.
const FORGED: ChannelId = 1000;

impl World {
    pub(super) fn flow_work(&mut self, who: Who) {
        loop {
            let host = self.host(who);
            if !host.alive || host.end == End::Error {
                return;
            }
            let Some(flow) = &mut host.flow else { return };
            if let Some(marker) = flow.take_marker() {
                if host.ended {
                    // The direction was shut down; the state machine must not send a marker after
                    // that.
                    panic!("a marker behind the end: {:?}", self.setup);
                }
                self.transmit(who, &marker);
                continue;
            }
            let Some(word) = flow.poll_word() else { return };
            match who {
                Who::Client => self.claimant.say(FLOW, word),
                Who::Server if self.setup.line_ns > 0 => self.at(self.now + self.setup.line_ns, Ev::Say(word)),
                Who::Server => self.witness.say(FLOW, word),
            }
            if matches!(word, Word::Armed { .. }) {
                assert!(who == Who::Server);
            }
        }
    }

    pub(super) fn side_work(&mut self) {
        loop {
            if self.hosts[0].alive
                && let Some(output) = self.claimant.poll()
            {
                match output {
                    claimant::Output::Dial => {
                        self.channel += 1;
                        self.dials += 1;
                        self.dialled.push((self.channel, self.now));
                        let channel = self.channel;
                        let ns = self.setup.side_ns + self.slow(channel).0.dial_ns / 2;
                        if self.setup.service && self.now >= self.broken_until && self.hosts[1].alive {
                            self.witness.opened(channel, "::ffff:10.0.0.1".parse().unwrap(), self.now);
                            self.at(self.now + 2 * ns, Ev::Connected(channel));
                        } else {
                            self.at(self.now + 2 * ns, Ev::Refused(channel));
                        }
                    }
                    claimant::Output::Send(bytes) => self.side_send(Who::Client, self.channel, &bytes),
                    claimant::Output::Hangup => {
                        let at = self.side_at(Who::Client, self.channel);
                        self.at(at, Ev::SideLost(Who::Server, self.channel));
                        self.channel += 1;
                    }
                    claimant::Output::Flow(FLOW, event) => self.hear(Who::Client, event),
                    claimant::Output::Flow(..) => {}
                }
                continue;
            }
            if self.hosts[1].alive
                && let Some(output) = self.witness.poll()
            {
                match output {
                    witness::Output::Send(FORGED.., _) | witness::Output::Hangup(FORGED..) => {}
                    witness::Output::Send(channel, bytes) => self.side_send(Who::Server, channel, &bytes),
                    witness::Output::Hangup(channel) => {
                        let at = self.side_at(Who::Server, channel);
                        self.at(at, Ev::SideLost(Who::Client, channel));
                    }
                    witness::Output::Gateway { .. } => panic!("nobody asks for a gateway"),
                    witness::Output::Flow(_, event) if self.setup.line_ns > 0 => {
                        self.at(self.now + self.setup.line_ns, Ev::Hear(event));
                    }
                    witness::Output::Flow(_, event) => self.hear(Who::Server, event),
                }
                continue;
            }
            return;
        }
    }

    pub(super) fn hear(&mut self, who: Who, event: Event) {
        let host = self.host(who);
        let Some(flow) = host.flow.as_mut().filter(|_| host.end != End::Error) else { return };
        match flow.hear(event) {
            Ok(released) => self.give(who, &released),
            Err(_) => return self.fail(who),
        }
        self.flow_work(who);
    }

    pub(super) fn side_send(&mut self, who: Who, channel: ChannelId, bytes: &[u8]) {
        if self.now < self.broken_until || channel != self.channel || self.broken == Some(channel) {
            return;
        }
        let (near, far) = bytes.split_at(if self.setup.cut { self.random(bytes.len() as u64) as usize } else { 0 });
        for piece in [near, far] {
            let at = self.side_at(who, channel);
            self.at(at, Ev::Side(who.other(), channel, piece.to_vec()));
        }
    }

    /// Delays of a side channel, and the time at which it was dialled.
    fn slow(&self, channel: ChannelId) -> (Slow, u64) {
        let nth = self.dialled.iter().position(|(c, _)| *c == channel);
        let slow = nth.and_then(|n| self.setup.slow.get(n)).copied().unwrap_or_default();
        (slow, nth.map_or(0, |n| self.dialled[n].1))
    }

    /// Arrival time of a message sent now on a side channel, which keeps the order of messages.
    fn side_at(&mut self, who: Who, channel: ChannelId) -> u64 {
        let (slow, since_ns) = self.slow(channel);
        let later_ns = if who == Who::Client { slow.up_ns } else { slow.down_ns };
        let later_ns = if self.now >= since_ns + slow.from_ns { later_ns } else { 0 };
        let at = self.now + self.setup.side_ns + later_ns + self.random(self.setup.jitter_ns);
        let free = self.host(who).side_free_ns.entry(channel).or_default();
        *free = at.max(*free);
        *free
    }

    /// Replaces the server's agent by a new one, which knows of nothing yet.
    pub(super) fn restart(&mut self) {
        let Some((_, gone_ns, unknown_ns)) = self.setup.restart else { return };
        self.broken_until = self.now + gone_ns;
        self.witness = Witness::new(WitnessLimits::default(), [0x77; 32]);
        self.registered = false;
        self.events.retain(|_, e| !matches!(e, Ev::Side(..) | Ev::Connected(_) | Ev::Say(_) | Ev::Hear(_)));
        let channel = self.channel;
        self.broken = Some(channel);
        self.at(self.now + self.setup.side_ns, Ev::SideLost(Who::Client, channel));
        self.at(self.now + gone_ns + unknown_ns, Ev::Register);
    }

    pub(super) fn register(&mut self) {
        self.registered = true;
        if !self.setup.server || !self.hosts[1].alive {
            return;
        }
        self.witness.listening(PORT);
        let host = self.host(Who::Server);
        let over = host.end == End::Error || host.end == End::Eof && host.ended;
        if self.accepted && !over {
            let (tuple, clock) = (self.tuple(Who::Server), self.clock(0));
            self.witness.accepted(FLOW, tuple, self.setup.syn_clock.then_some(clock));
        }
    }

    pub(super) fn break_side(&mut self, heals_ns: u64) {
        self.broken_until = self.now.saturating_add(heals_ns);
        self.events.retain(|_, e| !matches!(e, Ev::Side(..) | Ev::Connected(_)));
        let channel = self.channel;
        self.broken = Some(channel);
        // Either end may notice late; the server may not notice at all.
        let noticed = self.now + self.random(40 * MS);
        self.at(noticed, Ev::SideLost(Who::Client, channel));
        if self.random(2) == 0 {
            let noticed = self.now + self.random(2000 * MS);
            self.at(noticed, Ev::SideLost(Who::Server, channel));
        }
    }

    /// A forger claims the connection.
    pub(super) fn forge(&mut self, same_host: bool, off_ms: i32) {
        use narrows::upgrade::message::{Claim, GREETING, Hello, Message, Purpose};
        if !self.hosts[1].alive {
            return;
        }
        let channel = FORGED + self.serial;
        self.serial += 1;
        let address = if same_host { "10.0.0.1" } else { "10.0.0.66" };
        self.witness.opened(channel, address.parse().unwrap(), self.now);
        let mut bytes = GREETING.to_vec();
        Message::Hello(Hello { version: 1, purpose: Purpose::SideChannel }).write(&mut bytes);
        let (tuple, clock_ms) = (self.tuple(Who::Server), self.clock(off_ms));
        let claim = Message::Claim(Claim { id: 0, tuple, clock_ms, nonce: [0x66; 16] });
        // The forger sends the claim twice, then a wrong answer about received and sent bytes.
        claim.write(&mut bytes);
        claim.write(&mut bytes);
        Message::Answer { id: 0, offset: 1 << 40, marked: false }.write(&mut bytes);
        self.witness.receive(channel, &bytes, self.now);
    }
}
