//! Allowance of what peers may ask for before the sockets are looked at again: so much of each host, and of all
//! together. Hosts that wait are served in turn.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::limits::{ALL_ASKS_AT_A_TIME, ASKS_AT_A_TIME, HOSTS_MAX};

type Host = Option<IpAddr>;

/// The allowances of a turn.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// What each host has asked for in this turn, and all of them.
    asked: HashMap<Host, usize>,
    of_all: usize,
    /// Most for each host in this turn: where many wait, all have a part.
    most: usize,
    turn: u64,
    /// When hosts that wait, or did lately, last had something.
    served: HashMap<Host, u64>,
    /// Some waited when the turn began, and have not been served yet.
    has_waiting: bool,
}

impl Asks {
    /// Begins another turn. `has_waiting`: hosts wait since the last one.
    pub(super) fn begin(&mut self, has_waiting: bool) {
        self.asked.clear();
        (self.of_all, self.most, self.has_waiting) = (0, ASKS_AT_A_TIME, has_waiting);
        self.turn += 1;
        if !has_waiting || self.served.len() >= HOSTS_MAX {
            self.served.clear();
        }
    }

    /// What a host may still ask for. Nothing while others wait that come first: it waits with them.
    pub(super) fn left(&self, host: Host) -> usize {
        if self.has_waiting {
            return 0;
        }
        let own = self.most.saturating_sub(self.asked.get(&host).copied().unwrap_or(0));
        own.min(ALL_ASKS_AT_A_TIME.saturating_sub(self.of_all))
    }

    /// A host has asked for so much.
    pub(super) fn take(&mut self, host: Host, count: usize) {
        if count > 0 {
            *self.asked.entry(host).or_default() += count;
            self.of_all += count;
            self.served.insert(host, self.turn);
        }
    }

    /// Divides the turn among the hosts that wait, and puts those who wait in the order in which they are
    /// served now: those whose host had nothing for longest come first.
    pub(super) fn serve<T>(&mut self, waiting: impl IntoIterator<Item = (Host, T)>) -> Vec<T> {
        self.has_waiting = false;
        let mut waiting: Vec<_> = waiting.into_iter().collect();
        let hosts = waiting.iter().map(|(host, _)| host).collect::<HashSet<_>>().len();
        self.most = (ALL_ASKS_AT_A_TIME / hosts.max(1)).clamp(1, ASKS_AT_A_TIME);
        waiting.sort_by_cached_key(|(host, _)| self.served.get(host).copied().unwrap_or(0));
        waiting.into_iter().map(|(_, one)| one).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(i: u32) -> Host {
        Some(Ipv4Addr::from(i).into())
    }

    /// Turns in which so many hosts ask without end, and another one for one thing now and then. Returns how
    /// often that one had to wait for a further turn, and what each of the others got at least and at most.
    fn flood(hosts: u32) -> (usize, [usize; 2]) {
        const MODEST: Host = Some(IpAddr::V4(Ipv4Addr::BROADCAST));
        let (mut asks, mut waiting, mut waited) = (Asks::default(), Vec::new(), 0);
        let mut got: HashMap<Host, usize> = HashMap::new();
        for turn in 0..400 {
            asks.begin(!waiting.is_empty());
            let mut of_turn = 0;
            let mut is_content = |asks: &mut Asks, of: Host| {
                let wants = if of == MODEST { 1 } else { usize::MAX };
                let count = asks.left(of).min(wants);
                asks.take(of, count);
                of_turn += count;
                *got.entry(of).or_default() += count;
                count == wants
            };
            let comes = (turn % 7 == 6 && !waiting.contains(&MODEST)).then_some(MODEST);
            let events = if turn == 0 { (0..hosts).map(host).collect() } else { Vec::from_iter(comes) };
            waiting.extend(events.into_iter().filter(|of| !is_content(&mut asks, *of)));
            waiting = asks.serve(waiting.into_iter().map(|of| (of, of)));
            waiting.retain(|of| !is_content(&mut asks, *of));
            assert!(of_turn <= ALL_ASKS_AT_A_TIME, "turn {turn}: {of_turn}");
            waited += usize::from(waiting.contains(&MODEST));
        }
        let of_others = (0..hosts).map(|i| got.get(&host(i)).copied().unwrap_or(0));
        (waited, [of_others.clone().min().unwrap(), of_others.max().unwrap()])
    }

    #[test]
    fn a_client_with_many_addresses_lets_others_ask_in_the_same_turn() {
        let (waited, [least, most]) = flood(40);
        assert!(waited == 0 && least > 300 && most <= least + ASKS_AT_A_TIME, "{waited}, {least} to {most}");
        // With more addresses than there are in a turn, all have their turns.
        let (waited, [least, most]) = flood(300);
        assert!(waited < 400 / 2 && least > 50 && most <= least + ASKS_AT_A_TIME, "{waited}, {least} to {most}");
    }

    #[test]
    fn one_host_alone_has_its_part() {
        let mut asks = Asks::default();
        asks.begin(false);
        assert_eq!(asks.left(None), ASKS_AT_A_TIME);
        asks.take(None, ASKS_AT_A_TIME);
        assert_eq!((asks.left(None), asks.left(host(1))), (0, ASKS_AT_A_TIME));
        asks.begin(false);
        assert_eq!(asks.left(None), ASKS_AT_A_TIME);
    }
}
