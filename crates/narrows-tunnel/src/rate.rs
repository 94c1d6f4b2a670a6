//! How often each host may do something: a burst, then so many a second.

use std::collections::HashMap;
use std::net::IpAddr;

use narrows::upgrade::host_of;
use narrows_host::shares::ALONE;

use super::limits::{HOSTS_MAX, KNOWN_NS};

const SECOND_NS: u64 = 1_000_000_000;

/// Rates of hosts.
pub struct Rates {
    burst: u32,
    per_s: u32,
    /// When the bucket of each host would be full again.
    full_ns: HashMap<IpAddr, u64>,
}

impl Rates {
    pub fn new(burst: u32, per_s: u32) -> Self {
        Self { burst, per_s, full_ns: HashMap::new() }
    }

    /// Goes on with another rate.
    pub fn set(&mut self, burst: u32, per_s: u32) {
        (self.burst, self.per_s) = (burst, per_s);
    }

    /// Whether a host may do it once more now.
    pub fn allow(&mut self, address: IpAddr, now_ns: u64) -> bool {
        let each_ns = SECOND_NS / u64::from(self.per_s.max(1));
        let host = host_of(address);
        if self.full_ns.len() >= HOSTS_MAX && !self.full_ns.contains_key(&host) {
            self.full_ns.retain(|_, full_ns| *full_ns > now_ns);
            if self.full_ns.len() >= HOSTS_MAX {
                // An attacker with so many networks is not stopped by a rate.
                self.full_ns.clear();
            }
        }
        let full_ns = self.full_ns.entry(host).or_insert(now_ns);
        let next_ns = (*full_ns).max(now_ns) + each_ns;
        if next_ns > now_ns + each_ns * u64::from(self.burst) {
            return false;
        }
        *full_ns = next_ns;
        true
    }
}

/// Handshakes of all hosts, of which those have precedence whose clients have proved themselves.
pub struct Greetings {
    /// Of the others.
    rate: Rates,
    known_until_ns: HashMap<IpAddr, u64>,
}

impl Greetings {
    pub fn new(burst: u32, per_s: u32) -> Self {
        Self { rate: Rates::new(burst, per_s), known_until_ns: HashMap::new() }
    }

    /// A client of this host has proved itself.
    pub fn note(&mut self, address: IpAddr, now_ns: u64) {
        let (host, known) = (host_of(address), &mut self.known_until_ns);
        if known.len() >= HOSTS_MAX && !known.contains_key(&host) {
            // The one that was seen longest ago makes room.
            let oldest = known.iter().min_by_key(|(_, until_ns)| **until_ns).map(|(host, _)| *host);
            oldest.map(|oldest| known.remove(&oldest));
        }
        known.insert(host, now_ns + KNOWN_NS);
    }

    /// Whether a host may begin a handshake now.
    pub fn allow(&mut self, address: IpAddr, now_ns: u64) -> bool {
        let known_until_ns = self.known_until_ns.get(&host_of(address));
        known_until_ns.is_some_and(|until_ns| now_ns < *until_ns) || self.rate.allow(ALONE, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_its_burst_and_then_its_rate() {
        let mut rates = Rates::new(10, 5);
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        let times = |rates: &mut Rates, at| (0..100).filter(|_| rates.allow(one, at)).count();
        assert_eq!(times(&mut rates, SECOND_NS), 10);
        assert_eq!(times(&mut rates, 2 * SECOND_NS), 5);
        assert_eq!(times(&mut rates, 100 * SECOND_NS), 10);
        assert!(rates.allow("10.0.0.2".parse().unwrap(), 100 * SECOND_NS), "another host");
    }

    #[test]
    fn many_hosts_take_bounded_memory() {
        let mut rates = Rates::new(1, 1);
        for i in 0..3 * HOSTS_MAX as u32 {
            assert!(rates.allow(std::net::Ipv4Addr::from(i).into(), SECOND_NS));
        }
        assert!(rates.full_ns.len() <= HOSTS_MAX);
    }

    #[test]
    fn a_flood_of_handshakes_keeps_out_no_host_that_is_known() {
        let mut greetings = Greetings::new(8, 8);
        let host = |i: u32| IpAddr::from(std::net::Ipv4Addr::from(i));
        greetings.note(host(1), 0);
        assert_eq!((100..200).filter(|i| greetings.allow(host(*i), SECOND_NS)).count(), 8);
        assert!((0..100).all(|_| greetings.allow(host(1), SECOND_NS)) && !greetings.allow(host(2), SECOND_NS));
        // Nobody is known for ever.
        let later = KNOWN_NS + 1;
        assert_eq!((0..100).filter(|_| greetings.allow(host(1), later)).count(), 8);
    }

    #[test]
    fn of_known_hosts_the_oldest_make_room() {
        let mut greetings = Greetings::new(1, 1);
        let host = |i: u32| IpAddr::from(std::net::Ipv4Addr::from(i));
        (0..=HOSTS_MAX as u32).for_each(|i| greetings.note(host(i), u64::from(i)));
        assert_eq!(greetings.known_until_ns.len(), HOSTS_MAX);
        assert!(!greetings.known_until_ns.contains_key(&host(0)) && greetings.known_until_ns.contains_key(&host(1)));
    }
}
