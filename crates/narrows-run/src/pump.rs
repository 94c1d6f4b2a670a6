//! A pump: one thread that moves the bytes of its connections. No other thread touches them.
//!
//! Sockets are watched edge-triggered, because the poison keeps the program's end readable for
//! ever. A connection runs until nothing moves or its turn is over; then the others get theirs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::Result;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};

use super::asker::Asker;
use super::attention::{Attention, Course, Moved};
use super::connection::{Connection, Next};
use super::failures::{self, Failures};
use super::held::Held;
use super::shared::{Inlet, Order, PumpContext, Shared};
use super::vital;
use super::wire::{self, Kind, REPLY_LEN, Reply, Request, State};

/// Bytes read at a time: enough for few calls, and little enough for a second-level cache.
const SCRATCH: usize = 128 << 10;
/// Events, or orders, taken at a time.
const EVENTS: usize = 256;
/// Timer slack of the thread. By default timers may be 50 us late, which is about what a nap saves.
const TIMER_SLACK_NS: u64 = 1_000;
/// Unused buffers go back to the system after this time.
const TIDY_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn start(shared: Arc<Shared>) -> Result<Inlet> {
    let (inlet, inbox, bell) = Inlet::open()?;
    let watch = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&watch, &*bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
    let failed = Failures::new(Arc::clone(&shared));
    let context = PumpContext::new(shared, inlet.clone());
    let pump = Pump {
        watch,
        bell,
        inbox,
        unheard: false,
        context,
        timers: BTreeSet::new(),
        due: Vec::new(),
        untidy: false,
        places: Vec::new(),
        free: Vec::new(),
        by_id: HashMap::new(),
        by_serial: HashMap::new(),
        turns: VecDeque::new(),
        failed,
        scratch: vec![0; SCRATCH],
        attention: Attention::new(),
        moved: Moved::default(),
    };
    vital::start("narrows-pump", move || pump.run())?;
    Ok(inlet)
}

const BELL: u64 = u64::MAX;
/// Event data: the number of a place, doubled, plus which of its sockets.
const PROGRAM: u64 = 0;
const NETWORK: u64 = 1;

struct Pump {
    watch: OwnedFd,
    bell: Arc<OwnedFd>,
    inbox: Receiver<Order>,
    /// The inbox may hold orders although the bell was reset.
    unheard: bool,
    context: PumpContext,
    /// Timers: when each place wants to be called.
    timers: BTreeSet<(u64, usize)>,
    /// The timer of each place.
    due: Vec<Option<u64>>,
    /// Buffers were used since the pool was last trimmed.
    untidy: bool,
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
    by_serial: HashMap<u64, usize>,
    /// Connections whose turn ended before they were done, each once.
    turns: VecDeque<usize>,
    failed: Failures,
    scratch: Vec<u8>,
    attention: Attention,
    /// Bytes passed on in this round.
    moved: Moved,
}

/// A connection, and the pump's own notes about it.
struct Place {
    connection: Connection,
    course: Course,
    /// Its program's end is watched for room to write.
    watches_room: bool,
    /// It is in `turns`.
    has_turn: bool,
}

