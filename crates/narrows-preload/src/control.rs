//! Requests to the supervisor: one connection per request, closed before the hook returns.
//!
//! A program may close descriptors that it does not know (`closefrom`), or change its root and its
//! user; a connection that lives no longer than a call survives all that.

use core::ffi::c_int;

use crate::setup;
use crate::sys;
use crate::wire::{Kind, REPLY_LEN, Reason, Reply, Request};

/// Time limit for an answer. The supervisor answers in some 20 us, or, if only a pump knows, after
/// the pump has moved the bytes of other connections. A stopped supervisor must not block the
/// program for ever.
const PATIENCE_MS: i64 = 1000;

const ROOT: u32 = 0;

struct ControlSocket(c_int);

impl Drop for ControlSocket {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

fn open() -> Result<ControlSocket, c_int> {
    let setup = setup::get().ok_or(libc::ENOENT)?;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = ControlSocket(sys::unix_socket(kind)?);
    sys::connect_unix(socket.0, &setup.control)?;
    // All users can see the name, and take it when the supervisor is gone.
    let listens = sys::user_of_peer(socket.0)?;
    if listens == ROOT || listens == setup.owner { Ok(socket) } else { Err(libc::EACCES) }
}

/// Whether a supervisor can be reached from this process, even if it is busy.
pub(crate) fn is_reachable() -> bool {
    matches!(
        open(),
        Ok(_) | Err(libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

fn request(kind: Kind, id: u64) -> Result<Request, c_int> {
    Ok(Request::new(setup::get().ok_or(libc::ENOENT)?.token, kind, id))
}

/// Sends a message that needs no answer. It is no failure if nobody receives it.
pub(crate) fn post(kind: Kind, fill: impl FnOnce(&mut Request)) {
    let say = || -> Result<(), c_int> {
        let mut request = request(kind, 0)?;
        fill(&mut request);
        let socket = open()?;
        sys::send(socket.0, &request.encode(), libc::MSG_NOSIGNAL).map(drop)
    };
    let _ = say();
}

/// Hands a connection over. If this succeeds, the supervisor has or will have both descriptors.
pub(crate) fn hand_over(id: u64, fds: [c_int; 2], fill: impl FnOnce(&mut Request)) -> Result<(), c_int> {
    let mut request = request(Kind::New, id)?;
    fill(&mut request);
    let socket = open()?;
    sys::send_with_descriptors(socket.0, &request.encode(), fds).map(drop)
}

/// Maximum number of signals during the wait for one answer.
const SIGNALS_MAX: usize = 64;

fn wait(socket: &ControlSocket) -> Option<()> {
    for _ in 0..SIGNALS_MAX {
        match sys::poll_interruptibly(socket.0, libc::POLLIN, PATIENCE_MS) {
            Err(libc::EINTR) => {}
            events => return events.is_ok_and(|events| events & libc::POLLIN != 0).then_some(()),
        }
    }
    None
}

/// Sends a request; returns the answer and a descriptor that came with it. `None`: no supervisor,
/// or none that answers.
pub(crate) fn ask(kind: Kind, id: u64, fill: impl FnOnce(&mut Request)) -> Option<(Reply, Option<c_int>)> {
    let mut request = request(kind, id).ok()?;
    fill(&mut request);
    let socket = open().ok()?;
    sys::send(socket.0, &request.encode(), libc::MSG_NOSIGNAL).ok()?;
    wait(&socket)?;
    let mut bytes = [0; REPLY_LEN];
    let (len, fd) = sys::receive(socket.0, &mut bytes).ok()?;
    Some((Reply::decode(bytes.get(..len)?)?, fd))
}

/// Reports a connection that stays plain. Those excluded by the user's own rules are reported only
/// with `-v`: programs that talk within their host cause them all the time.
pub(crate) fn plain(reason: Reason, fill: impl FnOnce(&mut Request)) {
    let by_rule = matches!(reason, Reason::Scope | Reason::Loopback);
    if setup::get().is_some_and(|s| s.verbose || !by_rule) {
        post(Kind::Plain, |request| {
            request.number = reason as i32;
            fill(request);
        });
    }
}
