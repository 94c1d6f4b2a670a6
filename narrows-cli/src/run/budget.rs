//! How the supervisor's descriptors are divided. Programs do not wait to hear that a connection was taken, so there has to
//! be room for every one that can be handed over.

use super::negotiator::HOSTS_MAX;
use super::seccomp::{UNTAKEN_MAX, WAITS_MAX};

/// For the supervisor itself: standard ones, threads and their clocks, the library's and the agent's sockets.
const OWN: usize = 32;
/// Processes that are waited for by name; with more, their connections still are.
const PROCESSES_MAX: usize = 65_536;
/// TCP sockets of connections that failed, until their program closes them or tries again.
const FAILED_MAX: usize = 256;
/// Lines that wait here to be accepted while a burst of connections begins; the kernel may allow less.
const BACKLOG_MAX: usize = 4096;
/// Lines that are accepted but have said nothing yet. A program says it at once.
const SILENT_MAX: usize = 256;
/// Of the engine that answers the kernel, for the one call that it answers: the process, its socket, a pair, another pair to
/// ask a pump and what comes with the answer; its own epoll and listener.
const CALL: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Two for each.
    pub(crate) connections: usize,
    /// Two for each connection that comes while the last that is allowed is taken: the kernel lets one more wait than this.
    pub(crate) backlog: usize,
    /// Three for each: the line, and what may come with it.
    pub(crate) silent: usize,
    pub(crate) failed: usize,
    pub(crate) negotiating: usize,
    pub(crate) processes: usize,
    /// Calls that wait for the network, where the kernel asks. Two for each: the socket and the process.
    pub(crate) waits: usize,
    /// Connections that were accepted there and not taken.
    pub(crate) untaken: usize,
}

impl Budget {
    /// Of so many descriptors. `asked`: the kernel asks about calls.
    pub(crate) fn of(limit: usize, asked: bool) -> Self {
        let rest = limit.saturating_sub(OWN);
        // Where the kernel asks there is no library that would speak.
        let lines = if asked { 0 } else { rest };
        let mut budget = Self {
            connections: 1,
            backlog: (lines / 16).clamp(2, BACKLOG_MAX + 1) - 1,
            silent: (lines / 48).clamp(1, SILENT_MAX),
            failed: (rest / 16).clamp(1, FAILED_MAX),
            negotiating: (rest / 8).min(2 * HOSTS_MAX),
            processes: (rest / 8).clamp(1, PROCESSES_MAX),
            waits: if asked { (rest / 32).clamp(1, WAITS_MAX) } else { 0 },
            untaken: if asked { (rest / 64).clamp(1, UNTAKEN_MAX) } else { 0 },
        };
        budget.connections = (rest.saturating_sub(budget.others()) / 2).max(1);
        budget
    }

    /// What is not for connections.
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
