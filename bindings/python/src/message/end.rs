//! Both directions of one end.

use std::sync::Arc;
use std::time::Duration;

use narrows::message::{self, Came, DICTIONARY_MAX, MESSAGE_MAX, SLOTS, Sent};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::settings::{Settings, new_epoch, policy};
use super::stats::{Methods, Stats};
use super::{Adoption, Dictionary, Input, Step, Training, now_ns, with_contexts};
use crate::buffer::Bytes;
use crate::error::raised;
use crate::own::Own;

/// Both directions of one end of a message link, without I/O: give what it makes to the connection, and what came to
/// it.
///
/// On a carrier with borders (``borders=True``: it delivers what was sent as units, as ZeroMQ and WebSockets do) each
/// bytes object that ``send`` and ``pending`` give is one unit, and each unit that came goes to ``receive_unit`` (or
/// ``receive``). Without borders (TCP) bytes are bytes, cut as one likes. After each reception, and before ``send``,
/// send what ``pending`` gives until it gives ``None``: answers, acknowledgements, messages that the peer lost.
///
/// ``policy``: by which rule methods are chosen, ``messages[:latency_us=US][,cpu_percent=PERCENT]`` or
/// ``fixed:METHOD``. ``delivery``: ``ordered`` (everything once and in order), ``unordered`` (may lose, repeat,
/// reorder) or ``fanout`` (many readers that answer nothing); the peer must be told the same of the carrier.
/// ``duplex``: the peer's flow comes back here. ``message_max``: longest message in bytes, 65,535 at most.
/// ``history``: bytes of history, 1,024 to 65,536 or 0. ``dictionary_max``, ``slots``: longest dictionary taken from
/// the peer in bytes, and how many. ``epoch``: number of this connection, by default drawn. ``check_all``: a check on
/// every frame. ``seed``: a dictionary with which the history begins. ``known``: dictionaries that need not be sent
/// here.
///
/// Calls take about a microsecond and keep the interpreter's lock, so calls of several threads come one after the
/// other; who sends from several threads has to write the units in the order in which they were made.
#[pyclass(module = "narrows")]
pub(crate) struct MessageEnd {
    end: Own<message::MessageEnd>,
    borders: bool,
    input: Input,
    /// What is made is put together here: no call but the first ones allocates.
    out: Vec<u8>,
    methods: Methods,
    last: Option<(Sent, u64)>,
    undecodable: u64,
    gaps: u64,
}

