//! The calling thread's own share until other threads pay: it reads a source that is a file, and
//! hears the receiver. A thread takes as long to start as 100 KB on a link of 10 Gbit/s.

use std::thread::JoinHandle;

use super::{OnNote, SendDriver};
use crate::codec::Contexts;
use crate::error::{Error, ErrorKind, Result};
use crate::flow::Budget;
use crate::stream::repeats::Search;
use crate::stream::{BlockSource, FailOnPanic, PARALLEL_CORES, lock};
use crate::sys;
use crate::transport::ReadHalf;

/// Raw bytes of a short flow. From here on jobs go to the workers, and a thread hears the receiver.
const SHORT_BYTES: u64 = 128 << 10;
/// Raw bytes from which on a second thread pays where the link is as fast as memory.
const PARALLEL_BYTES: u64 = 1 << 20;
/// A read that takes longer waits for a disk, or for a core.
const SLOW_NS: u64 = 2_000_000;
/// A disk must not keep this thread from the link. After this time in slow reads, which losing a
/// core for some slices of the scheduler is not, the source gets a thread of its own.
const SLOW_ALL_NS: u64 = 12_000_000;

/// The source and the reverse direction, as long as they have no thread of their own.
pub(super) struct Near<S> {
    source: Option<S>,
    /// For the thread of the source; a source that is read here is not searched.
    search: Option<Search>,
    /// The source never had a thread of its own.
    here: bool,
    back: Option<(ReadHalf, Option<OnNote>)>,
    back_thread: Option<JoinHandle<()>>,
    duplex: bool,
    read: u64,
    /// Time in slow reads.
    slow_ns: u64,
}

impl<S: BlockSource + 'static> Near<S> {
    pub(super) fn new((source, search): (S, Search), back: Option<(ReadHalf, Option<OnNote>)>) -> Self {
        Self {
            source: Some(source),
            search: Some(search),
            here: true,
            duplex: back.is_some(),
            back,
            back_thread: None,
            read: 0,
            slow_ns: 0,
        }
    }

    /// Whether this thread reads the source.
    pub(super) fn reads(&self) -> bool {
        self.source.is_some()
    }

    /// Whether the flow is short so far, so that this thread also runs the short jobs.
    pub(super) fn is_short(&self) -> bool {
        self.here && self.read <= SHORT_BYTES
    }

    /// Bytes that this thread has read.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }

    /// The reverse direction, if no thread hears it.
    pub(super) fn take_back(&mut self) -> Option<(ReadHalf, Option<OnNote>)> {
        self.back.take()
    }

    pub(super) fn back_thread(&mut self) -> Option<JoinHandle<()>> {
        self.back_thread.take()
    }

    /// Reads the next piece, if the engine has room for it. Returns whether there was any room.
    pub(super) fn read(&mut self, flow: &SendDriver) -> Result<bool> {
        let Some(source) = &mut self.source else { return Ok(false) };
        let Some(len) = lock(&flow.state).sender.as_ref().and_then(super::readable) else { return Ok(false) };
        let begun_ns = sys::monotonic_ns();
        let block = source.next(len, &flow.buffers).map_err(source_error)?;
        let read_ns = sys::monotonic_ns() - begun_ns;
        self.slow_ns += if read_ns > SLOW_NS { read_ns } else { 0 };
        self.read += block.len() as u64;
        let mut state = lock(&flow.state);
        let Some(sender) = &mut state.sender else { return Ok(false) };
        if block.is_empty() {
            self.source = None;
            sender.close(flow.now_ns());
        } else {
            sender.push(block, flow.now_ns());
        }
        Ok(true)
    }

    /// Cuts blocks of what was read. Of a short flow this thread makes one block at a time, so that
    /// the link does not wait for the next one. Other threads start when they pay.
    pub(super) fn work(&mut self, flow: &SendDriver, contexts: &mut Contexts) -> Result<()> {
        flow.look_early();
        if self.is_short() {
            flow.work(lock(&flow.state), contexts, Budget { jobs: 1, ..Budget::SHORT });
            return Ok(());
        }
        let state = lock(&flow.state);
        let parallel = self.duplex
            && self.read > PARALLEL_BYTES
            && state.sender.as_ref().is_some_and(|s| s.is_in_memory() && s.cores() >= PARALLEL_CORES);
        flow.work(state, contexts, Budget::BULK);
        if parallel || self.slow_ns > SLOW_ALL_NS {
            self.start_reading(flow)?;
        }
        self.start_back(flow)
    }

    /// Leaves the source to a thread of its own.
    pub(super) fn start_reading(&mut self, flow: &SendDriver) -> Result<()> {
        self.here = false;
        let (Some(source), Some(search)) = (self.source.take(), self.search.take()) else { return Ok(()) };
        let Some(flow) = flow.me.upgrade() else { return Ok(()) };
        // Never joined: a source such as a terminal may block forever, and the flow must still end.
        start("narrows-read", move || {
            let guard = flow.clone();
            let _guard = FailOnPanic(move || guard.fail(Error::misuse("reading the source failed; this is a bug")));
            flow.read_source(source, search);
        })?;
        Ok(())
    }

    /// Leaves the reverse direction to a thread of its own.
    pub(super) fn start_back(&mut self, flow: &SendDriver) -> Result<()> {
        let Some(flow) = flow.me.upgrade() else { return Ok(()) };
        if let Some((half, on_note)) = self.back.take() {
            self.back_thread = Some(start("narrows-back", move || flow.read_back(half, on_note))?);
        }
        Ok(())
    }
}

pub(super) fn source_error(e: std::io::Error) -> Error {
    Error { source: Some(e), ..Error::new(ErrorKind::Io, "cannot read the source") }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Ok(std::thread::Builder::new().name(name.into()).spawn(work)?)
}
