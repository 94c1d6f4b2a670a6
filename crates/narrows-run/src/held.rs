//! TCP sockets that were handed over. Requests about their options are answered here at once,
//! because the pump that moves the bytes may be busy for longer than a program waits for an option.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use libc::c_int;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getpeername, ipproto, socket_with};

use super::asker::Asker;
use super::kinds::denied;
use super::sys;
use super::wire::{
    AF_INET, BY_CONNECT, BY_ERROR, BY_GATEWAY, BY_NAME, Kind, RawAddress, Reply, Request, State, VALUE_MAX,
};

pub struct Held {
    pub network: Arc<OwnedFd>,
    /// The user who handed it over.
    pub owner: u32,
    /// The peer; the server, even if the socket leads to a gateway.
    peer: RawAddress,
    /// The socket leads to a gateway, which may not have answered yet.
    by_gateway: bool,
    said: Mutex<Said>,
}

/// State that the socket itself does not have.
struct Said {
    connecting: bool,
    /// A `connect` was already told that the connection is established.
    told: bool,
    /// SO_LINGER as the program has set it. The socket itself is set to reset on close, in case the
    /// supervisor dies, until it is closed in order.
    linger: Option<Duration>,
    /// The program's values of options that frames need differently.
    kept: Option<Kept>,
    /// The error that broke the connection, once the program's writes fail.
    broken: Option<c_int>,
    /// The program has asked for that error, which the kernel tells once.
    told_broken: bool,
}

/// The program's values of the two options that frames set themselves: each write is sent at once,
/// and the kernel holds only a limited number of unsent bytes.
#[derive(Clone, Copy)]
struct Kept {
    no_delay: c_int,
    unsent_max: c_int,
}

impl Kept {
    fn get(&mut self, level: c_int, option: c_int) -> Option<&mut c_int> {
        match (level, option) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(&mut self.no_delay),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => Some(&mut self.unsent_max),
            _ => None,
        }
    }
}

impl Held {
    pub fn new(request: &Request, owner: u32, network: OwnedFd) -> Self {
        let said = Said {
            connecting: request.number > 1,
            told: false,
            linger: linger_of(&request.linger),
            kept: None,
            broken: None,
            told_broken: false,
        };
        let by_gateway = request.option == BY_GATEWAY;
        Self { network: Arc::new(network), owner, peer: request.peer, by_gateway, said: Mutex::new(said) }
    }

    /// A poisoned lock is harmless: nothing inside panics half done.
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn linger(&self) -> Option<Duration> {
        self.said().linger
    }

    /// The connection is established.
    pub fn connected(&self) {
        self.said().connecting = false;
    }

    /// The connection broke, and the program's writes are about to fail.
    pub fn broke(&self, error: Option<Errno>) {
        self.said().broken = error.map(Errno::raw_os_error);
    }

    /// Whether the program has asked for the error that broke the connection.
    pub fn has_told(&self) -> bool {
        self.said().told_broken
    }

    /// From here on the engine sets the two options; the program's values are remembered and
    /// reported to it.
    pub fn keep_options(&self) {
        let get = |option| int_option(&self.network, option);
        let mut said = self.said();
        said.kept
            .get_or_insert_with(|| Kept { no_delay: get(libc::TCP_NODELAY), unsent_max: get(libc::TCP_NOTSENT_LOWAT) });
        // The engine itself combines small writes where that costs nothing.
        let _ = sys::set_option(&self.network, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32.to_ne_bytes());
    }

    /// Restores the program's options on a socket that is given back.
    pub fn give_options_back(&self) {
        if let Some(kept) = self.said().kept {
            let no_delay = kept.no_delay.to_ne_bytes();
            let _ = sys::set_option(&self.network, libc::IPPROTO_TCP, libc::TCP_NODELAY, &no_delay);
        }
    }

    /// TCP_NOTSENT_LOWAT as the program has set it. 0 is the system's default, which is above all
    /// buffers.
    pub fn unsent_max(&self) -> Option<usize> {
        // The kernel's value is unsigned.
        self.said().kept.map(|kept| kept.unsent_max as u32 as usize).filter(|max| *max > 0)
    }

    /// Answers a request. `None`: only the pump can answer it.
    fn answer(&self, request: &Request, asker: Asker) -> Option<Reply> {
        let (level, option) = (request.level, request.option);
        let mut value = request.value;
        let value = &mut value[..usize::from(request.value_len).min(VALUE_MAX)];
        let said = match request.kind {
            Kind::State => return Some(self.state(request.number, asker)),
            Kind::SetOption if !asker.may_set(self.owner, level, option) => Err(Error::from_raw_os_error(libc::EPERM)),
            Kind::SetOption => asker.with_its_rights(|| self.set_option(level, option, value)).map(|()| 0),
            // Tables of packet filters may be read only with the right to change them.
            Kind::GetOption => asker.with_its_rights(|| self.get_option(level, option, value)),
            _ => return None,
        };
        Some(match said {
            Ok(len) => Reply::new(0).with(&value[..len]),
            Err(e) => Reply::new(e.raw_os_error().unwrap_or(libc::EIO)),
        })
    }

