//! The writing end of a stream.

use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narrows::Error;
use narrows::stream::{self, Control};
use narrows::transport::Link;
use pyo3::exceptions::{PyBlockingIOError, PyOSError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::exchange::Exchange;
use super::totals::{Sent, SentTotals};
use super::{limit, other_process, sending, storing, threads};
use crate::buffer::Bytes;
use crate::error::{Kept, raised};
use crate::sys;

/// Smaller writes are gathered until there are this many bytes, or until `flush`.
const GATHER: usize = 64 << 10;
/// Longer writes are copied in pieces of this many bytes, so that the engine starts before all is
/// copied.
const PIECE_MAX: usize = 256 << 10;
/// Interval at which waits let Python handle signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// First interval at which `flush` polls; it doubles up to [`FLUSH_LOOK_MAX`].
const FLUSH_LOOK: Duration = Duration::from_micros(50);
const FLUSH_LOOK_MAX: Duration = Duration::from_millis(5);
/// A stopped flow notices within 50 ms; a blocking write may keep it a little longer.
const STOP_WAIT: Duration = Duration::from_secs(1);
/// EAGAIN of Linux: a non-blocking object has no room now.
const EAGAIN: i32 = 11;

/// Private: used by ``NarrowsFile`` and ``NarrowsSocket``, which admit one call at a time.
#[pyclass(module = "narrows._narrows")]
pub(crate) struct Writer {
    exchange: Arc<Exchange>,
    control: Arc<Control>,
    totals: Arc<Sent>,
    /// Gathered bytes.
    pending: Vec<u8>,
    /// Raw bytes handed over.
    pushed: u64,
    /// Called with wire bytes; `None` if the engine writes to a descriptor.
    sink: Option<Py<PyAny>>,
    /// Wire bytes for the sink, and how many of them it took.
    unsent: Vec<u8>,
    sent: usize,
    timeout: Option<Duration>,
    process: u32,
    /// `close` was called; it may have to be called again.
    ending: bool,
    closed: bool,
    /// The failure after which nothing more is written.
    failed: Option<Kept>,
}

/// Result of passing wire bytes to a Python object.
enum Passed {
    Nothing,
    Some,
    /// The object has no room now.
    Refused,
}

#[pymethods]
impl Writer {
    /// Writes to a descriptor, which it takes over, or to the callable `sink`.
    #[new]
    #[pyo3(signature = (
        policy, *, threads, descriptor, kind, duplex, sink, index, check, timeout, preset=None, encode_rate=None
    ))]
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
        preset: Option<&str>,
        encode_rate: Option<u64>,
    ) -> PyResult<Self> {
        let exchange = Arc::new(Exchange::default());
        let link = match descriptor {
            Some(descriptor) => sys::link(descriptor, kind).map_err(raised)?,
            None => Link::writer(exchange.outlet()),
        };
        let link = if link.is_duplex() && !duplex { link.split().0 } else { link };
        let timeout = limit(timeout)?;
        let threads = self::threads(threads, stream::encoders).map_err(raised)?;
        let control = Arc::new(Control::default());
        let options = match preset {
            Some(preset) => storing(preset, encode_rate, threads),
            None => sending(policy, threads),
        };
        let options = options.map_err(raised)?.index(index).check(check).control(&control);
        let totals = Arc::new(Sent::new(Arc::clone(&control)));
        let (theirs, seen) = (Arc::clone(&exchange), Arc::clone(&totals));
        let flow = move || {
            let sent = stream::send_blocks(theirs.source(Arc::clone(&seen)), link, options);
            let result = sent.map(|(summary, _)| {
                seen.keep(summary);
            });
            seen.look();
            theirs.finish(result);
        };
        std::thread::Builder::new().name("narrows-flow".into()).spawn(flow)?;
        Ok(Self {
            exchange,
            control,
            totals,
            pending: Vec::new(),
            pushed: 0,
            sink,
            unsent: Vec::new(),
            sent: 0,
            timeout,
            process: process::id(),
            ending: false,
            closed: false,
            failed: None,
        })
    }

    /// Raises the errors that `Writer` would raise for these arguments, before a file is truncated.
    #[staticmethod]
    #[pyo3(signature = (policy, threads, timeout, preset=None, encode_rate=None))]
    fn validate(
        policy: &str,
        threads: Option<usize>,
        timeout: Option<f64>,
        preset: Option<&str>,
        encode_rate: Option<u64>,
    ) -> PyResult<()> {
        limit(timeout)?;
        let threads = self::threads(threads, stream::encoders).map_err(raised)?;
        sending(policy, threads).map(drop).map_err(raised)?;
        preset.map_or(Ok(()), |preset| storing(preset, encode_rate, threads).map(drop)).map_err(raised)
    }

    /// Takes all bytes and returns their number. They need not be written when it returns.
    /// `gather`: a few bytes may wait for more. If it raises, `position` tells how many bytes it
    /// took.
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
            // Bytes that the object has no room for wait here.
            self.drain(py)?;
        }
        Ok(len)
    }

    /// Waits until the file, the socket or the object has everything that was written.
    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        self.push_pending(py)?;
        let mut patience = Patience::new(self.timeout);
        let mut look = FLUSH_LOOK;
        loop {
            // Before `pass_on`, so that the bytes in this summary are there to be passed on.
            self.control.flush();
            let now = self.control.send_summary();
            self.pass_on(py, 0, &mut patience)?;
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

    /// Ends the stream and waits until everything is written and, if the peer confirms, confirmed.
    /// A second call does nothing. After `BlockingIOError` it can be called again.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.closed {
            return Ok(());
        }
        if process::id() != self.process {
            self.closed = true;
            return Err(raised(other_process()));
        }
        if self.failed.is_none() && !self.exchange.is_over() {
            self.push_pending(py)?;
        }
        self.ending = true;
        self.exchange.end();
        let mut patience = Patience::new(self.timeout);
        loop {
            self.pass_on(py, 0, &mut patience)?;
            let exchange = &self.exchange;
            if py.detach(|| exchange.wait(SIGNALS_EVERY)) {
                break;
            }
            patience.at(self.control.send_summary().accepted_bytes);
            self.pause(py, &mut patience)?;
        }
        self.pass_on(py, 0, &mut patience)?;
        self.closed = true;
        match self.exchange.take_result() {
            Some(Err(error)) if self.failed.is_none() => Err(self.failed.insert(Kept::new(&error)).raised()),
            // Any other failure was raised before.
            _ => Ok(()),
        }
    }

    /// Aborts the flow: unwritten bytes are lost, and the stream has no end.
    fn abandon(&mut self, py: Python<'_>) {
        self.closed = true;
        self.failed.get_or_insert_with(|| Kept::new(&Error::misuse("the stream was abandoned")));
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

    /// Seconds that a call may wait without progress; `None` is no limit.
    fn set_timeout(&mut self, seconds: Option<f64>) -> PyResult<()> {
        self.timeout = limit(seconds)?;
        Ok(())
    }

    /// Number of raw bytes taken.
    #[getter]
    fn position(&self) -> u64 {
        self.pushed + self.pending.len() as u64
    }

    #[getter]
    fn totals(&self) -> SentTotals {
        SentTotals(Arc::clone(&self.totals))
    }

    /// For garbage collection of reference cycles.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.sink.as_ref().map_or(Ok(()), |sink| visit.call(sink))
    }
}

