//! A carrier of a session: frames that wait for it, and whether its peer is alive.

use std::collections::VecDeque;

use super::FlowId;
use crate::frame::{Kind, Parser, put};
use crate::limits::CALM_SHARE;

/// Times of a carrier's life, in ns.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Silence after which a ping is sent.
    pub ping_after_ns: u64,
    /// Silence after which the carrier is lost.
    pub dead_after_ns: u64,
    /// Time in which the peer's hello must come.
    pub hello_within_ns: u64,
}

impl Default for Timing {
    /// A ping each 15 s keeps the entries of usual address translators, and three of them may be
    /// lost.
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self { ping_after_ns: 15 * SECOND, dead_after_ns: 45 * SECOND, hello_within_ns: 10 * SECOND }
    }
}

pub(super) struct Carrier {
    pub(super) parser: Parser,
    /// As its hello has it.
    pub(super) attempt: u16,
    /// The peer's hello has come.
    pub(super) greeted: bool,
    /// Frames of it wait until the session may take more of them.
    pub(super) held: bool,
    /// Complete frames without data.
    pub(super) control: Vec<u8>,
    /// Bytes of it that this end began itself: the limit is for answers.
    pub(super) asked: usize,
    calm: VecDeque<FlowId>,
    bulk: VecDeque<FlowId>,
    calm_in_row: u32,
    /// Number of the latest open frame.
    pub(super) opened: Option<FlowId>,
    /// Bulk flows that are sent on it.
    pub(super) bulk_flows: usize,
    pub(super) rtt_ns: u64,
    began_ns: u64,
    heard_ns: u64,
    /// When the ping that is under way was sent.
    pinged_ns: Option<u64>,
}

impl Carrier {
    pub(super) fn new(parser: Parser, greeting: Vec<u8>, greeted: bool, now_ns: u64) -> Self {
        let mut carrier = Self {
            parser,
            attempt: 0,
            greeted,
            held: false,
            control: greeting,
            asked: 0,
            calm: VecDeque::new(),
            bulk: VecDeque::new(),
            calm_in_row: 0,
            opened: None,
            bulk_flows: 0,
            rtt_ns: 0,
            began_ns: now_ns,
            heard_ns: now_ns,
            pinged_ns: None,
        };
        if greeted {
            carrier.ping(now_ns);
        }
        carrier
    }

    /// The peer's hello has come.
    pub(super) fn greet(&mut self, now_ns: u64) {
        self.greeted = true;
        // The round trip is wanted before the first silence, and without the time of a login.
        self.ping(now_ns);
    }

    pub(super) fn list(&mut self, flow: FlowId, is_bulk: bool) {
        if is_bulk { self.bulk.push_back(flow) } else { self.calm.push_back(flow) }
    }

    pub(super) fn next_listed(&mut self) -> Option<FlowId> {
        if (self.calm_in_row < CALM_SHARE || self.bulk.is_empty())
            && let Some(flow) = self.calm.pop_front()
        {
            self.calm_in_row += 1;
            return Some(flow);
        }
        self.calm_in_row = 0;
        self.bulk.pop_front()
    }

    pub(super) fn has_listed(&self) -> bool {
        !self.calm.is_empty() || !self.bulk.is_empty()
    }

    pub(super) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
    }

    fn ping(&mut self, now_ns: u64) {
        self.pinged_ns = Some(now_ns);
        put(&mut self.control, Kind::Ping, 0, &now_ns.to_le_bytes());
    }

    /// Asks the peer whether it is alive, although it has not been silent.
    pub(super) fn probe(&mut self, now_ns: u64) {
        if self.greeted && self.pinged_ns.is_none() {
            self.ping(now_ns);
        }
    }

    /// Takes an answer to a ping; one that nobody asked for is ignored.
    pub(super) fn on_pong(&mut self, body: &[u8], now_ns: u64) {
        if let Some(sent_ns) = self.pinged_ns.take_if(|sent_ns| *body == sent_ns.to_le_bytes()) {
            self.rtt_ns = now_ns.saturating_sub(sent_ns);
        }
    }

    /// When it wants to be looked at.
    pub(super) fn next_wakeup_ns(&self, timing: &Timing) -> u64 {
        if !self.greeted {
            return self.began_ns + timing.hello_within_ns;
        }
        let dead_ns = self.heard_ns + timing.dead_after_ns;
        if self.pinged_ns.is_some() { dead_ns } else { dead_ns.min(self.heard_ns + timing.ping_after_ns) }
    }

    /// Sends a ping if it is due. False: the carrier is lost.
    pub(super) fn on_time(&mut self, timing: &Timing, now_ns: u64) -> bool {
        if !self.greeted {
            return now_ns < self.began_ns + timing.hello_within_ns;
        }
        if now_ns >= self.heard_ns + timing.dead_after_ns {
            return false;
        }
        if self.pinged_ns.is_none() && now_ns >= self.heard_ns + timing.ping_after_ns {
            self.ping(now_ns);
        }
        true
    }
}
