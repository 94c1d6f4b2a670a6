//! What a thread of Python and those of the engine hand over to each other: raw bytes to the engine and, where a Python object
//! is written, wire bytes back.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narrows::Result;
use narrows::sender::Summary;

/// Raw bytes that wait at most: what the engine takes while Python prepares the next.
const RAW_MAX: usize = 1 << 20;
/// Wire bytes that wait at most for a call from Python.
const WIRE_MAX: usize = 1 << 20;
/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 16;
/// Waits end so often, to see whether anything changed that nobody told of.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Exchange {
    state: Mutex<State>,
    /// Python waits here: for room, for wire bytes, for the end.
    python: Condvar,
    /// Threads of the engine wait here: for raw bytes, for room.
    engine: Condvar,
}

#[derive(Default)]
struct State {
    raw: VecDeque<Vec<u8>>,
    raw_len: usize,
    /// No more raw bytes will come.
    ended: bool,
    /// Nobody cares any more.
    abandoned: bool,
    wire: Vec<u8>,
    spare: Vec<Vec<u8>>,
    result: Option<Result<Summary>>,
    over: bool,
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- for Python ---

    /// Hands a piece over if there is room, and leaves an empty buffer in its place; else waits a little for room or wire bytes. Says whether
    /// the piece went.
    pub(super) fn push(&self, piece: &mut Vec<u8>, wait: Duration) -> bool {
        let mut state = self.lock();
        if state.raw_len >= RAW_MAX && !state.over {
            if state.wire.is_empty() {
                state = self.python.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.raw_len >= RAW_MAX {
                return false;
            }
        }
        if state.over {
            return false;
        }
        let empty = state.spare.pop().unwrap_or_default();
        state.raw_len += piece.len();
        state.raw.push_back(mem::replace(piece, empty));
        drop(state);
        self.engine.notify_all();
        true
    }

    /// No more raw bytes will come.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.engine.notify_all();
    }

    /// Makes the threads of the engine end. Never waits: in a forked process nobody may ever unlock.
    pub(super) fn abandon(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.abandoned = true;
        }
        self.engine.notify_all();
    }

    /// The wire bytes that wait.
    pub(super) fn take_wire(&self) -> Vec<u8> {
        let wire = mem::take(&mut self.lock().wire);
        if !wire.is_empty() {
            self.engine.notify_all();
        }
        wire
    }

    /// Waits until the flow is over, wire bytes wait, or the time is over. Says whether it is over.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let mut state = self.lock();
        if !state.over && state.wire.is_empty() {
            state = self.python.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.over
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().over
    }

    /// How the flow ended, once.
    pub(super) fn take_result(&self) -> Option<Result<Summary>> {
        self.lock().result.take()
    }

    // --- for the engine ---

    pub(super) fn finish(&self, result: Result<Summary>) {
        let mut state = self.lock();
        (state.result, state.over) = (Some(result), true);
        drop(state);
        self.python.notify_all();
        self.engine.notify_all();
    }

    /// Raw bytes as the engine reads them.
    pub(super) fn source(self: &Arc<Self>) -> Source {
        Source { exchange: Arc::clone(self), batch: VecDeque::new(), at: 0, used: Vec::new() }
    }

    /// Where the engine writes wire bytes that a Python object gets.
    pub(super) fn outlet(self: &Arc<Self>) -> Outlet {
        Outlet(Arc::clone(self))
    }
}

/// Takes all pieces at a time, so that the lock is taken once for many.
pub(super) struct Source {
    exchange: Arc<Exchange>,
    batch: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were read.
    at: usize,
    used: Vec<Vec<u8>>,
}

impl Source {
    /// More pieces, if there are any or `wait` says to wait for some. An error if nobody will bring any.
    fn refill(&mut self, wait: bool) -> io::Result<()> {
        let mut state = self.exchange.lock();
        while state.spare.len() < SPARE_MAX
            && let Some(buffer) = self.used.pop()
        {
            state.spare.push(buffer);
        }
        self.used.clear();
        while wait && state.raw.is_empty() && !state.ended {
            if state.abandoned || state.over {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let waited = self.exchange.engine.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        mem::swap(&mut self.batch, &mut state.raw);
        state.raw_len = 0;
        drop(state);
        if !self.batch.is_empty() {
            self.exchange.python.notify_all();
        }
        Ok(())
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            if self.batch.is_empty() {
                self.refill(filled == 0)?;
            }
            let Some(piece) = self.batch.front_mut() else { break };
            let n = (piece.len() - self.at).min(buf.len() - filled);
            buf[filled..filled + n].copy_from_slice(&piece[self.at..self.at + n]);
            (filled, self.at) = (filled + n, self.at + n);
            if self.at == piece.len() {
                self.at = 0;
                if let Some(mut piece) = self.batch.pop_front() {
                    piece.clear();
                    self.used.push(piece);
                }
            }
        }
        Ok(filled)
    }
}

pub(super) struct Outlet(Arc<Exchange>);

impl Write for Outlet {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.lock();
        while state.wire.len() >= WIRE_MAX {
            if state.abandoned {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state = self.0.engine.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        bufs.iter().for_each(|buf| state.wire.extend_from_slice(buf));
        drop(state);
        self.0.python.notify_all();
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
