//! `messages`: for each message the method with the least total time: encoding, decoding, and the
//! wire bytes it leaves.
//!
//! ```text
//!   choose m = argmin  c_m(n) + r_m * n * u
//! ```
//!
//! n is the length, c the microseconds of encoding and decoding, r the wire bytes per raw byte, u
//! the microseconds per wire byte. All but n are learned on the running flow: a codec is two to
//! five times slower than any calibration says when other work fills the caches, and a link that is
//! never busy has no rate, only a slope (`monitor/slope.rs`).

use std::fmt;
use std::sync::Arc;

use super::{Choice, Outcome, Policy, PolicySettings, PolicySetup, Registered};
use crate::codec::Method;
use crate::error::{Error, Result};
use crate::monitor::View;
use crate::monitor::quota::Quota;
use crate::monitor::slope::Slope;

/// Settings of the policy: its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessagesSpec {
    /// Maximum time of encoding and decoding a message, in microseconds.
    pub latency_us: Option<u32>,
    /// Maximum share of one core that encoding takes, in per cent.
    pub cpu_percent: Option<u8>,
}

impl MessagesSpec {
    /// Parses settings such as `latency_us=20,cpu_percent=5`.
    fn parse(s: &str) -> Result<Self> {
        let mut spec = Self::default();
        for item in s.split(',').filter(|i| !i.is_empty()) {
            let number = item.split_once('=').and_then(|(key, value)| Some((key, value.parse::<u32>().ok()?)));
            match number {
                Some(("latency_us", us)) if us > 0 => spec.latency_us = Some(us),
                Some(("cpu_percent", share)) if (1..=100).contains(&share) => spec.cpu_percent = Some(share as u8),
                _ => return Err(Error::misuse(format!("'{item}' is not a setting of messages"))),
            }
        }
        Ok(spec)
    }
}

/// A method to choose, with the initial estimates of its times (us: fixed and per byte, for encoder
/// and decoder) and of `left`, the wire bytes per raw byte. The times were measured with caches
/// that other work had filled; `left` is optimistic, so that each arm is tried.
struct Arm {
    method: Method,
    linked: bool,
    encode: [f32; 2],
    decode: [f32; 2],
    left: f32,
}

const ARMS: [Arm; 5] = [
    Arm { method: Method::STORE, linked: false, encode: [0.0, 0.0], decode: [0.0, 0.0], left: 1.0 },
    Arm { method: Method::lz4_accel(1), linked: true, encode: [0.7, 0.001], decode: [0.3, 0.0005], left: 0.25 },
    Arm { method: Method::lz4_accel(1), linked: false, encode: [0.6, 0.002], decode: [0.3, 0.0005], left: 0.6 },
    Arm { method: Method::zstd(1), linked: false, encode: [4.0, 0.005], decode: [2.0, 0.002], left: 0.5 },
    Arm { method: Method::zstd(1), linked: true, encode: [2.7, 0.005], decode: [0.7, 0.002], left: f32::NAN },
];
const STORE: usize = 0;
const LINKED: usize = 1;
/// The message is encoded both linked and with the dictionary; the shorter result is sent.
const BOTH: usize = 4;
/// Initial estimate of `left` for both, relative to the shorter of the two: messages differ.
const BOTH_LEFT: f32 = 0.85;
/// Number of initial messages that are encoded both ways if there is a dictionary. History
/// overtakes the dictionary at the third to tenth message, link and costs are not known yet, and it
/// costs 50 us once.
const BOTH_FIRST: u64 = 10;
/// Price from which this is worth its time: the dictionary saves some 150 bytes of these messages.
const BOTH_PAYS: f32 = 0.05;
/// After this many answers one message is stored: its round trip immediately bounds u. Not among
/// the first messages, which are often the only ones.
const SOUNDING_AFTER: u8 = BOTH_FIRST as u8;
/// If a message is stored because bytes take no measurable time, this many more are stored without
/// a decision: deciding would take as long as all other work on them.
const RESTS: u8 = 7;
/// The upper bound of u rises by this factor with each answer, so that it can follow the link.
const DEAREST_RISE: f32 = 1.02;
/// The unlinked arms with a dictionary: LZ4 is as quick as without one, and zstd finds its tables
/// ready.
const WITH_DICTIONARY: [Arm; 2] =
    [Arm { left: 0.45, ..ARMS[2] }, Arm { encode: [2.0, 0.004], decode: [0.7, 0.002], left: 0.35, ..ARMS[3] }];