impl Pump {
    fn run(mut self) {
        // A program would wait for a nap that ends late. If the slack cannot be set, naps end late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let wait = self.patience();
            events.clear();
            let clock = || self.context.now_ns();
            self.attention.wait(&self.watch, &mut events, wait, clock, !self.context.shared.compressor.is_at_work());
            let began_ns = self.context.now_ns();
            if events.is_empty() && wait.is_some_and(|w| w >= TIDY_AFTER) {
                self.context.buffers.trim();
                self.untidy = false;
            }
            self.untidy |= !events.is_empty();
            for event in &events {
                self.happened(event.data.u64(), event.flags);
            }
            for _ in 0..self.turns.len() {
                if let Some(number) = self.turns.pop_front() {
                    if let Some(Some(place)) = self.places.get_mut(number) {
                        place.has_turn = false;
                    }
                    self.advance(number);
                }
            }
            // Orders last, so that no event of this round concerns a new connection in a reused
            // place.
            if events.iter().any(|e| e.data.u64() == BELL) {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.bell, &mut count);
                self.unheard = true;
            }
            self.hear_orders();
            self.call_due();
            self.failed.look();
            let moved = std::mem::take(&mut self.moved);
            if !events.is_empty() {
                self.attention.round(began_ns, self.context.now_ns(), moved);
            }
        }
    }

    /// Handles some of the waiting orders: workers leave many, and sockets get their turn in
    /// between.
    fn hear_orders(&mut self) {
        if !std::mem::take(&mut self.unheard) {
            return;
        }
        for _ in 0..EVENTS {
            let Ok(order) = self.inbox.try_recv() else { return };
            self.obey(order);
        }
        self.unheard = true;
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if !self.turns.is_empty() || self.unheard {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| Duration::from_nanos(at.saturating_sub(self.context.now_ns())));
        let second = self.untidy.then_some(TIDY_AFTER);
        [timer, second, self.failed.patience()].into_iter().flatten().min()
    }

    fn call_due(&mut self) {
        let now_ns = self.context.now_ns();
        while let Some((at, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now_ns) {
            self.timers.remove(&(at, number));
            self.due[number] = None;
            if let Some(Some(place)) = self.places.get_mut(number) {
                place.connection.on_time(&mut self.context);
                self.advance(number);
            }
        }
    }

    fn set_timer(&mut self, number: usize, at: Option<u64>) {
        if self.due[number] != at {
            if let Some(old) = std::mem::replace(&mut self.due[number], at) {
                self.timers.remove(&(old, number));
            }
            self.timers.extend(at.map(|at| (at, number)));
        }
    }

    fn happened(&mut self, about: u64, events: EventFlags) {
        let number = (about >> 1) as usize;
        let Some(Some(place)) = self.places.get_mut(number) else { return };
        if about & 1 == PROGRAM {
            place.connection.program_happened(events);
        } else {
            place.connection.network_happened(events);
        }
        self.advance(number);
    }

    fn advance(&mut self, number: usize) {
        let Some(Some(place)) = self.places.get_mut(number) else { return };
        let connection = &mut place.connection;
        let next = connection.advance(&mut self.scratch, &mut self.context);
        let (up, down) = connection.passed();
        self.moved.add(place.course.look(up, down));
        match next {
            Next::Wait => {}
            Next::Again if place.has_turn => {}
            Next::Again => {
                place.has_turn = true;
                self.turns.push_back(number);
            }
            Next::Over(error) => return self.end(number, error),
        }
        let wakeup_ns = connection.next_wakeup_ns(self.context.now_ns());
        let wants_room = connection.wants_room();
        if wants_room != std::mem::replace(&mut place.watches_room, wants_room) {
            let flags = program_events(wants_room);
            let _ = epoll::modify(&self.watch, &connection.program, data(number, PROGRAM), flags);
        }
        self.set_timer(number, wakeup_ns);
    }

    fn end(&mut self, number: usize, error: Option<Errno>) {
        let Some(Place { connection, .. }) = self.places.get_mut(number).and_then(Option::take) else { return };
        self.set_timer(number, None);
        self.free.push(number);
        self.by_id.remove(&connection.id);
        self.by_serial.remove(&connection.serial);
        let account = connection.account(&self.context);
        let shared = &self.context.shared;
        shared.totals.add(&account, error.is_some());
        shared.talk.ended(&account, error, connection.refused());
        shared.negotiator.ended(connection.id, connection.came_up());
        let _ = epoll::delete(&self.watch, &connection.network);
        let (id, owner) = (connection.id, connection.held.owner);
        // Before the program sees the end: its requests after that are answered from the list of
        // failures.
        shared.held.remove(id);
        let name = failures::name_of_peer(&connection.program);
        let told = connection.held.has_told();
        let network = connection.close(error);
        if let Some(error) = error {
            self.failed.push((id, owner), error, told, network.zip(name));
        }
        self.count_off();
    }

    /// Counts off a connection that has ended.
    fn count_off(&self) {
        let shared = &self.context.shared;
        if shared.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = rustix::io::write(&shared.idle, &1u64.to_ne_bytes());
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Take { request, held, program } => self.take(&request, held, program),
            Order::Hear { id, event } => self.with(id, |connection, context| connection.hear(event, context)),
            Order::Encoded { serial, done } => {
                self.with_serial(serial, |connection, context| connection.encoded(*done, context))
            }
            Order::Decoded { serial, done } => {
                self.with_serial(serial, |connection, context| connection.decoded(*done, context))
            }
            Order::Failed { serial } => self.with_serial(serial, |connection, _| connection.failed()),
            Order::Snapshot { answer } => {
                let all = self.places.iter().flatten().map(|place| place.connection.account(&self.context)).collect();
                // The requester may be gone.
                let _ = answer.send(all);
            }
            Order::Ask { request, asker, socket } => {
                let (reply, give) = self.answer(&request, asker);
                let _ = reply_on(&socket, &reply, give);
            }
        }
    }

    fn with(&mut self, id: u64, act: impl FnOnce(&mut Connection, &mut PumpContext)) {
        let number = self.by_id.get(&id).copied();
        self.with_place(number, act);
    }

    fn with_serial(&mut self, serial: u64, act: impl FnOnce(&mut Connection, &mut PumpContext)) {
        let number = self.by_serial.get(&serial).copied();
        self.with_place(number, act);
    }

    fn with_place(&mut self, number: Option<usize>, act: impl FnOnce(&mut Connection, &mut PumpContext)) {
        let Some(number) = number else { return };
        if let Some(Some(place)) = self.places.get_mut(number) {
            act(&mut place.connection, &mut self.context);
            self.advance(number);
        }
    }

    fn take(&mut self, request: &Request, held: Arc<Held>, program: OwnedFd) {
        let connection = Connection::new(request, held, program, &mut self.context);
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.due.push(None);
            self.places.len() - 1
        });
        let network = EventFlags::IN | EventFlags::OUT | EventFlags::PRI | EventFlags::RDHUP | EventFlags::ET;
        let watched = epoll::add(&self.watch, &connection.network, data(number, NETWORK), network)
            .and_then(|()| epoll::add(&self.watch, &connection.program, data(number, PROGRAM), program_events(false)));
        self.by_id.insert(connection.id, number);
        self.by_serial.insert(connection.serial, number);
        self.places[number] =
            Some(Place { connection, course: Course::default(), watches_room: false, has_turn: false });
        if watched.is_err() {
            self.end(number, Some(Errno::NOBUFS));
        }
    }

    fn answer(&mut self, request: &Request, asker: Asker) -> (Reply, Option<Arc<OwnedFd>>) {
        let number = self.by_id.get(&request.id).copied();
        let Some(Some(Place { connection, .. })) = number.and_then(|n| self.places.get_mut(n)) else {
            return self.answer_ended(request, asker);
        };
        let reply = match request.kind {
            Kind::Urgent if !asker.owns(connection.held.owner) => Reply::new(libc::EPERM),
            Kind::OutQueue => {
                let len = i32::try_from(connection.out_queue()).unwrap_or(i32::MAX);
                Reply::new(0).with(&len.to_ne_bytes())
            }
            Kind::Urgent => {
                let taken = connection.send_urgent(request.value[0]);
                if let Some(number) = number {
                    self.advance(number);
                }
                Reply::new(if taken { 0 } else { libc::EAGAIN })
            }
            _ => Reply::new(libc::EINVAL),
        };
        (reply, None)
    }

    /// Answers a request about a connection that has ended.
    fn answer_ended(&mut self, request: &Request, asker: Asker) -> (Reply, Option<Arc<OwnedFd>>) {
        if request.kind == Kind::TakeBack && self.failed.find(request.id).is_some_and(|f| asker.owns(f.owner)) {
            return (Reply::new(0), self.failed.take_back(request.id));
        }
        match (request.kind, self.failed.find(request.id)) {
            (Kind::State, Some(failed)) => {
                let error = failed.error.raw_os_error();
                let status = match request.number {
                    wire::BY_CONNECT if failed.ended_connect => 0,
                    // As in the kernel, a failed attempt must be ended by a `connect`, even if its
                    // error is known already.
                    wire::BY_CONNECT if failed.told => libc::ECONNABORTED,
                    _ if failed.told => 0,
                    _ => error,
                };
                // What is told only once is for the connection's own program.
                if asker.owns(failed.owner) {
                    failed.told |= request.number != wire::BY_NAME;
                    failed.ended_connect |= request.number == wire::BY_CONNECT;
                }
                (Reply::new(status).with(&[State::Failed as u8]), None)
            }
            (Kind::State, None) => (Reply::new(0).with(&[State::Gone as u8]), None),
            // The connection ended while this order waited.
            (Kind::OutQueue, _) => (Reply::new(0).with(&0i32.to_ne_bytes()), None),
            _ => (Reply::new(libc::ENOTCONN), None),
        }
    }
}

fn data(number: usize, which: u64) -> EventData {
    EventData::new_u64((number as u64) << 1 | which)
}

/// Room is watched only while it is missing, because otherwise every read of the program would be
/// an event.
fn program_events(room: bool) -> EventFlags {
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    if room { flags | EventFlags::OUT } else { flags }
}

pub(crate) fn reply_on(socket: &OwnedFd, reply: &Reply, give: Option<Arc<OwnedFd>>) -> rustix::io::Result<()> {
    let bytes: [u8; REPLY_LEN] = reply.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let Some(give) = give else { return send(socket, &bytes, flags).map(drop) };
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [give.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags).map(drop)
}

#[cfg(test)]
mod tests;
