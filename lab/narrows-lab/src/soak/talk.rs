//! One end of a connection: both directions, each checked byte by byte, with two blocking threads
//! or one polling thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::content::{Behaviour, Content, HEAD_LEN, Key, Pace};
use super::record::{End, Field, Slot, now_ns};

/// Time without progress that counts as a hang: ten times all pauses of a direction at both ends.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Calls of one connection before the others get a turn.
const TURN: usize = 8;
const TICK: Duration = Duration::from_millis(50);

enum Step {
    Moved,
    Pause(Duration),
    Blocked,
    Ended,
}

struct Sending {
    head: Vec<u8>,
    content: Content,
    len: u64,
    at: u64,
    pace: Pace,
    buffer: Vec<u8>,
}

struct Receiving {
    /// The part of the client's head received so far.
    head: Vec<u8>,
    content: Option<Content>,
    len: u64,
    at: u64,
    pace: Pace,
    buffer: Vec<u8>,
    end: Option<End>,
}

pub(super) struct Talk {
    socket: TcpStream,
    slot: Slot,
    server: bool,
    behaviour: Option<Behaviour>,
    one_way: bool,
    sending: Option<Sending>,
    receiving: Receiving,
}

impl Sending {
    fn new(head: Vec<u8>, seed: u64, len: u64, pace: Pace) -> Self {
        Self { head, content: Content::new(seed), len, at: 0, pace, buffer: Vec::new() }
    }

    fn step(&mut self, mut socket: &TcpStream, slot: &Slot) -> Step {
        let total = self.head.len() as u64 + self.len;
        if self.at == total {
            // This fails if the connection is broken, which reading reports.
            let _ = socket.shutdown(Shutdown::Write);
            slot.end_writing(End::Whole);
            return Step::Ended;
        }
        let wanted = self.pace.len().min((total - self.at) as usize);
        self.buffer.clear();
        while self.buffer.len() < wanted {
            let at = self.at + self.buffer.len() as u64;
            let rest = match at.checked_sub(self.head.len() as u64) {
                None => &self.head[at as usize..],
                Some(at) => self.content.at(at),
            };
            self.buffer.extend_from_slice(&rest[..rest.len().min(wanted - self.buffer.len())]);
        }
        slot.set(Field::Attempted, self.at + wanted as u64);
        match socket.write(&self.buffer) {
            Ok(n) => {
                self.at += n as u64;
                slot.set(Field::Written, self.at);
                self.pace.pause().map_or(Step::Moved, Step::Pause)
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Step::Moved,
            Err(e) if e.kind() == ErrorKind::WouldBlock => Step::Blocked,
            Err(e) => {
                slot.end_writing(End::from(&e));
                Step::Ended
            }
        }
    }
}

impl Receiving {
    fn new(content: Option<Content>, len: u64, pace: Pace) -> Self {
        Self { head: Vec::new(), content, len, at: 0, pace, buffer: Vec::new(), end: None }
    }

    fn step(&mut self, mut socket: &TcpStream, slot: &Slot) -> Step {
        // Read no further than the head, which names the content that follows.
        let most = if self.content.is_none() { HEAD_LEN - self.head.len() } else { usize::MAX };
        let wanted = self.pace.len().min(most);
        self.buffer.resize(wanted, 0);
        let end = match socket.read(&mut self.buffer) {
            Ok(0) if self.content.is_some() && self.at == self.len => End::Whole,
            Ok(0) => End::Short,
            Ok(n) => match self.check(n) {
                Some(end) => end,
                None => {
                    slot.set(Field::Read, self.head.len() as u64 + self.at);
                    return self.pace.pause().map_or(Step::Moved, Step::Pause);
                }
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => return Step::Moved,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Blocked,
            Err(e) => End::from(&e),
        };
        self.finish(end, slot)
    }

    fn finish(&mut self, end: End, slot: &Slot) -> Step {
        self.end = Some(end);
        slot.end_reading(end);
        Step::Ended
    }

    /// Checks the first `n` bytes of the buffer; returns the fault, if any.
    fn check(&mut self, n: usize) -> Option<End> {
        let mut input = &self.buffer[..n];
        let Some(content) = &mut self.content else {
            self.head.extend_from_slice(input);
            return None;
        };
        while !input.is_empty() {
            if self.at == self.len {
                return Some(End::TooMuch);
            }
            let wanted = content.at(self.at);
            let len = wanted.len().min(input.len()).min((self.len - self.at) as usize);
            if input[..len] != wanted[..len] {
                return Some(End::Wrong);
            }
            self.at += len as u64;
            input = &input[len..];
        }
        None
    }
}

impl Talk {
    /// The client's end. The slot already has the time of `Begun`.
    pub(super) fn client(socket: TcpStream, slot: Slot, key: Key, one_way: bool) -> Self {
        let behaviour = if one_way { Behaviour::of(key.seed).one_way() } else { Behaviour::of(key.seed) };
        let (up, down) = (behaviour.up.clone(), behaviour.down.clone());
        let mut receiving = Receiving::new(Some(Content::new(down.seed)), down.len, down.reads);
        if behaviour.careless {
            receiving.finish(End::Whole, &slot);
        }
        let sending = Some(Sending::new(key.head(), up.seed, up.len, up.writes));
        Self { socket, slot, server: false, behaviour: Some(behaviour), one_way, sending, receiving }
    }

