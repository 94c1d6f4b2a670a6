//! The sending end of a message flow: message in, frame out, without delay. No I/O, no thread, no
//! clock.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::recovery::Tail;
use super::comparison::Comparison;
use super::control::{Control, Preface};
use super::history::{Chain, History};
use super::slots::SenderSlots;
use super::{Coding, Contexts, DIGEST_EVERY, Delivery, HISTORY_BASELINE, MESSAGE_MAX, MessageConfig, SLOTS};
use crate::codec::{CodecId, Codecs, DICTIONARY_MAX, DICTIONARY_MIN, Dictionary, Method};
use crate::error::{Error, Result};
use crate::monitor::{Ask, CpuView, Limits, LinkView, ReceiverView, View};
use crate::policy::{Choice, Outcome, Policy};
use crate::trace;

mod body;
mod recovery;

/// An idle flow frees its history after this time.
const IDLE_NS: u64 = 30_000_000_000;
/// Most messages remembered for retransmission: with request and reply, no more are under way.
const TAIL_MAX: usize = 16;
/// When another flow has taken the table, a new one is filled from the last 4 KiB of the history
/// only, which takes 1 us and finds most matches. A busy flow fills it from the whole history; busy
/// is more than `BUSY_MESSAGES` within `BUSY_NS`.
const RELOAD_COLD: usize = 4 << 10;
const BUSY_NS: u64 = 10_000_000;
const BUSY_MESSAGES: u32 = 8;

/// How a message was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Number of the message in its flow, for [`MessageSender::answered`].
    pub seq: u64,
    /// Length of the message in bytes.
    pub raw_len: usize,
    /// Length of its frame in bytes.
    pub wire_len: usize,
    /// Length of the control frames before it in bytes.
    pub control_len: usize,
    /// The method of its encoding.
    pub method: Method,
    /// Whether it was encoded with the history as dictionary.
    pub linked: bool,
    /// Slot of the dictionary that it was encoded with; 0 is none.
    pub slot: u8,
}

/// The consequence of a control frame for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing to do.
    Nothing,
    /// The reader lost the history. This many messages must be sent again before any other, with
    /// [`MessageSender::send_again`].
    SendAgain(usize),
    /// The reader lost the history, and the messages it lacks are no longer known here: messages
    /// may be lost.
    Gap,
}

/// The peer's limits.
struct Peer {
    message_max: usize,
    history: usize,
    dictionary_max: usize,
    slots: usize,
    codecs: u64,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            message_max: MESSAGE_MAX,
            history: HISTORY_BASELINE,
            dictionary_max: DICTIONARY_MAX,
            slots: SLOTS,
            codecs: codecs_of(0b111),
        }
    }
}

/// The sending end of a message flow.
pub struct MessageSender {
    config: MessageConfig,
    policy: Box<dyn Policy>,
    peer: Peer,
    /// Number of the flow in this process; identifies its table in [`Contexts`].
    flow: u64,
    table_hint: u8,
    history: History,
    chain: Chain,
    generation: u64,
    number: u64,
    raw_offset: u64,
    /// The history begins with the seed at each reset.
    seeded: bool,
    due: Due,
    slots: SenderSlots,
    comparison: Comparison,
    begun: Begun,
    recovery: Recovery,
    last: Option<Outcome>,
    last_ns: u64,
    pace: Pace,
    trace: Option<String>,
}

/// Control frames that go before the next message.
struct Due {
    preface: bool,
    /// A reset; `true` if messages may be lost.
    reset: Option<bool>,
    /// Pins, in the order of their requests.
    pins: VecDeque<Control>,
}

/// What was done since the history began.
#[derive(Default)]
struct Begun {
    /// A message was sent.
    spoken: bool,
    /// A table was filled, so also from its seed.
    filled: bool,
}

/// What lost messages are sent again by.
#[derive(Default)]
struct Recovery {
    /// Number of the last message that the reader lost, and how many times in a row.
    lost: (u64, u8),
    tail: VecDeque<Tail>,
    again: VecDeque<Vec<u8>>,
}

