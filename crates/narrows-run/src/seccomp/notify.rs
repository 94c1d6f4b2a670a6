//! The thread that answers the kernel's questions about system calls.
//!
//! Answers take microseconds and none waits for the network: a call that has to wait is put aside,
//! watched by epoll, and continued later. Waiting calls are also checked periodically, because no
//! event tells that their process has ended or has a signal to take.

use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::kept::{Marks, Untaken};
use super::options::{LOOKED_MAX, readable};
use super::target::{Signals, Target, domain};
use super::watchdog;
use super::{Gateways, Intake, Watchdog, sys};
use crate::wire::{Name, RawAddress, Scope};
use narrows_host::words;

/// Interval of these checks: how late a signal or a timeout may reach a waiting call.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Waiting calls checked each time, in turn; one check takes some 20 us.
const LOOKS: usize = 64;
/// ERESTARTSYS, the kernel's internal answer when a signal ends a call: it restarts the call or
/// returns EINTR, as the signal's handler wants. Programs never see it if their thread really has a
/// signal pending.
const RESTART: i32 = 512;

/// A system call that the kernel asks about.
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) number: libc::c_long,
    pub(super) args: [u64; 6],
    pub(super) target: Target,
}

impl Call {
    pub(super) fn int(&self, n: usize) -> i32 {
        self.args[n] as i32
    }
}

pub(super) enum Answer {
    /// The kernel does the call itself. Only if nothing was done yet, or the result is the same.
    GoOn,
    Value(i64),
    Fail(i32),
    /// A descriptor was given, which was also the answer.
    Given,
    Wait(Waiting),
}

/// A waiting call: what it waits for.
pub(super) struct Waiting {
    pub(super) socket: OwnedFd,
    pub(super) what: What,
    /// Deadline from SO_RCVTIMEO or SO_SNDTIMEO.
    pub(super) until: Option<Instant>,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    Accept,
    /// `further`: the attempt was started by an earlier call.
    Connect {
        number: i32,
        peer: RawAddress,
        closes_on_exec: bool,
        further: bool,
    },
    /// `connect` on a connection that is already swapped.
    Made {
        name: Name,
        further: bool,
    },
    /// Bytes to discard.
    Discard,
    /// Room to send the rest of a message, of which this much was sent.
    Send {
        sent: usize,
    },
    /// A peek at `wanted` bytes. The socket stays readable meanwhile, so it is checked
    /// periodically.
    Look {
        wanted: usize,
    },
}

impl What {
    /// The answer to a call for which there is no place to wait.
    fn without_place(self) -> Answer {
        match self {
            Self::Accept | Self::Connect { .. } | Self::Look { .. } => Answer::GoOn,
            Self::Made { .. } => Answer::Fail(libc::EINPROGRESS),
            // A unix socket refuses a call without a buffer. Programs retry after EINTR, whereas a
            // blocking one takes EAGAIN for a timeout.
            Self::Discard | Self::Send { sent: 0 } => Answer::Fail(libc::EINTR),
            Self::Send { sent } => Answer::Value(sent as i64),
        }
    }

    /// Whether the kernel cannot do the call, because the socket is already a unix socket.
    fn is_swapped(self) -> bool {
        matches!(self, Self::Made { .. } | Self::Discard | Self::Send { .. })
    }
}

struct Wait {
    call: Call,
    waiting: Waiting,
    /// At the previous check a signal was pending that another thread might take.
    signalled: bool,
}

pub(super) struct Notifier {
    pub(super) listener: OwnedFd,
    /// Only fatal signals interrupt a call that was received.
    pub(super) killable: bool,
    pub(super) intake: Intake,
    pub(super) scope: Scope,
    pub(super) gateways: Option<Gateways>,
    /// Security domain of this process.
    pub(super) domain: Option<String>,
    pub(super) marks: Marks,
    pub(super) untaken: Untaken,
    pub(super) watchdog: Watchdog,
    watch: OwnedFd,
    waits: Vec<Option<Wait>>,
    waiting: usize,
    looked: Instant,
    next_look: usize,
}

/// Starts the answering thread, which runs until no process is or could come under the filter. The
/// listener arrives on `to`.
pub(crate) fn start(
    intake: Intake,
    scope: Scope,
    gateways: Option<Gateways>,
    to: OwnedFd,
    watchdog: Watchdog,
) -> Result<()> {
    let watch = epoll::create(CreateFlags::CLOEXEC)?;
    intake.begin();
    let begun = intake.clone();
    let thread = thread::Builder::new().name("narrows-seccomp".into()).spawn(move || {
        match super::listener(&to) {
            Some(listener) => answer_all(listener, intake.clone(), (scope, gateways), watchdog, watch),
            None if intake.shared.talk.verbose => {
                words::note("the kernel rejected the filter: all connections stay plain")
            }
            None => {}
        }
        intake.end();
    });
    thread.map(drop).inspect_err(|_| begun.end())
}

