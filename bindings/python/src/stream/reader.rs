//! The reading end of a stream. Decodes on demand, on the caller's thread and, for slow methods, on
//! others at the same time.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::Decoding;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::stream;
use pyo3::exceptions::PyConnectionError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::totals::{Received, ReceivedTotals};
use super::{clock, decode, threads};
use crate::buffer::Bytes;
use crate::error::{Kept, raised};
use crate::own::Own;

/// Wire bytes read at a time: some blocks, so that several threads have work.
const READ_LEN: usize = 512 << 10;

/// Private: used by ``NarrowsFile`` and ``NarrowsSocket``, which admit one call at a time.
#[pyclass(module = "narrows._narrows")]
pub(crate) struct Reader {
    decoding: Decoding,
    config: ReceiverConfig,
    /// Wire bytes of the streams before this one.
    wire_before: u64,
    contexts: Own<Vec<Contexts>>,
    buffers: BufferPool,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Called with a number of bytes, returns at most that many; none at the end.
    source: Py<PyAny>,
    /// Called with bytes for the sender; `None` if there is no back channel.
    back: Option<Py<PyAny>>,
    /// Decoded bytes that have not been read.
    raw: Block,
    ended: bool,
    /// The caller was told of the end.
    told_end: bool,
    /// Error found after bytes that are still to be read.
    error: Option<Kept>,
    delivered: u64,
    totals: Arc<Received>,
}

#[pymethods]
impl Reader {
    /// `several`: what follows a stream is another one.
    #[new]
    #[pyo3(signature = (source, *, threads, back, several))]
    fn new(source: Py<PyAny>, threads: Option<usize>, back: Option<Py<PyAny>>, several: bool) -> PyResult<Self> {
        let cores = self::threads(threads, stream::cores).map_err(raised)?;
        let buffers = BufferPool::default();
        let duplex = back.is_some();
        let config =
            ReceiverConfig { cores, duplex, images: !duplex, keeps_rest: several, ..ReceiverConfig::default() };
        Ok(Self {
            decoding: Decoding::new(Receiver::new(config.clone(), buffers.clone())),
            config,
            wire_before: 0,
            contexts: Own::new(Vec::new()),
            buffers,
            clock: Box::new(clock()),
            source,
            back,
            raw: Block::default(),
            ended: false,
            told_end: false,
            error: None,
            delivered: 0,
            totals: Arc::default(),
        })
    }

    /// Fills a part of the buffer; returns the number of bytes, 0 at the end.
    fn readinto(&mut self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let target = Bytes::of(buffer)?;
        if target.len() == 0 || !self.fill(py)? {
            return target.with_mut(py, |_| 0);
        }
        let n = self.raw.len().min(target.len());
        target.with_mut(py, |b| b[..n].copy_from_slice(&self.raw[..n]))?;
        self.advance(n);
        Ok(n)
    }

    /// Returns decoded bytes, or else those of the next block, at most `most`. Empty at the end.
    fn read_some<'py>(&mut self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyBytes>> {
        if most == 0 || !self.fill(py)? {
            return Ok(PyBytes::new(py, b""));
        }
        let n = self.raw.len().min(most);
        let bytes = PyBytes::new(py, &self.raw[..n]);
        self.advance(n);
        Ok(bytes)
    }

    /// Number of raw bytes read.
    #[getter]
    fn delivered(&self) -> u64 {
        self.delivered
    }

    #[getter]
    fn totals(&self) -> ReceivedTotals {
        ReceivedTotals(Arc::clone(&self.totals))
    }

    /// Tells a sender that waits for it whether the application has the whole stream, or why not.
    #[pyo3(signature = (failure = None, /))]
    fn close(&mut self, py: Python<'_>, failure: Option<&str>) -> PyResult<()> {
        let early = (!self.told_end).then_some("the receiver went away before the end of the stream");
        self.say_goodbye(py, failure.or(early))
    }

    /// For garbage collection of reference cycles.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)?;
        self.back.as_ref().map_or(Ok(()), |back| visit.call(back))
    }
}

