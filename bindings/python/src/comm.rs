//! One connection of Dask: messages of several buffers, each way. `narrows/distributed.py` makes a
//! comm of it.
//!
//! ```text
//!  write(frames) ──> outgoing ──> engine: plain, or a flow ──> socket
//!  receive() <────── incoming <── decoding by workers <─────── socket
//! ```
//!
//! The event loop of Python calls [`CommFlow`], which never waits. Threads of ours need no lock of
//! the interpreter; a [`CommHub`] tells the event loop what they have done.

use std::collections::VecDeque;
use std::sync::Arc;

use narrows::Error;
use narrows::block::Block;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

mod decoding;
mod engine;
mod hub;
mod incoming;
mod learned;
mod outgoing;
mod pools;
mod wire;

use self::engine::{Engine, Message};
pub(crate) use self::hub::CommHub;
use self::incoming::{Incoming, Received};
use self::learned::Learned;
use self::outgoing::Outgoing;
use crate::buffer::{Bytes, Pinned, release};
use crate::error::raised;
use crate::sys;

/// Frames of up to this length are copied: holding a buffer costs as much.
const COPY_MAX: usize = 4 << 10;

/// Private: the connection of a comm. One thread at a time calls it.
#[pyclass(module = "narrows._narrows")]
pub(crate) struct CommFlow {
    outgoing: Arc<Outgoing>,
    incoming: Incoming,
    allocate: Option<Py<PyAny>>,
    heard_codecs: bool,
    waits: bool,
}

#[pymethods]
impl CommFlow {
    /// Takes over a connected socket. `allocate` makes a list of writable buffers of given lengths.
    #[new]
    fn new(
        descriptor: i32,
        hub: &CommHub,
        number: u64,
        policy: &str,
        same_host: bool,
        raw_max: u64,
        allocate: Py<PyAny>,
    ) -> PyResult<Self> {
        let socket = Arc::new(sys::connection(descriptor).map_err(raised)?);
        let signal = hub.signal(number);
        let policy = narrows_classic::policies().parse(policy).map_err(raised)?;
        let learned = socket.peer_addr().map_or_else(|_| Learned::default(), |peer| Learned::of(peer.ip()));
        let engine = Engine::new(policy, same_host, learned);
        let outgoing = Outgoing::new(Arc::clone(&socket), engine, signal.clone());
        Ok(Self {
            outgoing,
            incoming: Incoming::new(socket, raw_max, signal),
            allocate: Some(allocate),
            heard_codecs: false,
            waits: false,
        })
    }

    /// Sends a message, after those before it. Long frames are not copied: they must not change
    /// until they are sent.
    #[pyo3(signature = (frames, /))]
    fn write(&mut self, py: Python<'_>, frames: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        release(py);
        if frames.len() > wire::FRAMES_MAX {
            let count = frames.len();
            return Err(raised(Error::limit(format!("a message of {count} frames; {} are allowed", wire::FRAMES_MAX))));
        }
        let mut frame_lens = Vec::with_capacity(frames.len());
        let mut raw = VecDeque::new();
        let mut copied = Vec::new();
        for frame in &frames {
            let bytes = Bytes::of(frame)?;
            frame_lens.push(bytes.len());
            if bytes.len() <= COPY_MAX {
                bytes.with(py, |b| copied.extend_from_slice(b));
                continue;
            }
            if !copied.is_empty() {
                raw.push_back(Block::from_vec(std::mem::take(&mut copied)));
            }
            raw.push_back(Block::lent(Arc::new(Pinned::of(frame)?)));
        }
        if !copied.is_empty() {
            raw.push_back(Block::from_vec(copied));
        }
        let raw_len = frame_lens.iter().map(|len| *len as u64).sum();
        self.outgoing.write(py, Message::new(&frame_lens, raw), raw_len)?;
        release(py);
        Ok(raw_len)
    }

    /// Reads until the peer is known to speak this protocol. Returns whether it is.
    fn meet(&mut self) -> PyResult<bool> {
        self.incoming.meet()
    }

    /// The next message as a list of buffers; `None`: not yet. Then `waits` tells for what.
    fn receive(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyList>>> {
        let Some(allocate) = &self.allocate else { return Err(raised(Error::misuse("the comm was closed"))) };
        let received = self.incoming.receive(py, allocate)?;
        if !self.heard_codecs
            && let Some(codecs) = self.incoming.codecs()
        {
            self.heard_codecs = true;
            // A peer without some of our codecs gets everything plain.
            if wire::codecs() & !codecs != 0 {
                self.outgoing.limit_to_plain();
            }
        }
        self.waits = matches!(received, Received::Waits);
        let Received::Message(frames) = received else { return Ok(None) };
        release(py);
        Ok(Some(frames))
    }

    /// Whether the last `receive` waits for the workers, which will signal, and not for the socket.
    #[getter]
    fn waits(&self) -> bool {
        self.waits
    }

    /// Reads a little although nobody waits for a message, to notice that the peer has gone. Returns
    /// whether bytes wait, so that there is no need to read on.
    fn read_ahead(&mut self) -> PyResult<bool> {
        self.incoming.read_ahead()?;
        Ok(self.incoming.has_buffered())
    }

    /// Whether messages wait to be sent.
    #[getter]
    fn is_busy(&self) -> bool {
        self.outgoing.is_busy()
    }

    /// Raises the failure of the sending thread, if there was one.
    fn check(&self) -> PyResult<()> {
        self.outgoing.failure().map_or(Ok(()), Err)
    }

    /// Raw bytes sent plain, raw and wire bytes of the flow, the link's rate in bytes/s, and the raw
    /// bytes of each method of the flow.
    #[getter]
    fn sent(&self) -> (u64, u64, u64, f64, Vec<(String, u64)>) {
        let (plain, flow) = self.outgoing.summary();
        let mix = flow.mix.iter().map(|row| (row.method.to_string(), row.raw_bytes)).collect();
        (plain, flow.raw_bytes, flow.wire_bytes, flow.rate_bytes_per_s, mix)
    }

    /// Ends the connection at once. What was not sent is lost.
    fn close(&mut self, py: Python<'_>) {
        self.outgoing.close();
        self.allocate = None;
        release(py);
    }

    /// For garbage collection of reference cycles.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.allocate.as_ref().map_or(Ok(()), |allocate| visit.call(allocate))
    }
}

impl Drop for CommFlow {
    fn drop(&mut self) {
        self.outgoing.close();
    }
}
