//! Remote hosts that programs of this run connect to: a claimant and a side channel for each.
//!
//! Whoever holds another host's service port is trusted about that host's connections. If the host
//! is this one, the kernel tells who that is, and then only root, this user, and the server's own
//! user are trusted.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use narrows::upgrade::claimant::Output;
use narrows::upgrade::{Claimant, ClaimantLimits, Event, FlowId, Tuple, WhyPlain, Word};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::channel::{Channel, READ};
use super::owner;

/// A route to a host: the local address and the host's address. A claim is valid only if its side
/// channel comes from the same address as the connection.
type Way = (IpAddr, IpAddr);

struct Host {
    claimant: Claimant,
    channel: Option<Channel>,
    way: Way,
    /// Sequence number of its latest use; every use of any host increments the counter.
    used: u64,
    wakeup_ns: Option<u64>,
    /// The other end has sent something on the side channel.
    greeted: bool,
    /// The user at the other end, if that is on this host and is neither root nor this user.
    stranger: Option<u32>,
}

pub(crate) struct Peers {
    watch: Arc<OwnedFd>,
    /// The service port of all hosts.
    port: u16,
    hosts_max: usize,
    secret: [u8; 32],
    hosts: BTreeMap<u64, Host>,
    by_way: HashMap<Way, u64>,
    /// The host and addresses of each claimed connection that is unsettled, or for which nobody
    /// answered.
    by_flow: HashMap<FlowId, (u64, Tuple)>,
    uses: u64,
    next: u64,
    heard: Vec<(FlowId, Event)>,
}

impl Peers {
    /// `secret`: random bytes. `first`: the first number used in epoll.
    pub(crate) fn new(watch: Arc<OwnedFd>, port: u16, hosts_max: usize, secret: [u8; 32], first: u64) -> Self {
        Self {
            watch,
            port,
            hosts_max: hosts_max.max(1),
            secret,
            hosts: BTreeMap::new(),
            by_way: HashMap::new(),
            by_flow: HashMap::new(),
            uses: 0,
            next: first,
            heard: Vec::new(),
        }
    }

    /// Events for flows since the previous call.
    pub(crate) fn take_heard(&mut self) -> Vec<(FlowId, Event)> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn claim(&mut self, flow: FlowId, addresses: Tuple, clock_ms: u32, now_ns: u64) {
        let way = (addresses.client().ip(), addresses.server().ip());
        let Some(number) = self.host(way) else {
            self.heard.push((flow, Event::Plain(WhyPlain::Busy)));
            return;
        };
        self.by_flow.insert(flow, (number, addresses));
        if let Some(host) = self.hosts.get_mut(&number) {
            host.claimant.claim(flow, addresses, clock_ms, now_ns);
        }
        self.settle(number, now_ns);
    }

    pub(crate) fn say(&mut self, flow: FlowId, word: Word, now_ns: u64) {
        let Some(&(number, _)) = self.by_flow.get(&flow) else { return };
        if let Some(host) = self.hosts.get_mut(&number) {
            host.claimant.say(flow, word);
        }
        if matches!(word, Word::Withdraw | Word::Settled) {
            self.by_flow.remove(&flow);
        }
        self.settle(number, now_ns);
    }

    pub(crate) fn ended(&mut self, flow: FlowId, now_ns: u64) {
        let Some((number, _)) = self.by_flow.remove(&flow) else { return };
        if let Some(host) = self.hosts.get_mut(&number) {
            host.claimant.ended(flow);
        }
        self.settle(number, now_ns);
    }

    /// The connection ended before it was established.
    pub(crate) fn never_connected(&mut self, flow: FlowId, now_ns: u64) {
        let Some((number, _)) = self.by_flow.remove(&flow) else { return };
        if let Some(host) = self.hosts.get_mut(&number) {
            host.claimant.never_connected(flow);
        }
        self.settle(number, now_ns);
    }

    /// The host's number. If there are too many hosts, a new one replaces the least recently used
    /// one that has no claims.
    fn host(&mut self, way: Way) -> Option<u64> {
        self.uses += 1;
        if let Some(number) = self.by_way.get(&way) {
            if let Some(host) = self.hosts.get_mut(number) {
                host.used = self.uses;
            }
            return Some(*number);
        }
        if self.hosts.len() >= self.hosts_max {
            let idle = self.hosts.iter().filter(|(_, h)| h.claimant.claims() == 0).min_by_key(|(_, h)| h.used)?;
            let (number, way) = (*idle.0, idle.1.way);
            self.hosts.remove(&number);
            self.by_way.remove(&way);
        }
        let number = self.next;
        self.next += 1;
        // Each claimant numbers its claims from 0, so each needs its own secret.
        let secret = *blake3::keyed_hash(&self.secret, &number.to_le_bytes()).as_bytes();
        let claimant = Claimant::new(ClaimantLimits::default(), secret);
        self.hosts.insert(
            number,
            Host { claimant, channel: None, way, used: self.uses, wakeup_ns: None, greeted: false, stranger: None },
        );
        self.by_way.insert(way, number);
        Some(number)
    }

    /// Handles an epoll event of a channel, which may be out of date.
    pub(crate) fn happened(&mut self, number: u64, now_ns: u64) {
        let Some(host) = self.hosts.get_mut(&number) else { return };
        if let Err(_lost) = host.take(now_ns) {
            host.channel = None;
            host.claimant.lost(now_ns);
        }
        self.settle(number, now_ns);
    }

