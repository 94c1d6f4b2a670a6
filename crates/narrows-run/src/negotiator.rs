//! Negotiation (format.md section 11): finds out for each connection whether the other end runs
//! Narrows. A thread of the supervisor that carries words and events between flows, which belong to
//! the pumps, and their peers.
//!
//! Connections that programs make are claimed at the host they lead to (`peers.rs`). Connections
//! that programs accept are reported to the agent of this host, which receives the claims
//! (`registrar.rs`, `agent.rs`). Nobody waits for this thread: pumps leave messages, and hear back
//! as `Order::Hear`.

use std::collections::{BTreeSet, HashMap};
use std::io::Result;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use narrows::policy::PolicySpec;
use narrows::upgrade::{Event, FlowId, Tuple, Word};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::agent;
use super::gate::Gate;
use super::peers::Peers;
use super::registrar::Registrar;
use super::sys;

/// The default service port, next to that of direct copies.
pub const SERVICE_PORT: u16 = 7701;
/// Hosts to which side channels are kept. Beyond this the least recently used one is dropped.
pub const HOSTS_MAX: usize = 1024;
/// Events taken at a time.
const EVENTS: usize = 64;

/// How this host and others are reached for negotiations.
#[derive(Clone, Copy)]
pub struct Service {
    /// The service port, the same on all hosts.
    pub port: u16,
    /// The service address of this host; `[::]` is every address.
    pub address: IpAddr,
    /// This supervisor may become the agent where there is none.
    pub may_serve: bool,
}

enum Said {
    Connecting { id: FlowId, addresses: Tuple, clock_ms: u32 },
    Accepted { id: FlowId, addresses: Tuple, syn_clock_ms: Option<u32> },
    Word { id: FlowId, word: Word },
    Ended { id: FlowId, connected: bool },
    Listening(SocketAddr),
}

/// Sends messages to the negotiating thread. Few can queue up: a word or two at each connection's
/// beginning and end, and one for each event that was heard (`gate.rs`).
#[derive(Clone)]
pub struct Negotiator {
    said: Sender<Said>,
    bell: Arc<OwnedFd>,
    /// The bell has already been rung.
    rung: Arc<AtomicBool>,
}

impl Negotiator {
    /// The desk must be started, or no message is ever read.
    pub fn open() -> Result<(Self, Desk)> {
        let (said, inbox) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let rung = Arc::new(AtomicBool::new(false));
        let desk = Desk { inbox, bell: Arc::clone(&bell), rung: Arc::clone(&rung) };
        Ok((Self { said, bell, rung }, desk))
    }

    fn leave(&self, said: Said) {
        // The thread ends only with the process.
        let _ = self.said.send(said);
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        }
    }

    /// A program connects. `clock_ms` is the TCP timestamp clock of the socket when its SYN left.
    pub fn connecting(&self, id: FlowId, addresses: Tuple, clock_ms: u32) {
        self.leave(Said::Connecting { id, addresses, clock_ms });
    }

    /// A program accepted a connection. `syn_clock_ms` is the client's clock from its SYN.
    pub fn accepted(&self, id: FlowId, addresses: Tuple, syn_clock_ms: Option<u32>) {
        self.leave(Said::Accepted { id, addresses, syn_clock_ms });
    }

    pub fn say(&self, id: FlowId, word: Word) {
        self.leave(Said::Word { id, word });
    }

    /// A connection is over. `connected`: it was established, not only attempted.
    pub fn ended(&self, id: FlowId, connected: bool) {
        self.leave(Said::Ended { id, connected });
    }

    /// A program listens at that address, perhaps not for the first time.
    pub fn listening(&self, address: SocketAddr) {
        self.leave(Said::Listening(address));
    }
}

/// The other end of a `Negotiator`.
pub struct Desk {
    inbox: Receiver<Said>,
    bell: Arc<OwnedFd>,
    rung: Arc<AtomicBool>,
}

const BELL: u64 = 0;
const AGENT: u64 = 1;
const PEERS: u64 = 2;

/// Delivers an event to the pump that has the flow.
type Tell = Box<dyn Fn(FlowId, Event) + Send>;

/// The side of the connection that a flow is on.
enum Side {
    Client,
    Server,
}

struct Negotiation {
    desk: Desk,
    watch: Arc<OwnedFd>,
    tell: Tell,
    peers: Peers,
    registrar: Registrar,
    flows: HashMap<FlowId, (Side, Gate)>,
    begun: Instant,
}