/// Private: runs the engine's own driver over all of `data` at once, without the interpreter's
/// lock, for comparisons. Returns the seconds that it took.
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
        let options = sending(policy, threads)?;
        let link = if link.is_duplex() { link.split().0 } else { link };
        stream::send(source, link, options)?;
        Ok(begun.elapsed().as_secs_f64())
    })
    .map_err(raised)
}

impl Writer {
    fn check(&mut self) -> PyResult<()> {
        if process::id() != self.process {
            return Err(raised(other_process()));
        }
        if let Some(failed) = &self.failed {
            return Err(failed.again());
        }
        if self.ending {
            return Err(raised(Error::misuse("the stream is being closed")));
        }
        if self.exchange.is_over() { Err(self.fail()) } else { Ok(()) }
    }

    /// The error of a flow that is over although nobody ended it.
    fn fail(&mut self) -> PyErr {
        match (&self.failed, self.exchange.take_result()) {
            (Some(failed), _) => failed.again(),
            (None, Some(Err(error))) => self.failed.insert(Kept::new(&error)).raised(),
            (None, _) => raised(Error::misuse("the stream has ended")),
        }
    }

    /// Hands over the gathered bytes. If it raises, the rest is kept.
    fn push_pending(&mut self, py: Python<'_>) -> PyResult<()> {
        let mut patience = Patience::new(self.timeout);
        while !self.pending.is_empty() {
            let n = self.exchange.push(&self.pending);
            self.pending.drain(..n);
            self.pushed(py, n, 0, &mut patience)?;
        }
        Ok(())
    }

