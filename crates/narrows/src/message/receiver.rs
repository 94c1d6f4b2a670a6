//! The receiving end of a message flow: frame in, message out. No I/O, no thread, no clock. It does
//! not know how a method was chosen.

use std::collections::VecDeque;
use std::sync::Arc;

use super::control::{Control, Decoded, Lacks, Lost, Preface};
use super::header::{self, Header, is_control};
use super::history::{Chain, History, lone_check};
use super::slots::ReceiverSlots;
use super::{Coding, Contexts, Delivery, MessageConfig};
use crate::codec::{Dictionary, DictionaryContexts};
use crate::error::{Error, Result};

/// Messages between two reports of what was decoded.
const REPORT_EVERY: u64 = 64;
/// Most pending control frames for the peer; a peer that causes more is not answered.
const DUE_MAX: usize = 16;

/// The content at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The beginning of a frame: more bytes are needed. Carriers with borders never have this.
    Incomplete,
    /// A decoded message.
    Message(&'a [u8]),
    /// A message that cannot be decoded was dropped; on an ordered carrier it is requested again.
    Undecodable(Lost),
    /// A control frame for the sender of the other direction; pass it to
    /// [`MessageSender::hear`](super::MessageSender::hear).
    Control(Control),
    /// A control frame that was handled.
    Nothing,
}

/// The result of reading one frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Bytes consumed from the front of the input.
    pub consumed: usize,
    /// Their content.
    pub event: Event<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Lost,
    InStep,
    /// The flow is over: nothing can be requested again.
    Failed,
}

/// The receiving end of a message flow.
pub struct MessageReceiver {
    config: MessageConfig,
    state: State,
    epoch: Option<u64>,
    check_all: bool,
    history: History,
    /// W of the last reset. With the raw bytes since then it says whether a frame may refer to
    /// history that this end did not keep.
    window: usize,
    appended: u64,
    chain: Chain,
    generation: u64,
    number: u64,
    slots: ReceiverSlots,
    due: VecDeque<Control>,
    /// The peer was told in this generation that the history is lost.
    said: bool,
    decoded: [Decoded; 3],
    unreported: u64,
    last: Coding,
    undecodable: u64,
}

