//! Connections that failed while they were made, kept for programs that ask for the error or
//! connect the same socket again.
//!
//! For the latter the TCP socket is kept, and with it its port, as long as the program has its end.
//! That end has a name in the kernel, which is free once the program has closed it; no event tells,
//! so it is polled.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getpeername, socket_with};

use super::shared::Shared;

/// Errors remembered; they take no descriptor.
const FAILED_MAX: usize = 256;
const FAILED_FOR: Duration = Duration::from_secs(60);
/// First and longest interval for polling a program's end; in between, a quarter of the time since
/// the failure. Programs close at once, or try again later.
const LOOK_FIRST: Duration = Duration::from_micros(250);
const LOOK_LAST: Duration = Duration::from_millis(250);

pub(crate) struct Failed {
    id: u64,
    /// The user whose connection it was.
    pub owner: u32,
    pub error: Errno,
    /// The program has asked for the error, which the kernel tells once.
    pub told: bool,
    /// A `connect` has returned the error; the next one starts a new attempt.
    pub ended_connect: bool,
    /// The TCP socket, and the name of the program's end.
    kept: Option<(Arc<OwnedFd>, SocketAddrUnix)>,
    since: Instant,
    look_at: Instant,
}

pub(crate) struct Failures {
    shared: Arc<Shared>,
    all: VecDeque<Failed>,
    /// A socket that has no name yet.
    probe: Option<OwnedFd>,
}

/// The name of the program's end, read from the supervisor's end.
pub(crate) fn name_of_peer(program: &OwnedFd) -> Option<SocketAddrUnix> {
    let name = SocketAddrUnix::try_from(getpeername(program).ok()??).ok()?;
    name.abstract_name().is_some_and(|n| !n.is_empty()).then_some(name)
}

impl Failures {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, all: VecDeque::new(), probe: None }
    }

    /// Remembers a failure. `socket`: the TCP socket and the name of the program's end. `told`: the
    /// program has asked for the error already.
    pub(crate) fn push(
        &mut self,
        (id, owner): (u64, u32),
        error: Errno,
        told: bool,
        socket: Option<(Arc<OwnedFd>, SocketAddrUnix)>,
    ) {
        if self.all.len() == FAILED_MAX {
            self.pop();
        }
        let kept = socket.filter(|_| self.has_room());
        if kept.is_some() {
            self.shared.kept.fetch_add(1, Ordering::AcqRel);
        }
        let since = Instant::now();
        let look_at = since + LOOK_FIRST;
        self.all.push_back(Failed { id, owner, error, told, ended_connect: false, kept, since, look_at });
    }

    /// Makes room for one more socket, by closing the oldest if necessary. Other pumps may do the
    /// same at this moment; a few too many do no harm.
    fn has_room(&mut self) -> bool {
        let full = |shared: &Shared| shared.kept.load(Ordering::Acquire) >= shared.kept_max;
        if full(&self.shared)
            && let Some(oldest) = self.all.iter_mut().find(|f| f.kept.is_some())
        {
            release(&self.shared, oldest);
        }
        !full(&self.shared)
    }

    fn pop(&mut self) {
        if let Some(mut failed) = self.all.pop_front() {
            release(&self.shared, &mut failed);
        }
    }

    pub(crate) fn find(&mut self, id: u64) -> Option<&mut Failed> {
        self.all.iter_mut().find(|f| f.id == id)
    }

    /// Takes the TCP socket out, to return it to the program.
    pub(crate) fn take_back(&mut self, id: u64) -> Option<Arc<OwnedFd>> {
        let (network, _) = self.find(id)?.kept.take()?;
        self.shared.kept.fetch_sub(1, Ordering::AcqRel);
        Some(network)
    }

    /// The time until [`Failures::look`] has something to do.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let oldest = self.all.front()?.since + FAILED_FOR;
        let look = self.all.iter().filter(|f| f.kept.is_some()).map(|f| f.look_at).min();
        Some(look.map_or(oldest, |at| at.min(oldest)).saturating_duration_since(Instant::now()))
    }

    /// Forgets old failures, and closes sockets whose program has closed its end.
    pub(crate) fn look(&mut self) {
        if self.all.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.all.front().is_some_and(|f| f.since + FAILED_FOR <= now) {
            self.pop();
        }
        for failed in self.all.iter_mut().filter(|f| f.look_at <= now) {
            let Some((_, name)) = &failed.kept else { continue };
            if is_free(&mut self.probe, name) {
                release(&self.shared, failed);
            } else {
                failed.look_at = now + ((now - failed.since) / 4).clamp(LOOK_FIRST, LOOK_LAST);
            }
        }
    }
}

fn release(shared: &Shared, failed: &mut Failed) {
    if failed.kept.take().is_some() {
        shared.kept.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether nobody has this name: its owner has closed the socket, or is in another network
/// namespace, where it gets a new socket to connect with.
fn is_free(probe: &mut Option<OwnedFd>, name: &SocketAddrUnix) -> bool {
    if probe.is_none() {
        *probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok();
    }
    let Some(socket) = probe else { return false };
    let free = bind(&*socket, name).is_ok();
    if free {
        *probe = None;
    }
    free
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    #[test]
    fn a_name_is_free_when_the_last_end_is_closed() {
        let (program, supervisor) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        assert!(name_of_peer(&supervisor).is_none(), "it has none yet");
        let text = format!("narrows-test-{}", std::process::id());
        bind(&program, &SocketAddrUnix::new_abstract_name(text.as_bytes()).unwrap()).unwrap();
        let name = name_of_peer(&supervisor).unwrap();
        drop(supervisor);
        let (copy, mut probe) = (program.try_clone().unwrap(), None);
        assert!(!is_free(&mut probe, &name));
        drop(program);
        assert!(!is_free(&mut probe, &name));
        drop(copy);
        assert!(is_free(&mut probe, &name) && is_free(&mut probe, &name));
    }
}
