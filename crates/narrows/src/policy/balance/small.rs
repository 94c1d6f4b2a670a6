//! Small messages: LZ4 with the latest bytes of the flow as its dictionary, or as they are.
//!
//! A message is small against the round trip that it is part of, so what it costs and gains is
//! little; but there are many. Alone it hardly shrinks, behind others of its kind to a fifth. It is
//! encoded where that pays on the link as far as its rate is known, or costs so little of the round
//! trip that the floor under `balance` holds should it gain nothing.

use crate::codec::{CodecId, Method};
use crate::monitor::data::is_constant;
use crate::monitor::{PendingState, View};

/// Above it a block has enough of itself to refer to, and the price between CPU and link is for it.
pub(super) const SMALL_MAX: usize = 4 << 10;
/// Below it nothing is found that is longer than what says where it is.
const SMALL_MIN: usize = 24;
/// Encoding and decoding so small a share of the round trip is worth while for any byte saved: on a
/// slow link of which nothing else is known it saves much, and two messages to a round trip lose a
/// quarter of what `balance` may lose.
const RTT_SHARE: f32 = 0.0025;
/// Small messages leave a link idle, so its rate is mostly not known. Round trips of a tenth of a
/// millisecond and more are those of networks of 1 Gbit/s, or of long ways, where it does not
/// matter; shorter ones those of 10 Gbit/s and more.
const RATE_UNKNOWN: f32 = 125e6;
const RATE_UNKNOWN_NEAR: f32 = 1.25e9;
const NEAR_NS: u64 = 100_000;
/// Whatever the rate is taken for, it may be higher now: then a message costs so much and gains
/// nothing.
const RTT_SHARE_MAX: f32 = 0.015;
/// Seconds to encode, as measured with a table that is hot, and with the latest 8 KiB as history.
/// Learned from then on.
const FIXED_S: f32 = 1e-6;
const PER_BYTE_S: f32 = 0.4e-9;
/// With an empty table, into which the history has to be entered first.
const FIXED_COLD_S: f32 = 4e-6;
/// Decoding takes no table. With the copies of the history at both ends it takes so much of the
/// time to encode.
const DECODE_SHARE: f32 = 0.4;
/// A longer history takes longer to copy than a small message to encode.
const HISTORY_MAX: usize = 16 << 10;
/// What shrinks by less is not worth the time of two hosts.
const WORTHWHILE: f32 = 0.95;
/// Where it does not pay, two messages in so many show whether it would now: the first loads what
/// the second finds hot.
const PROBE_EVERY: u32 = 64;
const PROBE_RUN: u32 = 2;
const GAIN: f32 = 0.1;
/// One message counts as at most so much slower than those before.
const SURPRISE_MAX: f32 = 3.0;
/// A run of one byte is one byte on the wire, which `balance` sees to.
const CONSTANT_MIN: usize = 64;
/// Classes of lengths, by powers of two up to `SMALL_MAX`.
const CLASSES: usize = 13;
/// Messages under way whose outcome is waited for. They are encoded at once, so more than a few
/// never are.
const REMEMBERED: usize = 8;

const METHOD: Method = Method { codec: CodecId::LZ4, level: -1 };

pub(super) struct Small {
    possible: bool,
    /// Wire bytes for each raw byte, by length.
    wire_share: [f32; CLASSES],
    /// How much longer encoding takes than expected, with a cold table and with a hot one.
    slowdown: [f32; 2],
    since_probe: u32,
    /// The message before was encoded too, so the table is probably hot.
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
    /// Of a policy that may choose among these.
    pub(super) fn new(methods: &[Method]) -> Self {
        Self {
            possible: methods.contains(&METHOD),
            // As if it had been good: the first message of a kind shows whether it is.
            wire_share: [0.5; CLASSES],
            slowdown: [1.0; 2],
            since_probe: 0,
            hot: false,
            under_way: [UnderWay { seq: u64::MAX, hot: false }; REMEMBERED],
            next: 0,
        }
    }

    /// For everything that has gathered, if it is a small message and messages may be linked.
    pub(super) fn choose(&mut self, view: &View<'_>) -> Option<Choice> {
        let len = view.gathered;
        let linkable = (1..=HISTORY_MAX).contains(&view.limits.history) && view.limits.allows(METHOD);
        if !self.possible || !linkable || view.link.in_memory || len > SMALL_MAX || len != view.upcoming.len() {
            return None;
        }
        // Linked it would wait at the receiver for what is before it, and that for its workers.
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

    /// True: the block was one of these.
    pub(super) fn learn(&mut self, seq: u64, raw_len: usize, wire_len: usize, wall_ns: u64) -> bool {
        let Some(message) = self.under_way.iter_mut().find(|m| m.seq == seq) else { return false };
        let hot = message.hot;
        message.seq = u64::MAX;
        let share = &mut self.wire_share[class(raw_len)];
        *share += GAIN * ((wire_len as f32 / raw_len.max(1) as f32).min(1.0) - *share);
        let slowdown = &mut self.slowdown[usize::from(hot)];
        // Once interrupted by the system it takes a thousand times as long.
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

/// What may be spent to save so many bytes of wire.
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
        opening: false,
        rtt_ns: Some(300_000),
        unanswered: false,
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

    /// How many of 1000 messages are linked that shrink by this factor, with an encoder so much
    /// slower than expected.
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
