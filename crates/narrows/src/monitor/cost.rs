//! Predicts the cost of every method on the next block: seconds to encode, bytes on the wire,
//! seconds to decode.
//!
//! A prior (linear forms in the features of a block, learned offline) gives the first prediction.
//! Observations correct it: one Kalman filter over the vector of log ratios and one over the log
//! costs, with covariances learned offline, so one observation of any method moves all of them.
//! Kinds of data are distinguished by their features; each kind has its own corrections (a
//! *context*).

use super::cpu::Slowdown;
use super::data::{Features, TERMS};
use super::expectation::KINDS_MAX;
use crate::codec::{Codecs, Method};

mod invited;
mod kinds;
mod linked;
mod prior;

use invited::Invited;
pub use linked::histories;
use linked::{Links, Reach, Scale};
use prior::Forms;
pub use prior::Prior;

/// Most methods a policy can choose from, `store` included; fixed arrays keep a decision under a
/// microsecond.
pub const METHODS_MAX: usize = 16;

/// Per-method values; entry 0 is `store`.
pub type PerMethod = [f32; METHODS_MAX];
type Matrix = [PerMethod; METHODS_MAX];

/// Most kinds of data distinguished in one flow. Source code alone makes a dozen; with too few
/// contexts, the knowledge of a kind is discarded before the kind comes again.
const CONTEXTS_MAX: usize = KINDS_MAX;
/// Features at a larger distance belong to another kind.
const CONTEXT_DISTANCE: f32 = 0.2;
/// Share of the nearest kind's corrections that a new kind inherits.
const INHERITED: f32 = 0.6;
/// Share of the variance between blocks added at every observation: older ones count less and less.
const FORGETTING: f32 = 0.3;
/// Gain by which the scale of the variance follows the observations, and the limits of the scale.
const SCALE_GAIN: f32 = 0.1;
const SCALE_MIN: f32 = 0.02;
const SCALE_MAX: f32 = 4.0;
/// One block that surprises by more than two standard deviations is an outlier, not evidence of the
/// scale.
const SURPRISE_MAX: f32 = 4.0;
/// Seconds of work per block for every method: queueing, waking, header, system call.
pub const FIXED_S: f32 = 4e-6;
/// The part of it that a worker's CPU clock includes.
const FIXED_SEEN_S: f32 = 1e-6;
/// What a job may take besides its codec, in seconds: page faults and cold caches, or in the first
/// jobs of a method a context that is allocated and filled. A short job therefore says little about
/// the cost of a method.
const DISTURBED_S: f32 = 15e-6;
const COLD_S: f32 = 150e-6;
const COLD_JOBS: u8 = 2;
/// Variance of a log ratio: it is known exactly.
const SIZE_NOISE: f32 = 1e-5;
/// Variance of a log cost that is measured well.
const COST_NOISE: f32 = 1e-3;
/// Speed of copying and checking raw bytes.
pub const STORE_BYTES_PER_S: f32 = 14e9;
const STORE_S_PER_BYTE: f32 = 1.0 / STORE_BYTES_PER_S;
/// Header and check of a data frame.
const HEADER_LEN: f32 = 16.0;
/// Seconds of work per decoded block for every method.
const DECODE_FIXED_S: f32 = 1e-6;
/// Limits of the receiver's log slow-down: 20 times as fast to 150 times as slow as the prior's
/// machine.
const RECEIVER_LOG_MIN: f32 = -3.0;
const RECEIVER_LOG_MAX: f32 = 5.0;
/// Optimism about an unknown method, in standard deviations of its log ratio, and about the gain of
/// links, in those of its scale.
const OPTIMISM: f32 = 0.5;
/// A block whose log ratio is below this did not shrink. Each such block in a row halves the
/// optimism; otherwise data that never shrinks would be tried with one method after the other for
/// ever.
const SHRANK_MIN: f32 = 0.02;
/// e^3.7 is a ratio of 40: a linear form must not promise more.
const LOG_RATIO_MAX: f32 = 3.7;

