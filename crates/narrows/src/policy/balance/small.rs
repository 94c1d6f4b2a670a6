//! Small messages: linked LZ4, with the latest bytes of the flow as its dictionary, or stored.
//!
//! A message is small against its round trip, so each one costs and gains little; but there are
//! many. A message alone hardly shrinks; with similar ones before it, it shrinks to a fifth. It is
//! encoded if that pays at the link's rate, as far as that is known, or if the cost is such a small
//! share of the round trip that the floor of `balance` holds even without a gain.

use crate::codec::{CodecId, Method};
use crate::monitor::data::is_constant;
use crate::monitor::{PendingState, View};

/// A longer block finds enough matches in itself, and is chosen by the price between CPU and link.
pub(super) const SMALL_MAX: usize = 4 << 10;
/// In a shorter message no match is longer than its reference.
const SMALL_MIN: usize = 24;
/// Encoding and decoding that take no more than this share of the round trip are worth it for any
/// byte saved: on a slow link of unknown rate they save much, and two messages per round trip lose
/// only a quarter of what `balance` may lose.
const RTT_SHARE: f32 = 0.0025;
/// Assumed rates in bytes/s: small messages leave a link idle, so its rate is mostly unknown. Round
/// trips of 0.1 ms or more are typical of 1 Gbit/s, or of long distances, where the rate does not
/// matter; shorter ones of 10 Gbit/s or more.
const RATE_UNKNOWN: f32 = 125e6;
const RATE_UNKNOWN_NEAR: f32 = 1.25e9;
const NEAR_NS: u64 = 100_000;
/// Maximum share of the round trip, at any assumed rate: the real rate may be higher, and a message
/// would then cost this much and gain nothing.
const RTT_SHARE_MAX: f32 = 0.015;
/// Initial encode time in seconds, measured with a hot table and the latest 8 KiB as history.
/// Corrected by learning.
const FIXED_S: f32 = 1e-6;
const PER_BYTE_S: f32 = 0.4e-9;
/// The fixed part with an empty table, into which the history must be entered first.
const FIXED_COLD_S: f32 = 4e-6;
/// Time of decoding, as a share of the encode time: it needs no table. Includes the copies of the
/// history at both ends.
const DECODE_SHARE: f32 = 0.4;
/// A longer history takes longer to copy than a small message to encode.
const HISTORY_MAX: usize = 16 << 10;
/// A message must shrink to this share to be worth the time of two hosts.
const WORTHWHILE: f32 = 0.95;
/// While encoding does not pay, two messages in this many are encoded to see whether it would: the
/// first loads the table that the second finds hot.
const PROBE_EVERY: u32 = 64;
const PROBE_RUN: u32 = 2;
const GAIN: f32 = 0.1;
/// Maximum factor by which one message counts as slower than those before.
const SURPRISE_MAX: f32 = 3.0;
/// Runs of one byte from this length on are left to `balance`, which sends them as one byte.
const CONSTANT_MIN: usize = 64;
/// Classes of lengths, by powers of two up to `SMALL_MAX`.
const CLASSES: usize = 13;
/// Maximum number of messages whose outcome is awaited. They are encoded at once, so there are
/// never more than a few.
const REMEMBERED: usize = 8;

const METHOD: Method = Method { codec: CodecId::LZ4, level: -1 };

pub(super) struct Small {
    possible: bool,
    /// Wire bytes per raw byte, by class of length.
    wire_share: [f32; CLASSES],
    /// Factor by which encoding takes longer than expected: with a cold table, with a hot one.
    slowdown: [f32; 2],
    since_probe: u32,
    /// The previous message was encoded, so the table is probably hot.
    hot: bool,
    under_way: [UnderWay; REMEMBERED],
    next: usize,
}

#[derive(Clone, Copy)]
struct UnderWay {
    seq: u64,
    hot: bool,
}

/// A message's method, and the time it takes.
pub(super) struct Choice {
    pub(super) method: Method,
    pub(super) encode_s: f32,
}

impl Small {
    /// For a policy that may choose from these methods.
    pub(super) fn new(methods: &[Method]) -> Self {
        Self {
            possible: methods.contains(&METHOD),
            // Optimistic: the first message of each class shows the real share.
            wire_share: [0.5; CLASSES],
            slowdown: [1.0; 2],
            since_probe: 0,
            hot: false,
            under_way: [UnderWay { seq: u64::MAX, hot: false }; REMEMBERED],
            next: 0,
        }
    }