impl Desk {
    /// `descriptors_max`: descriptors that negotiation may use.
    pub fn start(
        self,
        service: Service,
        descriptors_max: usize,
        talks: bool,
        tell: impl Fn(FlowId, Event) + Send + 'static,
    ) -> Result<()> {
        let watch = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&watch, &*self.bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        let mut random = [0; 40];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let (secret, spread) = (*random.first_chunk().unwrap_or(&[0; 32]), u64::from(random[39]) << 24);
        let hosts_max = HOSTS_MAX.min(descriptors_max / 2);
        let settings = agent::Settings {
            service: SocketAddr::new(service.address, service.port),
            always: false,
            gateway: BTreeSet::new(),
            policy: PolicySpec::balance(),
            descriptors_max: descriptors_max / 2,
            talks,
        };
        let negotiation = Negotiation {
            desk: self,
            tell: Box::new(tell),
            peers: Peers::new(Arc::clone(&watch), service.port, hosts_max, secret, PEERS),
            registrar: Registrar::new(Arc::clone(&watch), AGENT, settings, service.may_serve, spread),
            watch,
            flows: HashMap::new(),
            begun: Instant::now(),
        };
        super::vital::start("narrows-talk", move || negotiation.run())
    }
}

impl Negotiation {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let wakeup_ns = self.peers.next_wakeup_ns().into_iter().chain(self.registrar.next_wakeup_ns()).min();
            events.clear();
            let wait = sys::until(wakeup_ns, self.now_ns());
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), wait.as_ref());
            let now_ns = self.now_ns();
            for event in &events {
                match event.data.u64() {
                    BELL => {}
                    AGENT => self.registrar.happened(now_ns),
                    number => self.peers.happened(number, now_ns),
                }
            }
            self.hear_pumps(now_ns);
            self.peers.on_time(now_ns);
            self.registrar.on_time(now_ns);
            self.registrar.flush(now_ns);
            self.tell_pumps();
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn hear_pumps(&mut self, now_ns: u64) {
        if !self.desk.rung.swap(false, Ordering::AcqRel) {
            return;
        }
        while let Ok(said) = self.desk.inbox.try_recv() {
            match said {
                Said::Connecting { id, addresses, clock_ms } => {
                    if self.flows.insert(id, (Side::Client, Gate::new())).is_none() {
                        self.peers.claim(id, addresses, clock_ms, now_ns);
                    }
                }
                Said::Accepted { id, addresses, syn_clock_ms } => {
                    if self.flows.insert(id, (Side::Server, Gate::new())).is_none() {
                        self.registrar.accepted(id, addresses, syn_clock_ms, now_ns);
                    }
                }
                Said::Word { id, word } => {
                    if let Some((side, gate)) = self.flows.get_mut(&id) {
                        gate.said(word);
                        match side {
                            Side::Client => self.peers.say(id, word, now_ns),
                            Side::Server => self.registrar.say(id, word),
                        }
                    }
                }
                Said::Ended { id, connected } => match self.flows.remove(&id) {
                    Some((Side::Client, _)) if !connected => self.peers.never_connected(id, now_ns),
                    Some((Side::Client, _)) => self.peers.ended(id, now_ns),
                    Some((Side::Server, _)) => self.registrar.ended(id),
                    None => {}
                },
                Said::Listening(address) => self.registrar.listening(address, now_ns),
            }
        }
    }

    fn tell_pumps(&mut self) {
        for (id, event) in self.peers.take_heard().into_iter().chain(self.registrar.take_heard()) {
            self.tell(id, event);
        }
    }

    fn tell(&mut self, id: FlowId, event: Event) {
        if self.flows.get_mut(&id).is_some_and(|(_, gate)| gate.passes(&event)) {
            (self.tell)(id, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use narrows::upgrade::WhyPlain;
    use narrows::upgrade::message::Reason;
    use narrows_test::PATIENCE;

    use super::super::{proof, sys};
    use super::*;

    /// A supervisor's negotiation, as its pumps see it.
    struct Host {
        negotiator: Negotiator,
        heard: Receiver<(FlowId, Event)>,
    }

    impl Host {
        fn new(service: SocketAddr) -> Self {
            let (negotiator, desk) = Negotiator::open().unwrap();
            let (tell, heard) = channel();
            let service = Service { port: service.port(), address: service.ip(), may_serve: true };
            desk.start(service, 64, false, move |id, event| drop(tell.send((id, event)))).unwrap();
            Self { negotiator, heard }
        }

        fn hear(&self) -> (FlowId, Event) {
            self.heard.recv_timeout(PATIENCE).expect("nothing was heard")
        }
    }

    /// An address of the server's host, free at the moment.
    fn free() -> SocketAddr {
        TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap()
    }

    fn listener() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        sys::set_option(&listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32.to_ne_bytes()).unwrap();
        listener
    }

    struct Connection {
        client: TcpStream,
        server: TcpStream,
        addresses: Tuple,
    }

    fn connection(listener: &TcpListener) -> Connection {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, from) = listener.accept().unwrap();
        Connection { client, server, addresses: Tuple::new(from, listener.local_addr().unwrap()) }
    }

    /// Waits until the agent of that service address takes channels.
    fn wait_for(service: SocketAddr) -> TcpStream {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(service) {
                Ok(socket) => return socket,
                Err(e) => assert!(begun.elapsed() < PATIENCE, "{service}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The client's host, the server's host, the server's listener, and its service address.
    fn two_hosts() -> (Host, Host, TcpListener, SocketAddr) {
        let (service, listener) = (free(), listener());
        let (client, server) = (Host::new(service), Host::new(service));
        server.negotiator.listening(listener.local_addr().unwrap());
        wait_for(service);
        (client, server, listener, service)
    }

    fn claim(host: &Host, id: FlowId, connection: &Connection, off_ms: u32) {
        let clock_ms = proof::clock_at_syn(&connection.client, false).unwrap().wrapping_add(off_ms);
        host.negotiator.connecting(id, connection.addresses, clock_ms);
    }

    fn accept(host: &Host, id: FlowId, connection: &Connection) {
        host.negotiator.accepted(id, connection.addresses, proof::clock_in_syn(&connection.server));
    }

    #[test]
    fn both_ends_of_a_connection_find_one_another_and_talk() {
        let (client, server, listener, _) = two_hosts();
        // The first claim finds no channel yet, the second one comes before its connection is accepted.
        for id in [1, 2] {
            let connection = connection(&listener);
            if id == 1 {
                accept(&server, 10 + id, &connection);
            }
            claim(&client, id, &connection, 0);
            if id == 2 {
                std::thread::sleep(Duration::from_millis(20));
                accept(&server, 10 + id, &connection);
            }
            let (of, Event::Claimed(key)) = server.hear() else { panic!("not claimed") };
            assert_eq!(of, 10 + id);
            server.negotiator.say(10 + id, Word::Armed { tag: key.tag() });
            assert_eq!(client.hear(), (id, Event::Ready(key)));
            server.negotiator.say(10 + id, Word::Query { offset: 5 });
            assert_eq!(client.hear(), (id, Event::Query { offset: 5 }));
            client.negotiator.say(id, Word::Answer { offset: 5, marked: true });
            assert_eq!(server.hear(), (10 + id, Event::Answer { offset: 5, marked: true }));
            client.negotiator.say(id, Word::Withdraw);
            assert_eq!(server.hear(), (10 + id, Event::Withdrawn));
            client.negotiator.ended(id, true);
            server.negotiator.ended(10 + id, true);
        }
    }

    #[test]
    fn what_cannot_be_proved_stays_plain_and_everybody_is_told_why() {
        let (client, server, listener, _) = two_hosts();
        let refused = |reason| Event::Plain(WhyPlain::Refused(reason));
        // A wrong clock, and then the right one.
        let first = connection(&listener);
        accept(&server, 11, &first);
        claim(&client, 1, &first, 5000);
        assert_eq!(client.hear(), (1, refused(Reason::Proof)));
        claim(&client, 2, &first, 0);
        assert_eq!(client.hear(), (2, refused(Reason::Proof)));
        // A port on which nobody under Narrows listens.
        let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
        claim(&client, 3, &connection(&elsewhere), 0);
        assert_eq!(client.hear(), (3, refused(Reason::NotHere)));
        // The connection ends before it is armed.
        let ending = connection(&listener);
        accept(&server, 14, &ending);
        claim(&client, 4, &ending, 0);
        assert!(matches!(server.hear(), (14, Event::Claimed(_))));
        server.negotiator.ended(14, true);
        assert_eq!(client.hear(), (4, refused(Reason::Ended)));
    }

    #[test]
    fn a_host_without_service_is_plain_and_asked_once() {
        let (service, listener) = (free(), listener());
        let client = Host::new(service);
        for id in 0..3 {
            claim(&client, id, &connection(&listener), 0);
            assert_eq!(client.hear(), (id, Event::Plain(WhyPlain::NoService)));
        }
    }

    #[test]
    fn rubbish_on_the_service_port_is_dropped_and_does_no_harm() {
        let (client, server, listener, service) = two_hosts();
        for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], b"\x93NRUP\r\n\x1a\xff\xff\xff"] {
            let mut socket = wait_for(service);
            socket.write_all(rubbish).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            // An end or a reset; never a byte.
            assert!(!matches!(socket.read(&mut [0; 10]), Ok(1..)));
        }
        let connection = connection(&listener);
        accept(&server, 11, &connection);
        claim(&client, 1, &connection, 0);
        assert!(matches!(server.hear(), (11, Event::Claimed(_))));
    }

    /// Once no program listens, the port is closed.
    #[test]
    fn the_service_port_is_open_only_while_a_program_listens() {
        let (service, listener) = (free(), listener());
        let server = Host::new(service);
        let idle = connection(&listener);
        claim(&server, 1, &idle, 0);
        assert_eq!(server.hear(), (1, Event::Plain(WhyPlain::NoService)));
        server.negotiator.listening(listener.local_addr().unwrap());
        wait_for(service);
        drop((idle, listener));
        let begun = Instant::now();
        while TcpStream::connect(service).is_ok() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
