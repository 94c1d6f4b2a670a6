//! Topics: messages from any number of writers to any number of readers, which join at any time and
//! answer nothing (format.md section 12.7, fan-out carriers). Dictionaries are announced; a unit
//! depends on no other unit except announcements.

use std::collections::VecDeque;
use std::sync::Arc;

use super::control::Control;
use super::end::Traffic;
use super::header::{self, is_control};
use super::receiver::{Event, MessageReceiver};
use super::sample::{Adoption, Sampler, Training};
use super::sender::{MessageSender, Sent};
use super::{Carrier, Contexts, Delivery, Dictionary, Lost, MessageConfig, SLOTS};
use crate::error::{Error, ErrorKind, Result};
use crate::policy::Policy;

/// Interval between announcements: the longest wait of a late reader.
const PERIOD_NS: u64 = 10_000_000_000;
/// Readers that join within this time share an announcement, which is some ten KiB long.
const NEW_READERS_NS: u64 = 1_000_000_000;
/// Announcements after the last message: one may be lost.
const AFTER_LAST: u32 = 2;
/// A dictionary stays announced while it saves at least `KEEPS` times the cost of its
/// announcements; one put aside is announced again from `RESUMES` times on.
const KEEPS: f64 = 1.0;
const RESUMES: f64 = 2.0;
/// Assumed saving, as a share of the messages' bytes, of a dictionary that was not judged here.
const WORTH_GIVEN: f64 = 0.5;

/// Most messages and bytes that wait for an announcement. Below a hundred messages a second nothing
/// is dropped within [`PERIOD_NS`], and memory stays bounded for a process that reads many topics.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Longest wait: two announcements may be lost, and the third one be late.
const WAIT_NS: u64 = 25_000_000_000;
/// Most writers whose dictionaries a reader keeps. If more write at a time, they delay each other
/// indefinitely. With three dictionaries of 64 KiB each, which zstd copies and adds 27 KiB of
/// tables to, they take 15 MiB; with the two of 16 KiB that writers train, 4 MiB.
const WRITERS_MAX: usize = 32;
/// Most bytes that a frame adds to its message: first byte and check. Encoded bodies are shorter
/// than the message.
const HEADER_MAX: usize = 5;

fn config_of_topic(config: MessageConfig) -> MessageConfig {
    let carrier = Carrier { delivery: Delivery::Fanout, borders: true };
    MessageConfig { carrier, duplex: false, history: 0, seed: None, ..config }
}

/// The value of a dictionary.
struct Worth {
    digest: u64,
    len: usize,
    /// Bytes saved as a share of the messages' bytes.
    share: f64,
    /// It saves more than its announcements cost at the recent message rate.
    pays: bool,
}

/// The writing end of a topic.
///
/// Before every [`TopicWriter::send`], and at [`TopicWriter::next_wakeup_ns`], call
/// [`TopicWriter::announcement`] and send the unit that it appends, if any.
pub struct TopicWriter {
    sender: MessageSender,
    sampler: Option<Sampler>,
    /// Time of the last announcement. `raw_since`: raw bytes since it. `silent`: announcements
    /// since the last message.
    announced_ns: Option<u64>,
    raw_since: u64,
    silent: u32,
    /// Moving average of the raw bytes per [`PERIOD_NS`].
    raw_rate: Option<f64>,
    reader_came: bool,
    /// A dictionary was added.
    is_new: bool,
    /// One for each dictionary that the sender holds, oldest first.
    worths: Vec<Worth>,
    /// Digest of the dictionary that the last training was compared with.
    trained_against: Option<u64>,
    sent: Traffic,
}

