//! The bytes between the application's thread and those of a stream: bounded, and every wait ends with the stream.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::memory::Room;
use crate::status::{Failure, Result, Status};

/// Bytes that wait at most: two reads of the engine, so that neither side waits for the other at every turn.
const LEN_MAX: usize = 512 << 10;

#[derive(Default)]
pub(crate) struct Channel {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Nothing more will be put in.
    ended: bool,
    /// What the application says about the whole, after its end.
    verdict: Option<Verdict>,
    /// The stream is over: how.
    outcome: Option<Result<()>>,
    stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Stored,
    GivenUp,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    // --- the application of a writer ---

    /// Puts all bytes in; waits for room.
    pub(crate) fn put_all(&self, mut bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        loop {
            state.check()?;
            if bytes.is_empty() {
                return Ok(());
            }
            let len = bytes.len().min(LEN_MAX.saturating_sub(state.bytes.len()));
            if len == 0 {
                state = self.wait(state);
                continue;
            }
            state.bytes.extend(&bytes[..len]);
            bytes = &bytes[len..];
            self.changed.notify_all();
        }
    }

    /// Nothing more will be put in.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    // --- the application of a reader ---

    /// Takes what is there, and waits until something is. 0 at the end.
    pub(crate) fn take(&self, room: &mut Room) -> Result<usize> {
        let mut state = self.lock();
        if room.len() == 0 {
            return state.check().map(|()| 0);
        }
        loop {
            if !state.bytes.is_empty() && !state.stopped {
                let (front, back) = state.bytes.as_slices();
                let len = room.put(front) + room.put(back);
                state.bytes.drain(..len);
                self.changed.notify_all();
                return Ok(len);
            }
            if state.ended && !state.stopped {
                return Ok(0);
            }
            state.check()?;
            state = self.wait(state);
        }
    }

    /// Says that the application has everything, or that it gives up if it has not. `false` if that ends a stream that
    /// was going on.
    pub(crate) fn conclude(&self) -> bool {
        let mut state = self.lock();
        let all = state.ended && state.bytes.is_empty() && !state.stopped;
        state.verdict = Some(if all { Verdict::Stored } else { Verdict::GivenUp });
        self.changed.notify_all();
        all || state.outcome.is_some()
    }

    // --- both ---

    /// Ends all waits.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// The stream is over.
    pub(crate) fn finish(&self, outcome: Result<()>) {
        self.lock().outcome.get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// How it ended; waits for that.
    pub(crate) fn outcome(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            state = self.wait(state);
        }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.outcome {
            Some(Err(failure)) => Err(failure.clone()),
            _ if self.stopped => Err(Failure::new(Status::NARROWS_ERROR_IO, "the stream was cancelled")),
            Some(Ok(())) => Err(Failure::misuse("the stream is over")),
            None => Ok(()),
        }
    }
}

/// What a sending stream reads.
pub(crate) struct Source(pub(crate) Arc<Channel>);

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let channel = &*self.0;
        let mut state = channel.lock();
        loop {
            if state.stopped || state.outcome.is_some() {
                return Err(io::Error::other("the writer was cancelled"));
            }
            if !state.bytes.is_empty() {
                let n = state.bytes.read(buf)?;
                channel.changed.notify_all();
                return Ok(n);
            }
            if state.ended {
                return Ok(0);
            }
            state = channel.wait(state);
        }
    }
}

/// What a receiving stream writes.
pub(crate) struct Sink(pub(crate) Arc<Channel>);

impl Sink {
    fn gone() -> io::Error {
        io::Error::other("the reader was closed before the end of the stream")
    }
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let channel = &*self.0;
        let mut state = channel.lock();
        loop {
            if state.stopped || state.verdict.is_some() || state.outcome.is_some() {
                return Err(Self::gone());
            }
            let len = buf.len().min(LEN_MAX.saturating_sub(state.bytes.len()));
            if len > 0 || buf.is_empty() {
                state.bytes.extend(&buf[..len]);
                channel.changed.notify_all();
                return Ok(len);
            }
            state = channel.wait(state);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end of a receiving stream: waits for what the application says.
pub(crate) fn await_verdict(channel: &Channel) -> io::Result<()> {
    let mut state = channel.lock();
    state.ended = true;
    channel.changed.notify_all();
    loop {
        match state.verdict {
            Some(Verdict::Stored) => return Ok(()),
            Some(Verdict::GivenUp) => return Err(Sink::gone()),
            None if state.stopped => return Err(Sink::gone()),
            None => state = channel.wait(state),
        }
    }
}
