//! `balance`, the default: one price between CPU and link, solved on predicted blocks.
//!
//! For a known set of blocks the best mix minimises `(1-l) c/K + l s/R + g d/D` for each block,
//! with one price `l` for all blocks, chosen such that CPU and link finish together. The price is
//! solved on the predictions for the last blocks. The score includes the idle time that a late
//! block would cause on the link. Blocks grow with the elapsed time. A ledger of bytes saved
//! against dry link time keeps the throughput at 98 % of plain or more. `docs/policy.md` has the
//! full explanation.

use super::images::Weighed;
use super::{Choice, NoSettings, Outcome, Policy, PolicySetup, Registered, Rescue};
use crate::codec::{CodecId, Method};
use crate::monitor::cost::{CostModel, FIXED_S, METHODS_MAX, Prediction, Seen};
use crate::monitor::data::{Features, constant_prefix, is_constant};
use crate::monitor::expectation::Kind;
use crate::monitor::{Ask, PendingState, View};
use crate::{base64, probe};

mod price;
mod small;

use price::Prices;
use small::Small;

/// Classes of block lengths. Their exact bounds matter little: neighbours differ by 2 to 10 % in
/// ratio.
const CLASSES: [usize; 4] = [8 << 10, 32 << 10, 128 << 10, 512 << 10];
/// A class is chosen if the cap allows at least this share of its length.
const CLASS_SHARE: f32 = 0.8;
/// In bytes/s: above 5 Gbit/s a block of 32 KiB still covers its fixed cost, and the ends are less
/// ragged.
const SMALL_BLOCKS_ABOVE: f32 = 600e6;
/// After this many raw blocks in a row the next ones are most likely raw too, and one long block
/// costs less than four short ones.
const RAW_RUN: u64 = 8;
/// In bytes/s: below 300 Mbit/s larger blocks save 5 to 9 % of the bytes at about the same speed.
const LARGE_BLOCKS_BELOW: f32 = 37.5e6;
/// In bytes/s for each core: on faster links no block is linked. A twentieth fewer bytes cost a quarter more time of
/// cores, which writing and receiving need as well.
const LINKED_BELOW: f32 = 37.5e6;
/// On faster links a block is linked to at most so many bytes before it, which stay in the caches.
const HISTORY_SHORT: usize = 64 << 10;
/// A block may take this share of the elapsed time: such doubling bounds the regret although the
/// rate is unknown.
const RAMP_SHARE: f32 = 0.5;
const RAMP_MIN_S: f32 = 4e-6;
/// A block may take this share of the time that the link needs for the backlog.
const BACKLOG_SHARE: f32 = 1.0 / 1.5;
/// A block takes at least three times its fixed cost.
const FIXED_COVER_S: f32 = 12e-6;
/// The end is in view when fewer raw bytes than this are left.
const END_IN_VIEW: u64 = 2 << 20;
/// Number of latest blocks on whose predictions the price is solved.
const RING: usize = 8;
/// Maximum blocks in flight: few for the first 20 blocks, whose methods are guesses; then enough to
/// cover one slow block in four, and to keep that many more than all cores busy.
const WINDOW_FIRST: usize = 3;
const WINDOW_FIRST_BLOCKS: u64 = 20;
const WINDOW: usize = 24;
/// Window while the link is busy and its rate unknown: a block made for an assumed rate may be far
/// from the best one, and a slow link leaves time to wait for a measurement.
const WINDOW_UNKNOWN: usize = 3;
/// While the rate is unknown this many blocks are short. If the link is idle after them, it is faster
/// than they were made, and long blocks take less CPU time.
const UNKNOWN_SHORT_BLOCKS: u64 = 8;
/// Window on a link within memory: few raw blocks, so that they stay in the caches.
const WINDOW_IN_MEMORY: usize = 6;
/// Ledger: the allowed dry link time is the time of the saved bytes, plus this share of the elapsed
/// time, plus the time of the credit in bytes.
const LEDGER_SHARE: f32 = 0.015;
const LEDGER_CREDIT: f32 = 16_384.0;
/// A rescue method may take at most this share of the link time of the raw block.
const RESCUE_CPU_SHARE: f32 = 0.12;
/// The same while the rate is unknown: more, since raw may turn out to be far worse.
const RESCUE_CPU_SHARE_UNKNOWN: f32 = 0.5;
/// A rescue by compression must take less than this share of the time of raw.
const RESCUE_GAIN: f32 = 0.9;
/// A method must reduce a block to this share of its raw length or less.
const SAVING_MIN: f32 = 0.997;
/// A receiver that had so many blocks for each of its threads, and had not decoded them, is behind: one is
/// in work, and one or two come while it is.
const BEHIND_BLOCKS: f32 = 4.0;
/// Smoothing of the time per byte of chosen methods.
const PACE_GAIN: f32 = 0.3;
/// The first block is compressed where the raw one would take this long: waking a worker and making
/// the context of a method take up to a fifth of a millisecond, on a busy host more.
const FIRST_PAYS_S: f32 = 2e-3;
/// The link may be this many times faster than an earlier flow measured it, but not faster than what
/// is assumed without a memory (in bytes/s): encoding a block for it takes at most as long as such a
/// link takes for the raw block. Ten times gain the same, and lose more where it was a hundred times.
const DOUBT: f32 = 100.0;
const DOUBTED_BELOW: f32 = 125e6;
/// A link that acknowledges and has carried fewer bytes than this counts as this share as fast as it
/// is assumed to be: a shaper lets its first bytes through at the speed of the line, and what left
/// uncompressed then is missing later. Half gains 2 to 10 % of short transfers up to 100 Mbit/s, start
/// of programs included, and loses 2 % at most above (docs/experiments/bench-cold.md).
const UNPROVEN_BYTES: u64 = 128 << 10;
const UNPROVEN_SHARE: f32 = 0.5;
/// Maximum block length for xz: its tables take 11 bytes per byte of dictionary, and longer blocks
/// would exceed the memory of a flow.
const XZ_BLOCK_MAX: usize = 512 << 10;
/// In bytes/s for each core: on faster links no method for numbers or base64 pays, and bytes are not probed.
const NUMBERS_BELOW: f32 = 300e6;
/// In bytes/s for each core: on faster links recompressing images pays for none. A core makes some 4 MB/s of
/// them, so the rule has the last word long before.
const IMAGES_BELOW: f32 = 20e6;
/// Number of latest blocks whose choice is remembered until the outcome comes, at least; more than
/// two windows.
const REMEMBERED: usize = 64;

