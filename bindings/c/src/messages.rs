//! Message links: one end, dictionary training.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use narrows::codec::{self, DICTIONARY_MAX, DICTIONARY_MIN, Dictionary};
use narrows::message::{Adoption, Came, Contexts, MessageConfig, MessageEnd, Sent, Training};

use crate::handles::{Held, Table};
use crate::options::messages_policy;
use crate::status::{Failure, Result, Status};

thread_local! {
    /// Codec contexts, shared by all ends that a thread calls.
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

/// Buffers above this many bytes are not kept for the next message: most messages are shorter, and
/// thousands of ends may be idle.
pub(crate) const ROOM_KEPT: usize = 4 << 10;

pub(crate) struct Messages {
    end: MessageEnd,
    begun: Instant,
    /// The unit that the last call returned, until the next call.
    unit: Vec<u8>,
    /// The unit was returned, so the next call starts a new one.
    given: bool,
    message: Vec<u8>,
    trainer: Trainer,
}

/// Kind of the frame at the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    Nothing,
    Message,
    Incomplete,
    Undecodable,
    Gap,
}

impl Messages {
    pub(crate) fn new(config: MessageConfig, spec: Option<&str>, learns: bool) -> Result<Self> {
        let policy = messages_policy(spec)?;
        let mut end = MessageEnd::new(MessageConfig { epoch: epoch(config.epoch), ..config }, policy)?;
        if learns {
            end.sample();
        }
        let (unit, message) = (Vec::new(), Vec::new());
        Ok(Self { end, begun: Instant::now(), unit, given: false, message, trainer: Trainer::default() })
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Starts a new unit. Bytes that were not returned stay in front: control frames taken before a
    /// call failed.
    fn begin_unit(&mut self) {
        if std::mem::take(&mut self.given) {
            if self.unit.capacity() > ROOM_KEPT {
                self.unit = Vec::new();
            }
            self.unit.clear();
        }
    }

    /// Returns the unit that sends `message`.
    pub(crate) fn send(&mut self, message: &[u8], private: bool) -> Result<(Sent, &[u8])> {
        self.begin_unit();
        if let Some(adoption) = self.trainer.take() {
            self.end.trained(adoption);
        }
        let now_ns = self.now_ns();
        let (end, unit) = (&mut self.end, &mut self.unit);
        let sent = with_contexts(|contexts| {
            if private {
                end.send_private(message, now_ns, contexts, unit)
            } else {
                end.send(message, now_ns, contexts, unit)
            }
        })??;
        let took_ns = self.now_ns() - now_ns;
        self.end.took_to_encode(took_ns);
        if self.trainer.is_idle()
            && let Some(training) = self.end.training(now_ns)
        {
            self.trainer.start(training);
        }
        self.given = true;
        Ok((sent, &self.unit))
    }

    /// Returns the next unit to send that carries no new message.
    pub(crate) fn next_unit(&mut self) -> Result<Option<&[u8]>> {
        self.begin_unit();
        let now_ns = self.now_ns();
        self.end.on_time(now_ns);
        let (end, unit) = (&mut self.end, &mut self.unit);
        let any = with_contexts(|contexts| end.next_unit(now_ns, contexts, unit))?;
        self.given = any || !self.unit.is_empty();
        Ok(self.given.then_some(&*self.unit))
    }

    /// Reads one frame from the front of the input. Returns its length, its kind, and the message,
    /// if it is one.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<(usize, Front, &[u8])> {
        let begun = Instant::now();
        let (end, message) = (&mut self.end, &mut self.message);
        if message.capacity() > ROOM_KEPT {
            *message = Vec::new();
        }
        message.clear();
        let (consumed, front) = with_contexts(|contexts| {
            let received = end.receive(input, contexts)?;
            let front = match received.came {
                Came::Message(came) => {
                    message.extend_from_slice(came);
                    Front::Message
                }
                Came::Incomplete => Front::Incomplete,
                Came::Undecodable(_) => Front::Undecodable,
                Came::Gap => Front::Gap,
                Came::Nothing => Front::Nothing,
            };
            narrows::Result::Ok((received.consumed, front))
        })??;
        if front == Front::Message {
            self.end.took_to_decode(begun.elapsed().as_nanos() as u64);
        }
        Ok((consumed, front, &self.message))
    }