impl Reader {
    fn advance(&mut self, n: usize) {
        let _ = self.raw.split_to(n);
        self.delivered += n as u64;
        self.totals.raw_bytes.store(self.delivered, Ordering::Relaxed);
    }

    /// Makes sure that there are raw bytes. False at the end.
    fn fill(&mut self, py: Python<'_>) -> PyResult<bool> {
        while self.raw.is_empty() {
            if let Some(raw) = self.decoding.read() {
                self.raw = raw;
                continue;
            }
            if let Some(error) = &self.error {
                return Err(error.raised());
            }
            if self.ended {
                self.told_end = true;
                return Ok(false);
            }
            if let Err(error) = self.step(py) {
                // An interrupted or late read may be retried; an error of the stream is final.
                if self.error.is_none() {
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Begins the next stream, with the bytes that are there of it.
    fn begin_next(&mut self) -> narrows::Result<()> {
        let rest: Vec<Block> = self.decoding.take_rest().collect();
        self.wire_before += self.decoding.summary().wire_bytes;
        self.decoding = Decoding::new(Receiver::new(self.config.clone(), self.buffers.clone()));
        rest.into_iter().try_for_each(|wire| self.decoding.receive(wire))
    }

    /// Decodes received bytes, or else reads more.
    fn step(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.decoding.has_unparsed() && self.decoding.is_finished() {
            let begun = self.begin_next();
            return self.tell(py, begun);
        }
        let Self { decoding, contexts, buffers, .. } = self;
        let any = py.detach(|| {
            if decoding.has_unparsed() && !decoding.has_end() {
                decoding.resume()?;
            }
            decode(decoding, usize::MAX, true, contexts.get(), buffers)
        });
        let any = self.tell(py, any)?;
        if any || self.decoding.has_raw() {
            return Ok(());
        }
        // If the sender waits for a confirmation, the stream ends with its end frame; else with the
        // end of the carrier, since nothing may follow it.
        let over = self.back.is_some() && self.decoding.has_end();
        if !over {
            let data = self.source.bind(py).call1((READ_LEN,))?;
            let bytes = Bytes::of(&data)?;
            if bytes.len() > 0 {
                let wire = Block::from_vec(bytes.with(py, <[u8]>::to_vec));
                if self.config.keeps_rest && self.decoding.is_finished() {
                    let begun = self.begin_next();
                    self.tell(py, begun)?;
                }
                let received = self.decoding.receive(wire);
                return self.tell(py, received);
            }
        }
        let closed = self.decoding.close();
        self.tell(py, closed)?;
        self.ended = true;
        Ok(())
    }

    /// Sends reports to the sender if there is a back channel, errors too.
    fn tell<T>(&mut self, py: Python<'_>, result: narrows::Result<T>) -> PyResult<T> {
        let wire_bytes = self.wire_before + self.decoding.summary().wire_bytes;
        self.totals.wire_bytes.store(wire_bytes, Ordering::Relaxed);
        match result {
            Ok(value) => {
                let (now_ns, blocked_ns) = ((self.clock)(), 0);
                if let Some(back) = &self.back
                    && let Some(report) = self.decoding.poll_feedback(now_ns, blocked_ns)
                {
                    match back.bind(py).call1((PyBytes::new(py, &report),)) {
                        // A sender that is gone needs no reports, and what it sent can still be
                        // read.
                        Err(e) if e.is_instance_of::<PyConnectionError>(py) => self.back = None,
                        reported => drop(reported?),
                    }
                }
                Ok(value)
            }
            Err(error) => {
                // The error itself matters more than a failure to report it.
                let _ = self.say_goodbye(py, Some(&error.to_string()));
                Err(self.error.insert(Kept::new(&error)).raised())
            }
        }
    }

    fn say_goodbye(&mut self, py: Python<'_>, failure: Option<&str>) -> PyResult<()> {
        let Some(back) = mem::take(&mut self.back) else { return Ok(()) };
        let word = self.decoding.close_message(failure);
        back.bind(py).call1((PyBytes::new(py, &word),)).map(drop)
    }
}