/// The policy: minimises the predicted arrival time of the flow, block by block.
pub struct Balance {
    cores: f32,
    costs: CostModel,
    ring: Ring,
    prices: Prices,
    /// Smoothed seconds per byte of the chosen methods. In `pace` a raw block counts with its link
    /// time.
    pace: f32,
    cpu_pace: f32,
    saved: f32,
    chosen: u64,
    infos: Box<[Info]>,
    waiting: Option<(u64, u64)>,
    /// Number of raw blocks in a row up to the last choice.
    raw_run: u64,
    probe: Option<(usize, Features)>,
    in_memory: bool,
    /// Raw bytes chosen for the present trial of the link.
    tried_bytes: u64,
    /// The link has unsent bytes, and its rate is not known yet.
    pushed_back_unknown: bool,
    small: Small,
    images: Option<Weighed>,
    /// An image was recompressed.
    has_images: bool,
    why: Why,
}

/// Predictions for the last blocks.
struct Ring {
    predictions: [Prediction; RING],
    len: usize,
    next: usize,
}

impl Ring {
    fn push(&mut self, prediction: Prediction) {
        self.predictions[self.next] = prediction;
        self.next = (self.next + 1) % RING;
        self.len = (self.len + 1).min(RING);
    }
}

/// Predictions for a block at the time of its choice.
#[derive(Clone, Copy)]
struct Info {
    seq: u64,
    context: usize,
    features: Features,
    encode_s: f32,
    wire_len: f32,
    decode_s: f32,
    raw_wire_len: f32,
    /// Bytes before the block that it is linked to; 0 if it is not linked.
    history_len: usize,
    /// The assumed slowdown of the cores of this end, and of the receiver's.
    slowdown: f32,
    receiver_slowdown: f32,
    /// The best method for a rescue of the block, its encoded length and encode time.
    rescue: usize,
    rescue_len: f32,
    rescue_s: f32,
}

#[derive(Clone, Copy, Default)]
struct Why {
    price: f32,
    backlog_s: f32,
    target_s: f32,
    receiver_price: f32,
    encode_s: f32,
    wire_len: f32,
    decode_s: f32,
}

impl Balance {
    /// A policy for one flow, with the methods, cores, prior and calibration of the setup.
    pub fn new(setup: &PolicySetup<'_>) -> Self {
        // `store` is always included and always first; constant blocks are detected directly, not
        // chosen by price.
        let others = setup.methods.iter().copied().filter(|m| *m != Method::STORE && *m != Method::CONSTANT);
        let methods: Vec<_> = std::iter::once(Method::STORE).chain(others).collect();
        let mut costs = match setup.calibration {
            Some(calibration) => {
                CostModel::with(setup.codecs, &methods, &setup.prior.shifted(|m| calibration.shift(m)))
            }
            None => CostModel::with(setup.codecs, &methods, setup.prior),
        };
        costs.expect(setup.kinds);
        let remembered = REMEMBERED.max(2 * window_max(setup.cores) + 1);
        let nothing =
            Prediction { encode_s: [0.0; METHODS_MAX], wire_len: [0.0; METHODS_MAX], decode_s: [0.0; METHODS_MAX] };
        Self {
            cores: setup.cores.max(1) as f32,
            costs,
            ring: Ring { predictions: [nothing; RING], len: 0, next: 0 },
            prices: Prices { link: 0.5, receiver: 0.0, loads: [0.0; 3] },
            pace: 1.0 / 300e6,
            cpu_pace: 1.0 / 300e6,
            saved: 0.0,
            chosen: 0,
            infos: vec![Info::NONE; remembered].into(),
            waiting: None,
            raw_run: 0,
            probe: None,
            in_memory: false,
            tried_bytes: 0,
            pushed_back_unknown: false,
            small: Small::new(&methods),
            images: setup.images.then(Weighed::default),
            has_images: false,
            why: Why::default(),
        }
    }