const ALONE: std::ops::Range<usize> = 2..4;

/// Size classes of messages, by powers of two up to 64 KiB.
const CLASSES: usize = 17;
/// Overhead of a message on the wire, in bytes.
const HEADER_LEN: f32 = 3.0;
/// Price without any answer or rate: that of a 100 Mbit/s link. Even then bytes have a cost.
const BLIND_US_PER_BYTE: f32 = 0.08;
/// Maximum price, that of an 800 bit/s link: a slower one is broken.
const US_PER_BYTE_MAX: f32 = 1e4;
/// A price below this counts as 0: the effect of a message's length cannot be told from noise, and
/// nothing is gained.
const SLOPE_MIN: f32 = 0.003;

/// The price follows the slope within some messages: occasional disturbances cause slopes of their
/// own.
const GAIN_PRICE: f32 = 0.3;

/// Gains of cost estimates: slow upwards, since a message may have lost its core, fast downwards.
const GAIN_UP: f32 = 0.05;
const GAIN_DOWN: f32 = 0.3;
/// Maximum rise considered for one observation, relative to the estimate.
const SURPRISE_MAX: f32 = 2.0;
/// Gains of `left`, slower upwards too: messages of another kind come now and then, and an arm with
/// too high an estimate is rarely tried.
const GAIN_LONGER: f32 = 0.15;
const GAIN_SHORTER: f32 = 0.5;
/// Maximum of an observed `left`: a message that does not shrink is sent raw.
const LEFT_MAX: f32 = 1.2;
/// History in bytes from which `left` of linked messages is representative; less if half of the
/// maximum history is less.
const HISTORY_FIRST: usize = 2 << 10;
/// Length at which the fixed part of a cost and the part per byte learn equally.
const LEN_TYPICAL: f32 = 512.0;

/// Messages between trials of another arm than the best: few at first, more later, most where the
/// best is clear.
const PROBE_FIRST: u32 = 4;
const PROBE_EVERY: u32 = 64;
const PROBE_CLEAR: u32 = 256;
/// The best arm is clear if storing takes more than this many times its time.
const CLEAR: f32 = 2.0;
/// An arm that takes more than this many times the best one's time is not tried again.
const PROBE_REACH: f32 = 4.0;
/// A former best arm (the rival) is tried again after 4, 8, 16 ... messages, up to [`PROBE_EVERY`]:
/// the change may be due to messages of another kind, on which it was never tried.
const RIVAL_FIRST: u8 = 4;
/// Maximum share of the messages' time that trials of an arm take; more for a rival, which is tried
/// only for a short while.
const PROBE_SHARE: f32 = 0.0025;
const RIVAL_SHARE: f32 = 0.05;
/// Number of first answers that are not used for the slope: both hosts still run with cold caches.
const ANSWERS_COLD: u8 = 8;
/// Initial estimate of a cold encoder's cost, as a multiple of its fixed cost.
const COLD_TIMES: f32 = 6.0;
/// Factor by which a cost over the latency limit decays, every [`PROBE_CLEAR`] messages.
const FORGET: f32 = 0.7;
/// Gain of the mean time from a message to its answer.
const GAIN_SPAN: f32 = 0.05;
/// Number of messages that a trial waits for one of at most mean length, since a trial may cost
/// that length.
const PROBE_PATIENCE: u32 = 8;

