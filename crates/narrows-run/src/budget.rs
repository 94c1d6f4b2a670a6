//! Division of the supervisor's descriptors. Programs do not wait to hear that a connection was
//! taken, so every connection that can be handed over must find room.

use super::negotiator::HOSTS_MAX;

/// For the supervisor itself: standard streams, threads and their timers, the library's and the
/// agent's sockets.
const OWN: usize = 32;
/// Processes watched individually; with more, the supervisor still waits for their connections.
const PROCESSES_MAX: usize = 65_536;
/// TCP sockets of failed connections, kept until their program closes them or tries again.
const FAILED_MAX: usize = 256;
/// Control connections waiting to be accepted during a burst of connections; the kernel may allow fewer.
const BACKLOG_MAX: usize = 4096;
/// Accepted control connections that have sent nothing yet. A program sends its request at once.
const SILENT_MAX: usize = 256;
/// For the filter: per answered call, of which there is one, the process, its socket, a
/// pair, another pair to ask a pump and a descriptor from the answer; and its own epoll and
/// listener.
const CALL: usize = 9;

/// Calls that may wait at a time (accept, connect); further ones are not waited for and stay plain.
pub(crate) const WAITS_MAX: usize = 1024;
/// Maximum of connections whose process had no descriptor left, or was killed, just when they were
/// accepted.
pub(crate) const UNTAKEN_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Two descriptors for each.
    pub connections: usize,
    /// Two descriptors for each connection that arrives while the last allowed one is taken: the
    /// kernel lets one more wait than this.
    pub backlog: usize,
    /// Three descriptors for each: the connection, and the two that may come with it.
    pub silent: usize,
    pub failed: usize,
    pub negotiating: usize,
    pub processes: usize,
    /// Calls waiting for the network under the filter. Two descriptors for each: the socket and
    /// the process.
    pub waits: usize,
    /// Connections accepted under the filter that their process has not taken.
    pub untaken: usize,
}

impl Budget {
    /// Divides `limit` descriptors. `asked`: whether the program runs under the filter.
    pub fn of(limit: usize, asked: bool) -> Self {
        let rest = limit.saturating_sub(OWN);
        // Under the filter no library sends requests.
        let controls = if asked { 0 } else { rest };
        let mut budget = Self {
            connections: 1,
            backlog: (controls / 16).clamp(2, BACKLOG_MAX + 1) - 1,
            silent: (controls / 48).clamp(1, SILENT_MAX),
            failed: (rest / 16).clamp(1, FAILED_MAX),
            negotiating: (rest / 8).min(2 * HOSTS_MAX),
            processes: (rest / 8).clamp(1, PROCESSES_MAX),
            waits: if asked { (rest / 32).clamp(1, WAITS_MAX) } else { 0 },
            untaken: if asked { (rest / 64).clamp(1, UNTAKEN_MAX) } else { 0 },
        };
        budget.connections = (rest.saturating_sub(budget.others()) / 2).max(1);
        budget
    }

    /// Descriptors that are not for connections.
    fn others(&self) -> usize {
        let asked = if self.waits > 0 { CALL + 2 * self.waits + self.untaken } else { 0 };
        2 * (self.backlog + 1) + 3 * self.silent + self.failed + self.negotiating + self.processes + asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_exceeded_and_most_is_for_connections() {
        for (limit, asked) in (48..3000).chain([4096, 20_000, 65_536, 1 << 20]).flat_map(|l| [(l, false), (l, true)]) {
            let budget = Budget::of(limit, asked);
            if limit >= 64 || !asked {
                assert!(OWN + budget.others() + 2 * budget.connections <= limit, "{limit}: {budget:?}");
            }
            if limit >= 1024 {
                assert!(4 * budget.connections > limit - 64, "{limit}: {budget:?}");
            }
            assert_eq!(budget.waits > 0 && budget.untaken > 0, asked);
        }
        assert!(Budget::of(0, true).connections > 0);
        assert!(Budget::of(64, false).connections >= 5 && Budget::of(64, true).connections >= 1);
        assert!(Budget::of(1 << 20, true).connections > 450_000);
    }
}