impl TopicWriter {
    /// A writer of a topic. Carrier, history and seed are those of a topic, whatever `config` says.
    /// The epoch distinguishes this writer from others.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn new(config: MessageConfig, policy: Box<dyn Policy>) -> Result<Self> {
        Ok(Self {
            sender: MessageSender::new(config_of_topic(config), policy)?,
            sampler: None,
            announced_ns: None,
            raw_since: 0,
            silent: AFTER_LAST,
            raw_rate: None,
            reader_came: false,
            is_new: false,
            worths: Vec::new(),
            trained_against: None,
            sent: Traffic::default(),
        })
    }

    /// From here on samples sent messages, for [`TopicWriter::training`].
    pub fn sample(&mut self) {
        self.sampler.get_or_insert_default();
    }

    /// Uses a dictionary from elsewhere once it was announced twice. It must consist of messages
    /// that every reader may see. False if the sender cannot take it.
    pub fn offer(&mut self, dictionary: Arc<Dictionary>) -> bool {
        if let Some(sampler) = &mut self.sampler {
            sampler.begin(Arc::clone(&dictionary));
        }
        self.adopt(dictionary, WORTH_GIVEN)
    }

    fn adopt(&mut self, dictionary: Arc<Dictionary>, share: f64) -> bool {
        let (digest, len) = (dictionary.digest(), dictionary.content().len());
        let current = self.sender.dictionary().map(|d| d.digest());
        if !self.sender.offer(dictionary, false) {
            return false;
        }
        self.is_new = true;
        if self.appraise(digest, share) {
            return true;
        }
        // Like the sender, drop the oldest one that is not in use.
        if self.worths.len() >= SLOTS
            && let Some(at) = self.worths.iter().position(|w| Some(w.digest) != current)
        {
            self.worths.remove(at);
        }
        self.worths.push(Worth { digest, len, share, pays: false });
        true
    }

    /// Updates the share of a dictionary. Returns whether the sender holds it.
    fn appraise(&mut self, digest: u64, share: f64) -> bool {
        let worth = self.worths.iter_mut().find(|w| w.digest == digest);
        worth.map(|w| w.share = share).is_some()
    }

    /// Appends the unit that sends `message` to `out`. An error changes nothing: the next message
    /// can be sent.
    ///
    /// # Errors
    /// `Limit` if the message is too long.
    pub fn send(&mut self, message: &[u8], now_ns: u64, contexts: &mut Contexts, out: &mut Vec<u8>) -> Result<Sent> {
        let start = out.len();
        let sent = self.sender.encode(message, now_ns, contexts, out)?;
        if let Some(sampler) = &mut self.sampler {
            sampler.see(message, contexts);
        }
        (self.silent, self.raw_since) = (0, self.raw_since + message.len() as u64);
        self.sent.messages += 1;
        self.sent.raw_len += message.len() as u64;
        self.sent.wire_len += (out.len() - start) as u64;
        Ok(sent)
    }

    /// Appends an announcement if one is due. Returns whether it was.
    pub fn announcement(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        if self.due_ns().is_some_and(|due| now_ns < due) {
            return false;
        }
        let start = out.len();
        self.judge(now_ns);
        let worths = &self.worths;
        self.sender.put_announcement(&|d| worths.iter().any(|w| w.digest == d.digest() && w.pays), out);
        self.sent.wire_len += (out.len() - start) as u64;
        (self.announced_ns, self.raw_since) = (Some(now_ns), 0);
        (self.silent, self.reader_came, self.is_new) = (self.silent.saturating_add(1), false, false);
        true
    }

    /// When the next announcement is due; `None`: at once.
    fn due_ns(&self) -> Option<u64> {
        let sooner = self.reader_came || self.is_new;
        Some(self.announced_ns? + if sooner { NEW_READERS_NS } else { PERIOD_NS })
    }

    /// Determines which dictionaries save more than their announcements cost at the current message
    /// rate.
    fn judge(&mut self, now_ns: u64) {
        let Some(announced_ns) = self.announced_ns else { return };
        let spans = now_ns.saturating_sub(announced_ns).max(NEW_READERS_NS) as f64 / PERIOD_NS as f64;
        let seen = self.raw_since as f64 / spans;
        let rate = self.raw_rate.map_or(seen, |rate| rate + spans.min(1.0) * (seen - rate));
        self.raw_rate = Some(rate);
        for worth in &mut self.worths {
            let enough = if worth.pays { KEEPS } else { RESUMES };
            worth.pays = worth.share * rate > enough * worth.len as f64;
        }
    }

    /// A reader joined, or may have: it should not wait for the next regular announcement.
    pub fn reader_came(&mut self) {
        self.reader_came = true;
    }

    /// When to call [`TopicWriter::announcement`] if nothing is sent before. Idle topics are
    /// silent.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        let speaks = self.silent < AFTER_LAST || self.reader_came || self.is_new;
        speaks.then(|| self.due_ns().unwrap_or(0))
    }

    /// A training that is due; run it on a separate thread and pass its result to
    /// [`TopicWriter::trained`].
    pub fn training(&mut self, now_ns: u64) -> Option<Training> {
        let sampler = self.sampler.as_mut()?;
        let training = sampler.training(now_ns)?;
        self.trained_against = sampler.current().map(|d| d.digest());
        Some(training)
    }

    /// Announces the dictionary if it pays. Returns whether it does.
    pub fn trained(&mut self, adoption: Option<Adoption>) -> bool {
        let before = self.trained_against.take();
        let Some(sampler) = &mut self.sampler else { return false };
        let shares = adoption.as_ref().map(|a| {
            let share = |len| a.alone_len.saturating_sub(len) as f64 / a.raw_len.max(1) as f64;
            (share(a.before_len), share(a.after_len))
        });
        let (Some(dictionary), Some((share_before, share))) = (sampler.trained(adoption), shares) else { return false };
        // The data have changed since the previous dictionary was judged.
        if let Some(digest) = before {
            self.appraise(digest, share_before);
        }
        self.adopt(dictionary, share)
    }

    /// The sending end of the writer's flow.
    pub fn sender(&self) -> &MessageSender {
        &self.sender
    }

    /// The sending end of the writer's flow.
    pub fn sender_mut(&mut self) -> &mut MessageSender {
        &mut self.sender
    }

    /// Totals of what was sent: messages, and the wire bytes with announcements.
    pub fn sent(&self) -> Traffic {
        self.sent
    }
}