    fn info(&self, seq: u64) -> Option<&Info> {
        Some(&self.infos[seq as usize % self.infos.len()]).filter(|i| i.seq == seq)
    }

    /// Predicted seconds until the link has sent all blocks chosen so far.
    fn backlog_s(&self, view: &View<'_>, rate: f32) -> f32 {
        let mut end_s = 0.0f32;
        for block in view.queue {
            let (ready_s, left) = match block.state {
                PendingState::Ready { unsent_len } => (0.0, unsent_len as f32),
                PendingState::Encoding => {
                    let (encode_s, left) =
                        self.info(block.seq).map_or((0.0, block.raw_len as f32), |i| (i.encode_s, i.wire_len));
                    let running_s = view.now_ns.saturating_sub(block.chosen_ns) as f32 * 1e-9;
                    ((encode_s - running_s).max(0.0), left)
                }
            };
            end_s = end_s.max(ready_s) + left / rate;
        }
        end_s
    }

    /// Detects a slow CPU by blocks that run longer than predicted, before they finish. The system
    /// may have taken the core of a single block for a moment, so the second latest block counts if
    /// there are two.
    fn notice_late_blocks(&mut self, view: &View<'_>) {
        let running = view.queue.iter().filter(|b| b.state == PendingState::Encoding && b.method != Method::STORE);
        let mut latest = [(0.0f32, 0, 0); 2];
        let mut count = 0;
        for block in running {
            let Some(info) = self.info(block.seq) else { continue };
            let free_ns = info.encode_s / info.slowdown * 1e9;
            let elapsed_ns = view.now_ns.saturating_sub(block.chosen_ns);
            let late = (elapsed_ns as f32 / free_ns.max(1.0), elapsed_ns, free_ns as u64);
            count += 1;
            if late.0 > latest[0].0 {
                latest = [late, latest[0]];
            } else if late.0 > latest[1].0 {
                latest[1] = late;
            }
        }
        if count > 0 {
            let (_, elapsed_ns, free_ns) = latest[usize::from(count > 1)];
            self.costs.observe_late(elapsed_ns, free_ns);
        }
    }

    /// Step 3: the length of the next block.
    fn block_len(&self, view: &View<'_>, rate: f32, backlog_s: f32) -> usize {
        let elapsed_s = view.busy_ns as f32 * 1e-9;
        let mut cap = (RAMP_SHARE * elapsed_s).max(RAMP_MIN_S) / self.pace;
        if let Some(left) = view.left.filter(|l| *l < END_IN_VIEW) {
            cap = cap.min((left as f32 / (1.5 * self.cores)).max(CLASSES[1] as f32));
        }
        if view.link.known {
            cap = cap.max(BACKLOG_SHARE * backlog_s / self.cpu_pace);
        }
        let large = rate < LARGE_BLOCKS_BELOW && view.link.known && self.chosen >= 3;
        let classes = match view.link.known {
            _ if large => &CLASSES[..],
            true => &CLASSES[..3],
            // Shorter blocks make mistakes smaller; an idle link has shown that they are small.
            false if view.link.unsent_bytes > 0 || self.chosen < UNKNOWN_SHORT_BLOCKS => &CLASSES[..2],
            false => &CLASSES[..3],
        };
        let mut class = classes.iter().rposition(|n| cap >= CLASS_SHARE * *n as f32).unwrap_or(0);
        while self.chosen >= 2
            && class < classes.len().min(3) - 1
            && self.cpu_pace * (CLASSES[class] as f32) < FIXED_COVER_S
        {
            class += 1;
        }
        // A raw block should occupy the link at least as long as the decision occupies the CPU.
        while view.link.known && class < 2 && self.chosen < 8 && (CLASSES[class] as f32) < FIXED_S * rate {
            class += 1;
        }
        if view.link.known && rate > SMALL_BLOCKS_ABOVE && view.left.is_some_and(|l| l < 8 << 20) {
            class = class.min(1);
        }
        CLASSES[class]
    }

    /// Asks the probe now and then whether blocks of this kind look like numbers, and each time whether the
    /// block has base64, which other bytes deny within nanoseconds.
    fn notice_invited(&mut self, view: &View<'_>, context: usize, len: usize, rate: f32) {
        if view.limits.allows(Method::base64(1)) && rate < NUMBERS_BELOW * self.cores && self.costs.wants_base64() {
            let has_base64 = len >= CLASSES[1] && base64::probe(&view.upcoming[..len]);
            self.costs.observe_base64(context, has_base64);
        }
        let pays = view.limits.allows(Method::split(1)) && rate < NUMBERS_BELOW * self.cores;
        if pays && self.costs.wants_probe(context, len) {
            // Split blocks see no history, in which lines of text repeat.
            let found = probe::probe(&view.upcoming[..len]);
            self.costs.observe_probe(context, found.is_some_and(|found| !found.is_text));
        }
    }