#[pymethods]
impl MessageEnd {
    #[new]
    #[pyo3(signature = (
        policy = "messages", *, delivery = "ordered", borders = false, duplex = true, message_max = MESSAGE_MAX,
        history = 16 << 10, dictionary_max = DICTIONARY_MAX, slots = SLOTS, epoch = None, check_all = false, seed = None,
        known = Vec::new(),
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        policy: &str,
        delivery: &str,
        borders: bool,
        duplex: bool,
        message_max: usize,
        history: usize,
        dictionary_max: usize,
        slots: usize,
        epoch: Option<u64>,
        check_all: bool,
        seed: Option<PyRef<'_, Dictionary>>,
        known: Vec<PyRef<'_, Dictionary>>,
    ) -> PyResult<Self> {
        let settings = Settings {
            delivery,
            borders,
            duplex,
            message_max,
            history,
            dictionary_max,
            slots,
            epoch,
            check_all,
            seed,
            known,
        };
        let made = settings.config().and_then(|config| message::MessageEnd::new(config, self::policy(policy)?));
        Ok(Self {
            end: Own::new(made.map_err(raised)?),
            borders,
            input: Input::default(),
            out: Vec::new(),
            methods: Methods::default(),
            last: None,
            undecodable: 0,
            gaps: 0,
        })
    }

    /// The bytes that send a message of 0 to ``message_max`` bytes, any object with the buffer protocol.
    ///
    /// Raises ``LimitError`` if it is longer than this end or the peer takes, and, on a carrier with borders,
    /// ``MisuseError`` if what ``pending`` gives has to be sent first. Nothing has changed then.
    #[pyo3(signature = (message, /))]
    fn send<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.encode(py, message, false)
    }

    /// As ``send``, for secrets: the message goes as it is and no later one is encoded with it, so that no length tells
    /// about it.
    #[pyo3(signature = (message, /))]
    fn send_private<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.encode(py, message, true)
    }

    /// The bytes of what has to be sent without a message, or ``None``: one unit. Call it until it gives ``None``.
    fn pending<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.out.clear();
        let (end, out) = (self.end.get(), &mut self.out);
        let any = with_contexts(|contexts| end.next_unit(now_ns(), contexts, out));
        any.then(|| PyBytes::new(py, out))
    }

    /// The messages in bytes that came, in order; without borders a part of one waits for the rest.
    ///
    /// Raises ``CorruptError``, ``TruncatedError``, ``LimitError`` or ``UnsupportedError``; messages before the fault
    /// are given first, then the next call raises. On a carrier with borders the end goes on afterwards, without
    /// borders the connection is of no more use. What cannot be decoded is dropped, counted in ``undecodable`` and,
    /// where that is possible, asked for with ``pending``.
    #[pyo3(signature = (data, /))]
    fn receive<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = Bytes::of(data)?;
        let messages = if self.borders {
            bytes.with(py, |unit| self.unit(py, unit)).map(Vec::from_iter)
        } else {
            let Self { end, input, undecodable, gaps, .. } = self;
            bytes.with(py, |b| input.read(b, |rest| decode(py, end.get(), rest, undecodable, gaps)))
        };
        PyList::new(py, messages.map_err(raised)?)
    }

    /// The message in a unit that came, or ``None`` if there was none for the application. Only on a carrier with
    /// borders; raises as ``receive``.
    #[pyo3(signature = (unit, /))]
    fn receive_unit(&mut self, py: Python<'_>, unit: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyBytes>>> {
        if !self.borders {
            return Err(raised(narrows::Error::misuse("a carrier without borders has no units: use receive")));
        }
        let bytes = Bytes::of(unit)?;
        bytes.with(py, |unit| self.unit(py, unit)).map_err(raised)
    }

    /// Tells the policy that the peer answered: ``seconds`` after the message was written, in which ``wire_len``
    /// bytes crossed the link one after the other. By default the message sent last, its length, and the time since
    /// it was sent.
    #[pyo3(signature = (seq = None, wire_len = None, seconds = None))]
    fn answered(&mut self, seq: Option<u64>, wire_len: Option<usize>, seconds: Option<f64>) -> PyResult<()> {
        let span_ns = match seconds {
            Some(s) => Some(Duration::try_from_secs_f64(s).map_err(|_| bad_span())?.as_nanos() as u64),
            None => self.last.map(|(_, sent_ns)| now_ns().saturating_sub(sent_ns)),
        };
        let seq = seq.or(self.last.map(|(sent, _)| sent.seq));
        let wire_len = wire_len.or(self.last.map(|(sent, _)| sent.wire_len + sent.control_len));
        let (Some(seq), Some(wire_len), Some(span_ns)) = (seq, wire_len, span_ns) else {
            return Err(raised(narrows::Error::misuse("no message was sent that could be answered")));
        };
        self.end.get().answered(seq, wire_len, span_ns);
        Ok(())
    }

    /// The connection is a new one and the peer knows nothing. Messages that were under way may be lost; what becomes
    /// of them is the caller's affair. For the sending direction; the peer's reconnection shows by itself.
    #[pyo3(signature = (epoch = None))]
    fn reconnect(&mut self, epoch: Option<u64>) {
        self.input = Input::default();
        self.end.get().reconnect(epoch.unwrap_or_else(new_epoch));
    }

    /// Offers a dictionary to the peer; it is used once the peer has it. ``ask``: the peer may have it from
    /// elsewhere, so it is sent only if the peer asks for it. False if the peer takes no such dictionaries.
    #[pyo3(signature = (dictionary, *, ask = false))]
    fn offer(&mut self, dictionary: &Dictionary, ask: bool) -> bool {
        self.end.get().sender_mut().offer(Arc::clone(&dictionary.0), ask)
    }

    /// Makes a dictionary of the last ``len`` bytes of the history. False if there is too little.
    fn pin(&mut self, len: usize) -> bool {
        self.end.get().sender_mut().pin(len)
    }

    /// Samples what is sent from now on, for ``training``.
    fn sample(&mut self) {
        self.end.get().sample();
    }

    /// A training if one is due; run it on a thread of its own and give the result to ``trained``.
    fn training(&mut self) -> Option<Training> {
        self.end.get().training(now_ns()).map(Training)
    }

    /// Offers what came of a training to the peer, if it pays; whether it does.
    fn trained(&mut self, adoption: &Adoption) -> bool {
        self.end.get().trained(adoption.take())
    }

    /// Bytes that announce dictionaries to the readers of a fan-out carrier: for each new one, and every 10 seconds.
    fn announce<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.out.clear();
        self.end.get().sender_mut().announce(&mut self.out).map_err(raised)?;
        Ok(PyBytes::new(py, &self.out))
    }

    /// The dictionary in use for what is sent, or ``None``.
    #[getter]
    fn dictionary(&mut self) -> Option<Dictionary> {
        self.end.get().sender().dictionary().map(|d| Dictionary(Arc::clone(d)))
    }

    /// Number of the message sent last, for ``answered``; ``None`` before the first.
    #[getter]
    fn last_seq(&self) -> Option<u64> {
        self.last.map(|(sent, _)| sent.seq)
    }

    /// Bytes that ``send`` gave last, as far as they are of the message and its control frames.
    #[getter]
    fn last_wire_len(&self) -> Option<usize> {
        self.last.map(|(sent, _)| sent.wire_len + sent.control_len)
    }

    /// How the message sent last was encoded, such as ``lz4:accel=1,link``; ``None`` before the first.
    #[getter]
    fn last_method(&self) -> Option<String> {
        self.last.map(|(sent, _)| narrows::policy::print_method(sent.method, sent.linked))
    }

    /// What was sent, as ``Stats``.
    #[getter]
    fn sent(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.end.get().sent(), &self.methods)
    }

    /// What was received, as ``Stats``.
    #[getter]
    fn received(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.end.get().received(), &Methods::default())
    }

    /// Messages that came and could not be decoded; on an ordered carrier they are asked for again.
    #[getter]
    fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// How often the peer missed messages that cannot be sent again: some are lost.
    #[getter]
    fn gaps(&self) -> u64 {
        self.gaps
    }
}

