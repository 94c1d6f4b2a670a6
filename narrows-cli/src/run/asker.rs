//! Who speaks to the supervisor, and what it may ask for.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, geteuid};

use super::sys;

/// A process at the other end of a line, as the kernel knows it since it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asker {
    /// `None`: it is in a namespace that is not seen from here.
    pub(crate) pid: Option<Pid>,
    pub(crate) uid: u32,
}

impl Asker {
    /// `None`: another user, who is refused whatever he knows. As root, programs may have become anybody.
    pub(crate) fn of(line: &OwnedFd) -> Option<Self> {
        let mut credentials = [0; 12];
        let len = sys::get_option(line, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
        let (pid, rest) = credentials.split_first_chunk::<4>()?;
        let uid = u32::from_ne_bytes(*rest.first_chunk()?);
        let own = geteuid();
        let pid = Pid::from_raw(i32::from_ne_bytes(*pid));
        (len == 12 && (own.is_root() || uid == own.as_raw())).then_some(Self { pid, uid })
    }
}
