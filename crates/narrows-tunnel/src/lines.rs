//! Lines about what was refused: a few in a second for each host, and then how many more there were.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::limits::{HOSTS_MAX, LINES_PER_S};
use super::settings::Report;

const SECOND_NS: u64 = 1_000_000_000;

/// What lines are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Flows,
    Peers,
}

impl Subject {
    pub(super) fn report(self, text: String) -> Report {
        match self {
            Self::Flows => Report::Flow { text },
            Self::Peers => Report::Peer { text },
        }
    }
}

type Key = (Option<IpAddr>, Subject);

/// Lines of the last second.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Those that were told, and those beyond.
    of_host: HashMap<Key, [u64; 2]>,
    /// When the second of each is over, in order.
    ends: VecDeque<(u64, Key)>,
}

impl Lines {
    /// Whether a line may be told. Otherwise it is counted.
    pub(super) fn may_tell(&mut self, host: Option<IpAddr>, about: Subject, now_ns: u64) -> bool {
        let is_one_of_many = self.of_host.len() >= HOSTS_MAX && !self.of_host.contains_key(&(host, about));
        // Then they share what those of no host have.
        let key = (host.filter(|_| !is_one_of_many), about);
        let [told, more] = self.of_host.entry(key).or_insert_with(|| {
            self.ends.push_back((now_ns + SECOND_NS, key));
            [0, 0]
        });
        let may = *told < LINES_PER_S;
        *(if may { told } else { more }) += 1;
        may
    }

    /// Whose second is over, if there were more lines in it than were told, and how many.
    pub(super) fn left_out(&mut self, now_ns: u64) -> Option<(Option<IpAddr>, Subject, u64)> {
        while let Some((_, key)) = self.ends.front().copied().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.ends.pop_front();
            if let Some([_, more]) = self.of_host.remove(&key)
                && more > 0
            {
                return Some((key.0, key.1, more));
            }
        }
        None
    }

    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        self.ends.front().map(|(at_ns, _)| *at_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(i: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from(i).into())
    }

    #[test]
    fn a_host_has_some_lines_in_a_second_and_is_told_how_many_more_there_were() {
        let mut lines = Lines::default();
        let told = |lines: &mut Lines, of, now_ns| {
            (0..1000).filter(|_| lines.may_tell(host(of), Subject::Flows, now_ns)).count() as u64
        };
        assert_eq!(told(&mut lines, 1, 0), LINES_PER_S);
        assert_eq!(told(&mut lines, 2, 5), LINES_PER_S, "another host");
        assert!(lines.may_tell(host(1), Subject::Peers, 5), "other lines");
        assert_eq!((lines.left_out(SECOND_NS - 1), lines.next_wakeup_ns()), (None, Some(SECOND_NS)));
        assert_eq!(lines.left_out(SECOND_NS), Some((host(1), Subject::Flows, 1000 - LINES_PER_S)));
        assert_eq!(told(&mut lines, 1, SECOND_NS), LINES_PER_S, "a second later");
        assert_eq!(lines.left_out(SECOND_NS + 5), Some((host(2), Subject::Flows, 1000 - LINES_PER_S)));
        assert_eq!(lines.left_out(SECOND_NS + 5), None);
        assert!(lines.left_out(2 * SECOND_NS).is_some() && lines.next_wakeup_ns().is_none());
    }

    #[test]
    fn many_hosts_take_bounded_memory() {
        let mut lines = Lines::default();
        let told = (0..3 * HOSTS_MAX as u32).filter(|i| lines.may_tell(host(*i), Subject::Flows, 0)).count();
        assert_eq!(told, HOSTS_MAX + LINES_PER_S as usize);
        assert!(lines.of_host.len() <= HOSTS_MAX + 1 && lines.ends.len() <= HOSTS_MAX + 1);
    }
}
