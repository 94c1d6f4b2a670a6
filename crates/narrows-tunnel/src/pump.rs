//! The thread that moves all bytes of a tunnel: sockets by epoll, edge-triggered, and the state
//! machines of sessions and flows between them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use super::counters::Counters;
use super::engine::{self, Key};
use super::limits::STRANGERS_AT_A_TIME;
use super::lines::Subject;
use super::lookup::{self, Found, Lookups};
use super::reason::Reason;
use super::reports::Teller;
use super::session::Role;
use super::settings::{Change, Report, Settings, Trust};

mod carriers;
mod changes;
mod conn;
mod dialing;
mod flows;
mod held;
mod hub;
mod listeners;
mod remote;
mod sessions;
mod strangers;
mod targets;
mod uplink;
mod watched;
mod work;

use carriers::Carriers;
use flows::Flows;
use hub::{Hub, Kind};
use sessions::Sessions;
use strangers::Strangers;
use uplink::UplinkState;
pub(super) use watched::Snapshot;
use work::Work;

/// Events taken at a time.
const EVENTS: usize = 256;
/// Rounds of work between two looks at the sockets.
const ROUNDS: usize = 8;

/// Orders to a tunnel, from any thread.
pub(super) enum Order {
    Worker(Key, engine::Result),
    /// A name was looked up.
    Found(String, Found),
    /// New connections are to be proved so.
    Reload {
        server: Option<Arc<ServerConfig>>,
        client: Option<Arc<ClientConfig>>,
        /// That the acceptor has to prove.
        name: Option<ServerName<'static>>,
    },
    Judge(Trust),
    Change(Box<Change>),
    Beat,
    /// How all connections are.
    Snapshot(std::sync::mpsc::Sender<Snapshot>),
    /// Every decision about a connection, for this time.
    Trace {
        id: u64,
        limit: Duration,
        lines: SyncSender<String>,
    },
    /// Open nothing more; end when all flows have, or after this time.
    Drain(Duration),
}

/// Sends orders to a tunnel.
#[derive(Clone)]
pub(super) struct Inlet {
    orders: Arc<Mutex<Sender<Order>>>,
    bell: Arc<OwnedFd>,
}

