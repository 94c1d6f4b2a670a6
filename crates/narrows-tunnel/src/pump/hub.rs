//! The descriptors that are watched: what each of them is, when it wants to be called, and whose turn it is.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::carriers::CarrierPlace;
use super::conn::{Conn, Stage};
use super::dialing::Dialing;
use super::listeners::{ListenerPlace, Undecided};
use super::strangers::Stranger;
use crate::engine::Key;

/// Of the bell.
const BELL: u64 = u64::MAX;

/// A descriptor, and what it is.
struct Place {
    generation: u32,
    kind: Option<Kind>,
    /// When it wants to be called.
    due_ns: Option<u64>,
    /// It has its turn soon.
    queued: bool,
}

pub(super) enum Kind {
    Listener(ListenerPlace),
    Undecided(Box<Undecided>),
    Stranger(Box<Stranger>),
    Dialing(Box<Dialing>),
    Carrier(Box<CarrierPlace>),
    Conn(Box<Conn>),
}

impl Kind {
    /// What is watched of it, if it has something now.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Listener(place) => Some(place.listener.as_fd()),
            Self::Undecided(undecided) => Some(undecided.socket.as_fd()),
            Self::Stranger(stranger) => Some(stranger.wire.socket.as_fd()),
            Self::Dialing(dialing) => dialing.socket.as_ref().map(AsFd::as_fd),
            Self::Carrier(carrier) => Some(carrier.wire.socket.as_fd()),
            Self::Conn(conn) => match &conn.stage {
                Stage::Open(socket) | Stage::Connecting { socket, .. } => Some(socket.as_fd()),
                Stage::Finding { .. } | Stage::Knocking { .. } | Stage::Closed => None,
            },
        }
    }
}

pub(super) struct Hub {
    watch: OwnedFd,
    bell: Arc<OwnedFd>,
    places: Vec<Place>,
    free: Vec<u32>,
    timers: BTreeSet<(u64, Key)>,
    turns: VecDeque<Key>,
    /// Of strangers, whose handshakes are to hold up nobody.
    stranger_turns: VecDeque<Key>,
}

impl Hub {
    /// `watch` is that of the bell.
    pub(super) fn new(watch: OwnedFd, bell: Arc<OwnedFd>) -> Self {
        let (turns, stranger_turns) = (VecDeque::new(), VecDeque::new());
        Self { watch, bell, places: Vec::new(), free: Vec::new(), timers: BTreeSet::new(), turns, stranger_turns }
    }

    /// Waits until something happens, for this time at most.
    pub(super) fn wait(&self, events: &mut Vec<Event>, limit: Option<Duration>) -> Result<(), Errno> {
        events.clear();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.watch, rustix::buffer::spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Whom an event is for. The bell is for nobody, and hears the next ring.
    pub(super) fn about(&self, event: &Event) -> Option<Key> {
        let about = event.data.u64();
        if about == BELL {
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        }
        (about != BELL).then_some(about)
    }

    // --- places ---

    /// Makes a place, and watches what it has.
    pub(super) fn add(&mut self, kind: Kind) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, kind: None, due_ns: None, queued: false });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.kind = Some(kind);
        let key = key_of(index as usize, place);
        self.watch(key);
        key
    }

    /// Watches what a place has for everything, edge-triggered. What is watched already gets a new key.
    pub(super) fn watch(&mut self, key: Key) {
        let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(key);
        let Some(fd) = self.places[key as u32 as usize].kind.as_ref().and_then(Kind::fd) else { return };
        // It fails only without memory; then the connection stalls and its timers end it.
        if epoll::add(&self.watch, fd, data, flags) == Err(Errno::EXIST) {
            let _ = epoll::modify(&self.watch, fd, data, flags);
        }
    }

    fn place(&mut self, key: Key) -> Option<&mut Place> {
        let place = self.places.get_mut(key as u32 as usize)?;
        (place.generation == (key >> 32) as u32 && place.kind.is_some()).then_some(place)
    }

    pub(super) fn kind(&mut self, key: Key) -> Option<&mut Kind> {
        self.place(key)?.kind.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Kind)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, place)| Some((key_of(index, place), place.kind.as_ref()?)))
    }

    /// Takes a place away. Its descriptor leaves the watch when it is closed.
    pub(super) fn take(&mut self, key: Key) -> Option<Kind> {
        self.set_timer(key, None);
        let place = self.place(key)?;
        let kind = place.kind.take();
        place.queued = false;
        self.free.push(key as u32);
        kind
    }

    // --- times and turns ---

    pub(super) fn set_timer(&mut self, key: Key, at_ns: Option<u64>) {
        let Some(place) = self.place(key) else { return };
        let old = std::mem::replace(&mut place.due_ns, at_ns);
        if old != at_ns {
            if let Some(old) = old {
                self.timers.remove(&(old, key));
            }
            self.timers.extend(at_ns.map(|at| (at, key)));
        }
    }

    /// When the first place wants to be called.
    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        self.timers.first().map(|(at_ns, _)| *at_ns)
    }

    /// Who is to be called now.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Key> {
        let (_, key) = self.timers.first().copied().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.set_timer(key, None);
        Some(key)
    }

    /// Gives a place a turn.
    pub(super) fn queue(&mut self, key: Key) {
        if let Some(place) = self.place(key).filter(|place| !place.queued) {
            place.queued = true;
            let is_stranger = matches!(place.kind, Some(Kind::Stranger(_)));
            if is_stranger { self.stranger_turns.push_back(key) } else { self.turns.push_back(key) }
        }
    }

    /// Turns of others than strangers, and those of strangers.
    pub(super) fn turns(&self) -> [usize; 2] {
        [self.turns.len(), self.stranger_turns.len()]
    }

    pub(super) fn take_turn(&mut self) -> Option<Key> {
        let key = self.turns.pop_front()?;
        self.has_turn(key);
        Some(key)
    }

    pub(super) fn take_stranger_turn(&mut self) -> Option<Key> {
        let key = self.stranger_turns.pop_front()?;
        self.has_turn(key);
        Some(key)
    }

    fn has_turn(&mut self, key: Key) {
        if let Some(place) = self.place(key) {
            place.queued = false;
        }
    }
}

/// Begins to watch the bell.
pub(super) fn watch(bell: &OwnedFd) -> std::io::Result<OwnedFd> {
    let watch = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&watch, bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
    Ok(watch)
}

fn key_of(index: usize, place: &Place) -> Key {
    u64::from(place.generation) << 32 | index as u64
}
