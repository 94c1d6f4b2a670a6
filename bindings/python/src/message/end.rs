//! Message ends: both directions of a link.

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

/// One end of a message link with both directions, without I/O: send the bytes that it returns, and
/// pass it the bytes that arrive.
///
/// On a carrier with borders (``borders=True``: it delivers units as they were sent, as ZeroMQ and
/// WebSockets do), each bytes object that ``send`` and ``pending`` return is one unit; pass each
/// unit that arrives to ``receive_unit`` or ``receive``. Without borders (TCP) the bytes may be
/// split anywhere. After each reception, and before ``send``, send what ``pending`` returns until
/// it returns ``None``: answers, acknowledgements, and messages that the peer lost.
///
/// - ``policy``: chooses the compression methods,
///   ``messages[:latency_us=US][,cpu_percent=PERCENT]`` or ``fixed:METHOD``.
/// - ``delivery``: ``ordered`` (everything once and in order), ``unordered`` (may lose, repeat,
///   reorder) or ``fanout`` (many readers without a back channel). Both ends must use the same
///   value.
/// - ``duplex``: the peer's flow is received by this end.
/// - ``message_max``: maximum length of a message in bytes, at most 65,535.
/// - ``history``: bytes of history, 1,024 to 65,536, or 0.
/// - ``dictionary_max``, ``slots``: maximum length in bytes, and number, of dictionaries accepted
///   from the peer.
/// - ``epoch``: number of this connection, by default random.
/// - ``check_all``: put a checksum on every frame.
/// - ``seed``: a dictionary that the history begins with.
/// - ``known``: dictionaries that need not be sent to this end.
///
/// Calls take about a microsecond and keep the interpreter's lock, so calls of several threads are
/// serialized. If several threads send, the units must be written in the order in which they were
/// made.
#[pyclass(module = "narrows")]
pub(crate) struct MessageEnd {
    end: Own<message::MessageEnd>,
    borders: bool,
    input: Input,
    /// Output buffer, kept so that only the first calls allocate.
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

