//! Queue between a Python thread and the threads of the engine: raw bytes to the engine and, if the
//! stream goes to a Python object, wire bytes back.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narrows::Result;
use narrows::block::{Block, BlockMut, BufferPool};
use narrows::stream::BlockSource;

use super::totals::Sent;

/// Maximum of waiting raw bytes: as many as the engine itself gathers, so that it has work while
/// Python's thread waits for a core.
const RAW_MAX: usize = 2 << 20;
/// Maximum of wire bytes that wait for a call from Python.
const WIRE_MAX: usize = 1 << 20;
/// Blocks are filled up to the length that the engine requested last, so that it need not join
/// short ones. This is the length of the first block, and the maximum is [`BLOCK_MAX`].
const BLOCK_FIRST: usize = 64 << 10;
const BLOCK_MAX: usize = 512 << 10;
/// Interval at which waits check for changes without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Exchange {
    state: Mutex<State>,
    /// Python waits here: for room, for wire bytes, for the end.
    python: Condvar,
    /// Threads of the engine wait here: for raw bytes, for room.
    engine: Condvar,
    /// The stream was abandoned. Outside the lock, since the caller of `abandon` must not wait.
    abandoned: AtomicBool,
    buffers: BufferPool,
}

#[derive(Default)]
struct State {
    /// Full blocks, and the one being filled, up to `filled`.
    raw: VecDeque<Block>,
    filling: BlockMut,
    filled: usize,
    /// Bytes in all of them.
    raw_len: usize,
    /// Block length that the engine requested last.
    asked: usize,
    /// The engine waits for raw bytes.
    hungry: bool,
    /// No more raw bytes will come.
    ended: bool,
    wire: Vec<u8>,
    result: Option<Result<()>>,
    over: bool,
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- for Python ---

    /// Copies in as many bytes as there is room for; returns their number. Never waits.
    pub(super) fn push(&self, bytes: &[u8]) -> usize {
        let mut state = self.lock();
        let len = bytes.len().min(RAW_MAX.saturating_sub(state.raw_len));
        let mut rest = &bytes[..len];
        while !rest.is_empty() && !state.over {
            if state.filling.capacity() == 0 {
                state.filling = self.buffers.get(state.asked.clamp(BLOCK_FIRST, BLOCK_MAX));
            }
            let at = state.filled;
            let n = rest.len().min(state.filling.capacity() - at);
            state.filling.bytes_mut()[at..at + n].copy_from_slice(&rest[..n]);
            (state.filled, state.raw_len, rest) = (at + n, state.raw_len + n, &rest[n..]);
            if state.filled == state.filling.capacity() {
                let block = self.full(&mut state);
                state.raw.push_back(block);
            }
        }
        let wake = state.hungry && len > 0;
        drop(state);
        if wake {
            self.engine.notify_all();
        }
        len - rest.len()
    }

    /// Takes the block that is being filled.
    fn full(&self, state: &mut State) -> Block {
        let block = mem::take(&mut state.filling).freeze(mem::take(&mut state.filled));
        self.buffers.recycle(&block);
        block
    }

    /// Waits until there is room, wire bytes wait, or the flow is over, but no longer than `most`.
    pub(super) fn wait_room(&self, most: Duration) {
        let state = self.lock();
        if state.raw_len >= RAW_MAX && state.wire.is_empty() && !state.over {
            drop(self.python.wait_timeout(state, most));
        }
    }

    /// No more raw bytes will come.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.engine.notify_all();
    }

    /// Makes the threads of the engine end. Never waits: in a forked process the lock may never be
    /// released.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        if let Ok(mut state) = self.state.try_lock() {
            state.wire = Vec::new();
        }
        self.engine.notify_all();
    }

    /// Takes the waiting wire bytes.
    pub(super) fn take_wire(&self) -> Vec<u8> {
        let wire = mem::take(&mut self.lock().wire);
        if !wire.is_empty() {
            self.engine.notify_all();
        }
        wire
    }

    /// Waits until the flow is over or wire bytes wait, but no longer than `most`. Returns whether
    /// the flow is over.
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

    /// Takes the result of the flow, once it has ended.
    pub(super) fn take_result(&self) -> Option<Result<()>> {
        self.lock().result.take()
    }

    // --- for the engine ---

    pub(super) fn finish(&self, result: Result<()>) {
        let mut state = self.lock();
        (state.result, state.over) = (Some(result), true);
        drop(state);
        self.python.notify_all();
        self.engine.notify_all();
    }

    /// The source of raw bytes for the engine.
    pub(super) fn source(self: &Arc<Self>, totals: Arc<Sent>) -> Source {
        Source { exchange: Arc::clone(self), totals }
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The sink of the engine's wire bytes for a Python object.
    pub(super) fn outlet(self: &Arc<Self>) -> Outlet {
        Outlet(Arc::clone(self))
    }
}

pub(super) struct Source {
    exchange: Arc<Exchange>,
    totals: Arc<Sent>,
}

impl Drop for Source {
    fn drop(&mut self) {
        // Saves the totals of a flow that fails, since it cannot be asked later.
        self.totals.look();
    }
}

impl BlockSource for Source {
    fn next(&mut self, len: usize, _: &BufferPool) -> io::Result<Block> {
        let exchange = &*self.exchange;
        let mut state = exchange.lock();
        state.asked = len;
        while state.raw_len == 0 && !state.ended {
            if exchange.is_abandoned() || state.over {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.hungry = true;
            state = exchange.engine.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            state.hungry = false;
        }
        // With no full block, an unfinished one is sent at once.
        let block = match state.raw.pop_front() {
            Some(block) => block,
            None if state.filled > 0 => exchange.full(&mut state),
            None => return Ok(Block::default()),
        };
        state.raw_len -= block.len();
        // Wakes Python only when the queue is half empty: waking costs as much as copying a block.
        let wake = state.raw_len <= RAW_MAX / 2;
        drop(state);
        if wake {
            exchange.python.notify_all();
        }
        Ok(block)
    }
}

pub(super) struct Outlet(Arc<Exchange>);

impl Write for Outlet {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.lock();
        loop {
            if self.0.is_abandoned() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if state.wire.len() < WIRE_MAX {
                break;
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
