//! Connection proof: what the kernel knows about how a connection began, which claims rest on
//! (format.md section 11.3). Any user may read it from a socket that he holds.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use narrows::upgrade::Tuple;

use super::sys;
use super::wire::{RawAddress, Request, host_and_port};

/// Offset in TCP_INFO of the round-trip time in microseconds.
const INFO_RTT: usize = 68;
/// Room for an IPv6 header with extensions and a TCP header. A longer SYN is not a usual one.
const SYN_MAX: usize = 512;

/// The addresses of both ends, the client's first.
pub(crate) fn addresses(request: &Request) -> Option<Tuple> {
    let known = |raw| address(raw).filter(|a| !a.ip().is_unspecified());
    let (local, peer) = (known(&request.local)?, known(&request.peer)?);
    Some(if request.accepted { Tuple::new(peer, local) } else { Tuple::new(local, peer) })
}

pub(crate) fn address(raw: &RawAddress) -> Option<SocketAddr> {
    host_and_port(raw).map(|(host, port)| SocketAddr::new(host, port))
}

/// The client's TCP timestamp clock when the SYN left that was, or will be, answered. Call it as
/// soon as the socket is there: for an established connection the kernel knows how long the SYN
/// took, and for one being made the SYN has only just left.
pub(crate) fn clock_at_syn(network: impl AsFd, connecting: bool) -> Option<u32> {
    let network = network.as_fd();
    let mut clock = [0; 4];
    let len = sys::get_option(network, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &mut clock).ok()?;
    let clock_ms = (len == clock.len()).then(|| u32::from_ne_bytes(clock))?;
    if connecting {
        return Some(clock_ms);
    }
    let mut info = [0; INFO_RTT + 4];
    sys::get_option(network, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let rtt_us = u32::from_ne_bytes(*info[INFO_RTT..].first_chunk()?);
    Some(clock_ms.wrapping_sub(rtt_us / 1000))
}

/// The client's TCP timestamp clock from the SYN of an accepted socket. The kernel tells it once,
/// and only if TCP_SAVE_SYN was set on the listener.
pub(crate) fn clock_in_syn(network: impl AsFd) -> Option<u32> {
    let mut syn = [0; SYN_MAX];
    let len = sys::get_option(network, libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut syn).ok()?;
    timestamp(tcp_header(&syn[..len])?)
}

/// The TCP header that follows an IPv4 or IPv6 header.
fn tcp_header(packet: &[u8]) -> Option<&[u8]> {
    match packet.first()? >> 4 {
        4 => packet.get(usize::from(packet[0] & 0x0f) * 4..),
        6 => {
            let (mut next, mut at) = (*packet.get(6)?, 40);
            // Hop-by-hop options, routing, destination options. Each round advances by at least
            // eight bytes.
            while matches!(next, 0 | 43 | 60) {
                let [follows, len] = *packet.get(at..)?.first_chunk()?;
                (next, at) = (follows, at + (usize::from(len) + 1) * 8);
            }
            (next == libc::IPPROTO_TCP as u8).then(|| packet.get(at..))?
        }
        _ => None,
    }
}

/// The sender's value in the timestamps option.
fn timestamp(header: &[u8]) -> Option<u32> {
    let len = usize::from(header.get(12)? >> 4) * 4;
    let mut options = header.get(20..len)?;
    loop {
        options = match options {
            [] | [0, ..] => return None,
            [1, rest @ ..] => rest,
            [8, 10, rest @ ..] => return Some(u32::from_be_bytes(*rest.first_chunk()?)),
            [_, len, ..] => options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// The proof itself: the client reads the same clock from its socket as its SYN told the
    /// server.
    #[test]
    fn both_ends_of_a_connection_know_the_same_clock() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            sys::set_option(&listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32.to_ne_bytes()).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (at, within) = (clock_at_syn(&client, false), clock_in_syn(&server));
            let apart = at.unwrap().wrapping_sub(within.unwrap()) as i32;
            assert!(apart.abs() < 10_000, "{host}: {apart} ms");
            assert_eq!(clock_in_syn(&server), None, "it is told once");
        }
    }

    #[test]
    fn headers_that_make_no_sense_tell_nothing() {
        let mut v4 = vec![0x45; 20];
        v4.extend([0; 12]);
        v4.extend([0x80, 2, 0, 0, 0, 0, 0, 0, 1, 1, 8, 10, 1, 2, 3, 4]);
        let read = |packet: &[u8]| timestamp(tcp_header(packet)?);
        assert_eq!(read(&v4), None, "cut short");
        v4.extend([5; 4]);
        assert_eq!(read(&v4), Some(0x0102_0304));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
        v6.extend([0; 32]);
        v6.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        v6.extend(&v4[20..]);
        assert_eq!(read(&v6), Some(0x0102_0304));
        for bad in [&[][..], &[0x45], &[0x60; 7], &[0x60; 48], &[0x10; 60]] {
            assert_eq!(read(bad), None);
        }
        // An option of length zero must not loop for ever or panic.
        v4[40] = 3;
        v4[41] = 0;
        assert_eq!(read(&v4), Some(0x0102_0304));
        for cut in 20..v4.len() {
            let _ = read(&v4[..cut]);
        }
    }
}
