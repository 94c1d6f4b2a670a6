//! The ends of a topic.

use std::sync::Arc;

use narrows::message::{self, DICTIONARY_MAX, MESSAGE_MAX, SLOTS};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::settings::{Settings, policy};
use super::stats::{Methods, Stats};
use super::{Adoption, Dictionary, Training, now_ns, with_contexts};
use crate::buffer::Bytes;
use crate::error::raised;
use crate::own::Own;

/// Settings with the carrier and history of a topic.
fn settings<'py>(
    message_max: usize,
    dictionary_max: usize,
    epoch: Option<u64>,
    check_all: bool,
    known: Vec<PyRef<'py, Dictionary>>,
) -> Settings<'py> {
    Settings {
        delivery: "fanout",
        borders: true,
        duplex: false,
        message_max,
        history: 0,
        dictionary_max,
        slots: SLOTS,
        epoch,
        check_all,
        seed: None,
        known,
    }
}

fn seconds_until(at_ns: Option<u64>) -> Option<f64> {
    at_ns.map(|at| at.saturating_sub(now_ns()) as f64 * 1e-9)
}

/// The writing end of a topic: any number of readers, which may join at any time and send nothing
/// back, as with PUB and SUB of ZeroMQ. Without I/O: each bytes object that it returns is one unit
/// of a carrier that preserves borders.
///
/// Before every ``send``, and again after ``wakeup_in`` seconds, send the unit of ``announcement``.
/// It announces dictionaries, which are used from their second announcement on; a dictionary that
/// saves less than its announcements cost is set aside until it pays again. Several writers may
/// share a topic.
///
/// - ``policy``: chooses the compression methods,
///   ``messages[:latency_us=US][,cpu_percent=PERCENT]`` or ``fixed:METHOD``.
/// - ``message_max``: maximum length of a message in bytes, at most 65,535.
/// - ``epoch``: distinguishes this writer from others, by default random.
/// - ``check_all``: put a checksum on every unit, for carriers that may damage data.
#[pyclass(module = "narrows")]
pub(crate) struct TopicWriter {
    writer: Own<message::TopicWriter>,
    out: Vec<u8>,
    methods: Methods,
}

#[pymethods]
impl TopicWriter {
    #[new]
    #[pyo3(signature = (policy = "messages", *, message_max = MESSAGE_MAX, epoch = None, check_all = false))]
    fn new(policy: &str, message_max: usize, epoch: Option<u64>, check_all: bool) -> PyResult<Self> {
        let settings = settings(message_max, DICTIONARY_MAX, epoch, check_all, Vec::new());
        let made = settings.config().and_then(|config| message::TopicWriter::new(config, self::policy(policy)?));
        Ok(Self { writer: Own::new(made.map_err(raised)?), out: Vec::new(), methods: Methods::default() })
    }

    /// Encodes a message of 0 to ``message_max`` bytes, any object with the buffer protocol.
    /// Returns the unit to send. Raises ``LimitError`` if it is longer; an error changes nothing.
    #[pyo3(signature = (message, /))]
    fn send<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = Bytes::of(message)?;
        let begin_ns = now_ns();
        self.out.clear();
        let (writer, out) = (self.writer.get(), &mut self.out);
        let sent = bytes.with(py, |m| with_contexts(|contexts| writer.send(m, begin_ns, contexts, out)));
        let sent = sent.map_err(raised)?;
        self.writer.get().sender_mut().took(now_ns().saturating_sub(begin_ns));
        self.methods.count(&sent);
        Ok(PyBytes::new(py, &self.out))
    }

    /// Returns the announcement that readers need for decoding, if it is due, else ``None``.
    fn announcement<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.out.clear();
        let is_due = self.writer.get().announcement(now_ns(), &mut self.out);
        is_due.then(|| PyBytes::new(py, &self.out))
    }

    /// States that a reader joined, or may have joined: the next announcement is due at once, or a
    /// second after the last one.
    fn reader_came(&mut self) {
        self.writer.get().reader_came();
    }

    /// Seconds until an ``announcement`` is due even if nothing is sent, or ``None``.
    #[getter]
    fn wakeup_in(&mut self) -> Option<f64> {
        seconds_until(self.writer.get().next_wakeup_ns())
    }

    /// Uses a dictionary of the caller, from its second announcement on. Every reader gets its
    /// content. Returns whether it is accepted.
    fn offer(&mut self, dictionary: &Dictionary) -> bool {
        self.writer.get().offer(Arc::clone(&dictionary.0))
    }

    /// Starts to sample sent messages for ``training``.
    fn sample(&mut self) {
        self.writer.get().sample();
    }

    /// Returns a training if one is due, else ``None``. Run it on a separate thread and pass the
    /// result to ``trained``.
    fn training(&mut self) -> Option<Training> {
        self.writer.get().training(now_ns()).map(Training)
    }

    /// Announces the dictionary of a training if it pays. Returns whether it does.
    fn trained(&mut self, adoption: &Adoption) -> bool {
        self.writer.get().trained(adoption.take())
    }

    /// The dictionary in use, or ``None``.
    #[getter]
    fn dictionary(&mut self) -> Option<Dictionary> {
        self.writer.get().sender().dictionary().map(|d| Dictionary(Arc::clone(d)))
    }

    /// ``Stats`` of what was sent, announcements included.
    #[getter]
    fn sent(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.writer.get().sent(), &self.methods)
    }
}

