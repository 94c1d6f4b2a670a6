//! A supervisor's connection to the agent of its host. Without an agent it may become one itself;
//! when the agent is gone it looks for the next one and registers everything again.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use narrows::upgrade::{Event, FlowId, Tuple, Word};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::geteuid;

use super::agent::{self, Agent};
use super::agent_socket::{AgentSocket, FromAgent, ToAgent};
use super::listeners::Listeners;

/// Delay before looking for an agent after one has ended, spread so that supervisors do not all try
/// at once: one of them will be the next.
const TAKE_OVER_NS: u64 = 20_000_000;
const TAKE_OVER_SPREAD_NS: u64 = 200_000_000;
/// Retry interval where there is no agent and this may not become one, or it does not answer as it
/// should.
const LOOK_AGAIN_NS: u64 = 3_000_000_000;
/// Interval at which it is checked whether programs still listen. Claims that come too late wait
/// ten seconds in vain, which hurts nobody.
const LISTENERS_EVERY_NS: u64 = 2_000_000_000;
/// Records handled before other work gets its turn.
const TURN: usize = 1024;
const ROOT: u32 = 0;

pub(crate) struct Registrar {
    watch: Arc<OwnedFd>,
    /// The socket's number in epoll.
    number: u64,
    settings: agent::Settings,
    /// This supervisor may become the agent itself.
    may_serve: bool,
    socket: Option<AgentSocket>,
    greeted: bool,
    watched: EventFlags,
    /// When to look for an agent next; used only while there is something to tell and no socket.
    look_ns: u64,
    look_for_listeners_ns: u64,
    listeners: Listeners,
    accepted: BTreeMap<FlowId, (Tuple, Option<u32>)>,
    /// A new agent has been told of the flows below this id; the others follow as the socket takes
    /// them.
    untold: Option<FlowId>,
    heard: Vec<(FlowId, Event)>,
    spread: u64,
}

impl Registrar {
    pub(crate) fn new(
        watch: Arc<OwnedFd>,
        number: u64,
        settings: agent::Settings,
        may_serve: bool,
        random: u64,
    ) -> Self {
        Self {
            watch,
            number,
            settings,
            may_serve,
            socket: None,
            greeted: false,
            watched: EventFlags::IN,
            look_ns: 0,
            look_for_listeners_ns: 0,
            listeners: Listeners::default(),
            accepted: BTreeMap::new(),
            untold: None,
            heard: Vec::new(),
            spread: random % TAKE_OVER_SPREAD_NS,
        }
    }

    pub(crate) fn take_heard(&mut self) -> Vec<(FlowId, Event)> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn listening(&mut self, address: SocketAddr, now_ns: u64) {
        if self.listeners.is_empty() {
            self.look_for_listeners_ns = now_ns + LISTENERS_EVERY_NS;
        }
        if self.listeners.add(address) && !self.tell(&ToAgent::Listening(address.port())) {
            self.look(now_ns);
        }
    }

    pub(crate) fn accepted(&mut self, flow: FlowId, addresses: Tuple, syn_clock_ms: Option<u32>, now_ns: u64) {
        self.accepted.insert(flow, (addresses, syn_clock_ms));
        if self.is_told(flow) && !self.tell(&ToAgent::Accepted { id: flow, addresses, syn_clock_ms }) {
            self.look(now_ns);
        }
    }

    pub(crate) fn say(&mut self, flow: FlowId, word: Word) {
        if self.is_told(flow) {
            self.tell(&ToAgent::Say { id: flow, word });
        }
    }

    pub(crate) fn ended(&mut self, flow: FlowId) {
        if self.accepted.remove(&flow).is_some() && self.is_told(flow) {
            self.tell(&ToAgent::Ended { id: flow });
        }
    }

    /// Whether the agent knows that flow, or should be told now.
    fn is_told(&self, flow: FlowId) -> bool {
        self.untold.is_none_or(|first| flow < first)
    }

    /// Tells a new agent of more connections that were accepted before.
    fn tell_more(&mut self) {
        let Some(first) = self.untold else { return };
        let some: Vec<_> = self.accepted.range(first..).take(TURN).map(|(id, (t, c))| (*id, *t, *c)).collect();
        self.untold = some.last().map(|(id, ..)| id + 1);
        for (id, addresses, syn_clock_ms) in some {
            self.tell(&ToAgent::Accepted { id, addresses, syn_clock_ms });
        }
    }

