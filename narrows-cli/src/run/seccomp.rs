//! The second engine: programs into which no library is loaded (static ones, Go, other C libraries).
//!
//! The program is put under a filter (`filter`), by which the kernel asks the supervisor about the few calls that begin
//! connections or tell of them (`notify`). The supervisor makes the call itself, on the program's own socket (`calls`),
//! and puts a unix socket in the place of the TCP socket, as the library does (`swap`). Bytes are moved by the pumps, and
//! no call on data is asked about.
//!
//! When in doubt the kernel is told to go on as if it had not asked: then the connection is plain. A supervisor that dies
//! must not leave the program with calls that fail, so a second process has the questions too (`watchdog`).

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
use super::pump::{Inlet, Ledger, Order};
use super::wire::Request;

pub(crate) use gateway::Gateways;
pub(crate) use kept::UNTAKEN_MAX;
pub(crate) use notify::start;
pub(crate) use watchdog::{WAITS_MAX, Watchdog};

/// The kernel can do it, and this user may look into the programs that it starts.
pub(crate) fn is_possible() -> bool {
    sys::notifies()
}

/// Whether only ancestors may look into a process (Yama). A supervisor beside the program could not then.
pub(crate) fn wants_parent() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim() == "1" && !rustix::process::geteuid().is_root()
}

/// The way that the listener goes: from the process that becomes the program, where the kernel makes it, to those who
/// answer.
pub(crate) struct Post {
    filter: Vec<libc::sock_filter>,
    from: OwnedFd,
}

/// Those who answer: the supervisor and its watchdog.
const LISTENERS: usize = 2;

/// Both ends of the way.
pub(crate) fn post(keeps_mptcp: bool) -> Result<(Post, OwnedFd)> {
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Post { filter: filter::program(keeps_mptcp), from }, to))
}

impl Post {
    /// Puts this process under the filter. If that fails, it stays as it is, and who waits for the listener is told so.
    /// Called between fork and exec: no heap.
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
            // Without anybody who answers, the kernel lets every call that it would ask about fail: better not to begin.
            sendmsg(&self.from, &[IoSlice::new(&byte)], &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    pub(crate) fn install_before_exec(self, command: &mut Command) {
        sys::before_exec(command, self);
    }
}

/// What the kernel's questions come from, and whether a call that was heard of is interrupted only by what kills its
/// process. Waits for it; `None` if it could not be had.
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

/// Where new connections go.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) pumps: Vec<Inlet>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) budget: Budget,
}

impl Intake {
    fn pump(&self, id: u64) -> &Inlet {
        &self.pumps[(id % self.pumps.len() as u64) as usize]
    }

    fn has_room(&self) -> bool {
        // One of them is this engine itself.
        self.ledger.live.load(Ordering::Acquire) <= self.budget.connections
    }

    fn take(&self, request: Request, network: OwnedFd, program: OwnedFd) {
        // Ids are random; one that is there already would be a wonder.
        if let Some(held) = self.ledger.held.add(&request, Asker::own().uid, network) {
            self.ledger.live.fetch_add(1, Ordering::AcqRel);
            self.pump(request.id).send(Order::Take { request: Box::new(request), held, program });
        }
    }

    /// The supervisor stays as long as anybody is under the filter.
    fn begin(&self) {
        self.ledger.live.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        if self.ledger.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = rustix::io::write(&self.ledger.idle, &1u64.to_ne_bytes());
        }
    }
}
