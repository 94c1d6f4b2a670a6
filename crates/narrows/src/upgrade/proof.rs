//! Verifies that a claim describes the connection that a server's supervisor holds (format.md
//! section 11.3).

use core::net::{IpAddr, SocketAddr};

use super::message::{Claim, Reason};

/// Largest difference, in ms, between the client's clock when its SYN left, as claimed, and the
/// timestamp in the SYN. Both agreed within 1 ms in measurements; a busy machine reads the clock
/// later than it sent the SYN.
pub const CLOCK_TOLERANCE_MS: u32 = 500;

/// The addresses of a connection. An IPv4 address equals its mapped IPv6 form; scopes are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    client: SocketAddr,
    server: SocketAddr,
}

impl Tuple {
    /// The canonical form of the two addresses.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let plain = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Self { client: plain(client), server: plain(server) }
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The server's address.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// Compares a claim with a connection: the addresses that the server sees, the clock in the
/// client's SYN if there was one, and the address that the side channel comes from.
///
/// # Errors
/// The reason to refuse the claim.
pub(super) fn verify(claim: &Claim, seen: Tuple, syn_clock_ms: Option<u32>, channel: IpAddr) -> Result<(), Reason> {
    if seen.client().ip() != channel.to_canonical() {
        return Err(Reason::Address);
    }
    let near = |syn: u32| {
        // The clock wraps every 50 days.
        let ahead = claim.clock_ms.wrapping_sub(syn);
        ahead.min(ahead.wrapping_neg()) <= CLOCK_TOLERANCE_MS
    };
    if claim.tuple != seen || !syn_clock_ms.is_some_and(near) {
        return Err(Reason::Proof);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn claim(clock_ms: u32) -> Claim {
        let tuple = Tuple::new(addr("10.0.0.1:40000"), addr("10.0.0.2:5432"));
        Claim { id: 1, tuple, clock_ms, nonce: [7; 16] }
    }

    #[test]
    fn the_clock_may_be_half_a_second_off_in_either_direction_also_where_it_wraps() {
        let seen = claim(0).tuple;
        let host = addr("10.0.0.1:1").ip();
        for (said, syn, good) in [
            (1000, 1000, true),
            (1500, 1000, true),
            (1501, 1000, false),
            (500, 1000, true),
            (499, 1000, false),
            (100, u32::MAX - 200, true),
            (u32::MAX - 200, 100, true),
            (1 << 31, 0, false),
        ] {
            assert_eq!(verify(&claim(said), seen, Some(syn), host).is_ok(), good, "{said} {syn}");
        }
        assert_eq!(verify(&claim(1), seen, None, host), Err(Reason::Proof), "a SYN without timestamps proves nothing");
    }

    #[test]
    fn every_part_of_the_addresses_counts_and_no_way_of_writing_them() {
        let mapped = Tuple::new(addr("[::ffff:10.0.0.1]:40000"), addr("[::ffff:10.0.0.2]:5432"));
        let host = addr("[::ffff:10.0.0.1]:9").ip();
        assert_eq!(verify(&claim(5), mapped, Some(5), host), Ok(()));
        for (client, server) in [
            ("10.0.0.1:40001", "10.0.0.2:5432"),
            ("10.0.0.1:40000", "10.0.0.2:5433"),
            ("10.0.0.1:40000", "10.0.0.3:5432"),
        ] {
            let seen = Tuple::new(addr(client), addr(server));
            assert_eq!(verify(&claim(5), seen, Some(5), host), Err(Reason::Proof), "{client} {server}");
        }
        let other = addr("10.0.0.9:1").ip();
        assert_eq!(verify(&claim(5), mapped, Some(5), other), Err(Reason::Address));
    }
}