#[derive(Debug, Clone, Copy)]
struct Learned {
    encode: [f32; 2],
    decode: [f32; 2],
    /// Wire bytes per raw byte, by size class; NaN until observed.
    left: [f32; CLASSES],
    /// Estimate of `left` until something is observed.
    left_hoped: f32,
    tried: bool,
    /// Number of cost observations, saturating; the first few count more than the initial estimate.
    times: u8,
    /// Encode time of the last trial, with cold tables and caches; and the number of that message.
    cold_us: f32,
    tried_at: u32,
}

impl Learned {
    fn of(arm: &Arm) -> Self {
        let Arm { encode, decode, left, .. } = *arm;
        Self {
            encode,
            decode,
            left: [f32::NAN; CLASSES],
            left_hoped: left,
            tried: false,
            times: 0,
            cold_us: COLD_TIMES * encode[0],
            tried_at: 0,
        }
    }
}

/// The last message: its sequence number, arm and length.
#[derive(Debug, Clone, Copy)]
struct Last {
    seq: u64,
    /// There was little history to refer to.
    early: bool,
    arm: usize,
    n: f32,
    /// The message was a trial, with cold tables and caches at both ends, so its time says nothing
    /// about the link.
    cold: bool,
}

/// The best arm of a size class and its rival, the best until the last change. `wait` counts the
/// messages until the rival is tried, `every` is the current interval; 0: it is not tried.
#[derive(Debug, Clone, Copy, Default)]
struct Rivals {
    best: u8,
    rival: u8,
    wait: u8,
    every: u8,
}

/// The policy: learns times and lengths of each arm and the price of a wire byte.
pub struct Messages {
    spec: MessagesSpec,
    quota: Option<Quota>,
    arms: [Learned; ARMS.len()],
    dictionary: Option<u64>,
    slope: Slope,
    last: Last,
    since_probe: u32,
    probe_every: u32,
    next_probe: usize,
    /// The arm to try a second time: the first trial finds cold tables.
    again: Option<usize>,
    /// By size class: the best arm for short messages may not be the best for long ones.
    rivals: [Rivals; CLASSES],
    mean_len: f32,
    us_per_byte: f32,
    messages: u32,
    answers: u8,
    /// Upper bound of the microseconds per wire byte, and whether a message was stored to learn it.
    dearest: f32,
    sounded: bool,
    /// Number of messages still to be stored without a decision.
    rest: u8,
    /// Mean time from a message to its answer; 0 before the first.
    span_us: f32,
}

impl Messages {
    /// Maximum length of a block, in raw bytes.
    pub const BLOCK_LEN: usize = 64 << 10;

    /// A policy for one flow under these limits.
    pub fn new(spec: MessagesSpec) -> Self {
        let mut arms = ARMS.each_ref().map(Learned::of);
        arms[STORE].tried = true;
        Self {
            spec,
            quota: spec.cpu_percent.map(|share| Quota::new(f64::from(share) / 100.0)),
            arms,
            dictionary: None,
            slope: Slope::default(),
            last: Last { seq: u64::MAX, early: true, arm: STORE, n: 0.0, cold: false },
            since_probe: 0,
            probe_every: PROBE_FIRST,
            next_probe: 0,
            again: None,
            rivals: [Rivals::default(); CLASSES],
            mean_len: 0.0,
            us_per_byte: BLIND_US_PER_BYTE,
            messages: 0,
            answers: 0,
            dearest: f32::INFINITY,
            sounded: false,
            rest: 0,
            span_us: 0.0,
        }
    }

    pub(super) fn methods() -> Vec<Method> {
        vec![Method::STORE, Method::lz4_accel(1), Method::zstd(1)]
    }