fn answer_all(
    (listener, killable): (OwnedFd, bool),
    intake: Intake,
    (scope, gateways): (Scope, Option<Gateways>),
    watchdog: Watchdog,
    watch: OwnedFd,
) {
    let watched = epoll::add(&watch, &listener, EventData::new_u64(LISTENER), EventFlags::IN);
    if watched.is_err() || !sys::adds(listener.as_fd()) {
        return watchdog::let_go_on(&listener, &watchdog.open);
    }
    let untaken = Untaken::new(intake.budget.untaken);
    let mut notifier = Notifier {
        listener,
        killable,
        intake,
        scope,
        gateways,
        domain: domain(std::process::id() as i32),
        marks: Marks::default(),
        untaken,
        watchdog,
        watch,
        waits: Vec::new(),
        waiting: 0,
        looked: Instant::now(),
        next_look: 0,
    };
    // The watchdog does not notice a panic in a thread, and an unanswered call would never return.
    if catch_unwind(AssertUnwindSafe(|| notifier.run())).is_err() {
        watchdog::let_go_on(&notifier.listener, &notifier.watchdog.open);
    }
}

const LISTENER: u64 = u64::MAX;
/// Event data: the place of a waiting call, doubled, plus whether it is its socket or its process.
const SOCKET: u64 = 0;
const PROCESS: u64 = 1;