impl Inlet {
    pub(super) fn send(&self, order: Order) {
        // Nobody hears when the tunnel is over.
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

pub(super) struct Pump {
    hub: Hub,
    inbox: Receiver<Order>,
    begun: Instant,
    now_ns: u64,
    settings: Settings,
    reports: Teller,
    counters: Arc<Counters>,
    work: Work,
    lookups: Lookups,

    sessions: Sessions,
    carriers: Carriers,
    strangers: Strangers,
    flows: Flows,

    uplink: Option<UplinkState>,
    end: End,
}

/// How everything ends.
#[derive(Default)]
struct End {
    /// With the carrier on the standard streams.
    is_stdio: bool,
    /// When no flow is open any more, or at this time.
    draining_until_ns: Option<u64>,
    /// It is to end now; with an error, if that is a failure.
    over: Option<Option<String>>,
}

/// Starts a tunnel on a thread of its own.
pub(super) fn start(settings: Settings, reports: Teller, counters: Arc<Counters>) -> io::Result<Inlet> {
    let (orders, inbox) = channel();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let inlet = Inlet { orders: Arc::new(Mutex::new(orders)), bell: Arc::clone(&bell) };
    let watch = hub::watch(&bell)?;
    let (tell, tell_found) = (inlet.clone(), inlet.clone());
    let lookups = Lookups::new(lookup::resolve, move |name, found| tell_found.send(Order::Found(name, found)));
    let (begun_tell, begun) = channel();
    let run = move || {
        let (flows_max, limits) = (settings.flows_max, settings.limits);
        // The engine belongs to this thread.
        let tell: engine::Tell = Box::new(move |key, done| tell.send(Order::Worker(key, done)));
        let work = Work::new(settings.engine.clone(), tell, limits.memory);
        let mut pump = Pump {
            hub: Hub::new(watch, bell),
            inbox,
            begun: Instant::now(),
            now_ns: 0,
            settings,
            reports,
            counters,
            work,
            lookups,
            sessions: Sessions::new(),
            carriers: Carriers::new(limits.attached),
            strangers: Strangers::new(limits.greetings_per_s),
            flows: Flows::new(flows_max, &limits),
            uplink: None,
            end: End::default(),
        };
        let opened = pump.open();
        let failed = opened.is_err();
        let _ = begun_tell.send(opened);
        if !failed {
            let error = pump.run();
            let reports = pump.break_off();
            reports.tell_last(Report::Over { error });
        }
    };
    std::thread::Builder::new().name("narrows-tunnel".into()).spawn(run)?;
    begun.recv().unwrap_or_else(|_| Err(io::Error::other("the tunnel did not start; this is a bug")))?;
    Ok(inlet)
}

impl Pump {
    /// Returns an error if it is over by a failure.
    fn run(&mut self) -> Option<String> {
        let mut events = Vec::with_capacity(EVENTS);
        while self.end.over.is_none() {
            let wait = self.patience();
            if let Err(e) = self.hub.wait(&mut events, wait) {
                self.end.over = Some(Some(format!("cannot wait for sockets: {e}")));
                break;
            }
            self.tick();
            self.work.waited(!events.is_empty(), wait);
            self.carriers.begin_turn();
            for event in &events {
                if let Some(key) = self.hub.about(event) {
                    self.happened(key, event.flags);
                }
            }
            self.hear_orders();
            self.call_due();
            self.advance_all();
            self.work.tidy(self.now_ns);
            self.drain();
            self.reports.tell_left_out(self.now_ns);
        }
        self.end.over.take().flatten()
    }

    /// Resets whatever is open here, so that nobody takes it for whole, and asks remote shells to end. The
    /// end is to be told after that.
    fn break_off(self) -> Teller {
        let Self { reports, .. } = self;
        reports
    }

    fn tick(&mut self) {
        self.now_ns = self.begun.elapsed().as_nanos() as u64;
    }

    fn patience(&self) -> Option<Duration> {
        if !self.sessions.touched.is_empty() || self.carriers.are_held() || self.hub.turns() != [0, 0] {
            return Some(Duration::ZERO);
        }
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        let (work, reports) = (self.work.next_wakeup_ns(now_ns), self.reports.next_wakeup_ns(now_ns));
        let uplink = self.uplink.as_ref().and_then(UplinkState::next_wakeup_ns);
        let (places, sessions) = (self.hub.next_wakeup_ns(), self.sessions.next_wakeup_ns());
        let all = [work, reports, uplink, places, sessions, self.end.draining_until_ns];
        all.into_iter().flatten().min().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }

    fn hear_orders(&mut self) {
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Worker(key, result) => self.worker_done(key, result),
                Order::Found(name, found) => {
                    let keys = self.lookups.finished(name, &found, self.now_ns);
                    keys.into_iter().for_each(|key| self.found(key, found.clone()));
                }
                Order::Reload { server, client, name } => {
                    if let Some(server) = server {
                        self.settings.listen.iter_mut().for_each(|(_, config)| *config = Arc::clone(&server));
                    }
                    if let (Some(uplink), Some(client)) = (&mut self.uplink, client) {
                        uplink.expect(client, name, self.now_ns);
                    }
                }
                Order::Judge(trust) => self.judge(trust),
                Order::Change(change) => self.change(*change),
                Order::Beat => self.counters.beats.add(1),
                Order::Snapshot(answer) => self.tell_state(&answer),
                Order::Trace { id, limit, lines } => {
                    let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                    let until_ns = self.now_ns.saturating_add(limit_ns);
                    self.flows.begin_trace(&mut self.hub, id, until_ns, lines);
                }
                Order::Drain(limit) => self.begin_drain(limit),
            }
        }
    }

    fn begin_drain(&mut self, limit: Duration) {
        let until_ns = self.now_ns.saturating_add(limit.as_nanos() as u64);
        self.end.draining_until_ns = Some(until_ns);
        self.hub.close_listeners();
        for at in 0..self.sessions.len() {
            if let Some(place) = self.sessions.get_mut(at) {
                place.session.leave(Reason::Leaving, "the other end stops");
                self.sessions.touch(at);
            }
        }
        self.advance_all();
    }