    /// Step 5: the costs of the next block, linked for each method where the score gains by it, with
    /// the bytes of history for each method.
    fn predict(
        &self,
        view: &View<'_>,
        context: usize,
        features: &Features,
        len: usize,
        now: &Now,
    ) -> (Prediction, [usize; METHODS_MAX]) {
        let mut p = self.costs.predict(context, features, len);
        let history_len = self.history_len(view);
        if history_len == 0 {
            return (p, [0; METHODS_MAX]);
        }
        let histories = self.costs.link(context, &mut p, (len, history_len), |costs, linked| {
            let late_s = (costs.encode_s - now.backlog_s).max(0.0);
            let decode_s = now.decode_s(costs.decode_s, usize::from(linked));
            if linked && decode_s > len as f32 / now.rate {
                return f32::INFINITY;
            }
            (1.0 - now.price) * costs.encode_s / self.cores
                + now.price * (costs.wire_len / now.rate + late_s)
                + self.prices.receiver * decode_s
        });
        (p, histories)
    }

    /// Bytes before the next block that it can be linked to.
    fn history_len(&self, view: &View<'_>) -> usize {
        let rate = sane_rate(view);
        let most = match view.link.known {
            true if rate > LINKED_BELOW * self.cores => 0,
            // Faster links gain less by a long history than its memory costs.
            true if rate <= LARGE_BLOCKS_BELOW => view.limits.history,
            _ => HISTORY_SHORT.min(view.limits.history),
        };
        (most as u64).min(view.raw_offset) as usize
    }

    /// Step 8: the method with the lowest score, which includes the idle time of the link.
    fn cheapest_with_idle(
        &self,
        view: &View<'_>,
        context: usize,
        (p, histories): (&Prediction, &[usize; METHODS_MAX]),
        now: &Now,
        len: usize,
    ) -> usize {
        // Only the rest of the flow can overlap the decoding of this block.
        let rest = view.left.map_or(f32::INFINITY, |left| left.saturating_sub(len as u64) as f32);
        let lightest = 1.min(self.costs.methods().len() - 1);
        let raw_banned =
            self.chosen > 0 && !view.link.known && lightest > 0 && p.wire_len[lightest] < 0.85 * p.wire_len[0];
        // An expected link may be much faster, and would then stand dry for the rest of the time.
        let patience_s = match view.link.expected {
            true => (now.backlog_s + p.wire_len[0] / now.rate) / doubt(view),
            false => f32::INFINITY,
        };
        let (mut best, mut best_cost) = (0, f32::INFINITY);
        for (m, &history_len) in histories.iter().enumerate().take(self.costs.methods().len()) {
            // While the rate is unknown, raw is the only choice whose loss is unbounded; the first
            // block is short.
            if !self.allowed(view, m, len) || m == 0 && raw_banned {
                continue;
            }
            let stands_in_for_raw = m == lightest && raw_banned;
            if m > 0 && !stands_in_for_raw && self.late_s(context, p, m) > patience_s {
                continue;
            }
            // At any price: a block that takes longer to decode than the raw one takes to arrive
            // only loses, and a negligible saving is not worth a core.
            let raw_s = p.wire_len[0] / now.rate;
            let decode_s = now.decode_s(p.decode_s[m], history_len);
            if m > 0 && (decode_s > raw_s || p.wire_len[m] > SAVING_MIN * p.wire_len[0]) {
                continue;
            }
            let idle_s = (self.late_s(context, p, m) - now.backlog_s).max(0.0);
            let rest_s = rest / len as f32 * (p.wire_len[m] / now.rate).max(p.encode_s[m] / self.cores);
            let tail_s = (p.decode_s[m] - rest_s).max(0.0);
            let cost = (1.0 - now.price) * p.encode_s[m] / self.cores
                + now.price * (p.wire_len[m] / now.rate + idle_s + tail_s)
                + self.prices.receiver * decode_s;
            if cost < best_cost {
                (best, best_cost) = (m, cost);
            }
        }
        if view.link.known && best > 0 {
            let idle_s = (p.encode_s[best] - now.backlog_s).max(0.0);
            let gain_s = (p.wire_len[0] - p.wire_len[best]) / now.rate;
            let elapsed_s = view.busy_ns as f32 * 1e-9;
            if idle_s > gain_s + (self.saved / now.rate + LEDGER_SHARE * elapsed_s).max(0.0) {
                return 0;
            }
        }
        best
    }

    /// Encode time of a method plus one standard deviation.
    fn late_s(&self, context: usize, p: &Prediction, m: usize) -> f32 {
        if m == 0 { p.encode_s[0] } else { p.encode_s[m] * (1.0 + self.costs.encode_sigma(context, m)) }
    }

    fn allowed(&self, view: &View<'_>, m: usize, len: usize) -> bool {
        let method = self.costs.methods()[m];
        view.limits.allows(method) && (method.codec != CodecId::XZ || len <= XZ_BLOCK_MAX)
    }

    /// The method by which the block would arrive soonest, of those quick enough for the I/O
    /// thread.
    fn rescue_method(&self, view: &View<'_>, p: &Prediction, len: usize, rate: f32) -> usize {
        let share = if view.link.known { RESCUE_CPU_SHARE } else { RESCUE_CPU_SHARE_UNKNOWN };
        let quick = |m: &usize| p.encode_s[*m] < share * len as f32 / rate && self.allowed(view, *m, len);
        let across_s = |m: usize| p.wire_len[m] / rate + p.encode_s[m];
        (1..self.costs.methods().len()).filter(quick).min_by(|a, b| across_s(*a).total_cmp(&across_s(*b))).unwrap_or(0)
    }

