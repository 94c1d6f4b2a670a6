//! One end of a side channel: a TCP connection to or from a service port, with a buffer of unsent
//! bytes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use narrows::upgrade::Tuple;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, getpeername, getsockname, ipproto,
    recv, send, socket_with, sockopt,
};

use super::{owner, sys};

/// Limit of unsent bytes: twice the size of all claims that a host may have unsettled.
const UNSENT_MAX: usize = 1 << 20;
/// Bytes read at a time, so that a busy channel leaves the others their turns.
pub(crate) const READ: usize = 16 << 10;
/// A peer that vanishes silently is noticed after some 30 s: its claims may be unsettled, and bytes
/// held for it are reset after 3 s anyway.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

pub(crate) struct Channel {
    socket: OwnedFd,
    connecting: bool,
    unsent: Vec<u8>,
    sent: usize,
    /// The events that epoll watches for.
    watched: Option<EventFlags>,
}

impl Channel {
    /// Begins to connect. `from` must be the local address of the connections that are claimed over
    /// the channel; otherwise the claims would be refused.
    pub(crate) fn dial(from: IpAddr, to: SocketAddr) -> Result<Self, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // Leaves the choice of the port to `connect`, which knows better which ports are free.
        let _ = sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32.to_ne_bytes());
        bind(&socket, &SocketAddr::new(from, 0))?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e),
        }
        Ok(Self { connecting: true, ..Self::new(socket) })
    }

    pub(crate) fn new(socket: OwnedFd) -> Self {
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, PROBE_AFTER);
        let _ = sockopt::set_tcp_keepintvl(&socket, PROBE_EVERY);
        let _ = sockopt::set_tcp_keepcnt(&socket, PROBES);
        let _ = sockopt::set_tcp_user_timeout(&socket, (PROBE_AFTER + PROBE_EVERY * PROBES).as_millis() as u32);
        Self { socket, connecting: false, unsent: Vec::new(), sent: 0, watched: None }
    }

    /// True once, when the connection has just been established.
    ///
    /// # Errors
    /// Connecting failed.
    pub(crate) fn is_connected(&mut self) -> Result<bool, Errno> {
        if !self.connecting {
            return Ok(false);
        }
        sockopt::socket_error(&self.socket)??;
        if rustix::net::getpeername(&self.socket).is_err() {
            return Ok(false);
        }
        self.connecting = false;
        Ok(true)
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// Queues bytes. False if too many are unsent: the other end takes nothing.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> bool {
        self.unsent.extend_from_slice(bytes);
        self.unsent.len() - self.sent <= UNSENT_MAX
    }

    /// # Errors
    /// The channel is lost.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.wants_room() {
            match send(&self.socket, &self.unsent[self.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    fn wants_room(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Received bytes, possibly none. Reads nothing while something waits to be sent, so that a
    /// peer that asks and never listens is not served on.
    ///
    /// # Errors
    /// The channel is lost.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        if self.wants_room() || self.connecting {
            return Ok(&[]);
        }
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(&[]),
                Err(e) => return Err(e),
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((n, _)) => return Ok(&buffer[..n]),
            }
        }
    }

    /// Makes epoll watch for the channel's next event, under `number`.
    pub(crate) fn watch(&mut self, watch: &OwnedFd, number: u64) -> Result<(), Errno> {
        let wanted = if self.connecting || self.wants_room() { EventFlags::OUT } else { EventFlags::IN };
        match self.watched {
            Some(watched) if watched == wanted => return Ok(()),
            Some(_) => epoll::modify(watch, &self.socket, EventData::new_u64(number), wanted)?,
            None => epoll::add(watch, &self.socket, EventData::new_u64(number), wanted)?,
        }
        self.watched = Some(wanted);
        Ok(())
    }

    /// The user who owns the other end, if it is on this host.
    pub(crate) fn user_there(&self) -> Option<u32> {
        let near = SocketAddr::try_from(getsockname(&self.socket).ok()?).ok()?;
        let far = SocketAddr::try_from(getpeername(&self.socket).ok()??).ok()?;
        owner::of(Tuple::new(near, far))
    }

    /// Gives up the channel and returns its socket, for another use of the connection.
    pub(crate) fn into_socket(self, watch: &OwnedFd) -> OwnedFd {
        let _ = epoll::delete(watch, &self.socket);
        self.socket
    }
}