    /// Estimated microseconds per wire byte.
    fn price(&self, view: &View<'_>) -> f32 {
        // Without a slope, because all messages had one length or the link has just changed, the
        // price stays as it is.
        if self.slope.heard() {
            // The expected price may exceed the observed one, but not the price of an unknown link.
            let likely = |seen: f32| self.slope.expected().unwrap_or(seen).min(seen.max(BLIND_US_PER_BYTE));
            let seen = self.slope.us_per_byte().map_or(self.us_per_byte, likely);
            return (self.us_per_byte + GAIN_PRICE * (seen - self.us_per_byte)).min(self.dearest);
        }
        if view.link.known && view.link.rate_bytes_per_s > 0.0 {
            return ((1e6 / view.link.rate_bytes_per_s) as f32).min(US_PER_BYTE_MAX);
        }
        BLIND_US_PER_BYTE.min(self.dearest)
    }

    fn cost_us(&self, m: usize, n: f32) -> f32 {
        let Learned { encode, decode, .. } = self.arms[m];
        encode[0] + encode[1] * n + decode[0] + decode[1] * n
    }

    /// Estimated wire bytes per raw byte: those of the size class, else of the nearest class that
    /// was observed.
    fn left(&self, m: usize, class: usize) -> f32 {
        let left = &self.arms[m].left;
        let nearest = (0..CLASSES).filter(|c| !left[*c].is_nan()).min_by_key(|c| c.abs_diff(class));
        let both_seen = || self.arms[BOTH].left.iter().any(|left| !left.is_nan());
        match nearest {
            Some(c) => left[c],
            // While only both together were tried, the history may be what made the message short.
            None if m == LINKED && both_seen() => self.left(BOTH, class) / BOTH_LEFT,
            None if m == BOTH => BOTH_LEFT * self.left(LINKED, class).min(self.left(ALONE.end - 1, class)),
            None => self.arms[m].left_hoped,
        }
    }

    fn score_us(&self, m: usize, n: f32, u: f32) -> f32 {
        let left = if m == STORE { 1.0 } else { self.left(m, class(n as usize)).min(1.0) };
        self.cost_us(m, n) + (n * left + HEADER_LEN) * u
    }

    /// Methods over the latency limit are never tried, so their cost estimates decay until they
    /// qualify again.
    fn forget_costs(&mut self, n: f32) {
        let most = self.spec.latency_us.unwrap_or(u32::MAX) as f32;
        for m in 0..ARMS.len() {
            if self.cost_us(m, n) > most {
                let Learned { encode, decode, .. } = &mut self.arms[m];
                encode.iter_mut().chain(decode).for_each(|us| *us *= FORGET);
            }
        }
    }

    /// Adopts a change of dictionary: resets what was learned about the unlinked arms, which
    /// depends on it.
    fn follow(&mut self, dictionary: Option<u64>) {
        if self.dictionary == dictionary {
            return;
        }
        self.dictionary = dictionary;
        let arms = if dictionary.is_some() { &WITH_DICTIONARY[..] } else { &ARMS[ALONE] };
        for (learned, arm) in self.arms[ALONE].iter_mut().zip(arms) {
            *learned = Learned::of(arm);
        }
        self.arms[BOTH] = Learned::of(&ARMS[BOTH]);
        self.probe_every = PROBE_FIRST;
    }

    fn allowed(&mut self, m: usize, n: f32, view: &View<'_>) -> bool {
        if m == STORE {
            return true;
        }
        let cost_us = self.cost_us(m, n);
        let arm = &ARMS[m];
        let [fixed, each] = self.arms[m].encode;
        let encode_ns = ((fixed + each * n) * 1e3) as u64;
        view.limits.allows(arm.method)
            && (!arm.linked || view.limits.history > 0)
            && (m != BOTH || view.limits.dictionary.is_some())
            && self.spec.latency_us.is_none_or(|most| cost_us <= most as f32)
            && self.quota.as_mut().is_none_or(|q| q.allows(view.now_ns, encode_ns))
    }