/// What a reader of a topic could not deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missed {
    /// Messages whose dictionary was not announced in time, exceeds this reader's limits, or could
    /// not be awaited for lack of room.
    pub unannounced: u64,
    /// Malformed units, and units whose message does not decode or exceeds this reader's limit.
    pub damaged: u64,
}

/// A writer of the topic, as a reader knows it.
struct Writer {
    /// Epoch of its preface; `None` before one arrived.
    epoch: Option<u64>,
    receiver: MessageReceiver,
    /// Per slot: its last announcement had a dictionary there that exceeds this reader's limits.
    refused: [bool; SLOTS],
}

impl Writer {
    fn new(config: &MessageConfig) -> Result<Self> {
        Ok(Self { epoch: None, receiver: MessageReceiver::new(config.clone())?, refused: [false; SLOTS] })
    }

    /// Handles a control frame. Returns whether it brought a new dictionary.
    fn hear(&mut self, control: Control, config: &MessageConfig) -> Result<bool> {
        let offered = match control {
            Control::Offer { slot, len, digest, .. } => Some((slot, len, digest)),
            _ => None,
        };
        let before = offered.map_or(0, |(slot, ..)| self.receiver.digest_in(slot));
        let is_preface = matches!(control, Control::Preface(_));
        self.receiver.control(control)?;
        if is_preface {
            self.refused = [false; SLOTS];
        }
        let Some((slot, len, digest)) = offered else { return Ok(false) };
        self.refused[usize::from(slot) - 1] = !config.takes_dictionary(slot, len);
        Ok(before != digest && self.receiver.digest_in(slot) == digest)
    }

    fn is_plain(&self) -> bool {
        self.refused == [false; SLOTS] && (1..=SLOTS as u8).all(|slot| self.receiver.digest_in(slot) == 0)
    }
}

/// A message whose dictionary is missing, or one that came after such a message.
struct Waiting {
    frame: Vec<u8>,
    since_ns: u64,
}

