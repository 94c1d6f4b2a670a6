//! The supervisor: takes requests from programs, hands them to the pumps, and exits when nobody
//! needs it any more.

use std::collections::HashMap;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, ipproto, listen, recvmsg, socket_with, sockopt,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use super::account::Totals;
use super::asker::Asker;
use super::budget::Budget;
use super::compressor::Compressor;
use super::held::Holdings;
use super::negotiator::{Negotiator, Service};
use super::proof;
use super::pump;
use super::scope::Direct;
use super::seccomp::Intake;
use super::shared::{Inlet, Order, Shared};
use super::status;
use super::sys;
use super::talk::Talk;
use super::wire::{self, CONTROL_LEN, Kind, REQUEST_LEN, Request, Token};

/// Maximum number of pump threads, and cores per pump. One pump passes more than 1 GB/s, programs
/// and workers need cores too, and the more connections a pump has, the less often it must be woken
/// for a message.
const PUMPS_MAX: usize = 4;
const CORES_PER_PUMP: usize = 2;
/// How long a control connection may stay silent. A program that was stopped between connecting and sending its
/// request keeps its connection, plain.
const SILENT_FOR: Duration = Duration::from_secs(1);
/// Maximum of silent control connections of any one other user. In a run of root, programs may run
/// as any user, so such a connection may also come from somebody who merely found the name.
const SILENT_OF_OTHERS: usize = 16;
/// Control connections accepted before process events get their turn.
const ACCEPTED_AT_ONCE: usize = 256;
/// Descriptors that may come with a request. This many are kept free, because descriptors that find
/// no room are lost.
const SPARE: usize = 2;
/// Interval at which a supervisor that refuses connections checks whether it may take some again,
/// and at which silent control connections are checked.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The address at which programs reach the supervisor, and the token that proves that they may.
pub struct Control {
    pub random: [u8; 16],
    pub token: Token,
    pub listener: OwnedFd,
}

impl Control {
    pub fn open() -> Result<Self> {
        let mut both = [[0; 16]; 2];
        for part in &mut both {
            rustix::rand::getrandom(&mut part[..], rustix::rand::GetRandomFlags::empty())?;
        }
        let listener = listen_at(&wire::control_name(both[0]))?;
        Ok(Self { random: both[0], token: both[1], listener })
    }
}

fn listen_at(name: &[u8; CONTROL_LEN]) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new_abstract_name(&name[1..])?)?;
    let backlog = Budget::of(sys::descriptor_limit(), false).backlog;
    listen(&listener, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(listener)
}

/// Settings from the command line.
#[derive(Clone)]
pub struct Settings {
    pub verbose: bool,
    pub service: Service,
    pub direct: Direct,
    pub compressor: Arc<Compressor>,
    /// The command, as the user typed it.
    pub program: String,
}

const LISTENER: u64 = u64::MAX;
const IDLE: u64 = u64::MAX - 1;
/// Combined with the number of the descriptor that the event is about.
const PROCESS: u64 = 1 << 32;
const CONTROL: u64 = 2 << 32;

/// A control connection: a program has connected and will send one request.
struct ControlSocket {
    fd: OwnedFd,
    asker: Asker,
    since: Instant,
}

pub struct Supervisor {
    watch: OwnedFd,
    control: Control,
    /// False while too many connections are open.
    listening: bool,
    pumps: Vec<Inlet>,
    shared: Arc<Shared>,
    budget: Budget,
    /// No descriptor was left: requests wait until some are free.
    starved: bool,
    spare: Vec<OwnedFd>,
    /// Living processes of this run, by the number of their pidfd.
    processes: HashMap<i32, (i32, OwnedFd)>,
    known: HashMap<i32, i32>,
    silent: Vec<ControlSocket>,
}

impl Supervisor {
    /// `asked`: whether the kernel asks about system calls (the filter).
    pub fn new(control: Control, first: (Pid, OwnedFd), asked: bool, settings: Settings) -> Result<Self> {
        let Settings { verbose, service, direct, compressor, program } = settings;
        let budget = Budget::of(sys::raise_descriptor_limit(), asked);
        let watch = epoll::create(CreateFlags::CLOEXEC)?;
        let idle = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&watch, &idle, EventData::new_u64(IDLE), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&watch, &control.listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let (negotiator, desk) = Negotiator::open()?;
        let shared = Arc::new(Shared {
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            kept_max: budget.failed,
            idle,
            talk: Talk { verbose },
            negotiator,
            compressor,
            direct,
            held: Holdings::default(),
            totals: Totals::default(),
            begun: Instant::now(),
        });
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pumps = cores.div_ceil(CORES_PER_PUMP).min(PUMPS_MAX);
        let pumps = (0..pumps).map(|_| pump::start(Arc::clone(&shared))).collect::<Result<Vec<_>>>()?;
        let inlets = pumps.clone();
        desk.start(service, budget.negotiating, verbose, move |id, event| {
            inlets[(id % inlets.len() as u64) as usize].send(Order::Hear { id, event });
        })?;
        let (asked, told) = (pumps.clone(), Arc::clone(&shared));
        // Without a status socket the supervisor still works.
        let _ = narrows_watch::answer::start(Arc::new(move || status::describe(&program, &told, &asked)));
        let mut supervisor = Self {
            watch,
            control,
            listening: true,
            pumps,
            shared,
            budget,
            starved: false,
            spare: Vec::new(),
            processes: HashMap::new(),
            known: HashMap::new(),
            silent: Vec::new(),
        };
        supervisor.watch_process(first.0, first.1);
        Ok(supervisor)
    }

