//! Which answers about its listeners a dialer may be given.

use std::collections::HashMap;

/// Requests for one listener whose answers may still come. It is repeated each 10 s without one, and a
/// carrier is lost after 45 s of silence.
const OWED_MAX: u32 = 4;

/// Listeners that a dialer asked for, by their numbers.
#[derive(Default)]
pub(super) struct Answers(HashMap<u64, Asked>);

#[derive(Default)]
struct Asked {
    owed: u32,
    /// By the last answer.
    is_there: bool,
}

impl Answers {
    /// It is asked for.
    pub(super) fn owe(&mut self, number: u64) {
        let asked = self.0.entry(number).or_default();
        asked.owed = (asked.owed + 1).min(OWED_MAX);
    }

    /// Takes an answer: whether it is one to a request, or says that a listener that was there has ended.
    pub(super) fn take(&mut self, number: u64, is_there: bool) -> bool {
        let Some(asked) = self.0.get_mut(&number) else { return false };
        let has_ended = asked.is_there && !is_there;
        if asked.owed == 0 && !has_ended {
            return false;
        }
        // The end may have crossed a request, which is answered too.
        asked.owed -= u32::from(!has_ended);
        asked.is_there = is_there;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_answer_for_a_request_and_one_for_an_end() {
        let mut answers = Answers::default();
        assert!(!answers.take(3, true) && !answers.take(3, false), "not asked for");
        answers.owe(3);
        assert!(answers.take(3, true) && !answers.take(3, true));
        assert!(answers.take(3, false), "withdrawn");
        assert!(!answers.take(3, false) && !answers.take(3, true) && !answers.take(4, false));
        answers.owe(3);
        assert!(answers.take(3, false) && !answers.take(3, false), "refused");
        answers.owe(3);
        assert!(answers.take(3, true));
        answers.owe(3);
        assert!(answers.take(3, false) && answers.take(3, false) && !answers.take(3, false), "both at once");
    }

    #[test]
    fn late_answers_are_taken_but_not_without_end() {
        let mut answers = Answers::default();
        (0..100).for_each(|_| answers.owe(0));
        assert_eq!((0..100).filter(|_| answers.take(0, true)).count(), OWED_MAX as usize);
    }
}