    /// `by`: who asks.
    fn state(&self, by: c_int, asker: Asker) -> Reply {
        let mut said = self.said();
        if let Some(error) = said.broken.filter(|_| by == BY_ERROR) {
            let status = if said.told_broken { 0 } else { error };
            said.told_broken |= asker.owns(self.owner);
            return Reply::new(status).with(&[State::Failed as u8]);
        }
        // The server's program may have accepted it before the pump has seen that it is made.
        let has_name = || by == BY_NAME && !self.by_gateway && getpeername(&*self.network).is_ok();
        let state = if said.connecting && !has_name() {
            State::Connecting
        } else if !said.told {
            said.told = by == BY_CONNECT;
            State::JustConnected
        } else {
            State::Connected
        };
        Reply::new(0).with(&[state as u8])
    }

    fn get_option(&self, level: c_int, option: c_int, value: &mut [u8]) -> Result<usize> {
        let mut said = self.said();
        let known = match (level, option) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = said.linger.map_or((0, 0), |time| (1i32, time.as_secs() as i32));
                [on.to_ne_bytes(), seconds.to_ne_bytes()].concat()
            }
            (libc::SOL_SOCKET, SO_PEERNAME) => {
                if self.peer[..2] == [0; 2] {
                    return Err(Error::from_raw_os_error(libc::ENOTCONN));
                }
                let len = if self.peer[..2] == AF_INET.to_ne_bytes() { 16 } else { 28 };
                if value.len() > len {
                    return Err(Error::from_raw_os_error(libc::EINVAL));
                }
                self.peer[..len].to_vec()
            }
            // Its value is a memory address, which here would mean the supervisor's memory.
            (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) => {
                return Err(Error::from_raw_os_error(libc::ENOPROTOOPT));
            }
            _ => match said.kept.as_mut().and_then(|kept| kept.get(level, option)) {
                Some(kept) => kept.to_ne_bytes().to_vec(),
                None => return sys::get_option(&self.network, level, option, value),
            },
        };
        let len = value.len().min(known.len());
        value[..len].copy_from_slice(&known[..len]);
        Ok(len)
    }

    fn set_option(&self, level: c_int, option: c_int, value: &[u8]) -> Result<()> {
        let invalid = || Error::from_raw_os_error(libc::EINVAL);
        let refused = if level == libc::SOL_SOCKET && NAMES_MEMORY.contains(&option) {
            Some(libc::ENOPROTOOPT)
        } else {
            denied(level, option, value)
        };
        if let Some(number) = refused {
            return Err(Error::from_raw_os_error(number));
        }
        let mut said = self.said();
        if (level, option) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            said.linger = linger_of(value.first_chunk().ok_or_else(invalid)?);
            return Ok(());
        }
        if let Some(kept) = said.kept.as_mut().and_then(|kept| kept.get(level, option)) {
            *kept = i32::from_ne_bytes(*value.first_chunk().ok_or_else(invalid)?);
            if option == libc::TCP_NODELAY {
                // As in the kernel, it is on or off.
                *kept = i32::from(*kept != 0);
            }
            return Ok(());
        }
        sys::set_option(&self.network, level, option, value)
    }
}

/// Not defined by libc.
const SO_PEERNAME: c_int = 28;
/// Filters: their values are the program's memory addresses or descriptors.
const NAMES_MEMORY: [c_int; 4] =
    [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];

/// Decodes SO_LINGER: two ints, on and seconds.
pub(crate) fn linger_of(value: &[u8; 8]) -> Option<Duration> {
    let [a, b, c, d, seconds @ ..] = *value;
    let seconds = u64::try_from(i32::from_ne_bytes(seconds)).unwrap_or(0);
    (i32::from_ne_bytes([a, b, c, d]) != 0).then(|| Duration::from_secs(seconds))
}

fn int_option(network: &OwnedFd, option: c_int) -> c_int {
    let mut value = [0; 4];
    let len = sys::get_option(network, libc::IPPROTO_TCP, option, &mut value);
    if len.is_ok_and(|n| n == value.len()) { i32::from_ne_bytes(value) } else { 0 }
}

/// An unconnected socket to answer for one whose connection is over.
fn closed(level: c_int) -> rustix::io::Result<OwnedFd> {
    let family = if level == libc::IPPROTO_IPV6 { AddressFamily::INET6 } else { AddressFamily::INET };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
}

/// All held sockets by connection id, from the hand-over until the connection is over.
#[derive(Default)]
pub struct Holdings(Mutex<HashMap<u64, Arc<Held>>>);