    /// The choice for all gathered bytes, if they are a small message and messages may be linked;
    /// else `None`.
    pub(super) fn choose(&mut self, view: &View<'_>) -> Option<Choice> {
        let len = view.gathered;
        let linkable = (1..=HISTORY_MAX).contains(&view.limits.history) && view.limits.allows(METHOD);
        if !self.possible || !linkable || view.link.in_memory || len > SMALL_MAX || len != view.upcoming.len() {
            return None;
        }
        // A linked message would wait at the receiver for the blocks before it, and these for its
        // workers.
        let alone = view.queue.iter().all(|b| b.state != PendingState::Encoding);
        if !alone || len >= CONSTANT_MIN && is_constant(view.upcoming) {
            return None;
        }
        let encode_s = self.slowdown[usize::from(self.hot)] * expected_s(self.hot, len);
        let pays = len >= SMALL_MIN && self.pays(view, len, (1.0 + DECODE_SHARE) * encode_s);
        let hot = std::mem::replace(&mut self.hot, pays);
        if !pays {
            return Some(Choice { method: Method::STORE, encode_s: 0.0 });
        }
        self.under_way[self.next] = UnderWay { seq: view.seq, hot };
        self.next = (self.next + 1) % REMEMBERED;
        Some(Choice { method: METHOD, encode_s })
    }

    fn pays(&mut self, view: &View<'_>, len: usize, cost_s: f32) -> bool {
        let wire_share = self.wire_share[class(len)];
        let saved = (1.0 - wire_share) * len as f32;
        if wire_share < WORTHWHILE && cost_s < worth_s(view, saved) {
            return true;
        }
        self.since_probe += 1;
        if self.since_probe >= PROBE_EVERY {
            self.since_probe = 0;
        }
        self.since_probe < PROBE_RUN
    }

    /// Returns whether the block was one of these messages.
    pub(super) fn learn(&mut self, seq: u64, raw_len: usize, wire_len: usize, wall_ns: u64) -> bool {
        let Some(message) = self.under_way.iter_mut().find(|m| m.seq == seq) else { return false };
        let hot = message.hot;
        message.seq = u64::MAX;
        let share = &mut self.wire_share[class(raw_len)];
        *share += GAIN * ((wire_len as f32 / raw_len.max(1) as f32).min(1.0) - *share);
        let slowdown = &mut self.slowdown[usize::from(hot)];
        // Clamped: an encoding that the system interrupts takes a thousand times as long.
        let ratio = (wall_ns as f32 * 1e-9 / expected_s(hot, raw_len)).clamp(0.1, SURPRISE_MAX * *slowdown).min(20.0);
        *slowdown += GAIN * (ratio - *slowdown);
        true
    }
}

fn expected_s(hot: bool, len: usize) -> f32 {
    (if hot { FIXED_S } else { FIXED_COLD_S }) + PER_BYTE_S * len as f32
}