/// How many messages were sent since a while ago.
#[derive(Default)]
struct Pace {
    busy_since_ns: u64,
    busy_messages: u32,
}

impl MessageSender {
    /// A sender of a new flow.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn new(config: MessageConfig, policy: Box<dyn Policy>) -> Result<Self> {
        static FLOWS: AtomicU64 = AtomicU64::new(1);
        config.validate()?;
        let ordered = config.carrier.delivery == Delivery::Ordered;
        let mut sender = Self {
            policy,
            peer: Peer::default(),
            flow: FLOWS.fetch_add(1, Ordering::Relaxed),
            table_hint: 0,
            history: History::default(),
            chain: Chain::default(),
            generation: 0,
            number: 0,
            raw_offset: 0,
            seeded: ordered && config.seed.is_some() && config.history > 0,
            due: Due { preface: true, reset: ordered.then_some(false), pins: VecDeque::new() },
            slots: SenderSlots::default(),
            comparison: Comparison::default(),
            begun: Begun::default(),
            recovery: Recovery::default(),
            last: None,
            last_ns: 0,
            pace: Pace::default(),
            trace: None,
            config,
        };
        sender.offer_seed();
        sender.restart_history();
        Ok(sender)
    }

    /// Records every choice from here on, for [`MessageSender::take_trace`].
    pub fn record(&mut self) {
        self.trace = Some(String::new());
    }

    /// The JSON lines recorded since the last call.
    pub fn take_trace(&mut self) -> String {
        self.trace.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Appends the frames that send `message` to `out`: pending control frames, then its own. On a
    /// carrier with borders these are one unit. An error changes nothing: the next message can be
    /// sent.
    ///
    /// # Errors
    /// `Limit` if it is too long, `Misuse` if lost messages have to be sent again first.
    pub fn encode(&mut self, message: &[u8], now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> Result<Sent> {
        self.accept(message)?;
        Ok(self.send(message, false, now_ns, contexts, out))
    }

    /// Like [`MessageSender::encode`], for a private message: it is stored and kept out of history,
    /// so that no compressed length reveals anything about it. If it is lost, this end cannot send
    /// it again.
    ///
    /// # Errors
    /// As for [`MessageSender::encode`].
    pub fn encode_private(
        &mut self,
        message: &[u8],
        now_ns: u64,
        contexts: &mut Contexts,
        out: &mut Vec<u8>,
    ) -> Result<Sent> {
        self.accept(message)?;
        Ok(self.send(message, true, now_ns, contexts, out))
    }

    pub(super) fn accept_len(&self, len: usize) -> Result<()> {
        let most = self.config.message_max.min(self.peer.message_max);
        if len > most {
            return Err(Error::limit(format!("a message of {len} bytes exceeds the limit of {most}")));
        }
        Ok(())
    }

    pub(super) fn accept(&self, message: &[u8]) -> Result<()> {
        self.accept_len(message.len())?;
        if !self.recovery.again.is_empty() {
            return Err(Error::misuse("messages that were lost have to be sent again first"));
        }
        Ok(())
    }

    /// Appends the frames of the next message that has to be sent again, if any.
    pub fn send_again(&mut self, now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> Option<Sent> {
        let message = self.recovery.again.pop_front()?;
        Some(self.send(&message, false, now_ns, contexts, out))
    }

    fn send(&mut self, message: &[u8], private: bool, now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> Sent {
        self.settle();
        self.on_time(now_ns);
        if now_ns.saturating_sub(self.pace.busy_since_ns) > BUSY_NS {
            (self.pace.busy_since_ns, self.pace.busy_messages) = (now_ns, 0);
        }
        (self.last_ns, self.pace.busy_messages) = (now_ns, self.pace.busy_messages.saturating_add(1));
        let start = out.len();
        self.put_control(out);
        let control_len = out.len() - start;
        let asks = !message.is_empty() && !private;
        let choice = if asks { self.choose(message, now_ns) } else { Choice::new(Method::STORE, message.len()) };
        let before = self.chain;
        let encoded = if private { self.private_body(message) } else { self.encode_body(message, &choice, contexts) };
        let at = out.len();
        self.put_frame(message, &encoded, contexts, out);
        if self.is_ordered() && self.config.duplex {
            if self.recovery.tail.len() >= TAIL_MAX {
                self.recovery.tail.pop_front();
            }
            self.recovery.tail.push_back(Tail { len: message.len(), before, private });
        }
        let (seq, raw_len, wire_len) = (self.number, message.len(), out.len() - at);
        (self.number, self.begun.spoken) = (self.number + 1, true);
        self.raw_offset += raw_len as u64;
        if asks {
            // The method that was tried counts, even if the message was stored.
            let (method, wall_ns, cpu_ns, taken_over) = (choice.method, 0, 0, false);
            self.last = Some(Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over });
        }
        let method = match encoded.coding {
            Coding::Store => Method::STORE,
            // LZ4 won over the chosen method.
            Coding::Lz4 if choice.method.codec != CodecId::LZ4 => Method::lz4_accel(1),
            _ => choice.method,
        };
        Sent { seq, raw_len, wire_len, control_len, method, linked: encoded.linked && !private, slot: encoded.slot }
    }

    /// Reports the encoding time of the last message. Not every message need be timed.
    pub fn took(&mut self, encode_ns: u64) {
        if let Some(Outcome::Encoded { wall_ns, cpu_ns, .. }) = &mut self.last {
            (*wall_ns, *cpu_ns) = (encode_ns, encode_ns);
        }
        self.settle();
    }

    /// The peer answered message `seq` `span_ns` after its frames were written. `wire_len` is the
    /// number of bytes that crossed the link in sequence meanwhile: those of the frames, and of the
    /// answer if answers vary in length.
    pub fn answered(&mut self, seq: u64, wire_len: usize, span_ns: u64) {
        self.settle();
        self.policy.learn(&Outcome::Answered { seq, wire_len, span_ns });
    }

    fn settle(&mut self) {
        if let Some(outcome) = self.last.take() {
            if let Some(trace) = &mut self.trace {
                trace::outcome(trace, Codecs::shipped(), self.last_ns, &outcome);
            }
            self.policy.learn(&outcome);
        }
    }

    /// Appends pending control frames, for carriers on which they can be sent without a message.
    /// Returns whether there were any.
    pub fn control(&mut self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        self.put_control(out);
        out.len() > start
    }

    /// Appends preface and dictionaries for the readers of a fan-out carrier. Call it for each new
    /// reader, and every 10 s. A dictionary is used from its second announcement on.
    ///
    /// # Errors
    /// `Misuse` on carriers that are not fan-out.
    pub fn announce(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.config.carrier.delivery != Delivery::Fanout {
            return Err(Error::misuse("announcements are for fan-out carriers only"));
        }
        self.put_announcement(&|_| true, out);
        Ok(())
    }

    /// Announces. Dictionaries for which `pays` is false are put aside until they have been
    /// announced twice again.
    pub(super) fn put_announcement(&mut self, pays: &dyn Fn(&Dictionary) -> bool, out: &mut Vec<u8>) {
        self.due.preface = false;
        Control::Preface(Preface::of(&self.config)).put(out);
        let before = self.slots.current().map(|c| c.0);
        self.slots.put_announcement(pays, out);
        if self.slots.current().map(|c| c.0) != before {
            self.comparison = Comparison::default();
        }
    }

    /// When [`MessageSender::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        (self.begun.spoken && self.is_ordered()).then(|| self.last_ns.saturating_add(IDLE_NS))
    }

    /// Frees the history if the flow is idle. The reset frame that tells the peer goes with the
    /// next message, or with [`MessageSender::control`].
    pub fn on_time(&mut self, now_ns: u64) {
        if self.begun.spoken && now_ns.saturating_sub(self.last_ns) >= IDLE_NS {
            self.drop_history();
        }
    }

    /// The carrier reconnected: the peer knows nothing. Messages that were under way may be lost;
    /// handling them is up to the caller.
    pub fn reconnect(&mut self, epoch: u64) {
        self.settle();
        (self.config.epoch, self.peer, self.due.preface) = (epoch, Peer::default(), true);
        (self.generation, self.number, self.raw_offset) = (0, 0, 0);
        self.recovery.again.clear();
        self.seeded = self.is_ordered() && self.config.seed.is_some() && self.config.history > 0;
        self.recovery.lost = (0, 0);
        self.slots.begin_again();
        self.offer_seed();
        self.drop_history();
    }

    /// Longest dictionary that the peer accepts, in bytes; 0 if none.
    pub(super) fn dictionary_max(&self) -> usize {
        if self.peer.slots == 0 { 0 } else { self.peer.dictionary_max }
    }

    fn offer_seed(&mut self) {
        if let Some(seed) = self.config.seed.as_ref().filter(|_| self.seeded && self.config.duplex) {
            self.slots.add_seed(Arc::clone(seed), self.peer.slots);
        }
    }

    /// Offers a dictionary to the peer and uses it once the peer has it. `ask`: the peer may have
    /// it from elsewhere, so its content is sent only on request. False if the peer accepts no such
    /// dictionary, or cannot confirm one.
    pub fn offer(&mut self, dictionary: Arc<Dictionary>, ask: bool) -> bool {
        let heard = self.config.duplex || self.config.carrier.delivery == Delivery::Fanout;
        heard
            && dictionary.content().len() <= self.peer.dictionary_max
            && self.slots.add(dictionary, self.number, ask, self.peer.slots).is_some()
    }

    /// Makes the last `len` bytes of the history, or all of it if shorter, a dictionary. False if
    /// there is too little history, or the carrier is not ordered.
    pub fn pin(&mut self, len: usize) -> bool {
        let history = self.history.bytes();
        let len = len.min(history.len()).min(self.peer.dictionary_max);
        if !self.is_ordered() || self.due.reset.is_some() || len < DICTIONARY_MIN {
            return false;
        }
        let Some(dictionary) = Dictionary::new(history[history.len() - len..].to_vec()) else { return false };
        let digest = dictionary.digest();
        let Some(slot) = self.slots.add_pinned(Arc::new(dictionary), self.peer.slots) else { return false };
        self.due.pins.push_back(Control::Pin { slot, len, digest });
        self.comparison = Comparison::default();
        true
    }

    /// The dictionary in use.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.slots.current().map(|c| c.1)
    }

    /// Takes a control frame of the peer about this flow, or the peer's preface:
    /// [`Event::Control`](super::Event::Control).
    ///
    /// # Errors
    /// `Corrupt` if the frame contradicts what was sent, `Misuse` if it is for a receiver.
    pub fn hear(&mut self, control: &Control) -> Result<Heard> {
        match control {
            Control::Preface(preface) => self.hear_preface(preface),
            Control::Acknowledgement { number, decoded, .. } => {
                // On carriers that repeat messages the reader may have received more than were
                // sent.
                if *number > self.number && self.is_ordered() {
                    return Err(Error::corrupt("the peer acknowledges messages that were not sent"));
                }
                self.settle();
                for (coding, d) in Coding::ALL.iter().zip(decoded) {
                    let codec = codec_of(*coding);
                    self.policy.learn(&Outcome::Decoded { codec, messages: d.messages, raw_len: d.raw_len, ns: d.ns });
                }
            }
            Control::Has { slot, digest } => {
                if self.slots.has(*slot, *digest, self.number, self.config.carrier.delivery)? {
                    self.comparison = Comparison::default();
                }
            }
            Control::Lacks { slot, digest, reason } => self.slots.lacks(*slot, *digest, *reason, self.number)?,
            Control::Lost { generation, number, chain, reason } => {
                return self.hear_lost(*generation, *number, Chain(*chain), *reason);
            }
            Control::Reset { .. } | Control::Digest { .. } | Control::Pin { .. } | Control::Offer { .. } => {
                return Err(Error::misuse("a frame of the other direction's flow must go to its receiver"));
            }
        }
        Ok(Heard::Nothing)
    }

    fn hear_preface(&mut self, preface: &Preface) {
        let before = self.window();
        self.peer = Peer {
            message_max: preface.message_max,
            history: preface.history,
            dictionary_max: preface.dictionary_max,
            slots: preface.slots,
            codecs: codecs_of(preface.methods),
        };
        if self.window() != before && self.is_ordered() {
            self.drop_history();
        }
    }

    fn is_ordered(&self) -> bool {
        self.config.carrier.delivery == Delivery::Ordered
    }

    /// W: the length of the history that both ends keep, in bytes.
    fn window(&self) -> usize {
        let window = self.config.history_of_carrier().min(self.peer.history);
        if window < super::HISTORY_MIN { 0 } else { window }
    }

    /// Drops the history and makes a reset due.
    fn drop_history(&mut self) {
        if self.is_ordered() {
            self.due.reset = Some(self.due.reset.unwrap_or(false));
        }
        self.restart_history();
    }

    fn restart_history(&mut self) {
        if !self.due.pins.is_empty() {
            // Unsent pins refer to a history that is about to be dropped: the peer gets their
            // content instead.
            self.due.pins.clear();
            self.slots.offer_again(false, self.number);
        }
        (self.begun.spoken, self.begun.filled) = (false, false);
        self.recovery.tail.clear();
        self.history.reset(self.window());
    }

    fn put_control(&mut self, out: &mut Vec<u8>) {
        if mem::take(&mut self.due.preface) {
            Control::Preface(Preface::of(&self.config)).put(out);
        }
        if let Some(gap) = self.due.reset.take() {
            self.generation += 1;
            let seed = self.config.seed.as_ref().filter(|_| self.seeded && self.window() > 0);
            let seed_digest = seed.map_or(0, |s| s.digest());
            let (generation, number, window) = (self.generation, self.number, self.window());
            self.history.reset(window);
            self.begun.filled = false;
            if let Some(seed) = seed {
                self.history.seed(seed.content(), window);
            }
            // If the peer lacks the seed it says so; a second reset then does without.
            self.chain = Chain::at_reset(self.config.epoch, generation, number, seed_digest);
            Control::Reset { generation, number, window, gap, seed_digest }.put(out);
        }
        while let Some(control) = self.due.pins.pop_front() {
            control.put(out);
        }
        if self.config.carrier.delivery != Delivery::Fanout {
            self.slots.put_due(self.number, out);
        }
        if self.is_ordered() && self.number > 0 && self.number.is_multiple_of(DIGEST_EVERY) {
            Control::Digest { number: self.number, chain: self.chain.0 }.put(out);
        }
    }

    fn choose(&mut self, message: &[u8], now_ns: u64) -> Choice {
        let limits = Limits {
            block_max: self.config.message_max,
            history: self.history.window(),
            codecs: self.peer.codecs,
            behind: self.history.bytes().len(),
            dictionary: self.slots.current().map(|c| c.1.digest()),
        };
        let view = View {
            now_ns,
            busy_ns: now_ns,
            seq: self.number,
            raw_offset: self.raw_offset,
            upcoming: message,
            gathered: message.len(),
            left: None,
            link: LinkView::default(),
            cpu: CpuView { cores: 1, busy: 0 },
            receiver: ReceiverView { reports: self.config.duplex, cores: 1, backlog_bytes: 0 },
            queue: &[],
            limits,
            ask: Ask::Next,
        };
        let choice = self.policy.choose(&view);
        if let Some(trace) = &mut self.trace {
            trace::choice(trace, Codecs::shipped(), &view, &choice, &self.policy.explain());
        }
        if limits.allows(choice.method) { choice } else { Choice::new(Method::STORE, message.len()) }
    }
}

fn codec_of(coding: Coding) -> CodecId {
    match coding {
        Coding::Store => CodecId::STORE,
        Coding::Lz4 => CodecId::LZ4,
        Coding::Zstd => CodecId::ZSTD,
    }
}

/// One bit per codec number, of the bits of a preface.
fn codecs_of(methods: u8) -> u64 {
    let known = Coding::ALL.iter().enumerate().filter(|(bit, _)| methods >> bit & 1 == 1);
    known.map(|(_, coding)| 1 << codec_of(*coding).0).fold(0, |all, bit: u64| all | bit)
}