impl MessageEnd {
    /// The clock is read twice for a message: its time and what encoding took.
    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        message: &Bound<'py, PyAny>,
        private: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = Bytes::of(message)?;
        let begin_ns = now_ns();
        self.out.clear();
        let (end, out) = (self.end.get(), &mut self.out);
        let sent = bytes.with(py, |message| {
            with_contexts(|contexts| match private {
                false => end.send(message, begin_ns, contexts, out),
                true => end.send_private(message, begin_ns, contexts, out),
            })
        });
        let sent = sent.map_err(raised)?;
        self.end.get().took_to_encode(now_ns().saturating_sub(begin_ns));
        self.methods.count(&sent);
        self.last = Some((sent, begin_ns));
        Ok(PyBytes::new(py, &self.out))
    }

    fn unit(&mut self, py: Python<'_>, unit: &[u8]) -> narrows::Result<Option<Py<PyBytes>>> {
        if unit.is_empty() {
            return Err(narrows::Error::truncated("a unit is empty"));
        }
        let (mut rest, mut message) = (unit, None);
        while !rest.is_empty() {
            match decode(py, self.end.get(), rest, &mut self.undecodable, &mut self.gaps)? {
                // A frame takes what is left of its unit, so there is at most one.
                Step::Message(came, consumed) => (message, rest) = (Some(came), &rest[consumed..]),
                Step::Other(consumed) => rest = &rest[consumed..],
                Step::Incomplete => break,
            }
        }
        Ok(message)
    }
}

/// Reads one frame, and times it if it was a message. To make a bytes object runs no Python code.
fn decode(
    py: Python<'_>,
    end: &mut message::MessageEnd,
    rest: &[u8],
    undecodable: &mut u64,
    gaps: &mut u64,
) -> narrows::Result<Step> {
    let begin_ns = now_ns();
    let step = with_contexts(|contexts| -> narrows::Result<Step> {
        let received = end.receive(rest, contexts)?;
        let consumed = received.consumed;
        Ok(match received.came {
            Came::Incomplete => Step::Incomplete,
            Came::Message(message) => Step::Message(PyBytes::new(py, message).unbind(), consumed),
            Came::Undecodable(_) => {
                *undecodable += 1;
                Step::Other(consumed)
            }
            Came::Gap => {
                *gaps += 1;
                Step::Other(consumed)
            }
            Came::Nothing => Step::Other(consumed),
        })
    })?;
    if matches!(step, Step::Message(..)) {
        end.took_to_decode(now_ns().saturating_sub(begin_ns));
    }
    Ok(step)
}

fn bad_span() -> PyErr {
    raised(narrows::Error::misuse("seconds is a time span, 0 or more"))
}
