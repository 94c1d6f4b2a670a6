//! The writing end of a stream.

use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narrows::sender::Summary;
use narrows::stream::{self, Control, SendOptions};
use narrows::transport::Link;
use narrows::{Error, ErrorKind};
use pyo3::exceptions::PyBlockingIOError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use super::exchange::Exchange;
use super::{limit, sending, threads};
use crate::buffer::Bytes;
use crate::error::raised;
use crate::sys;

/// Smaller writes gather until there are so many bytes, or `flush`.
const GATHER: usize = 64 << 10;
/// Longer ones are copied piece by piece, so that the engine begins before all is copied.
const PIECE_MAX: usize = 256 << 10;
/// Waits give Python the chance to handle a signal so often.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// `flush` looks first after so long, then after twice as long, and so on up to the second.
const FLUSH_LOOK: Duration = Duration::from_micros(50);
const FLUSH_LOOK_MAX: Duration = Duration::from_millis(5);
/// A flow that was told to stop looks every 50 ms; what it writes to may keep it a little longer.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Private: ``NarrowsFile`` and ``NarrowsSocket`` are in front of it, and let one call in at a time.
#[pyclass(module = "narrows._narrows")]
pub(crate) struct Writer {
    exchange: Arc<Exchange>,
    control: Arc<Control>,
    /// Bytes that gather.
    pending: Vec<u8>,
    /// Raw bytes handed over.
    pushed: u64,
    /// Called with wire bytes; none if the engine writes a descriptor.
    sink: Option<Py<PyAny>>,
    timeout: Option<Duration>,
    process: u32,
    closed: bool,
    failed: bool,
    last: Option<Summary>,
}