    pub(crate) fn answered(&mut self, seq: u64, wire_len: usize, span_ns: u64) {
        self.end.answered(seq, wire_len, span_ns);
    }

    pub(crate) fn reconnect(&mut self) {
        self.unit.clear();
        self.given = false;
        self.end.reconnect(epoch(0));
    }

    /// `false` if the peer accepts no such dictionary, or cannot confirm that it has it.
    pub(crate) fn offer(&mut self, content: &[u8]) -> Result<bool> {
        Ok(self.end.sender_mut().offer(dictionary(content)?, false))
    }

    pub(crate) fn totals(&self) -> [(u64, u64, u64); 2] {
        [self.end.sent(), self.end.received()].map(|t| (t.messages, t.raw_len, t.wire_len))
    }
}

/// Trains dictionaries from sent messages on a background thread, one at a time.
#[derive(Default)]
pub(crate) struct Trainer(Option<mpsc::Receiver<Option<Adoption>>>);

impl Trainer {
    pub(crate) fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn start(&mut self, training: Training) {
        let (tell, hear) = mpsc::channel();
        let thread = std::thread::Builder::new().name("narrows-train".into());
        let started = thread.spawn(move || {
            crate::sys::block_signals();
            let _ = tell.send(training.run());
        });
        // Without a thread there is no dictionary, and the flow continues without one.
        self.0 = started.is_ok().then_some(hear);
    }

    /// The result of the training, once it is done.
    pub(crate) fn take(&mut self) -> Option<Option<Adoption>> {
        let adoption = match self.0.as_ref()?.try_recv() {
            Ok(adoption) => adoption,
            Err(mpsc::TryRecvError::Empty) => return None,
            Err(mpsc::TryRecvError::Disconnected) => None,
        };
        self.0 = None;
        Some(adoption)
    }
}

impl Held for Messages {
    const KIND: u8 = 5;
    const NAME: &'static str = "message end";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Messages> = Table::new();
        &TABLE
    }
}

pub(crate) fn with_contexts<R>(call: impl FnOnce(&mut Contexts) -> R) -> Result<R> {
    // Gone only while the thread ends.
    CONTEXTS.try_with(|contexts| call(&mut contexts.borrow_mut())).map_err(|_| Failure::internal())
}

/// `given`, or if 0 a number that differs from those of earlier connections and of the other end.
pub(crate) fn epoch(given: u64) -> u64 {
    if given != 0 {
        return given;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    RandomState::new().hash_one(now).max(1)
}

pub(crate) fn dictionary(content: &[u8]) -> Result<Arc<Dictionary>> {
    if content.len() > DICTIONARY_MAX {
        let text = format!("a dictionary has at most {DICTIONARY_MAX} bytes, not {}", content.len());
        return Err(Failure::new(Status::NARROWS_ERROR_LIMIT, text));
    }
    let text =
        format!("invalid dictionary: it must have at least {DICTIONARY_MIN} bytes, and complete tables if it has any");
    Dictionary::new(content.to_vec()).map(Arc::new).ok_or_else(|| Failure::misuse(text))
}

/// A dictionary of at most `len_max` bytes.
pub(crate) fn train(samples: &[u8], lens: &[usize], len_max: usize) -> Result<Vec<u8>> {
    if len_max < DICTIONARY_MIN {
        return Err(Failure::misuse(format!("a dictionary needs room for at least {DICTIONARY_MIN} bytes")));
    }
    let text = "the samples are too few for a dictionary, or have nothing in common";
    codec::train(samples, lens, len_max.min(DICTIONARY_MAX)).ok_or_else(|| Failure::misuse(text))
}
