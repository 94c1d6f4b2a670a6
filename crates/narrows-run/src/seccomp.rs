//! Interception by the kernel, for programs that load no library (static ones, Go, other C
//! libraries).
//!
//! The program runs under a seccomp filter (`filter`), so that the kernel asks the supervisor about
//! the few calls that begin connections or report on them (`notify`). The supervisor makes the call
//! itself on the program's own socket (`calls`), and puts a unix socket in place of the TCP socket,
//! as the library does (`swap`). The pumps move the bytes; calls on data are not asked about, but
//! for a few rare flags.
//!
//! When in doubt the kernel is told to continue the call as if it had not asked, and the connection
//! is plain. If the supervisor dies, the program's calls must not fail, so a second process holds
//! the notifications too (`watchdog`).

mod calls;
mod filter;
mod gateway;
mod kept;
mod notify;
mod options;
mod socket;
mod swap;
mod sys;
mod target;
mod watchdog;

use std::io::{IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::asker::Asker;
use super::budget::Budget;
use super::shared::{Inlet, Order, Shared};
use super::wire::Request;

pub(crate) use gateway::Gateways;
pub(crate) use notify::start;
pub(crate) use watchdog::Watchdog;

/// Whether the kernel supports seccomp notifications in the expected layout.
pub(crate) fn is_possible() -> bool {
    sys::notifies()
}

/// Whether only ancestors may access a process (Yama), so that a supervisor beside the program
/// could not.
pub(crate) fn wants_parent() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim() == "1" && !rustix::process::geteuid().is_root()
}

/// Sends the seccomp listener from the process that becomes the program, where the kernel creates
/// it, to those who answer.
pub(crate) struct Post {
    filter: Vec<libc::sock_filter>,
    from: OwnedFd,
}

/// Receivers of the listener: the supervisor and its watchdog.
const LISTENERS: usize = 2;

/// Both ends of the channel for the listener.
pub(crate) fn post(keeps_mptcp: bool) -> Result<(Post, OwnedFd)> {
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Post { filter: filter::program(keeps_mptcp), from }, to))
}

impl Post {
    /// Puts this process under the filter. If that fails the process stays as it is, and the
    /// receivers are told so. Called between fork and exec, so it uses no heap.
    pub(crate) fn install(&self) -> Result<()> {
        let installed = sys::install(&self.filter);
        for _ in 0..LISTENERS {
            let byte = [u8::from(installed.as_ref().is_ok_and(|(_, killable)| *killable))];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = installed.as_ref().ok().map(|(listener, _)| [listener.as_fd()]);
            if let Some(fds) = &fds {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            // With nobody to answer, the kernel fails every call that it would ask about, so it is
            // better not to start the program.
            sendmsg(&self.from, &[IoSlice::new(&byte)], &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    pub(crate) fn install_before_exec(self, command: &mut Command) {
        sys::before_exec(command, self);
    }
}

/// Waits for the listener that delivers the kernel's questions. The flag says whether a call that
/// was received can be interrupted only by a fatal signal. `None` if there is no listener.
fn listener(to: &OwnedFd) -> Option<(OwnedFd, bool)> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(to, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    let listener = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    listener.map(|l| (l, byte[0] != 0))
}

/// Takes new connections of the filtered program to the pumps.
#[derive(Clone)]
pub struct Intake {
    pub pumps: Vec<Inlet>,
    pub shared: Arc<Shared>,
    pub budget: Budget,
}

impl Intake {
    fn pump(&self, id: u64) -> &Inlet {
        &self.pumps[(id % self.pumps.len() as u64) as usize]
    }

    fn has_room(&self) -> bool {
        // The live count includes the thread that answers the kernel.
        self.shared.live.load(Ordering::Acquire) <= self.budget.connections
    }

    fn take(&self, request: Request, network: OwnedFd, program: OwnedFd) {
        // Ids are random, so a collision practically never happens.
        if let Some(held) = self.shared.held.add(&request, Asker::own().uid, network) {
            self.shared.live.fetch_add(1, Ordering::AcqRel);
            self.pump(request.id).send(Order::Take { request: Box::new(request), held, program });
        }
    }

    /// Keeps the supervisor alive as long as any process is under the filter.
    fn begin(&self) {
        self.shared.live.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        if self.shared.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = rustix::io::write(&self.shared.idle, &1u64.to_ne_bytes());
        }
    }
}
