//! Marks of descriptors that are unconnected TCP sockets held by this process alone.
//!
//! One word for each descriptor number. `close` is not hooked, so a mark may be out of date; it
//! holds the socket's cookie, which the kernel never reuses, and which is compared before the mark
//! counts. A child of vfork writes its parent's marks, which is why no other state is kept.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::registrations;
use crate::sys;

/// Descriptors from this number on stay plain. The memory is touched only where it is used.
const DESCRIPTORS: usize = 65_536;

/// The highest number that ever had a mark.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static MARKS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// Counts forks: sockets created before one may be shared by two processes, and two writers would
/// corrupt a stream of frames.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Some socket has been duplicated to another number.
static DUPLICATES: AtomicBool = AtomicBool::new(false);

const SET: u64 = 1;
const DUPLICATE: u64 = 2;
/// Layout of a mark: two flag bits, 14 bits of the generation, then the cookie (a counter that does
/// not reach 48 bits).
const COOKIE_SHIFT: u32 = 16;

fn place(fd: c_int) -> Option<&'static AtomicU64> {
    MARKS.get(usize::try_from(fd).ok()?)
}

fn cookie(fd: c_int) -> Result<u64, c_int> {
    let mut bytes = [0; 8];
    sys::get_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A generation in its position within a mark.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Generation(u64);

const GENERATION_BITS: u64 = 0xfffc;

pub(crate) fn generation() -> Generation {
    // Acquire: sockets created after this call must not appear older.
    Generation((u64::from(GENERATION.load(Ordering::Acquire)) << 2) & GENERATION_BITS)
}

fn generation_of(mark: u64) -> Generation {
    Generation(mark & GENERATION_BITS)
}

pub(crate) fn next_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Marks a socket. `since`: the generation read before the socket was created; a fork in between
/// may have shared it.
pub(crate) fn put(fd: c_int, since: Generation) {
    if let (Some(place), Ok(cookie)) = (place(fd), cookie(fd)) {
        registrations::forget(fd);
        HIGHEST.fetch_max(fd as usize, Ordering::Relaxed);
        place.store(cookie << COOKIE_SHIFT | since.0 | SET, Ordering::Relaxed);
    }
}

/// Whether there is a mark, which may be out of date. Cheap.
pub(crate) fn is_set(fd: c_int) -> bool {
    place(fd).is_some_and(|p| p.load(Ordering::Relaxed) != 0)
}

pub(crate) fn forget(fd: c_int) {
    if let Some(place) = place(fd).filter(|p| p.load(Ordering::Relaxed) != 0) {
        place.store(0, Ordering::Relaxed);
    }
}

/// Forgets all numbers of a socket that another process also holds, or that must not be swapped.
pub(crate) fn forget_socket(fd: c_int) {
    let mark = place(fd).map_or(0, |p| p.swap(0, Ordering::Relaxed));
    while take_duplicate(mark).is_some() {}
}

/// False if there has never been a mark.
pub(crate) fn were_any() -> bool {
    HIGHEST.load(Ordering::Relaxed) > 0
}

/// Records that `new` is a duplicate of `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if !is_set(old) || old == new {
        forget(new);
        return;
    }
    let Some(from) = place(old) else { return };
    match place(new) {
        Some(to) => {
            let mark = from.fetch_or(DUPLICATE, Ordering::Relaxed) | DUPLICATE;
            HIGHEST.fetch_max(new as usize, Ordering::Relaxed);
            to.store(mark, Ordering::Relaxed);
            DUPLICATES.store(true, Ordering::Relaxed);
        }
        // This number is out of range and cannot be swapped, so none of the socket's numbers may
        // be.
        None => from.store(0, Ordering::Relaxed),
    }
}

/// Whether `take` would return it as `Ours`.
pub(crate) fn is_ours(fd: c_int) -> bool {
    let mark = place(fd).map_or(0, |p| p.load(Ordering::Relaxed));
    mark != 0 && generation_of(mark) == generation() && cookie(fd) == Ok(mark >> COOKIE_SHIFT)
}

/// Whether a program started at this point inherits a socket that `take` would return as `Ours`.
/// `all`: count those that exec closes too.
pub(crate) fn are_inherited(all: bool) -> bool {
    let stays = |fd| all || sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
    (0..=HIGHEST.load(Ordering::Relaxed) as c_int).any(|fd| is_set(fd) && stays(fd) && is_ours(fd))
}

pub(crate) enum Taken {
    /// This process alone holds it. The mark finds its other numbers.
    Ours(u64),
    /// Created before a fork.
    Shared,
    /// Never marked, or something else by now.
    Unknown,
}

/// Removes the mark.
pub(crate) fn take(fd: c_int) -> Taken {
    let mark = place(fd).map_or(0, |p| p.swap(0, Ordering::Relaxed));
    if mark == 0 || cookie(fd) != Ok(mark >> COOKIE_SHIFT) {
        return Taken::Unknown;
    }
    if generation_of(mark) != generation() { Taken::Shared } else { Taken::Ours(mark) }
}

/// Finds another number of the socket with this mark, and removes its mark.
pub(crate) fn take_duplicate(mark: u64) -> Option<c_int> {
    if mark & DUPLICATE == 0 || !DUPLICATES.load(Ordering::Relaxed) {
        return None;
    }
    let fits = |p: &&AtomicU64| (p.load(Ordering::Relaxed) ^ mark) & !DUPLICATE == 0;
    for (fd, place) in MARKS.iter().enumerate().filter(|(_, p)| fits(p)) {
        place.store(0, Ordering::Relaxed);
        if cookie(fd as c_int) == Ok(mark >> COOKIE_SHIFT) {
            return Some(fd as c_int);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    /// A single test, because the generation is global.
    #[test]
    fn a_socket_is_shared_if_a_fork_came_before_its_mark() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let since = generation();
        put(fd, since);
        assert!(is_ours(fd) && matches!(take(fd), Taken::Ours(_)));
        assert!(matches!(take(fd), Taken::Unknown));
        // As if another thread had forked between the real call and the mark.
        next_generation();
        put(fd, since);
        assert!(!is_ours(fd) && matches!(take(fd), Taken::Shared));
        put(fd, generation());
        assert!(is_ours(fd));
    }
}
