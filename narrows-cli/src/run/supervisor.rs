//! The supervisor: takes requests of the programs, hands them to the pumps, and leaves when nobody needs it any more.

use std::collections::HashMap;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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
use super::compressor::Compressor;
use super::negotiator::{HOSTS_MAX, Negotiator, Service};
use super::proof;
use super::pump::{self, Inlet, Ledger, Order};
use super::scope::Direct;
use super::seccomp::Intake;
use super::status;
use super::sys;
use super::talk::Talk;
use super::wire::{self, CONTROL_LEN, Kind, REQUEST_LEN, Request, Token};

/// Lines wait here to be accepted while a burst of connections begins; the kernel may allow less.
const BACKLOG: i32 = 4096;
/// Lines that are accepted but have said nothing yet. A program says it at once.
const SILENT_MAX: usize = 1024;
/// Threads that move bytes: each passes more than a GB/s, and programs need cores too.
const PUMPS_MAX: usize = 4;
/// Descriptors for processes, lines and the supervisor itself, beside two for each connection.
const DESCRIPTORS_KEPT: usize = 256;
/// Processes that are waited for by name; with more, their connections still are.
const PROCESSES_MAX: usize = 65_536;
/// How often a supervisor that refuses connections looks whether it may take some again.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where programs reach the supervisor, and what proves that they may.
pub(crate) struct Control {
    pub(crate) random: [u8; 16],
    pub(crate) token: Token,
    pub(crate) listener: OwnedFd,
}

impl Control {
    pub(crate) fn open() -> Result<Self> {
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
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// What the person who started it wants of it.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) verbose: bool,
    pub(crate) service: Service,
    pub(crate) direct: Direct,
    pub(crate) compressor: Arc<Compressor>,
    /// What the person calls it.
    pub(crate) program: String,
}

const LISTENER: u64 = u64::MAX;
const IDLE: u64 = u64::MAX - 1;
/// Beside it the descriptor that the event is about.
const PROCESS: u64 = 1 << 32;
const LINE: u64 = 2 << 32;

pub(crate) struct Supervisor {
    watch: OwnedFd,
    control: Control,
    /// None while too many connections are open.
    listening: bool,
    pumps: Vec<Inlet>,
    ledger: Arc<Ledger>,
    connections_max: usize,
    /// Living processes of this run, by their pidfd.
    processes: HashMap<i32, (i32, OwnedFd)>,
    known: HashMap<i32, i32>,
    silent: Vec<OwnedFd>,
}

impl Supervisor {
    pub(crate) fn new(control: Control, first: (Pid, OwnedFd), settings: Settings) -> Result<Self> {
        let Settings { verbose, service, direct, compressor, program } = settings;
        let limit = sys::raise_descriptor_limit();
        let negotiating = (limit / 8).min(2 * HOSTS_MAX);
        let connections_max = limit.saturating_sub(DESCRIPTORS_KEPT + negotiating) / 2;
        let watch = epoll::create(CreateFlags::CLOEXEC)?;
        let idle = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&watch, &idle, EventData::new_u64(IDLE), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&watch, &control.listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let (negotiator, desk) = Negotiator::open()?;
        let ledger = Arc::new(Ledger {
            live: AtomicUsize::new(0),
            idle,
            talk: Talk { verbose },
            negotiator,
            compressor,
            direct,
            totals: Totals::default(),
            begun: Instant::now(),
        });
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pumps = (0..cores.min(PUMPS_MAX)).map(|_| pump::start(Arc::clone(&ledger))).collect::<Result<Vec<_>>>()?;
        let inlets = pumps.clone();
        desk.start(service, negotiating, verbose, move |id, event| {
            inlets[(id % inlets.len() as u64) as usize].send(Order::Hear { id, event });
        })?;
        let (asked, told) = (pumps.clone(), Arc::clone(&ledger));
        // Who cannot be asked still works.
        let _ = status::start(move || status::describe(&program, &told, &asked));
        let mut supervisor = Self {
            watch,
            control,
            listening: true,
            pumps,
            ledger,
            connections_max: connections_max.max(1),
            processes: HashMap::new(),
            known: HashMap::new(),
            silent: Vec::new(),
        };
        supervisor.watch_process(first.0, first.1);
        Ok(supervisor)
    }

    /// Where the second engine brings its connections in.
    pub(crate) fn intake(&self) -> Intake {
        let (pumps, ledger) = (self.pumps.clone(), Arc::clone(&self.ledger));
        Intake { pumps, ledger, connections_max: self.connections_max }
    }

