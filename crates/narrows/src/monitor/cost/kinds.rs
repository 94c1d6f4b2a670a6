//! Kinds of data, carried from one flow to the next: what methods made of them, without the host's
//! speed.

use super::{CONTEXT_DISTANCE, Context, CostModel, LOG_RATIO_MAX, METHODS_MAX, SHRANK_MIN, dot};
use crate::monitor::data::Features;
use crate::monitor::expectation::{KINDS_MAX, Kind, KindRatio, RATIOS_MAX};

/// Length of the blocks that a remembered ratio is of.
const LEN: usize = 128 << 10;
/// A remembered ratio counts like this many blocks at most: the data of another day is another.
const BLOCKS_MAX: u8 = 2;
/// Variance that a log ratio gains between two flows, and with every day: a quarter of the ratio at
/// first, two fifths after a month. Older ones count as much as nothing.
const AGED: f32 = 0.08;
const AGED_PER_DAY: f32 = 0.003;
const DAYS_MAX: u32 = 3650;
/// Blocks in a row that did not shrink, of a kind that none of its methods shrank.
const STUBBORN: u32 = 4;

impl CostModel {
    /// Begins with the kinds of data of earlier flows, before the first block. Kinds without sense,
    /// and methods that this model does not have, are left out.
    pub fn expect(&mut self, kinds: &[Kind]) {
        for kind in kinds.iter().take(KINDS_MAX).filter(|kind| is_sane(&kind.features)) {
            let is_new = self.nearest(&kind.features).is_none_or(|near| near.1 > CONTEXT_DISTANCE);
            let mut context = self.new_context(&kind.features, None);
            let mut shrank = false;
            for ratio in kind.ratios.iter().take(RATIOS_MAX) {
                let method = self.index_of(ratio.method).filter(|m| *m > 0 && ratio.log_ratio.is_finite());
                let Some(m) = method else { continue };
                let blocks = ratio.blocks.clamp(1, BLOCKS_MAX);
                let aged = AGED + AGED_PER_DAY * kind.age_days.min(DAYS_MAX) as f32;
                let variance = self.forms.size_within[m][m] / f32::from(blocks) + aged;
                let beyond = ratio.log_ratio.clamp(0.0, LOG_RATIO_MAX) - self.prior_size(&kind.features, m);
                let size = &mut context.size;
                size.correct(m, beyond - size.x[m], 1.0 / (size.p[m][m] + variance));
                context.blocks[m] = blocks;
                shrank |= ratio.log_ratio >= SHRANK_MIN;
            }
            // What never shrank is tried no more than at the end of the earlier flow.
            context.stubborn = if shrank { 0 } else { STUBBORN };
            if is_new && context.blocks != [0; METHODS_MAX] {
                context.age_days = Some(kind.age_days);
                self.contexts.push(context);
            }
        }
    }

    /// The kinds of data of this flow and of the expectation that it began with, the latest first.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut contexts: Vec<&Context> = self.contexts.iter().filter(|c| c.blocks != [0; METHODS_MAX]).collect();
        contexts.sort_by_key(|c| (c.age_days, std::cmp::Reverse(c.last_used)));
        contexts.into_iter().map(|c| self.kind(c)).collect()
    }

    fn kind(&self, context: &Context) -> Kind {
        let mut used: Vec<usize> = (1..self.methods.len()).filter(|m| context.blocks[*m] > 0).collect();
        used.sort_by_key(|m| std::cmp::Reverse(context.blocks[*m]));
        let ratio = |&m: &usize| {
            let log_ratio = (self.prior_size(&context.centroid, m) + context.size.x[m]).clamp(0.0, LOG_RATIO_MAX);
            KindRatio { method: self.methods[m], log_ratio, blocks: context.blocks[m] }
        };
        Kind {
            features: context.centroid,
            age_days: context.age_days.unwrap_or(0),
            ratios: used.iter().take(RATIOS_MAX).map(ratio).collect(),
        }
    }

    /// The prior's log ratio of a method for blocks of `LEN`.
    fn prior_size(&self, features: &Features, m: usize) -> f32 {
        dot(&self.forms.size, &features.with_len(LEN).terms(), m).clamp(0.0, LOG_RATIO_MAX)
    }
}

/// Whether all features are shares.
fn is_sane(f: &Features) -> bool {
    let shares = [f.entropy, f.repeats, f.equal_1, f.equal_4, f.equal_8, f.text, f.zero];
    shares.iter().all(|x| (0.0..=1.0).contains(x))
}

#[cfg(test)]
mod tests {
    use super::super::{Prior, Seen};
    use super::*;
    use crate::codec::{DEFAULT_METHODS, Method};

    fn model(kinds: &[Kind]) -> CostModel {
        let methods: Vec<_> = DEFAULT_METHODS.iter().copied().filter(|m| *m != Method::CONSTANT).collect();
        let mut model = CostModel::new(&methods, Prior::shipped());
        model.expect(kinds);
        model
    }

    fn text() -> Features {
        Features::sample(&b"a line of text, again and again\n".repeat(3000))
    }

