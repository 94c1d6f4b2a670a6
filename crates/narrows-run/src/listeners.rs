//! Tracks which addresses that programs listened on still have a listener. A program reports when
//! it begins to listen; it may stop in many ways, and the supervisor holds no descriptor that would
//! show it.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Listeners remembered. Programs with more are rare, and each is searched among all listeners.
const LISTENERS_MAX: usize = 4096;
/// Lines read per table. Listeners beyond it are not seen.
const LINES_MAX: usize = 65_536;
/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

#[derive(Default)]
pub(crate) struct Listeners(BTreeSet<SocketAddr>);

impl Listeners {
    /// False if it was known already, or there are too many.
    pub(crate) fn add(&mut self, address: SocketAddr) -> bool {
        self.0.len() < LISTENERS_MAX && self.0.insert(address)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(SocketAddr::port)
    }

    /// Forgets and returns those that no socket listens on any more.
    pub(crate) fn take_ended(&mut self) -> Vec<SocketAddr> {
        let Ok(there) = listening() else { return Vec::new() };
        let ended: Vec<_> = self.0.iter().copied().filter(|a| !there.contains(a)).collect();
        self.0.retain(|address| there.contains(address));
        ended
    }
}

/// All listeners of this network namespace.
fn listening() -> Result<HashSet<SocketAddr>> {
    let mut all = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let file = match File::open(table) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && table.ends_with('6') => continue,
            file => file?,
        };
        for line in BufReader::new(file).lines().skip(1).take(LINES_MAX) {
            let line = line?;
            let mut words = line.split_whitespace().skip(1);
            let (address, state) = (words.next(), words.nth(1));
            // The kernel lists listeners first, and there may be very many others.
            if state != Some(LISTENING) {
                break;
            }
            all.extend(address.and_then(parse));
        }
    }
    Ok(all)
}

/// Parses `0100007F:1F90`: 32-bit words of the address in memory order, then the port.
fn parse(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<u8>> = (0..host.len() / 8)
        .map(|i| u32::from_str_radix(host.get(8 * i..8 * i + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect::<Option<Vec<_>>>()
        .map(|words| words.concat());
    let words = words?;
    let host = match (words.first_chunk::<16>(), words.first_chunk::<4>()) {
        (Some(v6), _) => IpAddr::V6(Ipv6Addr::from(*v6)),
        (None, Some(v4)) => IpAddr::V4(Ipv4Addr::from(*v4)),
        _ => return None,
    };
    Some(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_there_until_it_is_closed() {
        let mut listeners = Listeners::default();
        let open: Vec<_> =
            ["127.0.0.1:0", "[::1]:0", "[::]:0"].iter().filter_map(|a| TcpListener::bind(a).ok()).collect();
        for listener in &open {
            let address = listener.local_addr().unwrap();
            assert!(listeners.add(address) && !listeners.add(address));
        }
        assert_eq!(listeners.take_ended(), []);
        let ports: Vec<_> = listeners.ports().collect();
        drop(open);
        let ended: Vec<_> = listeners.take_ended().iter().map(SocketAddr::port).collect();
        assert_eq!((ended, listeners.is_empty()), (ports, true));
    }

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        assert_eq!(parse(&format!("{}:1F90", word([10, 1, 2, 3]))), Some("10.1.2.3:8080".parse().unwrap()));
        let v6 = [word([0x20, 1, 0xd, 0xb8]), word([0; 4]), word([0; 4]), word([0, 0, 0, 7])].concat();
        assert_eq!(parse(&format!("{v6}:0050")), Some("[2001:db8::7]:80".parse().unwrap()));
        for bad in ["", ":", "xx:1", "0100007F", "0100007F:zz", "é000007F:1F90"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
