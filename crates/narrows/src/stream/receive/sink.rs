//! The sink of a receiving flow: who writes it, and when everything is written.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ReceiveDriver, sink_error};
use crate::error::{Error, Result};
use crate::stream::{FailOnPanic, LOOK_EVERY, lock};
use crate::sys;

impl ReceiveDriver {
    /// Starts the thread that writes the sink, if it does not run.
    pub(super) fn start_sink(&self) -> Result<()> {
        let mut thread = lock(&self.sink_thread);
        if thread.is_some() {
            return Ok(());
        }
        let Some(flow) = self.me.upgrade() else { return Ok(()) };
        *thread = Some(std::thread::Builder::new().name("narrows-write".into()).spawn(move || {
            let guard = Arc::clone(&flow);
            let _guard = FailOnPanic(move || guard.fail(Error::misuse("writing the output failed; this is a bug")));
            flow.write_sink();
        })?);
        Ok(())
    }

    fn write_sink(&self) {
        loop {
            let mut sink = lock(&self.sink);
            match self.write_ready(&mut sink) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) => return self.fail(e),
            }
            drop(sink);
            self.report();
            // Wakes the thread that waits for the sink to be free at the end of the stream.
            self.changed.ring();
            let mut state = lock(&self.state);
            if state.closed || state.failed {
                return;
            }
            if !state.receiver.has_raw() {
                state = self.changed.wait(state, LOOK_EVERY).0;
            }
            drop(state);
        }
    }

    /// Writes a small piece on the thread that received it, unless the sink is in use. Returns
    /// whether it was written.
    pub(super) fn write_directly(&self) -> Result<bool> {
        let Ok(mut sink) = self.sink.try_lock() else { return Ok(false) };
        self.write_ready(&mut sink)?;
        Ok(true)
    }

    /// Writes all raw data that is ready, in order. Returns whether there was any.
    fn write_ready(&self, sink: &mut Box<dyn Write + Send>) -> Result<bool> {
        let (mut any, mut written) = (false, 0);
        loop {
            let mut state = lock(&self.state);
            state.receiver.stored(written);
            let Some(raw) = state.receiver.read() else { break };
            drop(state);
            any = true;
            let begin = sys::monotonic_ns();
            sink.write_all(&raw).map_err(|e| sink_error(e, "cannot write the output"))?;
            self.blocked_ns.fetch_add(sys::monotonic_ns() - begin, Ordering::Relaxed);
            written = raw.len();
            drop(raw);
            // There is room again.
            self.changed.ring();
        }
        if any {
            sink.flush().map_err(|e| sink_error(e, "cannot write the output"))?;
        }
        Ok(any)
    }

    /// Writes the verified data from before the damage, before the failure is reported.
    pub(super) fn drain(&self) {
        if self.start_sink().is_err() {
            return;
        }
        while self.control.check().is_ok() {
            let free = self.sink.try_lock().is_ok();
            let mut state = lock(&self.state);
            if state.failed {
                return;
            }
            let jobs = super::jobs(&mut state.receiver);
            if !jobs.is_empty() {
                drop(state);
                jobs.into_iter().for_each(|job| self.submit(job));
                continue;
            }
            if free && !state.receiver.is_decoding() && !state.receiver.has_raw() {
                return;
            }
            drop(self.changed.wait(state, Duration::from_millis(1)));
        }
    }

    /// Waits until everything received is decoded and written.
    pub(super) fn await_sink(&self) -> Result<()> {
        loop {
            self.check()?;
            self.report();
            if lock(&self.sink_thread).is_none() {
                self.write_directly()?;
            }
            // A writing thread holds the sink's lock: if it is free and nothing is left, everything
            // is written.
            let free = self.sink.try_lock().is_ok();
            let state = lock(&self.state);
            if free && state.receiver.is_finished() {
                return Ok(());
            }
            drop(self.changed.wait(state, Duration::from_millis(1)));
        }
    }
}
