//! The standard descriptors as this program was given them. Before `main` the library opens /dev/null in place of those that
//! are closed, so that no other file gets their numbers; bytes that go there are lost without a word.
#![expect(unsafe_code, reason = "a function that runs before the standard library's own start")]

use std::io::{Error, Result};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

extern "C" fn look() {
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: asks about a number, whatever is behind it.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: the loader calls what stands in this section once, before `main`, with arguments that `look` leaves alone; `look`
// uses nothing that has to be set up.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// As the system answers for a descriptor that is closed.
pub(super) fn given(fd: RawFd) -> Result<()> {
    let closed = CLOSED.load(Ordering::Relaxed) & 1 << fd != 0;
    if closed { Err(Error::other("it is closed")) } else { Ok(()) }
}