    /// Seconds of dry link that the ledger still allows.
    fn ledger_s(&self, view: &View<'_>, rate: f32) -> f32 {
        (self.saved + LEDGER_CREDIT) / rate + (LEDGER_SHARE * view.busy_ns as f32 - view.link.dry_ns as f32) * 1e-9
    }

    /// The next block recompressed, if it is an image for which that pays.
    fn image(&mut self, view: &View<'_>, rate: f32, decoders: f32, backlog_s: f32) -> Option<Choice> {
        let images = self.images.as_mut()?;
        let is_slow = (view.link.known || view.link.expected) && rate < IMAGES_BELOW * self.cores;
        if !is_slow || view.link.in_memory {
            images.forget();
            return None;
        }
        // Nothing waits for an image on a dry link.
        if view.ask != Ask::Next {
            return None;
        }
        let late = images.late();
        let (choice, costs) = images.next(view)?;
        let raw_len = choice.block_len as f32;
        let (slowdown, receiver_slowdown) = (self.costs.slowdown(), self.costs.receiver_slowdown());
        let (encode_s, decode_s) = (costs.encode_s * slowdown, costs.decode_s * receiver_slowdown);
        let now = Now { rate, decoders, backlog_s, price: price::sigmoid(self.prices.link) };
        let (raw_s, wire_s, on_receiver_s) = (raw_len / rate, costs.wire_len / rate, now.decode_s(decode_s, 0));
        let idle_s = (late * encode_s - backlog_s).max(0.0);
        let cost = (1.0 - now.price) * encode_s / self.cores
            + now.price * (wire_s + idle_s)
            + self.prices.receiver * on_receiver_s;
        if cost >= now.price * raw_s || on_receiver_s > raw_s || idle_s >= raw_s - wire_s {
            return None;
        }
        let info = Info {
            seq: view.seq,
            encode_s,
            wire_len: costs.wire_len,
            decode_s,
            raw_wire_len: raw_len,
            slowdown,
            receiver_slowdown,
            ..Info::NONE
        };
        self.has_images = true;
        self.prices.load(encode_s / self.cores, wire_s, on_receiver_s);
        self.remember(view, info);
        Some(Choice { encode_ns: (encode_s * 1e9) as u64, ..choice })
    }

    fn take(&mut self, view: &View<'_>, m: usize, len: usize, info: Info, now: &Now) -> Choice {
        self.pace = blend_log(self.pace, if m == 0 { 1.0 / now.rate } else { info.encode_s / len as f32 });
        self.cpu_pace = blend_log(self.cpu_pace, info.encode_s.max(2e-6) / len as f32);
        let decode_s = now.decode_s(info.decode_s, info.history_len);
        // What a receiver that is behind does not read looks like a slow link, which it is not.
        let waiting = view.receiver.backlog_bytes as f32 / info.wire_len.max(1.0);
        let is_behind = view.receiver.reports && waiting > BEHIND_BLOCKS * now.decoders;
        let link_s = if is_behind { 0.0 } else { info.wire_len / now.rate };
        self.prices.load(info.encode_s / self.cores, link_s, decode_s);
        self.remember(view, info);
        self.choice(m, len, info.encode_s)
    }

    fn remember(&mut self, view: &View<'_>, info: Info) {
        self.why.encode_s = info.encode_s;
        self.why.wire_len = info.wire_len;
        self.why.decode_s = info.decode_s;
        let place = view.seq as usize % self.infos.len();
        self.infos[place] = info;
        self.chosen += 1;
    }

    fn choice(&self, m: usize, len: usize, encode_s: f32) -> Choice {
        let method = self.costs.methods()[m];
        Choice { encode_ns: (encode_s * 1e9) as u64, ..Choice::new(method, len) }
    }

    /// Chooses to send a block raw, without a look at its content.
    fn raw(&mut self, view: &View<'_>, len: usize) -> Choice {
        let encode_s = Method::STORE.nominal_encode_ns(len) as f32 * 1e-9;
        let wire_len = len as f32;
        self.remember(view, Info { seq: view.seq, encode_s, wire_len, raw_wire_len: wire_len, ..Info::NONE });
        self.choice(0, len, encode_s)
    }

    /// A constant block over the longest run of the first byte, if the coming bytes are constant.
    fn constant(&mut self, view: &View<'_>, len: usize) -> Option<Choice> {
        let constant = view.limits.allows(Method::CONSTANT) && len >= 64 && is_constant(&view.upcoming[..len]);
        if !constant {
            return None;
        }
        let len = constant_prefix(view.upcoming);
        let encode_ns = Method::CONSTANT.nominal_encode_ns(len);
        let info = Info {
            seq: view.seq,
            wire_len: 17.0,
            raw_wire_len: len as f32,
            encode_s: encode_ns as f32 * 1e-9,
            ..Info::NONE
        };
        self.remember(view, info);
        Some(Choice { encode_ns, ..Choice::new(Method::CONSTANT, len) })
    }
}

/// The present state, as the score needs it.
struct Now {
    rate: f32,
    decoders: f32,
    backlog_s: f32,
    price: f32,
}