    /// The entry for connections that come by the filter.
    pub fn intake(&self) -> Intake {
        let (pumps, shared) = (self.pumps.clone(), Arc::clone(&self.shared));
        Intake { pumps, shared, budget: self.budget }
    }

    /// Works until no process of this run lives and every connection has ended.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.is_done() {
            events.clear();
            let wait = (!self.listening || !self.silent.is_empty()).then_some(&LOOK_AGAIN);
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), wait);
            // Requests first: the last requests of a process that has ended still count.
            self.hear_silent();
            let drained = self.accept_some();
            for event in &events {
                let about = event.data.u64();
                if about & !0xffff_ffff == PROCESS {
                    self.ended(about as i32);
                } else if about == IDLE {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.shared.idle, &mut count);
                }
            }
            self.refuse_without_room();
            if drained {
                self.listen_again();
            }
        }
    }

    fn is_done(&mut self) -> bool {
        if !self.processes.is_empty() || self.shared.live.load(Ordering::Acquire) > 0 {
            return false;
        }
        // Requests that they sent before they ended may still be queued.
        self.hear_silent();
        self.accept_some() && self.processes.is_empty() && self.shared.live.load(Ordering::Acquire) == 0
    }

    /// Watches a process of this run: the supervisor stays as long as it lives.
    fn know(&mut self, pid: Pid) {
        let number = pid.as_raw_pid();
        if self.known.contains_key(&number) || self.processes.len() >= self.budget.processes {
            return;
        }
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) {
            self.watch_process(pid, fd);
        }
    }

    fn watch_process(&mut self, pid: Pid, fd: OwnedFd) {
        let (number, key) = (pid.as_raw_pid(), fd.as_raw_fd());
        if epoll::add(&self.watch, &fd, EventData::new_u64(PROCESS | key as u64), EventFlags::IN).is_ok() {
            self.known.insert(number, key);
            self.processes.insert(key, (number, fd));
        }
    }

    fn ended(&mut self, key: i32) {
        if let Some((number, fd)) = self.processes.remove(&key) {
            self.known.remove(&number);
            let _ = epoll::delete(&self.watch, &fd);
        }
    }

    fn has_room(&self) -> bool {
        !self.starved && self.shared.live.load(Ordering::Acquire) < self.budget.connections
    }

    /// Without room for its descriptors a handed-over connection would be lost; without a listener
    /// it stays plain.
    fn refuse_without_room(&mut self) {
        if self.listening && !self.has_room() {
            let _ = epoll::delete(&self.watch, &self.control.listener);
            let _ = rustix::net::shutdown(&self.control.listener, rustix::net::Shutdown::Both);
            self.listening = false;
        }
    }

    /// Opens a new listener. Call only when nobody waits at the old one.
    fn listen_again(&mut self) {
        if self.listening || !self.has_room() {
            return;
        }
        // Replaces the old listener first, because it occupies the name.
        if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
            self.control.listener = null;
        }
        if let Ok(listener) = listen_at(&wire::control_name(self.control.random)) {
            let watched = epoll::add(&self.watch, &listener, EventData::new_u64(LISTENER), EventFlags::IN);
            self.listening = watched.is_ok();
            self.control.listener = listener;
        }
    }

    /// Accepts requests, including those queued before the listener was shut: programs do not wait to
    /// hear that their connections were taken. True if nobody waits any more.
    fn accept_some(&mut self) -> bool {
        for _ in 0..ACCEPTED_AT_ONCE {
            if !self.keep_spare() {
                return false;
            }
            match accept_with(&self.control.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    if let Some(asker) = Asker::of(&fd) {
                        self.hear(ControlSocket { fd, asker, since: Instant::now() });
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.starved = true;
                    return false;
                }
                Err(_) => return true,
            }
        }
        false
    }

    /// Keeps spare descriptors for what a request may bring. False if there is no room, so that
    /// the request has to wait.
    fn keep_spare(&mut self) -> bool {
        while self.spare.len() < SPARE {
            let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&self.watch, 0) else { break };
            self.spare.push(fd);
        }
        self.starved = self.spare.len() < SPARE;
        !self.starved
    }

    /// Tries again the control connections whose request had not arrived yet. Older ones first: newer requests may be
    /// about the connections that they hand over.
    fn hear_silent(&mut self) {
        for control in std::mem::take(&mut self.silent) {
            self.hear(control);
        }
    }

    fn hear(&mut self, control: ControlSocket) {
        if !self.keep_spare() {
            // There is room in the list: it was in it before, or it is the one accepted last.
            return self.silent.push(control);
        }
        match self.receive(&control.fd) {
            Err(Errno::AGAIN) if self.may_wait(&control) => {
                let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
                let data = EventData::new_u64(CONTROL | control.fd.as_raw_fd() as u64);
                // If it cannot be watched, it is tried again with the next one or a little later.
                if epoll::add(&self.watch, &control.fd, data, flags) == Err(Errno::EXIST) {
                    let _ = epoll::modify(&self.watch, &control.fd, data, flags);
                }
                self.silent.push(control);
            }
            Err(Errno::AGAIN) => {
                // Requests that it sends from now on fail, so its connection stays plain; what it
                // has already sent counts.
                let _ = rustix::net::shutdown(&control.fd, rustix::net::Shutdown::Both);
                if let Ok((bytes, fds)) = self.receive(&control.fd) {
                    self.heard(control, &bytes, fds);
                }
            }
            Err(_) => {}
            Ok((bytes, fds)) => {
                self.hear_silent();
                self.heard(control, &bytes, fds);
            }
        }
    }

    fn may_wait(&self, control: &ControlSocket) -> bool {
        let others = control.asker.uid != geteuid().as_raw();
        let same = || self.silent.iter().filter(|c| c.asker.uid == control.asker.uid).count();
        control.since.elapsed() < SILENT_FOR
            && self.silent.len() < self.budget.silent
            && !(others && same() >= SILENT_OF_OTHERS.min(self.budget.silent / 2))
    }

    fn receive(&mut self, socket: &OwnedFd) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.spare.clear();
        receive(socket)
    }

    fn heard(&mut self, control: ControlSocket, bytes: &[u8], fds: Vec<OwnedFd>) {
        if let Some(request) = Request::decode(bytes).filter(|r| r.token == self.control.token) {
            self.obey(request, fds, control);
        }
    }

    fn obey(&mut self, request: Request, mut fds: Vec<OwnedFd>, control: ControlSocket) {
        let ControlSocket { fd: socket, asker, .. } = control;
        if let (Some(pid), Kind::Hello | Kind::New | Kind::Listen) = (asker.pid, request.kind) {
            self.know(pid);
        }
        let pump = &self.pumps[(request.id % self.pumps.len() as u64) as usize];
        match request.kind {
            Kind::Hello => {}
            Kind::Listen => {
                if let Some(address) = proof::address(&request.local) {
                    self.shared.negotiator.listening(address);
                }
            }
            Kind::Plain => {
                self.shared.totals.add_plain(wire::Reason::words(request.number));
                self.shared.talk.plain(&request.peer, request.number);
            }
            Kind::New => {
                let (Some(program), Some(network), true) = (fds.pop(), fds.pop(), fds.is_empty()) else { return };
                if is_tcp(&network)
                    && is_unix_stream(&program)
                    && let Some(held) = self.shared.held.add(&request, asker.uid, network)
                {
                    self.shared.live.fetch_add(1, Ordering::AcqRel);
                    pump.send(Order::Take { request: Box::new(request), held, program });
                    self.refuse_without_room();
                }
            }
            _ => match self.shared.held.answer(&request, asker) {
                // The requester may be gone.
                Some(reply) => drop(pump::reply_on(&socket, &reply, None)),
                None => pump.send(Order::Ask { request: Box::new(request), asker, socket }),
            },
        }
    }
}

/// A message and the descriptors that came with it.
fn receive(socket: &OwnedFd) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte longer than any message, so that longer ones are detected.
    let mut bytes = vec![0; REQUEST_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    bytes.truncate(got.bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((bytes, fds))
}

fn is_tcp(fd: &OwnedFd) -> bool {
    let internet = matches!(sockopt::socket_domain(fd), Ok(AddressFamily::INET | AddressFamily::INET6));
    internet && matches!(sockopt::socket_protocol(fd), Ok(Some(ipproto::TCP)))
}

fn is_unix_stream(fd: &OwnedFd) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}
