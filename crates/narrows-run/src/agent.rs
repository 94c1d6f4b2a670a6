//! The agent of a host: listens on the service port, and compares the claims of remote supervisors
//! with the connections that programs of this host accepted, which their supervisors report to it
//! over sockets of their own (`agent_socket.rs`).
//!
//! One thread that never blocks. It is a process of its own (`narrows agent`), or a thread of the
//! first supervisor whose programs listen; when that supervisor ends, another one takes over
//! (`registrar.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use narrows::policy::PolicySpec;
use narrows::upgrade::witness::{ChannelId, Output};
use narrows::upgrade::{Event, FlowId, Witness, WitnessLimits};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, acceptfrom_with, bind, ipproto, listen,
    socket_with, sockopt,
};
use rustix::process::geteuid;

use super::agent_socket::{AgentSocket, FromAgent, ToAgent};
use super::agent_watch::Watched;
use super::channel::{Channel, READ};
use super::gate::Gate;
use super::gateway::Gateways;
use super::owner;
use super::sys;
use narrows_host::words;

/// Sockets of one user. Each supervisor whose programs listen holds one.
const SUPERVISORS_OF_USER_MAX: usize = 64;
/// Limits for one supervisor. The lower flow limit is for users other than this process's own, and
/// bounds what they can make the agent remember.
const PORTS_MAX: usize = 4096;
const FLOWS_MAX: usize = 262_144;
const FLOWS_OF_OTHERS_MAX: usize = 16_384;
/// Records of one supervisor, or new channels, handled before others get their turn.
const TURN: usize = 256;
/// Interval at which a service port that somebody else holds is tried again, and the pause in
/// accepting when descriptors have run out.
const TRY_AGAIN_NS: u64 = 2_000_000_000;
const BACKLOG: i32 = 1024;

#[derive(Clone)]
pub struct Settings {
    /// Address of the service port; `[::]` is every address.
    pub service: SocketAddr,
    /// Keep the service port open always, not only while a program listens.
    pub always: bool,
    /// Descriptors for supervisors, which get a quarter, and channels; a gateway may use as many again.
    pub descriptors_max: usize,
    /// Ports of this host for which it is a gateway.
    pub gateway: BTreeSet<u16>,
    /// Policy with which the gateway encodes.
    pub policy: PolicySpec,
    /// Report on stderr.
    pub talks: bool,
}

/// The abstract name at which a user's agent listens for supervisors. Agents with different service
/// addresses count as different hosts, which only tests have within one machine.
pub fn name(user: u32, service: SocketAddr) -> String {
    format!("narrows-agent:{user}:{service}")
}

struct Supervisor {
    socket: AgentSocket,
    user: u32,
    greeted: bool,
    ports: Vec<u16>,
    flows: HashMap<u64, FlowId>,
    watched: EventFlags,
}

/// A flow that a supervisor reported.
struct ReportedFlow {
    /// The supervisor's socket, and the flow's id there.
    supervisor: u64,
    id: u64,
    gate: Gate,
}

const REGISTRY: u64 = 0;
const SERVICE: u64 = 1;
const FIRST: u64 = 2;

pub struct Agent {
    settings: Settings,
    watch: OwnedFd,
    registry: OwnedFd,
    service: Option<OwnedFd>,
    /// When the service port is tried again, or accepting continues.
    again_ns: u64,
    accepts: bool,
    witness: Witness,
    supervisors: BTreeMap<u64, Supervisor>,
    /// With the addresses from which they connected.
    channels: BTreeMap<ChannelId, (Channel, IpAddr)>,
    flows: HashMap<FlowId, ReportedFlow>,
    /// Next number; supervisors, channels and flows share one sequence.
    next: u64,
    /// Supervisors and channels that may have something to send.
    stirred: BTreeSet<u64>,
    gateways: Gateways,
    watched: Arc<Watched>,
    complained: bool,
    begun: Instant,
}