/// The reading end of a topic.
///
/// A message that cannot be decoded without a coming announcement waits, and all later messages
/// wait behind it, so delivery keeps the order of arrival. Anyone who may write to a topic can thus
/// delay its readers, but only until [`TopicReader::next_wakeup_ns`].
pub struct TopicReader {
    config: MessageConfig,
    /// At least one; the most recently heard writer is last.
    writers: Vec<Writer>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Since when messages have waited for a new announcement. On a busy topic no single message
    /// waits that long: others take its room.
    waits_since_ns: u64,
    /// Waiting was in vain: until a new dictionary is announced, nothing waits.
    hopeless: bool,
    received: Traffic,
    missed: Missed,
}

impl TopicReader {
    /// A reader of a topic. Carrier and history are those of a topic, whatever `config` says.
    ///
    /// # Errors
    /// `Misuse` if the configuration is invalid.
    pub fn new(config: MessageConfig) -> Result<Self> {
        let config = config_of_topic(config);
        Ok(Self {
            writers: vec![Writer::new(&config)?],
            config,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waits_since_ns: 0,
            hopeless: false,
            received: Traffic::default(),
            missed: Missed::default(),
        })
    }

    /// Reads a unit. `deliver` gets all messages that can be decoded with it, in the order of
    /// arrival. After an error the unit is dropped, and the next one can be read.
    ///
    /// # Errors
    /// `Corrupt`, `Truncated`, `Limit` or `Unsupported`.
    pub fn receive(
        &mut self,
        unit: &[u8],
        now_ns: u64,
        contexts: &mut Contexts,
        mut deliver: impl FnMut(&[u8]),
    ) -> Result<()> {
        self.received.wire_len += unit.len() as u64;
        let result = self.read(unit, now_ns, contexts, &mut deliver);
        self.missed.damaged += u64::from(result.is_err());
        result
    }

    fn read(
        &mut self,
        unit: &[u8],
        now_ns: u64,
        contexts: &mut Contexts,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mut rest = unit;
        if rest.first().is_some_and(|b| is_control(*b)) {
            let result = self.announced(unit, now_ns);
            self.evict();
            rest = result?;
            self.drain(now_ns, contexts, deliver);
        }
        self.on_time(now_ns, contexts, &mut *deliver);
        if rest.is_empty() {
            return Ok(());
        }
        if rest.len() > HEADER_MAX + self.config.message_max {
            return Err(Error::limit("a unit exceeds the longest message allowed here"));
        }
        if !self.waiting.is_empty() || !self.decode(rest, contexts, deliver)? {
            if self.waiting.is_empty() && self.never_decodes(rest) {
                self.missed.unannounced += 1;
                return Ok(());
            }
            if self.waiting.is_empty() {
                self.waits_since_ns = now_ns;
            }
            self.waiting_bytes += rest.len();
            self.waiting.push_back(Waiting { frame: rest.to_vec(), since_ns: now_ns });
            self.drain_above_limits(now_ns, contexts, deliver);
        }
        Ok(())
    }

