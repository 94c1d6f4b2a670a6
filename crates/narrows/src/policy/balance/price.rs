//! The price between CPU, link and receiver: solved on predictions, moved by the backlog and by
//! what the receiver reports.

use super::{Balance, CLASSES, END_IN_VIEW, window_max};
use crate::monitor::View;
use crate::monitor::cost::Prediction;

/// The price is solved again for each of the first blocks, then refined at every fourth one.
const COLD_BLOCKS: u64 = 12;
/// Logit range of the price.
const PRICE_MAX: f32 = 9.0;
/// Gain by which a backlog off its target moves the price.
const BACKLOG_GAIN: f32 = 0.5;
/// Price of the receiver: initial value, maximum, gain of its rise.
const RECEIVER_START: f32 = 0.02;
const RECEIVER_MAX: f32 = 20.0;
const RECEIVER_GAIN: f32 = 0.25;

/// What the time of the link and of the receiver is worth, beside that of the CPU.
pub(super) struct Prices {
    /// Logit of that of the link.
    pub(super) link: f32,
    pub(super) receiver: f32,
    /// Smoothed loads by the chosen methods, in seconds per block: CPU, link, receiver.
    pub(super) loads: [f32; 3],
}

impl Prices {
    /// Step 9: the receiver's price rises while the receiver is the most loaded of the three.
    pub(super) fn load(&mut self, cpu_s: f32, link_s: f32, decode_s: f32) {
        for (load, now) in self.loads.iter_mut().zip([cpu_s, link_s, decode_s]) {
            *load += 0.15 * (now - *load);
        }
        let [cpu, link, decode] = self.loads;
        let up = (decode / cpu.max(link).max(1e-12)).max(1e-9).ln();
        if up > 0.0 {
            let raised = self.receiver.max(RECEIVER_START) * (RECEIVER_GAIN * up.min(1.0)).exp();
            self.receiver = raised.min(RECEIVER_MAX);
        } else {
            self.receiver *= (0.6 * RECEIVER_GAIN * up.max(-0.5)).exp();
            if self.receiver < 0.01 {
                self.receiver = 0.0;
            }
        }
    }
}

impl Balance {
    /// Step 6: the price at which CPU and link would be equally loaded by the last blocks.
    pub(super) fn solve(&mut self, rate: f32, decoders: f32) {
        let cold = self.chosen < COLD_BLOCKS;
        if !cold && !self.chosen.is_multiple_of(4) {
            return;
        }
        let (mut low, mut high, steps) =
            if cold { (-PRICE_MAX, PRICE_MAX, 8) } else { (self.prices.link - 2.0, self.prices.link + 2.0, 5) };
        let count = self.costs.methods().len();
        for _ in 0..steps {
            let x = 0.5 * (low + high);
            let l = sigmoid(x);
            let weights = [(1.0 - l) / self.cores, l / rate, self.prices.receiver / decoders];
            let (mut cpu, mut link) = (0.0, 0.0);
            for p in &self.ring.predictions[..self.ring.len] {
                let m = cheapest(p, &weights, count);
                cpu += p.encode_s[m] / self.cores;
                link += p.wire_len[m] / rate;
            }
            if cpu > link {
                high = x;
            } else {
                low = x;
            }
        }
        self.prices.link = (0.5 * (low + high)).clamp(-PRICE_MAX, PRICE_MAX);
    }

    /// Step 7: the price, moved by how far the backlog is off its target.
    pub(super) fn price_now(
        &mut self,
        view: &View<'_>,
        p: &Prediction,
        rate: f32,
        decoders: f32,
        backlog_s: f32,
    ) -> f32 {
        let l = sigmoid(self.prices.link);
        let weights = [(1.0 - l) / self.cores, l / rate, self.prices.receiver / decoders];
        let m = cheapest(p, &weights, self.costs.methods().len());
        let (link_s, cpu_s) = (p.wire_len[m] / rate, p.encode_s[m]);
        let mut target_s =
            (2.0 * link_s.max(cpu_s / self.cores) + cpu_s).min(0.6 * window_max(self.cores as usize) as f32 * link_s);
        if let Some(left) = view.left.filter(|l| *l < END_IN_VIEW) {
            // The backlog runs down with the work that remains.
            let blocks = (left as f32 / CLASSES[2] as f32 - 1.0).max(0.0);
            target_s = target_s.min(0.5 * blocks * link_s);
        }
        self.why.target_s = target_s;
        let off = ((backlog_s - target_s) / target_s.max(1e-9)).clamp(-1.0, 1.5);
        // Blocks that wait beside a dry link wait for a core that writes them: slower methods would take it.
        let is_dry = view.link.known && view.link.unsent_bytes == 0;
        let off = if is_dry { off.min(0.0) } else { off };
        sigmoid(self.prices.link + BACKLOG_GAIN * off)
    }
}

fn cheapest(p: &Prediction, weights: &[f32; 3], count: usize) -> usize {
    let (mut best, mut best_cost) = (0, f32::INFINITY);
    let costs = p.encode_s.iter().zip(&p.wire_len).zip(&p.decode_s).take(count);
    for (m, ((encode_s, wire_len), decode_s)) in costs.enumerate() {
        let cost = weights[0] * encode_s + weights[1] * wire_len + weights[2] * decode_s;
        if cost < best_cost {
            (best, best_cost) = (m, cost);
        }
    }
    best
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