impl Agent {
    /// # Errors
    /// `AddrInUse`: this user already has an agent on this host.
    pub fn open(settings: Settings) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let registry = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let name = name(geteuid().as_raw(), settings.service);
        bind(&registry, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&registry, BACKLOG)?;
        let watch = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&watch, &registry, EventData::new_u64(REGISTRY), EventFlags::IN)?;
        let mut secret = [0; 32];
        rustix::rand::getrandom(&mut secret[..], rustix::rand::GetRandomFlags::empty())?;
        let usual = WitnessLimits::default();
        let limits = WitnessLimits { channels_max: usual.channels_max.min(settings.descriptors_max / 4 * 3), ..usual };
        let watched = Arc::new(Watched::default());
        let (ports, policy) = (settings.gateway.clone(), settings.policy.clone());
        let gateways = Gateways::new(ports, policy, settings.descriptors_max, Arc::clone(&watched));
        Ok(Self {
            settings,
            watch,
            registry,
            service: None,
            again_ns: 0,
            accepts: true,
            witness: Witness::new(limits, secret),
            supervisors: BTreeMap::new(),
            channels: BTreeMap::new(),
            flows: HashMap::new(),
            next: FIRST,
            stirred: BTreeSet::new(),
            gateways,
            watched,
            complained: false,
            begun: Instant::now(),
        })
    }

    pub fn open_service(&mut self) -> rustix::io::Result<()> {
        let service = listen_at(self.settings.service)?;
        epoll::add(&self.watch, &service, EventData::new_u64(SERVICE), EventFlags::IN)?;
        self.service = Some(service);
        self.complained = false;
        self.say(|at| format!("the service port is open at {at}"));
        Ok(())
    }

    pub fn run(mut self) {
        let mut events = Vec::with_capacity(TURN);
        loop {
            events.clear();
            let wait = sys::until(self.next_wakeup_ns(), self.now_ns());
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), wait.as_ref());
            for event in &events {
                match event.data.u64() {
                    REGISTRY => self.accept_supervisors(),
                    SERVICE => self.accept_channels(),
                    number if self.supervisors.contains_key(&number) => self.hear(number),
                    number => self.receive(number),
                }
            }
            let now_ns = self.now_ns();
            if self.witness.next_wakeup_ns().is_some_and(|at| at <= now_ns) {
                self.witness.on_time(now_ns);
            }
            self.serve(now_ns);
            self.settle();
            self.watched.look(self.supervisors.len(), self.channels.len(), self.flows.len());
        }
    }

    /// What other threads see of it.
    pub fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn next_wakeup_ns(&self) -> Option<u64> {
        let again = !self.accepts || self.service.is_none() && self.wants_service();
        self.witness.next_wakeup_ns().into_iter().chain(again.then_some(self.again_ns)).min()
    }

    fn wants_service(&self) -> bool {
        self.settings.always || self.supervisors.values().any(|s| !s.ports.is_empty())
    }

    /// Opens the service port when it is needed and closes it when it is not.
    fn serve(&mut self, now_ns: u64) {
        if !self.accepts && now_ns >= self.again_ns {
            self.accepts = true;
            let _ = epoll::add(&self.watch, &self.registry, EventData::new_u64(REGISTRY), EventFlags::IN);
            if let Some(service) = &self.service {
                let _ = epoll::add(&self.watch, service, EventData::new_u64(SERVICE), EventFlags::IN);
            }
        }
        if !self.wants_service() {
            self.service = None;
        } else if self.service.is_none()
            && self.accepts
            && now_ns >= self.again_ns
            && let Err(e) = self.open_service()
        {
            self.again_ns = now_ns + TRY_AGAIN_NS;
            if !self.complained {
                self.complained = true;
                let why = words::without_os_numbers(&std::io::Error::from(e).to_string());
                self.say(|at| format!("cannot open the service port at {at} yet: {why}"));
            }
        }
    }

    fn say(&self, words: impl FnOnce(SocketAddr) -> String) {
        if self.settings.talks {
            words::note(words(self.settings.service));
        }
    }

    /// Stops accepting because descriptors have run out: new connections wait in the kernel.
    fn pause(&mut self) {
        let _ = epoll::delete(&self.watch, &self.registry);
        if let Some(service) = &self.service {
            let _ = epoll::delete(&self.watch, service);
        }
        self.accepts = false;
        self.again_ns = self.now_ns() + TRY_AGAIN_NS;
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    // --- supervisors of this host ---

    fn accept_supervisors(&mut self) {
        for _ in 0..TURN {
            let socket = match accept_with(&self.registry, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => return self.pause(),
            };
            let socket = AgentSocket::new(socket);
            let own = geteuid();
            let Some(user) = socket.user().filter(|u| own.is_root() || *u == own.as_raw() || *u == 0) else { continue };
            let of_user = self.supervisors.values().filter(|s| s.user == user).count();
            if of_user >= SUPERVISORS_OF_USER_MAX || self.supervisors.len() >= self.settings.descriptors_max / 4 {
                continue;
            }
            let number = self.number();
            if epoll::add(&self.watch, &socket, EventData::new_u64(number), EventFlags::IN).is_ok() {
                let (ports, flows) = (Vec::new(), HashMap::new());
                let new = Supervisor { socket, user, greeted: false, ports, flows, watched: EventFlags::IN };
                self.supervisors.insert(number, new);
            }
        }
    }

    fn hear(&mut self, number: u64) {
        for _ in 0..TURN {
            let Some(supervisor) = self.supervisors.get(&number) else { return };
            let heard = supervisor.socket.hear(ToAgent::decode);
            match heard {
                Ok(Some(message)) if supervisor.greeted != (message == ToAgent::Hello) => self.obey(number, message),
                Ok(None) => break,
                // The socket ended, or hello was not the first and only greeting.
                _ => return self.hang_up(number),
            }
        }
        self.stirred.insert(number);
    }

    fn obey(&mut self, number: u64, message: ToAgent) {
        let now_ns = self.now_ns();
        let Some(supervisor) = self.supervisors.get_mut(&number) else { return };
        match message {
            ToAgent::Hello => {
                supervisor.greeted = true;
                let hello = FromAgent::Hello.encode();
                supervisor.socket.say(hello.unwrap_or_default());
            }
            ToAgent::Listening(port) if supervisor.ports.len() < PORTS_MAX => {
                supervisor.ports.push(port);
                self.witness.listening(port);
                self.serve(now_ns);
            }
            ToAgent::ListeningEnded(port) => {
                if let Some(at) = supervisor.ports.iter().position(|p| *p == port) {
                    supervisor.ports.swap_remove(at);
                    self.witness.listening_ended(port);
                }
            }
            ToAgent::Accepted { id, addresses, syn_clock_ms } => {
                let user = supervisor.user;
                let own = user == 0 || user == geteuid().as_raw();
                let full = supervisor.flows.len() >= if own { FLOWS_MAX } else { FLOWS_OF_OTHERS_MAX };
                if full || supervisor.flows.contains_key(&id) || !own && owner::of(addresses) != Some(user) {
                    return;
                }
                let flow = self.next;
                self.next += 1;
                supervisor.flows.insert(id, flow);
                self.flows.insert(flow, ReportedFlow { supervisor: number, id, gate: Gate::new() });
                self.witness.accepted(flow, addresses, syn_clock_ms);
            }
            ToAgent::Listening(_) => {}
            ToAgent::Say { id, word } => {
                if let Some(flow) = supervisor.flows.get(&id) {
                    if let Some(known) = self.flows.get_mut(flow) {
                        known.gate.said(word);
                    }
                    self.witness.say(*flow, word);
                }
            }
            ToAgent::Ended { id } => {
                if let Some(flow) = supervisor.flows.remove(&id) {
                    self.flows.remove(&flow);
                    self.witness.ended(flow);
                }
            }
        }
    }

    fn hang_up(&mut self, number: u64) {
        let Some(gone) = self.supervisors.remove(&number) else { return };
        for flow in gone.flows.into_values() {
            self.flows.remove(&flow);
            self.witness.ended(flow);
        }
        gone.ports.into_iter().for_each(|port| self.witness.listening_ended(port));
    }

    // --- channels: remote supervisors ---

    fn accept_channels(&mut self) {
        for _ in 0..TURN {
            let Some(service) = &self.service else { return };
            let (socket, from) = match acceptfrom_with(service, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(accepted) => accepted,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return self.pause(),
                Err(Errno::AGAIN) => return,
                // `accept` also reports errors of connections that failed before they were
                // accepted.
                Err(_) => continue,
            };
            let Some(from) = from.and_then(|a| SocketAddr::try_from(a).ok()) else { continue };
            let (number, now_ns) = (self.number(), self.now_ns());
            let mut channel = Channel::new(socket);
            if channel.watch(&self.watch, number).is_ok() {
                self.channels.insert(number, (channel, from.ip()));
                self.witness.opened(number, from.ip(), now_ns);
                // A channel evicted for it frees its descriptor before the next one comes.
                self.carry_out_all();
            }
        }
    }

    fn receive(&mut self, number: ChannelId) {
        let now_ns = self.now_ns();
        let Some((channel, _)) = self.channels.get_mut(&number) else { return };
        let mut buffer = [0; READ];
        let came = channel.flush().and_then(|()| channel.read(&mut buffer));
        match came {
            Ok(came) => {
                if !came.is_empty() {
                    self.witness.receive(number, came, now_ns);
                }
                self.stirred.insert(number);
            }
            Err(_) => self.lose(number),
        }
    }

    fn lose(&mut self, number: ChannelId) {
        if self.channels.remove(&number).is_some() {
            self.witness.lost(number);
        }
    }

    // --- outputs of the witness ---

    fn settle(&mut self) {
        loop {
            self.carry_out_all();
            // A loss here may produce more outputs of the witness.
            let Some(number) = self.stirred.pop_first() else { return };
            if let Some((channel, _)) = self.channels.get_mut(&number) {
                if channel.flush().and_then(|()| channel.watch(&self.watch, number)).is_err() {
                    self.lose(number);
                }
            } else if let Some(supervisor) = self.supervisors.get_mut(&number)
                && supervisor.flush(&self.watch, number).is_err()
            {
                self.hang_up(number);
            }
        }
    }

    fn carry_out_all(&mut self) {
        while let Some(output) = self.witness.poll() {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send(number, bytes) => {
                if self.channels.get_mut(&number).is_some_and(|(c, _)| !c.say(&bytes)) {
                    self.lose(number);
                } else {
                    self.stirred.insert(number);
                }
            }
            Output::Hangup(number) => {
                if let Some((mut channel, _)) = self.channels.remove(&number) {
                    let _ = channel.flush();
                }
            }
            Output::Gateway { channel, port } => {
                if let Some((channel, from)) = self.channels.remove(&channel) {
                    self.gateways.take(channel.into_socket(&self.watch), from, port);
                }
            }
            Output::Flow(flow, event) => self.tell(flow, event),
        }
    }

    fn tell(&mut self, flow: FlowId, event: Event) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        if !known.gate.passes(&event) {
            return;
        }
        let number = known.supervisor;
        let record = FromAgent::Hear { id: known.id, event }.encode();
        if let (Some(supervisor), Some(record)) = (self.supervisors.get_mut(&number), record) {
            if supervisor.socket.say(record) {
                self.stirred.insert(number);
            } else {
                self.hang_up(number);
            }
        }
    }
}

