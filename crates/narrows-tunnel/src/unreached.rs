//! Targets that could not be reached, as somebody who does not ask for every line hears of them.

use std::collections::HashMap;

/// A target is told of once in this time: who tries again each second reads it once, and who mends it
/// sees soon whether it is still so.
const AGAIN_NS: u64 = 60_000_000_000;
/// Targets of that time: those of a command line are fewer, and a program that asks a SOCKS listener
/// for thousands must not fill a terminal.
const TARGETS_MAX: usize = 64;

/// When each target was told of.
#[derive(Debug, Default)]
pub(super) struct Unreached {
    told_ns: HashMap<Box<str>, u64>,
}

impl Unreached {
    /// Whether a target is told of now.
    pub(super) fn may_tell(&mut self, target: &str, now_ns: u64) -> bool {
        if self.told_ns.get(target).is_some_and(|told_ns| now_ns < told_ns + AGAIN_NS) {
            return false;
        }
        self.told_ns.retain(|_, told_ns| now_ns < *told_ns + AGAIN_NS);
        let has_room = self.told_ns.len() < TARGETS_MAX;
        if has_room {
            self.told_ns.insert(target.into(), now_ns);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_told_of_once_a_minute_and_no_flood_of_targets_is() {
        let mut unreached = Unreached::default();
        assert!(unreached.may_tell("a:1", 5) && !unreached.may_tell("a:1", 4 + AGAIN_NS));
        assert!(unreached.may_tell("a:1", 5 + AGAIN_NS));
        let told = (0..1000).filter(|i| unreached.may_tell(&format!("b:{i}"), 5 + AGAIN_NS)).count();
        assert_eq!((told, unreached.told_ns.len()), (TARGETS_MAX - 1, TARGETS_MAX));
        assert!(unreached.may_tell("c:1", 5 + 2 * AGAIN_NS) && unreached.told_ns.len() == 1);
    }
}