    fn tell(&mut self, message: &ToAgent) -> bool {
        let Some(socket) = &mut self.socket else { return false };
        // A socket that takes nothing more is detected by `flush`.
        socket.say(message.encode())
    }

    fn has_something_to_tell(&self) -> bool {
        !self.listeners.is_empty() || !self.accepted.is_empty()
    }

    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        let look = (self.socket.is_none() && self.has_something_to_tell()).then_some(self.look_ns);
        let listeners = (!self.listeners.is_empty()).then_some(self.look_for_listeners_ns);
        look.into_iter().chain(listeners).min()
    }

    pub(crate) fn on_time(&mut self, now_ns: u64) {
        if !self.listeners.is_empty() && now_ns >= self.look_for_listeners_ns {
            self.look_for_listeners_ns = now_ns + LISTENERS_EVERY_NS;
            for ended in self.listeners.take_ended() {
                self.tell(&ToAgent::ListeningEnded(ended.port()));
            }
        }
        self.look(now_ns);
    }

    /// Handles an epoll event on the socket.
    pub(crate) fn happened(&mut self, now_ns: u64) {
        for _ in 0..TURN {
            let Some(socket) = &self.socket else { return };
            match socket.hear(FromAgent::decode) {
                Ok(Some(FromAgent::Hello)) => self.greeted = true,
                Ok(Some(FromAgent::Hear { id, event })) => {
                    if self.accepted.contains_key(&id) {
                        self.heard.push((id, event));
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    // An agent that has greeted has ended. One that has not refuses this
                    // supervisor, or is a different build.
                    return self.lose(now_ns + if self.greeted { TAKE_OVER_NS + self.spread } else { LOOK_AGAIN_NS });
                }
            }
        }
    }

    fn lose(&mut self, look_ns: u64) {
        (self.socket, self.untold) = (None, None);
        self.look_ns = look_ns;
    }

    /// Looks for an agent if it is time.
    fn look(&mut self, now_ns: u64) {
        if self.socket.is_some() || !self.has_something_to_tell() || now_ns < self.look_ns {
            return;
        }
        let own = geteuid().as_raw();
        let found = connect(ROOT, self.settings.service).or_else(|_| connect(own, self.settings.service));
        let found = match found {
            Err(_) if self.may_serve => self.become_agent(own),
            found => found,
        };
        let Ok(socket) = found else {
            self.look_ns = now_ns + LOOK_AGAIN_NS;
            return;
        };
        if epoll::add(&self.watch, &socket, EventData::new_u64(self.number), EventFlags::IN).is_err() {
            self.look_ns = now_ns + LOOK_AGAIN_NS;
            return;
        }
        (self.watched, self.greeted) = (EventFlags::IN, false);
        self.socket = Some(socket);
        self.tell(&ToAgent::Hello);
        let ports: Vec<u16> = self.listeners.ports().collect();
        for port in ports {
            self.tell(&ToAgent::Listening(port));
        }
        self.untold = Some(FlowId::MIN);
    }

    fn become_agent(&self, own: u32) -> Result<AgentSocket> {
        match Agent::open(self.settings.clone()) {
            Ok(agent) => {
                super::vital::start("narrows-agent", move || agent.run())?;
            }
            // Another supervisor was quicker.
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
        connect(own, self.settings.service)
    }

    /// Sends what waits. Call after every function that tells.
    pub(crate) fn flush(&mut self, now_ns: u64) {
        // All flows at once would exceed the socket's queue, so each round tells of some until the
        // agent takes no more.
        while self.untold.is_some() && self.socket.as_ref().is_some_and(|socket| !socket.wants_room()) {
            self.tell_more();
            if self.socket.as_mut().is_none_or(|socket| socket.flush().is_err()) {
                return self.lose(now_ns + LOOK_AGAIN_NS);
            }
        }
        let Some(socket) = &mut self.socket else { return };
        let wanted =
            |socket: &AgentSocket| if socket.wants_room() { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let mut kept = if socket.is_stuck() { Err(ErrorKind::TimedOut.into()) } else { socket.flush() };
        if kept.is_ok() && wanted(socket) != self.watched {
            self.watched = wanted(socket);
            kept =
                epoll::modify(&self.watch, &*socket, EventData::new_u64(self.number), self.watched).map_err(Into::into);
        }
        if kept.is_err() {
            self.lose(now_ns + LOOK_AGAIN_NS);
        }
    }
}

/// Connects to the agent of that user, and checks the listener's user: anybody may take a name.
fn connect(user: u32, service: SocketAddr) -> Result<AgentSocket> {
    let socket = AgentSocket::connect(&agent::name(user, service))?;
    if socket.user() == Some(user) { Ok(socket) } else { Err(ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use rustix::event::epoll::CreateFlags;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

    use super::*;

    /// More than a socket's queue holds.
    const MANY: u64 = 70_000;

    const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

    /// A registrar, and a listener in the agent's place. `host` is the last byte of their address.
    fn registrar(host: u8) -> (Registrar, OwnedFd) {
        let service = SocketAddr::from(([127, 0, 0, host], std::process::id() as u16));
        let own = geteuid().as_raw();
        let agent = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
        bind(&agent, &SocketAddrUnix::new_abstract_name(agent::name(own, service).as_bytes()).unwrap()).unwrap();
        listen(&agent, 1).unwrap();
        let watch = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
        let gateway = BTreeSet::new();
        let policy = narrows::policy::PolicySpec::balance();
        let settings = agent::Settings { service, always: false, gateway, policy, descriptors_max: 64, talks: false };
        (Registrar::new(watch, 1, settings, false, 0), agent)
    }

    fn tuple() -> Tuple {
        Tuple::new("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:5432".parse().unwrap())
    }

    /// Records for it are not queued for ever, and the next agent is told everything that matters.
    #[test]
    fn an_agent_that_takes_nothing_is_given_up() {
        let (mut registrar, agent) = registrar(8);
        registrar.accepted(0, tuple(), None, 0);
        registrar.flush(0);
        let silent = accept_with(&agent, FLAGS).unwrap();
        let mut said = 0;
        while registrar.socket.is_some() && said < 4 * MANY {
            registrar.accepted(said + 1, tuple(), None, 0);
            registrar.ended(said);
            registrar.flush(0);
            said += 1;
        }
        assert!(registrar.socket.is_none() && said < MANY, "{said} records wait");
        assert_eq!(registrar.next_wakeup_ns(), Some(LOOK_AGAIN_NS));
        registrar.on_time(LOOK_AGAIN_NS - 1);
        assert!(registrar.socket.is_none());
        registrar.on_time(LOOK_AGAIN_NS);
        registrar.flush(LOOK_AGAIN_NS);
        drop(silent);
        let socket = AgentSocket::new(accept_with(&agent, FLAGS).unwrap());
        assert_eq!(socket.hear(ToAgent::decode).unwrap(), Some(ToAgent::Hello));
        registrar.flush(LOOK_AGAIN_NS);
        let last = ToAgent::Accepted { id: said, addresses: tuple(), syn_clock_ms: None };
        assert_eq!(socket.hear(ToAgent::decode).unwrap(), Some(last));
        assert_eq!(socket.hear(ToAgent::decode).unwrap(), None);
    }

    #[test]
    fn a_new_agent_is_told_of_all_connections_however_many_they_are() {
        let (mut registrar, agent) = registrar(9);
        registrar.look_ns = u64::MAX;
        let tuple = tuple();
        (0..MANY).for_each(|flow| registrar.accepted(flow, tuple, None, 0));
        registrar.look_ns = 0;
        registrar.on_time(0);
        let socket = AgentSocket::new(accept_with(&agent, FLAGS).unwrap());
        let mut told = HashSet::new();
        let mut rounds = 0;
        while told.len() < MANY as usize {
            registrar.flush(0);
            assert!(registrar.socket.is_some(), "the socket was given up");
            if rounds == 0 {
                // One flow ends and one is added before their turn.
                registrar.ended(MANY - 1);
                registrar.accepted(MANY, tuple, None, 0);
            }
            rounds += 1;
            while let Some(record) = socket.hear(ToAgent::decode).unwrap() {
                match record {
                    ToAgent::Accepted { id, .. } => assert!(told.insert(id), "{id} is told twice"),
                    other => assert_eq!(other, ToAgent::Hello),
                }
            }
            assert!(rounds < 2 * MANY);
        }
        assert!(told.contains(&MANY) && !told.contains(&(MANY - 1)));
        registrar.ended(0);
        registrar.flush(0);
        assert_eq!(socket.hear(ToAgent::decode).unwrap(), Some(ToAgent::Ended { id: 0 }));
    }
}
