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

/// Carrier and history are those of a topic.
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

/// The writing end of a topic: any number of readers, which come when they like and answer nothing, as with PUB and SUB of ZeroMQ. No I/O:
/// each bytes object that it gives is one unit of a carrier that keeps borders.
///
/// Before every ``send``, and again in ``wakeup_in`` seconds, send what ``announcement`` gives. Dictionaries are announced so, and used from the
/// second time on; one that saves less than its announcements cost is put away until it pays again. Several writers may share a
/// topic.
///
/// ``policy``: by which rule methods are chosen, ``messages[:latency_us=US][,cpu_percent=PERCENT]`` or ``fixed:METHOD``. ``message_max``:
/// longest message in bytes, 65,535 at most. ``epoch``: tells this writer from others, by default drawn. ``check_all``: a check on
/// every unit, for carriers that damage what they carry.
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

    /// The unit that sends a message of 0 to ``message_max`` bytes, any object with the buffer protocol. Raises ``LimitError`` if it is
    /// longer; nothing has changed then.
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

    /// The unit that tells readers what they need to decode, if it is due, else ``None``.
    fn announcement<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.out.clear();
        let is_due = self.writer.get().announcement(now_ns(), &mut self.out);
        is_due.then(|| PyBytes::new(py, &self.out))
    }

    /// A reader came, or one may have come: the next announcement is due at once, or a second after the last one.
    fn reader_came(&mut self) {
        self.writer.get().reader_came();
    }

    /// Seconds until ``announcement`` gives something although nothing is sent, or ``None``.
    #[getter]
    fn wakeup_in(&mut self) -> Option<f64> {
        seconds_until(self.writer.get().next_wakeup_ns())
    }

    /// Uses a dictionary from elsewhere, once it was announced twice: of messages that every reader may see.
    fn offer(&mut self, dictionary: &Dictionary) -> bool {
        self.writer.get().offer(Arc::clone(&dictionary.0))
    }

    /// Samples what is sent from now on, for ``training``.
    fn sample(&mut self) {
        self.writer.get().sample();
    }

    /// A training if one is due; run it on a thread of its own and give the result to ``trained``.
    fn training(&mut self) -> Option<Training> {
        self.writer.get().training(now_ns()).map(Training)
    }

    /// Announces what came of a training, if it pays; whether it does.
    fn trained(&mut self, adoption: &Adoption) -> bool {
        self.writer.get().trained(adoption.take())
    }

    /// The dictionary in use, or ``None``.
    #[getter]
    fn dictionary(&mut self) -> Option<Dictionary> {
        self.writer.get().sender().dictionary().map(|d| Dictionary(Arc::clone(d)))
    }

    /// What was sent, announcements included, as ``Stats``.
    #[getter]
    fn sent(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.writer.get().sent(), &self.methods)
    }
}

/// The reading end of a topic, without I/O: give it the units that came.
///
/// What cannot be decoded before something is announced waits, and what came behind it too, so that messages are given in the order in which
/// they came: 1,024 messages, 1 MiB and 25 seconds at most; what is dropped then is counted in ``unannounced``. Who may write to a topic can so
/// make its readers wait.
///
/// ``message_max``: longest message in bytes. ``dictionary_max``: longest dictionary taken from a writer. ``check_all``: units without a check are
/// errors. ``known``: dictionaries that are here already.
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

    /// The messages that are complete with a unit that came: none, one, or all that waited. Raises ``CorruptError``, ``TruncatedError``,
    /// ``LimitError`` or ``UnsupportedError`` if it is no unit or was damaged; the next one can be read.
    #[pyo3(signature = (unit, /))]
    fn receive<'py>(&mut self, py: Python<'py>, unit: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = Bytes::of(unit)?;
        let (reader, mut messages) = (self.reader.get(), Vec::new());
        // To make a bytes object runs no Python code.
        let deliver = |m: &[u8]| messages.push(PyBytes::new(py, m));
        let result = bytes.with(py, |unit| with_contexts(|contexts| reader.receive(unit, now_ns(), contexts, deliver)));
        match result {
            // Only what waited can come with an error; it must not be lost.
            Err(error) if messages.is_empty() => Err(raised(error)),
            _ => PyList::new(py, messages),
        }
    }

    /// Waits no more for what was not announced in time: the messages that came behind it.
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

    /// Messages that wait for an announcement.
    #[getter]
    fn waiting(&mut self) -> usize {
        self.reader.get().waiting()
    }

    /// Messages that were dropped because their dictionary was not announced in time.
    #[getter]
    fn unannounced(&mut self) -> u64 {
        self.reader.get().missed().unannounced
    }

    /// Units that were none, or damaged.
    #[getter]
    fn damaged(&mut self) -> u64 {
        self.reader.get().missed().damaged
    }

    /// What was received, as ``Stats``.
    #[getter]
    fn received(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.reader.get().received(), &Methods::default())
    }
}