impl Now {
    /// Seconds for which a block that is linked to so many bytes occupies the receiver. Linked blocks
    /// are decoded one after the other.
    fn decode_s(&self, decode_s: f32, history_len: usize) -> f32 {
        if history_len > 0 { decode_s } else { decode_s / self.decoders }
    }
}

impl Info {
    const NONE: Self = Self {
        seq: u64::MAX,
        context: 0,
        features: Features {
            entropy: 0.0,
            repeats: 0.0,
            equal_1: 0.0,
            equal_4: 0.0,
            equal_8: 0.0,
            text: 0.0,
            zero: 0.0,
            log_len: 0.0,
        },
        encode_s: 0.0,
        wire_len: 0.0,
        decode_s: 0.0,
        raw_wire_len: 0.0,
        history_len: 0,
        slowdown: 1.0,
        receiver_slowdown: 1.0,
        rescue: 0,
        rescue_len: 0.0,
        rescue_s: 0.0,
    };
}

impl Policy for Balance {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        if let Some(small) = self.small.choose(view) {
            // `block_len` is a maximum; the sender may gather more before it cuts.
            let encode_ns = (small.encode_s * 1e9) as u64;
            let linked = small.method != Method::STORE;
            let block_len = CLASSES[0].min(view.limits.block_max);
            return Choice { linked, encode_ns, ..Choice::new(small.method, block_len) };
        }
        let rate = sane_rate(view) * if is_unproven(view) { UNPROVEN_SHARE } else { 1.0 };
        let decoders = view.receiver.cores.max(1) as f32;
        let backlog_s = self.backlog_s(view, rate);
        self.notice_late_blocks(view);
        if let Some(choice) = self.image(view, rate, decoders, backlog_s) {
            return choice;
        }
        let mut wanted = match view.ask {
            Ask::Next => self.block_len(view, rate, backlog_s),
            Ask::Bypass => CLASSES[1],
        };
        let first = self.chosen == 0 && !view.link.known;
        self.in_memory = view.link.in_memory;
        self.pushed_back_unknown = !view.link.known && view.link.unsent_bytes > 0;
        // A slow link would take seconds for the blocks made in the first millisecond for an
        // assumed rate, so these are short.
        if first || view.link.unanswered {
            wanted = CLASSES[0];
        }
        if self.in_memory {
            wanted = CLASSES[2];
        }
        wanted = wanted.min(view.limits.block_max);
        wanted = self.images.as_ref().map_or(wanted, |images| images.before(view, wanted));
        let mut len = wanted.min(view.upcoming.len());
        if let Some(choice) = self.constant(view, len) {
            return choice;
        }
        if self.in_memory {
            return Choice { block_len: wanted, ..self.raw(view, len) };
        }
        if view.link.trial_bytes == 0 {
            self.tried_bytes = 0;
        } else if self.tried_bytes < view.link.trial_bytes && view.ask == Ask::Next {
            wanted = CLASSES[1].min(view.limits.block_max);
            len = wanted.min(view.upcoming.len());
            self.tried_bytes += len as u64;
            return Choice { block_len: wanted, ..self.raw(view, len) };
        }
        let features = Features::sample(&view.upcoming[..len]);
        let context = self.costs.context(&features);
        self.notice_invited(view, context, len, rate);
        // Whether linking pays depends on the price, and the price on the costs: the ring gets the
        // costs at the price of the block before.
        let before = Now { rate, decoders, backlog_s, price: price::sigmoid(self.prices.link) };
        let (mut p, mut histories) = self.predict(view, context, &features, len, &before);
        if len >= CLASSES[1] || self.ring.len < 4 {
            self.ring.push(p);
        }
        self.solve(rate, decoders);
        let price = self.price_now(view, &p, rate, decoders, backlog_s);
        let now = Now { rate, decoders, backlog_s, price };
        if self.history_len(view) > 0 {
            (p, histories) = self.predict(view, context, &features, len, &now);
        }
        self.why = Why { price, backlog_s, receiver_price: self.prices.receiver, ..self.why };

