//! The sending half of a connection of an event loop, which does the writing (`narrows.aio`).

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Encoding, Executor};
use narrows::sender::{Done, Job, LinkSample};
use narrows::stream::{self, Alone};
use narrows::transport::{Meter, Outbox};
use narrows::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::{other_process, sending, totals};
use crate::buffer::Bytes;
use crate::error::raised;
use crate::sys;

/// Longer jobs are not for the thread of an event loop. Handing one over takes some 100 us.
const SHORT: Budget = Budget { job_ns: 500_000, ..Budget::ALL };

/// Private: used by ``narrows.aio``. All calls come from the thread of the event loop, except ``run``.
#[pyclass(frozen, module = "narrows._narrows")]
pub(crate) struct Flow {
    /// Boxed, since objects of Python are aligned to 16 bytes only, and an engine is to cache lines.
    state: Box<Mutex<State>>,
    /// Of the thread that encodes: one at a time.
    contexts: Box<Mutex<Contexts>>,
    buffers: BufferPool,
    process: u32,
}

struct State {
    encoding: Encoding,
    contexts: Contexts,
    meter: Meter,
    /// The connection; `None` if there is nothing to be asked, or not any more.
    socket: Option<OwnedFd>,
    begun: Instant,
    /// A job for another thread.
    long: Option<Job>,
    /// Frames that the event loop takes next.
    frames: VecDeque<Block>,
    len: usize,
    /// When the write under way began, and the bytes that had not left the host then.
    began: (u64, u64),
}

#[pymethods]
impl Flow {
    /// `descriptor`: the connection, a result of `os.dup`, which it takes over; it is only asked.
    #[new]
    #[pyo3(signature = (policy, descriptor, same_host, /))]
    fn new(policy: &str, descriptor: Option<i32>, same_host: bool) -> PyResult<Self> {
        let socket = descriptor.map(sys::file).transpose().map_err(raised)?.map(OwnedFd::from);
        let options = sending(policy, 1).map_err(raised)?.gather_ns(0);
        let buffers = BufferPool::default();
        let state = State {
            encoding: options.encoding(&buffers),
            contexts: Contexts::default(),
            meter: Meter::new(same_host),
            socket,
            begun: Instant::now(),
            long: None,
            frames: VecDeque::new(),
            len: 0,
            began: (0, 0),
        };
        Ok(Self { state: Box::new(Mutex::new(state)), contexts: Box::default(), buffers, process: process::id() })
    }

    /// Raises the error that this policy is.
    #[staticmethod]
    #[pyo3(signature = (policy, /))]
    fn validate(policy: &str) -> PyResult<()> {
        sending(policy, 1).map(drop).map_err(raised)
    }

