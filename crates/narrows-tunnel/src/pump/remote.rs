//! A listener that a dialer wants at its acceptor: answered, and asked for again.

use super::uplink::STEADY_NS;
use crate::backoff::Backoff;

/// A listener at the acceptor.
#[derive(Default)]
pub(super) struct Remote {
    /// When it is asked for again: it was refused, and what was in the way may go.
    pub(super) retry_ns: Option<u64>,
    /// Since when it has been there.
    there_ns: Option<u64>,
    backoff: Backoff,
    /// Why it was refused, as it was told.
    why: String,
}

impl Remote {
    /// The acceptor listens. Returns whether that is new.
    pub(super) fn stands(&mut self, now_ns: u64) -> bool {
        self.retry_ns = None;
        self.why.clear();
        let is_new = self.there_ns.is_none();
        self.there_ns.get_or_insert(now_ns);
        is_new
    }

    /// The acceptor does not listen, or not any more. Returns whether that is new: further attempts fail in
    /// the same way.
    pub(super) fn fails(&mut self, why: &str, now_ns: u64, random: u64) -> bool {
        // One that comes and goes is a series of failures.
        if self.there_ns.take().is_some_and(|since_ns| now_ns >= since_ns + STEADY_NS) {
            self.backoff.reset();
        }
        self.retry_ns = Some(now_ns.saturating_add(self.backoff.next_ns(random)));
        let is_new = self.why != why;
        if is_new {
            why.clone_into(&mut self.why);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_and_takes_it_in_turn_is_asked_less_and_less() {
        let mut remote = Remote::default();
        let (mut now_ns, mut told) = (0, 0);
        while now_ns < 60_000_000_000 {
            told += u32::from(remote.stands(now_ns)) + u32::from(remote.fails("no", now_ns, 0));
            now_ns = remote.retry_ns.unwrap();
        }
        assert!(told < 20, "{told} lines in a minute");
        // One that was there for long is asked for again at once.
        assert!(remote.stands(now_ns) && !remote.stands(now_ns + 1));
        now_ns += STEADY_NS;
        assert!(remote.fails("no", now_ns, 0) && !remote.fails("no", now_ns, 0));
        assert!(remote.retry_ns.unwrap() - now_ns < 1_000_000_000);
    }
}