        let rescue = self.rescue_method(view, &p, len, rate * doubt(view));
        let mut m = match view.ask {
            // The first block is raw: nothing is known yet, and no other method reaches the link
            // sooner. A link that is expected to be slow may wait for a quick method.
            _ if first && (!view.link.expected || p.wire_len[0] < FIRST_PAYS_S * rate) => 0,
            Ask::Next => self.cheapest_with_idle(view, context, (&p, &histories), &now, len),
            Ask::Bypass if p.wire_len[rescue] < RESCUE_GAIN * p.wire_len[0] => rescue,
            Ask::Bypass => 0,
        };
        // The length suits the methods chosen so far. If the chosen one is slower than the ramp
        // allows, the block is shortened.
        let in_time_s = backlog_s.max(RAMP_SHARE * view.busy_ns as f32 * 1e-9);
        while view.ask == Ask::Next && !first && m > 0 && self.late_s(context, &p, m) > in_time_s {
            let Some(shorter) = CLASSES.iter().rev().find(|n| **n < len) else { break };
            (wanted, len) = (*shorter, *shorter);
            (p, histories) = self.predict(view, context, &features, len, &now);
            m = self.cheapest_with_idle(view, context, (&p, &histories), &now, len);
        }
        self.raw_run = if m == 0 { self.raw_run + 1 } else { 0 };
        if self.raw_run > RAW_RUN && view.link.known && rate > SMALL_BLOCKS_ABOVE && view.ask == Ask::Next {
            wanted = CLASSES[2].min(view.limits.block_max);
            len = wanted.min(view.upcoming.len());
            (p, histories) = self.predict(view, context, &features, len, &now);
        }
        let history_len = histories[m];
        let info = Info {
            seq: view.seq,
            context,
            features,
            encode_s: p.encode_s[m],
            wire_len: p.wire_len[m],
            decode_s: p.decode_s[m],
            raw_wire_len: p.wire_len[0],
            history_len,
            slowdown: self.costs.slowdown(),
            receiver_slowdown: self.costs.receiver_slowdown(),
            rescue,
            rescue_len: p.wire_len[rescue],
            rescue_s: p.encode_s[rescue],
        };
        if first {
            self.remember(view, info);
            return Choice { block_len: wanted, ..self.choice(m, len, info.encode_s) };
        }
        Choice { block_len: wanted, linked: history_len > 0, history_len, ..self.take(view, m, len, info, &now) }
    }

    fn rescue(&mut self, view: &View<'_>) -> Rescue {
        let head = view.queue.iter().find(|b| b.state == PendingState::Encoding);
        let Some(info) = head.and_then(|b| self.info(b.seq)).copied() else { return Rescue::TakeOver(Method::STORE) };
        // A link that runs dry under blocks that were made for its expected rate is faster.
        let rate = sane_rate(view) * doubt(view);
        // While the rate is unknown, so is the dry time of the link.
        let ledger_s = if view.link.known { self.ledger_s(view, rate) } else { f32::INFINITY };
        let pays = info.rescue_len + info.rescue_s * rate < RESCUE_GAIN * info.raw_wire_len && info.rescue_s < ledger_s;
        let (m, across_s, cpu_s) = if pays && info.rescue > 0 {
            (info.rescue, info.rescue_len / rate + info.rescue_s, info.rescue_s)
        } else {
            (0, info.raw_wire_len / rate, 0.0)
        };
        let method = Some(self.costs.methods()[m]).filter(|m| view.limits.allows(*m)).unwrap_or(Method::STORE);
        let take_over = Rescue::TakeOver(method);
        match self.waiting {
            Some((seq, until_ns)) if seq == info.seq && view.now_ns >= until_ns => take_over,
            Some((seq, until_ns)) if seq == info.seq => Rescue::WaitUntil(until_ns),
            _ => {
                // Waiting longer than the worker's result would save is always slower than a rescue
                // now.
                let wait_s = match view.link.opening {
                    true => 0.0,
                    false => (across_s - info.wire_len / rate).min(ledger_s - cpu_s).max(0.0),
                };
                let until_ns = view.now_ns.saturating_add((wait_s * 1e9) as u64);
                self.waiting = Some((info.seq, until_ns));
                if wait_s <= 0.0 { take_over } else { Rescue::WaitUntil(until_ns) }
            }
        }
    }

    fn probe(&mut self, view: &View<'_>) -> Option<Choice> {
        // Near the end nothing is left to choose with what a probe tells.
        let ends = view.left.is_some_and(|left| left < END_IN_VIEW);
        // What pays on a link is known when its rate is; a slow one leaves time meanwhile.
        let fast = sane_rate(view) > if view.link.known { SMALL_BLOCKS_ABOVE } else { LARGE_BLOCKS_BELOW };
        if self.in_memory || view.queue.is_empty() || ends || fast {
            return None;
        }
        let len = CLASSES[2].min(view.upcoming.len()).min(view.limits.block_max);
        let spare_s = self.backlog_s(view, sane_rate(view)) / view.queue.len() as f32;
        let features = Features::sample(&view.upcoming[..len]);
        let context = self.costs.context(&features);
        let p = self.costs.predict(context, &features, len);
        let uncertain = |m: usize| self.costs.size_uncertainty(context, m);
        // A method with which all cores take longer than the link does for raw bytes never pays.
        let never_pays_s = self.cores * p.wire_len[0] / sane_rate(view);
        let m = (1..self.costs.methods().len())
            .filter(|&m| p.encode_s[m] < never_pays_s && 1.3 * p.encode_s[m] < spare_s)
            .filter(|&m| uncertain(m) > 0.6 && self.allowed(view, m, len) && self.costs.offers(context, m))
            .max_by(|a, b| uncertain(*a).total_cmp(&uncertain(*b)))?;
        self.probe = Some((context, features));
        Some(self.choice(m, len, p.encode_s[m]))
    }

    fn learn(&mut self, outcome: &Outcome) {
        match *outcome {
            Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over } => {
                if self.small.learn(seq, raw_len, wire_len, wall_ns) {
                    return;
                }
                if method == Method::LEPTON {
                    let expected_s = self.info(seq).map_or(f32::INFINITY, |info| info.encode_s);
                    let times = wall_ns as f32 * 1e-9 / expected_s;
                    self.images.iter_mut().for_each(|images| images.learn(raw_len, wire_len, cpu_ns, times));
                    self.costs.observe_host(wall_ns, cpu_ns);
                }
                if !taken_over {
                    self.saved += raw_len.saturating_sub(wire_len) as f32;
                }
                let Some(info) = self.info(seq).copied() else { return };
                if let Some(m) = self.costs.index_of(method) {
                    let seen = Seen { raw_len, wire_len, wall_ns, cpu_ns, history_len: info.history_len };
                    self.costs.observe(info.context, &info.features, m, seen);
                }
            }
            Outcome::Probed { method, raw_len, wire_len, wall_ns, cpu_ns } => {
                let (Some((context, features)), Some(m)) = (self.probe.take(), self.costs.index_of(method)) else {
                    return;
                };
                self.costs.observe(context, &features, m, Seen { raw_len, wire_len, wall_ns, cpu_ns, history_len: 0 });
            }
            Outcome::Received { first_seq, last_seq, decode_ns, load, .. } => {
                // Blocks that are too old to be remembered count as the mean of the remembered
                // ones, and all of them of the latest where the receiver is that far behind. Reports come late, so each prediction is divided by the slowdown assumed at
                // its time, which would otherwise count twice.
                let oldest = last_seq.saturating_sub(self.infos.len() as u64 - 1).max(first_seq);
                let add = |(sum, n): (f32, f32), i: &Info| (sum + i.decode_s / i.receiver_slowdown, n + 1.0);
                let (mut sum, mut count) = (oldest..=last_seq).filter_map(|seq| self.info(seq)).fold((0.0, 0.0), add);
                if count == 0.0 {
                    (sum, count) = self.infos.iter().filter(|i| i.seq != u64::MAX).fold((0.0, 0.0), add);
                }
                let blocks = last_seq.saturating_sub(first_seq) as f32 + 1.0;
                self.costs.observe_load(load);
                self.costs.observe_decode(sum / count.max(1.0) * blocks, decode_ns as f32 * 1e-9);
            }
            _ => {}
        }
    }

    fn window(&self, cores: usize) -> usize {
        if self.in_memory {
            return WINDOW_IN_MEMORY;
        }
        if self.pushed_back_unknown {
            return WINDOW_UNKNOWN;
        }
        // What an image costs is known, and its neighbours wait for it.
        if self.chosen < WINDOW_FIRST_BLOCKS && !self.has_images {
            cores.saturating_add(WINDOW_FIRST).min(WINDOW)
        } else {
            window_max(cores)
        }
    }

    fn awaits(&self) -> Option<u64> {
        self.images.as_ref().and_then(Weighed::awaited)
    }

    fn learned(&self) -> Vec<(Method, f32)> {
        let methods = self.costs.methods().iter().enumerate().skip(1);
        methods.filter_map(|(m, method)| Some((*method, self.costs.learned_encode_shift(m)?))).collect()
    }

    fn kinds(&self) -> Vec<Kind> {
        self.costs.kinds()
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("price", f64::from(self.why.price)),
            ("receiver_price", f64::from(self.why.receiver_price)),
            ("backlog_s", f64::from(self.why.backlog_s)),
            ("target_s", f64::from(self.why.target_s)),
            ("predicted_encode_s", f64::from(self.why.encode_s)),
            ("predicted_wire_len", f64::from(self.why.wire_len)),
            ("predicted_decode_s", f64::from(self.why.decode_s)),
            ("slowdown", f64::from(self.costs.slowdown())),
        ]
    }
}