    /// Encodes a message of 0 to ``message_max`` bytes, any object with the buffer protocol.
    /// Returns the bytes to send.
    ///
    /// Raises ``LimitError`` if it is longer than this end or the peer accepts, and, on a carrier
    /// with borders, ``MisuseError`` if the units of ``pending`` have to be sent first. An error
    /// changes nothing.
    #[pyo3(signature = (message, /))]
    fn send<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.encode(py, message, false)
    }

    /// As ``send``, for secrets: the message is sent uncompressed and kept out of the history, so
    /// that no compressed length reveals anything about it.
    #[pyo3(signature = (message, /))]
    fn send_private<'py>(&mut self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.encode(py, message, true)
    }

    /// Returns the next unit to send that carries no new message, or ``None``. Call it until it
    /// returns ``None``.
    fn pending<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.out.clear();
        let (end, out) = (self.end.get(), &mut self.out);
        let any = with_contexts(|contexts| end.next_unit(now_ns(), contexts, out));
        any.then(|| PyBytes::new(py, out))
    }

    /// Decodes received bytes; returns the messages in order. Without borders, an incomplete
    /// message waits for the rest.
    ///
    /// Raises ``CorruptError``, ``TruncatedError``, ``LimitError`` or ``UnsupportedError``.
    /// Messages before the error are returned first; the next call raises. On a carrier with
    /// borders the end can be used afterwards; without borders the connection cannot. Messages that
    /// cannot be decoded are dropped, counted in ``undecodable`` and, if possible, requested again
    /// by ``pending``.
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

    /// Decodes a received unit; returns its message, or ``None`` if it has none for the
    /// application. Only on a carrier with borders. Raises as ``receive`` does.
    #[pyo3(signature = (unit, /))]
    fn receive_unit(&mut self, py: Python<'_>, unit: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyBytes>>> {
        if !self.borders {
            return Err(raised(narrows::Error::misuse("a carrier without borders has no units: use receive")));
        }
        let bytes = Bytes::of(unit)?;
        bytes.with(py, |unit| self.unit(py, unit)).map_err(raised)
    }

    /// Tells the policy that the peer answered message ``seq``, ``seconds`` after it was written;
    /// ``wire_len`` bytes crossed the link one after the other in that time. Defaults: the last
    /// message sent, its length, and the time since it was sent.
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

    /// Starts a new connection, whose peer knows nothing of the old one. Messages in flight may be
    /// lost; resending them is up to the caller. Needed for the sending direction only: a
    /// reconnection of the peer is detected.
    #[pyo3(signature = (epoch = None))]
    fn reconnect(&mut self, epoch: Option<u64>) {
        self.input = Input::default();
        self.end.get().reconnect(epoch.unwrap_or_else(new_epoch));
    }

    /// Offers a dictionary to the peer; it is used once the peer has it. ``ask``: the peer may
    /// already have it, so its content is sent only on request. Returns false if the peer accepts
    /// no such dictionaries.
    #[pyo3(signature = (dictionary, *, ask = false))]
    fn offer(&mut self, dictionary: &Dictionary, ask: bool) -> bool {
        self.end.get().sender_mut().offer(Arc::clone(&dictionary.0), ask)
    }

    /// Makes a dictionary of the last ``len`` bytes of the history. Returns false if the history is
    /// shorter.
    fn pin(&mut self, len: usize) -> bool {
        self.end.get().sender_mut().pin(len)
    }

    /// Starts to sample sent messages for ``training``.
    fn sample(&mut self) {
        self.end.get().sample();
    }

    /// Returns a training if one is due, else ``None``. Run it on a separate thread and pass the
    /// result to ``trained``.
    fn training(&mut self) -> Option<Training> {
        self.end.get().training(now_ns()).map(Training)
    }

    /// Offers the dictionary of a training to the peer if it pays. Returns whether it does.
    fn trained(&mut self, adoption: &Adoption) -> bool {
        self.end.get().trained(adoption.take())
    }

    /// Returns bytes that announce dictionaries to the readers of a fan-out carrier. Send them
    /// after each new dictionary, and every 10 seconds.
    fn announce<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.out.clear();
        self.end.get().sender_mut().announce(&mut self.out).map_err(raised)?;
        Ok(PyBytes::new(py, &self.out))
    }

    /// The dictionary in use for sending, or ``None``.
    #[getter]
    fn dictionary(&mut self) -> Option<Dictionary> {
        self.end.get().sender().dictionary().map(|d| Dictionary(Arc::clone(d)))
    }

    /// Number of the last message sent, for ``answered``; ``None`` before the first.
    #[getter]
    fn last_seq(&self) -> Option<u64> {
        self.last.map(|(sent, _)| sent.seq)
    }

    /// Length in bytes of the last message sent with its control frames; ``None`` before the first.
    #[getter]
    fn last_wire_len(&self) -> Option<usize> {
        self.last.map(|(sent, _)| sent.wire_len + sent.control_len)
    }

    /// Method of the last message sent, such as ``lz4:accel=1,link``; ``None`` before the first.
    #[getter]
    fn last_method(&self) -> Option<String> {
        self.last.map(|(sent, _)| narrows::policy::print_method(sent.method, sent.linked))
    }

    /// ``Stats`` of what was sent.
    #[getter]
    fn sent(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.end.get().sent(), &self.methods)
    }

    /// ``Stats`` of what was received.
    #[getter]
    fn received(&mut self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, self.end.get().received(), &Methods::default())
    }

    /// Number of received messages that could not be decoded; on an ordered carrier they are
    /// requested again.
    #[getter]
    fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// How often the peer missed messages that can no longer be sent again: they are lost.
    #[getter]
    fn gaps(&self) -> u64 {
        self.gaps
    }
}

impl MessageEnd {
    /// Reads the clock twice for a message: for its time, and for the duration of encoding.
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
                // A message frame extends to the end of its unit, so there is at most one.
                Step::Message(came, consumed) => (message, rest) = (Some(came), &rest[consumed..]),
                Step::Other(consumed) => rest = &rest[consumed..],
                Step::Incomplete => break,
            }
        }
        Ok(message)
    }
}

/// Reads one frame, and measures the decoding time if it is a message. Making a bytes object runs
/// no Python code.
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
    raised(narrows::Error::misuse("seconds must be 0 or more"))
}
