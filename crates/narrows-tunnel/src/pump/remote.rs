//! A listener that a dialer wants at its acceptor: answered, and asked for again.

use super::uplink::STEADY_NS;
use crate::backoff::Backoff;

/// An answer that did not come within this time is asked for again: it was lost with the carrier that had
/// it, or the request was.
const ANSWER_NS: u64 = 10_000_000_000;
/// What is told then.
pub(super) const NO_ANSWER: &str = "the other end does not answer";

/// A listener at the acceptor.
#[derive(Default)]
pub(super) struct Remote {
    /// When it is asked for again: no answer came, or it was refused, and what was in the way may go.
    pub(super) retry_ns: Option<u64>,
    /// It was asked for, and not answered yet.
    awaits_answer: bool,
    /// Since when it has been there.
    there_ns: Option<u64>,
    backoff: Backoff,
    /// Why it was refused, as it was told.
    why: String,
}

impl Remote {
    /// It is asked for.
    pub(super) fn is_asked(&mut self, now_ns: u64) {
        self.retry_ns = Some(now_ns.saturating_add(ANSWER_NS));
        self.awaits_answer = true;
    }

    /// Whether it is to be asked for again now.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        self.retry_ns.take_if(|at_ns| *at_ns <= now_ns).is_some()
    }

    /// Whether the last request was not answered and nobody was told.
    pub(super) fn lacks_answer(&mut self) -> bool {
        self.awaits_answer && self.is_news(NO_ANSWER)
    }

    fn is_news(&mut self, why: &str) -> bool {
        let is_new = self.why != why;
        if is_new {
            why.clone_into(&mut self.why);
        }
        is_new
    }

    /// The acceptor listens. Returns whether that is new.
    pub(super) fn stands(&mut self, now_ns: u64) -> bool {
        (self.retry_ns, self.awaits_answer) = (None, false);
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
        self.awaits_answer = false;
        self.is_news(why)
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

    #[test]
    fn what_is_not_answered_is_asked_for_again_and_told_once() {
        let mut remote = Remote::default();
        for attempt in 0..3 {
            let now_ns = attempt * ANSWER_NS;
            remote.is_asked(now_ns);
            assert!(!remote.is_due(now_ns + ANSWER_NS - 1) && remote.is_due(now_ns + ANSWER_NS), "{attempt}");
            assert_eq!(remote.lacks_answer(), attempt == 0);
        }
        remote.is_asked(0);
        assert!(remote.fails("no", 0, 0) && remote.is_due(1_000_000_000) && !remote.lacks_answer());
        remote.is_asked(0);
        assert!(remote.stands(0) && !remote.is_due(u64::MAX), "it is there");
    }
}