/// Costs of one block under every method.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    /// Seconds to encode the block on one core.
    pub encode_s: PerMethod,
    /// Wire bytes, header included.
    pub wire_len: PerMethod,
    /// Seconds to decode the block on one core of the receiver.
    pub decode_s: PerMethod,
}

/// Costs of one block under one method.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// Seconds to encode the block on one core.
    pub encode_s: f32,
    /// Wire bytes, header included.
    pub wire_len: f32,
    /// Seconds to decode the block on one core of the receiver.
    pub decode_s: f32,
}

/// Model of the costs of a set of methods in one flow.
pub struct CostModel {
    methods: Vec<Method>,
    forms: Forms,
    links: Links,
    contexts: Vec<Context>,
    clock: u64,
    cpu: Slowdown,
    /// Finished jobs of each method.
    jobs: [u8; METHODS_MAX],
    /// Log slow-down of the receiver's CPU against the prior's machine.
    receiver_log: f32,
    receiver_known: bool,
    /// Logarithm of what other programs of the receiver's host take.
    load_log: f32,
}

struct Context {
    centroid: Features,
    size: Filter,
    cost: Filter,
    /// How much this kind gains by links.
    linked: Scale,
    /// Methods that are for some kinds of data only, and are offered to this one.
    invited: Invited,
    /// Number of blocks in a row that did not shrink.
    stubborn: u32,
    last_used: u64,
    /// Blocks encoded with each method, in this flow and in those that it remembers.
    blocks: [u8; METHODS_MAX],
    /// Of a kind that is remembered and was not seen in this flow.
    age_days: Option<u32>,
}

#[derive(Clone)]
struct Filter {
    x: PerMethod,
    p: Matrix,
    /// Variance from block to block of this kind of data, relative to the average kind in the
    /// prior.
    scale: f32,
}

impl CostModel {
    /// A model for `methods` of this library, the first of which must be `store`; methods beyond
    /// [`METHODS_MAX`] are ignored.
    pub fn new(methods: &[Method], prior: &Prior) -> Self {
        Self::with(Codecs::shipped(), methods, prior)
    }

    /// A model for `methods` of these codecs.
    pub fn with(codecs: &Codecs, methods: &[Method], prior: &Prior) -> Self {
        let methods: Vec<_> = methods.iter().copied().take(METHODS_MAX).collect();
        let forms = prior.forms(codecs, &methods);
        Self {
            links: Links::new(codecs, &methods),
            methods,
            forms,
            contexts: Vec::new(),
            clock: 0,
            cpu: Slowdown::default(),
            jobs: [0; METHODS_MAX],
            receiver_log: 0.0,
            receiver_known: false,
            load_log: 0.0,
        }
    }

    /// The methods, in the order of [`PerMethod`].
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Index of a method in [`PerMethod`].
    pub fn index_of(&self, method: Method) -> Option<usize> {
        self.methods.iter().position(|m| *m == method)
    }

    /// Factor by which this host is slower than on a free core.
    pub fn slowdown(&self) -> f32 {
        self.cpu.factor()
    }

    /// Index of the context of data with these features; opens a new one if they are unlike all
    /// known.
    pub fn context(&mut self, features: &Features) -> usize {
        self.clock += 1;
        let nearest = self.nearest(features);
        let i = match nearest {
            Some((i, distance)) if distance <= CONTEXT_DISTANCE => {
                self.contexts[i].centroid.approach(features, 0.2);
                i
            }
            nearest => self.open_context(features, nearest.map(|n| n.0)),
        };
        self.contexts[i].last_used = self.clock;
        i
    }

