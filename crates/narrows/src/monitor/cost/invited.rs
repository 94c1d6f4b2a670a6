//! Which kinds of data look like numbers, or have base64. Methods for these are offered to them alone: an
//! invitation to try them, after which only costs count.

use super::CostModel;
use crate::codec::{CodecId, Method};

/// Raw bytes of a kind between two probes: 16 blocks of 64 KiB, so that a probe takes less than 1 % of
/// the time of LZ4.
const PROBE_EVERY: usize = 1 << 20;

/// What the probes said of a kind of data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Invited {
    numbers: bool,
    /// Raw bytes since the last probe for numbers; `None` before the first one.
    since: Option<usize>,
    /// The latest block has base64.
    base64: bool,
}

impl Invited {
    pub(super) fn offer(&self, method: Method) -> bool {
        match method.codec {
            CodecId::SPLIT => self.numbers,
            CodecId::BASE64 => self.base64,
            _ => true,
        }
    }
}

impl CostModel {
    /// Whether method `m` is offered to data of this kind: its probe has not looked, or said no, if it is
    /// not.
    pub fn offers(&self, context: usize, m: usize) -> bool {
        self.contexts[context.min(self.contexts.len() - 1)].invited.offer(self.methods[m])
    }

    /// Whether there are methods for base64, so that its probe is worth asking.
    pub fn wants_base64(&self) -> bool {
        self.methods.iter().any(|m| m.codec == CodecId::BASE64)
    }

    /// Takes what the probe for base64 said of the next block.
    pub fn observe_base64(&mut self, context: usize, yes: bool) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.invited.base64 = yes;
        }
    }

    /// Whether the probe should look at the next `len` bytes of this kind: they are the first ones, or
    /// it has not looked for long. Ask once for each block.
    pub fn wants_probe(&mut self, context: usize, len: usize) -> bool {
        if !self.methods.iter().any(|m| m.is_for_numbers()) {
            return false;
        }
        let Some(context) = self.contexts.get_mut(context) else { return false };
        let since = context.invited.since.map_or(PROBE_EVERY, |since| since.saturating_add(len));
        let wants = since >= PROBE_EVERY;
        context.invited.since = Some(if wants { 0 } else { since });
        wants
    }

    /// Takes what the probe said.
    pub fn observe_probe(&mut self, context: usize, yes: bool) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.invited.numbers = yes;
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
    fn methods_for_base64_are_offered_to_blocks_that_have_it() {
        let methods = [Method::STORE, Method::zstd(1), Method::base64(1), Method::split(1)];
        let mut model = CostModel::new(&methods, Prior::shipped());
        let c = model.context(&Features::default());
        assert!(model.wants_base64() && !self::model().wants_base64());
        for yes in [false, true, false] {
            model.observe_base64(c, yes);
            assert_eq!([1, 2, 3].map(|m| model.offers(c, m)), [true, yes, false]);
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
