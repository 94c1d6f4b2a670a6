//! How the supervisor's descriptors are divided. Programs do not wait to hear that a connection was taken, so there has to
//! be room for every one that can be handed over.

use super::negotiator::HOSTS_MAX;

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
}

impl Budget {
    /// Of so many descriptors.
    pub(crate) fn of(limit: usize) -> Self {
        let rest = limit.saturating_sub(OWN);
        let mut budget = Self {
            connections: 1,
            backlog: (rest / 16).clamp(2, BACKLOG_MAX + 1) - 1,
            silent: (rest / 48).clamp(1, SILENT_MAX),
            failed: (rest / 16).clamp(1, FAILED_MAX),
            negotiating: (rest / 8).min(2 * HOSTS_MAX),
            processes: (rest / 8).clamp(1, PROCESSES_MAX),
        };
        budget.connections = (rest.saturating_sub(budget.others()) / 2).max(1);
        budget
    }

    /// What is not for connections.
    fn others(&self) -> usize {
        2 * (self.backlog + 1) + 3 * self.silent + self.failed + self.negotiating + self.processes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_exceeded_and_most_is_for_connections() {
        for limit in (48..3000).chain([4096, 20_000, 65_536, 1 << 20]) {
            let budget = Budget::of(limit);
            assert!(OWN + budget.others() + 2 * budget.connections <= limit, "{limit}: {budget:?}");
            if limit >= 1024 {
                assert!(4 * budget.connections > limit - 64, "{limit}: {budget:?}");
            }
        }
        assert!(Budget::of(0).connections > 0);
        assert!(Budget::of(64).connections >= 5);
        assert!(Budget::of(1 << 20).connections > 450_000);
    }
}