impl MessageReceiver {
    /// A receiver of a new flow.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn new(config: MessageConfig) -> Result<Self> {
        config.validate()?;
        let ordered = config.carrier.delivery == Delivery::Ordered;
        Ok(Self {
            state: if ordered { State::New } else { State::InStep },
            epoch: None,
            check_all: config.check_all,
            history: History::default(),
            window: 0,
            appended: 0,
            chain: Chain::default(),
            generation: 0,
            number: 0,
            slots: ReceiverSlots::default(),
            due: VecDeque::new(),
            said: false,
            decoded: [Decoded::default(); 3],
            unreported: 0,
            last: Coding::Store,
            undecodable: 0,
            config,
        })
    }

    /// The carrier reconnected: pending control frames about the old flow are dropped. The peer's
    /// preface begins the new one.
    pub fn reconnect(&mut self, epoch: u64) {
        self.config.epoch = epoch;
        self.due.clear();
        (self.unreported, self.decoded) = (0, [Decoded::default(); 3]);
    }

    /// Reads one frame from the front of `input`: on a carrier with borders the rest of a unit,
    /// otherwise all bytes received and not consumed yet. Call again while input is left. An error
    /// leaves the receiver unchanged, but on a carrier without borders nothing after it can be
    /// read.
    ///
    /// # Errors
    /// `Corrupt`, `Truncated`, `Limit` or `Unsupported`.
    pub fn receive<'a>(&mut self, input: &'a [u8], contexts: &'a mut Contexts) -> Result<Step<'a>> {
        if self.state == State::Failed {
            return Err(self.failed());
        }
        let Some(&first) = input.first() else { return Ok(Step { consumed: 0, event: Event::Incomplete }) };
        if is_control(first) {
            let Some((control, consumed)) = Control::parse(input)? else { return self.incomplete() };
            let event = match control {
                Some(control) => self.control(control)?,
                None => Event::Nothing,
            };
            return Ok(Step { consumed, event });
        }
        let Some((header, header_len)) = header::parse(input, self.config.carrier, self.check_all)? else {
            return self.incomplete();
        };
        let consumed = header_len + header.body_len;
        let Some(body) = input.get(header_len..consumed) else { return self.incomplete() };
        let event = match self.message(&header, body, contexts)? {
            Ok(message) => Event::Message(message),
            Err(reason) => {
                self.undecodable += 1;
                Event::Undecodable(reason)
            }
        };
        Ok(Step { consumed, event })
    }

    fn incomplete(&self) -> Result<Step<'static>> {
        if self.config.carrier.borders {
            return Err(Error::truncated("a unit ends in the middle of a frame"));
        }
        Ok(Step { consumed: 0, event: Event::Incomplete })
    }

    fn failed(&self) -> Error {
        Error::corrupt("the history is out of step and cannot be restored on a one-way link: restart the flow")
            .at(0, self.number)
    }

    /// Reports the decoding time of the last message; the peer is told at intervals.
    pub fn took(&mut self, decode_ns: u64) {
        let decoded = &mut self.decoded[self.last as usize];
        decoded.ns = decoded.ns.saturating_add(decode_ns);
    }

    /// Digest of the dictionary in a slot; 0 is none.
    pub(super) fn digest_in(&self, slot: u8) -> u64 {
        self.slots.get(slot).map_or(0, |d| d.digest())
    }

    /// Number of messages that could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Appends the control frames for the peer, to be sent at the front of the next unit in the
    /// other direction. Returns whether there were any.
    pub fn answer(&mut self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        while let Some(control) = self.due.pop_front() {
            control.put(out);
        }
        let listens = self.config.duplex && self.config.carrier.delivery != Delivery::Fanout;
        if listens && self.unreported >= REPORT_EVERY {
            self.unreported = 0;
            let decoded = std::mem::take(&mut self.decoded);
            Control::Acknowledgement { number: self.number, chain: self.chain.0, decoded }.put(out);
        }
        out.len() > start
    }

    pub(super) fn control(&mut self, control: Control) -> Result<Event<'static>> {
        if !control.suits(self.config.carrier.delivery) {
            return Err(Error::corrupt("a control frame that is not allowed on this carrier"));
        }
        if control.is_reverse() {
            if !self.config.duplex {
                return Err(Error::corrupt("a frame about a flow in the other direction, where there is none"));
            }
            return Ok(Event::Control(control));
        }
        if let Control::Preface(preface) = control {
            self.preface(&preface)?;
            return Ok(if self.config.duplex { Event::Control(control) } else { Event::Nothing });
        }
        match (self.state, control) {
            (State::New, _) => self.lose(Lost::New)?,
            (_, Control::Offer { slot, announced, len, digest, content }) => {
                self.offer(slot, announced, len, digest, content);
            }
            (_, Control::Reset { generation, number, window, gap, seed_digest }) => {
                self.reset(generation, number, window, gap, seed_digest)?;
            }
            (State::InStep, Control::Digest { number, chain }) if (number, chain) != (self.number, self.chain.0) => {
                self.lose(Lost::Mismatch)?;
            }
            (State::InStep, Control::Pin { slot, len, digest }) => self.pin(slot, len, digest)?,
            _ => {}
        }
        Ok(Event::Nothing)
    }

    fn preface(&mut self, preface: &Preface) -> Result<()> {
        if preface.carrier != self.config.carrier {
            return Err(Error::unsupported("the two ends are configured for different carriers"));
        }
        if self.config.duplex && preface.epoch == self.config.epoch {
            return Err(Error::corrupt("the peer echoes the frames of this end"));
        }
        self.check_all = self.config.check_all || preface.check_all;
        if self.epoch == Some(preface.epoch) {
            return Ok(());
        }
        let known = self.epoch.replace(preface.epoch).is_some();
        if self.config.carrier.delivery == Delivery::Ordered {
            self.state = State::Lost;
            (self.generation, self.number, self.chain) = (0, 0, Chain::default());
            self.history.reset(0);
            self.due.retain(|c| !matches!(c, Control::Lost { .. }));
            self.said = false;
        }
        if known {
            self.slots = ReceiverSlots::default();
        }
        Ok(())
    }

    fn reset(&mut self, generation: u64, number: u64, window: usize, gap: bool, seed_digest: u64) -> Result<()> {
        let in_place = match self.state {
            State::InStep => generation == self.generation.wrapping_add(1) && number == self.number,
            _ => generation > self.generation && (number == self.number || gap),
        };
        if !in_place && self.state == State::InStep {
            return self.lose(Lost::Mismatch);
        }
        if !in_place {
            // This reset is no answer: it was under way when the history was lost. The sender is
            // told once more.
            if generation > self.generation {
                (self.generation, self.said) = (generation, false);
                self.lose(Lost::Mismatch)?;
            }
            return Ok(());
        }
        let seed = if seed_digest == 0 { None } else { self.find(seed_digest) };
        (self.generation, self.number, self.said) = (generation, number, false);
        self.chain = Chain::at_reset(self.epoch.unwrap_or(0), generation, number, seed_digest);
        if seed_digest != 0 && seed.is_none() {
            self.history.reset(0);
            self.state = State::InStep;
            return self.lose(Lost::Seed);
        }
        self.window = window;
        self.history.reset(window.min(self.config.history_of_carrier()));
        self.appended = seed.map_or(0, |s| self.history.seed(s.content(), window) as u64);
        self.state = State::InStep;
        Ok(())
    }

    /// Looks up a dictionary that this end has from elsewhere.
    fn find(&self, digest: u64) -> Option<Arc<Dictionary>> {
        self.config.known.iter().chain(&self.config.seed).find(|d| d.digest() == digest).cloned()
    }

    fn offer(&mut self, slot: u8, announced: bool, len: usize, digest: u64, content: Option<Vec<u8>>) {
        let held = self.slots.get(slot).is_some_and(|d| d.digest() == digest);
        let dictionary = if held { self.slots.get(slot).cloned() } else { self.find(digest) };
        let refused = !self.config.takes_dictionary(slot, len);
        let reason = if refused { Lacks::Refused } else { Lacks::Content };
        let asked_only = content.is_none();
        let dictionary = dictionary.or_else(|| content.and_then(Dictionary::new).map(Arc::new)).filter(|_| !refused);
        let answer = match dictionary {
            Some(dictionary) => {
                self.slots.set(slot, Some(dictionary));
                Control::Has { slot, digest }
            }
            // Content with malformed tables is no dictionary, and a new request would bring the
            // same.
            None if asked_only => Control::Lacks { slot, digest, reason },
            None => Control::Lacks { slot, digest, reason: Lacks::Refused },
        };
        if !announced {
            self.say(answer);
        }
    }

    fn pin(&mut self, slot: u8, len: usize, digest: u64) -> Result<()> {
        let history = self.history.bytes();
        let content = history.len().checked_sub(len).map(|from| history[from..].to_vec());
        let content = content.filter(|c| Dictionary::digest_of(c) == digest);
        let Some(dictionary) = content.and_then(Dictionary::new) else { return self.lose(Lost::Mismatch) };
        if usize::from(slot) <= self.config.slots {
            self.slots.set(slot, Some(Arc::new(dictionary)));
        }
        Ok(())
    }

    /// Decodes a message frame. The inner error says why the message was dropped.
    fn message<'a>(
        &mut self,
        header: &Header,
        body: &'a [u8],
        contexts: &'a mut Contexts,
    ) -> Result<std::result::Result<&'a [u8], Lost>> {
        match self.state {
            State::New => return self.drop_message(Lost::New),
            State::Lost => return Ok(Err(Lost::Mismatch)),
            State::InStep | State::Failed => {}
        }
        let is_private = header.linked && header.coding == Coding::Store;
        if header.linked
            && !is_private
            && self.window > self.history.window()
            && self.appended > self.history.window() as u64
        {
            return self.drop_message(Lost::Window);
        }
        let ordered = self.config.carrier.delivery == Delivery::Ordered;
        let dictionary = match header.slot {
            0 => None,
            slot => match self.slots.get(slot) {
                Some(dictionary) => Some(Arc::clone(dictionary)),
                None => return self.lacks(slot),
            },
        };
        let digest = dictionary.as_ref().map_or(0, |d| d.digest());
        let Some(message) = self.decode(header, body, dictionary.as_deref(), contexts) else {
            return if header.slot == 0 || ordered {
                self.drop_message(Lost::Mismatch)
            } else {
                self.lacks(header.slot)
            };
        };
        let chain = if ordered { self.chain.after(message) } else { self.chain };
        let check = |check| check == if ordered { chain.check() } else { lone_check(digest, message, header.first) };
        if header.check.is_some_and(|c| !check(c)) {
            return if header.slot == 0 || ordered {
                self.drop_message(Lost::Mismatch)
            } else {
                self.lacks(header.slot)
            };
        }
        // Tested after the check: decoding with a wrong dictionary may yield any length.
        if message.len() > self.config.message_max {
            // Later messages are encoded with this one: the history is out of step, and the sender
            // must be told.
            if ordered && header.coding != Coding::Store {
                return self.drop_message(Lost::Mismatch);
            }
            return Err(Error::limit(format!(
                "a message of {} bytes exceeds the limit here, which is {}",
                message.len(),
                self.config.message_max
            )));
        }
        self.chain = chain;
        self.number += 1;
        if ordered && !is_private {
            self.history.append(message);
            self.appended = self.appended.saturating_add(message.len() as u64);
        }
        let decoded = &mut self.decoded[header.coding as usize];
        decoded.messages += 1;
        decoded.raw_len += message.len() as u64;
        (self.last, self.unreported) = (header.coding, self.unreported + 1);
        Ok(Ok(message))
    }

    fn decode<'a>(
        &self,
        header: &Header,
        body: &'a [u8],
        dictionary: Option<&Dictionary>,
        contexts: &'a mut Contexts,
    ) -> Option<&'a [u8]> {
        // A buffer for any message distinguishes messages above this end's limit from malformed
        // ones.
        let Contexts { codecs, decoded: out, .. } = contexts;
        let raw_len = match header.coding {
            Coding::Store => return Some(body),
            Coding::Lz4 => {
                let history = if header.linked { self.history.bytes() } else { &[] };
                let history = dictionary.map_or(history, Dictionary::content);
                DictionaryContexts::decode_lz4(history, body, out)
            }
            Coding::Zstd => codecs.decode_zstd(dictionary, body, out),
        };
        raw_len.ok().filter(|len| *len > body.len()).map(|len| &out[..len])
    }

    /// Drops a message; on an ordered carrier the history is lost with it.
    fn drop_message<'a>(&mut self, reason: Lost) -> Result<std::result::Result<&'a [u8], Lost>> {
        if self.config.carrier.delivery == Delivery::Ordered {
            self.lose(reason)?;
        }
        Ok(Err(reason))
    }

    /// Drops a message whose dictionary is missing or differs.
    fn lacks<'a>(&mut self, slot: u8) -> Result<std::result::Result<&'a [u8], Lost>> {
        if self.config.carrier.delivery == Delivery::Unordered && self.config.duplex && self.slots.missed(slot) {
            self.say(Control::Lacks { slot, digest: 0, reason: Lacks::Content });
        }
        self.drop_message(Lost::Slot)
    }

    /// The history is out of step: everything is dropped until a reset. The peer is told once.
    fn lose(&mut self, reason: Lost) -> Result<()> {
        if !self.config.duplex {
            self.state = State::Failed;
            return Err(self.failed());
        }
        let (generation, number, chain) = (self.generation, self.number, self.chain.0);
        if !self.said {
            // Exempt from `DUE_MAX`: there is one per generation.
            self.due.push_back(Control::Lost { generation, number, chain, reason });
            self.said = true;
        }
        if self.state == State::InStep {
            self.state = State::Lost;
            self.history.reset(0);
        }
        Ok(())
    }

    fn say(&mut self, control: Control) {
        if self.config.duplex && self.config.carrier.delivery != Delivery::Fanout && self.due.len() < DUE_MAX {
            self.due.push_back(control);
        }
    }
}
