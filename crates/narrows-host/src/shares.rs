//! Fair shares of a limited resource (places, or bytes of memory) that hosts hold for any time.
//!
//! The share of a host may not exceed what is still free. So a single host gets at most half of the
//! total, and however greedy it is, the next host gets half of the rest. A fixed limit per host
//! would be too low for one host and too high for many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narrows::upgrade::host_of;

/// The address to use if there is only one host.
pub const ALONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A limited resource that hosts share.
#[derive(Clone)]
pub struct Shares(Arc<Mutex<State>>);

struct State {
    free: usize,
    taken: HashMap<IpAddr, usize>,
}

impl Shares {
    /// A resource of `all` units.
    pub fn new(all: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: all, taken: HashMap::new() })))
    }

    /// An empty share for the host with this address.
    pub fn of(&self, address: IpAddr) -> Share {
        Share { of: self.clone(), host: host_of(address), amount: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An amount of the resource, returned when it is dropped.
pub struct Share {
    of: Shares,
    host: IpAddr,
    amount: usize,
}

impl Share {
    /// A separate share of `amount` for the same host, if it may have it.
    pub fn more(&self, amount: usize) -> Option<Self> {
        let mut share = self.of.of(self.host);
        share.grow(amount).then_some(share)
    }

    /// Adds `amount` to the share; false if the host may not have that much.
    pub fn grow(&mut self, amount: usize) -> bool {
        let State { free, taken } = &mut *self.of.lock();
        let before = taken.get(&self.host).copied().unwrap_or_default();
        if before.saturating_add(amount) > *free {
            return false;
        }
        *free -= amount;
        taken.insert(self.host, before + amount);
        self.amount += amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let State { free, taken } = &mut *self.of.lock();
        *free += self.amount;
        if let Some(left) = taken.get_mut(&self.host) {
            *left -= self.amount;
            if *left == 0 {
                taken.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(shares: &Shares, address: &str) -> Option<Share> {
        let mut share = shares.of(address.parse().unwrap());
        share.grow(1).then_some(share)
    }

    #[test]
    fn a_host_gets_half_of_what_others_leave_whichever_addresses_it_has() {
        let shares = Shares::new(128);
        let greedy = |network: u32| -> Vec<Share> {
            (0..1000).map_while(|i| take(&shares, &format!("2001:db8:0:{network}::{i:x}"))).collect()
        };
        let first = greedy(1);
        let others = [greedy(2), greedy(3)];
        assert_eq!([first.len(), others[0].len(), others[1].len()], [64, 32, 16]);
        drop(others);
        drop(first);
        assert!(shares.lock().taken.is_empty() && shares.lock().free == 128);
        let mapped: Vec<_> = ["10.0.0.1", "::ffff:10.0.0.1"].iter().map(|a| take(&shares, a)).collect();
        assert_eq!(mapped.len(), 2);
        assert_eq!(shares.lock().taken.len(), 1);
    }

    #[test]
    fn the_last_place_is_for_who_has_none() {
        let shares = Shares::new(2);
        let first = take(&shares, "10.0.0.1").unwrap();
        assert!(take(&shares, "10.0.0.1").is_none());
        let _second = take(&shares, "10.0.0.2").unwrap();
        assert!(take(&shares, "10.0.0.3").is_none());
        drop(first);
        assert!(take(&shares, "10.0.0.3").is_some());
    }
}
