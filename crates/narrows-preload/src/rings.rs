//! Sockets registered in an io_uring ring: its operations go to the registered socket, whatever is
//! put under the number later.
//!
//! Rings are used by their own libraries' system calls and through memory, so no hook sees a
//! registration. The kernel lists a ring's files in /proc.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys;

/// Rings checked per process; a process with more leaves its connections plain.
const RINGS_MAX: usize = 16;
/// The next search for rings waits this many times as long as a search takes. So searching costs at
/// most a fiftieth of the time, however many connections begin and descriptors are open.
const SELDOM: u64 = 50;
/// Tries to read a ring's files: a ring that is busy does not list them.
const TRIES: usize = 8;

static RINGS: [AtomicI32; RINGS_MAX] = [const { AtomicI32::new(-1) }; RINGS_MAX];
static NEXT_LOOK_NS: AtomicU64 = AtomicU64::new(0);
/// Non-zero if there are more rings than `RINGS_MAX`.
static MANY: AtomicU64 = AtomicU64::new(0);

const RING: &[u8] = b"anon_inode:[io_uring]";

/// Whether a ring of this process holds the socket, or might.
pub(crate) fn hold(fd: c_int) -> bool {
    let now_ns = sys::now_ns();
    if now_ns >= NEXT_LOOK_NS.load(Ordering::Relaxed) {
        look();
        let took_ns = sys::now_ns().saturating_sub(now_ns);
        NEXT_LOOK_NS.store(now_ns.saturating_add(took_ns.saturating_mul(SELDOM)), Ordering::Relaxed);
    }
    if MANY.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let rings = || RINGS.iter().map(|r| r.load(Ordering::Relaxed)).filter(|ring| *ring >= 0);
    if rings().next().is_none() {
        return false;
    }
    let mut link = [0; 64];
    let Ok(len) = sys::link_of(fd, &mut link) else { return true };
    rings().any(|ring| holds(ring, &link[..len]))
}

/// Searches the process's descriptors for rings.
fn look() {
    let Ok(folder) = sys::open(b"/proc/thread-self/fd\0") else { return };
    let mut found = 0;
    let mut entries = [0; 4096];
    while let Ok(len) = sys::entries(folder, &mut entries)
        && len > 0
    {
        let mut rest = entries.get(..len).unwrap_or_default();
        // A `linux_dirent64`: inode and offset, length of the entry, type, name.
        while let Some(entry) = rest.get(16..18).and_then(|l| rest.get(..u16::from_ne_bytes([l[0], l[1]]).into())) {
            rest = rest.get(entry.len().max(1)..).unwrap_or_default();
            let name = entry.get(19..).unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
            let mut link = [0; 64];
            if let Some(fd) = number(name)
                && sys::link_of(fd, &mut link).is_ok_and(|len| &link[..len] == RING)
            {
                if let Some(place) = RINGS.get(found) {
                    place.store(fd, Ordering::Relaxed);
                }
                found += 1;
            }
        }
    }
    sys::close(folder);
    RINGS.iter().skip(found).for_each(|place| place.store(-1, Ordering::Relaxed));
    MANY.store(u64::from(found > RINGS_MAX), Ordering::Relaxed);
}

fn number(digits: &[u8]) -> Option<c_int> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0i32, |n, digit| {
        if digit.is_ascii_digit() { n.checked_mul(10)?.checked_add((digit - b'0').into()) } else { None }
    })
}

/// `link`: the target of the socket's /proc link.
fn holds(ring: c_int, link: &[u8]) -> bool {
    for _ in 0..TRIES {
        let Ok(file) = sys::open_info(ring) else { return false };
        let mut list = List::new(link);
        let mut part = [0; 4096];
        while let Ok(len) = sys::read(file, &mut part)
            && len > 0
        {
            list.take(part.get(..len).unwrap_or_default());
        }
        sys::close(file);
        if list.is_whole() {
            return list.found;
        }
    }
    true
}

/// Parser of the lines about files in fdinfo: `UserFiles:` with the number of places, then a line
/// for each place in use.
struct List<'a> {
    link: &'a [u8],
    line: [u8; 128],
    len: usize,
    /// The list of files was found.
    told: bool,
    is_ring: bool,
    found: bool,
}

impl<'a> List<'a> {
    fn new(link: &'a [u8]) -> Self {
        Self { link, line: [0; 128], len: 0, told: false, is_ring: false, found: false }
    }

    /// Whether the answer is complete. A descriptor that is no longer a ring holds nothing.
    fn is_whole(&self) -> bool {
        self.told || !self.is_ring
    }

    fn take(&mut self, text: &[u8]) {
        for byte in text {
            if *byte == b'\n' {
                self.end_line();
                self.len = 0;
            } else if let Some(place) = self.line.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn end_line(&mut self) {
        let line = self.line.get(..self.len).unwrap_or_default().trim_ascii();
        self.is_ring |= line.starts_with(b"SqMask:");
        self.told |= line.starts_with(b"UserFiles:");
        // Before Linux 6.8 sockets are listed by protocol only.
        let of = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
        self.found |= self.told && (of == self.link || of == b"TCP" || of == b"TCPv6");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(text: &[u8]) -> (bool, bool) {
        let mut list = List::new(b"socket:[42]");
        // Split anywhere.
        text.chunks(7).for_each(|part| list.take(part));
        (list.is_whole(), list.found)
    }

    #[test]
    fn what_a_ring_holds_is_listed() {
        let files =
            b"pos:\t0\nSqMask:\t0x7\nSqHead:\t0\nUserFiles:\t2\n    0: socket:[41]\n    1: socket:[42]\nUserBufs:\t0\n";
        assert_eq!(held(files), (true, true));
        assert_eq!(held(&files[..files.len() - 35]), (true, false));
        assert_eq!(held(b"SqMask:\t0x7\nUserFiles:\t1\n    0: TCP\n"), (true, true));
        assert_eq!(held(b"SqMask:\t0x7\nUserFiles:\t1\n    0: socket:[421]\n"), (true, false));
        // A busy ring lists nothing.
        assert_eq!(held(b"pos:\t0\nSqMask:\t0x7\n"), (false, false));
        assert_eq!(held(b"pos:\t0\nflags:\t02\n"), (true, false));
        assert_eq!((number(b"12"), number(b".."), number(b"99999999999")), (Some(12), None, None));
    }

    #[test]
    fn who_has_no_ring_has_none_that_holds() {
        let (a, _b) = std::io::pipe().unwrap();
        assert!(!hold(std::os::fd::AsRawFd::as_raw_fd(&a)));
    }
}