    /// A model that saw zstd 1 shrink text to this share.
    fn seen(share: f32) -> CostModel {
        let mut model = model(&[]);
        let features = text();
        let c = model.context(&features);
        let m = model.index_of(Method::zstd(1)).unwrap();
        for _ in 0..12 {
            let wire_len = (LEN as f32 * share) as usize;
            model.observe(
                c,
                &features,
                m,
                Seen { raw_len: LEN, wire_len, wall_ns: 1_000_000, cpu_ns: 1_000_000, history_len: 0 },
            );
        }
        model
    }

    fn predicted(model: &mut CostModel, method: Method) -> f32 {
        let features = text();
        let c = model.context(&features);
        model.predict(c, &features, LEN).wire_len[model.index_of(method).unwrap()]
    }

    #[test]
    fn sizes_are_carried_over_and_speeds_are_not() {
        for share in [0.03, 0.3, 0.9] {
            let kinds = seen(share).kinds();
            assert_eq!(kinds.len(), 1);
            let (mut cold, mut warm) = (model(&[]), model(&kinds));
            for method in [Method::zstd(1), Method::zstd(9)] {
                let off =
                    |model: &mut CostModel| (predicted(model, method) / predicted(&mut seen(share), method)).ln().abs();
                let (warm, cold) = (off(&mut warm), off(&mut cold));
                assert!(warm < 0.5 * cold + 0.1, "{share} {method}: {warm} off, cold {cold}");
            }
            let features = text();
            let (a, b) = (cold.context(&features), warm.context(&features));
            assert_eq!(cold.predict(a, &features, LEN).encode_s, warm.predict(b, &features, LEN).encode_s);
        }
    }

    #[test]
    fn an_older_memory_counts_less_and_blocks_of_this_flow_count_more() {
        let uncertain = |age_days| {
            let kinds: Vec<_> = seen(0.3).kinds().into_iter().map(|k| Kind { age_days, ..k }).collect();
            let mut model = model(&kinds);
            let c = model.context(&text());
            model.size_uncertainty(c, model.index_of(Method::zstd(1)).unwrap())
        };
        let (young, old, oldest) = (uncertain(0), uncertain(30), uncertain(u32::MAX));
        assert!(young < old && old < oldest, "{young} {old} {oldest}");
        // What was remembered is wrong by a factor of 3: three blocks set it right.
        let mut wrong = model(&seen(0.9).kinds());
        let c = wrong.context(&text());
        let m = wrong.index_of(Method::zstd(1)).unwrap();
        for _ in 0..3 {
            let seen =
                Seen { raw_len: LEN, wire_len: 3 * LEN / 10, wall_ns: 1_000_000, cpu_ns: 1_000_000, history_len: 0 };
            wrong.observe(c, &text(), m, seen);
        }
        let share = predicted(&mut wrong, Method::zstd(1)) / LEN as f32;
        assert!((0.22..0.4).contains(&share), "{share}");
    }

    #[test]
    fn kinds_that_were_not_seen_keep_their_age_and_those_that_were_come_first() {
        let unseen =
            Kind { features: Features { entropy: 1.0, ..Features::default() }, ..seen(0.9).kinds()[0].clone() };
        let mut model = model(&[Kind { age_days: 7, ..unseen }]);
        let features = text();
        let c = model.context(&features);
        let m = model.index_of(Method::zstd(1)).unwrap();
        model.observe(
            c,
            &features,
            m,
            Seen { raw_len: LEN, wire_len: 9000, wall_ns: 1000, cpu_ns: 1000, history_len: 0 },
        );
        let ages: Vec<_> = model.kinds().iter().map(|k| k.age_days).collect();
        assert_eq!(ages, [0, 7]);
    }

    #[test]
    fn a_memory_without_sense_leaves_finite_predictions_and_is_bounded() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0, 1e30];
        let mut kinds = Vec::new();
        for entropy in values {
            for log_ratio in values {
                for (blocks, age_days) in [(0, 0), (255, u32::MAX)] {
                    let ratio = |method| KindRatio { method, log_ratio, blocks };
                    let ratios = [Method::STORE, Method::zstd(1), Method::zstd(22), Method::lz4_accel(1)].map(ratio);
                    let features = Features { entropy, ..text() };
                    kinds.push(Kind { features, age_days, ratios: ratios.repeat(3) });
                }
            }
        }
        for part in kinds.chunks(2).chain([&kinds[..]]) {
            let mut model = model(part);
            assert!(model.contexts.len() <= super::super::CONTEXTS_MAX);
            let features = text();
            let c = model.context(&features);
            let p = model.predict(c, &features, LEN);
            for v in [p.encode_s, p.wire_len, p.decode_s] {
                assert!(v.iter().all(|x| x.is_finite() && *x >= 0.0), "{part:?}");
            }
            assert!(model.kinds().iter().all(|k| k.ratios.iter().all(|r| r.log_ratio.is_finite())));
        }
        let many: Vec<Kind> = (0..40)
            .map(|i| {
                let features = Features { entropy: (i % 10) as f32 / 10.0, repeats: (i / 10) as f32 / 5.0, ..text() };
                Kind { features, ..seen(0.5).kinds()[0].clone() }
            })
            .collect();
        assert!((2..=KINDS_MAX).contains(&model(&many).contexts.len()));
    }
}