    /// Takes as many bytes as there is room for, and returns how many.
    #[pyo3(signature = (data, /))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let bytes = Bytes::of(data)?;
        let mut state = self.lock()?;
        let now_ns = state.now_ns();
        Ok(bytes.with(py, |raw| state.encoding.write(raw, now_ns)))
    }

    /// No more bytes will come.
    fn end(&self) -> PyResult<()> {
        let mut state = self.lock()?;
        let now_ns = state.now_ns();
        state.encoding.close(now_ns);
        Ok(())
    }

    /// Encodes what is short. Returns whether a long job waits for `run`.
    #[pyo3(signature = (waiting, /))]
    fn work(&self, waiting: u64) -> PyResult<bool> {
        let mut state = self.lock()?;
        let now_ns = state.now_ns();
        if state.encoding.wants_look(now_ns) {
            let look = state.look(waiting);
            state.encoding.on_link(look);
        }
        let clock = state.clock();
        let State { encoding, contexts, long, .. } = &mut *state;
        encoding.work(clock, SHORT, &mut Loop { contexts, buffers: &self.buffers, long });
        Ok(state.long.is_some())
    }

    /// Encodes the long job, on any thread.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let Some(job) = self.lock()?.long.take() else { return Ok(()) };
        py.detach(|| {
            let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
            let done = stream::encode(job, &mut contexts, &self.buffers);
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now_ns = state.now_ns();
            state.encoding.finish(done, now_ns);
        });
        Ok(())
    }

    /// Returns the bytes to be written next, about as many as suit the link; none if there are none.
    /// `waiting`: bytes that the event loop has and the system has not. `written` is to be called
    /// next.
    #[pyo3(signature = (waiting, /))]
    fn take<'py>(&self, py: Python<'py>, waiting: u64) -> PyResult<Bound<'py, PyBytes>> {
        let mut state = self.lock()?;
        let most = Outbox::write_len(state.encoding.summary().rate_bytes_per_s);
        while state.len < most {
            let Some(frame) = state.encoding.poll_transmit() else { break };
            state.len += frame.wire_len();
            state.frames.push_back(Block::from_vec(frame.header.to_vec()));
            state.frames.push_back(frame.body);
        }
        let frames = mem::take(&mut state.frames);
        let len = mem::take(&mut state.len);
        if len > 0 {
            let look = state.look(waiting);
            state.began = (look.begin_ns, look.unsent_before);
        }
        drop(state);
        PyBytes::new_with(py, len, |mut room| {
            for piece in &frames {
                let (head, tail) = room.split_at_mut(piece.len());
                head.copy_from_slice(piece);
                room = tail;
            }
            Ok(())
        })
    }

    /// The event loop has taken `len` bytes.
    #[pyo3(signature = (len, waiting, /))]
    fn written(&self, len: u64, waiting: u64) -> PyResult<()> {
        let mut state = self.lock()?;
        let (begin_ns, unsent_before) = state.began;
        let look = state.look(waiting);
        state.encoding.on_link(LinkSample { begin_ns, unsent_before, accepted: len, ..look });
        let rate = state.encoding.summary().rate_bytes_per_s;
        if let State { meter, socket: Some(socket), .. } = &mut *state {
            meter.set_rate(socket, rate);
        }
        Ok(())
    }

    /// Looks at the connection; what is late is sent as it is. `work` and `take` are to be called
    /// next.
    #[pyo3(signature = (waiting, /))]
    fn look(&self, waiting: u64) -> PyResult<()> {
        let mut state = self.lock()?;
        let look = state.look(waiting);
        state.encoding.on_link(look);
        let clock = state.clock();
        let State { encoding, contexts, .. } = &mut *state;
        encoding.rescue(clock, Budget::ALL, &mut Alone { contexts, buffers: &self.buffers });
        Ok(())
    }

    /// Seconds until `look` is to be called; `None`: not before another call.
    #[getter]
    fn look_in(&self) -> PyResult<Option<f64>> {
        let state = self.lock()?;
        let now_ns = state.now_ns();
        Ok(state.encoding.next_wakeup().map(|t| t.saturating_sub(now_ns) as f64 / 1e9))
    }

    /// Raw bytes that were written and not taken yet.
    #[getter]
    fn pending(&self) -> PyResult<u64> {
        Ok(self.lock()?.encoding.pending())
    }

    /// Whether the whole stream was taken.
    #[getter]
    fn is_over(&self) -> PyResult<bool> {
        let state = self.lock()?;
        Ok(state.encoding.is_drained() && state.frames.is_empty())
    }

    /// Lets go of the connection.
    fn close(&self) -> PyResult<()> {
        let mut state = self.lock()?;
        state.socket = None;
        Ok(())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = self.lock()?.encoding.summary().clone();
        totals::told(py, &summary)
    }
}

impl Flow {
    /// Nobody holds the lock for longer than it takes to encode a short block, and none of them waits
    /// for the interpreter's lock meanwhile.
    fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        self.lock_here().map_err(raised)
    }

    fn lock_here(&self) -> Result<MutexGuard<'_, State>> {
        if process::id() != self.process {
            return Err(other_process());
        }
        self.state.lock().map_err(|_| Error::misuse("an encoder failed; this is a bug"))
    }
}

/// Runs jobs on the thread of the event loop, and keeps one that is too long for it.
struct Loop<'a> {
    contexts: &'a mut Contexts,
    buffers: &'a BufferPool,
    long: &'a mut Option<Job>,
}

impl Executor<Job> for Loop<'_> {
    fn run(&mut self, job: Job, brief: bool) -> Done {
        Alone { contexts: self.contexts, buffers: self.buffers }.run(job, brief)
    }

    fn submit(&mut self, job: Job) -> std::result::Result<(), Job> {
        // A sender with one worker gives out one job at a time.
        self.long.replace(job).map_or(Ok(()), Err)
    }
}

impl State {
    fn now_ns(&self) -> u64 {
        self.clock()()
    }

    fn clock(&self) -> impl Fn() -> u64 + use<> {
        let begun = self.begun;
        move || begun.elapsed().as_nanos() as u64
    }

    /// What the connection says, if it is there, and what waits before it.
    fn look(&mut self, waiting: u64) -> LinkSample {
        let now_ns = self.now_ns();
        let look = match &self.socket {
            Some(socket) => self.meter.look(socket, now_ns),
            None => LinkSample { begin_ns: now_ns, end_ns: now_ns, ..LinkSample::default() },
        };
        LinkSample {
            unsent_before: look.unsent_before + waiting,
            unsent_after: look.unsent_after + waiting,
            unacked: look.unacked.map(|unacked| unacked + waiting),
            ..look
        }
    }
}