    /// The arm to try instead of `best`, if a trial is due.
    fn probe(&mut self, best: usize, scores: &[f32; ARMS.len()], n: f32) -> Option<usize> {
        if let Some(m) = self.again.take().filter(|m| scores[*m].is_finite()) {
            return Some(m);
        }
        if let Some(m) = self.try_rival(best, class(n as usize), scores) {
            return Some(m);
        }
        self.since_probe += 1;
        let wait = self.since_probe < self.probe_every + PROBE_PATIENCE && n > self.mean_len;
        if self.since_probe < self.probe_every || wait {
            return None;
        }
        self.since_probe = 0;
        let clear = scores[STORE] > CLEAR * scores[best];
        self.probe_every = (self.probe_every * 2).min(if clear { PROBE_CLEAR } else { PROBE_EVERY });
        for _ in 0..ARMS.len() {
            self.next_probe = (self.next_probe + 1) % ARMS.len();
            let m = self.next_probe;
            // Storing is always tried unless it is the best: the slope needs messages of other
            // lengths.
            let blind = m == LINKED && self.slope.us_per_byte().is_none();
            let in_reach =
                m == STORE || blind || !self.arms[m].tried || scores[m] < PROBE_REACH * scores[best].max(1.0);
            // Until it is certain that bytes take time at all, that knowledge is worth more.
            let share = if m == STORE && !self.slope.is_sure() { RIVAL_SHARE } else { PROBE_SHARE };
            if m != best && in_reach && self.affordable(m, best, scores, share) {
                return Some(self.tried(m));
            }
        }
        None
    }

    /// The rival, if its trial is due.
    fn try_rival(&mut self, best: usize, class: usize, scores: &[f32; ARMS.len()]) -> Option<usize> {
        let rivals = &mut self.rivals[class];
        if best != usize::from(rivals.best) {
            // Storing leaves the same length of every kind of message, so it needs no trial.
            let every = if usize::from(rivals.best) == STORE { 0 } else { RIVAL_FIRST };
            *rivals = Rivals { best: best as u8, rival: rivals.best, wait: every, every };
        }
        if rivals.every == 0 {
            return None;
        }
        rivals.wait -= 1;
        if rivals.wait > 0 {
            return None;
        }
        let m = usize::from(rivals.rival);
        rivals.every *= 2;
        rivals.wait = rivals.every;
        if u32::from(rivals.every) > PROBE_EVERY {
            rivals.every = 0;
        }
        self.affordable(m, best, scores, RIVAL_SHARE).then(|| self.tried(m))
    }

    /// Whether the extra time of trying `m` instead of `best` is at most `share` of the time since
    /// its last trial.
    fn affordable(&self, m: usize, best: usize, scores: &[f32; ARMS.len()], share: f32) -> bool {
        let arm = &self.arms[m];
        // Doubled: a codec that is cold here is cold at the peer too.
        let more_us = (scores[m] - scores[best]).max(2.0 * arm.cold_us);
        let since = self.messages.wrapping_sub(arm.tried_at) as f32;
        scores[m].is_finite() && (self.span_us == 0.0 || more_us <= share * since * self.span_us)
    }

    fn tried(&mut self, m: usize) -> usize {
        self.arms[m].tried_at = self.messages;
        self.again = (m == LINKED).then_some(m);
        m
    }
}

