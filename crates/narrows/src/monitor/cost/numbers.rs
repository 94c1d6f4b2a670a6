//! Which kinds of data look like numbers. Methods for numbers are offered to those alone: an invitation
//! to try them, after which only costs count.

use super::CostModel;
use crate::codec::Method;

/// Raw bytes of a kind between two probes: 16 blocks of 64 KiB, so that a probe takes less than 1 % of
/// the time of LZ4.
const PROBE_EVERY: usize = 1 << 20;

/// What the probe said of a kind of data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Numbers {
    yes: bool,
    /// Raw bytes since the last probe; `None` before the first one.
    since: Option<usize>,
}

impl Numbers {
    pub(super) fn offer(&self, method: Method) -> bool {
        self.yes || !method.is_for_numbers()
    }
}

impl CostModel {
    /// Whether method `m` is offered to data of this kind: the probe has not looked, or said no, if it is
    /// not.
    pub fn offers(&self, context: usize, m: usize) -> bool {
        self.contexts[context.min(self.contexts.len() - 1)].numbers.offer(self.methods[m])
    }

    /// Whether the probe should look at the next `len` bytes of this kind: they are the first ones, or
    /// it has not looked for long. Ask once for each block.
    pub fn wants_probe(&mut self, context: usize, len: usize) -> bool {
        if !self.methods.iter().any(|m| m.is_for_numbers()) {
            return false;
        }
        let Some(context) = self.contexts.get_mut(context) else { return false };
        let since = context.numbers.since.map_or(PROBE_EVERY, |since| since.saturating_add(len));
        let wants = since >= PROBE_EVERY;
        context.numbers.since = Some(if wants { 0 } else { since });
        wants
    }

    /// Takes what the probe said.
    pub fn observe_probe(&mut self, context: usize, yes: bool) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.numbers.yes = yes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Prior, Seen};
    use super::*;
    use crate::monitor::data::Features;

    const LEN: usize = 128 << 10;

    fn model() -> CostModel {
        CostModel::new(
            &[Method::STORE, Method::zstd(1), Method::zstd(3), Method::split(1), Method::split(3)],
            Prior::shipped(),
        )
    }

    #[test]
    fn a_kind_is_probed_first_and_then_once_in_a_mebibyte() {
        let mut model = model();
        let context = model.context(&Features::default());
        let asked: Vec<bool> = (0..18).map(|_| model.wants_probe(context, LEN)).collect();
        let expected: Vec<bool> = (0..18).map(|i| i % 8 == 0).collect();
        assert_eq!(asked, expected);
        let mut without = CostModel::new(&[Method::STORE, Method::zstd(1)], Prior::shipped());
        let context = without.context(&Features::default());
        assert!(!without.wants_probe(context, LEN), "nothing would come of it");
    }

    #[test]
    fn methods_for_numbers_are_never_the_best_before_a_yes() {
        let mut model = model();
        let features = Features::default();
        let c = model.context(&features);
        for yes in [false, true, false] {
            model.observe_probe(c, yes);
            let p = model.predict(c, &features, LEN);
            for m in 1..5 {
                let offered = yes || m < 3;
                assert_eq!(model.offers(c, m), offered);
                assert_eq!(p.wire_len[m] < p.wire_len[0], offered, "{m} {yes}");
            }
        }
    }

    #[test]
    fn what_one_level_gains_by_the_split_the_others_do_too() {
        let mut model = model();
        let features = Features { entropy: 0.9, equal_4: 0.3, ..Features::default() };
        let c = model.context(&features);
        model.observe_probe(c, true);
        let gain = |model: &CostModel| {
            let p = model.predict(c, &features, LEN);
            (p.wire_len[2] / p.wire_len[4]).ln()
        };
        let before = gain(&model);
        for _ in 0..4 {
            for (m, wire_len) in [(1, 100_000), (3, 60_000)] {
                let seen = Seen { raw_len: LEN, wire_len, wall_ns: 500_000, cpu_ns: 500_000, history_len: 0 };
                model.observe(c, &features, m, seen);
            }
        }
        let after = gain(&model);
        assert!((0.0..0.4).contains(&before) && (0.35..0.65).contains(&after), "{before} {after}");
    }
}
