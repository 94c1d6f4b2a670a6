//! How often each host may do something: a burst, then so many a second.

use std::collections::HashMap;
use std::net::IpAddr;

use narrows::upgrade::host_of;

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

/// Hosts that are known for some time.
#[derive(Default)]
pub struct Known {
    until_ns: HashMap<IpAddr, u64>,
}

impl Known {
    /// A host is known from now on.
    pub fn note(&mut self, address: IpAddr, now_ns: u64) {
        let host = host_of(address);
        if self.until_ns.len() >= HOSTS_MAX && !self.until_ns.contains_key(&host) {
            // The one that was seen longest ago makes room.
            let oldest = self.until_ns.iter().min_by_key(|(_, until_ns)| **until_ns).map(|(host, _)| *host);
            oldest.map(|oldest| self.until_ns.remove(&oldest));
        }
        self.until_ns.insert(host, now_ns + KNOWN_NS);
    }

    /// Whether a host is known.
    pub fn has(&self, address: IpAddr, now_ns: u64) -> bool {
        self.until_ns.get(&host_of(address)).is_some_and(|until_ns| now_ns < *until_ns)
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
    fn hosts_are_known_for_a_time_and_the_oldest_make_room() {
        let mut known = Known::default();
        let host = |i: u32| IpAddr::from(std::net::Ipv4Addr::from(i));
        (0..=HOSTS_MAX as u32).for_each(|i| known.note(host(i), u64::from(i)));
        assert_eq!(known.until_ns.len(), HOSTS_MAX);
        assert!(!known.has(host(0), HOSTS_MAX as u64) && known.has(host(1), HOSTS_MAX as u64));
        assert!(!known.has(host(1), KNOWN_NS + 1) && known.has(host(2), KNOWN_NS + 1));
    }
}
