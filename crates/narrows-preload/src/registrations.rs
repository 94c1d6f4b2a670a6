//! Epoll registrations of sockets that are not connected yet, which a swap must renew.
//!
//! Only those made before `connect` are kept: servers like nginx register first and connect next.
//! Registrations made later are the kernel's business.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sys;

/// Places. A socket is here from its registration to its `connect`, so few are at a time. One that
/// finds no place stays plain.
const PLACES: usize = 512;

struct Place {
    state: AtomicU32,
    epoll: AtomicI32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

const FREE: u32 = 0;
const BUSY: u32 = 1;
const FULL: u32 = 2;

static PLACE: [Place; PLACES] = [const {
    Place {
        state: AtomicU32::new(FREE),
        epoll: AtomicI32::new(-1),
        fd: AtomicI32::new(-1),
        events: AtomicU32::new(0),
        data: AtomicU64::new(0),
    }
}; PLACES];
/// Places in use. Usually none is, and then none is searched.
static USED: AtomicUsize = AtomicUsize::new(0);

fn of(fd: c_int) -> impl Iterator<Item = &'static Place> {
    let places = if USED.load(Ordering::Relaxed) == 0 { &PLACE[..0] } else { &PLACE[..] };
    places.iter().filter(move |p| p.state.load(Ordering::Acquire) == FULL && p.fd.load(Ordering::Relaxed) == fd)
}

fn free(place: &Place) {
    if place.state.compare_exchange(FULL, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        USED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Records a registration. False if there is no room.
pub(crate) fn added(epoll: c_int, fd: c_int, events: u32, data: u64) -> bool {
    for place in &PLACE {
        if place.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            USED.fetch_add(1, Ordering::Relaxed);
            place.epoll.store(epoll, Ordering::Relaxed);
            place.fd.store(fd, Ordering::Relaxed);
            place.events.store(events, Ordering::Relaxed);
            place.data.store(data, Ordering::Relaxed);
            place.state.store(FULL, Ordering::Release);
            return true;
        }
    }
    false
}

pub(crate) fn changed(epoll: c_int, fd: c_int, events: u32, data: u64) {
    for place in of(fd).filter(|p| p.epoll.load(Ordering::Relaxed) == epoll) {
        place.events.store(events, Ordering::Relaxed);
        place.data.store(data, Ordering::Relaxed);
    }
}

pub(crate) fn removed(epoll: c_int, fd: c_int) {
    of(fd).filter(|p| p.epoll.load(Ordering::Relaxed) == epoll).for_each(free);
}

/// Forgets the registrations of a number that is something else from here on.
pub(crate) fn forget(fd: c_int) {
    of(fd).for_each(free);
}

/// Runs `replace`, which puts another socket under the number `fd`, and renews the registrations.
pub(crate) fn across(fd: c_int, replace: impl FnOnce() -> sys::Answer) -> sys::Answer {
    // A registration that cannot be removed is out of date, and is not renewed.
    of(fd).filter(|p| sys::epoll_remove(p.epoll.load(Ordering::Relaxed), fd).is_err()).for_each(free);
    let answer = replace();
    for place in of(fd) {
        let (events, data) = (place.events.load(Ordering::Relaxed), place.data.load(Ordering::Relaxed));
        let _ = sys::epoll_add(place.epoll.load(Ordering::Relaxed), fd, events, data);
        free(place);
    }
    answer
}