fn class(len: usize) -> usize {
    (len.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Seconds that may be spent to save this many wire bytes.
fn worth_s(view: &View<'_>, saved: f32) -> f32 {
    let near = view.link.rtt_ns.is_none_or(|rtt_ns| rtt_ns < NEAR_NS);
    let rate = match view.link.known {
        true => super::sane_rate(view),
        false if near => RATE_UNKNOWN_NEAR,
        false => RATE_UNKNOWN,
    };
    let gain_s = saved / rate;
    view.link.rtt_ns.map_or(gain_s, |rtt_ns| {
        let rtt_s = rtt_ns as f32 * 1e-9;
        gain_s.clamp(RTT_SHARE * rtt_s, RTT_SHARE_MAX * rtt_s)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::codecs_of_this_build;
    use crate::monitor::{Ask, CpuView, Limits, LinkView, ReceiverView};

    const LAN: LinkView = LinkView {
        rate_bytes_per_s: 250e6,
        known: false,
        left_host_bytes: 0,
        unsent_bytes: 0,
        dry_ns: 0,
        in_memory: false,
        trial_bytes: 0,
        opening: false,
        rtt_ns: Some(300_000),
        unanswered: false,
        expected: false,
    };

    fn view(seq: u64, message: &[u8], link: LinkView, history: usize) -> View<'_> {
        View {
            now_ns: 0,
            busy_ns: 0,
            seq,
            raw_offset: 1000 * seq,
            upcoming: message,
            gathered: message.len(),
            left: None,
            link,
            cpu: CpuView { cores: 1, busy: 0 },
            receiver: ReceiverView { reports: false, cores: 1, backlog_bytes: 0 },
            queue: &[],
            limits: Limits { block_max: 1 << 20, history, codecs: codecs_of_this_build(), behind: 0, dictionary: None },
            ask: Ask::Next,
        }
    }

    /// How many of 1000 messages are linked if each shrinks by `ratio` and the encoder is slower
    /// than expected by `slowdown`.
    fn linked_of_1000(len: usize, link: LinkView, ratio: usize, slowdown: f32) -> usize {
        let (mut small, message) = (Small::new(&[METHOD]), (0..len).map(|i| i as u8).collect::<Vec<_>>());
        let mut linked = 0;
        for seq in 0..1000 {
            let choice = small.choose(&view(seq, &message, link, 8192)).unwrap();
            if choice.method == METHOD {
                let hot = small.under_way.iter().any(|m| m.seq == seq && m.hot);
                let wall_ns = slowdown * expected_s(hot, len) * 1e9;
                assert!(small.learn(seq, len, len / ratio, wall_ns as u64));
                linked += 1;
            } else {
                assert!(!small.learn(seq, len, len, 100));
            }
        }
        linked
    }

    #[test]
    fn what_shrinks_is_linked_on_a_lan_and_on_a_long_way() {
        assert_eq!(linked_of_1000(1000, LAN, 5, 1.0), 1000);
        assert_eq!(linked_of_1000(1000, LAN, 5, 2.0), 1000);
        let far = LinkView { rtt_ns: Some(20_000_000), ..LAN };
        assert_eq!(linked_of_1000(60, far, 2, 3.0), 1000);
        let slow = LinkView { rate_bytes_per_s: 1.25e6, known: true, rtt_ns: None, ..LAN };
        assert_eq!(linked_of_1000(100, LinkView { rtt_ns: Some(2_000_000), ..slow }, 2, 3.0), 1000);
        assert_eq!(linked_of_1000(100, slow, 2, 3.0), 1000);
    }

    #[test]
    fn what_does_not_shrink_or_pay_is_tried_now_and_then() {
        let tried = 1..=60;
        // Noise; a few bytes on a LAN; a link as fast as a memory copy or close by; an encoder that
        // is far too slow.
        assert!(tried.contains(&linked_of_1000(1000, LAN, 1, 1.0)));
        assert!(tried.contains(&linked_of_1000(40, LAN, 2, 3.0)));
        let fast = LinkView { rate_bytes_per_s: 10e9, known: true, rtt_ns: Some(50_000), ..LAN };
        assert!(tried.contains(&linked_of_1000(1000, fast, 5, 2.0)));
        let near = LinkView { rtt_ns: Some(50_000), ..LAN };
        assert!(tried.contains(&linked_of_1000(1000, near, 5, 2.0)));
        assert!(tried.contains(&linked_of_1000(1000, LAN, 5, 20.0)));
    }

    #[test]
    fn a_cold_start_does_not_hide_what_a_hot_table_gains() {
        let (mut small, message) = (Small::new(&[METHOD]), [7, 8].repeat(500));
        let mut linked = 0;
        for seq in 0..1000 {
            if small.choose(&view(seq, &message, LAN, 8192)).unwrap().method == METHOD {
                let first = !small.under_way.iter().any(|m| m.seq == seq && m.hot);
                small.learn(seq, 1000, 200, if first { 40_000 } else { 2_000 });
                linked += 1;
            }
        }
        assert!(linked > 900, "{linked}");
    }

    #[test]
    fn where_the_table_is_never_hot_its_loading_is_counted() {
        // Every other message is too short to be encoded, so the table misses it.
        let near = LinkView { rtt_ns: Some(120_000), ..LAN };
        let (mut small, message) = (Small::new(&[METHOD]), [7, 8].repeat(250));
        let mut linked = 0;
        for seq in 0..2000 {
            let message = if seq % 2 == 0 { &message[..] } else { &message[..10] };
            if small.choose(&view(seq, message, near, 8192)).unwrap().method == METHOD {
                small.learn(seq, message.len(), message.len() / 5, 6_000);
                linked += 1;
            }
        }
        assert!(linked < 100, "{linked}");
    }

    #[test]
    fn one_interruption_does_not_end_it() {
        let (mut small, message) = (Small::new(&[METHOD]), [7, 8].repeat(500));
        let mut linked = 0;
        for seq in 0..1000 {
            if small.choose(&view(seq, &message, LAN, 8192)).unwrap().method == METHOD {
                small.learn(seq, 1000, 200, if seq == 500 { 3_000_000 } else { 1_500 });
                linked += 1;
            }
        }
        assert_eq!(linked, 1000);
    }

    #[test]
    fn bulk_memory_and_flows_without_history_are_not_its_business() {
        let mut small = Small::new(&[METHOD]);
        let mut message = [7; SMALL_MAX + 1];
        message[5] = 8;
        assert!(small.choose(&view(0, &message, LAN, 8192)).is_none());
        assert!(small.choose(&view(0, &message[1..], LAN, 8192)).is_some());
        assert!(small.choose(&view(0, &message[1..], LAN, 0)).is_none());
        assert!(small.choose(&view(0, &message[1..], LinkView { in_memory: true, ..LAN }, 8192)).is_none());
        assert!(Small::new(&[Method::STORE]).choose(&view(0, &message[1..], LAN, 8192)).is_none());
        assert!(small.choose(&view(0, &[7; 100], LAN, 8192)).is_none());
        assert!(small.choose(&view(0, &message[1..], LAN, 64 << 10)).is_none());
        let mut more_behind = view(0, &message[1..], LAN, 8192);
        more_behind.gathered += 1;
        assert!(small.choose(&more_behind).is_none());
    }
}