    /// The context nearest to data with these features, and its distance.
    fn nearest(&self, features: &Features) -> Option<(usize, f32)> {
        let distances = self.contexts.iter().map(|c| c.centroid.distance(features)).enumerate();
        distances.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn open_context(&mut self, features: &Features, nearest: Option<usize>) -> usize {
        let context = self.new_context(features, nearest);
        if self.contexts.len() < CONTEXTS_MAX {
            self.contexts.push(context);
            return self.contexts.len() - 1;
        }
        let oldest = (0..CONTEXTS_MAX).min_by_key(|&i| self.contexts[i].last_used).unwrap_or(0);
        self.contexts[oldest] = context;
        oldest
    }

    fn new_context(&self, features: &Features, nearest: Option<usize>) -> Context {
        let mut context = Context {
            centroid: *features,
            size: Filter { x: [0.0; METHODS_MAX], p: self.forms.size_between, scale: 1.0 },
            cost: Filter { x: [0.0; METHODS_MAX], p: self.forms.cost_between, scale: 1.0 },
            linked: Scale::default(),
            invited: Invited::default(),
            stubborn: 0,
            last_used: self.clock,
            blocks: [0; METHODS_MAX],
            age_days: None,
        };
        if let Some(near) = nearest.map(|i| &self.contexts[i]) {
            context.size.inherit(&near.size, &self.forms.size_within);
            context.cost.inherit(&near.cost, &self.forms.cost_within);
            context.linked = Scale::inherit(near.linked);
        }
        context
    }

    /// Predicted costs of a block of `len` raw bytes under every method. `context` is an index from
    /// [`CostModel::context`].
    pub fn predict(&self, context: usize, features: &Features, len: usize) -> Prediction {
        let terms = features.with_len(len).terms();
        let n = len as f32;
        let at = context.min(self.contexts.len() - 1);
        let context = &self.contexts[at];
        let (mut size, mut encode, mut decode) = ([0.0; METHODS_MAX], context.cost.x, [0.0; METHODS_MAX]);
        for (k, term) in terms.iter().enumerate() {
            for m in 0..METHODS_MAX {
                size[m] += self.forms.size[k][m] * term;
                encode[m] += self.forms.encode[k][m] * term;
                decode[m] += self.forms.decode[k][m] * term;
            }
        }
        let mut p =
            Prediction { encode_s: [0.0; METHODS_MAX], wire_len: [0.0; METHODS_MAX], decode_s: [0.0; METHODS_MAX] };
        let slow_log = self.cpu.log();
        let hope = hope(context.stubborn);
        for m in 1..self.methods.len() {
            // Optimism about unknown ratios is the only exploration.
            let optimism = hope * context.size.p[m][m].max(0.0).sqrt().min(1.0);
            let log_ratio = (size[m].clamp(0.0, LOG_RATIO_MAX) + context.size.x[m] + optimism).max(0.0);
            p.wire_len[m] = n * (-log_ratio).exp() + HEADER_LEN;
            if !self.offers(at, m) {
                p.wire_len[m] = n + HEADER_LEN;
            }
            p.encode_s[m] = n * (encode[m] + slow_log).clamp(-23.5, -9.0).exp() + FIXED_S;
            p.decode_s[m] =
                n * (decode[m] + self.receiver_log + self.load_log).clamp(-24.0, -11.0).exp() + DECODE_FIXED_S;
        }
        p.wire_len[0] = n + HEADER_LEN;
        p.encode_s[0] = n * STORE_S_PER_BYTE * self.cpu.factor() + FIXED_S;
        p.decode_s[0] = n * STORE_S_PER_BYTE * self.receiver_slowdown() + DECODE_FIXED_S;
        p
    }

    /// The same block linked to some of the `available` bytes before it: each method gets the costs of
    /// the history with the lowest score, which may be none. `score` is told whether the block is
    /// linked. Returns the length of that history for each method.
    pub fn link(
        &self,
        context: usize,
        p: &mut Prediction,
        (len, available): (usize, usize),
        score: impl Fn(&Costs, bool) -> f32,
    ) -> [usize; METHODS_MAX] {
        let context = &self.contexts[context.min(self.contexts.len() - 1)];
        // A long history is tried where it may gain, as an unknown method is.
        let scale = context.linked.hoped(hope(context.stubborn));
        let best = p.wire_len[1..self.methods.len()].iter().fold(p.wire_len[0], |a, b| a.min(*b));
        let best_log = (p.wire_len[0] / best).ln();
        let mut history_lens = [0; METHODS_MAX];
        let alone: [Costs; METHODS_MAX] = std::array::from_fn(|m| Costs {
            encode_s: p.encode_s[m],
            wire_len: p.wire_len[m],
            decode_s: p.decode_s[m],
        });
        let mut scores = alone.map(|costs| score(&costs, false));
        for (i, reach) in Reach::each(len, available).enumerate() {
            for m in 1..self.methods.len() {
                // Where one history gains nothing, a longer one does not either.
                let goes_on = i == 0 || history_lens[m] > 0;
                let weighed = goes_on && context.invited.offer(self.methods[m]) && self.links.takes(m, &reach);
                let Some(gain) = self.links.gain(m, &reach).filter(|_| weighed) else { continue };
                let (factor, encode_s, decode_s) = self.links.cost(m, &reach);
                let linked = Costs {
                    encode_s: alone[m].encode_s * factor + encode_s,
                    wire_len: (alone[m].wire_len - HEADER_LEN) * (-scale * gain * best_log).exp() + HEADER_LEN,
                    decode_s: alone[m].decode_s + decode_s,
                };
                let score = score(&linked, true);
                if score < scores[m] {
                    (scores[m], history_lens[m]) = (score, reach.history_len);
                    (p.encode_s[m], p.wire_len[m], p.decode_s[m]) = (linked.encode_s, linked.wire_len, linked.decode_s);
                }
            }
        }
        history_lens
    }

    /// One standard deviation of a predicted encode time, as a share of it.
    pub fn encode_sigma(&self, context: usize, m: usize) -> f32 {
        let context = &self.contexts[context.min(self.contexts.len() - 1)];
        (context.cost.scale * self.forms.cost_within[m][m] + context.cost.p[m][m].max(0.0)).sqrt().min(1.5)
    }

    /// Uncertainty of a method's log ratio, relative to its variance from block to block.
    pub fn size_uncertainty(&self, context: usize, m: usize) -> f32 {
        let context = &self.contexts[context.min(self.contexts.len() - 1)];
        context.size.p[m][m] / self.forms.size_within[m][m].max(1e-6)
    }

    /// Takes the result of encoding a block with method `m`.
    pub fn observe(&mut self, context: usize, features: &Features, m: usize, seen: Seen) {
        let Seen { raw_len, wire_len, wall_ns, cpu_ns, history_len } = seen;
        if m == 0 || m >= self.methods.len() || raw_len == 0 || context >= self.contexts.len() {
            return;
        }
        let terms = features.with_len(raw_len).terms();
        let n = raw_len as f32;
        let context = &mut self.contexts[context];
        let prior_size = dot(&self.forms.size, &terms, m).clamp(0.0, LOG_RATIO_MAX);
        let log_ratio = (n / wire_len.max(1) as f32).ln().max(0.0);
        context.stubborn = if log_ratio < SHRANK_MIN { context.stubborn.saturating_add(1) } else { 0 };
        let reach = Reach::new(raw_len, history_len);
        let gain = if history_len > 0 { self.links.gain(m, &reach) } else { None };
        if let Some(gain) = gain {
            // The scale of the gain and the ratio without it are corrected together.
            let best_log = (1..self.methods.len())
                .filter(|&i| context.invited.offer(self.methods[i]))
                .map(|i| dot(&self.forms.size, &terms, i).clamp(0.0, LOG_RATIO_MAX) + context.size.x[i])
                .fold(0.0, f32::max);
            let unit = gain * best_log;
            let alone = log_ratio - context.linked.value() * unit - prior_size;
            let variance = context.size.variance(m, &self.forms.size_within);
            let (noise, error) = (context.linked.noise(unit), alone - context.size.x[m]);
            context.linked.observe(unit, error, variance);
            context.size.observe(m, alone, SIZE_NOISE + noise, &self.forms.size_within);
        } else {
            context.size.observe(m, log_ratio - prior_size, SIZE_NOISE, &self.forms.size_within);
        }
        context.blocks[m] = context.blocks[m].saturating_add(1);
        context.age_days = None;
        if cpu_ns > 0 {
            let (factor, copy_s, _) = self.links.cost(m, &reach);
            let cpu_s = ((cpu_ns as f32 * 1e-9 - FIXED_SEEN_S - copy_s) / factor).max(1e-8);
            let residual = (cpu_s / n).ln() - dot(&self.forms.encode, &terms, m);
            let extra_s = if self.jobs[m] < COLD_JOBS { COLD_S } else { DISTURBED_S };
            let noise = COST_NOISE + (extra_s / cpu_s) * (extra_s / cpu_s);
            context.cost.observe(m, residual, noise, &self.forms.cost_within);
            self.jobs[m] = self.jobs[m].saturating_add(1);
        }
        self.cpu.observe(wall_ns, cpu_ns);
    }

    /// A job of no method of this model took so much time, and so much of a core.
    pub fn observe_host(&mut self, wall_ns: u64, cpu_ns: u64) {
        self.cpu.observe(wall_ns, cpu_ns);
    }

    /// A job is late: it runs longer than predicted for a free core.
    pub fn observe_late(&mut self, elapsed_ns: u64, free_ns: u64) {
        self.cpu.observe_late(elapsed_ns, free_ns);
    }

    /// Estimated factor by which the receiver decodes slower than the prior's machine, its load included.
    pub fn receiver_slowdown(&self) -> f32 {
        (self.receiver_log + self.load_log).exp()
    }

    /// The receiver spent `actual_s` on blocks that would have taken `reference_s` on the prior's
    /// machine.
    pub fn observe_decode(&mut self, reference_s: f32, actual_s: f32) {
        if reference_s > 0.0 && actual_s > 0.0 {
            let log = (actual_s / reference_s).ln().clamp(RECEIVER_LOG_MIN, RECEIVER_LOG_MAX);
            // The first report replaces an assumption.
            let gain = if self.receiver_known { 0.3 } else { 1.0 };
            self.receiver_log += gain * (log - self.receiver_log);
            self.receiver_known = true;
        }
    }

    /// Decoding takes so many times its CPU time, since other programs have the receiver's cores.
    pub fn observe_load(&mut self, load: f32) {
        self.load_log = load.max(1.0).ln();
    }

    /// Log shift of a method's encode time against the prior, averaged over this flow's contexts:
    /// for the calibration of the host. `None` if the method was not used enough.
    pub fn learned_encode_shift(&self, m: usize) -> Option<f32> {
        let (mut sum, mut weight) = (0.0, 0.0);
        for c in &self.contexts {
            let known = self.forms.cost_between[m][m] - c.cost.p[m][m];
            if known > 0.5 * self.forms.cost_between[m][m] {
                sum += c.cost.x[m] * known;
                weight += known;
            }
        }
        (weight > 0.0).then(|| sum / weight)
    }
}

/// Result of a finished job.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Raw bytes of the block.
    pub raw_len: usize,
    /// Bytes of the body.
    pub wire_len: usize,
    /// Elapsed time of encoding.
    pub wall_ns: u64,
    /// CPU time of encoding; 0 if unknown.
    pub cpu_ns: u64,
    /// Bytes before the block that it was linked to; 0 if it was not linked.
    pub history_len: usize,
}