    /// Carries out the claimant's outputs.
    fn settle(&mut self, number: u64, now_ns: u64) {
        let Some(host) = self.hosts.get_mut(&number) else { return };
        // Ends: each further round means that the channel was lost, and a claimant dials again only
        // for a channel that lasted a second.
        loop {
            while let Some(output) = host.claimant.poll() {
                match output {
                    Output::Dial => host.dial(self.port, now_ns),
                    Output::Send(bytes) => {
                        if host.channel.as_mut().is_some_and(|c| !c.say(&bytes)) {
                            host.channel = None;
                            host.claimant.lost(now_ns);
                        }
                    }
                    Output::Hangup => {
                        // Bytes that the kernel does not take at once are dropped: the other end no
                        // longer listens.
                        if let Some(mut channel) = host.channel.take() {
                            let _ = channel.flush();
                        }
                    }
                    Output::Flow(flow, Event::Ready(_))
                        if host.stranger.is_some_and(|user| !is_owner(user, self.by_flow.get(&flow))) =>
                    {
                        host.claimant.say(flow, Word::Withdraw);
                        self.by_flow.remove(&flow);
                        self.heard.push((flow, Event::Plain(WhyPlain::Stranger)));
                    }
                    Output::Flow(flow, event) => {
                        // If nobody answered, the claim is kept and may be repeated.
                        if matches!(event, Event::Plain(WhyPlain::Refused(_) | WhyPlain::Busy)) {
                            self.by_flow.remove(&flow);
                        }
                        self.heard.push((flow, event));
                    }
                }
            }
            let Some(channel) = &mut host.channel else { break };
            let kept = if channel.is_connecting() { Ok(()) } else { channel.flush() };
            if kept.and_then(|()| channel.watch(&self.watch, number)).is_ok() {
                break;
            }
            host.channel = None;
            host.claimant.lost(now_ns);
        }
        host.wakeup_ns = host.claimant.next_wakeup_ns();
    }

    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        self.hosts.values().filter_map(|h| h.wakeup_ns).min()
    }

    pub(crate) fn on_time(&mut self, now_ns: u64) {
        let due = |h: &Host| h.wakeup_ns.is_some_and(|at| at <= now_ns);
        let due: Vec<u64> = self.hosts.iter().filter(|(_, h)| due(h)).map(|(number, _)| *number).collect();
        for number in due {
            if let Some(host) = self.hosts.get_mut(&number) {
                host.claimant.on_time(now_ns);
            }
            self.settle(number, now_ns);
        }
    }
}

impl Host {
    fn dial(&mut self, port: u16, now_ns: u64) {
        match Channel::dial(self.way.0, SocketAddr::new(self.way.1, port)) {
            Ok(channel) => (self.channel, self.greeted, self.stranger) = (Some(channel), false, None),
            Err(_) => self.claimant.lost(now_ns),
        }
    }

    fn take(&mut self, now_ns: u64) -> Result<(), Errno> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        if channel.is_connected()? {
            self.claimant.connected(now_ns);
        }
        channel.flush()?;
        let mut buffer = [0; READ];
        let came = channel.read(&mut buffer)?;
        if !came.is_empty() {
            if !self.greeted {
                self.greeted = true;
                self.stranger = channel.user_there().filter(|user| *user != 0 && *user != geteuid().as_raw());
            }
            self.claimant.receive(came, now_ns);
        }
        Ok(())
    }
}

/// Whether that user owns the server's end of the connection.
fn is_owner(user: u32, claimed: Option<&(u64, Tuple)>) -> bool {
    claimed.is_some_and(|(_, addresses)| owner::of(*addresses) == Some(user))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::event::epoll;

    use super::*;

    fn peers(port: u16) -> Peers {
        Peers::new(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()), port, 2, [1; 32], 7)
    }

    /// Claims a connection to each host, and returns the immediate events.
    fn claim(peers: &mut Peers, hosts: std::ops::Range<u8>) -> Vec<(FlowId, Event)> {
        for host in hosts {
            let server = SocketAddr::new([127, 0, 0, host].into(), 80);
            peers.claim(host.into(), Tuple::new("127.0.0.1:1000".parse().unwrap(), server), 0, 0);
        }
        peers.take_heard()
    }

    #[test]
    fn hosts_that_were_used_longest_ago_make_room() {
        let closed = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
        let mut peers = peers(closed);
        for host in 2..7 {
            let mut heard = claim(&mut peers, host..host + 1);
            // Connecting may have failed at once, or only with an epoll event.
            let numbers: Vec<u64> = peers.hosts.keys().copied().collect();
            numbers.into_iter().for_each(|number| peers.happened(number, 0));
            heard.extend(peers.take_heard());
            peers.ended(host.into(), 0);
            assert_eq!(heard, [(host.into(), Event::Plain(WhyPlain::NoService))]);
        }
        assert_eq!((peers.hosts.len(), peers.by_way.len(), peers.by_flow.len()), (2, 2, 0));
    }

    #[test]
    fn hosts_with_claims_under_way_keep_their_places() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut peers = peers(listener.local_addr().unwrap().port());
        let heard = claim(&mut peers, 2..5);
        assert_eq!(heard, [(4, Event::Plain(WhyPlain::Busy))]);
        // Claims that timed out make room.
        assert!(peers.next_wakeup_ns().is_some());
        peers.on_time(u64::MAX / 2);
        assert_eq!(peers.take_heard().len(), 2);
        assert_eq!(claim(&mut peers, 4..5), []);
        assert_eq!(peers.hosts.len(), 2);
    }
}