    /// Reads the control frames of a unit and returns the rest.
    fn announced<'a>(&mut self, unit: &'a [u8], now_ns: u64) -> Result<&'a [u8]> {
        let mut rest = unit;
        while rest.first().is_some_and(|b| is_control(*b)) {
            let Some((control, len)) = Control::parse(rest)? else {
                return Err(Error::truncated("a unit ends in the middle of a frame"));
            };
            let is_first = rest.len() == unit.len();
            rest = &rest[len..];
            let Some(control) = control else { continue };
            if let Control::Preface(preface) = control
                && is_first
            {
                self.select(preface.epoch)?;
            }
            let Some(writer) = self.writers.last_mut() else { continue };
            if writer.hear(control, &self.config)? {
                (self.hopeless, self.waits_since_ns) = (false, now_ns);
            }
        }
        Ok(rest)
    }

    /// Moves the writer of this epoch to the end, adding it if it is new. Frames without an epoch
    /// are attributed to the writer heard last.
    fn select(&mut self, epoch: u64) -> Result<()> {
        let known = self.writers.iter().position(|w| w.epoch == Some(epoch));
        let at = match known.or_else(|| self.writers.iter().position(|w| w.epoch.is_none())) {
            Some(at) => at,
            None => {
                self.writers.push(Writer::new(&self.config)?);
                self.writers.len() - 1
            }
        };
        self.writers[at].epoch = Some(epoch);
        self.writers[at..].rotate_left(1);
        Ok(())
    }

    /// Forgets writers above the limit: those without dictionaries first, since no message depends
    /// on their identity, then the least recently heard.
    fn evict(&mut self) {
        while self.writers.len() > WRITERS_MAX {
            let plain = self.writers.iter().position(Writer::is_plain);
            self.writers.remove(plain.unwrap_or(0));
        }
    }

    /// Whether waiting for this frame's missing dictionary would be in vain.
    fn never_decodes(&self, frame: &[u8]) -> bool {
        let header = header::parse(frame, self.config.carrier, false).ok().flatten();
        let slot = header.map_or(0, |(header, _)| usize::from(header.slot));
        self.hopeless || slot > 0 && self.writers.iter().any(|w| w.refused[slot - 1])
    }

    /// Delivers the message of a frame. False if no known writer wrote it with a dictionary that
    /// this reader has; the check decides.
    fn decode(&mut self, frame: &[u8], contexts: &mut Contexts, deliver: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (mut lacks, mut error) = (false, None);
        for at in (0..self.writers.len()).rev() {
            match self.writers[at].receiver.receive(frame, contexts).map(|step| step.event) {
                Ok(Event::Message(message)) => {
                    self.received.messages += 1;
                    self.received.raw_len += message.len() as u64;
                    deliver(message);
                    self.writers[at..].rotate_left(1);
                    return Ok(true);
                }
                Ok(Event::Undecodable(Lost::Slot)) => lacks = true,
                Ok(_) => error = error.or(Some(Error::corrupt("a message that does not decode"))),
                // The check agrees, so this writer wrote it.
                Err(e) if e.kind == ErrorKind::Limit => return Err(e),
                // One writer may omit what another one always includes.
                Err(e) => error = error.or(Some(e)),
            }
        }
        match error {
            Some(error) if !lacks => Err(error),
            _ => Ok(false),
        }
    }

    /// Delivers waiting messages that can be decoded by this time, and drops those that waited too
    /// long.
    fn drain(&mut self, now_ns: u64, contexts: &mut Contexts, deliver: &mut dyn FnMut(&[u8])) {
        while let Some(Waiting { frame, since_ns }) = self.waiting.pop_front() {
            let exceeds = self.waiting.len() >= WAITING_MAX || self.waiting_bytes > WAITING_BYTES_MAX;
            let is_late = now_ns.saturating_sub(since_ns.min(self.waits_since_ns)) >= WAIT_NS;
            match self.decode(&frame, contexts, deliver) {
                Ok(true) => {}
                Ok(false) if exceeds || is_late => {
                    self.missed.unannounced += 1;
                    self.hopeless |= is_late;
                }
                Ok(false) if self.never_decodes(&frame) => self.missed.unannounced += 1,
                Ok(false) => {
                    self.waiting.push_front(Waiting { frame, since_ns });
                    return;
                }
                Err(_) => self.missed.damaged += 1,
            }
            self.waiting_bytes -= frame.len();
        }
    }

    fn drain_above_limits(&mut self, now_ns: u64, contexts: &mut Contexts, deliver: &mut dyn FnMut(&[u8])) {
        if self.waiting.len() > WAITING_MAX || self.waiting_bytes > WAITING_BYTES_MAX {
            self.drain(now_ns, contexts, deliver);
        }
    }

    /// When [`TopicReader::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.waiting.front().map(|w| w.since_ns.min(self.waits_since_ns).saturating_add(WAIT_NS))
    }

    /// Stops waiting for overdue announcements, and delivers the messages after them.
    pub fn on_time(&mut self, now_ns: u64, contexts: &mut Contexts, mut deliver: impl FnMut(&[u8])) {
        if self.next_wakeup_ns().is_some_and(|at| at <= now_ns) {
            self.drain(now_ns, contexts, &mut deliver);
        }
    }

    /// Number of messages that wait for an announcement.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What could not be delivered so far; report it to the application.
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Totals: messages delivered, and wire bytes of all units received.
    pub fn received(&self) -> Traffic {
        self.received
    }
}