impl Supervisor {
    fn flush(&mut self, watch: &OwnedFd, number: u64) -> Result<()> {
        self.socket.flush()?;
        let wanted = if self.socket.wants_room() { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if wanted != self.watched {
            epoll::modify(watch, &self.socket, EventData::new_u64(number), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

fn listen_at(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let open = |address: SocketAddr| {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
        }
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    match open(address) {
        // A host without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if address == SocketAddr::new(ALL, address.port()) => {
            open(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        result => result,
    }
}

/// Every IPv4 and IPv6 address of the host.
pub const ALL: IpAddr = IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narrows_test::PATIENCE;

    use super::*;

    /// The next message on a socket, or an error if it ended.
    fn heard(socket: &AgentSocket) -> Result<FromAgent> {
        let begun = Instant::now();
        loop {
            match socket.hear(FromAgent::decode) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => assert!(begun.elapsed() < PATIENCE, "nothing is heard"),
                Err(e) => return Err(e),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn greets(socket: &mut AgentSocket) -> bool {
        socket.say(ToAgent::Hello.encode()) && socket.flush().is_ok() && matches!(heard(socket), Ok(FromAgent::Hello))
    }

    /// One user's sockets, most of them silent: the agent accepts up to the limit, and answers those
    /// that speak.
    #[test]
    fn sockets_that_say_nothing_have_no_more_than_their_share() {
        let service = SocketAddr::from(([127, 0, 0, 10], std::process::id() as u16));
        let settings = Settings {
            service,
            always: false,
            gateway: BTreeSet::new(),
            policy: PolicySpec::balance(),
            descriptors_max: 4096,
            talks: false,
        };
        let agent = Agent::open(settings).unwrap();
        std::thread::spawn(move || agent.run());
        let name = name(geteuid().as_raw(), service);
        let mut first = AgentSocket::connect(&name).unwrap();
        assert!(greets(&mut first));
        let mut silent: Vec<AgentSocket> =
            (1..SUPERVISORS_OF_USER_MAX).map(|_| AgentSocket::connect(&name).unwrap()).collect();
        // One too many: it is closed without a message.
        assert!(heard(&AgentSocket::connect(&name).unwrap()).is_err());
        // A socket that sends something else before hello is closed too, and its place is free again.
        let rude = &mut silent[0];
        assert!(rude.say(ToAgent::Listening(80).encode()) && rude.flush().is_ok());
        assert!(heard(rude).is_err());
        assert!(greets(&mut AgentSocket::connect(&name).unwrap()));
        assert!(greets(&mut silent[1]));
    }
}