/// The reading end of a topic, without I/O: pass it the units that arrive.
///
/// Messages that need an announcement wait for it, and so do the messages after them, so that
/// messages are returned in the order of their arrival. At most 1,024 messages, 1 MiB and 25
/// seconds; messages dropped after that are counted in ``unannounced``. So whoever may write to a
/// topic can delay its readers.
///
/// - ``message_max``: maximum length of a message in bytes.
/// - ``dictionary_max``: maximum length in bytes of a dictionary accepted from a writer.
/// - ``check_all``: units without a checksum are errors.
/// - ``known``: dictionaries that this reader already has.
#[pyclass(module = "narrows")]
pub(crate) struct TopicReader {
    reader: Own<message::TopicReader>,
}

#[pymethods]
impl TopicReader {
    #[new]
    #[pyo3(signature = (
        *, message_max = MESSAGE_MAX, dictionary_max = DICTIONARY_MAX, check_all = false, known = Vec::new(),
    ))]
    fn new(
        message_max: usize,
        dictionary_max: usize,
        check_all: bool,
        known: Vec<PyRef<'_, Dictionary>>,
    ) -> PyResult<Self> {
        let settings = settings(message_max, dictionary_max, None, check_all, known);
        let made = settings.config().and_then(message::TopicReader::new);
        Ok(Self { reader: Own::new(made.map_err(raised)?) })
    }

    /// Reads a unit; returns the messages that it completes: none, one, or all that waited. Raises
    /// ``CorruptError``, ``TruncatedError``, ``LimitError`` or ``UnsupportedError`` if the unit is
    /// invalid or damaged; the next one can be read.
    #[pyo3(signature = (unit, /))]
    fn receive<'py>(&mut self, py: Python<'py>, unit: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = Bytes::of(unit)?;
        let (reader, mut messages) = (self.reader.get(), Vec::new());
        // Making a bytes object runs no Python code.
        let deliver = |m: &[u8]| messages.push(PyBytes::new(py, m));
        let result = bytes.with(py, |unit| with_contexts(|contexts| reader.receive(unit, now_ns(), contexts, deliver)));
        match result {
            // Messages that come with an error had waited for the unit; they must not be lost.
            Err(error) if messages.is_empty() => Err(raised(error)),
            _ => PyList::new(py, messages),
        }
    }

    /// Drops messages that were not announced in time; returns the messages that waited after
    /// them.
    fn on_time<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (reader, mut messages) = (self.reader.get(), Vec::new());
        with_contexts(|contexts| reader.on_time(now_ns(), contexts, |m| messages.push(PyBytes::new(py, m))));
        PyList::new(py, messages)
    }

    /// Seconds until ``on_time`` has something to do, or ``None``.
    #[getter]
    fn wakeup_in(&mut self) -> Option<f64> {
        seconds_until(self.reader.get().next_wakeup_ns())
    }

    /// Number of messages that wait for an announcement.
    #[getter]
    fn waiting(&mut self) -> usize {
        self.reader.get().waiting()
    }

    /// Number of messages dropped because their dictionary was not announced in time.
    #[getter]
    fn unannounced(&mut self) -> u64 {
        self.reader.get().missed().unannounced
    }

    /// Number of units that were invalid or damaged.
    #[getter]
    fn damaged(&mut self) -> u64 {
        self.reader.get().missed().damaged
    }

    /// ``Stats`` of what was received.
    #[getter]
    fn received(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.reader.get().received(), &Methods::default())
    }
}