    /// The server's end, which learns its behaviour from the client's head.
    pub(super) fn server(socket: TcpStream, slot: Slot, one_way: bool) -> Self {
        let receiving = Receiving::new(None, 0, Behaviour::of(0).up.reads);
        Self { socket, slot, server: true, behaviour: None, one_way, sending: None, receiving }
    }

    fn receive(&mut self) -> Step {
        let step = self.receiving.step(&self.socket, &self.slot);
        if self.behaviour.is_none() && self.receiving.head.len() >= HEAD_LEN {
            self.learn();
            if self.receiving.end.is_some() {
                return Step::Ended;
            }
        }
        step
    }

    fn learn(&mut self) {
        let Some(key) = self.receiving.head.first_chunk().and_then(Key::parse) else {
            self.receiving.finish(End::Foreign, &self.slot);
            return;
        };
        self.slot.set_key(key);
        let behaviour = if self.one_way { Behaviour::of(key.seed).one_way() } else { Behaviour::of(key.seed) };
        let receiving = &mut self.receiving;
        (receiving.content, receiving.len) = (Some(Content::new(behaviour.up.seed)), behaviour.up.len);
        receiving.pace = behaviour.up.reads.clone();
        let down = behaviour.down.clone();
        self.sending = Some(Sending::new(Vec::new(), down.seed, down.len, down.writes));
        self.behaviour = Some(behaviour);
    }

    /// Whether this is a server that sends only after it has received everything.
    fn replies(&self) -> bool {
        self.server && self.behaviour.as_ref().is_some_and(|p| p.replies)
    }

    /// Drops a pending reply if the connection broke before it could be sent.
    fn give_up_reply(&mut self) {
        let broken = self.receiving.end.is_some_and(|e| e != End::Whole);
        if broken && self.replies() {
            self.sending = None;
        }
    }

    fn close(self) {
        drop(self.socket);
        self.slot.set(Field::Closed, now_ns());
    }

    /// Writes everything but does not end the stream.
    pub(super) fn write_all(mut self) -> anyhow::Result<()> {
        let Some(mut sending) = self.sending.take() else { return Ok(()) };
        while sending.at < HEAD_LEN as u64 + sending.len {
            match sending.step(&self.socket, &self.slot) {
                Step::Pause(pause) => thread::sleep(pause),
                Step::Moved => {}
                Step::Blocked | Step::Ended => anyhow::bail!("writing failed after {} bytes", sending.at),
            }
        }
        // Leave the socket open: the kernel closes it when the program is killed.
        std::mem::forget(self.socket);
        Ok(())
    }

    // --- a thread for each direction ---

    pub(super) fn block(mut self) {
        let _ = self.socket.set_read_timeout(Some(PATIENCE));
        let _ = self.socket.set_write_timeout(Some(PATIENCE));
        while self.receiving.end.is_none() && (self.behaviour.is_none() || self.replies()) {
            match self.receive() {
                Step::Pause(pause) => thread::sleep(pause),
                Step::Blocked => drop(self.receiving.finish(End::Hang, &self.slot)),
                Step::Moved | Step::Ended => {}
            }
        }
        self.give_up_reply();
        let Self { socket, slot, sending, receiving, .. } = &mut self;
        let (socket, slot) = (&*socket, &*slot);
        thread::scope(|scope| {
            if let Some(sending) = sending {
                let send = move || {
                    loop {
                        match sending.step(socket, slot) {
                            Step::Moved => {}
                            Step::Pause(pause) => thread::sleep(pause),
                            Step::Blocked => return slot.end_writing(End::Hang),
                            Step::Ended => return,
                        }
                    }
                };
                scope.spawn(send);
            }
            while receiving.end.is_none() {
                match receiving.step(socket, slot) {
                    Step::Moved | Step::Ended => {}
                    Step::Pause(pause) => thread::sleep(pause),
                    Step::Blocked => drop(receiving.finish(End::Hang, slot)),
                }
            }
        });
        self.close();
    }
}

/// The source of connections of a polling thread.
pub(super) trait Source {
    fn listener(&self) -> Option<&TcpListener>;