    /// Hands over bytes of a Python object. Copies them with the interpreter's lock held, so that
    /// no other thread can change them, and waits without it.
    fn push(&mut self, py: Python<'_>, bytes: &Bytes<'_, '_>) -> PyResult<()> {
        let mut patience = Patience::new(self.timeout);
        let mut at = 0;
        while at < bytes.len() {
            let n = bytes.with(py, |b| self.exchange.push(&b[at..(at + PIECE_MAX).min(b.len())]));
            at += n;
            self.pushed(py, n, at, &mut patience)?;
        }
        Ok(())
    }

    /// Records that `n` bytes were handed over, `taken` in this call in total. If `n` is 0, waits a
    /// little for room.
    fn pushed(&mut self, py: Python<'_>, n: usize, taken: usize, patience: &mut Patience) -> PyResult<()> {
        self.pushed += n as u64;
        if n > 0 {
            patience.progress();
            return Ok(());
        }
        if self.exchange.is_over() {
            return Err(self.fail());
        }
        self.pass_on(py, taken, patience)?;
        let exchange = &self.exchange;
        py.detach(|| exchange.wait_room(SIGNALS_EVERY));
        patience.at(self.control.send_summary().accepted_bytes);
        self.pause(py, patience)
    }

    /// Passes wire bytes on to the Python object. Raises `BlockingIOError` if it has no room;
    /// `taken` bytes of this call were taken.
    fn pass_on(&mut self, py: Python<'_>, taken: usize, patience: &mut Patience) -> PyResult<()> {
        match self.drain(py)? {
            Passed::Nothing => {}
            Passed::Some => patience.progress(),
            // The third argument becomes `characters_written`.
            Passed::Refused => {
                return Err(PyBlockingIOError::new_err((EAGAIN, "the object accepts no bytes now", taken)));
            }
        }
        Ok(())
    }

    /// Passes on as many wire bytes as the Python object takes. The rest comes first the next time.
    fn drain(&mut self, py: Python<'_>) -> PyResult<Passed> {
        let Some(sink) = &self.sink else { return Ok(Passed::Nothing) };
        let mut passed = Passed::Nothing;
        // After a failure, later bytes would follow a gap.
        while self.failed.is_none() {
            if self.sent == self.unsent.len() {
                (self.unsent, self.sent) = (self.exchange.take_wire(), 0);
                if self.unsent.is_empty() {
                    break;
                }
            }
            let rest = PyBytes::new(py, &self.unsent[self.sent..]);
            match sink.bind(py).call1((&rest,)).and_then(|written| taken(&written, rest.as_bytes().len())) {
                Ok(0) if matches!(passed, Passed::Nothing) => return Ok(Passed::Refused),
                Ok(0) => break,
                Ok(n) => self.sent += n,
                Err(e) => {
                    // The bytes that it did not take are lost, and with them the stream.
                    self.failed = Some(Kept::of(py, &e));
                    self.totals.look();
                    self.control.stop();
                    self.exchange.abandon();
                    return Err(e);
                }
            }
            passed = Passed::Some;
        }
        Ok(passed)
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

/// A timeout that restarts at every progress.
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

    /// Records that this many bytes are through.
    fn at(&mut self, bytes: u64) {
        if bytes != self.at {
            self.at = bytes;
            self.progress();
        }
    }

    fn check(&self) -> PyResult<()> {
        match self.limit {
            Some(limit) if self.since.elapsed() > limit => {
                let text = format!("no progress for {} s", limit.as_secs_f64());
                Err(raised(Error::system(text, std::io::ErrorKind::TimedOut.into())))
            }
            _ => Ok(()),
        }
    }
}

/// How many of `len` bytes an object took, by the result of its `write`: all, if that is not a
/// number.
fn taken(written: &Bound<'_, PyAny>, len: usize) -> PyResult<usize> {
    match written.extract::<i64>() {
        Ok(n) => Ok(usize::try_from(n).map_err(|_| PyOSError::new_err(format!("write() returned {n}")))?.min(len)),
        Err(_) => Ok(len),
    }
}