#[pymethods]
impl Writer {
    /// To a descriptor, which it owns from now on, or to the callable `sink`.
    #[new]
    #[pyo3(signature = (policy, *, threads, descriptor, kind, duplex, sink, index, check, timeout))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        policy: &str,
        threads: Option<usize>,
        descriptor: Option<i32>,
        kind: &str,
        duplex: bool,
        sink: Option<Py<PyAny>>,
        index: bool,
        check: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let exchange = Arc::new(Exchange::default());
        let link = match descriptor {
            Some(descriptor) => sys::link(descriptor, kind).map_err(raised)?,
            None => Link::writer(exchange.outlet()),
        };
        let link = if link.is_duplex() && !duplex { link.split().0 } else { link };
        let threads = self::threads(threads, stream::encoders).map_err(raised)?;
        let (mut sender, policy) = sending(policy, threads).map_err(raised)?;
        (sender.index, sender.check) = (index, check);
        let options = SendOptions { sender, policy, threads, stall_timeout: None, trace: None, on_note: None };
        let control = Arc::new(Control::default());
        let (theirs, stop) = (Arc::clone(&exchange), Arc::clone(&control));
        let flow = move || {
            let sent = stream::send_blocks(theirs.source(), link, options, &stop);
            theirs.finish(sent.map(|(summary, _)| summary));
        };
        std::thread::Builder::new().name("narrows-flow".into()).spawn(flow)?;
        Ok(Self {
            exchange,
            control,
            pending: Vec::new(),
            pushed: 0,
            sink,
            timeout: limit(timeout)?,
            process: process::id(),
            closed: false,
            failed: false,
            last: None,
        })
    }

    /// Raises what `Writer` would of these arguments: for before a file is emptied.
    #[staticmethod]
    fn validate(policy: &str, threads: Option<usize>, timeout: Option<f64>) -> PyResult<()> {
        limit(timeout)?;
        let threads = self::threads(threads, stream::encoders).map_err(raised)?;
        sending(policy, threads).map(drop).map_err(raised)
    }

    /// Takes all bytes and says how many; most are on their way when it returns, not written. `gather`: few bytes may
    /// wait for others.
    #[pyo3(signature = (data, gather, /))]
    fn write(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>, gather: bool) -> PyResult<usize> {
        self.check()?;
        let bytes = Bytes::of(data)?;
        let len = bytes.len();
        if gather && self.pending.len() + len < GATHER {
            bytes.with(py, |b| self.pending.extend_from_slice(b));
        } else {
            self.push_pending(py)?;
            self.push(py, &bytes)?;
        }
        if self.sink.is_some() {
            self.drain(py)?;
        }
        Ok(len)
    }

    /// Waits until all that was written is in the hands of the file, the socket or the object.
    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        self.push_pending(py)?;
        let mut patience = Patience::new(self.timeout);
        let mut look = FLUSH_LOOK;
        loop {
            // First, so that what it tells of is there to be passed on.
            let now = self.control.send_summary();
            if self.drain(py)? {
                patience.progress();
            }
            if now.raw_bytes >= self.pushed && now.accepted_bytes >= now.wire_bytes {
                return Ok(());
            }
            patience.at(now.accepted_bytes);
            let exchange = &self.exchange;
            if py.detach(|| exchange.wait(look)) {
                return Err(self.fail());
            }
            look = (2 * look).min(FLUSH_LOOK_MAX);
            self.pause(py, &mut patience)?;
        }
    }

    /// Ends the stream and waits until all is written and, where the peer confirms, confirmed. Once; then it does
    /// nothing.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.closed {
            return Ok(());
        }
        if process::id() != self.process {
            self.closed = true;
            return Err(raised(other_process()));
        }
        if !self.failed && !self.exchange.is_over() {
            self.push_pending(py)?;
        }
        self.exchange.end();
        let mut patience = Patience::new(self.timeout);
        loop {
            if self.drain(py)? {
                patience.progress();
            }
            let exchange = &self.exchange;
            if py.detach(|| exchange.wait(SIGNALS_EVERY)) {
                break;
            }
            patience.at(self.control.send_summary().accepted_bytes);
            self.pause(py, &mut patience)?;
        }
        self.drain(py)?;
        self.closed = true;
        match self.exchange.take_result() {
            Some(Ok(summary)) => self.last = Some(summary),
            Some(Err(error)) if !self.failed => {
                self.failed = true;
                return Err(raised(error));
            }
            // It was raised before.
            _ => {}
        }
        Ok(())
    }

    /// Ends the flow where it stands: what was not written is lost, and the stream has no end.
    fn abandon(&mut self, py: Python<'_>) {
        (self.closed, self.failed) = (true, true);
        self.control.stop();
        self.exchange.abandon();
        if process::id() == self.process {
            let exchange = &self.exchange;
            py.detach(|| {
                let begun = Instant::now();
                while !exchange.wait(SIGNALS_EVERY) && begun.elapsed() < STOP_WAIT {
                    exchange.take_wire();
                }
            });
        }
    }

    /// Seconds that a call may wait without progress; `None` for ever.
    fn set_timeout(&mut self, seconds: Option<f64>) -> PyResult<()> {
        self.timeout = limit(seconds)?;
        Ok(())
    }

    /// Totals so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = self.last.clone().unwrap_or_else(|| self.control.send_summary());
        let stats = PyDict::new(py);
        stats.set_item("raw_bytes", summary.raw_bytes)?;
        stats.set_item("wire_bytes", summary.wire_bytes)?;
        stats.set_item("blocks", summary.frames)?;
        stats.set_item("ratio", if summary.wire_bytes == 0 { 1.0 } else { summary.ratio() })?;
        stats.set_item("encode_cpu_seconds", summary.encode_cpu_ns as f64 / 1e9)?;
        let methods = PyDict::new(py);
        for row in &summary.mix {
            methods.set_item(narrows::policy::print_method(row.method, row.linked), row.raw_bytes)?;
        }
        stats.set_item("methods", methods)?;
        Ok(stats)
    }
}

/// Private: the engine's own driver over all of `data` at once, without the interpreter's lock, for comparisons.
/// Seconds that it took.
#[pyfunction]
pub(crate) fn drive(
    py: Python<'_>,
    data: PyBackedBytes,
    policy: &str,
    threads: Option<usize>,
    descriptor: i32,
    kind: &str,
) -> PyResult<f64> {
    let source = std::io::Cursor::new(data);
    let link = sys::link(descriptor, kind).map_err(raised)?;
    let threads = self::threads(threads, stream::encoders).map_err(raised)?;
    py.detach(|| {
        let begun = Instant::now();
        let (sender, policy) = sending(policy, threads)?;
        let options = SendOptions { sender, policy, threads, stall_timeout: None, trace: None, on_note: None };
        let link = if link.is_duplex() { link.split().0 } else { link };
        stream::send(source, link, options, &Arc::new(Control::default()))?;
        Ok(begun.elapsed().as_secs_f64())
    })
    .map_err(raised)
}

