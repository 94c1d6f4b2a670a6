//! One-way message flows: an encoder without a back channel, and its decoder.

use std::sync::Arc;

use narrows::message::{DICTIONARY_MAX, Event, MESSAGE_MAX, MessageReceiver, MessageSender, SLOTS, Traffic};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::settings::{Settings, new_epoch, policy};
use super::stats::{Methods, Stats};
use super::{Dictionary, Input, Step, now_ns, with_contexts};
use crate::buffer::Bytes;
use crate::error::raised;
use crate::own::Own;

/// The sending end of messages that are never answered: a log, a topic with many readers, a file.
///
/// ``delivery`` is ``ordered`` (uses history; one decoder reads everything from the beginning),
/// ``unordered`` (each frame is decodable on its own) or ``fanout`` (dictionaries are announced).
/// The other arguments are those of ``MessageEnd``. ``MessageDecoder`` must be given the same
/// carrier.
#[pyclass(module = "narrows")]
pub(crate) struct MessageEncoder {
    sender: Own<MessageSender>,
    out: Vec<u8>,
    methods: Methods,
    traffic: Traffic,
}

#[pymethods]
impl MessageEncoder {
    #[new]
    #[pyo3(signature = (
        policy = "messages", *, delivery = "ordered", borders = false, message_max = MESSAGE_MAX, history = 16 << 10,
        epoch = None, check_all = false, seed = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        policy: &str,
        delivery: &str,
        borders: bool,
        message_max: usize,
        history: usize,
        epoch: Option<u64>,
        check_all: bool,
        seed: Option<PyRef<'_, Dictionary>>,
    ) -> PyResult<Self> {
        let settings = Settings {
            delivery,
            borders,
            duplex: false,
            message_max,
            history,
            dictionary_max: DICTIONARY_MAX,
            slots: SLOTS,
            epoch,
            check_all,
            seed,
            known: Vec::new(),
        };
        let made = settings.config().and_then(|config| MessageSender::new(config, self::policy(policy)?));
        let (methods, traffic) = (Methods::default(), Traffic::default());
        Ok(Self { sender: Own::new(made.map_err(raised)?), out: Vec::new(), methods, traffic })
    }

    /// Encodes a message of 0 to ``message_max`` bytes, any object with the buffer protocol.
    /// Returns the bytes to send, with ``borders`` one unit. Raises ``LimitError`` if it is longer;
    /// an error changes nothing.
    #[pyo3(signature = (message, /))]
    fn encode<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = Bytes::of(message)?;
        let begin_ns = now_ns();
        self.out.clear();
        let (sender, out) = (self.sender.get(), &mut self.out);
        let sent = bytes.with(py, |m| with_contexts(|contexts| sender.encode(m, begin_ns, contexts, out)));
        let sent = sent.map_err(raised)?;
        self.sender.get().took(now_ns().saturating_sub(begin_ns));
        self.methods.count(&sent);
        self.traffic.messages += 1;
        self.traffic.raw_len += sent.raw_len as u64;
        self.traffic.wire_len += self.out.len() as u64;
        Ok(PyBytes::new(py, &self.out))
    }

    /// Uses a dictionary, from its second announcement on. Returns false unless ``delivery`` is
    /// ``fanout``.
    #[pyo3(signature = (dictionary))]
    fn offer(&mut self, dictionary: &Dictionary) -> bool {
        self.sender.get().offer(Arc::clone(&dictionary.0), false)
    }

    /// Returns bytes that announce dictionaries to readers (``fanout`` only). Send them after each
    /// new dictionary, and every 10 seconds.
    fn announce<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.out.clear();
        self.sender.get().announce(&mut self.out).map_err(raised)?;
        self.traffic.wire_len += self.out.len() as u64;
        Ok(PyBytes::new(py, &self.out))
    }

    /// Starts a new flow for another decoder.
    #[pyo3(signature = (epoch = None))]
    fn restart(&mut self, epoch: Option<u64>) {
        self.sender.get().reconnect(epoch.unwrap_or_else(new_epoch));
    }

    /// ``Stats`` of what was encoded.
    #[getter]
    fn sent(&self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.traffic, &self.methods)
    }
}

/// Decodes the output of a ``MessageEncoder``. The arguments are those of ``MessageEnd``.
#[pyclass(module = "narrows")]
pub(crate) struct MessageDecoder {
    receiver: MessageReceiver,
    borders: bool,
    input: Input,
    traffic: Traffic,
}

#[pymethods]
impl MessageDecoder {
    #[new]
    #[pyo3(signature = (
        *, delivery = "ordered", borders = false, message_max = MESSAGE_MAX, history = 16 << 10,
        dictionary_max = DICTIONARY_MAX, slots = SLOTS, check_all = false, known = Vec::new(),
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        delivery: &str,
        borders: bool,
        message_max: usize,
        history: usize,
        dictionary_max: usize,
        slots: usize,
        check_all: bool,
        known: Vec<PyRef<'_, Dictionary>>,
    ) -> PyResult<Self> {
        let settings = Settings {
            delivery,
            borders,
            duplex: false,
            message_max,
            history,
            dictionary_max,
            slots,
            epoch: Some(0),
            check_all,
            seed: None,
            known,
        };
        let receiver = settings.config().and_then(MessageReceiver::new).map_err(raised)?;
        Ok(Self { receiver, borders, input: Input::default(), traffic: Traffic::default() })
    }

    /// Decodes received bytes; returns the messages in order. Without borders, an incomplete
    /// message waits for the rest; with borders, pass one unit.
    ///
    /// Raises ``CorruptError`` (also if the history differs from the encoder's, since there is no
    /// way to request it: the encoder has to ``restart``), ``TruncatedError``, ``LimitError`` or
    /// ``UnsupportedError``. Messages before the error are returned first; the next call raises. A
    /// message whose dictionary is unknown is dropped and counted in ``undecodable``.
    #[pyo3(signature = (data, /))]
    fn decode<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = Bytes::of(data)?;
        let Self { receiver, borders, input, traffic } = self;
        let messages = bytes.with(py, |b| {
            if *borders && b.is_empty() {
                return Err(narrows::Error::truncated("a unit is empty"));
            }
            let read = input.read(b, |rest| decode(py, receiver, rest, traffic));
            if *borders {
                // The next unit is independent of this one.
                if let Some(error) = std::mem::take(input).error
                    && read.is_ok()
                {
                    return Err(error);
                }
            }
            read
        });
        PyList::new(py, messages.map_err(raised)?)
    }

    /// Number of received messages that could not be decoded.
    #[getter]
    fn undecodable(&self) -> u64 {
        self.receiver.undecodable()
    }

    /// ``Stats`` of what was decoded.
    #[getter]
    fn received(&self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.traffic, &Methods::default())
    }
}

fn decode(py: Python<'_>, receiver: &mut MessageReceiver, rest: &[u8], traffic: &mut Traffic) -> narrows::Result<Step> {
    with_contexts(|contexts| {
        let step = receiver.receive(rest, contexts)?;
        traffic.wire_len += step.consumed as u64;
        Ok(match step.event {
            Event::Incomplete => Step::Incomplete,
            Event::Message(message) => {
                traffic.messages += 1;
                traffic.raw_len += message.len() as u64;
                Step::Message(PyBytes::new(py, message).unbind(), step.consumed)
            }
            Event::Undecodable(_) | Event::Control(_) | Event::Nothing => Step::Other(step.consumed),
        })
    })
}