impl Policy for Messages {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let block_len = Self::BLOCK_LEN.min(view.limits.block_max);
        self.follow(view.limits.dictionary);
        self.messages = self.messages.wrapping_add(1);
        if self.rest > 0 {
            self.rest -= 1;
            self.since_probe += 1;
            let n = view.upcoming.len().min(block_len) as f32;
            self.last = Last { seq: view.seq, early: false, arm: STORE, n, cold: false };
            return Choice { encode_ns: 0, ..Choice::new(Method::STORE, block_len) };
        }
        if self.spec.latency_us.is_some() && self.messages.is_multiple_of(PROBE_CLEAR) {
            self.forget_costs(view.upcoming.len() as f32);
        }
        let n = view.upcoming.len().min(block_len) as f32;
        self.us_per_byte = self.price(view);
        let u = if self.us_per_byte < SLOPE_MIN { 0.0 } else { self.us_per_byte };
        let mut scores = [f32::INFINITY; ARMS.len()];
        for (m, score) in scores.iter_mut().enumerate() {
            if self.allowed(m, n, view) {
                *score = self.score_us(m, n, u);
            }
        }
        let best = (0..ARMS.len()).min_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(STORE);
        let second = self.again.is_some();
        let at_first = view.seq < BOTH_FIRST && scores[BOTH].is_finite() && u > BOTH_PAYS;
        let sounds = !self.sounded && self.answers >= SOUNDING_AFTER;
        self.sounded |= sounds;
        let m = match (sounds, at_first) {
            (true, _) => STORE,
            (_, true) => BOTH,
            _ => self.probe(best, &scores, n).unwrap_or(best),
        };
        let nothing_to_gain = m == STORE && best == STORE && self.slope.expected().is_some_and(|u| u < SLOPE_MIN);
        self.rest = if nothing_to_gain { RESTS } else { 0 };
        let cold = m != best && m != STORE && !second && !at_first;
        self.mean_len += 0.05 * (n - self.mean_len);
        let early = view.limits.behind < HISTORY_FIRST.min(view.limits.history / 2);
        self.last = Last { seq: view.seq, early, arm: m, n, cold };
        let [fixed, each] = self.arms[m].encode;
        let encode_ns = ((fixed + each * n) * 1e3) as u64;
        let Arm { method, linked, .. } = ARMS[m];
        Choice { linked, encode_ns, ..Choice::new(method, block_len) }
    }

    fn learn(&mut self, outcome: &Outcome) {
        match *outcome {
            Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, .. } => {
                let m = if self.last.seq == seq {
                    self.last.arm
                } else {
                    (0..ARMS.len()).find(|m| ARMS[*m].method == method).unwrap_or(STORE)
                };
                if m == STORE || raw_len == 0 || ARMS[m].method != method {
                    return;
                }
                if self.last.cold && self.last.seq == seq {
                    self.arms[m].cold_us = wall_ns as f32 * 1e-3;
                }
                let Learned { left, left_hoped: hoped, .. } = &mut self.arms[m];
                let (left, hoped) = (&mut left[class(raw_len)], *hoped);
                let seen = (wire_len as f32 / raw_len as f32).min(LEFT_MAX);
                let early = ARMS[m].linked && self.last.early;
                let gain = if seen < *left { GAIN_SHORTER } else { GAIN_LONGER };
                if left.is_nan() && !(early && seen > hoped) {
                    *left = seen;
                } else if !early || seen < *left {
                    *left += gain * (seen - *left);
                }
                // The first of two trials is not learned from: cold tables and caches are not
                // representative.
                if self.again.is_none() {
                    self.arms[m].tried = true;
                    if wall_ns > 0 {
                        let arm = &mut self.arms[m];
                        arm.times = arm.times.saturating_add(1);
                        let gain_up = (1.0 / f32::from(arm.times.saturating_add(1))).max(GAIN_UP);
                        approach(&mut arm.encode, raw_len as f32, wall_ns as f32 * 1e-3, gain_up);
                    }
                }
                let [fixed, each] = self.arms[m].encode;
                let expected_ns = ((fixed + each * raw_len as f32) * 1e3) as u64;
                if let Some(quota) = &mut self.quota {
                    quota.spend(if wall_ns > 0 { wall_ns } else { expected_ns });
                }
            }
            Outcome::Decoded { codec, messages, raw_len, ns } if messages > 0 => {
                let n = raw_len as f32 / messages as f32;
                let seen_us = ns as f32 * 1e-3 / messages as f32;
                for m in (1..ARMS.len()).filter(|m| ARMS[*m].method.codec == codec) {
                    approach(&mut self.arms[m].decode, n, seen_us, GAIN_UP);
                }
            }
            Outcome::Answered { seq, wire_len, span_ns } => {
                // The peer's decode time is subtracted below, as it is not time of the link.
                let (m, n) = if self.last.seq == seq { (self.last.arm, self.last.n) } else { (STORE, 0.0) };
                let span_us = span_ns as f32 * 1e-3;
                let gain = if self.span_us == 0.0 { 1.0 } else { GAIN_SPAN };
                self.span_us += gain * (span_us - self.span_us);
                self.answers = self.answers.saturating_add(1);
                // No byte takes longer than all did together.
                let most = span_us / wire_len.max(1) as f32;
                self.dearest = if most < self.dearest { most } else { self.dearest * DEAREST_RISE };
                // Of the messages stored without a decision, only the last is used for the slope.
                if self.answers <= ANSWERS_COLD || self.rest > 0 {
                    return;
                }
                if self.last.seq == seq && self.last.cold {
                    return;
                }
                // The length of messages before the last is not kept: they count as stored.
                let raw_len = if self.last.seq == seq { n as usize } else { wire_len };
                let [fixed, each] = self.arms[m].decode;
                if self.slope.observe(wire_len, raw_len, span_us - fixed - each * n) {
                    self.probe_every = PROBE_FIRST;
                    (self.dearest, self.sounded) = (f32::INFINITY, false);
                }
            }
            _ => {}
        }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(Self::BLOCK_LEN)
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("us_per_byte", f64::from(self.us_per_byte)),
            ("encode_us_fixed", f64::from(self.arms[self.last.arm].encode[0])),
            ("probe_every", f64::from(self.probe_every)),
        ]
    }
}