impl Holdings {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Held>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// `None` if the id is taken: a mistake, or a malicious program. The older connection keeps the
    /// id.
    pub fn add(&self, request: &Request, owner: u32, network: OwnedFd) -> Option<Arc<Held>> {
        match self.all().entry(request.id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => Some(Arc::clone(place.insert(Arc::new(Held::new(request, owner, network))))),
        }
    }

    pub fn remove(&self, id: u64) {
        self.all().remove(&id);
    }

    pub fn get(&self, id: u64) -> Option<Arc<Held>> {
        self.all().get(&id).cloned()
    }

    /// Answers a program's request about a connection. `None`: its pump must answer.
    pub fn answer(&self, request: &Request, asker: Asker) -> Option<Reply> {
        match (self.get(request.id), request.kind) {
            (Some(held), _) => held.answer(request, asker),
            // The connection is over, so no option makes a difference. A closed TCP socket still
            // answers, and any unconnected one answers alike. Above all, no peer credentials may be
            // invented.
            (None, Kind::SetOption | Kind::GetOption) => match closed(request.level) {
                Ok(socket) => Held::new(&Request::new([0; 16], Kind::New, 0), asker.uid, socket).answer(request, asker),
                Err(_) => Some(Reply::new(libc::ENOBUFS)),
            },
            (None, Kind::OutQueue) => Some(Reply::new(0).with(&0i32.to_ne_bytes())),
            (None, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn ask(held: &Holdings, kind: Kind, (level, option): (c_int, c_int), value: &[u8]) -> Reply {
        let mut request = Request::new([0; 16], kind, 1);
        (request.level, request.option, request.value_len) = (level, option, value.len() as u16);
        request.value[..value.len()].copy_from_slice(value);
        held.answer(&request, Asker::own()).unwrap()
    }

    fn int(reply: &Reply) -> i32 {
        assert_eq!(reply.status, 0);
        i32::from_ne_bytes(*reply.value().first_chunk().unwrap())
    }

    const NO_DELAY: (c_int, c_int) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    const CREDENTIALS: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_PEERCRED);

    /// This test has no pump.
    #[test]
    fn options_are_answered_without_a_pump() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let holdings = Holdings::default();
        let held = holdings.add(&Request::new([0; 16], Kind::New, 1), 0, network.into()).unwrap();
        for value in [1, 0, 1] {
            assert_eq!(ask(&holdings, Kind::SetOption, NO_DELAY, &i32::to_ne_bytes(value)).status, 0);
            assert_eq!(int(&ask(&holdings, Kind::GetOption, NO_DELAY, &[0; 4])), value);
        }
        // The engine's settings after a marker stay hidden, and the program's later settings are
        // remembered.
        ask(&holdings, Kind::SetOption, NO_DELAY, &0i32.to_ne_bytes());
        held.keep_options();
        assert_eq!(int(&ask(&holdings, Kind::GetOption, NO_DELAY, &[0; 4])), 0);
        ask(&holdings, Kind::SetOption, NO_DELAY, &5i32.to_ne_bytes());
        assert_eq!(int(&ask(&holdings, Kind::GetOption, NO_DELAY, &[0; 4])), 1);
        let reset = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
        assert_eq!(ask(&holdings, Kind::SetOption, (libc::SOL_SOCKET, libc::SO_LINGER), &reset).status, 0);
        assert_eq!(held.linger(), Some(Duration::ZERO));
        assert_eq!(ask(&holdings, Kind::SetOption, (libc::IPPROTO_TCP, libc::TCP_ULP), b"tls").status, libc::EINVAL);
        assert!(holdings.add(&Request::new([0; 16], Kind::New, 1), 0, listener.into()).is_none());
    }

    /// All zeros would mean root.
    #[test]
    fn the_peer_is_nobody_before_and_behind_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let holdings = Holdings::default();
        holdings.add(&Request::new([0; 16], Kind::New, 1), 0, network.into()).unwrap();
        let nobody = [0i32, -1, -1].map(i32::to_ne_bytes).concat();
        assert_eq!(ask(&holdings, Kind::GetOption, CREDENTIALS, &[0; 12]).value(), nobody);
        holdings.remove(1);
        assert_eq!(ask(&holdings, Kind::GetOption, CREDENTIALS, &[0; 12]).value(), nobody);
        // TCP_CLOSE
        assert_eq!(ask(&holdings, Kind::GetOption, (libc::IPPROTO_TCP, libc::TCP_INFO), &[0; 64]).value()[0], 7);
        assert_eq!(ask(&holdings, Kind::SetOption, NO_DELAY, &1i32.to_ne_bytes()).status, 0);
        assert_eq!(ask(&holdings, Kind::SetOption, NO_DELAY, &[1]).status, libc::EINVAL);
        let hops = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
        assert!([0, libc::ENOBUFS].contains(&ask(&holdings, Kind::GetOption, hops, &[0; 4]).status));
    }
}
