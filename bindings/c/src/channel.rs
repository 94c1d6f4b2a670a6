//! Bounded queue of bytes between the application's thread and the threads of a stream. Every wait
//! ends with the stream.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::memory::Room;
use crate::status::{Failure, Result, Status};

/// Capacity in bytes: two reads of the engine, so that the two sides do not wait for each other at
/// every read.
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
    /// The application's verdict on the whole stream, after its end.
    verdict: Option<Verdict>,
    /// How the stream ended, once it is over.
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

    /// Puts all bytes in; waits for room. Fails once the stream is over.
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

    /// Takes the bytes that are there, and waits if there are none. 0 at the end of the stream.
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

    /// Sets the verdict: stored if the application has taken everything, given up if not. `false`
    /// if that aborts a stream in progress.
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

    /// Waits for the end of the stream; returns how it ended.
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

/// The reading side of the channel, for a sending stream.
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

/// The writing side of the channel, for a receiving stream.
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

/// Ends the channel of a receiving stream and waits for the application's verdict.
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