impl Writer {
    fn check(&mut self) -> PyResult<()> {
        if process::id() != self.process {
            return Err(raised(other_process()));
        }
        if self.exchange.is_over() { Err(self.fail()) } else { Ok(()) }
    }

    /// Why the flow is over, though nobody ended it.
    fn fail(&mut self) -> PyErr {
        self.failed = true;
        match self.exchange.take_result() {
            Some(Err(error)) => raised(error),
            _ => raised(Error::misuse("the stream has failed already")),
        }
    }

    /// Hands over what has gathered. Should it raise, what was not handed over is kept.
    fn push_pending(&mut self, py: Python<'_>) -> PyResult<()> {
        let mut patience = Patience::new(self.timeout);
        while !self.pending.is_empty() {
            let n = self.exchange.push(&self.pending);
            self.pending.drain(..n);
            self.pushed(py, n, &mut patience)?;
        }
        Ok(())
    }

    /// Hands over bytes that Python holds. They are copied while no other thread can change them, and waited for
    /// without the lock.
    fn push(&mut self, py: Python<'_>, bytes: &Bytes<'_, '_>) -> PyResult<()> {
        let mut patience = Patience::new(self.timeout);
        let mut at = 0;
        while at < bytes.len() {
            let n = bytes.with(py, |b| self.exchange.push(&b[at..(at + PIECE_MAX).min(b.len())]));
            at += n;
            self.pushed(py, n, &mut patience)?;
        }
        Ok(())
    }

    /// So many bytes were handed over; if there were none, waits a little for room.
    fn pushed(&mut self, py: Python<'_>, n: usize, patience: &mut Patience) -> PyResult<()> {
        self.pushed += n as u64;
        if n > 0 {
            patience.progress();
            return Ok(());
        }
        if self.exchange.is_over() {
            return Err(self.fail());
        }
        if self.drain(py)? {
            patience.progress();
        }
        let exchange = &self.exchange;
        py.detach(|| exchange.wait_room(SIGNALS_EVERY));
        patience.at(self.control.send_summary().accepted_bytes);
        self.pause(py, patience)
    }

    /// Passes wire bytes on to the Python object; whether there were any.
    fn drain(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(sink) = &self.sink else { return Ok(false) };
        let wire = self.exchange.take_wire();
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let written = match sink.bind(py).call1((PyBytes::new(py, rest),)) {
                Ok(written) => written.extract::<usize>().unwrap_or(rest.len()),
                Err(e) => {
                    // What it did not take is lost, so the stream is.
                    self.failed = true;
                    self.control.stop();
                    self.exchange.abandon();
                    return Err(e);
                }
            };
            if written == 0 {
                return Err(PyBlockingIOError::new_err("the object takes no bytes"));
            }
            rest = &rest[written.min(rest.len())..];
        }
        Ok(!wire.is_empty())
    }

    fn pause(&self, py: Python<'_>, patience: &mut Patience) -> PyResult<()> {
        py.check_signals()?;
        patience.check()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.closed {
            self.control.stop();
            self.exchange.abandon();
        }
    }
}

/// A time limit that all progress pushes on.
struct Patience {
    limit: Option<Duration>,
    since: Instant,
    at: u64,
}

impl Patience {
    fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: Instant::now(), at: 0 }
    }

    fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// So much is through.
    fn at(&mut self, bytes: u64) {
        if bytes != self.at {
            self.at = bytes;
            self.progress();
        }
    }

    fn check(&self) -> PyResult<()> {
        match self.limit {
            Some(limit) if self.since.elapsed() > limit => {
                let text = format!("nothing was taken for {} s", limit.as_secs_f64());
                let source = Some(std::io::ErrorKind::TimedOut.into());
                Err(raised(Error { source, ..Error::new(ErrorKind::Io, text) }))
            }
            _ => Ok(()),
        }
    }
}

fn other_process() -> Error {
    Error::misuse("the stream was opened in another process: its threads are there")
}