/// Cores for which a window is chosen.
const CORES_MAX: usize = 4096;

/// Maximum blocks in flight of a flow whose methods are known.
fn window_max(cores: usize) -> usize {
    // More cores than any host has would only take memory.
    let cores = cores.min(CORES_MAX);
    WINDOW.max(cores + cores / 2)
}

/// How many times faster than an earlier flow measured it the link may be; 1 once there is evidence.
fn doubt(view: &View<'_>) -> f32 {
    if view.link.expected { (DOUBTED_BELOW / sane_rate(view)).clamp(1.0, DOUBT) } else { 1.0 }
}

/// Whether all that is known of a link may be what a shaper lets through at once.
fn is_unproven(view: &View<'_>) -> bool {
    let link = &view.link;
    !link.known && !link.expected && link.rtt_ns.is_some() && link.left_host_bytes < UNPROVEN_BYTES
}

fn blend_log(old: f32, new: f32) -> f32 {
    old * (PACE_GAIN * (new / old).ln()).exp()
}

/// The rate of the link in bytes/s, clamped to 1 kbit/s to 800 Gbit/s.
fn sane_rate(view: &View<'_>) -> f32 {
    let rate = view.link.rate_bytes_per_s as f32;
    if rate.is_finite() { rate.clamp(125.0, 100e9) } else { 250e6 }
}

const SETTINGS: NoSettings = NoSettings {
    name: "balance",
    block_max: CLASSES[CLASSES.len() - 1],
    gather_ns: 0,
    links: true,
    methods: Vec::new,
    build: |setup| Box::new(Balance::new(setup)),
};

pub(super) const ENTRY: Registered = Registered {
    name: "balance",
    usage: "balance",
    about: "the method by which each block arrives soonest",
    examples: &["balance"],
    parse: |rest, _| SETTINGS.parse(rest),
};