impl Filter {
    fn inherit(&mut self, near: &Self, within: &Matrix) {
        self.scale = near.scale.sqrt();
        for (x, near) in self.x.iter_mut().zip(near.x) {
            *x = INHERITED * near;
        }
        for ((row, near), within) in self.p.iter_mut().zip(&near.p).zip(within) {
            for ((p, near), within) in row.iter_mut().zip(near).zip(within) {
                *p = 0.3 * *p + 0.7 * (near + within);
            }
        }
    }

    /// Variance of the next observation of component `m`.
    fn variance(&self, m: usize, within: &Matrix) -> f32 {
        self.p[m][m] + self.scale * within[m][m] + SIZE_NOISE
    }

    /// One scalar observation `y` of component `m`, exact but for the variance from block to block
    /// and `noise`.
    fn observe(&mut self, m: usize, y: f32, noise: f32, within: &Matrix) {
        let added = FORGETTING * self.scale;
        for (row, within) in self.p.iter_mut().zip(within) {
            for (p, within) in row.iter_mut().zip(within) {
                *p += added * within;
            }
        }
        let scale = 1.0 / (self.p[m][m] + self.scale * within[m][m] + noise);
        let error = y - self.x[m];
        let surprise = (error * error * scale).min(SURPRISE_MAX) - 1.0;
        self.scale = (self.scale * (SCALE_GAIN * surprise).exp()).clamp(SCALE_MIN, SCALE_MAX);
        self.correct(m, error, scale);
    }

