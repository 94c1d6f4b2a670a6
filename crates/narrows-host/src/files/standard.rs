//! The state of the standard descriptors at the start of the program. Before `main` the standard
//! library opens /dev/null in place of closed ones, so that no other file gets their numbers; data
//! written there would be lost silently.
#![expect(unsafe_code, reason = "a function that runs before the standard library's own start")]

use std::io::{Error, Result};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bit mask of the descriptors that were closed, by their numbers.
static CLOSED: AtomicU8 = AtomicU8::new(0);

extern "C" fn look() {
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: F_GETFD only queries the descriptor, and is valid for any number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: the loader calls the functions in this section once, before `main`, with arguments that
// `look` ignores; `look` uses nothing that needs initialisation.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Fails if the descriptor was closed at the start.
pub(super) fn given(fd: RawFd) -> Result<()> {
    let closed = CLOSED.load(Ordering::Relaxed) & 1 << fd != 0;
    if closed { Err(Error::other("it is closed")) } else { Ok(()) }
}