fn class(n: usize) -> usize {
    ((n.max(1)).ilog2() as usize).min(CLASSES - 1)
}

/// Moves a cost (fixed part, part per byte) towards the time observed at length `n`: short messages
/// move mostly the fixed part, long ones the part per byte.
fn approach(cost: &mut [f32; 2], n: f32, seen_us: f32, gain_up: f32) {
    let expected = cost[0] + cost[1] * n;
    if !seen_us.is_finite() || expected <= 0.0 {
        return;
    }
    let error = (seen_us - expected).min(SURPRISE_MAX * expected);
    let step = error * if error > 0.0 { gain_up } else { GAIN_DOWN };
    let x = n / LEN_TYPICAL;
    let part = step / (1.0 + x * x);
    cost[0] = (cost[0] + part).max(0.01);
    cost[1] = (cost[1] + part * x / LEN_TYPICAL).max(1e-6);
}

impl fmt::Display for MessagesSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latency = self.latency_us.map(|us| format!("latency_us={us}"));
        let cpu = self.cpu_percent.map(|share| format!("cpu_percent={share}"));
        let settings = latency.into_iter().chain(cpu).collect::<Vec<_>>().join(",");
        if settings.is_empty() { f.write_str("messages") } else { write!(f, "messages:{settings}") }
    }
}

impl PolicySettings for MessagesSpec {
    fn build(&self, _setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Messages::new(*self))
    }

    fn block_max(&self) -> usize {
        Messages::BLOCK_LEN
    }

    fn methods(&self) -> Vec<Method> {
        Messages::methods()
    }

    fn links(&self) -> bool {
        true
    }

    fn takes_messages(&self) -> bool {
        true
    }
}

pub(super) const ENTRY: Registered = Registered {
    name: "messages",
    usage: "messages[:latency_us=US][,cpu_percent=PERCENT]",
    about: "for message flows: the method with the least total time for each message",
    examples: &["messages", "messages:latency_us=20,cpu_percent=5"],
    parse: |rest, _| Ok(Arc::new(MessagesSpec::parse(rest.strip_prefix(':').unwrap_or(rest))?)),
};
