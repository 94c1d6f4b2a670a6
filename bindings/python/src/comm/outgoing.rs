//! The sending half of a comm: messages in order, by the calling thread as far as the socket takes
//! them at once, by a thread of the comm's own where they have to wait.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narrows::Error;
use narrows::sender::Summary;
use pyo3::prelude::*;

use super::engine::{Engine, Message};
use super::hub::Signal;
use crate::error::Kept;

/// A thread with nothing to send ends after this time: longer than the pauses of a busy comm.
const IDLE: Duration = Duration::from_millis(500);
/// Writes of less keep the interpreter's lock: they take less time than getting it back from a
/// thread that computes.
const LOCKED_MAX: u64 = 64 << 10;
/// A thread needs little stack: codecs have their tables on the heap, and run on workers mostly.
const STACK: usize = 512 << 10;

pub(super) struct Outgoing {
    socket: Arc<TcpStream>,
    state: Mutex<State>,
    changed: Condvar,
    signal: Signal,
}

struct State {
    /// Messages that wait, as references to their bytes.
    queue: VecDeque<Message>,
    /// With whoever writes.
    engine: Option<Box<Engine>>,
    has_thread: bool,
    begun: bool,
    failed: Option<Kept>,
    last: (u64, Summary),
}

impl Outgoing {
    pub(super) fn new(socket: Arc<TcpStream>, engine: Engine, signal: Signal) -> Arc<Self> {
        let state = State {
            queue: VecDeque::new(),
            engine: Some(Box::new(engine)),
            has_thread: false,
            begun: false,
            failed: None,
            last: Default::default(),
        };
        Arc::new(Self { socket, state: Mutex::new(state), changed: Condvar::new(), signal })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message after those before it; returns when it has its place.
    pub(super) fn write(self: &Arc<Self>, py: Python<'_>, mut message: Message, raw_len: u64) -> PyResult<()> {
        let mut state = self.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.raised());
        }
        if !state.begun {
            state.begun = true;
            message.begin();
        }
        let engine = if state.queue.is_empty() { state.engine.take_if(|e| e.is_plain(raw_len)) } else { None };
        if let Some(mut engine) = engine {
            drop(state);
            let socket = &self.socket;
            let written = if raw_len <= LOCKED_MAX {
                engine.write_plain(socket, &mut message)
            } else {
                py.detach(|| engine.write_plain(socket, &mut message))
            };
            state = self.lock();
            state.engine = Some(engine);
            if let Err(e) = written {
                return Err(state.fail(&Error::from(e)).raised());
            }
            if message.is_done() {
                return Ok(());
            }
        }
        state.queue.push_back(message);
        if state.has_thread {
            self.changed.notify_one();
            return Ok(());
        }
        let flow = Arc::clone(self);
        let begin = std::thread::Builder::new().name("narrows-comm".into()).stack_size(STACK);
        begin.spawn(move || flow.run())?;
        state.has_thread = true;
        Ok(())
    }

    fn run(self: Arc<Self>) {
        let mut state = self.lock();
        while state.failed.is_none() {
            let next = if state.engine.is_some() { state.queue.pop_front() } else { None };
            let engine = if next.is_some() { state.engine.take() } else { None };
            let Some((mut engine, mut message)) = engine.zip(next) else {
                let (woken, timeout) = self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                if timeout.timed_out() && state.queue.is_empty() {
                    break;
                }
                continue;
            };
            drop(state);
            let written = engine.write_all(&self.socket, &mut message);
            drop(message);
            state = self.lock();
            state.last = engine.summary();
            state.engine = Some(engine);
            if let Err(e) = written {
                state.fail(&e);
            }
            // Its event loop releases what was sent, and may wait for the last of it.
            self.signal.give();
        }
        state.has_thread = false;
    }

    /// Whether messages wait.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.lock();
        state.failed.is_none() && (!state.queue.is_empty() || state.engine.is_none())
    }

    pub(super) fn failure(&self) -> Option<PyErr> {
        self.lock().failed.as_ref().map(Kept::raised)
    }

    pub(super) fn limit_to_plain(&self) {
        if let Some(engine) = &mut self.lock().engine {
            engine.limit_to_plain = true;
        }
    }

    /// Raw bytes sent plain, and totals of the flow.
    pub(super) fn summary(&self) -> (u64, Summary) {
        let state = self.lock();
        state.engine.as_ref().map_or_else(|| state.last.clone(), |e| e.summary())
    }

    /// Ends the connection. What waits is lost.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.fail(&Error::misuse("the comm was closed"));
        drop(state);
        let _ = self.socket.shutdown(Shutdown::Both);
        self.changed.notify_all();
    }
}

impl State {
    fn fail(&mut self, error: &Error) -> &Kept {
        self.queue.clear();
        self.failed.get_or_insert_with(|| Kept::new(error))
    }
}