    /// The next connection, if one is available. `open` is the number of open ones.
    fn next(&mut self, open: usize) -> Option<Talk>;

    /// Whether there will be no more connections.
    fn is_over(&self) -> bool;
}

struct Polled {
    talk: Talk,
    moved: Instant,
    /// Times at which reading and writing resume.
    due: [Instant; 2],
}

impl Polled {
    fn wants(&self, now: Instant) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.talk.receiving.end.is_none() && self.due[0] <= now);
        let waits = self.talk.replies() && self.talk.receiving.end.is_none();
        let sends = self.talk.sending.is_some() && !waits;
        flags.set(PollFlags::OUT, sends && self.due[1] <= now);
        flags
    }

    fn turn(&mut self, events: PollFlags, now: Instant) {
        let broken = PollFlags::ERR | PollFlags::HUP;
        let wanted = self.wants(now);
        if wanted.contains(PollFlags::IN) && events.intersects(PollFlags::IN | broken) {
            for _ in 0..TURN {
                match self.talk.receive() {
                    Step::Moved => self.moved = now,
                    Step::Pause(pause) => {
                        (self.moved, self.due[0]) = (now, now + pause);
                        break;
                    }
                    Step::Blocked => break,
                    Step::Ended => {
                        self.moved = now;
                        self.talk.give_up_reply();
                        break;
                    }
                }
            }
        }
        if wanted.contains(PollFlags::OUT) && events.intersects(PollFlags::OUT | broken) {
            for _ in 0..TURN {
                let talk = &mut self.talk;
                let Some(sending) = &mut talk.sending else { break };
                match sending.step(&talk.socket, &talk.slot) {
                    Step::Moved => self.moved = now,
                    Step::Pause(pause) => {
                        (self.moved, self.due[1]) = (now, now + pause);
                        break;
                    }
                    Step::Blocked => break,
                    Step::Ended => {
                        (self.moved, talk.sending) = (now, None);
                    }
                }
            }
        }
        if now - self.moved > PATIENCE {
            if self.talk.receiving.end.is_none() {
                self.talk.receiving.finish(End::Hang, &self.talk.slot);
            }
            if self.talk.sending.take().is_some() {
                self.talk.slot.end_writing(End::Hang);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.talk.receiving.end.is_some() && self.talk.sending.is_none()
    }
}

/// Runs all connections of a program in this thread until the source is over and none is open.
pub(super) fn polled(source: &mut dyn Source, stop: &AtomicBool) {
    let mut open: Vec<Polled> = Vec::new();
    loop {
        while let Some(talk) = source.next(open.len()) {
            let now = Instant::now();
            if talk.socket.set_nonblocking(true).is_ok() {
                open.push(Polled { talk, moved: now, due: [now; 2] });
            }
        }
        if open.is_empty() && source.is_over() && stop.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let wanted: Vec<(usize, PollFlags)> =
            open.iter().map(|p| p.wants(now)).enumerate().filter(|(_, flags)| !flags.is_empty()).collect();
        let due = open.iter().flat_map(|p| p.due).filter(|due| *due > now).min().map_or(TICK, |due| due - now);
        let mut fds: Vec<PollFd> = wanted.iter().map(|(i, flags)| PollFd::new(&open[*i].talk.socket, *flags)).collect();
        fds.extend(source.listener().map(|l| PollFd::new(l, PollFlags::IN)));
        let wait = due.min(TICK);
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()).max(1_000_000) };
        let _ = poll(&mut fds, Some(&wait));
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let now = Instant::now();
        let mut seen = vec![PollFlags::empty(); open.len()];
        wanted.iter().zip(&events).for_each(|((i, _), events)| seen[*i] = *events);
        for (polled, events) in open.iter_mut().zip(seen) {
            polled.turn(events, now);
        }
        let (over, left): (Vec<_>, Vec<_>) = open.into_iter().partition(Polled::is_over);
        over.into_iter().for_each(|p| p.talk.close());
        open = left;
    }
}