    /// Works until no process of this run lives and every connection has ended.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.is_done() {
            events.clear();
            let wait = (!self.listening).then_some(&LOOK_AGAIN);
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), wait);
            // Requests first: the last words of a process that has ended count.
            self.hear_silent();
            self.accept_all();
            for event in &events {
                let about = event.data.u64();
                if about & !0xffff_ffff == PROCESS {
                    self.ended(about as i32);
                } else if about == IDLE {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.ledger.idle, &mut count);
                }
            }
            self.listen_while_there_is_room();
        }
    }

    fn is_done(&mut self) -> bool {
        if !self.processes.is_empty() || self.ledger.live.load(Ordering::Acquire) > 0 {
            return false;
        }
        // What they said before they ended may still wait.
        self.hear_silent();
        self.accept_all();
        self.processes.is_empty() && self.ledger.live.load(Ordering::Acquire) == 0
    }

    /// A process of this run: the supervisor stays as long as it lives.
    fn know(&mut self, pid: Pid) {
        let number = pid.as_raw_pid();
        if self.known.contains_key(&number) || self.processes.len() >= PROCESSES_MAX {
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

    /// Without room for descriptors a connection that was handed over would be lost; without a listener it stays plain.
    fn listen_while_there_is_room(&mut self) {
        let room = self.ledger.live.load(Ordering::Acquire) < self.connections_max;
        if self.listening && !room {
            let _ = epoll::delete(&self.watch, &self.control.listener);
            let _ = rustix::net::shutdown(&self.control.listener, rustix::net::Shutdown::Both);
            self.listening = false;
        } else if !self.listening && room {
            // The old one has to go first, because of the name.
            if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
                self.control.listener = null;
            }
            if let Ok(listener) = listen_at(&wire::control_name(self.control.random)) {
                let watched = epoll::add(&self.watch, &listener, EventData::new_u64(LISTENER), EventFlags::IN);
                self.listening = watched.is_ok();
                self.control.listener = listener;
            }
        }
    }

    /// Also what came before the listener was shut: programs do not wait to hear that their connections were taken.
    fn accept_all(&mut self) {
        loop {
            match accept_with(&self.control.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(line) => self.hear(line),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Lines whose message comes later than they do. Older ones first: they may hold what newer ones are about.
    fn hear_silent(&mut self) {
        for line in std::mem::take(&mut self.silent) {
            self.hear(line);
        }
    }

    fn hear(&mut self, line: OwnedFd) {
        match receive(&line) {
            Err(Errno::AGAIN) if self.silent.len() < SILENT_MAX => {
                let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
                let data = EventData::new_u64(LINE | line.as_raw_fd() as u64);
                let watched = match epoll::add(&self.watch, &line, data, flags) {
                    Err(Errno::EXIST) => epoll::modify(&self.watch, &line, data, flags),
                    result => result,
                };
                if watched.is_ok() {
                    self.silent.push(line);
                }
            }
            Err(_) => {}
            Ok((bytes, fds)) => {
                self.hear_silent();
                let request = Request::decode(&bytes).filter(|r| r.token == self.control.token);
                if let Some(request) = request
                    && let Some(pid) = sender(&line)
                {
                    self.obey(request, fds, pid, line);
                }
            }
        }
    }

    fn obey(&mut self, request: Request, mut fds: Vec<OwnedFd>, pid: Option<Pid>, line: OwnedFd) {
        if let (Some(pid), Kind::Hello | Kind::New | Kind::Listen) = (pid, request.kind) {
            self.know(pid);
        }
        let pump = &self.pumps[(request.id % self.pumps.len() as u64) as usize];
        match request.kind {
            Kind::Hello => {}
            Kind::Listen => {
                if let Some(address) = proof::address(&request.local) {
                    self.ledger.negotiator.listening(address);
                }
            }
            Kind::Plain => {
                self.ledger.totals.add_plain(wire::Reason::words(request.number));
                self.ledger.talk.plain(&request.peer, request.number);
            }
            Kind::New => {
                let (Some(program), Some(network), true) = (fds.pop(), fds.pop(), fds.is_empty()) else { return };
                if is_tcp(&network) && is_unix_stream(&program) {
                    self.ledger.live.fetch_add(1, Ordering::AcqRel);
                    pump.send(Order::Take { request: Box::new(request), network, program });
                    self.listen_while_there_is_room();
                }
            }
            _ => pump.send(Order::Ask { request: Box::new(request), line }),
        }
    }
}

/// A message and the descriptors that came with it.
fn receive(line: &OwnedFd) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte more than any message has, so that longer ones are seen to be.
    let mut bytes = vec![0; REQUEST_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(line, &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    bytes.truncate(got.bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((bytes, fds))
}

/// Who speaks; inside, nothing if the process is in a namespace that is not seen from here. Others than this user are
/// refused, whatever they know; as root, programs may have become anybody.
fn sender(line: &OwnedFd) -> Option<Option<Pid>> {
    let mut credentials = [0; 12];
    let len = sys::get_option(line, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
    let (pid, rest) = credentials.split_first_chunk::<4>()?;
    let uid = u32::from_ne_bytes(*rest.first_chunk()?);
    let own = geteuid();
    (len == 12 && (own.is_root() || uid == own.as_raw())).then(|| Pid::from_raw(i32::from_ne_bytes(*pid)))
}

fn is_tcp(fd: &OwnedFd) -> bool {
    let internet = matches!(sockopt::socket_domain(fd), Ok(AddressFamily::INET | AddressFamily::INET6));
    internet && matches!(sockopt::socket_protocol(fd), Ok(Some(ipproto::TCP)))
}

fn is_unix_stream(fd: &OwnedFd) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}