    /// Corrects all components by an error of component `m`. `scale`: 1 / the variance of that error.
    fn correct(&mut self, m: usize, error: f32, scale: f32) {
        let observed = self.p[m];
        for (x, row) in self.x.iter_mut().zip(&mut self.p) {
            let gain = row[m] * scale;
            *x += gain * error;
            for (p, observed) in row.iter_mut().zip(observed) {
                *p -= gain * observed;
            }
        }
    }
}

/// Optimism in standard deviations, after so many blocks in a row that did not shrink.
fn hope(stubborn: u32) -> f32 {
    OPTIMISM * 0.5f32.powi(stubborn.min(10) as i32)
}

fn dot(form: &[PerMethod; TERMS], terms: &[f32; TERMS], m: usize) -> f32 {
    form.iter().zip(terms).map(|(f, t)| f[m] * t).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::DEFAULT_METHODS;

    fn model() -> CostModel {
        let methods: Vec<_> = DEFAULT_METHODS.iter().copied().filter(|m| *m != Method::CONSTANT).collect();
        CostModel::new(&methods, Prior::shipped())
    }

    #[test]
    fn one_observation_moves_all_methods() {
        let mut model = model();
        let features = Features::sample(&b"a line of text, again and again\n".repeat(3000));
        let c = model.context(&features);
        let before = model.predict(c, &features, 98_304);
        let zstd_1 = model.index_of(Method::zstd(1)).unwrap();
        let zstd_9 = model.index_of(Method::zstd(9)).unwrap();
        for _ in 0..12 {
            let seen = Seen { raw_len: 98_304, wire_len: 1000, wall_ns: 4_000_000, cpu_ns: 4_000_000, history_len: 0 };
            model.observe(c, &features, zstd_1, seen);
        }
        let after = model.predict(c, &features, 98_304);
        for m in [zstd_1, zstd_9] {
            assert!(after.wire_len[m] < 0.7 * before.wire_len[m], "{m}");
            assert!(after.encode_s[m] > 1.3 * before.encode_s[m], "{m}");
        }
        assert!((after.encode_s[zstd_1] / 4e-3 - 1.0).abs() < 0.3);
    }

    #[test]
    fn contexts_are_bounded_and_the_least_used_goes() {
        let mut model = model();
        for i in 0..50 {
            let features =
                Features { entropy: (i % 10) as f32 / 10.0, repeats: (i / 10) as f32 / 5.0, ..Features::default() };
            assert!(model.context(&features) < CONTEXTS_MAX);
        }
    }

    #[test]
    fn absurd_observations_leave_finite_predictions() {
        let mut model = model();
        let features = Features::default();
        let c = model.context(&features);
        for seen in [
            Seen { raw_len: 1, wire_len: 0, wall_ns: 0, cpu_ns: u64::MAX, history_len: 0 },
            Seen { raw_len: usize::MAX >> 8, wire_len: 1, wall_ns: u64::MAX, cpu_ns: 1, history_len: usize::MAX >> 8 },
        ] {
            for m in 0..20 {
                model.observe(c, &features, m, seen);
            }
        }
        model.observe_decode(1e-9, 1e9);
        let p = model.predict(c, &features, 1 << 20);
        for v in [p.encode_s, p.wire_len, p.decode_s] {
            assert!(v.iter().all(|x| x.is_finite() && *x >= 0.0));
        }
    }
}