    fn drain(&mut self) {
        let Some(until_ns) = self.end.draining_until_ns else { return };
        if self.flows.open == 0 {
            (0..self.sessions.len()).for_each(|at| self.part_if_done(at));
        }
        if self.now_ns >= until_ns || self.flows.open == 0 && self.sessions.is_empty() {
            self.end.over.get_or_insert(None);
        }
    }

    /// Calls whatever is due.
    fn call_due(&mut self) {
        while let Some(key) = self.hub.take_due(self.now_ns) {
            match self.hub.kind(key) {
                Some(Kind::Conn(_)) => self.conn_on_time(key),
                Some(Kind::Undecided(_)) => self.undecided_on_time(key),
                Some(Kind::Stranger(_)) => self.stranger_on_time(key),
                Some(Kind::Dialing(_)) => self.dialing_on_time(key),
                Some(Kind::Carrier(_)) => self.lose_carrier(key, "the other end did not close it in time"),
                Some(Kind::Listener(_)) => self.listener_ready(key),
                None => {}
            }
        }
        self.sessions_on_time();
        self.uplink_on_time();
    }

    /// Moves bytes between sockets and state machines, until nothing moves or it is time to look at
    /// the sockets again.
    fn advance_all(&mut self) {
        let [_, strangers] = self.hub.turns();
        for _ in 0..strangers.min(STRANGERS_AT_A_TIME) {
            let Some(key) = self.hub.take_stranger_turn() else { break };
            self.stranger_ready(key);
        }
        self.carriers.release(&mut self.hub, &self.sessions);
        for _ in 0..ROUNDS {
            let [turns, _] = self.hub.turns();
            if self.sessions.touched.is_empty() && turns == 0 {
                break;
            }
            let touched = std::mem::take(&mut self.sessions.touched);
            touched.iter().for_each(|at| self.hear_session(*at));
            let [turns, _] = self.hub.turns();
            for _ in 0..turns {
                let Some(key) = self.hub.take_turn() else { break };
                self.advance(key);
            }
            let mut touched = touched;
            touched.append(&mut self.sessions.touched);
            touched.sort_unstable();
            touched.dedup();
            for at in touched {
                // A carrier that had its turn may have brought something.
                self.hear_session(at);
                self.flush_session(at);
                self.settle_session(at);
            }
            self.tick();
        }
        self.flows.send_traces(&mut self.hub, self.now_ns);
        self.work.count(&self.counters);
    }

    fn happened(&mut self, key: Key, flags: EventFlags) {
        let readable =
            flags.intersects(EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let writable = flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        // Then a short read is not the last: it stops before an end and before urgent bytes.
        let hung_up = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI);
        match self.hub.kind(key) {
            Some(Kind::Conn(conn)) => {
                conn.local.happened(readable, writable, hung_up, flags.contains(EventFlags::ERR));
                self.hub.queue(key);
            }
            Some(Kind::Carrier(carrier)) => {
                carrier.wire.happened(readable, writable, hung_up);
                let session = carrier.session;
                if !carrier.is_held {
                    self.carrier_ready(key);
                }
                self.sessions.touch(session);
            }
            Some(Kind::Stranger(stranger)) => {
                stranger.wire.happened(readable, writable, hung_up);
                self.hub.queue(key);
            }
            Some(Kind::Listener(_)) => self.listener_ready(key),
            Some(Kind::Undecided(_)) => self.undecided_ready(key),
            Some(Kind::Dialing(_)) if writable => self.dialing_ready(key),
            _ => {}
        }
    }

    /// Tells why a connection of a session was refused or broken.
    fn report_flow(&mut self, session: usize, text: String) {
        let host = self.sessions.host(session);
        self.reports.tell_refusal(host, Subject::Flows, text, self.now_ns);
    }

    /// Tells a person at a dialer that a target was not reached. At an acceptor others choose the targets.
    fn report_unreached(&mut self, session: usize, to: String, reason: Reason, text: &str) {
        let is_own = self.sessions.get(session).is_some_and(|place| place.role == Role::Dialer);
        if is_own {
            self.reports.tell_unreached(to, reason, text, self.now_ns);
        }
    }
}