impl Notifier {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        let tick = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
        loop {
            events.clear();
            let looks = self.waiting > 0 || !self.untaken.is_empty();
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), looks.then_some(&tick));
            for event in &events {
                let (about, flags) = (event.data.u64(), event.flags);
                if about != LISTENER {
                    self.woken((about >> 1) as usize);
                } else if flags.contains(EventFlags::IN) {
                    self.hear();
                } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                    return;
                }
            }
            if looks && self.looked.elapsed() >= LOOK_EVERY {
                self.look();
                self.untaken.forget_old();
                self.looked = Instant::now();
            }
        }
    }

    pub(super) fn is_valid(&self, call: &Call) -> bool {
        sys::is_valid(self.listener.as_fd(), call.id)
    }

    fn hear(&mut self) {
        let Ok(question) = sys::receive(self.listener.as_fd()) else { return };
        let number: libc::c_long = question.data.nr.into();
        let socket = question.data.args[0] as i32;
        self.watchdog.open.begins(question.id, question.pid, socket, number);
        let Ok(target) = Target::open(question.pid) else { return self.respond(question.id, &Answer::GoOn) };
        let call = Call { id: question.id, number, args: question.data.args, target };
        // Only a valid question proves that the opened target is the process that asked.
        let answer = if self.is_valid(&call) { self.answer(&call) } else { Answer::GoOn };
        self.finish(call, answer);
    }

    fn finish(&mut self, call: Call, answer: Answer) {
        let Answer::Wait(waiting) = answer else { return self.respond(call.id, &answer) };
        let (id, what) = (call.id, waiting.what);
        if !self.put_aside(Wait { call, waiting, signalled: false }) {
            self.respond(id, &what.without_place());
        }
    }

    /// Whether one more call may wait.
    pub(super) fn can_wait(&self) -> bool {
        self.waiting < self.intake.budget.waits
    }

    fn respond(&self, id: u64, answer: &Answer) {
        let (value, error, go_on) = match answer {
            Answer::Value(value) => (*value, 0, false),
            Answer::Fail(error) => (0, *error, false),
            Answer::Given => return self.watchdog.open.ends(),
            Answer::GoOn | Answer::Wait(_) => (0, 0, true),
        };
        // A process that is gone needs no answer.
        let _ = sys::respond(self.listener.as_fd(), id, value, error, go_on);
        self.watchdog.open.ends();
    }

    /// Lets a call wait. False if it cannot.
    fn put_aside(&mut self, wait: Wait) -> bool {
        let place = self.waits.iter().position(Option::is_none).unwrap_or(self.waits.len());
        if place >= self.intake.budget.waits {
            return false;
        }
        let ready = match wait.waiting.what {
            What::Accept | What::Discard => EventFlags::IN,
            What::Connect { .. } | What::Made { .. } | What::Send { .. } => EventFlags::OUT,
            What::Look { .. } => EventFlags::RDHUP,
        };
        let data = |which| EventData::new_u64((place as u64) << 1 | which);
        let once = EventFlags::ONESHOT;
        let watched = epoll::add(&self.watch, &wait.waiting.socket, data(SOCKET), ready | once)
            .and_then(|()| epoll::add(&self.watch, &wait.call.target.pidfd, data(PROCESS), EventFlags::IN | once));
        if watched.is_err() {
            let _ = epoll::delete(&self.watch, &wait.waiting.socket);
            return false;
        }
        if place == self.waits.len() {
            self.waits.push(None);
        }
        self.watchdog.open.waits(place, wait.call.id, wait.waiting.what.is_swapped());
        self.watchdog.open.ends();
        self.waits[place] = Some(wait);
        self.waiting += 1;
        true
    }

    fn take_up(&mut self, place: usize) -> Option<Wait> {
        let wait = self.waits.get_mut(place)?.take()?;
        // The program has the same socket, so closing ours would not end the epoll registration.
        let _ = epoll::delete(&self.watch, &wait.waiting.socket);
        let _ = epoll::delete(&self.watch, &wait.call.target.pidfd);
        self.waiting -= 1;
        let Call { id, number, .. } = wait.call;
        self.watchdog.open.begins(id, wait.call.target.tid(), wait.call.int(0), number);
        self.watchdog.open.waits_no_more(place);
        Some(wait)
    }

    /// The socket of the call at `place` is ready, or its process has ended; or the event is about
    /// an earlier call at this place.
    fn woken(&mut self, place: usize) {
        let Some(Wait { call, waiting, .. }) = self.take_up(place) else { return };
        if self.is_valid(&call) {
            let answer = self.again(&call, waiting);
            self.finish(call, answer);
        } else {
            self.watchdog.open.ends();
        }
    }

    /// Checks some of the waiting calls.
    fn look(&mut self) {
        for _ in 0..LOOKS.min(self.waits.len()) {
            self.next_look = (self.next_look + 1) % self.waits.len();
            if let Some(answer) = self.overdue(self.next_look)
                && let Some(wait) = self.take_up(self.next_look)
            {
                self.respond(wait.call.id, &answer);
            }
        }
    }

    /// The answer to a waiting call for which nothing came, if it must be answered.
    fn overdue(&mut self, place: usize) -> Option<Answer> {
        let valid = |call: &Call| sys::is_valid(self.listener.as_fd(), call.id);
        let wait = self.waits.get_mut(place)?.as_mut()?;
        if !valid(&wait.call) {
            return Some(Answer::GoOn);
        }
        let over = wait.waiting.until.is_some_and(|until| until <= Instant::now());
        if let What::Look { wanted } = wait.waiting.what {
            let seen = readable(&wait.waiting.socket);
            // A signal ends the call with the bytes it has.
            let signalled = self.killable && wait.call.target.signals() != Signals::None;
            if seen > 0 && (over || signalled || seen >= wanted.min(LOOKED_MAX)) {
                return Some(Answer::GoOn);
            }
        }
        if let What::Send { sent: sent @ 1.. } = wait.waiting.what {
            // What was sent cannot be taken back: the call ends with it.
            let signalled = self.killable && wait.call.target.signals() != Signals::None;
            return (over || signalled).then_some(Answer::Value(sent as i64));
        }
        if over {
            return Some(Answer::Fail(match wait.waiting.what {
                What::Accept | What::Discard | What::Look { .. } | What::Send { .. } => libc::EAGAIN,
                What::Connect { further: true, .. } | What::Made { further: true, .. } => libc::EALREADY,
                What::Connect { .. } | What::Made { .. } => libc::EINPROGRESS,
            }));
        }
        if !self.killable {
            return None;
        }
        match wait.call.target.signals() {
            Signals::None => wait.signalled = false,
            // The kernel does not restart a call that has a timeout.
            Signals::Ours if wait.waiting.until.is_none() => return Some(Answer::Fail(RESTART)),
            Signals::Ours => return Some(Answer::Fail(libc::EINTR)),
            Signals::Somebodys if !wait.signalled => wait.signalled = true,
            // No other thread took the signal, so all threads are waiting. Only the kernel knows
            // whether this thread gets it: it ends the call, or continues to wait and the
            // connection is plain. `RESTART` could reach a program without a signal.
            Signals::Firsts | Signals::Somebodys if wait.waiting.until.is_none() && !wait.waiting.what.is_swapped() => {
                return Some(Answer::GoOn);
            }
            // The kernel would wait for the full timeout again, and cannot do the call on a swapped
            // socket.
            Signals::Firsts | Signals::Somebodys => return Some(Answer::Fail(libc::EINTR)),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `connect` and a `recv` without a buffer fail differently on a unix socket.
    #[test]
    fn the_kernel_is_left_no_call_that_it_cannot_do() {
        let name = Name { id: 1, was_connecting: true, local: [0; 28], peer: [0; 28] };
        let made = What::Made { name, further: false };
        let connect = What::Connect { number: 3, peer: [0; 28], closes_on_exec: false, further: false };
        let send = What::Send { sent: 0 };
        for (what, swapped) in
            [(What::Accept, false), (connect, false), (made, true), (What::Discard, true), (send, true)]
        {
            assert_eq!(what.is_swapped(), swapped);
            assert_eq!(matches!(what.without_place(), Answer::GoOn), !swapped);
        }
        assert!(matches!(What::Discard.without_place(), Answer::Fail(libc::EINTR)));
        // Bytes that were sent are not sent again.
        assert!(matches!(What::Send { sent: 7 }.without_place(), Answer::Value(7)));
    }
}
