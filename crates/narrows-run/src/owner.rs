//! Owner of a TCP connection. An agent that serves several users trusts none of them about the
//! connections of others: whoever could register those could have frames sent into them.

use std::net::SocketAddr;

use narrows::upgrade::Tuple;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};

use super::wire::mapped;

/// Constants of sock_diag and netlink, not defined by libc.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const LISTEN: u8 = 10;
const HEADER: usize = 16;
/// Offsets in the kernel's answer, after the header.
const STATE: usize = 1;
const PORTS: usize = 4;
const UID: usize = 4 + 48 + 12;

/// The user who owns the server's end of that connection on this host. `None` if nobody does, or
/// the kernel does not tell.
pub(crate) fn of(addresses: Tuple) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG)).ok()?;
    // The kernel answers within the call that asks; the timeout is for a kernel that does not.
    let patience = Some(std::time::Duration::from_millis(100));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience).ok()?;
    send(&socket, &question(addresses.server(), addresses.client()), SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    let answer = &answer[..len];
    if u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let answer = answer.get(HEADER..)?;
    // If there is no such connection the kernel names a listener.
    let ports = [addresses.server().port(), addresses.client().port()].map(u16::to_be_bytes).concat();
    if answer.get(STATE) == Some(&LISTEN) || answer.get(PORTS..PORTS + 4) != Some(&ports) {
        return None;
    }
    let [uid, inode] = [UID, UID + 4].map(|at| answer.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes));
    // Without an inode no program has accepted it yet.
    uid.filter(|_| inode.is_some_and(|i| i != 0))
}

fn question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let (local, peer) = (canonical(local), canonical(peer));
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    for address in [local, peer] {
        body.extend(address.port().to_be_bytes());
    }
    for address in [local, peer] {
        match address {
            SocketAddr::V4(v4) => body.extend([&v4.ip().octets()[..], &[0; 12]].concat()),
            SocketAddr::V6(_) => body.extend(mapped(address.ip()).octets()),
        }
    }
    // Any interface, any cookie.
    body.extend([0; 4]);
    body.extend([0xff; 8]);
    let mut all = Vec::with_capacity(HEADER + body.len());
    all.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    all.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    all.extend(REQUEST.to_ne_bytes());
    all.extend([0; 8]);
    all.extend(body);
    all
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_its_users_and_one_that_is_not_there_is_nobodys() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let from = client.local_addr().unwrap();
            assert_eq!(of(Tuple::new(from, at)), None, "{host}: nobody has accepted it");
            let (_server, _) = listener.accept().unwrap();
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(of(Tuple::new(from, at)), Some(own), "{host}");
            let other = SocketAddr::new(from.ip(), from.port() ^ 1);
            assert_eq!(of(Tuple::new(other, at)), None, "{host}: that is the listener");
        }
    }
}
